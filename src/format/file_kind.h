/* format/file_kind.h: what a file that is not what it should be is instead. */
#ifndef FOLIO_FORMAT_FILE_KIND_H
#define FOLIO_FORMAT_FILE_KIND_H

#include <stddef.h>
#include <stdint.h>

/* A sentence part that completes "<path>: ", judged by the first bytes: "this
 * is a web page, ...". NULL where they are of no known kind (GGUF is one:
 * never call it for a file that begins with that magic). Static. */
const char *folio_file_kind_explain(const uint8_t *data, size_t size);

#endif
