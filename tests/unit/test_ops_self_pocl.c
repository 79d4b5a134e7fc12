/* The self-test and its remembered verdicts on an OpenCL device. Needs PoCL;
 * skipped with a reason where there is none, except in CI. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/choose.h"
#include "ops/self_test.h"

typedef struct lab {
    folio_device *dev;
    char dir[64];
    char log[4096];
} lab;

static void keep_log(void *user, folio_log_level level, const char *text)
{
    lab *l = user;
    size_t used = strlen(l->log);
    if (level <= FOLIO_LOG_WARN && used + 1 < sizeof l->log)
        snprintf(l->log + used, sizeof l->log - used, "%s\n", text);
}

static void open_lab(lab *l)
{
    folio_device_params p;
    memset(l, 0, sizeof *l);
    snprintf(l->dir, sizeof l->dir, "/tmp/folio-self-XXXXXX");
    cr_assert_not_null(mkdtemp(l->dir));
    folio_device_params_default(&p);
    p.select = "pocl";
    p.cache_dir = l->dir;
    p.log = (folio_log){.fn = keep_log, .user = l, .max_level = FOLIO_LOG_WARN};
    folio_status st = folio_device_open(&p, &l->dev);
    if (st == FOLIO_E_NO_DEVICE && !getenv("CI")) {
        rmdir(l->dir);
        cr_skip_test("no PoCL here");
    }
    cr_assert_eq(st, FOLIO_OK, "%s", l->log);
    l->log[0] = '\0';
}

static void close_lab(lab *l)
{
    folio_device_close(&l->dev);
    DIR *d = opendir(l->dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", l->dir, e->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
    rmdir(l->dir);
}

static int n_runs;

/* Writes nothing: the output stays poisoned. */
static folio_status run_nothing(folio_op *op, folio_queue *q, const void *args)
{
    (void)op, (void)q, (void)args;
    n_runs++;
    return FOLIO_OK;
}

static const folio_variant_fns silent = {.run = run_nothing};

static folio_variant silent_row(void)
{
    return (folio_variant){.op = FOLIO_OP_ADD,
                           .name = "add_silent",
                           .where = FOLIO_ON_CL,
                           .fragments = "common.clh act.clh act.cl",
                           .fns = &silent};
}

Test(ops_self_pocl, verdicts_are_remembered)
{
    lab l;
    char why[FOLIO_SELF_WHY_MAX];
    folio_op_params prm = {0};
    folio_add_args a = {.n = 100};
    folio_variant row = silent_row();
    open_lab(&l);
    n_runs = 0;
    cr_expect_eq(folio_op_self_verdict(l.dev, &row, &prm, &a, why), FOLIO_OK,
                 "judged without a run");
    cr_expect_eq(folio_op_self_test(l.dev, &row, &prm, &a, why), FOLIO_E_BUILD);
    cr_expect_eq(n_runs, 1);
    memset(why, 0, sizeof why);
    cr_expect_eq(folio_op_self_test(l.dev, &row, &prm, &a, why), FOLIO_E_BUILD);
    cr_expect_eq(n_runs, 1, "ran again");
    cr_expect(strstr(why, "the reference says"), "%s", why);
    cr_expect_eq(folio_op_self_verdict(l.dev, &row, &prm, &a, why),
                 FOLIO_E_BUILD);
    /* Other text, other name, other case: another verdict. */
    row.fragments = "common.clh";
    cr_expect_eq(folio_op_self_verdict(l.dev, &row, &prm, &a, why), FOLIO_OK);
    row = silent_row();
    row.name = "add_silent_2";
    cr_expect_eq(folio_op_self_verdict(l.dev, &row, &prm, &a, why), FOLIO_OK);
    row = silent_row();
    a.n = 99;
    cr_expect_eq(folio_op_self_verdict(l.dev, &row, &prm, &a, why), FOLIO_OK);
    close_lab(&l);
}

/* A real kernel that the self-test is made to distrust: named, and the next row
 * is taken. */
Test(ops_self_pocl, broken_on_purpose)
{
    lab l;
    folio_op *op = NULL;
    folio_op_params prm = {.deterministic = true,
                           .break_variant = "rmsnorm_row"};
    folio_rmsnorm_args a = {
        .n_rows = 2, .dim = 64, .x_stride = 64, .out_stride = 64, .eps = 1e-5f};
    open_lab(&l);
    cr_assert_eq(folio_op_open(l.dev, FOLIO_OP_RMSNORM, &prm, &a, &op),
                 FOLIO_OK, "%s", l.log);
    cr_expect_str_eq(folio_op_variant_name(op), "rmsnorm_wg");
    cr_expect_str_eq(folio_op_reason(op), "rmsnorm_row: failed its self-test");
    cr_expect(strstr(l.log, "rmsnorm_row fails its self-test"), "%s", l.log);
    folio_op_close(&op);
    l.log[0] = '\0';
    prm.break_variant = NULL;
    cr_assert_eq(folio_op_open(l.dev, FOLIO_OP_RMSNORM, &prm, &a, &op),
                 FOLIO_OK, "%s", l.log);
    cr_expect_str_eq(folio_op_variant_name(op), "rmsnorm_row");
    cr_expect_str_eq(l.log, "");
    folio_op_close(&op);
    close_lab(&l);
}

/* What a small model asks for, from every row of this side that takes it. */
Test(ops_self_pocl, every_row_passes, .timeout = 240)
{
    lab l;
    folio_weight w = {.type = FOLIO_TYPE_Q4_1, .rows = 192, .cols = 576};
    folio_kv_ref kv = {.type = FOLIO_KV_F16,
                       .layout = {64, 1, 64, 1},
                       .n_blocks = 8,
                       .block_size = 16,
                       .kv_heads = 3,
                       .head_dim = 64};
    folio_any_args c[FOLIO_OP_COUNT];
    memset(c, 0, sizeof c);
    c[FOLIO_OP_EMBED].embed =
        (folio_embed_args){.w = &w, .scale = 1, .n_tok = 4};
    c[FOLIO_OP_GATHER_ROWS].gather =
        (folio_gather_rows_args){.n_rows = 2, .dim = 576};
    c[FOLIO_OP_RMSNORM].rmsnorm = (folio_rmsnorm_args){.n_rows = 64,
                                                       .dim = 576,
                                                       .x_stride = 576,
                                                       .out_stride = 576,
                                                       .eps = 1e-5f};
    c[FOLIO_OP_LINEAR].linear = (folio_linear_args){
        .w = &w, .n_tok = 64, .x_stride = 576, .y_stride = 192};
    c[FOLIO_OP_ROPE_APPEND].rope = (folio_rope_append_args){.q_stride = 576,
                                                            .k_stride = 192,
                                                            .v_stride = 192,
                                                            .n_pos = 64,
                                                            .rot_dim = 64,
                                                            .interleaved = 1,
                                                            .n_tok = 64,
                                                            .heads = 9,
                                                            .kv = kv};
    c[FOLIO_OP_ATTN].attn = (folio_attn_args){.q_stride = 576,
                                              .out_stride = 576,
                                              .n_tok = 64,
                                              .heads = 9,
                                              .scale = 0.125f,
                                              .kv = kv};
    c[FOLIO_OP_ACT_MUL].act = (folio_act_mul_args){.n_tok = 64,
                                                   .dim = 1536,
                                                   .gate_stride = 1536,
                                                   .up_stride = 1536,
                                                   .out_stride = 1536};
    c[FOLIO_OP_ADD].add = (folio_add_args){.n = 576 * 64};
    c[FOLIO_OP_TOPK].topk =
        (folio_topk_args){.n_rows = 2, .n_vocab = 49152, .k = 4};
    c[FOLIO_OP_COPY_BLOCKS].copy =
        (folio_copy_blocks_args){.n_pairs = 2, .kv = kv};
    c[FOLIO_OP_SAMPLE].sample = (folio_sample_args){.n_rows = 8,
                                                    .n_vocab = 49152,
                                                    .stride = 49152,
                                                    .n_edits = 100,
                                                    .n_slots = 8};
    folio_weight wq = w, up = w;
    wq.rows = 576;
    const folio_norm_in in = {.dim = 576, .x_stride = 576, .eps = 1e-5f};
    c[FOLIO_OP_NORM_LINEAR].norm_linear = (folio_norm_linear_args){
        .in = in,
        .gather = 1,
        .part = {{.w = &w, .y_stride = 192}, {.w = &w, .y_stride = 192}},
        .n_parts = 2,
        .n_tok = 8};
    c[FOLIO_OP_QKV].qkv = (folio_qkv_args){.in = in,
                                           .wq = &wq,
                                           .wk = &w,
                                           .wv = &w,
                                           .q_stride = 576,
                                           .n_pos = 64,
                                           .rot_dim = 64,
                                           .n_tok = 8,
                                           .heads = 9,
                                           .kv = kv};
    c[FOLIO_OP_GATE_UP].gate_up = (folio_gate_up_args){
        .in = in, .gate = &w, .up = &up, .n_tok = 8, .out_stride = 192};
    open_lab(&l);
    size_t n, tested = 0;
    const folio_variant *rows = folio_variants(&n);
    for (size_t i = 0; i < n; i++) {
        char why[FOLIO_SELF_WHY_MAX];
        folio_op_params prm = {0};
        const void *args = &c[rows[i].op];
        /* CLBlast compiles for 14 s at its first use; checks cover it. */
        if (rows[i].where != FOLIO_ON_CL || strstr(rows[i].name, "clblast") ||
            folio_variant_refuse(l.dev, &rows[i], &prm, args))
            continue;
        cr_expect_eq(folio_op_self_test(l.dev, &rows[i], &prm, args, why),
                     FOLIO_OK, "%s: %s %s", rows[i].name, why, l.log);
        tested++;
    }
    cr_expect(tested >= 6, "only %zu rows", tested);
    close_lab(&l);
}

/* Rows in 8 bits, and what is made of them, are judged as such: the fused ops
 * on packed weights where the parts are free to compute in 8 bits. */
Test(ops_self_pocl, eight_bits_pass, .timeout = 300)
{
    lab l;
    folio_weight w = {.type = FOLIO_TYPE_Q8_0,
                      .packing = FOLIO_PACK_RG16,
                      .rows = 256,
                      .cols = 576};
    folio_kv_ref kv = {.type = FOLIO_KV_F16,
                       .layout = {8, 1, 8, 1},
                       .n_blocks = 8,
                       .block_size = 16,
                       .kv_heads = 4,
                       .head_dim = 64};
    const folio_norm_in in = {.dim = 576, .x_stride = 576, .eps = 1e-5f};
    const folio_op_params prm = {0};
    folio_any_args c[FOLIO_OP_COUNT];
    char why[FOLIO_SELF_WHY_MAX];
    folio_op *op = NULL;
    size_t n, tested = 0;
    memset(c, 0, sizeof c);
    c[FOLIO_OP_NORM_LINEAR].norm_linear =
        (folio_norm_linear_args){.in = in,
                                 .part = {{.w = &w, .y_stride = 256}},
                                 .n_parts = 1,
                                 .n_tok = 1};
    c[FOLIO_OP_QKV].qkv = (folio_qkv_args){.in = in,
                                           .wq = &w,
                                           .wk = &w,
                                           .wv = &w,
                                           .q_stride = 256,
                                           .n_pos = 64,
                                           .rot_dim = 64,
                                           .n_tok = 1,
                                           .heads = 4,
                                           .kv = kv};
    c[FOLIO_OP_GATE_UP].gate_up = (folio_gate_up_args){
        .in = in, .gate = &w, .up = &w, .n_tok = 1, .out_stride = 256};
    setenv("FOLIO_TUNE",
           "linear_gemv_i8:UNROLL=1;norm_linear_gemv_i8:UNROLL=1;"
           "qkv_gemv_i8:UNROLL=1;gate_up_gemv_i8:UNROLL=1",
           1);
    open_lab(&l);
    const folio_variant *rows = folio_variants(&n);
    for (size_t i = 0; i < n; i++) {
        const void *args = &c[rows[i].op];
        bool parts = strstr(rows[i].name, "_parts") != NULL;
        if (rows[i].where != FOLIO_ON_CL || rows[i].op < FOLIO_OP_NORM_LINEAR ||
            rows[i].op > FOLIO_OP_GATE_UP || /* the step has tests of its own */
            !(parts || (rows[i].flags & FOLIO_VAR_Q8)))
            continue;
        cr_expect_null(folio_variant_refuse(l.dev, &rows[i], &prm, args));
        cr_assert_eq(folio_variant_open(l.dev, &rows[i], &prm, args, &op),
                     FOLIO_OK, "%s: %s", rows[i].name, l.log);
        cr_expect(folio_op_is_inexact(op), "%s", rows[i].name);
        folio_op_close(&op);
        cr_expect_eq(folio_op_self_test(l.dev, &rows[i], &prm, args, why),
                     FOLIO_OK, "%s: %s %s", rows[i].name, why, l.log);
        tested++;
    }
    cr_expect_eq(tested, 6u);
    unsetenv("FOLIO_TUNE");
    close_lab(&l);
}
