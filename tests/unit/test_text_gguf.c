/* A tokenizer from GGUF metadata: what is read, what is refused and by which
 * name, and memory running out at every point. */
#include "text_fixture.h"

#include "format/gguf.h"
#include "unit/fail_alloc.h"
#include "unit/support_gguf_writer.h"

#define KEY(name) "tokenizer.ggml." name

static const char *const pieces[] = {"a", "b", "ab", "\xc4\xa0", "<s>", "</s>"};
static const int32_t types[] = {1, 1, 1, 1, 3, 3};
static const char *const merges[] = {"a b"};

/* Writes a good tokenizer, all but the key that the caller writes. */
static void put_all_but(gguf_writer *w, const char *key)
{
    gguf_writer_init(w);
    gguf_put_str(w, "general.architecture", "llama");
    if (strcmp(key, KEY("model")))
        gguf_put_str(w, KEY("model"), "gpt2");
    if (strcmp(key, KEY("pre")))
        gguf_put_str(w, KEY("pre"), "llama-bpe");
    if (strcmp(key, KEY("tokens")))
        gguf_put_strs(w, KEY("tokens"), 6, pieces);
    if (strcmp(key, KEY("token_type")))
        gguf_put_array(w, KEY("token_type"), FOLIO_GGUF_I32, 6, types);
    if (strcmp(key, KEY("merges")))
        gguf_put_strs(w, KEY("merges"), 1, merges);
    if (strcmp(key, KEY("bos_token_id")))
        gguf_put_u32(w, KEY("bos_token_id"), 4);
    if (strcmp(key, KEY("eos_token_id")))
        gguf_put_u32(w, KEY("eos_token_id"), 5);
}

static folio_status open_written(gguf_writer *w, last_log *l,
                                 folio_tokenizer **tok)
{
    size_t size;
    folio_log log = log_to(l);
    uint8_t *data = gguf_writer_build(w, &size);
    folio_gguf *g = NULL;
    cr_assert_eq(folio_gguf_open_memory(data, size, &log, &g), FOLIO_OK, "%s",
                 l->text);
    folio_status st = folio_tokenizer_open_gguf(g, tok);
    folio_gguf_close(&g);
    free(data);
    gguf_writer_fini(w);
    return st;
}

Test(text_gguf, reads_what_is_there)
{
    gguf_writer w;
    last_log l = {0};
    folio_tokenizer *tok = NULL;
    put_all_but(&w, "");
    gguf_put_u32(&w, KEY("eot_token_id"), 1);
    gguf_put_u32(&w, KEY("eom_token_id"), UINT32_MAX); /* "none" */
    gguf_put_str(&w, "tokenizer.chat_template", "{{ x }}");
    cr_assert_eq(open_written(&w, &l, &tok), FOLIO_OK, "%s", l.text);
    cr_assert_eq(l.n, 0, "%s", l.text);
    cr_assert_eq(folio_tokenizer_n_vocab(tok), 6);
    cr_assert_eq(folio_tokenizer_bos(tok), 4);
    cr_assert_eq(folio_tokenizer_eos(tok), 5);
    cr_assert(folio_tokenizer_add_bos(tok));
    cr_assert(folio_tokenizer_is_eog(tok, 1) && folio_tokenizer_is_eog(tok, 5));
    cr_assert_not(folio_tokenizer_is_eog(tok, 0));
    cr_assert_str_eq(folio_tokenizer_chat_template(tok), "{{ x }}");
    cr_assert_str_eq(
        encode_shown(tok, "ab a</s>", 8,
                     FOLIO_ENCODE_ADD_BOS | FOLIO_ENCODE_PARSE_SPECIAL),
        "4 2 3 0 5 ");
    cr_assert_eq(folio_tokenizer_find(tok, " ", 1), 3);
    cr_assert_eq(folio_tokenizer_find(tok, "zz", 2), -1);
    folio_tokenizer_close(&tok);
    /* Types, ids and template may be absent. */
    put_all_but(&w, KEY("token_type"));
    gguf_put_bool(&w, KEY("add_bos_token"), false);
    cr_assert_eq(open_written(&w, &l, &tok), FOLIO_OK, "%s", l.text);
    cr_assert_not(folio_tokenizer_add_bos(tok));
    cr_assert_null(folio_tokenizer_chat_template(tok));
    folio_tokenizer_close(&tok);
    put_all_but(&w, KEY("bos_token_id"));
    cr_assert_eq(open_written(&w, &l, &tok), FOLIO_OK, "%s", l.text);
    cr_assert_eq(folio_tokenizer_bos(tok), -1);
    folio_tokenizer_close(&tok);
}

/* One message, naming the key. */
static void expect_refusal(gguf_writer *w, folio_status want, const char *key)
{
    last_log l = {0};
    folio_tokenizer *tok = NULL;
    folio_status st = open_written(w, &l, &tok);
    cr_expect_eq(st, want, "%s: %s", key, folio_status_name(st));
    cr_expect_null(tok);
    cr_expect_eq(l.n, 1, "%s: %d messages, the last: %s", key, l.n, l.text);
    cr_expect(strstr(l.text, key), "\"%s\" lacks \"%s\"", l.text, key);
}

Test(text_gguf, refuses_by_name)
{
    gguf_writer w;
    static const char *const needed[] = {KEY("model"), KEY("tokens"),
                                         KEY("merges")};
    put_all_but(&w, KEY("model"));
    gguf_put_str(&w, KEY("model"), "rwkv");
    expect_refusal(&w, FOLIO_E_UNSUPPORTED, "rwkv");
    put_all_but(&w, KEY("pre"));
    gguf_put_str(&w, KEY("pre"), "superbpe");
    expect_refusal(&w, FOLIO_E_UNSUPPORTED, "superbpe");
    for (size_t i = 0; i < FOLIO_COUNT(needed); i++) {
        put_all_but(&w, needed[i]);
        expect_refusal(&w, i ? FOLIO_E_FORMAT : FOLIO_E_NOT_FOUND, needed[i]);
        put_all_but(&w, needed[i]);
        gguf_put_u32(&w, needed[i], 3);
        expect_refusal(&w, FOLIO_E_FORMAT, needed[i]);
    }
    /* Wrong element types: scores and types as bytes or words. */
    static const uint8_t bytes[6] = {1, 1, 1, 1, 3, 3};
    static const float floats[6] = {0};
    put_all_but(&w, "");
    gguf_put_array(&w, KEY("scores"), FOLIO_GGUF_U8, 6, bytes);
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("scores"));
    put_all_but(&w, KEY("token_type"));
    gguf_put_array(&w, KEY("token_type"), FOLIO_GGUF_F32, 6, floats);
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("token_type"));
    put_all_but(&w, KEY("merges"));
    gguf_put_array(&w, KEY("merges"), FOLIO_GGUF_U8, 6, bytes);
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("merges"));
    put_all_but(&w, KEY("tokens"));
    gguf_put_array(&w, KEY("tokens"), FOLIO_GGUF_U8, 6, bytes);
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("tokens"));
    /* Counts that differ. */
    put_all_but(&w, KEY("token_type"));
    gguf_put_array(&w, KEY("token_type"), FOLIO_GGUF_I32, 5, types);
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("token_type"));
    put_all_but(&w, "");
    gguf_put_array(&w, KEY("scores"), FOLIO_GGUF_F32, 5, floats);
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("scores"));
    put_all_but(&w, KEY("tokens"));
    gguf_put_strs(&w, KEY("tokens"), 0, pieces);
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("tokens"));
    /* Values out of range. */
    static const int32_t odd[] = {1, 1, 0, 1, 3, 3};
    put_all_but(&w, KEY("token_type"));
    gguf_put_array(&w, KEY("token_type"), FOLIO_GGUF_I32, 6, odd);
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("token_type"));
    put_all_but(&w, KEY("bos_token_id"));
    gguf_put_u32(&w, KEY("bos_token_id"), 6);
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("bos_token_id"));
    put_all_but(&w, KEY("eos_token_id"));
    gguf_put_u64(&w, KEY("eos_token_id"), (uint64_t)1 << 40);
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("eos_token_id"));
    put_all_but(&w, KEY("eos_token_id"));
    gguf_put_str(&w, KEY("eos_token_id"), "2");
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("eos_token_id"));
    static const char *const unknown[] = {"a z"};
    put_all_but(&w, KEY("merges"));
    gguf_put_strs(&w, KEY("merges"), 1, unknown);
    expect_refusal(&w, FOLIO_E_FORMAT, KEY("merges"));
}

Test(text_gguf, missing_file)
{
    last_log l = {0};
    folio_log log = log_to(&l);
    folio_tokenizer *tok = NULL;
    cr_assert_eq(folio_tokenizer_open_file("/no/such/file.gguf", &log, &tok),
                 FOLIO_E_IO);
    cr_assert(strstr(l.text, "/no/such/file.gguf"));
    cr_assert_eq(folio_tokenizer_open_file(NULL, &log, &tok), FOLIO_E_INVAL);
    cr_assert_null(tok);
}

Test(text_gguf, memory_runs_out_anywhere)
{
    fixture *f = fixture_bytes("smollm");
    fixture_merge(f, "t", "h");
    fixture_add(f, "<s>", 3, FOLIO_TOKEN_CONTROL);
    f->desc.chat_template = (folio_gguf_str){"x", 1};
    folio_tokenizer *tok = NULL;
    int nth = 1;
    for (;; nth++) {
        fail_alloc_arm(nth);
        folio_status st = folio_tokenizer_open_vocab(&f->desc, NULL, &tok);
        if (!fail_alloc_disarm())
            break;
        cr_assert_eq(st, FOLIO_E_NOMEM, "allocation %d", nth);
        cr_assert_null(tok);
    }
    cr_assert_gt(nth, 8);
    char text[300];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "the 1 th\xff"[i % 9];
    int32_t ids[301];
    for (nth = 1;; nth++) {
        size_t n_ids = 12345;
        fail_alloc_arm(nth);
        folio_status st =
            folio_tokenizer_encode(tok, text, sizeof text, 0, ids, 301, &n_ids);
        if (!fail_alloc_disarm())
            break;
        cr_assert_eq(st, FOLIO_E_NOMEM, "allocation %d", nth);
        cr_assert_eq(n_ids, 12345);
    }
    cr_assert_gt(nth, 4);
    folio_detokenizer *d = NULL;
    for (nth = 1;; nth++) {
        fail_alloc_arm(nth);
        folio_status st = folio_detokenizer_open(tok, ids, 4, 0, &d);
        if (!fail_alloc_disarm())
            break;
        cr_assert_eq(st, FOLIO_E_NOMEM, "allocation %d", nth);
        cr_assert_null(d);
    }
    cr_assert_eq(nth, 4);
    folio_detokenizer_close(&d);
    folio_tokenizer_close(&tok);
    free(f);
}
