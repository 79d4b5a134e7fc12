/* ops/ref/ref_topk.c: the contract of topk: k passes, each takes the largest
 * number that comes after the last one taken. Slow; never optimised. */
#include "ops/variants.h"

/* Order of rank: larger value first, equal values (-0 equals 0) by lower id. */
static bool ranks_before(float v, int32_t id, float w, int32_t other)
{
    return v > w || (v == w && id < other);
}

static int32_t find_next(const float *x, int32_t n, int32_t last)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        if (x[i] != x[i])
            continue;
        if (last >= 0 && !ranks_before(x[last], last, x[i], i))
            continue;
        if (best < 0 || ranks_before(x[i], i, x[best], best))
            best = i;
    }
    return best;
}

static folio_status run_topk(folio_op *op, folio_queue *q, const void *args)
{
    (void)op;
    const folio_topk_args *a = args;
    int32_t *n_nan = folio_view_host(a->n_nan);
    for (int32_t r = 0; r < a->n_rows; r++) {
        const float *x = (const float *)folio_view_host(a->x) +
                         (size_t)r * (size_t)a->n_vocab;
        int32_t *ids =
            (int32_t *)folio_view_host(a->ids) + (size_t)r * (size_t)a->k;
        float *values =
            (float *)folio_view_host(a->values) + (size_t)r * (size_t)a->k;
        n_nan[r] = 0;
        for (int32_t i = 0; i < a->n_vocab; i++)
            n_nan[r] += x[i] != x[i];
        int32_t last = -1;
        bool more = true;
        for (int32_t i = 0; i < a->k; i++) {
            int32_t next = more ? find_next(x, a->n_vocab, last) : -1;
            more = next >= 0;
            ids[i] = next;
            values[i] = more ? x[next] : 0.0f;
            last = next;
        }
    }
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_ref_topk = {.run = run_topk};
