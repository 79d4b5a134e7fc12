/* engine/draw.c: the wait of a step, and one id for each of its rows. A step of
 * plain greedy rows reads the best id of each; as soon as one row needs more,
 * all rows come in full and are drawn on the host, with the same ids. */
#include "engine/eng.h"

#include <math.h>

static folio_answer *answer_of(const folio_step *step, int32_t row)
{
    folio_request *r = step->seq[step->row_seq[row]].req;
    return &((folio_job *)r->user)->answer[r->completion];
}

static bool is_plain(const folio_job *job)
{
    return job->sample.temperature == 0.0f && !job->logits;
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
            folio_logf(&e->log, FOLIO_LOG_ERROR,
                       "request %llu: %d logits are not numbers, the largest "
                       "one is %g",
                       (unsigned long long)answer_of(step, i)->job->id,
                       e->n_nan[i], (double)e->top[i]);
        else if (e->next[i] >= e->n_ids)
            *enough = false;
    }
    return FOLIO_OK;
}

/* One row on the host: INTERNAL ends its completion. */
static folio_status draw_row(folio_engine *e, const folio_answer *a,
                             float *logits, int32_t *id)
{
    const folio_job *job = a->job;
    const folio_request *r = a->req;
    if (job->logits) {
        folio_logits_row row = {.request = job->id,
                                .completion = a->index,
                                .tok = r->tok,
                                .n_prompt = r->n_prompt,
                                .n_tok = r->n_tok,
                                .logits = logits,
                                .n_vocab = e->n_ids};
        const int32_t got = job->logits(job->logits_user, &row);
        if (got >= 0 && got < e->n_ids) {
            *id = got;
            return FOLIO_OK;
        }
        if (got != FOLIO_LOGITS_DRAW)
            return folio_fail(&e->log, FOLIO_E_INTERNAL,
                              "request %llu: its logits callback chose id %d "
                              "of %d",
                              (unsigned long long)job->id, got, e->n_ids);
    }
    return folio_sampler_draw(e->sampler, &job->sample, logits,
                              (uint32_t)a->index, (uint64_t)r->n_tok, id);
}

folio_status folio_engine_draw(folio_engine *e, const folio_step *step)
{
    bool plain = true;
    for (int32_t i = 0; plain && i < step->n_rows; i++)
        plain = is_plain(answer_of(step, i)->job);
    if (plain) {
        bool enough = false;
        FOLIO_RETURN_IF(draw_best(e, step, &enough));
        if (enough)
            return FOLIO_OK;
    }
    FOLIO_RETURN_IF(e->call.read(e->runner, e->logits));
    for (int32_t i = 0; i < step->n_rows; i++) {
        float *row = e->logits + (size_t)i * (size_t)e->n_vocab;
        const folio_status st =
            draw_row(e, answer_of(step, i), row, &e->next[i]);
        e->verdict[i] =
            st == FOLIO_OK ? FOLIO_VERDICT_NONE : FOLIO_VERDICT_ERROR;
    }
    return FOLIO_OK;
}
