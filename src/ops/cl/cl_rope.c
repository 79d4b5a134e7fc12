/* ops/cl/cl_rope.c: launches the kernel of rope.cl. */
#include "ops/cl/cl_util.h"
#include "ops/variants.h"

enum { GEO_WG, GEO_SEGS, GEO_HAS_Q };

static const char *fits_rope(const folio_device *dev,
                             const folio_op_params *prm, const void *args)
{
    (void)dev;
    (void)prm;
    const folio_rope_append_args *a = args;
    return folio_cl_kv_refuse(&a->kv);
}

static folio_status open_rope(folio_op *op, const void *args)
{
    const folio_rope_append_args *a = args;
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    op->geo[GEO_SEGS] = folio_cl_kv_segs(&a->kv);
    op->geo[GEO_HAS_Q] = a->heads > 0 && a->rot_dim > 0;
    folio_cl_define_kv(&o, &a->kv, op->geo[GEO_SEGS]);
    folio_cl_define(&o, "ROT", a->rot_dim);
    folio_cl_define(&o, "INTERLEAVED", a->interleaved);
    folio_cl_define(&o, "HAS_Q", op->geo[GEO_HAS_Q]);
    op->geo[GEO_WG] = 128;
    return folio_cl_kernel_open(op, 0, "rope_append_wi", &o, &op->geo[GEO_WG]);
}

static folio_status run_rope(folio_op *op, folio_queue *q, const void *args)
{
    const folio_rope_append_args *a = args;
    const folio_kv_ref *kv = &a->kv;
    const int32_t wg = op->geo[GEO_WG], segs = op->geo[GEO_SEGS];
    FOLIO_RETURN_IF(folio_cl_check_segs(op, kv, segs));
    /* Without q no pair is turned, and what is bound for it is not touched. */
    const int32_t heads = a->q.buf ? a->heads : 0;
    int64_t items = (int64_t)kv->kv_heads * kv->head_dim;
    folio_arg list[24];
    int n = 0;
    if (op->geo[GEO_HAS_Q]) {
        items += (int64_t)heads * (a->rot_dim / 2);
        list[n++] = folio_arg_view(a->q.buf ? a->q : a->k);
        list[n++] = folio_arg_i32(a->q_stride);
        list[n++] = folio_arg_i32(heads);
    }
    list[n++] = folio_arg_view(a->k);
    list[n++] = folio_arg_i32(a->k_stride);
    list[n++] = folio_arg_view(a->v);
    list[n++] = folio_arg_i32(a->v_stride);
    list[n++] = folio_arg_view(a->slot);
    if (a->rot_dim > 0) {
        list[n++] = folio_arg_view(a->pos);
        list[n++] = folio_arg_view(a->table);
        list[n++] = folio_arg_i32(a->n_pos);
    }
    const size_t chunks = (size_t)folio_div_up(items, wg);
    list[n++] = folio_arg_i32(kv->n_blocks * kv->block_size);
    n = folio_cl_kv_args(list, n, &kv->k, segs);
    n = folio_cl_kv_args(list, n, &kv->v, segs);
    const folio_grid grid = folio_cl_grid((size_t)a->n_tok, chunks, wg);
    return folio_launch(q, op->kernel[0], &grid, list, n);
}

const folio_variant_fns folio_var_rope_append_wi = {
    .fits = fits_rope, .open = open_rope, .run = run_rope};
