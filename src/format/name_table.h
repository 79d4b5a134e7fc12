/* format/name_table.h: names to positions, over an array whose items begin
 * with a `const char *` name. Holds no names and no items. */
#ifndef FOLIO_FORMAT_NAME_TABLE_H
#define FOLIO_FORMAT_NAME_TABLE_H

#include "base/base.h"

#define FOLIO_NAME_NONE SIZE_MAX

typedef struct folio_name_table {
    size_t *slots; /* position + 1, 0 where free */
    size_t mask;   /* slots - 1, a power of two less one */
    uint64_t seed;
    size_t stride; /* bytes from item to item */
} folio_name_table;

/* Builds the table over items[n]. A name that occurs twice is INVAL, with the
 * later position in *dup, and no table. NOMEM. */
folio_status folio_name_table_init(folio_name_table *t, const void *items,
                                   size_t n, size_t stride,
                                   size_t *dup) FOLIO_NODISCARD;
/* Safe on a zeroed struct. */
void folio_name_table_fini(folio_name_table *t);
/* The position, or FOLIO_NAME_NONE; `items` as given to init. */
size_t folio_name_table_find(const folio_name_table *t, const void *items,
                             const char *name);

#endif
