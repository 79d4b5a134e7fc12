/* mem/arena.h: scratch memory of a runner: areas are reserved first, then
 * opened together in as few buffers as the device's limit allows. An area is
 * never split. Decides no policy. */
#ifndef FOLIO_MEM_ARENA_H
#define FOLIO_MEM_ARENA_H

#include "device/dev.h"

#define FOLIO_ARENA_MAX 64

typedef struct folio_arena {
    size_t bytes[FOLIO_ARENA_MAX];
    folio_view view[FOLIO_ARENA_MAX];
    int n;
    folio_buf *buf[FOLIO_ARENA_MAX];
    int n_buf;
    size_t total;
} folio_arena;

/* A zeroed struct is an empty arena. Returns the area's number, -1 when there
 * are too many. Zero bytes give an absent view. */
int folio_arena_reserve(folio_arena *a, size_t bytes);
/* TOO_LARGE names the area that is above the device's largest buffer. */
folio_status folio_arena_open(folio_arena *a,
                              folio_device *dev) FOLIO_NODISCARD;
folio_view folio_arena_view(const folio_arena *a, int area);
void folio_arena_fini(folio_arena *a);

#endif
