/* device/probe.h: how capabilities are probed: a scratch device in a context of
 * its own, which a probe may lose without harm to the real one. */
#ifndef FOLIO_DEVICE_PROBE_H
#define FOLIO_DEVICE_PROBE_H

#include "device/impl.h"

#define FOLIO_PROBE_WORDS 8192

typedef struct folio_probe {
    const folio_found *found;
    folio_device_settings settings;
    folio_device *dev; /* NULL when it could not be opened again */
    folio_queue *q;
    folio_buf *in, *out;
    uint32_t words[FOLIO_PROBE_WORDS];   /* sent before a run */
    uint32_t results[FOLIO_PROBE_WORDS]; /* come back after it */
} folio_probe;

/* One launch: words 0..n_in-1 go in, `out` is filled with 0xa5 unless `keep`,
 * words 0..n_out-1 come back. With groups 0 the kernel takes any group size and
 * items counts all work-items at least. */
typedef struct folio_probe_run {
    const char *entry, *fragments, *options;
    uint32_t groups, items; /* work-groups, items in each */
    uint32_t n_in, n_out;
    int32_t n;
    bool keep;
    folio_log_level level; /* of a failed build */
} folio_probe_run;

/* OK if it ran: numbers are the caller's to check. RANGE, not logged, when the
 * kernel's own limit is below `items` in a group: some devices allow a kernel
 * far less than they report. */
folio_status folio_probe_do(folio_probe *p,
                            const folio_probe_run *run) FOLIO_NODISCARD;
/* Shared by the vendors' ways to the same thing: sums of four products of
 * bytes; a fence between work-groups (`how` as in probe.cl). */
bool folio_probe_dot4(folio_probe *p, const char *entry, const char *fragments,
                      const char *options);
bool folio_probe_fence(folio_probe *p, const char *std, int how);
/* Deterministic test words. */
uint32_t folio_probe_word(uint32_t i);

/* caps_ptx.c: the capabilities of NVIDIA's compiler; 0 elsewhere. */
uint64_t folio_caps_ptx(folio_probe *p);
/* Builds for sm_90a by changing the target of the PTX that the compiler left
 * behind. On failure *code says why; the program is NULL or carries the
 * compiler's text. */
cl_program folio_ptx_build(folio_device *dev, const char *source,
                           const char *options, cl_int *code);

#endif
