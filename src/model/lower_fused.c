/* model/lower_fused.c: the fused form for few tokens, made from the plain
 * sequence by replacing runs of nodes with one op: norm, q, k, v and rope;
 * norm, gate, up and activation; norm and products; the head's gather, norm and
 * product. The form for many tokens is made the same way, of the variants that
 * pay for many.
 * Knows nodes, not models: what the plain form computes in between (the normed
 * row, k, v, gate, up) is read by no other node of it. */
#include <stdio.h>
#include <string.h>

#include "model/lower.h"

typedef struct fuse {
    const folio_lower_params *p;
    const folio_sequence *from;
    folio_sequence *to;
    bool many;
    int32_t n_fused;
    bool told[FOLIO_OP_COUNT]; /* why an op is not used, once is enough */
} fuse;

static bool same_view(folio_view a, folio_view b)
{
    return a.buf == b.buf && a.offset == b.offset;
}

/* Node i of the plain form, if it is such an op of the same part (body or
 * head), else NULL. */
static const folio_node *node_at(const fuse *f, int32_t i, folio_op_id id)
{
    return i < f->from->n_nodes && f->from->nodes[i].id == id
               ? &f->from->nodes[i]
               : NULL;
}

/* A product of the row that `norm` normed and nothing else; NULL if it is
 * another node. */
static const folio_linear_args *product_at(const fuse *f, int32_t i,
                                           const folio_rmsnorm_args *norm)
{
    const folio_node *n = node_at(f, i, FOLIO_OP_LINEAR);
    return n && !n->a.linear.accumulate && same_view(n->a.linear.x, norm->out)
               ? &n->a.linear
               : NULL;
}

static folio_norm_in in_of(const folio_rmsnorm_args *norm)
{
    return (folio_norm_in){.x = norm->x,
                           .norm = norm->w,
                           .dim = norm->dim,
                           .x_stride = norm->x_stride,
                           .eps = norm->eps};
}

static void tell_plain(fuse *f, folio_op_id id, const char *reason)
{
    if (!f->told[id])
        folio_logf(folio_device_log(f->p->dev), FOLIO_LOG_INFO,
                   "not fused to %s, its plain ops run: %s", folio_op_name(id),
                   reason);
    f->told[id] = true;
}

/* Opens the op of the last node of `to`. One that is only the sum of its parts
 * gains nothing, and none is needed: where no other row can run, or the fused
 * op asks for more than its plain ones, the node goes, and *taken is false. */
static folio_status try_op(fuse *f, bool head, bool *taken)
{
    const folio_lower_params *p = f->p;
    folio_node *n = &f->to->nodes[f->to->n_nodes - 1];
    folio_op *op = NULL;
    int32_t most = head ? p->head_rows : p->step_tok;
    folio_op_params prm = p->ops;
    char reason[FOLIO_OP_REASON];
    n->head = head;
    prm.many = f->many;
    if (!f->many)
        most = FOLIO_MIN(p->few_tok, most);
    folio_status st = folio_op_open_better(
        p->dev, n->id, &prm, folio_node_args(n, most), &op, reason);
    if (st == FOLIO_E_INVAL || st == FOLIO_E_UNSUPPORTED)
        snprintf(reason, sizeof reason, "%s", folio_status_text(st));
    else
        FOLIO_RETURN_IF(st);
    *taken = op != NULL;
    if (*taken) {
        n->op[FOLIO_FEW] = n->op[FOLIO_MANY] = op;
        f->n_fused++;
    } else {
        /* Few devices have a form for many tokens: no news. */
        if (!f->many)
            tell_plain(f, n->id, reason);
        f->to->n_nodes--;
    }
    return FOLIO_OK;
}

/* norm, q, k, v, rope from node i on; *used 0: it is not that, or does not
 * fit. */
static folio_status try_qkv(fuse *f, int32_t i, int32_t *used)
{
    const folio_rmsnorm_args *norm = &f->from->nodes[i].a.norm;
    const folio_linear_args *q = product_at(f, i + 1, norm);
    const folio_linear_args *k = q ? product_at(f, i + 2, norm) : NULL;
    const folio_linear_args *v = k ? product_at(f, i + 3, norm) : NULL;
    if (!v)
        return FOLIO_OK;
    int32_t at = i + 4;
    const folio_node *heads[2] = {node_at(f, at, FOLIO_OP_RMSNORM),
                                  node_at(f, at + 1, FOLIO_OP_RMSNORM)};
    bool head_norm =
        heads[0] && heads[1] && same_view(heads[0]->a.norm.x, q->y) &&
        same_view(heads[1]->a.norm.x, k->y) &&
        heads[0]->a.norm.eps == norm->eps && heads[1]->a.norm.eps == norm->eps;
    at += head_norm ? 2 : 0;
    const folio_node *rope = node_at(f, at, FOLIO_OP_ROPE_APPEND);
    if (!rope)
        return FOLIO_OK;
    const folio_rope_append_args *r = &rope->a.rope;
    folio_node *n = folio_sequence_add(f->to, FOLIO_OP_QKV);
    bool taken;
    if (!n)
        return FOLIO_E_NOMEM;
    n->a.qkv = (folio_qkv_args){
        .in = in_of(norm),
        .wq = q->w,
        .wk = k->w,
        .wv = v->w,
        .bq = q->bias,
        .bk = k->bias,
        .bv = v->bias,
        .head_norm = head_norm,
        .q = q->y,
        .q_stride = q->y_stride,
        .table = r->table,
        .n_pos = r->n_pos,
        .rot_dim = r->rot_dim,
        .interleaved = r->interleaved,
        .heads = r->heads,
        .kv = r->kv,
    };
    if (head_norm) {
        n->a.qkv.q_norm = heads[0]->a.norm.w;
        n->a.qkv.k_norm = heads[1]->a.norm.w;
    }
    FOLIO_RETURN_IF(try_op(f, false, &taken));
    *used = taken ? at + 1 - i : 0;
    return FOLIO_OK;
}

/* norm, gate, up, activation. */
static folio_status try_gate_up(fuse *f, int32_t i, int32_t *used)
{
    const folio_rmsnorm_args *norm = &f->from->nodes[i].a.norm;
    const folio_linear_args *gate = product_at(f, i + 1, norm);
    const folio_linear_args *up = gate ? product_at(f, i + 2, norm) : NULL;
    const folio_node *act = node_at(f, i + 3, FOLIO_OP_ACT_MUL);
    bool taken;
    if (!up || !act || gate->bias.buf || up->bias.buf ||
        !same_view(act->a.act.gate, gate->y) ||
        !same_view(act->a.act.up, up->y))
        return FOLIO_OK;
    folio_node *n = folio_sequence_add(f->to, FOLIO_OP_GATE_UP);
    if (!n)
        return FOLIO_E_NOMEM;
    n->a.gate_up = (folio_gate_up_args){
        .in = in_of(norm),
        .gate = gate->w,
        .up = up->w,
        .out = act->a.act.out,
        .out_stride = act->a.act.out_stride,
        .act = act->a.act.act,
    };
    FOLIO_RETURN_IF(try_op(f, false, &taken));
    *used = taken ? 4 : 0;
    return FOLIO_OK;
}

/* norm and the products of it, those of one type together: what is left where
 * the whole does not fit. A gather before the norm is part of it. */
static folio_status try_products(fuse *f, int32_t i, int32_t *used)
{
    const folio_node *gather = node_at(f, i, FOLIO_OP_GATHER_ROWS);
    const folio_node *first =
        node_at(f, i + (gather ? 1 : 0), FOLIO_OP_RMSNORM);
    if (!first)
        return FOLIO_OK;
    const folio_rmsnorm_args *norm = &first->a.norm;
    int32_t at = i + (gather ? 2 : 1), done = at;
    int32_t mark = f->to->n_nodes;
    while (product_at(f, at, norm)) {
        const folio_linear_args *l;
        folio_norm_linear_args a = {.in = in_of(norm),
                                    .gather = gather != NULL};
        bool taken;
        if (gather)
            a.in.x = gather->a.gather.x;
        while (a.n_parts < FOLIO_MAX_PRODUCTS &&
               (l = product_at(f, at, norm)) &&
               (a.n_parts == 0 || (l->w->type == a.part[0].w->type &&
                                   l->w->packing == a.part[0].w->packing))) {
            a.part[a.n_parts++] = (folio_product){
                .w = l->w, .bias = l->bias, .y = l->y, .y_stride = l->y_stride};
            at++;
        }
        folio_node *n = folio_sequence_add(f->to, FOLIO_OP_NORM_LINEAR);
        if (!n)
            return FOLIO_E_NOMEM;
        n->a.norm_linear = a;
        FOLIO_RETURN_IF(try_op(f, first->head, &taken));
        if (!taken)
            break;
        done = at;
    }
    if (done > i + (gather ? 2 : 1) && !product_at(f, done, norm)) {
        *used = done - i;
        return FOLIO_OK;
    }
    /* One product that stays needs the normed row: then all may as well. */
    while (f->to->n_nodes > mark) {
        folio_node *n = &f->to->nodes[--f->to->n_nodes];
        folio_op_close(&n->op[FOLIO_MANY]);
        f->n_fused--;
    }
    return FOLIO_OK;
}

static folio_status copy_node(fuse *f, int32_t i)
{
    folio_node *n = folio_sequence_add(f->to, f->from->nodes[i].id);
    if (!n)
        return FOLIO_E_NOMEM;
    *n = f->from->nodes[i];
    n->borrowed = i + 1;
    n->tap = -1;
    return FOLIO_OK;
}

static folio_status fuse_all(fuse *f)
{
    for (int32_t i = 0; i < f->from->n_nodes;) {
        int32_t used = 0;
        if (i == f->from->first_head)
            f->to->first_head = f->to->n_nodes;
        const folio_node *n = &f->from->nodes[i];
        if (n->id == FOLIO_OP_RMSNORM && !n->a.norm.res.buf) {
            FOLIO_RETURN_IF(try_qkv(f, i, &used));
            if (!used)
                FOLIO_RETURN_IF(try_gate_up(f, i, &used));
        }
        if (!used)
            FOLIO_RETURN_IF(try_products(f, i, &used));
        if (!used) {
            FOLIO_RETURN_IF(copy_node(f, i));
            used = 1;
        }
        i += used;
    }
    if (f->n_fused == 0) {
        FOLIO_FREE(f->to->nodes);
        memset(f->to, 0, sizeof *f->to);
    }
    return FOLIO_OK;
}

folio_status folio_lower_fuse(const folio_lower_params *p, folio_lowered *l)
{
    fuse few = {.p = p, .from = &l->plain, .to = &l->fused};
    fuse many = {.p = p, .from = &l->plain, .to = &l->many, .many = true};
    if (p->few_tok > 0)
        FOLIO_RETURN_IF(fuse_all(&few));
    return p->step_tok > p->few_tok ? fuse_all(&many) : FOLIO_OK;
}
