/* unit/test_bench_figures.c: what the figures of tests/bench mean, with
 * scripted clocks; then the known counts of the known shapes, through a real
 * engine on a clock that goes by one a reading. */
#include <math.h>
#include <string.h>

#include "bench/batching.h"
#include "unit/engine_bed.h"

/* ---- clocks -------------------------------------------------------------- */

/* Pops one time a reading. */
typedef struct script {
    const double *at;
    int n, read;
} script;

static double pop(void *user)
{
    script *s = user;
    cr_assert_lt(s->read, s->n, "the clock is read too often");
    return s->at[s->read++];
}

static double tick(void *user)
{
    return (double)(*(int *)user)++;
}

static bool near(double a, double b, double within)
{
    return fabs(a - b) < within;
}

static void fails(const char *why, const char *word)
{
    cr_assert(why && strstr(why, word), "\"%s\", expected \"... %s ...\"",
              why ? why : "no failure", word);
}

#define FINE(why)                                                              \
    do {                                                                       \
        const char *why_ = (why);                                              \
        cr_assert_null(why_, "%s", why_);                                      \
    } while (0)

/* ---- one stream ---------------------------------------------------------- */

static bool count_down(void *user)
{
    return (*(int *)user)-- > 0;
}

Test(bench_figures, latency_of_a_stream)
{
    static const double at[] = {0, 2, 2.5, 2.9, 3.4};
    script s = {at, 5, 0};
    double between[3];
    int left = 4;
    bench_latency l;
    const bench_clock clock = {pop, &s};
    FINE(bench_latency_run(&clock, count_down, &left, between, 3, &l));
    cr_assert_eq(s.read, 5);
    cr_assert_eq(l.n, 4);
    cr_assert_eq(l.first_s, 2);
    cr_assert(near(between[0], .5, 1e-12) && near(between[1], .4, 1e-12) &&
              near(between[2], .5, 1e-12));
    cr_assert(near(l.between_s, .5, 1e-12));
    cr_assert(near(l.total_s, 3.4, 1e-12));
    cr_assert(near(l.rate, 3 / 1.4, 1e-12));
    s.read = 0;
    left = 4;
    fails(bench_latency_run(&clock, count_down, &left, between, 2, &l), "room");
    cr_assert_eq(bench_speed_up(6, 2), 3);
    cr_assert(isinf(bench_speed_up(6, 0)));
}

Test(bench_figures, latency_of_one_id_and_of_none)
{
    static const double at[] = {1, 4};
    for (int n = 0; n < 2; n++) {
        script s = {at, 2, 0};
        int left = n;
        bench_latency l = {.n = 9};
        const bench_clock clock = {pop, &s};
        FINE(bench_latency_run(&clock, count_down, &left, NULL, 0, &l));
        cr_assert_eq(s.read, 1 + n);
        cr_assert_eq(l.n, n);
        cr_assert_eq(l.first_s, 3 * n);
        cr_assert_eq(l.total_s, 3 * n);
        cr_assert(l.between_s == 0 && l.rate == 0);
    }
}

/* ---- batch sizes --------------------------------------------------------- */

Test(bench_figures, sizes_of_a_batch)
{
    bench_size at[] = {
        {.rows = 4, .step_s = .940},
        {.rows = 1, .step_s = .279},
        {.rows = 8, .step_s = 2.092},
        {.rows = 2, .step_s = .474},
    };
    static const double want[] = {.30, 1.00, .13, .59};
    const char *why = NULL;
    int32_t best = -1, knee = -1;
    FINE(bench_scale(at, 4, &best, &knee));
    for (int i = 0; i < 4; i++)
        cr_assert(near(at[i].efficiency, want[i], .006), "%d rows: %g",
                  at[i].rows, at[i].efficiency);
    cr_assert_eq(at[best].rows, 4);
    cr_assert(near(at[best].speed_up, 1.19, .006));
    cr_assert_eq(at[knee].rows, 1);
    cr_assert_eq(bench_size_of(at, 4, 8, &why), &at[2]);
    cr_assert_null(bench_size_of(at, 4, 3, &why));
    fails(why, "not measured");
    /* A larger size that is good again does not count. */
    at[2].step_s = .3;
    FINE(bench_scale(at, 4, &best, &knee));
    cr_assert_eq(at[knee].rows, 1);
    at[0].step_s = at[3].step_s = .3;
    FINE(bench_scale(at, 4, &best, &knee));
    cr_assert_eq(at[knee].rows, 8);
}

Test(bench_figures, sizes_that_tell_nothing)
{
    int32_t best, knee;
    bench_size at[] = {{.rows = 1, .step_s = 1}, {.rows = 2, .step_s = 1}};
    fails(bench_scale(at, 1, &best, &knee), "two sizes");
    at[1].rows = 1;
    fails(bench_scale(at, 2, &best, &knee), "twice");
    at[0].rows = 3;
    at[1].rows = 2;
    fails(bench_scale(at, 2, &best, &knee), "size 1");
    at[0].rows = 0;
    fails(bench_scale(at, 2, &best, &knee), "positive");
    at[0] = (bench_size){.rows = 1, .step_s = 0};
    fails(bench_scale(at, 2, &best, &knee), "positive");
    at[0].step_s = NAN;
    fails(bench_scale(at, 2, &best, &knee), "positive");
}

/* ---- a static batch ------------------------------------------------------ */

typedef struct fake_batch {
    int rows, at;
    const int *done_at; /* call after which a row is whole */
    bool flickers;      /* it is told once only */
} fake_batch;

static const char *fake_forward(void *user, bool *done)
{
    fake_batch *f = user;
    for (int i = 0; i < f->rows; i++)
        done[i] = f->flickers ? f->at == f->done_at[i] : f->at >= f->done_at[i];
    f->at++;
    return NULL;
}

static const char *broken_forward(void *user, bool *done)
{
    (void)user;
    (void)done;
    return "broken";
}

/* Prompts that take as long as two steps: the published head-of-line figure. */
Test(bench_figures, head_of_line_of_a_static_batch)
{
    static const int done_at[] = {3, 3, 3, 3, 3, 3, 3, 31};
    double at[64] = {0, 4.2};
    bench_row row[8];
    bench_static b;
    for (int flickers = 0; flickers < 2; flickers++) {
        fake_batch f = {8, 0, done_at, flickers == 1};
        script s = {at, 64, 0};
        for (int i = 1; i < 32; i++) { /* time outside does not count */
            at[2 * i] = 100 * i;
            at[2 * i + 1] = 100 * i + 2.1;
        }
        const bench_clock clock = {pop, &s};
        FINE(bench_static_run(&clock, fake_forward, &f, 8, 40, row, &b));
        cr_assert_eq(s.read, 2 + 2 * 31);
        cr_assert_eq(b.steps, 31);
        cr_assert_eq(b.issued, 248);
        cr_assert_eq(b.useful, 52);
        cr_assert(near(b.waste, .790, .0006));
        cr_assert(near(b.makespan_s, 69.3, 1e-9));
        cr_assert(near(row[0].finish_s, 10.5, 1e-9));
        cr_assert(near(row[0].hol_delay_s, 58.8, 1e-9));
        cr_assert(near(row[0].hol_inflation, 6.6, 1e-9));
        cr_assert_eq(row[7].own, 31);
        cr_assert(near(row[7].hol_inflation, 1, 1e-12));
        cr_assert_eq(b.straggler, 7);
        cr_assert(near(b.issued_rate, 248 / 65.1, 1e-9));
        cr_assert(near(b.goodput, 52 / 65.1, 1e-9));
        cr_assert(near(b.goodput_all, 60 / 69.3, 1e-9));
    }
}

Test(bench_figures, a_static_batch_that_never_ends_or_breaks)
{
    static const int never[] = {0, 99};
    int t = 0;
    fake_batch f = {2, 0, never, false};
    bench_row row[2];
    bench_static b = {.rows = 77};
    const bench_clock clock = {tick, &t};
    fails(bench_static_run(&clock, fake_forward, &f, 2, 5, row, &b), "so many");
    fails(bench_static_run(&clock, broken_forward, &f, 2, 5, row, &b),
          "broken");
    fails(bench_static_run(&clock, fake_forward, &f, 0, 5, row, &b), "one row");
    cr_assert_eq(b.rows, 77);
}

/* ---- continuous batching ------------------------------------------------- */

/* Iterations one after the other, the last one without `more`. */
typedef struct fake_run {
    const struct fake_step {
        int batch, preempted, finished; /* request or -1 */
    } * at;
    int n, next;
} fake_run;

static const char *fake_step(void *user, bench_iteration *it)
{
    fake_run *f = user;
    const struct fake_step *s = &f->at[f->next++];
    it->batch = it->collected = s->batch;
    it->positions = 2 * s->batch;
    it->recomputed = s->preempted >= 0;
    if (s->preempted >= 0)
        it->preempted[it->n_preempted++] = s->preempted;
    if (s->finished >= 0)
        it->finished[it->n_finished++] = s->finished;
    it->more = f->next < f->n;
    return NULL;
}

static const char *run_fake(const struct fake_step *at, int n, int max,
                            bench_served *served, bench_continuous *c)
{
    int t = 0;
    int32_t lists[4];
    fake_run f = {at, n, 0};
    const bench_clock clock = {tick, &t};
    const char *why = bench_continuous_run(&clock, fake_step, &f, 4, 2, max,
                                           lists, served, c);
    cr_assert(why || t == 1 + n, "%d readings of the clock", t);
    return why;
}

Test(bench_figures, a_continuous_run)
{
    static const struct fake_step at[] = {
        {2, -1, -1}, {1, 1, 0}, {1, -1, -1}, {1, -1, 1}, {0, -1, -1}};
    bench_served v[2];
    bench_continuous c;
    FINE(run_fake(at, 5, 5, v, &c));
    cr_assert_eq(c.iterations, 5);
    cr_assert_eq(c.forwarding, 4); /* the release is none */
    cr_assert_eq(c.issued, 5);
    cr_assert_eq(c.collected, 5);
    cr_assert_eq(c.preemptions, 1);
    cr_assert_eq(v[1].n_preempt, 1);
    cr_assert(near(c.occupancy, 5 / 16.0, 1e-12));
    cr_assert(near(c.recompute, 1 / 10.0, 1e-12));
    cr_assert(c.first_s == 2 && v[0].done_s == 2);
    cr_assert(c.mean_s == 3 && v[1].done_s == 4);
    cr_assert_eq(c.makespan_s, 5);
    cr_assert_eq(c.goodput, 1);
}

Test(bench_figures, runs_that_cannot_be)
{
    static const struct fake_step twice[] = {{2, -1, 0}, {1, -1, 0}},
                                  late[] = {{2, -1, 0}, {1, 0, 1}},
                                  open[] = {{2, -1, 0}, {1, -1, -1}},
                                  foreign[] = {{2, -1, 2}};
    bench_served v[2];
    bench_continuous c = {.n = 77};
    fails(run_fake(twice, 2, 5, v, &c), "ended");
    fails(run_fake(late, 2, 5, v, &c), "preempted");
    fails(run_fake(open, 2, 5, v, &c), "never ended");
    fails(run_fake(foreign, 1, 5, v, &c), "ended");
    fails(run_fake(open, 2, 1, v, &c), "drained");
    cr_assert_eq(c.n, 77);
}

Test(bench_figures, comparing_what_does_not_compare)
{
    const bench_static s = {.rows = 2,
                            .steps = 3,
                            .issued = 6,
                            .useful = 4,
                            .waste = 1 / 3.0,
                            .makespan_s = 8,
                            .goodput_all = .75};
    const bench_continuous good = {.n = 2,
                                   .issued = 6,
                                   .collected = 6,
                                   .makespan_s = 4,
                                   .first_s = 2,
                                   .mean_s = 3,
                                   .goodput = 1.5};
    bench_continuous c = good;
    bench_comparison r;
    FINE(bench_compare(&s, &c, &r));
    cr_assert(near(r.work, 8 / 6.0, 1e-12));
    cr_assert(near(r.waste_removed, 1 / 3.0, 1e-12));
    cr_assert(r.makespan == 2 && r.first == 4 && r.goodput == 2);
    cr_assert(near(r.mean, 8 / 3.0, 1e-12));
    c.n = 3;
    fails(bench_compare(&s, &c, &r), "numbers of requests");
    c = good;
    c.collected = 5;
    fails(bench_compare(&s, &c, &r), "numbers of ids");
    c = good;
    c.makespan_s = 0;
    fails(bench_compare(&s, &c, &r), "no time");
}

Test(bench_figures, penalty_of_the_preempted)
{
    bench_served v[] = {{true, 10, 0}, {true, 30, 1}, {true, 50, 2}};
    const bench_served roomy[] = {{true, 10, 0}, {true, 10, 0}, {true, 30, 0}};
    cr_assert_eq(bench_penalty(v, 3), 4);
    cr_assert_eq(bench_penalty_own(v, roomy, 3), 2);
    cr_assert_eq(bench_penalty(roomy, 3), 1);
    cr_assert_eq(bench_penalty_own(roomy, roomy, 3), 1);
    v[0].n_preempt = 1;
    cr_assert_eq(bench_penalty(v, 3), 0);
}

/* ---- a real engine ------------------------------------------------------- */

static eng b;
static bench_served served[BENCH_MAX_REQUESTS], roomy[BENCH_MAX_REQUESTS];
static bench_row row[BENCH_MAX_REQUESTS];
static bench_texts want, got;

static void set_up(void)
{
    eng_init(&b, "host", false);
}

static void tear_down(void)
{
    eng_fini(&b);
}

TestSuite(bench_engine, .init = set_up, .fini = tear_down);

static void open_with(int32_t seqs, int32_t blocks, int32_t watermark)
{
    const folio_log log = b.p.log;
    bench_engine_params(&b.p);
    b.p.log = log;
    b.p.deterministic = 1;
    b.p.kv_type = FOLIO_KV_F32;
    b.p.audit = 1;
    b.p.max_seqs = seqs;
    b.p.n_blocks = blocks;
    b.p.watermark_blocks = watermark;
    eng_open(&b);
}

static bench_continuous run(const bench_load *l, bench_served *v,
                            bench_texts *t)
{
    int now = 0;
    bench_continuous c;
    const bench_clock clock = {tick, &now};
    FINE(bench_run_continuous(b.e, l, &clock, v, &c, t));
    cr_assert_eq(now, c.iterations + 1);
    eng_at_rest(&b);
    return c;
}

static bench_static run_static(const bench_load *l, int32_t first, int32_t rows)
{
    int now = 0;
    bench_static s;
    const bench_clock clock = {tick, &now};
    FINE(bench_run_static(b.e, l, first, rows, &clock, row, &s, &want));
    cr_assert_eq(now, 2 + 2 * s.steps);
    eng_at_rest(&b);
    return s;
}

Test(bench_engine, seven_short_answers_behind_a_long_one)
{
    const bench_load l = bench_head_of_line(1, TINY_VOCAB);
    bench_comparison r;
    open_with(8, 128, 0);
    const bench_static s = run_static(&l, 0, 8);
    const bench_continuous c = run(&l, served, &got);
    FINE(bench_same_texts(&l, &want, &got));
    cr_assert_eq(s.issued, 248);
    cr_assert_eq(s.useful, 52);
    cr_assert(near(s.waste, .790, .0006));
    cr_assert_eq(s.makespan_s, 32);
    cr_assert_eq(row[0].finish_s, 4);
    cr_assert_eq(row[0].hol_inflation, 8); /* in steps of one length */
    cr_assert_eq(s.straggler, 7);
    cr_assert_eq(c.issued, 60);
    cr_assert_eq(c.collected, 60);
    cr_assert_eq(c.waste, 0);
    cr_assert_eq(c.forwarding, 32);
    cr_assert_eq(c.iterations, 33);
    cr_assert(near(c.occupancy, .234, .0006));
    for (int i = 0; i < 7; i++)
        cr_assert_eq(served[i].done_s, 4);
    cr_assert_eq(served[7].done_s, 32);
    FINE(bench_compare(&s, &c, &r));
    cr_assert(near(r.work, 4.27, .006)); /* 256 against 60 */
    cr_assert(near(r.waste_removed, .790, .0006));
    cr_assert(near(r.makespan, .97, .006));
    cr_assert(near(r.goodput, .97, .006));
    cr_assert_eq(r.first, 8);
    cr_assert(near(r.mean, 32 / 7.5, 1e-12));
}

Test(bench_engine, that_three_times_over_eight_places)
{
    const bench_load l = bench_head_of_line(3, TINY_VOCAB);
    int32_t waves = 0;
    open_with(8, 256, 0);
    for (int32_t first = 0; first < 24; first += 8)
        waves += 1 + run_static(&l, first, 8).steps;
    cr_assert_eq(waves, 96);
    const bench_continuous c = run(&l, served, &got);
    cr_assert_eq(c.iterations, 45);
    cr_assert_eq(c.forwarding, 44);
    cr_assert_eq(c.issued, 180);
    FINE(bench_same_texts(&l, &want, &got));
}

Test(bench_engine, what_a_small_pool_costs)
{
    static const struct {
        int32_t n, blocks, iterations;
        double occupancy;
        int32_t preemptions;
        int64_t recomputed, positions;
        double share, penalty; /* 0: not known */
    } rows[] = {
        {4, 12, 44, .545, 3, 55, 164, .335, 0},
        {4, 24, 28, .857, 1, 25, 136, .184, 0},
        {4, 32, 24, 1.0, 0, 0, 112, 0, 1.00},
        {6, 48, 24, 1.0, 0, 0, 168, 0, 1.00},
        {6, 32, 32, .750, 2, 46, 212, .217, 1.25},
        {6, 24, 36, .667, 3, 59, 224, .263, 1.39},
        {6, 16, 52, .462, 5, 77, 240, .321, 1.71},
        {6, 12, 64, .375, 7, 107, 268, .399, 1.90},
        {6, 8, 100, .240, 8, 96, 256, .375, 2.83},
    };
    for (size_t i = 0; i < FOLIO_COUNT(rows); i++) {
        const int32_t n = rows[i].n, at = 100 * n + rows[i].blocks;
        const bench_load l = bench_alike(n, 5, 24, TINY_VOCAB);
        open_with(n, 64, 0);
        run(&l, roomy, &want);
        open_with(n, rows[i].blocks, 0);
        const bench_continuous c = run(&l, served, &got);
        FINE(bench_same_texts(&l, &want, &got));
        cr_assert_eq(c.forwarding, rows[i].iterations, "%d: %d", at,
                     c.forwarding);
        cr_assert(near(c.occupancy, rows[i].occupancy, .0006), "%d", at);
        cr_assert_eq(c.preemptions, rows[i].preemptions, "%d", at);
        cr_assert_eq(c.recomputed, rows[i].recomputed, "%d", at);
        cr_assert_eq(c.positions, rows[i].positions, "%d", at);
        cr_assert(near(c.recompute, rows[i].share, .0006), "%d", at);
        const double penalty = bench_penalty(served, n);
        cr_assert(rows[i].penalty == 0 || near(penalty, rows[i].penalty, .006),
                  "%d: %g", at, penalty);
        /* All are as old here, and untouched ones take 24: what the others
         * took more is all their own. */
        const double own = bench_penalty_own(served, roomy, n);
        cr_assert(c.preemptions == 0 ? own == 1 : own > penalty * .99, "%d: %g",
                  at, own);
    }
}

Test(bench_engine, what_a_watermark_costs)
{
    static const struct {
        int32_t preemptions, iterations;
        int64_t positions;
        double share;
    } rows[] = {{4, 38, 152, .237},
                {3, 41, 144, .188},
                {1, 41, 128, .070},
                {0, 41, 120, 0}};
    const bench_load l = bench_alike(8, 6, 10, TINY_VOCAB);
    open_with(3, 64, 0);
    run(&l, roomy, &want);
    for (int32_t reserve = 0; reserve < 4; reserve++) {
        open_with(3, 8, reserve);
        const bench_continuous c = run(&l, served, &got);
        FINE(bench_same_texts(&l, &want, &got));
        cr_assert_eq(c.preemptions, rows[reserve].preemptions);
        cr_assert_eq(c.iterations, rows[reserve].iterations);
        cr_assert_eq(c.positions, rows[reserve].positions);
        cr_assert(near(c.recompute, rows[reserve].share, .0006));
    }
}

Test(bench_engine, one_stream_alone)
{
    const bench_load l = bench_alike(1, 16, 9, TINY_VOCAB);
    int now = 0;
    bench_latency x;
    const bench_clock clock = {tick, &now};
    open_with(1, 16, 0);
    FINE(bench_run_stream(b.e, &l, &clock, &x));
    cr_assert_eq(now, 1 + 9);
    cr_assert_eq(x.n, 9);
    cr_assert(x.first_s == 1 && x.between_s == 1 && x.rate == 1);
    cr_assert_eq(x.total_s, 9);
    eng_at_rest(&b);
}

/* Too few blocks for all rows at once, requests in flight, no such load. */
Test(bench_engine, runs_that_cannot_be_made_are_told)
{
    int now = 0;
    bench_static s;
    bench_continuous c;
    bench_load l = bench_head_of_line(1, TINY_VOCAB);
    const bench_clock clock = {tick, &now};
    static const int32_t prompt[] = {1, 2, 3};
    open_with(8, 12, 0);
    fails(bench_run_static(b.e, &l, 0, 8, &clock, row, &s, &want), "its id");
    open_with(8, 128, 0);
    eng_submit(&b, prompt, 3, 2);
    fails(bench_run_continuous(b.e, &l, &clock, served, &c, &got), "not idle");
    eng_drain(&b, 9);
    fails(bench_run_static(b.e, &l, 1, 8, &clock, row, &s, &want), "no such");
    l.budget[3] = BENCH_MAX_NEW + 1;
    fails(bench_run_continuous(b.e, &l, &clock, served, &c, &got), "no such");
    l.budget[3] = 4;
    want.n[0] = got.n[0] = 4;
    memset(want.ids, 0, sizeof want.ids);
    memset(got.ids, 0, sizeof got.ids);
    for (int i = 0; i < l.n; i++)
        want.n[i] = got.n[i] = l.budget[i];
    FINE(bench_same_texts(&l, &want, &got));
    got.ids[7][31] = 1;
    fails(bench_same_texts(&l, &want, &got), "different texts");
}
