/* The fused form of a forward: the same answers in five launches a layer, where
 * it is used and where it is not, on both kinds of device. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/runner_internal.h"
#include "unit/support_tiny_llama.h"

/* embed, then norm + q, k, v + rope, attention, o, norm + gate, up +
 * activation, down for each layer, then the head. */
#define FUSED_LAUNCHES (1 + 5 * TINY_LAYERS + 1)
/* embed; norm, q, k, v, rope, attention, o, norm, gate, up, activation, down;
 * gather, norm, head. */
#define PLAIN_LAUNCHES (1 + 12 * TINY_LAYERS + 3)

static tiny_llama tiny;
static folio_device *dev;
static folio_model *model;
static folio_runner *runner;
static folio_runner_params params;

static void set_up(void)
{
    tiny_init(&tiny);
    tiny_save(&tiny);
    tiny_params(&params);
    params.deterministic = 0;
}

static void tear_down(void)
{
    folio_runner_close(&runner);
    folio_model_close(&model);
    folio_device_close(&dev);
    tiny_fini(&tiny);
}

/* `as_gpu`: what the device knows of being a CPU is hidden, so that it gets
 * what a GPU without any extension gets. */
static void open_on(const char *select, bool as_gpu)
{
    if (as_gpu) {
        folio_device_params p;
        folio_device_params_default(&p);
        p.select = select;
        p.log = tiny_log(&tiny);
        p.caps_off = FOLIO_CAP_CPU;
        if (folio_device_open(&p, &dev) != FOLIO_OK)
            dev = NULL;
    } else {
        dev = tiny_device(&tiny, select, 0);
    }
    if (!dev)
        cr_skip_test("no PoCL among the OpenCL devices here");
    model = tiny_open(&tiny, dev);
    runner = tiny_runner(model, &params);
}

static uint64_t launches(void)
{
    return folio_queue_get_counters(runner->queue).launches;
}

/* Of one token behind those that `s` has. */
static uint64_t step_launches(tiny_seq *s, int32_t trace_tok)
{
    tiny_batch b;
    const int32_t id = 7;
    tiny_batch_init(&b);
    tiny_batch_add(&b, s, &id, 1, false);
    uint64_t before = launches();
    TINY_OK(folio_runner_forward(runner, &b.b, trace_tok));
    return launches() - before;
}

static void known_ids(void)
{
    for (int p = 0; p < TINY_N_PROMPTS; p++) {
        const tiny_golden *g = &tiny_goldens[p];
        int32_t out[TINY_N_NEW];
        tiny_seq s;
        tiny_seq_init(&s, runner, p, 9);
        tiny_greedy(runner, &s, g->prompt, g->n, TINY_N_NEW, out);
        for (int i = 0; i < TINY_N_NEW; i++)
            cr_assert_eq(out[i], g->ids[i], "prompt %d, id %d: %d, expected %d",
                         p, i, out[i], g->ids[i]);
    }
}

static bool chose(const char *op, const char *what, const char *variant)
{
    folio_choice c;
    for (size_t i = 0; folio_runner_choice(runner, i, &c) == FOLIO_OK; i++)
        if (!strcmp(c.op, op) && !strcmp(c.what, what) &&
            (!variant || !strcmp(c.variant, variant)))
            return true;
    return false;
}

static void five_a_layer(void)
{
    tiny_seq s;
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, tiny_goldens[0].prompt, 3, 0, false, NULL);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(step_launches(&s, -1), FUSED_LAUNCHES);
    cr_expect(chose("qkv", "few tokens", NULL));
    cr_expect(chose("gate_up", "few tokens", NULL));
    cr_expect(chose("norm_linear", "few tokens", NULL));
    cr_expect(chose("rmsnorm", "any tokens", NULL));
}

Test(model_fused, host, .init = set_up, .fini = tear_down)
{
    params.fused = 1;
    open_on("host", false);
    known_ids();
    five_a_layer();
}

Test(model_fused, pocl, .init = set_up, .fini = tear_down, .timeout = 300)
{
    params.fused = 1;
    open_on("pocl", false);
    known_ids();
    five_a_layer();
    cr_expect(chose("qkv", "few tokens", "qkv_cpu"));
}

/* Not asked for: a device that is no CPU gets it. */
Test(model_fused, pocl_as_gpu, .init = set_up, .fini = tear_down,
     .timeout = 300)
{
    open_on("pocl", true);
    known_ids();
    five_a_layer();
    cr_expect(chose("qkv", "few tokens", "qkv_wg"));
    cr_expect(chose("gate_up", "few tokens", "gate_up_wg"));
    cr_expect(chose("norm_linear", "few tokens", "norm_linear_wg"));
}

/* A trace taps what the fused form does not compute. */
Test(model_fused, trace_is_plain, .init = set_up, .fini = tear_down)
{
    float got[(TINY_LAYERS + 2) * TINY_DIM], want[(TINY_LAYERS + 2) * TINY_DIM];
    tiny_seq s;
    params.fused = 1;
    params.trace = 1;
    open_on("host", false);
    tiny_seq_init(&s, runner, 0, 0);
    cr_expect_eq(step_launches(&s, -1), FUSED_LAUNCHES);
    cr_expect_eq(step_launches(&s, 0), PLAIN_LAUNCHES);
    TINY_OK(folio_runner_read_trace(runner, got));
    folio_runner_close(&runner);
    params.fused = 0;
    runner = tiny_runner(model, &params);
    tiny_seq_init(&s, runner, 0, 0);
    cr_expect_eq(step_launches(&s, -1), PLAIN_LAUNCHES);
    cr_expect_eq(step_launches(&s, 0), PLAIN_LAUNCHES);
    TINY_OK(folio_runner_read_trace(runner, want));
    tiny_near(got, want, FOLIO_COUNT(got), 1e-4f, "trace");
}

/* One sequence of ops for every count of tokens: a row's bits must not depend
 * on how many there are. */
Test(model_fused, deterministic_is_plain, .init = set_up, .fini = tear_down)
{
    tiny_seq s;
    params.fused = 1;
    params.deterministic = 1;
    open_on("host", false);
    tiny_seq_init(&s, runner, 0, 0);
    cr_expect_eq(step_launches(&s, -1), PLAIN_LAUNCHES);
    cr_expect_not(chose("qkv", "few tokens", NULL));
}

Test(model_fused, host_is_plain_unless_asked, .init = set_up, .fini = tear_down)
{
    tiny_seq s;
    open_on("host", false);
    tiny_seq_init(&s, runner, 0, 0);
    cr_expect_eq(step_launches(&s, -1), PLAIN_LAUNCHES);
}

/* A number that was asked for and cannot be had is said once, with the reason;
 * what is had can be asked. */
Test(model_fused, says_what_cannot_be_had, .init = set_up, .fini = tear_down)
{
    const struct {
        int32_t deterministic, asked, form;
        const char *words; /* NULL: nothing is said */
    } at[] = {{1, 2, 0, "fused 2 was asked for, fused 0 runs: the order"},
              {1, 1, 0, "fused 1 was asked for, fused 0 runs: the order"},
              {0, 2, 1, "fused 2 was asked for, fused 1 runs: "},
              {0, 1, 1, NULL},
              {1, 0, 0, NULL},
              {1, -1, 0, NULL}};
    for (size_t i = 0; i < FOLIO_COUNT(at); i++) {
        folio_runner_info info = {.size = sizeof info};
        params.deterministic = at[i].deterministic;
        params.fused = at[i].asked;
        tiny.ear.n_warn = 0;
        open_on("host", false);
        folio_runner_close(&runner);
        runner = tiny_runner(model, &params);
        folio_runner_get_info(runner, &info);
        cr_expect_eq(info.fused, at[i].form, "case %zu: %d", i, info.fused);
        cr_expect_eq(tiny.ear.n_warn, at[i].words != NULL, "case %zu: %d", i,
                     tiny.ear.n_warn);
        cr_expect(!at[i].words || strstr(tiny.ear.warn, at[i].words),
                  "case %zu: %s", i, tiny.ear.warn);
        folio_runner_close(&runner);
        folio_model_close(&model);
        folio_device_close(&dev);
    }
}

static char told[4096];

static void keep_told(void *user, folio_log_level level, const char *text)
{
    (void)user;
    cr_expect(level > FOLIO_LOG_ERROR, "%s", text);
    size_t used = strlen(told);
    if (strstr(text, "not fused"))
        snprintf(told + used, sizeof told - used, "%s\n", text);
}

/* A fused op that no row can run costs launches, not the model. */
Test(model_fused, plain_where_no_row_can, .init = set_up, .fini = tear_down)
{
    folio_device_params p;
    tiny_seq s;
    folio_device_params_default(&p);
    p.select = "host";
    p.log = (folio_log){.fn = keep_told, .max_level = FOLIO_LOG_INFO};
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK);
    params.fused = 1;
    setenv("FOLIO_DISABLE", "host_qkv,ref_qkv", 1);
    model = tiny_open(&tiny, dev);
    runner = tiny_runner(model, &params);
    cr_expect_str_eq(told, "not fused to qkv, its plain ops run: "
                           "host_qkv: disabled\n");
    known_ids();
    tiny_seq_init(&s, runner, 0, 0);
    /* norm + q, k, v, and rope in place of one launch. */
    cr_expect_eq(step_launches(&s, -1), FUSED_LAUNCHES + TINY_LAYERS);
    cr_expect(chose("norm_linear", "few tokens", NULL));
    cr_expect(chose("gate_up", "few tokens", NULL));
    cr_expect_not(chose("qkv", "few tokens", NULL));
    folio_runner_close(&runner);
    setenv("FOLIO_DISABLE",
           "host_qkv,ref_qkv,host_gate_up,ref_gate_up,host_norm_linear", 1);
    runner = tiny_runner(model, &params);
    tiny_seq_init(&s, runner, 0, 0);
    cr_expect_eq(step_launches(&s, -1), PLAIN_LAUNCHES);
    unsetenv("FOLIO_DISABLE");
}

/* Above few tokens the plain form computes, and both continue each other. */
Test(model_fused, both_forms_share_a_sequence, .init = set_up,
     .fini = tear_down)
{
    int32_t text[(FOLIO_MMA_MIN_TOKS - 1) + 5];
    float whole[TINY_VOCAB], steps[TINY_VOCAB];
    tiny_seq s;
    for (int i = 0; i < (int)FOLIO_COUNT(text); i++)
        text[i] = (11 * i + 3) % TINY_VOCAB;
    params.fused = 1;
    open_on("host", false);
    tiny_seq_init(&s, runner, 0, 0);
    uint64_t before = launches();
    tiny_feed(runner, &s, text, (FOLIO_MMA_MIN_TOKS - 1) + 5, 0, false, whole);
    /* The head computes one row: it is fused. */
    cr_expect_eq(launches() - before, PLAIN_LAUNCHES - 2);
    tiny_seq_init(&s, runner, 1, 0);
    tiny_feed(runner, &s, text, (FOLIO_MMA_MIN_TOKS - 1) + 1, 0, false, NULL);
    tiny_feed(runner, &s, text + (FOLIO_MMA_MIN_TOKS - 1) + 1, 4, 0, false,
              steps);
    tiny_near(steps, whole, TINY_VOCAB, 1e-4f, "logits");
}

Test(model_fused, bad_value, .init = set_up, .fini = tear_down)
{
    dev = tiny_device(&tiny, "host", 0);
    model = tiny_open(&tiny, dev);
    params.fused = 3;
    cr_expect_eq(folio_runner_open(model, &params, &runner), FOLIO_E_INVAL);
    cr_expect(strstr(tiny.ear.err, "folio_runner_params.fused is 3"), "%s",
              tiny.ear.err);
}
