/* ops/cl/cl_embed.c: launches the kernels of embed.cl. */
#include "ops/cl/cl_util.h"
#include "ops/variants.h"

enum { GEO_WG };

static folio_status open_embed(folio_op *op, const void *args)
{
    const folio_embed_args *a = args;
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    folio_cl_define(&o, "EMBED", 1);
    folio_cl_define_weight(&o, a->w);
    op->geo[GEO_WG] = 64;
    return folio_cl_kernel_open(op, 0, "embed_group", &o, &op->geo[GEO_WG]);
}

/* One launch per view: the ids lie on the device, so each view finds its own
 * tokens. */
static folio_status run_embed(folio_op *op, folio_queue *q, const void *args)
{
    const folio_embed_args *a = args;
    const folio_weight *w = a->w;
    const int32_t wg = op->geo[GEO_WG];
    const size_t chunks = (size_t)folio_div_up(folio_div_up(w->cols, 32), wg);
    const folio_grid grid = folio_cl_grid((size_t)a->n_tok, chunks, wg);
    for (int32_t i = 0; i < w->n_views; i++) {
        const folio_weight_view *v = &w->views[i];
        const folio_arg list[] = {
            folio_arg_view(a->ids),
            folio_arg_view(v->view),
            folio_arg_view(a->out),
            folio_arg_f32(a->scale),
            folio_arg_i32((int32_t)w->cols),
            folio_arg_u64(folio_cl_row_bytes(w)),
            folio_arg_i32((int32_t)w->rows),
            folio_arg_i32((int32_t)v->first_row),
            folio_arg_i32((int32_t)v->rows),
        };
        FOLIO_RETURN_IF(
            folio_launch(q, op->kernel[0], &grid, list, FOLIO_COUNT(list)));
    }
    return FOLIO_OK;
}

const folio_variant_fns folio_var_embed_group = {.open = open_embed,
                                                 .run = run_embed};

static folio_status open_gather(folio_op *op, const void *args)
{
    (void)args;
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    op->geo[GEO_WG] = 256;
    return folio_cl_kernel_open(op, 0, "gather_rows_wi", &o, &op->geo[GEO_WG]);
}

static folio_status run_gather(folio_op *op, folio_queue *q, const void *args)
{
    const folio_gather_rows_args *a = args;
    const int32_t wg = op->geo[GEO_WG];
    const size_t chunks = (size_t)folio_div_up(a->dim, wg);
    const size_t x_rows = (folio_buf_bytes(a->x.buf) - a->x.offset) /
                          (sizeof(float) * (size_t)a->dim);
    const folio_arg list[] = {
        folio_arg_view(a->x),
        folio_arg_view(a->idx),
        folio_arg_view(a->out),
        folio_arg_i32(a->dim),
        folio_arg_i32((int32_t)FOLIO_MIN(x_rows, (size_t)INT32_MAX)),
    };
    const folio_grid grid = folio_cl_grid((size_t)a->n_rows, chunks, wg);
    return folio_launch(q, op->kernel[0], &grid, list, FOLIO_COUNT(list));
}

const folio_variant_fns folio_var_gather_rows_wi = {.open = open_gather,
                                                    .run = run_gather};
