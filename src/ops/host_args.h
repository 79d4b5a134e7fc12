/* ops/host_args.h: checks that only the host device can make, because it can
 * read the index arrays of a step: an index outside its range is refused before
 * anything is written. Shared by the references and the host ops. */
#ifndef FOLIO_OPS_HOST_ARGS_H
#define FOLIO_OPS_HOST_ARGS_H

#include "ops/ops.h"

/* RANGE, naming the first of idx[0], idx[step], ... (n of them) that is not in
 * [first, end). */
folio_status folio_host_indices(const folio_op *op, const char *field,
                                const int32_t *idx, int64_t n, int64_t step,
                                int64_t first, int64_t end) FOLIO_NODISCARD;

/* RANGE, naming the first word of a sampling row, or the first edit, that
 * points outside what it indexes. */
folio_status folio_host_sample_rows(const folio_op *op,
                                    const folio_sample_args *a) FOLIO_NODISCARD;

/* Rows of `dim` floats that lie behind the view. */
int64_t folio_host_rows(folio_view v, int32_t dim);

#endif
