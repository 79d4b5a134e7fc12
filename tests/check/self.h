/* self.h: what the self-test's two sets of wrong variants give to self.c. */
#ifndef FOLIO_CHECK_SELF_H
#define FOLIO_CHECK_SELF_H

#include "check/check.h"

/* A variant and what the harness must find in it: 0 = nothing, it is right. */
typedef struct ck_wrong {
    folio_variant var;
    unsigned bad;
    const char *options; /* OpenCL: the macro that makes it wrong */
    bool only_oclgrind;  /* seen by oclgrind's race detector alone */
} ck_wrong;

const ck_wrong *ck_wrong_cl(size_t *n);
const ck_wrong *ck_wrong_host(size_t *n);

/* Of the row that is being run, for its open. */
const char *ck_wrong_options(const folio_variant *var);

#endif
