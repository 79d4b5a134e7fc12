/* Half and bfloat16 conversions: every value both ways, and every rounding
 * boundary, against conversions written from the formats' definitions. */
#include <criterion/criterion.h>
#include <math.h>

#include "base/half.h"

/* The value of a binary format with `man_bits` stored mantissa bits. */
static double value_of(uint32_t bits, int man_bits, int bias)
{
    int exp_max = man_bits == 10 ? 31 : 255;
    int exp = (int)(bits >> man_bits) & exp_max;
    double man = bits & ((1u << man_bits) - 1u);
    double v = exp == 0
                   ? ldexp(man, 1 - bias - man_bits)
                   : ldexp(man + ldexp(1, man_bits), exp - bias - man_bits);
    return bits & 0x8000u ? -v : v;
}

static int is_special(uint32_t bits, int man_bits)
{
    uint32_t exp_mask = 0x7fffu & ~((1u << man_bits) - 1u);
    return (bits & exp_mask) == exp_mask;
}

Test(base_half, all_halves_widen_exactly_and_return)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = folio_f16_to_f32((uint16_t)h);
        if (is_special(h, 10)) {
            if (h & 0x3ffu)
                cr_assert(isnan(f), "%04x", h);
            else
                cr_assert(isinf(f) && !signbit(f) == !(h & 0x8000u), "%04x", h);
        } else {
            cr_assert((double)f == value_of(h, 10, 15), "%04x", h);
            cr_assert(!signbit(f) == !(h & 0x8000u), "%04x", h);
        }
        uint16_t back = folio_f32_to_f16(f);
        if (isnan(f))
            cr_assert((back & 0x7c00u) == 0x7c00u && (back & 0x3ffu) &&
                          (back & 0x8000u) == (h & 0x8000u),
                      "%04x -> %04x", h, back);
        else
            cr_assert(back == h, "%04x -> %04x", h, back);
    }
}

Test(base_half, all_bfloats_widen_exactly_and_return)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = folio_bf16_to_f32((uint16_t)h);
        uint16_t back = folio_f32_to_bf16(f);
        if (is_special(h, 7) && (h & 0x7fu)) {
            cr_assert(isnan(f), "%04x", h);
            cr_assert((back & 0x7f80u) == 0x7f80u && (back & 0x7fu), "%04x", h);
            continue;
        }
        if (is_special(h, 7))
            cr_assert(isinf(f), "%04x", h);
        else
            cr_assert((double)f == value_of(h, 7, 127), "%04x", h);
        cr_assert(back == h, "%04x -> %04x", h, back);
    }
}

/* Between neighbours lo and hi: the middle goes to the even one, a hair to
 * either side goes to the nearer one. */
static void check_between(uint16_t lo, uint16_t hi, double a, double b,
                          uint16_t (*narrow)(float))
{
    float mid = (float)((a + b) / 2); /* exact: one bit more than the format */
    cr_assert((double)mid == (a + b) / 2);
    uint16_t even = lo & 1u ? hi : lo;
    cr_assert(narrow(mid) == even, "mid of %04x and %04x: %04x", lo, hi,
              narrow(mid));
    cr_assert(narrow(nextafterf(mid, (float)a)) == lo, "below %04x", hi);
    cr_assert(narrow(nextafterf(mid, (float)b)) == hi, "above %04x", lo);
    cr_assert(narrow(-mid) == (even | 0x8000u), "-mid of %04x", lo);
}

Test(base_half, rounds_to_nearest_even_at_every_boundary)
{
    for (uint16_t h = 0; h < 0x7bff; h++) {
        uint16_t hi = (uint16_t)(h + 1);
        check_between(h, hi, value_of(h, 10, 15), value_of(hi, 10, 15),
                      folio_f32_to_f16);
    }
    /* 0x7f7f + 1 is infinity, whose middle is above the largest f32 step. */
    for (uint16_t h = 0x0080; h < 0x7f7f; h++) {
        uint16_t hi = (uint16_t)(h + 1);
        check_between(h, hi, value_of(h, 7, 127), value_of(hi, 7, 127),
                      folio_f32_to_bf16);
    }
}

Test(base_half, overflow_and_underflow)
{
    cr_assert(folio_f32_to_f16(65504.0f) == 0x7bff);
    cr_assert(folio_f32_to_f16(65519.996f) == 0x7bff);
    cr_assert(folio_f32_to_f16(65520.0f) == 0x7c00);
    cr_assert(folio_f32_to_f16(-1e30f) == 0xfc00);
    cr_assert(folio_f32_to_f16(0x1p-25f) == 0);
    cr_assert(folio_f32_to_f16(nextafterf(0x1p-25f, 1)) == 1);
    cr_assert(folio_f32_to_f16(-0x1p-140f) == 0x8000);
    cr_assert(folio_f32_to_bf16(3.4028235e38f) == 0x7f80);
}
