/* ops/weight.c: rows of a weight on the host device, whatever its packing. */
#include "ops/pack.h"

const uint8_t *folio_weight_blocks_host(const folio_weight *w, int64_t row,
                                        int64_t col, int64_t n, uint8_t *room)
{
    size_t row_bytes = folio_type_row_bytes(w->type, (uint64_t)w->cols);
    for (int32_t i = 0; i < w->n_views; i++) {
        const folio_weight_view *v = &w->views[i];
        if (row >= v->first_row + v->rows)
            continue;
        const uint8_t *p = folio_view_host(v->view);
        int64_t in_view = row - v->first_row;
        if (w->packing == FOLIO_PACK_RAW)
            return p + (size_t)in_view * row_bytes +
                   folio_type_row_bytes(w->type, (uint64_t)col);
        folio_unpack_blocks(w->packing, w->type, w->cols, p, in_view, col, n,
                            room);
        return room;
    }
    return NULL;
}

/* Values unpacked at once: whole blocks of every type; bounds the stack. */
#define CHUNK 256

void folio_weight_row(const folio_weight *w, int64_t row, float *out)
{
    uint8_t room[CHUNK * sizeof(float)];
    for (int64_t col = 0; col < w->cols; col += CHUNK) {
        int64_t n = FOLIO_MIN(w->cols - col, (int64_t)CHUNK);
        const uint8_t *p = folio_weight_blocks_host(w, row, col, n, room);
        if (p)
            folio_dequant(w->type, p, n, out + col);
    }
}
