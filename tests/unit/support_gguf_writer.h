/* unit/support_gguf_writer.h: writes small GGUF files for tests, good ones and
 * bad ones. Values are in the types of format/gguf.h. Out of memory aborts, as
 * tests may.
 *
 *     gguf_writer w;
 *     gguf_writer_init(&w);
 *     gguf_put_str(&w, "general.architecture", "llama");
 *     gguf_put_u32(&w, "llama.block_count", 2);
 *     gguf_put_tensor(&w, "output_norm.weight", FOLIO_TYPE_F32, 1,
 *                     (uint64_t[]){16}, values);
 *     gguf_writer_save(&w, path);         or  gguf_writer_build(&w, &size)
 *     gguf_writer_fini(&w);
 *
 * To break one field: build, look its place up in w.kvs[i] or w.tensors[i]
 * (valid after a build), and overwrite it with gguf_patch. */
#ifndef FOLIO_UNIT_SUPPORT_GGUF_WRITER_H
#define FOLIO_UNIT_SUPPORT_GGUF_WRITER_H

#include "format/gguf.h"

typedef struct gguf_bytes {
    uint8_t *data;
    size_t size, capacity;
} gguf_bytes;

/* Byte positions in the last built file. An array has its element type and
 * length behind `type_at`: at type_at + 4 and type_at + 8. */
typedef struct gguf_writer_kv {
    char *key;
    gguf_bytes value; /* value type and value, as stored */
    size_t len_at, key_at, type_at, value_at;
} gguf_writer_kv;

typedef struct gguf_writer_tensor {
    char *name;
    uint32_t type, n_dims;
    uint64_t dims[8];
    uint64_t offset;
    gguf_bytes data;
    size_t len_at, name_at, n_dims_at, dims_at, type_at, offset_at, data_at;
} gguf_writer_tensor;

typedef struct gguf_writer {
    uint32_t version;   /* 3 */
    uint64_t alignment; /* 32; of the layout only, see gguf_put_alignment */
    size_t n_kv, n_tensors;
    gguf_writer_kv *kvs;
    gguf_writer_tensor *tensors;
    size_t version_at, n_tensors_at, n_kv_at, data_at; /* after a build */
} gguf_writer;

void gguf_writer_init(gguf_writer *w);
void gguf_writer_fini(gguf_writer *w);

/* `data` as stored in the file (little-endian), of n values. */
void gguf_put_scalar(gguf_writer *w, const char *key, folio_gguf_type type,
                     const void *data);
void gguf_put_array(gguf_writer *w, const char *key, folio_gguf_type elem,
                    uint64_t n, const void *data);
void gguf_put_u16(gguf_writer *w, const char *key, uint16_t v);
void gguf_put_u32(gguf_writer *w, const char *key, uint32_t v);
void gguf_put_i32(gguf_writer *w, const char *key, int32_t v);
void gguf_put_u64(gguf_writer *w, const char *key, uint64_t v);
void gguf_put_f32(gguf_writer *w, const char *key, float v);
void gguf_put_bool(gguf_writer *w, const char *key, bool v);
void gguf_put_str(gguf_writer *w, const char *key, const char *s);
void gguf_put_bytes(gguf_writer *w, const char *key, const void *s, size_t len);
void gguf_put_strs(gguf_writer *w, const char *key, uint64_t n,
                   const char *const *strs);
/* Writes general.alignment and lays the data out by it. */
void gguf_put_alignment(gguf_writer *w, uint32_t alignment);
/* Any bytes in place of value type and value. */
void gguf_put_raw(gguf_writer *w, const char *key, const void *bytes,
                  size_t size);

/* dims[0] is the row length. `data` in the type's own storage; NULL: zeros.
 * The type must be known and dims fit it (break them with gguf_patch). */
void gguf_put_tensor(gguf_writer *w, const char *name, folio_type type,
                     uint32_t n_dims, const uint64_t *dims, const void *data);

/* The file as owned bytes (free it), of exactly *size bytes: the end of the
 * last tensor is not padded. */
uint8_t *gguf_writer_build(gguf_writer *w, size_t *size);
/* Builds and writes it to `path`; false when that fails. */
bool gguf_writer_save(gguf_writer *w, const char *path);
bool gguf_save_bytes(const char *path, const void *data, size_t size);

/* Stores the low n bytes of v, little-endian, at data[at]. */
void gguf_patch(uint8_t *data, size_t at, size_t n, uint64_t v);

#endif
