#define _DEFAULT_SOURCE /* mkdtemp */
/* unit/support_tiny_llama.c: see support_tiny_llama.h. */
#include "unit/support_tiny_llama.h"

#include "base/base.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const tiny_golden tiny_goldens[TINY_N_PROMPTS] = {
    {3,
     {1, 2, 3},
     {28, 33, 12, 56, 6, 10, 37, 25, 46, 36, 49, 11, 11, 50, 10, 11}},
    {2, {4, 5}, {54, 3, 37, 25, 2, 25, 30, 20, 15, 55, 49, 25, 12, 25, 10, 30}},
    {4,
     {6, 7, 8, 9},
     {13, 25, 15, 44, 25, 59, 42, 22, 42, 21, 25, 40, 23, 32, 46, 28}},
    {1, {10}, {30, 0, 17, 23, 7, 53, 0, 35, 59, 49, 36, 41, 29, 4, 20, 29}},
    {8,
     {63, 0, 31, 17, 2, 2, 2, 40},
     {29, 49, 17, 62, 33, 25, 63, 25, 5, 42, 33, 25, 63, 25, 5, 25}},
};
const float tiny_logits[8] = {0.8293875f, 1.760224f,  3.873042f, 3.222857f,
                              -3.565923f, -4.375261f, 2.559909f, 3.023886f};
const float tiny_max_logit = 6.524571f;
const float tiny_logit_sum = 99.65726f;

static float next_value(uint32_t *s)
{
    *s = 1664525u * *s + 1013904223u;
    return (float)(*s >> 8) / 8388608.0f - 1.0f;
}

static tiny_tensor *new_tensor(tiny_llama *m, const char *name, uint64_t cols,
                               uint64_t rows)
{
    cr_assert_lt(m->n, (int)FOLIO_COUNT(m->t));
    tiny_tensor *t = &m->t[m->n++];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->n_dims = rows ? 2 : 1;
    t->dims[0] = cols;
    t->dims[1] = rows ? rows : 1;
    t->dims[2] = t->dims[3] = 1;
    t->v = calloc((size_t)(cols * t->dims[1]), sizeof *t->v);
    cr_assert_not_null(t->v);
    return t;
}

static tiny_tensor *fill(tiny_llama *m, uint32_t *s, const char *name,
                         uint64_t cols, uint64_t rows)
{
    tiny_tensor *t = new_tensor(m, name, cols, rows);
    for (uint64_t i = 0; i < cols * t->dims[1]; i++) {
        float v = next_value(s);
        t->v[i] = rows ? v : 1.0f + 0.1f * v;
    }
    return t;
}

/* Rows i and i + HD/2 of each head become rows 2i and 2i + 1. */
static void pair_rows(tiny_tensor *t)
{
    size_t row = TINY_DIM, n = (size_t)t->dims[1];
    float *old = malloc(n * row * sizeof *old);
    cr_assert_not_null(old);
    memcpy(old, t->v, n * row * sizeof *old);
    for (size_t r = 0; r < n; r++) {
        size_t head = r / TINY_HD, i = r % TINY_HD;
        size_t from = i % 2 ? i / 2 + TINY_HD / 2 : i / 2;
        memcpy(t->v + r * row, old + (head * TINY_HD + from) * row,
               row * sizeof *old);
    }
    free(old);
}

/* What llama3's scaling (factor 32, low 1, high 4, original 8192) divides each
 * frequency by. */
static void put_factors(tiny_llama *m)
{
    tiny_tensor *t = new_tensor(m, "rope_freqs.weight", TINY_HD / 2, 0);
    for (int i = 0; i < TINY_HD / 2; i++) {
        double f = pow(5e5, -2.0 * i / TINY_HD), factor = 1.0;
        double wave = 2.0 * 3.14159265358979323846 / f;
        if (wave > 8192.0) {
            factor = 32.0;
        } else if (wave > 8192.0 / 4.0) {
            double s = (8192.0 / wave - 1.0) / (4.0 - 1.0);
            factor = 1.0 / ((1.0 - s) / 32.0 + s);
        }
        t->v[i] = (float)factor;
    }
}

void tiny_init(tiny_llama *m)
{
    uint32_t s = 1;
    char name[48];
    memset(m, 0, sizeof *m);
    m->arch = "llama";
    m->ctx = TINY_CTX;
    snprintf(m->dir, sizeof m->dir, "/tmp/folio-unit-XXXXXX");
    cr_assert_not_null(mkdtemp(m->dir));
    snprintf(m->path, sizeof m->path, "%s/tiny.gguf", m->dir);
    fill(m, &s, "token_embd.weight", TINY_DIM, TINY_VOCAB);
    for (int l = 0; l < TINY_LAYERS; l++) {
        const struct {
            const char *name;
            uint64_t cols, rows;
        } t[] = {
            {"attn_norm", TINY_DIM, 0},
            {"attn_q", TINY_DIM, TINY_HEADS * TINY_HD},
            {"attn_k", TINY_DIM, TINY_KV_HEADS * TINY_HD},
            {"attn_v", TINY_DIM, TINY_KV_HEADS * TINY_HD},
            {"attn_output", TINY_HEADS * TINY_HD, TINY_DIM},
            {"ffn_norm", TINY_DIM, 0},
            {"ffn_gate", TINY_DIM, TINY_FF},
            {"ffn_up", TINY_DIM, TINY_FF},
            {"ffn_down", TINY_FF, TINY_DIM},
        };
        for (size_t i = 0; i < FOLIO_COUNT(t); i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, t[i].name);
            tiny_tensor *x = fill(m, &s, name, t[i].cols, t[i].rows);
            if (i == 1 || i == 2)
                pair_rows(x);
        }
    }
    fill(m, &s, "output_norm.weight", TINY_DIM, 0);
    put_factors(m);
}

void tiny_fini(tiny_llama *m)
{
    for (int i = 0; i < m->n; i++)
        free(m->t[i].v);
    unlink(m->path);
    rmdir(m->dir);
    memset(m, 0, sizeof *m);
}

tiny_tensor *tiny_find(tiny_llama *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->t[i].name, name) == 0)
            return &m->t[i];
    cr_assert_fail("no tensor %s", name);
    return NULL;
}

tiny_tensor *tiny_add_copy(tiny_llama *m, const char *of, const char *name)
{
    const tiny_tensor *from = tiny_find(m, of);
    tiny_tensor *t = new_tensor(m, name, from->dims[0],
                                from->n_dims > 1 ? from->dims[1] : 0);
    memcpy(t->v, from->v, (size_t)(t->dims[0] * t->dims[1]) * sizeof *t->v);
    return t;
}

void tiny_zero(tiny_llama *m, const char *name)
{
    tiny_tensor *t = tiny_find(m, name);
    memset(t->v, 0, (size_t)(t->dims[0] * t->dims[1]) * sizeof *t->v);
}

void tiny_put(const tiny_llama *m, gguf_writer *w)
{
    char key[96];
    const struct {
        const char *key;
        uint32_t v;
    } ints[] = {
        {"context_length", m->ctx},
        {"embedding_length", TINY_DIM},
        {"block_count", TINY_LAYERS},
        {"feed_forward_length", TINY_FF},
        {"attention.head_count", TINY_HEADS},
        {"attention.head_count_kv", TINY_KV_HEADS},
        {"rope.dimension_count", TINY_HD},
    };
    const struct {
        const char *key;
        float v;
    } nums[] = {
        {"attention.layer_norm_rms_epsilon", 1e-5f},
        {"rope.freq_base", 5e5f},
    };
    gguf_writer_init(w);
    if (!m->skip_key || strcmp(m->skip_key, "general.architecture"))
        gguf_put_str(w, "general.architecture", m->arch);
    gguf_put_str(w, "general.name", "tiny");
    for (size_t i = 0; i < FOLIO_COUNT(ints); i++) {
        snprintf(key, sizeof key, "%s.%s", m->arch, ints[i].key);
        if (!m->skip_key || strcmp(m->skip_key, key))
            gguf_put_u32(w, key, ints[i].v);
    }
    for (size_t i = 0; i < FOLIO_COUNT(nums); i++) {
        snprintf(key, sizeof key, "%s.%s", m->arch, nums[i].key);
        if (!m->skip_key || strcmp(m->skip_key, key))
            gguf_put_f32(w, key, nums[i].v);
    }
    for (int i = 0; i < m->n; i++)
        if (!m->t[i].left_out)
            gguf_put_tensor(w, m->t[i].name, FOLIO_TYPE_F32, m->t[i].n_dims,
                            m->t[i].dims, m->t[i].v);
}

void tiny_save(tiny_llama *m)
{
    gguf_writer w;
    tiny_put(m, &w);
    cr_assert(gguf_writer_save(&w, m->path));
    gguf_writer_fini(&w);
}

/* What failed messages show. */
static const tiny_ear *newest;

static void listen_all(void *user, folio_log_level level, const char *message)
{
    tiny_ear *e = user;
    char *at = level == FOLIO_LOG_ERROR  ? e->err
               : level == FOLIO_LOG_WARN ? e->warn
                                         : e->info;
    e->n_err += level == FOLIO_LOG_ERROR;
    e->n_warn += level == FOLIO_LOG_WARN;
    snprintf(at, sizeof e->err, "%s", message);
}

folio_log tiny_log(tiny_llama *m)
{
    newest = &m->ear;
    return (folio_log){listen_all, &m->ear, FOLIO_LOG_INFO};
}

folio_device *tiny_device(tiny_llama *m, const char *select, uint64_t max_alloc)
{
    folio_device_params p;
    folio_device *dev = NULL;
    folio_device_params_default(&p);
    p.select = select;
    p.n_threads = 2;
    p.max_alloc_bytes = max_alloc;
    p.log = tiny_log(m);
    folio_status st = folio_device_open(&p, &dev);
    const char *ci = getenv("CI");
    bool must = strcmp(select, "host") == 0 || (ci && strcmp(ci, "true") == 0);
    if (must || st != FOLIO_E_NO_DEVICE)
        cr_assert_eq(st, FOLIO_OK, "%s", m->ear.err);
    return dev;
}

folio_model *tiny_open(tiny_llama *m, folio_device *dev)
{
    folio_model_params p;
    folio_model *model = NULL;
    folio_model_params_default(&p);
    p.log = tiny_log(m);
    folio_status st = folio_model_open(dev, m->path, &p, &model);
    cr_assert_eq(st, FOLIO_OK, "%s: %s", folio_status_name(st), m->ear.err);
    return model;
}

void tiny_params(folio_runner_params *p)
{
    folio_runner_params_default(p);
    p->max_seqs = TINY_MAX_SEQS;
    p->max_tok = p->max_rows = TINY_MAX_TOK;
    p->block_size = 4;
    p->kv_type = FOLIO_KV_F32;
    p->deterministic = 1;
}

folio_runner *tiny_runner(folio_model *model, const folio_runner_params *p)
{
    folio_runner *r = NULL;
    folio_status st = folio_runner_open(model, p, &r);
    cr_assert_eq(st, FOLIO_OK, "folio_runner_open: %s: %s",
                 folio_status_name(st), newest ? newest->err : "");
    return r;
}

void tiny_seq_init(tiny_seq *s, const folio_runner *r, int32_t at,
                   uint32_t seed)
{
    folio_runner_info i = {.size = sizeof i};
    folio_runner_get_info(r, &i);
    memset(s, 0, sizeof *s);
    s->block_size = i.block_size;
    s->n_blocks = (int32_t)folio_div_up(i.max_ctx, i.block_size);
    int32_t n = i.n_blocks;
    int32_t *order = malloc((size_t)n * sizeof *order);
    cr_assert_not_null(order);
    for (int32_t b = 0; b < n; b++)
        order[b] = b;
    uint32_t state = seed;
    for (int32_t b = n - 1; seed && b > 0; b--) {
        (void)next_value(&state);
        int32_t j = (int32_t)((state >> 8) % (uint32_t)(b + 1));
        int32_t t = order[b];
        order[b] = order[j];
        order[j] = t;
    }
    cr_assert_leq((at + 1) * s->n_blocks, n);
    memcpy(s->blocks, order + at * s->n_blocks,
           (size_t)s->n_blocks * sizeof *order);
    free(order);
}

void tiny_batch_init(tiny_batch *b)
{
    memset(b, 0, sizeof *b);
    b->b = (folio_batch){
        .tok = b->tok,
        .pos = b->pos,
        .slot = b->slot,
        .q_start = b->q_start,
        .kv_len = b->kv_len,
        .table_start = b->table_start,
        .tables = b->tables,
        .rows = b->rows,
        .copies = b->copies,
    };
}

void tiny_batch_add(tiny_batch *b, tiny_seq *s, const int32_t *ids, int32_t n,
                    bool all_rows)
{
    int32_t i = b->b.n_seq++, at = b->b.n_tok, bs = s->block_size;
    for (int32_t t = 0; t < n; t++) {
        int32_t pos = s->n_tok + t;
        b->tok[at + t] = ids[t];
        b->pos[at + t] = pos;
        b->slot[at + t] = s->blocks[pos / bs] * bs + pos % bs;
        if (all_rows || t == n - 1)
            b->rows[b->b.n_rows++] = at + t;
    }
    s->n_tok += n;
    b->b.n_tok += n;
    b->q_start[i + 1] = b->b.n_tok;
    b->kv_len[i] = s->n_tok;
    int32_t need = (int32_t)folio_div_up(s->n_tok, bs);
    memcpy(b->tables + b->table_start[i], s->blocks,
           (size_t)need * sizeof *b->tables);
    b->table_start[i + 1] = b->table_start[i] + need;
}

void tiny_feed(folio_runner *r, tiny_seq *s, const int32_t *ids, int32_t n,
               int32_t chunk, bool all_rows, float *logits)
{
    static tiny_batch b;
    int32_t step = chunk ? chunk : n;
    for (int32_t at = 0; at < n; at += step) {
        int32_t k = FOLIO_MIN(step, n - at);
        tiny_batch_init(&b);
        tiny_batch_add(&b, s, ids + at, k, all_rows);
        TINY_OK(folio_runner_forward(r, &b.b, -1));
        if (logits && all_rows)
            TINY_OK(folio_runner_read(r, logits + (size_t)at * TINY_VOCAB));
        else if (logits && at + k == n)
            TINY_OK(folio_runner_read(r, logits));
    }
}

void tiny_greedy(folio_runner *r, tiny_seq *s, const int32_t *ids, int32_t n,
                 int32_t n_new, int32_t *out)
{
    float row[TINY_VOCAB];
    tiny_feed(r, s, ids, n, 0, false, row);
    for (int32_t i = 0; i < n_new; i++) {
        out[i] = tiny_argmax(row);
        tiny_feed(r, s, &out[i], 1, 0, false, row);
    }
}

int32_t tiny_argmax(const float *row)
{
    int32_t best = 0;
    for (int32_t i = 1; i < TINY_VOCAB; i++)
        if (row[i] > row[best])
            best = i;
    return best;
}

void tiny_equal(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        cr_assert(memcmp(&got[i], &want[i], sizeof *got) == 0,
                  "%s: value %zu is %.9g, expected %.9g", what, i,
                  (double)got[i], (double)want[i]);
}

void tiny_near(const float *got, const float *want, size_t n, float tol,
               const char *what)
{
    for (size_t i = 0; i < n; i++)
        cr_assert(fabsf(got[i] - want[i]) <= tol,
                  "%s: value %zu is %.9g, expected %.9g within %g", what, i,
                  (double)got[i], (double)want[i], (double)tol);
}
