/* ops/host/host_attn.h: the vector pieces of the host device's attention, one
 * set per instruction set, made from host_attn_impl.h. A set's functions
 * work on tiles of KEYS keys and up to ROWS query rows. */
#ifndef FOLIO_OPS_HOST_ATTN_H
#define FOLIO_OPS_HOST_ATTN_H

#include "ops/ops.h"

enum {
    HOST_ATTN_KEYS = 32,  /* keys of a tile, counted from key 0 */
    HOST_ATTN_ROWS = 32,  /* query rows that share a tile */
    HOST_ATTN_DIMS = 256, /* largest head */
    HOST_ATTN_PAD = 32,   /* row lengths are multiples of it */
    HOST_ATTN_BLOCK = 8,  /* most rows of one call of scores and mix */
    HOST_ATTN_RUN = 16    /* keys of a run of halves */
};

/* Order of a KV tile in memory: element (t, d) at
 * (((d / x) * (bs / y) + t / y) * x + d % x) * y + t % y. */
typedef struct host_attn_order {
    int32_t bs, hd, x, y;
    bool half;
} host_attn_order;

/* A tile's KEYS keys as halves that are read where they lie, which is in two
 * runs: key i, dim d of a run at [d * step + i], its value at [i * step + d].
 * ahead: runs that come next and are asked of memory meanwhile, or the same. */
typedef struct host_attn_runs {
    const uint16_t *run[HOST_ATTN_KEYS / HOST_ATTN_RUN];
    const uint16_t *ahead[HOST_ATTN_KEYS / HOST_ATTN_RUN];
    int32_t step;
} host_attn_runs;

typedef struct folio_host_attn_set {
    const char *name;
    int32_t most_rows; /* of one call of scores and mix, <= BLOCK */
    /* Tokens t..t+n-1 of a block: keys to dst[d * KEYS + i], values to
     * dst[i * pad + d], i from 0. ahead: NULL or a block whose tokens t..t+n-1
     * are asked of memory meanwhile. */
    void (*load_keys)(const host_attn_order *o, const void *tile,
                      const void *ahead, int32_t t, int32_t n, float *dst);
    void (*load_values)(const host_attn_order *o, const void *tile,
                        const void *ahead, int32_t t, int32_t n, float *dst,
                        int32_t pad);
    /* s[r][j] = sum over d, in order, of q[r][d] * keys[d * KEYS + j], for r
     * below n, which is 1..most_rows here as in mix. */
    void (*scores)(int32_t n, const float *const *q, const float *keys,
                   int32_t hd, float *const *s);
    /* Online softmax, base 2, over s[first..last-1]: s becomes the weights, 0
     * elsewhere; *max and sum[KEYS] move on; returns what older results must be
     * multiplied with. */
    float (*weights)(float *s, int32_t first, int32_t last, float *max,
                     float *sum);
    /* o[r][d] += sum over j in first..last-1, in order, of p[r][j] * v[j]. */
    void (*mix)(int32_t n, const float *const *p, const float *values,
                int32_t pad, int32_t first, int32_t last, float *const *o);
    void (*scale)(float *o, int32_t pad, float by);
    /* scores and mix without floats in between, with the same bits; both NULL
     * where converting halves is slow. hd is a multiple of PAD. */
    void (*scores_half)(int32_t n, const float *const *q,
                        const host_attn_runs *keys, int32_t hd,
                        float *const *s);
    void (*mix_half)(int32_t n, const float *const *p,
                     const host_attn_runs *values, int32_t hd, int32_t first,
                     int32_t last, float *const *o);
} folio_host_attn_set;

extern const folio_host_attn_set folio_host_attn_base;
#ifdef FOLIO_HAVE_AVX2
extern const folio_host_attn_set folio_host_attn_avx2;
#endif
#ifdef FOLIO_HAVE_AVX512
extern const folio_host_attn_set folio_host_attn_avx512;
#endif

/* The sets this processor runs, best first; NULL past the last. */
const folio_host_attn_set *folio_host_attn_set_at(int i);

/* The whole op with one set on `threads`; args as folio_op_check wants them,
 * all on the host device, their tables checked. */
void folio_host_attn_run(const folio_host_attn_set *set,
                         folio_thread_pool *threads, const folio_attn_args *a);

#endif
