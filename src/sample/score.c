/* sample/score.c: log-probabilities of a row as it came, for the id that was
 * drawn, for one that is known, and for the most likely ones. */
#include "sample/samp.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#define BLOCK 256
#define LANES 8

/* exp(x - max) for x <= max, to 2e-7 near max; what is below 2^-126 counts as
 * that. In steps that a compiler turns into vectors: 2^whole by its bits,
 * 2^part, |part| <= 1/2, by its Taylor series, which ends with an error of
 * 5e-9. */
static float exp_below(float x, float max)
{
    const float magic = 12582912.0f;  /* 1.5 * 2^23: rounds to an integer */
    const uint32_t most = 0xc2fc0000; /* the bits of -126 */
    uint32_t bits;
    float d = x - max, z = d * 1.44269504f;
    /* The bits of numbers below 0 grow with their size, and comparing them is
     * no branch, as comparing what might be a NaN is. */
    memcpy(&bits, &z, sizeof bits);
    bits = FOLIO_MIN(bits, most);
    memcpy(&z, &bits, sizeof z);
    float shifted = z + magic;
    float whole = shifted - magic, f = z - whole, two, p = 1.52527338e-5f;
    p = p * f + 1.54035304e-4f;
    p = p * f + 1.33335581e-3f;
    p = p * f + 9.61812911e-3f;
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    p = p * f + 1.0f;
    bits = (uint32_t)((int32_t)whole + 127) << 23;
    memcpy(&two, &bits, sizeof two);
    return p * two;
}

/* In blocks, each in lanes: simple loops that become vectors, in an order that
 * is always the same. */
static double log_sum_exp(const float *x, int32_t n, float max)
{
    float e[BLOCK];
    double lane[LANES] = {0}, sum = 0;
    for (int32_t at = 0; at < n; at += BLOCK) {
        const int32_t n_here = FOLIO_MIN(n - at, BLOCK);
        for (int32_t i = 0; i < n_here; i++)
            e[i] = exp_below(x[at + i], max);
        for (int32_t i = n_here; i < BLOCK; i++)
            e[i] = 0;
        for (int32_t i = 0; i < BLOCK; i += LANES)
            for (int32_t j = 0; j < LANES; j++)
                lane[j] += (double)e[i + j];
    }
    for (int32_t j = 0; j < LANES; j++)
        sum += lane[j];
    return (double)max + log(sum);
}

/* One definition for the drawn id and for the list. */
static float log_prob(float logit, double lse)
{
    return (float)((double)logit - lse);
}

void folio_sample_report(const float *logits, int32_t n_vocab, float max,
                         int32_t id, int32_t n_top, folio_sample_result *out)
{
    const double lse = log_sum_exp(logits, n_vocab, max);
    folio_sample_result r = {.size = sizeof r,
                             .id = id,
                             .logit = logits[id],
                             .logprob = log_prob(logits[id], lse),
                             .lse = (float)lse};
    for (int32_t i = 0; n_top && i < n_vocab; i++) {
        const bool full = r.n_top == n_top;
        if (logits[i] == -INFINITY ||
            (full && logits[i] <= logits[r.top_ids[n_top - 1]]))
            continue;
        int32_t at = full ? n_top - 1 : r.n_top++;
        for (; at && logits[r.top_ids[at - 1]] < logits[i]; at--)
            r.top_ids[at] = r.top_ids[at - 1];
        r.top_ids[at] = i;
    }
    for (int32_t i = 0; i < r.n_top; i++)
        r.top_logprobs[i] = log_prob(logits[r.top_ids[i]], lse);
    *out = r;
}

void folio_sample_report_known(int32_t id, float logit, double lse,
                               const int32_t *ids, const float *values,
                               int32_t n_top, folio_sample_result *out)
{
    folio_sample_result r = {.size = sizeof r,
                             .id = id,
                             .logit = logit,
                             .logprob = log_prob(logit, lse),
                             .lse = (float)lse};
    while (r.n_top < n_top && ids[r.n_top] >= 0 &&
           values[r.n_top] != -INFINITY) {
        r.top_ids[r.n_top] = ids[r.n_top];
        r.top_logprobs[r.n_top] = log_prob(values[r.n_top], lse);
        r.n_top++;
    }
    *out = r;
}

folio_status folio_sampler_score(folio_sampler *s, const float *logits,
                                 int32_t n_vocab, int32_t target, int32_t n_top,
                                 folio_sample_result *result)
{
    int32_t best = 0;
    if (!s)
        return FOLIO_E_INVAL;
    if (!logits || !result)
        return folio_fail(&s->log, FOLIO_E_INVAL, "sampler: %s is NULL",
                          logits ? "result" : "logits");
    if (result->size != sizeof *result)
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "sampler: result.size is %zu, expected %zu",
                          result->size, sizeof *result);
    if (n_vocab < 1 || n_vocab > s->n_vocab)
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "sampler: n_vocab is %d, expected 1 to %d", n_vocab,
                          s->n_vocab);
    if (target < 0 || target >= n_vocab)
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "sampler: target is %d, expected 0 to %d", target,
                          n_vocab - 1);
    if (n_top < 0 || n_top > FOLIO_LOGPROBS_MAX)
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "sampler: n_top is %d, expected 0 to %d", n_top,
                          FOLIO_LOGPROBS_MAX);
    FOLIO_RETURN_IF(folio_sample_find_best(s, logits, n_vocab, &best));
    folio_sample_report(logits, n_vocab, logits[best], target, n_top, result);
    return FOLIO_OK;
}
