/* The thread pool: every item once, thread numbers unique while running,
 * several callers, sleeping and spinning workers, opening and closing. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "base/thread_pool.h"

enum { MAX_ITEMS = 5000 };

typedef struct loop_record {
    atomic_int hits[MAX_ITEMS];
    atomic_int busy[64]; /* per thread number */
    atomic_int clashes, bad_grains;
    int64_t n, grain;
    int n_threads;
} loop_record;

static void record(void *user, int64_t first, int64_t last, int thread)
{
    loop_record *r = user;
    if (thread < 0 || thread >= r->n_threads ||
        atomic_fetch_add(&r->busy[thread], 1) != 0)
        atomic_fetch_add(&r->clashes, 1);
    int64_t whole = r->n <= r->grain || r->n_threads == 1;
    if (first < 0 || last > r->n || first >= last ||
        (!whole &&
         (first % r->grain != 0 || (last - first != r->grain && last != r->n))))
        atomic_fetch_add(&r->bad_grains, 1);
    for (int64_t i = first; i < last; i++)
        atomic_fetch_add(&r->hits[i], 1);
    atomic_fetch_sub(&r->busy[thread], 1);
}

static void check_loop(folio_thread_pool *p, loop_record *r, int64_t n,
                       int64_t grain)
{
    r->n = n;
    r->grain = grain;
    r->n_threads = folio_thread_pool_size(p);
    for (int64_t i = 0; i < MAX_ITEMS; i++)
        atomic_store(&r->hits[i], 0);
    folio_parallel_for(p, n, grain, record, r);
    for (int64_t i = 0; i < MAX_ITEMS; i++)
        cr_assert_eq(atomic_load(&r->hits[i]), i < n, "item %d of %d, grain %d",
                     (int)i, (int)n, (int)grain);
    cr_assert_eq(atomic_load(&r->clashes), 0);
    cr_assert_eq(atomic_load(&r->bad_grains), 0);
}

static void nap(long ns)
{
    struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

Test(base_thread_pool, every_item_once, .timeout = 60)
{
    static loop_record r;
    static const int sizes[] = {1, 2, 3, 8, 64};
    static const int64_t ns[] = {0, 1, 2, 7, 64, 100, 4999, 5000};
    static const int64_t grains[] = {1, 3, 64, 5000, INT64_MAX};
    for (size_t s = 0; s < FOLIO_COUNT(sizes); s++) {
        folio_thread_pool *p = NULL;
        cr_assert_eq(folio_thread_pool_open(sizes[s], &p), FOLIO_OK);
        cr_assert_eq(folio_thread_pool_size(p), sizes[s]);
        for (size_t i = 0; i < FOLIO_COUNT(ns); i++)
            for (size_t g = 0; g < FOLIO_COUNT(grains); g++)
                check_loop(p, &r, ns[i], grains[g]);
        folio_thread_pool_close(&p);
        cr_assert_null(p);
        folio_thread_pool_close(&p);
    }
}

static void add_range(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    int64_t sum = 0;
    for (int64_t i = first; i < last; i++)
        sum += i;
    atomic_fetch_add((_Atomic int64_t *)user, sum);
}

/* Back to back, with gaps shorter and longer than the spin. */
Test(base_thread_pool, many_small_loops, .timeout = 60)
{
    for (int n_threads = 2; n_threads <= 5; n_threads++) {
        folio_thread_pool *p = NULL;
        cr_assert_eq(folio_thread_pool_open(n_threads, &p), FOLIO_OK);
        for (int loop = 0; loop < 3000; loop++) {
            _Atomic int64_t sum = 0;
            folio_parallel_for(p, 40, 3, add_range, &sum);
            cr_assert_eq(atomic_load(&sum), 780);
            if (loop % 100 == 0)
                nap(loop % 200 ? 20000 : 300000);
        }
        folio_thread_pool_close(&p);
    }
}

static void sleepy(void *user, int64_t first, int64_t last, int thread)
{
    (void)first;
    (void)last;
    nap(2000000);
    atomic_fetch_or((atomic_int *)user, 1 << thread);
}

/* Grains that outlast the spin: the caller sleeps and is woken again; sleeping
 * workers do take part. */
Test(base_thread_pool, long_grains_use_all_threads, .timeout = 60)
{
    folio_thread_pool *p = NULL;
    cr_assert_eq(folio_thread_pool_open(4, &p), FOLIO_OK);
    nap(5000000);
    atomic_int who = 0;
    for (int i = 0; i < 50 && atomic_load(&who) != 15; i++)
        folio_parallel_for(p, 16, 1, sleepy, &who);
    cr_assert_eq(atomic_load(&who), 15);
    folio_thread_pool_close(&p);
}

typedef struct shared_pool {
    folio_thread_pool *pool;
    loop_record record;
    atomic_int bad;
} shared_pool;

static void *call_often(void *arg)
{
    shared_pool *s = arg;
    for (int i = 0; i < 300; i++) {
        _Atomic int64_t sum = 0;
        folio_parallel_for(s->pool, 100, i % 7 == 0 ? 100 : 8, add_range, &sum);
        if (atomic_load(&sum) != 4950)
            atomic_fetch_add(&s->bad, 1);
    }
    return NULL;
}

static void *call_recorded(void *arg)
{
    shared_pool *s = arg;
    for (int i = 0; i < 300; i++)
        folio_parallel_for(s->pool, s->record.n, s->record.grain, record,
                           &s->record);
    return NULL;
}

Test(base_thread_pool, callers_are_serialised, .timeout = 60)
{
    static shared_pool s;
    cr_assert_eq(folio_thread_pool_open(3, &s.pool), FOLIO_OK);
    s.record.n = 100;
    s.record.grain = 100; /* the inline path must hold the lock as well */
    s.record.n_threads = 3;
    pthread_t t[6];
    for (int i = 0; i < 6; i++)
        cr_assert_eq(
            pthread_create(&t[i], NULL, i < 3 ? call_often : call_recorded, &s),
            0);
    for (int i = 0; i < 6; i++)
        pthread_join(t[i], NULL);
    cr_assert_eq(atomic_load(&s.bad), 0);
    cr_assert_eq(atomic_load(&s.record.clashes), 0);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(atomic_load(&s.record.hits[i]), 900);
    folio_thread_pool_close(&s.pool);
}

Test(base_thread_pool, open_arguments_and_churn, .timeout = 60)
{
    folio_thread_pool *p = NULL;
    cr_assert_eq(folio_thread_pool_open(-1, &p), FOLIO_E_INVAL);
    cr_assert_eq(folio_thread_pool_open(1025, &p), FOLIO_E_INVAL);
    cr_assert_null(p);
    cr_assert_eq(folio_thread_pool_open(0, &p), FOLIO_OK);
    cpu_set_t set;
    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    cr_assert_eq(folio_thread_pool_size(p), FOLIO_MIN(CPU_COUNT(&set), 64));
    folio_thread_pool_close(&p);
    for (int i = 0; i < 200; i++) {
        cr_assert_eq(folio_thread_pool_open(1 + i % 6, &p), FOLIO_OK);
        _Atomic int64_t sum = 0;
        if (i % 3)
            folio_parallel_for(p, 40, 1, add_range, &sum);
        cr_assert_eq(atomic_load(&sum), i % 3 ? 780 : 0);
        folio_thread_pool_close(&p);
    }
}
