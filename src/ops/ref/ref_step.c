/* ops/ref/ref_step.c: the contract of step: its parts' references, layer by
 * layer. */
#include "ops/step_parts.h"
#include "ops/variants.h"

static folio_status open_ref(folio_op *op, const void *args)
{
    return folio_step_open(op, args, FOLIO_PARTS_REF);
}

const folio_variant_fns folio_var_ref_step = {.open = open_ref,
                                              .run = folio_step_run};
