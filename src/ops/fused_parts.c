/* ops/fused_parts.c: see fused_parts.h. */
#include "ops/fused_parts.h"

#include <string.h>

#include "ops/choose.h"

typedef struct step {
    folio_op_id id;
    folio_any_args a;
} step;

typedef struct sequence {
    step step[FOLIO_OP_MAX_PARTS];
    int n;
    folio_view scratch; /* absent while an op is opened */
    size_t used;        /* bytes of it that have an owner */
    int64_t max_tok;    /* what areas are made for */
} sequence;

/* [max_tok, width] floats of the scratch, which is absent at open. */
static folio_view area(sequence *s, int64_t width)
{
    size_t at = s->used;
    s->used +=
        folio_align_up((size_t)s->max_tok * (size_t)width * sizeof(float), 64);
    return s->scratch.buf ? folio_view_at(s->scratch, at) : (folio_view){0};
}

static folio_any_args *add_step(sequence *s, folio_op_id id)
{
    step *t = &s->step[s->n++];
    memset(t, 0, sizeof *t);
    t->id = id;
    return &t->a;
}

static void add_norm(sequence *s, folio_view x, int32_t x_stride, folio_view w,
                     folio_view out, int32_t dim, float eps, int32_t n_rows)
{
    add_step(s, FOLIO_OP_RMSNORM)->rmsnorm =
        (folio_rmsnorm_args){.x = x,
                             .w = w,
                             .out = out,
                             .n_rows = n_rows,
                             .dim = dim,
                             .x_stride = x_stride,
                             .out_stride = dim,
                             .eps = eps};
}

static void add_product(sequence *s, folio_view h, const folio_weight *w,
                        folio_view bias, folio_view y, int32_t y_stride,
                        int32_t n_tok)
{
    add_step(s, FOLIO_OP_LINEAR)->linear =
        (folio_linear_args){.x = h,
                            .w = w,
                            .bias = bias,
                            .y = y,
                            .n_tok = n_tok,
                            .x_stride = (int32_t)w->cols,
                            .y_stride = y_stride};
}

static void list_norm_linear(sequence *s, const folio_norm_linear_args *a)
{
    const folio_norm_in *in = &a->in;
    folio_view h = area(s, in->dim), x = in->x;
    int32_t stride = in->x_stride;
    if (a->gather) {
        add_step(s, FOLIO_OP_GATHER_ROWS)->gather =
            (folio_gather_rows_args){.x = x,
                                     .idx = a->idx,
                                     .out = h,
                                     .n_rows = a->n_tok,
                                     .dim = in->dim};
        x = h;
        stride = in->dim;
    }
    add_norm(s, x, stride, in->norm, h, in->dim, in->eps, a->n_tok);
    for (int32_t i = 0; i < a->n_parts; i++)
        add_product(s, h, a->part[i].w, a->part[i].bias, a->part[i].y,
                    a->part[i].y_stride, a->n_tok);
}

static void list_qkv(sequence *s, const folio_qkv_args *a)
{
    const folio_norm_in *in = &a->in;
    const int32_t hd = a->kv.head_dim, kvh = a->kv.kv_heads;
    folio_view h = area(s, in->dim);
    folio_view k = area(s, (int64_t)kvh * hd), v = area(s, (int64_t)kvh * hd);
    add_norm(s, in->x, in->x_stride, in->norm, h, in->dim, in->eps, a->n_tok);
    add_product(s, h, a->wq, a->bq, a->q, a->q_stride, a->n_tok);
    add_product(s, h, a->wk, a->bk, k, kvh * hd, a->n_tok);
    add_product(s, h, a->wv, a->bv, v, kvh * hd, a->n_tok);
    if (a->head_norm) {
        add_norm(s, a->q, hd, a->q_norm, a->q, hd, in->eps,
                 a->n_tok * a->heads);
        add_norm(s, k, hd, a->k_norm, k, hd, in->eps, a->n_tok * kvh);
    }
    add_step(s, FOLIO_OP_ROPE_APPEND)->rope =
        (folio_rope_append_args){.q = a->q,
                                 .k = k,
                                 .v = v,
                                 .q_stride = a->q_stride,
                                 .k_stride = kvh * hd,
                                 .v_stride = kvh * hd,
                                 .pos = a->pos,
                                 .slot = a->slot,
                                 .table = a->table,
                                 .n_pos = a->n_pos,
                                 .rot_dim = a->rot_dim,
                                 .interleaved = a->interleaved,
                                 .n_tok = a->n_tok,
                                 .heads = a->heads,
                                 .kv = a->kv};
}

/* The product up lies where the result goes. */
static void list_gate_up(sequence *s, const folio_gate_up_args *a)
{
    const folio_norm_in *in = &a->in;
    const int32_t ff = (int32_t)a->gate->rows;
    folio_view h = area(s, in->dim), gate = area(s, ff);
    add_norm(s, in->x, in->x_stride, in->norm, h, in->dim, in->eps, a->n_tok);
    add_product(s, h, a->gate, (folio_view){0}, gate, ff, a->n_tok);
    add_product(s, h, a->up, (folio_view){0}, a->out, a->out_stride, a->n_tok);
    add_step(s, FOLIO_OP_ACT_MUL)->act =
        (folio_act_mul_args){.gate = gate,
                             .up = a->out,
                             .out = a->out,
                             .n_tok = a->n_tok,
                             .dim = ff,
                             .gate_stride = ff,
                             .up_stride = a->out_stride,
                             .out_stride = a->out_stride,
                             .act = a->act};
}

/* `scratch` is absent while an op is opened: its size is not known yet. */
static void list_parts(const folio_op *op, const void *args, folio_view scratch,
                       sequence *s)
{
    memset(s, 0, sizeof *s);
    s->max_tok = op->max_count;
    s->scratch = scratch;
    if (op->var->op == FOLIO_OP_NORM_LINEAR)
        list_norm_linear(s, args);
    else if (op->var->op == FOLIO_OP_QKV)
        list_qkv(s, args);
    else
        list_gate_up(s, args);
}

static folio_view scratch_of(const folio_op *op, const void *args)
{
    if (op->var->op == FOLIO_OP_NORM_LINEAR)
        return ((const folio_norm_linear_args *)args)->scratch;
    if (op->var->op == FOLIO_OP_QKV)
        return ((const folio_qkv_args *)args)->scratch;
    return ((const folio_gate_up_args *)args)->scratch;
}

folio_status folio_fused_open(folio_op *op, const void *args,
                              folio_part_choice choice)
{
    sequence s;
    size_t most = 0;
    list_parts(op, args, (folio_view){0}, &s);
    for (int i = 0; i < s.n; i++) {
        step *t = &s.step[i];
        folio_kv_ref *kv = &t->a.rope.kv;
        /* Planes without memory yet are absent to the parts. */
        if (t->id == FOLIO_OP_ROPE_APPEND && !kv->k.buf[0])
            kv->k.n_buf = kv->v.n_buf = 0;
        folio_status st =
            choice == FOLIO_PARTS_REF
                ? folio_variant_open(op->dev, folio_op_reference(t->id),
                                     &op->prm, &t->a, &op->part[i])
                : folio_op_open(op->dev, t->id, &op->prm, &t->a, &op->part[i]);
        FOLIO_RETURN_IF(st);
        most = FOLIO_MAX(most, folio_op_scratch_bytes(op->part[i]));
    }
    op->scratch_bytes = s.used + most;
    return FOLIO_OK;
}

folio_status folio_fused_run(folio_op *op, folio_queue *q, const void *args)
{
    sequence s;
    bool host = folio_device_is_host(op->dev);
    list_parts(op, args, scratch_of(op, args), &s);
    for (int i = 0; i < s.n; i++) {
        step *t = &s.step[i];
        /* The parts of a sequence run one after another: one scratch. */
        if (t->id == FOLIO_OP_LINEAR && s.scratch.buf)
            t->a.linear.scratch = folio_view_at(s.scratch, s.used);
        FOLIO_RETURN_IF(
            op->part[i]->var->fns->run(op->part[i], host ? NULL : q, &t->a));
    }
    if (host)
        folio_queue_count_launch(q);
    return FOLIO_OK;
}
