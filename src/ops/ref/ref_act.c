/* ops/ref/ref_act.c: the contracts of act_mul and add. Exact and slow; never
 * optimised. */
#include "ops/variants.h"

#include <math.h>

/* x / (1 + e^-x), without the overflow of e^-x for very negative x. */
static double silu(double x)
{
    if (x >= 0)
        return x / (1 + exp(-x));
    double e = exp(x);
    return x * e / (1 + e);
}

/* The tanh form of GELU (Hendrycks and Gimpel, arXiv 1606.08415). */
static double gelu_tanh(double x)
{
    const double sqrt_2_over_pi = 0.79788456080286535588;
    return 0.5 * x * (1 + tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
}

static folio_status run_act_mul(folio_op *op, folio_queue *q, const void *args)
{
    (void)op;
    const folio_act_mul_args *a = args;
    for (int32_t t = 0; t < a->n_tok; t++) {
        const float *gate = (const float *)folio_view_host(a->gate) +
                            (size_t)t * (size_t)a->gate_stride;
        const float *up = (const float *)folio_view_host(a->up) +
                          (size_t)t * (size_t)a->up_stride;
        float *out = (float *)folio_view_host(a->out) +
                     (size_t)t * (size_t)a->out_stride;
        for (int32_t i = 0; i < a->dim; i++) {
            double g = (double)gate[i];
            double act = a->act == FOLIO_ACT_SILU ? silu(g) : gelu_tanh(g);
            out[i] = (float)(act * (double)up[i]);
        }
    }
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_ref_act_mul = {.run = run_act_mul};

static folio_status run_add(folio_op *op, folio_queue *q, const void *args)
{
    (void)op;
    const folio_add_args *a = args;
    const float *x = folio_view_host(a->x);
    float *y = folio_view_host(a->y);
    for (int64_t i = 0; i < a->n; i++)
        y[i] = (float)((double)y[i] + (double)x[i]);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_ref_add = {.run = run_add};
