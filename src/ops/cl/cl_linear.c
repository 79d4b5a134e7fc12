/* ops/cl/cl_linear.c: launchers of cl/linear.cl: which entry, with which sizes,
 * and one launch per view of the weight. No arithmetic here. */
#include "ops/cl/cl_util.h"
#include "ops/variants.h"

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

/* What all entries are compiled with; `which` names the one. */
static folio_cl_options options_for(const folio_op *op, const void *args,
                                    const char *which)
{
    const folio_linear_args *a = args;
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    folio_cl_define_weight(&o, a->w);
    folio_cl_define(&o, which, 1);
    return o;
}

static folio_status launch(folio_op *op, folio_queue *q,
                           const folio_linear_args *a, int i)
{
    const folio_weight *w = a->w;
    tile_shape s = get_shape(op, i);
    folio_view none = a->x; /* any address: not read */
    size_t row_bytes = folio_cl_row_bytes(w);

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
    folio_cl_options o = options_for(op, args, "LINEAR_ITEM");
    int32_t items = ITEM_GROUP;
    FOLIO_RETURN_IF(folio_cl_kernel_open(op, 0, "linear_item", &o, &items));
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
        folio_cl_options o = options_for(op, args, "LINEAR_CPU");
        int32_t items = CPU_GROUP;
        folio_cl_define(&o, "ROWS", cpu_rows[i]);
        folio_cl_define(&o, "NB", cpu_toks[i]);
        FOLIO_RETURN_IF(folio_cl_kernel_open(op, i, "linear_cpu", &o, &items));
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

/* Kernels first .. first + 2. All token steps use the same work-group, for the
 * same order of sums: one that takes fewer items shrinks the others too. */
static folio_status open_wg_steps(folio_op *op, const void *args, int first)
{
    const folio_linear_args *a = args;
    int n = 1 + step_for(wg_toks, FOLIO_COUNT(wg_toks), a->n_tok);
    int32_t group = WG_GROUP;
    for (int i = 0; i < n;) {
        folio_cl_options o = options_for(op, args, "LINEAR_WG");
        int32_t items = group;
        folio_cl_define(&o, "QUANT_WORDS", 1);
        folio_cl_define(&o, "NB", wg_toks[i]);
        folio_kernel_close(&op->kernel[first + i]);
        FOLIO_RETURN_IF(
            folio_cl_kernel_open(op, first + i, "linear_wg", &o, &items));
        int32_t rows = items / FOLIO_MIN(items, WG_LANES);
        set_shape(op, first + i, (tile_shape){rows, wg_toks[i], items});
        i = items < group ? 0 : i + 1;
        group = items;
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

/* Items of the smallest tile. */
#define TILE_MIN_ITEMS 16

static const char *fits_tile(const folio_device *dev,
                             const folio_op_params *prm, const void *args)
{
    const folio_linear_args *a = args;
    (void)prm;
    if (a->n_tok < TILE_MIN_TOKS)
        return "for 9 tokens or more";
    if (folio_cl_work_group(dev, TILE_MIN_ITEMS) < TILE_MIN_ITEMS)
        return "needs work-groups of 16";
    return NULL;
}

static folio_status open_tile(folio_op *op, const void *args)
{
    folio_status st = FOLIO_E_BUILD;
    for (size_t i = 0; i < FOLIO_COUNT(tile_configs); i++) {
        const tile_config *c = &tile_configs[i];
        int32_t want = c->bm / c->rm * (c->bn / c->rn), items = want;
        if (folio_cl_work_group(op->dev, want) < want)
            continue;
        folio_cl_options o = options_for(op, args, "LINEAR_TILE");
        folio_cl_define(&o, "QUANT_WORDS", 1);
        folio_cl_define(&o, "BM", c->bm);
        folio_cl_define(&o, "BN", c->bn);
        folio_cl_define(&o, "RM", c->rm);
        folio_cl_define(&o, "RN", c->rn);
        st = folio_cl_kernel_open(op, 0, "linear_tile", &o, &items);
        if (st == FOLIO_E_BUILD || (st == FOLIO_OK && items < want)) {
            folio_kernel_close(&op->kernel[0]);
            st = FOLIO_E_BUILD; /* too much memory or too many items */
            continue;
        }
        FOLIO_RETURN_IF(st);
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
