/* ops/cl/cl_matrix.h: what the launchers of products on matrix units share: x
 * as halves, by the kernel gemm_pack; aligned scratch; settings. */
#ifndef FOLIO_OPS_CL_MATRIX_H
#define FOLIO_OPS_CL_MATRIX_H

#include "ops/cl/cl_util.h"

/* As in gemm_part.clh. */
#define FOLIO_GEMM_BIAS       1
#define FOLIO_GEMM_ACCUMULATE 2
#define FOLIO_GEMM_WORDS      4
#define FOLIO_GEMM_BIAS_1     8
#define FOLIO_GEMM_BIAS_2     16

/* Scratch is used from the next multiple of this on. */
#define FOLIO_GEMM_ALIGN 256

/* The op's kernel gemm_pack, or norm_pack. */
#define FOLIO_GEMM_PACK_KERNEL (FOLIO_OP_MAX_KERNELS - 1)

/* From FOLIO_TUNE, before that from the op's own parameters. */
int32_t folio_cl_matrix_tuned(const folio_op_params *prm, const char *variant,
                              const char *key, int32_t usual);

/* v at the next multiple of FOLIO_GEMM_ALIGN. */
folio_view folio_cl_matrix_align(folio_view v);

/* Bytes of n_tok rows of halves, filled up to whole tiles. */
size_t folio_cl_packed_bytes(int64_t n_tok, int32_t tile, int64_t cols);

/* Whether rows of floats can be read 16 bytes at a time. */
bool folio_cl_in_words(folio_view x, int32_t stride);

/* Opens gemm_pack; *wg: its work-items. */
folio_status folio_cl_pack_open(folio_op *op, int32_t *wg) FOLIO_NODISCARD;

/* Writes a->x to `to` as halves, rows filled up to whole tiles with zeros.
 * in_tiles: in the tiles of wgmma.clh, `tile` tokens each, else in plain rows;
 * even_odd: as gemm_pack.cl says. */
folio_status folio_cl_pack_run(folio_op *op, folio_queue *q,
                               const folio_linear_args *a, int32_t wg,
                               int32_t tile, bool in_tiles, bool even_odd,
                               folio_view to) FOLIO_NODISCARD;

/* The same with the norm before it; always in tiles. idx: rows of x that are
 * gathered; NULL: all in turn. */
folio_status folio_cl_norm_pack_open(folio_op *op, int32_t dim,
                                     int32_t *wg) FOLIO_NODISCARD;
folio_status folio_cl_norm_pack_run(folio_op *op, folio_queue *q,
                                    const folio_norm_in *in,
                                    const folio_view *idx, int32_t n_tok,
                                    int32_t wg, int32_t tile, bool even_odd,
                                    folio_view to) FOLIO_NODISCARD;

#endif
