/* device/select.h: ranking and choice over a table of devices. Pure: no
 * OpenCL, no environment, no memory of its own but the table's text, so that a
 * made-up table tests it. */
#ifndef FOLIO_DEVICE_SELECT_H
#define FOLIO_DEVICE_SELECT_H

#include "base/base.h"

#include <folio/device.h>

typedef enum folio_select_kind {
    FOLIO_SELECT_AUTO,
    FOLIO_SELECT_HOST,
    FOLIO_SELECT_DEVICE /* by index or by name */
} folio_select_kind;

/* Facts a kind is judged by; all from OpenCL, none of them a name. */
typedef struct folio_select_facts {
    bool cpu, gpu, accelerator; /* bits of the device type */
    bool unified;               /* shares memory with the host */
} folio_select_facts;

/* A device that claims to be a GPU and something else is an emulator. */
folio_device_kind folio_select_classify(folio_select_facts f);

/* Sizes no machine has (above 64 TiB) count as unknown: 0. */
uint64_t folio_select_sane_bytes(uint64_t reported);
/* Largest single buffer from what the device reports (0 = unknown) and the
 * pretended limit (0 = none). Never 0. */
uint64_t folio_select_max_alloc(uint64_t global_bytes, uint64_t reported,
                                uint64_t pretended);
/* OpenCL states the alignment in bits; 0 or a non-power of two means 128. */
uint32_t folio_select_align_bytes(uint32_t bits);

/* NULL and "auto" choose by rank, "host" the host device (case ignored). */
folio_select_kind folio_select_parse(const char *text);

/* Fills order[0..] with the indices of GPUs, best first, ties in the table's
 * order; returns how many. CPUs and emulators are never ranked. */
size_t folio_select_rank(const folio_device_info *table, size_t n,
                         size_t *order);

/* Finds the one device meant by `text`. NO_DEVICE with the reason in `why`
 * when none or several are. */
folio_status folio_select_match(const folio_device_info *table, size_t n,
                                const char *text, size_t *index, char *why,
                                size_t why_bytes) FOLIO_NODISCARD;

/* The table for a message, one device a line; caller frees. NULL: no memory. */
char *folio_select_table(const folio_device_info *table, size_t n);

#endif
