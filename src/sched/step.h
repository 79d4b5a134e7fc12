/* sched/step.h: what one plan decided, as the flat arrays of a forward pass.
 * Written by plan alone; the engine reads. Token t of row s (q_start[s] <= t <
 * q_start[s+1]) stands at position pos[t] of its sequence and its K and V go to
 * slot[t]. Rows are in order of their place in the batch. */
#ifndef FOLIO_SCHED_STEP_H
#define FOLIO_SCHED_STEP_H

#include "sched/block_table.h"
#include "sched/request.h"

/* In `tok`: drawn by the step before, which is still under way. */
#define FOLIO_TOK_PENDING (-1)

/* One sequence of the step. */
typedef struct folio_step_row {
    folio_request *req;  /* valid until the step is committed or rolled back */
    uint32_t epoch;      /* req->epoch when planned: if it moved on, void */
    int32_t place;       /* row of the batch: req->slot when planned */
    int32_t first;       /* position of its first token here */
    int32_t n_new;       /* tokens here */
    int32_t row;         /* in `rows`, or -1: it draws no token yet */
    int32_t pending_row; /* where tok is FOLIO_TOK_PENDING: entry of the step
                            before's `rows` that draws it; else -1 */
    bool admitted;       /* by this plan */
    bool prefill;        /* not the plain next token of a running text */
    folio_block_growth growth; /* what plan did to its table */
} folio_step_row;

typedef struct folio_step {
    uint64_t number; /* plans before this one */
    bool under_way;  /* planned, neither committed nor rolled back */

    int32_t n_tok, n_seq, n_rows, n_copies;
    int32_t *tok, *pos, *slot; /* [n_tok] */
    int32_t *q_start;          /* [n_seq + 1] */
    int32_t *kv_len;           /* [n_seq] this step included */
    int32_t *table_start;      /* [n_seq + 1] into tables */
    const int32_t *tables;     /* the scheduler's, all rows of the batch */
    int32_t *rows;             /* [n_rows] tokens whose logits are wanted,
                                  ascending */
    int32_t *row_seq;          /* [n_rows] the row of `seq` */
    folio_block_copy *copies;  /* [n_copies] before everything else */
    folio_step_row *seq;       /* [n_seq] */

    /* What changed, for those who watch. Released requests stay valid until
     * the next plan; the others as long as they are in flight. */
    int32_t n_admitted, n_preempted, n_released;
    folio_request **admitted;  /* in order of admission */
    folio_request **preempted; /* in order of eviction */
    folio_request **released;  /* in order of finishing */
    int32_t n_waiting;         /* after this plan */

    int32_t *row_at; /* [max_seqs] by place, where it has a row of `seq`: that
                        one's entry of `rows` */
    /* For rollback: rows of `seq` in the order they took blocks. */
    int32_t n_grown;
    int32_t *grown; /* [n_grown] */

    int32_t cap_tok, cap_seq, cap_released;
} folio_step;

/* Room for cap_tok tokens of cap_seq sequences. NOMEM; _fini accepts a zeroed
 * and a half-made step. */
folio_status folio_step_init(folio_step *s, int32_t cap_tok, int32_t cap_seq,
                             int32_t cap_released,
                             const folio_log *log) FOLIO_NODISCARD;
void folio_step_fini(folio_step *s);

/* Empties it; `number` and `tables` are the caller's to set. */
void folio_step_clear(folio_step *s);

/* Appends the row of `req`: its positions first .. first + n_new - 1 at the
 * slots that table [blocks of first + n_new tokens] gives, drawing a token if
 * that is all of its text. `table_start` is the table's place in `tables`. */
folio_step_row *folio_step_add(folio_step *s, folio_request *req, int32_t n_new,
                               const int32_t *table, int32_t table_start,
                               int32_t table_cap, int32_t block_tok);

#endif
