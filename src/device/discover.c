/* device/discover.c: asks OpenCL for platforms and devices and describes them;
 * explains what is missing where there are none. Opens nothing. */
#define _GNU_SOURCE
#include "device/impl.h"
#include "device/select.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Drivers pad names with blanks and put anything into them; messages are
 * lines. */
static void tidy(const char *text, char out[FOLIO_DEVICE_NAME_MAX])
{
    size_t n = 0;
    for (; *text && n < FOLIO_DEVICE_NAME_MAX - 1; text++) {
        char c = (unsigned char)*text < ' ' ? ' ' : *text;
        if (c != ' ' || (n > 0 && out[n - 1] != ' '))
            out[n++] = c;
    }
    while (n > 0 && out[n - 1] == ' ')
        n--;
    out[n] = '\0';
}

static void device_string(cl_device_id id, cl_device_info what,
                          char out[FOLIO_DEVICE_NAME_MAX])
{
    char text[4096] = "";
    if (clGetDeviceInfo(id, what, sizeof text - 1, text, NULL) != CL_SUCCESS)
        text[0] = '\0';
    tidy(text, out);
}

static void platform_string(cl_platform_id id, cl_platform_info what,
                            char out[FOLIO_DEVICE_NAME_MAX])
{
    char text[4096] = "";
    if (clGetPlatformInfo(id, what, sizeof text - 1, text, NULL) != CL_SUCCESS)
        text[0] = '\0';
    tidy(text, out);
}

static uint64_t device_u64(cl_device_id id, cl_device_info what)
{
    cl_ulong v = 0;
    return clGetDeviceInfo(id, what, sizeof v, &v, NULL) == CL_SUCCESS ? v : 0;
}

static uint32_t device_u32(cl_device_id id, cl_device_info what)
{
    cl_uint v = 0;
    return clGetDeviceInfo(id, what, sizeof v, &v, NULL) == CL_SUCCESS ? v : 0;
}

bool folio_device_has_extension(cl_device_id id, const char *name)
{
    size_t bytes = 0, n = strlen(name);
    bool found = false;
    if (clGetDeviceInfo(id, CL_DEVICE_EXTENSIONS, 0, NULL, &bytes) !=
        CL_SUCCESS)
        return false;
    char *text = folio_calloc(bytes + 1, 1);
    if (text && clGetDeviceInfo(id, CL_DEVICE_EXTENSIONS, bytes, text, NULL) ==
                    CL_SUCCESS)
        for (const char *p = strstr(text, name); p && !found;
             p = strstr(p + n, name))
            found = (p == text || p[-1] == ' ') && (p[n] == ' ' || !p[n]);
    free(text);
    return found;
}

void folio_discover_describe(cl_platform_id platform, cl_device_id id,
                             folio_found *out)
{
    char c_version[FOLIO_DEVICE_NAME_MAX];
    cl_device_type type = 0;
    cl_bool compiler = CL_FALSE, unified = CL_FALSE;
    size_t group = 0;
    int major = 1, minor = 0;

    memset(out, 0, sizeof *out);
    folio_device_info *d = &out->info;
    d->size = sizeof *d;
    d->index = -1;
    out->platform = platform;
    out->id = id;
    platform_string(platform, CL_PLATFORM_NAME, d->platform);
    platform_string(platform, CL_PLATFORM_VERSION, out->platform_version);
    device_string(id, CL_DEVICE_NAME, d->name);
    device_string(id, CL_DEVICE_VENDOR, d->vendor);
    device_string(id, CL_DRIVER_VERSION, d->driver);
    device_string(id, CL_DEVICE_VERSION, d->version);
    device_string(id, CL_DEVICE_OPENCL_C_VERSION, c_version);
    if (sscanf(d->version, "OpenCL %d.%d", &major, &minor) != 2)
        major = 1, minor = 0;
    out->cl_version = major * 100 + minor * 10;
    size_t at = strlen(d->version);
    snprintf(d->version + at, sizeof d->version - at, ", %s", c_version);

    if (clGetDeviceInfo(id, CL_DEVICE_TYPE, sizeof type, &type, NULL) !=
        CL_SUCCESS)
        type = 0;
    /* Deprecated since 2.0, and still the only flag that tells an integrated
     * GPU. */
    if (clGetDeviceInfo(id, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof unified,
                        &unified, NULL) != CL_SUCCESS)
        unified = CL_FALSE;
    if (clGetDeviceInfo(id, CL_DEVICE_COMPILER_AVAILABLE, sizeof compiler,
                        &compiler, NULL) != CL_SUCCESS)
        compiler = CL_FALSE;
    d->kind = folio_select_classify((folio_select_facts){
        .cpu = (type & CL_DEVICE_TYPE_CPU) != 0,
        .gpu = (type & CL_DEVICE_TYPE_GPU) != 0,
        .accelerator = (type & CL_DEVICE_TYPE_ACCELERATOR) != 0,
        .unified = unified != CL_FALSE,
    });
    out->usable = out->cl_version >= 120 && compiler != CL_FALSE;

    d->global_bytes =
        folio_select_sane_bytes(device_u64(id, CL_DEVICE_GLOBAL_MEM_SIZE));
    d->max_alloc_bytes = folio_select_max_alloc(
        d->global_bytes, device_u64(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE), 0);
    d->local_bytes =
        folio_select_sane_bytes(device_u64(id, CL_DEVICE_LOCAL_MEM_SIZE));
    if (d->local_bytes == 0) /* not to be learnt: what each has at least */
        d->local_bytes = (uint64_t)32 << 10;
    d->compute_units = device_u32(id, CL_DEVICE_MAX_COMPUTE_UNITS);
    if (clGetDeviceInfo(id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof group, &group,
                        NULL) != CL_SUCCESS)
        group = 1;
    d->max_work_group = (uint32_t)FOLIO_MIN(FOLIO_MAX(group, 1u), 1u << 20);
    d->base_align =
        folio_select_align_bytes(device_u32(id, CL_DEVICE_MEM_BASE_ADDR_ALIGN));
}

static folio_status add_platform(const folio_log *log, cl_platform_id platform,
                                 folio_found **list, size_t *n)
{
    cl_uint count = 0;
    cl_int code = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, &count);
    if (code != CL_SUCCESS || count == 0) {
        char name[FOLIO_DEVICE_NAME_MAX];
        platform_string(platform, CL_PLATFORM_NAME, name);
        folio_logf(log, FOLIO_LOG_DEBUG, "platform %s has no device (%s)", name,
                   folio_cl_error_name(code));
        return FOLIO_OK;
    }
    cl_device_id *ids = folio_calloc(count, sizeof *ids);
    folio_found *more = folio_realloc(*list, *n + count, sizeof **list);
    if (more)
        *list = more;
    if (!ids || !more) {
        free(ids);
        return FOLIO_E_NOMEM;
    }
    code = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids, NULL);
    for (cl_uint i = 0; code == CL_SUCCESS && i < count; i++, (*n)++) {
        folio_discover_describe(platform, ids[i], &(*list)[*n]);
        (*list)[*n].info.index = (int32_t)*n;
    }
    free(ids);
    return FOLIO_OK;
}

static void log_loader(const folio_log *log)
{
    Dl_info where;
    void *entry = dlsym(RTLD_DEFAULT, "clGetPlatformIDs");
    if (entry && dladdr(entry, &where) && where.dli_fname)
        folio_logf(log, FOLIO_LOG_DEBUG, "OpenCL loader: %s", where.dli_fname);
}

folio_status folio_discover(const folio_log *log, folio_found **list, size_t *n)
{
    folio_status st = FOLIO_OK;
    cl_platform_id *platforms = NULL;
    folio_found *found = NULL;
    size_t n_found = 0;
    cl_uint count = 0;

    log_loader(log);
    cl_int code = clGetPlatformIDs(0, NULL, &count);
    if (code != CL_SUCCESS || count == 0) {
        folio_logf(log, FOLIO_LOG_DEBUG, "no OpenCL platform (%s)",
                   folio_cl_error_name(code));
        *list = NULL;
        *n = 0;
        return FOLIO_OK;
    }
    platforms = folio_calloc(count, sizeof *platforms);
    if (!platforms)
        FOLIO_TRY(folio_fail(log, FOLIO_E_NOMEM,
                             "no memory for %u OpenCL platforms",
                             (unsigned)count));
    code = clGetPlatformIDs(count, platforms, NULL);
    for (cl_uint i = 0; code == CL_SUCCESS && i < count; i++)
        if (add_platform(log, platforms[i], &found, &n_found) != FOLIO_OK)
            FOLIO_TRY(folio_fail(log, FOLIO_E_NOMEM,
                                 "no memory for the list of devices"));
    *list = found;
    *n = n_found;
    found = NULL;
fail:
    free(found);
    free(platforms);
    return st;
}

static int count_entries(const char *dir, const char *prefix,
                         const char *suffix, char *first, size_t first_bytes)
{
    DIR *d = opendir(dir);
    if (!d)
        return -1;
    int n = 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        size_t len = strlen(e->d_name), tail = strlen(suffix);
        if (strncmp(e->d_name, prefix, strlen(prefix)) != 0 || len < tail ||
            strcmp(e->d_name + len - tail, suffix) != 0)
            continue;
        if (n++ == 0 && first)
            snprintf(first, first_bytes, "%s/%s", dir, e->d_name);
    }
    closedir(d);
    return n;
}

void folio_discover_why_none(char *text, size_t bytes)
{
    const char *dir = getenv("OCL_ICD_VENDORS");
    char node[300] = "", where[400];
    if (!dir || !*dir)
        dir = "/etc/OpenCL/vendors";
    size_t len = strlen(dir);
    bool one_file = len > 4 && strcmp(dir + len - 4, ".icd") == 0;
    int entries = one_file ? access(dir, R_OK) == 0
                           : count_entries(dir, "", ".icd", NULL, 0);
    int nodes = count_entries("/dev/dri", "renderD", "", node, sizeof node);
    if (nodes <= 0 && access("/dev/nvidia0", F_OK) == 0) {
        snprintf(node, sizeof node, "/dev/nvidia0");
        nodes = 1;
    }
    if (entries < 0)
        snprintf(where, sizeof where, "the folder %.200s cannot be read", dir);
    else
        snprintf(where, sizeof where, "%.200s holds no .icd file", dir);

    if (entries > 0)
        snprintf(text, bytes,
                 "OpenCL finds no device although %.200s names %d driver%s: "
                 "its library is missing or has no device here%s%s; "
                 "`clinfo -l` shows the same",
                 dir, entries, entries == 1 ? "" : "s",
                 nodes > 0 && access(node, R_OK | W_OK) != 0
                     ? ", or the missing right to open "
                     : "",
                 nodes > 0 && access(node, R_OK | W_OK) != 0 ? node : "");
    else if (nodes > 0)
        snprintf(text, bytes,
                 "there is a GPU (%s) but no OpenCL driver for it: %s; install "
                 "the OpenCL package of its driver (intel-opencl-icd, "
                 "mesa-opencl-icd, nvidia-opencl-icd)",
                 node, where);
    else
        snprintf(text, bytes,
                 "no OpenCL driver is installed: %s; for a GPU install the "
                 "OpenCL package of its driver, for a driver that uses the CPU "
                 "pocl-opencl-icd",
                 where);
}

folio_status folio_device_list(const folio_log *log, folio_device_info *list,
                               size_t cap, size_t *n)
{
    folio_found *found = NULL;
    size_t count = 0;
    if (!n || (cap > 0 && !list))
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_device_list: n or list is NULL");
    FOLIO_RETURN_IF(folio_discover(log, &found, &count));
    if (count == 0) {
        char why[800];
        folio_discover_why_none(why, sizeof why);
        folio_logf(log, FOLIO_LOG_INFO, "%s", why);
    }
    for (size_t i = 0; i < count && i < cap; i++)
        list[i] = found[i].info;
    *n = count;
    free(found);
    return FOLIO_OK;
}
