/* model/lower.c: see lower.h. */
#include "model/lower.h"

#include <string.h>

int32_t folio_lower_fit_tok(const folio_model_desc *d, int32_t want,
                            size_t limit)
{
    size_t width = (size_t)FOLIO_MAX(d->dim, d->ff_dim);
    width = FOLIO_MAX(width, (size_t)d->heads * (size_t)d->head_dim);
    size_t fit = limit / (width * sizeof(float));
    return fit < (size_t)want ? (int32_t)fit : want;
}

typedef struct build {
    const folio_lower_params *p;
    folio_lowered *l;
    folio_view h, q, k, v, att, gate, up, tmp;
} build;

folio_node *folio_sequence_add(folio_sequence *s, folio_op_id id)
{
    if (s->n_nodes == s->cap) {
        int32_t cap = s->cap ? s->cap * 2 : 256;
        folio_node *n = folio_realloc(s->nodes, (size_t)cap, sizeof *n);
        if (!n)
            return NULL;
        s->nodes = n;
        s->cap = cap;
    }
    folio_node *n = &s->nodes[s->n_nodes++];
    memset(n, 0, sizeof *n);
    n->id = id;
    n->per_tok = 1;
    n->tap = -1;
    return n;
}

static folio_node *add_node(build *b, folio_op_id id)
{
    return folio_sequence_add(&b->l->plain, id);
}

static folio_view vector(const folio_weight *w)
{
    return w ? w->views[0].view : (folio_view){0};
}

static folio_status add_norm(build *b, folio_view x, folio_view out,
                             const folio_weight *w, int32_t dim,
                             int32_t per_tok, bool head)
{
    folio_node *n = add_node(b, FOLIO_OP_RMSNORM);
    if (!n)
        return FOLIO_E_NOMEM;
    n->per_tok = per_tok;
    n->head = head;
    n->a.norm = (folio_rmsnorm_args){
        .x = x,
        .w = vector(w),
        .out = out,
        .dim = dim,
        .x_stride = dim,
        .out_stride = dim,
        .eps = b->p->desc->norm_eps,
    };
    return FOLIO_OK;
}

static folio_status add_linear(build *b, folio_view x, const folio_weight *w,
                               const folio_weight *bias, folio_view y,
                               bool accumulate, bool head)
{
    folio_node *n = add_node(b, FOLIO_OP_LINEAR);
    if (!n)
        return FOLIO_E_NOMEM;
    n->head = head;
    n->a.linear = (folio_linear_args){
        .x = x,
        .w = w,
        .bias = vector(bias),
        .y = y,
        .x_stride = (int32_t)w->cols,
        .y_stride = (int32_t)w->rows,
        .accumulate = accumulate,
    };
    return FOLIO_OK;
}

/* x += tmp, after a norm of tmp. */
static folio_status add_post_norm(build *b, const folio_weight *norm)
{
    const folio_model_desc *d = b->p->desc;
    FOLIO_RETURN_IF(add_norm(b, b->tmp, b->tmp, norm, d->dim, 1, false));
    folio_node *n = add_node(b, FOLIO_OP_ADD);
    if (!n)
        return FOLIO_E_NOMEM;
    n->per_tok = d->dim;
    n->a.add = (folio_add_args){.x = b->tmp, .y = b->l->x};
    return FOLIO_OK;
}

static int32_t plan_of(folio_lowered *l, int32_t window)
{
    for (int32_t i = 0; i < l->n_plans; i++)
        if (l->window[i] == window)
            return i;
    if (l->n_plans == FOLIO_MAX_PLANS)
        return -1;
    l->window[l->n_plans] = window;
    return l->n_plans++;
}

static folio_status add_attention(build *b, int32_t layer)
{
    const folio_lower_params *p = b->p;
    const folio_model_desc *d = p->desc;
    const folio_layer_desc *y = &d->layers[layer];
    int32_t qd = d->heads * d->head_dim, kvd = d->kv_heads * d->head_dim;

    FOLIO_RETURN_IF(add_norm(b, b->l->x, b->h, y->attn_norm, d->dim, 1, false));
    FOLIO_RETURN_IF(add_linear(b, b->h, y->wq, y->bq, b->q, false, false));
    FOLIO_RETURN_IF(add_linear(b, b->h, y->wk, y->bk, b->k, false, false));
    FOLIO_RETURN_IF(add_linear(b, b->h, y->wv, y->bv, b->v, false, false));
    if (y->q_norm)
        FOLIO_RETURN_IF(
            add_norm(b, b->q, b->q, y->q_norm, d->head_dim, d->heads, false));
    if (y->k_norm)
        FOLIO_RETURN_IF(add_norm(b, b->k, b->k, y->k_norm, d->head_dim,
                                 d->kv_heads, false));
    folio_node *n = add_node(b, FOLIO_OP_ROPE_APPEND);
    if (!n)
        return FOLIO_E_NOMEM;
    n->a.rope = (folio_rope_append_args){
        .q = b->q,
        .k = b->k,
        .v = b->v,
        .q_stride = qd,
        .k_stride = kvd,
        .v_stride = kvd,
        .interleaved = d->interleaved,
        .heads = d->heads,
        .kv = p->kv->layer[layer],
    };
    if (y->rope >= 0) {
        n->a.rope.table = p->rope_table[y->rope];
        n->a.rope.n_pos = p->rope_n_pos;
        n->a.rope.rot_dim = d->rope[y->rope].rot_dim;
    }
    n = add_node(b, FOLIO_OP_ATTN);
    if (!n)
        return FOLIO_E_NOMEM;
    n->plan = plan_of(b->l, y->window);
    if (n->plan < 0)
        return folio_fail(folio_device_log(p->dev), FOLIO_E_UNSUPPORTED,
                          "layers use more than %d different windows",
                          FOLIO_MAX_PLANS);
    n->a.attn = (folio_attn_args){
        .q = b->q,
        .out = b->att,
        .q_stride = qd,
        .out_stride = qd,
        .heads = d->heads,
        .window = y->window,
        .scale = d->attn_scale,
        .softcap = y->softcap,
        .sinks = vector(y->sinks),
        .kv = p->kv->layer[layer],
    };
    /* Bounds, so that the op can size its partial results. */
    n->a.attn.work.n_seq = p->max_seqs;
    n->a.attn.work.max_kv = p->max_ctx;
    if (!y->post_attn_norm)
        return add_linear(b, b->att, y->wo, y->bo, b->l->x, true, false);
    FOLIO_RETURN_IF(add_linear(b, b->att, y->wo, y->bo, b->tmp, false, false));
    return add_post_norm(b, y->post_attn_norm);
}

static folio_status add_ffn(build *b, int32_t layer)
{
    const folio_model_desc *d = b->p->desc;
    const folio_layer_desc *y = &d->layers[layer];
    FOLIO_RETURN_IF(add_norm(b, b->l->x, b->h, y->ffn_norm, d->dim, 1, false));
    FOLIO_RETURN_IF(add_linear(b, b->h, y->gate, NULL, b->gate, false, false));
    FOLIO_RETURN_IF(add_linear(b, b->h, y->up, NULL, b->up, false, false));
    folio_node *n = add_node(b, FOLIO_OP_ACT_MUL);
    if (!n)
        return FOLIO_E_NOMEM;
    n->a.act = (folio_act_mul_args){
        .gate = b->gate,
        .up = b->up,
        .out = b->gate,
        .dim = d->ff_dim,
        .gate_stride = d->ff_dim,
        .up_stride = d->ff_dim,
        .out_stride = d->ff_dim,
        .act = y->act,
    };
    if (!y->post_ffn_norm)
        return add_linear(b, b->gate, y->down, NULL, b->l->x, true, false);
    FOLIO_RETURN_IF(
        add_linear(b, b->gate, y->down, NULL, b->tmp, false, false));
    return add_post_norm(b, y->post_ffn_norm);
}

static folio_status add_all(build *b)
{
    const folio_lower_params *p = b->p;
    const folio_model_desc *d = p->desc;
    folio_lowered *l = b->l;
    folio_node *n = add_node(b, FOLIO_OP_EMBED);
    if (!n)
        return FOLIO_E_NOMEM;
    n->tap = 0;
    n->a.embed =
        (folio_embed_args){.w = d->embed, .out = l->x, .scale = d->embed_scale};
    for (int32_t y = 0; y < d->n_layers; y++) {
        FOLIO_RETURN_IF(add_attention(b, y));
        FOLIO_RETURN_IF(add_ffn(b, y));
        l->plain.nodes[l->plain.n_nodes - 1].tap = y + 1;
    }
    l->plain.first_head = l->plain.n_nodes;
    n = add_node(b, FOLIO_OP_GATHER_ROWS);
    if (!n)
        return FOLIO_E_NOMEM;
    n->head = true;
    n->a.gather =
        (folio_gather_rows_args){.x = l->x, .out = l->xr, .dim = d->dim};
    FOLIO_RETURN_IF(add_norm(b, l->xr, l->xr, d->out_norm, d->dim, 1, true));
    l->plain.nodes[l->plain.n_nodes - 1].tap = d->n_layers + 1;
    return add_linear(b, l->xr, d->head, NULL, p->logits, false, true);
}

void *folio_node_args(folio_node *n, int64_t count)
{
    int64_t rows = count * n->per_tok;
    switch (n->id) {
    case FOLIO_OP_EMBED:
        n->a.embed.n_tok = (int32_t)rows;
        break;
    case FOLIO_OP_GATHER_ROWS:
        n->a.gather.n_rows = (int32_t)rows;
        break;
    case FOLIO_OP_RMSNORM:
        n->a.norm.n_rows = (int32_t)rows;
        break;
    case FOLIO_OP_LINEAR:
        n->a.linear.n_tok = (int32_t)rows;
        break;
    case FOLIO_OP_ROPE_APPEND:
        n->a.rope.n_tok = (int32_t)rows;
        break;
    case FOLIO_OP_ATTN:
        n->a.attn.n_tok = (int32_t)rows;
        break;
    case FOLIO_OP_ACT_MUL:
        n->a.act.n_tok = (int32_t)rows;
        break;
    case FOLIO_OP_NORM_LINEAR:
        n->a.norm_linear.n_tok = (int32_t)rows;
        break;
    case FOLIO_OP_QKV:
        n->a.qkv.n_tok = (int32_t)rows;
        break;
    case FOLIO_OP_GATE_UP:
        n->a.gate_up.n_tok = (int32_t)rows;
        break;
    default:
        n->a.add.n = rows;
        break;
    }
    return &n->a;
}

/* Where a node's op keeps what only it may use; NULL: it has no scratch. */
static folio_view *scratch_of(folio_node *n)
{
    switch (n->id) {
    case FOLIO_OP_LINEAR:
        return &n->a.linear.scratch;
    case FOLIO_OP_ATTN:
        return &n->a.attn.scratch;
    case FOLIO_OP_NORM_LINEAR:
        return &n->a.norm_linear.scratch;
    case FOLIO_OP_QKV:
        return &n->a.qkv.scratch;
    case FOLIO_OP_GATE_UP:
        return &n->a.gate_up.scratch;
    default:
        return NULL;
    }
}

/* A node's ops. `few_too`: it runs for few tokens as well. */
static folio_status open_node(const folio_lower_params *p,
                              const folio_lowered *l, folio_node *n,
                              bool few_too)
{
    int32_t many = n->head ? p->head_rows : l->step_tok;
    int32_t few = FOLIO_MIN(many, p->few_tok);
    /* One variant for every count keeps a row's bits independent of its
     * batch; attention has one plan, so one op. */
    bool one = p->ops.deterministic || few == many || few == 0 ||
               n->id == FOLIO_OP_ATTN || !few_too;
    FOLIO_RETURN_IF(folio_op_open(
        p->dev, n->id, &p->ops, folio_node_args(n, many), &n->op[FOLIO_MANY]));
    if (!one)
        return folio_op_open(p->dev, n->id, &p->ops, folio_node_args(n, few),
                             &n->op[FOLIO_FEW]);
    n->op[FOLIO_FEW] = n->op[FOLIO_MANY];
    return FOLIO_OK;
}

static size_t most_scratch(const folio_sequence *s)
{
    size_t most = 0;
    for (int32_t i = 0; i < s->n_nodes; i++)
        for (int r = 0; r < FOLIO_REGIMES; r++)
            most = FOLIO_MAX(most, folio_op_scratch_bytes(s->nodes[i].op[r]));
    return most;
}

static void set_scratch(folio_sequence *s, folio_view all)
{
    for (int32_t i = 0; i < s->n_nodes; i++) {
        folio_view *v = scratch_of(&s->nodes[i]);
        if (v)
            *v = all;
    }
}

/* Nodes that stayed as they are run the ops of their plain node. */
static void lend_ops(const folio_sequence *plain, folio_sequence *to)
{
    for (int32_t i = 0; i < to->n_nodes; i++) {
        folio_node *n = &to->nodes[i];
        if (n->borrowed)
            memcpy(n->op, plain->nodes[n->borrowed - 1].op, sizeof n->op);
    }
}

static folio_status open_ops(build *b)
{
    const folio_lower_params *p = b->p;
    folio_lowered *l = b->l;
    folio_sequence *fused = &l->fused;
    bool *lent = folio_calloc((size_t)l->plain.n_nodes, sizeof *lent);
    folio_status st = FOLIO_OK;
    if (!lent)
        return FOLIO_E_NOMEM;
    for (int32_t i = 0; i < fused->n_nodes; i++)
        if (fused->nodes[i].borrowed)
            lent[fused->nodes[i].borrowed - 1] = true;
    for (int32_t i = 0; i < l->plain.n_nodes; i++) {
        folio_node *n = &l->plain.nodes[i];
        FOLIO_TRY(open_node(p, l, n, lent[i] || fused->n_nodes == 0));
        if (n->id == FOLIO_OP_ATTN && !l->attn[n->plan])
            l->attn[n->plan] = n->op[FOLIO_MANY];
    }
    lend_ops(&l->plain, fused);
    lend_ops(&l->plain, &l->many);
    size_t scratch =
        FOLIO_MAX(most_scratch(&l->plain), most_scratch(&l->fused));
    scratch = FOLIO_MAX(scratch, most_scratch(&l->many));
    if (l->step)
        scratch = FOLIO_MAX(scratch, folio_op_scratch_bytes(l->step));
    if (scratch > folio_device_max_alloc(p->dev))
        FOLIO_TRY(FOLIO_E_TOO_LARGE);
    if (scratch > 0) {
        FOLIO_TRY(folio_buf_open(p->dev, scratch, &l->scratch));
        set_scratch(&l->plain, (folio_view){l->scratch, 0});
        set_scratch(&l->fused, (folio_view){l->scratch, 0});
        set_scratch(&l->many, (folio_view){l->scratch, 0});
        l->step_args.scratch = (folio_view){l->scratch, 0};
    }
fail:
    free(lent);
    return st;
}

folio_status folio_lower(const folio_lower_params *p, folio_lowered *out)
{
    folio_status st;
    const folio_model_desc *d = p->desc;
    folio_lowered l = {.step_tok = p->step_tok, .few_tok = p->few_tok};
    build b = {.p = p, .l = &l};
    size_t row = (size_t)p->step_tok * sizeof(float);
    size_t qd = (size_t)d->heads * (size_t)d->head_dim;
    size_t kvd = (size_t)d->kv_heads * (size_t)d->head_dim;
    bool post = false;
    for (int32_t y = 0; y < d->n_layers; y++)
        post |= d->layers[y].post_attn_norm || d->layers[y].post_ffn_norm;
    const struct {
        size_t bytes;
        folio_view *out;
    } areas[] = {
        {row * (size_t)d->dim, &l.x},
        {row * (size_t)d->dim, &b.h},
        {row * qd, &b.q},
        {row * kvd, &b.k},
        {row * kvd, &b.v},
        {row * qd, &b.att},
        {row * (size_t)d->ff_dim, &b.gate},
        {row * (size_t)d->ff_dim, &b.up},
        {post ? row * (size_t)d->dim : 0, &b.tmp},
        {(size_t)p->head_rows * (size_t)d->dim * sizeof(float), &l.xr},
    };
    for (size_t i = 0; i < FOLIO_COUNT(areas); i++)
        folio_arena_reserve(&l.arena, areas[i].bytes);
    FOLIO_TRY(folio_arena_open(&l.arena, p->dev));
    for (size_t i = 0; i < FOLIO_COUNT(areas); i++)
        *areas[i].out = folio_arena_view(&l.arena, (int)i);
    FOLIO_TRY(add_all(&b));
    if (p->fuse && !p->ops.deterministic)
        FOLIO_TRY(folio_lower_fuse(p, &l));
    if (p->whole && !p->ops.deterministic)
        FOLIO_TRY(folio_lower_step(p, &l));
    FOLIO_TRY(open_ops(&b));
    *out = l;
    return FOLIO_OK;
fail:
    folio_lowered_fini(&l);
    return st;
}

static void fini_sequence(folio_sequence *s)
{
    for (int32_t i = 0; i < s->n_nodes; i++) {
        folio_node *n = &s->nodes[i];
        if (n->borrowed)
            continue;
        if (n->op[FOLIO_FEW] != n->op[FOLIO_MANY])
            folio_op_close(&n->op[FOLIO_FEW]);
        folio_op_close(&n->op[FOLIO_MANY]);
    }
    FOLIO_FREE(s->nodes);
}

void folio_lowered_fini(folio_lowered *l)
{
    fini_sequence(&l->many);
    fini_sequence(&l->fused);
    fini_sequence(&l->plain);
    folio_op_close(&l->step);
    FOLIO_FREE(l->step_layers);
    folio_buf_close(&l->scratch);
    folio_arena_fini(&l->arena);
    memset(l, 0, sizeof *l);
}
