/* What each part of a block is for, shown by taking it away or exchanging it:
 * residual, norms, gate and up, the head; and the trace, which shows it layer
 * by layer. */
#include "unit/support_tiny_llama.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

static tiny_llama tiny;
static folio_device *dev;
static folio_model *model;
static folio_runner *runner;

static const int32_t ids[] = {1, 2, 3, 17, 60, 5, 5, 9, 33};
#define N       ((int32_t)FOLIO_COUNT(ids))
#define N_LINES (TINY_LAYERS + 2)

static void set_up(void)
{
    tiny_init(&tiny);
    dev = tiny_device(&tiny, "host", 0);
}

static void tear_down(void)
{
    folio_runner_close(&runner);
    folio_model_close(&model);
    folio_device_close(&dev);
    tiny_fini(&tiny);
}

/* Logits [N, TINY_VOCAB] of the model as it stands, and the residual stream of
 * the last token [N_LINES, TINY_DIM]. */
static void run(float *logits, float *trace)
{
    static tiny_batch b;
    folio_runner_params p;
    tiny_seq s;
    folio_runner_close(&runner);
    folio_model_close(&model);
    tiny_save(&tiny);
    model = tiny_open(&tiny, dev);
    tiny_params(&p);
    p.trace = 1;
    runner = tiny_runner(model, &p);
    tiny_seq_init(&s, runner, 0, 0);
    tiny_batch_init(&b);
    tiny_batch_add(&b, &s, ids, N, true);
    TINY_OK(folio_runner_forward(runner, &b.b, N - 1));
    TINY_OK(folio_runner_read(runner, logits));
    TINY_OK(folio_runner_read_trace(runner, trace));
}

static float most_off(const float *a, const float *b, size_t n)
{
    float most = 0.0f;
    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(a[i] - b[i]));
    return most;
}

/* out = w * x / rms(x), then the head: the formulas, in double. */
static void norm_by_hand(const float *x, const float *w, double *out)
{
    double sq = 0.0;
    for (int i = 0; i < TINY_DIM; i++)
        sq += (double)x[i] * (double)x[i];
    double scale = 1.0 / sqrt(sq / TINY_DIM + (double)1e-5f);
    for (int i = 0; i < TINY_DIM; i++)
        out[i] = (double)x[i] * scale * (double)w[i];
}

static void head_by_hand(const double *x, const float *w, float *logits)
{
    for (int v = 0; v < TINY_VOCAB; v++) {
        double sum = 0.0;
        for (int i = 0; i < TINY_DIM; i++)
            sum += x[i] * (double)w[v * TINY_DIM + i];
        logits[v] = (float)sum;
    }
}

Test(model_blocks, zero_projections_leave_the_residual, .init = set_up,
     .fini = tear_down)
{
    static float logits[N * TINY_VOCAB], trace[N_LINES * TINY_DIM];
    float want[TINY_VOCAB];
    double normed[TINY_DIM];
    const float *embed = tiny_find(&tiny, "token_embd.weight")->v;
    tiny_zero(&tiny, "blk.0.attn_output.weight");
    tiny_zero(&tiny, "blk.0.ffn_down.weight");
    run(logits, trace);
    tiny_equal(trace, embed + ids[N - 1] * TINY_DIM, TINY_DIM, "embedding");
    tiny_equal(trace + TINY_DIM, trace, TINY_DIM, "block 0, an identity");
    cr_assert(most_off(trace + 2 * TINY_DIM, trace, TINY_DIM) > 1e-2f);
    /* The whole stack: the head of the normed embedding. */
    tiny_zero(&tiny, "blk.1.attn_output.weight");
    tiny_zero(&tiny, "blk.1.ffn_down.weight");
    run(logits, trace);
    tiny_equal(trace + 2 * TINY_DIM, trace, TINY_DIM, "block 1, an identity");
    for (int t = 0; t < N; t++) {
        norm_by_hand(embed + ids[t] * TINY_DIM,
                     tiny_find(&tiny, "output_norm.weight")->v, normed);
        head_by_hand(normed, embed, want);
        tiny_near(logits + t * TINY_VOCAB, want, TINY_VOCAB, 1e-5f,
                  "head of the normed embedding");
    }
    for (int i = 0; i < TINY_DIM; i++)
        cr_assert(fabs((double)trace[(N_LINES - 1) * TINY_DIM + i] -
                       normed[i]) < 1e-5);
}

/* The trace is the computation: its last line gives the logits. */
Test(model_blocks, trace_ends_in_the_logits, .init = set_up, .fini = tear_down)
{
    static float logits[N * TINY_VOCAB], trace[N_LINES * TINY_DIM];
    float want[TINY_VOCAB];
    double normed[TINY_DIM];
    run(logits, trace);
    norm_by_hand(trace + TINY_LAYERS * TINY_DIM,
                 tiny_find(&tiny, "output_norm.weight")->v, normed);
    for (int i = 0; i < TINY_DIM; i++)
        cr_assert(fabs((double)trace[(N_LINES - 1) * TINY_DIM + i] -
                       normed[i]) < 1e-4);
    head_by_hand(normed, tiny_find(&tiny, "token_embd.weight")->v, want);
    tiny_near(logits + (N - 1) * TINY_VOCAB, want, TINY_VOCAB, 1e-4f, "logits");
}

/* Every tensor counts: each one changed alone moves the last logits. */
Test(model_blocks, every_tensor_counts, .init = set_up, .fini = tear_down)
{
    static float logits[N * TINY_VOCAB], other[N * TINY_VOCAB];
    static float trace[N_LINES * TINY_DIM];
    const size_t last = (size_t)(N - 1) * TINY_VOCAB;
    run(logits, trace);
    for (int i = 0; i < tiny.n; i++) {
        tiny_tensor *t = &tiny.t[i];
        size_t n = (size_t)(t->dims[0] * t->dims[1]);
        float keep[TINY_VOCAB * TINY_DIM];
        cr_assert_leq(n, FOLIO_COUNT(keep));
        memcpy(keep, t->v, n * sizeof *keep);
        for (size_t k = 0; k < n; k++)
            t->v[k] *= 1.5f;
        run(other, trace);
        /* All queries longer, all norms larger, ...: all of them show. */
        cr_assert(most_off(logits + last, other + last, TINY_VOCAB) > 1e-3f,
                  "%s does not count", t->name);
        memcpy(t->v, keep, n * sizeof *keep);
    }
}

/* With attention silenced, the norm before the feed-forward still shows. */
Test(model_blocks, ffn_norm_is_before_the_ffn, .init = set_up,
     .fini = tear_down)
{
    static float logits[N * TINY_VOCAB], other[N * TINY_VOCAB];
    static float trace[N_LINES * TINY_DIM], moved[N_LINES * TINY_DIM];
    tiny_zero(&tiny, "blk.0.attn_output.weight");
    run(logits, trace);
    for (int i = 0; i < TINY_DIM; i++)
        tiny_find(&tiny, "blk.0.attn_norm.weight")->v[i] *= 2.0f;
    run(other, moved);
    tiny_equal(moved + TINY_DIM, trace + TINY_DIM, TINY_DIM, "attention only");
    for (int i = 0; i < TINY_DIM; i++)
        tiny_find(&tiny, "blk.0.ffn_norm.weight")->v[i] *= 2.0f;
    run(other, moved);
    cr_assert(most_off(moved + TINY_DIM, trace + TINY_DIM, TINY_DIM) > 1e-3f);
}

/* SiLU is on the gate: exchanging gate and up is another model. */
Test(model_blocks, gate_is_not_up, .init = set_up, .fini = tear_down)
{
    static float logits[N * TINY_VOCAB], other[N * TINY_VOCAB];
    static float trace[N_LINES * TINY_DIM];
    run(logits, trace);
    tiny_tensor *g = tiny_find(&tiny, "blk.1.ffn_gate.weight");
    tiny_tensor *u = tiny_find(&tiny, "blk.1.ffn_up.weight");
    float *v = g->v;
    g->v = u->v;
    u->v = v;
    run(other, trace);
    cr_assert(most_off(logits, other, N * TINY_VOCAB) > 1e-2f);
}

/* Query heads 0..3 read KV head 0, 4..7 KV head 1. */
Test(model_blocks, heads_share_kv_in_order, .init = set_up, .fini = tear_down)
{
    static float logits[N * TINY_VOCAB];
    static float trace[N_LINES * TINY_DIM], moved[N_LINES * TINY_DIM];
    tiny_zero(&tiny, "blk.0.ffn_down.weight");
    /* Only head 3 reaches the residual. */
    tiny_tensor *o = tiny_find(&tiny, "blk.0.attn_output.weight");
    for (int r = 0; r < TINY_DIM; r++)
        for (int c = 0; c < TINY_HEADS * TINY_HD; c++)
            if (c / TINY_HD != 3)
                o->v[r * TINY_HEADS * TINY_HD + c] = 0.0f;
    run(logits, trace);
    tiny_tensor *v = tiny_find(&tiny, "blk.0.attn_v.weight");
    for (int i = 0; i < TINY_HD * TINY_DIM; i++)
        v->v[TINY_HD * TINY_DIM + i] += 1.0f; /* KV head 1 */
    run(logits, moved);
    tiny_equal(moved + TINY_DIM, trace + TINY_DIM, TINY_DIM, "the other head");
    for (int i = 0; i < TINY_HD * TINY_DIM; i++)
        v->v[i] += 1.0f; /* KV head 0 */
    run(logits, moved);
    cr_assert(most_off(moved + TINY_DIM, trace + TINY_DIM, TINY_DIM) > 1e-2f);
}

Test(model_blocks, head_of_its_own, .init = set_up, .fini = tear_down)
{
    static float tied[N * TINY_VOCAB], own[N * TINY_VOCAB];
    static float trace[N_LINES * TINY_DIM];
    folio_model_info t = {.size = sizeof t}, u = {.size = sizeof u};
    run(tied, trace);
    folio_model_get_info(model, &t);
    tiny_tensor *head =
        tiny_add_copy(&tiny, "token_embd.weight", "output.weight");
    run(own, trace);
    tiny_equal(own, tied, N * TINY_VOCAB, "an equal head");
    folio_model_get_info(model, &u);
    /* Shared storage counts once. */
    const uint64_t block =
        2 * TINY_DIM + 2 * 32 * 32 + 2 * 8 * 32 + 3 * 48 * 32;
    cr_assert_eq(t.n_params, 64 * 32 + 2 * block + 32 + 2, "%llu",
                 (unsigned long long)t.n_params);
    cr_assert_eq(u.n_params, t.n_params + 64 * 32);
    cr_assert_geq(u.weight_bytes, t.weight_bytes + 64 * 32 * sizeof(float));
    for (int i = 0; i < TINY_VOCAB * TINY_DIM; i++)
        head->v[i] *= 2.0f;
    run(own, trace);
    for (int i = 0; i < N * TINY_VOCAB; i++)
        cr_assert(fabsf(own[i] - 2.0f * tied[i]) < 1e-4f);
}

/* Plain RoPE without the factors; halves and pairs are not the same. */
Test(model_blocks, rope_factors_count, .init = set_up, .fini = tear_down)
{
    static float scaled[N * TINY_VOCAB], plain[N * TINY_VOCAB];
    static float trace[N_LINES * TINY_DIM];
    run(scaled, trace);
    tiny_tensor *f = tiny_find(&tiny, "rope_freqs.weight");
    cr_assert(fabsf(f->v[0] - 1.0f) < 1e-6f);
    cr_assert(fabs(sqrt(1.0 / 5e5) / (double)f->v[1] - 4.29556705e-4) < 1e-9);
    f->left_out = true;
    run(plain, trace);
    cr_assert(most_off(scaled, plain, N * TINY_VOCAB) > 1e-5f);
    /* Position 0 is not rotated at all. */
    tiny_equal(scaled, plain, TINY_VOCAB, "position 0");
}
