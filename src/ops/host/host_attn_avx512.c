/* ops/host/host_attn_avx512.c: attention's vector pieces with AVX-512. */
#include <immintrin.h>

#define SET       folio_host_attn_avx512
#define SET_NAME  "avx512"
#define MOST_ROWS 8
#define LANES     16
#define VFMA(a, b, c)                                                          \
    (vec) _mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c))
#define VMAX(a, b) (vec) _mm512_max_ps((__m512)(a), (__m512)(b))
#define VTOP(a)    _mm512_reduce_max_ps((__m512)(a))
#define WIDEN(p)                                                               \
    (vec) _mm512_cvtph_ps(                                                     \
        _mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define WIDE                   16
#define CONVERT_WIDE(dst, src) store(dst, WIDEN(src))
/* Eight at once: runs of KV tiles are often no longer. */
#define HALVES 8
#define CONVERT(dst, src)                                                      \
    _mm256_storeu_ps(dst, _mm256_cvtph_ps(_mm_loadu_si128(                     \
                              (const __m128i *)(const void *)(src))))

#include "ops/host/host_attn_impl.h"
