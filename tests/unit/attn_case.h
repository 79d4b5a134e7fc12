/* One attention problem for the unit tests: random q, K, V, shuffled blocks,
 * NaN in every slot that no sequence uses, garbage behind each block table; and
 * ways to run it through any variant. Everything follows from the seed. */
#ifndef FOLIO_TESTS_ATTN_CASE_H
#define FOLIO_TESTS_ATTN_CASE_H

#include "ops/attn_plan.h"
#include "ops/host/host_attn.h"
#include "ops/ops.h"

enum { ATTN_CASE_SEQS = 40 };

typedef struct attn_shape {
    int32_t heads, kv_heads, head_dim, block_size;
    folio_kv_type type;
    folio_kv_layout layout; /* falls as folio_kv_layout_fit says */
    int32_t window;
    float softcap, scale; /* scale 0 = 1 / sqrt(HD) */
    int32_t n_seq;
    int32_t q_len[ATTN_CASE_SEQS], kv_len[ATTN_CASE_SEQS];
    int32_t n_buf;    /* segments; 0 = 1 */
    int32_t n_spare;  /* blocks nobody uses; 0 = a few */
    int32_t first_id; /* smallest block id in use */
} attn_shape;

typedef struct attn_case {
    attn_shape sh;
    int32_t n_tok, n_blocks, seg_shift;
    int32_t q_start[ATTN_CASE_SEQS + 1], table_start[ATTN_CASE_SEQS + 1];
    int32_t *tables;
    float *q; /* [T, H, HD] */
    float *k[ATTN_CASE_SEQS],
        *v[ATTN_CASE_SEQS]; /* [kv_len, KVH, HD] as kept */
    uint8_t *k_pool, *v_pool;
    size_t pool_bytes;
} attn_case;

void attn_case_init(attn_case *c, const attn_shape *sh, uint64_t seed);
void attn_case_fini(attn_case *c);
/* Puts the logical k and v of sequence s into the pools again. */
void attn_case_store(attn_case *c, int32_t s);
int64_t attn_case_slot(const attn_case *c, int32_t s, int32_t pos);

/* How to run a case. */
typedef struct attn_run {
    folio_device *dev;
    const char *variant;
    bool deterministic;
    int32_t chunk;      /* > 0: forced */
    int32_t n_partials; /* room for so many; 0: the variant's choice */
} attn_run;

/* out [T, H, HD]. The buffer holds NaN before; NaNs behind it must survive.
 * Fails the test on any error. Runs twice and demands the same bits. */
void attn_case_run(const attn_case *c, const attn_run *r, float *out);
/* The same through ref_attn on a host device. */
void attn_case_ref(const attn_case *c, float *out);
/* Through one instruction set of the host form, one segment. */
void attn_case_host(const attn_case *c, folio_device *dev,
                    const folio_host_attn_set *set, float *out);
/* Fails the test where |a - b| > abs + rel * |b|. */
void attn_case_compare(const attn_case *c, const char *what, const float *got,
                       const float *want, double abs_tol, double rel_tol);
/* The golden vectors: number 1 or 2, and what comes out, [T, H, HD]. */
void attn_case_golden(attn_case *c, int number, float *want);
float *attn_case_out(const attn_case *c);

#endif
