/* sched/block_pool.c: who holds which block. Owns reference counts, the free
 * stack and the order of cached blocks. Knows no sequence and no bytes; must
 * not allocate after open. */
#include "sched/block_pool.h"

#include <assert.h>
#include <string.h>

#define NO_BLK (-1)

struct folio_block_pool {
    int32_t n_refs; /* handles: the caller's, tables', sequences' */
    int32_t n_blocks, block_tok;
    int32_t n_stack, n_cached;
    int64_t n_holders;
    int32_t *stack; /* [N] free blocks, next one out at n_stack - 1 */
    int32_t *count; /* [N] holders */
    uint8_t *state; /* [N] folio_block_state */
    bool *published;
    int32_t *older, *newer; /* [N] neighbours in the list of cached blocks */
    int32_t oldest, newest; /* its ends, NO_BLK where it is empty */
    uint64_t *since;        /* [N] n_moves when it became cached */
    uint64_t n_moves;
    int32_t *seen; /* [N] zero between calls: how often give_all met an id */
    folio_block_evict_fn on_evict;
    void *evict_user;
    folio_log log;
};

/* ---- open and close ------------------------------------------------------ */

void folio_block_pool_params_default(folio_block_pool_params *params)
{
    if (!params)
        return;
    memset(params, 0, sizeof *params);
    params->size = sizeof *params;
    params->block_tok = 16;
}

static void destroy(folio_block_pool *p)
{
    if (!p)
        return;
    free(p->stack);
    free(p->count);
    free(p->state);
    free(p->published);
    free(p->older);
    free(p->newer);
    free(p->since);
    free(p->seen);
    free(p);
}

folio_status folio_block_pool_open(const folio_block_pool_params *params,
                                   folio_block_pool **out)
{
    folio_block_pool *p = NULL;
    folio_status st = FOLIO_E_NOMEM;
    if (!params || !out)
        return FOLIO_E_INVAL;
    if (params->size != sizeof *params)
        /* The log lies behind `size` and cannot be trusted. */
        return FOLIO_E_INVAL;
    const folio_log *log = &params->log;
    const int32_t n = params->n_blocks, bs = params->block_tok;
    if (n < 1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "block_pool: n_blocks is %d, at least 1 is needed",
                          (int)n);
    if (bs < 1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "block_pool: block_tok is %d, at least 1 is needed",
                          (int)bs);
    if ((int64_t)n * bs > INT32_MAX)
        return folio_fail(log, FOLIO_E_TOO_LARGE,
                          "block_pool: %d blocks of %d tokens are %lld slots, "
                          "at most %d can be numbered",
                          (int)n, (int)bs, (long long)n * bs, INT32_MAX);
    const size_t count = (size_t)n;
    p = folio_calloc(1, sizeof *p);
    if (!p)
        goto fail;
    p->stack = folio_calloc(count, sizeof *p->stack);
    p->count = folio_calloc(count, sizeof *p->count);
    p->state = folio_calloc(count, sizeof *p->state);
    p->published = folio_calloc(count, sizeof *p->published);
    p->older = folio_calloc(count, sizeof *p->older);
    p->newer = folio_calloc(count, sizeof *p->newer);
    p->since = folio_calloc(count, sizeof *p->since);
    p->seen = folio_calloc(count, sizeof *p->seen);
    if (!p->stack || !p->count || !p->state || !p->published || !p->older ||
        !p->newer || !p->since || !p->seen)
        goto fail;
    p->n_refs = 1;
    p->n_blocks = p->n_stack = n;
    p->block_tok = bs;
    p->oldest = p->newest = NO_BLK;
    p->on_evict = params->on_evict;
    p->evict_user = params->evict_user;
    p->log = *log;
    for (int32_t i = 0; i < n; i++)
        p->stack[i] = n - 1 - i; /* so that 0 comes out first */
    *out = p;
    return FOLIO_OK;
fail:
    destroy(p);
    return folio_fail(log, st, "block_pool: no memory for %d blocks", (int)n);
}

folio_block_pool *folio_block_pool_ref(folio_block_pool *pool)
{
    pool->n_refs++;
    return pool;
}

void folio_block_pool_close(folio_block_pool **pool)
{
    if (!pool || !*pool)
        return;
    if (--(*pool)->n_refs == 0)
        destroy(*pool);
    *pool = NULL;
}

/* ---- inside the room ----------------------------------------------------- */

const folio_log *folio_block_pool_log(const folio_block_pool *pool)
{
    return &pool->log;
}

int32_t folio_block_pool_n_blocks(const folio_block_pool *pool)
{
    return pool->n_blocks;
}

int32_t folio_block_pool_block_tok(const folio_block_pool *pool)
{
    return pool->block_tok;
}

int32_t folio_block_pool_n_free(const folio_block_pool *pool)
{
    return pool->n_stack + pool->n_cached;
}

uint64_t folio_block_pool_n_moves(const folio_block_pool *pool)
{
    return pool->n_moves;
}

folio_block_lru folio_block_pool_lru(const folio_block_pool *pool)
{
    return (folio_block_lru){pool->older,  pool->newer,  pool->since,
                             pool->oldest, pool->newest, pool->n_cached};
}

int64_t folio_block_pool_ceil(const folio_block_pool *pool, int64_t n_tok)
{
    return folio_div_up(n_tok, pool->block_tok);
}

bool folio_block_pool_is_shared(const folio_block_pool *pool, int32_t blk)
{
    return pool->count[blk] > 1 || pool->published[blk];
}

static const char *state_name(uint8_t state)
{
    return state == FOLIO_BLOCK_FREE     ? "free"
           : state == FOLIO_BLOCK_CACHED ? "cached"
                                         : "held";
}

/* INVAL unless blk is in the pool and in the state `want`. */
static folio_status check_state(const folio_block_pool *p, const char *who,
                                int32_t blk, folio_block_state want)
{
    if (blk < 0 || blk >= p->n_blocks)
        return folio_fail(&p->log, FOLIO_E_INVAL,
                          "%s: block %d is foreign, the pool has 0..%d", who,
                          (int)blk, (int)p->n_blocks - 1);
    if (p->state[blk] != want)
        return folio_fail(&p->log, FOLIO_E_INVAL,
                          "%s: block %d is %s, it must be %s", who, (int)blk,
                          state_name(p->state[blk]), state_name((uint8_t)want));
    return FOLIO_OK;
}

folio_status folio_block_pool_check_held(const folio_block_pool *pool,
                                         const char *who, int32_t blk)
{
    return check_state(pool, who, blk, FOLIO_BLOCK_HELD);
}

static folio_status check_one_more_holder(const folio_block_pool *p,
                                          int32_t blk)
{
    FOLIO_RETURN_IF(
        check_state(p, "block_pool: retain", blk, FOLIO_BLOCK_HELD));
    if (p->count[blk] == INT32_MAX)
        return folio_fail(
            &p->log, FOLIO_E_INVAL,
            "block_pool: retain: block %d has %d holders, no more "
            "can be counted",
            (int)blk, (int)p->count[blk]);
    return FOLIO_OK;
}

static void push_free(folio_block_pool *p, int32_t blk)
{
    p->state[blk] = FOLIO_BLOCK_FREE;
    p->stack[p->n_stack++] = blk;
}

static void push_cached(folio_block_pool *p, int32_t blk)
{
    p->state[blk] = FOLIO_BLOCK_CACHED;
    p->older[blk] = p->newest;
    p->newer[blk] = NO_BLK;
    if (p->newest == NO_BLK)
        p->oldest = blk;
    else
        p->newer[p->newest] = blk;
    p->newest = blk;
    p->since[blk] = p->n_moves;
    p->n_cached++;
}

static void unlink_cached(folio_block_pool *p, int32_t blk)
{
    const int32_t older = p->older[blk], newer = p->newer[blk];
    if (older == NO_BLK)
        p->oldest = newer;
    else
        p->newer[older] = newer;
    if (newer == NO_BLK)
        p->newest = older;
    else
        p->older[newer] = older;
    p->n_cached--;
}

static void hold_first(folio_block_pool *p, int32_t blk)
{
    p->state[blk] = FOLIO_BLOCK_HELD;
    p->count[blk] = 1;
    p->n_holders++;
}

static void drop_holder(folio_block_pool *p, int32_t blk)
{
    p->n_holders--;
    if (--p->count[blk] > 0)
        return;
    p->n_moves++;
    if (p->published[blk])
        push_cached(p, blk);
    else
        push_free(p, blk);
}

void folio_block_pool_take_n(folio_block_pool *pool, int32_t n, int32_t *out)
{
    assert(n >= 0 && n <= folio_block_pool_n_free(pool));
    for (int32_t i = 0; i < n; i++) {
        int32_t blk;
        if (pool->n_stack > 0) {
            blk = pool->stack[--pool->n_stack];
            hold_first(pool, blk);
        } else {
            blk = pool->oldest;
            unlink_cached(pool, blk);
            pool->published[blk] = false;
            hold_first(pool, blk);
            if (pool->on_evict)
                pool->on_evict(pool->evict_user, blk);
        }
        out[i] = blk;
    }
}

folio_status folio_block_pool_retain_all(folio_block_pool *pool,
                                         const int32_t *blks, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        FOLIO_RETURN_IF(check_one_more_holder(pool, blks[i]));
    for (int32_t i = 0; i < n; i++)
        pool->count[blks[i]]++;
    pool->n_holders += n;
    return FOLIO_OK;
}

/* ---- take ---------------------------------------------------------------- */

static folio_status check_n_tok(const folio_block_pool *p, const char *who,
                                int64_t n_tok)
{
    if (n_tok < 0 || n_tok > INT32_MAX)
        return folio_fail(&p->log, FOLIO_E_INVAL,
                          "%s: n_tok is %lld, it must be in 0..%d", who,
                          (long long)n_tok, INT32_MAX);
    return FOLIO_OK;
}

folio_status folio_block_pool_blocks_for(const folio_block_pool *pool,
                                         int64_t n_tok, int32_t *out_n_blk)
{
    if (!pool || !out_n_blk)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_n_tok(pool, "block_pool: blocks_for", n_tok));
    *out_n_blk = (int32_t)folio_block_pool_ceil(pool, n_tok);
    return FOLIO_OK;
}

folio_status folio_block_pool_can_take(const folio_block_pool *pool,
                                       int64_t n_tok)
{
    if (!pool)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_n_tok(pool, "block_pool: can_take", n_tok));
    return folio_block_pool_ceil(pool, n_tok) <= folio_block_pool_n_free(pool)
               ? FOLIO_OK
               : FOLIO_E_FULL;
}

folio_status folio_block_pool_take(folio_block_pool *pool, int32_t *out_blk)
{
    if (!pool || !out_blk)
        return FOLIO_E_INVAL;
    if (folio_block_pool_n_free(pool) == 0)
        return FOLIO_E_FULL;
    folio_block_pool_take_n(pool, 1, out_blk);
    return FOLIO_OK;
}

folio_status folio_block_pool_take_for(folio_block_pool *pool, int64_t n_tok,
                                       int32_t *out_blks, int32_t cap,
                                       int32_t *out_n)
{
    if (!pool || !out_n || (!out_blks && cap != 0))
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_n_tok(pool, "block_pool: take_for", n_tok));
    const int32_t n = (int32_t)folio_block_pool_ceil(pool, n_tok);
    if (cap < n)
        return folio_fail(&pool->log, FOLIO_E_INVAL,
                          "block_pool: take_for: %lld tokens need %d blocks, "
                          "out_blks has room for %d",
                          (long long)n_tok, (int)n, (int)cap);
    if (n > folio_block_pool_n_free(pool))
        return FOLIO_E_FULL;
    folio_block_pool_take_n(pool, n, out_blks);
    *out_n = n;
    return FOLIO_OK;
}

/* ---- hold and give ------------------------------------------------------- */

folio_status folio_block_pool_retain(folio_block_pool *pool, int32_t blk)
{
    return pool ? folio_block_pool_retain_all(pool, &blk, 1) : FOLIO_E_INVAL;
}

folio_status folio_block_pool_give(folio_block_pool *pool, int32_t blk)
{
    if (!pool)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(
        check_state(pool, "block_pool: give", blk, FOLIO_BLOCK_HELD));
    drop_holder(pool, blk);
    return FOLIO_OK;
}

folio_status folio_block_pool_give_all(folio_block_pool *pool,
                                       const int32_t *blks, int32_t n)
{
    folio_status st = FOLIO_OK;
    int32_t i;
    if (!pool)
        return FOLIO_E_INVAL;
    if (!blks && n != 0)
        return folio_fail(&pool->log, FOLIO_E_INVAL,
                          "block_pool: give_all: blks is NULL, n is %d",
                          (int)n);
    if (n < 0)
        return folio_fail(&pool->log, FOLIO_E_INVAL,
                          "block_pool: give_all: n is %d, at least 0 is needed",
                          (int)n);
    for (i = 0; i < n && st == FOLIO_OK; i++) {
        const int32_t blk = blks[i];
        st = check_state(pool, "block_pool: give_all", blk, FOLIO_BLOCK_HELD);
        if (st != FOLIO_OK)
            break;
        if (pool->seen[blk] == pool->count[blk]) {
            st = folio_fail(&pool->log, FOLIO_E_INVAL,
                            "block_pool: give_all: block %d stands in the list "
                            "%d times, it has %d holders",
                            (int)blk, (int)pool->seen[blk] + 1,
                            (int)pool->count[blk]);
            break;
        }
        pool->seen[blk]++;
    }
    while (i-- > 0)
        pool->seen[blks[i]] = 0;
    if (st != FOLIO_OK)
        return st;
    for (i = 0; i < n; i++)
        drop_holder(pool, blks[i]);
    return FOLIO_OK;
}

/* ---- cached blocks ------------------------------------------------------- */

folio_status folio_block_pool_publish(folio_block_pool *pool, int32_t blk)
{
    if (!pool)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(
        check_state(pool, "block_pool: publish", blk, FOLIO_BLOCK_HELD));
    pool->published[blk] = true;
    return FOLIO_OK;
}

folio_status folio_block_pool_unpublish(folio_block_pool *pool, int32_t blk)
{
    if (!pool)
        return FOLIO_E_INVAL;
    if (blk < 0 || blk >= pool->n_blocks || !pool->published[blk])
        return folio_fail(&pool->log, FOLIO_E_INVAL,
                          "block_pool: unpublish: block %d is not a published "
                          "one of 0..%d",
                          (int)blk, (int)pool->n_blocks - 1);
    pool->published[blk] = false;
    if (pool->state[blk] == FOLIO_BLOCK_CACHED) {
        pool->n_moves++;
        unlink_cached(pool, blk);
        push_free(pool, blk);
    }
    return FOLIO_OK;
}

folio_status folio_block_pool_revive(folio_block_pool *pool, int32_t blk)
{
    if (!pool)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(
        check_state(pool, "block_pool: revive", blk, FOLIO_BLOCK_CACHED));
    pool->n_moves++;
    unlink_cached(pool, blk);
    hold_first(pool, blk);
    return FOLIO_OK;
}

/* ---- views --------------------------------------------------------------- */

folio_block_pool_counts folio_block_pool_count(const folio_block_pool *pool)
{
    folio_block_pool_counts c = {0};
    if (!pool)
        return c;
    c.n_blocks = pool->n_blocks;
    c.block_tok = pool->block_tok;
    c.n_free = folio_block_pool_n_free(pool);
    c.n_cached = pool->n_cached;
    c.n_held = pool->n_blocks - c.n_free;
    c.n_holders = pool->n_holders;
    return c;
}

static folio_status check_view(const folio_block_pool *p, const char *who,
                               int32_t blk)
{
    if (blk < 0 || blk >= p->n_blocks)
        return folio_fail(&p->log, FOLIO_E_RANGE,
                          "block_pool: %s: block %d is outside 0..%d", who,
                          (int)blk, (int)p->n_blocks - 1);
    return FOLIO_OK;
}

folio_status folio_block_pool_state(const folio_block_pool *pool, int32_t blk,
                                    folio_block_state *out_state)
{
    if (!pool || !out_state)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_view(pool, "state", blk));
    *out_state = (folio_block_state)pool->state[blk];
    return FOLIO_OK;
}

folio_status folio_block_pool_refcount(const folio_block_pool *pool,
                                       int32_t blk, int32_t *out_count)
{
    if (!pool || !out_count)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_view(pool, "refcount", blk));
    *out_count = pool->count[blk];
    return FOLIO_OK;
}

const int32_t *folio_block_pool_free_stack(const folio_block_pool *pool,
                                           int32_t *out_n)
{
    if (!pool || !out_n)
        return NULL;
    *out_n = pool->n_stack;
    return pool->stack;
}

folio_status folio_block_pool_list_cached(const folio_block_pool *pool,
                                          int32_t *out_blks, int32_t cap,
                                          int32_t *out_n)
{
    if (!pool || !out_n || (!out_blks && cap != 0))
        return FOLIO_E_INVAL;
    if (cap < pool->n_cached)
        return folio_fail(&pool->log, FOLIO_E_INVAL,
                          "block_pool: list_cached: %d blocks are cached, "
                          "out_blks has room for %d",
                          (int)pool->n_cached, (int)cap);
    int32_t n = 0;
    for (int32_t b = pool->oldest; b != NO_BLK; b = pool->newer[b])
        out_blks[n++] = b;
    *out_n = n;
    return FOLIO_OK;
}
