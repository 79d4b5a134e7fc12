/* device/program.c: program texts from embedded fragments, lazy builds shared
 * by all kernels of a device, and their binaries in the disk cache. */
#include "device/impl.h"
#include "device/embedded.h"
#include "device/probe.h"

#include <stdio.h>
#include <string.h>

/* ---- text
 * -------------------------------------------------------------------- */

static const folio_embedded_file *find_file(const char *name, size_t n)
{
    for (const folio_embedded_file *f = folio_embedded_files; f->name; f++)
        if (strlen(f->name) == n && strncmp(f->name, name, n) == 0)
            return f;
    return NULL;
}

/* The first name that is no fragment's; NULL: all are known. */
static const char *unknown_fragment(const char *fragments)
{
    for (const char *p = fragments + strspn(fragments, " "); *p;) {
        size_t n = strcspn(p, " ");
        if (!find_file(p, n))
            return p;
        p += n;
        p += strspn(p, " ");
    }
    return NULL;
}

char *folio_kernel_source(const char *fragments)
{
    size_t bytes = 1;
    char *text = NULL;
    /* First pass: the size; second pass: the text. */
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        for (const char *p = fragments + strspn(fragments, " "); *p;) {
            size_t n = strcspn(p, " ");
            const folio_embedded_file *f = find_file(p, n);
            if (!f) {
                free(text);
                return NULL;
            }
            /* "#line 1 "name"" and newlines around */
            if (text) {
                at += (size_t)snprintf(text + at, bytes - at,
                                       "#line 1 \"%s\"\n", f->name);
                memcpy(text + at, f->text, f->bytes);
                at += f->bytes;
                text[at++] = '\n';
                text[at] = '\0';
            } else {
                bytes += f->bytes + n + 16;
            }
            p += n;
            p += strspn(p, " ");
        }
        if (!text && !(text = folio_calloc(bytes, 1)))
            return NULL;
    }
    return text;
}

/* Only definitions and OpenCL's own switches; and none that lets a compiler
 * assume that infinities and NaN do not occur. */
static bool options_allowed(const char *options)
{
    static const char *const refused[] = {"-cl-fast-relaxed-math",
                                          "-cl-finite-math-only",
                                          "-cl-unsafe-math-optimizations"};
    bool define_follows = false;
    for (const char *p = options + strspn(options, " "); *p;) {
        size_t n = strcspn(p, " ");
        if (define_follows)
            define_follows = false;
        else if (n == 2 && strncmp(p, "-D", 2) == 0)
            define_follows = true;
        else if (strncmp(p, "-D", 2) != 0 && strncmp(p, "-cl-", 4) != 0)
            return false;
        for (size_t i = 0; i < FOLIO_COUNT(refused); i++)
            if (strlen(refused[i]) == n && strncmp(p, refused[i], n) == 0)
                return false;
        p += n;
        p += strspn(p, " ");
    }
    return !define_follows;
}

static char *complete_options(const folio_device *dev, const char *options)
{
    const char *std = strstr(options, "-cl-std=") ? "" : "-cl-std=CL1.2 ";
    const char *fma = dev->caps & FOLIO_CAP_FMA ? "-D FOLIO_USE_FMA=1 " : "";
    const char *at = dev->ask_address ? "-D FOLIO_ADDRESSES=1 " : "";
    size_t bytes = strlen(options) + 96;
    char *text = folio_calloc(bytes, 1);
    if (text)
        snprintf(text, bytes, "%s%s%s%s", std, fma, at, options);
    return text;
}

static folio_hash128 program_key(const folio_device *dev,
                                 const folio_program_text *t)
{
    folio_hash128 h = dev->cache.device_key;
    folio_hash128 source = folio_hash_bytes(t->source, strlen(t->source), h.lo);
    folio_hash128 options =
        folio_hash_bytes(t->options, strlen(t->options), h.hi);
    const uint64_t parts[] = {h.lo,      h.hi,       source.lo,
                              source.hi, options.lo, options.hi};
    return folio_hash_bytes(parts, sizeof parts, 0);
}

/* ---- building
 * ------------------------------------------------------------------ */

static char *build_log(folio_device *dev, cl_program program)
{
    size_t bytes = 0;
    if (clGetProgramBuildInfo(program, dev->id, CL_PROGRAM_BUILD_LOG, 0, NULL,
                              &bytes) != CL_SUCCESS)
        return NULL;
    char *text = folio_calloc(bytes + 1, 1);
    if (text && clGetProgramBuildInfo(program, dev->id, CL_PROGRAM_BUILD_LOG,
                                      bytes, text, NULL) != CL_SUCCESS)
        text[0] = '\0';
    return text;
}

/* Cuts a compiler's text to its first lines. */
static void first_lines(char *text, int lines, size_t bytes)
{
    size_t at = 0;
    for (; text[at] && at < bytes; at++)
        if (text[at] == '\n' && --lines == 0)
            break;
    text[at] = '\0';
}

static folio_status report_build(folio_device *dev, const folio_program_text *t,
                                 cl_program program, cl_int code)
{
    if (folio_cl_is_fatal(code))
        return folio_device_cl_failed(dev, code, t->label);
    char *text = program ? build_log(dev, program) : NULL;
    if (text)
        first_lines(text, 20, 2000);
    folio_logf(&dev->log, t->level,
               "kernel %s (%s) does not build for device %s, driver %s: %s "
               "(%d)%s%s",
               t->entry, t->label, dev->info.name, dev->info.driver,
               folio_cl_error_name(code), (int)code, text && *text ? "\n" : "",
               text ? text : "");
    free(text);
    if (code != CL_OUT_OF_HOST_MEMORY &&
        code != CL_MEM_OBJECT_ALLOCATION_FAILURE)
        return FOLIO_E_BUILD;
    /* Short of memory is no verdict on the text. */
    atomic_store(&dev->starved, true);
    return FOLIO_E_NOMEM;
}

bool folio_program_assembled(const folio_program_text *t)
{
    return strstr(t->options, "FOLIO_PTX_RETARGET") != NULL;
}

static cl_int compile_once(folio_device *dev, const folio_program_text *t,
                           cl_program *out)
{
    cl_int code = CL_SUCCESS;
    if (folio_program_assembled(t)) {
        *out = folio_ptx_build(dev, t->source, t->options, &code);
    } else {
        *out = clCreateProgramWithSource(
            dev->context, 1, (const char *[]){t->source}, NULL, &code);
        if (code == CL_SUCCESS && *out)
            code = clBuildProgram(*out, 1, &dev->id, t->options, NULL, NULL);
    }
    if (code == CL_SUCCESS && !*out)
        code = CL_BUILD_PROGRAM_FAILURE;
    return code;
}

/* A failure without an error in the text is not about the text: PoCL fails so
 * when several processes fill its own cache at the same time. */
static bool worth_another_try(folio_device *dev, cl_program program,
                              cl_int code)
{
    if (code != CL_BUILD_PROGRAM_FAILURE || !program)
        return false;
    char *text = build_log(dev, program);
    bool blamed = !text || strstr(text, "error") || strstr(text, "Error");
    free(text);
    return !blamed;
}

static folio_status compile(folio_device *dev, const folio_program_text *t,
                            cl_program *out)
{
    cl_program program = NULL;
    atomic_fetch_add(&dev->builds, 1);
    cl_int code = compile_once(dev, t, &program);
    if (worth_another_try(dev, program, code)) {
        folio_logf(&dev->log, FOLIO_LOG_DEBUG,
                   "the compiler refused %s without a reason: once more",
                   t->label);
        clReleaseProgram(program);
        program = NULL;
        code = compile_once(dev, t, &program);
    }
    if (code != CL_SUCCESS) {
        folio_status st = report_build(dev, t, program, code);
        if (program && !folio_device_is_dead(dev))
            clReleaseProgram(program);
        return st;
    }
    char *text = build_log(dev, program);
    if (text && text[strspn(text, " \t\r\n")]) {
        first_lines(text, 20, 2000);
        folio_logf(&dev->log, FOLIO_LOG_DEBUG, "compiler on %s: %s", t->label,
                   text);
    }
    free(text);
    *out = program;
    return FOLIO_OK;
}

/* A compiler that kills its process would do so at every start: the mark that
 * it leaves on disk ends that. */
static folio_status build_source(folio_device *dev, const folio_program_text *t,
                                 folio_hash128 key, cl_program *out)
{
    folio_building mark;
    folio_building_begin(dev, key, t->label, &mark);
    if (mark.strikes >= FOLIO_BUILD_STRIKES) {
        folio_logf(&dev->log, t->level,
                   "kernel %s (%s) is not built for device %s: %d processes "
                   "ended while its compiler was at work, the last was %ld; "
                   "remove %s to try again",
                   t->entry, t->label, dev->info.name, mark.strikes,
                   mark.last_pid, mark.path);
        folio_building_end(&mark, false);
        return FOLIO_E_BUILD;
    }
    uint64_t start = folio_clock_ns();
    folio_status st = compile(dev, t, out);
    folio_building_end(&mark, true);
    if (st == FOLIO_OK)
        folio_logf(&dev->log, FOLIO_LOG_DEBUG, "built %s (%s) in %.2f s",
                   t->entry, t->label,
                   (double)(folio_clock_ns() - start) / 1e9);
    return st;
}

/* ---- binaries
 * ------------------------------------------------------------------- */

/* Place of the device among those a program knows; a wrapped context may have
 * several. */
static bool device_place(folio_device *dev, cl_program program, size_t *place,
                         size_t *n)
{
    cl_device_id ids[64];
    size_t bytes = 0;
    if (clGetProgramInfo(program, CL_PROGRAM_DEVICES, sizeof ids, ids,
                         &bytes) != CL_SUCCESS)
        return false;
    *n = bytes / sizeof *ids;
    for (size_t i = 0; i < *n; i++)
        if (ids[i] == dev->id) {
            *place = i;
            return true;
        }
    return false;
}

static void save_binary(folio_device *dev, folio_program *p)
{
    size_t place = 0, n = 0, sizes[64] = {0};
    unsigned char *out[64] = {NULL};
    p->saved = true;
    if (!dev->cache.dir || !device_place(dev, p->program, &place, &n) ||
        clGetProgramInfo(p->program, CL_PROGRAM_BINARY_SIZES, n * sizeof *sizes,
                         sizes, NULL) != CL_SUCCESS ||
        sizes[place] == 0)
        return;
    /* Places left NULL are skipped by the call. */
    out[place] = folio_calloc(sizes[place], 1);
    if (out[place] &&
        clGetProgramInfo(p->program, CL_PROGRAM_BINARIES, n * sizeof *out, out,
                         NULL) == CL_SUCCESS)
        folio_cache_write(dev, p->key, "program", out[place], sizes[place]);
    free(out[place]);
}

static cl_program load_binary(folio_device *dev, const folio_program_text *t,
                              folio_hash128 key)
{
    void *data = NULL;
    size_t bytes = 0;
    cl_int code = CL_SUCCESS, status = CL_SUCCESS;
    if (folio_cache_read(dev, key, "program", &data, &bytes) != FOLIO_OK)
        return NULL;
    cl_program program = clCreateProgramWithBinary(
        dev->context, 1, &dev->id, &bytes, (const unsigned char *[]){data},
        &status, &code);
    if (code == CL_SUCCESS && program)
        code = clBuildProgram(program, 1, &dev->id, t->options, NULL, NULL);
    free(data);
    if (code == CL_SUCCESS && program)
        return program;
    if (folio_cl_is_fatal(code)) {
        const folio_status st = folio_device_cl_failed(dev, code, t->label);
        (void)st; /* seen by the caller: the device is dead */
        return NULL;
    }
    folio_logf(&dev->log, FOLIO_LOG_DEBUG,
               "the driver does not take the cached binary of %s: %s; building "
               "it anew",
               t->label, folio_cl_error_name(code));
    if (program)
        clReleaseProgram(program);
    return NULL;
}

static cl_kernel create_kernel(cl_program program, const char *entry,
                               cl_int *code)
{
    cl_kernel k = clCreateKernel(program, entry, code);
    return *code == CL_SUCCESS ? k : NULL;
}

/* With the lock held. */
static folio_status find_or_build(folio_device *dev,
                                  const folio_program_text *t, cl_kernel *out)
{
    cl_int code = CL_SUCCESS;
    folio_hash128 key = program_key(dev, t);
    folio_program *p = dev->programs;
    while (p && (p->key.lo != key.lo || p->key.hi != key.hi))
        p = p->next;
    if (!p) {
        p = folio_calloc(1, sizeof *p);
        if (!p)
            return folio_fail(&dev->log, FOLIO_E_NOMEM,
                              "no memory for program %s", t->label);
        p->key = key;
        p->program = load_binary(dev, t, key);
        if (p->program) {
            p->saved = true;
            *out = create_kernel(p->program, t->entry, &code);
            if (!*out && !folio_cl_is_fatal(code)) {
                clReleaseProgram(p->program);
                p->program = NULL;
                p->saved = false;
            }
        }
        folio_status st = FOLIO_OK;
        if (folio_device_is_dead(dev))
            st = FOLIO_E_DEVICE;
        else if (folio_cl_is_fatal(code))
            st = report_build(dev, t, p->program, code);
        else if (!p->program)
            st = build_source(dev, t, key, &p->program);
        if (st != FOLIO_OK) {
            free(p);
            return st;
        }
        p->next = dev->programs;
        dev->programs = p;
        if (*out)
            return FOLIO_OK;
    }
    *out = create_kernel(p->program, t->entry, &code);
    if (!*out)
        return report_build(dev, t, p->program, code);
    /* Some drivers compile only now. */
    if (!p->saved)
        save_binary(dev, p);
    return FOLIO_OK;
}

folio_status folio_program_kernel(folio_device *dev,
                                  const folio_program_text *text,
                                  cl_kernel *out)
{
    cl_kernel k = NULL;
    if (folio_device_is_dead(dev))
        return folio_fail(&dev->log, FOLIO_E_DEVICE, "device %s is lost",
                          dev->info.name);
    pthread_mutex_lock(&dev->lock);
    folio_status st = find_or_build(dev, text, &k);
    pthread_mutex_unlock(&dev->lock);
    if (st == FOLIO_OK)
        *out = k;
    return st;
}

void folio_program_close_all(folio_device *dev)
{
    while (dev->programs) {
        folio_program *p = dev->programs;
        dev->programs = p->next;
        if (!folio_device_is_dead(dev))
            clReleaseProgram(p->program);
        free(p);
    }
}

folio_status folio_kernel_open_at(folio_device *dev,
                                  const folio_kernel_spec *spec,
                                  folio_log_level level, folio_kernel **out)
{
    folio_status st = FOLIO_OK;
    char *source = NULL, *options = NULL;
    if (dev->host)
        return folio_fail(&dev->log, FOLIO_E_INVAL,
                          "the host device has no kernels (%s)", spec->entry);
    const char *wanted = spec->options ? spec->options : "";
    if (!options_allowed(wanted))
        return folio_fail(&dev->log, FOLIO_E_INVAL,
                          "kernel %s: options \"%s\" hold more than -D and "
                          "-cl flags, or relaxed arithmetic",
                          spec->entry, wanted);
    const char *unknown = unknown_fragment(spec->fragments);
    if (unknown)
        return folio_fail(&dev->log, FOLIO_E_INVAL,
                          "kernel %s: no fragment is called %.*s", spec->entry,
                          (int)strcspn(unknown, " "), unknown);
    source = folio_kernel_source(spec->fragments);
    options = complete_options(dev, wanted);
    if (!source || !options)
        FOLIO_TRY(folio_fail(&dev->log, FOLIO_E_NOMEM,
                             "kernel %s: no memory for its text", spec->entry));
    FOLIO_TRY(folio_kernel_new(dev,
                               &(folio_program_text){.label = spec->fragments,
                                                     .source = source,
                                                     .options = options,
                                                     .entry = spec->entry,
                                                     .level = level},
                               out));
fail:
    free(source);
    free(options);
    return st;
}

folio_status folio_kernel_open(folio_device *dev, const folio_kernel_spec *spec,
                               folio_kernel **out)
{
    return folio_kernel_open_at(dev, spec, FOLIO_LOG_WARN, out);
}
