/* unit/sched_util.h: what the sched tests share: a log that remembers, pools
 * in one line, views as small arrays. */
#ifndef FOLIO_TEST_SCHED_UTIL_H
#define FOLIO_TEST_SCHED_UTIL_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include <folio/kv.h>

#include "base/base.h"

typedef struct heard {
    int n;           /* messages */
    char last[4096]; /* the newest one */
} heard;

static inline void listen(void *user, folio_log_level level,
                          const char *message)
{
    heard *h = user;
    cr_assert_eq(level, FOLIO_LOG_ERROR);
    h->n++;
    snprintf(h->last, sizeof h->last, "%s", message);
}

static inline folio_block_pool *open_pool(int32_t n_blocks, int32_t block_tok,
                                          heard *h)
{
    folio_block_pool *pool = NULL;
    folio_block_pool_params p;
    folio_block_pool_params_default(&p);
    p.n_blocks = n_blocks;
    p.block_tok = block_tok;
    if (h)
        p.log = (folio_log){listen, h, FOLIO_LOG_DEBUG};
    cr_assert_eq(folio_block_pool_open(&p, &pool), FOLIO_OK);
    return pool;
}

static inline folio_block_table *open_table(folio_block_pool *pool)
{
    folio_block_table *t = NULL;
    cr_assert_eq(folio_block_table_open(pool, 0, &t), FOLIO_OK);
    return t;
}

#define OK(expr)        cr_assert_eq((expr), FOLIO_OK, "%s", #expr)
#define FAILS(st, expr) cr_assert_eq((expr), (st), "%s", #expr)

/* One message, and it holds each of the words. */
#define SAYS(h, expr, st, ...)                                                 \
    do {                                                                       \
        const int before_ = (h)->n;                                            \
        cr_assert_eq((expr), (st), "%s", #expr);                               \
        cr_assert_eq((h)->n, before_ + 1, "%s: one message", #expr);           \
        const char *const words_[] = {__VA_ARGS__};                            \
        for (size_t i_ = 0; i_ < FOLIO_COUNT(words_); i_++)                    \
            cr_assert_not_null(strstr((h)->last, words_[i_]),                  \
                               "\"%s\" is not in \"%s\"", words_[i_],          \
                               (h)->last);                                     \
    } while (0)

static inline void eq_ids(const int32_t *got, int32_t n_got,
                          const int32_t *want, int32_t n_want, int line)
{
    cr_assert_eq(n_got, n_want, "line %d: %d ids, expected %d", line,
                 (int)n_got, (int)n_want);
    for (int32_t i = 0; i < n_want; i++)
        cr_assert_eq(got[i], want[i], "line %d: id %d is %d, expected %d", line,
                     (int)i, (int)got[i], (int)want[i]);
}

static inline void eq_stack(const folio_block_pool *pool, const int32_t *want,
                            int32_t n, int line)
{
    int32_t got_n = -1;
    const int32_t *got = folio_block_pool_free_stack(pool, &got_n);
    eq_ids(got, got_n, want, n, line);
}

static inline void eq_blocks(const folio_block_table *t, const int32_t *want,
                             int32_t n, int line)
{
    int32_t got_n = -1;
    const int32_t *got = folio_block_table_blocks(t, &got_n);
    eq_ids(got, got_n, want, n, line);
}

static inline void eq_cached(const folio_block_pool *pool, const int32_t *want,
                             int32_t n, int line)
{
    int32_t got[256], got_n = -1;
    cr_assert_eq(folio_block_pool_list_cached(pool, got, 256, &got_n),
                 FOLIO_OK);
    eq_ids(got, got_n, want, n, line);
}

#define IDS(...)                                                               \
    (const int32_t[]){__VA_ARGS__},                                            \
        (int32_t)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))
#define STACK_IS(pool, ...)    eq_stack(pool, IDS(__VA_ARGS__), __LINE__)
#define STACK_EMPTY(pool)      eq_stack(pool, NULL, 0, __LINE__)
#define CACHED_IS(pool, ...)   eq_cached(pool, IDS(__VA_ARGS__), __LINE__)
#define CACHED_EMPTY(pool)     eq_cached(pool, NULL, 0, __LINE__)
#define BLOCKS_ARE(table, ...) eq_blocks(table, IDS(__VA_ARGS__), __LINE__)
#define NO_BLOCKS(table)       eq_blocks(table, NULL, 0, __LINE__)

static inline int32_t n_free(const folio_block_pool *pool)
{
    return folio_block_pool_count(pool).n_free;
}

static inline int32_t refs(const folio_block_pool *pool, int32_t blk)
{
    int32_t n = -1;
    cr_assert_eq(folio_block_pool_refcount(pool, blk, &n), FOLIO_OK);
    return n;
}

static inline folio_block_state state_of(const folio_block_pool *pool,
                                         int32_t blk)
{
    folio_block_state s = FOLIO_BLOCK_FREE;
    cr_assert_eq(folio_block_pool_state(pool, blk, &s), FOLIO_OK);
    return s;
}

static inline int32_t take(folio_block_pool *pool)
{
    int32_t blk = -1;
    cr_assert_eq(folio_block_pool_take(pool, &blk), FOLIO_OK);
    return blk;
}

#endif
