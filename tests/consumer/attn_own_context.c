/* A program of somebody else's: an engine with its own OpenCL context, queue
 * and buffers that wants only paged attention. One sequence of 20 tokens is
 * prefilled and 12 more are decoded one by one; its blocks lie scattered in the
 * pool. Each result is compared with attention written out below. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <CL/cl.h>

#include <folio/attention.h>

enum {
    HEADS = 6,
    KV_HEADS = 2,
    HEAD_DIM = 32,
    BLOCK = 8,
    N_BLOCKS = 16,
    PROMPT = 20,
    TOTAL = 32,
    Q_FLOATS = HEADS * HEAD_DIM,
    KV_FLOATS = KV_HEADS * HEAD_DIM
};

/* The engine's own block table: any blocks, in any order. */
static const int32_t table[] = {11, 2, 14, 5};

static float q[TOTAL][Q_FLOATS], k[TOTAL][KV_FLOATS], v[TOTAL][KV_FLOATS];

typedef struct engine {
    cl_context context;
    cl_command_queue queue;
    cl_mem q, k, v, out, k_pool, v_pool;
    folio_device *device;
    folio_queue *fq;
    folio_attn *attn;
    folio_view fq_rows, fk, fv, fout, fk_pool, fv_pool;
} engine;

static void must(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

static cl_device_id first_device(void)
{
    cl_platform_id platforms[8];
    cl_uint n = 0;
    cl_device_id device;
    if (clGetPlatformIDs(8, platforms, &n) != CL_SUCCESS)
        return NULL;
    for (cl_uint i = 0; i < n && i < 8; i++)
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &device,
                           NULL) == CL_SUCCESS)
            return device;
    return NULL;
}

/* A buffer of the engine's own, lent to folio. */
static folio_view lend(engine *e, size_t bytes, cl_mem *mem)
{
    cl_int code;
    folio_view view = {0};
    *mem = clCreateBuffer(e->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    must(code == CL_SUCCESS, "clCreateBuffer");
    must(folio_buf_wrap(e->device, *mem, &view.buf) == FOLIO_OK,
         "folio_buf_wrap");
    return view;
}

static void print_log(void *user, folio_log_level level, const char *text)
{
    (void)user;
    if (level <= FOLIO_LOG_WARN)
        fprintf(stderr, "%s\n", text);
}

static void engine_open(engine *e, cl_device_id device)
{
    cl_int code;
    e->context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    must(code == CL_SUCCESS, "clCreateContext");
    e->queue = clCreateCommandQueue(e->context, device, 0, &code);
    must(code == CL_SUCCESS, "clCreateCommandQueue");

    folio_device_params dp;
    folio_device_params_default(&dp);
    dp.log.fn = print_log;
    must(folio_device_wrap(e->context, device, &dp, &e->device) == FOLIO_OK,
         "folio_device_wrap");
    must(folio_queue_wrap(e->device, e->queue, &e->fq) == FOLIO_OK,
         "folio_queue_wrap");

    folio_attn_params ap;
    size_t block_bytes;
    folio_attn_params_default(&ap);
    ap.heads = HEADS;
    ap.kv_heads = KV_HEADS;
    ap.head_dim = HEAD_DIM;
    ap.block_size = BLOCK;
    ap.n_blocks = N_BLOCKS;
    ap.max_tok = TOTAL;
    ap.max_kv = TOTAL;
    ap.kv_type = FOLIO_KV_F32;
    must(folio_attn_open(e->device, &ap, &e->attn) == FOLIO_OK,
         "folio_attn_open");
    folio_attn_get_layout(e->attn, NULL, NULL, NULL, NULL, &block_bytes);

    e->fq_rows = lend(e, sizeof q, &e->q);
    e->fk = lend(e, sizeof k, &e->k);
    e->fv = lend(e, sizeof v, &e->v);
    e->fout = lend(e, sizeof q, &e->out);
    e->fk_pool = lend(e, N_BLOCKS * block_bytes, &e->k_pool);
    e->fv_pool = lend(e, N_BLOCKS * block_bytes, &e->v_pool);
}

static void engine_close(engine *e)
{
    folio_view *views[] = {&e->fq_rows, &e->fk,      &e->fv,
                           &e->fout,    &e->fk_pool, &e->fv_pool};
    cl_mem mems[] = {e->q, e->k, e->v, e->out, e->k_pool, e->v_pool};
    folio_attn_close(&e->attn);
    for (int i = 0; i < 6; i++) {
        folio_buf_close(&views[i]->buf);
        clReleaseMemObject(mems[i]);
    }
    folio_queue_close(&e->fq);
    folio_device_close(&e->device);
    clReleaseCommandQueue(e->queue);
    clReleaseContext(e->context);
}

/* Tokens first..first+n-1: the engine writes with its own queue, folio appends
 * and attends, the engine reads. */
static void engine_step(engine *e, int first, int n, float *out)
{
    int32_t q_start[2] = {0, n}, kv_len = first + n, slots[TOTAL];
    int32_t table_start[2] = {0, 4};
    folio_attn_batch batch = {.n_seq = 1,
                              .q_start = q_start,
                              .kv_len = &kv_len,
                              .table_start = table_start,
                              .tables = table,
                              .slots = slots};
    for (int i = 0; i < n; i++)
        slots[i] = table[(first + i) / BLOCK] * BLOCK + (first + i) % BLOCK;
    size_t q_bytes = (size_t)n * sizeof q[0],
           kv_bytes = (size_t)n * sizeof k[0];
    must(clEnqueueWriteBuffer(e->queue, e->q, CL_TRUE, 0, q_bytes, q[first], 0,
                              NULL, NULL) == CL_SUCCESS &&
             clEnqueueWriteBuffer(e->queue, e->k, CL_TRUE, 0, kv_bytes,
                                  k[first], 0, NULL, NULL) == CL_SUCCESS &&
             clEnqueueWriteBuffer(e->queue, e->v, CL_TRUE, 0, kv_bytes,
                                  v[first], 0, NULL, NULL) == CL_SUCCESS,
         "clEnqueueWriteBuffer");
    must(folio_attn_plan(e->attn, e->fq, &batch) == FOLIO_OK,
         "folio_attn_plan");
    must(folio_attn_append(e->attn, e->fq, e->fk, e->fv, e->fk_pool,
                           e->fv_pool) == FOLIO_OK,
         "folio_attn_append");
    must(folio_attn_run(e->attn, e->fq, e->fq_rows, e->fk_pool, e->fv_pool,
                        e->fout) == FOLIO_OK,
         "folio_attn_run");
    must(clEnqueueReadBuffer(e->queue, e->out, CL_TRUE, 0, q_bytes, out, 0,
                             NULL, NULL) == CL_SUCCESS,
         "clEnqueueReadBuffer");
}

/* The largest difference of token t's result from attention by definition. */
static double difference(int t, const float *out)
{
    double worst = 0;
    for (int h = 0; h < HEADS; h++) {
        int in = h / (HEADS / KV_HEADS) * HEAD_DIM;
        double weight[TOTAL], sum = 0;
        for (int j = 0; j <= t; j++) {
            double dot = 0;
            for (int d = 0; d < HEAD_DIM; d++)
                dot += (double)q[t][h * HEAD_DIM + d] * (double)k[j][in + d];
            sum += weight[j] = exp(dot / sqrt(HEAD_DIM));
        }
        for (int d = 0; d < HEAD_DIM; d++) {
            double want = 0;
            for (int j = 0; j <= t; j++)
                want += weight[j] / sum * (double)v[j][in + d];
            double diff = fabs(want - (double)out[h * HEAD_DIM + d]);
            if (isnan(diff))
                return diff;
            worst = fmax(worst, diff);
        }
    }
    return worst;
}

static void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = 1664525u * seed + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

int main(void)
{
    static float out[TOTAL][Q_FLOATS];
    engine e;
    cl_device_id device = first_device();
    if (!device) {
        printf("no OpenCL device on this machine\n");
        return 0;
    }
    memset(&e, 0, sizeof e);
    fill(q[0], TOTAL * Q_FLOATS, 1);
    fill(k[0], TOTAL * KV_FLOATS, 2);
    fill(v[0], TOTAL * KV_FLOATS, 3);

    engine_open(&e, device);
    printf("attention by %s, ", folio_attn_variant(e.attn));
    engine_step(&e, 0, PROMPT, out[0]);
    for (int t = PROMPT; t < TOTAL; t++)
        engine_step(&e, t, 1, out[t]);
    engine_close(&e);

    int right = 0;
    for (int t = 0; t < TOTAL; t++)
        right += difference(t, out[t]) <= 1e-4; /* a NaN is not */
    printf("%d of %d tokens right\n", right, TOTAL);
    return right == TOTAL ? 0 : 1;
}
