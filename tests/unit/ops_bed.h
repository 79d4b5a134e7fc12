/* tests/unit/ops_bed.h: a host device with buffers between guard zones, for the
 * tests of ops. Random numbers are seeded; the seed is printed by bed_open. */
#ifndef FOLIO_TESTS_OPS_BED_H
#define FOLIO_TESTS_OPS_BED_H

#include "ops/ops.h"

#define BED_BUFS 48

typedef struct bed {
    folio_device *dev;
    folio_queue *q;
    folio_buf *buf[BED_BUFS];
    uint8_t *mem[BED_BUFS];
    size_t bytes[BED_BUFS];
    int n;
    uint64_t seed, counter;
    char log[4096]; /* messages at WARN and above, one a line */
} bed;

void bed_open(bed *b, int n_threads, uint64_t seed);
/* Checks every guard zone. */
void bed_close(bed *b);

/* Zeroed memory of the device; *v names it. */
void *bed_bytes(bed *b, size_t bytes, folio_view *v);
float *bed_zeros(bed *b, size_t n, folio_view *v);
/* Uniform in [-1, 1). */
float *bed_floats(bed *b, size_t n, folio_view *v);
/* All NaN. */
float *bed_poison(bed *b, size_t n, folio_view *v);
int32_t *bed_ints(bed *b, const int32_t *values, size_t n, folio_view *v);
float bed_unit(bed *b);
/* In [0, n). */
int32_t bed_below(bed *b, int32_t n);
/* Random finite weights of [rows, cols], split into `n_views` views. */
void bed_weight(bed *b, folio_type type, int64_t rows, int64_t cols,
                int n_views, folio_weight *w, folio_weight_view *views);
/* Planes of n_buf buffers with 2^seg_shift blocks each, all NaN. */
void bed_kv(bed *b, folio_kv_ref *kv, int n_buf, int seg_shift);
/* Element (t, d) of a head of a block. */
float bed_kv_at(const folio_kv_ref *kv, bool is_k, int32_t slot, int32_t head,
                int32_t d);

/* Opens the variant, runs it once, closes it. */
folio_status bed_run(bed *b, const char *variant, const void *args);

#endif
