/* base/base.c: status texts, message formatting, allocation, clock. */
#define _DEFAULT_SOURCE
#include "base/base.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BIG_PAGE ((size_t)2 << 20)

static const struct {
    folio_status st;
    const char *name, *text;
} statuses[] = {
    {FOLIO_OK, "OK", "success"},
    {FOLIO_E_INVAL, "INVAL", "an argument or the object's state is not valid"},
    {FOLIO_E_RANGE, "RANGE", "a position or index is outside the object"},
    {FOLIO_E_NOT_FOUND, "NOT_FOUND", "nothing has that id, key or name"},
    {FOLIO_E_NOMEM, "NOMEM", "not enough memory on the host or the device"},
    {FOLIO_E_NO_DEVICE, "NO_DEVICE", "no such device"},
    {FOLIO_E_DEVICE, "DEVICE", "the device or its driver failed"},
    {FOLIO_E_BUILD, "BUILD", "a kernel did not compile"},
    {FOLIO_E_IO, "IO", "a file could not be opened, read or written"},
    {FOLIO_E_FORMAT, "FORMAT", "the bytes break their file format"},
    {FOLIO_E_UNSUPPORTED, "UNSUPPORTED", "this is not supported here"},
    {FOLIO_E_FULL, "FULL", "no free block now"},
    {FOLIO_E_TOO_LARGE, "TOO_LARGE", "it can never fit"},
    {FOLIO_E_CANCELED, "CANCELED", "canceled by the caller"},
    {FOLIO_E_DEADLINE, "DEADLINE", "the deadline passed"},
    {FOLIO_E_STOPPED, "STOPPED", "the serving loop is not running"},
    {FOLIO_E_STUCK, "STUCK", "the serving loop makes no progress"},
    {FOLIO_E_INTERNAL, "INTERNAL", "an internal invariant broke"},
};

const char *folio_status_name(folio_status st)
{
    for (size_t i = 0; i < FOLIO_COUNT(statuses); i++)
        if (statuses[i].st == st)
            return statuses[i].name;
    return "UNKNOWN";
}

const char *folio_status_text(folio_status st)
{
    for (size_t i = 0; i < FOLIO_COUNT(statuses); i++)
        if (statuses[i].st == st)
            return statuses[i].text;
    return "an unknown status code";
}

void folio_logv(const folio_log *log, folio_log_level level, const char *fmt,
                va_list ap)
{
    char text[4096];
    if (!log || !log->fn || level > log->max_level)
        return;
    vsnprintf(text, sizeof text, fmt, ap);
    log->fn(log->user, level, text);
}

void folio_logf(const folio_log *log, folio_log_level level, const char *fmt,
                ...)
{
    va_list ap;
    va_start(ap, fmt);
    folio_logv(log, level, fmt, ap);
    va_end(ap);
}

folio_status folio_fail(const folio_log *log, folio_status st, const char *fmt,
                        ...)
{
    va_list ap;
    va_start(ap, fmt);
    folio_logv(log, FOLIO_LOG_ERROR, fmt, ap);
    va_end(ap);
    return st;
}

void *folio_calloc(size_t n, size_t size)
{
    size_t bytes;
    if (!folio_mul_size(n, size, &bytes))
        return NULL;
    return calloc(1, bytes ? bytes : 1);
}

void *folio_realloc(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (!folio_mul_size(n, size, &bytes))
        return NULL;
    return realloc(p, bytes ? bytes : 1);
}

char *folio_strndup(const char *s, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *p = malloc(n + 1);
    if (!p)
        return NULL;
    if (n)
        memcpy(p, s, n);
    p[n] = '\0';
    return p;
}

void *folio_aligned_alloc(size_t bytes)
{
    if (bytes > SIZE_MAX - BIG_PAGE)
        return NULL;
    /* Weights are walked whole for each token: a table of small pages costs a
     * fifth of the memory's speed there. */
    size_t align = bytes >= BIG_PAGE ? BIG_PAGE : 64;
    size_t padded = folio_align_up(bytes ? bytes : 1, align);
    void *p = aligned_alloc(align, padded);
#ifdef MADV_HUGEPAGE
    /* Not the last page where it is not full: it would be memory for nothing.
     */
    if (p && align == BIG_PAGE)
        madvise(p, bytes / BIG_PAGE * BIG_PAGE, MADV_HUGEPAGE);
#endif
    return p;
}

void folio_aligned_free(void *p)
{
    free(p);
}

uint64_t folio_clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
