/* The kernels inside the library are the files of cl/, byte for byte, all of
 * them and nothing else. */
#include "base/base.h"
#include "device/embedded.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#define CL_DIR FOLIO_SOURCE_DIR "/cl"

static const folio_embedded_file *find_embedded(const char *name)
{
    for (const folio_embedded_file *f = folio_embedded_files; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

static bool is_kernel_file(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot && (strcmp(dot, ".cl") == 0 || strcmp(dot, ".clh") == 0);
}

static void expect_same_bytes(const folio_embedded_file *f, const char *path)
{
    FILE *in = fopen(path, "rb");
    char *text = malloc(f->bytes + 2);

    cr_assert(in, "%s cannot be read", path);
    cr_assert(text);
    /* One byte more is asked for, so that a longer file shows. */
    size_t n = fread(text, 1, f->bytes + 1, in);
    fclose(in);
    cr_expect_eq(n, f->bytes, "%s: %zu bytes embedded, file differs", path,
                 f->bytes);
    cr_expect(n == f->bytes && memcmp(text, f->text, n) == 0,
              "%s: embedded bytes differ", path);
    cr_expect_eq(f->text[f->bytes], '\0', "%s: not terminated", path);
    free(text);
}

Test(device_embedded, equals_the_files)
{
    DIR *dir = opendir(CL_DIR);
    struct dirent *e;
    size_t n_files = 0, n_embedded = 0;

    cr_assert(dir, CL_DIR " cannot be read");
    while ((e = readdir(dir)) != NULL) {
        char path[4096];

        if (!is_kernel_file(e->d_name))
            continue;
        n_files++;
        const folio_embedded_file *f = find_embedded(e->d_name);
        cr_expect(f, "cl/%s is not embedded", e->d_name);
        snprintf(path, sizeof path, CL_DIR "/%s", e->d_name);
        if (f)
            expect_same_bytes(f, path);
    }
    closedir(dir);
    for (const folio_embedded_file *f = folio_embedded_files; f->name; f++)
        n_embedded++;
    cr_expect_gt(n_files, 0);
    cr_expect_eq(n_files, n_embedded, "cl/ has %zu files, the library %zu",
                 n_files, n_embedded);
}

Test(device_embedded, lines_are_lines)
{
    for (const folio_embedded_file *f = folio_embedded_files; f->name; f++) {
        cr_expect_null(memchr(f->text, '\r', f->bytes), "%s has a CR", f->name);
        cr_expect(f->bytes > 0 && f->text[f->bytes - 1] == '\n',
                  "%s does not end with a newline", f->name);
    }
}
