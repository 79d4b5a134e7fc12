/* ops/cl/cl_topk.c: launches the kernels of topk.cl: winners of each part of a
 * row into scratch, then winners of the row. */
#include "ops/cl/cl_util.h"
#include "ops/variants.h"

enum { GEO_WG, GEO_WG_MERGE, GEO_PART };

/* Elements of a part: enough groups for a GPU from one row of a vocabulary,
 * few enough winners for the merge. */
#define PART_WG   2048
#define PART_SCAN 8192

static int64_t count_parts(const folio_op *op, int32_t n_vocab)
{
    return folio_div_up(n_vocab, op->geo[GEO_PART]);
}

static folio_status open_topk(folio_op *op, const folio_topk_args *a, bool scan)
{
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    op->geo[GEO_PART] = scan ? PART_SCAN : PART_WG;
    folio_cl_define(&o, "K", a->k);
    folio_cl_define(&o, "PART", op->geo[GEO_PART]);
    if (scan)
        folio_cl_define(&o, "TOPK_SCAN", 1);
    size_t n_parts, keys, nans;
    if (!folio_mul_size((size_t)op->max_count,
                        (size_t)count_parts(op, a->n_vocab), &n_parts) ||
        !folio_mul_size(n_parts, 8 * (size_t)a->k, &keys) ||
        !folio_mul_size(n_parts, 4, &nans) ||
        !folio_add_size(keys, nans, &op->scratch_bytes))
        return folio_fail(folio_device_log(op->dev), FOLIO_E_TOO_LARGE,
                          "%s: scratch does not fit size_t", op->var->name);
    op->geo[GEO_WG] = op->geo[GEO_WG_MERGE] = scan ? 1 : 256;
    FOLIO_RETURN_IF(folio_cl_kernel_open(
        op, 0, scan ? "topk_scan_part" : "topk_wg_part", &o, &op->geo[GEO_WG]));
    return folio_cl_kernel_open(op, 1,
                                scan ? "topk_scan_merge" : "topk_wg_merge", &o,
                                &op->geo[GEO_WG_MERGE]);
}

static folio_status open_wg(folio_op *op, const void *args)
{
    return open_topk(op, args, false);
}

static folio_status open_scan(folio_op *op, const void *args)
{
    return open_topk(op, args, true);
}

static folio_status run_topk(folio_op *op, folio_queue *q, const void *args)
{
    const folio_topk_args *a = args;
    const size_t n_parts = (size_t)count_parts(op, a->n_vocab);
    const folio_arg list[] = {
        folio_arg_view(a->x),
        folio_arg_i32(a->n_vocab),
        folio_arg_i32((int32_t)n_parts),
        folio_arg_view(a->scratch),
        folio_arg_view(a->ids),
        folio_arg_view(a->values),
        folio_arg_view(a->n_nan),
    };
    const int n_out = 3; /* the last ones are for the merge alone */
    const int n = (int)FOLIO_COUNT(list);
    const folio_grid part =
        folio_cl_grid((size_t)a->n_rows, n_parts, op->geo[GEO_WG]);
    const folio_grid merge =
        folio_cl_grid((size_t)a->n_rows, 1, op->geo[GEO_WG_MERGE]);
    FOLIO_RETURN_IF(folio_launch(q, op->kernel[0], &part, list, n - n_out));
    return folio_launch(q, op->kernel[1], &merge, list, n);
}

const folio_variant_fns folio_var_topk_wg = {.open = open_wg, .run = run_topk};
const folio_variant_fns folio_var_topk_scan = {.open = open_scan,
                                               .run = run_topk};
