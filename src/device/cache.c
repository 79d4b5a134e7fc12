/* device/cache.c: the disk cache: entries with a header that proves them whole,
 * written to a temporary name and renamed, so that any number of processes may
 * share a folder; and the marks of builds in progress. Losing the folder costs
 * time and one warning, never a failure. */
#define _GNU_SOURCE
#include "device/impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <folio/version.h>

#define ENTRY_MAGIC   "FOLIOCCH"
#define ENTRY_VERSION 1u
/* No program of folio comes near; a file that claims more is not one. */
#define ENTRY_MAX ((uint64_t)256 << 20)

typedef struct entry_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t key_lo, key_hi;
    uint64_t bytes;
    uint64_t sum_lo, sum_hi; /* of the bytes that follow */
} entry_header;

/* ---- the folder
 * --------------------------------------------------------------- */

static char *join(const char *a, const char *b)
{
    size_t n = strlen(a) + strlen(b) + 1;
    char *text = folio_calloc(n, 1);
    if (text)
        snprintf(text, n, "%s%s", a, b);
    return text;
}

static void warn_once(folio_device *dev, const char *fmt, const char *path,
                      const char *reason)
{
    if (!atomic_exchange(&dev->cache.warned, true))
        folio_logf(&dev->log, FOLIO_LOG_WARN, fmt, path, reason);
}

/* The caller's folder, or the one that XDG's rules give; NULL where the
 * environment names none. */
static char *find_dir(const char *dir)
{
    if (dir)
        return *dir ? join(dir, "") : NULL;
    const char *base = getenv("XDG_CACHE_HOME");
    if (base && *base == '/')
        return join(base, "/folio");
    base = getenv("HOME");
    if (base && *base == '/')
        return join(base, "/.cache/folio");
    return NULL;
}

/* What the driver's compiler makes of a text besides its options: variables
 * that steer it. */
static folio_hash128 hash_device(const folio_device *dev,
                                 const folio_found *found)
{
    static const char *const compiler_env[] = {
        "POCL_WORK_GROUP_METHOD", "POCL_EXTRA_BUILD_FLAGS",
        "CL_CONFIG_CPU_VECTORIZER_MODE", "IGC_VISAOptions"};
    char text[12 * FOLIO_DEVICE_NAME_MAX];
    const folio_device_info *d = &dev->info;
    int at = snprintf(text, sizeof text, "%s|%s|%s|%s|%s|%s|%s|%u",
                      FOLIO_VERSION_STRING, d->platform,
                      found ? found->platform_version : "", d->name, d->vendor,
                      d->driver, d->version, (unsigned)d->max_work_group);
    for (size_t i = 0; found && i < FOLIO_COUNT(compiler_env); i++) {
        const char *value = getenv(compiler_env[i]);
        if (value && at > 0 && (size_t)at < sizeof text)
            at += snprintf(text + at, sizeof text - (size_t)at, "|%zu=%.100s",
                           i, value);
    }
    return folio_hash_bytes(text, strlen(text), 0);
}

void folio_cache_init(folio_device *dev, const folio_found *found,
                      const char *dir)
{
    folio_cache *c = &dev->cache;
    c->device_key = hash_device(dev, found);
    c->dir = find_dir(dir);
    if (!c->dir && !dir && !dev->host)
        warn_once(dev,
                  "no cache folder%s: %s; programs are compiled at each start",
                  "", "neither HOME nor XDG_CACHE_HOME names one");
}

void folio_cache_fini(folio_cache *c)
{
    FOLIO_FREE(c->dir);
}

/* mkdir -p; true if the folder is there. */
static bool make_dir(char *dir)
{
    for (char *p = dir + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        int bad = mkdir(dir, 0700) != 0 && errno != EEXIST && errno != EROFS &&
                  errno != EACCES;
        *p = '/';
        if (bad)
            return false;
    }
    return mkdir(dir, 0700) == 0 || errno == EEXIST;
}

static char *entry_path(const folio_cache *c, folio_hash128 key,
                        const char *ext)
{
    char hex[33];
    folio_hash_hex(key, hex);
    size_t n = strlen(c->dir) + strlen(hex) + strlen(ext) + 3;
    char *path = folio_calloc(n, 1);
    if (path)
        snprintf(path, n, "%s/%s.%s", c->dir, hex, ext);
    return path;
}

/* ---- entries
 * ------------------------------------------------------------------- */

static bool read_all(int fd, void *data, size_t bytes)
{
    uint8_t *p = data;
    while (bytes > 0) {
        ssize_t n = read(fd, p, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    while (bytes > 0) {
        ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* NULL, or the reason why the file is no entry for this key. */
static const char *read_entry(int fd, folio_hash128 key, void **data,
                              size_t *bytes)
{
    entry_header h;
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return "not a file";
    if (!read_all(fd, &h, sizeof h))
        return "shorter than its header";
    if (memcmp(h.magic, ENTRY_MAGIC, sizeof h.magic) != 0 ||
        h.version != ENTRY_VERSION || h.header_bytes != sizeof h)
        return "of another kind or version";
    if (h.key_lo != key.lo || h.key_hi != key.hi)
        return "written for something else";
    if (h.bytes == 0 || h.bytes > ENTRY_MAX ||
        (uint64_t)st.st_size != sizeof h + h.bytes)
        return "cut off or extended";
    void *p = folio_calloc((size_t)h.bytes, 1);
    if (!p)
        return "too large for this machine's memory";
    folio_hash128 sum = {0, 0};
    bool whole = read_all(fd, p, (size_t)h.bytes);
    if (whole)
        sum = folio_hash_bytes(p, (size_t)h.bytes, 0);
    if (!whole || sum.lo != h.sum_lo || sum.hi != h.sum_hi) {
        free(p);
        return "damaged";
    }
    *data = p;
    *bytes = (size_t)h.bytes;
    return NULL;
}

folio_status folio_cache_read(folio_device *dev, folio_hash128 key,
                              const char *ext, void **data, size_t *bytes)
{
    if (!dev->cache.dir)
        return FOLIO_E_NOT_FOUND;
    char *path = entry_path(&dev->cache, key, ext);
    /* O_NONBLOCK: somebody may have put a pipe there. */
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    const char *reason = "absent";
    if (fd >= 0) {
        reason = read_entry(fd, key, data, bytes);
        close(fd);
        if (reason)
            folio_logf(&dev->log, FOLIO_LOG_DEBUG,
                       "cache entry %s is %s: ignored", path, reason);
    }
    free(path);
    if (reason)
        return FOLIO_E_NOT_FOUND;
    atomic_fetch_add(&dev->cache.hits, 1);
    return FOLIO_OK;
}

void folio_cache_write(folio_device *dev, folio_hash128 key, const char *ext,
                       const void *data, size_t bytes)
{
    folio_cache *c = &dev->cache;
    if (!c->dir || bytes == 0 || bytes > ENTRY_MAX)
        return;
    folio_hash128 sum = folio_hash_bytes(data, bytes, 0);
    entry_header h = {.version = ENTRY_VERSION,
                      .header_bytes = sizeof h,
                      .key_lo = key.lo,
                      .key_hi = key.hi,
                      .bytes = bytes,
                      .sum_lo = sum.lo,
                      .sum_hi = sum.hi};
    memcpy(h.magic, ENTRY_MAGIC, sizeof h.magic);
    char *path = entry_path(c, key, ext);
    char *temp = path ? join(path, ".XXXXXX") : NULL;
    int fd = -1, error = 0;
    if (!temp)
        error = ENOMEM;
    else if (!make_dir(c->dir) || (fd = mkostemp(temp, O_CLOEXEC)) < 0)
        error = errno;
    if (fd >= 0) {
        errno = ENOSPC;
        if (!write_all(fd, &h, sizeof h) || !write_all(fd, data, bytes))
            error = errno;
        if (close(fd) != 0 && !error)
            error = errno;
        if (!error && rename(temp, path) != 0)
            error = errno;
        if (error)
            unlink(temp);
    }
    if (error)
        warn_once(dev,
                  "cannot write to the cache folder %s: %s; programs are "
                  "compiled at each start",
                  c->dir, strerror(error));
    else
        atomic_fetch_add(&c->puts, 1);
    free(temp);
    free(path);
}

static folio_hash128 blob_key(const folio_device *dev, const char *name)
{
    folio_hash128 d = dev->cache.device_key;
    folio_hash128 n = folio_hash_bytes(name, strlen(name), d.lo);
    const uint64_t parts[] = {d.lo, d.hi, n.lo, n.hi};
    return folio_hash_bytes(parts, sizeof parts, 1);
}

folio_status folio_device_cache_get(folio_device *dev, const char *name,
                                    void *data, size_t bytes)
{
    void *found = NULL;
    size_t found_bytes = 0;
    folio_hash128 key = blob_key(dev, name);
    if (folio_memo_get(dev, key, data, bytes))
        return FOLIO_OK;
    if (dev->host) /* C code has no text to key a file by */
        return FOLIO_E_NOT_FOUND;
    FOLIO_RETURN_IF(folio_cache_read(dev, key, "blob", &found, &found_bytes));
    bool fits = found_bytes == bytes;
    if (fits) {
        memcpy(data, found, bytes);
        folio_memo_put(dev, key, data, bytes);
    }
    free(found);
    return fits ? FOLIO_OK : FOLIO_E_NOT_FOUND;
}

void folio_device_cache_put(folio_device *dev, const char *name,
                            const void *data, size_t bytes)
{
    folio_hash128 key = blob_key(dev, name);
    folio_memo_put(dev, key, data, bytes);
    if (!dev->host)
        folio_cache_write(dev, key, "blob", data, bytes);
}

/* ---- builds in progress
 * ------------------------------------------------------------ */

/* The mark is a locked file. The lock ends with its process, however that ends,
 * and is seen by processes of other containers, which a process id is not; the
 * id is for the message. */
void folio_building_begin(folio_device *dev, folio_hash128 key,
                          const char *label, folio_building *out)
{
    folio_cache *c = &dev->cache;
    char text[256] = "";
    struct stat opened, named;
    memset(out, 0, sizeof *out);
    out->fd = -1;
    if (!c->dir || !make_dir(c->dir))
        return;
    out->path = entry_path(c, key, "building");
    if (!out->path)
        return;
    int fd = open(out->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0)
        return;
    /* Somebody else is at it, or has just finished and removed the file: then
     * there is nothing to mark or to learn. */
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || fstat(fd, &opened) != 0 ||
        stat(out->path, &named) != 0 || opened.st_ino != named.st_ino ||
        opened.st_dev != named.st_dev) {
        close(fd);
        return;
    }
    out->fd = fd;
    ssize_t n = read(fd, text, sizeof text - 1);
    int strikes = 0;
    long pid = 0;
    if (n > 0 && sscanf(text, "folio-building %d %ld", &strikes, &pid) == 2 &&
        strikes > 0) {
        out->strikes = strikes;
        out->last_pid = pid;
    }
    if (out->strikes >= FOLIO_BUILD_STRIKES)
        return;
    n = snprintf(text, sizeof text, "folio-building %d %ld\n%.100s\n%.100s\n",
                 out->strikes + 1, (long)getpid(), label, dev->info.name);
    if (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0 ||
        !write_all(fd, text, FOLIO_MIN((size_t)n, sizeof text - 1)))
        unlink(out->path);
}

void folio_building_end(folio_building *b, bool done)
{
    if (b->fd >= 0) {
        if (done)
            unlink(b->path);
        close(b->fd);
    }
    FOLIO_FREE(b->path);
    b->fd = -1;
}
