/* Which row of the table is taken and what is said about the others; the
 * self-test on rows that are wrong on purpose. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/choose.h"
#include "ops/self_test.h"
#include "ops_bed.h"

static folio_rmsnorm_args norm_args(int32_t n_rows)
{
    return (folio_rmsnorm_args){.n_rows = n_rows,
                                .dim = 96,
                                .x_stride = 96,
                                .out_stride = 96,
                                .eps = 1e-5f};
}

/* ---- rows made up for these tests ---- */

static const folio_variant_fns *real_fns(const char *name)
{
    size_t n;
    const folio_variant *v = folio_variants(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(v[i].name, name) == 0)
            return v[i].fns;
    cr_assert_fail("no row %s", name);
    return NULL;
}

static folio_status run_good(folio_op *op, folio_queue *q, const void *args)
{
    return real_fns("host_rmsnorm")->run(op, q, args);
}

/* Forgets the last column. */
static folio_status run_wrong(folio_op *op, folio_queue *q, const void *args)
{
    const folio_rmsnorm_args *a = args;
    FOLIO_RETURN_IF(run_good(op, q, args));
    float *out = folio_view_host(a->out);
    out[(size_t)(a->n_rows - 1) * (size_t)a->out_stride + (size_t)a->dim - 1] =
        0;
    return FOLIO_OK;
}

static folio_status run_nothing(folio_op *op, folio_queue *q, const void *args)
{
    (void)op, (void)q, (void)args;
    return FOLIO_OK;
}

static folio_status run_failing(folio_op *op, folio_queue *q, const void *args)
{
    (void)op, (void)q, (void)args;
    return FOLIO_E_INTERNAL;
}

static folio_status open_broken(folio_op *op, const void *args)
{
    (void)op, (void)args;
    return FOLIO_E_BUILD;
}

static folio_status open_poor(folio_op *op, const void *args)
{
    (void)op, (void)args;
    return FOLIO_E_NOMEM;
}

static const char *fits_never(const folio_device *dev,
                              const folio_op_params *prm, const void *args)
{
    (void)dev, (void)prm, (void)args;
    return "dim is not round";
}

static const folio_variant_fns good = {.run = run_good};
static const folio_variant_fns wrong = {.run = run_wrong};
static const folio_variant_fns silent = {.run = run_nothing};
static const folio_variant_fns failing = {.run = run_failing};
static const folio_variant_fns unbuilt = {.open = open_broken, .run = run_good};
static const folio_variant_fns poor = {.open = open_poor, .run = run_good};
static const folio_variant_fns unfit = {.fits = fits_never, .run = run_good};

#define ROW(n, f, needs_, flags_)                                              \
    {                                                                          \
        .op = FOLIO_OP_RMSNORM, .name = n, .where = FOLIO_ON_HOST,             \
        .fragments = "", .needs = needs_, .flags = flags_, .fns = f            \
    }

static void expect_choice(const folio_variant *rows, size_t n,
                          const folio_op_params *prm, const char *name,
                          const char *reason, const char *log)
{
    bed b;
    folio_op *op = NULL;
    folio_rmsnorm_args a = norm_args(3);
    bed_open(&b, 1, 1);
    folio_status st =
        folio_op_choose(rows, n, b.dev, FOLIO_OP_RMSNORM, prm, &a, &op);
    if (name) {
        cr_assert_eq(st, FOLIO_OK, "%s", b.log);
        cr_expect_str_eq(folio_op_variant_name(op), name);
        cr_expect_str_eq(folio_op_reason(op), reason);
    } else {
        cr_expect_eq(st, FOLIO_E_UNSUPPORTED);
        cr_expect_null(op);
    }
    if (*log)
        cr_expect(strstr(b.log, log), "\"%s\" is not in: %s", log, b.log);
    else
        cr_expect_str_eq(b.log, "");
    folio_op_close(&op);
    bed_close(&b);
}

static const folio_op_params plain;

Test(ops_choose, first_row_wins)
{
    const folio_variant rows[] = {ROW("a", &good, 0, 0), ROW("b", &good, 0, 0)};
    expect_choice(rows, 2, &plain, "a", "", "");
}

Test(ops_choose, other_ops_and_places_are_skipped)
{
    folio_variant rows[] = {ROW("a", &good, 0, 0), ROW("b", &good, 0, 0),
                            ROW("c", &good, 0, 0)};
    rows[0].op = FOLIO_OP_ADD;
    rows[1].where = FOLIO_ON_CL;
    expect_choice(rows, 3, &plain, "c", "", "");
}

Test(ops_choose, needs_and_fit)
{
    const folio_variant rows[] = {
        ROW("a", &good, FOLIO_CAP_PTX | FOLIO_CAP_GPU, 0),
        ROW("b", &unfit, 0, 0), ROW("c", &good, 0, 0)};
    char want[160] = "";
    folio_reason_add(want, sizeof want, "a", folio_cap_name(1)); /* GPU */
    folio_reason_add(want, sizeof want, "b", "dim is not round");
    expect_choice(rows, 3, &plain, "c", want, "");
}

Test(ops_choose, deterministic_and_exact)
{
    const folio_variant rows[] = {
        ROW("a", &good, 0, FOLIO_VAR_INEXACT | FOLIO_VAR_BATCH_INVARIANT),
        ROW("b", &good, 0, FOLIO_VAR_UNORDERED),
        ROW("c", &good, 0, FOLIO_VAR_BATCH_INVARIANT)};
    folio_op_params exact = {.exact = true};
    folio_op_params fixed = {.deterministic = true};
    folio_op_params both = {.exact = true, .deterministic = true};
    expect_choice(rows, 3, &plain, "a", "", "");
    expect_choice(rows, 3, &exact, "b", "a: not exact", "");
    expect_choice(rows + 1, 2, &fixed, "c", "b: not deterministic", "");
    expect_choice(rows, 3, &both, "c", "a: not exact; b: not deterministic",
                  "");
}

Test(ops_choose, disabled_by_name)
{
    const folio_variant rows[] = {ROW("first_one", &good, 0, 0),
                                  ROW("first", &good, 0, 0),
                                  ROW("last", &good, 0, 0)};
    setenv("FOLIO_DISABLE", "first_one", 1);
    expect_choice(rows, 3, &plain, "first", "first_one: disabled", "");
    setenv("FOLIO_DISABLE", "first_one,first", 1);
    expect_choice(rows, 3, &plain, "last",
                  "first_one: disabled; first: disabled", "");
    setenv("FOLIO_DISABLE", "first_one,last,first", 1);
    expect_choice(rows, 3, &plain, NULL, "",
                  "no variant of rmsnorm can run: first_one: disabled; first: "
                  "disabled; last: disabled");
    unsetenv("FOLIO_DISABLE");
}

/* A name that no row has is told once for each device. */
Test(ops_choose, disabled_by_a_wrong_name)
{
    bed b;
    folio_rmsnorm_args a = norm_args(3);
    setenv("FOLIO_DISABLE", "host_rmsnorn,ref_rmsnorm,,x", 1);
    for (int i = 0; i < 2; i++) {
        bed_open(&b, 1, 1);
        for (int j = 0; j < 2; j++) {
            folio_op *op = NULL;
            cr_assert_eq(
                folio_op_open(b.dev, FOLIO_OP_RMSNORM, &plain, &a, &op),
                FOLIO_OK, "%s", b.log);
            cr_expect_str_eq(folio_op_variant_name(op), "host_rmsnorm");
            cr_expect_str_eq(
                b.log, j ? ""
                         : "FOLIO_DISABLE: no variant is called host_rmsnorn\n"
                           "FOLIO_DISABLE: no variant is called x\n");
            b.log[0] = '\0';
            folio_op_close(&op);
        }
        bed_close(&b);
    }
    unsetenv("FOLIO_DISABLE");
}

/* So is one of FOLIO_TUNE. */
Test(ops_choose, tuned_by_a_wrong_name)
{
    bed b;
    folio_rmsnorm_args a = norm_args(3);
    setenv("FOLIO_TUNE", "linear_gemw:LANES=2,KC=1;many:FROM=3;linear_gemv:X=1",
           1);
    bed_open(&b, 1, 1);
    for (int j = 0; j < 2; j++) {
        folio_op *op = NULL;
        cr_assert_eq(folio_op_open(b.dev, FOLIO_OP_RMSNORM, &plain, &a, &op),
                     FOLIO_OK, "%s", b.log);
        cr_expect_str_eq(b.log, j ? ""
                                  : "FOLIO_TUNE: no variant is called "
                                    "linear_gemw\n");
        b.log[0] = '\0';
        folio_op_close(&op);
    }
    bed_close(&b);
    unsetenv("FOLIO_TUNE");
}

Test(ops_choose, build_failure_falls_through)
{
    const folio_variant rows[] = {ROW("a", &unbuilt, 0, 0),
                                  ROW("b", &good, 0, 0)};
    expect_choice(rows, 2, &plain, "b", "a: does not build",
                  "a does not build; trying the next variant of rmsnorm");
}

/* Too little memory is no property of the variant. */
Test(ops_choose, other_failures_end_the_search)
{
    const folio_variant rows[] = {ROW("a", &poor, 0, 0), ROW("b", &good, 0, 0)};
    bed b;
    folio_op *op = NULL;
    folio_rmsnorm_args a = norm_args(3);
    bed_open(&b, 1, 1);
    cr_expect_eq(
        folio_op_choose(rows, 2, b.dev, FOLIO_OP_RMSNORM, &plain, &a, &op),
        FOLIO_E_NOMEM);
    cr_expect_null(op);
    bed_close(&b);
}

Test(ops_choose, none_exists)
{
    expect_choice(NULL, 0, &plain, NULL, "",
                  "no variant of rmsnorm can run: none exists");
}

Test(ops_choose, long_reasons_are_cut)
{
    folio_variant rows[20];
    for (int i = 0; i < 19; i++)
        rows[i] = (folio_variant)ROW("unsuitable_one", &unfit, 0, 0);
    rows[19] = (folio_variant)ROW("z", &good, 0, 0);
    bed b;
    folio_op *op = NULL;
    folio_rmsnorm_args a = norm_args(3);
    bed_open(&b, 1, 1);
    cr_assert_eq(
        folio_op_choose(rows, 20, b.dev, FOLIO_OP_RMSNORM, &plain, &a, &op),
        FOLIO_OK);
    cr_expect_eq(strlen(folio_op_reason(op)), 159u);
    folio_op_close(&op);
    bed_close(&b);
}

/* ---- self-test ---- */

Test(ops_choose, wrong_rows_are_named_and_avoided)
{
    const folio_variant rows[] = {
        ROW("wrong", &wrong, 0, 0), ROW("silent", &silent, 0, 0),
        ROW("failing", &failing, 0, 0), ROW("right", &good, 0, 0)};
    expect_choice(rows, 4, &plain, "right",
                  "wrong: failed its self-test; silent: failed its self-test; "
                  "failing: failed its self-test",
                  "wrong fails its self-test: element 287 is 0");
    expect_choice(rows + 1, 3, &plain, "right",
                  "silent: failed its self-test; failing: failed its self-test",
                  "silent fails its self-test");
    expect_choice(rows, 1, &plain, NULL, "", "no variant of rmsnorm can run");
}

Test(ops_choose, broken_on_purpose)
{
    bed b;
    folio_op *op = NULL;
    folio_rmsnorm_args a = norm_args(3);
    folio_op_params prm = {.break_variant = "host_rmsnorm"};
    bed_open(&b, 1, 1);
    cr_assert_eq(folio_op_open(b.dev, FOLIO_OP_RMSNORM, &prm, &a, &op),
                 FOLIO_OK, "%s", b.log);
    cr_expect_str_eq(folio_op_variant_name(op), "ref_rmsnorm");
    cr_expect(strstr(b.log, "host_rmsnorm fails its self-test"), "%s", b.log);
    folio_op_close(&op);
    bed_close(&b);
}

/* A case of every op, as small or as odd as a model may ask for. */
typedef struct any_case {
    folio_op_id op;
    folio_weight w;
    folio_any_args args;
} any_case;

static int make_cases(any_case *c)
{
    static const folio_type types[] = {
        FOLIO_TYPE_F32,  FOLIO_TYPE_F16,    FOLIO_TYPE_BF16,   FOLIO_TYPE_Q4_0,
        FOLIO_TYPE_Q4_1, FOLIO_TYPE_Q5_0,   FOLIO_TYPE_Q5_1,   FOLIO_TYPE_Q8_0,
        FOLIO_TYPE_Q2_K, FOLIO_TYPE_Q3_K,   FOLIO_TYPE_Q4_K,   FOLIO_TYPE_Q5_K,
        FOLIO_TYPE_Q6_K, FOLIO_TYPE_IQ4_NL, FOLIO_TYPE_IQ4_XS, FOLIO_TYPE_MXFP4,
    };
    folio_kv_ref kv = {.type = FOLIO_KV_F16,
                       .layout = {8, 1, 64, 2},
                       .n_blocks = 9,
                       .block_size = 16,
                       .kv_heads = 3,
                       .head_dim = 64};
    folio_kv_ref tiny = {.type = FOLIO_KV_F32,
                         .layout = {4, 1, 1, 1},
                         .n_blocks = 2,
                         .block_size = 1,
                         .kv_heads = 1,
                         .head_dim = 4};
    int n = 0;
    for (size_t i = 0; i < FOLIO_COUNT(types); i++) {
        any_case *l = &c[n++], *e = &c[n++];
        l->op = FOLIO_OP_LINEAR;
        l->w = (folio_weight){.type = types[i], .rows = 70, .cols = 512};
        l->args.linear = (folio_linear_args){.w = &l->w,
                                             .n_tok = i % 2 ? 1 : 100,
                                             .x_stride = 512,
                                             .y_stride = 70,
                                             .accumulate = i % 3 == 0};
        e->op = FOLIO_OP_EMBED;
        e->w = l->w;
        e->args.embed =
            (folio_embed_args){.w = &e->w, .scale = 0.5f, .n_tok = 7};
    }
#define ADD(id, field, ...) (c[n].op = id, c[n++].args.field = (__VA_ARGS__))
    ADD(FOLIO_OP_GATHER_ROWS, gather,
        (folio_gather_rows_args){.n_rows = 5, .dim = 33});
    ADD(FOLIO_OP_RMSNORM, rmsnorm, norm_args(1));
    ADD(FOLIO_OP_RMSNORM, rmsnorm, norm_args(100));
    ADD(FOLIO_OP_ACT_MUL, act,
        (folio_act_mul_args){.n_tok = 2,
                             .dim = 31,
                             .gate_stride = 62,
                             .up_stride = 62,
                             .out_stride = 31});
    ADD(FOLIO_OP_ACT_MUL, act,
        (folio_act_mul_args){.n_tok = 1,
                             .dim = 1,
                             .gate_stride = 1,
                             .up_stride = 1,
                             .out_stride = 1,
                             .act = FOLIO_ACT_GELU_TANH});
    ADD(FOLIO_OP_ADD, add, (folio_add_args){.n = 5000});
    ADD(FOLIO_OP_TOPK, topk,
        (folio_topk_args){.n_rows = 4, .n_vocab = 49152, .k = 1});
    ADD(FOLIO_OP_TOPK, topk,
        (folio_topk_args){.n_rows = 1, .n_vocab = 30, .k = 64});
    ADD(FOLIO_OP_COPY_BLOCKS, copy,
        (folio_copy_blocks_args){.n_pairs = 8, .kv = kv});
    ADD(FOLIO_OP_COPY_BLOCKS, copy,
        (folio_copy_blocks_args){.n_pairs = 1, .kv = tiny});
    folio_rope_append_args rope = {.q_stride = 9 * 64,
                                   .k_stride = 3 * 64,
                                   .v_stride = 3 * 64,
                                   .n_pos = 2048,
                                   .rot_dim = 64,
                                   .n_tok = 512,
                                   .heads = 9,
                                   .kv = kv};
    ADD(FOLIO_OP_ROPE_APPEND, rope, rope);
    rope.interleaved = 1;
    rope.rot_dim = 32;
    rope.n_tok = 1;
    ADD(FOLIO_OP_ROPE_APPEND, rope, rope);
    rope.kv = tiny;
    rope.heads = 0;
    rope.rot_dim = 0;
    ADD(FOLIO_OP_ROPE_APPEND, rope, rope);
    folio_attn_args attn = {.q_stride = 9 * 64,
                            .out_stride = 9 * 64,
                            .n_tok = 512,
                            .heads = 9,
                            .scale = 0.125f,
                            .kv = kv};
    ADD(FOLIO_OP_ATTN, attn, attn);
    attn.n_tok = 1;
    attn.window = 100;
    ADD(FOLIO_OP_ATTN, attn, attn);
    attn.window = 0;
    attn.softcap = 30;
    attn.n_tok = 4;
    attn.kv = tiny;
    ADD(FOLIO_OP_ATTN, attn, attn);
#undef ADD
    return n;
}

enum { MAX_CASES = 80 };

/* Each row of the host passes where it is right, and fails by name where one of
 * its numbers is changed: the self-test sees every op. */
Test(ops_choose, every_host_row_is_tested)
{
    static any_case cases[MAX_CASES];
    bed b;
    bed_open(&b, 2, 1);
    size_t n_rows;
    const folio_variant *rows = folio_variants(&n_rows);
    int n = make_cases(cases), tested = 0;
    cr_assert(n <= MAX_CASES);
    for (int i = 0; i < n; i++)
        for (size_t r = 0; r < n_rows; r++) {
            char why[FOLIO_SELF_WHY_MAX];
            folio_op_params prm = {.deterministic = true};
            if (rows[r].op != cases[i].op || rows[r].where != FOLIO_ON_HOST)
                continue;
            if (folio_variant_refuse(b.dev, &rows[r], &prm, &cases[i].args))
                continue;
            cr_expect_eq(
                folio_op_self_test(b.dev, &rows[r], &prm, &cases[i].args, why),
                FOLIO_OK, "case %d, %s: %s %s", i, rows[r].name, why, b.log);
            prm.break_variant = rows[r].name;
            cr_expect_eq(
                folio_op_self_test(b.dev, &rows[r], &prm, &cases[i].args, why),
                FOLIO_E_BUILD, "case %d, %s was not seen to be wrong", i,
                rows[r].name);
            cr_expect(strstr(why, "the reference says"), "%s", why);
            tested++;
        }
    cr_expect(tested >= n, "only %d of %d", tested, n);
    cr_expect_str_eq(b.log, "");
    bed_close(&b);
}

/* ---- the table ---- */

Test(ops_choose, table_is_well_formed)
{
    size_t n;
    const folio_variant *v = folio_variants(&n);
    int floors[2][FOLIO_OP_COUNT] = {{0}};
    for (size_t i = 0; i < n; i++) {
        cr_expect((unsigned)v[i].op < FOLIO_OP_COUNT && v[i].fns->run);
        for (size_t j = 0; j < i; j++)
            cr_expect_str_neq(v[i].name, v[j].name);
        cr_expect_eq(floors[v[i].where][v[i].op], 0,
                     "%s comes behind the floor", v[i].name);
        if (v[i].flags & FOLIO_VAR_FLOOR) {
            floors[v[i].where][v[i].op]++;
            cr_expect_eq(v[i].needs, 0u, "%s", v[i].name);
            cr_expect(v[i].flags & FOLIO_VAR_BATCH_INVARIANT, "%s", v[i].name);
            cr_expect_not(v[i].flags & FOLIO_VAR_INEXACT, "%s", v[i].name);
        }
        if (v[i].flags & FOLIO_VAR_UNORDERED)
            cr_expect_not(v[i].flags & FOLIO_VAR_BATCH_INVARIANT, "%s",
                          v[i].name);
        if (v[i].where == FOLIO_ON_HOST) {
            cr_expect_str_eq(v[i].fragments, "");
        } else {
            char *text = folio_kernel_source(v[i].fragments);
            cr_expect_not_null(text, "%s: fragments %s", v[i].name,
                               v[i].fragments);
            free(text);
        }
    }
    for (int op = 0; op < FOLIO_OP_COUNT; op++) {
        cr_expect_eq(floors[FOLIO_ON_HOST][op], 1, "%s on the host",
                     folio_op_name((folio_op_id)op));
    }
}

Test(ops_choose, open_variant_by_name)
{
    bed b;
    folio_op *op = NULL;
    folio_rmsnorm_args a = norm_args(2);
    bed_open(&b, 1, 1);
    cr_expect_eq(folio_op_open_variant(b.dev, "no_such", &plain, &a, &op),
                 FOLIO_E_NOT_FOUND);
    cr_expect_null(op);
    cr_assert_eq(folio_op_open_variant(b.dev, "ref_rmsnorm", &plain, &a, &op),
                 FOLIO_OK);
    cr_expect_str_eq(folio_op_variant_name(op), "ref_rmsnorm");
    cr_expect_eq(folio_op_scratch_bytes(op), 0u);
    folio_op_close(&op);
    folio_op_close(&op); /* NULL is allowed */
    folio_op_close(NULL);
    bed_close(&b);
}

Test(ops_choose, device_choice_lists_all)
{
    bed b;
    folio_choice c;
    size_t n = 0;
    bool seen[FOLIO_OP_COUNT] = {false};
    setenv("FOLIO_DISABLE", "host_rmsnorm", 1);
    bed_open(&b, 1, 1);
    for (; folio_device_choice(b.dev, n, &c) == FOLIO_OK; n++) {
        cr_expect(c.what && *c.what);
        cr_expect_str_neq(c.variant, "none", "%s, %s: %s", c.op, c.what,
                          c.reason);
        for (int op = 0; op < FOLIO_OP_COUNT; op++)
            if (strcmp(folio_op_name((folio_op_id)op), c.op) == 0)
                seen[op] = true;
        if (strcmp(c.op, "rmsnorm") == 0) {
            cr_expect_str_eq(c.variant, "ref_rmsnorm");
            cr_expect_str_eq(c.reason, "host_rmsnorm: disabled");
        }
    }
    unsetenv("FOLIO_DISABLE");
    cr_expect(n > 40);
    for (int op = 0; op < FOLIO_OP_COUNT; op++)
        cr_expect(seen[op], "no case of %s", folio_op_name((folio_op_id)op));
    cr_expect_eq(folio_device_choice(b.dev, SIZE_MAX, &c), FOLIO_E_NOT_FOUND);
    cr_expect_str_eq(b.log, "");
    cr_expect_eq(folio_device_choice(NULL, 0, &c), FOLIO_E_INVAL);
    cr_expect_eq(folio_device_choice(b.dev, 0, NULL), FOLIO_E_INVAL);
    cr_expect(strstr(b.log, "folio_device_choice: out is NULL"), "%s", b.log);
    bed_close(&b);
}
