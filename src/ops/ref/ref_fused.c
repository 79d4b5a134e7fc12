/* ops/ref/ref_fused.c: the contracts of norm_linear, qkv and gate_up: their
 * parts' references, one after the other. */
#include "ops/fused_parts.h"
#include "ops/variants.h"

static folio_status open_ref(folio_op *op, const void *args)
{
    return folio_fused_open(op, args, FOLIO_PARTS_REF);
}

const folio_variant_fns folio_var_ref_norm_linear = {.open = open_ref,
                                                     .run = folio_fused_run};
const folio_variant_fns folio_var_ref_qkv = {.open = open_ref,
                                             .run = folio_fused_run};
const folio_variant_fns folio_var_ref_gate_up = {.open = open_ref,
                                                 .run = folio_fused_run};
