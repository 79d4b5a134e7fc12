/* folio/engine.h: requests in, tokens out (tier 3). The engine decides who
 * runs, which blocks of the KV pool they hold and what the next forward pass
 * computes, draws the tokens and turns them into text.
 *
 *     folio_engine_submit(e, &request, &id);          any thread, any time
 *     while (!folio_engine_is_idle(e)) {              one owner thread
 *         folio_engine_step(e, events, cap, &n);
 *         for (i = 0; i < n; i++) ... events[i] ...
 *     }
 *
 * Words. A request asks for one or more completions of one prompt. It is named
 * by an id that is never used again, so a stale one is NOT_FOUND and never a
 * crash. A step is one forward pass over the tokens of many completions.
 *
 * Threads. One owner thread at a time calls step and trace_write; submit,
 * cancel, is_idle, get_stats and get_info may be called from any thread while
 * the owner steps; close may not race with anything. Several engines may share
 * a model and its device.
 *
 * Source: continuous batching (Yu et al., "Orca", OSDI 2022), paged KV with
 * preemption by recompute (Kwon et al., SOSP 2023), chunked prefill (Agrawal et
 * al., "Sarathi-Serve", OSDI 2024). */
#ifndef FOLIO_ENGINE_H
#define FOLIO_ENGINE_H

#include <folio/model.h>
#include <folio/sampler.h>
#include <folio/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct folio_engine folio_engine;

/* Monotonic nanoseconds, in place of the system's clock: for tests. Called by
 * submit on its thread and by step. */
typedef uint64_t (*folio_clock_fn)(void *user);

typedef struct folio_engine_params {
    size_t size;      /* sizeof(folio_engine_params), set by _default */
    int32_t max_seqs; /* completions in one step, >= 1; default 8 */
    /* Longest prompt + answer. 0 (default): what the model was trained for, at
     * most 4096, and at most what a pool of given size holds. */
    int32_t max_ctx;
    /* Most positions computed in one step, >= max_seqs: decodes first, then
     * pieces of prompts. What is left for prompts bounds how long streams wait
     * for each other. Scratch is made for no more than the pool has slots. 0
     * (default): 512, or max_seqs if that is more; on the host device and CPU
     * drivers 64, or twice max_seqs if that is more. */
    int32_t budget;
    /* A step that computes prompts beside others' next tokens may take so many
     * times as long as one that does not: less than `budget` is computed of the
     * prompts then, as many positions as this device was seen to manage in the
     * time. At 2, prompts get half the device while others stream. 0: no such
     * limit; else > 1. -1 (default): 2.2 where budget is 0, else no limit. */
    double pace;
    int32_t block_size; /* tokens per block, >= 1, above 256 at most twice
                           max_ctx; default 16 */
    /* The pool: at most one of these two. Both 0 (default): from the device's
     * memory; on the host device, CPU drivers and where a device reports no
     * memory, one sequence of max_ctx. */
    int32_t n_blocks;
    uint64_t kv_bytes;     /* K and V of all layers together, rounded down */
    double utilization;    /* share of the device's memory that folio may fill,
                              (0, 1]; default .9 */
    folio_kv_type kv_type; /* default F16 */
    int32_t deterministic; /* 1: tokens do not depend on neighbours, arrival,
                              chunks, cache or preemption; 0: faster variants;
                              -1 (default): 1 on host and CPU drivers */
    int32_t exact;         /* 1: no reduced-precision arithmetic; default 0 */
    int32_t fused;         /* how many launches a step takes: as the field of
                              folio_runner_params; -1 (default): what suits the
                              device */
    /* Steps enqueued before the last one is read: 0 (default) or 1. With 1 the
     * device computes while the host draws, writes text and plans; ids are the
     * same, events come one call of step later, and what was computed behind
     * the end of a text is thrown away. A step with a request that needs the
     * whole row on the host (a logits callback, typical-p, DRY, a window of
     * penalties, scores of its prompt) is waited for as with 0. */
    int32_t run_ahead;
    int32_t prefix_cache; /* default 1: blocks with equal beginnings are
                             computed once */
    int32_t chunking;     /* default 1; 0: prompts are computed whole, whatever
                             the budget */
    /* Blocks kept free when a request is admitted, less than the pool has. -1
     * (default): by share. */
    int32_t watermark_blocks;
    double watermark_share; /* of the pool, [0, 1), truncated; default .01 */
    int32_t age_steps;      /* a waiting request counts as one class higher for
                               each so many steps; 0: never; default 256 */
    int32_t max_waiting;    /* completions in flight beyond max_seqs before
                               submit says FULL, >= 0; default 4096 */
    int32_t audit;          /* 1: after each step every block, place and request
                               is checked (with run_ahead, after every eighth,
                               which is waited for); a violation is INTERNAL.
                               Default 0 */
    int32_t prompt_logprobs; /* 1: requests may ask for the log-probabilities
                                of their prompts; takes `budget` rows of
                                logits, needs chunking. Default 0 */
    int32_t trace_steps;     /* the newest so many steps are remembered for
                                folio_engine_trace_write; default 0 */
    folio_clock_fn now_ns;   /* NULL (default): the system's */
    void *clock_user;
    folio_log log; /* default: the model's. May be called by the threads that
                      submit. Must live as long as the engine */
} folio_engine_params;

/* Fills *p with the defaults above; NULL: nothing happens. Any thread. */
FOLIO_API void folio_engine_params_default(folio_engine_params *p);

/* Opens an engine: chooses variants, allocates and fills the KV pool and all
 * scratch, and logs the plan of the pool in one INFO line. A step compiles
 * nothing and allocates nothing, but that on OpenCL the memory for copies to
 * and from the device grows with the largest copy so far.
 * m    [in] kept alive by the engine
 * tok  [in] kept alive by the engine; NULL: events carry no text, and nothing
 *           ends a text but its own stop ids
 * p    [in] copied; NULL: the defaults
 * out  [out] the caller's, closed with folio_engine_close
 * Returns OK; INVAL naming the field; UNSUPPORTED; TOO_LARGE with both numbers:
 * max_ctx above the trained length, a pool that cannot hold one text of
 * max_ctx, or one that the device's (the host's) memory cannot hold; NOMEM;
 * BUILD; DEVICE. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_engine_open(folio_model *m, const folio_tokenizer *tok,
                  const folio_engine_params *p, folio_engine **out);

/* Drops everything, requests in flight included (their ends are not reported).
 * Sets *e to NULL; NULL is allowed twice over. */
FOLIO_API void folio_engine_close(folio_engine **e);

typedef struct folio_engine_info {
    size_t size; /* in: sizeof(folio_engine_info) */
    int32_t max_seqs, max_ctx, budget, block_size, n_blocks;
    int32_t deterministic;  /* 0 or 1 */
    uint64_t kv_bytes;      /* of the pool */
    uint64_t scratch_bytes; /* of the forward pass */
    const char *arithmetic; /* as in folio_runner_info */
} folio_engine_info;

/* What was chosen at open. Never fails: info NULL does nothing, e NULL gives
 * zeros. Any thread. */
FOLIO_API void folio_engine_get_info(const folio_engine *e,
                                     folio_engine_info *info);

/* Entry i of the variants in use, as folio_runner_choice. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_engine_choice(const folio_engine *e, size_t i, folio_choice *out);

/* ---- requests ------------------------------------------------------------ */

/* What a logits callback sees. */
typedef struct folio_logits_row {
    uint64_t request;
    int32_t completion;
    const int32_t *tok; /* [n_tok] prompt and answer so far */
    int32_t n_prompt, n_tok;
    float *logits;   /* [n_vocab] raw; may be changed: what is left is drawn
                        from. -INFINITY bans an id */
    int32_t n_vocab; /* ids that exist in tokenizer and model */
} folio_logits_row;

#define FOLIO_LOGITS_DRAW (-1) /* draw from row->logits */

/* Returns FOLIO_LOGITS_DRAW (bias, penalties and filters then follow), or the
 * id that comes next; any other number, and a row that it leaves without an id
 * to draw or with a NaN, ends the completion with INVAL. Log-probabilities that
 * are asked for are those of the row as it left it. A row that the model made
 * NaN ends the completion with INTERNAL, before anybody is asked.
 * Called on the owner's thread inside a step; must not call into the engine. */
typedef int32_t (*folio_logits_fn)(void *user, folio_logits_row *row);

/* A request. Everything is copied by submit but what the callback's user
 * pointer leads to. */
typedef struct folio_engine_request {
    size_t size;           /* sizeof(folio_engine_request), set by _default */
    const int32_t *prompt; /* [n_prompt] ids of the model's vocabulary */
    int32_t n_prompt;      /* >= 1 */
    int32_t max_new; /* longest answer in ids, >= 1; -1: as long as context and
                        pool allow; default 16 */
    int32_t n;       /* completions, >= 1; default 1. They share the prompt's
                        blocks and differ by their number in the draws */
    folio_sample_params sample; /* default: as folio_sample_params_default, but
                                   temperature 0. Biases of an id add up to at
                                   most 3e38; biases, bans and stop ids
                                   together are at most 2^24. min_new_tokens
                                   holds ids back that end an answer, not stop
                                   strings */
    /* These ids end an answer, and so do the tokenizer's end-of-generation ids
     * unless ignore_eos. The id is the answer's last one and has no text. */
    const int32_t *stop_ids; /* [n_stop_ids] of the vocabulary */
    int32_t n_stop_ids;      /* default 0 */
    int32_t ignore_eos;      /* 0 (default) or 1 */
    int32_t priority;        /* 0 (default) .. 7, 7 is served first */
    uint64_t deadline_ns;    /* from submit on; then it ends with DEADLINE. 0
                                (default): none */
    const void *salt;  /* [salt_bytes] K and V are shared only between requests
                          of the same salt */
    size_t salt_bytes; /* 0 (default) .. 63 */
    /* Strings that end an answer wherever they appear in its text; the text
     * ends before them. Each at least one byte, beginning with a character;
     * needs a tokenizer. */
    const char *const *stop;  /* [n_stop] */
    const size_t *stop_bytes; /* [n_stop]; NULL: terminated */
    int32_t n_stop;           /* default 0 */
    /* -1 (default): none; 0 .. FOLIO_LOGPROBS_MAX: each id's log-probability
     * and those of so many most likely ones. Takes the place of
     * sample.logprobs. */
    int32_t logprobs;
    /* 1: the same for the prompt, in an event PROMPT. Its positions are then
     * all computed, shared with nobody. Default 0. */
    int32_t prompt_logprobs;
    folio_logits_fn logits; /* NULL (default) */
    void *logits_user;
    uint32_t decode_flags; /* FOLIO_DECODE_*; default FOLIO_DECODE_SPECIAL */
} folio_engine_request;

/* Fills *r with the defaults above; NULL: nothing happens. Any thread. */
FOLIO_API void folio_engine_request_default(folio_engine_request *r);

/* Puts a request into the queue of its class; the next step sees it.
 * r   [in] copied
 * id  [out] its name, never 0
 * Returns OK; INVAL or RANGE naming the field, all ids banned included;
 * TOO_LARGE with both numbers: prompt + max_new above max_ctx, or more blocks
 * than the pool has; FULL (not logged): max_seqs + max_waiting completions are
 * in flight, try after a step; NOMEM; DEVICE, INTERNAL or STUCK once the engine
 * failed. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status folio_engine_submit(
    folio_engine *e, const folio_engine_request *r, uint64_t *id);

/* Ends all completions of a request, whatever they are doing; the next step
 * reports it (reason ABORT, what was drawn stays) and its blocks are free then.
 * One that has ended already keeps its first reason.
 * Returns OK; NOT_FOUND (not logged): no such id in flight; the status of the
 * engine's failure once it failed. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status folio_engine_cancel(folio_engine *e,
                                                           uint64_t id);

/* ---- steps --------------------------------------------------------------- */

typedef enum folio_event_kind {
    FOLIO_EVENT_TOKEN = 0,    /* one more id of a completion */
    FOLIO_EVENT_FINISHED = 1, /* its last event */
    FOLIO_EVENT_PROMPT = 2    /* its prompt's scores, before the first TOKEN,
                                 once a request */
} folio_event_kind;

typedef enum folio_finish_reason {
    FOLIO_REASON_NONE = 0,
    FOLIO_REASON_STOP = 1,     /* a stop id or string */
    FOLIO_REASON_LENGTH = 2,   /* max_new ids */
    FOLIO_REASON_ABORT = 3,    /* folio_engine_cancel */
    FOLIO_REASON_DEADLINE = 4, /* its deadline passed */
    FOLIO_REASON_ERROR = 5     /* see status */
} folio_finish_reason;

/* "stop", "length", "abort", "deadline", "error"; "none". Static. */
FOLIO_API const char *folio_finish_reason_name(folio_finish_reason r);

typedef struct folio_event {
    folio_event_kind kind;
    uint64_t request;
    int32_t completion; /* 0 .. n - 1 */
    /* Text that is now certain, valid UTF-8 without a terminator; may be empty.
     * All texts of a completion in a row are its answer; the event FINISHED
     * brings what was held back until then. Valid until the next call of step
     * or close. */
    const char *text;
    size_t n_text; /* bytes */
    /* TOKEN */
    int32_t tok;   /* the id */
    int32_t index; /* which id of the answer, from 0 */
    /* TOKEN: what was asked with `logprobs`, else NULL. PROMPT: [n_prompt], the
     * first one empty, as nothing stands before it; an id whose row holds NaNs
     * has logprob NaN. Valid as text is. */
    const folio_sample_result *scores;
    /* FINISHED */
    folio_finish_reason reason;
    folio_status status; /* OK for STOP and LENGTH; CANCELED, DEADLINE, or what
                            went wrong */
    int32_t stop;        /* which of the request's stop strings it was, or -1 */
    int32_t n_prompt, n_new; /* ids; n_prompt in PROMPT too */
    int32_t n_cached;  /* positions found instead of computed, all admissions
                          together */
    int32_t n_preempt; /* how often it lost its blocks and was computed again */
    /* From submit to its first admission, from there to its first id, from
     * there to its last one; 0 for what it did not reach. */
    uint64_t queue_ns, prefill_ns, decode_ns;
} folio_event;

/* Hands out events; computes one step first if none were left to hand out.
 * events [out] [cap], cap >= 1, in the order they happened, a completion's
 *              FINISHED last
 * n      [out] how many; *n == cap: there may be more, which the next call
 *              hands out before it computes. 0 is no end: see is_idle
 * A forward pass that fails for want of memory or at the enqueue is tried again
 * by the next call; the third failure in a row ends the requests of that step
 * with its status. Once the device is lost, an invariant broke or nothing can
 * move any more, all requests end with the engine's status; their events are
 * still handed out, and then every call returns that status.
 * Returns OK; INVAL for a NULL or cap < 1; DEVICE, INTERNAL or STUCK once the
 * engine failed and its events are gone. Owner's thread. */
FOLIO_API FOLIO_NODISCARD folio_status folio_engine_step(folio_engine *e,
                                                         folio_event *events,
                                                         size_t cap, size_t *n);

/* Whether a step would find nothing to do: no request in flight, no event left,
 * every block given back. True for NULL. Any thread. */
FOLIO_API bool folio_engine_is_idle(const folio_engine *e);

/* ---- figures ------------------------------------------------------------- */

/* As of the last step. Counters since open. */
typedef struct folio_engine_stats {
    size_t size;                  /* in: sizeof(folio_engine_stats) */
    uint64_t steps;               /* forward passes that were committed */
    uint64_t empty_steps;         /* calls that found nothing to compute */
    uint64_t failed_steps;        /* passes that were rolled back */
    uint64_t submitted, finished; /* completions */
    uint64_t new_tok;             /* ids drawn */
    uint64_t forward_tok;         /* positions computed */
    uint64_t prefill_tok;         /* of these, of prompts and recomputation */
    uint64_t recomputed_tok;      /* of these, of preempted completions */
    uint64_t cached_tok;          /* positions found instead of computed */
    uint64_t copied_blocks;       /* copies on write */
    uint64_t evicted_blocks;      /* cached ones that were taken */
    uint64_t preemptions;
    uint64_t thrashes; /* preemptions that gained less than a block of ids
                          since admission */
    uint64_t step_ns;  /* time inside passes that were committed */
    uint64_t launches, writes, reads, waits; /* what went over the bus */
    /* Of this moment. */
    int32_t n_waiting, n_running; /* completions */
    int32_t n_in_flight;          /* submitted, end not handed out yet */
    int32_t blocks_held, blocks_cached, blocks_free; /* n_blocks together */
    folio_status failed; /* OK while the engine works */
} folio_engine_stats;

/* Never fails: out NULL does nothing, e NULL gives zeros. Any thread. */
FOLIO_API void folio_engine_get_stats(const folio_engine *e,
                                      folio_engine_stats *out);

/* Writes the remembered steps to `path` as Chrome trace JSON (one row each for
 * plan, upload, kernels, wait, sample, commit), for a trace viewer. On devices
 * that compute beside the host, "kernels" is enqueuing and "wait" computing.
 * Returns OK; INVAL: opened without trace_steps; IO; NOMEM. Owner's thread. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_engine_trace_write(folio_engine *e, const char *path);

#ifdef __cplusplus
}
#endif
#endif
