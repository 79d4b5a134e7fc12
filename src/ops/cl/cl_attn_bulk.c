/* ops/cl/cl_attn_bulk.c: launches attn_bulk.cl: decoding sequences by spans of
 * blocks that travel in bulk copies. Prefill is left to tiles. Knows what the
 * kernel needs of layout and local memory, and how many work-groups are
 * resident at once. */
#include <string.h>

#include "ops/cl/cl_attn.h"
#include "ops/variants.h"

enum {
    WARP = 32,
    MAX_EIGHTS = 2,         /* HT: eights of heads per column */
    MAX_PER_UNIT = 2,       /* work-groups resident in a compute unit */
    LOCAL_MOST = 200 << 10, /* of FOLIO_CAP_BIG_LOCAL */
    LOCAL_UNIT = 224 << 10, /* of a compute unit, for all its groups */
    IN_FLIGHT = 64 << 10,   /* bytes on their way to a group that suffice */
    SCRATCH_ALIGN = 16,
    /* What all groups read in the time that the last of a column adds up. */
    MERGE_BYTES = 8 << 20
};

typedef struct bulk_shape {
    int32_t warps, slots, eights, per_unit;
    int32_t lanes; /* work-items per warp */
} bulk_shape;

static size_t slot_bytes(const folio_attn_args *a)
{
    return 4 * (size_t)a->kv.block_size * (size_t)a->kv.head_dim;
}

static size_t shape_local(const folio_attn_args *a, const bulk_shape *s,
                          int32_t groups)
{
    const size_t heads = 8 * (size_t)s->eights, warps = (size_t)s->warps;
    const size_t parts =
        FOLIO_MAX(warps * (size_t)a->kv.head_dim, (size_t)groups);
    return warps * ((size_t)s->slots * (slot_bytes(a) + 8) +
                    heads * 2 * sizeof(float)) +
           parts * heads * sizeof(float) + 64;
}

/* Work-groups of a launch: all that are resident at once. An odd number where
 * emulated, so that shares are uneven in checks. */
static int32_t count_groups(const folio_device *dev, const folio_op_params *prm,
                            bool emulated, int32_t per_unit)
{
    const int32_t units = FOLIO_MIN(folio_cl_units(dev), 4096);
    const int32_t groups =
        folio_cl_tuned(prm, "GROUPS", emulated ? 7 : units * per_unit);
    return FOLIO_MAX(groups, 1);
}

/* One group of eight warps per unit where it fits; fewer warps where local
 * memory is short, as on devices that emulate. */
static bool shape_bulk(const folio_device *dev, const folio_op_params *prm,
                       bool emulated, const folio_attn_args *a, bulk_shape *s)
{
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    const uint64_t room =
        emulated ? info.local_bytes : FOLIO_MAX(info.local_bytes, LOCAL_MOST);
    const int32_t group = a->heads / a->kv.kv_heads;
    const int32_t most = count_groups(dev, prm, emulated, MAX_PER_UNIT);
    s->lanes = emulated ? 1 : WARP;
    s->eights = group > 8 && a->kv.head_dim <= 128 ? MAX_EIGHTS : 1;
    for (int32_t warps = emulated ? 2 : 8; warps >= 1; warps /= 2) {
        const size_t want = IN_FLIGHT / ((size_t)warps * slot_bytes(a));
        s->warps = folio_cl_tuned(prm, "WARPS", warps);
        s->slots = (int32_t)FOLIO_MAX(FOLIO_MIN(want, emulated ? 2 : 4), 2);
        s->slots = folio_cl_tuned(prm, "SLOTS", s->slots);
        s->warps = FOLIO_MAX(s->warps, 1);
        s->slots = FOLIO_MAX(s->slots, 1);
        const size_t local = shape_local(a, s, most);
        if (local > room ||
            (uint64_t)s->warps * (uint64_t)s->lanes > info.max_work_group)
            continue;
        s->per_unit = FOLIO_MIN((int32_t)(LOCAL_UNIT / local), MAX_PER_UNIT);
        s->per_unit = FOLIO_MAX(s->per_unit, 1);
        if (s->warps >= 8)
            s->per_unit = 1;
        return true;
    }
    return false;
}

static bool lacks(const folio_device *dev)
{
    const uint64_t needs =
        FOLIO_CAP_PTX_MMA | FOLIO_CAP_PTX_BULK | FOLIO_CAP_BIG_LOCAL;
    return (needs & ~folio_device_caps(dev)) != 0;
}

const char *folio_cl_attn_bulk_fit(const folio_device *dev,
                                   const folio_op_params *prm,
                                   const folio_attn_args *a)
{
    const folio_kv_layout *l = &a->kv.layout;
    bulk_shape s;
    if (a->kv.type != FOLIO_KV_F16)
        return "KV is not f16";
    if (a->kv.head_dim % 16 != 0 || a->kv.block_size % 16 != 0)
        return "head size or block size not a multiple of 16";
    if (l->xk != 8 || l->yk != 1 || l->xv != 8 || l->yv != 1)
        return "KV layout is not (8, 1)";
    if (!shape_bulk(dev, prm, lacks(dev), a, &s))
        return "local memory or work-groups too small";
    return NULL;
}

folio_status folio_cl_attn_bulk_open(folio_op *op, const folio_attn_args *a)
{
    const bool emulated = folio_cl_emulates(op);
    bulk_shape s;
    if (!shape_bulk(op->dev, &op->prm, emulated, a, &s))
        return FOLIO_E_UNSUPPORTED;
    const int32_t group = a->heads / a->kv.kv_heads;
    const int32_t columns =
        a->kv.kv_heads * (int32_t)folio_div_up(group, 8 * s.eights);
    const int32_t groups =
        count_groups(op->dev, &op->prm, emulated, s.per_unit);
    const folio_attn_plan_params p = {
        .block_size = a->kv.block_size,
        .window = a->window,
        .groups_per_entry = columns,
        .target_groups = groups,
        .spans = 1,
        .merge_blocks = (int32_t)folio_div_up(MERGE_BYTES,
                                              (int64_t)slot_bytes(a) * groups)};
    memcpy(op->geo, &p, sizeof p);
    op->scratch_bytes = 2 * (size_t)p.target_groups * 8 * (size_t)s.eights *
                            ((size_t)a->kv.head_dim + 4) * sizeof(float) +
                        SCRATCH_ALIGN;
    folio_cl_options o;
    folio_cl_attn_define(&o, op, a);
    folio_cl_define(&o, "WARP_EMULATED", emulated);
    folio_cl_define(&o, "WARPS", s.warps);
    folio_cl_define(&o, "SLOTS", s.slots);
    folio_cl_define(&o, "GROUPS", p.target_groups);
    folio_cl_define(&o, "HT", s.eights);
    const int32_t wg = s.warps * s.lanes;
    op->geo[FOLIO_GEO_WG] = wg;
    FOLIO_RETURN_IF(folio_cl_kernel_open_of(op, FOLIO_ATTN_MAIN, "attn_bulk",
                                            &o, wg, NULL));
    /* Counters of the partials that have come, by a column's first group. */
    return folio_buf_open(op->dev, (size_t)groups * sizeof(int32_t), &op->own);
}

folio_status folio_cl_attn_check_bulk(const folio_op *op,
                                      const folio_kv_ref *kv)
{
    if (kv->k.offset % 16 == 0 && kv->v.offset % 16 == 0)
        return FOLIO_OK;
    return folio_fail(folio_device_log(op->dev), FOLIO_E_INVAL,
                      "%s: kv.k or kv.v at byte %zu or %zu, not a multiple of "
                      "16",
                      op->var->name, kv->k.offset, kv->v.offset);
}

folio_status folio_cl_attn_bulk_run(folio_op *op, folio_queue *q,
                                    const folio_attn_args *a)
{
    const folio_attn_work *w = &a->work;
    const int32_t wg = op->geo[FOLIO_GEO_WG], segs = op->geo[FOLIO_GEO_SEGS];
    if (w->n_entries == 0)
        return FOLIO_OK;
    folio_attn_plan_params p;
    folio_attn_plan_params_of(op, &p);
    FOLIO_RETURN_IF(folio_cl_check_segs(op, &a->kv, segs));
    FOLIO_RETURN_IF(folio_cl_attn_check_bulk(op, &a->kv));
    folio_view scratch = a->scratch, count = {op->own, 0};
    scratch.offset = folio_align_up(scratch.offset, SCRATCH_ALIGN);
    folio_arg list[32];
    int n = 0;
    list[n++] = folio_arg_view(a->q);
    list[n++] = folio_arg_i32(a->q_stride);
    list[n++] = folio_arg_view(a->out);
    list[n++] = folio_arg_i32(a->out_stride);
    list[n++] = folio_arg_view(w->table_start);
    list[n++] = folio_arg_view(w->tables);
    list[n++] = folio_arg_view(w->entries);
    list[n++] = folio_arg_i32(w->n_entries);
    list[n++] = folio_arg_view(scratch);
    list[n++] = folio_arg_view(count);
    list[n++] = folio_arg_f32(a->scale);
    list[n++] = folio_arg_f32(a->softcap);
    n = folio_cl_kv_args(list, n, &a->kv.k, segs);
    n = folio_cl_kv_args(list, n, &a->kv.v, segs);
    folio_grid grid = folio_cl_grid((size_t)p.target_groups, 1, wg);
    return folio_launch(q, op->kernel[FOLIO_ATTN_MAIN], &grid, list, n);
}

/* ---- with scalar tiles -----------------------------------------------------
 */

static const char *fits_bulk(const folio_device *dev,
                             const folio_op_params *prm, const void *args)
{
    const char *why = folio_cl_attn_refuse(dev, prm, args);
    if (!why)
        why = folio_cl_attn_bulk_fit(dev, prm, args);
    return why ? why : folio_cl_attn_tiles_fit(dev, args);
}

static folio_status open_bulk(folio_op *op, const void *args)
{
    FOLIO_RETURN_IF(folio_cl_attn_bulk_open(op, args));
    return folio_cl_attn_tiles_open(op, args);
}

static folio_status run_bulk(folio_op *op, folio_queue *q, const void *args)
{
    FOLIO_RETURN_IF(folio_cl_attn_bulk_run(op, q, args));
    return folio_cl_attn_tiles_run(op, q, args);
}

const folio_variant_fns folio_var_attn_bulk = {
    .fits = fits_bulk, .open = open_bulk, .run = run_bulk};
