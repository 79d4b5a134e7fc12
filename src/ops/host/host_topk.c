/* ops/host/host_topk.c: topk of the host device: one pass a row over a short
 * sorted list; most blocks are passed over by one comparison with its end. */
#include "ops/host/host_lanes.h"
#include "ops/variants.h"

#define MAX_K 64

typedef struct topk_job {
    const float *x;
    int32_t *ids, *n_nan;
    float *values;
    int32_t n_vocab, k;
} topk_job;

typedef struct best_list {
    int32_t ids[MAX_K];
    float values[MAX_K];
    int32_t n, n_nan;
} best_list;

/* Ids come in ascending order, so an equal value ranks behind. */
static void offer(best_list *best, int32_t k, float v, int32_t id)
{
    if (v != v) {
        best->n_nan++;
        return;
    }
    if (best->n == k && !(v > best->values[k - 1]))
        return;
    int32_t at = best->n < k ? best->n++ : k - 1;
    for (; at > 0 && v > best->values[at - 1]; at--) {
        best->values[at] = best->values[at - 1];
        best->ids[at] = best->ids[at - 1];
    }
    best->values[at] = v;
    best->ids[at] = id;
}

/* Whether a full block holds a NaN or a number above the list's end. */
static bool is_interesting(const float *x, float end)
{
    int any = 0;
    for (int j = 0; j < FOLIO_LANES; j++)
        any |= !(x[j] <= end);
    return any != 0;
}

static void scan_row(const float *x, int32_t n, int32_t k, best_list *best)
{
    int32_t i = 0;
    best->n = 0;
    best->n_nan = 0;
    for (; i < n && best->n < k; i++)
        offer(best, k, x[i], i);
    for (; i + FOLIO_LANES <= n; i += FOLIO_LANES)
        if (is_interesting(x + i, best->values[k - 1]))
            for (int32_t j = i; j < i + FOLIO_LANES; j++)
                offer(best, k, x[j], j);
    for (; i < n; i++)
        offer(best, k, x[i], i);
}

static void topk_rows(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    const topk_job *job = user;
    best_list best;
    for (int64_t r = first; r < last; r++) {
        scan_row(job->x + (size_t)r * (size_t)job->n_vocab, job->n_vocab,
                 job->k, &best);
        int32_t *ids = job->ids + (size_t)r * (size_t)job->k;
        float *values = job->values + (size_t)r * (size_t)job->k;
        for (int32_t i = 0; i < job->k; i++) {
            ids[i] = i < best.n ? best.ids[i] : -1;
            values[i] = i < best.n ? best.values[i] : 0.0f;
        }
        job->n_nan[r] = best.n_nan;
    }
}

static folio_status run_topk(folio_op *op, folio_queue *q, const void *args)
{
    const folio_topk_args *a = args;
    topk_job job = {.x = folio_view_host(a->x),
                    .ids = folio_view_host(a->ids),
                    .n_nan = folio_view_host(a->n_nan),
                    .values = folio_view_host(a->values),
                    .n_vocab = a->n_vocab,
                    .k = a->k};
    folio_parallel_for(folio_device_threads(op->dev), a->n_rows,
                       1 + 16384 / a->n_vocab, topk_rows, &job);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_topk = {.run = run_topk};
