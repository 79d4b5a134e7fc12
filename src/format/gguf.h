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
    const char *key;      /* not empty, terminated, owned by the directory */
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
    const char *name; /* not empty, terminated, owned by the directory */
    folio_type type;
    uint32_t n_dims;  /* 1..4 */
    uint64_t dims[4]; /* unused ones are 1 */
    const uint8_t *data;
    size_t bytes; /* exact size of the data */
} folio_tensor_info;

/* Opens `path`; where it is the first shard of a split file the others are
 * found beside it by name (`-00001-of-0000N.gguf`). The metadata is that of
 * the first shard; tensors follow each other in shard order.
 * FORMAT names the true cause (an HTML page, a Git LFS pointer, an older GGML
 * file, safetensors, PyTorch pickle, big-endian GGUF, truncation, the bad
 * field, a duplicate or empty name, tensors that overlap). UNSUPPORTED for a
 * GGUF version or a tensor type this build does not know, and for nested
 * arrays. INVAL where `path` is a later shard: the message names the first. IO
 * for unreadable files, with the names of missing shards. `log` is copied. A
 * directory is read-only after opening: any number of threads may use it. */
folio_status folio_gguf_open(const char *path, const folio_log *log,
                             folio_gguf **out) FOLIO_NODISCARD;
/* The same over `size` bytes that the caller keeps alive and unchanged until
 * close; aligned to 8 bytes if tensor data is to be read in place. A file that
 * is split is UNSUPPORTED here. */
folio_status folio_gguf_open_memory(const void *data, size_t size,
                                    const folio_log *log,
                                    folio_gguf **out) FOLIO_NODISCARD;
/* Frees and sets NULL; NULL inside is fine. Everything the directory handed
 * out ends with it. */
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

/* "u32", "string", ...; for messages. Static. */
const char *folio_gguf_type_name(folio_gguf_type type);
/* One of the eight integer types; BOOL is none. */
bool folio_gguf_type_is_int(folio_gguf_type type);

/* Typed look-ups that log. NOT_FOUND when absent (ask folio_gguf_find first
 * where a key is optional), FORMAT when the stored type does not fit (any
 * integer type converts when the value does; f32 and f64 convert to each
 * other). *out is untouched on failure. */
folio_status folio_gguf_get_i64(const folio_gguf *g, const char *key,
                                int64_t *out) FOLIO_NODISCARD;
folio_status folio_gguf_get_f64(const folio_gguf *g, const char *key,
                                double *out) FOLIO_NODISCARD;
folio_status folio_gguf_get_bool(const folio_gguf *g, const char *key,
                                 bool *out) FOLIO_NODISCARD;
folio_status folio_gguf_get_str(const folio_gguf *g, const char *key,
                                folio_gguf_str *out) FOLIO_NODISCARD;
/* An array whose elements are exactly of type `elem`; where `elem` is an
 * integer type any integer type will do (read with folio_gguf_elem_i64). So
 * that scores stored as bytes are refused, not misread. */
folio_status folio_gguf_get_array(const folio_gguf *g, const char *key,
                                  folio_gguf_type elem,
                                  const folio_gguf_kv **out) FOLIO_NODISCARD;

/* Element i of a scalar (i = 0) or array of numbers or bools; the caller has
 * checked type and i < n. elem_i64 wraps a u64 above INT64_MAX and truncates
 * floats towards zero, clamped to the range, NaN to 0. */
int64_t folio_gguf_elem_i64(const folio_gguf_kv *kv, uint64_t i);
double folio_gguf_elem_f64(const folio_gguf_kv *kv, uint64_t i);

const folio_log *folio_gguf_log(const folio_gguf *g);

#endif
