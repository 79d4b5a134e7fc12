/* bench_attn.c: attention on the shapes that others publish: 32 query and 8 KV
 * heads, f16 KV in shuffled blocks of 16, decode at several loads and whole
 * causal prompts. Times are of the op, merge included. The pool repeats one
 * piece of random numbers, so that it is made quickly whatever its size; some
 * outputs are compared with sums in double over the same numbers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "check/check.h"
#include "ops/kv_host.h"

enum { HEADS = 32, KV_HEADS = 8, BLOCK = 16, TRIES = 7, SAMPLES = 24 };

/* Launches of a round last about so long. */
#define ROUND_NS 20000000.0
/* The piece that a pool repeats, in whole blocks of any head size here. */
#define PIECE_BYTES ((size_t)8 << 20)
/* Products that the samples of a case may cost. */
#define MOST_PRODUCTS 3e7

typedef struct shape {
    int32_t hd, batch, ctx;
    bool prefill;
} shape;

static const shape shapes[] = {
    {128, 1, 4096, false},  {128, 1, 32768, false}, {128, 8, 4096, false},
    {128, 64, 4096, false}, {128, 8, 32768, false}, {128, 32, 1024, false},
    {64, 1, 4096, false},   {64, 1, 32768, false},  {64, 8, 4096, false},
    {64, 64, 4096, false},  {64, 8, 32768, false},  {64, 32, 1024, false},
    {128, 1, 2048, true},   {128, 1, 8192, true},   {64, 1, 2048, true},
    {64, 1, 8192, true},
};

/* Everything of one shape that variants share. */
typedef struct bed {
    const shape *s;
    int32_t n_tok, n_blocks;
    int32_t *q_start, *kv_len, *table_start, *tables;
    float *q;
    uint16_t *piece;
    folio_buf *k, *v, *q_buf, *out, *ints, *lists, *scratch;
    folio_attn_args args;
} bed;

static void close_bed(bed *b)
{
    folio_buf_close(&b->k);
    folio_buf_close(&b->v);
    folio_buf_close(&b->q_buf);
    folio_buf_close(&b->out);
    folio_buf_close(&b->ints);
    folio_buf_close(&b->lists);
    folio_buf_close(&b->scratch);
    free(b->q_start);
    free(b->kv_len);
    free(b->table_start);
    free(b->tables);
    free(b->q);
    free(b->piece);
    memset(b, 0, sizeof *b);
}

static folio_status fill_pool(ck_ctx *c, bed *b, folio_buf **buf, size_t bytes)
{
    FOLIO_RETURN_IF(folio_buf_open(c->dev, bytes, buf));
    for (size_t at = 0; at < bytes; at += PIECE_BYTES)
        FOLIO_RETURN_IF(folio_queue_write(c->q, (folio_view){*buf, at},
                                          b->piece,
                                          FOLIO_MIN(PIECE_BYTES, bytes - at)));
    return FOLIO_OK;
}

/* One buffer of all the batch's integers. */
static folio_status put_ints(ck_ctx *c, bed *b)
{
    folio_attn_work *w = &b->args.work;
    const size_t n = (size_t)b->s->batch;
    const struct {
        const int32_t *from;
        size_t n;
        folio_view *view;
    } part[] = {{b->q_start, n + 1, &w->q_start},
                {b->kv_len, n, &w->kv_len},
                {b->table_start, n + 1, &w->table_start},
                {b->tables, (size_t)b->n_blocks, &w->tables}};
    size_t at = 0, total = 0;
    for (size_t i = 0; i < FOLIO_COUNT(part); i++)
        total += folio_align_up(part[i].n * sizeof(int32_t), 64);
    FOLIO_RETURN_IF(folio_buf_open(c->dev, total, &b->ints));
    for (size_t i = 0; i < FOLIO_COUNT(part); i++) {
        *part[i].view = (folio_view){b->ints, at};
        FOLIO_RETURN_IF(folio_queue_write(c->q, *part[i].view, part[i].from,
                                          part[i].n * sizeof(int32_t)));
        at += folio_align_up(part[i].n * sizeof(int32_t), 64);
    }
    return FOLIO_OK;
}

static folio_status open_bed(ck_ctx *c, const shape *s, bed *b)
{
    ck_rng r = ck_rng_make(c->seed, "bench_attn");
    const size_t n = (size_t)s->batch;
    const int32_t per_seq = (int32_t)folio_div_up(s->ctx, BLOCK);
    memset(b, 0, sizeof *b);
    b->s = s;
    b->n_tok = s->prefill ? s->batch * s->ctx : s->batch;
    b->n_blocks = s->batch * per_seq;
    b->q_start = folio_calloc(n + 1, sizeof *b->q_start);
    b->kv_len = folio_calloc(n, sizeof *b->kv_len);
    b->table_start = folio_calloc(n + 1, sizeof *b->table_start);
    b->tables = folio_calloc((size_t)b->n_blocks, sizeof *b->tables);
    const size_t width = (size_t)HEADS * (size_t)s->hd;
    const size_t q_bytes = (size_t)b->n_tok * width * sizeof(float);
    b->q = folio_calloc(q_bytes, 1);
    b->piece = folio_calloc(PIECE_BYTES, 1);
    if (!b->q_start || !b->kv_len || !b->table_start || !b->tables || !b->q ||
        !b->piece)
        return FOLIO_E_NOMEM;
    for (size_t i = 0; i < PIECE_BYTES / 2; i++)
        b->piece[i] = folio_f32_to_f16(ck_uniform(&r, -1, 1));
    ck_fill(&r, b->q, q_bytes / sizeof(float), -2, 2);
    for (int32_t i = 0; i < b->n_blocks; i++)
        b->tables[i] = i;
    ck_shuffle(&r, b->tables, b->n_blocks);
    for (int32_t i = 0; i < s->batch; i++) {
        b->kv_len[i] = s->ctx;
        b->q_start[i + 1] = b->q_start[i] + (s->prefill ? s->ctx : 1);
        b->table_start[i + 1] = b->table_start[i] + per_seq;
    }
    b->args =
        (folio_attn_args){.q_stride = (int32_t)width,
                          .out_stride = (int32_t)width,
                          .n_tok = b->n_tok,
                          .heads = HEADS,
                          .scale = (float)(1.0 / sqrt(s->hd)),
                          .kv = {.type = FOLIO_KV_F16,
                                 .layout = {.xk = 8, .yk = 1, .xv = 8, .yv = 1},
                                 .n_blocks = b->n_blocks,
                                 .block_size = BLOCK,
                                 .kv_heads = KV_HEADS,
                                 .head_dim = s->hd}};
    folio_kv_ref *kv = &b->args.kv;
    const size_t bytes = (size_t)b->n_blocks * folio_kv_block_bytes(kv);
    FOLIO_RETURN_IF(fill_pool(c, b, &b->k, bytes));
    FOLIO_RETURN_IF(fill_pool(c, b, &b->v, bytes));
    kv->k = (folio_kv_plane){.buf = {b->k}, .n_buf = 1, .seg_shift = 31};
    kv->v = (folio_kv_plane){.buf = {b->v}, .n_buf = 1, .seg_shift = 31};
    FOLIO_RETURN_IF(folio_buf_open(c->dev, q_bytes, &b->q_buf));
    FOLIO_RETURN_IF(folio_buf_open(c->dev, q_bytes, &b->out));
    b->args.q = (folio_view){b->q_buf, 0};
    b->args.out = (folio_view){b->out, 0};
    FOLIO_RETURN_IF(folio_queue_write(c->q, b->args.q, b->q, q_bytes));
    b->args.work.n_seq = s->batch;
    b->args.work.max_kv = s->ctx;
    return put_ints(c, b);
}

/* ---- what should come out --------------------------------------------------
 */

static double pool_value(const bed *b, int32_t seq, int32_t pos, int32_t kvh,
                         int32_t d)
{
    const uint32_t hd = (uint32_t)b->s->hd;
    const int32_t *table = b->tables + b->table_start[seq];
    const size_t tile = (size_t)table[pos / BLOCK] * KV_HEADS + (size_t)kvh;
    const size_t at =
        tile * BLOCK * hd +
        folio_kv_index((uint32_t)(pos % BLOCK), (uint32_t)d, BLOCK, 8, 1);
    return (double)folio_f16_to_f32(b->piece[at % (PIECE_BYTES / 2)]);
}

/* Row `want` of one token and head; K and V hold the same numbers. */
static void sum_row(const bed *b, int32_t tok, int32_t head, double *want)
{
    const int32_t hd = b->s->hd, kvh = head / (HEADS / KV_HEADS);
    const int32_t seq = b->s->prefill ? tok / b->s->ctx : tok;
    const int32_t pos = b->s->prefill ? tok % b->s->ctx : b->s->ctx - 1;
    const float *q = b->q + ((size_t)tok * HEADS + (size_t)head) * (size_t)hd;
    double sum = 0;
    memset(want, 0, (size_t)hd * sizeof *want);
    for (int32_t key = 0; key <= pos; key++) {
        double s = 0;
        for (int32_t d = 0; d < hd; d++)
            s += (double)q[d] * pool_value(b, seq, key, kvh, d);
        const double p = exp(s * (double)b->args.scale);
        sum += p;
        for (int32_t d = 0; d < hd; d++)
            want[d] += p * pool_value(b, seq, key, kvh, d);
    }
    for (int32_t d = 0; d < hd; d++)
        want[d] /= sum;
}

/* The largest error as a share of the largest wanted value. */
static folio_status judge(ck_ctx *c, const bed *b, double *share)
{
    double want[256], error = 0, most = 0;
    float got[256];
    const int32_t hd = b->s->hd;
    ck_rng r = ck_rng_make(c->seed, "samples");
    int n = (int)(MOST_PRODUCTS / ((double)b->s->ctx * hd * 2));
    n = FOLIO_MAX(FOLIO_MIN(n, SAMPLES), 4);
    for (int i = 0; i < n; i++) {
        const int32_t tok = i ? ck_below(&r, b->n_tok) : b->n_tok - 1;
        const int32_t head = ck_below(&r, HEADS);
        const size_t at = ((size_t)tok * HEADS + (size_t)head) * (size_t)hd;
        sum_row(b, tok, head, want);
        FOLIO_RETURN_IF(
            folio_queue_read(c->q, (folio_view){b->out, at * sizeof(float)},
                             got, (size_t)hd * sizeof(float)));
        for (int32_t d = 0; d < hd; d++) {
            const double e = fabs((double)got[d] - want[d]);
            most = fmax(most, fabs(want[d]));
            error = e <= error ? error : e; /* a NaN stays */
        }
    }
    *share = error / most;
    return FOLIO_OK;
}

/* ---- one variant ------------------------------------------------------------
 */

folio_status ck_bench_plan(ck_ctx *c, const folio_op *attn, int32_t n_tok,
                           const int32_t *q_start, const int32_t *kv_len,
                           folio_attn_work *w, folio_buf **lists)
{
    folio_status st = FOLIO_OK;
    folio_attn_plan_params p;
    folio_attn_plan_bounds cap;
    folio_attn_plan_counts n = {0};
    int32_t *list = NULL;
    folio_attn_plan_params_of(attn, &p);
    FOLIO_RETURN_IF(
        folio_attn_plan_bound(&p, n_tok, w->n_seq, w->max_kv, &cap));
    const size_t n_e = (size_t)cap.entries * FOLIO_ATTN_ENTRY_INTS;
    const size_t n_m = (size_t)cap.merges * FOLIO_ATTN_MERGE_INTS;
    const size_t n_t = (size_t)cap.tiles * FOLIO_ATTN_TILE_INTS;
    const size_t bytes = (n_e + n_m + n_t + 1) * sizeof *list;
    list = folio_calloc(bytes, 1);
    if (!list)
        return FOLIO_E_NOMEM;
    FOLIO_TRY(folio_attn_plan_build(&p, w->n_seq, q_start, kv_len, &cap, list,
                                    list + n_e, list + n_e + n_m, &n));
    folio_buf_close(lists);
    FOLIO_TRY(folio_buf_open(c->dev, bytes, lists));
    w->entries = (folio_view){*lists, 0};
    w->merges = (folio_view){*lists, n_e * sizeof *list};
    w->tiles = (folio_view){*lists, (n_e + n_m) * sizeof *list};
    FOLIO_TRY(folio_queue_write(c->q, w->entries, list, bytes));
    w->n_entries = n.n_entries;
    w->n_merges = n.n_merges;
    w->n_tiles = n.n_tiles;
    w->n_partials = n.n_partials;
fail:
    free(list);
    return st;
}

static folio_status open_scratch(ck_ctx *c, bed *b, const folio_op *op)
{
    const size_t bytes = FOLIO_MAX(folio_op_scratch_bytes(op), 64);
    folio_buf_close(&b->scratch);
    FOLIO_RETURN_IF(folio_buf_open(c->dev, bytes, &b->scratch));
    b->args.scratch = (folio_view){b->scratch, 0};
    return FOLIO_OK;
}

static folio_status launches(ck_ctx *c, folio_op *op, const bed *b, int n,
                             double *ns)
{
    const uint64_t start = folio_clock_ns();
    for (int i = 0; i < n; i++)
        FOLIO_RETURN_IF(folio_op_run(op, c->q, &b->args));
    FOLIO_RETURN_IF(folio_queue_finish(c->q));
    *ns = (double)(folio_clock_ns() - start) / n;
    return FOLIO_OK;
}

/* Median of several rounds. */
static folio_status time_it(ck_ctx *c, folio_op *op, const bed *b, double *ns)
{
    double t[TRIES], once;
    FOLIO_RETURN_IF(launches(c, op, b, 3, &once));
    const double fit = ROUND_NS / FOLIO_MAX(once, 1.0);
    const int n = (int)FOLIO_MAX(FOLIO_MIN(fit, 500.0), 1.0);
    const int rounds = once > 3e8 ? 1 : TRIES;
    for (int i = 0; i < rounds; i++) {
        FOLIO_RETURN_IF(launches(c, op, b, n, &t[i]));
        for (int j = i; j > 0 && t[j] < t[j - 1]; j--) {
            const double x = t[j];
            t[j] = t[j - 1];
            t[j - 1] = x;
        }
    }
    *ns = t[rounds / 2];
    return FOLIO_OK;
}

static void print_rate(const ck_ctx *c, const bed *b, double ns, double share)
{
    const shape *s = b->s;
    if (s->prefill) {
        const double keys = (double)s->ctx * (s->ctx + 1) / 2 * s->batch;
        printf(" %10.2f us %8.1f TFLOP/s", ns / 1e3,
               4.0 * HEADS * s->hd * keys / ns / 1e3);
    } else {
        const double bytes =
            2.0 * b->n_blocks * (double)folio_kv_block_bytes(&b->args.kv);
        printf(" %10.2f us %8.1f GB/s (%5.1f %%) %d merges", ns / 1e3,
               bytes / ns, 100 * bytes / ns / c->read_rate,
               b->args.work.n_merges);
    }
    printf(", error %.1e\n", share);
}

static folio_status try_one(ck_ctx *c, bed *b, const folio_variant *var,
                            const char *tune)
{
    folio_status st = FOLIO_OK;
    folio_op *op = NULL;
    double ns = 0, share = 0;
    const folio_op_params prm = {.exact = !(var->flags & FOLIO_VAR_INEXACT),
                                 .tune = tune};
    b->args.work.n_entries = b->args.work.n_merges = 0;
    b->args.work.n_tiles = b->args.work.n_partials = 0;
    if (folio_variant_refuse(c->dev, var, &prm, &b->args))
        return FOLIO_OK;
    printf("%-10s %-7s hd %3d %3d x %5d %-36s", var->name,
           b->s->prefill ? "prefill" : "decode", b->s->hd, b->s->batch,
           b->s->ctx, tune ? tune : "");
    fflush(stdout);
    FOLIO_TRY(folio_variant_open(c->dev, var, &prm, &b->args, &op));
    FOLIO_TRY(ck_bench_plan(c, op, b->n_tok, b->q_start, b->kv_len,
                            &b->args.work, &b->lists));
    FOLIO_TRY(open_scratch(c, b, op));
    FOLIO_TRY(
        folio_queue_fill(c->q, b->args.out, 0xff, folio_buf_bytes(b->out)));
    FOLIO_TRY(folio_op_run(op, c->q, &b->args));
    FOLIO_TRY(judge(c, b, &share));
    FOLIO_TRY(time_it(c, op, b, &ns));
    print_rate(c, b, ns, share);
    const bool good = share <= 5e-3;
    *(good ? &c->passed : &c->failed) += 1;
    if (!good)
        printf("FAILED: %s: error %g of the largest value > 5e-3\n", var->name,
               share);
fail:
    folio_op_close(&op);
    return st;
}

static void run_one(ck_ctx *c, bed *b, const folio_variant *var,
                    const char *tune)
{
    if (c->dead)
        return;
    const folio_status st = try_one(c, b, var, tune);
    if (st == FOLIO_OK)
        return;
    printf("\nFAILED: %s: %s: %s\n", var->name, folio_status_name(st), c->log);
    c->failed++;
    c->dead = st == FOLIO_E_DEVICE;
}

/* Settings that name MMA_WARPS are for prefill, others for decode. */
static void run_settings(ck_ctx *c, bed *b, const folio_variant *var)
{
    char one[200];
    const char *p = c->tune;
    if (!p)
        run_one(c, b, var, NULL);
    while (p && *p) {
        const size_t n = strcspn(p, ";");
        snprintf(one, sizeof one, "%.*s", (int)n, p);
        p += n + (p[n] == ';');
        if ((strstr(one, "MMA_WARPS") != NULL) == b->s->prefill)
            run_one(c, b, var, one);
    }
}

static bool is_wanted(const ck_ctx *c, const folio_variant *var)
{
    if (var->op != FOLIO_OP_ATTN || var->where != FOLIO_ON_CL)
        return false;
    if (!c->only)
        return !(var->flags & FOLIO_VAR_FLOOR);
    const size_t n = strlen(var->name);
    for (const char *p = c->only; *p;) {
        const size_t len = strcspn(p, ",");
        if (len == n && strncmp(p, var->name, n) == 0)
            return true;
        p += len + (p[len] == ',');
    }
    return false;
}

void ck_bench_attn(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(shapes) && !c->dead; i++) {
        bed b;
        folio_status st = open_bed(c, &shapes[i], &b);
        for (size_t v = 0; v < c->n_rows && st == FOLIO_OK; v++) {
            if (is_wanted(c, &c->rows[v]))
                run_settings(c, &b, &c->rows[v]);
        }
        if (st != FOLIO_OK) {
            printf("FAILED: %d x %d: %s: %s\n", shapes[i].batch, shapes[i].ctx,
                   folio_status_name(st), c->log);
            c->failed++;
        }
        close_bed(&b);
    }
}
