/* model/family_gemma3.c: Gemma 3, text only. As llama, but: embeddings times
 * sqrt(D); norms behind attention and feed-forward too, and on each head of q
 * and k; GELU; rotary pairs (i, i + HD/2); of every six layers the first five
 * see a window only and turn with a base of their own. The norms' weights
 * stand in files with the 1 of Gemma's formula added. */
#include "model/desc.h"

#include <math.h>

/* What files leave out because every model of the family has it. */
#define USUAL_PATTERN    6
#define USUAL_LOCAL_BASE 10000.0
#define USUAL_BASE       1000000.0

/* The 27B model scales by the width of a head that D / H would give; its file
 * says so nowhere. */
#define LAYERS_27B 62

/* rope[0] is that of the layers which see everything, rope[1] the others'. */
static folio_status read_ropes(const folio_gguf *g, const char *arch,
                               folio_model_desc *d)
{
    const folio_log *log = folio_gguf_log(g);
    double base, local;
    FOLIO_RETURN_IF(
        folio_arch_num(g, arch, "rope.freq_base", USUAL_BASE, &base));
    FOLIO_RETURN_IF(folio_arch_num(g, arch, "rope.freq_base_swa",
                                   USUAL_LOCAL_BASE, &local));
    if (local <= 1.0)
        return folio_fail(log, FOLIO_E_FORMAT,
                          "metadata %s.rope.freq_base_swa is %g, must be "
                          "above 1",
                          arch, local);
    d->rope[0].theta = base; /* llama's reader has checked one that is there */
    d->rope[1] = (folio_rope_params){.theta = local,
                                     .rot_dim = d->rope[0].rot_dim,
                                     .factor = 1.0,
                                     .original_ctx = d->ctx_train,
                                     .scaling = FOLIO_ROPE_NONE};
    d->n_ropes = 2;
    return FOLIO_OK;
}

static folio_status read_scale(const folio_gguf *g, const char *arch,
                               folio_model_desc *d)
{
    const folio_log *log = folio_gguf_log(g);
    double width = d->n_layers == LAYERS_27B ? (double)d->dim / d->heads
                                             : (double)d->head_dim;
    double scale, cap;
    FOLIO_RETURN_IF(
        folio_arch_num(g, arch, "attention.scale", 1.0 / sqrt(width), &scale));
    if (!(scale > 0.0))
        return folio_fail(log, FOLIO_E_FORMAT,
                          "metadata %s.attention.scale is %g, must be above 0",
                          arch, scale);
    d->attn_scale = (float)scale;
    FOLIO_RETURN_IF(
        folio_arch_num(g, arch, "final_logit_softcapping", 0.0, &cap));
    if (cap != 0.0)
        return folio_fail(log, FOLIO_E_UNSUPPORTED,
                          "metadata %s.final_logit_softcapping is %g, which "
                          "this build does not support",
                          arch, cap);
    return FOLIO_OK;
}

folio_status folio_describe_gemma3(folio_tensor_source *src, const char *arch,
                                   folio_model_desc *d)
{
    const folio_gguf *g = src->gguf;
    int32_t pattern;
    double cap;
    FOLIO_RETURN_IF(folio_describe_llama(src, arch, d));
    d->interleaved = 0;
    d->embed_scale = sqrtf((float)d->dim);
    FOLIO_RETURN_IF(read_ropes(g, arch, d));
    FOLIO_RETURN_IF(read_scale(g, arch, d));
    FOLIO_RETURN_IF(folio_arch_int(g, arch, "attention.sliding_window_pattern",
                                   1, INT32_MAX, USUAL_PATTERN, &pattern));
    FOLIO_RETURN_IF(
        folio_arch_num(g, arch, "attn_logit_softcapping", 0.0, &cap));
    if (cap < 0.0)
        return folio_fail(folio_gguf_log(g), FOLIO_E_FORMAT,
                          "metadata %s.attn_logit_softcapping is %g, must not "
                          "be negative",
                          arch, cap);
    for (int32_t l = 0; l < d->n_layers; l++) {
        folio_layer_desc *y = &d->layers[l];
        const bool local = (l + 1) % pattern != 0;
        const struct {
            const char *name;
            int64_t n;
            const folio_weight **out;
        } norms[] = {
            {"attn_q_norm.weight", d->head_dim, &y->q_norm},
            {"attn_k_norm.weight", d->head_dim, &y->k_norm},
            {"post_attention_norm.weight", d->dim, &y->post_attn_norm},
            {"post_ffw_norm.weight", d->dim, &y->post_ffn_norm},
        };
        for (size_t i = 0; i < FOLIO_COUNT(norms); i++)
            FOLIO_RETURN_IF(folio_need_vector(src, norms[i].name, l, norms[i].n,
                                              norms[i].out));
        y->act = FOLIO_ACT_GELU_TANH;
        y->rope = local ? 1 : 0;
        y->softcap = (float)cap;
        if (!local)
            y->window = 0;
    }
    return FOLIO_OK;
}
