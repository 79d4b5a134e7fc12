/* device/device.c: opening, wrapping, counting and closing devices, and the
 * settings that come from the environment. Decides which device is opened with
 * select.c's rules; knows no kernels. */
#define _POSIX_C_SOURCE 200809L
#include "device/impl.h"
#include "device/native.h"
#include "device/select.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void folio_device_params_default(folio_device_params *p)
{
    memset(p, 0, sizeof *p);
    p->size = sizeof *p;
    p->wait_ms = 120000;
}

static const char *const cap_names[] = {
    "cpu",          "gpu",
    "local",        "half_arith",
    "subgroup_khr", "subgroup_intel",
    "dot4_khr",     "ptx",
    "ptx_dp4a",     "ptx_mma",
    "ptx_retarget", "big_local",
    "fence_device", "command_buffer",
    "fma",          "ptx_bulk",
    "address",
};

const char *folio_cap_name(int bit)
{
    if (bit < 0 || (size_t)bit >= FOLIO_COUNT(cap_names))
        return NULL;
    return cap_names[bit];
}

/* ---- settings ------------------------------------------------------------ */

/* One number, or names as folio_cap_name gives them separated by commas. */
static bool parse_caps(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 0);
    if (errno == 0 && end != text && *end == '\0' && *text != '-') {
        *out = value;
        return true;
    }
    value = 0;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ",");
        int bit = 0;
        for (; folio_cap_name(bit); bit++)
            if (strlen(folio_cap_name(bit)) == n &&
                strncmp(folio_cap_name(bit), p, n) == 0)
                break;
        if (!folio_cap_name(bit))
            return false;
        value |= (uint64_t)1 << bit;
        p += n + (p[n] == ',');
    }
    *out = value;
    return true;
}

static bool parse_bytes(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *text >= '0' && *text <= '9' && *end == '\0';
}

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* What FOLIO_PACKING may say; ops/pack.c knows what it means. */
static bool is_packing(const char *text)
{
    return !strcmp(text, "raw") || !strcmp(text, "rg16") ||
           !strcmp(text, "tile16");
}

/* A number above 0 of 31 bits, and what stands behind it. */
static bool parse_count(const char *p, char **rest, int32_t *out)
{
    const long v = *p >= '0' && *p <= '9' ? strtol(p, rest, 10) : 0;
    if (v <= 0 || v > INT32_MAX)
        return false;
    *out = (int32_t)v;
    return true;
}

/* Whether it is "variant:NAME=number,NAME=number;variant:..." as folio_tuned
 * reads it. */
static bool is_tune(const char *p)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    char *rest = NULL;
    int32_t v;
    for (;;) {
        size_t n = strspn(p, letters);
        if (n == 0 || p[n] != ':')
            return false;
        do {
            p += n + 1;
            n = strspn(p, letters);
            if (n == 0 || p[n] != '=' || !parse_count(p + n + 1, &rest, &v))
                return false;
            p = rest;
            n = 0;
        } while (*p == ',');
        if (*p == ';')
            p++;
        else if (*p)
            return false;
        if (!*p)
            return true;
    }
}

/* The switches that only some devices and kernels look at, later: what is wrong
 * with them is said on all devices, when one is opened. */
static folio_status check_switches(const folio_log *log)
{
    const char *text = env("FOLIO_PACKING");
    if (text && !is_packing(text))
        return folio_fail(log, FOLIO_E_INVAL,
                          "FOLIO_PACKING=%s is not raw, rg16 or tile16", text);
    text = env("FOLIO_ADDRESSES");
    if (text && strcmp(text, "0") && strcmp(text, "1"))
        return folio_fail(log, FOLIO_E_INVAL,
                          "FOLIO_ADDRESSES=%s is not 0 or 1", text);
    text = env("FOLIO_TUNE");
    if (text && !is_tune(text))
        return folio_fail(log, FOLIO_E_INVAL,
                          "FOLIO_TUNE=%s is not a list like "
                          "variant:NAME=n,NAME=n;variant:NAME=n with numbers "
                          "from 1 to %d",
                          text, INT32_MAX);
    return FOLIO_OK;
}

static folio_status read_settings(const folio_device_params *p,
                                  folio_device_settings *s)
{
    folio_device_params def;
    memset(s, 0, sizeof *s);
    if (!p) {
        folio_device_params_default(&def);
        p = &def;
    }
    /* A shorter struct may end before its log; 0 was only forgotten. */
    if (p->size != sizeof *p) {
        bool has_log = p->size == 0 || p->size > sizeof *p;
        return folio_fail(has_log ? &p->log : NULL, FOLIO_E_INVAL,
                          "folio_device_params.size is %zu, not %zu: call "
                          "folio_device_params_default first",
                          p->size, sizeof *p);
    }
    const folio_log *log = &p->log;
    s->log = p->log;
    s->select = p->select;
    s->select_from = "the caller";
    if (!s->select && (s->select = env("FOLIO_DEVICE")) != NULL)
        s->select_from = "FOLIO_DEVICE";
    s->n_threads = p->n_threads;
    s->cache_dir = p->cache_dir ? p->cache_dir : env("FOLIO_CACHE_DIR");
    s->caps_off = p->caps_off;
    s->max_alloc_bytes = p->max_alloc_bytes;
    s->wait_ms = p->wait_ms;

    if (p->n_threads < 0 || p->n_threads > 1024)
        return folio_fail(log, FOLIO_E_INVAL, "n_threads %d is not in 0..1024",
                          (int)p->n_threads);
    if (p->wait_ms < 0)
        return folio_fail(log, FOLIO_E_INVAL, "wait_ms %d is negative",
                          (int)p->wait_ms);
    const char *text = env("FOLIO_CAPS_MASK");
    uint64_t mask = 0;
    if (text && !parse_caps(text, &mask))
        return folio_fail(log, FOLIO_E_INVAL,
                          "FOLIO_CAPS_MASK=%s is neither a number nor a list "
                          "of capability names",
                          text);
    s->caps_off |= mask;
    FOLIO_RETURN_IF(check_switches(log));
    text = env("FOLIO_ADDRESSES");
    s->addresses = text && *text == '1';
    text = env("FOLIO_MAX_ALLOC");
    if (text && s->max_alloc_bytes == 0 &&
        (!parse_bytes(text, &s->max_alloc_bytes) || s->max_alloc_bytes == 0))
        return folio_fail(log, FOLIO_E_INVAL,
                          "FOLIO_MAX_ALLOC=%s is not a number of bytes above 0",
                          text);
    return FOLIO_OK;
}

bool folio_variant_disabled(const char *name)
{
    const char *list = env("FOLIO_DISABLE");
    size_t n = strlen(name);
    for (const char *p = list; p && *p;) {
        size_t len = strcspn(p, ",");
        if (len == n && strncmp(p, name, n) == 0)
            return true;
        p += len + (p[len] == ',');
    }
    return false;
}

const char *folio_packing_wish(void)
{
    return env("FOLIO_PACKING");
}

/* Whether the text at p begins with `name` and then `end`. */
static bool begins(const char *p, const char *name, char end)
{
    size_t n = strlen(name);
    return strncmp(p, name, n) == 0 && p[n] == end;
}

int32_t folio_tuned(const char *variant, const char *name, int32_t usual)
{
    const char *p = env("FOLIO_TUNE");
    for (; p && *p; p += strcspn(p, ";"), p += *p == ';') {
        if (!begins(p, variant, ':'))
            continue;
        const char *end = p + strcspn(p, ";");
        for (p += strlen(variant) + 1; p < end;
             p += strcspn(p, ",;"), p += *p == ',') {
            if (!begins(p, name, '='))
                continue;
            char *rest;
            int32_t v;
            return parse_count(p + strlen(name) + 1, &rest, &v) &&
                           (*rest == '\0' || *rest == ',' || *rest == ';')
                       ? v
                       : usual;
        }
    }
    return usual;
}

const char *folio_device_disable_list_once(folio_device *dev)
{
    const char *list = env("FOLIO_DISABLE");
    return list && !atomic_exchange(&dev->told_disable, true) ? list : NULL;
}

const char *folio_device_tune_list_once(folio_device *dev)
{
    const char *list = env("FOLIO_TUNE");
    return list && !atomic_exchange(&dev->told_tune, true) ? list : NULL;
}

/* ---- making and closing ---------------------------------------------------
 */

static void free_device(folio_device *dev)
{
    folio_address_close(dev);
    folio_queue_close(&dev->aux);
    folio_program_close_all(dev);
    if (dev->context && !folio_device_is_dead(dev))
        clReleaseContext(dev->context);
    if (dev->id && !folio_device_is_dead(dev))
        clReleaseDevice(dev->id);
    folio_thread_pool_close(&dev->pool);
    folio_cache_fini(&dev->cache);
    folio_memo_fini(dev);
    pthread_mutex_destroy(&dev->lock);
    free(dev);
}

folio_status folio_device_new_cl(const folio_found *found, cl_context context,
                                 const folio_device_settings *s,
                                 folio_device **out)
{
    folio_status st = FOLIO_OK;
    cl_int code = CL_SUCCESS;
    cl_device_local_mem_type local = CL_GLOBAL;
    folio_device *dev = folio_calloc(1, sizeof *dev);
    if (!dev || pthread_mutex_init(&dev->lock, NULL) != 0) {
        free(dev);
        return folio_fail(&s->log, FOLIO_E_NOMEM, "no memory for a device");
    }
    atomic_init(&dev->refs, 1);
    dev->info = found->info;
    dev->log = s->log;
    dev->wait_ms = s->wait_ms;
    dev->platform = found->platform;
    dev->cl_version = found->cl_version;
    dev->info.max_alloc_bytes = folio_select_max_alloc(
        dev->info.global_bytes, dev->info.max_alloc_bytes, s->max_alloc_bytes);

    if (context) {
        FOLIO_CL(dev, clRetainContext(context));
        dev->context = context;
    } else {
        const cl_context_properties props[] = {
            CL_CONTEXT_PLATFORM, (cl_context_properties)found->platform, 0};
        dev->context = clCreateContext(props, 1, &found->id, NULL, NULL, &code);
        if (code != CL_SUCCESS || !dev->context) {
            dev->context = NULL;
            FOLIO_TRY(folio_device_cl_failed(dev, code, "clCreateContext"));
        }
    }
    FOLIO_CL(dev, clRetainDevice(found->id));
    dev->id = found->id;
    if (clGetDeviceInfo(dev->id, CL_DEVICE_MAX_WORK_ITEM_SIZES,
                        sizeof dev->max_items, dev->max_items,
                        NULL) != CL_SUCCESS)
        for (int i = 0; i < 3; i++)
            dev->max_items[i] = dev->info.max_work_group;
    if (clGetDeviceInfo(dev->id, CL_DEVICE_LOCAL_MEM_TYPE, sizeof local, &local,
                        NULL) != CL_SUCCESS)
        local = CL_GLOBAL;
    dev->local_is_global = local != CL_LOCAL;
    folio_cache_init(dev, found, s->cache_dir);
    FOLIO_TRY(folio_queue_new(dev, false, NULL, &dev->aux));
    *out = dev;
    return FOLIO_OK;
fail:
    free_device(dev);
    return st;
}

/* A tested device with its capabilities. */
static folio_status open_found(const folio_found *found, cl_context context,
                               const folio_device_settings *s,
                               folio_device **out)
{
    folio_status st = FOLIO_OK;
    folio_device *dev = NULL;
    uint64_t caps = 0;
    if (!found->usable)
        return folio_fail(&s->log, FOLIO_E_NO_DEVICE,
                          "device %s offers %s without what folio needs: "
                          "OpenCL 1.2 and a compiler",
                          found->info.name, found->info.version);
    FOLIO_TRY(folio_device_new_cl(found, context, s, &dev));
    FOLIO_TRY(folio_caps_find(dev, found, &caps));
    /* Only where it is asked for, until a measurement shows what it is worth;
     * and buffers of a caller's context are the caller's, who may do with them
     * what we do not know. */
    if (context || !s->addresses)
        caps &= ~(uint64_t)FOLIO_CAP_ADDRESS;
    dev->caps = caps & ~s->caps_off;
    if (dev->caps & FOLIO_CAP_ADDRESS)
        FOLIO_TRY(folio_address_open(dev));
    dev->info.caps = dev->caps;
    *out = dev;
    return FOLIO_OK;
fail:
    folio_device_close(&dev);
    return st;
}

static void log_opened(const folio_device *dev, const char *why)
{
    const folio_device_info *d = &dev->info;
    if (dev->host)
        folio_logf(&dev->log, FOLIO_LOG_INFO,
                   "device: host, C on %u thread%s%s", d->compute_units,
                   d->compute_units == 1 ? "" : "s", why);
    else
        folio_logf(&dev->log, FOLIO_LOG_INFO,
                   "device: %s (%s, %s), driver %s, %u units, %.1f GiB, at "
                   "most %s a buffer%s",
                   d->name, folio_device_kind_name(d->kind), d->platform,
                   d->driver, d->compute_units,
                   (double)d->global_bytes / 0x1p30,
                   folio_size_text(d->max_alloc_bytes).text, why);
}

static folio_status open_host(const folio_device_settings *s, const char *why,
                              folio_device **out)
{
    FOLIO_RETURN_IF(folio_host_device_new(s, out));
    log_opened(*out, why);
    return FOLIO_OK;
}

/* Takes the first message that says why a candidate failed; what is only one
 * candidate's trouble is no error of the call. */
typedef struct folio_first_message {
    const folio_log *log;
    char text[600];
} folio_first_message;

static void keep_first(void *user, folio_log_level level, const char *message)
{
    folio_first_message *m = user;
    if (level == FOLIO_LOG_ERROR && !m->text[0])
        snprintf(m->text, sizeof m->text, "%s", message);
    if (level <= FOLIO_LOG_WARN)
        level = FOLIO_LOG_DEBUG;
    folio_logf(m->log, level, "%s", message);
}

/* No GPU: says what there is instead and how to get more. */
static void explain_no_gpu(const folio_found *found, size_t n, char *text,
                           size_t bytes)
{
    if (n == 0) {
        char why[800];
        folio_discover_why_none(why, sizeof why);
        snprintf(text, bytes, ": %s", why);
        return;
    }
    const folio_found *cpu = &found[0];
    for (size_t i = n; i-- > 0;)
        if (found[i].info.kind == FOLIO_DEVICE_CPU)
            cpu = &found[i];
    snprintf(text, bytes,
             ": OpenCL offers no GPU, only %s (%s), which is used when chosen "
             "by index %d or by name (--device or FOLIO_DEVICE); for a GPU "
             "install the OpenCL package of its driver",
             cpu->info.name, cpu->info.platform, (int)cpu->info.index);
}

folio_status folio_device_open_auto(const folio_found *found,
                                    const folio_device_info *table, size_t n,
                                    const folio_device_settings *s,
                                    folio_device **out)
{
    size_t *order = folio_calloc(n, sizeof *order);
    if (!order)
        return folio_fail(&s->log, FOLIO_E_NOMEM, "no memory to rank devices");
    size_t m = folio_select_rank(table, n, order);
    folio_status st = FOLIO_E_NO_DEVICE;
    for (size_t i = 0; i < m && st != FOLIO_OK; i++) {
        const folio_found *c = &found[order[i]];
        folio_first_message first = {.log = &s->log};
        folio_device_settings quiet = *s;
        quiet.log = (folio_log){
            .fn = keep_first, .user = &first, .max_level = FOLIO_LOG_DEBUG};
        st = open_found(c, NULL, &quiet, out);
        if (st == FOLIO_OK) {
            (*out)->log = s->log;
            log_opened(*out, "");
            break;
        }
        folio_logf(&s->log, FOLIO_LOG_WARN,
                   "device %s (%s, driver %s) cannot be used (%s); %s %s",
                   c->info.name, c->info.platform, c->info.driver,
                   first.text[0] ? first.text : folio_status_text(st),
                   i + 1 < m ? "trying" : "computing on",
                   i + 1 < m ? found[order[i + 1]].info.name : "the host");
    }
    free(order);
    if (st == FOLIO_OK)
        return FOLIO_OK;
    char why[1200] = "";
    if (m == 0)
        explain_no_gpu(found, n, why, sizeof why);
    return open_host(s, why, out);
}

static folio_status open_named(const folio_found *found,
                               const folio_device_info *table, size_t n,
                               const folio_device_settings *s,
                               folio_device **out)
{
    char why[200];
    size_t index = 0;
    folio_status st =
        folio_select_match(table, n, s->select, &index, why, sizeof why);
    if (st != FOLIO_OK) {
        char *text = folio_select_table(table, n);
        char none[800] = "";
        if (n == 0)
            folio_discover_why_none(none, sizeof none);
        st = folio_fail(&s->log, st, "%s (asked for by %s)\n%s%s%s", why,
                        s->select_from, text ? text : "", n == 0 ? "\n" : "",
                        none);
        free(text);
        return st;
    }
    FOLIO_RETURN_IF(open_found(&found[index], NULL, s, out));
    log_opened(*out, "");
    return FOLIO_OK;
}

folio_status folio_device_open(const folio_device_params *p, folio_device **dev)
{
    folio_status st = FOLIO_OK;
    folio_device_settings s;
    folio_found *found = NULL;
    folio_device_info *table = NULL;
    folio_device *opened = NULL;
    size_t n = 0;

    if (!dev)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(read_settings(p, &s));
    folio_select_kind kind = folio_select_parse(s.select);
    if (kind == FOLIO_SELECT_HOST) {
        FOLIO_TRY(open_host(&s, "", &opened));
    } else {
        FOLIO_TRY(folio_discover(&s.log, &found, &n));
        table = folio_calloc(n, sizeof *table);
        if (!table)
            FOLIO_TRY(folio_fail(&s.log, FOLIO_E_NOMEM,
                                 "no memory for the table of devices"));
        for (size_t i = 0; i < n; i++)
            table[i] = found[i].info;
        if (kind == FOLIO_SELECT_AUTO)
            FOLIO_TRY(folio_device_open_auto(found, table, n, &s, &opened));
        else
            FOLIO_TRY(open_named(found, table, n, &s, &opened));
    }
    *dev = opened;
fail:
    free(table);
    free(found);
    return st;
}

static bool context_has(cl_context context, cl_device_id device)
{
    cl_device_id ids[64];
    size_t bytes = 0;
    if (clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof ids, ids,
                         &bytes) != CL_SUCCESS)
        return false;
    for (size_t i = 0; i < bytes / sizeof *ids; i++)
        if (ids[i] == device)
            return true;
    return false;
}

folio_status folio_device_wrap(cl_context context, cl_device_id device,
                               const folio_device_params *p, folio_device **dev)
{
    folio_device_settings s;
    folio_found wrapped, *found = NULL;
    cl_platform_id platform = NULL;
    size_t n = 0;
    if (!dev)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(read_settings(p, &s));
    if (!context || !device)
        return folio_fail(&s.log, FOLIO_E_INVAL,
                          "folio_device_wrap: context or device is NULL");
    if (!context_has(context, device) ||
        clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform,
                        NULL) != CL_SUCCESS)
        return folio_fail(&s.log, FOLIO_E_INVAL,
                          "folio_device_wrap: the device does not belong to "
                          "the context");
    folio_discover_describe(platform, device, &wrapped);
    FOLIO_RETURN_IF(folio_discover(&s.log, &found, &n));
    for (size_t i = 0; i < n; i++)
        if (found[i].id == device)
            wrapped.info.index = found[i].info.index;
    free(found);
    FOLIO_RETURN_IF(open_found(&wrapped, context, &s, dev));
    log_opened(*dev, ", in the caller's context");
    return FOLIO_OK;
}

folio_device *folio_device_retain(folio_device *dev)
{
    if (!dev)
        return NULL;
    atomic_fetch_add_explicit(&dev->refs, 1, memory_order_relaxed);
    return dev;
}

void folio_device_close(folio_device **dev)
{
    if (!dev || !*dev)
        return;
    folio_device *d = *dev;
    *dev = NULL;
    if (atomic_fetch_sub_explicit(&d->refs, 1, memory_order_acq_rel) == 1)
        free_device(d);
}

/* ---- what others ask ------------------------------------------------------
 */

void folio_device_get_info(const folio_device *dev, folio_device_info *info)
{
    static const folio_device_info none;
    if (!info)
        return;
    size_t size = FOLIO_MIN(info->size, sizeof *info);
    memcpy(info, dev ? &dev->info : &none, size);
    if (size >= sizeof info->size)
        info->size = size;
}

const folio_log *folio_device_log(const folio_device *dev)
{
    return &dev->log;
}

bool folio_device_is_host(const folio_device *dev)
{
    return dev->host;
}

uint64_t folio_device_caps(const folio_device *dev)
{
    return dev->caps;
}

folio_thread_pool *folio_device_threads(const folio_device *dev)
{
    return dev->pool;
}

folio_device_kind folio_device_get_kind(const folio_device *dev)
{
    return dev->info.kind;
}

size_t folio_device_max_alloc(const folio_device *dev)
{
    return (size_t)FOLIO_MIN(dev->info.max_alloc_bytes, (uint64_t)SIZE_MAX);
}

uint64_t folio_device_live_bytes(const folio_device *dev)
{
    return atomic_load(&dev->live_bytes);
}

cl_context folio_native_context(const folio_device *dev)
{
    return dev->context;
}

cl_device_id folio_native_device(const folio_device *dev)
{
    return dev->id;
}

folio_status folio_device_cl_failed(folio_device *dev, int code,
                                    const char *what)
{
    folio_status st = folio_cl_status(code);
    if (folio_cl_is_fatal(code))
        atomic_store(&dev->dead, true);
    /* Too large a launch is told as CL_OUT_OF_RESOURCES: that will not pass. */
    if (st == FOLIO_E_NOMEM && code != CL_OUT_OF_RESOURCES)
        atomic_store(&dev->starved, true);
    /* A driver that reports failure with the code of success. */
    if (st == FOLIO_OK)
        st = FOLIO_E_DEVICE;
    return folio_fail(&dev->log, st, "device %s: %.60s failed: %s (%d)",
                      dev->info.name, what, folio_cl_error_name(code), code);
}
