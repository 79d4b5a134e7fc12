/* Hash, counter-based random numbers, size products, allocation, status texts
 * and file mappings. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "base/rng.h"

Test(base_hash, known_answers)
{
    char hex[33];
    /* The reference implementation's value of XXH3-128 of nothing. */
    folio_hash_hex(folio_hash_bytes(NULL, 0, 0), hex);
    cr_assert_str_eq(hex, "99aa06d3014798d86001c324468d497f");
    folio_hash_hex((folio_hash128){.lo = 0xfull, .hi = 0xabcull << 52}, hex);
    cr_assert_str_eq(hex, "abc0000000000000000000000000000f");
}

Test(base_hash, seed_and_every_byte_count)
{
    uint8_t bytes[300];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7);
    for (size_t n = 1; n <= sizeof bytes; n++) {
        folio_hash128 a = folio_hash_bytes(bytes, n, 0);
        folio_hash128 b = folio_hash_bytes(bytes, n, 1);
        folio_hash128 c = folio_hash_bytes(bytes, n - 1, 0);
        cr_assert(a.lo != b.lo && a.hi != b.hi, "seed ignored at %zu", n);
        cr_assert(a.lo != c.lo && a.hi != c.hi, "length ignored at %zu", n);
        bytes[n - 1] ^= 0x80;
        folio_hash128 d = folio_hash_bytes(bytes, n, 0);
        bytes[n - 1] ^= 0x80;
        cr_assert(a.lo != d.lo && a.hi != d.hi, "last byte ignored at %zu", n);
    }
}

/* The known-answer vectors that Random123 publishes for philox4x32, R = 10. */
Test(base_rng, philox_known_answers)
{
    static const struct {
        uint64_t key, lo, hi;
        uint32_t out[4];
    } kat[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX,
         UINT64_MAX,
         UINT64_MAX,
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x85a308d3243f6a88,
         0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < FOLIO_COUNT(kat); i++) {
        uint32_t out[4];
        folio_philox4x32(kat[i].key, kat[i].lo, kat[i].hi, out);
        for (int j = 0; j < 4; j++)
            cr_assert(out[j] == kat[i].out[j], "vector %zu word %d: %08x", i, j,
                      out[j]);
    }
}

Test(base_sizes, products_and_sums)
{
    size_t out = 77;
    cr_assert(!folio_mul_size(SIZE_MAX, 2, &out));
    cr_assert(!folio_mul_size(SIZE_MAX / 3 + 1, 3, &out));
    cr_assert(!folio_add_size(SIZE_MAX, 1, &out));
    cr_assert_eq(out, 77);
    cr_assert(folio_mul_size(SIZE_MAX / 3, 3, &out));
    cr_assert_eq(out, SIZE_MAX / 3 * 3);
    cr_assert(folio_mul_size(0, SIZE_MAX, &out) && out == 0);
    cr_assert(folio_mul_size(SIZE_MAX, 0, &out) && out == 0);
    cr_assert(folio_mul_size(SIZE_MAX, 1, &out) && out == SIZE_MAX);
    cr_assert(folio_add_size(SIZE_MAX, 0, &out) && out == SIZE_MAX);
    cr_assert_eq(folio_div_up(0, 4), 0);
    cr_assert_eq(folio_div_up(1, 4), 1);
    cr_assert_eq(folio_div_up(8, 4), 2);
    cr_assert_eq(folio_div_up(INT64_MAX, 2), INT64_MAX / 2 + 1);
    cr_assert_eq(folio_align_up(0, 32), 0);
    cr_assert_eq(folio_align_up(33, 32), 64);
}

Test(base_sizes, allocation)
{
    cr_assert_null(folio_calloc(SIZE_MAX / 2, 3));
    cr_assert_null(folio_realloc(NULL, SIZE_MAX / 2, 3));
    cr_assert_null(folio_aligned_alloc(SIZE_MAX));
    cr_assert_null(folio_strndup("x", SIZE_MAX));
    uint8_t *p = folio_calloc(0, 8);
    cr_assert_not_null(p);
    cr_assert_eq(p[0], 0);
    free(p);
    char *s = folio_strndup("abc", 2);
    cr_assert_str_eq(s, "ab");
    free(s);
    for (size_t n = 0; n < 200; n += 13) {
        uint8_t *a = folio_aligned_alloc(n);
        cr_assert_not_null(a);
        cr_assert_eq((uintptr_t)a % 64, 0);
        memset(a, 1, n);
        folio_aligned_free(a);
    }
}

Test(base_status, every_code_has_its_name)
{
    for (int st = FOLIO_E_INTERNAL; st <= FOLIO_OK; st++) {
        cr_assert_str_neq(folio_status_name((folio_status)st), "UNKNOWN");
        for (int other = FOLIO_E_INTERNAL; other < st; other++)
            cr_assert_str_neq(folio_status_name((folio_status)st),
                              folio_status_name((folio_status)other));
    }
    cr_assert_str_eq(folio_status_name((folio_status)1), "UNKNOWN");
    cr_assert_str_eq(folio_status_name((folio_status)-18), "UNKNOWN");
}

static char last[4200];
static int n_messages;

static void keep(void *user, folio_log_level level, const char *message)
{
    (void)user;
    (void)level;
    snprintf(last, sizeof last, "%s", message);
    n_messages++;
}

static const folio_log keep_log = {keep, NULL, FOLIO_LOG_ERROR};

Test(base_log, level_and_length)
{
    folio_logf(&keep_log, FOLIO_LOG_WARN, "not delivered");
    cr_assert_eq(n_messages, 0);
    char big[6000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    folio_logf(&keep_log, FOLIO_LOG_ERROR, "%s", big);
    cr_assert_eq(n_messages, 1);
    cr_assert_eq(strlen(last), 4095);
    folio_logf(NULL, FOLIO_LOG_ERROR, "nobody listens");
    cr_assert_eq(folio_fail(&keep_log, FOLIO_E_FULL, "%d", 5), FOLIO_E_FULL);
    cr_assert_str_eq(last, "5");
}

static char dir[64];

static void make_dir(void)
{
    strcpy(dir, "/tmp/folio-unit-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void remove_dir(void)
{
    char path[512];
    static const char *const names[] = {"fifo", "empty", "файл-🗎.bin"};
    for (size_t i = 0; i < FOLIO_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static const char *in_dir(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void expect_io(const char *path, const char *words)
{
    folio_file_map m = {(const uint8_t *)"x", 123};
    n_messages = 0;
    cr_assert_eq(folio_file_map_open(path, &keep_log, &m), FOLIO_E_IO);
    cr_assert_eq(m.size, 123, "the output was written on failure");
    cr_assert_eq(n_messages, 1);
    cr_assert_not_null(strstr(last, path), "%s", last);
    cr_assert_not_null(strstr(last, words), "%s", last);
}

Test(base_file_map, what_is_no_file, .init = make_dir, .fini = remove_dir,
     .timeout = 10)
{
    expect_io(dir, "a directory");
    expect_io(in_dir("absent"), "No such file");
    const char *fifo = in_dir("fifo");
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    expect_io(fifo, "a FIFO");
    expect_io("/dev/null", "a device");
    expect_io("", "the name of the file is empty");
}

Test(base_file_map, contents, .init = make_dir, .fini = remove_dir)
{
    folio_file_map m = {0};
    folio_file_map_close(&m);
    const char *path = in_dir("empty");
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f);
    fclose(f);
    cr_assert_eq(folio_file_map_open(path, NULL, &m), FOLIO_OK);
    cr_assert(m.size == 0 && m.data == NULL);
    folio_file_map_close(&m);

    path = in_dir("файл-🗎.bin");
    f = fopen(path, "wb");
    cr_assert_not_null(f);
    for (int i = 0; i < 100000; i++)
        fputc(i % 251, f);
    fclose(f);
    cr_assert_eq(folio_file_map_open(path, NULL, &m), FOLIO_OK);
    cr_assert_eq(m.size, 100000);
    for (int i = 0; i < 100000; i++)
        cr_assert_eq(m.data[i], i % 251);
    folio_file_map_close(&m);
    cr_assert(m.size == 0 && m.data == NULL);
}
