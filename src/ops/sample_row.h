/* ops/sample_row.h: parameters and answers of a row of the sampling op as
 * words (cl/sample_row.clh), from and to plain numbers. The words are uploaded
 * with a step and read back with its results. */
#ifndef FOLIO_OPS_SAMPLE_ROW_H
#define FOLIO_OPS_SAMPLE_ROW_H

#include <stdint.h>
#include <string.h>

#include "ops/ops.h"

#include "cl/weight.clh"

#include "cl/sample_row.clh"

#define FOLIO_SAMPLE_IN  SAMPLE_IN  /* words of a row's parameters */
#define FOLIO_SAMPLE_OUT SAMPLE_OUT /* words of its answer */

/* What folio/sampler.h calls the same, in its ranges; set all of it. */
typedef struct folio_sample_spec {
    int skip; /* draw nothing: the row takes another path */
    float temperature, top_p, min_p;
    int32_t top_k;
    uint64_t seed, position;
    uint32_t completion;
    int32_t target; /* id whose raw logit is asked for, or -1 */
    int32_t slot;   /* row of counts, or -1: no penalties */
    float repetition_penalty, presence_penalty, frequency_penalty;
    int32_t edit_first, edit_end; /* equal: no edits */
    int no_sum; /* nobody asks for the log of the sum, which costs a pass */
} folio_sample_spec;

void folio_sample_pack(const folio_sample_spec *spec,
                       int32_t words[FOLIO_SAMPLE_IN]);

typedef struct folio_sample_drawn {
    int32_t id;     /* -1: none */
    uint32_t flags; /* SAMPLE_BAD, SAMPLE_EMPTY */
    /* Of the row as it came; all 0 if it was bad itself. */
    float logit;  /* of id; 0 without one */
    float max;    /* the largest one */
    float target; /* of the target; 0 without one */
    double lse;   /* log of the sum of exp(logit), to 2e-7; `max` if it was not
                     wanted */
} folio_sample_drawn;

void folio_sample_unpack(const int32_t words[FOLIO_SAMPLE_OUT],
                         folio_sample_drawn *out);

/* For the variants. At open: scratch for a changed copy of each row, where
 * edits or counts may come; *shapes says so. */
folio_status folio_sample_scratch(folio_op *op, const folio_sample_args *a,
                                  int32_t *shapes) FOLIO_NODISCARD;
/* At run: INVAL for edits or counts that it was not opened for. */
folio_status folio_sample_check_run(const folio_op *op,
                                    const folio_sample_args *a,
                                    int32_t shapes) FOLIO_NODISCARD;

/* A pair of words of args.edits. */
static inline void folio_sample_edit(int32_t pair[2], int32_t id, float bias)
{
    pair[0] = id;
    memcpy(&pair[1], &bias, sizeof bias);
}

#endif
