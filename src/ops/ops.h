/* ops/ops.h: the ops. Argument structs (complete, whatever today's variants
 * support), the op table and how a variant is chosen, once, at open. An op
 * keeps no state between runs and allocates nothing while running.
 *
 * Letters: T tokens in this step, S sequences in this step, R rows whose logits
 * are computed, D model width, H query heads, KVH KV heads, G = H / KVH query
 * heads per KV head, HD head size, F feed-forward width, V vocabulary, L
 * layers, BS tokens per block, N blocks in the pool. A slot is block * BS +
 * offset. X, Y: head dims and tokens kept together in a KV tile.
 * All activations are f32, row-major, "stride" = elements between rows. */
#ifndef FOLIO_OPS_OPS_H
#define FOLIO_OPS_OPS_H

#include "base/base.h"
#include "device/dev.h"
#include "format/tensor_type.h"

#include <folio/attention.h>

/* ---- weights --------------------------------------------------------------
 */

/* How a matrix is stored on the device. RAW is the file's own order: rows of
 * blocks, each row folio_type_row_bytes long, rows back to back. The others
 * are described in pack.h. */
typedef enum folio_packing {
    FOLIO_PACK_RAW = 0,
    FOLIO_PACK_RG16,  /* groups of 16 rows, interleaved */
    FOLIO_PACK_TILE16 /* F16 tiles of 128 x 64, swizzled */
} folio_packing;

typedef struct folio_weight_view {
    folio_view view; /* of row first_row */
    int64_t first_row, rows;
} folio_weight_view;

/* A matrix [rows, cols]; y = W x has `rows` outputs. Split into several views
 * where one buffer may not be that large; views are in row order, whole, and
 * begin at a group of the packing. */
typedef struct folio_weight {
    folio_type type;
    folio_packing packing;
    int64_t rows, cols;
    const folio_weight_view *views;
    int32_t n_views;
} folio_weight;

/* ---- KV storage -----------------------------------------------------------
 */

#define FOLIO_KV_MAX_BUFS 4

/* One layer's K or V: block b lies in buf[b >> seg_shift], at byte `offset` +
 * tile ((b & ((1 << seg_shift) - 1)) * KVH + kv head). One buffer: seg_shift
 * 31. All buffers use the same offset. */
typedef struct folio_kv_plane {
    folio_buf *buf[FOLIO_KV_MAX_BUFS];
    int32_t n_buf;
    int32_t seg_shift;
    size_t offset;
} folio_kv_plane;

typedef struct folio_kv_layout {
    int32_t xk, yk, xv, yv;
} folio_kv_layout;

/* Where KV lives: fields shared by append, attention and block copies. */
typedef struct folio_kv_ref {
    folio_kv_type type;
    folio_kv_layout layout;
    int32_t n_blocks, block_size, kv_heads, head_dim;
    folio_kv_plane k, v;
    folio_kv_plane k_scale, v_scale; /* 8-bit KV only; n_buf 0 = absent */
} folio_kv_ref;

/* ---- argument structs ------------------------------------------------------
 */

/* out[t] = scale * row ids[t] of w, dequantised. */
typedef struct folio_embed_args {
    folio_view ids; /* [T] i32, in [0, w->rows) */
    const folio_weight *w;
    folio_view out; /* [T, cols] f32, dense */
    float scale;
    int32_t n_tok;
} folio_embed_args;

/* out[r] = x[idx[r]]: the rows that need logits. */
typedef struct folio_gather_rows_args {
    folio_view x;   /* [*, dim] f32, dense */
    folio_view idx; /* [R] i32 */
    folio_view out; /* [R, dim] f32, dense; may not alias x */
    int32_t n_rows, dim;
} folio_gather_rows_args;

/* h = x (+ res; then res = h); out = w * h / sqrt(mean(h^2) + eps). */
typedef struct folio_rmsnorm_args {
    folio_view x;   /* [rows, dim] f32 */
    folio_view res; /* optional [rows, dim] f32, in and out, stride dim */
    folio_view w;   /* [dim] f32 */
    folio_view out; /* [rows, dim] f32; may alias x, not res */
    int32_t n_rows, dim;
    int32_t x_stride, out_stride;
    float eps;
} folio_rmsnorm_args;

/* y = x W^T (+ bias) (+ y if accumulate). */
typedef struct folio_linear_args {
    folio_view x; /* [T, w->cols] f32 */
    const folio_weight *w;
    folio_view bias; /* optional [w->rows] f32 */
    folio_view y;    /* [T, w->rows] f32; may not alias x */
    int32_t n_tok;
    int32_t x_stride, y_stride;
    int32_t accumulate; /* 0 or 1 */
    folio_view scratch; /* folio_op_scratch_bytes, shared by all ops */
} folio_linear_args;

/* Rotates q and k by position, writes k and v into the pool at slot[t].
 * Rotary pairs (2i, 2i+1) if interleaved, else (i, i + rot_dim / 2); dims from
 * rot_dim on pass unchanged; rot_dim 0 rotates nothing. table[p][i] = {cos,
 * sin} of position p and pair i, already scaled by the attention factor. k is
 * not written back. A token whose slot is -1 is padding: nothing is appended.
 */
typedef struct folio_rope_append_args {
    folio_view q; /* optional [T, H, HD] f32, in and out */
    folio_view k; /* [T, KVH, HD] f32 */
    folio_view v; /* [T, KVH, HD] f32 */
    int32_t q_stride, k_stride, v_stride; /* elements between tokens */
    folio_view pos;   /* [T] i32, in [0, n_pos); optional if rot_dim is 0 */
    folio_view slot;  /* [T] i32, in [-1, N * BS) */
    folio_view table; /* [n_pos, rot_dim / 2, 2] f32; as pos */
    int32_t n_pos, rot_dim, interleaved;
    int32_t n_tok, heads;
    folio_kv_ref kv;
} folio_rope_append_args;

/* The step's attention work on the device, made by attn_plan.h: i32 arrays. At
 * open the counts are bounds: n_seq the most sequences, n_partials the partial
 * slots that scratch shall hold (0: the variant's choice), max_kv the longest
 * sequence (0: N * BS). */
typedef struct folio_attn_work {
    folio_view q_start;     /* [S + 1] first token of each sequence */
    folio_view kv_len;      /* [S] keys of each sequence, this step included */
    folio_view table_start; /* [S + 1] into tables */
    folio_view tables;      /* block ids, ceil(kv_len / BS) per sequence */
    folio_view entries;     /* [n_entries, 8], see attn_plan.h */
    folio_view merges;      /* [n_merges, 4] */
    folio_view tiles;       /* [n_tiles, 4] */
    int32_t n_seq, n_entries, n_merges, n_tiles;
    int32_t n_partials; /* partial slots used, <= plan bound */
    int32_t max_kv;     /* open only */
} folio_attn_work;

/* Query t of sequence s has position p = kv_len[s] - (q_start[s+1] - t) and
 * sees key j iff j <= p and (window == 0 or j > p - window). Logit =
 * scale * q.k, then cap * tanh(. / cap) if softcap > 0; sinks add
 * exp(sink[h]) to the denominator once. A query that sees no key gives 0. */
typedef struct folio_attn_args {
    folio_view q;   /* [T, H, HD] f32, rotated */
    folio_view out; /* [T, H, HD] f32; may not alias q */
    int32_t q_stride, out_stride;
    int32_t n_tok, heads;
    int32_t window; /* 0 = none */
    float scale, softcap;
    folio_view sinks; /* optional [H] f32 */
    folio_kv_ref kv;
    folio_attn_work work;
    folio_view scratch; /* partials: folio_op_scratch_bytes */
} folio_attn_args;

typedef enum folio_act { FOLIO_ACT_SILU = 0, FOLIO_ACT_GELU_TANH } folio_act;

/* out = act(gate) * up. */
typedef struct folio_act_mul_args {
    folio_view gate, up; /* [T, dim] f32 */
    folio_view out;      /* [T, dim] f32; may alias gate or up exactly */
    int32_t n_tok, dim;
    int32_t gate_stride, up_stride, out_stride;
    folio_act act;
} folio_act_mul_args;

/* y += x, n floats. */
typedef struct folio_add_args {
    folio_view x, y;
    int64_t n;
} folio_add_args;

/* The k largest of each row, largest first, ties by lower index; k = 1 is
 * argmax. A NaN is never selected; n_nan counts the row's NaNs. Rows with fewer
 * than k numbers are filled with id -1 and value 0. */
typedef struct folio_topk_args {
    folio_view x;               /* [R, V] f32, dense */
    folio_view ids;             /* [R, k] i32 */
    folio_view values;          /* [R, k] f32 */
    folio_view n_nan;           /* [R] i32 */
    int32_t n_rows, n_vocab, k; /* k in 1..64 */
    folio_view scratch;
} folio_topk_args;

/* Draws one id per row, exactly as the host's sampler does for the same
 * numbers (sample/sampler.c): bias and bans, penalties, then greedy or
 * temperature, top-k, top-p, min-p and one draw. What needs typical-p, DRY, a
 * window of penalties, or the whole row, is skipped row by row and drawn there
 * instead. sample_row.h packs and unpacks the words of a row. */
typedef struct folio_sample_args {
    folio_view logits; /* [R, V] f32, left as they are */
    folio_view rows;   /* [R, FOLIO_SAMPLE_IN] i32 */
    /* Optional [n_edits, 2] i32: id in [0, V) and the bits of an f32 that is
     * added to its logit, -INFINITY to ban it. Pairs of one id of one row are
     * adjacent and added in their order; rows may share pairs. */
    folio_view edits;
    /* Optional [n_slots, V] i32, in and out: how often each id occurred in the
     * answer so far, plus SAMPLE_SEEN if also, or only, in the prompt. The id
     * drawn is counted here. No two rows name the same slot. */
    folio_view counts;
    folio_view ids; /* optional [R] i32: the id; 0, an id too, where none was */
    folio_view out; /* [R, FOLIO_SAMPLE_OUT] i32 */
    int32_t n_rows, n_vocab;  /* n_vocab <= 2^20 */
    int32_t stride;           /* elements between rows of logits, >= n_vocab */
    int32_t n_edits, n_slots; /* at open: the most there may be */
    folio_view scratch;
} folio_sample_args;

/* Copies whole blocks src -> dst of K and V (copy-on-write); pairs are
 * disjoint: no dst is a src of the same call. */
typedef struct folio_copy_blocks_args {
    folio_view pairs; /* [n_pairs, 2] i32 */
    int32_t n_pairs;
    folio_kv_ref kv;
} folio_copy_blocks_args;

/* ---- fused ops --------------------------------------------------------------
 * Ops of one launch each where a variant has a kernel for them. What they
 * compute is the composition of the ops above, in the order of the text. */

/* How each of them begins: h[t] = norm * x[t] / sqrt(mean(x[t]^2) + eps). */
typedef struct folio_norm_in {
    folio_view x;    /* [T, dim] f32 */
    folio_view norm; /* [dim] f32 */
    int32_t dim, x_stride;
    float eps;
} folio_norm_in;

/* One product: y = h W^T (+ bias). */
typedef struct folio_product {
    const folio_weight *w; /* [rows, dim] */
    folio_view bias;       /* optional [rows] f32 */
    folio_view y;          /* [T, rows] f32; may not alias x */
    int32_t y_stride;
} folio_product;

#define FOLIO_MAX_PRODUCTS 3

/* rmsnorm, then up to three products of it. Where `gather` is 1, token t is row
 * idx[t] of x (gather_rows before it). */
typedef struct folio_norm_linear_args {
    folio_norm_in in;
    folio_view idx; /* [T] i32, where gather is 1 */
    int32_t gather; /* 0 or 1 */
    folio_product part[FOLIO_MAX_PRODUCTS];
    int32_t n_parts; /* 1 to 3 */
    int32_t n_tok;
    folio_view scratch; /* folio_op_scratch_bytes, shared by all ops */
} folio_norm_linear_args;

/* rmsnorm; the products q, k and v; rmsnorm of each head of q and of k where
 * head_norm is 1; rope_append. */
typedef struct folio_qkv_args {
    folio_norm_in in;
    const folio_weight *wq, *wk, *wv; /* [H * HD, dim], 2 x [KVH * HD, dim] */
    folio_view bq, bk, bv;            /* optional, f32 */
    folio_view q_norm, k_norm; /* [HD] f32, where head_norm is 1; in.eps */
    int32_t head_norm;         /* 0 or 1; 1 wants q dense */
    folio_view q;              /* [T, H, HD] f32, rotated; may not alias x */
    int32_t q_stride;
    folio_view pos, slot, table; /* as those of rope_append */
    int32_t n_pos, rot_dim, interleaved;
    int32_t n_tok, heads;
    folio_kv_ref kv;
    folio_view scratch; /* folio_op_scratch_bytes, shared by all ops */
} folio_qkv_args;

/* rmsnorm, the products gate and up, act_mul of them. */
typedef struct folio_gate_up_args {
    folio_norm_in in;
    const folio_weight *gate, *up; /* [F, dim] */
    folio_view out;                /* [T, F] f32; may not alias x */
    int32_t n_tok, out_stride;
    folio_act act;
    folio_view scratch; /* folio_op_scratch_bytes, shared by all ops */
} folio_gate_up_args;

/* One layer of a decode step. */
typedef struct folio_step_layer {
    const folio_weight *wq, *wk, *wv, *wo, *gate, *up, *down;
    folio_view attn_norm, ffn_norm; /* [D] f32 */
    folio_kv_ref kv;                /* shapes as those of all layers */
    int32_t window;                 /* 0 = none */
    int32_t work;                   /* its window's entry of work[] */
} folio_step_layer;

#define FOLIO_STEP_WORKS 4

/* All layers of a step in which every sequence has one token, its newest: for
 * each layer qkv (no biases, no norms of heads, the whole head turned), attn
 * without sinks, x += wo of it, gate_up, x += down of it. Token t is sequence
 * t: q_start is 0, 1, ... */
typedef struct folio_step_args {
    folio_view x; /* [T, D] f32, in and out */
    const folio_step_layer *layers;
    int32_t n_layers, dim, ff, heads;
    float eps;
    folio_view pos, slot, table; /* as those of rope_append */
    int32_t n_pos, interleaved;  /* rot_dim is head_dim */
    int32_t n_tok;
    float scale, softcap;
    folio_act act;
    folio_attn_work work[FOLIO_STEP_WORKS]; /* one for each window */
    int32_t n_works;
    folio_view scratch; /* folio_op_scratch_bytes, shared by all ops */
} folio_step_args;

/* ---- table and choice ------------------------------------------------------
 */

typedef enum folio_op_id {
    FOLIO_OP_EMBED = 0,
    FOLIO_OP_GATHER_ROWS,
    FOLIO_OP_RMSNORM,
    FOLIO_OP_LINEAR,
    FOLIO_OP_ROPE_APPEND,
    FOLIO_OP_ATTN,
    FOLIO_OP_ACT_MUL,
    FOLIO_OP_ADD,
    FOLIO_OP_TOPK,
    FOLIO_OP_COPY_BLOCKS,
    FOLIO_OP_SAMPLE,
    FOLIO_OP_NORM_LINEAR,
    FOLIO_OP_QKV,
    FOLIO_OP_GATE_UP,
    FOLIO_OP_STEP,
    FOLIO_OP_COUNT
} folio_op_id;

const char *folio_op_name(folio_op_id id); /* "linear" */

typedef struct folio_op_params {
    bool deterministic; /* only batch_invariant variants, one per op for every
                           n_tok */
    bool exact;         /* no reduced-precision arithmetic */
    bool many;          /* only variants marked FOLIO_VAR_MANY */
    /* For tests: the self-test of this variant sees one wrong number. */
    const char *break_variant;
    /* For checks: variants marked FOLIO_VAR_EMULATED run in their portable form
     * where the device lacks what they need. A runner's only in a test. */
    bool emulate;
    /* "NAME=number,...": a variant's own settings in place of its choice, where
     * it knows the name; NULL = none. For measurements. */
    const char *tune;
} folio_op_params;

typedef struct folio_op folio_op;
typedef struct folio_variant folio_variant;

enum {
    FOLIO_VAR_BATCH_INVARIANT = 1, /* a row's bits do not depend on its batch */
    FOLIO_VAR_UNORDERED = 2,       /* float sums in no fixed order */
    FOLIO_VAR_INEXACT = 4,         /* 8- or 16-bit arithmetic: not for exact */
    FOLIO_VAR_FLOOR = 8,           /* needs nothing, fits what ref accepts */
    FOLIO_VAR_EMULATED = 16,       /* has a portable form, for checks alone */
    FOLIO_VAR_Q8 = 32,             /* INEXACT by activations of 8 bits */
    FOLIO_VAR_MANY = 64            /* a fused op that pays for many tokens */
};

/* What a variant does; `args` is the op's argument struct. In fits and open
 * n_tok (n_rows) is the most the op will be run with. */
typedef struct folio_variant_fns {
    /* NULL reason on yes; else a static sentence why not. Asked without
     * buffers: shapes and types only. A NULL function fits everything. */
    const char *(*fits)(const folio_device *dev, const folio_op_params *prm,
                        const void *args);
    /* Build kernels, decide geometry, fill op->scratch_bytes. NULL
     * decides nothing (most ops of the host device). */
    folio_status (*open)(folio_op *op, const void *args);
    folio_status (*run)(folio_op *op, folio_queue *q, const void *args);
} folio_variant_fns;

typedef enum folio_where { FOLIO_ON_HOST, FOLIO_ON_CL } folio_where;

/* One row of kernels.def. */
struct folio_variant {
    folio_op_id op;
    const char *name;
    folio_where where;
    const char *fragments; /* "" on the host */
    uint64_t needs;        /* FOLIO_CAP_* */
    uint32_t flags;        /* FOLIO_VAR_* */
    const folio_variant_fns *fns;
};

/* All rows, best first per op and place; *n = how many. */
const folio_variant *folio_variants(size_t *n);

#define FOLIO_OP_MAX_KERNELS 8
/* The most ops that a fused one is composed of: norm, 3 products, 2 norms of
 * heads, rope_append. */
#define FOLIO_OP_MAX_PARTS 8

#define FOLIO_OP_REASON 160

/* Visible to the variants only. */
struct folio_op {
    const folio_variant *var;
    folio_device *dev;
    folio_op_params prm;
    int64_t max_count; /* n_tok, n_rows, n_pairs or n at open */
    folio_kernel *kernel[FOLIO_OP_MAX_KERNELS];
    /* Fused ops without a kernel of their own: the ops they are made of. */
    struct folio_op *part[FOLIO_OP_MAX_PARTS];
    int32_t geo[24]; /* the variant's own geometry */
    /* Zeros that each run leaves as zeros, or what the variant wrote once and
     * counters that a run leaves as it found them; may be NULL. */
    folio_buf *own;
    size_t scratch_bytes;         /* what args->scratch must hold */
    char reason[FOLIO_OP_REASON]; /* why the rows above were not taken */
};

/* Takes the first row of kernels.def that is on this device's side, not
 * disabled, allowed by prm, whose needs the device has, which fits, builds and
 * passes its self-test. UNSUPPORTED names what the reference does not accept.
 * The args are checked by folio_op_check first, but views may be absent still
 * (a zeroed view, a weight without views, a plane without buffers): open plans
 * with shapes, only run needs memory. */
folio_status folio_op_open(folio_device *dev, folio_op_id id,
                           const folio_op_params *prm, const void *args,
                           folio_op **out) FOLIO_NODISCARD;
/* The same without the op's floor, for a caller who can do without the op:
 * where no row above it can run, *out is NULL and the status OK. `reason` says
 * why rows were not taken. */
folio_status folio_op_open_better(folio_device *dev, folio_op_id id,
                                  const folio_op_params *prm, const void *args,
                                  folio_op **out,
                                  char reason[FOLIO_OP_REASON]) FOLIO_NODISCARD;
/* The same for one variant by name (checks, self-test); no self-test runs. */
folio_status folio_op_open_variant(folio_device *dev, const char *name,
                                   const folio_op_params *prm, const void *args,
                                   folio_op **out) FOLIO_NODISCARD;
void folio_op_close(folio_op **op);
/* Checks args with folio_op_check, then enqueues. Counts may be smaller than at
 * open (larger ones are INVAL), other static fields must be the same. Zero rows
 * are OK and do nothing. */
folio_status folio_op_run(folio_op *op, folio_queue *q,
                          const void *args) FOLIO_NODISCARD;
size_t folio_op_scratch_bytes(const folio_op *op);
const char *folio_op_variant_name(const folio_op *op);
const char *folio_op_reason(const folio_op *op);
/* Whether it computes with 8 or 16 bits, by itself or in one of the ops that it
 * is made of: what its results may differ by. */
bool folio_op_is_inexact(const folio_op *op);
/* FOLIO_VAR_* of its variant, and INEXACT and Q8 of the ops it is made of. */
uint32_t folio_op_flags(const folio_op *op);

/* Checks shapes, strides, types, buffer extents and alignment of args on the
 * host: INVAL, RANGE or UNSUPPORTED with a message that names the field and
 * both sides. Same rules for every device and for the reference. */
folio_status folio_op_check(const folio_device *dev, folio_op_id id,
                            const void *args) FOLIO_NODISCARD;

/* Up to so many tokens are better served by products that read a weight once
 * and multiply in floats or bytes (gemv) than by the device's matrix units. 0:
 * none are (FOLIO_TUNE's many:FROM=1). */
int32_t folio_few_tok(const folio_device *dev);
/* How many launches a step takes where nobody says: 0 one for each op, 1 few a
 * layer, 2 one for all layers, by what the device has. */
int32_t folio_fused_for(const folio_device *dev);
/* The least tokens for each kind of matrix unit. */
#define FOLIO_MMA_MIN_TOKS   9
#define FOLIO_WGMMA_MIN_TOKS 4

/* ---- shared pieces ---------------------------------------------------------
 */

/* Bytes of one KV element: 4, 2 or 1. */
size_t folio_kv_type_bytes(folio_kv_type t);
/* Bytes of one block of K or of V of one layer. */
size_t folio_kv_block_bytes(const folio_kv_ref *kv);
/* The layout used for HD and BS when `want` is asked for: X falls to the
 * largest power of two that divides HD and is <= X, Y to 1. */
folio_kv_layout folio_kv_layout_fit(folio_kv_layout want, int32_t head_dim,
                                    int32_t block_size);

/* The KV order this device's attention likes best, fitted to HD and BS. */
folio_kv_layout folio_kv_layout_best(const folio_device *dev, int32_t head_dim,
                                     int32_t block_size);

/* Dequantises `n` whole blocks of `type` exactly. The definition of each
 * format; used by every reference. */
void folio_dequant(folio_type type, const void *blocks, int64_t n_values,
                   float *out);
/* True for the types folio_dequant and linear know. */
bool folio_dequant_knows(folio_type type);
/* The blocks of columns [col, col + n) of row `row` on the host device, in the
 * file's form: where they are stored (RAW), else put together in `room`, which
 * takes folio_type_row_bytes(n) bytes. col and n are whole blocks. */
const uint8_t *folio_weight_blocks_host(const folio_weight *w, int64_t row,
                                        int64_t col, int64_t n, uint8_t *room);
/* Row `row` of a weight on the host device, whatever its packing. */
void folio_weight_row(const folio_weight *w, int64_t row, float *out);

#endif
