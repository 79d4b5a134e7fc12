/* Tier 1 as a caller sees it: steps of several sequences over scattered blocks
 * against contiguous attention in double; what is refused, and that refusing
 * changes nothing. On the host device and on an OpenCL CPU device. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <folio/attention.h>

#include "base/half.h"
#include "device/dev.h"
#include "fail_alloc.h"

enum {
    HEADS = 6,
    KV_HEADS = 2,
    HEAD_DIM = 16,
    BLOCK = 4,
    N_BLOCKS = 64,
    MAX_TOK = 64,
    MAX_SEQS = 4,
    MAX_KV = 60,
    Q_WIDTH = HEADS * HEAD_DIM,
    KV_WIDTH = KV_HEADS * HEAD_DIM
};

/* Open objects of one device, and the same history in plain arrays. */
typedef struct attn_rig {
    folio_device *dev;
    folio_queue *q;
    folio_attn *attn;
    folio_attn_params prm;
    folio_buf *buf[6];
    folio_view q_rows, k, v, k_pool, v_pool, out;
    size_t pool_bytes;
    char log[8192];
    float past_k[MAX_SEQS][MAX_KV][KV_WIDTH];
    float past_v[MAX_SEQS][MAX_KV][KV_WIDTH];
    int32_t len[MAX_SEQS], table[MAX_SEQS][MAX_KV / BLOCK + 2];
    /* the step */
    int32_t q_start[MAX_SEQS + 1], kv_len[MAX_SEQS], table_start[MAX_SEQS + 1];
    int32_t tables[256], slots[MAX_TOK + 1]; /* one more than is allowed */
    folio_attn_batch batch;
    float host_q[MAX_TOK * Q_WIDTH], host_out[MAX_TOK * Q_WIDTH];
    float host_k[MAX_TOK * KV_WIDTH], host_v[MAX_TOK * KV_WIDTH];
    uint64_t seed;
} attn_rig;

#define MUST(expr)                                                             \
    do {                                                                       \
        folio_status must_ = (expr);                                           \
        cr_assert_eq(must_, FOLIO_OK, "%s: %s", #expr,                         \
                     folio_status_name(must_));                                \
    } while (0)

static void keep(void *user, folio_log_level level, const char *text)
{
    attn_rig *r = user;
    size_t n = strlen(r->log);
    if (level <= FOLIO_LOG_WARN)
        snprintf(r->log + n, sizeof r->log - n, "%s\n", text);
}

static float draw(attn_rig *r)
{
    r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(r->seed >> 40) / 8388608.0f - 1.0f;
}

static folio_view open_view(attn_rig *r, int i, size_t bytes, size_t offset)
{
    MUST(folio_buf_open(r->dev, bytes + offset, &r->buf[i]));
    return (folio_view){r->buf[i], offset};
}

static attn_rig *open_rig(const char *device, folio_kv_type type,
                          int32_t window)
{
    attn_rig *r = folio_calloc(1, sizeof *r);
    folio_device_params dp;
    folio_device_params_default(&dp);
    dp.select = device;
    dp.n_threads = 2;
    dp.log.fn = keep;
    dp.log.user = r;
    if (folio_device_open(&dp, &r->dev) != FOLIO_OK) {
        cr_assert(getenv("CI") == NULL, "no OpenCL device called %s", device);
        cr_skip_test("no OpenCL device called %s", device);
    }
    MUST(folio_queue_open(r->dev, &r->q));
    folio_attn_params_default(&r->prm);
    r->prm.heads = HEADS;
    r->prm.kv_heads = KV_HEADS;
    r->prm.head_dim = HEAD_DIM;
    r->prm.block_size = BLOCK;
    r->prm.n_blocks = N_BLOCKS;
    r->prm.max_tok = MAX_TOK;
    r->prm.max_seqs = MAX_SEQS;
    r->prm.max_kv = MAX_KV;
    r->prm.kv_type = type;
    r->prm.window = window;
    MUST(folio_attn_open(r->dev, &r->prm, &r->attn));
    size_t block;
    folio_attn_get_layout(r->attn, NULL, NULL, NULL, NULL, &block);
    r->pool_bytes = N_BLOCKS * block;
    cr_assert_eq(block,
                 (size_t)BLOCK * KV_WIDTH * (type == FOLIO_KV_F32 ? 4 : 2));
    r->q_rows = open_view(r, 0, sizeof r->host_q, 64);
    r->k = open_view(r, 1, sizeof r->host_k, 0);
    r->v = open_view(r, 2, sizeof r->host_v, 4);
    r->k_pool = open_view(r, 3, r->pool_bytes, 128);
    r->v_pool = open_view(r, 4, r->pool_bytes, 256);
    r->out = open_view(r, 5, sizeof r->host_out, 32);
    /* NaN in every slot that nobody has written. */
    MUST(folio_queue_fill(r->q, r->k_pool, 0xff, r->pool_bytes));
    MUST(folio_queue_fill(r->q, r->v_pool, 0xff, r->pool_bytes));
    r->seed = 42;
    /* Interleaved, falling ids: sequence s has 63 - s, 59 - s, ... */
    for (int s = 0; s < MAX_SEQS; s++)
        for (int i = 0; i < MAX_KV / BLOCK + 2; i++)
            r->table[s][i] = N_BLOCKS - 1 - s - 4 * i;
    return r;
}

static void close_rig(attn_rig *r)
{
    folio_attn_close(&r->attn);
    cr_assert_null(r->attn);
    for (int i = 0; i < 6; i++)
        folio_buf_close(&r->buf[i]);
    folio_queue_close(&r->q);
    folio_device_close(&r->dev);
    free(r);
}

static float stored(const attn_rig *r, float x)
{
    return r->prm.kv_type == FOLIO_KV_F32
               ? x
               : folio_f16_to_f32(folio_f32_to_f16(x));
}

/* Makes the batch in which sequence s gets n[s] new tokens. */
static void make_batch(attn_rig *r, int n_seq, const int32_t *n)
{
    int32_t at = 5; /* tables need not begin at 0 */
    r->table_start[0] = at;
    r->q_start[0] = 0;
    for (int s = 0; s < n_seq; s++) {
        r->kv_len[s] = r->len[s] + n[s];
        r->q_start[s + 1] = r->q_start[s] + n[s];
        int32_t blocks = (r->kv_len[s] + BLOCK - 1) / BLOCK;
        for (int32_t i = 0; i < blocks; i++)
            r->tables[at++] = r->table[s][i];
        r->tables[at++] = INT32_MAX; /* never read */
        r->table_start[s + 1] = at;
        for (int32_t i = 0; i < n[s]; i++) {
            int32_t pos = r->len[s] + i;
            r->slots[r->q_start[s] + i] =
                r->table[s][pos / BLOCK] * BLOCK + pos % BLOCK;
        }
    }
    r->batch = (folio_attn_batch){.n_seq = n_seq,
                                  .q_start = r->q_start,
                                  .kv_len = r->kv_len,
                                  .table_start = r->table_start,
                                  .tables = r->tables,
                                  .slots = r->slots};
}

/* One query of sequence s at position pos, in double. */
static void expect(const attn_rig *r, int s, int32_t pos, const float *q,
                   int head, double *out)
{
    int kvh = head / (HEADS / KV_HEADS) * HEAD_DIM;
    int32_t first = r->prm.window ? FOLIO_MAX(pos - r->prm.window + 1, 0) : 0;
    double logit[MAX_KV], max = -INFINITY, sum = 0;
    for (int32_t j = first; j <= pos; j++) {
        logit[j] = 0;
        for (int d = 0; d < HEAD_DIM; d++)
            logit[j] += (double)q[d] * (double)r->past_k[s][j][kvh + d];
        logit[j] /= sqrt(HEAD_DIM);
        max = fmax(max, logit[j]);
    }
    memset(out, 0, HEAD_DIM * sizeof *out);
    for (int32_t j = first; j <= pos; j++) {
        double p = exp(logit[j] - max);
        sum += p;
        for (int d = 0; d < HEAD_DIM; d++)
            out[d] += p * (double)r->past_v[s][j][kvh + d];
    }
    for (int d = 0; d < HEAD_DIM; d++)
        out[d] /= sum;
}

/* A whole step through the public calls, checked. */
static void step(attn_rig *r, int n_seq, const int32_t *n)
{
    make_batch(r, n_seq, n);
    int32_t tok = r->q_start[n_seq];
    for (int i = 0; i < tok * Q_WIDTH; i++)
        r->host_q[i] = 3 * draw(r);
    for (int i = 0; i < tok * KV_WIDTH; i++) {
        r->host_k[i] = draw(r);
        r->host_v[i] = draw(r);
    }
    for (int s = 0; s < n_seq; s++)
        for (int32_t i = 0; i < n[s]; i++)
            for (int d = 0; d < KV_WIDTH; d++) {
                int at = (r->q_start[s] + i) * KV_WIDTH + d;
                r->past_k[s][r->len[s] + i][d] = stored(r, r->host_k[at]);
                r->past_v[s][r->len[s] + i][d] = stored(r, r->host_v[at]);
            }
    uint64_t writes = folio_queue_get_counters(r->q).writes;
    MUST(folio_attn_plan(r->attn, r->q, &r->batch));
    cr_assert_eq(folio_queue_get_counters(r->q).writes, writes + 1);
    if (tok > 0) {
        size_t kv_bytes = (size_t)tok * KV_WIDTH * 4;
        MUST(folio_queue_write(r->q, r->k, r->host_k, kv_bytes));
        MUST(folio_queue_write(r->q, r->v, r->host_v, kv_bytes));
        MUST(folio_queue_write(r->q, r->q_rows, r->host_q,
                               (size_t)tok * Q_WIDTH * 4));
    }
    MUST(folio_queue_fill(r->q, r->out, 0xff, sizeof r->host_out));
    MUST(folio_attn_append(r->attn, r->q, r->k, r->v, r->k_pool, r->v_pool));
    MUST(
        folio_attn_run(r->attn, r->q, r->q_rows, r->k_pool, r->v_pool, r->out));
    MUST(folio_queue_read(r->q, r->out, r->host_out, sizeof r->host_out));
    for (int s = 0; s < n_seq; s++)
        for (int32_t i = 0; i < n[s]; i++)
            for (int h = 0; h < HEADS; h++) {
                int at = (r->q_start[s] + i) * Q_WIDTH + h * HEAD_DIM;
                double want[HEAD_DIM];
                expect(r, s, r->len[s] + i, r->host_q + at, h, want);
                for (int d = 0; d < HEAD_DIM; d++)
                    cr_assert_float_eq(r->host_out[at + d], want[d], 1e-5,
                                       "sequence %d, token %d, head %d: %g, "
                                       "not %g",
                                       s, i, h, (double)r->host_out[at + d],
                                       want[d]);
            }
    for (int i = tok * Q_WIDTH; i < MAX_TOK * Q_WIDTH; i++)
        cr_assert(isnan(r->host_out[i]), "written behind the last token");
    for (int s = 0; s < n_seq; s++)
        r->len[s] += n[s];
}

static void many_steps(const char *device)
{
    for (int i = 0; i < 3; i++) {
        attn_rig *r = open_rig(device, i % 2 ? FOLIO_KV_F32 : FOLIO_KV_F16,
                               i == 2 ? 5 : 0);
        step(r, 3, (int32_t[]){1, 20, 9});
        step(r, 3, (int32_t[]){1, 1, 1});
        step(r, 4, (int32_t[]){3, 1, 0, 17});
        step(r, 4, (int32_t[]){0, 0, 0, 0});
        step(r, 4, (int32_t[]){22, 20, 9, 1});
        step(r, 2, (int32_t[]){1, 1});
        cr_assert_str_eq(r->log, "");
        cr_assert_gt(strlen(folio_attn_variant(r->attn)), 3);
        close_rig(r);
    }
}

Test(api_attention, steps_on_the_host, .timeout = 60)
{
    many_steps("host");
}

Test(api_attention, steps_on_opencl, .timeout = 300)
{
    many_steps("pthread");
}

/* Append writes the slots of the step and nothing else. */
Test(api_attention, append_touches_only_its_slots)
{
    attn_rig *r = open_rig("host", FOLIO_KV_F32, 0);
    step(r, 1, (int32_t[]){9});
    int32_t xk, yk, xv, yv;
    folio_attn_get_layout(r->attn, &xk, &yk, &xv, &yv, NULL);
    cr_assert(HEAD_DIM % xk == 0 && BLOCK % yk == 0);
    const float *pool = folio_view_host(r->k_pool);
    for (int blk = 0; blk < N_BLOCKS; blk++)
        for (int t = 0; t < BLOCK; t++) {
            int32_t pos = -1;
            for (int i = 0; i < 3; i++)
                if (r->table[0][i] == blk && i * BLOCK + t < 9)
                    pos = i * BLOCK + t;
            for (int h = 0; h < KV_HEADS; h++)
                for (int d = 0; d < HEAD_DIM; d++) {
                    int in =
                        (((d / xk) * (BLOCK / yk) + t / yk) * xk + d % xk) *
                            yk +
                        t % yk;
                    float x =
                        pool[(blk * KV_HEADS + h) * BLOCK * HEAD_DIM + in];
                    if (pos < 0)
                        cr_assert(isnan(x));
                    else
                        cr_assert_eq(x, r->past_k[0][pos][h * HEAD_DIM + d]);
                }
        }
    close_rig(r);
}

static void refuse(attn_rig *r, folio_status st, const char *text)
{
    r->log[0] = 0;
    folio_status got = folio_attn_plan(r->attn, r->q, &r->batch);
    cr_assert_eq(got, st, "%s: %s", text, folio_status_name(got));
    cr_assert(strstr(r->log, text) != NULL, "\"%s\" is not in: %s", text,
              r->log);
}

/* Every bad entry is named, and the last good plan still runs. */
static void bad_batches(const char *device)
{
    attn_rig *r = open_rig(device, FOLIO_KV_F32, 0);
    r->log[0] = 0;
    cr_assert_eq(
        folio_attn_run(r->attn, r->q, r->q_rows, r->k_pool, r->v_pool, r->out),
        FOLIO_E_INVAL);
    cr_assert(strstr(r->log, "no plan"));
    step(r, 2, (int32_t[]){5, 7});
    int32_t good_len[2] = {r->len[0], r->len[1]};

    const int32_t n[] = {2, 3};
    make_batch(r, 2, n);
    r->q_start[0] = 1;
    refuse(r, FOLIO_E_INVAL, "q_start[0] is 1");
    make_batch(r, 2, n);
    r->q_start[2] = 1;
    refuse(r, FOLIO_E_INVAL, "q_start[2] is 1");
    make_batch(r, 2, n);
    r->kv_len[1] = 2;
    refuse(r, FOLIO_E_INVAL, "kv_len[1] is 2, shorter");
    make_batch(r, 2, n);
    r->kv_len[0] = MAX_KV + 1;
    refuse(r, FOLIO_E_TOO_LARGE, "kv_len[0] is 61, above max_kv 60");
    make_batch(r, 2, n);
    r->table_start[1] -= 2;
    refuse(r, FOLIO_E_INVAL, "the table of sequence 0 has 1 blocks");
    make_batch(r, 2, n);
    r->tables[r->table_start[1] + 1] = N_BLOCKS;
    refuse(r, FOLIO_E_RANGE, "block 1 of sequence 1 is 64");
    make_batch(r, 2, n);
    r->tables[r->table_start[0]] = -1;
    refuse(r, FOLIO_E_RANGE, "block 0 of sequence 0 is -1");
    make_batch(r, 2, n);
    r->tables[r->table_start[0] + 1] = r->tables[r->table_start[0]];
    refuse(r, FOLIO_E_INVAL, "twice");
    make_batch(r, 2, n);
    r->slots[3] = -1;
    refuse(r, FOLIO_E_RANGE, "slots[3] is -1");
    make_batch(r, 2, n);
    r->slots[3] = N_BLOCKS * BLOCK;
    refuse(r, FOLIO_E_RANGE, "slots[3] is 256");
    make_batch(r, 2, n);
    r->slots[1]++;
    refuse(r, FOLIO_E_INVAL, "position 6 of sequence 0 lies at slot");
    make_batch(r, 2, n);
    /* Both sequences end in the same block. */
    r->tables[r->table_start[1] + 2] = r->tables[r->table_start[0] + 1];
    for (int i = 3; i < 5; i++) /* positions 8, 9 */
        r->slots[i] = r->tables[r->table_start[0] + 1] * BLOCK + i - 3;
    refuse(r, FOLIO_E_INVAL, "written by sequence 0 as well");
    make_batch(r, 2, n);
    r->batch.n_seq = MAX_SEQS + 1;
    refuse(r, FOLIO_E_TOO_LARGE, "n_seq 5 is above max_seqs 4");
    r->batch.n_seq = -1;
    refuse(r, FOLIO_E_INVAL, "n_seq is -1");
    make_batch(r, 2, n);
    r->batch.slots = NULL;
    refuse(r, FOLIO_E_INVAL, "slots is NULL");
    make_batch(r, 2, n);
    r->batch.tables = NULL;
    refuse(r, FOLIO_E_INVAL, "tables is NULL");
    make_batch(r, 2, (int32_t[]){30, 35});
    refuse(r, FOLIO_E_TOO_LARGE, "65 tokens");

    /* The plan of the first step is still there. */
    MUST(folio_queue_fill(r->q, r->out, 0xff, sizeof r->host_out));
    MUST(
        folio_attn_run(r->attn, r->q, r->q_rows, r->k_pool, r->v_pool, r->out));
    float again[MAX_TOK * Q_WIDTH];
    MUST(folio_queue_read(r->q, r->out, again, sizeof again));
    cr_assert_eq(memcmp(again, r->host_out, 12 * Q_WIDTH * sizeof(float)), 0);
    cr_assert(r->len[0] == good_len[0] && r->len[1] == good_len[1]);
    /* And a good one works again. */
    step(r, 2, n);
    close_rig(r);
}

Test(api_attention, bad_batches_on_the_host, .timeout = 60)
{
    bad_batches("host");
}

Test(api_attention, bad_batches_on_opencl, .timeout = 300)
{
    bad_batches("pthread");
}

/* Shared blocks that nobody writes to are fine. */
Test(api_attention, a_shared_prefix)
{
    attn_rig *r = open_rig("host", FOLIO_KV_F16, 0);
    step(r, 1, (int32_t[]){8});
    memcpy(r->past_k[1], r->past_k[0], sizeof r->past_k[0]);
    memcpy(r->past_v[1], r->past_v[0], sizeof r->past_v[0]);
    r->table[1][0] = r->table[0][0];
    r->table[1][1] = r->table[0][1];
    r->len[1] = 8;
    step(r, 2, (int32_t[]){1, 6});
    close_rig(r);
}

Test(api_attention, bad_views)
{
    attn_rig *r = open_rig("host", FOLIO_KV_F32, 0), *other;
    folio_view none = {0}, moved;
    step(r, 1, (int32_t[]){5});
    const size_t bytes = sizeof r->host_out;
    MUST(folio_queue_fill(r->q, r->out, 0x11, bytes));
#define RUN(q_, k_, v_, o_) folio_attn_run(r->attn, r->q, q_, k_, v_, o_)
    cr_assert_eq(RUN(none, r->k_pool, r->v_pool, r->out), FOLIO_E_INVAL);
    cr_assert_eq(RUN(r->q_rows, none, r->v_pool, r->out), FOLIO_E_INVAL);
    cr_assert_eq(RUN(r->q_rows, r->k_pool, none, r->out), FOLIO_E_INVAL);
    cr_assert_eq(RUN(r->q_rows, r->k_pool, r->v_pool, none), FOLIO_E_INVAL);
    cr_assert_eq(RUN(r->out, r->k_pool, r->v_pool, r->out), FOLIO_E_INVAL);
    moved = folio_view_at(r->k_pool, 4);
    cr_assert_eq(RUN(r->q_rows, moved, r->v_pool, r->out), FOLIO_E_RANGE);
    moved = folio_view_at(r->out, bytes - 16);
    cr_assert_eq(RUN(r->q_rows, r->k_pool, r->v_pool, moved), FOLIO_E_RANGE);
    moved = folio_view_at(r->q_rows, 2);
    cr_assert_eq(RUN(moved, r->k_pool, r->v_pool, r->out), FOLIO_E_INVAL);
    other = open_rig("host", FOLIO_KV_F32, 0);
    cr_assert_eq(RUN(r->q_rows, other->k_pool, r->v_pool, r->out),
                 FOLIO_E_INVAL);
    cr_assert_eq(folio_attn_run(r->attn, other->q, r->q_rows, r->k_pool,
                                r->v_pool, r->out),
                 FOLIO_E_INVAL);
    cr_assert_eq(folio_attn_plan(r->attn, other->q, &r->batch), FOLIO_E_INVAL);
    cr_assert_eq(
        folio_attn_append(r->attn, r->q, none, r->v, r->k_pool, r->v_pool),
        FOLIO_E_INVAL);
    MUST(folio_queue_read(r->q, r->out, r->host_out, bytes));
    for (size_t i = 0; i < bytes / 4; i++)
        cr_assert_eq(folio_f32_bits(r->host_out[i]), 0x11111111u);
    close_rig(other);
    close_rig(r);
}

Test(api_attention, bad_parameters)
{
    attn_rig *r = open_rig("host", FOLIO_KV_F16, 0);
    const folio_attn_params good = r->prm;
    folio_attn *a = NULL;
    static const struct {
        size_t field;
        int32_t value;
        folio_status st;
    } bad[] = {
        {offsetof(folio_attn_params, heads), 0, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, heads), 7, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, kv_heads), -1, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, head_dim), 0, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, head_dim), 3, FOLIO_E_UNSUPPORTED},
        {offsetof(folio_attn_params, head_dim), 257, FOLIO_E_UNSUPPORTED},
        {offsetof(folio_attn_params, head_dim), INT32_MAX, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, block_size), 0, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, n_blocks), 0, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, n_blocks), INT32_MAX, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, n_blocks), 14, FOLIO_E_TOO_LARGE},
        {offsetof(folio_attn_params, max_tok), 0, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, max_seqs), 0, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, max_kv), 0, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, max_kv), 257, FOLIO_E_TOO_LARGE},
        {offsetof(folio_attn_params, kv_type), FOLIO_KV_I8,
         FOLIO_E_UNSUPPORTED},
        {offsetof(folio_attn_params, kv_type), 9, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, xk), -1, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, window), -1, FOLIO_E_INVAL},
        {offsetof(folio_attn_params, deterministic), 2, FOLIO_E_INVAL},
    };
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++) {
        folio_attn_params p = good;
        memcpy((char *)&p + bad[i].field, &bad[i].value, 4);
        folio_status st = folio_attn_open(r->dev, &p, &a);
        cr_assert_eq(st, bad[i].st, "case %zu: %s", i, folio_status_name(st));
        cr_assert_null(a);
    }
    folio_attn_params p = good;
    p.size = 0;
    cr_assert_eq(folio_attn_open(r->dev, &p, &a), FOLIO_E_INVAL);
    p = good;
    p.softcap = NAN;
    cr_assert_eq(folio_attn_open(r->dev, &p, &a), FOLIO_E_INVAL);
    cr_assert_eq(folio_attn_open(NULL, &good, &a), FOLIO_E_INVAL);
    cr_assert_eq(folio_attn_open(r->dev, NULL, &a), FOLIO_E_INVAL);
    /* Room is made for no more tokens than there are slots. */
    p = good;
    p.max_tok = INT32_MAX;
    MUST(folio_attn_open(r->dev, &p, &a));
    folio_attn_close(&a);
    /* A layout that does not divide falls. */
    p = good;
    p.xk = 12;
    p.yk = 3;
    p.xv = 8;
    p.yv = 2;
    MUST(folio_attn_open(r->dev, &p, &a));
    int32_t xk, yk, xv, yv;
    folio_attn_get_layout(a, &xk, &yk, &xv, &yv, NULL);
    cr_assert(xk == 8 && yk == 1 && xv == 8 && yv == 2);
    folio_attn_close(&a);
    folio_attn_close(&a);
    folio_attn_close(NULL);
    close_rig(r);
}

/* The n-th allocation of an open failing leaves nothing behind. */
Test(api_attention, open_without_memory)
{
    attn_rig *r = open_rig("host", FOLIO_KV_F16, 0);
    for (int n = 1;; n++) {
        folio_attn *a = NULL;
        fail_alloc_arm(n);
        folio_status st = folio_attn_open(r->dev, &r->prm, &a);
        if (!fail_alloc_disarm()) {
            MUST(st);
            cr_assert_gt(n, 5);
            folio_attn_close(&a);
            break;
        }
        /* What is only remembered for speed may be given up. */
        cr_assert(st == FOLIO_OK || st == FOLIO_E_NOMEM, "allocation %d: %s", n,
                  folio_status_name(st));
        cr_assert_eq(st == FOLIO_OK, a != NULL);
        folio_attn_close(&a);
    }
    close_rig(r);
}

/* Planes and rows may share a buffer, as in an arena, but no byte. */
static void overlaps(const char *device)
{
    attn_rig *r = open_rig(device, FOLIO_KV_F32, 0);
    step(r, 2, (int32_t[]){5, 7});
    size_t out_bytes = sizeof r->host_out;
    folio_buf *arena = NULL;
    MUST(folio_buf_open(r->dev, 2 * r->pool_bytes + out_bytes, &arena));
    folio_view k = {arena, 0}, v = {arena, r->pool_bytes};
    folio_view out = {arena, 2 * r->pool_bytes}, off = v;
    MUST(folio_attn_append(r->attn, r->q, r->k, r->v, k, v));
    MUST(folio_attn_run(r->attn, r->q, r->q_rows, k, v, out));
    off.offset -= 64; /* the last bytes of k */
    const struct {
        folio_view k, v, out;
        const char *text;
    } bad[] = {{k, k, out, "overlaps kv.v"},   {k, off, out, "overlaps kv.v"},
               {off, v, out, "overlaps kv.v"}, {k, v, k, "overlaps kv.k"},
               {k, v, v, "overlaps kv.v"},     {k, v, off, "overlaps kv.k"}};
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++) {
        r->log[0] = 0;
        cr_assert_eq(folio_attn_run(r->attn, r->q, r->q_rows, bad[i].k,
                                    bad[i].v, bad[i].out),
                     FOLIO_E_INVAL, "case %zu", i);
        cr_assert(strstr(r->log, bad[i].text), "case %zu: %s", i, r->log);
    }
    for (size_t i = 0; i < 3; i++) {
        r->log[0] = 0;
        cr_assert_eq(
            folio_attn_append(r->attn, r->q, r->k, r->v, bad[i].k, bad[i].v),
            FOLIO_E_INVAL, "case %zu", i);
        cr_assert(strstr(r->log, bad[i].text), "case %zu: %s", i, r->log);
    }
    cr_assert_eq(folio_attn_append(r->attn, r->q, k, r->v, k, v),
                 FOLIO_E_INVAL);
    folio_buf_close(&arena);
    close_rig(r);
}

Test(api_attention, overlaps_on_the_host, .timeout = 60)
{
    overlaps("host");
}

Test(api_attention, overlaps_on_opencl, .timeout = 300)
{
    overlaps("pthread");
}
