/* unit/fail_alloc.h: make one allocation of the code under test fail, to walk
 * its out-of-memory paths. The test program is linked so that malloc, calloc,
 * realloc and aligned_alloc of its own objects and of libfolio come through
 * here; other libraries are not touched. */
#ifndef FOLIO_TEST_FAIL_ALLOC_H
#define FOLIO_TEST_FAIL_ALLOC_H

#include <stdbool.h>

/* Of the allocations this thread makes from now on, the nth (from 1) gives
 * NULL; the others work. */
void fail_alloc_arm(int nth);

/* Back to normal. True if an allocation was refused since arm: a loop over
 * nth = 1, 2, ... has seen every allocation when this is false. */
bool fail_alloc_disarm(void);

#endif
