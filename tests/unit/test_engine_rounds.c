/* unit/test_engine_rounds.c: engines opened and closed again and again, with
 * requests in them, on both devices: memory stays flat and no handle is left;
 * and on OpenCL, too, memory that runs out at any allocation. */
#define _GNU_SOURCE /* mallinfo2 */
#include <criterion/logging.h>
#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#include "device/dev.h"
#include "unit/device_util.h"
#include "unit/engine_bed.h"
#include "unit/fail_alloc.h"
#include "unit/fault_device.h"

enum { N_ASKS = 4 };

static eng b;
static char folder[256];
static uint64_t asks[N_ASKS];
static const int32_t some[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static void start(const char *device)
{
    make_folder(folder);
    setenv("FOLIO_CACHE_DIR", folder, 1);
    fault_watch();
    eng_init(&b, device, true);
    if (!b.dev) {
        fault_unwatch();
        remove_folder(folder);
        cr_skip("PoCL is not installed");
    }
    b.p.n_blocks = 32;
    b.p.budget = 16;
    b.p.max_ctx = 32;
}

static void stop(void)
{
    char left[200];
    eng_fini(&b);
    cr_assert_eq(fault_alive(left, sizeof left), 0, "left: %s", left);
    fault_unwatch();
    remove_folder(folder);
}

static void submit_asks(void)
{
    for (int i = 0; i < N_ASKS; i++) {
        folio_engine_request r;
        folio_engine_request_default(&r);
        r.prompt = some + i;
        r.n_prompt = 8;
        r.max_new = 6;
        r.ignore_eos = 1;
        r.n = i == 2 ? 2 : 1;
        r.sample.temperature = i % 2 ? 1.2f : 0.0f;
        asks[i] = eng_submit_as(&b, &r);
    }
}

/* ---- rounds -------------------------------------------------------------- */

static int count_files_open(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    cr_assert_not_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Pages in memory, as bytes. */
static size_t resident(void)
{
    unsigned long all = 0, in = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    cr_assert_not_null(f);
    cr_assert_eq(fscanf(f, "%lu %lu", &all, &in), 2);
    fclose(f);
    return (size_t)in * (size_t)sysconf(_SC_PAGESIZE);
}

typedef struct use {
    size_t allocated, resident;
    int files, objects;
} use;

static use measure(void)
{
    return (use){mallinfo2().uordblks, resident(), count_files_open(),
                 fault_alive(NULL, 0)};
}

/* Fifty rounds after a warm-up, in which drivers and allocators take what they
 * keep. Every second engine is closed in the middle of its work. */
static void rounds(const char *device, size_t malloc_slack, size_t rss_slack)
{
    enum { WARM = 10, ROUNDS = 50 };
    use was = {0}, is;
    start(device);
    const uint64_t live = folio_device_live_bytes(b.dev);
    for (int round = 0; round < WARM + ROUNDS; round++) {
        if (round == WARM)
            was = measure();
        eng_open(&b);
        submit_asks();
        if (round % 2)
            eng_drain(&b, 60);
        else
            eng_step(&b);
        folio_engine_close(&b.e);
        cr_assert_eq(folio_device_live_bytes(b.dev), live);
    }
    is = measure();
    cr_log_info("%s: %d rounds: %zu to %zu bytes allocated, %zu to %zu KiB "
                "resident, %d OpenCL objects before and %d after",
                device, ROUNDS, was.allocated, is.allocated,
                was.resident / 1024, is.resident / 1024, was.objects,
                is.objects);
    cr_assert_leq(is.allocated, was.allocated + malloc_slack);
#ifndef __SANITIZE_ADDRESS__ /* which keeps freed memory */
    cr_assert_leq(is.resident, was.resident + rss_slack);
#else
    (void)rss_slack;
#endif
    cr_assert_eq(is.files, was.files);
    cr_assert_eq(is.objects, was.objects);
    stop();
}

TestSuite(engine_rounds);

Test(engine_rounds, fifty_on_the_host)
{
    rounds("host", 8192, (size_t)1 << 20);
}

Test(engine_rounds, fifty_on_opencl)
{
    rounds("pocl", (size_t)256 << 10, (size_t)1 << 20);
}

/* ---- no memory, on OpenCL ------------------------------------------------ */

Test(engine_rounds, opencl_opens_without_memory)
{
    int nth = 1;
    start("pocl");
    eng_open(&b); /* builds the programs, which stay with the device */
    folio_engine_close(&b.e);
    const int alive = fault_alive(NULL, 0);
    const uint64_t live = folio_device_live_bytes(b.dev);
    for (;; nth++) {
        fail_alloc_arm(nth);
        const folio_status st = folio_engine_open(b.model, b.tok, &b.p, &b.e);
        const bool refused = fail_alloc_disarm();
        cr_assert(st == FOLIO_OK || (refused && st == FOLIO_E_NOMEM),
                  "allocation %d: %s", nth, folio_status_name(st));
        cr_assert_eq(st == FOLIO_OK, b.e != NULL);
        folio_engine_close(&b.e);
        cr_assert_eq(fault_alive(NULL, 0), alive, "allocation %d", nth);
        cr_assert_eq(folio_device_live_bytes(b.dev), live);
        if (!refused)
            break;
    }
    cr_log_info("pocl: %d allocations of an open refused in turn", nth - 1);
    cr_assert_gt(nth, 50);
    stop();
}

Test(engine_rounds, opencl_steps_without_memory)
{
    eng_answer want[N_ASKS];
    int nth = 1;
    start("pocl");
    for (int i = 0;; i++) {
        eng_open(&b);
        submit_asks();
        if (i > 0)
            fail_alloc_arm(nth);
        size_t n;
        for (int k = 0; !folio_engine_is_idle(b.e); k++) {
            cr_assert_lt(k, 90);
            cr_assert_eq(eng_try(&b, &n), FOLIO_OK);
        }
        const bool refused = fail_alloc_disarm();
        for (int k = 0; k < N_ASKS; k++) {
            const eng_answer *a = eng_find(&b, asks[k], 0);
            cr_assert_eq(a->n, 6);
            if (i == 0)
                want[k] = *a;
            cr_assert_eq(memcmp(a->ids, want[k].ids, sizeof a->ids), 0,
                         "allocation %d: ask %d has other ids", nth, k);
        }
        eng_at_rest(&b);
        if (i > 0 && !refused)
            break;
        nth += i > 0;
    }
    cr_log_info("pocl: %d allocations of the steps refused in turn", nth - 1);
    stop();
}
