/* The GGUF writer: what is put is what the reader finds, byte for byte on disk
 * too; what cannot be stored is refused by name; a file is replaced as a whole
 * or not at all. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "format/gguf_write.h"
#include "unit/fail_alloc.h"
#include "unit/format_util.h"

#include <dirent.h>
#include <sys/stat.h>

static const uint64_t a_dims[] = {64, 3}, b_dims[] = {5}, c_dims[] = {32, 2, 2};
static const folio_gguf_str words[] = {{"one", 3}, {"", 0}, {"t\0o", 3}};
static const int32_t numbers[] = {-1, 0, INT32_MAX};

static folio_gguf_writer *filled(const folio_log *log)
{
    folio_gguf_writer *w = NULL;
    if (folio_gguf_writer_open(log, &w) != FOLIO_OK)
        return NULL;
    folio_gguf_put_str(w, "general.architecture", "llama");
    folio_gguf_put_u32(w, "a.u32", UINT32_MAX);
    folio_gguf_put_f32(w, "a.f32", -0.375f);
    folio_gguf_put_bool(w, "a.bool", true);
    folio_gguf_put_strs(w, "a.strs", FOLIO_COUNT(words), words);
    folio_gguf_put_i32s(w, "a.i32s", FOLIO_COUNT(numbers), numbers);
    folio_gguf_put_tensor(w, "a", FOLIO_TYPE_Q4_0, 2, a_dims);
    folio_gguf_put_tensor(w, "b", FOLIO_TYPE_F32, 1, b_dims);
    folio_gguf_put_tensor(w, "c", FOLIO_TYPE_F16, 3, c_dims);
    return w;
}

/* An image whose tensor bytes count up. */
static uint8_t *build(size_t *size)
{
    uint8_t *image = NULL;
    folio_gguf_writer *w = filled(NULL);
    cr_assert_not_null(w);
    cr_assert_eq(folio_gguf_writer_image(w, &image, size), FOLIO_OK);
    uint8_t v = 0;
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < folio_gguf_writer_bytes(w, i); k++)
            image[folio_gguf_writer_offset(w, i) + k] = v++;
    folio_gguf_writer_close(&w);
    cr_assert_null(w);
    return image;
}

Test(format_gguf_write, reads_back)
{
    size_t size;
    uint8_t *image = build(&size);
    gguf_ear ear = {0};
    folio_log log = {gguf_listen, &ear, FOLIO_LOG_DEBUG};
    folio_gguf *g = NULL;
    folio_gguf_str s;
    int64_t i;
    double f;
    bool b;
    cr_assert_eq(folio_gguf_open_memory(image, size, &log, &g), FOLIO_OK, "%s",
                 ear.last);
    cr_expect_eq(folio_gguf_version(g), 3);
    cr_expect_eq(folio_gguf_n_kv(g), 6);
    cr_expect_eq(folio_gguf_n_tensors(g), 3);
    cr_assert_eq(folio_gguf_get_str(g, "general.architecture", &s), FOLIO_OK);
    cr_expect(s.len == 5 && memcmp(s.data, "llama", 5) == 0);
    cr_assert_eq(folio_gguf_get_i64(g, "a.u32", &i), FOLIO_OK);
    cr_expect_eq(i, UINT32_MAX);
    cr_assert_eq(folio_gguf_get_f64(g, "a.f32", &f), FOLIO_OK);
    cr_expect_eq(f, -0.375);
    cr_assert_eq(folio_gguf_get_bool(g, "a.bool", &b), FOLIO_OK);
    cr_expect(b);
    const folio_gguf_kv *kv = folio_gguf_find(g, "a.strs");
    cr_assert(kv && kv->elem == FOLIO_GGUF_STRING &&
              kv->n == FOLIO_COUNT(words));
    for (size_t k = 0; k < FOLIO_COUNT(words); k++)
        cr_expect(kv->strs[k].len == words[k].len &&
                  memcmp(kv->strs[k].data, words[k].data, words[k].len) == 0);
    kv = folio_gguf_find(g, "a.i32s");
    cr_assert(kv && kv->n == FOLIO_COUNT(numbers));
    for (size_t k = 0; k < FOLIO_COUNT(numbers); k++)
        cr_expect_eq(folio_gguf_elem_i64(kv, k), numbers[k]);

    const struct {
        const char *name;
        folio_type type;
        uint32_t n_dims;
        const uint64_t *dims;
        size_t bytes;
    } want[] = {{"a", FOLIO_TYPE_Q4_0, 2, a_dims, 3 * 2 * 18},
                {"b", FOLIO_TYPE_F32, 1, b_dims, 20},
                {"c", FOLIO_TYPE_F16, 3, c_dims, 256}};
    uint8_t v = 0;
    for (size_t t = 0; t < FOLIO_COUNT(want); t++) {
        const folio_tensor_info *ti = folio_gguf_tensor_at(g, t);
        cr_expect_str_eq(ti->name, want[t].name);
        cr_expect_eq(ti->type, want[t].type);
        cr_expect_eq(ti->n_dims, want[t].n_dims);
        for (uint32_t d = 0; d < want[t].n_dims; d++)
            cr_expect_eq(ti->dims[d], want[t].dims[d]);
        cr_assert_eq(ti->bytes, want[t].bytes);
        cr_expect_eq((ti->data - image) % 32, 0);
        for (size_t k = 0; k < ti->bytes; k++)
            cr_assert_eq(ti->data[k], v++, "%s: byte %zu", ti->name, k);
    }
    cr_expect_eq(size % 32, 0);
    folio_gguf_close(&g);
    folio_aligned_free(image);
}

/* Nothing of what the allocator held before reaches a file. */
Test(format_gguf_write, same_bytes_twice)
{
    size_t n, m;
    uint8_t *dirty = folio_aligned_alloc(4096);
    cr_assert_not_null(dirty);
    memset(dirty, 0xa5, 4096);
    folio_aligned_free(dirty);
    uint8_t *one = build(&n);
    uint8_t *two = build(&m);
    cr_assert_eq(n, m);
    cr_expect_eq(memcmp(one, two, n), 0);
    folio_aligned_free(one);
    folio_aligned_free(two);
}

Test(format_gguf_write, empty_file)
{
    folio_gguf_writer *w = NULL;
    folio_gguf *g = NULL;
    uint8_t *image;
    size_t size;
    cr_assert_eq(folio_gguf_writer_open(NULL, &w), FOLIO_OK);
    cr_assert_eq(folio_gguf_writer_image(w, &image, &size), FOLIO_OK);
    cr_assert_eq(folio_gguf_open_memory(image, size, NULL, &g), FOLIO_OK);
    cr_expect_eq(folio_gguf_n_kv(g) + folio_gguf_n_tensors(g), 0);
    folio_gguf_close(&g);
    folio_gguf_writer_close(&w);
    folio_aligned_free(image);
}

static void refuse_tensor(folio_type type, uint32_t n_dims,
                          const uint64_t *dims, folio_status want,
                          const char *word)
{
    gguf_ear ear = {0};
    folio_log log = {gguf_listen, &ear, FOLIO_LOG_DEBUG};
    folio_gguf_writer *w = NULL;
    uint8_t *image = NULL;
    size_t size = 0;
    cr_assert_eq(folio_gguf_writer_open(&log, &w), FOLIO_OK);
    folio_gguf_put_tensor(w, "odd.one", type, n_dims, dims);
    folio_gguf_put_tensor(w, "fine", FOLIO_TYPE_F32, 1, b_dims);
    cr_expect_eq(folio_gguf_writer_image(w, &image, &size), want, "%s",
                 ear.last);
    cr_expect_null(image);
    cr_expect_eq(size, 0);
    cr_expect_eq(ear.n, 1);
    cr_expect_not_null(strstr(ear.last, "odd.one"), "%s", ear.last);
    cr_expect_not_null(strstr(ear.last, word), "no '%s' in: %s", word,
                       ear.last);
    folio_gguf_writer_close(&w);
}

Test(format_gguf_write, refuses_by_name)
{
    const uint64_t part[] = {31, 2}, none[] = {32, 0};
    const uint64_t huge[] = {UINT64_C(1) << 40, UINT64_C(1) << 40};
    refuse_tensor(FOLIO_TYPE_Q4_0, 2, part, FOLIO_E_INVAL, "31");
    refuse_tensor(FOLIO_TYPE_F32, 2, none, FOLIO_E_INVAL, "is 0");
    refuse_tensor(FOLIO_TYPE_F32, 0, part, FOLIO_E_INVAL, "0 dimensions");
    refuse_tensor(FOLIO_TYPE_F32, 5, part, FOLIO_E_INVAL, "5 dimensions");
    refuse_tensor((folio_type)99, 1, part, FOLIO_E_INVAL, "unknown type");
    refuse_tensor(FOLIO_TYPE_F32, 2, huge, FOLIO_E_TOO_LARGE, "dimension 1");
}

Test(format_gguf_write, without_memory)
{
    bool refused = true;
    for (int nth = 1; refused; nth++) {
        uint8_t *image = NULL;
        size_t size = 0;
        cr_assert_lt(nth, 200, "it never ends");
        fail_alloc_arm(nth);
        folio_gguf_writer *w = filled(NULL);
        const folio_status st =
            w ? folio_gguf_writer_image(w, &image, &size) : FOLIO_E_NOMEM;
        refused = fail_alloc_disarm();
        cr_expect_eq(st, refused ? FOLIO_E_NOMEM : FOLIO_OK, "%d", nth);
        cr_expect_eq(image == NULL, refused);
        folio_gguf_writer_close(&w);
        folio_aligned_free(image);
    }
}

static int n_files(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    cr_assert_not_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

Test(format_gguf_write, saves_whole_files)
{
    char dir[64], path[96], bad[128];
    size_t size;
    uint8_t *image = build(&size);
    gguf_ear ear = {0};
    folio_log log = {gguf_listen, &ear, FOLIO_LOG_DEBUG};
    folio_gguf *g = NULL;
    make_test_dir(dir);
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    /* Over another file, which is longer. */
    cr_assert(gguf_save_bytes(path, image, size));
    FILE *f = fopen(path, "ab");
    cr_assert(f && fwrite(image, 1, size, f) == size && fclose(f) == 0);
    cr_assert_eq(folio_gguf_save(path, image, size, &log), FOLIO_OK, "%s",
                 ear.last);
    struct stat sb;
    cr_assert_eq(stat(path, &sb), 0);
    cr_expect_eq((size_t)sb.st_size, size);
    cr_assert_eq(folio_gguf_open(path, &log, &g), FOLIO_OK, "%s", ear.last);
    const folio_tensor_info *t = folio_gguf_tensor(g, "c");
    cr_assert_not_null(t);
    cr_expect_eq(t->data[3], (uint8_t)(3 * 2 * 18 + 20 + 3));
    folio_gguf_close(&g);
    cr_expect_eq(n_files(dir), 1);

    snprintf(bad, sizeof bad, "%s/none/m.gguf", dir);
    cr_expect_eq(folio_gguf_save(bad, image, size, &log), FOLIO_E_IO);
    cr_expect_not_null(strstr(ear.last, bad), "%s", ear.last);
    /* A folder in the way: nothing stays behind. */
    cr_expect_eq(folio_gguf_save(dir, image, size, &log), FOLIO_E_IO);
    cr_expect_eq(n_files(dir), 1);
    /* A link stays one, and what it leads to is written, or refused. */
    char link[128];
    snprintf(link, sizeof link, "%s/link", dir);
    cr_assert_eq(symlink("m.gguf", link), 0);
    cr_assert(gguf_save_bytes(path, "old", 3));
    cr_assert_eq(folio_gguf_save(link, image, size, &log), FOLIO_OK, "%s",
                 ear.last);
    cr_expect(lstat(link, &sb) == 0 && S_ISLNK(sb.st_mode));
    cr_expect(lstat(path, &sb) == 0 && S_ISREG(sb.st_mode) &&
              (size_t)sb.st_size == size);
    unlink(path);
    cr_expect_eq(folio_gguf_save(link, image, size, &log), FOLIO_E_IO);
    cr_expect_not_null(strstr(ear.last, "not there"), "%s", ear.last);
    unlink(link);
    cr_expect_eq(n_files(dir), 0);
    cr_expect_eq(folio_gguf_save("", image, size, &log), FOLIO_E_IO);
    cr_expect_not_null(strstr(ear.last, "empty"), "%s", ear.last);
    fail_alloc_arm(1);
    const folio_status st = folio_gguf_save(path, image, size, NULL);
    cr_expect(fail_alloc_disarm());
    cr_expect_eq(st, FOLIO_E_NOMEM);
    unlink(path);
    rmdir(dir);
    folio_aligned_free(image);
}
