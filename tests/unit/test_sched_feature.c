/* Chunked prefill, forks, classes and ageing, deadlines, rollback and
 * run-ahead. */
#include "sched/audit.h"
#include "sched/sched_state.h"
#include "unit/sched_dry.h"

static void submit(dry *b, uint64_t id, int32_t n_prompt, int32_t max_new,
                   int32_t n, int32_t priority, uint64_t deadline_ns)
{
    int32_t tok[2048];
    cr_assert_leq(n_prompt, 2048);
    for (int32_t i = 0; i < n_prompt; i++)
        tok[i] = dry_prompt_tok(id, i);
    dry_submit_as(b, &(folio_request_params){.id = id,
                                             .prompt = tok,
                                             .n_prompt = n_prompt,
                                             .max_new = max_new,
                                             .n = n,
                                             .priority = priority,
                                             .deadline_ns = deadline_ns});
}

/* ---- chunked prefill ----------------------------------------------------- */

Test(sched_feature, chunks_keep_the_budget_and_the_text)
{
    static const int32_t budgets[] = {4, 5, 7, 16, 64};
    dry plain;
    folio_sched_params p = dry_params(128, 4, 4);
    dry_open(&plain, &p);
    for (uint64_t i = 0; i < 10; i++)
        submit(&plain, i, 1 + (int32_t)i * 9, 6, 1, 0, 0);
    dry_drain(&plain, 400);
    for (size_t k = 0; k < FOLIO_COUNT(budgets); k++)
        for (int32_t chunk = 0; chunk < 12; chunk += 3) {
            dry b;
            p.step_tok = budgets[k];
            p.chunk_tok = chunk;
            dry_open(&b, &p);
            for (uint64_t i = 0; i < 10; i++)
                submit(&b, i, 1 + (int32_t)i * 9, 6, 1, 0, 0);
            while (dry_step(&b)) {
                cr_assert_leq(b.step->n_tok, budgets[k]);
                for (int32_t i = 0; i < b.step->n_seq; i++)
                    cr_assert(!chunk || b.step->seq[i].n_new <= chunk);
            }
            dry_same_texts(&b, &plain);
            dry_close(&b);
        }
    dry_close(&plain);
}

/* Four streams and a prompt of 1,000: no stream misses a step, and the prompt
 * gets all that the streams leave. */
Test(sched_feature, a_long_prompt_stalls_no_stream)
{
    dry b;
    folio_sched_params p = dry_params(600, 4, 8);
    p.step_tok = 64;
    dry_open(&b, &p);
    for (uint64_t i = 0; i < 4; i++)
        submit(&b, i, 4, 100, 1, 0, 0);
    cr_assert(dry_step(&b));
    submit(&b, 4, 1000, 4, 1, 0, 0);
    const int32_t from = b.iterations;
    while (dry_text_of(&b, 4, 0)->n == 0) {
        cr_assert(dry_step(&b));
        for (uint64_t i = 0; i < 4; i++)
            cr_assert_eq(dry_text_of(&b, i, 0)->n, b.iterations);
    }
    cr_assert_eq(b.iterations - from, (1000 + 59) / 60);
    /* Admission took the blocks of the whole prompt. */
    dry_drain(&b, 200);
    dry_close(&b);
}

/* A limit on prompts holds while somebody streams, and only then. */
Test(sched_feature, prompts_keep_their_limit_beside_streams)
{
    dry b;
    folio_sched_params p = dry_params(600, 4, 8);
    p.step_tok = 64;
    dry_open(&b, &p);
    submit(&b, 0, 4, 20, 1, 0, 0);
    submit(&b, 1, 4, 20, 1, 0, 0);
    cr_assert(dry_step(&b));
    cr_assert_eq(folio_sched_n_decoding(b.s), 2);
    submit(&b, 2, 200, 4, 1, 0, 0);
    submit(&b, 3, 200, 4, 1, 0, 0);
    for (int32_t i = 0; i < 19; i++) {
        const int32_t limit = i % 5;
        folio_sched_limit_prompts(b.s, limit);
        cr_assert(dry_step(&b));
        cr_assert_eq(b.step->n_tok, 2 + limit);
    }
    cr_assert(dry_step(&b));
    cr_assert_eq(folio_sched_n_decoding(b.s), 0);
    cr_assert_eq(b.step->n_tok, 64);
    folio_sched_limit_prompts(b.s, INT32_MAX);
    dry_drain(&b, 200);
    dry_close(&b);
}

Test(sched_feature, streams_do_not_starve_a_prompt)
{
    dry b;
    folio_sched_params p = dry_params(600, 4, 8);
    p.step_tok = 8; /* as small as it may be */
    dry_open(&b, &p);
    for (uint64_t i = 0; i < 7; i++)
        submit(&b, i, 1, 90, 1, 0, 0);
    cr_assert(dry_step(&b));
    submit(&b, 7, 40, 2, 1, 0, 0);
    cr_assert(dry_step(&b));
    int32_t n;
    folio_sched_blocks(b.s, 7, &n);
    cr_assert_eq(n, 10); /* the whole prompt's, at once */
    for (int i = 0; i < 39; i++)
        cr_assert(dry_step(&b));
    cr_assert_eq(dry_text_of(&b, 7, 0)->n, 1);
    dry_drain(&b, 200);
    dry_close(&b);
}

/* What one prompt's chunk leaves, the next one gets. */
Test(sched_feature, the_budget_is_used_up)
{
    dry b;
    folio_sched_params p = dry_params(64, 4, 4);
    p.step_tok = 14;
    p.chunk_tok = 4;
    dry_open(&b, &p);
    for (uint64_t i = 0; i < 4; i++)
        submit(&b, i, 13, 2, 1, 0, 0);
    static const int32_t want[4][4] = {
        {4, 4, 4, 2}, {4, 4, 4, 2}, {4, 4, 4, 2}, {1, 1, 1, 4}};
    for (int k = 0; k < 4; k++) {
        cr_assert(dry_step(&b));
        for (int32_t i = 0; i < 4; i++)
            cr_assert_eq(b.step->seq[i].n_new, want[k][i]);
    }
    dry_drain(&b, 10);
    dry_close(&b);
}

Test(sched_feature, preempted_in_the_middle_of_a_prompt)
{
    dry b, plain;
    folio_sched_params p = dry_params(8, 4, 3);
    dry_open(&plain, &p);
    p.step_tok = 3;
    dry_open(&b, &p);
    for (int k = 0; k < 2; k++) {
        dry *d = k ? &plain : &b;
        submit(d, 0, 4, 20, 1, 0, 0);
        submit(d, 1, 20, 3, 1, 0, 0);
    }
    dry_drain(&b, 200);
    dry_drain(&plain, 200);
    cr_assert_gt(dry_text_of(&b, 1, 0)->n_preempt, 0);
    dry_same_texts(&b, &plain);
    dry_close(&b);
    dry_close(&plain);
}

/* ---- forks --------------------------------------------------------------- */

/* The same request n times over, one by one and without sharing. */
static void solo_texts(dry *out, int32_t n_prompt, int32_t max_new, int32_t n)
{
    folio_sched_params p = dry_params(256, 4, 8);
    p.fork = false;
    dry_open(out, &p);
    submit(out, 0, n_prompt, max_new, n, 0, 0);
    dry_drain(out, 400);
}

Test(sched_feature, siblings_share_the_prompt)
{
    for (int32_t n_prompt = 2; n_prompt <= 13; n_prompt++)
        for (int cache = 0; cache < 2; cache++) {
            dry solo, b;
            folio_sched_params p = dry_params(64, 4, 8);
            p.prefix_cache = cache;
            solo_texts(&solo, n_prompt, 9, 4);
            dry_open(&b, &p);
            submit(&b, 0, n_prompt, 9, 4, 0, 0);
            cr_assert(dry_step(&b));
            cr_assert_eq(b.step->n_seq, 1); /* the others wait for the first */
            cr_assert(dry_step(&b));
            cr_assert_eq(b.step->n_seq, 4);
            cr_assert_eq(b.step->n_tok, 4); /* only the last token again */
            const int32_t shared = n_prompt - 1;
            cr_assert_eq(b.step->n_copies, shared % 4 ? 3 : 0);
            for (int32_t c = 1; c < 4; c++)
                cr_assert_eq(folio_sched_find(b.s, 0, c)->n_cached, shared);
            for (int32_t i = 0; i < shared / 4; i++) {
                int32_t n;
                const int32_t *blks = folio_sched_blocks(b.s, 0, &n);
                cr_assert_eq(refs(folio_sched_pool(b.s), blks[i]), 4);
            }
            dry_drain(&b, 60);
            dry_same_texts(&solo, &b);
            const dry_text *x = dry_text_of(&b, 0, 0);
            const dry_text *y = dry_text_of(&b, 0, 1);
            cr_assert_neq(memcmp(x->tok, y->tok, 9 * sizeof *x->tok), 0,
                          "completions draw for themselves");
            cr_assert_eq(n_free(folio_sched_pool(b.s)), 64);
            dry_close(&b);
            dry_close(&solo);
        }
}

Test(sched_feature, siblings_under_pressure)
{
    dry solo;
    solo_texts(&solo, 10, 14, 6);
    for (int32_t blocks = 6; blocks < 20; blocks++)
        for (int cache = 0; cache < 2; cache++) {
            dry b;
            folio_sched_params p = dry_params(blocks, 4, 5);
            p.prefix_cache = cache;
            p.step_tok = blocks % 3 ? 0 : 7;
            dry_open(&b, &p);
            submit(&b, 0, 10, 14, 6, 0, 0);
            dry_drain(&b, 600);
            dry_same_texts(&solo, &b);
            cr_assert_eq(n_free(folio_sched_pool(b.s)), blocks);
            dry_close(&b);
        }
    dry_close(&solo);
}

/* The first one is gone before the others came: they go alone. */
Test(sched_feature, siblings_of_one_token)
{
    dry b, solo;
    folio_sched_params p = dry_params(16, 4, 4);
    solo_texts(&solo, 9, 1, 4);
    dry_open(&b, &p);
    submit(&b, 0, 9, 1, 4, 0, 0);
    dry_drain(&b, 20);
    dry_same_texts(&solo, &b);
    dry_close(&b);
    p.prefix_cache = true;
    dry_open(&b, &p);
    submit(&b, 0, 9, 1, 4, 0, 0);
    dry_drain(&b, 20);
    dry_same_texts(&solo, &b);
    cr_assert_eq(folio_sched_get_stats(b.s).cached_tok, 3 * 8);
    dry_close(&b);
    dry_close(&solo);
}

Test(sched_feature, aborting_a_group_ends_all_of_it)
{
    dry b;
    const folio_sched_params p = dry_params(64, 4, 3);
    dry_open(&b, &p);
    submit(&b, 0, 9, 9, 5, 0, 0);
    cr_assert(dry_step(&b));
    cr_assert(dry_step(&b));
    OK(folio_sched_abort(b.s, 0)); /* some run, some wait */
    cr_assert_not(dry_step(&b));
    cr_assert_eq(b.step->n_released, 5);
    cr_assert_eq(n_free(folio_sched_pool(b.s)), 64);
    dry_close(&b);
}

/* ---- classes ------------------------------------------------------------- */

Test(sched_feature, the_higher_class_goes_first_and_is_evicted_last)
{
    dry b;
    folio_sched_params p = dry_params(3, 4, 4);
    p.age_plans = 0;
    dry_open(&b, &p);
    submit(&b, 0, 4, 8, 1, 0, 0);
    submit(&b, 1, 4, 8, 1, 5, 0);
    submit(&b, 2, 4, 8, 1, 5, 0);
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->admitted[0]->id, 1);
    cr_assert_eq(b.step->admitted[1]->id, 2);
    cr_assert_eq(b.step->admitted[2]->id, 0);
    cr_assert(dry_step(&b));
    /* The oldest of all is the lowest class: it goes first. */
    cr_assert_eq(b.step->preempted[0]->id, 0);
    cr_assert_eq(b.step->preempted[1]->id, 2);
    dry_drain(&b, 100);
    cr_assert_eq(dry_text_of(&b, 1, 0)->n_preempt, 0);
    cr_assert_eq(b.finish_order[0], 1);
    cr_assert_eq(b.finish_order[1], 2);
    cr_assert_eq(b.finish_order[2], 0);
    dry_close(&b);
}

/* A stream of high-class requests without end: waiting lifts the low one. */
Test(sched_feature, ageing_lets_nobody_starve)
{
    for (int32_t age = 0; age <= 10; age += 10) {
        dry b;
        folio_sched_params p = dry_params(16, 4, 2);
        p.age_plans = age;
        dry_open(&b, &p);
        submit(&b, 0, 4, 4, 1, 0, 0);
        uint64_t id = 1;
        for (int i = 0; i < 300; i++) {
            submit(&b, id++, 4, 2, 1, 7, 0);
            submit(&b, id++, 4, 2, 1, 7, 0);
            cr_assert(dry_step(&b));
        }
        const dry_text *t = dry_text_of(&b, 0, 0);
        if (age) {
            cr_assert(t->released);
            /* Seven classes up, and then in order of arrival. */
            cr_assert_geq(t->first_at, 70);
            cr_assert_leq(t->first_at, 75);
        } else {
            cr_assert_eq(t->n, 0); /* what ageing is there for */
        }
        dry_drain(&b, 2000);
        dry_close(&b);
    }
}

Test(sched_feature, within_a_class_it_stays_first_come_first_served)
{
    dry b;
    const folio_sched_params p = dry_params(64, 4, 1);
    dry_open(&b, &p);
    for (uint64_t i = 0; i < 20; i++)
        submit(&b, i, 4, 1, 1, i % 2 ? 3 : 1, 0);
    dry_drain(&b, 60);
    for (int32_t i = 0; i < 10; i++) {
        cr_assert_eq(b.finish_order[i], 2 * i + 1);
        cr_assert_eq(b.finish_order[10 + i], 2 * i);
    }
    dry_close(&b);
}

/* ---- deadlines ----------------------------------------------------------- */

Test(sched_feature, deadlines_end_in_every_state)
{
    dry b;
    const folio_sched_params p = dry_params(64, 4, 2);
    dry_open(&b, &p);
    submit(&b, 0, 4, 50, 1, 0, 30); /* will run */
    submit(&b, 1, 4, 50, 1, 0, 0);
    submit(&b, 2, 4, 50, 1, 0, 10); /* will wait */
    submit(&b, 3, 4, 50, 1, 0, 20);
    submit(&b, 4, 4, 2, 1, 0, 1000); /* done in time */
    for (b.now_ns = 1; b.now_ns <= 60; b.now_ns++) {
        cr_assert(dry_step(&b) || folio_sched_is_idle(b.s));
        cr_assert_eq(dry_text_of(&b, 2, 0)->released, b.now_ns >= 10);
        cr_assert_eq(dry_text_of(&b, 3, 0)->released, b.now_ns >= 20);
        cr_assert_eq(dry_text_of(&b, 0, 0)->released, b.now_ns >= 30);
    }
    cr_assert_eq(dry_text_of(&b, 2, 0)->finish, FOLIO_FINISH_DEADLINE);
    cr_assert_eq(dry_text_of(&b, 0, 0)->finish, FOLIO_FINISH_DEADLINE);
    cr_assert_eq(dry_text_of(&b, 0, 0)->n, 29);
    cr_assert_eq(dry_text_of(&b, 4, 0)->finish, FOLIO_FINISH_LENGTH);
    cr_assert_eq(dry_text_of(&b, 1, 0)->finish, FOLIO_FINISH_LENGTH);
    dry_close(&b);
}

/* Many deadlines in any order, some requests gone before theirs. */
Test(sched_feature, a_thousand_deadlines)
{
    dry b;
    const folio_sched_params p = dry_params(64, 4, 1);
    dry_open(&b, &p);
    b.audit = false;
    submit(&b, 1000, 4, 250, 1, 0, 0); /* has the only place */
    for (uint64_t i = 0; i < 1000; i++)
        submit(&b, i, 1, 1, 1, 0, 1 + i * 7919 % 200);
    for (uint64_t i = 0; i < 1000; i += 7)
        OK(folio_sched_abort(b.s, i));
    for (b.now_ns = 0; b.now_ns <= 200; b.now_ns++) {
        cr_assert(dry_step(&b));
        for (uint64_t i = 0; i < 1000; i++) {
            const bool aborted = i % 7 == 0;
            const bool past = 1 + i * 7919 % 200 <= b.now_ns;
            const dry_text *t = dry_text_of(&b, i, 0);
            cr_assert_eq(t->released, aborted || past);
            if (t->released)
                cr_assert_eq(t->finish, aborted ? FOLIO_FINISH_ABORT
                                                : FOLIO_FINISH_DEADLINE);
        }
    }
    dry_audit(&b);
    dry_close(&b);
}

/* Deadlines leave in any order; those that stay keep their order. */
Test(sched_feature, deadlines_in_random_order)
{
    enum { N = 400 };
    dry b;
    const folio_sched_params p = dry_params(64, 4, 1);
    dry_open(&b, &p);
    b.audit = false;
    for (uint64_t i = 0; i < N; i++)
        submit(&b, i, 1, 1, 1, 0, 1 + (uint64_t)dry_prompt_tok(i, 3));
    for (int32_t k = 0; k < N; k++) {
        const uint64_t id = (uint64_t)dry_prompt_tok(77, k) % N;
        OK(folio_sched_abort(b.s, id));
        for (int32_t i = 1; i < b.s->n_heap; i++) {
            cr_assert_geq(b.s->heap[i]->deadline_ns,
                          b.s->heap[(i - 1) / 2]->deadline_ns);
            cr_assert_eq(b.s->heap[i]->heap_pos, i);
        }
    }
    cr_assert_lt(b.s->n_heap, 200);
    dry_close(&b);
}

/* ---- a step that failed -------------------------------------------------- */

/* The free stack and all places before a plan are those after its rollback,
 * and the step is planned the same way again. */
Test(sched_feature, rollback_restores)
{
    dry b, plain;
    folio_sched_params p = dry_params(40, 4, 6);
    dry_open(&b, &p);
    dry_open(&plain, &p);
    for (uint64_t i = 0; i < 9; i++) {
        submit(&b, i, 3 + (int32_t)i, 7, 1, 0, 0);
        submit(&plain, i, 3 + (int32_t)i, 7, 1, 0, 0);
    }
    while (!folio_sched_is_idle(b.s)) {
        int32_t before[64], n_before, n_after;
        OK(folio_sched_plan(b.s, 0, &b.step)); /* releases, so that the next
                                                  one only takes */
        if (!b.step->n_seq)
            break;
        OK(folio_sched_rollback(b.s, b.step));
        const int32_t *stack =
            folio_block_pool_free_stack(folio_sched_pool(b.s), &n_before);
        memcpy(before, stack, (size_t)n_before * sizeof *before);
        dry_audit(&b);
        for (int k = 0; k < 3; k++) {
            OK(folio_sched_plan(b.s, 0, &b.step));
            OK(folio_sched_rollback(b.s, b.step));
            stack =
                folio_block_pool_free_stack(folio_sched_pool(b.s), &n_after);
            cr_assert_eq(n_after, n_before);
            cr_assert_eq(
                memcmp(stack, before, (size_t)n_before * sizeof *before), 0);
            dry_audit(&b);
        }
        cr_assert(dry_step(&b));
    }
    dry_drain(&plain, 100);
    const folio_sched_stats sb = folio_sched_get_stats(b.s);
    const folio_sched_stats sp = folio_sched_get_stats(plain.s);
    cr_assert_eq(sb.steps, sp.steps);
    cr_assert_eq(sb.issued, sp.issued);
    cr_assert_eq(sb.forward_tok, sp.forward_tok);
    cr_assert_eq(sb.prefill_tok, sp.prefill_tok);
    cr_assert_eq(sb.admissions, sp.admissions);
    dry_close(&b);
    dry_close(&plain);
}

/* Every third step fails, with everything switched on. */
Test(sched_feature, failing_steps_change_no_text)
{
    for (int32_t blocks = 8; blocks < 30; blocks += 3) {
        dry b, plain;
        folio_sched_params p = dry_params(blocks, 4, 5);
        p.prefix_cache = true;
        p.step_tok = 9;
        dry_open(&b, &p);
        dry_open(&plain, &p);
        for (uint64_t i = 0; i < 12; i++) {
            const int32_t n = 8 + (int32_t)i % 3, forks = 1 + (int32_t)i % 3;
            submit(&b, i, n, 9, forks, 0, 0);
            submit(&plain, i, n, 9, forks, 0, 0);
        }
        int k = 0;
        while (!folio_sched_is_idle(b.s)) {
            cr_assert_lt(k, 3000);
            const bool any = dry_plan(&b);
            if (any && k++ % 3 == 2) {
                OK(folio_sched_rollback(b.s, b.step));
            } else if (any) {
                dry_compute(&b);
                dry_commit(&b, b.step);
            }
            dry_audit(&b);
        }
        dry_drain(&plain, 3000);
        dry_same_texts(&b, &plain);
        dry_close(&b);
        dry_close(&plain);
    }
}

/* ---- run-ahead ----------------------------------------------------------- */

static void run_ahead_equals(const folio_sched_params *params, int32_t eos)
{
    dry a, b;
    folio_sched_params p = *params;
    dry_open(&a, &p);
    p.run_ahead = 1;
    dry_open(&b, &p);
    a.eos = b.eos = eos;
    for (int k = 0; k < 2; k++)
        for (uint64_t i = 0; i < 14; i++) {
            int32_t tok[16];
            const int32_t n = 1 + (int32_t)i % 11;
            for (int32_t t = 0; t < n; t++)
                tok[t] = dry_prompt_tok(i % 3 ? i : 0, t);
            dry_submit_as(k ? &b : &a,
                          &(folio_request_params){.id = i,
                                                  .prompt = tok,
                                                  .n_prompt = n,
                                                  .max_new = 3 + (int32_t)i,
                                                  .n = 1 + (int32_t)i % 2,
                                                  .stop_ids = &eos,
                                                  .n_stop_ids = eos >= 0});
        }
    dry_drain(&a, 2000);
    dry_drain_ahead(&b, 2000);
    dry_audit(&b);
    dry_same_texts(&a, &b);
    cr_assert_eq(n_free(folio_sched_pool(b.s)), p.n_blocks);
    dry_close(&a);
    dry_close(&b);
}

Test(sched_feature, run_ahead_changes_no_text)
{
    for (int32_t blocks = 5; blocks < 60; blocks += 4)
        for (int cache = 0; cache < 2; cache++)
            for (int budget = 0; budget < 2; budget++)
                for (int stop = 0; stop < 2; stop++) {
                    folio_sched_params p = dry_params(blocks, 4, 4);
                    p.prefix_cache = cache;
                    p.step_tok = budget ? 6 : 0;
                    if (blocks * 4 < 11 + 16)
                        continue;
                    run_ahead_equals(&p, stop ? 999 : -1);
                }
}

Test(sched_feature, run_ahead_reads_the_newest_token_from_the_step_before)
{
    dry b;
    folio_sched_params p = dry_params(16, 4, 2);
    p.run_ahead = 1;
    dry_open(&b, &p);
    submit(&b, 0, 3, 3, 1, 0, 0);
    submit(&b, 1, 5, 3, 1, 0, 0);
    cr_assert(dry_plan(&b));
    const folio_step *first = b.step;
    dry_compute(&b);
    cr_assert(dry_plan(&b));
    cr_assert_eq(b.step->n_tok, 2);
    for (int32_t i = 0; i < 2; i++) {
        cr_assert_eq(b.step->tok[i], FOLIO_TOK_PENDING);
        cr_assert_eq(b.step->seq[i].pending_row, i);
    }
    const folio_step *second = b.step;
    const folio_step *third = NULL;
    SAYS(&b.log, folio_sched_plan(b.s, 0, &third), FOLIO_E_INVAL, "2 steps");
    SAYS(&b.log, folio_sched_commit(b.s, second, b.drawn[1], NULL, NULL),
         FOLIO_E_INVAL, "oldest");
    SAYS(&b.log, folio_sched_rollback(b.s, first), FOLIO_E_INVAL, "newest");
    folio_audit_report r;
    folio_sched_audit(b.s, &r);
    cr_assert_eq(r.kinds, UINT64_C(1) << FOLIO_AUDIT_UNSETTLED);
    /* Both taken back, newest first, and planned again. */
    OK(folio_sched_rollback(b.s, second));
    OK(folio_sched_rollback(b.s, first));
    dry_audit(&b);
    cr_assert_eq(n_free(folio_sched_pool(b.s)), 16);
    dry_drain_ahead(&b, 20);
    cr_assert_eq(dry_text_of(&b, 0, 0)->n, 3);
    cr_assert_eq(dry_text_of(&b, 1, 0)->n, 3);
    dry_close(&b);
}

/* Gone while two steps have rows of it: what they draw is for nobody, and its
 * memory stays until both are settled. */
Test(sched_feature, run_ahead_and_aborts)
{
    dry b;
    folio_sched_params p = dry_params(16, 4, 2);
    p.run_ahead = 1;
    dry_open(&b, &p);
    submit(&b, 0, 3, 9, 1, 0, 0);
    submit(&b, 1, 3, 9, 1, 0, 0);
    cr_assert(dry_plan(&b));
    const folio_step *under_way = b.step;
    dry_compute(&b);
    for (int i = 0; i < 30 && !folio_sched_is_idle(b.s); i++) {
        if (i == 2)
            OK(folio_sched_abort(b.s, 0));
        const bool any = dry_plan(&b);
        if (any)
            dry_compute(&b);
        if (i == 4)
            OK(folio_sched_abort(b.s, 1));
        if (under_way)
            dry_commit(&b, under_way);
        under_way = any ? b.step : NULL;
    }
    cr_assert(folio_sched_is_idle(b.s));
    cr_assert_eq(dry_text_of(&b, 0, 0)->n, 2);
    cr_assert_eq(dry_text_of(&b, 1, 0)->n, 4);
    cr_assert_eq(n_free(folio_sched_pool(b.s)), 16);
    dry_audit(&b);
    dry_close(&b);
}

/* The step under way reads a token that the aborted text never got: that one's
 * block must not be found under a token that was not there. */
Test(sched_feature, run_ahead_publishes_only_what_is_known)
{
    dry b;
    folio_sched_params p = dry_params(16, 1, 1);
    p.run_ahead = 1;
    p.prefix_cache = true;
    dry_open(&b, &p);
    submit(&b, 0, 3, 9, 1, 0, 0);
    cr_assert(dry_plan(&b));
    const folio_step *first = b.step;
    dry_compute(&b);
    cr_assert(dry_plan(&b));
    dry_compute(&b);
    OK(folio_sched_abort(b.s, 0));
    dry_commit(&b, first);
    dry_commit(&b, b.step);
    cr_assert_not(dry_plan(&b));
    cr_assert_eq(folio_block_pool_count(folio_sched_pool(b.s)).n_cached, 3);
    dry_close(&b);
}
