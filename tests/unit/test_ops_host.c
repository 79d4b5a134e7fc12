/* The host device's fast ops against the references: sizes about the width of a
 * block of lanes, strides, aliasing, KV layouts and segments; bits that depend
 * neither on threads nor on the batch. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "ops_bed.h"

static const int32_t sizes[] = {1, 3, 15, 16, 17, 31, 33, 576, 2048};

static void expect_rows_near(const float *got, const float *want, size_t n,
                             double share, const char *what)
{
    double scale = 0;
    for (size_t i = 0; i < n; i++)
        scale = fmax(scale, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++)
        cr_assert(fabs((double)(got[i] - want[i])) <= share * scale,
                  "%s[%zu]: %.9g for %.9g", what, i, (double)got[i],
                  (double)want[i]);
}

/* ---- rmsnorm ---- */

typedef struct norm_case {
    int32_t dim, n_rows, threads;
    bool res, in_place;
} norm_case;

/* Runs one form; out and res (dense, dim * rows) are copied out. */
static void run_norm(const norm_case *c, const char *variant, float *out,
                     float *res)
{
    bed b;
    bed_open(&b, c->threads, 20 + (uint64_t)c->dim);
    folio_rmsnorm_args a = {.n_rows = c->n_rows,
                            .dim = c->dim,
                            .x_stride = c->dim + 2,
                            .out_stride = c->dim + (c->in_place ? 2 : 5),
                            .eps = 1e-5f};
    size_t rows = (size_t)c->n_rows, dim = (size_t)c->dim;
    size_t x_stride = (size_t)a.x_stride, out_stride = (size_t)a.out_stride;
    float *x = bed_floats(&b, x_stride * (rows - 1) + dim, &a.x);
    bed_floats(&b, dim, &a.w);
    float *r = bed_floats(&b, dim * rows, &a.res), *y = x;
    if (!c->res)
        a.res = (folio_view){0};
    if (c->in_place)
        a.out = a.x;
    else
        y = bed_poison(&b, out_stride * (rows - 1) + dim, &a.out);
    cr_assert_eq(bed_run(&b, variant, &a), FOLIO_OK, "%s", b.log);
    for (size_t t = 0; t < rows; t++)
        memcpy(out + t * dim, y + t * out_stride, dim * sizeof *out);
    memcpy(res, r, dim * rows * sizeof *r);
    bed_close(&b);
}

Test(ops_host, rmsnorm)
{
    float *m = malloc(4 * 5 * 2048 * sizeof *m);
    cr_assert_not_null(m);
    float *want = m, *want_res = m + 5 * 2048;
    float *got = m + 2 * 5 * 2048, *got_res = m + 3 * 5 * 2048;
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++)
        for (int form = 0; form < 4; form++) {
            norm_case c = {.dim = sizes[i],
                           .n_rows = 5,
                           .threads = 3,
                           .res = form & 1,
                           .in_place = form & 2};
            size_t n = 5 * (size_t)c.dim;
            run_norm(&c, "ref_rmsnorm", want, want_res);
            run_norm(&c, "host_rmsnorm", got, got_res);
            expect_rows_near(got, want, n, 1e-6, "rmsnorm");
            cr_expect_eq(memcmp(got_res, want_res, n * sizeof *m), 0);
            /* One thread instead of three: the same bits. */
            c.threads = 1;
            run_norm(&c, "host_rmsnorm", want, want_res);
            cr_expect_eq(memcmp(got, want, n * sizeof *m), 0);
        }
    free(m);
}

/* Row 2 of five equals that row alone. */
Test(ops_host, rmsnorm_row_alone)
{
    bed b;
    bed_open(&b, 2, 30);
    folio_rmsnorm_args a = {.n_rows = 5,
                            .dim = 577,
                            .x_stride = 577,
                            .out_stride = 577,
                            .eps = 1e-6f};
    bed_floats(&b, 5 * 577, &a.x);
    bed_floats(&b, 577, &a.w);
    float *out = bed_poison(&b, 5 * 577, &a.out);
    cr_assert_eq(bed_run(&b, "host_rmsnorm", &a), FOLIO_OK, "%s", b.log);
    a.n_rows = 1;
    a.x = folio_view_at(a.x, 2 * 577 * sizeof(float));
    float *alone = bed_poison(&b, 577, &a.out);
    cr_assert_eq(bed_run(&b, "host_rmsnorm", &a), FOLIO_OK, "%s", b.log);
    cr_expect_eq(memcmp(alone, out + 2 * 577, 577 * sizeof *out), 0);
    bed_close(&b);
}

/* ---- activation and add ---- */

static void run_act(const char *variant, folio_act act, int32_t dim, int alias,
                    float *out)
{
    bed b;
    bed_open(&b, 2, 40 + (uint64_t)dim);
    folio_act_mul_args a = {.n_tok = 4, .dim = dim, .act = act};
    a.gate_stride = a.up_stride = 2 * dim + 1;
    size_t stride = (size_t)a.gate_stride, n = stride * 4;
    float *both = bed_floats(&b, n, &a.gate);
    a.up = folio_view_at(a.gate, (size_t)dim * sizeof(float));
    for (size_t i = 0; i < n; i++)
        both[i] *= 20; /* the tails of the functions as well */
    float *y = both;
    a.out = alias == 1 ? a.gate : a.up;
    a.out_stride = a.gate_stride;
    if (alias == 0) {
        a.out_stride = dim;
        y = bed_poison(&b, 4 * (size_t)dim, &a.out);
    } else if (alias == 2) {
        y += dim;
    }
    cr_assert_eq(bed_run(&b, variant, &a), FOLIO_OK, "%s", b.log);
    for (int t = 0; t < 4; t++)
        memcpy(out + t * dim, y + t * a.out_stride, (size_t)dim * sizeof *out);
    bed_close(&b);
}

Test(ops_host, act_mul)
{
    static float want[4 * 2048], got[4 * 2048];
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++)
        for (int alias = 0; alias < 3; alias++)
            for (int act = 0; act < 2; act++) {
                size_t n = 4 * (size_t)sizes[i];
                run_act("ref_act_mul", (folio_act)act, sizes[i], alias, want);
                run_act("host_act_mul", (folio_act)act, sizes[i], alias, got);
                for (size_t j = 0; j < n; j++) {
                    double w = (double)want[j];
                    cr_assert(fabs((double)got[j] - w) <=
                                  3e-6 * fabs(w) + 1e-12,
                              "act %d dim %d alias %d [%zu]: %.9g for %.9g",
                              act, (int)sizes[i], alias, j, (double)got[j], w);
                }
            }
}

Test(ops_host, act_mul_extremes)
{
    bed b;
    bed_open(&b, 1, 50);
    folio_act_mul_args a = {.n_tok = 1,
                            .dim = 7,
                            .gate_stride = 7,
                            .up_stride = 7,
                            .out_stride = 7};
    float *gate = bed_zeros(&b, 7, &a.gate);
    float *up = bed_zeros(&b, 7, &a.up);
    float *out = bed_poison(&b, 7, &a.out);
    const float in[7] = {-1e30f, -90, -87, 0, 90, 1e30f, NAN};
    memcpy(gate, in, sizeof in);
    for (int i = 0; i < 7; i++)
        up[i] = 1;
    for (int act = 0; act < 2; act++) {
        a.act = (folio_act)act;
        cr_assert_eq(bed_run(&b, "host_act_mul", &a), FOLIO_OK, "%s", b.log);
        cr_expect(fabsf(out[0]) < 1e-6f && fabsf(out[1]) < 1e-30f &&
                      fabsf(out[2]) < 1e-30f,
                  "act %d: %g %g %g", act, (double)out[0], (double)out[1],
                  (double)out[2]);
        cr_expect(out[3] == 0 && out[4] == 90 && out[5] == 1e30f);
        cr_expect(isnan(out[6]), "a NaN vanished");
    }
    bed_close(&b);
}

Test(ops_host, add)
{
    static const int64_t n[] = {1, 15, 16, 17, 16384, 40001};
    for (size_t i = 0; i < FOLIO_COUNT(n); i++) {
        bed b;
        bed_open(&b, 2, 60);
        folio_add_args a = {.n = n[i]};
        float *x = bed_floats(&b, (size_t)n[i], &a.x);
        float *y = bed_floats(&b, (size_t)n[i], &a.y);
        float *before = malloc((size_t)n[i] * sizeof *y);
        cr_assert_not_null(before);
        memcpy(before, y, (size_t)n[i] * sizeof *y);
        cr_assert_eq(bed_run(&b, "host_add", &a), FOLIO_OK, "%s", b.log);
        for (int64_t j = 0; j < n[i]; j++)
            cr_assert_eq(y[j], before[j] + x[j]);
        a.x = a.y; /* exactly itself: doubles */
        memcpy(before, y, (size_t)n[i] * sizeof *y);
        cr_assert_eq(bed_run(&b, "host_add", &a), FOLIO_OK, "%s", b.log);
        for (int64_t j = 0; j < n[i]; j++)
            cr_assert_eq(y[j], 2 * before[j]);
        free(before);
        bed_close(&b);
    }
}

/* ---- embed and gather: the same bits ---- */

Test(ops_host, embed_and_gather)
{
    static const folio_type types[] = {FOLIO_TYPE_F32, FOLIO_TYPE_Q8_0,
                                       FOLIO_TYPE_Q4_1};
    for (size_t i = 0; i < FOLIO_COUNT(types); i++) {
        bed b;
        bed_open(&b, 3, 70);
        folio_weight w;
        folio_weight_view views[2];
        int32_t ids[19], n = 19;
        bed_weight(&b, types[i], 11, 96, 2, &w, views);
        for (int t = 0; t < n; t++)
            ids[t] = bed_below(&b, 11);
        folio_embed_args e = {.w = &w, .scale = i ? 1 : 0.37f, .n_tok = n};
        bed_ints(&b, ids, (size_t)n, &e.ids);
        float *want = bed_poison(&b, 19 * 96, &e.out);
        cr_assert_eq(bed_run(&b, "ref_embed", &e), FOLIO_OK, "%s", b.log);
        float *got = bed_poison(&b, 19 * 96, &e.out);
        cr_assert_eq(bed_run(&b, "host_embed", &e), FOLIO_OK, "%s", b.log);
        cr_expect_eq(memcmp(got, want, 19 * 96 * sizeof *got), 0);

        folio_gather_rows_args g = {.x = e.out, .n_rows = n, .dim = 96};
        bed_ints(&b, ids, (size_t)n, &g.idx);
        float *rows = bed_poison(&b, 19 * 96, &g.out);
        cr_assert_eq(bed_run(&b, "host_gather_rows", &g), FOLIO_OK, "%s",
                     b.log);
        for (int t = 0; t < n; t++)
            cr_expect_eq(
                memcmp(rows + 96 * t, got + 96 * ids[t], 96 * sizeof *rows), 0);
        bed_close(&b);
    }
}

/* ---- rope and append ---- */

typedef struct rope_case {
    int32_t hd, bs, kvh, heads, rot, interleaved;
    int32_t xk, yk, xv, yv;
    folio_kv_type type;
    int n_buf, seg_shift;
} rope_case;

enum { N_TOK = 9, N_BLOCKS = 7, N_POS = 50 };

static void run_rope(const rope_case *c, const char *variant, bed *b,
                     folio_rope_append_args *a)
{
    int32_t slots[N_TOK], pos[N_TOK];
    bed_open(b, 2, 80);
    *a = (folio_rope_append_args){.q_stride = c->heads * c->hd + 3,
                                  .k_stride = c->kvh * c->hd + 1,
                                  .v_stride = c->kvh * c->hd,
                                  .n_pos = N_POS,
                                  .rot_dim = c->rot,
                                  .interleaved = c->interleaved,
                                  .n_tok = N_TOK,
                                  .heads = c->heads,
                                  .kv = {.type = c->type,
                                         .layout = {c->xk, c->yk, c->xv, c->yv},
                                         .n_blocks = N_BLOCKS,
                                         .block_size = c->bs,
                                         .kv_heads = c->kvh,
                                         .head_dim = c->hd}};
    bed_floats(b, (size_t)(a->q_stride * N_TOK), &a->q);
    bed_floats(b, (size_t)(a->k_stride * N_TOK), &a->k);
    bed_floats(b, (size_t)(a->v_stride * N_TOK), &a->v);
    bed_floats(b, (size_t)(N_POS * FOLIO_MAX(c->rot, 1)), &a->table);
    /* Distinct slots from the last block down; every fourth is padding. */
    for (int t = 0; t < N_TOK; t++) {
        slots[t] = (N_BLOCKS - 1 - t % N_BLOCKS) * c->bs + t / N_BLOCKS % c->bs;
        if (t % 4 == 3)
            slots[t] = -1;
        pos[t] = bed_below(b, N_POS);
    }
    if (c->bs == 1) /* slots repeat after N_BLOCKS tokens: keep the last */
        slots[0] = slots[1] = -1;
    bed_ints(b, slots, N_TOK, &a->slot);
    bed_ints(b, pos, N_TOK, &a->pos);
    bed_kv(b, &a->kv, c->n_buf, c->seg_shift);
    cr_assert_eq(bed_run(b, variant, a), FOLIO_OK, "%s", b->log);
}

/* One unit in the last place of the stored type, for values below 2. */
static double unit_of_kv(folio_kv_type type)
{
    return type == FOLIO_KV_F16 ? 0x1p-10 : 0x1p-22;
}

static void check_rope(const rope_case *c)
{
    bed rb, hb;
    folio_rope_append_args ra, ha;
    run_rope(c, "ref_rope_append", &rb, &ra);
    run_rope(c, "host_rope_append", &hb, &ha);
    expect_rows_near(folio_view_host(ha.q), folio_view_host(ra.q),
                     (size_t)(ra.q_stride * N_TOK), 3e-7, "q");
    const int32_t *slots = folio_view_host(ra.slot);
    const float *v = folio_view_host(ra.v);
    int written = 0;
    for (int32_t slot = 0; slot < N_BLOCKS * c->bs; slot++) {
        int tok = -1;
        for (int t = 0; t < N_TOK; t++)
            tok = slots[t] == slot ? t : tok;
        written += tok >= 0;
        for (int h = 0; h < c->kvh; h++)
            for (int d = 0; d < c->hd; d++) {
                float rk = bed_kv_at(&ra.kv, true, slot, h, d);
                float hk = bed_kv_at(&ha.kv, true, slot, h, d);
                float rv = bed_kv_at(&ra.kv, false, slot, h, d);
                float hv = bed_kv_at(&ha.kv, false, slot, h, d);
                if (tok < 0) {
                    cr_assert(isnan(rk) && isnan(hk) && isnan(rv) && isnan(hv),
                              "slot %d was written", (int)slot);
                    continue;
                }
                float in = v[tok * ra.v_stride + h * c->hd + d];
                float stored = c->type == FOLIO_KV_F16
                                   ? folio_f16_to_f32(folio_f32_to_f16(in))
                                   : in;
                cr_assert(rv == stored && hv == stored,
                          "V slot %d head %d dim %d", (int)slot, h, d);
                cr_assert(fabs((double)(rk - hk)) <= unit_of_kv(c->type),
                          "K slot %d head %d dim %d: %g for %g", (int)slot, h,
                          d, (double)hk, (double)rk);
                if (d >= c->rot)
                    cr_assert_eq(rk, hk);
            }
    }
    cr_assert(written >= 5, "the case wrote %d slots", written);
    bed_close(&rb);
    bed_close(&hb);
}

Test(ops_host, rope_layouts)
{
    static const rope_case cases[] = {
        {64, 16, 2, 6, 64, 0, 8, 1, 8, 1, FOLIO_KV_F16, 1, 31},
        {64, 16, 2, 6, 64, 1, 64, 1, 64, 2, FOLIO_KV_F16, 1, 31},
        {64, 16, 1, 3, 32, 0, 1, 1, 64, 16, FOLIO_KV_F32, 2, 2},
        {4, 4, 2, 8, 4, 0, 4, 1, 2, 2, FOLIO_KV_F32, 4, 1},
        {4, 1, 3, 3, 2, 1, 1, 1, 4, 1, FOLIO_KV_F16, 2, 2},
        {80, 32, 2, 4, 80, 0, 16, 1, 80, 4, FOLIO_KV_F16, 2, 2},
        {80, 8, 1, 1, 40, 1, 5, 8, 10, 2, FOLIO_KV_F32, 4, 1},
        {96, 16, 1, 2, 0, 0, 8, 1, 8, 1, FOLIO_KV_F16, 1, 31},
        {256, 2, 1, 4, 256, 0, 8, 2, 256, 1, FOLIO_KV_F16, 1, 3},
        {5, 3, 2, 2, 4, 1, 5, 3, 1, 1, FOLIO_KV_F32, 2, 2},
    };
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++)
        check_rope(&cases[i]);
}

/* Without q, and without a table where nothing rotates. */
Test(ops_host, append_alone)
{
    static const char *const variants[] = {"ref_rope_append",
                                           "host_rope_append"};
    for (int i = 0; i < 2; i++) {
        bed b;
        bed_open(&b, 1, 90);
        folio_rope_append_args a = {.k_stride = 8,
                                    .v_stride = 8,
                                    .n_tok = 1,
                                    .kv = {.type = FOLIO_KV_F32,
                                           .layout = {8, 1, 8, 1},
                                           .n_blocks = 1,
                                           .block_size = 2,
                                           .kv_heads = 1,
                                           .head_dim = 8}};
        const int32_t slot = 1;
        float *k = bed_floats(&b, 8, &a.k);
        bed_floats(&b, 8, &a.v);
        bed_ints(&b, &slot, 1, &a.slot);
        bed_kv(&b, &a.kv, 1, 31);
        cr_assert_eq(bed_run(&b, variants[i], &a), FOLIO_OK, "%s", b.log);
        for (int d = 0; d < 8; d++)
            cr_expect_eq(bed_kv_at(&a.kv, true, 1, 0, d), k[d]);
        bed_close(&b);
    }
}

/* ---- topk ---- */

static void check_topk(int32_t n_vocab, int32_t k, int levels, int nan_every)
{
    bed b;
    bed_open(&b, 2, 110);
    folio_topk_args a = {.n_rows = 3, .n_vocab = n_vocab, .k = k};
    size_t n = 3 * (size_t)n_vocab, n_out = 3 * (size_t)k;
    float *x = bed_floats(&b, n, &a.x);
    for (size_t i = 0; i < n; i++) {
        if (levels)
            x[i] = floorf(x[i] * (float)levels);
        if (nan_every && bed_below(&b, nan_every) == 0)
            x[i] = NAN;
    }
    float *ids = bed_poison(&b, n_out, &a.ids);
    float *values = bed_poison(&b, n_out, &a.values);
    float *n_nan = bed_poison(&b, 3, &a.n_nan);
    cr_assert_eq(bed_run(&b, "ref_topk", &a), FOLIO_OK, "%s", b.log);
    float *got_ids = bed_poison(&b, n_out, &a.ids);
    float *got_values = bed_poison(&b, n_out, &a.values);
    float *got_nan = bed_poison(&b, 3, &a.n_nan);
    cr_assert_eq(bed_run(&b, "host_topk", &a), FOLIO_OK, "%s", b.log);
    cr_expect_eq(memcmp(ids, got_ids, n_out * 4), 0, "V %d k %d: ids",
                 (int)n_vocab, (int)k);
    cr_expect_eq(memcmp(values, got_values, n_out * 4), 0, "V %d k %d: values",
                 (int)n_vocab, (int)k);
    cr_expect_eq(memcmp(n_nan, got_nan, 12), 0, "V %d k %d: n_nan",
                 (int)n_vocab, (int)k);
    bed_close(&b);
}

Test(ops_host, topk)
{
    static const int32_t ks[] = {1, 2, 20, 64};
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++)
        for (size_t j = 0; j < FOLIO_COUNT(ks); j++) {
            check_topk(sizes[i], ks[j], 0, 0);
            check_topk(sizes[i], ks[j], 4, 5); /* many ties, some NaN */
            check_topk(sizes[i], ks[j], 1, 1); /* NaN only */
        }
}

/* ---- copy_blocks ---- */

static void check_copy(const char *variant, folio_kv_type type, int n_buf,
                       int seg_shift)
{
    bed b;
    bed_open(&b, 2, 120);
    folio_copy_blocks_args a = {.n_pairs = 3,
                                .kv = {.type = type,
                                       .layout = {4, 1, 4, 1},
                                       .n_blocks = 7,
                                       .block_size = 2,
                                       .kv_heads = 3,
                                       .head_dim = 4}};
    static const int32_t pairs[6] = {6, 0, 1, 5, 1, 3};
    bed_ints(&b, pairs, 6, &a.pairs);
    bed_kv(&b, &a.kv, n_buf, seg_shift);
    int32_t holds[7];
    size_t block = folio_kv_block_bytes(&a.kv);
    int64_t per_buf = (int64_t)1 << seg_shift;
    const folio_kv_plane *planes[2] = {&a.kv.k, &a.kv.v};
    for (int32_t i = 0; i < 7; i++) {
        holds[i] = i;
        for (int p = 0; p < 2; p++)
            memset((uint8_t *)folio_buf_host(planes[p]->buf[i / per_buf]) +
                       planes[p]->offset + (size_t)(i % per_buf) * block,
                   0x10 * (p + 1) + i, block);
    }
    cr_assert_eq(bed_run(&b, variant, &a), FOLIO_OK, "%s", b.log);
    for (int i = 0; i < 3; i++)
        holds[pairs[2 * i + 1]] = pairs[2 * i];
    for (int32_t i = 0; i < 7; i++)
        for (int p = 0; p < 2; p++) {
            const uint8_t *m = folio_buf_host(planes[p]->buf[i / per_buf]);
            m += planes[p]->offset + (size_t)(i % per_buf) * block;
            for (size_t j = 0; j < block; j++)
                cr_assert_eq(m[j], 0x10 * (p + 1) + holds[i],
                             "%s block %d byte %zu", variant, (int)i, j);
        }
    bed_close(&b);
}

Test(ops_host, copy_blocks)
{
    static const char *const variants[] = {"ref_copy_blocks",
                                           "host_copy_blocks"};
    for (int i = 0; i < 2; i++) {
        check_copy(variants[i], FOLIO_KV_F16, 1, 31);
        check_copy(variants[i], FOLIO_KV_F32, 2, 2);
        check_copy(variants[i], FOLIO_KV_F16, 4, 1);
        check_copy(variants[i], FOLIO_KV_F32, 1, 3);
    }
}
