/* model/desc.h: what a family file turns metadata into: hyper-parameters, rope
 * tables and one description per layer. `lower` reads it and nothing else, so
 * families know nothing of fusion and fusion nothing of families. */
#ifndef FOLIO_MODEL_DESC_H
#define FOLIO_MODEL_DESC_H

#include "format/gguf.h"
#include "mem/weights.h"
#include "ops/ops.h"
#include "ops/rope.h"

#define FOLIO_MAX_ROPES 2

/* NULL pointers mean "absent". All weights are owned by the weight store. */
typedef struct folio_layer_desc {
    const folio_weight *attn_norm;       /* before attention */
    const folio_weight *post_attn_norm;  /* on the attention output */
    const folio_weight *ffn_norm;        /* before the feed-forward */
    const folio_weight *post_ffn_norm;   /* on the feed-forward output */
    const folio_weight *q_norm, *k_norm; /* per head, before RoPE */
    const folio_weight *wq, *wk, *wv, *wo;
    const folio_weight *bq, *bk, *bv, *bo;
    const folio_weight *sinks;
    const folio_weight *gate, *up, *down;
    folio_act act;
    int32_t rope;   /* index into ropes, -1 = none */
    int32_t window; /* 0 = none */
    float softcap;
} folio_layer_desc;

typedef struct folio_model_desc {
    char arch[64], name[128];
    int32_t n_vocab, dim, n_layers, heads, kv_heads, head_dim, ff_dim;
    int32_t ctx_train;
    float norm_eps;
    float embed_scale;   /* 1 for most */
    float attn_scale;    /* of q.k */
    int32_t interleaved; /* rotary pairs (2i, 2i+1) */
    int32_t n_ropes;
    folio_rope_params rope[FOLIO_MAX_ROPES];
    float *rope_factors; /* owned; rope[].freq_factors may point here */
    const folio_weight *embed, *out_norm, *head;
    folio_layer_desc *layers; /* [n_layers], owned */
} folio_model_desc;

void folio_model_desc_fini(folio_model_desc *d);

/* Where a family file gets its tensors: looks a name up, checks its shape,
 * declares it to the store, and remembers which names were used. */
typedef struct folio_tensor_source {
    const folio_gguf *gguf;
    folio_weights *weights;
    bool *used; /* [n_tensors] */
} folio_tensor_source;

/* The tensor of that name, remembered as used; NULL when absent. */
const folio_tensor_info *folio_use_tensor(folio_tensor_source *s,
                                          const char *name);

/* Required matrix [rows, cols] or vector [cols]; Layer >= 0 puts
 * "blk.N." before the name. FORMAT names the tensor and both shapes.
 */
folio_status folio_need_matrix(folio_tensor_source *s, const char *name,
                               int32_t layer, int64_t rows, int64_t cols,
                               const folio_weight **out) FOLIO_NODISCARD;
folio_status folio_need_vector(folio_tensor_source *s, const char *name,
                               int32_t layer, int64_t n,
                               const folio_weight **out) FOLIO_NODISCARD;
/* The same where the tensor may be absent: *out = NULL then. */
folio_status folio_may_matrix(folio_tensor_source *s, const char *name,
                              int32_t layer, int64_t rows, int64_t cols,
                              const folio_weight **out) FOLIO_NODISCARD;
folio_status folio_may_vector(folio_tensor_source *s, const char *name,
                              int32_t layer, int64_t n,
                              const folio_weight **out) FOLIO_NODISCARD;

/* Integer metadata "<arch>.<key>" in [lo, hi]; FORMAT names key and value.
 * `missing` < lo means required. */
folio_status folio_arch_int(const folio_gguf *g, const char *arch,
                            const char *key, int64_t lo, int64_t hi,
                            int64_t missing, int32_t *out) FOLIO_NODISCARD;
/* Finite number; `missing` NAN means required. */
folio_status folio_arch_num(const folio_gguf *g, const char *arch,
                            const char *key, double missing,
                            double *out) FOLIO_NODISCARD;

/* One row per architecture: `describe` fills *d (zeroed before) from metadata
 * and declares the tensors it needs. */
typedef struct folio_family {
    const char *arch; /* general.architecture */
    folio_status (*describe)(folio_tensor_source *src, const char *arch,
                             folio_model_desc *d);
} folio_family;

/* NULL when this build does not know it. */
const folio_family *folio_family_find(const char *arch, size_t arch_len);
/* Those it knows, separated by commas, cut at the end of `list`. */
void folio_family_names(char *list, size_t bytes);

folio_status folio_describe_llama(folio_tensor_source *src, const char *arch,
                                  folio_model_desc *d) FOLIO_NODISCARD;
folio_status folio_describe_qwen3(folio_tensor_source *src, const char *arch,
                                  folio_model_desc *d) FOLIO_NODISCARD;
folio_status folio_describe_gemma3(folio_tensor_source *src, const char *arch,
                                   folio_model_desc *d) FOLIO_NODISCARD;

#endif
