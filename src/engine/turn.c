/* engine/turn.c: one step: take in what was submitted, plan, compute, draw,
 * turn ids into text, commit, report; and what happens when one of these fails.
 * The only file that moves requests. */
#include "engine/eng.h"

#include "device/dev.h"
#include "model/runner_internal.h"
#include "sched/audit.h"

/* A pass that fails so often in a row is given up. */
#define MAX_TRIES 3

/* What is to be audited must have settled: every so many plans the device does
 * not run ahead. */
#define AUDIT_EVERY 8

_Static_assert(sizeof(folio_block_copy) == 2 * sizeof(int32_t),
               "the runner reads copies as pairs");

/* ---- in ------------------------------------------------------------------ */

/* The door counted them and named them: a failure is an invariant broken. */
static folio_status take_job(folio_engine *e, folio_job *job)
{
    FOLIO_RETURN_IF(folio_sched_enter(e->sched, job->answer[0].req));
    job->entered = true;
    return FOLIO_OK;
}

/* Jobs that are gone are freed last: one may still be on the list of those to
 * be cancelled. */
static folio_status take_in(folio_engine *e)
{
    folio_job *in, *cancel;
    folio_door_take(&e->door, &in, &cancel);
    while (in) {
        folio_job *job = in;
        in = job->next_in;
        FOLIO_RETURN_IF(take_job(e, job));
    }
    for (; cancel; cancel = cancel->next_cancel) {
        const folio_status st = folio_sched_abort(e->sched, cancel->id);
        (void)st; /* NOT_FOUND: it was over before */
    }
    while (e->gone) {
        folio_job *job = e->gone;
        e->gone = job->next_gone;
        folio_door_remove(&e->door, job);
        folio_job_close(&job);
    }
    return FOLIO_OK;
}

/* ---- what a plan changed ------------------------------------------------- */

static void note_plan(folio_engine *e, const folio_step *step, uint64_t now)
{
    for (int32_t i = 0; i < step->n_admitted; i++) {
        folio_answer *a = folio_answer_of(step->admitted[i]);
        if (!a->admitted_ns)
            a->admitted_ns = now;
    }
    for (int32_t i = 0; i < step->n_released; i++) {
        folio_answer *a = folio_answer_of(step->released[i]);
        folio_answer_end(e, a, FOLIO_REASON_ERROR, FOLIO_E_INTERNAL, now);
        folio_answer_release(e, a);
    }
}

/* ---- failures ------------------------------------------------------------ */

/* Nothing moves any more: everybody ends with `st`. */
static void fail_engine(folio_engine *e, folio_status st)
{
    folio_door *d = &e->door;
    e->failed = st;
    pthread_mutex_lock(&d->lock);
    d->failed = st; /* nobody enters from now on */
    d->in = d->cancel = NULL;
    d->in_end = &d->in;
    d->settled = true;
    pthread_mutex_unlock(&d->lock);
    const uint64_t now = folio_engine_now(e); /* after all who entered */
    for (uint32_t i = 0; i <= d->id_mask; i++)
        for (folio_job *job = d->by_id[i]; job; job = job->next_id)
            for (int32_t k = 0; k < job->n; k++) {
                folio_answer *a = &job->answer[k];
                folio_answer_end(e, a, FOLIO_REASON_ERROR, st, now);
                folio_answer_release(e, a);
            }
}

/* The pass of `f` did not happen: its step is taken back. What the device may
 * still compute of it is overwritten by what comes behind. */
static folio_status take_back(folio_engine *e, const folio_flight *f)
{
    if (e->call.is_lost(e->runner))
        return FOLIO_E_DEVICE;
    folio_row_forget_counts(e);
    return folio_sched_rollback(e->sched, f->step);
}

/* The requests of a step that was taken back wait for the next try, or end. */
static void give_up_step(folio_engine *e, folio_flight *f, folio_status why)
{
    const folio_step *step = f->step;
    const uint64_t now = folio_engine_now(e);
    f->step = NULL;
    f->span.failed = true;
    f->span.end = now;
    folio_span_keep(e, &f->span);
    e->n_failed_steps++;
    if (++e->n_failed < MAX_TRIES)
        return;
    e->n_failed = 0;
    for (int32_t i = 0; i < step->n_seq; i++) {
        folio_request *r = step->seq[i].req;
        folio_sched_finish(e->sched, r, FOLIO_FINISH_ERROR, why);
        folio_answer_end(e, folio_answer_of(r), FOLIO_REASON_ERROR, why, now);
    }
}

/* ---- compute ------------------------------------------------------------- */

static folio_status enqueue(folio_engine *e, folio_flight *f)
{
    const folio_step *step = f->step;
    folio_batch b = {
        .n_tok = step->n_tok,
        .n_seq = step->n_seq,
        .tok = step->tok,
        .pos = step->pos,
        .slot = step->slot,
        .q_start = step->q_start,
        .kv_len = step->kv_len,
        .table_start = step->table_start,
        .tables = step->tables,
        .n_copies = step->n_copies,
        .copies = step->n_copies ? &step->copies[0].src : NULL,
    };
    folio_draw d;
    const bool draws = folio_row_pack(e, f, &b, &d);
    /* A step before that is still under way has no rows but those that draw. */
    for (int32_t i = 0; i < step->n_seq; i++)
        e->open_row[i] = step->seq[i].pending_row;
    FOLIO_RETURN_IF(
        e->call.forward(e->runner, &b, draws ? &d : NULL, e->open_row));
    if (e->p.trace_steps) {
        f->span.enqueued = folio_engine_now(e);
        f->span.uploaded =
            FOLIO_MIN(f->span.planned + e->runner->upload_ns, f->span.enqueued);
    }
    return FOLIO_OK;
}

/* Text of the drawn ids, for those whose row still counts. */
static folio_status read_text(folio_engine *e, const folio_step *step)
{
    for (int32_t i = 0; i < step->n_rows; i++) {
        const folio_step_row *row = &step->seq[step->row_seq[i]];
        const folio_request *r = row->req;
        bool stop = false;
        if (e->verdict[i] != FOLIO_VERDICT_NONE || !folio_row_counts(row))
            continue;
        FOLIO_RETURN_IF(
            folio_answer_push(folio_answer_of(r), e->next[i], &stop));
        if (stop)
            e->verdict[i] = FOLIO_VERDICT_STOP;
    }
    return FOLIO_OK;
}

/* All its completions, wherever they are. */
static void end_job(folio_engine *e, folio_job *job, folio_status why,
                    uint64_t now)
{
    for (int32_t k = 0; k < job->n; k++) {
        folio_answer *a = &job->answer[k];
        if (!a->req)
            continue; /* released */
        folio_sched_finish(e->sched, a->req, FOLIO_FINISH_ERROR, why);
        folio_answer_end(e, a, FOLIO_REASON_ERROR, why, now);
    }
}

static void report(folio_engine *e, const folio_step *step, uint64_t now)
{
    for (int32_t i = 0; i < step->n_rows; i++) {
        const folio_request *r = step->seq[step->row_seq[i]].req;
        folio_answer *a = folio_answer_of(r);
        if (e->took[i])
            folio_answer_token(e, a, e->next[i], now);
        if (r->state == FOLIO_REQUEST_FINISHED)
            folio_answer_end(e, a, FOLIO_REASON_ERROR, FOLIO_E_INTERNAL, now);
    }
    for (int32_t i = 0; i < step->n_seq; i++) {
        folio_job *job = step->seq[i].req->user;
        if (job->poisoned)
            end_job(e, job, FOLIO_E_INTERNAL, now);
    }
}

static folio_status audit(folio_engine *e)
{
    folio_audit_report rep;
    if (!e->p.audit || e->flight[0].step || e->flight[1].step)
        return FOLIO_OK;
    folio_sched_audit(e->sched, &rep);
    if (rep.n == 0)
        return FOLIO_OK;
    return folio_fail(&e->log, FOLIO_E_INTERNAL,
                      "engine: audit: %d violations, the first one: %s", rep.n,
                      rep.text);
}

static void note_pace(folio_engine *e, const folio_step *step, uint64_t ns)
{
    int32_t n_decode = 0;
    for (int32_t i = 0; i < step->n_seq; i++)
        n_decode += !step->seq[i].prefill;
    folio_pace_note(&e->pace, n_decode, step->n_tok - n_decode, ns);
}

/* Plans the next step and enqueues it. f->step stays NULL where there is
 * nothing to compute. *why: the pass failed and was taken back. */
static folio_status begin_step(folio_engine *e, folio_flight *f,
                               folio_status *why)
{
    const folio_step *step;
    const uint64_t now = folio_engine_now(e);
    f->span = (folio_step_span){.begin = now};
    folio_sched_limit_prompts(
        e->sched, folio_pace_limit(&e->pace, folio_sched_n_decoding(e->sched)));
    FOLIO_RETURN_IF(folio_sched_plan(e->sched, now, &step));
    note_plan(e, step, now);
    if (step->n_seq == 0)
        return FOLIO_OK;
    if (e->p.trace_steps)
        f->span.planned = folio_engine_now(e);
    f->span.number = step->number;
    f->span.n_tok = step->n_tok;
    f->span.n_seq = step->n_seq;
    f->span.n_rows = step->n_rows;
    f->span.n_waiting = step->n_waiting;
    f->step = step;
    *why = enqueue(e, f);
    return *why == FOLIO_OK ? FOLIO_OK : take_back(e, f);
}

/* Waits for a step, draws, and commits it. Where that fails, what is under way
 * behind it (NULL: nothing) is taken back, too. */
static folio_status end_step(folio_engine *e, folio_flight *f,
                             folio_flight *behind)
{
    const folio_step *step = f->step;
    const bool traced = e->p.trace_steps > 0;
    if (traced)
        f->span.waits = folio_engine_now(e);
    const folio_status why = folio_engine_draw(e, f);
    if (why != FOLIO_OK) {
        if (behind) {
            FOLIO_RETURN_IF(take_back(e, behind));
            behind->step = NULL;
        }
        FOLIO_RETURN_IF(take_back(e, f));
        give_up_step(e, f, why);
        return FOLIO_OK;
    }
    e->n_failed = 0;
    const uint64_t now = f->span.waited = folio_engine_now(e);
    /* The device began it when it was through with the one before. */
    note_pace(e, step, now - FOLIO_MAX(f->span.begin, e->waited_ns));
    e->waited_ns = now;
    FOLIO_RETURN_IF(read_text(e, step));
    if (traced)
        f->span.sampled = folio_engine_now(e);
    FOLIO_RETURN_IF(
        folio_sched_commit(e->sched, step, e->next, e->verdict, e->took));
    report(e, step, now);
    f->step = NULL;
    e->n_steps++;
    e->step_ns += now - e->turn_ns;
    if (traced)
        f->span.end = folio_engine_now(e);
    folio_span_keep(e, &f->span);
    return FOLIO_OK;
}

/* One step is planned and enqueued and one is read and committed: the same
 * one or, where run_ahead lets the device be ahead of the host, the one before;
 * unless the host has to see that one before anybody can plan. */
static folio_status turn(folio_engine *e)
{
    folio_flight *old = &e->flight[e->newest], *next = &e->flight[!e->newest];
    folio_status why = FOLIO_OK;
    const bool settles =
        old->must_settle ||
        (e->p.audit && old->span.number % AUDIT_EVERY == AUDIT_EVERY - 1);
    const bool plans = !old->step || !settles;
    e->turn_ns = folio_engine_now(e);
    FOLIO_RETURN_IF(take_in(e));
    if (plans) {
        e->newest = !e->newest;
        FOLIO_RETURN_IF(begin_step(e, next, &why));
        e->n_empty += !old->step && !next->step;
    }
    if (old->step)
        FOLIO_RETURN_IF(
            end_step(e, old, next->step && why == FOLIO_OK ? next : NULL));
    else if (next->step && why == FOLIO_OK &&
             (e->p.run_ahead == 0 || next->must_settle))
        FOLIO_RETURN_IF(end_step(e, next, NULL));
    /* After the one before, which succeeded: the first failure in a row. */
    if (why != FOLIO_OK)
        give_up_step(e, next, why);
    return audit(e);
}

/* ---- out ----------------------------------------------------------------- */

void folio_engine_publish(folio_engine *e)
{
    const folio_sched_stats s = folio_sched_get_stats(e->sched);
    const folio_block_pool_counts b =
        folio_block_pool_count(folio_sched_pool(e->sched));
    folio_runner_counters c;
    folio_runner_get_counters(e->runner, &c);
    const folio_engine_stats out = {
        .steps = e->n_steps,
        .empty_steps = e->n_empty,
        .failed_steps = e->n_failed_steps,
        .finished = e->n_finished,
        .new_tok = s.collected,
        .forward_tok = s.forward_tok,
        .prefill_tok = s.prefill_tok,
        .recomputed_tok = s.recomputed_tok,
        .cached_tok = s.cached_tok,
        .copied_blocks = s.copied_blocks,
        .evicted_blocks = s.evicted_blocks,
        .preemptions = s.preemptions,
        .thrashes = s.thrashes,
        .step_ns = e->step_ns,
        .launches = c.launches,
        .writes = c.writes,
        .reads = c.reads,
        .waits = c.waits,
        .n_waiting = s.n_waiting,
        .n_running = s.n_running,
        .blocks_held = b.n_held,
        .blocks_cached = b.n_cached,
        .blocks_free = b.n_free - b.n_cached,
    };
    const bool settled = e->failed != FOLIO_OK || folio_sched_is_idle(e->sched);
    pthread_mutex_lock(&e->door.lock);
    e->door.stats = out;
    e->door.settled = settled;
    pthread_mutex_unlock(&e->door.lock);
}

/* What a turn may end with beside these is an invariant that broke, and
 * nobody's request is to blame. */
static folio_status failure_of(const folio_engine *e, folio_status st)
{
    if (st == FOLIO_E_DEVICE || st == FOLIO_E_INTERNAL || st == FOLIO_E_STUCK)
        return st;
    return folio_fail(&e->log, FOLIO_E_INTERNAL,
                      "engine: a step came to %s, which it never may",
                      folio_status_name(st));
}

folio_status folio_engine_step(folio_engine *e, folio_event *events, size_t cap,
                               size_t *n)
{
    if (!e)
        return FOLIO_E_INVAL;
    if (!events || cap < 1 || !n)
        return folio_fail(&e->log, FOLIO_E_INVAL,
                          "step: events is %s, cap %zu, n %s",
                          events ? "given" : "NULL", cap, n ? "given" : "NULL");
    if (!e->events) {
        if (e->failed != FOLIO_OK)
            return e->failed;
        folio_status st = turn(e);
        if (st != FOLIO_OK) {
            st = failure_of(e, st);
            fail_engine(e, st);
        }
        folio_engine_publish(e);
        if (st != FOLIO_OK && !e->events)
            return st;
    }
    *n = folio_answer_hand_out(e, events, cap);
    return FOLIO_OK;
}
