/* engine/eng.h: what an engine is behind its handle, for the files of this room
 * and its tests. Who may touch what: fields are the owner's, but those of
 * folio_door, which are anybody's who holds its lock. */
#ifndef FOLIO_ENGINE_ENG_H
#define FOLIO_ENGINE_ENG_H

#include <pthread.h>

#include <folio/engine.h>

#include "base/base.h"
#include "engine/pace.h"
#include "sched/scheduler.h"
#include "text/stop.h"

typedef struct folio_job folio_job;

/* One completion, from submit until its last event was handed out and the
 * scheduler has let go of it. */
typedef struct folio_answer {
    folio_job *job;
    int32_t index;            /* which completion */
    folio_request *req;       /* the scheduler's once entered; NULL after it */
    folio_detokenizer *detok; /* NULL: no text */
    /* Text not handed out yet: [0, n_token) with the token, the rest with the
     * end. Room for all that one step and the end can bring. */
    char *text;
    size_t n_token, n_text, cap;
    folio_stop_state stop;
    folio_sample_result score;           /* of the newest id */
    bool ended;                          /* `end` is filled */
    bool has_prompt, has_token, has_end; /* to be handed out */
    bool listed;                         /* in the list of those with events */
    bool handed_end;                     /* its end was handed out */
    bool released;                       /* by the scheduler, or never there */
    int32_t tok, n_new;                  /* the newest id; ids so far */
    uint64_t admitted_ns, first_ns, last_ns; /* 0: not yet */
    folio_event end;
    struct folio_answer *next_event;
} folio_answer;

/* One submit. */
struct folio_job {
    uint64_t id;
    folio_job *next_id;     /* bucket of the door */
    folio_job *next_in;     /* in the inbox */
    folio_job *next_cancel; /* to be cancelled */
    folio_job *next_gone;   /* to be freed at the next step */
    bool cancel_asked;
    bool over;       /* every end was handed out */
    bool entered;    /* its requests are the scheduler's */
    int32_t *prompt; /* [n_prompt], then stop_ids */
    int32_t *stop_ids;
    uint8_t salt[FOLIO_SALT_MAX];
    folio_request_params req;   /* what the scheduler is given */
    folio_sample_params sample; /* complete; its arrays are copies */
    void *arrays;               /* their memory */
    folio_stop_set *stops;      /* NULL: none */
    int32_t logprobs;           /* -1: none */
    /* Of the prompt, NULL if not asked. Those before n_scored are known. */
    folio_sample_result *scores; /* [n_prompt] */
    int32_t n_scored, n_picked;  /* with those of the step under way */
    bool reported;               /* their event was made */
    bool poisoned;               /* a row of its prompt could not be scored */
    folio_logits_fn logits;
    void *logits_user;
    uint64_t submit_ns;
    int32_t n, n_gone;     /* completions; those over and done with */
    folio_answer answer[]; /* [n] */
};

/* The only thing that threads share. */
typedef struct folio_door {
    pthread_mutex_t lock;
    uint64_t next_id;
    int32_t n_in_flight, max_in_flight; /* completions whose end was not handed
                                           out */
    folio_job **by_id;                  /* [id_mask + 1] jobs in flight */
    uint32_t id_mask;
    folio_job *in, **in_end; /* submitted, not seen by the owner */
    folio_job *cancel;       /* newest first */
    bool settled;            /* the last step left nothing to release */
    uint64_t submitted;
    folio_status failed;
    folio_engine_stats stats; /* as of the last step */
} folio_door;

/* One step on the trace, all times on the engine's clock; 0: not reached. */
typedef struct folio_step_span {
    uint64_t number, begin, planned, uploaded, enqueued, waited, sampled, end;
    int32_t n_tok, n_seq, n_rows, n_waiting;
    bool failed;
} folio_step_span;

/* The device's part, replaceable by tests that want it to fail. */
typedef struct folio_engine_calls {
    folio_status (*forward)(folio_runner *r, const folio_batch *b,
                            int32_t trace_tok);
    folio_status (*read)(folio_runner *r, float *out);
    folio_status (*read_top)(folio_runner *r, int32_t k, int32_t *ids,
                             float *values, int32_t *n_nan);
    bool (*is_lost)(const folio_runner *r);
} folio_engine_calls;

struct folio_engine {
    folio_engine_params p; /* as resolved */
    folio_log log;
    folio_model *model;
    folio_tokenizer *tok; /* NULL: no text */
    folio_runner *runner;
    folio_sampler *sampler;
    folio_sched *sched;
    folio_engine_calls call;
    folio_door door;

    int32_t n_vocab; /* rows of the head */
    int32_t n_ids;   /* of these, those that exist */
    int32_t max_len; /* prompt + answer */
    int32_t *eog;    /* [n_eog] ids that end an answer */
    int32_t n_eog;
    size_t max_text; /* bytes that one id and the end of a text bring at most */

    /* One step, by row of logits. */
    int32_t max_rows;
    int32_t *rows; /* tokens whose logits are wanted, if prompts are scored */
    int32_t *row_draw; /* entry of step->rows, or -1: a prompt's score */
    int32_t *row_seq;  /* entry of step->seq */
    int32_t n_rows;    /* of these; 0: step->rows are all there are */
    int32_t *next;
    folio_verdict *verdict;
    bool *took;
    float *logits; /* [max_rows, n_vocab] */
    float *top;
    int32_t *n_nan;

    folio_status failed;
    folio_pace pace;
    int32_t n_failed; /* steps in a row */
    uint64_t clock_last;
    uint64_t n_steps, n_empty, n_failed_steps, n_finished, step_ns;
    folio_answer *events, **events_end; /* with something to hand out */
    folio_job *gone;                    /* freed by the next step */
    folio_step_span *span;              /* [p.trace_steps] ring */
    uint64_t n_spans;
    folio_step_span now; /* of the step being made */
};

uint64_t folio_engine_now(const folio_engine *e);

/* pool_size.c: fills the zeros of e->p, e->max_len and `r`. Logs the plan. */
folio_status folio_pool_size(folio_engine *e,
                             folio_runner_params *r) FOLIO_NODISCARD;

/* job.c: checks a request and copies it; it is called `id`. */
folio_status folio_job_open(const folio_engine *e,
                            const folio_engine_request *r, uint64_t id,
                            folio_job **out) FOLIO_NODISCARD;
void folio_job_close(folio_job **job);

/* door.c */
folio_status folio_door_init(folio_door *d, int32_t max_in_flight,
                             const folio_log *log) FOLIO_NODISCARD;
void folio_door_fini(folio_door *d);
/* Takes what came in: jobs oldest first, and jobs to be cancelled. */
void folio_door_take(folio_door *d, folio_job **in, folio_job **cancel);
/* A completion's end was handed out; with the last one the id is unknown. */
void folio_door_leave(folio_door *d, folio_job *job, bool last);
/* Takes the job out of the index; it is the caller's to close. */
void folio_door_remove(folio_door *d, folio_job *job);

/* draw.c: which rows of logits the step needs: puts them into b. */
void folio_engine_pick_rows(folio_engine *e, const folio_step *step,
                            folio_batch *b);
/* Waits for the step and draws a token for each of its rows. */
folio_status folio_engine_draw(folio_engine *e,
                               const folio_step *step) FOLIO_NODISCARD;

/* answer.c */
/* Puts the token's text into the answer; whether the text ends with it. */
folio_status folio_answer_push(folio_answer *a, int32_t tok,
                               bool *stop) FOLIO_NODISCARD;
/* The scores of the whole prompt are there: an event. */
void folio_answer_scored(folio_engine *e, folio_answer *a);
/* The token entered the text: an event. */
void folio_answer_token(folio_engine *e, folio_answer *a, int32_t tok,
                        uint64_t now_ns);
/* It is over, as its request says (`req` NULL: as `why` and `status` say). */
void folio_answer_end(folio_engine *e, folio_answer *a, folio_finish_reason why,
                      folio_status status, uint64_t now_ns);
/* The scheduler has let go of it, or never had it. */
void folio_answer_release(folio_engine *e, folio_answer *a);
/* Hands out at most cap events. */
size_t folio_answer_hand_out(folio_engine *e, folio_event *events, size_t cap);
bool folio_is_stop_id(const folio_request *r, int32_t tok);

/* turn.c: the figures of this moment, for other threads. */
void folio_engine_publish(folio_engine *e);

/* step_trace.c */
void folio_span_keep(folio_engine *e);

#endif
