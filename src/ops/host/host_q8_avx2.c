/* ops/host/host_q8_avx2.c: host_q8_impl.h compiled for one instruction set;
 * nothing here may run before the processor was asked for it. */
#define HOST_Q8_SET      folio_host_q8_avx2
#define HOST_Q8_SET_NAME "avx2"
#include "ops/host/host_q8_impl.h"
