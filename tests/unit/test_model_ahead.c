/* Greedy decoding one step ahead, as public calls: the ids of waiting for each
 * step, whatever the order of sequences from step to step; what is refused. */
#include "unit/support_tiny_llama.h"

#include <string.h>

static tiny_llama tiny;
static folio_device *dev;
static folio_model *model;
static folio_runner *runner;
static tiny_batch b;

static void open_on(const char *select)
{
    folio_runner_params p;
    dev = tiny_device(&tiny, select, 0);
    if (!dev)
        cr_skip_test("no such device here");
    tiny_save(&tiny);
    model = tiny_open(&tiny, dev);
    tiny_params(&p);
    p.run_ahead = 1;
    runner = tiny_runner(model, &p);
}

static void set_up(void)
{
    tiny_init(&tiny);
}

static void tear_down(void)
{
    folio_runner_close(&runner);
    folio_model_close(&model);
    folio_device_close(&dev);
    tiny_fini(&tiny);
}

/* All known prompts at once; from step to step the sequences change places. */
static void decode_goldens(void)
{
    static const int32_t open = FOLIO_TOK_NEXT;
    enum { N = TINY_N_PROMPTS };
    tiny_seq seq[N];
    int32_t got[TINY_N_NEW][N], at[N], row_of[N], next_row[N], nan[N];
    float value[N];
    for (int s = 0; s < N; s++)
        tiny_seq_init(&seq[s], runner, s, 7);
    for (int i = 0; i <= TINY_N_NEW; i++) {
        if (i < TINY_N_NEW) {
            tiny_batch_init(&b);
            for (int k = 0; k < N; k++) {
                const int s = (k + i) % N;
                next_row[k] = i ? row_of[s] : 0;
                if (i == 0)
                    tiny_batch_add(&b, &seq[s], tiny_goldens[s].prompt,
                                   tiny_goldens[s].n, false);
                else
                    tiny_batch_add(&b, &seq[s], &open, 1, false);
            }
            for (int k = 0; k < N; k++)
                row_of[(k + i) % N] = k;
            TINY_OK(folio_runner_forward_ahead(runner, &b.b,
                                               i ? next_row : NULL, i % 2));
        }
        if (i == 0)
            continue;
        TINY_OK(folio_runner_read_ahead(runner, (i - 1) % 2, at, value, nan));
        for (int k = 0; k < N; k++) {
            cr_assert_eq(nan[k], 0);
            got[i - 1][(k + i - 1) % N] = at[k];
        }
    }
    for (int s = 0; s < N; s++)
        for (int i = 0; i < TINY_N_NEW; i++)
            cr_expect_eq(got[i][s], tiny_goldens[s].ids[i],
                         "prompt %d, id %d is %d, expected %d", s, i, got[i][s],
                         tiny_goldens[s].ids[i]);
}

Test(model_ahead, known_ids, .init = set_up, .fini = tear_down)
{
    open_on("host");
    decode_goldens();
}

Test(model_ahead, known_ids_on_pocl, .init = set_up, .fini = tear_down)
{
    open_on("portable computing");
    decode_goldens();
}

Test(model_ahead, refused, .init = set_up, .fini = tear_down)
{
    static const int32_t open = FOLIO_TOK_NEXT;
    const int32_t row = 0, bad = 1;
    tiny_seq s;
    int32_t id, nan;
    float v;
    open_on("host");
    tiny_seq_init(&s, runner, 0, 0);
    tiny_batch_init(&b);
    tiny_batch_add(&b, &s, tiny_goldens[0].prompt, 3, false);
    cr_expect_eq(folio_runner_forward_ahead(NULL, &b.b, NULL, 0),
                 FOLIO_E_INVAL);
    cr_expect_eq(folio_runner_forward_ahead(runner, NULL, NULL, 0),
                 FOLIO_E_INVAL);
    cr_expect_eq(folio_runner_forward_ahead(runner, &b.b, NULL, 2),
                 FOLIO_E_INVAL);
    cr_expect_eq(folio_runner_forward_ahead(runner, &b.b, NULL, -1),
                 FOLIO_E_INVAL);
    cr_expect_eq(folio_runner_read_ahead(runner, 0, &id, &v, &nan),
                 FOLIO_E_INVAL, "nothing was computed");
    TINY_OK(folio_runner_forward_ahead(runner, &b.b, NULL, 0));
    cr_expect_eq(folio_runner_read_ahead(runner, 0, NULL, &v, &nan),
                 FOLIO_E_INVAL);
    cr_expect_eq(folio_runner_read_ahead(runner, 0, &id, NULL, &nan),
                 FOLIO_E_INVAL);
    cr_expect_eq(folio_runner_read_ahead(runner, 0, &id, &v, NULL),
                 FOLIO_E_INVAL);
    cr_expect_eq(folio_runner_read_ahead(runner, 1, &id, &v, &nan),
                 FOLIO_E_INVAL, "nothing of that number");
    tiny_batch_init(&b);
    tiny_batch_add(&b, &s, &open, 1, false);
    cr_expect_eq(folio_runner_forward(runner, &b.b, -1), FOLIO_E_RANGE,
                 "a plain forward has no ids but those given");
    cr_expect_eq(folio_runner_forward_ahead(runner, &b.b, NULL, 1),
                 FOLIO_E_RANGE);
    cr_expect_eq(folio_runner_forward_ahead(runner, &b.b, &bad, 1),
                 FOLIO_E_RANGE, "the forward before had one row");
    TINY_OK(folio_runner_forward_ahead(runner, &b.b, &row, 1));
    TINY_OK(folio_runner_read_ahead(runner, 0, &id, &v, &nan));
    cr_expect_eq(id, tiny_goldens[0].ids[0]);
    cr_expect_eq(folio_runner_read_ahead(runner, 0, &id, &v, &nan),
                 FOLIO_E_INVAL, "read twice");
    TINY_OK(folio_runner_read_ahead(runner, 1, &id, &v, &nan));
    cr_expect_eq(id, tiny_goldens[0].ids[1]);
}

Test(model_ahead, needs_to_be_asked_for, .init = set_up, .fini = tear_down)
{
    folio_runner_params p;
    tiny_seq s;
    int32_t id, nan;
    float v;
    open_on("host");
    folio_runner_close(&runner);
    tiny_params(&p);
    runner = tiny_runner(model, &p);
    tiny_seq_init(&s, runner, 0, 0);
    tiny_batch_init(&b);
    tiny_batch_add(&b, &s, tiny_goldens[0].prompt, 3, false);
    cr_expect_eq(folio_runner_forward_ahead(runner, &b.b, NULL, 0),
                 FOLIO_E_INVAL);
    cr_expect_not_null(strstr(tiny.ear.err, "run_ahead"), "%s", tiny.ear.err);
    cr_expect_eq(folio_runner_read_ahead(runner, 0, &id, &v, &nan),
                 FOLIO_E_INVAL);
}
