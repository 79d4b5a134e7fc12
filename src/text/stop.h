/* text/stop.h: finds stop strings in text that comes in pieces, and holds back
 * what may still become one. Bytes in, bytes out: knows no tokens. */
#ifndef FOLIO_TEXT_STOP_H
#define FOLIO_TEXT_STOP_H

#include <stddef.h>
#include <stdint.h>

#include <folio/log.h>
#include <folio/status.h>

/* Stop strings made ready (Aho and Corasick, "Efficient string matching", CACM
 * 1975). Read-only once open: any number of texts and threads may share it. */
typedef struct folio_stop_set folio_stop_set;

/* One text on its way through a set. What is held back is told by it and the
 * set alone; it may be copied. Fields are private. */
typedef struct folio_stop_state {
    uint32_t node;
    int32_t hit; /* index of the stop string that ended the text, or -1 */
} folio_stop_state;

/* strings [in] [n] of lens[i] >= 1 bytes, copied; a first byte of 80 to BF is
 *              refused, as it would cut characters. All together 1 MiB at most
 * n       [in] >= 1
 * log     [in] may be NULL
 * out     [out] the caller's, released with folio_stop_set_close
 * Returns OK, INVAL, NOMEM. */
folio_status folio_stop_set_open(const char *const *strings, const size_t *lens,
                                 int32_t n, const folio_log *log,
                                 folio_stop_set **out) FOLIO_NODISCARD;

/* Sets *set to NULL; NULL is allowed twice over. */
void folio_stop_set_close(folio_stop_set **set);

/* Most bytes that can be held back: the longest string but one byte. */
size_t folio_stop_set_max_held(const folio_stop_set *set);

/* The state at the beginning of a text. */
folio_stop_state folio_stop_begin(void);

/* Takes n bytes of text and gives those that are now certain: all but the
 * longest end of the text that is the beginning of a stop string. The stop
 * string that is complete first ends the text, the longest one if several are
 * complete with the same byte, wherever the borders of pieces lie: what stands
 * before it comes out, it and what follows never does. If text always ends
 * between characters, so does what comes out.
 * out   [out] n + folio_stop_set_max_held bytes of room, apart from text
 * n_out [out] bytes written
 * Returns the index of the stop string (the lowest of equal ones) or -1; once
 * the text has ended, the same index and no bytes. Amortised O(n) but for the
 * number of strings that go on differently at one place. Allocates nothing. */
int32_t folio_stop_push(const folio_stop_set *set, folio_stop_state *state,
                        const char *text, size_t n, char *out, size_t *n_out);

/* The text is over: gives what is held back and returns its bytes; 0 if a stop
 * string ended it. Then the state is as at the beginning of a text.
 * out [out] folio_stop_set_max_held bytes of room */
size_t folio_stop_flush(const folio_stop_set *set, folio_stop_state *state,
                        char *out);

/* Bytes held back. */
size_t folio_stop_n_held(const folio_stop_set *set,
                         const folio_stop_state *state);

#endif
