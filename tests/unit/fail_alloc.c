/* unit/fail_alloc.c: the allocator behind fail_alloc.h. Works by the linker's
 * --wrap, so it sees calls between objects of this program only. */
#include "unit/fail_alloc.h"

#include <stddef.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);

static _Thread_local int to_go; /* 0: not armed */
static _Thread_local bool fired;

void fail_alloc_arm(int nth)
{
    to_go = nth;
    fired = false;
}

bool fail_alloc_disarm(void)
{
    to_go = 0;
    return fired;
}

static bool refuse(void)
{
    if (to_go == 0 || --to_go != 0)
        return false;
    fired = true;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return refuse() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return refuse() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return refuse() ? NULL : __real_realloc(p, size);
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
    return refuse() ? NULL : __real_aligned_alloc(align, size);
}
