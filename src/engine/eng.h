/* engine/eng.h: what an engine is behind its handle, for the files of this room
 * and its tests. Who may touch what: fields are the owner's, but those of
 * folio_door, which are anybody's who holds its lock. */
#ifndef FOLIO_ENGINE_ENG_H
#define FOLIO_ENGINE_ENG_H

#include <pthread.h>

#include <folio/engine.h>

#include "base/base.h"
#include "engine/pace.h"
#include "model/runner_internal.h"
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
    /* How its rows are drawn, see row.c. */
    bool on_host, counts, plain;
    int32_t *edits, *edits_short; /* [n, 2], the latter while an answer has
                                     less than min_new_tokens */
    int32_t n_edits, n_edits_short;
    folio_stop_set *stops; /* NULL: none */
    int32_t logprobs;      /* -1: none */
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
    uint64_t number, begin, planned, uploaded, enqueued, waits, waited, sampled,
        end;
    int32_t n_tok, n_seq, n_rows, n_waiting;
    bool failed;
} folio_step_span;

/* A step on its way through the device. */
typedef struct folio_flight {
    const folio_step *step; /* NULL: none */
    int32_t number;         /* of its results */
    /* By row of logits, [max_rows]. */
    int32_t n_rows;
    int32_t *rows;     /* tokens of the step */
    int32_t *row_seq;  /* entry of step->seq */
    int32_t *row_draw; /* entry of step->rows, or -1: a prompt's score */
    bool *on_host;     /* needs the whole row */
    int32_t n_host, first_host, last_host;
    bool draws; /* something is to be read of what the device drew */
    bool best;  /* the largest logits alone */
    /* The next step needs what the host makes of this one. */
    bool must_settle;
    folio_step_span span;
} folio_flight;

/* Whose text a slot of the device's counts holds. */
typedef struct folio_counted {
    uint64_t id; /* 0: nobody's */
    int32_t completion, n_tok;
    uint32_t epoch;
} folio_counted;

/* The device's part, replaceable by tests that want it to fail. */
typedef struct folio_engine_calls {
    folio_status (*forward)(folio_runner *r, const folio_batch *b,
                            const folio_draw *d, const int32_t *open_row);
    folio_status (*read_drawn)(folio_runner *r, int number, folio_drawn *out);
    folio_status (*read_rows)(folio_runner *r, int32_t first, int32_t n,
                              float *out);
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

    /* Steps under way: with run_ahead one may be computed while the next one
     * is planned. */
    folio_flight flight[2];
    int32_t newest; /* of these */
    int32_t max_rows;
    /* Of the step being planned. */
    int32_t *words; /* [max_rows, FOLIO_SAMPLE_IN] */
    int32_t *edits; /* [max_edits, 2] */
    folio_draw_fresh *fresh;
    int32_t *open_row;      /* [max_seqs] */
    folio_counted *counted; /* [n_slots]: a place's slot is its number */
    /* Of the step being committed. */
    int32_t *next;
    folio_verdict *verdict;
    bool *took;
    float *logits; /* [max_rows, n_vocab] */

    folio_status failed;
    folio_pace pace;
    int32_t n_failed; /* steps in a row */
    uint64_t clock_last;
    uint64_t n_steps, n_empty, n_failed_steps, n_finished, step_ns;
    uint64_t turn_ns;                   /* when the turn began */
    uint64_t waited_ns;                 /* when the last step was through */
    folio_answer *events, **events_end; /* with something to hand out */
    folio_job *gone;                    /* freed by the next step */
    folio_step_span *span;              /* [p.trace_steps] ring */
    uint64_t n_spans;
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

/* row.c: what the sampling op needs to know of a request's rows. */
folio_status folio_row_open(const folio_engine *e,
                            folio_job *job) FOLIO_NODISCARD;
/* What of a row does not depend on where it is drawn. */
folio_sample_row folio_row_of(const folio_engine *e, const folio_step_row *row,
                              const float *logits);
/* Fills the rows of f->step and, in *d, how the device draws them; b->rows.
 * False: it draws none. */
bool folio_row_pack(folio_engine *e, folio_flight *f, folio_batch *b,
                    folio_draw *d);
/* After a failure nobody knows what the device has counted. */
void folio_row_forget_counts(folio_engine *e);

/* draw.c: waits for the step and brings a token for each of its rows. */
folio_status folio_engine_draw(folio_engine *e,
                               const folio_flight *f) FOLIO_NODISCARD;
/* Whether what was computed for this row is still somebody's. */
static inline bool folio_row_counts(const folio_step_row *row)
{
    return row->epoch == row->req->epoch &&
           row->req->state == FOLIO_REQUEST_RUNNING;
}
static inline folio_answer *folio_answer_of(const folio_request *r)
{
    return &((folio_job *)r->user)->answer[r->completion];
}

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
void folio_span_keep(folio_engine *e, const folio_step_span *span);

#endif
