/* device/dev.h: what the wet rooms see of a device beyond folio/device.h:
 * kernels, launches, host pointers, the disk cache. The OpenCL side behind it
 * is the only caller of OpenCL. Knows nothing of layers or ops. */
#ifndef FOLIO_DEVICE_DEV_H
#define FOLIO_DEVICE_DEV_H

#include "base/base.h"
#include "base/thread_pool.h"

#include <folio/device.h>

const folio_log *folio_device_log(const folio_device *dev);
bool folio_device_is_host(const folio_device *dev);
uint64_t folio_device_caps(const folio_device *dev); /* after caps_off */
/* The host device's pool; NULL on OpenCL devices. */
folio_thread_pool *folio_device_threads(const folio_device *dev);
folio_device_kind folio_device_get_kind(const folio_device *dev);
size_t folio_device_max_alloc(const folio_device *dev);
/* Bytes of the buffers that were opened on it and not closed yet. */
uint64_t folio_device_live_bytes(const folio_device *dev);
folio_device *folio_queue_device(const folio_queue *q);
/* Whether every call but close fails from now on. */
bool folio_queue_is_lost(const folio_queue *q);
folio_device *folio_buf_device(const folio_buf *b);

/* Start of the buffer in host memory; NULL on OpenCL devices. */
void *folio_buf_host(const folio_buf *b);
/* The view's address on the host device (NULL for an absent view). */
static inline void *folio_view_host(folio_view v)
{
    return v.buf ? (uint8_t *)folio_buf_host(v.buf) + v.offset : NULL;
}
static inline folio_view folio_view_at(folio_view v, size_t bytes)
{
    v.offset += bytes;
    return v;
}

/* ---- kernels ---------------------------------------------------------- */

/* Each user owns its kernel: arguments are remembered inside. */
typedef struct folio_kernel folio_kernel;

/* The program text is the concatenation of the embedded `fragments` with #line
 * directives naming them; one program per (fragments, options), built at first
 * use, cached in the device and on disk. Always built with -cl-std=CL1.2 unless
 * the options name another. Options may hold only -D and -cl flags, none that
 * relaxes arithmetic. With FOLIO_CAP_FMA each program gets -D FOLIO_USE_FMA=1,
 * with FOLIO_CAP_ADDRESS -D FOLIO_ADDRESSES=1.
 * -D FOLIO_PTX_RETARGET=1 (FOLIO_CAP_PTX_RETARGET) assembles for sm_90a.
 * SUBGROUP_KHR, and FENCE_DEVICE where PTX is absent, are proven with the
 * newest -cl-std the device lists (CL2.0 or CL3.0) and need it. */
typedef struct folio_kernel_spec {
    const char *entry;     /* kernel function */
    const char *fragments; /* file names of cl/, separated by blanks */
    const char *options;   /* NULL = none */
} folio_kernel_spec;

/* BUILD: logs device, driver, kernel, and the first lines of the compiler's
 * text at WARN (the caller may have another variant to try). */
folio_status folio_kernel_open(folio_device *dev, const folio_kernel_spec *spec,
                               folio_kernel **out) FOLIO_NODISCARD;
void folio_kernel_close(folio_kernel **k);

typedef struct folio_kernel_limits {
    uint32_t max_work_group; /* for this kernel on this device */
    uint32_t preferred_multiple;
    uint64_t local_bytes;   /* static local memory */
    uint64_t private_bytes; /* above 0 often means spilled registers */
} folio_kernel_limits;
void folio_kernel_get_limits(const folio_kernel *k, folio_kernel_limits *out);

typedef enum folio_arg_kind {
    FOLIO_ARG_VIEW, /* two kernel arguments: pointer, then ulong byte offset;
                       with FOLIO_ADDRESSES one, their sum as ulong */
    FOLIO_ARG_I32,
    FOLIO_ARG_F32,
    FOLIO_ARG_U64,
    FOLIO_ARG_LOCAL /* u64 = bytes of local memory */
} folio_arg_kind;

typedef struct folio_arg {
    folio_arg_kind kind;
    union {
        folio_view view;
        int32_t i32;
        float f32;
        uint64_t u64;
    } v;
} folio_arg;

static inline folio_arg folio_arg_view(folio_view v)
{
    folio_arg a = {.kind = FOLIO_ARG_VIEW};
    a.v.view = v;
    return a;
}
static inline folio_arg folio_arg_i32(int32_t x)
{
    folio_arg a = {.kind = FOLIO_ARG_I32};
    a.v.i32 = x;
    return a;
}
static inline folio_arg folio_arg_f32(float x)
{
    folio_arg a = {.kind = FOLIO_ARG_F32};
    a.v.f32 = x;
    return a;
}
static inline folio_arg folio_arg_u64(uint64_t x)
{
    folio_arg a = {.kind = FOLIO_ARG_U64};
    a.v.u64 = x;
    return a;
}
static inline folio_arg folio_arg_local(size_t bytes)
{
    folio_arg a = {.kind = FOLIO_ARG_LOCAL};
    a.v.u64 = bytes;
    return a;
}

/* Work-groups per dimension and work-items per group: global = groups * local.
 * A grid with a zero in `groups` launches nothing and is OK. */
typedef struct folio_grid {
    size_t groups[3];
    size_t local[3];
} folio_grid;

/* Enqueues one launch. `args` in the kernel's order; an argument equal to the
 * last one set is not set again, so a repeated launch binds nothing. INVAL for
 * a work-group above the kernel's limit, local memory above the device's, or a
 * count of arguments other than the kernel's. At most 40 arguments. */
folio_status folio_launch(folio_queue *q, folio_kernel *k,
                          const folio_grid *grid, const folio_arg *args,
                          int n_args) FOLIO_NODISCARD;

/* Reads that wait for nothing enqueued behind them, by number. reserve makes
 * room for so many bytes at once, which a begin would do by itself; nothing of
 * that number may be begun. begin enqueues,
 * end waits and copies; one that began and is not wanted any more may begin
 * anew. What lies at src must stay until the end: the host device copies only
 * then. OK; INVAL: the number, no bytes, or an end without a begin; RANGE;
 * NOMEM; DEVICE. */
enum { FOLIO_LATER_READS = 2 };
folio_status folio_queue_read_reserve(folio_queue *q, int number,
                                      size_t bytes) FOLIO_NODISCARD;
folio_status folio_queue_read_begin(folio_queue *q, int number, folio_view src,
                                    size_t bytes) FOLIO_NODISCARD;
folio_status folio_queue_read_end(folio_queue *q, int number,
                                  void *dst) FOLIO_NODISCARD;

/* What went over the bus, for tests and stats. Host device counts too. */
typedef struct folio_queue_counters {
    uint64_t launches, writes, reads, copies, waits, args_set;
} folio_queue_counters;
folio_queue_counters folio_queue_get_counters(const folio_queue *q);
/* Host ops call this once per op so that both devices count launches alike;
 * NULL counts nothing (a part of an op that is counted as one). */
void folio_queue_count_launch(folio_queue *q);

/* ---- disk cache --------------------------------------------------------- */

/* Blobs kept beside the programs, with the same key parts (device, driver,
 * version). get: NOT_FOUND when absent, damaged or foreign. put: best effort.
 * `name` is a short identifier. */
folio_status folio_device_cache_get(folio_device *dev, const char *name,
                                    void *data, size_t bytes) FOLIO_NODISCARD;
void folio_device_cache_put(folio_device *dev, const char *name,
                            const void *data, size_t bytes);

/* The text handed to the compiler for these fragments (for lint and dumps);
 * caller frees. NULL when a fragment is unknown or memory is short. */
char *folio_kernel_source(const char *fragments);

/* True if the environment variable FOLIO_DISABLE (a list separated by commas)
 * names this variant: a support tool. */
bool folio_variant_disabled(const char *name);
/* The environment variable FOLIO_PACKING: how weights shall be stored on OpenCL
 * devices; NULL = as the device likes best. A support tool. */
const char *folio_packing_wish(void);
/* A constant that a variant is built with: `usual`, or what the environment
 * variable FOLIO_TUNE gives for it, "variant:NAME=number,NAME=number;variant:
 * ..." (a support tool, and how constants are tried out). Read anew each time.
 */
int32_t folio_tuned(const char *variant, const char *name, int32_t usual);
/* The list itself for the first who asks about this device, NULL for everyone
 * after and where there is none: to be looked through for wrong names once. */
const char *folio_device_disable_list_once(folio_device *dev);
/* The same of FOLIO_TUNE. */
const char *folio_device_tune_list_once(folio_device *dev);

#endif
