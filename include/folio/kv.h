/* folio/kv.h: tier 0, paging. A pool of KV blocks with reference counts, the
 * block table of one sequence, and the paged state of one sequence across its
 * layers. Integers only: no device and no K or V bytes. The caller keeps those
 * wherever it likes and lets this header decide which place is whose.
 *
 * Words. BS: tokens per block, N: blocks of the pool. A block id is in [0, N).
 * A slot is the place of one token, block * BS + offset, in [0, N * BS).
 *
 * Rules that hold for every function here.
 * - Arguments: handle, inputs, outputs last; a count stands right after its
 *   array. [out] is written only on FOLIO_OK.
 * - A failed call leaves every object as it was before the call.
 * - A NULL handle or a NULL required pointer is INVAL; functions that return a
 *   value give 0, NULL or a zeroed struct for a NULL handle.
 * - Each failure but FULL is logged once, at ERROR, through the pool's log (a
 *   NULL handle and a pool's foreign `size` have no log to go to).
 * - Nothing allocates after open, and the work is constant per block named or
 *   moved (slots: per token).
 * - Threads: a pool and all tables and sequences on it belong to one thread at
 *   a time; distinct pools are independent.
 *
 * Source: the block tables of PagedAttention (Kwon et al., "Efficient Memory
 * Management for Large Language Model Serving with PagedAttention", SOSP
 * 2023), with LIFO reuse, states and copy-on-write as defined here. */
#ifndef FOLIO_KV_H
#define FOLIO_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <folio/log.h>
#include <folio/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- block pool ---------------------------------------------------------- */

typedef struct folio_block_pool folio_block_pool;

/* A block is in exactly one of three states. */
typedef enum folio_block_state {
    FOLIO_BLOCK_FREE = 0,   /* no holder, on the free stack (last in, first
                               out; a new pool hands out 0, 1, 2, ...) */
    FOLIO_BLOCK_CACHED = 1, /* no holder, content still worth something: kept
                               in order of last use, taken only when no block
                               is free, least recently used first */
    FOLIO_BLOCK_HELD = 2    /* one holder or more */
} folio_block_state;

/* Told that the cached block `blk` is being taken, so that an index can forget
 * its content. Runs inside the call that takes; must not call into folio. */
typedef void (*folio_block_evict_fn)(void *user, int32_t blk);

typedef struct folio_block_pool_params {
    size_t size;       /* sizeof(folio_block_pool_params), set by _default */
    int32_t n_blocks;  /* N >= 1; default 0, so it must be set */
    int32_t block_tok; /* BS, tokens per block, any number >= 1; default 16.
                          N * BS must not exceed INT32_MAX */
    folio_block_evict_fn on_evict; /* may be NULL (default) */
    void *evict_user;              /* first argument of on_evict */
    folio_log log; /* copied; default silent. Its user pointer must live as
                      long as the pool and everything opened on it */
} folio_block_pool_params;

/* How many blocks are in which state. n_free + n_held == n_blocks. */
typedef struct folio_block_pool_counts {
    int32_t n_blocks;  /* N */
    int32_t block_tok; /* BS */
    int32_t n_free;    /* can be taken: free and cached together */
    int32_t n_cached;  /* of n_free, those that are cached */
    int32_t n_held;    /* with one holder or more */
    int64_t n_holders; /* sum of all reference counts */
} folio_block_pool_counts;

/* Fills `params` with the defaults above.
 * params [out] never NULL. */
FOLIO_API void folio_block_pool_params_default(folio_block_pool_params *params);

/* Opens a pool in which every block is free.
 * params [in] copied; see the struct.
 * out [out] the pool; the caller closes it with folio_block_pool_close.
 * Returns OK; INVAL: n_blocks or block_tok below 1, or a foreign `size`;
 * TOO_LARGE: N * BS above INT32_MAX; NOMEM. On failure *out is untouched. */
FOLIO_NODISCARD FOLIO_API folio_status folio_block_pool_open(
    const folio_block_pool_params *params, folio_block_pool **out);

/* Gives up the caller's handle and sets it to NULL. Tables and sequences keep
 * their pool alive, so handles may be closed in any order. NULL and a NULL
 * handle are fine. */
FOLIO_API void folio_block_pool_close(folio_block_pool **pool);

/* ceil(n_tok / BS): the blocks that n_tok tokens need; 0 for 0.
 * n_tok [in] tokens, 0 .. INT32_MAX.
 * Returns OK; INVAL: n_tok outside that range. */
FOLIO_NODISCARD FOLIO_API folio_status folio_block_pool_blocks_for(
    const folio_block_pool *pool, int64_t n_tok, int32_t *out_n_blk);

/* Whether folio_block_pool_take_for(n_tok) would succeed now.
 * Returns OK: yes; FULL: not now; INVAL: n_tok outside 0 .. INT32_MAX. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_pool_can_take(const folio_block_pool *pool, int64_t n_tok);

/* Takes one block: the last one freed, or else the least recently used cached
 * one. The caller becomes its only holder.
 * out_blk [out] the block id.
 * Returns OK; FULL: every block is held. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_pool_take(folio_block_pool *pool, int32_t *out_blk);

/* Takes the blocks that n_tok tokens need, all or none, as that many calls of
 * folio_block_pool_take would.
 * n_tok [in] tokens, 0 .. INT32_MAX; 0 takes nothing.
 * out_blks [out] the ids in the order taken; may be NULL where cap is 0.
 * cap [in] room of out_blks, in ids.
 * out_n [out] how many were taken.
 * Returns OK; FULL: fewer blocks than needed can be taken; INVAL: n_tok out of
 * range, or cap below the blocks needed. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_pool_take_for(folio_block_pool *pool, int64_t n_tok,
                          int32_t *out_blks, int32_t cap, int32_t *out_n);

/* Adds one holder to a held block.
 * Returns OK; INVAL: blk is not a held block of this pool. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_pool_retain(folio_block_pool *pool, int32_t blk);

/* Removes one holder. A block without holders becomes free and is the next one
 * out, or, if it was published, becomes the most recently used cached block.
 * Returns OK; INVAL: blk is not a held block of this pool (given twice, or
 * foreign). */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_pool_give(folio_block_pool *pool, int32_t blk);

/* Gives the blocks in list order, so that they come out again in the reverse
 * order. Every id is checked before any of them moves. An id may stand in the
 * list as many times as it has holders.
 * blks [in] [n] ids, may be NULL where n is 0.
 * Returns OK; INVAL: n negative, or an id that is not held or stands in the
 * list more often than it has holders; then nothing was given. */
FOLIO_NODISCARD FOLIO_API folio_status folio_block_pool_give_all(
    folio_block_pool *pool, const int32_t *blks, int32_t n);

/* Marks a held block as one whose content somebody can look up: without
 * holders it becomes cached instead of free, and a table that wants to write
 * into it copies it first. Publishing twice is the same as once.
 * Returns OK; INVAL: blk is not a held block of this pool. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_pool_publish(folio_block_pool *pool, int32_t blk);

/* Takes the mark away; a cached block becomes free and is the next one out.
 * on_evict is not called.
 * Returns OK; INVAL: blk is not a published block of this pool. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_pool_unpublish(folio_block_pool *pool, int32_t blk);

/* Makes a cached block held again, with the caller as its only holder and its
 * content and mark kept.
 * Returns OK; INVAL: blk is not a cached block of this pool. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_pool_revive(folio_block_pool *pool, int32_t blk);

/* The counts of this moment. */
FOLIO_API folio_block_pool_counts
folio_block_pool_count(const folio_block_pool *pool);

/* State of one block.
 * Returns OK; RANGE: blk outside [0, N). */
FOLIO_NODISCARD FOLIO_API folio_status folio_block_pool_state(
    const folio_block_pool *pool, int32_t blk, folio_block_state *out_state);

/* Number of holders of one block; 0 where it is free or cached.
 * Returns OK; RANGE: blk outside [0, N). */
FOLIO_NODISCARD FOLIO_API folio_status folio_block_pool_refcount(
    const folio_block_pool *pool, int32_t blk, int32_t *out_count);

/* The free stack, cached blocks not included: the last entry is the next one
 * out.
 * out_n [out] number of entries; may not be NULL.
 * Returns a pointer into the pool, valid until the next call that changes it.
 */
FOLIO_API const int32_t *folio_block_pool_free_stack(
    const folio_block_pool *pool, int32_t *out_n);

/* The cached blocks, least recently used (the next one to be taken) first.
 * out_blks [out] the ids; may be NULL where cap is 0. cap [in] its room in ids.
 * out_n [out] how many are cached.
 * Returns OK; INVAL: cap below the number of cached blocks. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_pool_list_cached(const folio_block_pool *pool, int32_t *out_blks,
                             int32_t cap, int32_t *out_n);

/* ---- block table of one sequence ----------------------------------------- */

/* Which blocks hold the tokens of one sequence, in order. A table either owns
 * its blocks (it takes them as it grows and gives them back) or borrows them
 * (a lender put them there and gives them back itself). An owning table holds
 * exactly the blocks its tokens need. */
typedef struct folio_block_table folio_block_table;

/* Copy the K and V of a whole block, in every layer, from src to dst. Both -1:
 * nothing to copy. */
typedef struct folio_block_copy {
    int32_t src, dst;
} folio_block_copy;

/* Opens an empty table on `pool`, which it keeps alive.
 * max_tok [in] the most tokens it may ever hold, in 1 .. INT32_MAX, or 0: as
 * many as the pool has room for.
 * out [out] the table; the caller closes it with folio_block_table_close.
 * Returns OK; INVAL: max_tok outside that range; NOMEM. */
FOLIO_NODISCARD FOLIO_API folio_status folio_block_table_open(
    folio_block_pool *pool, int64_t max_tok, folio_block_table **out);

/* Gives owned blocks back (as folio_block_table_free), lets go of borrowed ones
 * and sets the handle to NULL. NULL and a NULL handle are fine. */
FOLIO_API void folio_block_table_close(folio_block_table **table);

/* Adds n_tok tokens at the end and takes the blocks they need; all or nothing.
 * Ten calls with 1 give the same blocks as one call with 10. Where the first
 * new token falls into a block that others can see (more than one holder, or
 * published), that block is replaced by a new one, taken before the others,
 * and the caller must copy the content, in the order of these calls, before it
 * writes any new token and before anything else may write into src.
 * n_tok [in] 0 .. INT32_MAX; 0 changes nothing.
 * out_copy [out] the copy to run, or {-1, -1}. May be NULL where no block of
 * the table is ever shared; a copy that is needed is then refused.
 * Returns OK; FULL: too few blocks can be taken, the table is as before;
 * TOO_LARGE: above max_tok; INVAL: n_tok out of range; a borrowed table lacks
 * room or would write into a shared block (the lender must act); a copy is
 * needed and out_copy is NULL. */
FOLIO_NODISCARD FOLIO_API folio_status folio_block_table_append(
    folio_block_table *table, int64_t n_tok, folio_block_copy *out_copy);

/* Forgets all tokens from position n_tok on. Blocks of an owning table that
 * hold none of the rest are given back, last one first; a borrowed table keeps
 * its blocks as room.
 * n_tok [in] 0 .. the present number of tokens.
 * Returns OK; RANGE: n_tok outside that range. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_table_truncate(folio_block_table *table, int64_t n_tok);

/* Gives all blocks back in table order and empties the table, which may then
 * be used again. An empty table is fine.
 * Returns OK; INVAL: the blocks are borrowed (detach them), or somebody else
 * gave one of them back already. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_table_free(folio_block_table *table);

/* Block and offset of the token at position `pos`.
 * out_blk [out] block id; out_off [out] place in it, 0 .. BS-1. Either may be
 * NULL.
 * Returns OK; RANGE: pos outside [0, number of tokens). */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_table_position(const folio_block_table *table, int64_t pos,
                           int32_t *out_blk, int32_t *out_off);

/* Slot of the token at position `pos`: block * BS + offset.
 * Returns OK; RANGE: pos outside [0, number of tokens). */
FOLIO_NODISCARD FOLIO_API folio_status folio_block_table_slot(
    const folio_block_table *table, int64_t pos, int32_t *out_slot);

/* Slots of n positions from `first` on.
 * out_slots [out] [n]; may be NULL where n is 0.
 * Returns OK; RANGE: [first, first + n) is not inside [0, number of tokens). */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_table_slots(const folio_block_table *table, int64_t first,
                        int64_t n, int32_t *out_slots);

/* Puts a lender's blocks into an empty table, which from now on borrows: it
 * neither takes nor gives blocks, and reference counts do not change.
 * blks [in] [n] distinct held blocks, copied; may be NULL where n is 0.
 * n_tok [in] how many tokens they hold already, 0 .. n * BS.
 * Returns OK; INVAL: the table is not empty, an id is out of range, not held
 * or stands in the list twice; RANGE: n_tok out of range; TOO_LARGE: more
 * blocks or tokens than max_tok allows. */
FOLIO_NODISCARD FOLIO_API folio_status folio_block_table_adopt(
    folio_block_table *table, const int32_t *blks, int32_t n, int64_t n_tok);

/* Adds a lender's blocks at the end of a borrowing table, as room: the number
 * of tokens stays.
 * blks [in] [n] distinct held blocks that the table does not have yet; copied.
 * Returns OK; INVAL: the table does not borrow, an id is out of range, not
 * held, or already in the table or the list; TOO_LARGE: more blocks than
 * max_tok allows. */
FOLIO_NODISCARD FOLIO_API folio_status folio_block_table_extend(
    folio_block_table *table, const int32_t *blks, int32_t n);

/* Empties the table without giving the blocks back. Afterwards they are the
 * lender's again, or, if the table owned them, the caller's to give.
 * out_blks [out] the ids in table order; may be NULL for a borrowing table.
 * cap [in] room of out_blks in ids. out_n [out] number of ids, may be NULL.
 * Returns OK; INVAL: cap below the number of blocks. */
FOLIO_NODISCARD FOLIO_API folio_status folio_block_table_detach(
    folio_block_table *table, int32_t *out_blks, int32_t cap, int32_t *out_n);

/* Makes `dst` an owning table with the tokens of `src`, by one more holder on
 * each block: nothing is copied until one of them writes (see append).
 * src [in] may borrow; room beyond its tokens is not shared.
 * dst [in,out] an empty table on the same pool.
 * Returns OK; INVAL: dst is not empty, is src, or is on another pool;
 * TOO_LARGE: more tokens than dst's max_tok. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_block_table_fork(const folio_block_table *src, folio_block_table *dst);

/* Number of tokens. */
FOLIO_API int64_t folio_block_table_n_tok(const folio_block_table *table);

/* Tokens that fit the blocks the table has now: blocks * BS. */
FOLIO_API int64_t folio_block_table_capacity(const folio_block_table *table);

/* Whether the blocks belong to a lender. */
FOLIO_API bool folio_block_table_is_borrowed(const folio_block_table *table);

/* The block ids in order of their tokens.
 * out_n [out] number of blocks; may not be NULL.
 * Returns a pointer into the table, valid until the next call that changes
 * it. */
FOLIO_API const int32_t *folio_block_table_blocks(
    const folio_block_table *table, int32_t *out_n);

/* ---- paged state of one sequence ----------------------------------------- */

/* One table for all layers of a model, and the rule by which a forward pass
 * walks them. A step is
 *
 *     folio_kv_seq_begin(seq, n_new, &step)
 *     for each layer, from 0: folio_kv_seq_layer(seq, layer), then write K and
 *         V of the new tokens at step.slots, then attend
 *     folio_kv_seq_commit(seq), or folio_kv_seq_cancel(seq) if it failed */
typedef struct folio_kv_seq folio_kv_seq;

typedef struct folio_kv_seq_params {
    size_t size;      /* sizeof(folio_kv_seq_params), set by _default */
    int32_t n_layers; /* L >= 1; default 0, so it must be set */
    int64_t max_tok;  /* context length, 1 .. INT32_MAX, or 0 (default): as
                         many tokens as the pool has room for */
} folio_kv_seq_params;

/* What one step writes. Pointers are into the sequence and valid until the
 * next call that changes it. */
typedef struct folio_kv_step {
    int64_t first_pos;     /* position of the first new token */
    int64_t n_new;         /* new tokens, >= 1 */
    int64_t kv_len;        /* first_pos + n_new: the tokens to attend to */
    const int32_t *slots;  /* [n_new] where the new tokens go, in each layer */
    folio_block_copy copy; /* to be run in all layers before the first write;
                              {-1, -1} where there is none */
} folio_kv_step;

/* Fills `params` with the defaults above.
 * params [out] never NULL. */
FOLIO_API void folio_kv_seq_params_default(folio_kv_seq_params *params);

/* Opens an empty sequence on `pool`, which it keeps alive. Several sequences
 * share one pool.
 * out [out] the sequence; the caller closes it with folio_kv_seq_close.
 * Returns OK; INVAL: n_layers below 1, max_tok out of range or a foreign
 * `size`; NOMEM. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_kv_seq_open(folio_block_pool *pool, const folio_kv_seq_params *params,
                  folio_kv_seq **out);

/* Cancels a step under way, gives all blocks back and sets the handle to NULL.
 * NULL and a NULL handle are fine. */
FOLIO_API void folio_kv_seq_close(folio_kv_seq **seq);

/* Starts a step: grows the table by n_new tokens, once for all layers, and
 * notes their slots. A block that others can see is replaced as in
 * folio_block_table_append, but stays held until commit or cancel.
 * n_new [in] 1 .. INT32_MAX.
 * out_step [out] what to write.
 * Returns OK; FULL: too few blocks can be taken, the sequence is as before;
 * TOO_LARGE: above max_tok; INVAL: n_new out of range, or a step is under
 * way. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_kv_seq_begin(folio_kv_seq *seq, int64_t n_new, folio_kv_step *out_step);

/* The step under way, as begin described it.
 * Returns OK; INVAL: no step is under way. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_kv_seq_step(const folio_kv_seq *seq, folio_kv_step *out_step);

/* Enters a layer of the step. Layer 0 comes first and each layer follows the
 * one before, once.
 * layer [in] 0 .. L-1.
 * Returns OK; RANGE: no such layer; INVAL: no step is under way, or it is not
 * the turn of this layer; the step is as before. */
FOLIO_NODISCARD FOLIO_API folio_status folio_kv_seq_layer(folio_kv_seq *seq,
                                                          int32_t layer);

/* Ends the step; the new tokens belong to the sequence.
 * Returns OK; INVAL: no step is under way, or a layer was not entered; the step
 * is as before. */
FOLIO_NODISCARD FOLIO_API folio_status folio_kv_seq_commit(folio_kv_seq *seq);

/* Ends the step as if it had not begun: the blocks it took go back in reverse
 * order, a replaced block returns to its place. K and V written meanwhile lie
 * in places that nobody reads.
 * Returns OK; INVAL: no step is under way. */
FOLIO_NODISCARD FOLIO_API folio_status folio_kv_seq_cancel(folio_kv_seq *seq);

/* Forgets all tokens from position n_tok on and gives the blocks that hold none
 * of the rest back, last one first.
 * Returns OK; RANGE: n_tok outside 0 .. number of tokens; INVAL: a step is
 * under way. */
FOLIO_NODISCARD FOLIO_API folio_status folio_kv_seq_truncate(folio_kv_seq *seq,
                                                             int64_t n_tok);

/* Makes `dst` a copy of `src` that shares all blocks until one of them writes.
 * dst [in,out] an empty sequence on the same pool with as many layers.
 * Returns OK; INVAL: dst is not empty, is src, is on another pool or has other
 * layers, or a step is under way in either; TOO_LARGE: more tokens than dst's
 * max_tok. */
FOLIO_NODISCARD FOLIO_API folio_status
folio_kv_seq_fork(const folio_kv_seq *src, folio_kv_seq *dst);

/* Cancels a step under way, gives all blocks back and clears everything derived
 * from them: slots, step, layer. The sequence may then be used again.
 * Returns OK; INVAL: somebody else gave one of its blocks back already. */
FOLIO_NODISCARD FOLIO_API folio_status folio_kv_seq_free(folio_kv_seq *seq);

/* Number of tokens, without those of a step under way. */
FOLIO_API int64_t folio_kv_seq_n_tok(const folio_kv_seq *seq);

/* The slots of all positions, oldest first, those of a step under way included.
 * out_n [out] number of positions; may not be NULL.
 * Returns a pointer into the sequence, valid until the next call that changes
 * it. */
FOLIO_API const int32_t *folio_kv_seq_history(const folio_kv_seq *seq,
                                              int64_t *out_n);

/* The block table, to read. Borrowed; valid as long as the sequence. */
FOLIO_API const folio_block_table *folio_kv_seq_table(const folio_kv_seq *seq);

#ifdef __cplusplus
}
#endif
#endif
