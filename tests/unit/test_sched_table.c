/* Block table of one sequence: where a token lies, growth by blocks, lending,
 * sharing and copy-on-write. */
#include "unit/fail_alloc.h"
#include "unit/sched_util.h"

static void append(folio_block_table *t, int64_t n)
{
    folio_block_copy c = {7, 7};
    OK(folio_block_table_append(t, n, &c));
    cr_assert_eq(c.src, -1);
    cr_assert_eq(c.dst, -1);
}

static int32_t slot(const folio_block_table *t, int64_t pos)
{
    int32_t s = -1;
    OK(folio_block_table_slot(t, pos, &s));
    return s;
}

Test(sched_table, empty)
{
    folio_block_pool *pool = open_pool(4, 16, NULL);
    folio_block_table *t = open_table(pool);
    cr_assert_eq(folio_block_table_n_tok(t), 0);
    cr_assert_eq(folio_block_table_capacity(t), 0);
    cr_assert_not(folio_block_table_is_borrowed(t));
    NO_BLOCKS(t);
    append(t, 0);
    OK(folio_block_table_slots(t, 0, 0, NULL));
    OK(folio_block_table_free(t));
    cr_assert_eq(n_free(pool), 4);
    folio_block_table_close(&t);
    cr_assert_null(t);
    folio_block_table_close(&t);
    folio_block_table_close(NULL);
    folio_block_pool_close(&pool);
}

Test(sched_table, five_tokens_are_one_block)
{
    folio_block_pool *pool = open_pool(4, 16, NULL);
    folio_block_table *t = open_table(pool);
    append(t, 5);
    cr_assert_eq(folio_block_table_n_tok(t), 5);
    cr_assert_eq(folio_block_table_capacity(t), 16);
    BLOCKS_ARE(t, 0);
    cr_assert_eq(n_free(pool), 3);
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, position_17_is_place_1_of_the_second_block)
{
    folio_block_pool *pool = open_pool(4, 16, NULL);
    folio_block_table *t = open_table(pool);
    int32_t blk = -1, off = -1;
    take(pool); /* so that ids and places differ */
    append(t, 20);
    OK(folio_block_table_position(t, 17, &blk, &off));
    cr_assert_eq(blk, 2);
    cr_assert_eq(off, 1);
    cr_assert_eq(slot(t, 17), 33);
    OK(folio_block_table_position(t, 0, &blk, NULL));
    cr_assert_eq(blk, 1);
    OK(folio_block_table_position(t, 15, NULL, &off));
    cr_assert_eq(off, 15);
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, slots_are_distinct)
{
    folio_block_pool *pool = open_pool(8, 3, NULL);
    folio_block_table *t = open_table(pool);
    int32_t slots[22];
    bool used[24] = {false};
    append(t, 22);
    OK(folio_block_table_slots(t, 0, 22, slots));
    for (int i = 0; i < 22; i++) {
        cr_assert(slots[i] >= 0 && slots[i] < 24);
        cr_assert_not(used[slots[i]], "slot %d twice", (int)slots[i]);
        used[slots[i]] = true;
        cr_assert_eq(slots[i], slot(t, i));
    }
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, a_block_is_taken_at_each_boundary)
{
    folio_block_pool *pool = open_pool(4, 4, NULL);
    folio_block_table *t = open_table(pool);
    for (int i = 1; i <= 16; i++) {
        append(t, 1);
        cr_assert_eq(n_free(pool), 4 - (i + 3) / 4, "token %d", i);
    }
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, incremental_equals_bulk)
{
    static const int32_t sizes[] = {1, 2, 3, 4, 7, 16};
    for (size_t k = 0; k < FOLIO_COUNT(sizes); k++) {
        folio_block_pool *pa = open_pool(16, sizes[k], NULL);
        folio_block_pool *pb = open_pool(16, sizes[k], NULL);
        folio_block_table *a = open_table(pa), *b = open_table(pb);
        int32_t sa[10], sb[10], na, nb;
        for (int i = 0; i < 10; i++)
            append(a, 1);
        append(b, 10);
        const int32_t *ia = folio_block_table_blocks(a, &na);
        const int32_t *ib = folio_block_table_blocks(b, &nb);
        eq_ids(ia, na, ib, nb, __LINE__);
        OK(folio_block_table_slots(a, 0, 10, sa));
        OK(folio_block_table_slots(b, 0, 10, sb));
        eq_ids(sa, 10, sb, 10, __LINE__);
        cr_assert_eq(n_free(pa), n_free(pb));
        folio_block_table_close(&a);
        folio_block_table_close(&b);
        folio_block_pool_close(&pa);
        folio_block_pool_close(&pb);
    }
}

Test(sched_table, positions_out_of_range)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 4, &h);
    folio_block_table *t = open_table(pool);
    int32_t blk = 7, off = 7, s[8] = {7};
    append(t, 5); /* room for 8: the room does not count */
    static const int64_t bad[] = {-1, 5, 7, 8, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++) {
        SAYS(&h, folio_block_table_position(t, bad[i], &blk, &off),
             FOLIO_E_RANGE, "position", "5 tokens");
        SAYS(&h, folio_block_table_slot(t, bad[i], s), FOLIO_E_RANGE,
             "position", "5 tokens");
    }
    SAYS(&h, folio_block_table_slots(t, 0, 6, s), FOLIO_E_RANGE, "6 slots");
    SAYS(&h, folio_block_table_slots(t, 4, 2, s), FOLIO_E_RANGE, "position 4");
    SAYS(&h, folio_block_table_slots(t, -1, 1, s), FOLIO_E_RANGE, "-1");
    SAYS(&h, folio_block_table_slots(t, 1, -1, s), FOLIO_E_RANGE, "-1 slots");
    SAYS(&h, folio_block_table_slots(t, 6, 0, s), FOLIO_E_RANGE, "position 6");
    SAYS(&h, folio_block_table_slots(t, 2, INT64_MAX, s), FOLIO_E_RANGE,
         "slots");
    OK(folio_block_table_slots(t, 5, 0, NULL));
    FAILS(FOLIO_E_INVAL, folio_block_table_slots(t, 0, 1, NULL));
    cr_assert_eq(blk, 7);
    cr_assert_eq(off, 7);
    cr_assert_eq(s[0], 7);
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, bad_append)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 4, &h);
    folio_block_table *t = open_table(pool);
    folio_block_copy c = {7, 7};
    append(t, 3);
    static const int64_t bad[] = {-1, INT64_MIN, (int64_t)INT32_MAX + 1,
                                  INT64_MAX};
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++)
        SAYS(&h, folio_block_table_append(t, bad[i], &c), FOLIO_E_INVAL,
             "n_tok", "2147483647");
    FAILS(FOLIO_E_FULL, folio_block_table_append(t, INT32_MAX, &c));
    cr_assert_eq(c.src, 7);
    cr_assert_eq(folio_block_table_n_tok(t), 3);
    cr_assert_eq(n_free(pool), 3);
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, growth_is_atomic)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(3, 4, &h);
    folio_block_table *t = open_table(pool);
    folio_block_copy c = {7, 7};
    append(t, 6);
    FAILS(FOLIO_E_FULL, folio_block_table_append(t, 7, &c));
    cr_assert_eq(h.n, 0);
    cr_assert_eq(c.dst, 7);
    cr_assert_eq(folio_block_table_n_tok(t), 6);
    BLOCKS_ARE(t, 0, 1);
    STACK_IS(pool, 2);
    append(t, 6); /* what fits still fits */
    cr_assert_eq(folio_block_table_n_tok(t), 12);
    folio_block_table_close(&t);
    cr_assert_eq(n_free(pool), 3);
    folio_block_pool_close(&pool);
}

Test(sched_table, free_and_use_again_scattered)
{
    folio_block_pool *pool = open_pool(8, 4, NULL);
    folio_block_table *a = open_table(pool);
    append(a, 8);
    BLOCKS_ARE(a, 0, 1);
    OK(folio_block_table_free(a));
    cr_assert_eq(folio_block_table_n_tok(a), 0);
    cr_assert_eq(n_free(pool), 8);
    NO_BLOCKS(a);

    /* Reuse is last in, first out: the ids are not sorted. */
    for (int64_t n = 10; n <= 12; n++) {
        folio_block_table *b = open_table(pool);
        append(b, n);
        BLOCKS_ARE(b, 1, 0, 2);
        static const int32_t want[] = {4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10, 11};
        int32_t got[12];
        OK(folio_block_table_slots(b, 0, n, got));
        eq_ids(got, (int32_t)n, want, (int32_t)n, __LINE__);
        OK(folio_block_table_slots(b, 3, 6, got));
        eq_ids(got, 6, want + 3, 6, __LINE__);
        /* The same picture for the next length: 0 and 1 freed in this order. */
        OK(folio_block_table_free(b));
        int32_t x[3] = {take(pool), take(pool), take(pool)};
        eq_ids(x, 3, IDS(2, 0, 1), __LINE__);
        OK(folio_block_pool_give_all(pool, (int32_t[]){2, 0, 1}, 3));
        folio_block_table_close(&b);
    }
    append(a, 1);
    BLOCKS_ARE(a, 1);
    folio_block_table_close(&a);
    folio_block_pool_close(&pool);
}

Test(sched_table, ids_above_65535_keep_all_their_bits)
{
    folio_block_pool *pool = open_pool(70000, 1, NULL);
    folio_block_table *t = open_table(pool);
    append(t, 70000);
    for (int64_t p = 65530; p < 65545; p++)
        cr_assert_eq(slot(t, p), p);
    cr_assert_eq(slot(t, 69999), 69999);
    folio_block_table_close(&t);
    cr_assert_eq(n_free(pool), 70000);
    folio_block_pool_close(&pool);

    pool = open_pool(2, INT32_MAX / 2, NULL); /* the largest slot numbers */
    t = open_table(pool);
    append(t, INT32_MAX - 1);
    cr_assert_eq(slot(t, INT32_MAX - 2), INT32_MAX - 2);
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, max_tok)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(8, 4, &h);
    folio_block_table *t = NULL;
    SAYS(&h, folio_block_table_open(pool, -1, &t), FOLIO_E_INVAL, "-1");
    SAYS(&h, folio_block_table_open(pool, (int64_t)INT32_MAX + 1, &t),
         FOLIO_E_INVAL, "2147483648");
    FAILS(FOLIO_E_INVAL, folio_block_table_open(NULL, 0, &t));
    FAILS(FOLIO_E_INVAL, folio_block_table_open(pool, 0, NULL));
    cr_assert_null(t);
    OK(folio_block_table_open(pool, 6, &t));
    folio_block_copy c;
    SAYS(&h, folio_block_table_append(t, 7, &c), FOLIO_E_TOO_LARGE, "0 tokens",
         "7 more", "limit of 6");
    append(t, 5);
    SAYS(&h, folio_block_table_append(t, 2, &c), FOLIO_E_TOO_LARGE, "5 tokens");
    append(t, 1);
    cr_assert_eq(n_free(pool), 6);
    OK(folio_block_table_free(t));

    int32_t ids[3], n;
    OK(folio_block_pool_take_for(pool, 12, ids, 3, &n));
    SAYS(&h, folio_block_table_adopt(t, ids, 3, 0), FOLIO_E_TOO_LARGE,
         "max_tok 6");
    SAYS(&h, folio_block_table_adopt(t, ids, 2, 7), FOLIO_E_TOO_LARGE,
         "limit of 6");
    OK(folio_block_table_adopt(t, ids, 2, 6));
    SAYS(&h, folio_block_table_extend(t, ids + 2, 1), FOLIO_E_TOO_LARGE,
         "max_tok 6");
    OK(folio_block_table_detach(t, NULL, 0, NULL));
    folio_block_table_close(&t);

    OK(folio_block_table_open(pool, INT32_MAX,
                              &t)); /* above the pool is fine */
    FAILS(FOLIO_E_FULL, folio_block_table_append(t, 33, &c));
    OK(folio_block_pool_give_all(pool, ids, 3));
    append(t, 32);
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, truncate)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(6, 4, &h);
    folio_block_table *t = open_table(pool);
    append(t, 18);
    SAYS(&h, folio_block_table_truncate(t, 19), FOLIO_E_RANGE, "19",
         "18 tokens");
    SAYS(&h, folio_block_table_truncate(t, -1), FOLIO_E_RANGE, "-1");
    OK(folio_block_table_truncate(t, 17));
    BLOCKS_ARE(t, 0, 1, 2, 3, 4);
    OK(folio_block_table_truncate(t, 8)); /* 4, 3, 2 go back, in this order */
    BLOCKS_ARE(t, 0, 1);
    STACK_IS(pool, 5, 4, 3, 2);
    cr_assert_eq(folio_block_table_n_tok(t), 8);
    append(t, 1);
    BLOCKS_ARE(t, 0, 1, 2);
    OK(folio_block_table_truncate(t, 0));
    NO_BLOCKS(t);
    STACK_IS(pool, 5, 4, 3, 2, 1, 0);
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

/* ---- lending ------------------------------------------------------------- */

Test(sched_table, an_adopted_table_leaves_the_pool_alone)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(8, 4, &h);
    folio_block_table *t = open_table(pool);
    int32_t lent[3], n, back[3];
    OK(folio_block_pool_take_for(pool, 12, lent, 3, &n));
    OK(folio_block_table_adopt(t, (int32_t[]){2, 0}, 2, 0));
    cr_assert(folio_block_table_is_borrowed(t));
    cr_assert_eq(folio_block_table_n_tok(t), 0);
    cr_assert_eq(folio_block_table_capacity(t), 8);
    append(t, 8);
    cr_assert_eq(slot(t, 0), 8);
    cr_assert_eq(slot(t, 4), 0);
    cr_assert_eq(refs(pool, 2), 1);
    cr_assert_eq(n_free(pool), 5);

    /* No room: an error, never a block behind the lender's back. */
    SAYS(&h, folio_block_table_append(t, 1, NULL), FOLIO_E_INVAL, "9 tokens",
         "2 borrowed blocks");
    cr_assert_eq(folio_block_table_n_tok(t), 8);
    cr_assert_eq(n_free(pool), 5);

    SAYS(&h, folio_block_table_extend(t, (int32_t[]){1, 0}, 2), FOLIO_E_INVAL,
         "block 0", "already");
    SAYS(&h, folio_block_table_extend(t, (int32_t[]){1, 1}, 2), FOLIO_E_INVAL,
         "block 1", "already");
    SAYS(&h, folio_block_table_extend(t, (int32_t[]){1, 3}, 2), FOLIO_E_INVAL,
         "block 3", "free");
    SAYS(&h, folio_block_table_extend(t, (int32_t[]){8}, 1), FOLIO_E_INVAL,
         "block 8", "0..7");
    BLOCKS_ARE(t, 2, 0);
    OK(folio_block_table_extend(t, (int32_t[]){1}, 1));
    BLOCKS_ARE(t, 2, 0, 1);
    cr_assert_eq(folio_block_table_n_tok(t), 8,
                 "extend gives room, not tokens");
    append(t, 4);

    SAYS(&h, folio_block_table_free(t), FOLIO_E_INVAL, "borrowed");
    OK(folio_block_table_truncate(t, 1)); /* the lender's blocks stay */
    BLOCKS_ARE(t, 2, 0, 1);
    cr_assert_eq(n_free(pool), 5);
    append(t, 10);

    SAYS(&h, folio_block_table_detach(t, back, 2, &n), FOLIO_E_INVAL,
         "3 blocks", "room for 2");
    OK(folio_block_table_detach(t, back, 3, &n));
    eq_ids(back, n, IDS(2, 0, 1), __LINE__);
    cr_assert_eq(folio_block_table_n_tok(t), 0);
    cr_assert_not(folio_block_table_is_borrowed(t));
    NO_BLOCKS(t);
    cr_assert_eq(n_free(pool), 5, "detach frees nothing");
    OK(folio_block_pool_give_all(pool, lent, 3)); /* and nothing twice */
    OK(folio_block_table_free(t));
    cr_assert_eq(n_free(pool), 8);
    append(t, 4); /* an ordinary table again */
    cr_assert_eq(n_free(pool), 7);
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, adopt_is_checked)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 4, &h);
    folio_block_table *t = open_table(pool);
    int32_t lent[3], n;
    OK(folio_block_pool_take_for(pool, 12, lent, 3, &n));
    SAYS(&h, folio_block_table_adopt(t, (int32_t[]){0, 1, 0}, 3, 0),
         FOLIO_E_INVAL, "block 0", "already");
    SAYS(&h, folio_block_table_adopt(t, (int32_t[]){0, 3}, 2, 0), FOLIO_E_INVAL,
         "block 3", "free");
    SAYS(&h, folio_block_table_adopt(t, (int32_t[]){0, 4}, 2, 0), FOLIO_E_INVAL,
         "block 4", "0..3");
    SAYS(&h, folio_block_table_adopt(t, (int32_t[]){-1}, 1, 0), FOLIO_E_INVAL,
         "block -1");
    SAYS(&h, folio_block_table_adopt(t, (int32_t[]){0, 1, 2, 0, 1, 2}, 6, 0),
         FOLIO_E_INVAL, "block 0", "already");
    SAYS(&h, folio_block_table_adopt(t, lent, -1, 0), FOLIO_E_INVAL, "-1");
    SAYS(&h, folio_block_table_adopt(t, lent, 2, 9), FOLIO_E_RANGE, "9",
         "0..8");
    SAYS(&h, folio_block_table_adopt(t, lent, 2, -1), FOLIO_E_RANGE, "-1");
    FAILS(FOLIO_E_INVAL, folio_block_table_adopt(t, NULL, 1, 0));
    NO_BLOCKS(t);
    cr_assert_not(folio_block_table_is_borrowed(t));
    SAYS(&h, folio_block_table_extend(t, lent, 1), FOLIO_E_INVAL, "owns");

    /* The refused lists left no mark: all three can still be adopted. */
    OK(folio_block_table_adopt(t, lent, 3, 9));
    cr_assert_eq(folio_block_table_n_tok(t), 9);
    SAYS(&h, folio_block_table_adopt(t, lent, 1, 0), FOLIO_E_INVAL, "not empty",
         "3 blocks");
    OK(folio_block_table_detach(t, NULL, 0, NULL));

    append(t, 1);
    SAYS(&h, folio_block_table_adopt(t, lent, 1, 0), FOLIO_E_INVAL,
         "not empty");
    SAYS(&h, folio_block_table_extend(t, lent, 1), FOLIO_E_INVAL, "owns");
    OK(folio_block_table_free(t));

    OK(folio_block_table_adopt(t, NULL, 0, 0)); /* borrows nothing yet */
    cr_assert(folio_block_table_is_borrowed(t));
    SAYS(&h, folio_block_table_append(t, 1, NULL), FOLIO_E_INVAL, "borrowed");
    OK(folio_block_table_extend(t, lent, 1));
    append(t, 4);
    folio_block_table_close(&t); /* lets go without giving */
    cr_assert_eq(n_free(pool), 1);
    OK(folio_block_pool_give_all(pool, lent, 3));
    folio_block_pool_close(&pool);
}

Test(sched_table, a_borrowed_table_does_not_write_what_others_see)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 4, &h);
    folio_block_table *t = open_table(pool);
    int32_t lent[3], n;
    OK(folio_block_pool_take_for(pool, 12, lent, 3, &n));
    OK(folio_block_pool_retain(pool, 0));
    OK(folio_block_pool_publish(pool, 2));
    OK(folio_block_table_adopt(t, lent, 3, 3));
    SAYS(&h, folio_block_table_append(t, 1, NULL), FOLIO_E_INVAL, "block 0",
         "shared");
    OK(folio_block_table_detach(t, NULL, 0, NULL));
    OK(folio_block_table_adopt(t, lent, 3, 4)); /* block 0 is read only */
    SAYS(&h, folio_block_table_append(t, 5, NULL), FOLIO_E_INVAL, "block 2",
         "shared");
    append(t, 4);
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, detach_hands_owned_blocks_over)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 4, &h);
    folio_block_table *t = open_table(pool);
    int32_t ids[4], n = 7;
    append(t, 7);
    SAYS(&h, folio_block_table_detach(t, NULL, 0, &n), FOLIO_E_INVAL,
         "2 blocks");
    SAYS(&h, folio_block_table_detach(t, ids, 1, &n), FOLIO_E_INVAL,
         "room for 1");
    cr_assert_eq(n, 7);
    OK(folio_block_table_detach(t, ids, 4, &n));
    eq_ids(ids, n, IDS(0, 1), __LINE__);
    OK(folio_block_table_detach(t, NULL, 0, &n));
    cr_assert_eq(n, 0);
    cr_assert_eq(n_free(pool), 2);
    OK(folio_block_pool_give_all(pool, ids, 2));
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, blocks_given_behind_its_back)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 4, &h);
    folio_block_table *t = open_table(pool);
    append(t, 12);
    OK(folio_block_pool_give(pool, 1));
    SAYS(&h, folio_block_table_free(t), FOLIO_E_INVAL, "block 1", "free");
    SAYS(&h, folio_block_table_truncate(t, 2), FOLIO_E_INVAL, "block 1");
    cr_assert_eq(folio_block_table_n_tok(t), 12);
    BLOCKS_ARE(t, 0, 1, 2);
    STACK_IS(pool, 3, 1);
    folio_block_table *f = open_table(pool);
    SAYS(&h, folio_block_table_fork(t, f), FOLIO_E_INVAL, "block 1");
    cr_assert_eq(refs(pool, 0), 1);
    NO_BLOCKS(f);
    folio_block_table_close(&f);
    folio_block_table_close(&t);
    cr_assert_null(t);
    folio_block_pool_close(&pool);
}

/* ---- sharing ------------------------------------------------------------- */

Test(sched_table, fork_shares_and_append_copies)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(6, 4, &h);
    folio_block_table *a = open_table(pool), *b = open_table(pool);
    folio_block_copy c = {7, 7};
    append(a, 6);
    OK(folio_block_table_fork(a, b));
    BLOCKS_ARE(b, 0, 1);
    cr_assert_eq(folio_block_table_n_tok(b), 6);
    cr_assert_eq(refs(pool, 0), 2);
    cr_assert_eq(refs(pool, 1), 2);
    cr_assert_eq(folio_block_pool_count(pool).n_held, 2);
    cr_assert_eq(folio_block_pool_count(pool).n_holders, 4);

    /* A needed copy that the caller cannot hear of is refused. */
    SAYS(&h, folio_block_table_append(b, 1, NULL), FOLIO_E_INVAL, "block 1",
         "shared", "out_copy");
    BLOCKS_ARE(b, 0, 1);
    STACK_IS(pool, 5, 4, 3, 2);

    /* 4 more: the copy of block 1, then one block of growth. */
    OK(folio_block_table_append(b, 4, &c));
    cr_assert_eq(c.src, 1);
    cr_assert_eq(c.dst, 2);
    BLOCKS_ARE(b, 0, 2, 3);
    cr_assert_eq(refs(pool, 0), 2);
    cr_assert_eq(refs(pool, 1), 1);
    cr_assert_eq(slot(b, 4), 8);

    /* a is alone on block 1 now and writes in place. */
    append(a, 2);
    BLOCKS_ARE(a, 0, 1);
    /* A full shared block is never written, so nothing is copied. */
    OK(folio_block_table_free(b));
    OK(folio_block_table_fork(a, b));
    append(b, 1);
    BLOCKS_ARE(b, 0, 1, 3);
    append(a, 1);
    BLOCKS_ARE(a, 0, 1, 2);
    folio_block_table_close(&a);
    cr_assert_eq(refs(pool, 0), 1, "b still reads it");
    folio_block_table_close(&b);
    cr_assert_eq(n_free(pool), 6);
    folio_block_pool_close(&pool);
}

/* What a table once held it may be lent later: no trace of it is left by
 * copy-on-write, truncate, free or detach. */
Test(sched_table, past_blocks_leave_no_mark)
{
    folio_block_pool *pool = open_pool(6, 4, NULL);
    folio_block_table *a = open_table(pool), *b = open_table(pool);
    folio_block_copy c;
    int32_t n;
    append(a, 6);
    OK(folio_block_table_fork(a, b));
    OK(folio_block_table_append(b, 7, &c));
    BLOCKS_ARE(b, 0, 2, 3, 4);
    OK(folio_block_table_truncate(b, 5));
    OK(folio_block_table_free(b));
    take(pool);
    take(pool);
    take(pool);
    take(pool);
    OK(folio_block_table_adopt(b, (int32_t[]){1, 0, 2, 3}, 4, 0));
    OK(folio_block_table_extend(b, (int32_t[]){4, 5}, 2));
    OK(folio_block_table_detach(b, NULL, 0, &n));
    cr_assert_eq(n, 6);
    OK(folio_block_table_adopt(b, (int32_t[]){5, 4, 3, 2, 1, 0}, 6, 0));
    folio_block_table_close(&b);
    folio_block_table_close(&a);
    folio_block_pool_close(&pool);
}

Test(sched_table, copy_on_write_is_atomic)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(3, 4, &h);
    folio_block_table *a = open_table(pool), *b = open_table(pool);
    folio_block_copy c = {7, 7};
    append(a, 6);
    OK(folio_block_table_fork(a, b));
    /* One block is left: enough to copy, not to copy and grow. */
    FAILS(FOLIO_E_FULL, folio_block_table_append(b, 3, &c));
    cr_assert_eq(c.src, 7);
    cr_assert_eq(refs(pool, 1), 2);
    BLOCKS_ARE(b, 0, 1);
    STACK_IS(pool, 2);
    OK(folio_block_table_append(b, 2, &c));
    cr_assert_eq(c.src, 1);
    cr_assert_eq(c.dst, 2);
    OK(folio_block_table_free(b));

    /* No block is left: even one token into a shared block is refused. */
    take(pool);
    OK(folio_block_table_fork(a, b));
    FAILS(FOLIO_E_FULL, folio_block_table_append(b, 1, &c));
    FAILS(FOLIO_E_FULL, folio_block_table_append(a, 1, &c));
    OK(folio_block_table_append(b, 0, &c));
    cr_assert_eq(c.src, -1);
    cr_assert_eq(h.n, 0);
    folio_block_table_close(&a);
    folio_block_table_close(&b);
    folio_block_pool_close(&pool);
}

Test(sched_table, published_content_is_not_overwritten)
{
    folio_block_pool *pool = open_pool(4, 4, NULL);
    folio_block_table *t = open_table(pool);
    folio_block_copy c;
    append(t, 8);
    OK(folio_block_pool_publish(pool, 1));
    OK(folio_block_table_truncate(t, 6));
    OK(folio_block_table_append(t, 1, &c));
    cr_assert_eq(c.src, 1);
    cr_assert_eq(c.dst, 2);
    BLOCKS_ARE(t, 0, 2);
    CACHED_IS(pool, 1);
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

Test(sched_table, fork_is_checked)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 4, &h), *q = open_pool(4, 4, &h);
    folio_block_table *a = open_table(pool), *b = open_table(pool);
    folio_block_table *other = open_table(q), *small = NULL;
    OK(folio_block_table_open(pool, 5, &small));
    append(a, 6);
    SAYS(&h, folio_block_table_fork(a, a), FOLIO_E_INVAL, "one table");
    SAYS(&h, folio_block_table_fork(a, other), FOLIO_E_INVAL, "two pools");
    SAYS(&h, folio_block_table_fork(a, small), FOLIO_E_TOO_LARGE, "6 tokens",
         "limit of 5");
    append(b, 1);
    SAYS(&h, folio_block_table_fork(a, b), FOLIO_E_INVAL, "not empty");
    OK(folio_block_table_free(b));
    OK(folio_block_table_adopt(b, NULL, 0, 0));
    SAYS(&h, folio_block_table_fork(a, b), FOLIO_E_INVAL, "borrowed");
    FAILS(FOLIO_E_INVAL, folio_block_table_fork(NULL, b));
    FAILS(FOLIO_E_INVAL, folio_block_table_fork(a, NULL));
    cr_assert_eq(refs(pool, 0), 1);

    /* From a borrowing table: shared by count, room beyond it left out. */
    int32_t n;
    OK(folio_block_table_detach(b, NULL, 0, &n));
    const int32_t *ids = folio_block_table_blocks(a, &n);
    OK(folio_block_table_adopt(b, ids, 2, 3));
    OK(folio_block_table_fork(b, small));
    BLOCKS_ARE(small, 0);
    cr_assert_not(folio_block_table_is_borrowed(small));
    cr_assert_eq(refs(pool, 0), 2);
    cr_assert_eq(refs(pool, 1), 1);
    folio_block_table_close(&a);
    folio_block_table_close(&b);
    folio_block_table_close(&small);
    folio_block_table_close(&other);
    cr_assert_eq(n_free(pool), 4);
    folio_block_pool_close(&pool);
    folio_block_pool_close(&q);
}

Test(sched_table, growth_evicts_cached_blocks)
{
    folio_block_pool *pool = open_pool(4, 4, NULL);
    folio_block_table *t = open_table(pool);
    append(t, 16);
    for (int32_t b = 0; b < 3; b++)
        OK(folio_block_pool_publish(pool, b));
    OK(folio_block_table_free(t));
    CACHED_IS(pool, 0, 1, 2);
    append(t, 12); /* the free one, then the oldest cached */
    BLOCKS_ARE(t, 3, 0, 1);
    CACHED_IS(pool, 2);
    folio_block_table_close(&t);
    folio_block_pool_close(&pool);
}

/* ---- life ---------------------------------------------------------------- */

Test(sched_table, handles_close_in_any_order)
{
    folio_block_pool *pool = open_pool(4, 4, NULL);
    folio_block_table *a = open_table(pool), *b = open_table(pool);
    folio_block_pool_close(&pool);
    append(a, 5);
    append(b, 5);
    folio_block_copy c;
    FAILS(FOLIO_E_FULL, folio_block_table_append(b, 4, &c));
    folio_block_table_close(&a);
    append(b, 4);
    folio_block_table_close(&b);
}

Test(sched_table, nth_allocation_fails)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 4, &h);
    int n = 1;
    for (;; n++) {
        folio_block_table *t = NULL;
        const int before = h.n;
        fail_alloc_arm(n);
        const folio_status st = folio_block_table_open(pool, 0, &t);
        if (!fail_alloc_disarm()) {
            cr_assert_eq(st, FOLIO_OK);
            /* From here on nothing is allocated. */
            fail_alloc_arm(1);
            append(t, 9);
            OK(folio_block_table_truncate(t, 3));
            OK(folio_block_table_free(t));
            cr_assert_not(fail_alloc_disarm());
            folio_block_table_close(&t);
            break;
        }
        cr_assert_eq(st, FOLIO_E_NOMEM, "allocation %d", n);
        cr_assert_null(t);
        cr_assert_eq(h.n, before + 1);
    }
    cr_assert_gt(n, 2, "the allocations were not seen");
    cr_assert_eq(n_free(pool), 4);
    folio_block_pool_close(&pool);
}

Test(sched_table, null_handles)
{
    int32_t n = 7;
    FAILS(FOLIO_E_INVAL, folio_block_table_append(NULL, 1, NULL));
    FAILS(FOLIO_E_INVAL, folio_block_table_truncate(NULL, 0));
    FAILS(FOLIO_E_INVAL, folio_block_table_free(NULL));
    FAILS(FOLIO_E_INVAL, folio_block_table_position(NULL, 0, &n, &n));
    FAILS(FOLIO_E_INVAL, folio_block_table_slot(NULL, 0, &n));
    FAILS(FOLIO_E_INVAL, folio_block_table_slots(NULL, 0, 1, &n));
    FAILS(FOLIO_E_INVAL, folio_block_table_adopt(NULL, &n, 1, 0));
    FAILS(FOLIO_E_INVAL, folio_block_table_extend(NULL, &n, 1));
    FAILS(FOLIO_E_INVAL, folio_block_table_detach(NULL, &n, 1, &n));
    cr_assert_eq(folio_block_table_n_tok(NULL), 0);
    cr_assert_eq(folio_block_table_capacity(NULL), 0);
    cr_assert_not(folio_block_table_is_borrowed(NULL));
    cr_assert_null(folio_block_table_blocks(NULL, &n));
    cr_assert_eq(n, 7);
}
