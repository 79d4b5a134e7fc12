/* ops/host/host_attn.c: attention on the host device, float sums, on the
 * device's threads. Work is cut into (tokens, KV head) items; the query rows of
 * an item share each tile of keys after it was turned into floats once. A row's
 * arithmetic walks key tiles that start at multiples of KEYS from key 0 and
 * looks at nothing but the row's own keys, so its bits depend neither on the
 * rows beside it nor on the block size. */
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
    BLOCK = HOST_ATTN_BLOCK
};

/* What one thread works with. The last row is a dummy that fills up blocks. */
typedef struct row_tile {
    float keys[DIMS * KEYS], values[KEYS * DIMS];
    float q[ROWS + 1][DIMS], o[ROWS + 1][DIMS];
    float s[ROWS + 1][KEYS], sum[ROWS][KEYS];
    float max[ROWS];
    int32_t first[ROWS], end[ROWS]; /* keys the row sees */
    float *out[ROWS];
    int32_t head[ROWS];
    int32_t n;
} row_tile;

typedef struct attn_job {
    const folio_attn_args *a;
    const folio_host_attn_set *set;
    const int32_t *q_start, *kv_len, *table_start, *tables;
    const float *q, *sinks;
    float *out;
    int32_t group, tok_step, n_steps, pad;
    host_attn_order k_order, v_order;
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

/* Asks for the keys and values key..end-1, which the next tile holds: blocks
 * lie anywhere, so the processor cannot guess where reading goes on. */
static void expect_tile(const attn_job *job, const int32_t *table, int32_t kvh,
                        int32_t key, int32_t end)
{
    const folio_kv_ref *kv = &job->a->kv;
    size_t bytes = (size_t)kv->block_size * (size_t)kv->head_dim *
                   (kv->type == FOLIO_KV_F16 ? 2 : 4);
    if (kv->block_size > KEYS)
        return; /* its parts follow one another */
    for (; key < end; key += kv->block_size) {
        int32_t blk = table[key / kv->block_size];
        const uint8_t *k = folio_attn_host_tile(kv, &kv->k, blk, kvh);
        const uint8_t *v = folio_attn_host_tile(kv, &kv->v, blk, kvh);
        for (size_t i = 0; i < bytes; i += 64) {
            __builtin_prefetch(k + i);
            __builtin_prefetch(v + i);
        }
    }
}

/* Keys and values key..end-1 of one tile into floats, block by block. */
static void load_tile(const attn_job *job, row_tile *w, const int32_t *table,
                      int32_t kvh, int32_t base, int32_t key, int32_t end)
{
    const folio_kv_ref *kv = &job->a->kv;
    while (key < end) {
        int32_t t = key % kv->block_size, blk = table[key / kv->block_size];
        int32_t n = FOLIO_MIN(kv->block_size - t, end - key);
        int32_t at = key - base;
        job->set->load_keys(&job->k_order,
                            folio_attn_host_tile(kv, &kv->k, blk, kvh), t, n,
                            w->keys + at);
        job->set->load_values(
            &job->v_order, folio_attn_host_tile(kv, &kv->v, blk, kvh), t, n,
            w->values + (size_t)at * (size_t)job->pad, job->pad);
        key += n;
    }
}

/* Logits of all rows against the tile, in units of log 2. */
static void score_rows(const attn_job *job, row_tile *w)
{
    for (int32_t r = 0; r < w->n; r += BLOCK) {
        const float *q[BLOCK];
        float *s[BLOCK];
        for (int32_t i = 0; i < BLOCK; i++) {
            int32_t row = r + i < w->n ? r + i : ROWS;
            q[i] = w->q[row];
            s[i] = w->s[row];
        }
        job->set->scores(q, w->keys, job->a->kv.head_dim, s);
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
    for (int32_t i = 0; i < BLOCK; i++) {
        int32_t r = i < n ? row[i] : ROWS;
        p[i] = w->s[r];
        o[i] = w->o[r];
    }
    job->set->mix(p, w->values, job->pad, first, last, o);
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
            job->set->scale(w->o[r], job->pad, fall);
        if (n > 0 && (n == BLOCK || f != first || e != last)) {
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
        w->out[r][d] = seen ? w->o[r][d] * by / sum : 0;
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
        memset(w->o[r], 0, sizeof(float) * (size_t)job->pad);
    }
    for (int32_t base = first / KEYS * KEYS; base < end; base += KEYS) {
        load_tile(job, w, table, kvh, base, FOLIO_MAX(base, first),
                  FOLIO_MIN(base + KEYS, end));
        expect_tile(job, table, kvh, base + KEYS,
                    FOLIO_MIN(base + 2 * KEYS, end));
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
        w->q[r][d] = q[d] * by;
    w->out[r] = job->out + (size_t)tok * (size_t)a->out_stride + at;
    w->head[r] = head;
    w->end[r] = FOLIO_MAX(pos + 1, 0);
    w->first[r] = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
}

/* Tokens tok..end-1 of sequence seq. */
static void run_sequence(const attn_job *job, row_tile *w, int32_t seq,
                         int32_t kvh, int32_t tok, int32_t end)
{
    const int32_t *table = job->tables + job->table_start[seq];
    for (; tok < end; tok++) {
        int32_t pos = job->kv_len[seq] - (job->q_start[seq + 1] - tok);
        for (int32_t g = 0; g < job->group; g++) {
            /* A row never shares a pass with half of a token's heads. */
            if (w->n == ROWS || (g == 0 && w->n + job->group > ROWS))
                run_rows(job, w, table, kvh);
            add_row(job, w, tok, kvh * job->group + g, pos);
        }
    }
    run_rows(job, w, table, kvh);
}

static void run_items(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    const attn_job *job = user;
    row_tile w;
    w.n = 0;
    /* The dummy row, the pad columns and lanes without a key are computed and
     * thrown away; they only have to be numbers. */
    memset(w.keys, 0, sizeof w.keys);
    memset(w.values, 0, sizeof w.values);
    memset(w.q[ROWS], 0, sizeof w.q[ROWS]);
    memset(w.o[ROWS], 0, sizeof w.o[ROWS]);
    memset(w.s[ROWS], 0, sizeof w.s[ROWS]);
    for (int64_t i = first; i < last; i++) {
        int32_t kvh = (int32_t)(i % job->a->kv.kv_heads);
        /* Later tokens see more keys: long items first. */
        int32_t step = job->n_steps - 1 - (int32_t)(i / job->a->kv.kv_heads);
        int32_t tok = step * job->tok_step;
        int32_t end =
            FOLIO_MIN(tok + job->tok_step, job->q_start[job->a->work.n_seq]);
        int32_t seq = 0;
        while (tok < end) {
            while (job->q_start[seq + 1] <= tok)
                seq++;
            int32_t stop = FOLIO_MIN(end, job->q_start[seq + 1]);
            run_sequence(job, &w, seq, kvh, tok, stop);
            tok = stop;
        }
    }
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
                    .group = a->heads / kv->kv_heads};
    job.pad = (int32_t)folio_align_up((size_t)kv->head_dim, HOST_ATTN_PAD);
    job.k_order =
        (host_attn_order){kv->block_size, kv->head_dim, l->xk, l->yk, half};
    job.v_order =
        (host_attn_order){kv->block_size, kv->head_dim, l->xv, l->yv, half};
    int32_t n_tok = job.q_start[a->work.n_seq];
    /* As many tokens per item as share a tile, but two items a thread; of equal
     * size, so that no thread waits for another. */
    int64_t fair = (int64_t)n_tok * kv->kv_heads /
                   (2 * (int64_t)folio_thread_pool_size(threads));
    int64_t share = FOLIO_MAX(ROWS / job.group, 1);
    int64_t most = FOLIO_MAX(FOLIO_MIN(share, fair), 1);
    int64_t n_steps = FOLIO_MAX(folio_div_up(n_tok, most), 1);
    job.tok_step = (int32_t)FOLIO_MAX(folio_div_up(n_tok, n_steps), 1);
    job.n_steps = (int32_t)folio_div_up(n_tok, job.tok_step);
    folio_parallel_for(threads, (int64_t)job.n_steps * kv->kv_heads, 1,
                       run_items, &job);
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
