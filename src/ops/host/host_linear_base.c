/* ops/host/host_linear_base.c: host_linear_impl.h compiled for one instruction
 * set; nothing here may run before the processor was asked for it. */
#define HOST_LINEAR_SET      folio_host_linear_base
#define HOST_LINEAR_SET_NAME "base"
#include "ops/host/host_linear_impl.h"
