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

/* Most alternatives whose log-probability can be asked for. */
#define FOLIO_LOGPROBS_MAX 20

/* Added to the logit of one id. */
typedef struct folio_logit_bias {
    int32_t id;
    float bias; /* -INFINITY bans; else finite */
} folio_logit_bias;

/* How an id is drawn. The order is fixed: logit bias, bans, repetition
 * penalty, frequency and presence penalty, DRY, temperature, top-k, typical-p,
 * top-p, min-p, softmax, one draw; each works on what those before it left.
 * All that comes before temperature also decides what is greedy. Fill with
 * folio_sample_params_default first: every default is neutral, and the struct
 * may grow, `size` says how much of it the caller knows (fields beyond it have
 * their defaults). Arrays are the caller's and are read during calls only. */
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
    /* Keep ids at least min_p times as likely as the most likely one that is
     * left. 0 is off. 0 to 1; default 0. */
    float min_p;
    uint64_t seed; /* any value; default 0 */

    /* Locally typical sampling (Meister et al., "Locally Typical Sampling",
     * TACL 2023): keep the ids whose surprise, -log of their probability, is
     * nearest to its mean, the entropy, until their probability reaches p (to
     * within 2^-22), at least one; at equal distance the lower id comes
     * first. May drop the most likely id. >= 1 is off, <= 0 keeps one.
     * Finite; default 1. */
    float typical_p;
    /* For each id among the last penalty_last_n of prompt and answer: a
     * positive logit is divided by it (multiplied by its rounded reciprocal,
     * which machines agree on), a negative one multiplied by it, once however
     * often the id occurs. Above 1 discourages. 1 is off. 0.01 to 100;
     * default 1. (Keskar et al., "CTRL", 2019, with negative logits moved
     * down, too.) */
    float repetition_penalty;
    int32_t penalty_last_n; /* -1 all, 0 none; >= -1, default -1 */
    /* As OpenAI defines them: for each id that occurs c > 0 times in the whole
     * answer, the prompt not counted, c * frequency_penalty +
     * presence_penalty is subtracted from the logit. 0 is off. -2 to 2;
     * default 0. */
    float presence_penalty;
    float frequency_penalty;
    /* [n_logit_bias], any order; biases of the same id add up. */
    const folio_logit_bias *logit_bias;
    int32_t n_logit_bias;  /* default 0 */
    const int32_t *banned; /* [n_banned] ids that are never drawn */
    int32_t n_banned;      /* default 0 */
    /* The row's stop ids are banned until the answer has this many tokens.
     * >= 0; default 0. */
    int32_t min_new_tokens;
    /* DRY, "don't repeat yourself": an id that would continue a repetition,
     * the last n ids of the text having stood before it earlier in the last
     * dry_last_n of prompt and answer, loses dry_multiplier * dry_base ^
     * (n - dry_allowed_length) if n reaches dry_allowed_length. The longest
     * such n counts, 64 at most. A repetition does not reach back over a
     * breaker, and a breaker is never penalised. */
    float dry_multiplier;        /* 0 is off; 0 to 1000, default 0 */
    float dry_base;              /* 1 to 100, default 1.75 */
    int32_t dry_allowed_length;  /* 1 to 64, default 2 */
    int32_t dry_last_n;          /* -1 all, 0 none; >= -1, default -1 */
    const int32_t *dry_breakers; /* [n_dry_breakers] ids */
    int32_t n_dry_breakers;      /* default 0 */
    /* How many of the most likely ids folio_sampler_run names. 0 to
     * FOLIO_LOGPROBS_MAX; default 0. */
    int32_t logprobs;
} folio_sample_params;

/* Fills *p with the defaults: plain sampling at temperature 1. */
FOLIO_API void folio_sample_params_default(folio_sample_params *p);

/* INVAL, with a message naming the parameter and its range, for a value
 * outside its range, not finite, a missing array, or a size this library does
 * not know. Ids are checked by folio_sample_params_check_ids. */
FOLIO_API folio_status folio_sample_params_check(
    const folio_sample_params *p, const folio_log *log) FOLIO_NODISCARD;

/* The same, and INVAL for a biased or banned id that is not 0 .. n_vocab - 1.
 * Ids of breakers and of texts that do not exist have no effect instead. */
FOLIO_API folio_status
folio_sample_params_check_ids(const folio_sample_params *p, int32_t n_vocab,
                              const folio_log *log) FOLIO_NODISCARD;

/* What one id is drawn from. Set all of it to 0, then size, logits and
 * n_vocab; the rest is needed by what the comments name. */
typedef struct folio_sample_row {
    size_t size;         /* sizeof(folio_sample_row) */
    const float *logits; /* [n_vocab], untouched; -INFINITY bans an id */
    int32_t n_vocab;     /* 1 to what the sampler was opened with */
    int32_t n_prompt;    /* 0 to n_tok */
    /* [n_tok] ids of prompt and answer so far: penalties, DRY. Ids outside the
     * row have no effect. */
    const int32_t *tokens;
    int32_t n_tok;           /* n_tok - n_prompt: min_new_tokens */
    uint32_t completion;     /* which of several answers to one prompt */
    uint64_t position;       /* of the drawn token in its sequence, from 0 */
    const int32_t *stop_ids; /* [n_stop_ids] that end it: min_new_tokens */
    int32_t n_stop_ids;
} folio_sample_row;

/* What was drawn or scored. Log-probabilities are natural logarithms and raw:
 * of the row as given, at temperature 1, before bias, penalties and filters,
 * to within 1e-6 plus rounding. */
typedef struct folio_sample_result {
    size_t size;   /* sizeof(folio_sample_result), set by the caller */
    int32_t id;    /* 0 .. n_vocab - 1 */
    float logit;   /* of id, raw */
    float logprob; /* logit - lse; what the list has for id, if it is there */
    float lse;     /* log of the sum of exp(logit) over the row */
    /* The most likely ids, falling, the lower id first among equals; as many
     * as asked, or as have a probability above 0. id need not be among them. */
    int32_t n_top;
    int32_t top_ids[FOLIO_LOGPROBS_MAX];
    float top_logprobs[FOLIO_LOGPROBS_MAX];
} folio_sample_result;

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
 * p      [in] checked at each call
 * row    [in] checked at each call
 * result [out] size [in], the rest [out]; see there
 * The draw uses a counter-based generator keyed by (seed, completion,
 * position), so it depends on nothing drawn before or beside it.
 * Returns OK; INVAL for a bad parameter, row or size or a NULL; INTERNAL for a
 * row nobody can sample from: a NaN, +INFINITY, or every id banned. Costs
 * O(n_vocab + n_tok), plus what filters have to sort. Allocates nothing. */
FOLIO_API folio_status folio_sampler_run(
    folio_sampler *s, const folio_sample_params *p, const folio_sample_row *row,
    folio_sample_result *result) FOLIO_NODISCARD;

/* folio_sampler_run for a row without tokens and stop ids, and the id alone:
 * penalties have nothing to count.
 * logits     [in] [n_vocab] f32, as many as the sampler was opened with
 * completion [in] which of several answers to one prompt, from 0
 * position   [in] of the drawn token in its sequence, from 0
 * id         [out] 0 .. n_vocab - 1
 * Returns as folio_sampler_run. Allocates nothing. */
FOLIO_API folio_status folio_sampler_draw(
    folio_sampler *s, const folio_sample_params *p, const float *logits,
    uint32_t completion, uint64_t position, int32_t *id) FOLIO_NODISCARD;

/* What a row says about an id that is already known, as of a prompt.
 * logits  [in] [n_vocab] f32, untouched
 * n_vocab [in] 1 to what the sampler was opened with
 * target  [in] 0 .. n_vocab - 1; result->id. Its logprob is -INFINITY if its
 *              logit is
 * n_top   [in] alternatives to name, 0 to FOLIO_LOGPROBS_MAX
 * result  [out] size [in], the rest [out]; see there
 * Returns OK; INVAL for a value outside its range or a NULL; INTERNAL for a
 * row with a NaN or +INFINITY, or with nothing but -INFINITY. Allocates
 * nothing. */
FOLIO_API folio_status folio_sampler_score(
    folio_sampler *s, const float *logits, int32_t n_vocab, int32_t target,
    int32_t n_top, folio_sample_result *result) FOLIO_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
