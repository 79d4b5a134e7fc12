/* mem/weights.h: the weights of a model on a device. Tensors are declared
 * first, then loaded together: the host device reads what keeps the file's form
 * where the file is mapped; all else is packed into as few buffers as the
 * device's limit allows, large matrices split at groups of rows. Knows no
 * architecture. */
#ifndef FOLIO_MEM_WEIGHTS_H
#define FOLIO_MEM_WEIGHTS_H

#include "ops/pack.h"

typedef struct folio_weights folio_weights;

/* A tensor as a file holds it; `data` stays valid while the weights live. */
typedef struct folio_weight_source {
    const char *name;
    folio_type type;
    int64_t rows, cols;
    const uint8_t *data;
} folio_weight_source;

typedef int (*folio_weights_progress)(void *user, uint64_t done,
                                      uint64_t total);

folio_status folio_weights_open(folio_device *dev,
                                folio_weights **out) FOLIO_NODISCARD;
void folio_weights_close(folio_weights **w);

/* Matrices declared from now on are stored as the device likes best for this
 * use; without it as the file has them. */
void folio_weights_pack_for(folio_weights *w, const folio_pack_hints *hints);
/* Declares a matrix. *out is stable and owned by `w`; its views are valid
 * after the load. The same data declared twice is stored once. */
folio_status folio_weights_add(folio_weights *w, const folio_weight_source *src,
                               const folio_weight **out) FOLIO_NODISCARD;
/* Declares a vector (rows must be 1): kept as f32 whatever its type. */
folio_status folio_weights_add_vector(folio_weights *w,
                                      const folio_weight_source *src,
                                      const folio_weight **out) FOLIO_NODISCARD;

/* Allocates and uploads all that was declared. CANCELED when progress says so.
 */
folio_status folio_weights_load(folio_weights *w,
                                folio_weights_progress progress,
                                void *user) FOLIO_NODISCARD;

uint64_t folio_weights_bytes(const folio_weights *w);

#endif
