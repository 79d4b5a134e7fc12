/* folio/model.h: model files, weights on a device, and the forward pass over a
 * paged KV cache (tier 2). The caller decides which blocks hold what (see
 * folio/kv.h); a runner computes. */
#ifndef FOLIO_MODEL_H
#define FOLIO_MODEL_H

#include <folio/attention.h>
#include <folio/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- files ---------------------------------------------------------------
 */

/* A model file as a read-only directory. Immutable after open, any thread. */
typedef struct folio_model_file folio_model_file;

/* Opens a GGUF file (the first shard of a split one) without touching a device.
 * path [in] file name, opaque bytes
 * log  [in] NULL allowed; copied
 * out  [out] the caller's, closed with folio_model_file_close; untouched on
 *            failure
 * Returns OK; INVAL for a NULL; IO; FORMAT or UNSUPPORTED with the true cause
 * in the log; NOMEM. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status folio_model_file_open(
    const char *path, const folio_log *log, folio_model_file **out);
/* Unmaps the file and sets *f to NULL: names and texts that it gave are gone.
 * NULL and *NULL allowed. No other call may be using it. */
FOLIO_API void folio_model_file_close(folio_model_file **f);

/* Entries of metadata; 0 for NULL. */
FOLIO_API size_t folio_model_file_n_meta(const folio_model_file *f);

typedef struct folio_model_meta {
    const char *key;  /* owned by the file */
    const char *type; /* "u32", "string", "array of f32", ... */
    uint64_t n;       /* elements */
} folio_model_meta;

/* Entry i of the metadata, in the file's order.
 * out [out] strings live as long as the file
 * Returns OK; RANGE (not logged): i is not below n_meta; INVAL for a NULL. */
FOLIO_API FOLIO_NODISCARD folio_status folio_model_file_meta(
    const folio_model_file *f, size_t i, folio_model_meta *out);
/* Element j of entry i as text: numbers in full, strings as their bytes.
 * buf [out] [cap] as much as fits, without a terminator; may be NULL where cap
 *           is 0
 * n   [out] the full length in bytes, which may exceed cap
 * Returns OK; RANGE (not logged): i or j outside; INVAL for a NULL. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_model_file_meta_text(const folio_model_file *f, size_t i, uint64_t j,
                           char *buf, size_t cap, size_t *n);

/* Tensors of all shards together; 0 for NULL. */
FOLIO_API size_t folio_model_file_n_tensors(const folio_model_file *f);

typedef struct folio_model_tensor {
    const char *name; /* owned by the file */
    const char *type; /* "Q4_1", ... */
    uint32_t n_dims;
    uint64_t dims[4]; /* dims[0] is the row length; 1 beyond n_dims */
    uint64_t bytes;   /* as stored */
} folio_model_tensor;

/* Tensor i, in the file's order.
 * out [out] strings live as long as the file
 * Returns OK; RANGE (not logged): i is not below n_tensors; INVAL for a NULL.
 */
FOLIO_API FOLIO_NODISCARD folio_status folio_model_file_tensor(
    const folio_model_file *f, size_t i, folio_model_tensor *out);
/* One row of the tensor called `name`, dequantised exactly.
 * row [in] 0 .. dims[1] * dims[2] * dims[3] - 1
 * out [out] [dims[0]] floats; cap [in] its room
 * Returns OK; NOT_FOUND; RANGE (row, or cap too small) with both numbers;
 * UNSUPPORTED for a type that is not numbers; INVAL for a NULL. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_model_file_row(const folio_model_file *f, const char *name, uint64_t row,
                     float *out, size_t cap);

/* ---- models --------------------------------------------------------------
 */

/* Weights on a device. Immutable, reference-counted by its runners, any
 * thread. */
typedef struct folio_model folio_model;

/* Called while loading; anything but 0 cancels. Same thread as the open. */
typedef int (*folio_progress_fn)(void *user, uint64_t done, uint64_t total);

typedef struct folio_model_params {
    size_t size;
    folio_progress_fn progress; /* NULL = none */
    void *progress_user;
    /* Hints for the packing of weights; a runner that exceeds them works and
     * may be slower. Defaults 8 and 512. */
    int32_t max_seqs, max_tok;
    int32_t exact; /* default 0; 1: no reduced-precision arithmetic */
    folio_log log; /* default: the device's */
} folio_model_params;

/* Fills *p with the defaults above.
 * p [out] never NULL. Any thread. */
FOLIO_API void folio_model_params_default(folio_model_params *p);

/* Loads a file onto a device. On the host device the file stays mapped and is
 * read in place.
 * dev  [in] kept alive by the model
 * path [in] file name, opaque bytes; the first shard of a split model
 * p    [in] copied; NULL: the defaults
 * out  [out] one reference, dropped with folio_model_close; untouched on
 *            failure
 *
 * Returns OK; INVAL for a NULL or a bad field (named); the statuses of
 * folio_model_file_open; UNSUPPORTED for an architecture, a tensor type or a
 * RoPE scaling this build does not know (named); FORMAT for missing or
 * wrong-shaped tensors (named, both shapes); TOO_LARGE, NOMEM, DEVICE;
 * CANCELED by the callback. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_model_open(folio_device *dev, const char *path,
                 const folio_model_params *p, folio_model **out);
/* Drops the caller's reference and sets *m to NULL; runners and engines keep
 * their model. NULL and *NULL allowed. Any thread. */
FOLIO_API void folio_model_close(folio_model **m);

typedef struct folio_model_info {
    size_t size;
    char arch[64];
    char name[128]; /* general.name, may be empty */
    int32_t n_vocab, dim, n_layers, heads, kv_heads, head_dim, ff_dim;
    int32_t ctx_train; /* positions the model was trained for */
    int32_t window;    /* largest window in use, 0 = none */
    uint64_t n_params; /* shared storage counted once */
    uint64_t weight_bytes;
    /* What a token costs, from shapes alone. Bytes as the file stores them,
     * which a packing for the device may differ from a little. */
    uint64_t layer_params; /* in matrices that each token passes, head apart */
    uint64_t head_params;  /* of the head */
    uint64_t step_bytes;   /* weights read by a step that yields logits: all
                              but an embedding that is not the head too */
} folio_model_info;

/* What the model is.
 * info [in,out] `size` set by the caller, so much of it is written; NULL:
 *               nothing happens
 * Never fails; m NULL: all but size is zero. Any thread. */
FOLIO_API void folio_model_get_info(const folio_model *m,
                                    folio_model_info *info);

/* ---- shapes ---------------------------------------------------------------
 */

/* A model of random weights in the shape of a known one, for measuring without
 * a file: matrices normal with deviation 0.02, norms about 1, from a counter
 * and the seed alone, so that the same shape is the same model everywhere. It
 * has a tokenizer of bytes and made-up pieces, because loaders want one. */
typedef struct folio_model_shape {
    size_t size;      /* sizeof(folio_model_shape) */
    const char *name; /* general.name of a file */
    const char *arch; /* "llama" or "qwen3" (with norms on q and k) */
    const char *type; /* of every matrix, embedding and head included: "f16",
                         "q8_0", "q4_0"; default "f16" */
    /* Numbers, all at least 1: dim, ff_dim and heads * head_dim multiples of
     * 32 for quantised types; heads a multiple of kv_heads; head_dim even, 4
     * to 1024; n_vocab at least 258. */
    int32_t n_vocab, dim, n_layers, heads, kv_heads, head_dim, ff_dim;
    int32_t ctx_train;
    int32_t tied; /* 1: the head is the embedding */
    double rope_theta;
    double rope_factor; /* 0: plain; else Llama 3's scaling from 8192 positions
                           by this factor, 1 or more */
    double norm_eps;
    uint64_t seed; /* default 1 */
} folio_model_shape;

/* Name i of the shapes that folio_model_shape_find knows, NULL past the last:
 * "llama-3.2-1b", "llama-3.1-8b", "qwen3-4b", "smollm2-135m", and "tiny", of a
 * few hundred thousand weights. Static, any thread. */
FOLIO_API const char *folio_model_shape_name(size_t i);
/* The hyper-parameters of `name` as its makers published them.
 * [out] shape all fields. Returns OK; INVAL for NULL; NOT_FOUND. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_model_shape_find(const char *name, folio_model_shape *shape);

/* As folio_model_open, with weights made in memory (on all CPUs this process
 * may use; a file's bytes are held until they are on the device, on the host
 * device as long as the model). Returns also INVAL naming the first bad field
 * of the shape. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_model_open_shape(folio_device *dev, const folio_model_shape *shape,
                       const folio_model_params *p, folio_model **out);
/* Writes the same model to `path` as a GGUF v3 file; what is there is replaced
 * as a whole or, on failure, not at all. A link stays and its file is replaced;
 * one to a file that is not there is IO. `log` NULL allowed. Returns OK; INVAL
 * naming the field; NOMEM; IO. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status folio_model_shape_write(
    const folio_model_shape *shape, const char *path, const folio_log *log);

/* ---- runners --------------------------------------------------------------
 */

/* A model with KV storage, scratch and a bound sequence of launches. One owner
 * thread at a time. */
typedef struct folio_runner folio_runner;

typedef struct folio_runner_params {
    size_t size;
    int32_t max_seqs;      /* sequences in a step; default 1 */
    int32_t max_tok;       /* tokens in one forward; default 512. No more than
                              the pool, or max_seqs sequences of max_ctx, hold:
                              what is above is cut */
    int32_t pass_tok;      /* tokens computed at once, which scratch is made
                              for: longer forwards are walked in such pieces;
                              default 0 = max_tok */
    int32_t max_rows;      /* rows of logits in one forward; default max_seqs,
                              cut to max_tok */
    int32_t max_ctx;       /* longest sequence; default 0 = what was trained, at
                              most 4096 */
    int32_t block_size;    /* BS; default 16; above 256 at most twice max_ctx */
    int32_t n_blocks;      /* N; default 0 = max_seqs sequences of max_ctx */
    folio_kv_type kv_type; /* default F16 */
    int32_t deterministic; /* -1 default: on for host and CPU drivers */
    int32_t exact;         /* default 0 */
    int32_t run_ahead;     /* 1: folio_runner_forward_ahead may be used, which
                              takes some scratch; default 0 */
    int32_t trace;         /* 1: allow the trace tap; default 0 */
    int32_t fused;         /* up to 8 tokens in few launches a layer: 1 wherever
                              an op for it exists, 0 never; 2: and all layers in
                              one launch where each sequence has one token and
                              the device and the model allow it (up to 8 of
                              them, arithmetic not exact). -1 default: 2 on GPUs
                              with Hopper's matrix units and bulk copies, 1 on
                              other GPUs, 0 elsewhere. Never where
                              deterministic. 1 or 2 where less is to be had: one
                              WARN line a model says why */
} folio_runner_params;

/* Fills *p with the defaults above.
 * p [out] never NULL. Any thread. */
FOLIO_API void folio_runner_params_default(folio_runner_params *p);

/* Chooses variants, allocates and fills the KV pool and scratch, logs the plan
 * as one INFO line.
 * m   [in] kept alive by the runner
 * p   [in] copied; NULL: the defaults
 * out [out] the caller's, closed with folio_runner_close; untouched on failure
 * Returns OK; INVAL naming the field; UNSUPPORTED; TOO_LARGE with both numbers
 * (max_ctx above the trained length; a pool that does not fit); NOMEM; BUILD;
 * DEVICE. Any thread; the runner then has one owner thread at a time. */
FOLIO_API FOLIO_NODISCARD folio_status folio_runner_open(
    folio_model *m, const folio_runner_params *p, folio_runner **out);
/* Drops pool and scratch, waits for nothing, and sets *r to NULL: logits that
 * were not read are gone. NULL and *NULL allowed. Its owner thread. */
FOLIO_API void folio_runner_close(folio_runner **r);

typedef struct folio_runner_info {
    size_t size;
    int32_t max_ctx, block_size, n_blocks;
    int32_t step_tok; /* tokens really computed at once; longer forwards are
                         walked in such pieces */
    int32_t deterministic;
    uint64_t kv_bytes, scratch_bytes;
    const char *arithmetic; /* "f32", "f16" or "q8": the coarsest in use */
    int32_t fused; /* 0, 1 or 2: the fewest launches that a step may take, as
                      the field of folio_runner_params */
} folio_runner_info;

/* What was decided at open.
 * info [in,out] `size` set by the caller, so much of it is written; NULL:
 *               nothing happens. Strings live as long as the runner
 * Never fails; r NULL: all but size is zero. Any thread. */
FOLIO_API void folio_runner_get_info(const folio_runner *r,
                                     folio_runner_info *info);

/* The batch of one forward, all host arrays, read before return. Token t of
 * sequence s (q_start[s] <= t < q_start[s+1]) has position pos[t] =
 * kv_len[s] - (q_start[s+1] - t) and its K and V go to slot[t], which must be
 * the table's own slot of that position. The keys before this step must have
 * been written by earlier forwards. */
typedef struct folio_batch {
    int32_t n_tok, n_seq;
    const int32_t *tok;         /* [T] ids */
    const int32_t *pos;         /* [T] */
    const int32_t *slot;        /* [T] */
    const int32_t *q_start;     /* [S + 1] */
    const int32_t *kv_len;      /* [S], this step included */
    const int32_t *table_start; /* [S + 1] into tables */
    const int32_t *tables;      /* block ids */
    int32_t n_rows;             /* R, may be 0 */
    const int32_t *rows;        /* [R] tokens whose logits are wanted,
                                   ascending */
    int32_t n_copies;           /* block copies done before everything else, at
                                   most max_seqs; no block is written twice */
    const int32_t *copies;      /* [n_copies, 2] source, destination */
} folio_batch;

/* Enqueues one forward. `trace_tok` >= 0: remember the residual stream of that
 * token (it must be among `rows`); -1: no. Returns OK; INVAL or RANGE naming
 * the first bad entry, nothing enqueued; TOO_LARGE above the limits at open;
 * NOMEM; DEVICE. */
FOLIO_API FOLIO_NODISCARD folio_status folio_runner_forward(
    folio_runner *r, const folio_batch *batch, int32_t trace_tok);

/* Waits and copies the logits of the last forward, which stay for other reads.
 * out [out] [R, n_vocab] f32, R the n_rows of that forward; a failed call may
 *           have written a part
 * Returns OK; INVAL without a forward or for a NULL; NOMEM; DEVICE. */
FOLIO_API FOLIO_NODISCARD folio_status folio_runner_read(folio_runner *r,
                                                         float *out);
/* Waits and gives the k largest logits of each row of the last forward,
 * falling, the lower id first among equals.
 * k      [in]  1 .. 64
 * ids    [out] [R, k]
 * values [out] [R, k]
 * n_nan  [out] [R] how many NaNs the row has
 *
 * Returns OK; INVAL without a forward or for a NULL; RANGE for another k;
 * NOMEM; DEVICE (after these two a part may have been written). */
FOLIO_API FOLIO_NODISCARD folio_status folio_runner_read_top(
    folio_runner *r, int32_t k, int32_t *ids, float *values, int32_t *n_nan);
/* Waits and copies the traced residual of the last forward.
 * out [out] [L + 2, dim] f32: the embedding, each block's output, the output
 *           norm
 * Returns OK; INVAL where the last forward was not traced or for a NULL; NOMEM;
 * DEVICE. */
FOLIO_API FOLIO_NODISCARD folio_status folio_runner_read_trace(folio_runner *r,
                                                               float *out);

/* ---- one step ahead ---- */

/* In place of an id: the best one of a row of the forward before. */
#define FOLIO_TOK_NEXT (-1)

/* As folio_runner_forward without a trace, for greedy decoding that never waits
 * for the host: the best id of each row is chosen on the device, stays there
 * for the next forward, and is read later.
 * r        opened with run_ahead 1
 * batch    tok may be FOLIO_TOK_NEXT for the last token of a sequence
 * next_row [n_seq] for such sequences the row, 0 .. n_rows - 1 of the forward
 *          before, which must have been a call of this function; else ignored.
 *          NULL: no sequence has one
 * number   0 or 1, by which the ids are read; those of the same number that
 *          were not read are lost
 * Returns OK; INVAL, also without run_ahead or for another number; RANGE;
 * TOO_LARGE; NOMEM; DEVICE. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_runner_forward_ahead(folio_runner *r, const folio_batch *batch,
                           const int32_t *next_row, int32_t number);
/* Waits for the forward of this number, and not for those behind it.
 * [out] ids, values, n_nan [R] as folio_runner_read_top with k = 1. Returns OK;
 * INVAL where no such forward has rows to be read; DEVICE. */
FOLIO_API FOLIO_NODISCARD folio_status folio_runner_read_ahead(folio_runner *r,
                                                               int32_t number,
                                                               int32_t *ids,
                                                               float *values,
                                                               int32_t *n_nan);

/* Which variant each op of the lowered sequence got, for reports.
 * i   [in] from 0 on; the list ends with NOT_FOUND (not logged)
 * out [out] strings live as long as the runner
 * Returns OK; NOT_FOUND; INVAL for a NULL. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_runner_choice(const folio_runner *r, size_t i, folio_choice *out);

/* What went over the bus since open. */
typedef struct folio_runner_counters {
    uint64_t launches, writes, reads, waits, tokens, forwards;
} folio_runner_counters;
/* out [out] all zero for r NULL; NULL: nothing happens. Never fails. The owner
 * thread. */
FOLIO_API void folio_runner_get_counters(const folio_runner *r,
                                         folio_runner_counters *out);

/* For measuring: fills the whole KV pool with numbers about -1 to 1 from
 * `seed`, as if long texts had been computed, in the pool's own order (so the
 * same seed means other keys in another layout). Waits. Returns OK; INVAL for
 * NULL; NOMEM; DEVICE. */
FOLIO_API FOLIO_NODISCARD folio_status folio_runner_fake_kv(folio_runner *r,
                                                            uint64_t seed);

/* XXH3 of n ids, 64 bits: by which two runs are seen to have given the same
 * ids. Any thread. */
FOLIO_API uint64_t folio_ids_hash(const int32_t *ids, size_t n);

#ifdef __cplusplus
}
#endif
#endif
