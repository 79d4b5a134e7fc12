/* text/tok.h: what the other rooms and the tests see of the tokenizer beyond
 * <folio/tokenizer.h>: opening from an open GGUF directory or from plain
 * arrays. */
#ifndef FOLIO_TEXT_TOK_H
#define FOLIO_TEXT_TOK_H

#include <folio/tokenizer.h>

#include "base/base.h"
#include "format/gguf.h"

/* GGUF's token types. */
typedef enum folio_token_type {
    FOLIO_TOKEN_NORMAL = 1,
    FOLIO_TOKEN_UNKNOWN = 2,
    FOLIO_TOKEN_CONTROL = 3,
    FOLIO_TOKEN_USER = 4,
    FOLIO_TOKEN_UNUSED = 5,
    FOLIO_TOKEN_BYTE = 6
} folio_token_type;

/* A byte-level BPE vocabulary as plain arrays, borrowed during open. Pieces
 * and merges are spelled in GPT-2's byte alphabet, as GGUF stores them. */
typedef struct folio_vocab_desc {
    const char *pre; /* pre-tokenizer kind; NULL: "default" and a warning */
    int32_t n_vocab;
    const folio_gguf_str *pieces; /* [n_vocab] */
    const int32_t *types; /* [n_vocab] folio_token_type; NULL: all normal */
    size_t n_merges;
    const folio_gguf_str *merges;    /* [n_merges] "left right", best first */
    int32_t bos, eos, eot, eom, unk; /* -1: none */
    int add_bos; /* 0, 1; -1: as the pre-tokenizer kind usually has it */
    folio_gguf_str chat_template; /* data NULL: none */
} folio_vocab_desc;

folio_status folio_tokenizer_open_vocab(const folio_vocab_desc *v,
                                        const folio_log *log,
                                        folio_tokenizer **out) FOLIO_NODISCARD;

/* From the metadata of an open file; the tokenizer copies what it needs, so
 * `g` may be closed afterwards. Statuses as folio_tokenizer_open_file. */
folio_status folio_tokenizer_open_gguf(const folio_gguf *g,
                                       folio_tokenizer **out) FOLIO_NODISCARD;

/* One more reference, as const as the argument. */
const folio_tokenizer *folio_tokenizer_ref(const folio_tokenizer *tok);

/* Bytes of the longest piece. */
uint32_t folio_tokenizer_max_piece(const folio_tokenizer *tok);

#endif
