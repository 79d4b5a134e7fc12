/* What changes logits before the filters: bias, bans, penalties, DRY, on known
 * histories; and that what is neutral changes nothing. */
#include "unit/sample_util.h"

static void expect_row(const float *got, const float *want, int32_t n,
                       const char *what)
{
    for (int32_t i = 0; i < n; i++)
        cr_expect(got[i] == want[i] ||
                      fabsf(got[i] - want[i]) <= 1e-6f * fabsf(want[i]),
                  "%s: id %d: %g, expected %g", what, i, (double)got[i],
                  (double)want[i]);
}

/* Every way to say "nothing", in all combinations, with a history that would
 * matter: not one logit changes, nor the id. */
Test(sample_adjust, neutral_settings_change_nothing)
{
    static const int32_t tokens[] = {1, 2, 3, 1, 2, 3, 1, 2, 9, 1, 2};
    static const int32_t ids[] = {1, 2}, stop[] = {3};
    static const folio_logit_bias zero[] = {{1, 0}, {3, 0}};
    float x[16];
    for (int i = 0; i < 16; i++)
        x[i] = (float)(i * 7 % 16) * .25f - 2;
    folio_sampler *s = open_sampler(16);
    folio_sample_row row = row_of(x, 16, tokens, 4, 11);
    row.stop_ids = stop;
    row.n_stop_ids = 1;
    for (uint32_t bits = 0; bits < 1u << 11; bits++) {
        folio_sample_params p = plain();
        float got[16];
        p.repetition_penalty = bits & 1 ? 1.5f : 1;
        p.penalty_last_n = bits & 1 ? 0 : 7;
        p.min_new_tokens = bits & 2 ? 7 : 0; /* it has 7 */
        p.logit_bias = bits & 4 ? zero : NULL;
        p.n_logit_bias = bits & 4 ? 2 : 0;
        p.dry_multiplier = bits & 8 ? 1 : 0;
        p.dry_last_n = bits & 8 ? 0 : -1;
        p.dry_breakers = bits & 16 ? ids : NULL;
        p.n_dry_breakers = bits & 16 ? 2 : 0;
        p.typical_p = bits & 32 ? 3 : 1;
        p.banned = bits & 64 ? ids : NULL;
        p.n_banned = 0;
        p.top_k = bits & 128 ? 16 : 0;
        p.top_p = bits & 256 ? 2 : 1;
        p.logprobs = bits & 512 ? 3 : 0;
        p.presence_penalty = bits & 1024 ? -0.0f : 0;
        shape_row(p, &row, got);
        cr_assert_arr_eq(got, x, sizeof x, "bits %x", bits);
        for (uint64_t seed = 0; seed < 4; seed++) {
            folio_sample_params neutral = plain();
            p.seed = neutral.seed = seed;
            cr_assert_eq(run_row(s, p, &row), run_row(s, neutral, &row),
                         "bits %x", bits);
        }
    }
    folio_sampler_close(&s);
}

Test(sample_adjust, bias_and_bans)
{
    static const float x[] = {1, 2, 3, -1, 0, -INFINITY};
    static const folio_logit_bias bias[] = {
        {0, 2.5f}, {3, -1}, {0, .5f}, {4, -INFINITY}, {5, 100}};
    static const int32_t banned[] = {2, 2};
    folio_sample_row row = row_of(x, 6, NULL, 0, 0);
    folio_sample_params p = plain();
    float got[6];
    p.logit_bias = bias;
    p.n_logit_bias = 5;
    p.banned = banned;
    p.n_banned = 2;
    static const float want[] = {4, 2, -INFINITY, -2, -INFINITY, -INFINITY};
    shape_row(p, &row, got);
    expect_row(got, want, 6, "bias");
    folio_sampler *s = open_sampler(6);
    p.temperature = 0;
    cr_expect_eq(run_row(s, p, &row), 0);
    p.n_logit_bias = 0;
    cr_expect_eq(run_row(s, p, &row), 1);
    p.temperature = 40;
    for (uint64_t seed = 0; seed < 200; seed++) {
        p.seed = seed;
        const int32_t id = run_row(s, p, &row);
        cr_assert(id != 2 && id != 5, "%d", id);
    }
    /* All banned: nobody can draw, and the next row is fine. */
    static const int32_t all[] = {0, 1, 2, 3, 4, 5};
    folio_sample_result r = {.size = sizeof r, .id = -7};
    p.banned = all;
    p.n_banned = 6;
    cr_expect_eq(folio_sampler_run(s, &p, &row, &r), FOLIO_E_INTERNAL);
    cr_expect_eq(r.id, -7);
    p.n_banned = 5;
    cr_expect_eq(folio_sampler_run(s, &p, &row, &r), FOLIO_E_INTERNAL);
    p.n_banned = 4;
    cr_expect_eq(run_row(s, p, &row), 4);
    folio_sampler_close(&s);
}

/* The newest tokens are the window, prompt and answer alike; an id counts
 * once; negative logits move down, too. */
Test(sample_adjust, repetition_penalty)
{
    static const float x[] = {1, 2, -1, 4, -2, 6, 0, 8};
    static const int32_t tokens[] = {1, 3, 5, 7, 2, 0, 2, 6};
    folio_sample_row row = row_of(x, 8, tokens, 5, 8);
    folio_sample_params p = plain();
    float got[8];
    p.repetition_penalty = 2;
    p.penalty_last_n = 4; /* 2, 0, 2, 6 */
    static const float four[] = {.5f, 2, -2, 4, -2, 6, 0, 8};
    shape_row(p, &row, got);
    expect_row(got, four, 8, "last 4");
    p.penalty_last_n = -1;
    static const float all[] = {.5f, 1, -2, 2, -2, 3, 0, 4};
    shape_row(p, &row, got);
    expect_row(got, all, 8, "all");
    p.penalty_last_n = 100;
    shape_row(p, &row, got);
    expect_row(got, all, 8, "100");
    p.penalty_last_n = 1;
    shape_row(p, &row, got);
    expect_row(got, x, 8, "last 1"); /* id 6, whose logit is 0 */
    /* Below 1 it encourages. */
    p.repetition_penalty = .5f;
    p.penalty_last_n = 2; /* 2, 6 */
    static const float more[] = {1, 2, -.5f, 4, -2, 6, 0, 8};
    shape_row(p, &row, got);
    expect_row(got, more, 8, "0.5");
    /* Ids outside the row are nobody's. */
    static const int32_t odd[] = {-1, 8, INT32_MIN, INT32_MAX, 1};
    row = row_of(x, 8, odd, 1, 5);
    p.repetition_penalty = 2;
    p.frequency_penalty = .5f;
    p.dry_multiplier = 1;
    p.penalty_last_n = -1;
    static const float one[] = {1, .5f, -1, 4, -2, 6, 0, 8};
    shape_row(p, &row, got);
    expect_row(got, one, 8, "odd ids");
}

Test(sample_adjust, penalties_change_greedy_and_default_does_not)
{
    static const float x[] = {3, 2.9f, 1};
    static const int32_t tokens[] = {0};
    folio_sample_row row = row_of(x, 3, tokens, 1, 1);
    folio_sampler *s = open_sampler(3);
    folio_sample_params p = plain();
    p.temperature = 0;
    cr_expect_eq(run_row(s, p, &row), 0);
    p.repetition_penalty = 1.1f;
    cr_expect_eq(run_row(s, p, &row), 1);
    folio_sampler_close(&s);
}

/* As OpenAI: the answer's tokens, all of them, and not the prompt's. */
Test(sample_adjust, presence_and_frequency)
{
    static const float x[] = {1, 2, -1, 4};
    static const int32_t tokens[] = {0, 0, 3, 1, 2, 1, 1};
    folio_sample_row row = row_of(x, 4, tokens, 3, 7);
    folio_sample_params p = plain();
    float got[4];
    p.penalty_last_n = 1; /* of the repetition penalty alone */
    p.presence_penalty = .5f;
    static const float presence[] = {1, 1.5f, -1.5f, 4};
    shape_row(p, &row, got);
    expect_row(got, presence, 4, "presence");
    p.frequency_penalty = .25f;
    static const float both[] = {1, .75f, -1.75f, 4};
    shape_row(p, &row, got);
    expect_row(got, both, 4, "both");
    p.presence_penalty = 0;
    p.frequency_penalty = -2;
    static const float drawn[] = {1, 8, 1, 4};
    shape_row(p, &row, got);
    expect_row(got, drawn, 4, "frequency below 0");
    row.n_prompt = 7;
    shape_row(p, &row, got);
    expect_row(got, x, 4, "no answer yet");
    /* Repetition first, then these. */
    row.n_prompt = 3;
    p.frequency_penalty = .25f;
    p.repetition_penalty = 2;
    static const float order[] = {1, .25f, -1.25f, 4};
    shape_row(p, &row, got);
    expect_row(got, order, 4, "order");
}

Test(sample_adjust, min_new_tokens)
{
    static const float x[] = {1, 9, 2, 8};
    static const int32_t tokens[] = {1, 1, 1, 0, 0}, stop[] = {1, 3, 77, -1};
    folio_sampler *s = open_sampler(4);
    folio_sample_params p = plain();
    p.temperature = 0;
    p.min_new_tokens = 2;
    for (int32_t n = 3; n <= 5; n++) {
        folio_sample_row row = row_of(x, 4, tokens, 3, n);
        cr_expect_eq(run_row(s, p, &row), 1); /* no stop ids */
        row.stop_ids = stop;
        row.n_stop_ids = 4;
        cr_expect_eq(run_row(s, p, &row), n < 5 ? 2 : 1, "%d tokens", n - 3);
    }
    folio_sampler_close(&s);
}

Test(sample_adjust, dry)
{
    static const float x[8] = {0};
    folio_sample_params p = plain();
    float got[8];
    p.dry_multiplier = .5f;
    p.dry_base = 2;
    /* "1 2 3" stood before 4 and, longer, "5 1 2 3" before 6. */
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 1, 2, 3, 6, 5, 1, 2, 3};
    folio_sample_row row = row_of(x, 8, tokens, 2, 13);
    static const float two[] = {0, 0, 0, 0, -1, 0, -2, 0};
    shape_row(p, &row, got);
    expect_row(got, two, 8, "allowed 2");
    p.dry_allowed_length = 4;
    static const float four[] = {0, 0, 0, 0, 0, 0, -.5f, 0};
    shape_row(p, &row, got);
    expect_row(got, four, 8, "allowed 4");
    p.dry_allowed_length = 5;
    shape_row(p, &row, got);
    expect_row(got, x, 8, "allowed 5");
    /* Only the last 8: "1 2 3" before 6 is whole, "5" is out. */
    p.dry_allowed_length = 2;
    p.dry_last_n = 8;
    static const float window[] = {0, 0, 0, 0, 0, 0, -1, 0};
    shape_row(p, &row, got);
    expect_row(got, window, 8, "last 8");
    /* A breaker ends the way back and is not penalised itself. */
    p.dry_last_n = -1;
    static const int32_t at_1[] = {1}, at_6[] = {99, 6}, at_3[] = {3, -1};
    p.dry_breakers = at_1;
    p.n_dry_breakers = 1;
    static const float short_way[] = {0, 0, 0, 0, -.5f, 0, -.5f, 0};
    shape_row(p, &row, got);
    expect_row(got, short_way, 8, "breaker 1");
    p.dry_breakers = at_6;
    p.n_dry_breakers = 2;
    static const float spared[] = {0, 0, 0, 0, -1, 0, 0, 0};
    shape_row(p, &row, got);
    expect_row(got, spared, 8, "breaker 6");
    p.dry_breakers = at_3;
    shape_row(p, &row, got);
    expect_row(got, x, 8, "breaker 3");
    /* A run of one id overlaps itself; the length ends at 64. */
    int32_t run_of_7[200];
    for (int i = 0; i < 200; i++)
        run_of_7[i] = 7;
    p.n_dry_breakers = 0;
    row = row_of(x, 8, run_of_7, 0, 4);
    shape_row(p, &row, got);
    cr_expect_float_eq(got[7], -1, 1e-6); /* 3 before the last */
    row.n_tok = 200;
    shape_row(p, &row, got);
    cr_expect_eq(got[7], -.5f * 0x1p62f);
    p.dry_base = 100; /* never a ban */
    shape_row(p, &row, got);
    cr_expect(isfinite(got[7]) && got[7] < -1e29f);
}
