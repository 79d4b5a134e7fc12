/* model/batch.h: the host checks of a batch before anything is enqueued. */
#ifndef FOLIO_MODEL_BATCH_H
#define FOLIO_MODEL_BATCH_H

#include "base/base.h"

#include <folio/model.h>

typedef struct folio_batch_limits {
    int32_t n_vocab, n_blocks, block_size;
    int32_t max_tok, max_seqs, max_rows, max_ctx, max_copies;
    /* [n_seq] or NULL: where not -1, the last token of the sequence is in
     * [0, n_open) and `tok` has -1 for it. */
    const int32_t *open_row;
    int32_t n_open;
} folio_batch_limits;

/* INVAL, RANGE or TOO_LARGE with a message that names the first bad entry.
 * `slot_bits` [n_blocks * block_size bits] is all zero before and after. */
folio_status folio_batch_check(const folio_batch *b,
                               const folio_batch_limits *lim,
                               uint8_t *slot_bits,
                               const folio_log *log) FOLIO_NODISCARD;

#endif
