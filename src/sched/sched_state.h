/* sched/sched_state.h: the scheduler's state, shared by the files that make
 * it up and by the audit. Nobody else. */
#ifndef FOLIO_SCHED_SCHED_STATE_H
#define FOLIO_SCHED_SCHED_STATE_H

#include "sched/scheduler.h"

enum { FOLIO_N_CLASSES = FOLIO_PRIORITY_LAST + 1, FOLIO_MAX_UNDER_WAY = 2 };

/* First to come first. */
typedef struct folio_sched_queue {
    folio_request *oldest, *newest;
} folio_sched_queue;

/* What the plan under way did to one place. */
typedef struct folio_sched_growth {
    folio_block_growth growth;
    bool admitted;
    int32_t seq; /* its row of the step */
} folio_sched_growth;

/* How many blocks of a waiting request need not be computed. */
typedef struct folio_sched_hit {
    int32_t n_blks;    /* shared as they are */
    int32_t n_tok;     /* positions that need not be computed */
    int32_t copy_src;  /* block to copy the rest of these from, or -1 */
    int32_t n_cached;  /* of the shared blocks, those without a holder */
    int32_t n_indexed; /* leading shared blocks that are in the index */
    uint64_t chain;    /* serial of the last of these, 0: none */
    bool copy_cached;  /* copy_src has no holder */
    bool wait;         /* somebody is computing its next block */
    const folio_request *sibling; /* whose table begins with the shared blocks;
                                     NULL: they are listed in s->hits */
} folio_sched_hit;

/* The head that lacked room last, and what was found for it. */
typedef struct folio_sched_blocked {
    const folio_request *req; /* NULL: nobody */
    int32_t n_tok;
    folio_sched_hit hit;
    int32_t most_held; /* of its blocks, at most so many have a holder */
    uint64_t n_moves;  /* of the pool, then */
} folio_sched_blocked;

struct folio_sched {
    folio_sched_params p;
    folio_log log;
    folio_block_pool *pool;
    folio_prefix_index index; /* zeroed where the prefix cache is off */
    int32_t watermark, max_blks;

    /* Requests in flight. */
    int32_t n_requests;
    uint64_t n_arrived;
    folio_request **by_id; /* [id_mask + 1] buckets; completions one by one */
    uint32_t id_mask;
    folio_sched_queue waiting[FOLIO_N_CLASSES];
    int32_t n_waiting;               /* in the queues, finished ones too */
    folio_request *done, **done_end; /* finished, to be released */
    folio_request *released;         /* to be freed by the next plan */
    folio_request **heap;            /* [max_requests] soonest deadline first */
    int32_t n_heap;

    /* Places of the batch. */
    int32_t n_running, lowest_free;
    folio_request **order; /* [n_running] highest class, then oldest, first */
    folio_request **at;    /* [max_seqs] */
    folio_block_table **table; /* [max_seqs] */
    /* What the forward pass sees: rows of max_blks blocks, kept up to date. */
    int32_t *tables;   /* [max_seqs, max_blks] */
    int32_t *row_blks; /* [max_seqs] blocks of the row */
    int32_t *row_tok;  /* [max_seqs] tokens computed */

    /* Steps under way: a ring, oldest first. */
    folio_step step[FOLIO_MAX_UNDER_WAY];
    int32_t first_step, n_steps;
    uint64_t n_plans;

    /* For plan alone. */
    folio_sched_growth *growth; /* [max_seqs] by place */
    int32_t *grown; /* [max_seqs] places in the order they took blocks */
    int32_t n_grown;
    int32_t prompt_tok; /* most of prompts beside decoding rows */
    int32_t *hits;      /* [max_blks] */
    folio_sched_blocked blocked;
    int32_t *held_src; /* [max_seqs] copied blocks held until the end */
    int32_t n_held_src;

    /* For the audit alone. */
    int32_t *seen;      /* [n_blocks] */
    int32_t *by_serial; /* [serial_mask + 1] blocks; with a prefix cache */
    uint32_t serial_mask;
    uint8_t *where; /* [n_blocks] */

    folio_sched_stats st;
};

/* ---- scheduler.c --------------------------------------------------------- */

/* Just finished: out of the heap of deadlines, to be released by the next
 * plan. */
void folio_sched_note_done(folio_sched *s, folio_request *r);
/* Finishes those whose deadline passed. */
void folio_sched_expire(folio_sched *s, uint64_t now_ns);
/* Out of the index of ids and the heap, to be freed by the next plan. */
void folio_sched_forget(folio_sched *s, folio_request *r);
void folio_sched_free_released(folio_sched *s);

/* ---- sched_blocks.c: what holding, sharing and giving up blocks means ------
 */

typedef enum folio_sched_room {
    FOLIO_ROOM_LACKS, /* too few blocks can be taken now, the watermark kept */
    FOLIO_ROOM_WAITS, /* its prefix is being computed */
    FOLIO_ROOM_FITS
} folio_sched_room;

/* Whether r's blocks can be had now; FITS: *out says how many are there
 * already. The answer for a head that lacks room is remembered until somebody
 * is admitted, so that asking again costs O(1) while nothing changed. */
folio_sched_room folio_sched_find_room(folio_sched *s, folio_request *r,
                                       folio_sched_hit *out);
/* Drops what is remembered: steps were taken back, or the head is gone. */
void folio_sched_forget_blocked(folio_sched *s);
/* Gives the empty table of r->slot its blocks. */
folio_status folio_sched_take_blocks(folio_sched *s, folio_request *r,
                                     const folio_sched_hit *hit,
                                     folio_step *step) FOLIO_NODISCARD;
/* Tells the index what r is going to compute. */
void folio_sched_mark_in_flight(folio_sched *s, folio_request *r);
/* Publishes the full blocks that r has computed. */
folio_status folio_sched_publish(folio_sched *s,
                                 folio_request *r) FOLIO_NODISCARD;
/* Gives up everything that r's place holds. */
folio_status folio_sched_give_blocks(folio_sched *s, folio_request *r,
                                     bool newest_first) FOLIO_NODISCARD;
/* Brings the row of a place up to date with its table, from block `from`. */
void folio_sched_sync_row(folio_sched *s, int32_t place, int32_t from);

/* ---- sched_place.c: queues and places of the batch ------------------------
 */

/* To its place in the queue of its class, by arrival. */
void folio_sched_enqueue(folio_sched *s, folio_request *r);
void folio_sched_dequeue(folio_sched *s, folio_request *r);
void folio_sched_take_place(folio_sched *s, folio_request *r);
void folio_sched_give_place(folio_sched *s, folio_request *r);

#endif
