/* folio/sampler.h: one row of logits to one id, on the host. Deterministic:
 * the same logits, parameters, seed, completion and position give the same id
 * on every machine. */
#ifndef FOLIO_SAMPLER_H
#define FOLIO_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include <folio/log.h>
#include <folio/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How an id is drawn. The order is fixed: temperature, top-k, top-p, min-p,
 * softmax, one draw. Fill with folio_sample_params_default first: the struct
 * may grow, `size` says how much of it the caller knows. */
typedef struct folio_sample_params {
    size_t size; /* sizeof(folio_sample_params) of the caller */
    /* Logits are divided by it. 0 is greedy: the largest logit, the lowest id
     * among equals; filters and seed then do not matter. Finite, >= 0;
     * default 1. */
    float temperature;
    /* Keep the k largest logits and everything equal to the k-th. <= 0 and
     * more than the vocabulary are off. Default 0. */
    int32_t top_k;
    /* Keep the most likely ids until their probability reaches p, at least
     * one; among equal logits the lower id ranks higher. An id is dropped if
     * it and all ranked below it together have at most 1 - p (to within
     * 2^-22). >= 1 is off, <= 0 keeps one. Finite; default 1. */
    float top_p;
    /* Keep ids at least min_p times as likely as the most likely one. 0 is
     * off. 0 to 1; default 0. */
    float min_p;
    uint64_t seed; /* any value; default 0 */
} folio_sample_params;

/* Fills *p with the defaults: plain sampling at temperature 1. */
FOLIO_API void folio_sample_params_default(folio_sample_params *p);

/* INVAL, with a message naming the parameter and its range, for a value
 * outside its range, not finite, or a size this library does not know. */
FOLIO_API folio_status folio_sample_params_check(
    const folio_sample_params *p, const folio_log *log) FOLIO_NODISCARD;

/* Scratch for rows of one vocabulary size; one thread at a time. */
typedef struct folio_sampler folio_sampler;

/* n_vocab [in] logits in a row, 1 to 2^20
 * log     [in] may be NULL; copied
 * out     [out] the caller's, released with folio_sampler_close
 * Returns OK, INVAL, NOMEM. */
FOLIO_API folio_status folio_sampler_open(int32_t n_vocab, const folio_log *log,
                                          folio_sampler **out) FOLIO_NODISCARD;

/* Sets *s to NULL; NULL is allowed twice over. */
FOLIO_API void folio_sampler_close(folio_sampler **s);

/* Draws one id.
 * p          [in] checked at each call
 * logits     [in] [n_vocab] f32, untouched; -INFINITY bans an id
 * completion [in] which of several answers to one prompt, from 0
 * position   [in] of the drawn token in its sequence, from 0
 * id         [out] 0 .. n_vocab - 1
 * The draw uses a counter-based generator keyed by (seed, completion,
 * position), so it depends on nothing drawn before or beside it.
 * Returns OK; INVAL for a bad parameter or a NULL; INTERNAL for a row nobody
 * can sample from: a NaN, +INFINITY, or every id banned. Allocates nothing. */
FOLIO_API folio_status folio_sampler_draw(
    folio_sampler *s, const folio_sample_params *p, const float *logits,
    uint32_t completion, uint64_t position, int32_t *id) FOLIO_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
