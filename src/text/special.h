/* text/special.h: finds the tokens that are matched as text before anything
 * else: control tokens where the caller asks, user-defined ones always. */
#ifndef FOLIO_TEXT_SPECIAL_H
#define FOLIO_TEXT_SPECIAL_H

#include "text/vocab.h"

/* The tokens of one mode, sorted by their bytes. */
typedef struct folio_special {
    const folio_vocab *vocab; /* borrowed */
    int32_t *ids;             /* [n] */
    uint32_t n;
    uint32_t
        first[257]; /* tokens whose first byte is b: first[b]..first[b+1] */
} folio_special;

/* with_control: control and unknown tokens too. NOMEM, not logged. */
folio_status folio_special_init(folio_special *s, const folio_vocab *vocab,
                                bool with_control) FOLIO_NODISCARD;
void folio_special_fini(folio_special *s);

/* The longest token that text[0..n) begins with; its id, or -1. */
int32_t folio_special_match(const folio_special *s, const char *text, size_t n,
                            size_t *len);

#endif
