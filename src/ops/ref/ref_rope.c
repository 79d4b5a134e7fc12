/* ops/ref/ref_rope.c: the contract of rope_append: rotate q in place, store
 * rotated k and v at their slots. Exact and slow; never optimised. */
#include "ops/host_args.h"
#include "ops/kv_host.h"
#include "ops/variants.h"

#include <string.h>

/* The largest head that op_check lets through. */
#define MAX_HEAD 256

/* The first rot_dim of x, turned by one row of the table. */
static void rotate(const folio_rope_append_args *a, const float *table,
                   const float *x, float *out)
{
    memmove(out, x, (size_t)a->kv.head_dim * sizeof(float));
    for (int32_t i = 0; i < a->rot_dim / 2; i++) {
        int32_t i0 = a->interleaved ? 2 * i : i;
        int32_t i1 = a->interleaved ? 2 * i + 1 : i + a->rot_dim / 2;
        double x0 = (double)out[i0], x1 = (double)out[i1];
        double c = (double)table[2 * i], s = (double)table[2 * i + 1];
        out[i0] = (float)(x0 * c - x1 * s);
        out[i1] = (float)(x1 * c + x0 * s);
    }
}

static void store(const folio_kv_ref *kv, const folio_kv_plane *plane,
                  int32_t x, int32_t y, int32_t slot, int32_t head,
                  const float *row)
{
    size_t tile_bytes = (size_t)kv->block_size * (size_t)kv->head_dim *
                        folio_kv_type_bytes(kv->type);
    uint8_t *tile = folio_kv_block_host(kv, plane, slot / kv->block_size) +
                    (size_t)head * tile_bytes;
    unsigned t = (unsigned)(slot % kv->block_size);
    for (int32_t d = 0; d < kv->head_dim; d++)
        folio_kv_put(kv->type, tile,
                     folio_kv_index(t, (unsigned)d, (unsigned)kv->block_size,
                                    (unsigned)x, (unsigned)y),
                     row[d]);
}

static folio_status run_rope(folio_op *op, folio_queue *q, const void *args)
{
    const folio_rope_append_args *a = args;
    const folio_kv_ref *kv = &a->kv;
    const int32_t *pos = folio_view_host(a->pos);
    const int32_t *slot = folio_view_host(a->slot);
    const float *table = folio_view_host(a->table);
    float *qs = folio_view_host(a->q);
    const float *ks = folio_view_host(a->k);
    const float *vs = folio_view_host(a->v);
    size_t hd = (size_t)kv->head_dim;
    FOLIO_RETURN_IF(folio_host_indices(op, "slot", slot, a->n_tok, 1, -1,
                                       (int64_t)kv->n_blocks * kv->block_size));
    if (a->rot_dim > 0)
        FOLIO_RETURN_IF(
            folio_host_indices(op, "pos", pos, a->n_tok, 1, 0, a->n_pos));
    for (int32_t t = 0; t < a->n_tok; t++) {
        const float *turn = NULL;
        if (a->rot_dim > 0)
            turn = table + (size_t)pos[t] * (size_t)a->rot_dim;
        for (int32_t h = 0; qs && h < a->heads; h++) {
            float *x = qs + (size_t)t * (size_t)a->q_stride + (size_t)h * hd;
            rotate(a, turn, x, x);
        }
        for (int32_t h = 0; slot[t] >= 0 && h < kv->kv_heads; h++) {
            float k[MAX_HEAD];
            rotate(a, turn,
                   ks + (size_t)t * (size_t)a->k_stride + (size_t)h * hd, k);
            store(kv, &kv->k, kv->layout.xk, kv->layout.yk, slot[t], h, k);
            store(kv, &kv->v, kv->layout.xv, kv->layout.yv, slot[t], h,
                  vs + (size_t)t * (size_t)a->v_stride + (size_t)h * hd);
        }
    }
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_ref_rope_append = {.run = run_rope};
