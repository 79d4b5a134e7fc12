/* unit/device_util.h: what the tests of device/ share: a log that is kept,
 * folders of one's own, opening the CPU driver or saying why not. */
#ifndef FOLIO_TEST_DEVICE_UTIL_H
#define FOLIO_TEST_DEVICE_UTIL_H

#include "device/impl.h"

/* Messages as "level: text\n" one behind the other. */
typedef struct kept_log {
    char text[65536];
    size_t n;
    int count[4]; /* per level */
} kept_log;
folio_log keep_log(kept_log *k);

/* A fresh folder below $TMPDIR, and its end with all files in it. */
void make_folder(char path[256]);
void remove_folder(const char *path);
/* Files in `path` whose name ends in `ext`; the first one's path into `first`
 * unless NULL. */
int count_files(const char *path, const char *ext, char *first,
                size_t first_bytes);

/* Parameters for PoCL with the cache in `cache` ("" = none) and this log. */
folio_device_params pocl_params(const char *cache, kept_log *k);
/* Opens PoCL; skips the test where it is not installed, unless CI=true. */
folio_device *open_pocl(const char *cache, kept_log *k);

/* A kernel from a text of the test's own. */
folio_status open_text(folio_device *dev, const char *source, const char *entry,
                       const char *options, folio_kernel **out);

/* out[i] += n, arguments as VIEW(int, out), int n. */
extern const char add_source[];
/* out[i] = work that takes about `n` steps; the same arguments. */
extern const char slow_source[];

/* A PoCL device with a queue, a kernel that adds, and two buffers; closing
 * expects that nothing else is left on the device. */
typedef struct setup {
    kept_log log;
    folio_device *dev;
    folio_queue *q;
    folio_kernel *add;
    folio_buf *a, *b;
} setup;

void device_setup_open(setup *s);
void device_setup_close(setup *s);

#endif
