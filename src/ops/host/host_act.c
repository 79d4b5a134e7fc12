/* ops/host/host_act.c: act_mul and add of the host device, in float lanes. */
#include "ops/host/host_lanes.h"
#include "ops/variants.h"

/* Elements that are worth a thread's waking. */
#define GRAIN 16384

typedef struct act_job {
    const float *gate, *up;
    float *out;
    size_t gate_stride, up_stride, out_stride;
    int32_t dim;
    folio_act act;
} act_job;

/* x times the logistic function of z: x / (1 + e^-|z|), times e^-|z| for
 * negative z. The choice is made on bits: it keeps the loop without branches
 * where a compiler may not evaluate both sides in floating point. */
static inline float times_logistic(float x, float z)
{
    const uint32_t one = 0x3f800000u;
    float e = folio_lane_exp_neg(z);
    uint32_t negative = 0u - (folio_f32_bits(z) >> 31);
    uint32_t top = (folio_f32_bits(e) & negative) | (one & ~negative);
    return x * folio_bits_f32(top) / (1.0f + e);
}

static void silu_mul(const float gate[FOLIO_LANES], float up[FOLIO_LANES])
{
    for (int j = 0; j < FOLIO_LANES; j++)
        up[j] = times_logistic(gate[j], gate[j]) * up[j];
}

/* 0.5 (1 + tanh u) is the logistic function of 2 u. */
static void gelu_mul(const float gate[FOLIO_LANES], float up[FOLIO_LANES])
{
    const float two_sqrt_2_over_pi = 1.59576912f;
    for (int j = 0; j < FOLIO_LANES; j++) {
        float g = gate[j];
        float z = two_sqrt_2_over_pi * (g + 0.044715f * g * g * g);
        up[j] = times_logistic(g, z) * up[j];
    }
}

static void act_rows(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    const act_job *job = user;
    float g[FOLIO_LANES], u[FOLIO_LANES];
    for (int64_t t = first; t < last; t++) {
        const float *gate = job->gate + (size_t)t * job->gate_stride;
        const float *up = job->up + (size_t)t * job->up_stride;
        float *out = job->out + (size_t)t * job->out_stride;
        for (int32_t i = 0; i < job->dim; i += FOLIO_LANES) {
            folio_lanes_load(g, gate + i, job->dim - i);
            folio_lanes_load(u, up + i, job->dim - i);
            if (job->act == FOLIO_ACT_SILU)
                silu_mul(g, u);
            else
                gelu_mul(g, u);
            folio_lanes_store(out + i, u, job->dim - i);
        }
    }
}

static folio_status run_act_mul(folio_op *op, folio_queue *q, const void *args)
{
    const folio_act_mul_args *a = args;
    act_job job = {.gate = folio_view_host(a->gate),
                   .up = folio_view_host(a->up),
                   .out = folio_view_host(a->out),
                   .gate_stride = (size_t)a->gate_stride,
                   .up_stride = (size_t)a->up_stride,
                   .out_stride = (size_t)a->out_stride,
                   .dim = a->dim,
                   .act = a->act};
    folio_parallel_for(folio_device_threads(op->dev), a->n_tok,
                       1 + GRAIN / 4 / a->dim, act_rows, &job);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_act_mul = {.run = run_act_mul};

typedef struct add_job {
    const float *x;
    float *y;
} add_job;

static void add_some(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    const add_job *job = user;
    float a[FOLIO_LANES], b[FOLIO_LANES];
    for (int64_t i = first; i < last; i += FOLIO_LANES) {
        folio_lanes_load(a, job->x + i, last - i);
        folio_lanes_load(b, job->y + i, last - i);
        for (int j = 0; j < FOLIO_LANES; j++)
            b[j] += a[j];
        folio_lanes_store(job->y + i, b, last - i);
    }
}

static folio_status run_add(folio_op *op, folio_queue *q, const void *args)
{
    const folio_add_args *a = args;
    add_job job = {.x = folio_view_host(a->x), .y = folio_view_host(a->y)};
    folio_parallel_for(folio_device_threads(op->dev), a->n, GRAIN, add_some,
                       &job);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_add = {.run = run_add};
