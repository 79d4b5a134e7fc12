/* cl-decode-line.h: one line of a file of requests: its fields, what became of
 * it, and its lines of answer. */
#ifndef FOLIO_CL_DECODE_LINE_H
#define FOLIO_CL_DECODE_LINE_H

#include "cl-decode-app.h"

/* One completion. */
typedef struct completion {
    int32_t *ids;
    size_t n_ids, cap_ids;
    json_t *scores; /* a list, if logprobs are asked */
    char *text;
    size_t n_text, cap_text;
    bool printed;
} completion;

typedef struct request_line {
    json_t *id; /* what the line calls itself, null if nothing */
    folio_engine_request req;
    int32_t *prompt;             /* owned; req.prompt */
    json_t *kept;                /* the line; its strings are lent to req */
    void *lists[5];              /* owned: arrays of req */
    json_t *prompt_scores;       /* NULL until they come */
    bool echo;                   /* the prompt's ids come back, too */
    double arrive_ms, cancel_ms; /* cancel_ms < 0: never */
    /* A line that cannot be run: what is wrong. */
    folio_status bad;
    char why[512];
    uint64_t engine_id; /* 0: not submitted yet */
    bool cancelled, failed;
    int32_t n_open;  /* completions that have not ended */
    completion *out; /* [req.n] */
} request_line;

/* Parses the n bytes of line number `number`; what is wrong with them goes
 * into l->bad and l->why. NOMEM is the only failure. */
folio_status line_parse(app *a, const char *text, size_t n, size_t number,
                        request_line *l);
void line_free(request_line *l);

#endif
