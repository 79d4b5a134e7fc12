/* unit/test_engine_same.c: with determinism on, a request's ids do not depend
 * on its neighbours, on arrival, on how prompts are cut, on the pool or on what
 * was found in the prefix cache; greedy and sampled alike. */
#include <string.h>

#include "unit/engine_bed.h"
#include "unit/text_fixture.h"

enum { MANY = 33, N_NEW = 20, LONGEST = 90, SHARED = 24 };

typedef struct ask {
    int32_t prompt[LONGEST], n;
    folio_sample_params sample;
    int32_t want[N_NEW];
    uint64_t id;
} ask;

static eng b;
static folio_engine_params base; /* what each comparison starts from */
static ask asks[MANY];
static uint64_t seed;

/* Prompts of all lengths, every third one beginning like the others of its
 * kind, every second one sampled. */
static void make_asks(void)
{
    seed = 20240607;
    for (int i = 0; i < MANY; i++) {
        ask *a = &asks[i];
        a->n = 1 + (int32_t)(next_random(&seed) % LONGEST);
        if (i % 3 == 0)
            a->n = SHARED + 1 + (int32_t)(next_random(&seed) % 40);
        for (int k = 0; k < a->n; k++)
            a->prompt[k] = i % 3 == 0 && k < SHARED
                               ? (7 * k + 3) % TINY_VOCAB
                               : (int32_t)(next_random(&seed) % TINY_VOCAB);
        folio_sample_params_default(&a->sample);
        a->sample.temperature = i % 2 ? 1.5f : 0.0f;
        a->sample.top_k = i % 4 == 1 ? 40 : 0;
        a->sample.seed = (uint64_t)i * 977;
    }
}

static void submit(ask *a)
{
    folio_engine_request r;
    folio_engine_request_default(&r);
    r.prompt = a->prompt;
    r.n_prompt = a->n;
    r.max_new = N_NEW;
    r.sample = a->sample;
    a->id = eng_submit_as(&b, &r);
}

static void expect(const ask *a, const char *what)
{
    const eng_answer *got = eng_find(&b, a->id, 0);
    cr_assert_eq(got->n, N_NEW, "%s: ask %d: %d ids, %s", what, (int)(a - asks),
                 got->n, folio_finish_reason_name(got->end.reason));
    for (int k = 0; k < N_NEW; k++)
        cr_assert_eq(got->ids[k], a->want[k],
                     "%s: ask %d (%d ids), id %d: %d, expected %d", what,
                     (int)(a - asks), a->n, k, got->ids[k], a->want[k]);
}

/* Each alone, in an engine of one place, nothing cached. */
static void learn(void)
{
    const folio_engine_params keep = b.p;
    b.p.max_seqs = 1;
    b.p.prefix_cache = 0;
    eng_open(&b);
    for (int i = 0; i < MANY; i++) {
        submit(&asks[i]);
        eng_drain(&b, 100);
        const eng_answer *a = eng_find(&b, asks[i].id, 0);
        cr_assert_eq(a->n, N_NEW);
        memcpy(asks[i].want, a->ids, sizeof asks[i].want);
        eng_forget(&b);
    }
    b.p = keep;
}

static void set_up_on(const char *device)
{
    eng_init(&b, device, false);
    if (!b.dev)
        return;
    b.p.max_ctx = 128;
    base = b.p;
    make_asks();
    learn();
}

static void set_up(void)
{
    set_up_on("host");
}

static void tear_down(void)
{
    if (b.dev)
        eng_fini(&b);
}

static void all_at_once(const char *what)
{
    eng_open(&b);
    for (int i = 0; i < MANY; i++)
        submit(&asks[i]);
    eng_drain(&b, 4000);
    for (int i = 0; i < MANY; i++)
        expect(&asks[i], what);
    eng_at_rest(&b);
}

/* ---- the comparisons ----------------------------------------------------- */

static void with_seven_others(void)
{
    for (int at = 0; at + 8 <= MANY; at += 8) {
        b.p = base;
        b.p.n_blocks = 8 * 28;
        eng_open(&b);
        for (int i = at; i < at + 8; i++)
            submit(&asks[i]);
        eng_drain(&b, 200);
        for (int i = at; i < at + 8; i++)
            expect(&asks[i], "eight at once");
    }
}

static void batches_of_odd_sizes(void)
{
    static const int32_t sizes[] = {1, 2, 3, 5, 7, 33};
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++) {
        char what[32];
        snprintf(what, sizeof what, "%d places", sizes[i]);
        b.p = base;
        b.p.max_seqs = sizes[i];
        b.p.n_blocks = 32 * sizes[i];
        all_at_once(what);
    }
}

static void shuffled_arrivals(void)
{
    for (int round = 0; round < 3; round++) {
        int order[MANY], left = MANY;
        for (int i = 0; i < MANY; i++)
            order[i] = i;
        b.p = base;
        b.p.n_blocks = 100;
        eng_open(&b);
        while (left > 0 || !folio_engine_is_idle(b.e)) {
            int n = (int)(next_random(&seed) % 4);
            for (; n > 0 && left > 0; n--) {
                const int k = (int)(next_random(&seed) % (uint32_t)left);
                submit(&asks[order[k]]);
                order[k] = order[--left];
            }
            eng_step(&b);
        }
        for (int i = 0; i < MANY; i++)
            expect(&asks[i], "shuffled");
        eng_at_rest(&b);
    }
}

static void prompts_cut_anywhere(void)
{
    static const int32_t budgets[] = {1, 7, 16, 64, 0};
    for (size_t i = 0; i < FOLIO_COUNT(budgets); i++)
        for (int cache = 0; cache <= 1; cache++) {
            char what[48];
            snprintf(what, sizeof what, "budget %d, cache %d", budgets[i],
                     cache);
            b.p = base;
            b.p.max_seqs = budgets[i] ? FOLIO_MIN(budgets[i], 16) : 16;
            b.p.budget = budgets[i];
            b.p.chunking = budgets[i] != 0;
            b.p.prefix_cache = cache;
            b.p.n_blocks = 120;
            all_at_once(what);
            const folio_engine_stats s = eng_stats(&b);
            cr_assert(cache ? s.cached_tok > 0 : s.cached_tok == 0);
            cr_assert(budgets[i] != 1 || s.forward_tok == s.steps);
        }
}

static void cramped_pools(void)
{
    static const int32_t pools[] = {28, 40, 64};
    for (size_t i = 0; i < FOLIO_COUNT(pools); i++)
        for (int cache = 0; cache <= 1; cache++) {
            char what[48];
            snprintf(what, sizeof what, "pool %d, cache %d", pools[i], cache);
            b.p = base;
            b.p.max_ctx = 0;
            b.p.n_blocks = pools[i];
            b.p.prefix_cache = cache;
            all_at_once(what);
            cr_assert_gt(eng_stats(&b).preemptions, 0);
        }
}

static void twice_the_same_engine(void)
{
    b.p = base;
    eng_open(&b);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++)
            submit(&asks[i]);
        eng_drain(&b, 4000);
        for (int i = 0; i < MANY; i++)
            expect(&asks[i], round ? "again" : "first");
    }
}

/* ---- on the host --------------------------------------------------------- */

TestSuite(engine_same, .init = set_up, .fini = tear_down);

Test(engine_same, sampled_texts_differ_and_greedy_ones_repeat)
{
    /* What the other tests compare must not be all the same. */
    int differ = 0;
    for (int i = 1; i < MANY; i++)
        differ += memcmp(asks[0].want, asks[i].want, sizeof asks[0].want) != 0;
    cr_assert_eq(differ, MANY - 1);
}

Test(engine_same, with_seven_others)
{
    with_seven_others();
}

Test(engine_same, batches_of_odd_sizes)
{
    batches_of_odd_sizes();
}

Test(engine_same, shuffled_arrivals)
{
    shuffled_arrivals();
}

Test(engine_same, prompts_cut_anywhere)
{
    prompts_cut_anywhere();
}

Test(engine_same, cramped_pools)
{
    cramped_pools();
}

Test(engine_same, twice_the_same_engine)
{
    twice_the_same_engine();
}

/* ---- on OpenCL ----------------------------------------------------------- */

/* A suite of its own: the other one's set-up is for the host. */
TestSuite(engine_same_cl, .fini = tear_down);

static void set_up_cl(void)
{
    set_up_on("pocl");
    if (!b.dev) {
        const char *ci = getenv("CI");
        cr_assert(!ci || strcmp(ci, "true"), "PoCL is not installed");
        cr_skip("PoCL is not installed");
    }
}

Test(engine_same_cl, neighbours_and_arrivals)
{
    set_up_cl();
    with_seven_others();
    batches_of_odd_sizes();
    shuffled_arrivals();
}

Test(engine_same_cl, cuts)
{
    set_up_cl();
    prompts_cut_anywhere();
}

Test(engine_same_cl, pools)
{
    set_up_cl();
    cramped_pools();
    twice_the_same_engine();
}
