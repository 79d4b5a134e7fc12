/* sched/prefix_index.c: see prefix_index.h. Chained buckets over arrays that
 * are numbered by block. */
#include "sched/prefix_index.h"

#include <assert.h>
#include <string.h>

#include "sched/request.h"

enum {
    SALT_STRIDE = 1 + FOLIO_SALT_MAX,
    /* Of the bytes that are hashed: one says what the rest is, so that a salt
     * can never stand for another kind of key. */
    TAG_ROOT = 'R',
    TAG_CHAIN = 'C',
    HEAD_BYTES = 2 + FOLIO_SALT_MAX
};

folio_status folio_prefix_index_init(folio_prefix_index *x, int32_t n_blocks,
                                     int32_t block_tok, uint64_t seed,
                                     folio_prefix_hash_fn hash_fn,
                                     const folio_log *log)
{
    const size_t n = (size_t)n_blocks, bs = (size_t)block_tok;
    size_t n_bucket = 1;
    while (n_bucket < n)
        n_bucket *= 2;
    memset(x, 0, sizeof *x);
    x->n_blocks = n_blocks;
    x->block_tok = block_tok;
    x->hash_fn = hash_fn ? hash_fn : folio_hash_bytes;
    x->next_serial = 1;
    x->bucket_mask = (uint32_t)(n_bucket - 1);
    x->bucket = folio_calloc(n_bucket, sizeof *x->bucket);
    x->next = folio_calloc(n, sizeof *x->next);
    x->state = folio_calloc(n, sizeof *x->state);
    x->serial = folio_calloc(n, sizeof *x->serial);
    x->parent = folio_calloc(n, sizeof *x->parent);
    x->hash = folio_calloc(n, sizeof *x->hash);
    x->tok = folio_calloc(n * bs, sizeof *x->tok); /* n * bs: INT32_MAX */
    x->salt = folio_calloc(n, SALT_STRIDE);
    x->scratch = folio_calloc(1, HEAD_BYTES + bs * sizeof(int32_t));
    if (!x->bucket || !x->next || !x->state || !x->serial || !x->parent ||
        !x->hash || !x->tok || !x->salt || !x->scratch) {
        folio_prefix_index_fini(x);
        return folio_fail(log, FOLIO_E_NOMEM,
                          "prefix_index: no memory for %d blocks of %d",
                          (int)n_blocks, (int)block_tok);
    }
    for (size_t i = 0; i < n_bucket; i++)
        x->bucket[i] = -1;
    x->seed = seed;
    if (!seed) {
        /* Not a secret, but nothing a client can foresee. */
        const uint64_t mix[3] = {folio_clock_ns(), (uint64_t)(uintptr_t)x,
                                 (uint64_t)(uintptr_t)x->bucket};
        x->seed = folio_hash_bytes(mix, sizeof mix, 0).lo;
    }
    return FOLIO_OK;
}

void folio_prefix_index_fini(folio_prefix_index *x)
{
    free(x->bucket);
    free(x->next);
    free(x->state);
    free(x->serial);
    free(x->parent);
    free(x->hash);
    free(x->tok);
    free(x->salt);
    free(x->scratch);
    memset(x, 0, sizeof *x);
}

folio_hash128 folio_prefix_index_hash(const folio_prefix_index *x,
                                      const folio_hash128 *prev,
                                      const uint8_t *salt, int32_t salt_bytes,
                                      const int32_t *tok)
{
    uint8_t *at = x->scratch;
    const size_t tok_bytes = (size_t)x->block_tok * sizeof *tok;
    if (prev) {
        *at++ = TAG_CHAIN;
        memcpy(at, prev, sizeof *prev);
        at += sizeof *prev;
    } else {
        *at++ = TAG_ROOT;
        *at++ = (uint8_t)salt_bytes;
        if (salt_bytes)
            memcpy(at, salt, (size_t)salt_bytes);
        at += salt_bytes;
    }
    memcpy(at, tok, tok_bytes);
    at += tok_bytes;
    return x->hash_fn(x->scratch, (size_t)(at - (uint8_t *)x->scratch),
                      x->seed);
}

static bool same_salt(const folio_prefix_index *x, int32_t blk,
                      const folio_prefix_key *key)
{
    const uint8_t *mine = x->salt + (size_t)blk * SALT_STRIDE;
    return mine[0] == key->salt_bytes &&
           (key->salt_bytes == 0 ||
            memcmp(mine + 1, key->salt, (size_t)key->salt_bytes) == 0);
}

static bool is_it(const folio_prefix_index *x, int32_t blk,
                  const folio_prefix_key *key)
{
    const size_t bs = (size_t)x->block_tok;
    return x->hash[blk].lo == key->hash.lo && x->hash[blk].hi == key->hash.hi &&
           x->parent[blk] == key->parent &&
           (key->parent != 0 || same_salt(x, blk, key)) &&
           memcmp(x->tok + (size_t)blk * bs, key->tok, bs * sizeof *x->tok) ==
               0;
}

static int32_t *bucket_of(const folio_prefix_index *x, folio_hash128 hash)
{
    return &x->bucket[(uint32_t)hash.lo & x->bucket_mask];
}

int32_t folio_prefix_index_find(const folio_prefix_index *x,
                                const folio_prefix_key *key)
{
    for (int32_t b = *bucket_of(x, key->hash); b >= 0; b = x->next[b])
        if (is_it(x, b, key))
            return b;
    return -1;
}

uint64_t folio_prefix_index_put(folio_prefix_index *x, int32_t blk,
                                const folio_prefix_key *key,
                                folio_prefix_state state)
{
    assert(blk >= 0 && blk < x->n_blocks && !x->state[blk]);
    assert(state != FOLIO_PREFIX_NONE);
    assert(folio_prefix_index_find(x, key) < 0);
    const size_t bs = (size_t)x->block_tok;
    uint8_t *salt = x->salt + (size_t)blk * SALT_STRIDE;
    int32_t *first = bucket_of(x, key->hash);
    x->next[blk] = *first;
    *first = blk;
    x->state[blk] = (uint8_t)state;
    x->hash[blk] = key->hash;
    x->parent[blk] = key->parent;
    memcpy(x->tok + (size_t)blk * bs, key->tok, bs * sizeof *x->tok);
    salt[0] = key->parent ? 0 : (uint8_t)key->salt_bytes;
    if (salt[0])
        memcpy(salt + 1, key->salt, salt[0]);
    x->n_entries++;
    return x->serial[blk] = x->next_serial++;
}

void folio_prefix_index_drop(folio_prefix_index *x, int32_t blk)
{
    if (!x->state[blk])
        return;
    int32_t *at = bucket_of(x, x->hash[blk]);
    while (*at != blk) {
        assert(*at >= 0);
        at = &x->next[*at];
    }
    *at = x->next[blk];
    x->state[blk] = FOLIO_PREFIX_NONE;
    x->n_entries--;
}
