/* op_attn.c: problems of attention: ragged batches over a shuffled pool whose
 * every unused place is NaN; their work lists; the same token as a decode step;
 * the same batch in other blocks. */
#include "check/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum attn_mode { DECODE, PREFILL, CHUNK, MIXED } attn_mode;

typedef struct attn_case {
    ck_set set;
    const char *pick;
    int hd, g, kvh, bs, xk, xv, yv;
    folio_kv_type kv;
    attn_mode mode;
    int ctx, batch, window, softcap;
    int det, chunk, segs;
    ck_fill_kind fill;
} attn_case;

static const attn_case attn_cases[] = {
#define CHECK_ATTN(set, pick, hd, g, kvh, bs, xk, xv, yv, kv, mode, ctx,       \
                   batch, window, softcap, det, chunk, segs, fill)             \
    {CK_SET_##set,  #pick, hd,  g,     kvh,    bs,      xk,  xv,    yv,        \
     FOLIO_KV_##kv, mode,  ctx, batch, window, softcap, det, chunk, segs,      \
     CK_FILL_##fill},
#include "check/covering.def"
};

static ck_slot *find_slot(ck_problem *p, const char *name)
{
    for (int i = 0; i < p->n_slots; i++)
        if (strcmp(p->slot[i].name, name) == 0)
            return &p->slot[i];
    return NULL;
}

/* ---- the batch ------------------------------------------------------------
 */

/* Most products that the reference may make, so that a case takes well under a
 * second. */
#define MAX_PRODUCTS 12e6

static int new_tokens(ck_rng *r, const attn_case *k, int s, int kv_len)
{
    attn_mode mode = k->mode;
    if (mode == MIXED)
        mode = s % 4 == 3 ? MIXED : (attn_mode)(s % 4);
    switch (mode) {
    case DECODE:
        return FOLIO_MIN(kv_len, 1);
    case PREFILL:
        break;
    case CHUNK:
        return kv_len > 1 ? 1 + ck_below(r, kv_len - 1) : kv_len;
    case MIXED:
        return 0; /* a sequence that waits */
    }
    return kv_len;
}

static int cap_tokens(const attn_case *k, int n, int kv_len)
{
    double each = (double)kv_len * k->g * k->kvh * k->hd;
    double most = MAX_PRODUCTS / k->batch / FOLIO_MAX(each, 1.0);
    return most < n && k->set != CK_SET_B
               ? FOLIO_MAX((int)most, FOLIO_MIN(n, 2))
               : n;
}

static void make_batch(ck_problem *p, ck_rng *r, const attn_case *k)
{
    ck_batch *b = &p->batch;
    size_t n = (size_t)k->batch;
    b->n_seq = k->batch;
    b->chunk = k->chunk;
    b->q_start = folio_calloc(n + 1, sizeof *b->q_start);
    b->kv_len = folio_calloc(n, sizeof *b->kv_len);
    b->table_start = folio_calloc(n + 1, sizeof *b->table_start);
    for (int s = 0; s < k->batch; s++) {
        /* The first has the asked length, the others what one may meet. */
        int len = k->ctx;
        if (s > 0 && k->set != CK_SET_B)
            len = 1 + ck_below(r, FOLIO_MAX(FOLIO_MIN(k->ctx, 70), 20));
        if (s == 2 && k->set != CK_SET_B)
            len = k->bs; /* exactly one block */
        int q = cap_tokens(k, new_tokens(r, k, s, len), len);
        b->kv_len[s] = len;
        b->q_start[s + 1] = b->q_start[s] + q;
        /* Two entries behind the end of each table. */
        b->table_start[s + 1] =
            b->table_start[s] + (int32_t)folio_div_up(len, k->bs) + 2;
        b->max_kv = FOLIO_MAX(b->max_kv, len);
    }
    b->n_tables = b->table_start[k->batch];
    b->tables = folio_calloc((size_t)b->n_tables, sizeof *b->tables);
}

/* Random blocks; false if they came out sorted although there are enough. */
static bool deal_blocks(ck_problem *p, ck_rng *r, int32_t n_blocks, int bs)
{
    ck_batch *b = &p->batch;
    int32_t *free_blocks = folio_calloc((size_t)n_blocks, sizeof *free_blocks);
    int32_t next = 0, last = -1, n_used = 0;
    bool sorted = true;
    if (!free_blocks)
        return false;
    /* The last block stays free: whoever clamps a wild index meets NaN. */
    for (int32_t i = 0; i < n_blocks - 1; i++)
        free_blocks[i] = i;
    do {
        ck_shuffle(r, free_blocks, n_blocks - 1);
        sorted = true;
        next = n_used = 0;
        last = -1;
        for (int s = 0; s < b->n_seq; s++) {
            int32_t n = (int32_t)folio_div_up(b->kv_len[s], bs);
            int32_t *table = b->tables + b->table_start[s];
            for (int32_t i = 0; i < n + 2; i++)
                table[i] = i < n ? free_blocks[next++] : CK_BAD_BLOCK;
            for (int32_t i = 0; i < n; i++, n_used++) {
                sorted = sorted && table[i] > last;
                last = table[i];
            }
        }
    } while (sorted && n_used > 2);
    free(free_blocks);
    return !sorted || n_used <= 2;
}

/* ---- contents -------------------------------------------------------------
 */

static float key_value(ck_rng *r, const attn_case *k, int seq, int pos,
                       int kv_len)
{
    switch (k->fill) {
    case CK_FILL_zero:
        return 0.0f;
    case CK_FILL_equal:
        return 0.5f;
    case CK_FILL_low:
        return -8.0f;
    case CK_FILL_peak:
        return pos == (kv_len - 1 - seq % kv_len) / 2
                   ? 8.0f
                   : ck_uniform(r, -0.01f, 0.01f);
    case CK_FILL_tiny:
        return ck_uniform(r, -1e-6f, 1e-6f);
    default:
        return ck_uniform(r, -1, 1);
    }
}

static float query_value(ck_rng *r, const attn_case *k, float scale)
{
    switch (k->fill) {
    case CK_FILL_low:
        return 1e5f / (8.0f * (float)k->hd * scale);
    case CK_FILL_peak:
        return 1e4f / (8.0f * (float)k->hd * scale);
    default:
        return ck_uniform(r, -4, 4);
    }
}

static void fill_pool(const ck_problem *p, ck_rng *r, const attn_case *k,
                      const ck_pool *pool)
{
    const ck_batch *b = &p->batch;
    float v_most = k->fill == CK_FILL_tiny ? 1e-6f : 1.0f;
    for (int s = 0; s < b->n_seq; s++) {
        const int32_t *table = b->tables + b->table_start[s];
        for (int pos = 0; pos < b->kv_len[s]; pos++) {
            int32_t slot = table[pos / k->bs] * k->bs + pos % k->bs;
            for (int h = 0; h < k->kvh; h++) {
                for (int d = 0; d < k->hd; d++) {
                    ck_pool_put(pool, false, slot, h, d,
                                key_value(r, k, s, pos, b->kv_len[s]));
                    ck_pool_put(pool, true, slot, h, d,
                                ck_uniform(r, -v_most, v_most));
                }
            }
        }
    }
}

static void add_work(ck_problem *p)
{
    folio_attn_work *w = &p->args.attn.work;
    const ck_batch *b = &p->batch;
    size_t n = (size_t)b->n_seq;
    w->n_seq = b->n_seq;
    w->max_kv = b->max_kv;
    ck_slot *s = ck_slot_add(p, "q_start", CK_IN, CK_I32, n + 1, &w->q_start);
    ck_slot_set(s, b->q_start, s->bytes);
    s = ck_slot_add(p, "kv_len", CK_IN, CK_I32, n, &w->kv_len);
    ck_slot_set(s, b->kv_len, s->bytes);
    s = ck_slot_add(p, "table_start", CK_IN, CK_I32, n + 1, &w->table_start);
    ck_slot_set(s, b->table_start, s->bytes);
    s = ck_slot_add(p, "tables", CK_IN, CK_I32, (size_t)b->n_tables,
                    &w->tables);
    ck_slot_set(s, b->tables, s->bytes);
    ck_slot_add(p, "entries", CK_IN, CK_I32, 0, &w->entries);
    ck_slot_add(p, "merges", CK_IN, CK_I32, 0, &w->merges);
    ck_slot_add(p, "tiles", CK_IN, CK_I32, 0, &w->tiles);
}

static void attn_name(const attn_case *k, char *name, size_t bytes)
{
    static const char *const modes[] = {"decode", "prefill", "chunk", "mixed"};
    snprintf(name, bytes,
             "attn %s hd %d g %d kvh %d bs %d x %d,%d y %d %s ctx %d batch %d "
             "w %d cap %d%s split %d segs %d %s",
             modes[k->mode], k->hd, k->g, k->kvh, k->bs, k->xk, k->xv, k->yv,
             k->kv == FOLIO_KV_F16 ? "f16" : "f32", k->ctx, k->batch, k->window,
             k->softcap, k->det ? " det" : "", k->chunk, k->segs,
             ck_fill_name(k->fill));
}

static void attn_one(ck_ctx *c, const attn_case *k)
{
    char name[160];
    attn_name(k, name, sizeof name);
    if (!ck_wanted(c, FOLIO_OP_ATTN, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_ATTN);
    folio_attn_args *a = &p->args.attn;
    int heads = k->g * k->kvh, pad = k->batch % 3 * 4;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = k->det;
    p->pick = c->size == CK_FULL ? "all" : k->pick;
    make_batch(p, &r, k);
    int32_t tok = p->batch.q_start[k->batch];
    *a = (folio_attn_args){.q_stride = heads * k->hd + pad,
                           .out_stride = heads * k->hd + 2 * pad,
                           .n_tok = tok,
                           .heads = heads,
                           .window = k->window,
                           .scale = (float)(1.0 / sqrt(k->hd)),
                           .softcap = (float)k->softcap};
    int32_t used = p->batch.n_tables - 2 * k->batch;
    a->kv = (folio_kv_ref){.type = k->kv,
                           .layout = folio_kv_layout_fit(
                               (folio_kv_layout){k->xk ? k->xk : k->hd, 1,
                                                 k->xv ? k->xv : k->hd, k->yv},
                               k->hd, k->bs),
                           .n_blocks = ck_pool_blocks(used + 3, k->segs),
                           .block_size = k->bs,
                           .kv_heads = k->kvh,
                           .head_dim = k->hd};
    if (!deal_blocks(p, &r, a->kv.n_blocks, k->bs)) {
        printf("FAILED: %s: the block tables came out sorted\n", name);
        c->failed++;
        ck_problem_free(p);
        return;
    }
    size_t width = (size_t)heads * (size_t)k->hd;
    ck_slot *q = ck_slot_add_rows(p, "q", CK_IN, CK_F32, (size_t)tok, width,
                                  (size_t)a->q_stride, &a->q);
    for (int32_t t = 0; t < tok; t++) {
        float *row = (float *)(void *)(q->init + (size_t)t * q->row_bytes);
        for (size_t i = 0; i < width; i++)
            row[i] = query_value(&r, k, a->scale);
    }
    ck_slot *out = ck_slot_add_rows(p, "out", CK_OUT, CK_F32, (size_t)tok,
                                    width, (size_t)a->out_stride, &a->out);
    ck_pool pool = ck_add_pool(p, &a->kv, k->segs, CK_IN);
    fill_pool(p, &r, k, &pool);
    add_work(p);
    ck_slot_add(p, "scratch", CK_SCRATCH, CK_BYTES, 0, &a->scratch);
    out->rule = CK_NEAR;
    out->abs = (c->gpu ? 1e-4 : 1e-5) * (k->fill == CK_FILL_tiny ? 1e-6 : 1.0);
    out->rel = c->gpu ? 1e-3 : 1e-4;
    ck_judge(c, p);
}

/* Every combination that programs are built from, each with two loads that
 * walk through all values in steps prime to each other. Takes hours. */
static void full_matrix(ck_ctx *c)
{
    static const int hds[] = {4, 64, 80, 96, 112, 128, 256};
    static const int gs[] = {1, 3, 4, 7, 8, 9, 16};
    static const int sizes[] = {1, 4, 16, 32};
    static const int xs[][2] = {{1, 0}, {8, 0}, {8, 8}, {0, 0}};
    static const int ctxs[] = {1, 15, 16, 17, 127, 128, 129, 1000, 4097, 0};
    static const int batches[] = {3, 1, 33};
    static const int windows[] = {0, 1, 16, 100};
    static const int chunks[] = {0, 16, 128};
    const int n_programs = 7 * 7 * 4 * 4 * 2 * 2;
    for (int i = 0; i < n_programs && !c->dead; i++) {
        int n = i;
        attn_case k = {.set = CK_SET_L, .pick = "all", .segs = 1};
        k.hd = hds[n % 7];
        k.g = gs[(n /= 7) % 7];
        k.bs = sizes[(n /= 7) % 4];
        k.xk = xs[(n /= 4) % 4][0];
        k.xv = xs[n % 4][1];
        k.yv = 1 + (n /= 4) % 2;
        k.kv = n / 2 % 2 ? FOLIO_KV_F16 : FOLIO_KV_F32;
        k.kvh = k.g < 16 ? 1 + i % 2 : 1;
        k.softcap = i / 3 % 2 * 30;
        for (int j = 0; j < 2; j++) {
            int m = 2 * i + j;
            k.ctx = ctxs[m % 10];
            k.batch = batches[m % 9 / 3];
            k.window = windows[m % 28 / 7];
            k.mode = (attn_mode)(m % 44 / 11);
            k.chunk = chunks[m % 39 / 13];
            k.det = m % 34 / 17;
            if (k.ctx == 0 && k.batch == 1)
                k.batch = 3;
            attn_one(c, &k);
        }
        /* Programs stay in memory as long as their device. */
        if (i % 64 == 63)
            ck_reopen(c);
    }
}

void ck_attn(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(attn_cases); i++)
        if (ck_in_size(c, attn_cases[i].set))
            attn_one(c, &attn_cases[i]);
    if (c->size == CK_FULL && !c->bench)
        full_matrix(c);
}

/* ---- work lists -----------------------------------------------------------
 */

static folio_status build_lists(ck_problem *p, const folio_attn_plan_params *pp,
                                const folio_attn_plan_bounds *cap)
{
    folio_status st = FOLIO_OK;
    const ck_batch *b = &p->batch;
    folio_attn_work *w = &p->args.attn.work;
    folio_attn_plan_counts n = {0};
    size_t n_entries = (size_t)cap->entries * FOLIO_ATTN_ENTRY_INTS;
    size_t n_merges = (size_t)cap->merges * FOLIO_ATTN_MERGE_INTS;
    size_t n_tiles = (size_t)cap->tiles * FOLIO_ATTN_TILE_INTS;
    int32_t *entries = folio_calloc(n_entries + 1, sizeof *entries);
    int32_t *merges = folio_calloc(n_merges + 1, sizeof *merges);
    int32_t *tiles = folio_calloc(n_tiles + 1, sizeof *tiles);
    if (!entries || !merges || !tiles)
        FOLIO_TRY(FOLIO_E_NOMEM);
    FOLIO_TRY(folio_attn_plan_build(pp, b->n_seq, b->q_start, b->kv_len, cap,
                                    entries, merges, tiles, &n));
    ck_slot_set(find_slot(p, "entries"), entries,
                (size_t)n.n_entries * FOLIO_ATTN_ENTRY_INTS * sizeof *entries);
    ck_slot_set(find_slot(p, "merges"), merges,
                (size_t)n.n_merges * FOLIO_ATTN_MERGE_INTS * sizeof *merges);
    ck_slot_set(find_slot(p, "tiles"), tiles,
                (size_t)n.n_tiles * FOLIO_ATTN_TILE_INTS * sizeof *tiles);
    w->n_entries = n.n_entries;
    w->n_merges = n.n_merges;
    w->n_tiles = n.n_tiles;
    w->n_partials = n.n_partials;
fail:
    free(entries);
    free(merges);
    free(tiles);
    return st;
}

folio_status ck_attn_plan(ck_problem *p, const folio_op *op)
{
    folio_attn_plan_params pp;
    folio_attn_plan_bounds cap;
    int32_t tok = FOLIO_MAX(p->args.attn.n_tok, 1);
    folio_attn_plan_params_of(op, &pp);
    FOLIO_RETURN_IF(folio_attn_plan_bound(&pp, tok, p->batch.n_seq,
                                          FOLIO_MAX(p->batch.max_kv, 1), &cap));
    /* A forced split, as fine as the scratch allows. */
    if (p->batch.chunk > 0 && pp.target_groups > 0 && pp.chunk == 0) {
        int32_t bs = p->args.attn.kv.block_size;
        pp.chunk = (int32_t)folio_div_up(p->batch.chunk, bs) * bs;
        while (build_lists(p, &pp, &cap) != FOLIO_OK) {
            if (pp.chunk > p->batch.max_kv)
                return FOLIO_E_FULL;
            pp.chunk *= 2;
        }
        return FOLIO_OK;
    }
    return build_lists(p, &pp, &cap);
}

void ck_attn_unplan(ck_problem *p)
{
    folio_attn_work *w = &p->args.attn.work;
    w->n_entries = w->n_merges = w->n_tiles = w->n_partials = 0;
}

/* ---- the same, otherwise --------------------------------------------------
 */

static folio_status copy_ints(int32_t **to, const int32_t *from, size_t n)
{
    *to = folio_calloc(n + 1, sizeof **to);
    if (!*to)
        return FOLIO_E_NOMEM;
    memcpy(*to, from, n * sizeof **to);
    return FOLIO_OK;
}

ck_problem *ck_attn_alone(const ck_problem *p, int token)
{
    const ck_batch *b = &p->batch;
    int s = 0;
    while (b->q_start[s + 1] <= token)
        s++;
    int32_t pos = b->kv_len[s] - (b->q_start[s + 1] - token);
    const int32_t q_start[] = {0, 1}, kv_len[] = {pos + 1};
    const int32_t table_start[] = {b->table_start[s], b->table_start[s + 1]};
    ck_problem *one = ck_problem_rows(p, token, 1);
    ck_batch *n = &one->batch;
    *n = (ck_batch){.n_seq = 1, .n_tables = b->n_tables, .max_kv = pos + 1};
    if (copy_ints(&n->q_start, q_start, 2) != FOLIO_OK ||
        copy_ints(&n->kv_len, kv_len, 1) != FOLIO_OK ||
        copy_ints(&n->table_start, table_start, 2) != FOLIO_OK ||
        copy_ints(&n->tables, b->tables, (size_t)b->n_tables) != FOLIO_OK)
        return one;
    one->args.attn.work.n_seq = 1;
    ck_slot_set(find_slot(one, "q_start"), q_start, sizeof q_start);
    ck_slot_set(find_slot(one, "kv_len"), kv_len, sizeof kv_len);
    ck_slot_set(find_slot(one, "table_start"), table_start, sizeof table_start);
    return one;
}

static ck_pool pool_of(ck_problem *p)
{
    ck_pool pool = {.kv = &p->args.attn.kv};
    for (int i = 0; i < p->n_slots; i++) {
        ck_slot *s = &p->slot[i];
        for (int j = 0; j < FOLIO_KV_MAX_BUFS; j++) {
            if (s->into_buf == &pool.kv->k.buf[j])
                pool.k[j] = s;
            if (s->into_buf == &pool.kv->v.buf[j])
                pool.v[j] = s;
        }
    }
    return pool;
}

ck_problem *ck_attn_moved(const ck_problem *p, ck_rng *r)
{
    const ck_batch *b = &p->batch;
    size_t n_seq = (size_t)b->n_seq;
    int32_t n = p->args.attn.kv.n_blocks;
    size_t bytes = folio_kv_block_bytes(&p->args.attn.kv);
    ck_problem *to = ck_problem_rows(p, 0, p->args.attn.n_tok);
    ck_problem *from = ck_problem_rows(p, 0, p->args.attn.n_tok);
    ck_pool old = pool_of(from), new = pool_of(to);
    int32_t *place = folio_calloc((size_t)n, sizeof *place);
    to->batch = *b;
    if (!place || copy_ints(&to->batch.q_start, b->q_start, n_seq + 1) ||
        copy_ints(&to->batch.kv_len, b->kv_len, n_seq) ||
        copy_ints(&to->batch.table_start, b->table_start, n_seq + 1) ||
        copy_ints(&to->batch.tables, b->tables, (size_t)b->n_tables)) {
        fprintf(stderr, "folio-check: out of memory\n");
        exit(2);
    }
    for (int32_t i = 0; i < n; i++)
        place[i] = i;
    ck_shuffle(r, place, n);
    for (int32_t i = 0; i < n; i++) {
        memcpy(ck_pool_block(&new, false, place[i]),
               ck_pool_block(&old, false, i), bytes);
        memcpy(ck_pool_block(&new, true, place[i]),
               ck_pool_block(&old, true, i), bytes);
    }
    for (int32_t i = 0; i < b->n_tables; i++)
        if (b->tables[i] != CK_BAD_BLOCK)
            to->batch.tables[i] = place[b->tables[i]];
    ck_slot_set(find_slot(to, "tables"), to->batch.tables,
                (size_t)b->n_tables * sizeof(int32_t));
    free(place);
    ck_problem_free(from);
    return to;
}
