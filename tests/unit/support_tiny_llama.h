/* unit/support_tiny_llama.h: a llama model small enough to think about, with
 * weights from a known stream, so that its logits and its greedy ids are known
 * numbers; and the shortest way to feed a runner. What a test wants broken it
 * breaks between tiny_init and tiny_save. */
#ifndef FOLIO_UNIT_SUPPORT_TINY_LLAMA_H
#define FOLIO_UNIT_SUPPORT_TINY_LLAMA_H

#include "unit/support_gguf_writer.h"

#include <criterion/criterion.h>
#include <folio/model.h>

enum {
    TINY_VOCAB = 64,
    TINY_DIM = 32,
    TINY_FF = 48,
    TINY_LAYERS = 2,
    TINY_HEADS = 8,
    TINY_KV_HEADS = 2,
    TINY_HD = 4,
    TINY_CTX = 128,
    TINY_MAX_SEQS = 8,
    TINY_MAX_TOK = 256
};

typedef struct tiny_ear {
    int n_err, n_warn;
    char err[4200], warn[4200], info[4200]; /* the newest of each */
} tiny_ear;

typedef struct tiny_tensor {
    char name[48];
    uint32_t n_dims;
    uint64_t dims[4]; /* dims[0] is the row length */
    float *v;         /* owned */
    bool left_out;
} tiny_tensor;

/* Written with llama's rotary pairs (2i, 2i+1), the q and k rows permuted from
 * the split halves in which the stream fills them, and llama3's scaling as the
 * factors in rope_freqs.weight, both as converters do. */
typedef struct tiny_llama {
    tiny_tensor t[40];
    int n;
    const char *arch;     /* "llama" */
    const char *skip_key; /* this metadata key is left out */
    uint32_t ctx;         /* TINY_CTX */
    char dir[64], path[96];
    tiny_ear ear;
} tiny_llama;

void tiny_init(tiny_llama *m);
void tiny_fini(tiny_llama *m); /* removes the file too */
/* By name; fails the test where there is none. */
tiny_tensor *tiny_find(tiny_llama *m, const char *name);
/* A copy of another tensor under a new name. */
tiny_tensor *tiny_add_copy(tiny_llama *m, const char *of, const char *name);
void tiny_zero(tiny_llama *m, const char *name);
/* Puts all keys and tensors; the caller may put more and then save. */
void tiny_put(const tiny_llama *m, gguf_writer *w);
void tiny_save(tiny_llama *m);

folio_log tiny_log(tiny_llama *m);
/* The device called `select`, with 2 threads on the host; NULL where OpenCL
 * has none of that name, which in CI fails the test. */
folio_device *tiny_device(tiny_llama *m, const char *select,
                          uint64_t max_alloc);
folio_model *tiny_open(tiny_llama *m, folio_device *dev);
/* Defaults of these tests: TINY_MAX_SEQS sequences of TINY_CTX in blocks of 4,
 * TINY_MAX_TOK tokens and rows, f32 KV, deterministic. */
void tiny_params(folio_runner_params *p);
folio_runner *tiny_runner(folio_model *model, const folio_runner_params *p);

/* A sequence and its blocks; it owns as many as max_ctx needs from the start:
 * those of place `at` among equals, in the order of `seed` (0: ascending). */
typedef struct tiny_seq {
    int32_t blocks[TINY_CTX];
    int32_t n_blocks, block_size, n_tok;
} tiny_seq;
void tiny_seq_init(tiny_seq *s, const folio_runner *r, int32_t at,
                   uint32_t seed);

/* A batch with room for everything. */
typedef struct tiny_batch {
    folio_batch b;
    int32_t tok[TINY_MAX_TOK], pos[TINY_MAX_TOK], slot[TINY_MAX_TOK];
    int32_t q_start[TINY_MAX_SEQS + 1], kv_len[TINY_MAX_SEQS];
    int32_t table_start[TINY_MAX_SEQS + 1];
    int32_t tables[TINY_MAX_SEQS * TINY_CTX];
    int32_t rows[TINY_MAX_TOK], copies[2 * TINY_MAX_SEQS];
} tiny_batch;
void tiny_batch_init(tiny_batch *b);
/* Appends n ids of a sequence; logits of all of them or of the last one. */
void tiny_batch_add(tiny_batch *b, tiny_seq *s, const int32_t *ids, int32_t n,
                    bool all_rows);

/* Feeds ids of one sequence in steps of `chunk` (0: at once); `logits`
 * [n, TINY_VOCAB] gets every row, or [TINY_VOCAB] the last. NULL: none. */
void tiny_feed(folio_runner *r, tiny_seq *s, const int32_t *ids, int32_t n,
               int32_t chunk, bool all_rows, float *logits);
/* Prefill and then n greedy ids, one by one. */
void tiny_greedy(folio_runner *r, tiny_seq *s, const int32_t *ids, int32_t n,
                 int32_t n_new, int32_t *out);

int32_t tiny_argmax(const float *row);
/* Bits, not values. */
void tiny_equal(const float *got, const float *want, size_t n,
                const char *what);
void tiny_near(const float *got, const float *want, size_t n, float tol,
               const char *what);

/* The known answers: five prompts and 16 greedy ids of each, and the logits
 * 0..7 after the first prompt with the sum of all its 3 x 64. */
#define TINY_N_PROMPTS 5
#define TINY_N_NEW     16
typedef struct tiny_golden {
    int32_t n, prompt[8], ids[TINY_N_NEW];
} tiny_golden;
extern const tiny_golden tiny_goldens[TINY_N_PROMPTS];
extern const float tiny_logits[8];
extern const float tiny_max_logit; /* at id 28 */
extern const float tiny_logit_sum;

#define TINY_OK(expr)                                                          \
    do {                                                                       \
        folio_status st_ = (expr);                                             \
        cr_assert_eq(st_, FOLIO_OK, "%s: %s", #expr, folio_status_name(st_));  \
    } while (0)

#endif
