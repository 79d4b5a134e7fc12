/* buffers.c: where a problem's contents lie on a device: each slot in a buffer
 * of its own, at a random offset that the contract allows, between guard zones
 * of poison; and what became of all that after a run. */
#include "check/check.h"

#include <stdio.h>
#include <string.h>

/* Far enough to catch a write that misses by a few rows. */
#define GUARD_BYTES 1024

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "folio-check: out of memory\n");
        exit(2);
    }
    return p;
}

/* Buffers are made in multiples of so many bytes (device/buf.c). */
#define BUF_STEP 64

/* In exact buffers the contents end where the buffer ends: an access past the
 * end is outside. */
static void choose_place(ck_problem *p, ck_slot *s, bool exact, ck_rng *r)
{
    size_t shift = (size_t)ck_below(r, 33) * s->align;
    if (exact)
        s->offset = folio_align_up(s->bytes, BUF_STEP) - s->bytes +
                    (size_t)ck_below(r, 2) * BUF_STEP;
    else
        s->offset = folio_align_up(GUARD_BYTES, 64) + shift;
    if (s->with >= 0)
        s->offset = p->slot[s->with].offset;
    s->offset -= s->offset % s->align;
    s->total = s->offset + s->bytes + (exact ? 0 : GUARD_BYTES);
    /* No buffer of no bytes; an empty slot is never looked at. */
    s->total = FOLIO_MAX(s->total, (size_t)4);
}

folio_status ck_place(ck_problem *p, folio_device *dev, bool exact, ck_rng *r)
{
    folio_status st = FOLIO_OK;
    for (int i = 0; i < p->n_slots; i++) {
        ck_slot *s = &p->slot[i];
        if (s->buf)
            continue;
        choose_place(p, s, exact, r);
        FOLIO_TRY(folio_buf_open(dev, s->total, &s->buf));
        s->image = must(folio_calloc(s->total, 1));
        ck_poison(s->image, s->total);
        memcpy(s->image + s->offset, s->init, s->bytes);
        folio_view v = {s->buf, s->offset};
        if (s->into)
            *s->into = v;
        if (s->also)
            *s->also = v;
        if (s->into_buf)
            *s->into_buf = s->buf;
        if (s->into_offset)
            *s->into_offset = s->offset;
    }
    return FOLIO_OK;
fail:
    ck_unplace(p);
    return st;
}

static void unplace(ck_slot *s)
{
    const folio_view none = {0};
    folio_buf_close(&s->buf);
    FOLIO_FREE(s->image);
    if (s->into)
        *s->into = none;
    if (s->also)
        *s->also = none;
    if (s->into_buf)
        *s->into_buf = NULL;
}

void ck_unplace(ck_problem *p)
{
    for (int i = 0; i < p->n_slots; i++)
        unplace(&p->slot[i]);
}

void ck_slot_set(ck_slot *s, const void *data, size_t bytes)
{
    unplace(s);
    free(s->init);
    s->bytes = bytes;
    s->init = must(folio_calloc(bytes + 1, 1));
    if (data)
        memcpy(s->init, data, bytes);
    else
        ck_poison(s->init, bytes);
}

folio_status ck_upload(ck_problem *p, folio_queue *q)
{
    for (int i = 0; i < p->n_slots; i++) {
        ck_slot *s = &p->slot[i];
        folio_view all = {s->buf, 0};
        FOLIO_RETURN_IF(folio_queue_write(q, all, s->image, s->total));
    }
    return FOLIO_OK;
}

void ck_result_free(ck_result *r)
{
    for (int i = 0; i < CK_MAX_SLOTS; i++)
        FOLIO_FREE(r->data[i]);
}

/* First byte of [from, to) that differs from the image. */
static size_t first_change(const ck_slot *s, const uint8_t *now, size_t from,
                           size_t to)
{
    if (memcmp(now + from, s->image + from, to - from) == 0)
        return to;
    while (now[from] == s->image[from])
        from++;
    return from;
}

static void inspect(const ck_slot *s, const uint8_t *now, unsigned *bad,
                    char *why, size_t why_bytes)
{
    size_t end = s->offset + s->bytes, each = ck_kind_bytes(s->kind);
    size_t at = first_change(s, now, 0, s->offset);
    if (at < s->offset) {
        *bad |= CK_BAD_GUARD;
        snprintf(why, why_bytes, "wrote %zu bytes before %s", s->offset - at,
                 s->name);
    }
    at = first_change(s, now, end, s->total);
    if (at < s->total) {
        *bad |= CK_BAD_GUARD;
        snprintf(why, why_bytes, "wrote %zu bytes behind the end of %s",
                 at - end, s->name);
    }
    if (s->role != CK_IN)
        return;
    at = first_change(s, now, s->offset, end);
    if (at < end) {
        *bad |= CK_BAD_INPUT;
        snprintf(why, why_bytes, "wrote to element %zu of the input %s",
                 (at - s->offset) / each, s->name);
    }
}

folio_status ck_download(const ck_problem *p, folio_queue *q, ck_result *out,
                         unsigned *bad, char *why, size_t why_bytes)
{
    folio_status st = FOLIO_OK;
    uint8_t *now = NULL;
    for (int i = 0; i < p->n_slots; i++) {
        const ck_slot *s = &p->slot[i];
        folio_view all = {s->buf, 0};
        FOLIO_FREE(now);
        now = must(folio_calloc(s->total, 1));
        FOLIO_TRY(folio_queue_read(q, all, now, s->total));
        inspect(s, now, bad, why, why_bytes);
        if (s->role == CK_IN || s->role == CK_SCRATCH)
            continue;
        out->data[i] = must(folio_calloc(s->bytes + 1, 1));
        memcpy(out->data[i], now + s->offset, s->bytes);
    }
fail:
    free(now);
    return st;
}
