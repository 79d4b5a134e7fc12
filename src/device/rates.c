/* device/rates.c: what a device gives at best: read rate and arithmetic, by
 * the kernels of cl/measure.cl or, on the host device, by loops in C. Decides
 * nothing: the figures are for reports. */
#include "device/impl.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The best round counts: others were disturbed. */
#define ROUNDS 5
/* A round of arithmetic lasts about so long. */
#define ROUND_NS 20000000u
#define CHAINS   8
/* Of one mma.sync.m16n8k16. */
#define MMA_FLOP (2.0 * 16 * 8 * 16)

static size_t array_bytes(const folio_device *dev)
{
    const bool large = dev->info.kind == FOLIO_DEVICE_GPU_DISCRETE;
    size_t bytes = (size_t)(large ? 1024 : 256) << 20;
    while (bytes > dev->info.max_alloc_bytes ||
           (dev->info.global_bytes && bytes > dev->info.global_bytes / 4))
        bytes /= 2;
    return bytes / 4096 * 4096;
}

/* ---- OpenCL -------------------------------------------------------------- */

typedef struct shot {
    folio_queue *q;
    folio_kernel *k;
    folio_grid grid;
    folio_arg arg[4];
    int n_args;
} shot;

/* Nanoseconds of a launch, of the best round of `n` launches. */
static folio_status time_shot(const shot *s, int n, double *ns)
{
    double best = 0.0;
    for (int i = -1; i < ROUNDS; i++) {
        const uint64_t start = folio_clock_ns();
        for (int j = 0; j < n; j++)
            FOLIO_RETURN_IF(
                folio_launch(s->q, s->k, &s->grid, s->arg, s->n_args));
        FOLIO_RETURN_IF(folio_queue_finish(s->q));
        const double t = (double)(folio_clock_ns() - start) / n;
        if (i == 0 || (i > 0 && t < best))
            best = t;
    }
    *ns = best;
    return FOLIO_OK;
}

/* Units of work/s where one launch does `work` of them per turn of its loop,
 * whose length is argument `at`: as many turns as a round needs. */
static folio_status time_turns(shot *s, int at, double work, double *rate)
{
    double ns = 0.0;
    int32_t n = 64;
    for (;;) {
        s->arg[at] = folio_arg_i32(n);
        FOLIO_RETURN_IF(time_shot(s, 1, &ns));
        if (ns > ROUND_NS / 4 || n > (1 << 24))
            break;
        n *= 4;
    }
    *rate = work * n / ns * 1e9;
    return FOLIO_OK;
}

static uint32_t group_size(const folio_device *dev)
{
    uint32_t wg = 1;
    while (wg < 256 && wg * 2 <= dev->info.max_work_group)
        wg *= 2;
    return wg;
}

static folio_status open_shot(folio_device *dev, folio_queue *q,
                              const char *entry, const char *option,
                              size_t groups, shot *s)
{
    char options[96];
    const uint32_t wg = group_size(dev);
    snprintf(options, sizeof options, "%s -DWG=%u", option, wg);
    const folio_kernel_spec spec = {entry, "common.clh measure.cl", options};
    *s = (shot){.q = q, .grid = {{groups, 1, 1}, {wg, 1, 1}}};
    return folio_kernel_open(dev, &spec, &s->k);
}

static folio_status measure_read(folio_device *dev, folio_queue *q,
                                 folio_view out, size_t groups,
                                 folio_device_rates *r)
{
    folio_status st;
    folio_buf *from = NULL;
    shot s = {0};
    double ns = 0.0;
    const char *option = dev->caps & FOLIO_CAP_CPU
                             ? "-DMEASURE_READ -DMEASURE_STRETCH"
                             : "-DMEASURE_READ";
    r->read_array = array_bytes(dev);
    FOLIO_TRY(folio_buf_open(dev, (size_t)r->read_array, &from));
    FOLIO_TRY(open_shot(dev, q, "measure_read", option, groups, &s));
    s.arg[0] = folio_arg_view((folio_view){from, 0});
    s.arg[1] = folio_arg_view(out);
    s.arg[2] = folio_arg_u64(r->read_array / 16);
    s.n_args = 3;
    FOLIO_TRY(time_shot(&s, 3, &ns));
    r->read_bytes_s = (double)r->read_array / ns * 1e9;
fail:
    folio_kernel_close(&s.k);
    folio_buf_close(&from);
    return st;
}

static folio_status measure_fma(folio_device *dev, folio_queue *q,
                                folio_view out, size_t groups, int lanes,
                                folio_device_rates *r)
{
    folio_status st;
    char option[48];
    shot s = {0};
    snprintf(option, sizeof option, "-DMEASURE_FMA -DLANES=%d", lanes);
    FOLIO_TRY(open_shot(dev, q, "measure_fma", option, groups, &s));
    s.arg[0] = folio_arg_view(out);
    s.arg[1] = folio_arg_f32(0.5f);
    s.arg[2] = folio_arg_f32(1.0f);
    s.n_args = 4;
    const double items = (double)groups * (double)s.grid.local[0];
    FOLIO_TRY(time_turns(&s, 3, 2.0 * CHAINS * lanes * items, &r->fma_flop_s));
fail:
    folio_kernel_close(&s.k);
    return st;
}

static folio_status measure_mma(folio_device *dev, folio_queue *q,
                                folio_view out, size_t groups,
                                folio_device_rates *r)
{
    folio_status st;
    shot s = {0};
    FOLIO_TRY(open_shot(dev, q, "measure_mma", "-DMEASURE_MMA", groups, &s));
    s.arg[0] = folio_arg_view(out);
    s.arg[1] = folio_arg_i32(40503);
    s.n_args = 3;
    const double warps = (double)groups * (double)s.grid.local[0] / 32.0;
    FOLIO_TRY(time_turns(&s, 2, MMA_FLOP * CHAINS * warps, &r->matrix_flop_s));
fail:
    folio_kernel_close(&s.k);
    return st;
}

static folio_status measure_cl(folio_device *dev, folio_device_rates *r)
{
    folio_status st;
    folio_queue *q = NULL;
    folio_buf *out = NULL;
    const bool gpu = (dev->caps & FOLIO_CAP_GPU) != 0;
    const size_t units = FOLIO_MAX(dev->info.compute_units, 1u);
    const size_t groups = units * (gpu ? 16 : 4);
    /* Wide registers on a CPU, many work-items on a GPU. */
    const int lanes = gpu ? 2 : 16;
    FOLIO_TRY(folio_queue_open(dev, &q));
    FOLIO_TRY(folio_buf_open(dev, groups * group_size(dev) * 16 * sizeof(float),
                             &out));
    const folio_view to = {out, 0};
    FOLIO_TRY(measure_read(dev, q, to, groups, r));
    FOLIO_TRY(measure_fma(dev, q, to, groups, lanes, r));
    if ((dev->caps & FOLIO_CAP_PTX_MMA) && group_size(dev) >= 32) {
        st = measure_mma(dev, q, to, groups, r);
        /* The compiler's reasons are logged; the other figures stand. */
        if (st == FOLIO_E_BUILD)
            st = FOLIO_OK;
    }
fail:
    folio_queue_close(&q);
    folio_buf_close(&out);
    return st;
}

/* ---- the host ------------------------------------------------------------ */

typedef struct host_work {
    const float *from;
    int64_t turns;
    float *sum; /* [threads], what nobody may leave out */
} host_work;

#define HOST_PIECE 4096 /* bytes */

/* The sum of n floats, n a multiple of 64. */
static float sum_plain(const float *x, int64_t n)
{
    float sum[32] = {0}, all = 0.0f;
    for (int64_t i = 0; i < n; i += 32)
        for (int j = 0; j < 32; j++)
            sum[j] += x[i + j];
    for (int j = 0; j < 32; j++)
        all += sum[j];
    return all;
}

#if defined(__x86_64__)
/* Eight stretches side by side: one stream alone does not fill the memory's
 * queue. */
__attribute__((target("avx2"))) static float sum_avx2(const float *x, int64_t n)
{
    const int64_t each = n / 8;
    float out[8];
    __m256 s[8];
    for (int j = 0; j < 8; j++)
        s[j] = _mm256_setzero_ps();
    for (int64_t i = 0; i < each; i += 8) {
        s[0] = _mm256_add_ps(s[0], _mm256_loadu_ps(x + i));
        s[1] = _mm256_add_ps(s[1], _mm256_loadu_ps(x + i + each));
        s[2] = _mm256_add_ps(s[2], _mm256_loadu_ps(x + i + 2 * each));
        s[3] = _mm256_add_ps(s[3], _mm256_loadu_ps(x + i + 3 * each));
        s[4] = _mm256_add_ps(s[4], _mm256_loadu_ps(x + i + 4 * each));
        s[5] = _mm256_add_ps(s[5], _mm256_loadu_ps(x + i + 5 * each));
        s[6] = _mm256_add_ps(s[6], _mm256_loadu_ps(x + i + 6 * each));
        s[7] = _mm256_add_ps(s[7], _mm256_loadu_ps(x + i + 7 * each));
    }
    for (int j = 1; j < 8; j++)
        s[0] = _mm256_add_ps(s[0], s[j]);
    _mm256_storeu_ps(out, s[0]);
    return out[0] + out[7];
}
#endif

static void read_part(void *user, int64_t first, int64_t last, int thread)
{
    const host_work *w = user;
    const int64_t step = HOST_PIECE / (int64_t)sizeof(float);
    const float *x = w->from + first * step;
    const int64_t n = (last - first) * step;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        w->sum[thread] += sum_avx2(x, n);
        return;
    }
#endif
    w->sum[thread] += sum_plain(x, n);
}

/* Each returns the flop of one turn and adds to *sum. */
static double turn_plain(int64_t turns, float *sum)
{
    float a[32];
    for (int j = 0; j < 32; j++)
        a[j] = (float)j;
    for (int64_t i = 0; i < turns; i++)
        for (int j = 0; j < 32; j++)
            a[j] = a[j] * 0.5f + 1.0f;
    for (int j = 0; j < 32; j++)
        *sum += a[j];
    return 2.0 * 32;
}

#if defined(__x86_64__)
/* Ten chains: latency 4 times two units a cycle, and some. */
#define X86_CHAINS 10
__attribute__((target("avx2,fma"))) static double turn_avx2(int64_t turns,
                                                            float *sum)
{
    const __m256 m = _mm256_set1_ps(0.5f), p = _mm256_set1_ps(1.0f);
    float out[8];
    __m256 a[X86_CHAINS];
    for (int j = 0; j < X86_CHAINS; j++)
        a[j] = _mm256_set1_ps((float)j);
    for (int64_t i = 0; i < turns; i++) {
        a[0] = _mm256_fmadd_ps(a[0], m, p);
        a[1] = _mm256_fmadd_ps(a[1], m, p);
        a[2] = _mm256_fmadd_ps(a[2], m, p);
        a[3] = _mm256_fmadd_ps(a[3], m, p);
        a[4] = _mm256_fmadd_ps(a[4], m, p);
        a[5] = _mm256_fmadd_ps(a[5], m, p);
        a[6] = _mm256_fmadd_ps(a[6], m, p);
        a[7] = _mm256_fmadd_ps(a[7], m, p);
        a[8] = _mm256_fmadd_ps(a[8], m, p);
        a[9] = _mm256_fmadd_ps(a[9], m, p);
    }
    for (int j = 1; j < X86_CHAINS; j++)
        a[0] = _mm256_add_ps(a[0], a[j]);
    _mm256_storeu_ps(out, a[0]);
    *sum += out[0];
    return 2.0 * 8 * X86_CHAINS;
}

__attribute__((target("avx512f"))) static double turn_avx512(int64_t turns,
                                                             float *sum)
{
    const __m512 m = _mm512_set1_ps(0.5f), p = _mm512_set1_ps(1.0f);
    float out[16];
    __m512 a[X86_CHAINS];
    for (int j = 0; j < X86_CHAINS; j++)
        a[j] = _mm512_set1_ps((float)j);
    for (int64_t i = 0; i < turns; i++) {
        a[0] = _mm512_fmadd_ps(a[0], m, p);
        a[1] = _mm512_fmadd_ps(a[1], m, p);
        a[2] = _mm512_fmadd_ps(a[2], m, p);
        a[3] = _mm512_fmadd_ps(a[3], m, p);
        a[4] = _mm512_fmadd_ps(a[4], m, p);
        a[5] = _mm512_fmadd_ps(a[5], m, p);
        a[6] = _mm512_fmadd_ps(a[6], m, p);
        a[7] = _mm512_fmadd_ps(a[7], m, p);
        a[8] = _mm512_fmadd_ps(a[8], m, p);
        a[9] = _mm512_fmadd_ps(a[9], m, p);
    }
    for (int j = 1; j < X86_CHAINS; j++)
        a[0] = _mm512_add_ps(a[0], a[j]);
    _mm512_storeu_ps(out, a[0]);
    *sum += out[0];
    return 2.0 * 16 * X86_CHAINS;
}
#endif

static double turn_best(int64_t turns, float *sum)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return turn_avx512(turns, sum);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return turn_avx2(turns, sum);
#endif
    return turn_plain(turns, sum);
}

static void fma_part(void *user, int64_t first, int64_t last, int thread)
{
    const host_work *w = user;
    float sum = 0.0f;
    (void)turn_best((last - first) * w->turns, &sum);
    w->sum[thread] += sum;
}

static folio_status measure_host(folio_device *dev, folio_device_rates *r)
{
    folio_status st;
    folio_buf *from = NULL;
    const int threads = folio_thread_pool_size(dev->pool);
    float none = 0.0f;
    host_work w = {.turns = 4096,
                   .sum = folio_calloc((size_t)threads, sizeof *w.sum)};
    double read_ns = 0.0, fma_ns = 0.0;
    if (!w.sum)
        return folio_fail(&dev->log, FOLIO_E_NOMEM, "no memory for %d sums",
                          threads);
    r->read_array = array_bytes(dev);
    FOLIO_TRY(folio_buf_open(dev, (size_t)r->read_array, &from));
    w.from = folio_view_host((folio_view){from, 0});
    const int64_t pieces = (int64_t)(r->read_array / HOST_PIECE);
    const int64_t grains = 64 * (int64_t)threads;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start = folio_clock_ns();
        folio_parallel_for(dev->pool, pieces, 64, read_part, &w);
        double t = (double)(folio_clock_ns() - start);
        read_ns = i == 0 ? t : FOLIO_MIN(read_ns, t);
        start = folio_clock_ns();
        folio_parallel_for(dev->pool, grains, 1, fma_part, &w);
        t = (double)(folio_clock_ns() - start);
        fma_ns = i == 0 ? t : FOLIO_MIN(fma_ns, t);
    }
    r->read_bytes_s = (double)r->read_array / FOLIO_MAX(read_ns, 1.0) * 1e9;
    r->fma_flop_s = turn_best(0, &none) * (double)w.turns * (double)grains /
                    FOLIO_MAX(fma_ns, 1.0) * 1e9;
fail:
    folio_buf_close(&from);
    free(w.sum);
    return st;
}

folio_status folio_device_measure(folio_device *dev, folio_device_rates *rates)
{
    if (!dev)
        return FOLIO_E_INVAL;
    if (!rates || rates->size < sizeof rates->size)
        return folio_fail(&dev->log, FOLIO_E_INVAL,
                          "folio_device_measure: rates is %s",
                          rates ? "without its size" : "NULL");
    folio_device_rates r = {.size = sizeof r};
    FOLIO_RETURN_IF(dev->host ? measure_host(dev, &r) : measure_cl(dev, &r));
    const size_t size = rates->size;
    memcpy(rates, &r, FOLIO_MIN(size, sizeof r));
    rates->size = size;
    return FOLIO_OK;
}
