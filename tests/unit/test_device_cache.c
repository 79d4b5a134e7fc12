/* The disk cache through PoCL: hits and misses, damage of every kind, folders
 * that cannot be used, builds that ended with their process, and many
 * processes on a cold folder. */
#define _GNU_SOURCE
#include "unit/device_util.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static kept_log klog;

/* Opens PoCL on the folder, builds the kernel `add` with these options, runs
 * it, and says how often the compiler and the cache were used for it. */
typedef struct use {
    folio_status st; /* of the kernel */
    unsigned builds, hits, puts;
} use;

static use use_cache(const char *folder, const char *options)
{
    use u = {.st = FOLIO_OK};
    folio_kernel *k = NULL;
    folio_queue *q = NULL;
    folio_buf *b = NULL;
    int32_t out = 0;
    folio_device *dev = open_pocl(folder, &klog);
    unsigned builds = atomic_load(&dev->builds);
    unsigned hits = atomic_load(&dev->cache.hits);
    unsigned puts = atomic_load(&dev->cache.puts);
    u.st = open_text(dev, add_source, "add", options, &k);
    u.builds = atomic_load(&dev->builds) - builds;
    u.hits = atomic_load(&dev->cache.hits) - hits;
    u.puts = atomic_load(&dev->cache.puts) - puts;
    if (u.st == FOLIO_OK) {
        const folio_grid g = {.groups = {2, 1, 1}, .local = {4, 1, 1}};
        cr_assert_eq(folio_queue_open(dev, &q), FOLIO_OK);
        cr_assert_eq(folio_buf_open(dev, 64, &b), FOLIO_OK);
        const folio_arg args[] = {folio_arg_view((folio_view){.buf = b}),
                                  folio_arg_i32(42)};
        cr_assert_eq(folio_launch(q, k, &g, args, 2), FOLIO_OK);
        cr_assert_eq(folio_queue_read(q, (folio_view){.buf = b}, &out, 4),
                     FOLIO_OK);
        cr_expect_eq(out, 42);
    }
    folio_buf_close(&b);
    folio_queue_close(&q);
    folio_kernel_close(&k);
    folio_device_close(&dev);
    return u;
}

/* The one program in the folder besides the probes': made by the test alone in
 * a folder that holds the probes' verdict. */
static void warm(const char *folder)
{
    folio_device *dev = open_pocl(folder, &klog);
    folio_device_close(&dev);
    /* The verdict stays, the probes' programs go. */
    char path[600];
    while (count_files(folder, ".program", path, sizeof path) > 0)
        cr_assert_eq(unlink(path), 0);
    cr_assert_eq(count_files(folder, ".blob", NULL, 0), 1);
}

Test(device_cache, second_start_compiles_nothing)
{
    char folder[256];
    make_folder(folder);
    warm(folder);
    use u = use_cache(folder, "");
    cr_expect_eq(u.builds, 1);
    cr_expect_eq(u.hits, 0);
    cr_expect_eq(u.puts, 1);
    cr_expect_eq(count_files(folder, ".program", NULL, 0), 1);
    u = use_cache(folder, "");
    cr_expect_eq(u.builds, 0);
    cr_expect_eq(u.hits, 1);
    cr_expect_eq(u.puts, 0);
    /* Nothing else is left behind: no temporary file, no mark. */
    cr_expect_eq(count_files(folder, "", NULL, 0), 4); /* with . and .. */
    remove_folder(folder);
}

Test(device_cache, every_part_of_the_key_misses)
{
    char folder[256];
    make_folder(folder);
    warm(folder);
    cr_expect_eq(use_cache(folder, "").builds, 1);
    cr_expect_eq(use_cache(folder, "-D X=1").builds, 1);
    cr_expect_eq(use_cache(folder, "-D X=2").builds, 1);
    cr_expect_eq(use_cache(folder, "-D X=1").builds, 0);
    /* Another driver, another name, a variable that steers the compiler. */
    folio_found *found = NULL;
    size_t n = 0, pocl = 0;
    cr_assert_eq(folio_discover(NULL, &found, &n), FOLIO_OK);
    while (pocl < n && strcmp(found[pocl].info.platform,
                              "Portable Computing Language") != 0)
        pocl++;
    cr_assert_lt(pocl, n);
    const folio_device_settings s = {.cache_dir = folder, .wait_ms = 60000};
    folio_hash128 keys[6];
    for (int i = 0; i < 6; i++) {
        folio_found f = found[pocl];
        folio_device *dev = NULL;
        if (i == 1)
            strcat(f.info.driver, "x");
        if (i == 2)
            strcat(f.platform_version, "x");
        if (i == 3)
            f.info.name[0] ^= 1;
        if (i == 4)
            f.info.max_work_group /= 2;
        if (i == 5)
            setenv("POCL_WORK_GROUP_METHOD", "loops", 1);
        cr_assert_eq(folio_device_new_cl(&f, NULL, &s, &dev), FOLIO_OK);
        keys[i] = dev->cache.device_key;
        folio_device_close(&dev);
        for (int k = 0; k < i; k++)
            cr_expect(keys[k].lo != keys[i].lo && keys[k].hi != keys[i].hi,
                      "%d and %d share a key", k, i);
    }
    free(found);
    remove_folder(folder);
}

static size_t read_file(const char *path, uint8_t *data, size_t cap)
{
    FILE *f = fopen(path, "rb");
    cr_assert(f);
    size_t n = fread(data, 1, cap, f);
    fclose(f);
    return n;
}

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    cr_assert(f);
    cr_assert_eq(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* Any change to the file is noticed before its bytes reach the driver; the
 * program is built and the entry is whole again. */
Test(device_cache, damaged_entries_are_rebuilt)
{
    static uint8_t good[1 << 20], bad[1 << 20];
    char folder[256], path[600];
    make_folder(folder);
    warm(folder);
    cr_expect_eq(use_cache(folder, "").builds, 1);
    cr_assert_eq(count_files(folder, ".program", path, sizeof path), 1);
    size_t n = read_file(path, good, sizeof good);
    cr_assert(n > 100 && n < sizeof good);

    const size_t places[] = {0,  8,  12, 16, 24,    32,
                             39, 40, 55, 56, n / 2, n - 1};
    for (size_t i = 0; i < FOLIO_COUNT(places); i++) {
        memcpy(bad, good, n);
        bad[places[i]] ^= 0x40;
        write_file(path, bad, n);
        use u = use_cache(folder, "");
        cr_expect_eq(u.builds, 1, "a changed byte %zu was not seen", places[i]);
        cr_expect_eq(u.hits, 0);
        if (i == 0)
            cr_expect_eq(use_cache(folder, "").hits, 1, "not repaired");
    }
    const size_t sizes[] = {0, 1, 55, 56, n / 2, n - 1};
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++) {
        write_file(path, good, sizes[i]);
        cr_expect_eq(use_cache(folder, "").builds, 1, "cut to %zu", sizes[i]);
    }
    memcpy(bad, good, n);
    write_file(path, bad, n + 1);
    cr_expect_eq(use_cache(folder, "").builds, 1, "one byte more");
    write_file(path, "#!/bin/sh\n", 10);
    cr_expect_eq(use_cache(folder, "").builds, 1, "another program's file");
    cr_expect_eq(use_cache(folder, "").hits, 1);
    remove_folder(folder);
}

/* An entry of another key under this key's name. */
Test(device_cache, foreign_entries_are_rebuilt)
{
    static uint8_t data[1 << 20];
    char folder[256], one[600], two[600];
    make_folder(folder);
    warm(folder);
    cr_expect_eq(use_cache(folder, "-D X=1").builds, 1);
    cr_assert_eq(count_files(folder, ".program", one, sizeof one), 1);
    size_t n = read_file(one, data, sizeof data);
    cr_assert_eq(unlink(one), 0);
    cr_expect_eq(use_cache(folder, "-D X=2").builds, 1);
    cr_assert_eq(count_files(folder, ".program", two, sizeof two), 1);
    cr_assert_str_neq(one, two);
    write_file(two, data, n);
    cr_expect_eq(use_cache(folder, "-D X=2").builds, 1);
    cr_expect_eq(use_cache(folder, "-D X=2").hits, 1);
    remove_folder(folder);
}

/* Whole, but not to the driver's taste. */
Test(device_cache, refused_binaries_are_rebuilt)
{
    char folder[256], path[600], hex[33] = "";
    folio_hash128 key = {0, 0};
    make_folder(folder);
    warm(folder);
    cr_expect_eq(use_cache(folder, "").builds, 1);
    cr_assert_eq(count_files(folder, ".program", path, sizeof path), 1);
    memcpy(hex, path + strlen(folder) + 1, 32);
    static uint8_t data[1 << 20];
    cr_assert_gt(read_file(path, data, sizeof data), 32);
    memcpy(&key.lo, data + 16, 8);
    memcpy(&key.hi, data + 24, 8);
    folio_device *dev = open_pocl(folder, &klog);
    folio_cache_write(dev, key, "program", "no binary of anybody", 20);
    folio_device_close(&dev);
    use u = use_cache(folder, "");
    cr_expect_eq(u.builds, 1);
    cr_expect_eq(u.hits, 1);
    cr_expect_eq(klog.count[FOLIO_LOG_WARN], 0, "%s", klog.text);
    cr_expect_eq(use_cache(folder, "").builds, 0);
    remove_folder(folder);
}

Test(device_cache, a_pipe_or_a_folder_in_place_of_an_entry)
{
    char folder[256], path[600];
    make_folder(folder);
    warm(folder);
    cr_expect_eq(use_cache(folder, "").builds, 1);
    cr_assert_eq(count_files(folder, ".program", path, sizeof path), 1);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_eq(use_cache(folder, "").builds, 1);
    cr_expect_eq(use_cache(folder, "").hits, 1); /* replaced by the rename */
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkdir(path, 0700), 0);
    cr_expect_eq(use_cache(folder, "").builds, 1);
    cr_expect_eq(klog.count[FOLIO_LOG_WARN], 1, "%s", klog.text);
    remove_folder(folder);
}

/* ---- folders that do not work
 * ---------------------------------------------------- */

Test(device_cache, unusable_folder_is_one_warning)
{
    char folder[256], path[600];
    make_folder(folder);
    snprintf(path, sizeof path, "%s/file", folder);
    write_file(path, "x", 1);
    strcat(path, "/below/it");
    use u = use_cache(path, "");
    cr_expect_eq(u.builds, 1);
    cr_expect_eq(u.puts, 0);
    cr_expect_eq(klog.count[FOLIO_LOG_WARN], 1, "%s", klog.text);
    cr_expect_eq(klog.count[FOLIO_LOG_ERROR], 0, "%s", klog.text);
    remove_folder(folder);
}

Test(device_cache, full_disk)
{
    /* A limit on a file's size stands for it: a write fails in its middle. */
    char folder[256];
    make_folder(folder);
    folio_device *dev = open_pocl(folder, &klog);
    static uint8_t data[3 << 20];
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        const struct rlimit limit = {1 << 20, 1 << 20};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        folio_cache_write(dev, (folio_hash128){1, 2}, "program", data,
                          sizeof data);
        _exit(klog.count[FOLIO_LOG_WARN] == 1 ? 0 : 1);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    void *back = NULL;
    size_t n = 0;
    cr_expect_eq(
        folio_cache_read(dev, (folio_hash128){1, 2}, "program", &back, &n),
        FOLIO_E_NOT_FOUND);
    folio_device_close(&dev);
    /* The half that was written is gone too ("." and ".." are counted). */
    cr_expect_eq(count_files(folder, "", NULL, 0),
                 2 + count_files(folder, ".program", NULL, 0) +
                     count_files(folder, ".blob", NULL, 0));
    remove_folder(folder);
}

Test(device_cache, no_home)
{
    folio_device_params p = pocl_params(NULL, &klog);
    folio_device *dev = open_pocl("", &klog);
    folio_device_close(&dev);
    unsetenv("FOLIO_CACHE_DIR");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    p = pocl_params(NULL, &klog);
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK, "%s", klog.text);
    cr_expect_null(dev->cache.dir);
    cr_expect_eq(klog.count[FOLIO_LOG_WARN], 1, "%s", klog.text);
    folio_device_close(&dev);
    /* "" asks for none: nothing to warn about. */
    p = pocl_params("", &klog);
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK);
    cr_expect_eq(klog.count[FOLIO_LOG_WARN], 0, "%s", klog.text);
    folio_device_close(&dev);
}

Test(device_cache, places)
{
    char folder[256], want[400];
    kept_log k;
    make_folder(folder);
    folio_device_params p;
    folio_device_params_default(&p);
    p.select = "host";
    p.n_threads = 1;
    p.log = keep_log(&k);
    const struct {
        const char *param, *folio, *xdg, *home, *want;
    } cases[] = {
        {"/p", "/f", "/x", "/h", "/p"},
        {NULL, "/f", "/x", "/h", "/f"},
        {NULL, NULL, "/x", "/h", "/x/folio"},
        {NULL, NULL, NULL, "/h", "/h/.cache/folio"},
        {NULL, NULL, "relative", "/h", "/h/.cache/folio"},
        {NULL, NULL, "", "/", "//.cache/folio"},
        {NULL, NULL, NULL, "relative", NULL},
        {NULL, NULL, NULL, NULL, NULL},
        {"", "/f", "/x", "/h", NULL},
    };
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++) {
        folio_device *dev = NULL;
        unsetenv("FOLIO_CACHE_DIR");
        unsetenv("XDG_CACHE_HOME");
        unsetenv("HOME");
        if (cases[i].folio)
            setenv("FOLIO_CACHE_DIR", cases[i].folio, 1);
        if (cases[i].xdg)
            setenv("XDG_CACHE_HOME", cases[i].xdg, 1);
        if (cases[i].home)
            setenv("HOME", cases[i].home, 1);
        p.cache_dir = cases[i].param;
        cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK);
        snprintf(want, sizeof want, "%s", cases[i].want ? cases[i].want : "");
        cr_expect_str_eq(dev->cache.dir ? dev->cache.dir : "", want, "case %zu",
                         i);
        folio_device_close(&dev);
    }
    remove_folder(folder);
}

/* ---- builds that ended with their process
 * ------------------------------------------ */

/* A process that dies inside the compiler, as seen from the disk. */
static void die_while_building(const char *folder, folio_hash128 key)
{
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        folio_device dev = {.cache = {.dir = (char *)(uintptr_t)folder}};
        folio_building b;
        folio_building_begin(&dev, key, "a label", &b);
        _exit(b.fd >= 0 ? 0 : 1);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

Test(device_cache, a_build_that_kills_is_not_repeated_for_ever)
{
    static uint8_t data[1 << 20];
    char folder[256], path[600];
    folio_hash128 key = {0, 0};
    make_folder(folder);
    warm(folder);
    cr_expect_eq(use_cache(folder, "").builds, 1);
    cr_assert_eq(count_files(folder, ".program", path, sizeof path), 1);
    cr_assert_gt(read_file(path, data, sizeof data), 32);
    memcpy(&key.lo, data + 16, 8);
    memcpy(&key.hi, data + 24, 8);
    cr_assert_eq(unlink(path), 0);

    /* Once is an accident: somebody may have stopped the process. */
    die_while_building(folder, key);
    cr_expect_eq(count_files(folder, ".building", NULL, 0), 1);
    use u = use_cache(folder, "");
    cr_expect_eq(u.st, FOLIO_OK);
    cr_expect_eq(u.builds, 1);
    cr_expect_eq(count_files(folder, ".building", NULL, 0), 0);
    cr_assert_eq(count_files(folder, ".program", path, sizeof path), 1);
    cr_assert_eq(unlink(path), 0);

    die_while_building(folder, key);
    die_while_building(folder, key);
    for (int i = 0; i < 2; i++) {
        u = use_cache(folder, "");
        cr_expect_eq(u.st, FOLIO_E_BUILD);
        cr_expect_eq(u.builds, 0);
        cr_expect(strstr(klog.text, "2 processes ended while its compiler"),
                  "%s", klog.text);
    }
    cr_expect_eq(use_cache(folder, "-D X=1").st, FOLIO_OK, "another program");
    /* The message's advice works. */
    cr_assert_eq(count_files(folder, ".building", path, sizeof path), 1);
    cr_assert_eq(unlink(path), 0);
    cr_expect_eq(use_cache(folder, "").st, FOLIO_OK);
    remove_folder(folder);
}

/* While another process builds the same, its mark is no reason to refuse. */
Test(device_cache, a_build_elsewhere_is_no_reason)
{
    char folder[256];
    const folio_hash128 key = {5, 6};
    folio_building mine, again;
    make_folder(folder);
    folio_device dev = {.cache = {.dir = folder}};
    die_while_building(folder, key);
    folio_building_begin(&dev, key, "x", &mine);
    cr_expect_geq(mine.fd, 0);
    cr_expect_eq(mine.strikes, 1);
    int to_parent[2];
    cr_assert_eq(pipe(to_parent), 0);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        folio_building_begin(&dev, key, "x", &again);
        int said[2] = {again.fd, again.strikes};
        folio_building_end(&again, true);
        _exit(write(to_parent[1], said, sizeof said) == sizeof said ? 0 : 1);
    }
    int said[2] = {0, 0}, status = 0;
    cr_assert_eq(read(to_parent[0], said, sizeof said), (ssize_t)sizeof said);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(said[0], -1);
    cr_expect_eq(said[1], 0);
    cr_expect_eq(count_files(folder, ".building", NULL, 0), 1);
    folio_building_end(&mine, true);
    cr_expect_eq(count_files(folder, ".building", NULL, 0), 0);
    close(to_parent[0]);
    close(to_parent[1]);
    remove_folder(folder);
}

/* ---- many processes
 * ------------------------------------------------------------------ */

/* Each child is a process that has made no OpenCL call before. PoCL gets a
 * folder of its own in each: 3.1 aborts now and then (pocl_llvm_build_program:
 * Assertion `program->data[device_i]' failed) when several processes build one
 * source into one cold folder, and it is folio's folder that is tested. */
Test(device_cache, eight_processes_on_a_cold_folder, .timeout = 300)
{
    enum { PROCESSES = 8, ROUNDS = 4 };
    char folder[256], pocl_folder[256];
    if (access("/etc/OpenCL/vendors/pocl.icd", R_OK) != 0 && !getenv("CI"))
        cr_skip_test("PoCL (pocl-opencl-icd) is not installed");
    make_folder(folder);
    make_folder(pocl_folder);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t children[PROCESSES];
        for (int i = 0; i < PROCESSES; i++) {
            children[i] = fork();
            cr_assert_geq(children[i], 0);
            if (children[i] != 0)
                continue;
            char own[300];
            snprintf(own, sizeof own, "%s/%d", pocl_folder, i);
            setenv("POCL_CACHE_DIR", own, 1);
            folio_device_params p = pocl_params(folder, &klog);
            folio_device *dev = NULL;
            folio_kernel *k = NULL;
            int bad = folio_device_open(&p, &dev) != FOLIO_OK ||
                      open_text(dev, add_source, "add", "", &k) != FOLIO_OK ||
                      klog.count[FOLIO_LOG_WARN] != 0 ||
                      klog.count[FOLIO_LOG_ERROR] != 0;
            if (bad)
                fprintf(stderr, "%s", klog.text);
            folio_kernel_close(&k);
            folio_device_close(&dev);
            _exit(bad);
        }
        for (int i = 0; i < PROCESSES; i++) {
            int status = 0;
            cr_assert_eq(waitpid(children[i], &status, 0), children[i]);
            cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                      "round %d, process %d: status %d", round, i, status);
        }
        cr_expect_eq(count_files(folder, ".building", NULL, 0), 0);
        /* Cold again every other round. */
        if (round % 2 == 0)
            remove_folder(folder);
    }
    remove_folder(folder);
    remove_folder(pocl_folder);
}
