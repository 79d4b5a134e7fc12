/* model/forward.c: enqueues a batch through the lowered sequence, in pieces the
 * scratch can hold. One upload and one pass over the nodes a piece; never
 * waits. */
#include "model/runner_internal.h"

#include <string.h>

/* The part [first, last) of a batch's tokens. */
typedef struct piece {
    int32_t first, last;
    int32_t row0, n_rows; /* rows of the batch that lie in it */
    int32_t n_seq;
    int32_t *q_start, *kv_len, *table_start; /* [n_seq (+ 1)] */
    folio_view tok, pos, slot, rows, copies, take;
    bool open; /* some of its tokens are drawn by the forward before */
    folio_attn_work work[FOLIO_MAX_PLANS];
} piece;

static void cut_piece(const folio_runner *r, const folio_batch *b, piece *p)
{
    int32_t ms = r->limits.max_seqs;
    p->q_start = r->piece;
    p->kv_len = p->q_start + ms + 1;
    p->table_start = p->kv_len + ms;
    p->n_seq = 0;
    p->q_start[0] = 0;
    p->table_start[0] = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        int32_t a = FOLIO_MAX(b->q_start[s], p->first);
        int32_t e = FOLIO_MIN(b->q_start[s + 1], p->last);
        if (e <= a)
            continue;
        int32_t i = p->n_seq++;
        p->kv_len[i] = b->kv_len[s] - (b->q_start[s + 1] - e);
        p->q_start[i + 1] = e - p->first;
        p->table_start[i + 1] =
            p->table_start[i] +
            (int32_t)folio_div_up(p->kv_len[i], r->limits.block_size);
    }
}

static folio_status put(folio_upload *u, const int32_t *src, size_t n,
                        folio_view *view)
{
    *view = (folio_view){0};
    if (n == 0)
        return FOLIO_OK;
    int32_t *dst = folio_upload_section(u, n, view);
    if (!dst)
        return FOLIO_E_INTERNAL; /* the bounds at open cover every batch */
    if (src)
        memcpy(dst, src, n * sizeof *dst);
    return FOLIO_OK;
}

/* One attention work list, in its final place of the upload. */
static folio_status put_plan(folio_runner *r, const piece *p, int w,
                             folio_attn_work *work)
{
    const folio_attn_plan_bounds *cap = &r->bound[w];
    folio_upload *u = &r->up;
    folio_attn_plan_counts n;
    int32_t *e, *m, *t;
    size_t mark = u->used;
    /* Build at the bounds, then close the gaps: lists are short as a rule. */
    FOLIO_RETURN_IF(put(u, NULL, (size_t)cap->entries * FOLIO_ATTN_ENTRY_INTS,
                        &work->entries));
    e = u->host + work->entries.offset / sizeof(int32_t);
    FOLIO_RETURN_IF(put(u, NULL, (size_t)cap->merges * FOLIO_ATTN_MERGE_INTS,
                        &work->merges));
    m = u->host + work->merges.offset / sizeof(int32_t);
    FOLIO_RETURN_IF(
        put(u, NULL, (size_t)cap->tiles * FOLIO_ATTN_TILE_INTS, &work->tiles));
    t = u->host + work->tiles.offset / sizeof(int32_t);
    FOLIO_RETURN_IF(folio_attn_plan_build(&r->plan[w], p->n_seq, p->q_start,
                                          p->kv_len, cap, e, m, t, &n));
    u->used = mark;
    FOLIO_RETURN_IF(put(u, NULL, (size_t)n.n_entries * FOLIO_ATTN_ENTRY_INTS,
                        &work->entries));
    int32_t *to;
    FOLIO_RETURN_IF(put(u, NULL, (size_t)n.n_merges * FOLIO_ATTN_MERGE_INTS,
                        &work->merges));
    if (n.n_merges) {
        to = u->host + work->merges.offset / sizeof(int32_t);
        memmove(to, m, (size_t)n.n_merges * FOLIO_ATTN_MERGE_INTS * sizeof *m);
    }
    FOLIO_RETURN_IF(
        put(u, NULL, (size_t)n.n_tiles * FOLIO_ATTN_TILE_INTS, &work->tiles));
    if (n.n_tiles) {
        to = u->host + work->tiles.offset / sizeof(int32_t);
        memmove(to, t, (size_t)n.n_tiles * FOLIO_ATTN_TILE_INTS * sizeof *t);
    }
    work->n_entries = n.n_entries;
    work->n_merges = n.n_merges;
    work->n_tiles = n.n_tiles;
    work->n_partials = n.n_partials;
    work->n_seq = p->n_seq;
    return FOLIO_OK;
}

static folio_status put_tables(folio_runner *r, const folio_batch *b,
                               const piece *p, folio_view *view)
{
    int32_t n = p->table_start[p->n_seq];
    FOLIO_RETURN_IF(put(&r->up, NULL, (size_t)n, view));
    if (n == 0)
        return FOLIO_OK;
    int32_t *dst = r->up.host + view->offset / sizeof(int32_t);
    int32_t i = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        int32_t a = FOLIO_MAX(b->q_start[s], p->first);
        int32_t e = FOLIO_MIN(b->q_start[s + 1], p->last);
        if (e <= a)
            continue;
        memcpy(dst + p->table_start[i], b->tables + b->table_start[s],
               (size_t)(p->table_start[i + 1] - p->table_start[i]) *
                   sizeof *dst);
        i++;
    }
    return FOLIO_OK;
}

/* Where in the upload's buffer each token of a piece is, if some are where
 * the forward before has drawn them. */
static folio_status put_take(folio_runner *r, const folio_batch *b,
                             const int32_t *open_row, piece *p)
{
    const int32_t at = (int32_t)(p->tok.offset / sizeof(int32_t));
    p->open = false;
    for (int32_t s = 0; open_row && s < b->n_seq; s++) {
        const int32_t t = b->q_start[s + 1] - 1;
        p->open |= t >= p->first && t < p->last && b->tok[t] == FOLIO_TOK_OPEN;
    }
    if (!p->open)
        return FOLIO_OK;
    FOLIO_RETURN_IF(put(&r->up, NULL, (size_t)(p->last - p->first), &p->take));
    int32_t *take = r->up.host + p->take.offset / sizeof(int32_t);
    for (int32_t i = 0; i < p->last - p->first; i++)
        take[i] = at + i;
    for (int32_t s = 0; s < b->n_seq; s++) {
        const int32_t t = b->q_start[s + 1] - 1;
        if (t >= p->first && t < p->last && b->tok[t] == FOLIO_TOK_OPEN)
            take[t - p->first] = (int32_t)r->draw.last_ids + open_row[s];
    }
    return FOLIO_OK;
}

static folio_status upload_piece(folio_runner *r, const folio_batch *b,
                                 const folio_draw *d, const int32_t *open_row,
                                 piece *p)
{
    folio_upload *u = &r->up;
    size_t n_tok = (size_t)(p->last - p->first);
    folio_view q_start, kv_len, table_start, tables;
    folio_upload_reset(u);
    FOLIO_RETURN_IF(put(u, b->tok + p->first, n_tok, &p->tok));
    FOLIO_RETURN_IF(put(u, b->pos + p->first, n_tok, &p->pos));
    FOLIO_RETURN_IF(put(u, b->slot + p->first, n_tok, &p->slot));
    FOLIO_RETURN_IF(put(u, NULL, (size_t)p->n_rows, &p->rows));
    if (p->n_rows) {
        int32_t *dst = u->host + p->rows.offset / sizeof(int32_t);
        for (int32_t i = 0; i < p->n_rows; i++)
            dst[i] = b->rows[p->row0 + i] - p->first;
    }
    p->copies = (folio_view){0};
    if (p->first == 0)
        FOLIO_RETURN_IF(put(u, b->copies, 2 * (size_t)b->n_copies, &p->copies));
    size_t ns = (size_t)p->n_seq;
    FOLIO_RETURN_IF(put(u, p->q_start, ns + 1, &q_start));
    FOLIO_RETURN_IF(put(u, p->kv_len, ns, &kv_len));
    FOLIO_RETURN_IF(put(u, p->table_start, ns + 1, &table_start));
    for (int32_t w = 0; w < r->low.n_plans; w++) {
        memset(&p->work[w], 0, sizeof p->work[w]);
        FOLIO_RETURN_IF(put_plan(r, p, w, &p->work[w]));
    }
    FOLIO_RETURN_IF(put_tables(r, b, p, &tables));
    for (int32_t w = 0; w < r->low.n_plans; w++) {
        p->work[w].q_start = q_start;
        p->work[w].kv_len = kv_len;
        p->work[w].table_start = table_start;
        p->work[w].tables = tables;
    }
    FOLIO_RETURN_IF(put_take(r, b, open_row, p));
    if (d && p->last == b->n_tok)
        FOLIO_RETURN_IF(folio_drawer_put(r, d, b->n_rows));
    return folio_upload_send(u, r->queue);
}

/* The piece's tokens are complete on the device. */
static folio_status run_take(folio_runner *r, piece *p)
{
    if (!p->open)
        return FOLIO_OK;
    /* Ids as rows of one number each, whose bits are moved as they are. */
    folio_gather_rows_args a = {.x = {r->up.buf, 0},
                                .idx = p->take,
                                .out = {r->draw.tok, 0},
                                .n_rows = p->last - p->first,
                                .dim = 1};
    p->tok = a.out;
    return folio_op_run(r->draw.take_op, r->queue, &a);
}

static folio_status run_copies(folio_runner *r, const folio_batch *b,
                               const piece *p)
{
    if (b->n_copies == 0 || p->first != 0)
        return FOLIO_OK;
    for (int32_t l = 0; l < r->kv.n_layers; l++) {
        folio_copy_blocks_args a = {
            .pairs = p->copies, .n_pairs = b->n_copies, .kv = r->kv.layer[l]};
        FOLIO_RETURN_IF(folio_op_run(r->copy_op, r->queue, &a));
    }
    return FOLIO_OK;
}

static folio_status tap(folio_runner *r, folio_view row, int32_t line)
{
    size_t bytes = (size_t)r->model->desc.dim * sizeof(float);
    return folio_queue_copy(
        r->queue, row, (folio_view){r->trace, (size_t)line * bytes}, bytes);
}

/* Every sequence has one token: all layers in one launch. */
static folio_status run_step(folio_runner *r, const piece *p)
{
    const int32_t n_tok = p->last - p->first;
    folio_node *embed = &r->low.plain.nodes[0];
    folio_step_args *a = &r->low.step_args;
    embed->a.embed.ids = p->tok;
    FOLIO_RETURN_IF(folio_op_run(embed->op[FOLIO_MANY], r->queue,
                                 folio_node_args(embed, n_tok)));
    a->pos = p->pos;
    a->slot = p->slot;
    a->n_tok = n_tok;
    for (int32_t i = 0; i < r->low.n_plans; i++)
        a->work[i] = p->work[i];
    return folio_op_run(r->low.step, r->queue, a);
}

static folio_status run_body(folio_runner *r, const piece *p, int32_t trace_tok)
{
    int32_t n_tok = p->last - p->first;
    int regime;
    if (r->low.step && trace_tok < 0 && n_tok <= r->low.most_step &&
        n_tok == p->n_seq)
        return run_step(r, p);
    folio_sequence *seq =
        folio_lowered_pick(&r->low, n_tok, trace_tok >= 0, &regime);
    bool here = trace_tok >= p->first && trace_tok < p->last;
    size_t row = (size_t)r->model->desc.dim * sizeof(float);
    for (int32_t i = 0; i < seq->first_head; i++) {
        folio_node *n = &seq->nodes[i];
        if (n->id == FOLIO_OP_EMBED) {
            n->a.embed.ids = p->tok;
        } else if (n->id == FOLIO_OP_ROPE_APPEND) {
            n->a.rope.pos = p->pos;
            n->a.rope.slot = p->slot;
        } else if (n->id == FOLIO_OP_QKV) {
            n->a.qkv.pos = p->pos;
            n->a.qkv.slot = p->slot;
        } else if (n->id == FOLIO_OP_ATTN) {
            n->a.attn.work = p->work[n->plan];
        }
        FOLIO_RETURN_IF(
            folio_op_run(n->op[regime], r->queue, folio_node_args(n, n_tok)));
        if (here && n->tap >= 0)
            FOLIO_RETURN_IF(tap(
                r,
                folio_view_at(r->low.x, (size_t)(trace_tok - p->first) * row),
                n->tap));
    }
    return FOLIO_OK;
}

/* The head over the piece's rows, as many at once as one logits buffer takes.
 */
static folio_status run_head(folio_runner *r, const folio_batch *b,
                             const piece *p, int32_t trace_tok)
{
    size_t logit_row = (size_t)r->model->desc.n_vocab * sizeof(float);
    size_t dim_row = (size_t)r->model->desc.dim * sizeof(float);
    for (int32_t done = 0; done < p->n_rows;) {
        int32_t at = p->row0 + done;
        int32_t buf = at / r->rows_per_buf, in = at % r->rows_per_buf;
        int32_t n_rows = FOLIO_MIN(p->n_rows - done, r->rows_per_buf - in);
        const folio_view idx =
            folio_view_at(p->rows, (size_t)done * sizeof(int32_t));
        const folio_view logits = {r->logits[buf], (size_t)in * logit_row};
        int regime;
        folio_sequence *seq =
            folio_lowered_pick(&r->low, n_rows, trace_tok >= 0, &regime);
        for (int32_t i = seq->first_head; i < seq->n_nodes; i++) {
            folio_node *n = &seq->nodes[i];
            if (n->id == FOLIO_OP_GATHER_ROWS) {
                n->a.gather.idx = idx;
            } else if (n->id == FOLIO_OP_LINEAR) {
                n->a.linear.y = logits;
            } else if (n->id == FOLIO_OP_NORM_LINEAR) {
                n->a.norm_linear.idx = idx;
                n->a.norm_linear.part[0].y = logits;
            }
            FOLIO_RETURN_IF(folio_op_run(n->op[regime], r->queue,
                                         folio_node_args(n, n_rows)));
            if (n->tap < 0 || trace_tok < 0)
                continue;
            for (int32_t j = 0; j < n_rows; j++)
                if (b->rows[at + j] == trace_tok)
                    FOLIO_RETURN_IF(
                        tap(r, folio_view_at(r->low.xr, (size_t)j * dim_row),
                            n->tap));
        }
        done += n_rows;
    }
    return FOLIO_OK;
}

static folio_status check_trace(const folio_runner *r, const folio_batch *b,
                                int32_t trace_tok)
{
    const folio_log *log = &r->model->log;
    if (trace_tok == -1)
        return FOLIO_OK;
    if (!r->trace)
        return folio_fail(log, FOLIO_E_INVAL,
                          "a trace was asked of a runner opened without it");
    for (int32_t i = 0; i < b->n_rows; i++)
        if (b->rows[i] == trace_tok)
            return FOLIO_OK;
    return folio_fail(log, FOLIO_E_INVAL,
                      "trace: token %d is not among the %d rows", trace_tok,
                      b->n_rows);
}

static folio_status forward(folio_runner *r, const folio_batch *b,
                            int32_t trace_tok, const folio_draw *d,
                            const int32_t *open_row)
{
    piece p = {0};
    folio_batch_limits limits = r->limits;
    limits.open_row = open_row;
    limits.n_open = r->draw.last_rows;
    FOLIO_RETURN_IF(
        folio_batch_check(b, &limits, r->slot_bits, &r->model->log));
    FOLIO_RETURN_IF(check_trace(r, b, trace_tok));
    /* A failure below leaves no result to read. */
    r->last_rows = -1;
    r->traced = false;
    r->upload_ns = 0;
    while (p.last < b->n_tok) {
        p.first = p.last;
        p.last = FOLIO_MIN(b->n_tok, p.first + r->low.step_tok);
        p.row0 += p.n_rows;
        p.n_rows = 0;
        while (p.row0 + p.n_rows < b->n_rows &&
               b->rows[p.row0 + p.n_rows] < p.last)
            p.n_rows++;
        cut_piece(r, b, &p);
        const uint64_t t0 = folio_clock_ns();
        FOLIO_RETURN_IF(upload_piece(r, b, d, open_row, &p));
        r->upload_ns += folio_clock_ns() - t0;
        FOLIO_RETURN_IF(run_take(r, &p));
        FOLIO_RETURN_IF(run_copies(r, b, &p));
        FOLIO_RETURN_IF(run_body(r, &p, trace_tok));
        FOLIO_RETURN_IF(run_head(r, b, &p, trace_tok));
    }
    r->draw.last_rows = 0;
    if (d)
        FOLIO_RETURN_IF(folio_drawer_run(r, d, b->n_rows));
    r->last_rows = b->n_rows;
    r->traced = trace_tok >= 0;
    r->n_tokens += (uint64_t)b->n_tok;
    r->n_forwards++;
    return FOLIO_OK;
}

folio_status folio_runner_forward(folio_runner *r, const folio_batch *b,
                                  int32_t trace_tok)
{
    return r && b ? forward(r, b, trace_tok, NULL, NULL) : FOLIO_E_INVAL;
}

folio_status folio_runner_forward_draw(folio_runner *r, const folio_batch *b,
                                       const folio_draw *d,
                                       const int32_t *open_row)
{
    return forward(r, b, -1, d, open_row);
}

folio_status folio_runner_read(folio_runner *r, float *out)
{
    if (!r || !out)
        return FOLIO_E_INVAL;
    if (r->last_rows < 0)
        return folio_fail(&r->model->log, FOLIO_E_INVAL,
                          "read: there is no finished forward");
    return folio_runner_read_rows(r, 0, r->last_rows, out);
}

folio_status folio_runner_read_rows(folio_runner *r, int32_t first, int32_t n,
                                    float *out)
{
    const size_t n_vocab = (size_t)r->model->desc.n_vocab;
    if (first < 0 || n < 0 || n > r->last_rows - first)
        return folio_fail(&r->model->log, FOLIO_E_RANGE,
                          "read: rows %d to %d + %d of %d", first, first, n,
                          r->last_rows);
    for (int32_t done = 0; done < n;) {
        const int32_t at = first + done, in = at % r->rows_per_buf;
        const int32_t k = FOLIO_MIN(r->rows_per_buf - in, n - done);
        const folio_view from = {r->logits[at / r->rows_per_buf],
                                 (size_t)in * n_vocab * sizeof *out};
        FOLIO_RETURN_IF(folio_queue_read(r->queue, from,
                                         out + (size_t)done * n_vocab,
                                         (size_t)k * n_vocab * sizeof *out));
        done += k;
    }
    return FOLIO_OK;
}

folio_status folio_runner_read_top(folio_runner *r, int32_t k, int32_t *ids,
                                   float *values, int32_t *n_nan)
{
    if (!r || !ids || !values || !n_nan)
        return FOLIO_E_INVAL;
    const folio_log *log = &r->model->log;
    if (r->last_rows < 0)
        return folio_fail(log, FOLIO_E_INVAL,
                          "read_top: there is no finished forward");
    if (k < 1 || k > FOLIO_TOP_LARGE)
        return folio_fail(log, FOLIO_E_RANGE, "read_top: k is %d, not 1 to %d",
                          k, FOLIO_TOP_LARGE);
    int which = k == FOLIO_TOP_SMALL ? 0 : 1;
    size_t kk = which ? FOLIO_TOP_LARGE : FOLIO_TOP_SMALL;
    size_t kb = (size_t)k * sizeof(int32_t);
    for (int32_t at = 0; at < r->last_rows; at += r->rows_per_buf) {
        size_t n = (size_t)FOLIO_MIN(r->rows_per_buf, r->last_rows - at);
        size_t list = n * kk * sizeof(int32_t);
        folio_topk_args a = {
            .x = {r->logits[at / r->rows_per_buf], 0},
            .ids = {r->top, 0},
            .values = {r->top, list},
            .n_nan = {r->top, 2 * list},
            .n_rows = (int32_t)n,
            .n_vocab = r->model->desc.n_vocab,
            .k = (int32_t)kk,
            .scratch = {r->top_scratch, 0},
        };
        FOLIO_RETURN_IF(folio_op_run(r->top_op[which], r->queue, &a));
        FOLIO_RETURN_IF(folio_queue_read(r->queue, a.ids, r->top_host,
                                         2 * list + n * sizeof(int32_t)));
        for (size_t i = 0; i < n; i++) {
            size_t row = (size_t)at + i;
            memcpy(ids + row * (size_t)k, r->top_host + i * kk, kb);
            memcpy(values + row * (size_t)k, r->top_host + (n + i) * kk, kb);
            n_nan[row] = r->top_host[2 * n * kk + i];
        }
    }
    return FOLIO_OK;
}

folio_status folio_runner_read_trace(folio_runner *r, float *out)
{
    if (!r || !out)
        return FOLIO_E_INVAL;
    if (!r->traced)
        return folio_fail(&r->model->log, FOLIO_E_INVAL,
                          "read_trace: the last forward was not traced");
    size_t n = ((size_t)r->model->desc.n_layers + 2) *
               (size_t)r->model->desc.dim * sizeof *out;
    return folio_queue_read(r->queue, (folio_view){r->trace, 0}, out, n);
}
