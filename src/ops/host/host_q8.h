/* ops/host/host_q8.h: the pieces of the host device's linear with 8-bit
 * activations: quantised tokens, the job that threads share and the
 * instruction sets it is compiled for. Seen by the host_q8*.c files and their
 * tests only. */
#ifndef FOLIO_OPS_HOST_HOST_Q8_H
#define FOLIO_OPS_HOST_HOST_Q8_H

#include "ops/ops.h"

/* Columns that share one step of an activation. Every packed type has whole
 * blocks of it. */
#define HOST_Q8_BLOCK 32

/* x = d * q for the 32 values of a block. */
typedef struct folio_host_q8_step {
    float d;   /* largest |x| / 127 */
    float sum; /* d times the sum of the q */
    /* What an integer sum starts with, because weights are stored without
     * their sign: minus the type's offset times the sum of the q. [1] is that
     * of the second 16 for types whose scales are for 16. */
    int32_t start[2];
} folio_host_q8_step;

/* One view of the weight and the quantised tokens. */
typedef struct folio_host_q8_job {
    folio_type type;
    folio_packing packing; /* RAW or RG16 */
    const uint8_t *w;      /* first row of the view */
    size_t row_bytes;
    int64_t rows, cols;
    const int8_t *q;                /* [n_tok, cols] */
    const folio_host_q8_step *step; /* [n_tok, cols / 32] */
    float *y;                       /* [n_tok, rows], at the view's first row */
    const float *bias; /* [rows] at the view's first row, or NULL */
    int64_t n_tok, y_stride;
    bool accumulate;
} folio_host_q8_job;

typedef struct folio_host_q8_set {
    const char *name; /* "vnni" */
    int lanes;        /* rows that are computed side by side */
    /* One token for weights of `type`. An x that is not finite makes its
     * block's d NaN, and with it every result. */
    void (*quantise)(folio_type type, const float *x, int64_t cols, int8_t *q,
                     folio_host_q8_step *step);
    /* Rows row .. row + n_rows - 1 of the job, n_rows <= lanes. */
    void (*rows)(const folio_host_q8_job *job, int64_t row, int n_rows);
} folio_host_q8_set;

extern const folio_host_q8_set folio_host_q8_base;
#ifdef FOLIO_HAVE_AVX2
extern const folio_host_q8_set folio_host_q8_avx2;
#endif
#ifdef FOLIO_HAVE_VNNI
extern const folio_host_q8_set folio_host_q8_vnni;
#endif

/* The sets this processor runs, best first; NULL past the last. */
const folio_host_q8_set *folio_host_q8_set_at(int i);
/* Whether weights of this type are read. Packings are RAW, for all of them, and
 * RG16, where pack.h has it. */
bool folio_host_q8_knows(folio_type type);
/* Bytes of scratch for n_tok tokens. */
size_t folio_host_q8_scratch_bytes(int64_t n_tok, int64_t cols);

/* The whole op with one set on `threads`; args as folio_op_check wants them,
 * weight of a known type, x, y and scratch on the host device. */
void folio_host_q8_run(const folio_host_q8_set *set, folio_thread_pool *threads,
                       const folio_linear_args *a);

#endif
