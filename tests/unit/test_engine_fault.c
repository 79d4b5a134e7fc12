/* unit/test_engine_fault.c: the device failing at each of its calls in turn,
 * while an engine opens, steps and closes, on the host device and on OpenCL:
 * what the caller is told, that the other requests end with the right ids, that
 * a lost device is left alone, and that nothing stays behind. */
#define _POSIX_C_SOURCE 200809L
#include <criterion/logging.h>
#include <stdlib.h>
#include <string.h>

#include "device/impl.h"
#include "model/runner_internal.h"
#include "unit/device_util.h"
#include "unit/engine_bed.h"
#include "unit/fail_alloc.h"
#include "unit/fault_device.h"
#include "unit/text_fixture.h"

enum { N_ASKS = 5, MAX_C = 2 };

static eng b;
static fault_side side;
static char folder[256];
static uint64_t seed = 20251129, salt;
static uint64_t asks[N_ASKS];
static int32_t ahead; /* steps under way while the next one is planned */

static const int32_t some[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

/* What each completion says when nothing fails. */
static struct {
    int32_t ids[ENG_MAX_NEW], n;
} want[N_ASKS][MAX_C];

/* ---- bed ----------------------------------------------------------------- */

static bool everything(void)
{
    return getenv("FOLIO_FAULT_ALL") != NULL; /* tools/test --long */
}

/* Of the next `stride` calls one, or each. */
static int next_of(int *at, int stride)
{
    stride = everything() ? 1 : stride;
    const int nth = *at + 1 + (int)(next_random(&seed) % (uint32_t)stride);
    *at += stride;
    return nth;
}

/* Fresh device, model and engine; every OpenCL object counted. A folder of its
 * own, so that a verdict spoilt by a fault stays here. */
static void start(const char *device)
{
    fault_watch();
    eng_init(&b, device, true);
    if (!b.dev)
        return;
    b.p.n_blocks = 28;
    b.p.budget = 12;
    b.p.max_seqs = 4;
    b.p.max_ctx = 32;
    b.p.run_ahead = ahead;
}

static bool begin(const char *device)
{
    side = strcmp(device, "host") == 0 ? FAULT_HOST : FAULT_CL;
    make_folder(folder);
    setenv("FOLIO_CACHE_DIR", folder, 1);
    start(device);
    if (!b.dev) {
        fault_unwatch();
        remove_folder(folder);
        cr_skip("PoCL is not installed");
    }
    return b.dev != NULL;
}

/* Closes all; nothing is left, unless the device was lost: then its objects
 * are, since OpenCL is not called any more. */
static void stop(bool lost)
{
    char left[200];
    folio_device *dev = folio_device_retain(b.dev);
    eng_fini(&b);
    cr_assert_eq(folio_device_live_bytes(dev), 0);
    cr_assert_eq(atomic_load(&dev->refs), 1, "%d references to the device left",
                 atomic_load(&dev->refs));
    folio_device_close(&dev);
    const int n = fault_alive(left, sizeof left);
    cr_assert(lost || n == 0, "left: %s", left);
    fault_unwatch();
}

static void end(void)
{
    stop(false);
    remove_folder(folder);
}

/* Greedy and sampled, longer than a block, one with two completions that share
 * half a block; more than there are places. Under a salt of its own, so that a
 * later round computes what an earlier one did. */
static void submit_asks(void)
{
    salt++;
    for (int i = 0; i < N_ASKS; i++) {
        folio_engine_request r;
        folio_engine_request_default(&r);
        r.prompt = some + i;
        r.n_prompt = 5 + i % 3;
        r.max_new = i == 0 ? 9 : 5;
        r.ignore_eos = 1;
        r.n = i == 2 ? MAX_C : 1;
        r.sample.temperature = i % 2 ? 1.2f : 0.0f;
        r.salt = &salt;
        r.salt_bytes = sizeof salt;
        asks[i] = eng_submit_as(&b, &r);
    }
}

/* Until idle or failed. */
static folio_status drain(void)
{
    size_t n;
    for (int i = 0; !folio_engine_is_idle(b.e); i++) {
        cr_assert_lt(i, 300, "does not drain");
        FOLIO_RETURN_IF(eng_try(&b, &n));
    }
    return FOLIO_OK;
}

static void learn(void)
{
    eng_forget(&b);
    submit_asks();
    cr_assert_eq(drain(), FOLIO_OK);
    for (int i = 0; i < N_ASKS; i++)
        for (int c = 0; c < (i == 2 ? MAX_C : 1); c++) {
            const eng_answer *a = eng_find(&b, asks[i], c);
            want[i][c].n = a->n;
            memcpy(want[i][c].ids, a->ids, sizeof a->ids);
        }
    eng_forget(&b);
}

/* Everybody ended: with the right ids, or with `st` and the beginning of them.
 * Returns how many did not come to the end. */
static int check_ends(const char *call, folio_status st)
{
    int n_bad = 0;
    for (int i = 0; i < N_ASKS; i++)
        for (int c = 0; c < (i == 2 ? MAX_C : 1); c++) {
            const eng_answer *a = eng_find(&b, asks[i], c);
            cr_assert(a->ended, "%s: ask %d.%d has no end", call, i, c);
            const bool bad = a->end.reason != FOLIO_REASON_LENGTH;
            cr_assert(bad ? a->n <= want[i][c].n : a->n == want[i][c].n);
            cr_assert_eq(
                memcmp(a->ids, want[i][c].ids, (size_t)a->n * sizeof *a->ids),
                0, "%s: ask %d.%d has other ids", call, i, c);
            if (bad) {
                cr_assert_eq(a->end.reason, FOLIO_REASON_ERROR);
                cr_assert_eq(a->end.status, st, "%s: ask %d.%d ends with %s",
                             call, i, c, folio_status_name(a->end.status));
            }
            n_bad += bad;
        }
    eng_forget(&b);
    return n_bad;
}

/* ---- codes --------------------------------------------------------------- */

/* What a call can say without the device being lost. */
static int passing_code(int k)
{
    static const int cl[] = {CL_OUT_OF_RESOURCES,
                             CL_MEM_OBJECT_ALLOCATION_FAILURE,
                             CL_OUT_OF_HOST_MEMORY, CL_INVALID_OPERATION};
    static const int host[] = {FOLIO_E_NOMEM, FOLIO_E_DEVICE, FOLIO_E_BUILD};
    return side == FAULT_CL ? cl[k % 4] : host[k % 3];
}

static int n_passing_codes(void)
{
    return side == FAULT_CL ? 4 : 3;
}

static int fatal_code(int k)
{
    static const int cl[] = {CL_DEVICE_NOT_AVAILABLE, CL_INVALID_CONTEXT,
                             CL_INVALID_COMMAND_QUEUE, -9999};
    return side == FAULT_CL ? cl[k % 4] : FOLIO_E_DEVICE;
}

static folio_status status_of(int code)
{
    return side == FAULT_CL ? folio_cl_status(code) : (folio_status)code;
}

static bool is_lost(void)
{
    return folio_device_is_dead(b.dev);
}

/* A wait that fails leaves nobody who knows what was computed: on OpenCL the
 * device counts as lost whatever the code, but for memory that was too much to
 * ask for (`tries`: the wait may be for a new buffer's first fill). A flush is
 * part of a wait or not. */
static void check_lost(const fault_report *r, bool tries)
{
    if (side == FAULT_HOST || !(r->kinds & (FAULT_WAIT | FAULT_FLUSH)))
        cr_assert_not(is_lost(), "lost by %s", r->first);
    if (side == FAULT_CL && (r->kinds & FAULT_WAIT) && !tries)
        cr_assert(is_lost(), "not lost by %s", r->first);
}

/* ---- steps --------------------------------------------------------------- */

/* One call fails: nobody notices, or the device is lost and everybody ends. */
static void steps_once(const char *device, int stride)
{
    unsigned kinds = 0;
    int n = 0, n_lost = 0, last = 0;
    if (!begin(device))
        return;
    eng_open(&b);
    learn();
    for (int at = 0;;) {
        const int nth = next_of(&at, stride);
        bool fired = false;
        for (int k = 0; k < (everything() ? n_passing_codes() : 1); k++) {
            const int code = passing_code(nth + k);
            submit_asks();
            const uint64_t failed = eng_stats(&b).failed_steps;
            fault_arm(&(fault_plan){side, FAULT_ALL, nth, 1, code, false});
            const folio_status st = drain();
            const fault_report r = fault_disarm();
            if (r.n_fired == 0) {
                cr_assert_eq(st, FOLIO_OK);
                cr_assert_eq(check_ends("nothing", FOLIO_OK), 0);
                last = r.n_calls;
                break;
            }
            fired = true;
            n++;
            kinds |= r.kinds;
            check_lost(&r, false);
            if (is_lost()) {
                size_t none;
                n_lost++;
                check_ends(r.first, FOLIO_E_DEVICE);
                cr_assert_eq(eng_try(&b, &none), FOLIO_E_DEVICE);
                stop(true);
                start(device);
                eng_open(&b);
                continue;
            }
            cr_assert_eq(st, FOLIO_OK, "call %d, %s: %s", nth, r.first,
                         folio_status_name(st));
            cr_assert_eq(check_ends(r.first, FOLIO_OK), 0, "call %d, %s", nth,
                         r.first);
            cr_assert_eq(eng_stats(&b).failed_steps - failed,
                         r.kinds & FAULT_RELEASE ? 0 : 1, "%s", r.first);
            eng_at_rest(&b);
        }
        if (!fired)
            break;
    }
    cr_log_info("%s: %d faults in steps of %d calls, %d of them a loss", device,
                n, last, n_lost);
    const unsigned must =
        side == FAULT_CL ? FAULT_WRITE | FAULT_READ | FAULT_ARG | FAULT_LAUNCH |
                               FAULT_FLUSH | FAULT_WAIT | FAULT_RELEASE
                         : FAULT_WRITE | FAULT_READ | FAULT_LAUNCH;
    cr_assert_eq(kinds & must, must, "kinds seen: %#x of %#x", kinds, must);
    end();
}

/* Three in a row end the requests of that step, and only those. */
static void steps_thrice(const char *device, int stride)
{
    int n = 0, n_ended = 0;
    if (!begin(device))
        return;
    eng_open(&b);
    learn();
    for (int at = 0;;) {
        const int nth = next_of(&at, stride), code = passing_code(nth);
        submit_asks();
        const uint64_t failed = eng_stats(&b).failed_steps;
        fault_arm(&(fault_plan){side, FAULT_ENQUEUE, nth, 3, code, false});
        const folio_status st = drain();
        const fault_report r = fault_disarm();
        cr_assert_eq(st, FOLIO_OK);
        cr_assert_not(is_lost());
        const int bad = check_ends(r.first, status_of(code));
        cr_assert_eq(eng_stats(&b).failed_steps - failed, (uint64_t)r.n_fired);
        cr_assert_eq(bad > 0, r.n_fired == 3, "call %d, %s: %d ended", nth,
                     r.first, bad);
        eng_at_rest(&b);
        if (r.n_fired == 0)
            break;
        n++;
        n_ended += bad;
    }
    cr_log_info("%s: %d times three faults, %d completions ended by them, the "
                "others right",
                device, n, n_ended);
    cr_assert_gt(n_ended, n);
    cr_assert_lt(n_ended, n * (N_ASKS + 1));
    end();
}

/* The device is lost at this call: nothing is enqueued and no OpenCL function
 * called from then on, up to and including the close of all. */
static void steps_lost(const char *device, int stride)
{
    const unsigned kinds =
        FAULT_ALL & ~(unsigned)(FAULT_QUERY | FAULT_RELEASE | FAULT_CALLBACK);
    int n = 0;
    if (!begin(device))
        return;
    eng_open(&b);
    learn();
    for (int at = 0;;) {
        const int nth = next_of(&at, stride);
        folio_engine_request q;
        uint64_t id = 0;
        size_t none;
        submit_asks();
        fault_arm(&(fault_plan){side, kinds, nth, 1, fatal_code(nth), true});
        const folio_status st = drain();
        if (!is_lost()) {
            const fault_report r = fault_disarm();
            cr_assert_eq(r.n_fired, 0, "not lost by %s", r.first);
            cr_assert_eq(st, FOLIO_OK);
            break;
        }
        cr_assert_gt(check_ends("the loss", FOLIO_E_DEVICE), 0);
        cr_assert_eq(eng_try(&b, &none), FOLIO_E_DEVICE);
        folio_engine_request_default(&q);
        q.prompt = some;
        q.n_prompt = 4;
        cr_assert_eq(folio_engine_submit(b.e, &q, &id), FOLIO_E_DEVICE);
        cr_assert_eq(folio_engine_cancel(b.e, asks[0]), FOLIO_E_DEVICE);
        cr_assert_eq(eng_stats(&b).failed, FOLIO_E_DEVICE);
        cr_assert(folio_engine_is_idle(b.e));
        stop(true);
        const fault_report r = fault_disarm();
        cr_assert_eq(r.n_fired, 1);
        cr_assert_eq(r.n_after, 0, "%d calls after %s lost the device",
                     r.n_after, r.first);
        n++;
        start(device);
        eng_open(&b);
    }
    cr_log_info("%s: lost at %d calls of the steps", device, n);
    cr_assert_gt(n, 5);
    end();
}

/* ---- open ---------------------------------------------------------------- */

typedef struct choices {
    char name[80][64];
    size_t n;
} choices;

static void list_choices(const folio_engine *e, choices *c)
{
    folio_choice x;
    memset(c, 0, sizeof *c);
    for (c->n = 0; folio_engine_choice(e, c->n, &x) == FOLIO_OK; c->n++) {
        cr_assert_lt(c->n, FOLIO_COUNT(c->name));
        snprintf(c->name[c->n], sizeof c->name[0], "%s %s", x.op, x.variant);
    }
}

/* An engine opens on a device where another one is at work, and a call fails:
 * an error code or an engine that works; the other one goes on; the next open
 * is as if nothing had been. */
static void opens(const char *device, int stride)
{
    static choices before, after;
    folio_engine *other = NULL;
    unsigned kinds = 0;
    int n = 0, n_ok = 0, n_lost = 0, last = 0;
    if (!begin(device))
        return;
    eng_open(&b);
    learn();
    list_choices(b.e, &before);
    for (int at = 0;;) {
        const int nth = next_of(&at, stride), code = passing_code(nth);
        const int held = fault_held();
        const uint64_t bytes = folio_device_live_bytes(b.dev);
        size_t none;
        submit_asks();
        cr_assert_eq(eng_try(&b, &none), FOLIO_OK);
        fault_arm(&(fault_plan){side, FAULT_ALL, nth, 1, code, false});
        folio_status st = folio_engine_open(b.model, b.tok, &b.p, &other);
        const fault_report r = fault_disarm();
        kinds |= r.kinds;
        n += r.n_fired;
        cr_assert_eq(st == FOLIO_OK, other != NULL);
        n_ok += r.n_fired && st == FOLIO_OK;
        check_lost(&r, status_of(code) == FOLIO_E_NOMEM);
        if (is_lost()) {
            cr_assert_eq(st, FOLIO_E_DEVICE, "%s", r.first);
            cr_assert_eq(drain(), FOLIO_OK);
            check_ends(r.first, FOLIO_E_DEVICE);
            n_lost++;
            stop(true);
            start(device);
            eng_open(&b);
            continue;
        }
        if (st != FOLIO_OK)
            cr_assert(st == status_of(code) || st == FOLIO_E_NOMEM ||
                          (st == FOLIO_E_UNSUPPORTED && r.kinds == FAULT_BUILD),
                      "call %d, %s: %s", nth, r.first, folio_status_name(st));
        cr_assert_eq(drain(), FOLIO_OK);
        cr_assert_eq(check_ends(r.first, FOLIO_OK), 0);
        if (r.n_fired == 0) {
            last = r.n_calls;
            folio_engine_close(&other);
            break;
        }
        /* The engine that opened all the same, and one that opens now. */
        for (int again = 0; again < 2; again++) {
            folio_engine *first = b.e;
            if (again)
                TINY_OK(folio_engine_open(b.model, b.tok, &b.p, &other));
            if (!other)
                continue;
            b.e = other;
            submit_asks();
            cr_assert_eq(drain(), FOLIO_OK);
            cr_assert_eq(check_ends(r.first, FOLIO_OK), 0);
            list_choices(b.e, &after);
            cr_assert(!again || memcmp(&before, &after, sizeof after) == 0,
                      "%s spoilt a choice for good", r.first);
            folio_engine_close(&other);
            b.e = first;
        }
        cr_assert_eq(folio_device_live_bytes(b.dev), bytes);
        cr_assert_eq(fault_held(), held, "call %d, %s: %d objects, %d before",
                     nth, r.first, fault_held(), held);
    }
    cr_log_info("%s: %d faults in an open of %d calls, %d of them without "
                "effect, %d a loss",
                device, n, last, n_ok, n_lost);
    const unsigned must = side == FAULT_CL
                              ? FAULT_OBJECT | FAULT_BUFFER | FAULT_FILL |
                                    FAULT_WRITE | FAULT_BUILD | FAULT_QUERY
                              : FAULT_OBJECT | FAULT_BUFFER | FAULT_WRITE |
                                    FAULT_BUILD | FAULT_WAIT;
    cr_assert_eq(kinds & must, must, "kinds seen: %#x of %#x", kinds, must);
    end();
}

/* ---- device and model ---------------------------------------------------- */

/* The same for the device itself and the weights. */
static void device_opens(const char *device, int stride)
{
    int n = 0, n_ok = 0, last = 0;
    if (!begin(device))
        return;
    const uint64_t caps = folio_device_caps(b.dev);
    eng_open(&b);
    learn();
    folio_model_close(&b.model);
    folio_engine_close(&b.e);
    folio_device_close(&b.dev);
    for (int at = 0;;) {
        const int nth = next_of(&at, stride);
        const int code = nth % 5 ? passing_code(nth) : fatal_code(nth);
        folio_device_params p;
        folio_model_params m;
        folio_device_params_default(&p);
        folio_model_params_default(&m);
        p.select = device;
        p.n_threads = 2;
        m.log = p.log = tiny_log(&b.tiny);
        fault_arm(&(fault_plan){side, FAULT_ALL, nth, 1, code, false});
        folio_status st = folio_device_open(&p, &b.dev);
        if (st == FOLIO_OK)
            st = folio_model_open(b.dev, b.tiny.path, &m, &b.model);
        const fault_report r = fault_pass();
        cr_assert_eq(st == FOLIO_OK, b.model != NULL);
        cr_assert(st == FOLIO_OK || r.n_fired, "%s", folio_status_name(st));
        cr_assert(st == FOLIO_OK || st == FOLIO_E_NOMEM ||
                      st == FOLIO_E_DEVICE || st == FOLIO_E_BUILD ||
                      st == FOLIO_E_NO_DEVICE,
                  "%s: %s", r.first, folio_status_name(st));
        /* What could not be learnt about it may be a default. */
        if (st == FOLIO_OK)
            cr_assert(folio_device_caps(b.dev) == caps ||
                          (r.kinds & FAULT_QUERY),
                      "%s", r.first);
        if (st == FOLIO_OK && !is_lost()) {
            eng_open(&b);
            submit_asks();
            cr_assert_eq(drain(), FOLIO_OK);
            cr_assert_eq(check_ends(r.first, FOLIO_OK), 0);
            folio_engine_close(&b.e);
        }
        folio_model_close(&b.model);
        folio_device_close(&b.dev);
        /* A lost device is left alone, also by the close. */
        char left[200];
        const bool lost =
            fault_disarm().n_after == 0 &&
            (folio_cl_is_fatal(code) || (r.kinds & (FAULT_WAIT | FAULT_FLUSH)));
        cr_assert(lost || fault_alive(left, sizeof left) == 0, "%s: left: %s",
                  r.first, left);
        fault_unwatch();
        fault_watch();
        if (r.n_fired == 0) {
            last = r.n_calls;
            break;
        }
        n++;
        n_ok += st == FOLIO_OK;
    }
    cr_log_info("%s: %d faults in the %d calls that open a device and a model, "
                "%d without effect",
                device, n, last, n_ok);
    b.dev = tiny_device(&b.tiny, device, 0);
    cr_assert_eq(folio_device_caps(b.dev), caps);
    end();
}

/* ---- close --------------------------------------------------------------- */

/* Closed in the middle of its work; what fails then changes nothing. */
static void closes(const char *device, int stride)
{
    int n = 0, last = 0;
    if (!begin(device))
        return;
    eng_open(&b); /* builds the programs, which stay with the device */
    folio_engine_close(&b.e);
    const int alive = fault_alive(NULL, 0);
    for (int at = 0;;) {
        const int nth = next_of(&at, stride);
        char left[200];
        size_t none;
        eng_open(&b);
        submit_asks();
        for (int i = 0; i < 1 + nth % 3; i++)
            cr_assert_eq(eng_try(&b, &none), FOLIO_OK);
        fault_arm(
            &(fault_plan){side, FAULT_ALL, nth, 1, passing_code(nth), false});
        folio_engine_close(&b.e);
        const fault_report r = fault_disarm();
        cr_assert_not(is_lost(), "%s", r.first);
        cr_assert_eq(fault_alive(left, sizeof left), alive, "%s: left: %s",
                     r.first, left);
        last = r.n_calls;
        if (r.n_fired == 0)
            break;
        n++;
    }
    cr_log_info("%s: %d faults in the %d calls of a close", device, n, last);
    cr_assert(side == FAULT_HOST ? last == 0 : n > 5);
    end();
}

/* ---- on each device ------------------------------------------------------ */

TestSuite(engine_fault, .timeout = 7200);

Test(engine_fault, host_steps_once)
{
    steps_once("host", 1);
}

Test(engine_fault, host_steps_thrice)
{
    steps_thrice("host", 1);
}

Test(engine_fault, host_steps_lost)
{
    steps_lost("host", 1);
}

Test(engine_fault, host_opens)
{
    opens("host", 1);
}

Test(engine_fault, host_device_opens)
{
    device_opens("host", 1);
}

Test(engine_fault, host_closes)
{
    closes("host", 1);
}

Test(engine_fault, opencl_steps_once)
{
    steps_once("pocl", 1);
}

Test(engine_fault, opencl_steps_thrice)
{
    steps_thrice("pocl", 3);
}

Test(engine_fault, opencl_steps_lost)
{
    steps_lost("pocl", 9);
}

Test(engine_fault, opencl_opens)
{
    opens("pocl", 1);
}

Test(engine_fault, opencl_device_opens)
{
    device_opens("pocl", 1);
}

Test(engine_fault, opencl_closes)
{
    closes("pocl", 1);
}

/* A step under way behind the one that fails goes with it. */
Test(engine_fault, host_steps_ahead)
{
    ahead = 1;
    steps_once("host", 1);
    steps_thrice("host", 1);
    steps_lost("host", 1);
    closes("host", 1);
}

Test(engine_fault, opencl_steps_once_ahead)
{
    ahead = 1;
    steps_once("pocl", 2);
}

Test(engine_fault, opencl_steps_thrice_ahead)
{
    ahead = 1;
    steps_thrice("pocl", 7);
}

Test(engine_fault, opencl_steps_lost_ahead)
{
    ahead = 1;
    steps_lost("pocl", 17);
}

Test(engine_fault, opencl_closes_ahead)
{
    ahead = 1;
    closes("pocl", 1);
}
