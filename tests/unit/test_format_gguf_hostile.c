/* GGUF files that are wrong: each is refused in under a second, once, with the
 * true cause, nothing written; run under ASan and UBSan as well. Buffers are
 * exactly as long as the file. */
#define _GNU_SOURCE
#include "unit/format_util.h"

#include <sys/stat.h>

#define TWO(n) (UINT64_C(1) << (n))

/* The small file with one field overwritten. */
typedef struct small_file {
    gguf_writer w;
    uint8_t *data;
    size_t size;
} small_file;

static small_file small_open(void)
{
    small_file f;
    gguf_small(&f.w);
    f.data = gguf_writer_build(&f.w, &f.size);
    return f;
}

static void small_close(small_file *f)
{
    free(f->data);
    gguf_writer_fini(&f->w);
}

/* Overwrites, expects the refusal, restores. */
static void try_patch(small_file *f, size_t at, size_t n, uint64_t v,
                      folio_status want, const char *words)
{
    uint8_t old[8];
    memcpy(old, f->data + at, n);
    gguf_patch(f->data, at, n, v);
    refuse_bytes(f->data, f->size, want, words);
    memcpy(f->data + at, old, n);
}

Test(format_hostile, header)
{
    small_file f = small_open();
    try_patch(&f, f.w.version_at, 4, 1, FOLIO_E_UNSUPPORTED,
              "version 1 is not supported");
    try_patch(&f, f.w.version_at, 4, 4, FOLIO_E_UNSUPPORTED, "version 4");
    try_patch(&f, f.w.version_at, 4, 0, FOLIO_E_UNSUPPORTED, "version 0");
    try_patch(&f, f.w.version_at, 4, 0x03000000, FOLIO_E_FORMAT, "big-endian");
    try_patch(&f, f.w.version_at, 4, 0x02000000, FOLIO_E_FORMAT, "big-endian");
    static const uint64_t counts[] = {TWO(60), TWO(63), UINT64_MAX, TWO(32),
                                      1000};
    for (size_t i = 0; i < FOLIO_COUNT(counts); i++) {
        try_patch(&f, f.w.n_kv_at, 8, counts[i], FOLIO_E_FORMAT, " keys, but");
        try_patch(&f, f.w.n_tensors_at, 8, counts[i], FOLIO_E_FORMAT,
                  " tensors, but");
    }
    /* Counts that the size allows but the contents do not. */
    try_patch(&f, f.w.n_tensors_at, 8, 3, FOLIO_E_FORMAT,
              "tensor 3 of 3 has an empty name");
    try_patch(&f, f.w.n_kv_at, 8, 4, FOLIO_E_FORMAT, "tensor");
    small_close(&f);
}

Test(format_hostile, strings_and_keys)
{
    static const uint64_t lens[] = {UINT64_MAX, UINT64_MAX - 7, TWO(63),
                                    TWO(60), 100000};
    small_file f = small_open();
    for (size_t i = 0; i < FOLIO_COUNT(lens); i++) {
        try_patch(&f, f.w.kvs[0].len_at, 8, lens[i], FOLIO_E_FORMAT,
                  "key 1 of 5");
        try_patch(&f, f.w.kvs[0].value_at, 8, lens[i], FOLIO_E_FORMAT,
                  "key 'general.architecture'");
        try_patch(&f, f.w.kvs[3].value_at + 12, 8, lens[i], FOLIO_E_FORMAT,
                  "key 'tokenizer.ggml.tokens'");
        try_patch(&f, f.w.tensors[1].len_at, 8, lens[i], FOLIO_E_FORMAT,
                  "tensor 2 of 2");
    }
    try_patch(&f, f.w.kvs[1].len_at, 8, 0, FOLIO_E_FORMAT,
              "key 2 of 5 has an empty name");
    try_patch(&f, f.w.tensors[0].len_at, 8, 0, FOLIO_E_FORMAT,
              "tensor 1 of 2 has an empty name");
    try_patch(&f, f.w.kvs[1].key_at + 3, 1, 0, FOLIO_E_FORMAT,
              "'lla\\x00a.block_count' holds the control character 0x00");
    try_patch(&f, f.w.kvs[1].key_at + 3, 1, '\n', FOLIO_E_FORMAT, "0x0a");
    try_patch(&f, f.w.tensors[1].name_at, 1, 0x7f, FOLIO_E_FORMAT, "0x7f");
    try_patch(&f, f.w.tensors[1].name_at, 1, 'a', FOLIO_E_FORMAT,
              "tensor 'a' occurs twice");
    small_close(&f);

    gguf_writer w;
    size_t size;
    gguf_small(&w);
    gguf_put_u32(&w, "general.architecture", 1);
    uint8_t *data = gguf_writer_build(&w, &size);
    refuse_bytes(data, size, FOLIO_E_FORMAT,
                 "key 'general.architecture' occurs twice");
    free(data);
    gguf_writer_fini(&w);

    /* A key one byte too long, and its message still short. */
    char *key = malloc(65537);
    cr_assert_not_null(key);
    memset(key, 'k', 65536);
    key[65536] = '\0';
    gguf_writer_init(&w);
    gguf_put_u32(&w, key, 1);
    data = gguf_writer_build(&w, &size);
    refuse_bytes(data, size, FOLIO_E_FORMAT, "at most 65535");
    free(data);
    gguf_writer_fini(&w);
    key[65535] = '\0';
    gguf_put_u32(&w, key, 1);
    data = gguf_writer_build(&w, &size);
    folio_gguf *g = NULL;
    cr_assert_eq(folio_gguf_open_memory(data, size, NULL, &g), FOLIO_OK);
    cr_assert_not_null(folio_gguf_find(g, key));
    folio_gguf_close(&g);
    free(data);
    free(key);
    gguf_writer_fini(&w);
}

Test(format_hostile, value_types_and_arrays)
{
    small_file f = small_open();
    size_t array_at = f.w.kvs[2].value_at;
    static const uint32_t types[] = {13, 14, 255, 0x80000000u, UINT32_MAX};
    for (size_t i = 0; i < FOLIO_COUNT(types); i++) {
        try_patch(&f, f.w.kvs[1].type_at, 4, types[i], FOLIO_E_FORMAT,
                  "key 'llama.block_count' has the unknown value type");
        try_patch(&f, array_at, 4, types[i], FOLIO_E_FORMAT,
                  "'tokenizer.ggml.scores' has the unknown array element type");
    }
    try_patch(&f, array_at, 4, FOLIO_GGUF_ARRAY, FOLIO_E_UNSUPPORTED,
              "array of arrays");
    static const uint64_t lens[] = {UINT64_MAX, TWO(62),     TWO(61),
                                    TWO(60),    TWO(62) + 1, 5000};
    for (size_t i = 0; i < FOLIO_COUNT(lens); i++) {
        try_patch(&f, array_at + 4, 8, lens[i], FOLIO_E_FORMAT,
                  "key 'tokenizer.ggml.scores' says");
        try_patch(&f, f.w.kvs[3].value_at + 4, 8, lens[i], FOLIO_E_FORMAT,
                  "key 'tokenizer.ggml.tokens' says");
    }
    try_patch(&f, f.w.kvs[4].value_at, 1, 2, FOLIO_E_FORMAT,
              "key 'flag' holds the bool 2");
    small_close(&f);
}

/* A file whose only key is general.alignment, in any type and value. */
static void try_alignment(folio_gguf_type type, uint64_t v, const char *words)
{
    static const uint64_t dims[] = {4};
    gguf_writer w;
    size_t size;
    uint8_t bytes[8];
    gguf_patch(bytes, 0, 8, v);
    gguf_writer_init(&w);
    gguf_put_scalar(&w, "general.alignment", type, bytes);
    gguf_put_tensor(&w, "t", FOLIO_TYPE_F32, 1, dims, NULL);
    uint8_t *data = gguf_writer_build(&w, &size);
    refuse_bytes(data, size, FOLIO_E_FORMAT, words);
    free(data);
    gguf_writer_fini(&w);
}

Test(format_hostile, alignment)
{
    static const uint32_t bad[] = {0,  1,  2,           3,         4,
                                   24, 33, TWO(31) + 1, UINT32_MAX};
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++)
        try_alignment(FOLIO_GGUF_U32, bad[i], "must be a power of two");
    /* Allowed by itself, but the data would begin past the end. */
    try_alignment(FOLIO_GGUF_U32, TWO(31), "alignment 2147483648");
    try_alignment(FOLIO_GGUF_U32, TWO(30), "alignment 1073741824");
    try_alignment(FOLIO_GGUF_I32, 32, "type i32, it must be u32");
    try_alignment(FOLIO_GGUF_U64, 32, "type u64, it must be u32");
    try_alignment(FOLIO_GGUF_F32, 0x42000000, "type f32, it must be u32");
    try_alignment(FOLIO_GGUF_U8, 32, "type u8, it must be u32");

    gguf_writer w;
    size_t size;
    gguf_writer_init(&w);
    gguf_put_str(&w, "general.alignment", "32");
    uint8_t *data = gguf_writer_build(&w, &size);
    refuse_bytes(data, size, FOLIO_E_FORMAT, "type string, it must be u32");
    free(data);
    gguf_writer_fini(&w);
    static const uint32_t list[] = {32};
    gguf_put_array(&w, "general.alignment", FOLIO_GGUF_U32, 1, list);
    data = gguf_writer_build(&w, &size);
    refuse_bytes(data, size, FOLIO_E_FORMAT, "type array of u32, it must");
    free(data);
    gguf_writer_fini(&w);
}

/* Both tensors in turn: a bad second one is not overlooked. */
Test(format_hostile, dimensions_and_types)
{
    static const uint32_t n_dims[] = {0, 5, 1000000, UINT32_MAX};
    static const uint32_t types[] = {4, 5, 9, 16, 36, 40, 200, UINT32_MAX};
    static const char *const names[] = {"tensor 'a'", "tensor 'b'"};
    small_file f = small_open();
    for (int t = 0; t < 2; t++) {
        gguf_writer_tensor *at = &f.w.tensors[t];
        for (size_t i = 0; i < FOLIO_COUNT(n_dims); i++)
            try_patch(&f, at->n_dims_at, 4, n_dims[i], FOLIO_E_FORMAT,
                      "dimensions, 1 to 4 are possible");
        for (size_t i = 0; i < FOLIO_COUNT(types); i++)
            try_patch(&f, at->type_at, 4, types[i], FOLIO_E_UNSUPPORTED,
                      names[t]);
        for (uint32_t d = 0; d < at->n_dims; d++) {
            size_t dim_at = at->dims_at + 8 * d;
            try_patch(&f, dim_at, 8, 0, FOLIO_E_FORMAT, " is 0");
            try_patch(&f, dim_at, 8, TWO(42) + (t || d ? 1 : 32),
                      FOLIO_E_FORMAT, "incomplete or damaged: tensor");
            try_patch(&f, dim_at, 8, TWO(62), FOLIO_E_FORMAT, names[t]);
            try_patch(&f, dim_at, 8, TWO(63), FOLIO_E_FORMAT, names[t]);
            try_patch(&f, dim_at, 8, UINT64_MAX, FOLIO_E_FORMAT, names[t]);
        }
    }
    try_patch(&f, f.w.tensors[0].dims_at, 8, TWO(42) + 1, FOLIO_E_FORMAT,
              "a row of tensor 'a' has 4398046511105 values, type Q8_0 needs a "
              "multiple of 32");
    try_patch(&f, f.w.tensors[0].dims_at, 8, 31, FOLIO_E_FORMAT,
              "multiple of 32");
    try_patch(&f, f.w.tensors[0].type_at, 4, 16, FOLIO_E_UNSUPPORTED,
              "type 16 (IQ2_XXS), which this version does not support; it "
              "supports F32, F16");
    /* Four dimensions whose product wraps to something small. */
    gguf_writer w;
    size_t size;
    static const uint64_t ones[] = {1, 1, 1, 1};
    gguf_writer_init(&w);
    gguf_put_tensor(&w, "wrap", FOLIO_TYPE_F32, 4, ones, NULL);
    uint8_t *data = gguf_writer_build(&w, &size);
    for (int d = 0; d < 4; d++)
        gguf_patch(data, w.tensors[0].dims_at + 8 * (size_t)d, 8, TWO(16) + 1);
    refuse_bytes(data, size, FOLIO_E_FORMAT, "more than 2^63 values");
    gguf_patch(data, w.tensors[0].dims_at + 24, 8, TWO(14));
    refuse_bytes(data, size, FOLIO_E_FORMAT, "tensor 'wrap'");
    free(data);
    gguf_writer_fini(&w);
    small_close(&f);
}

Test(format_hostile, offsets_and_extents)
{
    static const uint64_t far[] = {TWO(20),    TWO(40),    TWO(62),    TWO(63),
                                   0 - TWO(5), 0 - TWO(6), 0 - TWO(12)};
    static const uint64_t odd[] = {1, 8, 31, 33, UINT64_MAX, TWO(63) + 1};
    small_file f = small_open();
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < FOLIO_COUNT(far); i++)
            try_patch(&f, f.w.tensors[t].offset_at, 8, far[i], FOLIO_E_FORMAT,
                      "incomplete or damaged: tensor");
        for (size_t i = 0; i < FOLIO_COUNT(odd); i++)
            try_patch(&f, f.w.tensors[t].offset_at, 8, odd[i], FOLIO_E_FORMAT,
                      "no multiple of the alignment 32");
    }
    try_patch(&f, f.w.tensors[1].offset_at, 8, 0, FOLIO_E_FORMAT, "overlaps");
    try_patch(&f, f.w.tensors[1].offset_at, 8, 64, FOLIO_E_FORMAT,
              "the data of tensor 'a' (68 bytes");
    small_close(&f);

    /* One that begins inside another, listed before it. */
    gguf_writer w;
    size_t size;
    static const uint64_t small[] = {1}, big[] = {64};
    gguf_writer_init(&w);
    gguf_put_tensor(&w, "inner", FOLIO_TYPE_F32, 1, small, NULL);
    gguf_put_tensor(&w, "outer", FOLIO_TYPE_F32, 1, big, NULL);
    uint8_t *data = gguf_writer_build(&w, &size);
    gguf_patch(data, w.tensors[0].offset_at, 8, 64);
    gguf_patch(data, w.tensors[1].offset_at, 8, 32);
    refuse_bytes(data, size, FOLIO_E_FORMAT, "'outer'");
    gguf_patch(data, w.tensors[1].offset_at, 8, 0);
    refuse_bytes(data, size, FOLIO_E_FORMAT, "that of tensor 'inner'");
    free(data);
    gguf_writer_fini(&w);
}

/* Cut at every length, as an interrupted download is. */
Test(format_hostile, truncation_at_every_byte)
{
    small_file f = small_open();
    for (size_t n = 0; n < f.size; n++) {
        uint8_t *cut = malloc(n ? n : 1);
        cr_assert_not_null(cut);
        memcpy(cut, f.data, n);
        /* With all entries there it is the data that is missing. */
        const char *words = n >= f.w.tensors[1].offset_at + 8
                                ? "incomplete or damaged: tensor"
                            : n > 0 ? "cut short"
                                    : "the file is empty";
        refuse_bytes(cut, n, FOLIO_E_FORMAT, words);
        free(cut);
    }
    folio_gguf *g = NULL;
    cr_assert_eq(folio_gguf_open_memory(f.data, f.size, NULL, &g), FOLIO_OK);
    folio_gguf_close(&g);
    small_close(&f);
}

/* Every byte set to a few values: whatever the verdict, no crash, and either an
 * object without a message or one message without an object. */
Test(format_hostile, every_byte_flipped)
{
    static const uint8_t masks[] = {0x01, 0x80, 0xff, 0x20};
    small_file f = small_open();
    for (size_t at = 0; at < f.size; at++)
        for (size_t m = 0; m < FOLIO_COUNT(masks); m++) {
            gguf_ear ear = {0};
            folio_log log = {gguf_listen, &ear, FOLIO_LOG_DEBUG};
            folio_gguf *g = NULL;
            f.data[at] ^= masks[m];
            folio_status st = folio_gguf_open_memory(f.data, f.size, &log, &g);
            f.data[at] ^= masks[m];
            cr_assert_eq(st == FOLIO_OK, g != NULL);
            cr_assert_eq(ear.n, st != FOLIO_OK, "byte %zu", at);
            folio_gguf_close(&g);
        }
    small_close(&f);
}

Test(format_hostile, what_is_no_gguf)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *words;
    } cases[] = {
        {"<!DOCTYPE html><html>", 21, "this is a web page"},
        {"\xef\xbb\xbf\r\n <html>", 12, "this is a web page"},
        {"<", 1, "this is a web page"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", 56,
         "Git LFS pointer"},
        {"lmgg\0\0\0\0", 8, "magic ggml"},
        {"fmgg\1\0\0\0", 8, "magic ggmf"},
        {"tjgg\3\0\0\0", 8, "magic ggjt"},
        {"algg\1\0\0\0", 8, "magic ggla"},
        {"ggjt\3\0\0\0", 8, "magic ggjt"},
        {"FUGG\0\0\0\3", 8, "big-endian"},
        {"\x20\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\"}}", 30, "safetensors"},
        {"PK\3\4\x14\0\0\0", 8, "ZIP archive, as PyTorch"},
        {"\x80\2}q\0.", 6, "Python pickle"},
        {"\x1f\x8b\x08\0", 4, "gzip"},
        {"{\"error\":\"Not Found\"}", 21, "JSON"},
        {"\0\0\0\0\0\0\0\0\0\0\0\0", 12, "zero bytes"},
        {"abcdef", 6, "begins with the bytes 61 62 63 64"},
        {"a", 1, "begins with the bytes 61,"},
        {"GGU", 3, "cut short: the file has only 3 bytes"},
        {"GGUF", 4, "cut short"},
        {"", 0, "the file is empty"},
    };
    char dir[64], path[128];
    make_test_dir(dir);
    snprintf(path, sizeof path, "%s/model.gguf", dir);
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++) {
        refuse_bytes(cases[i].bytes, cases[i].n, FOLIO_E_FORMAT,
                     cases[i].words);
        cr_assert(gguf_save_bytes(path, cases[i].bytes, cases[i].n));
        refuse_path(path, FOLIO_E_FORMAT, cases[i].words);
    }
    unlink(path);
    rmdir(dir);
}

Test(format_hostile, what_is_no_file, .timeout = 10)
{
    char dir[64], path[128];
    make_test_dir(dir);
    refuse_path(dir, FOLIO_E_IO, "a directory");
    snprintf(path, sizeof path, "%s/model.gguf", dir);
    refuse_path(path, FOLIO_E_IO, "No such file");
    cr_assert_eq(mkfifo(path, 0600), 0);
    refuse_path(path, FOLIO_E_IO, "a FIFO");
    unlink(path);
    rmdir(dir);
    refuse_path("/dev/zero", FOLIO_E_IO, "a device");
}
