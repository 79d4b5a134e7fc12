/* engine/draw.c: which rows of logits a step needs, its wait, and one id for
 * each row that draws. A step of plain greedy rows reads the best id of each;
 * as soon as one row needs more, all rows come in full and are drawn on the
 * host, with the same ids. Rows of prompts are scored on the way. */
#include "engine/eng.h"

#include <math.h>

#include "sample/samp.h"

static folio_answer *answer_of(const folio_step *step, int32_t seq)
{
    folio_request *r = step->seq[seq].req;
    return &((folio_job *)r->user)->answer[r->completion];
}

/* ---- rows ---------------------------------------------------------------- */

/* The logits at position p of a prompt score its id p + 1. Completions of a
 * short prompt may compute it side by side: the first one scores. */
static bool picks_score(folio_job *job, int32_t pos)
{
    if (!job->scores || pos + 1 != job->n_picked ||
        job->n_picked >= job->req.n_prompt)
        return false;
    job->n_picked++;
    return true;
}

static bool scores_any(const folio_step *step)
{
    bool any = false;
    for (int32_t s = 0; s < step->n_seq; s++) {
        folio_job *job = step->seq[s].req->user;
        job->n_picked = job->n_scored; /* a pass that failed left more */
        any = any || (job->scores && job->n_scored < job->req.n_prompt);
    }
    return any;
}

void folio_engine_pick_rows(folio_engine *e, const folio_step *step,
                            folio_batch *b)
{
    int32_t n = 0;
    e->n_rows = 0;
    b->n_rows = step->n_rows;
    b->rows = step->rows;
    if (!scores_any(step))
        return;
    for (int32_t s = 0; s < step->n_seq; s++) {
        const folio_step_row *row = &step->seq[s];
        for (int32_t i = 0; i < row->n_new; i++) {
            const bool draws = row->row >= 0 && i == row->n_new - 1;
            if (!draws && !picks_score(row->req->user, row->first + i))
                continue;
            e->rows[n] = step->q_start[s] + i;
            e->row_draw[n] = draws ? row->row : -1;
            e->row_seq[n++] = s;
        }
    }
    e->n_rows = b->n_rows = n;
    b->rows = e->rows;
}

/* ---- the best ids -------------------------------------------------------- */

static folio_sample_row row_of(const folio_engine *e, const folio_answer *a,
                               const float *logits)
{
    const folio_request *r = a->req;
    return (folio_sample_row){.size = sizeof(folio_sample_row),
                              .logits = logits,
                              .n_vocab = e->n_ids,
                              .n_prompt = r->n_prompt,
                              .tokens = r->tok,
                              .n_tok = r->n_tok,
                              .completion = (uint32_t)a->index,
                              .position = (uint64_t)r->n_tok,
                              .stop_ids = r->stop_ids,
                              .n_stop_ids = r->n_stop_ids};
}

static bool is_plain(const folio_engine *e, const folio_answer *a)
{
    const folio_job *job = a->job;
    const folio_sample_row row = row_of(e, a, NULL);
    return job->sample.temperature == 0.0f && !job->logits &&
           job->logprobs < 0 && !folio_sample_adjusts(&job->sample, &row);
}

/* Whether the best ids were enough. */
static folio_status draw_best(folio_engine *e, const folio_step *step,
                              bool *enough)
{
    FOLIO_RETURN_IF(e->call.read_top(e->runner, 1, e->next, e->top, e->n_nan));
    *enough = true;
    for (int32_t i = 0; i < step->n_rows; i++) {
        const bool sane = e->n_nan[i] == 0 && isfinite(e->top[i]);
        e->verdict[i] = sane ? FOLIO_VERDICT_NONE : FOLIO_VERDICT_ERROR;
        if (!sane)
            folio_logf(
                &e->log, FOLIO_LOG_ERROR,
                "request %llu: %d logits are not numbers, the largest "
                "one is %g",
                (unsigned long long)answer_of(step, step->row_seq[i])->job->id,
                e->n_nan[i], (double)e->top[i]);
        else if (e->next[i] >= e->n_ids)
            *enough = false;
    }
    return FOLIO_OK;
}

/* ---- whole rows ---------------------------------------------------------- */

/* One row on the host: INTERNAL ends its completion. */
static folio_status draw_row(folio_engine *e, folio_answer *a, float *logits,
                             int32_t *id)
{
    const folio_job *job = a->job;
    const folio_sample_row row = row_of(e, a, logits);
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
        *id = job->logits(job->logits_user, &seen);
        if (*id >= 0 && *id < e->n_ids)
            return job->logprobs < 0
                       ? FOLIO_OK
                       : folio_sampler_score(e->sampler, logits, e->n_ids, *id,
                                             job->logprobs, res);
        if (*id != FOLIO_LOGITS_DRAW)
            return folio_fail(&e->log, FOLIO_E_INTERNAL,
                              "request %llu: its logits callback chose id %d "
                              "of %d",
                              (unsigned long long)job->id, *id, e->n_ids);
    }
    FOLIO_RETURN_IF(folio_sampler_run(e->sampler, &job->sample, &row, res));
    *id = res->id;
    return FOLIO_OK;
}

/* The id behind this row's, which is known. */
static void score_row(folio_engine *e, folio_answer *a, const float *logits)
{
    folio_job *job = a->job;
    const int32_t at = job->n_scored++;
    folio_sample_result *res = &job->scores[at];
    res->size = sizeof *res;
    const folio_status st =
        folio_sampler_score(e->sampler, logits, e->n_ids, job->prompt[at],
                            FOLIO_MAX(job->logprobs, 0), res);
    if (st == FOLIO_OK)
        return;
    res->id = job->prompt[at];
    res->logprob = NAN;
    job->poisoned = true;
}

static folio_status draw_all(folio_engine *e, const folio_step *step)
{
    const int32_t n = e->n_rows ? e->n_rows : step->n_rows;
    FOLIO_RETURN_IF(e->call.read(e->runner, e->logits));
    for (int32_t i = 0; i < n; i++) {
        float *row = e->logits + (size_t)i * (size_t)e->n_vocab;
        const int32_t seq = e->n_rows ? e->row_seq[i] : step->row_seq[i];
        const int32_t k = e->n_rows ? e->row_draw[i] : i;
        folio_answer *a = answer_of(step, seq);
        if (k < 0) {
            score_row(e, a, row);
            continue;
        }
        const folio_status st = draw_row(e, a, row, &e->next[k]);
        e->verdict[k] =
            st == FOLIO_OK ? FOLIO_VERDICT_NONE : FOLIO_VERDICT_ERROR;
    }
    return FOLIO_OK;
}

/* Whoever computed the last of a prompt brings its scores. */
static void report_scores(folio_engine *e, const folio_step *step)
{
    for (int32_t s = 0; s < step->n_seq; s++) {
        folio_answer *a = answer_of(step, s);
        folio_job *job = a->job;
        if (!job->scores || job->reported ||
            job->n_scored < job->req.n_prompt ||
            step->seq[s].first + step->seq[s].n_new < job->req.n_prompt)
            continue;
        job->reported = true;
        folio_answer_scored(e, a);
    }
}

folio_status folio_engine_draw(folio_engine *e, const folio_step *step)
{
    bool plain = e->n_rows == 0, enough = false;
    for (int32_t i = 0; plain && i < step->n_rows; i++)
        plain = is_plain(e, answer_of(step, step->row_seq[i]));
    if (plain)
        FOLIO_RETURN_IF(draw_best(e, step, &enough));
    if (!enough)
        FOLIO_RETURN_IF(draw_all(e, step));
    report_scores(e, step);
    return FOLIO_OK;
}
