/* base/file_map.c: read-only mappings of regular files. Never blocks on what
 * is not a regular file. A file that another program shortens while it is
 * mapped cannot be guarded against here. */
#define _POSIX_C_SOURCE 200809L
#include "base/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_name(mode_t mode)
{
    if (S_ISDIR(mode))
        return "a directory";
    if (S_ISFIFO(mode))
        return "a FIFO";
    if (S_ISCHR(mode) || S_ISBLK(mode))
        return "a device";
    if (S_ISSOCK(mode))
        return "a socket";
    return "something else";
}

static const char *reason(int err, char *buf, size_t size)
{
    if (strerror_r(err, buf, size) != 0)
        buf[0] = '\0';
    return buf;
}

folio_status folio_file_map_open(const char *path, const folio_log *log,
                                 folio_file_map *out)
{
    folio_status st = FOLIO_OK;
    folio_file_map m = {NULL, 0};
    char why[128];
    struct stat sb;

    if (!*path)
        return folio_fail(log, FOLIO_E_IO, "the name of the file is empty");
    /* O_NONBLOCK: a FIFO without a writer opens at once. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return folio_fail(log, FOLIO_E_IO, "%s: cannot open: %s", path,
                          reason(errno, why, sizeof why));
    if (fstat(fd, &sb) != 0) {
        st = folio_fail(log, FOLIO_E_IO, "%s: cannot read its size: %s", path,
                        reason(errno, why, sizeof why));
        goto fail;
    }
    if (!S_ISREG(sb.st_mode)) {
        st = folio_fail(log, FOLIO_E_IO, "%s: is %s, not a regular file", path,
                        kind_name(sb.st_mode));
        goto fail;
    }
    if (sb.st_size < 0 || (uintmax_t)sb.st_size > (uintmax_t)PTRDIFF_MAX) {
        st = folio_fail(log, FOLIO_E_IO,
                        "%s: %jd bytes do not fit this address space", path,
                        (intmax_t)sb.st_size);
        goto fail;
    }
    if (sb.st_size > 0) {
        void *p = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            st = folio_fail(log, FOLIO_E_IO, "%s: cannot map %jd bytes: %s",
                            path, (intmax_t)sb.st_size,
                            reason(errno, why, sizeof why));
            goto fail;
        }
        m.data = p;
        m.size = (size_t)sb.st_size;
    }
    *out = m;
fail:
    close(fd);
    return st;
}

void folio_file_map_close(folio_file_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    m->data = NULL;
    m->size = 0;
}
