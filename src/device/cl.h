/* device/cl.h: Khronos's header with the settings this room needs, and names
 * and meanings of its error codes. Only device/ includes it. */
#ifndef FOLIO_DEVICE_CL_H
#define FOLIO_DEVICE_CL_H

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300
#endif
/* The floor's way to make a queue. */
#ifndef CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#endif
#include <CL/cl.h>

#include "base/base.h"

/* "CL_OUT_OF_RESOURCES"; "CL error" for a code nobody documented. Static. */
const char *folio_cl_error_name(int code);

/* The status a caller gets for a failed call. */
folio_status folio_cl_status(int code);

/* After these the context is of no use: no further call may be made on it, as
 * some drivers hang then. */
bool folio_cl_is_fatal(int code);

#endif
