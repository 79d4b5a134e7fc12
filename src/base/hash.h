/* base/hash.h: 128-bit non-cryptographic hashing (XXH3 through xxhash). */
#ifndef FOLIO_BASE_HASH_H
#define FOLIO_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct folio_hash128 {
    uint64_t lo, hi;
} folio_hash128;

folio_hash128 folio_hash_bytes(const void *data, size_t bytes, uint64_t seed);
/* 32 lower-case hex digits and a zero byte. */
void folio_hash_hex(folio_hash128 h, char out[33]);

#endif
