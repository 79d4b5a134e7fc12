/* model/model_internal.h: what a model is behind its handle, for the files of
 * this room only. */
#ifndef FOLIO_MODEL_MODEL_INTERNAL_H
#define FOLIO_MODEL_MODEL_INTERNAL_H

#include <stdatomic.h>

#include "model/desc.h"

#include <folio/model.h>

struct folio_model {
    _Atomic int refs;
    folio_device *dev;
    folio_gguf *gguf; /* stays mapped: the host device reads weights there;
                         NULL where a shape's are on the device */
    uint8_t *image;   /* what a shape's gguf reads, else NULL */
    folio_weights *weights;
    folio_model_desc desc;
    folio_log log;
    uint64_t n_params;
    bool exact;
    atomic_bool told_fused; /* what its runners cannot have */
    bool emulate; /* for tests: folio_op_params of runners opened later */
};

folio_model *folio_model_retain(folio_model *m);

#endif
