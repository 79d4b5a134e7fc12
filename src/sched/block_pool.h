/* sched/block_pool.h: what the other files of this room need of a pool beyond
 * folio/kv.h. Arguments here were checked by the caller (asserted). */
#ifndef FOLIO_SCHED_BLOCK_POOL_H
#define FOLIO_SCHED_BLOCK_POOL_H

#include <folio/kv.h>

#include "base/base.h"

/* Another reference to the pool itself (not to a block); folio_block_pool_close
 * drops one. */
folio_block_pool *folio_block_pool_ref(folio_block_pool *pool);

/* Where objects on this pool log. */
const folio_log *folio_block_pool_log(const folio_block_pool *pool);

int32_t folio_block_pool_n_blocks(const folio_block_pool *pool);
int32_t folio_block_pool_block_tok(const folio_block_pool *pool);

/* Blocks that can be taken now. */
int32_t folio_block_pool_n_free(const folio_block_pool *pool);

/* Changes whenever a block loses its last holder, and whenever a cached one
 * gets a holder again or becomes free; not where blocks are taken. */
uint64_t folio_block_pool_n_moves(const folio_block_pool *pool);

/* The list of cached blocks, for the audit. */
typedef struct folio_block_lru {
    const int32_t *older, *newer; /* [N] neighbours, -1: none */
    const uint64_t *since;        /* [N] n_moves when it became cached */
    int32_t oldest, newest;       /* -1: the list is empty */
    int32_t n;
} folio_block_lru;

folio_block_lru folio_block_pool_lru(const folio_block_pool *pool);

/* Takes n <= n_free blocks. Never fails. */
void folio_block_pool_take_n(folio_block_pool *pool, int32_t n, int32_t *out);

/* INVAL, logged in the name of `who`, unless blk is a held block. */
folio_status folio_block_pool_check_held(const folio_block_pool *pool,
                                         const char *who,
                                         int32_t blk) FOLIO_NODISCARD;

/* As folio_block_pool_retain for each of n distinct ids, all or none. */
folio_status folio_block_pool_retain_all(folio_block_pool *pool,
                                         const int32_t *blks,
                                         int32_t n) FOLIO_NODISCARD;

/* Whether a write into the held block `blk` would be seen by somebody else than
 * its one holder. */
bool folio_block_pool_is_shared(const folio_block_pool *pool, int32_t blk);

/* ceil(n_tok / BS) without a range check; n_tok >= 0. */
int64_t folio_block_pool_ceil(const folio_block_pool *pool, int64_t n_tok);

#endif
