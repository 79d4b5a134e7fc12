/* unit/sample_util.h: rows with a history and what the sampler makes of them.
 */
#ifndef FOLIO_TEST_SAMPLE_UTIL_H
#define FOLIO_TEST_SAMPLE_UTIL_H

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "sample/samp.h"

static inline folio_sample_params plain(void)
{
    folio_sample_params p;
    folio_sample_params_default(&p);
    return p;
}

static inline folio_sample_row row_of(const float *logits, int32_t n_vocab,
                                      const int32_t *tokens, int32_t n_prompt,
                                      int32_t n_tok)
{
    return (folio_sample_row){.size = sizeof(folio_sample_row),
                              .logits = logits,
                              .n_vocab = n_vocab,
                              .tokens = tokens,
                              .n_prompt = n_prompt,
                              .n_tok = n_tok,
                              .position = (uint64_t)n_tok};
}

static inline folio_sampler *open_sampler(int32_t n)
{
    folio_sampler *s = NULL;
    cr_assert_eq(folio_sampler_open(n, NULL, &s), FOLIO_OK);
    return s;
}

/* The changed row, and that nothing is left behind in the scratch. */
static inline void shape_row(folio_sample_params p, const folio_sample_row *row,
                             float *x)
{
    folio_sampler *s = open_sampler(row->n_vocab);
    const float *shaped = NULL;
    int32_t best = -1, raw = -1;
    cr_assert_eq(folio_sampler_shape(s, &p, row, &shaped, &best, &raw),
                 FOLIO_OK);
    memcpy(x, shaped, (size_t)row->n_vocab * sizeof *x);
    for (int32_t i = 0; i < row->n_vocab; i++)
        cr_assert_eq(s->count[i], 0);
    folio_sampler_close(&s);
}

static inline int32_t run_row(folio_sampler *s, folio_sample_params p,
                              const folio_sample_row *row)
{
    folio_sample_result r = {.size = sizeof r};
    cr_assert_eq(folio_sampler_run(s, &p, row, &r), FOLIO_OK);
    return r.id;
}

#endif
