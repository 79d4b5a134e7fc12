/* ops/cl/cl_attn_mma.c: launches attn_mma.cl for sequences with many new
 * tokens, and leaves the decoding ones of the batch to attn_bulk.cl. Knows how
 * many rows and keys a work-group takes and what they need of local memory. */
#include <stdio.h>
#include <string.h>

#include "ops/cl/cl_attn.h"
#include "ops/variants.h"

enum { WARP = 32, LOCAL_MOST = 200 << 10 };

typedef struct mma_shape {
    int32_t warps, rows16, keys, stages; /* WARPS, MT, NK, STAGES */
    int32_t regs;                        /* most per work-item; 0: no limit */
} mma_shape;

static size_t shape_local(const folio_attn_args *a, const mma_shape *s)
{
    return (size_t)s->stages *
               (4 * (size_t)s->keys * (size_t)a->kv.head_dim + 16) +
           16;
}

static int32_t shape_rows(const mma_shape *s)
{
    return 16 * s->warps * s->rows16;
}

static bool shape_mma(const folio_device *dev, const folio_op_params *prm,
                      bool emulated, const folio_attn_args *a, mma_shape *s)
{
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    const uint64_t room =
        emulated ? info.local_bytes : FOLIO_MAX(info.local_bytes, LOCAL_MOST);
    const int32_t hd = a->kv.head_dim, bs = a->kv.block_size;
    /* What lies in registers is in proportion to rows times (dims + keys). */
    const int32_t keys = emulated ? 32 : hd > 128 ? 32 : 64;
    const uint32_t most = info.max_work_group / (emulated ? 1u : WARP);
    /* For long rows several small groups a unit, with few registers each, hide
     * what one large group waits for. */
    const bool small = hd > 64 && hd <= 128;
    s->warps = folio_cl_tuned(prm, "MMA_WARPS", emulated ? 2 : small ? 4 : 8);
    s->rows16 = folio_cl_tuned(prm, "MT", 1);
    s->keys = folio_cl_tuned(prm, "NK", keys);
    s->keys = (int32_t)folio_div_up(FOLIO_MAX(s->keys, 16), bs) * bs;
    s->regs = folio_cl_tuned(prm, "REGS", small ? 168 : 0);
    s->warps = FOLIO_MAX(FOLIO_MIN(s->warps, (int32_t)FOLIO_MIN(most, 32u)), 1);
    s->rows16 = FOLIO_MIN(FOLIO_MAX(s->rows16, 1), 4);
    for (s->stages = folio_cl_tuned(prm, "STAGES", emulated || small ? 2 : 3);
         s->stages >= 2; s->stages--)
        if (shape_local(a, s) <= room)
            return true;
    return false;
}

static bool lacks(const folio_device *dev)
{
    const uint64_t needs =
        FOLIO_CAP_PTX_MMA | FOLIO_CAP_PTX_BULK | FOLIO_CAP_BIG_LOCAL;
    return (needs & ~folio_device_caps(dev)) != 0;
}

static const char *fits_mma(const folio_device *dev, const folio_op_params *prm,
                            const void *args)
{
    mma_shape s;
    const char *why = folio_cl_attn_refuse(dev, prm, args);
    if (!why)
        why = folio_cl_attn_bulk_fit(dev, prm, args);
    if (!why && !shape_mma(dev, prm, lacks(dev), args, &s))
        why = "local memory too small";
    return why;
}

static folio_status open_mma(folio_op *op, const void *args)
{
    const folio_attn_args *a = args;
    const bool emulated = folio_cl_emulates(op);
    mma_shape s;
    if (!shape_mma(op->dev, &op->prm, emulated, a, &s))
        return FOLIO_E_UNSUPPORTED;
    FOLIO_RETURN_IF(folio_cl_attn_bulk_open(op, a));
    const int32_t group = a->heads / a->kv.kv_heads;
    /* Evenly shared: nine heads for eight rows are five and four. */
    const int64_t parts = folio_div_up(group, shape_rows(&s));
    const int32_t heads = (int32_t)folio_div_up(group, parts);
    folio_cl_options o;
    folio_cl_attn_define(&o, op, a);
    folio_cl_define(&o, "WARP_EMULATED", emulated);
    folio_cl_define(&o, "WARPS", s.warps);
    folio_cl_define(&o, "MT", s.rows16);
    folio_cl_define(&o, "NK", s.keys);
    folio_cl_define(&o, "STAGES", s.stages);
    folio_cl_define(&o, "HQ", heads);
    char more[40] = "";
    if (s.regs > 0 && !emulated)
        snprintf(more, sizeof more, "-cl-nv-maxrregcount=%d", s.regs);
    op->geo[FOLIO_GEO_TILE_WG] = s.warps * (emulated ? 1 : WARP);
    op->geo[FOLIO_GEO_TILE_GROUPS] = a->kv.kv_heads * (int32_t)parts;
    FOLIO_RETURN_IF(folio_cl_kernel_open_of(op, FOLIO_ATTN_TILE, "attn_mma", &o,
                                            op->geo[FOLIO_GEO_TILE_WG], more));
    folio_attn_plan_params p;
    folio_attn_plan_params_of(op, &p);
    p.tile_q = shape_rows(&s) / heads;
    p.tile_min_q = FOLIO_ATTN_TILE_MIN_Q;
    memcpy(op->geo, &p, sizeof p);
    return FOLIO_OK;
}

static folio_status run_mma(folio_op *op, folio_queue *q, const void *args)
{
    const folio_attn_args *a = args;
    FOLIO_RETURN_IF(folio_cl_attn_bulk_run(op, q, a));
    if (a->work.n_tiles == 0)
        return FOLIO_OK;
    FOLIO_RETURN_IF(folio_cl_attn_check_bulk(op, &a->kv));
    return folio_cl_attn_tiles_run(op, q, a);
}

const folio_variant_fns folio_var_attn_mma = {
    .fits = fits_mma, .open = open_mma, .run = run_mma};
