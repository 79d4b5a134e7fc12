/* ops/cl/cl_wgmma.c: launchers of cl/gemm_wgmma.cl: which token tile, how x
 * gets there, and how the work is cut among groups. No arithmetic here. */
#include "ops/cl/cl_matrix.h"
#include "ops/pack.h"
#include "ops/variants.h"

#define BM 128

/* A token tile and how it is fed. With x as floats a group turns what it needs
 * into halves itself, which costs no launch but is done once per row tile: for
 * more rows than X_F32_ROWS packing x first is quicker. */
#define X_F32_ROWS 4096
typedef struct token_step {
    int32_t bn;
    bool x_f32;
    int32_t ks, stages; /* columns of a step, steps in local memory */
} token_step;

static const token_step ptx_steps[] = {{8, true, 0, 0},    {16, true, 0, 0},
                                       {32, true, 0, 0},   {64, true, 0, 0},
                                       {128, false, 0, 0}, {256, false, 0, 0}};
/* Both ways to feed, in less local memory than any device has. */
static const token_step emu_steps[] = {{8, true, 0, 0}, {32, false, 0, 0}};

/* What the probe has tried, and what still helps. */
#define RING_BYTES (200 << 10)
#define MAX_STAGES 12

/* Emulated groups: few and odd, so that spans end anywhere. */
#define EMU_GROUPS 5

/* What FOLIO_TUNE may say is asked once, at open. */
enum {
    GEO_STEPS, /* kernels built */
    GEO_PACK_WG,
    GEO_GROUPS, /* GROUPS: work-groups at once */
    GEO_BN,     /* BN: the step with so many tokens; 0 = as fits */
    GEO_F32,    /* XF32: 1 yes, 2 no for narrow steps; 0 = the step's own */
    GEO_STAGES, /* STAGES; 0 = the step's own */
    GEO_SPLIT,  /* SPLIT: 2 cuts no tile */
    GEO_SPAN,   /* SPAN: least steps of a part; 0 = by the tile */
    GEO_KS      /* KS: columns of a step; 0 = the step's own */
};

/* Bytes of 128 rows times 64 columns. */
static int32_t rows_bytes(const folio_weight *w)
{
    return (int32_t)(folio_type_row_bytes(w->type, 64) * BM);
}

static token_step get_step(const folio_op *op, const folio_weight *w, int i)
{
    token_step s = folio_cl_emulates(op) ? emu_steps[i] : ptx_steps[i];
    if (!folio_cl_emulates(op) && w->rows > X_F32_ROWS)
        s.x_f32 = false;
    if (s.bn <= 128 && op->geo[GEO_F32] != 0)
        s.x_f32 = op->geo[GEO_F32] == 1;
    /* Small steps of few tokens are over before the next is there. */
    bool small = s.bn <= (w->type != FOLIO_TYPE_F16 ? 32 : 128);
    s.ks = op->geo[GEO_KS] ? op->geo[GEO_KS] : small ? 128 : 64;
    if (w->cols % s.ks != 0)
        s.ks = 64;
    int32_t a = (rows_bytes(w) * (s.ks / 64) + 1023) / 1024 * 1024;
    int32_t stage = a + s.bn * 2 * s.ks;
    s.stages =
        folio_cl_emulates(op) ? 1 : FOLIO_MIN(RING_BYTES / stage, MAX_STAGES);
    if (op->geo[GEO_STAGES] > 0)
        s.stages = FOLIO_MIN(s.stages, op->geo[GEO_STAGES]);
    return s;
}

static int count_steps(const folio_op *op)
{
    return folio_cl_emulates(op) ? FOLIO_COUNT(emu_steps)
                                 : FOLIO_COUNT(ptx_steps);
}

/* The narrowest step that holds all tokens, else the widest that still gives
 * nearly every group a tile. */
static int pick_step(const folio_op *op, const folio_linear_args *a)
{
    int i = 0, last = op->geo[GEO_STEPS] - 1;
    int32_t forced = op->geo[GEO_BN];
    while (i < last && get_step(op, a->w, i).bn < (forced ? forced : a->n_tok))
        i++;
    int64_t tiles = folio_div_up(a->w->rows, BM) *
                    folio_div_up(a->n_tok, get_step(op, a->w, i).bn);
    if (i > 0 && !forced && get_step(op, a->w, i).bn > 128 &&
        tiles * 10 < (int64_t)op->geo[GEO_GROUPS] * 9)
        i--;
    return i;
}

/* How the tiles of one view are shared out. */
typedef struct share_out {
    int32_t full, span;
    size_t groups;
} share_out;

static share_out cut_work(const folio_op *op, int64_t tiles, int64_t steps,
                          int32_t bn)
{
    int64_t groups = op->geo[GEO_GROUPS];
    int64_t rest = tiles % groups, full = tiles - rest;
    /* Nearly all groups busy, or told so: nothing is cut. */
    if (rest * 10 >= groups * 9 || rest == 0 || op->geo[GEO_SPLIT] == 2)
        return (share_out){(int32_t)tiles, 1, (size_t)FOLIO_MIN(groups, tiles)};
    /* A part of a tile costs a trip through memory. */
    int32_t least = op->geo[GEO_SPAN] ? op->geo[GEO_SPAN] : bn > 64 ? 4 : 2;
    int64_t span = FOLIO_MAX(folio_div_up(rest * steps, groups), least);
    /* Whole tiles at once are as good as parts. */
    if (span >= steps)
        return (share_out){(int32_t)tiles, 1, (size_t)FOLIO_MIN(groups, tiles)};
    if (full == 0)
        groups = folio_div_up(rest * steps, span);
    return (share_out){(int32_t)full, (int32_t)span, (size_t)groups};
}

/* Two parts a group at most: the end of one tile and the start of another. */
static size_t parts_bytes(const folio_op *op, int32_t bn)
{
    return (size_t)op->geo[GEO_GROUPS] * 2 * BM * (size_t)bn * sizeof(float);
}

static const char *fits_wgmma(const folio_device *dev,
                              const folio_op_params *prm, const void *args)
{
    const folio_linear_args *a = args;
    const folio_weight *w = a->w;
    bool emulated = !(folio_device_caps(dev) & FOLIO_CAP_PTX_RETARGET);
    if (w->packing != FOLIO_PACK_TILE16 && w->packing != FOLIO_PACK_RG16)
        return "the weights are not packed";
    if (w->cols % 64 != 0)
        return "columns are no multiple of 64";
    if (!emulated &&
        a->n_tok < folio_cl_matrix_tuned(prm, "linear_wgmma", "MIN",
                                         FOLIO_WGMMA_MIN_TOKS))
        return "for 4 tokens or more";
    int32_t items = emulated ? 256 : 512;
    if (folio_cl_work_group(dev, items) < items)
        return "needs larger work-groups";
    return NULL;
}

static folio_status open_step(folio_op *op, const folio_linear_args *a, int i)
{
    token_step s = get_step(op, a->w, i);
    bool emulated = folio_cl_emulates(op);
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    folio_cl_define(&o, "LINEAR_WGMMA", 1);
    folio_cl_define(&o, "BN", s.bn);
    folio_cl_define(&o, "KS", s.ks);
    folio_cl_define(&o, "STAGES", s.stages);
    folio_cl_define_weight(&o, a->w);
    if (s.x_f32)
        folio_cl_define(&o, "X_F32", 1);
    folio_cl_define(&o, emulated ? "EMULATED" : "FOLIO_PTX_RETARGET", 1);
    return folio_cl_kernel_open_of(op, i, "linear_wgmma", &o,
                                   emulated ? 256 : 384, NULL);
}

static void tune(folio_op *op)
{
    const folio_op_params *prm = &op->prm;
    int32_t groups = folio_cl_matrix_tuned(
        prm, "linear_wgmma", "GROUPS",
        folio_cl_emulates(op) ? EMU_GROUPS : folio_cl_units(op->dev));
    op->geo[GEO_GROUPS] = FOLIO_MAX(groups, 1);
    op->geo[GEO_BN] = folio_cl_matrix_tuned(prm, "linear_wgmma", "BN", 0);
    op->geo[GEO_F32] = folio_cl_matrix_tuned(prm, "linear_wgmma", "XF32", 0);
    op->geo[GEO_STAGES] =
        folio_cl_matrix_tuned(prm, "linear_wgmma", "STAGES", 0);
    op->geo[GEO_SPLIT] = folio_cl_matrix_tuned(prm, "linear_wgmma", "SPLIT", 1);
    op->geo[GEO_SPAN] = folio_cl_matrix_tuned(prm, "linear_wgmma", "SPAN", 0);
    op->geo[GEO_KS] = folio_cl_matrix_tuned(prm, "linear_wgmma", "KS", 0);
}

static folio_status open_wgmma(folio_op *op, const void *args)
{
    const folio_linear_args *a = args;
    int n = 0;
    tune(op);
    do {
        token_step s = get_step(op, a->w, n);
        size_t bytes = parts_bytes(op, s.bn);
        FOLIO_RETURN_IF(open_step(op, a, n));
        if (!s.x_f32)
            bytes += folio_cl_packed_bytes(a->n_tok, s.bn, a->w->cols);
        op->scratch_bytes =
            FOLIO_MAX(op->scratch_bytes, bytes + FOLIO_GEMM_ALIGN);
        if (!s.x_f32 && !op->kernel[FOLIO_GEMM_PACK_KERNEL])
            FOLIO_RETURN_IF(folio_cl_pack_open(op, &op->geo[GEO_PACK_WG]));
        n++;
    } while (n < count_steps(op) && get_step(op, a->w, n - 1).bn <
                                        FOLIO_MAX(a->n_tok, op->geo[GEO_BN]));
    op->geo[GEO_STEPS] = n;
    /* Counters of the parts that have come, of both halves of a tile. */
    return folio_buf_open(
        op->dev, (size_t)op->geo[GEO_GROUPS] * 2 * sizeof(int32_t), &op->own);
}

static folio_status run_wgmma(folio_op *op, folio_queue *q, const void *args)
{
    const folio_linear_args *a = args;
    const folio_weight *w = a->w;
    int i = pick_step(op, a);
    token_step s = get_step(op, a->w, i);
    folio_view scratch = folio_cl_matrix_align(a->scratch), x = a->x;
    folio_view own = {op->own, 0};
    if (!s.x_f32) {
        x = scratch;
        FOLIO_RETURN_IF(folio_cl_pack_run(op, q, a, op->geo[GEO_PACK_WG], s.bn,
                                          true, w->type != FOLIO_TYPE_F16, x));
        scratch.offset += folio_cl_packed_bytes(a->n_tok, s.bn, w->cols);
    }
    int32_t flags =
        (a->bias.buf ? FOLIO_GEMM_BIAS : 0) |
        (a->accumulate ? FOLIO_GEMM_ACCUMULATE : 0) |
        (folio_cl_in_words(a->x, a->x_stride) ? FOLIO_GEMM_WORDS : 0);
    for (int32_t n = 0; n < w->n_views; n++) {
        const folio_weight_view *v = &w->views[n];
        size_t at = (size_t)v->first_row * sizeof(float);
        int64_t tiles =
            folio_div_up(v->rows, BM) * folio_div_up(a->n_tok, s.bn);
        share_out cut = cut_work(op, tiles, w->cols / s.ks, s.bn);
        const folio_arg all[] = {
            folio_arg_view(v->view),
            folio_arg_view(x),
            /* Any address where there is no bias: not read. */
            folio_arg_view(a->bias.buf ? folio_view_at(a->bias, at) : x),
            folio_arg_view(folio_view_at(a->y, at)),
            folio_arg_view(scratch),
            folio_arg_view(own),
            folio_arg_i32((int32_t)v->rows),
            folio_arg_i32((int32_t)w->cols),
            folio_arg_i32(a->n_tok),
            folio_arg_i32(a->x_stride),
            folio_arg_i32(a->y_stride),
            folio_arg_i32(flags),
            folio_arg_i32(cut.full),
            folio_arg_i32(cut.span),
        };
        folio_grid grid = {
            .groups = {cut.groups, 1, 1},
            .local = {folio_cl_emulates(op) ? 256 : 384, 1, 1},
        };
        FOLIO_RETURN_IF(
            folio_launch(q, op->kernel[i], &grid, all, FOLIO_COUNT(all)));
    }
    return FOLIO_OK;
}

const folio_variant_fns folio_var_linear_wgmma = {
    .fits = fits_wgmma, .open = open_wgmma, .run = run_wgmma};
