/* ops/variants.h: declares the functions of every row of kernels.def, for the
 * files that define them and for the table in op.c. Nothing else. */
#ifndef FOLIO_OPS_VARIANTS_H
#define FOLIO_OPS_VARIANTS_H

#include "ops/ops.h"

#define FOLIO_VARIANT(OP, name, WHERE, fragments, needs, flags)                \
    extern const folio_variant_fns folio_var_##name;
#include "ops/kernels.def"
#undef FOLIO_VARIANT

#endif
