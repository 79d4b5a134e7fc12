/* folio/log.h: how folio tells its caller what happened. The library never
 * prints; each message goes once, where its cause is found, to the callback
 * given when an object is opened. */
#ifndef FOLIO_LOG_H
#define FOLIO_LOG_H

#include <folio/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum folio_log_level {
    FOLIO_LOG_ERROR = 0, /* the call that logs this fails */
    FOLIO_LOG_WARN = 1,  /* it goes on, but not as well as one may expect */
    FOLIO_LOG_INFO = 2,  /* what was chosen: device, variant, plan */
    FOLIO_LOG_DEBUG = 3  /* what a maintainer wants in a bug report */
} folio_log_level;

/* `message` is UTF-8, one line without newline (compiler logs may hold
 * newlines), valid until return. May be called from any thread that is inside
 * a folio call with this log; must not call back into folio. */
typedef void (*folio_log_fn)(void *user, folio_log_level level,
                             const char *message);

/* Copied when an object is opened. A zeroed struct means silence. `max_level`
 * is the least important level that is delivered. */
typedef struct folio_log {
    folio_log_fn fn;
    void *user;
    folio_log_level max_level;
} folio_log;

#ifdef __cplusplus
}
#endif
#endif
