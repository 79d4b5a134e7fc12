/* model/drawer.c: what a runner enqueues behind its head where it is to draw:
 * one id for each row of logits, by the sampling op or, where only the
 * largest logit is wanted, by topk; and reading what was drawn, in one read a
 * forward. Parameters of rows come as words; their meaning is not this
 * file's. */
#include "model/runner_internal.h"

#include <string.h>

#include "ops/sample_row.h"

/* Counts of penalties, and the changed rows that the op works on, take at most
 * so many integers each: 64 MiB. A forward sets counts in an upload of about
 * one piece of the queue's own memory, 4 MiB. */
#define MAX_COUNTS (1 << 24)
#define MAX_FRESH  (1 << 20)
#define MAX_EDITS  8192

static size_t section(size_t n)
{
    return n + 4; /* sections are aligned to four elements */
}

static int32_t rows_in(int32_t ints, int32_t n_ids, int32_t most)
{
    return FOLIO_MIN(FOLIO_MAX(ints / n_ids, 1), most);
}

void folio_drawer_plan(folio_runner *r)
{
    folio_draw_limits *m = &r->draw.lim;
    const int32_t n_vocab = r->model->desc.n_vocab;
    if (m->n_ids == 0)
        return;
    const int64_t limit =
        (int64_t)(folio_device_max_alloc(r->dev) / sizeof(int32_t));
    const int32_t room = (int32_t)FOLIO_MIN(limit, MAX_COUNTS);
    r->draw.chunk_rows = rows_in(room, m->n_ids, r->rows_per_buf);
    m->n_slots = rows_in(room, m->n_ids, r->prm.max_seqs);
    m->max_fresh = rows_in(MAX_FRESH, m->n_ids, m->n_slots);
    m->max_edits = MAX_EDITS;
    if (m->n_ids < n_vocab)
        m->n_top = 0;
    m->n_top = FOLIO_MIN(m->n_top, FOLIO_MIN(m->n_ids, FOLIO_TOP_LARGE));
}

size_t folio_drawer_ints(const folio_runner *r, int32_t step_tok)
{
    const folio_draw_limits *m = &r->draw.lim;
    if (m->n_ids == 0)
        return 0;
    return section((size_t)step_tok) +
           section((size_t)r->prm.max_rows * FOLIO_SAMPLE_IN) +
           section(2 * (size_t)m->max_edits) +
           section((size_t)m->max_fresh * (size_t)m->n_ids);
}

static size_t results_ints(const folio_runner *r)
{
    const size_t top = (size_t)FOLIO_MAX(r->draw.lim.n_top, 1);
    return (size_t)r->prm.max_rows * (FOLIO_SAMPLE_OUT + 2 * top + 1);
}

size_t folio_drawer_results(const folio_runner *r)
{
    return r->draw.lim.n_ids ? 4 + 2 * results_ints(r) + (size_t)r->prm.max_rows
                             : 0;
}

/* ---- open ------------------------------------------------------------------
 */

static folio_status open_scratch(folio_runner *r, size_t bytes)
{
    folio_drawer *d = &r->draw;
    if (bytes)
        FOLIO_RETURN_IF(folio_buf_open(r->dev, bytes, &d->scratch));
    const size_t counts =
        (size_t)d->lim.n_slots * (size_t)d->lim.n_ids * sizeof(int32_t);
    const size_t tok = (size_t)r->low.step_tok * sizeof(int32_t);
    FOLIO_RETURN_IF(folio_buf_open(r->dev, counts, &d->counts));
    FOLIO_RETURN_IF(folio_buf_open(r->dev, tok, &d->tok));
    r->scratch_bytes += bytes + counts + tok;
    return FOLIO_OK;
}

folio_status folio_drawer_open(folio_runner *r)
{
    folio_drawer *d = &r->draw;
    const folio_draw_limits *m = &d->lim;
    if (m->n_ids == 0)
        return FOLIO_OK;
    d->n_results = results_ints(r);
    d->results_at[0] = folio_align_up(r->up.cap, 4);
    d->results_at[1] = d->results_at[0] + d->n_results;
    d->ids_at = d->results_at[1] + d->n_results;
    d->host = folio_calloc(d->n_results, sizeof *d->host);
    if (!d->host)
        return FOLIO_E_NOMEM;
    const folio_sample_args a = {.n_rows = d->chunk_rows,
                                 .n_vocab = m->n_ids,
                                 .stride = r->model->desc.n_vocab,
                                 .n_edits = m->max_edits,
                                 .n_slots = m->n_slots};
    FOLIO_RETURN_IF(
        folio_op_open(r->dev, FOLIO_OP_SAMPLE, &r->ops, &a, &d->op));
    size_t scratch = folio_op_scratch_bytes(d->op);
    if (m->n_top) {
        const folio_topk_args t = {.n_rows = d->chunk_rows,
                                   .n_vocab = r->model->desc.n_vocab,
                                   .k = m->n_top};
        FOLIO_RETURN_IF(
            folio_op_open(r->dev, FOLIO_OP_TOPK, &r->ops, &t, &d->top_op));
        scratch = FOLIO_MAX(scratch, folio_op_scratch_bytes(d->top_op));
    }
    const folio_gather_rows_args g = {.n_rows = r->low.step_tok, .dim = 1};
    FOLIO_RETURN_IF(
        folio_op_open(r->dev, FOLIO_OP_GATHER_ROWS, &r->ops, &g, &d->take_op));
    for (int i = 0; i < 2; i++)
        FOLIO_RETURN_IF(folio_queue_read_reserve(
            r->queue, i, d->n_results * sizeof(int32_t)));
    return open_scratch(r, scratch);
}

void folio_drawer_fini(folio_drawer *d)
{
    folio_op_close(&d->op);
    folio_op_close(&d->top_op);
    folio_op_close(&d->take_op);
    folio_buf_close(&d->counts);
    folio_buf_close(&d->scratch);
    folio_buf_close(&d->tok);
    FOLIO_FREE(d->host);
}

/* ---- upload ----------------------------------------------------------------
 */

/* How often each id occurs in the answer, and whether in the prompt. */
static void fill_counts(int32_t *to, int32_t n_ids, const folio_draw_fresh *f)
{
    memset(to, 0, (size_t)n_ids * sizeof *to);
    for (int32_t i = 0; i < f->n_tok; i++) {
        const int32_t id = f->tok[i];
        if (id < 0 || id >= n_ids)
            continue;
        if (i < f->n_prompt)
            to[id] |= SAMPLE_SEEN;
        else
            to[id]++;
    }
}

/* Room for n integers, filled from src if given. */
static int32_t *put(folio_upload *u, const int32_t *src, size_t n,
                    folio_view *view)
{
    *view = (folio_view){0};
    if (n == 0)
        return u->host;
    int32_t *dst = folio_upload_section(u, n, view);
    if (dst && src)
        memcpy(dst, src, n * sizeof *dst);
    return dst;
}

folio_status folio_drawer_put(folio_runner *r, const folio_draw *d,
                              int32_t n_rows)
{
    folio_drawer *w = &r->draw;
    const size_t n_ids = (size_t)w->lim.n_ids;
    if (d->best)
        return FOLIO_OK;
    int32_t *fresh = NULL;
    if (!put(&r->up, d->words, (size_t)n_rows * FOLIO_SAMPLE_IN, &w->words) ||
        !put(&r->up, d->edits, 2 * (size_t)d->n_edits, &w->edits) ||
        !(fresh = put(&r->up, NULL, (size_t)d->n_fresh * n_ids, &w->fresh)))
        return FOLIO_E_INTERNAL; /* the limits cover every draw */
    for (int32_t i = 0; i < d->n_fresh; i++)
        fill_counts(fresh + (size_t)i * n_ids, w->lim.n_ids, &d->fresh[i]);
    return FOLIO_OK;
}

/* ---- run -------------------------------------------------------------------
 */

static folio_view at_int(const folio_runner *r, size_t i)
{
    return (folio_view){r->up.buf, i * sizeof(int32_t)};
}

/* Where the lists of `n_rows` rows are, k long, in the results `at`. */
static void place_top(const folio_runner *r, size_t at, bool best,
                      int32_t n_rows, int32_t k, folio_topk_args *a)
{
    const size_t rows = (size_t)n_rows;
    if (!best)
        at += rows * FOLIO_SAMPLE_OUT;
    a->k = k;
    a->ids = at_int(r, at);
    a->values = at_int(r, at + rows * (size_t)k);
    a->n_nan = at_int(r, at + 2 * rows * (size_t)k);
}

/* The largest logits of rows first .. first + n - 1, which one buffer has. */
static folio_status run_top(folio_runner *r, const folio_draw *d, folio_op *op,
                            const folio_topk_args *all, int32_t first,
                            int32_t n)
{
    const size_t row = (size_t)first * sizeof(int32_t);
    folio_topk_args a = *all;
    a.x = (folio_view){r->logits[first / r->rows_per_buf],
                       (size_t)(first % r->rows_per_buf) *
                           (size_t)r->model->desc.n_vocab * sizeof(float)};
    a.ids = folio_view_at(all->ids, row * (size_t)all->k);
    a.values = folio_view_at(all->values, row * (size_t)all->k);
    a.n_nan = folio_view_at(all->n_nan, row);
    a.n_rows = n;
    a.n_vocab = r->model->desc.n_vocab;
    a.scratch = (folio_view){d->best ? r->top_scratch : r->draw.scratch, 0};
    return folio_op_run(op, r->queue, &a);
}

static folio_status run_sample(folio_runner *r, const folio_draw *d, size_t at,
                               int32_t first, int32_t n)
{
    folio_drawer *w = &r->draw;
    const size_t row = (size_t)first, n_vocab = (size_t)r->model->desc.n_vocab;
    const folio_sample_args a = {
        .logits = {r->logits[first / r->rows_per_buf],
                   (size_t)(first % r->rows_per_buf) * n_vocab * sizeof(float)},
        .rows =
            folio_view_at(w->words, row * FOLIO_SAMPLE_IN * sizeof(int32_t)),
        .edits = w->edits,
        .counts = {w->counts, 0},
        .ids = at_int(r, w->ids_at + row),
        .out = at_int(r, at + row * FOLIO_SAMPLE_OUT),
        .n_rows = n,
        .n_vocab = w->lim.n_ids,
        .stride = (int32_t)n_vocab,
        .n_edits = d->n_edits,
        .n_slots = w->lim.n_slots,
        .scratch = {w->scratch, 0},
    };
    return folio_op_run(w->op, r->queue, &a);
}

static folio_status set_counts(folio_runner *r, const folio_draw *d)
{
    const size_t bytes = (size_t)r->draw.lim.n_ids * sizeof(int32_t);
    for (int32_t i = 0; i < d->n_fresh; i++)
        FOLIO_RETURN_IF(folio_queue_copy(
            r->queue, folio_view_at(r->draw.fresh, (size_t)i * bytes),
            (folio_view){r->draw.counts, (size_t)d->fresh[i].slot * bytes},
            bytes));
    return FOLIO_OK;
}

folio_status folio_drawer_run(folio_runner *r, const folio_draw *d,
                              int32_t n_rows)
{
    folio_drawer *w = &r->draw;
    const size_t at = w->results_at[d->number];
    folio_topk_args top = {0};
    size_t n_ints = d->best ? 0 : (size_t)n_rows * FOLIO_SAMPLE_OUT;
    w->under_way[d->number].n_rows = 0;
    if (n_rows == 0)
        return FOLIO_OK;
    if (d->best || d->top) {
        const int32_t k = d->best ? FOLIO_TOP_SMALL : w->lim.n_top;
        place_top(r, at, d->best, n_rows, k, &top);
        n_ints += (size_t)n_rows * (2 * (size_t)k + 1);
    }
    if (!d->best)
        FOLIO_RETURN_IF(set_counts(r, d));
    for (int32_t first = 0; first < n_rows;) {
        const int32_t in_buf = r->rows_per_buf - first % r->rows_per_buf;
        const int32_t most = d->best ? r->rows_per_buf : w->chunk_rows;
        const int32_t n = FOLIO_MIN(FOLIO_MIN(in_buf, most), n_rows - first);
        if (!d->best)
            FOLIO_RETURN_IF(run_sample(r, d, at, first, n));
        if (d->best || d->top)
            FOLIO_RETURN_IF(run_top(r, d, d->best ? r->top_op[0] : w->top_op,
                                    &top, first, n));
        first += n;
    }
    FOLIO_RETURN_IF(folio_queue_read_begin(r->queue, d->number, at_int(r, at),
                                           n_ints * sizeof(int32_t)));
    w->under_way[d->number].n_rows = n_rows;
    w->under_way[d->number].best = d->best;
    w->under_way[d->number].top = d->top;
    w->last_ids = d->best ? at : w->ids_at;
    w->last_rows = n_rows;
    return FOLIO_OK;
}

/* ---- read ------------------------------------------------------------------
 */

folio_status folio_runner_read_drawn(folio_runner *r, int number,
                                     folio_drawn *out)
{
    folio_drawer *w = &r->draw;
    const int32_t n_rows = w->under_way[number].n_rows;
    const bool best = w->under_way[number].best;
    const size_t rows = (size_t)n_rows;
    folio_drawn x = {.k = best                       ? FOLIO_TOP_SMALL
                          : w->under_way[number].top ? w->lim.n_top
                                                     : 0};
    if (n_rows == 0)
        return folio_fail(&r->model->log, FOLIO_E_INVAL,
                          "read: forward %d drew nothing", number);
    w->under_way[number].n_rows = 0;
    FOLIO_RETURN_IF(folio_queue_read_end(r->queue, number, w->host));
    const int32_t *at = w->host;
    if (!best) {
        x.out = at;
        at += rows * FOLIO_SAMPLE_OUT;
    }
    if (x.k) {
        x.ids = at;
        x.values = at + rows * (size_t)x.k;
        x.n_nan = at + 2 * rows * (size_t)x.k;
    }
    *out = x;
    return FOLIO_OK;
}
