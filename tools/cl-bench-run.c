/* cl-bench-run.c: runs one case: prefill of a prompt, or decode of a batch at a
 * depth, through a runner as the engine drives it: one forward, then one read
 * of the best id of each row, which is fed back. */
#define _POSIX_C_SOURCE 200809L
#include "cl-bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Steps before the first that counts. */
#define WARM_STEPS 3

double bench_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* The arrays of a forward, and where its sequences live. */
typedef struct feeder {
    bench_app *app;
    folio_runner *run;
    int32_t n_seq, per_seq, block, max_tok;
    int32_t *blocks;  /* [n_seq, per_seq] shuffled */
    int32_t *prompts; /* [n_seq, depth] */
    int32_t *next;    /* [n_seq] the id to be fed */
    int32_t *first;   /* [n_seq] `next` before the first step */
    int32_t *row_seq; /* [n_seq] whose row it is */
    int32_t *got, *n_nan;
    float *value;
    int32_t *tok, *pos, *slot, *q_start, *kv_len, *table_start, *tables, *rows;
    folio_batch b;
} feeder;

static int32_t *ints(size_t n)
{
    return calloc(n ? n : 1, sizeof(int32_t));
}

static int32_t below(uint64_t *state, int32_t n)
{
    /* SplitMix64 (Steele, Lea, Flood 2014). */
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (int32_t)((z ^ z >> 31) % (uint64_t)n);
}

static void feeder_fini(feeder *f)
{
    int32_t *const all[] = {f->blocks,      f->prompts, f->next,    f->first,
                            f->row_seq,     f->got,     f->n_nan,   f->tok,
                            f->pos,         f->slot,    f->q_start, f->kv_len,
                            f->table_start, f->tables,  f->rows};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    free(f->value);
    folio_runner_close(&f->run);
}

static void fill_random(feeder *f, const bench_row *row)
{
    const int32_t n = f->n_seq * f->per_seq;
    const int32_t n_vocab = f->app->rep.model.n_vocab;
    uint64_t state = 1;
    for (int32_t i = 0; i < n; i++)
        f->blocks[i] = i;
    for (int32_t i = n - 1; i > 0; i--) {
        const int32_t j = below(&state, i + 1), t = f->blocks[i];
        f->blocks[i] = f->blocks[j];
        f->blocks[j] = t;
    }
    state = 2; /* ids do not depend on the size of a block */
    for (int64_t i = 0; i < (int64_t)f->n_seq * row->depth; i++)
        f->prompts[i] = below(&state, n_vocab);
    for (int32_t s = 0; s < f->n_seq; s++)
        f->first[s] = below(&state, n_vocab);
}

static folio_status feeder_init(bench_app *a, const bench_row *row, feeder *f)
{
    const bench_options *o = &a->o;
    folio_runner_params p;
    *f = (feeder){.app = a, .n_seq = row->batch, .block = (int32_t)o->block};
    const int32_t ctx = row->depth + row->n_new;
    const int64_t prompt = (int64_t)row->batch * row->depth;
    f->per_seq = (ctx + f->block - 1) / f->block;
    int64_t chunk = o->max_tok < prompt && !row->fake ? o->max_tok : prompt;
    if (row->fake || chunk < row->batch)
        chunk = row->batch;
    f->max_tok = (int32_t)chunk;
    folio_runner_params_default(&p);
    p.max_seqs = row->batch;
    p.max_tok = f->max_tok;
    p.max_ctx = ctx;
    p.block_size = f->block;
    p.n_blocks = row->batch * f->per_seq;
    p.kv_type = o->kv_f32 ? FOLIO_KV_F32 : FOLIO_KV_F16;
    p.exact = o->exact;
    p.deterministic = (int32_t)o->deterministic;
    p.fused = (int32_t)o->fused;
    p.run_ahead = row->decode && o->run_ahead;
    const folio_status st = folio_runner_open(a->model, &p, &f->run);
    if (st != FOLIO_OK)
        return st;
    const size_t n = (size_t)row->batch, t = (size_t)f->max_tok;
    const size_t blocks = n * (size_t)f->per_seq;
    f->blocks = ints(blocks);
    f->prompts = ints(n * (size_t)row->depth);
    f->next = ints(n);
    f->first = ints(n);
    f->row_seq = ints(n);
    f->got = ints(n);
    f->n_nan = ints(n);
    f->value = calloc(n, sizeof *f->value);
    f->tok = ints(t);
    f->pos = ints(t);
    f->slot = ints(t);
    f->q_start = ints(n + 1);
    f->kv_len = ints(n);
    f->table_start = ints(n + 1);
    f->tables = ints(blocks);
    f->rows = ints(n);
    if (!f->blocks || !f->prompts || !f->next || !f->first || !f->row_seq ||
        !f->got || !f->n_nan || !f->value || !f->tok || !f->pos || !f->slot ||
        !f->q_start || !f->kv_len || !f->table_start || !f->tables || !f->rows)
        return bench_fail(a, FOLIO_E_NOMEM, "no memory for a batch of %d",
                          row->batch);
    fill_random(f, row);
    return FOLIO_OK;
}

/* ---- forwards ------------------------------------------------------------ */

static void begin(feeder *f)
{
    f->b = (folio_batch){.tok = f->tok,
                         .pos = f->pos,
                         .slot = f->slot,
                         .q_start = f->q_start,
                         .kv_len = f->kv_len,
                         .table_start = f->table_start,
                         .tables = f->tables,
                         .rows = f->rows};
}

/* n ids of sequence s at position `pos`; whether its last row is wanted. */
static void add(feeder *f, int32_t s, const int32_t *ids, int32_t pos,
                int32_t n, bool wanted)
{
    folio_batch *b = &f->b;
    const int32_t *table = f->blocks + (size_t)s * (size_t)f->per_seq;
    const int32_t i = b->n_seq++, need = (pos + n + f->block - 1) / f->block;
    for (int32_t k = 0; k < n; k++) {
        const int32_t p = pos + k, t = b->n_tok + k;
        f->tok[t] = ids[k];
        f->pos[t] = p;
        f->slot[t] = table[p / f->block] * f->block + p % f->block;
    }
    b->n_tok += n;
    f->q_start[i + 1] = b->n_tok;
    f->kv_len[i] = pos + n;
    memcpy(f->tables + f->table_start[i], table,
           (size_t)need * sizeof *f->tables);
    f->table_start[i + 1] = f->table_start[i] + need;
    if (wanted) {
        f->row_seq[b->n_rows] = s;
        f->rows[b->n_rows++] = b->n_tok - 1;
    }
}

/* The best ids that were read become `next`, if all logits are numbers. */
static folio_status take(feeder *f, int32_t n_rows)
{
    for (int32_t i = 0; i < n_rows; i++) {
        if (f->n_nan[i] || !isfinite(f->value[i]))
            return bench_fail(f->app, FOLIO_E_INTERNAL,
                              "sequence %d: %d logits are not numbers, the "
                              "largest one is %g",
                              f->row_seq[i], f->n_nan[i], (double)f->value[i]);
        f->next[f->row_seq[i]] = f->got[i];
    }
    return FOLIO_OK;
}

/* Computes the batch, waits for its rows and takes them. */
static folio_status forward(feeder *f)
{
    folio_status st = folio_runner_forward(f->run, &f->b, -1);
    if (st == FOLIO_OK && f->b.n_rows > 0)
        st = folio_runner_read_top(f->run, 1, f->got, f->value, f->n_nan);
    return st == FOLIO_OK ? take(f, f->b.n_rows) : st;
}

/* All prompts, as many ids in each forward as it takes. */
static folio_status prefill(feeder *f, int32_t depth)
{
    folio_status st = FOLIO_OK;
    for (int32_t s = 0, at = 0; s < f->n_seq && st == FOLIO_OK;) {
        begin(f);
        while (s < f->n_seq && f->b.n_tok < f->max_tok) {
            const int32_t room = f->max_tok - f->b.n_tok;
            const int32_t n = depth - at < room ? depth - at : room;
            const int32_t *ids = f->prompts + (size_t)s * (size_t)depth;
            add(f, s, ids + at, at, n, at + n == depth);
            at += n;
            if (at == depth) {
                s++;
                at = 0;
            }
        }
        st = forward(f);
    }
    return st;
}

/* Step i of a decode is enqueued; its ids are known or (ahead) those of the
 * step before, which the device has. */
static folio_status enqueue(feeder *f, int32_t pos, int32_t i, bool ahead)
{
    static const int32_t open = FOLIO_TOK_NEXT;
    const bool known = !ahead || i == 0;
    begin(f);
    for (int32_t s = 0; s < f->n_seq; s++)
        add(f, s, known ? &f->next[s] : &open, pos, 1, true);
    /* Row s is sequence s: row_seq is the list of next rows, too. */
    return ahead ? folio_runner_forward_ahead(f->run, &f->b, f->row_seq, i % 2)
                 : folio_runner_forward(f->run, &f->b, -1);
}

static folio_status collect(feeder *f, int32_t i, bool ahead)
{
    const folio_status st =
        ahead
            ? folio_runner_read_ahead(f->run, i % 2, f->got, f->value, f->n_nan)
            : folio_runner_read_top(f->run, 1, f->got, f->value, f->n_nan);
    return st == FOLIO_OK ? take(f, f->n_seq) : st;
}

/* `n` steps from `depth` on; times[n], ids[n, n_seq], either may be NULL. */
static folio_status decode(feeder *f, int32_t depth, int32_t n, double *times,
                           int32_t *ids)
{
    const bool ahead = f->app->o.run_ahead;
    const size_t row = (size_t)f->n_seq * sizeof *f->next;
    memcpy(f->next, f->first, row);
    double last = bench_now();
    folio_status st = ahead ? enqueue(f, depth, 0, true) : FOLIO_OK;
    for (int32_t i = 0; i < n && st == FOLIO_OK; i++) {
        const int32_t next = ahead ? i + 1 : i;
        if (next < n)
            st = enqueue(f, depth + next, next, ahead);
        if (st == FOLIO_OK)
            st = collect(f, i, ahead);
        if (ids)
            memcpy(ids + (size_t)i * (size_t)f->n_seq, f->next, row);
        const double now = bench_now();
        if (times)
            times[i] = now - last;
        last = now;
    }
    return st;
}

/* ---- figures ------------------------------------------------------------- */

static int compare(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* The smallest value that a share `q` of all does not exceed. */
static double at_share(double *v, size_t n, double q)
{
    qsort(v, n, sizeof *v, compare);
    const size_t i = (size_t)ceil(q * (double)n);
    return v[i ? i - 1 : 0];
}

/* Keys and values that `n` new ids of one sequence behind `depth` read, and
 * their dot products' FLOP, over all layers. */
static void count_attention(const bench_report *r, double depth, double n,
                            double *bytes, double *flop)
{
    const folio_model_info *m = &r->model;
    const double elem = r->o->kv_f32 ? 4.0 : 2.0;
    const double window = m->window ? m->window : INFINITY;
    const double end = fmin(depth + n, window);
    /* Mean length over the new ids, each sees those before it. */
    const double mean = fmin(depth + (n + 1.0) / 2.0, window);
    *bytes = 2.0 * m->n_layers * m->kv_heads * m->head_dim * elem * end;
    *flop = 4.0 * m->n_layers * m->heads * m->head_dim * mean * n;
}

static void count_prefill(const bench_report *r, const feeder *f,
                          bench_row *row)
{
    const double passes = ceil((double)row->depth / f->max_tok);
    row->weight_bytes = passes * (double)r->model.step_bytes;
    row->kv_bytes = row->flop = 0.0;
    for (int32_t at = 0; at < row->depth; at += f->max_tok) {
        const int32_t left = row->depth - at;
        const double n = left < f->max_tok ? left : f->max_tok;
        double bytes, flop;
        count_attention(r, at, n, &bytes, &flop);
        row->kv_bytes += bytes;
        row->flop += flop;
    }
    row->flop += 2.0 * ((double)r->model.layer_params * row->depth +
                        (double)r->model.head_params);
}

static void count_decode(const bench_report *r, bench_row *row)
{
    double bytes, flop;
    /* The step in the middle. */
    count_attention(r, row->depth + (row->n_new - 1) / 2.0, 1.0, &bytes, &flop);
    row->weight_bytes = (double)r->model.step_bytes;
    row->kv_bytes = bytes * row->batch;
    row->flop =
        row->batch *
        (flop + 2.0 * (double)(r->model.layer_params + r->model.head_params));
}

/* What went over the bus since `before`, in `n` steps. */
static void count_bus(const feeder *f, const folio_runner_counters *before,
                      double n, bench_row *row)
{
    folio_runner_counters c;
    folio_runner_get_counters(f->run, &c);
    row->launches = (double)(c.launches - before->launches) / n;
    row->writes = (double)(c.writes - before->writes) / n;
    row->reads = (double)(c.reads - before->reads) / n;
    row->waits = (double)(c.waits - before->waits) / n;
}

static folio_status describe(bench_app *a, const feeder *f, bench_row *row)
{
    folio_runner_info i = {.size = sizeof i};
    folio_choice c;
    folio_runner_get_info(f->run, &i);
    row->pool_bytes = i.kv_bytes;
    row->deterministic = i.deterministic;
    row->fused = i.fused;
    snprintf(row->arithmetic, sizeof row->arithmetic, "%s", i.arithmetic);
    row->variants = json_array();
    for (size_t k = 0; folio_runner_choice(f->run, k, &c) == FOLIO_OK; k++)
        json_array_append_new(row->variants,
                              json_pack("{s:s,s:s,s:s}", "op", c.op, "case",
                                        c.what, "variant", c.variant));
    return row->variants ? FOLIO_OK : bench_fail(a, FOLIO_E_NOMEM, "no memory");
}

/* ---- cases --------------------------------------------------------------- */

static folio_status run_prefill(bench_app *a, feeder *f, bench_row *row)
{
    const size_t reps = (size_t)a->o.reps;
    double *t = calloc(reps, sizeof *t);
    folio_runner_counters before;
    folio_status st =
        t ? FOLIO_OK : bench_fail(a, FOLIO_E_NOMEM, "no memory for times");
    if (st == FOLIO_OK)
        st = prefill(f, row->depth); /* warm */
    row->same = true;
    for (size_t i = 0; i < reps && st == FOLIO_OK; i++) {
        folio_runner_get_counters(f->run, &before);
        const double start = bench_now();
        st = prefill(f, row->depth);
        t[i] = bench_now() - start;
        const uint64_t hash = folio_ids_hash(f->next, 1);
        row->same = row->same && (i == 0 || hash == row->hash);
        row->hash = hash;
    }
    if (st == FOLIO_OK) {
        count_bus(f, &before, 1.0, row);
        row->step_s = row->ttft_s = at_share(t, reps, 0.5);
        row->tok_s = row->depth / row->step_s;
        row->p50_s = row->p99_s = NAN;
        count_prefill(&a->rep, f, row);
    }
    free(t);
    return st;
}

/* What stands in the cache before the first step. */
static folio_status fill_cache(feeder *f, bench_row *row)
{
    row->ttft_s = NAN;
    if (row->depth == 0)
        return FOLIO_OK;
    if (row->fake)
        return folio_runner_fake_kv(f->run, 3);
    const double start = bench_now();
    const folio_status st = prefill(f, row->depth);
    row->ttft_s = bench_now() - start;
    memcpy(f->first, f->next, (size_t)f->n_seq * sizeof *f->next);
    return st;
}

static folio_status run_decode(bench_app *a, feeder *f, bench_row *row)
{
    const size_t reps = (size_t)a->o.reps, n = (size_t)row->n_new;
    double *t = calloc(reps * n, sizeof *t), *sum = calloc(reps, sizeof *sum);
    int32_t *ids = ints(n * (size_t)row->batch);
    folio_runner_counters before = {0};
    folio_status st =
        t && sum && ids
            ? FOLIO_OK
            : bench_fail(a, FOLIO_E_NOMEM, "no memory for %zu times", n);
    const int32_t warm = row->n_new < WARM_STEPS ? row->n_new : WARM_STEPS;
    if (st == FOLIO_OK)
        st = fill_cache(f, row);
    if (st == FOLIO_OK)
        st = decode(f, row->depth, warm, NULL, NULL);
    row->same = true;
    for (size_t i = 0; i < reps && st == FOLIO_OK; i++) {
        folio_runner_get_counters(f->run, &before);
        st = decode(f, row->depth, row->n_new, t + i * n, ids);
        for (size_t k = 0; k < n; k++)
            sum[i] += t[i * n + k];
        const uint64_t hash = folio_ids_hash(ids, n * (size_t)row->batch);
        row->same = row->same && (i == 0 || hash == row->hash);
        row->hash = hash;
    }
    if (st == FOLIO_OK) {
        count_bus(f, &before, (double)n, row);
        row->step_s = at_share(sum, reps, 0.5) / (double)n;
        row->tok_s = row->batch / row->step_s;
        row->p50_s = at_share(t, reps * n, 0.5);
        row->p99_s = at_share(t, reps * n, 0.99);
        count_decode(&a->rep, row);
    }
    free(t);
    free(sum);
    free(ids);
    return st;
}

folio_status bench_run(bench_app *a, bench_row *row)
{
    feeder f;
    folio_status st = feeder_init(a, row, &f);
    if (st == FOLIO_OK)
        st = row->decode ? run_decode(a, &f, row) : run_prefill(a, &f, row);
    if (st == FOLIO_OK)
        st = describe(a, &f, row);
    feeder_fini(&f);
    return st;
}
