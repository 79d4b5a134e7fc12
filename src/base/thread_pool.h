/* base/thread_pool.h: a fixed set of threads for parallel loops. One loop runs
 * at a time; callers from several threads are serialised. */
#ifndef FOLIO_BASE_THREAD_POOL_H
#define FOLIO_BASE_THREAD_POOL_H

#include "base/base.h"

typedef struct folio_thread_pool folio_thread_pool;

/* body(user, first, last, thread): do items first..last-1. `thread` is in
 * 0..n_threads-1 and unique among those running at the same time. */
typedef void (*folio_parallel_fn)(void *user, int64_t first, int64_t last,
                                  int thread);

/* n_threads 0: as many as the CPUs this process may use, at most 64; else
 * 1..1024, the caller's thread counted (INVAL outside). NOMEM where a thread
 * cannot be started. */
folio_status folio_thread_pool_open(int n_threads,
                                    folio_thread_pool **out) FOLIO_NODISCARD;
void folio_thread_pool_close(folio_thread_pool **p);
int folio_thread_pool_size(const folio_thread_pool *p);

/* Runs body over 0..n-1 in grains of `grain` items (>= 1) taken in order from a
 * shared counter; returns when all are done. n <= grain runs in the caller,
 * n <= 0 does nothing. The results of body must not depend on how items are
 * grouped. body must not call back into the same pool. */
void folio_parallel_for(folio_thread_pool *p, int64_t n, int64_t grain,
                        folio_parallel_fn body, void *user);

#endif
