/* bench/batching.h: the runs that figures.h measures, on a real engine: the
 * same requests as static batches, as continuous batching gets them, and one
 * alone. Prompts are random ids of a fixed seed, answers greedy and never
 * ended by an id. Functions return NULL, or a static text that says what went
 * wrong. */
#ifndef FOLIO_BENCH_BATCHING_H
#define FOLIO_BENCH_BATCHING_H

#include <folio/engine.h>

#include "bench/figures.h"

enum { BENCH_MAX_REQUESTS = 32, BENCH_MAX_NEW = 64, BENCH_MAX_PROMPT = 256 };

/* The shapes of the tables. */
enum { BENCH_HOL_REQUESTS = 8, BENCH_HOL_PROMPT = 5 };

typedef struct bench_load {
    int32_t n; /* requests, at most BENCH_MAX_REQUESTS */
    int32_t n_prompt;
    int32_t budget[BENCH_MAX_REQUESTS]; /* at most BENCH_MAX_NEW */
    int32_t n_ids;                      /* prompts are of ids below, 1 and up */
    uint64_t seed;
} bench_load;

/* Seven short answers and a long one behind them, `times` times. */
bench_load bench_head_of_line(int32_t times, int32_t n_ids);
/* n requests of the same lengths. */
bench_load bench_alike(int32_t n, int32_t n_prompt, int32_t budget,
                       int32_t n_ids);

typedef struct bench_texts {
    int32_t n[BENCH_MAX_REQUESTS];
    int32_t ids[BENCH_MAX_REQUESTS][BENCH_MAX_NEW];
} bench_texts;

/* Whether both begin with the same budget [i] ids for each request. */
const char *bench_same_texts(const bench_load *l, const bench_texts *a,
                             const bench_texts *b);

/* What all engines of these runs have in common: blocks of 4, prompts whole,
 * no prefix cache, no watermark. The pool and the places are the caller's. */
void bench_engine_params(folio_engine_params *p);

/* Requests first .. first + rows - 1 as one static batch: every row goes on
 * until the longest is through. The engine must be idle and have rows places
 * and blocks for all; it is idle again afterwards. row [rows]. */
const char *bench_run_static(folio_engine *e, const bench_load *l,
                             int32_t first, int32_t rows,
                             const bench_clock *clock, bench_row *row,
                             bench_static *out, bench_texts *t);

/* All requests submitted at once, on an idle engine, drained. served [l->n]. */
const char *bench_run_continuous(folio_engine *e, const bench_load *l,
                                 const bench_clock *clock, bench_served *served,
                                 bench_continuous *out, bench_texts *t);

/* Request 0 alone, from submit on. */
const char *bench_run_stream(folio_engine *e, const bench_load *l,
                             const bench_clock *clock, bench_latency *out);

#endif
