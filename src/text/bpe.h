/* text/bpe.h: byte-pair merging of one piece of text. Knows the vocabulary and
 * its merges; not how text is cut into pieces. */
#ifndef FOLIO_TEXT_BPE_H
#define FOLIO_TEXT_BPE_H

#include "text/vocab.h"

/* Ids under construction. */
typedef struct folio_ids {
    int32_t *ids;
    size_t n, cap;
} folio_ids;

/* NOMEM, not logged. */
folio_status folio_ids_push(folio_ids *out, int32_t id) FOLIO_NODISCARD;

typedef struct folio_merge {
    int32_t left, right, out; /* ids */
} folio_merge;

/* Merges by rank, and a hash table from (left, right) to rank. */
typedef struct folio_bpe {
    const folio_vocab *vocab; /* borrowed */
    folio_merge *merges;      /* [n_merges] */
    uint32_t n_merges;
    uint32_t *slots; /* rank, UINT32_MAX empty */
    uint32_t mask;
    int32_t fallback; /* id for a byte without a token, or -1 */
} folio_bpe;

/* One call's working memory, kept from piece to piece. Zeroed at first. */
typedef struct folio_bpe_work {
    struct folio_bpe_sym *syms;
    uint64_t *heap;
    size_t sym_cap, heap_cap;
} folio_bpe_work;

/* FORMAT naming tokenizer.ggml.merges for a merge that is not two pieces and
 * a blank between, or names or gives a piece that the vocabulary lacks. Merges
 * that would make a control token of plain text are left out. `b` is zeroed
 * before; _fini is safe on it after any failure. */
folio_status folio_bpe_init(folio_bpe *b, const folio_vocab *vocab,
                            const folio_gguf_str *merges, size_t n_merges,
                            const folio_log *log) FOLIO_NODISCARD;
void folio_bpe_fini(folio_bpe *b);

/* Appends the ids of s[0..n), n < 2^30. UNSUPPORTED for a byte that has
 * neither token nor fallback, NOMEM; neither is logged. */
folio_status folio_bpe_encode(const folio_bpe *b, folio_bpe_work *w,
                              const char *s, size_t n,
                              folio_ids *out) FOLIO_NODISCARD;
void folio_bpe_work_fini(folio_bpe_work *w);

#endif
