/* ops/host/host_q8_unpack.h: how the host's linear with 8-bit activations reads
 * weights: registers of one instruction set, and a function per type and
 * packing that turns blocks of LANES rows into a panel of them. Included by
 * host_q8_impl.h alone; everything is static there as here. */
#include <string.h>

#include "base/half.h"
#include "ops/host/host_q8.h"
#include "ops/pack.h"

#if defined(__AVX512VNNI__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

/* LANES: 32-bit numbers of one register. MAX_TOKS: tokens of a register tile of
 * products. Bytes of a full sign are kept as they are where the processor can
 * multiply them so, else with 128 added. */
#if defined(__AVX512VNNI__)
#define LANES       16
#define MAX_TOKS    8
#define BYTE_OFFSET 128
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES       8
#define MAX_TOKS    4
#define BYTE_OFFSET 0
#else
#define LANES       4
#define MAX_TOKS    4
#define BYTE_OFFSET 128
#endif

typedef float fvec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4)));
typedef int8_t bvec __attribute__((vector_size(LANES)));

#define BLOCK       HOST_Q8_BLOCK
#define PACKED_ROWS FOLIO_RG16_ROWS
/* Quads of four columns in a block: one register of weights each. */
#define QUADS (BLOCK / 4)
/* Blocks unpacked at once: whole super-blocks of 256, and little enough for the
 * first cache. */
#define CHUNK 24
/* Bytes of the longest row of a chunk. */
#define CHUNK_BYTES (CHUNK * 34)

/* How a type's blocks are scaled. */
typedef enum scaling {
    BY_SCALE, /* one scale */
    BY_BYTE,  /* one scale, weights of a full signed byte */
    BY_MIN,   /* one scale, and a minimum added to each weight */
    BY_HALF   /* a scale for each 16 */
} scaling;

typedef struct panel {
    uvec w[CHUNK][QUADS];  /* lane = row, four columns in its bytes */
    fvec factor[CHUNK][2]; /* the scale; the minimum or the second scale */
} panel;

static inline fvec all(float x)
{
    return x - (fvec){0};
}

static inline ivec all_int(int32_t x)
{
    return x - (ivec){0};
}

/* One rounding where the processor has it, else two: the same for every row
 * and token of a machine. */
static inline fvec mul_add(fvec a, fvec b, fvec c)
{
#if LANES == 16
    return _mm512_fmadd_ps(a, b, c);
#elif LANES == 8
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

static inline fvec to_float(ivec v)
{
    return __builtin_convertvector(v, fvec);
}

/* ---- weights ---------------------------------------------------------------
 * Each unpack function fills n blocks of a panel from LANES rows that lie
 * `stride` bytes apart. */

#if LANES == 16
/* Each quarter of a register: four numbers of four registers change places. */
static inline void transpose(const __m512i r[4], uvec out[4])
{
    __m512i a = _mm512_unpacklo_epi32(r[0], r[1]);
    __m512i b = _mm512_unpackhi_epi32(r[0], r[1]);
    __m512i c = _mm512_unpacklo_epi32(r[2], r[3]);
    __m512i d = _mm512_unpackhi_epi32(r[2], r[3]);
    out[0] = (uvec)_mm512_unpacklo_epi64(a, c);
    out[1] = (uvec)_mm512_unpackhi_epi64(a, c);
    out[2] = (uvec)_mm512_unpacklo_epi64(b, d);
    out[3] = (uvec)_mm512_unpackhi_epi64(b, d);
}
#endif

#if LANES > 4
static inline __m128i load_16(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
#endif

/* out[j] = bytes 4 j .. 4 j + 3 of each row's 16. */
static inline void load_quads(const uint8_t *p, size_t stride, uvec out[4])
{
#if LANES == 16
    __m512i r[4];
    for (int i = 0; i < 4; i++) {
        const uint8_t *s = p + (size_t)i * stride;
        __m512i v = _mm512_castsi128_si512(load_16(s));
        v = _mm512_inserti32x4(v, load_16(s + 4 * stride), 1);
        v = _mm512_inserti32x4(v, load_16(s + 8 * stride), 2);
        r[i] = _mm512_inserti32x4(v, load_16(s + 12 * stride), 3);
    }
    transpose(r, out);
#elif LANES == 8
    __m256i r[4];
    for (int i = 0; i < 4; i++) {
        const uint8_t *s = p + (size_t)i * stride;
        r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(s)),
                                       load_16(s + 4 * stride), 1);
    }
    __m256i a = _mm256_unpacklo_epi32(r[0], r[1]);
    __m256i b = _mm256_unpackhi_epi32(r[0], r[1]);
    __m256i c = _mm256_unpacklo_epi32(r[2], r[3]);
    __m256i d = _mm256_unpackhi_epi32(r[2], r[3]);
    out[0] = (uvec)_mm256_unpacklo_epi64(a, c);
    out[1] = (uvec)_mm256_unpackhi_epi64(a, c);
    out[2] = (uvec)_mm256_unpacklo_epi64(b, d);
    out[3] = (uvec)_mm256_unpackhi_epi64(b, d);
#else
    /* Whole vectors at the end: compilers take one filled lane by lane for
     * uninitialised. */
    uint32_t lane[4][LANES];
    for (int r = 0; r < LANES; r++) {
        uint32_t row[4];
        memcpy(row, p + (size_t)r * stride, sizeof row);
        for (int j = 0; j < 4; j++)
            lane[j][r] = row[j];
    }
    for (int j = 0; j < 4; j++)
        memcpy(&out[j], lane[j], sizeof out[j]);
#endif
}

static inline fvec halves_to_floats(const uint16_t h[LANES])
{
#if LANES == 16
    return _mm512_cvtph_ps(
        _mm256_loadu_si256((const __m256i *)(const void *)h));
#elif LANES == 8
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)h));
#else
    fvec v;
    for (int r = 0; r < LANES; r++)
        v[r] = folio_f16_to_f32(h[r]);
    return v;
#endif
}

/* Pairs of halves, the first in the low bits, to two vectors of floats. */
static inline void split_pairs(const uint32_t pair[LANES], fvec out[2])
{
#if LANES == 16
    __m512i v = _mm512_loadu_si512(pair);
    out[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
    out[1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16)));
#else
    uint16_t low[LANES], high[LANES];
    for (int r = 0; r < LANES; r++) {
        low[r] = (uint16_t)pair[r];
        high[r] = (uint16_t)(pair[r] >> 16);
    }
    out[0] = halves_to_floats(low);
    out[1] = halves_to_floats(high);
#endif
}

/* The half in front of every block: its scale. */
static inline void load_scales(const uint8_t *p, size_t stride,
                               size_t block_bytes, int n, panel *out)
{
    uint16_t h[CHUNK][LANES];
    for (int r = 0; r < LANES; r++) {
        const uint8_t *s = p + (size_t)r * stride;
        for (int b = 0; b < n; b++, s += block_bytes)
            memcpy(&h[b][r], s, 2);
    }
    for (int b = 0; b < n; b++)
        out->factor[b][0] = halves_to_floats(h[b]);
}

/* The two halves in front of every block: scale and minimum. */
static inline void load_scales_and_mins(const uint8_t *p, size_t stride,
                                        size_t block_bytes, int n, panel *out)
{
    uint32_t h[CHUNK][LANES];
    for (int r = 0; r < LANES; r++) {
        const uint8_t *s = p + (size_t)r * stride;
        for (int b = 0; b < n; b++, s += block_bytes)
            memcpy(&h[b][r], s, 4);
    }
    for (int b = 0; b < n; b++)
        split_pairs(h[b], out->factor[b]);
}

static inline uvec low_nibbles(uvec v)
{
    return v & 0x0f0f0f0fu;
}

static inline uvec high_nibbles(uvec v)
{
    return v >> 4 & 0x0f0f0f0fu;
}

/* The nibbles of 16 bytes at byte `at`: the low ones are the first half. */
static inline void load_nibbles(const uint8_t *p, size_t stride,
                                size_t block_bytes, size_t at, int n,
                                panel *out)
{
    for (int b = 0; b < n; b++) {
        uvec v[4];
        load_quads(p + (size_t)b * block_bytes + at, stride, v);
        for (int j = 0; j < 4; j++) {
            out->w[b][j] = low_nibbles(v[j]);
            out->w[b][4 + j] = high_nibbles(v[j]);
        }
    }
}

/* Fifth bits of 32 values: bit i of the word at byte `at` is value i's. */
static inline void add_fifth_bits(const uint8_t *p, size_t stride,
                                  size_t block_bytes, size_t at, int n,
                                  panel *out)
{
    for (int b = 0; b < n; b++) {
        uint32_t word[LANES];
        uvec bits;
        for (int r = 0; r < LANES; r++)
            memcpy(&word[r], p + (size_t)r * stride + at, 4);
        memcpy(&bits, word, sizeof bits);
        for (int j = 0; j < QUADS; j++) {
            /* Bits 0 to 3 of four to bit 4 of four bytes. */
            uvec four = bits >> (uint32_t)(4 * j) & 15u;
            out->w[b][j] |= (four * 0x00204081u & 0x01010101u) << 4;
        }
        p += block_bytes;
    }
}

static void unpack_q4_0(const uint8_t *p, size_t stride, int n, panel *out)
{
    load_scales(p, stride, 18, n, out);
    load_nibbles(p, stride, 18, 2, n, out);
}

static void unpack_q4_1(const uint8_t *p, size_t stride, int n, panel *out)
{
    load_scales_and_mins(p, stride, 20, n, out);
    load_nibbles(p, stride, 20, 4, n, out);
}

static void unpack_q5_0(const uint8_t *p, size_t stride, int n, panel *out)
{
    load_scales(p, stride, 22, n, out);
    load_nibbles(p, stride, 22, 6, n, out);
    add_fifth_bits(p, stride, 22, 2, n, out);
}

static void unpack_q5_1(const uint8_t *p, size_t stride, int n, panel *out)
{
    load_scales_and_mins(p, stride, 24, n, out);
    load_nibbles(p, stride, 24, 8, n, out);
    add_fifth_bits(p, stride, 24, 4, n, out);
}

/* Adding 128 to a byte turns its sign bit over. */
static inline void turn_signs(uvec w[QUADS])
{
    if (BYTE_OFFSET != 0)
        for (int j = 0; j < QUADS; j++)
            w[j] ^= 0x80808080u;
}

static void unpack_q8_0(const uint8_t *p, size_t stride, int n, panel *out)
{
    load_scales(p, stride, 34, n, out);
    for (int b = 0; b < n; b++) {
        load_quads(p + (size_t)b * 34 + 2, stride, out->w[b]);
        load_quads(p + (size_t)b * 34 + 18, stride, out->w[b] + 4);
        turn_signs(out->w[b]);
    }
}

/* Scales and minima of the super-blocks of Q4_K and Q5_K: six bits each in 12
 * bytes behind two halves; the last four of each keep their upper two bits in
 * the first. */
static inline void load_k_factors(const uint8_t *p, size_t stride,
                                  size_t block_bytes, int n, panel *out)
{
    for (int b = 0; b < n; b += 8, p += block_bytes) {
        for (int r = 0; r < LANES; r++) {
            const uint8_t *row = p + (size_t)r * stride, *s = row + 4;
            uint16_t h[2];
            memcpy(h, row, sizeof h);
            float d = folio_f16_to_f32(h[0]), d_min = folio_f16_to_f32(h[1]);
            for (int j = 0; j < 4; j++) {
                int high = (s[j + 8] & 15) | (s[j] >> 6) << 4;
                int high_min = s[j + 8] >> 4 | (s[j + 4] >> 6) << 4;
                out->factor[b + j][0][r] = d * (float)(s[j] & 63);
                out->factor[b + j][1][r] = -(d_min * (float)(s[j + 4] & 63));
                out->factor[b + 4 + j][0][r] = d * (float)high;
                out->factor[b + 4 + j][1][r] = -(d_min * (float)high_min);
            }
        }
    }
}

/* 32 bytes hold the nibbles of two blocks: low the first's, high the
 * second's. */
static inline void load_k_nibbles(const uint8_t *p, size_t stride,
                                  size_t block_bytes, size_t at, int n,
                                  panel *out)
{
    for (int b = 0; b < n; b += 2) {
        const uint8_t *s =
            p + (size_t)(b / 8) * block_bytes + at + (size_t)(b % 8) * 16;
        uvec v[QUADS];
        load_quads(s, stride, v);
        load_quads(s + 16, stride, v + 4);
        for (int j = 0; j < QUADS; j++) {
            out->w[b][j] = low_nibbles(v[j]);
            out->w[b + 1][j] = high_nibbles(v[j]);
        }
    }
}

static void unpack_q4_k(const uint8_t *p, size_t stride, int n, panel *out)
{
    load_k_factors(p, stride, 144, n, out);
    load_k_nibbles(p, stride, 144, 16, n, out);
}

static void unpack_q5_k(const uint8_t *p, size_t stride, int n, panel *out)
{
    load_k_factors(p, stride, 176, n, out);
    load_k_nibbles(p, stride, 176, 48, n, out);
    for (int b = 0; b < n; b += 8) {
        /* Bit i of byte c is that of column c of block i. */
        uvec v[QUADS];
        const uint8_t *s = p + (size_t)(b / 8) * 176 + 16;
        load_quads(s, stride, v);
        load_quads(s + 16, stride, v + 4);
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < QUADS; j++)
                out->w[b + i][j] |= (v[j] >> (uint32_t)i & 0x01010101u) << 4;
    }
}

static void unpack_q6_k(const uint8_t *p, size_t stride, int n, panel *out)
{
    for (int b = 0; b < n; b += 8, p += 210) {
        for (int r = 0; r < LANES; r++) {
            const uint8_t *row = p + (size_t)r * stride;
            uint16_t h;
            memcpy(&h, row + 208, 2);
            float d = folio_f16_to_f32(h);
            for (int i = 0; i < 16; i++)
                out->factor[b + i / 2][i % 2][r] =
                    d * (float)(int8_t)row[192 + i];
        }
        /* 64 bytes of nibbles and 32 of upper bits make four blocks. */
        for (int half = 0; half < 2; half++) {
            for (int g = 0; g < 2; g++) {
                const uint8_t *s = p + 64 * half + 16 * g;
                uvec q0[4], q1[4], h[4];
                load_quads(s, stride, q0);
                load_quads(s + 32, stride, q1);
                load_quads(p + 128 + 32 * half + 16 * g, stride, h);
                uvec(*w)[QUADS] = &out->w[b + 4 * half];
                for (int j = 0; j < 4; j++) {
                    uvec u = h[j];
                    int at = 4 * g + j;
                    w[0][at] = low_nibbles(q0[j]) | (u & 0x03030303u) << 4;
                    w[1][at] = low_nibbles(q1[j]) | (u & 0x0c0c0c0cu) << 2;
                    w[2][at] = high_nibbles(q0[j]) | (u & 0x30303030u);
                    w[3][at] = high_nibbles(q1[j]) | (u >> 2 & 0x30303030u);
                }
            }
        }
    }
}

/* ---- packed weights --------------------------------------------------------
 * Groups of 16 rows as FOLIO_PACK_RG16 stores them (pack.h): all that a block
 * needs lies together, in the order it is used. */

/* Registers of packed rows that hold a whole group come out with their rows in
 * columns of four: lane 4 l + i is row 4 i + l. This puts numbers of rows in
 * that order and, being its own inverse, back. */
static inline fvec swap_order(fvec v)
{
#if LANES == 16
    const __m512i at =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_ps(at, v);
#else
    return v;
#endif
}

/* As load_quads, of LANES rows whose 16 bytes follow one another. */
static inline void load_packed(const uint8_t *p, uvec out[4])
{
#if LANES == 16
    __m512i r[4];
    for (int i = 0; i < 4; i++)
        r[i] = _mm512_loadu_si512(p + 64 * i);
    transpose(r, out);
#else
    load_quads(p, 16, out);
#endif
}

static inline void load_packed_nibbles(const uint8_t *p, int n, panel *out)
{
    for (int b = 0; b < n; b++, p += PACKED_ROWS * 16) {
        uvec v[4];
        load_packed(p, v);
        for (int j = 0; j < 4; j++) {
            out->w[b][j] = low_nibbles(v[j]);
            out->w[b][4 + j] = high_nibbles(v[j]);
        }
    }
}

static inline void load_packed_scales(const uint8_t *p, int n, panel *out)
{
    for (int b = 0; b < n; b++, p += PACKED_ROWS * 2) {
        uint16_t h[LANES];
        memcpy(h, p, sizeof h);
        out->factor[b][0] = swap_order(halves_to_floats(h));
    }
}

/* Where a group lies, which of its rows are wanted, which of its blocks. */
typedef struct packed_at {
    const uint8_t *group;
    int64_t n_blocks; /* of a row */
    int64_t first;    /* block */
    int row;
} packed_at;

static void unpack_packed_q4_0(const packed_at *at, int n, panel *out)
{
    const uint8_t *scales = at->group + at->n_blocks * 256;
    load_packed_scales(scales + (at->first * PACKED_ROWS + at->row) * 2, n,
                       out);
    load_packed_nibbles(at->group + (at->first * PACKED_ROWS + at->row) * 16, n,
                        out);
}

static void unpack_packed_q4_1(const packed_at *at, int n, panel *out)
{
    const uint8_t *p = at->group + at->n_blocks * 256 +
                       (at->first * PACKED_ROWS + at->row) * 4;
    for (int b = 0; b < n; b++, p += PACKED_ROWS * 4) {
        uint32_t h[LANES];
        memcpy(h, p, sizeof h);
        split_pairs(h, out->factor[b]);
        out->factor[b][0] = swap_order(out->factor[b][0]);
        out->factor[b][1] = swap_order(out->factor[b][1]);
    }
    load_packed_nibbles(at->group + (at->first * PACKED_ROWS + at->row) * 16, n,
                        out);
}

static void unpack_packed_q8_0(const packed_at *at, int n, panel *out)
{
    const uint8_t *scales = at->group + at->n_blocks * 512;
    const uint8_t *p = at->group + (at->first * 2 * PACKED_ROWS + at->row) * 16;
    load_packed_scales(scales + (at->first * PACKED_ROWS + at->row) * 2, n,
                       out);
    for (int b = 0; b < n; b++, p += PACKED_ROWS * 32) {
        load_packed(p, out->w[b]);
        load_packed(p + PACKED_ROWS * 16, out->w[b] + 4);
        turn_signs(out->w[b]);
    }
}

typedef struct reading {
    void (*unpack)(const uint8_t *p, size_t stride, int n, panel *out);
    void (*unpack_packed)(const packed_at *at, int n, panel *out);
    scaling by;
} reading;

static reading reading_of(folio_type type)
{
    switch (type) {
    case FOLIO_TYPE_Q4_0:
        return (reading){unpack_q4_0, unpack_packed_q4_0, BY_SCALE};
    case FOLIO_TYPE_Q4_1:
        return (reading){unpack_q4_1, unpack_packed_q4_1, BY_MIN};
    case FOLIO_TYPE_Q5_0:
        return (reading){unpack_q5_0, NULL, BY_SCALE};
    case FOLIO_TYPE_Q5_1:
        return (reading){unpack_q5_1, NULL, BY_MIN};
    case FOLIO_TYPE_Q4_K:
        return (reading){unpack_q4_k, NULL, BY_MIN};
    case FOLIO_TYPE_Q5_K:
        return (reading){unpack_q5_k, NULL, BY_MIN};
    case FOLIO_TYPE_Q6_K:
        return (reading){unpack_q6_k, NULL, BY_HALF};
    default:
        return (reading){unpack_q8_0, unpack_packed_q8_0, BY_BYTE};
    }
}
