/* model/lower.h: turns a model description into the sequences of ops a runner
 * enqueues: the plain form, one op per node, and made from it, for few tokens
 * the fused form, for more the merged one. Knows no architecture by name and
 * never waits. */
#ifndef FOLIO_MODEL_LOWER_H
#define FOLIO_MODEL_LOWER_H

#include "mem/arena.h"
#include "mem/kv_store.h"
#include "model/desc.h"
#include "ops/attn_plan.h"

/* Regimes have their own variants: few tokens, many tokens. */
enum { FOLIO_FEW = 0, FOLIO_MANY = 1, FOLIO_REGIMES = 2 };

typedef struct folio_node {
    folio_op_id id;
    folio_op *op[FOLIO_REGIMES]; /* may be the same object */
    int32_t borrowed;            /* the ops are those of this plain node + 1 */
    int32_t per_tok;             /* rows of this op for each token or row */
    bool head;    /* runs on the R rows that need logits, not on T */
    int32_t plan; /* attention: index of its window's plan */
    int32_t tap;  /* trace: which line x holds after this node, or -1 */
    union {
        folio_embed_args embed;
        folio_gather_rows_args gather;
        folio_rmsnorm_args norm;
        folio_linear_args linear;
        folio_rope_append_args rope;
        folio_attn_args attn;
        folio_act_mul_args act;
        folio_add_args add;
        folio_norm_linear_args norm_linear;
        folio_qkv_args qkv;
        folio_gate_up_args gate_up;
    } a;
} folio_node;

typedef struct folio_sequence {
    folio_node *nodes;
    int32_t n_nodes, cap;
    int32_t first_head; /* nodes from here on are head nodes */
} folio_sequence;

#define FOLIO_MAX_PLANS 4

typedef struct folio_lowered {
    /* fused (few tokens) and many (more) have no nodes where nothing fits. */
    folio_sequence plain, fused, many;
    int32_t n_plans; /* distinct windows */
    int32_t window[FOLIO_MAX_PLANS];
    folio_op *attn[FOLIO_MAX_PLANS]; /* borrowed: one op of that window */
    folio_arena arena;
    folio_view x, xr; /* residual [step_tok, D]; rows of the head [rows, D] */
    folio_buf *scratch;
    int32_t step_tok, few_tok;
    /* All layers as one op for up to most_step sequences of one token each;
     * NULL: none. */
    folio_op *step;
    folio_step_args step_args;
    folio_step_layer *step_layers;
    int32_t most_step;
    char step_why[FOLIO_OP_REASON]; /* why there is none, where it was asked for
                                     */
} folio_lowered;

typedef struct folio_lower_params {
    const folio_model_desc *desc;
    folio_device *dev;
    folio_op_params ops;
    const folio_kv_store *kv;
    folio_view rope_table[FOLIO_MAX_ROPES];
    int32_t rope_n_pos;
    int32_t step_tok; /* most tokens of one pass */
    int32_t few_tok;  /* up to so many are FOLIO_FEW, and may be fused */
    bool fuse;
    bool whole;        /* look for one op for all layers */
    int32_t head_rows; /* most rows of one pass of the head */
    int32_t max_seqs, max_ctx;
    folio_view logits; /* where the head writes at first */
} folio_lower_params;

/* Largest step_tok <= want whose activation areas each fit in `limit` bytes; 0
 * when one token does not. */
int32_t folio_lower_fit_tok(const folio_model_desc *d, int32_t want,
                            size_t limit);

/* TOO_LARGE without a message when an op's scratch is above the device's
 * largest buffer: the caller may try fewer tokens. */
folio_status folio_lower(const folio_lower_params *p,
                         folio_lowered *out) FOLIO_NODISCARD;
void folio_lowered_fini(folio_lowered *l);

/* A zeroed node behind the last; NULL: no memory. Moves the others. */
folio_node *folio_sequence_add(folio_sequence *s, folio_op_id id);

/* Fills l->fused and l->many from l->plain, whose args are complete and ops not
 * open yet: nodes that one op of a kernel of its own can stand for are
 * replaced, those that stay borrow the op of their plain node (folio_lower
 * opens it). */
folio_status folio_lower_fuse(const folio_lower_params *p,
                              folio_lowered *l) FOLIO_NODISCARD;

/* Opens l->step, if a variant with a kernel of its own takes the model. */
folio_status folio_lower_step(const folio_lower_params *p,
                              folio_lowered *l) FOLIO_NODISCARD;

/* The sequence for `count` tokens (or rows, of the head) and the regime of its
 * ops; `plain`: for a trace, which taps what only the plain form has. */
static inline folio_sequence *folio_lowered_pick(folio_lowered *l,
                                                 int32_t count, bool plain,
                                                 int *regime)
{
    const bool few = count <= l->few_tok;
    const bool fused = !plain && few && l->fused.n_nodes > 0;
    const bool many = !plain && !few && l->many.n_nodes > 0;
    *regime = few && (fused || l->fused.n_nodes == 0) ? FOLIO_FEW : FOLIO_MANY;
    return fused ? &l->fused : many ? &l->many : &l->plain;
}

/* Sets the node's count for `count` tokens or rows and returns its argument
 * struct. */
void *folio_node_args(folio_node *n, int64_t count);

#endif
