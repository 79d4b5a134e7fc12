/* Long random runs with everything on, audited after each step: no block lost,
 * no text changed, nobody waits for ever. And the cost of a decision. Seeds are
 * fixed and printed. */
#define _POSIX_C_SOURCE 200809L
#include "sched/sched_state.h"
#include "unit/sched_dry.h"

#include <criterion/logging.h>
#include <stdlib.h>
#include <time.h>

typedef struct rng {
    uint32_t s;
} rng;

static uint32_t below(rng *r, uint32_t n)
{
    r->s = r->s * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(r->s >> 8) * n) >> 24);
}

/* ---- soaks --------------------------------------------------------------- */

enum { MAX_PROMPT = 96 };

/* What request `id` of a soak is: a function of seed and id, so that the same
 * one can be run alone. */
typedef struct soak_request {
    int32_t tok[MAX_PROMPT];
    folio_request_params p;
} soak_request;

/* A few system prompts, sharing starts of each other; then own tokens. */
static void make_request(uint32_t seed, uint64_t id, int32_t most,
                         soak_request *q)
{
    static const int32_t stop = 999;
    static const char *const salts[] = {"a", "b"};
    rng r = {seed ^ (uint32_t)id * 2654435761u};
    (void)below(&r, 2);
    const int32_t root = (int32_t)below(&r, 3);
    int32_t n = 1 + (int32_t)below(&r, (uint32_t)most - 1);
    if (below(&r, 2)) /* a short prompt and a long text: pressure */
        n = 1 + n / 6;
    n = FOLIO_MIN(n, MAX_PROMPT);
    const int32_t shared = (int32_t)below(&r, (uint32_t)n + 1);
    for (int32_t i = 0; i < n; i++)
        q->tok[i] = i < shared ? dry_prompt_tok((uint64_t)root, i / 7)
                               : dry_prompt_tok(id + 10, i);
    const int32_t room = FOLIO_MIN(most - n, 48);
    q->p = (folio_request_params){.id = id,
                                  .prompt = q->tok,
                                  .n_prompt = n,
                                  .max_new =
                                      1 + (int32_t)below(&r, (uint32_t)room),
                                  .n = below(&r, 5) ? 1 : 2 + below(&r, 3),
                                  .stop_ids = &stop,
                                  .n_stop_ids = 1,
                                  .priority = (int32_t)below(&r, 3)};
    const uint32_t salt = below(&r, 4);
    if (salt < 2) {
        q->p.salt = salts[salt];
        q->p.salt_bytes = 1;
    }
}

static folio_sched_params soak_params(rng *r, int32_t n_blocks)
{
    static const int32_t sizes[] = {1, 2, 4, 16};
    folio_sched_params p =
        dry_params(n_blocks, sizes[below(r, 4)], 1 + (int32_t)below(r, 6));
    p.prefix_cache = below(r, 4) != 0;
    p.fork = below(r, 4) != 0;
    p.step_tok = below(r, 2) ? p.max_seqs + (int32_t)below(r, 20) : 0;
    p.chunk_tok = below(r, 3) ? 0 : 1 + (int32_t)below(r, 9);
    p.watermark_blocks = (int32_t)below(r, (uint32_t)FOLIO_MIN(n_blocks, 4));
    p.age_plans = below(r, 2) ? 10 : 0;
    return p;
}

/* Texts that are not cut short by an abort or a deadline equal those of the
 * same request alone in a roomy pool without any feature. */
static void check_alone(const dry *b, uint32_t seed, uint64_t id, int32_t most)
{
    dry alone;
    soak_request q;
    folio_sched_params p = dry_params(256, 4, 8);
    p.fork = false;
    make_request(seed, id, most, &q);
    dry_open(&alone, &p);
    alone.audit = alone.check_kv = false;
    alone.eos = b->eos;
    dry_submit_as(&alone, &q.p);
    dry_drain(&alone, 1000);
    for (int32_t c = 0; c < FOLIO_MAX(q.p.n, 1); c++) {
        const dry_text *x = dry_text_of(b, id, c);
        const dry_text *y = dry_text_of(&alone, id, c);
        const bool cut = x->finish == FOLIO_FINISH_ABORT ||
                         x->finish == FOLIO_FINISH_DEADLINE;
        cr_assert(cut ? x->n <= y->n : x->n == y->n,
                  "seed %u: request %d.%d: %d tokens, alone %d", seed, (int)id,
                  (int)c, (int)x->n, (int)y->n);
        cr_assert(x->n == 0 || memcmp(x->tok, y->tok,
                                      (size_t)x->n * sizeof *x->tok) == 0,
                  "seed %u: request %d.%d: other tokens than alone", seed,
                  (int)id, (int)c);
    }
    dry_close(&alone);
}

typedef struct soak_sum {
    int64_t requests, completions, iterations, preemptions, cached, copied,
        evicted, aborted, rollbacks;
} soak_sum;

static void soak(uint32_t seed, int32_t n_requests, soak_sum *sum)
{
    rng r = {seed};
    dry b;
    const folio_sched_params p = soak_params(&r, 2 + (int32_t)below(&r, 63));
    const int32_t most = FOLIO_MIN(p.n_blocks * p.block_tok, 4 * MAX_PROMPT);
    dry_open(&b, &p);
    b.eos = 999;
    int32_t sent = 0, quiet = 0;
    while (sent < n_requests || !folio_sched_is_idle(b.s)) {
        for (uint32_t k = below(&r, 4); k > 0 && sent < n_requests; k--) {
            soak_request q;
            make_request(seed, (uint64_t)sent, most, &q);
            if (below(&r, 12) == 0)
                q.p.deadline_ns = b.now_ns + 1 + below(&r, 40);
            dry_submit_as(&b, &q.p);
            sent++;
        }
        if (below(&r, 9) == 0 && sent > 0) {
            const uint64_t id =
                (uint64_t)sent - 1 - below(&r, 12) % (uint32_t)sent;
            sum->aborted += folio_sched_abort(b.s, id) == FOLIO_OK;
        }
        const folio_sched_stats was = folio_sched_get_stats(b.s);
        b.now_ns++;
        if (dry_plan(&b)) {
            if (below(&r, 10) == 0) {
                OK(folio_sched_rollback(b.s, b.step));
                sum->rollbacks++;
                quiet--;
            } else {
                dry_compute(&b);
                dry_commit(&b, b.step);
            }
        }
        dry_audit(&b);
        /* Livelock: neither a token, nor an end, nor an eviction, nor a part of
         * a prompt. */
        const folio_sched_stats is = folio_sched_get_stats(b.s);
        quiet = is.collected > was.collected || is.finished > was.finished ||
                        is.preemptions > was.preemptions ||
                        is.forward_tok > was.forward_tok || is.n_in_flight == 0
                    ? 0
                    : quiet + 1;
        cr_assert_leq(quiet, 1, "seed %u: no progress at iteration %d", seed,
                      (int)b.iterations);
        cr_assert_lt(b.iterations, 400 * n_requests, "seed %u", seed);
    }
    const folio_block_pool_counts c =
        folio_block_pool_count(folio_sched_pool(b.s));
    cr_assert_eq(c.n_free, p.n_blocks, "seed %u", seed);
    cr_assert_eq(c.n_holders, 0);
    for (int32_t id = 0; id < n_requests; id++)
        check_alone(&b, seed, (uint64_t)id, most);
    const folio_sched_stats st = folio_sched_get_stats(b.s);
    cr_assert_eq(st.finished, st.submitted);
    sum->requests += sent;
    sum->completions += (int64_t)st.submitted;
    sum->iterations += b.iterations;
    sum->preemptions += (int64_t)st.preemptions;
    sum->cached += (int64_t)st.cached_tok;
    sum->copied += b.copied;
    sum->evicted += (int64_t)st.evicted_blocks;
    dry_close(&b);
}

Test(sched_soak, ten_thousand_requests)
{
    enum { EACH = 50 };
    /* tools/test --long asks for more. */
    const char *times = getenv("FOLIO_SOAK");
    const int n_times = times ? atoi(times) : 1;
    cr_assert(n_times >= 1 && n_times <= 10000, "FOLIO_SOAK=%s", times);
    const uint32_t n_seeds = 200u * (uint32_t)n_times;
    soak_sum sum = {0};
    for (uint32_t seed = 1; seed <= n_seeds; seed++)
        soak(seed * 7919u, EACH, &sum);
    cr_log_info("sched soak: seeds 7919 x 1..%d: %lld requests, %lld "
                "completions, %lld iterations, %lld preemptions, %lld "
                "positions found, %lld blocks copied, %lld evicted, %lld "
                "aborts, %lld failed steps",
                (int)n_seeds, (long long)sum.requests,
                (long long)sum.completions, (long long)sum.iterations,
                (long long)sum.preemptions, (long long)sum.cached,
                (long long)sum.copied, (long long)sum.evicted,
                (long long)sum.aborted, (long long)sum.rollbacks);
    cr_assert_geq(sum.requests, 10000 * (int64_t)n_times);
    /* The soak is about these. */
    cr_assert_gt(sum.preemptions, 1000);
    cr_assert_gt(sum.cached, 1000);
    cr_assert_gt(sum.copied, 100);
    cr_assert_gt(sum.evicted, 1000);
    cr_assert_gt(sum.aborted, 100);
    cr_assert_gt(sum.rollbacks, 1000);
}

/* The same without aborts and failed steps, run-ahead against not. */
Test(sched_soak, run_ahead)
{
    for (uint32_t seed = 1; seed <= 60; seed++) {
        rng r = {seed * 104729u};
        dry b;
        folio_sched_params p = soak_params(&r, 2 + (int32_t)below(&r, 40));
        const int32_t most =
            FOLIO_MIN(p.n_blocks * p.block_tok, 4 * MAX_PROMPT);
        p.run_ahead = 1;
        dry_open(&b, &p);
        b.eos = 999;
        for (int32_t id = 0; id < 20; id++) {
            soak_request q;
            make_request(seed, (uint64_t)id, most, &q);
            dry_submit_as(&b, &q.p);
        }
        dry_drain_ahead(&b, 20000);
        dry_audit(&b);
        cr_assert_eq(n_free(folio_sched_pool(b.s)), p.n_blocks);
        for (int32_t id = 0; id < 20; id++)
            check_alone(&b, seed, (uint64_t)id, most);
        dry_close(&b);
    }
}

/* What is remembered of a blocked head changes no decision: two schedulers get
 * the same work, one of them is made to forget before each plan. Each text
 * comes many times, so that what one writes another waits for. */
Test(sched_soak, remembering_a_blocked_head_changes_nothing)
{
    uint64_t with = 0, without = 0;
    for (uint32_t seed = 1; seed <= 300; seed++) {
        rng r = {seed};
        dry b[2];
        const folio_sched_params p =
            soak_params(&r, 2 + (int32_t)below(&r, 120));
        const int32_t most =
            FOLIO_MIN(p.n_blocks * p.block_tok, 4 * MAX_PROMPT);
        for (int k = 0; k < 2; k++) {
            dry_open(&b[k], &p);
            b[k].eos = 999;
            b[k].audit = b[k].check_kv = false;
        }
        int32_t sent = 0;
        while (sent < 80 || !folio_sched_is_idle(b[0].s)) {
            const uint32_t n = below(&r, 4), end = below(&r, 9);
            const bool back = below(&r, 10) == 0;
            folio_status gone[2] = {FOLIO_OK, FOLIO_OK};
            for (uint32_t i = 0; i < n && sent < 80; i++, sent++) {
                soak_request q;
                make_request(seed, (uint64_t)sent % 10, most, &q);
                q.p.id = (uint64_t)sent;
                for (int k = 0; k < 2; k++)
                    dry_submit_as(&b[k], &q.p);
            }
            for (int k = 0; k < 2; k++) {
                if (end == 0 && sent > 0)
                    gone[k] = folio_sched_abort(
                        b[k].s,
                        (uint64_t)sent - 1 - (uint64_t)n % (uint64_t)sent);
                if (k)
                    folio_sched_forget_blocked(b[k].s);
                if (!dry_plan(&b[k]))
                    continue;
                if (back) {
                    OK(folio_sched_rollback(b[k].s, b[k].step));
                } else {
                    dry_compute(&b[k]);
                    dry_commit(&b[k], b[k].step);
                }
            }
            const folio_step *x = b[0].step, *y = b[1].step;
            cr_assert_eq(gone[0], gone[1]);
            cr_assert_eq(x->n_waiting, y->n_waiting, "seed %u, plan %d", seed,
                         (int)x->number);
            cr_assert_eq(x->n_tok, y->n_tok);
            cr_assert_eq(x->n_copies, y->n_copies);
            cr_assert_eq(x->n_preempted, y->n_preempted);
            cr_assert_eq(x->n_admitted, y->n_admitted);
            cr_assert_eq(
                memcmp(x->slot, y->slot, (size_t)x->n_tok * sizeof *x->slot), 0,
                "seed %u, plan %d", seed, (int)x->number);
        }
        dry_same_texts(&b[0], &b[1]);
        with += folio_sched_get_stats(b[0].s).lookups;
        without += folio_sched_get_stats(b[1].s).lookups;
        for (int k = 0; k < 2; k++)
            dry_close(&b[k]);
    }
    cr_log_info("seeds 1..300: %llu blocks looked up, %llu without a memory",
                (unsigned long long)with, (unsigned long long)without);
    cr_assert_lt(with, without);
}

/* 12 requests over 3 places and 10 blocks, whatever the order they come in. */
Test(sched_soak, order_of_arrival_changes_no_text)
{
    dry first;
    for (uint32_t seed = 0; seed < 40; seed++) {
        dry b;
        rng r = {seed};
        uint64_t ids[12];
        const folio_sched_params p = dry_params(10, 4, 3);
        dry_open(&b, &p);
        for (uint64_t i = 0; i < 12; i++)
            ids[i] = i;
        for (uint32_t i = 12; seed && i > 1; i--) {
            const uint32_t j = below(&r, i);
            const uint64_t id = ids[i - 1];
            ids[i - 1] = ids[j];
            ids[j] = id;
        }
        for (int32_t i = 0; i < 12; i++)
            dry_submit(&b, ids[i], 4, 8);
        dry_drain(&b, 400);
        if (seed == 0) {
            first = b;
            continue;
        }
        dry_same_texts(&first, &b);
        dry_close(&b);
    }
    dry_close(&first);
}

/* Everything is given back and forgotten: memory for 2,000 requests in turn is
 * that of the few in flight. The sanitizer's leak check covers the rest. */
Test(sched_soak, many_in_turn)
{
    dry b;
    folio_sched_params p = dry_params(16, 4, 4);
    p.max_requests = 8;
    p.prefix_cache = true;
    dry_open(&b, &p);
    for (uint64_t i = 0; i < 2000; i++) {
        while (folio_sched_get_stats(b.s).n_in_flight == 8)
            cr_assert(dry_step(&b));
        dry_submit(&b, i, 1 + (int32_t)(i % 9), 1 + (int32_t)(i % 5));
    }
    dry_drain(&b, 1000);
    cr_assert_eq(folio_sched_get_stats(b.s).finished, 2000);
    dry_close(&b);
}

/* ---- figures ------------------------------------------------------------- */

static uint64_t cpu_ns(void)
{
    struct timespec t;
    cr_assert_eq(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Rows scheduled per second of plan and commit alone, 1,000 running, 10,000
 * waiting; each text has n_prompt tokens before the measured steps. */
static double rows_per_second(int32_t n_prompt, bool prefix_cache)
{
    /* A window is as many steps as a block has tokens, so that each has its
     * share of new and of published blocks. The best one counts. */
    enum { RUN = 1000, WAIT = 10000, WINDOW = 16, WINDOWS = 12 };
    folio_sched_params p;
    folio_sched *s = NULL;
    const int32_t max_new = 2 * WINDOW * WINDOWS;
    folio_sched_params_default(&p);
    p.max_seqs = RUN;
    p.max_requests = RUN + WAIT;
    p.n_blocks = RUN * ((n_prompt + max_new) / 16 + 2);
    p.max_len = n_prompt + max_new;
    p.prefix_cache = prefix_cache;
    OK(folio_sched_open(&p, &s));
    int32_t *prompt = calloc((size_t)n_prompt, sizeof *prompt);
    int32_t *next = calloc(RUN, sizeof *next);
    cr_assert(prompt && next);
    for (int32_t i = 0; i < RUN + WAIT; i++) {
        /* Those who wait need not be long to be many. */
        const int32_t n = i < RUN ? n_prompt : 32;
        for (int32_t k = 0; k < n; k++)
            prompt[k] = dry_prompt_tok((uint64_t)i, k);
        OK(folio_sched_submit(s,
                              &(folio_request_params){.id = (uint64_t)i,
                                                      .prompt = prompt,
                                                      .n_prompt = n,
                                                      .max_new = max_new},
                              NULL));
    }
    uint64_t window = 0, best = UINT64_MAX;
    for (int32_t i = 0; i < 1 + WINDOWS * WINDOW; i++) {
        const folio_step *step;
        const uint64_t t0 = cpu_ns();
        OK(folio_sched_plan(s, 0, &step));
        const uint64_t t1 = cpu_ns();
        for (int32_t k = 0; k < step->n_rows; k++)
            next[k] = (int32_t)((step->number * 31 + (uint64_t)k * 7) % 30000);
        const uint64_t t2 = cpu_ns();
        OK(folio_sched_commit(s, step, next, NULL, NULL));
        cr_assert_eq(step->n_seq, RUN);
        if (i == 0)
            continue; /* takes all prompts in */
        window += t1 - t0 + cpu_ns() - t2;
        if (i % WINDOW == 0) {
            best = FOLIO_MIN(best, window);
            window = 0;
        }
    }
    cr_assert_eq(folio_sched_get_stats(s).n_waiting, WAIT);
    folio_sched_close(&s);
    free(prompt);
    free(next);
    return (double)RUN * WINDOW * 1e9 / (double)best;
}

Test(sched_soak, decisions_cost_the_batch_not_the_history)
{
    for (int cache = 0; cache < 2; cache++) {
        const double at_64 = rows_per_second(64, cache);
        const double at_2048 = rows_per_second(2048, cache);
        cr_log_info("sched: 1,000 running, 10,000 waiting, prefix cache %s: "
                    "%.0f rows/s at 64 tokens, %.0f at 2,048",
                    cache ? "on" : "off", at_64, at_2048);
        /* Bounds for unoptimised and sanitized builds on busy machines; the
         * figures of an optimised one are several times as high. */
        cr_assert_geq(at_2048, 200e3, "%.0f rows/s", at_2048);
        cr_assert_geq(at_2048, at_64 / 3, "%.0f and %.0f", at_64, at_2048);
    }
}
