/* ops/self_test.h: one variant against its reference on a small seeded case,
 * before a device's first use of it. The verdict is kept beside the device's
 * programs. Keeps no state of its own. */
#ifndef FOLIO_OPS_SELF_TEST_H
#define FOLIO_OPS_SELF_TEST_H

#include "ops/ops.h"

#define FOLIO_SELF_WHY_MAX 120

/* `args` as given to open: what is static in it shapes the case, counts are cut
 * down. Returns OK (passed, was found to have passed, or no small case fits the
 * variant); BUILD (did not build for the case, gave an error, or gave wrong
 * numbers: `why` says it in a few words); NOMEM; DEVICE (lost: nothing can be
 * said). Nothing is logged. */
folio_status folio_op_self_test(folio_device *dev, const folio_variant *var,
                                const folio_op_params *prm, const void *args,
                                char why[FOLIO_SELF_WHY_MAX]) FOLIO_NODISCARD;

/* What is known without running anything: FOLIO_E_BUILD and `why` where the
 * variant has failed before, else OK. */
folio_status folio_op_self_verdict(
    folio_device *dev, const folio_variant *var, const folio_op_params *prm,
    const void *args, char why[FOLIO_SELF_WHY_MAX]) FOLIO_NODISCARD;

#endif
