/* unit/engine_bed.h: engines over the tiny llama of support_tiny_llama.h, and
 * what its requests came to. */
#ifndef FOLIO_TEST_ENGINE_ENG_H
#define FOLIO_TEST_ENGINE_ENG_H

#include "engine/eng.h"
#include "unit/support_tiny_llama.h"

enum { ENG_MAX_NEW = 128, ENG_MAX_TEXT = 1024 };

/* What one completion came to, in the order of events. */
typedef struct eng_answer {
    uint64_t request;
    int32_t completion;
    int32_t ids[ENG_MAX_NEW], n;
    char text[ENG_MAX_TEXT];
    size_t n_text;
    bool ended;
    folio_event end;
    int64_t first_at, ended_at; /* calls of step before the event */
} eng_answer;

typedef struct eng {
    tiny_llama tiny;
    folio_device *dev;
    folio_model *model;
    folio_tokenizer *tok; /* NULL unless asked for */
    folio_engine *e;
    folio_engine_params p;
    eng_answer *a;
    int32_t n, cap;
    int64_t n_steps;
    uint64_t clock; /* fake time: moved by tests only */
} eng;

/* The tiny model on the device called `select`, which must be there ("host"),
 * and the defaults of these tests: 8 places, blocks of 4, f32 KV, audit after
 * each step, no engine yet. `text`: with a tokenizer of 64 pieces. */
void eng_init(eng *b, const char *select, bool text);
void eng_fini(eng *b);
/* Opens an engine with b->p, in place of the last one. */
void eng_open(eng *b);
/* Greedy, whatever n_new. */
uint64_t eng_submit(eng *b, const int32_t *prompt, int32_t n, int32_t n_new);
uint64_t eng_submit_as(eng *b, const folio_engine_request *r);
/* One call of step, its events into the answers. Returns how many events. */
size_t eng_step(eng *b);
/* The same, where it may fail. */
folio_status eng_try(eng *b, size_t *n);
/* One event into the answers. */
void eng_note(eng *b, const folio_event *ev);
/* Until idle; fails after so many calls. */
void eng_drain(eng *b, int max_steps);
eng_answer *eng_find(eng *b, uint64_t request, int32_t completion);
folio_engine_stats eng_stats(const eng *b);
/* Every block free or cached, nobody in flight. */
void eng_at_rest(eng *b);
/* Forgets the answers. */
void eng_forget(eng *b);

#endif
