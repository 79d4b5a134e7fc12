/* sched/scheduler.c: opening and closing, the door, ways out, figures. The
 * decisions of a step are in sched_plan.c. */
#include "sched/scheduler.h"

#include <assert.h>
#include <string.h>

#include "sched/sched_state.h"

/* ---- open and close ------------------------------------------------------ */

void folio_sched_params_default(folio_sched_params *p)
{
    memset(p, 0, sizeof *p);
    p->block_tok = 16;
    p->max_seqs = 8;
    p->max_requests = 4096;
    p->watermark_blocks = -1;
    p->watermark_share = 0.01;
    p->prefix_cache = p->fork = true;
    p->age_plans = 256;
}

#define BAD(...) folio_fail(log, FOLIO_E_INVAL, __VA_ARGS__)

static folio_status check_params(const folio_sched_params *p)
{
    const folio_log *log = &p->log;
    if (p->max_seqs < 1)
        return BAD("scheduler: max_seqs is %d, at least 1 is needed",
                   (int)p->max_seqs);
    if (p->max_requests < 1)
        return BAD("scheduler: max_requests is %d, at least 1 is needed",
                   (int)p->max_requests);
    if (p->max_len < 0)
        return BAD("scheduler: max_len is %d, it must not be negative",
                   (int)p->max_len);
    if (p->watermark_blocks < -1 || p->watermark_blocks >= p->n_blocks)
        return BAD("scheduler: watermark_blocks is %d, it must be in 0..%d",
                   (int)p->watermark_blocks, (int)p->n_blocks - 1);
    if (!(p->watermark_share >= 0.0 && p->watermark_share < 1.0))
        return BAD("scheduler: watermark_share is %g, it must be in [0, 1)",
                   p->watermark_share);
    if (p->step_tok != 0 && p->step_tok < p->max_seqs)
        return BAD("scheduler: step_tok is %d, a step of max_seqs %d needs at "
                   "least that many",
                   (int)p->step_tok, (int)p->max_seqs);
    if (p->chunk_tok < 0)
        return BAD("scheduler: chunk_tok is %d, it must not be negative",
                   (int)p->chunk_tok);
    if (p->age_plans < 0)
        return BAD("scheduler: age_plans is %d, it must not be negative",
                   (int)p->age_plans);
    if (p->run_ahead < 0 || p->run_ahead > 1)
        return BAD("scheduler: run_ahead is %d, it must be 0 or 1",
                   (int)p->run_ahead);
    return FOLIO_OK;
}

static void forget_block(void *user, int32_t blk)
{
    folio_sched *s = user;
    folio_prefix_index_drop(&s->index, blk);
    s->st.evicted_blocks++;
}

static folio_status open_pool(folio_sched *s)
{
    folio_block_pool_params p;
    folio_block_pool_params_default(&p);
    p.n_blocks = s->p.n_blocks;
    p.block_tok = s->p.block_tok;
    p.log = s->log;
    if (s->p.prefix_cache) {
        p.on_evict = forget_block;
        p.evict_user = s;
    }
    return folio_block_pool_open(&p, &s->pool);
}

/* Most positions of one step: all that have a slot of their own, unless a
 * budget says less. */
static int32_t step_capacity(const folio_sched *s)
{
    const int64_t slots = (int64_t)s->p.n_blocks * s->p.block_tok;
    int64_t cap = FOLIO_MIN(slots, (int64_t)s->p.max_seqs * s->p.max_len);
    if (s->p.step_tok)
        cap = FOLIO_MIN(cap, s->p.step_tok);
    return (int32_t)cap;
}

static folio_status open_places(folio_sched *s)
{
    const size_t n = (size_t)s->p.max_seqs, blks = (size_t)s->p.n_blocks;
    const size_t in_flight = (size_t)s->p.max_requests;
    size_t n_id = 1;
    while (n_id < in_flight)
        n_id *= 2;
    s->id_mask = (uint32_t)(n_id - 1);
    s->by_id = folio_calloc(n_id, sizeof(folio_request *));
    s->heap = folio_calloc(in_flight, sizeof(folio_request *));
    s->order = folio_calloc(n, sizeof(folio_request *));
    s->at = folio_calloc(n, sizeof(folio_request *));
    s->table = folio_calloc(n, sizeof(folio_block_table *));
    s->tables = folio_calloc(n * (size_t)s->max_blks, sizeof *s->tables);
    s->row_blks = folio_calloc(n, sizeof *s->row_blks);
    s->row_tok = folio_calloc(n, sizeof *s->row_tok);
    s->growth = folio_calloc(n, sizeof *s->growth);
    s->grown = folio_calloc(n, sizeof *s->grown);
    s->hits = folio_calloc((size_t)s->max_blks, sizeof *s->hits);
    s->held_src = folio_calloc(n, sizeof *s->held_src);
    s->seen = folio_calloc(blks, sizeof *s->seen);
    s->where = folio_calloc(blks, sizeof *s->where);
    size_t n_serial = 2;
    while (s->p.prefix_cache && n_serial < 2 * blks)
        n_serial *= 2;
    s->serial_mask = (uint32_t)(n_serial - 1);
    s->by_serial = folio_calloc(n_serial, sizeof *s->by_serial);
    if (!s->by_id || !s->heap || !s->order || !s->at || !s->table ||
        !s->tables || !s->row_blks || !s->row_tok || !s->growth || !s->grown ||
        !s->hits || !s->held_src || !s->seen || !s->where || !s->by_serial)
        return folio_fail(&s->log, FOLIO_E_NOMEM,
                          "scheduler: no memory for %d sequences of %d blocks",
                          (int)s->p.max_seqs, (int)s->max_blks);
    for (size_t i = 0; i < n; i++)
        FOLIO_RETURN_IF(
            folio_block_table_open(s->pool, s->p.max_len, &s->table[i]));
    for (int32_t i = 0; i <= s->p.run_ahead; i++) {
        FOLIO_RETURN_IF(folio_step_init(&s->step[i], step_capacity(s),
                                        s->p.max_seqs, s->p.max_requests,
                                        &s->log));
        s->step[i].tables = s->tables;
    }
    return FOLIO_OK;
}

folio_status folio_sched_open(const folio_sched_params *p, folio_sched **out)
{
    folio_status st = FOLIO_E_NOMEM;
    folio_sched *s = NULL;
    FOLIO_RETURN_IF(check_params(p));
    s = folio_calloc(1, sizeof *s);
    if (!s)
        return folio_fail(&p->log, st, "scheduler: no memory");
    s->p = *p;
    s->log = p->log;
    s->prompt_tok = INT32_MAX;
    s->done_end = &s->done;
    FOLIO_TRY(open_pool(s));
    const int32_t slots = p->n_blocks * p->block_tok; /* checked by the pool */
    /* The last token drawn has no slot, so a text can be one longer. */
    if (!p->max_len || p->max_len > slots)
        s->p.max_len = slots == INT32_MAX ? slots : slots + 1;
    s->max_blks = (int32_t)FOLIO_MIN(
        folio_block_pool_ceil(s->pool, s->p.max_len), p->n_blocks);
    s->watermark = p->watermark_blocks >= 0
                       ? p->watermark_blocks
                       : (int32_t)(p->watermark_share * p->n_blocks);
    if ((int64_t)s->max_blks * p->max_seqs > INT32_MAX) {
        st = folio_fail(&s->log, FOLIO_E_TOO_LARGE,
                        "scheduler: %d sequences of %d blocks are more table "
                        "entries than can be numbered",
                        (int)p->max_seqs, (int)s->max_blks);
        goto fail;
    }
    if (p->prefix_cache)
        FOLIO_TRY(folio_prefix_index_init(&s->index, p->n_blocks, p->block_tok,
                                          p->hash_seed, p->hash_fn, &s->log));
    FOLIO_TRY(open_places(s));
    *out = s;
    return FOLIO_OK;
fail:
    folio_sched_close(&s);
    return st;
}

static void close_requests(folio_sched *s)
{
    for (uint32_t i = 0; s->by_id && i <= s->id_mask; i++)
        while (s->by_id[i]) {
            folio_request *r = s->by_id[i];
            s->by_id[i] = r->next_id;
            folio_request_close(r);
        }
    while (s->released) {
        folio_request *r = s->released;
        s->released = r->next_done;
        folio_request_close(r);
    }
}

void folio_sched_close(folio_sched **sched)
{
    if (!sched || !*sched)
        return;
    folio_sched *s = *sched;
    close_requests(s);
    for (int32_t i = 0; s->table && i < s->p.max_seqs; i++)
        folio_block_table_close(&s->table[i]);
    folio_block_pool_close(&s->pool);
    folio_prefix_index_fini(&s->index);
    for (int32_t i = 0; i < FOLIO_MAX_UNDER_WAY; i++)
        folio_step_fini(&s->step[i]);
    free(s->by_id);
    free(s->heap);
    free(s->order);
    free(s->at);
    free(s->table);
    free(s->tables);
    free(s->row_blks);
    free(s->row_tok);
    free(s->growth);
    free(s->grown);
    free(s->hits);
    free(s->held_src);
    free(s->seen);
    free(s->where);
    free(s->by_serial);
    free(s);
    *sched = NULL;
}

/* ---- ids and deadlines --------------------------------------------------- */

static folio_request **bucket_of(const folio_sched *s, uint64_t id)
{
    /* Ids are often consecutive; the multiplier spreads any other pattern. */
    const uint64_t h = id * UINT64_C(0x9E3779B97F4A7C15);
    return &s->by_id[(uint32_t)(h >> 32) & s->id_mask];
}

folio_request *folio_sched_find(const folio_sched *s, uint64_t id,
                                int32_t completion)
{
    folio_request *r = *bucket_of(s, id);
    while (r && (r->id != id || r->completion != completion))
        r = r->next_id;
    return r;
}

static folio_request *find_any(const folio_sched *s, uint64_t id)
{
    folio_request *r = *bucket_of(s, id);
    while (r && r->id != id)
        r = r->next_id;
    return r;
}

static void heap_set(folio_sched *s, int32_t i, folio_request *r)
{
    s->heap[i] = r;
    r->heap_pos = i;
}

/* Puts r at or above entry i. */
static void heap_up(folio_sched *s, int32_t i, folio_request *r)
{
    while (i > 0 && s->heap[(i - 1) / 2]->deadline_ns > r->deadline_ns) {
        heap_set(s, i, s->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_set(s, i, r);
}

static void heap_remove(folio_sched *s, folio_request *r)
{
    int32_t i = r->heap_pos;
    if (i < 0)
        return;
    r->heap_pos = -1;
    folio_request *last = s->heap[--s->n_heap];
    if (last == r)
        return;
    for (;;) { /* the hole sinks to where `last` fits */
        int32_t c = 2 * i + 1;
        if (c >= s->n_heap)
            break;
        if (c + 1 < s->n_heap &&
            s->heap[c + 1]->deadline_ns < s->heap[c]->deadline_ns)
            c++;
        if (s->heap[c]->deadline_ns >= last->deadline_ns)
            break;
        heap_set(s, i, s->heap[c]);
        i = c;
    }
    heap_up(s, i, last);
}

/* ---- the door ------------------------------------------------------------ */

static folio_status check_door(const folio_sched *s,
                               const folio_request_params *p)
{
    const folio_log *log = &s->log;
    const unsigned long long id = p->id;
    FOLIO_RETURN_IF(folio_request_check(p, log));
    const int64_t worst = folio_request_worst(p->n_prompt, p->max_new);
    const int64_t need = folio_block_pool_ceil(s->pool, worst);
    if (need > s->p.n_blocks)
        return folio_fail(log, FOLIO_E_TOO_LARGE,
                          "request %llu: prompt %d and budget %d need %lld "
                          "blocks, the pool has %d",
                          id, (int)p->n_prompt, (int)p->max_new,
                          (long long)need, (int)s->p.n_blocks);
    if (worst + 1 > s->p.max_len)
        return folio_fail(log, FOLIO_E_TOO_LARGE,
                          "request %llu: prompt %d and budget %d are %lld "
                          "tokens, at most %d fit",
                          id, (int)p->n_prompt, (int)p->max_new,
                          (long long)worst + 1, (int)s->p.max_len);
    if (p->n > s->p.max_requests)
        return folio_fail(log, FOLIO_E_TOO_LARGE,
                          "request %llu: %d completions, at most %d requests "
                          "may be in flight",
                          id, (int)p->n, (int)s->p.max_requests);
    return FOLIO_OK;
}

static folio_status check_free(const folio_sched *s, uint64_t id, int32_t n)
{
    const folio_log *log = &s->log;
    if (find_any(s, id))
        return BAD("request %llu: the id is in flight already",
                   (unsigned long long)id);
    return n > s->p.max_requests - s->n_requests ? FOLIO_E_FULL : FOLIO_OK;
}

folio_status folio_sched_make(const folio_sched *s,
                              const folio_request_params *p,
                              folio_request **out)
{
    FOLIO_RETURN_IF(check_door(s, p));
    return folio_request_open(p, s->p.prefix_cache ? s->p.block_tok : 0,
                              &s->log, out);
}

folio_status folio_sched_enter(folio_sched *s, folio_request *first)
{
    folio_request_group *g = first->group;
    FOLIO_RETURN_IF(check_free(s, first->id, g->n));
    for (int32_t i = 0; i < g->n; i++) {
        folio_request *r = g->member[i], **bucket = bucket_of(s, r->id);
        r->arrival = s->n_arrived++;
        r->arrival_plan = s->n_plans;
        r->next_id = *bucket;
        *bucket = r;
        if (r->deadline_ns)
            heap_up(s, s->n_heap++, r);
        folio_sched_enqueue(s, r);
        s->n_requests++;
        s->st.submitted++;
    }
    return FOLIO_OK;
}

folio_status folio_sched_submit(folio_sched *s, const folio_request_params *p,
                                folio_request **out)
{
    const int32_t n = FOLIO_MAX(p->n, 1);
    FOLIO_RETURN_IF(check_door(s, p));
    FOLIO_RETURN_IF(check_free(s, p->id, n));
    folio_request *one = NULL, **all = out ? out : &one;
    folio_request **list = NULL;
    if (!out && n > 1) {
        all = list = folio_calloc((size_t)n, sizeof(folio_request *));
        if (!list)
            return folio_fail(&s->log, FOLIO_E_NOMEM,
                              "request %llu: no memory for %d completions",
                              (unsigned long long)p->id, (int)n);
    }
    folio_status st = folio_sched_make(s, p, all);
    if (st == FOLIO_OK)
        st = folio_sched_enter(s, all[0]);
    free(list);
    return st;
}

/* ---- ways out ------------------------------------------------------------ */

void folio_sched_finish(folio_sched *s, folio_request *r, folio_finish why,
                        folio_status status)
{
    if (r->state == FOLIO_REQUEST_FINISHED)
        return;
    folio_request_finish(r, why, status);
    folio_sched_note_done(s, r);
}

void folio_sched_note_done(folio_sched *s, folio_request *r)
{
    heap_remove(s, r);
    r->next_done = NULL;
    *s->done_end = r;
    s->done_end = &r->next_done;
    s->st.finished++;
}

folio_status folio_sched_abort(folio_sched *s, uint64_t id)
{
    folio_request *r = find_any(s, id);
    if (!r)
        return FOLIO_E_NOT_FOUND;
    folio_request_group *g = r->group;
    for (int32_t i = 0; i < g->n; i++)
        if (g->member[i])
            folio_sched_finish(s, g->member[i], FOLIO_FINISH_ABORT,
                               FOLIO_E_CANCELED);
    return FOLIO_OK;
}

void folio_sched_expire(folio_sched *s, uint64_t now_ns)
{
    while (s->n_heap > 0 && s->heap[0]->deadline_ns <= now_ns)
        folio_sched_finish(s, s->heap[0], FOLIO_FINISH_DEADLINE,
                           FOLIO_E_DEADLINE);
}

void folio_sched_forget(folio_sched *s, folio_request *r)
{
    folio_request **at = bucket_of(s, r->id);
    while (*at != r)
        at = &(*at)->next_id;
    *at = r->next_id;
    if (s->blocked.req == r)
        folio_sched_forget_blocked(s);
    r->released = true;
    r->next_done = s->released;
    s->released = r;
    s->n_requests--;
}

void folio_sched_free_released(folio_sched *s)
{
    folio_request **at = &s->released;
    while (*at) {
        folio_request *r = *at;
        if (r->n_flight > 0) { /* a step under way has a row of it */
            at = &r->next_done;
            continue;
        }
        *at = r->next_done;
        folio_request_close(r);
    }
}

/* ---- figures and views --------------------------------------------------- */

folio_sched_stats folio_sched_get_stats(const folio_sched *s)
{
    folio_sched_stats st = s->st;
    st.plans = s->n_plans;
    st.n_waiting = s->n_waiting;
    st.n_running = s->n_running;
    st.n_in_flight = s->n_requests;
    for (int32_t i = 0; i < s->n_running; i++) {
        const folio_block_table *t = s->table[s->order[i]->slot];
        const int64_t n_tok = folio_block_table_n_tok(t);
        int32_t n_blks;
        folio_block_table_blocks(t, &n_blks);
        st.reserved_blocks += n_blks;
        st.used_blocks += (int32_t)folio_block_pool_ceil(s->pool, n_tok);
        st.held_places += (int32_t)folio_block_table_capacity(t);
        st.used_places += (int32_t)n_tok;
    }
    return st;
}

bool folio_sched_is_idle(const folio_sched *s)
{
    return s->n_requests == 0 && s->n_steps == 0;
}

void folio_sched_limit_prompts(folio_sched *s, int32_t n_tok)
{
    s->prompt_tok = FOLIO_MAX(n_tok, 0);
}

int32_t folio_sched_n_decoding(const folio_sched *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->p.max_seqs; i++)
        n += s->at[i] && !s->at[i]->prefilling;
    return n;
}

int32_t folio_sched_watermark(const folio_sched *s)
{
    return s->watermark;
}

int32_t folio_sched_admissible(const folio_sched *s)
{
    return s->p.n_blocks - s->watermark;
}

const folio_block_pool *folio_sched_pool(const folio_sched *s)
{
    return s->pool;
}

folio_request *folio_sched_at(const folio_sched *s, int32_t place)
{
    return place >= 0 && place < s->p.max_seqs ? s->at[place] : NULL;
}

const int32_t *folio_sched_blocks(const folio_sched *s, int32_t place,
                                  int32_t *out_n)
{
    if (place < 0 || place >= s->p.max_seqs) {
        *out_n = 0;
        return NULL;
    }
    return folio_block_table_blocks(s->table[place], out_n);
}
