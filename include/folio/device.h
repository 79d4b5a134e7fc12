/* folio/device.h: devices, queues and buffers (tier 1). Finds what OpenCL
 * offers, chooses one, or computes on the host in C. Includes no OpenCL
 * header; handles of a caller's own OpenCL objects may be passed in. */
#ifndef FOLIO_DEVICE_H
#define FOLIO_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include <folio/log.h>
#include <folio/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The same typedefs as Khronos's headers; C11 allows to repeat them. */
typedef struct _cl_device_id *cl_device_id;
typedef struct _cl_context *cl_context;
typedef struct _cl_command_queue *cl_command_queue;
typedef struct _cl_mem *cl_mem;

/* A device is reference-counted: each object made on it holds one reference,
 * so handles may be closed in any order. Any thread. */
typedef struct folio_device folio_device;
/* An in-order queue. One owner thread at a time. */
typedef struct folio_queue folio_queue;
/* Device memory; on the host device ordinary memory. Any thread. */
typedef struct folio_buf folio_buf;

/* A place inside a buffer. A zeroed view means "absent" where a field says it
 * is optional. */
typedef struct folio_view {
    folio_buf *buf;
    size_t offset; /* bytes */
} folio_view;

typedef enum folio_device_kind {
    FOLIO_DEVICE_HOST = 0, /* C on the calling process's threads, no OpenCL */
    FOLIO_DEVICE_CPU = 1,  /* an OpenCL driver for the CPU, such as PoCL */
    FOLIO_DEVICE_GPU_INTEGRATED = 2,
    FOLIO_DEVICE_GPU_DISCRETE = 3,
    FOLIO_DEVICE_OTHER = 4 /* accelerators and emulators */
} folio_device_kind;

/* "host", "CPU driver", "integrated GPU", "discrete GPU", "other". Static, any
 * thread. */
FOLIO_API const char *folio_device_kind_name(folio_device_kind kind);

/* What a device can do beyond the floor (OpenCL C 1.2, half as storage only).
 * Each bit was proven by building and running a probe whose numbers were
 * checked, never taken from an extension string alone. */
enum {
    FOLIO_CAP_CPU = 1 << 0,        /* an OpenCL CPU device */
    FOLIO_CAP_GPU = 1 << 1,        /* a GPU of any kind */
    FOLIO_CAP_LOCAL = 1 << 2,      /* dedicated local memory, barriers right */
    FOLIO_CAP_HALF_ARITH = 1 << 3, /* half arithmetic */
    FOLIO_CAP_SUBGROUP_KHR = 1 << 4,
    FOLIO_CAP_SUBGROUP_INTEL = 1 << 5, /* shuffles, required size */
    FOLIO_CAP_DOT4_KHR = 1 << 6,       /* cl_khr_integer_dot_product, packed */
    FOLIO_CAP_PTX = 1 << 7, /* inline PTX: shfl.sync, lane == id % 32 */
    FOLIO_CAP_PTX_DP4A = 1 << 8,
    FOLIO_CAP_PTX_MMA = 1 << 9,       /* mma.sync.m16n8k16, cp.async */
    FOLIO_CAP_PTX_RETARGET = 1 << 10, /* sm_90a by retargeted PTX: wgmma */
    FOLIO_CAP_BIG_LOCAL = 1 << 11,    /* 200 KiB of static local memory */
    FOLIO_CAP_FENCE_DEVICE = 1 << 12, /* device-scope fence between groups */
    FOLIO_CAP_COMMAND_BUFFER = 1 << 13,
    FOLIO_CAP_FMA = 1 << 14,      /* fma() is exact and as fast as a product */
    FOLIO_CAP_PTX_BULK = 1 << 15, /* sm_90: cp.async.bulk, mbarrier */
    /* Buffers stay where they are, and kernels are told where in place of being
     * given them. Only where the environment variable FOLIO_ADDRESSES is 1, and
     * never in a caller's context. */
    FOLIO_CAP_ADDRESS = 1 << 16
};

#define FOLIO_DEVICE_NAME_MAX 128

typedef struct folio_device_info {
    size_t size;   /* in: sizeof(folio_device_info) */
    int32_t index; /* as --device takes it; -1 for the host device */
    folio_device_kind kind;
    char name[FOLIO_DEVICE_NAME_MAX];
    char vendor[FOLIO_DEVICE_NAME_MAX];
    char platform[FOLIO_DEVICE_NAME_MAX];
    char driver[FOLIO_DEVICE_NAME_MAX];  /* driver version */
    char version[FOLIO_DEVICE_NAME_MAX]; /* OpenCL and OpenCL C versions */
    uint64_t global_bytes;    /* as the device reports, 0 if absurd */
    uint64_t max_alloc_bytes; /* largest single buffer, fake limit applied */
    uint64_t local_bytes;
    uint32_t compute_units; /* threads on the host device */
    uint32_t max_work_group;
    uint32_t base_align; /* bytes */
    uint64_t caps; /* FOLIO_CAP_*; 0 in folio_device_list (nothing probed) */
} folio_device_info;

typedef struct folio_device_params {
    /* sizeof(folio_device_params), else INVAL (logged, unless the size says
     * that the struct ends before its log). */
    size_t size;
    /* NULL: the environment variable FOLIO_DEVICE, else automatic. "auto";
     * "host"; a decimal index; or a part of the device's or platform's name,
     * case ignored, that only one device has (its exact name wins). */
    const char *select;
    int32_t n_threads; /* host device: 0 = all CPUs this process may use */
    /* Where programs and verdicts are kept. NULL: FOLIO_CACHE_DIR, else
     * $XDG_CACHE_HOME/folio, else ~/.cache/folio; "": nowhere. */
    const char *cache_dir;
    /* Capabilities to pretend absent, so that one machine runs every tier it
     * has. Default 0; the environment variable FOLIO_CAPS_MASK adds to it. */
    uint64_t caps_off;
    /* Pretend that no buffer may be larger. 0: the device's own limit; the
     * environment variable FOLIO_MAX_ALLOC (bytes) is used where this is 0. */
    uint64_t max_alloc_bytes;
    /* Give up a wait after so many ms. Default 120000; 0 = never. */
    int32_t wait_ms;
    folio_log log; /* default: silent */
} folio_device_params;

/* Fills *p with the defaults above: automatic choice, all CPUs, nothing hidden,
 * 120 s, no log.
 * p [out] never NULL. Any thread. */
FOLIO_API void folio_device_params_default(folio_device_params *p);

/* Lists what OpenCL offers, without opening anything, in the loader's order:
 * place in the list = index. A missing loader, driver or device gives n = 0 and
 * OK. [in] log NULL allowed. [out] list at most cap entries (NULL if cap is
 * 0). [out] n how many there are, which may exceed cap.
 * Returns OK; INVAL for a NULL; NOMEM. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status folio_device_list(
    const folio_log *log, folio_device_info *list, size_t cap, size_t *n);

/* Opens a device. Automatic choice: discrete GPU before integrated GPU, by
 * flags and not by names; each candidate must pass a small self-test or the
 * next one is tried, at last the host device, which always works; what was
 * chosen and why is logged in one INFO line (WARN where it is not what one
 * might expect). A device that was asked for by name or index is opened or the
 * call fails: an unknown, ambiguous or out-of-range choice gives NO_DEVICE and
 * logs the table of devices. "host" makes no OpenCL call at all. `p` NULL means
 * the defaults.
 * [out] dev one reference; untouched on failure. Returns OK; INVAL, also for an
 * environment variable in a wrong form (named); NO_DEVICE; DEVICE; BUILD;
 * NOMEM. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_device_open(const folio_device_params *p, folio_device **dev);

/* Wraps a caller's own context and one of its devices: both are retained and
 * released at the last close. `p->select` is ignored; p NULL: the defaults.
 * [out] dev one reference; untouched on failure. Returns as folio_device_open;
 * INVAL also for a NULL or a device that is not of the context. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_device_wrap(cl_context context, cl_device_id device,
                  const folio_device_params *p, folio_device **dev);

/* Adds a reference; returns dev. NULL gives NULL. Any thread. */
FOLIO_API folio_device *folio_device_retain(folio_device *dev);
/* Drops a reference and sets *dev to NULL. NULL and *NULL allowed. Any thread.
 */
FOLIO_API void folio_device_close(folio_device **dev);

/* What the device is.
 * [in,out] info: `size` set by the caller, so much of it is written. Never
 * fails; dev NULL: all but size is zero. Any thread. */
FOLIO_API void folio_device_get_info(const folio_device *dev,
                                     folio_device_info *info);

/* Name of capability bit number `bit` ("cpu" for 0), as FOLIO_CAPS_MASK takes
 * it; NULL past the last and for negative ones. Static, any thread. */
FOLIO_API const char *folio_cap_name(int bit);

/* Which variant an op gets in one case, and why. */
typedef struct folio_choice {
    const char *op;      /* "linear" */
    const char *what;    /* the case, for example "Q4_0, 1 token" */
    const char *variant; /* "linear_tile", or "none" */
    char reason[160];    /* why not the rows above it */
} folio_choice;
/* Which variant of each op this device would get for a few typical cases (for
 * bug reports). Builds and runs nothing.
 * i   [in] from 0 on; the list ends with NOT_FOUND (not logged)
 * out [out] written on OK only; strings live as long as the device
 * Returns OK; NOT_FOUND; INVAL for a NULL. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status folio_device_choice(folio_device *dev,
                                                           size_t i,
                                                           folio_choice *out);

/* Opens an in-order queue of its own.
 * dev [in] kept alive by the queue
 * q   [out] the caller's, closed with folio_queue_close; untouched on failure
 * Returns OK; INVAL for a NULL; NOMEM; DEVICE, also where the device is lost.
 * Any thread; the queue then has one owner thread at a time. */
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_open(folio_device *dev,
                                                        folio_queue **q);
/* Wraps a caller's command queue: retained here and released at close. The
 * caller may go on to use it between folio's calls.
 * dev   [in] an OpenCL device, as folio_device_wrap gives it; kept alive
 * queue [in] in-order, of the same context and device
 * q     [out] the caller's, closed with folio_queue_close; untouched on failure
 * Returns OK; INVAL: a NULL, the host device, an out-of-order queue, or one of
 * another context or device; NOMEM; DEVICE. Any thread, as above. */
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_wrap(folio_device *dev,
                                                        cl_command_queue queue,
                                                        folio_queue **q);
/* Drops the queue and sets *q to NULL; what was enqueued still runs, and memory
 * that the driver may still touch is freed when it is done. Wait first
 * (folio_queue_finish) where buffers wrapped around memory of the caller's are
 * in use. NULL and *NULL allowed. Its owner thread. */
FOLIO_API void folio_queue_close(folio_queue **q);

/* Waits until everything enqueued is done. Returns OK; INVAL for NULL; DEVICE
 * when a command failed or the deadline (wait_ms) passed; the queue and its
 * device are then dead: every later call but close returns DEVICE without
 * touching the driver. Its owner thread. */
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_finish(folio_queue *q);

/* Takes memory of the device, filled with zero bytes, which proves that it
 * exists.
 * dev   [in] kept alive by the buffer
 * bytes [in] 1 .. the device's max_alloc_bytes
 * buf   [out] the caller's, closed with folio_buf_close; untouched on failure
 * Returns OK; INVAL: 0 bytes or a NULL; TOO_LARGE with both numbers; NOMEM;
 * DEVICE. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status folio_buf_open(folio_device *dev,
                                                      size_t bytes,
                                                      folio_buf **buf);
/* Wraps a caller's memory object: retained here and released at close; its
 * content stays as it is.
 * dev [in] an OpenCL device; kept alive by the buffer
 * mem [in] a buffer (no image) of the device's context
 * buf [out] the caller's, closed with folio_buf_close; untouched on failure
 * Returns OK; INVAL: a NULL, the host device, no buffer, or one of another
 * context; NOMEM; DEVICE. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status folio_buf_wrap(folio_device *dev,
                                                      cl_mem mem,
                                                      folio_buf **buf);
/* Borrows memory of the caller's as a buffer of the host device; not filled.
 * The library writes to it only where an output, a copy or a write is placed
 * there.
 * dev   [in] the host device; kept alive by the buffer
 * ptr   [in] must outlive the buffer
 * bytes [in] at least 1, at ptr
 * buf   [out] the caller's, closed with folio_buf_close; untouched on failure
 * Returns OK; INVAL: another device, 0 bytes or a NULL; NOMEM. Any thread. */
FOLIO_API FOLIO_NODISCARD folio_status folio_buf_wrap_host(folio_device *dev,
                                                           void *ptr,
                                                           size_t bytes,
                                                           folio_buf **buf);
/* Gives the memory back (a wrapped one to its owner: released or left alone)
 * and sets *buf to NULL. OpenCL keeps what enqueued commands still use; on the
 * host device nothing is pending between calls. NULL and *NULL allowed. Any
 * thread. */
FOLIO_API void folio_buf_close(folio_buf **buf);
/* Size in bytes, of a wrapped one that of what it wraps; 0 for NULL. Any
 * thread. */
FOLIO_API size_t folio_buf_bytes(const folio_buf *buf);

/* The four below, in the order in which they are called, behind and before
 * everything else on this queue. Views must be of the queue's device and lie
 * whole inside their buffers; 0 bytes do nothing. All return OK; INVAL: a NULL,
 * an absent buffer or one of another device; RANGE naming the bytes and the
 * buffer's size; NOMEM; DEVICE. After INVAL and RANGE nothing was enqueued.
 * The queue's owner thread. */

/* Host to device; `src` may be reused on return. Does not wait for the copy.
 * dst   [in] where to
 * src   [in] [bytes]
 * A failed call (NOMEM, DEVICE) may have written a part. */
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_write(folio_queue *q,
                                                         folio_view dst,
                                                         const void *src,
                                                         size_t bytes);
/* Device to host; waits for the data, and so for everything before it.
 * src [in] where from
 * dst [out] [bytes]; a failed call (NOMEM, DEVICE) may have written a part */
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_read(folio_queue *q,
                                                        folio_view src,
                                                        void *dst,
                                                        size_t bytes);
/* Device to device; only enqueues. Two places of one buffer must not overlap:
 * INVAL with both offsets.
 * src [in] where from
 * dst [in] where to */
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_copy(folio_queue *q,
                                                        folio_view src,
                                                        folio_view dst,
                                                        size_t bytes);
/* Sets each of `bytes` bytes from dst on to `byte`; only enqueues. */
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_fill(folio_queue *q,
                                                        folio_view dst,
                                                        uint8_t byte,
                                                        size_t bytes);

/* What a device gives at best, as simple kernels find it (on the host device
 * plain C on its threads): the measure beside which figures are shown. */
typedef struct folio_device_rates {
    size_t size;          /* in: sizeof(folio_device_rates) */
    double read_bytes_s;  /* bytes/s read from an array of read_array bytes,
                             nothing written */
    double fma_flop_s;    /* float32 multiply-adds/s, each counted as two, out
                             of registers */
    double matrix_flop_s; /* the same of half-precision matrix products with
                             float sums (mma.sync) where FOLIO_CAP_PTX_MMA is
                             there and the kernel builds; else 0 */
    uint64_t read_array;  /* 1 GiB on discrete GPUs, 256 MiB elsewhere, less
                             where the device's buffers are smaller */
} folio_device_rates;

/* Measures them now, on a queue of its own: the best of several rounds, about
 * half a second in all, with nothing else running on the device if the figures
 * are to mean anything.
 * [in,out] rates: `size` set by the caller; the rest is written on success.
 * Returns OK; INVAL for NULL; NOMEM; BUILD; DEVICE. Any thread, one at a time
 * for figures that mean anything. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_device_measure(folio_device *dev, folio_device_rates *rates);

#ifdef __cplusplus
}
#endif
#endif
