/* engine/turn.c: one step: take in what was submitted, plan, compute, draw,
 * turn ids into text, commit, report; and what happens when one of these fails.
 * The only file that moves requests. */
#include "engine/eng.h"

#include "device/dev.h"
#include "model/runner_internal.h"
#include "sched/audit.h"

/* A pass that fails so often in a row is given up. */
#define MAX_TRIES 3

_Static_assert(sizeof(folio_block_copy) == 2 * sizeof(int32_t),
               "the runner reads copies as pairs");

static folio_answer *answer_of(const folio_request *r)
{
    return &((folio_job *)r->user)->answer[r->completion];
}

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
        folio_answer *a = answer_of(step->admitted[i]);
        if (!a->admitted_ns)
            a->admitted_ns = now;
    }
    for (int32_t i = 0; i < step->n_released; i++) {
        folio_answer *a = answer_of(step->released[i]);
        folio_answer_end(e, a, FOLIO_REASON_ERROR, FOLIO_E_INTERNAL, now);
        folio_answer_release(e, a);
    }
}

/* ---- failures ------------------------------------------------------------ */

/* Nothing moves any more: everybody ends with `st`. */
static void fail_engine(folio_engine *e, folio_status st, uint64_t now)
{
    folio_door *d = &e->door;
    e->failed = st;
    pthread_mutex_lock(&d->lock);
    d->failed = st; /* nobody enters from now on */
    d->in = d->cancel = NULL;
    d->in_end = &d->in;
    d->settled = true;
    pthread_mutex_unlock(&d->lock);
    for (uint32_t i = 0; i <= d->id_mask; i++)
        for (folio_job *job = d->by_id[i]; job; job = job->next_id)
            for (int32_t k = 0; k < job->n; k++) {
                folio_answer *a = &job->answer[k];
                folio_answer_end(e, a, FOLIO_REASON_ERROR, st, now);
                folio_answer_release(e, a);
            }
}

/* The pass did not happen. Its requests wait for the next try, or end. */
static folio_status give_up_step(folio_engine *e, const folio_step *step,
                                 folio_status why, uint64_t now)
{
    e->n_failed_steps++;
    e->now.failed = true;
    if (e->call.is_lost(e->runner))
        return FOLIO_E_DEVICE;
    FOLIO_RETURN_IF(folio_sched_rollback(e->sched, step));
    if (++e->n_failed < MAX_TRIES)
        return FOLIO_OK;
    e->n_failed = 0;
    for (int32_t i = 0; i < step->n_seq; i++) {
        folio_request *r = step->seq[i].req;
        folio_sched_finish(e->sched, r, FOLIO_FINISH_ERROR, why);
        folio_answer_end(e, answer_of(r), FOLIO_REASON_ERROR, why, now);
    }
    return FOLIO_OK;
}

/* ---- compute ------------------------------------------------------------- */

static folio_status compute(folio_engine *e, const folio_step *step)
{
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
    folio_engine_pick_rows(e, step, &b);
    FOLIO_RETURN_IF(e->call.forward(e->runner, &b, -1));
    if (e->p.trace_steps) {
        e->now.enqueued = folio_engine_now(e);
        e->now.uploaded =
            FOLIO_MIN(e->now.planned + e->runner->upload_ns, e->now.enqueued);
    }
    return folio_engine_draw(e, step);
}

/* Text of the drawn ids, for those whose row still counts. */
static folio_status read_text(folio_engine *e, const folio_step *step)
{
    for (int32_t i = 0; i < step->n_rows; i++) {
        const folio_step_row *row = &step->seq[step->row_seq[i]];
        const folio_request *r = row->req;
        bool stop = false;
        if (e->verdict[i] == FOLIO_VERDICT_ERROR || row->epoch != r->epoch ||
            r->state != FOLIO_REQUEST_RUNNING)
            continue;
        FOLIO_RETURN_IF(folio_answer_push(answer_of(r), e->next[i], &stop));
        if (stop)
            e->verdict[i] = FOLIO_VERDICT_STOP;
    }
    return FOLIO_OK;
}

static void report(folio_engine *e, const folio_step *step, uint64_t now)
{
    for (int32_t i = 0; i < step->n_rows; i++) {
        const folio_request *r = step->seq[step->row_seq[i]].req;
        folio_answer *a = answer_of(r);
        if (e->took[i])
            folio_answer_token(e, a, e->next[i], now);
        if (r->state == FOLIO_REQUEST_FINISHED)
            folio_answer_end(e, a, FOLIO_REASON_ERROR, FOLIO_E_INTERNAL, now);
    }
    for (int32_t i = 0; i < step->n_seq; i++) {
        folio_request *r = step->seq[i].req;
        if (!((folio_job *)r->user)->poisoned)
            continue;
        folio_sched_finish(e->sched, r, FOLIO_FINISH_ERROR, FOLIO_E_INTERNAL);
        folio_answer_end(e, answer_of(r), FOLIO_REASON_ERROR, FOLIO_E_INTERNAL,
                         now);
    }
}

static folio_status audit(folio_engine *e)
{
    folio_audit_report rep;
    if (!e->p.audit)
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

static folio_status turn(folio_engine *e)
{
    const folio_step *step;
    const bool traced = e->p.trace_steps > 0;
    uint64_t now = folio_engine_now(e);
    e->now = (folio_step_span){.begin = now};
    FOLIO_RETURN_IF(take_in(e));
    folio_sched_limit_prompts(
        e->sched, folio_pace_limit(&e->pace, folio_sched_n_decoding(e->sched)));
    FOLIO_RETURN_IF(folio_sched_plan(e->sched, now, &step));
    note_plan(e, step, now);
    if (step->n_seq == 0) {
        e->n_empty++;
        return audit(e);
    }
    if (traced)
        e->now.planned = folio_engine_now(e);
    e->now.number = step->number;
    e->now.n_tok = step->n_tok;
    e->now.n_seq = step->n_seq;
    e->now.n_rows = step->n_rows;
    e->now.n_waiting = step->n_waiting;
    const folio_status st = compute(e, step);
    now = folio_engine_now(e);
    if (st != FOLIO_OK) {
        FOLIO_RETURN_IF(give_up_step(e, step, st, now));
        e->now.end = now;
        folio_span_keep(e);
        return audit(e);
    }
    e->n_failed = 0;
    e->now.waited = now;
    note_pace(e, step, now - e->now.begin);
    FOLIO_RETURN_IF(read_text(e, step));
    if (traced)
        e->now.sampled = folio_engine_now(e);
    FOLIO_RETURN_IF(
        folio_sched_commit(e->sched, step, e->next, e->verdict, e->took));
    report(e, step, now);
    e->n_steps++;
    e->step_ns += now - e->now.begin;
    if (traced)
        e->now.end = folio_engine_now(e);
    folio_span_keep(e);
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
        const folio_status st = turn(e);
        if (st != FOLIO_OK)
            fail_engine(e, st, folio_engine_now(e));
        folio_engine_publish(e);
        if (st != FOLIO_OK && !e->events)
            return st;
    }
    *n = folio_answer_hand_out(e, events, cap);
    return FOLIO_OK;
}
