/* The form of a forward for many tokens: the numbers of the plain one, in as
 * few launches as it promises, where matrix units (here their portable form)
 * are and nowhere else. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "model/model_internal.h"
#include "model/runner_internal.h"
#include "unit/support_tiny_llama.h"

/* Like tiny_llama, with columns in multiples of 64, as tiles want them. */
enum {
    DIM = 64,
    FF = 192,
    LAYERS = 2,
    HEADS = 4,
    KV_HEADS = 2,
    HD = 16,
    N_TOK = 12,
    TOKS = 2 * N_TOK
};

/* embed; norm and rounding, q k v and rope, attention, o; norm and rounding,
 * gate up and activation, down for each layer. */
#define MANY_LAUNCHES (1 + 7 * LAYERS)
/* Of so few that each group norms them itself. */
#define FEW          8
#define FEW_LAUNCHES (1 + 5 * LAYERS)
/* embed; norm, q, k, v, rope, attention, o, norm, gate, up, activation, down;
 * gather, norm, head. */
#define PLAIN_LAUNCHES (1 + 12 * LAYERS + 3)

/* Of logits that are a few units large: activations rounded to halves four
 * times in each layer and once before the head. */
#define TOLERANCE 2e-2f

static tiny_llama tiny; /* its place and its ear */
static folio_device *dev;
static folio_model *model;
static folio_runner *runner;
static folio_runner_params params;
static int32_t text[TOKS];

static float next_value(uint32_t *s)
{
    *s = 1664525u * *s + 1013904223u;
    return (float)(*s >> 8) / 8388608.0f - 1.0f;
}

/* Rows of halves of variance 1 / cols, vectors of floats around 1. */
static void put_tensor(gguf_writer *w, uint32_t *s, const char *name,
                       uint64_t cols, uint64_t rows)
{
    const size_t n = (size_t)(cols * (rows ? rows : 1));
    const float scale = sqrtf(3.0f / (float)cols);
    uint16_t *h = calloc(n, sizeof *h);
    float *f = calloc(n, sizeof *f);
    cr_assert(h && f);
    for (size_t i = 0; i < n; i++) {
        const float v = next_value(s);
        h[i] = folio_f32_to_f16(v * scale);
        f[i] = 1.0f + 0.1f * v;
    }
    gguf_put_tensor(w, name, rows ? FOLIO_TYPE_F16 : FOLIO_TYPE_F32,
                    rows ? 2 : 1, (uint64_t[]){cols, rows ? rows : 1},
                    rows ? (const void *)h : f);
    free(h);
    free(f);
}

static void save_model(void)
{
    gguf_writer w;
    uint32_t s = 5;
    char name[48];
    gguf_writer_init(&w);
    gguf_put_str(&w, "general.architecture", "llama");
    gguf_put_u32(&w, "llama.context_length", TINY_CTX);
    gguf_put_u32(&w, "llama.embedding_length", DIM);
    gguf_put_u32(&w, "llama.block_count", LAYERS);
    gguf_put_u32(&w, "llama.feed_forward_length", FF);
    gguf_put_u32(&w, "llama.attention.head_count", HEADS);
    gguf_put_u32(&w, "llama.attention.head_count_kv", KV_HEADS);
    gguf_put_u32(&w, "llama.rope.dimension_count", HD);
    gguf_put_f32(&w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_put_f32(&w, "llama.rope.freq_base", 1e4f);
    put_tensor(&w, &s, "token_embd.weight", DIM, TINY_VOCAB);
    for (int l = 0; l < LAYERS; l++) {
        const struct {
            const char *name;
            uint64_t cols, rows;
        } t[] = {
            {"attn_norm", DIM, 0},
            {"attn_q", DIM, HEADS * HD},
            {"attn_k", DIM, KV_HEADS * HD},
            {"attn_v", DIM, KV_HEADS * HD},
            {"attn_output", HEADS * HD, DIM},
            {"ffn_norm", DIM, 0},
            {"ffn_gate", DIM, FF},
            {"ffn_up", DIM, FF},
            {"ffn_down", FF, DIM},
        };
        for (size_t i = 0; i < FOLIO_COUNT(t); i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, t[i].name);
            put_tensor(&w, &s, name, t[i].cols, t[i].rows);
        }
    }
    put_tensor(&w, &s, "output_norm.weight", DIM, 0);
    cr_assert(gguf_writer_save(&w, tiny.path));
    gguf_writer_fini(&w);
}

static void set_up(void)
{
    tiny_init(&tiny);
    save_model();
    tiny_params(&params);
    for (int i = 0; i < TOKS; i++)
        text[i] = (11 * i + 3) % TINY_VOCAB;
}

static void close_all(void)
{
    folio_runner_close(&runner);
    folio_model_close(&model);
    folio_device_close(&dev);
}

static void tear_down(void)
{
    close_all();
    tiny_fini(&tiny);
}

static void open_on(const char *select, const char *packing, bool emulate)
{
    dev = tiny_device(&tiny, select, 0);
    if (!dev)
        cr_skip_test("no PoCL among the OpenCL devices here");
    setenv("FOLIO_PACKING", packing, 1);
    setenv("FOLIO_TUNE", "many:FROM=1", 1);
    model = tiny_open(&tiny, dev);
    unsetenv("FOLIO_PACKING");
    model->emulate = emulate;
    runner = tiny_runner(model, &params);
    unsetenv("FOLIO_TUNE");
}

/* All logits of `text` as the host device computes them, in floats. */
static void known_logits(float *out)
{
    tiny_seq s;
    params.deterministic = 1;
    params.fused = 0;
    open_on("host", "raw", false);
    tiny_seq_init(&s, runner, 0, 0);
    tiny_feed(runner, &s, text, TOKS, 0, true, out);
    close_all();
    params.deterministic = 0;
    params.fused = 1;
}

static uint64_t feed_launches(tiny_seq *s, int32_t n, bool all_rows,
                              int32_t trace_tok)
{
    const uint64_t before = folio_queue_get_counters(runner->queue).launches;
    static tiny_batch b;
    tiny_batch_init(&b);
    tiny_batch_add(&b, s, text, n, all_rows);
    if (!all_rows && trace_tok < 0)
        b.b.n_rows = 0;
    TINY_OK(folio_runner_forward(runner, &b.b, trace_tok));
    return folio_queue_get_counters(runner->queue).launches - before;
}

static const char *chosen(const char *op, const char *what)
{
    folio_choice c;
    static char variant[64];
    for (size_t i = 0; folio_runner_choice(runner, i, &c) == FOLIO_OK; i++)
        if (!strcmp(c.op, op) && !strcmp(c.what, what)) {
            snprintf(variant, sizeof variant, "%s", c.variant);
            return variant;
        }
    return "none";
}

Test(model_many, same_in_fewer_launches, .init = set_up, .fini = tear_down,
     .timeout = 300)
{
    static float got[TOKS * TINY_VOCAB], want[TOKS * TINY_VOCAB];
    tiny_seq s;
    known_logits(want);
    float most = 0.0f;
    for (size_t i = 0; i < FOLIO_COUNT(want); i++)
        most = fmaxf(most, fabsf(want[i]));
    cr_assert_gt(most, 1.0f, "logits of %g prove nothing", (double)most);
    /* Programs that are others' business take long to build; and o and down
     * are one launch each, as they are for few tiles on matrix units. */
    setenv("FOLIO_DISABLE",
           "attn_mma,attn_bulk,linear_mma,linear_wgmma,linear_gemv,qkv_gemv,"
           "gate_up_gemv",
           1);
    open_on("pocl", "tile16", true);
    unsetenv("FOLIO_DISABLE");
    cr_expect_str_eq(chosen("norm_linear", "many tokens"), "norm_linear_wgmma");
    cr_expect_str_eq(chosen("qkv", "many tokens"), "qkv_wgmma");
    cr_expect_str_eq(chosen("gate_up", "many tokens"), "gate_up_wgmma");
    /* At once, and in two parts. */
    const int32_t cuts[] = {TOKS, N_TOK, TOKS - 3, 1};
    for (int32_t c = 0; c < (int32_t)FOLIO_COUNT(cuts); c++) {
        const int32_t n = cuts[c];
        tiny_seq_init(&s, runner, c, 3);
        tiny_feed(runner, &s, text, n, 0, true, got);
        if (n < TOKS)
            tiny_feed(runner, &s, text + n, TOKS - n, 0, true,
                      got + n * TINY_VOCAB);
        tiny_near(got, want, FOLIO_COUNT(got), TOLERANCE, "logits");
    }
    tiny_seq_init(&s, runner, 0, 0);
    cr_expect_eq(feed_launches(&s, N_TOK, false, -1), MANY_LAUNCHES);
    cr_expect_eq(feed_launches(&s, FEW, false, -1), FEW_LAUNCHES);
    cr_expect_eq(feed_launches(&s, 1, false, -1), FEW_LAUNCHES);
    /* The head of so many rows: gather, norm and rounding, product. */
    cr_expect_eq(feed_launches(&s, N_TOK, true, -1), MANY_LAUNCHES + 2);
}

/* Other products than those on matrix units gain nothing, and a trace taps
 * what only the plain form has. */
Test(model_many, plain_elsewhere, .init = set_up, .fini = tear_down,
     .timeout = 300)
{
    tiny_seq s;
    params.deterministic = 0;
    params.fused = 1;
    params.trace = 1;
    open_on("host", "raw", false);
    cr_expect_eq(runner->low.many.n_nodes, 0);
    tiny_seq_init(&s, runner, 0, 0);
    cr_expect_eq(feed_launches(&s, N_TOK, true, -1), PLAIN_LAUNCHES);
    cr_expect_eq(feed_launches(&s, N_TOK, true, 1), PLAIN_LAUNCHES);
}
