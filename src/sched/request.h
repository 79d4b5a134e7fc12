/* sched/request.h: one completion that somebody asked for: its tokens, its
 * state, and how far its K and V are computed. Owns no block and no row of the
 * batch; the scheduler writes those fields. Never allocates after open. */
#ifndef FOLIO_SCHED_REQUEST_H
#define FOLIO_SCHED_REQUEST_H

#include "base/base.h"
#include "base/hash.h"

enum {
    FOLIO_PRIORITY_LAST = 7, /* priorities run 0 .. 7, 7 is served first */
    FOLIO_SALT_MAX = 64,     /* bytes */
    FOLIO_NO_SLOT = -1
};

typedef enum folio_request_state {
    FOLIO_REQUEST_WAITING = 0, /* in the queue of its class; holds nothing */
    FOLIO_REQUEST_RUNNING = 1, /* has a row of the batch and blocks */
    FOLIO_REQUEST_FINISHED = 2 /* has its reason; gives back what it holds at
                                  the next plan */
} folio_request_state;

typedef enum folio_finish {
    FOLIO_FINISH_NONE = 0,
    FOLIO_FINISH_STOP,     /* a stop id, or the engine's verdict */
    FOLIO_FINISH_LENGTH,   /* its budget is used up */
    FOLIO_FINISH_ABORT,    /* the caller asked for it */
    FOLIO_FINISH_DEADLINE, /* its deadline passed */
    FOLIO_FINISH_ERROR     /* see `status` */
} folio_finish;

/* Everything is copied. */
typedef struct folio_request_params {
    uint64_t id; /* of the caller's choice; unique among requests in flight */
    const int32_t *prompt;   /* [n_prompt] */
    int32_t n_prompt;        /* >= 1 */
    int32_t max_new;         /* budget, >= 1 */
    int32_t n;               /* completions that share the prompt; 0 means 1 */
    const int32_t *stop_ids; /* [n_stop_ids]; one of them ends the request and
                                stays in its output */
    int32_t n_stop_ids;
    int32_t priority;     /* 0 .. FOLIO_PRIORITY_LAST, default 0 */
    uint64_t deadline_ns; /* on the clock that plan is given; 0: none */
    const void *salt;  /* [salt_bytes] prefixes are shared only between requests
                          of the same salt */
    size_t salt_bytes; /* 0 .. FOLIO_SALT_MAX */
    void *user;
} folio_request_params;

typedef struct folio_request folio_request;
typedef struct folio_request_group folio_request_group;

/* The completions of one submit. Lives as long as one of them. */
struct folio_request_group {
    int32_t n_alive;
    int32_t n;
    uint8_t salt[FOLIO_SALT_MAX];
    int32_t salt_bytes;
    folio_request *member[]; /* [n], NULL once gone */
};

/* The scheduler's; others read. */
struct folio_request {
    uint64_t id;
    int32_t completion; /* 0 .. n-1 */
    folio_request_group *group;
    void *user;

    folio_request_state state;
    folio_finish finish;
    folio_status status; /* of FOLIO_FINISH_ERROR and the like, else OK */

    int32_t priority;
    uint64_t arrival;      /* order of submission */
    uint64_t arrival_plan; /* plans made before it was submitted */
    uint64_t deadline_ns;

    int32_t n_prompt, max_new;
    int32_t n_tok; /* prompt and output known so far */
    int32_t *tok;  /* [n_prompt + max_new] */
    const int32_t *stop_ids;
    int32_t n_stop_ids;

    /* 0 <= n_done <= n_sent <= n_tok + n_ahead */
    int32_t n_done;   /* leading tokens whose K and V are computed */
    int32_t n_sent;   /* those, and the ones of steps under way */
    int32_t n_ahead;  /* tokens that steps under way will draw */
    int32_t slot;     /* row of the batch, or FOLIO_NO_SLOT */
    uint32_t epoch;   /* changes when it loses its row: rows of older steps are
                         then void */
    int32_t n_flight; /* steps under way that have a row of it */
    int32_t n_new;    /* positions picked for the step being planned */

    /* Prefix cache. */
    folio_hash128 *hash;  /* [full blocks at most] chained; NULL: cache off */
    int32_t n_hash;       /* filled */
    int32_t n_indexed;    /* leading blocks of its table that are in the index
                             and computed */
    int32_t n_marked;     /* those, and the ones it is computing */
    uint64_t chain;       /* index's serial of block n_indexed - 1, 0: none */
    bool chain_lost;      /* its further blocks are not indexed */
    int32_t wait_blk;     /* block that it waits for, or -1, */
    uint64_t wait_serial; /* and that block's serial */

    int32_t n_preempt;
    int32_t n_cached; /* prompt and output positions not computed thanks to
                         the prefix cache or a fork, over all admissions */
    int32_t n_recomputed;
    int32_t gained;       /* tokens since its last admission */
    uint64_t admitted_by; /* plans made up to that one, itself included */

    /* Links of the scheduler's lists. */
    folio_request *older, *newer; /* waiting queue of its class */
    folio_request *next_id;       /* bucket of the id index */
    folio_request *next_done;     /* finished, or released and not yet freed */
    int32_t heap_pos;             /* in the heap of deadlines, or -1 */
    bool prefilling; /* running, and its first token since admission is not
                        drawn by any step yet */
    bool queued, released;
};

/* Checks the params that need no pool. INVAL, logged. */
folio_status folio_request_check(const folio_request_params *p,
                                 const folio_log *log) FOLIO_NODISCARD;

/* Makes the n completions of `p` (checked), all waiting. block_tok > 0: with
 * room for the hashes of their blocks. out [n]. NOMEM: nothing was made. */
folio_status folio_request_open(const folio_request_params *p,
                                int32_t block_tok, const folio_log *log,
                                folio_request **out) FOLIO_NODISCARD;
/* Frees one completion, and with the last one their group. NULL is fine. */
void folio_request_close(folio_request *r);

/* Changes the state along the edges waiting -> running | finished, running ->
 * waiting | finished. INVAL, logged with both states, for any other. */
folio_status folio_request_move(folio_request *r, folio_request_state to,
                                const folio_log *log) FOLIO_NODISCARD;

/* Ends a request that is not finished yet; a finished one keeps its first
 * reason. The release is the next plan's. */
void folio_request_finish(folio_request *r, folio_finish why,
                          folio_status status);

/* Adds a token to a running request and ends it where `stop` says so or the
 * token is a stop id (both looked at first), or it is the last of its budget.
 * INVAL unless running. */
folio_status folio_request_append(folio_request *r, int32_t tok, bool stop,
                                  const folio_log *log) FOLIO_NODISCARD;

/* Tokens known and those that steps under way will add. */
static inline int32_t folio_request_len(const folio_request *r)
{
    return r->n_tok + r->n_ahead;
}

static inline int32_t folio_request_n_out(const folio_request *r)
{
    return r->n_tok - r->n_prompt;
}

/* Positions that are ever cached: the last token drawn never is. */
static inline int64_t folio_request_worst(int32_t n_prompt, int32_t max_new)
{
    return (int64_t)n_prompt + max_new - 1;
}

const char *folio_request_state_name(folio_request_state s);
const char *folio_finish_name(folio_finish f);

#endif
