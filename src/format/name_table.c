/* format/name_table.c: open addressing, at most half full. The names come from
 * untrusted files, so the hash is seeded from the clock: nobody can prepare
 * names that all meet in one slot. No result depends on the seed. */
#include "format/name_table.h"

#include <string.h>

#include "base/hash.h"

static const char *name_at(const void *items, size_t stride, size_t i)
{
    const char *name;
    memcpy(&name, (const char *)items + i * stride, sizeof name);
    return name;
}

/* The slot that holds `name`, or the free one where it would go. */
static size_t probe(const folio_name_table *t, const void *items,
                    const char *name)
{
    size_t at = (size_t)folio_hash_bytes(name, strlen(name), t->seed).lo;
    for (;; at++) {
        at &= t->mask;
        if (t->slots[at] == 0 ||
            strcmp(name_at(items, t->stride, t->slots[at] - 1), name) == 0)
            return at;
    }
}

folio_status folio_name_table_init(folio_name_table *t, const void *items,
                                   size_t n, size_t stride, size_t *dup)
{
    folio_name_table built = {.seed = folio_clock_ns(), .stride = stride};
    size_t n_slots = 8;
    while (n_slots / 2 < n)
        n_slots *= 2;
    built.mask = n_slots - 1;
    built.slots = folio_calloc(n_slots, sizeof *built.slots);
    if (!built.slots)
        return FOLIO_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        size_t at = probe(&built, items, name_at(items, stride, i));
        if (built.slots[at] != 0) {
            *dup = i;
            folio_name_table_fini(&built);
            return FOLIO_E_INVAL;
        }
        built.slots[at] = i + 1;
    }
    *t = built;
    return FOLIO_OK;
}

void folio_name_table_fini(folio_name_table *t)
{
    FOLIO_FREE(t->slots);
}

size_t folio_name_table_find(const folio_name_table *t, const void *items,
                             const char *name)
{
    size_t slot = t->slots[probe(t, items, name)];
    return slot ? slot - 1 : FOLIO_NAME_NONE;
}
