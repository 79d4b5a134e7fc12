/* The incremental detokenizer against decoding everything at once with a
 * slow, independent decoder. */
#include "text_fixture.h"

typedef struct stream {
    folio_detokenizer *d;
    char text[8192];
    size_t n, worst_held;
} stream;

static void start(stream *s, const folio_tokenizer *tok, const int32_t *prompt,
                  size_t n_prompt, uint32_t flags)
{
    memset(s, 0, sizeof *s);
    cr_assert_eq(folio_detokenizer_open(tok, prompt, n_prompt, flags, &s->d),
                 FOLIO_OK);
}

static void take(stream *s, const char *text, size_t n)
{
    cr_assert_lt(s->n + n, sizeof s->text);
    cr_assert_eq(text[n], '\0');
    memcpy(s->text + s->n, text, n);
    s->n += n;
    s->text[s->n] = '\0';
}

static size_t push(stream *s, int32_t id)
{
    const char *text;
    size_t n;
    cr_assert_eq(folio_detokenizer_push(s->d, id, &text, &n), FOLIO_OK);
    take(s, text, n);
    s->worst_held = FOLIO_MAX(s->worst_held, folio_detokenizer_n_held(s->d));
    return n;
}

static size_t flush(stream *s)
{
    const char *text;
    size_t n;
    folio_detokenizer_flush(s->d, &text, &n);
    take(s, text, n);
    return n;
}

/* Bytes of `text` before its character number n_chars; text is valid. */
static size_t skip_chars(const char *text, size_t n_chars)
{
    size_t at = 0;
    for (; n_chars; n_chars--)
        do
            at++;
        while (((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

/* Streams ids after a prompt and compares, after each id and at the end, with
 * the whole text less the characters of the prompt's last four pieces. */
static void check_stream(const folio_tokenizer *tok, const int32_t *prompt,
                         size_t n_prompt, const int32_t *ids, size_t n_ids)
{
    char bytes[2048], whole[6144], pre[256];
    size_t n_tail, n_all, n_chars, n_pre_chars;
    size_t tail = FOLIO_MIN(n_prompt, (size_t)4);
    cr_assert_eq(folio_tokenizer_decode(tok, prompt + n_prompt - tail, tail, 1,
                                        bytes, 64, &n_tail),
                 FOLIO_OK);
    slow_decode(bytes, n_tail, pre, &n_pre_chars);
    cr_assert_eq(folio_tokenizer_decode(tok, ids, n_ids, 1, bytes + n_tail,
                                        sizeof bytes - n_tail, &n_all),
                 FOLIO_OK);
    size_t n_whole = slow_decode(bytes, n_tail + n_all, whole, &n_chars);
    whole[n_whole] = '\0'; /* no continuation byte */
    size_t skip = skip_chars(whole, n_pre_chars), n_want = n_whole - skip;
    stream s;
    start(&s, tok, prompt, n_prompt, FOLIO_DECODE_SPECIAL);
    for (size_t i = 0; i < n_ids; i++) {
        push(&s, ids[i]);
        cr_assert_leq(folio_detokenizer_n_held(s.d), 3);
        cr_assert_leq(s.n, n_want);
        cr_assert_eq(memcmp(s.text, whole + skip, s.n), 0);
    }
    flush(&s);
    cr_assert_eq(s.n, n_want, "%zu bytes, expected %zu", s.n, n_want);
    cr_assert_eq(memcmp(s.text, whole + skip, n_want), 0);
    cr_assert_eq(flush(&s), 0); /* idempotent */
    folio_detokenizer_close(&s.d);
}

/* Whether decoding each id alone gives another text. */
static bool naive_differs(const folio_tokenizer *tok, const int32_t *ids,
                          size_t n, const char *want)
{
    char all[8192];
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const char *p;
        size_t len, n_chars;
        cr_assert_eq(folio_tokenizer_piece(tok, ids[i], &p, &len), FOLIO_OK);
        at += slow_decode(p, len, all + at, &n_chars);
    }
    return at != strlen(want) || memcmp(all, want, at) != 0;
}

Test(text_detok, sixty_four_symbols_character_by_character)
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz"
                                   "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .";
    fixture *f = fixture_bytes("gpt-2");
    f->desc.n_vocab = 0;
    for (size_t i = 0; i < 64; i++)
        fixture_add(f, alphabet + i, 1, FOLIO_TOKEN_NORMAL);
    folio_tokenizer *tok = fixture_open(f);
    stream s;
    start(&s, tok, NULL, 0, 0);
    for (int32_t i = 0; i < 64; i++) {
        cr_assert_eq(push(&s, i), 1);
        cr_assert_eq(s.text[i], alphabet[i]);
    }
    cr_assert_eq(flush(&s), 0);
    cr_assert_str_eq(s.text, alphabet);
    const char *text = (char *)1;
    size_t n = 9;
    cr_assert_eq(folio_detokenizer_push(s.d, 64, &text, &n), FOLIO_E_INVAL);
    cr_assert_eq(n, 9);
    folio_tokenizer_close(&tok); /* the detokenizer keeps it alive */
    cr_assert_eq(push(&s, 0), 1);
    folio_detokenizer_close(&s.d);
    folio_detokenizer_close(&s.d);
    free(f);
}

Test(text_detok, emoji_comes_out_with_its_last_byte)
{
    fixture *f = fixture_bytes("gpt-2");
    folio_tokenizer *tok = fixture_open(f);
    static const int32_t llama[] = {0xf0, 0x9f, 0xa6, 0x99};
    stream s;
    start(&s, tok, NULL, 0, 0);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(push(&s, llama[i]), 0);
        cr_assert_eq(folio_detokenizer_n_held(s.d), (size_t)i + 1);
    }
    cr_assert_eq(push(&s, llama[3]), 4);
    cr_assert_eq(s.worst_held, 3);
    cr_assert_str_eq(s.text, "\xf0\x9f\xa6\x99");
    /* A cut character appears only at flush, once. */
    cr_assert_eq(push(&s, 0xe4), 0);
    cr_assert_eq(push(&s, 0xbd), 0);
    cr_assert_eq(flush(&s), 3);
    cr_assert_eq(flush(&s), 0);
    cr_assert_eq(folio_detokenizer_n_held(s.d), 0);
    cr_assert_str_eq(s.text, "\xf0\x9f\xa6\x99\xef\xbf\xbd");
    folio_detokenizer_close(&s.d);
    /* Empty: nothing in, nothing out. */
    start(&s, tok, NULL, 0, 0);
    cr_assert_eq(flush(&s), 0);
    folio_detokenizer_close(&s.d);
    folio_tokenizer_close(&tok);
    free(f);
}

Test(text_detok, fifty_stray_bytes_are_not_held)
{
    fixture *f = fixture_bytes("gpt-2");
    folio_tokenizer *tok = fixture_open(f);
    stream s;
    start(&s, tok, NULL, 0, 0);
    for (int i = 0; i < 50; i++) {
        cr_assert_eq(push(&s, i % 2 ? 0x80 : 0xff), 3);
        cr_assert_eq(folio_detokenizer_n_held(s.d), 0);
    }
    /* A genuine U+FFFD is a character like any other. */
    push(&s, 0xef);
    push(&s, 0xbf);
    cr_assert_eq(push(&s, 0xbd), 3);
    cr_assert_eq(flush(&s), 0);
    cr_assert_eq(s.n, 51 * 3);
    folio_detokenizer_close(&s.d);
    folio_tokenizer_close(&tok);
    free(f);
}

Test(text_detok, pieces_without_text)
{
    fixture *f = fixture_bytes("gpt-2");
    int32_t none = fixture_add(f, "", 0, FOLIO_TOKEN_NORMAL);
    int32_t end = fixture_add(f, "<|im_end|>", 10, FOLIO_TOKEN_CONTROL);
    int32_t emoji = fixture_add(f, "\xf0\x9f\xa6\x99", 4, FOLIO_TOKEN_NORMAL);
    folio_tokenizer *tok = fixture_open(f);
    stream s;
    start(&s, tok, NULL, 0, 0);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(push(&s, none), 0);
    cr_assert_eq(push(&s, emoji), 4);
    /* Control tokens are silent, also in the middle of a character. */
    push(&s, 0xc3);
    cr_assert_eq(push(&s, end), 0);
    cr_assert_eq(push(&s, 0xa9), 2);
    cr_assert_str_eq(s.text, "\xf0\x9f\xa6\x99\xc3\xa9");
    folio_detokenizer_close(&s.d);
    start(&s, tok, NULL, 0, FOLIO_DECODE_SPECIAL);
    push(&s, end);
    cr_assert_str_eq(s.text, "<|im_end|>");
    folio_detokenizer_close(&s.d);
    folio_tokenizer_close(&tok);
    free(f);
}

Test(text_detok, prompt_is_never_emitted)
{
    fixture *f = fixture_bytes("gpt-2");
    folio_tokenizer *tok = fixture_open(f);
    stream s;
    static const int32_t ascii[] = {'h', 'e', 'l', 'l', 'o'};
    start(&s, tok, ascii, 5, 0);
    cr_assert_eq(flush(&s), 0);
    push(&s, '!');
    cr_assert_str_eq(s.text, "!");
    folio_detokenizer_close(&s.d);
    /* A character that began in the prompt is the prompt's. */
    static const int32_t cut[] = {'x', 0xe4, 0xbd};
    start(&s, tok, cut, 3, 0);
    cr_assert_eq(push(&s, 0xa0), 0);
    push(&s, 'y');
    cr_assert_str_eq(s.text, "y");
    folio_detokenizer_close(&s.d);
    start(&s, tok, cut, 3, 0);
    push(&s, 'z');
    cr_assert_str_eq(s.text, "z");
    folio_detokenizer_close(&s.d);
    start(&s, tok, cut, 3, 0);
    cr_assert_eq(flush(&s), 0);
    folio_detokenizer_close(&s.d);
    /* The window of four begins inside a character: that cancels. */
    static const int32_t mid[] = {0xf0, 0x9f, 0xa6, 0x99, 'a', 'b'};
    start(&s, tok, mid, 6, 0);
    push(&s, 'c');
    cr_assert_str_eq(s.text, "c");
    folio_detokenizer_close(&s.d);
    int32_t bad = 256;
    folio_detokenizer *d = NULL;
    cr_assert_eq(folio_detokenizer_open(tok, &bad, 1, 0, &d), FOLIO_E_INVAL);
    cr_assert_null(d);
    folio_tokenizer_close(&tok);
    free(f);
}

static size_t put_utf8(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

Test(text_detok, random_strings_and_random_bytes)
{
    uint64_t seed = 31337;
    cr_log_info("seed %llu", (unsigned long long)seed);
    fixture *f = fixture_bytes("gpt-2");
    /* Some pieces that end or begin inside a character. */
    fixture_add(f, "\x9f\xa6", 2, FOLIO_TOKEN_NORMAL);
    fixture_add(f, "a\xe4", 2, FOLIO_TOKEN_NORMAL);
    fixture_add(f,
                "\xa0"
                "b",
                2, FOLIO_TOKEN_NORMAL);
    folio_tokenizer *tok = fixture_open(f);
    int n_naive_wrong = 0;
    for (int round = 0; round < 300; round++) {
        static const uint32_t planes[] = {0x20,   0x60,   0xe0,    0x400,
                                          0x4e00, 0xfff0, 0x1f600, 0x10fff0};
        char text[256];
        int32_t ids[256];
        size_t n = 0, n_ids;
        for (int k = 0; k < 20; k++)
            n += put_utf8(planes[next_random(&seed) % 8] +
                              next_random(&seed) % 15,
                          text + n);
        text[n] = '\0';
        cr_assert_eq(folio_tokenizer_encode(tok, text, n, 0, ids, 256, &n_ids),
                     FOLIO_OK);
        check_stream(tok, NULL, 0, ids, n_ids);
        size_t cut = next_random(&seed) % n_ids;
        check_stream(tok, ids, cut, ids + cut, n_ids - cut);
        n_naive_wrong += naive_differs(tok, ids, n_ids, text);
    }
    cr_assert_gt(n_naive_wrong, 200);
    for (int round = 0; round < 3000; round++) {
        static const unsigned char few[] = {0xf0, 0x9f, 0xa6, 0x99, 0xe4, 0xbd,
                                            0xed, 0xa0, 0xf4, 0x90, 'a',  0xc0};
        int32_t ids[40];
        size_t cut = next_random(&seed) % 40;
        for (size_t i = 0; i < 40; i++)
            ids[i] = round % 2 ? (int32_t)(next_random(&seed) % 259)
                               : few[next_random(&seed) % sizeof few];
        check_stream(tok, ids, cut, ids + cut, 40 - cut);
    }
    folio_tokenizer_close(&tok);
    free(f);
}
