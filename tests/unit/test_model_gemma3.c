/* Gemma 3 by its formulas: a small model of one windowed and one full layer,
 * computed here in doubles from the same numbers, and what its metadata may be.
 * The real model is held by tests/golden. */
#include "unit/support_tiny_llama.h"

#include "model/model_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define N      11
#define EPS    1e-5
#define WINDOW 3

static tiny_llama tiny;
static folio_device *dev;

static void set_up(void)
{
    static const char *const post[] = {"post_attention_norm", "post_ffw_norm"};
    static const char *const head[] = {"attn_q_norm", "attn_k_norm"};
    char name[48];
    tiny_init(&tiny);
    tiny.arch = "gemma3";
    tiny_find(&tiny, "rope_freqs.weight")->left_out = true;
    for (int l = 0; l < TINY_LAYERS; l++)
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, post[i]);
            tiny_tensor *t = tiny_add_copy(&tiny, "output_norm.weight", name);
            for (int j = 0; j < TINY_DIM; j++)
                t->v[j] *= 1.0f + 0.03f * (float)((j * 7 + i + l) % 5);
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, head[i]);
            t = tiny_add_copy(&tiny, "output_norm.weight", name);
            t->dims[0] = TINY_HD;
            for (int j = 0; j < TINY_HD; j++)
                t->v[j] += 0.1f * (float)(i + l);
        }
    dev = tiny_device(&tiny, "host", 0);
}

static void tear_down(void)
{
    folio_device_close(&dev);
    tiny_fini(&tiny);
}

/* The file with a window; every layer `pattern` sees everything. */
static void put_windowed(gguf_writer *w, uint32_t window, uint32_t pattern)
{
    tiny_put(&tiny, w);
    gguf_put_u32(w, "gemma3.attention.sliding_window", window);
    if (pattern)
        gguf_put_u32(w, "gemma3.attention.sliding_window_pattern", pattern);
}

static void save(gguf_writer *w)
{
    cr_assert(gguf_writer_save(w, tiny.path));
    gguf_writer_fini(w);
}

/* ---- the formulas -------------------------------------------------------- */

static const float *weight(int layer, const char *name)
{
    char full[48];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    return tiny_find(&tiny, full)->v;
}

static void norm(const double *x, const float *w, int n, double *out)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    double by = 1.0 / sqrt(sum / n + EPS);
    for (int i = 0; i < n; i++)
        out[i] = x[i] * by * (double)w[i];
}

static void multiply(const float *w, int rows, int cols, const double *x,
                     double *y)
{
    for (int r = 0; r < rows; r++) {
        y[r] = 0.0;
        for (int c = 0; c < cols; c++)
            y[r] += (double)w[r * cols + c] * x[c];
    }
}

/* Norms each head, then turns dims i and i + HD / 2. */
static void turn_heads(double *x, int heads, const float *w, int pos,
                       double base)
{
    for (int h = 0; h < heads; h++, x += TINY_HD) {
        norm(x, w, TINY_HD, x);
        for (int i = 0; i < TINY_HD / 2; i++) {
            double angle = pos * pow(base, -2.0 * i / TINY_HD);
            double a = x[i], b = x[i + TINY_HD / 2];
            x[i] = a * cos(angle) - b * sin(angle);
            x[i + TINY_HD / 2] = a * sin(angle) + b * cos(angle);
        }
    }
}

typedef struct layer_state {
    double k[N][TINY_KV_HEADS * TINY_HD], v[N][TINY_KV_HEADS * TINY_HD];
} layer_state;

static void attend(const layer_state *s, const double *q, int pos, int window,
                   double *out)
{
    for (int h = 0; h < TINY_HEADS; h++) {
        int kv = h / (TINY_HEADS / TINY_KV_HEADS) * TINY_HD;
        double p[N] = {0}, sum = 0.0;
        for (int j = 0; j <= pos; j++) {
            if (window && j <= pos - window)
                continue;
            for (int d = 0; d < TINY_HD; d++)
                p[j] += q[h * TINY_HD + d] * s->k[j][kv + d];
            p[j] = exp(p[j] / sqrt(TINY_HD));
            sum += p[j];
        }
        for (int d = 0; d < TINY_HD; d++) {
            double o = 0.0;
            for (int j = 0; j <= pos; j++)
                o += p[j] / sum * s->v[j][kv + d];
            out[h * TINY_HD + d] = o;
        }
    }
}

static void add_normed(double *x, const double *y, const float *w)
{
    double n[TINY_DIM];
    norm(y, w, TINY_DIM, n);
    for (int i = 0; i < TINY_DIM; i++)
        x[i] += n[i];
}

static void step_layer(layer_state *s, int layer, int pos, int window,
                       double base, double *x)
{
    const double root = 0.79788456080286535588; /* sqrt(2 / pi) */
    double h[TINY_DIM], q[TINY_HEADS * TINY_HD], o[TINY_HEADS * TINY_HD];
    double y[TINY_DIM], gate[TINY_FF], up[TINY_FF];
    enum { KV = TINY_KV_HEADS * TINY_HD };
    norm(x, weight(layer, "attn_norm"), TINY_DIM, h);
    multiply(weight(layer, "attn_q"), TINY_HEADS * TINY_HD, TINY_DIM, h, q);
    multiply(weight(layer, "attn_k"), KV, TINY_DIM, h, s->k[pos]);
    multiply(weight(layer, "attn_v"), KV, TINY_DIM, h, s->v[pos]);
    turn_heads(q, TINY_HEADS, weight(layer, "attn_q_norm"), pos, base);
    turn_heads(s->k[pos], TINY_KV_HEADS, weight(layer, "attn_k_norm"), pos,
               base);
    attend(s, q, pos, window, o);
    multiply(weight(layer, "attn_output"), TINY_DIM, TINY_HEADS * TINY_HD, o,
             y);
    add_normed(x, y, weight(layer, "post_attention_norm"));
    norm(x, weight(layer, "ffn_norm"), TINY_DIM, h);
    multiply(weight(layer, "ffn_gate"), TINY_FF, TINY_DIM, h, gate);
    multiply(weight(layer, "ffn_up"), TINY_FF, TINY_DIM, h, up);
    for (int i = 0; i < TINY_FF; i++) {
        double g = gate[i];
        g *= 0.5 * (1.0 + tanh(root * (g + 0.044715 * g * g * g)));
        gate[i] = g * up[i];
    }
    multiply(weight(layer, "ffn_down"), TINY_DIM, TINY_FF, gate, y);
    add_normed(x, y, weight(layer, "post_ffw_norm"));
}

/* Logits after each of N ids; layer 0 has the window, layer 1 sees all. */
static void by_formulas(const int32_t *ids, int window, float *logits)
{
    static layer_state s[TINY_LAYERS];
    const float *embed = tiny_find(&tiny, "token_embd.weight")->v;
    for (int pos = 0; pos < N; pos++) {
        double x[TINY_DIM], row[TINY_VOCAB];
        for (int i = 0; i < TINY_DIM; i++)
            x[i] = (double)embed[ids[pos] * TINY_DIM + i] * sqrt(TINY_DIM);
        step_layer(&s[0], 0, pos, window, 10000.0, x);
        step_layer(&s[1], 1, pos, 0, 5e5, x);
        norm(x, tiny_find(&tiny, "output_norm.weight")->v, TINY_DIM, x);
        multiply(embed, TINY_VOCAB, TINY_DIM, x, row);
        for (int i = 0; i < TINY_VOCAB; i++)
            logits[pos * TINY_VOCAB + i] = (float)row[i];
    }
}

static const int32_t ids[N] = {1, 2, 3, 63, 0, 31, 17, 2, 2, 40, 9};

static void check_logits(const char *device, int32_t chunk)
{
    static float want[N * TINY_VOCAB], got[N * TINY_VOCAB];
    gguf_writer w;
    folio_runner_params p;
    tiny_seq seq;
    folio_device *on = tiny_device(&tiny, device, 0);
    if (!on)
        return;
    put_windowed(&w, WINDOW, 2);
    save(&w);
    by_formulas(ids, WINDOW, want);
    folio_model *model = tiny_open(&tiny, on);
    tiny_params(&p);
    folio_runner *r = tiny_runner(model, &p);
    tiny_seq_init(&seq, r, 0, 7);
    tiny_feed(r, &seq, ids, N, chunk, true, got);
    tiny_near(got, want, N * TINY_VOCAB, 2e-4f, device);
    folio_runner_close(&r);
    folio_model_close(&model);
    folio_device_close(&on);
}

Test(model_gemma3, by_the_formulas, .init = set_up, .fini = tear_down)
{
    check_logits("host", 0);
    check_logits("host", 1);
}

Test(model_gemma3, by_the_formulas_on_pocl, .init = set_up, .fini = tear_down)
{
    check_logits("pocl", 0);
    check_logits("pocl", 4);
}

/* A window off by one is another model: the check above would see it. */
Test(model_gemma3, the_window_shows, .init = set_up, .fini = tear_down)
{
    static float a[N * TINY_VOCAB], b[N * TINY_VOCAB];
    float most = 0.0f;
    by_formulas(ids, WINDOW, a);
    by_formulas(ids, WINDOW + 1, b);
    for (int i = 0; i < N * TINY_VOCAB; i++)
        most = fmaxf(most, fabsf(a[i] - b[i]));
    cr_assert_gt(most, 1e-2f);
}

Test(model_gemma3, metadata, .init = set_up, .fini = tear_down)
{
    gguf_writer w;
    put_windowed(&w, 512, 0);
    gguf_put_f32(&w, "gemma3.rope.freq_base_swa", 20000.0f);
    gguf_put_f32(&w, "gemma3.attention.scale", 0.25f);
    save(&w);
    folio_model *model = tiny_open(&tiny, dev);
    const folio_model_desc *d = &model->desc;
    cr_assert_eq(d->n_ropes, 2);
    cr_assert_eq(d->rope[0].theta, 5e5);
    cr_assert_eq(d->rope[1].theta, 20000.0);
    cr_assert_eq(d->attn_scale, 0.25f);
    for (int l = 0; l < TINY_LAYERS; l++) {
        /* Five of six. */
        cr_assert_eq(d->layers[l].window, 512);
        cr_assert_eq(d->layers[l].rope, 1);
    }
    folio_model_close(&model);

    tiny.skip_key = "gemma3.rope.freq_base";
    tiny_save(&tiny);
    model = tiny_open(&tiny, dev);
    cr_assert_eq(model->desc.rope[0].theta, 1e6);
    cr_assert_eq(model->desc.rope[1].theta, 1e4);
    folio_model_close(&model);
}

static void refused(const char *key, float v, folio_status want)
{
    gguf_writer w;
    folio_model_params p;
    folio_model *model = NULL;
    put_windowed(&w, WINDOW, 2);
    gguf_put_f32(&w, key, v);
    save(&w);
    folio_model_params_default(&p);
    p.log = tiny_log(&tiny);
    cr_assert_eq(folio_model_open(dev, tiny.path, &p, &model), want, "%s", key);
    cr_assert_null(model);
    cr_assert_not_null(strstr(tiny.ear.err, key), "%s", tiny.ear.err);
}

Test(model_gemma3, refused_by_name, .init = set_up, .fini = tear_down)
{
    refused("gemma3.rope.freq_base_swa", 1.0f, FOLIO_E_FORMAT);
    refused("gemma3.attention.scale", 0.0f, FOLIO_E_FORMAT);
    refused("gemma3.attn_logit_softcapping", -1.0f, FOLIO_E_FORMAT);
    refused("gemma3.final_logit_softcapping", 30.0f, FOLIO_E_UNSUPPORTED);
}

Test(model_gemma3, every_norm_is_needed, .init = set_up, .fini = tear_down)
{
    for (int i = 0; i < tiny.n; i++) {
        folio_model_params p;
        folio_model *model = NULL;
        if (!strstr(tiny.t[i].name, "norm"))
            continue;
        tiny.t[i].left_out = true;
        tiny_save(&tiny);
        folio_model_params_default(&p);
        p.log = tiny_log(&tiny);
        cr_assert_eq(folio_model_open(dev, tiny.path, &p, &model),
                     FOLIO_E_FORMAT, "%s", tiny.t[i].name);
        cr_assert_not_null(strstr(tiny.ear.err, tiny.t[i].name));
        tiny.t[i].left_out = false;
    }
}
