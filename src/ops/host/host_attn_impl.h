/* ops/host/host_attn_impl.h: body of the vector pieces of attention. The
 * including file defines SET (name of the table), SET_NAME, MOST_ROWS (4 or 8,
 * for so many rows two sums each fit the registers), LANES (floats per
 * vector), VFMA(a, b, c), VMAX(a, b) (b where either is not a number), VTOP(a)
 * (the largest lane), HALVES (halves converted at once) with CONVERT(dst, src)
 * for that many, and WIDE with CONVERT_WIDE for the most at once, at most 16;
 * and, where that is one instruction, WIDEN(p), the vector of LANES halves at
 * p. Every number is summed in the same order whatever LANES is. */
#include "base/half.h"
#include "ops/host/host_attn.h"

#include <string.h>

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));

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

static inline vec all(float x)
{
    return x - (vec){0};
}

static inline vec pick(ivec yes, vec a, vec b)
{
    return (vec)((yes & (ivec)a) | (~yes & (ivec)b));
}

/* n elements from storage to floats. */
static inline void convert(const host_attn_order *o, const void *src, size_t at,
                           int32_t n, float *dst)
{
    if (!o->half) {
        memcpy(dst, (const float *)src + at, (size_t)n * sizeof *dst);
        return;
    }
    const uint16_t *h = (const uint16_t *)src + at;
    int32_t i = 0;
    for (; i + WIDE <= n; i += WIDE)
        CONVERT_WIDE(dst + i, h + i);
    for (; i + HALVES <= n; i += HALVES)
        CONVERT(dst + i, h + i);
    for (; i < n; i++)
        dst[i] = folio_f16_to_f32(h[i]);
}

/* The line of `ahead`, a tile that is read soon, that lies where element `at`
 * of this one does. Asked for bit by bit: a processor can only wait for a few
 * lines at a time. */
static inline void expect(const host_attn_order *o, const void *ahead,
                          size_t at)
{
    if (ahead)
        __builtin_prefetch((const char *)ahead + at * (o->half ? 2 : 4));
}

/* Dims 0..hd-1 of token t, where each token's X dims lie together. */
static inline void load_token(const host_attn_order *o, const void *tile,
                              const void *ahead, int32_t t, float *row)
{
    const size_t line = o->half ? 32 : 16;
    size_t at = (size_t)t * (size_t)o->x, step = (size_t)o->bs * (size_t)o->x;
    for (int32_t d = 0; d < o->hd; d += o->x, at += step) {
        for (size_t i = 0; i < (size_t)o->x; i += line)
            expect(o, ahead, at + i);
        convert(o, tile, at, o->x, row + d);
    }
}

/* Y > 1: tokens t..t+n-1 to dst[i * tok_step + d * dim_step]. Small groups of
 * tokens are converted whole, X * Y elements that lie together, and tokens not
 * asked for left out. */
static void load_groups(const host_attn_order *o, const void *tile, int32_t t,
                        int32_t n, float *dst, int32_t tok_step,
                        int32_t dim_step)
{
    enum { GROUP = 16 };
    float run[HOST_ATTN_DIMS * GROUP];
    for (int32_t ty = t / o->y; ty * o->y < t + n; ty++) {
        int32_t from = FOLIO_MAX(t - ty * o->y, 0);
        int32_t to = FOLIO_MIN(t + n - ty * o->y, o->y);
        float *at = dst + (ty * o->y - t) * tok_step;
        for (int32_t c = 0; c < o->hd; c += o->x) {
            size_t src = ((size_t)c * (size_t)(o->bs / o->y) +
                          (size_t)ty * (size_t)o->x) *
                         (size_t)o->y;
            if (o->y <= GROUP)
                convert(o, tile, src, o->x * o->y, run);
            for (int32_t i = 0; i < o->x; i++) {
                const float *v = run + i * o->y + from;
                if (o->y > GROUP) {
                    convert(o, tile, src + (size_t)(i * o->y + from), to - from,
                            run);
                    v = run;
                }
                for (int32_t l = from; l < to; l++)
                    at[l * tok_step + (c + i) * dim_step] = v[l - from];
            }
        }
    }
}

static void load_keys(const host_attn_order *o, const void *tile,
                      const void *ahead, int32_t t, int32_t n, float *dst)
{
    if (o->y > 1) {
        load_groups(o, tile, t, n, dst, 1, HOST_ATTN_KEYS);
        return;
    }
    if (o->x == 1) {
        for (int32_t d = 0; d < o->hd; d++) {
            size_t at = (size_t)d * (size_t)o->bs + (size_t)t;
            expect(o, ahead, at);
            convert(o, tile, at, n, dst + d * HOST_ATTN_KEYS);
        }
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        float row[HOST_ATTN_DIMS];
        load_token(o, tile, ahead, t + i, row);
        for (int32_t d = 0; d < o->hd; d++)
            dst[d * HOST_ATTN_KEYS + i] = row[d];
    }
}

static void load_values(const host_attn_order *o, const void *tile,
                        const void *ahead, int32_t t, int32_t n, float *dst,
                        int32_t pad)
{
    if (o->y > 1) {
        load_groups(o, tile, t, n, dst, pad, 1);
        return;
    }
    for (int32_t i = 0; i < n; i++)
        load_token(o, tile, ahead, t + i, dst + i * pad);
}

#define ROWS_1(M) M(0)
#define ROWS_2(M) ROWS_1(M) M(1)
#define ROWS_3(M) ROWS_2(M) M(2)
#define ROWS_4(M) ROWS_3(M) M(3)
#define ROWS_5(M) ROWS_4(M) M(4)
#define ROWS_6(M) ROWS_5(M) M(5)
#define ROWS_7(M) ROWS_6(M) M(6)
#define ROWS_8(M) ROWS_7(M) M(7)

#if MOST_ROWS == 8
#define UP_TO_MOST(f) f##1, f##2, f##3, f##4, f##5, f##6, f##7, f##8
#define FOR_MORE(D)   D(5) D(6) D(7) D(8)
#else
#define UP_TO_MOST(f) f##1, f##2, f##3, f##4
#define FOR_MORE(D)
#endif

/* Rows times two vectors of keys or dims at a time: with four rows eight sums,
 * enough to hide the latency of a multiply-add. A row's sums are the same
 * whatever rows are beside it. */
#define SCORE_NEW(r) vec a##r = {0}, b##r = {0};
#define SCORE_ADD(r)                                                           \
    a##r = VFMA(all(q[r][d]), ka, a##r);                                       \
    b##r = VFMA(all(q[r][d]), kb, b##r);
#define SCORE_OUT(r)                                                           \
    store(s[r] + j, a##r);                                                     \
    store(s[r] + j + LANES, b##r);

#define DEFINE_SCORES(N)                                                       \
    static void scores_##N(const float *const *q, const float *keys,           \
                           int32_t hd, float *const *s)                        \
    {                                                                          \
        for (int32_t j = 0; j < HOST_ATTN_KEYS; j += 2 * LANES) {              \
            const float *k = keys + j;                                         \
            ROWS_##N(SCORE_NEW);                                               \
            for (int32_t d = 0; d < hd; d++, k += HOST_ATTN_KEYS) {            \
                vec ka = load(k), kb = load(k + LANES);                        \
                ROWS_##N(SCORE_ADD);                                           \
            }                                                                  \
            ROWS_##N(SCORE_OUT);                                               \
        }                                                                      \
    }

DEFINE_SCORES(1)
DEFINE_SCORES(2)
DEFINE_SCORES(3)
DEFINE_SCORES(4)
FOR_MORE(DEFINE_SCORES)

static void scores(int32_t n, const float *const *q, const float *keys,
                   int32_t hd, float *const *s)
{
    static void (*const by_rows[HOST_ATTN_BLOCK])(
        const float *const *, const float *, int32_t,
        float *const *) = {UP_TO_MOST(scores_)};
    by_rows[n - 1](q, keys, hd, s);
}

#define MIX_LOAD(r) vec a##r = load(o[r] + d), b##r = load(o[r] + d + LANES);
#define MIX_ADD(r)                                                             \
    a##r = VFMA(all(p[r][j]), va, a##r);                                       \
    b##r = VFMA(all(p[r][j]), vb, b##r);
#define MIX_OUT(r)                                                             \
    store(o[r] + d, a##r);                                                     \
    store(o[r] + d + LANES, b##r);

#define DEFINE_MIX(N)                                                          \
    static void mix_##N(const float *const *p, const float *values,            \
                        int32_t pad, int32_t first, int32_t last,              \
                        float *const *o)                                       \
    {                                                                          \
        for (int32_t d = 0; d < pad; d += 2 * LANES) {                         \
            const float *v = values + first * pad + d;                         \
            ROWS_##N(MIX_LOAD);                                                \
            for (int32_t j = first; j < last; j++, v += pad) {                 \
                vec va = load(v), vb = load(v + LANES);                        \
                ROWS_##N(MIX_ADD);                                             \
            }                                                                  \
            ROWS_##N(MIX_OUT);                                                 \
        }                                                                      \
    }

DEFINE_MIX(1)
DEFINE_MIX(2)
DEFINE_MIX(3)
DEFINE_MIX(4)
FOR_MORE(DEFINE_MIX)

static void mix(int32_t n, const float *const *p, const float *values,
                int32_t pad, int32_t first, int32_t last, float *const *o)
{
    static void (*const by_rows[HOST_ATTN_BLOCK])(
        const float *const *, const float *, int32_t, int32_t, int32_t,
        float *const *) = {UP_TO_MOST(mix_)};
    by_rows[n - 1](p, values, pad, first, last, o);
}

#ifdef WIDEN
/* Each line of the runs that come next is asked for once, and into the second
 * cache, because the first is full: where a dim's keys fill half of one, by
 * every other dim. */
#define DEFINE_SCORES_HALF(N)                                                  \
    static void scores_half_##N(const float *const *q,                         \
                                const host_attn_runs *keys, int32_t hd,        \
                                float *const *s)                               \
    {                                                                          \
        const int32_t step = keys->step;                                       \
        for (int32_t j = 0; j < HOST_ATTN_KEYS; j += 2 * LANES) {              \
            const int32_t i = j + LANES;                                       \
            const uint16_t *a = keys->run[j / HOST_ATTN_RUN],                  \
                           *b = keys->run[i / HOST_ATTN_RUN];                  \
            a += j % HOST_ATTN_RUN;                                            \
            b += i % HOST_ATTN_RUN;                                            \
            ROWS_##N(SCORE_NEW);                                               \
            for (int32_t d = 0; d < hd; d++, a += step, b += step) {           \
                vec ka = WIDEN(a), kb = WIDEN(b);                              \
                __builtin_prefetch(keys->ahead[d % 2] + d * step, 0, 2);       \
                ROWS_##N(SCORE_ADD);                                           \
            }                                                                  \
            ROWS_##N(SCORE_OUT);                                               \
        }                                                                      \
    }

DEFINE_SCORES_HALF(1)
DEFINE_SCORES_HALF(2)
DEFINE_SCORES_HALF(3)
DEFINE_SCORES_HALF(4)
FOR_MORE(DEFINE_SCORES_HALF)

static void scores_half(int32_t n, const float *const *q,
                        const host_attn_runs *keys, int32_t hd, float *const *s)
{
    static void (*const by_rows[HOST_ATTN_BLOCK])(
        const float *const *, const host_attn_runs *, int32_t,
        float *const *) = {UP_TO_MOST(scores_half_)};
    by_rows[n - 1](q, keys, hd, s);
}

#define DEFINE_MIX_HALF(N)                                                     \
    static void mix_half_##N(const float *const *p,                            \
                             const host_attn_runs *values, int32_t hd,         \
                             int32_t first, int32_t last, float *const *o)     \
    {                                                                          \
        for (int32_t d = 0; d < hd; d += 2 * LANES) {                          \
            ROWS_##N(MIX_LOAD);                                                \
            for (int32_t j = first; j < last; j++) {                           \
                const int32_t at = j % HOST_ATTN_RUN * values->step + d;       \
                const uint16_t *v = values->run[j / HOST_ATTN_RUN] + at;       \
                vec va = WIDEN(v), vb = WIDEN(v + LANES);                      \
                __builtin_prefetch(values->ahead[j / HOST_ATTN_RUN] + at, 0,   \
                                   2);                                         \
                ROWS_##N(MIX_ADD);                                             \
            }                                                                  \
            ROWS_##N(MIX_OUT);                                                 \
        }                                                                      \
    }

DEFINE_MIX_HALF(1)
DEFINE_MIX_HALF(2)
DEFINE_MIX_HALF(3)
DEFINE_MIX_HALF(4)
FOR_MORE(DEFINE_MIX_HALF)

static void mix_half(int32_t n, const float *const *p,
                     const host_attn_runs *values, int32_t hd, int32_t first,
                     int32_t last, float *const *o)
{
    static void (*const by_rows[HOST_ATTN_BLOCK])(
        const float *const *, const host_attn_runs *, int32_t, int32_t, int32_t,
        float *const *) = {UP_TO_MOST(mix_half_)};
    by_rows[n - 1](p, values, hd, first, last, o);
}
#endif

/* 2^x for x <= 0: the nearest integer by adding 1.5 * 2^23, then the Taylor
 * series of 2^f = e^(f ln 2), |f| <= 0.5, whose first left-out term is below
 * 6e-9. Below 2^-126 the result stays there instead of reaching 0. */
static inline vec exp2_vec(vec x)
{
    const vec magic = all(12582912.0f);
    x = pick(x < all(-126.0f), all(-126.0f), x);
    vec t = x + magic;
    vec f = x - (t - magic);
    ivec n = (ivec)t - (ivec)magic;
    vec y = all(1.5252734e-5f);
    y = VFMA(y, f, all(1.5403530e-4f));
    y = VFMA(y, f, all(1.3333558e-3f));
    y = VFMA(y, f, all(9.6181291e-3f));
    y = VFMA(y, f, all(5.5504109e-2f));
    y = VFMA(y, f, all(2.4022651e-1f));
    y = VFMA(y, f, all(6.9314718e-1f));
    y = VFMA(y, f, all(1.0f));
    return y * (vec)((n + 127) << 23);
}

static inline ivec lane_numbers(int32_t from)
{
    ivec n;
    int32_t i[LANES];
    for (int32_t l = 0; l < LANES; l++)
        i[l] = from + l;
    memcpy(&n, i, sizeof n);
    return n;
}

/* `full`, a constant where this is used: every lane has its key, nothing is to
 * be masked. The same numbers come out either way. */
static inline __attribute__((always_inline)) float weigh(float *s,
                                                         int32_t first,
                                                         int32_t last,
                                                         float *max, float *sum,
                                                         const bool full)
{
    enum { N = HOST_ATTN_KEYS / LANES };
    ivec on[N];
    vec top = all(*max);
    for (int i = 0; i < N; i++) {
        vec x = load(s + i * LANES);
        if (!full) {
            ivec n = lane_numbers(i * LANES);
            on[i] = (n >= first) & (n < last);
            x = pick(on[i], x, all(*max));
        }
        top = VMAX(x, top);
    }
    const float new_max = VTOP(top);
    float fall = 0;
    if (*max > -1e38f) {
        fall = 1;
        if (new_max != *max) {
            vec by = exp2_vec(all(*max - new_max));
            memcpy(&fall, &by, sizeof fall);
        }
    }
    for (int i = 0; i < N; i++) {
        vec x = load(s + i * LANES);
        vec p =
            exp2_vec((full ? x : pick(on[i], x, all(new_max))) - all(new_max));
        if (!full)
            p = pick(on[i], p, all(0));
        store(s + i * LANES, p);
        store(sum + i * LANES, load(sum + i * LANES) * all(fall) + p);
    }
    *max = new_max;
    return fall;
}

static float weights(float *s, int32_t first, int32_t last, float *max,
                     float *sum)
{
    if (first == 0 && last == HOST_ATTN_KEYS)
        return weigh(s, first, last, max, sum, true);
    return weigh(s, first, last, max, sum, false);
}

static void scale(float *o, int32_t pad, float by)
{
    for (int32_t d = 0; d < pad; d += LANES)
        store(o + d, load(o + d) * all(by));
}

const folio_host_attn_set SET = {.name = SET_NAME,
                                 .most_rows = MOST_ROWS,
                                 .load_keys = load_keys,
                                 .load_values = load_values,
                                 .scores = scores,
                                 .weights = weights,
                                 .mix = mix,
#ifdef WIDEN
                                 .scores_half = scores_half,
                                 .mix_half = mix_half,
#endif
                                 .scale = scale};
