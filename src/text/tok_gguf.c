/* text/tok_gguf.c: the tokenizer's metadata in a GGUF file, checked and handed
 * on as plain arrays. */
#include <string.h>

#include "text/tok.h"

#define KEY(name) "tokenizer.ggml." name

static const char *const type_names[] = {
    "u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
    "bool", "string", "array", "u64", "i64", "f64"};

static const char *name_type(folio_gguf_type t)
{
    return (size_t)t < FOLIO_COUNT(type_names) ? type_names[t] : "unknown";
}

/* An array whose elements satisfy `ok`; *out NULL where the key is absent. */
static folio_status find_array(const folio_gguf *g, const char *key,
                               bool (*ok)(folio_gguf_type), const char *wanted,
                               const folio_gguf_kv **out)
{
    const folio_gguf_kv *kv = folio_gguf_find(g, key);
    if (kv && kv->type != FOLIO_GGUF_ARRAY)
        return folio_fail(folio_gguf_log(g), FOLIO_E_FORMAT,
                          "%s is a %s, expected an array of %s", key,
                          name_type(kv->type), wanted);
    if (kv && !ok(kv->elem))
        return folio_fail(folio_gguf_log(g), FOLIO_E_FORMAT,
                          "%s is an array of %s, expected an array of %s", key,
                          name_type(kv->elem), wanted);
    *out = kv;
    return FOLIO_OK;
}

static bool is_string(folio_gguf_type t)
{
    return t == FOLIO_GGUF_STRING;
}

static bool is_float(folio_gguf_type t)
{
    return t == FOLIO_GGUF_F32 || t == FOLIO_GGUF_F64;
}

static bool is_integer(folio_gguf_type t)
{
    return t <= FOLIO_GGUF_I32 || t == FOLIO_GGUF_U64 || t == FOLIO_GGUF_I64;
}

/* Arrays that run beside the tokens must be as long. */
static folio_status check_length(const folio_gguf *g, const folio_gguf_kv *kv,
                                 uint64_t n)
{
    if (kv && kv->n != n)
        return folio_fail(folio_gguf_log(g), FOLIO_E_FORMAT,
                          "%s has %llu elements, but tokenizer.ggml.tokens "
                          "has %llu",
                          kv->key, (unsigned long long)kv->n,
                          (unsigned long long)n);
    return FOLIO_OK;
}

/* An id that may be absent: -1 then, and for 2^32 - 1, which converters write
 * for "none". */
static folio_status get_id(const folio_gguf *g, const char *key, int32_t n,
                           int32_t *out)
{
    int64_t id = -1;
    if (folio_gguf_find(g, key))
        FOLIO_RETURN_IF(folio_gguf_get_i64(g, key, &id));
    if (id == UINT32_MAX)
        id = -1;
    if (id < -1 || id >= n)
        return folio_fail(folio_gguf_log(g), FOLIO_E_FORMAT,
                          "%s is %lld, but tokenizer.ggml.tokens has %d "
                          "pieces",
                          key, (long long)id, n);
    *out = (int32_t)id;
    return FOLIO_OK;
}

static folio_status check_model(const folio_gguf *g)
{
    folio_gguf_str s;
    FOLIO_RETURN_IF(folio_gguf_get_str(g, KEY("model"), &s));
    if (s.len != 4 || memcmp(s.data, "gpt2", 4) != 0)
        return folio_fail(folio_gguf_log(g), FOLIO_E_UNSUPPORTED,
                          KEY("model") " is \"%.*s\", but this build knows "
                                       "\"gpt2\" (byte-level BPE)",
                          (int)FOLIO_MIN(s.len, (size_t)100), s.data);
    return FOLIO_OK;
}

static folio_status read_types(const folio_gguf *g, const folio_gguf_kv *kv,
                               int32_t *types)
{
    for (uint64_t i = 0; i < kv->n; i++) {
        int64_t t = folio_gguf_elem_i64(kv, i);
        if (t < FOLIO_TOKEN_NORMAL || t > FOLIO_TOKEN_BYTE)
            return folio_fail(folio_gguf_log(g), FOLIO_E_FORMAT,
                              "%s: id %llu has type %lld, outside 1..6",
                              kv->key, (unsigned long long)i, (long long)t);
        types[i] = (int32_t)t;
    }
    return FOLIO_OK;
}

folio_status folio_tokenizer_open_gguf(const folio_gguf *g,
                                       folio_tokenizer **out)
{
    folio_status st = FOLIO_OK;
    const folio_log *log = folio_gguf_log(g);
    const folio_gguf_kv *tokens = NULL, *types = NULL, *scores = NULL;
    const folio_gguf_kv *merges = NULL;
    folio_vocab_desc v = {.add_bos = -1};
    int32_t *type_ids = NULL;
    char *pre = NULL;
    FOLIO_TRY(check_model(g));
    FOLIO_TRY(find_array(g, KEY("tokens"), is_string, "strings", &tokens));
    FOLIO_TRY(find_array(g, KEY("token_type"), is_integer, "integers", &types));
    FOLIO_TRY(find_array(g, KEY("scores"), is_float, "floats", &scores));
    FOLIO_TRY(find_array(g, KEY("merges"), is_string, "strings", &merges));
    if (!tokens || !merges) {
        st = folio_fail(log, FOLIO_E_FORMAT,
                        "%s is missing; a gpt2 tokenizer needs it",
                        tokens ? KEY("merges") : KEY("tokens"));
        goto fail;
    }
    if (tokens->n < 1 || tokens->n > 1 << 24) {
        st = folio_fail(log, FOLIO_E_FORMAT,
                        KEY("tokens") " has %llu pieces, expected 1 to %d",
                        (unsigned long long)tokens->n, 1 << 24);
        goto fail;
    }
    FOLIO_TRY(check_length(g, types, tokens->n));
    FOLIO_TRY(check_length(g, scores, tokens->n));
    v.n_vocab = (int32_t)tokens->n;
    v.pieces = tokens->strs;
    v.n_merges = (size_t)merges->n;
    v.merges = merges->strs;
    if (types) {
        type_ids = folio_calloc((size_t)tokens->n, sizeof *type_ids);
        if (!type_ids) {
            st = folio_fail(log, FOLIO_E_NOMEM,
                            "tokenizer: no memory for %d types", v.n_vocab);
            goto fail;
        }
        FOLIO_TRY(read_types(g, types, type_ids));
        v.types = type_ids;
    }
    FOLIO_TRY(get_id(g, KEY("bos_token_id"), v.n_vocab, &v.bos));
    FOLIO_TRY(get_id(g, KEY("eos_token_id"), v.n_vocab, &v.eos));
    FOLIO_TRY(get_id(g, KEY("eot_token_id"), v.n_vocab, &v.eot));
    FOLIO_TRY(get_id(g, KEY("eom_token_id"), v.n_vocab, &v.eom));
    FOLIO_TRY(get_id(g, KEY("unknown_token_id"), v.n_vocab, &v.unk));
    if (folio_gguf_find(g, KEY("add_bos_token"))) {
        bool add;
        FOLIO_TRY(folio_gguf_get_bool(g, KEY("add_bos_token"), &add));
        v.add_bos = add;
    }
    if (folio_gguf_find(g, KEY("pre"))) {
        folio_gguf_str s;
        FOLIO_TRY(folio_gguf_get_str(g, KEY("pre"), &s));
        pre = folio_strndup(s.data, s.len);
        if (!pre) {
            st = folio_fail(log, FOLIO_E_NOMEM, "tokenizer: no memory");
            goto fail;
        }
        v.pre = pre;
    }
    if (folio_gguf_find(g, "tokenizer.chat_template"))
        FOLIO_TRY(
            folio_gguf_get_str(g, "tokenizer.chat_template", &v.chat_template));
    FOLIO_TRY(folio_tokenizer_open_vocab(&v, log, out));
fail:
    free(type_ids);
    free(pre);
    return st;
}

folio_status folio_tokenizer_open_file(const char *path, const folio_log *log,
                                       folio_tokenizer **out)
{
    folio_gguf *g = NULL;
    if (!path || !out)
        return folio_fail(log, FOLIO_E_INVAL, "tokenizer: %s is NULL",
                          path ? "out" : "path");
    FOLIO_RETURN_IF(folio_gguf_open(path, log, &g));
    folio_status st = folio_tokenizer_open_gguf(g, out);
    folio_gguf_close(&g);
    return st;
}
