/* unit/support_gguf_writer.c: see the header. Written from the GGUF
 * specification, apart from the reader it tests. */
#include "unit/support_gguf_writer.h"

#include <stdio.h>
#include <string.h>

static void append(gguf_bytes *b, const void *data, size_t n)
{
    if (b->capacity - b->size < n) {
        b->capacity = 2 * b->capacity + n;
        b->data = realloc(b->data, b->capacity);
        if (!b->data)
            abort();
    }
    if (n && data)
        memcpy(b->data + b->size, data, n);
    else if (n)
        memset(b->data + b->size, 0, n);
    b->size += n;
}

static void append_int(gguf_bytes *b, size_t n, uint64_t v)
{
    uint8_t bytes[8];
    gguf_patch(bytes, 0, n, v);
    append(b, bytes, n);
}

static void append_str(gguf_bytes *b, const void *s, size_t len)
{
    append_int(b, 8, len);
    append(b, s, len);
}

void gguf_patch(uint8_t *data, size_t at, size_t n, uint64_t v)
{
    for (size_t i = 0; i < n; i++)
        data[at + i] = (uint8_t)(v >> (8 * i));
}

void gguf_writer_init(gguf_writer *w)
{
    *w = (gguf_writer){.version = 3, .alignment = 32};
}

void gguf_writer_fini(gguf_writer *w)
{
    for (size_t i = 0; i < w->n_kv; i++) {
        free(w->kvs[i].key);
        free(w->kvs[i].value.data);
    }
    for (size_t i = 0; i < w->n_tensors; i++) {
        free(w->tensors[i].name);
        free(w->tensors[i].data.data);
    }
    free(w->kvs);
    free(w->tensors);
    gguf_writer_init(w);
}

static gguf_bytes *new_kv(gguf_writer *w, const char *key)
{
    w->kvs = realloc(w->kvs, (w->n_kv + 1) * sizeof *w->kvs);
    if (!w->kvs)
        abort();
    gguf_writer_kv *kv = &w->kvs[w->n_kv++];
    *kv = (gguf_writer_kv){.key = folio_strndup(key, strlen(key))};
    if (!kv->key)
        abort();
    return &kv->value;
}

static size_t value_bytes(folio_gguf_type type)
{
    switch (type) {
    case FOLIO_GGUF_U8:
    case FOLIO_GGUF_I8:
    case FOLIO_GGUF_BOOL:
        return 1;
    case FOLIO_GGUF_U16:
    case FOLIO_GGUF_I16:
        return 2;
    case FOLIO_GGUF_U32:
    case FOLIO_GGUF_I32:
    case FOLIO_GGUF_F32:
        return 4;
    case FOLIO_GGUF_U64:
    case FOLIO_GGUF_I64:
    case FOLIO_GGUF_F64:
        return 8;
    case FOLIO_GGUF_STRING:
    case FOLIO_GGUF_ARRAY:
        break;
    }
    abort();
}

void gguf_put_scalar(gguf_writer *w, const char *key, folio_gguf_type type,
                     const void *data)
{
    gguf_bytes *b = new_kv(w, key);
    append_int(b, 4, (uint64_t)type);
    append(b, data, value_bytes(type));
}

void gguf_put_array(gguf_writer *w, const char *key, folio_gguf_type elem,
                    uint64_t n, const void *data)
{
    gguf_bytes *b = new_kv(w, key);
    append_int(b, 4, FOLIO_GGUF_ARRAY);
    append_int(b, 4, (uint64_t)elem);
    append_int(b, 8, n);
    append(b, data, (size_t)n * value_bytes(elem));
}

static void put_int(gguf_writer *w, const char *key, folio_gguf_type type,
                    uint64_t v)
{
    gguf_bytes *b = new_kv(w, key);
    append_int(b, 4, (uint64_t)type);
    append_int(b, value_bytes(type), v);
}

void gguf_put_u16(gguf_writer *w, const char *key, uint16_t v)
{
    put_int(w, key, FOLIO_GGUF_U16, v);
}

void gguf_put_u32(gguf_writer *w, const char *key, uint32_t v)
{
    put_int(w, key, FOLIO_GGUF_U32, v);
}

void gguf_put_i32(gguf_writer *w, const char *key, int32_t v)
{
    put_int(w, key, FOLIO_GGUF_I32, (uint64_t)(int64_t)v);
}

void gguf_put_u64(gguf_writer *w, const char *key, uint64_t v)
{
    put_int(w, key, FOLIO_GGUF_U64, v);
}

void gguf_put_f32(gguf_writer *w, const char *key, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_int(w, key, FOLIO_GGUF_F32, bits);
}

void gguf_put_bool(gguf_writer *w, const char *key, bool v)
{
    put_int(w, key, FOLIO_GGUF_BOOL, v);
}

void gguf_put_str(gguf_writer *w, const char *key, const char *s)
{
    gguf_put_bytes(w, key, s, strlen(s));
}

void gguf_put_bytes(gguf_writer *w, const char *key, const void *s, size_t len)
{
    gguf_bytes *b = new_kv(w, key);
    append_int(b, 4, FOLIO_GGUF_STRING);
    append_str(b, s, len);
}

void gguf_put_strs(gguf_writer *w, const char *key, uint64_t n,
                   const char *const *strs)
{
    gguf_bytes *b = new_kv(w, key);
    append_int(b, 4, FOLIO_GGUF_ARRAY);
    append_int(b, 4, FOLIO_GGUF_STRING);
    append_int(b, 8, n);
    for (uint64_t i = 0; i < n; i++)
        append_str(b, strs[i], strlen(strs[i]));
}

void gguf_put_alignment(gguf_writer *w, uint32_t alignment)
{
    gguf_put_u32(w, "general.alignment", alignment);
    w->alignment = alignment;
}

void gguf_put_raw(gguf_writer *w, const char *key, const void *bytes,
                  size_t size)
{
    append(new_kv(w, key), bytes, size);
}

void gguf_put_tensor(gguf_writer *w, const char *name, folio_type type,
                     uint32_t n_dims, const uint64_t *dims, const void *data)
{
    w->tensors = realloc(w->tensors, (w->n_tensors + 1) * sizeof *w->tensors);
    if (!w->tensors || n_dims > 8)
        abort();
    gguf_writer_tensor *t = &w->tensors[w->n_tensors++];
    *t = (gguf_writer_tensor){.name = folio_strndup(name, strlen(name)),
                              .type = (uint32_t)type,
                              .n_dims = n_dims};
    size_t bytes = folio_type_row_bytes(type, dims[0]);
    if (!t->name || !bytes)
        abort();
    for (uint32_t d = 0; d < n_dims; d++) {
        t->dims[d] = dims[d];
        bytes *= d ? (size_t)dims[d] : 1;
    }
    append(&t->data, data, bytes);
}

static void pad(gguf_bytes *b, uint64_t alignment)
{
    while (b->size % alignment)
        append_int(b, 1, 0);
}

uint8_t *gguf_writer_build(gguf_writer *w, size_t *size)
{
    gguf_bytes b = {0};
    append(&b, "GGUF", 4);
    w->version_at = b.size;
    append_int(&b, 4, w->version);
    w->n_tensors_at = b.size;
    append_int(&b, 8, w->n_tensors);
    w->n_kv_at = b.size;
    append_int(&b, 8, w->n_kv);
    for (size_t i = 0; i < w->n_kv; i++) {
        gguf_writer_kv *kv = &w->kvs[i];
        kv->len_at = b.size;
        kv->key_at = b.size + 8;
        append_str(&b, kv->key, strlen(kv->key));
        kv->type_at = b.size;
        kv->value_at = b.size + 4;
        append(&b, kv->value.data, kv->value.size);
    }
    uint64_t offset = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        gguf_writer_tensor *t = &w->tensors[i];
        t->len_at = b.size;
        t->name_at = b.size + 8;
        append_str(&b, t->name, strlen(t->name));
        t->n_dims_at = b.size;
        append_int(&b, 4, t->n_dims);
        t->dims_at = b.size;
        for (uint32_t d = 0; d < t->n_dims; d++)
            append_int(&b, 8, t->dims[d]);
        t->type_at = b.size;
        append_int(&b, 4, t->type);
        t->offset = offset;
        t->offset_at = b.size;
        append_int(&b, 8, offset);
        offset += t->data.size;
        offset += (w->alignment - offset % w->alignment) % w->alignment;
    }
    if (w->n_tensors)
        pad(&b, w->alignment);
    w->data_at = b.size;
    for (size_t i = 0; i < w->n_tensors; i++) {
        pad(&b, w->alignment);
        w->tensors[i].data_at = b.size;
        append(&b, w->tensors[i].data.data, w->tensors[i].data.size);
    }
    *size = b.size;
    /* Exactly as large as the file, so that a read past its end is seen. */
    uint8_t *exact = realloc(b.data, b.size);
    if (!exact)
        abort();
    return exact;
}

bool gguf_save_bytes(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f)
        return false;
    bool ok = fwrite(data, 1, size, f) == size;
    return fclose(f) == 0 && ok;
}

bool gguf_writer_save(gguf_writer *w, const char *path)
{
    size_t size;
    uint8_t *data = gguf_writer_build(w, &size);
    bool ok = gguf_save_bytes(path, data, size);
    free(data);
    return ok;
}
