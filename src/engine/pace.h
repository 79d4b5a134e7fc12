/* engine/pace.h: how many positions of prompts a step may compute without
 * making those who stream wait. Numbers in, a number out: knows neither
 * requests nor a clock. */
#ifndef FOLIO_ENGINE_PACE_H
#define FOLIO_ENGINE_PACE_H

#include <stdint.h>

#define FOLIO_PACE_ROWS 64

typedef struct folio_pace {
    double stretch; /* a step with prompts may take so many times as long as one
                       without; 0: no limit */
    /* Of a step that only decodes, by its rows; the last entry for all that are
     * more. 0: none seen. */
    double decode_ns[FOLIO_PACE_ROWS + 1];
    double tok_ns;    /* one more position of a prompt; 0: none seen */
    int32_t last_tok; /* prompts' positions of the last step that had both */
    int32_t n_mixed;  /* steps that had both since one only decoded */
} folio_pace;

/* A step of n_decode rows and n_prompt positions of prompts took `ns`. */
void folio_pace_note(folio_pace *p, int32_t n_decode, int32_t n_prompt,
                     uint64_t ns);

/* The most positions of prompts beside n_decode rows; INT32_MAX: as many as you
 * like. Now and then 0: so that it is seen what a step without them costs,
 * because the texts that are decoded grow meanwhile. */
int32_t folio_pace_limit(const folio_pace *p, int32_t n_decode);

#endif
