/* unit/format_util.h: what the GGUF tests share: a log that remembers, a small
 * valid file, and "this file is refused for that reason, quickly". */
#ifndef FOLIO_UNIT_FORMAT_UTIL_H
#define FOLIO_UNIT_FORMAT_UTIL_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "unit/support_gguf_writer.h"

typedef struct gguf_ear {
    int n;           /* messages at ERROR */
    char last[4200]; /* the newest one */
} gguf_ear;

static inline void gguf_listen(void *user, folio_log_level level,
                               const char *message)
{
    gguf_ear *e = user;
    e->n += level == FOLIO_LOG_ERROR;
    snprintf(e->last, sizeof e->last, "%s", message);
}

/* Two keys of each kind that matters, two tensors: kvs[0] string, [1] u32,
 * [2] array of f32, [3] array of string, [4] bool; tensors "a" and "b". */
static inline void gguf_small(gguf_writer *w)
{
    static const char *const words[] = {"one", "", "three"};
    static const float scores[] = {0.5f, -1.0f, 2.0f};
    static const uint64_t a_dims[] = {32, 2}, b_dims[] = {3};
    gguf_writer_init(w);
    gguf_put_str(w, "general.architecture", "llama");
    gguf_put_u32(w, "llama.block_count", 2);
    gguf_put_array(w, "tokenizer.ggml.scores", FOLIO_GGUF_F32, 3, scores);
    gguf_put_strs(w, "tokenizer.ggml.tokens", 3, words);
    gguf_put_bool(w, "flag", true);
    gguf_put_tensor(w, "a", FOLIO_TYPE_Q8_0, 2, a_dims, NULL);
    gguf_put_tensor(w, "b", FOLIO_TYPE_F32, 1, b_dims, scores);
}

/* One error, that names `words`, in less than a second; nothing is written. */
static inline void gguf_refused(folio_status st, const gguf_ear *ear,
                                const folio_gguf *out, uint64_t start_ns,
                                folio_status want, const char *words)
{
    uint64_t took = folio_clock_ns() - start_ns;
    cr_assert_eq(st, want, "%s instead of %s: %s", folio_status_name(st),
                 folio_status_name(want), ear->last);
    cr_assert_null(out, "the output was written");
    cr_assert_eq(ear->n, 1, "%d messages, last: %s", ear->n, ear->last);
    cr_assert_not_null(strstr(ear->last, words), "no '%s' in: %s", words,
                       ear->last);
    cr_assert_null(strchr(ear->last, '\n'), "two lines: %s", ear->last);
    cr_assert_lt(took, 1000000000u, "%llu ns", (unsigned long long)took);
}

static inline void refuse_bytes(const void *data, size_t size,
                                folio_status want, const char *words)
{
    gguf_ear ear = {0};
    folio_log log = {gguf_listen, &ear, FOLIO_LOG_DEBUG};
    folio_gguf *g = NULL;
    uint64_t start = folio_clock_ns();
    folio_status st = folio_gguf_open_memory(data, size, &log, &g);
    gguf_refused(st, &ear, g, start, want, words);
}

static inline void refuse_path(const char *path, folio_status want,
                               const char *words)
{
    gguf_ear ear = {0};
    folio_log log = {gguf_listen, &ear, FOLIO_LOG_DEBUG};
    folio_gguf *g = NULL;
    uint64_t start = folio_clock_ns();
    folio_status st = folio_gguf_open(path, &log, &g);
    gguf_refused(st, &ear, g, start, want, words);
    cr_assert_not_null(strstr(ear.last, path), "no path in: %s", ear.last);
}

/* A folder for one test; remove takes plain files with it. */
static inline void make_test_dir(char dir[64])
{
    const char *tmp = "/tmp/folio-unit-XXXXXX";
    memcpy(dir, tmp, strlen(tmp) + 1);
    cr_assert_not_null(mkdtemp(dir));
}

#endif
