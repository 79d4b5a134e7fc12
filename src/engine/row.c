/* engine/row.c: which rows of logits a step needs and how each of them is
 * drawn: on the device, with the words of the sampling op, or on the host,
 * where somebody has to see the whole row. The ids are the same either way. */
#include "engine/eng.h"

#include <math.h>
#include <string.h>

#include "ops/sample_row.h"
#include "sample/samp.h"

/* ---- what a request brings ------------------------------------------------
 */

/* What a logit can be lifted by and stay finite. */
#define BIAS_MAX ((double)3e38f)

/* One change of a logit, before they are in the order that the op wants. */
typedef struct change {
    int32_t id, order; /* order -1: a ban, which goes before all else */
    float bias;
} change;

static int compare(const void *x, const void *y)
{
    const change *a = x, *b = y;
    if (a->id != b->id)
        return a->id < b->id ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

static int32_t add_bans(change *to, int32_t n, const int32_t *ids,
                        int32_t n_more, int32_t n_ids)
{
    for (int32_t i = 0; i < n_more; i++)
        if (ids[i] >= 0 && ids[i] < n_ids)
            to[n++] = (change){ids[i], -1, -INFINITY};
    return n;
}

/* Biases that no logit survives, and bans that leave no id, of changes in the
 * order that make_edits left them in. */
static folio_status check_changes(const folio_engine *e, const change *all,
                                  int32_t n, const char *with)
{
    int32_t n_banned = 0;
    for (int32_t i = 0; i < n;) {
        const int32_t id = all[i].id;
        bool banned = false;
        double sum = 0;
        for (; i < n && all[i].id == id; i++) {
            banned = banned || all[i].bias == -INFINITY;
            sum += banned ? 0 : (double)all[i].bias;
        }
        n_banned += banned;
        if (!banned && fabs(sum) > BIAS_MAX)
            return folio_fail(&e->log, FOLIO_E_RANGE,
                              "request: logit_bias of id %d adds up to %g, at "
                              "most %g is allowed",
                              id, sum, BIAS_MAX);
    }
    if (n_banned == e->n_ids)
        return folio_fail(&e->log, FOLIO_E_INVAL,
                          "request: all %d ids are banned%s", e->n_ids, with);
    return FOLIO_OK;
}

/* Pairs of an id adjacent, in their order; of a banned id its ban alone. */
static int32_t make_edits(change *all, int32_t n, int32_t *pairs)
{
    int32_t n_out = 0;
    qsort(all, (size_t)n, sizeof *all, compare);
    for (int32_t i = 0; i < n; i++) {
        if (i > 0 && all[i].id == all[i - 1].id && all[i - 1].order < 0) {
            all[i].order = -1; /* and so for those behind it */
            continue;
        }
        folio_sample_edit(&pairs[2 * n_out++], all[i].id, all[i].bias);
    }
    return n_out;
}

static folio_status open_edits(const folio_engine *e, folio_job *job)
{
    const folio_sample_params *s = &job->sample;
    const int32_t n_stop = s->min_new_tokens > 0 ? job->req.n_stop_ids : 0;
    const size_t n = (size_t)s->n_logit_bias + (size_t)s->n_banned;
    folio_status st = FOLIO_OK;
    if (n + (size_t)n_stop == 0)
        return FOLIO_OK;
    change *all = folio_calloc(n + (size_t)n_stop, sizeof *all);
    job->edits =
        folio_calloc(2 * n + 2 * (n + (size_t)n_stop), sizeof(int32_t));
    if (!all || !job->edits) {
        free(all);
        return FOLIO_E_NOMEM;
    }
    job->edits_short = job->edits + 2 * n;
    for (int round = 0; round < 2 && st == FOLIO_OK; round++) {
        int32_t k = 0;
        for (int32_t i = 0; i < s->n_logit_bias; i++)
            all[k++] = (change){s->logit_bias[i].id, i, s->logit_bias[i].bias};
        k = add_bans(all, k, s->banned, s->n_banned, e->n_ids);
        if (round == 0) {
            job->n_edits = make_edits(all, k, job->edits);
            st = check_changes(e, all, k, "");
        } else {
            k = add_bans(all, k, job->req.stop_ids, n_stop, e->n_ids);
            job->n_edits_short = make_edits(all, k, job->edits_short);
            st = check_changes(e, all, k,
                               ", those that end the answer by min_new_tokens");
        }
    }
    free(all);
    return st;
}

folio_status folio_row_open(const folio_engine *e, folio_job *job)
{
    const folio_sample_params *s = &job->sample;
    const folio_draw_limits *lim = &e->runner->draw.lim;
    const int64_t longest = (int64_t)job->req.n_prompt + job->req.max_new;
    const bool repeats = s->repetition_penalty != 1 && s->penalty_last_n != 0;
    FOLIO_RETURN_IF(open_edits(e, job));
    job->counts =
        repeats || s->presence_penalty != 0 || s->frequency_penalty != 0;
    job->on_host =
        job->logits || (s->temperature > 0 && s->typical_p < 1) ||
        (s->dry_multiplier > 0 && s->dry_last_n != 0) ||
        (repeats && s->penalty_last_n > 0 && s->penalty_last_n < longest) ||
        FOLIO_MAX(job->n_edits, job->n_edits_short) > lim->max_edits ||
        job->logprobs > lim->n_top;
    job->plain = s->temperature == 0 && !job->on_host && !job->counts &&
                 job->logprobs < 0 && job->n_edits == 0;
    return FOLIO_OK;
}

folio_sample_row folio_row_of(const folio_engine *e, const folio_step_row *row,
                              const float *logits)
{
    const folio_request *r = row->req;
    return (folio_sample_row){.size = sizeof(folio_sample_row),
                              .logits = logits,
                              .n_vocab = e->n_ids,
                              .n_prompt = r->n_prompt,
                              .tokens = r->tok,
                              .n_tok = r->n_tok,
                              .completion = (uint32_t)r->completion,
                              .position = (uint64_t)r->n_tok,
                              .stop_ids = r->stop_ids,
                              .n_stop_ids = r->n_stop_ids};
}

/* ---- rows of a step --------------------------------------------------------
 */

/* The logits at position p of a prompt score its id p + 1. Completions of a
 * short prompt may compute it side by side: the first one scores. */
static bool picks_score(folio_job *job, int32_t pos)
{
    if (pos + 1 != job->n_picked || job->n_picked >= job->req.n_prompt)
        return false;
    job->n_picked++;
    return true;
}

static void add_row(folio_flight *f, int32_t tok, int32_t seq, int32_t draw)
{
    const int32_t i = f->n_rows++;
    f->rows[i] = tok;
    f->row_seq[i] = seq;
    f->row_draw[i] = draw;
    f->on_host[i] = false;
}

static void list_rows(folio_flight *f)
{
    const folio_step *step = f->step;
    f->n_rows = 0;
    for (int32_t s = 0; s < step->n_seq; s++) {
        folio_job *job = step->seq[s].req->user;
        job->n_picked = job->n_scored; /* a pass that failed left more */
    }
    for (int32_t s = 0; s < step->n_seq; s++) {
        const folio_step_row *row = &step->seq[s];
        folio_job *job = row->req->user;
        const int32_t last = step->q_start[s + 1] - 1;
        if (job->scores && job->n_picked < job->req.n_prompt)
            for (int32_t t = step->q_start[s]; t < last + (row->row < 0); t++)
                if (picks_score(job, row->first + (t - step->q_start[s])))
                    add_row(f, t, s, -1);
        if (row->row >= 0)
            add_row(f, last, s, row->row);
    }
}

/* ---- words -----------------------------------------------------------------
 */

/* Length of the text that a row draws the next id of. */
static int32_t text_of(const folio_step_row *row)
{
    return row->first + row->n_new;
}

static bool is_short(const folio_job *job, const folio_step_row *row)
{
    return job->req.n_stop_ids &&
           text_of(row) - job->req.n_prompt < job->sample.min_new_tokens;
}

/* Whether the largest logit is all that is wanted. */
static bool is_plain(const folio_step_row *row)
{
    const folio_job *job = row->req->user;
    return job->plain && !is_short(job, row);
}

/* A slot with the counts of the row's text, which the draw will add to. */
static bool take_slot(folio_engine *e, const folio_step_row *row, folio_draw *d,
                      int32_t *slot)
{
    const folio_draw_limits *lim = &e->runner->draw.lim;
    const folio_request *r = row->req;
    const int32_t n_tok = text_of(row);
    if (row->place >= lim->n_slots)
        return false;
    folio_counted *c = &e->counted[row->place];
    const bool there = c->id == r->id && c->completion == r->completion &&
                       c->epoch == r->epoch && c->n_tok == n_tok;
    if (!there && (d->n_fresh == lim->max_fresh || r->n_tok < n_tok))
        return false;
    if (!there)
        e->fresh[d->n_fresh++] = (folio_draw_fresh){.slot = row->place,
                                                    .tok = r->tok,
                                                    .n_prompt = r->n_prompt,
                                                    .n_tok = n_tok};
    *c = (folio_counted){r->id, r->completion, n_tok + 1, r->epoch};
    *slot = row->place;
    return true;
}

/* Rows of one request share their edits where they follow each other. */
typedef struct shared_edits {
    const int32_t *pairs;
    int32_t first, end;
} shared_edits;

static bool take_edits(folio_engine *e, const folio_job *job, bool brief,
                       folio_draw *d, shared_edits *at)
{
    const int32_t *pairs = brief ? job->edits_short : job->edits;
    const int32_t n = brief ? job->n_edits_short : job->n_edits;
    if (n == 0)
        *at = (shared_edits){0};
    if (n == 0 || at->pairs == pairs)
        return true;
    if (n > e->runner->draw.lim.max_edits - d->n_edits)
        return false;
    memcpy(e->edits + 2 * (size_t)d->n_edits, pairs,
           2 * (size_t)n * sizeof *pairs);
    *at = (shared_edits){pairs, d->n_edits, d->n_edits + n};
    d->n_edits += n;
    return true;
}

/* The words of row i; false: the host has to draw it. */
static bool pack_row(folio_engine *e, const folio_flight *f, int32_t i,
                     folio_draw *d, shared_edits *at)
{
    const folio_step_row *row = &f->step->seq[f->row_seq[i]];
    const folio_job *job = row->req->user;
    const folio_sample_params *s = &job->sample;
    folio_sample_spec spec = {
        .skip = 1, .target = -1, .slot = -1, .repetition_penalty = 1};
    bool here = true;
    spec.no_sum = f->row_draw[i] >= 0 && job->logprobs < 0;
    if (f->row_draw[i] < 0) {
        here = job->logprobs <= e->runner->draw.lim.n_top;
        spec.target =
            job->prompt[row->first +
                        (f->rows[i] - f->step->q_start[f->row_seq[i]]) + 1];
    } else if (job->on_host || !take_edits(e, job, is_short(job, row), d, at) ||
               (job->counts && !take_slot(e, row, d, &spec.slot))) {
        here = false;
    } else {
        spec.skip = 0;
        spec.temperature = s->temperature;
        spec.top_p = s->top_p;
        spec.min_p = s->min_p;
        spec.top_k = s->top_k;
        spec.seed = s->seed;
        spec.position = (uint64_t)text_of(row);
        spec.completion = (uint32_t)row->req->completion;
        spec.edit_first = at->first;
        spec.edit_end = at->end;
        spec.presence_penalty = s->presence_penalty;
        spec.frequency_penalty = s->frequency_penalty;
        if (s->penalty_last_n != 0)
            spec.repetition_penalty = s->repetition_penalty;
    }
    folio_sample_pack(&spec, e->words + (size_t)i * FOLIO_SAMPLE_IN);
    d->top = d->top || (here && job->logprobs > 0);
    return here;
}

void folio_row_forget_counts(folio_engine *e)
{
    memset(e->counted, 0,
           (size_t)e->runner->draw.lim.n_slots * sizeof *e->counted);
}

bool folio_row_pack(folio_engine *e, folio_flight *f, folio_batch *b,
                    folio_draw *d)
{
    shared_edits at = {0};
    list_rows(f);
    b->n_rows = f->n_rows;
    b->rows = f->rows;
    *d = (folio_draw){.number = f->number,
                      .words = e->words,
                      .edits = e->edits,
                      .fresh = e->fresh};
    f->n_host = 0;
    /* A step of plain rows stays with topk, which walks a row once and on GPUs
     * spreads it over many groups; the sampling op has one group a row. */
    f->best = e->n_ids == e->n_vocab;
    f->must_settle = false;
    for (int32_t i = 0; f->best && i < f->n_rows; i++)
        f->best = f->row_draw[i] >= 0 && is_plain(&f->step->seq[f->row_seq[i]]);
    for (int32_t i = 0; !f->best && i < f->n_rows; i++) {
        f->on_host[i] = !pack_row(e, f, i, d, &at);
        f->must_settle = f->must_settle || f->on_host[i] || f->row_draw[i] < 0;
        if (!f->on_host[i])
            continue;
        f->last_host = i;
        if (f->n_host++ == 0)
            f->first_host = i;
    }
    d->best = f->best;
    f->draws = f->n_rows > f->n_host;
    return f->draws;
}
