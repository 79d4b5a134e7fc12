/* ops/host/host_attn_impl.h: body of the vector pieces of attention. The
 * including file defines SET (name of the table), SET_NAME, LANES (floats per
 * vector), VFMA(a, b, c) and HALVES (halves converted at once) with
 * CONVERT(dst, src) for that many. Every number is summed in the same order
 * whatever LANES is. */
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
    for (; i + HALVES <= n; i += HALVES)
        CONVERT(dst + i, h + i);
    for (; i < n; i++)
        dst[i] = folio_f16_to_f32(h[i]);
}

/* Dims 0..hd-1 of token t, where each token's X dims lie together. */
static void load_token(const host_attn_order *o, const void *tile, int32_t t,
                       float *row)
{
    size_t at = (size_t)t * (size_t)o->x, step = (size_t)o->bs * (size_t)o->x;
    for (int32_t d = 0; d < o->hd; d += o->x, at += step)
        convert(o, tile, at, o->x, row + d);
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

static void load_keys(const host_attn_order *o, const void *tile, int32_t t,
                      int32_t n, float *dst)
{
    if (o->y > 1) {
        load_groups(o, tile, t, n, dst, 1, HOST_ATTN_KEYS);
        return;
    }
    if (o->x == 1) {
        for (int32_t d = 0; d < o->hd; d++)
            convert(o, tile, (size_t)d * (size_t)o->bs + (size_t)t, n,
                    dst + d * HOST_ATTN_KEYS);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        float row[HOST_ATTN_DIMS];
        load_token(o, tile, t + i, row);
        for (int32_t d = 0; d < o->hd; d++)
            dst[d * HOST_ATTN_KEYS + i] = row[d];
    }
}

static void load_values(const host_attn_order *o, const void *tile, int32_t t,
                        int32_t n, float *dst, int32_t pad)
{
    if (o->y > 1) {
        load_groups(o, tile, t, n, dst, pad, 1);
        return;
    }
    for (int32_t i = 0; i < n; i++)
        load_token(o, tile, t + i, dst + i * pad);
}

/* Four rows times two vectors of keys or dims at a time: eight sums, enough to
 * hide the latency of a multiply-add. */
static void scores(const float *const q[HOST_ATTN_BLOCK], const float *keys,
                   int32_t hd, float *const s[HOST_ATTN_BLOCK])
{
    const float *q0 = q[0], *q1 = q[1], *q2 = q[2], *q3 = q[3];
    for (int32_t j = 0; j < HOST_ATTN_KEYS; j += 2 * LANES) {
        vec a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0};
        vec b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};
        const float *k = keys + j;
        for (int32_t d = 0; d < hd; d++, k += HOST_ATTN_KEYS) {
            vec ka = load(k), kb = load(k + LANES);
            a0 = VFMA(all(q0[d]), ka, a0);
            b0 = VFMA(all(q0[d]), kb, b0);
            a1 = VFMA(all(q1[d]), ka, a1);
            b1 = VFMA(all(q1[d]), kb, b1);
            a2 = VFMA(all(q2[d]), ka, a2);
            b2 = VFMA(all(q2[d]), kb, b2);
            a3 = VFMA(all(q3[d]), ka, a3);
            b3 = VFMA(all(q3[d]), kb, b3);
        }
        store(s[0] + j, a0);
        store(s[0] + j + LANES, b0);
        store(s[1] + j, a1);
        store(s[1] + j + LANES, b1);
        store(s[2] + j, a2);
        store(s[2] + j + LANES, b2);
        store(s[3] + j, a3);
        store(s[3] + j + LANES, b3);
    }
}

static void mix(const float *const p[HOST_ATTN_BLOCK], const float *values,
                int32_t pad, int32_t first, int32_t last,
                float *const o[HOST_ATTN_BLOCK])
{
    const float *p0 = p[0], *p1 = p[1], *p2 = p[2], *p3 = p[3];
    for (int32_t d = 0; d < pad; d += 2 * LANES) {
        vec a0 = load(o[0] + d), b0 = load(o[0] + d + LANES);
        vec a1 = load(o[1] + d), b1 = load(o[1] + d + LANES);
        vec a2 = load(o[2] + d), b2 = load(o[2] + d + LANES);
        vec a3 = load(o[3] + d), b3 = load(o[3] + d + LANES);
        const float *v = values + first * pad + d;
        for (int32_t j = first; j < last; j++, v += pad) {
            vec va = load(v), vb = load(v + LANES);
            a0 = VFMA(all(p0[j]), va, a0);
            b0 = VFMA(all(p0[j]), vb, b0);
            a1 = VFMA(all(p1[j]), va, a1);
            b1 = VFMA(all(p1[j]), vb, b1);
            a2 = VFMA(all(p2[j]), va, a2);
            b2 = VFMA(all(p2[j]), vb, b2);
            a3 = VFMA(all(p3[j]), va, a3);
            b3 = VFMA(all(p3[j]), vb, b3);
        }
        store(o[0] + d, a0);
        store(o[0] + d + LANES, b0);
        store(o[1] + d, a1);
        store(o[1] + d + LANES, b1);
        store(o[2] + d, a2);
        store(o[2] + d + LANES, b2);
        store(o[3] + d, a3);
        store(o[3] + d + LANES, b3);
    }
}

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

static float weights(float *s, int32_t first, int32_t last, float *max,
                     float *sum)
{
    vec top = all(*max);
    for (int32_t j = 0; j < HOST_ATTN_KEYS; j += LANES) {
        ivec n = lane_numbers(j);
        vec x = load(s + j);
        top = pick((n >= first) & (n < last) & (x > top), x, top);
    }
    float tops[LANES];
    memcpy(tops, &top, sizeof tops);
    float new_max = tops[0];
    for (int32_t l = 1; l < LANES; l++)
        new_max = tops[l] > new_max ? tops[l] : new_max;
    float fall = 0;
    if (*max > -1e38f) {
        vec by = exp2_vec(all(*max - new_max));
        memcpy(&fall, &by, sizeof fall);
    }
    for (int32_t j = 0; j < HOST_ATTN_KEYS; j += LANES) {
        ivec n = lane_numbers(j);
        ivec on = (n >= first) & (n < last);
        vec p = exp2_vec(pick(on, load(s + j), all(new_max)) - all(new_max));
        p = pick(on, p, all(0));
        store(s + j, p);
        store(sum + j, load(sum + j) * all(fall) + p);
    }
    *max = new_max;
    return fall;
}

static void scale(float *o, int32_t pad, float by)
{
    for (int32_t d = 0; d < pad; d += LANES)
        store(o + d, load(o + d) * all(by));
}

const folio_host_attn_set SET = {.name = SET_NAME,
                                 .load_keys = load_keys,
                                 .load_values = load_values,
                                 .scores = scores,
                                 .weights = weights,
                                 .mix = mix,
                                 .scale = scale};
