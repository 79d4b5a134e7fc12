/* The host sampler's row and result: the ids it always drew, typical-p, order,
 * log-probabilities, refusals, memory. */
#include <stdio.h>

#include "unit/fail_alloc.h"
#include "unit/sample_util.h"

static void keep_message(void *user, folio_log_level level, const char *message)
{
    (void)level;
    snprintf(user, 1024, "%s", message);
}

static uint64_t state = 135792468;

static double next_uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

/* Ids drawn by folio before it knew penalties, bias and typical-p. */
Test(sample_run, draws_are_what_they_were)
{
    static const struct {
        float t, top_p, min_p;
        int32_t k, ids[12];
    } in[] = {
        {1, 1, 0, 0, {75, 21, 23, 70, 27, 64, 54, 24, 89, 97, 4, 51}},
        {.8f, .95f, 0, 10, {62, 81, 8, 62, 35, 16, 54, 35, 62, 81, 89, 16}},
        {1.7f, .9f, 0, 0, {16, 35, 4, 78, 78, 89, 16, 24, 27, 56, 86, 35}},
        {2, 1, .1f, 0, {24, 62, 99, 23, 53, 94, 35, 42, 51, 24, 27, 86}},
        {.5f, .8f, 0, 0, {27, 16, 16, 89, 43, 54, 81, 16, 27, 35, 97, 81}},
        {3, .7f, .05f, 50, {78, 62, 13, 67, 24, 35, 35, 35, 67, 54, 81, 27}},
    };
    float x[100];
    for (int i = 0; i < 100; i++)
        x[i] = (float)((i * 37) % 100) * 0.07f - 2;
    folio_sampler *s = open_sampler(100);
    for (size_t c = 0; c < FOLIO_COUNT(in); c++)
        for (int k = 0; k < 12; k++) {
            folio_sample_params p = plain();
            folio_sample_row row = row_of(x, 100, NULL, 0, 0);
            int32_t id = -1;
            p.temperature = in[c].t;
            p.top_k = in[c].k;
            p.top_p = in[c].top_p;
            p.min_p = in[c].min_p;
            p.seed = 1234567890123u + c;
            row.completion = (uint32_t)k % 3;
            row.position = 100 + (uint64_t)k;
            cr_expect_eq(run_row(s, p, &row), in[c].ids[k]);
            cr_assert_eq(
                folio_sampler_draw(s, &p, x, row.completion, row.position, &id),
                FOLIO_OK);
            cr_expect_eq(id, in[c].ids[k]);
            /* A caller that was built before there was more to know. */
            p.size = offsetof(folio_sample_params, typical_p);
            memset((char *)&p + p.size, 0xff, sizeof p - p.size);
            cr_expect_eq(run_row(s, p, &row), in[c].ids[k]);
        }
    folio_sampler_close(&s);
}

/* Kept ids by the formula, in doubles; *margin tells how near the sum of the
 * kept came to p, or two distances to each other. */
static uint32_t typical_slowly(const float *x, int32_t n, double t, double p,
                               double *margin)
{
    double prob[32], off[32], sum = 0, entropy = 0, mass = 0;
    uint32_t mask = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] / t);
    for (int32_t i = 0; i < n; i++) {
        prob[i] = exp((double)x[i] / t) / sum;
        entropy -= prob[i] * log(prob[i]);
    }
    for (int32_t i = 0; i < n; i++)
        off[i] = fabs(-log(prob[i]) - entropy);
    *margin = 1;
    while (mass < p && mask != (n == 32 ? UINT32_MAX : (1u << n) - 1)) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++)
            if (!(mask >> i & 1) && (best < 0 || off[i] < off[best]))
                best = i;
        for (int32_t i = 0; i < n; i++)
            if (i != best && !(mask >> i & 1))
                *margin = fmin(*margin, off[i] - off[best]);
        mask |= 1u << best;
        mass += prob[best];
        *margin = fmin(*margin, fabs(mass - p));
    }
    return mask;
}

static uint32_t mask_of_finite(const float *x, int32_t n)
{
    uint32_t mask = 0;
    for (int32_t i = 0; i < n; i++)
        mask |= (uint32_t)(x[i] > -INFINITY) << i;
    return mask;
}

Test(sample_run, typical_p_equals_the_formula)
{
    static const float temps[] = {.7f, 1, 1.6f};
    static const float ps[] = {1e-6f, .2f, .5f, .9f, .95f, .999f};
    int n_compared = 0, n_best_dropped = 0;
    cr_log_info("seed %llu", (unsigned long long)state);
    for (int round = 0; round < 400; round++) {
        float x[32], got[32];
        const int32_t n = 2 + (int32_t)(next_uniform() * 31);
        int32_t best = 0;
        for (int32_t i = 0; i < n; i++) {
            x[i] = (float)(next_uniform() * 8);
            best = x[i] > x[best] ? i : best;
        }
        const folio_sample_row row = row_of(x, n, NULL, 0, 0);
        for (size_t i = 0; i < 3 * 6; i++) {
            folio_sample_params p = plain();
            double margin = 0;
            p.temperature = temps[i / 6];
            p.typical_p = ps[i % 6];
            const uint32_t want = typical_slowly(x, n, (double)p.temperature,
                                                 (double)p.typical_p, &margin);
            if (margin < 1e-5)
                continue;
            shape_row(p, &row, got);
            cr_assert_eq(mask_of_finite(got, n), want,
                         "round %d T %g p %g: %x, expected %x", round,
                         (double)p.temperature, (double)p.typical_p,
                         mask_of_finite(got, n), want);
            n_compared++;
            n_best_dropped += !(want >> best & 1);
        }
    }
    cr_assert_gt(n_compared, 6000);
    cr_assert_gt(n_best_dropped, 500);
}

Test(sample_run, typical_p_among_the_filters)
{
    float x[4], got[4];
    static const float probs[] = {.5f, .3f, .15f, .05f};
    for (int i = 0; i < 4; i++)
        x[i] = logf(probs[i]);
    const folio_sample_row row = row_of(x, 4, NULL, 0, 0);
    folio_sample_params p = plain();
    /* Entropy 1.142; distances .449, .062, .755, 1.853. */
    static const struct {
        float typical, top_p, min_p;
        int32_t k;
        uint32_t mask;
    } in[] = {
        {0, 1, 0, 0, 2},
        {-1, 1, 0, 0, 2},
        {.29f, 1, 0, 0, 2},
        {.31f, 1, 0, 0, 3},
        {.8f, 1, 0, 0, 3},
        {.81f, 1, 0, 0, 7},
        {.96f, 1, 0, 0, 15},
        {1, 1, 0, 0, 15},
        /* Of the best two, .625 and .375, entropy .662: the first is nearer. */
        {.5f, 1, 0, 2, 1},
        {.7f, 1, 0, 2, 3},
        /* Top-p and min-p see what typical-p left. */
        {.31f, .5f, 0, 0, 1},
        {.31f, .7f, 0, 0, 3},
        {.29f, .01f, 1, 0, 2},
        {.31f, 1, .59f, 0, 3},
        {.31f, 1, .61f, 0, 1},
    };
    folio_sampler *s = open_sampler(4);
    for (size_t i = 0; i < FOLIO_COUNT(in); i++) {
        uint32_t mask = 0, drawn = 0;
        folio_sample_cut cut;
        p.typical_p = in[i].typical;
        p.top_p = in[i].top_p;
        p.min_p = in[i].min_p;
        p.top_k = in[i].k;
        shape_row(p, &row, got);
        cr_assert_eq(folio_sampler_filter(s, &p, got, &cut), FOLIO_OK);
        for (int32_t j = 0; j < 4; j++)
            mask |= (uint32_t)(folio_sample_cut_weight(&cut, got[j], j) > 0)
                    << j;
        cr_expect_eq(mask, in[i].mask, "case %zu: %x", i, mask);
        for (uint64_t seed = 0; seed < 300; seed++) {
            p.seed = seed;
            drawn |= 1u << run_row(s, p, &row);
        }
        cr_expect_eq(drawn, in[i].mask, "case %zu: drew %x", i, drawn);
    }
    /* Greedy is the largest logit, whatever is typical. */
    p = plain();
    p.temperature = 0;
    p.typical_p = 0;
    cr_expect_eq(run_row(s, p, &row), 0);
    /* Equal distances: the lower ids. */
    static const float flat[] = {1, 1, 1, 1};
    const folio_sample_row even = row_of(flat, 4, NULL, 0, 0);
    p = plain();
    p.typical_p = .5f;
    shape_row(p, &even, got);
    cr_expect_eq(mask_of_finite(got, 4), 3);
    /* So does top-k with ties: all of them stay. */
    static const float ties[] = {2, 2, 2, 1};
    const folio_sample_row tied = row_of(ties, 4, NULL, 0, 0);
    p.typical_p = .999f;
    p.top_k = 2;
    shape_row(p, &tied, got);
    cr_expect_eq(mask_of_finite(got, 4), 7);
    folio_sampler_close(&s);
}

/* Temperature, then top-p, and bias before both. */
Test(sample_run, order)
{
    static const float x[] = {3, 2, 1};
    static const folio_logit_bias bias[] = {{2, 3}};
    folio_sampler *s = open_sampler(3);
    folio_sample_row row = row_of(x, 3, NULL, 0, 0);
    static const struct {
        float t;
        int32_t n_bias;
        uint32_t mask;
    } in[] = {{.5f, 0, 1}, {1, 0, 3}, {.5f, 1, 4}, {1, 1, 5}};
    for (size_t i = 0; i < FOLIO_COUNT(in); i++) {
        folio_sample_params p = plain();
        uint32_t drawn = 0;
        p.temperature = in[i].t;
        p.top_p = .8f;
        p.logit_bias = bias;
        p.n_logit_bias = in[i].n_bias;
        for (uint64_t seed = 0; seed < 200; seed++) {
            p.seed = seed;
            drawn |= 1u << run_row(s, p, &row);
        }
        cr_expect_eq(drawn, in[i].mask, "case %zu: %x", i, drawn);
    }
    folio_sampler_close(&s);
}

static double lse_slowly(const float *x, int32_t n)
{
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

/* Raw whatever the parameters say; the drawn id has the list's number. */
Test(sample_run, logprobs)
{
    enum { N = 1003 };
    static float x[N];
    static const int32_t tokens[] = {5, 6, 7};
    folio_sampler *s = open_sampler(N);
    int n_listed = 0, n_unlisted = 0;
    cr_log_info("seed %llu", (unsigned long long)state);
    for (int round = 0; round < 200; round++) {
        const float spread = round % 3 == 0 ? 60 : 8;
        for (int32_t i = 0; i < N; i++)
            x[i] = (float)next_uniform() * spread - 3;
        for (int32_t i = 0; i < N; i += 1 + round % 7) /* ties */
            x[i] = floorf(x[i]);
        x[round] = -INFINITY;
        folio_sample_row row = row_of(x, N - round % 5, tokens, 1, 3);
        folio_sample_params p = plain();
        p.seed = (uint64_t)round;
        p.temperature = (float)(round % 4) * .3f;
        p.top_k = round % 2 ? 8 : 0;
        p.repetition_penalty = 1.3f;
        p.logprobs = round % 21;
        folio_sample_result r = {.size = sizeof r};
        cr_assert_eq(folio_sampler_run(s, &p, &row, &r), FOLIO_OK);
        const double lse = lse_slowly(x, row.n_vocab);
        cr_assert_float_eq(r.lse, lse, 3e-6 + 1e-7 * fabs(lse));
        cr_assert_eq(r.logit, x[r.id]);
        cr_assert_float_eq(r.logprob, (double)x[r.id] - lse, 5e-6);
        cr_assert_eq(r.n_top, p.logprobs);
        bool listed = false;
        for (int32_t i = 0; i < r.n_top; i++) {
            const int32_t id = r.top_ids[i];
            int32_t n_before = 0;
            for (int32_t j = 0; j < row.n_vocab; j++)
                n_before += x[j] > x[id] || (x[j] == x[id] && j < id);
            cr_assert_eq(n_before, i, "rank %d: id %d has rank %d", i, id,
                         n_before);
            cr_assert_float_eq(r.top_logprobs[i], (double)x[id] - lse, 5e-6);
            if (id == r.id) {
                cr_assert_eq(r.top_logprobs[i], r.logprob);
                listed = true;
            }
        }
        n_listed += listed;
        n_unlisted += !listed;
        /* Scoring the id says the same. */
        folio_sample_result again = {.size = sizeof again};
        cr_assert_eq(
            folio_sampler_score(s, x, row.n_vocab, r.id, r.n_top, &again),
            FOLIO_OK);
        cr_assert_eq(again.id, r.id);
        cr_assert_eq(again.logprob, r.logprob);
        cr_assert_eq(again.lse, r.lse);
        cr_assert_eq(again.n_top, r.n_top);
        cr_assert_arr_eq(again.top_ids, r.top_ids, sizeof r.top_ids);
        cr_assert_arr_eq(again.top_logprobs, r.top_logprobs,
                         sizeof r.top_logprobs);
    }
    cr_assert_gt(n_listed, 50);
    cr_assert_gt(n_unlisted, 20);
    folio_sampler_close(&s);
}

Test(sample_run, scores_of_known_rows)
{
    static const float x[] = {0, -INFINITY, 0, -INFINITY};
    folio_sampler *s = open_sampler(8);
    folio_sample_result r = {.size = sizeof r};
    cr_assert_eq(folio_sampler_score(s, x, 4, 2, 20, &r), FOLIO_OK);
    cr_expect_float_eq(r.logprob, -log(2.0), 1e-6);
    cr_expect_eq(r.n_top, 2);
    cr_expect_eq(r.top_ids[0], 0);
    cr_expect_eq(r.top_ids[1], 2);
    cr_assert_eq(folio_sampler_score(s, x, 4, 1, 0, &r), FOLIO_OK);
    cr_expect_eq(r.logprob, -INFINITY);
    cr_expect_eq(r.n_top, 0);
    static const float one[] = {-1234.5f};
    cr_assert_eq(folio_sampler_score(s, one, 1, 0, 1, &r), FOLIO_OK);
    cr_expect_eq(r.logprob, 0);
    cr_expect_eq(r.lse, -1234.5f);
    /* The shape of exp, at every distance. */
    for (int i = 0; i < 4000; i++) {
        const float two[] = {0, (float)i * -.01f};
        cr_assert_eq(folio_sampler_score(s, two, 2, 1, 0, &r), FOLIO_OK);
        cr_assert_float_eq(r.lse, log1p(exp((double)two[1])), 2e-7,
                           "at %g: %.9g", (double)two[1], (double)r.lse);
    }
    /* Far below the best, and far apart. */
    static const float far[] = {3e38f, -3e38f, 0};
    cr_assert_eq(folio_sampler_score(s, far, 3, 0, 3, &r), FOLIO_OK);
    cr_expect_eq(r.logprob, 0);
    cr_expect_eq(r.n_top, 3);
    static const float bad[][2] = {
        {0, NAN}, {INFINITY, 0}, {-INFINITY, -INFINITY}};
    for (size_t i = 0; i < 3; i++) {
        const folio_sample_row row = row_of(bad[i], 2, NULL, 0, 0);
        const folio_sample_params p = plain();
        r.id = -7;
        cr_expect_eq(folio_sampler_score(s, bad[i], 2, 0, 1, &r),
                     FOLIO_E_INTERNAL);
        cr_expect_eq(folio_sampler_run(s, &p, &row, &r), FOLIO_E_INTERNAL);
        cr_expect_eq(r.id, -7);
    }
    folio_sampler_close(&s);
}

/* Sets one field to a value outside its range. */
static void spoil(folio_sample_params *p, int what)
{
    static const folio_logit_bias nan_bias[] = {{0, NAN}},
                                  inf_bias[] = {{0, INFINITY}};
    switch (what) {
    case 0:
        p->typical_p = NAN;
        break;
    case 1:
        p->repetition_penalty = 0;
        break;
    case 2:
        p->repetition_penalty = INFINITY;
        break;
    case 3:
        p->penalty_last_n = -2;
        break;
    case 4:
        p->presence_penalty = 2.1f;
        break;
    case 5:
        p->frequency_penalty = NAN;
        break;
    case 6:
        p->n_logit_bias = 1;
        break;
    case 7:
        p->n_logit_bias = -1;
        break;
    case 8:
        p->n_banned = 2;
        break;
    case 9:
        p->min_new_tokens = -1;
        break;
    case 10:
        p->dry_multiplier = -1;
        break;
    case 11:
        p->dry_base = .9f;
        break;
    case 12:
        p->dry_allowed_length = 0;
        break;
    case 13:
        p->dry_last_n = -3;
        break;
    case 14:
        p->n_dry_breakers = 1;
        break;
    case 15:
        p->logprobs = 21;
        break;
    case 16:
        p->logprobs = -1;
        break;
    case 17:
        p->logit_bias = nan_bias, p->n_logit_bias = 1;
        break;
    default:
        p->logit_bias = inf_bias, p->n_logit_bias = 1;
        break;
    }
}

Test(sample_run, bad_parameters_are_named)
{
    static const char *const names[] = {
        "typical_p",          "repetition_penalty", "repetition_penalty",
        "penalty_last_n",     "presence_penalty",   "frequency_penalty",
        "logit_bias",         "n_logit_bias",       "banned",
        "min_new_tokens",     "dry_multiplier",     "dry_base",
        "dry_allowed_length", "dry_last_n",         "dry_breakers",
        "logprobs",           "logprobs",           "logit_bias",
        "logit_bias"};
    char text[1024] = "";
    folio_log log = {keep_message, text, FOLIO_LOG_DEBUG};
    folio_sample_params p = plain();
    for (int i = 0; i < (int)FOLIO_COUNT(names); i++) {
        p = plain();
        spoil(&p, i);
        text[0] = '\0';
        cr_expect_eq(folio_sample_params_check(&p, &log), FOLIO_E_INVAL,
                     "case %d", i);
        cr_expect(strstr(text, names[i]), "case %d: %s", i, text);
    }
    p = plain();
    p.size--;
    cr_expect_eq(folio_sample_params_check(&p, &log), FOLIO_E_INVAL);
    cr_expect_eq(folio_sample_params_check(NULL, &log), FOLIO_E_INVAL);
    static const folio_logit_bias bias[] = {{9, 1}};
    static const int32_t ids[] = {0, -1};
    p = plain();
    p.logit_bias = bias;
    p.n_logit_bias = 1;
    cr_expect_eq(folio_sample_params_check(&p, &log), FOLIO_OK);
    cr_expect_eq(folio_sample_params_check_ids(&p, 10, &log), FOLIO_OK);
    cr_expect_eq(folio_sample_params_check_ids(&p, 9, &log), FOLIO_E_INVAL);
    cr_expect(strstr(text, "id 9") && strstr(text, "0 to 8"), "%s", text);
    p.banned = ids;
    p.n_banned = 2;
    cr_expect_eq(folio_sample_params_check_ids(&p, 10, &log), FOLIO_E_INVAL);
    cr_expect(strstr(text, "banned has id -1"), "%s", text);
}

Test(sample_run, bad_calls_are_named)
{
    static const float x[] = {0, 1, 2};
    static const int32_t tokens[] = {0};
    static const folio_logit_bias bias[] = {{3, 1}};
    char text[1024] = "";
    folio_log log = {keep_message, text, FOLIO_LOG_DEBUG};
    folio_sampler *s = NULL;
    cr_assert_eq(folio_sampler_open(3, &log, &s), FOLIO_OK);
    const folio_sample_row good = row_of(x, 3, tokens, 0, 1);
    folio_sample_row row[8];
    for (int i = 0; i < 8; i++)
        row[i] = good;
    row[0].size = 0;
    row[1].logits = NULL;
    row[2].n_vocab = 4;
    row[3].n_vocab = 0;
    row[4].n_prompt = 2;
    row[5].tokens = NULL;
    row[6].n_stop_ids = 1;
    row[7].n_prompt = -1;
    static const char *const names[] = {"row.size", "logits",   "n_vocab",
                                        "n_vocab",  "n_prompt", "tokens",
                                        "stop_ids", "n_prompt"};
    folio_sample_params p = plain();
    folio_sample_result r = {.size = sizeof r, .id = -7};
    for (int i = 0; i < 8; i++) {
        cr_expect_eq(folio_sampler_run(s, &p, &row[i], &r), FOLIO_E_INVAL);
        cr_expect(strstr(text, names[i]), "case %d: %s", i, text);
    }
    cr_expect_eq(folio_sampler_run(s, &p, NULL, &r), FOLIO_E_INVAL);
    cr_expect_eq(folio_sampler_run(s, &p, &good, NULL), FOLIO_E_INVAL);
    cr_expect_eq(folio_sampler_run(s, NULL, &good, &r), FOLIO_E_INVAL);
    cr_expect_eq(folio_sampler_run(NULL, &p, &good, &r), FOLIO_E_INVAL);
    cr_expect_eq(folio_sampler_score(s, x, 3, 3, 0, &r), FOLIO_E_INVAL);
    cr_expect_eq(folio_sampler_score(s, x, 3, -1, 0, &r), FOLIO_E_INVAL);
    cr_expect_eq(folio_sampler_score(s, x, 4, 0, 0, &r), FOLIO_E_INVAL);
    cr_expect_eq(folio_sampler_score(s, x, 3, 0, 21, &r), FOLIO_E_INVAL);
    cr_expect_eq(folio_sampler_score(s, NULL, 3, 0, 0, &r), FOLIO_E_INVAL);
    cr_expect_eq(folio_sampler_score(NULL, x, 3, 0, 0, &r), FOLIO_E_INVAL);
    p.logit_bias = bias;
    p.n_logit_bias = 1;
    cr_expect_eq(folio_sampler_run(s, &p, &good, &r), FOLIO_E_INVAL);
    cr_expect(strstr(text, "id 3"), "%s", text);
    p.n_logit_bias = 0;
    r.size = 1;
    cr_expect_eq(folio_sampler_run(s, &p, &good, &r), FOLIO_E_INVAL);
    cr_expect_eq(folio_sampler_score(s, x, 3, 0, 0, &r), FOLIO_E_INVAL);
    cr_expect(strstr(text, "result.size"), "%s", text);
    cr_expect_eq(r.id, -7);
    folio_sampler_close(&s);
}

/* Opening fails clean at each allocation; drawing makes none. */
Test(sample_run, memory)
{
    enum { N = 64 };
    float x[N];
    int32_t tokens[N];
    folio_sampler *s = NULL;
    int nth = 1;
    for (;; nth++) {
        fail_alloc_arm(nth);
        const folio_status st = folio_sampler_open(N, NULL, &s);
        if (!fail_alloc_disarm())
            break;
        cr_assert_eq(st, FOLIO_E_NOMEM);
        cr_assert_null(s);
    }
    cr_assert_gt(nth, 3);
    for (int i = 0; i < N; i++) {
        x[i] = (float)next_uniform();
        tokens[i] = i / 2;
    }
    folio_sample_params p = plain();
    p.typical_p = .9f;
    p.top_p = .8f;
    p.top_k = 40;
    p.repetition_penalty = 1.1f;
    p.frequency_penalty = .1f;
    p.dry_multiplier = 1;
    p.logprobs = 20;
    folio_sample_row row = row_of(x, N, tokens, 3, N);
    folio_sample_result r = {.size = sizeof r};
    fail_alloc_arm(1);
    const folio_status ran = folio_sampler_run(s, &p, &row, &r),
                       scored = folio_sampler_score(s, x, N, 1, 20, &r);
    cr_assert_not(fail_alloc_disarm());
    cr_assert_eq(ran, FOLIO_OK);
    cr_assert_eq(scored, FOLIO_OK);
    folio_sampler_close(&s);
}
