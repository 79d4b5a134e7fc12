/* The life of one completion: edges, budget, stop ids, out of memory. */
#include "sched/request.h"
#include "unit/fail_alloc.h"
#include "unit/sched_util.h"

static const int32_t prompt[] = {5, 6, 7};

static folio_request_params params(void)
{
    return (folio_request_params){
        .id = 9, .prompt = prompt, .n_prompt = 3, .max_new = 4};
}

static folio_request *open_one(const folio_request_params *p)
{
    folio_request *r = NULL;
    OK(folio_request_check(p, NULL));
    OK(folio_request_open(p, 0, NULL, &r));
    return r;
}

Test(sched_request, starts_waiting_and_holds_nothing)
{
    const folio_request_params p = params();
    folio_request *r = open_one(&p);
    cr_assert_eq(r->state, FOLIO_REQUEST_WAITING);
    cr_assert_eq(r->finish, FOLIO_FINISH_NONE);
    cr_assert_eq(r->slot, FOLIO_NO_SLOT);
    cr_assert_eq(r->n_tok, 3);
    cr_assert_eq(folio_request_n_out(r), 0);
    cr_assert_eq(r->n_done + r->n_sent + r->n_ahead + r->n_preempt, 0);
    cr_assert_eq(memcmp(r->tok, prompt, sizeof prompt), 0);
    cr_assert_neq(r->tok, prompt);
    /* Prompt and budget less the last token, which is never cached. */
    cr_assert_eq(folio_request_worst(3, 4), 6);
    cr_assert_eq(folio_request_worst(4, 1), 4);
    folio_request_close(r);
    folio_request_close(NULL);
}

Test(sched_request, bad_params_are_named)
{
    heard h = {0};
    const folio_log log = {listen, &h, FOLIO_LOG_DEBUG};
    const int32_t stop = 1;
    folio_request_params p = params();
    p.n_prompt = 0;
    SAYS(&h, folio_request_check(&p, &log), FOLIO_E_INVAL, "9", "prompt", "0");
    p = params();
    p.prompt = NULL;
    SAYS(&h, folio_request_check(&p, &log), FOLIO_E_INVAL, "prompt");
    p = params();
    p.max_new = 0;
    SAYS(&h, folio_request_check(&p, &log), FOLIO_E_INVAL, "max_new", "0");
    p = params();
    p.n = -1;
    SAYS(&h, folio_request_check(&p, &log), FOLIO_E_INVAL, "n is -1");
    p = params();
    p.n_stop_ids = 1;
    SAYS(&h, folio_request_check(&p, &log), FOLIO_E_INVAL, "stop_ids", "NULL");
    p.stop_ids = &stop;
    OK(folio_request_check(&p, &log));
    p = params();
    p.priority = FOLIO_PRIORITY_LAST + 1;
    SAYS(&h, folio_request_check(&p, &log), FOLIO_E_INVAL, "priority", "8",
         "0..7");
    p.priority = -1;
    SAYS(&h, folio_request_check(&p, &log), FOLIO_E_INVAL, "priority", "-1");
    p = params();
    p.salt = "x";
    p.salt_bytes = FOLIO_SALT_MAX + 1;
    SAYS(&h, folio_request_check(&p, &log), FOLIO_E_INVAL, "salt", "65", "64");
}

/* Every pair of states, whatever the edge table says. */
Test(sched_request, edges)
{
    static const bool want[3][3] = {
        {false, true, true}, {true, false, true}, {false, false, false}};
    static const folio_request_state all[] = {
        FOLIO_REQUEST_WAITING, FOLIO_REQUEST_RUNNING, FOLIO_REQUEST_FINISHED};
    const folio_request_params p = params();
    heard h = {0};
    const folio_log log = {listen, &h, FOLIO_LOG_DEBUG};
    folio_request *r = open_one(&p);
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            r->state = all[from];
            if (want[from][to]) {
                OK(folio_request_move(r, all[to], &log));
                cr_assert_eq(r->state, all[to]);
            } else {
                SAYS(&h, folio_request_move(r, all[to], &log), FOLIO_E_INVAL,
                     folio_request_state_name(all[from]),
                     folio_request_state_name(all[to]));
                cr_assert_eq(r->state, all[from]);
            }
        }
    folio_request_close(r);
}

Test(sched_request, only_a_running_one_takes_tokens)
{
    const folio_request_params p = params();
    heard h = {0};
    const folio_log log = {listen, &h, FOLIO_LOG_DEBUG};
    folio_request *r = open_one(&p);
    SAYS(&h, folio_request_append(r, 1, false, &log), FOLIO_E_INVAL, "waiting");
    OK(folio_request_move(r, FOLIO_REQUEST_RUNNING, NULL));
    OK(folio_request_append(r, 1, false, &log));
    folio_request_finish(r, FOLIO_FINISH_ABORT, FOLIO_E_CANCELED);
    SAYS(&h, folio_request_append(r, 1, false, &log), FOLIO_E_INVAL,
         "finished");
    cr_assert_eq(r->n_tok, 4);
    folio_request_close(r);
}

Test(sched_request, length_and_stop)
{
    static const int32_t stops[] = {40, 41};
    folio_request_params p = params();
    p.stop_ids = stops;
    p.n_stop_ids = 2;
    folio_request *r = open_one(&p);
    OK(folio_request_move(r, FOLIO_REQUEST_RUNNING, NULL));
    for (int32_t i = 0; i < 4; i++) {
        cr_assert_eq(r->state, FOLIO_REQUEST_RUNNING);
        OK(folio_request_append(r, i, false, NULL));
    }
    cr_assert_eq(r->state, FOLIO_REQUEST_FINISHED);
    cr_assert_eq(r->finish, FOLIO_FINISH_LENGTH);
    folio_request_close(r);
    /* A stop id as the last token of the budget is a stop, and stays. */
    r = open_one(&p);
    OK(folio_request_move(r, FOLIO_REQUEST_RUNNING, NULL));
    for (int32_t i = 0; i < 3; i++)
        OK(folio_request_append(r, i, false, NULL));
    OK(folio_request_append(r, 41, false, NULL));
    cr_assert_eq(r->finish, FOLIO_FINISH_STOP);
    cr_assert_eq(r->tok[6], 41);
    folio_request_close(r);
    /* So is a verdict, and a stop id ends before the budget does. */
    r = open_one(&p);
    OK(folio_request_move(r, FOLIO_REQUEST_RUNNING, NULL));
    OK(folio_request_append(r, 40, false, NULL));
    cr_assert_eq(r->finish, FOLIO_FINISH_STOP);
    cr_assert_eq(folio_request_n_out(r), 1);
    folio_request_close(r);
    p.max_new = 1;
    r = open_one(&p);
    OK(folio_request_move(r, FOLIO_REQUEST_RUNNING, NULL));
    OK(folio_request_append(r, 1, true, NULL));
    cr_assert_eq(r->finish, FOLIO_FINISH_STOP);
    folio_request_close(r);
}

Test(sched_request, the_first_reason_wins)
{
    const folio_request_params p = params();
    folio_request *r = open_one(&p);
    folio_request_finish(r, FOLIO_FINISH_DEADLINE, FOLIO_E_DEADLINE);
    folio_request_finish(r, FOLIO_FINISH_ABORT, FOLIO_E_CANCELED);
    cr_assert_eq(r->state, FOLIO_REQUEST_FINISHED);
    cr_assert_eq(r->finish, FOLIO_FINISH_DEADLINE);
    cr_assert_eq(r->status, FOLIO_E_DEADLINE);
    cr_assert_str_eq(folio_finish_name(r->finish), "deadline");
    folio_request_close(r);
}

Test(sched_request, a_group_lives_as_long_as_one_of_it)
{
    folio_request *r[3] = {0};
    folio_request_params p = params();
    p.n = 3;
    p.salt = "tenant";
    p.salt_bytes = 6;
    OK(folio_request_open(&p, 2, NULL, r));
    for (int32_t i = 0; i < 3; i++) {
        cr_assert_eq(r[i]->completion, i);
        cr_assert_eq(r[i]->group, r[0]->group);
        cr_assert_not_null(r[i]->hash);
    }
    folio_request_close(r[1]);
    cr_assert_null(r[0]->group->member[1]);
    folio_request_close(r[0]);
    cr_assert_eq(r[2]->group->n_alive, 1);
    cr_assert_eq(memcmp(r[2]->group->salt, "tenant", 6), 0);
    folio_request_close(r[2]);
}

Test(sched_request, each_allocation_failing)
{
    folio_request_params p = params();
    p.n = 3;
    int nth = 1;
    for (;; nth++) {
        folio_request *r[3] = {0};
        fail_alloc_arm(nth);
        const folio_status st = folio_request_open(&p, 4, NULL, r);
        if (!fail_alloc_disarm()) {
            OK(st);
            for (int32_t i = 0; i < 3; i++)
                folio_request_close(r[i]);
            break;
        }
        cr_assert_eq(st, FOLIO_E_NOMEM);
        cr_assert(!r[0] && !r[1] && !r[2]);
    }
    cr_assert_eq(nth, 5); /* the group and three completions */
}
