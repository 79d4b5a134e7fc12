/* ops/pack.h: how matrices are stored on a device: what each packing looks
 * like, writing it from a file's rows, reading it back, and which one a device
 * should get. Host code over plain bytes; calls no device.
 *
 * RAW: the file's own rows of blocks.
 *
 * RG16: groups of 16 rows, each group contiguous, so that a work-item can own a
 * row and neighbours read neighbouring 16 bytes. Inside a group lie planes, one
 * after the other (r is the row in the group, g the number of 32 columns,
 * nb = cols / 32, byte offsets from the start of the group):
 *   F16   values of columns 8 c .. 8 c + 7 at (c * 16 + r) * 16
 *   Q8_0  columns 16 c .. 16 c + 15 at (c * 16 + r) * 16, then from nb * 512 on
 *         the scale of g at (g * 16 + r) * 2
 *   Q4_0  the 16 bytes of nibbles of g, as in the file, at (g * 16 + r) * 16,
 *         then from nb * 256 on the scale at (g * 16 + r) * 2
 *   Q4_1  the same, then from nb * 256 on scale and minimum at (g * 16 + r) * 4
 * In the file's order bytes 4 i .. 4 i + 3 hold columns 4 i .. 4 i + 3 in their
 * low nibbles and 16 + 4 i .. in their high ones: four consecutive columns in
 * each half of a word.
 *
 * TILE16 (F16 only): tiles of 128 rows x 64 columns, 16 KiB each, tiles in row
 * order: tile (row / 128, col / 64). Inside, row r is 128 bytes at r * 128, and
 * its 16 bytes j (columns 8 j .. 8 j + 7) lie at place j ^ (r & 7): what wgmma
 * reads with the 128-byte swizzle.
 *
 * Rows past the last one, up to a whole group, are zero. */
#ifndef FOLIO_OPS_PACK_H
#define FOLIO_OPS_PACK_H

#include "ops/ops.h"

#define FOLIO_RG16_ROWS    16
#define FOLIO_TILE16_ROWS  128
#define FOLIO_TILE16_COLS  64
#define FOLIO_TILE16_BYTES (FOLIO_TILE16_ROWS * FOLIO_TILE16_COLS * 2)

/* "RAW", "RG16", "TILE16"; NULL for another number. */
const char *folio_pack_name(folio_packing p);
/* Whether a matrix of this type and width can be stored so. */
bool folio_pack_takes(folio_packing p, folio_type type, int64_t cols);
/* Rows that are stored together: a view begins at a multiple of it. */
int64_t folio_pack_group(folio_packing p);
/* Alignment in bytes of the first row of a view. */
size_t folio_pack_align(folio_packing p, folio_type type);
/* Bytes of one group; 0 where folio_pack_takes says no or they do not fit
 * size_t. */
size_t folio_pack_group_bytes(folio_packing p, folio_type type, int64_t cols);
/* Bytes of `rows` rows, a last group filled up; 0 as above. */
size_t folio_pack_bytes(folio_packing p, folio_type type, int64_t rows,
                        int64_t cols);

/* Packs the n rows that begin at `src` (the file's form, rows back to back) to
 * `dst`, which receives folio_pack_bytes of them. `src` is the start of a
 * group. Independent pieces may be packed by several threads. */
void folio_pack_rows(folio_packing p, folio_type type, int64_t cols,
                     const uint8_t *src, int64_t n, uint8_t *dst);

/* Writes to `out` the blocks, in the file's form, of columns [col, col + n) of
 * row `row` of the packed rows at `src`. col and n are multiples of the type's
 * block. */
void folio_unpack_blocks(folio_packing p, folio_type type, int64_t cols,
                         const uint8_t *src, int64_t row, int64_t col,
                         int64_t n, uint8_t *out);

/* What the choice of a packing depends on beside the device. */
typedef struct folio_pack_hints {
    int32_t max_seqs, max_tok;
    bool exact;
} folio_pack_hints;

/* The packing that serves a matrix best on this device. RAW on CPU drivers, and
 * on the host device where its 8-bit products do not read RG16 or `exact` is
 * set; elsewhere RG16, or TILE16 where matrix units read it and
 * prefill is asked for. FOLIO_PACKING in the environment (raw, rg16, tile16)
 * goes before, on OpenCL devices, for the matrices that can be stored so. */
folio_packing folio_pack_choose(const folio_device *dev, folio_type type,
                                int64_t rows, int64_t cols,
                                const folio_pack_hints *hints);

#endif
