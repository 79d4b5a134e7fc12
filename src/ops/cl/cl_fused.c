/* ops/cl/cl_fused.c: norm_linear, qkv and gate_up on OpenCL devices: which
 * weights the fused kernels take, how many tokens and rows a group gets, and
 * their arguments. No arithmetic here.
 *
 * Constants that FOLIO_TUNE may change, of the kernels on packed weights: LANES
 * (work-items of a tile of 16 rows), UNROLL (16-byte loads in flight for each),
 * KC (columns of x in local memory), GROUPS (work-groups per unit); of the
 * others: ITEMS, LANES, GROUPS. */
#include <string.h>

#include "ops/cl/cl_gemv.h"
#include "ops/cl/cl_util.h"
#include "ops/fused_parts.h"
#include "ops/variants.h"

/* ---- the floor: the plain ops, one after the other ----------------------- */

static folio_status open_parts(folio_op *op, const void *args)
{
    return folio_fused_open(op, args, FOLIO_PARTS_BEST);
}

const folio_variant_fns folio_var_norm_linear_parts = {.open = open_parts,
                                                       .run = folio_fused_run};
const folio_variant_fns folio_var_qkv_parts = {.open = open_parts,
                                               .run = folio_fused_run};
const folio_variant_fns folio_var_gate_up_parts = {.open = open_parts,
                                                   .run = folio_fused_run};

/* ---- shapes ---------------------------------------------------------------
 */

/* What the three have in common, whatever their arguments are called. */
typedef struct fused_shape {
    const folio_weight *w[FOLIO_MAX_PRODUCTS];
    int n_weights;
    int64_t pairs; /* of rows, that the kernel computes side by side */
    int64_t tiles; /* of 16 rows */
    int32_t dim, n_tok;
} fused_shape;

/* Items of a work-group, and of one pair of rows. */
enum { WG_ITEMS = 128, WG_LANES = 16, CPU_ITEMS = 1 };

/* Tokens per group in steps, so that few tokens do not pay for many. */
static const int32_t steps[] = {1, 2, 4, 8};

/* GEO_GROUPS: the most work-groups of a launch on packed weights, 0 for the
 * kernels on rows. */
enum {
    GEO_STEPS,
    GEO_TOKS,
    GEO_WG = GEO_TOKS + 4,
    GEO_LANES,
    GEO_SEGS,
    GEO_GROUPS
};

static fused_shape shape_norm_linear(const folio_norm_linear_args *a)
{
    fused_shape s = {.dim = a->in.dim, .n_tok = a->n_tok};
    for (int32_t i = 0; i < a->n_parts; i++) {
        s.w[s.n_weights++] = a->part[i].w;
        s.pairs += folio_div_up(a->part[i].w->rows, 2);
        s.tiles += folio_div_up(a->part[i].w->rows, 16);
    }
    return s;
}

static fused_shape shape_qkv(const folio_qkv_args *a)
{
    return (fused_shape){.w = {a->wq, a->wk, a->wv},
                         .n_weights = 3,
                         .pairs = (a->wq->rows + 2 * a->wk->rows) / 2,
                         .tiles = (a->wq->rows + 2 * a->wk->rows) / 16,
                         .dim = a->in.dim,
                         .n_tok = a->n_tok};
}

static fused_shape shape_gate_up(const folio_gate_up_args *a)
{
    return (fused_shape){.w = {a->gate, a->up},
                         .n_weights = 2,
                         .pairs = a->gate->rows,
                         .tiles = folio_div_up(a->gate->rows, 8),
                         .dim = a->in.dim,
                         .n_tok = a->n_tok};
}

/* As FUSED_LOCAL of fused.clh. */
static size_t local_bytes(int32_t dim, int32_t toks, int32_t wg)
{
    size_t row = (size_t)(dim / 32) * 36 + (size_t)(dim % 32);
    return sizeof(float) * (size_t)toks * (row + 2 * (size_t)wg + 1);
}

static bool is_cpu(const folio_variant *var)
{
    return (var->needs & FOLIO_CAP_CPU) != 0;
}

/* The most tokens of a group whose normed rows fit in local memory; 0: not even
 * one does. */
static int32_t most_toks(const folio_device *dev, int32_t dim, int32_t wg)
{
    folio_device_info info = {.size = sizeof info};
    int32_t most = 0;
    folio_device_get_info(dev, &info);
    for (size_t i = 0; i < FOLIO_COUNT(steps); i++)
        if (local_bytes(dim, steps[i], wg) <= info.local_bytes)
            most = steps[i];
    return most;
}

/* Whether it reads packed weights, and with x rounded to 8 bits. */
static bool is_gemv(const folio_variant *var)
{
    return strstr(var->name, "_gemv") != NULL;
}

static bool is_i8(const folio_variant *var)
{
    return (var->flags & FOLIO_VAR_INEXACT) != 0;
}

static const char *refuse(const folio_device *dev, const fused_shape *s)
{
    for (int i = 0; i < s->n_weights; i++) {
        if (s->w[i]->type != s->w[0]->type)
            return "weights of several types";
        if (s->w[i]->packing != s->w[0]->packing)
            return "weights of several packings";
        if (s->w[i]->n_views > 1)
            return "a weight in several pieces";
    }
    if (!most_toks(dev, s->dim, folio_cl_work_group(dev, WG_ITEMS)))
        return "local memory too small";
    return NULL;
}

/* A tile's sums, beside those that the columns' search counts: two buffers, and
 * sixteen parts of the sum of squares. */
static size_t more_bytes(int32_t toks, int32_t lanes)
{
    return (toks > 2 ? (size_t)lanes * sizeof(float) : 0) + 16 * sizeof(float);
}

static const char *refuse_gemv(const folio_device *dev, const fused_shape *s,
                               bool i8)
{
    const folio_weight *w = s->w[0];
    const int32_t least = folio_gemv_least_lanes(w);
    const char *why = refuse(dev, s);
    if (why)
        return why;
    if (w->packing == FOLIO_PACK_RAW)
        return "reads packed weights";
    if (folio_gemv_cols(w->type) == 0)
        return "does not read this type";
    if (i8 && w->type == FOLIO_TYPE_F16)
        return "for quantised weights";
    if (folio_cl_work_group(dev, least) < least)
        return "needs larger work-groups";
    folio_gemv_shape g = {
        .toks = steps[FOLIO_COUNT(steps) - 1], .lanes = least, .unroll = 1};
    g.more = more_bytes(g.toks, g.lanes);
    if (!folio_gemv_find_columns(dev, w, i8, 1, &g))
        return "needs more local memory";
    return NULL;
}

/* How many of the steps an op needs for so many tokens. */
static int count_steps(folio_op *op, int32_t most)
{
    int n = 0;
    do
        op->geo[GEO_TOKS + n] = steps[n];
    while (steps[n++] < most && n < (int)FOLIO_COUNT(steps));
    op->geo[GEO_STEPS] = n;
    return n;
}

/* One kernel per step; all use the same work-group, as in open_steps. */
static folio_status open_gemv(folio_op *op, const fused_shape *s,
                              const folio_cl_options *options,
                              const char *entry)
{
    const folio_weight *w = s->w[0];
    const char *name = op->var->name;
    const bool i8 = is_i8(op->var);
    const int32_t least = folio_gemv_least_lanes(w);
    const int32_t units = folio_cl_units(op->dev);
    int32_t lanes = s->tiles < 2 * (int64_t)units ? 512 : 256;
    if (folio_device_caps(op->dev) & FOLIO_CAP_CPU)
        lanes = 32;
    lanes = FOLIO_MAX(folio_tuned(name, "LANES", lanes), least);
    lanes = folio_cl_work_group(op->dev, lanes);
    int n = count_steps(op, s->n_tok);
    for (int i = 0; i < n;) {
        folio_gemv_shape g = {.toks = op->geo[GEO_TOKS + i],
                              .lanes = lanes,
                              .unroll = folio_tuned(name, "UNROLL", 4)};
        folio_cl_options o = *options;
        int32_t items = lanes;
        g.more = more_bytes(g.toks, lanes);
        if (folio_gemv_find_columns(op->dev, w, i8,
                                    folio_tuned(name, "KC", 8192), &g)) {
            folio_cl_define_weight(&o, w);
            folio_cl_define(&o, "N", g.toks);
            folio_cl_define(&o, "GEMV_UNROLL", g.unroll);
            folio_cl_define(&o, "KC", g.kc);
            if (i8) {
                folio_cl_define(&o, "GEMV_I8", 1);
                folio_cl_define_dot4(&o, op);
            }
            folio_kernel_close(&op->kernel[i]);
            FOLIO_RETURN_IF(folio_cl_kernel_open(op, i, entry, &o, &items));
        } else {
            items = lanes / 2;
        }
        if (items < least)
            return folio_fail(folio_device_log(op->dev), FOLIO_E_BUILD,
                              "%s: the kernel runs only %d work-items, it "
                              "needs %d",
                              name, items, least);
        if (items == lanes) {
            i++;
        } else {
            lanes = items;
            i = 0;
        }
    }
    op->geo[GEO_WG] = op->geo[GEO_LANES] = lanes;
    op->geo[GEO_GROUPS] =
        units * folio_tuned(name, "GROUPS", FOLIO_MAX(1024 / lanes, 1));
    return FOLIO_OK;
}

/* One kernel per step up to what the op will meet. All use the same work-group,
 * for the same order of sums: one that takes fewer items shrinks the others. */
static folio_status open_steps(folio_op *op, const fused_shape *s,
                               const folio_cl_options *options,
                               const char *entry)
{
    const bool cpu = is_cpu(op->var);
    const char *name = op->var->name;
    int32_t group = folio_tuned(name, "ITEMS", cpu ? CPU_ITEMS : WG_ITEMS);
    int32_t wish = folio_tuned(name, "LANES", cpu ? 1 : WG_LANES);
    group = folio_cl_work_group(op->dev, group);
    int n =
        count_steps(op, FOLIO_MIN(s->n_tok, most_toks(op->dev, s->dim, group)));
    for (int i = 0; i < n;) {
        folio_cl_options o = *options;
        int32_t items = group, lanes = FOLIO_MIN(items, wish);
        folio_cl_define_weight(&o, s->w[0]);
        folio_cl_define(&o, "DIM", s->dim);
        folio_cl_define(&o, "NB", op->geo[GEO_TOKS + i]);
        folio_cl_define(&o, "LANES", lanes);
        folio_cl_define(&o, cpu ? "WIDE" : "QUANT_WORDS", 1);
        folio_kernel_close(&op->kernel[i]);
        int32_t got = items;
        FOLIO_RETURN_IF(folio_cl_kernel_open(op, i, entry, &o, &got));
        op->geo[GEO_WG] = got;
        op->geo[GEO_LANES] = FOLIO_MIN(lanes, got);
        if (got == items) {
            i++;
        } else {
            group = got;
            i = 0;
        }
    }
    return FOLIO_OK;
}

/* Enough groups for every unit to have several, and no more than that: each
 * computes the norm again. */
static int32_t runs_for(const folio_op *op, int64_t groups)
{
    int64_t want = (int64_t)folio_cl_units(op->dev) *
                   folio_tuned(op->var->name, "GROUPS", 8);
    return (int32_t)FOLIO_MAX(groups / want, 1);
}

/* The first arguments of every entry, and its grid. */
typedef struct fused_launch {
    folio_arg list[40];
    int n;
    folio_kernel *kernel;
    folio_grid grid;
} fused_launch;

static fused_launch begin(const folio_op *op, const folio_norm_in *in,
                          const fused_shape *s)
{
    int step = 0;
    while (step < op->geo[GEO_STEPS] - 1 && op->geo[GEO_TOKS + step] < s->n_tok)
        step++;
    int32_t toks = op->geo[GEO_TOKS + step], wg = op->geo[GEO_WG], last;
    int64_t groups;
    if (op->geo[GEO_GROUPS] > 0) {
        groups = FOLIO_MIN(s->tiles, op->geo[GEO_GROUPS]);
        last = s->dim;
    } else {
        groups = folio_div_up(s->pairs, wg / op->geo[GEO_LANES]);
        last = runs_for(op, groups);
        groups = folio_div_up(groups, last);
    }
    fused_launch l = {.kernel = op->kernel[step]};
    l.grid =
        folio_cl_grid((size_t)groups, (size_t)folio_div_up(s->n_tok, toks), wg);
    l.list[l.n++] = folio_arg_view(in->x);
    l.list[l.n++] = folio_arg_view(in->norm);
    l.list[l.n++] = folio_arg_i32(in->x_stride);
    l.list[l.n++] = folio_arg_f32(in->eps);
    l.list[l.n++] = folio_arg_u64(folio_cl_row_bytes(s->w[0]));
    l.list[l.n++] = folio_arg_i32(s->n_tok);
    l.list[l.n++] = folio_arg_i32(last);
    return l;
}

/* Biases, something readable in place of an absent one, and which there are. */
static void add_biases(fused_launch *l, const folio_view *bias, int n,
                       folio_view none)
{
    int32_t biased = 0;
    for (int i = 0; i < n; i++) {
        l->list[l->n++] = folio_arg_view(bias[i].buf ? bias[i] : none);
        biased |= (bias[i].buf != NULL) << i;
    }
    l->list[l->n++] = folio_arg_i32(biased);
}

static folio_view matrix(const folio_weight *w)
{
    return w->views[0].view;
}

/* ---- norm_linear ------------------------------------------------------------
 */

static const char *fits_norm_linear(const folio_device *dev,
                                    const folio_op_params *prm,
                                    const void *args)
{
    (void)prm;
    fused_shape s = shape_norm_linear(args);
    return refuse(dev, &s);
}

static const char *fits_norm_linear_gemv(const folio_device *dev,
                                         const folio_op_params *prm,
                                         const void *args)
{
    (void)prm;
    fused_shape s = shape_norm_linear(args);
    return refuse_gemv(dev, &s, false);
}

static const char *fits_norm_linear_gemv_i8(const folio_device *dev,
                                            const folio_op_params *prm,
                                            const void *args)
{
    (void)prm;
    fused_shape s = shape_norm_linear(args);
    return refuse_gemv(dev, &s, true);
}

static folio_status open_norm_linear(folio_op *op, const void *args)
{
    fused_shape s = shape_norm_linear(args);
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    folio_cl_define(&o, "FUSED_NORM_LINEAR", 1);
    if (is_gemv(op->var))
        return open_gemv(op, &s, &o, op->var->name);
    return open_steps(op, &s, &o, "norm_linear_pair");
}

static folio_status run_norm_linear(folio_op *op, folio_queue *q,
                                    const void *args)
{
    const folio_norm_linear_args *a = args;
    fused_shape s = shape_norm_linear(a);
    fused_launch l = begin(op, &a->in, &s);
    /* Absent parts have no rows; what is bound for them is not touched. */
    folio_product part[FOLIO_MAX_PRODUCTS];
    folio_view bias[FOLIO_MAX_PRODUCTS] = {{0}};
    for (int32_t i = 0; i < FOLIO_MAX_PRODUCTS; i++) {
        part[i] = a->part[i < a->n_parts ? i : 0];
        if (i < a->n_parts)
            bias[i] = part[i].bias;
    }
    l.list[l.n++] = folio_arg_view(a->gather ? a->idx : a->in.x);
    l.list[l.n++] = folio_arg_i32(a->gather);
    for (int i = 0; i < FOLIO_MAX_PRODUCTS; i++)
        l.list[l.n++] = folio_arg_view(matrix(part[i].w));
    add_biases(&l, bias, FOLIO_MAX_PRODUCTS, a->in.norm);
    for (int i = 0; i < FOLIO_MAX_PRODUCTS; i++)
        l.list[l.n++] = folio_arg_view(part[i].y);
    for (int i = 0; i < FOLIO_MAX_PRODUCTS; i++)
        l.list[l.n++] =
            folio_arg_i32(i < a->n_parts ? (int32_t)part[i].w->rows : 0);
    for (int i = 0; i < FOLIO_MAX_PRODUCTS; i++)
        l.list[l.n++] = folio_arg_i32(part[i].y_stride);
    return folio_launch(q, l.kernel, &l.grid, l.list, l.n);
}

const folio_variant_fns folio_var_norm_linear_gemv = {.fits =
                                                          fits_norm_linear_gemv,
                                                      .open = open_norm_linear,
                                                      .run = run_norm_linear};
const folio_variant_fns folio_var_norm_linear_gemv_i8 = {
    .fits = fits_norm_linear_gemv_i8,
    .open = open_norm_linear,
    .run = run_norm_linear};
const folio_variant_fns folio_var_norm_linear_cpu = {
    .fits = fits_norm_linear, .open = open_norm_linear, .run = run_norm_linear};
const folio_variant_fns folio_var_norm_linear_wg = {
    .fits = fits_norm_linear, .open = open_norm_linear, .run = run_norm_linear};

/* ---- qkv --------------------------------------------------------------------
 */

/* What every kernel of its own asks for. */
static const char *refuse_qkv(const folio_qkv_args *a)
{
    const char *why = folio_cl_kv_refuse(&a->kv);
    if (!why && a->head_norm)
        why = "norms of heads need whole heads";
    if (!why && a->kv.head_dim % 2 != 0)
        why = "odd head size";
    return why;
}

static const char *fits_qkv(const folio_device *dev, const folio_op_params *prm,
                            const void *args)
{
    (void)prm;
    fused_shape s = shape_qkv(args);
    const char *why = refuse(dev, &s);
    return why ? why : refuse_qkv(args);
}

static const char *refuse_qkv_gemv(const folio_device *dev,
                                   const folio_qkv_args *a, bool i8)
{
    fused_shape s = shape_qkv(a);
    const char *why = refuse_gemv(dev, &s, i8);
    if (!why)
        why = refuse_qkv(a);
    if (!why && a->kv.head_dim % 16 != 0)
        why = "head size not a multiple of 16";
    if (!why && !a->interleaved && a->rot_dim != 0 &&
        a->rot_dim != a->kv.head_dim)
        why = "a part of the head is rotated";
    return why;
}

static const char *fits_qkv_gemv(const folio_device *dev,
                                 const folio_op_params *prm, const void *args)
{
    (void)prm;
    return refuse_qkv_gemv(dev, args, false);
}

static const char *fits_qkv_gemv_i8(const folio_device *dev,
                                    const folio_op_params *prm,
                                    const void *args)
{
    (void)prm;
    return refuse_qkv_gemv(dev, args, true);
}

static folio_status open_qkv(folio_op *op, const void *args)
{
    const folio_qkv_args *a = args;
    fused_shape s = shape_qkv(a);
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    op->geo[GEO_SEGS] = folio_cl_kv_segs(&a->kv);
    folio_cl_define(&o, "FUSED_QKV", 1);
    folio_cl_define_kv(&o, &a->kv, op->geo[GEO_SEGS]);
    folio_cl_define(&o, "ROT", a->rot_dim);
    folio_cl_define(&o, "INTERLEAVED", a->interleaved);
    if (is_gemv(op->var))
        return open_gemv(op, &s, &o, op->var->name);
    return open_steps(op, &s, &o, "qkv_pair");
}

static folio_status run_qkv(folio_op *op, folio_queue *q, const void *args)
{
    const folio_qkv_args *a = args;
    const folio_kv_ref *kv = &a->kv;
    const int32_t segs = op->geo[GEO_SEGS];
    fused_shape s = shape_qkv(a);
    FOLIO_RETURN_IF(folio_cl_check_segs(op, kv, segs));
    fused_launch l = begin(op, &a->in, &s);
    for (int i = 0; i < 3; i++)
        l.list[l.n++] = folio_arg_view(matrix(s.w[i]));
    add_biases(&l, (folio_view[]){a->bq, a->bk, a->bv}, 3, a->in.norm);
    l.list[l.n++] = folio_arg_view(a->q);
    l.list[l.n++] = folio_arg_i32(a->q_stride);
    l.list[l.n++] = folio_arg_i32(a->heads);
    l.list[l.n++] = folio_arg_view(a->slot);
    if (a->rot_dim > 0) {
        l.list[l.n++] = folio_arg_view(a->pos);
        l.list[l.n++] = folio_arg_view(a->table);
        l.list[l.n++] = folio_arg_i32(a->n_pos);
    }
    l.list[l.n++] = folio_arg_i32(kv->n_blocks * kv->block_size);
    l.n = folio_cl_kv_args(l.list, l.n, &kv->k, segs);
    l.n = folio_cl_kv_args(l.list, l.n, &kv->v, segs);
    return folio_launch(q, l.kernel, &l.grid, l.list, l.n);
}

const folio_variant_fns folio_var_qkv_gemv = {
    .fits = fits_qkv_gemv, .open = open_qkv, .run = run_qkv};
const folio_variant_fns folio_var_qkv_gemv_i8 = {
    .fits = fits_qkv_gemv_i8, .open = open_qkv, .run = run_qkv};
const folio_variant_fns folio_var_qkv_cpu = {
    .fits = fits_qkv, .open = open_qkv, .run = run_qkv};
const folio_variant_fns folio_var_qkv_wg = {
    .fits = fits_qkv, .open = open_qkv, .run = run_qkv};

/* ---- gate_up ----------------------------------------------------------------
 */

static const char *fits_gate_up(const folio_device *dev,
                                const folio_op_params *prm, const void *args)
{
    (void)prm;
    fused_shape s = shape_gate_up(args);
    return refuse(dev, &s);
}

static const char *fits_gate_up_gemv(const folio_device *dev,
                                     const folio_op_params *prm,
                                     const void *args)
{
    (void)prm;
    fused_shape s = shape_gate_up(args);
    return refuse_gemv(dev, &s, false);
}

static const char *fits_gate_up_gemv_i8(const folio_device *dev,
                                        const folio_op_params *prm,
                                        const void *args)
{
    (void)prm;
    fused_shape s = shape_gate_up(args);
    return refuse_gemv(dev, &s, true);
}

static folio_status open_gate_up(folio_op *op, const void *args)
{
    const folio_gate_up_args *a = args;
    fused_shape s = shape_gate_up(a);
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    folio_cl_define(&o, "FUSED_GATE_UP", 1);
    if (a->act == FOLIO_ACT_GELU_TANH)
        folio_cl_define(&o, "ACT_GELU_TANH", 1);
    if (is_gemv(op->var))
        return open_gemv(op, &s, &o, op->var->name);
    return open_steps(op, &s, &o, "gate_up_pair");
}

static folio_status run_gate_up(folio_op *op, folio_queue *q, const void *args)
{
    const folio_gate_up_args *a = args;
    fused_shape s = shape_gate_up(a);
    fused_launch l = begin(op, &a->in, &s);
    l.list[l.n++] = folio_arg_view(matrix(a->gate));
    l.list[l.n++] = folio_arg_view(matrix(a->up));
    l.list[l.n++] = folio_arg_view(a->out);
    l.list[l.n++] = folio_arg_i32(a->out_stride);
    l.list[l.n++] = folio_arg_i32((int32_t)a->gate->rows);
    return folio_launch(q, l.kernel, &l.grid, l.list, l.n);
}

const folio_variant_fns folio_var_gate_up_gemv = {
    .fits = fits_gate_up_gemv, .open = open_gate_up, .run = run_gate_up};
const folio_variant_fns folio_var_gate_up_gemv_i8 = {
    .fits = fits_gate_up_gemv_i8, .open = open_gate_up, .run = run_gate_up};
const folio_variant_fns folio_var_gate_up_cpu = {
    .fits = fits_gate_up, .open = open_gate_up, .run = run_gate_up};
const folio_variant_fns folio_var_gate_up_wg = {
    .fits = fits_gate_up, .open = open_gate_up, .run = run_gate_up};
