/* ops/ref/ref_sample.c: the contract of sample: every filter as a question
 * about sums over the row, asked bit by bit of the answer. Slow; never
 * optimised. */
#include "ops/host_args.h"
#include "ops/sample_row.h"
#include "ops/variants.h"

#include <math.h>

/* One row while it is drawn. */
typedef struct sample_row {
    const float *x; /* [n], raw */
    const int32_t *w, *edits;
    int32_t *counts; /* [n] or NULL */
    int32_t n;
    float top, scale; /* of the shaped row */
    /* Survivors so far: order above, or equal and an id of at most last. */
    uint32_t order;
    int32_t last;
} sample_row;

static float float_at(const int32_t *w)
{
    float v;
    memcpy(&v, w, sizeof v);
    return v;
}

/* The logit of `id` with its edits and penalties. */
static float shaped(const sample_row *r, int32_t id)
{
    float v = r->x[id];
    for (int32_t e = r->w[SAMPLE_EDIT_FIRST]; e < r->w[SAMPLE_EDIT_END]; e++)
        if (r->edits[2 * e] == id)
            v = v + float_at(&r->edits[2 * e + 1]);
    if (!r->counts || r->counts[id] == 0)
        return v;
    return sample_penalise(v, r->counts[id], float_at(&r->w[SAMPLE_REPEAT_MUL]),
                           float_at(&r->w[SAMPLE_REPEAT_DIV]),
                           float_at(&r->w[SAMPLE_PRESENCE]),
                           float_at(&r->w[SAMPLE_FREQUENCY]));
}

/* What an id counts for: 1, or its weight, if it has survived so far. */
static uint64_t measure(const sample_row *r, int32_t id, bool weigh)
{
    const float v = shaped(r, id);
    const uint32_t order = sample_order(v);
    if (order <= SAMPLE_ORDER_OUT || order < r->order ||
        (order == r->order && id > r->last))
        return 0;
    return weigh ? folio_sample_weight(v, r->top, r->scale) : 1;
}

static uint64_t sum_from(const sample_row *r, uint32_t order, bool weigh)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < r->n; i++)
        if (sample_order(shaped(r, i)) >= order)
            sum += measure(r, i, weigh);
    return sum;
}

/* The largest order from which on the row holds at least `need`; 0 if none. */
static uint32_t find_order(const sample_row *r, uint64_t need, bool weigh)
{
    uint32_t order = 0;
    for (uint32_t bit = (uint32_t)1 << 31; bit; bit >>= 1)
        if (sum_from(r, order | bit, weigh) >= need)
            order |= bit;
    return order;
}

/* The first id, in id order, with which `need` is reached among ids of this
 * order. */
static int32_t find_tie(const sample_row *r, uint32_t order, uint64_t need)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < r->n; i++) {
        if (sample_order(shaped(r, i)) == order)
            sum += measure(r, i, true);
        if (sum >= need)
            return i;
    }
    return r->n - 1;
}

static void cut_row(sample_row *r)
{
    const uint64_t tail =
        sample_u64(r->w[SAMPLE_TAIL_LO], r->w[SAMPLE_TAIL_HI]);
    if (r->w[SAMPLE_TOP_K] > 0)
        r->order = find_order(r, (uint64_t)r->w[SAMPLE_TOP_K], false);
    if (tail == 0)
        return;
    const uint64_t total = sum_from(r, 0, true);
    const uint64_t drop = tail >> 48 ? total : folio_weight_share(tail, total);
    const uint64_t need = FOLIO_MAX(total - drop, 1); /* one is kept */
    const uint32_t order = find_order(r, need, true);
    const uint64_t above = sum_from(r, order + 1, true);
    r->last = find_tie(r, order, need - above);
    r->order = order;
}

static uint64_t final_weight(const sample_row *r, int32_t id)
{
    const uint64_t w = measure(r, id, true);
    return w < sample_u64(r->w[SAMPLE_MIN_LO], r->w[SAMPLE_MIN_HI]) ? 0 : w;
}

static int32_t draw(const sample_row *r)
{
    uint64_t total = 0;
    for (int32_t i = 0; i < r->n; i++)
        total += final_weight(r, i);
    uint64_t u = folio_weight_high(
        sample_u64(r->w[SAMPLE_RANDOM_LO], r->w[SAMPLE_RANDOM_HI]), total);
    for (int32_t i = 0; i < r->n; i++) {
        const uint64_t w = final_weight(r, i);
        if (u < w)
            return i;
        u -= w;
    }
    return -1; /* not reached: u < total */
}

/* The lowest id of the largest order. */
static int32_t find_best(const sample_row *r, bool raw)
{
    int32_t best = 0;
    uint32_t most = 0;
    for (int32_t i = 0; i < r->n; i++) {
        const uint32_t order = sample_order(raw ? r->x[i] : shaped(r, i));
        if (order > most) {
            most = order;
            best = i;
        }
    }
    return best;
}

static int32_t choose(sample_row *r, int32_t *flags)
{
    const int32_t best = find_best(r, false);
    r->top = shaped(r, best);
    const uint32_t order = sample_order(r->top);
    if (order >= SAMPLE_ORDER_BAD)
        *flags = SAMPLE_BAD;
    else if (order <= SAMPLE_ORDER_OUT)
        *flags = SAMPLE_EMPTY;
    else if (r->w[SAMPLE_MODE] == SAMPLE_GREEDY)
        return best;
    else if (r->w[SAMPLE_MODE] == SAMPLE_DRAW) {
        cut_row(r);
        return draw(r);
    }
    return -1;
}

static void report_raw(const sample_row *r, float max, int32_t *out)
{
    uint64_t sum = 0;
    const bool sums = max != -INFINITY && !r->w[SAMPLE_NO_SUM];
    for (int32_t i = 0; i < r->n && sums; i++)
        sum += folio_weight_fixed(r->x[i], max, SAMPLE_LOG2E, SAMPLE_SUM_ONE);
    memcpy(&out[SAMPLE_MAX], &max, sizeof max);
    if (r->w[SAMPLE_TARGET] >= 0)
        memcpy(&out[SAMPLE_ASKED], &r->x[r->w[SAMPLE_TARGET]], sizeof max);
    out[SAMPLE_SUM_LO] = (int32_t)(uint32_t)sum;
    out[SAMPLE_SUM_HI] = (int32_t)(sum >> 32);
}

static void sample_one(sample_row *r, int32_t *out)
{
    memset(out, 0, FOLIO_SAMPLE_OUT * sizeof *out);
    out[SAMPLE_ID] = -1;
    const float max = r->x[find_best(r, true)];
    if (sample_order(max) >= SAMPLE_ORDER_BAD) {
        out[SAMPLE_FLAGS] = SAMPLE_BAD;
        return;
    }
    report_raw(r, max, out);
    const int32_t id = choose(r, &out[SAMPLE_FLAGS]);
    if (id < 0)
        return;
    out[SAMPLE_ID] = id;
    memcpy(&out[SAMPLE_LOGIT], &r->x[id], sizeof r->x[id]);
    if (r->counts)
        r->counts[id]++;
}

static folio_status run_sample(folio_op *op, folio_queue *q, const void *args)
{
    const folio_sample_args *a = args;
    const float *logits = folio_view_host(a->logits);
    const int32_t *words = folio_view_host(a->rows);
    int32_t *counts = folio_view_host(a->counts);
    int32_t *ids = folio_view_host(a->ids), *out = folio_view_host(a->out);
    FOLIO_RETURN_IF(folio_host_sample_rows(op, a));
    for (int32_t i = 0; i < a->n_rows; i++) {
        const int32_t *w = words + (size_t)i * FOLIO_SAMPLE_IN;
        int32_t *o = out + (size_t)i * FOLIO_SAMPLE_OUT;
        const int32_t slot = w[SAMPLE_SLOT];
        sample_row r = {.x = logits + (size_t)i * (size_t)a->stride,
                        .w = w,
                        .edits = folio_view_host(a->edits),
                        .n = a->n_vocab,
                        .scale = float_at(&w[SAMPLE_SCALE]),
                        .last = INT32_MAX};
        if (slot >= 0)
            r.counts = counts + (size_t)slot * (size_t)a->n_vocab;
        sample_one(&r, o);
        if (ids)
            ids[i] = FOLIO_MAX(o[SAMPLE_ID], 0);
    }
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_ref_sample = {.run = run_sample};
