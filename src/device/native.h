/* device/native.h: lends raw OpenCL handles to the one library besides folio
 * that enqueues on folio's queues (CLBlast, through ops/cl/cl_gemm.c). Nothing
 * else may include it; nothing lent here is owned by the borrower. */
#ifndef FOLIO_DEVICE_NATIVE_H
#define FOLIO_DEVICE_NATIVE_H

#include "device/dev.h"

/* All NULL on the host device. */
cl_context folio_native_context(const folio_device *dev);
cl_device_id folio_native_device(const folio_device *dev);
cl_command_queue folio_native_queue(const folio_queue *q);
cl_mem folio_native_mem(const folio_buf *buf);

/* Before enqueuing by hand: OK, or DEVICE if the queue is dead. Counts one
 * launch and keeps queued work bounded. */
folio_status folio_native_begin(folio_queue *q) FOLIO_NODISCARD;

/* The status for a code from such a call: logs `what` and the code's name, and
 * kills the queue where OpenCL says that the context is lost. OK for 0. */
folio_status folio_native_result(folio_queue *q, int code,
                                 const char *what) FOLIO_NODISCARD;

#endif
