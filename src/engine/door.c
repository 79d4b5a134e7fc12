/* engine/door.c: where other threads meet the engine: submit, cancel, figures.
 * Requests wait here until the owner's next step takes them in, so that it is
 * the only writer of everything behind. The lock is held for a few stores. */
#include "engine/eng.h"

#include <string.h>

folio_status folio_door_init(folio_door *d, int32_t max_in_flight,
                             const folio_log *log)
{
    size_t n = 1;
    while (n < (size_t)max_in_flight)
        n *= 2;
    d->by_id = folio_calloc(n, sizeof(folio_job *));
    if (!d->by_id)
        return folio_fail(log, FOLIO_E_NOMEM,
                          "engine: no memory for %d requests", max_in_flight);
    if (pthread_mutex_init(&d->lock, NULL) != 0) {
        FOLIO_FREE(d->by_id);
        return folio_fail(log, FOLIO_E_NOMEM, "engine: no mutex");
    }
    d->id_mask = (uint32_t)(n - 1);
    d->max_in_flight = max_in_flight;
    d->in_end = &d->in;
    d->next_id = 1;
    d->settled = true;
    return FOLIO_OK;
}

void folio_door_fini(folio_door *d)
{
    if (!d->by_id)
        return;
    for (uint32_t i = 0; i <= d->id_mask; i++)
        while (d->by_id[i]) {
            folio_job *job = d->by_id[i];
            d->by_id[i] = job->next_id;
            folio_job_close(&job);
        }
    pthread_mutex_destroy(&d->lock);
    FOLIO_FREE(d->by_id);
}

/* Ids are consecutive, so their low bits spread them. */
static folio_job **bucket_of(folio_door *d, uint64_t id)
{
    return &d->by_id[(uint32_t)id & d->id_mask];
}

void folio_door_take(folio_door *d, folio_job **in, folio_job **cancel)
{
    pthread_mutex_lock(&d->lock);
    *in = d->in;
    *cancel = d->cancel;
    d->in = d->cancel = NULL;
    d->in_end = &d->in;
    pthread_mutex_unlock(&d->lock);
}

void folio_door_leave(folio_door *d, folio_job *job, bool last)
{
    pthread_mutex_lock(&d->lock);
    d->n_in_flight--;
    job->over = last;
    pthread_mutex_unlock(&d->lock);
}

void folio_door_remove(folio_door *d, folio_job *job)
{
    pthread_mutex_lock(&d->lock);
    folio_job **at = bucket_of(d, job->id);
    while (*at != job)
        at = &(*at)->next_id;
    *at = job->next_id;
    pthread_mutex_unlock(&d->lock);
}

/* OK and a place in the inbox, or why not; the lock is held. */
static folio_status enter(folio_door *d, folio_job *job)
{
    if (d->failed != FOLIO_OK)
        return d->failed;
    if (job->n > d->max_in_flight - d->n_in_flight)
        return FOLIO_E_FULL;
    folio_job **bucket = bucket_of(d, job->id);
    job->next_id = *bucket;
    *bucket = job;
    *d->in_end = job;
    d->in_end = &job->next_in;
    d->n_in_flight += job->n;
    d->submitted += (uint64_t)job->n;
    return FOLIO_OK;
}

/* An id, or a cheap refusal before anything is copied. */
static folio_status knock(folio_door *d, int32_t n, uint64_t *id)
{
    pthread_mutex_lock(&d->lock);
    folio_status st = d->failed;
    if (st == FOLIO_OK && n > 0 && n <= d->max_in_flight &&
        n > d->max_in_flight - d->n_in_flight)
        st = FOLIO_E_FULL;
    if (st == FOLIO_OK)
        *id = d->next_id++;
    pthread_mutex_unlock(&d->lock);
    return st;
}

folio_status folio_engine_submit(folio_engine *e, const folio_engine_request *r,
                                 uint64_t *id)
{
    folio_job *job = NULL;
    if (!e)
        return FOLIO_E_INVAL;
    if (!r || !id)
        return folio_fail(&e->log, FOLIO_E_INVAL, "submit: %s is NULL",
                          r ? "id" : "the request");
    uint64_t name = 0;
    FOLIO_RETURN_IF(knock(&e->door, r->size == sizeof *r ? r->n : 0, &name));
    FOLIO_RETURN_IF(folio_job_open(e, r, name, &job));
    pthread_mutex_lock(&e->door.lock);
    const folio_status st = enter(&e->door, job);
    pthread_mutex_unlock(&e->door.lock);
    if (st != FOLIO_OK) {
        folio_job_close(&job);
        return st;
    }
    *id = name; /* the job may be over already */
    return FOLIO_OK;
}

folio_status folio_engine_cancel(folio_engine *e, uint64_t id)
{
    if (!e)
        return FOLIO_E_INVAL;
    folio_door *d = &e->door;
    pthread_mutex_lock(&d->lock);
    folio_status st = d->failed;
    folio_job *job = *bucket_of(d, id);
    while (job && job->id != id)
        job = job->next_id;
    if (st == FOLIO_OK && (!job || job->over))
        st = FOLIO_E_NOT_FOUND;
    if (st == FOLIO_OK && !job->cancel_asked) {
        job->cancel_asked = true;
        job->next_cancel = d->cancel;
        d->cancel = job;
    }
    pthread_mutex_unlock(&d->lock);
    return st;
}

bool folio_engine_is_idle(const folio_engine *e)
{
    if (!e)
        return true;
    folio_door *d = &((folio_engine *)e)->door;
    pthread_mutex_lock(&d->lock);
    const bool idle = d->n_in_flight == 0 && d->settled;
    pthread_mutex_unlock(&d->lock);
    return idle;
}

void folio_engine_get_stats(const folio_engine *e, folio_engine_stats *out)
{
    folio_engine_stats s = {0};
    if (!out)
        return;
    if (!e) {
        s.size = FOLIO_MIN(out->size, sizeof s);
        memcpy(out, &s, s.size);
        return;
    }
    folio_door *d = &((folio_engine *)e)->door;
    pthread_mutex_lock(&d->lock);
    s = d->stats;
    s.size = FOLIO_MIN(out->size, sizeof s);
    s.submitted = d->submitted;
    s.n_in_flight = d->n_in_flight;
    s.failed = d->failed;
    pthread_mutex_unlock(&d->lock);
    memcpy(out, &s, FOLIO_MIN(out->size, sizeof s));
}
