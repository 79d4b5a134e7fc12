/* mem/kv_store.c: see kv_store.h. */
#include "mem/kv_store.h"

#include <string.h>

typedef struct split {
    int32_t shift;  /* log2 of blocks per buffer; 31 = all in one */
    int32_t blocks; /* blocks per buffer */
    int32_t n_buf;
} split;

/* Fewest buffers (1, 2 or 4 and powers of two of blocks) such that `layers`
 * layers of blocks stay under `limit`; false when four do not do. */
static bool split_blocks(int32_t n_blocks, size_t block_bytes, int32_t layers,
                         size_t limit, split *out)
{
    size_t per_block;
    if (!folio_mul_size(block_bytes, (size_t)layers, &per_block))
        return false;
    size_t fit = limit / per_block;
    if (fit >= (size_t)n_blocks) {
        *out = (split){31, n_blocks, 1};
        return true;
    }
    if (fit == 0)
        return false;
    int32_t shift = 0;
    while (shift < 30 && (size_t)2 << shift <= fit)
        shift++;
    int64_t n_buf = folio_div_up(n_blocks, (int64_t)1 << shift);
    if (n_buf > FOLIO_KV_MAX_BUFS)
        return false;
    *out = (split){shift, (int32_t)1 << shift, (int32_t)n_buf};
    return true;
}

/* Opens the buffers of one arena that holds `layers` layers. */
static folio_status open_arena(folio_device *dev, folio_kv_store *s,
                               const split *sp, int32_t n_blocks,
                               size_t block_bytes, int32_t layers,
                               folio_kv_plane *plane)
{
    memset(plane, 0, sizeof *plane);
    plane->seg_shift = sp->shift;
    for (int32_t b = 0; b < sp->n_buf; b++) {
        int32_t here = FOLIO_MIN(sp->blocks, n_blocks - b * sp->blocks);
        size_t bytes =
            ((size_t)(layers - 1) * (size_t)sp->blocks + (size_t)here) *
            block_bytes;
        FOLIO_RETURN_IF(folio_buf_open(dev, bytes, &s->buf[s->n_buf]));
        plane->buf[b] = s->buf[s->n_buf++];
        plane->n_buf = b + 1;
        s->bytes += bytes;
    }
    return FOLIO_OK;
}

folio_status folio_kv_store_open(folio_device *dev, const folio_kv_ref *shape,
                                 int32_t n_layers, folio_kv_store *out)
{
    folio_status st;
    folio_kv_store s = {0};
    size_t limit = folio_device_max_alloc(dev);
    size_t bb = folio_kv_block_bytes(shape);
    int32_t n = shape->n_blocks;
    split sp;
    bool arena = split_blocks(n, bb, n_layers, limit, &sp);
    if (!arena && !split_blocks(n, bb, 1, limit, &sp))
        return folio_fail(folio_device_log(dev), FOLIO_E_TOO_LARGE,
                          "KV pool: %d blocks of %zu bytes do not fit in %d "
                          "buffers of at most %zu bytes for one layer",
                          n, bb, FOLIO_KV_MAX_BUFS, limit);
    int32_t groups = arena ? 1 : n_layers;
    s.layer = folio_calloc((size_t)n_layers, sizeof *s.layer);
    s.buf = folio_calloc((size_t)groups * 2 * FOLIO_KV_MAX_BUFS, sizeof *s.buf);
    s.n_layers = n_layers;
    if (!s.layer || !s.buf) {
        st = FOLIO_E_NOMEM;
        goto fail;
    }
    for (int32_t g = 0; g < groups; g++) {
        int32_t layers = arena ? n_layers : 1;
        folio_kv_plane k, v;
        FOLIO_TRY(open_arena(dev, &s, &sp, n, bb, layers, &k));
        FOLIO_TRY(open_arena(dev, &s, &sp, n, bb, layers, &v));
        for (int32_t l = 0; l < layers; l++) {
            folio_kv_ref *ref = &s.layer[g + l];
            *ref = *shape;
            ref->k = k;
            ref->v = v;
            ref->k.offset = ref->v.offset = (size_t)l * (size_t)sp.blocks * bb;
        }
    }
    *out = s;
    return FOLIO_OK;
fail:
    folio_kv_store_fini(&s);
    return st;
}

void folio_kv_store_fini(folio_kv_store *s)
{
    for (int32_t b = 0; b < s->n_buf; b++)
        folio_buf_close(&s->buf[b]);
    FOLIO_FREE(s->buf);
    FOLIO_FREE(s->layer);
    memset(s, 0, sizeof *s);
}
