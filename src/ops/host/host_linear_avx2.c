/* ops/host/host_linear_avx2.c: host_linear_impl.h compiled for one instruction
 * set; nothing here may run before the processor was asked for it. */
#define HOST_LINEAR_SET      folio_host_linear_avx2
#define HOST_LINEAR_SET_NAME "avx2"
#include "ops/host/host_linear_impl.h"
