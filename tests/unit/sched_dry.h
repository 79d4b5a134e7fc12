/* unit/sched_dry.h: a dry engine for the scheduler's tests. Its "model" keeps
 * one number per KV slot, a hash of all tokens up to that position, and draws
 * the next token from the last of them; so a wrong block, a stale slot or a
 * missed copy changes the text. Before a row is computed every number of its
 * context is compared with the one its text must have. */
#ifndef FOLIO_TEST_SCHED_DRY_H
#define FOLIO_TEST_SCHED_DRY_H

#include "sched/scheduler.h"
#include "unit/sched_util.h"

enum { DRY_COMPLETIONS = 8, DRY_VOCAB = 1000 };

/* What one completion came to. */
typedef struct dry_text {
    int32_t *tok; /* drawn tokens, [n], room for cap */
    int32_t n, cap;
    int32_t first_at, done_at; /* iterations of its first and last token */
    int32_t n_preempt, n_cached, n_recomputed;
    folio_finish finish; /* when released */
    bool released;
} dry_text;

typedef struct dry {
    folio_sched *s;
    folio_sched_params p;
    uint64_t *kv; /* [N * BS] */
    uint64_t *want;
    int32_t want_cap;
    uint8_t *bits; /* for folio_batch_check */
    uint64_t now_ns;
    int32_t iterations; /* forwarding ones */
    int32_t empty;      /* steps without a row */
    int64_t rectangle;  /* rows x longest of each admission */
    int64_t copied;
    int32_t eos;   /* token that ends a text, or -1 */
    bool audit;    /* after each iteration; default on */
    bool check_kv; /* the whole context of each row; default on */
    int32_t *finish_order, n_finished, finish_cap;
    dry_text *texts; /* by id and completion */
    int32_t n_ids;
    /* The step planned last, and the one before it where it is under way. */
    const folio_step *step;
    int32_t *drawn[2]; /* by number of the step */
    bool *took;
    heard log;
} dry;

/* Parameters of the goldens: no chunking, prefix cache, watermark or run-ahead.
 */
folio_sched_params dry_params(int32_t n_blocks, int32_t block_tok,
                              int32_t max_seqs);
void dry_open(dry *b, const folio_sched_params *p);
void dry_close(dry *b);

/* Token i of the prompt that dry_submit gives to `id`. */
int32_t dry_prompt_tok(uint64_t id, int32_t i);
folio_status dry_try_submit(dry *b, const folio_request_params *p);
/* A plain request, which must be taken. */
void dry_submit(dry *b, uint64_t id, int32_t n_prompt, int32_t max_new);
/* With everything said. */
void dry_submit_as(dry *b, const folio_request_params *p);

/* One iteration: plan, compute, commit, audit. False: the step was empty. */
bool dry_step(dry *b);
/* The three parts of it. dry_plan is false where the step is empty. */
bool dry_plan(dry *b);
void dry_compute(dry *b);
void dry_commit(dry *b, const folio_step *step);
/* Runs a run_ahead 1 scheduler with one step always under way. */
void dry_drain_ahead(dry *b, int32_t max_iterations);

/* Steps until nothing is left; fails after so many iterations. */
void dry_drain(dry *b, int32_t max_iterations);
void dry_audit(dry *b);

const dry_text *dry_text_of(const dry *b, uint64_t id, int32_t completion);
/* Same tokens for the ids 0 .. n_ids - 1. */
void dry_same_texts(const dry *a, const dry *b);

#endif
