/* sched/prefix_index.h: which full blocks hold which tokens, so that a prefix
 * need not be computed twice. An entry is a node of a tree: a block's tokens
 * under the block before it, below a root per salt. Found by a chained 128-bit
 * hash, believed only after the tokens, the salt and the parent were compared.
 * Owns no holder of a block. Never allocates after open.
 *
 * Parents are named by serial numbers that are never used again. Whoever holds
 * a block of the tree holds its ancestors, and blocks are given back deepest
 * first, so a parent never leaves the pool before its children.
 *
 * Source: automatic prefix caching with chained block hashes as in vLLM; the
 * comparison of tokens, salts as part of the node and blocks in flight are
 * folio's. */
#ifndef FOLIO_SCHED_PREFIX_INDEX_H
#define FOLIO_SCHED_PREFIX_INDEX_H

#include "base/base.h"
#include "base/hash.h"

typedef enum folio_prefix_state {
    FOLIO_PREFIX_NONE = 0,
    FOLIO_PREFIX_IN_FLIGHT = 1, /* its holder is computing it */
    FOLIO_PREFIX_READY = 2      /* computed; the block is published */
} folio_prefix_state;

/* In place of folio_hash_bytes, for tests of collisions. */
typedef folio_hash128 (*folio_prefix_hash_fn)(const void *data, size_t bytes,
                                              uint64_t seed);

typedef struct folio_prefix_index {
    int32_t n_blocks, block_tok;
    uint64_t seed;
    folio_prefix_hash_fn hash_fn;
    uint64_t next_serial; /* from 1 */
    int32_t n_entries;
    uint32_t bucket_mask;
    int32_t *bucket; /* [mask + 1] first block of the bucket, or -1 */
    /* Per block of the pool, valid where state is not NONE. */
    int32_t *next; /* [N] in its bucket */
    uint8_t *state;
    uint64_t *serial, *parent; /* parent 0: a root */
    folio_hash128 *hash;
    int32_t *tok;  /* [N, BS] */
    uint8_t *salt; /* [N, 1 + FOLIO_SALT_MAX] of roots: length, bytes */
    void *scratch; /* what one hash reads */
} folio_prefix_index;

/* Where one block of a request stands in its chain. */
typedef struct folio_prefix_key {
    folio_hash128 hash;
    uint64_t parent;    /* serial of the block before, 0: none */
    const int32_t *tok; /* [BS] */
    const uint8_t *salt;
    int32_t salt_bytes;
} folio_prefix_key;

/* seed 0: from clock and address, another one each time. hash_fn NULL: XXH3.
 * NOMEM; _fini accepts a zeroed and a half-made index. */
folio_status folio_prefix_index_init(folio_prefix_index *x, int32_t n_blocks,
                                     int32_t block_tok, uint64_t seed,
                                     folio_prefix_hash_fn hash_fn,
                                     const folio_log *log) FOLIO_NODISCARD;
void folio_prefix_index_fini(folio_prefix_index *x);

/* Hash of a block with the tokens tok [BS]: `prev` is that of the block before,
 * or NULL for the first one, which is tagged with the salt. */
folio_hash128 folio_prefix_index_hash(const folio_prefix_index *x,
                                      const folio_hash128 *prev,
                                      const uint8_t *salt, int32_t salt_bytes,
                                      const int32_t *tok);

/* The block that holds what `key` says, ready or in flight, or -1. */
int32_t folio_prefix_index_find(const folio_prefix_index *x,
                                const folio_prefix_key *key);

/* Enters block `blk`, which must have no entry, under `key`, which must not be
 * found. Returns its serial. */
uint64_t folio_prefix_index_put(folio_prefix_index *x, int32_t blk,
                                const folio_prefix_key *key,
                                folio_prefix_state state);

/* Drops the entry of `blk`; none is fine. */
void folio_prefix_index_drop(folio_prefix_index *x, int32_t blk);

#endif
