/* ops/cl/cl_matrix.c: see cl_matrix.h. */
#include "ops/cl/cl_matrix.h"

#define PACK_GROUP 64
/* Most items of a group that norms a row. */
#define NORM_GROUP 256

int32_t folio_cl_matrix_tuned(const folio_op_params *prm, const char *variant,
                              const char *key, int32_t usual)
{
    return folio_cl_tuned(prm, key, folio_tuned(variant, key, usual));
}

folio_view folio_cl_matrix_align(folio_view v)
{
    v.offset = folio_align_up(v.offset, FOLIO_GEMM_ALIGN);
    return v;
}

size_t folio_cl_packed_bytes(int64_t n_tok, int32_t tile, int64_t cols)
{
    return (size_t)(folio_div_up(n_tok, tile) * tile) * (size_t)cols * 2;
}

bool folio_cl_in_words(folio_view x, int32_t stride)
{
    return x.offset % 16 == 0 && stride % 4 == 0;
}

folio_status folio_cl_pack_open(folio_op *op, int32_t *wg)
{
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    folio_cl_define(&o, "GEMM_PACK", 1);
    *wg = PACK_GROUP;
    return folio_cl_kernel_open(op, FOLIO_GEMM_PACK_KERNEL, "gemm_pack", &o,
                                wg);
}

folio_status folio_cl_pack_run(folio_op *op, folio_queue *q,
                               const folio_linear_args *a, int32_t wg,
                               int32_t tile, bool in_tiles, bool even_odd,
                               folio_view to)
{
    const folio_arg args[] = {
        folio_arg_view(a->x),
        folio_arg_view(to),
        folio_arg_i32((int32_t)a->w->cols),
        folio_arg_i32(a->n_tok),
        folio_arg_i32(a->x_stride),
        folio_arg_i32(in_tiles ? tile : 0),
        folio_arg_i32(folio_cl_in_words(a->x, a->x_stride)),
        folio_arg_i32(even_odd),
    };
    const folio_grid grid = {
        .groups = {(size_t)folio_div_up(a->w->cols / 16, wg),
                   (size_t)(folio_div_up(a->n_tok, tile) * tile), 1},
        .local = {(size_t)wg, 1, 1},
    };
    return folio_launch(q, op->kernel[FOLIO_GEMM_PACK_KERNEL], &grid, args,
                        FOLIO_COUNT(args));
}

folio_status folio_cl_norm_pack_open(folio_op *op, int32_t dim, int32_t *wg)
{
    folio_cl_options o;
    folio_cl_options_init(&o, op);
    folio_cl_define(&o, "NORM_PACK", 1);
    *wg = FOLIO_MIN(NORM_GROUP, FOLIO_MAX(dim / 16, 1));
    return folio_cl_kernel_open(op, FOLIO_GEMM_PACK_KERNEL, "norm_pack", &o,
                                wg);
}

folio_status folio_cl_norm_pack_run(folio_op *op, folio_queue *q,
                                    const folio_norm_in *in,
                                    const folio_view *idx, int32_t n_tok,
                                    int32_t wg, int32_t tile, bool even_odd,
                                    folio_view to)
{
    bool words = folio_cl_in_words(in->x, in->x_stride) &&
                 folio_cl_in_words(in->norm, in->dim);
    const folio_arg args[] = {
        folio_arg_view(in->x),
        folio_arg_view(in->norm),
        /* Any address where nothing is gathered: not read. */
        folio_arg_view(idx ? *idx : in->x),
        folio_arg_view(to),
        folio_arg_i32(in->dim),
        folio_arg_i32(n_tok),
        folio_arg_i32(in->x_stride),
        folio_arg_i32(idx != NULL),
        folio_arg_f32(in->eps),
        folio_arg_i32(tile),
        folio_arg_i32(words),
        folio_arg_i32(even_odd),
    };
    const folio_grid grid =
        folio_cl_grid((size_t)(folio_div_up(n_tok, tile) * tile), 1, wg);
    return folio_launch(q, op->kernel[FOLIO_GEMM_PACK_KERNEL], &grid, args,
                        FOLIO_COUNT(args));
}
