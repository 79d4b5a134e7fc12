/* ops/op_check.c: every rule that can be checked on the host before an op runs:
 * shapes, strides, types, extents, alignment, aliasing. One set of rules for
 * every device and for the references. Index arrays lie on the device; whoever
 * uploads them checks their entries. */
#include "ops/attn_plan.h"
#include "ops/choose.h"
#include "ops/op_check.h"
#include "ops/pack.h"
#include "ops/sample_row.h"

#include <inttypes.h>

typedef folio_check check;
typedef folio_extent extent;

#define FAIL(c, st, ...) folio_fail(folio_device_log((c)->dev), st, __VA_ARGS__)

static folio_status check_least(const check *c, const char *field,
                                int64_t value, const char *what, int64_t least)
{
    if (value < least)
        return FAIL(c, FOLIO_E_INVAL, "%s: %s %" PRId64 " < %s%s%" PRId64,
                    c->op, field, value, what, *what ? " " : "", least);
    return FOLIO_OK;
}

static folio_status check_range(const check *c, const char *field,
                                int64_t value, int64_t least, int64_t most)
{
    if (value < least || value > most)
        return FAIL(c, FOLIO_E_INVAL,
                    "%s: %s is %" PRId64 ", not in [%" PRId64 ", %" PRId64 "]",
                    c->op, field, value, least, most);
    return FOLIO_OK;
}

/* Bytes from the first element to behind the last; false on overflow. */
static bool extent_bytes(const extent *e, size_t *out)
{
    size_t n;
    if (e->rows == 0) {
        *out = 0;
        return true;
    }
    return folio_mul_size((size_t)(e->rows - 1), (size_t)e->stride, &n) &&
           folio_add_size(n, (size_t)e->width, &n) &&
           folio_mul_size(n, e->elem_bytes, out);
}

static folio_status check_buf(const check *c, const char *field,
                              const folio_buf *buf, size_t offset, size_t need,
                              size_t align)
{
    if (folio_buf_device(buf) != c->dev)
        return FAIL(c, FOLIO_E_INVAL, "%s: %s lies on another device", c->op,
                    field);
    if (offset % align != 0)
        return FAIL(c, FOLIO_E_INVAL,
                    "%s: %s offset %zu is not a multiple of %zu", c->op, field,
                    offset, align);
    size_t have = folio_buf_bytes(buf);
    if (offset > have || need > have - offset)
        return FAIL(c, FOLIO_E_RANGE,
                    "%s: %s needs %zu bytes from offset %zu > %zu bytes of its "
                    "buffer",
                    c->op, field, need, offset, have);
    return FOLIO_OK;
}

static folio_status check_view(const check *c, const char *field, folio_view v,
                               extent e, bool optional)
{
    if (c->empty)
        return FOLIO_OK;
    if (!v.buf) {
        if (optional || !c->bound)
            return FOLIO_OK;
        return FAIL(c, FOLIO_E_INVAL, "%s: %s is absent", c->op, field);
    }
    size_t need;
    if (!extent_bytes(&e, &need))
        return FAIL(c, FOLIO_E_RANGE,
                    "%s: %s [%" PRId64 ", %" PRId64 "] does not fit size_t",
                    c->op, field, e.rows, e.width);
    return check_buf(c, field, v.buf, v.offset, need, e.elem_bytes);
}

/* [rows, width] of 4-byte elements. */
static extent rows4(int64_t rows, int64_t stride, int64_t width)
{
    extent e = {rows, stride, width, 4};
    return e;
}

static extent dense4(int64_t n)
{
    return rows4(1, n, n);
}

/* Whether two strided regions share a byte. Regions of one stride may
 * interleave; others are taken to touch where their spans do. */
static bool regions_touch(folio_view a, const extent *ea, folio_view b,
                          const extent *eb)
{
    size_t na, nb;
    if (!a.buf || a.buf != b.buf || !extent_bytes(ea, &na) ||
        !extent_bytes(eb, &nb) || na == 0 || nb == 0)
        return false;
    if (a.offset + na <= b.offset || b.offset + nb <= a.offset)
        return false;
    if (ea->stride != eb->stride || ea->rows == 1 || eb->rows == 1)
        return true;
    size_t stride = (size_t)ea->stride * ea->elem_bytes;
    size_t a_in = a.offset % stride, b_in = b.offset % stride;
    size_t a_width = (size_t)ea->width * ea->elem_bytes;
    size_t b_width = (size_t)eb->width * eb->elem_bytes;
    size_t b_after_a = (b_in + stride - a_in) % stride;
    size_t a_after_b = (a_in + stride - b_in) % stride;
    return b_after_a < a_width || a_after_b < b_width;
}

/* `out` may not touch `in`, except by being exactly it where `exact`. */
static folio_status check_alias(const check *c, const char *out_field,
                                folio_view out, extent eo, const char *in_field,
                                folio_view in, extent ei, bool exact)
{
    if (c->empty || !regions_touch(out, &eo, in, &ei))
        return FOLIO_OK;
    if (exact && out.offset == in.offset &&
        (eo.stride == ei.stride || eo.rows == 1))
        return FOLIO_OK;
    return FAIL(c, FOLIO_E_INVAL,
                "%s: %s (offset %zu) overlaps %s (offset %zu)", c->op,
                out_field, out.offset, in_field, in.offset);
}

/* ---- weights and KV -------------------------------------------------------
 */

static folio_status check_weight(const check *c, const folio_weight *w)
{
    if (!w)
        return FAIL(c, FOLIO_E_INVAL, "%s: w is NULL", c->op);
    const folio_type_info *info = folio_type_find((uint32_t)w->type);
    if (!folio_dequant_knows(w->type))
        return FAIL(c, FOLIO_E_UNSUPPORTED, "%s: w has type %s (%d)", c->op,
                    info ? info->name : "unknown", (int)w->type);
    const char *packing = folio_pack_name(w->packing);
    if (!packing)
        return FAIL(c, FOLIO_E_UNSUPPORTED, "%s: w has packing %d", c->op,
                    (int)w->packing);
    FOLIO_RETURN_IF(check_range(c, "w.rows", w->rows, 1, INT32_MAX));
    FOLIO_RETURN_IF(check_range(c, "w.cols", w->cols, 1, INT32_MAX));
    size_t row_bytes = folio_type_row_bytes(w->type, (uint64_t)w->cols);
    if (row_bytes == 0)
        return FAIL(c, FOLIO_E_INVAL,
                    "%s: w.cols %" PRId64 " is not a multiple of the %u values "
                    "of a %s block",
                    c->op, w->cols, (unsigned)info->block_values, info->name);
    if (!folio_pack_takes(w->packing, w->type, w->cols))
        return FAIL(c, FOLIO_E_UNSUPPORTED,
                    "%s: w has packing %s, which does not hold %" PRId64
                    " columns of %s",
                    c->op, packing, w->cols, info->name);
    if (c->empty || (!c->bound && w->n_views == 0))
        return FOLIO_OK;
    if (w->n_views < 1 || !w->views)
        return FAIL(c, FOLIO_E_INVAL, "%s: w.n_views %" PRId32 " < 1", c->op,
                    w->n_views);
    int64_t next = 0;
    for (int32_t i = 0; i < w->n_views; i++) {
        const folio_weight_view *v = &w->views[i];
        if (v->first_row != next || v->rows < 1 || v->rows > w->rows - next)
            return FAIL(c, FOLIO_E_INVAL,
                        "%s: w.views[%" PRId32 "] holds rows %" PRId64
                        " + %" PRId64 ", expected from %" PRId64
                        " within %" PRId64,
                        c->op, i, v->first_row, v->rows, next, w->rows);
        if (v->first_row % folio_pack_group(w->packing) != 0)
            return FAIL(c, FOLIO_E_INVAL,
                        "%s: w.views[%" PRId32 "] begins at row %" PRId64
                        ", inside a group of %" PRId64 " rows (%s)",
                        c->op, i, v->first_row, folio_pack_group(w->packing),
                        packing);
        next += v->rows;
        size_t need = folio_pack_bytes(w->packing, w->type, v->rows, w->cols);
        if (need == 0)
            return FAIL(c, FOLIO_E_RANGE,
                        "%s: w.views[%" PRId32 "] does not fit size_t", c->op,
                        i);
        if (!v->view.buf)
            return FAIL(c, FOLIO_E_INVAL, "%s: w.views[%" PRId32 "] is absent",
                        c->op, i);
        FOLIO_RETURN_IF(check_buf(c, "w", v->view.buf, v->view.offset, need,
                                  folio_pack_align(w->packing, w->type)));
    }
    if (next != w->rows)
        return FAIL(c, FOLIO_E_INVAL,
                    "%s: w.views hold %" PRId64 " rows of %" PRId64, c->op,
                    next, w->rows);
    return FOLIO_OK;
}

static folio_status check_plane(const check *c, const char *field,
                                const folio_kv_ref *kv,
                                const folio_kv_plane *plane)
{
    if (c->empty || (!c->bound && plane->n_buf == 0))
        return FOLIO_OK;
    FOLIO_RETURN_IF(check_range(c, field, plane->n_buf, 1, FOLIO_KV_MAX_BUFS));
    if (plane->seg_shift < 0 || plane->seg_shift > 31)
        return FAIL(c, FOLIO_E_INVAL,
                    "%s: %s.seg_shift is %" PRId32 ", not in [0, 31]", c->op,
                    field, plane->seg_shift);
    int64_t per_buf = (int64_t)1 << plane->seg_shift;
    if (per_buf * plane->n_buf < kv->n_blocks)
        return FAIL(c, FOLIO_E_RANGE,
                    "%s: %s has %" PRId32 " buffers of %" PRId64
                    " blocks < n_blocks %" PRId32,
                    c->op, field, plane->n_buf, per_buf, kv->n_blocks);
    size_t block_bytes = folio_kv_block_bytes(kv);
    for (int32_t i = 0; i < plane->n_buf; i++) {
        int64_t n = FOLIO_MIN(kv->n_blocks - i * per_buf, per_buf);
        size_t need = 0;
        if (!plane->buf[i])
            return FAIL(c, FOLIO_E_INVAL, "%s: %s.buf[%" PRId32 "] is NULL",
                        c->op, field, i);
        if (n > 0 && !folio_mul_size((size_t)n, block_bytes, &need))
            return FAIL(c, FOLIO_E_RANGE, "%s: %s does not fit size_t", c->op,
                        field);
        FOLIO_RETURN_IF(check_buf(c, field, plane->buf[i], plane->offset, need,
                                  folio_kv_type_bytes(kv->type)));
    }
    return FOLIO_OK;
}

/* Bytes of buffer i of a plane; 0 where it holds no block. */
static size_t plane_bytes(const folio_kv_ref *kv, const folio_kv_plane *plane,
                          int32_t i)
{
    int64_t per_buf = (int64_t)1 << plane->seg_shift;
    int64_t n = FOLIO_MIN(kv->n_blocks - i * per_buf, per_buf);
    return n > 0 ? (size_t)n * folio_kv_block_bytes(kv) : 0;
}

/* `v` may touch no block of the plane; both were found to lie in their
 * buffers. */
static folio_status check_off_plane(const check *c, const char *field,
                                    folio_view v, size_t bytes,
                                    const char *plane_field,
                                    const folio_kv_ref *kv,
                                    const folio_kv_plane *plane)
{
    for (int32_t i = 0; i < plane->n_buf; i++) {
        size_t n = plane_bytes(kv, plane, i);
        if (v.buf && v.buf == plane->buf[i] && bytes > 0 && n > 0 &&
            v.offset < plane->offset + n && plane->offset < v.offset + bytes)
            return FAIL(c, FOLIO_E_INVAL,
                        "%s: %s (offset %zu, %zu bytes) overlaps %s (offset "
                        "%zu, %zu bytes)",
                        c->op, field, v.offset, bytes, plane_field,
                        plane->offset, n);
    }
    return FOLIO_OK;
}

/* The same for rows of an array against K and V. */
static folio_status check_off_kv(const check *c, const char *field,
                                 folio_view v, extent e, const folio_kv_ref *kv)
{
    size_t bytes;
    if (c->empty || !v.buf || !extent_bytes(&e, &bytes))
        return FOLIO_OK;
    FOLIO_RETURN_IF(check_off_plane(c, field, v, bytes, "kv.k", kv, &kv->k));
    return check_off_plane(c, field, v, bytes, "kv.v", kv, &kv->v);
}

static folio_status check_planes_apart(const check *c, const folio_kv_ref *kv)
{
    if (c->empty)
        return FOLIO_OK;
    for (int32_t i = 0; i < kv->k.n_buf; i++) {
        folio_view k = {.buf = kv->k.buf[i], .offset = kv->k.offset};
        FOLIO_RETURN_IF(check_off_plane(
            c, "kv.k", k, plane_bytes(kv, &kv->k, i), "kv.v", kv, &kv->v));
    }
    return FOLIO_OK;
}

static folio_status check_divides(const check *c, const char *field, int32_t x,
                                  const char *whole_field, int32_t whole)
{
    if (x < 1 || whole % x != 0)
        return FAIL(c, FOLIO_E_INVAL,
                    "%s: kv.layout.%s %" PRId32 " does not divide %s %" PRId32,
                    c->op, field, x, whole_field, whole);
    return FOLIO_OK;
}

static folio_status check_kv(const check *c, const folio_kv_ref *kv)
{
    if (kv->type == FOLIO_KV_I8)
        return FAIL(c, FOLIO_E_UNSUPPORTED, "%s: 8-bit KV", c->op);
    if (folio_kv_type_bytes(kv->type) == 0)
        return FAIL(c, FOLIO_E_INVAL, "%s: kv.type %d is unknown", c->op,
                    (int)kv->type);
    FOLIO_RETURN_IF(check_least(c, "kv.n_blocks", kv->n_blocks, "", 1));
    FOLIO_RETURN_IF(check_least(c, "kv.block_size", kv->block_size, "", 1));
    FOLIO_RETURN_IF(check_least(c, "kv.kv_heads", kv->kv_heads, "", 1));
    FOLIO_RETURN_IF(check_least(c, "kv.head_dim", kv->head_dim, "", 1));
    if (kv->head_dim < 4 || kv->head_dim > 256)
        return FAIL(c, FOLIO_E_UNSUPPORTED,
                    "%s: kv.head_dim %" PRId32 ", not in [4, 256]", c->op,
                    kv->head_dim);
    FOLIO_RETURN_IF(check_range(c, "kv.n_blocks * block_size",
                                (int64_t)kv->n_blocks * kv->block_size, 1,
                                INT32_MAX));
    /* A block is indexed by 32 bits inside, and its bytes by size_t. */
    if ((int64_t)kv->block_size * kv->head_dim >
        INT32_MAX / (int64_t)kv->kv_heads)
        return FAIL(c, FOLIO_E_INVAL,
                    "%s: a block of %" PRId32 " tokens, %" PRId32
                    " heads of %" PRId32 " has more than %d elements",
                    c->op, kv->block_size, kv->kv_heads, kv->head_dim,
                    INT32_MAX);
    const folio_kv_layout *l = &kv->layout;
    FOLIO_RETURN_IF(check_divides(c, "xk", l->xk, "head_dim", kv->head_dim));
    FOLIO_RETURN_IF(check_divides(c, "xv", l->xv, "head_dim", kv->head_dim));
    FOLIO_RETURN_IF(
        check_divides(c, "yk", l->yk, "block_size", kv->block_size));
    FOLIO_RETURN_IF(
        check_divides(c, "yv", l->yv, "block_size", kv->block_size));
    FOLIO_RETURN_IF(check_plane(c, "kv.k", kv, &kv->k));
    FOLIO_RETURN_IF(check_plane(c, "kv.v", kv, &kv->v));
    return check_planes_apart(c, kv);
}

/* ---- ops --------------------------------------------------------------------
 */

static folio_status check_embed(const check *c, const folio_embed_args *a)
{
    FOLIO_RETURN_IF(check_weight(c, a->w));
    FOLIO_RETURN_IF(check_view(c, "ids", a->ids, dense4(a->n_tok), false));
    return check_view(c, "out", a->out, rows4(a->n_tok, a->w->cols, a->w->cols),
                      false);
}

static folio_status check_gather(const check *c,
                                 const folio_gather_rows_args *a)
{
    FOLIO_RETURN_IF(check_least(c, "dim", a->dim, "", 1));
    extent out = rows4(a->n_rows, a->dim, a->dim);
    /* Which rows of x are read is known on the device only: one must exist. */
    FOLIO_RETURN_IF(check_view(c, "x", a->x, dense4(a->dim), false));
    FOLIO_RETURN_IF(check_view(c, "idx", a->idx, dense4(a->n_rows), false));
    FOLIO_RETURN_IF(check_view(c, "out", a->out, out, false));
    return check_alias(c, "out", a->out, out, "x", a->x, dense4(a->dim), false);
}

static folio_status check_rmsnorm(const check *c, const folio_rmsnorm_args *a)
{
    FOLIO_RETURN_IF(check_least(c, "dim", a->dim, "", 1));
    FOLIO_RETURN_IF(check_least(c, "x_stride", a->x_stride, "dim", a->dim));
    FOLIO_RETURN_IF(check_least(c, "out_stride", a->out_stride, "dim", a->dim));
    if (!(a->eps >= 0.0f && a->eps < 1e30f))
        return FAIL(c, FOLIO_E_INVAL, "rmsnorm: eps is %g, not in [0, 1e30)",
                    (double)a->eps);
    extent x = rows4(a->n_rows, a->x_stride, a->dim);
    extent res = rows4(a->n_rows, a->dim, a->dim);
    extent out = rows4(a->n_rows, a->out_stride, a->dim);
    FOLIO_RETURN_IF(check_view(c, "x", a->x, x, false));
    FOLIO_RETURN_IF(check_view(c, "res", a->res, res, true));
    FOLIO_RETURN_IF(check_view(c, "w", a->w, dense4(a->dim), false));
    FOLIO_RETURN_IF(check_view(c, "out", a->out, out, false));
    FOLIO_RETURN_IF(check_alias(c, "out", a->out, out, "x", a->x, x, true));
    FOLIO_RETURN_IF(
        check_alias(c, "out", a->out, out, "res", a->res, res, false));
    FOLIO_RETURN_IF(check_alias(c, "res", a->res, res, "x", a->x, x, false));
    return check_alias(c, "out", a->out, out, "w", a->w, dense4(a->dim), false);
}

static folio_status check_linear(const check *c, const folio_linear_args *a)
{
    FOLIO_RETURN_IF(check_weight(c, a->w));
    FOLIO_RETURN_IF(
        check_least(c, "x_stride", a->x_stride, "w.cols", a->w->cols));
    FOLIO_RETURN_IF(
        check_least(c, "y_stride", a->y_stride, "w.rows", a->w->rows));
    FOLIO_RETURN_IF(check_range(c, "accumulate", a->accumulate, 0, 1));
    extent x = rows4(a->n_tok, a->x_stride, a->w->cols);
    extent y = rows4(a->n_tok, a->y_stride, a->w->rows);
    FOLIO_RETURN_IF(check_view(c, "x", a->x, x, false));
    FOLIO_RETURN_IF(check_view(c, "bias", a->bias, dense4(a->w->rows), true));
    FOLIO_RETURN_IF(check_view(c, "y", a->y, y, false));
    FOLIO_RETURN_IF(check_alias(c, "y", a->y, y, "bias", a->bias,
                                dense4(a->w->rows), false));
    return check_alias(c, "y", a->y, y, "x", a->x, x, false);
}

static folio_status check_rope(const check *c, const folio_rope_append_args *a)
{
    const folio_kv_ref *kv = &a->kv;
    FOLIO_RETURN_IF(check_kv(c, kv));
    int64_t kv_width = (int64_t)kv->kv_heads * kv->head_dim;
    FOLIO_RETURN_IF(check_least(c, "k_stride", a->k_stride,
                                "kv_heads * head_dim", kv_width));
    FOLIO_RETURN_IF(check_least(c, "v_stride", a->v_stride,
                                "kv_heads * head_dim", kv_width));
    FOLIO_RETURN_IF(check_least(c, "heads", a->heads, "", 0));
    FOLIO_RETURN_IF(check_range(c, "rot_dim", a->rot_dim, 0, kv->head_dim));
    if (a->rot_dim % 2 != 0)
        return FAIL(c, FOLIO_E_INVAL, "rope_append: rot_dim %" PRId32 " is odd",
                    a->rot_dim);
    FOLIO_RETURN_IF(check_range(c, "interleaved", a->interleaved, 0, 1));
    int64_t q_width = (int64_t)a->heads * kv->head_dim;
    if (a->q.buf || (!c->bound && a->heads > 0)) {
        FOLIO_RETURN_IF(check_least(c, "heads", a->heads, "", 1));
        FOLIO_RETURN_IF(check_least(c, "q_stride", a->q_stride,
                                    "heads * head_dim", q_width));
        extent q = rows4(a->n_tok, a->q_stride, q_width);
        FOLIO_RETURN_IF(check_view(c, "q", a->q, q, true));
        FOLIO_RETURN_IF(check_off_kv(c, "q", a->q, q, kv));
    }
    extent k = rows4(a->n_tok, a->k_stride, kv_width);
    extent v = rows4(a->n_tok, a->v_stride, kv_width);
    FOLIO_RETURN_IF(check_view(c, "k", a->k, k, false));
    FOLIO_RETURN_IF(check_view(c, "v", a->v, v, false));
    FOLIO_RETURN_IF(check_off_kv(c, "k", a->k, k, kv));
    FOLIO_RETURN_IF(check_off_kv(c, "v", a->v, v, kv));
    FOLIO_RETURN_IF(check_view(c, "slot", a->slot, dense4(a->n_tok), false));
    if (a->rot_dim == 0)
        return FOLIO_OK;
    FOLIO_RETURN_IF(check_least(c, "n_pos", a->n_pos, "", 1));
    FOLIO_RETURN_IF(check_view(c, "pos", a->pos, dense4(a->n_tok), false));
    return check_view(c, "table", a->table,
                      rows4(a->n_pos, a->rot_dim, a->rot_dim), false);
}

static folio_status check_work(const check *c, const folio_attn_args *a)
{
    const folio_attn_work *w = &a->work;
    FOLIO_RETURN_IF(check_least(c, "work.n_seq", w->n_seq, "", 0));
    FOLIO_RETURN_IF(check_least(c, "work.n_entries", w->n_entries, "", 0));
    FOLIO_RETURN_IF(check_least(c, "work.n_merges", w->n_merges, "", 0));
    FOLIO_RETURN_IF(check_least(c, "work.n_tiles", w->n_tiles, "", 0));
    FOLIO_RETURN_IF(check_least(c, "work.n_partials", w->n_partials, "", 0));
    if (!c->bound)
        return FOLIO_OK;
    if (!c->empty)
        FOLIO_RETURN_IF(check_least(c, "work.n_seq", w->n_seq, "", 1));
    FOLIO_RETURN_IF(check_view(c, "work.q_start", w->q_start,
                               dense4((int64_t)w->n_seq + 1), false));
    FOLIO_RETURN_IF(
        check_view(c, "work.kv_len", w->kv_len, dense4(w->n_seq), false));
    FOLIO_RETURN_IF(check_view(c, "work.table_start", w->table_start,
                               dense4((int64_t)w->n_seq + 1), false));
    FOLIO_RETURN_IF(check_view(c, "work.tables", w->tables, dense4(0), false));
    FOLIO_RETURN_IF(
        check_view(c, "work.entries", w->entries,
                   dense4((int64_t)w->n_entries * FOLIO_ATTN_ENTRY_INTS),
                   w->n_entries == 0));
    FOLIO_RETURN_IF(
        check_view(c, "work.merges", w->merges,
                   dense4((int64_t)w->n_merges * FOLIO_ATTN_MERGE_INTS),
                   w->n_merges == 0));
    return check_view(c, "work.tiles", w->tiles,
                      dense4((int64_t)w->n_tiles * FOLIO_ATTN_TILE_INTS),
                      w->n_tiles == 0);
}

static folio_status check_attn(const check *c, const folio_attn_args *a)
{
    FOLIO_RETURN_IF(check_kv(c, &a->kv));
    FOLIO_RETURN_IF(check_least(c, "heads", a->heads, "", 1));
    if (a->heads % a->kv.kv_heads != 0)
        return FAIL(c, FOLIO_E_INVAL,
                    "attn: heads %" PRId32 " is not a multiple of kv_heads "
                    "%" PRId32,
                    a->heads, a->kv.kv_heads);
    int64_t width = (int64_t)a->heads * a->kv.head_dim;
    FOLIO_RETURN_IF(
        check_least(c, "q_stride", a->q_stride, "heads * head_dim", width));
    FOLIO_RETURN_IF(
        check_least(c, "out_stride", a->out_stride, "heads * head_dim", width));
    FOLIO_RETURN_IF(check_least(c, "window", a->window, "", 0));
    if (!(a->scale > -1e30f && a->scale < 1e30f))
        return FAIL(c, FOLIO_E_INVAL, "attn: scale is %g, not finite",
                    (double)a->scale);
    if (!(a->softcap >= 0.0f && a->softcap < 1e30f))
        return FAIL(c, FOLIO_E_INVAL, "attn: softcap is %g, not in [0, 1e30)",
                    (double)a->softcap);
    if (a->sinks.buf)
        return FAIL(c, FOLIO_E_UNSUPPORTED, "attn: sinks");
    extent q = rows4(a->n_tok, a->q_stride, width);
    extent out = rows4(a->n_tok, a->out_stride, width);
    FOLIO_RETURN_IF(check_view(c, "q", a->q, q, false));
    FOLIO_RETURN_IF(check_view(c, "out", a->out, out, false));
    FOLIO_RETURN_IF(check_alias(c, "out", a->out, out, "q", a->q, q, false));
    FOLIO_RETURN_IF(check_off_kv(c, "out", a->out, out, &a->kv));
    return check_work(c, a);
}

static folio_status check_act_mul(const check *c, const folio_act_mul_args *a)
{
    FOLIO_RETURN_IF(check_least(c, "dim", a->dim, "", 1));
    FOLIO_RETURN_IF(
        check_least(c, "gate_stride", a->gate_stride, "dim", a->dim));
    FOLIO_RETURN_IF(check_least(c, "up_stride", a->up_stride, "dim", a->dim));
    FOLIO_RETURN_IF(check_least(c, "out_stride", a->out_stride, "dim", a->dim));
    if (a->act != FOLIO_ACT_SILU && a->act != FOLIO_ACT_GELU_TANH)
        return FAIL(c, FOLIO_E_UNSUPPORTED, "act_mul: activation %d is unknown",
                    (int)a->act);
    extent gate = rows4(a->n_tok, a->gate_stride, a->dim);
    extent up = rows4(a->n_tok, a->up_stride, a->dim);
    extent out = rows4(a->n_tok, a->out_stride, a->dim);
    FOLIO_RETURN_IF(check_view(c, "gate", a->gate, gate, false));
    FOLIO_RETURN_IF(check_view(c, "up", a->up, up, false));
    FOLIO_RETURN_IF(check_view(c, "out", a->out, out, false));
    FOLIO_RETURN_IF(
        check_alias(c, "out", a->out, out, "gate", a->gate, gate, true));
    return check_alias(c, "out", a->out, out, "up", a->up, up, true);
}

static folio_status check_add(const check *c, const folio_add_args *a)
{
    FOLIO_RETURN_IF(check_view(c, "x", a->x, dense4(a->n), false));
    FOLIO_RETURN_IF(check_view(c, "y", a->y, dense4(a->n), false));
    return check_alias(c, "y", a->y, dense4(a->n), "x", a->x, dense4(a->n),
                       true);
}

static folio_status check_topk(const check *c, const folio_topk_args *a)
{
    FOLIO_RETURN_IF(check_least(c, "n_vocab", a->n_vocab, "", 1));
    FOLIO_RETURN_IF(check_range(c, "k", a->k, 1, 64));
    extent x = rows4(a->n_rows, a->n_vocab, a->n_vocab);
    extent best = rows4(a->n_rows, a->k, a->k);
    extent nan = dense4(a->n_rows);
    FOLIO_RETURN_IF(check_view(c, "x", a->x, x, false));
    FOLIO_RETURN_IF(check_view(c, "ids", a->ids, best, false));
    FOLIO_RETURN_IF(check_view(c, "values", a->values, best, false));
    FOLIO_RETURN_IF(check_view(c, "n_nan", a->n_nan, nan, false));
    FOLIO_RETURN_IF(check_alias(c, "ids", a->ids, best, "x", a->x, x, false));
    FOLIO_RETURN_IF(
        check_alias(c, "values", a->values, best, "x", a->x, x, false));
    FOLIO_RETURN_IF(
        check_alias(c, "n_nan", a->n_nan, nan, "x", a->x, x, false));
    FOLIO_RETURN_IF(
        check_alias(c, "values", a->values, best, "ids", a->ids, best, false));
    FOLIO_RETURN_IF(
        check_alias(c, "n_nan", a->n_nan, nan, "ids", a->ids, best, false));
    return check_alias(c, "n_nan", a->n_nan, nan, "values", a->values, best,
                       false);
}

static folio_status check_copy(const check *c, const folio_copy_blocks_args *a)
{
    FOLIO_RETURN_IF(check_kv(c, &a->kv));
    return check_view(c, "pairs", a->pairs, dense4((int64_t)a->n_pairs * 2),
                      false);
}

static folio_status check_sample(const check *c, const folio_sample_args *a)
{
    FOLIO_RETURN_IF(check_range(c, "n_vocab", a->n_vocab, 1, 1 << 20));
    FOLIO_RETURN_IF(check_least(c, "stride", a->stride, "n_vocab", a->n_vocab));
    FOLIO_RETURN_IF(check_least(c, "n_edits", a->n_edits, "", 0));
    FOLIO_RETURN_IF(check_least(c, "n_slots", a->n_slots, "", 0));
    const int64_t n = a->n_rows;
    const struct {
        const char *name;
        folio_view v;
        extent e;
        bool optional;
    } in[] =
        {
            {"logits", a->logits, rows4(n, a->stride, a->n_vocab), false},
            {"rows", a->rows, dense4(n * FOLIO_SAMPLE_IN), false},
            {"edits", a->edits, dense4((int64_t)a->n_edits * 2),
             a->n_edits == 0},
        },
      out[] = {
          {"counts", a->counts, dense4((int64_t)a->n_slots * a->n_vocab),
           a->n_slots == 0},
          {"ids", a->ids, dense4(n), true},
          {"out", a->out, dense4(n * FOLIO_SAMPLE_OUT), false},
      };
    for (size_t i = 0; i < FOLIO_COUNT(in); i++)
        FOLIO_RETURN_IF(
            check_view(c, in[i].name, in[i].v, in[i].e, in[i].optional));
    for (size_t o = 0; o < FOLIO_COUNT(out); o++) {
        FOLIO_RETURN_IF(
            check_view(c, out[o].name, out[o].v, out[o].e, out[o].optional));
        for (size_t i = 0; i < FOLIO_COUNT(in); i++)
            FOLIO_RETURN_IF(check_alias(c, out[o].name, out[o].v, out[o].e,
                                        in[i].name, in[i].v, in[i].e, false));
        for (size_t i = 0; i < o; i++)
            FOLIO_RETURN_IF(check_alias(c, out[o].name, out[o].v, out[o].e,
                                        out[i].name, out[i].v, out[i].e,
                                        false));
    }
    return FOLIO_OK;
}

const folio_check_parts folio_check_shared = {
    .least = check_least,
    .range = check_range,
    .view = check_view,
    .alias = check_alias,
    .weight = check_weight,
    .kv = check_kv,
    .off_kv = check_off_kv,
};

int64_t folio_op_count(folio_op_id id, const void *args)
{
    switch (id) {
    case FOLIO_OP_EMBED:
        return ((const folio_embed_args *)args)->n_tok;
    case FOLIO_OP_GATHER_ROWS:
        return ((const folio_gather_rows_args *)args)->n_rows;
    case FOLIO_OP_RMSNORM:
        return ((const folio_rmsnorm_args *)args)->n_rows;
    case FOLIO_OP_LINEAR:
        return ((const folio_linear_args *)args)->n_tok;
    case FOLIO_OP_ROPE_APPEND:
        return ((const folio_rope_append_args *)args)->n_tok;
    case FOLIO_OP_ATTN:
        return ((const folio_attn_args *)args)->n_tok;
    case FOLIO_OP_ACT_MUL:
        return ((const folio_act_mul_args *)args)->n_tok;
    case FOLIO_OP_ADD:
        return ((const folio_add_args *)args)->n;
    case FOLIO_OP_TOPK:
        return ((const folio_topk_args *)args)->n_rows;
    case FOLIO_OP_COPY_BLOCKS:
        return ((const folio_copy_blocks_args *)args)->n_pairs;
    case FOLIO_OP_SAMPLE:
        return ((const folio_sample_args *)args)->n_rows;
    case FOLIO_OP_NORM_LINEAR:
        return ((const folio_norm_linear_args *)args)->n_tok;
    case FOLIO_OP_QKV:
        return ((const folio_qkv_args *)args)->n_tok;
    case FOLIO_OP_GATE_UP:
        return ((const folio_gate_up_args *)args)->n_tok;
    case FOLIO_OP_STEP:
        return ((const folio_step_args *)args)->n_tok;
    case FOLIO_OP_COUNT:
        break;
    }
    return 0;
}

static const char *count_field(folio_op_id id)
{
    switch (id) {
    case FOLIO_OP_GATHER_ROWS:
    case FOLIO_OP_RMSNORM:
    case FOLIO_OP_TOPK:
    case FOLIO_OP_SAMPLE:
        return "n_rows";
    case FOLIO_OP_ADD:
        return "n";
    case FOLIO_OP_COPY_BLOCKS:
        return "n_pairs";
    default:
        return "n_tok";
    }
}

static folio_status check_op(const folio_device *dev, folio_op_id id,
                             const void *args, bool bound)
{
    check c = {.dev = dev, .op = folio_op_name(id), .bound = bound};
    if (!args)
        return FAIL(&c, FOLIO_E_INVAL, "%s: args is NULL", c.op);
    int64_t count = folio_op_count(id, args);
    FOLIO_RETURN_IF(check_least(&c, count_field(id), count, "", 0));
    c.empty = count == 0;
    switch (id) {
    case FOLIO_OP_EMBED:
        return check_embed(&c, args);
    case FOLIO_OP_GATHER_ROWS:
        return check_gather(&c, args);
    case FOLIO_OP_RMSNORM:
        return check_rmsnorm(&c, args);
    case FOLIO_OP_LINEAR:
        return check_linear(&c, args);
    case FOLIO_OP_ROPE_APPEND:
        return check_rope(&c, args);
    case FOLIO_OP_ATTN:
        return check_attn(&c, args);
    case FOLIO_OP_ACT_MUL:
        return check_act_mul(&c, args);
    case FOLIO_OP_ADD:
        return check_add(&c, args);
    case FOLIO_OP_TOPK:
        return check_topk(&c, args);
    case FOLIO_OP_COPY_BLOCKS:
        return check_copy(&c, args);
    case FOLIO_OP_SAMPLE:
        return check_sample(&c, args);
    case FOLIO_OP_NORM_LINEAR:
        return folio_check_norm_linear(&c, args);
    case FOLIO_OP_QKV:
        return folio_check_qkv(&c, args);
    case FOLIO_OP_GATE_UP:
        return folio_check_gate_up(&c, args);
    case FOLIO_OP_STEP:
        return folio_check_step(&c, args);
    case FOLIO_OP_COUNT:
        break;
    }
    return FAIL(&c, FOLIO_E_INVAL, "op %d is unknown", (int)id);
}

folio_status folio_op_check(const folio_device *dev, folio_op_id id,
                            const void *args)
{
    return check_op(dev, id, args, true);
}

folio_status folio_op_check_shape(const folio_device *dev, folio_op_id id,
                                  const void *args)
{
    return check_op(dev, id, args, false);
}
