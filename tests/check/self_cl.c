/* self_cl.c: OpenCL variants that are wrong on purpose: launchers of wrong.cl.
 * Rows of their own; kernels.def knows nothing of them. */
#include "check/self.h"

#include <stdio.h>
#include <string.h>

#include "device/impl.h"
#include "ops/cl/cl_util.h"

/* From the source tree that was built, or from the present folder where the
 * program was carried elsewhere. */
static char *read_wrong(void)
{
    static const char *const paths[] = {
        FOLIO_SOURCE_DIR "/tests/check/wrong.cl", "tests/check/wrong.cl"};
    for (size_t i = 0; i < FOLIO_COUNT(paths); i++) {
        FILE *f = fopen(paths[i], "rb");
        char *text = f ? folio_calloc(1 << 16, 1) : NULL;
        size_t n = text ? fread(text, 1, (1 << 16) - 1, f) : 0;
        if (f)
            fclose(f);
        if (n > 0)
            return text;
        free(text);
    }
    return NULL;
}

static folio_status build(folio_op *op, const char *entry,
                          const char *fragments, const char *options)
{
    folio_status st = FOLIO_OK;
    char all[600];
    char *wrong = read_wrong(), *head = folio_kernel_source(fragments);
    char *text = NULL;
    if (!wrong || !head)
        FOLIO_TRY(folio_fail(folio_device_log(op->dev), FOLIO_E_IO,
                             "tests/check/wrong.cl cannot be read"));
    size_t bytes = strlen(head) + strlen(wrong) + 1;
    text = folio_calloc(bytes, 1);
    if (!text)
        FOLIO_TRY(FOLIO_E_NOMEM);
    snprintf(text, bytes, "%s%s", head, wrong);
    snprintf(all, sizeof all, "-cl-std=CL1.2 %s %s", options,
             ck_wrong_options(op->var));
    FOLIO_TRY(folio_kernel_new(op->dev,
                               &(folio_program_text){.label = "wrong.cl",
                                                     .source = text,
                                                     .options = all,
                                                     .entry = entry,
                                                     .level = FOLIO_LOG_WARN},
                               &op->kernel[0]));
fail:
    free(text);
    free(head);
    free(wrong);
    return st;
}

/* ---- add, act_mul, rmsnorm ------------------------------------------------
 */

static folio_status open_add(folio_op *op, const void *args)
{
    (void)args;
    return build(op, "wrong_add", "common.clh", "-DWRONG_ADD");
}

static folio_status run_add(folio_op *op, folio_queue *q, const void *args)
{
    const folio_add_args *a = args;
    const folio_arg list[] = {folio_arg_view(a->x), folio_arg_view(a->y),
                              folio_arg_u64((uint64_t)a->n)};
    const folio_grid grid = folio_cl_grid((size_t)a->n + 1, 1, 1);
    return folio_launch(q, op->kernel[0], &grid, list, FOLIO_COUNT(list));
}

static folio_status open_act(folio_op *op, const void *args)
{
    (void)args;
    return build(op, "wrong_act", "common.clh", "-DWRONG_ACT");
}

static folio_status run_act(folio_op *op, folio_queue *q, const void *args)
{
    const folio_act_mul_args *a = args;
    const folio_arg list[] = {folio_arg_view(a->gate),
                              folio_arg_i32(a->gate_stride),
                              folio_arg_view(a->up),
                              folio_arg_i32(a->up_stride),
                              folio_arg_view(a->out),
                              folio_arg_i32(a->out_stride),
                              folio_arg_i32(a->dim),
                              folio_arg_i32(a->n_tok),
                              folio_arg_i32(a->act == FOLIO_ACT_GELU_TANH)};
    const folio_grid grid = {.groups = {(size_t)a->dim, (size_t)a->n_tok, 1},
                             .local = {1, 1, 1}};
    return folio_launch(q, op->kernel[0], &grid, list, FOLIO_COUNT(list));
}

static folio_status open_norm(folio_op *op, const void *args)
{
    (void)args;
    return build(op, "wrong_norm", "common.clh", "-DWRONG_NORM");
}

static folio_status run_norm(folio_op *op, folio_queue *q, const void *args)
{
    const folio_rmsnorm_args *a = args;
    const folio_arg list[] = {folio_arg_view(a->x),
                              folio_arg_i32(a->x_stride),
                              folio_arg_view(a->w),
                              folio_arg_view(a->out),
                              folio_arg_i32(a->out_stride),
                              folio_arg_i32(a->dim),
                              folio_arg_f32(a->eps),
                              folio_arg_view(a->res.buf ? a->res : a->out),
                              folio_arg_i32(a->res.buf != NULL),
                              folio_arg_i32(op->geo[0]++)};
    const folio_grid grid = folio_cl_grid((size_t)a->n_rows, 1, 16);
    return folio_launch(q, op->kernel[0], &grid, list, FOLIO_COUNT(list));
}

/* ---- attention ------------------------------------------------------------
 */

static folio_status open_attn(folio_op *op, const void *args)
{
    const folio_attn_args *a = args;
    folio_cl_options o = {.text = ""};
    folio_cl_define(&o, "WRONG_ATTN", 1);
    folio_cl_define_kv(&o, &a->kv, folio_cl_kv_segs(&a->kv));
    op->geo[15] = folio_cl_kv_segs(&a->kv);
    return build(op, "wrong_attn", "common.clh kv_layout.clh kv.clh", o.text);
}

static folio_status run_attn(folio_op *op, folio_queue *q, const void *args)
{
    const folio_attn_args *a = args;
    const folio_attn_work *w = &a->work;
    folio_arg list[40];
    int n = 0;
    list[n++] = folio_arg_view(a->q);
    list[n++] = folio_arg_i32(a->q_stride);
    list[n++] = folio_arg_view(a->out);
    list[n++] = folio_arg_i32(a->out_stride);
    list[n++] = folio_arg_view(w->q_start);
    list[n++] = folio_arg_view(w->kv_len);
    list[n++] = folio_arg_view(w->table_start);
    list[n++] = folio_arg_view(w->tables);
    list[n++] = folio_arg_i32(a->heads);
    list[n++] = folio_arg_i32(a->window);
    list[n++] = folio_arg_f32(a->scale);
    list[n++] = folio_arg_f32(a->softcap);
    list[n++] = folio_arg_i32(a->kv.n_blocks);
    n = folio_cl_kv_args(list, n, &a->kv.k, op->geo[15]);
    n = folio_cl_kv_args(list, n, &a->kv.v, op->geo[15]);
    const folio_grid grid = {.groups = {(size_t)a->n_tok, (size_t)a->heads, 1},
                             .local = {1, 1, 1}};
    return folio_launch(q, op->kernel[0], &grid, list, n);
}

/* ---- rows -----------------------------------------------------------------
 */

static const folio_variant_fns add = {.open = open_add, .run = run_add};
static const folio_variant_fns act = {.open = open_act, .run = run_act};
static const folio_variant_fns norm = {.open = open_norm, .run = run_norm};
static const folio_variant_fns attn = {.open = open_attn, .run = run_attn};

#define ROW(OP, vname, vfns, macro, what, oclgrind)                            \
    {                                                                          \
        .var = {.op = FOLIO_OP_##OP,                                           \
                .name = vname,                                                 \
                .where = FOLIO_ON_CL,                                          \
                .fragments = "",                                               \
                .flags = FOLIO_VAR_BATCH_INVARIANT,                            \
                .fns = &vfns},                                                 \
        .bad = what, .options = macro, .only_oclgrind = oclgrind               \
    }

static const ck_wrong rows[] = {
    ROW(ADD, "right_add", add, "", 0, false),
    ROW(ADD, "wrong_overrun", add, "-DWRONG_OVERRUN", CK_BAD_GUARD, false),
    ROW(ACT_MUL, "right_act", act, "", 0, false),
    ROW(ACT_MUL, "wrong_unwritten", act, "-DWRONG_UNWRITTEN", CK_BAD_UNWRITTEN,
        false),
    ROW(ACT_MUL, "wrong_input", act, "-DWRONG_INPUT", CK_BAD_INPUT, false),
    ROW(RMSNORM, "right_norm", norm, "", 0, false),
    ROW(RMSNORM, "wrong_batch_sum", norm, "-DWRONG_BATCH", CK_BAD_BATCH, false),
    ROW(RMSNORM, "wrong_order", norm, "-DWRONG_ORDER", CK_BAD_REPEAT, false),
    ROW(RMSNORM, "wrong_barrier", norm, "-DWRONG_BARRIER", 0, true),
    ROW(ATTN, "right_attn", attn, "", 0, false),
    ROW(ATTN, "wrong_nan_leak", attn, "-DWRONG_NAN", CK_BAD_NAN, false),
    ROW(ATTN, "wrong_table_end", attn, "-DWRONG_TABLE", CK_BAD_NAN, false),
    ROW(ATTN, "wrong_last_head", attn, "-DWRONG_LAST_HEAD", CK_BAD_UNWRITTEN,
        false),
    ROW(ATTN, "wrong_place", attn, "-DWRONG_PLACE", CK_BAD_PLACE, false),
};

const ck_wrong *ck_wrong_cl(size_t *n)
{
    *n = FOLIO_COUNT(rows);
    return rows;
}
