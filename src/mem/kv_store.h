/* mem/kv_store.h: the KV pool of a runner: K and V of all layers, in one arena
 * each where it fits in four buffers, else in buffers per layer. Ops see only
 * the planes. Decides no policy: which block holds what is the caller's. */
#ifndef FOLIO_MEM_KV_STORE_H
#define FOLIO_MEM_KV_STORE_H

#include "ops/ops.h"

typedef struct folio_kv_store {
    folio_kv_ref *layer; /* [n_layers] */
    int32_t n_layers;
    folio_buf **buf;
    int32_t n_buf;
    uint64_t bytes;
} folio_kv_store;

/* `shape` gives type, layout, n_blocks, block_size, kv_heads, head_dim; its
 * planes are ignored. TOO_LARGE names what a layer needs and what four buffers
 * hold. A failed open leaves nothing behind. */
folio_status folio_kv_store_open(folio_device *dev, const folio_kv_ref *shape,
                                 int32_t n_layers,
                                 folio_kv_store *out) FOLIO_NODISCARD;
void folio_kv_store_fini(folio_kv_store *s);

#endif
