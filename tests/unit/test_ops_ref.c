/* The references against formulas written out naively here and against values
 * made by hand. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "ops/rope.h"
#include "ops_bed.h"

static void expect_near(const float *got, const double *want, size_t n,
                        double tol, const char *what)
{
    for (size_t i = 0; i < n; i++)
        cr_expect(fabs((double)got[i] - want[i]) <= tol, "%s[%zu]: %g for %g",
                  what, i, (double)got[i], want[i]);
}

/* ---- rmsnorm ---- */

/* [3, 4] has a mean square of 12.5. */
Test(ops_ref, rmsnorm_by_hand)
{
    bed b;
    bed_open(&b, 1, 1);
    folio_rmsnorm_args a = {
        .n_rows = 2, .dim = 2, .x_stride = 3, .out_stride = 2};
    float *x = bed_zeros(&b, 5, &a.x);
    float *w = bed_zeros(&b, 2, &a.w);
    float *out = bed_poison(&b, 4, &a.out);
    memcpy(x, (float[5]){3, 4, 99, 1, 1}, 5 * sizeof *x);
    memcpy(w, (float[2]){1, 2}, 2 * sizeof *w);
    cr_assert_eq(bed_run(&b, "ref_rmsnorm", &a), FOLIO_OK, "%s", b.log);
    const double want[4] = {3 / sqrt(12.5), 2 * 4 / sqrt(12.5), 1, 2};
    expect_near(out, want, 4, 1e-6, "out");
    bed_close(&b);
}

/* Unit gain gives an output of RMS 1; eps counts inside the root. */
Test(ops_ref, rmsnorm_wide_and_eps)
{
    bed b;
    bed_open(&b, 1, 2);
    folio_rmsnorm_args a = {
        .n_rows = 1, .dim = 2048, .x_stride = 2048, .out_stride = 2048};
    float *x = bed_floats(&b, 2048, &a.x);
    float *w = bed_zeros(&b, 2048, &a.w);
    float *out = bed_poison(&b, 2048, &a.out);
    double square = 0, mean = 0;
    for (int i = 0; i < 2048; i++) {
        x[i] += 3;
        w[i] = 1;
        mean += (double)x[i] * (double)x[i] / 2048;
    }
    cr_assert_eq(bed_run(&b, "ref_rmsnorm", &a), FOLIO_OK, "%s", b.log);
    for (int i = 0; i < 2048; i++)
        square += (double)out[i] * (double)out[i];
    cr_expect(fabs(sqrt(square / 2048) - 1) < 1e-3);
    a.eps = 0.5f;
    cr_assert_eq(bed_run(&b, "ref_rmsnorm", &a), FOLIO_OK, "%s", b.log);
    cr_expect(fabs((double)out[7] - (double)x[7] / sqrt(mean + 0.5)) < 1e-6);
    bed_close(&b);
}

/* All ones give the gain; the residual is added first and kept. */
Test(ops_ref, rmsnorm_residual)
{
    bed b;
    bed_open(&b, 1, 3);
    folio_rmsnorm_args a = {
        .n_rows = 2, .dim = 3, .x_stride = 3, .out_stride = 3};
    float *x = bed_floats(&b, 6, &a.x);
    float *res = bed_zeros(&b, 6, &a.res);
    float *w = bed_floats(&b, 3, &a.w);
    float *out = bed_poison(&b, 6, &a.out);
    for (int i = 0; i < 6; i++)
        res[i] = 1 - x[i];
    cr_assert_eq(bed_run(&b, "ref_rmsnorm", &a), FOLIO_OK, "%s", b.log);
    for (int i = 0; i < 6; i++) {
        cr_expect(fabs((double)res[i] - 1) < 1e-6);
        cr_expect(fabs((double)(out[i] - w[i % 3])) < 1e-6);
    }
    bed_close(&b);
}

/* ---- rope ---- */

/* A quarter turn takes [1, 2, 3, 4] to [-3, -4, 1, 2] with split halves, and to
 * [-2, 1, -4, 3] with adjacent pairs; dims behind rot_dim stay. */
static void turn_quarter(int interleaved, const double want[6])
{
    bed b;
    bed_open(&b, 1, 4);
    folio_rope_append_args a = {.q_stride = 6,
                                .k_stride = 6,
                                .v_stride = 6,
                                .n_pos = 1,
                                .rot_dim = 4,
                                .interleaved = interleaved,
                                .n_tok = 1,
                                .heads = 1,
                                .kv = {.type = FOLIO_KV_F32,
                                       .layout = {6, 1, 6, 1},
                                       .n_blocks = 1,
                                       .block_size = 1,
                                       .kv_heads = 1,
                                       .head_dim = 6}};
    const float row[6] = {1, 2, 3, 4, 5, 6};
    float *q = bed_zeros(&b, 6, &a.q);
    float *k = bed_zeros(&b, 6, &a.k);
    float *v = bed_zeros(&b, 6, &a.v);
    float *table = bed_zeros(&b, 4, &a.table);
    const int32_t zero = 0;
    bed_ints(&b, &zero, 1, &a.pos);
    bed_ints(&b, &zero, 1, &a.slot);
    bed_kv(&b, &a.kv, 1, 31);
    memcpy(q, row, sizeof row);
    memcpy(k, row, sizeof row);
    memcpy(v, row, sizeof row);
    memcpy(table, (float[4]){0, 1, 0, 1}, 4 * sizeof *table);
    cr_assert_eq(bed_run(&b, "ref_rope_append", &a), FOLIO_OK, "%s", b.log);
    expect_near(q, want, 6, 0, "q");
    for (int d = 0; d < 6; d++) {
        cr_expect_eq((double)bed_kv_at(&a.kv, true, 0, 0, d), want[d]);
        cr_expect_eq(bed_kv_at(&a.kv, false, 0, 0, d), row[d]);
        cr_expect_eq(k[d], row[d], "k was written back");
    }
    bed_close(&b);
}

Test(ops_ref, rope_quarter_turns)
{
    turn_quarter(0, (double[6]){-3, -4, 1, 2, 5, 6});
    turn_quarter(1, (double[6]){-2, 1, -4, 3, 5, 6});
}

/* Position 7 of the Llama-3.2-1B table against direct rotation. */
Test(ops_ref, rope_with_table)
{
    folio_rope_params p = {.theta = 500000,
                           .rot_dim = 64,
                           .scaling = FOLIO_ROPE_LLAMA3,
                           .factor = 32,
                           .low = 1,
                           .high = 4,
                           .original_ctx = 8192};
    bed b;
    bed_open(&b, 1, 5);
    folio_rope_append_args a = {.q_stride = 256,
                                .k_stride = 128,
                                .v_stride = 128,
                                .n_pos = 8,
                                .rot_dim = 64,
                                .n_tok = 1,
                                .heads = 4,
                                .kv = {.type = FOLIO_KV_F32,
                                       .layout = {8, 1, 64, 2},
                                       .n_blocks = 2,
                                       .block_size = 4,
                                       .kv_heads = 2,
                                       .head_dim = 64}};
    float *q = bed_floats(&b, 256, &a.q), before[256];
    float *k = bed_floats(&b, 128, &a.k);
    bed_floats(&b, 128, &a.v);
    float *table = bed_zeros(&b, 8 * 64, &a.table);
    const int32_t pos = 7, slot = 6;
    bed_ints(&b, &pos, 1, &a.pos);
    bed_ints(&b, &slot, 1, &a.slot);
    bed_kv(&b, &a.kv, 1, 31);
    memcpy(before, q, sizeof before);
    cr_assert_eq(folio_rope_table(NULL, &p, 8, table), FOLIO_OK);
    cr_assert_eq(bed_run(&b, "ref_rope_append", &a), FOLIO_OK, "%s", b.log);
    double f[32];
    cr_assert_eq(folio_rope_inv_freq(NULL, &p, f, NULL), FOLIO_OK);
    for (int h = 0; h < 4; h++)
        for (int i = 0; i < 32; i++) {
            double c = cos(7 * f[i]), s = sin(7 * f[i]);
            const float *x = before + 64 * h, *y = q + 64 * h;
            double want[2] = {(double)x[i] * c - (double)x[i + 32] * s,
                              (double)x[i + 32] * c + (double)x[i] * s};
            cr_expect(fabs((double)y[i] - want[0]) < 1e-6);
            cr_expect(fabs((double)y[i + 32] - want[1]) < 1e-6);
            if (h >= 2)
                continue;
            const float *kx = k + 64 * h;
            double kw = (double)kx[i + 32] * c + (double)kx[i] * s;
            float got = bed_kv_at(&a.kv, true, 6, h, i + 32);
            cr_expect(fabs((double)got - kw) < 1e-6);
        }
    bed_close(&b);
}

/* ---- activation, add, embed, gather ---- */

Test(ops_ref, swiglu)
{
    bed b;
    bed_open(&b, 1, 6);
    folio_act_mul_args a = {.n_tok = 3,
                            .dim = 5,
                            .gate_stride = 5,
                            .up_stride = 7,
                            .out_stride = 6};
    float *gate = bed_floats(&b, 15, &a.gate);
    float *up = bed_floats(&b, 19, &a.up);
    float *out = bed_poison(&b, 17, &a.out);
    gate[0] = -200; /* e^200 overflows float */
    gate[1] = 200;
    cr_assert_eq(bed_run(&b, "ref_act_mul", &a), FOLIO_OK, "%s", b.log);
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 5; i++) {
            double g = (double)gate[5 * t + i], u = (double)up[7 * t + i];
            double want = g / (1 + exp(-g)) * u;
            cr_expect(fabs((double)out[6 * t + i] - want) <=
                          1e-6 * (1 + fabs(want)),
                      "%d %d", t, i);
        }
    /* The trap: gate and up are not alike. */
    float kept = out[6 * 2 + 3];
    folio_view swap = a.gate;
    a.gate = a.up;
    a.up = swap;
    a.gate_stride = 7;
    a.up_stride = 5;
    cr_assert_eq(bed_run(&b, "ref_act_mul", &a), FOLIO_OK, "%s", b.log);
    cr_expect(fabs((double)(out[6 * 2 + 3] - kept)) > 1e-4);
    bed_close(&b);
}

/* Values of GELU's tanh form, computed to 20 digits elsewhere by its series. */
Test(ops_ref, geglu)
{
    bed b;
    bed_open(&b, 1, 7);
    folio_act_mul_args a = {.n_tok = 1,
                            .dim = 4,
                            .gate_stride = 4,
                            .up_stride = 4,
                            .out_stride = 4,
                            .act = FOLIO_ACT_GELU_TANH};
    float *gate = bed_zeros(&b, 4, &a.gate);
    float *up = bed_zeros(&b, 4, &a.up);
    float *out = bed_poison(&b, 4, &a.out);
    memcpy(gate, (float[4]){0, 1, -1, 3}, 4 * sizeof *gate);
    for (int i = 0; i < 4; i++)
        up[i] = 2;
    cr_assert_eq(bed_run(&b, "ref_act_mul", &a), FOLIO_OK, "%s", b.log);
    const double want[4] = {0, 2 * 0.84119199060, 2 * -0.15880800939,
                            2 * 2.99636260729};
    expect_near(out, want, 4, 1e-6, "gelu");
    bed_close(&b);
}

Test(ops_ref, add_embed_gather)
{
    bed b;
    bed_open(&b, 1, 8);
    folio_add_args add = {.n = 3};
    float *x = bed_zeros(&b, 3, &add.x), *y = bed_zeros(&b, 3, &add.y);
    memcpy(x, (float[3]){1, 2, 3}, sizeof(float[3]));
    memcpy(y, (float[3]){10, 20, 30}, sizeof(float[3]));
    cr_assert_eq(bed_run(&b, "ref_add", &add), FOLIO_OK, "%s", b.log);
    expect_near(y, (double[3]){11, 22, 33}, 3, 0, "y");

    folio_weight w;
    folio_weight_view views[3];
    bed_weight(&b, FOLIO_TYPE_Q4_K, 7, 512, 3, &w, views);
    const int32_t ids[4] = {6, 0, 3, 6};
    folio_embed_args e = {.w = &w, .scale = 25.5f, .n_tok = 4};
    bed_ints(&b, ids, 4, &e.ids);
    float *out = bed_poison(&b, 4 * 512, &e.out), row[512];
    cr_assert_eq(bed_run(&b, "ref_embed", &e), FOLIO_OK, "%s", b.log);
    for (int t = 0; t < 4; t++) {
        folio_weight_row(&w, ids[t], row);
        for (int i = 0; i < 512; i++)
            cr_assert_eq(out[512 * t + i], 25.5f * row[i], "%d %d", t, i);
    }

    const int32_t idx[2] = {3, 1};
    folio_gather_rows_args g = {.x = e.out, .n_rows = 2, .dim = 512};
    bed_ints(&b, idx, 2, &g.idx);
    float *rows = bed_poison(&b, 2 * 512, &g.out);
    cr_assert_eq(bed_run(&b, "ref_gather_rows", &g), FOLIO_OK, "%s", b.log);
    cr_expect_eq(memcmp(rows, out + 3 * 512, 512 * sizeof *rows), 0);
    cr_expect_eq(memcmp(rows + 512, out + 512, 512 * sizeof *rows), 0);
    bed_close(&b);
}

/* A row of a weight that is split comes from the right view. */
Test(ops_ref, weight_rows_cross_views)
{
    bed b;
    bed_open(&b, 1, 9);
    folio_weight w;
    folio_weight_view views[3];
    bed_weight(&b, FOLIO_TYPE_F32, 10, 4, 3, &w, views);
    for (int64_t r = 0; r < 10; r++) {
        float row[4];
        int v = r < views[1].first_row ? 0 : r < views[2].first_row ? 1 : 2;
        const float *p = folio_view_host(views[v].view);
        p += 4 * (r - views[v].first_row);
        folio_weight_row(&w, r, row);
        cr_expect_eq(memcmp(row, p, sizeof row), 0, "row %d", (int)r);
    }
    bed_close(&b);
}

/* ---- linear ---- */

static void check_linear(folio_type type, int64_t rows, int64_t cols,
                         int n_views, int32_t n_tok, bool with_bias,
                         int accumulate)
{
    bed b;
    bed_open(&b, 1, 100 + (uint64_t)type);
    folio_weight w;
    folio_weight_view views[3];
    folio_linear_args a = {.w = &w,
                           .n_tok = n_tok,
                           .x_stride = (int32_t)cols + 3,
                           .y_stride = (int32_t)rows + 1,
                           .accumulate = accumulate};
    bed_weight(&b, type, rows, cols, n_views, &w, views);
    size_t nx = (size_t)(a.x_stride * (n_tok - 1) + (int32_t)cols);
    size_t ny = (size_t)(a.y_stride * (n_tok - 1) + (int32_t)rows);
    float *x = bed_floats(&b, nx, &a.x);
    float *y = bed_floats(&b, ny, &a.y);
    float *bias = with_bias ? bed_floats(&b, (size_t)rows, &a.bias) : NULL;
    float *before = malloc(ny * sizeof *before);
    float *row = malloc((size_t)cols * sizeof *row);
    cr_assert(before && row);
    memcpy(before, y, ny * sizeof *y);
    cr_assert_eq(bed_run(&b, "ref_linear", &a), FOLIO_OK, "%s", b.log);
    for (int64_t r = 0; r < rows; r++) {
        folio_weight_row(&w, r, row);
        for (int32_t t = 0; t < n_tok; t++) {
            double want = 0, size = 0;
            for (int64_t i = 0; i < cols; i++) {
                double p = (double)row[i] * (double)x[t * a.x_stride + i];
                want += p;
                size += fabs(p);
            }
            want += bias ? (double)bias[r] : 0;
            want += accumulate ? (double)before[t * a.y_stride + r] : 0;
            double got = (double)y[t * a.y_stride + r];
            cr_assert(fabs(got - want) <= 1e-7 * (size + fabs(want)),
                      "type %d token %d row %d: %g for %g", (int)type, (int)t,
                      (int)r, got, want);
        }
    }
    /* The gaps between rows are nobody's. */
    for (int32_t t = 0; t + 1 < n_tok; t++)
        cr_expect_eq(y[t * a.y_stride + (int32_t)rows],
                     before[t * a.y_stride + (int32_t)rows]);
    free(before);
    free(row);
    bed_close(&b);
}

Test(ops_ref, linear_every_type)
{
    static const folio_type types[] = {
        FOLIO_TYPE_F32,  FOLIO_TYPE_F16,    FOLIO_TYPE_BF16,   FOLIO_TYPE_Q4_0,
        FOLIO_TYPE_Q4_1, FOLIO_TYPE_Q5_0,   FOLIO_TYPE_Q5_1,   FOLIO_TYPE_Q8_0,
        FOLIO_TYPE_Q2_K, FOLIO_TYPE_Q3_K,   FOLIO_TYPE_Q4_K,   FOLIO_TYPE_Q5_K,
        FOLIO_TYPE_Q6_K, FOLIO_TYPE_IQ4_NL, FOLIO_TYPE_IQ4_XS, FOLIO_TYPE_MXFP4,
    };
    for (size_t i = 0; i < FOLIO_COUNT(types); i++)
        check_linear(types[i], 5, 512, 2, 3, i % 2 == 0, i % 3 == 0);
}

Test(ops_ref, linear_odd_sizes)
{
    check_linear(FOLIO_TYPE_F32, 1, 1, 1, 1, false, 0);
    check_linear(FOLIO_TYPE_F32, 17, 3, 3, 33, true, 0);
    check_linear(FOLIO_TYPE_F16, 3, 257, 1, 32, false, 1);
    check_linear(FOLIO_TYPE_Q8_0, 3, 32, 1, 65, true, 1);
    check_linear(FOLIO_TYPE_Q4_1, 7, 576, 1, 2, false, 0);
}

/* ---- topk ---- */

Test(ops_ref, topk_by_hand)
{
    bed b;
    bed_open(&b, 1, 10);
    folio_topk_args a = {.n_rows = 3, .n_vocab = 5, .k = 3};
    float *x = bed_zeros(&b, 15, &a.x);
    int32_t ids[9] = {0};
    int32_t *got = bed_ints(&b, ids, 9, &a.ids);
    float *values = bed_poison(&b, 9, &a.values);
    int32_t *n_nan = bed_ints(&b, ids, 3, &a.n_nan);
    const float in[15] = {1,     3,    3,   -INFINITY, 3,   /* ties */
                          NAN,   2,    NAN, -1,        NAN, /* two numbers */
                          -0.0f, 0.0f, NAN, INFINITY,  -INFINITY};
    memcpy(x, in, sizeof in);
    cr_assert_eq(bed_run(&b, "ref_topk", &a), FOLIO_OK, "%s", b.log);
    const int32_t want[9] = {1, 2, 4, 1, 3, -1, 3, 0, 1};
    const float want_values[9] = {3, 3, 3, 2, -1, 0, INFINITY, -0.0f, 0.0f};
    cr_expect_eq(memcmp(got, want, sizeof want), 0);
    cr_expect_eq(memcmp(values, want_values, sizeof want_values), 0);
    cr_expect(n_nan[0] == 0 && n_nan[1] == 3 && n_nan[2] == 1);
    bed_close(&b);
}
