/* Choice of a device over made-up tables, and the facts that choice rests on:
 * no OpenCL. */
#include "device/select.h"

#include <criterion/criterion.h>
#include <string.h>

#define GIB ((uint64_t)1 << 30)

static folio_device_info entry(folio_device_kind kind, const char *name,
                               const char *platform, uint64_t global)
{
    folio_device_info d = {.size = sizeof d, .kind = kind};
    strcpy(d.name, name);
    strcpy(d.platform, platform);
    strcpy(d.vendor, "some vendor");
    strcpy(d.driver, "1.2");
    strcpy(d.version, "OpenCL 3.0, OpenCL C 1.2");
    d.global_bytes = global;
    return d;
}

Test(device_select, classifies_by_flags)
{
    const struct {
        folio_select_facts facts;
        folio_device_kind kind;
    } cases[] = {
        {{.gpu = true}, FOLIO_DEVICE_GPU_DISCRETE},
        {{.gpu = true, .unified = true}, FOLIO_DEVICE_GPU_INTEGRATED},
        {{.cpu = true, .unified = true}, FOLIO_DEVICE_CPU},
        {{.cpu = true}, FOLIO_DEVICE_CPU},
        {{.accelerator = true}, FOLIO_DEVICE_OTHER},
        {{.cpu = true, .gpu = true, .accelerator = true}, FOLIO_DEVICE_OTHER},
        {{.cpu = true, .gpu = true}, FOLIO_DEVICE_OTHER},
        {{.gpu = true, .accelerator = true}, FOLIO_DEVICE_OTHER},
        {{.unified = true}, FOLIO_DEVICE_OTHER},
    };
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++)
        cr_expect_eq(folio_select_classify(cases[i].facts), cases[i].kind,
                     "case %zu", i);
}

/* An integrated GPU that looks larger than the card beside it stays behind it;
 * a name is no argument. */
Test(device_select, ranks_discrete_before_integrated)
{
    const folio_device_info t[] = {
        entry(FOLIO_DEVICE_CPU, "pthread-x86", "Portable Computing Language",
              64 * GIB),
        entry(FOLIO_DEVICE_GPU_INTEGRATED, "Arc-like iGPU", "A", 60 * GIB),
        entry(FOLIO_DEVICE_OTHER, "FPGA Emulation Device", "B", 64 * GIB),
        entry(FOLIO_DEVICE_GPU_DISCRETE, "Arc A770", "A", 16 * GIB),
        entry(FOLIO_DEVICE_GPU_DISCRETE, "RTX", "C", 8 * GIB),
        entry(FOLIO_DEVICE_GPU_INTEGRATED, "UHD", "A", 8 * GIB),
    };
    size_t order[FOLIO_COUNT(t)];
    const size_t want[] = {3, 4, 1, 5};
    size_t n = folio_select_rank(t, FOLIO_COUNT(t), order);
    cr_assert_eq(n, FOLIO_COUNT(want));
    for (size_t i = 0; i < n; i++)
        cr_expect_eq(order[i], want[i], "place %zu", i);
}

Test(device_select, never_ranks_cpus_and_emulators)
{
    const folio_device_info t[] = {
        entry(FOLIO_DEVICE_CPU, "cpu", "Intel(R) OpenCL", GIB),
        entry(FOLIO_DEVICE_OTHER, "Oclgrind Simulator", "Oclgrind", GIB),
        entry(FOLIO_DEVICE_OTHER, "Intel(R) FPGA Emulation Device", "F", GIB),
    };
    size_t order[FOLIO_COUNT(t)];
    cr_expect_eq(folio_select_rank(t, FOLIO_COUNT(t), order), 0);
    cr_expect_eq(folio_select_rank(NULL, 0, NULL), 0);
}

Test(device_select, parses)
{
    cr_expect_eq(folio_select_parse(NULL), FOLIO_SELECT_AUTO);
    cr_expect_eq(folio_select_parse("auto"), FOLIO_SELECT_AUTO);
    cr_expect_eq(folio_select_parse("AUTO"), FOLIO_SELECT_AUTO);
    cr_expect_eq(folio_select_parse("host"), FOLIO_SELECT_HOST);
    cr_expect_eq(folio_select_parse("Host"), FOLIO_SELECT_HOST);
    cr_expect_eq(folio_select_parse("hosts"), FOLIO_SELECT_DEVICE);
    cr_expect_eq(folio_select_parse(""), FOLIO_SELECT_DEVICE);
    cr_expect_eq(folio_select_parse("0"), FOLIO_SELECT_DEVICE);
}

Test(device_select, matches_names)
{
    folio_device_info t[] = {
        entry(FOLIO_DEVICE_CPU, "pthread-skylake",
              "Portable Computing Language", GIB),
        entry(FOLIO_DEVICE_GPU_DISCRETE, "NVIDIA H200", "NVIDIA CUDA", GIB),
        entry(FOLIO_DEVICE_GPU_DISCRETE, "NVIDIA H200 NVL", "NVIDIA CUDA", GIB),
        entry(FOLIO_DEVICE_CPU, "llvmpipe (LLVM 15)", "rusticl", GIB),
        entry(FOLIO_DEVICE_OTHER, "Oclgrind Simulator", "Oclgrind", GIB),
        entry(FOLIO_DEVICE_CPU, "Some CPU", "Intel(R) OpenCL", GIB),
    };
    strcpy(t[5].vendor, "Intel(R) Corporation");
    strcpy(t[3].version, "OpenCL 3.0 tries to be like PoCL");
    const struct {
        const char *text;
        int want; /* -1 = none, -2 = several */
    } cases[] = {
        {"pocl", 0},        {"POCL", 0},
        {"pthread", 0},     {"portable", 0},
        {"NVL", 2},         {"nvidia h200", 1},
        {"h200", -2},       {"nvidia", -2},
        {"rusticl", 3},     {"llvmpipe", 3},
        {"oclgrind", 4},    {"intel", 5},
        {"corporation", 5}, {"gfx1100", -1},
        {"", -1},           {"-1", -1},
        {"0", 0},           {"5", 5},
        {"6", -1},          {"07", -1},
        {"02", 2},          {"18446744073709551616", -1},
        {"1x", -1},         {"99999999999999999999999999999999", -1},
    };
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++) {
        size_t index = 77;
        char why[200] = "";
        folio_status st = folio_select_match(t, FOLIO_COUNT(t), cases[i].text,
                                             &index, why, sizeof why);
        if (cases[i].want >= 0) {
            cr_expect_eq(st, FOLIO_OK, "\"%s\": %s", cases[i].text, why);
            cr_expect_eq(index, (size_t)cases[i].want, "\"%s\"", cases[i].text);
        } else {
            cr_expect_eq(st, FOLIO_E_NO_DEVICE, "\"%s\"", cases[i].text);
            cr_expect_eq(index, 77, "\"%s\" wrote an output", cases[i].text);
            cr_expect(*why, "\"%s\" gives no reason", cases[i].text);
            cr_expect_eq(strstr(why, "fits") != NULL, cases[i].want == -2,
                         "\"%s\": %s", cases[i].text, why);
        }
    }
}

Test(device_select, matches_nothing_in_an_empty_table)
{
    const char *texts[] = {"0", "7", "pocl", ""};
    for (size_t i = 0; i < FOLIO_COUNT(texts); i++) {
        size_t index;
        char why[200] = "";
        cr_expect_eq(
            folio_select_match(NULL, 0, texts[i], &index, why, sizeof why),
            FOLIO_E_NO_DEVICE);
        cr_expect(*why);
    }
}

Test(device_select, table_names_every_device)
{
    folio_device_info t[] = {
        entry(FOLIO_DEVICE_GPU_INTEGRATED, "first", "P", GIB),
        entry(FOLIO_DEVICE_OTHER, "second", "Q", 0),
    };
    /* As long as a driver can make them. */
    memset(t[1].name, 'n', sizeof t[1].name - 1);
    memset(t[1].platform, 'p', sizeof t[1].platform - 1);
    memset(t[1].driver, 'd', sizeof t[1].driver - 1);
    char *text = folio_select_table(t, FOLIO_COUNT(t));
    cr_assert(text);
    cr_expect(strstr(text, "host"));
    cr_expect(strstr(text, "0: first (integrated GPU, P, driver 1.2, 1.0 GiB)"),
              "%s", text);
    cr_expect(strstr(text, t[1].name) && strstr(text, t[1].driver));
    free(text);
    text = folio_select_table(NULL, 0);
    cr_assert(text);
    free(text);
}

Test(device_select, absurd_sizes_are_unknown)
{
    cr_expect_eq(folio_select_sane_bytes(0), 0);
    cr_expect_eq(folio_select_sane_bytes(24 * GIB), 24 * GIB);
    cr_expect_eq(folio_select_sane_bytes(64 * 1024 * GIB), 64 * 1024 * GIB);
    cr_expect_eq(folio_select_sane_bytes(64 * 1024 * GIB + 1), 0);
    cr_expect_eq(folio_select_sane_bytes(UINT64_MAX), 0);
}

Test(device_select, largest_buffer)
{
    /* An integrated GPU with 19.9 GB that gives 1 GB per buffer. */
    const uint64_t global = 19900000000u, one = 1000000000u;
    cr_expect_eq(folio_select_max_alloc(global, one, 0), one);
    cr_expect_eq(folio_select_max_alloc(global, one, 64 << 20), 64 << 20);
    cr_expect_eq(folio_select_max_alloc(global, one, 2 * one), one);
    /* Unknown or absurd: a quarter, at least 128 MiB. */
    cr_expect_eq(folio_select_max_alloc(global, 0, 0), global / 4);
    cr_expect_eq(folio_select_max_alloc(global, UINT64_MAX, 0), global / 4);
    cr_expect_eq(folio_select_max_alloc(UINT64_MAX, UINT64_MAX, 0), 128 << 20);
    cr_expect_eq(folio_select_max_alloc(0, 0, 1), 1);
}

Test(device_select, alignment_is_in_bits)
{
    cr_expect_eq(folio_select_align_bytes(1024), 128);
    cr_expect_eq(folio_select_align_bytes(4096), 512);
    cr_expect_eq(folio_select_align_bytes(8), 1);
    cr_expect_eq(folio_select_align_bytes(0), 128);
    cr_expect_eq(folio_select_align_bytes(7), 128);
    cr_expect_eq(folio_select_align_bytes(1000), 128);
}
