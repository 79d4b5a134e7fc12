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

FOLIO_API void folio_device_params_default(folio_device_params *p);

/* Lists what OpenCL offers, without opening anything, in the loader's order:
 * place in the list = index. A missing loader, driver or device gives n = 0 and
 * OK. [in] log NULL allowed. [out] list at most cap entries (NULL if cap is
 * 0). [out] n how many there are, which may exceed cap.
 * Returns OK; NOMEM. */
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
 * [out] dev one reference. Returns OK, INVAL, NO_DEVICE, DEVICE, BUILD,
 * NOMEM. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_device_open(const folio_device_params *p, folio_device **dev);

/* Wraps a caller's own context and one of its devices: both are retained and
 * released at the last close. `p->select` is ignored. Same statuses. */
FOLIO_API FOLIO_NODISCARD folio_status
folio_device_wrap(cl_context context, cl_device_id device,
                  const folio_device_params *p, folio_device **dev);

/* Adds a reference; returns dev. NULL gives NULL. */
FOLIO_API folio_device *folio_device_retain(folio_device *dev);
/* Drops a reference and sets *dev to NULL. NULL and *NULL allowed. */
FOLIO_API void folio_device_close(folio_device **dev);

/* [in,out] info: `size` set by the caller. Never fails; dev NULL: all but size
 * is zero. */
FOLIO_API void folio_device_get_info(const folio_device *dev,
                                     folio_device_info *info);

/* Name of capability bit number `bit`, NULL past the last. Static. */
FOLIO_API const char *folio_cap_name(int bit);

/* Which variant of each op this device gets and why (read-only, for bug
 * reports): entry i of a list that ends with NOT_FOUND. Strings live as long
 * as the device. Builds nothing. A NULL is INVAL. */
typedef struct folio_choice {
    const char *op;      /* "linear" */
    const char *what;    /* the case, for example "Q4_0, 1 token" */
    const char *variant; /* "linear_tile", or "none" */
    char reason[160];    /* why not the rows above it */
} folio_choice;
FOLIO_API FOLIO_NODISCARD folio_status folio_device_choice(folio_device *dev,
                                                           size_t i,
                                                           folio_choice *out);

/* A queue of one's own, or a caller's command queue (retained; the caller may
 * use it between folio's calls; must be in-order). Returns OK, INVAL, DEVICE,
 * NOMEM. */
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_open(folio_device *dev,
                                                        folio_queue **q);
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_wrap(folio_device *dev,
                                                        cl_command_queue queue,
                                                        folio_queue **q);
/* Waits for nothing and drops the queue; NULL and *NULL allowed. */
FOLIO_API void folio_queue_close(folio_queue **q);

/* Waits until everything enqueued is done. DEVICE when a command failed or the
 * deadline passed; the queue is then dead: every later call but close returns
 * DEVICE without touching the driver. */
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_finish(folio_queue *q);

/* Memory. `bytes` above the device's largest single buffer is TOO_LARGE with
 * both numbers. The new buffer is filled with zero bytes once, which proves
 * that it exists. Returns OK, INVAL (0 bytes), TOO_LARGE, NOMEM, DEVICE. */
FOLIO_API FOLIO_NODISCARD folio_status folio_buf_open(folio_device *dev,
                                                      size_t bytes,
                                                      folio_buf **buf);
/* A caller's cl_mem, retained. */
FOLIO_API FOLIO_NODISCARD folio_status folio_buf_wrap(folio_device *dev,
                                                      cl_mem mem,
                                                      folio_buf **buf);
/* Host device only (else INVAL): borrows `bytes` at `ptr`, which must outlive
 * the buffer; not filled. The library never writes to it unless an op's output
 * is placed there. */
FOLIO_API FOLIO_NODISCARD folio_status folio_buf_wrap_host(folio_device *dev,
                                                           void *ptr,
                                                           size_t bytes,
                                                           folio_buf **buf);
FOLIO_API void folio_buf_close(folio_buf **buf);
/* 0 for NULL. */
FOLIO_API size_t folio_buf_bytes(const folio_buf *buf);

/* Copies between host and device. Ranges are checked: RANGE, nothing copied.
 * write: `src` may be reused on return. read: waits for the data (and so for
 * everything before it). */
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_write(folio_queue *q,
                                                         folio_view dst,
                                                         const void *src,
                                                         size_t bytes);
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_read(folio_queue *q,
                                                        folio_view src,
                                                        void *dst,
                                                        size_t bytes);
FOLIO_API FOLIO_NODISCARD folio_status folio_queue_copy(folio_queue *q,
                                                        folio_view src,
                                                        folio_view dst,
                                                        size_t bytes);
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
