/* ops/cl/cl_gemv.h: how kernels on gemv.clh are compiled: for the launchers of
 * linear and of the fused ops. */
#ifndef FOLIO_OPS_CL_CL_GEMV_H
#define FOLIO_OPS_CL_CL_GEMV_H

#include "ops/ops.h"

/* N, LANES, GEMV_UNROLL and KC of gemv.clh. */
typedef struct folio_gemv_shape {
    int32_t toks, lanes, unroll, kc;
    size_t more; /* bytes of local memory a token, beside x and sums */
} folio_gemv_shape;

/* Columns of a 16-byte piece; 0 for types that gemv.clh does not read. */
int32_t folio_gemv_cols(folio_type type);
/* The fewest work-items of a tile. */
int32_t folio_gemv_least_lanes(const folio_weight *w);
/* Sets kc, given toks and lanes, to as many columns as local memory takes, up
 * to `most`, in whole steps of the loop; lowers unroll where one step is too
 * many. The order of sums depends on neither. False where nothing fits. */
bool folio_gemv_find_columns(const folio_device *dev, const folio_weight *w,
                             bool i8, int32_t most, folio_gemv_shape *s);

#endif
