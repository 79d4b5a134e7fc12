/* device/queue.c: in-order queues, copies and waits. Every wait has a deadline;
 * after a failed one the queue and its device are dead and OpenCL is not called
 * any more. Memory that the driver may still touch is never the caller's. */
#define _POSIX_C_SOURCE 200809L
#include "device/impl.h"
#include "device/native.h"

#include <sched.h>
#include <string.h>
#include <time.h>

/* Drivers hold launches back until a flush, and fall over when seconds of work
 * pile up. */
#define FLUSH_EVERY 64u
#define MARK_EVERY  512u
/* One copy through memory of our own moves at most so much. */
#define STAGE_BYTES ((size_t)4 << 20)

/* ---- life ------------------------------------------------------------------
 */

static bool is_dead(const folio_queue *q)
{
    return q->dead || folio_device_is_dead(q->dev);
}

static folio_status refuse_dead(const folio_queue *q)
{
    /* Told when it died; silent from then on. */
    return is_dead(q) ? FOLIO_E_DEVICE : FOLIO_OK;
}

folio_status folio_queue_cl_failed(folio_queue *q, int code, const char *what,
                                   bool waiting)
{
    folio_status st = folio_device_cl_failed(q->dev, code, what);
    if (waiting || folio_device_is_dead(q->dev)) {
        q->dead = true;
        atomic_store(&q->dev->dead, true);
        st = FOLIO_E_DEVICE;
    }
    return st;
}

static folio_status create(folio_device *dev, cl_command_queue *out)
{
    cl_int code = CL_SUCCESS;
    if (folio_queue_uses_properties(dev->cl_version))
        *out = clCreateCommandQueueWithProperties(dev->context, dev->id, NULL,
                                                  &code);
    else
        *out = clCreateCommandQueue(dev->context, dev->id, 0, &code);
    if (code == CL_SUCCESS && *out)
        return FOLIO_OK;
    *out = NULL;
    return folio_device_cl_failed(dev, code, "creating a command queue");
}

static folio_status retain(folio_device *dev, cl_command_queue queue)
{
    folio_status st = FOLIO_OK;
    cl_context context = NULL;
    cl_device_id id = NULL;
    cl_command_queue_properties props = 0;
    FOLIO_CL(dev, clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context,
                                        &context, NULL));
    FOLIO_CL(dev, clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof id, &id,
                                        NULL));
    FOLIO_CL(dev, clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES,
                                        sizeof props, &props, NULL));
    if (context != dev->context || id != dev->id)
        return folio_fail(&dev->log, FOLIO_E_INVAL,
                          "folio_queue_wrap: the queue belongs to another "
                          "context or device");
    if (props & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
        return folio_fail(&dev->log, FOLIO_E_INVAL,
                          "folio_queue_wrap: the queue is out of order");
    FOLIO_CL(dev, clRetainCommandQueue(queue));
fail:
    return st;
}

folio_status folio_queue_new(folio_device *dev, bool owns_ref,
                             cl_command_queue wrapped, folio_queue **out)
{
    folio_status st = FOLIO_OK;
    if (folio_device_is_dead(dev))
        return folio_fail(&dev->log, FOLIO_E_DEVICE, "device %s is lost",
                          dev->info.name);
    folio_queue *q = folio_calloc(1, sizeof *q);
    if (!q)
        return folio_fail(&dev->log, FOLIO_E_NOMEM, "no memory for a queue");
    if (wrapped) {
        FOLIO_TRY(retain(dev, wrapped));
        q->queue = wrapped;
    } else if (!dev->host) {
        FOLIO_TRY(create(dev, &q->queue));
    }
    q->dev = owns_ref ? folio_device_retain(dev) : dev;
    q->owns_ref = owns_ref;
    pthread_mutex_lock(&dev->lock);
    q->next = dev->queues;
    dev->queues = q;
    pthread_mutex_unlock(&dev->lock);
    *out = q;
    return FOLIO_OK;
fail:
    free(q);
    return st;
}

folio_status folio_queue_open(folio_device *dev, folio_queue **q)
{
    if (!dev || !q)
        return dev ? folio_fail(&dev->log, FOLIO_E_INVAL,
                                "folio_queue_open: q is NULL")
                   : FOLIO_E_INVAL;
    return folio_queue_new(dev, true, NULL, q);
}

folio_status folio_queue_wrap(folio_device *dev, cl_command_queue queue,
                              folio_queue **q)
{
    if (!dev || !q)
        return dev ? folio_fail(&dev->log, FOLIO_E_INVAL,
                                "folio_queue_wrap: q is NULL")
                   : FOLIO_E_INVAL;
    if (dev->host || !queue)
        return folio_fail(&dev->log, FOLIO_E_INVAL,
                          dev->host ? "folio_queue_wrap: the host device has "
                                      "no command queue"
                                    : "folio_queue_wrap: queue is NULL");
    return folio_queue_new(dev, true, queue, q);
}

static void pause_ns(long ns)
{
    struct timespec ts = {.tv_sec = 0, .tv_nsec = ns};
    nanosleep(&ts, NULL);
}

static void CL_CALLBACK free_stage(cl_event event, cl_int status, void *data)
{
    (void)event;
    (void)status;
    free(data);
}

/* Gives the memory back at once, or as soon as the driver is done with it. A
 * dead driver may touch it for ever: then it is left to it. */
static void close_stage(folio_queue *q, folio_stage *s)
{
    if (!s->event) {
        free(s->data);
    } else if (!is_dead(q)) {
        if (clSetEventCallback(s->event, CL_COMPLETE, free_stage, s->data) ==
            CL_SUCCESS)
            clReleaseEvent(s->event);
        else if (folio_queue_wait(q, s->event, "a copy") == FOLIO_OK)
            free(s->data);
    }
    memset(s, 0, sizeof *s);
}

/* Whether a command is over, without a verdict on the device: a close tells
 * nobody. */
static bool is_over(folio_queue *q, cl_event event)
{
    const uint64_t start = folio_clock_ns();
    const uint64_t limit =
        (uint64_t)(q->dev->wait_ms > 0 ? q->dev->wait_ms : 10000) * 1000000u;
    clFlush(q->queue);
    do {
        cl_int status = CL_QUEUED;
        if (clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS,
                           sizeof status, &status, NULL) == CL_SUCCESS &&
            status <= CL_COMPLETE)
            return true;
        pause_ns(20000);
    } while (folio_clock_ns() - start < limit);
    return false;
}

/* Left to the driver where that may still write to it. */
static void close_later(folio_queue *q, struct folio_later *l)
{
    if (!l->mem || is_dead(q))
        return;
    if (l->event) {
        if (!is_over(q, l->event))
            return;
        clReleaseEvent(l->event);
    }
    clEnqueueUnmapMemObject(q->queue, l->mem, l->data, 0, NULL, NULL);
    clReleaseMemObject(l->mem);
    memset(l, 0, sizeof *l);
}

void folio_queue_close(folio_queue **q)
{
    if (!q || !*q)
        return;
    folio_queue *x = *q;
    *q = NULL;
    if (!is_dead(x) && x->queue)
        clFlush(x->queue);
    folio_address_settle(x->dev);
    pthread_mutex_lock(&x->dev->lock);
    for (folio_queue **at = &x->dev->queues; *at; at = &(*at)->next)
        if (*at == x) {
            *at = x->next;
            break;
        }
    pthread_mutex_unlock(&x->dev->lock);
    for (int i = 0; i < FOLIO_N_STAGES; i++)
        close_stage(x, &x->stages[i]);
    for (int i = 0; i < FOLIO_LATER_READS; i++)
        close_later(x, &x->later[i]);
    if (!is_dead(x)) {
        if (x->mark)
            clReleaseEvent(x->mark);
        if (x->queue)
            clReleaseCommandQueue(x->queue);
    }
    if (x->owns_ref)
        folio_device_close(&x->dev);
    free(x);
}

folio_device *folio_queue_device(const folio_queue *q)
{
    return q->dev;
}

cl_command_queue folio_native_queue(const folio_queue *q)
{
    return q->queue;
}

bool folio_queue_is_lost(const folio_queue *q)
{
    return is_dead(q);
}

folio_queue_counters folio_queue_get_counters(const folio_queue *q)
{
    return q->n;
}

void folio_queue_count_launch(folio_queue *q)
{
    if (q)
        q->n.launches++;
}

/* ---- waiting ----------------------------------------------------------------
 */

/* Polling is the only wait of OpenCL that can end by itself. Short waits spin,
 * long ones sleep for a small share of what has been waited already; a driver
 * that computes on the CPU needs the CPU. */
static folio_status poll_event(folio_queue *q, cl_event event, const char *what,
                               bool proving)
{
    const folio_device *dev = q->dev;
    uint64_t start = folio_clock_ns();
    uint64_t spin_ns = dev->info.kind == FOLIO_DEVICE_CPU ? 50000u : 5000000u;
    cl_int code = clFlush(q->queue);
    while (code == CL_SUCCESS) {
        cl_int status = CL_QUEUED;
        code = clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS,
                              sizeof status, &status, NULL);
        if (code != CL_SUCCESS)
            break;
        if (status == CL_COMPLETE)
            return FOLIO_OK;
        if (status < 0) {
            code = status;
            break;
        }
        uint64_t waited = folio_clock_ns() - start;
        if (dev->wait_ms > 0 && waited / 1000000u >= (uint64_t)dev->wait_ms) {
            q->dead = true;
            atomic_store(&q->dev->dead, true);
            return folio_fail(&dev->log, FOLIO_E_DEVICE,
                              "device %s does not answer: %s is not done "
                              "after %d ms",
                              dev->info.name, what, (int)dev->wait_ms);
        }
        if (waited < spin_ns)
            sched_yield();
        else
            pause_ns((long)FOLIO_MIN(waited / 32u + 5000u, 100000u));
    }
    bool alive = proving && folio_cl_status(code) == FOLIO_E_NOMEM;
    return folio_queue_cl_failed(q, code, what, !alive);
}

folio_status folio_queue_wait(folio_queue *q, cl_event event, const char *what)
{
    folio_status st = poll_event(q, event, what, false);
    if (!is_dead(q))
        clReleaseEvent(event);
    return st;
}

static folio_status wait_all(folio_queue *q, const char *what)
{
    cl_event mark = NULL;
    cl_int code = clEnqueueMarkerWithWaitList(q->queue, 0, NULL, &mark);
    if (code != CL_SUCCESS) /* nothing was waited for, nothing is known lost */
        return folio_queue_cl_failed(q, code, what, false);
    FOLIO_RETURN_IF(folio_queue_wait(q, mark, what));
    q->since_flush = 0;
    q->since_mark = 0;
    /* Nothing is left to wait for, but some drivers tell only here that a
     * command failed. */
    code = clFinish(q->queue);
    if (code != CL_SUCCESS)
        return folio_queue_cl_failed(q, code, what, true);
    return FOLIO_OK;
}

folio_status folio_queue_finish(folio_queue *q)
{
    if (!q)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(refuse_dead(q));
    q->n.waits++;
    if (q->dev->host)
        return FOLIO_OK;
    return wait_all(q, "the queued work");
}

folio_status folio_queue_launched(folio_queue *q)
{
    if (++q->since_flush >= FLUSH_EVERY) {
        q->since_flush = 0;
        cl_int code = clFlush(q->queue);
        if (code != CL_SUCCESS)
            return folio_queue_cl_failed(q, code, "clFlush", false);
    }
    if (++q->since_mark < MARK_EVERY)
        return FOLIO_OK;
    /* At most two halves are queued: wait for the one before. */
    q->since_mark = 0;
    cl_event mark = NULL, before = q->mark;
    cl_int code = clEnqueueMarkerWithWaitList(q->queue, 0, NULL, &mark);
    if (code != CL_SUCCESS)
        return folio_queue_cl_failed(q, code, "clEnqueueMarkerWithWaitList",
                                     false);
    q->mark = mark;
    return before ? folio_queue_wait(q, before, "the queued work") : FOLIO_OK;
}

folio_status folio_native_begin(folio_queue *q)
{
    FOLIO_RETURN_IF(refuse_dead(q));
    q->n.launches++;
    return folio_queue_launched(q);
}

folio_status folio_native_result(folio_queue *q, int code, const char *what)
{
    if (code == CL_SUCCESS)
        return FOLIO_OK;
    return folio_queue_cl_failed(q, code, what, false);
}

/* ---- copies -----------------------------------------------------------------
 */

static folio_status check_range(const folio_queue *q, folio_view v,
                                size_t bytes, const char *what)
{
    const folio_log *log = &q->dev->log;
    if (!v.buf)
        return folio_fail(log, FOLIO_E_INVAL, "%s: the buffer is absent", what);
    if (v.buf->dev != q->dev)
        return folio_fail(log, FOLIO_E_INVAL,
                          "%s: the buffer belongs to another device", what);
    if (v.offset > v.buf->bytes || bytes > v.buf->bytes - v.offset)
        return folio_fail(log, FOLIO_E_RANGE,
                          "%s: bytes %zu to %zu + %zu of a buffer of %zu", what,
                          v.offset, v.offset, bytes, v.buf->bytes);
    return FOLIO_OK;
}

/* The next piece of own memory, at least `bytes` large and not in use. */
static folio_status take_stage(folio_queue *q, size_t bytes, folio_stage **out)
{
    folio_stage *s = &q->stages[q->next_stage];
    if (s->event) {
        cl_event event = s->event;
        folio_status st = poll_event(q, event, "a copy", false);
        if (st != FOLIO_OK)
            return st; /* the event stays: the memory is not ours */
        clReleaseEvent(event);
        s->event = NULL;
    }
    if (s->bytes < bytes) {
        size_t size = folio_align_up(bytes, (size_t)64 << 10);
        uint8_t *data = malloc(size);
        if (!data)
            return folio_fail(&q->dev->log, FOLIO_E_NOMEM,
                              "no memory for a copy of %zu bytes", bytes);
        free(s->data);
        s->data = data;
        s->bytes = size;
    }
    q->next_stage = (q->next_stage + 1) % FOLIO_N_STAGES;
    *out = s;
    return FOLIO_OK;
}

folio_status folio_queue_write(folio_queue *q, folio_view dst, const void *src,
                               size_t bytes)
{
    if (!q)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(refuse_dead(q));
    FOLIO_RETURN_IF(check_range(q, dst, bytes, "write"));
    if (bytes == 0)
        return FOLIO_OK;
    if (!src)
        return folio_fail(&q->dev->log, FOLIO_E_INVAL, "write: src is NULL");
    q->n.writes++;
    if (q->dev->host) {
        memmove(folio_view_host(dst), src, bytes);
        return FOLIO_OK;
    }
    for (size_t at = 0; at < bytes;) {
        size_t part = FOLIO_MIN(bytes - at, STAGE_BYTES);
        folio_stage *s;
        FOLIO_RETURN_IF(take_stage(q, part, &s));
        memcpy(s->data, (const uint8_t *)src + at, part);
        cl_int code = clEnqueueWriteBuffer(q->queue, dst.buf->mem, CL_FALSE,
                                           dst.offset + at, part, s->data, 0,
                                           NULL, &s->event);
        if (code != CL_SUCCESS) {
            s->event = NULL;
            return folio_queue_cl_failed(q, code, "clEnqueueWriteBuffer",
                                         false);
        }
        at += part;
    }
    return FOLIO_OK;
}

folio_status folio_queue_read(folio_queue *q, folio_view src, void *dst,
                              size_t bytes)
{
    if (!q)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(refuse_dead(q));
    FOLIO_RETURN_IF(check_range(q, src, bytes, "read"));
    if (bytes == 0)
        return FOLIO_OK;
    if (!dst)
        return folio_fail(&q->dev->log, FOLIO_E_INVAL, "read: dst is NULL");
    q->n.reads++;
    q->n.waits++;
    if (q->dev->host) {
        memmove(dst, folio_view_host(src), bytes);
        return FOLIO_OK;
    }
    for (size_t at = 0; at < bytes;) {
        size_t part = FOLIO_MIN(bytes - at, STAGE_BYTES);
        folio_stage *s;
        FOLIO_RETURN_IF(take_stage(q, part, &s));
        cl_int code = clEnqueueReadBuffer(q->queue, src.buf->mem, CL_FALSE,
                                          src.offset + at, part, s->data, 0,
                                          NULL, &s->event);
        if (code != CL_SUCCESS) {
            s->event = NULL;
            return folio_queue_cl_failed(q, code, "clEnqueueReadBuffer", false);
        }
        FOLIO_RETURN_IF(
            poll_event(q, s->event, "a read and what precedes it", false));
        clReleaseEvent(s->event);
        s->event = NULL;
        memcpy((uint8_t *)dst + at, s->data, part);
        at += part;
    }
    return FOLIO_OK;
}

static folio_status check_number(const folio_queue *q, int number)
{
    if (number >= 0 && number < FOLIO_LATER_READS)
        return FOLIO_OK;
    return folio_fail(&q->dev->log, FOLIO_E_INVAL,
                      "read: number %d, not in [0, %d)", number,
                      (int)FOLIO_LATER_READS);
}

/* What went before of this number is over. */
static folio_status settle_later(folio_queue *q, struct folio_later *l)
{
    l->src = (folio_view){0};
    if (!l->event)
        return FOLIO_OK;
    FOLIO_RETURN_IF(poll_event(q, l->event, "a read", false));
    clReleaseEvent(l->event);
    l->event = NULL;
    return FOLIO_OK;
}

static folio_status reserve(folio_queue *q, struct folio_later *l, size_t bytes)
{
    const size_t cap = folio_align_up(bytes, (size_t)64 << 10);
    cl_int code = CL_SUCCESS;
    cl_event event = NULL;
    if (l->cap >= bytes)
        return FOLIO_OK;
    close_later(q, l);
    cl_mem mem = clCreateBuffer(q->dev->context,
                                CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, cap,
                                NULL, &code);
    if (code != CL_SUCCESS || !mem)
        return folio_queue_cl_failed(q, code, "clCreateBuffer", false);
    void *data =
        clEnqueueMapBuffer(q->queue, mem, CL_FALSE, CL_MAP_READ | CL_MAP_WRITE,
                           0, cap, 0, NULL, &event, &code);
    if (code != CL_SUCCESS || !data) {
        const folio_status st =
            folio_queue_cl_failed(q, code, "clEnqueueMapBuffer", false);
        if (!is_dead(q))
            clReleaseMemObject(mem);
        return st;
    }
    /* Its own from here on: a wait that fails loses the device. */
    l->mem = mem;
    l->data = data;
    FOLIO_RETURN_IF(folio_queue_wait(q, event, "mapping memory"));
    l->cap = cap;
    return FOLIO_OK;
}

folio_status folio_queue_read_reserve(folio_queue *q, int number, size_t bytes)
{
    if (!q)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(refuse_dead(q));
    FOLIO_RETURN_IF(check_number(q, number));
    return q->dev->host ? FOLIO_OK : reserve(q, &q->later[number], bytes);
}

static folio_status begin_on_device(folio_queue *q, struct folio_later *l,
                                    folio_view src, size_t bytes)
{
    FOLIO_RETURN_IF(reserve(q, l, bytes));
    cl_int code =
        clEnqueueReadBuffer(q->queue, src.buf->mem, CL_FALSE, src.offset, bytes,
                            l->data, 0, NULL, &l->event);
    if (code != CL_SUCCESS) {
        l->event = NULL;
        return folio_queue_cl_failed(q, code, "clEnqueueReadBuffer", false);
    }
    /* Nobody may come to wait for long: the device begins now. */
    q->since_flush = 0;
    code = clFlush(q->queue);
    return code == CL_SUCCESS
               ? FOLIO_OK
               : folio_queue_cl_failed(q, code, "clFlush", false);
}

folio_status folio_queue_read_begin(folio_queue *q, int number, folio_view src,
                                    size_t bytes)
{
    if (!q)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(refuse_dead(q));
    FOLIO_RETURN_IF(check_number(q, number));
    FOLIO_RETURN_IF(check_range(q, src, bytes, "read"));
    if (bytes == 0)
        return folio_fail(&q->dev->log, FOLIO_E_INVAL, "read %d: no bytes",
                          number);
    struct folio_later *l = &q->later[number];
    FOLIO_RETURN_IF(settle_later(q, l));
    if (!q->dev->host)
        FOLIO_RETURN_IF(begin_on_device(q, l, src, bytes));
    q->n.reads++;
    l->src = src;
    l->bytes = bytes;
    return FOLIO_OK;
}

folio_status folio_queue_read_end(folio_queue *q, int number, void *dst)
{
    if (!q)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(refuse_dead(q));
    FOLIO_RETURN_IF(check_number(q, number));
    struct folio_later *l = &q->later[number];
    const folio_view src = l->src;
    if (!src.buf || !dst)
        return folio_fail(&q->dev->log, FOLIO_E_INVAL, "read %d: %s", number,
                          src.buf ? "dst is NULL" : "it did not begin");
    q->n.waits++;
    FOLIO_RETURN_IF(settle_later(q, l));
    memmove(dst, q->dev->host ? folio_view_host(src) : l->data, l->bytes);
    return FOLIO_OK;
}

folio_status folio_queue_copy(folio_queue *q, folio_view src, folio_view dst,
                              size_t bytes)
{
    if (!q)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(refuse_dead(q));
    FOLIO_RETURN_IF(check_range(q, src, bytes, "copy from"));
    FOLIO_RETURN_IF(check_range(q, dst, bytes, "copy to"));
    if (bytes == 0)
        return FOLIO_OK;
    if (src.buf == dst.buf && src.offset < dst.offset + bytes &&
        dst.offset < src.offset + bytes)
        return folio_fail(&q->dev->log, FOLIO_E_INVAL,
                          "copy: %zu bytes at %zu and at %zu of one buffer "
                          "overlap",
                          bytes, src.offset, dst.offset);
    q->n.copies++;
    if (q->dev->host) {
        memcpy(folio_view_host(dst), folio_view_host(src), bytes);
        return FOLIO_OK;
    }
    cl_int code =
        clEnqueueCopyBuffer(q->queue, src.buf->mem, dst.buf->mem, src.offset,
                            dst.offset, bytes, 0, NULL, NULL);
    if (code != CL_SUCCESS)
        return folio_queue_cl_failed(q, code, "clEnqueueCopyBuffer", false);
    return folio_queue_launched(q);
}

static cl_int enqueue_fill(folio_queue *q, cl_mem mem, size_t offset,
                           size_t bytes, uint8_t byte, cl_event *event)
{
    uint8_t pattern[16];
    memset(pattern, byte, sizeof pattern);
    size_t n = sizeof pattern;
    while (((offset | bytes) & (n - 1)) != 0)
        n /= 2;
    return clEnqueueFillBuffer(q->queue, mem, pattern, n, offset, bytes, 0,
                               NULL, event);
}

folio_status folio_queue_fill(folio_queue *q, folio_view dst, uint8_t byte,
                              size_t bytes)
{
    if (!q)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(refuse_dead(q));
    FOLIO_RETURN_IF(check_range(q, dst, bytes, "fill"));
    if (bytes == 0)
        return FOLIO_OK;
    q->n.copies++;
    if (q->dev->host) {
        memset(folio_view_host(dst), byte, bytes);
        return FOLIO_OK;
    }
    cl_int code = enqueue_fill(q, dst.buf->mem, dst.offset, bytes, byte, NULL);
    if (code != CL_SUCCESS)
        return folio_queue_cl_failed(q, code, "clEnqueueFillBuffer", false);
    return folio_queue_launched(q);
}

folio_status folio_queue_prove(folio_queue *q, cl_mem mem, size_t bytes)
{
    cl_event event = NULL;
    FOLIO_RETURN_IF(refuse_dead(q));
    cl_int code = enqueue_fill(q, mem, 0, bytes, 0, &event);
    if (code != CL_SUCCESS)
        return folio_queue_cl_failed(q, code, "filling a new buffer", false);
    folio_status st = poll_event(q, event, "filling a new buffer", true);
    if (!is_dead(q))
        clReleaseEvent(event);
    return st;
}
