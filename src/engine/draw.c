/* engine/draw.c: the wait of a step, and one id for each row that draws, with
 * its log-probabilities where they are asked for: from what the device drew, or
 * for rows that need the host from their logits. Rows of prompts are scored on
 * the way. */
#include "engine/eng.h"

#include <math.h>
#include <string.h>

#include "ops/sample_row.h"
#include "sample/samp.h"

/* ---- what the device drew --------------------------------------------------
 */

static float float_of(int32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* The largest logit alone. */
static folio_status take_best(const folio_engine *e, const folio_job *job,
                              const folio_drawn *d, int32_t i, int32_t *id)
{
    const float top = float_of(d->values[i]);
    *id = d->ids[i];
    if (d->n_nan[i] == 0 && isfinite(top))
        return FOLIO_OK;
    return folio_fail(&e->log, FOLIO_E_INTERNAL,
                      "request %llu: %d logits are not numbers, the largest "
                      "one is %g",
                      (unsigned long long)job->id, d->n_nan[i], (double)top);
}

/* Row i as the sampler would report it for `id`, whose logit is `logit`. */
static void report_row(const folio_drawn *d, int32_t i, const folio_job *job,
                       int32_t id, float logit, double lse,
                       folio_sample_result *out)
{
    const size_t at = (size_t)i * (size_t)d->k;
    const int32_t n_top = FOLIO_MAX(job->logprobs, 0);
    float values[FOLIO_LOGPROBS_MAX];
    for (int32_t k = 0; k < n_top; k++)
        values[k] = float_of(d->values[at + (size_t)k]);
    folio_sample_report_known(id, logit, lse, n_top ? d->ids + at : NULL,
                              values, n_top, out);
}

static folio_status take_row(const folio_engine *e, folio_answer *a,
                             const folio_drawn *d, int32_t i, int32_t *id)
{
    folio_sample_drawn x;
    const folio_job *job = a->job;
    if (!d->out)
        return take_best(e, job, d, i, id);
    folio_sample_unpack(d->out + (size_t)i * FOLIO_SAMPLE_OUT, &x);
    if (x.flags || x.id < 0)
        return folio_fail(&e->log, FOLIO_E_INTERNAL, "request %llu: %s",
                          (unsigned long long)job->id,
                          x.flags & SAMPLE_EMPTY
                              ? "every id is banned"
                              : "a logit is NaN or infinite");
    *id = x.id;
    if (job->logprobs >= 0)
        report_row(d, i, job, x.id, x.logit, x.lse, &a->score);
    return FOLIO_OK;
}

/* ---- whole rows ---------------------------------------------------------- */

/* What the model computed, before a callback sees it: INTERNAL for a row that
 * nobody may draw from, whoever would choose the id. */
static folio_status check_logits(const folio_engine *e, const folio_job *job,
                                 const float *logits)
{
    for (int32_t i = 0; i < e->n_ids; i++)
        if (!(logits[i] < INFINITY))
            return folio_fail(&e->log, FOLIO_E_INTERNAL,
                              "request %llu: the logit of id %d is %g",
                              (unsigned long long)job->id, i,
                              (double)logits[i]);
    return FOLIO_OK;
}

/* The row was sound when its callback got it, and so are the request's own bans
 * and biases. */
static folio_status blame(const folio_job *job, folio_status st)
{
    return st == FOLIO_E_INTERNAL && job->logits ? FOLIO_E_INVAL : st;
}

/* Whatever fails ends its completion: INVAL where its callback is to blame. */
static folio_status draw_row(folio_engine *e, folio_answer *a,
                             const folio_step_row *at, float *logits,
                             int32_t *id)
{
    const folio_job *job = a->job;
    const folio_sample_row row = folio_row_of(e, at, logits);
    folio_sample_result *res = &a->score;
    *res = (folio_sample_result){.size = sizeof *res};
    if (job->logits) {
        folio_logits_row seen = {.request = job->id,
                                 .completion = a->index,
                                 .tok = row.tokens,
                                 .n_prompt = row.n_prompt,
                                 .n_tok = row.n_tok,
                                 .logits = logits,
                                 .n_vocab = row.n_vocab};
        FOLIO_RETURN_IF(check_logits(e, job, logits));
        *id = job->logits(job->logits_user, &seen);
        if (*id >= 0 && *id < e->n_ids)
            return job->logprobs < 0
                       ? FOLIO_OK
                       : blame(job,
                               folio_sampler_score(e->sampler, logits, e->n_ids,
                                                   *id, job->logprobs, res));
        if (*id != FOLIO_LOGITS_DRAW)
            return folio_fail(&e->log, FOLIO_E_INVAL,
                              "request %llu: its logits callback chose id %d "
                              "of %d",
                              (unsigned long long)job->id, *id, e->n_ids);
    }
    const folio_status st =
        folio_sampler_run(e->sampler, &job->sample, &row, res);
    if (st == FOLIO_OK)
        *id = res->id;
    return blame(job, st);
}

/* ---- prompts ------------------------------------------------------------- */

/* The id behind row i, which is known; `logits` NULL: the device scored it. */
static void score_row(folio_engine *e, folio_job *job, const folio_drawn *d,
                      int32_t i, const float *logits)
{
    folio_sample_drawn x;
    folio_status st = FOLIO_OK;
    const int32_t at = job->n_scored++;
    folio_sample_result *res = &job->scores[at];
    res->size = sizeof *res;
    if (logits) {
        st = folio_sampler_score(e->sampler, logits, e->n_ids, job->prompt[at],
                                 FOLIO_MAX(job->logprobs, 0), res);
    } else {
        folio_sample_unpack(d->out + (size_t)i * FOLIO_SAMPLE_OUT, &x);
        if (x.flags)
            st = folio_fail(&e->log, FOLIO_E_INTERNAL,
                            "request %llu: logits of its prompt are not "
                            "numbers",
                            (unsigned long long)job->id);
        else
            report_row(d, i, job, job->prompt[at], x.target, x.lse, res);
    }
    if (st == FOLIO_OK)
        return;
    res->id = job->prompt[at];
    res->logprob = NAN;
    job->poisoned = true;
}

/* Whoever computed the last of a prompt brings its scores. */
static void report_scores(folio_engine *e, const folio_step *step)
{
    for (int32_t s = 0; s < step->n_seq; s++) {
        folio_answer *a = folio_answer_of(step->seq[s].req);
        folio_job *job = a->job;
        if (!job->scores || job->reported ||
            job->n_scored < job->req.n_prompt ||
            step->seq[s].first + step->seq[s].n_new < job->req.n_prompt)
            continue;
        job->reported = true;
        folio_answer_scored(e, a);
    }
}

/* ---- all ----------------------------------------------------------------- */

folio_status folio_engine_draw(folio_engine *e, const folio_flight *f)
{
    const folio_step *step = f->step;
    folio_drawn d = {0};
    if (f->draws)
        FOLIO_RETURN_IF(e->call.read_drawn(e->runner, f->number, &d));
    if (f->n_host)
        FOLIO_RETURN_IF(e->call.read_rows(e->runner, f->first_host,
                                          f->last_host - f->first_host + 1,
                                          e->logits));
    for (int32_t i = 0; i < f->n_rows; i++) {
        const folio_step_row *row = &step->seq[f->row_seq[i]];
        const int32_t k = f->row_draw[i];
        folio_answer *a = folio_answer_of(row->req);
        float *logits =
            f->on_host[i]
                ? e->logits + (size_t)(i - f->first_host) * (size_t)e->n_vocab
                : NULL;
        if (k < 0) {
            score_row(e, a->job, &d, i, logits);
            continue;
        }
        e->verdict[k] = FOLIO_VERDICT_NONE;
        e->next[k] = 0;
        if (!folio_row_counts(row))
            continue;
        const folio_status st = logits
                                    ? draw_row(e, a, row, logits, &e->next[k])
                                    : take_row(e, a, &d, i, &e->next[k]);
        if (st != FOLIO_OK)
            e->verdict[k] = st == FOLIO_E_INVAL ? FOLIO_VERDICT_REFUSED
                                                : FOLIO_VERDICT_ERROR;
    }
    report_scores(e, step);
    return FOLIO_OK;
}
