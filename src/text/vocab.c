/* text/vocab.c: pieces as bytes, and a hash table from bytes to id. */
#include "text/vocab.h"

#include <limits.h>
#include <string.h>

/* GPT-2 spells each byte as one printable character: printable Latin-1 as
 * itself, the other 68 bytes in order as U+0100 and up. */
static bool is_own_character(unsigned b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

/* The byte that code point c spells, or -1. */
static int byte_of_character(uint32_t c)
{
    if (c < 0x100)
        return is_own_character(c) ? (int)c : -1;
    uint32_t k = c - 0x100;
    if (k <= 0x20) /* bytes 00..20 */
        return (int)k;
    if (k <= 0x42) /* bytes 7f..a0 */
        return (int)(k - 0x21 + 0x7f);
    return k == 0x43 ? 0xad : -1;
}

size_t folio_alphabet_decode(const char *s, size_t n, char *out)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n; n_out++) {
        unsigned char c = (unsigned char)s[i];
        uint32_t point = c;
        size_t len = 1;
        /* The alphabet ends at U+0143, so two bytes are the most. */
        if (c >= 0xc2 && c <= 0xc5 && i + 1 < n &&
            ((unsigned char)s[i + 1] & 0xc0) == 0x80) {
            point =
                (uint32_t)(c & 0x1f) << 6 | ((unsigned char)s[i + 1] & 0x3f);
            len = 2;
        } else if (c >= 0x80) {
            point = UINT32_MAX;
        }
        int b = point == UINT32_MAX ? -1 : byte_of_character(point);
        if (b < 0) {
            memcpy(out, s, n);
            return n;
        }
        out[n_out] = (char)b;
        i += len;
    }
    return n_out;
}

static uint64_t hash_piece(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a with a final mix */
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    h ^= h >> 32;
    return h * 0x9e3779b97f4a7c15u >> 20;
}

/* The slot that holds s, or the empty one where it belongs. */
static uint32_t find_slot(const folio_vocab *v, const char *s, size_t n)
{
    uint32_t at = (uint32_t)hash_piece(s, n) & v->mask;
    for (; v->slots[at] >= 0; at = (at + 1) & v->mask) {
        size_t len;
        const char *p = folio_vocab_piece(v, v->slots[at], &len);
        if (len == n && memcmp(p, s, n) == 0)
            break;
    }
    return at;
}

int32_t folio_vocab_find(const folio_vocab *v, const char *s, size_t n)
{
    return v->slots[find_slot(v, s, n)];
}

/* Whether a piece that was decoded to n bytes stands for itself: it has a
 * character outside the alphabet, so no text is ever spelled like it. */
static bool is_outside_alphabet(folio_gguf_str p, size_t n)
{
    if (n != p.len) /* decoding shortens what is not ASCII */
        return false;
    for (size_t i = 0; i < n; i++)
        if (p.data[i] < 0x21 || p.data[i] > 0x7e)
            return true;
    return false;
}

/* Of pieces with the same bytes the lowest rank is found: one that merging
 * can make, one outside the alphabet, a special one. */
static int rank_of(const folio_vocab *v, const folio_vocab_desc *d, int32_t id)
{
    size_t n;
    folio_vocab_piece(v, id, &n);
    if (folio_vocab_is_control(v, id))
        return 2;
    return v->type[id] != FOLIO_TOKEN_USER &&
           is_outside_alphabet(d->pieces[id], n);
}

static folio_status fill_slots(folio_vocab *v, const folio_vocab_desc *d,
                               const folio_log *log)
{
    uint32_t n_slots = 16;
    while (n_slots < 2 * (uint32_t)v->n)
        n_slots *= 2;
    v->slots = folio_calloc(n_slots, sizeof *v->slots);
    if (!v->slots)
        return folio_fail(log, FOLIO_E_NOMEM,
                          "tokenizer: no memory for %u hash slots", n_slots);
    memset(v->slots, 0xff, n_slots * sizeof *v->slots);
    v->mask = n_slots - 1;
    int32_t n_twice = 0, first_twice = -1;
    for (int32_t id = 0; id < v->n; id++) {
        size_t n;
        const char *p = folio_vocab_piece(v, id, &n);
        uint32_t at = find_slot(v, p, n);
        int32_t old = v->slots[at];
        int rank = rank_of(v, d, id);
        int old_rank = old < 0 ? INT_MAX : rank_of(v, d, old);
        if (rank < old_rank)
            v->slots[at] = id;
        if (rank == old_rank && n_twice++ == 0)
            first_twice = id;
    }
    if (n_twice)
        folio_logf(log, FOLIO_LOG_WARN,
                   "tokenizer.ggml.tokens: %d pieces occur twice, the first "
                   "is id %d; the lower id is used",
                   n_twice, first_twice);
    return FOLIO_OK;
}

folio_status folio_vocab_init(folio_vocab *v, const folio_vocab_desc *d,
                              const folio_log *log)
{
    size_t total = 0;
    for (int32_t i = 0; i < d->n_vocab; i++)
        if (!folio_add_size(total, d->pieces[i].len, &total) ||
            !folio_add_size(total, 1, &total) || total > UINT32_MAX / 2)
            return folio_fail(log, FOLIO_E_FORMAT,
                              "tokenizer.ggml.tokens: pieces up to id %d have "
                              "more than %u bytes",
                              i, UINT32_MAX / 2);
    v->n = d->n_vocab;
    v->bytes = folio_calloc(total, 1);
    v->off = folio_calloc((size_t)d->n_vocab + 1, sizeof *v->off);
    v->type = folio_calloc((size_t)d->n_vocab, 1);
    if (!v->bytes || !v->off || !v->type)
        return folio_fail(log, FOLIO_E_NOMEM,
                          "tokenizer: no memory for %d pieces", d->n_vocab);
    uint32_t at = 0;
    for (int32_t i = 0; i < d->n_vocab; i++) {
        folio_gguf_str p = d->pieces[i];
        int32_t type = d->types ? d->types[i] : FOLIO_TOKEN_NORMAL;
        if (type < FOLIO_TOKEN_NORMAL || type > FOLIO_TOKEN_BYTE)
            return folio_fail(log, FOLIO_E_FORMAT,
                              "tokenizer.ggml.token_type: id %d has type %d, "
                              "outside 1..6",
                              i, type);
        bool special = type == FOLIO_TOKEN_UNKNOWN ||
                       type == FOLIO_TOKEN_CONTROL || type == FOLIO_TOKEN_USER;
        size_t n = p.len;
        if (special && n)
            memcpy(v->bytes + at, p.data, n);
        else if (n)
            n = folio_alphabet_decode(p.data, n, v->bytes + at);
        v->bytes[at + n] = '\0';
        v->off[i] = at;
        v->type[i] = (uint8_t)type;
        v->max_len = FOLIO_MAX(v->max_len, (uint32_t)n);
        at += (uint32_t)n + 1;
    }
    v->off[d->n_vocab] = at;
    FOLIO_RETURN_IF(fill_slots(v, d, log));
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        int32_t id = folio_vocab_find(v, &c, 1);
        v->byte_id[b] = id >= 0 && !folio_vocab_is_control(v, id) ? id : -1;
    }
    return FOLIO_OK;
}

void folio_vocab_fini(folio_vocab *v)
{
    free(v->bytes);
    free(v->off);
    free(v->type);
    free(v->slots);
    memset(v, 0, sizeof *v);
}
