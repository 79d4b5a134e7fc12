/* unit/support_op_pair.h: one op run by its reference on the host device and by
 * a variant on an OpenCL device, over the same memory, and the two compared
 * byte by byte or within a tolerance. Whole buffers are compared, so that
 * what an op must not touch (strides, guards, other blocks) is seen as well. */
#ifndef FOLIO_TEST_SUPPORT_OP_PAIR_H
#define FOLIO_TEST_SUPPORT_OP_PAIR_H

#include <criterion/criterion.h>

#include "ops/ops.h"

enum { ON_REF, ON_DEV };

typedef enum op_compare { CMP_EXACT, CMP_F32, CMP_F16 } op_compare;

/* The same bytes on both devices. */
typedef struct op_mem {
    uint8_t *init;
    size_t bytes;
    folio_buf *buf[2];
    op_compare how;
    double tol; /* of |reference| + scale */
    double scale;
    const char *name;
} op_mem;

#define OP_PAIR_MAX_MEM 16

typedef struct op_pair {
    folio_device *dev[2];
    folio_queue *q[2];
    bool small; /* an emulator that checks every access: keep shapes small */
    op_mem mem[OP_PAIR_MAX_MEM];
    int n_mem;
    uint64_t seed, drawn;
} op_pair;

/* The OpenCL device is the one that the environment variable FOLIO_DEVICE
 * names, else PoCL. Skips the test if there is none (a failure with CI=true).
 * Prints the seed. */
void op_pair_open(op_pair *p, uint64_t seed);
void op_pair_close(op_pair *p);

/* Before op_pair_open: makes PoCL take no larger work-groups. It reads this
 * when it is loaded, so once a process, which each Criterion test is. */
void op_pair_cap_work_groups(const char *n);

/* Numbers from the pair's seed. */
uint32_t op_pair_u32(op_pair *p, uint32_t below);
float op_pair_f32(op_pair *p); /* in [-2, 2) */
void op_pair_floats(op_pair *p, float *out, size_t n);

/* Gives both devices a copy; the memory stays until op_pair_clear. */
op_mem *op_pair_mem(op_pair *p, const char *name, const void *data,
                    size_t bytes);
/* The same with random floats. */
op_mem *op_pair_mem_f32(op_pair *p, const char *name, size_t n);
op_mem *op_pair_mem_fill(op_pair *p, const char *name, uint8_t byte,
                         size_t bytes);
/* Compared as floats (or halves) within tol * (|reference| + scale). */
void op_mem_within(op_mem *m, op_compare how, double tol, double scale);
folio_view op_mem_at(const op_mem *m, int side, size_t offset);
void op_pair_clear(op_pair *p);

/* Runs `variant` twice on the OpenCL device from the same start, which must
 * give the same bits, and `ref` on the host device, then compares all memory.
 * `what` names the case. `scratch` receives a view of what the op asks for, or
 * is NULL. */
void op_pair_run(op_pair *p, const char *ref, const char *variant,
                 const void *ref_args, void *dev_args, folio_view *scratch,
                 const char *what);

/* Whether the OpenCL device may run this variant at all. */
bool op_pair_can(const op_pair *p, const char *variant);

#endif
