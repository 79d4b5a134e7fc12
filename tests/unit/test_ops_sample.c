/* The sampling op on the host device and on OpenCL (PoCL, or what FOLIO_DEVICE
 * names) against the host's sampler: the same id for thousands of rows, ties
 * and rows that nobody can sample from among them, and the raw figures beside
 * it. */
#include "support_op_pair.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "ops/sample_row.h"
#include "sample/samp.h"

#define ROWS    24
#define MAX_V   5003
#define PAD     5 /* elements between rows that nobody may touch */
#define N_EDITS 40

typedef struct batch {
    int32_t n_vocab, n_edits, n_slots;
    float logits[ROWS][MAX_V + PAD]; /* rows of n_vocab + PAD, packed */
    folio_sample_spec spec[ROWS];
    int32_t edits[N_EDITS][2];
    int32_t counts[ROWS * MAX_V];
} batch;

typedef struct answer {
    int32_t out[ROWS][FOLIO_SAMPLE_OUT];
    int32_t ids[ROWS];
    int32_t counts[ROWS * MAX_V];
} answer;

static float *row_of(batch *b, int32_t r)
{
    return &b->logits[0][0] + (size_t)r * (size_t)(b->n_vocab + PAD);
}

/* ---- rows -------------------------------------------------------------------
 */

typedef enum row_kind {
    ROW_BELL,   /* like a model's */
    ROW_COARSE, /* of few values */
    ROW_EQUAL,
    ROW_WIDE,    /* all magnitudes, both signs */
    ROW_NEAR,    /* neighbours in f32 */
    ROW_ZEROS,   /* of both signs, and the smallest numbers */
    ROW_FEW,     /* most are banned */
    ROW_PEAK,    /* one far above the rest */
    ROW_FALLING, /* the likely ids last */
    ROW_SANE,    /* how many kinds can be sampled from */
    ROW_NAN = ROW_SANE,
    ROW_INF,
    ROW_NOTHING,
    ROW_KINDS
} row_kind;

static void fill_row(op_pair *p, row_kind kind, float *x, int32_t n)
{
    const float at = op_pair_f32(p) * 20;
    for (int32_t i = 0; i < n; i++) {
        const float u = op_pair_f32(p), v = op_pair_f32(p);
        switch (kind) {
        case ROW_COARSE:
            x[i] = rintf(u * 3);
            break;
        case ROW_EQUAL:
            x[i] = at;
            break;
        case ROW_WIDE:
            x[i] = ldexpf(u, (int)(v * 60));
            break;
        case ROW_NEAR:
            x[i] = folio_bits_f32(folio_f32_bits(at) ^ (op_pair_u32(p, 4)));
            break;
        case ROW_ZEROS:
            x[i] = folio_bits_f32(op_pair_u32(p, 2) << 31 | (v > 1.5f));
            break;
        case ROW_FEW:
            x[i] = u > 1.9f || i == n / 2 ? v * 2 : -INFINITY;
            break;
        case ROW_PEAK:
            x[i] = i == n / 3 ? 1e30f : u;
            break;
        case ROW_FALLING:
            x[i] = -0.05f * (float)(n - i) + v * 0.1f;
            break;
        case ROW_NOTHING:
            x[i] = -INFINITY;
            break;
        default:
            x[i] = (u + v + op_pair_f32(p)) * 3;
        }
    }
    const int32_t odd = (int32_t)op_pair_u32(p, (uint32_t)n);
    if (kind == ROW_NAN)
        x[odd] = folio_bits_f32(0xffc00001u);
    if (kind == ROW_INF)
        x[odd] = INFINITY;
}

static float one_of(op_pair *p, const float *list, uint32_t n)
{
    return list[op_pair_u32(p, n)];
}
#define ONE_OF(p, list) one_of(p, list, FOLIO_COUNT(list))

static void fill_spec(op_pair *p, const batch *b, folio_sample_spec *s)
{
    static const float temps[] = {0, 1,     1,    1,      0.7f, 0.2f,
                                  3, 1e-3f, 1e4f, 1e-40f, 1e38f};
    static const float top_ps[] = {1,    1,     1,          0.95f, 0.9f, 0.5f,
                                   0.1f, 1e-7f, 0.9999999f, 0,     -1,   2};
    static const float min_ps[] = {0, 0, 0, 0.05f, 0.5f, 1, 1e-9f};
    const int32_t top_ks[] = {
        0, 0, 0, -7, 1, 2, 5, 40, b->n_vocab, b->n_vocab - 1, b->n_vocab + 3};
    *s = (folio_sample_spec){
        .temperature = ONE_OF(p, temps),
        .top_p = ONE_OF(p, top_ps),
        .min_p = ONE_OF(p, min_ps),
        .top_k = top_ks[op_pair_u32(p, FOLIO_COUNT(top_ks))],
        .seed = (uint64_t)op_pair_u32(p, UINT32_MAX) << 32 | 5,
        .position = op_pair_u32(p, 1000),
        .completion = op_pair_u32(p, 3),
        .target = (int32_t)op_pair_u32(p, (uint32_t)b->n_vocab + 1) - 1,
        .slot = -1,
        .repetition_penalty = 1,
        .no_sum = op_pair_u32(p, 4) == 0};
}

/* Half of the rows have edits (of shared pairs), half of them counts; slots
 * are in no order. */
static void fill_changes(op_pair *p, batch *b)
{
    static const float reps[] = {1, 1.1f, 1.5f, 0.7f};
    static const float costs[] = {0, 0.3f, 1.7f, -0.6f};
    b->n_edits = N_EDITS;
    b->n_slots = ROWS;
    for (int32_t e = 0, id = 0; e < N_EDITS; e++) {
        /* Runs of one id; ids do not come back, as the contract says. */
        if (op_pair_u32(p, 3) && id < b->n_vocab - 1)
            id += 1 + (int32_t)op_pair_u32(
                          p, 1 + (uint32_t)(b->n_vocab - 2 - id) / 8);
        folio_sample_edit(b->edits[e], id,
                          op_pair_u32(p, 4) ? op_pair_f32(p) * 4 : -INFINITY);
    }
    for (size_t i = 0; i < (size_t)ROWS * (size_t)b->n_vocab; i++) {
        const uint32_t u = op_pair_u32(p, 12);
        b->counts[i] =
            (int32_t)(u < 3 ? u : 0) + (u % 4 == 2 ? SAMPLE_SEEN : 0);
    }
    for (int32_t r = 0; r < ROWS; r++) {
        folio_sample_spec *s = &b->spec[r];
        if (r % 2) {
            s->edit_first = (int32_t)op_pair_u32(p, N_EDITS);
            s->edit_end =
                s->edit_first + (int32_t)op_pair_u32(
                                    p, (uint32_t)(N_EDITS - s->edit_first) + 1);
        }
        if (r % 4 > 1)
            s->slot = ROWS - 1 - r;
        s->repetition_penalty = ONE_OF(p, reps);
        s->presence_penalty = ONE_OF(p, costs);
        s->frequency_penalty = ONE_OF(p, costs);
    }
}

static void fill_batch(op_pair *p, batch *b, int32_t n_vocab, bool changes)
{
    memset(b, 0, sizeof *b);
    b->n_vocab = n_vocab;
    for (int32_t r = 0; r < ROWS; r++) {
        float *x = row_of(b, r);
        /* One row in twelve cannot be sampled from. */
        const uint32_t kind =
            r % 12 == 7 ? ROW_SANE + op_pair_u32(p, ROW_KINDS - ROW_SANE)
                        : op_pair_u32(p, ROW_SANE);
        fill_row(p, (row_kind)kind, x, n_vocab);
        for (int32_t i = 0; i < PAD; i++)
            x[n_vocab + i] = NAN;
        fill_spec(p, b, &b->spec[r]);
    }
    if (changes)
        fill_changes(p, b);
    b->spec[3].skip = 1;
}

/* ---- what the sampler says --------------------------------------------------
 */

/* The logits after edits and penalties, written out once more. */
static void shape_row(const batch *b, int32_t r, float *x)
{
    const folio_sample_spec *s = &b->spec[r];
    for (int32_t e = s->edit_first; e < s->edit_end; e++) {
        float bias;
        memcpy(&bias, &b->edits[e][1], sizeof bias);
        volatile float sum = x[b->edits[e][0]] + bias;
        x[b->edits[e][0]] = sum;
    }
    for (int32_t i = 0; s->slot >= 0 && i < b->n_vocab; i++) {
        const int32_t c = b->counts[s->slot * b->n_vocab + i];
        volatile float v = x[i], cost;
        if (c == 0)
            continue;
        if (v > 0) {
            volatile float down = 1.0f / s->repetition_penalty;
            v = v * down;
        } else {
            v = v * s->repetition_penalty;
        }
        if (c & ~SAMPLE_SEEN) {
            cost = (float)(c & ~SAMPLE_SEEN) * s->frequency_penalty;
            cost = cost + s->presence_penalty;
            v = v - cost;
        }
        x[i] = v;
    }
}

/* -1 for a row that the sampler refuses. */
static int32_t expect_id(folio_sampler *s, const batch *b, int32_t r,
                         const float *x)
{
    const folio_sample_spec *spec = &b->spec[r];
    folio_sample_params prm;
    int32_t id = -1;
    folio_sample_params_default(&prm);
    prm.temperature = spec->temperature;
    prm.top_k = spec->top_k;
    prm.top_p = spec->top_p;
    prm.min_p = spec->min_p;
    prm.seed = spec->seed;
    const folio_status st =
        folio_sampler_draw(s, &prm, x, spec->completion, spec->position, &id);
    cr_assert(st == FOLIO_OK || st == FOLIO_E_INTERNAL);
    return st == FOLIO_OK && !spec->skip ? id : -1;
}

static double expect_lse(const float *x, int32_t n, double max)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

static bool same_float(float a, float b)
{
    return folio_f32_bits(a) == folio_f32_bits(b);
}

static void check_row(folio_sampler *s, batch *b, const answer *a, int32_t r,
                      const char *what)
{
    static float x[MAX_V];
    folio_sample_drawn got;
    const float *raw = row_of(b, r);
    const int32_t n = b->n_vocab, target = b->spec[r].target;
    bool bad = false;
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        bad |= isnan(raw[i]) || raw[i] == INFINITY;
        max = fmaxf(max, raw[i]);
    }
    memcpy(x, raw, (size_t)n * sizeof *x);
    shape_row(b, r, x);
    const int32_t want = bad ? -1 : expect_id(s, b, r, x);
    folio_sample_unpack(a->out[r], &got);
    cr_assert_eq(got.id, want,
                 "%s, row %d: id %d, the sampler's %d (T %g, top-k %d, top-p "
                 "%.9g, min-p %g)",
                 what, r, got.id, want, (double)b->spec[r].temperature,
                 b->spec[r].top_k, (double)b->spec[r].top_p,
                 (double)b->spec[r].min_p);
    cr_assert_eq(a->ids[r], want < 0 ? 0 : want);
    if (want >= 0)
        cr_assert(same_float(got.logit, raw[want]));
    uint32_t flags = bad ? SAMPLE_BAD : SAMPLE_EMPTY;
    for (int32_t i = 0; i < n && !bad; i++)
        if (x[i] != -INFINITY)
            flags = 0;
    cr_assert_eq(got.flags, flags, "%s, row %d: flags %u", what, r, got.flags);
    if (bad) {
        cr_assert(got.max == 0 && got.lse == 0 && got.target == 0);
        return;
    }
    cr_assert_eq(got.max, max);
    if (target >= 0)
        cr_assert(same_float(got.target, raw[target]));
    else
        cr_assert_eq(got.target, 0);
    if (max == -INFINITY || b->spec[r].no_sum)
        cr_assert_eq(got.lse, (double)max);
    else
        cr_assert_float_eq(got.lse, expect_lse(raw, n, (double)max),
                           3e-7 * (1 + fabs((double)max)));
}

static void check_counts(const batch *b, const answer *a, const char *what)
{
    static int32_t want[ROWS * MAX_V];
    memcpy(want, b->counts, sizeof want);
    for (int32_t r = 0; r < ROWS; r++)
        if (b->spec[r].slot >= 0 && a->out[r][SAMPLE_ID] >= 0)
            want[b->spec[r].slot * b->n_vocab + a->out[r][SAMPLE_ID]]++;
    cr_assert_eq(memcmp(want, a->counts, sizeof want), 0, "%s: counts", what);
}

/* ---- running ----------------------------------------------------------------
 */

typedef struct board {
    folio_queue *q;
    folio_buf *buf[8];
    int n;
} board;

static folio_view put(board *b, const void *data, size_t bytes)
{
    folio_buf *buf = NULL;
    folio_view v = {.offset = 4};
    cr_assert_eq(folio_buf_open(folio_queue_device(b->q), bytes + 4, &buf),
                 FOLIO_OK);
    b->buf[b->n++] = v.buf = buf;
    cr_assert_eq(folio_queue_write(b->q, v, data, bytes), FOLIO_OK);
    return v;
}

/* Rows first .. first + n of the batch. */
static void run_rows(op_pair *p, int side, const char *variant, batch *b,
                     int32_t first, int32_t n, answer *got)
{
    const folio_op_params prm = {.deterministic = true, .exact = true};
    board on = {.q = p->q[side]};
    folio_op *op = NULL;
    int32_t words[ROWS][FOLIO_SAMPLE_IN];
    const size_t row = (size_t)(b->n_vocab + PAD) * sizeof(float);
    memset(got, 0x55, sizeof *got);
    for (int32_t r = 0; r < n; r++)
        folio_sample_pack(&b->spec[first + r], words[r]);
    folio_sample_args a = {.n_rows = n,
                           .n_vocab = b->n_vocab,
                           .stride = b->n_vocab + PAD,
                           .n_edits = b->n_edits,
                           .n_slots = b->n_slots};
    cr_assert_eq(folio_op_open_variant(p->dev[side], variant, &prm, &a, &op),
                 FOLIO_OK);
    a.logits = put(&on, row_of(b, first), (size_t)n * row);
    a.rows = put(&on, words, (size_t)n * sizeof words[0]);
    if (b->n_edits)
        a.edits = put(&on, b->edits, sizeof b->edits);
    if (b->n_slots)
        a.counts = put(&on, b->counts, sizeof b->counts);
    a.ids = put(&on, got->ids, sizeof got->ids);
    a.out = put(&on, got->out, sizeof got->out);
    const size_t bytes = folio_op_scratch_bytes(op);
    if (bytes) {
        uint8_t *noise = malloc(bytes);
        cr_assert_not_null(noise);
        memset(noise, 0xff, bytes);
        a.scratch = put(&on, noise, bytes);
        free(noise);
    }
    cr_assert_eq(folio_op_run(op, on.q, &a), FOLIO_OK);
    cr_assert_eq(folio_queue_read(on.q, a.ids, got->ids, sizeof got->ids),
                 FOLIO_OK);
    cr_assert_eq(folio_queue_read(on.q, a.out, got->out, sizeof got->out),
                 FOLIO_OK);
    if (b->n_slots)
        cr_assert_eq(
            folio_queue_read(on.q, a.counts, got->counts, sizeof got->counts),
            FOLIO_OK);
    for (int32_t r = n; r < ROWS; r++) /* nothing behind the last row */
        cr_assert(got->ids[r] == 0x55555555 && got->out[r][0] == 0x55555555);
    folio_op_close(&op);
    for (int i = 0; i < on.n; i++)
        folio_buf_close(&on.buf[i]);
}

static batch rows;
static answer all, alone;

static void try_batch(op_pair *p, int side, const char *variant,
                      int32_t n_vocab, bool changes)
{
    char what[80];
    folio_sampler *s = NULL;
    snprintf(what, sizeof what, "%s, V %d%s", variant, n_vocab,
             changes ? ", changed" : "");
    fill_batch(p, &rows, n_vocab, changes);
    run_rows(p, side, variant, &rows, 0, ROWS, &all);
    cr_assert_eq(folio_sampler_open(n_vocab, NULL, &s), FOLIO_OK);
    for (int32_t r = 0; r < ROWS; r++)
        check_row(s, &rows, &all, r, what);
    folio_sampler_close(&s);
    if (changes)
        check_counts(&rows, &all, what);
    const int32_t one = (int32_t)op_pair_u32(p, ROWS);
    run_rows(p, side, variant, &rows, one, 1, &alone);
    cr_assert_eq(memcmp(alone.out[0], all.out[one], sizeof all.out[0]), 0,
                 "%s: row %d is another one alone", what, one);
}

static void try_variant(op_pair *p, int side, const char *variant, int turns)
{
    static const int32_t sizes[] = {1, 2, 3, 9, 64, 257, 1000, MAX_V};
    const size_t n = p->small ? 5 : FOLIO_COUNT(sizes);
    for (int t = 0; t < turns; t++)
        for (size_t i = 0; i < n; i++)
            try_batch(p, side, variant, sizes[i], t % 2);
}

static void try_cl(op_pair *p, int turns)
{
    static const char *const variants[] = {"sample_scan", "sample_wg"};
    for (size_t v = 0; v < FOLIO_COUNT(variants); v++)
        if (op_pair_can(p, variants[v]))
            try_variant(p, ON_DEV, variants[v], p->small ? 2 : turns);
}

static void open_host_only(op_pair *p, uint64_t seed, int n_threads)
{
    folio_device_params prm;
    *p = (op_pair){.seed = seed};
    printf("seed %llu\n", (unsigned long long)seed);
    folio_device_params_default(&prm);
    prm.select = "host";
    prm.cache_dir = "";
    prm.n_threads = n_threads;
    cr_assert_eq(folio_device_open(&prm, &p->dev[ON_REF]), FOLIO_OK);
    cr_assert_eq(folio_queue_open(p->dev[ON_REF], &p->q[ON_REF]), FOLIO_OK);
}

Test(ops_sample, reference_draws_as_the_sampler, .timeout = 120)
{
    op_pair p;
    open_host_only(&p, 11, 1);
    try_variant(&p, ON_REF, "ref_sample", 4);
    op_pair_close(&p);
}

Test(ops_sample, host_draws_as_the_sampler, .timeout = 120)
{
    op_pair p;
    open_host_only(&p, 12, 3);
    try_variant(&p, ON_REF, "host_sample", 40);
    op_pair_close(&p);
}

Test(ops_sample, cl_draws_as_the_sampler, .timeout = 240)
{
    op_pair p;
    op_pair_open(&p, 13);
    try_cl(&p, 16);
    op_pair_close(&p);
}

static void try_capped(const char *cap)
{
    op_pair p;
    op_pair_cap_work_groups(cap);
    op_pair_open(&p, 14);
    try_cl(&p, 4);
    op_pair_close(&p);
}

Test(ops_sample_capped, work_groups_of_1, .timeout = 240)
{
    try_capped("1");
}

Test(ops_sample_capped, work_groups_of_16, .timeout = 240)
{
    try_capped("16");
}

Test(ops_sample_capped, work_groups_of_64, .timeout = 240)
{
    try_capped("64");
}

/* ---- arithmetic -------------------------------------------------------------
 */

/* The top-p share without doubles is the one with them. */
Test(ops_sample, share_is_the_product_of_doubles)
{
    op_pair p = {.seed = 15};
    int rounded = 0;
    for (int i = 0; i < 2000000; i++) {
        const uint64_t hi = op_pair_u32(&p, UINT32_MAX);
        const uint64_t lo = op_pair_u32(&p, UINT32_MAX);
        const uint64_t total = (hi << 32 | lo) >> (12 + i % 40);
        uint64_t tail = (lo << 16 ^ hi) & (((uint64_t)1 << 48) - 1);
        tail >>= i % 23;
        if (i % 3 == 0 && total) /* next to a whole number */
            tail = (uint64_t)ldexp(
                nearbyint((double)tail * 0x1p-48 * (double)total) /
                    (double)total,
                48);
        const double product = (double)tail * 0x1p-48 * (double)total;
        if (tail >> 48)
            continue;
        cr_assert_eq(folio_weight_share(tail, total), (uint64_t)product,
                     "%llu, %llu", (unsigned long long)tail,
                     (unsigned long long)total);
        const uint64_t cut = folio_weight_high(tail << 16, total);
        rounded += cut != (uint64_t)product;
    }
    cr_assert_gt(rounded, 0); /* the rounding was seen to matter */
}

/* ---- refusals ---------------------------------------------------------------
 */

static char last_message[1024];

static void keep_message(void *user, folio_log_level level, const char *message)
{
    (void)user;
    (void)level;
    snprintf(last_message, sizeof last_message, "%s", message);
}

#define REFUSED(st, text)                                                      \
    do {                                                                       \
        cr_expect_eq(folio_op_run(op, q, &a), st, "%s", last_message);         \
        cr_expect(strstr(last_message, text), "%s", last_message);             \
        a = good;                                                              \
    } while (0)

Test(ops_sample, refuses_what_does_not_fit)
{
    folio_device_params prm;
    folio_device *dev = NULL;
    folio_queue *q = NULL;
    folio_op *op = NULL;
    const folio_op_params plain = {.deterministic = true};
    folio_device_params_default(&prm);
    prm.select = "host";
    prm.cache_dir = "";
    prm.log.fn = keep_message;
    cr_assert_eq(folio_device_open(&prm, &dev), FOLIO_OK);
    cr_assert_eq(folio_queue_open(dev, &q), FOLIO_OK);
    folio_sample_args good = {
        .n_rows = 2, .n_vocab = 10, .stride = 12, .n_edits = 1};
    cr_assert_eq(folio_op_open(dev, FOLIO_OP_SAMPLE, &plain, &good, &op),
                 FOLIO_OK, "%s", last_message);
    cr_expect_str_eq(folio_op_variant_name(op), "host_sample");
    cr_expect_eq(folio_op_scratch_bytes(op), 80u);

    board on = {.q = q};
    const float logits[22] = {1};
    int32_t words[2][FOLIO_SAMPLE_IN], edit[2], none[2 * FOLIO_SAMPLE_OUT];
    const folio_sample_spec spec = {
        .slot = -1, .target = 9, .repetition_penalty = 1, .edit_end = 1};
    folio_sample_pack(&spec, words[0]);
    folio_sample_pack(&spec, words[1]);
    folio_sample_edit(edit, 9, 1);
    memset(none, 0, sizeof none);
    good.logits = put(&on, logits, sizeof logits);
    good.rows = put(&on, words, sizeof words);
    good.edits = put(&on, edit, sizeof edit);
    good.out = put(&on, none, sizeof none);
    good.scratch = put(&on, logits, 80);
    folio_sample_args a = good;
    cr_expect_eq(folio_op_run(op, q, &a), FOLIO_OK, "%s", last_message);

    a.n_vocab = 0;
    REFUSED(FOLIO_E_INVAL, "n_vocab is 0");
    a.n_vocab = (1 << 20) + 1;
    REFUSED(FOLIO_E_INVAL, "n_vocab is 1048577");
    a.stride = 9;
    REFUSED(FOLIO_E_INVAL, "stride 9 < n_vocab 10");
    a.stride = 13;
    REFUSED(FOLIO_E_RANGE, "logits needs 92 bytes");
    a.edits = (folio_view){0};
    REFUSED(FOLIO_E_INVAL, "edits is absent");
    a.out = a.logits;
    REFUSED(FOLIO_E_INVAL, "out (offset 4) overlaps logits");
    a.n_slots = 1;
    REFUSED(FOLIO_E_INVAL, "counts is absent");
    a.scratch = (folio_view){0};
    REFUSED(FOLIO_E_INVAL, "scratch is absent");
    a.n_rows = 3;
    a.n_edits = 0;
    REFUSED(FOLIO_E_RANGE, "logits needs");

    int32_t *w = folio_view_host(good.rows);
    w[FOLIO_SAMPLE_IN + SAMPLE_TARGET] = 10;
    REFUSED(FOLIO_E_RANGE, "target of row 1 is 10, not in [-1, 10)");
    w[FOLIO_SAMPLE_IN + SAMPLE_TARGET] = 9;
    w[SAMPLE_SLOT] = 0;
    REFUSED(FOLIO_E_RANGE, "slot of row 0 is 0, not in [-1, 0)");
    w[SAMPLE_SLOT] = -1;
    w[SAMPLE_EDIT_END] = 2;
    REFUSED(FOLIO_E_RANGE, "edit end of row 0 is 2, not in [0, 2)");
    w[SAMPLE_EDIT_END] = 1;
    *(int32_t *)folio_view_host(good.edits) = 10;
    REFUSED(FOLIO_E_RANGE, "edits[0] is 10, not in [0, 10)");
    *(int32_t *)folio_view_host(good.edits) = 9;
    cr_expect_eq(folio_op_run(op, q, &a), FOLIO_OK, "%s", last_message);
    folio_op_close(&op);

    /* Opened for neither edits nor counts: no scratch, and none may come. */
    good.n_edits = 0;
    cr_assert_eq(folio_op_open(dev, FOLIO_OP_SAMPLE, &plain, &good, &op),
                 FOLIO_OK);
    cr_expect_eq(folio_op_scratch_bytes(op), 0u);
    a.n_edits = 1;
    REFUSED(FOLIO_E_INVAL, "opened for");
    folio_op_close(&op);
    for (int i = 0; i < on.n; i++)
        folio_buf_close(&on.buf[i]);
    folio_queue_close(&q);
    folio_device_close(&dev);
}
