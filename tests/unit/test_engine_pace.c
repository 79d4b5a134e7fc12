/* engine/pace.c on made-up devices: what a step costs is a formula here. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "base/base.h"
#include "engine/pace.h"

/* Nanoseconds of a step on a device with these costs. */
typedef struct cost {
    double step, row, prompt;
} cost;

static uint64_t step_ns(const cost *c, int32_t n_decode, int32_t n_prompt)
{
    return (uint64_t)(c->step + c->row * n_decode + c->prompt * n_prompt);
}

static void decode(folio_pace *p, const cost *c, int32_t n_decode, int n)
{
    for (int i = 0; i < n; i++)
        folio_pace_note(p, n_decode, 0, step_ns(c, n_decode, 0));
}

/* A long prompt beside n_decode rows: the longest step, as a multiple of one
 * without, and the share of the device the prompt gets in the last one. */
static double worst(folio_pace *p, const cost *c, int32_t n_decode,
                    int32_t n_prompt, double *share)
{
    const double alone = (double)step_ns(c, n_decode, 0);
    double most = 0;
    while (n_prompt > 0) {
        int32_t n =
            FOLIO_MIN(FOLIO_MIN(folio_pace_limit(p, n_decode), n_prompt), 512);
        if (n == 0) {
            decode(p, c, n_decode, 1);
            continue;
        }
        cr_assert_gt(n, 0);
        const uint64_t ns = step_ns(c, n_decode, n);
        folio_pace_note(p, n_decode, n, ns);
        most = FOLIO_MAX(most, (double)ns / alone);
        if (n_prompt > n)
            *share = c->prompt * n / (double)ns;
        n_prompt -= n;
    }
    return most;
}

Test(engine_pace, bounds_the_step_on_any_device)
{
    static const cost devices[] = {
        {1e5, 8e6, 8e6},   /* a CPU where a position costs what a row costs */
        {4e6, 2e6, 1.5e6}, /* one that reads its weights once a step */
        {2e6, 1e4, 1e4},   /* a GPU bound by its launches */
        {3e6, 1e3, 5e2},   /* and a large one */
    };
    for (size_t i = 0; i < FOLIO_COUNT(devices); i++)
        for (int32_t rows = 1; rows <= 256; rows *= 4) {
            folio_pace p = {.stretch = 2.2};
            const cost *c = &devices[i];
            double share = 0;
            decode(&p, c, rows, 20);
            const double w = worst(&p, c, rows, 20000, &share);
            cr_expect_leq(w, 2.5, "device %zu, %d rows: %g times", i, rows, w);
            /* Where no step can hold as much, all of it is used. */
            const bool full =
                1.2 * (double)step_ns(c, rows, 0) / c->prompt >= 512;
            cr_expect(full || share >= .45,
                      "device %zu, %d rows: %g of the device", i, rows, share);
        }
}

/* Positions grow dearer with what precedes them. */
Test(engine_pace, follows_a_cost_that_grows)
{
    folio_pace p = {.stretch = 2.2};
    cost c = {4e6, 2e6, 2e6};
    decode(&p, &c, 4, 10);
    const double alone = (double)step_ns(&c, 4, 0);
    for (int32_t done = 0; done < 8192;) {
        const int32_t n = folio_pace_limit(&p, 4);
        c.prompt = 2e6 * (1 + done / 2048.0);
        const uint64_t ns = step_ns(&c, 4, n);
        cr_assert_leq((double)ns, 2.5 * alone, "at %d", done);
        folio_pace_note(&p, 4, n, ns);
        done += n;
    }
}

/* What is decoded grows dearer, too: the prompt gets its share of what a step
 * without it costs by now, which is looked at now and then. */
Test(engine_pace, follows_texts_that_grow)
{
    folio_pace p = {.stretch = 2.2};
    cost c = {4e6, 1e6, 1e6};
    decode(&p, &c, 4, 10);
    int32_t n_mixed = 0, n_pure = 0;
    double share = 0;
    for (int32_t i = 0; i < 4000; i++) {
        c.step = 4e6 * (1 + i / 1000.0);
        const int32_t n = folio_pace_limit(&p, 4);
        const uint64_t ns = step_ns(&c, 4, n);
        cr_assert_leq((double)ns, 2.5 * (double)step_ns(&c, 4, 0),
                      "%d positions at step %d", n, i);
        folio_pace_note(&p, 4, n, ns);
        n_pure += n == 0;
        n_mixed += n > 0;
        if (n > 0)
            share = c.prompt * n / (double)ns;
    }
    cr_expect_geq(n_pure, 50);
    cr_expect_leq(n_pure, n_mixed / 50);
    cr_expect_geq(share, .4, "%g of the device", share);
}

Test(engine_pace, starts_carefully_and_survives_hiccups)
{
    folio_pace p = {.stretch = 2.2};
    const cost c = {1e6, 1e6, 1e6};
    /* Nothing known: no more positions than rows. */
    cr_expect_eq(folio_pace_limit(&p, 4), 4);
    folio_pace_note(&p, 4, 4, step_ns(&c, 4, 4));
    cr_expect_eq(folio_pace_limit(&p, 4), 4, "no step without prompts yet");
    decode(&p, &c, 4, 30);
    folio_pace_note(&p, 4, 0, 10 * step_ns(&c, 4, 0));
    cr_expect_leq(p.decode_ns[4], 1.2 * (double)step_ns(&c, 4, 0));
    /* A stall while a prompt is computed slows it little, for a while only. */
    for (int i = 0; i < 10; i++)
        folio_pace_note(&p, 4, 4, step_ns(&c, 4, 4));
    const int32_t before = folio_pace_limit(&p, 4);
    folio_pace_note(&p, 4, 6, 20 * step_ns(&c, 4, 6));
    cr_expect_leq(folio_pace_limit(&p, 4), before);
    cr_expect_geq(folio_pace_limit(&p, 4), before / 2);
    for (int i = 0; i < 40; i++) {
        const int32_t n = folio_pace_limit(&p, 4);
        folio_pace_note(&p, 4, n, step_ns(&c, 4, n));
    }
    cr_expect_geq(folio_pace_limit(&p, 4), before - 1);
}

Test(engine_pace, off_or_nobody_streams)
{
    folio_pace off = {0}, p = {.stretch = 2.2};
    const cost c = {1e6, 1e6, 1e6};
    decode(&off, &c, 4, 5);
    cr_expect_eq(folio_pace_limit(&off, 4), INT32_MAX);
    decode(&p, &c, 4, 5);
    cr_expect_eq(folio_pace_limit(&p, 0), INT32_MAX);
    /* A clock that stands still tells nothing. */
    folio_pace_note(&p, 8, 8, 0);
    cr_expect_geq(folio_pace_limit(&p, 8), 1);
    /* More rows than entries. */
    decode(&p, &c, 1000, 5);
    cr_expect_geq(folio_pace_limit(&p, 2000), 1);
}
