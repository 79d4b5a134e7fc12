/* base/base.h: error idiom, logging, checked sizes and allocation for every
 * room. Knows no other room. */
#ifndef FOLIO_BASE_BASE_H
#define FOLIO_BASE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <folio/log.h>
#include <folio/status.h>

/* Evaluate a fallible call; on failure store it in the local `st` and go to
 * the function's one `fail:` label. */
#define FOLIO_TRY(expr)                                                        \
    do {                                                                       \
        st = (expr);                                                           \
        if (st != FOLIO_OK)                                                    \
            goto fail;                                                         \
    } while (0)

/* The same for functions that hold no resources. */
#define FOLIO_RETURN_IF(expr)                                                  \
    do {                                                                       \
        folio_status st_ = (expr);                                             \
        if (st_ != FOLIO_OK)                                                   \
            return st_;                                                        \
    } while (0)

#define FOLIO_COUNT(a)  (sizeof(a) / sizeof((a)[0]))
#define FOLIO_MIN(a, b) ((a) < (b) ? (a) : (b))
#define FOLIO_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Format and deliver one message (cut at 4 KiB). `log` may be NULL. */
void folio_logf(const folio_log *log, folio_log_level level, const char *fmt,
                ...) FOLIO_PRINTF(3, 4);
void folio_logv(const folio_log *log, folio_log_level level, const char *fmt,
                va_list ap) FOLIO_PRINTF(3, 0);

/* Log at ERROR and return `st`: `return folio_fail(log, FOLIO_E_FORMAT, ...)`.
 */
folio_status folio_fail(const folio_log *log, folio_status st, const char *fmt,
                        ...) FOLIO_PRINTF(3, 4) FOLIO_NODISCARD;

/* Products and sums of sizes that come from a file or a caller: false on
 * overflow, and then *out is untouched. */
static inline bool folio_mul_size(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b)
        return false;
    *out = a * b;
    return true;
}

static inline bool folio_add_size(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b)
        return false;
    *out = a + b;
    return true;
}

/* ceil(a / b) for a >= 0, b > 0. */
static inline int64_t folio_div_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* `a` rounded up to a multiple of the power of two `align`. */
static inline size_t folio_align_up(size_t a, size_t align)
{
    return (a + align - 1) & ~(align - 1);
}

/* Allocation with checked products. NULL when out of memory or on overflow;
 * n == 0 gives a valid pointer to at least one byte. Zeroed. */
void *folio_calloc(size_t n, size_t size);
/* As realloc for arrays, contents kept, new tail not zeroed; on failure NULL
 * and the old block stays. */
void *folio_realloc(void *p, size_t n, size_t size);
/* Copy of n bytes plus a terminating zero byte. */
char *folio_strndup(const char *s, size_t n);
/* Free and set the pointer variable to NULL. */
#define FOLIO_FREE(p) (free(p), (p) = NULL)

/* Memory aligned to 64 bytes, not zeroed; release with folio_aligned_free. */
void *folio_aligned_alloc(size_t bytes);
void folio_aligned_free(void *p);

/* Monotonic clock in nanoseconds. */
uint64_t folio_clock_ns(void);

#endif
