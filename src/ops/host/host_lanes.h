/* ops/host/host_lanes.h: fixed-width blocks for the host's float loops. A block
 * of constant length is what compilers turn into vector code at -O2 without
 * alias checks or reordering; a row's tail goes through the same block, padded
 * with zeros, so that a value's bits do not depend on where it stands. */
#ifndef FOLIO_OPS_HOST_LANES_H
#define FOLIO_OPS_HOST_LANES_H

#include "base/half.h"

#include <string.h>

#define FOLIO_LANES 16

/* Up to FOLIO_LANES floats into a block, the rest 0; and back. */
static inline void folio_lanes_load(float block[FOLIO_LANES], const float *p,
                                    int64_t n)
{
    if (n >= FOLIO_LANES) {
        memcpy(block, p, FOLIO_LANES * sizeof *p);
        return;
    }
    memset(block, 0, FOLIO_LANES * sizeof *p);
    memcpy(block, p, (size_t)n * sizeof *p);
}

static inline void folio_lanes_store(float *p, const float block[FOLIO_LANES],
                                     int64_t n)
{
    if (n >= FOLIO_LANES)
        memcpy(p, block, FOLIO_LANES * sizeof *p);
    else
        memcpy(p, block, (size_t)n * sizeof *p);
}

/* The sum of a block, in one fixed order. */
static inline float folio_lanes_sum(const float block[FOLIO_LANES])
{
    float s[8];
    for (int i = 0; i < 8; i++)
        s[i] = block[i] + block[i + 8];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* e^-|z|, within 2 units in the last place down to e^-87, about that below; NaN
 * stays NaN. e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2; the
 * Taylor series of degree 7 is off by r^8 / 8! < 6e-9. */
static inline float folio_lane_exp_neg(float z)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: rounds to an integer */
    const uint32_t infinity = 0x7f800000u, limit = 0x42ae0000u; /* 87 */
    uint32_t size = folio_f32_bits(z) & 0x7fffffffu;
    uint32_t cut = size > limit ? limit : size;
    float x = -folio_bits_f32(size > infinity ? size : cut);
    float t = x * 1.44269504f + shift;
    float n = t - shift;
    /* ln 2 in two parts; n times the first is exact. */
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    /* The low bits of t hold n. */
    uint32_t scale = (folio_f32_bits(t) + 127u) << 23;
    return p * folio_bits_f32(scale);
}

#endif
