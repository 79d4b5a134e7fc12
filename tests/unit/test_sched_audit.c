/* Every check of the audit fires when exactly one thing is wrong, and says
 * which; and the faults of a whole engine are noticed when they happen. */
#include "sched/audit.h"
#include "sched/sched_state.h"
#include "unit/sched_dry.h"

/* 12 blocks of 4. Place 0: request 0, decoding, blocks 0 1; place 1: request 1,
 * decoding; place 2: free again, its text cached; requests 4 and 5 wait (one of
 * each class). */
static void open_scene(dry *b)
{
    folio_sched_params p = dry_params(12, 4, 3);
    p.prefix_cache = true;
    p.step_tok = 16;
    dry_open(b, &p);
    dry_submit(b, 0, 5, 12);
    dry_submit(b, 1, 6, 12);
    dry_submit(b, 2, 5, 2);
    for (int i = 0; i < 3; i++)
        cr_assert(dry_step(b));
    cr_assert_null(folio_sched_at(b->s, 2));
    /* Large enough to wait for blocks. */
    dry_submit(b, 4, 40, 1);
    dry_submit(b, 5, 40, 1);
    cr_assert(dry_step(b));
    cr_assert_eq(b->step->n_waiting, 2);
    dry_audit(b);
}

/* The violation is among those found, and the text names `word`. */
static void fires(dry *b, folio_audit_kind kind, const char *word, int line)
{
    folio_audit_report r;
    folio_sched_audit(b->s, &r);
    cr_assert(r.n > 0, "line %d: nothing was noticed", line);
    cr_assert(r.kinds >> kind & 1u, "line %d: not as kind %d: %s", line,
              (int)kind, r.text);
    cr_assert_not_null(strstr(r.text, word), "line %d: \"%s\" is not in \"%s\"",
                       line, word, r.text);
}

static void only(dry *b, folio_audit_kind kind, const char *word, int line)
{
    folio_audit_report r;
    fires(b, kind, word, line);
    folio_sched_audit(b->s, &r);
    cr_assert_eq(r.kinds, UINT64_C(1) << kind, "line %d: %llx as well: %s",
                 line, (unsigned long long)r.kinds, r.text);
}

#define FIRES(kind, word) fires(&b, kind, word, __LINE__)
#define ONLY(kind, word)  only(&b, kind, word, __LINE__)

#define SCENE(name)                                                            \
    static void name##_body(dry *scene);                                       \
    Test(sched_audit, name)                                                    \
    {                                                                          \
        dry scene;                                                             \
        open_scene(&scene);                                                    \
        name##_body(&scene);                                                   \
        dry_close(&scene);                                                     \
    }                                                                          \
    static void name##_body(dry *scene)

#define b (*scene)

static int32_t *stack_of(dry *d, int32_t *n)
{
    /* The one way to break a pool: its own view, written to. */
    return (int32_t *)(uintptr_t)folio_block_pool_free_stack(d->s->pool, n);
}

/* ---- pool ---------------------------------------------------------------- */

SCENE(foreign_block)
{
    int32_t n, *stack = stack_of(&b, &n);
    const int32_t old = stack[0];
    stack[0] = 12;
    FIRES(FOLIO_AUDIT_FOREIGN_BLOCK, "12");
    stack[0] = old;
    dry_audit(&b);
}

SCENE(foreign_block_in_a_table)
{
    int32_t n;
    int32_t *blks =
        (int32_t *)(uintptr_t)folio_block_table_blocks(b.s->table[1], &n);
    const int32_t old = blks[n - 1];
    blks[n - 1] = 4711;
    FIRES(FOLIO_AUDIT_FOREIGN_BLOCK, "its block");
    FIRES(FOLIO_AUDIT_FOREIGN_BLOCK, "4711");
    blks[n - 1] = old;
    dry_audit(&b);
}

SCENE(a_step_under_way)
{
    b.s->n_steps = 1;
    ONLY(FOLIO_AUDIT_UNSETTLED, "1 steps are under way");
    b.s->n_steps = 0;
    dry_audit(&b);
}

SCENE(free_twice_and_one_missing)
{
    int32_t n, *stack = stack_of(&b, &n);
    const int32_t old = stack[0];
    stack[0] = stack[1];
    FIRES(FOLIO_AUDIT_FREE_TWICE, "twice");
    FIRES(FOLIO_AUDIT_MISSING, "twice");
    stack[0] = old;
    dry_audit(&b);
}

SCENE(free_and_held)
{
    int32_t n, n_blks, *stack = stack_of(&b, &n);
    const int32_t old = stack[0];
    stack[0] = folio_sched_blocks(b.s, 0, &n_blks)[0];
    FIRES(FOLIO_AUDIT_FREE_AND_HELD, "held");
    stack[0] = old;
    dry_audit(&b);
}

SCENE(held_by_a_table_but_free)
{
    int32_t n;
    const int32_t *blks = folio_sched_blocks(b.s, 1, &n);
    const int32_t last = blks[n - 1];
    OK(folio_block_pool_give(b.s->pool, last));
    FIRES(FOLIO_AUDIT_NOT_HELD, "free");
    int32_t blk;
    OK(folio_block_pool_take(b.s->pool, &blk));
    cr_assert_eq(blk, last);
    dry_audit(&b);
}

SCENE(stranded)
{
    int32_t blk;
    OK(folio_block_pool_take(b.s->pool, &blk));
    ONLY(FOLIO_AUDIT_HOLDERS, "0 tables");
    OK(folio_block_pool_give(b.s->pool, blk));
    dry_audit(&b);
}

SCENE(one_holder_too_many)
{
    int32_t n;
    const int32_t blk = folio_sched_blocks(b.s, 1, &n)[0];
    OK(folio_block_pool_retain(b.s->pool, blk));
    ONLY(FOLIO_AUDIT_HOLDERS, "2 holders");
    OK(folio_block_pool_give(b.s->pool, blk));
    dry_audit(&b);
}

/* ---- cached blocks ------------------------------------------------------- */

/* Their list is broken through its own view as well. */
typedef struct links {
    int32_t *older, *newer;
    uint64_t *since;
    int32_t oldest, middle, newest;
} links;

/* Request 2's block and those of two more. */
static links links_of(dry *d)
{
    OK(folio_sched_abort(d->s, 4)); /* who waits */
    OK(folio_sched_abort(d->s, 5));
    cr_assert(dry_step(d));
    for (uint64_t id = 6; id < 8; id++)
        dry_submit(d, id, 5, 1);
    for (int i = 0; i < 4; i++)
        cr_assert(dry_step(d));
    dry_audit(d);
    const folio_block_lru v = folio_block_pool_lru(d->s->pool);
    cr_assert_eq(v.n, 3);
    return (links){(int32_t *)(uintptr_t)v.older,
                   (int32_t *)(uintptr_t)v.newer,
                   (uint64_t *)(uintptr_t)v.since,
                   v.oldest,
                   v.newer[v.oldest],
                   v.newest};
}

SCENE(cached_blocks_that_differ_from_behind)
{
    const links l = links_of(&b);
    l.older[l.newest] = l.oldest;
    ONLY(FOLIO_AUDIT_CACHED_LINKS, "backwards after");
    l.older[l.newest] = l.middle;
    dry_audit(&b);
    l.older[l.oldest] = l.newest; /* it has none */
    ONLY(FOLIO_AUDIT_CACHED_LINKS, "backwards after");
    l.older[l.oldest] = -1;
    dry_audit(&b);
}

SCENE(cached_blocks_in_a_ring)
{
    const links l = links_of(&b);
    l.newer[l.newest] = l.middle;
    ONLY(FOLIO_AUDIT_CACHED_LINKS, "earlier once");
    l.newer[l.newest] = -1;
    dry_audit(&b);
}

SCENE(cached_blocks_that_end_too_early)
{
    const links l = links_of(&b);
    l.newer[l.middle] = -1;
    FIRES(FOLIO_AUDIT_CACHED_LINKS, "the last one");
    FIRES(FOLIO_AUDIT_CACHED_MEMBERS, "the last one");
    l.newer[l.middle] = l.newest;
    dry_audit(&b);
}

SCENE(a_cached_block_that_is_not_listed)
{
    const links l = links_of(&b);
    l.newer[l.oldest] = l.newest;
    l.older[l.newest] = l.oldest;
    ONLY(FOLIO_AUDIT_CACHED_MEMBERS, "2 are listed, the pool counts 3");
    l.newer[l.oldest] = l.middle;
    l.older[l.newest] = l.middle;
    dry_audit(&b);
}

SCENE(a_held_block_among_the_cached)
{
    const links l = links_of(&b);
    int32_t n;
    const int32_t held = folio_sched_blocks(b.s, 0, &n)[0];
    const uint64_t since = l.since[held];
    l.newer[l.middle] = held;
    l.older[held] = l.middle;
    l.newer[held] = l.newest;
    l.older[l.newest] = held;
    l.since[held] = l.since[l.middle];
    FIRES(FOLIO_AUDIT_CACHED_MEMBERS, "is held");
    l.newer[l.middle] = l.newest;
    l.older[l.newest] = l.middle;
    l.since[held] = since;
    dry_audit(&b);
}

SCENE(a_foreign_block_among_the_cached)
{
    const links l = links_of(&b);
    l.newer[l.newest] = 12;
    FIRES(FOLIO_AUDIT_FOREIGN_BLOCK, "cached blocks: 12 comes after");
    l.newer[l.newest] = -1;
    dry_audit(&b);
}

SCENE(cached_blocks_out_of_order)
{
    const links l = links_of(&b);
    const uint64_t since = l.since[l.middle];
    l.since[l.middle] = l.since[l.newest];
    ONLY(FOLIO_AUDIT_CACHED_ORDER, "used until");
    l.since[l.middle] = since;
    dry_audit(&b);
}

/* ---- places -------------------------------------------------------------- */

SCENE(running_without_a_place)
{
    b.s->at[1]->slot = FOLIO_NO_SLOT;
    FIRES(FOLIO_AUDIT_PLACE_RANGE, "-1");
    b.s->at[1]->slot = 1;
    dry_audit(&b);
}

SCENE(two_at_one_place)
{
    b.s->at[1]->slot = 0;
    FIRES(FOLIO_AUDIT_PLACE_SHARED, "both");
    b.s->at[1]->slot = 1;
    dry_audit(&b);
}

SCENE(the_place_says_nobody)
{
    folio_request *r = b.s->at[1];
    b.s->at[1] = NULL;
    FIRES(FOLIO_AUDIT_PLACE_OWNER, "nobody");
    b.s->at[1] = r;
    dry_audit(&b);
}

SCENE(a_place_is_taken_by_one_who_waits)
{
    b.s->at[2] = b.s->waiting[0].oldest;
    ONLY(FOLIO_AUDIT_PLACE_LEAKED, "place 2");
    b.s->at[2] = NULL;
    dry_audit(&b);
}

/* ---- requests ------------------------------------------------------------ */

SCENE(a_waiting_state_among_the_running)
{
    b.s->at[0]->state = FOLIO_REQUEST_WAITING;
    ONLY(FOLIO_AUDIT_STATE, "waiting");
    b.s->at[0]->state = FOLIO_REQUEST_RUNNING;
    dry_audit(&b);
}

SCENE(a_running_state_in_a_queue)
{
    b.s->waiting[0].oldest->state = FOLIO_REQUEST_RUNNING;
    ONLY(FOLIO_AUDIT_STATE, "running");
    b.s->waiting[0].oldest->state = FOLIO_REQUEST_WAITING;
    dry_audit(&b);
}

SCENE(in_the_queue_of_another_class)
{
    b.s->waiting[0].oldest->priority = 3;
    ONLY(FOLIO_AUDIT_STATE, "class 3");
    b.s->waiting[0].oldest->priority = 0;
    dry_audit(&b);
}

SCENE(a_waiter_with_progress)
{
    b.s->waiting[0].oldest->n_done = 1;
    ONLY(FOLIO_AUDIT_WAITER_HOLDS, "1 computed");
    b.s->waiting[0].oldest->n_done = 0;
    dry_audit(&b);
}

SCENE(a_waiter_with_a_place)
{
    b.s->waiting[0].oldest->slot = 2;
    ONLY(FOLIO_AUDIT_WAITER_HOLDS, "place 2");
    b.s->waiting[0].oldest->slot = FOLIO_NO_SLOT;
    dry_audit(&b);
}

SCENE(a_queue_out_of_order)
{
    b.s->waiting[0].oldest->arrival += 10;
    ONLY(FOLIO_AUDIT_QUEUE_ORDER, "before");
    b.s->waiting[0].oldest->arrival -= 10;
    dry_audit(&b);
}

SCENE(an_older_one_waits)
{
    folio_request *r = b.s->waiting[0].oldest;
    const uint64_t arrival = r->arrival;
    r->arrival = 0;
    ONLY(FOLIO_AUDIT_OVERTAKEN, "arrival 0");
    r->arrival = arrival;
    dry_audit(&b);
}

SCENE(the_running_out_of_order)
{
    folio_request *first = b.s->order[0];
    b.s->order[0] = b.s->order[1];
    b.s->order[1] = first;
    FIRES(FOLIO_AUDIT_RUN_ORDER, "before");
    b.s->order[1] = b.s->order[0];
    b.s->order[0] = first;
    dry_audit(&b);
}

SCENE(an_id_that_leads_elsewhere)
{
    b.s->at[0]->id = 77;
    FIRES(FOLIO_AUDIT_INDEX, "77");
    b.s->at[0]->id = 0;
    dry_audit(&b);
}

SCENE(a_lost_id)
{
    b.s->n_requests++;
    ONLY(FOLIO_AUDIT_INDEX, "5 requests in flight");
    b.s->n_requests--;
    dry_audit(&b);
}

SCENE(fewer_tokens_than_the_prompt)
{
    folio_request *r = b.s->waiting[0].oldest;
    r->n_tok--;
    ONLY(FOLIO_AUDIT_TOKENS, "39 tokens");
    r->n_tok++;
    dry_audit(&b);
}

SCENE(more_tokens_than_the_budget)
{
    folio_request *r = b.s->waiting[0].oldest;
    r->n_tok += 2;
    ONLY(FOLIO_AUDIT_TOKENS, "42 tokens");
    r->n_tok -= 2;
    dry_audit(&b);
}

SCENE(one_token_behind)
{
    folio_request *r = b.s->at[0];
    r->n_done--;
    FIRES(FOLIO_AUDIT_PROGRESS, "computed");
    r->n_done++;
    dry_audit(&b);
}

SCENE(a_step_left_open)
{
    b.s->at[0]->n_flight = 1;
    ONLY(FOLIO_AUDIT_PROGRESS, "computed");
    b.s->at[0]->n_flight = 0;
    b.s->at[0]->n_ahead = 1;
    ONLY(FOLIO_AUDIT_PROGRESS, "1 awaited");
    b.s->at[0]->n_ahead = 0;
    dry_audit(&b);
}

SCENE(a_block_too_many)
{
    /* One token ahead, and with it a block: what a slack of one would hide. */
    folio_request *r = b.s->at[1];
    folio_block_growth g;
    const int64_t room = folio_block_table_capacity(b.s->table[1]) -
                         folio_block_table_n_tok(b.s->table[1]);
    OK(folio_block_table_grow(b.s->table[1], room + 1, false, &g));
    folio_sched_sync_row(b.s, 1, 0);
    ONLY(FOLIO_AUDIT_BLOCKS, "blocks");
    OK(folio_block_table_undo(b.s->table[1], &g));
    folio_sched_sync_row(b.s, 1, 0);
    dry_audit(&b);
    OK(folio_block_table_grow(b.s->table[1], 1, false, &g));
    ONLY(FOLIO_AUDIT_BLOCKS, "tokens");
    OK(folio_block_table_undo(b.s->table[1], &g));
    (void)r;
    dry_audit(&b);
}

/* ---- rows ---------------------------------------------------------------- */

SCENE(a_row_left_behind)
{
    b.s->row_blks[2] = 1;
    ONLY(FOLIO_AUDIT_ROW_LEFT, "place 2");
    b.s->row_blks[2] = 0;
    b.s->row_tok[2] = 1;
    ONLY(FOLIO_AUDIT_ROW_LEFT, "place 2");
    b.s->row_tok[2] = 0;
    dry_audit(&b);
}

SCENE(another_block_in_a_row)
{
    b.s->tables[b.s->max_blks] ^= 1;
    ONLY(FOLIO_AUDIT_ROW_IDS, "place 1");
    b.s->tables[b.s->max_blks] ^= 1;
    b.s->row_blks[1]++;
    ONLY(FOLIO_AUDIT_ROW_IDS, "place 1");
    b.s->row_blks[1]--;
    dry_audit(&b);
}

SCENE(a_row_with_other_progress)
{
    b.s->row_tok[0]--;
    ONLY(FOLIO_AUDIT_ROW_TOKENS, "place 0");
    b.s->row_tok[0]++;
    dry_audit(&b);
}

SCENE(a_row_beyond_its_blocks)
{
    b.s->row_tok[0] += 400;
    FIRES(FOLIO_AUDIT_ROW_CAPACITY, "place 0");
    b.s->row_tok[0] -= 400;
    dry_audit(&b);
}

/* ---- prefix index -------------------------------------------------------- */

SCENE(an_entry_that_lost_its_state)
{
    int32_t n;
    const int32_t blk = folio_sched_blocks(b.s, 0, &n)[0];
    b.s->index.state[blk] = FOLIO_PREFIX_IN_FLIGHT;
    FIRES(FOLIO_AUDIT_ENTRY_STATE, "entry state 1");
    b.s->index.state[blk] = FOLIO_PREFIX_READY;
    dry_audit(&b);
    int32_t cached[12];
    OK(folio_block_pool_list_cached(b.s->pool, cached, 12, &n));
    cr_assert_gt(n, 0);
    b.s->index.state[cached[0]] = FOLIO_PREFIX_NONE;
    FIRES(FOLIO_AUDIT_ENTRY_STATE, "cached with no entry");
    b.s->index.state[cached[0]] = FOLIO_PREFIX_READY;
    dry_audit(&b);
}

SCENE(an_entry_with_other_tokens)
{
    int32_t n;
    const int32_t blk = folio_sched_blocks(b.s, 0, &n)[0];
    b.s->index.tok[blk * 4 + 3]++;
    ONLY(FOLIO_AUDIT_ENTRY_TOKENS, "other tokens");
    b.s->index.tok[blk * 4 + 3]--;
    dry_audit(&b);
}

SCENE(an_entry_without_its_parent)
{
    int32_t n;
    const int32_t blk = folio_sched_blocks(b.s, 0, &n)[1];
    const uint64_t parent = b.s->index.parent[blk];
    cr_assert_neq(parent, 0);
    b.s->index.parent[blk] = 999;
    ONLY(FOLIO_AUDIT_ENTRY_PARENT, "999");
    b.s->index.parent[blk] = parent;
    dry_audit(&b);
}

SCENE(a_parent_that_would_go_first)
{
    int32_t n;
    const int32_t blk = folio_sched_blocks(b.s, 0, &n)[0];
    const folio_block_lru lru = folio_block_pool_lru(b.s->pool);
    const uint64_t parent = b.s->index.parent[blk];
    /* A held child of a cached block. */
    b.s->index.parent[blk] = b.s->index.serial[lru.newest];
    ONLY(FOLIO_AUDIT_ENTRY_PARENT, "evicted before");
    b.s->index.parent[blk] = parent;
    dry_audit(&b);
    /* A cached one of an older one. */
    const links l = links_of(&b);
    b.s->index.parent[l.newest] = b.s->index.serial[l.oldest];
    ONLY(FOLIO_AUDIT_ENTRY_PARENT, "evicted before");
    b.s->index.parent[l.newest] = 0;
    dry_audit(&b);
}

/* ---- what is legal ------------------------------------------------------- */

SCENE(finished_and_not_yet_released)
{
    for (uint64_t id = 0; id < 6; id += id == 1 ? 3 : 1)
        OK(folio_sched_abort(b.s, id));
    dry_audit(&b);
    cr_assert_not(dry_step(&b));
    dry_audit(&b);
}

#undef b

Test(sched_audit, in_the_middle_of_a_prompt)
{
    dry b;
    folio_sched_params p = dry_params(12, 4, 2);
    p.step_tok = 3;
    p.prefix_cache = true;
    dry_open(&b, &p);
    dry_submit(&b, 0, 17, 2);
    cr_assert(dry_step(&b)); /* audited */
    folio_request *r = b.s->at[0];
    cr_assert(r->prefilling);
    cr_assert_eq(r->n_done, 3);
    r->n_sent = 4; /* recorded progress and the row's */
    ONLY(FOLIO_AUDIT_PROGRESS, "in its prompt");
    r->n_sent = 3;
    dry_drain(&b, 20);
    dry_close(&b);
}

/* ---- faults of a whole engine -------------------------------------------- */

/* A release that forgets one block: caught at once by the audit, while without
 * it all texts come out right and the pool just shrinks. */
Test(sched_audit, an_injected_leak)
{
    for (int audited = 0; audited < 2; audited++) {
        dry b;
        const folio_sched_params p = dry_params(10, 4, 3);
        dry_open(&b, &p);
        b.audit = false;
        for (uint64_t i = 0; i < 12; i++)
            dry_submit(&b, i, 4, 8);
        int32_t released = 0, leaked = -1;
        bool caught = false;
        while (!folio_sched_is_idle(b.s) && !caught) {
            /* The third release, in plan order, keeps its first block. */
            for (folio_request *r = b.s->done; r; r = r->next_done)
                if (++released == 3) {
                    int32_t n;
                    leaked = folio_sched_blocks(b.s, r->slot, &n)[0];
                    OK(folio_block_pool_retain(b.s->pool, leaked));
                }
            (void)dry_step(&b);
            folio_audit_report r;
            folio_sched_audit(b.s, &r);
            if (audited && r.n) {
                caught = true;
                cr_assert_eq(r.kinds, UINT64_C(1) << FOLIO_AUDIT_HOLDERS);
                cr_assert_eq(b.iterations, 9);
                cr_assert_eq(leaked, 2);
                cr_assert_not_null(strstr(r.text, "block 2"));
            }
        }
        cr_assert_eq(caught, audited);
        if (!audited) {
            cr_assert_eq(b.n_finished, 12);
            cr_assert_eq(n_free(folio_sched_pool(b.s)), 9);
            for (uint64_t i = 0; i < 12; i++)
                cr_assert_eq(dry_text_of(&b, i, 0)->n, 8);
        }
        dry_close(&b);
    }
}

/* Somebody else took the pool's blocks: said, not spun on for ever. */
Test(sched_audit, stuck)
{
    dry b;
    const folio_step *step = NULL;
    const folio_sched_params p = dry_params(4, 4, 2);
    dry_open(&b, &p);
    dry_submit(&b, 0, 14, 2);
    int32_t blk;
    OK(folio_block_pool_take(b.s->pool, &blk));
    SAYS(&b.log, folio_sched_plan(b.s, 0, &step), FOLIO_E_STUCK, "1 requests",
         "3 of 4");
    cr_assert_null(step);
    OK(folio_block_pool_give(b.s->pool, blk));
    dry_drain(&b, 10);
    dry_close(&b);
}
