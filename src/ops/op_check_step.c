/* ops/op_check_step.c: the rules of the op step, made of those that op_check.c
 * has for its parts. */
#include <inttypes.h>

#include "ops/attn_plan.h"
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

static folio_status check_matrix(const folio_check *c, int32_t layer,
                                 const char *field, const folio_weight *w,
                                 int64_t rows, int64_t cols)
{
    if (!w)
        return FAIL(c, FOLIO_E_INVAL, "step: layers[%" PRId32 "].%s is NULL",
                    layer, field);
    FOLIO_RETURN_IF(rule->weight(c, w));
    if (w->rows != rows || w->cols != cols)
        return FAIL(c, FOLIO_E_INVAL,
                    "step: layers[%" PRId32 "].%s is [%" PRId64 ", %" PRId64
                    "], expected [%" PRId64 ", %" PRId64 "]",
                    layer, field, w->rows, w->cols, rows, cols);
    return FOLIO_OK;
}

static bool same_shape(const folio_kv_ref *a, const folio_kv_ref *b)
{
    return a->type == b->type && a->n_blocks == b->n_blocks &&
           a->block_size == b->block_size && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->layout.xk == b->layout.xk &&
           a->layout.yk == b->layout.yk && a->layout.xv == b->layout.xv &&
           a->layout.yv == b->layout.yv;
}

static folio_status check_layer(const folio_check *c, const folio_step_args *a,
                                int32_t i)
{
    const folio_step_layer *y = &a->layers[i];
    const int64_t q = (int64_t)a->heads * y->kv.head_dim;
    const int64_t kv = (int64_t)y->kv.kv_heads * y->kv.head_dim;
    const folio_extent x = rows4(a->n_tok, a->dim, a->dim);
    const struct {
        const char *field;
        const folio_weight *w;
        int64_t rows, cols;
    } m[] = {
        {"wq", y->wq, q, a->dim},         {"wk", y->wk, kv, a->dim},
        {"wv", y->wv, kv, a->dim},        {"wo", y->wo, a->dim, q},
        {"gate", y->gate, a->ff, a->dim}, {"up", y->up, a->ff, a->dim},
        {"down", y->down, a->dim, a->ff},
    };
    FOLIO_RETURN_IF(rule->kv(c, &y->kv));
    if (!same_shape(&y->kv, &a->layers[0].kv))
        return FAIL(c, FOLIO_E_INVAL,
                    "step: layers[%" PRId32 "].kv has another shape than "
                    "layers[0].kv",
                    i);
    if (a->heads % y->kv.kv_heads != 0)
        return FAIL(c, FOLIO_E_INVAL,
                    "step: heads %" PRId32 " is not a multiple of kv_heads "
                    "%" PRId32,
                    a->heads, y->kv.kv_heads);
    for (size_t k = 0; k < FOLIO_COUNT(m); k++)
        FOLIO_RETURN_IF(
            check_matrix(c, i, m[k].field, m[k].w, m[k].rows, m[k].cols));
    FOLIO_RETURN_IF(rule->least(c, "window", y->window, "", 0));
    FOLIO_RETURN_IF(rule->range(c, "work", y->work, 0, a->n_works - 1));
    FOLIO_RETURN_IF(
        rule->view(c, "attn_norm", y->attn_norm, dense4(a->dim), false));
    FOLIO_RETURN_IF(
        rule->view(c, "ffn_norm", y->ffn_norm, dense4(a->dim), false));
    FOLIO_RETURN_IF(rule->alias(c, "x", a->x, x, "attn_norm", y->attn_norm,
                                dense4(a->dim), false));
    FOLIO_RETURN_IF(rule->alias(c, "x", a->x, x, "ffn_norm", y->ffn_norm,
                                dense4(a->dim), false));
    return rule->off_kv(c, "x", a->x, x, &y->kv);
}

/* A list of keys is made for one window. */
static folio_status check_windows(const folio_check *c,
                                  const folio_step_args *a)
{
    const folio_step_layer *of[FOLIO_STEP_WORKS] = {NULL};
    for (int32_t i = 0; i < a->n_layers; i++) {
        const folio_step_layer *y = &a->layers[i];
        if (!of[y->work])
            of[y->work] = y;
        if (y->window != of[y->work]->window)
            return FAIL(c, FOLIO_E_INVAL,
                        "step: layers[%" PRId32 "].window is %" PRId32
                        ", that of another layer with work %" PRId32
                        " is %" PRId32,
                        i, y->window, y->work, of[y->work]->window);
    }
    return FOLIO_OK;
}

static folio_status check_work(const folio_check *c, const folio_step_args *a,
                               const folio_attn_work *w)
{
    if (!c->bound || c->empty)
        return FOLIO_OK;
    if (w->n_seq != a->n_tok)
        return FAIL(c, FOLIO_E_INVAL,
                    "step: work has %" PRId32 " sequences, n_tok is %" PRId32
                    ": each sequence has one token",
                    w->n_seq, a->n_tok);
    FOLIO_RETURN_IF(rule->view(c, "work.q_start", w->q_start,
                               dense4((int64_t)w->n_seq + 1), false));
    FOLIO_RETURN_IF(
        rule->view(c, "work.kv_len", w->kv_len, dense4(w->n_seq), false));
    FOLIO_RETURN_IF(rule->view(c, "work.table_start", w->table_start,
                               dense4((int64_t)w->n_seq + 1), false));
    FOLIO_RETURN_IF(rule->view(c, "work.tables", w->tables, dense4(0), false));
    FOLIO_RETURN_IF(
        rule->view(c, "work.entries", w->entries,
                   dense4((int64_t)w->n_entries * FOLIO_ATTN_ENTRY_INTS),
                   w->n_entries == 0));
    FOLIO_RETURN_IF(
        rule->view(c, "work.merges", w->merges,
                   dense4((int64_t)w->n_merges * FOLIO_ATTN_MERGE_INTS),
                   w->n_merges == 0));
    return rule->view(c, "work.tiles", w->tiles,
                      dense4((int64_t)w->n_tiles * FOLIO_ATTN_TILE_INTS),
                      w->n_tiles == 0);
}

folio_status folio_check_step(const folio_check *c, const folio_step_args *a)
{
    if (!a->layers)
        return FAIL(c, FOLIO_E_INVAL, "step: layers is NULL");
    FOLIO_RETURN_IF(rule->least(c, "n_layers", a->n_layers, "", 1));
    FOLIO_RETURN_IF(rule->least(c, "dim", a->dim, "", 1));
    FOLIO_RETURN_IF(rule->least(c, "ff", a->ff, "", 1));
    FOLIO_RETURN_IF(rule->least(c, "heads", a->heads, "", 1));
    FOLIO_RETURN_IF(rule->range(c, "n_works", a->n_works, 1, FOLIO_STEP_WORKS));
    FOLIO_RETURN_IF(rule->range(c, "interleaved", a->interleaved, 0, 1));
    FOLIO_RETURN_IF(rule->least(c, "n_pos", a->n_pos, "", 1));
    if (!(a->eps >= 0.0f && a->eps < 1e30f))
        return FAIL(c, FOLIO_E_INVAL, "step: eps is %g, not in [0, 1e30)",
                    (double)a->eps);
    if (!(a->scale > -1e30f && a->scale < 1e30f))
        return FAIL(c, FOLIO_E_INVAL, "step: scale is %g, not finite",
                    (double)a->scale);
    if (!(a->softcap >= 0.0f && a->softcap < 1e30f))
        return FAIL(c, FOLIO_E_INVAL, "step: softcap is %g, not in [0, 1e30)",
                    (double)a->softcap);
    if (a->act != FOLIO_ACT_SILU && a->act != FOLIO_ACT_GELU_TANH)
        return FAIL(c, FOLIO_E_UNSUPPORTED, "step: activation %d is unknown",
                    (int)a->act);
    for (int32_t i = 0; i < a->n_layers; i++)
        FOLIO_RETURN_IF(check_layer(c, a, i));
    FOLIO_RETURN_IF(check_windows(c, a));
    const int32_t hd = a->layers[0].kv.head_dim;
    if (hd % 2 != 0)
        return FAIL(c, FOLIO_E_INVAL, "step: head_dim %" PRId32 " is odd", hd);
    FOLIO_RETURN_IF(
        rule->view(c, "x", a->x, rows4(a->n_tok, a->dim, a->dim), false));
    FOLIO_RETURN_IF(rule->view(c, "pos", a->pos, dense4(a->n_tok), false));
    FOLIO_RETURN_IF(rule->view(c, "slot", a->slot, dense4(a->n_tok), false));
    FOLIO_RETURN_IF(
        rule->view(c, "table", a->table, rows4(a->n_pos, hd, hd), false));
    for (int32_t i = 0; i < a->n_works; i++)
        FOLIO_RETURN_IF(check_work(c, a, &a->work[i]));
    return FOLIO_OK;
}
