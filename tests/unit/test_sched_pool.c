/* Block pool: who holds which block, in which order blocks come out, and that
 * a refused call moves nothing. */
#include "unit/fail_alloc.h"
#include "unit/sched_util.h"

Test(sched_pool, fresh)
{
    folio_block_pool *pool = open_pool(8, 16, NULL);
    const folio_block_pool_counts c = folio_block_pool_count(pool);
    cr_assert_eq(c.n_blocks, 8);
    cr_assert_eq(c.block_tok, 16);
    cr_assert_eq(c.n_free, 8);
    cr_assert_eq(c.n_cached, 0);
    cr_assert_eq(c.n_held, 0);
    cr_assert_eq(c.n_holders, 0);
    STACK_IS(pool, 7, 6, 5, 4, 3, 2, 1, 0);
    CACHED_EMPTY(pool);
    for (int32_t b = 0; b < 8; b++) {
        cr_assert_eq(state_of(pool, b), FOLIO_BLOCK_FREE);
        cr_assert_eq(refs(pool, b), 0);
    }
    folio_block_pool_close(&pool);
    cr_assert_null(pool);
    folio_block_pool_close(&pool);
    folio_block_pool_close(NULL);
}

Test(sched_pool, ids_come_out_in_order_until_exhausted)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(5, 3, &h);
    for (int32_t i = 0; i < 5; i++) {
        cr_assert_eq(take(pool), i);
        cr_assert_eq(n_free(pool), 4 - i);
        cr_assert_eq(state_of(pool, i), FOLIO_BLOCK_HELD);
        cr_assert_eq(refs(pool, i), 1);
    }
    int32_t blk = 77;
    FAILS(FOLIO_E_FULL, folio_block_pool_take(pool, &blk));
    cr_assert_eq(blk, 77);
    cr_assert_eq(h.n, 0, "exhaustion is flow control, not logged");
    STACK_EMPTY(pool);
    folio_block_pool_close(&pool);
}

Test(sched_pool, a_given_block_is_the_next_out)
{
    folio_block_pool *pool = open_pool(4, 4, NULL);
    for (int i = 0; i < 3; i++)
        take(pool);
    OK(folio_block_pool_give(pool, 1));
    STACK_IS(pool, 3, 1);
    cr_assert_eq(take(pool), 1);
    OK(folio_block_pool_give(pool, 0));
    OK(folio_block_pool_give(pool, 2));
    STACK_IS(pool, 3, 0, 2);
    cr_assert_eq(take(pool), 2);
    cr_assert_eq(take(pool), 0);
    cr_assert_eq(take(pool), 3);
    folio_block_pool_close(&pool);
}

Test(sched_pool, blocks_for)
{
    folio_block_pool *pool = open_pool(2, 16, NULL);
    static const int64_t tok[] = {0, 1, 15, 16, 17, 32, 33, 40, INT32_MAX};
    static const int32_t want[] = {0, 1, 1, 1, 2, 2, 3, 3, 134217728};
    for (size_t i = 0; i < FOLIO_COUNT(tok); i++) {
        int32_t n = -1;
        OK(folio_block_pool_blocks_for(pool, tok[i], &n));
        cr_assert_eq(n, want[i], "%lld tokens", (long long)tok[i]);
    }
    folio_block_pool_close(&pool);
}

Test(sched_pool, take_for_is_all_or_none)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 16, &h);
    int32_t ids[8] = {0}, n = -1;
    OK(folio_block_pool_take_for(pool, 0, NULL, 0, &n));
    cr_assert_eq(n, 0);
    OK(folio_block_pool_can_take(pool, 0));
    OK(folio_block_pool_can_take(pool, 40));
    OK(folio_block_pool_take_for(pool, 40, ids, 8, &n));
    eq_ids(ids, n, IDS(0, 1, 2), __LINE__);
    OK(folio_block_pool_give(pool, 2));

    /* Two blocks are left: 32 tokens fit, 33 do not. */
    memset(ids, 0x55, sizeof ids);
    n = -1;
    FAILS(FOLIO_E_FULL, folio_block_pool_can_take(pool, 33));
    FAILS(FOLIO_E_FULL, folio_block_pool_take_for(pool, 33, ids, 8, &n));
    cr_assert_eq(n, -1);
    cr_assert_eq(ids[0], 0x55555555);
    cr_assert_eq(n_free(pool), 2);
    OK(folio_block_pool_can_take(pool, 32));
    OK(folio_block_pool_take_for(pool, 32, ids, 2, &n));
    eq_ids(ids, n, IDS(2, 3), __LINE__);
    FAILS(FOLIO_E_FULL, folio_block_pool_can_take(pool, 1));
    OK(folio_block_pool_can_take(pool, 0));
    cr_assert_eq(h.n, 0);
    folio_block_pool_close(&pool);
}

Test(sched_pool, token_counts_out_of_range)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 16, &h);
    static const int64_t bad[] = {-1, INT64_MIN, (int64_t)INT32_MAX + 1,
                                  INT64_MAX};
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++) {
        int32_t ids[4] = {7, 7, 7, 7}, n = 7;
        SAYS(&h, folio_block_pool_take_for(pool, bad[i], ids, 4, &n),
             FOLIO_E_INVAL, "take_for", "2147483647");
        SAYS(&h, folio_block_pool_can_take(pool, bad[i]), FOLIO_E_INVAL,
             "can_take");
        SAYS(&h, folio_block_pool_blocks_for(pool, bad[i], &n), FOLIO_E_INVAL,
             "blocks_for");
        cr_assert_eq(n, 7);
        cr_assert_eq(ids[0], 7);
    }
    int32_t ids[2], n = 7;
    SAYS(&h, folio_block_pool_take_for(pool, 40, ids, 2, &n), FOLIO_E_INVAL,
         "3 blocks", "room for 2");
    cr_assert_eq(n_free(pool), 4);
    folio_block_pool_close(&pool);
}

Test(sched_pool, holders)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 16, &h);
    const int32_t b = take(pool);
    OK(folio_block_pool_retain(pool, b));
    OK(folio_block_pool_retain(pool, b));
    cr_assert_eq(refs(pool, b), 3);
    cr_assert_eq(folio_block_pool_count(pool).n_held, 1);
    cr_assert_eq(folio_block_pool_count(pool).n_holders, 3);
    OK(folio_block_pool_give(pool, b));
    OK(folio_block_pool_give(pool, b));
    cr_assert_eq(state_of(pool, b), FOLIO_BLOCK_HELD);
    cr_assert_eq(n_free(pool), 3);
    OK(folio_block_pool_give(pool, b));
    cr_assert_eq(state_of(pool, b), FOLIO_BLOCK_FREE);
    cr_assert_eq(n_free(pool), 4);
    cr_assert_eq(folio_block_pool_count(pool).n_holders, 0);
    SAYS(&h, folio_block_pool_retain(pool, b), FOLIO_E_INVAL, "block 0", "free",
         "held");
    SAYS(&h, folio_block_pool_retain(pool, 4), FOLIO_E_INVAL, "block 4",
         "0..3");
    folio_block_pool_close(&pool);
}

Test(sched_pool, double_and_foreign_give)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 16, &h);
    const int32_t b = take(pool);
    OK(folio_block_pool_give(pool, b));
    SAYS(&h, folio_block_pool_give(pool, b), FOLIO_E_INVAL, "give", "block 0",
         "free");
    SAYS(&h, folio_block_pool_give(pool, 99), FOLIO_E_INVAL, "block 99",
         "0..3");
    SAYS(&h, folio_block_pool_give(pool, -1), FOLIO_E_INVAL, "block -1");
    SAYS(&h, folio_block_pool_give(pool, 3), FOLIO_E_INVAL, "block 3", "free");
    STACK_IS(pool, 3, 2, 1, 0);
    folio_block_pool_close(&pool);
}

Test(sched_pool, give_all_is_in_order_and_atomic)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(6, 4, &h);
    int32_t ids[5], n;
    OK(folio_block_pool_take_for(pool, 20, ids, 5, &n));
    OK(folio_block_pool_retain(pool, 3)); /* two holders */

    static const struct {
        int32_t ids[5], n;
        const char *word;
    } bad[] = {
        {{0, 1, 5}, 3, "block 5"},       /* never taken */
        {{0, 1, 99}, 3, "block 99"},     /* foreign */
        {{0, -7, 1}, 3, "block -7"},     /* foreign */
        {{0, 1, 0}, 3, "block 0"},       /* twice, one holder */
        {{3, 0, 3, 1, 3}, 5, "3 times"}, /* three times, two holders */
        {{2, 2}, 2, "it has 1 holders"}, /* twice, one holder */
    };
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++) {
        SAYS(&h, folio_block_pool_give_all(pool, bad[i].ids, bad[i].n),
             FOLIO_E_INVAL, "give_all", bad[i].word);
        STACK_IS(pool, 5);
        cr_assert_eq(folio_block_pool_count(pool).n_holders, 6);
    }
    SAYS(&h, folio_block_pool_give_all(pool, ids, -1), FOLIO_E_INVAL, "-1");
    SAYS(&h, folio_block_pool_give_all(pool, NULL, 2), FOLIO_E_INVAL,
         "give_all", "blks is NULL, n is 2");
    OK(folio_block_pool_give_all(pool, NULL, 0));

    /* A block with two holders may stand there twice; it becomes free at its
     * second place. The failed lists above left no trace in the check. */
    OK(folio_block_pool_give_all(pool, (int32_t[]){3, 1, 3, 0}, 4));
    STACK_IS(pool, 5, 1, 3, 0);
    OK(folio_block_pool_give_all(pool, (int32_t[]){2, 4}, 2));
    STACK_IS(pool, 5, 1, 3, 0, 2, 4);
    cr_assert_eq(take(pool), 4);
    cr_assert_eq(take(pool), 2);
    folio_block_pool_close(&pool);
}

Test(sched_pool, bad_open)
{
    heard h = {0};
    folio_block_pool *pool = NULL;
    folio_block_pool_params p;
    folio_block_pool_params_default(&p);
    cr_assert_eq(p.size, sizeof p);
    cr_assert_eq(p.block_tok, 16);
    cr_assert_eq(p.n_blocks, 0);
    cr_assert_null(p.on_evict);
    p.log = (folio_log){listen, &h, FOLIO_LOG_DEBUG};
    SAYS(&h, folio_block_pool_open(&p, &pool), FOLIO_E_INVAL, "n_blocks is 0");
    p.n_blocks = -3;
    SAYS(&h, folio_block_pool_open(&p, &pool), FOLIO_E_INVAL, "n_blocks is -3");
    p.n_blocks = 4;
    p.block_tok = 0;
    SAYS(&h, folio_block_pool_open(&p, &pool), FOLIO_E_INVAL, "block_tok is 0");
    p.block_tok = -16;
    SAYS(&h, folio_block_pool_open(&p, &pool), FOLIO_E_INVAL, "-16");
    p.n_blocks = 1 << 16;
    p.block_tok = 1 << 15; /* 2^31 slots: the last one has no number */
    SAYS(&h, folio_block_pool_open(&p, &pool), FOLIO_E_TOO_LARGE, "2147483648",
         "2147483647");
    p.n_blocks = p.block_tok = INT32_MAX;
    SAYS(&h, folio_block_pool_open(&p, &pool), FOLIO_E_TOO_LARGE, "slots");
    p.n_blocks = 2;
    p.block_tok = 2;
    p.size = 0;
    FAILS(FOLIO_E_INVAL, folio_block_pool_open(&p, &pool));
    p.size = sizeof p;
    FAILS(FOLIO_E_INVAL, folio_block_pool_open(NULL, &pool));
    FAILS(FOLIO_E_INVAL, folio_block_pool_open(&p, NULL));
    cr_assert_null(pool);
    p.n_blocks = 1;
    p.block_tok = INT32_MAX;
    OK(folio_block_pool_open(&p, &pool));
    folio_block_pool_close(&pool);
}

Test(sched_pool, null_handles)
{
    int32_t n = 7, id = 7;
    folio_block_state s = FOLIO_BLOCK_HELD;
    FAILS(FOLIO_E_INVAL, folio_block_pool_take(NULL, &id));
    FAILS(FOLIO_E_INVAL, folio_block_pool_take_for(NULL, 1, &id, 1, &n));
    FAILS(FOLIO_E_INVAL, folio_block_pool_can_take(NULL, 1));
    FAILS(FOLIO_E_INVAL, folio_block_pool_blocks_for(NULL, 1, &n));
    FAILS(FOLIO_E_INVAL, folio_block_pool_retain(NULL, 0));
    FAILS(FOLIO_E_INVAL, folio_block_pool_give(NULL, 0));
    FAILS(FOLIO_E_INVAL, folio_block_pool_give_all(NULL, &id, 1));
    FAILS(FOLIO_E_INVAL, folio_block_pool_publish(NULL, 0));
    FAILS(FOLIO_E_INVAL, folio_block_pool_unpublish(NULL, 0));
    FAILS(FOLIO_E_INVAL, folio_block_pool_revive(NULL, 0));
    FAILS(FOLIO_E_INVAL, folio_block_pool_state(NULL, 0, &s));
    FAILS(FOLIO_E_INVAL, folio_block_pool_refcount(NULL, 0, &n));
    FAILS(FOLIO_E_INVAL, folio_block_pool_list_cached(NULL, &id, 1, &n));
    cr_assert_null(folio_block_pool_free_stack(NULL, &n));
    cr_assert_eq(folio_block_pool_count(NULL).n_blocks, 0);
    folio_block_pool *pool = open_pool(2, 2, NULL);
    FAILS(FOLIO_E_INVAL, folio_block_pool_take(pool, NULL));
    FAILS(FOLIO_E_INVAL, folio_block_pool_take_for(pool, 2, NULL, 1, &n));
    FAILS(FOLIO_E_INVAL, folio_block_pool_take_for(pool, 2, &id, 1, NULL));
    FAILS(FOLIO_E_INVAL, folio_block_pool_give_all(pool, NULL, 1));
    FAILS(FOLIO_E_RANGE, folio_block_pool_state(pool, 2, &s));
    FAILS(FOLIO_E_RANGE, folio_block_pool_refcount(pool, -1, &n));
    cr_assert_eq(n, 7);
    cr_assert_eq(id, 7);
    cr_assert_eq(s, FOLIO_BLOCK_HELD);
    cr_assert_eq(n_free(pool), 2);
    folio_block_pool_close(&pool);
}

Test(sched_pool, nth_allocation_fails)
{
    folio_block_pool_params p;
    folio_block_pool_params_default(&p);
    p.n_blocks = 8;
    int n = 1;
    for (;; n++) {
        folio_block_pool *pool = NULL;
        heard h = {0};
        p.log = (folio_log){listen, &h, FOLIO_LOG_DEBUG};
        fail_alloc_arm(n);
        const folio_status st = folio_block_pool_open(&p, &pool);
        if (!fail_alloc_disarm()) {
            cr_assert_eq(st, FOLIO_OK);
            folio_block_pool_close(&pool);
            break;
        }
        cr_assert_eq(st, FOLIO_E_NOMEM, "allocation %d", n);
        cr_assert_null(pool);
        cr_assert_eq(h.n, 1);
    }
    cr_assert_gt(n, 3, "the allocations were not seen");
}

/* ---- cached blocks ------------------------------------------------------- */

typedef struct evictions {
    int32_t n, ids[16];
} evictions;

static void note_eviction(void *user, int32_t blk)
{
    evictions *e = user;
    cr_assert_lt(e->n, 16);
    e->ids[e->n++] = blk;
}

static folio_block_pool *open_evicting(int32_t n_blocks, evictions *e, heard *h)
{
    folio_block_pool *pool = NULL;
    folio_block_pool_params p;
    folio_block_pool_params_default(&p);
    p.n_blocks = n_blocks;
    p.block_tok = 4;
    p.on_evict = note_eviction;
    p.evict_user = e;
    p.log = (folio_log){listen, h, FOLIO_LOG_DEBUG};
    OK(folio_block_pool_open(&p, &pool));
    return pool;
}

Test(sched_pool, published_blocks_are_parked_and_taken_last)
{
    evictions e = {0};
    heard h = {0};
    folio_block_pool *pool = open_evicting(5, &e, &h);
    int32_t ids[5], n;
    OK(folio_block_pool_take_for(pool, 20, ids, 5, &n));
    OK(folio_block_pool_publish(pool, 1));
    OK(folio_block_pool_publish(pool, 3));
    OK(folio_block_pool_publish(pool, 4));
    OK(folio_block_pool_publish(pool, 4)); /* the same as once */
    OK(folio_block_pool_give_all(pool, (int32_t[]){3, 0, 1, 4, 2}, 5));
    /* Free ones on the stack, cached ones in order of last use. */
    STACK_IS(pool, 0, 2);
    CACHED_IS(pool, 3, 1, 4);
    const folio_block_pool_counts c = folio_block_pool_count(pool);
    cr_assert_eq(c.n_free, 5, "cached blocks count as free");
    cr_assert_eq(c.n_cached, 3);
    cr_assert_eq(c.n_held, 0);
    cr_assert_eq(state_of(pool, 3), FOLIO_BLOCK_CACHED);
    cr_assert_eq(refs(pool, 3), 0);
    OK(folio_block_pool_can_take(pool, 20));

    cr_assert_eq(take(pool), 2);
    cr_assert_eq(take(pool), 0);
    cr_assert_eq(e.n, 0);
    cr_assert_eq(take(pool), 3); /* least recently used */
    cr_assert_eq(e.n, 1);
    cr_assert_eq(e.ids[0], 3);
    /* What was evicted is an ordinary block again. */
    OK(folio_block_pool_give(pool, 3));
    cr_assert_eq(state_of(pool, 3), FOLIO_BLOCK_FREE);
    OK(folio_block_pool_take_for(pool, 12, ids, 5, &n));
    eq_ids(ids, n, IDS(3, 1, 4), __LINE__);
    eq_ids(e.ids, e.n, IDS(3, 1, 4), __LINE__);
    CACHED_EMPTY(pool);
    FAILS(FOLIO_E_FULL, folio_block_pool_take(pool, &n));
    cr_assert_eq(h.n, 0);
    folio_block_pool_close(&pool);
}

Test(sched_pool, revive_and_unpublish)
{
    evictions e = {0};
    heard h = {0};
    folio_block_pool *pool = open_evicting(4, &e, &h);
    int32_t ids[4], n;
    OK(folio_block_pool_take_for(pool, 16, ids, 4, &n));
    for (int32_t b = 0; b < 4; b++)
        OK(folio_block_pool_publish(pool, b));
    OK(folio_block_pool_give_all(pool, ids, 4));
    CACHED_IS(pool, 0, 1, 2, 3);

    OK(folio_block_pool_revive(pool, 1)); /* from the middle */
    cr_assert_eq(state_of(pool, 1), FOLIO_BLOCK_HELD);
    cr_assert_eq(refs(pool, 1), 1);
    CACHED_IS(pool, 0, 2, 3);
    OK(folio_block_pool_retain(pool, 1));
    OK(folio_block_pool_give(pool, 1));
    OK(folio_block_pool_give(pool, 1)); /* used last, so cached last */
    CACHED_IS(pool, 0, 2, 3, 1);
    OK(folio_block_pool_revive(pool, 0)); /* the oldest */
    OK(folio_block_pool_revive(pool, 1)); /* the newest */
    CACHED_IS(pool, 2, 3);

    OK(folio_block_pool_unpublish(pool, 3)); /* cached: becomes free */
    STACK_IS(pool, 3);
    CACHED_IS(pool, 2);
    OK(folio_block_pool_unpublish(pool, 0)); /* held: stays held */
    cr_assert_eq(state_of(pool, 0), FOLIO_BLOCK_HELD);
    OK(folio_block_pool_give(pool, 0));
    STACK_IS(pool, 3, 0);
    cr_assert_eq(e.n, 0);

    SAYS(&h, folio_block_pool_revive(pool, 1), FOLIO_E_INVAL, "block 1", "held",
         "cached");
    SAYS(&h, folio_block_pool_revive(pool, 3), FOLIO_E_INVAL, "block 3",
         "free");
    SAYS(&h, folio_block_pool_revive(pool, 4), FOLIO_E_INVAL, "block 4",
         "0..3");
    SAYS(&h, folio_block_pool_publish(pool, 2), FOLIO_E_INVAL, "block 2",
         "cached", "held");
    SAYS(&h, folio_block_pool_publish(pool, -1), FOLIO_E_INVAL, "block -1");
    SAYS(&h, folio_block_pool_unpublish(pool, 0), FOLIO_E_INVAL, "block 0");
    SAYS(&h, folio_block_pool_unpublish(pool, 4), FOLIO_E_INVAL, "block 4");
    SAYS(&h, folio_block_pool_give(pool, 2), FOLIO_E_INVAL, "block 2",
         "cached");
    SAYS(&h, folio_block_pool_retain(pool, 2), FOLIO_E_INVAL, "block 2",
         "cached");
    SAYS(&h, folio_block_pool_list_cached(pool, NULL, 0, &n), FOLIO_E_INVAL,
         "1 blocks", "room for 0");
    folio_block_pool_close(&pool);
}

/* ---- goldens ------------------------------------------------------------- */

/* Block ids and free lists of a schedule of three requests on three blocks of
 * four: LIFO order through preemptions and releases. */
Test(sched_pool, golden_three_requests_on_three_blocks)
{
    folio_block_pool *pool = open_pool(3, 4, NULL);
    int32_t a[3] = {take(pool)}, b[3] = {take(pool)}, c[3] = {take(pool)}, n;
    STACK_EMPTY(pool);
    OK(folio_block_pool_give(pool, c[0])); /* c makes room for a */
    a[1] = take(pool);
    OK(folio_block_pool_give(pool, b[0])); /* b for itself */
    eq_ids(a, 2, IDS(0, 2), __LINE__);
    STACK_IS(pool, 1);
    a[2] = take(pool);
    eq_ids(a, 3, IDS(0, 2, 1), __LINE__);
    STACK_EMPTY(pool);
    OK(folio_block_pool_give_all(pool, a, 3));
    OK(folio_block_pool_take_for(pool, 5, b, 3, &n));
    eq_ids(b, n, IDS(1, 2), __LINE__);
    STACK_IS(pool, 0);
    b[2] = take(pool);
    eq_ids(b, 3, IDS(1, 2, 0), __LINE__);
    OK(folio_block_pool_give_all(pool, b, 3));
    OK(folio_block_pool_take_for(pool, 5, c, 3, &n));
    eq_ids(c, n, IDS(0, 2), __LINE__);
    STACK_IS(pool, 1);
    c[2] = take(pool);
    OK(folio_block_pool_give_all(pool, c, 3));
    STACK_IS(pool, 0, 2, 1);
    folio_block_pool_close(&pool);
}

Test(sched_pool, golden_two_requests_on_two_blocks)
{
    folio_block_pool *pool = open_pool(2, 4, NULL);
    int32_t a[2] = {take(pool)}, b[2] = {take(pool)}, n;
    OK(folio_block_pool_give(pool, b[0]));
    a[1] = take(pool);
    eq_ids(a, 2, IDS(0, 1), __LINE__);
    OK(folio_block_pool_give_all(pool, a, 2));
    OK(folio_block_pool_take_for(pool, 5, b, 2, &n));
    eq_ids(b, n, IDS(1, 0), __LINE__);
    OK(folio_block_pool_give_all(pool, b, 2));
    STACK_IS(pool, 1, 0);
    folio_block_pool_close(&pool);
}
