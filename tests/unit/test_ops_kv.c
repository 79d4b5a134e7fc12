/* The order of elements in a KV tile, and the layouts that are fallen back to.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "cl/kv_layout.clh"
#include "ops/ops.h"

static void expect_fit(int32_t x, int32_t y, int32_t hd, int32_t bs,
                       int32_t want_x, int32_t want_y)
{
    folio_kv_layout l = folio_kv_layout_fit(
        (folio_kv_layout){.xk = x, .yk = y, .xv = x, .yv = y}, hd, bs);
    cr_expect(
        l.xk == want_x && l.xv == want_x && l.yk == want_y && l.yv == want_y,
        "X %d Y %d for HD %d BS %d became %d, %d", x, y, hd, bs, l.xk, l.yk);
}

Test(ops_kv, layout_fit)
{
    expect_fit(8, 1, 64, 16, 8, 1);
    expect_fit(64, 2, 64, 16, 64, 2);
    expect_fit(80, 1, 80, 16, 80, 1); /* X = HD divides, whatever it is */
    expect_fit(32, 1, 80, 16, 16, 1); /* 80 = 16 * 5 */
    expect_fit(8, 1, 4, 16, 4, 1);    /* tiny heads */
    expect_fit(8, 1, 6, 16, 2, 1);
    expect_fit(8, 1, 5, 16, 1, 1);
    expect_fit(12, 1, 64, 16, 8, 1);
    expect_fit(8, 2, 64, 1, 8, 1);
    expect_fit(8, 4, 64, 6, 8, 1);
    expect_fit(1, 16, 64, 16, 1, 16);
    expect_fit(0, 0, 64, 16, 1, 1);
    expect_fit(-3, -1, 64, 16, 1, 1);
}

/* Every element has a place of its own, for every layout that divides. */
Test(ops_kv, index_is_a_permutation)
{
    static const unsigned sizes[][2] = {{1, 4},   {2, 6},   {4, 80},
                                        {16, 64}, {32, 48}, {6, 5}};
    unsigned char seen[2048];
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++) {
        unsigned bs = sizes[i][0], hd = sizes[i][1];
        for (unsigned x = 1; x <= hd; x++)
            for (unsigned y = 1; y <= bs; y++) {
                if (hd % x != 0 || bs % y != 0)
                    continue;
                memset(seen, 0, sizeof seen);
                for (unsigned t = 0; t < bs; t++)
                    for (unsigned d = 0; d < hd; d++) {
                        unsigned at = folio_kv_index(t, d, bs, x, y);
                        cr_assert(at < bs * hd && !seen[at],
                                  "BS %u HD %u X %u Y %u: (%u, %u) at %u", bs,
                                  hd, x, y, t, d, at);
                        seen[at] = 1;
                    }
            }
    }
}

Test(ops_kv, named_orders)
{
    /* X = HD, Y = 1: plain rows. */
    cr_assert_eq(folio_kv_index(3, 5, 16, 64, 1), 3u * 64 + 5);
    /* X = HD, Y = 2: two tokens side by side. */
    cr_assert_eq(folio_kv_index(3, 5, 16, 64, 2), (1u * 64 + 5) * 2 + 1);
    /* X = 1: transposed. */
    cr_assert_eq(folio_kv_index(3, 5, 16, 1, 1), 5u * 16 + 3);
    /* X = 8: dims in eights, tokens between. */
    cr_assert_eq(folio_kv_index(3, 13, 16, 8, 1), (1u * 16 + 3) * 8 + 5);
}

Test(ops_kv, sizes)
{
    folio_kv_ref kv = {.type = FOLIO_KV_F16,
                       .n_blocks = 7,
                       .block_size = 16,
                       .kv_heads = 3,
                       .head_dim = 80};
    cr_assert_eq(folio_kv_block_bytes(&kv), 16u * 3 * 80 * 2);
    kv.type = FOLIO_KV_F32;
    cr_assert_eq(folio_kv_block_bytes(&kv), 16u * 3 * 80 * 4);
    cr_assert_eq(folio_kv_type_bytes(FOLIO_KV_I8), 1u);
}
