/* folio/attention.h: paged append and attention on a device or in C (tier 1),
 * for engines that have their own forward pass. Works on folio's devices and,
 * through folio_device_wrap, on a caller's own context, queue and buffers.
 *
 * Per step: folio_attn_plan once; then per layer folio_attn_append and
 * folio_attn_run, all on one queue. Arguments are always checked on the host
 * before anything is enqueued: on failure nothing is written. A handle belongs
 * to one thread at a time; several handles may share a device.
 *
 * Source: PagedAttention (Kwon et al., "Efficient Memory Management for Large
 * Language Model Serving with PagedAttention", SOSP 2023); the softmax in parts
 * that are added by log-sum-exp (Milakov and Gimelshein, "Online normalizer
 * calculation for softmax", 2018; Dao et al., "Flash-Decoding", 2023). */
#ifndef FOLIO_ATTENTION_H
#define FOLIO_ATTENTION_H

#include <folio/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum folio_kv_type {
    FOLIO_KV_F32 = 0,
    FOLIO_KV_F16 = 1,
    FOLIO_KV_I8 = 2 /* with scales in a plane of their own */
} folio_kv_type;

typedef struct folio_attn folio_attn;

/* One attention shape. Letters as usual: H query heads, KVH KV heads, HD head
 * size, BS tokens per block, N blocks in the pool. */
typedef struct folio_attn_params {
    size_t size;
    int32_t heads;         /* H, >= 1, a multiple of kv_heads */
    int32_t kv_heads;      /* KVH */
    int32_t head_dim;      /* HD, 4..256 */
    int32_t block_size;    /* BS >= 1; default 16 */
    int32_t n_blocks;      /* N >= 1, N * BS <= 2^31 - 1 */
    int32_t max_tok;       /* most tokens in a step, >= 1; default 512. Cut to
                              N * BS and to max_seqs * max_kv */
    int32_t max_seqs;      /* most sequences in a step, >= 1; default 1 */
    int32_t max_kv;        /* longest sequence, 1 .. N * BS */
    folio_kv_type kv_type; /* default F16 */
    /* KV order inside a tile of BS * HD elements: element (t, d) at
     * (((d / X) * (BS / Y) + t / Y) * X + d % X) * Y + t % Y. Defaults 0: the
     * device's best. An X that does not divide HD falls to the largest power
     * of two that does and is not above it, a Y that does not divide BS to 1:
     * ask folio_attn_get_layout. */
    int32_t xk, yk, xv, yv;
    int32_t window; /* 0 = none; key j visible to position p iff j > p - W */
    float scale;    /* default 0 = 1 / sqrt(HD) */
    float softcap;  /* 0 = none; applied after scale, before the mask */
    int32_t deterministic; /* -1 default: on for host and CPU drivers */
} folio_attn_params;

/* Sets size and the defaults named above; heads, kv_heads, head_dim, n_blocks
 * and max_kv are the caller's to set. */
FOLIO_API void folio_attn_params_default(folio_attn_params *p);

/* Chooses variants and allocates what a step needs. [in] dev is retained, p is
 * copied. [out] out the handle, untouched on failure. Returns OK; INVAL (the
 * message names the field); UNSUPPORTED (by name: 8-bit KV, head sizes outside
 * 4..256); TOO_LARGE (max_kv above the pool, lists or scratch above what the
 * device holds); NOMEM; BUILD; DEVICE. */
FOLIO_API FOLIO_NODISCARD folio_status folio_attn_open(
    folio_device *dev, const folio_attn_params *p, folio_attn **out);
/* NULL and *NULL allowed; sets *a to NULL. Wait first for what was enqueued. */
FOLIO_API void folio_attn_close(folio_attn **a);

/* The order really used, and the bytes one block of K (or V) takes; a pool
 * buffer of one layer holds n_blocks of them from its byte offset on: the tile
 * of block b and KV head h begins at element (b * KVH + h) * BS * HD. Any
 * pointer may be NULL. */
FOLIO_API void folio_attn_get_layout(const folio_attn *a, int32_t *xk,
                                     int32_t *yk, int32_t *xv, int32_t *yv,
                                     size_t *block_bytes);

/* The batch of one step, all host arrays, read before return. */
typedef struct folio_attn_batch {
    int32_t n_seq;
    const int32_t *q_start;     /* [S + 1], q_start[0] = 0, ascending */
    const int32_t *kv_len;      /* [S], this step's tokens included */
    const int32_t *table_start; /* [S + 1] into tables */
    const int32_t *tables;      /* block ids: >= ceil(kv_len / BS) each; what
                                   lies behind is never read */
    const int32_t *slots;       /* [T] where this step's K and V go; must be the
                                   tables' own slots of these positions */
} folio_attn_batch;

/* Checks every length, table entry and slot, plans the work and uploads it in
 * one write. A table holds no block twice, and no block is written by two
 * sequences of a step; blocks that are only read may be shared. A sequence
 * without new tokens is allowed and does nothing. Returns OK; INVAL or RANGE
 * naming the first bad entry, TOO_LARGE above the limits given at open (after
 * these the last good plan stays); DEVICE (no plan is left). */
FOLIO_API FOLIO_NODISCARD folio_status
folio_attn_plan(folio_attn *a, folio_queue *q, const folio_attn_batch *batch);

/* Writes k, v [T, KVH, HD] f32 (dense, rotated already) into the pools at the
 * planned slots, rounded to nearest even where the pool is f16; touches nothing
 * else. Before folio_attn_run of the same layer. The four may lie in one buffer
 * but share no byte with a pool: INVAL naming both. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_attn_append(folio_attn *a, folio_queue *q, folio_view k, folio_view v,
                  folio_view k_pool, folio_view v_pool);

/* out [T, H, HD] f32 = attention of q_rows [T, H, HD] f32 over the pools: the
 * query of position p sees keys 0..p of its sequence, or the last `window` of
 * them. out may overlap neither q_rows nor a pool, nor the pools each other.
 * Both only enqueue. Returns OK; INVAL without a plan, for absent views or
 * objects of another device; RANGE where a buffer is too small; DEVICE. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_attn_run(folio_attn *a, folio_queue *q, folio_view q_rows,
               folio_view k_pool, folio_view v_pool, folio_view out);

/* Name of the variant in use, for logs. Lives as long as `a`. */
FOLIO_API const char *folio_attn_variant(const folio_attn *a);

#ifdef __cplusplus
}
#endif
#endif
