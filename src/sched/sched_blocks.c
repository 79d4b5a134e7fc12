/* sched/sched_blocks.c: what a request's blocks are: found in the prefix index,
 * shared with a sibling, or taken new; published as they fill; given up. Only
 * file of the room that joins pool, tables and index. Decides nothing about who
 * runs. */
#include <assert.h>
#include <string.h>

#include "sched/sched_state.h"

static folio_prefix_key key_of(const folio_sched *s, folio_request *r,
                               int32_t i, uint64_t parent)
{
    const folio_request_group *g = r->group;
    const int32_t bs = s->p.block_tok;
    while (r->n_hash <= i) {
        const int32_t j = r->n_hash++;
        r->hash[j] = folio_prefix_index_hash(
            &s->index, j ? &r->hash[j - 1] : NULL, g->salt, g->salt_bytes,
            r->tok + (int64_t)j * bs);
    }
    return (folio_prefix_key){r->hash[i], parent, r->tok + (int64_t)i * bs,
                              g->salt, g->salt_bytes};
}

static bool is_cached(const folio_sched *s, int32_t blk)
{
    folio_block_state state = FOLIO_BLOCK_FREE;
    return folio_block_pool_state(s->pool, blk, &state) == FOLIO_OK &&
           state == FOLIO_BLOCK_CACHED;
}

/* Adds a holder to a held or a cached block. */
static folio_status hold(folio_sched *s, int32_t blk)
{
    return is_cached(s, blk) ? folio_block_pool_revive(s->pool, blk)
                             : folio_block_pool_retain(s->pool, blk);
}

/* ---- look up ------------------------------------------------------------- */

static int32_t find(folio_sched *s, const folio_prefix_key *key)
{
    s->st.lookups++;
    return folio_prefix_index_find(&s->index, key);
}

/* The longest prefix in the index. At least the last token is left over: where
 * even its block is there, that one is copied, so that it is not written. */
static void look_up_index(folio_sched *s, folio_request *r,
                          folio_sched_hit *hit)
{
    const folio_prefix_index *x = &s->index;
    const int32_t bs = s->p.block_tok, n = r->n_tok;
    const int32_t n_full = n / bs, n_share = (n - 1) / bs;
    if (r->wait_blk >= 0 && x->state[r->wait_blk] == FOLIO_PREFIX_IN_FLIGHT &&
        x->serial[r->wait_blk] == r->wait_serial) {
        hit->wait = true;
        return;
    }
    r->wait_blk = -1;
    for (int32_t i = 0; i < n_full; i++) {
        const folio_prefix_key key = key_of(s, r, i, hit->chain);
        const int32_t blk = find(s, &key);
        if (blk < 0)
            break;
        if (x->state[blk] == FOLIO_PREFIX_IN_FLIGHT) {
            /* Of several the last one is computed last. */
            r->wait_blk = blk;
            r->wait_serial = x->serial[blk];
            hit->wait = true;
        }
        if (i < n_share) {
            s->hits[hit->n_blks++] = blk;
            hit->n_cached += is_cached(s, blk);
            hit->chain = x->serial[blk];
        } else if (n - 1 > n_share * bs) {
            hit->copy_src = blk;
            hit->copy_cached = is_cached(s, blk);
        }
    }
    hit->n_indexed = hit->n_blks;
    hit->n_tok = hit->copy_src < 0 ? hit->n_blks * bs : n - 1;
}

/* A sibling that has computed, or is about to have computed, more of the
 * common prompt than hit says. True: nobody else need be asked. */
static bool look_up_siblings(const folio_sched *s, const folio_request *r,
                             folio_sched_hit *hit)
{
    const folio_request_group *g = r->group;
    const int32_t bs = s->p.block_tok;
    const int32_t want = FOLIO_MIN(r->n_prompt, r->n_tok - 1);
    const folio_request *best = NULL;
    for (int32_t i = 0; i < g->n; i++) {
        const folio_request *m = g->member[i];
        if (m && m != r && m->state == FOLIO_REQUEST_RUNNING &&
            (!best || m->n_sent > best->n_sent ||
             (m->n_sent == best->n_sent && m->admitted_by < best->admitted_by)))
            best = m;
    }
    if (!best || want == 0)
        return false;
    /* One that this plan admitted may be the target of a copy itself. */
    if (best->n_sent < want || best->admitted_by == s->n_plans) {
        hit->wait = true;
        return true;
    }
    int32_t n_blks;
    const int32_t *blks =
        folio_block_table_blocks(s->table[best->slot], &n_blks);
    hit->sibling = best;
    hit->n_tok = want;
    hit->n_blks = want / bs;
    assert(n_blks >= hit->n_blks + (want % bs != 0));
    if (want % bs)
        hit->copy_src = blks[hit->n_blks];
    hit->n_indexed = FOLIO_MIN(best->n_indexed, hit->n_blks);
    if (hit->n_indexed)
        hit->chain = s->index.serial[blks[hit->n_indexed - 1]];
    return r->n_tok == r->n_prompt;
}

static const folio_sched_hit *better_of(const folio_sched_hit *own,
                                        const folio_sched_hit *shared)
{
    return own->wait || own->n_tok >= shared->n_tok ? own : shared;
}

/* ---- room ---------------------------------------------------------------- */

/* May give up the copy of a hit where only that does not fit. */
static bool has_room(const folio_sched *s, const folio_request *r,
                     folio_sched_hit *hit)
{
    const int32_t n = s->p.n_blocks;
    const int32_t total = (int32_t)folio_block_pool_ceil(s->pool, r->n_tok);
    for (;;) {
        /* By how much the blocks that can be taken become fewer. */
        const int32_t need =
            total - hit->n_blks + hit->n_cached + hit->copy_cached;
        const int32_t reserve = need > n - s->watermark ? 0 : s->watermark;
        if (need <= folio_block_pool_n_free(s->pool) - reserve)
            return true;
        if (!hit->copy_cached)
            return false;
        hit->copy_cached = false;
        hit->copy_src = -1;
        hit->n_tok = hit->n_blks * s->p.block_tok;
    }
}

void folio_sched_forget_blocked(folio_sched *s)
{
    s->blocked.req = NULL;
}

/* What r needs less its blocks with a holder decides, and evictions take none
 * of these. Nobody else holds a block of r from now on, unless he is admitted,
 * takes a block over or computes one (publish_one looks at it): all three
 * forget r. */
static void note_blocked(folio_sched *s, const folio_request *r,
                         const folio_sched_hit *hit, int32_t most_held)
{
    s->blocked = (folio_sched_blocked){r, r->n_tok, *hit, most_held,
                                       folio_block_pool_n_moves(s->pool)};
}

/* Whether r was noted and still lacks room, told without walking its blocks. As
 * long as no block moved in the pool, they have just the holders they had. */
static bool is_blocked(const folio_sched *s, const folio_request *r)
{
    const folio_sched_blocked *m = &s->blocked;
    if (m->req != r || m->n_tok != r->n_tok)
        return false;
    const int32_t total = (int32_t)folio_block_pool_ceil(s->pool, r->n_tok);
    if (folio_block_pool_n_free(s->pool) < total - m->most_held)
        return true;
    folio_sched_hit hit = m->hit;
    return m->n_moves == folio_block_pool_n_moves(s->pool) &&
           !has_room(s, r, &hit);
}

folio_sched_room folio_sched_find_room(folio_sched *s, folio_request *r,
                                       folio_sched_hit *out)
{
    folio_sched_hit own = {.copy_src = -1}, shared = {.copy_src = -1};
    if (is_blocked(s, r))
        return FOLIO_ROOM_LACKS;
    const bool is_sure =
        s->p.fork && r->group->n > 1 && look_up_siblings(s, r, &shared);
    if (!is_sure && s->p.prefix_cache)
        look_up_index(s, r, &own);
    *out = is_sure ? shared : *better_of(&own, &shared);
    if (out->wait)
        return FOLIO_ROOM_WAITS;
    const folio_sched_hit found = *out;
    if (has_room(s, r, out))
        return FOLIO_ROOM_FITS;
    if (!is_sure) /* else there was nothing to walk */
        note_blocked(s, r, &found,
                     FOLIO_MAX(own.n_blks - own.n_cached, shared.n_blks));
    return FOLIO_ROOM_LACKS;
}

/* ---- take ---------------------------------------------------------------- */

folio_status folio_sched_take_blocks(folio_sched *s, folio_request *r,
                                     const folio_sched_hit *hit,
                                     folio_step *step)
{
    folio_block_table *t = s->table[r->slot];
    folio_block_growth g;
    int32_t n_blks;
    const int32_t *shared = s->hits;
    folio_sched_forget_blocked(s);
    if (hit->sibling)
        shared =
            folio_block_table_blocks(s->table[hit->sibling->slot], &n_blks);
    for (int32_t i = 0; i < hit->n_blks; i++)
        FOLIO_RETURN_IF(hold(s, shared[i]));
    /* A source without a holder must not be handed out before this plan ends;
     * later steps run after the copy. */
    if (hit->copy_cached) {
        FOLIO_RETURN_IF(hold(s, hit->copy_src));
        s->held_src[s->n_held_src++] = hit->copy_src;
    }
    folio_block_table_own(t, shared, hit->n_blks);
    FOLIO_RETURN_IF(folio_block_table_grow(
        t, r->n_tok - folio_block_table_n_tok(t), false, &g));
    if (hit->copy_src >= 0) {
        const int32_t *blks = folio_block_table_blocks(t, &n_blks);
        step->copies[step->n_copies++] =
            (folio_block_copy){hit->copy_src, blks[hit->n_blks]};
    }
    r->n_sent = r->n_done = hit->n_tok;
    r->n_indexed = r->n_marked = hit->n_indexed;
    r->chain = hit->chain;
    r->chain_lost = !s->p.prefix_cache;
    r->wait_blk = -1;
    if (s->p.prefix_cache && hit->n_indexed == hit->n_blks)
        folio_sched_mark_in_flight(s, r);
    folio_sched_sync_row(s, r->slot, 0);
    s->row_tok[r->slot] = r->n_done;
    return FOLIO_OK;
}

void folio_sched_mark_in_flight(folio_sched *s, folio_request *r)
{
    folio_prefix_index *x = &s->index;
    const int32_t n_full = r->n_tok / s->p.block_tok;
    uint64_t chain = r->chain;
    int32_t n_blks;
    const int32_t *blks = folio_block_table_blocks(s->table[r->slot], &n_blks);
    for (int32_t i = r->n_indexed; i < n_full; i++) {
        const folio_prefix_key key = key_of(s, r, i, chain);
        if (folio_prefix_index_find(x, &key) >= 0)
            return; /* the source of a copy */
        chain =
            folio_prefix_index_put(x, blks[i], &key, FOLIO_PREFIX_IN_FLIGHT);
        r->n_marked = i + 1;
    }
}

/* ---- publish ------------------------------------------------------------- */

/* Block i of r is full. Where the index has its content already, r takes over
 * that block, so that whoever holds a node of the tree holds its ancestors. */
static folio_status publish_one(folio_sched *s, folio_request *r, int32_t i)
{
    folio_prefix_index *x = &s->index;
    folio_block_table *t = s->table[r->slot];
    int32_t n_blks;
    int32_t blk = folio_block_table_blocks(t, &n_blks)[i];
    if (x->state[blk] == FOLIO_PREFIX_NONE) {
        const folio_prefix_key key = key_of(s, r, i, r->chain);
        const int32_t same = folio_prefix_index_find(x, &key);
        if (same >= 0 && x->state[same] == FOLIO_PREFIX_IN_FLIGHT) {
            /* Somebody else is computing what r has computed as output. */
            r->chain_lost = true;
            return FOLIO_OK;
        }
        const folio_request *head = s->blocked.req;
        if (same >= 0 ||
            (head && i < head->n_hash && head->hash[i].lo == key.hash.lo))
            folio_sched_forget_blocked(s);
        if (same >= 0) {
            FOLIO_RETURN_IF(hold(s, same));
            FOLIO_RETURN_IF(folio_block_table_replace(t, i, same));
            folio_sched_sync_row(s, r->slot, i);
            blk = same;
        } else {
            folio_prefix_index_put(x, blk, &key, FOLIO_PREFIX_READY);
        }
    }
    assert(x->parent[blk] == r->chain);
    x->state[blk] = FOLIO_PREFIX_READY;
    FOLIO_RETURN_IF(folio_block_pool_publish(s->pool, blk));
    r->chain = x->serial[blk];
    r->n_indexed = i + 1;
    r->n_marked = FOLIO_MAX(r->n_marked, r->n_indexed);
    return FOLIO_OK;
}

folio_status folio_sched_publish(folio_sched *s, folio_request *r)
{
    const int32_t n_full = r->n_done / s->p.block_tok;
    while (r->n_indexed < n_full && !r->chain_lost)
        FOLIO_RETURN_IF(publish_one(s, r, r->n_indexed));
    return FOLIO_OK;
}

/* ---- give ---------------------------------------------------------------- */

folio_status folio_sched_give_blocks(folio_sched *s, folio_request *r,
                                     bool newest_first)
{
    folio_block_table *t = s->table[r->slot];
    int32_t n_blks;
    const int32_t *blks = folio_block_table_blocks(t, &n_blks);
    for (int32_t i = r->n_indexed; i < r->n_marked; i++)
        if (s->index.state[blks[i]] == FOLIO_PREFIX_IN_FLIGHT)
            folio_prefix_index_drop(&s->index, blks[i]);
    s->row_blks[r->slot] = 0;
    s->row_tok[r->slot] = 0;
    r->n_sent = r->n_done = r->n_ahead = 0;
    r->n_indexed = r->n_marked = 0;
    r->chain = 0;
    r->chain_lost = false;
    r->prefilling = false;
    /* With a prefix cache children leave it before their parents. */
    return newest_first || s->p.prefix_cache ? folio_block_table_truncate(t, 0)
                                             : folio_block_table_free(t);
}

void folio_sched_sync_row(folio_sched *s, int32_t place, int32_t from)
{
    int32_t n;
    const int32_t *blks = folio_block_table_blocks(s->table[place], &n);
    int32_t *row = s->tables + (int64_t)place * s->max_blks;
    if (n > from)
        memcpy(row + from, blks + from, (size_t)(n - from) * sizeof *row);
    s->row_blks[place] = n;
}
