/* model/lower_step.c: all layers of a decode step as one op, where a device
 * runs it as one launch. Knows the description of layers and the op, not how it
 * is computed. */
#include <inttypes.h>
#include <stdio.h>

#include "model/lower.h"

/* What the op has no words for. */
static bool is_plain_layer(const folio_model_desc *d, const folio_layer_desc *y)
{
    const folio_layer_desc *first = &d->layers[0];
    return !y->bq && !y->bk && !y->bv && !y->bo && !y->q_norm && !y->k_norm &&
           !y->post_attn_norm && !y->post_ffn_norm && !y->sinks &&
           y->rope >= 0 && y->rope == first->rope &&
           d->rope[y->rope].rot_dim == d->head_dim &&
           y->softcap == first->softcap && y->act == first->act;
}

static int32_t work_of(const folio_lowered *l, int32_t window)
{
    for (int32_t i = 0; i < l->n_plans; i++)
        if (l->window[i] == window)
            return i;
    return 0;
}

static folio_status refuse(folio_lowered *l, const char *why)
{
    snprintf(l->step_why, sizeof l->step_why, "%s", why);
    return FOLIO_OK;
}

/* Sequences at most; a step of more is bound by arithmetic, not by memory. */
#define STEP_TOK 8

static void set_seqs(const folio_lower_params *p, folio_lowered *l, int32_t n)
{
    l->step_args.n_tok = n;
    for (int32_t i = 0; i < l->n_plans; i++) {
        l->step_args.work[i].n_seq = n;
        l->step_args.work[i].max_kv = p->max_ctx;
    }
}

/* For as many sequences as a variant with a kernel of its own takes: the sum of
 * the parts is the fused form, which is there anyway. A kernel for 1, 2, 4 and
 * 8 each passes its self-test, since each is chosen by the count of a step;
 * their programs are built once. */
static folio_status open_step(const folio_lower_params *p, folio_lowered *l)
{
    const int32_t most =
        FOLIO_MIN(FOLIO_MIN(STEP_TOK, p->max_seqs), p->step_tok);
    for (int32_t n = 1; l->most_step < most; n = FOLIO_MIN(2 * n, most)) {
        folio_op *op = NULL;
        set_seqs(p, l, n);
        const folio_status st = folio_op_open_better(
            p->dev, FOLIO_OP_STEP, &p->ops, &l->step_args, &op, l->step_why);
        if (st == FOLIO_E_INVAL || st == FOLIO_E_UNSUPPORTED)
            return refuse(l, folio_status_text(st));
        FOLIO_RETURN_IF(st);
        if (!op)
            return FOLIO_OK;
        folio_op_close(&l->step);
        l->step = op;
        l->most_step = n;
    }
    return FOLIO_OK;
}

static folio_status look_for_step(const folio_lower_params *p, folio_lowered *l)
{
    const folio_model_desc *d = p->desc;
    if (d->n_layers < 1 || l->n_plans > FOLIO_STEP_WORKS)
        return refuse(l, "too many kinds of layers");
    for (int32_t i = 0; i < d->n_layers; i++)
        if (!is_plain_layer(d, &d->layers[i]))
            return refuse(l, "layers with biases, norms of heads, sinks or "
                             "kinds of rotation");
    const folio_layer_desc *first = &d->layers[0];
    l->step_layers = folio_calloc((size_t)d->n_layers, sizeof *l->step_layers);
    if (!l->step_layers)
        return FOLIO_E_NOMEM;
    for (int32_t i = 0; i < d->n_layers; i++) {
        const folio_layer_desc *y = &d->layers[i];
        l->step_layers[i] =
            (folio_step_layer){.wq = y->wq,
                               .wk = y->wk,
                               .wv = y->wv,
                               .wo = y->wo,
                               .gate = y->gate,
                               .up = y->up,
                               .down = y->down,
                               .attn_norm = y->attn_norm->views[0].view,
                               .ffn_norm = y->ffn_norm->views[0].view,
                               .kv = p->kv->layer[i],
                               .window = y->window,
                               .work = work_of(l, y->window)};
    }
    l->step_args = (folio_step_args){.x = l->x,
                                     .layers = l->step_layers,
                                     .n_layers = d->n_layers,
                                     .dim = d->dim,
                                     .ff = d->ff_dim,
                                     .heads = d->heads,
                                     .eps = d->norm_eps,
                                     .table = p->rope_table[first->rope],
                                     .n_pos = p->rope_n_pos,
                                     .interleaved = d->interleaved,
                                     .scale = d->attn_scale,
                                     .softcap = first->softcap,
                                     .act = first->act,
                                     .n_works = l->n_plans};
    return open_step(p, l);
}

folio_status folio_lower_step(const folio_lower_params *p, folio_lowered *l)
{
    FOLIO_RETURN_IF(look_for_step(p, l));
    if (l->step_why[0])
        folio_logf(folio_device_log(p->dev), FOLIO_LOG_INFO,
                   "no step of one launch for more than %" PRId32
                   " sequences, its ops run: %s",
                   l->most_step, l->step_why);
    return FOLIO_OK;
}
