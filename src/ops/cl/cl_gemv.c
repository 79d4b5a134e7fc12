/* ops/cl/cl_gemv.c: launchers of cl/gemv.cl: linear for few tokens on packed
 * weights, with activations as floats or rounded to 8 bits. No arithmetic here.
 *
 * Constants that FOLIO_TUNE may change: LANES (work-items of a tile of 16
 * rows), UNROLL (16-byte loads in flight for each), KC (columns of x in local
 * memory), GROUPS (work-groups per unit). */
#include "ops/cl/cl_gemv.h"
#include "ops/cl/cl_util.h"
#include "ops/pack.h"
#include "ops/variants.h"

/* Tokens at once in steps, a kernel for each. */
static const int32_t step_toks[] = {1, 2, 4, 8};
#define STEPS     ((int)FOLIO_COUNT(step_toks))
#define MOST_TOKS 8

/* geo: for each step its work-items, then the most work-groups of a launch, and
 * the work-group of gemv_round. */
enum { GEO_LANES, GEO_GROUPS = GEO_LANES + STEPS, GEO_ROUND };

/* The kernel that rounds x, where several tokens share it: with one, every
 * group does it for itself, which costs less than a launch. */
#define ROUND_KERNEL STEPS
#define ROUND_GROUP  64

int32_t folio_gemv_cols(folio_type type)
{
    switch (type) {
    case FOLIO_TYPE_F16:
        return 8;
    case FOLIO_TYPE_Q8_0:
        return 16;
    case FOLIO_TYPE_Q4_0:
    case FOLIO_TYPE_Q4_1:
        return 32;
    default:
        return 0;
    }
}

int32_t folio_gemv_least_lanes(const folio_weight *w)
{
    return w->packing == FOLIO_PACK_TILE16 ? 128 : 16;
}

/* What a work-group may use and still leave room for others beside it. */
static size_t local_bytes(const folio_device *dev)
{
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    if (folio_device_caps(dev) & FOLIO_CAP_BIG_LOCAL)
        return FOLIO_MAX((size_t)info.local_bytes, (size_t)72 << 10);
    return (size_t)info.local_bytes;
}

/* Bytes of local memory that one token takes: x, as in gemv.clh, and sums. */
static size_t token_bytes(const folio_gemv_shape *s, bool i8)
{
    size_t kc = (size_t)s->kc;
    size_t x = i8 ? kc + kc / 2 + kc / 4 : folio_align_up(kc, 64) * 4;
    return x + (s->toks > 2 ? 1 : 2) * (size_t)s->lanes * sizeof(float) +
           s->more;
}

static bool in_local(const folio_device *dev, const folio_gemv_shape *s,
                     bool i8)
{
    /* A little is left to the compiler. */
    return (size_t)s->toks * token_bytes(s, i8) + 64 <= local_bytes(dev);
}

bool folio_gemv_find_columns(const folio_device *dev, const folio_weight *w,
                             bool i8, int32_t most, folio_gemv_shape *s)
{
    for (; s->unroll >= 1; s->unroll /= 2) {
        int32_t step = folio_gemv_cols(w->type) * (s->lanes / 16) * s->unroll;
        int64_t all = folio_div_up(w->cols, step) * step;
        s->kc = (int32_t)FOLIO_MIN(all, FOLIO_MAX(most / step, 1) * step);
        while (s->kc > step && !in_local(dev, s, i8))
            s->kc -= step;
        if (in_local(dev, s, i8))
            return true;
    }
    return false;
}

/* ---- fits ------------------------------------------------------------------
 */

static const char *refuse(const folio_device *dev, const folio_op_params *prm,
                          const folio_linear_args *a, bool i8)
{
    const folio_weight *w = a->w;
    if (w->packing == FOLIO_PACK_RAW)
        return "reads packed weights";
    if (folio_gemv_cols(w->type) == 0)
        return "does not read this type";
    if (i8 && w->type == FOLIO_TYPE_F16)
        return "for quantised weights";
    /* One variant serves every count where results may not depend on it. */
    if (a->n_tok > MOST_TOKS && !prm->deterministic)
        return "for 8 tokens or fewer";
    if (folio_cl_work_group(dev, folio_gemv_least_lanes(w)) <
        folio_gemv_least_lanes(w))
        return w->packing == FOLIO_PACK_TILE16 ? "needs work-groups of 128"
                                               : "needs work-groups of 16";
    folio_gemv_shape s = {
        .toks = MOST_TOKS, .lanes = folio_gemv_least_lanes(w), .unroll = 1};
    if (!folio_gemv_find_columns(dev, w, i8, 1, &s))
        return "needs more local memory";
    return NULL;
}

static const char *fits_gemv(const folio_device *dev,
                             const folio_op_params *prm, const void *args)
{
    return refuse(dev, prm, args, false);
}

static const char *fits_gemv_i8(const folio_device *dev,
                                const folio_op_params *prm, const void *args)
{
    return refuse(dev, prm, args, true);
}

/* ---- open ------------------------------------------------------------------
 */

/* Enough items for the loads of all units to be in flight, few enough for
 * every tile to be worth its prologue. */
static int32_t wish_lanes(const folio_op *op, const folio_weight *w)
{
    int32_t lanes = 256;
    int64_t tiles = folio_div_up(w->rows, 16);
    if (folio_device_caps(op->dev) & FOLIO_CAP_CPU)
        lanes = 32;
    else if (tiles < 2 * (int64_t)folio_cl_units(op->dev))
        lanes = 512;
    lanes = FOLIO_MAX(folio_tuned(op->var->name, "LANES", lanes),
                      folio_gemv_least_lanes(w));
    return folio_cl_work_group(op->dev, lanes);
}

static void define_i8(folio_cl_options *o, const folio_op *op)
{
    folio_cl_define(o, "GEMV_I8", 1);
    folio_cl_define_dot4(o, op);
}

static folio_status open_round(folio_op *op, const folio_linear_args *a)
{
    folio_cl_options o;
    /* Bytes, and two floats for each 32 of them. */
    op->scratch_bytes =
        (size_t)a->n_tok * ((size_t)a->w->cols + (size_t)a->w->cols / 4);
    op->geo[GEO_ROUND] = ROUND_GROUP;
    folio_cl_options_init(&o, op);
    folio_cl_define_weight(&o, a->w);
    define_i8(&o, op);
    folio_cl_define(&o, "GEMV_ROUND", 1);
    folio_cl_define(&o, "N", 1);
    folio_cl_define(&o, "KC", 32);
    return folio_cl_kernel_open(op, ROUND_KERNEL, "gemv_round", &o,
                                &op->geo[GEO_ROUND]);
}

static folio_status open_step(folio_op *op, const folio_weight *w, bool i8,
                              int i, int32_t *lanes)
{
    folio_gemv_shape s = {.toks = step_toks[i], .lanes = *lanes};
    int32_t unroll = folio_tuned(op->var->name, "UNROLL", 4);
    folio_cl_options o;
    for (;;) {
        s.unroll = unroll;
        if (folio_gemv_find_columns(op->dev, w, i8,
                                    folio_tuned(op->var->name, "KC", 8192), &s))
            break;
        if (s.lanes ==
            folio_gemv_least_lanes(w)) /* refuse() has seen this one fit */
            return folio_fail(folio_device_log(op->dev), FOLIO_E_BUILD,
                              "%s: %zu bytes of local memory are too few",
                              op->var->name, local_bytes(op->dev));
        s.lanes /= 2;
    }
    folio_cl_options_init(&o, op);
    folio_cl_define_weight(&o, w);
    folio_cl_define(&o, "N", s.toks);
    folio_cl_define(&o, "GEMV_UNROLL", s.unroll);
    folio_cl_define(&o, "KC", s.kc);
    if (i8)
        define_i8(&o, op);
    if (i8 && s.toks > 1)
        folio_cl_define(&o, "GEMV_ROUNDED", 1);
    *lanes = s.lanes;
    return folio_cl_kernel_open(op, i, i8 ? "linear_gemv_i8" : "linear_gemv",
                                &o, lanes);
}

/* Where a row's bits may not depend on its batch, all steps use the same
 * work-group, for the same order of sums: one that takes fewer items shrinks
 * the others too. */
static folio_status open_steps(folio_op *op, const folio_linear_args *a,
                               bool i8)
{
    int n = 1;
    int32_t lanes = wish_lanes(op, a->w);
    while (n < STEPS && step_toks[n - 1] < a->n_tok)
        n++;
    for (int i = 0; i < n;) {
        int32_t items = lanes;
        folio_kernel_close(&op->kernel[i]);
        FOLIO_RETURN_IF(open_step(op, a->w, i8, i, &items));
        if (items < folio_gemv_least_lanes(a->w))
            return folio_fail(folio_device_log(op->dev), FOLIO_E_BUILD,
                              "%s: the kernel runs only %d work-items, it "
                              "needs %d",
                              op->var->name, items,
                              folio_gemv_least_lanes(a->w));
        op->geo[GEO_LANES + i] = items;
        if (op->prm.deterministic && items < lanes) {
            lanes = items;
            i = 0;
        } else {
            i++;
        }
    }
    if (i8 && n > 1)
        FOLIO_RETURN_IF(open_round(op, a));
    op->geo[GEO_GROUPS] =
        folio_tuned(op->var->name, "GROUPS", FOLIO_MAX(1024 / lanes, 1)) *
        folio_cl_units(op->dev);
    return FOLIO_OK;
}

static folio_status open_gemv(folio_op *op, const void *args)
{
    return open_steps(op, args, false);
}

static folio_status open_gemv_i8(folio_op *op, const void *args)
{
    return open_steps(op, args, true);
}

/* ---- run -------------------------------------------------------------------
 */

static folio_status round_x(folio_op *op, folio_queue *q,
                            const folio_linear_args *a)
{
    const int32_t items = op->geo[GEO_ROUND];
    const folio_arg list[] = {
        folio_arg_view(a->x),
        folio_arg_view(a->scratch),
        folio_arg_i32((int32_t)a->w->cols),
        folio_arg_i32(a->n_tok),
        folio_arg_i32(a->x_stride),
    };
    const folio_grid grid = {
        .groups = {(size_t)folio_div_up(a->w->cols, 32 * (int64_t)items),
                   (size_t)a->n_tok, 1},
        .local = {(size_t)items, 1, 1},
    };
    return folio_launch(q, op->kernel[ROUND_KERNEL], &grid, list,
                        FOLIO_COUNT(list));
}

static folio_status run_gemv(folio_op *op, folio_queue *q, const void *args)
{
    const folio_linear_args *a = args;
    const folio_weight *w = a->w;
    folio_view none = a->x; /* any address: not read */
    int step = 0;
    while (step < STEPS - 1 && step_toks[step] < a->n_tok)
        step++;
    const bool rounded = step > 0 && op->kernel[ROUND_KERNEL];
    if (rounded)
        FOLIO_RETURN_IF(round_x(op, q, a));
    for (int32_t n = 0; n < w->n_views; n++) {
        const folio_weight_view *v = &w->views[n];
        size_t at = (size_t)v->first_row * sizeof(float);
        int64_t tiles = folio_div_up(v->rows, 16);
        const folio_arg list[] = {
            folio_arg_view(rounded ? a->scratch : a->x),
            folio_arg_view(v->view),
            folio_arg_view(a->bias.buf ? folio_view_at(a->bias, at) : none),
            folio_arg_view(folio_view_at(a->y, at)),
            folio_arg_u64(folio_cl_row_bytes(w)),
            folio_arg_i32((int32_t)v->rows),
            folio_arg_i32((int32_t)w->cols),
            folio_arg_i32(a->n_tok),
            folio_arg_i32(a->x_stride),
            folio_arg_i32(a->y_stride),
            folio_arg_i32(a->bias.buf != NULL),
            folio_arg_i32(a->accumulate),
        };
        const folio_grid grid = {
            .groups = {(size_t)FOLIO_MIN(tiles, op->geo[GEO_GROUPS]),
                       (size_t)folio_div_up(a->n_tok, step_toks[step]), 1},
            .local = {(size_t)op->geo[GEO_LANES + step], 1, 1},
        };
        FOLIO_RETURN_IF(
            folio_launch(q, op->kernel[step], &grid, list, FOLIO_COUNT(list)));
    }
    return FOLIO_OK;
}

const folio_variant_fns folio_var_linear_gemv = {
    .fits = fits_gemv, .open = open_gemv, .run = run_gemv};
const folio_variant_fns folio_var_linear_gemv_i8 = {
    .fits = fits_gemv_i8, .open = open_gemv_i8, .run = run_gemv};
