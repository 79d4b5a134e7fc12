/* sched/sched_plan.c: the decisions of a step, in this order: release what
 * finished, grow what runs, give the budget to prompts, admit who waits, fill
 * the arrays. Takes blocks only through sched_blocks.c and tables. */
#include <assert.h>
#include <string.h>

#include "sched/sched_state.h"

static folio_step *newest(folio_sched *s)
{
    return &s->step[(s->first_step + s->n_steps - 1) % (s->p.run_ahead + 1)];
}

/* ---- release ------------------------------------------------------------- */

static folio_status release_finished(folio_sched *s, folio_step *step)
{
    while (s->done) {
        folio_request *r = s->done;
        s->done = r->next_done;
        if (r->queued)
            folio_sched_dequeue(s, r);
        if (r->slot != FOLIO_NO_SLOT) {
            FOLIO_RETURN_IF(folio_sched_give_blocks(s, r, false));
            folio_sched_give_place(s, r);
        }
        folio_sched_forget(s, r);
        step->released[step->n_released++] = r;
    }
    s->done_end = &s->done;
    return FOLIO_OK;
}

/* ---- grow ---------------------------------------------------------------- */

static folio_status preempt(folio_sched *s, folio_request *r, folio_step *step)
{
    r->n_preempt++;
    s->st.preemptions++;
    s->st.preempted_tok += (uint64_t)r->n_tok;
    s->st.thrashes += r->gained < s->p.block_tok;
    FOLIO_RETURN_IF(folio_sched_give_blocks(s, r, false));
    folio_sched_give_place(s, r);
    FOLIO_RETURN_IF(folio_request_move(r, FOLIO_REQUEST_WAITING, &s->log));
    folio_sched_enqueue(s, r);
    step->preempted[step->n_preempted++] = r;
    return FOLIO_OK;
}

static void note_growth(folio_sched *s, int32_t place,
                        const folio_block_growth *g, bool admitted)
{
    s->growth[place] = (folio_sched_growth){*g, admitted, -1};
    s->grown[s->n_grown++] = place;
}

/* Whether r computes its newest token in this step. */
static bool decodes(const folio_request *r)
{
    return !r->prefilling && folio_request_len(r) - r->n_prompt < r->max_new;
}

/* One more place for each text that goes on, highest class and oldest first.
 * The pool being short, the last one of that order makes room: never the first
 * one, so that one finishes, and with it the next. *out_n: those that go on. */
static folio_status grow_running(folio_sched *s, folio_step *step,
                                 int32_t *out_n)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_running; i++) {
        folio_request *r = s->order[i];
        r->n_new = 0;
        if (!decodes(r))
            continue;
        const int32_t place = r->slot;
        folio_block_table *t = s->table[place];
        assert(folio_block_table_n_tok(t) == folio_request_len(r) - 1);
        const bool full =
            folio_block_table_n_tok(t) == folio_block_table_capacity(t);
        while (full && r->slot != FOLIO_NO_SLOT &&
               folio_block_pool_n_free(s->pool) == 0)
            FOLIO_RETURN_IF(preempt(s, s->order[s->n_running - 1], step));
        if (r->slot == FOLIO_NO_SLOT)
            break; /* it was the last one itself */
        folio_block_growth g;
        FOLIO_RETURN_IF(folio_block_table_grow(t, 1, false, &g));
        note_growth(s, place, &g, false);
        if (full)
            folio_sched_sync_row(s, place, s->row_blks[place]);
        r->n_new = 1;
        n++;
    }
    *out_n = n;
    return FOLIO_OK;
}

/* ---- whose turn ---------------------------------------------------------- */

/* The class r counts as: waiting lifts it. */
static int32_t class_now(const folio_sched *s, const folio_request *r)
{
    if (!s->p.age_plans)
        return r->priority;
    const uint64_t up =
        (s->n_plans - r->arrival_plan) / (uint64_t)s->p.age_plans;
    const uint64_t room = (uint64_t)(FOLIO_PRIORITY_LAST - r->priority);
    return r->priority + (int32_t)FOLIO_MIN(up, room);
}

static bool goes_first(const folio_sched *s, const folio_request *a,
                       const folio_request *b)
{
    const int32_t ca = class_now(s, a), cb = class_now(s, b);
    return ca != cb ? ca > cb : a->arrival < b->arrival;
}

/* ---- prompts under way --------------------------------------------------- */

static int32_t chunk_of(const folio_sched *s, const folio_request *r,
                        int32_t left)
{
    int32_t n = FOLIO_MIN(folio_request_len(r) - r->n_sent, left);
    if (s->p.chunk_tok)
        n = FOLIO_MIN(n, s->p.chunk_tok);
    return n;
}

/* Gives what is left of the budget to prompts that run already. `order` is
 * sorted by class and arrival, so each class has its own first one and the
 * turns are a merge of those. */
static int32_t pick_chunks(folio_sched *s, int32_t left)
{
    int32_t at[FOLIO_N_CLASSES], end[FOLIO_N_CLASSES], i = 0;
    for (int32_t c = FOLIO_N_CLASSES; c-- > 0;) {
        at[c] = i;
        while (i < s->n_running && s->order[i]->priority == c)
            i++;
        end[c] = i;
    }
    while (left > 0) {
        folio_request *best = NULL;
        for (int32_t c = 0; c < FOLIO_N_CLASSES; c++) {
            while (at[c] < end[c] && !s->order[at[c]]->prefilling)
                at[c]++;
            if (at[c] < end[c] &&
                (!best || goes_first(s, s->order[at[c]], best)))
                best = s->order[at[c]];
        }
        if (!best)
            break;
        at[best->priority]++;
        best->n_new = chunk_of(s, best, left);
        left -= best->n_new;
    }
    return left;
}

/* ---- admit --------------------------------------------------------------- */

static folio_status admit(folio_sched *s, folio_request *r,
                          const folio_sched_hit *hit, int32_t left,
                          folio_step *step)
{
    static const folio_block_growth whole = {0, 0, {-1, -1}};
    folio_sched_dequeue(s, r);
    FOLIO_RETURN_IF(folio_request_move(r, FOLIO_REQUEST_RUNNING, &s->log));
    folio_sched_take_place(s, r);
    FOLIO_RETURN_IF(folio_sched_take_blocks(s, r, hit, step));
    note_growth(s, r->slot, &whole, true);
    r->prefilling = true;
    r->gained = 0;
    r->admitted_by = s->n_plans;
    r->n_cached += hit->n_tok;
    r->n_new = chunk_of(s, r, left);
    s->st.cached_tok += (uint64_t)hit->n_tok;
    s->st.admissions++;
    step->admitted[step->n_admitted++] = r;
    return FOLIO_OK;
}

/* The first one of the queues, or NULL; classes in `skip` are passed over. */
static folio_request *first_waiting(const folio_sched *s, uint32_t skip)
{
    folio_request *best = NULL;
    for (int32_t c = 0; c < FOLIO_N_CLASSES; c++) {
        folio_request *r = s->waiting[c].oldest;
        if (r && !(skip >> c & 1u) && (!best || goes_first(s, r, best)))
            best = r;
    }
    return best;
}

/* Nobody overtakes a head that lacks blocks, or it might lack them for ever. A
 * head that waits for somebody's prefix is sure to get it, so that only its own
 * class waits with it. */
static folio_status admit_waiting(folio_sched *s, int32_t left,
                                  folio_step *step)
{
    uint32_t skip = 0;
    while (s->n_running < s->p.max_seqs && left > 0) {
        folio_request *r = first_waiting(s, skip);
        if (!r)
            break;
        folio_sched_hit hit;
        const folio_sched_room room = folio_sched_find_room(s, r, &hit);
        if (room == FOLIO_ROOM_LACKS)
            break;
        if (room == FOLIO_ROOM_WAITS) {
            skip |= UINT32_C(1) << r->priority;
            continue;
        }
        FOLIO_RETURN_IF(admit(s, r, &hit, left, step));
        left -= r->n_new;
    }
    return FOLIO_OK;
}

/* ---- fill ---------------------------------------------------------------- */

/* Entry of the rows of the step before, still under way, that draws the newest
 * token of the text at `place`. */
static int32_t pending_row(const folio_sched *s, int32_t place)
{
    assert(s->n_steps == 2);
    return s->step[s->first_step].row_at[place];
}

static void add_row(folio_sched *s, folio_request *r, folio_step *step)
{
    const int32_t place = r->slot;
    folio_step_row *row = folio_step_add(
        step, r, r->n_new, s->tables + (int64_t)place * s->max_blks,
        place * s->max_blks, s->max_blks, s->p.block_tok);
    row->prefill = r->prefilling;
    if (step->tok[step->n_tok - 1] == FOLIO_TOK_PENDING)
        row->pending_row = pending_row(s, place);
    step->row_at[place] = row->row;
    s->st.issued++;
    s->st.forward_tok += (uint64_t)r->n_new;
    if (r->prefilling) {
        s->st.prefill_rows++;
        s->st.prefill_tok += (uint64_t)r->n_new;
        if (r->n_preempt) {
            s->st.recomputed_tok += (uint64_t)r->n_new;
            r->n_recomputed += r->n_new;
        }
    }
    r->n_sent += r->n_new;
    r->n_flight++;
    if (row->row >= 0) {
        r->n_ahead++;
        r->prefilling = false;
    }
}

static void fill(folio_sched *s, folio_step *step)
{
    for (int32_t place = 0; place < s->p.max_seqs; place++) {
        folio_request *r = s->at[place];
        if (!r || r->n_new == 0)
            continue;
        s->growth[place].seq = step->n_seq;
        add_row(s, r, step);
    }
    for (int32_t i = 0; i < s->n_grown; i++) {
        const folio_sched_growth *g = &s->growth[s->grown[i]];
        step->seq[g->seq].growth = g->growth;
        step->seq[g->seq].admitted = g->admitted;
        step->grown[step->n_grown++] = g->seq;
    }
    s->st.copied_blocks += (uint64_t)step->n_copies;
    s->st.steps += step->n_seq > 0;
}

/* ---- plan ---------------------------------------------------------------- */

static folio_status decide(folio_sched *s, folio_step *step)
{
    int32_t n_decode = 0;
    FOLIO_RETURN_IF(release_finished(s, step));
    FOLIO_RETURN_IF(grow_running(s, step, &n_decode));
    int32_t left = s->p.step_tok ? s->p.step_tok - n_decode : INT32_MAX;
    if (s->p.step_tok && n_decode > 0)
        left = FOLIO_MIN(left, s->prompt_tok);
    left = pick_chunks(s, left);
    FOLIO_RETURN_IF(admit_waiting(s, left, step));
    while (s->n_held_src > 0)
        FOLIO_RETURN_IF(
            folio_block_pool_give(s->pool, s->held_src[--s->n_held_src]));
    fill(s, step);
    step->n_waiting = s->n_waiting;
    return FOLIO_OK;
}

folio_status folio_sched_plan(folio_sched *s, uint64_t now_ns,
                              const folio_step **out)
{
    if (s->n_steps > s->p.run_ahead)
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "scheduler: plan: %d steps are under way, run_ahead "
                          "%d allows one more than that",
                          (int)s->n_steps, (int)s->p.run_ahead);
    folio_sched_free_released(s);
    folio_sched_expire(s, now_ns);
    s->n_steps++;
    folio_step *step = newest(s);
    folio_step_clear(step);
    step->number = s->n_plans++;
    s->n_grown = 0;
    const folio_status st = decide(s, step);
    step->under_way = st == FOLIO_OK && step->n_seq > 0;
    if (!step->under_way)
        s->n_steps--;
    FOLIO_RETURN_IF(st);
    if (s->n_steps == 0 && s->n_waiting > 0)
        /* Nothing runs, so the whole pool is there for the first one. */
        return folio_fail(&s->log, FOLIO_E_STUCK,
                          "scheduler: plan %llu is empty, %d requests wait "
                          "and %d of %d blocks are free",
                          (unsigned long long)step->number, (int)s->n_waiting,
                          (int)folio_block_pool_n_free(s->pool),
                          (int)s->p.n_blocks);
    *out = step;
    return FOLIO_OK;
}

/* ---- rollback ------------------------------------------------------------ */

/* Counters of a row that turned out not to be computed. */
static void uncount(folio_sched *s, const folio_step_row *row)
{
    folio_request *r = row->req;
    const uint64_t n = (uint64_t)row->n_new;
    s->st.issued--;
    s->st.forward_tok -= n;
    if (row->prefill) {
        s->st.prefill_rows--;
        s->st.prefill_tok -= n;
        if (r->n_preempt) {
            s->st.recomputed_tok -= n;
            r->n_recomputed -= row->n_new;
        }
    }
    r->n_flight--;
}

static folio_status unadmit(folio_sched *s, folio_request *r, int32_t first)
{
    r->n_cached -= first;
    s->st.cached_tok -= (uint64_t)first;
    s->st.admissions--;
    FOLIO_RETURN_IF(folio_sched_give_blocks(s, r, true));
    folio_sched_give_place(s, r);
    if (r->state == FOLIO_REQUEST_FINISHED)
        return FOLIO_OK; /* meanwhile; the next plan releases it */
    FOLIO_RETURN_IF(folio_request_move(r, FOLIO_REQUEST_WAITING, &s->log));
    folio_sched_enqueue(s, r);
    return FOLIO_OK;
}

folio_status folio_sched_rollback(folio_sched *s, const folio_step *step)
{
    if (s->n_steps == 0 || step != newest(s))
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "scheduler: rollback: step %llu is not the newest "
                          "one under way",
                          (unsigned long long)step->number);
    for (int32_t i = 0; i < step->n_seq; i++) {
        const folio_step_row *row = &step->seq[i];
        folio_request *r = row->req;
        uncount(s, row);
        if (row->epoch != r->epoch)
            continue;
        r->n_sent -= row->n_new;
        r->n_ahead -= row->row >= 0;
        r->prefilling = row->prefill;
    }
    for (int32_t i = step->n_grown; i-- > 0;) {
        const folio_step_row *row = &step->seq[step->grown[i]];
        folio_request *r = row->req;
        if (row->epoch != r->epoch)
            continue;
        if (row->admitted) {
            FOLIO_RETURN_IF(unadmit(s, r, row->first));
        } else {
            FOLIO_RETURN_IF(
                folio_block_table_undo(s->table[row->place], &row->growth));
            folio_sched_sync_row(s, row->place, s->row_blks[row->place]);
        }
    }
    folio_sched_forget_blocked(s);
    s->st.copied_blocks -= (uint64_t)step->n_copies;
    s->st.steps--;
    newest(s)->under_way = false;
    s->n_steps--;
    return FOLIO_OK;
}

/* ---- commit -------------------------------------------------------------- */

/* What is computed is published before the request may end. */
static folio_status settle_row(folio_sched *s, const folio_step_row *row,
                               int32_t next, folio_verdict verdict, bool *took)
{
    folio_request *r = row->req;
    r->n_flight--;
    if (row->epoch != r->epoch)
        return FOLIO_OK; /* it lost its place: computed for nobody */
    r->n_done = FOLIO_MIN(r->n_done + row->n_new, r->n_tok);
    s->row_tok[row->place] = r->n_done;
    if (s->p.prefix_cache)
        FOLIO_RETURN_IF(folio_sched_publish(s, r));
    if (row->row < 0)
        return FOLIO_OK;
    r->n_ahead--;
    if (r->state != FOLIO_REQUEST_RUNNING)
        return FOLIO_OK;
    if (verdict == FOLIO_VERDICT_ERROR || verdict == FOLIO_VERDICT_REFUSED) {
        folio_sched_finish(s, r, FOLIO_FINISH_ERROR,
                           verdict == FOLIO_VERDICT_ERROR ? FOLIO_E_INTERNAL
                                                          : FOLIO_E_INVAL);
        return FOLIO_OK;
    }
    FOLIO_RETURN_IF(
        folio_request_append(r, next, verdict == FOLIO_VERDICT_STOP, &s->log));
    s->st.collected++;
    *took = true;
    if (r->state == FOLIO_REQUEST_FINISHED)
        folio_sched_note_done(s, r);
    return FOLIO_OK;
}

folio_status folio_sched_commit(folio_sched *s, const folio_step *step,
                                const int32_t *next,
                                const folio_verdict *verdict, bool *took)
{
    if (s->n_steps == 0 || step != &s->step[s->first_step])
        return folio_fail(&s->log, FOLIO_E_INVAL,
                          "scheduler: commit: step %llu is not the oldest one "
                          "under way",
                          (unsigned long long)step->number);
    for (int32_t i = 0; i < step->n_seq; i++) {
        const folio_step_row *row = &step->seq[i];
        const int32_t k = row->row;
        bool mine = false;
        FOLIO_RETURN_IF(settle_row(
            s, row, k < 0 ? 0 : next[k],
            k < 0 || !verdict ? FOLIO_VERDICT_NONE : verdict[k], &mine));
        if (took && k >= 0)
            took[k] = mine;
    }
    s->step[s->first_step].under_way = false;
    s->first_step = (s->first_step + 1) % (s->p.run_ahead + 1);
    s->n_steps--;
    return FOLIO_OK;
}
