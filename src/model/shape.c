/* model/shape.c: the table of known shapes, and a shape as the bytes of a GGUF
 * file: metadata, a tokenizer that loaders accept, random tensors. */
#include "model/shape.h"

#include "format/gguf_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Llama 3's scaling of long wavelengths. */
#define ROPE_ORIGINAL 8192
/* Bytes, one merged piece, the end. */
#define LEAST_VOCAB 258

static const folio_model_shape shapes[] = {
    {.name = "llama-3.2-1b",
     .arch = "llama",
     .n_vocab = 128256,
     .dim = 2048,
     .n_layers = 16,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 64,
     .ff_dim = 8192,
     .ctx_train = 131072,
     .tied = 1,
     .rope_theta = 5e5,
     .rope_factor = 32.0,
     .norm_eps = 1e-5},
    {.name = "llama-3.1-8b",
     .arch = "llama",
     .n_vocab = 128256,
     .dim = 4096,
     .n_layers = 32,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .ff_dim = 14336,
     .ctx_train = 131072,
     .tied = 0,
     .rope_theta = 5e5,
     .rope_factor = 8.0,
     .norm_eps = 1e-5},
    {.name = "qwen3-4b",
     .arch = "qwen3",
     .n_vocab = 151936,
     .dim = 2560,
     .n_layers = 36,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .ff_dim = 9728,
     .ctx_train = 40960,
     .tied = 1,
     .rope_theta = 1e6,
     .norm_eps = 1e-6},
    {.name = "smollm2-135m",
     .arch = "llama",
     .n_vocab = 49152,
     .dim = 576,
     .n_layers = 30,
     .heads = 9,
     .kv_heads = 3,
     .head_dim = 64,
     .ff_dim = 1536,
     .ctx_train = 8192,
     .tied = 1,
     .rope_theta = 1e5,
     .norm_eps = 1e-5},
    {.name = "tiny",
     .arch = "llama",
     .n_vocab = 512,
     .dim = 128,
     .n_layers = 2,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 32,
     .ff_dim = 256,
     .ctx_train = 1024,
     .tied = 1,
     .rope_theta = 1e4,
     .norm_eps = 1e-5},
};

const char *folio_model_shape_name(size_t i)
{
    return i < FOLIO_COUNT(shapes) ? shapes[i].name : NULL;
}

folio_status folio_model_shape_find(const char *name, folio_model_shape *shape)
{
    if (!name || !shape)
        return FOLIO_E_INVAL;
    for (size_t i = 0; i < FOLIO_COUNT(shapes); i++)
        if (strcmp(shapes[i].name, name) == 0) {
            *shape = shapes[i];
            shape->size = sizeof *shape;
            shape->type = "f16";
            shape->seed = 1;
            return FOLIO_OK;
        }
    return FOLIO_E_NOT_FOUND;
}

/* ---- checks -------------------------------------------------------------- */

static folio_status read_type(const folio_model_shape *s, const folio_log *log,
                              folio_type *type)
{
    static const struct {
        const char *name;
        folio_type type;
    } known[] = {{"f16", FOLIO_TYPE_F16},
                 {"q8_0", FOLIO_TYPE_Q8_0},
                 {"q4_0", FOLIO_TYPE_Q4_0}};
    for (size_t i = 0; s->type && i < FOLIO_COUNT(known); i++)
        if (strcmp(s->type, known[i].name) == 0) {
            *type = known[i].type;
            return FOLIO_OK;
        }
    return folio_fail(log, FOLIO_E_INVAL,
                      "folio_model_shape.type is \"%s\", not f16, q8_0 or q4_0",
                      s->type ? s->type : "NULL");
}

static folio_status check_numbers(const folio_model_shape *s,
                                  const folio_log *log)
{
    const struct {
        const char *name;
        int32_t value, lo, hi;
    } ints[] = {
        {"n_vocab", s->n_vocab, LEAST_VOCAB, 1 << 24},
        {"dim", s->dim, 1, 1 << 20},
        {"n_layers", s->n_layers, 1, 1024},
        {"heads", s->heads, 1, 4096},
        {"kv_heads", s->kv_heads, 1, s->heads},
        {"head_dim", s->head_dim, 4, 1024},
        {"ff_dim", s->ff_dim, 1, 1 << 24},
        {"ctx_train", s->ctx_train, 1, INT32_MAX},
        {"tied", s->tied, 0, 1},
    };
    for (size_t i = 0; i < FOLIO_COUNT(ints); i++)
        if (ints[i].value < ints[i].lo || ints[i].value > ints[i].hi)
            return folio_fail(log, FOLIO_E_INVAL,
                              "folio_model_shape.%s is %d, outside %d to %d",
                              ints[i].name, ints[i].value, ints[i].lo,
                              ints[i].hi);
    if (s->heads % s->kv_heads || s->head_dim % 2 || s->dim < s->heads)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_model_shape: %d heads of %d for %d KV heads "
                          "in a width of %d: heads must be a multiple of "
                          "kv_heads, head_dim even, dim at least heads",
                          s->heads, s->head_dim, s->kv_heads, s->dim);
    if (!(s->rope_theta > 1.0) || !(s->norm_eps >= 0.0) ||
        !(s->rope_factor == 0.0 || s->rope_factor >= 1.0))
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_model_shape: rope_theta %g must be above 1, "
                          "rope_factor %g 0 or at least 1, norm_eps %g not "
                          "negative",
                          s->rope_theta, s->rope_factor, s->norm_eps);
    return FOLIO_OK;
}

static folio_status check_shape(const folio_model_shape *s,
                                const folio_log *log, folio_type *type)
{
    if (s->size != sizeof *s)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_model_shape.size is %zu, expected %zu",
                          s->size, sizeof *s);
    if (!s->name || !s->arch ||
        (strcmp(s->arch, "llama") && strcmp(s->arch, "qwen3")))
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_model_shape: name \"%s\" must be given, arch "
                          "\"%s\" must be llama or qwen3",
                          s->name ? s->name : "NULL",
                          s->arch ? s->arch : "NULL");
    FOLIO_RETURN_IF(read_type(s, log, type));
    FOLIO_RETURN_IF(check_numbers(s, log));
    const int32_t q = s->heads * s->head_dim;
    if (*type != FOLIO_TYPE_F16 && (s->dim % 32 || s->ff_dim % 32 || q % 32))
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_model_shape: dim %d, ff_dim %d and heads * "
                          "head_dim %d must be multiples of 32 for %s",
                          s->dim, s->ff_dim, q, s->type);
    return FOLIO_OK;
}

/* ---- metadata ------------------------------------------------------------ */

/* What llama.cpp calls these types of files. */
static uint32_t file_type(folio_type type)
{
    return type == FOLIO_TYPE_F16 ? 1 : type == FOLIO_TYPE_Q8_0 ? 7 : 2;
}

static void put_numbers(folio_gguf_writer *w, const folio_model_shape *s,
                        folio_type type)
{
    char key[96];
    const struct {
        const char *key;
        int32_t v;
    } ints[] = {
        {"context_length", s->ctx_train},
        {"embedding_length", s->dim},
        {"block_count", s->n_layers},
        {"feed_forward_length", s->ff_dim},
        {"attention.head_count", s->heads},
        {"attention.head_count_kv", s->kv_heads},
        {"attention.key_length", s->head_dim},
        {"attention.value_length", s->head_dim},
        {"rope.dimension_count", s->head_dim},
        {"vocab_size", s->n_vocab},
    };
    folio_gguf_put_str(w, "general.architecture", s->arch);
    folio_gguf_put_str(w, "general.name", s->name);
    folio_gguf_put_str(w, "general.description",
                       "random weights, for measuring only");
    folio_gguf_put_u32(w, "general.file_type", file_type(type));
    folio_gguf_put_u32(w, "general.quantization_version", 2);
    for (size_t i = 0; i < FOLIO_COUNT(ints); i++) {
        snprintf(key, sizeof key, "%s.%s", s->arch, ints[i].key);
        folio_gguf_put_u32(w, key, (uint32_t)ints[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", s->arch);
    folio_gguf_put_f32(w, key, (float)s->norm_eps);
    snprintf(key, sizeof key, "%s.rope.freq_base", s->arch);
    folio_gguf_put_f32(w, key, (float)s->rope_theta);
}

/* Byte b as GPT-2 spells it: printable Latin-1 as itself, the other 68 bytes in
 * order as U+0100 and up. Returns the length in UTF-8. */
static size_t spell_byte(int b, char *out)
{
    int point = b, extra = 0;
    for (int c = 0; c <= b; c++) {
        const bool own =
            (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || c >= 0xae;
        if (c == b && !own)
            point = 0x100 + extra;
        extra += !own;
    }
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    out[0] = (char)(0xc0 | point >> 6);
    out[1] = (char)(0x80 | (point & 0x3f));
    return 2;
}

/* Byte-level BPE with a piece for each byte, one merge, the end, and pieces
 * that no text gives. */
static folio_status put_tokenizer(folio_gguf_writer *w, int32_t n_vocab,
                                  const folio_log *log)
{
    enum { ROOM = 24, PLAIN = 1, CONTROL = 3 };
    const size_t n = (size_t)n_vocab;
    char *text = folio_calloc(n, ROOM);
    folio_gguf_str *piece = folio_calloc(n, sizeof *piece);
    int32_t *type = folio_calloc(n, sizeof *type);
    folio_status st = FOLIO_OK;
    const folio_gguf_str merge = {"a b", 3};
    if (!text || !piece || !type) {
        st = folio_fail(log, FOLIO_E_NOMEM,
                        "no memory for a tokenizer of %d pieces", n_vocab);
        goto fail;
    }
    for (int32_t i = 0; i < n_vocab; i++) {
        char *s = text + (size_t)i * ROOM;
        int len;
        if (i < 256)
            len = (int)spell_byte(i, s);
        else if (i == 256)
            len = snprintf(s, ROOM, "ab");
        else if (i == n_vocab - 1)
            len = snprintf(s, ROOM, "<|end|>");
        else
            len = snprintf(s, ROOM, "[%d]", i);
        piece[i] = (folio_gguf_str){s, (size_t)len};
        type[i] = i == n_vocab - 1 ? CONTROL : PLAIN;
    }
    folio_gguf_put_str(w, "tokenizer.ggml.model", "gpt2");
    folio_gguf_put_str(w, "tokenizer.ggml.pre", "gpt-2");
    folio_gguf_put_strs(w, "tokenizer.ggml.tokens", n, piece);
    folio_gguf_put_i32s(w, "tokenizer.ggml.token_type", n, type);
    folio_gguf_put_strs(w, "tokenizer.ggml.merges", 1, &merge);
    folio_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)n_vocab - 1);
    folio_gguf_put_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)n_vocab - 1);
    folio_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", false);
fail:
    free(text);
    free(piece);
    free(type);
    return st;
}

/* ---- tensors ------------------------------------------------------------- */

typedef struct tensor_list {
    folio_gguf_writer *w;
    folio_shape_fill *fill;
    size_t n;
} tensor_list;

/* rows 0: a vector of floats. */
static void add(tensor_list *l, const char *name, int32_t layer,
                folio_type type, int64_t rows, int64_t cols)
{
    char full[64];
    const uint64_t dims[2] = {(uint64_t)cols, (uint64_t)rows};
    if (layer >= 0)
        snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    else
        snprintf(full, sizeof full, "%s.weight", name);
    if (rows == 0)
        type = FOLIO_TYPE_F32;
    folio_gguf_put_tensor(l->w, full, type, rows ? 2 : 1, dims);
    l->fill[l->n++] = (folio_shape_fill){
        .type = type, .rows = rows ? (uint64_t)rows : 1, .cols = dims[0]};
}

enum { MOST_OF_LAYER = 11, MOST_OF_REST = 4 };

static void add_all(tensor_list *l, const folio_model_shape *s, folio_type type)
{
    const int64_t q = (int64_t)s->heads * s->head_dim;
    const int64_t kv = (int64_t)s->kv_heads * s->head_dim;
    const bool qk_norm = strcmp(s->arch, "qwen3") == 0;
    add(l, "token_embd", -1, type, s->n_vocab, s->dim);
    for (int32_t y = 0; y < s->n_layers; y++) {
        add(l, "attn_norm", y, type, 0, s->dim);
        add(l, "attn_q", y, type, q, s->dim);
        add(l, "attn_k", y, type, kv, s->dim);
        add(l, "attn_v", y, type, kv, s->dim);
        if (qk_norm) {
            add(l, "attn_q_norm", y, type, 0, s->head_dim);
            add(l, "attn_k_norm", y, type, 0, s->head_dim);
        }
        add(l, "attn_output", y, type, s->dim, q);
        add(l, "ffn_norm", y, type, 0, s->dim);
        add(l, "ffn_gate", y, type, s->ff_dim, s->dim);
        add(l, "ffn_up", y, type, s->ff_dim, s->dim);
        add(l, "ffn_down", y, type, s->dim, s->ff_dim);
    }
    add(l, "output_norm", -1, type, 0, s->dim);
    if (!s->tied)
        add(l, "output", -1, type, s->n_vocab, s->dim);
    if (s->rope_factor > 0.0)
        add(l, "rope_freqs", -1, type, 0, s->head_dim / 2);
}

/* What Llama 3 divides each frequency by: nothing below a quarter of the
 * original context, the factor above it, a ramp between. */
static void write_rope_factors(const folio_model_shape *s, uint8_t *out)
{
    for (int32_t i = 0; i < s->head_dim / 2; i++) {
        const double turn = 2.0 * 3.14159265358979323846;
        const double wave = turn * pow(s->rope_theta, 2.0 * i / s->head_dim);
        double by = 1.0;
        if (wave > ROPE_ORIGINAL) {
            by = s->rope_factor;
        } else if (wave > ROPE_ORIGINAL / 4.0) {
            const double ramp = (ROPE_ORIGINAL / wave - 1.0) / (4.0 - 1.0);
            by = 1.0 / ((1.0 - ramp) / s->rope_factor + ramp);
        }
        const float f = (float)by;
        memcpy(out + 4 * (size_t)i, &f, 4);
    }
}

folio_status folio_shape_image(const folio_model_shape *shape,
                               const folio_log *log, uint8_t **image,
                               size_t *size)
{
    folio_status st;
    folio_type type = FOLIO_TYPE_F16;
    folio_gguf_writer *w = NULL;
    uint8_t *data = NULL;
    size_t n = 0;
    tensor_list l = {0};
    FOLIO_RETURN_IF(check_shape(shape, log, &type));
    l.fill = folio_calloc(
        (size_t)shape->n_layers * MOST_OF_LAYER + MOST_OF_REST, sizeof *l.fill);
    if (!l.fill)
        return folio_fail(log, FOLIO_E_NOMEM, "no memory for the tensors of %s",
                          shape->name);
    FOLIO_TRY(folio_gguf_writer_open(log, &w));
    l.w = w;
    put_numbers(w, shape, type);
    FOLIO_TRY(put_tokenizer(w, shape->n_vocab, log));
    add_all(&l, shape, type);
    FOLIO_TRY(folio_gguf_writer_image(w, &data, &n));
    for (size_t i = 0; i < l.n; i++)
        l.fill[i].data = data + folio_gguf_writer_offset(w, i);
    FOLIO_TRY(folio_shape_fill_all(l.fill, l.n, shape->seed, log));
    if (shape->rope_factor > 0.0)
        write_rope_factors(shape, l.fill[l.n - 1].data);
    *image = data;
    *size = n;
    data = NULL;
fail:
    folio_aligned_free(data);
    folio_gguf_writer_close(&w);
    free(l.fill);
    return st;
}

folio_status folio_model_shape_write(const folio_model_shape *shape,
                                     const char *path, const folio_log *log)
{
    uint8_t *image;
    size_t size;
    if (!shape || !path)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_model_shape_write: %s is NULL",
                          shape ? "path" : "shape");
    FOLIO_RETURN_IF(folio_shape_image(shape, log, &image, &size));
    const folio_status st = folio_gguf_save(path, image, size, log);
    folio_aligned_free(image);
    return st;
}
