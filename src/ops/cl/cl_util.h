/* ops/cl/cl_util.h: what every launcher needs: the compiler options of an op, a
 * work-group size that the device takes, grids, and the arguments of KV planes.
 * Knows no op. */
#ifndef FOLIO_OPS_CL_UTIL_H
#define FOLIO_OPS_CL_UTIL_H

#include "ops/ops.h"

/* -D options as text; a list that grows too long makes the open fail. */
typedef struct folio_cl_options {
    char text[480];
    size_t used;
    bool cut;
} folio_cl_options;

/* What every kernel of this op's device is compiled with. */
void folio_cl_options_init(folio_cl_options *o, const folio_op *op);
void folio_cl_define(folio_cl_options *o, const char *name, int64_t value);
/* -DQTYPE_<type>, as quant.clh reads it. */
void folio_cl_define_type(folio_cl_options *o, folio_type type);
/* -DQTYPE_<type> and, where it is packed, -DPACK_<packing>, as quant.clh reads
 * them. */
void folio_cl_define_weight(folio_cl_options *o, const folio_weight *w);
/* What gemv_dot4 of gemv.clh shall be: GEMV_DP4A or GEMV_DOT_KHR where the
 * device has one of them. */
void folio_cl_define_dot4(folio_cl_options *o, const folio_op *op);
/* Bytes of a row as stored, on average over a group: row_bytes of quant.clh. */
size_t folio_cl_row_bytes(const folio_weight *w);
/* HD, BS, KVH, XK, YK, XV, YV, KV_F16 and KV_SEGS, as kv.clh reads them, for
 * planes of `segs` buffers. */
void folio_cl_define_kv(folio_cl_options *o, const folio_kv_ref *kv, int segs);

/* Whether the op runs in the portable form of a variant that needs more than
 * this device has. */
bool folio_cl_emulates(const folio_op *op);
/* The op's setting of that name if the caller gave one, else `otherwise`. */
int32_t folio_cl_tuned(const folio_op_params *prm, const char *name,
                       int32_t otherwise);

/* Compute units, at least 1. */
int32_t folio_cl_units(const folio_device *dev);

/* The largest power of two <= want that the device allows in a work-group. */
int32_t folio_cl_work_group(const folio_device *dev, int32_t want);

/* Builds `entry` from the variant's fragments as op->kernel[i] with -DWG=*wg;
 * *wg (in: the wish) is halved until device and kernel take it. */
folio_status folio_cl_kernel_open(folio_op *op, int i, const char *entry,
                                  const folio_cl_options *o,
                                  int32_t *wg) FOLIO_NODISCARD;

/* The same for a kernel that is written for work-groups of exactly wg; `more`
 * are further options, NULL for none. BUILD where the kernel takes none. */
folio_status folio_cl_kernel_open_of(folio_op *op, int i, const char *entry,
                                     const folio_cl_options *o, int32_t wg,
                                     const char *more) FOLIO_NODISCARD;

/* A grid of rows x chunks work-groups of wg work-items; rows, of which there
 * may be very many, in the first dimension. */
folio_grid folio_cl_grid(size_t rows, size_t chunks, int32_t wg);

/* How many buffers per plane to compile for: 1, 2 or 4; 4, which serves all,
 * where the planes are still absent. */
int folio_cl_kv_segs(const folio_kv_ref *kv);
/* INVAL where a plane has more buffers than the kernel was compiled for. */
folio_status folio_cl_check_segs(const folio_op *op, const folio_kv_ref *kv,
                                 int segs) FOLIO_NODISCARD;
/* Appends to args[n..] the arguments of KV_PLANE or KV_CPLANE: `segs` views and
 * the shift. Returns the new count. */
int folio_cl_kv_args(folio_arg *args, int n, const folio_kv_plane *plane,
                     int segs);

/* For fits(): NULL for the KV types that kv.clh stores, else why not. */
const char *folio_cl_kv_refuse(const folio_kv_ref *kv);

#endif
