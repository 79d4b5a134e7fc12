/* text/utf8.h: one step through bytes that may or may not be UTF-8, after
 * table 3-7 and the "maximal subpart" rule of Unicode 15, section 3.9. */
#ifndef FOLIO_TEXT_UTF8_H
#define FOLIO_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

typedef enum folio_utf8_kind {
    FOLIO_UTF8_VALID,  /* len bytes are one character */
    FOLIO_UTF8_BAD,    /* len bytes can never become one */
    FOLIO_UTF8_PARTIAL /* all n bytes begin one and more are needed */
} folio_utf8_kind;

/* Looks at s[0..n), n >= 1, and says what its first 1 to 4 bytes are. */
static inline folio_utf8_kind folio_utf8_step(const uint8_t *s, size_t n,
                                              size_t *len)
{
    uint8_t c = s[0], lo = 0x80, hi = 0xbf;
    size_t need;
    *len = 1;
    if (c < 0x80)
        return FOLIO_UTF8_VALID;
    if (c < 0xc2 || c > 0xf4)
        return FOLIO_UTF8_BAD;
    need = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    /* The second byte is where overlong forms, surrogates and numbers above
     * 10FFFF are kept out. */
    if (c == 0xe0)
        lo = 0xa0;
    else if (c == 0xed)
        hi = 0x9f;
    else if (c == 0xf0)
        lo = 0x90;
    else if (c == 0xf4)
        hi = 0x8f;
    for (size_t i = 1; i < need; i++) {
        *len = i;
        if (i == n)
            return FOLIO_UTF8_PARTIAL;
        if (s[i] < lo || s[i] > hi)
            return FOLIO_UTF8_BAD;
        lo = 0x80;
        hi = 0xbf;
    }
    *len = need;
    return FOLIO_UTF8_VALID;
}

#endif
