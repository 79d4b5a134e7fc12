/* ops/host/host_linear_avx512.c: host_linear_impl.h compiled for one
 * instruction set; nothing here may run before the processor was asked for it.
 */
#define HOST_LINEAR_SET      folio_host_linear_avx512
#define HOST_LINEAR_SET_NAME "avx512"
#include "ops/host/host_linear_impl.h"
