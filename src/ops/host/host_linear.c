/* ops/host/host_linear.c: linear on the host device: which instruction set,
 * and the rows of each view shared out to the threads. No arithmetic here. */
#include "ops/host/host_linear.h"

#include "ops/host/host_cpu.h"
#include "ops/variants.h"

const folio_host_linear_set *folio_host_linear_set_at(int i)
{
    const folio_host_linear_set *sets[3] = {0};
    int n = 0;
#ifdef FOLIO_HAVE_AVX512
    if (folio_host_has_avx512())
        sets[n++] = &folio_host_linear_avx512;
#endif
#ifdef FOLIO_HAVE_AVX2
    if (folio_host_has_avx2())
        sets[n++] = &folio_host_linear_avx2;
#endif
    sets[n++] = &folio_host_linear_base;
    return i >= 0 && i < n ? sets[i] : NULL;
}

typedef struct shared_job {
    const folio_host_linear_set *set;
    folio_host_linear_job job;
} shared_job;

static void run_items(void *user, int64_t first, int64_t last, int thread)
{
    const shared_job *s = user;
    (void)thread;
    for (int64_t i = first; i < last; i++) {
        int64_t row = i * HOST_LINEAR_ROWS;
        int64_t left = s->job.rows - row;
        s->set->rows(&s->job, row, (int)FOLIO_MIN(left, HOST_LINEAR_ROWS));
    }
}

void folio_host_linear_run(const folio_host_linear_set *set,
                           folio_thread_pool *threads,
                           const folio_linear_args *a)
{
    const folio_weight *w = a->w;
    const float *bias = folio_view_host(a->bias);
    float *y = folio_view_host(a->y);

    for (int32_t i = 0; i < w->n_views; i++) {
        const folio_weight_view *v = &w->views[i];
        shared_job s = {.set = set};
        s.job = (folio_host_linear_job){
            .type = w->type,
            .packing = w->packing,
            .w = folio_view_host(v->view),
            .row_bytes = folio_type_row_bytes(w->type, (uint64_t)w->cols),
            .rows = v->rows,
            .cols = w->cols,
            .x = folio_view_host(a->x),
            .y = y + v->first_row,
            .bias = bias ? bias + v->first_row : NULL,
            .n_tok = a->n_tok,
            .x_stride = a->x_stride,
            .y_stride = a->y_stride,
            .accumulate = a->accumulate != 0,
        };
        int64_t n_items = folio_div_up(v->rows, HOST_LINEAR_ROWS);
        /* Several grains a thread, so that a slow core costs little. */
        int64_t grain = n_items / (folio_thread_pool_size(threads) * 8);
        folio_parallel_for(threads, n_items, FOLIO_MAX(grain, 1), run_items,
                           &s);
    }
}

static folio_status open_host_linear(folio_op *op, const void *args)
{
    (void)args;
    op->geo[0] = 0; /* place of the set; the best one */
    return FOLIO_OK;
}

static folio_status run_host_linear(folio_op *op, folio_queue *q,
                                    const void *args)
{
    const folio_linear_args *a = args;
    if (a->n_tok == 0)
        return FOLIO_OK;
    folio_host_linear_run(folio_host_linear_set_at(op->geo[0]),
                          folio_device_threads(op->dev), a);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_linear = {
    .open = open_host_linear,
    .run = run_host_linear,
};
