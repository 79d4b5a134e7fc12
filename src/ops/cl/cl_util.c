/* ops/cl/cl_util.c: see cl_util.h. */
#include "ops/cl/cl_util.h"

#include "ops/pack.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FOLIO_PRINTF(2, 3) void add(folio_cl_options *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(o->text + o->used, sizeof o->text - o->used, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof o->text - o->used)
        o->cut = true;
    else
        o->used += (size_t)n;
}

void folio_cl_options_init(folio_cl_options *o, const folio_op *op)
{
    *o = (folio_cl_options){.text = ""};
    if (folio_device_caps(op->dev) & FOLIO_CAP_FMA)
        add(o, "-DFOLIO_USE_FMA ");
}

void folio_cl_define(folio_cl_options *o, const char *name, int64_t value)
{
    add(o, "-D%s=%" PRId64 " ", name, value);
}

void folio_cl_define_type(folio_cl_options *o, folio_type type)
{
    const folio_type_info *info = folio_type_find((uint32_t)type);
    if (info)
        add(o, "-DQTYPE_%s ", info->name);
}

void folio_cl_define_weight(folio_cl_options *o, const folio_weight *w)
{
    folio_cl_define_type(o, w->type);
    if (w->packing != FOLIO_PACK_RAW)
        add(o, "-DPACK_%s ", folio_pack_name(w->packing));
}

void folio_cl_define_dot4(folio_cl_options *o, const folio_op *op)
{
    uint64_t caps = folio_device_caps(op->dev);
    if (caps & FOLIO_CAP_PTX_DP4A)
        add(o, "-DGEMV_DP4A ");
    else if (caps & FOLIO_CAP_DOT4_KHR)
        add(o, "-DGEMV_DOT_KHR -cl-std=CL3.0 ");
}

size_t folio_cl_row_bytes(const folio_weight *w)
{
    return folio_pack_group_bytes(w->packing, w->type, w->cols) /
           (size_t)folio_pack_group(w->packing);
}

void folio_cl_define_kv(folio_cl_options *o, const folio_kv_ref *kv, int segs)
{
    folio_cl_define(o, "KV_SEGS", segs);
    folio_cl_define(o, "KV_F16", kv->type == FOLIO_KV_F16);
    folio_cl_define(o, "HD", kv->head_dim);
    folio_cl_define(o, "BS", kv->block_size);
    folio_cl_define(o, "KVH", kv->kv_heads);
    folio_cl_define(o, "XK", kv->layout.xk);
    folio_cl_define(o, "YK", kv->layout.yk);
    folio_cl_define(o, "XV", kv->layout.xv);
    folio_cl_define(o, "YV", kv->layout.yv);
}

bool folio_cl_emulates(const folio_op *op)
{
    return (op->var->needs & ~folio_device_caps(op->dev)) != 0;
}

int32_t folio_cl_tuned(const folio_op_params *prm, const char *name,
                       int32_t otherwise)
{
    const size_t n = strlen(name);
    for (const char *p = prm->tune; p && *p;) {
        if (strncmp(p, name, n) == 0 && p[n] == '=')
            return (int32_t)strtol(p + n + 1, NULL, 10);
        p += strcspn(p, ",");
        p += *p == ',';
    }
    return otherwise;
}

int32_t folio_cl_units(const folio_device *dev)
{
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    return (int32_t)FOLIO_MIN(FOLIO_MAX(info.compute_units, 1u),
                              (uint32_t)INT32_MAX);
}

int32_t folio_cl_work_group(const folio_device *dev, int32_t want)
{
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    int32_t wg = 1;
    while (wg <= want / 2 && (uint32_t)wg * 2 <= info.max_work_group)
        wg *= 2;
    return wg;
}

folio_status folio_cl_kernel_open(folio_op *op, int i, const char *entry,
                                  const folio_cl_options *o, int32_t *wg)
{
    const folio_log *log = folio_device_log(op->dev);
    int32_t size = folio_cl_work_group(op->dev, *wg);
    for (;;) {
        folio_cl_options all = *o;
        folio_cl_define(&all, "WG", size);
        if (all.cut)
            return folio_fail(log, FOLIO_E_INTERNAL,
                              "%s: compiler options longer than %zu bytes",
                              op->var->name, sizeof all.text);
        const folio_kernel_spec spec = {
            .entry = entry,
            .fragments = op->var->fragments,
            .options = all.text,
        };
        FOLIO_RETURN_IF(folio_kernel_open(op->dev, &spec, &op->kernel[i]));
        folio_kernel_limits limits;
        folio_kernel_get_limits(op->kernel[i], &limits);
        if ((uint32_t)size <= limits.max_work_group) {
            *wg = size;
            return FOLIO_OK;
        }
        folio_kernel_close(&op->kernel[i]);
        if (size == 1)
            return folio_fail(log, FOLIO_E_BUILD,
                              "%s: the device runs no work-group of it at all",
                              entry);
        size /= 2;
    }
}

folio_status folio_cl_kernel_open_of(folio_op *op, int i, const char *entry,
                                     const folio_cl_options *o, int32_t wg,
                                     const char *more)
{
    const folio_log *log = folio_device_log(op->dev);
    folio_cl_options all = *o;
    folio_cl_define(&all, "WG", wg);
    if (more)
        add(&all, "%s ", more);
    if (all.cut)
        return folio_fail(log, FOLIO_E_INTERNAL,
                          "%s: compiler options longer than %zu bytes",
                          op->var->name, sizeof all.text);
    const folio_kernel_spec spec = {
        .entry = entry,
        .fragments = op->var->fragments,
        .options = all.text,
    };
    FOLIO_RETURN_IF(folio_kernel_open(op->dev, &spec, &op->kernel[i]));
    folio_kernel_limits limits;
    folio_kernel_get_limits(op->kernel[i], &limits);
    if ((uint32_t)wg <= limits.max_work_group)
        return FOLIO_OK;
    return folio_fail(log, FOLIO_E_BUILD,
                      "%s: needs work-groups of %" PRId32
                      ", the device runs it with at most %u",
                      entry, wg, limits.max_work_group);
}

folio_grid folio_cl_grid(size_t rows, size_t chunks, int32_t wg)
{
    folio_grid g = {.groups = {rows, chunks, 1}, .local = {(size_t)wg, 1, 1}};
    return g;
}

/* ---- KV --------------------------------------------------------------------
 */

int folio_cl_kv_segs(const folio_kv_ref *kv)
{
    if (kv->k.n_buf == 0 || kv->v.n_buf == 0)
        return FOLIO_KV_MAX_BUFS;
    int n = FOLIO_MAX(kv->k.n_buf, kv->v.n_buf);
    return n > 2 ? FOLIO_KV_MAX_BUFS : n;
}

folio_status folio_cl_check_segs(const folio_op *op, const folio_kv_ref *kv,
                                 int segs)
{
    if (kv->k.n_buf <= segs && kv->v.n_buf <= segs)
        return FOLIO_OK;
    return folio_fail(folio_device_log(op->dev), FOLIO_E_INVAL,
                      "%s: planes of %" PRId32 " and %" PRId32
                      " buffers > %d it was opened for",
                      op->var->name, kv->k.n_buf, kv->v.n_buf, segs);
}

int folio_cl_kv_args(folio_arg *args, int n, const folio_kv_plane *plane,
                     int segs)
{
    for (int i = 0; i < segs; i++) {
        /* A segment that the plane lacks is never reached. */
        folio_view v = {plane->buf[i < plane->n_buf ? i : 0], plane->offset};
        args[n++] = folio_arg_view(v);
    }
    args[n++] = folio_arg_i32(plane->seg_shift);
    return n;
}

const char *folio_cl_kv_refuse(const folio_kv_ref *kv)
{
    if (kv->type != FOLIO_KV_F32 && kv->type != FOLIO_KV_F16)
        return "KV is neither f32 nor f16";
    return NULL;
}
