/* folio/status.h: the result of every fallible call, and the attributes that
 * public declarations carry. Owns the status codes; depends on nothing. */
#ifndef FOLIO_STATUS_H
#define FOLIO_STATUS_H

#if defined(_WIN32)
#define FOLIO_API
#elif defined(__GNUC__)
#define FOLIO_API __attribute__((visibility("default")))
#else
#define FOLIO_API
#endif

#if defined(__GNUC__)
#define FOLIO_NODISCARD       __attribute__((warn_unused_result))
#define FOLIO_PRINTF(fmt, va) __attribute__((format(printf, fmt, va)))
#else
#define FOLIO_NODISCARD
#define FOLIO_PRINTF(fmt, va)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* 0 or negative. Unless a function says otherwise, a failed call writes no
 * output and leaves the object as it was before the call. */
typedef enum folio_status {
    FOLIO_OK = 0,
    /* an argument breaks a stated precondition, or the object's state does
     * not allow the call */
    FOLIO_E_INVAL = -1,
    FOLIO_E_RANGE = -2,        /* a position or index outside the object */
    FOLIO_E_NOT_FOUND = -3,    /* an id, key or name that nobody registered */
    FOLIO_E_NOMEM = -4,        /* host or device memory could not be had */
    FOLIO_E_NO_DEVICE = -5,    /* no such device, or no OpenCL at all */
    FOLIO_E_DEVICE = -6,       /* the device or its driver failed */
    FOLIO_E_BUILD = -7,        /* a kernel did not compile */
    FOLIO_E_IO = -8,           /* a file could not be opened, read or written */
    FOLIO_E_FORMAT = -9,       /* bytes that break their file format */
    FOLIO_E_UNSUPPORTED = -10, /* well-formed, but not offered here */
    FOLIO_E_FULL = -11,        /* no free block now: flow control, not logged */
    FOLIO_E_TOO_LARGE = -12,   /* can never fit this pool, model or device */
    FOLIO_E_CANCELED = -13,    /* the caller asked to stop */
    FOLIO_E_DEADLINE = -14,    /* the deadline passed */
    FOLIO_E_STOPPED = -15,     /* the serving loop is not running */
    FOLIO_E_STUCK = -16,       /* the serving loop makes no progress */
    FOLIO_E_INTERNAL = -17 /* an invariant broke: never the caller's fault */
} folio_status;

/* The code's name without prefix, for example "FULL"; "UNKNOWN" for a number
 * outside the enumeration. The string is static. Any thread. */
FOLIO_API const char *folio_status_name(folio_status st);

/* One English sentence without a full stop that says what the code means.
 * The string is static. Any thread. */
FOLIO_API const char *folio_status_text(folio_status st);

#ifdef __cplusplus
}
#endif
#endif
