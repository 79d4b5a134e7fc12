/* model/runner_internal.h: what a runner is behind its handle, for the files of
 * this room and for the engine. */
#ifndef FOLIO_MODEL_RUNNER_INTERNAL_H
#define FOLIO_MODEL_RUNNER_INTERNAL_H

#include "mem/upload.h"
#include "model/batch.h"
#include "model/lower.h"
#include "model/model_internal.h"

#define FOLIO_TOP_SMALL 1
#define FOLIO_TOP_LARGE 64
/* Ids, values and the count of NaNs. */
#define FOLIO_TOP_ROW_INTS (2 * (size_t)FOLIO_TOP_LARGE + 1)

/* Whether blocks waste more than they hold: up to 256 tokens that is little,
 * however short the sequences are. */
static inline bool folio_block_too_long(int32_t block_size, int64_t max_ctx)
{
    return block_size > 256 && block_size / 2 > max_ctx;
}

/* ---- drawing (drawer.c) ----------------------------------------------------
 */

/* What a runner can draw, chosen when it opens. */
typedef struct folio_draw_limits {
    int32_t n_ids;     /* ids that exist: the first so many of a row; 0: this
                          runner draws nothing */
    int32_t n_slots;   /* rows of counts, for penalties */
    int32_t max_fresh; /* of these, so many may be set in one forward */
    int32_t max_edits;
    int32_t n_top; /* largest logits that can be had of a row; 0: the head has
                      rows that are no ids, so that none can */
} folio_draw_limits;

/* What a slot of counts must hold before the draw: a text. */
typedef struct folio_draw_fresh {
    int32_t slot;
    const int32_t *tok; /* [n_tok] */
    int32_t n_prompt, n_tok;
} folio_draw_fresh;

/* Draws one id for each row of a forward, behind its head. */
typedef struct folio_draw {
    int number; /* 0 or 1: whose results these are until they are read */
    /* The largest logit alone, which is quicker than `words`; only where all
     * rows of the head are ids. */
    bool best;
    bool top;             /* the n_top largest logits of each row, too */
    const int32_t *words; /* [n_rows, FOLIO_SAMPLE_IN] */
    const int32_t *edits; /* [n_edits, 2] */
    int32_t n_edits, n_fresh;
    const folio_draw_fresh *fresh; /* [n_fresh] */
} folio_draw;

/* Where a batch has FOLIO_TOK_OPEN for the last token of a sequence: the row
 * of the forward before that draws it. */
#define FOLIO_TOK_OPEN FOLIO_TOK_NEXT

/* What was drawn: arrays of the runner, until the next read. */
typedef struct folio_drawn {
    const int32_t *out; /* [n_rows, FOLIO_SAMPLE_OUT]; NULL: the best alone */
    int32_t k;          /* 0: no largest logits */
    const int32_t *ids; /* [n_rows, k] */
    const int32_t *values; /* [n_rows, k] bits of f32 */
    const int32_t *n_nan;  /* [n_rows] */
} folio_drawn;

typedef struct folio_drawer {
    folio_draw_limits lim;
    int32_t chunk_rows; /* most rows of one launch */
    folio_op *op, *top_op, *take_op;
    folio_buf *counts, *scratch;
    folio_buf *tok; /* [step_tok] tokens of a piece with open ones */
    /* In the upload's buffer, behind what is uploaded, so that a token may be
     * taken from anywhere in it; in integers. */
    size_t results_at[2], ids_at, n_results;
    int32_t *host; /* [n_results] */
    struct {
        int32_t n_rows; /* 0: nothing to read */
        bool best, top;
    } under_way[2];
    /* Of the forward before. */
    size_t last_ids; /* where its ids are */
    int32_t last_rows;
    folio_view words, edits, fresh; /* of the present upload */
} folio_drawer;

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
    folio_drawer draw;
};

/* folio_runner_open for one that draws: n_ids of 1 .. n_vocab, n_top of the
 * largest logits of a row at most. */
folio_status folio_runner_open_drawing(folio_model *m,
                                       const folio_runner_params *p,
                                       int32_t n_ids, int32_t n_top,
                                       folio_runner **out) FOLIO_NODISCARD;
/* folio_runner_forward, and the draw of its rows enqueued behind it. `d` NULL:
 * none. open_row [n_seq], or NULL: see FOLIO_TOK_OPEN. The forward before must
 * have drawn what is open. */
folio_status folio_runner_forward_draw(folio_runner *r,
                                       const folio_batch *batch,
                                       const folio_draw *d,
                                       const int32_t *open_row) FOLIO_NODISCARD;
/* Waits for what the forward of this number drew. */
folio_status folio_runner_read_drawn(folio_runner *r, int number,
                                     folio_drawn *out) FOLIO_NODISCARD;
/* Waits and copies rows first .. first + n - 1 of the last forward's logits. */
folio_status folio_runner_read_rows(folio_runner *r, int32_t first, int32_t n,
                                    float *out) FOLIO_NODISCARD;

/* Between the files. Limits from lim.n_ids and lim.n_top; then ops and
 * buffers, where the upload has room of folio_drawer_ints. */
void folio_drawer_plan(folio_runner *r);
/* Integers that an upload of step_tok tokens needs for a draw. */
size_t folio_drawer_ints(const folio_runner *r, int32_t step_tok);
/* Integers of the device's alone, behind the upload. */
size_t folio_drawer_results(const folio_runner *r);
folio_status folio_drawer_open(folio_runner *r) FOLIO_NODISCARD;
void folio_drawer_fini(folio_drawer *d);
folio_status folio_drawer_put(folio_runner *r, const folio_draw *d,
                              int32_t n_rows) FOLIO_NODISCARD;
folio_status folio_drawer_run(folio_runner *r, const folio_draw *d,
                              int32_t n_rows) FOLIO_NODISCARD;

/* What a runner of these params takes beside its pool, and what one block of
 * the pool takes; max_ctx must be given, n_blocks does not matter. Opens one
 * with the smallest pool to know, and closes it. Statuses as
 * folio_runner_open_drawing. */
folio_status folio_runner_measure(folio_model *m, const folio_runner_params *p,
                                  int32_t n_ids, int32_t n_top,
                                  uint64_t *scratch_bytes,
                                  uint64_t *block_bytes) FOLIO_NODISCARD;

#endif
