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

folio_block_pool *folio_block_table_pool(const folio_block_table *table);

/* The most tokens the table can ever hold. */
int64_t folio_block_table_limit(const folio_block_table *table);

#endif
