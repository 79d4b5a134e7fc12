/* SmolLM2's real vocabulary against tests/golden/data. The model file is
 * FOLIO_TEST_MODEL or the cached default model; without it the tests are
 * skipped, but fail under CI. */
#include <jansson.h>

#include "text_fixture.h"

#define MODEL "SmolLM2-135M-Instruct.Q4_1.gguf"

static const char *find_model(void)
{
    static char path[4096];
    const char *p = getenv("FOLIO_TEST_MODEL"), *ci = getenv("CI");
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (p && *p)
        snprintf(path, sizeof path, "%s", p);
    else if (cache && *cache)
        snprintf(path, sizeof path, "%s/folio/models/" MODEL, cache);
    else
        snprintf(path, sizeof path, "%s/.cache/folio/models/" MODEL,
                 home ? home : "");
    FILE *f = fopen(path, "rb");
    if (f) {
        fclose(f);
        return path;
    }
    if (ci && strcmp(ci, "true") == 0)
        cr_assert_fail("no model file at %s", path);
    cr_skip_test("no model file at %s (set FOLIO_TEST_MODEL)", path);
    return NULL;
}

static folio_tokenizer *open_model(void)
{
    folio_tokenizer *tok = NULL;
    last_log l = {0};
    folio_log log = log_to(&l);
    cr_assert_eq(folio_tokenizer_open_file(find_model(), &log, &tok), FOLIO_OK,
                 "%s", l.text);
    cr_assert_eq(l.n, 0, "%s", l.text);
    return tok;
}

static json_t *load_golden(const char *name)
{
    char path[4096];
    json_error_t err;
    snprintf(path, sizeof path, "%s/tests/golden/data/%s", FOLIO_SOURCE_DIR,
             name);
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &err);
    cr_assert_not_null(j, "%s: %s", path, err.text);
    return j;
}

/* The part of tokenizer.json about this model. */
static json_t *golden_of_model(json_t *doc)
{
    size_t i;
    json_t *m;
    json_array_foreach(json_object_get(doc, "models"), i, m)
    {
        if (!strcmp(json_string_value(json_object_get(m, "model")), MODEL))
            return m;
    }
    cr_assert_fail("tokenizer.json has no " MODEL);
    return NULL;
}

static size_t read_hex(const char *hex, char *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned b;
        cr_assert_eq(sscanf(hex + 2 * i, "%2x", &b), 1);
        out[i] = (char)b;
    }
    return n;
}

static int64_t int_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

/* Encodes and compares; `what` for the message. */
static void expect_ids(const folio_tokenizer *tok, const char *s, size_t n,
                       uint32_t flags, const json_t *want, const char *what)
{
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    size_t n_ids = 0;
    cr_assert(json_is_array(want), "%s", what);
    cr_assert_eq(folio_tokenizer_encode(tok, s, n, flags, ids, n + 1, &n_ids),
                 FOLIO_OK, "%s", what);
    cr_expect_eq(n_ids, json_array_size(want), "%s: %zu ids, expected %zu",
                 what, n_ids, json_array_size(want));
    for (size_t i = 0; i < n_ids && i < json_array_size(want); i++)
        if (ids[i] != json_integer_value(json_array_get(want, i))) {
            cr_expect(false, "%s: id %zu is %d, expected %lld", what, i, ids[i],
                      (long long)json_integer_value(json_array_get(want, i)));
            break;
        }
    free(ids);
}

static void expect_round_trip(const folio_tokenizer *tok, const char *s,
                              size_t n, const char *what)
{
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    char *back = malloc(3 * n + 1);
    size_t n_ids, n_back;
    cr_assert_eq(folio_tokenizer_encode(tok, s, n, 0, ids, n + 1, &n_ids),
                 FOLIO_OK);
    cr_assert_eq(
        folio_tokenizer_decode(tok, ids, n_ids, 0, back, 3 * n + 1, &n_back),
        FOLIO_OK);
    cr_expect(n_back == n && memcmp(s, back, n) == 0, "%s", what);
    free(ids);
    free(back);
}

Test(text_golden, strings)
{
    folio_tokenizer *tok = open_model();
    json_t *doc = load_golden("tokenizer.json"), *m = golden_of_model(doc), *c;
    size_t i, n_exact = 0, n_invalid = 0;
    cr_assert_eq(folio_tokenizer_n_vocab(tok), int_of(m, "n_vocab"));
    cr_assert_eq(folio_tokenizer_bos(tok), int_of(m, "bos_id"));
    cr_assert_eq(folio_tokenizer_eos(tok), int_of(m, "eos_id"));
    cr_assert_eq(folio_tokenizer_add_bos(tok),
                 json_is_true(json_object_get(m, "add_bos")));
    json_array_foreach(json_object_get(m, "cases"), i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name"));
        const json_t *text = json_object_get(c, "text");
        json_t *special = json_object_get(c, "special");
        json_t *plain = json_object_get(c, "plain");
        if (!text) {
            /* Bytes that are not UTF-8: the file follows llama.cpp, which
             * loses them; here they come back where there are tokens. */
            char bytes[64];
            size_t n =
                read_hex(json_string_value(json_object_get(c, "hex")), bytes);
            if (!memchr(bytes, '\xff', n) && !memchr(bytes, '\xc0', n))
                expect_round_trip(tok, bytes, n, name);
            n_invalid++;
            continue;
        }
        const char *s = json_string_value(text);
        size_t n = json_string_length(text);
        expect_ids(tok, s, n, 0, plain, name);
        expect_ids(tok, s, n, FOLIO_ENCODE_PARSE_SPECIAL,
                   special ? special : plain, name);
        if (json_is_true(json_object_get(c, "round_trip")))
            expect_round_trip(tok, s, n, name);
        n_exact++;
    }
    cr_assert_eq(n_exact, 72);
    cr_assert_eq(n_invalid, 7);
    json_decref(doc);
    folio_tokenizer_close(&tok);
}

/* What the documented rule for invalid bytes gives with this vocabulary: byte
 * tokens, and U+FFFD (24211) for the bytes it lacks. */
Test(text_golden, invalid_bytes)
{
    folio_tokenizer *tok = open_model();
    cr_expect_str_eq(encode_shown(tok, "hi\n\xff\xfe!", 6, 0),
                     "6004 198 24211 24211 17 ");
    cr_expect_str_eq(encode_shown(tok, "\xed\xa0\x80", 3, 0), "184 250 218 ");
    size_t n_held = 0;
    for (int a = 0x80; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            char s[3] = {(char)a, (char)b, 'x'};
            n_held += strlen(encode_shown(tok, s, 3, 0)) > 0;
        }
    cr_assert_eq(n_held, 128 * 256);
    encode_shown(tok, "\xf4\x90\x80\x80", 4, 0);
    folio_tokenizer_close(&tok);
}

Test(text_golden, pieces)
{
    folio_tokenizer *tok = open_model();
    json_t *doc = load_golden("tokenizer.json"), *m = golden_of_model(doc), *p;
    size_t i;
    json_array_foreach(json_object_get(m, "pieces"), i, p)
    {
        char want[256];
        size_t n = read_hex(json_string_value(json_object_get(p, "hex")), want);
        const char *got;
        size_t n_got;
        int32_t id = (int32_t)int_of(p, "id");
        cr_assert_eq(folio_tokenizer_piece(tok, id, &got, &n_got), FOLIO_OK);
        cr_expect(n_got == n && memcmp(got, want, n) == 0, "id %d", id);
        cr_expect_eq(folio_tokenizer_is_control(tok, id),
                     int_of(p, "type") == 3, "id %d", id);
    }
    cr_assert_eq(i, 82);
    json_decref(doc);
    folio_tokenizer_close(&tok);
}

Test(text_golden, prompts_and_answers)
{
    folio_tokenizer *tok = open_model();
    json_t *doc = load_golden("smollm2-135m-instruct-q4_1.json"), *c, *e;
    size_t i, k, n_eog = 0;
    json_array_foreach(json_object_get(doc, "eog_ids"), k, e)
    {
        cr_expect(folio_tokenizer_is_eog(tok, (int32_t)json_integer_value(e)));
    }
    for (int32_t id = 0; id < folio_tokenizer_n_vocab(tok); id++)
        n_eog += folio_tokenizer_is_eog(tok, id);
    cr_expect_eq(n_eog, json_array_size(json_object_get(doc, "eog_ids")));
    json_array_foreach(json_object_get(doc, "cases"), i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name"));
        const json_t *prompt = json_object_get(c, "prompt");
        json_t *new_ids = json_object_get(c, "new_ids");
        json_t *prompt_ids = json_object_get(c, "prompt_ids"), *id;
        uint32_t flags = FOLIO_ENCODE_ADD_BOS;
        if (json_is_true(json_object_get(c, "parse_special")))
            flags |= FOLIO_ENCODE_PARSE_SPECIAL;
        expect_ids(tok, json_string_value(prompt), json_string_length(prompt),
                   flags, prompt_ids, name);
        /* The answer streamed equals the text of the file. */
        int32_t tail[4];
        size_t n_prompt = json_array_size(prompt_ids), at = 0, n_tail;
        n_tail = n_prompt < 4 ? n_prompt : 4;
        for (k = 0; k < n_tail; k++)
            tail[k] = (int32_t)json_integer_value(
                json_array_get(prompt_ids, n_prompt - n_tail + k));
        folio_detokenizer *d = NULL;
        char text[4096];
        const char *s;
        size_t n;
        cr_assert_eq(
            folio_detokenizer_open(tok, tail, n_tail, FOLIO_DECODE_SPECIAL, &d),
            FOLIO_OK);
        json_array_foreach(new_ids, k, id)
        {
            cr_assert_eq(folio_detokenizer_push(
                             d, (int32_t)json_integer_value(id), &s, &n),
                         FOLIO_OK);
            memcpy(text + at, s, n);
            at += n;
        }
        folio_detokenizer_flush(d, &s, &n);
        memcpy(text + at, s, n);
        at += n;
        const json_t *want = json_object_get(c, "new_text");
        cr_expect(at == json_string_length(want) &&
                      memcmp(text, json_string_value(want), at) == 0,
                  "%s: \"%.*s\"", name, (int)at, text);
        folio_detokenizer_close(&d);
    }
    cr_assert_gt(i, 10);
    json_decref(doc);
    folio_tokenizer_close(&tok);
}

Test(text_golden, chat_template_and_rendered_chats)
{
    folio_tokenizer *tok = open_model();
    json_t *doc = load_golden("chat-templates.json"), *c;
    json_t *m = json_array_get(json_object_get(doc, "templates"), 0);
    size_t i;
    const json_t *source = json_object_get(m, "source");
    cr_assert_not_null(source);
    cr_assert_str_eq(folio_tokenizer_chat_template(tok),
                     json_string_value(source));
    json_array_foreach(json_object_get(m, "cases"), i, c)
    {
        const json_t *text = json_object_get(c, "text");
        expect_ids(tok, json_string_value(text), json_string_length(text),
                   FOLIO_ENCODE_PARSE_SPECIAL, json_object_get(c, "ids"),
                   json_string_value(json_object_get(c, "name")));
    }
    cr_assert_gt(i, 10);
    json_decref(doc);
    folio_tokenizer_close(&tok);
}

/* The windows of perplexity.json are the whole text in order. */
Test(text_golden, long_text)
{
    folio_tokenizer *tok = open_model();
    json_t *doc = load_golden("perplexity.json"), *m, *w, *id;
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/data/text.txt",
             FOLIO_SOURCE_DIR);
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f);
    char *s = malloc(1 << 20);
    int32_t *ids = malloc((1 << 20) * sizeof *ids);
    size_t n = fread(s, 1, 1 << 20, f), n_ids, at = 0, i, k;
    fclose(f);
    cr_assert_eq(folio_tokenizer_encode(tok, s, n, 0, ids, 1 << 20, &n_ids),
                 FOLIO_OK);
    json_array_foreach(json_object_get(doc, "models"), i, m)
    {
        if (strcmp(json_string_value(json_object_get(m, "model")), MODEL))
            continue;
        json_array_foreach(json_object_get(m, "windows"), k, w)
        {
            size_t q;
            json_array_foreach(json_object_get(w, "ids"), q, id)
            {
                cr_assert_lt(at, n_ids);
                cr_assert_eq(ids[at++], json_integer_value(id));
            }
        }
    }
    cr_assert_eq(at, n_ids);
    cr_assert_gt(at, 1024);
    free(s);
    free(ids);
    json_decref(doc);
    folio_tokenizer_close(&tok);
}

/* Every piece survives: the bytes of encode(piece) are the piece's. */
Test(text_golden, whole_vocabulary)
{
    folio_tokenizer *tok = open_model();
    for (int32_t id = 0; id < folio_tokenizer_n_vocab(tok); id++) {
        const char *p;
        size_t n, n_ids;
        int32_t ids[512];
        cr_assert_eq(folio_tokenizer_piece(tok, id, &p, &n), FOLIO_OK);
        cr_assert_eq(folio_tokenizer_find(tok, p, n), id);
        cr_assert_eq(folio_tokenizer_encode(tok, p, n,
                                            FOLIO_ENCODE_PARSE_SPECIAL, ids,
                                            512, &n_ids),
                     FOLIO_OK);
        char back[512];
        size_t n_back;
        cr_assert_eq(folio_tokenizer_decode(tok, ids, n_ids,
                                            FOLIO_DECODE_SPECIAL, back, 512,
                                            &n_back),
                     FOLIO_OK);
        cr_assert(n_back == n && memcmp(back, p, n) == 0, "id %d", id);
        if (folio_tokenizer_is_control(tok, id))
            cr_assert(n_ids == 1 && ids[0] == id, "id %d", id);
    }
    folio_tokenizer_close(&tok);
}

Test(text_golden, emoji_over_several_ids)
{
    static const char *const strings[] = {
        "This is \xf0\x9f\xa6\x99.cpp",
        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb",
        "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c",
        " Vi\xe1\xbb\x87t na\xc3\xafve",
        "\xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d"};
    folio_tokenizer *tok = open_model();
    size_t n_held_steps = 0;
    for (size_t i = 0; i < FOLIO_COUNT(strings); i++) {
        int32_t ids[128];
        size_t n = strlen(strings[i]), n_ids, at = 0, n_piece;
        char text[256];
        const char *s;
        folio_detokenizer *d = NULL;
        cr_assert_eq(
            folio_tokenizer_encode(tok, strings[i], n, 0, ids, 128, &n_ids),
            FOLIO_OK);
        cr_assert_eq(folio_detokenizer_open(tok, NULL, 0, 0, &d), FOLIO_OK);
        for (size_t k = 0; k < n_ids; k++) {
            cr_assert_eq(folio_detokenizer_push(d, ids[k], &s, &n_piece),
                         FOLIO_OK);
            memcpy(text + at, s, n_piece);
            at += n_piece;
            n_held_steps += folio_detokenizer_n_held(d) > 0;
        }
        cr_assert_eq(folio_detokenizer_n_held(d), 0);
        cr_assert(at == n && memcmp(text, strings[i], n) == 0);
        folio_detokenizer_close(&d);
    }
    cr_assert_gt(n_held_steps, 5);
    folio_tokenizer_close(&tok);
}
