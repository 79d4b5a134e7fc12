/* op_kv.c: pools of KV blocks in one or more buffers, and problems of
 * rope_append and copy_blocks. */
#include "check/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ops/kv_host.h"

/* ---- pools ----------------------------------------------------------------
 */

static int32_t shift_for(int32_t n_blocks, int segs)
{
    int32_t shift = 0;
    while (((int64_t)segs << shift) < n_blocks)
        shift++;
    return segs == 1 ? 31 : shift;
}

int32_t ck_pool_blocks(int32_t n_blocks, int segs)
{
    n_blocks = FOLIO_MAX(n_blocks, segs);
    int64_t least =
        segs == 1 ? 1 : ((int64_t)(segs - 1) << shift_for(n_blocks, segs)) + 1;
    return FOLIO_MAX(n_blocks, (int32_t)least);
}

static void add_plane(ck_problem *p, const folio_kv_ref *kv,
                      folio_kv_plane *plane, int segs, ck_role role,
                      const char *const names[], ck_slot **out)
{
    size_t per_block = folio_kv_block_bytes(kv) / folio_kv_type_bytes(kv->type);
    int32_t shift = shift_for(kv->n_blocks, segs), left = kv->n_blocks;
    int first = p->n_slots;
    plane->n_buf = segs;
    plane->seg_shift = shift;
    for (int i = 0; i < segs; i++) {
        int64_t n = FOLIO_MIN((int64_t)1 << shift, (int64_t)left);
        ck_slot *s = ck_slot_add(p, names[i], role,
                                 kv->type == FOLIO_KV_F16 ? CK_F16 : CK_F32,
                                 (size_t)n * per_block, NULL);
        ck_poison(s->init, s->bytes);
        /* As bulk copies need it, where the order is theirs. */
        const folio_kv_layout *l = &kv->layout;
        if (kv->type == FOLIO_KV_F16 && l->xk == 8 && l->yk == 1 &&
            l->xv == 8 && l->yv == 1)
            s->align = 16;
        s->into_buf = &plane->buf[i];
        s->into_offset = &plane->offset;
        s->with = i ? first : -1;
        out[i] = s;
        left -= (int32_t)n;
    }
}

ck_pool ck_add_pool(ck_problem *p, folio_kv_ref *kv, int segs, ck_role role)
{
    static const char *const k_names[] = {"K", "K 1", "K 2", "K 3"};
    static const char *const v_names[] = {"V", "V 1", "V 2", "V 3"};
    ck_pool pool = {.kv = kv};
    add_plane(p, kv, &kv->k, segs, role, k_names, pool.k);
    add_plane(p, kv, &kv->v, segs, role, v_names, pool.v);
    return pool;
}

uint8_t *ck_pool_block(const ck_pool *pool, bool is_v, int32_t block)
{
    const folio_kv_plane *plane = is_v ? &pool->kv->v : &pool->kv->k;
    ck_slot *const *segs = is_v ? pool->v : pool->k;
    uint32_t b = (uint32_t)block, seg = b >> plane->seg_shift;
    uint32_t in = b & ((1u << plane->seg_shift) - 1u);
    return segs[seg]->init + (size_t)in * folio_kv_block_bytes(pool->kv);
}

void ck_pool_put(const ck_pool *pool, bool is_v, int32_t slot, int32_t head,
                 int32_t d, float value)
{
    const folio_kv_ref *kv = pool->kv;
    unsigned bs = (unsigned)kv->block_size, hd = (unsigned)kv->head_dim;
    unsigned t = (unsigned)slot % bs;
    uint8_t *tile = ck_pool_block(pool, is_v, slot / kv->block_size) +
                    (size_t)head * bs * hd * folio_kv_type_bytes(kv->type);
    size_t at =
        is_v ? folio_kv_index(t, (unsigned)d, bs, (unsigned)kv->layout.xv,
                              (unsigned)kv->layout.yv)
             : folio_kv_index(t, (unsigned)d, bs, (unsigned)kv->layout.xk,
                              (unsigned)kv->layout.yk);
    folio_kv_put(kv->type, tile, at, value);
}

/* ---- rope_append ----------------------------------------------------------
 */

typedef struct rope_case {
    ck_set set;
    int hd, heads, kvh, bs, xk, xv, yv;
    folio_kv_type kv;
    int rot, interleaved, tok, pad, segs;
    ck_fill_kind fill;
} rope_case;

static const rope_case rope_cases[] = {
#define CHECK_ROPE(set, hd, heads, kvh, bs, xk, xv, yv, kv, rot, interleaved,  \
                   tok, pad, segs, fill)                                       \
    {CK_SET_##set, hd,  heads, kvh,           bs,                              \
     xk,           xv,  yv,    FOLIO_KV_##kv, rot,                             \
     interleaved,  tok, pad,   segs,          CK_FILL_##fill},
#include "check/covering.def"
};

static ck_slot *token_rows(ck_problem *p, ck_rng *r, const char *name,
                           ck_role role, int tok, int width, int stride,
                           float most, folio_view *into)
{
    ck_slot *s = ck_slot_add_rows(p, name, role, CK_F32, (size_t)tok,
                                  (size_t)width, (size_t)stride, into);
    for (int t = 0; t < tok; t++)
        ck_fill(r, (float *)(void *)(s->init + (size_t)t * s->row_bytes),
                (size_t)width, -most, most);
    return s;
}

/* Distinct slots in random order; the second token is padding. */
static void fill_slots(ck_rng *r, const folio_kv_ref *kv, int32_t *slot,
                       int tok)
{
    int32_t n = kv->n_blocks * kv->block_size;
    int32_t *all = folio_calloc((size_t)n, sizeof *all);
    for (int32_t i = 0; all && i < n; i++)
        all[i] = i;
    if (all)
        ck_shuffle(r, all, n);
    for (int t = 0; all && t < tok; t++)
        slot[t] = t == 1 ? -1 : all[t];
    free(all);
}

static void fill_table(const folio_rope_append_args *a, float *table)
{
    int half = a->rot_dim / 2;
    for (int p = 0; p < a->n_pos; p++) {
        for (int i = 0; i < half; i++) {
            double turn = (double)p * pow(10000.0, -2.0 * i / a->rot_dim);
            table[(p * half + i) * 2] = (float)cos(turn);
            table[(p * half + i) * 2 + 1] = (float)sin(turn);
        }
    }
}

static void rope_limits(const ck_pool *pool, const rope_case *k, double most)
{
    /* Two products and a sum, each rounded; nothing at all is done to V. */
    for (int i = 0; i < k->segs; i++) {
        pool->k[i]->rule = k->kv == FOLIO_KV_F16 ? CK_PLACE : CK_NEAR;
        pool->k[i]->abs = 4 * 0x1p-23 * most;
        if (k->rot == 0)
            pool->k[i]->rule = CK_EXACT;
    }
}

static void rope_one(ck_ctx *c, const rope_case *k)
{
    char name[150];
    snprintf(name, sizeof name,
             "rope_append hd %d h %d/%d bs %d x %d,%d y %d %s rot %d%s tok %d "
             "segs %d %s",
             k->hd, k->heads, k->kvh, k->bs, k->xk, k->xv, k->yv,
             k->kv == FOLIO_KV_F16 ? "f16" : "f32", k->rot,
             k->interleaved ? " interleaved" : "", k->tok, k->segs,
             ck_fill_name(k->fill));
    if (!ck_wanted(c, FOLIO_OP_ROPE_APPEND, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_ROPE_APPEND);
    folio_rope_append_args *a = &p->args.rope;
    float most = k->fill == CK_FILL_tiny ? 1e-6f : 2.0f;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    *a = (folio_rope_append_args){.q_stride = k->heads * k->hd + k->pad,
                                  .k_stride = k->kvh * k->hd + k->pad,
                                  .v_stride = k->kvh * k->hd + 2 * k->pad,
                                  .n_pos = 37,
                                  .rot_dim = k->rot,
                                  .interleaved = k->interleaved,
                                  .n_tok = k->tok,
                                  .heads = k->heads};
    a->kv =
        (folio_kv_ref){.type = k->kv,
                       .layout = folio_kv_layout_fit(
                           (folio_kv_layout){k->xk ? k->xk : k->hd, 1,
                                             k->xv ? k->xv : k->hd, k->yv},
                           k->hd, k->bs),
                       .n_blocks = ck_pool_blocks(k->tok / k->bs + 3, k->segs),
                       .block_size = k->bs,
                       .kv_heads = k->kvh,
                       .head_dim = k->hd};
    if (k->heads) {
        ck_slot *q = token_rows(p, &r, "q", CK_INOUT, k->tok, k->heads * k->hd,
                                a->q_stride, most, &a->q);
        q->optional = true;
        q->rule = CK_NEAR;
        q->abs = 4 * 0x1p-23 * (double)most;
    }
    token_rows(p, &r, "k", CK_IN, k->tok, k->kvh * k->hd, a->k_stride, most,
               &a->k);
    token_rows(p, &r, "v", CK_IN, k->tok, k->kvh * k->hd, a->v_stride, most,
               &a->v);
    ck_slot *slot = ck_slot_add_rows(p, "slot", CK_IN, CK_I32, (size_t)k->tok,
                                     1, 1, &a->slot);
    fill_slots(&r, &a->kv, ck_i32(slot), k->tok);
    if (k->rot) {
        ck_slot *pos = ck_slot_add_rows(p, "pos", CK_IN, CK_I32, (size_t)k->tok,
                                        1, 1, &a->pos);
        for (int t = 0; t < k->tok; t++)
            ck_i32(pos)[t] = ck_below(&r, a->n_pos);
        ck_i32(pos)[0] = a->n_pos - 1;
        ck_slot *table =
            ck_slot_add(p, "table", CK_IN, CK_F32,
                        (size_t)a->n_pos * (size_t)k->rot, &a->table);
        fill_table(a, ck_f32(table));
    }
    ck_pool pool = ck_add_pool(p, &a->kv, k->segs, CK_INOUT);
    rope_limits(&pool, k, (double)most);
    ck_judge(c, p);
}

void ck_rope(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(rope_cases); i++)
        if (ck_in_size(c, rope_cases[i].set))
            rope_one(c, &rope_cases[i]);
}

/* ---- copy_blocks ----------------------------------------------------------
 */

typedef struct copy_case {
    ck_set set;
    int hd, kvh, bs;
    folio_kv_type kv;
    int pairs, segs;
} copy_case;

static const copy_case copy_cases[] = {
#define CHECK_COPY(set, hd, kvh, bs, kv, pairs, segs)                          \
    {CK_SET_##set, hd, kvh, bs, FOLIO_KV_##kv, pairs, segs},
#include "check/covering.def"
};

static void copy_one(ck_ctx *c, const copy_case *k)
{
    char name[120];
    snprintf(name, sizeof name,
             "copy_blocks hd %d kvh %d bs %d %s pairs %d "
             "segs %d",
             k->hd, k->kvh, k->bs, k->kv == FOLIO_KV_F16 ? "f16" : "f32",
             k->pairs, k->segs);
    if (!ck_wanted(c, FOLIO_OP_COPY_BLOCKS, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_COPY_BLOCKS);
    folio_copy_blocks_args *a = &p->args.copy;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    a->n_pairs = k->pairs;
    a->kv =
        (folio_kv_ref){.type = k->kv,
                       .layout = folio_kv_layout_fit(
                           (folio_kv_layout){8, 1, 8, 2}, k->hd, k->bs),
                       .n_blocks = ck_pool_blocks(2 * k->pairs + 3, k->segs),
                       .block_size = k->bs,
                       .kv_heads = k->kvh,
                       .head_dim = k->hd};
    ck_slot *pairs = ck_slot_add_rows(p, "pairs", CK_IN, CK_I32,
                                      (size_t)k->pairs, 2, 2, &a->pairs);
    ck_pool pool = ck_add_pool(p, &a->kv, k->segs, CK_INOUT);
    int32_t n = a->kv.n_blocks;
    int32_t *blocks = folio_calloc((size_t)n, sizeof *blocks);
    for (int32_t i = 0; blocks && i < n; i++)
        blocks[i] = i;
    if (blocks)
        ck_shuffle(&r, blocks, n);
    for (int i = 0; blocks && i < 2 * k->pairs; i++)
        ck_i32(pairs)[i] = blocks[i];
    /* A block may be copied to two places. */
    if (k->pairs > 2)
        ck_i32(pairs)[2] = ck_i32(pairs)[0];
    free(blocks);
    /* Numbers everywhere but in every fifth token, which was never written. */
    for (int32_t s = 0; s < n * k->bs; s++)
        for (int32_t h = 0; s % 5 != 4 && h < k->kvh; h++)
            for (int32_t d = 0; d < k->hd; d++) {
                ck_pool_put(&pool, false, s, h, d, ck_uniform(&r, -2, 2));
                ck_pool_put(&pool, true, s, h, d, ck_uniform(&r, -2, 2));
            }
    ck_judge(c, p);
}

void ck_copy(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(copy_cases); i++)
        if (ck_in_size(c, copy_cases[i].set))
            copy_one(c, &copy_cases[i]);
}
