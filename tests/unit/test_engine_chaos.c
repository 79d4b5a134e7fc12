/* unit/test_engine_chaos.c: everything at once: engines of any shape, requests
 * of any kind with some that nobody can take, cancels, deadlines, passes that
 * fail, few events a call. Whatever comes out keeps the promises of its header,
 * and the ids of each completion begin as those of the same request alone. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "unit/engine_bed.h"
#include "unit/text_fixture.h"

enum { MANY = 24, LONGEST = 40, MOST_NEW = 16, MAX_N = 3, CTX = 64 };

typedef struct ask {
    folio_engine_request r;
    int32_t prompt[LONGEST], stop_ids[2], ban[2];
    folio_logit_bias bias[3];
    const char *stop[2];
    uint64_t id, deadline_ns; /* id 0: not taken */
    bool cancelled;
} ask;

/* What came of one completion. */
typedef struct said {
    int32_t ids[LONGEST + CTX], n;
    char text[ENG_MAX_TEXT];
    size_t n_text;
    int n_prompts, n_ends;
    folio_event end;
} said;

static eng b;
static ask asks[MANY];
static said got[MANY][MAX_N], alone[MAX_N];
static uint64_t seed, now;
static uint32_t fail_one_in; /* passes; 0: none */
static bool may_fail;
/* What came about, so that none of it is left out. */
static int n_taken, n_refused, n_failed, n_preempted, n_cut, n_whole, n_spoilt,
    n_stopped;

static uint32_t below(uint32_t n)
{
    return next_random(&seed) % n;
}

static uint64_t tick(void *user)
{
    (void)user;
    return now++;
}

/* ---- callbacks ----------------------------------------------------------- */

static int32_t leave_it(void *user, folio_logits_row *row)
{
    (void)user;
    (void)row;
    return FOLIO_LOGITS_DRAW;
}

/* By the text alone, so that it is the same whoever is beside. */
static int32_t choose(void *user, folio_logits_row *row)
{
    (void)user;
    return row->n_tok % 3
               ? (row->tok[row->n_tok - 1] * 7 + row->n_tok) % row->n_vocab
               : FOLIO_LOGITS_DRAW;
}

/* Now and then what nobody can draw from. */
static int32_t spoil(void *user, folio_logits_row *row)
{
    (void)user;
    if (row->n_tok - row->n_prompt == 5)
        row->logits[row->n_tok % row->n_vocab] = NAN;
    return FOLIO_LOGITS_DRAW;
}

/* ---- a device that fails ------------------------------------------------- */

/* Never so often that requests end of it. */
static bool fails(void)
{
    const bool now_fails = fail_one_in && may_fail && below(fail_one_in) == 0;
    n_failed += now_fails;
    return now_fails;
}

static folio_status bad_forward(folio_runner *r, const folio_batch *x,
                                const folio_draw *d, const int32_t *open_row)
{
    if (fails())
        return FOLIO_E_NOMEM;
    FOLIO_RETURN_IF(folio_runner_forward_draw(r, x, d, open_row));
    return fails() ? FOLIO_E_DEVICE : FOLIO_OK;
}

static folio_status bad_read_drawn(folio_runner *r, int number,
                                   folio_drawn *out)
{
    return fails() ? FOLIO_E_NOMEM : folio_runner_read_drawn(r, number, out);
}

static folio_status bad_read_rows(folio_runner *r, int32_t first, int32_t n,
                                  float *out)
{
    return fails() ? FOLIO_E_DEVICE : folio_runner_read_rows(r, first, n, out);
}

/* ---- asks ---------------------------------------------------------------- */

static void make_ask(ask *a)
{
    static const float temps[] = {0, 0, 0, .7f, 1.5f};
    static const char *const stops[] = {"ab", "gamma", "zz", "\xef\xbf\xbd"};
    static const folio_logits_fn fns[] = {leave_it, choose, spoil};
    folio_engine_request *r = &a->r;
    memset(a, 0, sizeof *a);
    folio_engine_request_default(r);
    r->prompt = a->prompt;
    r->n_prompt = 1 + (int32_t)below(LONGEST);
    const int32_t common = (int32_t)below(LONGEST);
    for (int32_t k = 0; k < r->n_prompt; k++)
        a->prompt[k] =
            k < common ? (5 * k + 1) % TINY_VOCAB : (int32_t)below(TINY_VOCAB);
    r->max_new = 1 + (int32_t)below(MOST_NEW);
    r->n = below(4) ? 1 : 1 + (int32_t)below(MAX_N);
    r->ignore_eos = (int32_t)below(2);
    r->priority = below(3) ? 0 : (int32_t)below(8);
    r->stop_ids = a->stop_ids;
    r->n_stop_ids = (int32_t)below(3);
    r->salt = a->prompt;
    r->salt_bytes = below(4) ? 0 : below(5);
    a->stop_ids[0] = (int32_t)below(TINY_VOCAB);
    a->stop_ids[1] = (int32_t)below(TINY_VOCAB);
    if (below(4) == 0) {
        r->stop = a->stop;
        r->n_stop = 1 + (int32_t)below(2);
        a->stop[0] = stops[below(4)];
        a->stop[1] = stops[below(4)];
    }
    r->logprobs = below(3) ? -1 : (int32_t)below(FOLIO_LOGPROBS_MAX + 1);
    r->prompt_logprobs = b.p.prompt_logprobs && below(3) == 0;
    r->logits = below(4) ? NULL : fns[below(3)];
    r->deadline_ns = below(6) ? 0 : 1 + below(200);
    folio_sample_params *s = &r->sample;
    s->temperature = temps[below(5)];
    s->seed = next_random(&seed);
    s->typical_p = below(8) ? 1 : .8f;
    s->frequency_penalty = below(3) ? 0 : 1.5f;
    s->repetition_penalty = below(4) ? 1 : 1.4f;
    s->penalty_last_n = below(4) ? -1 : 8;
    s->min_new_tokens = below(3) ? 0 : (int32_t)below(MOST_NEW);
    s->banned = a->ban;
    s->n_banned = (int32_t)below(3);
    s->logit_bias = a->bias;
    s->n_logit_bias = (int32_t)below(4);
    for (int i = 0; i < 2; i++)
        a->ban[i] = (int32_t)below(TINY_VOCAB);
    for (int i = 0; i < 3; i++)
        a->bias[i] = (folio_logit_bias){(int32_t)below(TINY_VOCAB),
                                        (float)below(60) / 10 - 3};
}

/* Breaks one thing; false: what is left may be taken. */
static bool spoil_ask(ask *a)
{
    folio_engine_request *r = &a->r;
    static const int32_t odd[] = {0, -1, INT32_MIN, INT32_MAX, 1 << 30};
    switch (below(20)) {
    case 0:
        r->n_prompt = odd[below(3)];
        return true;
    case 1:
        r->max_new = odd[(int[]){0, 2, 3, 4}[below(4)]];
        return true;
    case 2:
        r->n = odd[below(5)];
        return true;
    case 3:
        a->prompt[below((uint32_t)r->n_prompt)] = below(2) ? TINY_VOCAB : -1;
        return true;
    case 4:
        r->priority = odd[1 + below(4)];
        return true;
    case 5:
        r->salt_bytes = below(2) ? 64 : SIZE_MAX;
        return true;
    case 6:
        r->logprobs = below(2) ? -2 : FOLIO_LOGPROBS_MAX + 1;
        return true;
    case 7:
        r->n_stop_ids = odd[1 + below(2)];
        return true;
    case 8:
        r->n_stop = odd[1 + below(2)];
        return true;
    case 9:
        r->decode_flags = UINT32_MAX;
        return true;
    case 10:
        r->sample.temperature = below(2) ? NAN : -1;
        return true;
    case 11:
        r->sample.n_banned = odd[1 + below(2)];
        return true;
    case 12:
        r->size = below(2) ? 0 : SIZE_MAX;
        return true;
    case 13:
        r->prompt_logprobs = b.p.prompt_logprobs ? 2 : 1;
        return true;
    case 14:
        r->prompt = NULL;
        return true;
    case 15:
        a->stop[0] = "";
        r->stop = a->stop;
        r->n_stop = 1;
        return true;
    default:
        break;
    }
    r->max_new = -1; /* as long as there is room */
    r->deadline_ns = UINT64_MAX;
    return false;
}

/* ---- events -------------------------------------------------------------- */

static bool is_utf8(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        const unsigned char c = (unsigned char)s[i];
        const size_t len = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        if ((c & 0xc0) == 0x80 || i + len > n)
            return false;
        for (size_t k = 1; k < len; k++)
            if (((unsigned char)s[i + k] & 0xc0) != 0x80)
                return false;
        i += len;
    }
    return true;
}

static void note(said *s, const ask *a, const folio_event *ev)
{
    cr_assert_eq(s->n_ends, 0, "an event after the last one");
    cr_assert(is_utf8(ev->text, ev->n_text));
    cr_assert_lt(s->n_text + ev->n_text, sizeof s->text);
    if (ev->n_text)
        memcpy(s->text + s->n_text, ev->text, ev->n_text);
    s->n_text += ev->n_text;
    if (ev->kind == FOLIO_EVENT_PROMPT) {
        cr_assert(a->r.prompt_logprobs && ev->scores);
        s->n_prompts++;
        cr_assert_eq(s->n, 0, "scores of the prompt behind an id");
    } else if (ev->kind == FOLIO_EVENT_TOKEN) {
        cr_assert_eq(ev->index, s->n);
        cr_assert_lt((size_t)s->n, FOLIO_COUNT(s->ids));
        cr_assert_eq(ev->scores != NULL, a->r.logprobs >= 0);
        if (ev->scores) {
            cr_assert_eq(ev->scores->id, ev->tok);
            cr_assert(ev->scores->logprob <= 0);
        }
        s->ids[s->n++] = ev->tok;
    } else {
        cr_assert_eq(ev->kind, FOLIO_EVENT_FINISHED);
        cr_assert_eq(ev->n_new, s->n);
        cr_assert_eq(ev->n_prompt, a->r.n_prompt);
        cr_assert_eq(ev->status == FOLIO_OK,
                     ev->reason == FOLIO_REASON_STOP ||
                         ev->reason == FOLIO_REASON_LENGTH);
        cr_assert(ev->queue_ns <= now && ev->prefill_ns <= now &&
                  ev->decode_ns <= now);
        s->n_ends++;
        s->end = *ev;
    }
}

static void step_into(said (*to)[MAX_N], const ask *all, int n_all)
{
    folio_event ev[7];
    size_t n = 0;
    const size_t cap = 1 + below(7);
    /* A call may bring two failures, the third in a row would end requests. */
    may_fail = b.e->n_failed == 0 && !b.e->flight[b.e->newest].step;
    const folio_status st = folio_engine_step(b.e, ev, cap, &n);
    cr_assert_eq(st, FOLIO_OK, "%s: %s", folio_status_name(st), b.tiny.ear.err);
    cr_assert_leq(n, cap);
    for (size_t i = 0; i < n; i++) {
        int k = 0;
        while (k < n_all && all[k].id != ev[i].request)
            k++;
        cr_assert_lt(k, n_all, "an event of nobody's");
        cr_assert(ev[i].completion >= 0 && ev[i].completion < all[k].r.n);
        note(&to[k][ev[i].completion], &all[k], &ev[i]);
    }
}

/* ---- rounds -------------------------------------------------------------- */

static void any_engine(void)
{
    static const int32_t sizes[] = {1, 2, 3, 4, 7, 16, 64};
    static const double paces[] = {-1, 0, 1.5, 1e6};
    folio_engine_params *p = &b.p;
    p->max_ctx = CTX;
    p->max_seqs = 1 + (int32_t)below(9);
    p->block_size = sizes[below(7)];
    const int32_t one = (CTX - 2) / p->block_size + 1;
    p->n_blocks = one + (int32_t)below((uint32_t)one + 1);
    p->budget = below(2) ? 0 : p->max_seqs + (int32_t)below(40);
    p->pace = paces[below(4)];
    p->run_ahead = (int32_t)below(2);
    p->prefix_cache = (int32_t)below(2);
    p->chunking = below(4) != 0;
    p->prompt_logprobs = p->chunking && below(2);
    p->watermark_blocks = (int32_t)below((uint32_t)p->n_blocks + 1) - 1;
    p->age_steps = (int32_t[]){0, 1, 256}[below(3)];
    p->max_waiting = (int32_t[]){0, 3, 100}[below(3)];
    p->trace_steps = below(2) ? 0 : 3;
    p->now_ns = tick;
}

static void submit_some(int *at)
{
    for (uint32_t n = below(5); n > 0 && *at < MANY; n--) {
        ask *a = &asks[*at];
        uint64_t id = 77;
        make_ask(a);
        const bool bad = below(4) == 0 && spoil_ask(a);
        const folio_status st = folio_engine_submit(b.e, &a->r, &id);
        if (st == FOLIO_OK) {
            cr_assert_not(bad, "something impossible was taken");
            a->id = id;
            ++*at;
            n_taken++;
            continue;
        }
        cr_assert_eq(id, 77);
        n_refused += bad;
        /* More completions than ever are in flight here; all ids banned by a
         * request's own stop ids cannot be with so few. */
        cr_assert(bad || st == FOLIO_E_FULL || st == FOLIO_E_TOO_LARGE ||
                      (st == FOLIO_E_INVAL && a->r.n > b.p.max_seqs),
                  "%s: %s", folio_status_name(st), b.tiny.ear.err);
        cr_assert(!bad || st == FOLIO_E_INVAL || st == FOLIO_E_RANGE ||
                      st == FOLIO_E_TOO_LARGE || st == FOLIO_E_UNSUPPORTED ||
                      st == FOLIO_E_FULL,
                  "%s", folio_status_name(st));
        *at += st == FOLIO_E_TOO_LARGE;
    }
}

/* The same requests one by one where there is room for all. */
static void hold_against_alone(int n)
{
    const folio_engine_params p = b.p;
    b.p.max_seqs = 4;
    b.p.block_size = 4;
    b.p.n_blocks = 4 * CTX;
    b.p.budget = 64;
    b.p.run_ahead = b.p.prefix_cache = 0;
    b.p.chunking = 1;
    b.p.watermark_blocks = 0;
    b.p.max_waiting = 100;
    eng_open(&b);
    for (int i = 0; i < n; i++) {
        ask a = asks[i];
        if (!a.id)
            continue;
        if (a.r.max_new == -1) /* the room was another */
            a.r.max_new =
                FOLIO_MIN(CTX, p.n_blocks * p.block_size + 1) - a.r.n_prompt;
        a.r.deadline_ns = 0;
        memset(alone, 0, sizeof alone);
        a.id = eng_submit_as(&b, &a.r);
        while (!folio_engine_is_idle(b.e))
            step_into(&alone, &a, 1);
        for (int32_t k = 0; k < a.r.n; k++) {
            const said *x = &got[i][k], *y = &alone[k];
            const folio_finish_reason why = x->end.reason;
            char what[64];
            snprintf(what, sizeof what, "ask %d.%d", i, (int)k);
            cr_assert_eq(x->n_ends, 1, "%s has not ended", what);
            cr_assert_leq(x->n, y->n, "%s: %d ids, %d alone", what, x->n, y->n);
            cr_assert_eq(
                memcmp(x->ids, y->ids, (size_t)x->n * sizeof x->ids[0]), 0,
                "%s: other ids", what);
            n_preempted += x->end.n_preempt;
            n_cut += x->n < y->n;
            n_whole += x->n == y->n;
            n_spoilt += x->end.status == FOLIO_E_INVAL;
            n_stopped += x->end.stop >= 0;
            if (why == FOLIO_REASON_ABORT || why == FOLIO_REASON_DEADLINE) {
                cr_assert(asks[i].cancelled || asks[i].r.deadline_ns, "%s: %s",
                          what, folio_finish_reason_name(why));
                continue;
            }
            cr_assert_eq(why, y->end.reason, "%s: %s, %s alone", what,
                         folio_finish_reason_name(why),
                         folio_finish_reason_name(y->end.reason));
            cr_assert_eq(x->end.status, y->end.status, "%s", what);
            cr_assert_eq(x->end.stop, y->end.stop, "%s", what);
            cr_assert_eq(x->n, y->n, "%s", what);
            cr_assert_eq(x->n_text, y->n_text, "%s", what);
            cr_assert_eq(memcmp(x->text, y->text, x->n_text), 0, "%s", what);
        }
    }
    b.p = p;
}

static void one_round(void)
{
    int at = 0;
    memset(got, 0, sizeof got);
    memset(asks, 0, sizeof asks);
    any_engine();
    fail_one_in = below(3) ? 0 : 10;
    eng_open(&b);
    b.e->call.forward = bad_forward;
    b.e->call.read_drawn = bad_read_drawn;
    b.e->call.read_rows = bad_read_rows;
    for (int guard = 0; at < MANY || !folio_engine_is_idle(b.e); guard++) {
        cr_assert_lt(guard, 20000, "not drained");
        submit_some(&at);
        if (below(10) == 0) {
            const int k = (int)below(MANY);
            const uint64_t id = asks[k].id ? asks[k].id : next_random(&seed);
            const folio_status st = folio_engine_cancel(b.e, id);
            cr_assert(st == FOLIO_E_NOT_FOUND || (st == FOLIO_OK && k < at));
            asks[k].cancelled |= st == FOLIO_OK;
        }
        step_into(got, asks, MANY);
    }
    eng_at_rest(&b);
    fail_one_in = 0;
    hold_against_alone(at);
}

Test(engine_chaos, everything_at_once, .timeout = 240)
{
    eng_init(&b, "host", true);
    seed = 20261130;
    cr_log_info("seed %llu", (unsigned long long)seed);
    for (int round = 0; round < 150; round++)
        one_round();
    eng_fini(&b);
    cr_log_info("%d taken, %d refused, %d failures, %d preempted, %d cut, %d "
                "whole, %d spoilt, %d stopped",
                n_taken, n_refused, n_failed, n_preempted, n_cut, n_whole,
                n_spoilt, n_stopped);
    /* Far below what comes about, as any change of a decision changes it. */
    cr_assert(n_taken > 1000 && n_refused > 100 && n_failed > 100 &&
              n_preempted > 20 && n_cut > 100 && n_whole > 1000 &&
              n_spoilt > 20 && n_stopped > 20);
}
