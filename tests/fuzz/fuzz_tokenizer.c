/* Fuzzes the tokenizer. The first input byte picks what is tried: any bytes
 * through a fixed vocabulary, which must come back unchanged by decoding and
 * by streaming; or a vocabulary made of the input, which must be refused or
 * work. */
#include <stdlib.h>
#include <string.h>

#include "text/tok.h"
#include "text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

static const char *const kinds[] = {
    "gpt-2",   "smollm", "llama-bpe",    "qwen2",
    "default", "qwen35", "deepseek-llm", "deepseek-coder",
    "falcon",  "gpt-4o", "tekken"};

/* All bytes in GPT-2's spelling, then pieces of merges, then special ones. */
static folio_tokenizer *open_fixed(const char *pre)
{
    static const char *const extra[] = {
        "th", "the", "\xc4\xa0t", "\xc3\xa4\xc2\xbd",
        "  ", "<b>", "<|x|>",     "<|x"};
    static const int32_t extra_types[] = {1, 1, 1, 1, 4, 4, 3, 3};
    static const char *const rules[] = {"t h", "th e", "\xc4\xa0 t",
                                        "\xc3\xa4 \xc2\xbd"};
    static char spelled[256][2];
    folio_gguf_str pieces[256 + FOLIO_COUNT(extra)];
    folio_gguf_str merges[FOLIO_COUNT(rules)];
    int32_t types[256 + FOLIO_COUNT(extra)];
    unsigned next = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool own = (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad);
        unsigned c = own ? b : next++;
        spelled[b][0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
        spelled[b][1] = (char)(0x80 | (c & 0x3f));
        pieces[b] = (folio_gguf_str){spelled[b], c < 0x80 ? 1 : 2};
        types[b] = FOLIO_TOKEN_NORMAL;
    }
    for (size_t i = 0; i < FOLIO_COUNT(extra); i++) {
        pieces[256 + i] = (folio_gguf_str){extra[i], strlen(extra[i])};
        types[256 + i] = extra_types[i];
    }
    for (size_t i = 0; i < FOLIO_COUNT(rules); i++)
        merges[i] = (folio_gguf_str){rules[i], strlen(rules[i])};
    folio_vocab_desc v = {.pre = pre,
                          .n_vocab = FOLIO_COUNT(pieces),
                          .pieces = pieces,
                          .types = types,
                          .n_merges = FOLIO_COUNT(merges),
                          .merges = merges,
                          .bos = -1,
                          .eos = -1,
                          .eot = -1,
                          .eom = -1,
                          .unk = -1,
                          .add_bos = 0};
    folio_tokenizer *tok = NULL;
    demand(folio_tokenizer_open_vocab(&v, NULL, &tok) == FOLIO_OK);
    return tok;
}

/* The text that streaming should give: bytes that are no character as
 * U+FFFD. */
static size_t replace_bad(const uint8_t *s, size_t n, char *out)
{
    size_t n_out = 0;
    for (size_t at = 0, len; at < n; at += len) {
        bool valid = folio_utf8_step(s + at, n - at, &len) == FOLIO_UTF8_VALID;
        memcpy(out + n_out, valid ? (const char *)s + at : "\xef\xbf\xbd",
               valid ? len : 3);
        n_out += valid ? len : 3;
    }
    return n_out;
}

static void check_stream(const folio_tokenizer *tok, const int32_t *ids,
                         size_t n_ids, const char *want, size_t n_want)
{
    folio_detokenizer *d = NULL;
    const char *s;
    size_t n, at = 0;
    demand(folio_detokenizer_open(tok, NULL, 0, FOLIO_DECODE_SPECIAL, &d) ==
           FOLIO_OK);
    for (size_t i = 0; i <= n_ids; i++) {
        if (i < n_ids)
            demand(folio_detokenizer_push(d, ids[i], &s, &n) == FOLIO_OK);
        else
            folio_detokenizer_flush(d, &s, &n);
        demand(at + n <= n_want && memcmp(want + at, s, n) == 0);
        demand(folio_detokenizer_n_held(d) <= 3);
        at += n;
    }
    demand(at == n_want);
    folio_detokenizer_close(&d);
}

static void round_trip(const folio_tokenizer *tok, uint32_t flags,
                       const uint8_t *s, size_t n)
{
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    char *back = malloc(3 * n + 1);
    size_t n_ids, n_back;
    demand(ids && back);
    demand(folio_tokenizer_encode(tok, (const char *)s, n, flags, ids, n + 1,
                                  &n_ids) == FOLIO_OK);
    demand(folio_tokenizer_decode(tok, ids, n_ids, FOLIO_DECODE_SPECIAL, back,
                                  n, &n_back) == FOLIO_OK);
    demand(n_back == n && memcmp(back, s, n) == 0);
    if (!flags)
        for (size_t i = 0; i < n_ids; i++)
            demand(!folio_tokenizer_is_control(tok, ids[i]));
    check_stream(tok, ids, n_ids, back, replace_bad(s, n, back));
    free(ids);
    free(back);
}

/* Lines of the input: a type digit and a piece, or a merge. */
static void try_vocabulary(const char *pre, const uint8_t *s, size_t n)
{
    folio_gguf_str pieces[64], merges[64];
    int32_t types[64];
    folio_vocab_desc v = {.pre = pre,
                          .pieces = pieces,
                          .types = types,
                          .merges = merges,
                          .bos = (int32_t)(n % 9) - 1,
                          .eos = -1,
                          .eot = -1,
                          .eom = -1,
                          .unk = (int32_t)(n % 5) - 1,
                          .add_bos = (int)(n % 3) - 1};
    const uint8_t *end = s + n;
    while (s < end && v.n_vocab < 64 && v.n_merges < 64) {
        const uint8_t *stop = memchr(s, '\n', (size_t)(end - s));
        size_t len = (size_t)((stop ? stop : end) - s);
        if (len && s[0] >= '0' && s[0] <= '9') {
            types[v.n_vocab] = s[0] - '0';
            pieces[v.n_vocab++] =
                (folio_gguf_str){(const char *)s + 1, len - 1};
        } else {
            merges[v.n_merges++] = (folio_gguf_str){(const char *)s, len};
        }
        s += len + (stop != NULL);
    }
    folio_tokenizer *tok = NULL;
    if (folio_tokenizer_open_vocab(&v, NULL, &tok) != FOLIO_OK)
        return;
    int32_t ids[257];
    size_t n_ids, left = FOLIO_MIN((size_t)(end - s), (size_t)256);
    folio_status st = folio_tokenizer_encode(
        tok, (const char *)s, left, FOLIO_ENCODE_ADD_BOS, ids, 257, &n_ids);
    demand(st == FOLIO_OK || st == FOLIO_E_UNSUPPORTED);
    for (size_t i = 0; st == FOLIO_OK && i < n_ids; i++)
        demand(ids[i] >= 0 && ids[i] < v.n_vocab);
    folio_tokenizer_close(&tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static folio_tokenizer *toks[FOLIO_COUNT(kinds)];
    if (size == 0)
        return 0;
    size_t kind = data[0] % FOLIO_COUNT(kinds);
    if (data[0] & 0x40) {
        try_vocabulary(kinds[kind], data + 1, size - 1);
        return 0;
    }
    if (!toks[kind])
        toks[kind] = open_fixed(kinds[kind]);
    round_trip(toks[kind], data[0] & 0x20 ? FOLIO_ENCODE_PARSE_SPECIAL : 0,
               data + 1, size - 1);
    return 0;
}
