/* folio/tokenizer.h: text to token ids and back, without a device. A tokenizer
 * is immutable; a detokenizer turns the ids of one answer into text as they
 * come. Ids are vocabulary indices, 0 .. n_vocab - 1. */
#ifndef FOLIO_TOKENIZER_H
#define FOLIO_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <folio/log.h>
#include <folio/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Immutable after open and usable from any number of threads at once.
 * Reference-counted: detokenizers keep theirs alive. */
typedef struct folio_tokenizer folio_tokenizer;

/* One answer's decoder; one thread at a time. */
typedef struct folio_detokenizer folio_detokenizer;

/* Flags of folio_tokenizer_encode. */
enum {
    /* Put the BOS id in front where the model's metadata asks for it
     * (folio_tokenizer_add_bos), unless the text's first id is BOS already. */
    FOLIO_ENCODE_ADD_BOS = 1u << 0,
    /* Text that spells a control token becomes that token. Off: it stays
     * text, which is what untrusted text needs. User-defined tokens are
     * matched in both modes. */
    FOLIO_ENCODE_PARSE_SPECIAL = 1u << 1
};

/* Flags of folio_tokenizer_decode and folio_detokenizer_open. */
enum {
    /* Control tokens give their own text; without it they give nothing. */
    FOLIO_DECODE_SPECIAL = 1u << 0
};

/* Opens the tokenizer stored in a GGUF file's metadata.
 * path  [in]  file name, opaque bytes; the first shard of a split model
 * log   [in]  may be NULL; copied
 * out   [out] the caller's, released with folio_tokenizer_close
 * Returns OK; IO; FORMAT naming the key that is missing, of the wrong type or
 * out of range; UNSUPPORTED naming the tokenizer model or pre-tokenizer this
 * build does not know; NOMEM. Any thread. The file is not needed afterwards.
 * Source: byte-level BPE as in GPT-2 (Radford et al. 2019; Sennrich et al.
 * 2016), merges taken lowest rank first, leftmost first among equals. */
FOLIO_API folio_status
folio_tokenizer_open_file(const char *path, const folio_log *log,
                          folio_tokenizer **out) FOLIO_NODISCARD;

/* Gives up one reference and sets *tok to NULL; NULL is allowed twice over. */
FOLIO_API void folio_tokenizer_close(folio_tokenizer **tok);

/* Text to ids.
 * tok    [in]
 * text   [in]  n bytes, UTF-8; may hold zero bytes; NULL if n is 0
 * n      [in]  below 2^30
 * flags  [in]  FOLIO_ENCODE_*
 * ids    [out] [cap]; may be NULL if cap is 0
 * cap    [in]  places in ids; n + 1 always suffice
 * n_ids  [out] ids written; on RANGE the number needed
 * Bytes that are not UTF-8 are legal: a maximal run of them is a piece of text
 * of its own, each byte starts as its byte token, and decoding gives the same
 * bytes back. A byte for which the vocabulary has no token becomes the token
 * of U+FFFD, or the unknown token where there is none; a vocabulary without
 * either makes the call fail with UNSUPPORTED.
 * Returns OK; RANGE (not logged) if cap is too small: ids is untouched and
 * *n_ids says how many there are; INVAL for an unknown flag or a NULL that is
 * not allowed; TOO_LARGE; NOMEM; UNSUPPORTED as said. Time grows as n log n,
 * the stack does not grow. Any thread. */
FOLIO_API folio_status folio_tokenizer_encode(const folio_tokenizer *tok,
                                              const char *text, size_t n,
                                              uint32_t flags, int32_t *ids,
                                              size_t cap,
                                              size_t *n_ids) FOLIO_NODISCARD;

/* Ids to bytes, all at once and exactly: the pieces one after the other, UTF-8
 * or not.
 * ids     [in]  [n]; may be NULL if n is 0
 * flags   [in]  FOLIO_DECODE_*
 * out     [out] [cap] bytes, not terminated; may be NULL if cap is 0
 * n_bytes [out] bytes written; on RANGE the number needed
 * Returns OK; INVAL for an id outside the vocabulary (logged with id and
 * size), an unknown flag or a NULL that is not allowed; RANGE (not logged) if
 * cap is too small: out is untouched, *n_bytes says how many there are. Any
 * thread. */
FOLIO_API folio_status folio_tokenizer_decode(const folio_tokenizer *tok,
                                              const int32_t *ids, size_t n,
                                              uint32_t flags, char *out,
                                              size_t cap,
                                              size_t *n_bytes) FOLIO_NODISCARD;

/* The bytes one id stands for; control tokens give their own text.
 * piece [out] borrowed from tok, followed by a zero byte, may hold others
 * n     [out] bytes
 * Returns OK, or INVAL for an id outside the vocabulary. Any thread. */
FOLIO_API folio_status folio_tokenizer_piece(const folio_tokenizer *tok,
                                             int32_t id, const char **piece,
                                             size_t *n) FOLIO_NODISCARD;

/* Number of ids. A model's head may have more rows: those ids stand for
 * nothing and must never be drawn. 0 for NULL. Any thread. */
FOLIO_API int32_t folio_tokenizer_n_vocab(const folio_tokenizer *tok);

/* The id that begins a text, or -1 where the model names none or tok is NULL.
 * Any thread. */
FOLIO_API int32_t folio_tokenizer_bos(const folio_tokenizer *tok);
/* The id that ends a text, or -1 where the model names none or tok is NULL. Any
 * thread. */
FOLIO_API int32_t folio_tokenizer_eos(const folio_tokenizer *tok);

/* Whether prompts of this model start with BOS. False for NULL. Any thread. */
FOLIO_API bool folio_tokenizer_add_bos(const folio_tokenizer *tok);

/* Whether id ends a generation: EOS, the model's end-of-turn and
 * end-of-message ids, and control tokens known to end a turn (<|im_end|>,
 * <|endoftext|>, <|eot_id|> ...). False outside the vocabulary and for NULL.
 * Any thread. */
FOLIO_API bool folio_tokenizer_is_eog(const folio_tokenizer *tok, int32_t id);

/* Whether id is a control token: it has no text of its own in an answer.
 * False outside the vocabulary and for NULL. Any thread. */
FOLIO_API bool folio_tokenizer_is_control(const folio_tokenizer *tok,
                                          int32_t id);

/* The id whose piece is exactly these n bytes, special tokens included, or -1,
 * also for NULL. Any thread. */
FOLIO_API int32_t folio_tokenizer_find(const folio_tokenizer *tok,
                                       const char *piece, size_t n);

/* The chat template (Jinja) in the model file, terminated, borrowed from tok;
 * NULL where there is none and for NULL. Any thread. */
FOLIO_API const char *folio_tokenizer_chat_template(const folio_tokenizer *tok);

/* Starts decoding an answer.
 * tok      [in] kept alive by the detokenizer
 * prompt   [in] [n_prompt] ids before the answer: the last 4 are context and
 *               never emitted, nor is a character that begins in them; may be
 *               NULL if n_prompt is 0
 * flags    [in] FOLIO_DECODE_*
 * out      [out] the caller's
 * Returns OK; INVAL for an id outside the vocabulary, an unknown flag or a
 * NULL that is not allowed; NOMEM. */
FOLIO_API folio_status folio_detokenizer_open(
    const folio_tokenizer *tok, const int32_t *prompt, size_t n_prompt,
    uint32_t flags, folio_detokenizer **out) FOLIO_NODISCARD;

/* Takes one id and gives the text that is now certain. It is always valid
 * UTF-8: an incomplete character (at most 3 bytes) is held until it is
 * complete; bytes that can no longer become a character come out at once as
 * U+FFFD, one for each maximal part of a character (Unicode 15, section 3.9).
 * text [out] n bytes and a zero byte, borrowed until the next call
 * n    [out] bytes, 0 while a character is held
 * Returns OK, or INVAL for an id outside the vocabulary, with the state as
 * before. Allocates nothing. */
FOLIO_API folio_status folio_detokenizer_push(folio_detokenizer *d, int32_t id,
                                              const char **text,
                                              size_t *n) FOLIO_NODISCARD;

/* Ends the answer: what is held comes out as one U+FFFD. A second flush gives
 * nothing; pushing may go on. text and n as above; d NULL gives "". */
FOLIO_API void folio_detokenizer_flush(folio_detokenizer *d, const char **text,
                                       size_t *n);

/* Bytes held, 0 to 3; 0 for NULL. */
FOLIO_API size_t folio_detokenizer_n_held(const folio_detokenizer *d);

/* Sets *d to NULL; NULL is allowed twice over. */
FOLIO_API void folio_detokenizer_close(folio_detokenizer **d);

#ifdef __cplusplus
}
#endif
#endif
