/* ops/host_args.c: see host_args.h. */
#include "ops/host_args.h"

#include <inttypes.h>

folio_status folio_host_indices(const folio_op *op, const char *field,
                                const int32_t *idx, int64_t n, int64_t step,
                                int64_t first, int64_t end)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t v = idx[i * step];
        if (v < first || v >= end)
            return folio_fail(folio_device_log(op->dev), FOLIO_E_RANGE,
                              "%s: %s[%" PRId64 "] is %" PRId64
                              ", not in [%" PRId64 ", %" PRId64 ")",
                              folio_op_name(op->var->op), field, i * step, v,
                              first, end);
    }
    return FOLIO_OK;
}

int64_t folio_host_rows(folio_view v, int32_t dim)
{
    size_t bytes = folio_buf_bytes(v.buf) - v.offset;
    return (int64_t)(bytes / (sizeof(float) * (size_t)dim));
}
