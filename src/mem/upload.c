/* mem/upload.c: see upload.h. */
#include "mem/upload.h"

#include <string.h>

#define SECTION_INTS 4

folio_status folio_upload_open(folio_upload *u, folio_device *dev, size_t ints)
{
    size_t bytes;
    memset(u, 0, sizeof *u);
    if (!folio_mul_size(ints, sizeof(int32_t), &bytes))
        return FOLIO_E_TOO_LARGE;
    u->host = folio_calloc(ints, sizeof(int32_t));
    if (!u->host)
        return FOLIO_E_NOMEM;
    folio_status st = folio_buf_open(dev, bytes, &u->buf);
    if (st != FOLIO_OK) {
        FOLIO_FREE(u->host);
        return st;
    }
    u->cap = ints;
    return FOLIO_OK;
}

void folio_upload_fini(folio_upload *u)
{
    folio_buf_close(&u->buf);
    FOLIO_FREE(u->host);
    memset(u, 0, sizeof *u);
}

int32_t *folio_upload_section(folio_upload *u, size_t n, folio_view *view)
{
    size_t at = folio_align_up(u->used, SECTION_INTS);
    if (at > u->cap || n > u->cap - at)
        return NULL;
    u->used = at + n;
    *view = (folio_view){u->buf, at * sizeof(int32_t)};
    return u->host + at;
}

folio_status folio_upload_send(folio_upload *u, folio_queue *q)
{
    if (u->used == 0)
        return FOLIO_OK;
    return folio_queue_write(q, (folio_view){u->buf, 0}, u->host,
                             u->used * sizeof(int32_t));
}
