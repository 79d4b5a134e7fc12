/* model/family_llama.c: Llama 2 and 3.x, SmolLM2, TinyLlama and others that
 * call themselves "llama" in GGUF: pre-norm, SwiGLU, grouped-query attention,
 * rotary pairs (2i, 2i+1) because converters permute the q and k rows so. */
#include "model/desc.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool str_is(folio_gguf_str s, const char *lit)
{
    return s.len == strlen(lit) && memcmp(s.data, lit, s.len) == 0;
}

/* RoPE scaling: absent means plain; Llama 3 files carry its factors as the
 * tensor rope_freqs.weight; anything unknown is refused by name. */
static folio_status read_rope(folio_tensor_source *src, const char *arch,
                              folio_model_desc *d)
{
    const folio_gguf *g = src->gguf;
    const folio_log *log = folio_gguf_log(g);
    folio_rope_params *r = &d->rope[0];
    double v;
    FOLIO_RETURN_IF(folio_arch_num(g, arch, "rope.freq_base", 10000.0, &v));
    if (v <= 1.0)
        return folio_fail(log, FOLIO_E_FORMAT,
                          "metadata %s.rope.freq_base is %g, must be above 1",
                          arch, v);
    r->theta = v;
    FOLIO_RETURN_IF(folio_arch_int(g, arch, "rope.dimension_count", 2,
                                   d->head_dim, d->head_dim, &r->rot_dim));
    if (r->rot_dim % 2)
        return folio_fail(log, FOLIO_E_FORMAT,
                          "metadata %s.rope.dimension_count is %d, must be "
                          "even",
                          arch, r->rot_dim);
    double factor = 1.0;
    FOLIO_RETURN_IF(
        folio_arch_num(g, arch, "rope.scaling.factor", 1.0, &factor));
    if (factor == 1.0)
        FOLIO_RETURN_IF(
            folio_arch_num(g, arch, "rope.scale_linear", 1.0, &factor));
    char key[160];
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    folio_gguf_str type = {"none", 4};
    if (folio_gguf_find(g, key))
        FOLIO_RETURN_IF(folio_gguf_get_str(g, key, &type));
    else if (factor != 1.0)
        type = (folio_gguf_str){"linear", 6};
    int32_t orig = d->ctx_train;
    FOLIO_RETURN_IF(folio_arch_int(g, arch,
                                   "rope.scaling.original_context_length", 1,
                                   INT32_MAX, d->ctx_train, &orig));
    r->factor = factor;
    r->original_ctx = orig;
    if (str_is(type, "none")) {
        r->scaling = FOLIO_ROPE_NONE;
    } else if (str_is(type, "linear")) {
        r->scaling = FOLIO_ROPE_LINEAR;
    } else if (str_is(type, "yarn")) {
        r->scaling = FOLIO_ROPE_YARN;
        FOLIO_RETURN_IF(folio_arch_num(g, arch, "rope.scaling.yarn_beta_fast",
                                       32.0, &r->beta_fast));
        FOLIO_RETURN_IF(folio_arch_num(g, arch, "rope.scaling.yarn_beta_slow",
                                       1.0, &r->beta_slow));
    } else {
        return folio_fail(log, FOLIO_E_UNSUPPORTED,
                          "RoPE scaling \"%.*s\" is not supported (none, "
                          "linear, yarn, and factors in rope_freqs.weight "
                          "are)",
                          (int)FOLIO_MIN(type.len, (size_t)64), type.data);
    }
    if (r->scaling != FOLIO_ROPE_NONE && !(factor >= 1.0))
        return folio_fail(log, FOLIO_E_FORMAT,
                          "metadata %s.rope.scaling.factor is %g, must be at "
                          "least 1",
                          arch, factor);

    const folio_tensor_info *t = folio_use_tensor(src, "rope_freqs.weight");
    if (!t)
        return FOLIO_OK;
    if (t->type != FOLIO_TYPE_F32 || t->dims[0] != (uint64_t)r->rot_dim / 2 ||
        t->n_dims != 1)
        return folio_fail(log, FOLIO_E_FORMAT,
                          "tensor rope_freqs.weight must be F32 [%d]",
                          r->rot_dim / 2);
    d->rope_factors = folio_calloc((size_t)r->rot_dim / 2, sizeof(float));
    if (!d->rope_factors)
        return FOLIO_E_NOMEM;
    folio_dequant(t->type, t->data, r->rot_dim / 2, d->rope_factors);
    for (int32_t i = 0; i < r->rot_dim / 2; i++)
        if (!(d->rope_factors[i] > 0.0f))
            return folio_fail(log, FOLIO_E_FORMAT,
                              "tensor rope_freqs.weight holds %g at %d, must "
                              "be above 0",
                              (double)d->rope_factors[i], i);
    r->freq_factors = d->rope_factors;
    return FOLIO_OK;
}

folio_status folio_describe_llama(folio_tensor_source *src, const char *arch,
                                  folio_model_desc *d)
{
    const folio_gguf *g = src->gguf;
    const folio_log *log = folio_gguf_log(g);
    double eps;
    FOLIO_RETURN_IF(
        folio_arch_int(g, arch, "block_count", 1, 1024, -1, &d->n_layers));
    FOLIO_RETURN_IF(
        folio_arch_int(g, arch, "embedding_length", 1, 1 << 20, -1, &d->dim));
    FOLIO_RETURN_IF(folio_arch_int(g, arch, "feed_forward_length", 1, 1 << 24,
                                   -1, &d->ff_dim));
    FOLIO_RETURN_IF(folio_arch_int(g, arch, "attention.head_count", 1, 4096, -1,
                                   &d->heads));
    FOLIO_RETURN_IF(folio_arch_int(g, arch, "attention.head_count_kv", 1, 4096,
                                   d->heads, &d->kv_heads));
    if (d->heads % d->kv_heads)
        return folio_fail(log, FOLIO_E_FORMAT,
                          "%d query heads are not a multiple of %d KV heads",
                          d->heads, d->kv_heads);
    int32_t expert = 0;
    FOLIO_RETURN_IF(
        folio_arch_int(g, arch, "expert_count", 0, 65536, 0, &expert));
    if (expert > 0)
        return folio_fail(log, FOLIO_E_UNSUPPORTED,
                          "architecture %s with %d experts is not supported",
                          arch, expert);
    if (d->dim < d->heads)
        return folio_fail(log, FOLIO_E_FORMAT,
                          "an embedding of %d does not hold %d heads", d->dim,
                          d->heads);
    int32_t by_heads = d->dim / d->heads;
    FOLIO_RETURN_IF(folio_arch_int(g, arch, "attention.key_length", 1, 1024,
                                   by_heads, &d->head_dim));
    int32_t v_dim;
    FOLIO_RETURN_IF(folio_arch_int(g, arch, "attention.value_length", 1, 1024,
                                   d->head_dim, &v_dim));
    if (v_dim != d->head_dim || d->head_dim < 4)
        return folio_fail(log, FOLIO_E_UNSUPPORTED,
                          "head sizes %d (keys) and %d (values) are not "
                          "supported: they must be equal and at least 4",
                          d->head_dim, v_dim);
    FOLIO_RETURN_IF(folio_arch_int(g, arch, "context_length", 1, INT32_MAX, -1,
                                   &d->ctx_train));
    int32_t window;
    FOLIO_RETURN_IF(folio_arch_int(g, arch, "attention.sliding_window", 0,
                                   INT32_MAX, 0, &window));
    FOLIO_RETURN_IF(
        folio_arch_num(g, arch, "attention.layer_norm_rms_epsilon", NAN, &eps));
    if (!(eps >= 0.0))
        return folio_fail(log, FOLIO_E_FORMAT,
                          "metadata %s.attention.layer_norm_rms_epsilon is "
                          "%g, must not be negative",
                          arch, eps);
    d->norm_eps = (float)eps;
    d->embed_scale = 1.0f;
    d->attn_scale = 1.0f / sqrtf((float)d->head_dim);
    d->interleaved = 1;
    d->n_ropes = 1;
    FOLIO_RETURN_IF(read_rope(src, arch, d));

    const folio_tensor_info *embd = folio_gguf_tensor(g, "token_embd.weight");
    if (embd && (embd->dims[1] < 1 || embd->dims[1] > INT32_MAX))
        return folio_fail(log, FOLIO_E_FORMAT,
                          "tensor token_embd.weight has %llu rows",
                          (unsigned long long)embd->dims[1]);
    d->n_vocab = embd ? (int32_t)embd->dims[1] : 1;
    FOLIO_RETURN_IF(folio_need_matrix(src, "token_embd.weight", -1, d->n_vocab,
                                      d->dim, &d->embed));
    FOLIO_RETURN_IF(
        folio_need_vector(src, "output_norm.weight", -1, d->dim, &d->out_norm));
    FOLIO_RETURN_IF(folio_may_matrix(src, "output.weight", -1, d->n_vocab,
                                     d->dim, &d->head));
    if (!d->head)
        d->head = d->embed;

    d->layers = folio_calloc((size_t)d->n_layers, sizeof *d->layers);
    if (!d->layers)
        return FOLIO_E_NOMEM;
    int64_t qd = (int64_t)d->heads * d->head_dim;
    int64_t kvd = (int64_t)d->kv_heads * d->head_dim;
    for (int32_t l = 0; l < d->n_layers; l++) {
        folio_layer_desc *y = &d->layers[l];
        const struct {
            const char *name;
            int64_t rows, cols;
            const folio_weight **out;
        } need[] = {
            {"attn_q.weight", qd, d->dim, &y->wq},
            {"attn_k.weight", kvd, d->dim, &y->wk},
            {"attn_v.weight", kvd, d->dim, &y->wv},
            {"attn_output.weight", d->dim, qd, &y->wo},
            {"ffn_gate.weight", d->ff_dim, d->dim, &y->gate},
            {"ffn_up.weight", d->ff_dim, d->dim, &y->up},
            {"ffn_down.weight", d->dim, d->ff_dim, &y->down},
        };
        FOLIO_RETURN_IF(folio_need_vector(src, "attn_norm.weight", l, d->dim,
                                          &y->attn_norm));
        FOLIO_RETURN_IF(
            folio_need_vector(src, "ffn_norm.weight", l, d->dim, &y->ffn_norm));
        for (size_t i = 0; i < FOLIO_COUNT(need); i++)
            FOLIO_RETURN_IF(folio_need_matrix(
                src, need[i].name, l, need[i].rows, need[i].cols, need[i].out));
        FOLIO_RETURN_IF(folio_may_vector(src, "attn_q.bias", l, qd, &y->bq));
        FOLIO_RETURN_IF(folio_may_vector(src, "attn_k.bias", l, kvd, &y->bk));
        FOLIO_RETURN_IF(folio_may_vector(src, "attn_v.bias", l, kvd, &y->bv));
        FOLIO_RETURN_IF(
            folio_may_vector(src, "attn_output.bias", l, d->dim, &y->bo));
        y->act = FOLIO_ACT_SILU;
        y->rope = 0;
        y->window = window;
    }
    return FOLIO_OK;
}
