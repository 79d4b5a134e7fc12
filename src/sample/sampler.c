/* sample/sampler.c: filters as cut-offs, integer weights, one counter-based
 * draw. Sees logits only; knows no model, device or engine. */
#include "sample/samp.h"

#include <float.h>

#include "base/rng.h"

#define MAX_VOCAB (1 << 20)

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct folio_sampler {
    int32_t n_vocab;
    folio_log log;
    candidate *cands; /* [n_vocab]; see ranking */
};

void folio_sample_params_default(folio_sample_params *p)
{
    *p = (folio_sample_params){.size = sizeof *p,
                               .temperature = 1.0f,
                               .top_k = 0,
                               .top_p = 1.0f,
                               .min_p = 0.0f,
                               .seed = 0};
}

folio_status folio_sample_params_check(const folio_sample_params *p,
                                       const folio_log *log)
{
    if (!p)
        return folio_fail(log, FOLIO_E_INVAL, "sampling: params is NULL");
    if (p->size != sizeof *p)
        return folio_fail(log, FOLIO_E_INVAL,
                          "sampling: params.size is %zu, expected %zu (was "
                          "folio_sample_params_default called?)",
                          p->size, sizeof *p);
    if (!isfinite(p->temperature) || p->temperature < 0)
        return folio_fail(log, FOLIO_E_INVAL,
                          "sampling: temperature is %g, expected a finite "
                          "number >= 0",
                          (double)p->temperature);
    if (!isfinite(p->top_p))
        return folio_fail(log, FOLIO_E_INVAL,
                          "sampling: top_p is %g, expected a finite number",
                          (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return folio_fail(log, FOLIO_E_INVAL,
                          "sampling: min_p is %g, expected 0 to 1",
                          (double)p->min_p);
    return FOLIO_OK;
}

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
    if (s)
        s->cands = folio_calloc((size_t)n_vocab, sizeof *s->cands);
    if (!s || !s->cands) {
        free(s);
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
    FOLIO_FREE(*s);
}

/* The lowest id among the largest logits. */
static folio_status find_best(const folio_sampler *s, const float *logits,
                              int32_t *id)
{
    float max = -INFINITY;
    int32_t best = -1;
    for (int32_t i = 0; i < s->n_vocab; i++) {
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
                          "sampler: all %d logits are -inf", s->n_vocab);
    *id = best;
    return FOLIO_OK;
}

/* Candidates in rank order, sorted only as far as one looks: a max-heap in
 * cands[0..n_heap), those already ranked behind it, the best one last. */
typedef struct ranking {
    candidate *cands;
    int32_t n, n_heap;
} ranking;

static bool ranks_higher(candidate a, candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(candidate *h, int32_t n, int32_t i)
{
    candidate x = h[i];
    for (int32_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && ranks_higher(h[c + 1], h[c]))
            c++;
        if (!ranks_higher(h[c], x))
            break;
        h[i] = h[c];
    }
    h[i] = x;
}

static ranking start_ranking(folio_sampler *s, const float *logits)
{
    ranking r = {.cands = s->cands};
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (logits[i] != -INFINITY)
            r.cands[r.n++] = (candidate){logits[i], i};
    r.n_heap = r.n;
    for (int32_t i = r.n / 2; i-- > 0;)
        sift_down(r.cands, r.n, i);
    return r;
}

/* The candidate of rank i, 0 the best; i < n. */
static candidate candidate_at(ranking *r, int32_t i)
{
    while (r->n - r->n_heap <= i) {
        candidate best = r->cands[0];
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
    float threshold = candidate_at(r, k - 1).logit;
    while (k < r->n && candidate_at(r, k).logit == threshold)
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
            total +=
                folio_sample_weight(r->cands[i].logit, cut->max, cut->scale);
    double tail = 1.0 - (double)p + 0x1p-22;
    uint64_t drop = tail >= 1.0 ? total : (uint64_t)(tail * (double)total);
    for (int32_t i = 0; i < n_keep; i++) {
        if (i && total - above <= drop)
            return i;
        above +=
            folio_sample_weight(candidate_at(r, i).logit, cut->max, cut->scale);
    }
    return n_keep;
}

folio_status folio_sampler_filter(folio_sampler *s,
                                  const folio_sample_params *p,
                                  const float *logits, folio_sample_cut *out)
{
    int32_t best = 0;
    FOLIO_RETURN_IF(find_best(s, logits, &best));
    double scale = 1.4426950408889634 / (double)p->temperature;
    folio_sample_cut cut = {
        .max = logits[best],
        /* Both ends finite and normal: -inf * 0 and 0 * inf stay away. */
        .scale = (float)FOLIO_MIN(FOLIO_MAX(scale, (double)FLT_MIN),
                                  (double)FLT_MAX),
        .logit = -INFINITY,
        .id = INT32_MAX,
        .w_min = (uint64_t)((double)p->min_p * 0x1p32 + 0.5)};
    if ((p->top_k > 0 && p->top_k < s->n_vocab) || p->top_p < 1) {
        ranking r = start_ranking(s, logits);
        int32_t n = count_top_k(&r, p->top_k);
        n = count_top_p(&r, n, p->top_p, &cut);
        candidate last = candidate_at(&r, n - 1);
        cut.logit = last.logit;
        cut.id = last.id;
    }
    *out = cut;
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

folio_status folio_sampler_draw(folio_sampler *s, const folio_sample_params *p,
                                const float *logits, uint32_t completion,
                                uint64_t position, int32_t *id)
{
    folio_sample_cut cut;
    uint64_t total = 0;
    uint32_t r[4];
    if (!s)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(folio_sample_params_check(p, &s->log));
    if (!logits || !id)
        return folio_fail(&s->log, FOLIO_E_INVAL, "sampler: %s is NULL",
                          logits ? "id" : "logits");
    if (p->temperature == 0)
        return find_best(s, logits, id);
    FOLIO_RETURN_IF(folio_sampler_filter(s, p, logits, &cut));
    for (int32_t i = 0; i < s->n_vocab; i++)
        total += folio_sample_cut_weight(&cut, logits[i], i);
    folio_philox4x32(p->seed, position, completion, r);
    /* Uniform in [0, total): the bias of the product is below 2^-11 of one
     * unit of weight. The best id has weight 2^32, so total is not 0. */
    uint64_t u = multiply_high((uint64_t)r[1] << 32 | r[0], total);
    for (int32_t i = 0; i < s->n_vocab; i++) {
        uint64_t w = folio_sample_cut_weight(&cut, logits[i], i);
        if (u < w) {
            *id = i;
            return FOLIO_OK;
        }
        u -= w;
    }
    return folio_fail(&s->log, FOLIO_E_INTERNAL,
                      "sampler: the draw passed the end of %d logits",
                      s->n_vocab);
}
