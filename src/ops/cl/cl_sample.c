/* ops/cl/cl_sample.c: launches the kernel of sample.cl: a work-group a row, or
 * on CPUs a work-item. */
#include "ops/cl/cl_util.h"
#include "ops/sample_row.h"
#include "ops/variants.h"

enum { GEO_WG, GEO_SHAPES, GEO_BINS };

static folio_status open_sample(folio_op *op, const void *args, bool scan)
{
    folio_cl_options o;
    FOLIO_RETURN_IF(folio_sample_scratch(op, args, &op->geo[GEO_SHAPES]));
    folio_cl_options_init(&o, op);
    if (scan)
        folio_cl_define(&o, "SAMPLE_SCAN", 1);
    op->geo[GEO_WG] = scan ? 1 : 256;
    FOLIO_RETURN_IF(folio_cl_kernel_open(
        op, 0, scan ? "sample_scan" : "sample_wg", &o, &op->geo[GEO_WG]));
    op->geo[GEO_BINS] = scan ? 2048 : 8 * op->geo[GEO_WG];
    return FOLIO_OK;
}

static folio_status open_wg(folio_op *op, const void *args)
{
    return open_sample(op, args, false);
}

static folio_status open_scan(folio_op *op, const void *args)
{
    return open_sample(op, args, true);
}

static folio_status run_sample(folio_op *op, folio_queue *q, const void *args)
{
    const folio_sample_args *a = args;
    FOLIO_RETURN_IF(folio_sample_check_run(op, a, op->geo[GEO_SHAPES]));
    const bool edits = a->n_edits > 0, counts = a->n_slots > 0;
    const bool ids = a->ids.buf != NULL;
    const folio_arg list[] = {
        folio_arg_view(a->logits),
        folio_arg_i32(a->stride),
        folio_arg_i32(a->n_vocab),
        folio_arg_view(a->rows),
        folio_arg_view(edits ? a->edits : a->rows),
        folio_arg_view(counts ? a->counts : a->out),
        folio_arg_view(ids ? a->ids : a->out),
        folio_arg_view(a->out),
        folio_arg_view(op->geo[GEO_SHAPES] ? a->scratch : a->out),
        folio_arg_i32((edits ? 1 : 0) | (counts ? 2 : 0) | (ids ? 4 : 0)),
        folio_arg_local((size_t)op->geo[GEO_BINS] * 8),
    };
    const folio_grid grid =
        folio_cl_grid((size_t)a->n_rows, 1, op->geo[GEO_WG]);
    return folio_launch(q, op->kernel[0], &grid, list, FOLIO_COUNT(list));
}

const folio_variant_fns folio_var_sample_wg = {.open = open_wg,
                                               .run = run_sample};
const folio_variant_fns folio_var_sample_scan = {.open = open_scan,
                                                 .run = run_sample};
