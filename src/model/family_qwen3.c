/* model/family_qwen3.c: Qwen3's dense models: as llama, but with an RMS norm on
 * each head of q and k before the rotation, and rotary pairs (i, i + HD/2). */
#include "model/desc.h"

folio_status folio_describe_qwen3(folio_tensor_source *src, const char *arch,
                                  folio_model_desc *d)
{
    FOLIO_RETURN_IF(folio_describe_llama(src, arch, d));
    d->interleaved = 0;
    for (int32_t l = 0; l < d->n_layers; l++) {
        folio_layer_desc *y = &d->layers[l];
        FOLIO_RETURN_IF(folio_need_vector(src, "attn_q_norm.weight", l,
                                          d->head_dim, &y->q_norm));
        FOLIO_RETURN_IF(folio_need_vector(src, "attn_k_norm.weight", l,
                                          d->head_dim, &y->k_norm));
    }
    return FOLIO_OK;
}
