/* ops/pack.c: see pack.h. */
#include "ops/pack.h"

#include <string.h>

/* One run of equal bytes of a block that a packing keeps together: bytes
 * [from, from + bytes) of each block go to a plane of their own. */
typedef struct plane {
    uint8_t from, bytes;
} plane;

/* How the blocks of a type are cut for RG16; a plane of `bytes` holds for each
 * row of the group `bytes` at a time, block after block. */
typedef struct rg16_form {
    folio_type type;
    int values, block_bytes; /* of what is cut; 8 values for F16 */
    int n_planes;
    plane planes[3];
} rg16_form;

static const rg16_form forms[] = {
    {FOLIO_TYPE_F16, 8, 16, 1, {{0, 16}}},
    {FOLIO_TYPE_Q8_0, 32, 34, 2, {{2, 32}, {0, 2}}},
    {FOLIO_TYPE_Q4_0, 32, 18, 2, {{2, 16}, {0, 2}}},
    {FOLIO_TYPE_Q4_1, 32, 20, 2, {{4, 16}, {0, 4}}},
};

static const rg16_form *find_form(folio_type type)
{
    for (size_t i = 0; i < FOLIO_COUNT(forms); i++)
        if (forms[i].type == type)
            return &forms[i];
    return NULL;
}

const char *folio_pack_name(folio_packing p)
{
    switch (p) {
    case FOLIO_PACK_RAW:
        return "RAW";
    case FOLIO_PACK_RG16:
        return "RG16";
    case FOLIO_PACK_TILE16:
        return "TILE16";
    }
    return NULL;
}

bool folio_pack_takes(folio_packing p, folio_type type, int64_t cols)
{
    if (cols < 1 || folio_type_row_bytes(type, (uint64_t)cols) == 0)
        return false;
    switch (p) {
    case FOLIO_PACK_RAW:
        return true;
    case FOLIO_PACK_RG16:
        return find_form(type) && cols % 32 == 0;
    case FOLIO_PACK_TILE16:
        return type == FOLIO_TYPE_F16 && cols % FOLIO_TILE16_COLS == 0;
    }
    return false;
}

int64_t folio_pack_group(folio_packing p)
{
    switch (p) {
    case FOLIO_PACK_RG16:
        return FOLIO_RG16_ROWS;
    case FOLIO_PACK_TILE16:
        return FOLIO_TILE16_ROWS;
    default:
        return 1;
    }
}

size_t folio_pack_align(folio_packing p, folio_type type)
{
    if (p != FOLIO_PACK_RAW)
        return 16; /* loads and bulk copies of 16 bytes */
    switch (type) {
    case FOLIO_TYPE_F32:
    case FOLIO_TYPE_Q4_1:
    case FOLIO_TYPE_Q5_1:
    case FOLIO_TYPE_Q2_K:
    case FOLIO_TYPE_Q4_K:
    case FOLIO_TYPE_Q5_K:
    case FOLIO_TYPE_IQ4_XS:
        return 4; /* kernels read such rows as words */
    case FOLIO_TYPE_MXFP4:
        return 1;
    default:
        return 2;
    }
}

/* No packing needs more than the file does: planes only reorder bytes. */
size_t folio_pack_group_bytes(folio_packing p, folio_type type, int64_t cols)
{
    size_t bytes;
    if (!folio_pack_takes(p, type, cols) ||
        !folio_mul_size(folio_type_row_bytes(type, (uint64_t)cols),
                        (size_t)folio_pack_group(p), &bytes))
        return 0;
    return bytes;
}

size_t folio_pack_bytes(folio_packing p, folio_type type, int64_t rows,
                        int64_t cols)
{
    size_t bytes, group = folio_pack_group_bytes(p, type, cols);
    int64_t n = folio_div_up(rows, folio_pack_group(p));
    if (rows < 1 || group == 0 || !folio_mul_size(group, (size_t)n, &bytes))
        return 0;
    return bytes;
}

/* ---- RG16 ------------------------------------------------------------------
 */

/* The widest piece of a plane is 16 bytes, what a work-item loads at once:
 * Q8_0 has two of them in a block. */
#define PIECE 16

/* Place in a group of piece `k` of block `b` of plane `pl`, row r; `base` is
 * where the plane begins, in units of bytes for all blocks before it. */
static size_t rg16_at(const plane *pl, size_t base, size_t b, int k, size_t r)
{
    size_t piece = FOLIO_MIN(pl->bytes, PIECE);
    size_t per_block = pl->bytes / piece;
    return base + ((b * per_block + (size_t)k) * FOLIO_RG16_ROWS + r) * piece;
}

static void rg16_group(const rg16_form *f, int64_t cols, const uint8_t *src,
                       int64_t n, uint8_t *dst)
{
    size_t nb = (size_t)cols / (size_t)f->values;
    size_t row_bytes = nb * (size_t)f->block_bytes, base = 0;
    if (n < FOLIO_RG16_ROWS)
        memset(dst, 0, row_bytes * FOLIO_RG16_ROWS);
    for (int i = 0; i < f->n_planes; i++) {
        const plane *pl = &f->planes[i];
        size_t piece = FOLIO_MIN(pl->bytes, PIECE);
        /* Blocks outside: writes are consecutive. */
        for (size_t b = 0; b < nb; b++)
            for (int k = 0; k < pl->bytes / (int)piece; k++)
                for (size_t r = 0; r < (size_t)n; r++)
                    memcpy(dst + rg16_at(pl, base, b, k, r),
                           src + r * row_bytes + b * (size_t)f->block_bytes +
                               pl->from + (size_t)k * piece,
                           piece);
        base += nb * pl->bytes * FOLIO_RG16_ROWS;
    }
}

static void rg16_blocks(const rg16_form *f, int64_t cols, const uint8_t *group,
                        size_t r, size_t first, size_t n, uint8_t *out)
{
    size_t nb = (size_t)cols / (size_t)f->values, base = 0;
    for (int i = 0; i < f->n_planes; i++) {
        const plane *pl = &f->planes[i];
        size_t piece = FOLIO_MIN(pl->bytes, PIECE);
        for (size_t b = 0; b < n; b++)
            for (int k = 0; k < pl->bytes / (int)piece; k++)
                memcpy(out + b * (size_t)f->block_bytes + pl->from +
                           (size_t)k * piece,
                       group + rg16_at(pl, base, first + b, k, r), piece);
        base += nb * pl->bytes * FOLIO_RG16_ROWS;
    }
}

/* ---- TILE16 ----------------------------------------------------------------
 */

/* Place of columns 8 c .. 8 c + 7 of row r in a row of tiles. */
static size_t tile16_at(size_t r, size_t c)
{
    return c / 8 * FOLIO_TILE16_BYTES + r * 128 + ((c % 8) ^ (r % 8)) * 16;
}

static void tile16_group(int64_t cols, const uint8_t *src, int64_t n,
                         uint8_t *dst)
{
    size_t row_bytes = (size_t)cols * 2, chunks = (size_t)cols / 8;
    if (n < FOLIO_TILE16_ROWS)
        memset(dst, 0, row_bytes * FOLIO_TILE16_ROWS);
    for (size_t r = 0; r < (size_t)n; r++)
        for (size_t c = 0; c < chunks; c++)
            memcpy(dst + tile16_at(r, c), src + r * row_bytes + c * 16, 16);
}

/* ---- all packings ----------------------------------------------------------
 */

void folio_pack_rows(folio_packing p, folio_type type, int64_t cols,
                     const uint8_t *src, int64_t n, uint8_t *dst)
{
    size_t row_bytes = folio_type_row_bytes(type, (uint64_t)cols);
    int64_t group = folio_pack_group(p);
    if (p == FOLIO_PACK_RAW) {
        memcpy(dst, src, (size_t)n * row_bytes);
        return;
    }
    const rg16_form *f = find_form(type);
    for (int64_t first = 0; first < n; first += group) {
        int64_t rows = FOLIO_MIN(n - first, group);
        if (p == FOLIO_PACK_TILE16)
            tile16_group(cols, src, rows, dst);
        else
            rg16_group(f, cols, src, rows, dst);
        src += (size_t)rows * row_bytes;
        dst += (size_t)group * row_bytes;
    }
}

void folio_unpack_blocks(folio_packing p, folio_type type, int64_t cols,
                         const uint8_t *src, int64_t row, int64_t col,
                         int64_t n, uint8_t *out)
{
    size_t row_bytes = folio_type_row_bytes(type, (uint64_t)cols);
    int64_t group = folio_pack_group(p);
    const uint8_t *at = src + (size_t)(row / group * group) * row_bytes;
    size_t r = (size_t)(row % group);
    if (p == FOLIO_PACK_RAW) {
        memcpy(out, at + folio_type_row_bytes(type, (uint64_t)col),
               folio_type_row_bytes(type, (uint64_t)n));
        return;
    }
    if (p == FOLIO_PACK_TILE16) {
        for (int64_t i = 0; i < n; i++) {
            size_t c = (size_t)(col + i);
            memcpy(out + 2 * (size_t)i, at + tile16_at(r, c / 8) + c % 8 * 2,
                   2);
        }
        return;
    }
    if (type == FOLIO_TYPE_F16) {
        /* A single value is a block of the type, a piece has eight. */
        for (int64_t i = 0; i < n; i++) {
            size_t c = (size_t)(col + i);
            memcpy(out + 2 * (size_t)i,
                   at + (c / 8 * FOLIO_RG16_ROWS + r) * PIECE + c % 8 * 2, 2);
        }
        return;
    }
    const rg16_form *f = find_form(type);
    rg16_blocks(f, cols, at, r, (size_t)(col / f->values),
                (size_t)(n / f->values), out);
}

/* ---- choice ----------------------------------------------------------------
 */

static bool wished(const char *text, folio_packing *out)
{
    static const struct {
        const char *text;
        folio_packing packing;
    } known[] = {{"raw", FOLIO_PACK_RAW},
                 {"rg16", FOLIO_PACK_RG16},
                 {"tile16", FOLIO_PACK_TILE16}};
    for (size_t i = 0; text && i < FOLIO_COUNT(known); i++)
        if (strcmp(text, known[i].text) == 0) {
            *out = known[i].packing;
            return true;
        }
    return false;
}

folio_packing folio_pack_choose(const folio_device *dev, folio_type type,
                                int64_t rows, int64_t cols,
                                const folio_pack_hints *hints)
{
    folio_packing want;
    (void)rows;
    if (folio_device_is_host(dev))
        return !hints->exact && type != FOLIO_TYPE_F16 &&
                       folio_pack_takes(FOLIO_PACK_RG16, type, cols)
                   ? FOLIO_PACK_RG16
                   : FOLIO_PACK_RAW;
    if (!wished(folio_packing_wish(), &want))
        want = folio_device_caps(dev) & FOLIO_CAP_GPU ? FOLIO_PACK_RG16
                                                      : FOLIO_PACK_RAW;
    if (folio_pack_takes(want, type, cols))
        return want;
    if (want == FOLIO_PACK_TILE16 &&
        folio_pack_takes(FOLIO_PACK_RG16, type, cols))
        return FOLIO_PACK_RG16;
    return FOLIO_PACK_RAW;
}
