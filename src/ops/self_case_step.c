/* ops/self_case_step.c: the self-test's case of a step: two layers of a model
 * with the heads and the types of the real one and otherwise small, its weights
 * in one buffer, its sequences over shuffled blocks. */
#include <string.h>

#include "base/half.h"
#include "ops/pack.h"
#include "ops/self_case.h"

static const folio_self_parts *const make = &folio_self_shared;

enum { MATRICES = 7, MOST_TOK = 8, WEIGHT_ALIGN = 256 };

/* So that a product is about as large as what it is a product of: else a
 * weight of attention is one or nothing, and all depends on which. */
static float scale_of(folio_type type)
{
    return type == FOLIO_TYPE_Q8_0   ? 0.001f
           : type == FOLIO_TYPE_Q4_0 ? 0.015f
           : type == FOLIO_TYPE_Q4_1 ? 0.015f
                                     : 0.05f;
}

/* Packs random rows behind what is there; the offset of the first. */
static size_t put_matrix(folio_self_case *c, const folio_weight *like, int i,
                         int64_t rows, int64_t cols, uint8_t *all, size_t at)
{
    folio_weight *w = &c->layer_weight[i];
    c->layer_view[i] =
        (folio_weight_view){.view = {.offset = at}, .rows = rows};
    *w = (folio_weight){.type = like->type,
                        .packing = like->packing,
                        .rows = rows,
                        .cols = cols,
                        .views = &c->layer_view[i]};
    const size_t bytes = folio_pack_bytes(w->packing, w->type, rows, cols);
    if (all) {
        uint8_t *file = folio_calloc(
            (size_t)rows * folio_type_row_bytes(w->type, (uint64_t)cols), 1);
        c->failed |= !file;
        if (file) {
            folio_self_blocks(w->type, rows * cols, scale_of(w->type),
                              c->seed + (uint64_t)i, file);
            folio_pack_rows(w->packing, w->type, cols, file, rows, all + at);
        }
        free(file);
    }
    return folio_align_up(at + bytes, WEIGHT_ALIGN);
}

/* Lays the weights of all layers out; with `all`, fills them too. */
static size_t put_weights(folio_self_case *c, const folio_step_args *a,
                          uint8_t *all)
{
    const folio_step_args *s = &c->args.step;
    const folio_step_layer *like = &a->layers[0];
    const int64_t q = (int64_t)s->heads * like->kv.head_dim;
    const int64_t kv = (int64_t)c->layer[0].kv.kv_heads * like->kv.head_dim;
    const struct {
        const folio_weight *like;
        int64_t rows, cols;
    } m[MATRICES] = {
        {like->wq, q, s->dim},       {like->wk, kv, s->dim},
        {like->wv, kv, s->dim},      {like->wo, s->dim, q},
        {like->gate, s->ff, s->dim}, {like->up, s->ff, s->dim},
        {like->down, s->dim, s->ff},
    };
    size_t at = 0;
    for (int y = 0; y < FOLIO_SELF_LAYERS; y++) {
        folio_step_layer *l = &c->layer[y];
        const folio_weight **to[MATRICES] = {&l->wq,   &l->wk, &l->wv,  &l->wo,
                                             &l->gate, &l->up, &l->down};
        for (int i = 0; i < MATRICES; i++) {
            at = put_matrix(c, m[i].like, y * MATRICES + i, m[i].rows,
                            m[i].cols, all, at);
            *to[i] = &c->layer_weight[y * MATRICES + i];
        }
        folio_view *norm[] = {&l->attn_norm, &l->ffn_norm};
        for (size_t i = 0; i < FOLIO_COUNT(norm); i++) {
            *norm[i] = (folio_view){.offset = at};
            if (all)
                make->units(c, (float *)(void *)(all + at), (size_t)s->dim);
            at = folio_align_up(at + (size_t)s->dim * sizeof(float),
                                WEIGHT_ALIGN);
        }
    }
    return at;
}

static void put_sequences(folio_self_case *c, folio_step_args *s)
{
    folio_kv_ref *kv = &c->layer[0].kv;
    const int32_t bs = kv->block_size;
    const int32_t len[MOST_TOK] = {35, 1, 18, 16, 40, 2, 33, 17};
    int32_t start[MOST_TOK + 1] = {0}, q_start[MOST_TOK + 1] = {0};
    int32_t pos[MOST_TOK], slot[MOST_TOK], tables[64];
    for (int32_t t = 0; t < s->n_tok; t++) {
        start[t + 1] = start[t] + (int32_t)folio_div_up(len[t], bs);
        q_start[t + 1] = t + 1;
        pos[t] = len[t] - 1;
    }
    const int32_t n = start[s->n_tok];
    for (int32_t i = 0; i < n; i++)
        tables[i] = n - 1 - i;
    make->kv(c, kv, n, true);
    for (int32_t t = 0; t < s->n_tok; t++) {
        slot[t] = tables[start[t] + pos[t] / bs] * bs + pos[t] % bs;
        for (int32_t i = 0; i * bs < pos[t]; i++) {
            const int32_t blk = tables[start[t] + i];
            const int32_t k = FOLIO_MIN(bs, pos[t] - i * bs);
            make->tokens(c, kv, &kv->k, kv->layout.xk, kv->layout.yk, blk, k);
            make->tokens(c, kv, &kv->v, kv->layout.xv, kv->layout.yv, blk, k);
        }
    }
    folio_attn_work *w = &s->work[0];
    w->n_seq = s->n_tok;
    make->ints(c, &w->q_start, q_start, s->n_tok + 1);
    make->ints(c, &w->kv_len, len, s->n_tok);
    make->ints(c, &w->table_start, start, s->n_tok + 1);
    make->ints(c, &w->tables, tables, n);
    make->ints(c, &s->pos, pos, s->n_tok);
    make->ints(c, &s->slot, slot, s->n_tok);
}

void folio_self_step_init(folio_self_case *c, const folio_step_args *a)
{
    const folio_step_layer *like = &a->layers[0];
    const int32_t hd = like->kv.head_dim, g = a->heads / like->kv.kv_heads;
    folio_step_args *s = &c->args.step;
    const int32_t kvh = FOLIO_MIN(like->kv.kv_heads, 2);
    *s = (folio_step_args){.layers = c->layer,
                           .n_layers = FOLIO_SELF_LAYERS,
                           .dim = FOLIO_MIN(a->dim, 256),
                           .ff = FOLIO_MIN(a->ff, 512),
                           .heads = g * kvh,
                           .eps = a->eps,
                           .n_pos = 40,
                           .interleaved = a->interleaved,
                           .n_tok = FOLIO_MIN(a->n_tok, MOST_TOK),
                           .scale = a->scale,
                           .softcap = a->softcap,
                           .act = a->act,
                           .n_works = FOLIO_SELF_LAYERS};
    const int64_t signs[] = {s->dim,
                             s->ff,
                             s->heads,
                             a->n_tok,
                             s->interleaved,
                             s->act,
                             like->wq->type,
                             like->wq->packing,
                             folio_f32_bits(a->scale),
                             folio_f32_bits(a->softcap),
                             folio_f32_bits(scale_of(like->wq->type))};
    for (size_t i = 0; i < FOLIO_COUNT(signs); i++)
        make->sign(c, signs[i]);
    make->floats(c, &s->x, (int64_t)s->n_tok * s->dim, true, s->dim);
    /* Layers share a pool: what the first one stores, the second one stores
     * over, after it was read. */
    for (int y = 0; y < FOLIO_SELF_LAYERS; y++) {
        c->layer[y].kv = like->kv;
        c->layer[y].kv.kv_heads = kvh;
        c->layer[y].window = y ? 20 : 0;
        c->layer[y].work = y;
    }
    put_sequences(c, s);
    c->layer[1].kv = c->layer[0].kv;
    uint8_t *all = make->array(c, &c->layer_buf, put_weights(c, a, NULL),
                               FOLIO_SELF_BYTES, false, 1);
    if (all)
        put_weights(c, a, all);
    make->floats(c, &s->table, 40 * (int64_t)hd, false, hd);
    c->scratch = &s->scratch;
}

void folio_self_step_bind(folio_self_case *c)
{
    if (c->op != FOLIO_OP_STEP)
        return;
    for (int i = 0; i < FOLIO_SELF_LAYERS * MATRICES; i++) {
        c->layer_view[i].view.buf = c->layer_buf;
        c->layer_weight[i].n_views = c->layer_buf != NULL;
    }
    for (int y = 0; y < FOLIO_SELF_LAYERS; y++) {
        c->layer[y].attn_norm.buf = c->layer[y].ffn_norm.buf = c->layer_buf;
        if (y > 0) {
            c->layer[y].kv = c->layer[0].kv;
            c->args.step.work[y] = c->args.step.work[0];
        }
    }
}
