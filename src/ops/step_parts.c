/* ops/step_parts.c: see step_parts.h. */
#include "ops/step_parts.h"

#include "ops/choose.h"

/* In the order of a layer; op->part[] has an attention for each window, as
 * plans and scratch follow it, and the layer's `work` says which. */
enum { PART_QKV, PART_OUT, PART_GATE_UP, PART_DOWN, PART_ATTN };

static const int layer_parts[] = {PART_QKV, PART_ATTN, PART_OUT, PART_GATE_UP,
                                  PART_DOWN};

_Static_assert(PART_ATTN + FOLIO_STEP_WORKS <= FOLIO_OP_MAX_PARTS,
               "an attention for each window is a part");

static folio_op_id id_of(int part)
{
    return part == PART_QKV       ? FOLIO_OP_QKV
           : part == PART_GATE_UP ? FOLIO_OP_GATE_UP
           : part >= PART_ATTN    ? FOLIO_OP_ATTN
                                  : FOLIO_OP_LINEAR;
}

/* Where the parts keep what they hand on, and their own scratch. */
typedef struct areas {
    folio_view q, att, h, rest;
    size_t bytes; /* before `rest` */
} areas;

static folio_view take(areas *at, folio_view scratch, int64_t rows,
                       int64_t width)
{
    const size_t from = at->bytes;
    at->bytes +=
        folio_align_up((size_t)rows * (size_t)width * sizeof(float), 64);
    return scratch.buf ? folio_view_at(scratch, from) : (folio_view){0};
}

static areas split(const folio_op *op, const folio_step_args *a)
{
    const int64_t n = op->max_count;
    const int64_t q = (int64_t)a->heads * a->layers[0].kv.head_dim;
    areas at = {.bytes = 0};
    at.q = take(&at, a->scratch, n, q);
    at.att = take(&at, a->scratch, n, q);
    at.h = take(&at, a->scratch, n, a->ff);
    at.rest = take(&at, a->scratch, 0, 0);
    return at;
}

static folio_norm_in norm_of(const folio_step_args *a, folio_view norm)
{
    return (folio_norm_in){.x = a->x,
                           .norm = norm,
                           .dim = a->dim,
                           .x_stride = a->dim,
                           .eps = a->eps};
}

/* x += w of `from`. */
static folio_linear_args add_to_x(const folio_step_args *a, folio_view from,
                                  const folio_weight *w, folio_view scratch)
{
    return (folio_linear_args){.x = from,
                               .w = w,
                               .y = a->x,
                               .n_tok = a->n_tok,
                               .x_stride = (int32_t)w->cols,
                               .y_stride = a->dim,
                               .accumulate = 1,
                               .scratch = scratch};
}

static void list_part(const folio_step_args *a, const areas *at, int32_t layer,
                      int part, folio_any_args *out)
{
    const folio_step_layer *y = &a->layers[layer];
    const int32_t q = a->heads * y->kv.head_dim;
    switch (part) {
    case PART_QKV:
        out->qkv = (folio_qkv_args){.in = norm_of(a, y->attn_norm),
                                    .wq = y->wq,
                                    .wk = y->wk,
                                    .wv = y->wv,
                                    .q = at->q,
                                    .q_stride = q,
                                    .pos = a->pos,
                                    .slot = a->slot,
                                    .table = a->table,
                                    .n_pos = a->n_pos,
                                    .rot_dim = y->kv.head_dim,
                                    .interleaved = a->interleaved,
                                    .n_tok = a->n_tok,
                                    .heads = a->heads,
                                    .kv = y->kv,
                                    .scratch = at->rest};
        break;
    case PART_ATTN:
        out->attn = (folio_attn_args){.q = at->q,
                                      .out = at->att,
                                      .q_stride = q,
                                      .out_stride = q,
                                      .n_tok = a->n_tok,
                                      .heads = a->heads,
                                      .window = y->window,
                                      .scale = a->scale,
                                      .softcap = a->softcap,
                                      .kv = y->kv,
                                      .work = a->work[y->work],
                                      .scratch = at->rest};
        break;
    case PART_OUT:
        out->linear = add_to_x(a, at->att, y->wo, at->rest);
        break;
    case PART_GATE_UP:
        out->gate_up = (folio_gate_up_args){.in = norm_of(a, y->ffn_norm),
                                            .gate = y->gate,
                                            .up = y->up,
                                            .out = at->h,
                                            .n_tok = a->n_tok,
                                            .out_stride = a->ff,
                                            .act = a->act,
                                            .scratch = at->rest};
        break;
    default:
        out->linear = add_to_x(a, at->h, y->down, at->rest);
        break;
    }
}

static const folio_variant *reference_of(folio_op_id id)
{
    size_t n;
    const folio_variant *v = folio_variants(&n);
    for (size_t i = 0; i < n; i++)
        if (v[i].op == id && v[i].where == FOLIO_ON_HOST &&
            (v[i].flags & FOLIO_VAR_FLOOR))
            return &v[i];
    return NULL;
}

/* Planes without memory yet are absent to the parts. */
static void forget_planes(folio_kv_ref *kv)
{
    if (!kv->k.buf[0])
        kv->k.n_buf = kv->v.n_buf = 0;
}

static folio_status open_part(folio_op *op, folio_step_args *a, const areas *at,
                              int32_t layer, int part, folio_part_choice choice)
{
    folio_any_args args = {0};
    list_part(a, at, layer, FOLIO_MIN(part, PART_ATTN), &args);
    if (part == PART_QKV)
        forget_planes(&args.qkv.kv);
    if (part >= PART_ATTN)
        forget_planes(&args.attn.kv);
    return choice == FOLIO_PARTS_REF
               ? folio_variant_open(op->dev, reference_of(id_of(part)),
                                    &op->prm, &args, &op->part[part])
               : folio_op_open(op->dev, id_of(part), &op->prm, &args,
                               &op->part[part]);
}

folio_status folio_step_open(folio_op *op, const void *args,
                             folio_part_choice choice)
{
    folio_step_args a = *(const folio_step_args *)args;
    a.scratch = (folio_view){0};
    const areas at = split(op, &a);
    size_t most = 0;
    for (int i = 0; i < PART_ATTN; i++)
        FOLIO_RETURN_IF(open_part(op, &a, &at, 0, i, choice));
    for (int32_t y = 0; y < a.n_layers; y++) {
        const int part = PART_ATTN + a.layers[y].work;
        if (!op->part[part])
            FOLIO_RETURN_IF(open_part(op, &a, &at, y, part, choice));
    }
    for (int i = 0; i < FOLIO_OP_MAX_PARTS; i++)
        if (op->part[i])
            most = FOLIO_MAX(most, folio_op_scratch_bytes(op->part[i]));
    op->scratch_bytes = at.bytes + most;
    return FOLIO_OK;
}

folio_status folio_step_run(folio_op *op, folio_queue *q, const void *args)
{
    const folio_step_args *a = args;
    const bool host = folio_device_is_host(op->dev);
    const areas at = split(op, a);
    for (int32_t y = 0; y < a->n_layers; y++)
        for (size_t i = 0; i < FOLIO_COUNT(layer_parts); i++) {
            const int part = layer_parts[i];
            folio_op *p =
                op->part[part == PART_ATTN ? PART_ATTN + a->layers[y].work
                                           : part];
            folio_any_args one = {0};
            list_part(a, &at, y, part, &one);
            FOLIO_RETURN_IF(p->var->fns->run(p, host ? NULL : q, &one));
        }
    if (host)
        folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_op *folio_step_attn(const folio_op *op, int32_t work)
{
    return op->part[PART_ATTN + work];
}
