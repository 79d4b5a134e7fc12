/* device/caps.c: what a device can do, found by building and running probes
 * and checking their numbers; extension strings only decide what is worth a
 * probe. The only place, with caps_ptx.c, that may tell vendors apart. A probe
 * that fails in any way means "absent"; only the canary refuses a device. */
#include "device/probe.h"
#include "base/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Raised whenever a probe changes, so that old verdicts are not believed. */
#define PROBES_REVISION 4u

/* From cl_khr_integer_dot_product, cl_intel_required_subgroup_size: older
 * headers lack them. */
#define SUB_GROUP_SIZES_INTEL 0x4108

/* ---- the scratch device
 * ------------------------------------------------------- */

static void probe_close(folio_probe *p)
{
    folio_buf_close(&p->in);
    folio_buf_close(&p->out);
    folio_queue_close(&p->q);
    folio_device_close(&p->dev);
}

static folio_status probe_open(folio_probe *p)
{
    folio_status st = FOLIO_OK;
    size_t bytes = sizeof p->words;
    FOLIO_TRY(folio_device_new_cl(p->found, NULL, &p->settings, &p->dev));
    FOLIO_TRY(folio_queue_open(p->dev, &p->q));
    FOLIO_TRY(folio_buf_open(p->dev, bytes, &p->in));
    FOLIO_TRY(folio_buf_open(p->dev, bytes, &p->out));
    return FOLIO_OK;
fail:
    probe_close(p);
    return st;
}

uint32_t folio_probe_word(uint32_t i)
{
    uint32_t x = i * 2654435761u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

static folio_status launch(folio_probe *p, const folio_probe_run *run,
                           folio_kernel *k)
{
    const folio_view in = {.buf = p->in}, out = {.buf = p->out};
    if (run->n_in > 0)
        FOLIO_RETURN_IF(
            folio_queue_write(p->q, in, p->words, (size_t)run->n_in * 4));
    if (!run->keep)
        FOLIO_RETURN_IF(folio_queue_fill(p->q, out, 0xa5, sizeof p->results));
    folio_kernel_limits limits;
    folio_kernel_get_limits(k, &limits);
    uint32_t items = run->items, groups = run->groups;
    if (groups == 0) {
        items = FOLIO_MIN(limits.max_work_group, 64u);
        groups = (run->items + items - 1) / items;
    }
    if (items > limits.max_work_group)
        return FOLIO_E_RANGE;
    const folio_grid grid = {.groups = {groups, 1, 1}, .local = {items, 1, 1}};
    const folio_arg args[] = {folio_arg_view(in), folio_arg_view(out),
                              folio_arg_i32(run->n)};
    FOLIO_RETURN_IF(folio_launch(p->q, k, &grid, args, 3));
    FOLIO_RETURN_IF(
        folio_queue_read(p->q, out, p->results, (size_t)run->n_out * 4));
    return folio_queue_finish(p->q);
}

folio_status folio_probe_do(folio_probe *p, const folio_probe_run *run)
{
    folio_status st = FOLIO_OK;
    folio_kernel *k = NULL;
    /* The probe before this one may have cost the context. */
    if (p->dev && folio_device_is_dead(p->dev))
        probe_close(p);
    if (!p->dev)
        FOLIO_TRY(probe_open(p));
    const folio_kernel_spec spec = {.entry = run->entry,
                                    .fragments = run->fragments,
                                    .options = run->options};
    FOLIO_TRY(folio_kernel_open_at(p->dev, &spec, run->level, &k));
    FOLIO_TRY(launch(p, run, k));
fail:
    folio_kernel_close(&k);
    return st;
}

#define PROBE "common.clh probe.cl"

/* Largest power of two not above `most` that the device takes as a group. */
static uint32_t group_size(const folio_probe *p, uint32_t most)
{
    uint32_t limit = FOLIO_MIN(most, p->found->info.max_work_group);
    uint32_t n = 1;
    while (n * 2 <= limit)
        n *= 2;
    return n;
}

/* ---- canary
 * -------------------------------------------------------------------- */

static folio_status check_reduction(folio_probe *p)
{
    const uint32_t n = 1000;
    char options[64];
    int32_t low = INT32_MAX, high = INT32_MIN;
    uint32_t sum = 0;
    folio_status st = FOLIO_E_RANGE;
    for (uint32_t i = 0; i < n; i++) {
        int32_t v = (int32_t)(folio_probe_word(i) % 2000001u) - 1000000;
        memcpy(&p->words[i], &v, 4);
        low = FOLIO_MIN(low, v);
        high = FOLIO_MAX(high, v);
        sum += (uint32_t)v;
    }
    for (uint32_t items = group_size(p, 256); items > 0 && st == FOLIO_E_RANGE;
         items /= 2) {
        snprintf(options, sizeof options, "-D PROBE_CANARY=1 -D WG=%u",
                 (unsigned)items);
        st = folio_probe_do(p, &(folio_probe_run){.entry = "probe_canary",
                                                  .fragments = PROBE,
                                                  .options = options,
                                                  .groups = 1,
                                                  .items = items,
                                                  .n_in = n,
                                                  .n_out = 3,
                                                  .n = (int32_t)n,
                                                  .level = FOLIO_LOG_ERROR});
    }
    if (st != FOLIO_OK)
        return st;
    const int32_t want[3] = {low, high, (int32_t)sum};
    if (memcmp(p->results, want, sizeof want) != 0)
        return folio_fail(&p->settings.log, FOLIO_E_DEVICE,
                          "device %s, driver %s fails its self-test: minimum, "
                          "maximum and sum of %u numbers are %d, %d, %d "
                          "instead of %d, %d, %d",
                          p->found->info.name, p->found->info.driver,
                          (unsigned)n, (int)p->results[0], (int)p->results[1],
                          (int)p->results[2], (int)low, (int)high, (int)sum);
    return FOLIO_OK;
}

static folio_status check_half_storage(folio_probe *p)
{
    enum { N = 256 };
    for (uint32_t i = 0; i < N; i++) {
        /* 2^-14 (the least normal half) to 2^15, both signs */
        float v = 1.0f + (float)(folio_probe_word(i) & 0xffffu) / 65536.0f;
        v = ldexpf(i & 1 ? -v : v, (int)(i % 30) - 14);
        p->words[i] = folio_f32_bits(i == 0 ? 0.0f : v);
    }
    FOLIO_RETURN_IF(folio_probe_do(
        p, &(folio_probe_run){.entry = "probe_half_storage",
                              .fragments = PROBE,
                              .options = "-D PROBE_HALF_STORAGE=1",
                              .items = N,
                              .n_in = N,
                              .n_out = 2 * N,
                              .n = N,
                              .level = FOLIO_LOG_ERROR}));
    for (uint32_t i = 0; i < N; i++) {
        uint16_t half = folio_f32_to_f16(folio_bits_f32(p->words[i]));
        uint32_t back = folio_f32_bits(folio_f16_to_f32(half));
        if (p->results[2 * i] != half || p->results[2 * i + 1] != back)
            return folio_fail(&p->settings.log, FOLIO_E_DEVICE,
                              "device %s, driver %s fails its self-test: %g as "
                              "half is 0x%04x and back 0x%08x instead of "
                              "0x%04x and 0x%08x",
                              p->found->info.name, p->found->info.driver,
                              (double)folio_bits_f32(p->words[i]),
                              (unsigned)p->results[2 * i],
                              (unsigned)p->results[2 * i + 1], (unsigned)half,
                              (unsigned)back);
    }
    return FOLIO_OK;
}

/* ---- probes
 * ----------------------------------------------------------------------- */

static bool fma_is_exact(folio_probe *p)
{
    enum { N = 256 };
    for (uint32_t i = 0; i < 3 * N; i++)
        p->words[i] = folio_f32_bits(
            1.0f + (float)(folio_probe_word(i) & 0xffffffu) / 0x1p24f);
    /* c = -(a * b rounded): what is left is the rounding error, which only a
     * fused operation sees. */
    for (uint32_t i = 0; i < N; i++) {
        volatile float ab = folio_bits_f32(p->words[3 * i]) *
                            folio_bits_f32(p->words[3 * i + 1]);
        p->words[3 * i + 2] = folio_f32_bits(-ab);
    }
    if (folio_probe_do(p, &(folio_probe_run){.entry = "probe_fma",
                                             .fragments = PROBE,
                                             .options = "-D PROBE_FMA=1",
                                             .items = N,
                                             .n_in = 3 * N,
                                             .n_out = N,
                                             .n = N,
                                             .level = FOLIO_LOG_DEBUG}) !=
        FOLIO_OK)
        return false;
    for (uint32_t i = 0; i < N; i++) {
        double exact = (double)folio_bits_f32(p->words[3 * i]) *
                           (double)folio_bits_f32(p->words[3 * i + 1]) +
                       (double)folio_bits_f32(p->words[3 * i + 2]);
        if ((double)folio_bits_f32(p->results[i]) != exact)
            return false;
    }
    return true;
}

/* Nanoseconds of one launch, the best of several; 0 = did not run. */
static uint64_t time_steps(folio_probe *p, const char *options)
{
    enum { STEPS = 512, TRIES = 5 };
    folio_kernel *k = NULL;
    uint64_t best = 0;
    const folio_kernel_spec spec = {
        .entry = "probe_fma_time", .fragments = PROBE, .options = options};
    const folio_view in = {.buf = p->in}, out = {.buf = p->out};
    folio_grid grid = {.groups = {1, 1, 1}, .local = {1, 1, 1}};
    const folio_arg args[] = {folio_arg_view(in), folio_arg_view(out),
                              folio_arg_i32(STEPS)};
    folio_kernel_limits limits;
    const float ab[2] = {0.999f, 0.5f};
    if (folio_kernel_open_at(p->dev, &spec, FOLIO_LOG_DEBUG, &k) != FOLIO_OK ||
        folio_queue_write(p->q, in, ab, sizeof ab) != FOLIO_OK)
        goto done;
    folio_kernel_get_limits(k, &limits);
    grid.local[0] = FOLIO_MIN(limits.max_work_group, 64u);
    for (int i = 0; i < TRIES + 1; i++) {
        if (folio_queue_finish(p->q) != FOLIO_OK)
            goto done;
        uint64_t start = folio_clock_ns();
        if (folio_launch(p->q, k, &grid, args, 3) != FOLIO_OK ||
            folio_queue_finish(p->q) != FOLIO_OK) {
            best = 0;
            goto done;
        }
        uint64_t ns = folio_clock_ns() - start;
        if (i > 0 && (best == 0 || ns < best)) /* the first one warms up */
            best = FOLIO_MAX(ns, 1u);
    }
done:
    folio_kernel_close(&k);
    return best;
}

/* Where fma is a library routine it takes ten times a product and a sum and
 * more; where it is an instruction, half of it. */
static bool probe_fma(folio_probe *p)
{
    if (!fma_is_exact(p))
        return false;
    uint64_t fused = time_steps(p, "-D PROBE_FMA_TIME=1");
    uint64_t split = time_steps(p, "-D PROBE_FMA_TIME=2");
    return fused != 0 && split != 0 && fused < 2 * split;
}

static bool probe_half_arith(folio_probe *p)
{
    enum { N = 256 };
    for (uint32_t i = 0; i < 2 * N; i++) {
        uint16_t h = (uint16_t)(0x3000u + folio_probe_word(i) % 0x1800u);
        p->words[i] = folio_f32_bits(folio_f16_to_f32(h));
    }
    if (folio_probe_do(p, &(folio_probe_run){.entry = "probe_half_arith",
                                             .fragments = PROBE,
                                             .options = "-D PROBE_HALF_ARITH=1",
                                             .items = N,
                                             .n_in = 2 * N,
                                             .n_out = 2 * N,
                                             .n = N,
                                             .level = FOLIO_LOG_DEBUG}) !=
        FOLIO_OK)
        return false;
    for (uint32_t i = 0; i < N; i++) {
        /* Products and sums of two halves are exact in a float. */
        float a = folio_bits_f32(p->words[2 * i]);
        float b = folio_bits_f32(p->words[2 * i + 1]);
        if (p->results[2 * i] != folio_f32_to_f16(a * b) ||
            p->results[2 * i + 1] != folio_f32_to_f16(a + b))
            return false;
    }
    return true;
}

/* Newest language above 1.2 that the device lists: what later features are
 * probed with, and so what kernels that use them must be built with. NULL =
 * none: OpenCL 3.0 devices often stop at OpenCL C 1.2. */
static const char *newest_std(const folio_probe *p)
{
    cl_name_version list[32];
    size_t bytes = 0;
    int major = 0, minor = 0;
    char text[FOLIO_DEVICE_NAME_MAX] = "";
    if (p->found->cl_version >= 300 &&
        clGetDeviceInfo(p->found->id, CL_DEVICE_OPENCL_C_ALL_VERSIONS,
                        sizeof list, list, &bytes) == CL_SUCCESS) {
        for (size_t i = 0; i < bytes / sizeof *list; i++)
            major = FOLIO_MAX(major, (int)CL_VERSION_MAJOR(list[i].version));
    } else if (clGetDeviceInfo(p->found->id, CL_DEVICE_OPENCL_C_VERSION,
                               sizeof text - 1, text, NULL) == CL_SUCCESS &&
               sscanf(text, "OpenCL C %d.%d", &major, &minor) < 1) {
        major = 0;
    }
    return major >= 3 ? "-cl-std=CL3.0" : major == 2 ? "-cl-std=CL2.0" : NULL;
}

/* Whether five words an item (size, group, lane, two exchanges) agree with each
 * other: drivers have reported sizes that their kernels do not have. */
static bool groups_agree(const folio_probe *p, uint32_t n, bool khr,
                         uint32_t fixed)
{
    const uint32_t *r = p->results;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t size = r[5 * i], group = r[5 * i + 1], lane = r[5 * i + 2];
        uint32_t members = 0, sum = 0, first = UINT32_MAX, left = UINT32_MAX;
        uint32_t far = UINT32_MAX;
        for (uint32_t k = 0; k < n; k++) {
            if (r[5 * k + 1] != group)
                continue;
            members++;
            sum += k + 1;
            if (k != i && r[5 * k + 2] == lane)
                return false;
            if (r[5 * k + 2] == 0)
                first = k;
            if (r[5 * k + 2] == (lane ^ 1u))
                left = k;
            if (size != 0 && r[5 * k + 2] == (lane + 3) % size)
                far = k;
        }
        if (members != size || lane >= size || (fixed != 0 && size != fixed))
            return false;
        if (khr ? r[5 * i + 3] != sum || r[5 * i + 4] != first
                : r[5 * i + 3] != left || r[5 * i + 4] != far)
            return false;
    }
    return true;
}

static bool probe_subgroup_khr(folio_probe *p)
{
    static const uint32_t sizes[] = {1, 3, 33, 64};
    char options[80];
    const char *std = newest_std(p);
    if (!std)
        return false;
    snprintf(options, sizeof options, "%s -D PROBE_SUBGROUP_KHR=1", std);
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++) {
        uint32_t n = sizes[i];
        if (n > p->found->info.max_work_group)
            continue;
        if (folio_probe_do(p, &(folio_probe_run){.entry = "probe_subgroup",
                                                 .fragments = PROBE,
                                                 .options = options,
                                                 .groups = 1,
                                                 .items = n,
                                                 .n_out = 5 * n,
                                                 .level = FOLIO_LOG_DEBUG}) !=
                FOLIO_OK ||
            !groups_agree(p, n, true, 0))
            return false;
    }
    return true;
}

static bool probe_subgroup_intel(folio_probe *p)
{
    size_t sizes[16] = {0}, bytes = 0;
    uint32_t size = 0;
    char options[80];
    /* A size that is not on the device's list is a hard compile error. */
    if (clGetDeviceInfo(p->found->id, SUB_GROUP_SIZES_INTEL, sizeof sizes,
                        sizes, &bytes) != CL_SUCCESS)
        return false;
    for (size_t i = 0; i < bytes / sizeof *sizes; i++)
        if (sizes[i] == 16 || (size == 0 && sizes[i] >= 4 && sizes[i] <= 64))
            size = (uint32_t)sizes[i];
    if (size == 0 || 2 * size > p->found->info.max_work_group)
        return false;
    snprintf(options, sizeof options, "-D PROBE_SUBGROUP_INTEL=%u",
             (unsigned)size);
    return folio_probe_do(p, &(folio_probe_run){.entry = "probe_subgroup_intel",
                                                .fragments = PROBE,
                                                .options = options,
                                                .groups = 1,
                                                .items = 2 * size,
                                                .n_out = 10 * size,
                                                .level = FOLIO_LOG_DEBUG}) ==
               FOLIO_OK &&
           groups_agree(p, 2 * size, false, size);
}

bool folio_probe_dot4(folio_probe *p, const char *entry, const char *fragments,
                      const char *options)
{
    enum { N = 256 };
    for (uint32_t i = 0; i < 2 * N; i++)
        p->words[i] = folio_probe_word(i);
    if (folio_probe_do(p, &(folio_probe_run){.entry = entry,
                                             .fragments = fragments,
                                             .options = options,
                                             .items = N,
                                             .n_in = 2 * N,
                                             .n_out = N,
                                             .n = N,
                                             .level = FOLIO_LOG_DEBUG}) !=
        FOLIO_OK)
        return false;
    for (uint32_t i = 0; i < N; i++) {
        int32_t sum = (int32_t)i - 7;
        for (int byte = 0; byte < 32; byte += 8)
            sum += (int8_t)(uint8_t)(p->words[2 * i] >> byte) *
                   (int8_t)(uint8_t)(p->words[2 * i + 1] >> byte);
        if (p->results[i] != (uint32_t)sum)
            return false;
    }
    return true;
}

static bool probe_dot4_khr(folio_probe *p)
{
    char options[80];
    const char *std = newest_std(p);
    snprintf(options, sizeof options, "%s -D PROBE_DOT4=1",
             std ? std : "-cl-std=CL1.2");
    return folio_probe_dot4(p, "probe_dot4", PROBE, options);
}

/* One round with values of its own. The parts of the round before stay: a group
 * that does not see the new ones adds those up. */
static folio_status fence_round(folio_probe *p, const char *std, int how,
                                uint32_t items, int32_t round, bool *right)
{
    enum { GROUPS = 64 };
    char options[96];
    snprintf(options, sizeof options, "%s -D PROBE_FENCE=%d -D WG=%u", std, how,
             (unsigned)items);
    if (p->dev && !folio_device_is_dead(p->dev))
        FOLIO_RETURN_IF(folio_queue_fill(
            p->q, (folio_view){.buf = p->out, .offset = (size_t)items * 4}, 0,
            4));
    FOLIO_RETURN_IF(
        folio_probe_do(p, &(folio_probe_run){.entry = "probe_fence",
                                             .fragments = PROBE,
                                             .options = options,
                                             .groups = GROUPS,
                                             .items = items,
                                             .n_out = items,
                                             .n = round * 1000,
                                             .keep = true,
                                             .level = FOLIO_LOG_DEBUG}));
    uint32_t want = (uint32_t)round * 1000u * GROUPS * (GROUPS + 1) / 2;
    for (uint32_t l = 0; l < items; l++)
        if (p->results[l] != want + GROUPS * l)
            *right = false;
    return FOLIO_OK;
}

bool folio_probe_fence(folio_probe *p, const char *std, int how)
{
    uint32_t items = group_size(p, 64);
    folio_status st = FOLIO_OK;
    bool right = true;
    for (int32_t round = 1; right && round <= 16; round++) {
        do
            st = fence_round(p, std, how, items, round, &right);
        while (st == FOLIO_E_RANGE && (items /= 2) > 0);
        if (st != FOLIO_OK)
            return false;
    }
    return right;
}

/* ---- command buffers
 * ---------------------------------------------------------------- */

/* The extension's own types differ between header versions; these have the
 * shape that all of them share. */
typedef struct recording *recording_t;
typedef recording_t(CL_API_CALL *create_fn)(cl_uint, const cl_command_queue *,
                                            const void *, cl_int *);
typedef cl_int(CL_API_CALL *one_fn)(recording_t);
typedef cl_int(CL_API_CALL *launch_fn)(recording_t, cl_command_queue,
                                       const void *, cl_kernel, cl_uint,
                                       const size_t *, const size_t *,
                                       const size_t *, cl_uint, const cl_uint *,
                                       cl_uint *, void *);
typedef cl_int(CL_API_CALL *enqueue_fn)(cl_uint, cl_command_queue *,
                                        recording_t, cl_uint, const cl_event *,
                                        cl_event *);

typedef union entry_point {
    void *address;
    create_fn create;
    one_fn one;
    launch_fn launch;
    enqueue_fn enqueue;
} entry_point;

static entry_point find_entry(const folio_probe *p, const char *name)
{
    return (entry_point){.address = clGetExtensionFunctionAddressForPlatform(
                             p->found->platform, name)};
}

/* Records two launches with different arguments, plays them twice. */
static bool record_and_play(folio_probe *p, cl_kernel k)
{
    entry_point create = find_entry(p, "clCreateCommandBufferKHR");
    entry_point add = find_entry(p, "clCommandNDRangeKernelKHR");
    entry_point finalize = find_entry(p, "clFinalizeCommandBufferKHR");
    entry_point enqueue = find_entry(p, "clEnqueueCommandBufferKHR");
    entry_point release = find_entry(p, "clReleaseCommandBufferKHR");
    if (!create.address || !add.address || !finalize.address ||
        !enqueue.address || !release.address)
        return false;
    cl_command_queue q = p->q->queue;
    cl_int code = CL_SUCCESS;
    cl_uint point = 0;
    const size_t global = 16, local = 1;
    recording_t r = create.create(1, &q, NULL, &code);
    if (code != CL_SUCCESS || !r)
        return false;
    const char *step = "filled";
    for (cl_int n = 1; code == CL_SUCCESS && n <= 10; n += 9) {
        cl_uint before = point;
        code = clSetKernelArg(k, 4, sizeof n, &n);
        if (code == CL_SUCCESS)
            code = add.launch(r, NULL, NULL, k, 1, NULL, &global, &local, n > 1,
                              n > 1 ? &before : NULL, &point, NULL);
    }
    if (code == CL_SUCCESS) {
        step = "closed";
        code = finalize.one(r);
    }
    for (int i = 0; code == CL_SUCCESS && i < 2; i++) {
        step = "played";
        code = enqueue.enqueue(0, NULL, r, 0, NULL, NULL);
        if (code == CL_SUCCESS && folio_queue_finish(p->q) != FOLIO_OK)
            return false;
    }
    if (code != CL_SUCCESS)
        folio_logf(&p->settings.log, FOLIO_LOG_DEBUG,
                   "a command buffer cannot be %s: %s (%d)", step,
                   folio_cl_error_name(code), (int)code);
    if (release.one(r) != CL_SUCCESS)
        return false;
    return code == CL_SUCCESS;
}

static bool probe_command_buffer(folio_probe *p)
{
    folio_kernel *k = NULL;
    bool ok = false;
    const folio_probe_run run = {.entry = "probe_add",
                                 .fragments = PROBE,
                                 .options = "-D PROBE_ADD=1",
                                 .groups = 16,
                                 .items = 1,
                                 .n_out = 16,
                                 .n = 0,
                                 .level = FOLIO_LOG_DEBUG};
    const folio_kernel_spec spec = {
        .entry = run.entry, .fragments = run.fragments, .options = run.options};
    const folio_view in = {.buf = p->in}, out = {.buf = p->out};
    if (folio_probe_do(p, &run) != FOLIO_OK ||
        folio_kernel_open_at(p->dev, &spec, FOLIO_LOG_DEBUG, &k) != FOLIO_OK)
        goto done;
    /* Sets the arguments that stay. */
    const folio_grid grid = {.groups = {16, 1, 1}, .local = {1, 1, 1}};
    const folio_arg args[] = {folio_arg_view(in), folio_arg_view(out),
                              folio_arg_i32(0)};
    if (folio_queue_fill(p->q, out, 0, 64) != FOLIO_OK ||
        folio_launch(p->q, k, &grid, args, 3) != FOLIO_OK ||
        folio_queue_finish(p->q) != FOLIO_OK ||
        !record_and_play(p, k->kernel) ||
        folio_queue_read(p->q, out, p->results, 64) != FOLIO_OK)
        goto done;
    ok = true;
    for (int i = 0; i < 16; i++)
        ok = ok && p->results[i] == 2 * (1 + 10);
    /* PoCL 3.1 records the kernel and reads its arguments only when played:
     * 40 instead of 22. */
    if (!ok)
        folio_logf(&p->settings.log, FOLIO_LOG_DEBUG,
                   "command buffers give %u instead of 22",
                   (unsigned)p->results[0]);
done:
    folio_kernel_close(&k);
    return ok;
}

/* ---- addresses -------------------------------------------------------------
 */

/* A kernel that gets two addresses and no buffer, three times: other work on
 * the buffers in between does not move them. */
static bool probe_address(folio_probe *p)
{
    enum { N = 256 };
    folio_kernel *k = NULL;
    uint64_t at[2] = {0, 0};
    bool ok = true;
    const folio_probe_run run = {.entry = "probe_address",
                                 .fragments = PROBE,
                                 .options = "-D PROBE_ADDRESS=1",
                                 .groups = 1,
                                 .items = 1,
                                 .n_out = 4,
                                 .level = FOLIO_LOG_DEBUG};
    const folio_kernel_spec spec = {.entry = "probe_by_address",
                                    .fragments = PROBE,
                                    .options = run.options};
    if (folio_probe_do(p, &run) != FOLIO_OK ||
        folio_kernel_open_at(p->dev, &spec, FOLIO_LOG_DEBUG, &k) != FOLIO_OK)
        return false;
    memcpy(at, p->results, sizeof at);
    const folio_view in = {.buf = p->in}, out = {.buf = p->out};
    const folio_grid grid = {.groups = {N, 1, 1}, .local = {1, 1, 1}};
    const folio_arg args[] = {folio_arg_u64(at[0]), folio_arg_u64(at[1]),
                              folio_arg_i32(N)};
    for (uint32_t turn = 0; ok && turn < 3; turn++) {
        for (uint32_t i = 0; i < N; i++)
            p->words[i] = folio_probe_word(i + turn);
        ok = at[0] != 0 && at[1] != 0 &&
             folio_queue_write(p->q, in, p->words, N * 4) == FOLIO_OK &&
             folio_queue_fill(p->q, out, 0xa5, sizeof p->results) == FOLIO_OK &&
             folio_launch(p->q, k, &grid, args, 3) == FOLIO_OK &&
             folio_queue_read(p->q, out, p->results, N * 4) == FOLIO_OK &&
             folio_queue_finish(p->q) == FOLIO_OK;
        for (uint32_t i = 0; ok && i < N; i++)
            ok = p->results[i] == p->words[i] * 3u + i;
    }
    folio_kernel_close(&k);
    return ok;
}

/* ---- the verdict
 * ----------------------------------------------------------------------- */

/* What extensions say is only a reason to try. */
static uint64_t probe_all(folio_probe *p)
{
    uint64_t caps = 0;
    cl_device_id id = p->found->id;
    if (!p->dev->local_is_global)
        caps |= FOLIO_CAP_LOCAL; /* the canary has used its barriers */
    if (probe_fma(p))
        caps |= FOLIO_CAP_FMA;
    uint64_t ptx = folio_caps_ptx(p);
    caps |= ptx;
    /* NVIDIA computes with halves and does not say so. */
    if ((folio_device_has_extension(id, "cl_khr_fp16") ||
         (ptx & FOLIO_CAP_PTX)) &&
        probe_half_arith(p))
        caps |= FOLIO_CAP_HALF_ARITH;
    /* Part of the language since 2.1, then without the extension's name. */
    cl_uint sub_groups = 0;
    if (p->found->cl_version >= 210 &&
        clGetDeviceInfo(id, CL_DEVICE_MAX_NUM_SUB_GROUPS, sizeof sub_groups,
                        &sub_groups, NULL) != CL_SUCCESS)
        sub_groups = 0;
    if ((folio_device_has_extension(id, "cl_khr_subgroups") ||
         sub_groups > 0) &&
        probe_subgroup_khr(p))
        caps |= FOLIO_CAP_SUBGROUP_KHR;
    if (folio_device_has_extension(id, "cl_intel_subgroups") &&
        folio_device_has_extension(id, "cl_intel_required_subgroup_size") &&
        probe_subgroup_intel(p))
        caps |= FOLIO_CAP_SUBGROUP_INTEL;
    if (folio_device_has_extension(id, "cl_khr_integer_dot_product") &&
        probe_dot4_khr(p))
        caps |= FOLIO_CAP_DOT4_KHR;
    const char *std = newest_std(p);
    if (!(caps & FOLIO_CAP_FENCE_DEVICE) && std && folio_probe_fence(p, std, 2))
        caps |= FOLIO_CAP_FENCE_DEVICE;
    /* Elsewhere a wrong guess may cost the process. */
    if (((ptx & FOLIO_CAP_PTX) || p->found->info.kind == FOLIO_DEVICE_CPU) &&
        probe_address(p))
        caps |= FOLIO_CAP_ADDRESS;
    if (folio_device_has_extension(id, "cl_khr_command_buffer") &&
        probe_command_buffer(p))
        caps |= FOLIO_CAP_COMMAND_BUFFER;
    return caps;
}

/* The probes' own troubles interest only maintainers. */
static void as_debug(void *user, folio_log_level level, const char *message)
{
    (void)level;
    folio_logf(user, FOLIO_LOG_DEBUG, "probe: %s", message);
}

static void log_caps(const folio_device *dev, uint64_t caps)
{
    char text[400] = "";
    size_t at = 0;
    for (int bit = 0; folio_cap_name(bit); bit++)
        if ((caps >> bit & 1) && at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, " %s",
                                   folio_cap_name(bit));
    folio_logf(&dev->log, FOLIO_LOG_DEBUG, "capabilities of %s:%s",
               dev->info.name, text);
}

folio_status folio_caps_find(folio_device *dev, const folio_found *found,
                             uint64_t *caps)
{
    struct {
        uint32_t revision, reserved;
        uint64_t caps;
    } verdict = {.revision = 0};
    folio_status st = FOLIO_OK;
    uint64_t kind = 0;
    folio_probe *p = NULL;

    if (found->info.kind == FOLIO_DEVICE_CPU)
        kind = FOLIO_CAP_CPU;
    else if (found->info.kind == FOLIO_DEVICE_GPU_DISCRETE ||
             found->info.kind == FOLIO_DEVICE_GPU_INTEGRATED)
        kind = FOLIO_CAP_GPU;
    if (folio_device_cache_get(dev, "caps", &verdict, sizeof verdict) ==
            FOLIO_OK &&
        verdict.revision == PROBES_REVISION)
        goto known;

    p = folio_calloc(1, sizeof *p);
    if (!p)
        return folio_fail(&dev->log, FOLIO_E_NOMEM, "no memory for probes");
    p->found = found;
    p->settings = (folio_device_settings){
        .cache_dir = dev->cache.dir ? dev->cache.dir : "",
        .wait_ms = 120000,
        .log = dev->log};
    FOLIO_TRY(probe_open(p));
    FOLIO_TRY(check_reduction(p));
    FOLIO_TRY(check_half_storage(p));
    p->settings.log = (folio_log){
        .fn = as_debug, .user = &dev->log, .max_level = FOLIO_LOG_DEBUG};
    p->dev->log = p->settings.log;
    verdict.revision = PROBES_REVISION;
    verdict.caps = probe_all(p);
    /* The same folder: one warning is enough. */
    if (p->dev && atomic_load(&p->dev->cache.warned))
        atomic_store(&dev->cache.warned, true);
    /* What could not be tried today may be there tomorrow. */
    if (!p->dev || !atomic_load(&p->dev->starved))
        folio_device_cache_put(dev, "caps", &verdict, sizeof verdict);
known:
    verdict.caps |= kind;
    log_caps(dev, verdict.caps);
    *caps = verdict.caps;
fail:
    if (p)
        probe_close(p);
    free(p);
    return st;
}
