/* ops/op_check.h: what the files that check arguments share. */
#ifndef FOLIO_OPS_OP_CHECK_H
#define FOLIO_OPS_OP_CHECK_H

#include "ops/ops.h"

/* What a check knows; `bound` is false while views may still be absent. */
typedef struct folio_check {
    const folio_device *dev;
    const char *op;
    bool bound;
    bool empty; /* zero rows: views are not looked at */
} folio_check;

/* Rows of `width` elements, `stride` elements apart. */
typedef struct folio_extent {
    int64_t rows, stride, width;
    size_t elem_bytes;
} folio_extent;

/* The rules that ops have in common; each names the field and both sides. */
typedef struct folio_check_parts {
    folio_status (*least)(const folio_check *c, const char *field,
                          int64_t value, const char *what, int64_t least);
    folio_status (*range)(const folio_check *c, const char *field,
                          int64_t value, int64_t least, int64_t most);
    folio_status (*view)(const folio_check *c, const char *field, folio_view v,
                         folio_extent e, bool optional);
    /* `out` may not touch `in`, except by being exactly it where `exact`. */
    folio_status (*alias)(const folio_check *c, const char *out_field,
                          folio_view out, folio_extent eo, const char *in_field,
                          folio_view in, folio_extent ei, bool exact);
    folio_status (*weight)(const folio_check *c, const folio_weight *w);
    folio_status (*kv)(const folio_check *c, const folio_kv_ref *kv);
    /* An array may touch no block of the pool. */
    folio_status (*off_kv)(const folio_check *c, const char *field,
                           folio_view v, folio_extent e,
                           const folio_kv_ref *kv);
} folio_check_parts;
extern const folio_check_parts folio_check_shared;

folio_status folio_check_norm_linear(
    const folio_check *c, const folio_norm_linear_args *a) FOLIO_NODISCARD;
folio_status folio_check_qkv(const folio_check *c,
                             const folio_qkv_args *a) FOLIO_NODISCARD;
folio_status folio_check_gate_up(const folio_check *c,
                                 const folio_gate_up_args *a) FOLIO_NODISCARD;
folio_status folio_check_step(const folio_check *c,
                              const folio_step_args *a) FOLIO_NODISCARD;

#endif
