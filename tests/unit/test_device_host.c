/* The host device: memory, queues, ranges, settings, reference counts, memory
 * that is short. Makes no OpenCL call (tests/cli proves that with strace). */
#define _GNU_SOURCE
#include "unit/device_util.h"
#include "unit/fail_alloc.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static folio_device_params host_params(kept_log *k)
{
    folio_device_params p;
    folio_device_params_default(&p);
    p.select = "host";
    p.n_threads = 2;
    p.log = keep_log(k);
    return p;
}

static folio_device *open_host(kept_log *k)
{
    folio_device *dev = NULL;
    folio_device_params p = host_params(k);
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK, "%s", k->text);
    return dev;
}

Test(device_host, describes_itself)
{
    kept_log k;
    folio_device *dev = open_host(&k);
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    cr_expect_eq(info.index, -1);
    cr_expect_eq(info.kind, FOLIO_DEVICE_HOST);
    cr_expect_str_eq(info.name, "host");
    cr_expect_eq(info.compute_units, 2);
    cr_expect_gt(info.global_bytes, 1 << 20);
    cr_expect_eq(info.max_alloc_bytes, info.global_bytes);
    cr_expect_eq(info.caps, 0);
    cr_expect(folio_device_is_host(dev));
    cr_expect_eq(folio_thread_pool_size(folio_device_threads(dev)), 2);
    cr_expect_eq(k.count[FOLIO_LOG_INFO], 1, "%s", k.text);
    cr_expect_eq(k.count[FOLIO_LOG_WARN] + k.count[FOLIO_LOG_ERROR], 0);
    folio_device_close(&dev);
    cr_expect_null(dev);
}

/* A caller of an older version has a shorter struct. */
Test(device_host, info_writes_no_more_than_asked)
{
    kept_log k;
    folio_device *dev = open_host(&k);
    union {
        folio_device_info info;
        uint8_t bytes[sizeof(folio_device_info)];
    } u;
    memset(&u, 0xee, sizeof u);
    u.info.size = offsetof(folio_device_info, vendor);
    folio_device_get_info(dev, &u.info);
    cr_expect_eq(u.info.size, offsetof(folio_device_info, vendor));
    cr_expect_str_eq(u.info.name, "host");
    for (size_t i = offsetof(folio_device_info, vendor); i < sizeof u; i++)
        cr_assert_eq(u.bytes[i], 0xee, "byte %zu written", i);
    folio_device_close(&dev);
}

Test(device_host, memory_is_zeroed_and_moves)
{
    kept_log k;
    folio_device *dev = open_host(&k);
    folio_queue *q = NULL;
    folio_buf *a = NULL, *b = NULL;
    uint8_t out[1000], in[1000];
    cr_assert_eq(folio_queue_open(dev, &q), FOLIO_OK);
    cr_assert_eq(folio_buf_open(dev, 1000, &a), FOLIO_OK);
    cr_assert_eq(folio_buf_open(dev, 500, &b), FOLIO_OK);
    cr_expect_eq(folio_buf_bytes(a), 1000);
    cr_expect_eq((uintptr_t)folio_buf_host(a) % 64, 0);
    memset(out, 1, sizeof out);
    cr_expect_eq(folio_queue_read(q, (folio_view){.buf = a}, out, 1000),
                 FOLIO_OK);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(out[i], 0);
    for (int i = 0; i < 1000; i++)
        in[i] = (uint8_t)(i * 7);
    cr_expect_eq(folio_queue_write(q, (folio_view){.buf = a}, in, 1000),
                 FOLIO_OK);
    cr_expect_eq(folio_queue_copy(q, (folio_view){.buf = a, .offset = 600},
                                  (folio_view){.buf = b, .offset = 100}, 400),
                 FOLIO_OK);
    cr_expect_eq(
        folio_queue_fill(q, (folio_view){.buf = b, .offset = 3}, 0x5a, 10),
        FOLIO_OK);
    cr_expect_eq(folio_queue_read(q, (folio_view){.buf = b}, out, 500),
                 FOLIO_OK);
    for (int i = 0; i < 500; i++)
        cr_assert_eq(out[i], i >= 100           ? in[i + 500]
                             : i >= 3 && i < 13 ? 0x5a
                                                : 0);
    folio_queue_counters n = folio_queue_get_counters(q);
    cr_expect_eq(n.writes, 1);
    cr_expect_eq(n.reads, 2);
    cr_expect_eq(n.copies, 2);
    cr_expect_eq(n.waits, 2);
    folio_queue_count_launch(q);
    cr_expect_eq(folio_queue_get_counters(q).launches, 1);
    cr_expect_eq(folio_queue_finish(q), FOLIO_OK);
    /* Closed in an order that leaves the device last to its users. */
    folio_device_close(&dev);
    folio_buf_close(&a);
    folio_queue_close(&q);
    folio_buf_close(&b);
    folio_buf_close(&b);
    folio_buf_close(NULL);
}

Test(device_host, ranges)
{
    kept_log k;
    folio_device *dev = open_host(&k), *other = NULL;
    folio_device_params p = host_params(&k);
    folio_queue *q = NULL;
    folio_buf *a = NULL, *b = NULL, *far = NULL;
    uint8_t bytes[200] = {9};
    cr_assert_eq(folio_device_open(&p, &other), FOLIO_OK);
    cr_assert_eq(folio_queue_open(dev, &q), FOLIO_OK);
    cr_assert_eq(folio_buf_open(dev, 100, &a), FOLIO_OK);
    cr_assert_eq(folio_buf_open(dev, 100, &b), FOLIO_OK);
    cr_assert_eq(folio_buf_open(other, 100, &far), FOLIO_OK);
    const struct {
        size_t offset, bytes;
        folio_status want;
    } cases[] = {
        {0, 100, FOLIO_OK},
        {0, 101, FOLIO_E_RANGE},
        {100, 0, FOLIO_OK},
        {100, 1, FOLIO_E_RANGE},
        {101, 0, FOLIO_E_RANGE},
        {99, 1, FOLIO_OK},
        {SIZE_MAX, 1, FOLIO_E_RANGE},
        {1, SIZE_MAX, FOLIO_E_RANGE},
        {SIZE_MAX, SIZE_MAX, FOLIO_E_RANGE},
    };
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++) {
        folio_view v = {.buf = a, .offset = cases[i].offset};
        folio_view w = {.buf = b};
        size_t n = cases[i].bytes;
        cr_expect_eq(folio_queue_write(q, v, bytes, n), cases[i].want,
                     "write %zu", i);
        cr_expect_eq(folio_queue_read(q, v, bytes, n), cases[i].want,
                     "read %zu", i);
        cr_expect_eq(folio_queue_fill(q, v, 1, n), cases[i].want, "fill %zu",
                     i);
        cr_expect_eq(folio_queue_copy(q, v, w, n), cases[i].want,
                     "copy from %zu", i);
        cr_expect_eq(folio_queue_copy(q, w, v, n), cases[i].want, "copy to %zu",
                     i);
    }
    const folio_view none = {0}, at_far = {.buf = far}, at_a = {.buf = a};
    cr_expect_eq(folio_queue_write(q, none, bytes, 1), FOLIO_E_INVAL);
    cr_expect_eq(folio_queue_read(q, at_far, bytes, 1), FOLIO_E_INVAL);
    cr_expect_eq(folio_queue_copy(q, at_a, at_far, 1), FOLIO_E_INVAL);
    cr_expect_eq(folio_queue_write(q, at_a, NULL, 1), FOLIO_E_INVAL);
    cr_expect_eq(folio_queue_read(q, at_a, NULL, 1), FOLIO_E_INVAL);
    /* Overlapping places of one buffer: refused as OpenCL refuses them. */
    cr_expect_eq(folio_queue_copy(q, at_a, folio_view_at(at_a, 10), 11),
                 FOLIO_E_INVAL);
    cr_expect_eq(folio_queue_copy(q, folio_view_at(at_a, 10), at_a, 11),
                 FOLIO_E_INVAL);
    cr_expect_eq(folio_queue_copy(q, at_a, folio_view_at(at_a, 10), 10),
                 FOLIO_OK);
    folio_buf_close(&a);
    folio_buf_close(&b);
    folio_buf_close(&far);
    folio_queue_close(&q);
    folio_device_close(&dev);
    folio_device_close(&other);
}

Test(device_host, sizes_of_buffers)
{
    kept_log k;
    folio_device *dev = NULL;
    folio_buf *b = NULL;
    folio_device_params p = host_params(&k);
    p.max_alloc_bytes = 1 << 20;
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK);
    cr_expect_eq(folio_device_max_alloc(dev), 1 << 20);
    cr_expect_eq(folio_buf_open(dev, 0, &b), FOLIO_E_INVAL);
    cr_expect_eq(folio_buf_open(dev, (1 << 20) + 1, &b), FOLIO_E_TOO_LARGE);
    cr_expect(strstr(k.text, "needs 1.0 MiB, device host allows 1.0 MiB"), "%s",
              k.text);
    cr_expect_eq(folio_buf_open(dev, SIZE_MAX, &b), FOLIO_E_TOO_LARGE);
    cr_expect_null(b);
    cr_expect_eq(folio_buf_open(dev, 1 << 20, &b), FOLIO_OK);
    cr_expect_eq(atomic_load(&dev->live_bytes), 1 << 20);
    folio_buf_close(&b);
    cr_expect_eq(atomic_load(&dev->live_bytes), 0);
    folio_device_close(&dev);
}

Test(device_host, borrows_memory)
{
    kept_log k;
    folio_device *dev = open_host(&k);
    folio_buf *b = NULL;
    uint8_t mine[10] = {1, 2, 3};
    cr_expect_eq(folio_buf_wrap_host(dev, NULL, 10, &b), FOLIO_E_INVAL);
    cr_expect_eq(folio_buf_wrap_host(dev, mine, 0, &b), FOLIO_E_INVAL);
    cr_expect_eq(folio_buf_wrap(dev, NULL, &b), FOLIO_E_INVAL);
    cr_assert_eq(folio_buf_wrap_host(dev, mine, 10, &b), FOLIO_OK);
    cr_expect_eq(folio_view_host((folio_view){.buf = b, .offset = 2}),
                 mine + 2);
    cr_expect_null(folio_view_host((folio_view){0}));
    cr_expect_eq(atomic_load(&dev->live_bytes), 0);
    folio_buf_close(&b);
    cr_expect_eq(mine[1], 2);
    folio_queue *q = NULL;
    cr_expect_eq(folio_queue_wrap(dev, NULL, &q), FOLIO_E_INVAL);
    folio_kernel *kernel = NULL;
    cr_expect_eq(
        folio_kernel_open(
            dev, &(folio_kernel_spec){.entry = "x", .fragments = "common.clh"},
            &kernel),
        FOLIO_E_INVAL);
    folio_device_close(&dev);
}

Test(device_host, arguments_of_open)
{
    kept_log k;
    folio_device *dev = NULL;
    folio_device_params p = host_params(&k);
    setenv("FOLIO_DEVICE", "host", 1);
    cr_expect_eq(folio_device_open(NULL, &dev), FOLIO_OK); /* the defaults */
    folio_device_close(&dev);
    cr_expect_eq(folio_device_open(&p, NULL), FOLIO_E_INVAL);
    const size_t sizes[] = {8, 0, sizeof p + 8};
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++) {
        p = host_params(&k);
        p.size = sizes[i];
        cr_expect_eq(folio_device_open(&p, &dev), FOLIO_E_INVAL);
        /* 8: the log lies outside of what the caller says is there. */
        cr_expect_eq(k.count[FOLIO_LOG_ERROR], i > 0, "%s", k.text);
        cr_expect_eq(strstr(k.text, "folio_device_params.size is ") != NULL,
                     i > 0, "%s", k.text);
    }
    p = host_params(&k);
    p.n_threads = -1;
    cr_expect_eq(folio_device_open(&p, &dev), FOLIO_E_INVAL);
    p.n_threads = 1025;
    cr_expect_eq(folio_device_open(&p, &dev), FOLIO_E_INVAL);
    p = host_params(&k);
    p.wait_ms = -1;
    cr_expect_eq(folio_device_open(&p, &dev), FOLIO_E_INVAL);
    cr_expect_null(dev);
    folio_device_close(&dev);
    folio_device_close(NULL);
}

/* Getters take NULL; other calls refuse it and say what is NULL. */
Test(device_host, null_handles)
{
    kept_log k;
    folio_device *dev = open_host(&k);
    folio_device_info info;
    folio_queue *q = NULL;
    memset(&info, 0xee, sizeof info);
    info.size = sizeof info;
    folio_device_get_info(NULL, &info);
    folio_device_info want = {.size = sizeof info};
    cr_expect_eq(memcmp(&info, &want, sizeof info), 0);
    folio_device_get_info(dev, NULL);
    cr_expect_null(folio_device_retain(NULL));
    cr_expect_eq(folio_buf_bytes(NULL), 0);
    cr_expect_eq(folio_queue_open(NULL, &q), FOLIO_E_INVAL);
    cr_expect_eq(folio_queue_finish(NULL), FOLIO_E_INVAL);
    folio_queue_close(NULL);
    folio_queue_close(&q);
    folio_buf_close(NULL);
    folio_device_close(NULL);
    const struct {
        folio_status st;
        const char *text;
    } calls[] = {
        {folio_queue_open(dev, NULL), "folio_queue_open: q is NULL"},
        {folio_queue_wrap(dev, NULL, NULL), "folio_queue_wrap: q is NULL"},
        {folio_buf_open(dev, 4, NULL), "folio_buf_open: buf is NULL"},
        {folio_buf_wrap(dev, NULL, NULL), "folio_buf_wrap: buf is NULL"},
        {folio_buf_wrap_host(dev, &k, 4, NULL),
         "folio_buf_wrap_host: buf is NULL"},
    };
    for (size_t i = 0; i < FOLIO_COUNT(calls); i++) {
        cr_expect_eq(calls[i].st, FOLIO_E_INVAL);
        cr_expect(strstr(k.text, calls[i].text), "%s", calls[i].text);
    }
    folio_device_close(&dev);
}

Test(device_host, small_sizes_are_told_in_bytes)
{
    kept_log k;
    folio_device *dev = NULL;
    folio_buf *buf = NULL;
    folio_device_params p = host_params(&k);
    p.max_alloc_bytes = 1000;
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK, "%s", k.text);
    cr_expect_eq(folio_buf_open(dev, 3 << 20, &buf), FOLIO_E_TOO_LARGE);
    cr_expect(strstr(k.text, "a buffer needs 3.0 MiB, device host allows 1000 "
                             "bytes per buffer"),
              "%s", k.text);
    folio_device_close(&dev);
}

Test(device_host, environment)
{
    kept_log k;
    folio_device *dev = NULL;
    folio_device_params p = host_params(&k);
    p.select = NULL;
    setenv("FOLIO_DEVICE", "HOST", 1);
    setenv("FOLIO_MAX_ALLOC", "4096", 1);
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK, "%s", k.text);
    cr_expect(folio_device_is_host(dev));
    cr_expect_eq(folio_device_max_alloc(dev), 4096);
    folio_device_close(&dev);
    p.max_alloc_bytes = 8192; /* the caller's word goes first */
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK);
    cr_expect_eq(folio_device_max_alloc(dev), 8192);
    folio_device_close(&dev);
    p.max_alloc_bytes = 0;
    const char *bad[] = {"0", "-1", "1k", "x", "99999999999999999999999"};
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++) {
        setenv("FOLIO_MAX_ALLOC", bad[i], 1);
        cr_expect_eq(folio_device_open(&p, &dev), FOLIO_E_INVAL, "%s", bad[i]);
    }
    unsetenv("FOLIO_MAX_ALLOC");
    setenv("FOLIO_CAPS_MASK", "fma,nonsense", 1);
    cr_expect_eq(folio_device_open(&p, &dev), FOLIO_E_INVAL);
    cr_expect(strstr(k.text, "FOLIO_CAPS_MASK=fma,nonsense"), "%s", k.text);
    const char *good[] = {"0x4000", "16384", "fma", "fma,ptx,", ""};
    for (size_t i = 0; i < FOLIO_COUNT(good); i++) {
        setenv("FOLIO_CAPS_MASK", good[i], 1);
        cr_expect_eq(folio_device_open(&p, &dev), FOLIO_OK, "%s", good[i]);
        folio_device_close(&dev);
    }
}

/* What only OpenCL devices and kernels look at later is held to its form on the
 * host device, too. */
Test(device_host, switches_in_a_wrong_form)
{
    static const struct {
        const char *name, *value;
        bool good;
    } at[] = {
        {"FOLIO_PACKING", "raw", true},
        {"FOLIO_PACKING", "rg16", true},
        {"FOLIO_PACKING", "tile16", true},
        {"FOLIO_PACKING", "", true},
        {"FOLIO_PACKING", "tile", false},
        {"FOLIO_ADDRESSES", "0", true},
        {"FOLIO_ADDRESSES", "1", true},
        {"FOLIO_ADDRESSES", "yes", false},
        {"FOLIO_ADDRESSES", "01", false},
        {"FOLIO_TUNE", "linear_gemv:LANES=512", true},
        {"FOLIO_TUNE", "linear_gemv:LANES=512,KC=1;many:FROM=2;", true},
        {"FOLIO_TUNE", "a:B=2147483647", true},
        {"FOLIO_TUNE", "a:B=2147483648", false},
        {"FOLIO_TUNE", "a:B=0", false},
        {"FOLIO_TUNE", "a:B=-1", false},
        {"FOLIO_TUNE", "a:B=1x", false},
        {"FOLIO_TUNE", "a:B=", false},
        {"FOLIO_TUNE", "a:B", false},
        {"FOLIO_TUNE", "a:", false},
        {"FOLIO_TUNE", "a", false},
        {"FOLIO_TUNE", ":B=1", false},
        {"FOLIO_TUNE", "a:=1", false},
        {"FOLIO_TUNE", "a:B=1,", false},
        {"FOLIO_TUNE", "a:B=1,;b:C=1", false},
        {"FOLIO_TUNE", "a:B=1;;b:C=1", false},
        {"FOLIO_TUNE", "a:B=1 b:C=1", false},
        {"FOLIO_TUNE", ";", false},
    };
    for (size_t i = 0; i < FOLIO_COUNT(at); i++) {
        kept_log k;
        folio_device *dev = NULL;
        folio_device_params p = host_params(&k);
        char said[128];
        setenv(at[i].name, at[i].value, 1);
        cr_expect_eq(folio_device_open(&p, &dev),
                     at[i].good ? FOLIO_OK : FOLIO_E_INVAL, "%s=%s", at[i].name,
                     at[i].value);
        snprintf(said, sizeof said, "%s=%s is not", at[i].name, at[i].value);
        cr_expect(at[i].good || strstr(k.text, said), "%s", k.text);
        folio_device_close(&dev);
        unsetenv(at[i].name);
    }
}

Test(device_host, names_of_capabilities)
{
    cr_expect_str_eq(folio_cap_name(0), "cpu");
    cr_expect_str_eq(folio_cap_name(7), "ptx");
    cr_expect_str_eq(folio_cap_name(14), "fma");
    cr_expect_str_eq(folio_cap_name(15), "ptx_bulk");
    cr_expect_str_eq(folio_cap_name(16), "address");
    cr_expect_null(folio_cap_name(17));
    cr_expect_null(folio_cap_name(-1));
    cr_expect_eq(FOLIO_CAP_FMA, 1 << 14);
}

Test(device_host, disabled_variants)
{
    unsetenv("FOLIO_DISABLE");
    cr_expect(!folio_variant_disabled("attn_split"));
    setenv("FOLIO_DISABLE", "linear_tile,attn_split", 1);
    cr_expect(folio_variant_disabled("attn_split"));
    cr_expect(folio_variant_disabled("linear_tile"));
    cr_expect(!folio_variant_disabled("attn"));
    cr_expect(!folio_variant_disabled("attn_split2"));
    cr_expect(!folio_variant_disabled(""));
}

Test(device_host, blobs)
{
    kept_log k;
    char folder[256];
    uint32_t v = 7;
    folio_device *dev = NULL;
    make_folder(folder);
    folio_device_params p = host_params(&k);
    p.cache_dir = folder;
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK);
    cr_expect_eq(folio_device_cache_get(dev, "x", &v, 4), FOLIO_E_NOT_FOUND);
    folio_device_cache_put(dev, "x", &v, 4);
    v = 0;
    cr_expect_eq(folio_device_cache_get(dev, "x", &v, 4), FOLIO_OK);
    cr_expect_eq(v, 7);
    cr_expect_eq(folio_device_cache_get(dev, "y", &v, 4), FOLIO_E_NOT_FOUND);
    cr_expect_eq(folio_device_cache_get(dev, "x", &v, 3), FOLIO_E_NOT_FOUND);
    folio_device_close(&dev);
    remove_folder(folder);
}

/* The n-th allocation fails, for each n: an error or a success, no leak. */
Test(device_host, every_allocation_may_fail)
{
    kept_log k;
    folio_device_params p = host_params(&k);
    p.cache_dir = "";
    for (int nth = 1, ok = 0; !ok; nth++) {
        folio_device *dev = NULL;
        folio_queue *q = NULL;
        folio_buf *b = NULL;
        cr_assert_lt(nth, 100);
        fail_alloc_arm(nth);
        folio_status st = folio_device_open(&p, &dev);
        if (st == FOLIO_OK)
            st = folio_queue_open(dev, &q);
        if (st == FOLIO_OK)
            st = folio_buf_open(dev, 100, &b);
        ok = !fail_alloc_disarm();
        cr_expect_eq(st, ok ? FOLIO_OK : FOLIO_E_NOMEM, "allocation %d", nth);
        folio_buf_close(&b);
        folio_queue_close(&q);
        folio_device_close(&dev);
    }
}
