/* device/impl.h: the structures behind folio/device.h and device/dev.h, shared
 * by the files of this room and by its tests, seen by nobody else. */
#ifndef FOLIO_DEVICE_IMPL_H
#define FOLIO_DEVICE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/hash.h"
#include "device/cl.h"
#include "device/dev.h"

/* ---- discovery ----------------------------------------------------------- */

typedef struct folio_found {
    cl_platform_id platform;
    cl_device_id id;
    int cl_version; /* 120, 200, 300 */
    bool usable;    /* OpenCL 1.2 or later, has a compiler */
    char platform_version[FOLIO_DEVICE_NAME_MAX];
    folio_device_info info; /* max_alloc_bytes without any pretended limit */
} folio_found;

/* Everything OpenCL offers, in the loader's order; caller frees *list. No
 * platform, -1001 and no device are n = 0 and OK. */
folio_status folio_discover(const folio_log *log, folio_found **list,
                            size_t *n) FOLIO_NODISCARD;
/* Facts of one device, whoever found it; index -1 = not known. */
void folio_discover_describe(cl_platform_id platform, cl_device_id id,
                             folio_found *out);
/* Why there may be no device and one next step, as a sentence. */
void folio_discover_why_none(char *text, size_t bytes);
/* True if the extension string names it: a hint what to probe, no proof. */
bool folio_device_has_extension(cl_device_id id, const char *name);

/* ---- settings ------------------------------------------------------------ */

/* Parameters with the environment applied. */
typedef struct folio_device_settings {
    const char *select;      /* NULL = auto */
    const char *select_from; /* "FOLIO_DEVICE" or "the caller" */
    int32_t n_threads;
    const char *cache_dir; /* NULL = default place, "" = none */
    uint64_t caps_off;
    uint64_t max_alloc_bytes;
    int32_t wait_ms;
    bool addresses; /* use FOLIO_CAP_ADDRESS where it is */
    folio_log log;
} folio_device_settings;

/* "12.5 MiB", or "1000 bytes" below a MiB. */
typedef struct folio_size_str {
    char text[32];
} folio_size_str;
folio_size_str folio_size_text(uint64_t bytes);

/* ---- objects ------------------------------------------------------------- */

typedef struct folio_program {
    folio_hash128 key;
    cl_program program;
    bool saved;
    struct folio_program *next;
} folio_program;

/* The disk cache of one device. */
typedef struct folio_cache {
    char *dir; /* NULL = none */
    folio_hash128 device_key;
    atomic_bool warned; /* about a folder that cannot be written */
    atomic_uint hits;   /* entries read whole, for tests */
    atomic_uint puts;   /* entries written */
} folio_cache;

/* Blobs remembered in memory; src/device/memo.c. */
typedef struct folio_memo folio_memo;

struct folio_device {
    atomic_int refs;
    bool host;
    /* The context is lost: no OpenCL call any more, releases included. */
    atomic_bool dead;
    atomic_bool starved; /* some call failed for want of memory */
    folio_device_info info;
    folio_log log;
    uint64_t caps;
    int32_t wait_ms;

    folio_thread_pool *pool; /* host device only */

    cl_platform_id platform;
    cl_device_id id;
    cl_context context;
    int cl_version;
    size_t max_items[3];
    bool local_is_global; /* local memory is ordinary memory */

    pthread_mutex_t lock; /* programs, the aux queue */
    folio_program *programs;
    folio_queue *aux;    /* fills new buffers; holds no reference */
    folio_queue *queues; /* all, that too, under the lock */
    /* With FOLIO_CAP_ADDRESS: the kernel that tells a buffer's address, and
     * where it writes it. NULL: kernels get buffers. */
    cl_kernel ask_address;
    cl_mem asked_address;
    cl_ulong told_address;
    folio_cache cache;
    folio_memo *memo;
    atomic_uint builds; /* from source, for tests */

    atomic_bool told_disable; /* FOLIO_DISABLE was looked through */
    atomic_bool told_tune;    /* the same of FOLIO_TUNE */

    atomic_uint_least64_t next_buf_id;
    atomic_uint_least64_t live_bytes; /* of buffers made here */
};

struct folio_buf {
    folio_device *dev;
    size_t bytes;
    uint64_t id; /* unique in the device, never used again, not 0 */
    cl_mem mem;
    uint64_t address; /* on the device, where that is asked; else 0 */
    uint8_t *host;
    bool wrapped;
};

/* Memory that the driver may still read from or write to. */
typedef struct folio_stage {
    uint8_t *data;
    size_t bytes;
    cl_event event; /* NULL = nothing pending */
} folio_stage;

#define FOLIO_N_STAGES 8

struct folio_queue {
    folio_device *dev;
    bool owns_ref; /* the aux queue does not */
    bool dead;
    cl_command_queue queue;
    folio_queue_counters n;
    folio_stage stages[FOLIO_N_STAGES];
    unsigned next_stage;
    struct folio_later {
        folio_view src; /* absent: not begun */
        size_t bytes;
        /* OpenCL: where the data arrives. Drivers read into ordinary memory
         * only while the caller waits, so that this is memory of theirs, mapped
         * for good. */
        cl_mem mem;
        uint8_t *data;
        size_t cap;
        cl_event event; /* NULL = nothing pending */
    } later[FOLIO_LATER_READS];
    unsigned since_flush, since_mark;
    cl_event mark;     /* end of the half before the present one */
    folio_queue *next; /* of the device's */
};

#define FOLIO_MAX_ARGS 40

typedef struct folio_arg_slot {
    bool set;
    uint8_t kind;  /* folio_arg_kind; the offset half of a view is U64 */
    uint64_t bits; /* value, or the buffer's id */
} folio_arg_slot;

struct folio_kernel {
    folio_device *dev;
    cl_kernel kernel;
    char entry[80];
    folio_kernel_limits limits;
    size_t required[3]; /* work-group demanded by the source, 0 = any */
    bool by_address;    /* a view is one number, not buffer and offset */
    uint32_t n_slots;   /* arguments as OpenCL counts them */
    folio_arg_slot slots[2 * FOLIO_MAX_ARGS];
};

/* ---- between the files ----------------------------------------------------
 */

static inline bool folio_device_is_dead(const folio_device *dev)
{
    return atomic_load_explicit(&dev->dead, memory_order_relaxed);
}

/* Logs a failed call once and gives its status; kills the device if the code
 * says that the context is lost. */
folio_status folio_device_cl_failed(folio_device *dev, int code,
                                    const char *what) FOLIO_NODISCARD;
#define FOLIO_CL(dev, call)                                                    \
    do {                                                                       \
        cl_int code_ = (call);                                                 \
        if (code_ != CL_SUCCESS) {                                             \
            st = folio_device_cl_failed((dev), code_, #call);                  \
            goto fail;                                                         \
        }                                                                      \
    } while (0)

/* A device around a found one (its own context) or around `context`
 * (retained), not yet tested or probed. */
folio_status folio_device_new_cl(const folio_found *found, cl_context context,
                                 const folio_device_settings *s,
                                 folio_device **out) FOLIO_NODISCARD;
/* The best GPU that works, at last the host device. */
folio_status folio_device_open_auto(const folio_found *found,
                                    const folio_device_info *table, size_t n,
                                    const folio_device_settings *s,
                                    folio_device **out) FOLIO_NODISCARD;
folio_status folio_host_device_new(const folio_device_settings *s,
                                   folio_device **out) FOLIO_NODISCARD;

/* Runs the canary and the probes, or takes the verdict from the cache.
 * DEVICE when the canary's numbers are wrong. */
folio_status folio_caps_find(folio_device *dev, const folio_found *found,
                             uint64_t *caps) FOLIO_NODISCARD;

/* Which call makes a queue: clCreateCommandQueue is the only one of 1.2, and
 * the later one crashes drivers of that age. */
static inline bool folio_queue_uses_properties(int cl_version)
{
    return cl_version >= 200;
}
folio_status folio_queue_new(folio_device *dev, bool owns_ref,
                             cl_command_queue wrapped,
                             folio_queue **out) FOLIO_NODISCARD;
/* Waits until `event` is done, with the device's deadline; releases it. */
folio_status folio_queue_wait(folio_queue *q, cl_event event,
                              const char *what) FOLIO_NODISCARD;
/* Keeps queued work bounded; call after each launch. */
folio_status folio_queue_launched(folio_queue *q) FOLIO_NODISCARD;
/* Logs and gives the status; kills queue and device when fatal. */
folio_status folio_queue_cl_failed(folio_queue *q, int code, const char *what,
                                   bool waiting) FOLIO_NODISCARD;
/* Zero-fills on the aux queue and waits: proof that the memory exists. */
folio_status folio_queue_prove(folio_queue *q, cl_mem mem,
                               size_t bytes) FOLIO_NODISCARD;

/* ---- addresses of buffers (address.c), where the device has FOLIO_CAP_ADDRESS
 * -----------------------------------------------------------------------------
 */

folio_status folio_address_open(folio_device *dev) FOLIO_NODISCARD;
void folio_address_close(folio_device *dev);
/* Fills b->address; with the lock held. */
folio_status folio_address_ask(folio_device *dev, folio_buf *b) FOLIO_NODISCARD;
/* Waits for everything that may use the address of a buffer: the driver does
 * not know that it is used. */
void folio_address_settle(folio_device *dev);

/* A kernel from a text. `label` names it in messages; a failure is logged at
 * `level`. */
typedef struct folio_program_text {
    const char *label;
    const char *source;
    const char *options; /* complete */
    const char *entry;
    folio_log_level level;
} folio_program_text;
folio_status folio_program_kernel(folio_device *dev,
                                  const folio_program_text *text,
                                  cl_kernel *out) FOLIO_NODISCARD;
/* Built through its own assembly text (folio_ptx_build)? */
bool folio_program_assembled(const folio_program_text *text);
void folio_program_close_all(folio_device *dev);
folio_status folio_kernel_new(folio_device *dev, const folio_program_text *text,
                              folio_kernel **out) FOLIO_NODISCARD;
folio_status folio_kernel_open_at(folio_device *dev,
                                  const folio_kernel_spec *spec,
                                  folio_log_level level,
                                  folio_kernel **out) FOLIO_NODISCARD;

/* ---- disk cache (cache.c) --------------------------------------------------
 */

void folio_cache_init(folio_device *dev, const folio_found *found,
                      const char *dir);
void folio_cache_fini(folio_cache *c);
/* False when nothing of that key and size is remembered. */
bool folio_memo_get(folio_device *dev, folio_hash128 key, void *data,
                    size_t bytes);
void folio_memo_put(folio_device *dev, folio_hash128 key, const void *data,
                    size_t bytes);
void folio_memo_fini(folio_device *dev);
/* A whole entry of kind `ext`; caller frees *data. NOT_FOUND otherwise. */
folio_status folio_cache_read(folio_device *dev, folio_hash128 key,
                              const char *ext, void **data,
                              size_t *bytes) FOLIO_NODISCARD;
void folio_cache_write(folio_device *dev, folio_hash128 key, const char *ext,
                       const void *data, size_t bytes);

/* A mark on disk that this process is inside the compiler. `strikes` counts
 * processes that died there, the present start not included. */
typedef struct folio_building {
    int fd; /* -1 = no mark */
    char *path;
    int strikes;
    long last_pid;
} folio_building;
/* A second death is no accident: the text is not given to the compiler. */
#define FOLIO_BUILD_STRIKES 2
void folio_building_begin(folio_device *dev, folio_hash128 key,
                          const char *label, folio_building *out);
/* done: the compiler came back; false keeps the mark for the next start. */
void folio_building_end(folio_building *b, bool done);

#endif
