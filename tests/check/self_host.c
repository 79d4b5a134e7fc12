/* self_host.c: host variants that are wrong on purpose, in plain C. */
#include "check/self.h"

#include <math.h>

#include "ops/kv_host.h"

static float *row_of(folio_view v, int32_t row, int32_t stride)
{
    return (float *)folio_view_host(v) + (size_t)row * (size_t)stride;
}

static bool is(const folio_op *op, char letter)
{
    return ck_wrong_options(op->var)[0] == letter;
}

static folio_status run_add(folio_op *op, folio_queue *q, const void *args)
{
    (void)q;
    const folio_add_args *a = args;
    const float *x = folio_view_host(a->x);
    float *y = folio_view_host(a->y);
    for (int64_t i = 0; i < a->n; i++)
        y[i] += x[i];
    if (is(op, 'o'))
        y[a->n] = 1.0f;
    return FOLIO_OK;
}

static folio_status run_act(folio_op *op, folio_queue *q, const void *args)
{
    (void)q;
    const folio_act_mul_args *a = args;
    for (int32_t t = 0; t < a->n_tok; t++) {
        float *gate = row_of(a->gate, t, a->gate_stride);
        const float *up = row_of(a->up, t, a->up_stride);
        float *out = row_of(a->out, t, a->out_stride);
        int32_t dim = a->dim;
        if (is(op, 'u') && t == a->n_tok - 1)
            dim--;
        for (int32_t i = 0; i < dim; i++) {
            double x = (double)gate[i], z = x;
            if (a->act == FOLIO_ACT_GELU_TANH)
                z = 1.59576912160573 * (x + 0.044715 * x * x * x);
            float y = (float)(x / (1 + exp(-fmax(z, -700.0))));
            if (is(op, 'i'))
                gate[i] = y;
            out[i] = y * up[i];
        }
    }
    return FOLIO_OK;
}

static folio_status run_norm(folio_op *op, folio_queue *q, const void *args)
{
    (void)q;
    const folio_rmsnorm_args *a = args;
    const float *w = folio_view_host(a->w);
    bool backward = (is(op, 'b') && a->n_rows > 1) ||
                    (is(op, 'r') && op->geo[0]++ % 2 != 0);
    for (int32_t r = 0; r < a->n_rows; r++) {
        const float *x = row_of(a->x, r, a->x_stride);
        float *out = row_of(a->out, r, a->out_stride);
        float *res = a->res.buf ? row_of(a->res, r, a->dim) : NULL;
        float sum = 0;
        for (int32_t i = 0; res && i < a->dim; i++)
            res[i] += x[i];
        const float *h = res ? res : x;
        for (int32_t n = 0; n < a->dim; n++) {
            int32_t i = backward ? a->dim - 1 - n : n;
            sum += h[i] * h[i];
        }
        float inv = 1.0f / sqrtf(sum / (float)a->dim + a->eps);
        for (int32_t i = 0; i < a->dim; i++)
            out[i] = w[i] * (h[i] * inv);
    }
    return FOLIO_OK;
}

/* Element (key j, dim d) of K or V through the table. */
static float kv_at(const folio_kv_ref *kv, const folio_kv_plane *plane,
                   bool is_v, int32_t block, int32_t t, int32_t head, int32_t d)
{
    const folio_kv_layout *l = &kv->layout;
    unsigned bs = (unsigned)kv->block_size;
    size_t tile = (size_t)kv->block_size * (size_t)kv->head_dim *
                  folio_kv_type_bytes(kv->type);
    return folio_kv_get(
        kv->type, folio_kv_block_host(kv, plane, block) + (size_t)head * tile,
        folio_kv_index((unsigned)t, (unsigned)d, bs,
                       (unsigned)(is_v ? l->xv : l->xk),
                       (unsigned)(is_v ? l->yv : l->yk)));
}

typedef struct query {
    const folio_attn_args *a;
    const float *q;
    const int32_t *table;
    int32_t head, first, last, end;
} query;

static double logit(const query *w, int32_t j)
{
    const folio_kv_ref *kv = &w->a->kv;
    double dot = 0;
    for (int32_t d = 0; d < kv->head_dim; d++)
        dot += (double)w->q[d] * (double)kv_at(kv, &kv->k, false,
                                               w->table[j / kv->block_size],
                                               j % kv->block_size, w->head, d);
    dot *= (double)w->a->scale;
    return w->a->softcap > 0
               ? (double)w->a->softcap * tanh(dot / (double)w->a->softcap)
               : dot;
}

static void attend(const folio_op *op, const query *w, float *out)
{
    const folio_kv_ref *kv = &w->a->kv;
    double top = -3e38, sum = 0;
    double acc[256] = {0};
    for (int32_t j = w->first; j <= w->last; j++)
        top = fmax(top, logit(w, j));
    for (int32_t j = w->first; j < w->end; j++) {
        int32_t block = w->table[j / kv->block_size];
        block = FOLIO_MIN(block, kv->n_blocks - 1);
        double p = j <= w->last ? exp(logit(w, j) - top) : 0;
        if (is(op, 'p'))
            p += block * 1e-7;
        for (int32_t d = 0; d < kv->head_dim; d++)
            acc[d] += p * (double)kv_at(kv, &kv->v, true, block,
                                        j % kv->block_size, w->head, d);
        sum += p;
    }
    for (int32_t d = 0; d < kv->head_dim; d++)
        out[d] = (float)(acc[d] / sum);
}

static folio_status run_attn(folio_op *op, folio_queue *q, const void *args)
{
    (void)q;
    const folio_attn_args *a = args;
    const folio_attn_work *w = &a->work;
    const int32_t *q_start = folio_view_host(w->q_start);
    const int32_t *kv_len = folio_view_host(w->kv_len);
    const int32_t *table_start = folio_view_host(w->table_start);
    const int32_t *tables = folio_view_host(w->tables);
    int32_t g = a->heads / a->kv.kv_heads, bs = a->kv.block_size;
    for (int32_t s = 0; s < w->n_seq; s++) {
        for (int32_t t = q_start[s]; t < q_start[s + 1]; t++) {
            int32_t last = kv_len[s] - (q_start[s + 1] - t), end = last + 1;
            if (is(op, 'n'))
                end = (last / bs + 1) * bs;
            if (is(op, 't'))
                end = (kv_len[s] / bs + 1) * bs;
            for (int32_t h = 0; h < a->heads; h++) {
                if (is(op, 'l') && h % g >= g / 2 * 2)
                    continue;
                size_t at = (size_t)h * (size_t)a->kv.head_dim;
                query one = {.a = a,
                             .q = row_of(a->q, t, a->q_stride) + at,
                             .table = tables + table_start[s],
                             .head = h / g,
                             .last = last,
                             .end = end};
                if (a->window > 0)
                    one.first = FOLIO_MAX(last - a->window + 1, 0);
                attend(op, &one, row_of(a->out, t, a->out_stride) + at);
            }
        }
    }
    return FOLIO_OK;
}

static const folio_variant_fns add = {.run = run_add};
static const folio_variant_fns act = {.run = run_act};
static const folio_variant_fns norm = {.run = run_norm};
static const folio_variant_fns attn = {.run = run_attn};

#define ROW(OP, vname, vfns, letter, what)                                     \
    {                                                                          \
        .var = {.op = FOLIO_OP_##OP,                                           \
                .name = vname,                                                 \
                .where = FOLIO_ON_HOST,                                        \
                .fragments = "",                                               \
                .flags = FOLIO_VAR_BATCH_INVARIANT,                            \
                .fns = &vfns},                                                 \
        .bad = what, .options = letter                                         \
    }

static const ck_wrong rows[] = {
    ROW(ADD, "right_add", add, "", 0),
    ROW(ADD, "wrong_overrun", add, "o", CK_BAD_GUARD),
    ROW(ACT_MUL, "right_act", act, "", 0),
    ROW(ACT_MUL, "wrong_unwritten", act, "u", CK_BAD_UNWRITTEN),
    ROW(ACT_MUL, "wrong_input", act, "i", CK_BAD_INPUT),
    ROW(RMSNORM, "right_norm", norm, "", 0),
    ROW(RMSNORM, "wrong_batch_sum", norm, "b", CK_BAD_BATCH),
    ROW(RMSNORM, "wrong_order", norm, "r", CK_BAD_REPEAT),
    ROW(ATTN, "right_attn", attn, "", 0),
    ROW(ATTN, "wrong_nan_leak", attn, "n", CK_BAD_NAN),
    ROW(ATTN, "wrong_table_end", attn, "t", CK_BAD_NAN),
    ROW(ATTN, "wrong_last_head", attn, "l", CK_BAD_UNWRITTEN),
    ROW(ATTN, "wrong_place", attn, "p", CK_BAD_PLACE),
};

const ck_wrong *ck_wrong_host(size_t *n)
{
    *n = FOLIO_COUNT(rows);
    return rows;
}
