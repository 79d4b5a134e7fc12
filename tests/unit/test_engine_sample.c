/* unit/test_engine_sample.c: what a request asks of its ids beyond greedy: stop
 * strings across ids, penalties, bias, bans, log-probabilities of answer and
 * prompt. The numbers are the sampler's own; here it is that the engine gives
 * it the right rows. */
#include <math.h>
#include <string.h>

#include "unit/engine_bed.h"

static eng b;
static folio_engine_request r;

static const int32_t some[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static void set_up(void)
{
    eng_init(&b, "host", true);
    b.p.prompt_logprobs = 1;
    b.p.budget = 16;
    b.p.n_blocks = 64;
    eng_open(&b);
    folio_engine_request_default(&r);
    r.prompt = some;
    r.n_prompt = 12;
    r.max_new = 12;
    r.ignore_eos = 1;
}

static void tear_down(void)
{
    eng_fini(&b);
}

TestSuite(engine_sample, .init = set_up, .fini = tear_down);

/* ---- stop strings -------------------------------------------------------- */

/* Ids of "alpha beta gamma delta", by engine_bed's pieces: "beta", "gam" and
 * "ma" are one each, the rest letters. */
static const int32_t words[] = {0,  11, 15, 7, 0, 52, 60, 52,
                                58, 59, 52, 3, 4, 11, 19, 0};

static int32_t say_words(void *user, folio_logits_row *row)
{
    const int32_t at = row->n_tok - row->n_prompt;
    (void)user;
    cr_assert_lt(at, (int32_t)FOLIO_COUNT(words));
    return words[at];
}

/* The answer to the words, stopped by these strings. */
static eng_answer *stopped_by(const char *x, const char *y)
{
    const char *stop[2] = {x, y};
    r.logits = say_words;
    r.max_new = (int32_t)FOLIO_COUNT(words);
    r.stop = stop;
    r.n_stop = y ? 2 : 1;
    const uint64_t id = eng_submit_as(&b, &r);
    eng_drain(&b, 40);
    return eng_find(&b, id, 0);
}

Test(engine_sample, a_stop_string_over_several_ids)
{
    const eng_answer *a = stopped_by("beta gamma", NULL);
    cr_assert_str_eq(a->text, "alpha ");
    cr_assert_eq(a->n, 10);
    cr_assert_eq(a->end.reason, FOLIO_REASON_STOP);
    cr_assert_eq(a->end.stop, 0);
}

Test(engine_sample, a_stop_string_that_ends_inside_an_id)
{
    const eng_answer *a = stopped_by("nowhere", "ta ga");
    cr_assert_str_eq(a->text, "alpha be");
    cr_assert_eq(a->n, 9);
    cr_assert_eq(a->end.stop, 1);
}

Test(engine_sample, a_stop_string_that_never_comes_takes_nothing_away)
{
    const eng_answer *a = stopped_by("beta gammy", "delta!");
    cr_assert_str_eq(a->text, "alpha beta gamma delta");
    cr_assert_eq(a->end.reason, FOLIO_REASON_LENGTH);
    cr_assert_eq(a->end.stop, -1);
}

Test(engine_sample, what_may_become_a_stop_string_is_held_back)
{
    const char *stop[] = {"beta gamma"};
    r.logits = say_words;
    r.max_new = (int32_t)FOLIO_COUNT(words);
    r.stop = stop;
    r.n_stop = 1;
    const uint64_t id = eng_submit_as(&b, &r);
    for (int i = 0; i < 9; i++)
        eng_step(&b);
    cr_assert_str_eq(eng_find(&b, id, 0)->text, "alpha ");
    TINY_OK(folio_engine_cancel(b.e, id));
    eng_drain(&b, 3);
    /* Cancelled: what was held is the end of the text. */
    cr_assert_str_eq(eng_find(&b, id, 0)->text, "alpha beta gam");
}

Test(engine_sample, bad_stop_strings_are_refused)
{
    const char *empty[] = {"x", ""}, *none[] = {NULL};
    uint64_t id;
    r.stop = empty;
    r.n_stop = 2;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
    r.stop = none;
    r.n_stop = 1;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
    r.stop = NULL;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
    cr_assert(folio_engine_is_idle(b.e));
}

/* ---- the sampler's parameters -------------------------------------------- */

static eng_answer run(void)
{
    const uint64_t id = eng_submit_as(&b, &r);
    eng_drain(&b, 60);
    const eng_answer *a = eng_find(&b, id, 0);
    cr_assert_eq(a->end.reason, FOLIO_REASON_LENGTH);
    return *a;
}

Test(engine_sample, bans_bias_and_their_arrays_are_copied)
{
    const eng_answer plain = run();
    int32_t ban[1] = {plain.ids[0]};
    r.sample.banned = ban;
    r.sample.n_banned = 1;
    uint64_t id = eng_submit_as(&b, &r);
    ban[0] = 9999; /* the caller's again */
    eng_drain(&b, 60);
    for (int i = 0; i < 12; i++)
        cr_assert_neq(eng_find(&b, id, 0)->ids[i], plain.ids[0]);
    r.sample.n_banned = 0;
    folio_logit_bias bias[1] = {{33, 1000.0f}};
    r.sample.logit_bias = bias;
    r.sample.n_logit_bias = 1;
    id = eng_submit_as(&b, &r);
    bias[0].id = 9999;
    eng_drain(&b, 60);
    for (int i = 0; i < 12; i++)
        cr_assert_eq(eng_find(&b, id, 0)->ids[i], 33);
    r.sample.logit_bias = bias;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
}

/* More than there are numbers for, once put together. */
Test(engine_sample, as_many_bans_as_nobody_needs_are_refused)
{
    const int32_t n = (1 << 24) + 1;
    int32_t *none = calloc((size_t)n, sizeof *none);
    uint64_t id = 77;
    cr_assert_not_null(none);
    r.stop_ids = r.sample.banned = none;
    for (int way = 0; way < 2; way++) {
        r.n_stop_ids = way ? n : n / 2;
        r.sample.n_banned = way ? 0 : n / 2 + 1;
        cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
        cr_assert_not_null(strstr(b.tiny.ear.err, "16777217"), "%s",
                           b.tiny.ear.err);
    }
    cr_assert_eq(id, 77);
    free(none);
}

Test(engine_sample, penalties_see_prompt_and_answer)
{
    /* So hard that no id of prompt or answer comes again. */
    r.sample.repetition_penalty = 100.0f;
    const eng_answer a = run();
    r.sample.repetition_penalty = 1.0f;
    r.sample.presence_penalty = 2.0f;
    r.sample.frequency_penalty = 2.0f;
    const eng_answer c = run();
    r.sample.presence_penalty = r.sample.frequency_penalty = 0.0f;
    r.sample.logprobs = 0;
    const eng_answer plain = run();
    cr_assert(memcmp(a.ids, plain.ids, sizeof a.ids) != 0 ||
              memcmp(c.ids, plain.ids, sizeof c.ids) != 0);
    /* Alone and among others. */
    r.sample.repetition_penalty = 100.0f;
    uint64_t ids[5];
    for (int i = 0; i < 5; i++)
        ids[i] = i == 2 ? eng_submit_as(&b, &r)
                        : eng_submit(&b, some + i, 4 + i, 12);
    eng_drain(&b, 60);
    cr_assert_eq(memcmp(eng_find(&b, ids[2], 0)->ids, a.ids, sizeof a.ids), 0);
}

Test(engine_sample, min_new_tokens_bans_the_stop_ids)
{
    int32_t stop[1];
    const eng_answer plain = run();
    stop[0] = plain.ids[0];
    r.stop_ids = stop;
    r.n_stop_ids = 1;
    r.sample.min_new_tokens = 12;
    const eng_answer a = run();
    for (int i = 0; i < 12; i++)
        cr_assert_neq(a.ids[i], plain.ids[0]);
}

/* ---- log-probabilities --------------------------------------------------- */

/* Events of one request until it is over, with their scores. */
typedef struct scored {
    folio_sample_result tok[16], prompt[16];
    int n_tok, n_prompt, n_events_prompt;
    bool prompt_first;
} scored;

static void run_scored(const folio_engine_request *q, scored *out)
{
    memset(out, 0, sizeof *out);
    const uint64_t id = eng_submit_as(&b, q);
    for (int guard = 0; !folio_engine_is_idle(b.e); guard++) {
        folio_event ev[64];
        size_t n;
        cr_assert_lt(guard, 200);
        TINY_OK(folio_engine_step(b.e, ev, 64, &n));
        for (size_t i = 0; i < n; i++) {
            if (ev[i].request != id)
                continue;
            if (ev[i].kind == FOLIO_EVENT_PROMPT) {
                out->n_events_prompt++;
                out->prompt_first = out->n_tok == 0;
                out->n_prompt = ev[i].n_prompt;
                cr_assert_leq(out->n_prompt, 16);
                memcpy(out->prompt, ev[i].scores,
                       (size_t)ev[i].n_prompt * sizeof out->prompt[0]);
            } else if (ev[i].kind == FOLIO_EVENT_TOKEN && ev[i].scores) {
                cr_assert_eq(ev[i].scores->id, ev[i].tok);
                out->tok[out->n_tok++] = *ev[i].scores;
            }
        }
    }
}

Test(engine_sample, logprobs_agree_with_their_list)
{
    scored s;
    r.logprobs = 5;
    run_scored(&r, &s);
    cr_assert_eq(s.n_tok, 12);
    for (int i = 0; i < 12; i++) {
        cr_assert_eq(s.tok[i].n_top, 5);
        cr_assert_eq(s.tok[i].top_ids[0], s.tok[i].id, "greedy");
        cr_assert_eq(s.tok[i].top_logprobs[0], s.tok[i].logprob);
        cr_assert_lt(s.tok[i].logprob, 0.0f);
    }
    cr_assert_eq(s.n_events_prompt, 0);
    r.logprobs = -1;
    run_scored(&r, &s);
    cr_assert_eq(s.n_tok, 0);
}

/* A prompt's scores are what the answer's were, when the answer is given as a
 * prompt; whole or in pieces, cached before or not. */
Test(engine_sample, a_prompts_scores_are_those_of_an_answer)
{
    scored s, p;
    int32_t text[16];
    r.n_prompt = 4;
    r.max_new = 12;
    r.logprobs = 3;
    run_scored(&r, &s);
    memcpy(text, some, 4 * sizeof *text);
    for (int i = 0; i < 12; i++)
        text[4 + i] = s.tok[i].id;
    static const int32_t budgets[] = {16, 3};
    for (int round = 0; round < 4; round++) {
        b.p.max_seqs = 3;
        b.p.budget = budgets[round / 2];
        if (round % 2 == 0)
            eng_open(&b);
        eng_submit(&b, text, 16, 20); /* beside it, and cached */
        r.prompt = text;
        r.n_prompt = 16;
        r.max_new = 2;
        r.n = 1 + round % 2;
        r.prompt_logprobs = 1;
        run_scored(&r, &p);
        cr_assert_eq(p.n_events_prompt, 1);
        cr_assert(p.prompt_first);
        cr_assert_eq(p.n_prompt, 16);
        for (int i = 1; i < 16; i++) {
            cr_assert_eq(p.prompt[i].id, text[i]);
            cr_assert_lt(p.prompt[i].logprob, 0.0f);
        }
        for (int i = 0; i < 12; i++) {
            const folio_sample_result *x = &p.prompt[4 + i], *y = &s.tok[i];
            cr_assert_eq(x->logprob, y->logprob, "round %d, id %d: %g, %g",
                         round, i, (double)x->logprob, (double)y->logprob);
            cr_assert_eq(memcmp(x->top_ids, y->top_ids, sizeof x->top_ids), 0);
        }
        eng_at_rest(&b);
    }
}

Test(engine_sample, short_prompts_of_many_completions_are_scored_once)
{
    scored p;
    r.n_prompt = 3;
    r.n = 4;
    r.prompt_logprobs = 1;
    run_scored(&r, &p);
    cr_assert_eq(p.n_events_prompt, 1);
    cr_assert_eq(p.n_prompt, 3);
    cr_assert_lt(p.prompt[2].logprob, 0.0f);
    r.n_prompt = 1;
    run_scored(&r, &p);
    cr_assert_eq(p.n_prompt, 1);
}

Test(engine_sample, prompt_scores_survive_preemption)
{
    scored alone, p;
    r.n_prompt = 12;
    r.prompt_logprobs = 1;
    run_scored(&r, &alone);
    b.p.n_blocks = 7;
    b.p.max_seqs = 3;
    b.p.budget = 5;
    eng_open(&b);
    for (int i = 0; i < 3; i++)
        eng_submit(&b, some + i, 4, 16);
    run_scored(&r, &p);
    cr_assert_gt(eng_stats(&b).preemptions, 0);
    cr_assert_eq(p.n_events_prompt, 1);
    for (int i = 1; i < 12; i++)
        cr_assert_eq(p.prompt[i].logprob, alone.prompt[i].logprob);
}

Test(engine_sample, prompt_scores_must_be_asked_for_at_open)
{
    uint64_t id;
    b.p.prompt_logprobs = 0;
    eng_open(&b);
    r.prompt_logprobs = 1;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_UNSUPPORTED);
    r.prompt_logprobs = 0;
    r.logprobs = FOLIO_LOGPROBS_MAX + 1;
    cr_assert_eq(folio_engine_submit(b.e, &r, &id), FOLIO_E_INVAL);
    b.p.prompt_logprobs = 1;
    b.p.chunking = 0;
    folio_engine *e = NULL;
    cr_assert_eq(folio_engine_open(b.model, b.tok, &b.p, &e), FOLIO_E_INVAL);
    cr_assert_null(e);
}
