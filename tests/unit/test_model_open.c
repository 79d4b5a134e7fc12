/* Opening models and runners: what a file may lack or have too much, what the
 * parameters may be, out of memory at every allocation, cancelling, closing in
 * any order; and that a step allocates nothing. */
#include "unit/support_tiny_llama.h"

#include "device/impl.h"
#include "ops/ops.h"
#include "unit/fail_alloc.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static tiny_llama tiny;
static folio_device *dev;

static void set_up(void)
{
    tiny_init(&tiny);
    dev = tiny_device(&tiny, "host", 0);
}

static void tear_down(void)
{
    folio_device_close(&dev);
    tiny_fini(&tiny);
}

/* Opens what is at tiny.path: refused, with one error that has the words. */
static void refused(folio_status want, const char *words)
{
    folio_model_params p;
    folio_model *model = NULL;
    uint64_t live = atomic_load(&dev->live_bytes);
    int errs = tiny.ear.n_err;
    folio_model_params_default(&p);
    p.log = tiny_log(&tiny);
    folio_status st = folio_model_open(dev, tiny.path, &p, &model);
    cr_assert_eq(st, want, "'%s': %s instead of %s (%s)", words,
                 folio_status_name(st), folio_status_name(want), tiny.ear.err);
    cr_assert_null(model);
    cr_assert_eq(tiny.ear.n_err, errs + 1, "'%s': one message", words);
    cr_assert_not_null(strstr(tiny.ear.err, words), "no '%s' in: %s", words,
                       tiny.ear.err);
    cr_assert_eq(atomic_load(&dev->live_bytes), live, "buffers stayed");
}

static void refused_as_saved(folio_status want, const char *words)
{
    tiny_save(&tiny);
    refused(want, words);
}

Test(model_open, every_tensor_is_needed, .init = set_up, .fini = tear_down)
{
    for (int i = 0; i < tiny.n; i++) {
        if (strcmp(tiny.t[i].name, "rope_freqs.weight") == 0)
            continue;
        tiny.t[i].left_out = true;
        refused_as_saved(FOLIO_E_FORMAT, tiny.t[i].name);
        cr_assert_not_null(strstr(tiny.ear.err, "missing"));
        tiny.t[i].left_out = false;
    }
    tiny_save(&tiny);
    folio_model *model = tiny_open(&tiny, dev);
    folio_model_close(&model);
}

Test(model_open, every_shape_is_checked, .init = set_up, .fini = tear_down)
{
    for (int i = 0; i < tiny.n; i++) {
        tiny_tensor *t = &tiny.t[i];
        /* The number of tokens is what the embedding says. */
        bool rows_free = strcmp(t->name, "token_embd.weight") == 0;
        for (int d = rows_free ? 1 : 0; d < 2; d++) {
            const tiny_tensor keep = *t;
            if (rows_free)
                t->dims[0] /= 2;
            else if (d == 0)
                t->dims[0] /= 2;
            else if (t->n_dims > 1)
                t->dims[1] -= 1;
            else
                t->dims[0] -= 1;
            refused_as_saved(FOLIO_E_FORMAT, keep.name);
            *t = keep;
        }
        /* The same numbers the other way round, where that is another shape. */
        if (t->n_dims > 1 && t->dims[0] != t->dims[1]) {
            uint64_t cols = t->dims[0];
            t->dims[0] = t->dims[1];
            t->dims[1] = cols;
            refused_as_saved(FOLIO_E_FORMAT, t->name);
            t->dims[1] = t->dims[0];
            t->dims[0] = cols;
        }
    }
}

Test(model_open, both_shapes_are_told, .init = set_up, .fini = tear_down)
{
    tiny_find(&tiny, "blk.1.attn_k.weight")->dims[1] = 4;
    refused_as_saved(FOLIO_E_FORMAT, "[4, 32]");
    cr_assert_not_null(strstr(tiny.ear.err, "[8, 32]"), "%s", tiny.ear.err);
    tiny_find(&tiny, "blk.1.attn_k.weight")->dims[1] = 8;
    tiny_tensor *head =
        tiny_add_copy(&tiny, "token_embd.weight", "output.weight");
    head->dims[1] = 63;
    refused_as_saved(FOLIO_E_FORMAT, "output.weight");
}

Test(model_open, extra_tensors_are_told_of, .init = set_up, .fini = tear_down)
{
    tiny_save(&tiny);
    folio_model *model = tiny_open(&tiny, dev);
    cr_assert_eq(tiny.ear.n_warn, 0, "%s", tiny.ear.warn);
    folio_model_close(&model);
    tiny_add_copy(&tiny, "output_norm.weight", "blk.0.attn_sub_norm.weight");
    tiny_save(&tiny);
    model = tiny_open(&tiny, dev);
    cr_assert_eq(tiny.ear.n_warn, 1);
    cr_assert_not_null(strstr(tiny.ear.warn, "blk.0.attn_sub_norm.weight"));
    folio_model_close(&model);
}

Test(model_open, metadata, .init = set_up, .fini = tear_down)
{
    const char *const needed[] = {
        "general.architecture",       "llama.embedding_length",
        "llama.block_count",          "llama.feed_forward_length",
        "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"};
    for (size_t i = 0; i < FOLIO_COUNT(needed); i++) {
        tiny.skip_key = needed[i];
        refused_as_saved(FOLIO_E_FORMAT, needed[i]);
    }
    const struct {
        const char *key;
        double v;
        bool num;
        folio_status st;
        const char *words;
    } bad[] = {
        {"llama.attention.head_count", 7, false, FOLIO_E_FORMAT, "7"},
        {"llama.attention.head_count", 0, false, FOLIO_E_FORMAT, "head_count"},
        {"llama.attention.head_count_kv", 3, false, FOLIO_E_FORMAT, "3"},
        {"llama.block_count", 0, false, FOLIO_E_FORMAT, "block_count"},
        {"llama.embedding_length", 0, false, FOLIO_E_FORMAT,
         "embedding_length"},
        {"llama.feed_forward_length", 0, false, FOLIO_E_FORMAT,
         "feed_forward_length"},
        {"llama.context_length", 0, false, FOLIO_E_FORMAT, "context_length"},
        {"llama.rope.dimension_count", 3, false, FOLIO_E_FORMAT, "3"},
        {"llama.rope.dimension_count", 6, false, FOLIO_E_FORMAT, "6"},
        {"llama.rope.freq_base", 0.0, true, FOLIO_E_FORMAT, "freq_base"},
        {"llama.rope.freq_base", (double)NAN, true, FOLIO_E_FORMAT,
         "freq_base"},
        {"llama.attention.layer_norm_rms_epsilon", -1.0, true, FOLIO_E_FORMAT,
         "epsilon"},
        {"llama.rope.scaling.factor", 0.0, true, FOLIO_E_FORMAT, "factor"},
        {"llama.expert_count", 8, false, FOLIO_E_UNSUPPORTED, "8 experts"},
        {"llama.attention.value_length", 8, false, FOLIO_E_UNSUPPORTED, "8"},
    };
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++) {
        gguf_writer w;
        tiny.skip_key = bad[i].key;
        tiny_put(&tiny, &w);
        if (bad[i].num)
            gguf_put_f32(&w, bad[i].key, (float)bad[i].v);
        else
            gguf_put_u32(&w, bad[i].key, (uint32_t)bad[i].v);
        cr_assert(gguf_writer_save(&w, tiny.path));
        gguf_writer_fini(&w);
        refused(bad[i].st, bad[i].words);
    }
    gguf_writer w;
    tiny.skip_key = NULL;
    tiny_put(&tiny, &w);
    gguf_put_str(&w, "llama.rope.scaling.type", "dynamic");
    cr_assert(gguf_writer_save(&w, tiny.path));
    gguf_writer_fini(&w);
    refused(FOLIO_E_UNSUPPORTED, "dynamic");
}

/* An unknown architecture is named as such, an unknown tensor type as such;
 * neither is taken for the other. */
Test(model_open, architecture_and_type_are_told_apart, .init = set_up,
     .fini = tear_down)
{
    tiny.arch = "mamba";
    refused_as_saved(FOLIO_E_UNSUPPORTED, "architecture \"mamba\"");
    cr_assert_not_null(strstr(tiny.ear.err, "llama"), "%s", tiny.ear.err);
    cr_assert_null(strstr(tiny.ear.err, "type"), "%s", tiny.ear.err);
    tiny.arch = "llama4"; /* not a prefix match */
    refused_as_saved(FOLIO_E_UNSUPPORTED, "architecture \"llama4\"");
    tiny.arch = "llam";
    refused_as_saved(FOLIO_E_UNSUPPORTED, "architecture \"llam\"");
    tiny.arch = "llama";

    /* 39 is a type that is known since 2025: here its bytes are read. */
    const uint32_t types[] = {16, 24, 9999, 39};
    const char *const names[] = {"IQ2_XXS", "I8", "9999", NULL};
    for (size_t i = 0; i < FOLIO_COUNT(types); i++) {
        gguf_writer w;
        size_t size;
        tiny_put(&tiny, &w);
        uint8_t *data = gguf_writer_build(&w, &size);
        for (size_t t = 0; t < w.n_tensors; t++)
            if (strcmp(w.tensors[t].name, "blk.0.ffn_up.weight") == 0)
                gguf_patch(data, w.tensors[t].type_at, 4, types[i]);
        cr_assert(gguf_save_bytes(tiny.path, data, size));
        free(data);
        gguf_writer_fini(&w);
        if (!names[i]) {
            folio_model *model = tiny_open(&tiny, dev);
            folio_model_close(&model);
            continue;
        }
        refused(FOLIO_E_UNSUPPORTED, names[i]);
        cr_assert_not_null(strstr(tiny.ear.err, "blk.0.ffn_up.weight"), "%s",
                           tiny.ear.err);
        cr_assert_null(strstr(tiny.ear.err, "architecture"), "%s",
                       tiny.ear.err);
    }
}

typedef struct watch {
    int calls, stop_at;
    uint64_t last, total;
} watch;

static int watch_load(void *user, uint64_t done, uint64_t total)
{
    watch *w = user;
    cr_assert_leq(done, total);
    cr_assert(w->calls < 2 || done >= w->last, "progress went back");
    w->last = done;
    w->total = total;
    return ++w->calls == w->stop_at;
}

static void progress_on(const char *select)
{
    folio_device *d = tiny_device(&tiny, select, 0);
    if (!d)
        cr_skip_test("no PoCL among the OpenCL devices here");
    folio_model_params p;
    folio_model *model = NULL;
    watch w = {0};
    folio_model_params_default(&p);
    p.log = tiny_log(&tiny);
    p.progress = watch_load;
    p.progress_user = &w;
    TINY_OK(folio_model_open(d, tiny.path, &p, &model));
    cr_assert_geq(w.calls, 2);
    cr_assert_eq(w.last, w.total);
    folio_model_close(&model);
    int calls = w.calls, errs = tiny.ear.n_err;
    uint64_t live = atomic_load(&d->live_bytes);
    cr_assert_eq(live, 0);
    for (int stop = 1; stop <= calls; stop++) {
        w = (watch){.stop_at = stop};
        cr_assert_eq(folio_model_open(d, tiny.path, &p, &model),
                     FOLIO_E_CANCELED);
        cr_assert_null(model);
        cr_assert_eq(w.calls, stop, "called again after it said stop");
        cr_assert_eq(atomic_load(&d->live_bytes), live);
    }
    cr_assert_eq(tiny.ear.n_err, errs, "cancelling is no error");
    folio_device_close(&d);
}

Test(model_open, progress_and_cancel, .init = set_up, .fini = tear_down)
{
    tiny_save(&tiny);
    progress_on("host");
}

Test(model_open, progress_and_cancel_on_pocl, .init = set_up, .fini = tear_down)
{
    tiny_save(&tiny);
    progress_on("pocl");
}

Test(model_open, arguments, .init = set_up, .fini = tear_down)
{
    folio_model_params p;
    folio_model *m = NULL;
    tiny_save(&tiny);
    cr_assert_eq(folio_model_open(NULL, tiny.path, NULL, &m), FOLIO_E_INVAL);
    cr_assert_eq(folio_model_open(dev, NULL, NULL, &m), FOLIO_E_INVAL);
    cr_assert_eq(folio_model_open(dev, tiny.path, NULL, NULL), FOLIO_E_INVAL);
    folio_model_params_default(&p);
    p.size = 1;
    cr_assert_eq(folio_model_open(dev, tiny.path, &p, &m), FOLIO_E_INVAL);
    folio_model_params_default(&p);
    p.max_seqs = 0;
    cr_assert_eq(folio_model_open(dev, tiny.path, &p, &m), FOLIO_E_INVAL);
    cr_assert_null(m);
    TINY_OK(folio_model_open(dev, tiny.path, NULL, &m));
    folio_model_close(&m);
    cr_assert_null(m);
    folio_model_close(&m);
    folio_model_close(NULL);
}

Test(model_open, runner_parameters, .init = set_up, .fini = tear_down)
{
    tiny_save(&tiny);
    folio_model *model = tiny_open(&tiny, dev);
    uint64_t live = atomic_load(&dev->live_bytes);
#define WRONG(change, st, ...)                                                 \
    do {                                                                       \
        folio_runner_params p;                                                 \
        folio_runner *r = NULL;                                                \
        int errs = tiny.ear.n_err;                                             \
        const char *const words[] = {__VA_ARGS__};                             \
        tiny_params(&p);                                                       \
        change;                                                                \
        cr_assert_eq(folio_runner_open(model, &p, &r), (st), "%s", #change);   \
        cr_assert_null(r);                                                     \
        cr_assert_eq(tiny.ear.n_err, errs + 1, "%s: one message", #change);    \
        for (size_t i = 0; i < FOLIO_COUNT(words); i++)                        \
            cr_assert_not_null(strstr(tiny.ear.err, words[i]), "%s: %s",       \
                               #change, tiny.ear.err);                         \
        cr_assert_eq(atomic_load(&dev->live_bytes), live, "%s", #change);      \
    } while (0)
    WRONG(p.size = 4, FOLIO_E_INVAL, "size");
    WRONG(p.max_seqs = 0, FOLIO_E_INVAL, "max_seqs");
    WRONG(p.max_tok = 0, FOLIO_E_INVAL, "max_tok");
    WRONG(p.max_rows = -1, FOLIO_E_INVAL, "max_rows");
    WRONG(p.max_ctx = -1, FOLIO_E_INVAL, "max_ctx");
    WRONG(p.block_size = 0, FOLIO_E_INVAL, "block_size");
    WRONG(p.n_blocks = -1, FOLIO_E_INVAL, "n_blocks");
    WRONG(p.deterministic = 2, FOLIO_E_INVAL, "deterministic");
    WRONG(p.run_ahead = 2, FOLIO_E_INVAL, "run_ahead");
    WRONG(p.kv_type = FOLIO_KV_I8, FOLIO_E_UNSUPPORTED, "KV");
    WRONG(p.max_ctx = TINY_CTX + 1, FOLIO_E_TOO_LARGE, "129", "128");
    WRONG(p.n_blocks = 31, FOLIO_E_TOO_LARGE, "31", "128");
    WRONG((p.n_blocks = 1 << 30, p.block_size = 1 << 10), FOLIO_E_TOO_LARGE,
          "slots");
    WRONG((p.max_seqs = 1 << 30, p.block_size = 1), FOLIO_E_TOO_LARGE, "slots");
    WRONG((p.max_ctx = 100, p.block_size = 300), FOLIO_E_INVAL, "300", "100");
#undef WRONG
    folio_runner *r = NULL;
    folio_runner_params p;
    tiny_params(&p);
    cr_assert_eq(folio_runner_open(NULL, &p, &r), FOLIO_E_INVAL);
    cr_assert_eq(folio_runner_open(model, &p, NULL), FOLIO_E_INVAL);
    /* Defaults: one sequence of what was trained, deterministic on the host. */
    TINY_OK(folio_runner_open(model, NULL, &r));
    folio_runner_info i = {.size = sizeof i};
    folio_runner_get_info(r, &i);
    cr_assert_eq(i.max_ctx, TINY_CTX);
    cr_assert_eq(i.n_blocks * i.block_size, TINY_CTX);
    cr_assert_eq(i.deterministic, 1);
    cr_assert_str_eq(i.arithmetic, "f16");
    cr_assert_not_null(strstr(tiny.ear.info, "plan: 8 blocks of 16 tokens"));
    folio_choice c;
    size_t n = 0;
    while (folio_runner_choice(r, n, &c) == FOLIO_OK) {
        cr_assert(c.op[0] && c.variant[0] && c.what[0]);
        n++;
    }
    cr_assert_geq(n, 7);
    folio_runner_close(&r);
    cr_assert_null(r);
    folio_runner_close(&r);
    folio_model_close(&model);
}

/* Room for more tokens than there are slots is not made, on whatever side the
 * fewer are. */
Test(model_open, no_scratch_beyond_the_pool, .init = set_up, .fini = tear_down)
{
    const struct {
        int32_t seqs, ctx, blocks, slots;
    } at[] = {{1, 32, 0, 32}, {2, 32, 0, 64}, {8, 64, 16, 64}, {2, 8, 16, 16}};
    tiny_save(&tiny);
    folio_model *model = tiny_open(&tiny, dev);
    for (size_t i = 0; i < FOLIO_COUNT(at); i++) {
        folio_runner_info info[2];
        for (int big = 0; big < 2; big++) {
            folio_runner_params p;
            tiny_params(&p);
            p.max_seqs = at[i].seqs;
            p.max_ctx = at[i].ctx;
            p.n_blocks = at[i].blocks;
            p.max_tok = p.max_rows = big ? 1 << 20 : at[i].slots;
            folio_runner *r = tiny_runner(model, &p);
            info[big].size = sizeof info[big];
            folio_runner_get_info(r, &info[big]);
            folio_runner_close(&r);
        }
        cr_expect_eq(info[1].step_tok, at[i].slots, "case %zu", i);
        cr_expect_eq(info[1].scratch_bytes, info[0].scratch_bytes, "case %zu",
                     i);
    }
    folio_model_close(&model);
}

/* Figures of nothing are zero; no more is written than the caller knows of. */
Test(model_open, figures_of_nothing)
{
    folio_model_info m = {.size = offsetof(folio_model_info, n_params),
                          .dim = 7,
                          .weight_bytes = 7};
    folio_runner_info r = {.size = sizeof r, .n_blocks = 7};
    folio_runner_counters c = {.launches = 7};
    folio_model_get_info(NULL, NULL);
    folio_model_get_info(NULL, &m);
    cr_expect_eq(m.size, offsetof(folio_model_info, n_params));
    cr_expect_eq(m.dim, 0);
    cr_expect_eq(m.weight_bytes, 7);
    folio_runner_get_info(NULL, NULL);
    folio_runner_get_info(NULL, &r);
    cr_expect_eq(r.size, sizeof r);
    cr_expect_eq(r.n_blocks, 0);
    cr_expect_null(r.arithmetic);
    folio_runner_get_counters(NULL, NULL);
    folio_runner_get_counters(NULL, &c);
    cr_expect_eq(c.launches, 0);
    cr_expect_eq(folio_model_file_n_meta(NULL), 0);
    cr_expect_eq(folio_model_file_n_tensors(NULL), 0);
}

/* Buffers that cannot hold even one of a thing: both sides are told. */
Test(model_open, limits_of_the_device, .init = set_up, .fini = tear_down)
{
    tiny_save(&tiny);
    const uint64_t limits[] = {64, 128, 200, 256, 512, 516, 600, 1024};
    int opened = 0;
    for (size_t i = 0; i < FOLIO_COUNT(limits); i++) {
        folio_device *d = tiny_device(&tiny, "host", limits[i]);
        folio_model *model = tiny_open(&tiny, d);
        folio_runner *r = NULL;
        folio_runner_params p;
        tiny_params(&p);
        p.max_seqs = 1;
        p.max_ctx = 8;
        int errs = tiny.ear.n_err;
        folio_status st = folio_runner_open(model, &p, &r);
        if (st == FOLIO_OK) {
            float row[TINY_VOCAB];
            tiny_seq s;
            opened++;
            tiny_seq_init(&s, r, 0, 0);
            tiny_feed(r, &s, tiny_goldens[0].prompt, 3, 0, false, row);
            cr_assert_eq(tiny_argmax(row), 28);
        } else {
            cr_assert_eq(st, FOLIO_E_TOO_LARGE, "%llu bytes: %s",
                         (unsigned long long)limits[i], folio_status_name(st));
            cr_assert_null(r);
            cr_assert_eq(tiny.ear.n_err, errs + 1, "%llu bytes: one message",
                         (unsigned long long)limits[i]);
        }
        folio_runner_close(&r);
        folio_model_close(&model);
        cr_assert_eq(atomic_load(&d->live_bytes), 0);
        folio_device_close(&d);
    }
    cr_assert(opened > 0 && opened < (int)FOLIO_COUNT(limits));
}

Test(model_open, closing_in_any_order, .init = set_up, .fini = tear_down)
{
    tiny_save(&tiny);
    /* Runner last: it keeps model and device alive, and goes on computing. */
    for (int order = 0; order < 6; order++) {
        folio_device *d = tiny_device(&tiny, "host", 0);
        folio_model *model = tiny_open(&tiny, d);
        folio_runner_params p;
        tiny_params(&p);
        folio_runner *r = tiny_runner(model, &p);
        const int perms[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                 {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
        for (int k = 0; k < 3; k++) {
            switch (perms[order][k]) {
            case 0:
                folio_device_close(&d);
                break;
            case 1:
                folio_model_close(&model);
                break;
            default:
                folio_runner_close(&r);
                break;
            }
            if (r) {
                float row[TINY_VOCAB];
                tiny_seq s;
                tiny_seq_init(&s, r, 0, 0);
                tiny_feed(r, &s, tiny_goldens[0].prompt, 3, 0, false, row);
                cr_assert_eq(tiny_argmax(row), 28);
            }
        }
    }
    /* Two runners on one model do not know of each other. */
    folio_model *model = tiny_open(&tiny, dev);
    folio_runner_params p;
    tiny_params(&p);
    folio_runner *a = tiny_runner(model, &p), *b = tiny_runner(model, &p);
    float ra[TINY_VOCAB], rb[TINY_VOCAB];
    tiny_seq sa, sb;
    tiny_seq_init(&sa, a, 0, 0);
    tiny_seq_init(&sb, b, 0, 0);
    tiny_feed(a, &sa, tiny_goldens[0].prompt, 3, 0, false, ra);
    tiny_feed(b, &sb, tiny_goldens[1].prompt, 2, 0, false, rb);
    TINY_OK(folio_runner_read(a, ra));
    cr_assert_eq(tiny_argmax(ra), 28);
    cr_assert_eq(tiny_argmax(rb), 54);
    folio_model_close(&model);
    folio_runner_close(&a);
    folio_runner_close(&b);
    cr_assert_eq(atomic_load(&dev->live_bytes), 0, "buffers stayed");
}

Test(model_open, out_of_memory_anywhere, .init = set_up, .fini = tear_down,
     .timeout = 120)
{
    folio_model_params mp;
    folio_runner_params rp;
    folio_model *model = NULL;
    bool more = true;
    int nth = 0;
    tiny_save(&tiny);
    folio_model_params_default(&mp);
    mp.log = tiny_log(&tiny);
    while (more) {
        fail_alloc_arm(++nth);
        folio_status st = folio_model_open(dev, tiny.path, &mp, &model);
        more = fail_alloc_disarm();
        cr_assert(st == (more ? FOLIO_E_NOMEM : FOLIO_OK), "allocation %d: %s",
                  nth, folio_status_name(st));
        cr_assert(more == (model == NULL));
        if (more)
            cr_assert_eq(atomic_load(&dev->live_bytes), 0, "allocation %d",
                         nth);
    }
    cr_assert_geq(nth, 20, "only %d allocations", nth);
    uint64_t live = atomic_load(&dev->live_bytes);
    float want[TINY_VOCAB], got[TINY_VOCAB];
    tiny_seq s;
    int refused_times = 0;
    tiny_params(&rp);
    rp.trace = 1;
    more = true;
    nth = 0;
    folio_runner *usual = tiny_runner(model, &rp);
    tiny_seq_init(&s, usual, 0, 0);
    tiny_feed(usual, &s, tiny_goldens[0].prompt, 3, 0, false, want);
    folio_runner_close(&usual);
    while (more) {
        folio_runner *r = NULL;
        fail_alloc_arm(++nth);
        folio_status st = folio_runner_open(model, &rp, &r);
        more = fail_alloc_disarm();
        cr_assert(st == FOLIO_E_NOMEM || st == FOLIO_OK, "allocation %d: %s",
                  nth, folio_status_name(st));
        cr_assert((st == FOLIO_OK) == (r != NULL), "allocation %d", nth);
        refused_times += st != FOLIO_OK;
        /* What is only remembered may be forgotten, but the runner is the
         * same then. */
        if (r) {
            tiny_seq_init(&s, r, 0, 0);
            tiny_feed(r, &s, tiny_goldens[0].prompt, 3, 0, false, got);
            tiny_equal(got, want, TINY_VOCAB, "short of memory");
        }
        folio_runner_close(&r);
        cr_assert_eq(atomic_load(&dev->live_bytes), live, "allocation %d", nth);
    }
    cr_assert_geq(refused_times, 20, "only %d", refused_times);
    folio_model_close(&model);
}

/* A step allocates nothing: with every allocation refused it still works. */
Test(model_open, a_step_allocates_nothing, .init = set_up, .fini = tear_down)
{
    static tiny_batch b;
    float row[TINY_VOCAB], trace[(TINY_LAYERS + 2) * TINY_DIM];
    int32_t id, nan;
    float v;
    tiny_seq s;
    folio_runner_params p;
    tiny_save(&tiny);
    folio_model *model = tiny_open(&tiny, dev);
    tiny_params(&p);
    p.trace = 1;
    folio_runner *r = tiny_runner(model, &p);
    tiny_seq_init(&s, r, 0, 0);
    const int32_t sizes[] = {40, 1, 1, 9, 1};
    int32_t ids[40] = {0};
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++) {
        tiny_batch_init(&b);
        tiny_batch_add(&b, &s, ids, sizes[i], false);
        fail_alloc_arm(1);
        folio_status st = folio_runner_forward(r, &b.b, sizes[i] - 1);
        if (st == FOLIO_OK)
            st = folio_runner_read(r, row);
        if (st == FOLIO_OK)
            st = folio_runner_read_top(r, 1, &id, &v, &nan);
        if (st == FOLIO_OK)
            st = folio_runner_read_trace(r, trace);
        bool asked = fail_alloc_disarm();
        cr_assert(st == FOLIO_OK && !asked, "step %zu: %s, %s", i,
                  folio_status_name(st), asked ? "it allocated" : "");
    }
    folio_runner_close(&r);
    folio_model_close(&model);
}
