/* ops/cl/cl_act.c: launches the kernels of act.cl. */
#include "ops/cl/cl_util.h"
#include "ops/variants.h"

enum { GEO_WG };

static folio_status open_act_mul(folio_op *op, const void *args)
{
    const folio_act_mul_args *a = args;
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    if (a->act == FOLIO_ACT_GELU_TANH)
        folio_cl_define(&o, "ACT_GELU_TANH", 1);
    op->geo[GEO_WG] = 256;
    return folio_cl_kernel_open(op, 0, "act_mul_wi", &o, &op->geo[GEO_WG]);
}

static folio_status run_act_mul(folio_op *op, folio_queue *q, const void *args)
{
    const folio_act_mul_args *a = args;
    const int32_t wg = op->geo[GEO_WG];
    const size_t chunks = (size_t)folio_div_up(a->dim, wg);
    const folio_arg list[] = {
        folio_arg_view(a->gate), folio_arg_i32(a->gate_stride),
        folio_arg_view(a->up),   folio_arg_i32(a->up_stride),
        folio_arg_view(a->out),  folio_arg_i32(a->out_stride),
        folio_arg_i32(a->dim),
    };
    const folio_grid grid = folio_cl_grid((size_t)a->n_tok, chunks, wg);
    return folio_launch(q, op->kernel[0], &grid, list, FOLIO_COUNT(list));
}

const folio_variant_fns folio_var_act_mul_wi = {.open = open_act_mul,
                                                .run = run_act_mul};

static folio_status open_add(folio_op *op, const void *args)
{
    (void)args;
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    op->geo[GEO_WG] = 256;
    return folio_cl_kernel_open(op, 0, "add_wi", &o, &op->geo[GEO_WG]);
}

static folio_status run_add(folio_op *op, folio_queue *q, const void *args)
{
    const folio_add_args *a = args;
    const int32_t wg = op->geo[GEO_WG];
    const folio_arg list[] = {
        folio_arg_view(a->x),
        folio_arg_view(a->y),
        folio_arg_u64((uint64_t)a->n),
    };
    const folio_grid grid =
        folio_cl_grid((size_t)folio_div_up(a->n, wg), 1, wg);
    return folio_launch(q, op->kernel[0], &grid, list, FOLIO_COUNT(list));
}

const folio_variant_fns folio_var_add_wi = {.open = open_add, .run = run_add};
