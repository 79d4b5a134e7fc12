/* ops/weight.c: rows of a weight on the host device. */
#include "ops/ops.h"

const uint8_t *folio_weight_row_host(const folio_weight *w, int64_t row)
{
    size_t row_bytes = folio_type_row_bytes(w->type, (uint64_t)w->cols);
    for (int32_t i = 0; i < w->n_views; i++) {
        const folio_weight_view *v = &w->views[i];
        if (row < v->first_row + v->rows)
            return (const uint8_t *)folio_view_host(v->view) +
                   (size_t)(row - v->first_row) * row_bytes;
    }
    return NULL;
}

void folio_weight_row(const folio_weight *w, int64_t row, float *out)
{
    const uint8_t *p = folio_weight_row_host(w, row);
    if (p)
        folio_dequant(w->type, p, w->cols, out);
}
