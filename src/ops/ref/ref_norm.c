/* ops/ref/ref_norm.c: the contract of rmsnorm. Exact and slow; never optimised.
 */
#include "ops/variants.h"

#include <math.h>

static folio_status run_rmsnorm(folio_op *op, folio_queue *q, const void *args)
{
    (void)op;
    const folio_rmsnorm_args *a = args;
    const float *w = folio_view_host(a->w);
    for (int32_t r = 0; r < a->n_rows; r++) {
        const float *x = (const float *)folio_view_host(a->x) +
                         (size_t)r * (size_t)a->x_stride;
        float *out = (float *)folio_view_host(a->out) +
                     (size_t)r * (size_t)a->out_stride;
        const float *h = x;
        if (a->res.buf) {
            float *res =
                (float *)folio_view_host(a->res) + (size_t)r * (size_t)a->dim;
            for (int32_t i = 0; i < a->dim; i++)
                res[i] = (float)((double)x[i] + (double)res[i]);
            h = res;
        }
        double sum = 0;
        for (int32_t i = 0; i < a->dim; i++)
            sum += (double)h[i] * (double)h[i];
        double inv = 1.0 / sqrt(sum / a->dim + (double)a->eps);
        for (int32_t i = 0; i < a->dim; i++)
            out[i] = (float)((double)w[i] * ((double)h[i] * inv));
    }
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_ref_rmsnorm = {.run = run_rmsnorm};
