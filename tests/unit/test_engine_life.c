/* unit/test_engine_life.c: what becomes of requests: ends of every kind in
 * every state, the bounded queue, shared prompts, and how much work it takes.
 */
#include <math.h>
#include <string.h>

#include "unit/engine_bed.h"
#include "unit/text_fixture.h"

static eng b;

static uint64_t fake_now(void *user)
{
    return ((eng *)user)->clock;
}

static void set_up(void)
{
    eng_init(&b, "host", true);
    b.clock = 1;
    b.p.now_ns = fake_now;
    b.p.clock_user = &b;
}

static void tear_down(void)
{
    eng_fini(&b);
}

TestSuite(engine_life, .init = set_up, .fini = tear_down);

static const int32_t some[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static void expect_end(uint64_t id, int32_t k, folio_finish_reason why,
                       folio_status st)
{
    const eng_answer *a = eng_find(&b, id, k);
    cr_assert(a->ended, "request %llu has not ended", (unsigned long long)id);
    cr_assert_eq(a->end.reason, why, "ended by %s, expected %s",
                 folio_finish_reason_name(a->end.reason),
                 folio_finish_reason_name(why));
    cr_assert_eq(a->end.status, st);
}

/* ---- cancel -------------------------------------------------------------- */

Test(engine_life, cancel_before_the_first_step)
{
    eng_open(&b);
    const uint64_t id = eng_submit(&b, some, 4, 8);
    TINY_OK(folio_engine_cancel(b.e, id));
    TINY_OK(folio_engine_cancel(b.e, id));
    eng_drain(&b, 3);
    expect_end(id, 0, FOLIO_REASON_ABORT, FOLIO_E_CANCELED);
    cr_assert_eq(eng_find(&b, id, 0)->n, 0);
    cr_assert_eq(eng_stats(&b).steps, 0);
    cr_assert_eq(folio_engine_cancel(b.e, id), FOLIO_E_NOT_FOUND);
    eng_at_rest(&b);
}

Test(engine_life, cancel_one_that_waits)
{
    b.p.max_seqs = 1;
    eng_open(&b);
    const uint64_t first = eng_submit(&b, some, 4, 8);
    const uint64_t second = eng_submit(&b, some + 1, 4, 8);
    const uint64_t third = eng_submit(&b, some + 2, 4, 8);
    eng_step(&b);
    cr_assert_eq(eng_stats(&b).n_waiting, 2);
    TINY_OK(folio_engine_cancel(b.e, second));
    eng_step(&b);
    expect_end(second, 0, FOLIO_REASON_ABORT, FOLIO_E_CANCELED);
    eng_drain(&b, 30);
    expect_end(first, 0, FOLIO_REASON_LENGTH, FOLIO_OK);
    expect_end(third, 0, FOLIO_REASON_LENGTH, FOLIO_OK);
    cr_assert_eq(eng_find(&b, third, 0)->n, 8);
    eng_at_rest(&b);
}

Test(engine_life, cancel_in_the_middle_of_a_prompt)
{
    b.p.max_seqs = 2;
    b.p.budget = 4;
    eng_open(&b);
    const uint64_t id = eng_submit(&b, some, 12, 8);
    eng_step(&b);
    cr_assert_eq(eng_stats(&b).prefill_tok, 4);
    cr_assert_gt(eng_stats(&b).blocks_held, 0);
    TINY_OK(folio_engine_cancel(b.e, id));
    eng_drain(&b, 3);
    expect_end(id, 0, FOLIO_REASON_ABORT, FOLIO_E_CANCELED);
    cr_assert_eq(eng_stats(&b).prefill_tok, 4, "it went on");
    eng_at_rest(&b);
}

Test(engine_life, cancel_a_running_one_stops_early_and_keeps_its_text)
{
    eng_open(&b);
    const uint64_t id = eng_submit(&b, some, 4, 100);
    const uint64_t other = eng_submit(&b, some + 4, 4, 10);
    for (int i = 0; i < 5; i++)
        eng_step(&b);
    TINY_OK(folio_engine_cancel(b.e, id));
    eng_drain(&b, 12);
    expect_end(id, 0, FOLIO_REASON_ABORT, FOLIO_E_CANCELED);
    const eng_answer *a = eng_find(&b, id, 0);
    cr_assert_eq(a->n, 5);
    cr_assert_gt(a->n_text, 0);
    expect_end(other, 0, FOLIO_REASON_LENGTH, FOLIO_OK);
    cr_assert_lt(eng_stats(&b).steps, 15);
    eng_at_rest(&b);
}

Test(engine_life, cancel_a_preempted_one)
{
    b.p.n_blocks = 6;
    b.p.prefix_cache = 0;
    eng_open(&b);
    const uint64_t first = eng_submit(&b, some, 4, 20);
    const uint64_t second = eng_submit(&b, some + 4, 4, 20);
    int n = 0;
    while (eng_stats(&b).preemptions == 0) {
        cr_assert_lt(n++, 30);
        eng_step(&b);
    }
    const int32_t had = eng_find(&b, second, 0)->n;
    cr_assert_gt(had, 0);
    TINY_OK(folio_engine_cancel(b.e, second));
    eng_step(&b);
    expect_end(second, 0, FOLIO_REASON_ABORT, FOLIO_E_CANCELED);
    cr_assert_eq(eng_find(&b, second, 0)->n, had);
    cr_assert_eq(eng_find(&b, second, 0)->end.n_preempt, 1);
    eng_drain(&b, 30);
    expect_end(first, 0, FOLIO_REASON_LENGTH, FOLIO_OK);
    eng_at_rest(&b);
}

Test(engine_life, cancel_one_that_has_just_ended)
{
    eng_open(&b);
    const uint64_t id = eng_submit(&b, some, 4, 1);
    folio_event ev[1];
    size_t n = 0;
    TINY_OK(folio_engine_step(b.e, ev, 1, &n));
    cr_assert_eq(n, 1);
    cr_assert_eq(ev[0].kind, FOLIO_EVENT_TOKEN);
    /* Its end is there, but not handed out. */
    TINY_OK(folio_engine_cancel(b.e, id));
    TINY_OK(folio_engine_step(b.e, ev, 1, &n));
    cr_assert_eq(n, 1);
    cr_assert_eq(ev[0].reason, FOLIO_REASON_LENGTH);
    cr_assert_eq(folio_engine_cancel(b.e, id), FOLIO_E_NOT_FOUND);
    eng_drain(&b, 2);
    eng_at_rest(&b);
}

Test(engine_life, close_with_requests_in_every_state)
{
    b.p.max_seqs = 2;
    b.p.budget = 8;
    eng_open(&b);
    eng_submit(&b, some, 4, 1);
    eng_submit(&b, some, 4, 50);
    eng_submit(&b, some, 12, 50);
    eng_step(&b);
    eng_submit(&b, some, 4, 50);
    folio_engine_close(&b.e);
    cr_assert_null(b.e);
    folio_engine_close(&b.e);
    folio_engine_close(NULL);
}

/* ---- deadline ------------------------------------------------------------ */

Test(engine_life, deadlines_end_waiting_and_running_ones)
{
    b.p.max_seqs = 1;
    eng_open(&b);
    folio_engine_request r;
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 4;
    r.max_new = 50;
    r.ignore_eos = 1;
    r.deadline_ns = 1000;
    const uint64_t running = eng_submit_as(&b, &r);
    r.deadline_ns = 500;
    const uint64_t waiting = eng_submit_as(&b, &r);
    r.deadline_ns = UINT64_MAX;
    r.max_new = 2;
    const uint64_t patient = eng_submit_as(&b, &r);
    eng_step(&b);
    b.clock += 499;
    eng_step(&b);
    cr_assert_not(eng_find(&b, waiting, 0)->ended);
    b.clock += 1;
    eng_step(&b);
    expect_end(waiting, 0, FOLIO_REASON_DEADLINE, FOLIO_E_DEADLINE);
    cr_assert_eq(eng_find(&b, waiting, 0)->n, 0);
    cr_assert_eq(eng_find(&b, waiting, 0)->end.queue_ns, 500);
    cr_assert_not(eng_find(&b, running, 0)->ended);
    b.clock += 500;
    eng_drain(&b, 6);
    expect_end(running, 0, FOLIO_REASON_DEADLINE, FOLIO_E_DEADLINE);
    cr_assert_eq(eng_find(&b, running, 0)->n, 3);
    expect_end(patient, 0, FOLIO_REASON_LENGTH, FOLIO_OK);
    eng_at_rest(&b);
}

Test(engine_life, times_are_those_of_the_last_id)
{
    b.p.max_seqs = 1;
    eng_open(&b);
    const uint64_t first = eng_submit(&b, some, 4, 3);
    const uint64_t second = eng_submit(&b, some, 4, 2);
    for (int i = 0; !folio_engine_is_idle(b.e) && i < 20; i++) {
        b.clock += 10;
        eng_step(&b);
    }
    const folio_event *a = &eng_find(&b, first, 0)->end;
    cr_assert_eq(a->queue_ns, 10);
    cr_assert_eq(a->prefill_ns, 0);
    cr_assert_eq(a->decode_ns, 20);
    a = &eng_find(&b, second, 0)->end;
    cr_assert_eq(a->queue_ns, 40);
    cr_assert_eq(a->decode_ns, 10);
}

/* A clock may begin at 0. */
Test(engine_life, times_on_a_clock_that_begins_at_nought)
{
    b.clock = 0;
    b.p.trace_steps = 4;
    eng_open(&b);
    const uint64_t id = eng_submit(&b, some, 4, 3);
    eng_step(&b);
    b.clock = 10;
    eng_drain(&b, 9);
    const folio_event *a = &eng_find(&b, id, 0)->end;
    cr_assert_eq(a->queue_ns, 0);
    cr_assert_eq(a->prefill_ns, 0);
    cr_assert_eq(a->decode_ns, 10);
    for (int i = 0; i < 3; i++)
        cr_assert(b.e->span[i].begin && b.e->span[i].planned &&
                  b.e->span[i].sampled && b.e->span[i].end);
}

/* ---- the door ------------------------------------------------------------ */

Test(engine_life, the_queue_is_bounded)
{
    b.p.max_seqs = 2;
    b.p.max_waiting = 3;
    eng_open(&b);
    folio_engine_request r;
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 4;
    r.max_new = 4;
    r.ignore_eos = 1;
    uint64_t id = 77;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 5; i++)
            eng_submit_as(&b, &r);
        b.tiny.ear.n_err = 0;
        cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_FULL);
        cr_assert_eq(id, 77);
        cr_assert_eq(b.tiny.ear.n_err, 0, "FULL is flow control");
        eng_drain(&b, 100);
    }
    r.n = 5;
    eng_submit_as(&b, &r);
    r.n = 6;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
    eng_drain(&b, 100);
    eng_at_rest(&b);
}

Test(engine_life, what_can_never_fit_is_refused_with_both_numbers)
{
    b.p.n_blocks = 4;
    eng_open(&b);
    folio_engine_request r;
    uint64_t id;
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 12;
    r.ignore_eos = 1;
    r.max_new = 5; /* 16 are cached: the last one never is */
    eng_submit_as(&b, &r);
    r.max_new = 6;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_TOO_LARGE);
    cr_assert_not_null(strstr(b.tiny.ear.err, "18"));
    cr_assert_not_null(strstr(b.tiny.ear.err, "17"));
    r.max_new = -1;
    const uint64_t rest = eng_submit_as(&b, &r);
    eng_drain(&b, 30);
    cr_assert_eq(eng_find(&b, rest, 0)->n, 5);
    eng_at_rest(&b);
}

Test(engine_life, bad_requests_are_refused_by_name)
{
    static const int32_t beyond[] = {1, TINY_VOCAB}, below[] = {-1};
    static const struct {
        const char *says;
        size_t at;
        int32_t value;
    } bad[] = {
#define AT(f) offsetof(folio_engine_request, f)
        {"size", AT(size), 3},
        {"prompt", AT(n_prompt), 0},
        {"max_new", AT(max_new), 0},
        {"max_new", AT(max_new), -2},
        {"n is", AT(n), 0},
        {"n is", AT(n), 100000},
        {"stop_ids", AT(n_stop_ids), 1},
        {"stop_ids", AT(n_stop_ids), -1},
        {"priority", AT(priority), 8},
        {"priority", AT(priority), -1},
        {"salt", AT(salt_bytes), 65},
        {"decode_flags", AT(decode_flags), 8},
        {"ignore_eos", AT(ignore_eos), 7},
#undef AT
    };
    uint64_t id = 77;
    eng_open(&b);
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++) {
        folio_engine_request r;
        folio_engine_request_default(&r);
        r.prompt = some;
        r.n_prompt = 4;
        memcpy((char *)&r + bad[i].at, &bad[i].value, sizeof bad[i].value);
        b.tiny.ear.err[0] = '\0';
        cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL, "%zu",
                     i);
        cr_assert_not_null(strstr(b.tiny.ear.err, bad[i].says), "%s: %s",
                           bad[i].says, b.tiny.ear.err);
    }
    folio_engine_request r;
    folio_engine_request_default(&r);
    r.n_prompt = 1;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
    r.prompt = below;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_RANGE);
    r.prompt = beyond;
    r.n_prompt = 2;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_RANGE);
    r.prompt = some;
    r.n_stop_ids = 1;
    r.stop_ids = below;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_RANGE);
    r.n_stop_ids = 2;
    r.stop_ids = beyond;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_RANGE);
    cr_assert_not_null(strstr(b.tiny.ear.err, "stop_ids[1]"));
    r.n_stop_ids = 0;
    r.sample.temperature = -1.0f;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
    cr_assert_eq(folio_engine_submit(b.e, NULL, &id), FOLIO_E_INVAL);
    cr_assert_eq(folio_engine_submit(NULL, &r, &id), FOLIO_E_INVAL);
    cr_assert_eq(id, 77);
    cr_assert(folio_engine_is_idle(b.e));
    cr_assert_eq(folio_engine_cancel(b.e, 1), FOLIO_E_NOT_FOUND);
}

/* What no draw could come of is said at the door, not by the step. */
Test(engine_life, bans_and_biases_that_leave_nothing_are_refused)
{
    static int32_t all[TINY_VOCAB];
    const folio_logit_bias sums[] = {{5, 3e38f}, {6, 1.0f}, {5, 3e38f}};
    const folio_logit_bias last[] = {{63, -INFINITY}};
    uint64_t id = 77;
    eng_open(&b);
    for (int32_t i = 0; i < TINY_VOCAB; i++)
        all[i] = i;
    folio_engine_request r;
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 4;
    r.max_new = 2;
    r.sample.banned = all;
    r.sample.n_banned = TINY_VOCAB;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
    cr_assert_not_null(strstr(b.tiny.ear.err, "all 64 ids are banned"));
    r.sample.n_banned = TINY_VOCAB - 1; /* and the last one by its bias */
    r.sample.logit_bias = last;
    r.sample.n_logit_bias = 1;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
    r.sample.n_logit_bias = 0; /* the last one ends the text */
    r.sample.min_new_tokens = 1;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
    cr_assert_not_null(strstr(b.tiny.ear.err, "min_new_tokens"));
    r.sample.min_new_tokens = 0;
    const uint64_t one = eng_submit_as(&b, &r);
    r.sample.n_banned = 0;
    r.sample.logit_bias = sums;
    r.sample.n_logit_bias = 3;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_RANGE);
    cr_assert_not_null(strstr(b.tiny.ear.err, "id 5"), "%s", b.tiny.ear.err);
    r.sample.n_logit_bias = 2;
    const uint64_t two = eng_submit_as(&b, &r);
    cr_assert_eq(id, 77);
    eng_drain(&b, 20);
    expect_end(one, 0, FOLIO_REASON_STOP, FOLIO_OK);
    cr_assert_eq(eng_find(&b, one, 0)->ids[0], 63);
    expect_end(two, 0, FOLIO_REASON_LENGTH, FOLIO_OK);
    cr_assert_eq(eng_find(&b, two, 0)->ids[0], 5);
}

/* ---- events -------------------------------------------------------------- */

Test(engine_life, events_come_one_by_one_as_well)
{
    eng_open(&b);
    const uint64_t x = eng_submit(&b, some, 4, 6);
    const uint64_t y = eng_submit(&b, some + 3, 5, 6);
    eng_drain(&b, 30);
    const eng_answer wx = *eng_find(&b, x, 0), wy = *eng_find(&b, y, 0);
    eng_open(&b);
    eng_submit(&b, some, 4, 6);
    eng_submit(&b, some + 3, 5, 6);
    char text[2][256] = {{0}};
    int32_t n_ids[2] = {0};
    int guard = 0;
    while (!folio_engine_is_idle(b.e)) {
        folio_event ev;
        size_t n = 9;
        cr_assert_lt(guard++, 60);
        TINY_OK(folio_engine_step(b.e, &ev, 1, &n));
        if (n == 0)
            continue;
        const int k = ev.request == 2;
        strncat(text[k], ev.text ? ev.text : "", ev.n_text);
        if (ev.kind == FOLIO_EVENT_TOKEN)
            cr_assert_eq(ev.tok, (k ? wy : wx).ids[n_ids[k]++]);
    }
    cr_assert_str_eq(text[0], wx.text);
    cr_assert_str_eq(text[1], wy.text);
    cr_assert_eq(eng_stats(&b).steps, 6);
}

Test(engine_life, bad_calls_of_step)
{
    folio_event ev;
    size_t n = 0;
    eng_open(&b);
    cr_assert_eq(folio_engine_step(NULL, &ev, 1, &n), FOLIO_E_INVAL);
    cr_assert_eq(folio_engine_step(b.e, NULL, 1, &n), FOLIO_E_INVAL);
    cr_assert_eq(folio_engine_step(b.e, &ev, 0, &n), FOLIO_E_INVAL);
    cr_assert_eq(folio_engine_step(b.e, &ev, 1, NULL), FOLIO_E_INVAL);
    TINY_OK(folio_engine_step(b.e, &ev, 1, &n));
    cr_assert_eq(n, 0);
}

/* ---- text ---------------------------------------------------------------- */

/* Chooses the ids of a list, one after the other. */
typedef struct script {
    const int32_t *ids;
    int32_t n;
} script;

static int32_t follow(void *user, folio_logits_row *row)
{
    const script *s = user;
    const int32_t at = row->n_tok - row->n_prompt;
    cr_assert_eq(row->n_vocab, TINY_VOCAB);
    return at < s->n ? s->ids[at] : FOLIO_LOGITS_DRAW;
}

static uint64_t submit_script(const script *s, int32_t max_new, int32_t n)
{
    folio_engine_request r;
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 4;
    r.max_new = max_new;
    r.n = n;
    r.logits = follow;
    r.logits_user = (void *)s;
    return eng_submit_as(&b, &r);
}

enum { ID_F0 = 54, ID_9F, ID_98, ID_80, ID_EOS = 63 };

Test(engine_life, text_is_held_until_a_character_is_whole)
{
    static const int32_t ids[] = {0, ID_F0, ID_9F, ID_98, ID_80, 1};
    const script s = {ids, 6};
    static const char *const want[] = {"a", "", "", "", "\xf0\x9f\x98\x80",
                                       "b"};
    eng_open(&b);
    submit_script(&s, 6, 1);
    for (int i = 0; i < 6; i++) {
        folio_event ev[2];
        size_t n;
        TINY_OK(folio_engine_step(b.e, ev, 2, &n));
        cr_assert_eq(n, i == 5 ? 2 : 1);
        cr_assert_eq(ev[0].n_text, strlen(want[i]), "id %d: %zu bytes", i,
                     ev[0].n_text);
        cr_assert_eq(memcmp(ev[0].text, want[i], ev[0].n_text), 0);
    }
}

Test(engine_life, an_open_character_comes_with_the_end)
{
    static const int32_t ids[] = {0, ID_F0, ID_9F};
    const script s = {ids, 3};
    eng_open(&b);
    const uint64_t id = submit_script(&s, 3, 1);
    eng_drain(&b, 9);
    cr_assert_str_eq(eng_find(&b, id, 0)->text, "a\xef\xbf\xbd");
}

/* What comes with the end may complete a stop string, too. */
Test(engine_life, a_stop_string_that_the_end_completes)
{
    static const int32_t ids[] = {0, 1, ID_F0};
    static const char *const stop[] = {"zz", "b\xef\xbf\xbd"};
    const script s = {ids, 3};
    for (int n = 2; n <= 3; n++) {
        folio_engine_request r;
        eng_open(&b);
        folio_engine_request_default(&r);
        r.prompt = some;
        r.n_prompt = 4;
        r.max_new = n;
        r.logits = follow;
        r.logits_user = (void *)&s;
        r.stop = stop;
        r.n_stop = 2;
        const uint64_t id = eng_submit_as(&b, &r);
        eng_drain(&b, 9);
        const eng_answer *a = eng_find(&b, id, 0);
        cr_assert_str_eq(a->text, n == 2 ? "ab" : "a");
        cr_assert_eq(a->end.stop, n == 2 ? -1 : 1);
        expect_end(id, 0, n == 2 ? FOLIO_REASON_LENGTH : FOLIO_REASON_STOP,
                   FOLIO_OK);
    }
}

Test(engine_life, the_end_token_is_counted_and_has_no_text)
{
    static const int32_t ids[] = {0, 1, ID_EOS};
    const script s = {ids, 3};
    eng_open(&b);
    const uint64_t id = submit_script(&s, 9, 1);
    eng_drain(&b, 9);
    expect_end(id, 0, FOLIO_REASON_STOP, FOLIO_OK);
    cr_assert_eq(eng_find(&b, id, 0)->n, 3);
    cr_assert_str_eq(eng_find(&b, id, 0)->text, "ab");
}

Test(engine_life, own_stop_ids_and_ignored_ends)
{
    static const int32_t ids[] = {0, ID_EOS, 1, 7, 2};
    static const int32_t stops[] = {40, 7};
    const script s = {ids, 5};
    folio_engine_request r;
    eng_open(&b);
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 4;
    r.max_new = 5;
    r.logits = follow;
    r.logits_user = (void *)&s;
    r.stop_ids = stops;
    r.n_stop_ids = 2;
    r.ignore_eos = 1;
    const uint64_t id = eng_submit_as(&b, &r);
    eng_drain(&b, 9);
    expect_end(id, 0, FOLIO_REASON_STOP, FOLIO_OK);
    cr_assert_eq(eng_find(&b, id, 0)->n, 4);
    cr_assert_str_eq(eng_find(&b, id, 0)->text, "a<|im_end|>b");
}

static int32_t choose_badly(void *user, folio_logits_row *row)
{
    (void)row;
    return *(int32_t *)user;
}

Test(engine_life, a_callback_that_chooses_no_id_ends_its_own_request)
{
    int32_t ids[] = {TINY_VOCAB, -2, INT32_MIN};
    for (size_t i = 0; i < FOLIO_COUNT(ids); i++) {
        folio_engine_request r;
        eng_open(&b);
        folio_engine_request_default(&r);
        r.prompt = some;
        r.n_prompt = 4;
        r.logits = choose_badly;
        r.logits_user = &ids[i];
        const uint64_t id = eng_submit_as(&b, &r);
        const uint64_t other = eng_submit(&b, some, 4, 4);
        eng_drain(&b, 9);
        expect_end(id, 0, FOLIO_REASON_ERROR, FOLIO_E_INVAL);
        expect_end(other, 0, FOLIO_REASON_LENGTH, FOLIO_OK);
        eng_at_rest(&b);
    }
}

static int32_t ban_all_but(void *user, folio_logits_row *row)
{
    for (int32_t i = 0; i < row->n_vocab; i++)
        if (i != *(int32_t *)user)
            row->logits[i] = -INFINITY;
    return FOLIO_LOGITS_DRAW;
}

Test(engine_life, a_callback_may_change_the_logits)
{
    int32_t only = 17;
    folio_engine_request r;
    eng_open(&b);
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 4;
    r.max_new = 3;
    r.logits = ban_all_but;
    r.logits_user = &only;
    const uint64_t id = eng_submit_as(&b, &r);
    eng_drain(&b, 9);
    cr_assert_str_eq(eng_find(&b, id, 0)->text, "rrr");
}

/* ---- sharing ------------------------------------------------------------- */

Test(engine_life, completions_share_the_prompt_and_differ)
{
    int32_t prompt[41];
    for (int i = 0; i < 41; i++)
        prompt[i] = (5 * i + 1) % TINY_VOCAB;
    folio_engine_request r;
    folio_engine_request_default(&r);
    r.prompt = prompt;
    r.n_prompt = 41;
    r.max_new = 12;
    r.n = 6;
    r.ignore_eos = 1;
    r.sample.temperature = 1.5f;
    r.sample.seed = 11;
    b.p.n_blocks = 64;
    eng_open(&b);
    const uint64_t id = eng_submit_as(&b, &r);
    eng_drain(&b, 60);
    /* 40 of the prompt's positions are in full blocks. */
    cr_assert_leq(eng_stats(&b).prefill_tok, 41 + 5);
    int equal = 0;
    for (int i = 0; i < 6; i++) {
        const eng_answer *a = eng_find(&b, id, i);
        expect_end(id, i, FOLIO_REASON_LENGTH, FOLIO_OK);
        cr_assert_eq(a->n, 12);
        equal += memcmp(a->ids, eng_find(&b, id, 0)->ids, sizeof a->ids) == 0;
    }
    cr_assert_eq(equal, 1);
    eng_at_rest(&b);
    /* The first one is the text of a request for one. */
    const eng_answer first = *eng_find(&b, id, 0);
    eng_open(&b);
    r.n = 1;
    const uint64_t one = eng_submit_as(&b, &r);
    eng_drain(&b, 60);
    cr_assert_eq(memcmp(first.ids, eng_find(&b, one, 0)->ids, sizeof first.ids),
                 0);
}

Test(engine_life, a_shared_beginning_is_computed_once)
{
    enum { N = 32, SHARED = 512, OWN = 16 };
    static int32_t prompt[SHARED + OWN];
    /* Places, budget and blocks enough to compute all of it 32 times over in
     * the first step: nothing but the wait for what another one computes keeps
     * anybody from it. */
    b.p.max_seqs = N;
    b.p.block_size = 16;
    b.p.n_blocks = N * (SHARED + OWN + 16) / 16;
    b.p.budget = N * (SHARED + OWN);
    eng_open(&b);
    for (int i = 0; i < SHARED; i++)
        prompt[i] = (3 * i + i / 7) % TINY_VOCAB;
    uint64_t ids[N];
    for (int k = 0; k < N; k++) {
        for (int i = 0; i < OWN; i++)
            prompt[SHARED + i] = (k * 13 + i * 5 + 1) % TINY_VOCAB;
        ids[k] = eng_submit(&b, prompt, SHARED + OWN, 4);
    }
    eng_drain(&b, 300);
    const folio_engine_stats s = eng_stats(&b);
    const uint64_t bar = (SHARED + N * OWN) * 11 / 10;
    cr_assert_leq(s.prefill_tok, bar, "%llu positions computed, at most %llu",
                  (unsigned long long)s.prefill_tok, (unsigned long long)bar);
    cr_assert_eq(eng_find(&b, ids[N - 1], 0)->end.n_cached, SHARED);
    eng_at_rest(&b);
}

Test(engine_life, salts_keep_apart)
{
    int32_t prompt[33];
    folio_engine_request r;
    for (int i = 0; i < 33; i++)
        prompt[i] = i;
    eng_open(&b);
    folio_engine_request_default(&r);
    r.prompt = prompt;
    r.n_prompt = 33;
    r.max_new = 2;
    r.ignore_eos = 1;
    static const char *const salts[] = {"", "one", "two", "one", ""};
    static const int32_t cached[] = {0, 0, 0, 32, 32};
    for (int i = 0; i < 5; i++) {
        r.salt = salts[i];
        r.salt_bytes = strlen(salts[i]);
        const uint64_t id = eng_submit_as(&b, &r);
        eng_drain(&b, 9);
        cr_assert_eq(eng_find(&b, id, 0)->end.n_cached, cached[i], "%d", i);
    }
}

/* ---- work ---------------------------------------------------------------- */

/* Seven short answers behind a long one: 256 token-slots in a static batch,
 * and the first answer after 32 iterations. */
Test(engine_life, short_answers_do_not_wait_for_a_long_one)
{
    b.p.prefix_cache = 0;
    b.p.n_blocks = 64;
    b.p.budget = 64;
    eng_open(&b);
    const uint64_t id = eng_submit(&b, some, 5, 32);
    uint64_t small[7];
    for (int i = 0; i < 7; i++)
        small[i] = eng_submit(&b, some + i, 5, 4);
    eng_drain(&b, 60);
    const folio_engine_stats s = eng_stats(&b);
    const uint64_t rows = s.forward_tok - s.prefill_tok + 8;
    cr_assert_eq(rows, 60);
    cr_assert_eq(s.steps, 32);
    for (int i = 0; i < 7; i++)
        cr_assert_eq(eng_find(&b, small[i], 0)->ended_at, 3);
    cr_assert_eq(eng_find(&b, id, 0)->ended_at, 31);
}

/* Four streams go on while a long prompt is taken in. */
Test(engine_life, a_long_prompt_never_stalls_streams)
{
    static int32_t prompt[800];
    uint64_t ids[4];
    for (int i = 0; i < 800; i++)
        prompt[i] = (i * 7) % TINY_VOCAB;
    b.p.budget = 64;
    b.p.n_blocks = 300;
    eng_open(&b);
    for (int i = 0; i < 4; i++)
        ids[i] = eng_submit(&b, some + i, 4, 60);
    eng_step(&b);
    eng_submit(&b, prompt, 800, 4);
    for (int step = 1; step < 20; step++) {
        eng_step(&b);
        for (int i = 0; i < 4; i++)
            cr_assert_eq(eng_find(&b, ids[i], 0)->n, step + 1);
    }
    /* 800 = 13 steps of 60 beside the four, and the rest. */
    cr_assert_eq(eng_find(&b, 5, 0)->first_at, 14);
    eng_drain(&b, 100);
    eng_at_rest(&b);
}
