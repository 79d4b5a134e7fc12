/* model/runner_internal.h: what a runner is behind its handle, for the files of
 * this room and for the engine. */
#ifndef FOLIO_MODEL_RUNNER_INTERNAL_H
#define FOLIO_MODEL_RUNNER_INTERNAL_H

#include "mem/upload.h"
#include "model/batch.h"
#include "model/lower.h"
#include "model/model_internal.h"

/* Up to so many tokens (or rows) use the variants for few. */
#define FOLIO_FEW_TOK 8

#define FOLIO_TOP_SMALL 1
#define FOLIO_TOP_LARGE 64
/* Ids, values and the count of NaNs. */
#define FOLIO_TOP_ROW_INTS (2 * (size_t)FOLIO_TOP_LARGE + 1)

struct folio_runner {
    folio_model *model;
    folio_device *dev;
    folio_queue *queue;
    folio_runner_params prm; /* as resolved */
    folio_op_params ops;
    folio_batch_limits limits;
    folio_kv_store kv;
    folio_lowered low;
    folio_buf *rope[FOLIO_MAX_ROPES];
    folio_upload up;
    folio_attn_plan_params plan[FOLIO_MAX_PLANS];
    folio_attn_plan_bounds bound[FOLIO_MAX_PLANS];
    folio_op *copy_op;
    /* logits of row r: buffer r / rows_per_buf */
    folio_buf **logits;
    int32_t n_logits, rows_per_buf;
    folio_op *top_op[2]; /* k = 1, k = 64 */
    folio_buf *top, *top_scratch;
    int32_t *top_host;
    folio_buf *trace;
    uint8_t *slot_bits;
    int32_t *piece; /* q_start, kv_len, table_start of one piece */
    folio_choice *choices;
    size_t n_choices;
    uint64_t scratch_bytes;
    /* the last forward */
    int32_t last_rows; /* -1 = none yet */
    bool traced;
    uint64_t n_tokens, n_forwards;
    uint64_t upload_ns; /* of the last forward: packing and sending */
};

/* What a runner of these params takes beside its pool, and what one block of
 * the pool takes; max_ctx must be given, n_blocks does not matter. Opens one
 * with the smallest pool to know, and closes it. Statuses as
 * folio_runner_open. */
folio_status folio_runner_measure(folio_model *m, const folio_runner_params *p,
                                  uint64_t *scratch_bytes,
                                  uint64_t *block_bytes) FOLIO_NODISCARD;

#endif
