/* sched/audit.c: see audit.h. Changes nothing but its own notes. */
#include "sched/audit.h"

#include <stdio.h>
#include <string.h>

#include "sched/sched_state.h"

typedef struct audit {
    const folio_sched *s;
    folio_audit_report *out;
} audit;

static void say(audit *a, folio_audit_kind kind, const char *fmt, ...)
    FOLIO_PRINTF(3, 4);

static void say(audit *a, folio_audit_kind kind, const char *fmt, ...)
{
    va_list ap;
    a->out->kinds |= UINT64_C(1) << kind;
    if (a->out->n++ > 0)
        return;
    va_start(ap, fmt);
    vsnprintf(a->out->text, sizeof a->out->text, fmt, ap);
    va_end(ap);
}

#define ID(r) ((unsigned long long)(r)->id), (int)(r)->completion

/* ---- pool ---------------------------------------------------------------- */

enum { ON_STACK = 1, IN_FLIGHT_OWNED = 2, ON_LIST = 4 };

static bool in_pool(const folio_sched *s, int32_t blk)
{
    return blk >= 0 && blk < s->p.n_blocks;
}

static folio_block_state state_of(const folio_sched *s, int32_t blk)
{
    folio_block_state st = FOLIO_BLOCK_FREE;
    return folio_block_pool_state(s->pool, blk, &st) == FOLIO_OK
               ? st
               : FOLIO_BLOCK_FREE;
}

static void check_stack(audit *a)
{
    const folio_sched *s = a->s;
    int32_t n;
    const int32_t *stack = folio_block_pool_free_stack(s->pool, &n);
    for (int32_t i = 0; i < n; i++) {
        const int32_t blk = stack[i];
        if (!in_pool(s, blk)) {
            say(a, FOLIO_AUDIT_FOREIGN_BLOCK,
                "free stack: entry %d is block %d, the pool has 0..%d", (int)i,
                (int)blk, (int)s->p.n_blocks - 1);
            continue;
        }
        if (s->where[blk] & ON_STACK)
            say(a, FOLIO_AUDIT_FREE_TWICE,
                "free stack: block %d is on it twice, once more at entry %d",
                (int)blk, (int)i);
        if (state_of(s, blk) != FOLIO_BLOCK_FREE)
            say(a, FOLIO_AUDIT_FREE_AND_HELD,
                "free stack: entry %d is block %d, which is %s", (int)i,
                (int)blk,
                state_of(s, blk) == FOLIO_BLOCK_HELD ? "held" : "cached");
        s->where[blk] |= ON_STACK;
    }
}

/* One more holder in s->seen for each block of the table. */
static void count_table(audit *a, const folio_request *r)
{
    const folio_sched *s = a->s;
    int32_t n;
    const int32_t *blks = folio_block_table_blocks(s->table[r->slot], &n);
    for (int32_t i = 0; i < n; i++) {
        if (!in_pool(s, blks[i])) {
            say(a, FOLIO_AUDIT_FOREIGN_BLOCK,
                "request %llu.%d: its block %d is %d, the pool has 0..%d",
                ID(r), (int)i, (int)blks[i], (int)s->p.n_blocks - 1);
            continue;
        }
        if (state_of(s, blks[i]) != FOLIO_BLOCK_HELD)
            say(a, FOLIO_AUDIT_NOT_HELD,
                "request %llu.%d: its block %d is %d, which is %s", ID(r),
                (int)i, (int)blks[i],
                state_of(s, blks[i]) == FOLIO_BLOCK_FREE ? "free" : "cached");
        s->seen[blks[i]]++;
    }
}

static void check_pool(audit *a)
{
    const folio_sched *s = a->s;
    for (int32_t b = 0; b < s->p.n_blocks; b++) {
        int32_t count = 0;
        if (folio_block_pool_refcount(s->pool, b, &count) != FOLIO_OK ||
            count != s->seen[b])
            say(a, FOLIO_AUDIT_HOLDERS,
                "block %d: the pool counts %d holders, %d tables have it",
                (int)b, (int)count, (int)s->seen[b]);
        if (state_of(s, b) == FOLIO_BLOCK_FREE && !(s->where[b] & ON_STACK))
            say(a, FOLIO_AUDIT_MISSING,
                "block %d: it is free, but not on the free stack", (int)b);
    }
}

/* One block of the list of cached ones, after `older`. False: it leads no
 * further. */
static bool check_listed(audit *a, const folio_block_lru *lru, int32_t blk,
                         int32_t older)
{
    const folio_sched *s = a->s;
    if (!in_pool(s, blk)) {
        say(a, FOLIO_AUDIT_FOREIGN_BLOCK,
            "cached blocks: %d comes after %d, the pool has 0..%d", (int)blk,
            (int)older, (int)s->p.n_blocks - 1);
        return false;
    }
    if (s->where[blk] & ON_LIST) {
        say(a, FOLIO_AUDIT_CACHED_LINKS,
            "cached blocks: %d comes after %d, and earlier once", (int)blk,
            (int)older);
        return false;
    }
    s->where[blk] |= ON_LIST;
    if (lru->older[blk] != older)
        say(a, FOLIO_AUDIT_CACHED_LINKS,
            "cached blocks: %d comes after %d, backwards after %d", (int)blk,
            (int)older, (int)lru->older[blk]);
    if (state_of(s, blk) != FOLIO_BLOCK_CACHED)
        say(a, FOLIO_AUDIT_CACHED_MEMBERS, "cached blocks: %d is %s", (int)blk,
            state_of(s, blk) == FOLIO_BLOCK_HELD ? "held" : "free");
    if (older >= 0 && lru->since[older] >= lru->since[blk])
        say(a, FOLIO_AUDIT_CACHED_ORDER,
            "cached blocks: %d, used until %llu, comes after %d, until %llu",
            (int)blk, (unsigned long long)lru->since[blk], (int)older,
            (unsigned long long)lru->since[older]);
    return true;
}

/* The list of cached blocks, from the one that is evicted next. */
static void check_cached(audit *a)
{
    const folio_sched *s = a->s;
    const folio_block_lru lru = folio_block_pool_lru(s->pool);
    int32_t n = 0, last = -1;
    for (int32_t blk = lru.oldest; blk != -1; blk = lru.newer[blk]) {
        if (!check_listed(a, &lru, blk, last))
            return;
        last = blk;
        n++;
    }
    if (last != lru.newest)
        say(a, FOLIO_AUDIT_CACHED_LINKS,
            "cached blocks: the last one is %d, backwards the first one %d",
            (int)last, (int)lru.newest);
    if (n != lru.n)
        say(a, FOLIO_AUDIT_CACHED_MEMBERS,
            "cached blocks: %d are listed, the pool counts %d", (int)n,
            (int)lru.n);
    for (int32_t b = 0; b < s->p.n_blocks; b++)
        if (state_of(s, b) == FOLIO_BLOCK_CACHED && !(s->where[b] & ON_LIST))
            say(a, FOLIO_AUDIT_CACHED_MEMBERS,
                "cached blocks: %d is cached, but not listed", (int)b);
}

/* ---- places -------------------------------------------------------------- */

/* Whether r's place can be used to look things up. */
static bool check_place(audit *a, const folio_request *r)
{
    const folio_sched *s = a->s;
    if (r->slot < 0 || r->slot >= s->p.max_seqs) {
        say(a, FOLIO_AUDIT_PLACE_RANGE,
            "request %llu.%d: it runs at place %d, there are 0..%d", ID(r),
            (int)r->slot, (int)s->p.max_seqs - 1);
        return false;
    }
    if (s->at[r->slot] == r)
        return true;
    for (int32_t i = 0; i < s->n_running; i++)
        if (s->order[i] != r && s->order[i]->slot == r->slot) {
            say(a, FOLIO_AUDIT_PLACE_SHARED,
                "place %d: requests %llu.%d and %llu.%d both run there",
                (int)r->slot, ID(r), ID(s->order[i]));
            return false;
        }
    say(a, FOLIO_AUDIT_PLACE_OWNER,
        "place %d: request %llu.%d runs there, the place has %s", (int)r->slot,
        ID(r), s->at[r->slot] ? "another" : "nobody");
    return false;
}

static void check_places(audit *a)
{
    const folio_sched *s = a->s;
    for (int32_t i = 0; i < s->p.max_seqs; i++) {
        const folio_request *r = s->at[i];
        if (!r) {
            int32_t n;
            folio_block_table_blocks(s->table[i], &n);
            if (s->row_blks[i] || s->row_tok[i] || n)
                say(a, FOLIO_AUDIT_ROW_LEFT,
                    "place %d: nobody is there, its row has %d tokens in %d "
                    "blocks, its table %d blocks",
                    (int)i, (int)s->row_tok[i], (int)s->row_blks[i], (int)n);
            continue;
        }
        bool runs = false;
        for (int32_t k = 0; k < s->n_running && !runs; k++)
            runs = s->order[k] == r;
        if (!runs)
            say(a, FOLIO_AUDIT_PLACE_LEAKED,
                "place %d: request %llu.%d has it, but is not among the %d "
                "that run",
                (int)i, ID(r), (int)s->n_running);
    }
}

/* ---- requests ------------------------------------------------------------ */

static bool is_indexed(const folio_sched *s, const folio_request *r)
{
    return folio_sched_find(s, r->id, r->completion) == r;
}

static void check_any(audit *a, const folio_request *r)
{
    if (!is_indexed(a->s, r))
        say(a, FOLIO_AUDIT_INDEX,
            "request %llu.%d: it is %s, but its id leads elsewhere", ID(r),
            folio_request_state_name(r->state));
    if (r->n_tok < r->n_prompt || r->n_tok > r->n_prompt + r->max_new)
        say(a, FOLIO_AUDIT_TOKENS,
            "request %llu.%d: it has %d tokens, prompt %d and budget %d", ID(r),
            (int)r->n_tok, (int)r->n_prompt, (int)r->max_new);
}

static void check_queue(audit *a, int32_t class, int32_t *n)
{
    const folio_sched *s = a->s;
    uint64_t youngest_runs = UINT64_MAX;
    for (int32_t i = 0; i < s->n_running; i++)
        if (s->order[i]->priority == class &&
            s->order[i]->state == FOLIO_REQUEST_RUNNING)
            youngest_runs = s->order[i]->arrival;
    for (const folio_request *r = s->waiting[class].oldest; r; r = r->newer) {
        ++*n;
        check_any(a, r);
        if (r->state == FOLIO_REQUEST_RUNNING || !r->queued ||
            r->priority != class)
            say(a, FOLIO_AUDIT_STATE,
                "request %llu.%d: class %d and %s, in the queue of class %d",
                ID(r), (int)r->priority, folio_request_state_name(r->state),
                (int)class);
        if (r->slot != FOLIO_NO_SLOT || r->n_sent || r->n_done || r->n_ahead ||
            r->n_indexed || r->n_marked)
            say(a, FOLIO_AUDIT_WAITER_HOLDS,
                "request %llu.%d: it waits, with place %d and %d computed "
                "tokens",
                ID(r), (int)r->slot, (int)r->n_done);
        if (r->newer && r->newer->arrival <= r->arrival)
            say(a, FOLIO_AUDIT_QUEUE_ORDER,
                "queue of class %d: arrival %llu stands before %llu",
                (int)class, (unsigned long long)r->arrival,
                (unsigned long long)r->newer->arrival);
        if (r->state == FOLIO_REQUEST_WAITING && youngest_runs != UINT64_MAX &&
            r->arrival < youngest_runs)
            say(a, FOLIO_AUDIT_OVERTAKEN,
                "request %llu.%d: arrival %llu waits while %llu of its class "
                "runs",
                ID(r), (unsigned long long)r->arrival,
                (unsigned long long)youngest_runs);
    }
}

static void check_blocks(audit *a, const folio_request *r)
{
    const folio_sched *s = a->s;
    const folio_block_table *t = s->table[r->slot];
    const bool done = r->state == FOLIO_REQUEST_FINISHED;
    const int32_t want = r->prefilling ? r->n_tok : r->n_tok - 1;
    int32_t n;
    folio_block_table_blocks(t, &n);
    const int64_t n_tok = folio_block_table_n_tok(t);
    if (n != folio_block_pool_ceil(s->pool, done ? n_tok : want) ||
        (!done && n_tok != want))
        say(a, FOLIO_AUDIT_BLOCKS,
            "request %llu.%d: it has %d blocks for %lld tokens, %d tokens need "
            "%lld",
            ID(r), (int)n, (long long)n_tok, (int)want,
            (long long)folio_block_pool_ceil(s->pool, want));
    const bool open = r->n_sent != r->n_done || r->n_ahead || r->n_flight;
    if (!done && (open || (r->prefilling ? r->n_done >= r->n_tok
                                         : r->n_done != r->n_tok - 1)))
        say(a, FOLIO_AUDIT_PROGRESS,
            "request %llu.%d: %d tokens are computed (%d sent, %d awaited) of "
            "%d, %s",
            ID(r), (int)r->n_done, (int)r->n_sent, (int)r->n_ahead,
            (int)r->n_tok, r->prefilling ? "in its prompt" : "decoding");
}

static void check_row(audit *a, const folio_request *r)
{
    const folio_sched *s = a->s;
    const int32_t place = r->slot;
    const int32_t *row = s->tables + (int64_t)place * s->max_blks;
    int32_t n;
    const int32_t *blks = folio_block_table_blocks(s->table[place], &n);
    if (s->row_blks[place] != n || memcmp(row, blks, (size_t)n * sizeof *row))
        say(a, FOLIO_AUDIT_ROW_IDS,
            "place %d: its row of %d blocks is not the %d of request %llu.%d",
            (int)place, (int)s->row_blks[place], (int)n, ID(r));
    if (s->row_tok[place] != r->n_done)
        say(a, FOLIO_AUDIT_ROW_TOKENS,
            "place %d: its row has %d tokens, request %llu.%d computed %d",
            (int)place, (int)s->row_tok[place], ID(r), (int)r->n_done);
    if (s->row_tok[place] > (int64_t)s->row_blks[place] * s->p.block_tok)
        say(a, FOLIO_AUDIT_ROW_CAPACITY,
            "place %d: its row has %d tokens in %d blocks of %d", (int)place,
            (int)s->row_tok[place], (int)s->row_blks[place],
            (int)s->p.block_tok);
}

/* ---- prefix index -------------------------------------------------------- */

static uint32_t serial_slot(const folio_sched *s, uint64_t serial)
{
    return (uint32_t)((serial * UINT64_C(0x9E3779B97F4A7C15)) >> 32) &
           s->serial_mask;
}

static void map_serials(const folio_sched *s)
{
    memset(s->by_serial, 0xff, ((size_t)s->serial_mask + 1) * sizeof(int32_t));
    for (int32_t b = 0; b < s->p.n_blocks; b++) {
        if (!s->index.state[b])
            continue;
        uint32_t i = serial_slot(s, s->index.serial[b]);
        while (s->by_serial[i] >= 0)
            i = (i + 1) & s->serial_mask;
        s->by_serial[i] = b;
    }
}

/* The block whose entry has this serial, or -1. */
static int32_t with_serial(const folio_sched *s, uint64_t serial)
{
    uint32_t i = serial_slot(s, serial);
    while (s->by_serial[i] >= 0 && s->index.serial[s->by_serial[i]] != serial)
        i = (i + 1) & s->serial_mask;
    return s->by_serial[i];
}

/* The parent of b's entry is there, and stays at least as long. */
static void check_parent(audit *a, int32_t b)
{
    const folio_sched *s = a->s;
    const folio_prefix_index *x = &s->index;
    const folio_block_lru lru = folio_block_pool_lru(s->pool);
    const int32_t up = with_serial(s, x->parent[b]);
    if (up < 0)
        say(a, FOLIO_AUDIT_ENTRY_PARENT,
            "block %d: the parent of its entry, serial %llu, is gone", (int)b,
            (unsigned long long)x->parent[b]);
    else if (state_of(s, up) == FOLIO_BLOCK_CACHED &&
             (state_of(s, b) != FOLIO_BLOCK_CACHED ||
              lru.since[up] < lru.since[b]))
        say(a, FOLIO_AUDIT_ENTRY_PARENT,
            "block %d: its parent, block %d, would be evicted before it",
            (int)b, (int)up);
}

/* The indexed blocks of one table. */
static void check_chain(audit *a, const folio_request *r)
{
    const folio_sched *s = a->s;
    const folio_prefix_index *x = &s->index;
    const int32_t bs = s->p.block_tok;
    int32_t n;
    const int32_t *blks = folio_block_table_blocks(s->table[r->slot], &n);
    for (int32_t i = 0; i < r->n_marked && i < n; i++) {
        const int32_t b = blks[i];
        const int want =
            i < r->n_indexed ? FOLIO_PREFIX_READY : FOLIO_PREFIX_IN_FLIGHT;
        /* A sibling may have finished what r marked. */
        if (!in_pool(s, b) || x->state[b] < want)
            say(a, FOLIO_AUDIT_ENTRY_STATE,
                "request %llu.%d: its block %d (%d) has entry state %d, "
                "expected %d",
                ID(r), (int)i, (int)b, in_pool(s, b) ? x->state[b] : -1, want);
        else if (memcmp(x->tok + (int64_t)b * bs, r->tok + (int64_t)i * bs,
                        (size_t)bs * sizeof *x->tok))
            say(a, FOLIO_AUDIT_ENTRY_TOKENS,
                "request %llu.%d: its block %d (%d) is indexed under other "
                "tokens",
                ID(r), (int)i, (int)b);
        if (in_pool(s, b) && want == FOLIO_PREFIX_IN_FLIGHT)
            s->where[b] |= IN_FLIGHT_OWNED;
    }
}

static void check_index(audit *a)
{
    const folio_sched *s = a->s;
    const folio_prefix_index *x = &s->index;
    map_serials(s);
    for (int32_t b = 0; b < s->p.n_blocks; b++) {
        const folio_block_state st = state_of(s, b);
        const bool ready = x->state[b] == FOLIO_PREFIX_READY;
        const bool flying = x->state[b] == FOLIO_PREFIX_IN_FLIGHT;
        const bool known =
            st == FOLIO_BLOCK_CACHED ||
            (st == FOLIO_BLOCK_HELD && folio_block_pool_is_shared(s->pool, b));
        if ((ready && !known) || (!ready && st == FOLIO_BLOCK_CACHED) ||
            (flying && !(s->where[b] & IN_FLIGHT_OWNED)))
            say(a, FOLIO_AUDIT_ENTRY_STATE, "block %d: it is %s with %s entry",
                (int)b,
                st == FOLIO_BLOCK_FREE     ? "free"
                : st == FOLIO_BLOCK_CACHED ? "cached"
                                           : "held",
                ready    ? "a ready"
                : flying ? "an in-flight"
                         : "no");
        if (x->state[b] && x->parent[b])
            check_parent(a, b);
    }
}

/* ---- all of it ----------------------------------------------------------- */

static void check_running(audit *a)
{
    const folio_sched *s = a->s;
    for (int32_t i = 0; i < s->n_running; i++) {
        const folio_request *r = s->order[i];
        check_any(a, r);
        if (r->state == FOLIO_REQUEST_WAITING || r->queued)
            say(a, FOLIO_AUDIT_STATE,
                "request %llu.%d: it runs, but its state is %s%s", ID(r),
                folio_request_state_name(r->state),
                r->queued ? " and it is in a queue" : "");
        if (i > 0) {
            const folio_request *q = s->order[i - 1];
            if (q->priority < r->priority ||
                (q->priority == r->priority && q->arrival >= r->arrival))
                say(a, FOLIO_AUDIT_RUN_ORDER,
                    "running: request %llu.%d stands before %llu.%d", ID(q),
                    ID(r));
        }
        if (!check_place(a, r))
            continue;
        count_table(a, r);
        check_blocks(a, r);
        check_row(a, r);
        if (s->p.prefix_cache)
            check_chain(a, r);
    }
}

/* Everybody in the index of ids is in a queue or runs. */
static void check_ids(audit *a, int32_t n_queued)
{
    const folio_sched *s = a->s;
    int32_t n = 0;
    for (uint32_t i = 0; i <= s->id_mask; i++)
        for (const folio_request *r = s->by_id[i]; r; r = r->next_id)
            n++;
    if (n != n_queued + s->n_running || n != s->n_requests ||
        n_queued != s->n_waiting)
        say(a, FOLIO_AUDIT_INDEX,
            "scheduler: %d ids and %d requests in flight, %d (%d) wait and %d "
            "run",
            (int)n, (int)s->n_requests, (int)n_queued, (int)s->n_waiting,
            (int)s->n_running);
}

void folio_sched_audit(const folio_sched *s, folio_audit_report *out)
{
    audit a = {s, out};
    int32_t n_queued = 0;
    memset(out, 0, sizeof *out);
    if (s->n_steps > 0) {
        say(&a, FOLIO_AUDIT_UNSETTLED, "scheduler: %d steps are under way",
            (int)s->n_steps);
        return;
    }
    memset(s->seen, 0, (size_t)s->p.n_blocks * sizeof *s->seen);
    memset(s->where, 0, (size_t)s->p.n_blocks);
    check_stack(&a);
    check_cached(&a);
    check_running(&a);
    check_places(&a);
    for (int32_t c = 0; c < FOLIO_N_CLASSES; c++)
        check_queue(&a, c, &n_queued);
    check_ids(&a, n_queued);
    check_pool(&a);
    if (s->p.prefix_cache)
        check_index(&a);
}
