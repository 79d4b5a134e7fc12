/* text/tokenizer.c: the tokenizer behind <folio/tokenizer.h>: special tokens,
 * then runs of valid UTF-8 through the pre-tokenizer, then merging. Knows no
 * file. */
#include <stdatomic.h>
#include <string.h>

#include "text/bpe.h"
#include "text/pre.h"
#include "text/special.h"
#include "text/tok.h"
#include "text/utf8.h"
#include "text/vocab.h"

#define MAX_TEXT ((size_t)1 << 30)

struct folio_tokenizer {
    atomic_int n_refs;
    folio_log log;
    folio_vocab vocab;
    folio_bpe bpe;
    folio_special plain, parsed; /* without and with control tokens */
    const folio_pre_kind *kind;
    folio_pre *pre;
    int32_t bos, eos, eot, eom;
    bool add_bos;
    bool *eog; /* [n_vocab] */
    char *chat_template;
};

/* Control tokens that end a turn or a message in some model family. */
static const char *const eog_pieces[] = {
    "<|im_end|>",      /* ChatML, SmolLM, Qwen */
    "<|endoftext|>",   /* GPT-2 and many after it */
    "<|eot_id|>",      /* Llama 3 */
    "<|eom_id|>",      /* Llama 3.1, tools */
    "<|end_of_text|>", /* Llama 3, Granite */
    "<|end|>",         /* Phi 3 */
    "<end_of_turn>",   /* Gemma */
    "<EOT>",
    "<|EOT|>",
    "<|end_of_turn|>",
    "</s>",
    "<eos>",
    /* DeepSeek: U+FF5C and U+2581 */
    ("<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"),
};

static folio_status check_desc(const folio_vocab_desc *v, const folio_log *log)
{
    const struct {
        const char *key;
        int32_t id;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", v->bos},
        {"tokenizer.ggml.eos_token_id", v->eos},
        {"tokenizer.ggml.eot_token_id", v->eot},
        {"tokenizer.ggml.eom_token_id", v->eom},
        {"tokenizer.ggml.unknown_token_id", v->unk},
    };
    if (v->n_vocab < 1 || v->n_vocab > 1 << 24)
        return folio_fail(log, FOLIO_E_FORMAT,
                          "tokenizer.ggml.tokens: %d pieces, expected 1 to %d",
                          v->n_vocab, 1 << 24);
    for (size_t i = 0; i < FOLIO_COUNT(ids); i++)
        if (ids[i].id < -1 || ids[i].id >= v->n_vocab)
            return folio_fail(log, FOLIO_E_FORMAT,
                              "%s is %d, but tokenizer.ggml.tokens has %d "
                              "pieces",
                              ids[i].key, ids[i].id, v->n_vocab);
    return FOLIO_OK;
}

static folio_status pick_kind(folio_tokenizer *t, const char *pre)
{
    t->kind =
        folio_pre_find(pre ? pre : "default", strlen(pre ? pre : "default"));
    if (!t->kind) {
        char names[640];
        folio_pre_names(names, sizeof names);
        return folio_fail(&t->log, FOLIO_E_UNSUPPORTED,
                          "tokenizer.ggml.pre is \"%.100s\", but this build "
                          "knows %s",
                          pre, names);
    }
    if (!pre || strcmp(pre, "default") == 0)
        folio_logf(&t->log, FOLIO_LOG_WARN,
                   "tokenizer.ggml.pre is %s: text is cut the usual way for "
                   "such files, which may not be how the model was trained",
                   pre ? "\"default\"" : "missing");
    return folio_pre_open(t->kind, &t->log, &t->pre);
}

static folio_status mark_ends(folio_tokenizer *t)
{
    const int32_t ids[] = {t->eos, t->eot, t->eom};
    t->eog = folio_calloc((size_t)t->vocab.n, sizeof *t->eog);
    if (!t->eog)
        return folio_fail(&t->log, FOLIO_E_NOMEM,
                          "tokenizer: no memory for %d flags", t->vocab.n);
    for (size_t i = 0; i < FOLIO_COUNT(ids); i++)
        if (ids[i] >= 0)
            t->eog[ids[i]] = true;
    for (int32_t id = 0; id < t->vocab.n; id++) {
        /* The same text as a user-defined token is ordinary text. */
        if (t->vocab.type[id] != FOLIO_TOKEN_CONTROL)
            continue;
        size_t n;
        const char *p = folio_vocab_piece(&t->vocab, id, &n);
        for (size_t i = 0; i < FOLIO_COUNT(eog_pieces); i++)
            if (strlen(eog_pieces[i]) == n && !memcmp(eog_pieces[i], p, n))
                t->eog[id] = true;
    }
    return FOLIO_OK;
}

folio_status folio_tokenizer_open_vocab(const folio_vocab_desc *v,
                                        const folio_log *log,
                                        folio_tokenizer **out)
{
    folio_status st = FOLIO_OK;
    folio_tokenizer *t = NULL;
    FOLIO_TRY(check_desc(v, log));
    t = folio_calloc(1, sizeof *t);
    if (!t) {
        st = folio_fail(log, FOLIO_E_NOMEM, "tokenizer: no memory");
        goto fail;
    }
    atomic_init(&t->n_refs, 1);
    if (log)
        t->log = *log;
    t->bos = v->bos;
    t->eos = v->eos;
    t->eot = v->eot;
    t->eom = v->eom;
    FOLIO_TRY(pick_kind(t, v->pre));
    FOLIO_TRY(folio_vocab_init(&t->vocab, v, log));
    FOLIO_TRY(folio_bpe_init(&t->bpe, &t->vocab, v->merges, v->n_merges, log));
    /* A control token would let plain text end a turn. */
    if (t->bpe.fallback < 0 && v->unk >= 0 &&
        t->vocab.type[v->unk] != FOLIO_TOKEN_CONTROL)
        t->bpe.fallback = v->unk;
    if (folio_special_init(&t->plain, &t->vocab, false) ||
        folio_special_init(&t->parsed, &t->vocab, true)) {
        st = folio_fail(log, FOLIO_E_NOMEM,
                        "tokenizer: no memory for special tokens");
        goto fail;
    }
    t->add_bos = v->add_bos < 0 ? t->kind->add_bos : v->add_bos != 0;
    if (t->add_bos && t->bos < 0) {
        if (v->add_bos > 0)
            folio_logf(log, FOLIO_LOG_WARN,
                       "tokenizer.ggml.add_bos_token is true, but "
                       "tokenizer.ggml.bos_token_id is missing: prompts start "
                       "without BOS");
        t->add_bos = false;
    }
    FOLIO_TRY(mark_ends(t));
    if (v->chat_template.data) {
        t->chat_template =
            folio_strndup(v->chat_template.data, v->chat_template.len);
        if (!t->chat_template) {
            st = folio_fail(log, FOLIO_E_NOMEM,
                            "tokenizer: no memory for the chat template of "
                            "%zu bytes",
                            v->chat_template.len);
            goto fail;
        }
    }
    *out = t;
    return FOLIO_OK;
fail:
    folio_tokenizer_close(&t);
    return st;
}

const folio_tokenizer *folio_tokenizer_ref(const folio_tokenizer *tok)
{
    /* The count is the one part that changes after open. */
    atomic_fetch_add(&((folio_tokenizer *)tok)->n_refs, 1);
    return tok;
}

void folio_tokenizer_close(folio_tokenizer **tok)
{
    folio_tokenizer *t = tok ? *tok : NULL;
    if (!t)
        return;
    *tok = NULL;
    if (atomic_fetch_sub(&t->n_refs, 1) != 1)
        return;
    folio_special_fini(&t->plain);
    folio_special_fini(&t->parsed);
    folio_bpe_fini(&t->bpe);
    folio_vocab_fini(&t->vocab);
    folio_pre_close(&t->pre);
    free(t->eog);
    free(t->chat_template);
    free(t);
}

/* One encode call. */
typedef struct encoder {
    const folio_tokenizer *tok;
    folio_bpe_work bpe;
    folio_pre_work *pre;
    folio_ids out;
} encoder;

static folio_status encode_piece(void *user, const char *s, size_t n)
{
    encoder *e = user;
    const folio_tokenizer *t = e->tok;
    if (t->kind->ignore_merges) {
        int32_t id = folio_vocab_find(&t->vocab, s, n);
        if (id >= 0 && !folio_vocab_is_control(&t->vocab, id))
            return folio_ids_push(&e->out, id);
    }
    return folio_bpe_encode(&t->bpe, &e->bpe, s, n, &e->out);
}

/* Text without special tokens: runs of characters go through the
 * pre-tokenizer, runs of other bytes straight to merging. */
static folio_status encode_text(encoder *e, const char *s, size_t n)
{
    size_t begin = 0, at = 0;
    bool run_valid = true;
    while (begin < n) {
        size_t len = n - at;
        bool valid = at < n && folio_utf8_step((const uint8_t *)s + at, n - at,
                                               &len) == FOLIO_UTF8_VALID;
        if (at == begin)
            run_valid = valid;
        if (at < n && valid == run_valid) {
            at += len;
            continue;
        }
        if (run_valid)
            FOLIO_RETURN_IF(folio_pre_split(e->tok->pre, e->pre, s + begin,
                                            at - begin, encode_piece, e));
        else
            FOLIO_RETURN_IF(folio_bpe_encode(&e->tok->bpe, &e->bpe, s + begin,
                                             at - begin, &e->out));
        begin = at;
    }
    return FOLIO_OK;
}

static folio_status encode_all(encoder *e, const char *s, size_t n,
                               const folio_special *special)
{
    size_t begin = 0, at = 0;
    while (special->n && at < n) {
        size_t len = 1;
        int32_t id = folio_special_match(special, s + at, n - at, &len);
        if (id >= 0) {
            FOLIO_RETURN_IF(encode_text(e, s + begin, at - begin));
            FOLIO_RETURN_IF(folio_ids_push(&e->out, id));
            begin = at + len;
        }
        at += len;
    }
    return encode_text(e, s + begin, n - begin);
}

folio_status folio_tokenizer_encode(const folio_tokenizer *tok,
                                    const char *text, size_t n, uint32_t flags,
                                    int32_t *ids, size_t cap, size_t *n_ids)
{
    folio_status st = FOLIO_OK;
    encoder e = {.tok = tok};
    const uint32_t known = FOLIO_ENCODE_ADD_BOS | FOLIO_ENCODE_PARSE_SPECIAL;
    if (!tok)
        return FOLIO_E_INVAL;
    if (!n_ids || (!text && n) || (!ids && cap))
        return folio_fail(&tok->log, FOLIO_E_INVAL,
                          "tokenizer: encode: %s is NULL (%zu bytes of text, "
                          "room for %zu ids)",
                          !n_ids       ? "n_ids"
                          : !text && n ? "text"
                                       : "ids",
                          n, cap);
    if (flags & ~known)
        return folio_fail(&tok->log, FOLIO_E_INVAL,
                          "tokenizer: encode flags %#x, known are %#x",
                          (unsigned)flags, (unsigned)known);
    if (n >= MAX_TEXT)
        return folio_fail(&tok->log, FOLIO_E_TOO_LARGE,
                          "tokenizer: a text of %zu bytes, at most %zu", n,
                          MAX_TEXT - 1);
    bool parse = flags & FOLIO_ENCODE_PARSE_SPECIAL;
    bool bos = (flags & FOLIO_ENCODE_ADD_BOS) && tok->add_bos;
    FOLIO_TRY(folio_pre_work_open(n, &e.pre));
    if (bos)
        FOLIO_TRY(folio_ids_push(&e.out, tok->bos));
    FOLIO_TRY(encode_all(&e, text, n, parse ? &tok->parsed : &tok->plain));
    /* A template may have written BOS already. */
    size_t skip = bos && e.out.n > 1 && e.out.ids[1] == tok->bos;
    *n_ids = e.out.n - skip;
    if (e.out.n - skip > cap)
        st = FOLIO_E_RANGE;
    else if (e.out.n - skip)
        memcpy(ids, e.out.ids + skip, (e.out.n - skip) * sizeof *ids);
fail:
    if (st == FOLIO_E_NOMEM)
        st = folio_fail(&tok->log, st,
                        "tokenizer: no memory to encode %zu bytes", n);
    if (st == FOLIO_E_UNSUPPORTED)
        st = folio_fail(&tok->log, st,
                        "tokenizer: the text has a byte without a token, and "
                        "the vocabulary has neither U+FFFD nor an unknown "
                        "token");
    free(e.out.ids);
    folio_bpe_work_fini(&e.bpe);
    folio_pre_work_close(&e.pre);
    return st;
}

folio_status folio_tokenizer_piece(const folio_tokenizer *tok, int32_t id,
                                   const char **piece, size_t *n)
{
    if (!tok)
        return FOLIO_E_INVAL;
    if (!piece || !n)
        return folio_fail(&tok->log, FOLIO_E_INVAL,
                          "tokenizer: piece: %s is NULL",
                          piece ? "n" : "piece");
    if (id < 0 || id >= tok->vocab.n)
        return folio_fail(&tok->log, FOLIO_E_INVAL,
                          "tokenizer: id %d is outside the vocabulary of %d",
                          id, tok->vocab.n);
    *piece = folio_vocab_piece(&tok->vocab, id, n);
    return FOLIO_OK;
}

folio_status folio_tokenizer_decode(const folio_tokenizer *tok,
                                    const int32_t *ids, size_t n,
                                    uint32_t flags, char *out, size_t cap,
                                    size_t *n_bytes)
{
    size_t total = 0;
    if (!tok)
        return FOLIO_E_INVAL;
    if (!n_bytes || (!ids && n) || (!out && cap))
        return folio_fail(&tok->log, FOLIO_E_INVAL,
                          "tokenizer: decode: %s is NULL (%zu ids, room for "
                          "%zu bytes)",
                          !n_bytes    ? "n_bytes"
                          : !ids && n ? "ids"
                                      : "out",
                          n, cap);
    if (flags & ~(uint32_t)FOLIO_DECODE_SPECIAL)
        return folio_fail(&tok->log, FOLIO_E_INVAL,
                          "tokenizer: decode flags %#x, known are %#x",
                          (unsigned)flags, (unsigned)FOLIO_DECODE_SPECIAL);
    for (int copy = 0; copy < 2; copy++) {
        size_t at = 0;
        for (size_t i = 0; i < n; i++) {
            const char *p;
            size_t len;
            FOLIO_RETURN_IF(folio_tokenizer_piece(tok, ids[i], &p, &len));
            if (!(flags & FOLIO_DECODE_SPECIAL) &&
                folio_vocab_is_control(&tok->vocab, ids[i]))
                continue;
            if (copy && len)
                memcpy(out + at, p, len);
            at += len;
        }
        total = at;
        if (total > cap)
            break;
    }
    *n_bytes = total;
    return total > cap ? FOLIO_E_RANGE : FOLIO_OK;
}

int32_t folio_tokenizer_n_vocab(const folio_tokenizer *tok)
{
    return tok ? tok->vocab.n : 0;
}

uint32_t folio_tokenizer_max_piece(const folio_tokenizer *tok)
{
    return tok->vocab.max_len;
}

int32_t folio_tokenizer_bos(const folio_tokenizer *tok)
{
    return tok ? tok->bos : -1;
}

int32_t folio_tokenizer_eos(const folio_tokenizer *tok)
{
    return tok ? tok->eos : -1;
}

bool folio_tokenizer_add_bos(const folio_tokenizer *tok)
{
    return tok && tok->add_bos;
}

bool folio_tokenizer_is_eog(const folio_tokenizer *tok, int32_t id)
{
    return tok && id >= 0 && id < tok->vocab.n && tok->eog[id];
}

bool folio_tokenizer_is_control(const folio_tokenizer *tok, int32_t id)
{
    return tok && id >= 0 && id < tok->vocab.n &&
           folio_vocab_is_control(&tok->vocab, id);
}

int32_t folio_tokenizer_find(const folio_tokenizer *tok, const char *piece,
                             size_t n)
{
    return tok && (piece || !n) ? folio_vocab_find(&tok->vocab, piece, n) : -1;
}

const char *folio_tokenizer_chat_template(const folio_tokenizer *tok)
{
    return tok ? tok->chat_template : NULL;
}
