/* unit/device_util.c: see device_util.h. */
#define _GNU_SOURCE
#include "unit/device_util.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void keep(void *user, folio_log_level level, const char *message)
{
    kept_log *k = user;
    k->count[level]++;
    if (k->n < sizeof k->text)
        k->n += (size_t)snprintf(k->text + k->n, sizeof k->text - k->n,
                                 "%d: %s\n", (int)level, message);
}

folio_log keep_log(kept_log *k)
{
    memset(k, 0, sizeof *k);
    return (folio_log){.fn = keep, .user = k, .max_level = FOLIO_LOG_DEBUG};
}

void make_folder(char path[256])
{
    const char *base = getenv("TMPDIR");
    snprintf(path, 256, "%.200s/folio-test-XXXXXX", base ? base : "/tmp");
    cr_assert(mkdtemp(path), "no folder %s", path);
}

void remove_folder(const char *path)
{
    DIR *d = opendir(path);
    if (!d)
        return;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        char file[600];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (unlink(file) != 0)
            remove_folder(file);
    }
    closedir(d);
    rmdir(path);
}

int count_files(const char *path, const char *ext, char *first,
                size_t first_bytes)
{
    DIR *d = opendir(path);
    int n = 0;
    if (!d)
        return 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        size_t len = strlen(e->d_name), tail = strlen(ext);
        if (len < tail || strcmp(e->d_name + len - tail, ext) != 0)
            continue;
        if (n++ == 0 && first)
            snprintf(first, first_bytes, "%s/%s", path, e->d_name);
    }
    closedir(d);
    return n;
}

folio_device_params pocl_params(const char *cache, kept_log *k)
{
    folio_device_params p;
    folio_device_params_default(&p);
    p.select = "pocl";
    p.cache_dir = cache;
    p.log = keep_log(k);
    return p;
}

static bool have_pocl(void)
{
    folio_device_info list[32];
    size_t n = 0;
    if (folio_device_list(NULL, list, FOLIO_COUNT(list), &n) != FOLIO_OK)
        return false;
    for (size_t i = 0; i < n && i < FOLIO_COUNT(list); i++)
        if (strcmp(list[i].platform, "Portable Computing Language") == 0)
            return true;
    return false;
}

folio_device *open_pocl(const char *cache, kept_log *k)
{
    const char *ci = getenv("CI");
    folio_device *dev = NULL;
    if (!have_pocl() && !(ci && strcmp(ci, "true") == 0))
        cr_skip_test("PoCL (pocl-opencl-icd) is not installed");
    folio_device_params p = pocl_params(cache, k);
    folio_status st = folio_device_open(&p, &dev);
    cr_assert_eq(st, FOLIO_OK, "%s\n%s", folio_status_name(st), k->text);
    return dev;
}

folio_status open_text(folio_device *dev, const char *source, const char *entry,
                       const char *options, folio_kernel **out)
{
    return folio_kernel_new(dev,
                            &(folio_program_text){.label = "a test's text",
                                                  .source = source,
                                                  .options = options,
                                                  .entry = entry,
                                                  .level = FOLIO_LOG_WARN},
                            out);
}

const char add_source[] =
    "__kernel void add(__global int *out_buf, const ulong out_off, int n)\n"
    "{\n"
    "    __global int *out = (__global int *)((__global uchar *)out_buf +\n"
    "                                         out_off);\n"
    "    out[get_global_id(0)] += n;\n"
    "}\n";

const char slow_source[] =
    "__kernel void slow(__global int *out_buf, const ulong out_off, int n)\n"
    "{\n"
    "    uint x = (uint)n + (uint)get_global_id(0) + (uint)out_off;\n"
    "    for (int i = 0; i < n; i++)\n"
    "        x = (x ^ (x >> 13)) * 2654435761u + (uint)i;\n"
    "    out_buf[get_global_id(0)] = (int)x;\n"
    "}\n";

void device_setup_open(setup *s)
{
    memset(s, 0, sizeof *s);
    s->dev = open_pocl("", &s->log);
    cr_assert_eq(folio_queue_open(s->dev, &s->q), FOLIO_OK);
    cr_assert_eq(open_text(s->dev, add_source, "add", "", &s->add), FOLIO_OK,
                 "%s", s->log.text);
    cr_assert_eq(folio_buf_open(s->dev, 4096, &s->a), FOLIO_OK);
    cr_assert_eq(folio_buf_open(s->dev, 4096, &s->b), FOLIO_OK);
}

void device_setup_close(setup *s)
{
    folio_device *dev = s->dev;
    folio_buf_close(&s->a);
    folio_buf_close(&s->b);
    folio_kernel_close(&s->add);
    folio_queue_close(&s->q);
    cr_expect_eq(atomic_load(&dev->live_bytes), 0);
    cr_expect_eq(atomic_load(&dev->refs), 1, "%d references left",
                 atomic_load(&dev->refs));
    folio_device_close(&s->dev);
}
