/* ops/cl/cl_norm.c: launches the kernels of norm.cl. */
#include "ops/cl/cl_util.h"
#include "ops/variants.h"

enum { GEO_WG };

static folio_status open_wg(folio_op *op, const void *args)
{
    (void)args;
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    op->geo[GEO_WG] = 256;
    return folio_cl_kernel_open(op, 0, "rmsnorm_wg", &o, &op->geo[GEO_WG]);
}

static folio_status open_row(folio_op *op, const void *args)
{
    (void)args;
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    op->geo[GEO_WG] = 1;
    return folio_cl_kernel_open(op, 0, "rmsnorm_row", &o, &op->geo[GEO_WG]);
}

static folio_status run_rmsnorm(folio_op *op, folio_queue *q, const void *args)
{
    const folio_rmsnorm_args *a = args;
    const folio_arg list[] = {
        folio_arg_view(a->x),
        folio_arg_i32(a->x_stride),
        folio_arg_view(a->w),
        folio_arg_view(a->out),
        folio_arg_i32(a->out_stride),
        folio_arg_i32(a->dim),
        folio_arg_f32(a->eps),
        folio_arg_view(a->res.buf ? a->res : a->out),
        folio_arg_i32(a->res.buf != NULL),
    };
    const folio_grid grid =
        folio_cl_grid((size_t)a->n_rows, 1, op->geo[GEO_WG]);
    return folio_launch(q, op->kernel[0], &grid, list, FOLIO_COUNT(list));
}

const folio_variant_fns folio_var_rmsnorm_wg = {.open = open_wg,
                                                .run = run_rmsnorm};
const folio_variant_fns folio_var_rmsnorm_row = {.open = open_row,
                                                 .run = run_rmsnorm};
