/* unit/test_engine_fail.c: the engine when something fails: passes that are
 * tried again, given up, a lost device, NaNs, no memory at any point; and that
 * nothing stays behind. */
#define _GNU_SOURCE /* mallinfo2 */
#include <dirent.h>
#include <malloc.h>
#include <math.h>
#include <string.h>

#include "device/dev.h"
#include "ops/sample_row.h"
#include "sched/sched_state.h"
#include "unit/engine_bed.h"
#include "unit/fail_alloc.h"

static eng b;
static const int32_t some[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static void set_up(void)
{
    eng_init(&b, "host", true);
    b.p.n_blocks = 64;
    b.p.budget = 16;
}

static void tear_down(void)
{
    eng_fini(&b);
}

TestSuite(engine_fail, .init = set_up, .fini = tear_down);

/* ---- a device that fails ------------------------------------------------- */

/* Calls `from` .. `from + n - 1`, counted over all three kinds, fail. */
static struct {
    int at, from, n;
    folio_status st;
    bool lost;
} fault;

static bool fails(void)
{
    const int at = fault.at++;
    return at >= fault.from && at < fault.from + fault.n;
}

static folio_status bad_forward(folio_runner *r, const folio_batch *x,
                                const folio_draw *d, const int32_t *open_row)
{
    return fails() ? fault.st : folio_runner_forward_draw(r, x, d, open_row);
}

static folio_status bad_read_drawn(folio_runner *r, int number,
                                   folio_drawn *out)
{
    return fails() ? fault.st : folio_runner_read_drawn(r, number, out);
}

static folio_status bad_read_rows(folio_runner *r, int32_t first, int32_t n,
                                  float *out)
{
    return fails() ? fault.st : folio_runner_read_rows(r, first, n, out);
}

static bool is_lost(const folio_runner *r)
{
    (void)r;
    return fault.lost;
}

static void break_at(int from, int n, folio_status st, bool lost)
{
    fault.at = 0;
    fault.from = from;
    fault.n = n;
    fault.st = st;
    fault.lost = lost;
    b.e->call = (folio_engine_calls){bad_forward, bad_read_drawn, bad_read_rows,
                                     is_lost};
}

enum { N_ASKS = 4 };

/* Greedy and sampled, with counts of what was said, one that needs the host,
 * short and in pieces, one of two completions. */
static void submit_asks(uint64_t ids[N_ASKS])
{
    for (int i = 0; i < N_ASKS; i++) {
        folio_engine_request r;
        folio_engine_request_default(&r);
        r.prompt = some + i;
        r.n_prompt = 8;
        r.max_new = 6;
        r.ignore_eos = 1;
        r.n = i == 2 ? 2 : 1;
        r.sample.temperature = i % 2 ? 1.2f : 0.0f;
        r.sample.typical_p = i == 3 ? .9f : 1.0f;
        r.sample.frequency_penalty = i == 2 ? 1.0f : 0.0f;
        ids[i] = eng_submit_as(&b, &r);
    }
}

Test(engine_fail, a_pass_that_fails_once_changes_no_text)
{
    uint64_t ids[N_ASKS];
    eng_answer want[N_ASKS];
    static const folio_status kinds[] = {FOLIO_E_NOMEM, FOLIO_E_DEVICE,
                                         FOLIO_E_BUILD};
    eng_open(&b);
    submit_asks(ids);
    eng_drain(&b, 60);
    for (int i = 0; i < N_ASKS; i++)
        want[i] = *eng_find(&b, ids[i], 0);
    for (int at = 0; at < 48; at++) {
        for (int n = 1; n <= 2; n++) {
            b.p.run_ahead = at % 2;
            eng_open(&b);
            break_at(at / 2, n, kinds[at % 3], false);
            submit_asks(ids);
            eng_drain(&b, 90);
            for (int i = 0; i < N_ASKS; i++) {
                const eng_answer *a = eng_find(&b, ids[i], 0);
                cr_assert_eq(a->n, want[i].n, "call %d fails %d times", at, n);
                cr_assert_eq(memcmp(a->ids, want[i].ids, sizeof a->ids), 0);
                cr_assert_str_eq(a->text, want[i].text);
            }
            eng_at_rest(&b);
            cr_assert_eq(eng_stats(&b).failed_steps > 0, fault.at > at / 2);
        }
    }
}

/* Counts of what was said are set anew for few rows a step. After a pass that
 * failed before it drew, the others are drawn on the host; then the device's
 * counts, which it was to have added to, must not be taken for those of the
 * text. */
Test(engine_fail, counts_of_a_pass_that_failed_are_not_trusted)
{
    enum { N = 4, LEN = 12 };
    eng_answer want[N];
    for (int at = -1; at < LEN; at++) { /* the step that fails; -1: none */
        uint64_t ids[N];
        folio_engine_request r;
        folio_engine_request_default(&r);
        eng_open(&b);
        b.e->runner->draw.lim.max_fresh = 1;
        for (int i = 0; i < N; i++) {
            r.prompt = some + i;
            r.n_prompt = 3;
            r.max_new = LEN;
            r.ignore_eos = 1;
            r.sample.frequency_penalty = 2;
            ids[i] = eng_submit_as(&b, &r);
        }
        for (int step = 0; step < at; step++)
            eng_step(&b);
        if (at >= 0)
            break_at(0, 1, FOLIO_E_NOMEM, false);
        eng_drain(&b, 3 * LEN);
        for (int i = 0; i < N; i++) {
            const eng_answer *a = eng_find(&b, ids[i], 0);
            if (at < 0)
                want[i] = *a;
            cr_assert_eq(a->n, LEN);
            for (int k = 0; k < LEN; k++)
                cr_assert_eq(a->ids[k], want[i].ids[k],
                             "step %d failed: answer %d, id %d: %d, expected "
                             "%d",
                             at, i, k, a->ids[k], want[i].ids[k]);
        }
        cr_assert_eq(eng_stats(&b).failed_steps, at >= 0);
        eng_at_rest(&b);
    }
}

Test(engine_fail, the_third_failure_in_a_row_ends_the_requests_of_the_step)
{
    uint64_t ids[N_ASKS];
    b.p.max_seqs = 2;
    eng_open(&b);
    for (int i = 0; i < N_ASKS; i++)
        ids[i] = eng_submit(&b, some + i, 8, 4);
    break_at(2, 3, FOLIO_E_NOMEM, false);
    eng_drain(&b, 60);
    for (int i = 0; i < N_ASKS; i++) {
        const eng_answer *a = eng_find(&b, ids[i], 0);
        cr_assert(a->ended);
        if (i < 2) {
            cr_assert_eq(a->end.reason, FOLIO_REASON_ERROR);
            cr_assert_eq(a->end.status, FOLIO_E_NOMEM);
            cr_assert_eq(a->n, 1);
        } else {
            cr_assert_eq(a->end.reason, FOLIO_REASON_LENGTH);
            cr_assert_eq(a->n, 4);
        }
    }
    cr_assert_eq(eng_stats(&b).failed_steps, 3);
    eng_at_rest(&b);
    /* It goes on. */
    const uint64_t next = eng_submit(&b, some, 4, 4);
    eng_drain(&b, 20);
    cr_assert_eq(eng_find(&b, next, 0)->n, 4);
}

Test(engine_fail, a_lost_device_ends_everything)
{
    uint64_t ids[N_ASKS], id = 0;
    b.p.max_seqs = 2;
    b.p.max_waiting = N_ASKS;
    eng_open(&b);
    for (int i = 0; i < N_ASKS; i++)
        ids[i] = eng_submit(&b, some + i, 8, 9);
    break_at(5, 1, FOLIO_E_DEVICE, true);
    folio_event ev[3]; /* less than there are */
    folio_status st = FOLIO_OK;
    int ended = 0, guard = 0;
    size_t n = 0;
    while ((st = folio_engine_step(b.e, ev, 3, &n)) == FOLIO_OK) {
        cr_assert_lt(guard++, 50);
        for (size_t i = 0; i < n; i++)
            if (ev[i].kind == FOLIO_EVENT_FINISHED) {
                cr_assert_eq(ev[i].status, FOLIO_E_DEVICE);
                cr_assert_eq(ev[i].reason, FOLIO_REASON_ERROR);
                ended++;
            }
    }
    cr_assert_eq(st, FOLIO_E_DEVICE);
    cr_assert_eq(ended, N_ASKS);
    cr_assert_eq(fault.at, 6, "something was enqueued after that");
    folio_engine_request r;
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 4;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_DEVICE);
    cr_assert_eq(folio_engine_cancel(b.e, ids[0]), FOLIO_E_DEVICE);
    cr_assert_eq(folio_engine_step(b.e, ev, 3, &n), FOLIO_E_DEVICE);
    cr_assert_eq(eng_stats(&b).failed, FOLIO_E_DEVICE);
    cr_assert(folio_engine_is_idle(b.e));
}

/* A clock that goes by one a reading; while it is read for the `at`th time
 * somebody submits. */
typedef struct busy_clock {
    uint64_t now;
    int n, at;
    uint64_t id; /* 0: refused */
} busy_clock;

static uint64_t busy_now(void *user)
{
    busy_clock *c = user;
    const uint64_t now = ++c->now;
    if (c->n++ == c->at) {
        folio_engine_request r;
        folio_engine_request_default(&r);
        r.prompt = some;
        r.n_prompt = 4;
        const folio_status st = folio_engine_submit(b.e, &r, &c->id);
        cr_assert(st == FOLIO_OK || st == FOLIO_E_DEVICE);
    }
    return now;
}

/* Whoever enters while the engine fails ends with it, and has not waited since
 * before the world began. */
Test(engine_fail, entering_a_failing_engine)
{
    int n_entered = 0, n_read = 1;
    for (int at = 0; at < n_read; at++) {
        busy_clock c = {.at = at + 1}; /* the first one is of the submit */
        b.p.now_ns = busy_now;
        b.p.clock_user = &c;
        eng_open(&b);
        const uint64_t id = eng_submit(&b, some, 8, 9);
        break_at(3, 1, FOLIO_E_DEVICE, true);
        folio_status st = FOLIO_OK;
        size_t n;
        for (int guard = 0; st == FOLIO_OK && guard < 20; guard++)
            st = eng_try(&b, &n);
        cr_assert_eq(st, FOLIO_E_DEVICE);
        cr_assert(folio_engine_is_idle(b.e));
        cr_assert(eng_find(&b, id, 0)->ended);
        if (c.id) {
            const eng_answer *a = eng_find(&b, c.id, 0);
            cr_assert(a->ended);
            cr_assert_eq(a->end.status, FOLIO_E_DEVICE);
            cr_assert_leq(a->end.queue_ns, c.now, "reading %d: %llu", at,
                          (unsigned long long)a->end.queue_ns);
            cr_assert_leq(a->end.prefill_ns, c.now);
            n_entered++;
        }
        n_read = c.n - 1;
    }
    cr_assert_gt(n_entered, 4);
}

/* An invariant that breaks is INTERNAL, whatever the call that found it says.
 */
Test(engine_fail, a_broken_invariant_is_internal)
{
    for (int way = 0; way < 2; way++) {
        size_t n;
        eng_open(&b);
        const uint64_t id = eng_submit(&b, some, 8, 9);
        if (way == 1)
            eng_step(&b);
        if (way == 0) /* the door let it in: there must be room */
            b.e->sched->p.max_requests = 0;
        else /* nobody else touches the scheduler's steps */
            b.e->sched->n_steps = 2;
        eng_step(&b);
        cr_assert_eq(eng_find(&b, id, 0)->end.status, FOLIO_E_INTERNAL);
        cr_assert_eq(eng_stats(&b).failed, FOLIO_E_INTERNAL);
        cr_assert_eq(eng_try(&b, &n), FOLIO_E_INTERNAL);
        cr_assert_neq(b.tiny.ear.err[0], '\0');
    }
}

/* ---- NaN ----------------------------------------------------------------- */

/* The results of the third step say that row 1 holds NaNs. */
static folio_status nan_read_drawn(folio_runner *r, int number,
                                   folio_drawn *out)
{
    static int32_t words[8 * FOLIO_SAMPLE_OUT];
    FOLIO_RETURN_IF(folio_runner_read_drawn(r, number, out));
    if (fault.at++ != 2)
        return FOLIO_OK;
    if (!out->out) {
        memcpy(words, out->n_nan, 3 * sizeof *words);
        words[1] = 5;
        out->n_nan = words;
    } else {
        memcpy(words, out->out, 3 * FOLIO_SAMPLE_OUT * sizeof *words);
        words[FOLIO_SAMPLE_OUT + SAMPLE_FLAGS] = SAMPLE_BAD;
        words[FOLIO_SAMPLE_OUT + SAMPLE_ID] = -1;
        out->out = words;
    }
    return FOLIO_OK;
}

static int32_t poison(void *user, folio_logits_row *row)
{
    (void)user;
    if (row->n_tok - row->n_prompt == 2)
        row->logits[7] = NAN;
    return FOLIO_LOGITS_DRAW;
}

/* The best ids, ids drawn on the device, and rows seen by the host. */
Test(engine_fail, nans_end_their_own_request)
{
    for (int way = 0; way < 6; way++) {
        folio_engine_request r;
        uint64_t ids[3];
        b.p.run_ahead = way / 3;
        eng_open(&b);
        for (int i = 0; i < 3; i++) {
            folio_engine_request_default(&r);
            r.prompt = some + i;
            r.n_prompt = 4;
            r.max_new = 6;
            r.ignore_eos = 1;
            r.sample.temperature = way % 3 == 1 ? 1.0f : 0.0f;
            r.logits = way % 3 == 2 && i == 1 ? poison : NULL;
            ids[i] = eng_submit_as(&b, &r);
        }
        fault.at = 0;
        if (way % 3 < 2)
            b.e->call.read_drawn = nan_read_drawn;
        eng_drain(&b, 20);
        for (int i = 0; i < 3; i++) {
            const eng_answer *a = eng_find(&b, ids[i], 0);
            cr_assert_eq(a->n, i == 1 ? 2 : 6, "way %d, %d: %d ids", way, i,
                         a->n);
            cr_assert_eq(a->end.reason,
                         i == 1 ? FOLIO_REASON_ERROR : FOLIO_REASON_LENGTH);
            const folio_status bad =
                way % 3 == 2 ? FOLIO_E_INVAL : FOLIO_E_INTERNAL;
            cr_assert_eq(a->end.status, i == 1 ? bad : FOLIO_OK);
        }
        eng_at_rest(&b);
    }
}

static folio_status nan_read_rows(folio_runner *r, int32_t first, int32_t n,
                                  float *out)
{
    FOLIO_RETURN_IF(folio_runner_read_rows(r, first, n, out));
    if (fault.at++ == 2)
        out[7] = NAN;
    return FOLIO_OK;
}

static int32_t choose_three(void *user, folio_logits_row *row)
{
    ++*(int *)user;
    (void)row;
    return 3;
}

/* Whoever chooses the id: a NaN of the model is nothing to choose from. */
Test(engine_fail, a_callback_that_chooses_is_not_asked_of_nans)
{
    folio_engine_request r;
    int asked = 0;
    eng_open(&b);
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 4;
    r.max_new = 6;
    r.ignore_eos = 1;
    r.logits = choose_three;
    r.logits_user = &asked;
    fault.at = 0;
    b.e->call.read_rows = nan_read_rows;
    const uint64_t id = eng_submit_as(&b, &r);
    eng_drain(&b, 20);
    const eng_answer *a = eng_find(&b, id, 0);
    cr_assert_eq(a->n, 2);
    cr_assert_eq(asked, 2);
    cr_assert_eq(a->end.status, FOLIO_E_INTERNAL);
    cr_assert_not_null(strstr(b.tiny.ear.err, "id 7"), "%s", b.tiny.ear.err);
    eng_at_rest(&b);
}

/* Leaves a NaN and chooses all the same. */
static int32_t spoil_and_choose(void *user, folio_logits_row *row)
{
    (void)user;
    row->logits[7] = NAN;
    return 3;
}

/* Asked for its log-probabilities, the row is what its callback left. */
Test(engine_fail, a_row_spoilt_by_its_callback_is_its_callers_fault)
{
    folio_engine_request r;
    eng_open(&b);
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 4;
    r.logits = spoil_and_choose;
    r.logprobs = 2;
    const uint64_t id = eng_submit_as(&b, &r);
    eng_drain(&b, 20);
    cr_assert_eq(eng_find(&b, id, 0)->end.reason, FOLIO_REASON_ERROR);
    cr_assert_eq(eng_find(&b, id, 0)->end.status, FOLIO_E_INVAL);
    eng_at_rest(&b);
}

/* The results of the first step say that row 3 holds NaNs. */
static folio_status nan_in_prompt(folio_runner *r, int number, folio_drawn *out)
{
    static int32_t words[16 * FOLIO_SAMPLE_OUT];
    FOLIO_RETURN_IF(folio_runner_read_drawn(r, number, out));
    if (fault.at++ != 0)
        return FOLIO_OK;
    cr_assert_not_null(out->out);
    memcpy(words, out->out, 8 * FOLIO_SAMPLE_OUT * sizeof *words);
    words[3 * FOLIO_SAMPLE_OUT + SAMPLE_FLAGS] = SAMPLE_BAD;
    out->out = words;
    return FOLIO_OK;
}

/* A prompt that cannot be scored ends its request with all its completions, and
 * nobody else. */
Test(engine_fail, nans_in_a_scored_prompt_end_the_request)
{
    folio_engine_request r;
    b.p.prompt_logprobs = 1;
    for (int ahead = 0; ahead < 2; ahead++) {
        b.p.run_ahead = ahead;
        eng_open(&b);
        folio_engine_request_default(&r);
        r.prompt = some;
        r.n_prompt = 7;
        r.max_new = 5;
        r.n = 3;
        r.ignore_eos = 1;
        r.prompt_logprobs = 1;
        const uint64_t id = eng_submit_as(&b, &r);
        const uint64_t other = eng_submit(&b, some + 1, 4, 5);
        fault.at = 0;
        b.e->call.read_drawn = nan_in_prompt;
        for (int guard = 0; !folio_engine_is_idle(b.e); guard++) {
            folio_event ev[32];
            size_t n = 0;
            cr_assert_lt(guard, 20);
            TINY_OK(folio_engine_step(b.e, ev, FOLIO_COUNT(ev), &n));
            for (size_t i = 0; i < n; i++)
                if (ev[i].kind == FOLIO_EVENT_PROMPT)
                    for (int32_t k = 1; k < 7; k++)
                        cr_assert_eq(isnan(ev[i].scores[k].logprob), k == 4);
                else
                    eng_note(&b, &ev[i]);
        }
        for (int k = 0; k < 3; k++) {
            const eng_answer *a = eng_find(&b, id, k);
            cr_assert(a->ended);
            cr_assert_eq(a->end.reason, FOLIO_REASON_ERROR);
            cr_assert_eq(a->end.status, FOLIO_E_INTERNAL);
            /* The first one drew in that very step. */
            cr_assert_eq(a->n, k == 0, "ahead %d, completion %d: %d ids", ahead,
                         k, a->n);
        }
        cr_assert_eq(eng_find(&b, other, 0)->n, 5);
        eng_at_rest(&b);
    }
}

/* ---- memory -------------------------------------------------------------- */

Test(engine_fail, open_without_memory)
{
    folio_engine *e = NULL;
    const uint64_t live = folio_device_live_bytes(b.dev);
    int nth = 1;
    b.p.trace_steps = 4;
    for (;; nth++) {
        fail_alloc_arm(nth);
        const folio_status st = folio_engine_open(b.model, b.tok, &b.p, &e);
        if (!fail_alloc_disarm()) {
            TINY_OK(st);
            break;
        }
        if (st == FOLIO_OK) { /* something that is not needed */
            folio_engine_close(&e);
            continue;
        }
        cr_assert_eq(st, FOLIO_E_NOMEM, "allocation %d: %s", nth,
                     folio_status_name(st));
        cr_assert_null(e);
        cr_assert_eq(folio_device_live_bytes(b.dev), live);
    }
    cr_assert_gt(nth, 50);
    folio_engine_close(&e);
    cr_assert_eq(folio_device_live_bytes(b.dev), live);
}

Test(engine_fail, submit_without_memory)
{
    static const char *const stop[] = {"xyz"};
    int32_t ban[] = {3};
    folio_engine_request r;
    int nth = 1;
    eng_open(&b);
    const uint64_t other = eng_submit(&b, some, 8, 100);
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 8;
    r.max_new = 3;
    r.n = 2;
    r.stop = stop;
    r.n_stop = 1;
    r.sample.banned = ban;
    r.sample.n_banned = 1;
    for (;; nth++) {
        uint64_t id = 77;
        fail_alloc_arm(nth);
        const folio_status st = folio_engine_submit(b.e, &r, &id);
        if (!fail_alloc_disarm())
            break;
        cr_assert_eq(st, FOLIO_E_NOMEM);
        cr_assert_eq(id, 77);
    }
    cr_assert_gt(nth, 8);
    eng_drain(&b, 9 + 100);
    cr_assert_eq(eng_find(&b, other, 0)->end.reason, FOLIO_REASON_LENGTH);
    eng_at_rest(&b);
}

Test(engine_fail, steps_allocate_nothing)
{
    eng_open(&b);
    uint64_t ids[N_ASKS];
    submit_asks(ids);
    while (!folio_engine_is_idle(b.e)) {
        static folio_event ev[64];
        size_t n;
        fail_alloc_arm(1);
        const folio_status st = folio_engine_step(b.e, ev, 64, &n);
        cr_assert_not(fail_alloc_disarm(), "a step allocates");
        TINY_OK(st);
    }
}

static int count_handles(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    cr_assert_not_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

Test(engine_fail, fifty_rounds_leave_nothing)
{
    const uint64_t live = folio_device_live_bytes(b.dev);
    size_t used = 0;
    int handles = 0;
    for (int round = 0; round < 55; round++) {
        uint64_t ids[N_ASKS];
        if (round == 5) {
            used = mallinfo2().uordblks;
            handles = count_handles();
        }
        eng_open(&b);
        submit_asks(ids);
        if (round % 2)
            eng_drain(&b, 60);
        else
            eng_step(&b);
        folio_engine_close(&b.e);
        cr_assert_eq(folio_device_live_bytes(b.dev), live);
    }
    /* What the allocator keeps for its threads differs a little. */
    cr_assert_leq(mallinfo2().uordblks, used + 8192);
    cr_assert_eq(count_handles(), handles);
}

Test(engine_fail, a_thousand_requests_leave_memory_flat)
{
    size_t used = 0;
    eng_open(&b);
    for (int round = 0; round < 250; round++) {
        uint64_t ids[N_ASKS];
        if (round == 20)
            used = mallinfo2().uordblks;
        eng_forget(&b);
        submit_asks(ids);
        eng_drain(&b, 60);
    }
    /* The jobs of the last round are freed by the next step. */
    cr_assert_leq(mallinfo2().uordblks, used + 4096);
}
