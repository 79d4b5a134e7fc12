/* ops/cl/cl_attn.h: what the launchers of attention share: the geometry they
 * keep, compiler options, and prefill tiles (attn_prefill.cl), which any of
 * them may use beside its own way with decoding sequences. */
#ifndef FOLIO_OPS_CL_ATTN_H
#define FOLIO_OPS_CL_ATTN_H

#include "ops/attn_plan.h"
#include "ops/cl/cl_util.h"

/* op->geo: the plan's parameters first (attn_plan.c reads them there). */
enum {
    FOLIO_GEO_PLAN_END = sizeof(folio_attn_plan_params) / sizeof(int32_t),
    FOLIO_GEO_WG = FOLIO_GEO_PLAN_END,
    FOLIO_GEO_SEGS,
    FOLIO_GEO_UNITS, /* attn_cpu: compute units */
    FOLIO_GEO_TILE_WG,
    FOLIO_GEO_TILE_GROUPS, /* work-groups per tile */
    FOLIO_GEO_MERGE_WG,
    FOLIO_GEO_END
};
_Static_assert((int)FOLIO_GEO_END <= (int)FOLIO_COUNT(((folio_op *)0)->geo),
               "the geometry has room");

enum { FOLIO_ATTN_MAIN, FOLIO_ATTN_MERGE, FOLIO_ATTN_TILE };

/* Sequences with fewer new tokens come as entries. */
enum { FOLIO_ATTN_TILE_MIN_Q = 8 };

/* For fits(): what no kernel of attention takes. */
const char *folio_cl_attn_refuse(const folio_device *dev,
                                 const folio_op_params *prm, const void *args);
/* Options of every kernel of attention; sets FOLIO_GEO_SEGS. */
void folio_cl_attn_define(folio_cl_options *o, folio_op *op,
                          const folio_attn_args *a);

/* Prefill tiles. fit: as fits(). open, after the plan's parameters are in
 * op->geo: builds FOLIO_ATTN_TILE and adds tiles to the plan. run: the tiles of
 * a batch; none is OK. */
const char *folio_cl_attn_tiles_fit(const folio_device *dev,
                                    const folio_attn_args *a);
folio_status folio_cl_attn_tiles_open(folio_op *op,
                                      const folio_attn_args *a) FOLIO_NODISCARD;
folio_status folio_cl_attn_tiles_run(folio_op *op, folio_queue *q,
                                     const folio_attn_args *a) FOLIO_NODISCARD;

/* Decoding sequences by spans of bulk copies (cl_attn_bulk.c); the same three,
 * for the plan's entries and FOLIO_ATTN_MAIN, which merges too. */
const char *folio_cl_attn_bulk_fit(const folio_device *dev,
                                   const folio_op_params *prm,
                                   const folio_attn_args *a);
folio_status folio_cl_attn_bulk_open(folio_op *op,
                                     const folio_attn_args *a) FOLIO_NODISCARD;
folio_status folio_cl_attn_bulk_run(folio_op *op, folio_queue *q,
                                    const folio_attn_args *a) FOLIO_NODISCARD;
/* INVAL where a plane does not lie at a multiple of 16 bytes. */
folio_status folio_cl_attn_check_bulk(const folio_op *op,
                                      const folio_kv_ref *kv) FOLIO_NODISCARD;

#endif
