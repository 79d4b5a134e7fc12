/* ops/attn_host.h: what the reference and the host form of attention share:
 * where a key's element lies in host memory, and the check of a step's tables.
 * Element access is exact and slow. */
#ifndef FOLIO_OPS_ATTN_HOST_H
#define FOLIO_OPS_ATTN_HOST_H

#include "ops/kv_host.h"

/* The BS * HD elements of (block, KV head). */
static inline uint8_t *folio_attn_host_tile(const folio_kv_ref *kv,
                                            const folio_kv_plane *plane,
                                            int32_t block, int32_t kvh)
{
    return folio_kv_block_host(kv, plane, block) +
           folio_kv_block_bytes(kv) / (size_t)kv->kv_heads * (size_t)kvh;
}

/* Dim d of key number `key` of a sequence, through its block table. */
static inline float folio_attn_host_k(const folio_kv_ref *kv,
                                      const int32_t *table, int32_t key,
                                      int32_t kvh, int32_t d)
{
    int32_t bs = kv->block_size;
    return folio_kv_get(
        kv->type, folio_attn_host_tile(kv, &kv->k, table[key / bs], kvh),
        folio_kv_index((unsigned)(key % bs), (unsigned)d, (unsigned)bs,
                       (unsigned)kv->layout.xk, (unsigned)kv->layout.yk));
}

static inline float folio_attn_host_v(const folio_kv_ref *kv,
                                      const int32_t *table, int32_t key,
                                      int32_t kvh, int32_t d)
{
    int32_t bs = kv->block_size;
    return folio_kv_get(
        kv->type, folio_attn_host_tile(kv, &kv->v, table[key / bs], kvh),
        folio_kv_index((unsigned)(key % bs), (unsigned)d, (unsigned)bs,
                       (unsigned)kv->layout.xv, (unsigned)kv->layout.yv));
}

/* RANGE where a length or a table entry that will be used lies outside the
 * batch or the pool; entries past ceil(kv_len / BS) are not looked at. */
folio_status folio_attn_host_check(const folio_op *op,
                                   const folio_attn_args *a) FOLIO_NODISCARD;

#endif
