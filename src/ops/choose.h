/* ops/choose.h: the choice of a variant, in parts, for op.c, choice.c, the
 * self-test and the unit tests. */
#ifndef FOLIO_OPS_CHOOSE_H
#define FOLIO_OPS_CHOOSE_H

#include "ops/ops.h"

/* The arguments of any op. */
typedef union folio_any_args {
    folio_embed_args embed;
    folio_gather_rows_args gather;
    folio_rmsnorm_args rmsnorm;
    folio_linear_args linear;
    folio_rope_append_args rope;
    folio_attn_args attn;
    folio_act_mul_args act;
    folio_add_args add;
    folio_topk_args topk;
    folio_copy_blocks_args copy;
    folio_sample_args sample;
    folio_norm_linear_args norm_linear;
    folio_qkv_args qkv;
    folio_gate_up_args gate_up;
    folio_step_args step;
} folio_any_args;

/* folio_op_check for a plan: views may be absent (buf NULL, a weight without
 * views, a plane with n_buf 0); those that are present must be right. */
folio_status folio_op_check_shape(const folio_device *dev, folio_op_id id,
                                  const void *args) FOLIO_NODISCARD;

/* Tokens, rows, pairs or elements of a run: what may differ between runs. */
int64_t folio_op_count(folio_op_id id, const void *args);

/* The reference of an op: the floor of the host device. */
const folio_variant *folio_op_reference(folio_op_id id);

/* Why this row cannot be taken, judged without building anything: a static
 * sentence, or NULL. Its place and op are the caller's business. */
const char *folio_variant_refuse(const folio_device *dev,
                                 const folio_variant *var,
                                 const folio_op_params *prm, const void *args);

/* The capabilities that keep this device from this row. */
uint64_t folio_variant_lacks(const folio_device *dev, const folio_variant *var,
                             const folio_op_params *prm);

/* Appends "name: why; " to a list of reasons, cut at its end. */
void folio_reason_add(char *list, size_t bytes, const char *name,
                      const char *why);

/* Opens one row, whatever its rank; no self-test. */
folio_status folio_variant_open(folio_device *dev, const folio_variant *var,
                                const folio_op_params *prm, const void *args,
                                folio_op **out) FOLIO_NODISCARD;

/* folio_op_open over a given table. */
folio_status folio_op_choose(const folio_variant *rows, size_t n_rows,
                             folio_device *dev, folio_op_id id,
                             const folio_op_params *prm, const void *args,
                             folio_op **out) FOLIO_NODISCARD;

#endif
