/* sample/adjust.c: what changes logits before any filter: bias, bans,
 * penalties, DRY. Plain f32 sums and products in a fixed order, no division,
 * nothing fused, so that every machine gets the same row. */
#include "sample/samp.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

/* No penalty of DRY bans, however long the repetition. */
#define DRY_MOST 1e30f

static bool in_row(int32_t id, int32_t n_vocab)
{
    return id >= 0 && id < n_vocab;
}

static int32_t window_of(int32_t last_n, int32_t n_tok)
{
    return last_n < 0 ? n_tok : FOLIO_MIN(last_n, n_tok);
}

static bool is_too_short(const folio_sample_params *p,
                         const folio_sample_row *row)
{
    return row->n_tok - row->n_prompt < p->min_new_tokens && row->n_stop_ids;
}

static bool repeats_cost(const folio_sample_params *p,
                         const folio_sample_row *row)
{
    return p->repetition_penalty != 1 &&
           window_of(p->penalty_last_n, row->n_tok) > 0;
}

static bool occurrences_cost(const folio_sample_params *p,
                             const folio_sample_row *row)
{
    return (p->presence_penalty != 0 || p->frequency_penalty != 0) &&
           row->n_tok > row->n_prompt;
}

/* A repetition needs an id before, one that followed it and the last one. */
static bool has_dry(const folio_sample_params *p, const folio_sample_row *row)
{
    return p->dry_multiplier > 0 && window_of(p->dry_last_n, row->n_tok) > 1;
}

bool folio_sample_adjusts(const folio_sample_params *p,
                          const folio_sample_row *row)
{
    return p->n_logit_bias || p->n_banned || is_too_short(p, row) ||
           repeats_cost(p, row) || occurrences_cost(p, row) || has_dry(p, row);
}

static void ban(float *x, int32_t n_vocab, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (in_row(ids[i], n_vocab))
            x[ids[i]] = -INFINITY;
}

static void punish_repeats(int32_t *count, const folio_sample_params *p,
                           const folio_sample_row *row, float *x)
{
    const int32_t n = window_of(p->penalty_last_n, row->n_tok);
    const int32_t *tok = row->tokens + (row->n_tok - n);
    const float up = p->repetition_penalty, down = 1.0f / up;
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = tok[i];
        if (!in_row(id, row->n_vocab) || count[id])
            continue;
        count[id] = 1;
        x[id] = x[id] * (x[id] > 0 ? down : up);
    }
    for (int32_t i = 0; i < n; i++)
        if (in_row(tok[i], row->n_vocab))
            count[tok[i]] = 0;
}

static void punish_occurrences(int32_t *count, const folio_sample_params *p,
                               const folio_sample_row *row, float *x)
{
    for (int32_t i = row->n_prompt; i < row->n_tok; i++)
        if (in_row(row->tokens[i], row->n_vocab))
            count[row->tokens[i]]++;
    for (int32_t i = row->n_prompt; i < row->n_tok; i++) {
        const int32_t id = row->tokens[i];
        if (!in_row(id, row->n_vocab) || !count[id])
            continue;
        float cost = (float)count[id] * p->frequency_penalty;
        cost = cost + p->presence_penalty;
        x[id] = x[id] - cost;
        count[id] = 0;
    }
}

static bool is_breaker(const folio_sample_params *p, int32_t id)
{
    for (int32_t i = 0; i < p->n_dry_breakers; i++)
        if (p->dry_breakers[i] == id)
            return true;
    return false;
}

static void punish_continuations(int32_t *count, const folio_sample_params *p,
                                 const folio_sample_row *row, float *x)
{
    const int32_t n = window_of(p->dry_last_n, row->n_tok);
    const int32_t *tok = row->tokens + (row->n_tok - n);
    int32_t reach = 0; /* how far back a repetition may go */
    while (reach < n && reach < FOLIO_DRY_MAX_MATCH &&
           !is_breaker(p, tok[n - 1 - reach]))
        reach++;
    for (int32_t i = 1; i < n; i++) {
        int32_t len = 0;
        while (len < reach && len < i && tok[i - 1 - len] == tok[n - 1 - len])
            len++;
        if (len >= p->dry_allowed_length && in_row(tok[i], row->n_vocab))
            count[tok[i]] = FOLIO_MAX(count[tok[i]], len);
    }
    for (int32_t i = 0; i < p->n_dry_breakers; i++)
        if (in_row(p->dry_breakers[i], row->n_vocab))
            count[p->dry_breakers[i]] = 0;
    for (int32_t i = 1; i < n; i++) {
        const int32_t id = tok[i];
        if (!in_row(id, row->n_vocab) || !count[id])
            continue;
        float cost = p->dry_multiplier;
        for (int32_t k = p->dry_allowed_length; k < count[id]; k++)
            cost = FOLIO_MIN(cost * p->dry_base, DRY_MOST);
        x[id] = x[id] - cost;
        count[id] = 0;
    }
}

void folio_sample_adjust(folio_sampler *s, const folio_sample_params *p,
                         const folio_sample_row *row, float *x)
{
    for (int32_t i = 0; i < p->n_logit_bias; i++)
        x[p->logit_bias[i].id] = x[p->logit_bias[i].id] + p->logit_bias[i].bias;
    ban(x, row->n_vocab, p->banned, p->n_banned);
    if (is_too_short(p, row))
        ban(x, row->n_vocab, row->stop_ids, row->n_stop_ids);
    if (repeats_cost(p, row))
        punish_repeats(s->count, p, row, x);
    if (occurrences_cost(p, row))
        punish_occurrences(s->count, p, row, x);
    if (has_dry(p, row))
        punish_continuations(s->count, p, row, x);
}
