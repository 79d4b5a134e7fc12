/* format/gguf_value.c: the value types of GGUF metadata: names, sizes, and
 * numbers read from unaligned little-endian bytes on any host. */
#include "format/gguf_shard.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} value_types[] = {
    [FOLIO_GGUF_U8] = {"u8", 1},         [FOLIO_GGUF_I8] = {"i8", 1},
    [FOLIO_GGUF_U16] = {"u16", 2},       [FOLIO_GGUF_I16] = {"i16", 2},
    [FOLIO_GGUF_U32] = {"u32", 4},       [FOLIO_GGUF_I32] = {"i32", 4},
    [FOLIO_GGUF_F32] = {"f32", 4},       [FOLIO_GGUF_BOOL] = {"bool", 1},
    [FOLIO_GGUF_STRING] = {"string", 0}, [FOLIO_GGUF_ARRAY] = {"array", 0},
    [FOLIO_GGUF_U64] = {"u64", 8},       [FOLIO_GGUF_I64] = {"i64", 8},
    [FOLIO_GGUF_F64] = {"f64", 8},
};

const char *folio_gguf_type_name(folio_gguf_type type)
{
    size_t i = (size_t)type;
    return i < FOLIO_COUNT(value_types) ? value_types[i].name : "unknown";
}

size_t folio_gguf_type_bytes(uint32_t type)
{
    return type < FOLIO_COUNT(value_types) ? value_types[type].bytes : 0;
}

bool folio_gguf_type_is_int(folio_gguf_type type)
{
    switch (type) {
    case FOLIO_GGUF_U8:
    case FOLIO_GGUF_I8:
    case FOLIO_GGUF_U16:
    case FOLIO_GGUF_I16:
    case FOLIO_GGUF_U32:
    case FOLIO_GGUF_I32:
    case FOLIO_GGUF_U64:
    case FOLIO_GGUF_I64:
        return true;
    case FOLIO_GGUF_F32:
    case FOLIO_GGUF_BOOL:
    case FOLIO_GGUF_STRING:
    case FOLIO_GGUF_ARRAY:
    case FOLIO_GGUF_F64:
        break;
    }
    return false;
}

const char *folio_gguf_kv_type_text(const folio_gguf_kv *kv, char buf[40])
{
    if (kv->type == FOLIO_GGUF_ARRAY)
        snprintf(buf, 40, "array of %s", folio_gguf_type_name(kv->elem));
    else
        snprintf(buf, 40, "%s", folio_gguf_type_name(kv->type));
    return buf;
}

static folio_gguf_type elem_type(const folio_gguf_kv *kv)
{
    return kv->type == FOLIO_GGUF_ARRAY ? kv->elem : kv->type;
}

static uint64_t read_bits(const folio_gguf_kv *kv, uint64_t i)
{
    size_t bytes = folio_gguf_type_bytes((uint32_t)elem_type(kv));
    const uint8_t *p = kv->data + i * bytes;
    uint64_t v = 0;
    for (size_t b = bytes; b > 0; b--)
        v = v << 8 | p[b - 1];
    return v;
}

static double read_float(folio_gguf_type type, uint64_t bits)
{
    if (type == FOLIO_GGUF_F32) {
        uint32_t low = (uint32_t)bits;
        float f;
        memcpy(&f, &low, sizeof f);
        return (double)f;
    }
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

static int64_t clamp_i64(double d)
{
    if (isnan(d))
        return 0;
    if (d >= 0x1p63)
        return INT64_MAX;
    if (d < -0x1p63)
        return INT64_MIN;
    return (int64_t)d;
}

int64_t folio_gguf_elem_i64(const folio_gguf_kv *kv, uint64_t i)
{
    folio_gguf_type type = elem_type(kv);
    uint64_t bits = read_bits(kv, i);
    switch (type) {
    case FOLIO_GGUF_I8:
        return (int8_t)bits;
    case FOLIO_GGUF_I16:
        return (int16_t)bits;
    case FOLIO_GGUF_I32:
        return (int32_t)bits;
    case FOLIO_GGUF_F32:
    case FOLIO_GGUF_F64:
        return clamp_i64(read_float(type, bits));
    case FOLIO_GGUF_U8:
    case FOLIO_GGUF_U16:
    case FOLIO_GGUF_U32:
    case FOLIO_GGUF_BOOL:
    case FOLIO_GGUF_U64:
    case FOLIO_GGUF_I64:
    case FOLIO_GGUF_STRING:
    case FOLIO_GGUF_ARRAY:
        break;
    }
    return (int64_t)bits;
}

double folio_gguf_elem_f64(const folio_gguf_kv *kv, uint64_t i)
{
    folio_gguf_type type = elem_type(kv);
    if (type == FOLIO_GGUF_F32 || type == FOLIO_GGUF_F64)
        return read_float(type, read_bits(kv, i));
    if (type == FOLIO_GGUF_U64)
        return (double)read_bits(kv, i);
    return (double)folio_gguf_elem_i64(kv, i);
}

bool folio_gguf_kv_i64(const folio_gguf_kv *kv, int64_t *out)
{
    if (!folio_gguf_type_is_int(kv->type))
        return false;
    int64_t v = folio_gguf_elem_i64(kv, 0);
    if (kv->type == FOLIO_GGUF_U64 && v < 0)
        return false;
    *out = v;
    return true;
}
