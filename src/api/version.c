/* api/version.c: version and revision of the build. */
#include <folio/version.h>

#ifndef FOLIO_COMMIT
#define FOLIO_COMMIT "unknown"
#endif

const char *folio_version(void)
{
    return FOLIO_VERSION_STRING;
}

const char *folio_commit(void)
{
    return FOLIO_COMMIT;
}
