/* ops/host/host_q8_impl.h: the arithmetic of linear with 8-bit activations,
 * included once per instruction set with HOST_Q8_SET and HOST_Q8_SET_NAME
 * defined. As many rows as a register has lanes are unpacked together, lane =
 * row, and multiplied with the tokens of a tile: sums of 32 products are whole
 * numbers and exact; blocks are then added in the order of their columns, each
 * row and token by itself, so that a row's bits do not depend on its batch.
 * Everything is static: code compiled for one processor must not be shared with
 * another by the linker. */
#include "ops/host/host_q8_unpack.h"

/* Tokens per tile. */
#define TILE 64

/* ---- tokens -------------------------------------------------------------- */

/* What is added to a type's weights to make them unsigned. */
static int32_t offset_of(folio_type type)
{
    switch (type) {
    case FOLIO_TYPE_Q4_0:
        return 8;
    case FOLIO_TYPE_Q5_0:
        return 16;
    case FOLIO_TYPE_Q8_0:
        return BYTE_OFFSET;
    case FOLIO_TYPE_Q6_K:
        return 32;
    default:
        return 0;
    }
}

static inline int32_t add_all(ivec v)
{
#if LANES == 16
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    int32_t l[LANES], sum = 0;
    memcpy(l, &v, sizeof l);
    for (int i = 0; i < LANES; i++)
        sum += l[i];
    return sum;
#endif
}

static inline int32_t largest(ivec v)
{
#if LANES == 16
    return _mm512_reduce_max_epi32((__m512i)v);
#else
    int32_t l[LANES], most = 0;
    memcpy(l, &v, sizeof l);
    for (int i = 0; i < LANES; i++)
        most = l[i] > most ? l[i] : most;
    return most;
#endif
}

/* Quantises 32 values; returns the step, sums of the halves to sum[2]. */
static inline float quantise_block(const float *x, int8_t *q, int32_t sum[2])
{
    enum { N = BLOCK / LANES };
    const fvec shift = all(12582912.0f); /* 1.5 * 2^23: rounds to an integer */
    fvec v[N];
    ivec most = {0};
    memcpy(v, x, sizeof v);
    /* Sizes of floats compare like their bits, a NaN above all. */
    for (int i = 0; i < N; i++) {
        ivec size = (ivec)v[i] & 0x7fffffff;
        ivec more = size > most;
        most = (size & more) | (most & ~more);
    }
    int32_t top = largest(most);
    float amax = folio_bits_f32((uint32_t)top);
    sum[0] = sum[1] = 0;
    if (top >= 0x7f800000 || amax < 1e-35f) {
        /* Below that the quotient would overflow, and the products vanish. */
        memset(q, 0, BLOCK);
        return top >= 0x7f800000 ? folio_bits_f32(0x7fc00000u) : 0.0f;
    }
    fvec by = all(127.0f / amax);
    for (int i = 0; i < N; i++) {
        ivec n = (ivec)(v[i] * by + shift) - (ivec)shift;
        bvec b = __builtin_convertvector(n, bvec);
        memcpy(q + i * LANES, &b, LANES);
        sum[i * 2 / N] += add_all(n);
    }
    return amax / 127.0f;
}

static void quantise(folio_type type, const float *x, int64_t cols, int8_t *q,
                     folio_host_q8_step *step)
{
    int32_t offset = offset_of(type);
    bool halves = type == FOLIO_TYPE_Q6_K;
    for (int64_t c = 0; c < cols; c += BLOCK, step++) {
        int32_t sum[2];
        float d = quantise_block(x + c, q + c, sum);
        step->d = d;
        step->sum = d * (float)(sum[0] + sum[1]);
        step->start[0] = -offset * (halves ? sum[0] : sum[0] + sum[1]);
        step->start[1] = -offset * sum[1];
    }
}
/* ---- products ------------------------------------------------------------ */

static inline int32_t four_at(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, 4);
    return v;
}

/* sum + the products of two quads of weights with 8 values of a token. */
static inline ivec dot(ivec sum, const uvec w[2], const int8_t *q, scaling by)
{
#if LANES == 16
    (void)by;
    sum = (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w[0],
                                    _mm512_set1_epi32(four_at(q)));
    return (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w[1],
                                     _mm512_set1_epi32(four_at(q + 4)));
#elif LANES == 8
    const __m256i one = _mm256_set1_epi16(1);
    __m256i q0 = _mm256_set1_epi32(four_at(q));
    __m256i q1 = _mm256_set1_epi32(four_at(q + 4));
    __m256i w0 = (__m256i)w[0], w1 = (__m256i)w[1];
    if (by == BY_BYTE) {
        /* Sums of two products of full bytes just fit 16 bits. */
        __m256i a =
            _mm256_maddubs_epi16(_mm256_abs_epi8(w0), _mm256_sign_epi8(q0, w0));
        __m256i b =
            _mm256_maddubs_epi16(_mm256_abs_epi8(w1), _mm256_sign_epi8(q1, w1));
        return sum + (ivec)_mm256_madd_epi16(a, one) +
               (ivec)_mm256_madd_epi16(b, one);
    }
    /* Weights are below 64 here: four products fit. */
    __m256i a = _mm256_maddubs_epi16(w0, q0);
    __m256i b = _mm256_maddubs_epi16(w1, q1);
    return sum + (ivec)_mm256_madd_epi16(_mm256_add_epi16(a, b), one);
#elif defined(__SSE2__)
    const __m128i even = _mm_set1_epi32(0x00ff00ff);
    (void)by;
    for (int i = 0; i < 2; i++, q += 4) {
        __m128i x = _mm_set1_epi32(four_at(q)), v = (__m128i)w[i];
        __m128i x02 = _mm_srai_epi16(_mm_slli_epi16(x, 8), 8);
        __m128i x13 = _mm_srai_epi16(x, 8);
        __m128i w02 = _mm_and_si128(v, even);
        __m128i w13 = _mm_srli_epi16(v, 8);
        sum += (ivec)_mm_madd_epi16(w02, x02) + (ivec)_mm_madd_epi16(w13, x13);
    }
    return sum;
#else
    (void)by;
    for (int i = 0; i < 2; i++, q += 4)
        for (int j = 0; j < 4; j++)
            sum += (ivec)(w[i] >> (uint32_t)(8 * j) & 255u) * (int32_t)q[j];
    return sum;
#endif
}

/* Quantised tokens of a tile from one chunk on. */
typedef struct token_rows {
    const int8_t *q;
    const folio_host_q8_step *step;
    int64_t q_stride, step_stride;
    /* NULL, or weights that come next: so many bytes of them are asked of
     * memory beside each block that is multiplied. */
    const uint8_t *ahead;
    size_t ahead_bytes;
} token_rows;

/* Into the second cache: the first is full of what is multiplied. */
static inline void expect(const token_rows *x, int block)
{
    if (!x->ahead)
        return;
    const uint8_t *p = x->ahead + (size_t)block * x->ahead_bytes;
    for (size_t i = 0; i < x->ahead_bytes; i += 64)
        __builtin_prefetch(p + i, 0, 2);
}

#define TOKS_1(M) M(0)
#define TOKS_2(M) TOKS_1(M) M(1)
#define TOKS_4(M) TOKS_2(M) M(2) M(3)
#define TOKS_8(M) TOKS_4(M) M(4) M(5) M(6) M(7)

#define SUM_LOAD(t)  fvec a##t = acc[t];
#define SUM_STORE(t) acc[t] = a##t;
#define STEP_AT(t)   const folio_host_q8_step *s##t = step + t * x->step_stride;
#define DOT_START(t) ivec i##t = all_int(s##t->start[0]);
#define DOT_NEXT(t)  i##t = all_int(s##t->start[1]);
#define DOT_STEP(t)  i##t = dot(i##t, w + j, q + t * x->q_stride + 4 * j, by);
#define SUM_SCALE(t) a##t = mul_add(to_float(i##t), f[0] * all(s##t->d), a##t);
#define SUM_MIN(t)   a##t = mul_add(f[1], all(s##t->sum), a##t);
#define SUM_HALF(t)  a##t = mul_add(to_float(i##t), f[1] * all(s##t->d), a##t);

/* Adds n blocks of the panel times N tokens to acc[N]. `by` is a constant
 * where this is used. */
#define DEFINE_TILE(N)                                                         \
    static inline __attribute__((always_inline)) void tile_##N(                \
        const panel *p, int n, const token_rows *x, scaling by, fvec *acc)     \
    {                                                                          \
        const folio_host_q8_step *step = x->step;                              \
        const int8_t *q = x->q;                                                \
        TOKS_##N(SUM_LOAD);                                                    \
        for (int b = 0; b < n; b++, step++, q += BLOCK) {                      \
            const uvec *w = p->w[b];                                           \
            const fvec *f = p->factor[b];                                      \
            const int half = by == BY_HALF ? QUADS / 2 : QUADS;                \
            TOKS_##N(STEP_AT);                                                 \
            expect(x, b);                                                      \
            TOKS_##N(DOT_START);                                               \
            for (int j = 0; j < half; j += 2) {                                \
                TOKS_##N(DOT_STEP);                                            \
            }                                                                  \
            TOKS_##N(SUM_SCALE);                                               \
            if (by == BY_MIN) {                                                \
                TOKS_##N(SUM_MIN);                                             \
            }                                                                  \
            if (by == BY_HALF) {                                               \
                TOKS_##N(DOT_NEXT);                                            \
                for (int j = half; j < QUADS; j += 2) {                        \
                    TOKS_##N(DOT_STEP);                                        \
                }                                                              \
                TOKS_##N(SUM_HALF);                                            \
            }                                                                  \
        }                                                                      \
        TOKS_##N(SUM_STORE);                                                   \
    }

DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(4)
#if MAX_TOKS == 8
DEFINE_TILE(8)
#endif

/* All tokens of a tile, in register tiles of halving size. */
static inline __attribute__((always_inline)) void add_tokens(
    const panel *p, int n, token_rows x, int n_tok, scaling by, fvec *acc)
{
    while (n_tok > 0) {
        int take = 1;
#if MAX_TOKS == 8
        if (n_tok >= 8) {
            tile_8(p, n, &x, by, acc);
            take = 8;
        } else
#endif
            if (n_tok >= 4) {
            tile_4(p, n, &x, by, acc);
            take = 4;
        } else if (n_tok >= 2) {
            tile_2(p, n, &x, by, acc);
            take = 2;
        } else {
            tile_1(p, n, &x, by, acc);
        }
        n_tok -= take;
        acc += take;
        x.ahead = NULL;
        x.q += take * x.q_stride;
        x.step += take * x.step_stride;
    }
}

static void add_products(const panel *p, int n, token_rows x, int n_tok,
                         scaling by, fvec *acc)
{
    switch (by) {
    case BY_SCALE:
        add_tokens(p, n, x, n_tok, BY_SCALE, acc);
        break;
    case BY_BYTE:
        add_tokens(p, n, x, n_tok, BY_BYTE, acc);
        break;
    case BY_MIN:
        add_tokens(p, n, x, n_tok, BY_MIN, acc);
        break;
    case BY_HALF:
        add_tokens(p, n, x, n_tok, BY_HALF, acc);
        break;
    }
}

/* ---- rows ---------------------------------------------------------------- */

static void write_rows(const folio_host_q8_job *j, int64_t row, int n_rows,
                       int64_t tok, int n_tok, const fvec *acc)
{
    const bool packed = j->packing != FOLIO_PACK_RAW;
    fvec bias = {0}, old = {0};
    size_t bytes = (size_t)n_rows * sizeof(float);
    if (j->bias)
        memcpy(&bias, j->bias + row, bytes);
    for (int t = 0; t < n_tok; t++) {
        float *y = j->y + (tok + t) * j->y_stride + row;
        fvec v = packed ? swap_order(acc[t]) : acc[t];
        if (j->bias)
            v += bias;
        if (j->accumulate) {
            memcpy(&old, y, bytes);
            v = old + v;
        }
        memcpy(y, &v, bytes);
    }
}

/* Rows that are fewer than the lanes go through a copy with zeros for the
 * rest. */
typedef struct spare_rows {
    uint8_t bytes[LANES * CHUNK_BYTES];
} spare_rows;

/* One load from every cache line, in order and at one go: so the waits for
 * memory overlap, which the work on each block would keep apart. Where they
 * were asked for in time (expect), this costs little. */
static inline void touch(const uint8_t *p, size_t bytes)
{
    uint32_t any = 0;
    for (size_t i = 0; i < bytes; i += 64)
        any += p[i];
    __asm__ volatile("" ::"r"(any));
}

/* Blocks first .. first + n - 1 of rows row .. row + n_rows - 1. */
static void unpack_rows(const folio_host_q8_job *j, const reading *how,
                        int64_t row, int n_rows, int64_t first, int n,
                        spare_rows *spare, panel *out)
{
    if (j->packing != FOLIO_PACK_RAW) {
        int64_t in_group = row % PACKED_ROWS;
        packed_at at = {j->w + (row - in_group) * (int64_t)j->row_bytes,
                        j->cols / BLOCK, first, (int)in_group};
        if (first == 0 && in_group == 0)
            touch(at.group, PACKED_ROWS * j->row_bytes);
        how->unpack_packed(&at, n, out);
        return;
    }
    size_t skip = folio_type_row_bytes(j->type, (uint64_t)(first * BLOCK));
    const uint8_t *src = j->w + (size_t)row * j->row_bytes + skip;
    size_t stride = j->row_bytes;
    if (n_rows < LANES) {
        size_t bytes = folio_type_row_bytes(j->type, (uint64_t)n * BLOCK);
        memset(spare->bytes, 0, LANES * bytes);
        for (int r = 0; r < n_rows; r++)
            memcpy(spare->bytes + (size_t)r * bytes, src + (size_t)r * stride,
                   bytes);
        src = spare->bytes;
        stride = bytes;
    }
    how->unpack(src, stride, n, out);
}

static void run_rows(const folio_host_q8_job *j, int64_t row, int n_rows)
{
    const int64_t n_blocks = j->cols / BLOCK;
    const reading how = reading_of(j->type);
    spare_rows spare;
    panel p;
    fvec acc[TILE];
    /* The rows that this thread most likely comes to next. */
    const size_t block_bytes = PACKED_ROWS * j->row_bytes / (size_t)n_blocks;
    const int64_t next = (row / PACKED_ROWS + 1) * PACKED_ROWS;
    const uint8_t *ahead = NULL;
    if (j->packing != FOLIO_PACK_RAW && row % PACKED_ROWS == 0 &&
        next < j->rows)
        ahead = j->w + next * (int64_t)j->row_bytes;

    for (int64_t tok = 0; tok < j->n_tok; tok += TILE) {
        int n_tok = (int)FOLIO_MIN(j->n_tok - tok, TILE);
        memset(acc, 0, (size_t)n_tok * sizeof acc[0]);
        for (int64_t b = 0; b < n_blocks; b += CHUNK) {
            int n = (int)FOLIO_MIN(n_blocks - b, CHUNK);
            token_rows x = {j->q + tok * j->cols + b * BLOCK,
                            j->step + tok * n_blocks + b,
                            j->cols,
                            n_blocks,
                            NULL,
                            block_bytes};
            if (ahead && tok == 0)
                x.ahead = ahead + (size_t)b * block_bytes;
            unpack_rows(j, &how, row, n_rows, b, n, &spare, &p);
            add_products(&p, n, x, n_tok, how.by, acc);
        }
        write_rows(j, row, n_rows, tok, n_tok, acc);
    }
}

const folio_host_q8_set HOST_Q8_SET = {
    .name = HOST_Q8_SET_NAME,
    .lanes = LANES,
    .quantise = quantise,
    .rows = run_rows,
};
