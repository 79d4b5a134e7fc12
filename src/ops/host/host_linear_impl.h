/* ops/host/host_linear_impl.h: the arithmetic of linear on the host device,
 * included once per instruction set with HOST_LINEAR_SET and
 * HOST_LINEAR_SET_NAME defined. Weights are dequantised exactly into a panel
 * of four rows that stays in the first cache, then multiplied with the tokens
 * of a tile. Everything is static: code compiled for one processor must not be
 * shared with another by the linker. */
#include <string.h>

#include "base/half.h"
#include "ops/host/host_linear.h"
#include "ops/pack.h"

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#endif

#define LANES HOST_LINEAR_LANES

/* VW: floats of one register. TOKS: tokens of the register tile, so that
 * 4 * TOKS sums, 4 weights and 1 activation fit the registers. */
#if defined(__AVX512F__)
#define VW       16
#define MAX_TOKS 6
#elif defined(__AVX2__) && defined(__FMA__)
#define VW       8
#define MAX_TOKS 3
#else
#define VW       4
#define MAX_TOKS 3
#endif

typedef float vec __attribute__((vector_size(VW * 4)));
typedef float vec4 __attribute__((vector_size(16)));

/* Columns dequantised at once: whole blocks of every type. */
#define CHUNK 768
/* Tokens per tile. */
#define TILE 48
#define QUAD 4

/* For each token the sums of four rows: [row of the quad][lane]. */
typedef float quad_sums[QUAD][LANES];

static inline vec load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

/* One rounding where the processor has it, else two: the same for every row
 * and token of a machine. */
static inline vec mul_add(vec a, vec b, vec c)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

/* ---- dequantisation --------------------------------------------------------
 * Each function writes n values, n whole blocks. Products of a half scale and
 * small integers are exact in a float, so the one rounding is that of the
 * minimum's addition, as in folio_dequant. */

static inline uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static inline float half_at(const uint8_t *p)
{
#ifdef __F16C__
    return _cvtsh_ss(load_u16(p));
#else
    return folio_f16_to_f32(load_u16(p));
#endif
}

static void widen_f32(const uint8_t *restrict src, float *restrict out, int n)
{
    memcpy(out, src, (size_t)n * 4);
}

static void widen_f16(const uint8_t *restrict src, float *restrict out, int n)
{
    int i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        store(out + i, _mm512_cvtph_ps(_mm256_loadu_si256(
                           (const __m256i *)(const void *)(src + 2 * i))));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        store(out + i, _mm256_cvtph_ps(_mm_loadu_si128(
                           (const __m128i *)(const void *)(src + 2 * i))));
#endif
    for (; i < n; i++)
        out[i] = folio_f16_to_f32(load_u16(src + 2 * i));
}

static void widen_bf16(const uint8_t *restrict src, float *restrict out, int n)
{
    int i = 0;
#if defined(__AVX2__)
    for (; i + 8 <= n; i += 8) {
        __m128i h =
            _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));
        __m256i w = _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
        memcpy(out + i, &w, sizeof w);
    }
#endif
    for (; i < n; i++)
        out[i] = folio_bf16_to_f32(load_u16(src + 2 * i));
}

/* Sixteen quantised values at a time. Each fits a signed byte. */
typedef int8_t bytes __attribute__((vector_size(16)));
typedef uint8_t ubytes __attribute__((vector_size(16)));
typedef uint64_t words __attribute__((vector_size(16)));

static inline ubytes load_bytes(const void *p)
{
    ubytes v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline ubytes low_nibbles(ubytes q)
{
    return q & 15;
}

static inline ubytes high_nibbles(ubytes q)
{
    return q >> 4;
}

/* 16 where bit i of the two bytes at p is set, else 0. */
static inline ubytes fifth_bits(const uint8_t *p)
{
    const ubytes bit = {1, 2, 4, 8, 16, 32, 64, 128,
                        1, 2, 4, 8, 16, 32, 64, 128};
    const uint64_t each = UINT64_C(0x0101010101010101);
    words w = {p[0] * each, p[1] * each};
    return (ubytes)(((ubytes)w & bit) == bit) & 16;
}

/* out = d * q + m: the product is exact, so fused or not is the same. */
static inline void put(float *out, bytes q, float d, float m)
{
#if defined(__AVX512F__)
    __m512 f = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)q));
    store(out, _mm512_fmadd_ps(f, _mm512_set1_ps(d), _mm512_set1_ps(m)));
#elif defined(__AVX2__) && defined(__FMA__)
    __m128i lo = (__m128i)q, hi = _mm_unpackhi_epi64(lo, lo);
    __m256 f = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lo));
    __m256 g = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(hi));
    store(out, _mm256_fmadd_ps(f, _mm256_set1_ps(d), _mm256_set1_ps(m)));
    store(out + 8, _mm256_fmadd_ps(g, _mm256_set1_ps(d), _mm256_set1_ps(m)));
#else
    int8_t b[16];
    memcpy(b, &q, 16);
    for (int i = 0; i < 16; i++)
        out[i] = d * (float)b[i] + m;
#endif
}

/* out = d * q. Not put() with a zero: -0 + 0 would lose a sign. */
static inline void put_scaled(float *out, bytes q, float d)
{
#if defined(__AVX512F__)
    __m512 f = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)q));
    store(out, _mm512_mul_ps(f, _mm512_set1_ps(d)));
#elif defined(__AVX2__) && defined(__FMA__)
    __m128i lo = (__m128i)q, hi = _mm_unpackhi_epi64(lo, lo);
    __m256 f = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lo));
    __m256 g = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(hi));
    store(out, _mm256_mul_ps(f, _mm256_set1_ps(d)));
    store(out + 8, _mm256_mul_ps(g, _mm256_set1_ps(d)));
#else
    int8_t b[16];
    memcpy(b, &q, 16);
    for (int i = 0; i < 16; i++)
        out[i] = d * (float)b[i];
#endif
}

static void widen_q4_0(const uint8_t *restrict src, float *restrict out, int n)
{
    for (; n > 0; n -= 32, src += 18, out += 32) {
        float d = half_at(src);
        ubytes q = load_bytes(src + 2);
        put_scaled(out, (bytes)low_nibbles(q) - 8, d);
        put_scaled(out + 16, (bytes)high_nibbles(q) - 8, d);
    }
}

static void widen_q4_1(const uint8_t *restrict src, float *restrict out, int n)
{
    for (; n > 0; n -= 32, src += 20, out += 32) {
        float d = half_at(src), m = half_at(src + 2);
        ubytes q = load_bytes(src + 4);
        put(out, (bytes)low_nibbles(q), d, m);
        put(out + 16, (bytes)high_nibbles(q), d, m);
    }
}

static void widen_q5_0(const uint8_t *restrict src, float *restrict out, int n)
{
    for (; n > 0; n -= 32, src += 22, out += 32) {
        float d = half_at(src);
        ubytes q = load_bytes(src + 6);
        ubytes a = low_nibbles(q) | fifth_bits(src + 2);
        ubytes b = high_nibbles(q) | fifth_bits(src + 4);
        put_scaled(out, (bytes)a - 16, d);
        put_scaled(out + 16, (bytes)b - 16, d);
    }
}

static void widen_q5_1(const uint8_t *restrict src, float *restrict out, int n)
{
    for (; n > 0; n -= 32, src += 24, out += 32) {
        float d = half_at(src), m = half_at(src + 2);
        ubytes q = load_bytes(src + 8);
        ubytes a = low_nibbles(q) | fifth_bits(src + 4);
        ubytes b = high_nibbles(q) | fifth_bits(src + 6);
        put(out, (bytes)a, d, m);
        put(out + 16, (bytes)b, d, m);
    }
}

static void widen_q8_0(const uint8_t *restrict src, float *restrict out, int n)
{
    for (; n > 0; n -= 32, src += 34, out += 32) {
        float d = half_at(src);
        put_scaled(out, (bytes)load_bytes(src + 2), d);
        put_scaled(out + 16, (bytes)load_bytes(src + 18), d);
    }
}

/* Scale and minimum j of the eight in a Q4_K or Q5_K block: six bits each in
 * 12 bytes; the last four of each keep their upper two bits in the first. */
static inline void k_scale_at(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

static void widen_q4_k(const uint8_t *restrict src, float *restrict out, int n)
{
    for (; n > 0; n -= 256, src += 144) {
        float d = half_at(src), d_min = half_at(src + 2);
        for (int j = 0; j < 8; j += 2, out += 64) {
            int s0, m0, s1, m1;
            k_scale_at(src + 4, j, &s0, &m0);
            k_scale_at(src + 4, j + 1, &s1, &m1);
            float f0 = d * (float)s0, f1 = d * (float)s1;
            float g0 = -(d_min * (float)m0), g1 = -(d_min * (float)m1);
            for (int i = 0; i < 32; i += 16) {
                ubytes q = load_bytes(src + 16 + 16 * j + i);
                put(out + i, (bytes)low_nibbles(q), f0, g0);
                put(out + 32 + i, (bytes)high_nibbles(q), f1, g1);
            }
        }
    }
}

static void widen_q5_k(const uint8_t *restrict src, float *restrict out, int n)
{
    for (; n > 0; n -= 256, src += 176) {
        float d = half_at(src), d_min = half_at(src + 2);
        for (int j = 0; j < 8; j += 2, out += 64) {
            int s0, m0, s1, m1;
            k_scale_at(src + 4, j, &s0, &m0);
            k_scale_at(src + 4, j + 1, &s1, &m1);
            float f0 = d * (float)s0, f1 = d * (float)s1;
            float g0 = -(d_min * (float)m0), g1 = -(d_min * (float)m1);
            for (int i = 0; i < 32; i += 16) {
                ubytes q = load_bytes(src + 48 + 16 * j + i);
                ubytes h = load_bytes(src + 16 + i) >> (uint8_t)j;
                ubytes a = low_nibbles(q) | (h & 1) << 4;
                ubytes b = high_nibbles(q) | (h & 2) << 3;
                put(out + i, (bytes)a, f0, g0);
                put(out + 32 + i, (bytes)b, f1, g1);
            }
        }
    }
}

static void widen_q6_k(const uint8_t *restrict src, float *restrict out, int n)
{
    for (; n > 0; n -= 256, src += 210) {
        float d = half_at(src + 208);
        for (int half = 0; half < 2; half++, out += 128) {
            const int8_t *s = (const int8_t *)src + 192 + 8 * half;
            for (int g = 0; g < 2; g++) { /* 16 of each quarter of 32 */
                ubytes q0 = load_bytes(src + 64 * half + 16 * g);
                ubytes q1 = load_bytes(src + 64 * half + 32 + 16 * g);
                ubytes h = load_bytes(src + 128 + 32 * half + 16 * g);
                ubytes a = low_nibbles(q0) | (h & 3) << 4;
                ubytes b = low_nibbles(q1) | (h & 12) << 2;
                ubytes c = high_nibbles(q0) | (h & 48);
                ubytes e = high_nibbles(q1) | (h & 192) >> 2;
                float *o = out + 16 * g;
                put_scaled(o, (bytes)a - 32, d * (float)s[g]);
                put_scaled(o + 32, (bytes)b - 32, d * (float)s[2 + g]);
                put_scaled(o + 64, (bytes)c - 32, d * (float)s[4 + g]);
                put_scaled(o + 96, (bytes)e - 32, d * (float)s[6 + g]);
            }
        }
    }
}

typedef void (*widen_fn)(const uint8_t *restrict src, float *restrict out,
                         int n);

static widen_fn widen_of(folio_type type)
{
    switch (type) {
    case FOLIO_TYPE_F32:
        return widen_f32;
    case FOLIO_TYPE_F16:
        return widen_f16;
    case FOLIO_TYPE_BF16:
        return widen_bf16;
    case FOLIO_TYPE_Q4_0:
        return widen_q4_0;
    case FOLIO_TYPE_Q4_1:
        return widen_q4_1;
    case FOLIO_TYPE_Q5_0:
        return widen_q5_0;
    case FOLIO_TYPE_Q5_1:
        return widen_q5_1;
    case FOLIO_TYPE_Q8_0:
        return widen_q8_0;
    case FOLIO_TYPE_Q4_K:
        return widen_q4_k;
    case FOLIO_TYPE_Q5_K:
        return widen_q5_k;
    case FOLIO_TYPE_Q6_K:
        return widen_q6_k;
    default:
        return NULL; /* folio_dequant does */
    }
}

/* ---- register tiles ------------------------------------------------------ */

#define TOKS_1(M) M(0)
#define TOKS_2(M) TOKS_1(M) M(1)
#define TOKS_3(M) TOKS_2(M) M(2)
#define TOKS_4(M) TOKS_3(M) M(3)
#define TOKS_5(M) TOKS_4(M) M(4)
#define TOKS_6(M) TOKS_5(M) M(5)

#define SUMS_LOAD(t)                                                           \
    vec a##t = load(&sums[t][0][lane]), b##t = load(&sums[t][1][lane]);        \
    vec c##t = load(&sums[t][2][lane]), d##t = load(&sums[t][3][lane]);
#define SUMS_STEP(t)                                                           \
    v = load(x + (t)*x_stride + k);                                            \
    a##t = mul_add(wa, v, a##t);                                               \
    b##t = mul_add(wb, v, b##t);                                               \
    c##t = mul_add(wc, v, c##t);                                               \
    d##t = mul_add(wd, v, d##t);
#define SUMS_STORE(t)                                                          \
    store(&sums[t][0][lane], a##t);                                            \
    store(&sums[t][1][lane], b##t);                                            \
    store(&sums[t][2][lane], c##t);                                            \
    store(&sums[t][3][lane], d##t);

/* Adds n columns (a multiple of LANES) of the panel's four rows times N
 * tokens. A register holds VW of the lanes; narrower ones take several walks,
 * each with its own lanes, so that every lane sees the same order of sums. */
#define DEFINE_TILE(N)                                                         \
    static void tile_##N(const float *restrict panel, const float *restrict x, \
                         int64_t x_stride, int n, quad_sums *restrict sums)    \
    {                                                                          \
        for (int lane = 0; lane < LANES; lane += VW) {                         \
            TOKS_##N(SUMS_LOAD);                                               \
            for (int k = lane; k < n; k += LANES) {                            \
                vec wa = load(panel + k), wb = load(panel + CHUNK + k);        \
                vec wc = load(panel + 2 * CHUNK + k);                          \
                vec wd = load(panel + 3 * CHUNK + k), v;                       \
                TOKS_##N(SUMS_STEP);                                           \
            }                                                                  \
            TOKS_##N(SUMS_STORE);                                              \
        }                                                                      \
    }

DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
#if MAX_TOKS > 3
DEFINE_TILE(4)
DEFINE_TILE(5)
DEFINE_TILE(6)
#endif

static void add_products(const float *panel, const float *x, int64_t x_stride,
                         int n, int n_tok, quad_sums *sums)
{
    while (n_tok > 0) {
        int take = FOLIO_MIN(n_tok, MAX_TOKS);
        switch (take) {
        case 1:
            tile_1(panel, x, x_stride, n, sums);
            break;
        case 2:
            tile_2(panel, x, x_stride, n, sums);
            break;
        case 3:
            tile_3(panel, x, x_stride, n, sums);
            break;
#if MAX_TOKS > 3
        case 4:
            tile_4(panel, x, x_stride, n, sums);
            break;
        case 5:
            tile_5(panel, x, x_stride, n, sums);
            break;
        default:
            tile_6(panel, x, x_stride, n, sums);
            break;
#endif
        }
        n_tok -= take;
        x += take * x_stride;
        sums += take;
    }
}

/* The fixed tree: halves of 8, 4, 2, 1. */
static float add_lanes(const float *l)
{
    vec4 p, q, r, s;
    memcpy(&p, l, 16);
    memcpy(&q, l + 4, 16);
    memcpy(&r, l + 8, 16);
    memcpy(&s, l + 12, 16);
    vec4 t = (p + r) + (q + s);
    return (t[0] + t[2]) + (t[1] + t[3]);
}

/* ---- rows ---------------------------------------------------------------- */

static void write_quad(const folio_host_linear_job *j, int64_t row, int n_rows,
                       int64_t tok, int n_tok, const quad_sums *sums)
{
    for (int t = 0; t < n_tok; t++) {
        float *y = j->y + (tok + t) * j->y_stride + row;
        for (int r = 0; r < n_rows; r++) {
            float v = add_lanes(sums[t][r]);
            if (j->bias)
                v += j->bias[row + r];
            y[r] = j->accumulate ? y[r] + v : v;
        }
    }
}

/* Columns past the last whole step of LANES, zeros after the last. */
static void copy_tail(const folio_host_linear_job *j, int64_t tok, int n_tok,
                      float (*tail)[LANES])
{
    int64_t at = j->cols / LANES * LANES;
    for (int t = 0; t < n_tok; t++) {
        memset(tail[t], 0, sizeof tail[t]);
        memcpy(tail[t], j->x + (tok + t) * j->x_stride + at,
               (size_t)(j->cols - at) * sizeof(float));
    }
}

static void run_rows(const folio_host_linear_job *j, int64_t row, int n_rows)
{
    enum { N_QUADS = HOST_LINEAR_ROWS / QUAD };
    _Alignas(64) float panel[QUAD][CHUNK];
    _Alignas(64) quad_sums sums[N_QUADS][TILE];
    _Alignas(64) float tail[TILE][LANES];
    uint8_t room[CHUNK * sizeof(float)]; /* one row's part, unpacked */
    const folio_type_info *info = folio_type_find(j->type);
    widen_fn widen = widen_of(j->type);

    for (int64_t tok = 0; tok < j->n_tok; tok += TILE) {
        int n_tok = (int)FOLIO_MIN(j->n_tok - tok, TILE);
        if (j->cols % LANES)
            copy_tail(j, tok, n_tok, tail);
        for (int u = 0; u < N_QUADS; u++)
            memset(sums[u], 0, (size_t)n_tok * sizeof sums[u][0]);
        for (int64_t col = 0; col < j->cols; col += CHUNK) {
            int n = (int)FOLIO_MIN(j->cols - col, CHUNK);
            int whole = n / LANES * LANES;
            size_t at = (size_t)col / info->block_values * info->block_bytes;
            for (int u = 0; u * QUAD < n_rows; u++) {
                for (int r = 0; r < QUAD; r++) {
                    /* A short quad repeats its last row; that is not kept. */
                    int64_t from = row + FOLIO_MIN(u * QUAD + r, n_rows - 1);
                    const uint8_t *src =
                        j->w + (size_t)from * j->row_bytes + at;
                    if (j->packing != FOLIO_PACK_RAW) {
                        folio_unpack_blocks(j->packing, j->type, j->cols, j->w,
                                            from, col, n, room);
                        src = room;
                    }
                    if (widen)
                        widen(src, panel[r], n);
                    else
                        folio_dequant(j->type, src, n, panel[r]);
                    if (n > whole)
                        memset(panel[r] + n, 0,
                               (size_t)(whole + LANES - n) * sizeof(float));
                }
                add_products(panel[0], j->x + tok * j->x_stride + col,
                             j->x_stride, whole, n_tok, sums[u]);
                if (n > whole)
                    add_products(panel[0] + whole, tail[0], LANES, LANES, n_tok,
                                 sums[u]);
            }
        }
        for (int u = 0; u * QUAD < n_rows; u++)
            write_quad(j, row + u * QUAD, FOLIO_MIN(n_rows - u * QUAD, QUAD),
                       tok, n_tok, (const quad_sums *)sums[u]);
    }
}

const folio_host_linear_set HOST_LINEAR_SET = {
    .name = HOST_LINEAR_SET_NAME,
    .rows = run_rows,
};
