/* format/gguf.h: GGUF v2/v3 files (single or split) as a directory of typed
 * metadata and tensors over mapped memory. Every byte is untrusted: after a
 * successful open all offsets, lengths and extents are inside the mappings.
 * Source: the GGUF specification in ggml's docs/gguf.md. Touches no device. */
#ifndef FOLIO_FORMAT_GGUF_H
#define FOLIO_FORMAT_GGUF_H

#include "base/base.h"
#include "format/tensor_type.h"

typedef struct folio_gguf folio_gguf;

typedef enum folio_gguf_type {
    FOLIO_GGUF_U8 = 0,
    FOLIO_GGUF_I8,
    FOLIO_GGUF_U16,
    FOLIO_GGUF_I16,
    FOLIO_GGUF_U32,
    FOLIO_GGUF_I32,
    FOLIO_GGUF_F32,
    FOLIO_GGUF_BOOL,
    FOLIO_GGUF_STRING,
    FOLIO_GGUF_ARRAY,
    FOLIO_GGUF_U64,
    FOLIO_GGUF_I64,
    FOLIO_GGUF_F64
} folio_gguf_type;

/* A string inside the mapping: not terminated, may hold zero bytes. */
typedef struct folio_gguf_str {
    const char *data;
    size_t len;
} folio_gguf_str;

typedef struct folio_gguf_kv {
    const char *key;      /* terminated, owned by the directory */
    folio_gguf_type type; /* ARRAY: see elem */
    folio_gguf_type elem; /* of an array, never ARRAY */
    uint64_t n;           /* elements of an array, else 1 */
    const uint8_t *data;  /* scalar or fixed-size elements, little-endian and
                             unaligned; NULL for strings */
    const folio_gguf_str *strs; /* [n] for STRING and arrays of STRING */
} folio_gguf_kv;

/* dims[0] is the fastest (columns), as the file stores it; rows = product of
 * the others. */
typedef struct folio_tensor_info {
    const char *name; /* terminated, owned by the directory */
    folio_type type;
    uint32_t n_dims; /* 1..4 */
    uint64_t dims[4]; /* unused ones are 1 */
    const uint8_t *data;
    size_t bytes; /* exact size of the data */
} folio_tensor_info;

/* Opens `path`; where it is the first shard of a split file the others are
 * found beside it by name. FORMAT names the true cause (an HTML page, a Git LFS
 * pointer, an older GGML file, safetensors, PyTorch pickle, big-endian GGUF,
 * truncation, the bad field). UNSUPPORTED for a GGUF version or a tensor type
 * this build does not know. IO for unreadable files. */
folio_status folio_gguf_open(const char *path, const folio_log *log,
                             folio_gguf **out) FOLIO_NODISCARD;
void folio_gguf_close(folio_gguf **g);

uint32_t folio_gguf_version(const folio_gguf *g);
size_t folio_gguf_n_kv(const folio_gguf *g);
const folio_gguf_kv *folio_gguf_kv_at(const folio_gguf *g, size_t i);
/* NULL when absent. O(1). */
const folio_gguf_kv *folio_gguf_find(const folio_gguf *g, const char *key);

size_t folio_gguf_n_tensors(const folio_gguf *g);
const folio_tensor_info *folio_gguf_tensor_at(const folio_gguf *g, size_t i);
const folio_tensor_info *folio_gguf_tensor(const folio_gguf *g,
                                           const char *name);

/* Typed look-ups that log. NOT_FOUND when absent, FORMAT when the stored type
 * does not fit (any integer type converts when the value does; f32 and f64
 * convert to each other). *out is untouched on failure. */
folio_status folio_gguf_get_i64(const folio_gguf *g, const char *key,
                                int64_t *out) FOLIO_NODISCARD;
folio_status folio_gguf_get_f64(const folio_gguf *g, const char *key,
                                double *out) FOLIO_NODISCARD;
folio_status folio_gguf_get_bool(const folio_gguf *g, const char *key,
                                 bool *out) FOLIO_NODISCARD;
folio_status folio_gguf_get_str(const folio_gguf *g, const char *key,
                                folio_gguf_str *out) FOLIO_NODISCARD;

/* Element i of a scalar (i = 0) or array of numbers or bools; the caller has
 * checked type and i < n. */
int64_t folio_gguf_elem_i64(const folio_gguf_kv *kv, uint64_t i);
double folio_gguf_elem_f64(const folio_gguf_kv *kv, uint64_t i);

const folio_log *folio_gguf_log(const folio_gguf *g);

#endif
