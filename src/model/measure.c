/* model/measure.c: what measuring needs beside a forward: a KV pool that looks
 * full, and a hash of ids. */
#include "base/hash.h"
#include "model/runner_internal.h"
#include "model/shape.h"

/* Random numbers are made once and repeated. */
#define PATTERN_BYTES ((size_t)4 << 20)

folio_status folio_runner_fake_kv(folio_runner *r, uint64_t seed)
{
    folio_status st = FOLIO_OK;
    if (!r)
        return FOLIO_E_INVAL;
    const bool half = r->prm.kv_type == FOLIO_KV_F16;
    uint8_t *pattern = folio_calloc(PATTERN_BYTES, 1);
    if (!pattern)
        return folio_fail(&r->model->log, FOLIO_E_NOMEM,
                          "no memory for %zu bytes of random keys",
                          PATTERN_BYTES);
    folio_shape_fill_unit(seed, half, pattern, PATTERN_BYTES / (half ? 2 : 4));
    for (int32_t b = 0; b < r->kv.n_buf; b++) {
        const size_t bytes = folio_buf_bytes(r->kv.buf[b]);
        for (size_t at = 0; at < bytes; at += PATTERN_BYTES)
            FOLIO_TRY(folio_queue_write(r->queue,
                                        (folio_view){r->kv.buf[b], at}, pattern,
                                        FOLIO_MIN(PATTERN_BYTES, bytes - at)));
    }
    st = folio_queue_finish(r->queue);
fail:
    free(pattern);
    return st;
}

uint64_t folio_ids_hash(const int32_t *ids, size_t n)
{
    return folio_hash_bytes(ids, n * sizeof *ids, 0).lo;
}
