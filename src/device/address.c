/* device/address.c: where buffers lie, for devices that let kernels be told so
 * (FOLIO_CAP_ADDRESS). A driver that gets buffers looks after each of them at
 * every launch; NVIDIA's needs 0.4 us for it, more than for all other arguments
 * of a launch. What it no longer knows, that a buffer is in use, is waited for
 * here before the buffer goes. */
#include "device/impl.h"

#include <stdlib.h>

folio_status folio_address_open(folio_device *dev)
{
    folio_status st = FOLIO_OK;
    cl_int code = CL_SUCCESS;
    char *source = folio_kernel_source("address.cl");
    if (!source)
        FOLIO_TRY(folio_fail(&dev->log, FOLIO_E_NOMEM,
                             "no memory for the text of address.cl"));
    FOLIO_TRY(
        folio_program_kernel(dev,
                             &(folio_program_text){.label = "address.cl",
                                                   .source = source,
                                                   .options = "-cl-std=CL1.2",
                                                   .entry = "buf_address",
                                                   .level = FOLIO_LOG_WARN},
                             &dev->ask_address));
    dev->asked_address = clCreateBuffer(dev->context, CL_MEM_READ_WRITE,
                                        sizeof(cl_ulong), NULL, &code);
    if (code != CL_SUCCESS)
        dev->asked_address = NULL;
    FOLIO_CL(dev, code);
    FOLIO_CL(dev, clSetKernelArg(dev->ask_address, 1, sizeof dev->asked_address,
                                 &dev->asked_address));
fail:
    free(source);
    return st;
}

void folio_address_close(folio_device *dev)
{
    if (folio_device_is_dead(dev))
        return;
    if (dev->ask_address)
        clReleaseKernel(dev->ask_address);
    if (dev->asked_address)
        clReleaseMemObject(dev->asked_address);
}

folio_status folio_address_ask(folio_device *dev, folio_buf *b)
{
    folio_status st = FOLIO_OK;
    const size_t one = 1;
    cl_event event = NULL;
    if (!dev->ask_address)
        return FOLIO_OK;
    cl_command_queue q = dev->aux->queue;
    FOLIO_CL(dev, clSetKernelArg(dev->ask_address, 0, sizeof b->mem, &b->mem));
    FOLIO_CL(dev, clEnqueueNDRangeKernel(q, dev->ask_address, 1, NULL, &one,
                                         &one, 0, NULL, NULL));
    FOLIO_CL(dev, clEnqueueReadBuffer(q, dev->asked_address, CL_FALSE, 0,
                                      sizeof dev->told_address,
                                      &dev->told_address, 0, NULL, &event));
    FOLIO_TRY(folio_queue_wait(dev->aux, event, "the address of a buffer"));
    if (dev->told_address == 0)
        FOLIO_TRY(folio_fail(&dev->log, FOLIO_E_DEVICE,
                             "device %s puts a buffer at address 0",
                             dev->info.name));
    b->address = dev->told_address;
fail:
    return st;
}

void folio_address_settle(folio_device *dev)
{
    if (!dev->ask_address)
        return;
    pthread_mutex_lock(&dev->lock);
    for (folio_queue *q = dev->queues; q && !folio_device_is_dead(dev);
         q = q->next) {
        cl_event mark = NULL;
        if (q->queue &&
            clEnqueueMarkerWithWaitList(q->queue, 0, NULL, &mark) ==
                CL_SUCCESS &&
            folio_queue_wait(q, mark, "the last use of a buffer") != FOLIO_OK)
            break;
    }
    pthread_mutex_unlock(&dev->lock);
}
