/* ops/ref/ref_copy.c: the contract of copy_blocks. */
#include "ops/host_args.h"
#include "ops/kv_host.h"
#include "ops/variants.h"

#include <string.h>

static folio_status run_copy(folio_op *op, folio_queue *q, const void *args)
{
    const folio_copy_blocks_args *a = args;
    const int32_t *pairs = folio_view_host(a->pairs);
    size_t bytes = folio_kv_block_bytes(&a->kv);
    FOLIO_RETURN_IF(folio_host_indices(
        op, "pairs", pairs, 2 * (int64_t)a->n_pairs, 1, 0, a->kv.n_blocks));
    for (int32_t i = 0; i < a->n_pairs; i++) {
        int32_t src = pairs[2 * i], dst = pairs[2 * i + 1];
        memmove(folio_kv_block_host(&a->kv, &a->kv.k, dst),
                folio_kv_block_host(&a->kv, &a->kv.k, src), bytes);
        memmove(folio_kv_block_host(&a->kv, &a->kv.v, dst),
                folio_kv_block_host(&a->kv, &a->kv.v, src), bytes);
    }
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_ref_copy_blocks = {.run = run_copy};
