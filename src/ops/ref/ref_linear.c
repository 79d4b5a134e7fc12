/* ops/ref/ref_linear.c: the contract of linear: weights dequantised exactly,
 * sums in double in the order of the columns. Slow; never optimised. */
#include "ops/variants.h"

/* Values dequantised at once (whole blocks of every type), and tokens that
 * share them: both bound the stack. */
#define CHUNK  256
#define TOKENS 32

static void add_products(const folio_linear_args *a, const float *x,
                         int64_t row, int32_t tok, int32_t n_tok,
                         double sum[TOKENS])
{
    int64_t cols = a->w->cols;
    size_t stride = (size_t)a->x_stride;
    uint8_t room[CHUNK * sizeof(float)];
    float w[CHUNK];
    for (int32_t t = 0; t < n_tok; t++)
        sum[t] = 0;
    for (int64_t c = 0; c < cols; c += CHUNK) {
        int64_t n = FOLIO_MIN(cols - c, (int64_t)CHUNK);
        folio_dequant(a->w->type,
                      folio_weight_blocks_host(a->w, row, c, n, room), n, w);
        for (int32_t t = 0; t < n_tok; t++) {
            const float *xt = x + (size_t)(tok + t) * stride + c;
            for (int64_t i = 0; i < n; i++)
                sum[t] += (double)w[i] * (double)xt[i];
        }
    }
}

static folio_status run_linear(folio_op *op, folio_queue *q, const void *args)
{
    (void)op;
    const folio_linear_args *a = args;
    const float *x = folio_view_host(a->x);
    const float *bias = folio_view_host(a->bias);
    float *y = folio_view_host(a->y);
    double sum[TOKENS];
    for (int32_t tok = 0; tok < a->n_tok; tok += TOKENS) {
        int32_t n_tok = FOLIO_MIN(a->n_tok - tok, TOKENS);
        for (int64_t r = 0; r < a->w->rows; r++) {
            add_products(a, x, r, tok, n_tok, sum);
            for (int32_t t = 0; t < n_tok; t++) {
                float *out = y + (size_t)(tok + t) * (size_t)a->y_stride + r;
                double v = sum[t];
                if (bias)
                    v += (double)bias[r];
                if (a->accumulate)
                    v += (double)*out;
                *out = (float)v;
            }
        }
    }
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_ref_linear = {.run = run_linear};
