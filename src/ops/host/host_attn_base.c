/* ops/host/host_attn_base.c: attention's vector pieces in plain C. */
#include <stdint.h>

#define SET           folio_host_attn_base
#define SET_NAME      "base"
#define MOST_ROWS     4
#define LANES         4
#define VFMA(a, b, c) ((a) * (b) + (c))

/* Halves without branches, so that the compiler may use vectors: the exponent
 * is moved by a product, which also makes subnormals right; infinities and NaNs
 * get the largest exponent back. */
enum { HALVES = 8 };

static inline void convert_halves(float *dst, const uint16_t *src)
{
    for (int i = 0; i < HALVES; i++) {
        union {
            uint32_t u;
            float f;
        } x = {.u = (uint32_t)(src[i] & 0x7fff) << 13};
        uint32_t special = x.u >= 0x0f800000u ? 0x7f800000u : 0;
        x.f *= 0x1p112f;
        x.u |= special | (uint32_t)(src[i] & 0x8000) << 16;
        dst[i] = x.f;
    }
}
#define CONVERT(dst, src) convert_halves(dst, src)
#define WIDE              HALVES
#define CONVERT_WIDE      CONVERT

#define VMAX(a, b) pick((a) > (b), a, b)
#define VTOP(a)    top_lane((const float *)&(a))

static inline float top_lane(const float *v)
{
    float top = v[0];
    for (int i = 1; i < LANES; i++)
        top = v[i] > top ? v[i] : top;
    return top;
}

#include "ops/host/host_attn_impl.h"
