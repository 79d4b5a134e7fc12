/* ops/cl/cl_wgmma.c: launchers of cl/gemm_wgmma.cl, for linear and norm_linear:
 * which token tile, how x gets there, and how the work is cut among groups. No
 * arithmetic here. */
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

/* Arguments that the kernel of one weight has. */
#define ONE_PART_ARGS 14

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

/* What either op asks for. The weights are of one type and packing. */
typedef struct job {
    folio_product part[FOLIO_MAX_PRODUCTS];
    int32_t n_parts, n_tok;
    int64_t rows, cols; /* rows of all parts */
    folio_view x, scratch;
    int32_t x_stride;
    bool accumulate;
} job;

static job job_of(folio_op_id id, const void *args)
{
    if (id == FOLIO_OP_LINEAR) {
        const folio_linear_args *a = args;
        return (job){.part = {{.w = a->w,
                               .bias = a->bias,
                               .y = a->y,
                               .y_stride = a->y_stride}},
                     .n_parts = 1,
                     .n_tok = a->n_tok,
                     .rows = a->w->rows,
                     .cols = a->w->cols,
                     .x = a->x,
                     .scratch = a->scratch,
                     .x_stride = a->x_stride,
                     .accumulate = a->accumulate};
    }
    const folio_norm_linear_args *a = args;
    job j = {.n_parts = a->n_parts,
             .n_tok = a->n_tok,
             .cols = a->in.dim,
             .x = a->in.x,
             .scratch = a->scratch,
             .x_stride = a->in.x_stride};
    for (int32_t i = 0; i < a->n_parts; i++) {
        j.part[i] = a->part[i];
        j.rows += a->part[i].w->rows;
    }
    return j;
}

static bool norms(const folio_op *op)
{
    return op->var->op == FOLIO_OP_NORM_LINEAR;
}

/* Bytes of 128 rows times 64 columns. */
static int32_t rows_bytes(const folio_weight *w)
{
    return (int32_t)(folio_type_row_bytes(w->type, 64) * BM);
}

static int32_t stage_bytes(const folio_weight *w, const token_step *s)
{
    int32_t a = (rows_bytes(w) * (s->ks / 64) + 1023) / 1024 * 1024;
    return a + s->bn * 2 * s->ks;
}

/* Whether there is local memory for a step: a device that is given these forms
 * has it, others are asked. */
static bool has_room(const folio_op *op, int32_t bytes)
{
    folio_device_info info = {.size = sizeof info};
    if (!folio_cl_emulates(op))
        return true;
    folio_device_get_info(op->dev, &info);
    return (uint64_t)bytes + 1024 <= info.local_bytes;
}

static token_step get_step(const folio_op *op, const job *j, int i)
{
    const folio_weight *w = j->part[0].w;
    token_step s = folio_cl_emulates(op) ? emu_steps[i] : ptx_steps[i];
    if (!folio_cl_emulates(op) && w->rows > X_F32_ROWS)
        s.x_f32 = false;
    if (s.bn <= 128 && op->geo[GEO_F32] != 0)
        s.x_f32 = op->geo[GEO_F32] == 1;
    /* What norms x packs it by the way. */
    if (norms(op))
        s.x_f32 = false;
    /* Small steps of few tokens are over before the next is there. */
    bool small = s.bn <= (w->type != FOLIO_TYPE_F16 ? 32 : 128);
    s.ks = op->geo[GEO_KS] ? op->geo[GEO_KS] : small ? 128 : 64;
    if (w->cols % s.ks != 0 || !has_room(op, stage_bytes(w, &s)))
        s.ks = 64;
    s.stages = folio_cl_emulates(op)
                   ? 1
                   : FOLIO_MIN(RING_BYTES / stage_bytes(w, &s), MAX_STAGES);
    if (op->geo[GEO_STAGES] > 0)
        s.stages = FOLIO_MIN(s.stages, op->geo[GEO_STAGES]);
    return s;
}

static int count_steps(const folio_op *op, const job *j)
{
    const folio_weight *w = j->part[0].w;
    if (folio_cl_emulates(op))
        return FOLIO_COUNT(emu_steps);
    /* With halves from registers and three parts to tell apart, the widest
     * tile does not fit the registers. */
    const bool spills =
        norms(op) && w->type == FOLIO_TYPE_F16 && w->packing == FOLIO_PACK_RG16;
    return FOLIO_COUNT(ptx_steps) - (spills ? 1 : 0);
}

/* The narrowest step that holds all tokens, else the widest that still gives
 * nearly every group a tile. */
static int pick_step(const folio_op *op, const job *j)
{
    int i = 0, last = op->geo[GEO_STEPS] - 1;
    int32_t forced = op->geo[GEO_BN];
    while (i < last && get_step(op, j, i).bn < (forced ? forced : j->n_tok))
        i++;
    const int32_t bn = get_step(op, j, i).bn;
    int64_t tiles = 0;
    for (int32_t n = 0; n < j->n_parts; n++)
        tiles += folio_div_up(j->part[n].w->rows, BM);
    tiles *= folio_div_up(j->n_tok, bn);
    if (i > 0 && !forced && bn > 128 &&
        tiles * 10 < (int64_t)op->geo[GEO_GROUPS] * 9)
        i--;
    return i;
}

/* How the tiles of one launch are shared out. */
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

static const char *fits_job(const folio_device *dev, const folio_op_params *prm,
                            const char *name, const job *j)
{
    bool emulated = !(folio_device_caps(dev) & FOLIO_CAP_PTX_RETARGET);
    for (int32_t i = 0; i < j->n_parts; i++) {
        const folio_weight *w = j->part[i].w;
        if (w->packing != FOLIO_PACK_TILE16 && w->packing != FOLIO_PACK_RG16)
            return "the weights are not packed";
        if (w->packing != j->part[0].w->packing ||
            w->type != j->part[0].w->type)
            return "the weights are not all alike";
    }
    if (j->cols % 64 != 0)
        return "columns are no multiple of 64";
    if (!emulated && j->n_tok < folio_cl_matrix_tuned(prm, name, "MIN",
                                                      FOLIO_WGMMA_MIN_TOKS))
        return "for 4 tokens or more";
    int32_t items = emulated ? 256 : 512;
    if (folio_cl_work_group(dev, items) < items)
        return "needs larger work-groups";
    return NULL;
}

static const char *fits_wgmma(const folio_device *dev,
                              const folio_op_params *prm, const void *args)
{
    job j = job_of(FOLIO_OP_LINEAR, args);
    return fits_job(dev, prm, "linear_wgmma", &j);
}

static const char *fits_norm_wgmma(const folio_device *dev,
                                   const folio_op_params *prm, const void *args)
{
    job j = job_of(FOLIO_OP_NORM_LINEAR, args);
    return fits_job(dev, prm, "norm_linear_wgmma", &j);
}

static folio_status open_step(folio_op *op, const job *j, int i)
{
    token_step s = get_step(op, j, i);
    bool emulated = folio_cl_emulates(op);
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    folio_cl_define(&o, "LINEAR_WGMMA", 1);
    folio_cl_define(&o, "BN", s.bn);
    folio_cl_define(&o, "KS", s.ks);
    folio_cl_define(&o, "STAGES", s.stages);
    folio_cl_define_weight(&o, j->part[0].w);
    if (s.x_f32)
        folio_cl_define(&o, "X_F32", 1);
    if (norms(op))
        folio_cl_define(&o, "WGMMA_PARTS", 1);
    folio_cl_define(&o, emulated ? "EMULATED" : "FOLIO_PTX_RETARGET", 1);
    return folio_cl_kernel_open_of(op, i, op->var->name, &o,
                                   emulated ? 256 : 384, NULL);
}

static void tune(folio_op *op)
{
    const folio_op_params *prm = &op->prm;
    const char *name = op->var->name;
    int32_t groups = folio_cl_matrix_tuned(
        prm, name, "GROUPS",
        folio_cl_emulates(op) ? EMU_GROUPS : folio_cl_units(op->dev));
    op->geo[GEO_GROUPS] = FOLIO_MAX(groups, 1);
    op->geo[GEO_BN] = folio_cl_matrix_tuned(prm, name, "BN", 0);
    op->geo[GEO_F32] = folio_cl_matrix_tuned(prm, name, "XF32", 0);
    op->geo[GEO_STAGES] = folio_cl_matrix_tuned(prm, name, "STAGES", 0);
    op->geo[GEO_SPLIT] = folio_cl_matrix_tuned(prm, name, "SPLIT", 1);
    op->geo[GEO_SPAN] = folio_cl_matrix_tuned(prm, name, "SPAN", 0);
    op->geo[GEO_KS] = folio_cl_matrix_tuned(prm, name, "KS", 0);
}

static folio_status open_pack(folio_op *op, const job *j)
{
    if (op->kernel[FOLIO_GEMM_PACK_KERNEL])
        return FOLIO_OK;
    if (norms(op))
        return folio_cl_norm_pack_open(op, (int32_t)j->cols,
                                       &op->geo[GEO_PACK_WG]);
    return folio_cl_pack_open(op, &op->geo[GEO_PACK_WG]);
}

static folio_status open_wgmma(folio_op *op, const void *args)
{
    const job j = job_of(op->var->op, args);
    int n = 0;
    tune(op);
    do {
        token_step s = get_step(op, &j, n);
        size_t bytes = parts_bytes(op, s.bn);
        FOLIO_RETURN_IF(open_step(op, &j, n));
        if (!s.x_f32) {
            bytes += folio_cl_packed_bytes(j.n_tok, s.bn, j.cols);
            FOLIO_RETURN_IF(open_pack(op, &j));
        }
        op->scratch_bytes =
            FOLIO_MAX(op->scratch_bytes, bytes + FOLIO_GEMM_ALIGN);
        n++;
    } while (n < count_steps(op, &j) &&
             get_step(op, &j, n - 1).bn < FOLIO_MAX(j.n_tok, op->geo[GEO_BN]));
    op->geo[GEO_STEPS] = n;
    /* Counters of the parts that have come, of both halves of a tile. */
    return folio_buf_open(
        op->dev, (size_t)op->geo[GEO_GROUPS] * 2 * sizeof(int32_t), &op->own);
}

/* ---- a run --------------------------------------------------------------- */

/* Rows that lie in one buffer; `none` where there is no bias: not read. */
typedef struct piece {
    folio_view w, bias, y;
    int32_t rows, y_stride;
    bool has_bias;
} piece;

static piece piece_of(const folio_product *p, int32_t view, folio_view none)
{
    const folio_weight_view *v = &p->w->views[view];
    const size_t at = (size_t)v->first_row * sizeof(float);
    return (piece){.w = v->view,
                   .bias = p->bias.buf ? folio_view_at(p->bias, at) : none,
                   .y = folio_view_at(p->y, at),
                   .rows = (int32_t)v->rows,
                   .y_stride = p->y_stride,
                   .has_bias = p->bias.buf != NULL};
}

/* Up to three pieces in one launch, of linear one. */
static folio_status launch(folio_op *op, folio_queue *q, const job *j, int i,
                           folio_view x, folio_view part, const piece *p, int n)
{
    token_step s = get_step(op, j, i);
    int64_t tiles_r = 0;
    int32_t flags =
        (j->accumulate ? FOLIO_GEMM_ACCUMULATE : 0) |
        (folio_cl_in_words(j->x, j->x_stride) ? FOLIO_GEMM_WORDS : 0) |
        (p[0].has_bias ? FOLIO_GEMM_BIAS : 0);
    for (int k = 0; k < n; k++)
        tiles_r += folio_div_up(p[k].rows, BM);
    /* A part that is absent has no rows, and is not looked at. */
    const piece none = {.w = p[0].w, .bias = x, .y = p[0].y};
    const piece p1 = n > 1 ? p[1] : none, p2 = n > 2 ? p[2] : none;
    flags |= (p1.has_bias ? FOLIO_GEMM_BIAS_1 : 0) |
             (p2.has_bias ? FOLIO_GEMM_BIAS_2 : 0);
    share_out cut = cut_work(op, tiles_r * folio_div_up(j->n_tok, s.bn),
                             j->cols / s.ks, s.bn);
    const folio_arg all[] = {
        folio_arg_view(p[0].w),
        folio_arg_view(x),
        folio_arg_view(p[0].bias),
        folio_arg_view(p[0].y),
        folio_arg_view(part),
        folio_arg_view((folio_view){op->own, 0}),
        folio_arg_i32(p[0].rows),
        folio_arg_i32((int32_t)j->cols),
        folio_arg_i32(j->n_tok),
        folio_arg_i32(j->x_stride),
        folio_arg_i32(p[0].y_stride),
        folio_arg_i32(flags),
        folio_arg_i32(cut.full),
        folio_arg_i32(cut.span),
        /* WGMMA_PARTS */
        folio_arg_view(p1.w),
        folio_arg_view(p2.w),
        folio_arg_view(p1.bias),
        folio_arg_view(p2.bias),
        folio_arg_view(p1.y),
        folio_arg_view(p2.y),
        folio_arg_i32(p1.rows),
        folio_arg_i32(p2.rows),
        folio_arg_i32(p1.y_stride),
        folio_arg_i32(p2.y_stride),
    };
    const folio_grid grid = {
        .groups = {cut.groups, 1, 1},
        .local = {folio_cl_emulates(op) ? 256 : 384, 1, 1},
    };
    return folio_launch(q, op->kernel[i], &grid, all,
                        norms(op) ? FOLIO_COUNT(all) : ONE_PART_ARGS);
}

static folio_status run_wgmma(folio_op *op, folio_queue *q, const void *args)
{
    const job j = job_of(op->var->op, args);
    const folio_weight *w = j.part[0].w;
    const int i = pick_step(op, &j);
    const int most = norms(op) ? FOLIO_MAX_PRODUCTS : 1;
    token_step s = get_step(op, &j, i);
    folio_view part = folio_cl_matrix_align(j.scratch), x = j.x;
    piece p[FOLIO_MAX_PRODUCTS];
    int n = 0;
    if (!s.x_f32) {
        const bool even_odd = w->type != FOLIO_TYPE_F16;
        const int32_t wg = op->geo[GEO_PACK_WG];
        x = part;
        if (norms(op))
            FOLIO_RETURN_IF(
                folio_cl_norm_pack_run(op, q, args, wg, s.bn, even_odd, x));
        else
            FOLIO_RETURN_IF(
                folio_cl_pack_run(op, q, args, wg, s.bn, true, even_odd, x));
        part.offset += folio_cl_packed_bytes(j.n_tok, s.bn, j.cols);
    }
    for (int32_t k = 0; k < j.n_parts; k++)
        for (int32_t v = 0; v < j.part[k].w->n_views; v++) {
            p[n++] = piece_of(&j.part[k], v, x);
            if (n < most)
                continue;
            FOLIO_RETURN_IF(launch(op, q, &j, i, x, part, p, n));
            n = 0;
        }
    return n ? launch(op, q, &j, i, x, part, p, n) : FOLIO_OK;
}

const folio_variant_fns folio_var_linear_wgmma = {
    .fits = fits_wgmma, .open = open_wgmma, .run = run_wgmma};
const folio_variant_fns folio_var_norm_linear_wgmma = {
    .fits = fits_norm_wgmma, .open = open_wgmma, .run = run_wgmma};
