/* An OpenCL device through PoCL: buffers, launches, remembered arguments,
 * limits, deadlines, a caller's own objects, build errors. */
#define _GNU_SOURCE
#include "unit/device_util.h"
#include "unit/fault_device.h"
#include "device/native.h"
#include "base/half.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static folio_status add(setup *s, folio_buf *buf, size_t offset, int32_t n)
{
    const folio_grid g = {.groups = {2, 1, 1}, .local = {8, 1, 1}};
    const folio_arg args[] = {
        folio_arg_view((folio_view){.buf = buf, .offset = offset}),
        folio_arg_i32(n)};
    return folio_launch(s->q, s->add, &g, args, 2);
}

static int32_t first(setup *s, folio_buf *buf, size_t offset)
{
    int32_t v = -1;
    cr_assert_eq(folio_queue_read(
                     s->q, (folio_view){.buf = buf, .offset = offset}, &v, 4),
                 FOLIO_OK);
    return v;
}

Test(device_cl, describes_itself)
{
    setup s;
    device_setup_open(&s);
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(s.dev, &info);
    cr_expect_eq(info.kind, FOLIO_DEVICE_CPU);
    cr_expect_str_eq(info.platform, "Portable Computing Language");
    cr_expect(info.caps & FOLIO_CAP_CPU);
    cr_expect(!(info.caps & (FOLIO_CAP_GPU | FOLIO_CAP_PTX)));
    cr_expect(strncmp(info.version, "OpenCL ", 7) == 0 &&
                  strstr(info.version, "OpenCL C"),
              "%s", info.version);
    cr_expect(*info.driver && *info.vendor);
    cr_expect_gt(info.max_alloc_bytes, 0);
    cr_expect_leq(info.max_alloc_bytes, info.global_bytes);
    cr_expect(info.base_align >= 4 && info.base_align <= 4096);
    cr_expect_eq(s.log.count[FOLIO_LOG_INFO], 1, "%s", s.log.text);
    cr_expect(strstr(s.log.text, info.name) && strstr(s.log.text, info.driver));
    cr_expect(!folio_device_is_host(s.dev));
    cr_expect_null(folio_device_threads(s.dev));
    cr_expect_null(folio_buf_host(s.a));
    cr_expect_not_null(folio_native_mem(s.a));
    device_setup_close(&s);
}

Test(device_cl, memory)
{
    setup s;
    uint8_t in[4096], out[4096];
    device_setup_open(&s);
    cr_expect_eq(folio_queue_read(s.q, (folio_view){.buf = s.a}, out, 4096),
                 FOLIO_OK);
    for (int i = 0; i < 4096; i++)
        cr_assert_eq(out[i], 0, "byte %d of a new buffer", i);
    for (int i = 0; i < 4096; i++)
        in[i] = (uint8_t)(i * 31 + 7);
    const folio_view a = {.buf = s.a}, b = {.buf = s.b};
    cr_expect_eq(folio_queue_write(s.q, a, in, 4096), FOLIO_OK);
    memset(in + 4000, 0, 96); /* may be reused at once */
    cr_expect_eq(folio_queue_copy(s.q, folio_view_at(a, 5),
                                  folio_view_at(b, 1001), 3000),
                 FOLIO_OK);
    cr_expect_eq(folio_queue_fill(s.q, folio_view_at(b, 1), 0x77, 13),
                 FOLIO_OK);
    cr_expect_eq(folio_queue_fill(s.q, folio_view_at(b, 512), 0x11, 64),
                 FOLIO_OK);
    cr_expect_eq(folio_queue_read(s.q, b, out, 4096), FOLIO_OK);
    for (int i = 0; i < 4096; i++) {
        int want = i >= 1001 && i < 4001 ? (uint8_t)((i - 996) * 31 + 7)
                   : i >= 1 && i < 14    ? 0x77
                   : i >= 512 && i < 576 ? 0x11
                                         : 0;
        cr_assert_eq(out[i], want, "byte %d", i);
    }
    cr_expect_eq(folio_queue_write(s.q, folio_view_at(a, 4000), in, 97),
                 FOLIO_E_RANGE);
    cr_expect_eq(folio_queue_read(s.q, folio_view_at(a, 4097), out, 0),
                 FOLIO_E_RANGE);
    cr_expect_eq(folio_queue_copy(s.q, a, folio_view_at(b, 4095), 2),
                 FOLIO_E_RANGE);
    cr_expect_eq(folio_queue_fill(s.q, folio_view_at(b, SIZE_MAX), 0, 2),
                 FOLIO_E_RANGE);
    cr_expect_eq(folio_queue_copy(s.q, a, folio_view_at(a, 1), 2),
                 FOLIO_E_INVAL);
    device_setup_close(&s);
}

/* More than one piece of staging memory, and more pieces than there are. */
Test(device_cl, large_copies)
{
    setup s;
    const size_t n = 50u << 20;
    folio_buf *big = NULL;
    device_setup_open(&s);
    uint32_t *in = malloc(n), *out = malloc(n);
    cr_assert(in && out);
    for (size_t i = 0; i < n / 4; i++)
        in[i] = (uint32_t)(i * 2654435761u);
    cr_assert_eq(folio_buf_open(s.dev, n, &big), FOLIO_OK);
    cr_expect_eq(folio_queue_write(s.q, (folio_view){.buf = big}, in, n),
                 FOLIO_OK);
    cr_expect_eq(folio_queue_read(s.q, (folio_view){.buf = big}, out, n),
                 FOLIO_OK);
    cr_expect(memcmp(in, out, n) == 0);
    cr_expect_eq(folio_queue_get_counters(s.q).writes, 1);
    /* Closed with a write on its way. */
    cr_expect_eq(folio_queue_write(s.q, (folio_view){.buf = big}, in, n),
                 FOLIO_OK);
    folio_buf_close(&big);
    free(in);
    free(out);
    device_setup_close(&s);
}

Test(device_cl, launches_and_remembers_arguments)
{
    setup s;
    device_setup_open(&s);
    cr_assert_eq(add(&s, s.a, 0, 3), FOLIO_OK);
    uint64_t set = folio_queue_get_counters(s.q).args_set;
    cr_expect_eq(set, 3);
    for (int i = 0; i < 9; i++)
        cr_assert_eq(add(&s, s.a, 0, 3), FOLIO_OK);
    cr_expect_eq(folio_queue_get_counters(s.q).args_set, set,
                 "a repeated launch set arguments");
    cr_expect_eq(add(&s, s.a, 64, 3), FOLIO_OK);
    cr_expect_eq(folio_queue_get_counters(s.q).args_set, set + 1);
    cr_expect_eq(add(&s, s.b, 64, 3), FOLIO_OK);
    cr_expect_eq(folio_queue_get_counters(s.q).args_set, set + 2);
    cr_expect_eq(add(&s, s.b, 64, 4), FOLIO_OK);
    cr_expect_eq(folio_queue_get_counters(s.q).args_set, set + 3);
    cr_expect_eq(first(&s, s.a, 0), 30);
    cr_expect_eq(first(&s, s.a, 64), 3);
    cr_expect_eq(first(&s, s.b, 64), 7);
    folio_queue_counters n = folio_queue_get_counters(s.q);
    cr_expect_eq(n.launches, 13);
    cr_expect_eq(n.reads, 3);
    cr_expect_eq(n.waits, 3);
    device_setup_close(&s);
}

/* A new buffer often gets the handle of the one just closed: its argument must
 * be set all the same. */
Test(device_cl, new_buffer_with_an_old_handle)
{
    setup s;
    device_setup_open(&s);
    for (int i = 0; i < 50; i++) {
        folio_buf *t = NULL;
        uint64_t before = folio_queue_get_counters(s.q).args_set;
        cr_assert_eq(folio_buf_open(s.dev, 256, &t), FOLIO_OK);
        cr_assert_eq(add(&s, t, 0, 5), FOLIO_OK);
        cr_assert_geq(folio_queue_get_counters(s.q).args_set, before + 1);
        cr_assert_eq(first(&s, t, 0), 5);
        folio_buf_close(&t);
    }
    device_setup_close(&s);
}

Test(device_cl, many_launches_stay_bounded)
{
    setup s;
    device_setup_open(&s);
    for (int i = 0; i < 5000; i++)
        cr_assert_eq(add(&s, s.a, 0, 1), FOLIO_OK);
    cr_expect_eq(first(&s, s.a, 0), 5000);
    cr_expect_eq(folio_queue_finish(s.q), FOLIO_OK);
    device_setup_close(&s);
}

Test(device_cl, absent_view)
{
    static const char source[] =
        "__kernel void k(__global int *a, const ulong ao, __global int *b,\n"
        "                const ulong bo)\n"
        "{ b[0] = a ? 1 : 2; b[1] = (int)ao; }\n";
    setup s;
    folio_kernel *k = NULL;
    int32_t out[2];
    device_setup_open(&s);
    cr_assert_eq(open_text(s.dev, source, "k", "", &k), FOLIO_OK, "%s",
                 s.log.text);
    const folio_grid g = {.groups = {1, 1, 1}, .local = {1, 1, 1}};
    const folio_view b = {.buf = s.b};
    /* The offset of an absent view means nothing. */
    const folio_view absent = {.buf = NULL, .offset = 99};
    for (int round = 0; round < 3; round++) {
        bool there = round == 1;
        const folio_arg args[] = {
            folio_arg_view(there ? (folio_view){.buf = s.a, .offset = 8}
                                 : absent),
            folio_arg_view(b)};
        cr_assert_eq(folio_launch(s.q, k, &g, args, 2), FOLIO_OK);
        cr_assert_eq(folio_queue_read(s.q, b, out, 8), FOLIO_OK);
        cr_expect_eq(out[0], there ? 1 : 2, "round %d", round);
        cr_expect_eq(out[1], there ? 8 : 0, "round %d", round);
    }
    folio_kernel_close(&k);
    device_setup_close(&s);
}

Test(device_cl, wrong_launches)
{
    static const char source[] =
        "__kernel __attribute__((reqd_work_group_size(8, 2, 1)))\n"
        "void k(__local int *t, __global int *o, const ulong oo)\n"
        "{ t[get_local_id(0)] = 1; o[0] = t[get_local_id(0)]; }\n";
    setup s;
    folio_kernel *k = NULL;
    folio_device *other = NULL;
    folio_buf *far = NULL;
    device_setup_open(&s);
    folio_device_params p = pocl_params("", &s.log);
    cr_assert_eq(folio_device_open(&p, &other), FOLIO_OK);
    cr_assert_eq(folio_buf_open(other, 64, &far), FOLIO_OK);
    cr_assert_eq(open_text(s.dev, source, "k", "", &k), FOLIO_OK, "%s",
                 s.log.text);
    const folio_view a = {.buf = s.a};
    const folio_arg good[] = {folio_arg_view(a), folio_arg_i32(1)};
    const folio_grid one = {.groups = {1, 1, 1}, .local = {1, 1, 1}};
    folio_grid g = one;

    cr_expect_eq(folio_launch(s.q, s.add, &one, good, 1), FOLIO_E_INVAL);
    cr_expect_eq(folio_launch(s.q, s.add, &one, good, -1), FOLIO_E_INVAL);
    cr_expect_eq(folio_launch(s.q, s.add, &one, good, 41), FOLIO_E_INVAL);
    cr_expect_eq(folio_launch(s.q, s.add, &one, NULL, 2), FOLIO_E_INVAL);
    g.local[0] = 0;
    cr_expect_eq(folio_launch(s.q, s.add, &g, good, 2), FOLIO_E_INVAL);
    g.local[0] = (size_t)s.dev->info.max_work_group + 1;
    cr_expect_eq(folio_launch(s.q, s.add, &g, good, 2), FOLIO_E_INVAL);
    g.local[0] = SIZE_MAX;
    cr_expect_eq(folio_launch(s.q, s.add, &g, good, 2), FOLIO_E_INVAL);
    g = (folio_grid){.groups = {SIZE_MAX, 1, 1}, .local = {2, 1, 1}};
    cr_expect_eq(folio_launch(s.q, s.add, &g, good, 2), FOLIO_E_INVAL);
    const folio_arg from_far[] = {folio_arg_view((folio_view){.buf = far}),
                                  folio_arg_i32(1)};
    cr_expect_eq(folio_launch(s.q, s.add, &one, from_far, 2), FOLIO_E_INVAL);
    const folio_arg beyond[] = {folio_arg_view(folio_view_at(a, 4097)),
                                folio_arg_i32(1)};
    cr_expect_eq(folio_launch(s.q, s.add, &one, beyond, 2), FOLIO_E_RANGE);
    /* A size that the kernel's argument does not have. */
    const folio_arg wide[] = {folio_arg_view(a), folio_arg_u64(1)};
    cr_expect_eq(folio_launch(s.q, s.add, &one, wide, 2), FOLIO_E_INVAL);

    folio_arg local[] = {folio_arg_local(64), folio_arg_view(a)};
    g = (folio_grid){.groups = {1, 1, 1}, .local = {8, 2, 1}};
    cr_expect_eq(folio_launch(s.q, k, &g, local, 2), FOLIO_OK);
    g.local[1] = 1;
    cr_expect_eq(folio_launch(s.q, k, &g, local, 2), FOLIO_E_INVAL);
    g.local[1] = 2;
    local[0] = folio_arg_local((size_t)s.dev->info.local_bytes + 1);
    cr_expect_eq(folio_launch(s.q, k, &g, local, 2), FOLIO_E_INVAL);
    local[0] = folio_arg_local(0);
    cr_expect_eq(folio_launch(s.q, k, &g, local, 2), FOLIO_E_INVAL);

    /* Nothing to do is no error, and nothing is done. */
    uint64_t launches = folio_queue_get_counters(s.q).launches;
    for (int d = 0; d < 3; d++) {
        g = one;
        g.groups[d] = 0;
        cr_expect_eq(folio_launch(s.q, s.add, &g, good, 2), FOLIO_OK);
    }
    cr_expect_eq(folio_queue_get_counters(s.q).launches, launches);
    /* The queue has survived all of it. */
    cr_expect_eq(add(&s, s.b, 0, 4), FOLIO_OK);
    cr_expect_eq(first(&s, s.b, 0), 4);
    folio_buf_close(&far);
    folio_device_close(&other);
    folio_kernel_close(&k);
    device_setup_close(&s);
}

Test(device_cl, three_dimensions)
{
    static const char source[] =
        "__kernel void k(__global int *o, const ulong oo)\n"
        "{ o[(get_global_id(2) * 3 + get_global_id(1)) * 4 +\n"
        "    get_global_id(0)] = (int)(get_group_id(2) * 100 +\n"
        "    get_group_id(1) * 10 + get_local_id(0)); }\n";
    setup s;
    folio_kernel *k = NULL;
    int32_t out[24];
    device_setup_open(&s);
    cr_assert_eq(open_text(s.dev, source, "k", "", &k), FOLIO_OK);
    const folio_arg args[] = {folio_arg_view((folio_view){.buf = s.a})};
    const folio_grid g = {.groups = {2, 3, 2}, .local = {2, 1, 1}};
    cr_assert_eq(folio_launch(s.q, k, &g, args, 1), FOLIO_OK);
    cr_assert_eq(
        folio_queue_read(s.q, (folio_view){.buf = s.a}, out, sizeof out),
        FOLIO_OK);
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 3; y++)
            for (int x = 0; x < 4; x++)
                cr_expect_eq(out[(z * 3 + y) * 4 + x],
                             z * 100 + y * 10 + x % 2);
    folio_kernel_close(&k);
    device_setup_close(&s);
}

Test(device_cl, limits_of_kernels)
{
    static const char source[] =
        "__kernel void k(__global int *o, const ulong oo)\n"
        "{ __local int t[100]; int l = get_local_id(0);\n"
        "  t[l] = l; barrier(CLK_LOCAL_MEM_FENCE); o[l] = t[l ^ 1]; }\n";
    setup s;
    folio_kernel *k = NULL;
    folio_kernel_limits limits;
    device_setup_open(&s);
    cr_assert_eq(open_text(s.dev, source, "k", "", &k), FOLIO_OK);
    folio_kernel_get_limits(k, &limits);
    cr_expect(limits.max_work_group >= 1 &&
              limits.max_work_group <= s.dev->info.max_work_group);
    cr_expect_geq(limits.preferred_multiple, 1);
    cr_expect_geq(limits.local_bytes, 400);
    folio_kernel_close(&k);
    device_setup_close(&s);
}

/* Kernel "k" of this source with work-groups of 64, where the driver names 16
 * as its limit: what the device has, as far as it allows. */
static uint32_t limit_told_16(setup *s, const char *source)
{
    folio_kernel *k = NULL;
    folio_kernel_limits limits;
    int32_t out[64] = {0};
    fault_tell_group(16);
    cr_assert_eq(open_text(s->dev, source, "k", "", &k), FOLIO_OK);
    fault_tell_group(0);
    folio_kernel_get_limits(k, &limits);
    const folio_arg args[] = {folio_arg_view((folio_view){.buf = s->a})};
    const folio_grid g = {.groups = {1, 1, 1}, .local = {64, 1, 1}};
    cr_expect_eq(folio_launch(s->q, k, &g, args, 1),
                 limits.max_work_group < 64 ? FOLIO_E_INVAL : FOLIO_OK);
    cr_assert_eq(
        folio_queue_read(s->q, (folio_view){.buf = s->a}, out, sizeof out),
        FOLIO_OK);
    cr_expect_eq(out[63], limits.max_work_group < 64 ? 0 : 63);
    folio_kernel_close(&k);
    return limits.max_work_group;
}

Test(device_cl, required_work_groups_are_believed_of_nvidia)
{
    static const char any[] =
        "__kernel void k(__global int *o, const ulong oo)\n"
        "{ o[get_local_id(0)] = get_local_id(0); }\n";
    static const char must[] =
        "__kernel __attribute__((reqd_work_group_size(64, 1, 1)))\n"
        "void k(__global int *o, const ulong oo)\n"
        "{ o[get_local_id(0)] = get_local_id(0); }\n";
    setup s;
    device_setup_open(&s);
    cr_expect_eq(limit_told_16(&s, must), 16);
    s.dev->caps |= FOLIO_CAP_PTX; /* as NVIDIA's */
    cr_expect_eq(limit_told_16(&s, any), 16);
    cr_expect_eq(limit_told_16(&s, must), 64);
    device_setup_close(&s);
}

Test(device_cl, fake_limit_and_memory)
{
    kept_log log;
    char folder[256];
    folio_device *dev = open_pocl("", &log), *small = NULL;
    folio_buf *b = NULL;
    uint64_t global = dev->info.global_bytes;
    make_folder(folder);
    folio_device_params p = pocl_params(folder, &log);
    p.max_alloc_bytes = 1000;
    cr_assert_eq(folio_device_open(&p, &small), FOLIO_OK);
    cr_expect_eq(folio_device_max_alloc(small), 1000);
    cr_expect_eq(folio_buf_open(small, 1001, &b), FOLIO_E_TOO_LARGE);
    cr_expect_null(b);
    cr_expect(strstr(log.text, "device pthread") || strstr(log.text, "MiB per"),
              "%s", log.text);
    /* 1000 is not a multiple of the rounding, which must not lift it above. */
    cr_expect_eq(folio_buf_open(small, 999, &b), FOLIO_OK);
    size_t bytes = 0;
    cr_expect_eq(clGetMemObjectInfo(folio_native_mem(b), CL_MEM_SIZE,
                                    sizeof bytes, &bytes, NULL),
                 CL_SUCCESS);
    cr_expect_eq(bytes, 1000);
    folio_buf_close(&b);
    folio_device_close(&small);
    /* What the device does not have is refused before the driver is asked,
     * whatever it allows per buffer. */
    dev->info.max_alloc_bytes = UINT64_MAX;
    cr_expect_eq(folio_buf_open(dev, (size_t)global + 1, &b), FOLIO_E_NOMEM);
    cr_expect_eq(folio_buf_open(dev, SIZE_MAX, &b), FOLIO_E_NOMEM);
    cr_expect_null(b);
    cr_expect_eq(atomic_load(&dev->live_bytes), 0);
    folio_device_close(&dev);
    remove_folder(folder);
}

Test(device_cl, build_errors)
{
    setup s;
    folio_kernel *k = NULL;
    device_setup_open(&s);
    int warnings = s.log.count[FOLIO_LOG_WARN];
    cr_expect_eq(open_text(s.dev, "__kernel void k(int x) { undeclared = x; }",
                           "k", "", &k),
                 FOLIO_E_BUILD);
    cr_expect_eq(s.log.count[FOLIO_LOG_WARN], warnings + 1);
    cr_expect(strstr(s.log.text, "kernel k (a test's text) does not build for "
                                 "device") &&
                  strstr(s.log.text, "undeclared"),
              "%s", s.log.text);
    cr_expect_eq(open_text(s.dev, add_source, "other", "", &k), FOLIO_E_BUILD);
    cr_expect(strstr(s.log.text, "CL_INVALID_KERNEL_NAME"), "%s", s.log.text);
    const char *options[] = {"-I/tmp",
                             "-cl-fast-relaxed-math",
                             "-w",
                             "-cl-finite-math-only",
                             "-D",
                             "x",
                             "-cl-unsafe-math-optimizations"};
    for (size_t i = 0; i < FOLIO_COUNT(options); i++)
        cr_expect_eq(
            folio_kernel_open(s.dev,
                              &(folio_kernel_spec){.entry = "probe_add",
                                                   .fragments = "common.clh "
                                                                "probe.cl",
                                                   .options = options[i]},
                              &k),
            FOLIO_E_INVAL, "%s", options[i]);
    cr_expect_eq(folio_kernel_open(
                     s.dev,
                     &(folio_kernel_spec){.entry = "x", .fragments = "no.cl"},
                     &k),
                 FOLIO_E_INVAL);
    cr_expect_null(k);
    cr_expect_eq(folio_kernel_open(
                     s.dev,
                     &(folio_kernel_spec){.entry = "probe_add",
                                          .fragments = " common.clh  probe.cl",
                                          .options = "-D PROBE_ADD=1 -cl-mad-"
                                                     "enable -DX -D Y=2"},
                     &k),
                 FOLIO_OK, "%s", s.log.text);
    folio_kernel_close(&k);
    device_setup_close(&s);
}

Test(device_cl, text_carries_names_and_lines)
{
    char *text = folio_kernel_source("common.clh probe.cl");
    cr_assert(text);
    cr_expect(strncmp(text, "#line 1 \"common.clh\"\n", 21) == 0);
    cr_expect(strstr(text, "\n#line 1 \"probe.cl\"\n"));
    free(text);
    text = folio_kernel_source("");
    cr_expect_str_eq(text, "");
    free(text);
    cr_expect_null(folio_kernel_source("common.clh nothing.cl"));
}

Test(device_cl, kernels_share_programs)
{
    setup s;
    folio_kernel *more[5] = {NULL};
    device_setup_open(&s);
    unsigned builds = atomic_load(&s.dev->builds);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(open_text(s.dev, add_source, "add", "", &more[i]),
                     FOLIO_OK);
    cr_expect_eq(atomic_load(&s.dev->builds), builds);
    folio_kernel *other = NULL;
    cr_assert_eq(open_text(s.dev, add_source, "add", "-D X=1", &other),
                 FOLIO_OK);
    cr_expect_eq(atomic_load(&s.dev->builds), builds + 1);
    /* Arguments are each kernel's own. */
    const folio_grid g = {.groups = {1, 1, 1}, .local = {1, 1, 1}};
    for (int i = 0; i < 5; i++) {
        const folio_arg args[] = {
            folio_arg_view((folio_view){.buf = s.a, .offset = 4u * (size_t)i}),
            folio_arg_i32(i + 1)};
        cr_assert_eq(folio_launch(s.q, more[i], &g, args, 2), FOLIO_OK);
    }
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(first(&s, s.a, 4u * (size_t)i), i + 1);
        folio_kernel_close(&more[i]);
    }
    folio_kernel_close(&other);
    device_setup_close(&s);
}

/* The call that makes a queue follows the device's version: a device of 1.2
 * gets that version's call. */
Test(device_cl, queue_on_a_1_2_device)
{
    setup s;
    folio_queue *q = NULL;
    device_setup_open(&s);
    cr_expect(!folio_queue_uses_properties(120));
    cr_expect(folio_queue_uses_properties(200));
    cr_expect(folio_queue_uses_properties(300));
    s.dev->cl_version = 120;
    cr_assert_eq(folio_queue_open(s.dev, &q), FOLIO_OK);
    uint32_t v = 5, out = 0;
    cr_expect_eq(folio_queue_write(q, (folio_view){.buf = s.a}, &v, 4),
                 FOLIO_OK);
    cr_expect_eq(folio_queue_read(q, (folio_view){.buf = s.a}, &out, 4),
                 FOLIO_OK);
    cr_expect_eq(out, 5);
    folio_queue_close(&q);
    device_setup_close(&s);
}

typedef struct worker {
    pthread_t thread;
    folio_device *devs[2];
    int number, bad;
} worker;

/* Kernels, buffers and queues of its own, on both devices in turn. */
static void *work(void *user)
{
    worker *w = user;
    for (int round = 0; round < 6 && !w->bad; round++) {
        folio_device *dev = w->devs[(round + w->number) % 2];
        folio_kernel *k = NULL;
        folio_queue *q = NULL;
        folio_buf *b = NULL;
        int32_t out = 0;
        char options[32];
        snprintf(options, sizeof options, "-D ROUND=%d", round);
        const folio_grid g = {.groups = {1, 1, 1}, .local = {4, 1, 1}};
        if (open_text(dev, add_source, "add", options, &k) != FOLIO_OK ||
            folio_queue_open(dev, &q) != FOLIO_OK ||
            folio_buf_open(dev, 64, &b) != FOLIO_OK)
            w->bad = 1;
        for (int i = 0; i < 20 && !w->bad; i++) {
            const folio_arg args[] = {folio_arg_view((folio_view){.buf = b}),
                                      folio_arg_i32(w->number + 1)};
            w->bad = folio_launch(q, k, &g, args, 2) != FOLIO_OK;
        }
        if (!w->bad &&
            (folio_queue_read(q, (folio_view){.buf = b}, &out, 4) != FOLIO_OK ||
             out != 20 * (w->number + 1)))
            w->bad = 2;
        folio_buf_close(&b);
        folio_queue_close(&q);
        folio_kernel_close(&k);
    }
    return NULL;
}

Test(device_cl, eight_threads_on_two_devices)
{
    enum { THREADS = 8 };
    setup s;
    worker w[THREADS];
    folio_device *other = NULL;
    device_setup_open(&s);
    folio_device_params p = pocl_params("", &s.log);
    cr_assert_eq(folio_device_open(&p, &other), FOLIO_OK);
    /* Called from many threads, which the log that is kept does not bear. */
    s.dev->log = other->log = (folio_log){0};
    unsigned builds = atomic_load(&s.dev->builds);
    for (int i = 0; i < THREADS; i++) {
        w[i] = (worker){.devs = {s.dev, other}, .number = i};
        cr_assert_eq(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(w[i].thread, NULL);
        cr_expect_eq(w[i].bad, 0, "thread %d: %d", i, w[i].bad);
    }
    /* Each text once per device, whoever came first. */
    cr_expect_eq(atomic_load(&s.dev->builds) - builds, 6);
    folio_device_close(&other);
    device_setup_close(&s);
}

/* ---- failures --------------------------------------------------------------
 */

static void launch_slow(setup *s, folio_kernel *k, int32_t steps)
{
    const folio_grid g = {.groups = {1, 1, 1}, .local = {1, 1, 1}};
    const folio_arg args[] = {folio_arg_view((folio_view){.buf = s->a}),
                              folio_arg_i32(steps)};
    cr_assert_eq(folio_launch(s->q, k, &g, args, 2), FOLIO_OK);
}

static void expect_dead(setup *s)
{
    int32_t v = 7;
    const folio_view a = {.buf = s->a}, b = {.buf = s->b};
    int errors = s->log.count[FOLIO_LOG_ERROR];
    folio_queue_counters n = folio_queue_get_counters(s->q);
    cr_expect_eq(folio_queue_finish(s->q), FOLIO_E_DEVICE);
    cr_expect_eq(folio_queue_read(s->q, a, &v, 4), FOLIO_E_DEVICE);
    cr_expect_eq(v, 7);
    cr_expect_eq(folio_queue_write(s->q, a, &v, 4), FOLIO_E_DEVICE);
    cr_expect_eq(folio_queue_copy(s->q, a, b, 4), FOLIO_E_DEVICE);
    cr_expect_eq(folio_queue_fill(s->q, a, 1, 4), FOLIO_E_DEVICE);
    cr_expect_eq(add(s, s->a, 0, 1), FOLIO_E_DEVICE);
    cr_expect_eq(folio_native_begin(s->q), FOLIO_E_DEVICE);
    folio_queue_counters m = folio_queue_get_counters(s->q);
    cr_expect(memcmp(&n, &m, sizeof n) == 0, "a dead queue counted");
    /* Told once, when it happened. */
    cr_expect_eq(s->log.count[FOLIO_LOG_ERROR], errors);
    folio_buf *t = NULL;
    folio_queue *q = NULL;
    folio_kernel *k = NULL;
    cr_expect_eq(folio_buf_open(s->dev, 64, &t), FOLIO_E_DEVICE);
    cr_expect_eq(folio_queue_open(s->dev, &q), FOLIO_E_DEVICE);
    cr_expect_eq(open_text(s->dev, add_source, "add", "", &k), FOLIO_E_DEVICE);
}

Test(device_cl, deadline)
{
    setup s;
    folio_kernel *k = NULL;
    int32_t v = 7;
    device_setup_open(&s);
    cr_assert_eq(open_text(s.dev, slow_source, "slow", "", &k), FOLIO_OK);
    launch_slow(&s, k, 10); /* compiled and warm */
    cr_assert_eq(folio_queue_finish(s.q), FOLIO_OK);
    s.dev->wait_ms = 100;
    launch_slow(&s, k, 1000000000); /* over a second, and then it ends */
    uint64_t start = folio_clock_ns();
    cr_expect_eq(folio_queue_read(s.q, (folio_view){.buf = s.a}, &v, 4),
                 FOLIO_E_DEVICE);
    uint64_t ms = (folio_clock_ns() - start) / 1000000u;
    cr_expect(ms >= 100 && ms < 1000, "gave up after %d ms", (int)ms);
    cr_expect_eq(v, 7);
    cr_expect(strstr(s.log.text, "does not answer"), "%s", s.log.text);
    expect_dead(&s);
    cl_command_queue left_alone = folio_native_queue(s.q);
    /* Its memory stays with the driver, which may still write to it; known
     * here, so that a leak checker sees where it is. */
    static uint8_t *left[FOLIO_N_STAGES];
    for (int i = 0; i < FOLIO_N_STAGES; i++)
        left[i] = s.q->stages[i].event ? s.q->stages[i].data : NULL;
    cr_expect_not_null(left[0]);
    folio_kernel_close(&k);
    device_setup_close(&s);
    /* Nothing was released: the driver's queue is there still. */
    cr_expect_eq(clFinish(left_alone), CL_SUCCESS);
    for (int i = 0; i < FOLIO_N_STAGES; i++)
        free(left[i]);
}

Test(device_cl, no_deadline)
{
    setup s;
    folio_kernel *k = NULL;
    device_setup_open(&s);
    s.dev->wait_ms = 0;
    cr_assert_eq(open_text(s.dev, slow_source, "slow", "", &k), FOLIO_OK);
    launch_slow(&s, k, 100000000);
    cr_expect_eq(folio_queue_finish(s.q), FOLIO_OK);
    folio_kernel_close(&k);
    device_setup_close(&s);
}

Test(device_cl, fatal_codes)
{
    setup s;
    device_setup_open(&s);
    cr_expect_eq(folio_native_result(s.q, CL_SUCCESS, "x"), FOLIO_OK);
    cr_expect_eq(folio_native_result(s.q, CL_OUT_OF_RESOURCES, "x"),
                 FOLIO_E_NOMEM);
    cr_expect_eq(folio_native_result(s.q, CL_INVALID_VALUE, "x"),
                 FOLIO_E_DEVICE);
    cr_expect_eq(add(&s, s.a, 0, 1), FOLIO_OK);
    /* PoCL does not bear an end of the process while it compiles. */
    cr_expect_eq(first(&s, s.a, 0), 1);
    cr_expect_eq(folio_native_result(s.q, -9999, "a kernel"), FOLIO_E_DEVICE);
    cr_expect(strstr(s.log.text, "a kernel failed: illegal read or write"),
              "%s", s.log.text);
    expect_dead(&s);
    device_setup_close(&s);
}

Test(device_cl, codes)
{
    const struct {
        int code;
        folio_status st;
    } cases[] = {
        {0, FOLIO_OK},
        {-4, FOLIO_E_NOMEM},
        {-5, FOLIO_E_NOMEM},
        {-6, FOLIO_E_NOMEM},
        {-61, FOLIO_E_NOMEM},
        {-11, FOLIO_E_BUILD},
        {-46, FOLIO_E_BUILD},
        {-54, FOLIO_E_INVAL},
        {-36, FOLIO_E_DEVICE},
        {-9999, FOLIO_E_DEVICE},
        {-12345, FOLIO_E_DEVICE},
    };
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++)
        cr_expect_eq(folio_cl_status(cases[i].code), cases[i].st, "%d",
                     cases[i].code);
    cr_expect_str_eq(folio_cl_error_name(-5), "CL_OUT_OF_RESOURCES");
    cr_expect_str_eq(folio_cl_error_name(-12345), "CL error");
}
