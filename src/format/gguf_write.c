/* format/gguf_write.c: see gguf_write.h. */
#define _XOPEN_SOURCE 700 /* POSIX of 2008, with realpath */
#include "format/gguf_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGNMENT  32u
#define VERSION    3u
#define HEAD_BYTES 24u /* magic, version, counts */

typedef struct bytes {
    uint8_t *data;
    size_t size, cap;
} bytes;

typedef struct tensor {
    size_t rel; /* from the start of the data */
    size_t n;   /* bytes */
} tensor;

struct folio_gguf_writer {
    folio_log log;
    folio_status st; /* the first failure */
    bytes kvs, infos;
    uint64_t n_kv;
    tensor *tensors;
    size_t n_tensors, cap_tensors;
    size_t data_at, data_size;
};

folio_status folio_gguf_writer_open(const folio_log *log,
                                    folio_gguf_writer **out)
{
    folio_gguf_writer *w = folio_calloc(1, sizeof *w);
    if (!w)
        return folio_fail(log, FOLIO_E_NOMEM, "GGUF: no memory for a writer");
    if (log)
        w->log = *log;
    *out = w;
    return FOLIO_OK;
}

void folio_gguf_writer_close(folio_gguf_writer **pw)
{
    if (!pw || !*pw)
        return;
    folio_gguf_writer *w = *pw;
    free(w->kvs.data);
    free(w->infos.data);
    free(w->tensors);
    FOLIO_FREE(*pw);
}

/* ---- bytes --------------------------------------------------------------- */

static void put(folio_gguf_writer *w, bytes *b, const void *data, size_t n)
{
    size_t need;
    if (w->st != FOLIO_OK)
        return;
    if (!folio_add_size(b->size, n, &need) || need > SIZE_MAX / 4) {
        w->st = folio_fail(&w->log, FOLIO_E_TOO_LARGE,
                           "GGUF: %zu more bytes of metadata than %zu are too "
                           "many",
                           n, b->size);
        return;
    }
    if (need > b->cap) {
        size_t cap = FOLIO_MAX(2 * need, (size_t)4096);
        uint8_t *more = folio_realloc(b->data, cap, 1);
        if (!more) {
            w->st =
                folio_fail(&w->log, FOLIO_E_NOMEM,
                           "GGUF: no memory for %zu bytes of metadata", cap);
            return;
        }
        b->data = more;
        b->cap = cap;
    }
    if (n)
        memcpy(b->data + b->size, data, n);
    b->size = need;
}

static void store_le(uint8_t *to, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (uint8_t)(v >> 8 * i);
}

static void put_le(folio_gguf_writer *w, bytes *b, uint64_t v, size_t n)
{
    uint8_t raw[8];
    store_le(raw, v, n);
    put(w, b, raw, n);
}

static void put_text(folio_gguf_writer *w, bytes *b, const char *s, size_t n)
{
    put_le(w, b, n, 8);
    put(w, b, s, n);
}

static void begin(folio_gguf_writer *w, const char *key, folio_gguf_type type)
{
    put_text(w, &w->kvs, key, strlen(key));
    put_le(w, &w->kvs, (uint64_t)type, 4);
    w->n_kv++;
}

static void begin_array(folio_gguf_writer *w, const char *key,
                        folio_gguf_type elem, uint64_t n)
{
    begin(w, key, FOLIO_GGUF_ARRAY);
    put_le(w, &w->kvs, (uint64_t)elem, 4);
    put_le(w, &w->kvs, n, 8);
}

/* ---- entries ------------------------------------------------------------- */

void folio_gguf_put_u32(folio_gguf_writer *w, const char *key, uint32_t v)
{
    begin(w, key, FOLIO_GGUF_U32);
    put_le(w, &w->kvs, v, 4);
}

void folio_gguf_put_f32(folio_gguf_writer *w, const char *key, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    begin(w, key, FOLIO_GGUF_F32);
    put_le(w, &w->kvs, u, 4);
}

void folio_gguf_put_bool(folio_gguf_writer *w, const char *key, bool v)
{
    begin(w, key, FOLIO_GGUF_BOOL);
    put_le(w, &w->kvs, v, 1);
}

void folio_gguf_put_str(folio_gguf_writer *w, const char *key, const char *s)
{
    begin(w, key, FOLIO_GGUF_STRING);
    put_text(w, &w->kvs, s, strlen(s));
}

void folio_gguf_put_strs(folio_gguf_writer *w, const char *key, uint64_t n,
                         const folio_gguf_str *strs)
{
    begin_array(w, key, FOLIO_GGUF_STRING, n);
    for (uint64_t i = 0; i < n && w->st == FOLIO_OK; i++)
        put_text(w, &w->kvs, strs[i].data, strs[i].len);
}

void folio_gguf_put_i32s(folio_gguf_writer *w, const char *key, uint64_t n,
                         const int32_t *v)
{
    begin_array(w, key, FOLIO_GGUF_I32, n);
    for (uint64_t i = 0; i < n && w->st == FOLIO_OK; i++)
        put_le(w, &w->kvs, (uint32_t)v[i], 4);
}

/* Bytes of a tensor's data; 0 after a message. */
static size_t tensor_bytes(folio_gguf_writer *w, const char *name,
                           folio_type type, uint32_t n_dims,
                           const uint64_t *dims)
{
    const folio_type_info *ti = folio_type_find(type);
    size_t n = ti && n_dims >= 1 && n_dims <= 4
                   ? folio_type_row_bytes(type, dims[0])
                   : 0;
    if (n == 0) {
        w->st = folio_fail(&w->log, FOLIO_E_INVAL,
                           "GGUF: tensor %s: a row of %llu values is not whole "
                           "blocks of %s (%u dimensions)",
                           name, (unsigned long long)(n_dims ? dims[0] : 0),
                           folio_type_any_name(type), n_dims);
        return 0;
    }
    for (uint32_t d = 1; d < n_dims; d++)
        if (dims[d] == 0 || dims[d] > SIZE_MAX / 2 ||
            !folio_mul_size(n, (size_t)dims[d], &n)) {
            w->st =
                folio_fail(&w->log, dims[d] ? FOLIO_E_TOO_LARGE : FOLIO_E_INVAL,
                           "GGUF: tensor %s: dimension %u is %llu", name, d,
                           (unsigned long long)dims[d]);
            return 0;
        }
    return n;
}

void folio_gguf_put_tensor(folio_gguf_writer *w, const char *name,
                           folio_type type, uint32_t n_dims,
                           const uint64_t *dims)
{
    size_t end;
    if (w->st != FOLIO_OK)
        return;
    if (w->n_tensors == w->cap_tensors) {
        size_t cap = w->cap_tensors ? 2 * w->cap_tensors : 64;
        tensor *more = folio_realloc(w->tensors, cap, sizeof *more);
        if (!more) {
            w->st = folio_fail(&w->log, FOLIO_E_NOMEM,
                               "GGUF: no memory for %zu tensors", cap);
            return;
        }
        w->tensors = more;
        w->cap_tensors = cap;
    }
    tensor t = {.rel = w->data_size};
    t.n = tensor_bytes(w, name, type, n_dims, dims);
    if (t.n == 0)
        return;
    if (!folio_add_size(t.rel, t.n, &end) || end > SIZE_MAX - ALIGNMENT) {
        w->st = folio_fail(&w->log, FOLIO_E_TOO_LARGE,
                           "GGUF: tensor %s of %zu bytes behind %zu others",
                           name, t.n, t.rel);
        return;
    }
    put_text(w, &w->infos, name, strlen(name));
    put_le(w, &w->infos, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++)
        put_le(w, &w->infos, dims[d], 8);
    put_le(w, &w->infos, (uint64_t)type, 4);
    put_le(w, &w->infos, t.rel, 8);
    w->data_size = folio_align_up(end, ALIGNMENT);
    w->tensors[w->n_tensors++] = t;
}

/* ---- the file ------------------------------------------------------------ */

folio_status folio_gguf_writer_image(folio_gguf_writer *w, uint8_t **image,
                                     size_t *size)
{
    size_t total;
    if (w->st != FOLIO_OK)
        return w->st;
    size_t head = HEAD_BYTES + w->kvs.size + w->infos.size;
    w->data_at = folio_align_up(head, ALIGNMENT);
    uint8_t *p = NULL;
    if (folio_add_size(w->data_at, w->data_size, &total))
        p = folio_aligned_alloc(total);
    if (!p)
        return folio_fail(&w->log, FOLIO_E_NOMEM,
                          "GGUF: no memory for %zu bytes of tensors",
                          w->data_size);
    memcpy(p, "GGUF", 4);
    store_le(p + 4, VERSION, 4);
    store_le(p + 8, w->n_tensors, 8);
    store_le(p + 16, w->n_kv, 8);
    if (w->kvs.size)
        memcpy(p + HEAD_BYTES, w->kvs.data, w->kvs.size);
    if (w->infos.size)
        memcpy(p + HEAD_BYTES + w->kvs.size, w->infos.data, w->infos.size);
    memset(p + head, 0, w->data_at - head);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const size_t end = w->tensors[i].rel + w->tensors[i].n;
        memset(p + w->data_at + end, 0, folio_align_up(end, ALIGNMENT) - end);
    }
    *image = p;
    *size = total;
    return FOLIO_OK;
}

size_t folio_gguf_writer_offset(const folio_gguf_writer *w, size_t i)
{
    return w->data_at + w->tensors[i].rel;
}

size_t folio_gguf_writer_bytes(const folio_gguf_writer *w, size_t i)
{
    return w->tensors[i].n;
}

static folio_status io_failed(const folio_log *log, const char *path,
                              const char *what)
{
    char why[128];
    if (strerror_r(errno, why, sizeof why) != 0)
        why[0] = '\0';
    return folio_fail(log, FOLIO_E_IO, "%s: cannot be %s: %s", path, what, why);
}

static folio_status write_all(int fd, const char *path, const uint8_t *data,
                              size_t n, const folio_log *log)
{
    while (n > 0) {
        ssize_t k = write(fd, data, FOLIO_MIN(n, (size_t)1 << 28));
        if (k < 0 && errno != EINTR)
            return io_failed(log, path, "written");
        data += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
    return FOLIO_OK;
}

/* The file itself where `path` is a link, which shall stay one; *real is the
 * caller's to free, NULL: no link. */
static folio_status follow(const char *path, const folio_log *log, char **real)
{
    struct stat sb;
    *real = NULL;
    if (lstat(path, &sb) != 0 || !S_ISLNK(sb.st_mode))
        return FOLIO_OK; /* what is wrong with it shows when it is written */
    *real = realpath(path, NULL);
    if (*real)
        return FOLIO_OK;
    return errno == ENOENT ? folio_fail(log, FOLIO_E_IO,
                                        "%s: is a link to a file that is not "
                                        "there",
                                        path)
                           : io_failed(log, path, "followed");
}

folio_status folio_gguf_save(const char *path, const uint8_t *image,
                             size_t size, const folio_log *log)
{
    folio_status st;
    char *real, *part = NULL;
    int fd = -1;
    if (!*path)
        return folio_fail(log, FOLIO_E_IO, "the name of the file is empty");
    FOLIO_RETURN_IF(follow(path, log, &real));
    path = real ? real : path;
    size_t cap = strlen(path) + 32;
    part = folio_calloc(cap, 1);
    if (!part) {
        st = folio_fail(log, FOLIO_E_NOMEM, "%s: no memory for its name", path);
        goto fail;
    }
    snprintf(part, cap, "%s.part-%ld", path, (long)getpid());
    fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        st = io_failed(log, part, "created");
        goto fail;
    }
    st = write_all(fd, part, image, size, log);
    if (close(fd) != 0 && st == FOLIO_OK)
        st = io_failed(log, part, "written");
    if (st == FOLIO_OK && rename(part, path) != 0)
        st = io_failed(log, path, "replaced");
    if (st != FOLIO_OK)
        unlink(part);
fail:
    free(part);
    free(real);
    return st;
}
