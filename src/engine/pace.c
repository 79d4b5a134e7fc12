/* engine/pace.c: see pace.h. A fixed number cannot serve: what a position of a
 * prompt costs beside a decoding row differs between devices by a hundred times
 * and grows with the text that precedes it. So both are measured as they pass.
 */
#include "engine/pace.h"

#include "base/base.h"

/* Of a new sample in the running value: a hiccup should not decide, and the
 * cost of a long prompt's positions grows slowly. */
#define DECODE_SHARE .125
#define PROMPT_SHARE .125
/* A sample that is so many times the running value is a hiccup and counts as
 * that much. */
#define DECODE_MOST 1.5
#define PROMPT_MOST 2.0
/* After so many steps that had prompts comes one without. */
#define RENEW 64

static int32_t slot_of(int32_t n_decode)
{
    return FOLIO_MIN(n_decode, FOLIO_PACE_ROWS);
}

/* Where this many rows were never seen, the nearest number that was: from
 * fewer rows too little is allowed rather than too much. */
static double decode_ns(const folio_pace *p, int32_t n_decode)
{
    for (int32_t i = slot_of(n_decode); i > 0; i--)
        if (p->decode_ns[i] > 0)
            return p->decode_ns[i];
    for (int32_t i = slot_of(n_decode) + 1; i <= FOLIO_PACE_ROWS; i++)
        if (p->decode_ns[i] > 0)
            return p->decode_ns[i] * n_decode / i;
    return 0;
}

static void note(double *running, double sample, double share, double most)
{
    if (*running > 0)
        *running += share * (FOLIO_MIN(sample, most * *running) - *running);
    else
        *running = sample;
}

void folio_pace_note(folio_pace *p, int32_t n_decode, int32_t n_prompt,
                     uint64_t ns)
{
    if (!(p->stretch > 0) || n_decode < 1 || ns == 0)
        return;
    const double t = (double)ns;
    if (n_prompt == 0) {
        note(&p->decode_ns[slot_of(n_decode)], t, DECODE_SHARE, DECODE_MOST);
        p->n_mixed = 0;
        return;
    }
    p->last_tok = n_prompt;
    p->n_mixed++;
    const double alone = decode_ns(p, n_decode);
    if (!(alone > 0))
        return;
    /* Where the positions seem to be free, the next step tries more of them;
     * last_tok bounds how many. */
    note(&p->tok_ns, FOLIO_MAX(t - alone, alone / 64) / n_prompt, PROMPT_SHARE,
         PROMPT_MOST);
}

int32_t folio_pace_limit(const folio_pace *p, int32_t n_decode)
{
    if (!(p->stretch > 0) || n_decode < 1)
        return INT32_MAX;
    if (p->n_mixed >= RENEW)
        return 0;
    const double alone = decode_ns(p, n_decode);
    /* A position costs no more than a row, which reads as many weights. */
    if (!(alone > 0) || !(p->tok_ns > 0))
        return n_decode;
    const double n = (p->stretch - 1) * alone / p->tok_ns;
    const double most = 2.0 * FOLIO_MAX(p->last_tok, n_decode);
    return (int32_t)FOLIO_MAX(1.0, FOLIO_MIN(n, FOLIO_MIN(most, 1e9)));
}
