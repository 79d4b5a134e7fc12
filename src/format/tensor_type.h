/* format/tensor_type.h: the element types of stored tensors and the sizes of
 * their blocks. The numbers are GGML's type ids, so that files map directly. */
#ifndef FOLIO_FORMAT_TENSOR_TYPE_H
#define FOLIO_FORMAT_TENSOR_TYPE_H

#include "base/base.h"

typedef enum folio_type {
    FOLIO_TYPE_F32 = 0,
    FOLIO_TYPE_F16 = 1,
    FOLIO_TYPE_Q4_0 = 2,
    FOLIO_TYPE_Q4_1 = 3,
    FOLIO_TYPE_Q5_0 = 6,
    FOLIO_TYPE_Q5_1 = 7,
    FOLIO_TYPE_Q8_0 = 8,
    FOLIO_TYPE_Q2_K = 10,
    FOLIO_TYPE_Q3_K = 11,
    FOLIO_TYPE_Q4_K = 12,
    FOLIO_TYPE_Q5_K = 13,
    FOLIO_TYPE_Q6_K = 14,
    FOLIO_TYPE_IQ4_NL = 20,
    FOLIO_TYPE_IQ4_XS = 23,
    FOLIO_TYPE_I8 = 24,
    FOLIO_TYPE_I16 = 25,
    FOLIO_TYPE_I32 = 26,
    FOLIO_TYPE_I64 = 27,
    FOLIO_TYPE_F64 = 28,
    FOLIO_TYPE_BF16 = 30,
    FOLIO_TYPE_MXFP4 = 39
} folio_type;

typedef struct folio_type_info {
    folio_type type;
    const char *name;      /* "Q4_0" */
    uint32_t block_values; /* values in a block; 1 for plain types */
    uint32_t block_bytes;  /* bytes of a block */
} folio_type_info;

/* NULL for a number this build does not know. */
const folio_type_info *folio_type_find(uint32_t type);
/* "F32, F16, Q4_0, ...": for messages. Static. */
const char *folio_type_names(void);
/* The name that GGML gives a type number, known to this build or not; "an
 * unknown type" for other numbers. Static, for messages. */
const char *folio_type_any_name(uint32_t type);
/* Bytes of one row of `cols` values; 0 if cols is not whole blocks or the
 * product overflows. */
size_t folio_type_row_bytes(folio_type type, uint64_t cols);

#endif
