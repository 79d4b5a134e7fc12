/* ops/cl/cl_wgmma.c: launchers of cl/gemm_wgmma.cl, for linear, norm_linear,
 * qkv and gate_up: which token tile, how x gets there, and how the work is cut
 * among groups. No arithmetic here.
 *
 * Constants that FOLIO_TUNE may change stand beside GEO_. */
#include "ops/cl/cl_matrix.h"
#include "ops/pack.h"
#include "ops/variants.h"

#define BM 128

/* How x reaches a product. FLOATS: a group turns what it needs into halves
 * itself, which costs no launch but is done once per row tile: for more rows
 * than X_F32_ROWS packing x first is quicker, from WIDE tokens on (weights that
 * are halves already) or WIDE_TURNED (those that are turned) already where a
 * group has more than X_F32_STEPS steps of 64 columns to do. PACKED: a launch
 * before it packs x, behind the norm if there is one. HELD: a group norms all
 * tokens by itself and keeps them: no launch, for few tokens. */
#define X_F32_ROWS  4096
#define X_F32_STEPS 8
#define WIDE        64
#define WIDE_TURNED 128
/* The widest tile whose x a group can turn itself: its pieces are in registers
 * all at once. */
#define MOST_FLOATS 128
/* The widest tile that is worth cutting. */
#define MOST_CUT 64
typedef enum x_way { X_FLOATS, X_PACKED, X_HELD } x_way;

/* A token tile. */
typedef struct token_step {
    int32_t bn;
    x_way way;
    int32_t ks, stages; /* columns of a step, steps in local memory */
} token_step;

static const int32_t ptx_steps[] = {8, 16, 32, 64, 128, 256};
/* Both ways to feed, in less local memory than any device has. */
static const int32_t emu_steps[] = {8, 16};

/* What is held is of no more tokens (there must be a step above it) and of no
 * more bytes of local memory. */
#define USUAL_HELD 16
#define MOST_HELD  64
#define HELD_BYTES (128 << 10)

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
    GEO_KS,     /* KS: columns of a step; 0 = the step's own */
    GEO_HELD,   /* HELD: most tokens that a group norms by itself */
    GEO_SEGS
};

/* What each op asks for. The weights are of one type and packing. */
typedef struct job {
    folio_op_id id;
    folio_product part[FOLIO_MAX_PRODUCTS]; /* without y, but that of q */
    int32_t n_parts, n_tok;
    int64_t cols;
    int32_t tile_rows; /* of one weight in a tile */
    folio_view x, scratch;
    int32_t x_stride;
    bool accumulate;
    const folio_norm_in *in; /* NULL: no norm before it */
    folio_view idx;          /* where gather is 1 */
    int32_t gather;
    const folio_qkv_args *qkv;
    folio_act act;
} job;

static job job_of_linear(const folio_linear_args *a)
{
    return (job){.id = FOLIO_OP_LINEAR,
                 .part = {{.w = a->w,
                           .bias = a->bias,
                           .y = a->y,
                           .y_stride = a->y_stride}},
                 .n_parts = 1,
                 .n_tok = a->n_tok,
                 .cols = a->w->cols,
                 .tile_rows = BM,
                 .x = a->x,
                 .scratch = a->scratch,
                 .x_stride = a->x_stride,
                 .accumulate = a->accumulate};
}

/* What the ops behind a norm have in common. */
static job job_behind(folio_op_id id, const folio_norm_in *in, int32_t n_tok,
                      folio_view scratch)
{
    return (job){.id = id,
                 .n_tok = n_tok,
                 .cols = in->dim,
                 .tile_rows = BM,
                 .x = in->x,
                 .scratch = scratch,
                 .x_stride = in->x_stride,
                 .in = in};
}

static job job_of(folio_op_id id, const void *args)
{
    if (id == FOLIO_OP_LINEAR)
        return job_of_linear(args);
    if (id == FOLIO_OP_NORM_LINEAR) {
        const folio_norm_linear_args *a = args;
        job j = job_behind(id, &a->in, a->n_tok, a->scratch);
        j.n_parts = a->n_parts;
        j.idx = a->idx;
        j.gather = a->gather;
        for (int32_t i = 0; i < a->n_parts; i++)
            j.part[i] = a->part[i];
        return j;
    }
    if (id == FOLIO_OP_QKV) {
        const folio_qkv_args *a = args;
        job j = job_behind(id, &a->in, a->n_tok, a->scratch);
        j.n_parts = 3;
        j.qkv = a;
        j.part[0] = (folio_product){
            .w = a->wq, .bias = a->bq, .y = a->q, .y_stride = a->q_stride};
        j.part[1] = (folio_product){.w = a->wk, .bias = a->bk};
        j.part[2] = (folio_product){.w = a->wv, .bias = a->bv};
        return j;
    }
    const folio_gate_up_args *a = args;
    job j = job_behind(id, &a->in, a->n_tok, a->scratch);
    j.n_parts = 2;
    j.tile_rows = BM / 2;
    j.act = a->act;
    j.part[0] =
        (folio_product){.w = a->gate, .y = a->out, .y_stride = a->out_stride};
    j.part[1] = (folio_product){.w = a->up};
    return j;
}

/* Row tiles of all weights; those of a pair share theirs. */
static int64_t row_tiles(const job *j)
{
    int64_t n = 0;
    for (int32_t i = 0; i < j->n_parts; i++)
        n += folio_div_up(j->part[i].w->rows, j->tile_rows);
    return j->id == FOLIO_OP_GATE_UP ? n / 2 : n;
}

/* Bytes of 128 rows times 64 columns. */
static int32_t rows_bytes(const folio_weight *w)
{
    return (int32_t)(folio_type_row_bytes(w->type, 64) * BM);
}

/* Bytes of local memory that a step takes beside its ring. */
static int32_t beside_ring(const folio_op *op, const job *j, int32_t bn,
                           x_way way)
{
    int32_t bytes = way == X_HELD ? bn * (int32_t)j->cols * 2 : 0;
    /* What items tell each other without a warp. */
    if (folio_cl_emulates(op) && (j->qkv || way == X_HELD))
        bytes += 256 * (int32_t)sizeof(float) * (j->qkv ? bn / 2 : 1);
    return bytes;
}

static int32_t stage_bytes(const folio_weight *w, const token_step *s)
{
    int32_t a = (rows_bytes(w) * (s->ks / 64) + 1023) / 1024 * 1024;
    return a + (s->way == X_HELD ? 0 : s->bn * 2 * s->ks);
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

static x_way way_of(const folio_op *op, const job *j, int32_t bn, int i)
{
    const bool emulated = folio_cl_emulates(op);
    const folio_weight *w = j->part[0].w;
    if (j->in) {
        const int32_t most =
            FOLIO_MIN(op->geo[GEO_HELD], emulated ? emu_steps[0] : MOST_HELD);
        const token_step held = {.bn = bn, .way = X_HELD, .ks = 64};
        const int32_t more = beside_ring(op, j, bn, X_HELD);
        return bn <= most && more <= HELD_BYTES &&
                       has_room(op, stage_bytes(w, &held) + more)
                   ? X_HELD
                   : X_PACKED;
    }
    if (bn <= MOST_FLOATS && op->geo[GEO_F32] != 0)
        return op->geo[GEO_F32] == 1 ? X_FLOATS : X_PACKED;
    if (emulated)
        return i == 0 ? X_FLOATS : X_PACKED;
    const int64_t steps = row_tiles(j) * (j->cols / 64);
    const int32_t wide = w->type == FOLIO_TYPE_F16 ? WIDE : WIDE_TURNED;
    if (bn > MOST_FLOATS || w->rows > X_F32_ROWS ||
        (bn >= wide && steps > X_F32_STEPS * (int64_t)op->geo[GEO_GROUPS]))
        return X_PACKED;
    return X_FLOATS;
}

static token_step get_step(const folio_op *op, const job *j, int i)
{
    const folio_weight *w = j->part[0].w;
    const bool emulated = folio_cl_emulates(op);
    token_step s = {.bn = emulated ? emu_steps[i] : ptx_steps[i]};
    s.way = way_of(op, j, s.bn, i);
    const int32_t more = beside_ring(op, j, s.bn, s.way);
    const int32_t ring = RING_BYTES - more;
    /* Small steps of few tokens are over before the next is there. */
    bool small = s.bn <= (w->type != FOLIO_TYPE_F16 ? 32 : 128);
    if (s.way == X_HELD)
        small = !emulated && 4 * 2 * rows_bytes(w) <= ring;
    if (s.way == X_FLOATS && s.bn == MOST_FLOATS)
        small = false;
    s.ks = op->geo[GEO_KS] ? op->geo[GEO_KS] : small ? 128 : 64;
    if (w->cols % s.ks != 0 || !has_room(op, stage_bytes(w, &s) + more))
        s.ks = 64;
    s.stages = emulated ? 1 : FOLIO_MIN(ring / stage_bytes(w, &s), MAX_STAGES);
    if (op->geo[GEO_STAGES] > 0)
        s.stages = FOLIO_MIN(s.stages, op->geo[GEO_STAGES]);
    return s;
}

static int count_steps(const folio_op *op, const job *j)
{
    const folio_weight *w = j->part[0].w;
    if (folio_cl_emulates(op))
        return FOLIO_COUNT(emu_steps);
    /* With halves from registers and parts to tell apart, the widest tile does
     * not fit the registers. */
    const bool spills = j->in && j->id != FOLIO_OP_GATE_UP &&
                        w->type == FOLIO_TYPE_F16 &&
                        w->packing == FOLIO_PACK_RG16;
    return FOLIO_COUNT(ptx_steps) - (spills ? 1 : 0);
}

/* The narrowest step that holds all tokens, but a narrower one where tiles
 * would be cut anyway: what parts of a wide tile cost to put together is more
 * than reading the weights twice from the last cache. */
static int pick_step(const folio_op *op, const job *j)
{
    int i = 0, last = op->geo[GEO_STEPS] - 1;
    int32_t forced = op->geo[GEO_BN];
    while (i < last && get_step(op, j, i).bn < (forced ? forced : j->n_tok))
        i++;
    const int32_t bn = get_step(op, j, i).bn;
    const int64_t tiles = row_tiles(j) * folio_div_up(j->n_tok, bn);
    if (i > 0 && !forced && bn > MOST_CUT &&
        tiles * 10 < (int64_t)op->geo[GEO_GROUPS] * 9)
        i--;
    /* What is held is one tile. */
    while (i < last && get_step(op, j, i).way == X_HELD &&
           get_step(op, j, i).bn < j->n_tok)
        i++;
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
    /* Groups that end where tiles end leave one part each, not two: worth a
     * third of the groups. Emulated ones shall end anywhere. */
    const int64_t most = folio_cl_emulates(op) ? span : span + span / 3;
    for (int64_t even = span; even <= most; even++)
        if (steps % even == 0) {
            span = even;
            break;
        }
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

/* Kernels that take one buffer for each weight. */
static const char *fits_whole(const folio_device *dev,
                              const folio_op_params *prm, const char *name,
                              const job *j)
{
    for (int32_t i = 0; i < j->n_parts; i++)
        if (j->part[i].w->n_views > 1)
            return "a weight in several pieces";
    return fits_job(dev, prm, name, j);
}

static const char *fits_qkv_wgmma(const folio_device *dev,
                                  const folio_op_params *prm, const void *args)
{
    const folio_qkv_args *a = args;
    const job j = job_of(FOLIO_OP_QKV, args);
    const char *why = folio_cl_kv_refuse(&a->kv);
    if (!why && a->head_norm)
        why = "norms of heads need whole heads";
    if (!why && a->rot_dim > 0 && !a->interleaved)
        why = "pairs that are rotated are no neighbours";
    if (!why && a->kv.head_dim % 2 != 0)
        why = "odd head size";
    return why ? why : fits_whole(dev, prm, "qkv_wgmma", &j);
}

static const char *fits_gate_up_wgmma(const folio_device *dev,
                                      const folio_op_params *prm,
                                      const void *args)
{
    const job j = job_of(FOLIO_OP_GATE_UP, args);
    return fits_whole(dev, prm, "gate_up_wgmma", &j);
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
    if (s.way == X_FLOATS)
        folio_cl_define(&o, "X_F32", 1);
    if (s.way == X_HELD)
        folio_cl_define(&o, "X_HELD", j->cols);
    if (j->id == FOLIO_OP_NORM_LINEAR)
        folio_cl_define(&o, "WGMMA_PARTS", 1);
    if (j->id == FOLIO_OP_GATE_UP) {
        folio_cl_define(&o, "WGMMA_GATE_UP", 1);
        if (j->act == FOLIO_ACT_GELU_TANH)
            folio_cl_define(&o, "ACT_GELU_TANH", 1);
    }
    if (j->id == FOLIO_OP_QKV) {
        folio_cl_define(&o, "WGMMA_QKV", 1);
        folio_cl_define(&o, "ROT", j->qkv->rot_dim);
        folio_cl_define_kv(&o, &j->qkv->kv, op->geo[GEO_SEGS]);
    }
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
    op->geo[GEO_HELD] = folio_cl_matrix_tuned(
        prm, name, "HELD", folio_cl_emulates(op) ? emu_steps[0] : USUAL_HELD);
}

static folio_status open_pack(folio_op *op, const job *j)
{
    if (op->kernel[FOLIO_GEMM_PACK_KERNEL])
        return FOLIO_OK;
    if (j->in)
        return folio_cl_norm_pack_open(op, (int32_t)j->cols,
                                       &op->geo[GEO_PACK_WG]);
    return folio_cl_pack_open(op, &op->geo[GEO_PACK_WG]);
}

static folio_status open_wgmma(folio_op *op, const void *args)
{
    const job j = job_of(op->var->op, args);
    int n = 0;
    tune(op);
    if (j.qkv)
        op->geo[GEO_SEGS] = folio_cl_kv_segs(&j.qkv->kv);
    do {
        token_step s = get_step(op, &j, n);
        size_t bytes = parts_bytes(op, s.bn);
        FOLIO_RETURN_IF(open_step(op, &j, n));
        if (s.way == X_PACKED) {
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

/* Arguments in the kernel's order. */
typedef struct arg_list {
    folio_arg a[40];
    int n;
} arg_list;

static void put_view(arg_list *l, folio_view v)
{
    l->a[l->n++] = folio_arg_view(v);
}

static void put_i32(arg_list *l, int32_t v)
{
    l->a[l->n++] = folio_arg_i32(v);
}

/* What the kernel of the op has behind the arguments of all; p has three. */
static void put_more(arg_list *l, const folio_op *op, const job *j, x_way way,
                     const piece *p)
{
    const bool list = j->id == FOLIO_OP_NORM_LINEAR || j->qkv;
    if (way == X_HELD) {
        put_view(l, j->in->norm);
        l->a[l->n++] = folio_arg_f32(j->in->eps);
        if (j->id == FOLIO_OP_NORM_LINEAR) {
            /* Any address where nothing is gathered: not read. */
            put_view(l, j->gather ? j->idx : j->x);
            put_i32(l, j->gather);
        }
    }
    if (j->id != FOLIO_OP_GATE_UP)
        put_view(l, p[0].bias);
    if (j->id != FOLIO_OP_LINEAR)
        put_view(l, p[1].w);
    if (list) {
        put_view(l, p[2].w);
        put_view(l, p[1].bias);
        put_view(l, p[2].bias);
        put_i32(l, p[1].rows);
    }
    if (j->id == FOLIO_OP_NORM_LINEAR) {
        put_view(l, p[1].y);
        put_view(l, p[2].y);
        put_i32(l, p[2].rows);
        put_i32(l, p[1].y_stride);
        put_i32(l, p[2].y_stride);
    }
    if (j->qkv) {
        const folio_qkv_args *a = j->qkv;
        const int segs = op->geo[GEO_SEGS];
        put_view(l, a->slot);
        put_i32(l, a->kv.n_blocks * a->kv.block_size);
        if (a->rot_dim > 0) {
            put_view(l, a->pos);
            put_view(l, a->table);
            put_i32(l, a->n_pos);
        }
        l->n = folio_cl_kv_args(l->a, l->n, &a->kv.k, segs);
        l->n = folio_cl_kv_args(l->a, l->n, &a->kv.v, segs);
    }
}

/* Up to three pieces in one launch, of linear one. */
static folio_status launch(folio_op *op, folio_queue *q, const job *j, int i,
                           folio_view x, folio_view part, const piece *given,
                           int n)
{
    token_step s = get_step(op, j, i);
    piece p[FOLIO_MAX_PRODUCTS];
    int64_t tiles = 0;
    for (int k = 0; k < FOLIO_MAX_PRODUCTS; k++) {
        /* A part that is absent has no rows, and is not looked at. */
        p[k] = k < n ? given[k]
                     : (piece){.w = given[0].w, .bias = x, .y = given[0].y};
        if (!(j->id == FOLIO_OP_GATE_UP && k > 0))
            tiles += folio_div_up(p[k].rows, j->tile_rows);
    }
    bool words = folio_cl_in_words(j->x, j->x_stride);
    if (j->in)
        words = words && folio_cl_in_words(j->in->norm, j->in->dim);
    share_out cut = cut_work(op, tiles * folio_div_up(j->n_tok, s.bn),
                             j->cols / s.ks, s.bn);
    arg_list l = {.n = 0};
    put_view(&l, p[0].w);
    put_view(&l, x);
    put_view(&l, p[0].y);
    put_view(&l, part);
    put_view(&l, (folio_view){op->own, 0});
    put_i32(&l, p[0].rows);
    put_i32(&l, (int32_t)j->cols);
    put_i32(&l, j->n_tok);
    put_i32(&l, j->x_stride);
    put_i32(&l, p[0].y_stride);
    put_i32(&l, (p[0].has_bias ? FOLIO_GEMM_BIAS : 0) |
                    (p[1].has_bias ? FOLIO_GEMM_BIAS_1 : 0) |
                    (p[2].has_bias ? FOLIO_GEMM_BIAS_2 : 0) |
                    (j->accumulate ? FOLIO_GEMM_ACCUMULATE : 0) |
                    (words ? FOLIO_GEMM_WORDS : 0));
    put_i32(&l, cut.full);
    put_i32(&l, cut.span);
    put_more(&l, op, j, s.way, p);
    const folio_grid grid = {
        .groups = {cut.groups, 1, 1},
        .local = {folio_cl_emulates(op) ? 256 : 384, 1, 1},
    };
    return folio_launch(q, op->kernel[i], &grid, l.a, l.n);
}

static folio_status run_wgmma(folio_op *op, folio_queue *q, const void *args)
{
    const job j = job_of(op->var->op, args);
    const folio_weight *w = j.part[0].w;
    const int i = pick_step(op, &j);
    const int most = j.id == FOLIO_OP_LINEAR ? 1 : FOLIO_MAX_PRODUCTS;
    token_step s = get_step(op, &j, i);
    folio_view part = folio_cl_matrix_align(j.scratch), x = j.x;
    piece p[FOLIO_MAX_PRODUCTS];
    int n = 0;
    if (j.qkv)
        FOLIO_RETURN_IF(folio_cl_check_segs(op, &j.qkv->kv, op->geo[GEO_SEGS]));
    if (s.way == X_PACKED) {
        const bool even_odd = w->type != FOLIO_TYPE_F16;
        const int32_t wg = op->geo[GEO_PACK_WG];
        x = part;
        if (j.in)
            FOLIO_RETURN_IF(
                folio_cl_norm_pack_run(op, q, j.in, j.gather ? &j.idx : NULL,
                                       j.n_tok, wg, s.bn, even_odd, x));
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
const folio_variant_fns folio_var_qkv_wgmma = {
    .fits = fits_qkv_wgmma, .open = open_wgmma, .run = run_wgmma};
const folio_variant_fns folio_var_gate_up_wgmma = {
    .fits = fits_gate_up_wgmma, .open = open_wgmma, .run = run_wgmma};
