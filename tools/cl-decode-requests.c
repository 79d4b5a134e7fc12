#define _POSIX_C_SOURCE 200809L
/* cl-decode-requests.c: runs a file of requests through an engine: says at once
 * which lines are bad, submits each other one when its time has come, steps,
 * prints one line of JSON for each completion that ends, and a summary on
 * stderr. */
#include "cl-decode-line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_EVENTS = 256 };

typedef struct arrival {
    double ms;
    size_t line;
} arrival;

typedef struct run {
    app *a;
    folio_engine *e;
    request_line *lines;
    size_t n, cap;
    arrival *order; /* [n_order] lines that can be run, by time of arrival */
    size_t n_order;
    size_t next;  /* in order */
    size_t *sent; /* [n_sent] lines in order of submission */
    size_t n_sent;
    bool cancels; /* some line wants to be cancelled */
    size_t n_error;
    size_t n_by[6]; /* completions by reason */
    size_t n_ids;
    double start_s;
} run;

static folio_status print_json(run *r, json_t *j)
{
    return tool_json_print(j)
               ? FOLIO_OK
               : fail_with(r->a, FOLIO_E_IO, "stdout could not be written");
}

static json_t *line_id(const request_line *l)
{
    return l->id ? json_incref(l->id) : json_null();
}

/* The line is over before it began. */
static folio_status print_error(run *r, request_line *l, folio_status st,
                                const char *why)
{
    r->n_error++;
    l->n_open = 0;
    return print_json(r,
                      json_pack("{s:o,s:{s:s,s:o}}", "id", line_id(l), "error",
                                "code", folio_status_name(st), "message",
                                tool_json_text(why, strlen(why))));
}

/* ---- in ------------------------------------------------------------------ */

static folio_status read_lines(run *r)
{
    const char *why;
    size_t n, number = 0;
    char *text = tool_read_file(r->a->o.requests, &n, &why);
    folio_status st = FOLIO_OK;
    if (!text)
        return fail_read(r->a, r->a->o.requests, why);
    for (size_t at = 0; st == FOLIO_OK && at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t len = end ? (size_t)(end - text) - at : n - at;
        number++;
        if (strspn(text + at, " \t\r") < len) {
            if (r->n == r->cap) {
                const size_t cap = 2 * r->cap + 64;
                request_line *more = realloc(r->lines, cap * sizeof *more);
                if (!more) {
                    st = FOLIO_E_NOMEM;
                    break;
                }
                r->lines = more;
                r->cap = cap;
            }
            st = line_parse(r->a, text + at, len, number, &r->lines[r->n++]);
        }
        at += len + 1;
    }
    free(text);
    return st;
}

/* By time, and lines of one time in their order. */
static int compare_arrivals(const void *x, const void *y)
{
    const arrival *a = x, *b = y;
    if (a->ms != b->ms)
        return a->ms < b->ms ? -1 : 1;
    return (a->line > b->line) - (a->line < b->line);
}

/* Bad lines are over here: nothing that they say is believed, their time of
 * arrival neither. */
static folio_status sort_lines(run *r)
{
    folio_status st = FOLIO_OK;
    r->order = malloc((r->n + 1) * sizeof *r->order);
    r->sent = malloc((r->n + 1) * sizeof *r->sent);
    if (!r->order || !r->sent)
        return FOLIO_E_NOMEM;
    for (size_t i = 0; st == FOLIO_OK && i < r->n; i++) {
        request_line *l = &r->lines[i];
        if (l->bad != FOLIO_OK) {
            st = print_error(r, l, l->bad, l->why);
            continue;
        }
        r->order[r->n_order++] = (arrival){l->arrive_ms, i};
        r->cancels |= l->cancel_ms >= 0.0;
    }
    qsort(r->order, r->n_order, sizeof *r->order, compare_arrivals);
    return st;
}

static folio_status open_requests_engine(run *r)
{
    const options *o = &r->a->o;
    folio_engine_params p;
    folio_engine_params_default(&p);
    if (o->max_seqs)
        p.max_seqs = (int32_t)o->max_seqs;
    p.max_ctx = (int32_t)o->ctx;
    p.budget = (int32_t)o->budget;
    if (o->have_pace)
        p.pace = o->pace;
    p.block_size = (int32_t)o->block;
    p.n_blocks = (int32_t)o->n_blocks;
    p.kv_type = o->kv_f32 ? FOLIO_KV_F32 : FOLIO_KV_F16;
    p.deterministic = (int32_t)o->deterministic;
    p.fused = (int32_t)o->fused;
    p.exact = o->exact;
    p.prefix_cache = !o->no_prefix_cache;
    p.chunking = !o->no_chunking;
    p.watermark_blocks = o->have_watermark ? (int32_t)o->watermark : -1;
    p.run_ahead = (int32_t)o->run_ahead;
    p.audit = o->audit;
    for (size_t i = 0; i < r->n; i++)
        p.prompt_logprobs |=
            r->lines[i].bad == FOLIO_OK && r->lines[i].req.prompt_logprobs;
    if (o->no_chunking && p.prompt_logprobs)
        return fail_with(r->a, FOLIO_E_INVAL,
                         "prompt_logprobs and --no-chunking exclude each "
                         "other");
    p.trace_steps = o->trace_file ? 65536 : 0;
    p.log = r->a->log;
    return folio_engine_open(r->a->model, r->a->tok, &p, &r->e);
}

static double elapsed_ms(const run *r)
{
    return (now_s() - r->start_s) * 1e3;
}

/* Submits what has arrived, as far as the engine takes it. */
static folio_status submit_arrived(run *r)
{
    folio_status st = FOLIO_OK;
    while (st == FOLIO_OK && r->next < r->n_order) {
        const size_t line = r->order[r->next].line;
        request_line *l = &r->lines[line];
        if (l->arrive_ms > elapsed_ms(r))
            break;
        r->a->tlog.error[0] = '\0';
        const folio_status got =
            folio_engine_submit(r->e, &l->req, &l->engine_id);
        if (got == FOLIO_E_FULL)
            break; /* after a step */
        if (got == FOLIO_OK)
            r->sent[r->n_sent++] = line;
        r->next++;
        if (got != FOLIO_OK)
            st = print_error(r, l, got,
                             r->a->tlog.error[0] ? r->a->tlog.error
                                                 : folio_status_text(got));
    }
    return st;
}

static folio_status cancel_due(run *r)
{
    const double ms = elapsed_ms(r);
    if (!r->cancels && !interrupted)
        return FOLIO_OK;
    for (size_t i = 0; i < r->n_sent; i++) {
        request_line *l = &r->lines[r->sent[i]];
        if (l->n_open == 0 || l->cancelled ||
            !(interrupted || (l->cancel_ms >= 0.0 && l->cancel_ms <= ms)))
            continue;
        l->cancelled = true;
        const folio_status st = folio_engine_cancel(r->e, l->engine_id);
        if (st != FOLIO_OK && st != FOLIO_E_NOT_FOUND)
            return st;
    }
    return FOLIO_OK;
}

/* ---- out ----------------------------------------------------------------- */

/* Room for n more elements. */
static bool grow(void **p, size_t *cap, size_t have, size_t n, size_t size)
{
    if (n <= *cap - have)
        return true;
    const size_t want = 2 * *cap + n;
    void *more = realloc(*p, want * size);
    if (!more)
        return false;
    *p = more;
    *cap = want;
    return true;
}

/* The engine's ids ascend. */
static request_line *line_of(run *r, uint64_t engine_id)
{
    size_t lo = 0, hi = r->n_sent;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (r->lines[r->sent[mid]].engine_id < engine_id)
            lo = mid + 1;
        else
            hi = mid;
    }
    request_line *l = lo < r->n_sent ? &r->lines[r->sent[lo]] : NULL;
    return l && l->engine_id == engine_id ? l : NULL;
}

/* An id with its log-probability and the most likely ones. */
static json_t *score_json(const folio_sample_result *res)
{
    json_t *top = json_array();
    for (int32_t i = 0; i < res->n_top; i++)
        json_array_append_new(
            top, json_pack("[i,o]", (int)res->top_ids[i],
                           tool_json_num((double)res->top_logprobs[i])));
    return json_pack("{s:i,s:o,s:o}", "id", (int)res->id, "logprob",
                     tool_json_num((double)res->logprob), "top", top);
}

static folio_status print_end(run *r, request_line *l, const completion *c,
                              const folio_event *ev)
{
    json_t *j = json_pack(
        "{s:o,s:i,s:o,s:o,s:s,s:o,s:o,s:o,s:i,s:i}", "id", line_id(l),
        "completion", (int)ev->completion, "ids", ids_json(c->ids, c->n_ids),
        "text", tool_json_text(c->text ? c->text : "", c->n_text), "finish",
        folio_finish_reason_name(ev->reason), "queue_s",
        tool_json_num((double)ev->queue_ns * 1e-9), "prefill_s",
        tool_json_num((double)ev->prefill_ns * 1e-9), "decode_s",
        tool_json_num((double)ev->decode_ns * 1e-9), "preemptions",
        (int)ev->n_preempt, "cached_tokens", (int)ev->n_cached);
    /* What the library said in this step. */
    const char *why =
        r->a->tlog.error[0] ? r->a->tlog.error : folio_status_text(ev->status);
    if (j && c->scores)
        json_object_set(j, "logprobs", c->scores);
    if (j && l->prompt_scores)
        json_object_set(j, "prompt_logprobs", l->prompt_scores);
    if (j && l->echo)
        json_object_set_new(j, "prompt_ids",
                            ids_json(l->prompt, (size_t)l->req.n_prompt));
    if (j && ev->stop >= 0)
        json_object_set_new(j, "stop", json_integer(ev->stop));
    if (j && ev->reason == FOLIO_REASON_ERROR)
        json_object_set_new(j, "error",
                            json_pack("{s:s,s:o}", "code",
                                      folio_status_name(ev->status), "message",
                                      tool_json_text(why, strlen(why))));
    return print_json(r, j);
}

static folio_status take_event(run *r, const folio_event *ev)
{
    request_line *l = line_of(r, ev->request);
    if (!l)
        return fail_with(r->a, FOLIO_E_INTERNAL, "an event of request %llu",
                         (unsigned long long)ev->request);
    completion *c = &l->out[ev->completion];
    if (ev->kind == FOLIO_EVENT_PROMPT) {
        l->prompt_scores = json_array();
        for (int32_t i = 0; i < ev->n_prompt; i++)
            json_array_append_new(l->prompt_scores,
                                  i ? score_json(&ev->scores[i]) : json_null());
        return FOLIO_OK;
    }
    if (!grow((void **)&c->text, &c->cap_text, c->n_text, ev->n_text, 1))
        return FOLIO_E_NOMEM;
    if (ev->n_text)
        memcpy(c->text + c->n_text, ev->text, ev->n_text);
    c->n_text += ev->n_text;
    if (ev->kind == FOLIO_EVENT_TOKEN) {
        if (!grow((void **)&c->ids, &c->cap_ids, c->n_ids, 1, sizeof *c->ids))
            return FOLIO_E_NOMEM;
        c->ids[c->n_ids++] = ev->tok;
        if (ev->scores && !c->scores)
            c->scores = json_array();
        if (ev->scores)
            json_array_append_new(c->scores, score_json(ev->scores));
        r->n_ids++;
        return FOLIO_OK;
    }
    r->n_by[ev->reason]++;
    r->n_error += ev->reason == FOLIO_REASON_ERROR && !l->failed;
    l->failed |= ev->reason == FOLIO_REASON_ERROR;
    l->n_open--;
    return print_end(r, l, c, ev);
}

/* Whatever ended the run, a request that has no answer yet gets its line. */
static void end_lines(run *r, folio_status st)
{
    char why[sizeof r->a->tlog.error];
    if (interrupted)
        st = FOLIO_E_CANCELED;
    if (st == FOLIO_OK)
        return;
    snprintf(why, sizeof why, "%s",
             interrupted           ? "interrupted before it was answered"
             : r->a->tlog.error[0] ? r->a->tlog.error
                                   : folio_status_text(st));
    for (size_t i = 0; i < r->n; i++)
        if (r->lines[i].n_open > 0 &&
            print_error(r, &r->lines[i], st, why) != FOLIO_OK)
            return;
}

static void print_summary(const run *r)
{
    const double s = now_s() - r->start_s;
    folio_engine_stats st = {.size = sizeof st};
    folio_engine_get_stats(r->e, &st);
    fprintf(stderr,
            "%s: %zu requests in %.3f s, %zu with errors; finish: stop %zu, "
            "length %zu, abort %zu, deadline %zu, error %zu\n",
            tool_name, r->n, s, r->n_error, r->n_by[FOLIO_REASON_STOP],
            r->n_by[FOLIO_REASON_LENGTH], r->n_by[FOLIO_REASON_ABORT],
            r->n_by[FOLIO_REASON_DEADLINE], r->n_by[FOLIO_REASON_ERROR]);
    fprintf(stderr,
            "%s: %zu new ids (%.1f/s), %llu steps, %llu positions computed "
            "(%llu of prompts, %llu again), %llu cached, %llu preemptions, "
            "device %s\n",
            tool_name, r->n_ids, s > 0 ? (double)r->n_ids / s : 0.0,
            (unsigned long long)st.steps, (unsigned long long)st.forward_tok,
            (unsigned long long)st.prefill_tok,
            (unsigned long long)st.recomputed_tok,
            (unsigned long long)st.cached_tok,
            (unsigned long long)st.preemptions, r->a->dinfo.name);
}

/* ---- the loop ------------------------------------------------------------ */

/* Nothing to compute until the next line arrives. */
static void wait_for_arrival(const run *r)
{
    const double ms = r->order[r->next].ms - elapsed_ms(r);
    if (ms <= 0.0)
        return;
    const double s = (ms < 50.0 ? ms : 50.0) / 1e3; /* for interrupts */
    const struct timespec ts = {0, (long)(s * 1e9)};
    nanosleep(&ts, NULL);
}

static folio_status serve(run *r)
{
    static folio_event ev[N_EVENTS];
    folio_status st = FOLIO_OK;
    r->start_s = now_s();
    while (st == FOLIO_OK &&
           (r->next < r->n_order || !folio_engine_is_idle(r->e))) {
        size_t n = 0;
        if (!interrupted)
            st = submit_arrived(r);
        else
            r->next = r->n_order;
        if (st == FOLIO_OK)
            st = cancel_due(r);
        if (st != FOLIO_OK)
            break;
        if (folio_engine_is_idle(r->e)) {
            if (r->next < r->n_order)
                wait_for_arrival(r);
            continue;
        }
        r->a->tlog.error[0] = '\0';
        st = folio_engine_step(r->e, ev, N_EVENTS, &n);
        for (size_t i = 0; st == FOLIO_OK && i < n; i++)
            st = take_event(r, &ev[i]);
    }
    return st;
}

/* Whether the trace can be written when all is done. */
static folio_status try_trace_file(app *a)
{
    const char *path = a->o.trace_file, *why;
    /* Also the model that is taken where none is named. */
    if (tool_same_file(path, a->model_path))
        return fail_with(a, FOLIO_E_INVAL,
                         "--trace-file %s would overwrite the model", path);
    if (!path || tool_try_output(path, &why))
        return FOLIO_OK;
    return fail_with(a, FOLIO_E_IO, "--trace-file %s: %s", path, why);
}

folio_status mode_requests(app *a)
{
    run r = {.a = a};
    folio_status st = try_trace_file(a);
    if (st == FOLIO_OK)
        st = read_lines(&r);
    if (st == FOLIO_OK)
        st = sort_lines(&r);
    if (st == FOLIO_OK)
        st = open_model(a, a->o.max_seqs ? (int32_t)a->o.max_seqs : 8);
    if (st == FOLIO_OK)
        st = open_requests_engine(&r);
    if (st == FOLIO_OK)
        st = serve(&r);
    end_lines(&r, st);
    if (r.e)
        print_summary(&r);
    if (st == FOLIO_OK && a->o.trace_file)
        st = folio_engine_trace_write(r.e, a->o.trace_file);
    a->n_failed = r.n_error;
    folio_engine_close(&r.e);
    for (size_t i = 0; i < r.n; i++)
        line_free(&r.lines[i]);
    free(r.lines);
    free(r.order);
    free(r.sent);
    return st;
}
