/* ops/cl/cl_copy.c: launches the kernel of copy.cl. */
#include "ops/cl/cl_util.h"
#include "ops/variants.h"

enum { GEO_WG, GEO_SEGS };

static const char *fits_copy(const folio_device *dev,
                             const folio_op_params *prm, const void *args)
{
    (void)dev;
    (void)prm;
    const folio_copy_blocks_args *a = args;
    return folio_cl_kv_refuse(&a->kv);
}

static folio_status open_copy(folio_op *op, const void *args)
{
    const folio_copy_blocks_args *a = args;
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    op->geo[GEO_SEGS] = folio_cl_kv_segs(&a->kv);
    folio_cl_define_kv(&o, &a->kv, op->geo[GEO_SEGS]);
    op->geo[GEO_WG] = 256;
    return folio_cl_kernel_open(op, 0, "copy_blocks_wi", &o, &op->geo[GEO_WG]);
}

static folio_status run_copy(folio_op *op, folio_queue *q, const void *args)
{
    const folio_copy_blocks_args *a = args;
    const folio_kv_ref *kv = &a->kv;
    const int32_t wg = op->geo[GEO_WG], segs = op->geo[GEO_SEGS];
    FOLIO_RETURN_IF(folio_cl_check_segs(op, kv, segs));
    const int64_t elems = (int64_t)kv->kv_heads * kv->block_size * kv->head_dim;
    const size_t chunks = (size_t)folio_div_up(elems, wg);
    folio_arg list[2 + 2 * (FOLIO_KV_MAX_BUFS + 1)];
    int n = 0;
    list[n++] = folio_arg_view(a->pairs);
    list[n++] = folio_arg_i32(kv->n_blocks);
    n = folio_cl_kv_args(list, n, &kv->k, segs);
    n = folio_cl_kv_args(list, n, &kv->v, segs);
    folio_grid grid = folio_cl_grid((size_t)a->n_pairs, chunks, wg);
    grid.groups[2] = 2; /* K, V */
    return folio_launch(q, op->kernel[0], &grid, list, n);
}

const folio_variant_fns folio_var_copy_blocks_wi = {
    .fits = fits_copy, .open = open_copy, .run = run_copy};
