/* ops/host/host_attn_avx2.c: attention's vector pieces with AVX2, FMA, F16C. */
#include <immintrin.h>

#define SET       folio_host_attn_avx2
#define SET_NAME  "avx2"
#define MOST_ROWS 4
#define LANES     8
#define VFMA(a, b, c)                                                          \
    (vec) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c))
#define VMAX(a, b) (vec) _mm256_max_ps((__m256)(a), (__m256)(b))
#define VTOP(a)    top_lane((__m256)(a))
#define WIDEN(p)                                                               \
    (vec) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define HALVES            8
#define CONVERT(dst, src) store(dst, WIDEN(src))
#define WIDE              HALVES
#define CONVERT_WIDE      CONVERT

static inline float top_lane(__m256 v)
{
    __m128 m =
        _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
}

#include "ops/host/host_attn_impl.h"
