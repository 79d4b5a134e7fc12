/* Paged attention against its definition: the reference against contiguous
 * attention and the golden vectors, the host form against the reference. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attn_case.h"
#include "ops/host/host_attn.h"
#include "ops/variants.h"

static folio_device *open_host(int n_threads)
{
    folio_device_params p;
    folio_device *dev = NULL;
    folio_device_params_default(&p);
    p.select = "host";
    p.n_threads = n_threads;
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK);
    return dev;
}

/* ---- the reference ---------------------------------------------------------
 */

/* Contiguous attention in the reference's order of operations. */
static void attend_contiguous(const attn_case *c, int32_t s, int32_t tok,
                              int32_t head, float *out)
{
    const attn_shape *sh = &c->sh;
    size_t hd = (size_t)sh->head_dim, n_kvh = (size_t)sh->kv_heads;
    size_t kvh = (size_t)(head / (sh->heads / sh->kv_heads));
    int32_t pos = sh->kv_len[s] - (c->q_start[s + 1] - tok);
    int32_t first = sh->window ? FOLIO_MAX(pos - sh->window + 1, 0) : 0;
    const float *q =
        c->q + ((size_t)tok * (size_t)sh->heads + (size_t)head) * hd;
    double acc[256] = {0}, sum = 0, max = -INFINITY;
    double *logit = folio_calloc((size_t)pos + 1, sizeof *logit);
    for (int32_t j = first; j <= pos; j++) {
        double dot = 0;
        for (size_t d = 0; d < hd; d++)
            dot += (double)q[d] *
                   (double)c->k[s][((size_t)j * n_kvh + kvh) * hd + d];
        logit[j] = dot * (double)sh->scale;
        if (sh->softcap > 0)
            logit[j] =
                (double)sh->softcap * tanh(logit[j] / (double)sh->softcap);
        max = fmax(max, logit[j]);
    }
    for (int32_t j = first; j <= pos; j++) {
        double p = exp(logit[j] - max);
        for (size_t d = 0; d < hd; d++)
            acc[d] += p * (double)c->v[s][((size_t)j * n_kvh + kvh) * hd + d];
        sum += p;
    }
    for (size_t d = 0; d < hd; d++)
        out[d] = (float)(acc[d] / sum);
    free(logit);
}

static const folio_kv_layout layouts[] = {
    {1, 1, 256, 1}, {8, 1, 256, 1},   {8, 1, 8, 1},  {256, 1, 256, 1},
    {8, 1, 256, 2}, {256, 1, 256, 2}, {16, 4, 1, 1}, {4, 32, 1, 32}};

Test(ops_attn, ref_is_contiguous_attention_bit_for_bit, .timeout = 120)
{
    static const int32_t sizes[] = {1, 4, 16, 32};
    for (int i = 0; i < 24; i++) {
        attn_shape sh = {.heads = 6,
                         .kv_heads = 3,
                         .head_dim = i % 3 ? 48 : 80,
                         .block_size = sizes[i % 4],
                         .type = i % 2 ? FOLIO_KV_F16 : FOLIO_KV_F32,
                         .layout = layouts[i % 8],
                         .window = i % 5 == 0 ? 7 : 0,
                         .softcap = i % 6 == 1 ? 3 : 0,
                         .n_seq = 3,
                         .q_len = {5, 1, 12},
                         .kv_len = {37, 50, 12},
                         .n_buf = 1 + i % 4};
        attn_case c;
        attn_case_init(&c, &sh, 100 + (uint64_t)i);
        float *got = attn_case_out(&c);
        attn_case_ref(&c, got);
        for (int32_t s = 0; s < 3; s++)
            for (int32_t t = c.q_start[s]; t < c.q_start[s + 1]; t++)
                for (int32_t h = 0; h < sh.heads; h++) {
                    float want[256];
                    size_t hd = (size_t)sh.head_dim;
                    attend_contiguous(&c, s, t, h, want);
                    cr_assert_eq(memcmp(want,
                                        got + (size_t)(t * sh.heads + h) * hd,
                                        hd * sizeof(float)),
                                 0, "case %d, token %d, head %d", i, t, h);
                }
        free(got);
        attn_case_fini(&c);
    }
}

Test(ops_attn, golden_vectors)
{
    folio_device *dev = open_host(2);
    static const char *const variants[] = {"ref_attn", "host_attn"};
    for (int i = 0; i < 4; i++) {
        attn_run r = {.dev = dev, .variant = variants[i / 2]};
        attn_case c;
        float got[48], want[48];
        attn_case_golden(&c, 1 + i % 2, want);
        attn_case_run(&c, &r, got);
        attn_case_compare(&c, r.variant, got, want, 1e-6, 1e-6);
        attn_case_fini(&c);
    }
    folio_device_close(&dev);
}

/* +100 on the newest K and V: earlier queries keep their bits. */
Test(ops_attn, the_newest_key_is_seen_by_the_last_query_alone)
{
    folio_device *dev = open_host(2);
    static const char *const variants[] = {"ref_attn", "host_attn"};
    for (int i = 0; i < 2; i++) {
        attn_shape sh = {.heads = 4,
                         .kv_heads = 2,
                         .head_dim = 16,
                         .block_size = 4,
                         .layout = {8, 1, 16, 1},
                         .n_seq = 1,
                         .q_len = {7},
                         .kv_len = {41}};
        attn_run r = {.dev = dev, .variant = variants[i]};
        attn_case c;
        attn_case_init(&c, &sh, 5);
        float *before = attn_case_out(&c), *after = attn_case_out(&c);
        attn_case_run(&c, &r, before);
        for (size_t j = 40 * 32; j < 41 * 32; j++) {
            c.k[0][j] += 100;
            c.v[0][j] += 100;
        }
        attn_case_store(&c, 0);
        attn_case_run(&c, &r, after);
        cr_assert_eq(memcmp(before, after, 6 * 64 * sizeof(float)), 0);
        for (size_t h = 0; h < 4; h++)
            cr_assert(fabsf(before[6 * 64 + h * 16] - after[6 * 64 + h * 16]) >
                      1e-4f);
        free(before);
        free(after);
        attn_case_fini(&c);
    }
    folio_device_close(&dev);
}

/* ---- the host form ---------------------------------------------------------
 */

/* Everything that the shape can be, dealt from the seed. */
static void deal(attn_shape *sh, int i)
{
    static const int32_t dims[] = {4, 48, 64, 80, 96, 112, 128, 256, 5, 7};
    static const int32_t groups[] = {1, 3, 4, 7, 8, 9, 16, 40};
    static const int32_t sizes[] = {1, 4, 16, 32, 3};
    static const int32_t lens[] = {1, 15, 16, 17, 127, 128, 129, 1000};
    static const int32_t windows[] = {0, 0, 1, 16, 100};
    memset(sh, 0, sizeof *sh);
    sh->kv_heads = 1 + i % 2;
    sh->heads = sh->kv_heads * groups[i % 8];
    sh->head_dim = dims[i % 10];
    sh->block_size = sizes[i % 5];
    sh->type = i / 3 % 2 ? FOLIO_KV_F16 : FOLIO_KV_F32;
    sh->layout = layouts[i % 8];
    sh->window = windows[i / 2 % 5];
    sh->softcap = i % 4 == 3 ? 5 : 0;
    sh->n_buf = i % 9 == 8 ? 4 : i % 9 == 4 ? 2 : 1;
    sh->n_seq = 3;
    sh->kv_len[0] = lens[(i * 5 + i / 8) % 8];
    sh->q_len[0] = 1;
    sh->kv_len[1] = lens[(i + 3) % 7];
    sh->q_len[1] = FOLIO_MIN(sh->kv_len[1], 1 + i % 21);
    sh->kv_len[2] = lens[(i + 5) % 4];
    sh->q_len[2] = sh->kv_len[2];
}

static void tolerance(const attn_shape *sh, double *abs_tol, double *rel_tol)
{
    /* Storage is the same for both; the sums differ by float rounding. */
    (void)sh;
    *abs_tol = 1e-5;
    *rel_tol = 1e-4;
}

Test(ops_attn, host_equals_ref, .timeout = 300)
{
    folio_device *dev = open_host(2);
    for (int i = 0; i < 140; i++) {
        attn_shape sh;
        attn_case c;
        double abs_tol, rel_tol;
        deal(&sh, i);
        attn_case_init(&c, &sh, 1000 + (uint64_t)i);
        tolerance(&sh, &abs_tol, &rel_tol);
        float *got = attn_case_out(&c), *want = attn_case_out(&c);
        char what[80];
        snprintf(what, sizeof what, "host, case %d", i);
        attn_case_ref(&c, want);
        attn_run r = {.dev = dev, .variant = "host_attn"};
        attn_case_run(&c, &r, got);
        attn_case_compare(&c, what, got, want, abs_tol, rel_tol);
        free(got);
        free(want);
        attn_case_fini(&c);
    }
    folio_device_close(&dev);
}

/* A token's bits do not depend on its batch, nor on who computes beside it, nor
 * on where its blocks lie, nor on how large they are. */
Test(ops_attn, host_is_batch_invariant, .timeout = 120)
{
    folio_device *one = open_host(1), *two = open_host(3);
    attn_shape many = {.heads = 9,
                       .kv_heads = 3,
                       .head_dim = 64,
                       .block_size = 16,
                       .type = FOLIO_KV_F16,
                       .layout = {1, 1, 64, 1},
                       .n_seq = 3,
                       .q_len = {1, 70, 3},
                       .kv_len = {200, 150, 90}};
    attn_case c;
    attn_case_init(&c, &many, 9);
    float *all = attn_case_out(&c);
    attn_run r = {.dev = two, .variant = "host_attn"};
    attn_case_run(&c, &r, all);
    static const int32_t sizes[] = {1, 4, 16, 32};
    for (int i = 0; i < 30; i++) {
        int32_t s = i % 3;
        int32_t tok = c.q_start[s] + i * 7 % many.q_len[s];
        int32_t pos = many.kv_len[s] - (c.q_start[s + 1] - tok);
        attn_shape alone = many;
        alone.n_seq = 1;
        alone.q_len[0] = 1;
        alone.kv_len[0] = pos + 1;
        alone.block_size = sizes[i % 4];
        alone.layout = layouts[i % 8];
        attn_case d;
        attn_case_init(&d, &alone, 77 + (uint64_t)i);
        memcpy(d.q, c.q + tok * 576, 576 * sizeof(float));
        memcpy(d.k[0], c.k[s], (size_t)(pos + 1) * 192 * sizeof(float));
        memcpy(d.v[0], c.v[s], (size_t)(pos + 1) * 192 * sizeof(float));
        attn_case_store(&d, 0);
        float out[576];
        r.dev = one;
        attn_case_run(&d, &r, out);
        cr_assert_eq(memcmp(out, all + tok * 576, sizeof out), 0,
                     "token %d alone differs", tok);
        attn_case_fini(&d);
    }
    free(all);
    attn_case_fini(&c);
    folio_device_close(&one);
    folio_device_close(&two);
}

/* A NaN in a later key stays out of earlier queries. */
Test(ops_attn, host_keeps_later_values_out)
{
    folio_device *dev = open_host(1);
    attn_shape sh = {.heads = 4,
                     .kv_heads = 1,
                     .head_dim = 32,
                     .block_size = 16,
                     .layout = {8, 1, 32, 1},
                     .n_seq = 1,
                     .q_len = {40},
                     .kv_len = {40}};
    attn_case c;
    attn_case_init(&c, &sh, 3);
    float *before = attn_case_out(&c), *after = attn_case_out(&c);
    attn_run r = {.dev = dev, .variant = "host_attn"};
    attn_case_run(&c, &r, before);
    for (size_t i = 35 * 32; i < 40 * 32; i++)
        c.k[0][i] = c.v[0][i] = NAN;
    attn_case_store(&c, 0);
    attn_case_run(&c, &r, after);
    cr_assert_eq(memcmp(before, after, 35 * 128 * sizeof(float)), 0);
    for (int i = 35 * 128; i < 40 * 128; i++)
        cr_assert(isnan(after[i]));
    free(before);
    free(after);
    attn_case_fini(&c);
    folio_device_close(&dev);
}

/* Sinks and a query without a key, which the op's door does not let through
 * yet: a sink is one more key that has no value. */
Test(ops_attn, sinks_and_queries_without_a_key)
{
    folio_device *dev = open_host(1);
    folio_queue *q = NULL;
    cr_assert_eq(folio_queue_open(dev, &q), FOLIO_OK);
    attn_shape sh = {.heads = 4,
                     .kv_heads = 2,
                     .head_dim = 8,
                     .block_size = 4,
                     .type = FOLIO_KV_F32,
                     .layout = {8, 1, 8, 1},
                     .n_seq = 1,
                     .q_len = {3},
                     .kv_len = {9}};
    attn_case c;
    attn_case_init(&c, &sh, 21);
    c.sh.kv_len[0] = 2; /* three tokens, two keys: the first token sees none */
    float sinks[4] = {-2, 0, 1.5f, 30}, out[96], plain[96];
    folio_buf *buf[9];
    struct {
        void *ptr;
        size_t bytes;
    } mem[9] = {{c.k_pool, c.pool_bytes},
                {c.v_pool, c.pool_bytes},
                {c.q_start, 8},
                {c.sh.kv_len, 4},
                {c.table_start, 8},
                {c.tables, 12},
                {c.q, 384},
                {out, 384},
                {sinks, 16}};
    for (int i = 0; i < 9; i++)
        cr_assert_eq(
            folio_buf_wrap_host(dev, mem[i].ptr, mem[i].bytes, &buf[i]),
            FOLIO_OK);
    folio_attn_args a = {
        .q = {buf[6], 0},
        .out = {buf[7], 0},
        .q_stride = 32,
        .out_stride = 32,
        .n_tok = 3,
        .heads = 4,
        .scale = 0.5f,
        .kv = {.type = FOLIO_KV_F32,
               .layout = {8, 1, 8, 1},
               .n_blocks = c.n_blocks,
               .block_size = 4,
               .kv_heads = 2,
               .head_dim = 8,
               .k = {.buf = {buf[0]}, .n_buf = 1, .seg_shift = 31},
               .v = {.buf = {buf[1]}, .n_buf = 1, .seg_shift = 31}},
        .work = {.q_start = {buf[2], 0},
                 .kv_len = {buf[3], 0},
                 .table_start = {buf[4], 0},
                 .tables = {buf[5], 0},
                 .n_seq = 1}};
    folio_op op = {.dev = dev};
    cr_assert_eq(folio_var_ref_attn.run(&op, q, &a), FOLIO_OK);
    memcpy(plain, out, sizeof out);
    for (int with = 0; with < 2; with++) {
        a.sinks.buf = with ? buf[8] : NULL;
        float ref[96];
        cr_assert_eq(folio_var_ref_attn.run(&op, q, &a), FOLIO_OK);
        memcpy(ref, out, sizeof out);
        for (int i = 0; folio_host_attn_set_at(i); i++) {
            folio_host_attn_run(folio_host_attn_set_at(i),
                                folio_device_threads(dev), &a);
            for (int j = 0; j < 96; j++)
                cr_assert_float_eq(out[j], ref[j], 1e-6f);
        }
        for (int j = 0; j < 32; j++)
            cr_assert_eq(ref[j], 0);
        /* One key: p = 1 / (1 + exp(sink - logit)). */
        for (int h = 0; h < 4; h++) {
            double s = 0;
            for (int d = 0; d < 8; d++)
                s +=
                    (double)c.q[32 + h * 8 + d] * (double)c.k[0][h / 2 * 8 + d];
            double p = with ? 1 / (1 + exp((double)sinks[h] - s / 2)) : 1;
            cr_assert_float_eq(ref[32 + h * 8], p * (double)c.v[0][h / 2 * 8],
                               1e-6);
        }
    }
    for (int i = 0; i < 9; i++)
        folio_buf_close(&buf[i]);
    folio_queue_close(&q);
    c.sh.kv_len[0] = 9;
    attn_case_fini(&c);
    folio_device_close(&dev);
}

/* Every instruction set of this processor: all of them equal the reference, and
 * those with fused products each other. */
Test(ops_attn, all_instruction_sets, .timeout = 120)
{
    folio_device *dev = open_host(2);
    for (int i = 0; i < 40; i++) {
        attn_shape sh;
        attn_case c;
        deal(&sh, i * 3 + 1);
        sh.n_buf = 1;
        attn_case_init(&c, &sh, 4000 + (uint64_t)i);
        float *want = attn_case_out(&c), *first = NULL;
        attn_case_ref(&c, want);
        for (int s = 0; folio_host_attn_set_at(s); s++) {
            const folio_host_attn_set *set = folio_host_attn_set_at(s);
            float *got = attn_case_out(&c);
            attn_case_host(&c, dev, set, got);
            attn_case_compare(&c, set->name, got, want, 1e-5, 1e-4);
            if (!first) {
                first = got;
                continue;
            }
            if (set != &folio_host_attn_base)
                cr_assert_eq(memcmp(first, got,
                                    (size_t)c.n_tok * (size_t)sh.heads *
                                        (size_t)sh.head_dim * 4),
                             0, "case %d: %s differs", i, set->name);
            free(got);
        }
        free(first);
        free(want);
        attn_case_fini(&c);
    }
    folio_device_close(&dev);
}
