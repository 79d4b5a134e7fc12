/* engine/job.c: a request at the door: checked against what the engine can ever
 * do, then copied with all it will need, so that a step need not allocate. Runs
 * on the threads that submit: reads of the engine only what open decided. */
#include "engine/eng.h"

#include <string.h>

#include "sample/samp.h"

#define MAX_COMPLETIONS 1024
/* Stop ids, biases and bans of a request: numbered together in row.c. */
#define MAX_CHANGES (1 << 24)

void folio_engine_request_default(folio_engine_request *r)
{
    if (!r)
        return;
    *r = (folio_engine_request){.size = sizeof *r,
                                .max_new = 16,
                                .n = 1,
                                .logprobs = -1,
                                .decode_flags = FOLIO_DECODE_SPECIAL};
    folio_sample_params_default(&r->sample);
    r->sample.temperature = 0.0f;
}

static folio_status check_fields(const folio_engine *e,
                                 const folio_engine_request *r)
{
    const folio_log *log = &e->log;
    const int32_t most = FOLIO_MIN(MAX_COMPLETIONS, e->door.max_in_flight);
    if (r->size != sizeof *r)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: size is %zu, expected %zu (was "
                          "folio_engine_request_default called?)",
                          r->size, sizeof *r);
    if (!r->prompt || r->n_prompt < 1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: the prompt is %s and has %d ids, it needs "
                          "at least 1",
                          r->prompt ? "given" : "NULL", r->n_prompt);
    if (r->max_new < 1 && r->max_new != -1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: max_new is %d, it must be at least 1, or "
                          "-1",
                          r->max_new);
    if (r->n < 1 || r->n > most)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: n is %d, it must be in 1..%d", r->n, most);
    if (r->n_stop_ids < 0 || (r->n_stop_ids > 0 && !r->stop_ids))
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: stop_ids is %s for n_stop_ids %d",
                          r->stop_ids ? "given" : "NULL", r->n_stop_ids);
    const int64_t n_changes =
        (int64_t)r->n_stop_ids + r->sample.n_logit_bias + r->sample.n_banned;
    if (n_changes > MAX_CHANGES)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: %lld stop ids, biases and bans, at most "
                          "%d are allowed",
                          (long long)n_changes, MAX_CHANGES);
    for (int32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] < 0 || r->stop_ids[i] >= e->n_ids)
            return folio_fail(log, FOLIO_E_RANGE,
                              "request: stop_ids[%d] is %d, the vocabulary has "
                              "%d ids",
                              i, r->stop_ids[i], e->n_ids);
    if (r->ignore_eos < 0 || r->ignore_eos > 1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: ignore_eos is %d, not 0 or 1",
                          r->ignore_eos);
    if (r->priority < 0 || r->priority > FOLIO_PRIORITY_LAST)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: priority is %d, it must be in 0..%d",
                          r->priority, FOLIO_PRIORITY_LAST);
    if (r->salt_bytes >= FOLIO_SALT_MAX || (r->salt_bytes && !r->salt))
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: salt is %s with %zu bytes, at most %d are "
                          "allowed",
                          r->salt ? "given" : "NULL", r->salt_bytes,
                          FOLIO_SALT_MAX - 1);
    if (r->n_stop < 0 || (r->n_stop > 0 && !r->stop))
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: stop is %s for n_stop %d",
                          r->stop ? "given" : "NULL", r->n_stop);
    if (r->n_stop > 0 && !e->tok)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: %d stop strings, but the engine has no "
                          "tokenizer",
                          r->n_stop);
    for (int32_t i = 0; i < r->n_stop; i++)
        if (!r->stop[i])
            return folio_fail(log, FOLIO_E_INVAL, "request: stop[%d] is NULL",
                              i);
    if (r->logprobs < -1 || r->logprobs > FOLIO_LOGPROBS_MAX)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: logprobs is %d, it must be in -1..%d",
                          r->logprobs, FOLIO_LOGPROBS_MAX);
    if (r->prompt_logprobs < 0 || r->prompt_logprobs > 1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: prompt_logprobs is %d, not 0 or 1",
                          r->prompt_logprobs);
    if (r->prompt_logprobs && !e->p.prompt_logprobs)
        return folio_fail(log, FOLIO_E_UNSUPPORTED,
                          "request: prompt_logprobs is asked of an engine "
                          "that was opened without");
    if (r->decode_flags & ~(uint32_t)FOLIO_DECODE_SPECIAL)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: decode_flags are 0x%x, only 0x%x is known",
                          (unsigned)r->decode_flags,
                          (unsigned)FOLIO_DECODE_SPECIAL);
    for (int32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= e->n_ids)
            return folio_fail(log, FOLIO_E_RANGE,
                              "request: prompt[%d] is %d, the vocabulary has "
                              "%d ids",
                              i, r->prompt[i], e->n_ids);
    return folio_sample_params_check_ids(&r->sample, e->n_ids, log);
}

/* Longest answer; the last id drawn is never cached. */
static folio_status check_length(const folio_engine *e,
                                 const folio_engine_request *r,
                                 int32_t *max_new)
{
    const int64_t slots = (int64_t)e->p.n_blocks * e->p.block_size;
    const int64_t room = FOLIO_MIN((int64_t)e->max_len, slots + 1);
    const int64_t want =
        r->max_new == -1 ? FOLIO_MAX(room - r->n_prompt, 1) : r->max_new;
    const int64_t len = r->n_prompt + want;
    if (len > e->max_len)
        return folio_fail(&e->log, FOLIO_E_TOO_LARGE,
                          "request: a prompt of %d ids and %lld new ones are "
                          "%lld, the context (max_ctx) is %d",
                          r->n_prompt, (long long)want, (long long)len,
                          e->max_len);
    if (len - 1 > slots)
        return folio_fail(&e->log, FOLIO_E_TOO_LARGE,
                          "request: a prompt of %d ids and %lld new ones need "
                          "%lld blocks of %d, the pool has %d",
                          r->n_prompt, (long long)want,
                          (long long)folio_div_up(len - 1, e->p.block_size),
                          e->p.block_size, e->p.n_blocks);
    *max_new = (int32_t)want;
    return FOLIO_OK;
}

static folio_status open_answer(const folio_engine *e, folio_job *job,
                                int32_t index, uint32_t decode_flags)
{
    folio_answer *a = &job->answer[index];
    a->job = job;
    a->index = index;
    if (!e->tok)
        return FOLIO_OK;
    /* One id and the end bring no more than their own text and what was held
     * back; a push wants room for all that can be held. */
    const size_t held = job->stops ? folio_stop_set_max_held(job->stops) : 0;
    a->cap = e->max_text + 2 * held;
    a->stop = folio_stop_begin();
    a->text = folio_calloc(a->cap, 1);
    if (!a->text)
        return FOLIO_E_NOMEM;
    return folio_detokenizer_open(e->tok, job->prompt,
                                  (size_t)job->req.n_prompt, decode_flags,
                                  &a->detok);
}

/* [n] elements at the end of the arrays; NULL for none. */
static const void *keep(char **at, const void *from, int32_t n, size_t size)
{
    void *to = *at;
    if (n <= 0)
        return NULL;
    memcpy(to, from, (size_t)n * size);
    *at += (size_t)n * size;
    return to;
}

static folio_status copy_sample(const folio_engine *e,
                                const folio_engine_request *r, folio_job *job)
{
    folio_sample_params *s = &job->sample;
    FOLIO_RETURN_IF(folio_sample_params_resolve(&r->sample, &e->log, s));
    job->logprobs = r->logprobs;
    s->logprobs = FOLIO_MAX(r->logprobs, 0);
    /* Elements of 8 bytes first, so that all are aligned. */
    const size_t bytes =
        (size_t)s->n_logit_bias * sizeof *s->logit_bias +
        ((size_t)s->n_banned + (size_t)s->n_dry_breakers) * sizeof(int32_t);
    char *at = job->arrays = folio_calloc(bytes, 1);
    if (!at)
        return FOLIO_E_NOMEM;
    s->logit_bias =
        keep(&at, s->logit_bias, s->n_logit_bias, sizeof *s->logit_bias);
    s->banned = keep(&at, s->banned, s->n_banned, sizeof *s->banned);
    s->dry_breakers =
        keep(&at, s->dry_breakers, s->n_dry_breakers, sizeof *s->dry_breakers);
    if (!r->prompt_logprobs)
        return FOLIO_OK;
    /* Every position is computed: a salt that is nobody's but its own, longer
     * than a caller's can be. */
    memset(job->salt, 0xff, FOLIO_SALT_MAX);
    memcpy(job->salt, &job->id, sizeof job->id);
    job->req.salt_bytes = FOLIO_SALT_MAX;
    job->scores = folio_calloc((size_t)r->n_prompt, sizeof *job->scores);
    job->n_scored = 1; /* nothing stands before the first id */
    return job->scores ? FOLIO_OK : FOLIO_E_NOMEM;
}

static folio_status open_stops(const folio_engine *e,
                               const folio_engine_request *r, folio_job *job)
{
    const size_t n = (size_t)r->n_stop;
    if (n == 0)
        return FOLIO_OK;
    if (r->stop_bytes)
        return folio_stop_set_open(r->stop, r->stop_bytes, r->n_stop, &e->log,
                                   &job->stops);
    size_t *lens = folio_calloc(n, sizeof *lens);
    if (!lens)
        return FOLIO_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        lens[i] = strlen(r->stop[i]);
    const folio_status st =
        folio_stop_set_open(r->stop, lens, r->n_stop, &e->log, &job->stops);
    free(lens);
    return st;
}

static folio_status copy_ids(const folio_engine *e,
                             const folio_engine_request *r, folio_job *job)
{
    const size_t n_own = (size_t)r->n_stop_ids;
    const size_t n_eog = r->ignore_eos ? 0 : (size_t)e->n_eog;
    job->prompt =
        folio_calloc((size_t)r->n_prompt + n_own + n_eog, sizeof *job->prompt);
    if (!job->prompt)
        return FOLIO_E_NOMEM;
    job->stop_ids = job->prompt + r->n_prompt;
    memcpy(job->prompt, r->prompt, (size_t)r->n_prompt * sizeof *r->prompt);
    if (n_own)
        memcpy(job->stop_ids, r->stop_ids, n_own * sizeof *r->stop_ids);
    if (n_eog)
        memcpy(job->stop_ids + n_own, e->eog, n_eog * sizeof *e->eog);
    if (r->salt_bytes)
        memcpy(job->salt, r->salt, r->salt_bytes);
    job->req.prompt = job->prompt;
    job->req.stop_ids = job->stop_ids;
    job->req.n_stop_ids = (int32_t)(n_own + n_eog);
    job->req.salt = job->salt;
    job->req.salt_bytes = r->salt_bytes;
    return FOLIO_OK;
}

/* What the scheduler will take in. */
static folio_status make_requests(const folio_engine *e, folio_job *job)
{
    folio_status st = FOLIO_OK;
    folio_request **all = folio_calloc((size_t)job->n, sizeof(folio_request *));
    if (!all)
        return FOLIO_E_NOMEM;
    st = folio_sched_make(e->sched, &job->req, all);
    for (int32_t i = 0; st == FOLIO_OK && i < job->n; i++)
        job->answer[i].req = all[i];
    free(all);
    return st;
}

folio_status folio_job_open(const folio_engine *e,
                            const folio_engine_request *r, uint64_t id,
                            folio_job **out)
{
    folio_status st;
    int32_t max_new = 0;
    FOLIO_RETURN_IF(check_fields(e, r));
    FOLIO_RETURN_IF(check_length(e, r, &max_new));
    folio_job *job =
        folio_calloc(1, sizeof *job + (size_t)r->n * sizeof job->answer[0]);
    if (!job)
        return folio_fail(&e->log, FOLIO_E_NOMEM, "request: no memory");
    job->n = r->n;
    job->id = job->req.id = id;
    job->logits = r->logits;
    job->logits_user = r->logits_user;
    job->submit_ns = folio_engine_now(e);
    job->req.n_prompt = r->n_prompt;
    job->req.max_new = max_new;
    job->req.n = r->n;
    job->req.priority = r->priority;
    job->req.user = job;
    if (r->deadline_ns)
        job->req.deadline_ns = r->deadline_ns > UINT64_MAX - job->submit_ns
                                   ? UINT64_MAX
                                   : job->submit_ns + r->deadline_ns;
    FOLIO_TRY(copy_ids(e, r, job));
    FOLIO_TRY(copy_sample(e, r, job));
    FOLIO_TRY(folio_row_open(e, job));
    FOLIO_TRY(open_stops(e, r, job));
    FOLIO_TRY(make_requests(e, job));
    for (int32_t i = 0; i < r->n; i++)
        FOLIO_TRY(open_answer(e, job, i, r->decode_flags));
    *out = job;
    return FOLIO_OK;
fail:
    folio_job_close(&job);
    if (st != FOLIO_E_NOMEM)
        return st; /* told where it was found */
    return folio_fail(&e->log, st,
                      "request: no memory for a prompt of %d ids and %d "
                      "completions",
                      r->n_prompt, r->n);
}

void folio_job_close(folio_job **job)
{
    if (!*job)
        return;
    for (int32_t i = 0; i < (*job)->n; i++) {
        if (!(*job)->entered)
            folio_request_close((*job)->answer[i].req);
        folio_detokenizer_close(&(*job)->answer[i].detok);
        free((*job)->answer[i].text);
    }
    free((*job)->prompt);
    free((*job)->arrays);
    free((*job)->edits);
    free((*job)->scores);
    folio_stop_set_close(&(*job)->stops);
    FOLIO_FREE(*job);
}
