/* format/gguf_shard.c: the bytes of one GGUF file. Trusts nothing: every count
 * and length is compared with the bytes that remain before it is used, and
 * nothing is allocated for a count before that. Reads no tensor data. */
#include "format/gguf_shard.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "format/file_kind.h"

/* The specification's limit for keys; for tensor names it says 64, which
 * existing files break, so both get the wider one. */
#define MAX_NAME_BYTES 65535u
/* The fewest bytes an entry can take: what bounds the counts in the header. */
#define MIN_KV_BYTES      (8 + 1 + 4 + 1)
#define MIN_TENSOR_BYTES  (8 + 1 + 4 + 8 + 4 + 8)
#define DEFAULT_ALIGNMENT 32u

typedef struct cursor {
    const char *file;
    const uint8_t *data;
    size_t size, pos;
    const folio_log *log;
    char item[200]; /* what is being read, for messages */
} cursor;

/* Names come from the file: made printable, on one line, and short. */
static void name_item(cursor *c, const char *kind, const char *name, size_t len)
{
    char text[160];
    size_t n = 0, i = 0;
    for (; i < len && n < sizeof text - 8; i++) {
        uint8_t ch = (uint8_t)name[i];
        if (ch >= 0x20 && ch < 0x7f)
            text[n++] = (char)ch;
        else
            n += (size_t)snprintf(text + n, 5, "\\x%02x", ch);
    }
    if (i < len)
        n += (size_t)snprintf(text + n, 4, "...");
    text[n] = '\0';
    snprintf(c->item, sizeof c->item, "%s '%s'", kind, text);
}

static folio_status take(cursor *c, uint64_t n, const char *part,
                         const uint8_t **out)
{
    if (n > c->size - c->pos)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: cut short or damaged: %s of %s needs %" PRIu64
                          " bytes at byte %zu, but the file has %zu",
                          c->file, part, c->item, n, c->pos, c->size);
    *out = c->data + c->pos;
    c->pos += (size_t)n;
    return FOLIO_OK;
}

static uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
           (uint32_t)p[3] << 24;
}

static uint64_t load_u64(const uint8_t *p)
{
    return load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

static folio_status take_u32(cursor *c, const char *part, uint32_t *out)
{
    const uint8_t *p = NULL;
    FOLIO_RETURN_IF(take(c, 4, part, &p));
    *out = load_u32(p);
    return FOLIO_OK;
}

static folio_status take_u64(cursor *c, const char *part, uint64_t *out)
{
    const uint8_t *p = NULL;
    FOLIO_RETURN_IF(take(c, 8, part, &p));
    *out = load_u64(p);
    return FOLIO_OK;
}

static folio_status take_str(cursor *c, const char *part, folio_gguf_str *out)
{
    uint64_t len;
    const uint8_t *p = NULL;
    FOLIO_RETURN_IF(take_u64(c, "the length", &len));
    FOLIO_RETURN_IF(take(c, len, part, &p));
    *out = (folio_gguf_str){(const char *)p, (size_t)len};
    return FOLIO_OK;
}

/* A key or tensor name; *out is owned by the caller. From here on messages
 * name it. */
static folio_status take_name(cursor *c, const char *kind, char **out)
{
    folio_gguf_str s;
    FOLIO_RETURN_IF(take_str(c, "the name", &s));
    if (s.len == 0)
        return folio_fail(c->log, FOLIO_E_FORMAT, "%s: %s has an empty name",
                          c->file, c->item);
    name_item(c, kind, s.data, s.len);
    if (s.len > MAX_NAME_BYTES)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: the name of %s has %zu bytes, at most %u are "
                          "possible",
                          c->file, c->item, s.len, MAX_NAME_BYTES);
    /* So that names are C strings and messages with them stay on one line. */
    for (size_t i = 0; i < s.len; i++)
        if ((uint8_t)s.data[i] < 0x20 || s.data[i] == 0x7f)
            return folio_fail(c->log, FOLIO_E_FORMAT,
                              "%s: the name of %s holds the control character "
                              "0x%02x",
                              c->file, c->item, (uint8_t)s.data[i]);
    char *copy = folio_strndup(s.data, s.len);
    if (!copy)
        return folio_fail(c->log, FOLIO_E_NOMEM, "%s: no memory for %s",
                          c->file, c->item);
    *out = copy;
    return FOLIO_OK;
}

/* Room for one more item; capacity is n rounded up to a power of two. */
static folio_status grow(const cursor *c, void **items, size_t n, size_t size)
{
    if (n != 0 && (n & (n - 1)) != 0)
        return FOLIO_OK;
    void *p = folio_realloc(*items, n ? 2 * n : 1, size);
    if (!p)
        return folio_fail(c->log, FOLIO_E_NOMEM,
                          "%s: no memory for the list of keys and tensors",
                          c->file);
    *items = p;
    return FOLIO_OK;
}

/* ---- metadata ---------------------------------------------------------- */

static folio_status take_strs(cursor *c, uint64_t n, folio_gguf_kv *kv)
{
    if (n > (c->size - c->pos) / 8)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: cut short or damaged: %s says %" PRIu64
                          " strings, but only %zu bytes follow",
                          c->file, c->item, n, c->size - c->pos);
    /* Once for the lengths, so that a damaged file allocates nothing. */
    size_t start = c->pos;
    folio_gguf_str s;
    for (uint64_t i = 0; i < n; i++)
        FOLIO_RETURN_IF(take_str(c, "a string", &s));
    c->pos = start;
    folio_gguf_str *strs = folio_calloc((size_t)n, sizeof *strs);
    if (!strs)
        return folio_fail(c->log, FOLIO_E_NOMEM,
                          "%s: no memory for the %" PRIu64 " strings of %s",
                          c->file, n, c->item);
    kv->strs = strs;
    for (uint64_t i = 0; i < n; i++)
        FOLIO_RETURN_IF(take_str(c, "a string", &strs[i]));
    return FOLIO_OK;
}

static folio_status take_fixed(cursor *c, folio_gguf_type type, uint64_t n,
                               folio_gguf_kv *kv)
{
    size_t bytes = folio_gguf_type_bytes((uint32_t)type);
    if (n > (c->size - c->pos) / bytes)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: cut short or damaged: %s says %" PRIu64
                          " values of %zu bytes, but only %zu bytes follow",
                          c->file, c->item, n, bytes, c->size - c->pos);
    FOLIO_RETURN_IF(take(c, n * bytes, "the value", &kv->data));
    if (type != FOLIO_GGUF_BOOL)
        return FOLIO_OK;
    for (uint64_t i = 0; i < n; i++)
        if (kv->data[i] > 1)
            return folio_fail(c->log, FOLIO_E_FORMAT,
                              "%s: %s holds the bool %u, only 0 and 1 are "
                              "possible",
                              c->file, c->item, kv->data[i]);
    return FOLIO_OK;
}

static folio_status take_value(cursor *c, folio_gguf_kv *kv)
{
    uint32_t type, elem;
    uint64_t n = 1;
    FOLIO_RETURN_IF(take_u32(c, "the value type", &type));
    if (type > FOLIO_GGUF_F64)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: %s has the unknown value type %" PRIu32
                          ", known are 0 to %d",
                          c->file, c->item, type, FOLIO_GGUF_F64);
    kv->type = (folio_gguf_type)type;
    kv->elem = kv->type;
    kv->n = 1;
    if (kv->type == FOLIO_GGUF_ARRAY) {
        FOLIO_RETURN_IF(take_u32(c, "the element type", &elem));
        if (elem == FOLIO_GGUF_ARRAY)
            return folio_fail(c->log, FOLIO_E_UNSUPPORTED,
                              "%s: %s is an array of arrays, which is not "
                              "supported",
                              c->file, c->item);
        if (elem > FOLIO_GGUF_F64)
            return folio_fail(c->log, FOLIO_E_FORMAT,
                              "%s: %s has the unknown array element type "
                              "%" PRIu32 ", known are 0 to %d",
                              c->file, c->item, elem, FOLIO_GGUF_F64);
        FOLIO_RETURN_IF(take_u64(c, "the array length", &n));
        kv->elem = (folio_gguf_type)elem;
        kv->n = n;
    }
    return kv->elem == FOLIO_GGUF_STRING ? take_strs(c, n, kv)
                                         : take_fixed(c, kv->elem, n, kv);
}

static folio_status take_kvs(cursor *c, uint64_t n_kv, folio_gguf_shard *s)
{
    for (uint64_t i = 0; i < n_kv; i++) {
        char *key = NULL;
        snprintf(c->item, sizeof c->item, "key %" PRIu64 " of %" PRIu64, i + 1,
                 n_kv);
        FOLIO_RETURN_IF(grow(c, (void **)&s->kvs, s->n_kv, sizeof *s->kvs));
        FOLIO_RETURN_IF(take_name(c, "key", &key));
        folio_gguf_kv *kv = &s->kvs[s->n_kv++];
        *kv = (folio_gguf_kv){.key = key};
        FOLIO_RETURN_IF(take_value(c, kv));
    }
    size_t dup = 0;
    folio_status st = folio_name_table_init(&s->kv_table, s->kvs, s->n_kv,
                                            sizeof *s->kvs, &dup);
    if (st == FOLIO_E_INVAL) {
        name_item(c, "key", s->kvs[dup].key, strlen(s->kvs[dup].key));
        return folio_fail(c->log, FOLIO_E_FORMAT, "%s: %s occurs twice",
                          c->file, c->item);
    }
    if (st != FOLIO_OK)
        return folio_fail(c->log, st, "%s: no memory for the table of %zu keys",
                          c->file, s->n_kv);
    return FOLIO_OK;
}

/* *out stays as it is where the file does not say. */
static folio_status find_alignment(const cursor *c, const folio_gguf_shard *s,
                                   uint32_t *out)
{
    const folio_gguf_kv *kv = folio_gguf_shard_find(s, "general.alignment");
    char type[40];
    if (!kv)
        return FOLIO_OK;
    if (kv->type != FOLIO_GGUF_U32)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: general.alignment is of type %s, it must be u32",
                          c->file, folio_gguf_kv_type_text(kv, type));
    uint32_t a = load_u32(kv->data);
    if (a < 8 || (a & (a - 1)) != 0)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: general.alignment is %" PRIu32
                          ", it must be a power of two and at least 8",
                          c->file, a);
    *out = a;
    return FOLIO_OK;
}

/* ---- tensors ----------------------------------------------------------- */

/* *bytes = size of the data, from dims and type; FORMAT names the tensor. */
static folio_status size_tensor(const cursor *c, const folio_type_info *type,
                                folio_tensor_info *t)
{
    uint64_t values = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        if (t->dims[d] == 0)
            return folio_fail(c->log, FOLIO_E_FORMAT,
                              "%s: dimension %" PRIu32 " of %s is 0", c->file,
                              d, c->item);
        if (t->dims[d] > (uint64_t)INT64_MAX / values)
            return folio_fail(c->log, FOLIO_E_FORMAT,
                              "%s: %s has more than 2^63 values (dimension "
                              "%" PRIu32 " is %" PRIu64 ")",
                              c->file, c->item, d, t->dims[d]);
        values *= t->dims[d];
    }
    if (t->dims[0] % type->block_values != 0)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: a row of %s has %" PRIu64
                          " values, type %s needs a multiple of %" PRIu32,
                          c->file, c->item, t->dims[0], type->name,
                          type->block_values);
    uint64_t blocks = values / type->block_values;
    if (blocks > SIZE_MAX ||
        !folio_mul_size((size_t)blocks, type->block_bytes, &t->bytes))
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: %s of %" PRIu64 " values in type %s does not "
                          "fit this address space",
                          c->file, c->item, values, type->name);
    return FOLIO_OK;
}

/* One entry; its offset from the data section goes to *offset. */
static folio_status take_tensor(cursor *c, folio_tensor_info *t,
                                uint64_t *offset)
{
    uint32_t type_id;
    FOLIO_RETURN_IF(take_u32(c, "the number of dimensions", &t->n_dims));
    if (t->n_dims < 1 || t->n_dims > 4)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: %s has %" PRIu32
                          " dimensions, 1 to 4 are possible",
                          c->file, c->item, t->n_dims);
    for (uint32_t d = 0; d < 4; d++)
        t->dims[d] = 1;
    for (uint32_t d = 0; d < t->n_dims; d++)
        FOLIO_RETURN_IF(take_u64(c, "a dimension", &t->dims[d]));
    FOLIO_RETURN_IF(take_u32(c, "the type", &type_id));
    FOLIO_RETURN_IF(take_u64(c, "the offset", offset));
    const folio_type_info *type = folio_type_find(type_id);
    if (!type)
        return folio_fail(c->log, FOLIO_E_UNSUPPORTED,
                          "%s: %s has type %" PRIu32
                          " (%s), which this version does not support; it "
                          "supports %s",
                          c->file, c->item, type_id,
                          folio_type_any_name(type_id), folio_type_names());
    t->type = type->type;
    return size_tensor(c, type, t);
}

/* Now that the end of the directory is known: offsets become pointers. */
static folio_status place_tensor(cursor *c, uint64_t data_at,
                                 uint32_t alignment, uint64_t offset,
                                 folio_tensor_info *t)
{
    name_item(c, "tensor", t->name, strlen(t->name));
    if (offset % alignment != 0)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: the data of %s begins at offset %" PRIu64
                          ", which is no multiple of the alignment %" PRIu32,
                          c->file, c->item, offset, alignment);
    if (data_at > c->size || offset > c->size - data_at ||
        t->bytes > c->size - data_at - offset)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: incomplete or damaged: %s needs %zu bytes at "
                          "offset %" PRIu64 " of the data, which begins at "
                          "byte %" PRIu64 " (alignment %" PRIu32
                          "), but the file has %zu bytes",
                          c->file, c->item, t->bytes, offset, data_at,
                          alignment, c->size);
    t->data = c->data + (size_t)data_at + (size_t)offset;
    return FOLIO_OK;
}

static int by_data(const void *a, const void *b)
{
    const folio_tensor_info *const *x = a, *const *y = b;
    if ((*x)->data == (*y)->data)
        return 0;
    return (*x)->data < (*y)->data ? -1 : 1;
}

/* No two tensors share bytes, and no second GGUF file hangs on the end. */
static folio_status check_extents(cursor *c, const folio_gguf_shard *s,
                                  uint32_t alignment)
{
    folio_status st = FOLIO_OK;
    size_t end = c->pos;
    const folio_tensor_info **sorted =
        folio_calloc(s->n_tensors, sizeof *sorted);
    if (!sorted)
        return folio_fail(c->log, FOLIO_E_NOMEM,
                          "%s: no memory to sort %zu tensors", c->file,
                          s->n_tensors);
    for (size_t i = 0; i < s->n_tensors; i++)
        sorted[i] = &s->tensors[i];
    qsort(sorted, s->n_tensors, sizeof *sorted, by_data);
    for (size_t i = 1; i < s->n_tensors; i++) {
        const folio_tensor_info *a = sorted[i - 1], *b = sorted[i];
        if ((size_t)(b->data - a->data) >= a->bytes)
            continue;
        cursor other = *c;
        name_item(c, "tensor", a->name, strlen(a->name));
        name_item(&other, "tensor", b->name, strlen(b->name));
        st = folio_fail(c->log, FOLIO_E_FORMAT,
                        "%s: the data of %s (%zu bytes at byte %zu) overlaps "
                        "that of %s (at byte %zu)",
                        c->file, c->item, a->bytes, (size_t)(a->data - c->data),
                        other.item, (size_t)(b->data - c->data));
        goto fail;
    }
    if (s->n_tensors > 0) {
        const folio_tensor_info *last = sorted[s->n_tensors - 1];
        end = (size_t)(last->data - c->data) + last->bytes;
    }
    size_t padded = end + (alignment - end % alignment) % alignment;
    for (int i = 0; i < 2; i++) {
        size_t at = i ? padded : end;
        if (at <= c->size && c->size - at >= 4 &&
            memcmp(c->data + at, "GGUF", 4) == 0) {
            st = folio_fail(c->log, FOLIO_E_FORMAT,
                            "%s: another GGUF file begins at byte %zu: shards "
                            "joined end to end? Keep them as separate files in "
                            "one folder and open the first",
                            c->file, at);
            goto fail;
        }
    }
fail:
    free(sorted);
    return st;
}

static folio_status check_tensor_names(cursor *c, const folio_gguf_shard *s)
{
    folio_name_table table = {0};
    size_t dup = 0;
    folio_status st = folio_name_table_init(&table, s->tensors, s->n_tensors,
                                            sizeof *s->tensors, &dup);
    folio_name_table_fini(&table);
    if (st == FOLIO_E_INVAL) {
        name_item(c, "tensor", s->tensors[dup].name,
                  strlen(s->tensors[dup].name));
        return folio_fail(c->log, FOLIO_E_FORMAT, "%s: %s occurs twice",
                          c->file, c->item);
    }
    if (st != FOLIO_OK)
        return folio_fail(c->log, st, "%s: no memory for the table of tensors",
                          c->file);
    return FOLIO_OK;
}

static folio_status take_tensors(cursor *c, uint64_t n_tensors,
                                 folio_gguf_shard *s)
{
    folio_status st = FOLIO_OK;
    uint64_t *offsets = NULL;
    uint32_t alignment = DEFAULT_ALIGNMENT;

    FOLIO_TRY(find_alignment(c, s, &alignment));
    for (uint64_t i = 0; i < n_tensors; i++) {
        char *name = NULL;
        snprintf(c->item, sizeof c->item, "tensor %" PRIu64 " of %" PRIu64,
                 i + 1, n_tensors);
        FOLIO_TRY(
            grow(c, (void **)&s->tensors, s->n_tensors, sizeof *s->tensors));
        FOLIO_TRY(grow(c, (void **)&offsets, s->n_tensors, sizeof *offsets));
        FOLIO_TRY(take_name(c, "tensor", &name));
        folio_tensor_info *t = &s->tensors[s->n_tensors++];
        *t = (folio_tensor_info){.name = name};
        FOLIO_TRY(take_tensor(c, t, &offsets[i]));
    }
    uint64_t past = c->pos % alignment;
    uint64_t data_at = c->pos + (past ? alignment - past : 0);
    for (size_t i = 0; i < s->n_tensors; i++)
        FOLIO_TRY(
            place_tensor(c, data_at, alignment, offsets[i], &s->tensors[i]));
    FOLIO_TRY(check_tensor_names(c, s));
    FOLIO_TRY(check_extents(c, s, alignment));
fail:
    free(offsets);
    return st;
}

/* ---- the whole file ---------------------------------------------------- */

static folio_status check_magic(const cursor *c)
{
    if (c->size >= 4 && memcmp(c->data, "GGUF", 4) == 0)
        return FOLIO_OK;
    if (c->size > 0 && c->size < 4 && memcmp(c->data, "GGUF", c->size) == 0)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: cut short: the file has only %zu bytes", c->file,
                          c->size);
    const char *kind = folio_file_kind_explain(c->data, c->size);
    if (kind)
        return folio_fail(c->log, FOLIO_E_FORMAT, "%s: %s", c->file, kind);
    char hex[16] = "";
    size_t n = FOLIO_MIN(c->size, 4);
    for (size_t i = 0; i < n; i++)
        snprintf(hex + 3 * i, 4, " %02x", c->data[i]);
    return folio_fail(c->log, FOLIO_E_FORMAT,
                      "%s: this is no GGUF file: it begins with the bytes%s, "
                      "not with \"GGUF\"",
                      c->file, hex);
}

static folio_status take_header(cursor *c, uint32_t *version,
                                uint64_t *n_tensors, uint64_t *n_kv)
{
    FOLIO_RETURN_IF(check_magic(c));
    snprintf(c->item, sizeof c->item, "the header");
    c->pos = 4;
    FOLIO_RETURN_IF(take_u32(c, "the version", version));
    /* No version reaches 65536: such a number is a small one byte-swapped. */
    if (*version != 0 && (*version & 0xffffu) == 0)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: this is a big-endian GGUF file, which is not "
                          "supported: get the little-endian one",
                          c->file);
    if (*version < 2 || *version > 3)
        return folio_fail(c->log, FOLIO_E_UNSUPPORTED,
                          "%s: GGUF version %" PRIu32
                          " is not supported, versions 2 and 3 are",
                          c->file, *version);
    FOLIO_RETURN_IF(take_u64(c, "the tensor count", n_tensors));
    FOLIO_RETURN_IF(take_u64(c, "the key count", n_kv));
    size_t rest = c->size - c->pos;
    if (*n_kv > rest / MIN_KV_BYTES)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: cut short or damaged: the header says %" PRIu64
                          " keys, but only %zu bytes follow",
                          c->file, *n_kv, rest);
    if (*n_tensors > rest / MIN_TENSOR_BYTES)
        return folio_fail(c->log, FOLIO_E_FORMAT,
                          "%s: cut short or damaged: the header says %" PRIu64
                          " tensors, but only %zu bytes follow",
                          c->file, *n_tensors, rest);
    return FOLIO_OK;
}

folio_status folio_gguf_shard_init(folio_gguf_shard *s, const char *name,
                                   const uint8_t *data, size_t size,
                                   const folio_log *log)
{
    folio_status st = FOLIO_OK;
    folio_gguf_shard r = {0};
    cursor c = {.file = name, .data = data, .size = size, .log = log};
    uint64_t n_tensors, n_kv;

    FOLIO_TRY(take_header(&c, &r.version, &n_tensors, &n_kv));
    FOLIO_TRY(take_kvs(&c, n_kv, &r));
    FOLIO_TRY(take_tensors(&c, n_tensors, &r));
    *s = r;
    return FOLIO_OK;
fail:
    folio_gguf_shard_fini(&r);
    return st;
}

void folio_gguf_shard_fini(folio_gguf_shard *s)
{
    for (size_t i = 0; i < s->n_kv; i++) {
        free((void *)(uintptr_t)s->kvs[i].key);
        free((void *)(uintptr_t)s->kvs[i].strs);
    }
    for (size_t i = 0; i < s->n_tensors; i++)
        free((void *)(uintptr_t)s->tensors[i].name);
    folio_name_table_fini(&s->kv_table);
    free(s->kvs);
    free(s->tensors);
    *s = (folio_gguf_shard){0};
}

const folio_gguf_kv *folio_gguf_shard_find(const folio_gguf_shard *s,
                                           const char *key)
{
    size_t i = folio_name_table_find(&s->kv_table, s->kvs, key);
    return i == FOLIO_NAME_NONE ? NULL : &s->kvs[i];
}
