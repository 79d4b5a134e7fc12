/* ops/host/host_norm.c: rmsnorm of the host device: one row per item, sums in
 * float lanes in a fixed order. */
#include "ops/host/host_lanes.h"
#include "ops/variants.h"

#include <math.h>

typedef struct norm_job {
    const float *x, *w;
    float *res, *out; /* res NULL = none */
    size_t x_stride, out_stride;
    int32_t dim;
    float eps;
} norm_job;

/* h = x + res, kept in res; returns nothing but the rows. */
static void add_row(const float *x, float *res, int32_t dim)
{
    float a[FOLIO_LANES], b[FOLIO_LANES];
    for (int32_t i = 0; i < dim; i += FOLIO_LANES) {
        folio_lanes_load(a, x + i, dim - i);
        folio_lanes_load(b, res + i, dim - i);
        for (int j = 0; j < FOLIO_LANES; j++)
            b[j] = a[j] + b[j];
        folio_lanes_store(res + i, b, dim - i);
    }
}

static float sum_squares(const float *h, int32_t dim)
{
    float sum[FOLIO_LANES] = {0}, a[FOLIO_LANES];
    for (int32_t i = 0; i < dim; i += FOLIO_LANES) {
        folio_lanes_load(a, h + i, dim - i);
        for (int j = 0; j < FOLIO_LANES; j++)
            sum[j] += a[j] * a[j];
    }
    return folio_lanes_sum(sum);
}

static void scale_row(const float *h, const float *w, float inv, float *out,
                      int32_t dim)
{
    float a[FOLIO_LANES], b[FOLIO_LANES];
    for (int32_t i = 0; i < dim; i += FOLIO_LANES) {
        folio_lanes_load(a, h + i, dim - i);
        folio_lanes_load(b, w + i, dim - i);
        for (int j = 0; j < FOLIO_LANES; j++)
            a[j] = b[j] * (a[j] * inv);
        folio_lanes_store(out + i, a, dim - i);
    }
}

static void norm_rows(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    const norm_job *job = user;
    for (int64_t r = first; r < last; r++) {
        const float *h = job->x + (size_t)r * job->x_stride;
        if (job->res) {
            float *res = job->res + (size_t)r * (size_t)job->dim;
            add_row(h, res, job->dim);
            h = res;
        }
        float mean = sum_squares(h, job->dim) / (float)job->dim;
        scale_row(h, job->w, 1.0f / sqrtf(mean + job->eps),
                  job->out + (size_t)r * job->out_stride, job->dim);
    }
}

static folio_status run_rmsnorm(folio_op *op, folio_queue *q, const void *args)
{
    const folio_rmsnorm_args *a = args;
    norm_job job = {.x = folio_view_host(a->x),
                    .w = folio_view_host(a->w),
                    .res = folio_view_host(a->res),
                    .out = folio_view_host(a->out),
                    .x_stride = (size_t)a->x_stride,
                    .out_stride = (size_t)a->out_stride,
                    .dim = a->dim,
                    .eps = a->eps};
    /* Waking a thread costs about as much as 16 k elements. */
    folio_parallel_for(folio_device_threads(op->dev), a->n_rows,
                       1 + 16384 / a->dim, norm_rows, &job);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_rmsnorm = {.run = run_rmsnorm};
