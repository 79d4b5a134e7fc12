/* engine/answer.c: from ids to events: the text of a completion as it becomes
 * certain, its end with its figures, and handing both to the caller. Decides
 * nothing about scheduling. */
#include "engine/eng.h"

#include <string.h>

const char *folio_finish_reason_name(folio_finish_reason r)
{
    static const char *const names[] = {"none",  "stop",     "length",
                                        "abort", "deadline", "error"};
    return (size_t)r < FOLIO_COUNT(names) ? names[r] : "none";
}

bool folio_is_stop_id(const folio_request *r, int32_t tok)
{
    for (int32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == tok)
            return true;
    return false;
}

/* Text through the stop strings to what is handed out; whether it ends there.
 * The room was measured in open_answer. */
static bool add_text(folio_answer *a, const char *text, size_t n)
{
    const folio_stop_set *stops = a->job->stops;
    size_t n_out = n;
    int32_t hit = -1;
    if (stops)
        hit = folio_stop_push(stops, &a->stop, text, n, a->text + a->n_text,
                              &n_out);
    else
        memcpy(a->text + a->n_text, text, n);
    a->n_text += n_out;
    return hit >= 0;
}

folio_status folio_answer_push(folio_answer *a, int32_t tok, bool *stop)
{
    const char *text;
    size_t n = 0;
    *stop = false;
    a->n_text = 0; /* what was there is handed out */
    if (a->detok && !folio_is_stop_id(a->req, tok)) {
        FOLIO_RETURN_IF(folio_detokenizer_push(a->detok, tok, &text, &n));
        *stop = add_text(a, text, n);
    }
    a->n_token = a->n_text;
    return FOLIO_OK;
}

/* What was held back: the rest of a character, the beginning of a stop string
 * that did not come. */
static void flush_text(folio_answer *a)
{
    const char *text;
    size_t n;
    if (!a->detok)
        return;
    folio_detokenizer_flush(a->detok, &text, &n);
    if (!add_text(a, text, n) && a->job->stops)
        a->n_text +=
            folio_stop_flush(a->job->stops, &a->stop, a->text + a->n_text);
}

static void list(folio_engine *e, folio_answer *a)
{
    if (a->listed)
        return;
    a->listed = true;
    a->next_event = NULL;
    *e->events_end = a;
    e->events_end = &a->next_event;
}

void folio_answer_scored(folio_engine *e, folio_answer *a)
{
    a->has_prompt = true;
    list(e, a);
}

void folio_answer_token(folio_engine *e, folio_answer *a, int32_t tok,
                        uint64_t now_ns)
{
    a->tok = tok;
    a->n_new++;
    if (a->n_new == 1)
        a->first_ns = now_ns;
    a->last_ns = now_ns;
    a->has_token = true;
    list(e, a);
}

static folio_finish_reason reason_of(folio_finish f)
{
    switch (f) {
    case FOLIO_FINISH_STOP:
        return FOLIO_REASON_STOP;
    case FOLIO_FINISH_LENGTH:
        return FOLIO_REASON_LENGTH;
    case FOLIO_FINISH_ABORT:
        return FOLIO_REASON_ABORT;
    case FOLIO_FINISH_DEADLINE:
        return FOLIO_REASON_DEADLINE;
    case FOLIO_FINISH_NONE:
    case FOLIO_FINISH_ERROR:
        break;
    }
    return FOLIO_REASON_ERROR;
}

void folio_answer_end(folio_engine *e, folio_answer *a, folio_finish_reason why,
                      folio_status status, uint64_t now_ns)
{
    const folio_request *r = a->req;
    const folio_job *job = a->job;
    folio_event *end = &a->end;
    if (a->ended)
        return;
    if (!a->has_token)
        a->n_token = a->n_text = 0;
    flush_text(a);
    /* Also one that only what was held back has made whole. */
    const int32_t hit = job->stops ? a->stop.hit : -1;
    if (r && r->state == FOLIO_REQUEST_FINISHED) {
        why = reason_of(r->finish);
        status = r->status;
    }
    if (hit >= 0 && why == FOLIO_REASON_LENGTH)
        why = FOLIO_REASON_STOP;
    *end = (folio_event){.kind = FOLIO_EVENT_FINISHED,
                         .request = job->id,
                         .completion = a->index,
                         .reason = why,
                         .status = status,
                         .stop = hit,
                         .n_prompt = job->req.n_prompt,
                         .n_new = a->n_new,
                         .n_cached = r ? r->n_cached : 0,
                         .n_preempt = r ? r->n_preempt : 0};
    end->queue_ns = (a->admitted_ns ? a->admitted_ns : now_ns) - job->submit_ns;
    if (a->first_ns) {
        end->prefill_ns = a->first_ns - a->admitted_ns;
        end->decode_ns = a->last_ns - a->first_ns;
    }
    a->ended = a->has_end = true;
    e->n_finished++;
    list(e, a);
}

/* Over and done with: the last completion takes the job along. */
static void leave(folio_engine *e, folio_answer *a)
{
    folio_job *job = a->job;
    if (!a->handed_end || !a->released || ++job->n_gone < job->n)
        return;
    job->next_gone = e->gone;
    e->gone = job;
}

void folio_answer_release(folio_engine *e, folio_answer *a)
{
    if (a->job->entered)
        a->req = NULL; /* else the job's to close */
    if (a->released)
        return;
    a->released = true;
    leave(e, a);
}

static void hand_end(folio_engine *e, folio_answer *a)
{
    folio_job *job = a->job;
    bool last = true;
    a->has_end = false;
    a->handed_end = true;
    for (int32_t i = 0; i < job->n; i++)
        last = last && job->answer[i].handed_end;
    folio_door_leave(&e->door, job, last);
    leave(e, a);
}

static folio_event take_token(folio_answer *a)
{
    a->has_token = false;
    return (folio_event){.kind = FOLIO_EVENT_TOKEN,
                         .request = a->job->id,
                         .completion = a->index,
                         .text = a->text,
                         .n_text = a->n_token,
                         .tok = a->tok,
                         .index = a->n_new - 1,
                         .scores = a->job->logprobs >= 0 ? &a->score : NULL,
                         .stop = -1};
}

static folio_event take_prompt(folio_answer *a)
{
    a->has_prompt = false;
    return (folio_event){.kind = FOLIO_EVENT_PROMPT,
                         .request = a->job->id,
                         .completion = a->index,
                         .scores = a->job->scores,
                         .n_prompt = a->job->req.n_prompt,
                         .stop = -1};
}

static folio_event take_end(folio_engine *e, folio_answer *a)
{
    folio_event end = a->end;
    if (a->text)
        end.text = a->text + a->n_token;
    end.n_text = a->n_text - a->n_token;
    hand_end(e, a);
    return end;
}

size_t folio_answer_hand_out(folio_engine *e, folio_event *events, size_t cap)
{
    size_t n = 0;
    while (e->events && n < cap) {
        folio_answer *a = e->events;
        if (a->has_prompt) {
            events[n++] = take_prompt(a);
        } else if (a->has_token) {
            events[n++] = take_token(a);
        } else {
            e->events = a->next_event;
            a->listed = false;
            if (a->has_end)
                events[n++] = take_end(e, a);
        }
    }
    /* What is through makes room for the step's own next ones. */
    while (e->events && !e->events->has_prompt && !e->events->has_token &&
           !e->events->has_end) {
        e->events->listed = false;
        e->events = e->events->next_event;
    }
    if (!e->events)
        e->events_end = &e->events;
    return n;
}
