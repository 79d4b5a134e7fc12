/* ops/host/host_copy.c: copy_blocks of the host device: pairs in parallel. */
#include "ops/host_args.h"
#include "ops/kv_host.h"
#include "ops/variants.h"

#include <string.h>

static void copy_pairs(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    const folio_copy_blocks_args *a = user;
    const int32_t *pairs = folio_view_host(a->pairs);
    size_t bytes = folio_kv_block_bytes(&a->kv);
    for (int64_t i = first; i < last; i++) {
        const folio_kv_plane *plane = i % 2 ? &a->kv.v : &a->kv.k;
        const int32_t *pair = pairs + i / 2 * 2;
        memmove(folio_kv_block_host(&a->kv, plane, pair[1]),
                folio_kv_block_host(&a->kv, plane, pair[0]), bytes);
    }
}

static folio_status run_copy(folio_op *op, folio_queue *q, const void *args)
{
    folio_copy_blocks_args a = *(const folio_copy_blocks_args *)args;
    int64_t n = 2 * (int64_t)a.n_pairs;
    FOLIO_RETURN_IF(folio_host_indices(op, "pairs", folio_view_host(a.pairs), n,
                                       1, 0, a.kv.n_blocks));
    folio_parallel_for(folio_device_threads(op->dev), n, 4, copy_pairs, &a);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_copy_blocks = {.run = run_copy};
