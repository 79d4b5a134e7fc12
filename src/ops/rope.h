/* ops/rope.h: the frequencies of rotary embeddings and the table of cosines and
 * sines that rope_append reads. Host arithmetic in double, made once when a
 * model opens. */
#ifndef FOLIO_OPS_ROPE_H
#define FOLIO_OPS_ROPE_H

#include "base/base.h"

/* How frequencies are stretched for contexts longer than trained:
 *   NONE      f
 *   LINEAR    f / factor (Chen et al., arXiv 2306.15595)
 *   LLAMA3    long wavelengths / factor, short ones kept, blended between
 *             (as published with Llama 3.1)
 *   YARN      by the number of turns within the original context, with an
 *             attention factor (Peng et al., arXiv 2309.00071)
 *   LONGROPE  f / freq_factors[i], with an attention factor (Ding et al.,
 *             arXiv 2402.13753) */
typedef enum folio_rope_scaling {
    FOLIO_ROPE_NONE = 0,
    FOLIO_ROPE_LINEAR,
    FOLIO_ROPE_LLAMA3,
    FOLIO_ROPE_YARN,
    FOLIO_ROPE_LONGROPE
} folio_rope_scaling;

typedef struct folio_rope_params {
    double theta;    /* base of the frequencies, > 0 */
    int32_t rot_dim; /* even, >= 0; pairs = rot_dim / 2 */
    folio_rope_scaling scaling;
    double factor;       /* context stretched by this much, >= 1; not NONE */
    double low, high;    /* LLAMA3: low_freq_factor < high_freq_factor */
    double original_ctx; /* LLAMA3, YARN, LONGROPE: trained context, >= 1 */
    double beta_fast;    /* YARN; 0 = 32 */
    double beta_slow;    /* YARN; 0 = 1 */
    double attn_factor;  /* cos and sin are multiplied by it; 0 = what the
                            scaling says */
    /* [rot_dim / 2] divisors on top of any scaling, as GGUF's
     * rope_freqs.weight holds them; NULL = none. Required for LONGROPE. */
    const float *freq_factors;
} folio_rope_params;

/* "none", "linear", "llama3", "yarn", "longrope" or "su" (its older name), as
 * model files spell them; UNSUPPORTED names any other. */
folio_status folio_rope_scaling_parse(const folio_log *log, const char *name,
                                      folio_rope_scaling *out) FOLIO_NODISCARD;

/* inv_freq [rot_dim / 2]: radians per position. attn_factor may be NULL.
 * INVAL (a parameter out of its range, named), UNSUPPORTED (unknown scaling);
 * nothing is written on failure. */
folio_status folio_rope_inv_freq(const folio_log *log,
                                 const folio_rope_params *p, double *inv_freq,
                                 double *attn_factor) FOLIO_NODISCARD;

/* table [n_pos, rot_dim / 2, 2] = attention factor * {cos, sin} of position *
 * inv_freq, the angle in double. Same statuses, and NOMEM. */
folio_status folio_rope_table(const folio_log *log, const folio_rope_params *p,
                              int32_t n_pos, float *table) FOLIO_NODISCARD;

#endif
