/* format/gguf_shard.h: one GGUF file's bytes, checked and listed. Private to
 * gguf.c and gguf_shard.c; knows neither paths nor other shards. */
#ifndef FOLIO_FORMAT_GGUF_SHARD_H
#define FOLIO_FORMAT_GGUF_SHARD_H

#include "format/gguf.h"
#include "format/name_table.h"

typedef struct folio_gguf_shard {
    uint32_t version;
    folio_gguf_kv *kvs;
    size_t n_kv;
    folio_name_table kv_table;
    folio_tensor_info *tensors;
    size_t n_tensors;
} folio_gguf_shard;

/* Reads data[size], called `name` in messages. Afterwards every pointer of the
 * shard lies inside data or is owned by the shard. */
folio_status folio_gguf_shard_init(folio_gguf_shard *s, const char *name,
                                   const uint8_t *data, size_t size,
                                   const folio_log *log) FOLIO_NODISCARD;
/* Safe on a zeroed struct. */
void folio_gguf_shard_fini(folio_gguf_shard *s);
/* NULL when absent. */
const folio_gguf_kv *folio_gguf_shard_find(const folio_gguf_shard *s,
                                           const char *key);
/* Bytes of a value of a fixed-size type, 0 for STRING, ARRAY and unknown. */
size_t folio_gguf_type_bytes(uint32_t type);
/* `kv` as int64; false where it is no integer or does not fit. */
bool folio_gguf_kv_i64(const folio_gguf_kv *kv, int64_t *out);
/* A key's type for messages: "u32", "array of string". Written to buf. */
const char *folio_gguf_kv_type_text(const folio_gguf_kv *kv, char buf[40]);

#endif
