/* sched/scheduler.h: who runs, which blocks they hold, and what the next
 * forward pass computes. Integers only. The engine's turn is
 *
 *     folio_sched_plan(s, now, &step)     release, grow, admit, pick
 *     ... computes `step`, draws one token for each of step->rows ...
 *     folio_sched_commit(s, step, ...)    append, publish, mark finished
 *
 * or folio_sched_rollback where computing failed. With run_ahead 1 the next
 * plan may come before the commit. Submit allocates; plan, commit and rollback
 * never do, and their work is of the order of the rows of the batch and the
 * tokens newly taken in, whatever the length of the texts. The blocks of a head
 * that waits are looked up again only when something happened that may have
 * changed the answer: somebody was admitted, gave blocks up or computed the
 * block it waits for.
 *
 * One thread at a time. Failures but FULL are logged once.
 *
 * Source: continuous batching (Yu et al., "Orca", OSDI 2022), preemption by
 * recompute (Kwon et al., PagedAttention, SOSP 2023), chunked prefill (Agrawal
 * et al., "Sarathi-Serve", OSDI 2024), with the order of decisions defined
 * here. */
#ifndef FOLIO_SCHED_SCHEDULER_H
#define FOLIO_SCHED_SCHEDULER_H

#include "sched/prefix_index.h"
#include "sched/step.h"

typedef struct folio_sched folio_sched;

/* A place of the batch was given up, before anybody else can get it. Must not
 * call into the scheduler. */
typedef void (*folio_sched_release_fn)(void *user, int32_t place);

typedef struct folio_sched_params {
    int32_t n_blocks, block_tok; /* the pool */
    int32_t max_seqs;            /* places of the batch, >= 1 */
    int32_t max_requests;        /* in flight at once; default 4096 */
    int32_t max_len;             /* prompt + budget; 0: what the pool holds */
    int32_t watermark_blocks;    /* kept free at admission, 0 .. n_blocks - 1;
                                    -1 (default): by share */
    double watermark_share;      /* of the pool, [0, 1), default .01, truncated:
                                    0 below 100 blocks */
    int32_t step_tok;  /* most positions of a step, >= max_seqs; 0 (default):
                          no limit, prompts are computed whole */
    int32_t chunk_tok; /* most of them for one prompt; 0: no limit of its own */
    bool prefix_cache; /* default true */
    bool fork;         /* default true: completions share their prompt */
    int32_t age_plans; /* a waiting request counts as one class higher for each
                          so many plans since it came; 0: never. Default 256 */
    int32_t run_ahead; /* 0 (default) or 1 */
    uint64_t hash_seed;                /* 0 (default): another one each time */
    folio_prefix_hash_fn hash_fn;      /* NULL (default); tests */
    folio_sched_release_fn on_release; /* may be NULL */
    void *release_user;
    folio_log log;
} folio_sched_params;

void folio_sched_params_default(folio_sched_params *p);

/* INVAL naming the field; TOO_LARGE; NOMEM. */
folio_status folio_sched_open(const folio_sched_params *p,
                              folio_sched **out) FOLIO_NODISCARD;
/* Frees the requests too. */
void folio_sched_close(folio_sched **s);

/* The door. Puts the p->n completions at the end of the queue of their class.
 * out [n] borrowed: valid until the plan after the one that released them; may
 * be NULL. INVAL: bad params, or the id is in flight; TOO_LARGE: prompt +
 * budget - 1 needs more blocks than the pool has, or prompt + budget is above
 * max_len; FULL: max_requests in flight; NOMEM. */
folio_status folio_sched_submit(folio_sched *s, const folio_request_params *p,
                                folio_request **out) FOLIO_NODISCARD;

/* The two halves of submit. Make checks and allocates, touches nothing of the
 * scheduler that changes, and may run on any thread beside its owner; out [n],
 * the caller's (folio_request_close) until they are entered. Enter takes the
 * group of `first` in and cannot fail for want of memory; INVAL: the id is in
 * flight; FULL. */
folio_status folio_sched_make(const folio_sched *s,
                              const folio_request_params *p,
                              folio_request **out) FOLIO_NODISCARD;
folio_status folio_sched_enter(folio_sched *s,
                               folio_request *first) FOLIO_NODISCARD;

/* Finishes all completions of `id` in whatever state they are; finished ones
 * keep their first reason. NOT_FOUND: no such id in flight (FULL's kin: not
 * logged). */
folio_status folio_sched_abort(folio_sched *s, uint64_t id) FOLIO_NODISCARD;
/* The same for one completion, with a reason: an engine's own failures. */
void folio_sched_finish(folio_sched *s, folio_request *r, folio_finish why,
                        folio_status status);

/* Completion `completion` of `id`, or NULL. */
folio_request *folio_sched_find(const folio_sched *s, uint64_t id,
                                int32_t completion);

/* Decides the next step. now_ns: for deadlines. *out is the scheduler's, until
 * the commit. An empty step (n_seq 0) is settled at once: there is nothing to
 * compute or commit. INVAL: more steps are under way than run_ahead allows;
 * STUCK: nothing runs and yet nobody who waits can start, which cannot happen
 * unless somebody else took blocks of the pool. */
folio_status folio_sched_plan(folio_sched *s, uint64_t now_ns,
                              const folio_step **out) FOLIO_NODISCARD;

/* From the next plan on, steps in which somebody decodes take at most `n_tok`
 * positions of prompts, >= 0, whatever step_tok leaves; INT32_MAX (at open): no
 * limit. Without step_tok prompts are whole all the same. */
void folio_sched_limit_prompts(folio_sched *s, int32_t n_tok);

/* Who runs and is past its prompt. */
int32_t folio_sched_n_decoding(const folio_sched *s);

typedef enum folio_verdict {
    FOLIO_VERDICT_NONE = 0, /* the token stands; stop ids and budget decide */
    FOLIO_VERDICT_STOP,     /* it stands and is the last: a stop string */
    FOLIO_VERDICT_ERROR,    /* there is no token: the request ends, INTERNAL */
    FOLIO_VERDICT_REFUSED   /* the same, by its caller's fault: INVAL */
} folio_verdict;

/* Takes the tokens of the oldest step under way, next [step->n_rows]. verdict
 * may be NULL: all NONE. Rows of requests that finished or lost their place
 * meanwhile are passed over; took [n_rows], which may be NULL, says which
 * tokens entered a text. INVAL: not the oldest step under way. */
folio_status folio_sched_commit(folio_sched *s, const folio_step *step,
                                const int32_t *next,
                                const folio_verdict *verdict,
                                bool *took) FOLIO_NODISCARD;

/* Takes the newest step under way back: its blocks return in the reverse of the
 * order they were taken in and whom it admitted waits again, at the old place
 * in the queue. Evictions stay. INVAL: not the newest step under way. */
folio_status folio_sched_rollback(folio_sched *s,
                                  const folio_step *step) FOLIO_NODISCARD;

/* ---- figures ------------------------------------------------------------- */

typedef struct folio_sched_stats {
    /* Since open. Counted when planned, taken back by a rollback. */
    uint64_t plans;          /* all, empty ones too */
    uint64_t steps;          /* with at least one row: forwarding iterations */
    uint64_t issued;         /* rows of steps */
    uint64_t prefill_rows;   /* of these, those that are prefill */
    uint64_t prefill_tok;    /* their positions */
    uint64_t forward_tok;    /* all positions: prefill and one a decoding row */
    uint64_t recomputed_tok; /* prefill positions of preempted requests */
    uint64_t cached_tok;     /* positions found instead of computed */
    uint64_t copied_blocks;
    uint64_t admissions;
    /* Since open, never taken back. */
    uint64_t submitted, collected, finished;
    uint64_t preemptions, preempted_tok;
    uint64_t thrashes; /* preemptions that gained less than a block of tokens
                          since admission */
    uint64_t evicted_blocks; /* cached ones that were taken */
    uint64_t lookups;        /* blocks asked for in the prefix index by those
                                who wait */
    /* Of this moment. */
    int32_t n_waiting, n_running, n_in_flight;
    int32_t reserved_blocks; /* held in tables */
    int32_t used_blocks;     /* needed by the tokens there, at most the above */
    int32_t held_places, used_places; /* the same in tokens; the rest is what
                                         fragmentation wastes */
} folio_sched_stats;

folio_sched_stats folio_sched_get_stats(const folio_sched *s);

/* Whether anything is waiting, running or not yet released. */
bool folio_sched_is_idle(const folio_sched *s);

int32_t folio_sched_watermark(const folio_sched *s);
/* The largest prompt that is admitted without the waiver, in blocks. */
int32_t folio_sched_admissible(const folio_sched *s);

/* ---- views --------------------------------------------------------------- */

const folio_block_pool *folio_sched_pool(const folio_sched *s);
/* Who has a place of the batch, or NULL. */
folio_request *folio_sched_at(const folio_sched *s, int32_t place);
/* The blocks of a place; empty where nobody has it. */
const int32_t *folio_sched_blocks(const folio_sched *s, int32_t place,
                                  int32_t *out_n);

#endif
