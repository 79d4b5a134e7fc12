/* bench/figures.h: what figures of batching mean: latency of one stream, a
 * static batch, continuous batching, the two compared, what preemption costs
 * its victims. Only definitions: whoever computes is a callback and time comes
 * from a clock that is given, so that tests use scripted ones. Knows no engine.
 *
 * Functions return NULL, or a static text that says why there is no figure;
 * *out is then untouched. Times are seconds. */
#ifndef FOLIO_BENCH_FIGURES_H
#define FOLIO_BENCH_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct bench_clock {
    double (*now)(void *user);
    void *user;
} bench_clock;

/* before / after, infinite where after is 0. */
double bench_speed_up(double before, double after);

/* ---- one stream ---------------------------------------------------------- */

typedef struct bench_latency {
    int32_t n;        /* ids */
    double first_s;   /* to the first id */
    double between_s; /* median of the times from one id to the next */
    double rate;      /* ids a second behind the first one */
    double total_s;   /* to the last id */
} bench_latency;

/* Calls next until it is false; the clock is read once before and once after
 * each id. between [cap]: times from one id to the next, n - 1 of them. What a
 * run of no or one id does not have is 0. */
const char *bench_latency_run(const bench_clock *clock,
                              bool (*next)(void *user), void *user,
                              double *between, int32_t cap, bench_latency *out);

/* ---- batch sizes --------------------------------------------------------- */

#define BENCH_KNEE .8

typedef struct bench_size {
    int32_t rows;
    double step_s;
    double speed_up;   /* of rows a second against one row's; filled */
    double efficiency; /* the same a row; filled */
} bench_size;

/* Fills at [n]. *best: the entry of the largest speed-up; *knee: of the largest
 * size up to which each row is at least BENCH_KNEE as fast as one alone. The
 * size 1 must be there and no size twice. */
const char *bench_scale(bench_size *at, int32_t n, int32_t *best,
                        int32_t *knee);
/* The entry of a size; NULL and *why if it was not measured. */
const bench_size *bench_size_of(const bench_size *at, int32_t n, int32_t rows,
                                const char **why);

/* ---- a static batch ------------------------------------------------------ */

typedef struct bench_row {
    int32_t own;        /* steps behind the prompts until its text was whole */
    double finish_s;    /* when that was */
    double hol_delay_s; /* what it waited for the others after that */
    double hol_inflation; /* makespan over finish_s */
} bench_row;

typedef struct bench_static {
    int32_t rows, steps;    /* behind the prompts */
    int64_t issued, useful; /* rows x steps; the rows' own steps */
    double waste;           /* share of the issued ones that was for nobody */
    double prefill_s, decode_s, makespan_s;
    double issued_rate, goodput; /* ids a second of the steps: all, useful */
    double goodput_all;          /* with the first ids, over the makespan */
    int32_t straggler;           /* the first row of those that took longest */
} bench_static;

/* Computes the prompts of all rows, then one step for all rows at a time, until
 * every row is done; forward sets done [rows] where a text is whole, for good.
 * The clock is read twice a call. row [rows] is filled. */
const char *bench_static_run(const bench_clock *clock,
                             const char *(*forward)(void *user, bool *done),
                             void *user, int32_t rows, int32_t max_steps,
                             bench_row *row, bench_static *out);

/* ---- continuous batching ------------------------------------------------- */

typedef struct bench_served {
    bool done;
    double done_s; /* its last id */
    int32_t n_preempt;
} bench_served;

/* What one iteration did. */
typedef struct bench_iteration {
    int32_t batch;     /* rows; 0: only released */
    int32_t collected; /* ids */
    int64_t positions, recomputed;
    int32_t n_finished, n_preempted;
    int32_t *finished, *preempted; /* requests, room for [n] each */
    bool more;                     /* it was not the last one */
} bench_iteration;

typedef struct bench_continuous {
    int32_t slots, n;
    int32_t iterations, forwarding; /* all, those with a row */
    int64_t issued, collected, positions, recomputed;
    int32_t preemptions;
    double waste, recompute; /* shares of issued, of positions */
    double occupancy;        /* of the slots, over forwarding iterations */
    double makespan_s;       /* releases included */
    double first_s, mean_s;  /* to a request's last id: the soonest, the mean */
    double goodput;          /* collected over the makespan */
} bench_continuous;

/* Calls step until it says that nothing is left. The clock is read once before
 * and once after each iteration. served [n] is filled; lists [2 n] is room.
 * Fails where a request ends twice, is preempted after its end or never ends,
 * and where nothing is drained after max_iterations. */
const char *bench_continuous_run(const bench_clock *clock,
                                 const char *(*step)(void *user,
                                                     bench_iteration *it),
                                 void *user, int32_t slots, int32_t n,
                                 int32_t max_iterations, int32_t *lists,
                                 bench_served *served, bench_continuous *out);

/* ---- compared ------------------------------------------------------------ */

typedef struct bench_comparison {
    double work; /* positions of rows: static over continuous */
    double waste_removed;
    double makespan, first, mean; /* static over continuous: > 1 is sooner */
    double goodput;               /* continuous over static */
} bench_comparison;

/* Only runs of the same requests that came to the same number of ids. In a
 * static batch every answer comes with the last one. */
const char *bench_compare(const bench_static *s, const bench_continuous *c,
                          bench_comparison *out);

/* Mean latency of those who were preempted over that of the others. Nobody was:
 * 1. Everybody was: 0, there is nothing to hold it against. */
double bench_penalty(const bench_served *served, int32_t n);
/* The same against themselves in a run in which nobody was preempted, since
 * victims are the youngest too. */
double bench_penalty_own(const bench_served *served, const bench_served *roomy,
                         int32_t n);

#endif
