/* ops/ref/ref_embed.c: the contracts of embed and gather_rows. Exact and slow;
 * never optimised. */
#include "ops/host_args.h"
#include "ops/variants.h"

#include <string.h>

static folio_status run_embed(folio_op *op, folio_queue *q, const void *args)
{
    const folio_embed_args *a = args;
    const int32_t *ids = folio_view_host(a->ids);
    float *out = folio_view_host(a->out);
    FOLIO_RETURN_IF(
        folio_host_indices(op, "ids", ids, a->n_tok, 1, 0, a->w->rows));
    for (int32_t t = 0; t < a->n_tok; t++) {
        float *row = out + (size_t)t * (size_t)a->w->cols;
        folio_weight_row(a->w, ids[t], row);
        for (int64_t i = 0; i < a->w->cols; i++)
            row[i] = (float)((double)a->scale * (double)row[i]);
    }
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_ref_embed = {.run = run_embed};

static folio_status run_gather(folio_op *op, folio_queue *q, const void *args)
{
    const folio_gather_rows_args *a = args;
    const int32_t *idx = folio_view_host(a->idx);
    const float *x = folio_view_host(a->x);
    float *out = folio_view_host(a->out);
    size_t dim = (size_t)a->dim;
    FOLIO_RETURN_IF(folio_host_indices(op, "idx", idx, a->n_rows, 1, 0,
                                       folio_host_rows(a->x, a->dim)));
    for (int32_t r = 0; r < a->n_rows; r++)
        memcpy(out + (size_t)r * dim, x + (size_t)idx[r] * dim,
               dim * sizeof(float));
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_ref_gather_rows = {.run = run_gather};
