/* The rules of the scheduler one by one: door, order, growth, eviction,
 * watermark, ways out. Later features are in test_sched_feature.c. */
#include "sched/sched_state.h"
#include "unit/fail_alloc.h"
#include "unit/sched_dry.h"

static void open_plain(dry *b, int32_t n_blocks, int32_t seqs)
{
    const folio_sched_params p = dry_params(n_blocks, 4, seqs);
    dry_open(b, &p);
}

static const folio_request *request(const dry *b, uint64_t id)
{
    return folio_sched_find(b->s, id, 0);
}

static int32_t held(const dry *b, uint64_t id)
{
    const folio_request *r = request(b, id);
    int32_t n = 0;
    if (r && r->slot != FOLIO_NO_SLOT)
        folio_sched_blocks(b->s, r->slot, &n);
    return n;
}

static const int32_t some[64] = {1, 2, 3, 4, 5, 6, 7, 8};

static folio_request_params req(uint64_t id, int32_t n_prompt, int32_t max_new)
{
    return (folio_request_params){
        .id = id, .prompt = some, .n_prompt = n_prompt, .max_new = max_new};
}

/* ---- open ---------------------------------------------------------------- */

Test(sched_scheduler, bad_params_are_named)
{
    heard h = {0};
    folio_sched *s = NULL;
    const folio_sched_params good = {.n_blocks = 8,
                                     .block_tok = 4,
                                     .max_seqs = 2,
                                     .max_requests = 4,
                                     .watermark_blocks = -1,
                                     .log = {listen, &h, FOLIO_LOG_DEBUG}};
    folio_sched_params p;
#define REFUSED(field, value, st, ...)                                         \
    p = good;                                                                  \
    p.field = value;                                                           \
    SAYS(&h, folio_sched_open(&p, &s), st, __VA_ARGS__);                       \
    cr_assert_null(s)
    REFUSED(max_seqs, 0, FOLIO_E_INVAL, "max_seqs", "0");
    REFUSED(max_requests, 0, FOLIO_E_INVAL, "max_requests");
    REFUSED(max_len, -1, FOLIO_E_INVAL, "max_len", "-1");
    REFUSED(watermark_blocks, 8, FOLIO_E_INVAL, "watermark_blocks", "8",
            "0..7");
    REFUSED(watermark_blocks, -2, FOLIO_E_INVAL, "watermark_blocks", "-2");
    REFUSED(watermark_share, 1.0, FOLIO_E_INVAL, "watermark_share", "1");
    REFUSED(watermark_share, -.1, FOLIO_E_INVAL, "watermark_share");
    REFUSED(step_tok, 1, FOLIO_E_INVAL, "step_tok", "1", "2");
    REFUSED(chunk_tok, -1, FOLIO_E_INVAL, "chunk_tok");
    REFUSED(age_plans, -1, FOLIO_E_INVAL, "age_plans");
    REFUSED(run_ahead, 2, FOLIO_E_INVAL, "run_ahead", "2");
    REFUSED(n_blocks, 0, FOLIO_E_INVAL, "n_blocks", "0");
    REFUSED(block_tok, 0, FOLIO_E_INVAL, "block_tok");
    REFUSED(block_tok, INT32_MAX, FOLIO_E_TOO_LARGE, "blocks");
#undef REFUSED
    OK(folio_sched_open(&good, &s));
    folio_sched_close(&s);
    folio_sched_close(&s);
    folio_sched_close(NULL);
}

Test(sched_scheduler, default_watermark)
{
    static const int32_t want[][2] = {{8, 0},  {16, 0},  {64, 0},
                                      {99, 0}, {100, 1}, {256, 2}};
    for (size_t i = 0; i < FOLIO_COUNT(want); i++) {
        folio_sched_params p;
        folio_sched *s = NULL;
        folio_sched_params_default(&p);
        p.n_blocks = want[i][0];
        OK(folio_sched_open(&p, &s));
        cr_assert_eq(folio_sched_watermark(s), want[i][1]);
        cr_assert_eq(folio_sched_admissible(s), want[i][0] - want[i][1]);
        folio_sched_close(&s);
        p.watermark_blocks = 3; /* blocks win over the share */
        OK(folio_sched_open(&p, &s));
        cr_assert_eq(folio_sched_watermark(s), 3);
        folio_sched_close(&s);
    }
}

Test(sched_scheduler, each_allocation_failing_at_open)
{
    folio_sched_params p = dry_params(16, 4, 3);
    p.prefix_cache = true;
    p.run_ahead = 1;
    for (int nth = 1;; nth++) {
        folio_sched *s = NULL;
        fail_alloc_arm(nth);
        const folio_status st = folio_sched_open(&p, &s);
        if (!fail_alloc_disarm()) {
            OK(st);
            cr_assert_gt(nth, 50);
            folio_sched_close(&s);
            break;
        }
        cr_assert_eq(st, FOLIO_E_NOMEM);
        cr_assert_null(s);
    }
}

/* ---- the door ------------------------------------------------------------ */

/* Prompt and budget - 1 in blocks, at pool - 1, pool and pool + 1. */
Test(sched_scheduler, door_counts_what_is_ever_cached)
{
    dry b;
    open_plain(&b, 4, 2); /* 16 slots */
    heard *h = &b.log;
    for (uint64_t i = 0; i < 2; i++) {
        dry_submit(&b, i, 15 + (int32_t)i, 1);
        dry_drain(&b, 5);
    }
    dry_submit(&b, 2, 4, 13); /* 16 in the end */
    dry_drain(&b, 20);
    cr_assert_eq(dry_text_of(&b, 2, 0)->n, 13);
    folio_request_params p = req(3, 17, 1);
    SAYS(h, folio_sched_submit(b.s, &p, NULL), FOLIO_E_TOO_LARGE, "17", "5",
         "4");
    p = req(3, 4, 14);
    SAYS(h, folio_sched_submit(b.s, &p, NULL), FOLIO_E_TOO_LARGE, "5 blocks",
         "has 4");
    p = req(3, 4, INT32_MAX);
    SAYS(h, folio_sched_submit(b.s, &p, NULL), FOLIO_E_TOO_LARGE, "2147483647");
    /* The others are not disturbed, and the id is free. */
    dry_submit(&b, 3, 4, 1);
    dry_drain(&b, 5);
    dry_close(&b);
}

Test(sched_scheduler, door_keeps_the_context_length)
{
    dry b;
    folio_sched_params p = dry_params(64, 4, 2);
    p.max_len = 20;
    dry_open(&b, &p);
    folio_request_params r = req(0, 10, 11);
    SAYS(&b.log, folio_sched_submit(b.s, &r, NULL), FOLIO_E_TOO_LARGE, "21",
         "20");
    dry_submit(&b, 0, 10, 10);
    dry_drain(&b, 20);
    cr_assert_eq(dry_text_of(&b, 0, 0)->n, 10);
    dry_close(&b);
}

Test(sched_scheduler, door_refusals)
{
    dry b;
    folio_sched_params p = dry_params(64, 4, 2);
    p.max_requests = 3;
    dry_open(&b, &p);
    folio_request_params r = req(7, 0, 1);
    SAYS(&b.log, folio_sched_submit(b.s, &r, NULL), FOLIO_E_INVAL, "prompt");
    dry_submit(&b, 7, 4, 2);
    r = req(7, 4, 2);
    SAYS(&b.log, folio_sched_submit(b.s, &r, NULL), FOLIO_E_INVAL, "7",
         "in flight");
    r = req(8, 4, 2);
    r.n = 4;
    SAYS(&b.log, folio_sched_submit(b.s, &r, NULL), FOLIO_E_TOO_LARGE, "4",
         "3");
    r.n = 3; /* later, perhaps: not logged */
    const int before = b.log.n;
    FAILS(FOLIO_E_FULL, folio_sched_submit(b.s, &r, NULL));
    cr_assert_eq(b.log.n, before);
    r.n = 2;
    OK(dry_try_submit(&b, &r));
    dry_drain(&b, 10);
    dry_submit(&b, 7, 4, 2); /* an id may come again once it is gone */
    dry_drain(&b, 10);
    dry_close(&b);
}

Test(sched_scheduler, each_allocation_failing_at_submit)
{
    dry b;
    folio_sched_params p = dry_params(64, 4, 4);
    p.prefix_cache = true;
    dry_open(&b, &p);
    dry_submit(&b, 0, 4, 8);
    cr_assert(dry_step(&b));
    folio_request_params r = req(1, 6, 3);
    r.n = 3;
    for (int nth = 1;; nth++) {
        fail_alloc_arm(nth);
        const folio_status st = folio_sched_submit(b.s, &r, NULL);
        if (!fail_alloc_disarm()) {
            OK(st);
            cr_assert_eq(nth, 6);
            break;
        }
        cr_assert_eq(st, FOLIO_E_NOMEM);
        cr_assert_null(request(&b, 1));
        dry_audit(&b);
    }
    dry_drain(&b, 30);
    cr_assert_eq(dry_text_of(&b, 0, 0)->n, 8);
    cr_assert_eq(dry_text_of(&b, 1, 2)->n, 3);
    dry_close(&b);
}

/* ---- admission ----------------------------------------------------------- */

Test(sched_scheduler, admission_takes_the_prompt_only)
{
    dry b;
    open_plain(&b, 8, 4);
    dry_submit(&b, 0, 3, 17); /* 19 in the end */
    cr_assert(dry_plan(&b));
    cr_assert_eq(held(&b, 0), 1);
    cr_assert_eq(n_free(folio_sched_pool(b.s)), 7);
    cr_assert_eq(b.step->n_tok, 3);
    cr_assert_eq(b.step->n_rows, 1);
    cr_assert_eq(b.step->rows[0], 2);
    dry_compute(&b);
    dry_commit(&b, b.step);
    dry_close(&b);
}

Test(sched_scheduler, as_many_as_there_are_places)
{
    dry b;
    open_plain(&b, 32, 2);
    for (uint64_t i = 0; i < 4; i++)
        dry_submit(&b, i, 4, i == 0 ? 2 : 5);
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_seq, 2);
    cr_assert_eq(b.step->n_waiting, 2);
    cr_assert_eq(request(&b, 0)->slot, 0);
    cr_assert_eq(request(&b, 1)->slot, 1);
    cr_assert(dry_step(&b));
    /* The freed place is refilled at once, and rows are in order of place. */
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_released, 1);
    cr_assert_eq(request(&b, 2)->slot, 0);
    cr_assert_eq(b.step->seq[0].req->id, 2);
    cr_assert(b.step->seq[0].prefill);
    cr_assert_eq(b.step->seq[1].req->id, 1);
    cr_assert_not(b.step->seq[1].prefill);
    cr_assert_eq(request(&b, 1)->slot, 1); /* places do not move */
    dry_drain(&b, 30);
    dry_close(&b);
}

Test(sched_scheduler, a_blocked_head_is_not_overtaken)
{
    dry b;
    open_plain(&b, 5, 4);
    dry_submit(&b, 0, 8, 4);
    dry_submit(&b, 1, 16, 1); /* 4 blocks, 3 are free */
    dry_submit(&b, 2, 1, 1);  /* would fit */
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_seq, 1);
    cr_assert_eq(b.step->n_waiting, 2);
    dry_drain(&b, 30);
    cr_assert_eq(b.finish_order[0], 0);
    cr_assert_eq(dry_text_of(&b, 1, 0)->first_at, 5);
    cr_assert_eq(dry_text_of(&b, 2, 0)->first_at, 5);
    dry_close(&b);
}

/* The lowest free place of several. */
Test(sched_scheduler, lowest_place_first)
{
    dry b;
    open_plain(&b, 64, 5);
    for (uint64_t i = 0; i < 5; i++)
        dry_submit(&b, i, 2, i == 1 || i == 3 ? 1 : 9);
    cr_assert(dry_step(&b));
    dry_submit(&b, 5, 2, 2);
    cr_assert(dry_step(&b));
    cr_assert_eq(request(&b, 5)->slot, 1);
    dry_submit(&b, 6, 2, 2);
    cr_assert(dry_step(&b));
    cr_assert_eq(request(&b, 6)->slot, 3);
    dry_drain(&b, 30);
    dry_close(&b);
}

Test(sched_scheduler, one_place_three_tenants)
{
    dry b;
    open_plain(&b, 3, 1);
    for (uint64_t i = 0; i < 3; i++)
        dry_submit(&b, i, 4, 4);
    dry_drain(&b, 20);
    cr_assert_eq(b.iterations, 12);
    for (int32_t i = 0; i < 3; i++)
        cr_assert_eq(b.finish_order[i], i);
    cr_assert_eq(n_free(folio_sched_pool(b.s)), 3);
    dry_close(&b);
}

/* ---- growth and eviction ------------------------------------------------- */

Test(sched_scheduler, one_block_at_a_boundary)
{
    static const int32_t want[] = {1, 1, 1, 2, 2, 2, 2, 3, 3};
    dry b;
    open_plain(&b, 8, 2);
    dry_submit(&b, 0, 2, 9);
    for (size_t i = 0; i < FOLIO_COUNT(want); i++) {
        cr_assert(dry_plan(&b));
        cr_assert_eq(held(&b, 0), want[i], "iteration %zu: %d", i + 1,
                     (int)held(&b, 0));
        dry_compute(&b);
        dry_commit(&b, b.step);
        dry_audit(&b);
    }
    cr_assert_not(dry_step(&b));
    dry_close(&b);
}

/* A prompt that fills its block: the first decoding step needs the second. */
Test(sched_scheduler, exact_fill)
{
    dry b, roomy;
    open_plain(&b, 3, 2);
    open_plain(&roomy, 64, 2);
    for (uint64_t i = 0; i < 2; i++) {
        dry_submit(&b, i, 4, 6);
        dry_submit(&roomy, i, 4, 6);
    }
    cr_assert(dry_step(&b));
    cr_assert_eq(held(&b, 0), 1);
    cr_assert(dry_step(&b));
    cr_assert_eq(held(&b, 0), 2);
    /* Preempted on the boundary, it asks for exactly two when it is back. */
    const folio_request *r = request(&b, 1);
    cr_assert_eq(r->state, FOLIO_REQUEST_WAITING);
    cr_assert_eq(r->n_tok, 5);
    while (r->state != FOLIO_REQUEST_RUNNING)
        cr_assert(dry_step(&b));
    cr_assert_eq(b.step->admitted[0], r);
    cr_assert_eq(held(&b, 1), 2);
    dry_drain(&b, 30);
    dry_drain(&roomy, 30);
    dry_same_texts(&b, &roomy);
    dry_close(&b);
    dry_close(&roomy);
}

Test(sched_scheduler, running_grow_before_waiting_are_admitted)
{
    dry b;
    open_plain(&b, 3, 2);
    dry_submit(&b, 0, 4, 6);
    cr_assert(dry_step(&b));
    dry_submit(&b, 1, 8, 1); /* both free blocks, but 0 takes one first */
    cr_assert(dry_step(&b));
    cr_assert_eq(held(&b, 0), 2);
    cr_assert_eq(b.step->n_admitted, 0);
    dry_drain(&b, 30);
    dry_close(&b);
}

Test(sched_scheduler, victims_return_to_the_head_in_order)
{
    dry b;
    open_plain(&b, 3, 4);
    for (uint64_t i = 0; i < 3; i++)
        dry_submit(&b, i, 4, 8);
    cr_assert(dry_step(&b));
    dry_submit(&b, 3, 4, 2); /* later than both victims */
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_preempted, 2);
    const folio_request *v = request(&b, 1);
    cr_assert_eq(v->state, FOLIO_REQUEST_WAITING);
    cr_assert_eq(v->slot, FOLIO_NO_SLOT);
    cr_assert_eq(v->n_preempt, 1);
    cr_assert_eq(v->n_tok, 5); /* keeps its token */
    dry_drain(&b, 100);
    for (int32_t i = 0; i < 4; i++)
        cr_assert_eq(b.finish_order[i], i);
    dry_close(&b);
}

/* The youngest lacks a block and there is nobody younger: it goes itself. */
Test(sched_scheduler, self_preemption)
{
    dry b;
    open_plain(&b, 4, 2);
    dry_submit(&b, 0, 7, 6);
    dry_submit(&b, 1, 8, 6); /* 2 + 2 blocks; 1 grows first, at iteration 2 */
    cr_assert(dry_step(&b));
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_preempted, 1);
    cr_assert_eq(b.step->preempted[0]->id, 1);
    cr_assert_eq(b.step->n_seq, 1);
    dry_drain(&b, 60);
    cr_assert_eq(dry_text_of(&b, 0, 0)->n_preempt, 0);
    dry_close(&b);
}

Test(sched_scheduler, the_oldest_may_end_with_the_whole_pool)
{
    for (int32_t blocks = 2; blocks <= 4; blocks++) {
        dry b;
        open_plain(&b, blocks, 3);
        for (uint64_t i = 0; i < 3; i++)
            dry_submit(&b, i, 4, 4 * blocks - 3);
        int32_t most = 0;
        while (dry_step(&b)) {
            const int32_t first = b.finish_order ? b.finish_order[0] : 0;
            cr_assert_eq(first, 0);
            most = FOLIO_MAX(most, held(&b, 0));
        }
        cr_assert_eq(most, blocks);
        cr_assert_eq(dry_text_of(&b, 0, 0)->n_preempt, 0);
        cr_assert_eq(n_free(folio_sched_pool(b.s)), blocks);
        dry_close(&b);
    }
}

/* ---- watermark ----------------------------------------------------------- */

Test(sched_scheduler, watermark_holds_back_newcomers_only)
{
    dry b;
    folio_sched_params p = dry_params(6, 4, 4);
    p.watermark_blocks = 2;
    dry_open(&b, &p);
    for (uint64_t i = 0; i < 3; i++)
        dry_submit(&b, i, 8, 5);
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_seq, 2); /* the third would leave less than two */
    cr_assert(dry_step(&b));
    cr_assert_eq(n_free(folio_sched_pool(b.s)), 0); /* growth dips into it */
    dry_drain(&b, 60);
    dry_close(&b);
}

Test(sched_scheduler, the_waiver_admits_on_an_idle_pool)
{
    dry b;
    folio_sched_params p = dry_params(6, 4, 4);
    p.watermark_blocks = 3;
    dry_open(&b, &p);
    dry_submit(&b, 0, 16, 1); /* 4 blocks, above the admissible 3 */
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_seq, 1);
    dry_submit(&b, 1, 4, 2);
    dry_submit(&b, 2, 16, 1); /* waits: the waiver spends no absent block */
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_seq, 2);
    dry_drain(&b, 20);
    dry_close(&b);
}

Test(sched_scheduler, soak_at_each_reserve)
{
    dry roomy;
    open_plain(&roomy, 64, 3);
    for (uint64_t i = 0; i < 8; i++)
        dry_submit(&roomy, i, 4, 12);
    dry_drain(&roomy, 200);
    for (int32_t reserve = 0; reserve < 6; reserve++) {
        dry b;
        folio_sched_params p = dry_params(6, 4, 3);
        p.watermark_blocks = reserve;
        dry_open(&b, &p);
        for (uint64_t i = 0; i < 8; i++)
            dry_submit(&b, i, 4, 12);
        dry_drain(&b, 400);
        dry_same_texts(&b, &roomy);
        dry_close(&b);
    }
    dry_close(&roomy);
}

/* ---- ways out ------------------------------------------------------------ */

Test(sched_scheduler, abort_in_every_state)
{
    dry b;
    open_plain(&b, 3, 2);
    for (uint64_t i = 0; i < 5; i++)
        dry_submit(&b, i, 4, 6);
    FAILS(FOLIO_E_NOT_FOUND, folio_sched_abort(b.s, 99));
    OK(folio_sched_abort(b.s, 3)); /* waiting, in the middle of the queue */
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->released[0]->id, 3);
    cr_assert_eq(dry_text_of(&b, 3, 0)->finish, FOLIO_FINISH_ABORT);
    FAILS(FOLIO_E_NOT_FOUND, folio_sched_abort(b.s, 3));
    cr_assert(dry_step(&b)); /* 1 is evicted */
    const folio_request *r = request(&b, 1);
    cr_assert_eq(r->n_preempt, 1);
    OK(folio_sched_abort(b.s, 1)); /* preempted */
    OK(folio_sched_abort(b.s, 1)); /* twice: the first reason stays */
    cr_assert_eq(r->finish, FOLIO_FINISH_ABORT);
    cr_assert_eq(r->n_tok, 5); /* keeps its token */
    dry_audit(&b);             /* awaiting release is legal */
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->released[0]->id, 1);
    cr_assert_eq(b.step->admitted[0]->id, 2);
    OK(folio_sched_abort(b.s, 0)); /* running */
    dry_audit(&b);
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->admitted[0]->id, 4);
    cr_assert_eq(b.step->admitted[0]->slot, 0); /* the row is clean */
    dry_drain(&b, 60);
    cr_assert_eq(dry_text_of(&b, 2, 0)->n, 6);
    cr_assert_eq(dry_text_of(&b, 4, 0)->n, 6);
    dry_close(&b);
}

Test(sched_scheduler, abort_between_plan_and_commit)
{
    dry b;
    open_plain(&b, 8, 2);
    dry_submit(&b, 0, 4, 6);
    dry_submit(&b, 1, 4, 6);
    cr_assert(dry_plan(&b));
    dry_compute(&b);
    OK(folio_sched_abort(b.s, 0));
    dry_commit(&b, b.step);
    cr_assert_not(b.took[0]);
    cr_assert(b.took[1]);
    dry_audit(&b);
    dry_drain(&b, 20);
    cr_assert_eq(dry_text_of(&b, 0, 0)->n, 0);
    dry_close(&b);
}

Test(sched_scheduler, abort_all_empties_in_one_step)
{
    dry b;
    open_plain(&b, 8, 4);
    for (uint64_t i = 0; i < 20; i++)
        dry_submit(&b, i, 4, 6);
    cr_assert(dry_step(&b));
    for (uint64_t i = 0; i < 20; i++)
        OK(folio_sched_abort(b.s, i));
    cr_assert_not(dry_step(&b));
    cr_assert_eq(b.step->n_released, 20);
    cr_assert(folio_sched_is_idle(b.s));
    cr_assert_eq(n_free(folio_sched_pool(b.s)), 8);
    dry_close(&b);
}

typedef struct hook {
    dry *b;
    int32_t n, places[16];
} hook;

static void on_release(void *user, int32_t place)
{
    hook *h = user;
    /* Blocks are gone and the place is not handed on yet. */
    cr_assert_not_null(folio_sched_at(h->b->s, place));
    int32_t n = -1;
    folio_sched_blocks(h->b->s, place, &n);
    cr_assert_eq(n, 0);
    h->places[h->n++] = place;
}

Test(sched_scheduler, the_hook_runs_before_a_place_is_handed_on)
{
    dry b;
    hook h = {.b = &b};
    folio_sched_params p = dry_params(3, 4, 2);
    p.on_release = on_release;
    p.release_user = &h;
    dry_open(&b, &p);
    dry_submit(&b, 0, 4, 6);
    dry_submit(&b, 1, 4, 6);
    dry_submit(&b, 2, 4, 1);
    dry_drain(&b, 60);
    /* Evicted, then each finishes. */
    cr_assert_eq(h.n, 4);
    cr_assert_eq(h.places[0], 1);
    dry_close(&b);
}

Test(sched_scheduler, verdicts)
{
    dry b;
    open_plain(&b, 8, 3);
    for (uint64_t i = 0; i < 3; i++)
        dry_submit(&b, i, 4, 6);
    cr_assert(dry_plan(&b));
    const int32_t next[] = {1, 2, 3};
    const folio_verdict verdict[] = {FOLIO_VERDICT_NONE, FOLIO_VERDICT_STOP,
                                     FOLIO_VERDICT_ERROR};
    bool took[3];
    OK(folio_sched_commit(b.s, b.step, next, verdict, took));
    cr_assert(took[0] && took[1] && !took[2]);
    cr_assert_eq(request(&b, 0)->state, FOLIO_REQUEST_RUNNING);
    cr_assert_eq(request(&b, 1)->finish, FOLIO_FINISH_STOP);
    cr_assert_eq(request(&b, 1)->n_tok, 5);
    cr_assert_eq(request(&b, 2)->finish, FOLIO_FINISH_ERROR);
    cr_assert_eq(request(&b, 2)->status, FOLIO_E_INTERNAL);
    cr_assert_eq(request(&b, 2)->n_tok, 4);
    dry_audit(&b);
    const folio_step *step;
    OK(folio_sched_plan(b.s, 0, &step));
    cr_assert_eq(step->n_released, 2);
    cr_assert_eq(step->n_seq, 1);
    dry_close(&b);
}

Test(sched_scheduler, plan_and_commit_take_turns)
{
    dry b;
    const folio_step *step = NULL;
    open_plain(&b, 8, 2);
    dry_submit(&b, 0, 4, 6);
    cr_assert(dry_plan(&b));
    SAYS(&b.log, folio_sched_plan(b.s, 0, &step), FOLIO_E_INVAL, "1 steps",
         "run_ahead 0");
    cr_assert_null(step);
    dry_compute(&b);
    dry_commit(&b, b.step);
    SAYS(&b.log, folio_sched_commit(b.s, b.step, some, NULL, NULL),
         FOLIO_E_INVAL, "commit");
    SAYS(&b.log, folio_sched_rollback(b.s, b.step), FOLIO_E_INVAL, "rollback");
    dry_drain(&b, 10);
    dry_close(&b);
}

/* ---- figures ------------------------------------------------------------- */

Test(sched_scheduler, waste)
{
    static const int32_t prompts[] = {4, 3, 9};
    static const int32_t places[][2] = {{0, 4}, {1, 4}, {3, 12}};
    for (int i = 0; i < 3; i++) {
        dry b;
        open_plain(&b, 8, 1);
        dry_submit(&b, 0, prompts[i], 2);
        cr_assert(dry_plan(&b));
        const folio_sched_stats st = folio_sched_get_stats(b.s);
        cr_assert_eq(st.reserved_blocks, st.used_blocks);
        cr_assert_eq(st.held_places - st.used_places, places[i][0]);
        cr_assert_eq(st.held_places, places[i][1]);
        dry_close(&b);
    }
}

Test(sched_scheduler, nothing_is_reserved_ahead_and_nothing_lost)
{
    dry b;
    open_plain(&b, 6, 4);
    for (uint64_t i = 0; i < 10; i++)
        dry_submit(&b, i, 4, 10);
    while (dry_plan(&b)) {
        const folio_sched_stats st = folio_sched_get_stats(b.s);
        const folio_block_pool_counts c =
            folio_block_pool_count(folio_sched_pool(b.s));
        cr_assert_eq(st.reserved_blocks, st.used_blocks);
        cr_assert_eq(st.reserved_blocks, c.n_held);
        cr_assert_eq(c.n_held + c.n_free, 6);
        cr_assert_lt(st.held_places - st.used_places, 4 * st.n_running);
        cr_assert_eq(b.step->n_rows, b.step->n_seq); /* each gains a token */
        dry_compute(&b);
        dry_commit(&b, b.step);
        dry_audit(&b);
    }
    dry_close(&b);
}

/* Small pools, in any case, let everybody finish in the order they came. */
Test(sched_scheduler, liveness)
{
    for (int32_t blocks = 3; blocks < 12; blocks++)
        for (int32_t seqs = 1; seqs < 7; seqs++) {
            dry b;
            open_plain(&b, blocks, seqs);
            for (uint64_t i = 0; i < 9; i++)
                dry_submit(&b, i, 1 + (int32_t)(i * 5) % 8,
                           1 + (int32_t)(i * 7) % 5);
            dry_drain(&b, 400);
            cr_assert_eq(dry_text_of(&b, 0, 0)->n_preempt, 0);
            cr_assert_eq(n_free(folio_sched_pool(b.s)), blocks);
            dry_close(&b);
        }
}
