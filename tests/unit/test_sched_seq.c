/* Paged state of one sequence: one table for all layers, layer 0 as the step's
 * boundary, and equality with a plain contiguous cache. The K and V of a token
 * are stood for by one number per layer. */
#include "unit/fail_alloc.h"
#include "unit/sched_util.h"

enum { N_LAYERS = 3, N_BLOCKS = 8, BS = 4, N_SLOTS = N_BLOCKS * BS };

static folio_kv_seq *open_seq(folio_block_pool *pool, int32_t n_layers,
                              int64_t max_tok)
{
    folio_kv_seq *s = NULL;
    folio_kv_seq_params p;
    folio_kv_seq_params_default(&p);
    p.n_layers = n_layers;
    p.max_tok = max_tok;
    OK(folio_kv_seq_open(pool, &p, &s));
    return s;
}

/* One step through all layers, nothing written. */
static void step(folio_kv_seq *s, int32_t n_layers, int64_t n_new)
{
    folio_kv_step st;
    OK(folio_kv_seq_begin(s, n_new, &st));
    for (int32_t l = 0; l < n_layers; l++)
        OK(folio_kv_seq_layer(s, l));
    OK(folio_kv_seq_commit(s));
}

static void eq_history(const folio_kv_seq *s, const int32_t *want, int64_t n,
                       int line)
{
    int64_t got_n = -1;
    const int32_t *got = folio_kv_seq_history(s, &got_n);
    eq_ids(got, (int32_t)got_n, want, (int32_t)n, line);
}
#define HISTORY_IS(s, ...) eq_history(s, IDS(__VA_ARGS__), __LINE__)

/* Writes through slots and reads the whole history back, as attention does;
 * returns how often a layer's history differs from the contiguous cache. */
static int run_steps(folio_block_pool *pool, const int *steps, int n_steps)
{
    static int32_t pools[N_LAYERS][N_SLOTS];
    int32_t naive[N_LAYERS][64];
    int64_t n_naive = 0;
    int bad = 0;
    folio_kv_seq *s = open_seq(pool, N_LAYERS, 0);
    memset(pools, 0x7f, sizeof pools);
    for (int i = 0; i < n_steps; i++) {
        folio_kv_step st;
        OK(folio_kv_seq_begin(s, steps[i], &st));
        cr_assert_eq(st.first_pos, n_naive);
        cr_assert_eq(st.n_new, steps[i]);
        cr_assert_eq(st.kv_len, n_naive + steps[i]);
        cr_assert_eq(st.copy.src, -1);
        cr_assert_eq(folio_kv_seq_n_tok(s), n_naive, "not committed yet");
        const int32_t free_now = n_free(pool);
        for (int32_t l = 0; l < N_LAYERS; l++) {
            OK(folio_kv_seq_layer(s, l));
            cr_assert_eq(n_free(pool), free_now, "a layer takes no block");
            for (int64_t t = 0; t < st.n_new; t++) {
                const int32_t value = (int32_t)((l + 1) * 1000 + n_naive + t);
                pools[l][st.slots[t]] = value;
                naive[l][n_naive + t] = value;
            }
            int64_t n = 0;
            const int32_t *slots = folio_kv_seq_history(s, &n);
            cr_assert_eq(n, st.kv_len);
            for (int64_t p = 0; p < n; p++)
                bad += pools[l][slots[p]] != naive[l][p];
        }
        OK(folio_kv_seq_commit(s));
        n_naive += steps[i];
        cr_assert_eq(folio_kv_seq_n_tok(s), n_naive);
        cr_assert_eq(folio_block_table_n_tok(folio_kv_seq_table(s)), n_naive);
    }
    folio_kv_seq_close(&s);
    return bad;
}

Test(sched_seq, equals_a_contiguous_cache)
{
    folio_block_pool *pool = open_pool(N_BLOCKS, BS, NULL);
    static const int steps[] = {5, 1, 1, 1};
    cr_assert_eq(run_steps(pool, steps, 4), 0);
    cr_assert_eq(n_free(pool), N_BLOCKS);
    /* Again over blocks that are out of order by now. */
    static const int more[] = {3, 8, 1, 1, 11, 2};
    cr_assert_eq(run_steps(pool, more, 6), 0);
    cr_assert_eq(n_free(pool), N_BLOCKS);
    folio_block_pool_close(&pool);
}

Test(sched_seq, one_block_per_boundary_not_per_layer)
{
    folio_block_pool *pool = open_pool(N_BLOCKS, BS, NULL);
    folio_kv_seq *s = open_seq(pool, N_LAYERS, 0);
    step(s, N_LAYERS, 4);
    cr_assert_eq(n_free(pool), N_BLOCKS - 1);
    step(s, N_LAYERS, 1);
    cr_assert_eq(n_free(pool), N_BLOCKS - 2);
    for (int i = 0; i < 3; i++)
        step(s, N_LAYERS, 1);
    cr_assert_eq(n_free(pool), N_BLOCKS - 2);
    BLOCKS_ARE(folio_kv_seq_table(s), 0, 1);
    folio_kv_seq_close(&s);
    folio_block_pool_close(&pool);
}

Test(sched_seq, fragmented_history)
{
    folio_block_pool *pool = open_pool(8, 4, NULL);
    folio_kv_seq *a = open_seq(pool, 1, 0), *b = open_seq(pool, 1, 0);
    step(a, 1, 8);
    OK(folio_kv_seq_free(a));
    step(b, 1, 9);
    step(b, 1, 1);
    BLOCKS_ARE(folio_kv_seq_table(b), 1, 0, 2);
    HISTORY_IS(b, 4, 5, 6, 7, 0, 1, 2, 3, 8, 9);
    folio_kv_seq_close(&a);
    folio_kv_seq_close(&b);
    folio_block_pool_close(&pool);
}

Test(sched_seq, exhaustion_changes_nothing)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(1, 4, &h);
    folio_kv_seq *s = open_seq(pool, 2, 0);
    folio_kv_step st;
    memset(&st, 0x11, sizeof st);
    const folio_kv_step untouched = st;
    FAILS(FOLIO_E_FULL, folio_kv_seq_begin(s, 5, &st));
    cr_assert_eq(memcmp(&st, &untouched, sizeof st), 0);
    cr_assert_eq(h.n, 0);
    cr_assert_eq(folio_kv_seq_n_tok(s), 0);
    cr_assert_eq(n_free(pool), 1);
    SAYS(&h, folio_kv_seq_layer(s, 0), FOLIO_E_INVAL, "no step");
    step(s, 2, 3);
    FAILS(FOLIO_E_FULL, folio_kv_seq_begin(s, 2, &st));
    step(s, 2, 1);
    HISTORY_IS(s, 0, 1, 2, 3);
    folio_kv_seq_close(&s);
    folio_block_pool_close(&pool);
}

Test(sched_seq, layers_are_walked_in_order)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 4, &h);
    folio_kv_seq *s = open_seq(pool, 3, 0);
    folio_kv_step st, again;
    SAYS(&h, folio_kv_seq_layer(s, 0), FOLIO_E_INVAL, "no step");
    SAYS(&h, folio_kv_seq_commit(s), FOLIO_E_INVAL, "no step");
    SAYS(&h, folio_kv_seq_cancel(s), FOLIO_E_INVAL, "no step");
    SAYS(&h, folio_kv_seq_step(s, &st), FOLIO_E_INVAL, "no step");
    OK(folio_kv_seq_begin(s, 2, &st));
    OK(folio_kv_seq_step(s, &again));
    cr_assert_eq(again.slots, st.slots);
    cr_assert_eq(again.n_new, 2);
    cr_assert_eq(again.copy.src, -1);

    SAYS(&h, folio_kv_seq_layer(s, 1), FOLIO_E_INVAL, "layer 1", "layer 0");
    SAYS(&h, folio_kv_seq_layer(s, 3), FOLIO_E_RANGE, "layer 3", "0..2");
    SAYS(&h, folio_kv_seq_layer(s, -1), FOLIO_E_RANGE, "layer -1");
    SAYS(&h, folio_kv_seq_begin(s, 1, &st), FOLIO_E_INVAL, "under way",
         "2 tokens", "position 0");
    OK(folio_kv_seq_layer(s, 0));
    SAYS(&h, folio_kv_seq_layer(s, 0), FOLIO_E_INVAL, "layer 0", "layer 1");
    SAYS(&h, folio_kv_seq_layer(s, 2), FOLIO_E_INVAL, "layer 2", "layer 1");
    SAYS(&h, folio_kv_seq_commit(s), FOLIO_E_INVAL, "1 of 3");
    OK(folio_kv_seq_layer(s, 1));
    OK(folio_kv_seq_layer(s, 2));
    SAYS(&h, folio_kv_seq_layer(s, 0), FOLIO_E_INVAL, "commit it first");
    OK(folio_kv_seq_commit(s));
    SAYS(&h, folio_kv_seq_layer(s, 0), FOLIO_E_INVAL, "no step");

    /* The next step starts at layer 0 again. */
    OK(folio_kv_seq_begin(s, 1, &st));
    SAYS(&h, folio_kv_seq_layer(s, 1), FOLIO_E_INVAL, "layer 1", "layer 0");
    OK(folio_kv_seq_layer(s, 0));
    folio_kv_seq_close(&s); /* amid a step */
    cr_assert_eq(n_free(pool), 4);
    folio_block_pool_close(&pool);
}

Test(sched_seq, step_size_and_context_length)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(8, 4, &h);
    folio_kv_seq *s = open_seq(pool, 1, 10);
    folio_kv_step st;
    SAYS(&h, folio_kv_seq_begin(s, 0, &st), FOLIO_E_INVAL, "n_new is 0");
    SAYS(&h, folio_kv_seq_begin(s, -4, &st), FOLIO_E_INVAL, "-4");
    SAYS(&h, folio_kv_seq_begin(s, INT64_MAX, &st), FOLIO_E_INVAL, "n_tok");
    SAYS(&h, folio_kv_seq_begin(s, 11, &st), FOLIO_E_TOO_LARGE, "11",
         "limit of 10");
    step(s, 1, 9);
    SAYS(&h, folio_kv_seq_begin(s, 2, &st), FOLIO_E_TOO_LARGE, "9 tokens");
    cr_assert_eq(folio_kv_seq_n_tok(s), 9);
    step(s, 1, 1);
    SAYS(&h, folio_kv_seq_begin(s, 1, &st), FOLIO_E_TOO_LARGE, "10 tokens");
    cr_assert_eq(n_free(pool), 5);
    folio_kv_seq_close(&s);
    folio_block_pool_close(&pool);
}

Test(sched_seq, cancel_gives_back_in_reverse_order)
{
    folio_block_pool *pool = open_pool(8, 4, NULL);
    folio_kv_seq *s = open_seq(pool, 2, 0);
    folio_kv_step st;
    step(s, 2, 3);
    STACK_IS(pool, 7, 6, 5, 4, 3, 2, 1);
    OK(folio_kv_seq_begin(s, 10, &st));
    STACK_IS(pool, 7, 6, 5, 4);
    OK(folio_kv_seq_layer(s, 0));
    OK(folio_kv_seq_cancel(s));
    STACK_IS(pool, 7, 6, 5, 4, 3, 2, 1);
    cr_assert_eq(folio_kv_seq_n_tok(s), 3);
    HISTORY_IS(s, 0, 1, 2);
    OK(folio_kv_seq_begin(s, 2, &st)); /* from layer 0, on the same blocks */
    eq_ids(st.slots, 2, IDS(3, 4), __LINE__);
    OK(folio_kv_seq_layer(s, 0));
    OK(folio_kv_seq_layer(s, 1));
    OK(folio_kv_seq_commit(s));
    BLOCKS_ARE(folio_kv_seq_table(s), 0, 1);
    folio_kv_seq_close(&s);
    folio_block_pool_close(&pool);
}

Test(sched_seq, free_clears_what_was_derived)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(8, 4, &h);
    folio_kv_seq *s = open_seq(pool, 2, 0);
    folio_kv_step st;
    int64_t n = -1;
    step(s, 2, 6);
    const int32_t *slots = folio_kv_seq_history(s, &n);
    OK(folio_kv_seq_begin(s, 3, &st));
    OK(folio_kv_seq_layer(s, 0));
    OK(folio_kv_seq_free(s)); /* amid a step */
    cr_assert_eq(n_free(pool), 8);
    cr_assert_eq(folio_kv_seq_n_tok(s), 0);
    eq_history(s, NULL, 0, __LINE__);
    for (int i = 0; i < 9; i++)
        cr_assert_eq(slots[i], -1, "a stale slot at %d", i);
    SAYS(&h, folio_kv_seq_step(s, &st), FOLIO_E_INVAL, "no step");
    SAYS(&h, folio_kv_seq_layer(s, 1), FOLIO_E_INVAL, "no step");
    OK(folio_kv_seq_free(s));

    OK(folio_kv_seq_begin(s, 5, &st));
    SAYS(&h, folio_kv_seq_layer(s, 1), FOLIO_E_INVAL, "layer 0");
    eq_ids(st.slots, 5, IDS(4, 5, 6, 7, 0), __LINE__);
    OK(folio_kv_seq_cancel(s));
    folio_kv_seq_close(&s);
    folio_block_pool_close(&pool);
}

Test(sched_seq, two_sequences_share_one_pool)
{
    folio_block_pool *pool = open_pool(4, 4, NULL);
    folio_kv_seq *a = open_seq(pool, 1, 0), *b = open_seq(pool, 1, 0);
    folio_kv_step st;
    step(a, 1, 4);
    step(b, 1, 4);
    step(a, 1, 1);
    step(b, 1, 1);
    HISTORY_IS(a, 0, 1, 2, 3, 8);
    HISTORY_IS(b, 4, 5, 6, 7, 12);
    step(a, 1, 3);
    FAILS(FOLIO_E_FULL, folio_kv_seq_begin(a, 1, &st));
    OK(folio_kv_seq_free(b));
    step(a, 1, 1);
    folio_block_pool_close(&pool); /* the sequences keep it alive */
    folio_kv_seq_close(&a);
    step(b, 1, 16);
    folio_kv_seq_close(&b);
}

Test(sched_seq, truncate)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(8, 4, &h);
    folio_kv_seq *s = open_seq(pool, 1, 0);
    folio_kv_step st;
    int64_t n;
    step(s, 1, 11);
    const int32_t *slots = folio_kv_seq_history(s, &n);
    SAYS(&h, folio_kv_seq_truncate(s, 12), FOLIO_E_RANGE, "12", "11 tokens");
    OK(folio_kv_seq_truncate(s, 5));
    HISTORY_IS(s, 0, 1, 2, 3, 4);
    for (int i = 5; i < 11; i++)
        cr_assert_eq(slots[i], -1);
    BLOCKS_ARE(folio_kv_seq_table(s), 0, 1);
    OK(folio_kv_seq_begin(s, 1, &st));
    SAYS(&h, folio_kv_seq_truncate(s, 1), FOLIO_E_INVAL, "under way");
    OK(folio_kv_seq_cancel(s));
    folio_kv_seq_close(&s);
    folio_block_pool_close(&pool);
}

/* ---- sharing ------------------------------------------------------------- */

Test(sched_seq, fork_and_copy_on_write)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(8, 4, &h);
    folio_kv_seq *a = open_seq(pool, 2, 0), *b = open_seq(pool, 2, 0);
    folio_kv_step st;
    step(a, 2, 6);
    OK(folio_kv_seq_fork(a, b));
    cr_assert_eq(folio_kv_seq_n_tok(b), 6);
    HISTORY_IS(b, 0, 1, 2, 3, 4, 5);

    OK(folio_kv_seq_begin(b, 3, &st));
    cr_assert_eq(st.copy.src, 1);
    cr_assert_eq(st.copy.dst, 2);
    eq_ids(st.slots, 3, IDS(10, 11, 12), __LINE__);
    /* The tokens that were there already moved with the block. */
    HISTORY_IS(b, 0, 1, 2, 3, 8, 9, 10, 11, 12);
    cr_assert_eq(refs(pool, 1), 2, "the source stays held through the step");
    OK(folio_kv_seq_layer(b, 0));
    OK(folio_kv_seq_layer(b, 1));
    OK(folio_kv_seq_commit(b));
    cr_assert_eq(refs(pool, 1), 1);
    HISTORY_IS(b, 0, 1, 2, 3, 8, 9, 10, 11, 12);
    HISTORY_IS(a, 0, 1, 2, 3, 4, 5);
    step(a, 2, 1);
    HISTORY_IS(a, 0, 1, 2, 3, 4, 5, 6);
    folio_kv_seq_close(&a);
    HISTORY_IS(b, 0, 1, 2, 3, 8, 9, 10, 11, 12);
    folio_kv_seq_close(&b);
    cr_assert_eq(n_free(pool), 8);
    folio_block_pool_close(&pool);
}

Test(sched_seq, cancel_undoes_a_copy)
{
    folio_block_pool *pool = open_pool(8, 4, NULL);
    folio_kv_seq *a = open_seq(pool, 1, 0), *b = open_seq(pool, 1, 0);
    folio_kv_step st;
    step(a, 1, 6);
    OK(folio_kv_seq_fork(a, b));
    OK(folio_kv_seq_begin(b, 7, &st));
    cr_assert_eq(st.copy.src, 1);
    /* Even where the other one lets go meanwhile, the source is still ours. */
    folio_kv_seq_close(&a);
    cr_assert_eq(refs(pool, 1), 1);
    OK(folio_kv_seq_cancel(b));
    STACK_IS(pool, 7, 6, 5, 4, 3, 2);
    BLOCKS_ARE(folio_kv_seq_table(b), 0, 1);
    HISTORY_IS(b, 0, 1, 2, 3, 4, 5);
    OK(folio_kv_seq_begin(b, 1, &st)); /* alone now: in place */
    cr_assert_eq(st.copy.src, -1);
    OK(folio_kv_seq_cancel(b));
    folio_kv_seq_close(&b);
    cr_assert_eq(n_free(pool), 8);
    folio_block_pool_close(&pool);
}

Test(sched_seq, fork_is_checked)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(8, 4, &h), *q = open_pool(8, 4, &h);
    folio_kv_seq *a = open_seq(pool, 2, 0), *b = open_seq(pool, 2, 0);
    folio_kv_seq *deep = open_seq(pool, 3, 0), *small = open_seq(pool, 2, 3);
    folio_kv_seq *other = open_seq(q, 2, 0);
    folio_kv_step st;
    step(a, 2, 5);
    SAYS(&h, folio_kv_seq_fork(a, deep), FOLIO_E_INVAL, "2 layers", "3");
    SAYS(&h, folio_kv_seq_fork(a, small), FOLIO_E_TOO_LARGE, "5 tokens");
    SAYS(&h, folio_kv_seq_fork(a, other), FOLIO_E_INVAL, "two pools");
    SAYS(&h, folio_kv_seq_fork(a, a), FOLIO_E_INVAL, "one table");
    OK(folio_kv_seq_begin(a, 1, &st));
    SAYS(&h, folio_kv_seq_fork(a, b), FOLIO_E_INVAL, "under way");
    OK(folio_kv_seq_cancel(a));
    OK(folio_kv_seq_begin(b, 1, &st));
    SAYS(&h, folio_kv_seq_fork(a, b), FOLIO_E_INVAL, "under way");
    OK(folio_kv_seq_cancel(b));
    step(b, 2, 1);
    SAYS(&h, folio_kv_seq_fork(a, b), FOLIO_E_INVAL, "not empty");
    cr_assert_eq(refs(pool, 0), 1);
    folio_kv_seq_close(&a);
    folio_kv_seq_close(&b);
    folio_kv_seq_close(&deep);
    folio_kv_seq_close(&small);
    folio_kv_seq_close(&other);
    folio_block_pool_close(&pool);
    folio_block_pool_close(&q);
}

/* ---- life ---------------------------------------------------------------- */

Test(sched_seq, bad_open)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 4, &h);
    folio_kv_seq *s = NULL;
    folio_kv_seq_params p;
    folio_kv_seq_params_default(&p);
    cr_assert_eq(p.size, sizeof p);
    SAYS(&h, folio_kv_seq_open(pool, &p, &s), FOLIO_E_INVAL, "n_layers is 0");
    p.n_layers = -2;
    SAYS(&h, folio_kv_seq_open(pool, &p, &s), FOLIO_E_INVAL, "-2");
    p.n_layers = 1;
    p.max_tok = -1;
    SAYS(&h, folio_kv_seq_open(pool, &p, &s), FOLIO_E_INVAL, "max_tok");
    p.max_tok = 0;
    p.size = 4;
    SAYS(&h, folio_kv_seq_open(pool, &p, &s), FOLIO_E_INVAL, "size is 4");
    p.size = sizeof p;
    FAILS(FOLIO_E_INVAL, folio_kv_seq_open(NULL, &p, &s));
    FAILS(FOLIO_E_INVAL, folio_kv_seq_open(pool, NULL, &s));
    FAILS(FOLIO_E_INVAL, folio_kv_seq_open(pool, &p, NULL));
    cr_assert_null(s);
    folio_kv_seq_close(&s);
    folio_kv_seq_close(NULL);
    folio_block_pool_close(&pool);
}

Test(sched_seq, nth_allocation_fails)
{
    heard h = {0};
    folio_block_pool *pool = open_pool(4, 4, &h);
    folio_kv_seq_params p;
    folio_kv_seq_params_default(&p);
    p.n_layers = 1;
    int n = 1;
    for (;; n++) {
        folio_kv_seq *s = NULL;
        const int before = h.n;
        fail_alloc_arm(n);
        const folio_status st = folio_kv_seq_open(pool, &p, &s);
        if (!fail_alloc_disarm()) {
            cr_assert_eq(st, FOLIO_OK);
            fail_alloc_arm(1); /* a step allocates nothing */
            step(s, 1, 9);
            OK(folio_kv_seq_free(s));
            cr_assert_not(fail_alloc_disarm());
            folio_kv_seq_close(&s);
            break;
        }
        cr_assert_eq(st, FOLIO_E_NOMEM, "allocation %d", n);
        cr_assert_null(s);
        cr_assert_eq(h.n, before + 1);
    }
    cr_assert_gt(n, 4, "the allocations were not seen");
    cr_assert_eq(n_free(pool), 4);
    folio_block_pool_close(&pool);
}

Test(sched_seq, null_handles)
{
    folio_kv_step st;
    int64_t n = 7;
    FAILS(FOLIO_E_INVAL, folio_kv_seq_begin(NULL, 1, &st));
    FAILS(FOLIO_E_INVAL, folio_kv_seq_step(NULL, &st));
    FAILS(FOLIO_E_INVAL, folio_kv_seq_layer(NULL, 0));
    FAILS(FOLIO_E_INVAL, folio_kv_seq_commit(NULL));
    FAILS(FOLIO_E_INVAL, folio_kv_seq_cancel(NULL));
    FAILS(FOLIO_E_INVAL, folio_kv_seq_truncate(NULL, 0));
    FAILS(FOLIO_E_INVAL, folio_kv_seq_fork(NULL, NULL));
    FAILS(FOLIO_E_INVAL, folio_kv_seq_free(NULL));
    cr_assert_eq(folio_kv_seq_n_tok(NULL), 0);
    cr_assert_null(folio_kv_seq_history(NULL, &n));
    cr_assert_null(folio_kv_seq_table(NULL));
    cr_assert_eq(n, 7);
}
