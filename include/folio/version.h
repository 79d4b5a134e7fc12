/* folio/version.h: which folio this is. */
#ifndef FOLIO_VERSION_H
#define FOLIO_VERSION_H

#include <folio/status.h>

#define FOLIO_VERSION_MAJOR  0
#define FOLIO_VERSION_MINOR  1
#define FOLIO_VERSION_PATCH  0
#define FOLIO_VERSION_STRING "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that is linked, "MAJOR.MINOR.PATCH"; compare with
 * FOLIO_VERSION_STRING to find a header of another version. Static, any
 * thread. */
FOLIO_API const char *folio_version(void);

/* The source revision the library was built from, "unknown" outside a git
 * checkout. Static, any thread. */
FOLIO_API const char *folio_commit(void);

#ifdef __cplusplus
}
#endif
#endif
