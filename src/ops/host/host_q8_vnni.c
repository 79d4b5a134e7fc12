/* ops/host/host_q8_vnni.c: host_q8_impl.h compiled for one instruction set;
 * nothing here may run before the processor was asked for it. */
#define HOST_Q8_SET      folio_host_q8_vnni
#define HOST_Q8_SET_NAME "vnni"
#include "ops/host/host_q8_impl.h"
