/* base/file_map.h: a file as read-only memory. Owns the mapping. */
#ifndef FOLIO_BASE_FILE_MAP_H
#define FOLIO_BASE_FILE_MAP_H

#include "base/base.h"

typedef struct folio_file_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;         /* bytes */
} folio_file_map;

/* Maps a regular file. IO with the path and the system's reason otherwise
 * (directories and FIFOs are IO too, at once, never a blocking open). */
folio_status folio_file_map_open(const char *path, const folio_log *log,
                                 folio_file_map *out) FOLIO_NODISCARD;
/* Safe on a zeroed struct. */
void folio_file_map_close(folio_file_map *m);

#endif
