/* ops/attn_plan.h: turns a batch's (q_start, kv_len) and a device's figures
 * into work lists for the attention kernels. Integers only, no device. Source:
 * the host plan of FlashInfer.
 *
 * An entry is a run of keys that one work-group column handles for one query
 * token; causality and window are resolved here, so every key of an entry is
 * visible. Entry: {token, sequence, first key, number of keys, partial slot or
 * -1 (the only entry of its token: writes the output itself), 0, 0, 0}.
 * A merge: {token, first partial slot, number of partials, 0}; partials of one
 * token are consecutive and in key order. A token that sees no key gets one
 * entry with 0 keys.
 * A tile: {sequence, first token, number of tokens, 0} for prefill kernels.
 *
 * With spans, work-groups share all blocks evenly, whosever they are. An entry
 * is a token with all its keys, {token, sequence, first key, number of keys,
 * -1, blocks of entries before it, its own blocks, span}: entry i makes
 * groups_per_entry columns of its own blocks in one line of blocks, the columns
 * of an entry following each other, and group g has the `span` blocks from g *
 * span on. A merge is {token, entry, 0, 0}, of entries some column of which is
 * shared by groups; partial slots are the kernel's own. */
#ifndef FOLIO_OPS_ATTN_PLAN_H
#define FOLIO_OPS_ATTN_PLAN_H

#include "base/base.h"

#define FOLIO_ATTN_ENTRY_INTS 8
#define FOLIO_ATTN_MERGE_INTS 4
#define FOLIO_ATTN_TILE_INTS  4

/* What the chosen variant wants (folio_attn_plan_params_of). */
typedef struct folio_attn_plan_params {
    int32_t block_size;
    int32_t window;     /* 0 = none */
    int32_t tile_q;     /* tokens per prefill tile; 0 = no tiles */
    int32_t tile_min_q; /* sequences with fewer new tokens use entries */
    int32_t chunk;      /* > 0: fixed keys per entry, a multiple of BS,
                           boundaries at multiples of it from key 0
                           (deterministic); 0: chosen per batch */
    int32_t min_chunk, max_chunk; /* bounds when chosen; 128, 1024 */
    int32_t groups_per_entry;     /* KVH * ceil(G / GT) */
    int32_t target_groups;        /* work-groups that fill the device */
    int32_t max_partials;         /* capacity of the partials scratch */
    int32_t spans; /* 1: spans for target_groups; `chunk` is their least number
                      of keys, and nothing is deterministic; 0: none */
    int32_t merge_blocks; /* spans: adding up a column's partials costs as much
                             time as a group needs for so many blocks */
} folio_attn_plan_params;

typedef struct folio_attn_plan_bounds {
    int32_t entries, merges, tiles, partials;
} folio_attn_plan_bounds;

/* The most a plan for T <= max_tok, S <= max_seqs and kv_len <= max_kv can
 * need. INVAL for non-positive figures, TOO_LARGE on overflow of int32. */
folio_status folio_attn_plan_bound(const folio_attn_plan_params *p,
                                   int32_t max_tok, int32_t max_seqs,
                                   int32_t max_kv,
                                   folio_attn_plan_bounds *out) FOLIO_NODISCARD;

typedef struct folio_attn_plan_counts {
    int32_t n_entries, n_merges, n_tiles, n_partials;
} folio_attn_plan_counts;

/* Fills the three arrays (capacities as bounded). q_start [n_seq + 1] ascending
 * from 0, kv_len[s] >= q_start[s+1] - q_start[s]. Nothing is written on
 * failure: INVAL for a batch that breaks this, FULL when a capacity in `cap` is
 * too small. */
folio_status folio_attn_plan_build(const folio_attn_plan_params *p,
                                   int32_t n_seq, const int32_t *q_start,
                                   const int32_t *kv_len,
                                   const folio_attn_plan_bounds *cap,
                                   int32_t *entries, int32_t *merges,
                                   int32_t *tiles,
                                   folio_attn_plan_counts *out) FOLIO_NODISCARD;

/* The plan a chosen attention op needs; args as given to folio_op_open. On the
 * host device and for kernels that read (q_start, kv_len) alone both tile_q is
 * 0 and target_groups is 0: build() then returns empty lists. */
struct folio_op;
struct folio_attn_args;
void folio_attn_plan_params_of(const struct folio_op *op,
                               folio_attn_plan_params *out);

#endif
