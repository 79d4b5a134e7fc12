/* unit/test_engine_golden.c: known prompts through the engine: the known ids at
 * every pool, with the known counters; and the same ids whatever happens beside
 * them. */
#include <string.h>

#include "unit/engine_bed.h"
#include "unit/text_fixture.h"

static eng b;

static void set_up(void)
{
    eng_init(&b, "host", false);
}

static void tear_down(void)
{
    eng_fini(&b);
}

TestSuite(engine_golden, .init = set_up, .fini = tear_down);

static void expect_golden(uint64_t id, int i, const char *what)
{
    const eng_answer *a = eng_find(&b, id, 0);
    cr_assert(a->ended, "%s: prompt %d has not ended", what, i);
    cr_assert_eq(a->n, TINY_N_NEW, "%s: prompt %d: %d ids", what, i, a->n);
    for (int k = 0; k < TINY_N_NEW; k++)
        cr_assert_eq(a->ids[k], tiny_goldens[i].ids[k],
                     "%s: prompt %d, id %d: %d, expected %d", what, i, k,
                     a->ids[k], tiny_goldens[i].ids[k]);
    cr_assert_eq(a->end.reason, FOLIO_REASON_LENGTH);
    cr_assert_eq(a->end.status, FOLIO_OK);
    cr_assert_eq(a->end.n_prompt, tiny_goldens[i].n);
}

static void submit_goldens(uint64_t ids[TINY_N_PROMPTS])
{
    for (int i = 0; i < TINY_N_PROMPTS; i++)
        ids[i] = eng_submit(&b, tiny_goldens[i].prompt, tiny_goldens[i].n,
                            TINY_N_NEW);
}

/* The tiny model with known answers: chunks and prefix cache off. */
Test(engine_golden, cramped_pools_give_the_same_text_and_the_known_counters)
{
    static const struct {
        int32_t pool;
        uint64_t steps, preemptions, recomputed, positions;
    } table[] = {{64, 16, 0, 0, 93},   {16, 23, 2, 31, 122},
                 {12, 27, 3, 40, 130}, {8, 39, 4, 43, 132},
                 {7, 47, 7, 72, 158},  {6, 51, 7, 66, 152}};
    for (size_t t = 0; t < FOLIO_COUNT(table); t++) {
        uint64_t ids[TINY_N_PROMPTS];
        char what[32];
        snprintf(what, sizeof what, "pool %d", table[t].pool);
        b.p.max_seqs = 5;
        b.p.n_blocks = table[t].pool;
        b.p.prefix_cache = 0;
        b.p.chunking = 0;
        eng_open(&b);
        submit_goldens(ids);
        eng_drain(&b, 100);
        for (int i = 0; i < TINY_N_PROMPTS; i++)
            expect_golden(ids[i], i, what);
        const folio_engine_stats s = eng_stats(&b);
        cr_assert_eq(s.steps, table[t].steps, "%s: %llu steps", what,
                     (unsigned long long)s.steps);
        cr_assert_eq(s.preemptions, table[t].preemptions);
        cr_assert_eq(s.recomputed_tok, table[t].recomputed);
        cr_assert_eq(s.forward_tok, table[t].positions);
        cr_assert_eq(s.new_tok, (uint64_t)TINY_N_PROMPTS * TINY_N_NEW);
        /* The last one is the release. */
        cr_assert_eq(s.empty_steps, 1);
        eng_at_rest(&b);
    }
}

Test(engine_golden, one_write_and_one_wait_a_step)
{
    uint64_t ids[TINY_N_PROMPTS];
    eng_open(&b);
    submit_goldens(ids);
    const folio_engine_stats before = eng_stats(&b);
    eng_drain(&b, 100);
    const folio_engine_stats s = eng_stats(&b);
    cr_assert_eq(s.writes - before.writes, s.steps);
    cr_assert_eq(s.reads - before.reads, s.steps);
    cr_assert_eq(s.waits - before.waits, s.steps);
    /* The same launches each step: the lowered sequence and the best ids. */
    cr_assert_eq((s.launches - before.launches) % s.steps, 0);
}
