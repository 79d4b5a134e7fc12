/* GGUF files that are right: every value type, arrays, tensors, alignment,
 * look-ups, memory exhaustion, and the real model file where it is there. */
#define _GNU_SOURCE
#include "unit/format_util.h"

#include <dirent.h>

#include "unit/fail_alloc.h"

static folio_gguf *open_built(gguf_writer *w, uint8_t **data)
{
    size_t size;
    gguf_ear ear = {0};
    folio_log log = {gguf_listen, &ear, FOLIO_LOG_DEBUG};
    folio_gguf *g = NULL;
    *data = gguf_writer_build(w, &size);
    cr_assert_eq(folio_gguf_open_memory(*data, size, &log, &g), FOLIO_OK, "%s",
                 ear.last);
    cr_assert_eq(ear.n, 0);
    return g;
}

static void put_all_scalars(gguf_writer *w)
{
    const uint8_t u8 = 200;
    const int8_t i8 = -100;
    const uint16_t u16 = 60000;
    const int16_t i16 = -30000;
    const int64_t i64 = INT64_MIN;
    const double f64 = 1e300;
    gguf_put_scalar(w, "u8", FOLIO_GGUF_U8, &u8);
    gguf_put_scalar(w, "i8", FOLIO_GGUF_I8, &i8);
    gguf_put_scalar(w, "u16", FOLIO_GGUF_U16, &u16);
    gguf_put_scalar(w, "i16", FOLIO_GGUF_I16, &i16);
    gguf_put_u32(w, "u32", 4000000000u);
    gguf_put_i32(w, "i32", -2000000000);
    gguf_put_f32(w, "f32", 0.1f);
    gguf_put_bool(w, "yes", true);
    gguf_put_bool(w, "no", false);
    gguf_put_bytes(w, "str", "a\0b", 3);
    gguf_put_u64(w, "u64", UINT64_MAX);
    gguf_put_u64(w, "u63", INT64_MAX);
    gguf_put_scalar(w, "i64", FOLIO_GGUF_I64, &i64);
    gguf_put_scalar(w, "f64", FOLIO_GGUF_F64, &f64);
}

Test(format_gguf, every_scalar_type)
{
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {
        {"u8", 200},        {"i8", -100},        {"u16", 60000},
        {"i16", -30000},    {"u32", 4000000000}, {"i32", -2000000000},
        {"u63", INT64_MAX}, {"i64", INT64_MIN},
    };
    gguf_writer w;
    uint8_t *data;
    gguf_writer_init(&w);
    put_all_scalars(&w);
    folio_gguf *g = open_built(&w, &data);
    cr_assert_eq(folio_gguf_version(g), 3);
    cr_assert_eq(folio_gguf_n_kv(g), w.n_kv);
    cr_assert_eq(folio_gguf_n_tensors(g), 0);
    for (size_t i = 0; i < w.n_kv; i++) {
        const folio_gguf_kv *kv = folio_gguf_kv_at(g, i);
        cr_assert_str_eq(kv->key, w.kvs[i].key);
        cr_assert_eq(folio_gguf_find(g, kv->key), kv);
        cr_assert_eq(kv->n, 1);
        cr_assert((kv->type == FOLIO_GGUF_STRING) == (kv->data == NULL));
        cr_assert((kv->type == FOLIO_GGUF_STRING) == (kv->strs != NULL));
    }
    int64_t v;
    for (size_t i = 0; i < FOLIO_COUNT(ints); i++) {
        cr_assert_eq(folio_gguf_get_i64(g, ints[i].key, &v), FOLIO_OK);
        cr_assert_eq(v, ints[i].value, "%s", ints[i].key);
    }
    v = 7;
    cr_assert_eq(folio_gguf_get_i64(g, "u64", &v), FOLIO_E_FORMAT);
    cr_assert_eq(folio_gguf_get_i64(g, "f32", &v), FOLIO_E_FORMAT);
    cr_assert_eq(folio_gguf_get_i64(g, "yes", &v), FOLIO_E_FORMAT);
    cr_assert_eq(folio_gguf_get_i64(g, "str", &v), FOLIO_E_FORMAT);
    cr_assert_eq(folio_gguf_get_i64(g, "absent", &v), FOLIO_E_NOT_FOUND);
    cr_assert_eq(v, 7);
    cr_assert(folio_gguf_elem_f64(folio_gguf_find(g, "u64"), 0) == 0x1p64);

    double d = 7;
    cr_assert_eq(folio_gguf_get_f64(g, "u32", &d), FOLIO_E_FORMAT);
    cr_assert(d == 7);
    cr_assert_eq(folio_gguf_get_f64(g, "f32", &d), FOLIO_OK);
    cr_assert(d == (double)0.1f);
    cr_assert_eq(folio_gguf_get_f64(g, "f64", &d), FOLIO_OK);
    cr_assert(d == 1e300);
    cr_assert_eq(folio_gguf_elem_i64(folio_gguf_find(g, "f64"), 0), INT64_MAX);

    bool b = false;
    cr_assert_eq(folio_gguf_get_bool(g, "u8", &b), FOLIO_E_FORMAT);
    cr_assert_eq(folio_gguf_get_bool(g, "yes", &b), FOLIO_OK);
    cr_assert(b);
    cr_assert_eq(folio_gguf_get_bool(g, "no", &b), FOLIO_OK);
    cr_assert(!b);

    folio_gguf_str s = {0};
    cr_assert_eq(folio_gguf_get_str(g, "u8", &s), FOLIO_E_FORMAT);
    cr_assert_eq(folio_gguf_get_str(g, "str", &s), FOLIO_OK);
    cr_assert(s.len == 3 && memcmp(s.data, "a\0b", 3) == 0);
    folio_gguf_close(&g);
    cr_assert_null(g);
    folio_gguf_close(&g);
    free(data);
    gguf_writer_fini(&w);
}

Test(format_gguf, arrays)
{
    static const int16_t i16[] = {-1, 0, 32767};
    static const float f32[] = {1.5f, -0.25f};
    static const double f64[] = {1e-300, -9e18};
    static const uint8_t bools[] = {1, 0, 1};
    static const uint64_t u64[] = {0, UINT64_MAX};
    static const char *const strs[] = {"x", "", "Ġ t"};
    gguf_writer w;
    uint8_t *data;
    gguf_writer_init(&w);
    gguf_put_str(&w, "odd", "x"); /* so that the arrays are unaligned */
    gguf_put_array(&w, "i16", FOLIO_GGUF_I16, 3, i16);
    gguf_put_array(&w, "f32", FOLIO_GGUF_F32, 2, f32);
    gguf_put_array(&w, "f64", FOLIO_GGUF_F64, 2, f64);
    gguf_put_array(&w, "bools", FOLIO_GGUF_BOOL, 3, bools);
    gguf_put_array(&w, "u64", FOLIO_GGUF_U64, 2, u64);
    gguf_put_array(&w, "u8", FOLIO_GGUF_U8, 3, bools);
    gguf_put_strs(&w, "strs", 3, strs);
    gguf_put_strs(&w, "none", 0, NULL);
    gguf_put_array(&w, "zero", FOLIO_GGUF_U32, 0, NULL);
    folio_gguf *g = open_built(&w, &data);
    const folio_gguf_kv *kv = NULL;

    /* Any integer type stands for another, nothing else does. */
    cr_assert_eq(folio_gguf_get_array(g, "i16", FOLIO_GGUF_I32, &kv), FOLIO_OK);
    cr_assert_eq(kv->n, 3);
    for (uint64_t i = 0; i < 3; i++)
        cr_assert_eq(folio_gguf_elem_i64(kv, i), i16[i]);
    cr_assert_eq(folio_gguf_get_array(g, "f32", FOLIO_GGUF_F32, &kv), FOLIO_OK);
    for (uint64_t i = 0; i < 2; i++)
        cr_assert(folio_gguf_elem_f64(kv, i) == (double)f32[i]);
    cr_assert_eq(folio_gguf_elem_i64(kv, 0), 1);
    cr_assert_eq(folio_gguf_get_array(g, "f64", FOLIO_GGUF_F64, &kv), FOLIO_OK);
    for (uint64_t i = 0; i < 2; i++)
        cr_assert(folio_gguf_elem_f64(kv, i) == f64[i]);
    cr_assert_eq(folio_gguf_get_array(g, "bools", FOLIO_GGUF_BOOL, &kv),
                 FOLIO_OK);
    cr_assert_eq(folio_gguf_elem_i64(kv, 2), 1);
    cr_assert_eq(folio_gguf_get_array(g, "strs", FOLIO_GGUF_STRING, &kv),
                 FOLIO_OK);
    for (uint64_t i = 0; i < 3; i++)
        cr_assert(kv->strs[i].len == strlen(strs[i]) &&
                  memcmp(kv->strs[i].data, strs[i], kv->strs[i].len) == 0);
    cr_assert_eq(folio_gguf_get_array(g, "none", FOLIO_GGUF_STRING, &kv),
                 FOLIO_OK);
    cr_assert_eq(kv->n, 0);
    cr_assert_eq(folio_gguf_get_array(g, "zero", FOLIO_GGUF_I64, &kv),
                 FOLIO_OK);
    cr_assert_eq(kv->n, 0);
    cr_assert(folio_gguf_elem_f64(folio_gguf_find(g, "u64"), 1) == 0x1p64);

    const folio_gguf_kv *kept = kv;
    cr_assert_eq(folio_gguf_get_array(g, "u8", FOLIO_GGUF_F32, &kv),
                 FOLIO_E_FORMAT);
    cr_assert_eq(folio_gguf_get_array(g, "odd", FOLIO_GGUF_STRING, &kv),
                 FOLIO_E_FORMAT);
    cr_assert_eq(folio_gguf_get_array(g, "bools", FOLIO_GGUF_U8, &kv),
                 FOLIO_E_FORMAT);
    cr_assert_eq(folio_gguf_get_array(g, "f64", FOLIO_GGUF_F32, &kv),
                 FOLIO_E_FORMAT);
    cr_assert_eq(folio_gguf_get_array(g, "?", FOLIO_GGUF_F32, &kv),
                 FOLIO_E_NOT_FOUND);
    cr_assert_eq(kv, kept);
    int64_t v;
    cr_assert_eq(folio_gguf_get_i64(g, "i16", &v), FOLIO_E_FORMAT);
    folio_gguf_close(&g);
    free(data);
    gguf_writer_fini(&w);
}

/* Scores stored as bytes: the message has the key and both sides. */
Test(format_gguf, look_up_messages_name_both_sides)
{
    static const uint8_t bytes[] = {1, 2, 3};
    gguf_writer w;
    size_t size;
    gguf_ear ear = {0};
    folio_log log = {gguf_listen, &ear, FOLIO_LOG_DEBUG};
    folio_gguf *g = NULL;
    const folio_gguf_kv *kv;
    gguf_writer_init(&w);
    gguf_put_array(&w, "tokenizer.ggml.scores", FOLIO_GGUF_U8, 3, bytes);
    uint8_t *data = gguf_writer_build(&w, &size);
    cr_assert_eq(folio_gguf_open_memory(data, size, &log, &g), FOLIO_OK);
    cr_assert_eq(
        folio_gguf_get_array(g, "tokenizer.ggml.scores", FOLIO_GGUF_F32, &kv),
        FOLIO_E_FORMAT);
    cr_assert_str_eq(ear.last, "key 'tokenizer.ggml.scores' is of type array "
                               "of u8, wanted is array of f32");
    cr_assert_eq(folio_gguf_get_array(g, "gone", FOLIO_GGUF_F32, &kv),
                 FOLIO_E_NOT_FOUND);
    cr_assert_not_null(strstr(ear.last, "'gone'"));
    cr_assert_eq(folio_gguf_log(g)->user, &ear);
    folio_gguf_close(&g);
    free(data);
    gguf_writer_fini(&w);
}

static void check_tensors(const folio_gguf *g, const gguf_writer *w,
                          const uint8_t *data)
{
    cr_assert_eq(folio_gguf_n_tensors(g), w->n_tensors);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const gguf_writer_tensor *want = &w->tensors[i];
        const folio_tensor_info *t = folio_gguf_tensor_at(g, i);
        cr_assert_str_eq(t->name, want->name);
        cr_assert_eq(folio_gguf_tensor(g, want->name), t);
        cr_assert_eq((uint32_t)t->type, want->type);
        cr_assert_eq(t->n_dims, want->n_dims);
        for (uint32_t d = 0; d < 4; d++)
            cr_assert_eq(t->dims[d], d < want->n_dims ? want->dims[d] : 1);
        cr_assert_eq(t->bytes, want->data.size);
        cr_assert_eq(t->data, data + want->data_at);
        cr_assert_eq(memcmp(t->data, want->data.data, t->bytes), 0);
    }
    cr_assert_null(folio_gguf_tensor(g, "none"));
    cr_assert_null(folio_gguf_find(g, "none"));
}

Test(format_gguf, tensors_of_every_type_alignment_and_version)
{
    static const uint32_t alignments[] = {0, 8, 64, 4096};
    for (size_t a = 0; a < FOLIO_COUNT(alignments); a++) {
        gguf_writer w;
        uint8_t *data;
        char name[32];
        gguf_writer_init(&w);
        w.version = a % 2 ? 2 : 3;
        if (alignments[a])
            gguf_put_alignment(&w, alignments[a]);
        for (uint32_t id = 0; id < 64; id++) {
            const folio_type_info *info = folio_type_find(id);
            if (!info)
                continue;
            uint64_t dims[4] = {info->block_values * 3ull, 2, 3, 2};
            snprintf(name, sizeof name, "t.%s", info->name);
            gguf_put_tensor(&w, name, info->type, 1 + id % 4, dims, NULL);
            gguf_bytes *b = &w.tensors[w.n_tensors - 1].data;
            for (size_t i = 0; i < b->size; i++)
                b->data[i] = (uint8_t)(id + i * 31);
        }
        folio_gguf *g = open_built(&w, &data);
        cr_assert_eq(folio_gguf_version(g), w.version);
        check_tensors(g, &w, data);
        folio_gguf_close(&g);
        free(data);
        gguf_writer_fini(&w);
    }
}

/* Many keys and tensors, so that the tables grow and collide. */
Test(format_gguf, thousands_of_names)
{
    static const uint64_t dims[] = {1};
    gguf_writer w;
    uint8_t *data;
    char name[32];
    gguf_writer_init(&w);
    for (uint32_t i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "blk.%u.x", i);
        gguf_put_u32(&w, name, i);
        gguf_put_tensor(&w, name, FOLIO_TYPE_F32, 1, dims, &i);
    }
    folio_gguf *g = open_built(&w, &data);
    check_tensors(g, &w, data);
    for (uint32_t i = 0; i < 3000; i++) {
        int64_t v;
        snprintf(name, sizeof name, "blk.%u.x", i);
        cr_assert_eq(folio_gguf_get_i64(g, name, &v), FOLIO_OK);
        cr_assert_eq(v, i);
    }
    folio_gguf_close(&g);
    free(data);
    gguf_writer_fini(&w);
}

/* Tensors need not lie in the order in which they are listed, and bytes behind
 * the last one are no harm. */
Test(format_gguf, order_and_tail_are_free)
{
    gguf_writer w;
    size_t size;
    folio_gguf *g = NULL;
    gguf_small(&w);
    uint8_t *data = gguf_writer_build(&w, &size);
    uint64_t a_bytes = w.tensors[0].data.size;
    gguf_patch(data, w.tensors[0].offset_at, 8, 32);
    gguf_patch(data, w.tensors[1].offset_at, 8, 0);
    size_t need = w.data_at + 32 + (size_t)a_bytes;
    data = realloc(data, need + 100);
    cr_assert_not_null(data);
    memset(data + size, 0, need + 100 - size);
    cr_assert_eq(folio_gguf_open_memory(data, need + 100, NULL, &g), FOLIO_OK);
    cr_assert_eq(folio_gguf_tensor(g, "a")->data, data + w.data_at + 32);
    cr_assert_eq(folio_gguf_tensor(g, "b")->data, data + w.data_at);
    folio_gguf_close(&g);
    free(data);
    gguf_writer_fini(&w);
}

static char dir[64];

static void make_dir(void)
{
    make_test_dir(dir);
}

static void remove_dir(void)
{
    char path[512];
    struct dirent *e;
    DIR *d = opendir(dir);
    while (d && (e = readdir(d)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

Test(format_gguf, non_ascii_path, .init = make_dir, .fini = remove_dir)
{
    gguf_writer w;
    folio_gguf *g = NULL;
    char path[256];
    snprintf(path, sizeof path, "%s/модель 🦙.gguf", dir);
    gguf_small(&w);
    cr_assert(gguf_writer_save(&w, path));
    cr_assert_eq(folio_gguf_open(path, NULL, &g), FOLIO_OK);
    cr_assert_eq(folio_gguf_n_tensors(g), 2);
    cr_assert_eq((uintptr_t)folio_gguf_tensor(g, "a")->data % 32, 0);
    folio_gguf_close(&g);
    cr_assert(gguf_save_bytes(path, "GGUF", 4));
    refuse_path(path, FOLIO_E_FORMAT, "cut short");
    gguf_writer_fini(&w);
}

/* Each allocation of an open fails once: NOMEM, nothing written or leaked. */
Test(format_gguf, every_allocation_may_fail)
{
    gguf_writer w;
    size_t size;
    gguf_small(&w);
    uint8_t *data = gguf_writer_build(&w, &size);
    int nth = 1;
    for (;; nth++) {
        gguf_ear ear = {0};
        folio_log log = {gguf_listen, &ear, FOLIO_LOG_DEBUG};
        folio_gguf *g = NULL;
        fail_alloc_arm(nth);
        folio_status st = folio_gguf_open_memory(data, size, &log, &g);
        if (!fail_alloc_disarm()) {
            cr_assert_eq(st, FOLIO_OK);
            folio_gguf_close(&g);
            break;
        }
        cr_assert_eq(st, FOLIO_E_NOMEM, "allocation %d: %s", nth,
                     folio_status_name(st));
        cr_assert_null(g);
        cr_assert_eq(ear.n, 1, "allocation %d", nth);
    }
    cr_assert_gt(nth, 15);
    free(data);
    gguf_writer_fini(&w);
}

static bool find_model(char *path, size_t size)
{
    const char *file = "folio/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    const char *env = getenv("FOLIO_TEST_MODEL");
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (env && *env)
        snprintf(path, size, "%s", env);
    else if (cache && *cache)
        snprintf(path, size, "%s/%s", cache, file);
    else
        snprintf(path, size, "%s/.cache/%s", home ? home : "", file);
    return access(path, R_OK) == 0;
}

Test(format_gguf, the_real_model)
{
    char path[1024];
    folio_gguf *g = NULL;
    int64_t v;
    double d;
    const folio_gguf_kv *kv;
    if (!find_model(path, sizeof path)) {
        const char *ci = getenv("CI");
        cr_assert(!ci || strcmp(ci, "true") != 0, "%s is missing", path);
        cr_skip_test("the model file is not there: %s", path);
    }
    uint64_t start = folio_clock_ns();
    cr_assert_eq(folio_gguf_open(path, NULL, &g), FOLIO_OK);
    cr_assert_lt(folio_clock_ns() - start, 1000000000u);
    cr_assert_eq(folio_gguf_n_kv(g), 33);
    cr_assert_eq(folio_gguf_n_tensors(g), 272);
    cr_assert_eq(folio_gguf_get_i64(g, "llama.block_count", &v), FOLIO_OK);
    cr_assert_eq(v, 30);
    cr_assert_eq(folio_gguf_get_f64(g, "llama.rope.freq_base", &d), FOLIO_OK);
    cr_assert(d == 100000);
    cr_assert_eq(folio_gguf_get_array(g, "tokenizer.ggml.tokens",
                                      FOLIO_GGUF_STRING, &kv),
                 FOLIO_OK);
    cr_assert_eq(kv->n, 49152);
    cr_assert_eq(folio_gguf_get_array(g, "tokenizer.ggml.token_type",
                                      FOLIO_GGUF_I32, &kv),
                 FOLIO_OK);
    cr_assert_eq(kv->n, 49152);
    const folio_tensor_info *t = folio_gguf_tensor(g, "token_embd.weight");
    cr_assert_not_null(t);
    cr_assert_eq(t->type, FOLIO_TYPE_Q8_0);
    cr_assert(t->n_dims == 2 && t->dims[0] == 576 && t->dims[1] == 49152);
    cr_assert_eq(t->bytes, 576u / 32 * 34 * 49152);
    cr_assert_null(folio_gguf_tensor(g, "output.weight"));
    folio_gguf_close(&g);
}
