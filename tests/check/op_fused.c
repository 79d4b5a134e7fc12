/* op_fused.c: problems of norm_linear, qkv and gate_up. What the reference may
 * differ by is worked out from the sums of the products' terms. */
#include "check/check.h"

#include "ops/pack.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define EPS_NORM 1e-5f

/* The tokens behind the norm, and one product of them. */
typedef struct fused_rows {
    size_t tok, dim;
    double *h; /* [tok, dim] */
} fused_rows;

typedef struct fused_sum {
    size_t rows;
    double *y;     /* [tok, rows]: the product */
    double *terms; /* the same, of absolute values */
} fused_sum;

static double *numbers(size_t n)
{
    double *p = folio_calloc(n + 1, sizeof *p);
    if (!p) {
        fprintf(stderr, "folio-check: out of memory\n");
        exit(2);
    }
    return p;
}

/* Rounding of a sum in any order, of norm and product; `more` for what comes
 * behind it. */
static double allow(const fused_rows *r, double more)
{
    return 10 + 0.5 * sqrt((double)r->dim) + more;
}

static void fill_row(ck_rng *r, ck_fill_kind fill, float *x, size_t n)
{
    float most = fill == CK_FILL_tiny   ? 1e-6f
                 : fill == CK_FILL_zero ? 0.0f
                 : fill == CK_FILL_huge ? 1e8f
                                        : 2.0f;
    ck_fill(r, x, n, -most, most);
}

/* x and the norm's weight, and what comes out of the norm. */
static fused_rows add_in(ck_problem *p, ck_rng *r, folio_norm_in *in, int tok,
                         int dim, int pad, ck_fill_kind fill, bool gather)
{
    fused_rows out = {(size_t)tok, (size_t)dim, NULL};
    size_t n = gather ? out.tok + 2 : out.tok;
    *in = (folio_norm_in){
        .dim = dim, .x_stride = dim + (gather ? 0 : pad), .eps = EPS_NORM};
    ck_slot *x = gather
                     ? ck_slot_add(p, "x", CK_IN, CK_F32, n * out.dim, &in->x)
                     : ck_slot_add_rows(p, "x", CK_IN, CK_F32, n, out.dim,
                                        (size_t)in->x_stride, &in->x);
    for (size_t i = 0; i < n; i++)
        fill_row(r, fill, ck_f32(x) + i * (size_t)in->x_stride, out.dim);
    ck_slot *norm = ck_slot_add(p, "norm", CK_IN, CK_F32, out.dim, &in->norm);
    ck_fill(r, ck_f32(norm), out.dim, -2.0f, 2.0f);
    out.h = numbers(out.tok * out.dim);
    for (size_t t = 0; t < out.tok; t++) {
        /* Gathered rows come in reverse order. */
        const float *row =
            ck_f32(x) + (gather ? n - 1 - t : t) * (size_t)in->x_stride;
        double sum = 0;
        for (size_t i = 0; i < out.dim; i++)
            sum += (double)row[i] * (double)row[i];
        double inv = 1 / sqrt(sum / dim + (double)EPS_NORM);
        for (size_t i = 0; i < out.dim; i++)
            out.h[t * out.dim + i] =
                (double)ck_f32(norm)[i] * (double)row[i] * inv;
    }
    return out;
}

static ck_slot *add_matrix(ck_problem *p, ck_rng *r, int i, const char *name,
                           folio_type type, int rows, size_t dim, bool tiny)
{
    p->fwv[i] = (folio_weight_view){.rows = rows};
    p->fw[i] = (folio_weight){.type = type,
                              .rows = rows,
                              .cols = (int64_t)dim,
                              .views = &p->fwv[i],
                              .n_views = 1};
    ck_slot *s = ck_slot_add(p, name, CK_IN, CK_BYTES,
                             (size_t)rows * folio_type_row_bytes(type, dim),
                             &p->fwv[i].view);
    s->align = ck_weight_align(type);
    ck_fill_weights(r, type, s->init, s->bytes, tiny);
    return s;
}

static ck_slot *add_bias(ck_problem *p, ck_rng *r, const char *name, int rows,
                         folio_view *into)
{
    ck_slot *s = ck_slot_add(p, name, CK_IN, CK_F32, (size_t)rows, into);
    s->optional = true;
    ck_fill(r, ck_f32(s), (size_t)rows, -1.0f, 1.0f);
    return s;
}

static fused_sum multiply(const fused_rows *in, folio_type type,
                          const ck_slot *w, size_t rows, const ck_slot *bias)
{
    fused_sum s = {rows, numbers(in->tok * rows), numbers(in->tok * rows)};
    size_t row_bytes = folio_type_row_bytes(type, in->dim);
    float *v = folio_calloc(in->dim + 1, sizeof *v);
    for (size_t r = 0; v && r < rows; r++) {
        folio_dequant(type, w->init + r * row_bytes, (int64_t)in->dim, v);
        for (size_t t = 0; t < in->tok; t++) {
            double y = bias ? (double)ck_f32(bias)[r] : 0, terms = fabs(y);
            for (size_t i = 0; i < in->dim; i++) {
                double term = (double)v[i] * in->h[t * in->dim + i];
                y += term;
                terms += fabs(term);
            }
            s.y[t * rows + r] = y;
            s.terms[t * rows + r] = terms;
        }
    }
    free(v);
    return s;
}

static void drop(fused_sum *s)
{
    free(s->y);
    free(s->terms);
}

/* ---- norm_linear -----------------------------------------------------------
 */

typedef struct norm_linear_case {
    ck_set set;
    const char *pick;
    folio_packing packing;
    folio_type type;
    int dim, parts, rows, tok, x_pad, y_pad, bias, gather;
    ck_fill_kind fill;
} norm_linear_case;

static const norm_linear_case norm_linear_cases[] = {
#define CHECK_NORM_LINEAR(set, pick, packing, type, dim, parts, rows, tok,     \
                          x_pad, y_pad, bias, gather, fill)                    \
    {CK_SET_##set,                                                             \
     #pick,                                                                    \
     FOLIO_PACK_##packing,                                                     \
     FOLIO_TYPE_##type,                                                        \
     dim,                                                                      \
     parts,                                                                    \
     rows,                                                                     \
     tok,                                                                      \
     x_pad,                                                                    \
     y_pad,                                                                    \
     bias,                                                                     \
     gather,                                                                   \
     CK_FILL_##fill},
#include "check/covering.def"
};

static void add_part(ck_problem *p, ck_rng *r, const norm_linear_case *k,
                     const fused_rows *in, int i)
{
    static const char *const w_names[] = {"w", "w 1", "w 2"};
    static const char *const b_names[] = {"bias", "bias 1", "bias 2"};
    static const char *const y_names[] = {"y", "y 1", "y 2"};
    folio_product *part = &p->args.norm_linear.part[i];
    int rows = i ? k->rows / 2 + i : k->rows;
    part->y_stride = rows + k->y_pad;
    ck_slot *w = add_matrix(p, r, i, w_names[i], k->type, rows, in->dim,
                            k->fill == CK_FILL_tiny);
    ck_slot *bias =
        k->bias ? add_bias(p, r, b_names[i], rows, &part->bias) : NULL;
    ck_slot *y =
        ck_slot_add_rows(p, y_names[i], CK_OUT, CK_F32, in->tok, (size_t)rows,
                         (size_t)part->y_stride, &part->y);
    part->w = &p->fw[i];
    y->rule = CK_NEAR;
    y->abs = 1e-30;
    y->c = allow(in, 0);
    if (k->set == CK_SET_B) {
        y->abs = y->rel = 1e-2; /* sanity; the sums of terms would take long */
        return;
    }
    y->scale = numbers(ck_slot_count(y));
    fused_sum s = multiply(in, k->type, w, (size_t)rows, bias);
    for (size_t t = 0; t < in->tok; t++)
        memcpy(y->scale + t * (size_t)part->y_stride,
               s.terms + t * (size_t)rows, (size_t)rows * sizeof *s.terms);
    drop(&s);
}

static void norm_linear_one(ck_ctx *c, const norm_linear_case *k)
{
    char name[150];
    snprintf(
        name, sizeof name,
        "norm_linear %s %s dim %d rows %d parts %d tok %d pads %d,%d%s%s %s",
        folio_pack_name(k->packing), folio_type_find((uint32_t)k->type)->name,
        k->dim, k->rows, k->parts, k->tok, k->x_pad, k->y_pad,
        k->bias ? " bias" : "", k->gather ? " gather" : "",
        ck_fill_name(k->fill));
    if (!ck_wanted(c, FOLIO_OP_NORM_LINEAR, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_NORM_LINEAR);
    folio_norm_linear_args *a = &p->args.norm_linear;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    p->pick = c->size == CK_FULL ? "all" : k->pick;
    fused_rows in =
        add_in(p, &r, &a->in, k->tok, k->dim, k->x_pad, k->fill, k->gather);
    a->n_tok = k->tok;
    a->n_parts = k->parts;
    a->gather = k->gather;
    if (k->gather) {
        ck_slot *idx =
            ck_slot_add_rows(p, "idx", CK_IN, CK_I32, in.tok, 1, 1, &a->idx);
        for (int t = 0; t < k->tok; t++)
            ck_i32(idx)[t] = k->tok + 1 - t;
    }
    for (int i = 0; i < k->parts; i++)
        add_part(p, &r, k, &in, i);
    ck_slot_add(p, "scratch", CK_SCRATCH, CK_BYTES, 0, &a->scratch);
    free(in.h);
    /* The references read every packing; only their quick forms do not. */
    p->packing = k->packing;
    if (!c->bench)
        ck_pack_weight(p);
    ck_judge(c, p);
}

void ck_norm_linear(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(norm_linear_cases); i++)
        if (ck_in_size(c, norm_linear_cases[i].set))
            norm_linear_one(c, &norm_linear_cases[i]);
}

/* ---- qkv -------------------------------------------------------------------
 */

typedef struct qkv_case {
    ck_set set;
    const char *pick;
    folio_packing packing;
    folio_type type, v_type;
    int dim, hd, heads, kvh, bs, xk, xv, yv;
    folio_kv_type kv;
    int rot, interleaved, head_norm, bias, tok, pad, segs;
    ck_fill_kind fill;
} qkv_case;

static const qkv_case qkv_cases[] = {
#define CHECK_QKV(set, pick, packing, type, v_type, dim, hd, heads, kvh, bs,   \
                  xk, xv, yv, kv, rot, interleaved, head_norm, bias, tok, pad, \
                  segs, fill)                                                  \
    {CK_SET_##set,                                                             \
     #pick,                                                                    \
     FOLIO_PACK_##packing,                                                     \
     FOLIO_TYPE_##type,                                                        \
     FOLIO_TYPE_##v_type,                                                      \
     dim,                                                                      \
     hd,                                                                       \
     heads,                                                                    \
     kvh,                                                                      \
     bs,                                                                       \
     xk,                                                                       \
     xv,                                                                       \
     yv,                                                                       \
     FOLIO_KV_##kv,                                                            \
     rot,                                                                      \
     interleaved,                                                              \
     head_norm,                                                                \
     bias,                                                                     \
     tok,                                                                      \
     pad,                                                                      \
     segs,                                                                     \
     CK_FILL_##fill},
#include "check/covering.def"
};

/* What the norm of a head makes of the errors of its elements. */
static void spread_norm(fused_sum *s, size_t hd, const ck_slot *norm,
                        size_t tok)
{
    for (size_t at = 0; at < tok * s->rows; at += hd) {
        double sum = 0, most = 0;
        for (size_t i = at; i < at + hd; i++) {
            sum += s->y[i] * s->y[i];
            most = fmax(most, s->terms[i]);
        }
        double inv = 1 / sqrt(sum / (double)hd + (double)EPS_NORM);
        for (size_t i = at; i < at + hd; i++) {
            double w = fabs((double)ck_f32(norm)[i - at]);
            double out = w * fabs(s->y[i]) * inv;
            s->terms[i] = (w * s->terms[i] + out * most) * inv + out;
        }
    }
}

static double largest(const double *x, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, x[i]);
    return most;
}

/* A pair turns into sums of both. */
static void limit_q(const qkv_case *k, const fused_sum *s, size_t stride,
                    ck_slot *q)
{
    size_t hd = (size_t)k->hd, half = (size_t)k->rot / 2;
    q->scale = numbers(ck_slot_count(q));
    for (size_t t = 0; t < (size_t)k->tok; t++)
        for (size_t i = 0; i < s->rows; i++) {
            size_t d = i % hd, other = i;
            if (d < 2 * half && k->interleaved)
                other = d % 2 ? i - 1 : i + 1;
            else if (d < 2 * half)
                other = d < half ? i + half : i - half;
            q->scale[t * stride + i] = s->terms[t * s->rows + i];
            if (other != i)
                q->scale[t * stride + i] += s->terms[t * s->rows + other];
        }
}

static void limit_pool(ck_slot *const *segs, const qkv_case *k, double most)
{
    for (int i = 0; i < k->segs; i++) {
        segs[i]->rule = CK_NEAR;
        segs[i]->abs = most;
        if (k->kv == FOLIO_KV_F16) {
            segs[i]->abs += 0x1p-24;
            segs[i]->rel = 0x1p-10;
        }
    }
}

/* Distinct slots in random order; the second token is padding. */
static void fill_places(ck_problem *p, ck_rng *r, const qkv_case *k)
{
    folio_qkv_args *a = &p->args.qkv;
    ck_slot *slot = ck_slot_add_rows(p, "slot", CK_IN, CK_I32, (size_t)k->tok,
                                     1, 1, &a->slot);
    int32_t n = a->kv.n_blocks * a->kv.block_size;
    int32_t *all = folio_calloc((size_t)n, sizeof *all);
    for (int32_t i = 0; all && i < n; i++)
        all[i] = i;
    if (all)
        ck_shuffle(r, all, n);
    for (int t = 0; all && t < k->tok; t++)
        ck_i32(slot)[t] = t == 1 ? -1 : all[t];
    free(all);
    if (k->rot == 0)
        return;
    ck_slot *pos = ck_slot_add_rows(p, "pos", CK_IN, CK_I32, (size_t)k->tok, 1,
                                    1, &a->pos);
    for (int t = 0; t < k->tok; t++)
        ck_i32(pos)[t] = ck_below(r, a->n_pos);
    ck_i32(pos)[0] = a->n_pos - 1;
    ck_slot *table = ck_slot_add(p, "table", CK_IN, CK_F32,
                                 (size_t)a->n_pos * (size_t)k->rot, &a->table);
    for (int i = 0; i < a->n_pos * k->rot / 2; i++) {
        float turn = ck_uniform(r, 0, 6.28f);
        ck_f32(table)[2 * i] = cosf(turn);
        ck_f32(table)[2 * i + 1] = sinf(turn);
    }
}

static void qkv_limits(const ck_problem *p, const qkv_case *k,
                       const fused_rows *in, ck_slot *const w[3],
                       ck_slot *const bias[3], ck_slot *const norm[2],
                       ck_slot *q, const ck_pool *pool)
{
    const size_t kv_rows = (size_t)(k->kvh * k->hd);
    const size_t q_rows = (size_t)(k->heads * k->hd);
    if (k->set == CK_SET_B) {
        q->abs = q->rel = 1e-2;
        limit_pool(pool->k, k, 1e-2);
        limit_pool(pool->v, k, 1e-2);
        return;
    }
    double c = allow(in, k->head_norm ? 20 : 4) * 0x1p-23;
    fused_sum sq = multiply(in, k->type, w[0], q_rows, bias[0]);
    fused_sum sk = multiply(in, k->type, w[1], kv_rows, bias[1]);
    fused_sum sv = multiply(in, k->v_type, w[2], kv_rows, bias[2]);
    if (k->head_norm) {
        spread_norm(&sq, (size_t)k->hd, norm[0], in->tok);
        spread_norm(&sk, (size_t)k->hd, norm[1], in->tok);
    }
    q->c = c * 0x1p23;
    limit_q(k, &sq, (size_t)p->args.qkv.q_stride, q);
    limit_pool(pool->k, k, 2 * c * largest(sk.terms, in->tok * kv_rows));
    limit_pool(pool->v, k, c * largest(sv.terms, in->tok * kv_rows));
    drop(&sq);
    drop(&sk);
    drop(&sv);
}

static void qkv_one(ck_ctx *c, const qkv_case *k)
{
    char name[160];
    snprintf(
        name, sizeof name,
        "qkv %s %s,%s dim %d hd %d h %d/%d bs %d x %d,%d y %d %s rot "
        "%d%s%s%s tok %d pad %d segs %d %s",
        folio_pack_name(k->packing), folio_type_find((uint32_t)k->type)->name,
        folio_type_find((uint32_t)k->v_type)->name, k->dim, k->hd, k->heads,
        k->kvh, k->bs, k->xk, k->xv, k->yv,
        k->kv == FOLIO_KV_F16 ? "f16" : "f32", k->rot,
        k->interleaved ? " interleaved" : "", k->head_norm ? " head norm" : "",
        k->bias ? " bias" : "", k->tok, k->pad, k->segs, ck_fill_name(k->fill));
    if (!ck_wanted(c, FOLIO_OP_QKV, name))
        return;
    static const char *const w_names[] = {"wq", "wk", "wv"};
    static const char *const b_names[] = {"bq", "bk", "bv"};
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_QKV);
    folio_qkv_args *a = &p->args.qkv;
    ck_slot *w[3], *bias[3] = {NULL}, *norm[2] = {NULL};
    int rows[3] = {k->heads * k->hd, k->kvh * k->hd, k->kvh * k->hd};
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    p->pick = c->size == CK_FULL ? "all" : k->pick;
    fused_rows in =
        add_in(p, &r, &a->in, k->tok, k->dim, k->pad, k->fill, false);
    a->n_tok = k->tok;
    a->heads = k->heads;
    a->rot_dim = k->rot;
    a->n_pos = 37;
    a->interleaved = k->interleaved;
    a->head_norm = k->head_norm;
    a->q_stride = rows[0] + k->pad;
    a->kv =
        (folio_kv_ref){.type = k->kv,
                       .layout = folio_kv_layout_fit(
                           (folio_kv_layout){k->xk ? k->xk : k->hd, 1,
                                             k->xv ? k->xv : k->hd, k->yv},
                           k->hd, k->bs),
                       .n_blocks = ck_pool_blocks(k->tok / k->bs + 3, k->segs),
                       .block_size = k->bs,
                       .kv_heads = k->kvh,
                       .head_dim = k->hd};
    folio_view *const biases[] = {&a->bq, &a->bk, &a->bv};
    for (int i = 0; i < 3; i++) {
        w[i] = add_matrix(p, &r, i, w_names[i], i == 2 ? k->v_type : k->type,
                          rows[i], in.dim, k->fill == CK_FILL_tiny);
        if (k->bias)
            bias[i] = add_bias(p, &r, b_names[i], rows[i], biases[i]);
    }
    a->wq = &p->fw[0];
    a->wk = &p->fw[1];
    a->wv = &p->fw[2];
    for (int i = 0; k->head_norm && i < 2; i++) {
        norm[i] = ck_slot_add(p, i ? "k_norm" : "q_norm", CK_IN, CK_F32,
                              (size_t)k->hd, i ? &a->k_norm : &a->q_norm);
        ck_fill(&r, ck_f32(norm[i]), (size_t)k->hd, -2.0f, 2.0f);
    }
    ck_slot *q = ck_slot_add_rows(p, "q", CK_OUT, CK_F32, in.tok,
                                  (size_t)rows[0], (size_t)a->q_stride, &a->q);
    q->rule = CK_NEAR;
    q->abs = 1e-30;
    fill_places(p, &r, k);
    ck_pool pool = ck_add_pool(p, &a->kv, k->segs, CK_INOUT);
    ck_slot_add(p, "scratch", CK_SCRATCH, CK_BYTES, 0, &a->scratch);
    qkv_limits(p, k, &in, w, bias, norm, q, &pool);
    free(in.h);
    /* The references read every packing; only their quick forms do not. */
    p->packing = k->packing;
    if (!c->bench)
        ck_pack_weight(p);
    ck_judge(c, p);
}

void ck_qkv(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(qkv_cases); i++)
        if (ck_in_size(c, qkv_cases[i].set))
            qkv_one(c, &qkv_cases[i]);
}

/* ---- gate_up ---------------------------------------------------------------
 */

typedef struct gate_up_case {
    ck_set set;
    const char *pick;
    folio_packing packing;
    folio_type type, up_type;
    folio_act act;
    int dim, rows, tok, x_pad, out_pad;
    ck_fill_kind fill;
} gate_up_case;

static const gate_up_case gate_up_cases[] = {
#define CHECK_GATE_UP(set, pick, packing, type, up_type, act, dim, rows, tok,  \
                      x_pad, out_pad, fill)                                    \
    {CK_SET_##set,                                                             \
     #pick,                                                                    \
     FOLIO_PACK_##packing,                                                     \
     FOLIO_TYPE_##type,                                                        \
     FOLIO_TYPE_##up_type,                                                     \
     FOLIO_ACT_##act,                                                          \
     dim,                                                                      \
     rows,                                                                     \
     tok,                                                                      \
     x_pad,                                                                    \
     out_pad,                                                                  \
     CK_FILL_##fill},
#include "check/covering.def"
};

/* |act(g)|, and room for where it cancels; its slope is below 1.2. */
static void gate_limits(const fused_sum *g, const fused_sum *u, size_t tok,
                        size_t stride, ck_slot *out)
{
    out->scale = numbers(ck_slot_count(out));
    for (size_t t = 0; t < tok; t++)
        for (size_t i = 0; i < g->rows; i++) {
            size_t at = t * g->rows + i;
            double gate = fabs(g->y[at]), up = fabs(u->y[at]);
            out->scale[t * stride + i] =
                1.2 * up * g->terms[at] + gate * u->terms[at] + gate * up;
        }
}

static void gate_up_one(ck_ctx *c, const gate_up_case *k)
{
    char name[150];
    snprintf(name, sizeof name,
             "gate_up %s %s,%s %s dim %d rows %d tok %d pads "
             "%d,%d %s",
             folio_pack_name(k->packing),
             folio_type_find((uint32_t)k->type)->name,
             folio_type_find((uint32_t)k->up_type)->name,
             k->act == FOLIO_ACT_SILU ? "silu" : "gelu", k->dim, k->rows,
             k->tok, k->x_pad, k->out_pad, ck_fill_name(k->fill));
    if (!ck_wanted(c, FOLIO_OP_GATE_UP, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_GATE_UP);
    folio_gate_up_args *a = &p->args.gate_up;
    size_t rows = (size_t)k->rows;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    p->pick = c->size == CK_FULL ? "all" : k->pick;
    fused_rows in =
        add_in(p, &r, &a->in, k->tok, k->dim, k->x_pad, k->fill, false);
    a->n_tok = k->tok;
    a->act = k->act;
    a->out_stride = k->rows + k->out_pad;
    bool tiny = k->fill == CK_FILL_tiny;
    ck_slot *gate =
        add_matrix(p, &r, 0, "gate", k->type, k->rows, in.dim, tiny);
    ck_slot *up = add_matrix(p, &r, 1, "up", k->up_type, k->rows, in.dim, tiny);
    a->gate = &p->fw[0];
    a->up = &p->fw[1];
    ck_slot *out = ck_slot_add_rows(p, "out", CK_OUT, CK_F32, in.tok, rows,
                                    (size_t)a->out_stride, &a->out);
    out->rule = CK_NEAR;
    out->abs = 1e-24;
    out->rel = 16 * 0x1p-23;
    out->c = allow(&in, 8);
    if (k->set == CK_SET_B) {
        out->abs = out->rel = 1e-2;
    } else {
        fused_sum g = multiply(&in, k->type, gate, rows, NULL);
        fused_sum u = multiply(&in, k->up_type, up, rows, NULL);
        gate_limits(&g, &u, in.tok, (size_t)a->out_stride, out);
        drop(&g);
        drop(&u);
    }
    ck_slot_add(p, "scratch", CK_SCRATCH, CK_BYTES, 0, &a->scratch);
    free(in.h);
    /* The references read every packing; only their quick forms do not. */
    p->packing = k->packing;
    if (!c->bench)
        ck_pack_weight(p);
    ck_judge(c, p);
}

void ck_gate_up(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(gate_up_cases); i++)
        if (ck_in_size(c, gate_up_cases[i].set))
            gate_up_one(c, &gate_up_cases[i]);
}
