/* unit/test_engine_padded.c: a head with more rows than the tokenizer has ids,
 * as models with a padded vocabulary have: the rows behind the last id are
 * never drawn, scored or shown, however large their logits are, on the device
 * and on the host alike. */
#include <math.h>
#include <string.h>

#include "unit/engine_bed.h"
#include "unit/text_fixture.h"

/* 0..25 a-z, some letters more, the end. */
enum { N_IDS = 40, N_ASKS = 8, N_NEW = 12 };

static eng b;
static int32_t prompts[N_ASKS][6], rest[TINY_VOCAB - N_IDS];
static int n_seen;

static folio_tokenizer *open_small(void)
{
    fixture *f = fixture_bytes("gpt-2");
    f->desc.n_vocab = 0;
    for (int i = 0; i < N_IDS - 1; i++) {
        const char c = (char)(i < 26 ? 'a' + i : 'A' + i - 26);
        fixture_add(f, &c, 1, FOLIO_TOKEN_NORMAL);
    }
    f->desc.eos = fixture_add(f, "<|im_end|>", 10, FOLIO_TOKEN_CONTROL);
    folio_tokenizer *tok = fixture_open(f);
    free(f);
    return tok;
}

static bool set_up_on(const char *device)
{
    eng_init(&b, device, false);
    if (!b.dev) {
        const char *ci = getenv("CI");
        cr_assert(!ci || strcmp(ci, "true"), "%s is not installed", device);
        return false;
    }
    b.p.n_blocks = 96;
    b.p.budget = 16;
    b.p.prompt_logprobs = 1;
    for (int i = 0; i < N_ASKS; i++)
        for (int k = 0; k < 6; k++)
            prompts[i][k] = (11 * i + 7 * k + 1) % N_IDS;
    for (int i = 0; i < TINY_VOCAB - N_IDS; i++)
        rest[i] = N_IDS + i;
    return true;
}

static void tear_down(void)
{
    if (b.dev)
        eng_fini(&b);
}

TestSuite(engine_padded, .fini = tear_down);

static int32_t look(void *user, folio_logits_row *row)
{
    (void)user;
    cr_assert_eq(row->n_vocab, N_IDS);
    n_seen++;
    return FOLIO_LOGITS_DRAW;
}

/* Greedy, sampled, with counts, with scores, through the host. */
static void submit_all(uint64_t ids[N_ASKS], bool padded)
{
    for (int i = 0; i < N_ASKS; i++) {
        folio_engine_request r;
        folio_engine_request_default(&r);
        r.prompt = prompts[i];
        r.n_prompt = 6;
        r.max_new = N_NEW;
        r.ignore_eos = 1;
        r.sample.temperature = i % 2 ? 1.3f : 0.0f;
        r.sample.seed = (uint64_t)i;
        r.sample.top_k = i == 3 ? 20 : 0;
        r.sample.frequency_penalty = i == 2 || i == 5 ? 1.5f : 0.0f;
        if (!padded) {
            r.sample.banned = rest;
            r.sample.n_banned = TINY_VOCAB - N_IDS;
        } else if (i >= 4) {
            r.logprobs = i == 4 ? 0 : FOLIO_LOGPROBS_MAX;
            r.prompt_logprobs = i == 6;
            r.logits = i == 7 ? look : NULL;
        }
        ids[i] = eng_submit_as(&b, &r);
    }
}

static void check_score(const folio_sample_result *s)
{
    double sum = 0;
    cr_assert(s->logprob <= 0 && isfinite(s->logprob));
    cr_assert(s->id >= 0 && s->id < N_IDS);
    for (int i = 0; i < s->n_top; i++) {
        cr_assert_lt(s->top_ids[i], N_IDS);
        cr_assert(i == 0 || s->top_logprobs[i] <= s->top_logprobs[i - 1]);
        sum += exp((double)s->top_logprobs[i]);
    }
    cr_assert(sum < 1.00001);
    cr_assert(s->n_top < FOLIO_LOGPROBS_MAX || sum > .5, "%g", sum);
}

/* Events into the answers, scores looked at. */
static int drain(void)
{
    int n_scores = 0;
    for (int guard = 0; !folio_engine_is_idle(b.e); guard++) {
        folio_event ev[64];
        size_t n = 0;
        cr_assert_lt(guard, 100);
        TINY_OK(folio_engine_step(b.e, ev, FOLIO_COUNT(ev), &n));
        for (size_t i = 0; i < n; i++) {
            if (ev[i].kind == FOLIO_EVENT_PROMPT) {
                for (int32_t k = 1; k < ev[i].n_prompt; k++, n_scores++)
                    check_score(&ev[i].scores[k]);
                continue;
            }
            if (ev[i].scores) {
                check_score(ev[i].scores);
                n_scores++;
            }
            eng_note(&b, &ev[i]);
        }
    }
    eng_at_rest(&b);
    return n_scores;
}

static void only_ids_that_exist(void)
{
    uint64_t ids[N_ASKS], id = 0;
    eng_answer want[N_ASKS];
    int n_behind = 0;
    /* All rows are ids; those of the rest are banned. */
    eng_open(&b);
    submit_all(ids, false);
    drain();
    for (int i = 0; i < N_ASKS; i++)
        want[i] = *eng_find(&b, ids[i], 0);
    /* The rest would come up where it may. */
    for (int i = 0; i < 4; i++)
        ids[i] = eng_submit(&b, prompts[i], 6, N_NEW);
    drain();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < N_NEW; k++)
            n_behind += eng_find(&b, ids[i], 0)->ids[k] >= N_IDS;
    cr_assert_gt(n_behind, 4);
    b.tok = open_small();
    for (int ahead = 0; ahead < 2; ahead++) {
        b.p.run_ahead = ahead;
        n_seen = 0;
        eng_open(&b);
        submit_all(ids, true);
        cr_assert_eq(drain(), 4 * N_NEW + 5);
        cr_assert_eq(n_seen, N_NEW);
        for (int i = 0; i < N_ASKS; i++) {
            const eng_answer *a = eng_find(&b, ids[i], 0);
            cr_assert_eq(a->n, N_NEW);
            for (int k = 0; k < N_NEW; k++)
                cr_assert_eq(a->ids[k], want[i].ids[k],
                             "ahead %d, ask %d, id %d: %d, expected %d", ahead,
                             i, k, a->ids[k], want[i].ids[k]);
        }
        /* A step of nothing but greedy rows goes another way. */
        const uint64_t plain = eng_submit(&b, prompts[0], 6, N_NEW);
        drain();
        cr_assert_eq(memcmp(eng_find(&b, plain, 0)->ids, want[0].ids,
                            sizeof want[0].ids),
                     0);
        /* Nor can they be asked for. */
        folio_engine_request r;
        folio_engine_request_default(&r);
        r.prompt = rest;
        r.n_prompt = 1;
        cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_RANGE);
        r.prompt = prompts[0];
        r.stop_ids = rest;
        r.n_stop_ids = 1;
        cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_RANGE);
        r.n_stop_ids = 0;
        r.sample.banned = rest;
        r.sample.n_banned = 1;
        cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
    }
}

Test(engine_padded, on_the_host_device)
{
    set_up_on("host");
    only_ids_that_exist();
}

Test(engine_padded, on_opencl, .timeout = 240)
{
    if (!set_up_on("pocl"))
        cr_skip("PoCL is not installed");
    only_ids_that_exist();
}
