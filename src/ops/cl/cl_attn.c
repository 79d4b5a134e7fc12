/* ops/cl/cl_attn.c: launches the attention kernels, and says what each wants of
 * the plan: attn_item nothing; attn_split entries; attn_tile entries for
 * sequences with few new tokens and tiles for the others. */
#include "ops/cl/cl_attn.h"
#include "ops/variants.h"

#include <string.h>

enum {
    CPU_ROWS = 16, /* ROWS of attn_cpu.cl */
    SPLIT_WG = 128,
    MAX_HEADS = 8,     /* of a work-group: GT */
    FIXED_CHUNK = 256, /* keys per entry when results may not depend on load */
    TILE_LX = 8,       /* as in attn_prefill.cl */
    GROUPS_PER_UNIT = 4
};

/* Partials above this are bought with larger chunks. */
#define SCRATCH_MAX ((size_t)256 << 20)
/* Left for what a compiler adds to a kernel's own local memory. */
#define LOCAL_SPARE 1024u

const char *folio_cl_attn_refuse(const folio_device *dev,
                                 const folio_op_params *prm, const void *args)
{
    (void)dev;
    (void)prm;
    const folio_attn_args *a = args;
    if (a->sinks.buf)
        return "sinks";
    return folio_cl_kv_refuse(&a->kv);
}

void folio_cl_attn_define(folio_cl_options *o, folio_op *op,
                          const folio_attn_args *a)
{
    op->geo[FOLIO_GEO_SEGS] = folio_cl_kv_segs(&a->kv);
    folio_cl_options_init(o, op);
    folio_cl_define_kv(o, &a->kv, op->geo[FOLIO_GEO_SEGS]);
    folio_cl_define(o, "G", a->heads / a->kv.kv_heads);
    folio_cl_define(o, "SOFTCAP", a->softcap > 0);
}

/* ---- one work-item per token and head --------------------------------------
 */

static folio_status open_item(folio_op *op, const void *args)
{
    const folio_attn_args *a = args;
    folio_cl_options o;
    folio_cl_attn_define(&o, op, a);
    op->geo[FOLIO_GEO_WG] = 64;
    return folio_cl_kernel_open(op, FOLIO_ATTN_MAIN, "attn_item", &o,
                                &op->geo[FOLIO_GEO_WG]);
}

/* Arguments of attn_item, and of attn_cpu with its tok_step. */
static int item_args(const folio_attn_args *a, int32_t tok_step, int32_t segs,
                     folio_arg *list)
{
    const folio_attn_work *w = &a->work;
    int n = 0;
    list[n++] = folio_arg_view(a->q);
    list[n++] = folio_arg_i32(a->q_stride);
    list[n++] = folio_arg_view(a->out);
    list[n++] = folio_arg_i32(a->out_stride);
    list[n++] = folio_arg_view(w->q_start);
    list[n++] = folio_arg_view(w->kv_len);
    list[n++] = folio_arg_view(w->table_start);
    list[n++] = folio_arg_view(w->tables);
    list[n++] = folio_arg_i32(w->n_seq);
    list[n++] = folio_arg_i32(a->n_tok);
    list[n++] = folio_arg_i32(a->window);
    list[n++] = folio_arg_f32(a->scale);
    list[n++] = folio_arg_f32(a->softcap);
    if (tok_step > 0)
        list[n++] = folio_arg_i32(tok_step);
    n = folio_cl_kv_args(list, n, &a->kv.k, segs);
    return folio_cl_kv_args(list, n, &a->kv.v, segs);
}

static folio_status run_item(folio_op *op, folio_queue *q, const void *args)
{
    const folio_attn_args *a = args;
    const int32_t wg = op->geo[FOLIO_GEO_WG], segs = op->geo[FOLIO_GEO_SEGS];
    FOLIO_RETURN_IF(folio_cl_check_segs(op, &a->kv, segs));
    folio_arg list[32];
    int n = item_args(a, 0, segs, list);
    const size_t kv_heads = (size_t)a->kv.kv_heads;
    folio_grid grid =
        folio_cl_grid((size_t)folio_div_up(a->n_tok, wg), kv_heads, wg);
    grid.groups[2] = (size_t)a->heads / kv_heads;
    return folio_launch(q, op->kernel[FOLIO_ATTN_MAIN], &grid, list, n);
}

/* ---- CPUs: work-groups of one ----------------------------------------------
 */

static folio_status open_cpu(folio_op *op, const void *args)
{
    const folio_attn_args *a = args;
    folio_cl_options o;
    folio_cl_attn_define(&o, op, a);
    op->geo[FOLIO_GEO_WG] = 1;
    op->geo[FOLIO_GEO_UNITS] = FOLIO_MIN(folio_cl_units(op->dev), 1 << 20);
    return folio_cl_kernel_open(op, FOLIO_ATTN_MAIN, "attn_cpu", &o,
                                &op->geo[FOLIO_GEO_WG]);
}

static folio_status run_cpu(folio_op *op, folio_queue *q, const void *args)
{
    const folio_attn_args *a = args;
    const int32_t segs = op->geo[FOLIO_GEO_SEGS];
    FOLIO_RETURN_IF(folio_cl_check_segs(op, &a->kv, segs));
    /* As many tokens as share a pass, but work-groups for all units. */
    int64_t fair = (int64_t)a->n_tok * a->kv.kv_heads /
                   (GROUPS_PER_UNIT * (int64_t)op->geo[FOLIO_GEO_UNITS]);
    int64_t share = CPU_ROWS / (a->heads / a->kv.kv_heads);
    int32_t step = (int32_t)FOLIO_MAX(FOLIO_MIN(share, fair), 1);
    folio_arg list[32];
    int n = item_args(a, step, segs, list);
    const folio_grid grid = folio_cl_grid((size_t)folio_div_up(a->n_tok, step),
                                          (size_t)a->kv.kv_heads, 1);
    return folio_launch(q, op->kernel[FOLIO_ATTN_MAIN], &grid, list, n);
}

/* ---- entries ---------------------------------------------------------------
 */

typedef struct split_shape {
    int32_t wg, heads, chunk; /* WG, GT, CH */
} split_shape;

/* Local floats of attn_split. */
static size_t split_local(const folio_attn_args *a, const split_shape *s)
{
    const folio_kv_layout *l = &a->kv.layout;
    int32_t hd = a->kv.head_dim;
    int32_t dv = l->yv > 1 ? 1 : l->xv % 8 == 0 ? 8 : l->xv % 4 == 0 ? 4 : 1;
    int32_t streams = FOLIO_MAX(s->wg / (hd / dv), 1);
    return (size_t)(s->heads * hd + (s->heads + 1) * s->chunk +
                    FOLIO_MAX(s->heads * s->wg, streams * hd)) *
           sizeof(float);
}

static uint64_t local_bytes(const folio_device *dev)
{
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    return info.local_bytes > LOCAL_SPARE ? info.local_bytes - LOCAL_SPARE : 0;
}

/* The most heads per work-group that the local memory holds, evenly shared:
 * nine heads are five and four. False where not even one head fits. */
static bool shape_split(const folio_device *dev, const folio_attn_args *a,
                        split_shape *s)
{
    int32_t group = a->heads / a->kv.kv_heads;
    uint64_t room = local_bytes(dev);
    s->wg = folio_cl_work_group(dev, SPLIT_WG);
    for (s->chunk = FIXED_CHUNK; s->chunk >= 32; s->chunk /= 2) {
        for (int32_t most = MAX_HEADS; most >= 1; most--) {
            int64_t parts = folio_div_up(group, most);
            s->heads = (int32_t)folio_div_up(group, parts);
            if (split_local(a, s) <= room)
                return true;
        }
    }
    return false;
}

static size_t partial_bytes(const folio_attn_args *a)
{
    return (size_t)a->heads * (size_t)(a->kv.head_dim + 2) * sizeof(float);
}

/* What the plan is asked for. Deterministic: one chunk for every load, made
 * larger until the partials of a full step fit; the choice rests on what the op
 * was opened for, never on a batch. */
static folio_status plan_init(folio_op *op, const folio_attn_args *a,
                              int32_t groups_per_entry,
                              folio_attn_plan_params *p)
{
    int32_t bs = a->kv.block_size;
    size_t room = FOLIO_MIN(SCRATCH_MAX, folio_device_max_alloc(op->dev));
    int64_t most = (int64_t)(room / partial_bytes(a));
    if (a->work.n_partials > 0)
        most = FOLIO_MIN(most, a->work.n_partials);
    int64_t target = (int64_t)folio_cl_units(op->dev) * GROUPS_PER_UNIT;
    *p = (folio_attn_plan_params){.block_size = bs,
                                  .window = a->window,
                                  .min_chunk = 128,
                                  .max_chunk = 1024,
                                  .groups_per_entry = groups_per_entry,
                                  .target_groups =
                                      (int32_t)FOLIO_MIN(target, INT32_MAX)};
    if (!op->prm.deterministic) {
        /* Twice the target, since max_chunk may ask for more than it. */
        int64_t want = FOLIO_MAX(2 * target / groups_per_entry, 16);
        p->max_partials =
            (int32_t)(a->work.n_partials > 0 ? most : FOLIO_MIN(want, most));
        return FOLIO_OK;
    }
    int32_t max_kv =
        a->work.max_kv > 0
            ? a->work.max_kv
            : (int32_t)FOLIO_MIN((int64_t)a->kv.n_blocks * bs, INT32_MAX);
    int32_t max_seqs = FOLIO_MAX(a->work.n_seq, 1);
    int64_t chunk = folio_div_up(FIXED_CHUNK, bs) * bs;
    for (;;) {
        /* A chunk above every length is any chunk above every length. */
        p->chunk = (int32_t)FOLIO_MIN(chunk, INT32_MAX / bs * bs);
        folio_attn_plan_bounds b;
        folio_status st = folio_attn_plan_bound(p, FOLIO_MAX(a->n_tok, 1),
                                                max_seqs, max_kv, &b);
        if (st == FOLIO_OK && b.partials <= most) {
            p->max_partials =
                a->work.n_partials > 0 ? (int32_t)most : b.partials;
            return FOLIO_OK;
        }
        if (st != FOLIO_OK && st != FOLIO_E_TOO_LARGE)
            return st;
        if (chunk > INT32_MAX)
            return folio_fail(folio_device_log(op->dev), FOLIO_E_TOO_LARGE,
                              "%s: %d tokens of %d keys cannot be planned",
                              op->var->name, a->n_tok, max_kv);
        chunk *= 2;
    }
}

static const char *fits_split(const folio_device *dev,
                              const folio_op_params *prm, const void *args)
{
    split_shape s;
    const char *why = folio_cl_attn_refuse(dev, prm, args);
    if (!why && !shape_split(dev, args, &s))
        why = "local memory too small";
    return why;
}

static folio_status open_split(folio_op *op, const void *args)
{
    const folio_attn_args *a = args;
    folio_attn_plan_params p;
    split_shape s;
    if (!shape_split(op->dev, a, &s))
        return FOLIO_E_UNSUPPORTED;
    int32_t group = a->heads / a->kv.kv_heads;
    int32_t per_entry = a->kv.kv_heads * (int32_t)folio_div_up(group, s.heads);
    FOLIO_RETURN_IF(plan_init(op, a, per_entry, &p));
    memcpy(op->geo, &p, sizeof p);
    op->scratch_bytes = (size_t)p.max_partials * partial_bytes(a);
    folio_cl_options o;
    folio_cl_attn_define(&o, op, a);
    folio_cl_define(&o, "GT", s.heads);
    folio_cl_define(&o, "CH", s.chunk);
    op->geo[FOLIO_GEO_WG] = s.wg;
    FOLIO_RETURN_IF(folio_cl_kernel_open(op, FOLIO_ATTN_MAIN, "attn_split", &o,
                                         &op->geo[FOLIO_GEO_WG]));
    /* The same program; a merge needs no more than the split does. */
    int32_t wg = op->geo[FOLIO_GEO_WG];
    FOLIO_RETURN_IF(
        folio_cl_kernel_open(op, FOLIO_ATTN_MERGE, "attn_merge", &o, &wg));
    if (wg != op->geo[FOLIO_GEO_WG])
        return folio_fail(folio_device_log(op->dev), FOLIO_E_BUILD,
                          "attn_merge: work-groups of %d, attn_split has %d",
                          wg, op->geo[FOLIO_GEO_WG]);
    return FOLIO_OK;
}

static folio_status run_split(folio_op *op, folio_queue *q, const void *args)
{
    const folio_attn_args *a = args;
    const folio_attn_work *w = &a->work;
    const int32_t wg = op->geo[FOLIO_GEO_WG], segs = op->geo[FOLIO_GEO_SEGS];
    folio_attn_plan_params p;
    folio_attn_plan_params_of(op, &p);
    FOLIO_RETURN_IF(folio_cl_check_segs(op, &a->kv, segs));
    if (w->n_partials > p.max_partials)
        return folio_fail(folio_device_log(op->dev), FOLIO_E_INVAL,
                          "%s: work.n_partials %d > %d of the scratch",
                          op->var->name, w->n_partials, p.max_partials);
    /* Without partials there is no scratch: something must be bound. */
    folio_view partials = op->scratch_bytes > 0 ? a->scratch : a->out;
    folio_arg list[32];
    int n = 0;
    list[n++] = folio_arg_view(a->q);
    list[n++] = folio_arg_i32(a->q_stride);
    list[n++] = folio_arg_view(a->out);
    list[n++] = folio_arg_i32(a->out_stride);
    list[n++] = folio_arg_view(w->table_start);
    list[n++] = folio_arg_view(w->tables);
    list[n++] = folio_arg_view(w->entries);
    list[n++] = folio_arg_view(partials);
    list[n++] = folio_arg_i32(p.max_partials);
    list[n++] = folio_arg_f32(a->scale);
    list[n++] = folio_arg_f32(a->softcap);
    n = folio_cl_kv_args(list, n, &a->kv.k, segs);
    n = folio_cl_kv_args(list, n, &a->kv.v, segs);
    const size_t kv_heads = (size_t)a->kv.kv_heads;
    folio_grid grid = folio_cl_grid((size_t)w->n_entries, kv_heads, wg);
    grid.groups[2] = (size_t)p.groups_per_entry / kv_heads;
    FOLIO_RETURN_IF(
        folio_launch(q, op->kernel[FOLIO_ATTN_MAIN], &grid, list, n));
    if (w->n_merges == 0)
        return FOLIO_OK;
    const folio_arg merge[] = {
        folio_arg_view(a->out), folio_arg_i32(a->out_stride),
        folio_arg_view(w->merges), folio_arg_view(partials),
        folio_arg_i32(p.max_partials)};
    grid = folio_cl_grid((size_t)w->n_merges, (size_t)a->heads, wg);
    return folio_launch(q, op->kernel[FOLIO_ATTN_MERGE], &grid, merge,
                        FOLIO_COUNT(merge));
}

/* ---- tiles -----------------------------------------------------------------
 */

typedef struct tile_shape {
    int32_t wg, keys; /* WG, BN */
} tile_shape;

/* Rows of a work-group: four per work-item in a column. */
static int32_t tile_rows(int32_t wg)
{
    return wg / TILE_LX * 4;
}

static size_t tile_local(const folio_attn_args *a, const tile_shape *t)
{
    int32_t rows = tile_rows(t->wg), hd = a->kv.head_dim;
    return (size_t)(hd * rows + hd * t->keys + t->keys * rows +
                    rows * TILE_LX) *
           sizeof(float);
}

/* The largest tile that the local memory holds. */
static bool shape_tile(const folio_device *dev, const folio_attn_args *a,
                       tile_shape *t)
{
    uint64_t room = local_bytes(dev);
    for (t->wg = folio_cl_work_group(dev, 128); t->wg >= TILE_LX; t->wg /= 2) {
        for (t->keys = 32; t->keys >= 16; t->keys /= 2) {
            if (tile_local(a, t) <= room)
                return true;
        }
    }
    return false;
}

const char *folio_cl_attn_tiles_fit(const folio_device *dev,
                                    const folio_attn_args *a)
{
    tile_shape t;
    if (a->kv.head_dim % 4 != 0)
        return "head size not a multiple of 4";
    if (folio_cl_work_group(dev, TILE_LX) < TILE_LX)
        return "work-groups below 8";
    return shape_tile(dev, a, &t) ? NULL : "local memory too small";
}

static const char *fits_tile(const folio_device *dev,
                             const folio_op_params *prm, const void *args)
{
    const char *why = fits_split(dev, prm, args);
    return why ? why : folio_cl_attn_tiles_fit(dev, args);
}

folio_status folio_cl_attn_tiles_open(folio_op *op, const folio_attn_args *a)
{
    tile_shape t;
    if (!shape_tile(op->dev, a, &t))
        return FOLIO_E_UNSUPPORTED;
    int32_t group = a->heads / a->kv.kv_heads;
    int32_t heads = FOLIO_MIN(group, tile_rows(t.wg));
    folio_cl_options o;
    folio_cl_attn_define(&o, op, a);
    folio_cl_define(&o, "BN", t.keys);
    folio_cl_define(&o, "HT", heads);
    op->geo[FOLIO_GEO_TILE_WG] = t.wg;
    FOLIO_RETURN_IF(folio_cl_kernel_open(op, FOLIO_ATTN_TILE, "attn_tile", &o,
                                         &op->geo[FOLIO_GEO_TILE_WG]));
    int32_t rows = tile_rows(op->geo[FOLIO_GEO_TILE_WG]);
    if (rows < heads)
        return folio_fail(folio_device_log(op->dev), FOLIO_E_BUILD,
                          "attn_tile: work-groups of %d, %d heads need more",
                          op->geo[FOLIO_GEO_TILE_WG], heads);
    op->geo[FOLIO_GEO_TILE_GROUPS] =
        a->kv.kv_heads * (int32_t)folio_div_up(group, heads);
    folio_attn_plan_params p;
    folio_attn_plan_params_of(op, &p);
    p.tile_q = rows / heads;
    p.tile_min_q = FOLIO_ATTN_TILE_MIN_Q;
    memcpy(op->geo, &p, sizeof p);
    return FOLIO_OK;
}

static folio_status open_tile(folio_op *op, const void *args)
{
    tile_shape t;
    if (!shape_tile(op->dev, args, &t))
        return FOLIO_E_UNSUPPORTED;
    FOLIO_RETURN_IF(open_split(op, args));
    return folio_cl_attn_tiles_open(op, args);
}

folio_status folio_cl_attn_tiles_run(folio_op *op, folio_queue *q,
                                     const folio_attn_args *a)
{
    const folio_attn_work *w = &a->work;
    const int32_t segs = op->geo[FOLIO_GEO_SEGS];
    if (w->n_tiles == 0)
        return FOLIO_OK;
    FOLIO_RETURN_IF(folio_cl_check_segs(op, &a->kv, segs));
    folio_arg list[32];
    int n = 0;
    list[n++] = folio_arg_view(a->q);
    list[n++] = folio_arg_i32(a->q_stride);
    list[n++] = folio_arg_view(a->out);
    list[n++] = folio_arg_i32(a->out_stride);
    list[n++] = folio_arg_view(w->q_start);
    list[n++] = folio_arg_view(w->kv_len);
    list[n++] = folio_arg_view(w->table_start);
    list[n++] = folio_arg_view(w->tables);
    list[n++] = folio_arg_view(w->tiles);
    list[n++] = folio_arg_i32(a->window);
    list[n++] = folio_arg_f32(a->scale);
    list[n++] = folio_arg_f32(a->softcap);
    n = folio_cl_kv_args(list, n, &a->kv.k, segs);
    n = folio_cl_kv_args(list, n, &a->kv.v, segs);
    const folio_grid grid = folio_cl_grid(
        (size_t)w->n_tiles * (size_t)op->geo[FOLIO_GEO_TILE_GROUPS], 1,
        op->geo[FOLIO_GEO_TILE_WG]);
    return folio_launch(q, op->kernel[FOLIO_ATTN_TILE], &grid, list, n);
}

static folio_status run_tile(folio_op *op, folio_queue *q, const void *args)
{
    const folio_attn_args *a = args;
    if (a->work.n_entries > 0)
        FOLIO_RETURN_IF(run_split(op, q, args));
    return folio_cl_attn_tiles_run(op, q, a);
}

const folio_variant_fns folio_var_attn_item = {
    .fits = folio_cl_attn_refuse, .open = open_item, .run = run_item};
const folio_variant_fns folio_var_attn_cpu = {
    .fits = folio_cl_attn_refuse, .open = open_cpu, .run = run_cpu};
const folio_variant_fns folio_var_attn_split = {
    .fits = fits_split, .open = open_split, .run = run_split};
const folio_variant_fns folio_var_attn_tile = {
    .fits = fits_tile, .open = open_tile, .run = run_tile};
