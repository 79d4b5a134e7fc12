/* ops/host/host_q8.c: linear with 8-bit activations on the host device: which
 * instruction set, tokens and rows shared out to the threads. No arithmetic
 * here. */
#include "ops/host/host_q8.h"

#include "ops/host/host_cpu.h"
#include "ops/variants.h"

/* Values worth a thread's waking when tokens are quantised. */
#define GRAIN 16384
#define ALIGN 64

const folio_host_q8_set *folio_host_q8_set_at(int i)
{
    const folio_host_q8_set *sets[3] = {0};
    int n = 0;
#ifdef FOLIO_HAVE_VNNI
    if (folio_host_has_vnni())
        sets[n++] = &folio_host_q8_vnni;
#endif
#ifdef FOLIO_HAVE_AVX2
    if (folio_host_has_avx2())
        sets[n++] = &folio_host_q8_avx2;
#endif
    sets[n++] = &folio_host_q8_base;
    return i >= 0 && i < n ? sets[i] : NULL;
}

bool folio_host_q8_knows(folio_type type)
{
    switch (type) {
    case FOLIO_TYPE_Q4_0:
    case FOLIO_TYPE_Q4_1:
    case FOLIO_TYPE_Q5_0:
    case FOLIO_TYPE_Q5_1:
    case FOLIO_TYPE_Q8_0:
    case FOLIO_TYPE_Q4_K:
    case FOLIO_TYPE_Q5_K:
    case FOLIO_TYPE_Q6_K:
        return true;
    default:
        return false;
    }
}

/* Steps first, then the values, from the scratch's first aligned byte on. */
static size_t step_bytes(int64_t n_tok, int64_t cols)
{
    size_t n = (size_t)n_tok * (size_t)(cols / HOST_Q8_BLOCK);
    return folio_align_up(n * sizeof(folio_host_q8_step), ALIGN);
}

size_t folio_host_q8_scratch_bytes(int64_t n_tok, int64_t cols)
{
    return ALIGN + step_bytes(n_tok, cols) + (size_t)n_tok * (size_t)cols;
}

typedef struct token_job {
    const folio_host_q8_set *set;
    folio_type type;
    const float *x;
    int64_t cols, x_stride;
    int8_t *q;
    folio_host_q8_step *step;
} token_job;

static void quantise_tokens(void *user, int64_t first, int64_t last, int thread)
{
    const token_job *s = user;
    (void)thread;
    for (int64_t t = first; t < last; t++)
        s->set->quantise(s->type, s->x + t * s->x_stride, s->cols,
                         s->q + t * s->cols,
                         s->step + t * (s->cols / HOST_Q8_BLOCK));
}

typedef struct row_job {
    const folio_host_q8_set *set;
    folio_host_q8_job job;
} row_job;

static void run_items(void *user, int64_t first, int64_t last, int thread)
{
    const row_job *s = user;
    (void)thread;
    for (int64_t i = first; i < last; i++) {
        int64_t row = i * s->set->lanes;
        int64_t left = s->job.rows - row;
        s->set->rows(&s->job, row, (int)FOLIO_MIN(left, s->set->lanes));
    }
}

void folio_host_q8_run(const folio_host_q8_set *set, folio_thread_pool *threads,
                       const folio_linear_args *a)
{
    const folio_weight *w = a->w;
    const float *bias = folio_view_host(a->bias);
    float *y = folio_view_host(a->y);
    uint8_t *scratch = folio_view_host(a->scratch);
    scratch += (ALIGN - (uintptr_t)scratch % ALIGN) % ALIGN;
    token_job tokens = {
        .set = set,
        .type = w->type,
        .x = folio_view_host(a->x),
        .cols = w->cols,
        .x_stride = a->x_stride,
        .q = (int8_t *)scratch + step_bytes(a->n_tok, w->cols),
        .step = (folio_host_q8_step *)(void *)scratch,
    };
    folio_parallel_for(threads, a->n_tok, 1 + GRAIN / w->cols, quantise_tokens,
                       &tokens);
    for (int32_t i = 0; i < w->n_views; i++) {
        const folio_weight_view *v = &w->views[i];
        row_job s = {.set = set};
        s.job = (folio_host_q8_job){
            .type = w->type,
            .packing = w->packing,
            .w = folio_view_host(v->view),
            .row_bytes = folio_type_row_bytes(w->type, (uint64_t)w->cols),
            .rows = v->rows,
            .cols = w->cols,
            .q = tokens.q,
            .step = tokens.step,
            .y = y + v->first_row,
            .bias = bias ? bias + v->first_row : NULL,
            .n_tok = a->n_tok,
            .y_stride = a->y_stride,
            .accumulate = a->accumulate != 0,
        };
        int64_t n_items = folio_div_up(v->rows, set->lanes);
        /* A few grains a thread, so that a slow core costs little and each
         * still walks through memory in long runs. */
        int64_t grain = n_items / (folio_thread_pool_size(threads) * 4);
        folio_parallel_for(threads, n_items, FOLIO_MAX(grain, 1), run_items,
                           &s);
    }
}

static const char *fits_host_q8(const folio_device *dev,
                                const folio_op_params *prm, const void *args)
{
    const folio_linear_args *a = args;
    (void)dev;
    (void)prm;
    if (a->w->packing != FOLIO_PACK_RAW && a->w->packing != FOLIO_PACK_RG16)
        return "reads RAW and RG16 only";
    if (!folio_host_q8_knows(a->w->type))
        return "weights are not of a type with blocks of small integers";
    return NULL;
}

static folio_status open_host_q8(folio_op *op, const void *args)
{
    const folio_linear_args *a = args;
    op->geo[0] = 0; /* place of the set; the best one */
    op->scratch_bytes = folio_host_q8_scratch_bytes(op->max_count, a->w->cols);
    return FOLIO_OK;
}

static folio_status run_host_q8(folio_op *op, folio_queue *q, const void *args)
{
    folio_host_q8_run(folio_host_q8_set_at(op->geo[0]),
                      folio_device_threads(op->dev), args);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_linear_q8 = {
    .fits = fits_host_q8,
    .open = open_host_q8,
    .run = run_host_q8,
};
