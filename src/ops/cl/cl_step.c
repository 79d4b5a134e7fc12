/* ops/cl/cl_step.c: launches step.cl: all layers of a decode step at once, on
 * as many groups as the device has units; and the floor of the op, which runs
 * its parts. No arithmetic here.
 *
 * Settings: CW (warps of a group that compute), PC (columns of a warp's piece),
 * RING and IN_FLIGHT (chunks of weights), GROUPS and SPLITS (of the keys of a
 * sequence, at most), MAX_LOOKS (before a meeting is given up). */
#include <inttypes.h>
#include <string.h>

#include "ops/cl/cl_util.h"
#include "ops/pack.h"
#include "ops/step_parts.h"
#include "ops/variants.h"

static folio_status open_parts(folio_op *op, const void *args)
{
    return folio_step_open(op, args, FOLIO_PARTS_BEST);
}

const folio_variant_fns folio_var_step_parts = {.open = open_parts,
                                                .run = folio_step_run};

/* ---- shapes ----------------------------------------------------------------
 */

/* Rows at once, a kernel for each. */
static const int32_t step_toks[] = {1, 2, 4, 8};
#define KERNELS   ((int)FOLIO_COUNT(step_toks))
#define MOST_TOKS 8

/* As in step.clh. */
enum {
    AT_Q,
    AT_K,
    AT_V,
    AT_O,
    AT_GATE,
    AT_UP,
    AT_DOWN,
    AT_NORM,
    AT_FFN_NORM,
    AT_WINDOW = 11,
    AT_KV = 12,
    AT_WORDS = 16
};
#define PLACE_BYTES 256 /* the unit of places in the weights */

/* Sync words behind the table: counters of this launch and the next, times. */
#define SYNC_WORDS 20

/* At a meeting, before a step is given up: about a second. Where other work
 * shares the processors a group may be late. */
#define MAX_LOOKS     1000000
#define MAX_LOOKS_CPU 2000000000

enum {
    WARP = 32,
    CREW = 8, /* warps that compute; fewer where emulated */
    CREW_EMULATED = 2,
    CHUNK_BYTES = 16 << 10, /* about */
    RING_MOST = 24,
    IN_FLIGHT = 4,
    SPLITS = 16,
    LOCAL_MOST = 200 << 10 /* of FOLIO_CAP_BIG_LOCAL */
};

enum {
    GEO_WG,
    GEO_LOCAL = GEO_WG + KERNELS, /* bytes, where they are an argument */
    GEO_GROUPS = GEO_LOCAL + KERNELS,
    GEO_SPLITS,
    GEO_FILLED,
    GEO_TURN /* which counters the next launch uses */
};

typedef struct step_shape {
    int32_t toks, crew, piece, ring, in_flight;
    size_t local;
} step_shape;

/* What the caller or FOLIO_TUNE says, else the usual. */
static int32_t setting(const folio_op_params *prm, const char *name,
                       int32_t usual)
{
    return folio_cl_tuned(prm, name, folio_tuned("step_ring", name, usual));
}

static int32_t group_of(const folio_step_args *a)
{
    return a->heads / a->layers[0].kv.kv_heads;
}

/* Bytes of 16 rows and 32 columns with their scales; 0: not a type of it. */
static size_t group_bytes(folio_type type)
{
    switch (type) {
    case FOLIO_TYPE_F16:
        return 1024;
    case FOLIO_TYPE_Q8_0:
        return 512 + 32;
    case FOLIO_TYPE_Q4_0:
        return 256 + 32;
    default:
        return 0;
    }
}

static int32_t q_width(const folio_step_args *a)
{
    return a->heads * a->layers[0].kv.head_dim;
}

static size_t chunk_bytes(const folio_step_args *a, const step_shape *s)
{
    return (size_t)(s->crew * (s->piece / 32)) *
           group_bytes(a->layers[0].wq->type);
}

/* LOCAL of step.clh, without the ring and its barriers: at least as much. */
static size_t other_local(const folio_step_args *a, const step_shape *s)
{
    const size_t n = (size_t)s->toks, crew = (size_t)s->crew;
    const size_t hd = (size_t)a->layers[0].kv.head_dim;
    const size_t widest =
        (size_t)FOLIO_MAX(FOLIO_MAX(a->dim, a->ff), q_width(a));
    const bool f16 = a->layers[0].wq->type == FOLIO_TYPE_F16;
    const size_t product = n * (f16 ? widest * 2 : widest + widest / 4) +
                           16 * n + 4 * 4 * crew * 16 * n;
    const size_t attn = 4 * crew * 8 * hd + 4 * crew * 16;
    const size_t words =
        4 * ((size_t)a->n_layers * AT_WORDS + 2 * n + 1 + crew * n);
    return words + FOLIO_MAX(product, attn) + 512;
}

/* Pieces as large as chunks shall be, which divide every width; a ring of what
 * is left of local memory. */
static bool shape_step(const folio_device *dev, const folio_op_params *prm,
                       bool emulated, const folio_step_args *a, int32_t toks,
                       step_shape *s)
{
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    const size_t room =
        emulated ? (size_t)info.local_bytes
                 : FOLIO_MAX((size_t)info.local_bytes, (size_t)LOCAL_MOST);
    const folio_weight *w = a->layers[0].wq;
    *s = (step_shape){.toks = toks};
    s->crew = setting(prm, "CW", emulated ? CREW_EMULATED : CREW);
    s->crew = FOLIO_MAX(s->crew, (toks * 16 + WARP - 1) / WARP);
    s->piece = 64;
    while (w->packing == FOLIO_PACK_RG16 && !emulated &&
           a->dim % (2 * s->piece) == 0 && a->ff % (2 * s->piece) == 0 &&
           q_width(a) % (2 * s->piece) == 0 && chunk_bytes(a, s) < CHUNK_BYTES)
        s->piece *= 2;
    s->piece = setting(prm, "PC", s->piece);
    const size_t other = other_local(a, s), least = emulated ? 1 : 3;
    while (s->piece > 64 && other + least * (chunk_bytes(a, s) + 16) > room)
        s->piece /= 2;
    const size_t chunk = chunk_bytes(a, s);
    if (s->piece < 64 || other + least * (chunk + 16) > room)
        return false;
    s->ring = (int32_t)FOLIO_MIN((room - other) / (chunk + 16), RING_MOST);
    s->ring = emulated ? 1 : setting(prm, "RING", s->ring);
    s->in_flight = FOLIO_MIN(setting(prm, "IN_FLIGHT", IN_FLIGHT), s->ring);
    s->local = other + (size_t)s->ring * (chunk + 16);
    return true;
}

static int32_t groups_of(const folio_device *dev, bool emulated)
{
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    const int32_t n = info.compute_units > 0 ? (int32_t)info.compute_units : 1;
    /* Two that meet are enough to try it on a CPU. */
    return emulated ? FOLIO_MIN(n, 2) : n;
}

/* ---- fits ------------------------------------------------------------------
 */

/* One type, one packing, whole tiles of rows. */
static const char *refuse_matrix(const folio_step_args *a,
                                 const folio_weight *w, const folio_buf *buf)
{
    const folio_weight *first = a->layers[0].wq;
    if (w->type != first->type)
        return "wants matrices of one type";
    if (w->packing != first->packing)
        return "wants matrices of one packing";
    if (w->rows % 32 != 0 || w->cols % 32 != 0)
        return "wants widths that are multiples of 32";
    if (w->n_views > 1 || (w->n_views == 1 && w->views[0].view.buf != buf))
        return "wants all weights in one buffer";
    if (w->n_views == 1 && w->views[0].view.offset % PLACE_BYTES != 0)
        return "wants weights at multiples of 256 bytes";
    return NULL;
}

static const folio_buf *weights_of(const folio_step_args *a)
{
    const folio_weight *w = a->layers[0].wq;
    return w->n_views ? w->views[0].view.buf : NULL;
}

static const char *refuse_layer(const folio_step_args *a, int32_t i)
{
    const folio_step_layer *y = &a->layers[i];
    const folio_weight *m[] = {y->wq,   y->wk, y->wv,  y->wo,
                               y->gate, y->up, y->down};
    const folio_view norm[] = {y->attn_norm, y->ffn_norm};
    const folio_buf *buf = weights_of(a);
    for (size_t k = 0; k < FOLIO_COUNT(m); k++) {
        const char *why = refuse_matrix(a, m[k], buf);
        if (why)
            return why;
    }
    for (size_t k = 0; k < FOLIO_COUNT(norm); k++)
        if (norm[k].buf &&
            (norm[k].buf != buf || norm[k].offset % PLACE_BYTES != 0))
            return "wants all weights in one buffer";
    if (y->kv.k.n_buf > 1 || y->kv.v.n_buf > 1 ||
        y->kv.k.buf[0] != a->layers[0].kv.k.buf[0] ||
        y->kv.v.buf[0] != a->layers[0].kv.v.buf[0])
        return "wants KV of all layers in one buffer each";
    return NULL;
}

static bool lacks(const folio_device *dev)
{
    const uint64_t needs =
        FOLIO_CAP_PTX_MMA | FOLIO_CAP_PTX_BULK | FOLIO_CAP_BIG_LOCAL;
    return (needs & ~folio_device_caps(dev)) != 0;
}

static const char *fits_ring(const folio_device *dev,
                             const folio_op_params *prm, const void *args)
{
    const folio_step_args *a = args;
    const folio_step_layer *y = &a->layers[0];
    const folio_kv_ref *kv = &y->kv;
    const folio_kv_layout *l = &kv->layout;
    if (kv->type != FOLIO_KV_F16)
        return "KV is not f16";
    if (y->wq->packing == FOLIO_PACK_RAW)
        return "reads packed weights";
    if (group_bytes(y->wq->type) == 0)
        return "does not read this type";
    if (a->n_tok > MOST_TOKS)
        return "for 8 sequences or fewer";
    if (kv->head_dim % 32 != 0 || kv->head_dim > 128)
        return "for head sizes of 32, 64, 96 and 128";
    if (kv->block_size % 16 != 0)
        return "block size not a multiple of 16";
    if (l->xk != 8 || l->xv != 8 || l->yk != 1 || l->yv != 1)
        return "KV layout is not (8, 1)";
    if (group_of(a) > 8)
        return "for 8 query heads per KV head or fewer";
    if (a->dim % 64 != 0 || a->ff % 64 != 0 || q_width(a) % 64 != 0)
        return "wants widths that are multiples of 64";
    for (int32_t i = 0; i < a->n_layers; i++) {
        const char *why = refuse_layer(a, i);
        if (why)
            return why;
    }
    step_shape s;
    const int32_t most = FOLIO_MAX(a->n_tok, 1);
    for (int i = 0; i < KERNELS && (i == 0 || step_toks[i - 1] < most); i++)
        if (!shape_step(dev, prm, lacks(dev), a, step_toks[i], &s))
            return "needs more local memory";
    if (folio_cl_work_group(dev, lacks(dev) ? s.crew : 512) < s.crew)
        return "needs larger work-groups";
    return NULL;
}

/* ---- open ------------------------------------------------------------------
 */

static void define_all(folio_cl_options *o, const folio_op *op,
                       const folio_step_args *a, const step_shape *s,
                       bool emulated)
{
    folio_cl_options_init(o, op);
    folio_cl_define_weight(o, a->layers[0].wq);
    folio_cl_define_kv(o, &a->layers[0].kv, 1);
    folio_cl_define(o, "G", group_of(a));
    folio_cl_define(o, "SOFTCAP", a->softcap > 0);
    folio_cl_define(o, "N", s->toks);
    folio_cl_define(o, "CW", s->crew);
    folio_cl_define(o, "PC", s->piece);
    folio_cl_define(o, "RING", s->ring);
    folio_cl_define(o, "IN_FLIGHT", s->in_flight);
    folio_cl_define(o, "L", a->n_layers);
    folio_cl_define(o, "D", a->dim);
    folio_cl_define(o, "FF", a->ff);
    folio_cl_define(o, "INTERLEAVED", a->interleaved);
    if (a->act == FOLIO_ACT_GELU_TANH)
        folio_cl_define(o, "ACT_GELU_TANH", 1);
    folio_cl_define(
        o, "MAX_LOOKS",
        setting(&op->prm, "MAX_LOOKS", emulated ? MAX_LOOKS_CPU : MAX_LOOKS));
    folio_cl_define(o, "WARP_EMULATED", emulated);
    folio_cl_define(o, "TIMES", setting(&op->prm, "TIMES", 0));
}

static size_t table_bytes(const folio_step_args *a)
{
    return ((size_t)a->n_layers * AT_WORDS + SYNC_WORDS) * sizeof(int32_t);
}

/* Bytes of scratch before each of its areas. */
typedef struct step_areas {
    size_t q, h, po, pml, end;
} step_areas;

static step_areas split(const folio_op *op, const folio_step_args *a)
{
    const size_t n = (size_t)op->max_count, g = (size_t)group_of(a);
    const size_t hd = (size_t)a->layers[0].kv.head_dim;
    const size_t parts = (size_t)FOLIO_MAX(
        op->geo[GEO_GROUPS], op->max_count * a->layers[0].kv.kv_heads);
    step_areas s = {.q = 0};
    s.h = s.q + folio_align_up(n * (size_t)a->heads * hd * 4, 256);
    s.po = s.h + folio_align_up(n * (size_t)a->ff * 2, 256);
    s.pml = s.po + folio_align_up(parts * g * hd * 4, 256);
    s.end = s.pml + folio_align_up(parts * g * 2 * 4, 256);
    return s;
}

static folio_status open_ring(folio_op *op, const void *args)
{
    const folio_step_args *a = args;
    const bool emulated = folio_cl_emulates(op);
    op->geo[GEO_GROUPS] =
        FOLIO_MAX(setting(&op->prm, "GROUPS", groups_of(op->dev, emulated)), 1);
    op->geo[GEO_SPLITS] = FOLIO_MAX(setting(&op->prm, "SPLITS", SPLITS), 1);
    for (int i = 0; i < KERNELS; i++) {
        step_shape s;
        folio_cl_options o;
        if (!shape_step(op->dev, &op->prm, emulated, a, step_toks[i], &s))
            return FOLIO_E_UNSUPPORTED;
        define_all(&o, op, a, &s, emulated);
        const int32_t wg = emulated ? s.crew : (s.crew + 1) * WARP;
        op->geo[GEO_WG + i] = wg;
        op->geo[GEO_LOCAL + i] = (int32_t)folio_align_up(s.local, 128);
        FOLIO_RETURN_IF(
            folio_cl_kernel_open_of(op, i, "step_ring", &o, wg, NULL));
        if (step_toks[i] >= a->n_tok)
            break;
    }
    op->scratch_bytes = split(op, a).end;
    return folio_buf_open(op->dev, table_bytes(a), &op->own);
}

/* ---- run -------------------------------------------------------------------
 */

static int32_t place_of(const folio_weight *w)
{
    return (int32_t)(uint32_t)(w->views[0].view.offset / PLACE_BYTES);
}

/* Where everything lies, once it is known: before the first launch. */
static folio_status fill_table(folio_op *op, folio_queue *q,
                               const folio_step_args *a)
{
    const folio_log *log = folio_device_log(op->dev);
    const size_t n = (size_t)a->n_layers;
    for (int32_t i = 0; i < a->n_layers; i++) {
        const char *why = refuse_layer(a, i);
        if (why)
            return folio_fail(log, FOLIO_E_UNSUPPORTED, "%s: %s", op->var->name,
                              why);
    }
    int32_t *at = folio_calloc(table_bytes(a), 1);
    if (!at)
        return folio_fail(log, FOLIO_E_NOMEM, "%s: no memory", op->var->name);
    for (size_t y = 0; y < n; y++) {
        const folio_step_layer *l = &a->layers[y];
        int32_t *w = at + y * AT_WORDS;
        const uint64_t kv[2] = {l->kv.k.offset, l->kv.v.offset};
        w[AT_Q] = place_of(l->wq);
        w[AT_K] = place_of(l->wk);
        w[AT_V] = place_of(l->wv);
        w[AT_O] = place_of(l->wo);
        w[AT_GATE] = place_of(l->gate);
        w[AT_UP] = place_of(l->up);
        w[AT_DOWN] = place_of(l->down);
        w[AT_NORM] = (int32_t)(uint32_t)(l->attn_norm.offset / PLACE_BYTES);
        w[AT_FFN_NORM] = (int32_t)(uint32_t)(l->ffn_norm.offset / PLACE_BYTES);
        for (int k = 0; k < 2; k++) {
            w[AT_KV + 2 * k] = (int32_t)(uint32_t)kv[k];
            w[AT_KV + 2 * k + 1] = (int32_t)(uint32_t)(kv[k] >> 32);
        }
        w[AT_WINDOW] = l->window;
    }
    const folio_status st =
        folio_queue_write(q, (folio_view){op->own, 0}, at, table_bytes(a));
    free(at);
    op->geo[GEO_FILLED] = st == FOLIO_OK;
    return st;
}

static folio_status run_ring(folio_op *op, folio_queue *q, const void *args)
{
    const folio_step_args *a = args;
    const folio_kv_ref *kv = &a->layers[0].kv;
    const folio_attn_work *w = &a->work[0];
    const step_areas s = split(op, a);
    if (a->x.offset % 16 != 0 || a->scratch.offset % 16 != 0)
        return folio_fail(folio_device_log(op->dev), FOLIO_E_UNSUPPORTED,
                          "%s: x at %" PRIu64 " and scratch at %" PRIu64
                          ", not multiples of 16 bytes",
                          op->var->name, (uint64_t)a->x.offset,
                          (uint64_t)a->scratch.offset);
    if (!op->geo[GEO_FILLED])
        FOLIO_RETURN_IF(fill_table(op, q, a));
    int i = 0;
    while (step_toks[i] < a->n_tok)
        i++;
    const int32_t groups = op->geo[GEO_GROUPS], rows = a->n_tok * kv->kv_heads;
    const int32_t splits =
        FOLIO_MAX(1, FOLIO_MIN(groups / rows, op->geo[GEO_SPLITS]));
    const folio_view state = {op->own, 0};
    const folio_view k = {kv->k.buf[0], 0}, v = {kv->v.buf[0], 0};
    const folio_view weights = {a->layers[0].wq->views[0].view.buf, 0};
    const folio_arg list[] = {
        folio_arg_view(weights),
        folio_arg_view(state),
        folio_arg_view(a->x),
        folio_arg_view(folio_view_at(a->scratch, s.q)),
        folio_arg_view(folio_view_at(a->scratch, s.h)),
        folio_arg_view(folio_view_at(a->scratch, s.po)),
        folio_arg_view(folio_view_at(a->scratch, s.pml)),
        folio_arg_view(folio_view_at(state, table_bytes(a) -
                                                SYNC_WORDS * sizeof(int32_t))),
        folio_arg_view(a->pos),
        folio_arg_view(a->slot),
        folio_arg_view(w->kv_len),
        folio_arg_view(w->table_start),
        folio_arg_view(w->tables),
        folio_arg_view(a->table),
        folio_arg_view(k),
        folio_arg_view(v),
        folio_arg_i32(a->n_tok),
        folio_arg_i32(a->n_pos),
        folio_arg_i32(kv->n_blocks * kv->block_size),
        folio_arg_i32(splits),
        folio_arg_i32(op->geo[GEO_TURN]),
        folio_arg_f32(a->eps),
        folio_arg_f32(a->scale),
        folio_arg_f32(a->softcap),
        /* Static where large sizes are to be had: those are not arguments. */
        folio_arg_local((uint64_t)op->geo[GEO_LOCAL + i]),
    };
    const folio_grid grid =
        folio_cl_grid((size_t)groups, 1, op->geo[GEO_WG + i]);
    FOLIO_RETURN_IF(
        folio_launch(q, op->kernel[i], &grid, list,
                     (int)FOLIO_COUNT(list) - !folio_cl_emulates(op)));
    op->geo[GEO_TURN] ^= 1;
    return FOLIO_OK;
}

const folio_variant_fns folio_var_step_ring = {
    .fits = fits_ring, .open = open_ring, .run = run_ring};
