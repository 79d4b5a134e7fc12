/* engine/job.c: a request at the door: checked against what the engine can ever
 * do, then copied with all it will need, so that a step need not allocate. Runs
 * on the threads that submit: reads of the engine only what open decided. */
#include "engine/eng.h"

#include <string.h>

#define MAX_COMPLETIONS 1024

void folio_engine_request_default(folio_engine_request *r)
{
    *r = (folio_engine_request){.size = sizeof *r,
                                .max_new = 16,
                                .n = 1,
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
    if (r->priority < 0 || r->priority > FOLIO_PRIORITY_LAST)
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: priority is %d, it must be in 0..%d",
                          r->priority, FOLIO_PRIORITY_LAST);
    if (r->salt_bytes > FOLIO_SALT_MAX || (r->salt_bytes && !r->salt))
        return folio_fail(log, FOLIO_E_INVAL,
                          "request: salt is %s with %zu bytes, at most %d are "
                          "allowed",
                          r->salt ? "given" : "NULL", r->salt_bytes,
                          FOLIO_SALT_MAX);
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
    return folio_sample_params_check(&r->sample, log);
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
                          "request: prompt %d and max_new %lld are %lld ids, "
                          "max_ctx is %d",
                          r->n_prompt, (long long)want, (long long)len,
                          e->max_len);
    if (len - 1 > slots)
        return folio_fail(&e->log, FOLIO_E_TOO_LARGE,
                          "request: prompt %d and max_new %lld need %lld "
                          "blocks of %d, the pool has %d",
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
    a->cap = e->max_text;
    a->text = folio_calloc(a->cap, 1);
    if (!a->text)
        return FOLIO_E_NOMEM;
    return folio_detokenizer_open(e->tok, job->prompt,
                                  (size_t)job->req.n_prompt, decode_flags,
                                  &a->detok);
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

folio_status folio_job_open(const folio_engine *e,
                            const folio_engine_request *r, folio_job **out)
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
    job->sample = r->sample;
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
    for (int32_t i = 0; i < r->n; i++)
        FOLIO_TRY(open_answer(e, job, i, r->decode_flags));
    *out = job;
    return FOLIO_OK;
fail:
    folio_job_close(&job);
    return folio_fail(&e->log, st,
                      "request: prompt of %d ids, %d completions: %s",
                      r->n_prompt, r->n, folio_status_text(st));
}

void folio_job_close(folio_job **job)
{
    if (!*job)
        return;
    for (int32_t i = 0; i < (*job)->n; i++) {
        folio_detokenizer_close(&(*job)->answer[i].detok);
        free((*job)->answer[i].text);
    }
    free((*job)->prompt);
    FOLIO_FREE(*job);
}
