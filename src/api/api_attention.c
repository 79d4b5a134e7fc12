/* api/api_attention.c: the handle of tier 1: two ops, the step's integers, and
 * the checks that only the host can make before something is enqueued. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <folio/attention.h>

#include "mem/upload.h"
#include "ops/attn_plan.h"
#include "ops/ops.h"

/* Who was seen in a plan: a mark per block, valid where it is of this plan.
 * Marks of a plan are first_mark + sequence. */
typedef struct block_marks {
    uint32_t *holder; /* last sequence whose table had the block */
    uint32_t *writer; /* last sequence that writes to the block */
    uint32_t first;
} block_marks;

struct folio_attn {
    folio_device *dev;
    folio_attn_params prm;
    folio_kv_ref kv; /* without planes */
    folio_op *attn, *append;
    folio_attn_plan_params plan;
    folio_attn_plan_bounds cap;
    int32_t *entries, *merges, *tiles; /* as bounded by cap */
    block_marks marks;
    folio_upload up;
    folio_buf *scratch;
    bool planned;
    folio_attn_work work;
    folio_view slots;
    int32_t n_tok;
};

void folio_attn_params_default(folio_attn_params *p)
{
    if (!p)
        return;
    *p = (folio_attn_params){.size = sizeof *p,
                             .block_size = 16,
                             .max_tok = 512,
                             .max_seqs = 1,
                             .kv_type = FOLIO_KV_F16,
                             .deterministic = -1};
}

/* ---- open ------------------------------------------------------------------
 */

static folio_status check_params(const folio_log *log,
                                 const folio_attn_params *p)
{
    const struct {
        const char *name;
        int64_t value, least;
    } rule[] = {{"heads", p->heads, 1},
                {"kv_heads", p->kv_heads, 1},
                {"head_dim", p->head_dim, 1},
                {"block_size", p->block_size, 1},
                {"n_blocks", p->n_blocks, 1},
                {"max_tok", p->max_tok, 1},
                {"max_seqs", p->max_seqs, 1},
                {"max_kv", p->max_kv, 1},
                {"xk", p->xk, 0},
                {"yk", p->yk, 0},
                {"xv", p->xv, 0},
                {"yv", p->yv, 0},
                {"window", p->window, 0}};
    if (p->size != sizeof *p)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_attn_params.size is %zu, not %zu", p->size,
                          sizeof *p);
    for (size_t i = 0; i < FOLIO_COUNT(rule); i++) {
        if (rule[i].value < rule[i].least)
            return folio_fail(log, FOLIO_E_INVAL,
                              "folio_attn_params.%s is %" PRId64
                              ", less than %" PRId64,
                              rule[i].name, rule[i].value, rule[i].least);
    }
    if (p->heads % p->kv_heads != 0)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_attn_params.heads %d is not a multiple of "
                          "kv_heads %d",
                          p->heads, p->kv_heads);
    /* Widths of q and of k must be whole in 32 bits; nothing else overflows. */
    if ((int64_t)p->heads * p->head_dim > INT32_MAX)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_attn_params.heads %d * head_dim %d is above "
                          "%d",
                          p->heads, p->head_dim, INT32_MAX);
    if (!(p->softcap >= 0.0f) || !isfinite(p->softcap) || !isfinite(p->scale))
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_attn_params.softcap is %g, scale %g",
                          (double)p->softcap, (double)p->scale);
    if (p->deterministic < -1 || p->deterministic > 1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_attn_params.deterministic is %d, not -1, 0 "
                          "or 1",
                          p->deterministic);
    int64_t pool = (int64_t)p->n_blocks * p->block_size;
    if (pool <= INT32_MAX && p->max_kv > pool)
        return folio_fail(log, FOLIO_E_TOO_LARGE,
                          "folio_attn_params.max_kv %d is above the %" PRId64
                          " slots of the pool",
                          p->max_kv, pool);
    return FOLIO_OK;
}

static folio_kv_layout choose_layout(const folio_device *dev,
                                     const folio_attn_params *p)
{
    folio_kv_layout l = folio_kv_layout_best(dev, p->head_dim, p->block_size);
    l.xk = p->xk ? p->xk : l.xk;
    l.yk = p->yk ? p->yk : l.yk;
    l.xv = p->xv ? p->xv : l.xv;
    l.yv = p->yv ? p->yv : l.yv;
    return folio_kv_layout_fit(l, p->head_dim, p->block_size);
}

static folio_attn_args attn_args(const folio_attn *a)
{
    const folio_attn_params *p = &a->prm;
    folio_attn_args args = {.q_stride = p->heads * p->head_dim,
                            .out_stride = p->heads * p->head_dim,
                            .heads = p->heads,
                            .window = p->window,
                            .scale = p->scale,
                            .softcap = p->softcap,
                            .kv = a->kv};
    return args;
}

static folio_rope_append_args append_args(const folio_attn *a)
{
    int32_t width = a->kv.kv_heads * a->kv.head_dim;
    folio_rope_append_args args = {
        .k_stride = width, .v_stride = width, .kv = a->kv};
    return args;
}

static folio_status open_ops(folio_attn *a)
{
    folio_op_params prm = {.deterministic = a->prm.deterministic != 0};
    folio_attn_args attn = attn_args(a);
    folio_rope_append_args append = append_args(a);
    attn.n_tok = append.n_tok = a->prm.max_tok;
    attn.work.n_seq = a->prm.max_seqs;
    attn.work.max_kv = a->prm.max_kv;
    FOLIO_RETURN_IF(
        folio_op_open(a->dev, FOLIO_OP_ATTN, &prm, &attn, &a->attn));
    return folio_op_open(a->dev, FOLIO_OP_ROPE_APPEND, &prm, &append,
                         &a->append);
}

static int32_t *ints(const folio_log *log, size_t n, size_t each,
                     folio_status *st)
{
    int32_t *p = NULL;
    if (*st == FOLIO_OK && folio_mul_size(n, each, &n))
        p = folio_calloc(n, sizeof *p);
    if (*st == FOLIO_OK && !p)
        *st = folio_fail(log, FOLIO_E_NOMEM,
                         "attention: no memory for %zu integers", n);
    return p;
}

/* What a step needs at most: work lists, marks, the upload, partials. */
static folio_status open_memory(folio_attn *a)
{
    const folio_attn_params *p = &a->prm;
    const folio_log *log = folio_device_log(a->dev);
    folio_attn_plan_params_of(a->attn, &a->plan);
    folio_status st = folio_attn_plan_bound(&a->plan, p->max_tok, p->max_seqs,
                                            p->max_kv, &a->cap);
    if (st != FOLIO_OK)
        return folio_fail(log, st,
                          "attention: work lists of %d tokens, %d sequences, "
                          "%d keys are too long",
                          p->max_tok, p->max_seqs, p->max_kv);
    size_t n_blocks = (size_t)p->n_blocks;
    a->entries = ints(log, (size_t)a->cap.entries, FOLIO_ATTN_ENTRY_INTS, &st);
    a->merges = ints(log, (size_t)a->cap.merges, FOLIO_ATTN_MERGE_INTS, &st);
    a->tiles = ints(log, (size_t)a->cap.tiles, FOLIO_ATTN_TILE_INTS, &st);
    a->marks.holder = (uint32_t *)ints(log, n_blocks, 1, &st);
    a->marks.writer = (uint32_t *)ints(log, n_blocks, 1, &st);
    a->marks.first = 1;
    if (st != FOLIO_OK)
        return st;
    size_t seqs = (size_t)p->max_seqs, tok = (size_t)p->max_tok, tables;
    if (!folio_mul_size(seqs, (size_t)folio_div_up(p->max_kv, p->block_size),
                        &tables) ||
        tables > SIZE_MAX / 64)
        tables = SIZE_MAX / 64;
    /* Eight sections, each moved up to 16 bytes. */
    size_t n = 3 * (seqs + 1) + tok + tables +
               (size_t)a->cap.entries * FOLIO_ATTN_ENTRY_INTS +
               (size_t)a->cap.merges * FOLIO_ATTN_MERGE_INTS +
               (size_t)a->cap.tiles * FOLIO_ATTN_TILE_INTS + 8 * 4;
    st = folio_upload_open(&a->up, a->dev, n);
    if (st != FOLIO_OK)
        return folio_fail(log, st,
                          "attention: no room for the %zu integers that a step "
                          "of %d sequences of %d keys can need",
                          n, p->max_seqs, p->max_kv);
    size_t bytes = folio_op_scratch_bytes(a->attn);
    return bytes > 0 ? folio_buf_open(a->dev, bytes, &a->scratch) : FOLIO_OK;
}

folio_status folio_attn_open(folio_device *dev, const folio_attn_params *p,
                             folio_attn **out)
{
    folio_status st = FOLIO_OK;
    folio_attn *a = NULL;
    if (!dev)
        return FOLIO_E_INVAL;
    const folio_log *log = folio_device_log(dev);
    if (!p || !out)
        return folio_fail(log, FOLIO_E_INVAL, "folio_attn_open: %s is NULL",
                          p ? "out" : "p");
    FOLIO_RETURN_IF(check_params(log, p));
    a = folio_calloc(1, sizeof *a);
    if (!a)
        return folio_fail(log, FOLIO_E_NOMEM,
                          "no memory for an attention handle");
    a->dev = folio_device_retain(dev);
    a->prm = *p;
    /* No step can have more tokens: each has a slot of its own. */
    const int64_t most = FOLIO_MIN((int64_t)p->n_blocks * p->block_size,
                                   (int64_t)p->max_seqs * p->max_kv);
    a->prm.max_tok = (int32_t)FOLIO_MIN(p->max_tok, most);
    if (p->scale == 0)
        a->prm.scale = 1.0f / sqrtf((float)p->head_dim);
    if (p->deterministic < 0) {
        folio_device_kind kind = folio_device_get_kind(dev);
        a->prm.deterministic =
            kind == FOLIO_DEVICE_HOST || kind == FOLIO_DEVICE_CPU;
    }
    a->kv = (folio_kv_ref){.type = p->kv_type,
                           .layout = choose_layout(dev, p),
                           .n_blocks = p->n_blocks,
                           .block_size = p->block_size,
                           .kv_heads = p->kv_heads,
                           .head_dim = p->head_dim};
    FOLIO_TRY(open_ops(a));
    FOLIO_TRY(open_memory(a));
    *out = a;
    return FOLIO_OK;
fail:
    folio_attn_close(&a);
    return st;
}

void folio_attn_close(folio_attn **attn)
{
    if (!attn || !*attn)
        return;
    folio_attn *a = *attn;
    folio_buf_close(&a->scratch);
    folio_upload_fini(&a->up);
    free(a->marks.holder);
    free(a->marks.writer);
    free(a->entries);
    free(a->merges);
    free(a->tiles);
    folio_op_close(&a->append);
    folio_op_close(&a->attn);
    folio_device_close(&a->dev);
    free(a);
    *attn = NULL;
}

void folio_attn_get_layout(const folio_attn *a, int32_t *xk, int32_t *yk,
                           int32_t *xv, int32_t *yv, size_t *block_bytes)
{
    if (!a)
        return;
    const folio_kv_layout *l = &a->kv.layout;
    int32_t *to[4] = {xk, yk, xv, yv};
    const int32_t from[4] = {l->xk, l->yk, l->xv, l->yv};
    for (int i = 0; i < 4; i++)
        if (to[i])
            *to[i] = from[i];
    if (block_bytes)
        *block_bytes = folio_kv_block_bytes(&a->kv);
}

const char *folio_attn_variant(const folio_attn *a)
{
    return a ? folio_op_variant_name(a->attn) : "";
}

/* ---- plan ------------------------------------------------------------------
 */

#define FAIL(a, st, ...) folio_fail(folio_device_log((a)->dev), st, __VA_ARGS__)

/* Lengths: everything but the contents of tables and slots. */
static folio_status check_lengths(const folio_attn *a,
                                  const folio_attn_batch *b)
{
    const folio_attn_params *p = &a->prm;
    if (b->n_seq < 0)
        return FAIL(a, FOLIO_E_INVAL, "batch.n_seq is %d", b->n_seq);
    if (b->n_seq > p->max_seqs)
        return FAIL(a, FOLIO_E_TOO_LARGE, "batch.n_seq %d is above max_seqs %d",
                    b->n_seq, p->max_seqs);
    if (b->n_seq == 0)
        return FOLIO_OK;
    if (!b->q_start || !b->kv_len || !b->table_start)
        return FAIL(a, FOLIO_E_INVAL, "batch.%s is NULL",
                    !b->q_start  ? "q_start"
                    : !b->kv_len ? "kv_len"
                                 : "table_start");
    if (b->q_start[0] != 0)
        return FAIL(a, FOLIO_E_INVAL, "batch.q_start[0] is %d, not 0",
                    b->q_start[0]);
    if (b->table_start[0] < 0)
        return FAIL(a, FOLIO_E_INVAL, "batch.table_start[0] is %d, less than 0",
                    b->table_start[0]);
    for (int32_t s = 0; s < b->n_seq; s++) {
        if (b->q_start[s + 1] < b->q_start[s])
            return FAIL(a, FOLIO_E_INVAL,
                        "batch.q_start[%d] is %d, less than %d before it",
                        s + 1, b->q_start[s + 1], b->q_start[s]);
        int32_t n_new = b->q_start[s + 1] - b->q_start[s];
        if (b->kv_len[s] < n_new)
            return FAIL(a, FOLIO_E_INVAL,
                        "batch.kv_len[%d] is %d, shorter than the %d new "
                        "tokens of the sequence",
                        s, b->kv_len[s], n_new);
        if (b->kv_len[s] > p->max_kv)
            return FAIL(a, FOLIO_E_TOO_LARGE,
                        "batch.kv_len[%d] is %d, above max_kv %d", s,
                        b->kv_len[s], p->max_kv);
        int64_t need = folio_div_up(b->kv_len[s], p->block_size);
        int64_t have = (int64_t)b->table_start[s + 1] - b->table_start[s];
        if (have < need)
            return FAIL(a, FOLIO_E_INVAL,
                        "the table of sequence %d has %" PRId64
                        " blocks, kv_len %d needs %" PRId64,
                        s, have, b->kv_len[s], need);
    }
    if (b->q_start[b->n_seq] > p->max_tok)
        return FAIL(a, FOLIO_E_TOO_LARGE,
                    "%d tokens in the batch, above max_tok %d",
                    b->q_start[b->n_seq], p->max_tok);
    if (!b->tables && b->table_start[b->n_seq] > b->table_start[0])
        return FAIL(a, FOLIO_E_INVAL, "batch.tables is NULL");
    if (!b->slots && b->q_start[b->n_seq] > 0)
        return FAIL(a, FOLIO_E_INVAL, "batch.slots is NULL");
    return FOLIO_OK;
}

/* Marks that no block has yet, one per sequence. */
static void renew_marks(folio_attn *a, int32_t n_seq)
{
    block_marks *m = &a->marks;
    if (m->first > UINT32_MAX - 2 * (uint32_t)a->prm.max_seqs) {
        size_t bytes = (size_t)a->prm.n_blocks * sizeof *m->holder;
        memset(m->holder, 0, bytes);
        memset(m->writer, 0, bytes);
        m->first = 1;
    }
    m->first += (uint32_t)n_seq;
}

/* Blocks in range, none twice in a table, slots as the tables say, and no block
 * written by two sequences: that one's tokens would land in the other's. */
static folio_status check_places(folio_attn *a, const folio_attn_batch *b)
{
    const folio_attn_params *p = &a->prm;
    block_marks *m = &a->marks;
    renew_marks(a, b->n_seq);
    uint32_t first = m->first - (uint32_t)b->n_seq;
    for (int32_t s = 0; s < b->n_seq; s++) {
        const int32_t *table = b->tables + b->table_start[s];
        uint32_t mark = first + (uint32_t)s;
        int64_t n = folio_div_up(b->kv_len[s], p->block_size);
        for (int64_t i = 0; i < n; i++) {
            int32_t blk = table[i];
            if (blk < 0 || blk >= p->n_blocks)
                return FAIL(a, FOLIO_E_RANGE,
                            "block %" PRId64 " of sequence %d is %d, not in "
                            "[0, %d)",
                            i, s, blk, p->n_blocks);
            if (m->holder[blk] == mark)
                return FAIL(a, FOLIO_E_INVAL,
                            "block %" PRId64 " of sequence %d, %d, is in its "
                            "table twice",
                            i, s, blk);
            m->holder[blk] = mark;
        }
        int32_t n_new = b->q_start[s + 1] - b->q_start[s];
        for (int32_t i = 0; i < n_new; i++) {
            int32_t tok = b->q_start[s] + i;
            int32_t pos = b->kv_len[s] - n_new + i;
            int32_t blk = table[pos / p->block_size];
            int32_t slot = blk * p->block_size + pos % p->block_size;
            if (b->slots[tok] < 0 ||
                b->slots[tok] >= p->n_blocks * p->block_size)
                return FAIL(a, FOLIO_E_RANGE,
                            "batch.slots[%d] is %d, not in [0, %d)", tok,
                            b->slots[tok], p->n_blocks * p->block_size);
            if (b->slots[tok] != slot)
                return FAIL(a, FOLIO_E_INVAL,
                            "batch.slots[%d] is %d, but position %d of "
                            "sequence %d lies at slot %d of its table",
                            tok, b->slots[tok], pos, s, slot);
            uint32_t other = m->writer[blk];
            if (other >= first && other < mark)
                return FAIL(a, FOLIO_E_INVAL,
                            "batch.slots[%d] is %d: block %d is written by "
                            "sequence %u as well",
                            tok, slot, blk, other - first);
            m->writer[blk] = mark;
        }
    }
    return FOLIO_OK;
}

/* n integers at the end of the upload. */
static int32_t *put(folio_attn *a, const int32_t *src, size_t n,
                    folio_view *view)
{
    int32_t *dst = folio_upload_section(&a->up, n, view);
    if (dst && src && n > 0)
        memcpy(dst, src, n * sizeof *dst);
    return dst;
}

/* Lays the step out for the one write; the tables without what lies behind
 * kv_len. False where the bounds at open were wrong. */
static bool put_batch(folio_attn *a, const folio_attn_batch *b,
                      const folio_attn_plan_counts *n, folio_attn_work *w,
                      folio_view *slots)
{
    size_t seqs = (size_t)b->n_seq;
    int32_t bs = a->prm.block_size, n_tok = b->q_start[b->n_seq];
    folio_upload_reset(&a->up);
    int32_t *start;
    bool ok =
        put(a, b->q_start, seqs + 1, &w->q_start) &&
        put(a, b->kv_len, seqs, &w->kv_len) &&
        (start = put(a, NULL, seqs + 1, &w->table_start)) &&
        put(a, b->slots, (size_t)n_tok, slots) &&
        put(a, a->entries, (size_t)n->n_entries * FOLIO_ATTN_ENTRY_INTS,
            &w->entries) &&
        put(a, a->merges, (size_t)n->n_merges * FOLIO_ATTN_MERGE_INTS,
            &w->merges) &&
        put(a, a->tiles, (size_t)n->n_tiles * FOLIO_ATTN_TILE_INTS, &w->tiles);
    if (!ok)
        return false;
    start[0] = 0;
    for (int32_t s = 0; s < b->n_seq; s++)
        start[s + 1] = start[s] + (int32_t)folio_div_up(b->kv_len[s], bs);
    int32_t *tables = put(a, NULL, (size_t)start[b->n_seq], &w->tables);
    if (!tables)
        return false;
    for (int32_t s = 0; s < b->n_seq; s++)
        if (start[s + 1] > start[s])
            memcpy(tables + start[s], b->tables + b->table_start[s],
                   (size_t)(start[s + 1] - start[s]) * sizeof *tables);
    w->n_seq = b->n_seq;
    w->n_entries = n->n_entries;
    w->n_merges = n->n_merges;
    w->n_tiles = n->n_tiles;
    w->n_partials = n->n_partials;
    return true;
}

static folio_status check_queue(const folio_attn *a, const folio_queue *q)
{
    if (!q)
        return FAIL(a, FOLIO_E_INVAL, "attention: q is NULL");
    if (folio_queue_device(q) != a->dev)
        return FAIL(a, FOLIO_E_INVAL,
                    "attention: the queue is of another device");
    return FOLIO_OK;
}

folio_status folio_attn_plan(folio_attn *a, folio_queue *q,
                             const folio_attn_batch *batch)
{
    folio_attn_plan_counts n;
    folio_attn_work work = {0};
    folio_view slots = {0};
    if (!a)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_queue(a, q));
    if (!batch)
        return FAIL(a, FOLIO_E_INVAL, "folio_attn_plan: batch is NULL");
    FOLIO_RETURN_IF(check_lengths(a, batch));
    if (batch->n_seq == 0) {
        a->n_tok = 0;
        a->planned = true;
        return FOLIO_OK;
    }
    FOLIO_RETURN_IF(check_places(a, batch));
    folio_status st = folio_attn_plan_build(
        &a->plan, batch->n_seq, batch->q_start, batch->kv_len, &a->cap,
        a->entries, a->merges, a->tiles, &n);
    /* From here on the old plan is gone: its arrays are overwritten. */
    a->planned = false;
    if (st != FOLIO_OK || !put_batch(a, batch, &n, &work, &slots))
        return FAIL(a, FOLIO_E_INTERNAL,
                    "attention: a checked batch does not fit the bounds");
    FOLIO_RETURN_IF(folio_upload_send(&a->up, q));
    a->work = work;
    a->slots = slots;
    a->n_tok = batch->q_start[batch->n_seq];
    a->planned = true;
    return FOLIO_OK;
}

/* ---- append and run --------------------------------------------------------
 */

static folio_status check_ready(const folio_attn *a, const folio_queue *q,
                                folio_view k_pool, folio_view v_pool)
{
    FOLIO_RETURN_IF(check_queue(a, q));
    if (!a->planned)
        return FAIL(a, FOLIO_E_INVAL,
                    "attention: no plan; folio_attn_plan comes first");
    if (!k_pool.buf || !v_pool.buf)
        return FAIL(a, FOLIO_E_INVAL, "attention: %s is absent",
                    k_pool.buf ? "v_pool" : "k_pool");
    return FOLIO_OK;
}

static void bind_pools(folio_kv_ref *kv, folio_view k_pool, folio_view v_pool)
{
    kv->k = (folio_kv_plane){.buf = {k_pool.buf},
                             .n_buf = 1,
                             .seg_shift = 31,
                             .offset = k_pool.offset};
    kv->v = (folio_kv_plane){.buf = {v_pool.buf},
                             .n_buf = 1,
                             .seg_shift = 31,
                             .offset = v_pool.offset};
}

folio_status folio_attn_append(folio_attn *a, folio_queue *q, folio_view k,
                               folio_view v, folio_view k_pool,
                               folio_view v_pool)
{
    if (!a)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_ready(a, q, k_pool, v_pool));
    folio_rope_append_args args = append_args(a);
    args.k = k;
    args.v = v;
    args.slot = a->slots;
    args.n_tok = a->n_tok;
    bind_pools(&args.kv, k_pool, v_pool);
    return folio_op_run(a->append, q, &args);
}

folio_status folio_attn_run(folio_attn *a, folio_queue *q, folio_view q_rows,
                            folio_view k_pool, folio_view v_pool,
                            folio_view out)
{
    if (!a)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_ready(a, q, k_pool, v_pool));
    folio_attn_args args = attn_args(a);
    args.q = q_rows;
    args.out = out;
    args.n_tok = a->n_tok;
    args.work = a->work;
    if (a->n_tok == 0)
        args.work = (folio_attn_work){0};
    args.scratch = (folio_view){a->scratch, 0};
    bind_pools(&args.kv, k_pool, v_pool);
    return folio_op_run(a->attn, q, &args);
}
