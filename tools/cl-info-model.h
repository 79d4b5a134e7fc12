/* cl-info-model.h: the model half of cl-info. */
#ifndef FOLIO_CL_INFO_MODEL_H
#define FOLIO_CL_INFO_MODEL_H

#include "tool_common.h"

typedef struct model_query {
    const char *path;
    bool tensors;       /* list tensors too */
    const char *tensor; /* show one row of this one, or NULL */
    long long row;
    bool json;
} model_query;

/* Prints what is asked about the file; returns the exit status. */
int cl_info_model(const model_query *q);

#endif
