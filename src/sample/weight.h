/* sample/weight.h: the probability of a logit as an integer, from f32 steps
 * that every machine rounds alike (add, subtract, multiply, floor; nothing
 * fused), so that sums have no order and host and device draw the same id. */
#ifndef FOLIO_SAMPLE_WEIGHT_H
#define FOLIO_SAMPLE_WEIGHT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The weight of the largest logit. A row has at most 2^20 logits, so sums
 * stay below 2^52. */
#define FOLIO_WEIGHT_ONE ((uint64_t)1 << 32)

/* round(2^32 * exp((logit - max) / T)) with scale = log2(e) / T; logit <= max,
 * max finite, scale > 0 and finite. 2^f on [0, 1) is a polynomial of degree 6
 * interpolated at Chebyshev points with both ends exact; relative error of the
 * polynomial 9e-8. */
static inline uint64_t folio_sample_weight(float logit, float max, float scale)
{
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif
    float d = logit - max, z = d * scale;
    /* Nearer to 0 than half a step of the fraction: 1. This also keeps the
     * fraction below 1, and hides whether subnormals are flushed. */
    if (d == 0.0f || z > -0x1p-24f)
        return FOLIO_WEIGHT_ONE;
    if (!(z >= -35.0f)) /* rounds to 0; also -INFINITY */
        return 0;
    float whole = floorf(z), f = z - whole, p = 0.000218892281f;
    p = p * f;
    p = p + 0.00124113797f;
    p = p * f;
    p = p + 0.00967821479f;
    p = p * f;
    p = p + 0.0554860458f;
    p = p * f;
    p = p + 0.240228564f;
    p = p * f;
    p = p + 0.693147123f;
    p = p * f;
    p = p + 1.0f;
    uint32_t bits, shift = (uint32_t)-whole; /* 1 to 35 */
    memcpy(&bits, &p, sizeof bits);
    uint64_t mant = (uint64_t)((bits & 0x7fffff) | 0x800000) << 9;
    return (mant + ((uint64_t)1 << (shift - 1))) >> shift;
}

#endif
