/* folio-figures MODEL [--device NAME] [--reps N]: figures of batching on a real
 * engine, as tables: one stream, batch sizes, a static batch against continuous
 * batching, what a small pool and a watermark cost. The same for the host
 * device beside any other one. Every run's texts are compared with those of the
 * run it is held against: if they differ there are no figures and the exit
 * status is 1. Counts are exact and the same everywhere; times are the best of
 * N runs (default 2) after one that is not counted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/batching.h"
#include "engine/eng.h"

typedef struct bench {
    folio_device *dev;
    folio_model *model;
    folio_engine *e;
    bench_clock clock;
    int32_t reps, n_ids;
} bench;

static double seconds(void *user)
{
    (void)user;
    return (double)folio_clock_ns() * 1e-9;
}

/* An engine of so many places and blocks in place of the last one. */
static const char *open_engine(bench *b, int32_t seqs, int32_t blocks,
                               int32_t watermark)
{
    folio_engine_params p;
    bench_engine_params(&p);
    p.max_seqs = seqs;
    p.n_blocks = blocks;
    p.watermark_blocks = watermark;
    p.deterministic = 1; /* texts shall not depend on who is beside */
    folio_engine_close(&b->e);
    return folio_engine_open(b->model, NULL, &p, &b->e) == FOLIO_OK
               ? NULL
               : "no engine";
}

/* ---- one stream ---------------------------------------------------------- */

static const char *streams(bench *b)
{
    printf("\n| one stream, prompt | first id, ms | between ids, ms | ids/s "
           "|\n|---|---|---|---|\n");
    for (int32_t n = 16; n <= BENCH_MAX_PROMPT; n *= 4) {
        const bench_load l = bench_alike(1, n, 32, b->n_ids);
        bench_latency best = {0};
        const char *why = open_engine(b, 1, 128, 0);
        for (int32_t i = 0; !why && i <= b->reps; i++) {
            bench_latency x;
            why = bench_run_stream(b->e, &l, &b->clock, &x);
            if (!why && (i <= 1 || x.total_s < best.total_s))
                best = x;
        }
        if (why)
            return why;
        printf("| %d | %.1f | %.2f | %.0f |\n", n, best.first_s * 1e3,
               best.between_s * 1e3, best.rate);
    }
    return NULL;
}

/* ---- static and continuous ----------------------------------------------- */

/* The run of the least makespan. */
static const char *best_static(bench *b, const bench_load *l, int32_t first,
                               int32_t rows, bench_row *row, bench_static *out,
                               bench_texts *t)
{
    const char *why = NULL;
    *out = (bench_static){0};
    for (int32_t i = 0; !why && i <= b->reps; i++) {
        bench_row r[BENCH_MAX_REQUESTS];
        bench_static s;
        why = bench_run_static(b->e, l, first, rows, &b->clock, r, &s, t);
        if (why || (i > 1 && s.makespan_s >= out->makespan_s))
            continue;
        *out = s;
        memcpy(row, r, (size_t)rows * sizeof *row);
    }
    return why;
}

static const char *best_continuous(bench *b, const bench_load *l,
                                   bench_served *served, bench_continuous *out,
                                   bench_texts *t)
{
    const char *why = NULL;
    *out = (bench_continuous){0};
    for (int32_t i = 0; !why && i <= b->reps; i++) {
        bench_served v[BENCH_MAX_REQUESTS];
        bench_continuous c = {0};
        why = bench_run_continuous(b->e, l, &b->clock, v, &c, t);
        if (why || (i > 1 && c.makespan_s >= out->makespan_s))
            continue;
        *out = c;
        memcpy(served, v, (size_t)l->n * sizeof *served);
    }
    return why;
}

static const char *sizes(bench *b)
{
    bench_size at[4] = {{.rows = 1}, {.rows = 2}, {.rows = 4}, {.rows = 8}};
    const int32_t n = (int32_t)FOLIO_COUNT(at);
    int32_t best, knee;
    const char *why = NULL;
    for (int32_t i = 0; !why && i < n; i++) {
        const bench_load l = bench_alike(at[i].rows, 5, 32, b->n_ids);
        bench_row row[BENCH_MAX_REQUESTS];
        bench_static s = {0};
        bench_texts t;
        why = open_engine(b, at[i].rows, 128, 0);
        if (!why)
            why = best_static(b, &l, 0, l.n, row, &s, &t);
        if (!why)
            at[i].step_s = s.decode_s / s.steps;
    }
    if (!why)
        why = bench_scale(at, n, &best, &knee);
    if (why)
        return why;
    printf("\n| static batch of | step, ms | ids/s | speed-up | efficiency "
           "|\n|---|---|---|---|---|\n");
    for (int32_t i = 0; i < n; i++)
        printf("| %d | %.2f | %.0f | %.2f | %.2f |\n", at[i].rows,
               at[i].step_s * 1e3, at[i].rows / at[i].step_s, at[i].speed_up,
               at[i].efficiency);
    printf("\nbest size %d, efficiency at least %.1f up to %d\n", at[best].rows,
           BENCH_KNEE, at[knee].rows);
    return NULL;
}

static void print_pair(const char *what, double s, double c, double ratio)
{
    printf("| %s | %.4g | %.4g | %.2f |\n", what, s, c, ratio);
}

static const char *head_of_line(bench *b)
{
    const bench_load l = bench_head_of_line(1, b->n_ids);
    bench_row row[BENCH_MAX_REQUESTS];
    bench_served served[BENCH_MAX_REQUESTS];
    bench_static s = {0};
    bench_continuous c = {0};
    bench_comparison r = {0};
    bench_texts st, ct;
    const char *why = open_engine(b, l.n, 128, 0);
    if (!why)
        why = best_static(b, &l, 0, l.n, row, &s, &st);
    if (!why)
        why = best_continuous(b, &l, served, &c, &ct);
    if (!why)
        why = bench_same_texts(&l, &st, &ct);
    if (!why)
        why = bench_compare(&s, &c, &r);
    if (why)
        return why;
    printf("\n%d answers of 4 ids behind one of 32, %d places:\n\n"
           "| | static | continuous | ratio |\n|---|---|---|---|\n",
           l.n - 1, l.n);
    print_pair("rows computed", (double)(s.issued + s.rows), (double)c.issued,
               r.work);
    printf("| of them behind the prompts, useful | %lld, %lld | %lld, %lld | "
           "|\n",
           (long long)s.issued, (long long)s.useful,
           (long long)(c.issued - s.rows), (long long)(c.collected - s.rows));
    printf("| waste of these, %% | %.1f | %.1f | |\n", 100 * s.waste,
           100 * c.waste);
    print_pair("iterations, the last release too", s.steps + 1, c.iterations,
               (double)(s.steps + 1) / c.iterations);
    printf("| occupancy | | %.3f | |\n", c.occupancy);
    print_pair("makespan, ms", s.makespan_s * 1e3, c.makespan_s * 1e3,
               r.makespan);
    print_pair("first answer, ms", s.makespan_s * 1e3, c.first_s * 1e3,
               r.first);
    print_pair("mean latency, ms", s.makespan_s * 1e3, c.mean_s * 1e3, r.mean);
    print_pair("goodput, ids/s", s.goodput_all, c.goodput, r.goodput);
    printf("\nhead of line in the static batch: a short answer is whole after "
           "%.1f ms and comes after %.1f ms, %.1f times as late\n",
           row[0].finish_s * 1e3, s.makespan_s * 1e3, row[0].hol_inflation);
    return NULL;
}

static const char *three_times(bench *b)
{
    const int32_t rows = BENCH_HOL_REQUESTS;
    const bench_load l = bench_head_of_line(3, b->n_ids);
    bench_row row[BENCH_MAX_REQUESTS];
    bench_served served[BENCH_MAX_REQUESTS];
    bench_static s = {0};
    bench_continuous c = {0};
    bench_texts st, ct;
    int32_t waves = 0;
    double total_s = 0;
    const char *why = open_engine(b, rows, 256, 0);
    for (int32_t first = 0; !why && first < l.n; first += rows) {
        why = best_static(b, &l, first, rows, row, &s, &st);
        if (why)
            break;
        waves += 1 + s.steps;
        total_s += s.makespan_s;
    }
    if (!why)
        why = best_continuous(b, &l, served, &c, &ct);
    if (!why)
        why = bench_same_texts(&l, &st, &ct);
    if (why)
        return why;
    printf("\nthat three times over %d places: %d iterations (%d forwarding) "
           "in %.1f ms against %d static ones in %.1f ms\n",
           rows, c.iterations, c.forwarding, c.makespan_s * 1e3, waves,
           total_s * 1e3);
    return NULL;
}

/* ---- small pools and watermarks ------------------------------------------ */

static const char *pools(bench *b)
{
    static const int32_t at[][2] = {{4, 12}, {4, 24}, {4, 32}, {6, 48}, {6, 32},
                                    {6, 24}, {6, 16}, {6, 12}, {6, 8}};
    bench_served roomy[BENCH_MAX_REQUESTS], served[BENCH_MAX_REQUESTS];
    bench_texts want, t;
    bench_continuous c = {0};
    printf("\nPrompts of 5, answers of 24, blocks of 4; penalty: how many "
           "times as long preempted requests took as the others, and as the "
           "same requests in a pool of 64:\n\n| requests | blocks | iterations "
           "| occupancy | preempted | recomputed | positions | share | penalty "
           "| own penalty | ms |\n|---|---|---|---|---|---|---|---|---|---|---"
           "|\n");
    for (size_t i = 0; i < FOLIO_COUNT(at); i++) {
        const int32_t n = at[i][0];
        const bench_load l = bench_alike(n, 5, 24, b->n_ids);
        const char *why = NULL;
        if (i == 0 || at[i - 1][0] != n) {
            why = open_engine(b, n, 64, 0);
            if (!why)
                why = best_continuous(b, &l, roomy, &c, &want);
        }
        if (!why)
            why = open_engine(b, n, at[i][1], 0);
        if (!why)
            why = best_continuous(b, &l, served, &c, &t);
        if (!why)
            why = bench_same_texts(&l, &want, &t);
        if (why)
            return why;
        printf("| %d | %d | %d | %.3f | %d | %lld | %lld | %.3f | %.2f | %.2f "
               "| %.1f |\n",
               n, at[i][1], c.forwarding, c.occupancy, c.preemptions,
               (long long)c.recomputed, (long long)c.positions, c.recompute,
               bench_penalty(served, n), bench_penalty_own(served, roomy, n),
               c.makespan_s * 1e3);
    }
    return NULL;
}

static const char *watermarks(bench *b)
{
    const bench_load l = bench_alike(8, 6, 10, b->n_ids);
    bench_served served[BENCH_MAX_REQUESTS];
    bench_texts want, t;
    bench_continuous c = {0};
    printf("\n8 requests of 6 + 10 over 3 places, 8 blocks of 4:\n\n| reserve "
           "| preempted | iterations | positions | recomputed | ms "
           "|\n|---|---|---|---|---|---|\n");
    const char *why = open_engine(b, 3, 64, 0);
    if (!why)
        why = best_continuous(b, &l, served, &c, &want);
    for (int32_t reserve = 0; !why && reserve < 4; reserve++) {
        why = open_engine(b, 3, 8, reserve);
        if (!why)
            why = best_continuous(b, &l, served, &c, &t);
        if (!why)
            why = bench_same_texts(&l, &want, &t);
        if (!why)
            printf("| %d | %d | %d | %lld | %.3f | %.1f |\n", reserve,
                   c.preemptions, c.iterations, (long long)c.positions,
                   c.recompute, c.makespan_s * 1e3);
    }
    return why;
}

/* ---- devices ------------------------------------------------------------- */

static void print_name(const bench *b, const char *path)
{
    folio_device_info d = {.size = sizeof d};
    folio_model_info m = {.size = sizeof m};
    folio_device_get_info(b->dev, &d);
    folio_model_get_info(b->model, &m);
    const char *file = strrchr(path, '/');
    printf("device %s, driver %s; %s; greedy, KV f16, deterministic, seed 1, "
           "best of %d\n",
           d.name, d.driver, file ? file + 1 : path, b->reps);
}

/* All tables of one device; whether it is the host is told in *on_host. */
static const char *run_on(const char *select, const char *path, int32_t reps,
                          bool *on_host)
{
    static const char *(*const parts[])(bench * b) = {
        streams, sizes, head_of_line, three_times, pools, watermarks};
    bench b = {.reps = reps, .clock = {seconds, NULL}};
    folio_device_params dp;
    folio_device_info d = {.size = sizeof d};
    folio_model_info m = {.size = sizeof m};
    const char *why = NULL;
    folio_device_params_default(&dp);
    dp.select = select;
    if (folio_device_open(&dp, &b.dev) != FOLIO_OK)
        return "no such device";
    folio_device_get_info(b.dev, &d);
    *on_host = d.kind == FOLIO_DEVICE_HOST;
    if (folio_model_open(b.dev, path, NULL, &b.model) != FOLIO_OK)
        why = "the model cannot be opened";
    if (!why) {
        folio_model_get_info(b.model, &m);
        b.n_ids = m.n_vocab;
        print_name(&b, path);
    }
    for (size_t i = 0; !why && i < FOLIO_COUNT(parts); i++)
        why = parts[i](&b);
    folio_engine_close(&b.e);
    folio_model_close(&b.model);
    folio_device_close(&b.dev);
    return why;
}

int main(int argc, char **argv)
{
    const char *path = NULL, *select = NULL;
    int32_t reps = 2;
    bool on_host = false, ok = argc > 1;
    for (int i = 1; ok && i < argc; i++) {
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
            select = argv[++i];
        else if (strcmp(argv[i], "--reps") == 0 && i + 1 < argc)
            reps = (int32_t)strtol(argv[++i], NULL, 10);
        else if (argv[i][0] != '-' && !path)
            path = argv[i];
        else
            ok = false;
    }
    if (!ok || !path || reps < 1) {
        fprintf(stderr,
                "usage: folio-figures MODEL [--device NAME] [--reps N]\n");
        return 2;
    }
    const char *why = run_on(select, path, reps, &on_host);
    if (!why && !on_host) {
        printf("\nThe same on the host device:\n\n");
        why = run_on("host", path, reps, &on_host);
    }
    if (why)
        fprintf(stderr, "folio-figures: %s\n", why);
    return why ? 1 : 0;
}
