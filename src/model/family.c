/* model/family.c: the table of architectures, and the look-ups family files
 * share: metadata with ranges, tensors with shapes. */
#include "model/desc.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const folio_family families[] = {
    {"llama", folio_describe_llama},
    {"qwen3", folio_describe_qwen3},
    {"gemma3", folio_describe_gemma3},
};

const folio_family *folio_family_find(const char *arch, size_t arch_len)
{
    for (size_t i = 0; i < FOLIO_COUNT(families); i++)
        if (strlen(families[i].arch) == arch_len &&
            memcmp(families[i].arch, arch, arch_len) == 0)
            return &families[i];
    return NULL;
}

void folio_family_names(char *list, size_t bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < FOLIO_COUNT(families) && at < bytes; i++)
        at += (size_t)snprintf(list + at, bytes - at, "%s%s", i ? ", " : "",
                               families[i].arch);
}

void folio_model_desc_fini(folio_model_desc *d)
{
    FOLIO_FREE(d->layers);
    FOLIO_FREE(d->rope_factors);
    memset(d, 0, sizeof *d);
}

folio_status folio_arch_int(const folio_gguf *g, const char *arch,
                            const char *key, int64_t lo, int64_t hi,
                            int64_t missing, int32_t *out)
{
    char name[160];
    int64_t v;
    snprintf(name, sizeof name, "%s.%s", arch, key);
    const folio_gguf_kv *kv = folio_gguf_find(g, name);
    if (!kv) {
        if (missing < lo)
            return folio_fail(folio_gguf_log(g), FOLIO_E_FORMAT,
                              "metadata %s is missing", name);
        *out = (int32_t)missing;
        return FOLIO_OK;
    }
    if (kv->type == FOLIO_GGUF_ARRAY)
        return folio_fail(folio_gguf_log(g), FOLIO_E_UNSUPPORTED,
                          "metadata %s differs by layer, which this build "
                          "does not support",
                          name);
    FOLIO_RETURN_IF(folio_gguf_get_i64(g, name, &v));
    if (v < lo || v > hi)
        return folio_fail(folio_gguf_log(g), FOLIO_E_FORMAT,
                          "metadata %s is %lld, outside %lld to %lld", name,
                          (long long)v, (long long)lo, (long long)hi);
    *out = (int32_t)v;
    return FOLIO_OK;
}

folio_status folio_arch_num(const folio_gguf *g, const char *arch,
                            const char *key, double missing, double *out)
{
    char name[160];
    double v;
    snprintf(name, sizeof name, "%s.%s", arch, key);
    if (!folio_gguf_find(g, name)) {
        if (isnan(missing))
            return folio_fail(folio_gguf_log(g), FOLIO_E_FORMAT,
                              "metadata %s is missing", name);
        *out = missing;
        return FOLIO_OK;
    }
    FOLIO_RETURN_IF(folio_gguf_get_f64(g, name, &v));
    if (!isfinite(v))
        return folio_fail(folio_gguf_log(g), FOLIO_E_FORMAT,
                          "metadata %s is not a finite number", name);
    *out = v;
    return FOLIO_OK;
}

const folio_tensor_info *folio_use_tensor(folio_tensor_source *s,
                                          const char *name)
{
    const folio_tensor_info *t = folio_gguf_tensor(s->gguf, name);
    for (size_t i = 0; t && i < folio_gguf_n_tensors(s->gguf); i++)
        if (folio_gguf_tensor_at(s->gguf, i) == t)
            s->used[i] = true;
    return t;
}

static folio_status declare(folio_tensor_source *s, const char *name,
                            int32_t layer, int64_t rows, int64_t cols,
                            bool vector, bool required,
                            const folio_weight **out)
{
    char full[160];
    /* Names are "blk.N." + name for layer N, plain for layer < 0. */
    if (layer >= 0)
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    const folio_tensor_info *t = folio_use_tensor(s, full);
    if (!t) {
        if (required)
            return folio_fail(folio_gguf_log(s->gguf), FOLIO_E_FORMAT,
                              "tensor %s is missing: expected shape "
                              "[%lld, %lld]",
                              full, (long long)rows, (long long)cols);
        *out = NULL;
        return FOLIO_OK;
    }
    uint64_t got_cols = t->dims[0];
    uint64_t got_rows = t->dims[1] * t->dims[2] * t->dims[3];
    if (got_cols != (uint64_t)cols || got_rows != (uint64_t)rows ||
        (!vector && t->n_dims > 2))
        return folio_fail(folio_gguf_log(s->gguf), FOLIO_E_FORMAT,
                          "tensor %s has shape [%llu, %llu], expected "
                          "[%lld, %lld]",
                          full, (unsigned long long)got_rows,
                          (unsigned long long)got_cols, (long long)rows,
                          (long long)cols);
    folio_weight_source src = {t->name, t->type, rows, cols, t->data};
    return vector ? folio_weights_add_vector(s->weights, &src, out)
                  : folio_weights_add(s->weights, &src, out);
}

folio_status folio_need_matrix(folio_tensor_source *s, const char *name,
                               int32_t layer, int64_t rows, int64_t cols,
                               const folio_weight **out)
{
    return declare(s, name, layer, rows, cols, false, true, out);
}

folio_status folio_need_vector(folio_tensor_source *s, const char *name,
                               int32_t layer, int64_t n,
                               const folio_weight **out)
{
    return declare(s, name, layer, 1, n, true, true, out);
}

folio_status folio_may_matrix(folio_tensor_source *s, const char *name,
                              int32_t layer, int64_t rows, int64_t cols,
                              const folio_weight **out)
{
    return declare(s, name, layer, rows, cols, false, false, out);
}

folio_status folio_may_vector(folio_tensor_source *s, const char *name,
                              int32_t layer, int64_t n,
                              const folio_weight **out)
{
    return declare(s, name, layer, 1, n, true, false, out);
}
