/* base/thread_pool.c: parallel loops on a fixed set of threads. Owns the
 * threads and their sleep; knows nothing of what the loops compute.
 *
 * One word, `state`, carries the loop: its number (epoch), whether it may still
 * be joined, and how many workers are inside. A worker joins by one
 * compare-and-swap and only then reads the loop's fields, so a loop never waits
 * for a worker that slept through it; the caller closes the loop when its items
 * are all taken and waits for those inside. Hundreds of short loops per decode
 * step then cost about a microsecond each. */
#define _GNU_SOURCE
#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#define MAX_DEFAULT_THREADS 64
#define MAX_THREADS         1024

/* Busy waiting before sleep: long enough to bridge the gap between two loops
 * of a step, short enough not to burn an idle machine. After YIELD_AFTER_NS
 * the core is offered to others at each turn, which matters where there are
 * fewer cores than threads. */
#define SPIN_NS        40000u
#define YIELD_AFTER_NS 4000u

#define INSIDE_MASK UINT64_C(0xffff)
#define OPEN_BIT    UINT64_C(0x10000)
#define EPOCH_SHIFT 17

typedef struct pool_worker {
    folio_thread_pool *pool;
    pthread_t id;
    int index;
} pool_worker;

struct folio_thread_pool {
    int n_threads;
    pool_worker *workers; /* [n_threads - 1] */
    int n_started;

    pthread_mutex_t caller_lock; /* one loop at a time */
    pthread_mutex_t sleep_lock;
    pthread_cond_t wake, done;
    atomic_int n_asleep;       /* workers in or before the wait on `wake` */
    atomic_bool caller_asleep; /* the caller is in or before `done` */
    atomic_bool stop;

    _Atomic uint64_t state;
    _Atomic int64_t next; /* the next grain to take */
    /* The loop; written by the caller while nobody is inside. */
    int64_t n, grain, n_grains;
    folio_parallel_fn body;
    void *user;
};

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static uint64_t epoch_of(uint64_t state)
{
    return state >> EPOCH_SHIFT;
}

/* There is a loop to join that this worker has not been in. */
static bool is_news(uint64_t state, uint64_t seen)
{
    return (state & OPEN_BIT) && epoch_of(state) != seen;
}

static void run_grains(folio_thread_pool *p, int thread)
{
    for (;;) {
        int64_t g =
            atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (g >= p->n_grains)
            return;
        int64_t first = g * p->grain;
        int64_t count = FOLIO_MIN(p->grain, p->n - first);
        p->body(p->user, first, first + count, thread);
    }
}

/* Spin state for one wait: false when it is time to sleep. */
static bool spin_once(uint64_t *start)
{
    for (int i = 0; i < 32; i++)
        cpu_relax();
    uint64_t now = folio_clock_ns();
    if (*start == 0)
        *start = now;
    if (now - *start > SPIN_NS)
        return false;
    if (now - *start > YIELD_AFTER_NS)
        sched_yield();
    return true;
}

/* Waits for a loop this worker has not been in; false: the pool closes. */
static bool wait_for_news(folio_thread_pool *p, uint64_t seen)
{
    uint64_t start = 0;
    do {
        if (is_news(atomic_load(&p->state), seen))
            return true;
        if (atomic_load(&p->stop))
            return false;
    } while (spin_once(&start));

    /* The order "announce sleep, then look" pairs with the caller's "open the
     * loop, then look for sleepers": one of the two sees the other. */
    pthread_mutex_lock(&p->sleep_lock);
    atomic_fetch_add(&p->n_asleep, 1);
    while (!is_news(atomic_load(&p->state), seen) && !atomic_load(&p->stop))
        pthread_cond_wait(&p->wake, &p->sleep_lock);
    atomic_fetch_sub(&p->n_asleep, 1);
    pthread_mutex_unlock(&p->sleep_lock);
    return !atomic_load(&p->stop);
}

static void *work(void *arg)
{
    pool_worker *w = arg;
    folio_thread_pool *p = w->pool;
    uint64_t seen = 0;

    while (wait_for_news(p, seen)) {
        uint64_t s = atomic_load(&p->state);
        bool joined = false;
        while (!joined && is_news(s, seen))
            joined = atomic_compare_exchange_weak(&p->state, &s, s + 1);
        if (!joined)
            continue;
        seen = epoch_of(s);
        run_grains(p, w->index);
        s = atomic_fetch_sub(&p->state, 1) - 1;
        if (!(s & (OPEN_BIT | INSIDE_MASK)) && atomic_load(&p->caller_asleep)) {
            pthread_mutex_lock(&p->sleep_lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->sleep_lock);
        }
    }
    return NULL;
}

static int usable_cpus(void)
{
    int n = 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
    if (n < 1)
        n = (int)FOLIO_MIN(sysconf(_SC_NPROCESSORS_ONLN), MAX_DEFAULT_THREADS);
    return FOLIO_MIN(FOLIO_MAX(n, 1), MAX_DEFAULT_THREADS);
}

folio_status folio_thread_pool_open(int n_threads, folio_thread_pool **out)
{
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return FOLIO_E_INVAL;
    if (n_threads == 0)
        n_threads = usable_cpus();

    folio_thread_pool *p = folio_calloc(1, sizeof *p);
    if (!p)
        return FOLIO_E_NOMEM;
    /* Workers take no signals: handlers stay on the program's own threads. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_mutex_init(&p->caller_lock, NULL);
    pthread_mutex_init(&p->sleep_lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->n_threads = n_threads;
    p->workers = folio_calloc((size_t)n_threads, sizeof *p->workers);
    if (!p->workers)
        goto fail;
    for (int i = 0; i < n_threads - 1; i++) {
        pool_worker *w = &p->workers[i];
        w->pool = p;
        w->index = i + 1;
        if (pthread_create(&w->id, NULL, work, w) != 0)
            goto fail;
        p->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    *out = p;
    return FOLIO_OK;
fail:
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    folio_thread_pool_close(&p);
    return FOLIO_E_NOMEM;
}

void folio_thread_pool_close(folio_thread_pool **pp)
{
    folio_thread_pool *p = *pp;
    if (!p)
        return;
    pthread_mutex_lock(&p->sleep_lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->sleep_lock);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->workers[i].id, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->caller_lock);
    pthread_mutex_destroy(&p->sleep_lock);
    free(p->workers);
    free(p);
    *pp = NULL;
}

int folio_thread_pool_size(const folio_thread_pool *p)
{
    return p->n_threads;
}

/* Wakes no more sleepers than there are grains left for them. */
static void wake_sleepers(folio_thread_pool *p, int64_t n_wanted)
{
    int n_asleep = atomic_load(&p->n_asleep);
    if (n_asleep == 0)
        return;
    pthread_mutex_lock(&p->sleep_lock);
    if (n_wanted >= n_asleep)
        pthread_cond_broadcast(&p->wake);
    else
        for (int64_t i = 0; i < n_wanted; i++)
            pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->sleep_lock);
}

static void wait_for_workers(folio_thread_pool *p)
{
    uint64_t start = 0;
    do {
        if (!(atomic_load(&p->state) & INSIDE_MASK))
            return;
    } while (spin_once(&start));

    pthread_mutex_lock(&p->sleep_lock);
    atomic_store(&p->caller_asleep, true);
    while (atomic_load(&p->state) & INSIDE_MASK)
        pthread_cond_wait(&p->done, &p->sleep_lock);
    atomic_store(&p->caller_asleep, false);
    pthread_mutex_unlock(&p->sleep_lock);
}

void folio_parallel_for(folio_thread_pool *p, int64_t n, int64_t grain,
                        folio_parallel_fn body, void *user)
{
    if (n <= 0)
        return;
    /* The lock also where the caller works alone: thread 0 is one at a time. */
    pthread_mutex_lock(&p->caller_lock);
    if (n <= grain || p->n_threads == 1) {
        body(user, 0, n, 0);
        pthread_mutex_unlock(&p->caller_lock);
        return;
    }
    p->n = n;
    p->grain = grain;
    p->n_grains = folio_div_up(n, grain);
    p->body = body;
    p->user = user;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    uint64_t epoch = epoch_of(atomic_load(&p->state)) + 1;
    atomic_store(&p->state, epoch << EPOCH_SHIFT | OPEN_BIT);
    wake_sleepers(p, p->n_grains - 1);
    run_grains(p, 0);
    atomic_fetch_and(&p->state, ~OPEN_BIT);
    wait_for_workers(p);
    pthread_mutex_unlock(&p->caller_lock);
}
