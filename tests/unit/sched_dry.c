/* unit/sched_dry.c: see sched_dry.h. */
#include "unit/sched_dry.h"

#include "model/batch.h"
#include "sched/audit.h"

folio_sched_params dry_params(int32_t n_blocks, int32_t block_tok,
                              int32_t max_seqs)
{
    folio_sched_params p;
    folio_sched_params_default(&p);
    p.n_blocks = n_blocks;
    p.block_tok = block_tok;
    p.max_seqs = max_seqs;
    p.watermark_blocks = 0;
    p.prefix_cache = false;
    return p;
}

static void *need(void *p)
{
    cr_assert_not_null(p);
    return p;
}

void dry_open(dry *b, const folio_sched_params *p)
{
    memset(b, 0, sizeof *b);
    b->p = *p;
    b->p.log = (folio_log){listen, &b->log, FOLIO_LOG_DEBUG};
    b->audit = b->check_kv = true;
    b->eos = -1;
    OK(folio_sched_open(&b->p, &b->s));
    const size_t slots = (size_t)p->n_blocks * (size_t)p->block_tok;
    b->kv = need(calloc(slots, sizeof *b->kv));
    b->bits = need(calloc(slots / 8 + 1, 1));
    for (int i = 0; i < 2; i++)
        b->drawn[i] = need(calloc((size_t)p->max_seqs, sizeof(int32_t)));
    b->took = need(calloc((size_t)p->max_seqs, sizeof *b->took));
}

void dry_close(dry *b)
{
    folio_sched_close(&b->s);
    for (int32_t i = 0; i < b->n_ids * DRY_COMPLETIONS; i++)
        free(b->texts[i].tok);
    free(b->texts);
    free(b->finish_order);
    free(b->kv);
    free(b->want);
    free(b->bits);
    free(b->drawn[0]);
    free(b->drawn[1]);
    free(b->took);
}

/* ---- submit -------------------------------------------------------------- */

int32_t dry_prompt_tok(uint64_t id, int32_t i)
{
    uint32_t x = (uint32_t)id * 2654435761u + (uint32_t)i * 40503u + 1u;
    x ^= x >> 15;
    x *= 2246822519u;
    return (int32_t)((x ^ x >> 13) % DRY_VOCAB);
}

static dry_text *text_at(dry *b, uint64_t id, int32_t completion)
{
    cr_assert(id < 1000000 && completion < DRY_COMPLETIONS);
    if ((int32_t)id >= b->n_ids) {
        const int32_t n = FOLIO_MAX(2 * b->n_ids, (int32_t)id + 1);
        b->texts = need(
            realloc(b->texts, sizeof *b->texts * DRY_COMPLETIONS * (size_t)n));
        memset(b->texts + (size_t)b->n_ids * DRY_COMPLETIONS, 0,
               sizeof *b->texts * DRY_COMPLETIONS * (size_t)(n - b->n_ids));
        b->n_ids = n;
    }
    return &b->texts[id * DRY_COMPLETIONS + (uint64_t)completion];
}

const dry_text *dry_text_of(const dry *b, uint64_t id, int32_t completion)
{
    static const dry_text none;
    return (int32_t)id < b->n_ids
               ? &b->texts[id * DRY_COMPLETIONS + (uint64_t)completion]
               : &none;
}

folio_status dry_try_submit(dry *b, const folio_request_params *p)
{
    for (int32_t i = 0; i < FOLIO_MAX(p->n, 1); i++) {
        dry_text *t = text_at(b, p->id, i);
        free(t->tok);
        memset(t, 0, sizeof *t);
    }
    return folio_sched_submit(b->s, p, NULL);
}

void dry_submit_as(dry *b, const folio_request_params *p)
{
    OK(dry_try_submit(b, p));
}

void dry_submit(dry *b, uint64_t id, int32_t n_prompt, int32_t max_new)
{
    int32_t *prompt = need(calloc((size_t)n_prompt, sizeof *prompt));
    for (int32_t i = 0; i < n_prompt; i++)
        prompt[i] = dry_prompt_tok(id, i);
    dry_submit_as(b, &(folio_request_params){.id = id,
                                             .prompt = prompt,
                                             .n_prompt = n_prompt,
                                             .max_new = max_new});
    free(prompt);
}

/* ---- the model ----------------------------------------------------------- */

static uint64_t mix(uint64_t h, int32_t tok, int32_t pos)
{
    h ^= (uint64_t)(uint32_t)tok * UINT64_C(0x9E3779B97F4A7C15) +
         (uint64_t)(uint32_t)pos;
    h ^= h >> 31;
    h *= UINT64_C(0xD6E8FEB86659FD93);
    return (h ^ h >> 29) | 1u;
}

static int32_t draw(const dry *b, uint64_t h, int32_t completion)
{
    const uint64_t x = mix(h, completion + 77, 5);
    /* Now and then the token that ends a text, if there is one. */
    if (b->eos >= 0 && x % 23 == 0)
        return b->eos;
    return (int32_t)((x >> 20) % DRY_VOCAB);
}

/* Every number of the context before this row's tokens, against the text. */
static void check_context(dry *b, const folio_step *s, int32_t i)
{
    const folio_step_row *row = &s->seq[i];
    const int32_t *table = s->tables + s->table_start[i], bs = b->p.block_tok;
    uint64_t h = 0;
    for (int32_t pos = 0; pos < row->first && pos < row->req->n_tok; pos++) {
        h = mix(h, row->req->tok[pos], pos);
        cr_assert_eq(b->kv[table[pos / bs] * bs + pos % bs], h,
                     "step %d: request %d: position %d of %d is another's",
                     (int)s->number, (int)row->req->id, (int)pos,
                     (int)row->first);
    }
}

static void check_arrays(dry *b, const folio_step *s)
{
    int32_t *tok = need(calloc((size_t)s->n_tok, sizeof *tok));
    for (int32_t t = 0; t < s->n_tok; t++)
        tok[t] = s->tok[t] == FOLIO_TOK_PENDING ? 0 : s->tok[t];
    const folio_batch batch = {.n_tok = s->n_tok,
                               .n_seq = s->n_seq,
                               .tok = tok,
                               .pos = s->pos,
                               .slot = s->slot,
                               .q_start = s->q_start,
                               .kv_len = s->kv_len,
                               .table_start = s->table_start,
                               .tables = s->tables,
                               .n_rows = s->n_rows,
                               .rows = s->rows,
                               .n_copies = s->n_copies,
                               .copies =
                                   s->n_copies ? &s->copies[0].src : NULL};
    const folio_batch_limits lim = {
        DRY_VOCAB,     b->p.n_blocks, b->p.block_tok, INT32_MAX, b->p.max_seqs,
        b->p.max_seqs, INT32_MAX,     b->p.max_seqs,  NULL,      0};
    cr_assert_eq(folio_batch_check(&batch, &lim, b->bits, &b->p.log), FOLIO_OK,
                 "%s", b->log.last);
    free(tok);
}

void dry_compute(dry *b)
{
    const folio_step *s = b->step;
    const int32_t bs = b->p.block_tok;
    int32_t *drawn = b->drawn[s->number % 2];
    const int32_t *before = b->drawn[(s->number + 1) % 2];
    if (b->check_kv)
        check_arrays(b, s);
    for (int32_t i = 0; i < s->n_copies; i++)
        memcpy(b->kv + (int64_t)s->copies[i].dst * bs,
               b->kv + (int64_t)s->copies[i].src * bs,
               (size_t)bs * sizeof *b->kv);
    for (int32_t i = 0; i < s->n_seq; i++)
        if (b->check_kv)
            check_context(b, s, i);
    for (int32_t i = 0; i < s->n_seq; i++) {
        const folio_step_row *row = &s->seq[i];
        const int32_t *table = s->tables + s->table_start[i];
        for (int32_t t = s->q_start[i]; t < s->q_start[i + 1]; t++) {
            const int32_t p = s->pos[t] - 1;
            int32_t tok = s->tok[t];
            if (tok == FOLIO_TOK_PENDING)
                tok = before[row->pending_row];
            const uint64_t h = p < 0 ? 0 : b->kv[table[p / bs] * bs + p % bs];
            b->kv[s->slot[t]] = mix(h, tok, s->pos[t]);
        }
        if (row->row >= 0)
            drawn[row->row] = draw(b, b->kv[s->slot[s->q_start[i + 1] - 1]],
                                   row->req->completion);
    }
}

/* ---- the loop ------------------------------------------------------------ */

static void note_released(dry *b, const folio_step *s)
{
    for (int32_t i = 0; i < s->n_released; i++) {
        const folio_request *r = s->released[i];
        dry_text *t = text_at(b, r->id, r->completion);
        cr_assert_not(t->released);
        t->released = true;
        t->finish = r->finish;
        t->n_preempt = r->n_preempt;
        t->n_cached = r->n_cached;
        t->n_recomputed = r->n_recomputed;
        cr_assert_eq(folio_request_n_out(r), t->n);
        cr_assert(t->n == 0 || memcmp(t->tok, r->tok + r->n_prompt,
                                      (size_t)t->n * sizeof *t->tok) == 0);
        if (b->n_finished == b->finish_cap) {
            b->finish_cap = 2 * b->finish_cap + 16;
            b->finish_order =
                need(realloc(b->finish_order,
                             sizeof *b->finish_order * (size_t)b->finish_cap));
        }
        b->finish_order[b->n_finished++] = (int32_t)r->id;
    }
}

bool dry_plan(dry *b)
{
    OK(folio_sched_plan(b->s, b->now_ns, &b->step));
    const folio_step *s = b->step;
    int32_t rows = 0, longest = 0;
    note_released(b, s);
    if (s->n_seq == 0) {
        b->empty++;
        return false;
    }
    b->iterations++;
    b->copied += s->n_copies;
    for (int32_t i = 0; i < s->n_seq; i++)
        if (s->seq[i].admitted) {
            rows++;
            longest = FOLIO_MAX(longest, s->seq[i].n_new);
        }
    b->rectangle += (int64_t)rows * longest;
    return true;
}

void dry_commit(dry *b, const folio_step *s)
{
    const int32_t *next = b->drawn[s->number % 2];
    OK(folio_sched_commit(b->s, s, next, NULL, b->took));
    for (int32_t k = 0; k < s->n_rows; k++) {
        if (!b->took[k])
            continue;
        const folio_request *r = s->seq[s->row_seq[k]].req;
        dry_text *t = text_at(b, r->id, r->completion);
        if (t->n == t->cap) {
            t->cap = 2 * t->cap + 16;
            t->tok = need(realloc(t->tok, sizeof *t->tok * (size_t)t->cap));
        }
        t->tok[t->n++] = next[k];
        if (t->n == 1)
            t->first_at = b->iterations;
        t->done_at = b->iterations;
    }
}

void dry_audit(dry *b)
{
    folio_audit_report r;
    folio_sched_audit(b->s, &r);
    cr_assert_eq(r.n, 0, "after iteration %d: %d violations, first: %s",
                 (int)b->iterations, (int)r.n, r.text);
}

bool dry_step(dry *b)
{
    if (!dry_plan(b))
        return false;
    dry_compute(b);
    dry_commit(b, b->step);
    if (b->audit)
        dry_audit(b);
    return true;
}

void dry_drain(dry *b, int32_t max_iterations)
{
    const int32_t end = b->iterations + max_iterations;
    while (!folio_sched_is_idle(b->s)) {
        cr_assert_leq(b->iterations, end, "did not drain in %d iterations",
                      (int)max_iterations);
        if (!dry_step(b))
            cr_assert(folio_sched_is_idle(b->s), "stuck: an empty step while "
                                                 "requests wait");
    }
}

void dry_drain_ahead(dry *b, int32_t max_iterations)
{
    const folio_step *under_way = NULL;
    const int32_t end = b->iterations + max_iterations;
    while (!folio_sched_is_idle(b->s)) {
        cr_assert_leq(b->iterations, end);
        const bool any = dry_plan(b);
        if (any)
            dry_compute(b);
        if (under_way)
            dry_commit(b, under_way);
        under_way = any ? b->step : NULL;
    }
}

void dry_same_texts(const dry *a, const dry *b)
{
    for (int32_t i = 0; i < FOLIO_MAX(a->n_ids, b->n_ids); i++)
        for (int32_t c = 0; c < DRY_COMPLETIONS; c++) {
            const dry_text *x = dry_text_of(a, (uint64_t)i, c);
            const dry_text *y = dry_text_of(b, (uint64_t)i, c);
            cr_assert_eq(x->n, y->n, "request %d.%d: %d and %d tokens", (int)i,
                         (int)c, (int)x->n, (int)y->n);
            cr_assert(x->n == 0 || memcmp(x->tok, y->tok,
                                          (size_t)x->n * sizeof *x->tok) == 0,
                      "request %d.%d: other tokens", (int)i, (int)c);
        }
}
