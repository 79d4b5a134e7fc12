/* text/detok.c: ids to text as they come. The state is the bytes of one
 * incomplete character, so nothing is decoded twice and nothing grows. */
#include <string.h>

#include "text/tok.h"
#include "text/utf8.h"

#define CONTEXT 4 /* ids of the prompt's tail */
#define HELD    3 /* bytes of an incomplete character at most */

struct folio_detokenizer {
    const folio_tokenizer *tok;
    bool special;
    bool from_prompt; /* the held bytes began in the prompt */
    uint8_t held[HELD];
    size_t n_held;
    uint8_t *in; /* held bytes and one piece */
    char *out;   /* three bytes for each of those, and a zero */
};

/* Moves what is certain of d->in[0..n) to d->out and holds the rest. A
 * character that begins in the prompt belongs to it: the first `n_mute` bytes
 * are its beginning, and it is dropped with all its bytes. */
static size_t take_bytes(folio_detokenizer *d, size_t n, size_t n_mute)
{
    size_t at = 0, n_out = 0;
    d->n_held = 0;
    d->from_prompt = false;
    while (at < n) {
        size_t len;
        folio_utf8_kind kind = folio_utf8_step(d->in + at, n - at, &len);
        if (kind == FOLIO_UTF8_PARTIAL) {
            d->n_held = n - at;
            memcpy(d->held, d->in + at, d->n_held);
            d->from_prompt = at < n_mute;
            break;
        }
        if (at >= n_mute) {
            const char *s =
                kind == FOLIO_UTF8_BAD ? "\xef\xbf\xbd" : (char *)d->in + at;
            size_t n_s = kind == FOLIO_UTF8_BAD ? 3 : len;
            memcpy(d->out + n_out, s, n_s);
            n_out += n_s;
        }
        at += len;
    }
    d->out[n_out] = '\0';
    return n_out;
}

folio_status folio_detokenizer_push(folio_detokenizer *d, int32_t id,
                                    const char **text, size_t *n)
{
    const char *p;
    size_t len, n_held;
    if (!d || !text || !n)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(folio_tokenizer_piece(d->tok, id, &p, &len));
    if (!d->special && folio_tokenizer_is_control(d->tok, id))
        len = 0;
    n_held = d->n_held;
    memcpy(d->in, d->held, n_held);
    memcpy(d->in + n_held, p, len);
    *n = take_bytes(d, n_held + len, d->from_prompt ? n_held : 0);
    *text = d->out;
    return FOLIO_OK;
}

void folio_detokenizer_flush(folio_detokenizer *d, const char **text, size_t *n)
{
    *n = 0;
    if (!d) {
        *text = "";
        return;
    }
    if (d->n_held && !d->from_prompt) {
        memcpy(d->out, "\xef\xbf\xbd", 3);
        *n = 3;
    }
    d->out[*n] = '\0';
    d->n_held = 0;
    d->from_prompt = false;
    *text = d->out;
}

size_t folio_detokenizer_n_held(const folio_detokenizer *d)
{
    return d ? d->n_held : 0;
}

folio_status folio_detokenizer_open(const folio_tokenizer *tok,
                                    const int32_t *prompt, size_t n_prompt,
                                    uint32_t flags, folio_detokenizer **out)
{
    folio_status st = FOLIO_OK;
    folio_detokenizer *d = NULL;
    if (!tok || !out || (!prompt && n_prompt) ||
        (flags & ~(uint32_t)FOLIO_DECODE_SPECIAL))
        return FOLIO_E_INVAL;
    size_t room = (size_t)folio_tokenizer_max_piece(tok) + HELD;
    d = folio_calloc(1, sizeof *d);
    if (d) {
        d->tok = folio_tokenizer_ref(tok);
        d->special = flags & FOLIO_DECODE_SPECIAL;
        d->in = folio_calloc(room, 1);
        d->out = folio_calloc(3 * room + 1, 1);
    }
    if (!d || !d->in || !d->out) {
        st = FOLIO_E_NOMEM;
        goto fail;
    }
    for (size_t i = n_prompt > CONTEXT ? n_prompt - CONTEXT : 0; i < n_prompt;
         i++) {
        const char *text;
        size_t n;
        FOLIO_TRY(folio_detokenizer_push(d, prompt[i], &text, &n));
    }
    d->from_prompt = d->n_held != 0;
    *out = d;
    return FOLIO_OK;
fail:
    folio_detokenizer_close(&d);
    return st;
}

void folio_detokenizer_close(folio_detokenizer **d)
{
    if (!d || !*d)
        return;
    folio_tokenizer *tok = (folio_tokenizer *)(*d)->tok;
    folio_tokenizer_close(&tok);
    free((*d)->in);
    free((*d)->out);
    FOLIO_FREE(*d);
}
