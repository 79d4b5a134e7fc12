/* cl-info.h: the device half of cl-info. */
#ifndef FOLIO_CL_INFO_H
#define FOLIO_CL_INFO_H

#include "tool_common.h"

/* Lists what OpenCL offers; opens nothing. Returns the exit status. */
int cl_info_list(bool json);

/* Opens one device and shows what was found out about it: capabilities, and
 * the variant of each op with the reason. "host" makes no OpenCL call. */
int cl_info_device(const char *select, bool json);

#endif
