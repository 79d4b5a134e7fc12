/* sched/request.c: the life of one completion. Knows no block and no queue. */
#include "sched/request.h"

#include <assert.h>
#include <string.h>

/* [from][to]; an edge that is not here is a mistake. */
static const bool edges[3][3] = {
    [FOLIO_REQUEST_WAITING] =
        {[FOLIO_REQUEST_RUNNING] = true, [FOLIO_REQUEST_FINISHED] = true},
    [FOLIO_REQUEST_RUNNING] =
        {[FOLIO_REQUEST_WAITING] = true, [FOLIO_REQUEST_FINISHED] = true},
    [FOLIO_REQUEST_FINISHED] = {false},
};

const char *folio_request_state_name(folio_request_state s)
{
    static const char *const names[] = {"waiting", "running", "finished"};
    return (unsigned)s < FOLIO_COUNT(names) ? names[s] : "unknown";
}

const char *folio_finish_name(folio_finish f)
{
    static const char *const names[] = {"none",  "stop",     "length",
                                        "abort", "deadline", "error"};
    return (unsigned)f < FOLIO_COUNT(names) ? names[f] : "unknown";
}

#define BAD(...) folio_fail(log, FOLIO_E_INVAL, __VA_ARGS__)

folio_status folio_request_check(const folio_request_params *p,
                                 const folio_log *log)
{
    const unsigned long long id = p->id;
    if (!p->prompt || p->n_prompt < 1)
        return BAD("request %llu: the prompt has %d tokens, at least 1 is "
                   "needed",
                   id, p->prompt ? (int)p->n_prompt : 0);
    if (p->max_new < 1)
        return BAD("request %llu: max_new is %d, at least 1 is needed", id,
                   (int)p->max_new);
    if (p->n < 0)
        return BAD("request %llu: n is %d, at least 1 is needed", id,
                   (int)p->n);
    if (p->n_stop_ids < 0 || (p->n_stop_ids > 0 && !p->stop_ids))
        return BAD("request %llu: n_stop_ids is %d, stop_ids is %s", id,
                   (int)p->n_stop_ids, p->stop_ids ? "given" : "NULL");
    if (p->priority < 0 || p->priority > FOLIO_PRIORITY_LAST)
        return BAD("request %llu: priority is %d, it must be in 0..%d", id,
                   (int)p->priority, (int)FOLIO_PRIORITY_LAST);
    if (p->salt_bytes > FOLIO_SALT_MAX || (p->salt_bytes > 0 && !p->salt))
        return BAD("request %llu: the salt has %zu bytes, at most %d are "
                   "taken",
                   id, p->salt_bytes, (int)FOLIO_SALT_MAX);
    return FOLIO_OK;
}

/* One block of memory: the struct, hashes, tokens, stop ids. */
static folio_request *make_one(const folio_request_params *p, int32_t block_tok)
{
    const size_t n_tok = (size_t)p->n_prompt + (size_t)p->max_new;
    const size_t n_hash = block_tok ? n_tok / (size_t)block_tok : 0;
    const size_t n_stop = (size_t)p->n_stop_ids;
    size_t hash_bytes, tok_bytes, bytes;
    if (!folio_mul_size(n_hash, sizeof(folio_hash128), &hash_bytes) ||
        !folio_mul_size(n_tok + n_stop, sizeof(int32_t), &tok_bytes) ||
        !folio_add_size(hash_bytes, tok_bytes, &bytes) ||
        !folio_add_size(bytes, sizeof(folio_request), &bytes))
        return NULL;
    folio_request *r = folio_calloc(1, bytes);
    if (!r)
        return NULL;
    /* sizeof the struct is a multiple of its pointers' alignment, and the
     * hash's is no stricter. */
    folio_hash128 *hash = (folio_hash128 *)(void *)(r + 1);
    r->hash = block_tok ? hash : NULL;
    r->tok = (int32_t *)(void *)(hash + n_hash);
    memcpy(r->tok, p->prompt, (size_t)p->n_prompt * sizeof *r->tok);
    if (n_stop)
        memcpy(r->tok + n_tok, p->stop_ids, n_stop * sizeof *r->tok);
    r->stop_ids = r->tok + n_tok;
    r->n_stop_ids = p->n_stop_ids;
    r->id = p->id;
    r->user = p->user;
    r->priority = p->priority;
    r->deadline_ns = p->deadline_ns;
    r->n_prompt = r->n_tok = p->n_prompt;
    r->max_new = p->max_new;
    r->slot = FOLIO_NO_SLOT;
    r->wait_blk = -1;
    r->heap_pos = -1;
    return r;
}

folio_status folio_request_open(const folio_request_params *p,
                                int32_t block_tok, const folio_log *log,
                                folio_request **out)
{
    const int32_t n = FOLIO_MAX(p->n, 1);
    size_t bytes;
    folio_request_group *g = NULL;
    if (folio_mul_size((size_t)n, sizeof g->member[0], &bytes) &&
        folio_add_size(bytes, sizeof *g, &bytes))
        g = folio_calloc(1, bytes);
    if (!g)
        goto fail;
    g->n = n;
    g->salt_bytes = (int32_t)p->salt_bytes;
    if (p->salt_bytes)
        memcpy(g->salt, p->salt, p->salt_bytes);
    for (int32_t i = 0; i < n; i++) {
        folio_request *r = g->member[i] = make_one(p, block_tok);
        if (!r)
            goto fail;
        r->completion = i;
        r->group = g;
        g->n_alive++;
    }
    for (int32_t i = 0; i < n; i++)
        out[i] = g->member[i];
    return FOLIO_OK;
fail:
    for (int32_t i = 0; g && i < n; i++)
        free(g->member[i]);
    free(g);
    return folio_fail(log, FOLIO_E_NOMEM,
                      "request %llu: no memory for %d completions of %lld "
                      "tokens",
                      (unsigned long long)p->id, (int)n,
                      (long long)p->n_prompt + p->max_new);
}

void folio_request_close(folio_request *r)
{
    if (!r)
        return;
    folio_request_group *g = r->group;
    g->member[r->completion] = NULL;
    if (--g->n_alive == 0)
        free(g);
    free(r);
}

folio_status folio_request_move(folio_request *r, folio_request_state to,
                                const folio_log *log)
{
    if ((unsigned)to >= FOLIO_COUNT(edges) || !edges[r->state][to])
        return BAD("request %llu: it is %s and cannot become %s",
                   (unsigned long long)r->id,
                   folio_request_state_name(r->state),
                   folio_request_state_name(to));
    r->state = to;
    return FOLIO_OK;
}

void folio_request_finish(folio_request *r, folio_finish why,
                          folio_status status)
{
    assert(why != FOLIO_FINISH_NONE);
    if (r->state == FOLIO_REQUEST_FINISHED)
        return;
    r->state = FOLIO_REQUEST_FINISHED;
    r->finish = why;
    r->status = status;
}

static bool is_stop(const folio_request *r, int32_t tok)
{
    for (int32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == tok)
            return true;
    return false;
}

folio_status folio_request_append(folio_request *r, int32_t tok, bool stop,
                                  const folio_log *log)
{
    if (r->state != FOLIO_REQUEST_RUNNING)
        return BAD("request %llu: a token came while it is %s, only a running "
                   "one takes tokens",
                   (unsigned long long)r->id,
                   folio_request_state_name(r->state));
    assert(folio_request_n_out(r) < r->max_new);
    r->tok[r->n_tok++] = tok;
    r->gained++;
    if (stop || is_stop(r, tok))
        folio_request_finish(r, FOLIO_FINISH_STOP, FOLIO_OK);
    else if (folio_request_n_out(r) == r->max_new)
        folio_request_finish(r, FOLIO_FINISH_LENGTH, FOLIO_OK);
    return FOLIO_OK;
}
