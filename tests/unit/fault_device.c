/* unit/fault_device.c: see fault_device.h. Works by the linker's --wrap, as
 * fail_alloc.c does: it sees calls between objects of this program only. The
 * list of names is in tests/CMakeLists.txt, too. */
#include "unit/fault_device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/impl.h"
#include "ops/ops.h"

/* ---- which call is next -------------------------------------------------- */

static _Thread_local struct {
    bool armed;
    fault_plan p;
    fault_report r;
} now;

void fault_arm(const fault_plan *p)
{
    now.p = *p;
    now.r = (fault_report){0};
    now.armed = true;
}

fault_report fault_pass(void)
{
    now.p.kinds = 0;
    return now.r;
}

fault_report fault_disarm(void)
{
    now.armed = false;
    return now.r;
}

static bool fails(fault_side side, fault_kind kind, const char *name)
{
    if (!now.armed || now.p.side != side)
        return false;
    if (now.r.n_fired)
        now.r.n_after++;
    if (!(now.p.kinds & (unsigned)kind))
        return false;
    const int at = ++now.r.n_calls;
    if (at < now.p.nth || at - now.p.nth >= now.p.times)
        return false;
    if (!now.r.n_fired++)
        now.r.first = name;
    now.r.kinds |= (unsigned)kind;
    return true;
}

static _Atomic size_t most_group;

void fault_tell_group(size_t most)
{
    most_group = most;
}

/* ---- what is alive ------------------------------------------------------- */

typedef enum what { CONTEXT, QUEUE, MEM, PROGRAM, KERNEL, EVENT, N_WHAT } what;
static const char *const what_names[N_WHAT] = {"context", "queue",  "buffer",
                                               "program", "kernel", "event"};

typedef struct object {
    void *handle;
    what what;
    int refs;
    void *data; /* an event: memory that its copy was given */
} object;

enum { MAX_OBJECTS = 16384 };
static struct {
    pthread_mutex_t lock;
    bool on;
    object list[MAX_OBJECTS];
    int n;
} watched = {.lock = PTHREAD_MUTEX_INITIALIZER};

static object *find(void *handle, what w)
{
    for (int i = watched.n; i-- > 0;)
        if (watched.list[i].handle == handle && watched.list[i].what == w)
            return &watched.list[i];
    return NULL;
}

/* Made (data may be NULL) or retained. */
static void gained(void *handle, what w, void *data)
{
    if (!handle)
        return;
    pthread_mutex_lock(&watched.lock);
    object *o = watched.on ? find(handle, w) : NULL;
    if (o)
        o->refs++;
    else if (watched.on && watched.n < MAX_OBJECTS)
        watched.list[watched.n++] = (object){handle, w, 1, data};
    pthread_mutex_unlock(&watched.lock);
}

static void dropped(void *handle, what w)
{
    pthread_mutex_lock(&watched.lock);
    object *o = watched.on ? find(handle, w) : NULL;
    if (o && --o->refs == 0)
        *o = watched.list[--watched.n];
    pthread_mutex_unlock(&watched.lock);
}

/* Its memory has another owner now. */
static void handed_over(void *event)
{
    pthread_mutex_lock(&watched.lock);
    object *o = watched.on ? find(event, EVENT) : NULL;
    if (o)
        o->data = NULL;
    pthread_mutex_unlock(&watched.lock);
}

void fault_watch(void)
{
    pthread_mutex_lock(&watched.lock);
    watched.n = 0;
    watched.on = true;
    pthread_mutex_unlock(&watched.lock);
}

int fault_alive(char *text, size_t bytes)
{
    int n[N_WHAT] = {0};
    size_t at = 0;
    pthread_mutex_lock(&watched.lock);
    const int all = watched.n;
    for (int i = 0; i < all; i++)
        n[watched.list[i].what]++;
    pthread_mutex_unlock(&watched.lock);
    if (text && bytes)
        text[0] = '\0';
    for (int w = 0; text && w < N_WHAT; w++)
        if (n[w] && at < bytes)
            at += (size_t)snprintf(text + at, bytes - at, "%s%d %s(s)",
                                   at ? ", " : "", n[w], what_names[w]);
    return all;
}

int fault_held(void)
{
    int n = 0;
    pthread_mutex_lock(&watched.lock);
    for (int i = 0; i < watched.n; i++)
        n += watched.list[i].what != EVENT && watched.list[i].what != PROGRAM;
    pthread_mutex_unlock(&watched.lock);
    return n;
}

/* ---- OpenCL -------------------------------------------------------------- */

/* Declares the function behind the wrap and the wrap itself. */
#define WRAP(type, name, ...)                                                  \
    type __real_##name(__VA_ARGS__);                                           \
    type __wrap_##name(__VA_ARGS__);                                           \
    type __wrap_##name(__VA_ARGS__)

/* A call that does nothing but report. */
#define OR_FAIL(kind, name, call)                                              \
    do {                                                                       \
        if (fails(FAULT_CL, kind, #name))                                      \
            return now.p.code;                                                 \
        return __real_##name call;                                             \
    } while (0)

/* A call that makes an object. */
#define OR_FAIL_MAKING(kind, name, w, call)                                    \
    do {                                                                       \
        if (fails(FAULT_CL, kind, #name)) {                                    \
            if (code)                                                          \
                *code = now.p.code;                                            \
            return NULL;                                                       \
        }                                                                      \
        void *made_ = __real_##name call;                                      \
        gained(made_, w, NULL);                                                \
        return made_;                                                          \
    } while (0)

WRAP(cl_int, clGetPlatformIDs, cl_uint n, cl_platform_id *list, cl_uint *all)
{
    OR_FAIL(FAULT_QUERY, clGetPlatformIDs, (n, list, all));
}

WRAP(cl_int, clGetPlatformInfo, cl_platform_id p, cl_platform_info about,
     size_t n, void *v, size_t *all)
{
    OR_FAIL(FAULT_QUERY, clGetPlatformInfo, (p, about, n, v, all));
}

WRAP(cl_int, clGetDeviceIDs, cl_platform_id p, cl_device_type type, cl_uint n,
     cl_device_id *list, cl_uint *all)
{
    OR_FAIL(FAULT_QUERY, clGetDeviceIDs, (p, type, n, list, all));
}

WRAP(cl_int, clGetDeviceInfo, cl_device_id d, cl_device_info about, size_t n,
     void *v, size_t *all)
{
    OR_FAIL(FAULT_QUERY, clGetDeviceInfo, (d, about, n, v, all));
}

WRAP(cl_int, clGetProgramInfo, cl_program p, cl_program_info about, size_t n,
     void *v, size_t *all)
{
    OR_FAIL(FAULT_QUERY, clGetProgramInfo, (p, about, n, v, all));
}

WRAP(cl_int, clGetProgramBuildInfo, cl_program p, cl_device_id d,
     cl_program_build_info about, size_t n, void *v, size_t *all)
{
    OR_FAIL(FAULT_QUERY, clGetProgramBuildInfo, (p, d, about, n, v, all));
}

WRAP(cl_int, clGetKernelInfo, cl_kernel k, cl_kernel_info about, size_t n,
     void *v, size_t *all)
{
    OR_FAIL(FAULT_QUERY, clGetKernelInfo, (k, about, n, v, all));
}

WRAP(cl_int, clGetKernelWorkGroupInfo, cl_kernel k, cl_device_id d,
     cl_kernel_work_group_info about, size_t n, void *v, size_t *all)
{
    if (most_group && about == CL_KERNEL_WORK_GROUP_SIZE && v &&
        n == sizeof(size_t)) {
        size_t real = 0;
        const cl_int code =
            __real_clGetKernelWorkGroupInfo(k, d, about, n, &real, all);
        real = FOLIO_MIN(real, most_group);
        memcpy(v, &real, sizeof real);
        return code;
    }
    OR_FAIL(FAULT_QUERY, clGetKernelWorkGroupInfo, (k, d, about, n, v, all));
}

WRAP(cl_context, clCreateContext, const cl_context_properties *props, cl_uint n,
     const cl_device_id *list,
     void(CL_CALLBACK *fn)(const char *, const void *, size_t, void *),
     void *user, cl_int *code)
{
    OR_FAIL_MAKING(FAULT_OBJECT, clCreateContext, CONTEXT,
                   (props, n, list, fn, user, code));
}

WRAP(cl_command_queue, clCreateCommandQueue, cl_context c, cl_device_id d,
     cl_command_queue_properties props, cl_int *code)
{
    OR_FAIL_MAKING(FAULT_OBJECT, clCreateCommandQueue, QUEUE,
                   (c, d, props, code));
}

WRAP(cl_command_queue, clCreateCommandQueueWithProperties, cl_context c,
     cl_device_id d, const cl_queue_properties *props, cl_int *code)
{
    OR_FAIL_MAKING(FAULT_OBJECT, clCreateCommandQueueWithProperties, QUEUE,
                   (c, d, props, code));
}

WRAP(cl_mem, clCreateBuffer, cl_context c, cl_mem_flags flags, size_t bytes,
     void *host, cl_int *code)
{
    OR_FAIL_MAKING(FAULT_BUFFER, clCreateBuffer, MEM,
                   (c, flags, bytes, host, code));
}

WRAP(cl_program, clCreateProgramWithSource, cl_context c, cl_uint n,
     const char **text, const size_t *bytes, cl_int *code)
{
    OR_FAIL_MAKING(FAULT_BUILD, clCreateProgramWithSource, PROGRAM,
                   (c, n, text, bytes, code));
}

WRAP(cl_program, clCreateProgramWithBinary, cl_context c, cl_uint n,
     const cl_device_id *list, const size_t *bytes, const unsigned char **data,
     cl_int *status, cl_int *code)
{
    OR_FAIL_MAKING(FAULT_BUILD, clCreateProgramWithBinary, PROGRAM,
                   (c, n, list, bytes, data, status, code));
}

WRAP(cl_int, clBuildProgram, cl_program p, cl_uint n, const cl_device_id *list,
     const char *options, void(CL_CALLBACK *fn)(cl_program, void *), void *user)
{
    OR_FAIL(FAULT_BUILD, clBuildProgram, (p, n, list, options, fn, user));
}

WRAP(cl_kernel, clCreateKernel, cl_program p, const char *entry, cl_int *code)
{
    OR_FAIL_MAKING(FAULT_BUILD, clCreateKernel, KERNEL, (p, entry, code));
}

WRAP(cl_int, clSetKernelArg, cl_kernel k, cl_uint i, size_t bytes,
     const void *v)
{
    OR_FAIL(FAULT_ARG, clSetKernelArg, (k, i, bytes, v));
}

/* An enqueued command's code: its event is alive from now on. */
static cl_int noted(cl_int code, cl_event *event, const void *data)
{
    if (code == CL_SUCCESS && event)
        gained(*event, EVENT, (void *)(uintptr_t)data);
    return code;
}

WRAP(cl_int, clEnqueueNDRangeKernel, cl_command_queue q, cl_kernel k,
     cl_uint dims, const size_t *offset, const size_t *global,
     const size_t *local, cl_uint n, const cl_event *after, cl_event *event)
{
    if (fails(FAULT_CL, FAULT_LAUNCH, "clEnqueueNDRangeKernel"))
        return now.p.code;
    return noted(__real_clEnqueueNDRangeKernel(q, k, dims, offset, global,
                                               local, n, after, event),
                 event, NULL);
}

WRAP(cl_int, clEnqueueWriteBuffer, cl_command_queue q, cl_mem m, cl_bool wait,
     size_t at, size_t bytes, const void *src, cl_uint n, const cl_event *after,
     cl_event *event)
{
    if (fails(FAULT_CL, FAULT_WRITE, "clEnqueueWriteBuffer"))
        return now.p.code;
    return noted(__real_clEnqueueWriteBuffer(q, m, wait, at, bytes, src, n,
                                             after, event),
                 event, src);
}

WRAP(cl_int, clEnqueueReadBuffer, cl_command_queue q, cl_mem m, cl_bool wait,
     size_t at, size_t bytes, void *dst, cl_uint n, const cl_event *after,
     cl_event *event)
{
    if (fails(FAULT_CL, FAULT_READ, "clEnqueueReadBuffer"))
        return now.p.code;
    return noted(
        __real_clEnqueueReadBuffer(q, m, wait, at, bytes, dst, n, after, event),
        event, dst);
}

WRAP(void *, clEnqueueMapBuffer, cl_command_queue q, cl_mem m, cl_bool wait,
     cl_map_flags flags, size_t at, size_t bytes, cl_uint n,
     const cl_event *after, cl_event *event, cl_int *code)
{
    if (fails(FAULT_CL, FAULT_BUFFER, "clEnqueueMapBuffer")) {
        if (code)
            *code = now.p.code;
        return NULL;
    }
    void *data = __real_clEnqueueMapBuffer(q, m, wait, flags, at, bytes, n,
                                           after, event, code);
    (void)noted(data ? CL_SUCCESS : CL_MAP_FAILURE, event, NULL);
    return data;
}

WRAP(cl_int, clEnqueueCopyBuffer, cl_command_queue q, cl_mem src, cl_mem dst,
     size_t from, size_t to, size_t bytes, cl_uint n, const cl_event *after,
     cl_event *event)
{
    if (fails(FAULT_CL, FAULT_COPY, "clEnqueueCopyBuffer"))
        return now.p.code;
    return noted(__real_clEnqueueCopyBuffer(q, src, dst, from, to, bytes, n,
                                            after, event),
                 event, NULL);
}

WRAP(cl_int, clEnqueueFillBuffer, cl_command_queue q, cl_mem m,
     const void *pattern, size_t pattern_bytes, size_t at, size_t bytes,
     cl_uint n, const cl_event *after, cl_event *event)
{
    if (fails(FAULT_CL, FAULT_FILL, "clEnqueueFillBuffer"))
        return now.p.code;
    return noted(__real_clEnqueueFillBuffer(q, m, pattern, pattern_bytes, at,
                                            bytes, n, after, event),
                 event, NULL);
}

WRAP(cl_int, clEnqueueMarkerWithWaitList, cl_command_queue q, cl_uint n,
     const cl_event *after, cl_event *event)
{
    if (fails(FAULT_CL, FAULT_MARK, "clEnqueueMarkerWithWaitList"))
        return now.p.code;
    return noted(__real_clEnqueueMarkerWithWaitList(q, n, after, event), event,
                 NULL);
}

WRAP(cl_int, clFlush, cl_command_queue q)
{
    OR_FAIL(FAULT_FLUSH, clFlush, (q));
}

WRAP(cl_int, clFinish, cl_command_queue q)
{
    OR_FAIL(FAULT_WAIT, clFinish, (q));
}

/* Polling asks again and again, as often as time allows: only the first
 * question about an event counts, and where its answer is an error the command
 * failed. */
static _Thread_local cl_event asked;

WRAP(cl_int, clGetEventInfo, cl_event e, cl_event_info about, size_t n, void *v,
     size_t *all)
{
    const bool again = asked == e;
    asked = e;
    if (!again && fails(FAULT_CL, FAULT_WAIT, "clGetEventInfo")) {
        if (now.p.nth % 2 || about != CL_EVENT_COMMAND_EXECUTION_STATUS)
            return now.p.code;
        memcpy(v, &now.p.code, sizeof now.p.code);
        return CL_SUCCESS;
    }
    return __real_clGetEventInfo(e, about, n, v, all);
}

WRAP(cl_int, clSetEventCallback, cl_event e, cl_int when,
     void(CL_CALLBACK *fn)(cl_event, cl_int, void *), void *user)
{
    if (fails(FAULT_CL, FAULT_CALLBACK, "clSetEventCallback"))
        return now.p.code;
    handed_over(e);
    return __real_clSetEventCallback(e, when, fn, user);
}

#define WRAP_LIFE(retain, release, type, w)                                    \
    WRAP(cl_int, retain, type x)                                               \
    {                                                                          \
        if (fails(FAULT_CL, FAULT_OBJECT, #retain))                            \
            return now.p.code;                                                 \
        gained(x, w, NULL);                                                    \
        return __real_##retain(x);                                             \
    }                                                                          \
    WRAP_END(release, type, w)
#define WRAP_END(release, type, w)                                             \
    WRAP(cl_int, release, type x)                                              \
    {                                                                          \
        const bool bad = fails(FAULT_CL, FAULT_RELEASE, #release);             \
        dropped(x, w);                                                         \
        const cl_int code = __real_##release(x);                               \
        return bad ? now.p.code : code;                                        \
    }

WRAP_LIFE(clRetainContext, clReleaseContext, cl_context, CONTEXT)
WRAP_LIFE(clRetainCommandQueue, clReleaseCommandQueue, cl_command_queue, QUEUE)
WRAP_LIFE(clRetainMemObject, clReleaseMemObject, cl_mem, MEM)
WRAP_END(clReleaseProgram, cl_program, PROGRAM)
WRAP_END(clReleaseKernel, cl_kernel, KERNEL)

WRAP(cl_int, clReleaseEvent, cl_event e)
{
    const bool bad = fails(FAULT_CL, FAULT_RELEASE, "clReleaseEvent");
    if (asked == e)
        asked = NULL; /* the next event may get this address */
    dropped(e, EVENT);
    const cl_int code = __real_clReleaseEvent(e);
    return bad ? now.p.code : code;
}

static void release_one(const object *o)
{
    switch (o->what) {
    case CONTEXT:
        __real_clReleaseContext(o->handle);
        break;
    case QUEUE:
        __real_clReleaseCommandQueue(o->handle);
        break;
    case MEM:
        __real_clReleaseMemObject(o->handle);
        break;
    case PROGRAM:
        __real_clReleaseProgram(o->handle);
        break;
    case KERNEL:
        __real_clReleaseKernel(o->handle);
        break;
    case EVENT:
        __real_clReleaseEvent(o->handle);
        break;
    case N_WHAT:
        break;
    }
}

void fault_unwatch(void)
{
    pthread_mutex_lock(&watched.lock);
    watched.on = false;
    pthread_mutex_unlock(&watched.lock);
    for (int i = 0; i < watched.n; i++)
        if (watched.list[i].what == QUEUE)
            __real_clFinish(watched.list[i].handle);
    for (int w = N_WHAT; w-- > 0;)
        for (int i = 0; i < watched.n; i++) {
            const object *o = &watched.list[i];
            for (int k = 0; (int)o->what == w && k < o->refs; k++)
                release_one(o);
            if ((int)o->what == w)
                free(o->data);
        }
    watched.n = 0;
}

/* ---- the host device ----------------------------------------------------- */

static folio_status host_status(folio_device *dev, folio_queue *q)
{
    if (now.p.lost) {
        if (q)
            q->dead = true;
        atomic_store(&dev->dead, true);
    }
    return (folio_status)now.p.code;
}

/* Calls on a device, and on a queue. */
#define OR_FAIL_ON(d, q, kind, name, call)                                     \
    do {                                                                       \
        folio_device *dev_ = (d);                                              \
        if (dev_ && dev_->host && fails(FAULT_HOST, kind, #name))              \
            return host_status(dev_, q);                                       \
        return __real_##name call;                                             \
    } while (0)

WRAP(folio_status, folio_queue_open, folio_device *dev, folio_queue **q)
{
    OR_FAIL_ON(dev, NULL, FAULT_OBJECT, folio_queue_open, (dev, q));
}

WRAP(folio_status, folio_buf_open, folio_device *dev, size_t bytes,
     folio_buf **b)
{
    OR_FAIL_ON(dev, NULL, FAULT_BUFFER, folio_buf_open, (dev, bytes, b));
}

WRAP(folio_status, folio_buf_wrap_host, folio_device *dev, void *p,
     size_t bytes, folio_buf **b)
{
    OR_FAIL_ON(dev, NULL, FAULT_BUFFER, folio_buf_wrap_host,
               (dev, p, bytes, b));
}

WRAP(folio_status, folio_queue_write, folio_queue *q, folio_view dst,
     const void *src, size_t bytes)
{
    OR_FAIL_ON(q ? q->dev : NULL, q, FAULT_WRITE, folio_queue_write,
               (q, dst, src, bytes));
}

WRAP(folio_status, folio_queue_read, folio_queue *q, folio_view src, void *dst,
     size_t bytes)
{
    OR_FAIL_ON(q ? q->dev : NULL, q, FAULT_READ, folio_queue_read,
               (q, src, dst, bytes));
}

WRAP(folio_status, folio_queue_read_begin, folio_queue *q, int number,
     folio_view src, size_t bytes)
{
    OR_FAIL_ON(q ? q->dev : NULL, q, FAULT_READ, folio_queue_read_begin,
               (q, number, src, bytes));
}

WRAP(folio_status, folio_queue_read_end, folio_queue *q, int number, void *dst)
{
    OR_FAIL_ON(q ? q->dev : NULL, q, FAULT_WAIT, folio_queue_read_end,
               (q, number, dst));
}

WRAP(folio_status, folio_queue_copy, folio_queue *q, folio_view src,
     folio_view dst, size_t bytes)
{
    OR_FAIL_ON(q ? q->dev : NULL, q, FAULT_COPY, folio_queue_copy,
               (q, src, dst, bytes));
}

WRAP(folio_status, folio_queue_fill, folio_queue *q, folio_view dst,
     uint8_t byte, size_t bytes)
{
    OR_FAIL_ON(q ? q->dev : NULL, q, FAULT_FILL, folio_queue_fill,
               (q, dst, byte, bytes));
}

WRAP(folio_status, folio_queue_finish, folio_queue *q)
{
    OR_FAIL_ON(q ? q->dev : NULL, q, FAULT_WAIT, folio_queue_finish, (q));
}

WRAP(folio_status, folio_op_open, folio_device *dev, folio_op_id id,
     const folio_op_params *prm, const void *args, folio_op **out)
{
    OR_FAIL_ON(dev, NULL, FAULT_BUILD, folio_op_open,
               (dev, id, prm, args, out));
}

WRAP(folio_status, folio_op_run, folio_op *op, folio_queue *q, const void *args)
{
    OR_FAIL_ON(q->dev, q, FAULT_LAUNCH, folio_op_run, (op, q, args));
}
