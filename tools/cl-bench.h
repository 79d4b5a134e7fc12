/* cl-bench.h: what the parts of cl-bench share: the command line as parsed, one
 * measured case, the whole report. Sees include/folio only. */
#ifndef FOLIO_CL_BENCH_H
#define FOLIO_CL_BENCH_H

#include "tool_common.h"

#include <stdio.h>

typedef enum bench_format {
    BENCH_TEXT,
    BENCH_JSON,
    BENCH_CSV,
    BENCH_MD
} bench_format;

typedef struct bench_list {
    int32_t *v;
    size_t n;
} bench_list;

typedef struct bench_options {
    const char *model, *shape, *type, *write, *device, *out;
    bench_list prefill, depths, batches;
    long long n_new, prompt, reps, threads, max_tok, block, deterministic,
        run_ahead, fused;
    bool have_prefill, have_depths, kv_f32, exact, fake, cross, verbose;
    bench_format format;
} bench_options;

/* -1: go on; else the status to exit with. *o is released with
 * bench_options_free in every case. */
int bench_options_parse(int argc, char **argv, bench_options *o);
void bench_options_free(bench_options *o);

/* One case and what was measured. Times in seconds. */
typedef struct bench_row {
    bool decode; /* else prefill of `depth` ids of one sequence */
    int32_t batch, depth, n_new;
    bool fake;           /* the keys before the first step are random numbers */
    double tok_s;        /* of the median run: ids in, or new ids of all rows */
    double ttft_s;       /* from the prompts to the first id of every row; NAN
                            where nothing was prefilled */
    double p50_s, p99_s; /* between two ids of a row; NAN for prefill */
    double weight_bytes, kv_bytes; /* read by a step (prefill: in all) */
    double flop;                   /* of a step (prefill: in all) */
    double step_s;                 /* of a step (prefill: in all) */
    double launches, writes, reads, waits; /* per step (prefill: in all) */
    uint64_t hash; /* of the greedy ids, prefill: of the one */
    bool same;     /* every repetition gave the same ids */
    uint64_t pool_bytes;
    int32_t deterministic;
    int32_t fused; /* the form that ran, of folio_runner_info */
    char arithmetic[16];
    json_t *variants; /* owned by the report */
} bench_row;

typedef struct bench_report {
    const bench_options *o;
    folio_device_info dev;
    folio_device_rates rates;
    folio_model_info model;
    char type[16]; /* of the largest matrices */
    char when[32]; /* UTC */
    double load_s;
    uint64_t written; /* bytes of --write, 0 = none */
    bench_row *rows;
    size_t n_rows;
} bench_report;

typedef struct bench_app {
    bench_options o;
    tool_log tlog;
    folio_log log;
    folio_device *dev;
    folio_model *model;
    bench_report rep;
} bench_app;

double bench_now(void);
/* Says what is wrong as the library would, and returns st. */
folio_status bench_fail(bench_app *a, folio_status st, const char *fmt, ...)
    FOLIO_PRINTF(3, 4);

/* Fills in rows[i].decode, batch, depth, n_new from the options. */
folio_status bench_plan(bench_app *a);
/* Refuses what cannot be run, before anything is: against what is known of the
 * model by then, in rep.model (a 0 is not), and of the device. */
folio_status bench_check(bench_app *a);
folio_status bench_run(bench_app *a, bench_row *row);

/* The rate that a row's arithmetic is held against. */
double bench_flop_rate(const bench_report *r);
/* The report in the format asked for; false if f could not be written. */
bool bench_print(const bench_report *r, FILE *f);
/* One line on a finished row. */
void bench_print_row(const bench_report *r, const bench_row *row, FILE *f);
bool bench_print_json(const bench_report *r, FILE *f);

#endif
