/* base/half.h: IEEE binary16 and bfloat16 storage formats, exact, portable,
 * round to nearest even. No arithmetic on halves anywhere on the host. */
#ifndef FOLIO_BASE_HALF_H
#define FOLIO_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t folio_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float folio_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline float folio_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = (h >> 10) & 0x1fu;
    uint32_t man = h & 0x3ffu;
    if (exp == 0x1f) /* infinity, NaN (payload kept) */
        return folio_bits_f32(sign | 0x7f800000u | man << 13);
    if (exp != 0)
        return folio_bits_f32(sign | (exp + 112) << 23 | man << 13);
    /* zero and subnormal: man * 2^-24, exact in f32 */
    float v = (float)man * 0x1p-24f;
    return folio_bits_f32(folio_f32_bits(v) | sign);
}

static inline uint16_t folio_f32_to_f16(float f)
{
    uint32_t u = folio_f32_bits(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) /* NaN stays NaN */
        return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x1ffu));
    if (u >= 0x477ff000u) /* rounds above 65504 */
        return (uint16_t)(sign | 0x7c00u);
    if (u < 0x38800000u) { /* subnormal half or zero */
        if (u < 0x33000000u)
            return sign;
        uint32_t shift = 126u - (u >> 23);
        uint32_t man = (u & 0x7fffffu) | 0x800000u;
        uint32_t half = man >> shift;
        uint32_t rest = man & ((1u << shift) - 1u);
        uint32_t mid = 1u << (shift - 1);
        if (rest > mid || (rest == mid && (half & 1u)))
            half++;
        return (uint16_t)(sign | half);
    }
    uint32_t r = u + 0xfffu + (u >> 13 & 1u);
    return (uint16_t)(sign | ((r - 0x38000000u) >> 13));
}

static inline float folio_bf16_to_f32(uint16_t h)
{
    return folio_bits_f32((uint32_t)h << 16);
}

static inline uint16_t folio_f32_to_bf16(float f)
{
    uint32_t u = folio_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

#endif
