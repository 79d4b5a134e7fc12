/* text/pre.h: cuts text into the pieces that merging may not cross. A table of
 * kinds, each a chain of patterns; new kinds are new rows. Knows no
 * vocabulary. */
#ifndef FOLIO_TEXT_PRE_H
#define FOLIO_TEXT_PRE_H

#include "base/base.h"

#define FOLIO_PRE_MAX_STAGES 6

/* One kind of pre-tokenizer, static. */
typedef struct folio_pre_kind {
    const char *names;  /* GGUF's names for it, blank-separated */
    bool add_bos;       /* unless the metadata says otherwise */
    bool ignore_merges; /* a piece that is in the vocabulary is taken whole */
    /* Each is applied to the pieces left by the one before; what matches is a
     * piece, and so is what lies between two matches. */
    const char *patterns[FOLIO_PRE_MAX_STAGES];
} folio_pre_kind;

/* The row for a GGUF name, or NULL. */
const folio_pre_kind *folio_pre_find(const char *name, size_t n);
/* Writes the known names, comma-separated and cut to cap. */
void folio_pre_names(char *out, size_t cap);

/* Compiled patterns: immutable, any thread. */
typedef struct folio_pre folio_pre;
/* One call's working memory. */
typedef struct folio_pre_work folio_pre_work;

folio_status folio_pre_open(const folio_pre_kind *kind, const folio_log *log,
                            folio_pre **out) FOLIO_NODISCARD;
void folio_pre_close(folio_pre **pre);

/* n_max: bytes of the longest text it will see. */
folio_status folio_pre_work_open(size_t n_max,
                                 folio_pre_work **out) FOLIO_NODISCARD;
void folio_pre_work_close(folio_pre_work **w);

typedef folio_status (*folio_pre_emit)(void *user, const char *s, size_t n);

/* Calls emit for each piece in order; stops at its first failure and returns
 * it. s must be valid UTF-8. INTERNAL (logged) if PCRE2 gives up. */
folio_status folio_pre_split(const folio_pre *pre, folio_pre_work *w,
                             const char *s, size_t n, folio_pre_emit emit,
                             void *user) FOLIO_NODISCARD;

#endif
