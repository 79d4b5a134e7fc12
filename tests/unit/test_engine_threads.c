/* unit/test_engine_threads.c: submit, cancel and figures from many threads
 * while the owner steps, and several engines side by side. With
 * FOLIO_THREADS_MAIN it is a program of its own, folio-threads: Criterion's
 * runner does not start under a thread sanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "unit/engine_bed.h"

enum { N_THREADS = 4, N_EACH = 25, N_NEW = 6 };

static eng b;

static void set_up(void)
{
    eng_init(&b, "host", true);
    b.p.n_blocks = 48;
    b.p.max_waiting = 20;
    eng_open(&b);
}

static void tear_down(void)
{
    eng_fini(&b);
}

typedef struct client {
    pthread_t thread;
    folio_engine *e;
    int index;
    _Atomic int *n_done;
    uint64_t ids[N_EACH];
    int n_full, n_cancelled;
    bool bad;
} client;

/* Retries while the queue is full; cancels every fifth. */
static void *submit_many(void *arg)
{
    client *c = arg;
    int32_t prompt[8];
    for (int i = 0; i < N_EACH; i++) {
        folio_engine_request r;
        folio_engine_request_default(&r);
        for (int k = 0; k < 8; k++)
            prompt[k] = (c->index * 11 + i * 3 + k) % TINY_VOCAB;
        r.prompt = prompt;
        r.n_prompt = 1 + (i % 8);
        r.max_new = N_NEW;
        r.ignore_eos = 1;
        folio_status st;
        while ((st = folio_engine_submit(c->e, &r, &c->ids[i])) ==
               FOLIO_E_FULL) {
            folio_engine_stats s = {.size = sizeof s};
            folio_engine_get_stats(c->e, &s);
            c->n_full++;
        }
        c->bad |= st != FOLIO_OK;
        if (i % 5 == 4) {
            st = folio_engine_cancel(c->e, c->ids[i]);
            c->bad |= st != FOLIO_OK && st != FOLIO_E_NOT_FOUND;
            c->n_cancelled++;
        }
        c->bad |= folio_engine_is_idle(c->e) && st != FOLIO_OK &&
                  st != FOLIO_E_NOT_FOUND;
    }
    atomic_fetch_add(c->n_done, 1);
    return NULL;
}

static void submit_while_stepping(void)
{
    client c[N_THREADS];
    _Atomic int n_done = 0;
    memset(c, 0, sizeof c);
    for (int i = 0; i < N_THREADS; i++) {
        c[i].e = b.e;
        c[i].index = i;
        c[i].n_done = &n_done;
        cr_assert_eq(pthread_create(&c[i].thread, NULL, submit_many, &c[i]), 0);
    }
    while (atomic_load(&n_done) < N_THREADS || !folio_engine_is_idle(b.e))
        eng_step(&b);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(c[i].thread, NULL);
    for (int i = 0; i < N_THREADS; i++) {
        cr_assert_not(c[i].bad);
        for (int k = 0; k < N_EACH; k++) {
            const eng_answer *a = eng_find(&b, c[i].ids[k], 0);
            cr_assert(a->ended);
            if (a->end.reason == FOLIO_REASON_ABORT)
                cr_assert_eq(k % 5, 4);
            else
                cr_assert_eq(a->n, N_NEW);
        }
    }
    cr_assert_eq(b.n, N_THREADS * N_EACH);
    eng_at_rest(&b);
}

/* ---- a device that is lost meanwhile ------------------------------------- */

static int n_reads; /* the owner's */

static folio_status lost_read(folio_runner *r, int number, folio_drawn *out)
{
    return ++n_reads > 20 ? FOLIO_E_DEVICE
                          : folio_runner_read_drawn(r, number, out);
}

static bool is_lost(const folio_runner *r)
{
    (void)r;
    return n_reads > 20;
}

enum { N_MOST = 4000 };

typedef struct stubborn {
    pthread_t thread;
    folio_engine *e;
    uint64_t ids[N_MOST];
    int n;
    bool bad;
} stubborn;

/* Submits, looks and cancels until it is told that all is over. */
static void *submit_until_lost(void *arg)
{
    stubborn *c = arg;
    static const int32_t prompt[] = {1, 2, 3, 4, 5};
    folio_status st = FOLIO_OK;
    while (st != FOLIO_E_DEVICE && c->n < N_MOST) {
        folio_engine_stats s = {.size = sizeof s};
        folio_engine_request r;
        folio_engine_request_default(&r);
        r.prompt = prompt;
        r.n_prompt = 1 + c->n % 5;
        r.max_new = N_NEW;
        r.n = 1 + c->n % 2;
        st = folio_engine_submit(c->e, &r, &c->ids[c->n]);
        if (st == FOLIO_OK && ++c->n % 3 == 0) {
            const folio_status gone =
                folio_engine_cancel(c->e, c->ids[c->n - 1]);
            c->bad |= gone != FOLIO_OK && gone != FOLIO_E_NOT_FOUND &&
                      gone != FOLIO_E_DEVICE;
        }
        folio_engine_get_stats(c->e, &s);
        c->bad |= s.failed != FOLIO_OK && s.failed != FOLIO_E_DEVICE;
        c->bad |= st != FOLIO_OK && st != FOLIO_E_FULL && st != FOLIO_E_DEVICE;
    }
    c->bad |= st != FOLIO_E_DEVICE;
    return NULL;
}

/* Whoever got an id gets its ends, too, and none of them twice (see eng_note).
 */
static void lose_the_device(void)
{
    static stubborn c[N_THREADS];
    folio_status st = FOLIO_OK;
    size_t n = 0;
    memset(c, 0, sizeof c);
    n_reads = 0;
    eng_open(&b);
    b.e->call.read_drawn = lost_read;
    b.e->call.is_lost = is_lost;
    for (int i = 0; i < N_THREADS; i++) {
        c[i].e = b.e;
        cr_assert_eq(
            pthread_create(&c[i].thread, NULL, submit_until_lost, &c[i]), 0);
    }
    while (st == FOLIO_OK)
        st = eng_try(&b, &n);
    cr_assert_eq(st, FOLIO_E_DEVICE);
    int n_ended = 0;
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(c[i].thread, NULL);
    cr_assert(folio_engine_is_idle(b.e));
    for (int i = 0; i < N_THREADS; i++) {
        cr_assert_not(c[i].bad);
        for (int k = 0; k < c[i].n; k++)
            for (int32_t j = 0; j < 1 + k % 2; j++) {
                const eng_answer *a = eng_find(&b, c[i].ids[k], j);
                cr_assert(a->ended);
                n_ended += a->end.status == FOLIO_E_DEVICE;
            }
    }
    cr_assert_gt(n_ended, 0);
    cr_assert_eq(eng_stats(&b).n_in_flight, 0);
}

typedef struct owner {
    pthread_t thread;
    const eng *bed;
    int32_t ids[2][N_NEW];
    bool bad;
} owner;

/* An engine of its own over the shared model. */
static void *own_engine(void *arg)
{
    owner *o = arg;
    folio_engine *e = NULL;
    o->bad = folio_engine_open(o->bed->model, o->bed->tok, &o->bed->p, &e) !=
             FOLIO_OK;
    for (int i = 0; i < 2 && !o->bad; i++) {
        folio_engine_request r;
        uint64_t id;
        folio_engine_request_default(&r);
        r.prompt = tiny_goldens[i].prompt;
        r.n_prompt = tiny_goldens[i].n;
        r.max_new = N_NEW;
        r.ignore_eos = 1;
        o->bad = folio_engine_submit(e, &r, &id) != FOLIO_OK;
    }
    while (!o->bad && !folio_engine_is_idle(e)) {
        folio_event ev[8];
        size_t n = 0;
        o->bad = folio_engine_step(e, ev, 8, &n) != FOLIO_OK;
        for (size_t k = 0; k < n; k++)
            if (ev[k].kind == FOLIO_EVENT_TOKEN)
                o->ids[ev[k].request - 1][ev[k].index] = ev[k].tok;
    }
    folio_engine_close(&e);
    return NULL;
}

static void engines_side_by_side(void)
{
    owner o[3];
    memset(o, 0, sizeof o);
    /* The bed's log is one struct without a lock: all of these are silent. */
    folio_device_params dp;
    folio_device *dev = NULL;
    folio_model *model = NULL, *with_log = b.model;
    folio_device_params_default(&dp);
    dp.select = "host";
    dp.n_threads = 2;
    TINY_OK(folio_device_open(&dp, &dev));
    TINY_OK(folio_model_open(dev, b.tiny.path, NULL, &model));
    b.model = model;
    b.p.log = (folio_log){0};
    for (int i = 0; i < 3; i++) {
        o[i].bed = &b;
        cr_assert_eq(pthread_create(&o[i].thread, NULL, own_engine, &o[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(o[i].thread, NULL);
    for (int i = 0; i < 3; i++) {
        cr_assert_not(o[i].bad);
        for (int k = 0; k < 2; k++)
            cr_assert_eq(
                memcmp(o[i].ids[k], tiny_goldens[k].ids, sizeof o[i].ids[k]),
                0);
    }
    b.model = with_log;
    folio_model_close(&model);
    folio_device_close(&dev);
}

#ifdef FOLIO_THREADS_MAIN
int main(void)
{
    for (int round = 0; round < 5; round++) {
        set_up();
        b.p.run_ahead = round % 2;
        eng_open(&b);
        submit_while_stepping();
        lose_the_device();
        engines_side_by_side();
        tear_down();
    }
    return 0;
}
#else
TestSuite(engine_threads, .init = set_up, .fini = tear_down);

Test(engine_threads, four_threads_submit_while_one_steps)
{
    submit_while_stepping();
}

Test(engine_threads, four_threads_submit_while_the_device_runs_ahead)
{
    b.p.run_ahead = 1;
    eng_open(&b);
    submit_while_stepping();
}

Test(engine_threads, others_submit_while_the_device_is_lost)
{
    lose_the_device();
}

Test(engine_threads, engines_side_by_side_share_a_model)
{
    engines_side_by_side();
}
#endif
