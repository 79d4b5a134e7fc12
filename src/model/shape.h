/* model/shape.h: random models in the shape of known ones, as the bytes of a
 * GGUF file, so that they take the same way into the library as any other. */
#ifndef FOLIO_MODEL_SHAPE_H
#define FOLIO_MODEL_SHAPE_H

#include "base/base.h"
#include "format/tensor_type.h"

#include <folio/model.h>

/* The file as folio_model_shape_write would store it. *image is released with
 * folio_aligned_free. INVAL naming the bad field; NOMEM. */
folio_status folio_shape_image(const folio_model_shape *shape,
                               const folio_log *log, uint8_t **image,
                               size_t *size) FOLIO_NODISCARD;

/* ---- random data (shape_fill.c) ------------------------------------------ */

/* A tensor of the image to be filled. */
typedef struct folio_shape_fill {
    uint8_t *data;
    folio_type type; /* F32: about 1; F16, Q8_0, Q4_0: deviation 0.02 */
    uint64_t rows, cols;
} folio_shape_fill;

/* Fills all, on all CPUs. Tensor i's values depend on seed and i only. */
folio_status folio_shape_fill_all(const folio_shape_fill *t, size_t n,
                                  uint64_t seed,
                                  const folio_log *log) FOLIO_NODISCARD;
/* n values about -1 to 1 as halves or floats, from seed alone. */
void folio_shape_fill_unit(uint64_t seed, bool half, void *out, size_t n);

#endif
