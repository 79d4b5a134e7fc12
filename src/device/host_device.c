/* device/host_device.c: the host device: ordinary memory and a thread pool
 * behind the calls of folio/device.h. Makes no OpenCL call. */
#define _POSIX_C_SOURCE 200809L
#include "device/impl.h"
#include "device/select.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <folio/version.h>

folio_status folio_host_device_new(const folio_device_settings *s,
                                   folio_device **out)
{
    folio_device *dev = folio_calloc(1, sizeof *dev);
    if (!dev || pthread_mutex_init(&dev->lock, NULL) != 0) {
        free(dev);
        return folio_fail(&s->log, FOLIO_E_NOMEM, "no memory for a device");
    }
    folio_status st = folio_thread_pool_open(s->n_threads, &dev->pool);
    if (st != FOLIO_OK) {
        pthread_mutex_destroy(&dev->lock);
        free(dev);
        return folio_fail(&s->log, st, "cannot start the host's threads: %s",
                          folio_status_text(st));
    }
    atomic_init(&dev->refs, 1);
    dev->host = true;
    dev->log = s->log;
    dev->wait_ms = s->wait_ms;
    folio_device_info *d = &dev->info;
    d->size = sizeof *d;
    d->index = -1;
    d->kind = FOLIO_DEVICE_HOST;
    snprintf(d->name, sizeof d->name, "host");
    snprintf(d->vendor, sizeof d->vendor, "folio");
    snprintf(d->platform, sizeof d->platform, "C");
    snprintf(d->driver, sizeof d->driver, "%s", FOLIO_VERSION_STRING);
    snprintf(d->version, sizeof d->version, "C11");
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0)
        d->global_bytes =
            folio_select_sane_bytes((uint64_t)pages * (uint64_t)page);
    d->max_alloc_bytes = folio_select_max_alloc(
        d->global_bytes, d->global_bytes, s->max_alloc_bytes);
    d->compute_units = (uint32_t)folio_thread_pool_size(dev->pool);
    d->max_work_group = 1;
    d->base_align = 64;
    folio_cache_init(dev, NULL, s->cache_dir);
    *out = dev;
    return FOLIO_OK;
}
