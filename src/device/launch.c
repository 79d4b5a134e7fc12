/* device/launch.c: kernels, their remembered arguments, launches. The only
 * place that sets kernel arguments. */
#include "device/impl.h"

#include <stdio.h>
#include <string.h>

/* Of a kernel that requires more, NVIDIA's driver names its default of 256
 * items all the same, though it made the kernel for what is required and runs
 * it: there `required` is believed. Of an assembled text, too, which the driver
 * did not compile. Other drivers' limit stays: a kernel may need more of a
 * device than its text told. */
static folio_status read_limits(folio_device *dev, folio_kernel *k,
                                bool assembled)
{
    folio_status st = FOLIO_OK;
    size_t group = 0, multiple = 0, required[3] = {0, 0, 0};
    cl_ulong local = 0, private_bytes = 0;
    cl_uint n = 0;
    FOLIO_CL(dev, clGetKernelInfo(k->kernel, CL_KERNEL_NUM_ARGS, sizeof n, &n,
                                  NULL));
    FOLIO_CL(dev, clGetKernelWorkGroupInfo(k->kernel, dev->id,
                                           CL_KERNEL_WORK_GROUP_SIZE,
                                           sizeof group, &group, NULL));
    /* The rest is advice: a driver without it is not refused. Read before any
     * argument is set, so that the local memory is the static part. */
    if (clGetKernelWorkGroupInfo(
            k->kernel, dev->id, CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
            sizeof multiple, &multiple, NULL) != CL_SUCCESS)
        multiple = 1;
    if (clGetKernelWorkGroupInfo(k->kernel, dev->id, CL_KERNEL_LOCAL_MEM_SIZE,
                                 sizeof local, &local, NULL) != CL_SUCCESS)
        local = 0;
    if (clGetKernelWorkGroupInfo(k->kernel, dev->id, CL_KERNEL_PRIVATE_MEM_SIZE,
                                 sizeof private_bytes, &private_bytes,
                                 NULL) != CL_SUCCESS)
        private_bytes = 0;
    if (clGetKernelWorkGroupInfo(k->kernel, dev->id,
                                 CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
                                 sizeof required, required, NULL) != CL_SUCCESS)
        memset(required, 0, sizeof required);
    if (required[0] && (assembled || dev->caps & FOLIO_CAP_PTX))
        group = required[0] * required[1] * required[2];
    else if (assembled)
        group = dev->info.max_work_group;
    if (n > FOLIO_COUNT(k->slots))
        return folio_fail(&dev->log, FOLIO_E_UNSUPPORTED,
                          "kernel %s has %u arguments, at most %zu are "
                          "supported",
                          k->entry, (unsigned)n, FOLIO_COUNT(k->slots));
    k->n_slots = n;
    k->limits.max_work_group =
        (uint32_t)FOLIO_MIN(group, (size_t)dev->info.max_work_group);
    k->limits.preferred_multiple =
        (uint32_t)FOLIO_MIN(FOLIO_MAX(multiple, 1u), 1u << 20);
    k->limits.local_bytes = local;
    k->limits.private_bytes = private_bytes;
    memcpy(k->required, required, sizeof required);
fail:
    return st;
}

folio_status folio_kernel_new(folio_device *dev, const folio_program_text *text,
                              folio_kernel **out)
{
    folio_status st = FOLIO_OK;
    folio_kernel *k = folio_calloc(1, sizeof *k);
    if (!k)
        return folio_fail(&dev->log, FOLIO_E_NOMEM, "no memory for kernel %s",
                          text->entry);
    k->dev = folio_device_retain(dev);
    snprintf(k->entry, sizeof k->entry, "%s", text->entry);
    k->by_address = strstr(text->options, "FOLIO_ADDRESSES") != NULL;
    FOLIO_TRY(folio_program_kernel(dev, text, &k->kernel));
    FOLIO_TRY(read_limits(dev, k, folio_program_assembled(text)));
    *out = k;
    return FOLIO_OK;
fail:
    folio_kernel_close(&k);
    return st;
}

void folio_kernel_close(folio_kernel **k)
{
    if (!k || !*k)
        return;
    folio_kernel *x = *k;
    *k = NULL;
    if (x->kernel && !folio_device_is_dead(x->dev))
        clReleaseKernel(x->kernel);
    folio_device_close(&x->dev);
    free(x);
}

void folio_kernel_get_limits(const folio_kernel *k, folio_kernel_limits *out)
{
    *out = k->limits;
}

/* ---- arguments -------------------------------------------------------------
 */

/* Sets one OpenCL argument unless it holds this value already. Buffers are
 * told apart by their number and not by their handle, which a driver may give
 * to the next buffer. */
static folio_status set_slot(folio_queue *q, folio_kernel *k, uint32_t index,
                             uint8_t kind, uint64_t bits, size_t bytes,
                             const void *value)
{
    folio_arg_slot *s = &k->slots[index];
    if (s->set && s->kind == kind && s->bits == bits)
        return FOLIO_OK;
    s->set = false;
    cl_int code = clSetKernelArg(k->kernel, index, bytes, value);
    if (code != CL_SUCCESS) {
        char what[160];
        snprintf(what, sizeof what, "argument %u of kernel %.60s",
                 (unsigned)index, k->entry);
        return folio_queue_cl_failed(q, code, what, false);
    }
    q->n.args_set++;
    s->set = true;
    s->kind = kind;
    s->bits = bits;
    return FOLIO_OK;
}

static folio_status set_arg(folio_queue *q, folio_kernel *k, uint32_t *index,
                            const folio_arg *a)
{
    const folio_log *log = &q->dev->log;
    uint32_t i = *index;
    switch (a->kind) {
    case FOLIO_ARG_VIEW: {
        folio_buf *b = a->v.view.buf;
        cl_mem mem = b ? b->mem : NULL;
        cl_ulong offset = b ? a->v.view.offset : 0;
        if (b && b->dev != q->dev)
            return folio_fail(log, FOLIO_E_INVAL,
                              "argument %u of kernel %s: the buffer belongs to "
                              "another device",
                              (unsigned)i, k->entry);
        if (b && offset > b->bytes)
            return folio_fail(log, FOLIO_E_RANGE,
                              "argument %u of kernel %s: offset %llu in a "
                              "buffer of %zu bytes",
                              (unsigned)i, k->entry, (unsigned long long)offset,
                              b->bytes);
        if (k->by_address) {
            const cl_ulong at = b ? b->address + offset : 0;
            *index += 1;
            return set_slot(q, k, i, FOLIO_ARG_U64, at, sizeof at, &at);
        }
        *index += 2;
        FOLIO_RETURN_IF(
            set_slot(q, k, i, FOLIO_ARG_VIEW, b ? b->id : 0, sizeof mem, &mem));
        return set_slot(q, k, i + 1, FOLIO_ARG_U64, offset, sizeof offset,
                        &offset);
    }
    case FOLIO_ARG_I32: {
        cl_int v = a->v.i32;
        *index += 1;
        return set_slot(q, k, i, FOLIO_ARG_I32, (uint32_t)v, sizeof v, &v);
    }
    case FOLIO_ARG_F32: {
        cl_float v = a->v.f32;
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        *index += 1;
        return set_slot(q, k, i, FOLIO_ARG_F32, bits, sizeof v, &v);
    }
    case FOLIO_ARG_U64: {
        cl_ulong v = a->v.u64;
        *index += 1;
        return set_slot(q, k, i, FOLIO_ARG_U64, v, sizeof v, &v);
    }
    case FOLIO_ARG_LOCAL:
        *index += 1;
        return set_slot(q, k, i, FOLIO_ARG_LOCAL, a->v.u64, (size_t)a->v.u64,
                        NULL);
    }
    return folio_fail(log, FOLIO_E_INVAL,
                      "argument %u of kernel %s has no known kind", (unsigned)i,
                      k->entry);
}

static folio_status check_args(const folio_queue *q, const folio_kernel *k,
                               const folio_arg *args, int n_args)
{
    const folio_log *log = &q->dev->log;
    uint32_t n_slots = 0;
    uint64_t local = 0;
    if (n_args < 0 || n_args > FOLIO_MAX_ARGS || (n_args > 0 && !args))
        return folio_fail(log, FOLIO_E_INVAL,
                          "kernel %s: %d arguments, at most %d are possible",
                          k->entry, n_args, FOLIO_MAX_ARGS);
    for (int i = 0; i < n_args; i++) {
        n_slots += args[i].kind == FOLIO_ARG_VIEW && !k->by_address ? 2 : 1;
        if (args[i].kind != FOLIO_ARG_LOCAL)
            continue;
        if (args[i].v.u64 == 0 || args[i].v.u64 > UINT32_MAX)
            return folio_fail(log, FOLIO_E_INVAL,
                              "kernel %s: %llu bytes of local memory", k->entry,
                              (unsigned long long)args[i].v.u64);
        local += args[i].v.u64;
    }
    if (n_slots != k->n_slots)
        return folio_fail(log, FOLIO_E_INVAL,
                          "kernel %s takes %u arguments, %u are given (a view "
                          "counts as %s)",
                          k->entry, (unsigned)k->n_slots, (unsigned)n_slots,
                          k->by_address ? "one" : "two");
    /* Static local memory alone was the compiler's to judge: some devices have
     * more of it than they report. */
    if (local > 0 && local + k->limits.local_bytes > q->dev->info.local_bytes)
        return folio_fail(
            log, FOLIO_E_INVAL,
            "kernel %s wants %llu bytes of local memory, device "
            "%s has %llu",
            k->entry, (unsigned long long)(local + k->limits.local_bytes),
            q->dev->info.name, (unsigned long long)q->dev->info.local_bytes);
    return FOLIO_OK;
}

static folio_status check_grid(const folio_queue *q, const folio_kernel *k,
                               const folio_grid *g, size_t global[3],
                               cl_uint *dims)
{
    const folio_log *log = &q->dev->log;
    size_t items = 1;
    *dims = 1;
    for (int d = 0; d < 3; d++) {
        if (g->local[d] == 0 || g->local[d] > q->dev->max_items[d] ||
            !folio_mul_size(items, g->local[d], &items) ||
            items > k->limits.max_work_group)
            return folio_fail(log, FOLIO_E_INVAL,
                              "kernel %s: a work-group of %zu x %zu x %zu, "
                              "device %s allows %u for it",
                              k->entry, g->local[0], g->local[1], g->local[2],
                              q->dev->info.name,
                              (unsigned)k->limits.max_work_group);
        if (k->required[0] != 0 && g->local[d] != k->required[d])
            return folio_fail(log, FOLIO_E_INVAL,
                              "kernel %s: a work-group of %zu x %zu x %zu, its "
                              "source demands %zu x %zu x %zu",
                              k->entry, g->local[0], g->local[1], g->local[2],
                              k->required[0], k->required[1], k->required[2]);
        if (!folio_mul_size(g->groups[d], g->local[d], &global[d]))
            return folio_fail(log, FOLIO_E_INVAL,
                              "kernel %s: %zu groups of %zu overflow", k->entry,
                              g->groups[d], g->local[d]);
        if (global[d] > 1)
            *dims = (cl_uint)d + 1;
    }
    return FOLIO_OK;
}

folio_status folio_launch(folio_queue *q, folio_kernel *k,
                          const folio_grid *grid, const folio_arg *args,
                          int n_args)
{
    size_t global[3];
    cl_uint dims = 1;
    uint32_t index = 0;
    if (!q || !k || !grid)
        return FOLIO_E_INVAL;
    if (q->dead || folio_device_is_dead(q->dev))
        return FOLIO_E_DEVICE;
    if (k->dev != q->dev)
        return folio_fail(&q->dev->log, FOLIO_E_INVAL,
                          "kernel %s belongs to another device than the queue",
                          k->entry);
    FOLIO_RETURN_IF(check_args(q, k, args, n_args));
    FOLIO_RETURN_IF(check_grid(q, k, grid, global, &dims));
    if (global[0] == 0 || global[1] == 0 || global[2] == 0)
        return FOLIO_OK;
    for (int i = 0; i < n_args; i++)
        FOLIO_RETURN_IF(set_arg(q, k, &index, &args[i]));
    cl_int code = clEnqueueNDRangeKernel(q->queue, k->kernel, dims, NULL,
                                         global, grid->local, 0, NULL, NULL);
    if (code != CL_SUCCESS) {
        char what[100];
        snprintf(what, sizeof what, "launching %.60s", k->entry);
        return folio_queue_cl_failed(q, code, what, false);
    }
    q->n.launches++;
    return folio_queue_launched(q);
}
