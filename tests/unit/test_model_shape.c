/* Models of random weights: the published numbers, the statistics, every
 * tensor the same in memory and on disk, every bad field by name; what they
 * compute, against the formulas in double, for both families. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "model/shape.h"
#include "format/gguf.h"
#include "ops/ops.h"
#include "unit/fail_alloc.h"
#include "unit/format_util.h"

#include <folio/model.h>
#include <folio/tokenizer.h>
#include <math.h>

#define OK(expr)                                                               \
    do {                                                                       \
        folio_status st_ = (expr);                                             \
        cr_assert_eq(st_, FOLIO_OK, "%s: %s: %s", #expr,                       \
                     folio_status_name(st_), ear.last);                        \
    } while (0)

static gguf_ear ear;
static folio_log said;
static char dir[64], path[96];

static void set_up(void)
{
    memset(&ear, 0, sizeof ear);
    said = (folio_log){gguf_listen, &ear, FOLIO_LOG_WARN};
    make_test_dir(dir);
    snprintf(path, sizeof path, "%s/shape.gguf", dir);
}

static void tear_down(void)
{
    unlink(path);
    rmdir(dir);
}

static folio_model_shape tiny(const char *arch, const char *type)
{
    folio_model_shape s;
    cr_assert_eq(folio_model_shape_find("tiny", &s), FOLIO_OK);
    s.arch = arch;
    s.type = type;
    return s;
}

static folio_device *open_device(const char *select)
{
    folio_device_params p;
    folio_device *dev = NULL;
    folio_device_params_default(&p);
    p.select = select;
    p.n_threads = 2;
    p.log = said;
    const folio_status st = folio_device_open(&p, &dev);
    const char *ci = getenv("CI");
    const bool must = !strcmp(select, "host") || (ci && !strcmp(ci, "true"));
    if (must || st != FOLIO_E_NO_DEVICE)
        cr_assert_eq(st, FOLIO_OK, "%s", ear.last);
    return dev;
}

/* ---- the table ----------------------------------------------------------- */

Test(model_shape, known_ones)
{
    /* Parameters as the makers count them, embedding once where it is tied. */
    static const struct {
        const char *name;
        uint64_t n_params;
    } want[] = {{"llama-3.2-1b", 1235814400},
                {"llama-3.1-8b", 8030261248},
                {"qwen3-4b", 4022468096},
                {"smollm2-135m", 134515008}};
    folio_model_shape s;
    for (size_t i = 0; i < FOLIO_COUNT(want); i++) {
        cr_expect_str_eq(folio_model_shape_name(i), want[i].name);
        cr_assert_eq(folio_model_shape_find(want[i].name, &s), FOLIO_OK);
        cr_expect_eq(s.size, sizeof s);
        cr_expect_str_eq(s.type, "f16");
        const uint64_t d = (uint64_t)s.dim, hd = (uint64_t)s.head_dim;
        const uint64_t q = (uint64_t)s.heads * hd,
                       kv = (uint64_t)s.kv_heads * hd;
        const bool qk = strcmp(s.arch, "qwen3") == 0;
        const uint64_t layer = 2 * d * q + 2 * d * kv +
                               3 * d * (uint64_t)s.ff_dim + 2 * d +
                               (qk ? 2 * hd : 0);
        const uint64_t n = (uint64_t)s.n_layers * layer + d +
                           (s.tied ? 1u : 2u) * d * (uint64_t)s.n_vocab;
        cr_expect_eq(n, want[i].n_params, "%s: %llu", want[i].name,
                     (unsigned long long)n);
    }
    cr_expect_str_eq(folio_model_shape_name(4), "tiny");
    cr_expect_null(folio_model_shape_name(5));
    cr_expect_eq(folio_model_shape_find("llama-4", &s), FOLIO_E_NOT_FOUND);
    cr_expect_eq(folio_model_shape_find(NULL, &s), FOLIO_E_INVAL);
    cr_expect_eq(folio_model_shape_find("tiny", NULL), FOLIO_E_INVAL);
}

static void refuse(const folio_model_shape *s, const char *word)
{
    uint8_t *image = NULL;
    size_t size = 0;
    ear.n = 0;
    cr_expect_eq(folio_shape_image(s, &said, &image, &size), FOLIO_E_INVAL,
                 "%s", word);
    cr_expect_null(image);
    cr_expect_eq(ear.n, 1);
    cr_expect_not_null(strstr(ear.last, word), "no '%s' in: %s", word,
                       ear.last);
}

Test(model_shape, refuses_fields_by_name, .init = set_up, .fini = tear_down)
{
    const folio_model_shape good = tiny("llama", "f16");
    folio_model_shape s = good;
    const struct {
        const char *name;
        int32_t *at;
    } ints[] = {{"n_vocab", &s.n_vocab},   {"dim", &s.dim},
                {"n_layers", &s.n_layers}, {"heads", &s.heads},
                {"kv_heads", &s.kv_heads}, {"head_dim", &s.head_dim},
                {"ff_dim", &s.ff_dim},     {"ctx_train", &s.ctx_train}};
    for (size_t i = 0; i < FOLIO_COUNT(ints); i++) {
        *ints[i].at = 0;
        refuse(&s, ints[i].name);
        s = good;
    }
    s.tied = 2;
    refuse(&s, "tied");
    s = good;
    s.size--;
    refuse(&s, "size");
    s = good;
    s.type = "q5_0";
    refuse(&s, "q5_0");
    s.type = NULL;
    refuse(&s, "NULL");
    s = good;
    s.arch = "gpt2";
    refuse(&s, "gpt2");
    s = good;
    s.name = NULL;
    refuse(&s, "name");
    s = good;
    s.kv_heads = 3;
    refuse(&s, "multiple");
    s = good;
    s.rope_theta = 1.0;
    refuse(&s, "rope_theta");
    s = good;
    s.rope_factor = 0.5;
    refuse(&s, "rope_factor");
    s = good;
    s.norm_eps = NAN;
    refuse(&s, "norm_eps");
    s = good;
    s.type = "q8_0";
    s.ff_dim = 250;
    refuse(&s, "250");
    cr_expect_eq(folio_model_shape_write(NULL, path, &said), FOLIO_E_INVAL);
    cr_expect_eq(folio_model_shape_write(&good, NULL, &said), FOLIO_E_INVAL);
    s = good;
    cr_expect_eq(folio_model_open_shape(NULL, &s, NULL, NULL), FOLIO_E_INVAL);
}

/* ---- bytes --------------------------------------------------------------- */

static void check_statistics(const folio_tensor_info *t)
{
    const uint64_t rows = t->dims[1], n = t->dims[0];
    float *row = malloc((size_t)n * sizeof *row);
    double sum = 0.0, sq = 0.0;
    cr_assert_not_null(row);
    for (uint64_t r = 0; r < rows; r++) {
        folio_dequant(t->type, t->data + r * (t->bytes / rows), (int64_t)n,
                      row);
        for (uint64_t c = 0; c < n; c++) {
            cr_assert(isfinite(row[c]), "%s", t->name);
            sum += row[c];
            sq += (double)row[c] * row[c];
        }
    }
    const double count = (double)(n * rows), mean = sum / count;
    const double dev = sqrt(sq / count - mean * mean);
    if (t->n_dims == 1)
        cr_expect(fabs(mean - 1.0) < 0.05 && dev < 0.1, "%s: %g, %g", t->name,
                  mean, dev);
    else
        cr_expect(fabs(mean) < 0.002 && fabs(dev / 0.02 - 1.0) < 0.06,
                  "%s: %g, %g", t->name, mean, dev);
    free(row);
}

Test(model_shape, numbers_are_as_said, .init = set_up, .fini = tear_down)
{
    static const struct {
        const char *name;
        folio_type type;
    } types[] = {{"f16", FOLIO_TYPE_F16},
                 {"q8_0", FOLIO_TYPE_Q8_0},
                 {"q4_0", FOLIO_TYPE_Q4_0}};
    for (size_t i = 0; i < FOLIO_COUNT(types); i++) {
        folio_model_shape s = tiny("qwen3", types[i].name);
        uint8_t *image, *again;
        size_t size, n;
        folio_gguf *g = NULL;
        s.tied = 0;
        OK(folio_shape_image(&s, &said, &image, &size));
        OK(folio_gguf_open_memory(image, size, &said, &g));
        cr_expect_eq(folio_gguf_n_tensors(g), 3 + (size_t)s.n_layers * 11);
        for (size_t t = 0; t < folio_gguf_n_tensors(g); t++) {
            const folio_tensor_info *ti = folio_gguf_tensor_at(g, t);
            cr_expect_eq(ti->type,
                         ti->n_dims == 1 ? FOLIO_TYPE_F32 : types[i].type);
            check_statistics(ti);
        }
        /* The same again; other numbers in every tensor with another seed. */
        OK(folio_shape_image(&s, &said, &again, &n));
        cr_assert_eq(n, size);
        cr_expect_eq(memcmp(image, again, size), 0);
        folio_aligned_free(again);
        s.seed = 2;
        OK(folio_shape_image(&s, &said, &again, &n));
        for (size_t t = 0; t < folio_gguf_n_tensors(g); t++) {
            const folio_tensor_info *ti = folio_gguf_tensor_at(g, t);
            cr_expect_neq(
                memcmp(ti->data, again + (ti->data - image), ti->bytes), 0,
                "%s", ti->name);
        }
        folio_aligned_free(again);
        folio_gguf_close(&g);
        folio_aligned_free(image);
    }
}

Test(model_shape, rope_factors_are_llama_3s, .init = set_up, .fini = tear_down)
{
    folio_model_shape s = tiny("llama", "f16");
    uint8_t *image;
    size_t size;
    folio_gguf *g = NULL;
    float f[16];
    s.rope_theta = 5e5;
    s.rope_factor = 32.0;
    OK(folio_shape_image(&s, &said, &image, &size));
    OK(folio_gguf_open_memory(image, size, &said, &g));
    const folio_tensor_info *t = folio_gguf_tensor(g, "rope_freqs.weight");
    cr_assert(t && t->dims[0] == 16 && t->type == FOLIO_TYPE_F32);
    memcpy(f, t->data, sizeof f);
    /* Wavelengths: 2 pi 5e5^(i/16), 1,956, 4,443 and 10,089 at 7, 8 and 9;
     * the ramp lies between 2,048 and 8,192. */
    cr_expect_eq(f[0], 1.0f);
    cr_expect_eq(f[7], 1.0f);
    cr_expect(f[8] > 1.0f && f[8] < 32.0f, "%g", (double)f[8]);
    cr_expect_eq(f[9], 32.0f);
    cr_expect_eq(f[15], 32.0f);
    const double wave = 2.0 * 3.14159265358979323846 * sqrt(5e5);
    const double ramp = (8192.0 / wave - 1.0) / 3.0;
    cr_expect(fabs(1.0 / (double)f[8] - ((1.0 - ramp) / 32.0 + ramp)) < 1e-6);
    folio_gguf_close(&g);
    folio_aligned_free(image);
}

Test(model_shape, file_is_the_image, .init = set_up, .fini = tear_down)
{
    const folio_model_shape s = tiny("llama", "q8_0");
    uint8_t *image;
    size_t size;
    folio_gguf *g = NULL, *h = NULL;
    OK(folio_shape_image(&s, &said, &image, &size));
    OK(folio_model_shape_write(&s, path, &said));
    OK(folio_gguf_open_memory(image, size, &said, &g));
    OK(folio_gguf_open(path, &said, &h));
    cr_assert_eq(folio_gguf_n_kv(g), folio_gguf_n_kv(h));
    cr_assert_eq(folio_gguf_n_tensors(g), folio_gguf_n_tensors(h));
    for (size_t t = 0; t < folio_gguf_n_tensors(g); t++) {
        const folio_tensor_info *a = folio_gguf_tensor_at(g, t);
        const folio_tensor_info *b = folio_gguf_tensor(h, a->name);
        cr_assert(b && b->type == a->type && b->bytes == a->bytes &&
                  b->n_dims == a->n_dims && b->dims[0] == a->dims[0] &&
                  b->dims[1] == a->dims[1]);
        cr_expect_eq(memcmp(a->data, b->data, a->bytes), 0, "%s", a->name);
    }
    folio_gguf_close(&g);
    folio_gguf_close(&h);
    folio_aligned_free(image);
    cr_expect_eq(ear.n, 0, "%s", ear.last);
}

Test(model_shape, tokenizer_takes_any_text, .init = set_up, .fini = tear_down)
{
    const folio_model_shape s = tiny("llama", "f16");
    folio_tokenizer *tok = NULL;
    char text[256];
    int32_t ids[256];
    size_t n, len, total = 0;
    OK(folio_model_shape_write(&s, path, &said));
    OK(folio_tokenizer_open_file(path, &said, &tok));
    cr_expect_eq(folio_tokenizer_n_vocab(tok), s.n_vocab);
    for (int i = 0; i < 256; i++)
        text[i] = (char)i;
    OK(folio_tokenizer_encode(tok, text, sizeof text, 0, ids, 256, &n));
    for (size_t i = 0; i < n; i++) {
        const char *piece;
        OK(folio_tokenizer_piece(tok, ids[i], &piece, &len));
        cr_assert_leq(total + len, sizeof text);
        cr_expect_eq(memcmp(piece, text + total, len), 0);
        total += len;
    }
    cr_expect_eq(total, sizeof text);
    OK(folio_tokenizer_encode(tok, "ab", 2, 0, ids, 256, &n));
    cr_expect(n == 1 && ids[0] == 256);
    cr_expect(folio_tokenizer_is_eog(tok, s.n_vocab - 1));
    folio_tokenizer_close(&tok);
    cr_expect_eq(ear.n, 0, "%s", ear.last);
}

Test(model_shape, without_memory, .init = set_up, .fini = tear_down)
{
    folio_device *dev = open_device("host");
    folio_model_shape s = tiny("llama", "f16");
    s.n_layers = 1;
    s.n_vocab = 300;
    bool refused = true;
    for (int nth = 1; refused; nth++) {
        folio_model *m = NULL;
        cr_assert_lt(nth, 2000, "it never ends");
        fail_alloc_arm(nth);
        const folio_status st = folio_model_open_shape(dev, &s, NULL, &m);
        refused = fail_alloc_disarm();
        cr_expect_eq(st, refused ? FOLIO_E_NOMEM : FOLIO_OK, "%d: %s", nth,
                     folio_status_name(st));
        cr_expect_eq(m == NULL, refused);
        folio_model_close(&m);
    }
    folio_device_close(&dev);
}

/* ---- what they compute --------------------------------------------------- */

enum { N_TOK = 7, N_VOCAB = 512 };
static const int32_t prompt[N_TOK] = {3, 500, 17, 17, 256, 0, 81};

static folio_runner *open_runner(folio_model *m, int32_t rows)
{
    folio_runner_params p;
    folio_runner *r = NULL;
    folio_runner_params_default(&p);
    p.max_tok = 16;
    p.max_rows = rows;
    p.block_size = p.max_ctx = 64;
    p.kv_type = FOLIO_KV_F32;
    p.exact = p.deterministic = 1;
    OK(folio_runner_open(m, &p, &r));
    return r;
}

static folio_status feed(folio_runner *r, const int32_t *ids, int32_t at,
                         int32_t n, int32_t n_rows)
{
    static const int32_t up[64] = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
        16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
        32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
        48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    const int32_t q[2] = {0, n}, kv = at + n, t[2] = {0, 1}, block = 0;
    const folio_batch b = {.n_tok = n,
                           .n_seq = 1,
                           .tok = ids,
                           .pos = up + at,
                           .slot = up + at,
                           .q_start = q,
                           .kv_len = &kv,
                           .table_start = t,
                           .tables = &block,
                           .n_rows = n_rows,
                           .rows = n_rows == 1 ? &up[n - 1] : up};
    return folio_runner_forward(r, &b, -1);
}

/* Rows of a matrix of the file times x, in double. */
static void times(const folio_model_file *f, const char *name, int32_t layer,
                  int rows, int cols, const double *x, double *y)
{
    char full[64];
    float w[512];
    if (layer < 0)
        snprintf(full, sizeof full, "%s.weight", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    for (int r = 0; r < rows; r++) {
        OK(folio_model_file_row(f, full, (uint64_t)r, w, 512));
        y[r] = 0.0;
        for (int c = 0; c < cols; c++)
            y[r] += (double)w[c] * x[c];
    }
}

static void norm(const folio_model_file *f, const char *name, int32_t layer,
                 int n, double eps, const double *x, double *y)
{
    char full[64];
    float w[512];
    double sq = 0.0;
    if (layer < 0)
        snprintf(full, sizeof full, "%s.weight", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    OK(folio_model_file_row(f, full, 0, w, 512));
    for (int i = 0; i < n; i++)
        sq += x[i] * x[i];
    const double s = 1.0 / sqrt(sq / n + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * s * (double)w[i];
}

static void rotate(const folio_model_shape *s, double *head, int pos)
{
    const int n = s->head_dim;
    for (int i = 0; i < n / 2; i++) {
        const double a = pos * pow(s->rope_theta, -2.0 * i / n);
        const bool pairs = strcmp(s->arch, "llama") == 0;
        double *u = head + (pairs ? 2 * i : i);
        double *v = head + (pairs ? 2 * i + 1 : i + n / 2);
        const double x = *u, y = *v;
        *u = x * cos(a) - y * sin(a);
        *v = x * sin(a) + y * cos(a);
    }
}

/* Logits of all N_TOK, by the formulas; the cache is plain arrays. */
static void compute(const folio_model_shape *s, const folio_model_file *f,
                    double logits[N_TOK][N_VOCAB])
{
    enum { D = 128, Q = 128, KV = 64, FF = 256, HD = 32, L = 2 };
    static double keys[L][N_TOK][KV], vals[L][N_TOK][KV];
    const bool qk = strcmp(s->arch, "qwen3") == 0;
    const int group = s->heads / s->kv_heads;
    double x[D], h[D], q[Q], o[Q], y[D], gate[FF], up[FF];
    float e[D];
    for (int t = 0; t < N_TOK; t++) {
        OK(folio_model_file_row(f, "token_embd.weight", (uint64_t)prompt[t], e,
                                D));
        for (int i = 0; i < D; i++)
            x[i] = (double)e[i];
        for (int l = 0; l < L; l++) {
            double *k = keys[l][t];
            norm(f, "attn_norm", l, D, s->norm_eps, x, h);
            times(f, "attn_q", l, Q, D, h, q);
            times(f, "attn_k", l, KV, D, h, k);
            times(f, "attn_v", l, KV, D, h, vals[l][t]);
            for (int n = 0; n < s->heads; n++) {
                if (qk)
                    norm(f, "attn_q_norm", l, HD, s->norm_eps, q + n * HD,
                         q + n * HD);
                rotate(s, q + n * HD, t);
            }
            for (int n = 0; n < s->kv_heads; n++) {
                if (qk)
                    norm(f, "attn_k_norm", l, HD, s->norm_eps, k + n * HD,
                         k + n * HD);
                rotate(s, k + n * HD, t);
            }
            for (int n = 0; n < s->heads; n++) {
                double p[N_TOK], sum = 0.0;
                for (int j = 0; j <= t; j++) {
                    double dot = 0.0;
                    for (int i = 0; i < HD; i++)
                        dot += q[n * HD + i] * keys[l][j][n / group * HD + i];
                    p[j] = exp(dot / sqrt(HD));
                    sum += p[j];
                }
                for (int i = 0; i < HD; i++) {
                    o[n * HD + i] = 0.0;
                    for (int j = 0; j <= t; j++)
                        o[n * HD + i] +=
                            p[j] / sum * vals[l][j][n / group * HD + i];
                }
            }
            times(f, "attn_output", l, D, Q, o, y);
            for (int i = 0; i < D; i++)
                x[i] += y[i];
            norm(f, "ffn_norm", l, D, s->norm_eps, x, h);
            times(f, "ffn_gate", l, FF, D, h, gate);
            times(f, "ffn_up", l, FF, D, h, up);
            for (int i = 0; i < FF; i++)
                gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
            times(f, "ffn_down", l, D, FF, gate, y);
            for (int i = 0; i < D; i++)
                x[i] += y[i];
        }
        norm(f, "output_norm", -1, D, s->norm_eps, x, h);
        times(f, s->tied ? "token_embd" : "output", -1, N_VOCAB, D, h,
              logits[t]);
    }
}

static void check_logits(const char *arch, const char *type, int32_t tied)
{
    static double want[N_TOK][N_VOCAB];
    static float got[N_TOK][N_VOCAB];
    folio_model_shape s = tiny(arch, type);
    folio_device *dev = open_device("host");
    folio_model *m = NULL;
    folio_model_file *f = NULL;
    folio_model_params p;
    s.tied = tied;
    folio_model_params_default(&p);
    p.exact = 1;
    OK(folio_model_shape_write(&s, path, &said));
    OK(folio_model_file_open(path, &said, &f));
    compute(&s, f, want);
    for (int from_file = 0; from_file < 2; from_file++) {
        if (from_file)
            OK(folio_model_open(dev, path, &p, &m));
        else
            OK(folio_model_open_shape(dev, &s, &p, &m));
        folio_runner *r = open_runner(m, N_TOK);
        OK(feed(r, prompt, 0, N_TOK, N_TOK));
        OK(folio_runner_read(r, &got[0][0]));
        for (int t = 0; t < N_TOK; t++)
            for (int v = 0; v < N_VOCAB; v++)
                cr_assert(fabs((double)got[t][v] - want[t][v]) < 1e-4,
                          "%s %s: logit %d of token %d is %g, expected %g",
                          arch, type, v, t, (double)got[t][v], want[t][v]);
        folio_runner_close(&r);
        folio_model_close(&m);
    }
    folio_model_file_close(&f);
    folio_device_close(&dev);
}

Test(model_shape, llama_by_the_formulas, .init = set_up, .fini = tear_down)
{
    check_logits("llama", "f16", 1);
}

Test(model_shape, qwen3_by_the_formulas, .init = set_up, .fini = tear_down)
{
    check_logits("qwen3", "f16", 0);
    check_logits("qwen3", "q8_0", 1);
}

static void greedy(const folio_model_shape *s, const char *device,
                   int32_t ids[12], bool *ran)
{
    folio_device *dev = open_device(device);
    folio_model *m = NULL;
    float v;
    int32_t nan;
    *ran = dev != NULL;
    if (!dev)
        return;
    folio_model_params p;
    folio_model_params_default(&p);
    p.exact = 1;
    OK(folio_model_open_shape(dev, s, &p, &m));
    folio_runner *r = open_runner(m, 1);
    OK(feed(r, prompt, 0, N_TOK, 1));
    for (int i = 0; i < 12; i++) {
        OK(folio_runner_read_top(r, 1, &ids[i], &v, &nan));
        cr_assert_eq(nan, 0);
        OK(feed(r, &ids[i], N_TOK + i, 1, 1));
    }
    folio_runner_close(&r);
    folio_model_close(&m);
    folio_device_close(&dev);
}

Test(model_shape, same_ids_on_pocl, .init = set_up, .fini = tear_down)
{
    static const char *const types[] = {"f16", "q8_0", "q4_0"};
    for (size_t i = 0; i < FOLIO_COUNT(types); i++) {
        const folio_model_shape s = tiny(i == 1 ? "qwen3" : "llama", types[i]);
        int32_t a[12], b[12];
        bool ran;
        greedy(&s, "host", a, &ran);
        greedy(&s, "portable computing", b, &ran);
        if (!ran)
            cr_skip_test("no PoCL here");
        for (int k = 0; k < 12; k++)
            cr_expect_eq(a[k], b[k], "%s: id %d", types[i], k);
        cr_expect_eq(folio_ids_hash(a, 12), folio_ids_hash(b, 12));
        b[11] ^= 1;
        cr_expect_neq(folio_ids_hash(a, 12), folio_ids_hash(b, 12));
    }
}

/* ---- what measuring needs ------------------------------------------------ */

Test(model_shape, work_is_counted, .init = set_up, .fini = tear_down)
{
    folio_device *dev = open_device("host");
    for (int32_t tied = 0; tied < 2; tied++) {
        folio_model_shape s = tiny("llama", "q8_0");
        folio_model_info i = {.size = sizeof i};
        folio_model *m = NULL;
        s.tied = tied;
        OK(folio_model_open_shape(dev, &s, NULL, &m));
        folio_model_get_info(m, &i);
        const uint64_t layer = 128 * (128 + 64 + 64 + 128 + 3 * 256);
        cr_expect_eq(i.layer_params, 2 * layer);
        cr_expect_eq(i.head_params, 512 * 128);
        cr_expect_eq(i.step_bytes,
                     (2 * layer + 512 * 128) / 32 * 34 + 4 * 128 * 5);
        cr_expect_eq(i.weight_bytes,
                     i.step_bytes + (tied ? 0u : 512 * 128 / 32 * 34));
        folio_model_close(&m);
    }
    folio_device_close(&dev);
}

Test(model_shape, faked_keys_are_keys, .init = set_up, .fini = tear_down)
{
    static float empty[N_VOCAB], one[N_VOCAB], two[N_VOCAB];
    const folio_model_shape s = tiny("llama", "f16");
    folio_device *dev = open_device("host");
    folio_model *m = NULL;
    OK(folio_model_open_shape(dev, &s, NULL, &m));
    folio_runner *r = open_runner(m, 1);
    cr_expect_eq(folio_runner_fake_kv(NULL, 1), FOLIO_E_INVAL);
    OK(feed(r, prompt, 40, 1, 1));
    OK(folio_runner_read(r, empty));
    OK(folio_runner_fake_kv(r, 1));
    OK(feed(r, prompt, 40, 1, 1));
    OK(folio_runner_read(r, one));
    OK(folio_runner_fake_kv(r, 1));
    OK(feed(r, prompt, 40, 1, 1));
    OK(folio_runner_read(r, two));
    cr_expect_eq(memcmp(one, two, sizeof one), 0);
    cr_expect_neq(memcmp(one, empty, sizeof one), 0);
    OK(folio_runner_fake_kv(r, 2));
    OK(feed(r, prompt, 40, 1, 1));
    OK(folio_runner_read(r, two));
    cr_expect_neq(memcmp(one, two, sizeof one), 0);
    for (int v = 0; v < N_VOCAB; v++)
        cr_expect(isfinite(one[v]) && isfinite(two[v]));
    folio_runner_close(&r);
    folio_model_close(&m);
    folio_device_close(&dev);
}
