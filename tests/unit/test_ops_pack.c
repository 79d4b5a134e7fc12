/* Packings: every byte where pack.h says, back again, filled up with zeros, in
 * pieces as in one go; rows of packed weights; what is refused; which packing a
 * device gets. Seeds are fixed and printed. */
#define _POSIX_C_SOURCE 200809L
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ops/pack.h"

typedef struct pack_case {
    folio_packing packing;
    folio_type type;
    int64_t rows, cols;
} pack_case;

static const pack_case cases[] = {
    {FOLIO_PACK_RG16, FOLIO_TYPE_F16, 16, 32},
    {FOLIO_PACK_RG16, FOLIO_TYPE_F16, 37, 96},
    {FOLIO_PACK_RG16, FOLIO_TYPE_Q8_0, 1, 32},
    {FOLIO_PACK_RG16, FOLIO_TYPE_Q8_0, 50, 160},
    {FOLIO_PACK_RG16, FOLIO_TYPE_Q4_0, 16, 64},
    {FOLIO_PACK_RG16, FOLIO_TYPE_Q4_0, 33, 576},
    {FOLIO_PACK_RG16, FOLIO_TYPE_Q4_1, 47, 96},
    {FOLIO_PACK_TILE16, FOLIO_TYPE_F16, 128, 64},
    {FOLIO_PACK_TILE16, FOLIO_TYPE_F16, 129, 192},
    {FOLIO_PACK_TILE16, FOLIO_TYPE_F16, 5, 128},
    {FOLIO_PACK_RAW, FOLIO_TYPE_Q6_K, 3, 512},
};

static uint8_t *random_bytes(size_t n, uint32_t seed)
{
    uint8_t *p = malloc(n);
    cr_assert_not_null(p);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (uint8_t)(seed >> 24);
    }
    return p;
}

/* The case's rows, packed in one go; *bytes: of the packed form. */
static uint8_t *pack_all(const pack_case *c, const uint8_t *raw, size_t *bytes)
{
    *bytes = folio_pack_bytes(c->packing, c->type, c->rows, c->cols);
    cr_assert_gt(*bytes, 0);
    uint8_t *p = malloc(*bytes);
    cr_assert_not_null(p);
    memset(p, 0xa5, *bytes);
    folio_pack_rows(c->packing, c->type, c->cols, raw, c->rows, p);
    return p;
}

static uint8_t *raw_of(const pack_case *c, size_t i, size_t *row_bytes)
{
    *row_bytes = folio_type_row_bytes(c->type, (uint64_t)c->cols);
    return random_bytes((size_t)c->rows * *row_bytes, 7 + (uint32_t)i);
}

Test(ops_pack, what_goes_in_comes_out)
{
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++) {
        const pack_case *c = &cases[i];
        size_t row_bytes, bytes;
        uint8_t *raw = raw_of(c, i, &row_bytes);
        uint8_t *packed = pack_all(c, raw, &bytes);
        uint8_t *row = malloc(row_bytes);
        cr_assert_not_null(row);
        int64_t block = folio_type_find((uint32_t)c->type)->block_values;
        for (int64_t r = 0; r < c->rows; r++) {
            folio_unpack_blocks(c->packing, c->type, c->cols, packed, r, 0,
                                c->cols, row);
            cr_assert_eq(memcmp(row, raw + (size_t)r * row_bytes, row_bytes), 0,
                         "case %zu row %d", i, (int)r);
            /* The last block alone. */
            folio_unpack_blocks(c->packing, c->type, c->cols, packed, r,
                                c->cols - block, block, row);
            size_t n = folio_type_row_bytes(c->type, (uint64_t)block);
            cr_assert_eq(memcmp(row, raw + ((size_t)r + 1) * row_bytes - n, n),
                         0, "case %zu row %d, last block", i, (int)r);
        }
        free(row);
        free(packed);
        free(raw);
    }
}

/* Rows behind the last one, unpacked as if they were there. */
Test(ops_pack, groups_are_filled_up_with_zeros)
{
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++) {
        const pack_case *c = &cases[i];
        size_t row_bytes, bytes;
        uint8_t *raw = raw_of(c, i, &row_bytes);
        uint8_t *packed = pack_all(c, raw, &bytes);
        uint8_t *row = malloc(row_bytes), *zero = calloc(row_bytes, 1);
        cr_assert(row && zero);
        int64_t group = folio_pack_group(c->packing);
        int64_t full = folio_div_up(c->rows, group) * group;
        cr_assert_eq(bytes, (size_t)full * row_bytes);
        for (int64_t r = c->rows; r < full; r++) {
            folio_unpack_blocks(c->packing, c->type, c->cols, packed, r, 0,
                                c->cols, row);
            cr_assert_eq(memcmp(row, zero, row_bytes), 0, "case %zu row %d", i,
                         (int)r);
        }
        free(row);
        free(zero);
        free(packed);
        free(raw);
    }
}

Test(ops_pack, pieces_make_the_whole)
{
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++) {
        const pack_case *c = &cases[i];
        size_t row_bytes, bytes;
        uint8_t *raw = raw_of(c, i, &row_bytes);
        uint8_t *packed = pack_all(c, raw, &bytes);
        uint8_t *again = malloc(bytes);
        cr_assert_not_null(again);
        int64_t group = folio_pack_group(c->packing);
        size_t unit = folio_pack_group_bytes(c->packing, c->type, c->cols);
        for (int64_t r = 0; r < c->rows; r += group)
            folio_pack_rows(c->packing, c->type, c->cols,
                            raw + (size_t)r * row_bytes,
                            FOLIO_MIN(group, c->rows - r),
                            again + (size_t)(r / group) * unit);
        cr_assert_eq(memcmp(packed, again, bytes), 0, "case %zu", i);
        free(again);
        free(packed);
        free(raw);
    }
}

/* The formulas of pack.h, written out once more. */
Test(ops_pack, bytes_lie_where_kernels_look)
{
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++) {
        const pack_case *c = &cases[i];
        size_t row_bytes, bytes;
        uint8_t *raw = raw_of(c, i, &row_bytes);
        uint8_t *packed = pack_all(c, raw, &bytes);
        size_t nb = (size_t)c->cols / 32;
        for (size_t r = 0; r < (size_t)c->rows; r++) {
            const uint8_t *src = raw + r * row_bytes;
            const uint8_t *g = packed + r / 16 * 16 * row_bytes;
            size_t in = r % 16;
            for (size_t b = 0; b < nb; b++) {
                if (c->packing == FOLIO_PACK_TILE16) {
                    for (size_t k = 4 * b; k < 4 * b + 4; k++) {
                        const uint8_t *tile =
                            packed +
                            (r / 128 * ((size_t)c->cols / 64) + k / 8) * 16384;
                        cr_assert_eq(memcmp(tile + r % 128 * 128 +
                                                ((k % 8) ^ (r & 7)) * 16,
                                            src + k * 16, 16),
                                     0);
                    }
                } else if (c->packing == FOLIO_PACK_RAW) {
                    continue;
                } else if (c->type == FOLIO_TYPE_F16) {
                    for (size_t k = 4 * b; k < 4 * b + 4; k++)
                        cr_assert_eq(
                            memcmp(g + (k * 16 + in) * 16, src + k * 16, 16),
                            0);
                } else if (c->type == FOLIO_TYPE_Q8_0) {
                    const uint8_t *p = src + b * 34;
                    cr_assert_eq(memcmp(g + (2 * b * 16 + in) * 16, p + 2, 16),
                                 0);
                    cr_assert_eq(
                        memcmp(g + ((2 * b + 1) * 16 + in) * 16, p + 18, 16),
                        0);
                    cr_assert_eq(memcmp(g + nb * 512 + (b * 16 + in) * 2, p, 2),
                                 0);
                } else {
                    size_t head = c->type == FOLIO_TYPE_Q4_1 ? 4 : 2;
                    const uint8_t *p = src + b * (16 + head);
                    cr_assert_eq(memcmp(g + (b * 16 + in) * 16, p + head, 16),
                                 0);
                    cr_assert_eq(
                        memcmp(g + nb * 256 + (b * 16 + in) * head, p, head),
                        0);
                }
            }
        }
        free(packed);
        free(raw);
    }
}

Test(ops_pack, refuses_what_it_cannot_hold)
{
    const folio_packing rg = FOLIO_PACK_RG16, tile = FOLIO_PACK_TILE16;
    cr_assert(folio_pack_takes(FOLIO_PACK_RAW, FOLIO_TYPE_F32, 3));
    cr_assert_not(folio_pack_takes(FOLIO_PACK_RAW, FOLIO_TYPE_Q4_0, 31));
    cr_assert_not(folio_pack_takes(rg, FOLIO_TYPE_F32, 32));
    cr_assert_not(folio_pack_takes(rg, FOLIO_TYPE_F16, 40));
    cr_assert_not(folio_pack_takes(rg, FOLIO_TYPE_F16, 0));
    cr_assert_not(folio_pack_takes(tile, FOLIO_TYPE_F16, 96));
    cr_assert_not(folio_pack_takes(tile, FOLIO_TYPE_Q4_0, 128));
    cr_assert_not(folio_pack_takes((folio_packing)9, FOLIO_TYPE_F16, 64));
    cr_assert_eq(folio_pack_bytes(tile, FOLIO_TYPE_F16, 4, 96), 0);
    cr_assert_eq(folio_pack_bytes(rg, FOLIO_TYPE_F16, 0, 32), 0);
    cr_assert_eq(folio_pack_bytes(rg, FOLIO_TYPE_F16, INT64_MAX / 4, 1 << 30),
                 0);
    cr_assert_str_eq(folio_pack_name(FOLIO_PACK_RAW), "RAW");
    cr_assert_str_eq(folio_pack_name(rg), "RG16");
    cr_assert_str_eq(folio_pack_name(tile), "TILE16");
    cr_assert_null(folio_pack_name((folio_packing)9));
}

static folio_device *open_device(const char *select)
{
    folio_device_params p;
    folio_device *dev = NULL;
    folio_device_params_default(&p);
    p.select = select;
    p.cache_dir = "";
    folio_status st = folio_device_open(&p, &dev);
    if (st != FOLIO_OK) {
        cr_assert_null(getenv("CI"), "no device %s", select);
        cr_skip_test("no device %s", select);
    }
    return dev;
}

/* Two views, the second from a group's border on. */
Test(ops_pack, rows_of_packed_weights)
{
    const int64_t rows = 150, cols = 320; /* more than is unpacked at once */
    const size_t row_bytes = (size_t)cols * 2;
    folio_device *dev = open_device("host");
    uint8_t *raw = random_bytes((size_t)rows * row_bytes, 99);
    float *want = malloc((size_t)cols * 4), *got = malloc((size_t)cols * 4);
    cr_assert(want && got);
    for (int k = 0; k < 2; k++) {
        folio_packing p = k ? FOLIO_PACK_TILE16 : FOLIO_PACK_RG16;
        int64_t first = folio_pack_group(p);
        folio_weight_view v[2] = {{.rows = first},
                                  {.first_row = first, .rows = rows - first}};
        for (int i = 0; i < 2; i++) {
            size_t n = folio_pack_bytes(p, FOLIO_TYPE_F16, v[i].rows, cols);
            cr_assert_eq(folio_buf_open(dev, n, &v[i].view.buf), FOLIO_OK);
            folio_pack_rows(p, FOLIO_TYPE_F16, cols,
                            raw + (size_t)v[i].first_row * row_bytes, v[i].rows,
                            folio_view_host(v[i].view));
        }
        const folio_weight w = {.type = FOLIO_TYPE_F16,
                                .packing = p,
                                .rows = rows,
                                .cols = cols,
                                .views = v,
                                .n_views = 2};
        for (int64_t r = 0; r < rows; r++) {
            folio_weight_row(&w, r, got);
            folio_dequant(FOLIO_TYPE_F16, raw + (size_t)r * row_bytes, cols,
                          want);
            cr_assert_eq(memcmp(got, want, (size_t)cols * 4), 0, "%s row %d",
                         folio_pack_name(p), (int)r);
        }
        for (int i = 0; i < 2; i++)
            folio_buf_close(&v[i].view.buf);
    }
    free(want);
    free(got);
    free(raw);
    folio_device_close(&dev);
}

Test(ops_pack, choice_follows_device_and_wish)
{
    const folio_pack_hints hints = {8, 512, false};
    folio_device *host = open_device("host");
    unsetenv("FOLIO_PACKING");
    cr_assert_eq(folio_pack_choose(host, FOLIO_TYPE_F16, 64, 64, &hints),
                 FOLIO_PACK_RAW);
    setenv("FOLIO_PACKING", "rg16", 1);
    cr_assert_eq(folio_pack_choose(host, FOLIO_TYPE_F16, 64, 64, &hints),
                 FOLIO_PACK_RAW, "the wish is for OpenCL devices");
    unsetenv("FOLIO_PACKING");
    const folio_pack_hints exact = {8, 512, true};
    const folio_type packed[] = {FOLIO_TYPE_Q4_0, FOLIO_TYPE_Q4_1,
                                 FOLIO_TYPE_Q8_0};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(folio_pack_choose(host, packed[i], 64, 64, &hints),
                     FOLIO_PACK_RG16);
        cr_assert_eq(folio_pack_choose(host, packed[i], 64, 64, &exact),
                     FOLIO_PACK_RAW);
    }
    cr_assert_eq(folio_pack_choose(host, FOLIO_TYPE_Q6_K, 64, 256, &hints),
                 FOLIO_PACK_RAW);
    folio_device_close(&host);

    folio_device *cpu = open_device("pocl");
    static const struct {
        const char *wish;
        folio_type type;
        int64_t cols;
        folio_packing want;
    } asked[] = {
        {NULL, FOLIO_TYPE_F16, 64, FOLIO_PACK_RAW},
        {"raw", FOLIO_TYPE_F16, 64, FOLIO_PACK_RAW},
        {"rg16", FOLIO_TYPE_F16, 64, FOLIO_PACK_RG16},
        {"rg16", FOLIO_TYPE_Q4_1, 32, FOLIO_PACK_RG16},
        {"rg16", FOLIO_TYPE_F16, 40, FOLIO_PACK_RAW},
        {"rg16", FOLIO_TYPE_F32, 64, FOLIO_PACK_RAW},
        {"tile16", FOLIO_TYPE_F16, 64, FOLIO_PACK_TILE16},
        {"tile16", FOLIO_TYPE_F16, 96, FOLIO_PACK_RG16},
        {"tile16", FOLIO_TYPE_Q8_0, 64, FOLIO_PACK_RG16},
        {"other", FOLIO_TYPE_F16, 64, FOLIO_PACK_RAW},
    };
    for (size_t i = 0; i < FOLIO_COUNT(asked); i++) {
        if (asked[i].wish)
            setenv("FOLIO_PACKING", asked[i].wish, 1);
        else
            unsetenv("FOLIO_PACKING");
        cr_assert_eq(
            folio_pack_choose(cpu, asked[i].type, 64, asked[i].cols, &hints),
            asked[i].want, "wish %zu", i);
    }
    unsetenv("FOLIO_PACKING");
    folio_device_close(&cpu);
}

Test(ops_pack, constants_from_the_environment)
{
    unsetenv("FOLIO_TUNE");
    cr_assert_eq(folio_tuned("linear_gemv", "LANES", 256), 256);
    setenv("FOLIO_TUNE",
           "linear_gemv_i8:LANES=64,UNROLL=2;linear_gemv:UNROLL=8,LANES=512",
           1);
    cr_assert_eq(folio_tuned("linear_gemv", "LANES", 256), 512);
    cr_assert_eq(folio_tuned("linear_gemv", "UNROLL", 4), 8);
    cr_assert_eq(folio_tuned("linear_gemv", "GROUPS", 4), 4);
    cr_assert_eq(folio_tuned("linear_gemv_i8", "LANES", 256), 64);
    cr_assert_eq(folio_tuned("linear", "LANES", 256), 256);
    setenv("FOLIO_TUNE", "linear_gemv:LANES=5x,UNROLL=-1,KC=99999999999", 1);
    cr_assert_eq(folio_tuned("linear_gemv", "LANES", 256), 256);
    cr_assert_eq(folio_tuned("linear_gemv", "UNROLL", 4), 4);
    cr_assert_eq(folio_tuned("linear_gemv", "KC", 4), 4);
    unsetenv("FOLIO_TUNE");
}
