/* sched/block_table.c: the blocks of one sequence, in order. Owns or borrows
 * them; never shares a block without a holder's count in the pool. Must not
 * allocate after open. */
#include "sched/block_table.h"

#include <assert.h>
#include <string.h>

#define NO_COPY ((folio_block_copy){-1, -1})

struct folio_block_table {
    folio_block_pool *pool;
    int64_t max_tok; /* 0: no limit but the pool */
    int64_t n_tok;
    int32_t bs; /* the pool's block_tok */
    int32_t n_blks, cap_blks;
    bool borrowed;
    int32_t *blks;  /* [cap_blks] */
    uint32_t *mine; /* one bit per block of the pool: is it in `blks`? */
};

/* ---- open and close ------------------------------------------------------ */

static void destroy(folio_block_table *t)
{
    if (!t)
        return;
    folio_block_pool_close(&t->pool);
    free(t->blks);
    free(t->mine);
    free(t);
}

folio_status folio_block_table_open(folio_block_pool *pool, int64_t max_tok,
                                    folio_block_table **out)
{
    folio_block_table *t = NULL;
    folio_status st = FOLIO_E_NOMEM;
    if (!pool || !out)
        return FOLIO_E_INVAL;
    const folio_log *log = folio_block_pool_log(pool);
    if (max_tok < 0 || max_tok > INT32_MAX)
        return folio_fail(log, FOLIO_E_INVAL,
                          "block_table: max_tok is %lld, it must be in 0..%d",
                          (long long)max_tok, INT32_MAX);
    const int32_t n = folio_block_pool_n_blocks(pool);
    int64_t cap = max_tok ? folio_block_pool_ceil(pool, max_tok) : n;
    cap = FOLIO_MIN(cap, n);
    t = folio_calloc(1, sizeof *t);
    if (!t)
        goto fail;
    t->blks = folio_calloc((size_t)cap, sizeof *t->blks);
    t->mine = folio_calloc((size_t)(n / 32 + 1), sizeof *t->mine);
    if (!t->blks || !t->mine)
        goto fail;
    t->pool = folio_block_pool_ref(pool);
    t->max_tok = max_tok;
    t->bs = folio_block_pool_block_tok(pool);
    t->cap_blks = (int32_t)cap;
    *out = t;
    return FOLIO_OK;
fail:
    destroy(t);
    return folio_fail(log, st, "block_table: no memory for %lld of %d blocks",
                      (long long)cap, (int)n);
}

void folio_block_table_close(folio_block_table **table)
{
    if (!table || !*table)
        return;
    folio_block_table *t = *table;
    /* A failure was logged; the blocks were not this table's any more. */
    if (!t->borrowed && folio_block_table_free(t) != FOLIO_OK)
        t->n_blks = 0;
    destroy(t);
    *table = NULL;
}

/* ---- inside the room ----------------------------------------------------- */

folio_block_pool *folio_block_table_pool(const folio_block_table *table)
{
    return table->pool;
}

int64_t folio_block_table_limit(const folio_block_table *table)
{
    int64_t limit = (int64_t)table->cap_blks * table->bs;
    if (table->max_tok)
        limit = FOLIO_MIN(limit, table->max_tok);
    return limit;
}

static const folio_log *log_of(const folio_block_table *t)
{
    return folio_block_pool_log(t->pool);
}

static bool has(const folio_block_table *t, int32_t blk)
{
    return (t->mine[blk / 32] >> (blk % 32)) & 1u;
}

static void add_mark(folio_block_table *t, int32_t blk)
{
    t->mine[blk / 32] |= UINT32_C(1) << (blk % 32);
}

static void drop_mark(folio_block_table *t, int32_t blk)
{
    t->mine[blk / 32] &= ~(UINT32_C(1) << (blk % 32));
}

static void clear(folio_block_table *t)
{
    for (int32_t i = 0; i < t->n_blks; i++)
        drop_mark(t, t->blks[i]);
    t->n_blks = 0;
    t->n_tok = 0;
    t->borrowed = false;
}

/* A borrowing table may use the room it has, in blocks nobody else sees. */
static folio_status check_borrowed_room(const folio_block_table *t,
                                        int64_t total)
{
    if (total > (int64_t)t->n_blks * t->bs)
        return folio_fail(log_of(t), FOLIO_E_INVAL,
                          "block_table: append: %lld tokens do not fit the %d "
                          "borrowed blocks of %d; extend the table first",
                          (long long)total, (int)t->n_blks, (int)t->bs);
    for (int64_t i = t->n_tok / t->bs; i * t->bs < total; i++)
        if (folio_block_pool_is_shared(t->pool, t->blks[i]))
            return folio_fail(log_of(t), FOLIO_E_INVAL,
                              "block_table: append: borrowed block %d is "
                              "shared, it must not be written",
                              (int)t->blks[i]);
    return FOLIO_OK;
}

folio_status folio_block_table_grow(folio_block_table *table, int64_t n_tok,
                                    bool can_copy, folio_block_growth *out)
{
    folio_block_table *t = table;
    folio_block_growth g = {t->n_tok, t->n_blks, NO_COPY};
    if (n_tok < 0 || n_tok > INT32_MAX)
        return folio_fail(log_of(t), FOLIO_E_INVAL,
                          "block_table: append: n_tok is %lld, it must be in "
                          "0..%d",
                          (long long)n_tok, INT32_MAX);
    const int64_t total = t->n_tok + n_tok;
    if (n_tok == 0) {
        *out = g;
        return FOLIO_OK;
    }
    if (t->max_tok && total > t->max_tok)
        return folio_fail(log_of(t), FOLIO_E_TOO_LARGE,
                          "block_table: append: %lld tokens and %lld more are "
                          "above the limit of %lld",
                          (long long)t->n_tok, (long long)n_tok,
                          (long long)t->max_tok);
    if (t->borrowed) {
        FOLIO_RETURN_IF(check_borrowed_room(t, total));
        t->n_tok = total;
        *out = g;
        return FOLIO_OK;
    }
    /* An owning table has no room beyond its last token's block, so that block
     * is the only one with old content that these tokens can write to. */
    int32_t *last = t->n_blks ? &t->blks[t->n_blks - 1] : NULL;
    const bool copy = last && t->n_tok % t->bs != 0 &&
                      folio_block_pool_is_shared(t->pool, *last);
    if (copy && !can_copy)
        return folio_fail(log_of(t), FOLIO_E_INVAL,
                          "block_table: append: block %d is shared and must be "
                          "copied, but out_copy is NULL",
                          (int)*last);
    const int64_t need = folio_block_pool_ceil(t->pool, total) - t->n_blks;
    if (need + copy > folio_block_pool_n_free(t->pool))
        return FOLIO_E_FULL;
    if (copy) {
        g.copy.src = *last;
        folio_block_pool_take_n(t->pool, 1, &g.copy.dst);
        drop_mark(t, g.copy.src);
        add_mark(t, g.copy.dst);
        *last = g.copy.dst;
    }
    assert(t->n_blks + need <= t->cap_blks);
    folio_block_pool_take_n(t->pool, (int32_t)need, t->blks + t->n_blks);
    for (int64_t i = 0; i < need; i++)
        add_mark(t, t->blks[t->n_blks + i]);
    t->n_blks += (int32_t)need;
    t->n_tok = total;
    *out = g;
    return FOLIO_OK;
}

folio_status folio_block_table_settle(folio_block_table *table,
                                      const folio_block_growth *growth)
{
    return growth->copy.src < 0
               ? FOLIO_OK
               : folio_block_pool_give(table->pool, growth->copy.src);
}

/* Gives back the blocks beyond the first n, last one first. */
static folio_status shrink(folio_block_table *t, int32_t n)
{
    folio_status st = FOLIO_OK;
    while (t->n_blks > n) {
        const int32_t blk = t->blks[--t->n_blks];
        drop_mark(t, blk);
        const folio_status one = folio_block_pool_give(t->pool, blk);
        st = st == FOLIO_OK ? one : st;
    }
    return st;
}

folio_status folio_block_table_undo(folio_block_table *table,
                                    const folio_block_growth *growth)
{
    folio_block_table *t = table;
    folio_status st = shrink(t, growth->n_blks);
    if (growth->copy.src >= 0) {
        const folio_status one =
            folio_block_pool_give(t->pool, growth->copy.dst);
        st = st == FOLIO_OK ? one : st;
        drop_mark(t, growth->copy.dst);
        add_mark(t, growth->copy.src);
        t->blks[t->n_blks - 1] = growth->copy.src;
    }
    t->n_tok = growth->n_tok;
    return st;
}

void folio_block_table_own(folio_block_table *table, const int32_t *blks,
                           int32_t n)
{
    folio_block_table *t = table;
    assert(t->n_blks == 0 && !t->borrowed && n <= t->cap_blks);
    for (int32_t i = 0; i < n; i++) {
        assert(!has(t, blks[i]));
        add_mark(t, blks[i]);
        t->blks[i] = blks[i];
    }
    t->n_blks = n;
    t->n_tok = (int64_t)n * t->bs;
}

folio_status folio_block_table_replace(folio_block_table *table, int32_t i,
                                       int32_t blk)
{
    folio_block_table *t = table;
    assert(i >= 0 && i < t->n_blks && !t->borrowed && !has(t, blk));
    const int32_t old = t->blks[i];
    drop_mark(t, old);
    add_mark(t, blk);
    t->blks[i] = blk;
    return folio_block_pool_give(t->pool, old);
}

/* ---- grow, shrink, free -------------------------------------------------- */

folio_status folio_block_table_append(folio_block_table *table, int64_t n_tok,
                                      folio_block_copy *out_copy)
{
    folio_block_growth g;
    if (!table)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(folio_block_table_grow(table, n_tok, out_copy != NULL, &g));
    FOLIO_RETURN_IF(folio_block_table_settle(table, &g));
    if (out_copy)
        *out_copy = g.copy;
    return FOLIO_OK;
}

folio_status folio_block_table_truncate(folio_block_table *table, int64_t n_tok)
{
    if (!table)
        return FOLIO_E_INVAL;
    if (n_tok < 0 || n_tok > table->n_tok)
        return folio_fail(log_of(table), FOLIO_E_RANGE,
                          "block_table: truncate: n_tok is %lld, the table has "
                          "%lld tokens",
                          (long long)n_tok, (long long)table->n_tok);
    if (!table->borrowed) {
        const int32_t keep = (int32_t)folio_block_pool_ceil(table->pool, n_tok);
        for (int32_t i = keep; i < table->n_blks; i++)
            FOLIO_RETURN_IF(folio_block_pool_check_held(
                table->pool, "block_table: truncate", table->blks[i]));
        FOLIO_RETURN_IF(shrink(table, keep));
    }
    table->n_tok = n_tok;
    return FOLIO_OK;
}

folio_status folio_block_table_free(folio_block_table *table)
{
    if (!table)
        return FOLIO_E_INVAL;
    if (table->borrowed)
        return folio_fail(log_of(table), FOLIO_E_INVAL,
                          "block_table: free: the %d blocks are borrowed; "
                          "detach them",
                          (int)table->n_blks);
    FOLIO_RETURN_IF(
        folio_block_pool_give_all(table->pool, table->blks, table->n_blks));
    clear(table);
    return FOLIO_OK;
}

/* ---- where a token is ---------------------------------------------------- */

folio_status folio_block_table_position(const folio_block_table *table,
                                        int64_t pos, int32_t *out_blk,
                                        int32_t *out_off)
{
    if (!table)
        return FOLIO_E_INVAL;
    if (pos < 0 || pos >= table->n_tok)
        return folio_fail(log_of(table), FOLIO_E_RANGE,
                          "block_table: position %lld is outside the %lld "
                          "tokens of the table",
                          (long long)pos, (long long)table->n_tok);
    if (out_blk)
        *out_blk = table->blks[pos / table->bs];
    if (out_off)
        *out_off = (int32_t)(pos % table->bs);
    return FOLIO_OK;
}

folio_status folio_block_table_slot(const folio_block_table *table, int64_t pos,
                                    int32_t *out_slot)
{
    int32_t blk = 0, off = 0; /* for compilers that doubt */
    if (!out_slot)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(folio_block_table_position(table, pos, &blk, &off));
    *out_slot = blk * table->bs + off;
    return FOLIO_OK;
}

folio_status folio_block_table_slots(const folio_block_table *table,
                                     int64_t first, int64_t n,
                                     int32_t *out_slots)
{
    if (!table || (!out_slots && n != 0))
        return FOLIO_E_INVAL;
    if (first < 0 || n < 0 || first > table->n_tok || n > table->n_tok - first)
        return folio_fail(log_of(table), FOLIO_E_RANGE,
                          "block_table: %lld slots from position %lld on are "
                          "outside the %lld tokens of the table",
                          (long long)n, (long long)first,
                          (long long)table->n_tok);
    for (int64_t i = 0; i < n; i++) {
        const int64_t pos = first + i;
        out_slots[i] = table->blks[pos / table->bs] * table->bs +
                       (int32_t)(pos % table->bs);
    }
    return FOLIO_OK;
}

/* ---- borrow and share ---------------------------------------------------- */

/* Appends n borrowed ids, or none of them. */
static folio_status add_borrowed(folio_block_table *t, const char *who,
                                 const int32_t *blks, int32_t n)
{
    folio_status st = FOLIO_OK;
    const int32_t before = t->n_blks;
    if (n < 0)
        return folio_fail(log_of(t), FOLIO_E_INVAL,
                          "%s: n is %d, at least 0 is needed", who, (int)n);
    /* More ids than the pool has blocks cannot be distinct: the loop finds the
     * repeated one before it runs out of room. */
    if (n > t->cap_blks - t->n_blks &&
        t->cap_blks < folio_block_pool_n_blocks(t->pool))
        return folio_fail(log_of(t), FOLIO_E_TOO_LARGE,
                          "%s: %d blocks and %d more are above the %d that "
                          "max_tok %lld allows",
                          who, (int)t->n_blks, (int)n, (int)t->cap_blks,
                          (long long)t->max_tok);
    for (int32_t i = 0; i < n; i++) {
        st = folio_block_pool_check_held(t->pool, who, blks[i]);
        if (st != FOLIO_OK)
            break;
        if (has(t, blks[i])) {
            st = folio_fail(log_of(t), FOLIO_E_INVAL,
                            "%s: block %d is already in the table", who,
                            (int)blks[i]);
            break;
        }
        add_mark(t, blks[i]);
        t->blks[t->n_blks++] = blks[i];
    }
    if (st != FOLIO_OK)
        while (t->n_blks > before)
            drop_mark(t, t->blks[--t->n_blks]);
    return st;
}

folio_status folio_block_table_adopt(folio_block_table *table,
                                     const int32_t *blks, int32_t n,
                                     int64_t n_tok)
{
    static const char who[] = "block_table: adopt";
    if (!table || (!blks && n != 0))
        return FOLIO_E_INVAL;
    if (table->n_blks || table->n_tok)
        return folio_fail(log_of(table), FOLIO_E_INVAL,
                          "%s: the table is not empty, it has %d blocks", who,
                          (int)table->n_blks);
    if (n < 0)
        return folio_fail(log_of(table), FOLIO_E_INVAL,
                          "%s: n is %d, at least 0 is needed", who, (int)n);
    if (n_tok < 0 || n_tok > (int64_t)n * table->bs)
        return folio_fail(log_of(table), FOLIO_E_RANGE,
                          "%s: n_tok is %lld, %d blocks of %d hold 0..%lld",
                          who, (long long)n_tok, (int)n, (int)table->bs,
                          (long long)n * table->bs);
    if (table->max_tok && n_tok > table->max_tok)
        return folio_fail(log_of(table), FOLIO_E_TOO_LARGE,
                          "%s: %lld tokens are above the limit of %lld", who,
                          (long long)n_tok, (long long)table->max_tok);
    FOLIO_RETURN_IF(add_borrowed(table, who, blks, n));
    table->n_tok = n_tok;
    table->borrowed = true;
    return FOLIO_OK;
}

folio_status folio_block_table_extend(folio_block_table *table,
                                      const int32_t *blks, int32_t n)
{
    static const char who[] = "block_table: extend";
    if (!table || (!blks && n != 0))
        return FOLIO_E_INVAL;
    if (!table->borrowed)
        return folio_fail(log_of(table), FOLIO_E_INVAL,
                          "%s: the table owns its %d blocks; only an adopted "
                          "one can be extended",
                          who, (int)table->n_blks);
    return add_borrowed(table, who, blks, n);
}

folio_status folio_block_table_detach(folio_block_table *table,
                                      int32_t *out_blks, int32_t cap,
                                      int32_t *out_n)
{
    if (!table)
        return FOLIO_E_INVAL;
    const int32_t n = table->n_blks;
    const bool copy = out_blks || !table->borrowed;
    if (copy && (cap < n || (!out_blks && n)))
        return folio_fail(log_of(table), FOLIO_E_INVAL,
                          "block_table: detach: the table has %d blocks, "
                          "out_blks has room for %d",
                          (int)n, out_blks ? (int)cap : 0);
    if (copy && n)
        memcpy(out_blks, table->blks, (size_t)n * sizeof *out_blks);
    clear(table);
    if (out_n)
        *out_n = n;
    return FOLIO_OK;
}

folio_status folio_block_table_fork(const folio_block_table *src,
                                    folio_block_table *dst)
{
    if (!src || !dst)
        return FOLIO_E_INVAL;
    if (src == dst || src->pool != dst->pool)
        return folio_fail(log_of(dst), FOLIO_E_INVAL,
                          "block_table: fork: source and destination must be "
                          "two tables on one pool, they are %s",
                          src == dst ? "one table" : "on two pools");
    if (dst->n_blks || dst->borrowed)
        return folio_fail(log_of(dst), FOLIO_E_INVAL,
                          "block_table: fork: the destination is not empty, it "
                          "has %d %sblocks",
                          (int)dst->n_blks, dst->borrowed ? "borrowed " : "");
    if (dst->max_tok && src->n_tok > dst->max_tok)
        return folio_fail(log_of(dst), FOLIO_E_TOO_LARGE,
                          "block_table: fork: %lld tokens are above the "
                          "destination's limit of %lld",
                          (long long)src->n_tok, (long long)dst->max_tok);
    const int32_t n = (int32_t)folio_block_pool_ceil(src->pool, src->n_tok);
    FOLIO_RETURN_IF(folio_block_pool_retain_all(dst->pool, src->blks, n));
    for (int32_t i = 0; i < n; i++) {
        dst->blks[i] = src->blks[i];
        add_mark(dst, src->blks[i]);
    }
    dst->n_blks = n;
    dst->n_tok = src->n_tok;
    return FOLIO_OK;
}

/* ---- views --------------------------------------------------------------- */

int64_t folio_block_table_n_tok(const folio_block_table *table)
{
    return table ? table->n_tok : 0;
}

int64_t folio_block_table_capacity(const folio_block_table *table)
{
    return table ? (int64_t)table->n_blks * table->bs : 0;
}

bool folio_block_table_is_borrowed(const folio_block_table *table)
{
    return table && table->borrowed;
}

const int32_t *folio_block_table_blocks(const folio_block_table *table,
                                        int32_t *out_n)
{
    if (!table || !out_n)
        return NULL;
    *out_n = table->n_blks;
    return table->blks;
}
