/* ops/host_args.c: see host_args.h. */
#include "ops/host_args.h"

#include "ops/sample_row.h"

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

folio_status folio_host_sample_rows(const folio_op *op,
                                    const folio_sample_args *a)
{
    const int32_t *w = folio_view_host(a->rows);
    for (int32_t r = 0; r < a->n_rows; r++, w += FOLIO_SAMPLE_IN) {
        const struct {
            const char *name;
            int32_t value, first, end;
        } in[] = {
            {"target", w[SAMPLE_TARGET], -1, a->n_vocab},
            {"slot", w[SAMPLE_SLOT], -1, a->n_slots},
            {"first edit", w[SAMPLE_EDIT_FIRST], 0, a->n_edits + 1},
            {"edit end", w[SAMPLE_EDIT_END], w[SAMPLE_EDIT_FIRST],
             a->n_edits + 1},
        };
        for (size_t i = 0; i < FOLIO_COUNT(in); i++)
            if (in[i].value < in[i].first || in[i].value >= in[i].end)
                return folio_fail(folio_device_log(op->dev), FOLIO_E_RANGE,
                                  "%s: %s of row %" PRId32 " is %" PRId32
                                  ", not in [%" PRId32 ", %" PRId32 ")",
                                  folio_op_name(op->var->op), in[i].name, r,
                                  in[i].value, in[i].first, in[i].end);
    }
    return a->n_edits == 0
               ? FOLIO_OK
               : folio_host_indices(op, "edits", folio_view_host(a->edits),
                                    a->n_edits, 2, 0, a->n_vocab);
}

int64_t folio_host_rows(folio_view v, int32_t dim)
{
    size_t bytes = folio_buf_bytes(v.buf) - v.offset;
    return (int64_t)(bytes / (sizeof(float) * (size_t)dim));
}
