/* sample/sampler.c: filters as cut-offs, integer weights, one counter-based
 * draw. Sees logits only; knows no model, device or engine. */
#include "sample/samp.h"

#include <float.h>

#include "base/rng.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#define MAX_VOCAB (1 << 20)
#define SLACK     0x1p-22 /* of shares of the weight: rounding of f32 */

folio_status folio_sampler_open(int32_t n_vocab, const folio_log *log,
                                folio_sampler **out)
{
    if (!out)
        return folio_fail(log, FOLIO_E_INVAL, "sampler: out is NULL");
    if (n_vocab < 1 || n_vocab > MAX_VOCAB)
        return folio_fail(log, FOLIO_E_INVAL,
                          "sampler: n_vocab is %d, expected 1 to %d", n_vocab,
                          MAX_VOCAB);
    folio_sampler *s = folio_calloc(1, sizeof *s);
    if (s) {
        s->cands = folio_calloc((size_t)n_vocab, sizeof *s->cands);
        s->work = folio_calloc((size_t)n_vocab, sizeof *s->work);
        s->count = folio_calloc((size_t)n_vocab, sizeof *s->count);
    }
    if (!s || !s->cands || !s->work || !s->count) {
        folio_sampler_close(&s);
        return folio_fail(log, FOLIO_E_NOMEM,
                          "sampler: no memory for %d candidates", n_vocab);
    }
    s->n_vocab = n_vocab;
    if (log)
        s->log = *log;
    *out = s;
    return FOLIO_OK;
}

void folio_sampler_close(folio_sampler **s)
{
    if (!s || !*s)
        return;
    free((*s)->cands);
    free((*s)->work);
    free((*s)->count);
    FOLIO_FREE(*s);
}

folio_status folio_sample_find_best(const folio_sampler *s, const float *logits,
                                    int32_t n, int32_t *id)
{
    float max = -INFINITY;
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return folio_fail(&s->log, FOLIO_E_INTERNAL,
                              "sampler: the logit of id %d is %g", i,
                              (double)logits[i]);
        if (logits[i] > max) {
            max = logits[i];
            best = i;
        }
    }
    if (best < 0)
        return folio_fail(&s->log, FOLIO_E_INTERNAL,
                          "sampler: all %d logits are -inf", n);
    *id = best;
    return FOLIO_OK;
}

/* Candidates in rank order, sorted only as far as one looks: a max-heap in
 * cands[0..n_heap), those already ranked behind it, the best one last. */
typedef struct ranking {
    folio_sample_cand *cands;
    int32_t n, n_heap;
} ranking;

static bool ranks_higher(folio_sample_cand a, folio_sample_cand b)
{
    return a.key > b.key || (a.key == b.key && a.id < b.id);
}

static void sift_down(folio_sample_cand *h, int32_t n, int32_t i)
{
    folio_sample_cand x = h[i];
    for (int32_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && ranks_higher(h[c + 1], h[c]))
            c++;
        if (!ranks_higher(h[c], x))
            break;
        h[i] = h[c];
    }
    h[i] = x;
}

/* Ranks cands[0..n) by their keys. */
static ranking start_ranking(folio_sample_cand *cands, int32_t n)
{
    for (int32_t i = n / 2; i-- > 0;)
        sift_down(cands, n, i);
    return (ranking){.cands = cands, .n = n, .n_heap = n};
}

static ranking rank_logits(folio_sample_cand *cands, const float *logits,
                           int32_t n_vocab)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        if (logits[i] != -INFINITY)
            cands[n++] = (folio_sample_cand){logits[i], i};
    return start_ranking(cands, n);
}

/* The candidate of rank i, 0 the best; i < n. */
static folio_sample_cand candidate_at(ranking *r, int32_t i)
{
    while (r->n - r->n_heap <= i) {
        folio_sample_cand best = r->cands[0];
        r->cands[0] = r->cands[--r->n_heap];
        if (r->n_heap)
            sift_down(r->cands, r->n_heap, 0);
        r->cands[r->n_heap] = best;
    }
    return r->cands[r->n - 1 - i];
}

/* How many candidates are at least as large as the k-th. */
static int32_t count_top_k(ranking *r, int32_t k)
{
    if (k <= 0 || k >= r->n)
        return r->n;
    float threshold = candidate_at(r, k - 1).key;
    while (k < r->n && candidate_at(r, k).key == threshold)
        k++;
    return k;
}

/* How many of the best n_keep hold the nucleus: rank i goes if it and all
 * below it have at most 1 - p of the weight. The slack makes "exactly 1 - p"
 * survive the rounding of f32 logits and of p. */
static int32_t count_top_p(ranking *r, int32_t n_keep, float p,
                           const folio_sample_cut *cut)
{
    uint64_t total = 0, above = 0;
    if (p >= 1)
        return n_keep;
    for (int32_t i = 0; i < r->n; i++) /* any order; unranked ones if all */
        if (n_keep == r->n || i >= r->n - n_keep)
            total += folio_sample_weight(r->cands[i].key, cut->max, cut->scale);
    double tail = 1.0 - (double)p + SLACK;
    uint64_t drop = tail >= 1.0 ? total : (uint64_t)(tail * (double)total);
    for (int32_t i = 0; i < n_keep; i++) {
        if (i && total - above <= drop)
            return i;
        above +=
            folio_sample_weight(candidate_at(r, i).key, cut->max, cut->scale);
    }
    return n_keep;
}

static float scale_of(float temperature)
{
    double scale = 1.4426950408889634 / (double)temperature;
    /* Both ends finite and normal: -inf * 0 and 0 * inf stay away. */
    return (float)FOLIO_MIN(FOLIO_MAX(scale, (double)FLT_MIN), (double)FLT_MAX);
}

/* The cut-off for n logits, the largest of which is `max`. */
static folio_sample_cut filter(folio_sampler *s, const folio_sample_params *p,
                               const float *logits, int32_t n, float max)
{
    folio_sample_cut cut = {.max = max,
                            .scale = scale_of(p->temperature),
                            .logit = -INFINITY,
                            .id = INT32_MAX,
                            .w_min =
                                (uint64_t)((double)p->min_p * 0x1p32 + 0.5)};
    if ((p->top_k > 0 && p->top_k < n) || p->top_p < 1) {
        ranking r = rank_logits(s->cands, logits, n);
        int32_t n_keep = count_top_k(&r, p->top_k);
        n_keep = count_top_p(&r, n_keep, p->top_p, &cut);
        folio_sample_cand last = candidate_at(&r, n_keep - 1);
        cut.logit = last.key;
        cut.id = last.id;
    }
    return cut;
}

folio_status folio_sampler_filter(folio_sampler *s,
                                  const folio_sample_params *p,
                                  const float *logits, folio_sample_cut *out)
{
    int32_t best = 0;
    FOLIO_RETURN_IF(folio_sample_find_best(s, logits, s->n_vocab, &best));
    *out = filter(s, p, logits, s->n_vocab, logits[best]);
    return FOLIO_OK;
}

/* Leaves in x what top-k and typical-p keep, the rest at -INFINITY. Doing top-k
 * once more on that drops nothing: more than k are left only if the k-th is a
 * tie. Surprise and its mean, the entropy, both contain the log of the sum, so
 * their distance is that of the exponents. */
static void keep_typical(folio_sampler *s, const folio_sample_params *p,
                         float *x, int32_t n_vocab, float max)
{
    folio_sample_params top_k = *p;
    top_k.top_p = 1;
    top_k.min_p = 0;
    const folio_sample_cut cut = filter(s, &top_k, x, n_vocab, max);
    uint64_t total = 0, mass = 0;
    double sum = 0;
    int32_t n = 0, n_keep = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        const uint64_t w = folio_sample_cut_weight(&cut, x[i], i);
        if (!w) {
            x[i] = -INFINITY;
            continue;
        }
        const float d = x[i] - max, z = d * cut.scale;
        const double part = (double)w * (double)z;
        total += w;
        sum += part;
        s->cands[n++] = (folio_sample_cand){z, i};
    }
    const double mean = sum / (double)total;
    for (int32_t i = 0; i < n; i++)
        s->cands[i].key = -(float)fabs((double)s->cands[i].key - mean);
    ranking r = start_ranking(s->cands, n);
    const double need = ((double)p->typical_p - SLACK) * (double)total;
    do
        mass += folio_sample_weight(x[candidate_at(&r, n_keep++).id], max,
                                    cut.scale);
    while (n_keep < n && (double)mass < need);
    for (int32_t i = 0; i < r.n_heap; i++)
        x[r.cands[i].id] = -INFINITY;
}

folio_status folio_sampler_shape(folio_sampler *s, const folio_sample_params *p,
                                 const folio_sample_row *row, const float **x,
                                 int32_t *best, int32_t *raw)
{
    const bool adjusts = folio_sample_adjusts(p, row);
    const bool typical = p->temperature > 0 && p->typical_p < 1;
    const int32_t n = row->n_vocab;
    int32_t first = 0, top = 0;
    FOLIO_RETURN_IF(folio_sample_find_best(s, row->logits, n, &first));
    top = first;
    if (adjusts || typical)
        memcpy(s->work, row->logits, (size_t)n * sizeof *s->work);
    if (adjusts) {
        folio_sample_adjust(s, p, row, s->work);
        FOLIO_RETURN_IF(folio_sample_find_best(s, s->work, n, &top));
    }
    if (typical) {
        keep_typical(s, p, s->work, n, s->work[top]);
        FOLIO_RETURN_IF(folio_sample_find_best(s, s->work, n, &top));
    }
    *x = adjusts || typical ? s->work : row->logits;
    *best = top;
    *raw = first;
    return FOLIO_OK;
}

/* The upper half of a * b. */
static uint64_t multiply_high(uint64_t a, uint64_t b)
{
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t mid = ah * bl + (al * bl >> 32);
    uint64_t mid2 = al * bh + (uint32_t)mid;
    return ah * bh + (mid >> 32) + (mid2 >> 32);
}

/* One id of a checked row, and the row's own best. */
static folio_status pick(folio_sampler *s, const folio_sample_params *p,
                         const folio_sample_row *row, int32_t *id, int32_t *raw)
{
    const float *x = NULL;
    int32_t best = 0;
    uint64_t total = 0;
    uint32_t r[4];
    FOLIO_RETURN_IF(folio_sampler_shape(s, p, row, &x, &best, raw));
    if (p->temperature == 0) {
        *id = best;
        return FOLIO_OK;
    }
    const folio_sample_cut cut = filter(s, p, x, row->n_vocab, x[best]);
    for (int32_t i = 0; i < row->n_vocab; i++)
        total += folio_sample_cut_weight(&cut, x[i], i);
    folio_philox4x32(p->seed, row->position, row->completion, r);
    /* Uniform in [0, total): the bias of the product is below 2^-11 of one
     * unit of weight. The best id has weight 2^32, so total is not 0. */
    uint64_t u = multiply_high((uint64_t)r[1] << 32 | r[0], total);
    for (int32_t i = 0; i < row->n_vocab; i++) {
        uint64_t w = folio_sample_cut_weight(&cut, x[i], i);
        if (u < w) {
            *id = i;
            return FOLIO_OK;
        }
        u -= w;
    }
    return folio_fail(&s->log, FOLIO_E_INTERNAL,
                      "sampler: the draw passed the end of %d logits",
                      row->n_vocab);
}

static folio_status check_row(const folio_sampler *s,
                              const folio_sample_row *row)
{
    if (row->size != sizeof *row)
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "sampler: row.size is %zu, expected %zu", row->size,
                          sizeof *row);
    if (!row->logits)
        return folio_fail(&s->log, FOLIO_E_INVAL, "sampler: logits is NULL");
    if (row->n_vocab < 1 || row->n_vocab > s->n_vocab)
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "sampler: n_vocab is %d, expected 1 to %d",
                          row->n_vocab, s->n_vocab);
    if (row->n_prompt < 0 || row->n_prompt > row->n_tok)
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "sampler: n_prompt is %d, expected 0 to n_tok, "
                          "which is %d",
                          row->n_prompt, row->n_tok);
    if (row->n_tok && !row->tokens)
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "sampler: tokens is NULL, expected %d ids",
                          row->n_tok);
    if (row->n_stop_ids < 0 || (row->n_stop_ids && !row->stop_ids))
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "sampler: stop_ids is %s for n_stop_ids %d",
                          row->stop_ids ? "there" : "NULL", row->n_stop_ids);
    return FOLIO_OK;
}

folio_status folio_sampler_run(folio_sampler *s, const folio_sample_params *p,
                               const folio_sample_row *row,
                               folio_sample_result *result)
{
    folio_sample_params full;
    int32_t id = 0, raw = 0;
    if (!s)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(folio_sample_params_resolve(p, &s->log, &full));
    if (!row || !result)
        return folio_fail(&s->log, FOLIO_E_INVAL, "sampler: %s is NULL",
                          row ? "result" : "row");
    FOLIO_RETURN_IF(check_row(s, row));
    FOLIO_RETURN_IF(folio_sample_params_ids(&full, row->n_vocab, &s->log));
    if (result->size != sizeof *result)
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "sampler: result.size is %zu, expected %zu",
                          result->size, sizeof *result);
    FOLIO_RETURN_IF(pick(s, &full, row, &id, &raw));
    folio_sample_report(row->logits, row->n_vocab, row->logits[raw], id,
                        full.logprobs, result);
    return FOLIO_OK;
}

folio_status folio_sampler_draw(folio_sampler *s, const folio_sample_params *p,
                                const float *logits, uint32_t completion,
                                uint64_t position, int32_t *id)
{
    folio_sample_params full;
    int32_t drawn = 0, raw = 0;
    if (!s)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(folio_sample_params_resolve(p, &s->log, &full));
    FOLIO_RETURN_IF(folio_sample_params_ids(&full, s->n_vocab, &s->log));
    if (!logits || !id)
        return folio_fail(&s->log, FOLIO_E_INVAL, "sampler: %s is NULL",
                          logits ? "id" : "logits");
    const folio_sample_row row = {.size = sizeof row,
                                  .logits = logits,
                                  .n_vocab = s->n_vocab,
                                  .completion = completion,
                                  .position = position};
    FOLIO_RETURN_IF(pick(s, &full, &row, &drawn, &raw));
    *id = drawn;
    return FOLIO_OK;
}
