/* mem/arena.c: see arena.h. */
#include "mem/arena.h"

#include <string.h>

/* Vector loads of up to 16 floats and any device's base alignment. */
#define AREA_ALIGN 256

int folio_arena_reserve(folio_arena *a, size_t bytes)
{
    if (a->n == FOLIO_ARENA_MAX)
        return -1;
    a->bytes[a->n] = bytes;
    return a->n++;
}

folio_status folio_arena_open(folio_arena *a, folio_device *dev)
{
    size_t limit = folio_device_max_alloc(dev);
    size_t fill[FOLIO_ARENA_MAX] = {0};
    int at[FOLIO_ARENA_MAX];
    int n_buf = 0;
    for (int i = 0; i < a->n; i++) {
        if (a->bytes[i] > limit)
            return folio_fail(folio_device_log(dev), FOLIO_E_TOO_LARGE,
                              "scratch area %d needs %zu bytes, the device "
                              "allows %zu per buffer",
                              i, a->bytes[i], limit);
        size_t need = folio_align_up(a->bytes[i], AREA_ALIGN);
        int b = 0;
        while (b < n_buf && (fill[b] > limit || need > limit - fill[b]))
            b++;
        if (b == n_buf)
            n_buf++;
        at[i] = b;
        a->view[i].offset = fill[b];
        fill[b] += need;
    }
    for (int b = 0; b < n_buf; b++) {
        if (fill[b] == 0)
            continue;
        /* The last area's padding may pass the limit; it is never used. */
        size_t bytes = FOLIO_MIN(fill[b], limit);
        folio_status st = folio_buf_open(dev, bytes, &a->buf[b]);
        if (st != FOLIO_OK) {
            a->n_buf = b;
            return st;
        }
        a->n_buf = b + 1;
        a->total += bytes;
    }
    for (int i = 0; i < a->n; i++)
        if (a->bytes[i])
            a->view[i].buf = a->buf[at[i]];
        else
            a->view[i] = (folio_view){0};
    return FOLIO_OK;
}

folio_view folio_arena_view(const folio_arena *a, int area)
{
    return a->view[area];
}

void folio_arena_fini(folio_arena *a)
{
    for (int b = 0; b < FOLIO_ARENA_MAX; b++)
        folio_buf_close(&a->buf[b]);
    memset(a, 0, sizeof *a);
}
