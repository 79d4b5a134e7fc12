/* programs.c: stands between the launchers and the device room: counts the
 * programs that a run builds, and writes them to files instead of building them
 * when asked to, on a device that exists on paper only. The linker sends calls
 * of three functions here (--wrap, tests/CMakeLists.txt). */
#include "check/check.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "device/impl.h"

static folio_hash128 seen[4096];
static int n_seen;
static const char *dump_dir;
static bool dump_failed;

/* What stands for a kernel while dumping. */
static char paper_kernel;

int ck_programs_count(void)
{
    return n_seen;
}

void ck_programs_dump(const char *dir)
{
    dump_dir = dir;
}

bool ck_programs_dumping(void)
{
    return dump_dir != NULL;
}

bool ck_programs_dump_failed(void)
{
    return dump_failed;
}

folio_device *ck_paper_device(folio_log log, uint64_t caps)
{
    static folio_device paper;
    atomic_init(&paper.refs, 1);
    pthread_mutex_init(&paper.lock, NULL);
    paper.log = log;
    /* No call reaches a driver. */
    atomic_init(&paper.dead, true);
    paper.caps = caps;
    paper.info.size = sizeof paper.info;
    paper.info.kind = FOLIO_DEVICE_GPU_DISCRETE;
    snprintf(paper.info.name, sizeof paper.info.name, "paper");
    paper.info.local_bytes = 48 << 10;
    paper.info.global_bytes = paper.info.max_alloc_bytes = (uint64_t)1 << 32;
    paper.info.compute_units = 16;
    paper.info.max_work_group = 1024;
    paper.info.base_align = 128;
    for (int i = 0; i < 3; i++)
        paper.max_items[i] = 1024;
    return &paper;
}

/* True if the program had not been seen. */
static bool remember(const folio_kernel_spec *spec)
{
    const char *options = spec->options ? spec->options : "";
    folio_hash128 h =
        folio_hash_bytes(spec->fragments, strlen(spec->fragments), 17);
    h = folio_hash_bytes(options, strlen(options), h.lo ^ h.hi);
    for (int i = 0; i < n_seen; i++)
        if (seen[i].lo == h.lo && seen[i].hi == h.hi)
            return false;
    if (n_seen < (int)FOLIO_COUNT(seen))
        seen[n_seen++] = h;
    return true;
}

static bool write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return false;
    bool good = fputs(text, f) >= 0 && fputc('\n', f) != EOF;
    return fclose(f) == 0 && good;
}

static void dump(const folio_kernel_spec *spec)
{
    char path[4096];
    char *source = folio_kernel_source(spec->fragments);
    int n = snprintf(path, sizeof path, "%s/%03d-%s.cl", dump_dir, n_seen,
                     spec->entry);
    bool good = source && n > 0 && (size_t)n + 8 < sizeof path &&
                write_text(path, source);
    if (good) {
        snprintf(path + n - 3, sizeof path - (size_t)n + 3, ".options");
        good = write_text(path, spec->options ? spec->options : "");
    }
    if (!good) {
        printf("FAILED: cannot write %s (%s)\n", path, spec->fragments);
        dump_failed = true;
    }
    free(source);
}

folio_status __real_folio_kernel_open(folio_device *dev,
                                      const folio_kernel_spec *spec,
                                      folio_kernel **out);
folio_status __wrap_folio_kernel_open(folio_device *dev,
                                      const folio_kernel_spec *spec,
                                      folio_kernel **out);
folio_status __wrap_folio_kernel_open(folio_device *dev,
                                      const folio_kernel_spec *spec,
                                      folio_kernel **out)
{
    bool is_new = remember(spec);
    if (!dump_dir)
        return __real_folio_kernel_open(dev, spec, out);
    if (is_new)
        dump(spec);
    *out = (folio_kernel *)(void *)&paper_kernel;
    return FOLIO_OK;
}

void __real_folio_kernel_get_limits(const folio_kernel *k,
                                    folio_kernel_limits *out);
void __wrap_folio_kernel_get_limits(const folio_kernel *k,
                                    folio_kernel_limits *out);
void __wrap_folio_kernel_get_limits(const folio_kernel *k,
                                    folio_kernel_limits *out)
{
    const folio_kernel_limits paper = {.max_work_group = 1024,
                                       .preferred_multiple = 32};
    if ((const void *)k == &paper_kernel)
        *out = paper;
    else
        __real_folio_kernel_get_limits(k, out);
}

void __real_folio_kernel_close(folio_kernel **k);
void __wrap_folio_kernel_close(folio_kernel **k);
void __wrap_folio_kernel_close(folio_kernel **k)
{
    if (k && (void *)*k == &paper_kernel)
        *k = NULL;
    else
        __real_folio_kernel_close(k);
}
