/* sample/samp.h: what filtering leaves, for the tests and for whoever draws
 * elsewhere: every filter comes down to a cut-off (logit, id) and a smallest
 * weight. */
#ifndef FOLIO_SAMPLE_SAMP_H
#define FOLIO_SAMPLE_SAMP_H

#include <folio/sampler.h>

#include "base/base.h"
#include "sample/weight.h"

typedef struct folio_sample_cut {
    float max;   /* largest logit of the row */
    float scale; /* log2(e) / temperature */
    float logit; /* kept: above this, or equal with an id <= id */
    int32_t id;
    uint64_t w_min; /* and of at least this weight */
} folio_sample_cut;

/* Weight of an id that survives, 0 for one that does not (or is too unlikely
 * to be drawn). */
static inline uint64_t folio_sample_cut_weight(const folio_sample_cut *c,
                                               float logit, int32_t id)
{
    if (logit < c->logit || (logit == c->logit && id > c->id))
        return 0;
    uint64_t w = folio_sample_weight(logit, c->max, c->scale);
    return w < c->w_min ? 0 : w;
}

/* As folio_sampler_draw for a temperature above 0, without the draw. */
folio_status folio_sampler_filter(folio_sampler *s,
                                  const folio_sample_params *p,
                                  const float *logits,
                                  folio_sample_cut *out) FOLIO_NODISCARD;

#endif
