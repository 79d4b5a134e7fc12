/* mem/weights.c: see weights.h. */
#include "mem/weights.h"

#define TENSOR_ALIGN 256
#define PIECE_BYTES  ((size_t)8 << 20)
/* Bytes that one thread packs at a time. */
#define GRAIN_BYTES ((size_t)128 << 10)

typedef struct entry {
    folio_weight w;
    const uint8_t *data;
    float *owned; /* a vector converted to f32 */
    folio_weight_view *views;
    int *view_buf; /* buffer number of each view, until the load */
} entry;

struct folio_weights {
    folio_device *dev;
    entry **entries; /* pointers, so that folio_weight addresses are stable */
    size_t n, cap;
    folio_buf **buf;
    size_t *buf_bytes;
    size_t n_buf;
    uint64_t bytes;
    bool loaded, packs;
    folio_pack_hints hints;
};

folio_status folio_weights_open(folio_device *dev, folio_weights **out)
{
    folio_weights *w = folio_calloc(1, sizeof *w);
    if (!w)
        return FOLIO_E_NOMEM;
    w->dev = folio_device_retain(dev);
    *out = w;
    return FOLIO_OK;
}

void folio_weights_close(folio_weights **pw)
{
    if (!pw || !*pw)
        return;
    folio_weights *w = *pw;
    for (size_t b = 0; b < w->n_buf; b++)
        folio_buf_close(&w->buf[b]);
    for (size_t i = 0; i < w->n; i++) {
        FOLIO_FREE(w->entries[i]->views);
        FOLIO_FREE(w->entries[i]->view_buf);
        FOLIO_FREE(w->entries[i]->owned);
        FOLIO_FREE(w->entries[i]);
    }
    FOLIO_FREE(w->entries);
    FOLIO_FREE(w->buf);
    FOLIO_FREE(w->buf_bytes);
    folio_device_close(&w->dev);
    FOLIO_FREE(*pw);
}

void folio_weights_pack_for(folio_weights *w, const folio_pack_hints *hints)
{
    w->packs = true;
    w->hints = *hints;
}

/* As the device likes it, where at least one group fits in a buffer. */
static folio_packing choose_packing(const folio_weights *w,
                                    const folio_weight_source *src)
{
    if (!w->packs)
        return FOLIO_PACK_RAW;
    folio_packing p =
        folio_pack_choose(w->dev, src->type, src->rows, src->cols, &w->hints);
    size_t group = folio_pack_group_bytes(p, src->type, src->cols);
    return group <= folio_device_max_alloc(w->dev) ? p : FOLIO_PACK_RAW;
}

static folio_status add_entry(folio_weights *w, const folio_weight_source *src,
                              entry **out)
{
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 64;
        entry **more = folio_realloc(w->entries, cap, sizeof *more);
        if (!more)
            return FOLIO_E_NOMEM;
        w->entries = more;
        w->cap = cap;
    }
    entry *e = folio_calloc(1, sizeof *e);
    if (!e)
        return FOLIO_E_NOMEM;
    e->w.type = src->type;
    e->w.packing = FOLIO_PACK_RAW;
    e->w.rows = src->rows;
    e->w.cols = src->cols;
    e->data = src->data;
    w->entries[w->n++] = e;
    *out = e;
    return FOLIO_OK;
}

folio_status folio_weights_add(folio_weights *w, const folio_weight_source *src,
                               const folio_weight **out)
{
    if (w->loaded)
        return FOLIO_E_INVAL;
    if (!folio_dequant_knows(src->type)) {
        const folio_type_info *ti = folio_type_find(src->type);
        return folio_fail(folio_device_log(w->dev), FOLIO_E_UNSUPPORTED,
                          "tensor %s has type %s, which no matrix product "
                          "here reads",
                          src->name, ti ? ti->name : "unknown");
    }
    for (size_t i = 0; i < w->n; i++)
        if (w->entries[i]->data == src->data && !w->entries[i]->owned &&
            w->entries[i]->w.rows == src->rows) {
            *out = &w->entries[i]->w;
            return FOLIO_OK;
        }
    entry *e;
    FOLIO_RETURN_IF(add_entry(w, src, &e));
    e->w.packing = choose_packing(w, src);
    *out = &e->w;
    return FOLIO_OK;
}

folio_status folio_weights_add_vector(folio_weights *w,
                                      const folio_weight_source *src,
                                      const folio_weight **out)
{
    if (w->loaded || src->rows != 1)
        return FOLIO_E_INVAL;
    if (!folio_dequant_knows(src->type)) {
        const folio_type_info *ti = folio_type_find(src->type);
        return folio_fail(folio_device_log(w->dev), FOLIO_E_UNSUPPORTED,
                          "tensor %s has type %s, which does not hold numbers "
                          "this build can read",
                          src->name, ti ? ti->name : "unknown");
    }
    entry *e;
    FOLIO_RETURN_IF(add_entry(w, src, &e));
    /* Always converted: file data may lie at any alignment. */
    e->owned = folio_calloc((size_t)src->cols, sizeof(float));
    if (!e->owned)
        return FOLIO_E_NOMEM;
    folio_dequant(src->type, src->data, src->cols, e->owned);
    e->data = (const uint8_t *)e->owned;
    e->w.type = FOLIO_TYPE_F32;
    *out = &e->w;
    return FOLIO_OK;
}

static folio_status new_buffer(folio_weights *w)
{
    folio_buf **b = folio_realloc(w->buf, w->n_buf + 1, sizeof *b);
    if (!b)
        return FOLIO_E_NOMEM;
    w->buf = b;
    size_t *s = folio_realloc(w->buf_bytes, w->n_buf + 1, sizeof *s);
    if (!s)
        return FOLIO_E_NOMEM;
    w->buf_bytes = s;
    w->buf[w->n_buf] = NULL;
    w->buf_bytes[w->n_buf++] = 0;
    return FOLIO_OK;
}

static folio_status add_view(entry *e, int buf, size_t offset, int64_t first,
                             int64_t rows)
{
    size_t n = (size_t)e->w.n_views;
    folio_weight_view *v = folio_realloc(e->views, n + 1, sizeof *v);
    if (!v)
        return FOLIO_E_NOMEM;
    e->views = v;
    int *b = folio_realloc(e->view_buf, n + 1, sizeof *b);
    if (!b)
        return FOLIO_E_NOMEM;
    e->view_buf = b;
    e->views[n] = (folio_weight_view){{NULL, offset}, first, rows};
    e->view_buf[n] = buf;
    e->w.n_views++;
    e->w.views = e->views;
    return FOLIO_OK;
}

/* The host device reads a tensor in the file's form where the file is. */
static bool is_mapped(const folio_weights *w, const entry *e)
{
    return folio_device_is_host(w->dev) && e->w.packing == FOLIO_PACK_RAW;
}

/* Places every tensor that is copied: whole where a buffer takes it, else in
 * runs of groups of rows. */
static folio_status place_all(folio_weights *w)
{
    size_t limit = folio_device_max_alloc(w->dev);
    for (size_t i = 0; i < w->n; i++) {
        entry *e = w->entries[i];
        if (is_mapped(w, e))
            continue;
        size_t unit =
            folio_pack_group_bytes(e->w.packing, e->w.type, e->w.cols);
        int64_t group = folio_pack_group(e->w.packing);
        if (unit == 0 || unit > limit)
            return folio_fail(folio_device_log(w->dev), FOLIO_E_TOO_LARGE,
                              "a weight row needs %zu bytes, the device "
                              "allows %zu per buffer",
                              unit, limit);
        int64_t first = 0;
        while (first < e->w.rows) {
            size_t n = (size_t)folio_div_up(e->w.rows - first, group);
            size_t want = n * unit;
            size_t used = w->n_buf ? w->buf_bytes[w->n_buf - 1] : limit;
            size_t at = folio_align_up(used, TENSOR_ALIGN);
            /* A tensor that fits in one buffer is never split. */
            bool whole = first == 0 && want <= limit;
            size_t room = at < limit ? limit - at : 0;
            if (w->n_buf == 0 || room < unit || (whole && room < want)) {
                FOLIO_RETURN_IF(new_buffer(w));
                at = 0;
                room = limit;
            }
            n = FOLIO_MIN(n, room / unit);
            int64_t rows = FOLIO_MIN((int64_t)n * group, e->w.rows - first);
            FOLIO_RETURN_IF(add_view(e, (int)w->n_buf - 1, at, first, rows));
            w->buf_bytes[w->n_buf - 1] = at + n * unit;
            first += rows;
        }
    }
    return FOLIO_OK;
}

/* Buffers of those that are not copied, behind the others'. */
static folio_status map_rest(folio_weights *w)
{
    for (size_t i = 0; i < w->n; i++) {
        entry *e = w->entries[i];
        if (!is_mapped(w, e))
            continue;
        size_t row = folio_type_row_bytes(e->w.type, (uint64_t)e->w.cols);
        size_t bytes = (size_t)e->w.rows * row;
        FOLIO_RETURN_IF(new_buffer(w));
        /* Ops never write to weights. */
        FOLIO_RETURN_IF(folio_buf_wrap_host(w->dev, (void *)(uintptr_t)e->data,
                                            bytes, &w->buf[w->n_buf - 1]));
        FOLIO_RETURN_IF(add_view(e, (int)w->n_buf - 1, 0, 0, e->w.rows));
        e->views[0].view.buf = w->buf[w->n_buf - 1];
        w->bytes += bytes;
    }
    return FOLIO_OK;
}

/* ---- load ------------------------------------------------------------------
 */

/* What a load holds: the queue, and where matrices are packed on their way. */
typedef struct load {
    folio_queue *q;
    folio_thread_pool *pool;
    uint8_t *piece;
    folio_weights_progress progress;
    void *user;
    uint64_t done, total;
} load;

/* Groups of one piece of a matrix, for the threads. */
typedef struct pack_job {
    const folio_weight *w;
    const uint8_t *src; /* the file's rows, from the piece's first */
    int64_t rows;
    uint8_t *dst;
} pack_job;

static void pack_groups(void *user, int64_t first, int64_t last, int thread)
{
    const pack_job *j = user;
    (void)thread;
    int64_t group = folio_pack_group(j->w->packing);
    size_t row = folio_type_row_bytes(j->w->type, (uint64_t)j->w->cols);
    size_t unit = folio_pack_group_bytes(j->w->packing, j->w->type, j->w->cols);
    int64_t at = first * group, end = FOLIO_MIN(last * group, j->rows);
    folio_pack_rows(j->w->packing, j->w->type, j->w->cols,
                    j->src + (size_t)at * row, end - at,
                    j->dst + (size_t)first * unit);
}

static folio_status send(load *l, folio_view to, const uint8_t *from,
                         size_t bytes)
{
    FOLIO_RETURN_IF(folio_queue_write(l->q, to, from, bytes));
    l->done += bytes;
    return l->progress && l->progress(l->user, l->done, l->total)
               ? FOLIO_E_CANCELED
               : FOLIO_OK;
}

/* The rows of one view, in pieces of whole groups. */
static folio_status upload_packed(load *l, const entry *e,
                                  const folio_weight_view *v)
{
    const folio_weight *w = &e->w;
    int64_t group = folio_pack_group(w->packing);
    size_t row = folio_type_row_bytes(w->type, (uint64_t)w->cols);
    size_t unit = folio_pack_group_bytes(w->packing, w->type, w->cols);
    int64_t n_groups = folio_div_up(v->rows, group);
    int64_t most = (int64_t)FOLIO_MAX(PIECE_BYTES / unit, 1);
    int64_t grain = (int64_t)FOLIO_MAX(GRAIN_BYTES / unit, 1);
    for (int64_t first = 0; first < n_groups; first += most) {
        int64_t n = FOLIO_MIN(n_groups - first, most);
        int64_t at = first * group;
        pack_job job = {.w = w,
                        .src = e->data + (size_t)(v->first_row + at) * row,
                        .rows = FOLIO_MIN(n * group, v->rows - at),
                        .dst = l->piece};
        folio_parallel_for(l->pool, n, grain, pack_groups, &job);
        FOLIO_RETURN_IF(send(l, folio_view_at(v->view, (size_t)first * unit),
                             l->piece, (size_t)n * unit));
    }
    return FOLIO_OK;
}

static folio_status upload_raw(load *l, const entry *e,
                               const folio_weight_view *v)
{
    size_t row = folio_type_row_bytes(e->w.type, (uint64_t)e->w.cols);
    const uint8_t *src = e->data + (size_t)v->first_row * row;
    size_t bytes = (size_t)v->rows * row;
    for (size_t at = 0; at < bytes; at += PIECE_BYTES)
        FOLIO_RETURN_IF(send(l, folio_view_at(v->view, at), src + at,
                             FOLIO_MIN(PIECE_BYTES, bytes - at)));
    return FOLIO_OK;
}

static folio_status upload(folio_weights *w, load *l, entry *e)
{
    for (int32_t i = 0; i < e->w.n_views; i++) {
        folio_weight_view *v = &e->views[i];
        v->view.buf = w->buf[e->view_buf[i]];
        if (e->w.packing == FOLIO_PACK_RAW)
            FOLIO_RETURN_IF(upload_raw(l, e, v));
        else
            FOLIO_RETURN_IF(upload_packed(l, e, v));
    }
    return FOLIO_OK;
}

/* Totals, and what packing needs if any matrix is packed. */
static folio_status prepare(const folio_weights *w, load *l)
{
    size_t piece = 0;
    for (size_t i = 0; i < w->n; i++) {
        const folio_weight *m = &w->entries[i]->w;
        if (is_mapped(w, w->entries[i]))
            continue;
        l->total += folio_pack_bytes(m->packing, m->type, m->rows, m->cols);
        if (m->packing != FOLIO_PACK_RAW)
            piece = FOLIO_MAX(
                piece, folio_pack_group_bytes(m->packing, m->type, m->cols));
    }
    if (piece == 0)
        return FOLIO_OK;
    l->piece = folio_calloc(FOLIO_MAX(piece, PIECE_BYTES), 1);
    if (!l->piece)
        return FOLIO_E_NOMEM;
    return folio_thread_pool_open(0, &l->pool);
}

folio_status folio_weights_load(folio_weights *w,
                                folio_weights_progress progress, void *user)
{
    folio_status st;
    load l = {.progress = progress, .user = user};
    if (w->loaded)
        return FOLIO_E_INVAL;
    w->loaded = true;
    if (progress && progress(user, 0, 1))
        return FOLIO_E_CANCELED;
    FOLIO_RETURN_IF(place_all(w));
    for (size_t b = 0; b < w->n_buf; b++) {
        FOLIO_RETURN_IF(folio_buf_open(w->dev, w->buf_bytes[b], &w->buf[b]));
        w->bytes += w->buf_bytes[b];
    }
    FOLIO_RETURN_IF(map_rest(w));
    FOLIO_TRY(prepare(w, &l));
    FOLIO_TRY(folio_queue_open(w->dev, &l.q));
    for (size_t i = 0; i < w->n; i++)
        if (!is_mapped(w, w->entries[i]))
            FOLIO_TRY(upload(w, &l, w->entries[i]));
    if (l.total == 0 && progress && progress(user, w->bytes, w->bytes))
        FOLIO_TRY(FOLIO_E_CANCELED);
    FOLIO_TRY(folio_queue_finish(l.q));
fail:
    folio_queue_close(&l.q);
    folio_thread_pool_close(&l.pool);
    FOLIO_FREE(l.piece);
    return st;
}

uint64_t folio_weights_bytes(const folio_weights *w)
{
    return w->bytes;
}
