/* mem/upload.h: the integers of one step, packed on the host and sent in one
 * write. Sections are laid out anew each step, in a fixed order, the one that
 * grows put last, so that views move as rarely as possible. */
#ifndef FOLIO_MEM_UPLOAD_H
#define FOLIO_MEM_UPLOAD_H

#include "device/dev.h"

typedef struct folio_upload {
    int32_t *host;
    folio_buf *buf;
    size_t cap, used; /* int32 elements */
} folio_upload;

/* TOO_LARGE when `ints` elements do not fit in one buffer of the device. */
folio_status folio_upload_open(folio_upload *u, folio_device *dev,
                               size_t ints) FOLIO_NODISCARD;
void folio_upload_fini(folio_upload *u);

static inline void folio_upload_reset(folio_upload *u)
{
    u->used = 0;
}
/* Room for n elements and the view they will have; NULL when full. Sections
 * start at multiples of 16 bytes. */
int32_t *folio_upload_section(folio_upload *u, size_t n, folio_view *view);
/* Enqueues the one write. */
folio_status folio_upload_send(folio_upload *u, folio_queue *q) FOLIO_NODISCARD;

#endif
