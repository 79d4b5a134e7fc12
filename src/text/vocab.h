/* text/vocab.h: the pieces of a byte-level vocabulary as the bytes they stand
 * for, with their types, and the way back from bytes to id. Knows neither
 * merges nor files. */
#ifndef FOLIO_TEXT_VOCAB_H
#define FOLIO_TEXT_VOCAB_H

#include "base/base.h"
#include "text/tok.h"

typedef struct folio_vocab {
    int32_t n;
    char *bytes;      /* all pieces, each followed by a zero byte */
    uint32_t *off;    /* [n + 1]; piece i is bytes[off[i] .. off[i+1] - 1) */
    uint8_t *type;    /* [n] folio_token_type */
    int32_t *slots;   /* hash table over the piece's bytes, -1 empty */
    uint32_t mask;    /* slots - 1 */
    uint32_t max_len; /* bytes of the longest piece */
    int32_t byte_id[256]; /* the token of each single byte, or -1 */
} folio_vocab;

/* Spells out pieces from GPT-2's byte alphabet; special ones (unknown,
 * control, user-defined) are taken as they are. FORMAT for a type outside the
 * enumeration. Of pieces with the same bytes one in the alphabet is found
 * before one with a character outside it; other duplicates get one warning,
 * the lowest id is found. `v` is zeroed before; _fini is safe on it after any
 * failure. */
folio_status folio_vocab_init(folio_vocab *v, const folio_vocab_desc *d,
                              const folio_log *log) FOLIO_NODISCARD;
void folio_vocab_fini(folio_vocab *v);

static inline const char *folio_vocab_piece(const folio_vocab *v, int32_t id,
                                            size_t *n)
{
    *n = v->off[id + 1] - v->off[id] - 1;
    return v->bytes + v->off[id];
}

/* Types that stand for no text: never the result of encoding plain text. */
static inline bool folio_vocab_is_control(const folio_vocab *v, int32_t id)
{
    return v->type[id] == FOLIO_TOKEN_CONTROL ||
           v->type[id] == FOLIO_TOKEN_UNKNOWN;
}

/* The id with these bytes, one with text of its own before a special one;
 * -1 if none. */
int32_t folio_vocab_find(const folio_vocab *v, const char *s, size_t n);

/* Writes the bytes that an alphabet spelling stands for (at most n) to out and
 * returns their number. A spelling with a character outside the alphabet
 * stands for itself. out may not overlap s. */
size_t folio_alphabet_decode(const char *s, size_t n, char *out);

#endif
