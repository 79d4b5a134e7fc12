/* Golden schedules: places, blocks, the free stack and all counts of whole
 * runs, exact. Any change of the order of decisions (release, grow, admit;
 * youngest victim; head of the queue; lowest place; last block in first out;
 * the watermark's waiver) breaks one of them. */
#include "unit/sched_dry.h"

/* ---- step by step -------------------------------------------------------- */

/* "0@0[0,2] 1@1[1] free 3,4 wait 2": who is where, and the free stack. */
static void now(const dry *b, const char *want, int line)
{
    char got[512] = "";
    size_t at = 0;
#define PUT(...) at += (size_t)snprintf(got + at, sizeof got - at, __VA_ARGS__)
    for (int32_t p = 0; p < b->p.max_seqs; p++) {
        const folio_request *r = folio_sched_at(b->s, p);
        if (!r)
            continue;
        int32_t n;
        const int32_t *blks = folio_sched_blocks(b->s, p, &n);
        PUT("%d@%d[", (int)r->id, (int)p);
        for (int32_t i = 0; i < n; i++)
            PUT("%s%d", i ? "," : "", (int)blks[i]);
        PUT("] ");
    }
    int32_t n;
    const int32_t *stack =
        folio_block_pool_free_stack(folio_sched_pool(b->s), &n);
    PUT("free ");
    for (int32_t i = 0; i < n; i++)
        PUT("%s%d", i ? "," : "", (int)stack[i]);
    PUT(" wait %d", (int)b->step->n_waiting);
#undef PUT
    cr_assert_str_eq(got, want,
                     "line %d, iteration %d: \"%s\", expected "
                     "\"%s\"",
                     line, (int)b->iterations, got, want);
}

#define STEP_IS(b, want)                                                       \
    do {                                                                       \
        cr_assert(dry_step(b));                                                \
        now(b, want, __LINE__);                                                \
    } while (0)

static void open_golden(dry *b, int32_t n_blocks, int32_t seqs, int32_t reserve)
{
    folio_sched_params p = dry_params(n_blocks, 4, seqs);
    p.watermark_blocks = reserve;
    dry_open(b, &p);
}

static void submit_n(dry *b, int32_t n, int32_t n_prompt, int32_t max_new)
{
    for (int32_t i = 0; i < n; i++)
        dry_submit(b, (uint64_t)i, n_prompt, max_new);
}

Test(sched_golden, b1_three_requests_three_blocks)
{
    dry b;
    open_golden(&b, 3, 4, 0);
    submit_n(&b, 3, 4, 8);
    STEP_IS(&b, "0@0[0] 1@1[1] 2@2[2] free  wait 0");
    STEP_IS(&b, "0@0[0,2] free 1 wait 2");
    cr_assert_eq(b.step->n_preempted, 2);
    cr_assert_eq(b.step->preempted[0]->id, 2); /* youngest first */
    cr_assert_eq(b.step->preempted[1]->id, 1);
    for (int i = 3; i <= 5; i++)
        STEP_IS(&b, "0@0[0,2] free 1 wait 2");
    for (int i = 6; i <= 8; i++)
        STEP_IS(&b, "0@0[0,2,1] free  wait 2");
    STEP_IS(&b, "1@0[1,2] free 0 wait 1");
    cr_assert_eq(b.step->n_released, 1);
    cr_assert_eq(b.step->released[0]->id, 0);
    for (int i = 10; i <= 12; i++)
        STEP_IS(&b, "1@0[1,2] free 0 wait 1");
    for (int i = 13; i <= 15; i++)
        STEP_IS(&b, "1@0[1,2,0] free  wait 1");
    STEP_IS(&b, "2@0[0,2] free 1 wait 0");
    for (int i = 17; i <= 19; i++)
        STEP_IS(&b, "2@0[0,2] free 1 wait 0");
    for (int i = 20; i <= 22; i++)
        STEP_IS(&b, "2@0[0,2,1] free  wait 0");
    cr_assert_not(dry_step(&b));
    now(&b, "free 0,2,1 wait 0", __LINE__);
    const folio_sched_stats st = folio_sched_get_stats(b.s);
    cr_assert_eq(b.iterations, 22);
    cr_assert_eq(b.empty, 1);
    cr_assert_eq(st.preemptions, 2);
    cr_assert_eq(st.preempted_tok, 10);
    cr_assert_eq(st.recomputed_tok, 10);
    cr_assert_eq(st.steps, 22);
    cr_assert_eq(st.plans, 23);
    dry_close(&b);
}

Test(sched_golden, b2_two_requests_two_blocks)
{
    dry b;
    open_golden(&b, 2, 2, 0);
    submit_n(&b, 2, 4, 4);
    STEP_IS(&b, "0@0[0] 1@1[1] free  wait 0");
    for (int i = 2; i <= 4; i++)
        STEP_IS(&b, "0@0[0,1] free  wait 1");
    STEP_IS(&b, "1@0[1,0] free  wait 0");
    cr_assert_eq(b.step->n_tok, 5); /* prompt and the token it had */
    STEP_IS(&b, "1@0[1,0] free  wait 0");
    STEP_IS(&b, "1@0[1,0] free  wait 0");
    cr_assert_not(dry_step(&b));
    now(&b, "free 1,0 wait 0", __LINE__);
    const folio_sched_stats st = folio_sched_get_stats(b.s);
    cr_assert_eq(st.preemptions, 1);
    cr_assert_eq(st.preempted_tok, 5);
    cr_assert_eq(st.recomputed_tok, 5);
    dry_close(&b);
}

Test(sched_golden, b3_the_waiver_brings_back_the_evicted)
{
    dry b;
    open_golden(&b, 6, 2, 3);
    submit_n(&b, 2, 4, 20);
    int32_t evicted_at = 0;
    while (dry_step(&b)) {
        if (b.step->n_preempted) {
            cr_assert_eq(evicted_at, 0);
            evicted_at = b.iterations;
            cr_assert_eq(b.step->preempted[0]->id, 1);
            cr_assert_eq(b.step->preempted[0]->n_tok, 13);
        }
        if (b.iterations == 9) {
            int32_t n;
            folio_sched_blocks(b.s, 1, &n);
            cr_assert_eq(n, 3);
        }
        if (b.iterations == 21) {
            cr_assert_eq(b.step->released[0]->id, 0);
            cr_assert_eq(b.step->admitted[0]->id, 1);
            cr_assert_eq(n_free(folio_sched_pool(b.s)), 2);
        }
    }
    cr_assert_eq(evicted_at, 10);
    cr_assert_eq(b.iterations, 31);
    cr_assert_eq(dry_text_of(&b, 0, 0)->done_at, 20);
    cr_assert_eq(dry_text_of(&b, 1, 0)->done_at, 31);
    cr_assert_eq(n_free(folio_sched_pool(b.s)), 6);
    dry_close(&b);
}

/* ---- preemption and recompute -------------------------------------------- */

typedef struct pressure {
    int32_t n, blocks, iterations;
    double occupancy;
    uint32_t preempts, recomputed, positions;
    double share, penalty; /* penalty 0: not stated */
} pressure;

static bool near(double a, double b, double within)
{
    return a - b < within && b - a < within;
}

/* Mean latency of those evicted over that of the others, in iterations. */
static double victim_penalty(const dry *b, int32_t n)
{
    double sum[2] = {0, 0};
    int32_t count[2] = {0, 0};
    for (int32_t i = 0; i < n; i++) {
        const dry_text *t = dry_text_of(b, (uint64_t)i, 0);
        sum[t->n_preempt > 0] += t->done_at;
        count[t->n_preempt > 0]++;
    }
    if (!count[1])
        return 1.0;
    return count[0] ? (sum[1] / count[1]) / (sum[0] / count[0]) : 0.0;
}

Test(sched_golden, preemption_table)
{
    static const pressure rows[] = {
        {4, 12, 44, .545, 3, 55, 164, .335, 0},
        {4, 24, 28, .857, 1, 25, 136, .184, 0},
        {4, 32, 24, 1.0, 0, 0, 112, 0, 0},
        {6, 48, 24, 1.0, 0, 0, 168, 0, 1.00},
        {6, 32, 32, .750, 2, 46, 212, .217, 1.25},
        {6, 24, 36, .667, 3, 59, 224, .263, 1.39},
        {6, 16, 52, .462, 5, 77, 240, .321, 1.71},
        {6, 12, 64, .375, 7, 107, 268, .399, 1.90},
        {6, 8, 100, .240, 8, 96, 256, .375, 2.83},
    };
    for (size_t i = 0; i < FOLIO_COUNT(rows); i++) {
        const pressure *w = &rows[i];
        dry b, roomy;
        open_golden(&b, w->blocks, w->n, 0);
        open_golden(&roomy, 64, w->n, 0);
        submit_n(&b, w->n, 5, 24);
        submit_n(&roomy, w->n, 5, 24);
        dry_drain(&b, 1000);
        dry_drain(&roomy, 1000);
        const folio_sched_stats st = folio_sched_get_stats(b.s);
        const int32_t at = w->n * 100 + w->blocks;
        cr_assert_eq(b.iterations, w->iterations, "row %d: %d iterations", at,
                     b.iterations);
        cr_assert(near((double)st.issued / (b.iterations * w->n), w->occupancy,
                       .0006),
                  "row %d", at);
        cr_assert_eq(st.preemptions, w->preempts, "row %d", at);
        cr_assert_eq(st.recomputed_tok, w->recomputed, "row %d: %d", at,
                     (int)st.recomputed_tok);
        cr_assert_eq(st.forward_tok, w->positions, "row %d: %d", at,
                     (int)st.forward_tok);
        cr_assert_eq(st.forward_tok,
                     st.prefill_tok + st.issued - st.prefill_rows);
        cr_assert(near((double)st.recomputed_tok / (double)st.forward_tok,
                       w->share, .0006),
                  "row %d", at);
        if (w->penalty > 0)
            cr_assert(near(victim_penalty(&b, w->n), w->penalty, .006),
                      "row %d: %g", at, victim_penalty(&b, w->n));
        cr_assert_eq(st.collected, (uint32_t)w->n * 24);
        dry_same_texts(&b, &roomy);
        dry_close(&b);
        dry_close(&roomy);
    }
}

static void finishes_at(const dry *b, const int32_t *want, int32_t n, int line)
{
    for (int32_t i = 0; i < n; i++)
        cr_assert_eq(dry_text_of(b, (uint64_t)i, 0)->done_at, want[i],
                     "line %d: request %d at %d, expected %d", line, (int)i,
                     (int)dry_text_of(b, (uint64_t)i, 0)->done_at,
                     (int)want[i]);
}

#define FINISHES_AT(b, ...) finishes_at(b, IDS(__VA_ARGS__), __LINE__)

Test(sched_golden, finish_iterations_under_pressure)
{
    dry b;
    open_golden(&b, 12, 6, 0);
    submit_n(&b, 6, 5, 24);
    dry_drain(&b, 1000);
    FINISHES_AT(&b, 24, 28, 36, 44, 56, 64);
    static const int32_t evicted[6] = {0, 1, 1, 1, 1, 3};
    for (int32_t i = 0; i < 6; i++)
        cr_assert_eq(dry_text_of(&b, (uint64_t)i, 0)->n_preempt, evicted[i]);
    folio_sched_stats st = folio_sched_get_stats(b.s);
    cr_assert(
        near((double)st.preempted_tok / (double)st.preemptions, 15.3, .06));
    dry_close(&b);
    open_golden(&b, 8, 6, 0);
    submit_n(&b, 6, 5, 24);
    dry_drain(&b, 1000);
    FINISHES_AT(&b, 24, 36, 52, 68, 84, 100);
    st = folio_sched_get_stats(b.s);
    cr_assert(
        near((double)st.preempted_tok / (double)st.preemptions, 12.0, .06));
    dry_close(&b);
}

Test(sched_golden, head_of_line_shape_holds_16_blocks)
{
    for (int32_t blocks = 16; blocks >= 15; blocks--) {
        dry b;
        int32_t most = 0;
        open_golden(&b, blocks, 8, 0);
        submit_n(&b, 7, 5, 4);
        dry_submit(&b, 7, 5, 32);
        while (dry_step(&b)) {
            const int32_t held = blocks - n_free(folio_sched_pool(b.s));
            most = FOLIO_MAX(most, held);
        }
        if (blocks == 16) {
            cr_assert_eq(most, 16);
            cr_assert_eq(dry_text_of(&b, 7, 0)->done_at, 32);
            cr_assert_eq(folio_sched_get_stats(b.s).preemptions, 0);
        } else {
            cr_assert_eq(dry_text_of(&b, 7, 0)->done_at, 36);
        }
        dry_close(&b);
    }
}

/* ---- soaks --------------------------------------------------------------- */

Test(sched_golden, hard_soak)
{
    dry b, roomy;
    open_golden(&b, 6, 4, 0);
    open_golden(&roomy, 64, 4, 0);
    submit_n(&b, 10, 4, 10);
    submit_n(&roomy, 10, 4, 10);
    dry_drain(&b, 1000);
    dry_drain(&roomy, 1000);
    const folio_sched_stats st = folio_sched_get_stats(b.s);
    cr_assert_eq(b.iterations, 51);
    cr_assert_eq(b.empty, 1);
    cr_assert_eq(st.preemptions, 16);
    cr_assert_eq(st.recomputed_tok, 120);
    cr_assert_eq(st.forward_tok, 234);
    FINISHES_AT(&b, 10, 11, 16, 21, 26, 31, 36, 41, 46, 51);
    int32_t twice = 0;
    for (uint64_t i = 0; i < 10; i++)
        twice += dry_text_of(&b, i, 0)->n_preempt == 2;
    cr_assert_eq(twice, 7);
    cr_assert_eq(dry_text_of(&b, 0, 0)->n_preempt, 0);
    dry_same_texts(&b, &roomy);
    dry_close(&b);
    dry_close(&roomy);
}

Test(sched_golden, soak_sweep)
{
    static const int32_t prompts[] = {3, 2, 4, 2, 5, 3};
    static const struct {
        int32_t blocks;
        uint32_t evictions;
        double share;
    } rows[] = {{64, 0, 0}, {16, 0, 0}, {8, 2, .235}, {5, 5, .386}};
    dry roomy;
    open_golden(&roomy, 64, 3, 0);
    for (uint64_t i = 0; i < 6; i++)
        dry_submit(&roomy, i, prompts[i], 9);
    dry_drain(&roomy, 1000);
    for (size_t k = 0; k < FOLIO_COUNT(rows); k++) {
        dry b;
        open_golden(&b, rows[k].blocks, 3, 0);
        for (uint64_t i = 0; i < 6; i++)
            dry_submit(&b, i, prompts[i], 9);
        dry_drain(&b, 1000);
        const folio_sched_stats st = folio_sched_get_stats(b.s);
        cr_assert_eq(st.preemptions, rows[k].evictions, "%d blocks: %d",
                     (int)rows[k].blocks, (int)st.preemptions);
        cr_assert(near((double)st.recomputed_tok / (double)st.forward_tok,
                       rows[k].share, .0006),
                  "%d blocks", (int)rows[k].blocks);
        dry_same_texts(&b, &roomy);
        dry_close(&b);
    }
    dry_close(&roomy);
}

Test(sched_golden, small_pools)
{
    static const int32_t prompts[] = {4, 3, 5, 2}, budgets[] = {6, 5, 4, 6};
    static const struct {
        int32_t blocks, iterations;
        uint32_t recomputed, positions;
    } rows[] = {{32, 6, 0, 31}, {6, 8, 4, 34}, {4, 12, 6, 36}};
    for (size_t k = 0; k < FOLIO_COUNT(rows); k++) {
        dry b;
        open_golden(&b, rows[k].blocks, 4, 0);
        for (uint64_t i = 0; i < 4; i++)
            dry_submit(&b, i, prompts[i], budgets[i]);
        dry_drain(&b, 100);
        const folio_sched_stats st = folio_sched_get_stats(b.s);
        cr_assert_eq(b.iterations, rows[k].iterations);
        cr_assert_eq(st.recomputed_tok, rows[k].recomputed);
        cr_assert_eq(st.forward_tok, rows[k].positions);
        dry_close(&b);
    }
}

Test(sched_golden, small_batches)
{
    static const int32_t prompts[] = {4, 3, 5, 2}, budgets[] = {3, 5, 2, 4};
    static const int32_t sizes[] = {4, 4, 3, 2, 1};
    dry b;
    open_golden(&b, 32, 4, 0);
    for (uint64_t i = 0; i < 4; i++)
        dry_submit(&b, i, prompts[i], budgets[i]);
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++) {
        cr_assert(dry_step(&b));
        cr_assert_eq(b.step->n_seq, sizes[i]);
    }
    cr_assert_not(dry_step(&b));
    cr_assert_eq(b.step->n_seq, 0);
    dry_close(&b);
    open_golden(&b, 3, 4, 0);
    for (uint64_t i = 0; i < 4; i++)
        dry_submit(&b, i, prompts[i], budgets[i]);
    dry_drain(&b, 100);
    const folio_sched_stats st = folio_sched_get_stats(b.s);
    cr_assert_eq(b.iterations, 10);
    cr_assert_eq(st.preemptions, 1);
    cr_assert_eq(st.recomputed_tok, 5);
    dry_close(&b);
}

/* ---- watermark ----------------------------------------------------------- */

Test(sched_golden, watermark_sweep)
{
    static const struct {
        uint32_t evictions;
        int32_t iterations;
        uint32_t positions;
        double share;
    } rows[] = {{4, 38, 152, .237},
                {3, 41, 144, .188},
                {1, 41, 128, .070},
                {0, 41, 120, 0}};
    for (int32_t reserve = 0; reserve < 4; reserve++) {
        dry b;
        open_golden(&b, 8, 3, reserve);
        submit_n(&b, 8, 6, 10);
        dry_drain(&b, 1000);
        const folio_sched_stats st = folio_sched_get_stats(b.s);
        cr_assert_eq(st.preemptions, rows[reserve].evictions);
        cr_assert_eq(st.thrashes, rows[reserve].evictions);
        cr_assert_eq(b.iterations + b.empty, rows[reserve].iterations,
                     "reserve %d: %d", (int)reserve, (int)b.iterations);
        cr_assert_eq(st.forward_tok, rows[reserve].positions);
        cr_assert(near((double)st.recomputed_tok / (double)st.forward_tok,
                       rows[reserve].share, .0006));
        dry_close(&b);
    }
}

Test(sched_golden, a_watermark_can_cost_time_and_remove_nothing)
{
    static const int32_t iterations[] = {33, 37};
    for (int32_t reserve = 0; reserve < 2; reserve++) {
        dry b;
        open_golden(&b, 16, 6, reserve);
        submit_n(&b, 8, 5, 16);
        dry_drain(&b, 1000);
        cr_assert_eq(folio_sched_get_stats(b.s).preemptions, 3);
        cr_assert_eq(b.iterations + b.empty, iterations[reserve],
                     "reserve %d: %d", (int)reserve, (int)b.iterations);
        dry_close(&b);
    }
}

/* ---- counters of five prompts -------------------------------------------- */

Test(sched_golden, five_prompts)
{
    static const int32_t prompts[] = {3, 2, 4, 1, 8};
    static const struct {
        int32_t blocks, iterations;
        uint32_t preemptions, recomputed, positions;
        int64_t slots;
    } rows[] = {{64, 16, 0, 0, 93, 40},   {16, 23, 2, 31, 122, 74},
                {12, 27, 3, 40, 130, 91}, {8, 39, 4, 43, 132, 88},
                {7, 47, 7, 72, 158, 123}, {6, 51, 7, 66, 152, 115}};
    dry roomy;
    open_golden(&roomy, 64, 5, 0);
    for (uint64_t i = 0; i < 5; i++)
        dry_submit(&roomy, i, prompts[i], 16);
    dry_drain(&roomy, 100);
    for (size_t k = 0; k < FOLIO_COUNT(rows); k++) {
        dry b;
        open_golden(&b, rows[k].blocks, 5, 0);
        for (uint64_t i = 0; i < 5; i++)
            dry_submit(&b, i, prompts[i], 16);
        dry_drain(&b, 200);
        const folio_sched_stats st = folio_sched_get_stats(b.s);
        cr_assert_eq(b.iterations, rows[k].iterations, "%d blocks: %d",
                     (int)rows[k].blocks, (int)b.iterations);
        cr_assert_eq(st.preemptions, rows[k].preemptions);
        cr_assert_eq(st.recomputed_tok, rows[k].recomputed);
        cr_assert_eq(st.forward_tok, rows[k].positions);
        cr_assert_eq(b.rectangle, rows[k].slots);
        dry_same_texts(&b, &roomy);
        dry_close(&b);
    }
    dry_close(&roomy);
}

/* ---- work against static batching ---------------------------------------- */

Test(sched_golden, short_texts_do_not_wait_for_the_long_one)
{
    dry b;
    open_golden(&b, 64, 8, 0);
    submit_n(&b, 7, 5, 4);
    dry_submit(&b, 7, 5, 32);
    dry_drain(&b, 100);
    const folio_sched_stats st = folio_sched_get_stats(b.s);
    cr_assert_eq(st.issued, 60); /* a static batch takes 8 x 32 */
    cr_assert_eq(st.collected, 60);
    cr_assert_eq(dry_text_of(&b, 0, 0)->done_at, 4); /* against 32 */
    cr_assert_eq(dry_text_of(&b, 7, 0)->done_at, 32);
    cr_assert(near((double)st.issued / (32.0 * 8), .234, .0006));
    dry_close(&b);
    /* That shape three times over 8 places. */
    open_golden(&b, 256, 8, 0);
    for (uint64_t i = 0; i < 24; i++)
        dry_submit(&b, i, 5, i % 8 == 7 ? 32 : 4);
    dry_drain(&b, 100);
    cr_assert_eq(b.iterations, 44);
    cr_assert_eq(b.iterations + b.empty, 45);
    dry_close(&b);
    /* [2, 2, 2, 8] three times over 4 places. */
    open_golden(&b, 64, 4, 0);
    for (uint64_t i = 0; i < 12; i++)
        dry_submit(&b, i, 3, i % 4 == 3 ? 8 : 2);
    dry_drain(&b, 100);
    cr_assert_eq(b.iterations, 14);
    dry_close(&b);
}
