/* ops/choice.c: folio_device_choice: which row each representative case gets,
 * by the rules of folio_op_open but without building or running anything. */
#include "ops/choose.h"
#include "ops/self_test.h"

#include <stdio.h>
#include <string.h>

/* A case: what decides among variants. Sizes are those of a small model. */
typedef struct choice_case {
    const char *what;
    folio_op_id op;
    folio_type type;       /* embed, linear */
    folio_kv_type kv_type; /* rope_append, attn, copy_blocks */
    int32_t n_tok;
    folio_act act;
} choice_case;

#define LINEAR(t)                                                              \
    {.what = #t ", 1 token",                                                   \
     .op = FOLIO_OP_LINEAR,                                                    \
     .type = FOLIO_TYPE_##t,                                                   \
     .n_tok = 1},                                                              \
    {                                                                          \
        .what = #t ", 512 tokens", .op = FOLIO_OP_LINEAR,                      \
        .type = FOLIO_TYPE_##t, .n_tok = 512                                   \
    }

#define ATTN(t)                                                                \
    {.what = #t " KV, decode",                                                 \
     .op = FOLIO_OP_ATTN,                                                      \
     .kv_type = FOLIO_KV_##t,                                                  \
     .n_tok = 1},                                                              \
    {                                                                          \
        .what = #t " KV, prefill", .op = FOLIO_OP_ATTN,                        \
        .kv_type = FOLIO_KV_##t, .n_tok = 512                                  \
    }

#define FUSED(o, t)                                                            \
    {                                                                          \
        .what = #t ", 1 token", .op = FOLIO_OP_##o, .type = FOLIO_TYPE_##t,    \
        .kv_type = FOLIO_KV_F16, .n_tok = 1                                    \
    }

static const choice_case cases[] = {
    {.what = "Q8_0, 1 token",
     .op = FOLIO_OP_EMBED,
     .type = FOLIO_TYPE_Q8_0,
     .n_tok = 1},
    {.what = "1 row", .op = FOLIO_OP_GATHER_ROWS, .n_tok = 1},
    {.what = "1 row", .op = FOLIO_OP_RMSNORM, .n_tok = 1},
    {.what = "512 rows", .op = FOLIO_OP_RMSNORM, .n_tok = 512},
    LINEAR(F32),
    LINEAR(F16),
    LINEAR(BF16),
    LINEAR(Q4_0),
    LINEAR(Q4_1),
    LINEAR(Q5_0),
    LINEAR(Q5_1),
    LINEAR(Q8_0),
    LINEAR(Q2_K),
    LINEAR(Q3_K),
    LINEAR(Q4_K),
    LINEAR(Q5_K),
    LINEAR(Q6_K),
    LINEAR(IQ4_NL),
    LINEAR(IQ4_XS),
    LINEAR(MXFP4),
    {.what = "F16 KV",
     .op = FOLIO_OP_ROPE_APPEND,
     .kv_type = FOLIO_KV_F16,
     .n_tok = 1},
    {.what = "F32 KV",
     .op = FOLIO_OP_ROPE_APPEND,
     .kv_type = FOLIO_KV_F32,
     .n_tok = 1},
    ATTN(F16),
    ATTN(F32),
    {.what = "SwiGLU",
     .op = FOLIO_OP_ACT_MUL,
     .act = FOLIO_ACT_SILU,
     .n_tok = 1},
    {.what = "GEGLU",
     .op = FOLIO_OP_ACT_MUL,
     .act = FOLIO_ACT_GELU_TANH,
     .n_tok = 1},
    {.what = "residual", .op = FOLIO_OP_ADD, .n_tok = 1},
    {.what = "argmax", .op = FOLIO_OP_TOPK, .n_tok = 1},
    {.what = "F16 KV", .op = FOLIO_OP_COPY_BLOCKS, .n_tok = 1},
    {.what = "draw", .op = FOLIO_OP_SAMPLE, .n_tok = 1},
    FUSED(NORM_LINEAR, F16),
    FUSED(NORM_LINEAR, Q4_0),
    FUSED(NORM_LINEAR, Q8_0),
    FUSED(QKV, F16),
    FUSED(QKV, Q4_0),
    FUSED(QKV, Q8_0),
    FUSED(GATE_UP, F16),
    FUSED(GATE_UP, Q4_0),
    FUSED(GATE_UP, Q8_0),
    FUSED(STEP, F16),
    FUSED(STEP, Q4_0),
    FUSED(STEP, Q8_0),
};

enum { WIDTH = 2048, HEADS = 32, KV_HEADS = 8, HEAD_DIM = 64, VOCAB = 32768 };

typedef struct choice_args {
    folio_weight w, kv_w;
    folio_step_layer layer;
    folio_any_args args;
} choice_args;

static folio_kv_ref make_kv(const choice_case *c)
{
    return (folio_kv_ref){.type = c->kv_type,
                          .layout = {.xk = 8, .yk = 1, .xv = 8, .yv = 1},
                          .n_blocks = 1024,
                          .block_size = 16,
                          .kv_heads = KV_HEADS,
                          .head_dim = HEAD_DIM};
}

static void make_args(const choice_case *c, choice_args *a)
{
    const folio_norm_in in = {.dim = WIDTH, .x_stride = WIDTH, .eps = 1e-5f};
    memset(a, 0, sizeof *a);
    a->w = (folio_weight){.type = c->type, .rows = WIDTH, .cols = WIDTH};
    a->kv_w = a->w;
    a->kv_w.rows = KV_HEADS * HEAD_DIM;
    switch (c->op) {
    case FOLIO_OP_EMBED:
        a->args.embed =
            (folio_embed_args){.w = &a->w, .scale = 1, .n_tok = c->n_tok};
        break;
    case FOLIO_OP_GATHER_ROWS:
        a->args.gather =
            (folio_gather_rows_args){.n_rows = c->n_tok, .dim = WIDTH};
        break;
    case FOLIO_OP_RMSNORM:
        a->args.rmsnorm = (folio_rmsnorm_args){.n_rows = c->n_tok,
                                               .dim = WIDTH,
                                               .x_stride = WIDTH,
                                               .out_stride = WIDTH,
                                               .eps = 1e-5f};
        break;
    case FOLIO_OP_LINEAR:
        a->args.linear = (folio_linear_args){.w = &a->w,
                                             .n_tok = c->n_tok,
                                             .x_stride = WIDTH,
                                             .y_stride = WIDTH};
        break;
    case FOLIO_OP_ROPE_APPEND:
        a->args.rope = (folio_rope_append_args){.q_stride = HEADS * HEAD_DIM,
                                                .k_stride = KV_HEADS * HEAD_DIM,
                                                .v_stride = KV_HEADS * HEAD_DIM,
                                                .n_pos = 8192,
                                                .rot_dim = HEAD_DIM,
                                                .n_tok = c->n_tok,
                                                .heads = HEADS,
                                                .kv = make_kv(c)};
        break;
    case FOLIO_OP_ATTN:
        a->args.attn = (folio_attn_args){.q_stride = HEADS * HEAD_DIM,
                                         .out_stride = HEADS * HEAD_DIM,
                                         .n_tok = c->n_tok,
                                         .heads = HEADS,
                                         .scale = 0.125f,
                                         .kv = make_kv(c),
                                         .work = {.n_seq = 1}};
        break;
    case FOLIO_OP_ACT_MUL:
        a->args.act = (folio_act_mul_args){.n_tok = c->n_tok,
                                           .dim = 4 * WIDTH,
                                           .gate_stride = 4 * WIDTH,
                                           .up_stride = 4 * WIDTH,
                                           .out_stride = 4 * WIDTH,
                                           .act = c->act};
        break;
    case FOLIO_OP_ADD:
        a->args.add = (folio_add_args){.n = WIDTH};
        break;
    case FOLIO_OP_TOPK:
        a->args.topk =
            (folio_topk_args){.n_rows = c->n_tok, .n_vocab = VOCAB, .k = 1};
        break;
    case FOLIO_OP_COPY_BLOCKS:
        a->args.copy =
            (folio_copy_blocks_args){.n_pairs = c->n_tok, .kv = make_kv(c)};
        break;
    case FOLIO_OP_SAMPLE:
        a->args.sample = (folio_sample_args){
            .n_rows = c->n_tok, .n_vocab = VOCAB, .stride = VOCAB};
        break;
    case FOLIO_OP_NORM_LINEAR:
        a->args.norm_linear =
            (folio_norm_linear_args){.in = in,
                                     .part = {{.w = &a->w, .y_stride = WIDTH}},
                                     .n_parts = 1,
                                     .n_tok = c->n_tok};
        break;
    case FOLIO_OP_QKV:
        a->args.qkv = (folio_qkv_args){.in = in,
                                       .wq = &a->w,
                                       .wk = &a->kv_w,
                                       .wv = &a->kv_w,
                                       .q_stride = HEADS * HEAD_DIM,
                                       .n_pos = 8192,
                                       .rot_dim = HEAD_DIM,
                                       .n_tok = c->n_tok,
                                       .heads = HEADS,
                                       .kv = make_kv(c)};
        break;
    case FOLIO_OP_GATE_UP:
        a->args.gate_up = (folio_gate_up_args){.in = in,
                                               .gate = &a->w,
                                               .up = &a->w,
                                               .n_tok = c->n_tok,
                                               .out_stride = WIDTH};
        break;
    case FOLIO_OP_STEP:
        a->layer = (folio_step_layer){.wq = &a->w,
                                      .wk = &a->kv_w,
                                      .wv = &a->kv_w,
                                      .wo = &a->w,
                                      .gate = &a->w,
                                      .up = &a->w,
                                      .down = &a->w,
                                      .kv = make_kv(c)};
        a->args.step = (folio_step_args){.layers = &a->layer,
                                         .n_layers = 1,
                                         .dim = WIDTH,
                                         .ff = WIDTH,
                                         .heads = HEADS,
                                         .eps = 1e-5f,
                                         .n_pos = 8192,
                                         .n_tok = c->n_tok,
                                         .scale = 0.125f,
                                         .n_works = 1};
        break;
    case FOLIO_OP_COUNT:
        break;
    }
}

/* As folio_op_choose, with remembered verdicts in place of builds and runs. */
static const char *find_variant(folio_device *dev, const choice_case *c,
                                const folio_op_params *prm, const void *args,
                                char *reason, size_t reason_bytes)
{
    folio_where where = folio_device_is_host(dev) ? FOLIO_ON_HOST : FOLIO_ON_CL;
    char failed[FOLIO_SELF_WHY_MAX];
    size_t n;
    const folio_variant *rows = folio_variants(&n);
    for (size_t i = 0; i < n; i++) {
        const folio_variant *var = &rows[i];
        if (var->op != c->op || var->where != where)
            continue;
        const char *why = folio_variant_refuse(dev, var, prm, args);
        if (!why &&
            folio_op_self_verdict(dev, var, prm, args, failed) != FOLIO_OK)
            why = "failed its self-test";
        if (!why)
            return var->name;
        folio_reason_add(reason, reason_bytes, var->name, why);
    }
    return "none";
}

folio_status folio_device_choice(folio_device *dev, size_t i, folio_choice *out)
{
    choice_args a;
    folio_choice found = {0};
    if (!dev || !out)
        return dev ? folio_fail(folio_device_log(dev), FOLIO_E_INVAL,
                                "folio_device_choice: out is NULL")
                   : FOLIO_E_INVAL;
    if (i >= FOLIO_COUNT(cases))
        return FOLIO_E_NOT_FOUND;
    folio_device_kind kind = folio_device_get_kind(dev);
    folio_op_params prm = {.deterministic = kind == FOLIO_DEVICE_HOST ||
                                            kind == FOLIO_DEVICE_CPU};
    make_args(&cases[i], &a);
    found.op = folio_op_name(cases[i].op);
    found.what = cases[i].what;
    found.variant = find_variant(dev, &cases[i], &prm, &a.args, found.reason,
                                 sizeof found.reason);
    *out = found;
    return FOLIO_OK;
}
