/* ops/cl/cl_linear.c: launchers of cl/linear.cl: which entry, with which sizes,
 * and one launch per view of the weight. No arithmetic here. */
#include "ops/variants.h"

#include <stdio.h>

#define FRAGMENTS "common.clh quant.clh linear.cl"

/* Rows and tokens of one work-group, and its items. */
typedef struct tile_shape {
    int32_t rows, toks, items;
} tile_shape;

/* geo: three numbers for each of the op's kernels. */
static void set_shape(folio_op *op, int i, tile_shape s)
{
    op->geo[3 * i] = s.rows;
    op->geo[3 * i + 1] = s.toks;
    op->geo[3 * i + 2] = s.items;
}

static tile_shape get_shape(const folio_op *op, int i)
{
    return (tile_shape){op->geo[3 * i], op->geo[3 * i + 1], op->geo[3 * i + 2]};
}

static folio_status open_kernel(folio_op *op, int i, const void *args,
                                const char *entry, const char *options)
{
    const folio_linear_args *a = args;
    const folio_type_info *type = folio_type_find((uint32_t)a->w->type);
    bool fma = folio_device_caps(op->dev) & FOLIO_CAP_FMA;
    char all[192];
    snprintf(all, sizeof all, "-DQTYPE_%s%s %s", type->name,
             fma ? " -DFOLIO_USE_FMA" : "", options);
    folio_kernel_spec spec = {
        .entry = entry, .fragments = FRAGMENTS, .options = all};
    folio_kernel_close(&op->kernel[i]);
    return folio_kernel_open(op->dev, &spec, &op->kernel[i]);
}

static int32_t kernel_limit(const folio_op *op, int i)
{
    folio_kernel_limits lim;
    folio_kernel_get_limits(op->kernel[i], &lim);
    return (int32_t)FOLIO_MAX(FOLIO_MIN(lim.max_work_group, 1u << 20), 1u);
}

/* The largest power of two <= n, for n >= 1. */
static int32_t power_below(int32_t n)
{
    int32_t p = 1;
    while (p <= n / 2)
        p *= 2;
    return p;
}

static folio_status launch(folio_op *op, folio_queue *q,
                           const folio_linear_args *a, int i)
{
    const folio_weight *w = a->w;
    tile_shape s = get_shape(op, i);
    folio_view none = a->x; /* any address: not read */
    size_t row_bytes = folio_type_row_bytes(w->type, (uint64_t)w->cols);

    for (int32_t n = 0; n < w->n_views; n++) {
        const folio_weight_view *v = &w->views[n];
        size_t at = (size_t)v->first_row * sizeof(float);
        const folio_arg args[] = {
            folio_arg_view(a->x),
            folio_arg_view(v->view),
            folio_arg_view(a->bias.buf ? folio_view_at(a->bias, at) : none),
            folio_arg_view(folio_view_at(a->y, at)),
            folio_arg_u64(row_bytes),
            folio_arg_i32((int32_t)v->rows),
            folio_arg_i32((int32_t)w->cols),
            folio_arg_i32(a->n_tok),
            folio_arg_i32(a->x_stride),
            folio_arg_i32(a->y_stride),
            folio_arg_i32(a->bias.buf != NULL),
            folio_arg_i32(a->accumulate),
        };
        folio_grid grid = {
            .groups = {(size_t)folio_div_up(v->rows, s.rows),
                       (size_t)folio_div_up(a->n_tok, s.toks), 1},
            .local = {(size_t)s.items, 1, 1},
        };
        FOLIO_RETURN_IF(
            folio_launch(q, op->kernel[i], &grid, args, FOLIO_COUNT(args)));
    }
    return FOLIO_OK;
}

/* ---- linear_item: the floor ---------------------------------------------- */

#define ITEM_GROUP 64

static folio_status open_item(folio_op *op, const void *args)
{
    FOLIO_RETURN_IF(open_kernel(op, 0, args, "linear_item", "-DLINEAR_ITEM"));
    int32_t items = FOLIO_MIN(power_below(kernel_limit(op, 0)), ITEM_GROUP);
    set_shape(op, 0, (tile_shape){items, 1, items});
    return FOLIO_OK;
}

static folio_status run_item(folio_op *op, folio_queue *q, const void *args)
{
    return launch(op, q, args, 0);
}

const folio_variant_fns folio_var_linear_item = {.open = open_item,
                                                 .run = run_item};

/* ---- linear_cpu ---------------------------------------------------------- */

/* Tokens per item in steps, so that few tokens do not pay for many. Sums of one
 * row and token take one register, and ROWS * NB of them are live. */
static const int32_t cpu_toks[] = {1, 4, 8};
static const int32_t cpu_rows[] = {1, 2, 2};
/* Items of a work-group: a driver hands whole groups to its threads. */
#define CPU_GROUP 4

/* The first step that holds all tokens, else the last. */
static int step_for(const int32_t *toks, int n_steps, int32_t n_tok)
{
    int i = 0;
    while (i < n_steps - 1 && toks[i] < n_tok)
        i++;
    return i;
}

static folio_status open_cpu(folio_op *op, const void *args)
{
    const folio_linear_args *a = args;
    int n = 1 + step_for(cpu_toks, FOLIO_COUNT(cpu_toks), a->n_tok);
    for (int i = 0; i < n; i++) {
        char options[64];
        snprintf(options, sizeof options, "-DLINEAR_CPU -DROWS=%d -DNB=%d",
                 (int)cpu_rows[i], (int)cpu_toks[i]);
        FOLIO_RETURN_IF(open_kernel(op, i, args, "linear_cpu", options));
        int32_t items = FOLIO_MIN(power_below(kernel_limit(op, i)), CPU_GROUP);
        set_shape(op, i, (tile_shape){items * cpu_rows[i], cpu_toks[i], items});
    }
    return FOLIO_OK;
}

static folio_status run_cpu(folio_op *op, folio_queue *q, const void *args)
{
    const folio_linear_args *a = args;
    return launch(op, q, a,
                  step_for(cpu_toks, FOLIO_COUNT(cpu_toks), a->n_tok));
}

const folio_variant_fns folio_var_linear_cpu = {.open = open_cpu,
                                                .run = run_cpu};

/* ---- linear_wg ----------------------------------------------------------- */

#define WG_GROUP 128
#define WG_LANES 16
static const int32_t wg_toks[] = {1, 4, 8};

/* Kernels first .. first + 2. All token steps use the same LANES, for the same
 * order of sums; a kernel that takes fewer items than that shrinks them all. */
static folio_status open_wg_steps(folio_op *op, const void *args, int first)
{
    const folio_linear_args *a = args;
    int n = 1 + step_for(wg_toks, FOLIO_COUNT(wg_toks), a->n_tok);
    int32_t group = WG_GROUP;
    for (int i = 0; i < n; i++) {
        for (;;) {
            int32_t lanes = FOLIO_MIN(group, WG_LANES);
            char options[96];
            snprintf(options, sizeof options,
                     "-DLINEAR_WG -DQUANT_WORDS -DWG=%d -DLANES=%d -DNB=%d",
                     (int)group, (int)lanes, (int)wg_toks[i]);
            FOLIO_RETURN_IF(
                open_kernel(op, first + i, args, "linear_wg", options));
            int32_t limit = power_below(kernel_limit(op, first + i));
            if (limit >= group) {
                set_shape(op, first + i,
                          (tile_shape){group / lanes, wg_toks[i], group});
                break;
            }
            group = limit;
            i = 0;
        }
    }
    return FOLIO_OK;
}

static folio_status run_wg_steps(folio_op *op, folio_queue *q,
                                 const folio_linear_args *a, int first)
{
    int step = step_for(wg_toks, FOLIO_COUNT(wg_toks), a->n_tok);
    return launch(op, q, a, first + step);
}

static folio_status open_wg(folio_op *op, const void *args)
{
    return open_wg_steps(op, args, 0);
}

static folio_status run_wg(folio_op *op, folio_queue *q, const void *args)
{
    return run_wg_steps(op, q, args, 0);
}

const folio_variant_fns folio_var_linear_wg = {.open = open_wg, .run = run_wg};

/* ---- linear_tile --------------------------------------------------------- */

/* From so many tokens on a tile beats linear_wg, which serves fewer. */
#define TILE_MIN_TOKS 9

typedef struct tile_config {
    int32_t bm, bn, rm, rn;
} tile_config;

static const tile_config tile_configs[] = {
    {64, 64, 4, 4},
    {32, 32, 4, 4},
    {16, 16, 2, 2},
    {8, 8, 2, 2},
};

static const char *fits_tile(const folio_device *dev,
                             const folio_op_params *prm, const void *args)
{
    const folio_linear_args *a = args;
    (void)dev;
    (void)prm;
    return a->n_tok < TILE_MIN_TOKS ? "for 9 tokens or more" : NULL;
}

static folio_status open_tile(folio_op *op, const void *args)
{
    folio_status st = FOLIO_E_BUILD;
    for (size_t i = 0; i < FOLIO_COUNT(tile_configs); i++) {
        const tile_config *c = &tile_configs[i];
        int32_t items = c->bm / c->rm * (c->bn / c->rn);
        char options[128];
        snprintf(options, sizeof options,
                 "-DLINEAR_TILE -DQUANT_WORDS -DBM=%d -DBN=%d -DRM=%d -DRN=%d "
                 "-DWG=%d",
                 (int)c->bm, (int)c->bn, (int)c->rm, (int)c->rn, (int)items);
        st = open_kernel(op, 0, args, "linear_tile", options);
        if (st == FOLIO_E_BUILD)
            continue; /* more local memory than there is: a smaller one */
        FOLIO_RETURN_IF(st);
        if (kernel_limit(op, 0) < items) {
            st = FOLIO_E_BUILD;
            continue;
        }
        set_shape(op, 0, (tile_shape){c->bm, c->bn, items});
        return open_wg_steps(op, args, 1);
    }
    return st;
}

static folio_status run_tile(folio_op *op, folio_queue *q, const void *args)
{
    const folio_linear_args *a = args;
    if (a->n_tok < TILE_MIN_TOKS)
        return run_wg_steps(op, q, a, 1);
    return launch(op, q, a, 0);
}

const folio_variant_fns folio_var_linear_tile = {
    .fits = fits_tile, .open = open_tile, .run = run_tile};
