/* check.h: what the files of folio-check share. A problem is one op on one
 * shape with all its buffers' contents; it is run by the reference on a private
 * host device and by each variant on the device under test, and judged. The
 * families (op_*.c) make problems; run.c knows no op. */
#ifndef FOLIO_CHECK_CHECK_H
#define FOLIO_CHECK_CHECK_H

#include "ops/attn_plan.h"
#include "ops/choose.h"
#include "ops/ops.h"

/* ---- problems --------------------------------------------------------------
 */

typedef enum ck_kind { CK_F32, CK_I32, CK_F16, CK_BYTES } ck_kind;
typedef enum ck_role { CK_IN, CK_OUT, CK_INOUT, CK_SCRATCH } ck_role;

/* Every place that nobody may read or that nobody has written holds this: NaN
 * as f32 and as two f16, far outside every index range as i32. */
#define CK_POISON 0x7fd57e5au
/* What follows the used entries of a block table. */
#define CK_BAD_BLOCK 0x7fffffff

/* How an output is judged. EXACT: bits. NEAR: |got - want| <= abs +
 * rel |want| + c eps scale[i]. PLACE: f16 neighbours are equal. COSINE: rows
 * point the same way, and each element is NEAR. */
typedef enum ck_rule { CK_EXACT, CK_NEAR, CK_PLACE, CK_COSINE } ck_rule;

typedef struct ck_slot {
    const char *name;
    ck_role role;
    ck_kind kind;
    size_t bytes;
    size_t align;     /* byte offsets are multiples of this */
    size_t row_bytes; /* > 0: one row per counted token, this far apart */
    uint8_t *init;    /* contents before a run */
    uint8_t *want;    /* after the reference's run; outputs only */
    ck_rule rule;
    double abs, rel, c;
    double *scale; /* per element; NULL = none */
    /* COSINE: each element sums so few terms that they may all but cancel, and
     * a row of such sums turns; rows are judged as one. */
    bool few_terms;
    /* What is set when the slot gets its place. */
    folio_view *into, *also;
    folio_buf **into_buf;
    size_t *into_offset;
    bool optional; /* the op runs without it */
    int with;      /* the slot whose byte offset this one must share, or -1 */
    /* Its place. */
    folio_buf *buf;
    size_t offset, total;
    uint8_t *image; /* the whole buffer before a run */
} ck_slot;

#define CK_MAX_SLOTS 32

/* A ragged batch, for attention. */
typedef struct ck_batch {
    int32_t n_seq;
    int32_t *q_start, *kv_len, *table_start, *tables;
    int32_t n_tables;
    int32_t max_kv;
    int32_t chunk; /* > 0: forced keys per entry */
} ck_batch;

/* Views inside point into the struct itself: copied with ck_problem_rows or
 * made anew, never by assignment. */
typedef struct ck_problem {
    folio_op_id op;
    char name[160];
    bool deterministic; /* run with a fixed plan */
    /* Which of the op's OpenCL variants run it: "all", or the one whose name
     * ends so; where the device cannot have that one, the floor. */
    const char *pick;
    ck_slot slot[CK_MAX_SLOTS];
    int n_slots;
    folio_any_args args;
    folio_weight w;
    folio_weight_view wv[4];
    folio_weight fw[FOLIO_MAX_PRODUCTS]; /* of a fused op */
    folio_weight_view fwv[FOLIO_MAX_PRODUCTS];
    folio_packing packing; /* of w, once ck_pack_weight was called */
    ck_batch batch;
} ck_problem;

ck_problem *ck_problem_new(folio_op_id op);
void ck_problem_free(ck_problem *p);

/* A slot of `count` elements whose place goes to *into (may be NULL); inputs
 * are zeroed, outputs poisoned. */
ck_slot *ck_slot_add(ck_problem *p, const char *name, ck_role role,
                     ck_kind kind, size_t count, folio_view *into);
/* Rows of `width` elements, `stride` apart, one per counted token; the gaps are
 * poisoned. */
ck_slot *ck_slot_add_rows(ck_problem *p, const char *name, ck_role role,
                          ck_kind kind, size_t rows, size_t width,
                          size_t stride, folio_view *into);
size_t ck_kind_bytes(ck_kind kind);
size_t ck_slot_count(const ck_slot *s);
static inline float *ck_f32(const ck_slot *s)
{
    return (float *)(void *)s->init;
}
static inline int32_t *ck_i32(const ck_slot *s)
{
    return (int32_t *)(void *)s->init;
}
void ck_poison(void *p, size_t bytes);
/* Rows first .. first + n - 1 of a problem that was judged as a whole. */
ck_problem *ck_problem_rows(const ck_problem *p, int first, int n);
/* Sets n_tok, n_rows, n_pairs or n. */
void ck_set_count(ck_problem *p, int64_t n);

/* ---- random numbers --------------------------------------------------------
 */

typedef struct ck_rng {
    uint64_t state;
} ck_rng;
ck_rng ck_rng_make(uint64_t seed, const char *name);
uint32_t ck_next(ck_rng *r);
/* 0 .. n - 1 */
int32_t ck_below(ck_rng *r, int32_t n);
/* lo .. hi */
float ck_uniform(ck_rng *r, float lo, float hi);
void ck_fill(ck_rng *r, float *x, size_t n, float lo, float hi);
void ck_shuffle(ck_rng *r, int32_t *x, int32_t n);

/* ---- a run of the program --------------------------------------------------
 */

/* Why a variant was found wrong. */
enum {
    CK_BAD_STATUS = 1, /* a call failed */
    CK_BAD_GUARD = 2,  /* wrote outside its outputs */
    CK_BAD_INPUT = 4,  /* wrote to an input */
    CK_BAD_UNWRITTEN = 8,
    CK_BAD_NAN = 16,
    CK_BAD_VALUE = 32,
    CK_BAD_REPEAT = 64,  /* two runs differ */
    CK_BAD_BATCH = 128,  /* a row alone differs from the row in a batch */
    CK_BAD_PLACE = 256,  /* other physical blocks, other bits */
    CK_BAD_REFUSAL = 512 /* took bad arguments, or wrote in spite of them */
};

/* What is known of one variant at the end. */
typedef struct ck_tally {
    const folio_variant *var;
    int ran, failed;
    unsigned bad; /* CK_BAD_* */
    double worst; /* largest share of the tolerance used */
    char worst_case[160];
    bool refusals_done;
} ck_tally;

typedef struct ck_refusal {
    char text[200]; /* "variant: reason" */
    int cases;
} ck_refusal;

typedef enum ck_size { CK_SMALL, CK_LIST, CK_FULL } ck_size;

typedef struct ck_ctx {
    folio_device *dev, *host; /* host: the references' own */
    folio_queue *q, *host_q;
    const folio_variant *rows;
    size_t n_rows;
    ck_tally *tally; /* [n_rows] */
    ck_refusal *refusal;
    int n_refusals;
    ck_size size;
    bool exact_buffers;
    bool gpu;
    bool quiet;        /* the self-test shows only its verdicts */
    bool bench;        /* time instead of judging */
    bool bench_attn;   /* of all that, the table of attention alone */
    bool bench_linear; /* or that of linear */
    bool bench_step;   /* or that of step */
    double read_rate;  /* of the device's memory, GB/s */
    uint64_t seed;
    const char *device; /* as asked for */
    const char *only, *without;
    const char *tune; /* folio_op_params.tune of every op */
    int passed, failed;
    bool dead;     /* the device failed: nothing more can run */
    char log[512]; /* last message of the library */
} ck_ctx;

/* Marks the variant wrong and prints why. */
void ck_bad(ck_ctx *c, const folio_variant *var, unsigned kind,
            const ck_problem *p, const char *fmt, ...) FOLIO_PRINTF(5, 6);
ck_tally *ck_tally_of(ck_ctx *c, const folio_variant *var);
void ck_skip(ck_ctx *c, const char *name, const char *reason);

/* Runs the reference, then every variant of this side on the problem, and
 * frees it. */
void ck_judge(ck_ctx *c, ck_problem *p);
/* Closes the device with all its programs and opens it anew. */
void ck_reopen(ck_ctx *c);
/* Every family's cases. */
void ck_run_all(ck_ctx *c);
/* Times one variant on a problem whose wanted results are known. */
void ck_bench_problem(ck_ctx *c, ck_problem *p, const folio_variant *var);
/* Gives scratch the size that the op wants. */
void ck_size_scratch(ck_problem *p, const folio_op *op);
/* Whether any variant would run at all, before a problem is made. */
bool ck_wanted(const ck_ctx *c, folio_op_id op, const char *name);
/* Of one variant: --only names variants or cases, --without variants. */
bool ck_selected(const ck_ctx *c, const folio_variant *var, const char *name);

/* ---- places and contents (buffers.c) ---------------------------------------
 */

/* Gives every slot that has none a buffer on `dev` with guards around it. */
folio_status ck_place(ck_problem *p, folio_device *dev, bool exact,
                      ck_rng *r) FOLIO_NODISCARD;
void ck_unplace(ck_problem *p);
/* Other contents (NULL: poison) of another size, without a place. */
void ck_slot_set(ck_slot *s, const void *data, size_t bytes);
folio_status ck_upload(ck_problem *p, folio_queue *q) FOLIO_NODISCARD;

/* What outputs held after a run; NULL for inputs and scratch. */
typedef struct ck_result {
    uint8_t *data[CK_MAX_SLOTS];
} ck_result;
void ck_result_free(ck_result *r);
/* Reads everything back; kinds of damage outside the outputs, described. */
folio_status ck_download(const ck_problem *p, folio_queue *q, ck_result *out,
                         unsigned *bad, char *why,
                         size_t why_bytes) FOLIO_NODISCARD;

/* ---- judging (compare.c) ---------------------------------------------------
 */

typedef struct ck_verdict {
    unsigned bad;
    double share; /* of the tolerance, worst element */
    char why[400];
} ck_verdict;
ck_verdict ck_compare(const ck_problem *p, const ck_result *got);
/* Bit for bit; false names the first difference. */
bool ck_same(const ck_problem *p, const ck_result *a, const ck_result *b,
             char *why, size_t why_bytes);
/* rows: the result of ck_problem_rows(p, first, n). */
bool ck_same_rows(const ck_problem *p, const ck_result *all,
                  const ck_problem *part, const ck_result *rows, int first,
                  char *why, size_t why_bytes);

/* ---- families --------------------------------------------------------------
 */

/* Which runs a case of covering.def belongs to: S also the small ones; B is
 * for speed alone. */
typedef enum ck_set { CK_SET_S, CK_SET_L, CK_SET_B } ck_set;
static inline bool ck_in_size(const ck_ctx *c, ck_set set)
{
    if (c->bench || set == CK_SET_B)
        return c->bench && set == CK_SET_B;
    return c->size != CK_SMALL || set == CK_SET_S;
}

/* What the numbers of a case are like. */
typedef enum ck_fill_kind {
    CK_FILL_plain,
    CK_FILL_zero,
    CK_FILL_equal, /* ties everywhere */
    CK_FILL_low,   /* all logits -1e5 */
    CK_FILL_peak,  /* one logit +1e4 */
    CK_FILL_tiny,  /* subnormal half scales; tiny values */
    CK_FILL_huge,  /* near the ends of the range */
    CK_FILL_nan,   /* some or all NaN where that has a meaning */
    CK_FILL_cancel /* sums that cancel */
} ck_fill_kind;
const char *ck_fill_name(ck_fill_kind f);

/* Each walks its cases of the covering list. */
void ck_embed(ck_ctx *c);
void ck_gather(ck_ctx *c);
void ck_rmsnorm(ck_ctx *c);
void ck_linear(ck_ctx *c);
void ck_rope(ck_ctx *c);
void ck_attn(ck_ctx *c);
void ck_act(ck_ctx *c);
void ck_add(ck_ctx *c);
void ck_topk(ck_ctx *c);
void ck_copy(ck_ctx *c);
void ck_sample(ck_ctx *c);
void ck_norm_linear(ck_ctx *c);
void ck_qkv(ck_ctx *c);
void ck_gate_up(ck_ctx *c);
void ck_step(ck_ctx *c);

/* Bytes of random blocks with sane scales; `tiny`: subnormal half scales. */
void ck_fill_weights(ck_rng *r, folio_type type, uint8_t *p, size_t bytes,
                     bool tiny);
size_t ck_weight_align(folio_type type);
/* A weight of random blocks, RAW, in at most n_views slots that begin at groups
 * of `packing`, bound to p->w. */
void ck_add_weight(ck_problem *p, ck_rng *r, folio_type type,
                   folio_packing packing, int64_t rows, int64_t cols,
                   int n_views, bool tiny);
/* Brings it into p->packing. */
void ck_pack_weight(ck_problem *p);

/* The K and V planes of a pool in `segs` buffers each, every element NaN. */
typedef struct ck_pool {
    folio_kv_ref *kv;
    ck_slot *k[FOLIO_KV_MAX_BUFS], *v[FOLIO_KV_MAX_BUFS];
} ck_pool;
ck_pool ck_add_pool(ck_problem *p, folio_kv_ref *kv, int segs, ck_role role);
/* n_blocks, or a few more so that `segs` buffers are really needed. */
int32_t ck_pool_blocks(int32_t n_blocks, int segs);
/* The contents of one block of all heads. */
uint8_t *ck_pool_block(const ck_pool *pool, bool is_v, int32_t block);
/* Writes one element of K (or V) at a slot of the pool. */
void ck_pool_put(const ck_pool *pool, bool is_v, int32_t slot, int32_t head,
                 int32_t d, float value);

/* Attention: fills p's work slots for an op that was opened; the token alone as
 * a decode step; the same batch in other physical blocks. */
folio_status ck_attn_plan(ck_problem *p, const folio_op *op) FOLIO_NODISCARD;
/* As before any op was opened for it. */
void ck_attn_unplan(ck_problem *p);
ck_problem *ck_attn_alone(const ck_problem *p, int token);
ck_problem *ck_attn_moved(const ck_problem *p, ck_rng *r);

/* ---- programs (programs.c) -------------------------------------------------
 */

/* The most that one configuration may build from the covering list. */
#define CK_MAX_PROGRAMS 480
int ck_programs_count(void);
/* From now on kernels are not built but written to `dir`. */
void ck_programs_dump(const char *dir);
bool ck_programs_dumping(void);
bool ck_programs_dump_failed(void);
/* A device that exists for its capabilities alone. */
folio_device *ck_paper_device(folio_log log, uint64_t caps);

/* ---- other modes -----------------------------------------------------------
 */

/* Number of failures. */
int ck_self_test(ck_ctx *c);
int ck_bench(ck_ctx *c);
/* The lists of an attention op for a batch whose n_seq and max_kv are in *w:
 * into *lists, in place of what was there, and as counts and views into *w. */
folio_status ck_bench_plan(ck_ctx *c, const folio_op *attn, int32_t n_tok,
                           const int32_t *q_start, const int32_t *kv_len,
                           folio_attn_work *w, folio_buf **lists);
/* Attention on the shapes that others publish; part of ck_bench. */
void ck_bench_attn(ck_ctx *c);
void ck_bench_linear(ck_ctx *c);
void ck_bench_step(ck_ctx *c);
/* The programs of bench.cl, while dumping. */
void ck_bench_dump(ck_ctx *c);

#endif
