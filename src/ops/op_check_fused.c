/* ops/op_check_fused.c: the rules of the fused ops, made of those that
 * op_check.c has for their parts. */
#include <inttypes.h>

#include "ops/op_check.h"

#define FAIL(c, st, ...) folio_fail(folio_device_log((c)->dev), st, __VA_ARGS__)

static const folio_check_parts *const rule = &folio_check_shared;

static folio_extent rows4(int64_t rows, int64_t stride, int64_t width)
{
    folio_extent e = {rows, stride, width, 4};
    return e;
}

static folio_extent dense4(int64_t n)
{
    return rows4(1, n, n);
}

/* x has n_tok rows; or, with an index, at least one. */
static folio_status check_in(const folio_check *c, const folio_norm_in *in,
                             int64_t n_tok)
{
    FOLIO_RETURN_IF(rule->least(c, "in.dim", in->dim, "", 1));
    FOLIO_RETURN_IF(
        rule->least(c, "in.x_stride", in->x_stride, "in.dim", in->dim));
    if (!(in->eps >= 0.0f && in->eps < 1e30f))
        return FAIL(c, FOLIO_E_INVAL, "%s: in.eps is %g, not in [0, 1e30)",
                    c->op, (double)in->eps);
    FOLIO_RETURN_IF(rule->view(c, "in.norm", in->norm, dense4(in->dim), false));
    return rule->view(c, "in.x", in->x, rows4(n_tok, in->x_stride, in->dim),
                      false);
}

/* A weight with `rows` rows (any number where that is 0) of in.dim columns. */
static folio_status check_matrix(const folio_check *c, const char *field,
                                 const folio_weight *w, int64_t rows,
                                 const folio_norm_in *in)
{
    FOLIO_RETURN_IF(rule->weight(c, w));
    if (w->cols != in->dim)
        return FAIL(c, FOLIO_E_INVAL,
                    "%s: %s has %" PRId64 " columns, in.dim is %" PRId32, c->op,
                    field, w->cols, in->dim);
    if (rows > 0 && w->rows != rows)
        return FAIL(c, FOLIO_E_INVAL,
                    "%s: %s has %" PRId64 " rows, expected %" PRId64, c->op,
                    field, w->rows, rows);
    return FOLIO_OK;
}

/* An output beside the inputs that every fused op has. */
static folio_status check_out(const folio_check *c, const char *field,
                              folio_view v, folio_extent e,
                              const folio_norm_in *in, int64_t x_rows)
{
    FOLIO_RETURN_IF(rule->view(c, field, v, e, false));
    FOLIO_RETURN_IF(rule->alias(c, field, v, e, "in.norm", in->norm,
                                dense4(in->dim), false));
    return rule->alias(c, field, v, e, "in.x", in->x,
                       rows4(x_rows, in->x_stride, in->dim), false);
}

folio_status folio_check_norm_linear(const folio_check *c,
                                     const folio_norm_linear_args *a)
{
    static const char *const w_field[] = {"part[0].w", "part[1].w",
                                          "part[2].w"};
    static const char *const y_field[] = {"part[0].y", "part[1].y",
                                          "part[2].y"};
    FOLIO_RETURN_IF(rule->range(c, "gather", a->gather, 0, 1));
    FOLIO_RETURN_IF(
        rule->range(c, "n_parts", a->n_parts, 1, FOLIO_MAX_PRODUCTS));
    int64_t x_rows = a->gather ? 1 : a->n_tok;
    FOLIO_RETURN_IF(check_in(c, &a->in, x_rows));
    if (a->gather) {
        if (a->in.x_stride != a->in.dim)
            return FAIL(c, FOLIO_E_INVAL,
                        "%s: in.x_stride %" PRId32 ", gather wants in.dim "
                        "%" PRId32,
                        c->op, a->in.x_stride, a->in.dim);
        FOLIO_RETURN_IF(rule->view(c, "idx", a->idx, dense4(a->n_tok), false));
    }
    for (int32_t i = 0; i < a->n_parts; i++) {
        const folio_product *p = &a->part[i];
        FOLIO_RETURN_IF(check_matrix(c, w_field[i], p->w, 0, &a->in));
        FOLIO_RETURN_IF(
            rule->least(c, "y_stride", p->y_stride, "w.rows", p->w->rows));
        folio_extent y = rows4(a->n_tok, p->y_stride, p->w->rows);
        folio_extent bias = dense4(p->w->rows);
        FOLIO_RETURN_IF(rule->view(c, "bias", p->bias, bias, true));
        FOLIO_RETURN_IF(check_out(c, y_field[i], p->y, y, &a->in, x_rows));
        FOLIO_RETURN_IF(
            rule->alias(c, y_field[i], p->y, y, "bias", p->bias, bias, false));
        for (int32_t j = 0; j < i; j++)
            FOLIO_RETURN_IF(rule->alias(
                c, y_field[i], p->y, y, y_field[j], a->part[j].y,
                rows4(a->n_tok, a->part[j].y_stride, a->part[j].w->rows),
                false));
    }
    return FOLIO_OK;
}

/* What rotation and append need, as rope_append does. */
static folio_status check_places(const folio_check *c, const folio_qkv_args *a)
{
    FOLIO_RETURN_IF(rule->range(c, "rot_dim", a->rot_dim, 0, a->kv.head_dim));
    if (a->rot_dim % 2 != 0)
        return FAIL(c, FOLIO_E_INVAL, "%s: rot_dim %" PRId32 " is odd", c->op,
                    a->rot_dim);
    FOLIO_RETURN_IF(rule->range(c, "interleaved", a->interleaved, 0, 1));
    FOLIO_RETURN_IF(rule->view(c, "slot", a->slot, dense4(a->n_tok), false));
    if (a->rot_dim == 0)
        return FOLIO_OK;
    FOLIO_RETURN_IF(rule->least(c, "n_pos", a->n_pos, "", 1));
    FOLIO_RETURN_IF(rule->view(c, "pos", a->pos, dense4(a->n_tok), false));
    return rule->view(c, "table", a->table,
                      rows4(a->n_pos, a->rot_dim, a->rot_dim), false);
}

folio_status folio_check_qkv(const folio_check *c, const folio_qkv_args *a)
{
    FOLIO_RETURN_IF(check_in(c, &a->in, a->n_tok));
    FOLIO_RETURN_IF(rule->kv(c, &a->kv));
    FOLIO_RETURN_IF(rule->least(c, "heads", a->heads, "", 1));
    FOLIO_RETURN_IF(rule->range(c, "head_norm", a->head_norm, 0, 1));
    const int64_t q_rows = (int64_t)a->heads * a->kv.head_dim;
    const int64_t kv_rows = (int64_t)a->kv.kv_heads * a->kv.head_dim;
    FOLIO_RETURN_IF(check_matrix(c, "wq", a->wq, q_rows, &a->in));
    FOLIO_RETURN_IF(check_matrix(c, "wk", a->wk, kv_rows, &a->in));
    FOLIO_RETURN_IF(check_matrix(c, "wv", a->wv, kv_rows, &a->in));
    FOLIO_RETURN_IF(rule->view(c, "bq", a->bq, dense4(q_rows), true));
    FOLIO_RETURN_IF(rule->view(c, "bk", a->bk, dense4(kv_rows), true));
    FOLIO_RETURN_IF(rule->view(c, "bv", a->bv, dense4(kv_rows), true));
    FOLIO_RETURN_IF(
        rule->least(c, "q_stride", a->q_stride, "heads * head_dim", q_rows));
    if (a->head_norm) {
        folio_extent head = dense4(a->kv.head_dim);
        if (a->q_stride != q_rows)
            return FAIL(c, FOLIO_E_INVAL,
                        "%s: q_stride %" PRId32 ", head_norm wants heads * "
                        "head_dim %" PRId64,
                        c->op, a->q_stride, q_rows);
        FOLIO_RETURN_IF(rule->view(c, "q_norm", a->q_norm, head, false));
        FOLIO_RETURN_IF(rule->view(c, "k_norm", a->k_norm, head, false));
    }
    FOLIO_RETURN_IF(check_places(c, a));
    folio_extent q = rows4(a->n_tok, a->q_stride, q_rows);
    FOLIO_RETURN_IF(check_out(c, "q", a->q, q, &a->in, a->n_tok));
    FOLIO_RETURN_IF(rule->off_kv(c, "q", a->q, q, &a->kv));
    return rule->off_kv(c, "in.x", a->in.x,
                        rows4(a->n_tok, a->in.x_stride, a->in.dim), &a->kv);
}

folio_status folio_check_gate_up(const folio_check *c,
                                 const folio_gate_up_args *a)
{
    FOLIO_RETURN_IF(check_in(c, &a->in, a->n_tok));
    FOLIO_RETURN_IF(check_matrix(c, "gate", a->gate, 0, &a->in));
    FOLIO_RETURN_IF(check_matrix(c, "up", a->up, a->gate->rows, &a->in));
    FOLIO_RETURN_IF(rule->least(c, "out_stride", a->out_stride, "gate.rows",
                                a->gate->rows));
    if (a->act != FOLIO_ACT_SILU && a->act != FOLIO_ACT_GELU_TANH)
        return FAIL(c, FOLIO_E_UNSUPPORTED, "%s: activation %d is unknown",
                    c->op, (int)a->act);
    return check_out(c, "out", a->out,
                     rows4(a->n_tok, a->out_stride, a->gate->rows), &a->in,
                     a->n_tok);
}
