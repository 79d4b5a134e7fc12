/* sched/block_table.h: growth of a block table that can be taken back, for the
 * step of a sequence. */
#ifndef FOLIO_SCHED_BLOCK_TABLE_H
#define FOLIO_SCHED_BLOCK_TABLE_H

#include "sched/block_pool.h"

/* One growth. A replaced block (copy.src) keeps its holder until settle, so
 * that nobody takes it before its content was copied and undo can put it
 * back. */
typedef struct folio_block_growth {
    int64_t n_tok;  /* before */
    int32_t n_blks; /* before */
    folio_block_copy copy;
} folio_block_growth;

/* As folio_block_table_append, where `can_copy` stands for out_copy != NULL;
 * exactly one of settle and undo must follow, before anything else changes the
 * table. */
folio_status folio_block_table_grow(folio_block_table *table, int64_t n_tok,
                                    bool can_copy,
                                    folio_block_growth *out) FOLIO_NODISCARD;
folio_status folio_block_table_settle(
    folio_block_table *table, const folio_block_growth *growth) FOLIO_NODISCARD;
/* Blocks go back in the reverse of the order they were taken in. */
folio_status folio_block_table_undo(
    folio_block_table *table, const folio_block_growth *growth) FOLIO_NODISCARD;

/* Puts n held blocks, full of tokens, into an empty table, which owns them from
 * now on: one holder of each is the table's. The reverse of detach. */
void folio_block_table_own(folio_block_table *table, const int32_t *blks,
                           int32_t n);

/* Puts the held block `blk`, with one holder of it, in the place of the i-th
 * one of an owning table and gives that one back. */
folio_status folio_block_table_replace(folio_block_table *table, int32_t i,
                                       int32_t blk) FOLIO_NODISCARD;

folio_block_pool *folio_block_table_pool(const folio_block_table *table);

/* The most tokens the table can ever hold. */
int64_t folio_block_table_limit(const folio_block_table *table);

#endif
