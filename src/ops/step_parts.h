/* ops/step_parts.h: a decode step as what it is by definition: qkv, attn,
 * linear, gate_up and linear for each layer, one op of each for all layers, of
 * attn one for each window. The floor of the op step on both kinds of device;
 * no arithmetic of its own. */
#ifndef FOLIO_OPS_STEP_PARTS_H
#define FOLIO_OPS_STEP_PARTS_H

#include "ops/fused_parts.h"

folio_status folio_step_open(folio_op *op, const void *args,
                             folio_part_choice choice) FOLIO_NODISCARD;
/* On the host device it counts as one launch. */
folio_status folio_step_run(folio_op *op, folio_queue *q,
                            const void *args) FOLIO_NODISCARD;

/* The op of the attention of those layers whose `work` this is, whose plan that
 * work list must follow; NULL: works without lists. */
const folio_op *folio_step_attn(const folio_op *op, int32_t work);

#endif
