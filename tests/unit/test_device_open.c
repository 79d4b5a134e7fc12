/* Opening by choice where OpenCL is there or not: wrong choices, automatic
 * choice without a GPU, no driver at all, masks of capabilities. */
#define _GNU_SOURCE
#include "unit/device_util.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static kept_log klog;

static folio_status open_as(const char *select, folio_device **dev)
{
    folio_device_params p;
    folio_device_params_default(&p);
    p.select = select;
    p.n_threads = 1;
    p.cache_dir = "";
    p.log = keep_log(&klog);
    return folio_device_open(&p, dev);
}

Test(device_open, wrong_choices_show_the_table)
{
    const char *wrong[] = {"99", "-1", "abc", "", "99999999999999999999"};
    folio_device *dev = open_pocl("", &klog);
    char name[FOLIO_DEVICE_NAME_MAX];
    strcpy(name, dev->info.name);
    folio_device_close(&dev);
    for (size_t i = 0; i < FOLIO_COUNT(wrong); i++) {
        cr_expect_eq(open_as(wrong[i], &dev), FOLIO_E_NO_DEVICE, "\"%s\"",
                     wrong[i]);
        cr_expect_null(dev);
        cr_expect_eq(klog.count[FOLIO_LOG_ERROR], 1, "%s", klog.text);
        cr_expect(strstr(klog.text, name) && strstr(klog.text, "host (C"), "%s",
                  klog.text);
    }
    setenv("FOLIO_DEVICE", "nothing like it", 1);
    cr_expect_eq(open_as(NULL, &dev), FOLIO_E_NO_DEVICE);
    cr_expect(strstr(klog.text, "asked for by FOLIO_DEVICE"), "%s", klog.text);
    cr_expect_eq(open_as("host", &dev), FOLIO_OK, "the caller's word is first");
    folio_device_close(&dev);
}

Test(device_open, by_index_and_name)
{
    folio_device *dev = open_pocl("", &klog);
    char index[16], name[FOLIO_DEVICE_NAME_MAX];
    snprintf(index, sizeof index, "%d", (int)dev->info.index);
    strcpy(name, dev->info.name);
    folio_device_close(&dev);
    const char *choices[] = {index, name, "Portable Computing"};
    for (size_t i = 0; i < FOLIO_COUNT(choices); i++) {
        cr_expect_eq(open_as(choices[i], &dev), FOLIO_OK, "%s", klog.text);
        cr_expect_str_eq(dev->info.name, name);
        folio_device_close(&dev);
    }
}

/* Where there is no GPU, a CPU driver is named and not used. */
Test(device_open, automatic_without_gpu)
{
    folio_device *dev = open_pocl("", &klog);
    folio_device_close(&dev);
    folio_device_info list[32];
    size_t n = 0;
    cr_assert_eq(folio_device_list(NULL, list, FOLIO_COUNT(list), &n),
                 FOLIO_OK);
    for (size_t i = 0; i < n && i < FOLIO_COUNT(list); i++) {
        cr_expect_eq(list[i].index, (int32_t)i);
        cr_expect_eq(list[i].caps, 0);
        if (list[i].kind == FOLIO_DEVICE_GPU_DISCRETE ||
            list[i].kind == FOLIO_DEVICE_GPU_INTEGRATED)
            cr_skip_test("this machine has a GPU");
    }
    unsetenv("FOLIO_DEVICE");
    const char *choices[] = {NULL, "auto"};
    for (size_t i = 0; i < 2; i++) {
        cr_assert_eq(open_as(choices[i], &dev), FOLIO_OK);
        cr_expect(folio_device_is_host(dev));
        cr_expect_eq(klog.count[FOLIO_LOG_INFO], 1, "%s", klog.text);
        cr_expect_eq(klog.count[FOLIO_LOG_WARN] + klog.count[FOLIO_LOG_ERROR],
                     0, "%s", klog.text);
        cr_expect(strstr(klog.text, "OpenCL offers no GPU, only") &&
                      strstr(klog.text, "--device"),
                  "%s", klog.text);
        folio_device_close(&dev);
    }
}

/* PoCL dressed up as GPUs: a discrete one that does not work, an integrated one
 * that does. Fills both tables with two entries. */
static void dress_up(folio_found found[2], folio_device_info table[2])
{
    folio_found *all = NULL;
    size_t n = 0, pocl = 0;
    cr_assert_eq(folio_discover(NULL, &all, &n), FOLIO_OK);
    while (pocl < n &&
           strcmp(all[pocl].info.platform, "Portable Computing Language") != 0)
        pocl++;
    cr_assert_lt(pocl, n);
    for (int i = 0; i < 2; i++) {
        found[i] = all[pocl];
        found[i].info.index = i;
        found[i].info.kind =
            i == 0 ? FOLIO_DEVICE_GPU_INTEGRATED : FOLIO_DEVICE_GPU_DISCRETE;
        strcpy(found[i].info.name, i == 0 ? "the small one" : "the big one");
        table[i] = found[i].info;
    }
    free(all);
}

Test(device_open, automatic_with_gpus)
{
    folio_found found[2];
    folio_device_info table[2];
    folio_device *dev = open_pocl("", &klog);
    folio_device_close(&dev);
    dress_up(found, table);
    folio_device_settings s = {.cache_dir = "",
                               .wait_ms = 60000,
                               .n_threads = 1,
                               .log = keep_log(&klog)};
    cr_assert_eq(folio_device_open_auto(found, table, 2, &s, &dev), FOLIO_OK);
    cr_expect_str_eq(dev->info.name, "the big one");
    cr_expect(folio_device_caps(dev) & FOLIO_CAP_GPU);
    cr_expect_eq(klog.count[FOLIO_LOG_INFO], 1, "%s", klog.text);
    cr_expect_eq(klog.count[FOLIO_LOG_WARN] + klog.count[FOLIO_LOG_ERROR], 0);
    folio_device_close(&dev);

    /* The best one fails: the next one, and one line about it. */
    found[1].usable = false;
    s.log = keep_log(&klog);
    cr_assert_eq(folio_device_open_auto(found, table, 2, &s, &dev), FOLIO_OK);
    cr_expect_str_eq(dev->info.name, "the small one");
    cr_expect_eq(klog.count[FOLIO_LOG_WARN], 1, "%s", klog.text);
    cr_expect_eq(klog.count[FOLIO_LOG_ERROR], 0, "%s", klog.text);
    cr_expect(strstr(klog.text, "the big one") &&
                  strstr(klog.text, "trying the small one"),
              "%s", klog.text);
    /* Later messages come out as they are. */
    folio_buf *b = NULL;
    cr_expect_eq(folio_buf_open(dev, 0, &b), FOLIO_E_INVAL);
    cr_expect_eq(klog.count[FOLIO_LOG_ERROR], 1, "%s", klog.text);
    folio_device_close(&dev);

    /* A context that cannot be had is a failure of the same kind. */
    found[1].usable = true;
    found[1].platform = NULL;
    found[1].id = NULL;
    found[0].usable = false;
    s.log = keep_log(&klog);
    cr_assert_eq(folio_device_open_auto(found, table, 2, &s, &dev), FOLIO_OK);
    cr_expect(folio_device_is_host(dev));
    cr_expect_eq(klog.count[FOLIO_LOG_WARN], 2, "%s", klog.text);
    cr_expect_eq(klog.count[FOLIO_LOG_ERROR], 0, "%s", klog.text);
    cr_expect(strstr(klog.text, "computing on the host"), "%s", klog.text);
    folio_device_close(&dev);
}

/* A loader without any driver is a normal machine. */
static void without_drivers(const char *vendors, const char *says)
{
    folio_device *dev = NULL;
    folio_device_info list[2];
    size_t n = 9;
    setenv("OCL_ICD_VENDORS", vendors, 1);
    cr_expect_eq(folio_device_list(NULL, NULL, 0, &n), FOLIO_OK);
    cr_assert_eq(n, 0);
    cr_expect_eq(folio_device_list(NULL, list, 2, &n), FOLIO_OK);
    cr_assert_eq(open_as("auto", &dev), FOLIO_OK);
    cr_expect(folio_device_is_host(dev));
    cr_expect_eq(klog.count[FOLIO_LOG_WARN] + klog.count[FOLIO_LOG_ERROR], 0,
                 "%s", klog.text);
    cr_expect(strstr(klog.text, says) && strstr(klog.text, vendors), "%s",
              klog.text);
    cr_expect(strstr(klog.text, "install"), "%s", klog.text);
    folio_device_close(&dev);
    const char *named[] = {"0", "pocl", ""};
    for (size_t i = 0; i < FOLIO_COUNT(named); i++) {
        cr_expect_eq(open_as(named[i], &dev), FOLIO_E_NO_DEVICE);
        cr_expect(strstr(klog.text, vendors), "%s", klog.text);
    }
    cr_expect_eq(open_as("host", &dev), FOLIO_OK);
    folio_device_close(&dev);
}

Test(device_open, no_vendor_folder)
{
    without_drivers("/nonexistent", "cannot be read");
}

Test(device_open, empty_vendor_folder)
{
    char folder[256];
    make_folder(folder);
    without_drivers(folder, "holds no .icd file");
    remove_folder(folder);
}

Test(device_open, entry_without_library)
{
    char folder[256], path[600], why[800];
    make_folder(folder);
    snprintf(path, sizeof path, "%s/lost.icd", folder);
    FILE *f = fopen(path, "w");
    cr_assert(f);
    fputs("/nonexistent/libnothing.so\n", f);
    fclose(f);
    setenv("OCL_ICD_VENDORS", folder, 1);
    folio_discover_why_none(why, sizeof why);
    cr_expect(strstr(why, "names 1 driver") && strstr(why, folder), "%s", why);
    folio_device *dev = NULL;
    cr_expect_eq(open_as("auto", &dev), FOLIO_OK);
    cr_expect(strstr(klog.text, "names 1 driver"), "%s", klog.text);
    folio_device_close(&dev);
    remove_folder(folder);
}

Test(device_open, capabilities_can_be_lowered)
{
    char folder[256];
    kept_log k;
    make_folder(folder);
    folio_device *dev = open_pocl(folder, &k);
    uint64_t all = folio_device_caps(dev);
    folio_device_close(&dev);
    cr_assert(all & FOLIO_CAP_FMA, "%s", k.text);
    folio_device_params p = pocl_params(folder, &k);
    p.caps_off = FOLIO_CAP_FMA;
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK);
    cr_expect_eq(folio_device_caps(dev), all & ~(uint64_t)FOLIO_CAP_FMA);
    folio_device_close(&dev);
    p.caps_off = 0;
    setenv("FOLIO_CAPS_MASK", "cpu", 1);
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK);
    cr_expect_eq(folio_device_caps(dev), all & ~(uint64_t)FOLIO_CAP_CPU);
    folio_device_close(&dev);
    unsetenv("FOLIO_CAPS_MASK");
    /* The verdict on disk is of what there is, not of what was left. */
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK);
    cr_expect_eq(folio_device_caps(dev), all);
    cr_expect_eq(atomic_load(&dev->builds), 0);
    folio_device_close(&dev);
    remove_folder(folder);
}

/* Programs get FOLIO_USE_FMA with the capability and not without. */
Test(device_open, fma_reaches_the_kernels)
{
    kept_log k;
    folio_device *dev = open_pocl("", &k);
    for (int masked = 0; masked < 2; masked++) {
        folio_kernel *kernel = NULL;
        dev->caps = masked ? 0 : FOLIO_CAP_FMA;
        const folio_kernel_spec spec = {.entry = "probe_fma_time",
                                        .fragments = "common.clh probe.cl",
                                        .options = "-D PROBE_FMA_TIME=1"};
        unsigned builds = atomic_load(&dev->builds);
        cr_assert_eq(folio_kernel_open(dev, &spec, &kernel), FOLIO_OK);
        cr_expect_eq(atomic_load(&dev->builds), builds + 1);
        folio_kernel_close(&kernel);
    }
    folio_device_close(&dev);
}
