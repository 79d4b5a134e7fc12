/* model/file.c: a model file as public, read-only introspection: metadata as
 * text, tensors, rows dequantised. Touches no device. */
#include "format/gguf.h"
#include "ops/ops.h"

#include <folio/model.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct folio_model_file {
    folio_gguf *gguf;
    folio_log log;
};

folio_status folio_model_file_open(const char *path, const folio_log *log,
                                   folio_model_file **out)
{
    if (!path || !out)
        return FOLIO_E_INVAL;
    folio_model_file *f = folio_calloc(1, sizeof *f);
    if (!f)
        return FOLIO_E_NOMEM;
    if (log)
        f->log = *log;
    folio_status st = folio_gguf_open(path, &f->log, &f->gguf);
    if (st != FOLIO_OK) {
        free(f);
        return st;
    }
    *out = f;
    return FOLIO_OK;
}

void folio_model_file_close(folio_model_file **f)
{
    if (!f || !*f)
        return;
    folio_gguf_close(&(*f)->gguf);
    FOLIO_FREE(*f);
}

size_t folio_model_file_n_meta(const folio_model_file *f)
{
    return f ? folio_gguf_n_kv(f->gguf) : 0;
}

static const char *const type_names[] = {
    "u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
    "bool", "string", "array", "u64", "i64", "f64"};
static const char *const array_names[] = {
    "array of u8",     "array of i8",    "array of u16", "array of i16",
    "array of u32",    "array of i32",   "array of f32", "array of bool",
    "array of string", "array of array", "array of u64", "array of i64",
    "array of f64"};

folio_status folio_model_file_meta(const folio_model_file *f, size_t i,
                                   folio_model_meta *out)
{
    if (!f || !out)
        return FOLIO_E_INVAL;
    if (i >= folio_gguf_n_kv(f->gguf))
        return FOLIO_E_RANGE;
    const folio_gguf_kv *kv = folio_gguf_kv_at(f->gguf, i);
    out->key = kv->key;
    out->n = kv->n;
    out->type = kv->type == FOLIO_GGUF_ARRAY ? array_names[kv->elem]
                                             : type_names[kv->type];
    return FOLIO_OK;
}

folio_status folio_model_file_meta_text(const folio_model_file *f, size_t i,
                                        uint64_t j, char *buf, size_t cap,
                                        size_t *n)
{
    char text[64];
    const char *from = text;
    size_t len;
    if (!f || !n || (cap && !buf))
        return FOLIO_E_INVAL;
    if (i >= folio_gguf_n_kv(f->gguf))
        return FOLIO_E_RANGE;
    const folio_gguf_kv *kv = folio_gguf_kv_at(f->gguf, i);
    if (j >= kv->n)
        return FOLIO_E_RANGE;
    folio_gguf_type t = kv->type == FOLIO_GGUF_ARRAY ? kv->elem : kv->type;
    switch (t) {
    case FOLIO_GGUF_STRING:
        from = kv->strs[j].data;
        len = kv->strs[j].len;
        break;
    case FOLIO_GGUF_F32:
    case FOLIO_GGUF_F64:
        len = (size_t)snprintf(text, sizeof text, "%.*g",
                               t == FOLIO_GGUF_F32 ? 9 : 17,
                               folio_gguf_elem_f64(kv, j));
        break;
    case FOLIO_GGUF_BOOL:
        len = (size_t)snprintf(text, sizeof text, "%s",
                               folio_gguf_elem_i64(kv, j) ? "true" : "false");
        break;
    case FOLIO_GGUF_U64:
        len = (size_t)snprintf(text, sizeof text, "%" PRIu64,
                               (uint64_t)folio_gguf_elem_i64(kv, j));
        break;
    default:
        len = (size_t)snprintf(text, sizeof text, "%" PRId64,
                               folio_gguf_elem_i64(kv, j));
        break;
    }
    if (cap)
        memcpy(buf, from, FOLIO_MIN(len, cap));
    *n = len;
    return FOLIO_OK;
}

size_t folio_model_file_n_tensors(const folio_model_file *f)
{
    return f ? folio_gguf_n_tensors(f->gguf) : 0;
}

folio_status folio_model_file_tensor(const folio_model_file *f, size_t i,
                                     folio_model_tensor *out)
{
    if (!f || !out)
        return FOLIO_E_INVAL;
    if (i >= folio_gguf_n_tensors(f->gguf))
        return FOLIO_E_RANGE;
    const folio_tensor_info *t = folio_gguf_tensor_at(f->gguf, i);
    out->name = t->name;
    out->type = folio_type_find(t->type)->name;
    out->n_dims = t->n_dims;
    memcpy(out->dims, t->dims, sizeof out->dims);
    out->bytes = t->bytes;
    return FOLIO_OK;
}

folio_status folio_model_file_row(const folio_model_file *f, const char *name,
                                  uint64_t row, float *out, size_t cap)
{
    if (!f || !name || !out)
        return FOLIO_E_INVAL;
    const folio_tensor_info *t = folio_gguf_tensor(f->gguf, name);
    if (!t)
        return folio_fail(&f->log, FOLIO_E_NOT_FOUND, "no tensor named %s",
                          name);
    uint64_t rows = t->dims[1] * t->dims[2] * t->dims[3];
    if (row >= rows)
        return folio_fail(&f->log, FOLIO_E_RANGE,
                          "tensor %s: row %" PRIu64 " of %" PRIu64, name, row,
                          rows);
    if (cap < t->dims[0])
        return folio_fail(&f->log, FOLIO_E_RANGE,
                          "tensor %s: a row has %" PRIu64
                          " values, there is room for %zu",
                          name, t->dims[0], cap);
    if (!folio_dequant_knows(t->type))
        return folio_fail(&f->log, FOLIO_E_UNSUPPORTED,
                          "tensor %s: rows of type %s cannot be shown as "
                          "numbers",
                          name, folio_type_find(t->type)->name);
    size_t bytes = folio_type_row_bytes(t->type, t->dims[0]);
    folio_dequant(t->type, t->data + (size_t)row * bytes, (int64_t)t->dims[0],
                  out);
    return FOLIO_OK;
}
