/* The OpenCL kernels of rope_append and copy_blocks against their references:
 * layouts, block and head sizes, types, segments. */
#include "support_op_pair.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EPS 0x1p-24

typedef struct kv_case {
    int32_t hd, bs, kv_heads;
    int32_t xk, yk, xv, yv;
    folio_kv_type type;
    int32_t segs; /* buffers a plane */
} kv_case;

typedef struct kv_mem {
    op_mem *k[FOLIO_KV_MAX_BUFS], *v[FOLIO_KV_MAX_BUFS];
    folio_kv_ref ref[2];
} kv_mem;

/* Blocks of the pool: two a segment, the last segment not full. */
static int32_t count_blocks(const kv_case *c)
{
    return c->segs == 1 ? 3 : 2 * c->segs - 1;
}

/* A pool of distinct bytes, an element before each plane's start. */
static void open_kv(op_pair *p, const kv_case *c, kv_mem *m)
{
    folio_kv_ref ref = {
        .type = c->type,
        .n_blocks = count_blocks(c),
        .block_size = c->bs,
        .kv_heads = c->kv_heads,
        .head_dim = c->hd,
    };
    ref.layout = folio_kv_layout_fit(
        (folio_kv_layout){c->xk, c->yk, c->xv, c->yv}, c->hd, c->bs);
    size_t elem = folio_kv_type_bytes(c->type);
    int32_t per_buf = c->segs == 1 ? ref.n_blocks : 2;
    size_t bytes = elem + (size_t)per_buf * folio_kv_block_bytes(&ref) + elem;
    ref.k.n_buf = ref.v.n_buf = c->segs;
    ref.k.seg_shift = ref.v.seg_shift = c->segs == 1 ? 31 : 1;
    ref.k.offset = ref.v.offset = elem;
    m->ref[ON_REF] = m->ref[ON_DEV] = ref;
    for (int i = 0; i < c->segs; i++) {
        m->k[i] = op_pair_mem_fill(p, "k pool", (uint8_t)(0xf0 + i), bytes);
        m->v[i] = op_pair_mem_fill(p, "v pool", (uint8_t)(0xe0 + i), bytes);
        for (size_t b = 0; b < bytes; b += 2) {
            m->k[i]->init[b] = (uint8_t)op_pair_u32(p, 256);
            m->v[i]->init[b] = (uint8_t)op_pair_u32(p, 256);
        }
        for (int s = 0; s < 2; s++) {
            m->ref[s].k.buf[i] = m->k[i]->buf[s];
            m->ref[s].v.buf[i] = m->v[i]->buf[s];
        }
    }
}

/* ---- rope_append ------------------------------------------------------------
 */

typedef struct rope_case {
    kv_case kv;
    int32_t heads; /* 0: no q */
    int32_t rot_dim, interleaved, n_tok;
} rope_case;

/* Distinct slots all over the pool, every fourth token padding. */
static void choose_slots(op_pair *p, int32_t n_slots, int32_t *slot, int32_t n)
{
    cr_assert_leq(n, n_slots);
    for (int32_t i = 0; i < n; i++) {
        bool taken = true;
        while (taken) {
            slot[i] = (int32_t)op_pair_u32(p, (uint32_t)n_slots);
            taken = false;
            for (int32_t j = 0; j < i; j++)
                taken = taken || slot[j] == slot[i];
        }
    }
    for (int32_t i = 3; i < n; i += 4)
        slot[i] = -1;
}

static void try_rope(op_pair *p, const rope_case *c)
{
    enum { N_POS = 40, MAX_TOK = 24 };
    char what[200];
    const kv_case *kv = &c->kv;
    snprintf(what, sizeof what,
             "rope_append HD %d BS %d KVH %d X %d,%d Y %d,%d type %d segs %d, "
             "H %d rot %d%s, %d tokens",
             kv->hd, kv->bs, kv->kv_heads, kv->xk, kv->xv, kv->yk, kv->yv,
             (int)kv->type, kv->segs, c->heads, c->rot_dim,
             c->interleaved ? " interleaved" : "", c->n_tok);
    kv_mem m;
    open_kv(p, kv, &m);
    double tol = kv->type == FOLIO_KV_F16 ? 0x1p-10 : 8 * EPS;
    for (int i = 0; i < kv->segs; i++)
        op_mem_within(m.k[i], kv->type == FOLIO_KV_F16 ? CMP_F16 : CMP_F32, tol,
                      kv->type == FOLIO_KV_F16 ? 1e-3 : 1.0);

    int32_t pos[MAX_TOK], slot[MAX_TOK], n = c->n_tok;
    cr_assert_leq(n, MAX_TOK);
    for (int32_t i = 0; i < n; i++)
        pos[i] = (int32_t)op_pair_u32(p, N_POS);
    pos[0] = N_POS - 1;
    choose_slots(p, count_blocks(kv) * kv->bs, slot, n);
    /* q, k and v in one row, as a fused projection leaves them. */
    int32_t q_width = c->heads * kv->hd, k_width = kv->kv_heads * kv->hd;
    int32_t stride = q_width + 2 * k_width + 3;
    op_mem *qkv = op_pair_mem_f32(p, "qkv", (size_t)n * (size_t)stride + 1);
    op_mem_within(qkv, CMP_F32, 8 * EPS, 1.0);
    op_mem *mpos = op_pair_mem(p, "pos", pos, (size_t)n * sizeof *pos);
    op_mem *mslot = op_pair_mem(p, "slot", slot, (size_t)n * sizeof *slot);
    op_mem *table =
        op_pair_mem_f32(p, "table", (size_t)(N_POS * (c->rot_dim + 1)));
    folio_rope_append_args a[2];
    for (int s = 0; s < 2; s++) {
        a[s] = (folio_rope_append_args){
            .k = op_mem_at(qkv, s, 4 + 4 * (size_t)q_width),
            .v = op_mem_at(qkv, s, 4 + 4 * (size_t)(q_width + k_width)),
            .q_stride = stride,
            .k_stride = stride,
            .v_stride = stride,
            .slot = op_mem_at(mslot, s, 0),
            .rot_dim = c->rot_dim,
            .interleaved = c->interleaved,
            .n_tok = n,
            .heads = c->heads,
            .kv = m.ref[s],
        };
        if (c->heads > 0)
            a[s].q = op_mem_at(qkv, s, 4);
        if (c->rot_dim > 0) {
            a[s].pos = op_mem_at(mpos, s, 0);
            a[s].table = op_mem_at(table, s, 4);
            a[s].n_pos = N_POS;
        }
    }
    op_pair_run(p, "ref_rope_append", "rope_append_wi", &a[ON_REF], &a[ON_DEV],
                NULL, what);
    op_pair_clear(p);
}

static const rope_case ropes[] = {
    /* {hd, bs, kvh, xk, yk, xv, yv, type, segs}, H, rot, interleaved, T */
    {{4, 1, 1, 4, 1, 4, 1, FOLIO_KV_F32, 1}, 1, 4, 0, 3},
    {{4, 4, 2, 8, 1, 8, 2, FOLIO_KV_F16, 2}, 2, 4, 1, 9},
    {{5, 3, 2, 1, 1, 5, 3, FOLIO_KV_F32, 1}, 2, 4, 0, 7},
    {{64, 16, 3, 8, 1, 8, 1, FOLIO_KV_F16, 1}, 9, 64, 0, 20},
    {{64, 16, 1, 1, 1, 64, 1, FOLIO_KV_F32, 4}, 0, 64, 0, 12},
    {{64, 4, 2, 8, 1, 64, 2, FOLIO_KV_F16, 4}, 7, 32, 1, 12},
    {{80, 16, 2, 8, 1, 80, 1, FOLIO_KV_F16, 2}, 4, 20, 0, 12},
    {{80, 1, 1, 80, 1, 80, 1, FOLIO_KV_F32, 2}, 3, 0, 0, 2},
    {{128, 16, 1, 8, 1, 8, 2, FOLIO_KV_F16, 1}, 4, 128, 0, 5},
    {{256, 32, 1, 8, 1, 256, 2, FOLIO_KV_F32, 1}, 2, 64, 0, 6},
    {{64, 16, 2, 8, 1, 8, 1, FOLIO_KV_F16, 3}, 4, 64, 0, 12},
};

Test(ops_cl, rope_append)
{
    op_pair p;
    op_pair_open(&p, 20);
    for (size_t i = 0; i < FOLIO_COUNT(ropes); i++)
        if (!p.small || i < 6)
            try_rope(&p, &ropes[i]);
    op_pair_close(&p);
}

/* Opened with shapes alone: the planes come at the run, however many. */
Test(ops_cl, rope_append_opened_without_memory)
{
    op_pair p;
    op_pair_open(&p, 21);
    const kv_case c = {8, 2, 1, 8, 1, 8, 1, FOLIO_KV_F32, 4};
    const folio_op_params prm = {.deterministic = true};
    for (int32_t segs = 1; segs <= 4; segs++) {
        kv_case one = c;
        one.segs = segs;
        kv_mem m;
        open_kv(&p, &one, &m);
        float k[8], tile[16];
        op_pair_floats(&p, k, 8);
        int32_t n_blocks = count_blocks(&one);
        int32_t slot = n_blocks * one.bs - 1; /* last of the last segment */
        op_mem *mk = op_pair_mem(&p, "k", k, sizeof k);
        op_mem *mslot = op_pair_mem(&p, "slot", &slot, sizeof slot);
        folio_queue *q = p.q[ON_DEV];
        folio_rope_append_args a = {.k_stride = 8, .v_stride = 8, .n_tok = 1};
        folio_op *op = NULL;
        a.kv = m.ref[ON_DEV];
        a.kv.k = a.kv.v = (folio_kv_plane){0};
        cr_assert_eq(folio_op_open_variant(p.dev[ON_DEV], "rope_append_wi",
                                           &prm, &a, &op),
                     FOLIO_OK);
        a.kv = m.ref[ON_DEV];
        a.k = a.v = op_mem_at(mk, ON_DEV, 0);
        a.slot = op_mem_at(mslot, ON_DEV, 0);
        cr_assert_eq(folio_queue_write(q, a.k, k, sizeof k), FOLIO_OK);
        cr_assert_eq(folio_queue_write(q, a.slot, &slot, sizeof slot),
                     FOLIO_OK);
        cr_assert_eq(folio_op_run(op, q, &a), FOLIO_OK);
        size_t at = (size_t)(segs == 1 ? n_blocks - 1 : 0) * sizeof tile;
        folio_view last = op_mem_at(m.k[segs - 1], ON_DEV, 4 + at);
        cr_assert_eq(folio_queue_read(q, last, tile, sizeof tile), FOLIO_OK);
        /* X 8, Y 1: a tile is [1][2 tokens][8 dims]. */
        cr_assert(memcmp(tile + 8, k, sizeof k) == 0, "%d segments", segs);
        folio_op_close(&op);
        op_pair_clear(&p);
    }
    op_pair_close(&p);
}

Test(ops_cl, rope_append_refuses_more_buffers_than_opened_for)
{
    op_pair p;
    op_pair_open(&p, 22);
    const kv_case c = {8, 2, 1, 8, 1, 8, 1, FOLIO_KV_F32, 2};
    const folio_op_params prm = {.deterministic = true};
    kv_mem m;
    open_kv(&p, &c, &m);
    op_mem *k = op_pair_mem_f32(&p, "k", 8);
    op_mem *slot = op_pair_mem_fill(&p, "slot", 0, 4);
    folio_rope_append_args a = {.k_stride = 8, .v_stride = 8, .n_tok = 1};
    a.kv = m.ref[ON_DEV];
    a.k = a.v = op_mem_at(k, ON_DEV, 0);
    a.slot = op_mem_at(slot, ON_DEV, 0);
    a.kv.n_blocks = 2;
    a.kv.k.n_buf = a.kv.v.n_buf = 1;
    folio_op *op = NULL;
    cr_assert_eq(
        folio_op_open_variant(p.dev[ON_DEV], "rope_append_wi", &prm, &a, &op),
        FOLIO_OK);
    a.kv = m.ref[ON_DEV];
    cr_expect_eq(folio_op_run(op, p.q[ON_DEV], &a), FOLIO_E_INVAL);
    folio_op_close(&op);
    a.kv.type = FOLIO_KV_I8;
    cr_expect_eq(
        folio_op_open_variant(p.dev[ON_DEV], "rope_append_wi", &prm, &a, &op),
        FOLIO_E_UNSUPPORTED);
    op_pair_close(&p);
}

/* ---- copy_blocks
 * ------------------------------------------------------------- */

static void try_copy(op_pair *p, const kv_case *c)
{
    char what[120];
    snprintf(what, sizeof what, "copy_blocks HD %d BS %d type %d segs %d",
             c->hd, c->bs, (int)c->type, c->segs);
    kv_mem m;
    open_kv(p, c, &m);
    int32_t last = count_blocks(c) - 1;
    const int32_t pairs[] = {0, last, 0, last - 1};
    op_mem *at = op_pair_mem(p, "pairs", pairs, sizeof pairs);
    folio_copy_blocks_args a[2];
    for (int s = 0; s < 2; s++)
        a[s] = (folio_copy_blocks_args){
            .pairs = op_mem_at(at, s, 0), .n_pairs = 2, .kv = m.ref[s]};
    op_pair_run(p, "ref_copy_blocks", "copy_blocks_wi", &a[ON_REF], &a[ON_DEV],
                NULL, what);
    op_pair_clear(p);
}

static const kv_case copies[] = {
    {4, 1, 1, 4, 1, 4, 1, FOLIO_KV_F16, 1},
    {5, 3, 2, 1, 1, 5, 3, FOLIO_KV_F32, 2},
    {64, 16, 3, 8, 1, 64, 2, FOLIO_KV_F16, 4},
    {80, 16, 2, 8, 1, 8, 1, FOLIO_KV_F32, 3},
};

Test(ops_cl, copy_blocks)
{
    op_pair p;
    op_pair_open(&p, 23);
    for (size_t i = 0; i < FOLIO_COUNT(copies); i++)
        try_copy(&p, &copies[i]);
    op_pair_close(&p);
}

/* ---- small work-groups ------------------------------------------------------
 */

static void try_capped(const char *cap)
{
    op_pair p;
    op_pair_cap_work_groups(cap);
    op_pair_open(&p, 24);
    for (size_t i = 1; i < 5; i++)
        try_rope(&p, &ropes[i]);
    try_copy(&p, &copies[1]);
    try_copy(&p, &copies[2]);
    op_pair_close(&p);
}

Test(ops_cl_capped, kv_work_groups_of_1)
{
    try_capped("1");
}

Test(ops_cl_capped, kv_work_groups_of_16)
{
    try_capped("16");
}

Test(ops_cl_capped, kv_work_groups_of_64)
{
    try_capped("64");
}
