/* ops/dequant.c: what the bytes of each tensor type mean, exactly. Every other
 * reading of a type is measured against this one, so it is never optimised.
 * Products are exact in f32 and at most one addition rounds. */
#include "base/half.h"
#include "ops/ops.h"

#include <string.h>

static float read_f16(const uint8_t *p)
{
    return folio_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
           (uint32_t)p[3] << 24;
}

/* ---- blocks of 32 ---- */

/* {f16 d, 16 bytes}: the low nibbles are values 0..15, the high ones 16..31. */
static void block_q4_0(const uint8_t *p, float *y)
{
    float d = read_f16(p);
    for (int j = 0; j < 16; j++) {
        y[j] = (float)((p[2 + j] & 15) - 8) * d;
        y[j + 16] = (float)((p[2 + j] >> 4) - 8) * d;
    }
}

/* {f16 d, f16 m, 16 bytes} */
static void block_q4_1(const uint8_t *p, float *y)
{
    float d = read_f16(p), m = read_f16(p + 2);
    for (int j = 0; j < 16; j++) {
        y[j] = (float)(p[4 + j] & 15) * d + m;
        y[j + 16] = (float)(p[4 + j] >> 4) * d + m;
    }
}

/* Value v (0..31) of a block with nibbles qs and fifth bits qh. */
static int read_5bit(const uint8_t *qs, uint32_t qh, int v)
{
    int nibble = v < 16 ? qs[v] & 15 : qs[v - 16] >> 4;
    return nibble | (int)(qh >> v & 1) << 4;
}

/* {f16 d, u32 fifth bits, 16 bytes} */
static void block_q5_0(const uint8_t *p, float *y)
{
    float d = read_f16(p);
    uint32_t qh = read_u32(p + 2);
    for (int j = 0; j < 32; j++)
        y[j] = (float)(read_5bit(p + 6, qh, j) - 16) * d;
}

/* {f16 d, f16 m, u32 fifth bits, 16 bytes} */
static void block_q5_1(const uint8_t *p, float *y)
{
    float d = read_f16(p), m = read_f16(p + 2);
    uint32_t qh = read_u32(p + 4);
    for (int j = 0; j < 32; j++)
        y[j] = (float)read_5bit(p + 8, qh, j) * d + m;
}

/* {f16 d, 32 signed bytes} */
static void block_q8_0(const uint8_t *p, float *y)
{
    float d = read_f16(p);
    for (int j = 0; j < 32; j++)
        y[j] = (float)(int8_t)p[2 + j] * d;
}

/* The code book of the IQ4 types. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

static void block_iq4_nl(const uint8_t *p, float *y)
{
    float d = read_f16(p);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)iq4_values[p[2 + j] & 15];
        y[j + 16] = d * (float)iq4_values[p[2 + j] >> 4];
    }
}

/* {u8 exponent e, 16 bytes}: values of e2m1 doubled, times 2^(e - 128). */
static void block_mxfp4(const uint8_t *p, float *y)
{
    static const int8_t e2m1_twice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                          0, -1, -2, -3, -4, -6, -8, -12};
    uint32_t e = p[0];
    float d = folio_bits_f32(e < 2 ? (uint32_t)0x00200000 << e : (e - 1) << 23);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)e2m1_twice[p[1 + j] & 15];
        y[j + 16] = d * (float)e2m1_twice[p[1 + j] >> 4];
    }
}

/* ---- super-blocks of 256 ---- */

/* {16 x (4-bit scale, 4-bit min), 64 bytes of 2-bit values, f16 d, f16 dmin} */
static void block_q2_k(const uint8_t *p, float *y)
{
    const uint8_t *scales = p, *q = p + 16;
    float d = read_f16(p + 80), dmin = read_f16(p + 82);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, quarter = i / 32 % 4;
        int sub = i / 16; /* scales are in the order of the values */
        int v = q[half * 32 + i % 32] >> (2 * quarter) & 3;
        float dl = d * (float)(scales[sub] & 15);
        float ml = dmin * (float)(scales[sub] >> 4);
        y[i] = dl * (float)v - ml;
    }
}

/* {32 bytes of third bits, 64 bytes of 2-bit values, 12 bytes of 16 6-bit
 * scales, f16 d}; a third bit that is 0 subtracts 4. */
static void block_q3_k(const uint8_t *p, float *y)
{
    const uint8_t *hmask = p, *q = p + 32, *packed = p + 96;
    float d = read_f16(p + 108);
    int scale[16];
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
        int high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        scale[i] = (low | high << 4) - 32;
    }
    for (int i = 0; i < 256; i++) {
        int half = i / 128, quarter = i / 32 % 4;
        int v = q[half * 32 + i % 32] >> (2 * quarter) & 3;
        if (!(hmask[i % 32] >> (half * 4 + quarter) & 1))
            v -= 4;
        y[i] = d * (float)scale[i / 16] * (float)v;
    }
}

/* Sub-block j (0..7) of the 12 bytes that hold 8 scales and 8 mins, 6 bits
 * each. */
static void read_scale_min(const uint8_t *p, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = p[j] & 63;
        *min = p[j + 4] & 63;
    } else {
        *scale = (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
        *min = p[j + 4] >> 4 | (p[j] >> 6) << 4;
    }
}

/* {f16 d, f16 dmin, 12 bytes of scales and mins, 128 bytes}: 32 bytes hold
 * values 64 k .. 64 k + 31 low and 64 k + 32 .. 64 k + 63 high. */
static void block_q4_k(const uint8_t *p, float *y)
{
    float d = read_f16(p), dmin = read_f16(p + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        read_scale_min(p + 4, j, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        const uint8_t *q = p + 16 + 32 * (j / 2);
        for (int l = 0; l < 32; l++)
            y[32 * j + l] = dl * (float)(q[l] >> (4 * (j % 2)) & 15) - ml;
    }
}

/* {f16 d, f16 dmin, 12 bytes of scales and mins, 32 bytes of fifth bits, 128
 * bytes}; bit j of fifth-bit byte l belongs to value 32 j + l. */
static void block_q5_k(const uint8_t *p, float *y)
{
    float d = read_f16(p), dmin = read_f16(p + 2);
    const uint8_t *qh = p + 16;
    for (int j = 0; j < 8; j++) {
        int scale, min;
        read_scale_min(p + 4, j, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        const uint8_t *q = p + 48 + 32 * (j / 2);
        for (int l = 0; l < 32; l++) {
            int v = (q[l] >> (4 * (j % 2)) & 15) | (qh[l] >> j & 1) << 4;
            y[32 * j + l] = dl * (float)v - ml;
        }
    }
}

/* {128 bytes of low nibbles, 64 bytes of upper 2 bits, 16 signed scales, f16 d}
 */
static void block_q6_k(const uint8_t *p, float *y)
{
    float d = read_f16(p + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, quarter = i / 32 % 4, l = i % 32;
        int low = p[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
        int high = p[128 + half * 32 + l] >> (2 * quarter) & 3;
        float dl = d * (float)(int8_t)p[192 + i / 16];
        y[i] = dl * (float)((low | high << 4) - 32);
    }
}

/* {f16 d, u16 upper 2 bits of 8 scales, 4 bytes of their low nibbles, 128
 * bytes} */
static void block_iq4_xs(const uint8_t *p, float *y)
{
    float d = read_f16(p);
    int high = p[2] | p[3] << 8;
    for (int b = 0; b < 8; b++) {
        int low = p[4 + b / 2] >> (4 * (b % 2)) & 15;
        float dl = d * (float)((low | (high >> (2 * b) & 3) << 4) - 32);
        const uint8_t *q = p + 8 + 16 * b;
        for (int j = 0; j < 16; j++) {
            y[32 * b + j] = dl * (float)iq4_values[q[j] & 15];
            y[32 * b + 16 + j] = dl * (float)iq4_values[q[j] >> 4];
        }
    }
}

/* ---- table ---- */

static void value_f32(const uint8_t *p, float *y)
{
    *y = folio_bits_f32(read_u32(p));
}

static void value_f16(const uint8_t *p, float *y)
{
    *y = read_f16(p);
}

static void value_bf16(const uint8_t *p, float *y)
{
    *y = folio_bf16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

typedef struct decoder {
    folio_type type;
    int values, bytes;
    void (*block)(const uint8_t *p, float *y);
} decoder;

static const decoder decoders[] = {
    {FOLIO_TYPE_F32, 1, 4, value_f32},
    {FOLIO_TYPE_F16, 1, 2, value_f16},
    {FOLIO_TYPE_BF16, 1, 2, value_bf16},
    {FOLIO_TYPE_Q4_0, 32, 18, block_q4_0},
    {FOLIO_TYPE_Q4_1, 32, 20, block_q4_1},
    {FOLIO_TYPE_Q5_0, 32, 22, block_q5_0},
    {FOLIO_TYPE_Q5_1, 32, 24, block_q5_1},
    {FOLIO_TYPE_Q8_0, 32, 34, block_q8_0},
    {FOLIO_TYPE_Q2_K, 256, 84, block_q2_k},
    {FOLIO_TYPE_Q3_K, 256, 110, block_q3_k},
    {FOLIO_TYPE_Q4_K, 256, 144, block_q4_k},
    {FOLIO_TYPE_Q5_K, 256, 176, block_q5_k},
    {FOLIO_TYPE_Q6_K, 256, 210, block_q6_k},
    {FOLIO_TYPE_IQ4_NL, 32, 18, block_iq4_nl},
    {FOLIO_TYPE_IQ4_XS, 256, 136, block_iq4_xs},
    {FOLIO_TYPE_MXFP4, 32, 17, block_mxfp4},
};

static const decoder *find_decoder(folio_type type)
{
    for (size_t i = 0; i < FOLIO_COUNT(decoders); i++)
        if (decoders[i].type == type)
            return &decoders[i];
    return NULL;
}

bool folio_dequant_knows(folio_type type)
{
    return find_decoder(type) != NULL;
}

void folio_dequant(folio_type type, const void *blocks, int64_t n_values,
                   float *out)
{
    const decoder *dec = find_decoder(type);
    const uint8_t *p = blocks;
    if (!dec)
        return;
    for (int64_t i = 0; i + dec->values <= n_values; i += dec->values) {
        dec->block(p, out + i);
        p += dec->bytes;
    }
}
