/* bench/figures.c: see figures.h. Pure: reads no clock but the one given. */
#include "bench/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double now(const bench_clock *c)
{
    return c->now(c->user);
}

static double over(double a, double b)
{
    return b > 0 ? a / b : 0;
}

double bench_speed_up(double before, double after)
{
    return after > 0 ? before / after : INFINITY;
}

/* ---- one stream ---------------------------------------------------------- */

static int compare(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Sorts v. */
static double median(double *v, int32_t n)
{
    if (n == 0)
        return 0;
    qsort(v, (size_t)n, sizeof *v, compare);
    return (v[(n - 1) / 2] + v[n / 2]) / 2;
}

const char *bench_latency_run(const bench_clock *clock,
                              bool (*next)(void *user), void *user,
                              double *between, int32_t cap, bench_latency *out)
{
    bench_latency l = {0};
    const double begin = now(clock);
    double last = begin;
    while (next(user)) {
        const double t = now(clock);
        if (l.n == 0)
            l.first_s = t - begin;
        else if (l.n <= cap)
            between[l.n - 1] = t - last;
        else
            return "more ids came than there is room for";
        last = t;
        l.n++;
    }
    l.total_s = last - begin;
    if (l.n > 1) {
        double *sorted = malloc((size_t)(l.n - 1) * sizeof *sorted);
        if (!sorted)
            return "no memory";
        memcpy(sorted, between, (size_t)(l.n - 1) * sizeof *sorted);
        l.between_s = median(sorted, l.n - 1);
        free(sorted);
        l.rate = over(l.n - 1, l.total_s - l.first_s);
    }
    *out = l;
    return NULL;
}

/* ---- batch sizes --------------------------------------------------------- */

const bench_size *bench_size_of(const bench_size *at, int32_t n, int32_t rows,
                                const char **why)
{
    for (int32_t i = 0; i < n; i++)
        if (at[i].rows == rows)
            return &at[i];
    *why = "this size was not measured";
    return NULL;
}

const char *bench_scale(bench_size *at, int32_t n, int32_t *best, int32_t *knee)
{
    const char *why = NULL;
    if (n < 2)
        return "two sizes are needed";
    for (int32_t i = 0; i < n; i++) {
        if (at[i].rows < 1 || !(at[i].step_s > 0))
            return "sizes and times must be positive";
        if (bench_size_of(at, i, at[i].rows, &why))
            return "a size is there twice";
    }
    const bench_size *one = bench_size_of(at, n, 1, &why);
    if (!one)
        return "the size 1 is needed";
    int32_t top = 0, last = (int32_t)(one - at), fails = INT32_MAX;
    for (int32_t i = 0; i < n; i++) {
        at[i].speed_up = at[i].rows * one->step_s / at[i].step_s;
        at[i].efficiency = at[i].speed_up / at[i].rows;
        if (at[i].speed_up > at[top].speed_up)
            top = i;
        if (at[i].efficiency < BENCH_KNEE && at[i].rows < fails)
            fails = at[i].rows;
    }
    for (int32_t i = 0; i < n; i++)
        if (at[i].rows < fails && at[i].rows > at[last].rows)
            last = i;
    *best = top;
    *knee = last;
    return NULL;
}

/* ---- a static batch ------------------------------------------------------ */

/* One call of forward and its time. Rows that became done have had `step` steps
 * of their own. */
static const char *timed(const bench_clock *clock,
                         const char *(*forward)(void *user, bool *done),
                         void *user, bool *done, double *took)
{
    const double begin = now(clock);
    const char *why = forward(user, done);
    *took = now(clock) - begin;
    return why;
}

/* Notes who was done by this step; how many are not done yet. */
static int32_t latch(bench_row *row, int32_t rows, const bool *done,
                     int32_t step, double at_s)
{
    int32_t open = 0;
    for (int32_t i = 0; i < rows; i++) {
        open += row[i].own < 0 && !done[i];
        if (row[i].own >= 0 || !done[i])
            continue;
        row[i].own = step;
        row[i].finish_s = at_s;
    }
    return open;
}

static const char *run_rows(const bench_clock *clock,
                            const char *(*forward)(void *user, bool *done),
                            void *user, bool *done, int32_t max_steps,
                            bench_row *row, bench_static *s)
{
    const char *why = timed(clock, forward, user, done, &s->prefill_s);
    int32_t open = s->rows;
    for (int32_t i = 0; i < s->rows; i++)
        row[i] = (bench_row){.own = -1};
    if (!why)
        open = latch(row, s->rows, done, 0, s->prefill_s);
    while (!why && open > 0) {
        double took = 0;
        if (s->steps == max_steps)
            return "the rows are not done after so many steps";
        why = timed(clock, forward, user, done, &took);
        s->decode_s += took;
        s->steps++;
        if (!why)
            open =
                latch(row, s->rows, done, s->steps, s->prefill_s + s->decode_s);
    }
    return why;
}

const char *bench_static_run(const bench_clock *clock,
                             const char *(*forward)(void *user, bool *done),
                             void *user, int32_t rows, int32_t max_steps,
                             bench_row *row, bench_static *out)
{
    bench_static s = {.rows = rows};
    if (rows < 1)
        return "a batch has at least one row";
    bool *done = calloc((size_t)rows, sizeof *done);
    if (!done)
        return "no memory";
    const char *why = run_rows(clock, forward, user, done, max_steps, row, &s);
    free(done);
    if (why)
        return why;
    s.makespan_s = s.prefill_s + s.decode_s;
    s.issued = (int64_t)rows * s.steps;
    for (int32_t i = 0; i < rows; i++) {
        s.useful += row[i].own;
        row[i].hol_delay_s = s.makespan_s - row[i].finish_s;
        row[i].hol_inflation = bench_speed_up(s.makespan_s, row[i].finish_s);
        if (row[i].own > row[s.straggler].own)
            s.straggler = i;
    }
    s.waste = over((double)(s.issued - s.useful), (double)s.issued);
    s.issued_rate = over((double)s.issued, s.decode_s);
    s.goodput = over((double)s.useful, s.decode_s);
    s.goodput_all = over((double)(s.useful + rows), s.makespan_s);
    *out = s;
    return NULL;
}

/* ---- continuous batching ------------------------------------------------- */

static const char *note(bench_continuous *c, const bench_iteration *it,
                        double at_s, bench_served *served)
{
    for (int32_t i = 0; i < it->n_preempted; i++) {
        const int32_t k = it->preempted[i];
        if (k < 0 || k >= c->n || served[k].done)
            return "a request was preempted that is not there any more";
        served[k].n_preempt++;
        c->preemptions++;
    }
    for (int32_t i = 0; i < it->n_finished; i++) {
        const int32_t k = it->finished[i];
        if (k < 0 || k >= c->n || served[k].done)
            return "a request ended that is not there any more";
        served[k].done = true;
        served[k].done_s = at_s;
    }
    c->iterations++;
    c->forwarding += it->batch > 0;
    c->issued += it->batch;
    c->collected += it->collected;
    c->positions += it->positions;
    c->recomputed += it->recomputed;
    return NULL;
}

const char *bench_continuous_run(const bench_clock *clock,
                                 const char *(*step)(void *user,
                                                     bench_iteration *it),
                                 void *user, int32_t slots, int32_t n,
                                 int32_t max_iterations, int32_t *lists,
                                 bench_served *served, bench_continuous *out)
{
    bench_continuous c = {.slots = slots, .n = n};
    bool more = true;
    double sum = 0;
    if (n < 1 || slots < 1)
        return "there must be a request and a slot";
    memset(served, 0, (size_t)n * sizeof *served);
    const double begin = now(clock);
    while (more) {
        bench_iteration it = {.finished = lists, .preempted = lists + n};
        if (c.iterations == max_iterations)
            return "not drained after so many iterations";
        const char *why = step(user, &it);
        c.makespan_s = now(clock) - begin;
        if (!why)
            why = note(&c, &it, c.makespan_s, served);
        if (why)
            return why;
        more = it.more;
    }
    c.first_s = INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (!served[i].done)
            return "a request never ended";
        c.first_s = fmin(c.first_s, served[i].done_s);
        sum += served[i].done_s;
    }
    c.mean_s = sum / n;
    c.waste = over((double)(c.issued - c.collected), (double)c.issued);
    c.recompute = over((double)c.recomputed, (double)c.positions);
    c.occupancy = over((double)c.issued, (double)c.forwarding * slots);
    c.goodput = over((double)c.collected, c.makespan_s);
    *out = c;
    return NULL;
}

/* ---- compared ------------------------------------------------------------ */

const char *bench_compare(const bench_static *s, const bench_continuous *c,
                          bench_comparison *out)
{
    if (s->rows != c->n)
        return "the runs are of different numbers of requests";
    if (s->useful + s->rows != c->collected)
        return "the runs came to different numbers of ids";
    if (!(s->makespan_s > 0) || !(c->makespan_s > 0) || !(c->first_s > 0))
        return "a run took no time";
    out->work = (double)(s->issued + s->rows) / (double)c->issued;
    out->waste_removed = s->waste - c->waste;
    out->makespan = s->makespan_s / c->makespan_s;
    out->first = s->makespan_s / c->first_s;
    out->mean = s->makespan_s / c->mean_s;
    out->goodput = c->goodput / s->goodput_all;
    return NULL;
}

double bench_penalty(const bench_served *served, int32_t n)
{
    double sum[2] = {0, 0};
    int32_t count[2] = {0, 0};
    for (int32_t i = 0; i < n; i++) {
        const int victim = served[i].n_preempt > 0;
        sum[victim] += served[i].done_s;
        count[victim]++;
    }
    if (count[1] == 0)
        return 1;
    return count[0] ? over(sum[1] / count[1], sum[0] / count[0]) : 0;
}

double bench_penalty_own(const bench_served *served, const bench_served *roomy,
                         int32_t n)
{
    double sum = 0, own = 0;
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        if (served[i].n_preempt > 0) {
            sum += served[i].done_s;
            own += roomy[i].done_s;
            count++;
        }
    return count ? over(sum, own) : 1;
}
