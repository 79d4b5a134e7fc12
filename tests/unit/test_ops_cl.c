/* The OpenCL kernels of embed, gather_rows, rmsnorm, act_mul, add and topk
 * against their references, on PoCL or the device that FOLIO_DEVICE names. */
#include "support_op_pair.h"

#include "base/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EPS 0x1p-24

/* ---- act_mul, add ----------------------------------------------------------
 */

static void try_act(op_pair *p, folio_act act, int32_t n_tok, int32_t dim,
                    int32_t pad, int alias)
{
    char what[120];
    snprintf(what, sizeof what, "act_mul act %d, %d x %d + %d, alias %d",
             (int)act, n_tok, dim, pad, alias);
    int32_t stride = dim + pad;
    size_t n = (size_t)n_tok * (size_t)stride;
    op_mem *gate = op_pair_mem_f32(p, "gate", n + 1);
    op_mem *up = op_pair_mem_f32(p, "up", n + 1);
    op_mem *out = op_pair_mem_fill(p, "out", 0xff, (n + 1) * sizeof(float));
    float *g = (float *)(void *)gate->init;
    for (size_t i = 0; i < n; i++)
        g[i] *= i % 3 == 0 ? 20.0f : 2.0f;
    if (n > 8) {
        g[3] = -120.0f;
        g[5] = 1e4f;
        g[7] = -1e15f;
        g[8] = 0.0f;
    }
    op_mem *to = alias == 1 ? gate : alias == 2 ? up : out;
    op_mem_within(to, CMP_F32, 64 * EPS, 1e-30);
    /* A large |u| in e^u costs its own size in relative accuracy. */
    if (act == FOLIO_ACT_GELU_TANH)
        op_mem_within(to, CMP_F32, 2000 * EPS, 1e-6);
    folio_act_mul_args a[2];
    for (int s = 0; s < 2; s++)
        a[s] = (folio_act_mul_args){
            .gate = op_mem_at(gate, s, 4),
            .up = op_mem_at(up, s, 4),
            .out = op_mem_at(to, s, 4),
            .n_tok = n_tok,
            .dim = dim,
            .gate_stride = stride,
            .up_stride = stride,
            .out_stride = stride,
            .act = act,
        };
    op_pair_run(p, "ref_act_mul", "act_mul_wi", &a[ON_REF], &a[ON_DEV], NULL,
                what);
    op_pair_clear(p);
}

static void try_add(op_pair *p, size_t n, bool same)
{
    op_mem *x = op_pair_mem_f32(p, "x", n + 2);
    op_mem *y = op_pair_mem_f32(p, "y", n + 2);
    folio_add_args a[2];
    for (int s = 0; s < 2; s++)
        a[s] = (folio_add_args){.x = op_mem_at(x, s, 4),
                                .y = op_mem_at(same ? x : y, s, 4),
                                .n = (int64_t)n};
    op_pair_run(p, "ref_add", "add_wi", &a[ON_REF], &a[ON_DEV], NULL, "add");
    op_pair_clear(p);
}

static void try_elementwise(op_pair *p)
{
    for (int act = 0; act < 2; act++) {
        try_act(p, (folio_act)act, 1, 1, 0, 0);
        try_act(p, (folio_act)act, 3, 37, 5, 0);
        try_act(p, (folio_act)act, 2, 300, 0, 1);
        try_act(p, (folio_act)act, 2, 64, 1, 2);
    }
    try_add(p, 1, false);
    try_add(p, 513, false);
    try_add(p, 100, true);
}

Test(ops_cl, act_mul_and_add)
{
    op_pair p;
    op_pair_open(&p, 1);
    try_elementwise(&p);
    if (!p.small) {
        try_act(&p, FOLIO_ACT_SILU, 33, 1536, 0, 0);
        try_act(&p, FOLIO_ACT_GELU_TANH, 17, 1000, 24, 0);
        try_add(&p, 100003, false);
    }
    op_pair_close(&p);
}

/* ---- rmsnorm ----------------------------------------------------------------
 */

static void try_norm(op_pair *p, const char *variant, int32_t n_rows,
                     int32_t dim, int32_t pad, bool res, bool alias, float eps)
{
    char what[120];
    snprintf(what, sizeof what, "%s %d x %d + %d, res %d, alias %d", variant,
             n_rows, dim, pad, res, alias);
    size_t rows = (size_t)n_rows, stride = (size_t)(dim + pad);
    op_mem *x = op_pair_mem_f32(p, "x", rows * stride + 1);
    op_mem *r = op_pair_mem_f32(p, "res", rows * (size_t)dim + 1);
    op_mem *w = op_pair_mem_f32(p, "w", (size_t)dim + 1);
    op_mem *out =
        op_pair_mem_fill(p, "out", 0xff, (rows * stride + 1) * sizeof(float));
    op_mem *to = alias ? x : out;
    op_mem_within(to, CMP_F32, (8 + dim / 64.0) * EPS, 0);
    folio_rmsnorm_args a[2];
    for (int s = 0; s < 2; s++)
        a[s] = (folio_rmsnorm_args){
            .x = op_mem_at(x, s, 4),
            .res = res ? op_mem_at(r, s, 4) : (folio_view){0},
            .w = op_mem_at(w, s, 4),
            .out = op_mem_at(to, s, 4),
            .n_rows = n_rows,
            .dim = dim,
            .x_stride = dim + pad,
            .out_stride = dim + pad,
            .eps = eps,
        };
    op_pair_run(p, "ref_rmsnorm", variant, &a[ON_REF], &a[ON_DEV], NULL, what);
    op_pair_clear(p);
}

static void try_norms(op_pair *p)
{
    static const char *const variants[] = {"rmsnorm_row", "rmsnorm_wg"};
    for (int v = 0; v < 2; v++) {
        if (!op_pair_can(p, variants[v]))
            continue;
        try_norm(p, variants[v], 1, 1, 0, false, false, 1e-5f);
        try_norm(p, variants[v], 3, 37, 2, true, false, 1e-6f);
        try_norm(p, variants[v], 2, 48, 0, true, true, 0.0f);
        try_norm(p, variants[v], 2, 576, 0, false, true, 1e-5f);
        if (!p->small)
            try_norm(p, variants[v], 19, 4099, 13, true, false, 1e-5f);
    }
}

Test(ops_cl, rmsnorm)
{
    op_pair p;
    op_pair_open(&p, 2);
    try_norms(&p);
    op_pair_close(&p);
}

/* A row's bits are the same alone and among others. */
Test(ops_cl, rmsnorm_of_a_row_alone)
{
    op_pair p;
    op_pair_open(&p, 3);
    enum { ROWS = 5, DIM = 613 };
    static const char *const variants[] = {"rmsnorm_row", "rmsnorm_wg"};
    const folio_op_params prm = {.deterministic = true};
    float all[ROWS * DIM], alone[DIM];
    op_mem *x = op_pair_mem_f32(&p, "x", ROWS * DIM);
    op_mem *w = op_pair_mem_f32(&p, "w", DIM);
    op_mem *out = op_pair_mem_fill(&p, "out", 0xff, sizeof all);
    folio_queue *q = p.q[ON_DEV];
    for (int i = 0; i < p.n_mem; i++)
        cr_assert_eq(folio_queue_write(q, op_mem_at(&p.mem[i], ON_DEV, 0),
                                       p.mem[i].init, p.mem[i].bytes),
                     FOLIO_OK);
    for (int v = 0; v < 2; v++) {
        folio_rmsnorm_args a = {
            .x = op_mem_at(x, ON_DEV, 0),
            .w = op_mem_at(w, ON_DEV, 0),
            .out = op_mem_at(out, ON_DEV, 0),
            .n_rows = ROWS,
            .dim = DIM,
            .x_stride = DIM,
            .out_stride = DIM,
            .eps = 1e-5f,
        };
        folio_op *op = NULL;
        if (!op_pair_can(&p, variants[v]))
            continue;
        cr_assert_eq(
            folio_op_open_variant(p.dev[ON_DEV], variants[v], &prm, &a, &op),
            FOLIO_OK);
        cr_assert_eq(folio_op_run(op, q, &a), FOLIO_OK);
        cr_assert_eq(folio_queue_read(q, a.out, all, sizeof all), FOLIO_OK);
        for (size_t r = 0; r < ROWS; r++) {
            a.n_rows = 1;
            a.x = op_mem_at(x, ON_DEV, r * DIM * sizeof(float));
            cr_assert_eq(folio_op_run(op, q, &a), FOLIO_OK);
            cr_assert_eq(folio_queue_read(q, a.out, alone, sizeof alone),
                         FOLIO_OK);
            cr_assert(memcmp(alone, all + r * DIM, sizeof alone) == 0,
                      "%s: row %zu alone differs", variants[v], r);
        }
        folio_op_close(&op);
    }
    op_pair_close(&p);
}

/* ---- gather_rows, embed ----------------------------------------------------
 */

static void try_gather(op_pair *p, int32_t x_rows, int32_t n_rows, int32_t dim)
{
    int32_t idx[64];
    cr_assert_leq(n_rows, 64);
    for (int32_t r = 0; r < n_rows; r++)
        idx[r] = (int32_t)op_pair_u32(p, (uint32_t)x_rows);
    idx[0] = x_rows - 1;
    op_mem *x = op_pair_mem_f32(p, "x", (size_t)x_rows * (size_t)dim);
    op_mem *at = op_pair_mem(p, "idx", idx, (size_t)n_rows * sizeof *idx);
    op_mem *out = op_pair_mem_fill(p, "out", 0xff,
                                   (size_t)(n_rows * dim + 3) * sizeof(float));
    folio_gather_rows_args a[2];
    for (int s = 0; s < 2; s++)
        a[s] = (folio_gather_rows_args){.x = op_mem_at(x, s, 0),
                                        .idx = op_mem_at(at, s, 0),
                                        .out = op_mem_at(out, s, 4),
                                        .n_rows = n_rows,
                                        .dim = dim};
    op_pair_run(p, "ref_gather_rows", "gather_rows_wi", &a[ON_REF], &a[ON_DEV],
                NULL, "gather_rows");
    op_pair_clear(p);
}

static void try_gathers(op_pair *p)
{
    try_gather(p, 1, 1, 1);
    try_gather(p, 7, 5, 33);
    try_gather(p, 20, 9, 300);
}

Test(ops_cl, gather_rows)
{
    op_pair p;
    op_pair_open(&p, 4);
    try_gathers(&p);
    op_pair_close(&p);
}

/* Bytes that are no number of the type are avoided: scales stay finite. */
static void fill_weight(op_pair *p, folio_type type, uint8_t *data, size_t n)
{
    const folio_type_info *info = folio_type_find((uint32_t)type);
    for (size_t i = 0; i < n; i++)
        data[i] = (uint8_t)op_pair_u32(p, 256);
    for (size_t b = 0; b + info->block_bytes <= n; b += info->block_bytes)
        for (size_t i = 0; i + 1 < info->block_bytes; i++)
            /* Upper byte of a half or of a bfloat16 whose exponent is all ones
             * would be infinity or NaN; so would one of MXFP4's scale. */
            data[b + i] &= (data[b + i] & 0x7c) == 0x7c ? 0xbf : 0xff;
    if (type == FOLIO_TYPE_MXFP4)
        for (size_t b = 0; b < n; b += info->block_bytes)
            data[b] = (uint8_t)(100 + data[b] % 50);
    if (type != FOLIO_TYPE_F32 && type != FOLIO_TYPE_BF16)
        return;
    for (size_t i = 0; i < n / info->block_bytes; i++) {
        float f = op_pair_f32(p);
        memcpy(data + i * info->block_bytes,
               (uint8_t *)&f + 4 - info->block_bytes, info->block_bytes);
    }
}

static void try_embed(op_pair *p, folio_type type, int32_t rows, int32_t cols,
                      int32_t n_tok, int32_t n_views, float scale)
{
    char what[120];
    const folio_type_info *info = folio_type_find((uint32_t)type);
    snprintf(what, sizeof what, "embed %s %d x %d, %d views", info->name, rows,
             cols, n_views);
    size_t row_bytes = folio_type_row_bytes(type, (uint64_t)cols);
    size_t bytes = (size_t)rows * row_bytes;
    uint8_t *data = malloc(bytes);
    int32_t ids[40];
    cr_assert(data && n_tok <= 40 && row_bytes > 0 && n_views <= 3);
    fill_weight(p, type, data, bytes);
    for (int32_t t = 0; t < n_tok; t++)
        ids[t] = (int32_t)op_pair_u32(p, (uint32_t)rows);
    ids[0] = rows - 1;
    op_mem *w[3]; /* a buffer for each view, between rows of ones */
    for (int32_t i = 0; i < n_views; i++) {
        size_t from = (size_t)(rows * i / n_views) * row_bytes;
        size_t n = (size_t)(rows * (i + 1) / n_views) * row_bytes - from;
        w[i] = op_pair_mem_fill(p, "w", 0xff, n + 2 * row_bytes);
        memcpy(w[i]->init + row_bytes, data + from, n);
    }
    op_mem *at = op_pair_mem(p, "ids", ids, (size_t)n_tok * sizeof *ids);
    op_mem *out = op_pair_mem_fill(
        p, "out", 0xff, ((size_t)n_tok * (size_t)cols + 2) * sizeof(float));
    /* Minima that are subtracted may be fused into the product. */
    op_mem_within(out, CMP_F32, 4 * EPS, 1e-3);
    folio_weight_view views[2][3];
    folio_weight weight[2];
    folio_embed_args a[2];
    for (int s = 0; s < 2; s++) {
        for (int32_t i = 0; i < n_views; i++) {
            int32_t first = rows * i / n_views, end = rows * (i + 1) / n_views;
            views[s][i] =
                (folio_weight_view){.view = op_mem_at(w[i], s, row_bytes),
                                    .first_row = first,
                                    .rows = end - first};
        }
        weight[s] = (folio_weight){.type = type,
                                   .rows = rows,
                                   .cols = cols,
                                   .views = views[s],
                                   .n_views = n_views};
        a[s] = (folio_embed_args){.ids = op_mem_at(at, s, 0),
                                  .w = &weight[s],
                                  .out = op_mem_at(out, s, 4),
                                  .scale = scale,
                                  .n_tok = n_tok};
    }
    op_pair_run(p, "ref_embed", "embed_group", &a[ON_REF], &a[ON_DEV], NULL,
                what);
    op_pair_clear(p);
    free(data);
}

static const folio_type embed_types[] = {
    FOLIO_TYPE_F32,  FOLIO_TYPE_F16,    FOLIO_TYPE_BF16,   FOLIO_TYPE_Q4_0,
    FOLIO_TYPE_Q4_1, FOLIO_TYPE_Q5_0,   FOLIO_TYPE_Q5_1,   FOLIO_TYPE_Q8_0,
    FOLIO_TYPE_Q2_K, FOLIO_TYPE_Q3_K,   FOLIO_TYPE_Q4_K,   FOLIO_TYPE_Q5_K,
    FOLIO_TYPE_Q6_K, FOLIO_TYPE_IQ4_NL, FOLIO_TYPE_IQ4_XS, FOLIO_TYPE_MXFP4,
};

Test(ops_cl, embed_every_type)
{
    op_pair p;
    op_pair_open(&p, 5);
    for (size_t i = 0; i < FOLIO_COUNT(embed_types); i++) {
        uint32_t block =
            folio_type_find((uint32_t)embed_types[i])->block_values;
        int32_t cols = block == 1 ? 77 : (int32_t)block * 3;
        try_embed(&p, embed_types[i], 9, cols, 5, 1, 1.0f);
    }
    op_pair_close(&p);
}

Test(ops_cl, embed_views_and_scale)
{
    op_pair p;
    op_pair_open(&p, 6);
    try_embed(&p, FOLIO_TYPE_Q8_0, 50, 576, 40, 2, 1.0f);
    try_embed(&p, FOLIO_TYPE_Q8_0, 7, 64, 40, 3, 25.3f);
    try_embed(&p, FOLIO_TYPE_F32, 3, 31, 2, 1, 0.5f);
    op_pair_close(&p);
}

/* ---- topk
 * -------------------------------------------------------------------- */

typedef enum row_kind {
    ROW_RANDOM,
    ROW_EQUAL,
    ROW_ZEROS, /* of both signs, and the smallest numbers */
    ROW_NANS,  /* every third */
    ROW_ALL_NAN,
    ROW_FEW, /* two numbers, the rest NaN */
    ROW_INFINITE,
    ROW_KINDS
} row_kind;

static void fill_row(op_pair *p, row_kind kind, float *x, int32_t n)
{
    op_pair_floats(p, x, (size_t)n);
    for (int32_t i = 0; i < n; i++) {
        uint32_t nan = 0x7fc00000u | (i % 2 ? 0x80000000u : 0) | (uint32_t)i;
        uint32_t sign = op_pair_u32(p, 2) << 31;
        if (kind == ROW_EQUAL)
            x[i] = -1.5f;
        else if (kind == ROW_ZEROS)
            x[i] = folio_bits_f32(sign | (i % 5 == 3));
        else if (kind == ROW_INFINITE)
            x[i] = i % 7 == 6 ? x[i] : folio_bits_f32(sign | 0x7f800000u);
        else if (kind == ROW_ALL_NAN || (kind == ROW_NANS && i % 3 == 0) ||
                 (kind == ROW_FEW && i != n / 2 && i != n - 1))
            x[i] = folio_bits_f32(nan);
    }
}

static void try_topk(op_pair *p, const char *variant, int32_t n_vocab,
                     int32_t k)
{
    char what[120];
    snprintf(what, sizeof what, "%s V %d, k %d", variant, n_vocab, k);
    size_t n = (size_t)ROW_KINDS * (size_t)n_vocab;
    float *x = malloc(n * sizeof *x);
    cr_assert_not_null(x);
    for (int kind = 0; kind < ROW_KINDS; kind++)
        fill_row(p, (row_kind)kind, x + (size_t)kind * (size_t)n_vocab,
                 n_vocab);
    size_t best = (ROW_KINDS * (size_t)k + 2) * 4;
    op_mem *mx = op_pair_mem(p, "x", x, n * sizeof *x);
    op_mem *ids = op_pair_mem_fill(p, "ids", 0x55, best);
    op_mem *values = op_pair_mem_fill(p, "values", 0x55, best);
    op_mem *nans = op_pair_mem_fill(p, "n_nan", 0x55, (ROW_KINDS + 2) * 4);
    folio_topk_args a[2];
    for (int s = 0; s < 2; s++)
        a[s] = (folio_topk_args){.x = op_mem_at(mx, s, 0),
                                 .ids = op_mem_at(ids, s, 4),
                                 .values = op_mem_at(values, s, 4),
                                 .n_nan = op_mem_at(nans, s, 4),
                                 .n_rows = ROW_KINDS,
                                 .n_vocab = n_vocab,
                                 .k = k};
    op_pair_run(p, "ref_topk", variant, &a[ON_REF], &a[ON_DEV],
                &a[ON_DEV].scratch, what);
    op_pair_clear(p);
    free(x);
}

static void try_topks(op_pair *p)
{
    static const char *const variants[] = {"topk_scan", "topk_wg"};
    for (int v = 0; v < 2; v++) {
        if (!op_pair_can(p, variants[v]))
            continue;
        try_topk(p, variants[v], 1, 1);
        try_topk(p, variants[v], 3, 8); /* fewer than k */
        try_topk(p, variants[v], 301, 3);
        if (p->small)
            continue;
        try_topk(p, variants[v], 2049, 1);
        try_topk(p, variants[v], 9000, 20);
        try_topk(p, variants[v], 4096, 64);
    }
}

Test(ops_cl, topk)
{
    op_pair p;
    op_pair_open(&p, 7);
    try_topks(&p);
    if (!p.small) {
        try_topk(&p, "topk_wg", 128256, 1);
        if (op_pair_can(&p, "topk_scan"))
            try_topk(&p, "topk_scan", 128256, 1);
    }
    op_pair_close(&p);
}

/* ---- small work-groups ------------------------------------------------------
 */

static void try_capped(const char *cap)
{
    op_pair p;
    op_pair_cap_work_groups(cap);
    op_pair_open(&p, 8);
    try_elementwise(&p);
    try_norms(&p);
    try_gathers(&p);
    try_topks(&p);
    try_embed(&p, FOLIO_TYPE_Q8_0, 50, 576, 40, 2, 1.0f);
    try_embed(&p, FOLIO_TYPE_F16, 3, 33, 2, 1, 0.5f);
    op_pair_close(&p);
}

Test(ops_cl_capped, work_groups_of_1)
{
    try_capped("1");
}

Test(ops_cl_capped, work_groups_of_16)
{
    try_capped("16");
}

Test(ops_cl_capped, work_groups_of_64)
{
    try_capped("64");
}
