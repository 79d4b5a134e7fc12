/* ops/host/host_attn.c: attention on the host device, float sums, on the
 * device's threads. Work is cut into items of equal cost, each some tokens of
 * some KV heads; the query rows of an item share each tile of keys, which is
 * read where it lies or, in orders that do not allow it, turned into floats
 * once. A row's arithmetic walks key tiles that start at multiples of KEYS from
 * key 0 and looks at nothing but the row's own keys, so its bits depend neither
 * on the rows beside it nor on the block size. */
#include "ops/host/host_attn.h"

#include <math.h>
#include <string.h>

#include "ops/attn_host.h"
#include "ops/host/host_cpu.h"
#include "ops/variants.h"

#define LOG2_E 1.44269504088896341f
/* Below every logit; also the largest logit of a row without a key. */
#define NO_MAX (-3e38f)

enum {
    KEYS = HOST_ATTN_KEYS,
    ROWS = HOST_ATTN_ROWS,
    DIMS = HOST_ATTN_DIMS,
    BLOCK = HOST_ATTN_BLOCK,
    RUN = HOST_ATTN_RUN,
    RUNS = KEYS / RUN
};

/* What a token costs besides its keys, in keys: for items of equal cost. */
#define TOKEN_KEYS 16
/* Items per thread where there is enough to do: a slow core costs little. */
#define ITEMS 4

/* What one thread works with. Rows of q and o lie `pad` apart, so that they
 * fill the first cache evenly whatever the head's size. */
typedef struct row_tile {
    float keys[DIMS * KEYS], values[KEYS * DIMS];
    float q[ROWS * DIMS], o[ROWS * DIMS];
    float s[ROWS][KEYS], sum[ROWS][KEYS];
    float max[ROWS];
    int32_t first[ROWS], end[ROWS]; /* keys the row sees */
    float *out[ROWS];
    int32_t head[ROWS];
    int32_t n;
    host_attn_runs k_runs, v_runs; /* in place of keys and values */
} row_tile;

typedef struct attn_job {
    const folio_attn_args *a;
    const folio_host_attn_set *set;
    const int32_t *q_start, *kv_len, *table_start, *tables;
    const float *q, *sinks;
    float *out;
    int32_t group, pad;
    bool direct; /* halves are read where they lie */
    host_attn_order k_order, v_order;
    int64_t cost, n_items; /* of all tokens and KV heads */
} attn_job;

const folio_host_attn_set *folio_host_attn_set_at(int i)
{
    const folio_host_attn_set *sets[3] = {0};
    int n = 0;
#ifdef FOLIO_HAVE_AVX512
    if (folio_host_has_avx512())
        sets[n++] = &folio_host_attn_avx512;
#endif
#ifdef FOLIO_HAVE_AVX2
    if (folio_host_has_avx2())
        sets[n++] = &folio_host_attn_avx2;
#endif
    sets[n++] = &folio_host_attn_base;
    return i >= 0 && i < n ? sets[i] : NULL;
}

/* Keys and values key..end-1 of one tile into floats, block by block; those of
 * the next tile, up to key `stop`, are asked for: blocks lie anywhere, so the
 * processor cannot guess where reading goes on. */
static void load_tile(const attn_job *job, row_tile *w, const int32_t *table,
                      int32_t kvh, int32_t base, int32_t key, int32_t end,
                      int32_t stop)
{
    const folio_kv_ref *kv = &job->a->kv;
    while (key < end) {
        int32_t t = key % kv->block_size, blk = table[key / kv->block_size];
        int32_t n = FOLIO_MIN(kv->block_size - t, end - key);
        int32_t at = key - base;
        const void *k_ahead = NULL, *v_ahead = NULL;
        if (key + KEYS < stop) {
            int32_t next = table[(key + KEYS) / kv->block_size];
            k_ahead = folio_attn_host_tile(kv, &kv->k, next, kvh);
            v_ahead = folio_attn_host_tile(kv, &kv->v, next, kvh);
        }
        job->set->load_keys(&job->k_order,
                            folio_attn_host_tile(kv, &kv->k, blk, kvh), k_ahead,
                            t, n, w->keys + at);
        job->set->load_values(
            &job->v_order, folio_attn_host_tile(kv, &kv->v, blk, kvh), v_ahead,
            t, n, w->values + (size_t)at * (size_t)job->pad, job->pad);
        key += n;
    }
}

/* Where the keys and values of the tile from key `base` on lie. A run from key
 * `end` on is never looked at: the first one stands in. */
static void find_runs(const attn_job *job, const int32_t *table, int32_t kvh,
                      int32_t base, int32_t end, const uint16_t *k[RUNS],
                      const uint16_t *v[RUNS])
{
    const folio_kv_ref *kv = &job->a->kv;
    for (int32_t i = 0; i < RUNS; i++) {
        int32_t key = base + i * RUN, t = key % kv->block_size;
        if (key >= end && i > 0) {
            k[i] = k[0];
            v[i] = v[0];
            continue;
        }
        int32_t blk = table[key / kv->block_size];
        k[i] = (const uint16_t *)(const void *)folio_attn_host_tile(kv, &kv->k,
                                                                    blk, kvh) +
               t;
        v[i] = (const uint16_t *)(const void *)folio_attn_host_tile(kv, &kv->v,
                                                                    blk, kvh) +
               t * kv->head_dim;
    }
}

/* Puts the tile from key `base` on in place, and the one behind it on its way:
 * blocks lie anywhere, so the processor cannot guess where reading goes on. */
static void take_runs(const attn_job *job, row_tile *w, const int32_t *table,
                      int32_t kvh, int32_t base, int32_t end)
{
    host_attn_runs *k = &w->k_runs, *v = &w->v_runs;
    k->step = job->a->kv.block_size;
    v->step = job->a->kv.head_dim;
    find_runs(job, table, kvh, base, end, k->run, v->run);
    int32_t next = base + KEYS < end ? base + KEYS : base;
    find_runs(job, table, kvh, next, end, k->ahead, v->ahead);
}

/* What comes next was asked for. */
static void settle_runs(host_attn_runs *r)
{
    memcpy(r->ahead, r->run, sizeof r->ahead);
}

/* Logits of all rows against the tile, in units of log 2. */
static void score_rows(const attn_job *job, row_tile *w)
{
    const int32_t most = job->set->most_rows;
    for (int32_t r = 0; r < w->n; r += most) {
        int32_t n = FOLIO_MIN(w->n - r, most);
        const float *q[BLOCK];
        float *s[BLOCK];
        for (int32_t i = 0; i < n; i++) {
            q[i] = w->q + (r + i) * job->pad;
            s[i] = w->s[r + i];
        }
        if (!job->direct) {
            job->set->scores(n, q, w->keys, job->a->kv.head_dim, s);
            continue;
        }
        job->set->scores_half(n, q, &w->k_runs, job->a->kv.head_dim, s);
        settle_runs(&w->k_runs);
    }
}

static void cap_row(float cap, float *s, int32_t first, int32_t last)
{
    for (int32_t j = first; j < last; j++)
        s[j] = cap * tanhf(s[j] / cap) * LOG2_E;
}

static void mix_rows(const attn_job *job, row_tile *w, const int32_t *row,
                     int32_t n, int32_t first, int32_t last)
{
    const float *p[BLOCK];
    float *o[BLOCK];
    for (int32_t i = 0; i < n; i++) {
        p[i] = w->s[row[i]];
        o[i] = w->o + row[i] * job->pad;
    }
    if (!job->direct) {
        job->set->mix(n, p, w->values, job->pad, first, last, o);
        return;
    }
    job->set->mix_half(n, p, &w->v_runs, job->pad, first, last, o);
    settle_runs(&w->v_runs);
}

/* All rows over one tile of keys. */
static void walk_tile(const attn_job *job, row_tile *w, int32_t base)
{
    score_rows(job, w);
    /* Rows of the same key range go through the values together. */
    int32_t rows[BLOCK], n = 0, first = 0, last = 0;
    for (int32_t r = 0; r < w->n; r++) {
        int32_t f = FOLIO_MAX(w->first[r] - base, 0);
        int32_t e = FOLIO_MIN(w->end[r] - base, KEYS);
        if (f >= e)
            continue;
        if (job->a->softcap > 0)
            cap_row(job->a->softcap, w->s[r], f, e);
        float fall = job->set->weights(w->s[r], f, e, &w->max[r], w->sum[r]);
        if (fall != 1.0f)
            job->set->scale(w->o + r * job->pad, job->pad, fall);
        if (n > 0 && (n == job->set->most_rows || f != first || e != last)) {
            mix_rows(job, w, rows, n, first, last);
            n = 0;
        }
        rows[n++] = r;
        first = f;
        last = e;
    }
    if (n > 0)
        mix_rows(job, w, rows, n, first, last);
}

static void finish_row(const attn_job *job, row_tile *w, int32_t r)
{
    float sum = 0, by = 1;
    for (int32_t j = 0; j < KEYS; j++)
        sum += w->sum[r][j];
    if (job->sinks && w->first[r] < w->end[r]) {
        float sink = job->sinks[w->head[r]] * LOG2_E;
        float max = FOLIO_MAX(sink, w->max[r]);
        by = exp2f(w->max[r] - max);
        sum = sum * by + exp2f(sink - max);
    }
    bool seen = w->first[r] < w->end[r];
    for (int32_t d = 0; d < job->a->kv.head_dim; d++)
        w->out[r][d] = seen ? w->o[r * job->pad + d] * by / sum : 0;
}

static void run_rows(const attn_job *job, row_tile *w, const int32_t *table,
                     int32_t kvh)
{
    int32_t first = INT32_MAX, end = 0;
    for (int32_t r = 0; r < w->n; r++) {
        first = FOLIO_MIN(first, w->first[r]);
        end = FOLIO_MAX(end, w->end[r]);
        w->max[r] = NO_MAX;
        memset(w->sum[r], 0, sizeof w->sum[r]);
    }
    memset(w->o, 0, sizeof(float) * (size_t)(w->n * job->pad));
    for (int32_t base = first / KEYS * KEYS; base < end; base += KEYS) {
        if (job->direct)
            take_runs(job, w, table, kvh, base, end);
        else
            load_tile(job, w, table, kvh, base, FOLIO_MAX(base, first),
                      FOLIO_MIN(base + KEYS, end), end);
        walk_tile(job, w, base);
    }
    for (int32_t r = 0; r < w->n; r++)
        finish_row(job, w, r);
    w->n = 0;
}

static void add_row(const attn_job *job, row_tile *w, int32_t tok, int32_t head,
                    int32_t pos)
{
    const folio_attn_args *a = job->a;
    size_t hd = (size_t)a->kv.head_dim, at = (size_t)head * hd;
    const float *q = job->q + (size_t)tok * (size_t)a->q_stride + at;
    float by = a->softcap > 0 ? a->scale : a->scale * LOG2_E;
    int32_t r = w->n++;
    for (size_t d = 0; d < hd; d++)
        w->q[(size_t)r * (size_t)job->pad + d] = q[d] * by;
    w->out[r] = job->out + (size_t)tok * (size_t)a->out_stride + at;
    w->head[r] = head;
    w->end[r] = FOLIO_MAX(pos + 1, 0);
    w->first[r] = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
}

/* Tokens tok..end-1 of sequence seq, in passes of equal size: a token's heads
 * share a pass where they fit one. */
static void run_tokens(const attn_job *job, row_tile *w, int32_t seq,
                       int32_t kvh, int32_t tok, int32_t end)
{
    const int32_t *table = job->tables + job->table_start[seq];
    const int32_t most = FOLIO_MAX(ROWS / job->group, 1);
    int32_t n_passes = (int32_t)folio_div_up(end - tok, most);
    for (; n_passes > 0; n_passes--) {
        const int32_t stop = tok + (int32_t)folio_div_up(end - tok, n_passes);
        for (; tok < stop; tok++) {
            int32_t pos = job->kv_len[seq] - (job->q_start[seq + 1] - tok);
            for (int32_t g = 0; g < job->group; g++) {
                if (w->n == ROWS)
                    run_rows(job, w, table, kvh);
                add_row(job, w, tok, kvh * job->group + g, pos);
            }
        }
        run_rows(job, w, table, kvh);
    }
}

static int32_t n_tok_of(const attn_job *job, int32_t seq)
{
    return job->q_start[seq + 1] - job->q_start[seq];
}

/* Of one token of the sequence and one KV head; the same for all its tokens,
 * which comes close enough where it matters. To fetch the keys costs as much
 * again, once for those who share them. */
static int64_t cost_of(const attn_job *job, int32_t seq)
{
    const int32_t n = n_tok_of(job, seq);
    const int32_t most = FOLIO_MAX(ROWS / job->group, 1);
    int64_t keys = job->kv_len[seq] - n / 2;
    if (job->a->window > 0)
        keys = FOLIO_MIN(keys, job->a->window);
    keys = FOLIO_MAX(keys, 0);
    return keys + keys / FOLIO_MAX(FOLIO_MIN(n, most), 1) + TOKEN_KEYS;
}

/* Everything there is to do, a sequence after another and in each a KV head
 * after another, is one line of cost; an item is a part of it, and the tokens
 * that begin there are its. */
static void run_item(const attn_job *job, row_tile *w, int64_t item)
{
    const int64_t from = job->cost * item / job->n_items;
    const int64_t to = job->cost * (item + 1) / job->n_items;
    int64_t at = 0;
    for (int32_t seq = 0; seq < job->a->work.n_seq && at < to; seq++) {
        const int32_t n = n_tok_of(job, seq), n_heads = job->a->kv.kv_heads;
        const int64_t each = cost_of(job, seq), last = at + each * n * n_heads;
        if (last > from) {
            int64_t i = at < from ? folio_div_up(from - at, each) : 0;
            int64_t end =
                FOLIO_MIN(folio_div_up(to - at, each), (int64_t)n * n_heads);
            while (i < end) {
                int64_t head = i / n;
                int64_t stop = FOLIO_MIN(end, (head + 1) * n);
                int32_t tok = job->q_start[seq] - (int32_t)(head * n);
                run_tokens(job, w, seq, (int32_t)head, tok + (int32_t)i,
                           tok + (int32_t)stop);
                i = stop;
            }
        }
        at = last;
    }
}

static void run_items(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    const attn_job *job = user;
    row_tile w;
    w.n = 0;
    if (!job->direct) {
        /* The pad columns and lanes without a key are computed and thrown
         * away; they only have to be numbers. */
        memset(w.keys, 0, sizeof(float) * KEYS * (size_t)job->a->kv.head_dim);
        memset(w.values, 0, sizeof(float) * KEYS * (size_t)job->pad);
    }
    for (int64_t i = first; i < last; i++)
        run_item(job, &w, i);
}

/* Keys by dims, values by rows, in runs that are whole. */
static bool reads_halves(const folio_host_attn_set *set, const folio_kv_ref *kv)
{
    const folio_kv_layout *l = &kv->layout;
    return set->scores_half && kv->type == FOLIO_KV_F16 && l->xk == 1 &&
           l->yk == 1 && l->xv == kv->head_dim && l->yv == 1 &&
           kv->block_size % RUN == 0 && kv->head_dim % HOST_ATTN_PAD == 0;
}

void folio_host_attn_run(const folio_host_attn_set *set,
                         folio_thread_pool *threads, const folio_attn_args *a)
{
    const folio_kv_ref *kv = &a->kv;
    const folio_kv_layout *l = &kv->layout;
    bool half = kv->type == FOLIO_KV_F16;
    attn_job job = {.a = a,
                    .set = set,
                    .q_start = folio_view_host(a->work.q_start),
                    .kv_len = folio_view_host(a->work.kv_len),
                    .table_start = folio_view_host(a->work.table_start),
                    .tables = folio_view_host(a->work.tables),
                    .q = folio_view_host(a->q),
                    .sinks = folio_view_host(a->sinks),
                    .out = folio_view_host(a->out),
                    .group = a->heads / kv->kv_heads,
                    .direct = reads_halves(set, kv)};
    job.pad = (int32_t)folio_align_up((size_t)kv->head_dim, HOST_ATTN_PAD);
    job.k_order =
        (host_attn_order){kv->block_size, kv->head_dim, l->xk, l->yk, half};
    job.v_order =
        (host_attn_order){kv->block_size, kv->head_dim, l->xv, l->yv, half};
    for (int32_t s = 0; s < a->work.n_seq; s++)
        job.cost += cost_of(&job, s) * n_tok_of(&job, s) * kv->kv_heads;
    /* As many items as there are full passes, but at least one a thread, and
     * as many for each. */
    int64_t n_threads = folio_thread_pool_size(threads);
    int64_t n_passes =
        (int64_t)job.q_start[a->work.n_seq] * kv->kv_heads * job.group / ROWS;
    int64_t each = FOLIO_MAX(FOLIO_MIN(n_passes / n_threads, ITEMS), 1);
    job.n_items = n_threads * each;
    folio_parallel_for(threads, job.n_items, 1, run_items, &job);
}

static folio_status run_attn(folio_op *op, folio_queue *q, const void *args)
{
    FOLIO_RETURN_IF(folio_attn_host_check(op, args));
    folio_host_attn_run(folio_host_attn_set_at(0),
                        folio_device_threads(op->dev), args);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_attn = {.run = run_attn};
