/* Random walks over pool, tables and sequences against a model written the
 * slow and obvious way: lists are arrays, membership is a search, and each
 * token's value lies in a simulated KV memory. After every operation the whole
 * state is compared: order of free and cached blocks, holders of every block,
 * free + held + cached == N, and every sequence reads back its own tokens. */
#include "unit/sched_util.h"

enum {
    MAX_N = 24,
    MAX_TABLES = 6,
    MAX_HOLDS = 64,
    MAX_TOK = 256,
    STEPS = 6000
};

/* 32-bit linear congruential generator; the high bits are the good ones. */
typedef struct rng {
    uint32_t s;
} rng;

static uint32_t below(rng *r, uint32_t n)
{
    r->s = r->s * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(r->s >> 8) * n) >> 24);
}

typedef struct model {
    int32_t n, bs;
    int32_t stack[MAX_N], n_stack;
    int32_t cached[MAX_N], n_cached; /* oldest first */
    int32_t count[MAX_N];
    bool published[MAX_N];
    int32_t evicted[MAX_N], n_evicted; /* by the operation under way */
} model;

static int32_t model_take(model *m)
{
    int32_t b;
    if (m->n_stack) {
        b = m->stack[--m->n_stack];
    } else {
        b = m->cached[0];
        m->n_cached--;
        memmove(m->cached, m->cached + 1,
                (size_t)m->n_cached * sizeof *m->cached);
        m->published[b] = false;
        m->evicted[m->n_evicted++] = b;
    }
    m->count[b] = 1;
    return b;
}

static void model_give(model *m, int32_t b)
{
    if (--m->count[b])
        return;
    if (m->published[b])
        m->cached[m->n_cached++] = b;
    else
        m->stack[m->n_stack++] = b;
}

static void model_uncache(model *m, int32_t b)
{
    int32_t k = 0;
    while (m->cached[k] != b)
        k++;
    m->n_cached--;
    memmove(m->cached + k, m->cached + k + 1,
            (size_t)(m->n_cached - k) * sizeof *m->cached);
}

static bool model_is_cached(const model *m, int32_t b)
{
    for (int32_t i = 0; i < m->n_cached; i++)
        if (m->cached[i] == b)
            return true;
    return false;
}

typedef struct world {
    uint32_t seed;
    int step;
    rng r;
    heard h;
    model m;
    folio_block_pool *pool;
    int32_t evicted[MAX_N], n_evicted;
    int32_t holds[MAX_HOLDS], n_holds; /* blocks taken one by one */
    folio_block_table *t[MAX_TABLES];
    int32_t ids[MAX_TABLES][MAX_N], n_ids[MAX_TABLES];
    int32_t text[MAX_TABLES][MAX_TOK]; /* expected value of each token */
    int64_t n_tok[MAX_TABLES];
    int32_t kv[MAX_TOK]; /* value in each slot */
    int32_t next_value;
    int n_copies, n_full, n_refused, n_evictions; /* was it worth it? */
} world;

#define SAME(w, a, b)                                                          \
    cr_assert_eq((a), (b), "seed %u step %d: %s is %lld, %s is %lld",          \
                 (unsigned)(w)->seed, (w)->step, #a, (long long)(a), #b,       \
                 (long long)(b))

static void on_evict(void *user, int32_t blk)
{
    world *w = user;
    w->evicted[w->n_evicted++] = blk;
}

static void compare(world *w)
{
    const model *m = &w->m;
    int32_t n, cached[MAX_N];
    int64_t holders = 0, held = 0;
    const int32_t *stack = folio_block_pool_free_stack(w->pool, &n);
    SAME(w, n, m->n_stack);
    for (int32_t i = 0; i < n; i++)
        SAME(w, stack[i], m->stack[i]);
    OK(folio_block_pool_list_cached(w->pool, cached, MAX_N, &n));
    SAME(w, n, m->n_cached);
    for (int32_t i = 0; i < n; i++)
        SAME(w, cached[i], m->cached[i]);
    SAME(w, w->n_evicted, m->n_evicted);
    for (int32_t i = 0; i < m->n_evicted; i++)
        SAME(w, w->evicted[i], m->evicted[i]);
    for (int32_t b = 0; b < m->n; b++) {
        /* Who holds b, counted where the holders are. */
        int32_t mine = 0;
        for (int32_t i = 0; i < w->n_holds; i++)
            mine += w->holds[i] == b;
        for (int k = 0; k < MAX_TABLES; k++)
            for (int32_t i = 0; i < w->n_ids[k]; i++)
                mine += w->ids[k][i] == b;
        SAME(w, refs(w->pool, b), m->count[b]);
        SAME(w, refs(w->pool, b), mine);
        const folio_block_state want = m->count[b] ? FOLIO_BLOCK_HELD
                                       : model_is_cached(m, b)
                                           ? FOLIO_BLOCK_CACHED
                                           : FOLIO_BLOCK_FREE;
        SAME(w, state_of(w->pool, b), want);
        holders += mine;
        held += mine > 0;
    }
    const folio_block_pool_counts c = folio_block_pool_count(w->pool);
    SAME(w, c.n_holders, holders);
    SAME(w, c.n_held, held);
    SAME(w, c.n_cached, m->n_cached);
    SAME(w, c.n_free, m->n_stack + m->n_cached);
    SAME(w, c.n_free + c.n_held, m->n);
    for (int k = 0; k < MAX_TABLES; k++) {
        const int32_t *ids = folio_block_table_blocks(w->t[k], &n);
        SAME(w, n, w->n_ids[k]);
        for (int32_t i = 0; i < n; i++)
            SAME(w, ids[i], w->ids[k][i]);
        SAME(w, folio_block_table_n_tok(w->t[k]), w->n_tok[k]);
        SAME(w, n, (w->n_tok[k] + m->bs - 1) / m->bs);
        for (int64_t p = 0; p < w->n_tok[k]; p++) {
            int32_t slot = -1;
            OK(folio_block_table_slot(w->t[k], p, &slot));
            SAME(w, w->kv[slot], w->text[k][p]);
        }
    }
}

/* ---- operations ---------------------------------------------------------- */

static void op_take(world *w)
{
    model *m = &w->m;
    int32_t ids[MAX_N], n = -1;
    const int64_t n_tok = below(&w->r, (uint32_t)(3 * m->bs + 1));
    const int32_t need = (int32_t)((n_tok + m->bs - 1) / m->bs);
    if (w->n_holds + need > MAX_HOLDS)
        return;
    const folio_status can = folio_block_pool_can_take(w->pool, n_tok);
    const folio_status st =
        folio_block_pool_take_for(w->pool, n_tok, ids, MAX_N, &n);
    SAME(w, st, can);
    if (need > m->n_stack + m->n_cached) {
        SAME(w, st, FOLIO_E_FULL);
        w->n_full++;
        return;
    }
    SAME(w, st, FOLIO_OK);
    SAME(w, n, need);
    for (int32_t i = 0; i < n; i++) {
        SAME(w, ids[i], model_take(m));
        w->holds[w->n_holds++] = ids[i];
    }
}

static void op_retain(world *w)
{
    const int32_t b = (int32_t)below(&w->r, (uint32_t)w->m.n + 2) - 1;
    const bool fine = b >= 0 && b < w->m.n && w->m.count[b] > 0;
    if (w->n_holds == MAX_HOLDS)
        return;
    SAME(w, folio_block_pool_retain(w->pool, b),
         fine ? FOLIO_OK : FOLIO_E_INVAL);
    if (!fine) {
        w->n_refused++;
        return;
    }
    w->m.count[b]++;
    w->holds[w->n_holds++] = b;
}

static void op_give(world *w)
{
    if (below(&w->r, 4) == 0) { /* one that nobody holds, or no block at all */
        const int32_t b = (int32_t)below(&w->r, (uint32_t)w->m.n + 4) - 2;
        if (b >= 0 && b < w->m.n && w->m.count[b])
            return;
        SAME(w, folio_block_pool_give(w->pool, b), FOLIO_E_INVAL);
        w->n_refused++;
    } else if (w->n_holds) {
        const int32_t i = (int32_t)below(&w->r, (uint32_t)w->n_holds);
        const int32_t b = w->holds[i];
        OK(folio_block_pool_give(w->pool, b));
        model_give(&w->m, b);
        w->holds[i] = w->holds[--w->n_holds];
    }
}

/* A list of held blocks, with one id more than its holders in half of the
 * cases: then nothing may move. */
static void op_give_all(world *w)
{
    int32_t list[MAX_HOLDS + 1], n = 0;
    const int32_t keep = (int32_t)below(&w->r, (uint32_t)w->n_holds + 1);
    for (int32_t i = keep; i < w->n_holds; i++)
        list[n++] = w->holds[i];
    if (below(&w->r, 2)) {
        int32_t b = (int32_t)below(&w->r, (uint32_t)w->m.n + 1);
        int32_t times = 0;
        for (int32_t i = 0; i < n; i++)
            times += list[i] == b;
        if (b < w->m.n && times < w->m.count[b])
            b = -1;
        const int32_t at = (int32_t)below(&w->r, (uint32_t)n + 1);
        memmove(list + at + 1, list + at, (size_t)(n - at) * sizeof *list);
        list[at] = b;
        SAME(w, folio_block_pool_give_all(w->pool, list, n + 1), FOLIO_E_INVAL);
        w->n_refused++;
        return;
    }
    OK(folio_block_pool_give_all(w->pool, list, n));
    for (int32_t i = 0; i < n; i++)
        model_give(&w->m, list[i]);
    w->n_holds = keep;
}

static void op_publish(world *w)
{
    model *m = &w->m;
    const int32_t b = (int32_t)below(&w->r, (uint32_t)m->n);
    const bool is_cached = model_is_cached(m, b);
    switch (below(&w->r, 4)) {
    case 0:
    case 1:
        SAME(w, folio_block_pool_publish(w->pool, b),
             m->count[b] ? FOLIO_OK : FOLIO_E_INVAL);
        if (m->count[b])
            m->published[b] = true;
        break;
    case 2:
        SAME(w, folio_block_pool_unpublish(w->pool, b),
             m->published[b] ? FOLIO_OK : FOLIO_E_INVAL);
        m->published[b] = false;
        if (is_cached) {
            model_uncache(m, b);
            m->stack[m->n_stack++] = b;
        }
        break;
    default:
        if (w->n_holds == MAX_HOLDS)
            break;
        SAME(w, folio_block_pool_revive(w->pool, b),
             is_cached ? FOLIO_OK : FOLIO_E_INVAL);
        if (is_cached) {
            model_uncache(m, b);
            m->count[b] = 1;
            w->holds[w->n_holds++] = b;
        }
    }
}

static void op_append(world *w)
{
    model *m = &w->m;
    const uint32_t k = below(&w->r, MAX_TABLES);
    const int64_t n = below(&w->r, (uint32_t)(2 * m->bs + 2));
    const int64_t total = w->n_tok[k] + n;
    folio_block_copy c = {7, 7};
    int32_t *last = w->n_ids[k] ? &w->ids[k][w->n_ids[k] - 1] : NULL;
    const bool copy = n && last && w->n_tok[k] % m->bs &&
                      (m->count[*last] > 1 || m->published[*last]);
    const int32_t need =
        (int32_t)((total + m->bs - 1) / m->bs) - w->n_ids[k] + copy;
    if (need > m->n_stack + m->n_cached) {
        FAILS(FOLIO_E_FULL, folio_block_table_append(w->t[k], n, &c));
        SAME(w, c.src, 7);
        w->n_full++;
        return;
    }
    OK(folio_block_table_append(w->t[k], n, &c));
    if (copy) {
        const int32_t src = *last, dst = model_take(m);
        SAME(w, c.src, src);
        SAME(w, c.dst, dst);
        *last = dst;
        memcpy(w->kv + dst * m->bs, w->kv + src * m->bs,
               (size_t)m->bs * sizeof *w->kv);
        w->n_copies++;
    } else {
        SAME(w, c.src, -1);
        SAME(w, c.dst, -1);
    }
    for (int32_t i = copy; i < need; i++) {
        const int32_t b = model_take(m);
        w->ids[k][w->n_ids[k]++] = b;
        for (int32_t o = 0; o < m->bs; o++)
            w->kv[b * m->bs + o] = -1; /* whatever was there is gone */
    }
    if (copy)
        model_give(m, c.src);
    for (int64_t p = w->n_tok[k]; p < total; p++) {
        int32_t slot = -1;
        OK(folio_block_table_slot(w->t[k], p, &slot));
        w->kv[slot] = w->text[k][p] = w->next_value++;
    }
    w->n_tok[k] = total;
}

static void op_fork(world *w)
{
    const uint32_t a = below(&w->r, MAX_TABLES), b = below(&w->r, MAX_TABLES);
    const bool fine = a != b && w->n_ids[b] == 0;
    SAME(w, folio_block_table_fork(w->t[a], w->t[b]),
         fine ? FOLIO_OK : FOLIO_E_INVAL);
    if (!fine) {
        w->n_refused++;
        return;
    }
    for (int32_t i = 0; i < w->n_ids[a]; i++) {
        w->ids[b][i] = w->ids[a][i];
        w->m.count[w->ids[a][i]]++;
    }
    w->n_ids[b] = w->n_ids[a];
    memcpy(w->text[b], w->text[a], sizeof w->text[a]);
    w->n_tok[b] = w->n_tok[a];
}

static void op_truncate(world *w)
{
    const uint32_t k = below(&w->r, MAX_TABLES);
    const int64_t n = below(&w->r, (uint32_t)w->n_tok[k] + 1);
    OK(folio_block_table_truncate(w->t[k], n));
    const int32_t keep = (int32_t)((n + w->m.bs - 1) / w->m.bs);
    while (w->n_ids[k] > keep)
        model_give(&w->m, w->ids[k][--w->n_ids[k]]);
    w->n_tok[k] = n;
}

static void op_free(world *w)
{
    const uint32_t k = below(&w->r, MAX_TABLES);
    OK(folio_block_table_free(w->t[k]));
    for (int32_t i = 0; i < w->n_ids[k]; i++)
        model_give(&w->m, w->ids[k][i]);
    w->n_ids[k] = 0;
    w->n_tok[k] = 0;
}

static void walk(uint32_t seed, int32_t n_blocks, int32_t block_tok)
{
    static world state; /* large */
    world *w = &state;
    memset(w, 0, sizeof *w);
    cr_assert_leq(n_blocks, MAX_N);
    cr_assert_leq(n_blocks * block_tok, MAX_TOK);
    w->seed = seed;
    w->r.s = seed;
    w->m.n = w->m.n_stack = n_blocks;
    w->m.bs = block_tok;
    for (int32_t i = 0; i < n_blocks; i++)
        w->m.stack[i] = n_blocks - 1 - i;
    folio_block_pool_params p;
    folio_block_pool_params_default(&p);
    p.n_blocks = n_blocks;
    p.block_tok = block_tok;
    p.on_evict = on_evict;
    p.evict_user = w;
    p.log = (folio_log){listen, &w->h, FOLIO_LOG_DEBUG};
    OK(folio_block_pool_open(&p, &w->pool));
    for (int k = 0; k < MAX_TABLES; k++)
        w->t[k] = open_table(w->pool);
    for (w->step = 0; w->step < STEPS; w->step++) {
        static void (*const ops[])(world *) = {
            op_take,    op_give,   op_give,     op_give_all, op_retain,
            op_publish, op_append, op_append,   op_append,   op_append,
            op_append,  op_fork,   op_truncate, op_free,
        };
        w->n_evicted = w->m.n_evicted = 0;
        ops[below(&w->r, FOLIO_COUNT(ops))](w);
        w->n_evictions += w->n_evicted;
        compare(w);
    }
    cr_log_info("seed %u, %d blocks of %d: %d copies, %d full, %d refused, %d "
                "evictions",
                (unsigned)seed, (int)n_blocks, (int)block_tok, w->n_copies,
                w->n_full, w->n_refused, w->n_evictions);
    cr_assert_gt(w->n_full, 20, "seed %u", (unsigned)seed);
    cr_assert_gt(w->n_refused, 100, "seed %u", (unsigned)seed);
    cr_assert_gt(w->n_evictions, 20, "seed %u", (unsigned)seed);
    if (block_tok > 1) /* a block of one token is never half full */
        cr_assert_gt(w->n_copies, 10, "seed %u", (unsigned)seed);
    else
        cr_assert_eq(w->n_copies, 0, "seed %u", (unsigned)seed);
    for (int k = 0; k < MAX_TABLES; k++)
        folio_block_table_close(&w->t[k]);
    OK(folio_block_pool_give_all(w->pool, w->holds, w->n_holds));
    cr_assert_eq(n_free(w->pool), n_blocks, "no block is lost");
    folio_block_pool_close(&w->pool);
}

Test(sched_fuzz, pool_and_tables)
{
    walk(1, 12, 4);
    walk(2, 24, 1);
    walk(3, 9, 7);
    walk(4, 24, 10);
    walk(5, 3, 16);
}

/* Sequences that begin, cancel, fork and free at random; each reads its own
 * tokens through its slots, and cancel leaves the pool as it found it. */
Test(sched_fuzz, sequences)
{
    enum { N = 16, BS = 4, S = 5, L = 2 };
    for (uint32_t seed = 1; seed <= 4; seed++) {
        rng r = {seed};
        folio_block_pool *pool = open_pool(N, BS, NULL);
        folio_kv_seq *s[S] = {NULL};
        static int32_t kv[N * BS], text[S][N * BS];
        int64_t len[S] = {0};
        int32_t value = 0;
        int copies = 0, full = 0, cancels = 0;
        folio_kv_seq_params p;
        folio_kv_seq_params_default(&p);
        p.n_layers = L;
        for (int k = 0; k < S; k++)
            OK(folio_kv_seq_open(pool, &p, &s[k]));
        for (int i = 0; i < 4000; i++) {
            const uint32_t k = below(&r, S), what = below(&r, 10);
            const uint32_t other = below(&r, S);
            if (what == 0) {
                OK(folio_kv_seq_free(s[k]));
                len[k] = 0;
            } else if (what == 1) {
                len[k] = below(&r, (uint32_t)len[k] + 1);
                OK(folio_kv_seq_truncate(s[k], len[k]));
            } else if (what == 2 && k != other && len[other] == 0) {
                OK(folio_kv_seq_fork(s[k], s[other]));
                len[other] = len[k];
                memcpy(text[other], text[k], sizeof text[k]);
            } else {
                const int64_t n_new = 1 + below(&r, 6);
                const folio_block_pool_counts before =
                    folio_block_pool_count(pool);
                int32_t stack[N], n_stack;
                const int32_t *view =
                    folio_block_pool_free_stack(pool, &n_stack);
                memcpy(stack, view, (size_t)n_stack * sizeof *stack);
                folio_kv_step st;
                const folio_status got = folio_kv_seq_begin(s[k], n_new, &st);
                if (got == FOLIO_E_FULL) {
                    full++;
                    cr_assert_eq(n_free(pool), before.n_free);
                    continue;
                }
                cr_assert_eq(got, FOLIO_OK);
                const bool cancel = below(&r, 3) == 0;
                if (st.copy.src >= 0) {
                    copies++;
                    memcpy(kv + st.copy.dst * BS, kv + st.copy.src * BS,
                           BS * sizeof *kv);
                }
                for (int64_t t = 0; t < n_new; t++)
                    kv[st.slots[t]] = value + (int32_t)t;
                OK(folio_kv_seq_layer(s[k], 0));
                if (cancel) {
                    cancels++;
                    OK(folio_kv_seq_cancel(s[k]));
                    eq_stack(pool, stack, n_stack, __LINE__);
                    cr_assert_eq(folio_block_pool_count(pool).n_holders,
                                 before.n_holders);
                } else {
                    OK(folio_kv_seq_layer(s[k], 1));
                    OK(folio_kv_seq_commit(s[k]));
                    for (int64_t t = 0; t < n_new; t++)
                        text[k][len[k] + t] = value + (int32_t)t;
                    len[k] += n_new;
                }
                value += 6;
            }
            for (int j = 0; j < S; j++) {
                int64_t n = -1;
                const int32_t *slots = folio_kv_seq_history(s[j], &n);
                cr_assert_eq(n, len[j], "seed %u step %d", (unsigned)seed, i);
                for (int64_t t = 0; t < n; t++) {
                    int32_t slot = -1;
                    OK(folio_block_table_slot(folio_kv_seq_table(s[j]), t,
                                              &slot));
                    cr_assert_eq(slots[t], slot, "seed %u step %d",
                                 (unsigned)seed, i);
                    cr_assert_eq(kv[slot], text[j][t],
                                 "seed %u step %d: sequence %d position %d",
                                 (unsigned)seed, i, j, (int)t);
                }
            }
        }
        cr_log_info("seed %u: %d copies, %d full, %d cancels", (unsigned)seed,
                    copies, full, cancels);
        cr_assert_gt(copies, 20);
        cr_assert_gt(full, 20);
        cr_assert_gt(cancels, 200);
        for (int k = 0; k < S; k++)
            folio_kv_seq_close(&s[k]);
        cr_assert_eq(n_free(pool), N);
        folio_block_pool_close(&pool);
    }
}
