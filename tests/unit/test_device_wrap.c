/* test_device_wrap.c: a caller's own context, queue and buffers are borrowed
 * and given back. */
#define _DEFAULT_SOURCE
#include "unit/device_util.h"
#include "device/native.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

static cl_uint count_of(cl_context c)
{
    cl_uint n = 0;
    cr_assert_eq(
        clGetContextInfo(c, CL_CONTEXT_REFERENCE_COUNT, sizeof n, &n, NULL),
        CL_SUCCESS);
    return n;
}

Test(device_wrap, wraps_a_callers_objects)
{
    setup s;
    device_setup_open(&s);
    cl_int code;
    cl_device_id id = folio_native_device(s.dev);
    cl_context c = clCreateContext(NULL, 1, &id, NULL, NULL, &code);
    cr_assert_eq(code, CL_SUCCESS);
    cl_command_queue cq =
        clCreateCommandQueueWithProperties(c, id, NULL, &code);
    cr_assert_eq(code, CL_SUCCESS);
    const cl_queue_properties ooo[] = {
        CL_QUEUE_PROPERTIES, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 0};
    cl_command_queue loose =
        clCreateCommandQueueWithProperties(c, id, ooo, &code);
    cr_assert_eq(code, CL_SUCCESS);
    cl_mem mem = clCreateBuffer(c, CL_MEM_READ_WRITE, 300, NULL, &code);
    cr_assert_eq(code, CL_SUCCESS);
    cl_int five = 5, got = 0;
    cr_expect_eq(clEnqueueFillBuffer(cq, mem, &five, 4, 0, 300, 0, NULL, NULL),
                 CL_SUCCESS);
    cr_expect_eq(clFinish(cq), CL_SUCCESS);
    usleep(100000);
    cl_uint before = count_of(c);
    /* A queue's last event counts too in PoCL. */
    cl_uint queue_before = 0;
    cr_expect_eq(clGetCommandQueueInfo(cq, CL_QUEUE_REFERENCE_COUNT,
                                       sizeof queue_before, &queue_before,
                                       NULL),
                 CL_SUCCESS);

    folio_device *dev = NULL;
    folio_queue *q = NULL;
    folio_buf *b = NULL;
    folio_device_params p = pocl_params("", &s.log);
    cr_expect_eq(folio_device_wrap(NULL, id, &p, &dev), FOLIO_E_INVAL);
    cr_expect_eq(folio_device_wrap(c, NULL, &p, &dev), FOLIO_E_INVAL);
    cr_assert_eq(folio_device_wrap(c, id, &p, &dev), FOLIO_OK, "%s",
                 s.log.text);
    cr_expect_eq(folio_native_context(dev), c);
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    cr_expect_eq(info.index, s.dev->info.index);
    cr_expect_eq(info.caps, s.dev->info.caps);

    cr_expect_eq(folio_queue_wrap(dev, NULL, &q), FOLIO_E_INVAL);
    cr_expect_eq(folio_queue_wrap(dev, loose, &q), FOLIO_E_INVAL);
    cr_expect_eq(folio_queue_wrap(s.dev, cq, &q), FOLIO_E_INVAL);
    cr_assert_eq(folio_queue_wrap(dev, cq, &q), FOLIO_OK);
    cr_expect_eq(folio_native_queue(q), cq);
    cr_expect_eq(folio_buf_wrap(s.dev, mem, &b), FOLIO_E_INVAL);
    cr_expect_eq(folio_buf_wrap(dev, NULL, &b), FOLIO_E_INVAL);
    cr_expect_eq(folio_buf_wrap_host(dev, &p, 8, &b), FOLIO_E_INVAL);
    cr_assert_eq(folio_buf_wrap(dev, mem, &b), FOLIO_OK);
    cr_expect_eq(folio_buf_bytes(b), 300);

    /* The caller uses its queue between folio's calls. */
    cr_expect_eq(clEnqueueFillBuffer(cq, mem, &five, 4, 0, 300, 0, NULL, NULL),
                 CL_SUCCESS);
    folio_kernel *k = NULL;
    cr_assert_eq(open_text(dev, add_source, "add", "", &k), FOLIO_OK);
    const folio_grid g = {.groups = {1, 1, 1}, .local = {8, 1, 1}};
    const folio_arg args[] = {folio_arg_view((folio_view){.buf = b}),
                              folio_arg_i32(2)};
    cr_expect_eq(folio_launch(q, k, &g, args, 2), FOLIO_OK);
    cr_expect_eq(
        clEnqueueReadBuffer(cq, mem, CL_TRUE, 0, 4, &got, 0, NULL, NULL),
        CL_SUCCESS);
    cr_expect_eq(got, 7);

    folio_device_close(&dev);
    folio_buf_close(&b);
    folio_kernel_close(&k);
    folio_queue_close(&q);
    cr_expect_eq(clFinish(cq), CL_SUCCESS);
    cl_uint mem_refs = 0, queue_refs = 0;
    /* PoCL's threads give theirs back a little after the end of a command. */
    for (int i = 0; i < 100 && (mem_refs != 1 || queue_refs != queue_before);
         i++) {
        usleep(10000);
        cr_assert_eq(clGetMemObjectInfo(mem, CL_MEM_REFERENCE_COUNT,
                                        sizeof mem_refs, &mem_refs, NULL),
                     CL_SUCCESS);
        cr_assert_eq(clGetCommandQueueInfo(cq, CL_QUEUE_REFERENCE_COUNT,
                                           sizeof queue_refs, &queue_refs,
                                           NULL),
                     CL_SUCCESS);
    }
    cr_expect_eq(mem_refs, 1, "%u on the buffer", mem_refs);
    cr_expect_eq(queue_refs, queue_before, "%u on the queue", queue_refs);
    cr_expect_eq(count_of(c), before, "%u instead of %u on the context",
                 count_of(c), before);
    clReleaseMemObject(mem);
    clReleaseCommandQueue(loose);
    clReleaseCommandQueue(cq);
    clReleaseContext(c);
    device_setup_close(&s);
}
