/* ops/host/host_embed.c: embed and gather_rows of the host device: rows in
 * parallel, the same bits as the references. */
#include "ops/host_args.h"
#include "ops/variants.h"

#include <string.h>

static void embed_rows(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    const folio_embed_args *a = user;
    const int32_t *ids = folio_view_host(a->ids);
    for (int64_t t = first; t < last; t++) {
        float *row =
            (float *)folio_view_host(a->out) + (size_t)t * (size_t)a->w->cols;
        folio_weight_row(a->w, ids[t], row);
        if (a->scale == 1.0f)
            continue;
        for (int64_t i = 0; i < a->w->cols; i++)
            row[i] *= a->scale;
    }
}

static folio_status run_embed(folio_op *op, folio_queue *q, const void *args)
{
    folio_embed_args a = *(const folio_embed_args *)args;
    FOLIO_RETURN_IF(folio_host_indices(op, "ids", folio_view_host(a.ids),
                                       a.n_tok, 1, 0, a.w->rows));
    folio_parallel_for(folio_device_threads(op->dev), a.n_tok, 4, embed_rows,
                       &a);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_embed = {.run = run_embed};

static void gather_some(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    const folio_gather_rows_args *a = user;
    const int32_t *idx = folio_view_host(a->idx);
    const float *x = folio_view_host(a->x);
    float *out = folio_view_host(a->out);
    size_t dim = (size_t)a->dim;
    for (int64_t r = first; r < last; r++)
        memcpy(out + (size_t)r * dim, x + (size_t)idx[r] * dim,
               dim * sizeof *x);
}

static folio_status run_gather(folio_op *op, folio_queue *q, const void *args)
{
    folio_gather_rows_args a = *(const folio_gather_rows_args *)args;
    FOLIO_RETURN_IF(folio_host_indices(op, "idx", folio_view_host(a.idx),
                                       a.n_rows, 1, 0,
                                       folio_host_rows(a.x, a.dim)));
    folio_parallel_for(folio_device_threads(op->dev), a.n_rows, 16, gather_some,
                       &a);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_gather_rows = {.run = run_gather};
