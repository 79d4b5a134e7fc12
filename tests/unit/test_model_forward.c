/* The forward pass of a tiny llama: known logits and ids, and what may change
 * how it is computed but not what comes out: chunks, neighbours, blocks, the
 * order of blocks, buffers too small for a step. */
#include "unit/support_tiny_llama.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

static tiny_llama tiny;
static folio_device *dev;
static folio_model *model;
static folio_runner *runner;
static folio_runner_params params;

/* A text long enough for several blocks and chunks; seed 5. */
#define LONG 75
static int32_t text[LONG];

static void set_up(void)
{
    uint32_t s = 5;
    tiny_init(&tiny);
    tiny_save(&tiny);
    dev = tiny_device(&tiny, "host", 0);
    model = tiny_open(&tiny, dev);
    tiny_params(&params);
    runner = tiny_runner(model, &params);
    for (int i = 0; i < LONG; i++) {
        s = s * 1664525u + 1013904223u;
        text[i] = (int32_t)(s >> 8) % TINY_VOCAB;
    }
}

static void tear_down(void)
{
    folio_runner_close(&runner);
    folio_model_close(&model);
    folio_device_close(&dev);
    tiny_fini(&tiny);
}

/* A runner that differs from the usual one. */
static void reopen(void)
{
    folio_runner_close(&runner);
    runner = tiny_runner(model, &params);
}

static void known_answers(float tol)
{
    float all[3 * TINY_VOCAB];
    double sum = 0.0;
    tiny_seq s;
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, tiny_goldens[0].prompt, 3, 0, true, all);
    const float *last = all + 2 * TINY_VOCAB;
    tiny_near(last, tiny_logits, 8, tol, "logits");
    cr_assert_eq(tiny_argmax(last), 28);
    tiny_near(&last[28], &tiny_max_logit, 1, tol, "best logit");
    for (int i = 0; i < 3 * TINY_VOCAB; i++)
        sum += (double)all[i];
    cr_assert(fabs(sum - (double)tiny_logit_sum) < 192.0 * (double)tol,
              "sum of logits is %.7g", sum);
    for (int p = 0; p < TINY_N_PROMPTS; p++) {
        const tiny_golden *g = &tiny_goldens[p];
        int32_t out[TINY_N_NEW];
        tiny_seq_init(&s, runner, p, 9);
        tiny_greedy(runner, &s, g->prompt, g->n, TINY_N_NEW, out);
        for (int i = 0; i < TINY_N_NEW; i++)
            cr_assert_eq(out[i], g->ids[i], "prompt %d, id %d: %d, expected %d",
                         p, i, out[i], g->ids[i]);
    }
}

Test(model_forward, known_logits_and_ids, .init = set_up, .fini = tear_down)
{
    known_answers(1e-4f);
}

/* The smallest margin on any path is 0.032: rounding K and V keeps the ids. */
Test(model_forward, known_ids_with_f16_kv, .init = set_up, .fini = tear_down)
{
    folio_runner_info i = {.size = sizeof i};
    folio_runner_get_info(runner, &i);
    cr_assert_str_eq(i.arithmetic, "f32");
    uint64_t f32_bytes = i.kv_bytes;
    params.kv_type = FOLIO_KV_F16;
    reopen();
    folio_runner_get_info(runner, &i);
    cr_assert_str_eq(i.arithmetic, "f16");
    /* Blocks x block size x heads x head size x K and V x layers. */
    cr_assert_eq(f32_bytes, 256u * 4 * 2 * 4 * 2 * 2 * sizeof(float));
    cr_assert_eq(i.kv_bytes, f32_bytes / 2);
    known_answers(5e-3f);
    /* It is really stored as half: some logit differs from the f32 run. */
    float a[TINY_VOCAB], b[TINY_VOCAB];
    tiny_seq s;
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, text, LONG, 0, false, a);
    params.kv_type = FOLIO_KV_F32;
    reopen();
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, text, LONG, 0, false, b);
    cr_assert_neq(memcmp(a, b, sizeof a), 0);
    tiny_near(a, b, TINY_VOCAB, 5e-2f, "f16 against f32");
}

Test(model_forward, known_answers_without_determinism, .init = set_up,
     .fini = tear_down)
{
    params.deterministic = 0;
    reopen();
    known_answers(1e-4f);
}

/* The same through OpenCL; PoCL compiles kernels at first. */
Test(model_forward, known_answers_on_pocl, .init = set_up, .fini = tear_down,
     .timeout = 280)
{
    folio_device *cl = tiny_device(&tiny, "pocl", 0);
    if (!cl)
        cr_skip_test("no PoCL among the OpenCL devices here");
    folio_runner_close(&runner);
    folio_model_close(&model);
    model = tiny_open(&tiny, cl);
    for (int kv = 0; kv < 2; kv++) {
        params.kv_type = kv ? FOLIO_KV_F16 : FOLIO_KV_F32;
        runner = tiny_runner(model, &params);
        known_answers(kv ? 5e-3f : 1e-4f);
        folio_runner_close(&runner);
    }
    folio_model_close(&model);
    folio_device_close(&cl);
}

Test(model_forward, chunks_change_no_bit, .init = set_up, .fini = tear_down)
{
    static float want[LONG * TINY_VOCAB], got[LONG * TINY_VOCAB];
    const int32_t chunks[] = {1, 2, 7, 8, 9, 16, 31, 74};
    tiny_seq s;
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, text, LONG, 0, true, want);
    for (size_t i = 0; i < FOLIO_COUNT(chunks); i++) {
        tiny_seq_init(&s, runner, (int32_t)i % TINY_MAX_SEQS, 3);
        memset(got, 0, sizeof got);
        tiny_feed(runner, &s, text, LONG, chunks[i], true, got);
        tiny_equal(got, want, LONG * TINY_VOCAB, "in chunks");
    }
    params.deterministic = 0;
    reopen();
    for (size_t i = 0; i < FOLIO_COUNT(chunks); i++) {
        tiny_seq_init(&s, runner, 0, 0);
        tiny_feed(runner, &s, text, LONG, chunks[i], true, got);
        tiny_near(got, want, LONG * TINY_VOCAB, 1e-4f, "in chunks");
    }
}

Test(model_forward, neighbours_change_no_bit, .init = set_up, .fini = tear_down)
{
    static float alone[TINY_N_PROMPTS][1 + TINY_N_NEW][TINY_VOCAB];
    static float got[TINY_N_PROMPTS * TINY_VOCAB];
    static tiny_batch b;
    tiny_seq s[TINY_N_PROMPTS];
    for (int p = 0; p < TINY_N_PROMPTS; p++) {
        const tiny_golden *g = &tiny_goldens[p];
        tiny_seq_init(&s[p], runner, p, 0);
        tiny_feed(runner, &s[p], g->prompt, g->n, 0, false, alone[p][0]);
        for (int i = 0; i < TINY_N_NEW; i++)
            tiny_feed(runner, &s[p], &g->ids[i], 1, 0, false, alone[p][i + 1]);
    }
    /* All in one ragged prefill, then decoding side by side; blocks mixed. */
    for (int i = -1; i < TINY_N_NEW; i++) {
        tiny_batch_init(&b);
        for (int p = 0; p < TINY_N_PROMPTS; p++) {
            const tiny_golden *g = &tiny_goldens[p];
            if (i < 0) {
                tiny_seq_init(&s[p], runner, p, 77);
                tiny_batch_add(&b, &s[p], g->prompt, g->n, false);
            } else {
                tiny_batch_add(&b, &s[p], &g->ids[i], 1, false);
            }
        }
        TINY_OK(folio_runner_forward(runner, &b.b, -1));
        TINY_OK(folio_runner_read(runner, got));
        for (int p = 0; p < TINY_N_PROMPTS; p++)
            tiny_equal(got + p * TINY_VOCAB, alone[p][i + 1], TINY_VOCAB,
                       "among neighbours");
    }
    /* A prefill joins sequences that decode. */
    tiny_seq first, other;
    float pair[2 * TINY_VOCAB], want[TINY_VOCAB];
    tiny_seq_init(&first, runner, 5, 77);
    tiny_feed(runner, &first, text, LONG, 0, false, want);
    tiny_seq_init(&first, runner, 5, 77);
    tiny_seq_init(&other, runner, 6, 77);
    tiny_feed(runner, &other, tiny_goldens[0].prompt, 3, 0, false, NULL);
    tiny_batch_init(&b);
    tiny_batch_add(&b, &other, &tiny_goldens[0].ids[0], 1, false);
    tiny_batch_add(&b, &first, text, LONG, false);
    TINY_OK(folio_runner_forward(runner, &b.b, -1));
    TINY_OK(folio_runner_read(runner, pair));
    tiny_equal(pair, alone[0][1], TINY_VOCAB, "decoding beside a prefill");
    tiny_equal(pair + TINY_VOCAB, want, TINY_VOCAB, "prefill beside decoding");
}

Test(model_forward, blocks_change_no_bit, .init = set_up, .fini = tear_down)
{
    float want[TINY_VOCAB], got[TINY_VOCAB];
    const int32_t sizes[] = {1, 2, 3, 4, 5, 16, 32, 128};
    const folio_kv_type kinds[] = {FOLIO_KV_F32, FOLIO_KV_F16};
    for (size_t k = 0; k < FOLIO_COUNT(kinds); k++) {
        for (size_t i = 0; i < FOLIO_COUNT(sizes); i++) {
            params.kv_type = kinds[k];
            params.block_size = sizes[i];
            reopen();
            for (uint32_t seed = 0; seed < 3; seed++) {
                tiny_seq s;
                tiny_seq_init(&s, runner, 1, seed);
                tiny_feed(runner, &s, text, LONG - 6, 20, false, NULL);
                tiny_feed(runner, &s, text + LONG - 6, 6, 1, false, got);
                if (i == 0 && seed == 0)
                    memcpy(want, got, sizeof want);
                tiny_equal(got, want, TINY_VOCAB, "blocks");
            }
        }
    }
}

/* Buffers of 2 KiB: ten tokens at once and eight rows of logits a buffer, so a
 * step of 75 is walked in pieces. */
Test(model_forward, small_buffers_change_no_bit, .init = set_up,
     .fini = tear_down)
{
    static float want[LONG * TINY_VOCAB], got[LONG * TINY_VOCAB];
    tiny_seq s;
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, text, LONG, 0, true, want);
    tear_down();
    tiny_init(&tiny);
    tiny_save(&tiny);
    dev = tiny_device(&tiny, "host", 2048);
    model = tiny_open(&tiny, dev);
    params.max_seqs = 2;
    params.max_ctx = 80;
    reopen();
    folio_runner_info i = {.size = sizeof i};
    folio_runner_get_info(runner, &i);
    cr_assert_lt(i.step_tok, 16);
    cr_assert_geq(i.step_tok, 1);
    tiny_seq_init(&s, runner, 1, 4);
    tiny_feed(runner, &s, text, LONG, 0, true, got);
    tiny_equal(got, want, LONG * TINY_VOCAB, "in pieces");
    int32_t ids[LONG];
    float values[LONG];
    int32_t nan[LONG];
    TINY_OK(folio_runner_read_top(runner, 1, ids, values, nan));
    for (int t = 0; t < LONG; t++) {
        cr_assert_eq(ids[t], tiny_argmax(want + t * TINY_VOCAB));
        cr_assert_eq(nan[t], 0);
    }
}

Test(model_forward, rows_are_those_asked_for, .init = set_up, .fini = tear_down)
{
    static float all[LONG * TINY_VOCAB], got[5 * TINY_VOCAB];
    static tiny_batch b;
    const int32_t rows[] = {0, 1, 40, 73, 74};
    tiny_seq s;
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, text, LONG, 0, true, all);
    tiny_seq_init(&s, runner, 0, 0);
    tiny_batch_init(&b);
    tiny_batch_add(&b, &s, text, LONG, false);
    memcpy(b.rows, rows, sizeof rows);
    b.b.n_rows = (int32_t)FOLIO_COUNT(rows);
    TINY_OK(folio_runner_forward(runner, &b.b, -1));
    TINY_OK(folio_runner_read(runner, got));
    for (size_t i = 0; i < FOLIO_COUNT(rows); i++)
        tiny_equal(got + i * TINY_VOCAB, all + rows[i] * TINY_VOCAB, TINY_VOCAB,
                   "asked row");
    /* None: the cache is filled all the same, and a read writes nothing. */
    tiny_seq_init(&s, runner, 0, 0);
    tiny_batch_init(&b);
    tiny_batch_add(&b, &s, text, LONG - 1, false);
    b.b.n_rows = 0;
    b.b.rows = NULL;
    TINY_OK(folio_runner_forward(runner, &b.b, -1));
    got[0] = 123.0f;
    TINY_OK(folio_runner_read(runner, got));
    cr_assert_eq(got[0], 123.0f);
    tiny_feed(runner, &s, text + LONG - 1, 1, 0, false, got);
    tiny_equal(got, all + (LONG - 1) * TINY_VOCAB, TINY_VOCAB, "after no rows");
}

Test(model_forward, top_is_sorted_logits, .init = set_up, .fini = tear_down)
{
    static float all[LONG * TINY_VOCAB];
    static int32_t ids[LONG * 64], nan[LONG];
    static float v[LONG * 64];
    const int32_t ks[] = {1, 2, 20, 64};
    tiny_seq s;
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, text, LONG, 0, true, all);
    for (size_t j = 0; j < FOLIO_COUNT(ks); j++) {
        int32_t k = ks[j];
        TINY_OK(folio_runner_read_top(runner, k, ids, v, nan));
        for (int t = 0; t < LONG; t++) {
            const float *row = all + t * TINY_VOCAB;
            cr_assert_eq(nan[t], 0);
            for (int32_t i = 0; i < k; i++) {
                int32_t id = ids[t * k + i], rank = 0;
                cr_assert(id >= 0 && id < TINY_VOCAB);
                cr_assert_eq(v[t * k + i], row[id]);
                for (int32_t o = 0; o < TINY_VOCAB; o++)
                    rank += row[o] > row[id] || (row[o] == row[id] && o < id);
                cr_assert_eq(rank, i, "row %d: id %d has rank %d, not %d", t,
                             id, rank, i);
            }
        }
    }
    cr_assert_eq(folio_runner_read_top(runner, 0, ids, v, nan), FOLIO_E_RANGE);
    cr_assert_eq(folio_runner_read_top(runner, 65, ids, v, nan), FOLIO_E_RANGE);
}

/* A copied block continues as the original does, and is its own. */
Test(model_forward, copies_run_first, .init = set_up, .fini = tear_down)
{
    float want[TINY_VOCAB], got[TINY_VOCAB];
    static tiny_batch b;
    tiny_seq a, c;
    /* 6 tokens: one full block and one of two tokens. */
    tiny_seq_init(&a, runner, 0, 0);
    tiny_seq_init(&c, runner, 1, 0);
    tiny_feed(runner, &a, text, 6, 0, false, NULL);
    tiny_batch_init(&b);
    c.n_tok = 6;
    for (int i = 0; i < 2; i++) {
        b.copies[2 * i] = a.blocks[i];
        b.copies[2 * i + 1] = c.blocks[i];
    }
    b.b.n_copies = 2;
    const int32_t other = (text[6] + 1) % TINY_VOCAB;
    tiny_batch_add(&b, &c, &other, 1, false);
    TINY_OK(folio_runner_forward(runner, &b.b, -1));
    TINY_OK(folio_runner_read(runner, got));
    tiny_seq fresh;
    tiny_seq_init(&fresh, runner, 2, 0);
    tiny_feed(runner, &fresh, text, 6, 0, false, NULL);
    tiny_feed(runner, &fresh, &other, 1, 0, false, want);
    tiny_equal(got, want, TINY_VOCAB, "on copied blocks");
    /* What the copy wrote has not reached the original. */
    tiny_feed(runner, &a, text + 6, 3, 0, false, got);
    tiny_seq_init(&fresh, runner, 3, 0);
    tiny_feed(runner, &fresh, text, 9, 0, false, want);
    tiny_equal(got, want, TINY_VOCAB, "on the original");
}

/* Causality: a token changes its own row and later ones, no earlier ones. */
Test(model_forward, later_tokens_do_not_reach_back, .init = set_up,
     .fini = tear_down)
{
    static float a[LONG * TINY_VOCAB], c[LONG * TINY_VOCAB];
    const int at[] = {LONG - 1, 40, 1};
    tiny_seq s;
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, text, LONG, 0, true, a);
    for (size_t i = 0; i < FOLIO_COUNT(at); i++) {
        int32_t keep = text[at[i]];
        text[at[i]] = (keep + 7) % TINY_VOCAB;
        tiny_seq_init(&s, runner, 0, 0);
        tiny_feed(runner, &s, text, LONG, 0, true, c);
        text[at[i]] = keep;
        tiny_equal(c, a, (size_t)at[i] * TINY_VOCAB, "before the change");
        for (int t = at[i]; t < LONG; t++) {
            float most = 0.0f;
            for (int v = 0; v < TINY_VOCAB; v++)
                most = fmaxf(
                    most, fabsf(a[t * TINY_VOCAB + v] - c[t * TINY_VOCAB + v]));
            cr_assert(most > 1e-4f, "row %d did not move", t);
        }
    }
}

/* Positions count: the same ids two places later give something else, and the
 * rotation is relative, so logits of a lone repeated token do not move. */
Test(model_forward, order_matters, .init = set_up, .fini = tear_down)
{
    const int32_t ab[] = {1, 2, 3}, ba[] = {2, 1, 3};
    float a[TINY_VOCAB], c[TINY_VOCAB], most = 0.0f;
    tiny_seq s;
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, ab, 3, 0, false, a);
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, ba, 3, 0, false, c);
    for (int v = 0; v < TINY_VOCAB; v++)
        most = fmaxf(most, fabsf(a[v] - c[v]));
    cr_assert(most > 1e-3f);
    const int32_t same[] = {9, 9, 9, 9, 9};
    float rows[5 * TINY_VOCAB];
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, same, 5, 0, true, rows);
    for (int t = 1; t < 5; t++)
        tiny_near(rows + t * TINY_VOCAB, rows, TINY_VOCAB, 1e-4f,
                  "equal values in every place");
}
