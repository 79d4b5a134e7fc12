/* Attention's OpenCL variants on an OpenCL CPU device against the reference: a
 * thinned matrix, since each shape is a program of its own; forced splits,
 * batch invariance, segments, block ids beyond 16 bits. The full matrix is the
 * checks' (tests/check). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_case.h"

/* The driver the tests ask for by name; NULL where it is not installed. */
static folio_device *open_device(void)
{
    folio_device_params p;
    folio_device *dev = NULL;
    folio_device_params_default(&p);
    const char *name = getenv("FOLIO_TEST_DEVICE");
    p.select = name ? name : "pthread";
    if (folio_device_open(&p, &dev) != FOLIO_OK) {
        cr_assert(getenv("CI") == NULL, "no OpenCL device called %s", p.select);
        cr_skip_test("no OpenCL device called %s", p.select);
    }
    return dev;
}

static const folio_kv_layout layouts[] = {
    {1, 1, 256, 1},   {8, 1, 256, 1}, {8, 1, 8, 1},
    {256, 1, 256, 1}, {8, 1, 256, 2}, {4, 4, 1, 2},
};

/* A shape that differs from its neighbours in everything at once. */
static attn_shape shape_of(int i)
{
    static const int32_t dims[] = {64, 4, 80, 128, 48, 112, 96, 256};
    static const int32_t groups[] = {3, 1, 4, 7, 8, 9, 16};
    static const int32_t sizes[] = {16, 4, 1, 32};
    attn_shape sh = {.kv_heads = 1 + i % 2,
                     .head_dim = dims[i % 8],
                     .block_size = sizes[i % 4],
                     .type = i % 3 ? FOLIO_KV_F16 : FOLIO_KV_F32,
                     .layout = layouts[i % 6],
                     .softcap = i % 5 == 1 ? 4 : 0,
                     .n_buf = i % 7 == 3   ? 2
                              : i % 7 == 5 ? 4
                                           : 1};
    sh.heads = sh.kv_heads * groups[i % 7];
    return sh;
}

/* Batches for one shape: the program is built once. */
static attn_shape batch_of(attn_shape sh, int i)
{
    static const int32_t lens[] = {1, 15, 16, 17, 127, 128, 129, 300};
    static const int32_t windows[] = {0, 1, 16, 100};
    sh.window = windows[i % 4];
    sh.n_seq = 4;
    sh.kv_len[0] = lens[i % 8];
    sh.q_len[0] = 1;
    sh.kv_len[1] = lens[(i + 3) % 8];
    sh.q_len[1] = FOLIO_MIN(sh.kv_len[1], 5 + i * 7);
    sh.kv_len[2] = 5;
    sh.q_len[2] = 0;
    sh.kv_len[3] = lens[(i + 6) % 8];
    sh.q_len[3] = FOLIO_MIN(sh.kv_len[3], 2);
    return sh;
}

static void check_case(folio_device *dev, const attn_shape *sh,
                       const attn_run *run, uint64_t seed)
{
    attn_case c;
    char what[120];
    attn_case_init(&c, sh, seed);
    float *want = attn_case_out(&c), *got = attn_case_out(&c);
    attn_case_ref(&c, want);
    attn_run r = *run;
    r.dev = dev;
    attn_case_run(&c, &r, got);
    snprintf(what, sizeof what, "%s, chunk %d, seed %d", r.variant, r.chunk,
             (int)seed);
    attn_case_compare(&c, what, got, want, 1e-5, 1e-4);
    free(want);
    free(got);
    attn_case_fini(&c);
}

/* attn_cpu is for CPU drivers only, attn_tile for work-groups of eight. */
static bool offered(const folio_device *dev, const char *name)
{
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    if (strcmp(name, "attn_cpu") == 0)
        return (info.caps & FOLIO_CAP_CPU) != 0;
    return strcmp(name, "attn_tile") != 0 || info.max_work_group >= 8;
}

static void check_variant(const char *name, int from, int to)
{
    folio_device *dev = open_device();
    if (!offered(dev, name))
        to = from;
    for (int i = from; i < to; i++) {
        attn_shape sh = shape_of(i);
        if (strcmp(name, "attn_tile") == 0 && sh.head_dim % 4)
            continue;
        for (int b = 0; b < 6; b++) {
            attn_shape with = batch_of(sh, b + i);
            attn_run r = {.variant = name, .deterministic = b % 2};
            if (strcmp(name, "attn_tile") == 0)
                r.deterministic = false;
            check_case(dev, &with, &r, (uint64_t)(i * 10 + b));
        }
    }
    folio_device_close(&dev);
}

Test(ops_attn_cl, item, .timeout = 300)
{
    check_variant("attn_item", 0, 6);
}

Test(ops_attn_cl, cpu, .timeout = 300)
{
    check_variant("attn_cpu", 0, 9);
}

Test(ops_attn_cl, split, .timeout = 300)
{
    check_variant("attn_split", 0, 7);
}

Test(ops_attn_cl, tile, .timeout = 300)
{
    check_variant("attn_tile", 2, 7);
}

static const char *const variants[] = {"attn_item", "attn_cpu", "attn_split",
                                       "attn_tile"};

Test(ops_attn_cl, golden_vectors, .timeout = 300)
{
    folio_device *dev = open_device();
    for (int i = 0; i < 8; i++) {
        attn_run r = {.dev = dev, .variant = variants[i / 2]};
        if (!offered(dev, r.variant))
            continue;
        attn_case c;
        float got[48], want[48];
        attn_case_golden(&c, 1 + i % 2, want);
        attn_case_run(&c, &r, got);
        attn_case_compare(&c, r.variant, got, want, 1e-5, 1e-4);
        attn_case_fini(&c);
    }
    folio_device_close(&dev);
}

/* One, two and 128 pieces, and every size between, give the same answer. */
Test(ops_attn_cl, forced_splits, .timeout = 300)
{
    folio_device *dev = open_device();
    attn_shape sh = shape_of(0);
    sh.n_seq = 2;
    sh.q_len[0] = 1;
    sh.kv_len[0] = 2048;
    sh.q_len[1] = 1;
    sh.kv_len[1] = 77;
    static const int32_t chunks[] = {16, 32, 48, 256, 512, 1024, 2032, 2048};
    for (size_t i = 0; i < FOLIO_COUNT(chunks); i++) {
        for (int w = 0; w < 2; w++) {
            sh.window = w ? 700 : 0;
            attn_run r = {
                .variant = "attn_split", .chunk = chunks[i], .n_partials = 256};
            check_case(dev, &sh, &r, 5);
        }
    }
    folio_device_close(&dev);
}

/* A token alone has the bits it has in a batch. */
Test(ops_attn_cl, batch_invariant, .timeout = 300)
{
    folio_device *dev = open_device();
    attn_shape sh = shape_of(0);
    size_t row = (size_t)sh.kv_heads * (size_t)sh.head_dim;
    size_t width = (size_t)sh.heads * (size_t)sh.head_dim;
    sh.n_seq = 3;
    sh.q_len[0] = 1;
    sh.kv_len[0] = 700;
    sh.q_len[1] = 20;
    sh.kv_len[1] = 530;
    sh.q_len[2] = 3;
    sh.kv_len[2] = 90;
    for (int v = 0; v < 3; v++) {
        attn_run r = {
            .dev = dev, .variant = variants[v], .deterministic = true};
        attn_case c;
        attn_case_init(&c, &sh, 9);
        float *all = attn_case_out(&c);
        attn_case_run(&c, &r, all);
        for (int i = 0; i < 9; i++) {
            int32_t s = i % 3;
            int32_t tok = c.q_start[s] + i * 7 % sh.q_len[s];
            int32_t n = sh.kv_len[s] - (c.q_start[s + 1] - tok) + 1;
            attn_shape alone = sh;
            alone.n_seq = 1;
            alone.q_len[0] = 1;
            alone.kv_len[0] = n;
            attn_case d;
            attn_case_init(&d, &alone, 77 + (uint64_t)i);
            memcpy(d.q, c.q + (size_t)tok * width, width * sizeof(float));
            memcpy(d.k[0], c.k[s], (size_t)n * row * sizeof(float));
            memcpy(d.v[0], c.v[s], (size_t)n * row * sizeof(float));
            attn_case_store(&d, 0);
            float *out = attn_case_out(&d);
            attn_case_run(&d, &r, out);
            cr_assert_eq(
                memcmp(out, all + (size_t)tok * width, width * sizeof(float)),
                0, "%s: token %d alone differs", r.variant, tok);
            free(out);
            attn_case_fini(&d);
        }
        free(all);
        attn_case_fini(&c);
    }
    folio_device_close(&dev);
}

/* A pool of blocks of one token, where ids need more than 16 bits. */
Test(ops_attn_cl, block_ids_above_65536, .timeout = 300)
{
    folio_device *dev = open_device();
    attn_shape sh = {.heads = 4,
                     .kv_heads = 2,
                     .head_dim = 4,
                     .block_size = 1,
                     .type = FOLIO_KV_F32,
                     .layout = {4, 1, 4, 1},
                     .n_seq = 2,
                     .q_len = {1, 9},
                     .kv_len = {300, 40},
                     .first_id = 70000};
    for (int v = 0; v < 4; v++) {
        attn_run r = {.variant = variants[v]};
        if (offered(dev, r.variant))
            check_case(dev, &sh, &r, 31);
    }
    folio_device_close(&dev);
}

/* Small and f32, so that an emulator can watch every access: tails of blocks,
 * of chunks, of head groups and of tiles. */
Test(ops_attn_cl, small, .timeout = 600)
{
    folio_device *dev = open_device();
    for (int i = 0; i < 3; i++) {
        attn_shape sh = {.kv_heads = 1 + i % 2,
                         .head_dim = i == 1 ? 12 : 8,
                         .block_size = i == 2 ? 16 : 4,
                         .type = FOLIO_KV_F32,
                         .layout = {i == 2 ? 1 : 4, 1, i == 1 ? 4 : 8, 1},
                         .window = i == 1 ? 7 : 0,
                         .softcap = i == 2 ? 3 : 0,
                         .n_seq = 3,
                         .q_len = {1, 13, 3},
                         .kv_len = {45, 20, 3},
                         .n_buf = 1 + i % 2};
        sh.heads = sh.kv_heads * (i == 1 ? 9 : 3);
        for (int v = 0; v < 4; v++) {
            attn_run r = {
                .variant = variants[v], .chunk = 16, .n_partials = 60};
            if (offered(dev, r.variant))
                check_case(dev, &sh, &r, 50 + (uint64_t)i);
        }
    }
    folio_device_close(&dev);
}

/* The plan's scratch is kept; what does not fit the device says so. */
Test(ops_attn_cl, refusals)
{
    folio_device *dev = open_device();
    folio_queue *q = NULL;
    folio_op *op = NULL;
    folio_op_params prm = {0};
    cr_assert_eq(folio_queue_open(dev, &q), FOLIO_OK);
    folio_attn_args a = {.q_stride = 28,
                         .out_stride = 28,
                         .n_tok = 1,
                         .heads = 4,
                         .scale = 1,
                         .kv = {.type = FOLIO_KV_F16,
                                .layout = {7, 1, 7, 1},
                                .n_blocks = 8,
                                .block_size = 4,
                                .kv_heads = 1,
                                .head_dim = 7}};
    cr_assert_eq(folio_op_open_variant(dev, "attn_tile", &prm, &a, &op),
                 FOLIO_E_UNSUPPORTED);
    prm.deterministic = true;
    a.kv.head_dim = 8;
    a.q_stride = a.out_stride = 32;
    a.kv.layout = (folio_kv_layout){8, 1, 8, 1};
    cr_assert_eq(folio_op_open(dev, FOLIO_OP_ATTN, &prm, &a, &op), FOLIO_OK);
    cr_assert(op->var->flags & FOLIO_VAR_BATCH_INVARIANT);
    folio_op_close(&op);
    a.kv.type = FOLIO_KV_I8;
    cr_assert_eq(folio_op_open(dev, FOLIO_OP_ATTN, &prm, &a, &op),
                 FOLIO_E_UNSUPPORTED);
    cr_assert_null(op);
    folio_queue_close(&q);
    folio_device_close(&dev);
}
