/* Rotary frequencies and tables against known values of Llama 3.2, and against
 * formulas written a second time. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "ops/rope.h"

static const folio_rope_params llama_1b = {.theta = 500000,
                                           .rot_dim = 64,
                                           .scaling = FOLIO_ROPE_LLAMA3,
                                           .factor = 32,
                                           .low = 1,
                                           .high = 4,
                                           .original_ctx = 8192};

static void expect_near(double got, double want, double tol, const char *what)
{
    cr_expect(fabs(got - want) <= tol, "%s: %.12g for %.12g", what, got, want);
}

Test(ops_rope, llama3_frequencies)
{
    static const struct {
        int pair;
        double value;
    } golden[] = {{0, 1},
                  {1, 6.636012377e-1},
                  {14, 3.211445995e-3},
                  {15, 1.290547928e-3},
                  {16, 4.295567966e-4},
                  {17, 9.708287803e-5},
                  {18, 1.946163818e-5},
                  {31, 9.418306725e-8}};
    double f[32], plain[32], factor = 0;
    folio_rope_params none = llama_1b;
    none.scaling = FOLIO_ROPE_NONE;
    cr_assert_eq(folio_rope_inv_freq(NULL, &llama_1b, f, &factor), FOLIO_OK);
    cr_assert_eq(folio_rope_inv_freq(NULL, &none, plain, NULL), FOLIO_OK);
    cr_expect_eq(factor, 1.0);
    for (size_t i = 0; i < FOLIO_COUNT(golden); i++)
        expect_near(f[golden[i].pair], golden[i].value, 1e-7 * golden[i].value,
                    "inv_freq");
    expect_near(plain[15], 2.131119537e-3, 1e-9, "inv_freq before scaling");
    for (int i = 0; i < 32; i++) {
        cr_expect(f[i] <= plain[i], "pair %d was sped up", i);
        if (i <= 14)
            cr_expect_eq(f[i], plain[i], "pair %d was touched", i);
        else if (i >= 18)
            cr_expect_eq(f[i], plain[i] / 32, "pair %d is not divided", i);
        else
            cr_expect(f[i] < plain[i] && f[i] > plain[i] / 32);
    }
}

/* The golden value went through f32 powers: two units of f32 off. */
Test(ops_rope, llama3_tiny)
{
    folio_rope_params p = llama_1b;
    double f[2];
    p.rot_dim = 4;
    cr_assert_eq(folio_rope_inv_freq(NULL, &p, f, NULL), FOLIO_OK);
    cr_expect_eq(f[0], 1.0);
    expect_near(f[1], 4.29556705e-4, 2e-10, "tiny inv_freq");
}

Test(ops_rope, table_values)
{
    float *t = malloc((size_t)100001 * 64 * sizeof *t);
    cr_assert_not_null(t);
    cr_assert_eq(folio_rope_table(NULL, &llama_1b, 100001, t), FOLIO_OK);
    const float *p7 = t + 7 * 64, *far = t + (size_t)100000 * 64;
    static const int pair[4] = {0, 1, 15, 31};
    static const double c7[4] = {0.7539023, -0.0671296, 0.9999592, 1.0};
    static const double s7[4] = {0.6569866, -0.9977443, 0.00903371,
                                 6.592815e-7};
    for (int i = 0; i < 4; i++) {
        expect_near((double)p7[2 * pair[i]], c7[i], 1e-6, "cos, position 7");
        expect_near((double)p7[2 * pair[i] + 1], s7[i], 1e-6,
                    "sin, position 7");
    }
    expect_near((double)far[30], -0.9690371, 1e-5, "cos 15");
    expect_near((double)far[31], -0.2469151, 1e-5, "sin 15");
    expect_near((double)far[34], -0.9600800, 1e-5, "cos 17");
    expect_near((double)far[35], -0.2797256, 1e-5, "sin 17");
    expect_near((double)far[62], 0.9999557, 1e-5, "cos 31");
    expect_near((double)far[63], 0.009418167, 1e-5, "sin 31");
    for (int i = 0; i < 32; i++) {
        cr_expect_eq(t[2 * i], 1.0f);
        cr_expect_eq(t[2 * i + 1], 0.0f);
    }
    free(t);
}

Test(ops_rope, linear_and_factors)
{
    float factors[4] = {1, 2, 4, 0.5f};
    folio_rope_params p = {.theta = 10000,
                           .rot_dim = 8,
                           .scaling = FOLIO_ROPE_LINEAR,
                           .factor = 4,
                           .freq_factors = factors};
    double f[4];
    cr_assert_eq(folio_rope_inv_freq(NULL, &p, f, NULL), FOLIO_OK);
    for (int i = 0; i < 4; i++) {
        double want = pow(10, -i) / 4 / (double)factors[i];
        expect_near(f[i], want, 1e-14, "linear with factors");
    }
}

/* Qwen's published YaRN set-up: factor 4 over 32768, theta 1e6, 128 dims. The
 * ramp runs from floor(d ln(ctx / (32 * 2 pi)) / (2 ln theta)) = 23 to
 * ceil(d ln(ctx / (2 pi)) / (2 ln theta)) = 40. */
Test(ops_rope, yarn)
{
    folio_rope_params p = {.theta = 1e6,
                           .rot_dim = 128,
                           .scaling = FOLIO_ROPE_YARN,
                           .factor = 4,
                           .original_ctx = 32768};
    double f[64], factor;
    cr_assert_eq(folio_rope_inv_freq(NULL, &p, f, &factor), FOLIO_OK);
    expect_near(factor, 1.1386294361119891, 1e-12, "0.1 ln 4 + 1");
    for (int i = 0; i < 64; i++) {
        double plain = pow(1e6, -i / 64.0);
        double ramp = i <= 23 ? 0 : i >= 40 ? 1 : (i - 23) / 17.0;
        double want = plain * (1 - ramp) + plain / 4 * ramp;
        expect_near(f[i], want, 1e-12 * want, "yarn");
    }
    p.attn_factor = 1.5;
    cr_assert_eq(folio_rope_inv_freq(NULL, &p, f, &factor), FOLIO_OK);
    cr_expect_eq(factor, 1.5);
    float row[128];
    cr_assert_eq(folio_rope_table(NULL, &p, 1, row), FOLIO_OK);
    cr_expect_eq(row[0], 1.5f, "the table is not scaled");
    cr_expect_eq(row[1], 0.0f);
}

Test(ops_rope, longrope)
{
    float factors[2] = {1, 8};
    folio_rope_params p = {.theta = 10000,
                           .rot_dim = 4,
                           .scaling = FOLIO_ROPE_LONGROPE,
                           .factor = 32,
                           .original_ctx = 4096,
                           .freq_factors = factors};
    double f[2], factor;
    cr_assert_eq(folio_rope_inv_freq(NULL, &p, f, &factor), FOLIO_OK);
    expect_near(f[0], 1, 0, "pair 0");
    expect_near(f[1], 0.01 / 8, 1e-16, "pair 1");
    expect_near(factor, sqrt(1 + log(32) / log(4096)), 1e-14, "factor");
    p.freq_factors = NULL;
    cr_expect_eq(folio_rope_inv_freq(NULL, &p, f, NULL), FOLIO_E_INVAL);
}

Test(ops_rope, names)
{
    folio_rope_scaling kind = FOLIO_ROPE_YARN;
    cr_assert_eq(folio_rope_scaling_parse(NULL, "llama3", &kind), FOLIO_OK);
    cr_expect_eq(kind, FOLIO_ROPE_LLAMA3);
    cr_assert_eq(folio_rope_scaling_parse(NULL, "none", &kind), FOLIO_OK);
    cr_expect_eq(kind, FOLIO_ROPE_NONE);
    cr_assert_eq(folio_rope_scaling_parse(NULL, "su", &kind), FOLIO_OK);
    cr_expect_eq(kind, FOLIO_ROPE_LONGROPE);
    cr_expect_eq(folio_rope_scaling_parse(NULL, "dynamic", &kind),
                 FOLIO_E_UNSUPPORTED);
    cr_expect_eq(kind, FOLIO_ROPE_LONGROPE, "written on failure");
}

Test(ops_rope, refuses)
{
    double f[32], keep = 7, factor = keep;
    folio_rope_params bad[10];
    folio_status want[10];
    size_t n = 0;
#define BAD(field, value, status)                                              \
    do {                                                                       \
        bad[n] = llama_1b;                                                     \
        bad[n].field = value;                                                  \
        want[n++] = status;                                                    \
    } while (0)
    float zero_factor[32] = {0};
    BAD(rot_dim, 63, FOLIO_E_INVAL);
    BAD(rot_dim, -2, FOLIO_E_INVAL);
    BAD(theta, 0, FOLIO_E_INVAL);
    BAD(theta, NAN, FOLIO_E_INVAL);
    BAD(scaling, (folio_rope_scaling)9, FOLIO_E_UNSUPPORTED);
    BAD(factor, 0.5, FOLIO_E_INVAL);
    BAD(low, 4, FOLIO_E_INVAL);
    BAD(original_ctx, 0, FOLIO_E_INVAL);
    BAD(attn_factor, -1, FOLIO_E_INVAL);
    BAD(freq_factors, zero_factor, FOLIO_E_INVAL);
#undef BAD
    for (size_t i = 0; i < n; i++) {
        f[0] = keep;
        cr_expect_eq(folio_rope_inv_freq(NULL, &bad[i], f, &factor), want[i],
                     "case %zu", i);
        cr_expect(f[0] == keep && factor == keep, "case %zu wrote", i);
    }
    float row[64] = {5};
    cr_expect_eq(folio_rope_table(NULL, &llama_1b, 0, row), FOLIO_E_INVAL);
    cr_expect_eq(folio_rope_table(NULL, &bad[4], 1, row), FOLIO_E_UNSUPPORTED);
    cr_expect_eq(row[0], 5.0f);
}
