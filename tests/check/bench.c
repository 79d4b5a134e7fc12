/* bench.c: how fast each variant is on shapes of real models, beside what the
 * device's memory gives in the same run. Launches go back to back, the median
 * of several rounds counts, and outputs are checked, against the host device's
 * fast form. Weights and pools smaller than a GPU's last cache are read from
 * there: the large ones show the memory. */
#include "check/check.h"

#include <stdio.h>
#include <string.h>

/* Bytes of the array that is read and copied; larger than any cache. */
#define STREAM_BYTES ((size_t)256 << 20)
#define ROUNDS       7
/* A round lasts about so long. */
#define ROUND_NS     30000000u
#define MAX_LAUNCHES 500

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *t, int n)
{
    qsort(t, (size_t)n, sizeof *t, compare_times);
    return t[n / 2];
}

/* ---- work ------------------------------------------------------------------
 */

typedef struct work {
    double bytes, flops;
} work;

static work attn_work(const ck_problem *p)
{
    const folio_attn_args *a = &p->args.attn;
    const ck_batch *b = &p->batch;
    work w = {0, 0};
    double row = (double)a->kv.kv_heads * a->kv.head_dim *
                 (double)folio_kv_type_bytes(a->kv.type);
    for (int s = 0; s < b->n_seq; s++) {
        int n = b->q_start[s + 1] - b->q_start[s];
        w.bytes += 2 * row * b->kv_len[s];
        for (int i = 0; i < n; i++)
            w.flops +=
                4.0 * a->heads * a->kv.head_dim * (b->kv_len[s] - n + i + 1);
    }
    w.bytes += 8.0 * a->n_tok * a->heads * a->kv.head_dim;
    return w;
}

/* Every input once, every output once. */
static work work_of(const ck_problem *p)
{
    work w = {0, 0};
    if (p->op == FOLIO_OP_ATTN)
        return attn_work(p);
    for (int i = 0; i < p->n_slots; i++) {
        const ck_slot *s = &p->slot[i];
        if (s->role != CK_SCRATCH)
            w.bytes += (double)s->bytes * (s->role == CK_INOUT ? 2 : 1);
    }
    if (p->op == FOLIO_OP_EMBED) {
        const folio_embed_args *a = &p->args.embed;
        w.bytes =
            (double)a->n_tok *
            (double)(folio_type_row_bytes(a->w->type, (uint64_t)a->w->cols) +
                     4 * (size_t)a->w->cols);
    }
    if (p->op == FOLIO_OP_GATHER_ROWS)
        w.bytes = 8.0 * p->args.gather.n_rows * p->args.gather.dim;
    if (p->op == FOLIO_OP_COPY_BLOCKS)
        w.bytes = 4.0 * p->args.copy.n_pairs *
                  (double)folio_kv_block_bytes(&p->args.copy.kv);
    if (p->op == FOLIO_OP_ROPE_APPEND) {
        const folio_rope_append_args *a = &p->args.rope;
        double kv = (double)a->kv.kv_heads * a->kv.head_dim * a->n_tok;
        w.bytes = 8.0 * a->n_tok * a->heads * a->kv.head_dim +
                  kv * (8 + 2 * (double)folio_kv_type_bytes(a->kv.type));
    }
    if (p->op == FOLIO_OP_QKV) {
        const folio_qkv_args *a = &p->args.qkv;
        w.bytes = 4.0 * a->n_tok * (a->in.dim + a->q_stride);
        for (int i = 0; i < p->n_slots; i++)
            if (p->slot[i].kind == CK_BYTES)
                w.bytes += (double)p->slot[i].bytes;
    }
    if (p->op == FOLIO_OP_LINEAR)
        w.flops =
            2.0 * p->args.linear.n_tok * (double)p->w.rows * (double)p->w.cols;
    return w;
}

/* ---- one variant -----------------------------------------------------------
 */

static folio_status time_launches(ck_ctx *c, folio_op *op, const ck_problem *p,
                                  int n, double *ns)
{
    uint64_t start = folio_clock_ns();
    for (int i = 0; i < n; i++)
        FOLIO_RETURN_IF(folio_op_run(op, c->q, &p->args));
    FOLIO_RETURN_IF(folio_queue_finish(c->q));
    *ns = (double)(folio_clock_ns() - start) / n;
    return FOLIO_OK;
}

static folio_status time_op(ck_ctx *c, folio_op *op, const ck_problem *p,
                            double *ns)
{
    double t[ROUNDS], once;
    FOLIO_RETURN_IF(time_launches(c, op, p, 2, &once));
    int n = (int)FOLIO_MIN(ROUND_NS / FOLIO_MAX(once, 1.0), MAX_LAUNCHES);
    n = FOLIO_MAX(n, 1);
    /* What takes very long is not measured more often than needed. */
    int rounds = once > 1e9 ? 1 : once > 1e8 ? 3 : ROUNDS;
    for (int i = 0; i < rounds; i++)
        FOLIO_RETURN_IF(time_launches(c, op, p, n, &t[i]));
    *ns = median(t, rounds);
    return FOLIO_OK;
}

static folio_status measure(ck_ctx *c, ck_problem *p, const folio_variant *var,
                            folio_op **op, double *ns)
{
    ck_result got = {0};
    unsigned bad = 0;
    char why[300] = "";
    ck_rng r = ck_rng_make(c->seed, p->name);
    folio_status st = FOLIO_OK;
    folio_op_params prm = {.deterministic = false,
                           .exact = !(var->flags & FOLIO_VAR_INEXACT),
                           .tune = c->tune};
    if (p->op == FOLIO_OP_ATTN)
        ck_attn_unplan(p);
    FOLIO_TRY(ck_place(p, c->dev, false, &r));
    FOLIO_TRY(folio_variant_open(c->dev, var, &prm, &p->args, op));
    if (p->op == FOLIO_OP_ATTN)
        FOLIO_TRY(ck_attn_plan(p, *op));
    ck_size_scratch(p, *op);
    FOLIO_TRY(ck_place(p, c->dev, false, &r));
    FOLIO_TRY(ck_upload(p, c->q));
    FOLIO_TRY(folio_op_run(*op, c->q, &p->args));
    FOLIO_TRY(ck_download(p, c->q, &got, &bad, why, sizeof why));
    ck_verdict v = ck_compare(p, &got);
    if (bad || v.bad)
        ck_bad(c, var, bad | v.bad, p, "%s", bad ? why : v.why);
    FOLIO_TRY(time_op(c, *op, p, ns));
fail:
    ck_result_free(&got);
    return st;
}

void ck_bench_problem(ck_ctx *c, ck_problem *p, const folio_variant *var)
{
    folio_op *op = NULL;
    double ns = 0;
    folio_op_params prm = {.deterministic = false};
    ck_tally *y = ck_tally_of(c, var);
    /* References are slow by intent. */
    if (folio_variant_refuse(c->dev, var, &prm, &p->args) ||
        (strncmp(var->name, "ref_", 4) == 0 && !c->only))
        return;
    y->bad = 0;
    printf("%-16s %-66s", var->name, p->name);
    fflush(stdout);
    folio_status st = measure(c, p, var, &op, &ns);
    if (st != FOLIO_OK)
        ck_bad(c, var, CK_BAD_STATUS, p, "%s: %s", folio_status_name(st),
               c->log);
    c->dead = c->dead || st == FOLIO_E_DEVICE;
    work w = work_of(p);
    if (st == FOLIO_OK)
        printf(" %10.2f us %8.2f GB/s (%5.1f %%)", ns / 1e3, w.bytes / ns,
               100 * w.bytes / ns / c->read_rate);
    if (st == FOLIO_OK && w.flops > 0)
        printf(" %9.2f GFLOP/s", w.flops / ns);
    printf("\n");
    *(y->bad ? &c->failed : &c->passed) += 1;
    ck_unplace(p);
    folio_op_close(&op);
}

/* ---- the device's memory ----------------------------------------------------
 */

typedef struct stream {
    const float *from;
    float *to;
    float sum[64];
} stream;

static void read_part(void *user, int64_t first, int64_t last, int thread)
{
    stream *s = user;
    float sum[16] = {0};
    for (int64_t i = first * 1024; i < last * 1024; i += 16)
        for (int j = 0; j < 16; j++)
            sum[j] += s->from[i + j];
    for (int j = 0; j < 16; j++)
        s->sum[thread % 64] += sum[j];
}

static void copy_part(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    stream *s = user;
    memcpy(s->to + first * 1024, s->from + first * 1024,
           (size_t)(last - first) * 4096);
}

static folio_status stream_kernel(ck_ctx *c, const char *entry, folio_view from,
                                  folio_view to, size_t bytes, double *ns)
{
    folio_status st = FOLIO_OK;
    folio_kernel *k = NULL;
    double t[ROUNDS];
    folio_device_info d = {.size = sizeof d};
    folio_device_get_info(c->dev, &d);
    char options[40];
    uint32_t wg = 1;
    while (wg < 256 && wg * 2 <= d.max_work_group)
        wg *= 2;
    snprintf(options, sizeof options, "-DWG=%u", wg);
    const folio_kernel_spec spec = {entry, "common.clh bench.cl", options};
    FOLIO_TRY(folio_kernel_open(c->dev, &spec, &k));
    const folio_arg args[] = {folio_arg_view(from), folio_arg_view(to),
                              folio_arg_u64(bytes / 16)};
    const folio_grid grid = {
        .groups = {(size_t)d.compute_units * (c->gpu ? 16 : 4), 1, 1},
        .local = {wg, 1, 1}};
    for (int i = -1; i < ROUNDS; i++) {
        uint64_t start = folio_clock_ns();
        for (int j = 0; j < 5; j++)
            FOLIO_TRY(folio_launch(c->q, k, &grid, args, FOLIO_COUNT(args)));
        FOLIO_TRY(folio_queue_finish(c->q));
        if (i >= 0)
            t[i] = (double)(folio_clock_ns() - start) / 5;
    }
    *ns = median(t, ROUNDS);
fail:
    folio_kernel_close(&k);
    return st;
}

static void stream_host(ck_ctx *c, folio_view from, folio_view to, size_t bytes,
                        double *read_ns, double *copy_ns)
{
    double r[ROUNDS], w[ROUNDS];
    stream s = {.from = folio_view_host(from), .to = folio_view_host(to)};
    folio_thread_pool *pool = folio_device_threads(c->dev);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start = folio_clock_ns();
        folio_parallel_for(pool, (int64_t)(bytes / 4096), 64, read_part, &s);
        r[i] = (double)(folio_clock_ns() - start);
        start = folio_clock_ns();
        folio_parallel_for(pool, (int64_t)(bytes / 4096), 64, copy_part, &s);
        w[i] = (double)(folio_clock_ns() - start);
    }
    *read_ns = median(r, ROUNDS);
    *copy_ns = median(w, ROUNDS);
}

static folio_status measure_memory(ck_ctx *c)
{
    folio_status st = FOLIO_OK;
    folio_buf *from = NULL, *to = NULL;
    double read_ns = 0, copy_ns = 0;
    size_t bytes = STREAM_BYTES;
    while (bytes > folio_device_max_alloc(c->dev))
        bytes /= 2;
    FOLIO_TRY(folio_buf_open(c->dev, bytes, &from));
    FOLIO_TRY(folio_buf_open(c->dev, bytes, &to));
    folio_view vf = {from, 0}, vt = {to, 0};
    if (folio_device_is_host(c->dev)) {
        stream_host(c, vf, vt, bytes, &read_ns, &copy_ns);
    } else {
        FOLIO_TRY(stream_kernel(c, "bench_read", vf, vt, bytes, &read_ns));
        FOLIO_TRY(stream_kernel(c, "bench_copy", vf, vt, bytes, &copy_ns));
    }
    c->read_rate = (double)bytes / read_ns;
    printf("memory: %.1f GB/s read, %.1f GB/s copied (read and written); "
           "percentages are of the read rate\n",
           c->read_rate, 2 * (double)bytes / copy_ns);
fail:
    folio_buf_close(&from);
    folio_buf_close(&to);
    return st;
}

void ck_bench_dump(ck_ctx *c)
{
    static const folio_kernel_spec specs[] = {
        {"bench_read", "common.clh bench.cl", "-DWG=64"},
        {"measure_read", "common.clh measure.cl", "-DMEASURE_READ -DWG=64"},
        {"measure_read", "common.clh measure.cl",
         "-DMEASURE_READ -DMEASURE_STRETCH -DWG=64"},
        {"measure_fma", "common.clh measure.cl",
         "-DMEASURE_FMA -DLANES=2 -DWG=64"},
        {"measure_mma", "common.clh measure.cl", "-DMEASURE_MMA -DWG=64"},
    };
    for (size_t i = 0; i < FOLIO_COUNT(specs); i++) {
        folio_kernel *k = NULL;
        c->failed += folio_kernel_open(c->dev, &specs[i], &k) != FOLIO_OK;
        folio_kernel_close(&k);
    }
}

int ck_bench(ck_ctx *c)
{
    c->bench = true;
    folio_status st = measure_memory(c);
    if (st != FOLIO_OK) {
        printf("FAILED: the memory's rate: %s: %s\n", folio_status_name(st),
               c->log);
        c->failed++;
    } else if (c->bench_attn) {
        ck_bench_attn(c);
    } else if (c->bench_linear) {
        ck_bench_linear(c);
    } else if (c->bench_step) {
        ck_bench_step(c);
    } else {
        ck_run_all(c);
    }
    printf("%d passed, %d failed, 0 skipped\n", c->passed, c->failed);
    return c->failed;
}
