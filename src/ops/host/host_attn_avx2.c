/* ops/host/host_attn_avx2.c: attention's vector pieces with AVX2, FMA, F16C. */
#include <immintrin.h>

#define SET      folio_host_attn_avx2
#define SET_NAME "avx2"
#define LANES    8
#define VFMA(a, b, c)                                                          \
    (vec) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c))
#define HALVES 8
#define CONVERT(dst, src)                                                      \
    _mm256_storeu_ps(dst, _mm256_cvtph_ps(_mm_loadu_si128(                     \
                              (const __m128i *)(const void *)(src))))

#include "ops/host/host_attn_impl.h"
