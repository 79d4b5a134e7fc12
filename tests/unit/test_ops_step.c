/* The op step on PoCL: every variant against the reference, over types,
 * packings, shapes of heads, windows and counts of rows, by means of the
 * self-test; and what it refuses. Skipped with a reason where there is no PoCL,
 * except in CI. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/choose.h"
#include "ops/self_test.h"

typedef struct lab {
    folio_device *dev;
    folio_weight w, kv_w, wo, up, down;
    folio_step_layer layer;
    folio_step_args a;
} lab;

static void set_up(lab *l, folio_type type, folio_packing packing, int hd,
                   int heads, int kvh, int tok)
{
    const int dim = 192, ff = 320;
    l->w = (folio_weight){
        .type = type, .packing = packing, .rows = heads * hd, .cols = dim};
    l->kv_w = l->wo = l->up = l->down = l->w;
    l->kv_w.rows = kvh * hd;
    l->wo.rows = dim;
    l->wo.cols = heads * hd;
    l->up.rows = ff;
    l->down.rows = dim;
    l->down.cols = ff;
    l->layer = (folio_step_layer){
        .wq = &l->w,
        .wk = &l->kv_w,
        .wv = &l->kv_w,
        .wo = &l->wo,
        .gate = &l->up,
        .up = &l->up,
        .down = &l->down,
        .kv = {.type = FOLIO_KV_F16,
               .layout = {.xk = 8, .yk = 1, .xv = 8, .yv = 1},
               .n_blocks = 16,
               .block_size = 16,
               .kv_heads = kvh,
               .head_dim = hd}};
    l->a = (folio_step_args){.layers = &l->layer,
                             .n_layers = 1,
                             .dim = dim,
                             .ff = ff,
                             .heads = heads,
                             .eps = 1e-5f,
                             .n_pos = 64,
                             .n_tok = tok,
                             .scale = 0.2f,
                             .n_works = 1};
}

static void say(void *user, folio_log_level level, const char *text)
{
    (void)user;
    (void)level;
    fprintf(stderr, "%s\n", text);
}

static void open_lab(lab *l)
{
    folio_device_params p;
    memset(l, 0, sizeof *l);
    folio_device_params_default(&p);
    p.select = "pocl";
    p.cache_dir = ""; /* no verdicts of other runs */
    p.log.fn = say;
    p.log.max_level = FOLIO_LOG_DEBUG;
    const folio_status st = folio_device_open(&p, &l->dev);
    if (st == FOLIO_E_NO_DEVICE && !getenv("CI"))
        cr_skip_test("no PoCL here");
    cr_assert_eq(st, FOLIO_OK);
}

/* How many rows took it, the kernel in its portable form. */
static int try_all(lab *l, const char *what)
{
    size_t n;
    const folio_variant *rows = folio_variants(&n);
    int took = 0;
    for (size_t i = 0; i < n; i++) {
        char why[FOLIO_SELF_WHY_MAX];
        const folio_op_params prm = {
            .emulate = (rows[i].flags & FOLIO_VAR_EMULATED) != 0};
        if (rows[i].op != FOLIO_OP_STEP || rows[i].where != FOLIO_ON_CL ||
            folio_variant_refuse(l->dev, &rows[i], &prm, &l->a))
            continue;
        cr_expect_eq(folio_op_self_test(l->dev, &rows[i], &prm, &l->a, why),
                     FOLIO_OK, "%s, %s: %s", what, rows[i].name, why);
        took++;
    }
    return took;
}

Test(ops_step, halves_in_groups_of_16_rows, .timeout = 300)
{
    lab l;
    open_lab(&l);
    set_up(&l, FOLIO_TYPE_F16, FOLIO_PACK_RG16, 32, 6, 2, 1);
    cr_expect_eq(try_all(&l, "F16"), 2);
    folio_device_close(&l.dev);
}

Test(ops_step, halves_in_tiles, .timeout = 300)
{
    lab l;
    open_lab(&l);
    set_up(&l, FOLIO_TYPE_F16, FOLIO_PACK_TILE16, 64, 4, 4, 3);
    l.a.interleaved = 1;
    l.a.softcap = 20;
    l.a.act = FOLIO_ACT_GELU_TANH;
    l.layer.kv.block_size = 32;
    cr_expect_eq(try_all(&l, "tiles, interleaved, softcap, gelu, 3 rows"), 2);
    folio_device_close(&l.dev);
}

Test(ops_step, four_bits, .timeout = 300)
{
    lab l;
    open_lab(&l);
    set_up(&l, FOLIO_TYPE_Q4_0, FOLIO_PACK_RG16, 128, 8, 1, 2);
    cr_expect_eq(try_all(&l, "Q4_0, heads of 128, 2 rows"), 2);
    folio_device_close(&l.dev);
}

Test(ops_step, eight_bits, .timeout = 300)
{
    lab l;
    open_lab(&l);
    set_up(&l, FOLIO_TYPE_Q8_0, FOLIO_PACK_RG16, 96, 8, 1, 8);
    cr_expect_eq(try_all(&l, "Q8_0, heads of 96, 8 rows"), 2);
    folio_device_close(&l.dev);
}

/* More groups than a CPU runs at once never meet: the step is given up, not
 * waited for, and what it leaves cannot be taken for a result. */
Test(ops_step, groups_that_never_meet_lose_the_step, .timeout = 300)
{
    lab l;
    size_t n;
    const folio_variant *rows = folio_variants(&n);
    char why[FOLIO_SELF_WHY_MAX] = "";
    const folio_op_params prm = {.emulate = true,
                                 .tune = "GROUPS=999,MAX_LOOKS=3000"};
    open_lab(&l);
    set_up(&l, FOLIO_TYPE_F16, FOLIO_PACK_RG16, 32, 6, 2, 1);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, "step_ring") == 0)
            cr_expect_eq(folio_op_self_test(l.dev, &rows[i], &prm, &l.a, why),
                         FOLIO_E_BUILD);
    cr_expect(strstr(why, "nan"), "%s", why);
    folio_device_close(&l.dev);
}

static const char *refusal(lab *l)
{
    size_t n;
    const folio_variant *rows = folio_variants(&n);
    const folio_op_params prm = {.emulate = true};
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, "step_ring") == 0) {
            const char *why =
                folio_variant_refuse(l->dev, &rows[i], &prm, &l->a);
            return why ? why : "";
        }
    return "no such row";
}

Test(ops_step, says_what_it_does_not_take)
{
    lab l;
    open_lab(&l);
    set_up(&l, FOLIO_TYPE_F16, FOLIO_PACK_RG16, 32, 6, 2, 1);
    cr_expect_str_eq(refusal(&l), "");
    l.w.packing = FOLIO_PACK_RAW;
    cr_expect_str_eq(refusal(&l), "reads packed weights");
    l.w.packing = FOLIO_PACK_RG16;
    l.down.type = FOLIO_TYPE_Q8_0;
    cr_expect_str_eq(refusal(&l), "wants matrices of one type");
    l.down.type = FOLIO_TYPE_F16;
    l.a.n_tok = 9;
    cr_expect_str_eq(refusal(&l), "for 8 sequences or fewer");
    l.a.n_tok = 1;
    l.layer.kv.layout.xv = 32;
    cr_expect_str_eq(refusal(&l), "KV layout is not (8, 1)");
    l.layer.kv.layout.xv = 8;
    folio_weight_view views[2] = {{.rows = 32}, {.first_row = 32, .rows = 160}};
    l.w.views = views;
    l.w.n_views = 2;
    cr_expect_str_eq(refusal(&l), "wants all weights in one buffer");
    folio_device_close(&l.dev);
}

/* What a list of keys for one window leaves out another one may want. */
Test(ops_step, a_work_is_of_one_window)
{
    lab l;
    open_lab(&l);
    set_up(&l, FOLIO_TYPE_F16, FOLIO_PACK_RG16, 32, 6, 2, 1);
    folio_step_layer two[2] = {l.layer, l.layer};
    l.a.layers = two;
    l.a.n_layers = 2;
    cr_expect_eq(folio_op_check_shape(l.dev, FOLIO_OP_STEP, &l.a), FOLIO_OK);
    two[1].window = 20;
    cr_expect_eq(folio_op_check_shape(l.dev, FOLIO_OP_STEP, &l.a),
                 FOLIO_E_INVAL);
    two[1].work = 1;
    l.a.n_works = 2;
    cr_expect_eq(folio_op_check_shape(l.dev, FOLIO_OP_STEP, &l.a), FOLIO_OK);
    folio_device_close(&l.dev);
}
