/* ops/rope.c: see rope.h. */
#include "ops/rope.h"

#include <math.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

folio_status folio_rope_scaling_parse(const folio_log *log, const char *name,
                                      folio_rope_scaling *out)
{
    static const struct {
        const char *name;
        folio_rope_scaling kind;
    } known[] = {
        {"none", FOLIO_ROPE_NONE},     {"linear", FOLIO_ROPE_LINEAR},
        {"llama3", FOLIO_ROPE_LLAMA3}, {"yarn", FOLIO_ROPE_YARN},
        {"su", FOLIO_ROPE_LONGROPE},   {"longrope", FOLIO_ROPE_LONGROPE},
    };
    for (size_t i = 0; i < FOLIO_COUNT(known); i++) {
        if (strcmp(known[i].name, name) == 0) {
            *out = known[i].kind;
            return FOLIO_OK;
        }
    }
    return folio_fail(log, FOLIO_E_UNSUPPORTED,
                      "rope scaling \"%s\" is unknown", name);
}

/* False for NaN as well. */
static bool within(double v, double least, double most)
{
    return v >= least && v <= most;
}

static folio_status check_params(const folio_log *log,
                                 const folio_rope_params *p)
{
    if (p->rot_dim < 0 || p->rot_dim % 2 != 0)
        return folio_fail(log, FOLIO_E_INVAL,
                          "rope: rot_dim %d is negative or odd", p->rot_dim);
    if (!within(p->theta, 1e-6, 1e30))
        return folio_fail(log, FOLIO_E_INVAL, "rope: theta %g <= 0", p->theta);
    if ((unsigned)p->scaling > FOLIO_ROPE_LONGROPE)
        return folio_fail(log, FOLIO_E_UNSUPPORTED,
                          "rope: scaling %d is unknown", (int)p->scaling);
    if (p->scaling != FOLIO_ROPE_NONE && !within(p->factor, 1, 1e9))
        return folio_fail(log, FOLIO_E_INVAL,
                          "rope: factor %g, not in [1, 1e9]", p->factor);
    bool needs_ctx = p->scaling == FOLIO_ROPE_LLAMA3 ||
                     p->scaling == FOLIO_ROPE_YARN ||
                     p->scaling == FOLIO_ROPE_LONGROPE;
    if (needs_ctx && !within(p->original_ctx, 1, 1e12))
        return folio_fail(log, FOLIO_E_INVAL, "rope: original context %g < 1",
                          p->original_ctx);
    if (p->scaling == FOLIO_ROPE_LLAMA3 &&
        !(within(p->low, 1e-9, 1e9) && within(p->high, 1e-9, 1e9) &&
          p->low < p->high))
        return folio_fail(log, FOLIO_E_INVAL,
                          "rope: low factor %g >= high factor %g, or not "
                          "positive",
                          p->low, p->high);
    if (p->scaling == FOLIO_ROPE_YARN &&
        !(within(p->beta_fast, 0, 1e9) && within(p->beta_slow, 0, 1e9) &&
          p->theta > 1))
        return folio_fail(log, FOLIO_E_INVAL,
                          "rope: yarn with beta %g, %g and theta %g",
                          p->beta_fast, p->beta_slow, p->theta);
    if (!within(p->attn_factor, 0, 1e9))
        return folio_fail(log, FOLIO_E_INVAL, "rope: attention factor %g < 0",
                          p->attn_factor);
    if (p->scaling == FOLIO_ROPE_LONGROPE && !p->freq_factors)
        return folio_fail(log, FOLIO_E_INVAL,
                          "rope: longrope without frequency factors");
    for (int32_t i = 0; p->freq_factors && i < p->rot_dim / 2; i++)
        if (!within((double)p->freq_factors[i], 1e-9, 1e9))
            return folio_fail(log, FOLIO_E_INVAL,
                              "rope: frequency factor [%d] is %g, not in "
                              "[1e-9, 1e9]",
                              i, (double)p->freq_factors[i]);
    return FOLIO_OK;
}

static double scale_llama3(const folio_rope_params *p, double f)
{
    double wavelength = 2 * pi / f;
    if (wavelength < p->original_ctx / p->high)
        return f;
    if (wavelength > p->original_ctx / p->low)
        return f / p->factor;
    double s = (p->original_ctx / wavelength - p->low) / (p->high - p->low);
    return (1 - s) * f / p->factor + s * f;
}

/* The pair (not rounded) that makes `turns` turns within the original context:
 * f = turns * 2 pi / ctx solved for i in theta^(-2 i / d). */
static double pair_of_turns(const folio_rope_params *p, double turns)
{
    return p->rot_dim * log(p->original_ctx / (turns * 2 * pi)) /
           (2 * log(p->theta));
}

static double scale_yarn(const folio_rope_params *p, int32_t i, double f)
{
    double fast = p->beta_fast > 0 ? p->beta_fast : 32;
    double slow = p->beta_slow > 0 ? p->beta_slow : 1;
    double first = fmax(floor(pair_of_turns(p, fast)), 0);
    double last = fmin(ceil(pair_of_turns(p, slow)), p->rot_dim - 1);
    if (last - first < 0.001)
        last = first + 0.001; /* a step, not a division by zero */
    double slowness = fmin(fmax((i - first) / (last - first), 0), 1);
    return f / p->factor * slowness + f * (1 - slowness);
}

static double default_attn_factor(const folio_rope_params *p)
{
    if (p->scaling == FOLIO_ROPE_YARN)
        return 0.1 * log(p->factor) + 1;
    if (p->scaling == FOLIO_ROPE_LONGROPE && p->factor > 1 &&
        p->original_ctx > 1)
        return sqrt(1 + log(p->factor) / log(p->original_ctx));
    return 1;
}

folio_status folio_rope_inv_freq(const folio_log *log,
                                 const folio_rope_params *p, double *inv_freq,
                                 double *attn_factor)
{
    FOLIO_RETURN_IF(check_params(log, p));
    for (int32_t i = 0; i < p->rot_dim / 2; i++) {
        double f = pow(p->theta, -2.0 * i / p->rot_dim);
        switch (p->scaling) {
        case FOLIO_ROPE_NONE:
        case FOLIO_ROPE_LONGROPE: /* all in freq_factors */
            break;
        case FOLIO_ROPE_LINEAR:
            f /= p->factor;
            break;
        case FOLIO_ROPE_LLAMA3:
            f = scale_llama3(p, f);
            break;
        case FOLIO_ROPE_YARN:
            f = scale_yarn(p, i, f);
            break;
        }
        if (p->freq_factors)
            f /= (double)p->freq_factors[i];
        inv_freq[i] = f;
    }
    if (attn_factor)
        *attn_factor =
            p->attn_factor > 0 ? p->attn_factor : default_attn_factor(p);
    return FOLIO_OK;
}

folio_status folio_rope_table(const folio_log *log, const folio_rope_params *p,
                              int32_t n_pos, float *table)
{
    folio_status st = FOLIO_OK;
    double *inv_freq = NULL, factor;
    if (n_pos < 1)
        return folio_fail(log, FOLIO_E_INVAL, "rope: n_pos %d < 1", n_pos);
    FOLIO_TRY(check_params(log, p));
    size_t pairs = (size_t)p->rot_dim / 2;
    inv_freq = folio_calloc(pairs, sizeof *inv_freq);
    if (!inv_freq) {
        st = folio_fail(log, FOLIO_E_NOMEM, "rope: no memory for %zu pairs",
                        pairs);
        goto fail;
    }
    FOLIO_TRY(folio_rope_inv_freq(log, p, inv_freq, &factor));
    for (int32_t pos = 0; pos < n_pos; pos++) {
        float *row = table + (size_t)pos * pairs * 2;
        for (size_t i = 0; i < pairs; i++) {
            double angle = pos * inv_freq[i];
            row[2 * i] = (float)(factor * cos(angle));
            row[2 * i + 1] = (float)(factor * sin(angle));
        }
    }
fail:
    free(inv_freq);
    return st;
}
