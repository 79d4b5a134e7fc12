/* cl-info-device.c: devices, their capabilities and the chosen variants, with
 * what a maintainer asks first: versions, the loader, the GPU's nodes, the
 * environment. */
#define _POSIX_C_SOURCE 200809L
#include "cl-info.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* ---- the surroundings -----------------------------------------------------
 */

/* Messages of the library: warnings and errors as usual, the loader's path out
 * of the maintainers' messages, what was said about missing drivers. */
typedef struct listener {
    tool_log tlog;
    folio_log out;
    char loader[512];
    char note[2048];
} listener;

static void listen(void *user, folio_log_level level, const char *text)
{
    static const char prefix[] = "OpenCL loader: ";
    listener *l = user;
    if (strncmp(text, prefix, sizeof prefix - 1) == 0)
        snprintf(l->loader, sizeof l->loader, "%s", text + sizeof prefix - 1);
    else if (level == FOLIO_LOG_INFO)
        snprintf(l->note, sizeof l->note, "%s", text);
    else if (level < FOLIO_LOG_INFO)
        l->out.fn(l->out.user, level, text);
}

static folio_log listen_to(listener *l, bool json)
{
    memset(l, 0, sizeof *l);
    l->tlog.quiet = json;
    l->out = tool_log_to(&l->tlog, FOLIO_LOG_WARN);
    folio_log log = {listen, l, FOLIO_LOG_DEBUG};
    return log;
}

static const char *const variables[] = {
    "FOLIO_DEVICE",      "FOLIO_CACHE_DIR",      "FOLIO_CAPS_MASK",
    "FOLIO_MAX_ALLOC",   "FOLIO_DISABLE",        "OCL_ICD_VENDORS",
    "OCL_ICD_FILENAMES", "CUDA_VISIBLE_DEVICES", "RUSTICL_ENABLE",
};

/* Readable nodes are what a driver needs first. */
static json_t *nodes_json(void)
{
    json_t *list = json_array();
    DIR *d = opendir("/dev/dri");
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        char path[300];
        if (strncmp(e->d_name, "renderD", 7) != 0)
            continue;
        snprintf(path, sizeof path, "/dev/dri/%s", e->d_name);
        json_t *node = json_object();
        json_object_set_new(node, "path", json_string(path));
        json_object_set_new(node, "readable",
                            json_boolean(access(path, R_OK | W_OK) == 0));
        json_array_append_new(list, node);
    }
    if (d)
        closedir(d);
    if (access("/dev/nvidia0", F_OK) == 0) {
        json_t *node = json_object();
        json_object_set_new(node, "path", json_string("/dev/nvidia0"));
        json_object_set_new(
            node, "readable",
            json_boolean(access("/dev/nvidia0", R_OK | W_OK) == 0));
        json_array_append_new(list, node);
    }
    return list;
}

static json_t *text_json(const char *text)
{
    return tool_json_text(text, strlen(text));
}

static json_t *surroundings(const listener *l)
{
    struct utsname u;
    json_t *out = json_object(), *env = json_object();
    json_object_set_new(out, "version", json_string(folio_version()));
    json_object_set_new(out, "commit", json_string(folio_commit()));
    if (uname(&u) == 0) {
        char text[512];
        snprintf(text, sizeof text, "%.100s %.100s %.100s", u.sysname,
                 u.release, u.machine);
        json_object_set_new(out, "system", text_json(text));
    }
    json_object_set_new(out, "loader",
                        l->loader[0] ? text_json(l->loader) : json_null());
    json_object_set_new(out, "gpu_nodes", nodes_json());
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i]);
        if (value)
            json_object_set_new(env, variables[i], text_json(value));
    }
    json_object_set_new(out, "environment", env);
    return out;
}

static void print_surroundings(json_t *s)
{
    const char *key;
    json_t *value;
    size_t i;
    printf("folio %s (commit %s)\n",
           json_string_value(json_object_get(s, "version")),
           json_string_value(json_object_get(s, "commit")));
    if ((value = json_object_get(s, "system")) != NULL)
        printf("system: %s\n", json_string_value(value));
    value = json_object_get(s, "loader");
    printf("OpenCL loader: %s\n",
           json_is_string(value) ? json_string_value(value) : "not used");
    value = json_object_get(s, "gpu_nodes");
    printf("GPU nodes:%s", json_array_size(value) == 0 ? " none" : "");
    for (i = 0; i < json_array_size(value); i++) {
        json_t *node = json_array_get(value, i);
        printf(" %s%s", json_string_value(json_object_get(node, "path")),
               json_is_true(json_object_get(node, "readable"))
                   ? ""
                   : " (no right to use it)");
    }
    printf("\n");
    json_object_foreach(json_object_get(s, "environment"), key, value)
        printf("%s=%s\n", key, json_string_value(value));
    printf("\n");
}

/* ---- devices ---------------------------------------------------------------
 */

static json_t *info_json(const folio_device_info *d)
{
    json_t *o = json_object();
    json_object_set_new(o, "index",
                        d->index < 0 ? json_null() : json_integer(d->index));
    json_object_set_new(o, "kind",
                        json_string(folio_device_kind_name(d->kind)));
    json_object_set_new(o, "name", text_json(d->name));
    json_object_set_new(o, "vendor", text_json(d->vendor));
    json_object_set_new(o, "platform", text_json(d->platform));
    json_object_set_new(o, "driver", text_json(d->driver));
    json_object_set_new(o, "opencl", text_json(d->version));
    json_object_set_new(o, "global_bytes",
                        json_integer((json_int_t)d->global_bytes));
    json_object_set_new(o, "max_alloc_bytes",
                        json_integer((json_int_t)d->max_alloc_bytes));
    json_object_set_new(o, "local_bytes",
                        json_integer((json_int_t)d->local_bytes));
    json_object_set_new(o, "compute_units", json_integer(d->compute_units));
    json_object_set_new(o, "max_work_group", json_integer(d->max_work_group));
    json_object_set_new(o, "base_align", json_integer(d->base_align));
    return o;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1u << 30);
}

static void print_info(const folio_device_info *d)
{
    if (d->kind == FOLIO_DEVICE_HOST) {
        printf("host: C on %" PRIu32 " threads, %.1f GiB\n", d->compute_units,
               gib(d->global_bytes));
        return;
    }
    printf("%d: %s (%s)\n", (int)d->index, d->name,
           folio_device_kind_name(d->kind));
    printf("   platform %s, vendor %s\n", d->platform, d->vendor);
    printf("   driver %s, %s\n", d->driver, d->version);
    printf("   memory %.2f GiB, one buffer at most %.2f GiB, local %.1f KiB\n",
           gib(d->global_bytes), gib(d->max_alloc_bytes),
           (double)d->local_bytes / 1024.0);
    printf("   %" PRIu32 " compute units, work-groups up to %" PRIu32
           ", buffers aligned to %" PRIu32 " bytes\n",
           d->compute_units, d->max_work_group, d->base_align);
}

static int fail(const listener *l, folio_status st, bool json)
{
    if (json)
        tool_json_error(folio_status_name(st), l->tlog.error[0]
                                                   ? l->tlog.error
                                                   : folio_status_text(st));
    return tool_exit_status(st);
}

static int print_json(json_t *o)
{
    if (tool_json_print(o))
        return 0;
    fprintf(stderr, "%s: stdout could not be written\n", tool_name);
    return tool_exit_status(FOLIO_E_IO);
}

static int finish_text(void)
{
    return fflush(stdout) == 0 && !ferror(stdout)
               ? 0
               : tool_exit_status(FOLIO_E_IO);
}

int cl_info_list(bool json)
{
    listener l;
    folio_log log = listen_to(&l, json);
    size_t n = 0, cap = 0;
    folio_device_info *list = NULL;
    folio_status st = folio_device_list(&log, NULL, 0, &n);
    if (st == FOLIO_OK && n > 0) {
        cap = n;
        list = calloc(cap, sizeof *list);
        st = list ? folio_device_list(&log, list, cap, &n) : FOLIO_E_NOMEM;
        n = n < cap ? n : cap;
    }
    if (st != FOLIO_OK) {
        free(list);
        return fail(&l, st, json);
    }
    json_t *out = surroundings(&l);
    json_t *devices = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(devices, info_json(&list[i]));
    json_object_set_new(out, "devices", devices);
    json_object_set_new(out, "note",
                        l.note[0] ? text_json(l.note) : json_null());
    if (json) {
        free(list);
        return print_json(out);
    }
    print_surroundings(out);
    json_decref(out);
    for (size_t i = 0; i < n; i++)
        print_info(&list[i]);
    printf("host: C on this machine's CPUs, always there\n");
    if (l.note[0])
        printf("\n%s\n", l.note);
    if (n > 0)
        printf("\ncl-info --device INDEX shows what a device can do.\n");
    free(list);
    return finish_text();
}

/* ---- one device
 * -------------------------------------------------------------- */

static json_t *caps_json(uint64_t caps)
{
    json_t *list = json_array();
    for (int bit = 0; folio_cap_name(bit); bit++)
        if (caps >> bit & 1)
            json_array_append_new(list, json_string(folio_cap_name(bit)));
    return list;
}

static json_t *choices_json(folio_device *dev)
{
    json_t *list = json_array();
    folio_choice c;
    for (size_t i = 0; folio_device_choice(dev, i, &c) == FOLIO_OK; i++) {
        json_t *o = json_object();
        json_object_set_new(o, "op", json_string(c.op));
        json_object_set_new(o, "case", json_string(c.what));
        json_object_set_new(o, "variant", json_string(c.variant));
        json_object_set_new(o, "reason", text_json(c.reason));
        json_array_append_new(list, o);
    }
    return list;
}

static void print_caps(uint64_t caps)
{
    printf("\ncapabilities, proven by running:");
    for (int bit = 0; folio_cap_name(bit); bit++)
        if (caps >> bit & 1)
            printf(" %s", folio_cap_name(bit));
    printf("%s\nabsent:", caps == 0 ? " none beyond the floor" : "");
    for (int bit = 0; folio_cap_name(bit); bit++)
        if (!(caps >> bit & 1))
            printf(" %s", folio_cap_name(bit));
    printf("\n");
}

static void print_choices(folio_device *dev)
{
    folio_choice c;
    printf("\n%-12s %-34s %-22s %s\n", "op", "case", "variant",
           "why not the ones before it");
    for (size_t i = 0; folio_device_choice(dev, i, &c) == FOLIO_OK; i++)
        printf("%-12s %-34s %-22s %s\n", c.op, c.what, c.variant, c.reason);
}

int cl_info_device(const char *select, bool json)
{
    listener l;
    folio_device *dev = NULL;
    folio_device_params p;
    folio_device_params_default(&p);
    p.select = select;
    p.log = listen_to(&l, json);
    folio_status st = folio_device_open(&p, &dev);
    if (st != FOLIO_OK)
        return fail(&l, st, json);
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    json_t *out = surroundings(&l);
    int status;
    if (json) {
        json_t *o = info_json(&info);
        json_object_set_new(o, "capabilities", caps_json(info.caps));
        json_object_set_new(o, "variants", choices_json(dev));
        json_object_set_new(out, "device", o);
        json_object_set_new(out, "note",
                            l.note[0] ? text_json(l.note) : json_null());
        status = print_json(out);
    } else {
        print_surroundings(out);
        json_decref(out);
        print_info(&info);
        printf("   %s\n", l.note);
        if (info.kind != FOLIO_DEVICE_HOST)
            print_caps(info.caps);
        print_choices(dev);
        status = finish_text();
    }
    folio_device_close(&dev);
    return status;
}
