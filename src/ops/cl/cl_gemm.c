/* ops/cl/cl_gemm.c: linear through CLBlast's fp32 GEMM, for many tokens: the
 * weights are widened to floats panel by panel into the op's scratch, then
 * multiplied. The only user of CLBlast. The library takes what else it needs of
 * device memory by itself and keeps its programs per context; it is called once
 * at open, because its first call compiles. */
#include <clblast_c.h>

#include "device/native.h"
#include "ops/cl/cl_util.h"
#include "ops/pack.h"
#include "ops/variants.h"

/* From so many tokens on widening the weights may pay. */
#define MIN_TOKS 64
/* Most bytes of a panel of widened weights. */
#define PANEL_BYTES ((size_t)64 << 20)
/* Work-groups of the two small kernels. */
#define SMALL_GROUP 64

/* Rows of a panel: whole groups of the packing, at most all rows. */
static size_t panel_rows(const folio_device *dev, const folio_weight *w)
{
    size_t row = (size_t)w->cols * sizeof(float);
    size_t group = (size_t)folio_pack_group(w->packing);
    size_t limit = folio_device_max_alloc(dev);
    size_t n = FOLIO_MAX(FOLIO_MIN(PANEL_BYTES, limit) / row, 1);
    n = FOLIO_MAX(n / group, 1) * group;
    n = FOLIO_MIN(n, (size_t)w->rows);
    return n <= limit / row ? n : 0;
}

static const char *fits_clblast(const folio_device *dev,
                                const folio_op_params *prm, const void *args)
{
    const folio_linear_args *a = args;
    (void)prm;
    if (a->n_tok < MIN_TOKS)
        return "for 64 tokens or more";
    if ((size_t)a->w->cols > folio_device_max_alloc(dev) / sizeof(float))
        return "one widened row is larger than any buffer";
    if (panel_rows(dev, a->w) == 0)
        return "one widened group of rows is larger than any buffer";
    return NULL;
}

/* One product of m x k and n x k floats, offsets in floats. */
typedef struct gemm {
    size_t m, n, k;
    folio_buf *a, *b, *c;
    size_t a_at, b_at, c_at, a_stride, b_stride, c_stride;
    float beta;
} gemm;

static folio_status run_gemm(folio_queue *q, const gemm *g)
{
    FOLIO_RETURN_IF(folio_native_begin(q));
    cl_command_queue queue = folio_native_queue(q);
    CLBlastStatusCode code = CLBlastSgemm(
        CLBlastLayoutRowMajor, CLBlastTransposeNo, CLBlastTransposeYes, g->m,
        g->n, g->k, 1.0f, folio_native_mem(g->a), g->a_at, g->a_stride,
        folio_native_mem(g->b), g->b_at, g->b_stride, g->beta,
        folio_native_mem(g->c), g->c_at, g->c_stride, &queue, NULL);
    return folio_native_result(q, (int)code, "CLBlastSgemm");
}

/* One small call and one of the size of a run, bounded, so that both of the
 * library's ways are compiled before the first step. */
static folio_status warm_up(folio_device *dev, size_t m, size_t n, size_t k)
{
    folio_status st = FOLIO_OK;
    folio_queue *q = NULL;
    folio_buf *in = NULL, *out = NULL;
    m = FOLIO_MIN(m, 1024);
    n = FOLIO_MIN(n, 1024);
    k = FOLIO_MIN(k, 1024);
    FOLIO_TRY(folio_queue_open(dev, &q));
    FOLIO_TRY(folio_buf_open(dev, FOLIO_MAX(m, n) * k * sizeof(float), &in));
    FOLIO_TRY(folio_buf_open(dev, m * n * sizeof(float), &out));
    gemm g = {m, n, k, in, in, out, 0, 0, 0, k, k, n, 0.0f};
    FOLIO_TRY(run_gemm(q, &g));
    g.m = FOLIO_MIN(m, 8);
    g.n = FOLIO_MIN(n, 8);
    FOLIO_TRY(run_gemm(q, &g));
    FOLIO_TRY(folio_queue_finish(q));
fail:
    folio_buf_close(&out);
    folio_buf_close(&in);
    folio_queue_close(&q);
    return st;
}

/* geo: rows of a panel, and the work-groups of gemm_widen and gemm_bias. */
static folio_status open_clblast(folio_op *op, const void *args)
{
    const folio_linear_args *a = args;
    const folio_weight *w = a->w;
    size_t row = (size_t)w->cols * sizeof(float);
    size_t panel = panel_rows(op->dev, w);
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    folio_cl_define_weight(&o, w);

    op->geo[0] = (int32_t)panel;
    op->geo[1] = op->geo[2] = SMALL_GROUP;
    if (w->type != FOLIO_TYPE_F32) {
        op->scratch_bytes = panel * row;
        FOLIO_RETURN_IF(
            folio_cl_kernel_open(op, 0, "gemm_widen", &o, &op->geo[1]));
    }
    FOLIO_RETURN_IF(folio_cl_kernel_open(op, 1, "gemm_bias", &o, &op->geo[2]));
    return warm_up(op->dev, (size_t)a->n_tok, panel, (size_t)w->cols);
}

/* Rows first .. first + n - 1 of a view, as floats in the scratch. */
static folio_status widen(folio_op *op, folio_queue *q,
                          const folio_linear_args *a,
                          const folio_weight_view *v, int64_t first, int64_t n)
{
    const folio_weight *w = a->w;
    size_t row_bytes = folio_cl_row_bytes(w);
    const folio_arg args[] = {
        folio_arg_view(folio_view_at(v->view, (size_t)first * row_bytes)),
        folio_arg_view(a->scratch),
        folio_arg_u64(row_bytes),
        folio_arg_i32((int32_t)n),
        folio_arg_i32((int32_t)w->cols),
    };
    int64_t columns = 32 * (int64_t)op->geo[1];
    folio_grid grid = {
        .groups = {(size_t)folio_div_up(w->cols, columns), (size_t)n, 1},
        .local = {(size_t)op->geo[1], 1, 1},
    };
    return folio_launch(q, op->kernel[0], &grid, args, FOLIO_COUNT(args));
}

static folio_status multiply_view(folio_op *op, folio_queue *q,
                                  const folio_linear_args *a,
                                  const folio_weight_view *v)
{
    size_t cols = (size_t)a->w->cols;
    bool plain = a->w->type == FOLIO_TYPE_F32;
    for (int64_t first = 0; first < v->rows; first += op->geo[0]) {
        int64_t n = FOLIO_MIN(v->rows - first, (int64_t)op->geo[0]);
        size_t at = v->view.offset / sizeof(float) + (size_t)first * cols;
        if (!plain)
            FOLIO_RETURN_IF(widen(op, q, a, v, first, n));
        gemm g = {
            .m = (size_t)a->n_tok,
            .n = (size_t)n,
            .k = cols,
            .a = a->x.buf,
            .b = plain ? v->view.buf : a->scratch.buf,
            .c = a->y.buf,
            .a_at = a->x.offset / sizeof(float),
            .b_at = plain ? at : a->scratch.offset / sizeof(float),
            .c_at =
                a->y.offset / sizeof(float) + (size_t)(v->first_row + first),
            .a_stride = (size_t)a->x_stride,
            .b_stride = cols,
            .c_stride = (size_t)a->y_stride,
            .beta = a->accumulate ? 1.0f : 0.0f,
        };
        FOLIO_RETURN_IF(run_gemm(q, &g));
    }
    return FOLIO_OK;
}

static folio_status run_clblast(folio_op *op, folio_queue *q, const void *args)
{
    const folio_linear_args *a = args;
    for (int32_t i = 0; i < a->w->n_views; i++)
        FOLIO_RETURN_IF(multiply_view(op, q, a, &a->w->views[i]));
    if (!a->bias.buf)
        return FOLIO_OK;
    const folio_arg bias[] = {
        folio_arg_view(a->bias),
        folio_arg_view(a->y),
        folio_arg_i32((int32_t)a->w->rows),
        folio_arg_i32(a->n_tok),
        folio_arg_i32(a->y_stride),
    };
    folio_grid grid = {
        .groups = {(size_t)folio_div_up(a->w->rows, op->geo[2]),
                   (size_t)a->n_tok, 1},
        .local = {(size_t)op->geo[2], 1, 1},
    };
    return folio_launch(q, op->kernel[1], &grid, bias, FOLIO_COUNT(bias));
}

const folio_variant_fns folio_var_linear_clblast = {
    .fits = fits_clblast, .open = open_clblast, .run = run_clblast};
