/* sample/samp.h: what the files of this room share, and what filtering leaves,
 * for the tests and for whoever draws elsewhere: every filter but typical-p
 * comes down to a cut-off (logit, id) and a smallest weight. */
#ifndef FOLIO_SAMPLE_SAMP_H
#define FOLIO_SAMPLE_SAMP_H

#include <folio/sampler.h>

#include "base/base.h"
#include "sample/weight.h"

/* DRY looks no further back; so it costs O(n_tok). */
#define FOLIO_DRY_MAX_MATCH 64

typedef struct folio_sample_cand {
    float key;
    int32_t id;
} folio_sample_cand;

/* All arrays [n_vocab]. */
struct folio_sampler {
    int32_t n_vocab;
    folio_log log;
    folio_sample_cand *cands; /* see ranking in sampler.c */
    float *work;              /* a row that was changed */
    int32_t *count;           /* 0 between calls */
};

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

/* params.c: *p checked, with defaults for what the caller does not know. */
folio_status folio_sample_params_resolve(
    const folio_sample_params *p, const folio_log *log,
    folio_sample_params *out) FOLIO_NODISCARD;
/* The ids of a resolved *p. */
folio_status folio_sample_params_ids(const folio_sample_params *p,
                                     int32_t n_vocab,
                                     const folio_log *log) FOLIO_NODISCARD;

/* sampler.c: the lowest id among the largest of n logits; INTERNAL for a row
 * nobody can sample from. */
folio_status folio_sample_find_best(const folio_sampler *s, const float *logits,
                                    int32_t n, int32_t *id) FOLIO_NODISCARD;

/* adjust.c: whether bias, bans, penalties and DRY change this row, and the
 * change, on x [row->n_vocab]. */
bool folio_sample_adjusts(const folio_sample_params *p,
                          const folio_sample_row *row);
void folio_sample_adjust(folio_sampler *s, const folio_sample_params *p,
                         const folio_sample_row *row, float *x);

/* score.c: fills *out for `id` of a row whose largest logit is `max`. */
void folio_sample_report(const float *logits, int32_t n_vocab, float max,
                         int32_t id, int32_t n_top, folio_sample_result *out);

/* The same of what is known of a row elsewhere: the id's logit, the log of the
 * sum of exp, and its n_top largest logits, falling, an id
 * of -1 behind the last. */
void folio_sample_report_known(int32_t id, float logit, double lse,
                               const int32_t *ids, const float *values,
                               int32_t n_top, folio_sample_result *out);

/* All that comes before the cut-off, for a resolved *p and a checked row: as
 * far as needed, a changed copy of the row in *x (else the row itself), and
 * its best id. *raw is the best id of the row itself. */
folio_status folio_sampler_shape(folio_sampler *s, const folio_sample_params *p,
                                 const folio_sample_row *row, const float **x,
                                 int32_t *best, int32_t *raw) FOLIO_NODISCARD;

/* The cut-off of top-k, top-p and min-p for a temperature above 0 and a row of
 * s->n_vocab. */
folio_status folio_sampler_filter(folio_sampler *s,
                                  const folio_sample_params *p,
                                  const float *logits,
                                  folio_sample_cut *out) FOLIO_NODISCARD;

#endif
