/* Split GGUF files: shards found beside the first, everything that can be wrong
 * with a set named. */
#define _GNU_SOURCE
#include "unit/format_util.h"

static char dir[64];

static void make_dir(void)
{
    make_test_dir(dir);
}

static char *shard_file(char path[128], int no, int count)
{
    snprintf(path, 128, "%s/мод-%05d-of-%05d.gguf", dir, no + 1, count);
    return path;
}

static void remove_dir(void)
{
    char path[128];
    for (int count = 1; count <= 12; count++)
        for (int i = 0; i < 12; i++)
            unlink(shard_file(path, i, count));
    snprintf(path, sizeof path, "%s/other.gguf", dir);
    unlink(path);
    rmdir(dir);
}

/* Shard `no`, with two tensors t<no>.0 and t<no>.1 (the first shard none). The
 * counts are what the keys say. */
static void fill_shard(gguf_writer *w, int no, int count, int n_tensors)
{
    static const uint64_t dims[] = {4};
    char name[32];
    gguf_writer_init(w);
    if (no == 0)
        gguf_put_str(w, "general.architecture", "llama");
    gguf_put_u16(w, "split.no", (uint16_t)no);
    gguf_put_u16(w, "split.count", (uint16_t)count);
    gguf_put_i32(w, "split.tensors.count", n_tensors);
    for (int i = 0; no > 0 && i < 2; i++) {
        float values[4] = {(float)no, (float)i, 0, 0};
        snprintf(name, sizeof name, "t%d.%d", no, i);
        gguf_put_tensor(w, name, FOLIO_TYPE_F32, 1, dims, values);
    }
}

static void write_shard(int no, int count, int n_tensors)
{
    gguf_writer w;
    char path[128];
    fill_shard(&w, no, count, n_tensors);
    cr_assert(gguf_writer_save(&w, shard_file(path, no, count)));
    gguf_writer_fini(&w);
}

static void write_set(int count)
{
    for (int i = 0; i < count; i++)
        write_shard(i, count, 2 * (count - 1));
}

Test(format_split, a_whole_set, .init = make_dir, .fini = remove_dir)
{
    char path[128], name[32];
    folio_gguf *g = NULL;
    write_set(11);
    gguf_ear ear = {0};
    folio_log log = {gguf_listen, &ear, FOLIO_LOG_DEBUG};
    cr_assert_eq(folio_gguf_open(shard_file(path, 0, 11), &log, &g), FOLIO_OK,
                 "%s", ear.last);
    cr_assert_eq(folio_gguf_n_kv(g), 4);
    cr_assert_eq(folio_gguf_n_tensors(g), 20);
    for (int i = 0; i < 20; i++) {
        const folio_tensor_info *t = folio_gguf_tensor_at(g, (size_t)i);
        float values[4];
        snprintf(name, sizeof name, "t%d.%d", 1 + i / 2, i % 2);
        cr_assert_str_eq(t->name, name);
        cr_assert_eq(folio_gguf_tensor(g, name), t);
        cr_assert_eq(t->bytes, sizeof values);
        memcpy(values, t->data, sizeof values);
        cr_assert(values[0] == (float)(1 + i / 2) &&
                  values[1] == (float)(i % 2));
    }
    folio_gguf_close(&g);
}

Test(format_split, not_the_first, .init = make_dir, .fini = remove_dir)
{
    char path[128];
    write_set(3);
    refuse_path(shard_file(path, 1, 3), FOLIO_E_INVAL,
                "this is shard 2 of 3: open the first one, ");
    refuse_path(path, FOLIO_E_INVAL, "мод-00001-of-00003.gguf");
    unlink(shard_file(path, 0, 3));
    refuse_path(shard_file(path, 2, 3), FOLIO_E_INVAL,
                "(missing or unreadable: мод-00001-of-00003.gguf)");
}

Test(format_split, missing_shards, .init = make_dir, .fini = remove_dir)
{
    char path[128];
    write_set(4);
    unlink(shard_file(path, 1, 4));
    unlink(shard_file(path, 3, 4));
    refuse_path(shard_file(path, 0, 4), FOLIO_E_IO,
                "2 of the 4 shards are missing or unreadable: "
                "мод-00002-of-00004.gguf, мод-00004-of-00004.gguf");
    /* A great number of them: the message stays short, the answer quick. */
    gguf_writer w;
    fill_shard(&w, 0, 65535, 2);
    snprintf(path, sizeof path, "%s/other.gguf", dir);
    cr_assert(gguf_writer_save(&w, path));
    refuse_path(path, FOLIO_E_FORMAT, "does not end in -00001-of-65535.gguf");
    gguf_writer_fini(&w);
    fill_shard(&w, 0, 9999, 2);
    snprintf(path, sizeof path, "%s/m-00001-of-09999.gguf", dir);
    cr_assert(gguf_writer_save(&w, path));
    refuse_path(path, FOLIO_E_IO, "9998 of the 9999 shards are missing");
    unlink(path);
    gguf_writer_fini(&w);
}

static void save_as(gguf_writer *w, int no, int count)
{
    char path[128];
    cr_assert(gguf_writer_save(w, shard_file(path, no, count)));
    gguf_writer_fini(w);
}

Test(format_split, shards_that_do_not_fit, .init = make_dir, .fini = remove_dir)
{
    gguf_writer w;
    char path[128], first[128];
    static const uint64_t dims[] = {4};
    shard_file(first, 0, 3);
    write_set(3);

    fill_shard(&w, 1, 3, 4); /* the second one again, as the third */
    save_as(&w, 2, 3);
    gguf_ear ear = {0};
    folio_log log = {gguf_listen, &ear, FOLIO_LOG_DEBUG};
    folio_gguf *g = NULL;
    cr_assert_eq(folio_gguf_open(first, &log, &g), FOLIO_E_FORMAT);
    cr_assert(g == NULL && ear.n == 1);
    cr_assert_not_null(strstr(ear.last, shard_file(path, 2, 3)), "%s",
                       ear.last);
    cr_assert_not_null(strstr(ear.last, "say 2 of 3"), "%s", ear.last);

    fill_shard(&w, 2, 3, 4);
    gguf_put_tensor(&w, "t1.0", FOLIO_TYPE_F32, 1, dims, NULL);
    save_as(&w, 2, 3);
    refuse_path(first, FOLIO_E_FORMAT,
                "split.tensors.count says 4 tensors, "
                "the 3 shard(s) hold 5");
    write_shard(0, 3, 5);
    refuse_path(first, FOLIO_E_FORMAT, "tensor 't1.0' is in two shards");

    cr_assert(gguf_save_bytes(shard_file(path, 1, 3), "<html>", 6));
    ear.n = 0;
    cr_assert_eq(folio_gguf_open(first, &log, &g), FOLIO_E_FORMAT);
    cr_assert_eq(ear.n, 1);
    cr_assert_not_null(strstr(ear.last, "web page"), "%s", ear.last);
    cr_assert_not_null(strstr(ear.last, path), "%s", ear.last);
}

static void refuse_keys(folio_gguf_type no_type, uint64_t no,
                        folio_gguf_type count_type, uint64_t count,
                        const char *words)
{
    gguf_writer w;
    size_t size;
    uint8_t bytes[8];
    gguf_writer_init(&w);
    gguf_patch(bytes, 0, 8, no);
    gguf_put_scalar(&w, "split.no", no_type, bytes);
    gguf_patch(bytes, 0, 8, count);
    gguf_put_scalar(&w, "split.count", count_type, bytes);
    uint8_t *data = gguf_writer_build(&w, &size);
    refuse_bytes(data, size, FOLIO_E_FORMAT, words);
    free(data);
    gguf_writer_fini(&w);
}

Test(format_split, bad_keys)
{
    refuse_keys(FOLIO_GGUF_U16, 3, FOLIO_GGUF_U16, 3,
                "split.no is 3, it must be 0 to 2");
    refuse_keys(FOLIO_GGUF_I32, UINT32_MAX, FOLIO_GGUF_U16, 3,
                "split.no is -1");
    refuse_keys(FOLIO_GGUF_U16, 0, FOLIO_GGUF_U32, 100000,
                "split.count is 100000, it must be 0 to 99999");
    refuse_keys(FOLIO_GGUF_U16, 0, FOLIO_GGUF_U64, UINT64_MAX, "split.count");
    refuse_keys(FOLIO_GGUF_U16, 0, FOLIO_GGUF_F32, 0x40000000,
                "split.count is of type f32");
    refuse_keys(FOLIO_GGUF_U16, 1, FOLIO_GGUF_U16, 0, "split.no is 1");
}

/* Shards joined with cat, where the first one has tensors and where not. */
Test(format_split, joined_end_to_end, .init = make_dir, .fini = remove_dir)
{
    for (int first = 0; first < 2; first++)
        for (int padded = 0; padded < 2; padded++) {
            gguf_writer a, b;
            size_t a_size, b_size;
            fill_shard(&a, first, 3, 4);
            fill_shard(&b, 2, 3, 4);
            uint8_t *x = gguf_writer_build(&a, &a_size);
            uint8_t *y = gguf_writer_build(&b, &b_size);
            size_t at = padded ? folio_align_up(a_size, 32) : a_size;
            uint8_t *both = calloc(1, at + b_size);
            cr_assert_not_null(both);
            memcpy(both, x, a_size);
            memcpy(both + at, y, b_size);
            refuse_bytes(both, at + b_size, FOLIO_E_FORMAT,
                         "shards joined end to end?");
            free(x);
            free(y);
            free(both);
            gguf_writer_fini(&a);
            gguf_writer_fini(&b);
        }
}

Test(format_split, one_shard_alone_and_memory)
{
    gguf_writer w;
    size_t size;
    folio_gguf *g = NULL;
    fill_shard(&w, 0, 1, 0);
    uint8_t *data = gguf_writer_build(&w, &size);
    cr_assert_eq(folio_gguf_open_memory(data, size, NULL, &g), FOLIO_OK);
    folio_gguf_close(&g);
    free(data);
    gguf_writer_fini(&w);
    fill_shard(&w, 0, 2, 2);
    data = gguf_writer_build(&w, &size);
    refuse_bytes(data, size, FOLIO_E_UNSUPPORTED,
                 "cannot be opened from memory");
    free(data);
    gguf_writer_fini(&w);
}
