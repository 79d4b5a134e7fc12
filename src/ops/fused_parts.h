/* ops/fused_parts.h: fused ops as what they are by definition, a sequence of
 * plain ops over scratch: the floor of each on both kinds of device. Opens and
 * runs those ops; has no arithmetic of its own. */
#ifndef FOLIO_OPS_FUSED_PARTS_H
#define FOLIO_OPS_FUSED_PARTS_H

#include "ops/ops.h"

typedef enum folio_part_choice {
    FOLIO_PARTS_BEST, /* as folio_op_open chooses */
    FOLIO_PARTS_REF   /* the references */
} folio_part_choice;

/* An `open` of folio_variant_fns: fills op->part and op->scratch_bytes. */
folio_status folio_fused_open(folio_op *op, const void *args,
                              folio_part_choice choice) FOLIO_NODISCARD;
/* A `run`. On the host device it counts as one launch, elsewhere as what it
 * launches. */
folio_status folio_fused_run(folio_op *op, folio_queue *q,
                             const void *args) FOLIO_NODISCARD;

#endif
