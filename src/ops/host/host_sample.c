/* ops/host/host_sample.c: sample of the host device: one thread a row; filters
 * by histograms of 11 bits of the logits' order, best bin first. */
#include "ops/host_args.h"
#include "ops/sample_row.h"
#include "ops/variants.h"

enum { GEO_SHAPES }; /* opened for edits or counts: there is scratch */

#define BIN_BITS 11
#define N_BINS   (1 << BIN_BITS)

typedef struct sample_job {
    const float *logits;
    const int32_t *words, *edits;
    int32_t *counts, *ids, *out;
    float *scratch;
    int32_t n, stride;
} sample_job;

/* The row that is drawn from, and what survives: order above, or equal and an
 * id of at most last. */
typedef struct sample_cut {
    const float *x;
    int32_t n, last;
    uint32_t order;
    float top, scale;
} sample_cut;

static float float_at(const int32_t *w)
{
    float v;
    memcpy(&v, w, sizeof v);
    return v;
}

static int32_t find_best(const float *x, int32_t n)
{
    uint32_t most = 0;
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++)
        most = FOLIO_MAX(most, sample_order(x[i]));
    while (best < n - 1 && sample_order(x[best]) != most)
        best++;
    return best;
}

/* The row with its edits and penalties, in `y`; the row itself without. */
static const float *shape_row(const sample_job *job, int64_t r, const float *x,
                              const int32_t *w, const int32_t *counts)
{
    const int32_t first = w[SAMPLE_EDIT_FIRST], end = w[SAMPLE_EDIT_END];
    if (first == end && !counts)
        return x;
    float *y = job->scratch + (size_t)r * (size_t)job->n;
    memcpy(y, x, (size_t)job->n * sizeof *y);
    for (int32_t e = first; e < end; e++) {
        const int32_t id = job->edits[2 * e];
        y[id] = y[id] + float_at(&job->edits[2 * e + 1]);
    }
    const float mul = float_at(&w[SAMPLE_REPEAT_MUL]);
    const float div = float_at(&w[SAMPLE_REPEAT_DIV]);
    const float presence = float_at(&w[SAMPLE_PRESENCE]);
    const float frequency = float_at(&w[SAMPLE_FREQUENCY]);
    for (int32_t i = 0; counts && i < job->n; i++)
        if (counts[i])
            y[i] =
                sample_penalise(y[i], counts[i], mul, div, presence, frequency);
    return y;
}

/* The largest order from which on the survivors hold at least `need`, 0 if
 * they hold less; *above = what they hold above it. */
static uint32_t find_order(const sample_cut *c, uint64_t need, bool weigh,
                           uint64_t *above)
{
    static const int shifts[] = {21, 10, 0};
    uint64_t bins[N_BINS], sum = 0;
    uint32_t order = 0;
    int width = 0; /* bits of `order` that are known */
    for (size_t s = 0; s < FOLIO_COUNT(shifts); s++) {
        const int shift = shifts[s], bits = 32 - width - shift;
        const uint32_t least = FOLIO_MAX(c->order, SAMPLE_ORDER_OUT + 1);
        memset(bins, 0, sizeof bins);
        for (int32_t i = 0; i < c->n; i++) {
            const uint32_t o = sample_order(c->x[i]);
            /* In 64 bits: the first shift is by all 32. */
            if (o < least || ((uint64_t)(o ^ order) >> (32 - width)) != 0)
                continue;
            bins[o >> shift & ((1u << bits) - 1)] +=
                weigh ? folio_sample_weight(c->x[i], c->top, c->scale) : 1;
        }
        int b = (1 << bits) - 1;
        for (; b >= 0 && sum + bins[b] < need; b--)
            sum += bins[b];
        if (b < 0)
            break; /* in the first round only */
        order |= (uint32_t)b << shift;
        width += bits;
    }
    *above = sum;
    return order;
}

static int32_t find_tie(const sample_cut *c, uint32_t order, uint64_t need)
{
    uint64_t sum = 0;
    int32_t i = 0;
    for (; i < c->n; i++) {
        if (sample_order(c->x[i]) == order)
            sum += folio_sample_weight(c->x[i], c->top, c->scale);
        if (sum >= need)
            break;
    }
    return i;
}

/* The weight of an id of at least `order` that survives, or 0. */
static uint64_t weight_of(const sample_cut *c, int32_t id, uint64_t least)
{
    const uint32_t o = sample_order(c->x[id]);
    if (o < c->order || (o == c->order && id > c->last))
        return 0;
    const uint64_t w = folio_sample_weight(c->x[id], c->top, c->scale);
    return w < least ? 0 : w;
}

static void cut_row(sample_cut *c, const int32_t *w)
{
    const uint64_t tail = sample_u64(w[SAMPLE_TAIL_LO], w[SAMPLE_TAIL_HI]);
    uint64_t total = 0, above = 0;
    if (w[SAMPLE_TOP_K] > 0 && w[SAMPLE_TOP_K] < c->n)
        c->order = find_order(c, (uint64_t)w[SAMPLE_TOP_K], false, &above);
    if (tail == 0)
        return;
    for (int32_t i = 0; i < c->n; i++)
        total += weight_of(c, i, 0);
    const uint64_t drop = tail >> 48 ? total : folio_weight_share(tail, total);
    const uint64_t need = FOLIO_MAX(total - drop, 1); /* one is kept */
    const uint32_t order = find_order(c, need, true, &above);
    c->last = find_tie(c, order, need - above);
    c->order = order;
}

static int32_t draw(const sample_cut *c, const int32_t *w)
{
    const uint64_t least = sample_u64(w[SAMPLE_MIN_LO], w[SAMPLE_MIN_HI]);
    uint64_t total = 0;
    for (int32_t i = 0; i < c->n; i++)
        total += weight_of(c, i, least);
    uint64_t u = folio_weight_high(
        sample_u64(w[SAMPLE_RANDOM_LO], w[SAMPLE_RANDOM_HI]), total);
    int32_t i = 0;
    for (; i < c->n - 1; i++) {
        const uint64_t one = weight_of(c, i, least);
        if (u < one)
            break;
        u -= one;
    }
    return i;
}

/* best: of x. */
static int32_t choose(const float *x, int32_t n, int32_t best, const int32_t *w,
                      int32_t *flags)
{
    const uint32_t order = sample_order(x[best]);
    sample_cut c = {.x = x,
                    .n = n,
                    .last = INT32_MAX,
                    .top = x[best],
                    .scale = float_at(&w[SAMPLE_SCALE])};
    if (order >= SAMPLE_ORDER_BAD || order <= SAMPLE_ORDER_OUT) {
        *flags = order >= SAMPLE_ORDER_BAD ? SAMPLE_BAD : SAMPLE_EMPTY;
        return -1;
    }
    if (w[SAMPLE_MODE] == SAMPLE_GREEDY)
        return best;
    if (w[SAMPLE_MODE] != SAMPLE_DRAW)
        return -1;
    cut_row(&c, w);
    return draw(&c, w);
}

static void sample_one(const sample_job *job, int64_t r, int32_t *out)
{
    const float *x = job->logits + (size_t)r * (size_t)job->stride;
    const int32_t *w = job->words + (size_t)r * FOLIO_SAMPLE_IN;
    const int32_t target = w[SAMPLE_TARGET], slot = w[SAMPLE_SLOT];
    int32_t *counts =
        slot < 0 ? NULL : job->counts + (size_t)slot * (size_t)job->n;
    const int32_t raw_best = find_best(x, job->n);
    const float max = x[raw_best];
    uint64_t sum = 0;
    memset(out, 0, FOLIO_SAMPLE_OUT * sizeof *out);
    out[SAMPLE_ID] = -1;
    if (sample_order(max) >= SAMPLE_ORDER_BAD) {
        out[SAMPLE_FLAGS] = SAMPLE_BAD;
        return;
    }
    if (sample_order(max) > SAMPLE_ORDER_OUT && !w[SAMPLE_NO_SUM])
        for (int32_t i = 0; i < job->n; i++)
            sum += folio_weight_fixed(x[i], max, SAMPLE_LOG2E, SAMPLE_SUM_ONE);
    memcpy(&out[SAMPLE_MAX], &max, sizeof max);
    if (target >= 0)
        memcpy(&out[SAMPLE_ASKED], &x[target], sizeof x[target]);
    out[SAMPLE_SUM_LO] = (int32_t)(uint32_t)sum;
    out[SAMPLE_SUM_HI] = (int32_t)(sum >> 32);
    const float *y = shape_row(job, r, x, w, counts);
    const int32_t best = y == x ? raw_best : find_best(y, job->n);
    const int32_t id = choose(y, job->n, best, w, &out[SAMPLE_FLAGS]);
    if (id < 0)
        return;
    out[SAMPLE_ID] = id;
    memcpy(&out[SAMPLE_LOGIT], &x[id], sizeof x[id]);
    if (counts)
        counts[id]++;
}

static void sample_rows(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    const sample_job *job = user;
    for (int64_t r = first; r < last; r++) {
        int32_t *out = job->out + (size_t)r * FOLIO_SAMPLE_OUT;
        sample_one(job, r, out);
        if (job->ids)
            job->ids[r] = FOLIO_MAX(out[SAMPLE_ID], 0);
    }
}

static folio_status open_sample(folio_op *op, const void *args)
{
    return folio_sample_scratch(op, args, &op->geo[GEO_SHAPES]);
}

static folio_status run_sample(folio_op *op, folio_queue *q, const void *args)
{
    const folio_sample_args *a = args;
    FOLIO_RETURN_IF(folio_sample_check_run(op, a, op->geo[GEO_SHAPES]));
    FOLIO_RETURN_IF(folio_host_sample_rows(op, a));
    sample_job job = {.logits = folio_view_host(a->logits),
                      .words = folio_view_host(a->rows),
                      .edits = folio_view_host(a->edits),
                      .counts = folio_view_host(a->counts),
                      .ids = folio_view_host(a->ids),
                      .out = folio_view_host(a->out),
                      .scratch = folio_view_host(a->scratch),
                      .n = a->n_vocab,
                      .stride = a->stride};
    folio_parallel_for(folio_device_threads(op->dev), a->n_rows, 1, sample_rows,
                       &job);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_sample = {.open = open_sample,
                                                 .run = run_sample};
