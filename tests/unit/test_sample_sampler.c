/* The host sampler: filters against a slow form, golden vectors, refusals,
 * and what a draw depends on. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sample/samp.h"

static void keep_message(void *user, folio_log_level level, const char *message)
{
    (void)level;
    snprintf(user, 1024, "%s", message);
}

static folio_sampler *open_sampler(int32_t n)
{
    folio_sampler *s = NULL;
    cr_assert_eq(folio_sampler_open(n, NULL, &s), FOLIO_OK);
    return s;
}

static folio_sample_params params(float t, int32_t k, float p, float min_p)
{
    folio_sample_params r;
    folio_sample_params_default(&r);
    r.temperature = t;
    r.top_k = k;
    r.top_p = p;
    r.min_p = min_p;
    return r;
}

/* Survivors as a bit mask, for rows of up to 32. */
static uint32_t mask_of(const float *logits, int32_t n, folio_sample_params p)
{
    folio_sampler *s = open_sampler(n);
    folio_sample_cut cut;
    uint32_t mask = 0;
    cr_assert_eq(folio_sampler_filter(s, &p, logits, &cut), FOLIO_OK);
    for (int32_t i = 0; i < n; i++)
        mask |= (uint32_t)(folio_sample_cut_weight(&cut, logits[i], i) > 0)
                << i;
    folio_sampler_close(&s);
    return mask;
}

static int32_t draw(folio_sampler *s, folio_sample_params p,
                    const float *logits, uint64_t pos)
{
    int32_t id = -1;
    cr_assert_eq(folio_sampler_draw(s, &p, logits, 0, pos, &id), FOLIO_OK);
    return id;
}

static uint64_t state = 987654321; /* printed where it matters */

static double next_uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

Test(sample, weight_is_exp_of_the_distance)
{
    double worst = 0;
    cr_assert_eq(folio_sample_weight(5, 5, 1e30f), FOLIO_WEIGHT_ONE);
    cr_assert_eq(folio_sample_weight(-INFINITY, 5, 1.0f), 0);
    cr_assert_eq(folio_sample_weight(-1, 0, 3e38f), 0);
    uint64_t before = FOLIO_WEIGHT_ONE;
    for (int i = 0; i < 400000; i++) {
        float z = -(float)i * 1e-4f;
        uint64_t w = folio_sample_weight(z, 0, 1.0f);
        double want = exp2((double)z) * 0x1p32;
        worst = fmax(worst, (fabs((double)w - want) - 0.5) / want);
        cr_assert_leq(w, before); /* falling on this grid */
        before = w;
    }
    cr_assert_lt(worst, 1.6e-7, "%g", worst);
    cr_assert_eq(before, 0);
    for (float z = -1e-30f; z > -1e-3f; z *= 1.7f)
        cr_assert_float_eq((double)folio_sample_weight(z, 0, 1.0f) * 0x1p-32,
                           exp2((double)z), 2e-7);
}

Test(sample, temperature_divides)
{
    static const float logits[] = {2, 1, 0, -1};
    static const float temps[] = {0.25f, 0.5f, 1, 2, 8};
    folio_sampler *s = open_sampler(4);
    double top_before = 1.1;
    for (size_t t = 0; t < 5; t++) {
        folio_sample_cut cut;
        folio_sample_params p = params(temps[t], 0, 1, 0);
        cr_assert_eq(folio_sampler_filter(s, &p, logits, &cut), FOLIO_OK);
        double sum = 0, want_sum = 0;
        for (int32_t i = 0; i < 4; i++) {
            sum += (double)folio_sample_cut_weight(&cut, logits[i], i);
            want_sum += exp((double)logits[i] / (double)temps[t]);
        }
        for (int32_t i = 0; i < 4; i++)
            cr_assert_float_eq(
                (double)folio_sample_cut_weight(&cut, logits[i], i) / sum,
                exp((double)logits[i] / (double)temps[t]) / want_sum, 1e-6);
        /* Higher temperatures flatten. */
        cr_assert_lt(0x1p32 / sum, top_before);
        top_before = 0x1p32 / sum;
    }
    folio_sampler_close(&s);
}

Test(sample, top_k_keeps_ties)
{
    static const float logits[] = {1, 3, 3, 3, 0};
    static const uint32_t want[] = {31, 14, 14, 14, 15, 31, 31};
    for (int32_t k = 0; k < 7; k++)
        cr_expect_eq(mask_of(logits, 5, params(1, k, 1, 0)), want[k], "k %d",
                     k);
    cr_expect_eq(mask_of(logits, 5, params(1, -3, 1, 0)), 31);
}

Test(sample, nucleus)
{
    float logits[4];
    static const float probs[] = {.5f, .3f, .15f, .05f};
    for (int i = 0; i < 4; i++)
        logits[i] = logf(probs[i]);
    /* The third has exactly 1 - p with all below it: dropped. */
    cr_expect_eq(mask_of(logits, 4, params(1, 0, .8f, 0)), 3);
    cr_expect_eq(mask_of(logits, 4, params(1, 0, .81f, 0)), 7);
    cr_expect_eq(mask_of(logits, 4, params(1, 0, .79f, 0)), 3);
    cr_expect_eq(mask_of(logits, 4, params(1, 0, .5f, 0)), 1);
    cr_expect_eq(mask_of(logits, 4, params(1, 0, 1e-9f, 0)), 1);
    cr_expect_eq(mask_of(logits, 4, params(1, 0, 0, 0)), 1);
    cr_expect_eq(mask_of(logits, 4, params(1, 0, -1, 0)), 1);
    cr_expect_eq(mask_of(logits, 4, params(1, 0, 1, 0)), 15);
    cr_expect_eq(mask_of(logits, 4, params(1, 0, 7, 0)), 15);
    /* Equal logits at the cut: the lower ids stay. */
    static const float flat[] = {0, 0, 0, 0, 0, 0, 0, 0};
    cr_expect_eq(mask_of(flat, 8, params(1, 0, .5f, 0)), 15);
    static const float mixed[] = {0, 5, 0, 0, -INFINITY};
    cr_expect_eq(mask_of(mixed, 5, params(10, 0, .5f, 0)), 3);
    cr_expect_eq(mask_of(mixed, 5, params(10, 0, .6f, 0)), 7);
}

/* Temperature comes before top-p: the other order would keep two. */
Test(sample, order_of_temperature_and_top_p)
{
    static const float logits[] = {3, 2, 1};
    cr_expect_eq(mask_of(logits, 3, params(.5f, 0, .8f, 0)), 1);
    cr_expect_eq(mask_of(logits, 3, params(1, 0, .8f, 0)), 3);
}

Test(sample, min_p_is_relative_to_the_best)
{
    static const float logits[] = {0, -0.69f, -0.70f, -3, -100};
    cr_expect_eq(mask_of(logits, 5, params(1, 0, 1, .5f)), 3);
    cr_expect_eq(mask_of(logits, 5, params(1, 0, 1, 1)), 1);
    cr_expect_eq(mask_of(logits, 5, params(1, 0, 1, .04f)), 15);
    cr_expect_eq(mask_of(logits, 5, params(2, 0, 1, .2f)), 15);
    static const float ties[] = {1, 2, 2};
    cr_expect_eq(mask_of(ties, 3, params(1, 0, 1, 1)), 6);
}

/* Survivors by sorting and double arithmetic, as the header words it. */
static uint32_t mask_slowly(const float *logits, int32_t n, float t, int32_t k,
                            float p, double *margin)
{
    int32_t order[32] = {0};
    double cum[33] = {0}, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = i;
        for (; at && logits[order[at - 1]] < logits[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    int32_t keep = n;
    if (k > 0 && k < n)
        for (keep = k; keep < n && logits[order[keep]] == logits[order[k - 1]];)
            keep++;
    for (int32_t i = 0; i < keep; i++)
        sum += exp((double)(logits[order[i]] - logits[order[0]]) / (double)t);
    for (int32_t i = keep; i-- > 0;)
        cum[i] =
            cum[i + 1] +
            exp((double)(logits[order[i]] - logits[order[0]]) / (double)t) /
                sum;
    *margin = 1;
    uint32_t mask = 1u << order[0];
    for (int32_t i = 1; i < keep; i++) {
        if (p >= 1 || cum[i] > 1 - (double)p)
            mask |= 1u << order[i];
        *margin = fmin(*margin, fabs(cum[i] - (1 - (double)p)));
    }
    return mask;
}

Test(sample, masks_equal_the_slow_form)
{
    static const float temps[] = {.8f, 1, 1.7f};
    static const int32_t ks[] = {0, 1, 2, 10, 31};
    static const float ps[] = {.1f, .5f, .9f, .95f, 1};
    cr_log_info("seed %llu", (unsigned long long)state);
    int n_compared = 0;
    for (int round = 0; round < 200; round++) {
        float logits[32];
        int32_t n = 20 + (int32_t)(next_uniform() * 12);
        /* Half of the rows are coarse, so that there are ties. */
        for (int32_t i = 0; i < n; i++)
            logits[i] = round % 2 ? (float)(next_uniform() * 9)
                                  : floorf((float)(next_uniform() * 9));
        for (size_t i = 0; i < 3 * 5 * 5; i++) {
            float t = temps[i / 25], p = ps[i % 5];
            int32_t k = ks[i / 5 % 5];
            double margin;
            uint32_t want = mask_slowly(logits, n, t, k, p, &margin);
            if (margin < 1e-6)
                continue;
            n_compared++;
            cr_assert_eq(mask_of(logits, n, params(t, k, p, 0)), want,
                         "n %d T %g k %d p %g: %x, expected %x", n, (double)t,
                         k, (double)p, mask_of(logits, n, params(t, k, p, 0)),
                         want);
        }
    }
    cr_assert_gt(n_compared, 14000);
}

Test(sample, greedy_is_argmax_lowest_id)
{
    static const float logits[] = {-1, 4, 2, 4, -INFINITY};
    folio_sampler *s = open_sampler(5);
    for (uint64_t pos = 0; pos < 50; pos++) {
        folio_sample_params p = params(0, 3, .9f, .1f);
        p.seed = pos * 77;
        cr_assert_eq(draw(s, p, logits, pos), 1);
    }
    folio_sampler_close(&s);
    static const float one[] = {0, 9, 1};
    s = open_sampler(3);
    for (uint64_t pos = 0; pos < 50; pos++) {
        cr_assert_eq(draw(s, params(2, 1, 1, 0), one, pos), 1);
        cr_assert_eq(draw(s, params(1e-30f, 0, 1, 0), one, pos), 1);
    }
    /* Any finite temperature has a result. */
    cr_assert_geq(draw(s, params(3e38f, 0, 1, 0), one, 0), 0);
    folio_sampler_close(&s);
}

Test(sample, draws)
{
    float logits[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    folio_sampler *s = open_sampler(8);
    for (uint64_t pos = 0; pos < 200; pos++)
        cr_assert_geq(draw(s, params(3, 3, 1, 0), logits, pos), 5);
    for (int i = 0; i < 8; i += 2)
        logits[i] = -INFINITY;
    for (uint64_t pos = 0; pos < 200; pos++)
        cr_assert_eq(draw(s, params(50, 0, 1, 0), logits, pos) % 2, 1);
    float heavy[8];
    for (int i = 0; i < 8; i++)
        heavy[i] = logf(i == 5 ? .9f : .1f / 7);
    int n_heavy = 0;
    for (uint64_t pos = 0; pos < 300; pos++)
        n_heavy += draw(s, params(1, 0, 1, 0), heavy, pos) == 5;
    cr_assert_gt(n_heavy, 250);
    cr_assert_lt(n_heavy, 300);
    folio_sampler_close(&s);
}

/* Frequencies against probabilities; the defaults are not greedy. */
Test(sample, frequencies)
{
    static const float probs[] = {.4f, .3f, .2f, .1f};
    float logits[4];
    int count[4] = {0}, n = 40000;
    for (int i = 0; i < 4; i++)
        logits[i] = logf(probs[i]);
    folio_sampler *s = open_sampler(4);
    folio_sample_params p;
    folio_sample_params_default(&p);
    for (int i = 0; i < n; i++)
        count[draw(s, p, logits, (uint64_t)i)]++;
    for (int i = 0; i < 4; i++)
        cr_assert_float_eq((double)count[i] / n, (double)probs[i], 0.01,
                           "id %d: %d of %d", i, count[i], n);
    folio_sampler_close(&s);
}

Test(sample, depends_on_seed_completion_and_position_alone)
{
    float logits[64];
    for (int i = 0; i < 64; i++)
        logits[i] = (float)(i % 7) * .1f;
    folio_sampler *a = open_sampler(64), *b = open_sampler(64);
    folio_sample_params p = params(1, 0, 1, 0);
    int n_differ[3] = {0};
    for (uint64_t pos = 0; pos < 100; pos++) {
        int32_t first, other;
        p.seed = 42;
        cr_assert_eq(folio_sampler_draw(a, &p, logits, 0, pos, &first),
                     FOLIO_OK);
        /* Another sampler, after other draws: the same id. */
        p.seed = 43;
        cr_assert_eq(folio_sampler_draw(b, &p, logits, 0, pos, &other),
                     FOLIO_OK);
        n_differ[0] += other != first;
        p.seed = 42;
        cr_assert_eq(folio_sampler_draw(b, &p, logits, 1, pos, &other),
                     FOLIO_OK);
        n_differ[1] += other != first;
        cr_assert_eq(folio_sampler_draw(b, &p, logits, 0, pos + 1, &other),
                     FOLIO_OK);
        n_differ[2] += other != first;
        cr_assert_eq(folio_sampler_draw(b, &p, logits, 0, pos, &other),
                     FOLIO_OK);
        cr_assert_eq(other, first);
    }
    for (int i = 0; i < 3; i++)
        cr_assert_gt(n_differ[i], 80);
    folio_sampler_close(&a);
    folio_sampler_close(&b);
}

/* A whole vocabulary: the cut-offs agree with a count. */
Test(sample, large_row)
{
    int32_t n = 49152;
    float *logits = malloc((size_t)n * sizeof *logits);
    for (int32_t i = 0; i < n; i++)
        logits[i] = (float)(next_uniform() * 20);
    folio_sampler *s = open_sampler(n);
    folio_sample_cut cut;
    folio_sample_params p = params(1, 500, 1, 0);
    cr_assert_eq(folio_sampler_filter(s, &p, logits, &cut), FOLIO_OK);
    int32_t n_at_least = 0, n_above = 0;
    for (int32_t i = 0; i < n; i++) {
        n_at_least += logits[i] >= cut.logit;
        n_above += logits[i] > cut.logit;
    }
    cr_assert_geq(n_at_least, 500);
    cr_assert_lt(n_above, 500);
    p = params(1, 0, .9f, 0);
    cr_assert_eq(folio_sampler_filter(s, &p, logits, &cut), FOLIO_OK);
    double sum = 0, kept = 0;
    for (int32_t i = 0; i < n; i++) {
        double e = exp((double)logits[i] - 20);
        sum += e;
        kept += folio_sample_cut_weight(&cut, logits[i], i) ? e : 0;
    }
    cr_assert_float_eq(kept / sum, .9, 1e-3);
    folio_sampler_close(&s);
    free(logits);
}

Test(sample, rows_nobody_can_sample_from)
{
    float logits[4] = {1, 2, 3, 4};
    folio_sampler *s = NULL;
    char text[1024] = "";
    folio_log log = {keep_message, text, FOLIO_LOG_DEBUG};
    cr_assert_eq(folio_sampler_open(4, &log, &s), FOLIO_OK);
    for (int greedy = 0; greedy < 2; greedy++) {
        folio_sample_params p = params(greedy ? 0 : 1, 2, .5f, 0);
        int32_t id = -7;
        logits[2] = NAN;
        cr_assert_eq(folio_sampler_draw(s, &p, logits, 0, 0, &id),
                     FOLIO_E_INTERNAL);
        cr_assert(strstr(text, "id 2"));
        logits[2] = INFINITY;
        cr_assert_eq(folio_sampler_draw(s, &p, logits, 0, 0, &id),
                     FOLIO_E_INTERNAL);
        for (int i = 0; i < 4; i++)
            logits[i] = -INFINITY;
        cr_assert_eq(folio_sampler_draw(s, &p, logits, 0, 0, &id),
                     FOLIO_E_INTERNAL);
        cr_assert_eq(id, -7);
        logits[1] = 0; /* the next row is fine */
        cr_assert_eq(folio_sampler_draw(s, &p, logits, 0, 0, &id), FOLIO_OK);
        cr_assert_eq(id, 1);
    }
    folio_sampler_close(&s);
}

Test(sample, bad_parameters_are_named)
{
    static const struct {
        float t, p, min_p;
        const char *name;
    } bad[] = {
        {-1, 1, 0, "temperature"},
        {NAN, 1, 0, "temperature"},
        {INFINITY, 1, 0, "temperature"},
        {1, NAN, 0, "top_p"},
        {1, INFINITY, 0, "top_p"},
        {1, -INFINITY, 0, "top_p"},
        {1, 1, -.1f, "min_p"},
        {1, 1, 1.1f, "min_p"},
        {1, 1, NAN, "min_p"},
    };
    char text[1024];
    folio_log log = {keep_message, text, FOLIO_LOG_DEBUG};
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++) {
        folio_sample_params p = params(bad[i].t, 0, bad[i].p, bad[i].min_p);
        text[0] = '\0';
        cr_expect_eq(folio_sample_params_check(&p, &log), FOLIO_E_INVAL);
        cr_expect(strstr(text, bad[i].name), "%s", text);
    }
    folio_sample_params p = params(1, 0, 1, 0);
    cr_assert_eq(folio_sample_params_check(&p, &log), FOLIO_OK);
    p.size = 0;
    cr_assert_eq(folio_sample_params_check(&p, &log), FOLIO_E_INVAL);
    cr_assert(strstr(text, "size"));
    folio_sampler *s = NULL;
    cr_assert_eq(folio_sampler_open(0, &log, &s), FOLIO_E_INVAL);
    cr_assert_eq(folio_sampler_open(1 << 30, &log, &s), FOLIO_E_INVAL);
    cr_assert_null(s);
}
