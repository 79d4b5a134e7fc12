/* ops/sample_row.c: see sample_row.h. Whatever needs doubles, a division or
 * random numbers is done here, once a row, so that kernels need none. */
#include "ops/sample_row.h"

#include <float.h>
#include <math.h>

#include "base/base.h"
#include "base/rng.h"

static int32_t word_of(float v)
{
    int32_t w;
    memcpy(&w, &v, sizeof w);
    return w;
}

static float float_of(int32_t w)
{
    float v;
    memcpy(&v, &w, sizeof v);
    return v;
}

static int32_t low_of(uint64_t v)
{
    uint32_t u = (uint32_t)v;
    int32_t w;
    memcpy(&w, &u, sizeof w);
    return w;
}

/* The share of the weight that top-p may drop, with the sampler's slack. It is
 * a multiple of 2^-45 where it is below 1, so nothing is rounded here. */
static uint64_t tail_of(float top_p)
{
    if (top_p >= 1)
        return 0;
    const double tail = 1.0 - (double)top_p + 0x1p-22;
    return tail >= 1.0 ? (uint64_t)1 << 48 : (uint64_t)(tail * 0x1p48);
}

static float scale_of(float temperature)
{
    const double scale = 1.4426950408889634 / (double)temperature;
    /* Both ends finite and normal: -inf * 0 and 0 * inf stay away. */
    return (float)FOLIO_MIN(FOLIO_MAX(scale, (double)FLT_MIN), (double)FLT_MAX);
}

void folio_sample_pack(const folio_sample_spec *s,
                       int32_t words[FOLIO_SAMPLE_IN])
{
    uint32_t r[4];
    const bool greedy = s->temperature == 0;
    const uint64_t tail = tail_of(s->top_p);
    const uint64_t least = (uint64_t)((double)s->min_p * 0x1p32 + 0.5);
    folio_philox4x32(s->seed, s->position, s->completion, r);
    words[SAMPLE_MODE] = s->skip  ? SAMPLE_SKIP
                         : greedy ? SAMPLE_GREEDY
                                  : SAMPLE_DRAW;
    words[SAMPLE_SCALE] = word_of(greedy ? 1.0f : scale_of(s->temperature));
    words[SAMPLE_TOP_K] = s->top_k;
    words[SAMPLE_TAIL_LO] = low_of(tail);
    words[SAMPLE_TAIL_HI] = low_of(tail >> 32);
    words[SAMPLE_MIN_LO] = low_of(least);
    words[SAMPLE_MIN_HI] = low_of(least >> 32);
    words[SAMPLE_RANDOM_LO] = low_of(r[0]);
    words[SAMPLE_RANDOM_HI] = low_of(r[1]);
    words[SAMPLE_TARGET] = s->target;
    words[SAMPLE_SLOT] = s->slot;
    words[SAMPLE_REPEAT_MUL] = word_of(s->repetition_penalty);
    words[SAMPLE_REPEAT_DIV] = word_of(1.0f / s->repetition_penalty);
    words[SAMPLE_PRESENCE] = word_of(s->presence_penalty);
    words[SAMPLE_FREQUENCY] = word_of(s->frequency_penalty);
    words[SAMPLE_EDIT_FIRST] = s->edit_first;
    words[SAMPLE_EDIT_END] = s->edit_end;
    words[SAMPLE_NO_SUM] = s->no_sum != 0;
}

void folio_sample_unpack(const int32_t words[FOLIO_SAMPLE_OUT],
                         folio_sample_drawn *out)
{
    const uint64_t sum = sample_u64(words[SAMPLE_SUM_LO], words[SAMPLE_SUM_HI]);
    *out = (folio_sample_drawn){.id = words[SAMPLE_ID],
                                .flags = (uint32_t)words[SAMPLE_FLAGS],
                                .logit = float_of(words[SAMPLE_LOGIT]),
                                .max = float_of(words[SAMPLE_MAX]),
                                .target = float_of(words[SAMPLE_ASKED])};
    out->lse = (double)out->max;
    if (sum)
        out->lse += log(ldexp((double)sum, -SAMPLE_SUM_ONE));
}

/* ---- for the variants -------------------------------------------------------
 */

folio_status folio_sample_scratch(folio_op *op, const folio_sample_args *a,
                                  int32_t *shapes)
{
    size_t n = 0;
    *shapes = a->n_edits > 0 || a->n_slots > 0;
    if (*shapes &&
        (!folio_mul_size((size_t)op->max_count, (size_t)a->n_vocab, &n) ||
         !folio_mul_size(n, sizeof(float), &n)))
        return folio_fail(folio_device_log(op->dev), FOLIO_E_TOO_LARGE,
                          "%s: scratch does not fit size_t", op->var->name);
    op->scratch_bytes = n;
    return FOLIO_OK;
}

folio_status folio_sample_check_run(const folio_op *op,
                                    const folio_sample_args *a, int32_t shapes)
{
    if (shapes || (a->n_edits == 0 && a->n_slots == 0))
        return FOLIO_OK;
    return folio_fail(folio_device_log(op->dev), FOLIO_E_INVAL,
                      "%s: n_edits %d and n_slots %d > 0 and 0 it was opened "
                      "for",
                      op->var->name, a->n_edits, a->n_slots);
}
