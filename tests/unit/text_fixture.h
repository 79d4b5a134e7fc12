/* text_fixture.h: vocabularies in memory for the tokenizer tests, and a slow,
 * independent decoder of doubtful UTF-8. */
#ifndef FOLIO_TEST_TEXT_FIXTURE_H
#define FOLIO_TEST_TEXT_FIXTURE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "text/tok.h"

#define FIXTURE_MAX 1024

#if defined(__SANITIZE_ADDRESS__)
#define SLOWER 20
#else
#define SLOWER 1
#endif

typedef struct fixture {
    char text[FIXTURE_MAX][64];
    folio_gguf_str pieces[FIXTURE_MAX];
    int32_t types[FIXTURE_MAX];
    char merge_text[FIXTURE_MAX][130];
    folio_gguf_str merges[FIXTURE_MAX];
    folio_vocab_desc desc;
} fixture;

/* GPT-2's spelling of bytes, written from its definition: printable ones
 * stand for themselves, the rest count up from U+0100. */
static inline size_t fixture_spell(const char *s, size_t n, char *out)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned b = (unsigned char)s[i], point = 256;
        for (unsigned k = 0; k <= b; k++) {
            bool own = (k >= '!' && k <= '~') || (k >= 0xa1 && k <= 0xac) ||
                       (k >= 0xae && k <= 0xff);
            if (k == b)
                point = own ? b : point;
            else
                point += !own;
        }
        if (point < 0x80) {
            out[at++] = (char)point;
        } else {
            out[at++] = (char)(0xc0 | point >> 6);
            out[at++] = (char)(0x80 | (point & 0x3f));
        }
    }
    return at;
}

/* Adds a piece given by its bytes; returns its id. */
static inline int32_t fixture_add(fixture *f, const char *s, size_t n,
                                  int32_t type)
{
    int32_t id = f->desc.n_vocab++;
    cr_assert_lt(id, FIXTURE_MAX);
    cr_assert_leq(n, 30);
    if (type == FOLIO_TOKEN_NORMAL)
        n = fixture_spell(s, n, f->text[id]);
    else
        memcpy(f->text[id], s, n);
    f->pieces[id] = (folio_gguf_str){f->text[id], n};
    f->types[id] = type;
    return id;
}

/* Adds the next merge, not its result. */
static inline void fixture_rule(fixture *f, const char *l, size_t nl,
                                const char *r, size_t nr)
{
    size_t i = f->desc.n_merges++;
    cr_assert_lt(i, FIXTURE_MAX);
    size_t n = fixture_spell(l, nl, f->merge_text[i]);
    f->merge_text[i][n++] = ' ';
    n += fixture_spell(r, nr, f->merge_text[i] + n);
    f->merges[i] = (folio_gguf_str){f->merge_text[i], n};
}

/* Adds the next merge and the piece it gives; returns the piece's id. */
static inline int32_t fixture_merge(fixture *f, const char *l, const char *r)
{
    char both[64];
    int n = snprintf(both, sizeof both, "%s%s", l, r);
    fixture_rule(f, l, strlen(l), r, strlen(r));
    return fixture_add(f, both, (size_t)n, FOLIO_TOKEN_NORMAL);
}

/* The 256-byte tokenizer: id = byte, no merges. On the heap, as it is big. */
static inline fixture *fixture_bytes(const char *pre)
{
    fixture *f = calloc(1, sizeof *f);
    cr_assert_not_null(f);
    f->desc = (folio_vocab_desc){.pre = pre,
                                 .pieces = f->pieces,
                                 .types = f->types,
                                 .merges = f->merges,
                                 .bos = -1,
                                 .eos = -1,
                                 .eot = -1,
                                 .eom = -1,
                                 .unk = -1,
                                 .add_bos = -1};
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        fixture_add(f, &c, 1, FOLIO_TOKEN_NORMAL);
    }
    return f;
}

static inline folio_tokenizer *fixture_open(const fixture *f)
{
    folio_tokenizer *tok = NULL;
    cr_assert_eq(folio_tokenizer_open_vocab(&f->desc, NULL, &tok), FOLIO_OK);
    return tok;
}

/* Keeps the last message, to test what it names. */
typedef struct last_log {
    char text[4096];
    int n;
} last_log;

static inline void keep_message(void *user, folio_log_level level,
                                const char *message)
{
    last_log *l = user;
    (void)level;
    l->n++;
    snprintf(l->text, sizeof l->text, "%s", message);
}

static inline folio_log log_to(last_log *l)
{
    return (folio_log){keep_message, l, FOLIO_LOG_WARN};
}

/* Encodes and prints ids as "1 2 3 ". */
static inline const char *encode_shown(const folio_tokenizer *tok,
                                       const char *s, size_t n, uint32_t flags)
{
    static char out[65536];
    static int32_t ids[8192];
    size_t n_ids = 0, at = 0;
    cr_assert_lt(n, FOLIO_COUNT(ids));
    cr_assert_eq(
        folio_tokenizer_encode(tok, s, n, flags, ids, FOLIO_COUNT(ids), &n_ids),
        FOLIO_OK);
    out[0] = '\0';
    for (size_t i = 0; i < n_ids; i++)
        at += (size_t)snprintf(out + at, sizeof out - at, "%d ", ids[i]);
    return out;
}

/* Whether s[0..n) is one well-formed character, by decoding and spelling it
 * again. */
static inline bool slow_is_char(const unsigned char *s, size_t n)
{
    uint32_t c;
    if (n == 1)
        return s[0] < 0x80;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return false;
    if (n == 2 && (s[0] & 0xe0) == 0xc0)
        c = (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    else if (n == 3 && (s[0] & 0xf0) == 0xe0)
        c = (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    else if (n == 4 && (s[0] & 0xf8) == 0xf0)
        c = (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 |
            (s[3] & 0x3fu);
    else
        return false;
    return c >= (n == 2   ? 0x80u
                 : n == 3 ? 0x800u
                          : 0x10000u) &&
           c <= 0x10ffff && !(c >= 0xd800 && c <= 0xdfff);
}

/* Whether some bytes after s[0..n) make a character of it, by trying. */
static inline bool slow_is_start(const unsigned char *s, size_t n)
{
    static const unsigned char tries[] = {0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf};
    unsigned char t[4];
    memcpy(t, s, n);
    for (size_t len = n + 1; len <= 4; len++)
        for (size_t i = 0; i < 6; i++) {
            t[n] = tries[i];
            for (size_t k = n + 1; k < len; k++)
                t[k] = 0x80;
            if (slow_is_char(t, len))
                return true;
        }
    return false;
}

/* Bytes to text with one U+FFFD for each maximal part of a character; n_chars
 * counts characters. out holds 3 n bytes. */
static inline size_t slow_decode(const char *bytes, size_t n, char *out,
                                 size_t *n_chars)
{
    const unsigned char *s = (const unsigned char *)bytes;
    size_t at = 0, n_out = 0;
    *n_chars = 0;
    while (at < n) {
        size_t len = 0;
        for (size_t k = 1; k <= 4 && at + k <= n; k++)
            if (slow_is_char(s + at, k))
                len = k;
        if (len) {
            memcpy(out + n_out, s + at, len);
            n_out += len;
        } else {
            len = 1;
            while (len < 3 && at + len < n && slow_is_start(s + at, len + 1))
                len++;
            memcpy(out + n_out, "\xef\xbf\xbd", 3);
            n_out += 3;
        }
        at += len;
        (*n_chars)++;
    }
    return n_out;
}

/* A small generator for the tests' random inputs; the seed is printed. */
static inline uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

#endif
