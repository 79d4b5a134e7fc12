/* ops/host/host_linear.h: the pieces of the host device's linear op: the job
 * that threads share and the instruction sets it is compiled for. Seen by the
 * host_linear*.c files and their tests only. */
#ifndef FOLIO_OPS_HOST_HOST_LINEAR_H
#define FOLIO_OPS_HOST_HOST_LINEAR_H

#include "ops/ops.h"

/* Sums run in this many lanes: lane l adds the products of columns l, l + 16,
 * l + 32, ... in that order, whatever the instruction set, the number of
 * tokens and the tile a row falls into. The lanes are then added in halves:
 * l and l + 8, l and l + 4, l and l + 2, l and l + 1. */
#define HOST_LINEAR_LANES 16
/* Rows of one work item. */
#define HOST_LINEAR_ROWS 8

/* One view of the weight, ready to be cut into rows. */
typedef struct folio_host_linear_job {
    folio_type type;
    folio_packing packing;
    const uint8_t *w; /* first row of the view */
    size_t row_bytes;
    int64_t rows, cols;
    const float *x;    /* [n_tok, cols] */
    float *y;          /* [n_tok, rows], at the view's first row */
    const float *bias; /* [rows] at the view's first row, or NULL */
    int64_t n_tok, x_stride, y_stride;
    bool accumulate;
} folio_host_linear_job;

typedef struct folio_host_linear_set {
    const char *name; /* "avx512" */
    /* Rows row .. row + n_rows - 1 of the job, n_rows <= HOST_LINEAR_ROWS. */
    void (*rows)(const folio_host_linear_job *job, int64_t row, int n_rows);
} folio_host_linear_set;

extern const folio_host_linear_set folio_host_linear_base;
#ifdef FOLIO_HAVE_AVX2
extern const folio_host_linear_set folio_host_linear_avx2;
#endif
#ifdef FOLIO_HAVE_AVX512
extern const folio_host_linear_set folio_host_linear_avx512;
#endif

/* The sets this processor runs, best first; NULL past the last. */
const folio_host_linear_set *folio_host_linear_set_at(int i);

/* The whole op with one set on `threads`; args as folio_op_check wants them,
 * weight, x and y on the host device. */
void folio_host_linear_run(const folio_host_linear_set *set,
                           folio_thread_pool *threads,
                           const folio_linear_args *a);

#endif
