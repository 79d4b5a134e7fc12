/* ops/kv_host.h: host-side access to the elements of a KV pool, for the
 * references and the host device's ops. Knows the storage contract of ops.h and
 * the shared formula of kv_layout.clh; decides no policy. */
#ifndef FOLIO_OPS_KV_HOST_H
#define FOLIO_OPS_KV_HOST_H

#include "base/half.h"
#include "cl/kv_layout.clh"
#include "ops/ops.h"

/* Start of block `block`, head 0, of one plane on the host device. All heads of
 * a block are contiguous: head h begins h * BS * HD elements later. */
static inline uint8_t *folio_kv_block_host(const folio_kv_ref *kv,
                                           const folio_kv_plane *plane,
                                           int32_t block)
{
    uint32_t b = (uint32_t)block;
    uint32_t seg = b >> plane->seg_shift;
    uint32_t in = b & (((uint32_t)1 << plane->seg_shift) - 1);
    return (uint8_t *)folio_buf_host(plane->buf[seg]) + plane->offset +
           (size_t)in * folio_kv_block_bytes(kv);
}

/* Writes element `index` of a tile; f16 rounds to nearest even. */
static inline void folio_kv_put(folio_kv_type type, void *tile, size_t index,
                                float v)
{
    if (type == FOLIO_KV_F16)
        ((uint16_t *)tile)[index] = folio_f32_to_f16(v);
    else
        ((float *)tile)[index] = v;
}

static inline float folio_kv_get(folio_kv_type type, const void *tile,
                                 size_t index)
{
    if (type == FOLIO_KV_F16)
        return folio_f16_to_f32(((const uint16_t *)tile)[index]);
    return ((const float *)tile)[index];
}

#endif
