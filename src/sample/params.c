/* sample/params.c: sampling parameters: defaults, ranges, and structs of
 * callers that know fewer fields. Says what is wrong by name. */
#include "sample/samp.h"

/* What the first callers knew. */
#define SIZE_1 offsetof(folio_sample_params, typical_p)

void folio_sample_params_default(folio_sample_params *p)
{
    *p = (folio_sample_params){.size = sizeof *p,
                               .temperature = 1.0f,
                               .top_p = 1.0f,
                               .typical_p = 1.0f,
                               .repetition_penalty = 1.0f,
                               .penalty_last_n = -1,
                               .dry_base = 1.75f,
                               .dry_allowed_length = 2,
                               .dry_last_n = -1};
}

static folio_status check_floats(const folio_sample_params *p,
                                 const folio_log *log)
{
    const struct {
        const char *name;
        float value, low, high;
    } in[] = {
        {"min_p", p->min_p, 0, 1},
        {"repetition_penalty", p->repetition_penalty, 0.01f, 100},
        {"presence_penalty", p->presence_penalty, -2, 2},
        {"frequency_penalty", p->frequency_penalty, -2, 2},
        {"dry_multiplier", p->dry_multiplier, 0, 1000},
        {"dry_base", p->dry_base, 1, 100},
    };
    const struct {
        const char *name;
        float value;
    } finite[] = {{"top_p", p->top_p}, {"typical_p", p->typical_p}};
    if (!isfinite(p->temperature) || p->temperature < 0)
        return folio_fail(log, FOLIO_E_INVAL,
                          "sampling: temperature is %g, expected a finite "
                          "number >= 0",
                          (double)p->temperature);
    for (size_t i = 0; i < FOLIO_COUNT(finite); i++)
        if (!isfinite(finite[i].value))
            return folio_fail(log, FOLIO_E_INVAL,
                              "sampling: %s is %g, expected a finite number",
                              finite[i].name, (double)finite[i].value);
    for (size_t i = 0; i < FOLIO_COUNT(in); i++) /* false for a NaN */
        if (!(in[i].value >= in[i].low && in[i].value <= in[i].high))
            return folio_fail(log, FOLIO_E_INVAL,
                              "sampling: %s is %g, expected %g to %g",
                              in[i].name, (double)in[i].value,
                              (double)in[i].low, (double)in[i].high);
    return FOLIO_OK;
}

static folio_status check_ints(const folio_sample_params *p,
                               const folio_log *log)
{
    const struct {
        const char *name;
        int32_t value, low, high;
    } in[] = {
        {"penalty_last_n", p->penalty_last_n, -1, INT32_MAX},
        {"min_new_tokens", p->min_new_tokens, 0, INT32_MAX},
        {"dry_allowed_length", p->dry_allowed_length, 1, FOLIO_DRY_MAX_MATCH},
        {"dry_last_n", p->dry_last_n, -1, INT32_MAX},
        {"logprobs", p->logprobs, 0, FOLIO_LOGPROBS_MAX},
    };
    for (size_t i = 0; i < FOLIO_COUNT(in); i++)
        if (in[i].value < in[i].low || in[i].value > in[i].high)
            return folio_fail(log, FOLIO_E_INVAL,
                              "sampling: %s is %d, expected %d to %d",
                              in[i].name, in[i].value, in[i].low, in[i].high);
    return FOLIO_OK;
}

static folio_status check_arrays(const folio_sample_params *p,
                                 const folio_log *log)
{
    const struct {
        const char *name;
        const void *array;
        int32_t n;
    } in[] = {{"logit_bias", p->logit_bias, p->n_logit_bias},
              {"banned", p->banned, p->n_banned},
              {"dry_breakers", p->dry_breakers, p->n_dry_breakers}};
    for (size_t i = 0; i < FOLIO_COUNT(in); i++) {
        if (in[i].n < 0)
            return folio_fail(log, FOLIO_E_INVAL,
                              "sampling: n_%s is %d, expected >= 0", in[i].name,
                              in[i].n);
        if (in[i].n && !in[i].array)
            return folio_fail(log, FOLIO_E_INVAL,
                              "sampling: %s is NULL, expected %d of them",
                              in[i].name, in[i].n);
    }
    for (int32_t i = 0; i < p->n_logit_bias; i++)
        if (!(p->logit_bias[i].bias < INFINITY))
            return folio_fail(log, FOLIO_E_INVAL,
                              "sampling: logit_bias of id %d is %g, expected a "
                              "finite number or -inf",
                              p->logit_bias[i].id,
                              (double)p->logit_bias[i].bias);
    return FOLIO_OK;
}

folio_status folio_sample_params_resolve(const folio_sample_params *p,
                                         const folio_log *log,
                                         folio_sample_params *out)
{
    folio_sample_params r;
    if (!p)
        return folio_fail(log, FOLIO_E_INVAL, "sampling: params is NULL");
    if (p->size != sizeof *p && p->size != SIZE_1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "sampling: params.size is %zu, expected %zu (was "
                          "folio_sample_params_default called?)",
                          p->size, sizeof *p);
    folio_sample_params_default(&r);
    memcpy(&r, p, p->size);
    r.size = sizeof r;
    FOLIO_RETURN_IF(check_floats(&r, log));
    FOLIO_RETURN_IF(check_ints(&r, log));
    FOLIO_RETURN_IF(check_arrays(&r, log));
    *out = r;
    return FOLIO_OK;
}

folio_status folio_sample_params_check(const folio_sample_params *p,
                                       const folio_log *log)
{
    folio_sample_params r;
    return folio_sample_params_resolve(p, log, &r);
}

folio_status folio_sample_params_ids(const folio_sample_params *p,
                                     int32_t n_vocab, const folio_log *log)
{
    for (int32_t i = 0; i < p->n_logit_bias; i++)
        if (p->logit_bias[i].id < 0 || p->logit_bias[i].id >= n_vocab)
            return folio_fail(log, FOLIO_E_INVAL,
                              "sampling: logit_bias has id %d, expected 0 to "
                              "%d",
                              p->logit_bias[i].id, n_vocab - 1);
    for (int32_t i = 0; i < p->n_banned; i++)
        if (p->banned[i] < 0 || p->banned[i] >= n_vocab)
            return folio_fail(log, FOLIO_E_INVAL,
                              "sampling: banned has id %d, expected 0 to %d",
                              p->banned[i], n_vocab - 1);
    return FOLIO_OK;
}

folio_status folio_sample_params_check_ids(const folio_sample_params *p,
                                           int32_t n_vocab,
                                           const folio_log *log)
{
    folio_sample_params r;
    FOLIO_RETURN_IF(folio_sample_params_resolve(p, log, &r));
    return folio_sample_params_ids(&r, n_vocab, log);
}
