/* ops/self_case.h: the small cases of the self-test: argument structs with
 * seeded contents, one host array for each buffer that they name. Knows shapes,
 * not devices. */
#ifndef FOLIO_OPS_SELF_CASE_H
#define FOLIO_OPS_SELF_CASE_H

#include "ops/choose.h"

typedef enum folio_self_kind {
    FOLIO_SELF_BYTES, /* inputs only */
    FOLIO_SELF_I32,
    FOLIO_SELF_F32,
    FOLIO_SELF_F16
} folio_self_kind;

/* One buffer of a case. */
typedef struct folio_self_array {
    folio_buf **at; /* the field that names it */
    void *data;     /* what it holds before the run */
    size_t bytes;
    folio_self_kind kind;
    bool out;    /* compared after the run */
    int64_t row; /* elements whose largest magnitude sets the tolerance */
} folio_self_array;

#define FOLIO_SELF_ARRAYS 20
#define FOLIO_SELF_SIG    40
#define FOLIO_SELF_LAYERS 2

typedef struct folio_self_case {
    folio_op_id op;
    folio_any_args args;
    folio_view *scratch; /* the field of args; NULL = the op has none */
    folio_weight weight[FOLIO_MAX_PRODUCTS];
    folio_weight_view weight_view[FOLIO_MAX_PRODUCTS];
    int n_weights;
    /* Of a step: layers whose weights lie in one buffer. */
    folio_step_layer layer[FOLIO_SELF_LAYERS];
    folio_weight layer_weight[FOLIO_SELF_LAYERS * 7];
    folio_weight_view layer_view[FOLIO_SELF_LAYERS * 7];
    folio_buf *layer_buf;
    folio_self_array arrays[FOLIO_SELF_ARRAYS];
    int n_arrays;
    int64_t sig[FOLIO_SELF_SIG]; /* every number that shapes the case */
    int n_sig;
    uint64_t seed, counter; /* of the random numbers */
    bool failed;            /* out of memory */
} folio_self_case;

/* Case number `attempt` (0, 1, ...) for these open arguments, each larger than
 * the one before. NOT_FOUND past the last; NOMEM. The case may not move
 * afterwards (its arrays point into it); fini also after a failure. */
folio_status folio_self_case_init(folio_self_case *c, folio_op_id op,
                                  const void *args,
                                  int attempt) FOLIO_NODISCARD;
void folio_self_case_fini(folio_self_case *c);

/* self_case_step.c: the case of a step, and what *c->layer_buf says, NULL too,
 * put into its layers. */
void folio_self_step_init(folio_self_case *c, const folio_step_args *a);
void folio_self_step_bind(folio_self_case *c);

/* What the files of the cases share. */
typedef struct folio_self_parts {
    void (*sign)(folio_self_case *c, int64_t v);
    void *(*array)(folio_self_case *c, folio_buf **at, size_t bytes,
                   folio_self_kind kind, bool out, int64_t row);
    void (*floats)(folio_self_case *c, folio_view *v, int64_t n, bool out,
                   int64_t row);
    void (*ints)(folio_self_case *c, folio_view *v, const int32_t *values,
                 int n);
    void (*units)(folio_self_case *c, float *out, size_t n);
    void (*kv)(folio_self_case *c, folio_kv_ref *kv, int32_t n_blocks,
               bool out);
    void (*tokens)(folio_self_case *c, const folio_kv_ref *kv,
                   const folio_kv_plane *plane, int32_t x, int32_t y,
                   int32_t blk, int32_t n_tok);
} folio_self_parts;
extern const folio_self_parts folio_self_shared;

/* Whole blocks of random weights with scales of order `scale`, no infinities or
 * NaNs. */
void folio_self_blocks(folio_type type, int64_t n_values, float scale,
                       uint64_t seed, void *out);

#endif
