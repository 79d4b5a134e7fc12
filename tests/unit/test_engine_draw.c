/* unit/test_engine_draw.c: the same requests, drawn on the device and drawn on
 * the host from whole rows, come to the same ids, texts, ends and (to their
 * precision) log-probabilities, on the host device and on PoCL, also where
 * places change hands so that counts of penalties are set anew; and with a step
 * under way while the next one is planned. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ops/sample_row.h"
#include "unit/engine_bed.h"
#include "unit/text_fixture.h"

enum { MANY = 40, LONGEST = 30, MAX_NEW = 24, MAX_N = 3, MAX_BIAS = 12 };

/* What one completion was scored with. */
typedef struct scores {
    float logprob[MAX_NEW];
    folio_sample_result last;
    int n;
} scores;

typedef struct ask {
    folio_engine_request r;
    int32_t prompt[LONGEST], stop_ids[3], ban[4];
    folio_logit_bias bias[MAX_BIAS];
    uint64_t id;
    scores got[MAX_N];
    float prompt_logprob[LONGEST];
} ask;

typedef struct outcome {
    int32_t ids[MAX_NEW], n;
    char text[256];
    folio_finish_reason reason;
    folio_status status;
    scores s;
} outcome;

static eng b;
static ask asks[MANY];
static outcome want[MANY][MAX_N];
static float want_prompt[MANY][LONGEST];
static uint64_t seed;

static uint32_t below(uint32_t n)
{
    return next_random(&seed) % n;
}

static int32_t leave_it(void *user, folio_logits_row *row)
{
    (void)user;
    (void)row;
    return FOLIO_LOGITS_DRAW;
}

/* ---- asks ---------------------------------------------------------------- */

static void make_sample(ask *a, folio_sample_params *s)
{
    static const float temps[] = {0, 0, .5f, 1, 1.5f, 3};
    static const float top_ps[] = {1, 1, .9f, .5f, 0};
    static const float min_ps[] = {0, 0, .05f, .3f};
    static const float reps[] = {1, 1, 1.3f, .8f, 20};
    static const float costs[] = {0, 0, .7f, 2, -1};
    s->temperature = temps[below(6)];
    s->top_k = below(3) ? 0 : 1 + (int32_t)below(70);
    s->top_p = top_ps[below(5)];
    s->min_p = min_ps[below(4)];
    s->seed = next_random(&seed);
    s->repetition_penalty = reps[below(5)];
    s->penalty_last_n = below(4) ? -1 : below(2) ? 0 : 4096;
    s->presence_penalty = costs[below(5)];
    s->frequency_penalty = costs[below(5)];
    if (below(3) == 0) {
        s->logit_bias = a->bias;
        s->n_logit_bias = 1 + (int32_t)below(MAX_BIAS);
    }
    for (int32_t i = 0; i < MAX_BIAS; i++) /* some ids again and again */
        a->bias[i] = (folio_logit_bias){(int32_t)below(i % 2 ? 4 : TINY_VOCAB),
                                        below(9) ? (float)below(600) / 100 - 3
                                                 : -INFINITY};
    if (below(3) == 0) {
        s->banned = a->ban;
        s->n_banned = 1 + (int32_t)below(4);
    }
    for (int32_t i = 0; i < 4; i++)
        a->ban[i] = (int32_t)below(i < 2 ? 4 : TINY_VOCAB);
}

/* Plain ones among all that the device can draw. */
static void make_asks(bool prompts)
{
    for (int i = 0; i < MANY; i++) {
        ask *a = &asks[i];
        memset(a, 0, sizeof *a);
        folio_engine_request_default(&a->r);
        a->r.prompt = a->prompt;
        a->r.n_prompt = 1 + (int32_t)below(LONGEST);
        for (int32_t k = 0; k < a->r.n_prompt; k++)
            a->prompt[k] = i % 3 == 0 && k < 12 ? (5 * k + 1) % TINY_VOCAB
                                                : (int32_t)below(TINY_VOCAB);
        a->r.max_new = 1 + (int32_t)below(MAX_NEW);
        a->r.n = below(4) ? 1 : 1 + (int32_t)below(MAX_N);
        a->r.ignore_eos = (int32_t)below(2);
        a->r.stop_ids = a->stop_ids;
        a->r.n_stop_ids = (int32_t)below(4);
        for (int32_t k = 0; k < 3; k++)
            a->stop_ids[k] = (int32_t)below(TINY_VOCAB);
        if (i % 4 == 0)
            continue;
        make_sample(a, &a->r.sample);
        a->r.sample.min_new_tokens = below(3) ? 0 : (int32_t)below(MAX_NEW);
        a->r.logprobs = below(2) ? -1 : (int32_t)below(FOLIO_LOGPROBS_MAX + 1);
        a->r.prompt_logprobs = prompts && below(3) == 0;
    }
}

/* ---- running ------------------------------------------------------------- */

static ask *ask_of(uint64_t id)
{
    int i = 0;
    while (i < MANY && asks[i].id != id)
        i++;
    cr_assert_lt(i, MANY, "request %llu is nobody's", (unsigned long long)id);
    return &asks[i];
}

static void keep(scores *to, const folio_sample_result *s)
{
    cr_assert_lt(to->n, MAX_NEW);
    to->logprob[to->n++] = s->logprob;
    to->last = *s;
}

static void step_scored(void)
{
    folio_event ev[128];
    size_t n = 0;
    const folio_status st = folio_engine_step(b.e, ev, FOLIO_COUNT(ev), &n);
    cr_assert_eq(st, FOLIO_OK, "%s: %s", folio_status_name(st), b.tiny.ear.err);
    for (size_t i = 0; i < n; i++) {
        ask *a = ask_of(ev[i].request);
        if (ev[i].kind == FOLIO_EVENT_PROMPT) {
            for (int32_t k = 1; k < ev[i].n_prompt; k++)
                a->prompt_logprob[k] = ev[i].scores[k].logprob;
            continue;
        }
        if (ev[i].kind == FOLIO_EVENT_TOKEN && ev[i].scores)
            keep(&a->got[ev[i].completion], ev[i].scores);
        eng_note(&b, &ev[i]);
    }
}

/* Who has the host draw: nobody, everybody, every second one. */
typedef enum who { NOBODY, EVERYBODY, EVERY_SECOND } who;

static void submit_one(ask *a, who host)
{
    const bool second = host == EVERY_SECOND && (a - asks) % 2;
    a->r.logits = host == EVERYBODY || second ? leave_it : NULL;
    memset(a->got, 0, sizeof a->got);
    memset(a->prompt_logprob, 0, sizeof a->prompt_logprob);
    a->id = eng_submit_as(&b, &a->r);
}

static void submit_all(who host)
{
    for (int i = 0; i < MANY; i++)
        submit_one(&asks[i], host);
}

static void drain_scored(void)
{
    for (int guard = 0; !folio_engine_is_idle(b.e); guard++) {
        cr_assert_lt(guard, 4000);
        step_scored();
    }
    eng_at_rest(&b);
}

static void run_all(who host)
{
    eng_open(&b);
    submit_all(host);
    drain_scored();
}

static outcome outcome_of(const ask *a, int32_t k)
{
    outcome o;
    memset(&o, 0, sizeof o);
    const eng_answer *x = eng_find(&b, a->id, k);
    cr_assert(x->ended);
    cr_assert_leq(x->n, MAX_NEW);
    cr_assert_lt(x->n_text, sizeof o.text);
    memcpy(o.ids, x->ids, sizeof o.ids);
    memcpy(o.text, x->text, x->n_text);
    o.n = x->n;
    o.reason = x->end.reason;
    o.status = x->end.status;
    o.s = a->got[k];
    return o;
}

/* What is there is what shall come again. */
static void learn_from(void)
{
    for (int i = 0; i < MANY; i++) {
        for (int32_t k = 0; k < asks[i].r.n; k++)
            want[i][k] = outcome_of(&asks[i], k);
        memcpy(want_prompt[i], asks[i].prompt_logprob, sizeof want_prompt[i]);
    }
}

static void learn(void)
{
    run_all(EVERYBODY);
    learn_from();
}

static bool near(float x, float y)
{
    return x == y || fabsf(x - y) <= 4e-6f * (1 + fabsf(x));
}

static void same_scores(const scores *x, const scores *y, const char *what)
{
    cr_assert_eq(x->n, y->n, "%s: %d scores, %d", what, x->n, y->n);
    for (int i = 0; i < x->n; i++)
        cr_assert(near(x->logprob[i], y->logprob[i]), "%s, id %d: %g, %g", what,
                  i, (double)x->logprob[i], (double)y->logprob[i]);
    if (x->n == 0)
        return;
    cr_assert_eq(x->last.id, y->last.id);
    cr_assert_eq(x->last.logit, y->last.logit);
    cr_assert(near(x->last.lse, y->last.lse));
    cr_assert_eq(x->last.n_top, y->last.n_top);
    for (int i = 0; i < x->last.n_top; i++) {
        cr_assert_eq(x->last.top_ids[i], y->last.top_ids[i]);
        cr_assert(near(x->last.top_logprobs[i], y->last.top_logprobs[i]));
        cr_assert(x->last.top_ids[i] != x->last.id ||
                  x->last.top_logprobs[i] == x->last.logprob);
    }
}

static void expect_all(const char *name)
{
    for (int i = 0; i < MANY; i++) {
        for (int k = 1; k < LONGEST; k++)
            cr_assert(near(asks[i].prompt_logprob[k], want_prompt[i][k]),
                      "%s: ask %d, prompt's id %d: %g, %g", name, i, k,
                      (double)asks[i].prompt_logprob[k],
                      (double)want_prompt[i][k]);
        for (int32_t k = 0; k < asks[i].r.n; k++) {
            const outcome x = outcome_of(&asks[i], k), *y = &want[i][k];
            char what[96];
            snprintf(what, sizeof what, "%s: ask %d, completion %d", name, i,
                     k);
            for (int j = 0; j < FOLIO_MIN(x.n, y->n); j++)
                cr_assert_eq(x.ids[j], y->ids[j], "%s, id %d: %d, expected %d",
                             what, j, x.ids[j], y->ids[j]);
            cr_assert_eq(x.n, y->n, "%s: %d ids, expected %d", what, x.n, y->n);
            cr_assert_eq(x.reason, y->reason, "%s", what);
            cr_assert_eq(x.status, y->status, "%s", what);
            cr_assert_str_eq(x.text, y->text, "%s", what);
            same_scores(&x.s, &y->s, what);
        }
    }
}

/* ---- devices ------------------------------------------------------------- */

static bool set_up_on(const char *device)
{
    eng_init(&b, device, true);
    if (!b.dev) {
        const char *ci = getenv("CI");
        cr_assert(!ci || strcmp(ci, "true"), "%s is not installed", device);
        return false;
    }
    b.p.max_ctx = 64;
    b.p.budget = 16;
    seed = 20240911;
    cr_log_info("seed %llu", (unsigned long long)seed);
    return true;
}

static void tear_down(void)
{
    if (b.dev)
        eng_fini(&b);
}

TestSuite(engine_draw, .fini = tear_down);

static void roomy(void)
{
    b.p.n_blocks = 8 * 16;
    b.p.max_seqs = 8;
}

static void device_draws_as_host(void)
{
    for (int round = 0; round < 3; round++) {
        make_asks(false);
        roomy();
        learn();
        run_all(NOBODY);
        expect_all("on the device");
        const folio_engine_stats s = eng_stats(&b);
        cr_assert_leq(s.reads, s.steps, "a row was drawn on the host");
        /* Places change hands: counts are set anew. */
        b.p.n_blocks = 18;
        run_all(NOBODY);
        expect_all("cramped");
        cr_assert_gt(eng_stats(&b).preemptions, 0);
        b.p.n_blocks = 3 * 16;
        b.p.max_seqs = 3;
        run_all(NOBODY);
        expect_all("three places");
    }
}

Test(engine_draw, on_the_host_device)
{
    set_up_on("host");
    device_draws_as_host();
}

Test(engine_draw, on_opencl, .timeout = 240)
{
    if (!set_up_on("pocl"))
        cr_skip("PoCL is not installed");
    device_draws_as_host();
}

/* Prompts are scored where ids are drawn; no prompt's score comes from the
 * host. */
static void prompts_too(void)
{
    make_asks(true);
    roomy();
    b.p.prompt_logprobs = 1;
    learn();
    run_all(NOBODY);
    expect_all("with scores of prompts");
    const folio_engine_stats s = eng_stats(&b);
    cr_assert_leq(s.reads, s.steps);
    b.p.budget = 9;
    run_all(EVERY_SECOND);
    expect_all("with scores of prompts, side by side");
}

Test(engine_draw, prompts_on_the_host_device)
{
    set_up_on("host");
    prompts_too();
}

Test(engine_draw, prompts_on_opencl, .timeout = 240)
{
    if (!set_up_on("pocl"))
        cr_skip("PoCL is not installed");
    prompts_too();
}

/* Every second request needs the host; the others' rows are beside them. */
Test(engine_draw, side_by_side)
{
    set_up_on("host");
    make_asks(false);
    roomy();
    learn();
    run_all(EVERY_SECOND);
    expect_all("side by side");
}

/* What one step can take of counts and edits is bounded: the others go to the
 * host, which changes nothing. */
Test(engine_draw, what_does_not_fit_is_drawn_on_the_host)
{
    set_up_on("host");
    make_asks(false);
    roomy();
    learn();
    eng_open(&b);
    b.e->runner->draw.lim.max_fresh = 1;
    b.e->runner->draw.lim.n_slots = 4;
    b.e->runner->draw.lim.max_edits = 14;
    submit_all(NOBODY);
    drain_scored();
    expect_all("with little room");
    const folio_engine_stats s = eng_stats(&b);
    cr_assert_gt(s.reads, s.steps);
    cr_assert_gt(2 * s.steps, s.reads);
}

/* What has to be seen whole is: its device never counts as drawn on. */
Test(engine_draw, rows_that_need_the_host)
{
    set_up_on("host");
    roomy();
    eng_open(&b);
    static const struct {
        int which;
        bool host;
    } cases[] = {{0, false}, {1, true},  {2, true},  {3, true},
                 {4, false}, {5, false}, {6, false}, {7, true}};
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++) {
        folio_engine_request r;
        folio_engine_request_default(&r);
        const int32_t prompt[] = {1, 2, 3, 4, 5};
        r.prompt = prompt;
        r.n_prompt = 5;
        r.max_new = 6;
        r.ignore_eos = 1;
        r.sample.temperature = 1;
        switch (cases[i].which) {
        case 1:
            r.sample.typical_p = .8f;
            break;
        case 2:
            r.sample.dry_multiplier = 1;
            break;
        case 3:
            r.sample.repetition_penalty = 1.2f;
            r.sample.penalty_last_n = 10;
            break;
        case 4:
            r.sample.repetition_penalty = 1.2f;
            r.sample.penalty_last_n = 11; /* all there can be */
            break;
        case 5:
            r.sample.presence_penalty = 1;
            r.sample.penalty_last_n = 2; /* is not about these */
            break;
        case 6:
            r.logprobs = FOLIO_LOGPROBS_MAX;
            break;
        case 7:
            r.logits = leave_it;
            break;
        default:
            break;
        }
        const folio_engine_stats s = eng_stats(&b);
        const uint64_t id = eng_submit_as(&b, &r);
        eng_step(&b);
        const folio_answer *a =
            &b.e->door.by_id[id & b.e->door.id_mask]->answer[0];
        cr_assert_eq(a->job->on_host, cases[i].host, "case %zu", i);
        eng_drain(&b, 20);
        const folio_engine_stats t = eng_stats(&b);
        cr_assert_eq(t.reads - s.reads, t.steps - s.steps);
    }
}

/* ---- running ahead --------------------------------------------------------
 */

/* As submit_all, but some steps apart. */
static void run_staggered(who host)
{
    int at = 0;
    eng_open(&b);
    while (at < MANY || !folio_engine_is_idle(b.e)) {
        for (uint32_t n = below(4); n > 0 && at < MANY; n--)
            submit_one(&asks[at++], host);
        step_scored();
    }
    eng_at_rest(&b);
}

/* Stops, forks, preemption, prefix hits, rows that need the host: ids, texts,
 * ends and scores are those of an engine that waits for each step. */
static void ahead_is_the_same(void)
{
    for (int round = 0; round < 3; round++) {
        b.p.run_ahead = 0;
        b.p.prefix_cache = 1;
        make_asks(false);
        roomy();
        run_all(NOBODY);
        learn_from();
        const folio_engine_stats s = eng_stats(&b);
        b.p.run_ahead = 1;
        run_all(NOBODY);
        expect_all("ahead");
        /* What is behind the end of a text is computed for nobody. */
        const folio_engine_stats t = eng_stats(&b);
        cr_assert_eq(t.new_tok, s.new_tok);
        cr_assert_gt(t.forward_tok, s.forward_tok);
        cr_assert_gt(t.cached_tok, 0);
        cr_assert_eq(t.waits - t.reads, s.waits - s.reads);
        run_all(EVERY_SECOND);
        expect_all("ahead, side by side");
        run_staggered(NOBODY);
        expect_all("ahead, one after the other");
        for (int cache = 0; cache <= 1; cache++) {
            b.p.prefix_cache = cache;
            b.p.n_blocks = 18;
            run_all(NOBODY);
            expect_all("ahead, cramped");
            cr_assert_gt(eng_stats(&b).preemptions, 0);
            run_staggered(EVERY_SECOND);
            expect_all("ahead, cramped, side by side");
        }
        b.p.n_blocks = 3 * 16;
        b.p.max_seqs = 3;
        b.p.budget = 4;
        run_all(NOBODY);
        expect_all("ahead, three places, small pieces");
        b.p.budget = 16;
    }
}

Test(engine_draw, running_ahead_on_the_host_device)
{
    set_up_on("host");
    ahead_is_the_same();
}

Test(engine_draw, running_ahead_on_opencl, .timeout = 300)
{
    if (!set_up_on("pocl"))
        cr_skip("PoCL is not installed");
    ahead_is_the_same();
}

Test(engine_draw, prompts_are_scored_while_running_ahead)
{
    set_up_on("host");
    make_asks(true);
    roomy();
    b.p.prompt_logprobs = 1;
    learn();
    b.p.run_ahead = 1;
    run_all(NOBODY);
    expect_all("ahead, with scores of prompts");
}

/* Cancelled anywhere: what came until then is the beginning of the text, the
 * others lose nothing, and neither does the pool. */
static void cancels(void)
{
    int n_cut = 0;
    make_asks(false);
    roomy();
    b.p.n_blocks = 24;
    learn();
    b.p.run_ahead = 1;
    for (int round = 0; round < 8; round++) {
        bool cancelled[MANY] = {false};
        eng_open(&b);
        for (int i = 0; i < MANY; i++)
            submit_one(&asks[i], i % 5 == 4 && round % 2 ? EVERYBODY : NOBODY);
        while (!folio_engine_is_idle(b.e)) {
            const int k = (int)below(MANY);
            if (below(3) == 0) {
                const folio_status st = folio_engine_cancel(b.e, asks[k].id);
                cr_assert(st == FOLIO_OK || st == FOLIO_E_NOT_FOUND);
                cancelled[k] = true;
            }
            step_scored();
        }
        eng_at_rest(&b);
        for (int i = 0; i < MANY; i++)
            for (int32_t c = 0; c < asks[i].r.n; c++) {
                const outcome x = outcome_of(&asks[i], c), *y = &want[i][c];
                const bool cut = x.reason == FOLIO_REASON_ABORT;
                cr_assert(cut ? cancelled[i] && x.n <= y->n
                              : x.n == y->n && x.reason == y->reason,
                          "round %d, ask %d.%d: %d of %d ids, %s", round, i, c,
                          x.n, y->n, folio_finish_reason_name(x.reason));
                cr_assert_eq(
                    memcmp(x.ids, y->ids, (size_t)x.n * sizeof x.ids[0]), 0,
                    "round %d, ask %d.%d: other ids", round, i, c);
                n_cut += cut;
            }
    }
    cr_assert_gt(n_cut, 20);
}

Test(engine_draw, cancelled_while_running_ahead)
{
    set_up_on("host");
    cancels();
}

Test(engine_draw, cancelled_while_running_ahead_on_opencl, .timeout = 300)
{
    if (!set_up_on("pocl"))
        cr_skip("PoCL is not installed");
    cancels();
}

/* Passes fail now and then, at the enqueue or at the wait, with a step under
 * way behind them or before: they are made again. */
static uint32_t fail_one_in;
static int n_failed;

static bool fails_now(void)
{
    const bool fails = below(fail_one_in) == 0;
    n_failed += fails;
    return fails;
}

static folio_status bad_forward(folio_runner *r, const folio_batch *x,
                                const folio_draw *d, const int32_t *open_row)
{
    /* Before anything is enqueued, or when all is. */
    if (fails_now())
        return FOLIO_E_NOMEM;
    FOLIO_RETURN_IF(folio_runner_forward_draw(r, x, d, open_row));
    return fails_now() ? FOLIO_E_DEVICE : FOLIO_OK;
}

static folio_status bad_read(folio_runner *r, int number, folio_drawn *out)
{
    return fails_now() ? FOLIO_E_NOMEM
                       : folio_runner_read_drawn(r, number, out);
}

Test(engine_draw, failed_passes_while_running_ahead)
{
    set_up_on("host");
    make_asks(false);
    roomy();
    learn();
    for (int round = 0; round < 12; round++) {
        b.p.run_ahead = round % 3 != 0;
        b.p.n_blocks = round % 2 ? 20 : 8 * 16;
        fail_one_in = 12;
        n_failed = 0;
        eng_open(&b);
        b.e->call.forward = bad_forward;
        b.e->call.read_drawn = bad_read;
        for (int i = 0; i < MANY; i++)
            submit_one(&asks[i], i % 7 == 6 ? EVERYBODY : NOBODY);
        while (!folio_engine_is_idle(b.e)) {
            /* The third in a row would end them; one call may bring two. */
            if (b.e->n_failed == 2 ||
                (b.e->n_failed == 1 && b.e->flight[b.e->newest].step))
                fail_one_in = UINT32_MAX;
            step_scored();
            fail_one_in = 12;
        }
        eng_at_rest(&b);
        expect_all("with failures");
        cr_assert_gt(n_failed, 5);
    }
}
