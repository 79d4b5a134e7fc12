/* device/buf.c: device memory: the one place that allocates it, checks limits
 * before the driver is asked, and proves new memory by filling it. */
#include "device/impl.h"
#include "device/native.h"

#include <stdio.h>
#include <string.h>

/* Multiple of the widest fill pattern. */
#define BUF_ALIGN ((size_t)64)
/* Requests from here on are held against the device's memory first: some
 * drivers crash on a request they cannot serve. */
#define BUF_LARGE ((size_t)64 << 20)

folio_size_str folio_size_text(uint64_t bytes)
{
    folio_size_str s;
    if (bytes < (uint64_t)1 << 20)
        snprintf(s.text, sizeof s.text, "%u bytes", (unsigned)bytes);
    else
        snprintf(s.text, sizeof s.text, "%.1f MiB", (double)bytes / 0x1p20);
    return s;
}

static folio_status check_size(folio_device *dev, size_t bytes)
{
    if (bytes == 0)
        return folio_fail(&dev->log, FOLIO_E_INVAL,
                          "a buffer of 0 bytes was asked for");
    if (bytes > folio_device_max_alloc(dev))
        return folio_fail(&dev->log, FOLIO_E_TOO_LARGE,
                          "a buffer needs %s, device %s allows %s "
                          "per buffer",
                          folio_size_text(bytes).text, dev->info.name,
                          folio_size_text(dev->info.max_alloc_bytes).text);
    uint64_t live = atomic_load(&dev->live_bytes);
    uint64_t global = dev->info.global_bytes;
    if (bytes >= BUF_LARGE && global != 0 &&
        (live > global || bytes > global - live))
        return folio_fail(&dev->log, FOLIO_E_NOMEM,
                          "a buffer needs %s, device %s has %s of "
                          "which %s are taken",
                          folio_size_text(bytes).text, dev->info.name,
                          folio_size_text(global).text,
                          folio_size_text(live).text);
    return FOLIO_OK;
}

static folio_buf *new_buf(folio_device *dev, size_t bytes)
{
    folio_buf *b = folio_calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->dev = folio_device_retain(dev);
    b->bytes = bytes;
    b->id = atomic_fetch_add(&dev->next_buf_id, 1) + 1;
    return b;
}

static folio_status open_cl(folio_device *dev, folio_buf *b)
{
    folio_status st = FOLIO_OK;
    cl_int code = CL_SUCCESS;
    /* Rounded up before it is held against the limit, never after. */
    size_t bytes = b->bytes;
    if (bytes <= SIZE_MAX - BUF_ALIGN)
        bytes = FOLIO_MIN(folio_align_up(bytes, BUF_ALIGN),
                          folio_device_max_alloc(dev));
    if (folio_device_is_dead(dev))
        return folio_fail(&dev->log, FOLIO_E_DEVICE, "device %s is lost",
                          dev->info.name);
    b->mem =
        clCreateBuffer(dev->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    if (code != CL_SUCCESS || !b->mem) {
        b->mem = NULL;
        if (folio_cl_status(code) != FOLIO_E_NOMEM)
            return folio_device_cl_failed(dev, code, "clCreateBuffer");
        atomic_store(&dev->starved, true);
        return folio_fail(&dev->log, FOLIO_E_NOMEM,
                          "device %s has no %s for a buffer: %s",
                          dev->info.name, folio_size_text(bytes).text,
                          folio_cl_error_name(code));
    }
    pthread_mutex_lock(&dev->lock);
    st = folio_queue_prove(dev->aux, b->mem, bytes);
    if (st == FOLIO_OK)
        st = folio_address_ask(dev, b);
    pthread_mutex_unlock(&dev->lock);
    return st;
}

folio_status folio_buf_open(folio_device *dev, size_t bytes, folio_buf **buf)
{
    folio_status st = FOLIO_OK;
    folio_buf *b = NULL;
    if (!dev || !buf)
        return dev ? folio_fail(&dev->log, FOLIO_E_INVAL,
                                "folio_buf_open: buf is NULL")
                   : FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_size(dev, bytes));
    b = new_buf(dev, bytes);
    if (!b)
        return folio_fail(&dev->log, FOLIO_E_NOMEM, "no memory for a buffer");
    atomic_fetch_add(&dev->live_bytes, bytes);
    if (dev->host) {
        b->host = folio_aligned_alloc(bytes);
        if (!b->host)
            FOLIO_TRY(folio_fail(&dev->log, FOLIO_E_NOMEM,
                                 "the host has no %s for a buffer",
                                 folio_size_text(bytes).text));
        memset(b->host, 0, bytes);
    } else {
        FOLIO_TRY(open_cl(dev, b));
    }
    *buf = b;
    return FOLIO_OK;
fail:
    folio_buf_close(&b);
    return st;
}

folio_status folio_buf_wrap(folio_device *dev, cl_mem mem, folio_buf **buf)
{
    folio_status st = FOLIO_OK;
    folio_buf *b = NULL;
    size_t bytes = 0;
    cl_context context = NULL;
    cl_mem_object_type type = 0;
    if (!dev || !buf)
        return dev ? folio_fail(&dev->log, FOLIO_E_INVAL,
                                "folio_buf_wrap: buf is NULL")
                   : FOLIO_E_INVAL;
    if (dev->host || !mem)
        return folio_fail(&dev->log, FOLIO_E_INVAL,
                          dev->host
                              ? "folio_buf_wrap: the host device has no cl_mem"
                              : "folio_buf_wrap: mem is NULL");
    if (folio_device_is_dead(dev))
        return folio_fail(&dev->log, FOLIO_E_DEVICE, "device %s is lost",
                          dev->info.name);
    FOLIO_CL(dev,
             clGetMemObjectInfo(mem, CL_MEM_TYPE, sizeof type, &type, NULL));
    FOLIO_CL(dev, clGetMemObjectInfo(mem, CL_MEM_CONTEXT, sizeof context,
                                     &context, NULL));
    FOLIO_CL(dev,
             clGetMemObjectInfo(mem, CL_MEM_SIZE, sizeof bytes, &bytes, NULL));
    if (type != CL_MEM_OBJECT_BUFFER || context != dev->context)
        FOLIO_TRY(folio_fail(&dev->log, FOLIO_E_INVAL,
                             type != CL_MEM_OBJECT_BUFFER
                                 ? "folio_buf_wrap: mem is not a buffer"
                                 : "folio_buf_wrap: mem belongs to another "
                                   "context than the device's"));
    b = new_buf(dev, bytes);
    if (!b)
        FOLIO_TRY(
            folio_fail(&dev->log, FOLIO_E_NOMEM, "no memory for a buffer"));
    b->wrapped = true;
    FOLIO_CL(dev, clRetainMemObject(mem));
    b->mem = mem;
    pthread_mutex_lock(&dev->lock);
    st = folio_address_ask(dev, b);
    pthread_mutex_unlock(&dev->lock);
    if (st != FOLIO_OK)
        goto fail;
    *buf = b;
    return FOLIO_OK;
fail:
    folio_buf_close(&b);
    return st;
}

folio_status folio_buf_wrap_host(folio_device *dev, void *ptr, size_t bytes,
                                 folio_buf **buf)
{
    if (!dev || !buf)
        return dev ? folio_fail(&dev->log, FOLIO_E_INVAL,
                                "folio_buf_wrap_host: buf is NULL")
                   : FOLIO_E_INVAL;
    if (!dev->host || !ptr || bytes == 0)
        return folio_fail(&dev->log, FOLIO_E_INVAL,
                          !dev->host ? "folio_buf_wrap_host: device %s is not "
                                       "the host device"
                          : !ptr ? "folio_buf_wrap_host: ptr is NULL (device "
                                   "%s)"
                                 : "folio_buf_wrap_host: 0 bytes (device %s)",
                          dev->info.name);
    folio_buf *b = new_buf(dev, bytes);
    if (!b)
        return folio_fail(&dev->log, FOLIO_E_NOMEM, "no memory for a buffer");
    b->wrapped = true;
    b->host = ptr;
    *buf = b;
    return FOLIO_OK;
}

void folio_buf_close(folio_buf **buf)
{
    if (!buf || !*buf)
        return;
    folio_buf *b = *buf;
    *buf = NULL;
    if (b->address)
        folio_address_settle(b->dev);
    if (b->mem && !folio_device_is_dead(b->dev))
        clReleaseMemObject(b->mem);
    if (!b->wrapped) {
        folio_aligned_free(b->host);
        atomic_fetch_sub(&b->dev->live_bytes, b->bytes);
    }
    folio_device_close(&b->dev);
    free(b);
}

size_t folio_buf_bytes(const folio_buf *buf)
{
    return buf ? buf->bytes : 0;
}

void *folio_buf_host(const folio_buf *b)
{
    return b->host;
}

folio_device *folio_buf_device(const folio_buf *b)
{
    return b->dev;
}

cl_mem folio_native_mem(const folio_buf *buf)
{
    return buf->mem;
}
