/* model/model.c: opening and closing a model: file, family, weights. */
#include "model/model_internal.h"

#include "model/shape.h"

#include <stdatomic.h>
#include <string.h>

void folio_model_params_default(folio_model_params *p)
{
    memset(p, 0, sizeof *p);
    p->size = sizeof *p;
    p->max_seqs = 8;
    p->max_tok = 512;
}

folio_model *folio_model_retain(folio_model *m)
{
    atomic_fetch_add(&m->refs, 1);
    return m;
}

void folio_model_close(folio_model **pm)
{
    if (!pm || !*pm)
        return;
    folio_model *m = *pm;
    *pm = NULL;
    if (atomic_fetch_sub(&m->refs, 1) > 1)
        return;
    folio_weights_close(&m->weights);
    folio_model_desc_fini(&m->desc);
    folio_gguf_close(&m->gguf);
    folio_aligned_free(m->image);
    folio_device_close(&m->dev);
    free(m);
}

/* Converters and exporters add tensors; none of them may pass unnoticed. */
static void warn_unused(const folio_model *m, const bool *used)
{
    int shown = 0;
    size_t extra = 0;
    for (size_t i = 0; i < folio_gguf_n_tensors(m->gguf); i++) {
        if (used[i])
            continue;
        extra++;
        if (shown++ < 8)
            folio_logf(&m->log, FOLIO_LOG_WARN,
                       "tensor %s is not used by architecture %s",
                       folio_gguf_tensor_at(m->gguf, i)->name, m->desc.arch);
    }
    if (extra > 8)
        folio_logf(&m->log, FOLIO_LOG_WARN, "and %zu more unused tensors",
                   extra - 8);
}

/* A piece without a row in the embedding could be in any prompt. Rows without a
 * piece are ordinary padding. */
static folio_status check_vocabulary(const folio_model *m)
{
    const folio_gguf_kv *kv = folio_gguf_find(m->gguf, "tokenizer.ggml.tokens");
    if (kv && kv->n > (uint64_t)m->desc.n_vocab)
        return folio_fail(&m->log, FOLIO_E_FORMAT,
                          "the vocabulary has %llu pieces, the embedding only "
                          "%d rows",
                          (unsigned long long)kv->n, m->desc.n_vocab);
    return FOLIO_OK;
}

static folio_status describe(folio_model *m)
{
    folio_status st;
    folio_gguf_str arch, name;
    char known[256];
    folio_tensor_source src = {m->gguf, m->weights, NULL};
    if (!folio_gguf_find(m->gguf, "general.architecture"))
        return folio_fail(&m->log, FOLIO_E_FORMAT,
                          "metadata general.architecture is missing");
    FOLIO_RETURN_IF(folio_gguf_get_str(m->gguf, "general.architecture", &arch));
    const folio_family *fam = folio_family_find(arch.data, arch.len);
    if (!fam) {
        folio_family_names(known, sizeof known);
        return folio_fail(&m->log, FOLIO_E_UNSUPPORTED,
                          "architecture \"%.*s\" is not supported by this "
                          "version (supported: %s)",
                          (int)FOLIO_MIN(arch.len, (size_t)64), arch.data,
                          known);
    }
    memcpy(m->desc.arch, fam->arch, strlen(fam->arch) + 1);
    if (folio_gguf_find(m->gguf, "general.name")) {
        FOLIO_RETURN_IF(folio_gguf_get_str(m->gguf, "general.name", &name));
        size_t n = FOLIO_MIN(name.len, sizeof m->desc.name - 1);
        memcpy(m->desc.name, name.data, n);
        m->desc.name[n] = '\0';
    }
    src.used = folio_calloc(folio_gguf_n_tensors(m->gguf), sizeof(bool));
    if (!src.used)
        return FOLIO_E_NOMEM;
    FOLIO_TRY(fam->describe(&src, fam->arch, &m->desc));
    FOLIO_TRY(check_vocabulary(m));
    warn_unused(m, src.used);
    for (size_t i = 0; i < folio_gguf_n_tensors(m->gguf); i++) {
        const folio_tensor_info *t = folio_gguf_tensor_at(m->gguf, i);
        if (src.used[i])
            m->n_params += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
    }
fail:
    free(src.used);
    return st;
}

static folio_status check_params(const folio_log *log,
                                 const folio_model_params *p)
{
    if (p->size != sizeof *p)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_model_params.size is %zu, expected %zu",
                          p->size, sizeof *p);
    if (p->max_seqs < 1 || p->max_tok < 1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_model_params: max_seqs %d and max_tok %d "
                          "must be at least 1",
                          p->max_seqs, p->max_tok);
    return FOLIO_OK;
}

/* The file at `path`, or where that is NULL the one that `shape` makes. */
static folio_status open_bytes(folio_model *m, const char *path,
                               const folio_model_shape *shape)
{
    size_t size;
    if (path)
        return folio_gguf_open(path, &m->log, &m->gguf);
    FOLIO_RETURN_IF(folio_shape_image(shape, &m->log, &m->image, &size));
    return folio_gguf_open_memory(m->image, size, &m->log, &m->gguf);
}

static folio_status open_model(folio_device *dev, const char *path,
                               const folio_model_shape *shape,
                               const folio_model_params *p, folio_model **out)
{
    folio_status st;
    folio_model_params def;
    if (!p) {
        folio_model_params_default(&def);
        p = &def;
    }
    const folio_log *log = p->log.fn ? &p->log : folio_device_log(dev);
    FOLIO_RETURN_IF(check_params(log, p));
    folio_model *m = folio_calloc(1, sizeof *m);
    if (!m)
        return FOLIO_E_NOMEM;
    atomic_init(&m->refs, 1);
    if (log)
        m->log = *log;
    m->dev = folio_device_retain(dev);
    m->exact = p->exact != 0;
    FOLIO_TRY(open_bytes(m, path, shape));
    FOLIO_TRY(folio_weights_open(dev, &m->weights));
    folio_weights_pack_for(
        m->weights, &(folio_pack_hints){p->max_seqs, p->max_tok, m->exact});
    FOLIO_TRY(describe(m));
    FOLIO_TRY(folio_weights_load(m->weights, p->progress, p->progress_user));
    if (m->image && !folio_device_is_host(dev)) {
        /* The device has it all: gigabytes that nobody reads again. */
        folio_gguf_close(&m->gguf);
        folio_aligned_free(m->image);
        m->image = NULL;
    }
    *out = m;
    return FOLIO_OK;
fail:
    folio_model_close(&m);
    return st;
}

folio_status folio_model_open(folio_device *dev, const char *path,
                              const folio_model_params *p, folio_model **out)
{
    if (!dev)
        return FOLIO_E_INVAL;
    if (!path || !out)
        return folio_fail(p && p->log.fn ? &p->log : folio_device_log(dev),
                          FOLIO_E_INVAL, "folio_model_open: %s is NULL",
                          path ? "out" : "path");
    return open_model(dev, path, NULL, p, out);
}

folio_status folio_model_open_shape(folio_device *dev,
                                    const folio_model_shape *shape,
                                    const folio_model_params *p,
                                    folio_model **out)
{
    if (!dev)
        return FOLIO_E_INVAL;
    if (!shape || !out)
        return folio_fail(p && p->log.fn ? &p->log : folio_device_log(dev),
                          FOLIO_E_INVAL, "folio_model_open_shape: %s is NULL",
                          shape ? "out" : "shape");
    return open_model(dev, NULL, shape, p, out);
}

static uint64_t bytes_of(const folio_weight *w)
{
    return w ? (uint64_t)w->rows *
                   folio_type_row_bytes(w->type, (uint64_t)w->cols)
             : 0;
}

/* What a token costs: every matrix of a layer once, the head for a row. */
static void count_work(const folio_model_desc *d, folio_model_info *i)
{
    i->head_params = (uint64_t)d->head->rows * (uint64_t)d->head->cols;
    i->step_bytes = bytes_of(d->head) + bytes_of(d->out_norm);
    for (int32_t l = 0; l < d->n_layers; l++) {
        const folio_layer_desc *y = &d->layers[l];
        const folio_weight *const matrix[] = {y->wq,   y->wk, y->wv,  y->wo,
                                              y->gate, y->up, y->down};
        const folio_weight *const rest[] = {y->attn_norm, y->post_attn_norm,
                                            y->ffn_norm,  y->post_ffn_norm,
                                            y->q_norm,    y->k_norm,
                                            y->bq,        y->bk,
                                            y->bv,        y->bo,
                                            y->sinks};
        for (size_t k = 0; k < FOLIO_COUNT(matrix); k++) {
            const folio_weight *w = matrix[k];
            i->layer_params += w ? (uint64_t)w->rows * (uint64_t)w->cols : 0;
            i->step_bytes += bytes_of(w);
        }
        for (size_t k = 0; k < FOLIO_COUNT(rest); k++)
            i->step_bytes += bytes_of(rest[k]);
    }
}

static void fill_info(const folio_model *m, folio_model_info *out)
{
    const folio_model_desc *d = &m->desc;
    folio_model_info i = {0};
    memcpy(i.arch, d->arch, sizeof i.arch);
    memcpy(i.name, d->name, sizeof i.name);
    i.n_vocab = d->n_vocab;
    i.dim = d->dim;
    i.n_layers = d->n_layers;
    i.heads = d->heads;
    i.kv_heads = d->kv_heads;
    i.head_dim = d->head_dim;
    i.ff_dim = d->ff_dim;
    i.ctx_train = d->ctx_train;
    for (int32_t l = 0; l < d->n_layers; l++)
        i.window = FOLIO_MAX(i.window, d->layers[l].window);
    i.n_params = m->n_params;
    i.weight_bytes = folio_weights_bytes(m->weights);
    count_work(d, &i);
    *out = i;
}

void folio_model_get_info(const folio_model *m, folio_model_info *info)
{
    folio_model_info i = {0};
    if (!info)
        return;
    if (m)
        fill_info(m, &i);
    i.size = FOLIO_MIN(info->size, sizeof i);
    memcpy(info, &i, i.size);
}
