/* ops/host/host_fused.c: norm_linear, qkv and gate_up of the host device: the
 * best rows of their parts. Memory is near here and a launch costs nothing, so
 * there is nothing to gain from kernels of their own. */
#include "ops/fused_parts.h"
#include "ops/variants.h"

static folio_status open_parts(folio_op *op, const void *args)
{
    return folio_fused_open(op, args, FOLIO_PARTS_BEST);
}

const folio_variant_fns folio_var_host_norm_linear = {.open = open_parts,
                                                      .run = folio_fused_run};
const folio_variant_fns folio_var_host_qkv = {.open = open_parts,
                                              .run = folio_fused_run};
const folio_variant_fns folio_var_host_gate_up = {.open = open_parts,
                                                  .run = folio_fused_run};
