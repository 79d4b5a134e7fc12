/* base/hash.c: XXH3-128 in the canonical (big-endian) notation that xxh128sum
 * prints. Not for secrets. */
#include "base/hash.h"

#include <xxhash.h>

folio_hash128 folio_hash_bytes(const void *data, size_t bytes, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(bytes ? data : "", bytes, seed);
    return (folio_hash128){.lo = h.low64, .hi = h.high64};
}

void folio_hash_hex(folio_hash128 h, char out[33])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        out[i] = digits[h.hi >> (60 - 4 * i) & 15];
        out[16 + i] = digits[h.lo >> (60 - 4 * i) & 15];
    }
    out[32] = '\0';
}
