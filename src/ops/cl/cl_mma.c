/* ops/cl/cl_mma.c: launchers of cl/gemm_mma.cl, for half weights in rows or in
 * either packing: which tile, and in how many parts. No arithmetic here. */
#include "ops/cl/cl_matrix.h"
#include "ops/pack.h"
#include "ops/variants.h"

/* Tokens and rows of a tile and of a warp, stages of 32 columns in 48 KiB. */
typedef struct mma_step {
    int32_t bm, bn, wm, wn, st;
} mma_step;

static const mma_step ptx_steps[] = {
    {16, 64, 16, 16, 8},
    {32, 64, 16, 16, 7},
    {64, 64, 32, 16, 5},
    {128, 128, 64, 32, 3},
};
static const mma_step emu_steps[] = {{16, 32, 16, 16, 1}, {32, 64, 16, 32, 1}};

/* Least steps of 32 columns in a part. */
#define MIN_SPAN 8
/* Most tiles that are cut, and so counters. */
#define EMU_GROUPS 6

enum { GEO_STEPS, GEO_PACK_WG, GEO_GROUPS, GEO_BM, GEO_SPLIT };

static mma_step get_step(const folio_op *op, int i)
{
    return folio_cl_emulates(op) ? emu_steps[i] : ptx_steps[i];
}

static int count_steps(const folio_op *op)
{
    return folio_cl_emulates(op) ? FOLIO_COUNT(emu_steps)
                                 : FOLIO_COUNT(ptx_steps);
}

static int32_t items_of(mma_step s)
{
    return s.bm / s.wm * (s.bn / s.wn) * 32;
}

static int pick_step(const folio_op *op, const folio_linear_args *a)
{
    int i = 0;
    int32_t want = op->geo[GEO_BM] ? op->geo[GEO_BM] : a->n_tok;
    while (i < op->geo[GEO_STEPS] - 1 && get_step(op, i).bm < want)
        i++;
    return i;
}

static const char *fits_mma(const folio_device *dev, const folio_op_params *prm,
                            const void *args)
{
    const folio_linear_args *a = args;
    bool emulated = !(folio_device_caps(dev) & FOLIO_CAP_PTX_MMA);
    if (a->w->type != FOLIO_TYPE_F16)
        return "the weights are not F16";
    if (a->w->cols % 32 != 0)
        return "columns are no multiple of 32";
    if (!emulated && a->n_tok < folio_cl_matrix_tuned(prm, "linear_mma", "MIN",
                                                      FOLIO_MMA_MIN_TOKS))
        return "for 9 tokens or more";
    if (folio_cl_work_group(dev, 256) < 256)
        return "needs work-groups of 256";
    return NULL;
}

static folio_status open_step(folio_op *op, const folio_linear_args *a, int i)
{
    mma_step s = get_step(op, i);
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    folio_cl_define(&o, "LINEAR_MMA", 1);
    folio_cl_define(&o, "BM", s.bm);
    folio_cl_define(&o, "BN", s.bn);
    folio_cl_define(&o, "WM", s.wm);
    folio_cl_define(&o, "WN", s.wn);
    folio_cl_define(&o, "ST", s.st);
    folio_cl_define_weight(&o, a->w);
    if (folio_cl_emulates(op))
        folio_cl_define(&o, "EMULATED", 1);
    return folio_cl_kernel_open_of(op, i, "linear_mma", &o, items_of(s), NULL);
}

/* Parts that the tiles of a view are cut into: 1 where there are enough. */
static int32_t count_splits(const folio_op *op, int64_t tiles, int64_t steps)
{
    int64_t groups = op->geo[GEO_GROUPS];
    if (op->geo[GEO_SPLIT] == 2 || tiles >= groups)
        return 1;
    int64_t n = FOLIO_MIN(groups / tiles, steps / MIN_SPAN);
    return (int32_t)FOLIO_MAX(n, 1);
}

static folio_status open_mma(folio_op *op, const void *args)
{
    const folio_linear_args *a = args;
    int n = 0;
    int32_t groups = folio_cl_matrix_tuned(
        &op->prm, "linear_mma", "GROUPS",
        folio_cl_emulates(op) ? EMU_GROUPS : 2 * folio_cl_units(op->dev));
    op->geo[GEO_GROUPS] = FOLIO_MAX(groups, 1);
    op->geo[GEO_BM] = folio_cl_matrix_tuned(&op->prm, "linear_mma", "BM", 0);
    op->geo[GEO_SPLIT] =
        folio_cl_matrix_tuned(&op->prm, "linear_mma", "SPLIT", 1);
    do {
        mma_step s = get_step(op, n);
        /* Cut tiles have at most `groups` parts in all. */
        size_t bytes =
            folio_cl_packed_bytes(a->n_tok, s.bm, a->w->cols) +
            (size_t)op->geo[GEO_GROUPS] * (size_t)(s.bm * s.bn) * sizeof(float);
        FOLIO_RETURN_IF(open_step(op, a, n));
        op->scratch_bytes =
            FOLIO_MAX(op->scratch_bytes, bytes + 2 * FOLIO_GEMM_ALIGN);
        n++;
    } while (n < count_steps(op) &&
             get_step(op, n - 1).bm < FOLIO_MAX(a->n_tok, op->geo[GEO_BM]));
    op->geo[GEO_STEPS] = n;
    FOLIO_RETURN_IF(folio_cl_pack_open(op, &op->geo[GEO_PACK_WG]));
    return folio_buf_open(
        op->dev, (size_t)op->geo[GEO_GROUPS] * sizeof(int32_t), &op->own);
}

static folio_status run_mma(folio_op *op, folio_queue *q, const void *args)
{
    const folio_linear_args *a = args;
    const folio_weight *w = a->w;
    int i = pick_step(op, a);
    mma_step s = get_step(op, i);
    folio_view x = folio_cl_matrix_align(a->scratch), own = {op->own, 0};
    FOLIO_RETURN_IF(folio_cl_pack_run(op, q, a, op->geo[GEO_PACK_WG], s.bm,
                                      false, false, x));
    folio_view part = folio_cl_matrix_align(
        folio_view_at(x, folio_cl_packed_bytes(a->n_tok, s.bm, a->w->cols)));
    for (int32_t n = 0; n < w->n_views; n++) {
        const folio_weight_view *v = &w->views[n];
        size_t at = (size_t)v->first_row * sizeof(float);
        int64_t tiles =
            folio_div_up(v->rows, s.bn) * folio_div_up(a->n_tok, s.bm);
        int32_t splits = count_splits(op, tiles, w->cols / 32);
        int32_t flags = (a->bias.buf ? FOLIO_GEMM_BIAS : 0) |
                        (a->accumulate ? FOLIO_GEMM_ACCUMULATE : 0) |
                        (v->view.offset % 16 == 0 ? FOLIO_GEMM_WORDS : 0);
        const folio_arg all[] = {
            folio_arg_view(v->view),
            folio_arg_view(x),
            /* Any address where there is no bias: not read. */
            folio_arg_view(a->bias.buf ? folio_view_at(a->bias, at) : x),
            folio_arg_view(folio_view_at(a->y, at)),
            folio_arg_view(part),
            folio_arg_view(own),
            folio_arg_i32((int32_t)v->rows),
            folio_arg_i32((int32_t)w->cols),
            folio_arg_i32(a->n_tok),
            folio_arg_i32(a->y_stride),
            folio_arg_i32(flags),
            folio_arg_i32(splits),
        };
        folio_grid grid = {
            .groups = {(size_t)(tiles * splits), 1, 1},
            .local = {(size_t)items_of(s), 1, 1},
        };
        FOLIO_RETURN_IF(
            folio_launch(q, op->kernel[i], &grid, all, FOLIO_COUNT(all)));
    }
    return FOLIO_OK;
}

const folio_variant_fns folio_var_linear_mma = {
    .fits = fits_mma, .open = open_mma, .run = run_mma};
