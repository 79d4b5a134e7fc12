/* fuzz/fuzz_gguf.c: whatever the bytes, opening them as GGUF ends with a
 * directory whose every pointer can be read, or with one error message. Needs
 * no corpus: the mutator starts from files of the tests' own writer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/gguf.h"
#include "unit/support_gguf_writer.c"

#define DEMAND(cond)                                                           \
    do {                                                                       \
        if (!(cond)) {                                                         \
            fprintf(stderr, "broken: %s\n", #cond);                            \
            abort();                                                           \
        }                                                                      \
    } while (0)

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

static void count_error(void *user, folio_log_level level, const char *message)
{
    DEMAND(level == FOLIO_LOG_ERROR && message[0] && !strchr(message, '\n'));
    ++*(int *)user;
}

static volatile uint64_t sink;

static void read_all(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += p[i];
    sink += sum;
}

static void read_key(const folio_gguf *g, const folio_gguf_kv *kv)
{
    int64_t i64;
    double f64;
    bool b;
    folio_gguf_str s;
    const folio_gguf_kv *array;
    DEMAND(folio_gguf_find(g, kv->key) == kv && kv->key[0]);
    for (uint64_t i = 0; i < kv->n; i++) {
        if (kv->strs) {
            read_all(kv->strs[i].data, kv->strs[i].len);
            continue;
        }
        sink += (uint64_t)folio_gguf_elem_i64(kv, i);
        DEMAND(folio_gguf_elem_f64(kv, i) != 0x1.8p-1000);
    }
    folio_status st = folio_gguf_get_i64(g, kv->key, &i64);
    DEMAND(st == FOLIO_OK || st == FOLIO_E_FORMAT);
    st = folio_gguf_get_f64(g, kv->key, &f64);
    DEMAND(st == FOLIO_OK || st == FOLIO_E_FORMAT);
    st = folio_gguf_get_bool(g, kv->key, &b);
    DEMAND((st == FOLIO_OK) == (kv->type == FOLIO_GGUF_BOOL));
    st = folio_gguf_get_str(g, kv->key, &s);
    DEMAND((st == FOLIO_OK) == (kv->type == FOLIO_GGUF_STRING));
    st = folio_gguf_get_array(g, kv->key, kv->elem, &array);
    DEMAND((st == FOLIO_OK) == (kv->type == FOLIO_GGUF_ARRAY));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int n_errors = 0;
    folio_log log = {count_error, &n_errors, FOLIO_LOG_DEBUG};
    folio_gguf *g = NULL;
    /* A copy of its own, so that the sanitizer sees its exact end. */
    uint8_t *copy = malloc(size ? size : 1);
    DEMAND(copy);
    if (size)
        memcpy(copy, data, size);
    folio_status st = folio_gguf_open_memory(copy, size, &log, &g);
    DEMAND((st == FOLIO_OK) == (g != NULL));
    DEMAND(n_errors == (st != FOLIO_OK));
    if (g) {
        for (size_t i = 0; i < folio_gguf_n_kv(g); i++)
            read_key(g, folio_gguf_kv_at(g, i));
        for (size_t i = 0; i < folio_gguf_n_tensors(g); i++) {
            const folio_tensor_info *t = folio_gguf_tensor_at(g, i);
            DEMAND(folio_gguf_tensor(g, t->name) == t);
            DEMAND(t->data >= copy && t->bytes <= size &&
                   (size_t)(t->data - copy) <= size - t->bytes);
            size_t bytes = folio_type_row_bytes(t->type, t->dims[0]);
            for (int d = 1; d < 4; d++)
                bytes *= t->dims[d];
            DEMAND(bytes == t->bytes && bytes > 0);
            read_all(t->data, t->bytes);
        }
        folio_gguf_close(&g);
    }
    free(copy);
    return 0;
}

/* A small valid file; `variant` chooses what is in it. */
static uint8_t *sample(unsigned variant, gguf_writer *w, size_t *size)
{
    static const char *const words[] = {"<s>", "", "Ġ t"};
    static const uint64_t dims[] = {32, 2, 1, 2};
    static const float scores[] = {0, -1, 2};
    gguf_writer_init(w);
    w->version = variant & 1 ? 2 : 3;
    if (variant & 2)
        gguf_put_alignment(w, 8u << (variant >> 8 & 3));
    gguf_put_str(w, "general.architecture", "llama");
    gguf_put_u64(w, "llama.block_count", 1);
    if (variant & 4) {
        gguf_put_array(w, "tokenizer.ggml.scores", FOLIO_GGUF_F32, 3, scores);
        gguf_put_strs(w, "tokenizer.ggml.tokens", 3, words);
        gguf_put_bool(w, "flag", true);
    }
    if (variant & 8) {
        gguf_put_u16(w, "split.no", 0);
        gguf_put_u16(w, "split.count", (uint16_t)(1 + (variant >> 10 & 1)));
        gguf_put_i32(w, "split.tensors.count", 2);
    }
    gguf_put_tensor(w, "a", FOLIO_TYPE_Q8_0, 1 + (variant >> 4 & 3), dims,
                    NULL);
    gguf_put_tensor(w, "b", FOLIO_TYPE_F32, 1 + (variant >> 6 & 3), dims, NULL);
    return gguf_writer_build(w, size);
}

/* The fields whose every bit matters. */
static size_t field_at(const gguf_writer *w, unsigned pick)
{
    const gguf_writer_kv *kv = &w->kvs[(pick >> 4) % w->n_kv];
    const gguf_writer_tensor *t = &w->tensors[(pick >> 4) % w->n_tensors];
    const size_t at[] = {w->version_at,    w->n_kv_at,     w->n_tensors_at,
                         kv->len_at,       kv->type_at,    kv->value_at,
                         kv->value_at + 4, t->len_at,      t->n_dims_at,
                         t->dims_at,       t->dims_at + 8, t->type_at,
                         t->offset_at};
    return at[(pick & 15) % FOLIO_COUNT(at)];
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size,
                               unsigned seed)
{
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      4,
                                      5,
                                      9,
                                      13,
                                      32,
                                      255,
                                      0xffffffff,
                                      0x100000000,
                                      UINT64_MAX,
                                      UINT64_MAX - 31,
                                      UINT64_C(1) << 60,
                                      (UINT64_C(1) << 42) + 1,
                                      UINT64_C(1) << 63};
    /* One in sixteen begins anew, at times with one field overwritten. */
    if (size >= 16 && seed % 16 != 0)
        return LLVMFuzzerMutate(data, size, max_size);
    gguf_writer w;
    size_t n;
    uint8_t *file = sample(seed >> 4, &w, &n);
    size_t at = field_at(&w, seed >> 16);
    if ((seed >> 15 & 1) && at + 8 <= n)
        gguf_patch(file, at, seed >> 14 & 1 ? 4 : 8,
                   values[(seed >> 24) % FOLIO_COUNT(values)]);
    gguf_writer_fini(&w);
    if (n > max_size)
        n = max_size;
    memcpy(data, file, n);
    free(file);
    return n;
}
