/* device/embedded.h: the kernel sources of cl/ as they stand, inside the
 * library. Generated at build time; a test compares them with the files. */
#ifndef FOLIO_DEVICE_EMBEDDED_H
#define FOLIO_DEVICE_EMBEDDED_H

#include <stddef.h>

typedef struct folio_embedded_file {
    const char *name; /* "common.clh" */
    const char *text; /* terminated */
    size_t bytes;     /* without the terminator */
} folio_embedded_file;

/* Ends with a NULL name. */
extern const folio_embedded_file folio_embedded_files[];

#endif
