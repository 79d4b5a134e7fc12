/* bench/batching.c: see batching.h. What a row of a step was comes from the
 * engine's own scheduler, not from arithmetic of this file. */
#include "bench/batching.h"

#include <string.h>

#include "engine/eng.h"

bench_load bench_alike(int32_t n, int32_t n_prompt, int32_t budget,
                       int32_t n_ids)
{
    bench_load l = {.n = n, .n_prompt = n_prompt, .n_ids = n_ids, .seed = 1};
    for (int32_t i = 0; i < n; i++)
        l.budget[i] = budget;
    return l;
}

bench_load bench_head_of_line(int32_t times, int32_t n_ids)
{
    bench_load l =
        bench_alike(times * BENCH_HOL_REQUESTS, BENCH_HOL_PROMPT, 4, n_ids);
    for (int32_t i = 0; i < times; i++)
        l.budget[(i + 1) * BENCH_HOL_REQUESTS - 1] = 32;
    return l;
}

const char *bench_same_texts(const bench_load *l, const bench_texts *a,
                             const bench_texts *b)
{
    for (int32_t i = 0; i < l->n; i++)
        if (a->n[i] < l->budget[i] || b->n[i] < l->budget[i] ||
            memcmp(a->ids[i], b->ids[i],
                   (size_t)l->budget[i] * sizeof a->ids[i][0]) != 0)
            return "the runs came to different texts";
    return NULL;
}

void bench_engine_params(folio_engine_params *p)
{
    folio_engine_params_default(p);
    p->block_size = 4;
    p->prefix_cache = 0;
    p->chunking = 0;
    p->watermark_blocks = 0;
}

/* ---- what all runs do ---------------------------------------------------- */

/* A run under way. */
typedef struct running {
    folio_engine *e;
    const bench_load *l;
    bench_texts *t;
    int32_t first, n; /* requests of this run */
    uint64_t id[BENCH_MAX_REQUESTS];
    int32_t n_preempt[BENCH_MAX_REQUESTS]; /* so far */
    bool ended[BENCH_MAX_REQUESTS];        /* by the last step */
    folio_sched_stats before;              /* the last step */
} running;

/* The next id of a prompt: the stream of a request goes by its number. */
static int32_t random_id(const bench_load *l, int32_t request, int32_t i)
{
    uint64_t x = l->seed + 1 +
                 ((uint64_t)(uint32_t)request << 32 | (uint64_t)(uint32_t)i);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    x ^= x >> 31;
    return 1 + (int32_t)(x % (uint64_t)(l->n_ids - 1));
}

static const char *submit(running *u, int32_t i, int32_t max_new)
{
    int32_t prompt[BENCH_MAX_PROMPT];
    folio_engine_request r;
    folio_engine_request_default(&r);
    for (int32_t k = 0; k < u->l->n_prompt; k++)
        prompt[k] = random_id(u->l, i, k);
    r.prompt = prompt;
    r.n_prompt = u->l->n_prompt;
    r.max_new = max_new;
    r.ignore_eos = 1;
    u->t->n[i] = 0;
    return folio_engine_submit(u->e, &r, &u->id[i]) == FOLIO_OK
               ? NULL
               : "the engine refused a request";
}

static const char *begin(running *u)
{
    const bench_load *l = u->l;
    if (!folio_engine_is_idle(u->e))
        return "the engine is not idle";
    if (u->first < 0 || u->n < 1 || u->first + u->n > l->n ||
        l->n > BENCH_MAX_REQUESTS || l->n_prompt < 1 ||
        l->n_prompt > BENCH_MAX_PROMPT || l->n_ids < 2)
        return "there is no such load";
    for (int32_t i = 0; i < l->n; i++)
        if (l->budget[i] < 1 || l->budget[i] > BENCH_MAX_NEW)
            return "there is no such load";
    u->before = folio_sched_get_stats(u->e->sched);
    return NULL;
}

/* One call of step, its ids into the texts. */
static const char *step(running *u)
{
    folio_event ev[4 * BENCH_MAX_REQUESTS];
    size_t n = 0;
    memset(u->ended, 0, sizeof u->ended);
    if (folio_engine_step(u->e, ev, FOLIO_COUNT(ev), &n) != FOLIO_OK)
        return "a step failed";
    for (size_t k = 0; k < n; k++) {
        int32_t i = u->first;
        while (i < u->first + u->n && u->id[i] != ev[k].request)
            i++;
        if (i == u->first + u->n)
            return "an event is nobody's";
        if (ev[k].kind == FOLIO_EVENT_TOKEN)
            u->t->ids[i][u->t->n[i]++] = ev[k].tok;
        else if (ev[k].status != FOLIO_OK)
            return "a request failed";
        else
            u->ended[i] = true;
    }
    return NULL;
}

/* ---- a static batch ------------------------------------------------------ */

/* One forward of all rows; each must have got one id. */
static const char *forward(void *user, bool *done)
{
    running *u = user;
    int32_t had[BENCH_MAX_REQUESTS];
    memcpy(had, u->t->n, sizeof had);
    const char *why = step(u);
    for (int32_t i = 0; !why && i < u->n; i++) {
        const int32_t k = u->first + i;
        if (u->t->n[k] != had[k] + 1)
            return "a row of a static batch did not get its id";
        done[i] = u->t->n[k] >= u->l->budget[k];
    }
    return why;
}

const char *bench_run_static(folio_engine *e, const bench_load *l,
                             int32_t first, int32_t rows,
                             const bench_clock *clock, bench_row *row,
                             bench_static *out, bench_texts *t)
{
    running u = {.e = e, .l = l, .t = t, .first = first, .n = rows};
    int32_t longest = 1;
    const char *why = begin(&u);
    if (why)
        return why;
    for (int32_t i = first; i < first + rows; i++)
        longest = FOLIO_MAX(longest, l->budget[i]);
    for (int32_t i = first; !why && i < first + rows; i++)
        why = submit(&u, i, longest);
    if (!why)
        why = bench_static_run(clock, forward, &u, rows, longest, row, out);
    const folio_sched_stats s = folio_sched_get_stats(e->sched);
    if (!why &&
        s.issued - u.before.issued != (uint64_t)(out->issued + out->rows))
        why = "the engine computed other rows than a static batch has";
    while (!why && !folio_engine_is_idle(e)) /* its blocks */
        why = step(&u);
    return why;
}

/* ---- continuous batching ------------------------------------------------- */

static const char *iterate(void *user, bench_iteration *it)
{
    running *u = user;
    const char *why = step(u);
    if (why)
        return why;
    const folio_sched_stats s = folio_sched_get_stats(u->e->sched);
    it->batch = (int32_t)(s.issued - u->before.issued);
    it->collected = (int32_t)(s.collected - u->before.collected);
    it->positions = (int64_t)(s.forward_tok - u->before.forward_tok);
    it->recomputed = (int64_t)(s.recomputed_tok - u->before.recomputed_tok);
    u->before = s;
    for (int32_t i = 0; i < u->n; i++) {
        const folio_request *r = folio_sched_find(u->e->sched, u->id[i], 0);
        if (r && r->n_preempt > u->n_preempt[i]) {
            u->n_preempt[i]++;
            it->preempted[it->n_preempted++] = i;
        }
        if (u->ended[i])
            it->finished[it->n_finished++] = i;
    }
    it->more = !folio_engine_is_idle(u->e);
    return NULL;
}

const char *bench_run_continuous(folio_engine *e, const bench_load *l,
                                 const bench_clock *clock, bench_served *served,
                                 bench_continuous *out, bench_texts *t)
{
    running u = {.e = e, .l = l, .t = t, .n = l->n};
    int32_t lists[2 * BENCH_MAX_REQUESTS];
    const char *why = begin(&u);
    for (int32_t i = 0; !why && i < l->n; i++)
        why = submit(&u, i, l->budget[i]);
    return why ? why
               : bench_continuous_run(clock, iterate, &u, e->p.max_seqs, l->n,
                                      2 * BENCH_MAX_REQUESTS * BENCH_MAX_NEW,
                                      lists, served, out);
}

/* ---- one stream ---------------------------------------------------------- */

typedef struct stream {
    running u;
    const char *why;
} stream;

/* The next id; false: there is none. */
static bool next_id(void *user)
{
    stream *s = user;
    const int32_t had = s->u.t->n[0];
    while (!s->why && s->u.t->n[0] == had && !folio_engine_is_idle(s->u.e))
        s->why = step(&s->u);
    return !s->why && s->u.t->n[0] > had;
}

const char *bench_run_stream(folio_engine *e, const bench_load *l,
                             const bench_clock *clock, bench_latency *out)
{
    bench_texts t;
    double between[BENCH_MAX_NEW];
    bench_latency got;
    stream s = {.u = {.e = e, .l = l, .t = &t, .n = 1}};
    const char *why = begin(&s.u);
    if (!why)
        why = submit(&s.u, 0, l->budget[0]);
    if (!why)
        why =
            bench_latency_run(clock, next_id, &s, between, BENCH_MAX_NEW, &got);
    if (!why)
        why = s.why;
    if (!why)
        *out = got;
    return why;
}
