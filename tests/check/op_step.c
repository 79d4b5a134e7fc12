/* op_step.c: the op step: its variants against the reference by means of the
 * self-test, and how fast they run the layers of known models, against its
 * parts on the same device. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "check/check.h"
#include "ops/pack.h"
#include "ops/self_test.h"
#include "ops/step_parts.h"

enum { MATRICES = 7, MOST_LAYERS = 32, BLOCK = 16, TRIES = 5 };

/* The buffers of weights repeat a piece of so many bytes. */
#define PIECE_BYTES ((size_t)8 << 20)
#define ROUND_NS    30000000.0

/* ---- shapes ----------------------------------------------------------------
 */

typedef struct step_model {
    const char *name;
    int32_t layers, dim, ff, heads, kv_heads, hd;
} step_model;

/* A model's layers, all of one type. */
typedef struct step_made {
    folio_weight w[MATRICES];
    folio_step_layer layer[MOST_LAYERS];
    folio_weight lw[MOST_LAYERS][MATRICES];
    folio_weight_view view[MOST_LAYERS][MATRICES];
    folio_step_args a;
} step_made;

static void make_step(step_made *m, const step_model *s, folio_type type,
                      folio_packing packing, int32_t n_tok, int32_t n_blocks,
                      int32_t ctx)
{
    const int64_t q = (int64_t)s->heads * s->hd;
    const int64_t kv = (int64_t)s->kv_heads * s->hd;
    const int64_t shape[MATRICES][2] = {
        {q, s->dim},     {kv, s->dim},    {kv, s->dim},   {s->dim, q},
        {s->ff, s->dim}, {s->ff, s->dim}, {s->dim, s->ff}};
    memset(m, 0, sizeof *m);
    for (int32_t y = 0; y < s->layers; y++) {
        folio_weight *w = m->lw[y];
        for (int i = 0; i < MATRICES; i++)
            w[i] = (folio_weight){.type = type,
                                  .packing = packing,
                                  .rows = shape[i][0],
                                  .cols = shape[i][1],
                                  .views = &m->view[y][i]};
        m->layer[y] = (folio_step_layer){
            .wq = &w[0],
            .wk = &w[1],
            .wv = &w[2],
            .wo = &w[3],
            .gate = &w[4],
            .up = &w[5],
            .down = &w[6],
            .kv = {.type = FOLIO_KV_F16,
                   .layout = {.xk = 8, .yk = 1, .xv = 8, .yv = 1},
                   .n_blocks = n_blocks,
                   .block_size = BLOCK,
                   .kv_heads = s->kv_heads,
                   .head_dim = s->hd}};
    }
    m->a = (folio_step_args){.layers = m->layer,
                             .n_layers = s->layers,
                             .dim = s->dim,
                             .ff = s->ff,
                             .heads = s->heads,
                             .eps = 1e-5f,
                             .n_pos = ctx,
                             .n_tok = n_tok,
                             .scale = (float)(1.0 / sqrt(s->hd)),
                             .n_works = 1};
    m->a.work[0].n_seq = n_tok;
    m->a.work[0].max_kv = ctx;
}

/* ---- against the reference -------------------------------------------------
 */

typedef struct step_case {
    ck_set set;
    step_model model;
    folio_type type;
    folio_packing packing;
    int32_t n_tok;
    int32_t interleaved, softcap;
    folio_act act;
} step_case;

static const step_case cases[] = {
    {CK_SET_S,
     {"a", 1, 128, 192, 4, 2, 32},
     FOLIO_TYPE_F16,
     FOLIO_PACK_TILE16,
     1,
     0,
     0,
     FOLIO_ACT_SILU},
    {CK_SET_L,
     {"b", 1, 256, 320, 8, 2, 64},
     FOLIO_TYPE_F16,
     FOLIO_PACK_RG16,
     3,
     1,
     20,
     FOLIO_ACT_GELU_TANH},
    {CK_SET_L,
     {"c", 1, 256, 512, 7, 1, 64},
     FOLIO_TYPE_Q8_0,
     FOLIO_PACK_RG16,
     2,
     0,
     0,
     FOLIO_ACT_SILU},
    {CK_SET_L,
     {"d", 1, 256, 512, 8, 1, 128},
     FOLIO_TYPE_Q4_0,
     FOLIO_PACK_RG16,
     5,
     0,
     0,
     FOLIO_ACT_SILU},
};

/* For its compiler options alone. */
static void dump_step(ck_ctx *c, const folio_variant *var,
                      const folio_op_params *prm, const step_made *m,
                      const ck_problem *named)
{
    folio_op *op = NULL;
    const folio_status st = folio_variant_open(c->dev, var, prm, &m->a, &op);
    /* On paper there is no memory: all is built, and now it would allocate. */
    if (st != FOLIO_OK && st != FOLIO_E_DEVICE) {
        ck_bad(c, var, CK_BAD_STATUS, named, "%s: %s", folio_status_name(st),
               c->log);
        c->failed++;
    }
    folio_op_close(&op);
}

static void try_case(ck_ctx *c, const step_case *s, const folio_variant *var)
{
    static step_made m;
    char name[100], why[FOLIO_SELF_WHY_MAX] = "";
    const folio_op_params prm = {
        .emulate = (var->flags & FOLIO_VAR_EMULATED) != 0, .tune = c->tune};
    ck_problem named = {.op = FOLIO_OP_STEP};
    make_step(&m, &s->model, s->type, s->packing, s->n_tok, 16, 64);
    m.a.interleaved = s->interleaved;
    m.a.softcap = (float)s->softcap;
    m.a.act = s->act;
    snprintf(name, sizeof name, "step %s %s %" PRId32 " rows, hd %" PRId32,
             folio_type_find(s->type)->name, folio_pack_name(s->packing),
             s->n_tok, s->model.hd);
    snprintf(named.name, sizeof named.name, "%s", name);
    if (!ck_selected(c, var, name))
        return;
    const char *no = folio_variant_refuse(c->dev, var, &prm, &m.a);
    if (no) {
        ck_skip(c, var->name, no);
        return;
    }
    ck_tally *t = ck_tally_of(c, var);
    t->ran++;
    t->bad = 0;
    if (ck_programs_dumping()) {
        dump_step(c, var, &prm, &m, &named);
        return;
    }
    if (folio_op_self_test(c->dev, var, &prm, &m.a, why) != FOLIO_OK) {
        ck_bad(c, var, CK_BAD_VALUE, &named, "%s%s%s", why,
               c->log[0] ? ": " : "", c->log);
    }
    t->failed += t->bad != 0;
    *(t->bad ? &c->failed : &c->passed) += 1;
}

/* Shapes of models: what a GPU must be able to open. */
static void dump_models(ck_ctx *c, const folio_variant *var)
{
    static const step_model models[] = {
        {"llama-3.2-1b", 16, 2048, 8192, 32, 8, 64},
        {"llama-3.1-8b", 32, 4096, 14336, 32, 8, 128}};
    static const struct {
        folio_type type;
        folio_packing packing;
    } kinds[] = {{FOLIO_TYPE_F16, FOLIO_PACK_RG16},
                 {FOLIO_TYPE_F16, FOLIO_PACK_TILE16},
                 {FOLIO_TYPE_Q8_0, FOLIO_PACK_RG16},
                 {FOLIO_TYPE_Q4_0, FOLIO_PACK_RG16}};
    static step_made m;
    const folio_op_params prm = {.tune = c->tune};
    ck_problem named = {.op = FOLIO_OP_STEP};
    for (size_t i = 0; i < FOLIO_COUNT(models); i++)
        for (size_t k = 0; k < FOLIO_COUNT(kinds); k++) {
            const bool wide = i > 0 && kinds[k].type == FOLIO_TYPE_F16;
            make_step(&m, &models[i], kinds[k].type, kinds[k].packing,
                      wide ? 4 : 8, 512, 4096);
            if (folio_variant_refuse(c->dev, var, &prm, &m.a))
                continue;
            snprintf(named.name, sizeof named.name, "%s %s %s", models[i].name,
                     folio_type_find(kinds[k].type)->name,
                     folio_pack_name(kinds[k].packing));
            dump_step(c, var, &prm, &m, &named);
        }
}

void ck_step(ck_ctx *c)
{
    for (size_t v = 0; v < c->n_rows && !c->bench; v++) {
        const folio_variant *var = &c->rows[v];
        const bool host = folio_device_is_host(c->dev);
        /* What is made of other ops has no program of its own. */
        if (var->op != FOLIO_OP_STEP || var->where == FOLIO_ON_HOST || host ||
            (ck_programs_dumping() && var->fragments[0] == '\0'))
            continue;
        for (size_t i = 0; i < FOLIO_COUNT(cases) && !c->dead; i++)
            if (ck_in_size(c, cases[i].set))
                try_case(c, &cases[i], var);
        if (ck_programs_dumping() && !(var->flags & FOLIO_VAR_FLOOR) &&
            ck_selected(c, var, "step"))
            dump_models(c, var);
    }
}

/* ---- speed -----------------------------------------------------------------
 */

typedef struct bench_case {
    step_model model;
    folio_type type;
    int32_t n_tok, ctx;
} bench_case;

#define B1 "1b", 16, 2048, 8192, 32, 8, 64
#define B8 "8b/2", 16, 4096, 14336, 32, 8, 128
static const bench_case bench_cases[] = {
    {{B1}, FOLIO_TYPE_F16, 1, 512},   {{B1}, FOLIO_TYPE_F16, 1, 4096},
    {{B1}, FOLIO_TYPE_F16, 1, 32768}, {{B1}, FOLIO_TYPE_F16, 2, 512},
    {{B1}, FOLIO_TYPE_F16, 4, 512},   {{B1}, FOLIO_TYPE_F16, 8, 512},
    {{B1}, FOLIO_TYPE_Q8_0, 1, 512},  {{B1}, FOLIO_TYPE_Q4_0, 1, 512},
    {{B1}, FOLIO_TYPE_Q4_0, 8, 512},  {{B8}, FOLIO_TYPE_F16, 1, 512},
    {{B8}, FOLIO_TYPE_Q4_0, 1, 512},
};

typedef struct bed {
    step_made m;
    folio_buf *weights, *k, *v, *floats, *ints, *lists, *scratch;
    int32_t *q_start, *kv_len, *table_start, *tables;
    size_t weight_bytes;
    double kv_bytes;
    float *x, *want, *got;
} bed;

static void close_bed(bed *b)
{
    folio_buf_close(&b->weights);
    folio_buf_close(&b->k);
    folio_buf_close(&b->v);
    folio_buf_close(&b->floats);
    folio_buf_close(&b->ints);
    folio_buf_close(&b->lists);
    folio_buf_close(&b->scratch);
    free(b->q_start);
    free(b->x);
    free(b->want);
    free(b->got);
    memset(b, 0, sizeof *b);
}

/* Every two bytes are a half of small magnitude, so that all of them may be
 * values, scales or quants. */
static folio_status fill(ck_ctx *c, folio_buf *buf, int exponent)
{
    folio_status st = FOLIO_OK;
    ck_rng r = ck_rng_make(c->seed, "bench_step");
    uint8_t *piece = folio_calloc(PIECE_BYTES, 1);
    const size_t bytes = folio_buf_bytes(buf);
    if (!piece)
        return FOLIO_E_NOMEM;
    for (size_t i = 0; i < PIECE_BYTES; i += 2) {
        const uint32_t n = ck_next(&r);
        piece[i] = (uint8_t)n;
        piece[i + 1] = (uint8_t)((n >> 8 & 0x80u) | (uint32_t)(exponent << 2) |
                                 (n >> 16 & 7u));
    }
    for (size_t at = 0; at < bytes; at += PIECE_BYTES)
        FOLIO_TRY(folio_queue_write(c->q, (folio_view){buf, at}, piece,
                                    FOLIO_MIN(PIECE_BYTES, bytes - at)));
fail:
    free(piece);
    return st;
}

static folio_status place_weights(ck_ctx *c, bed *b)
{
    folio_step_args *a = &b->m.a;
    const size_t norm = folio_align_up((size_t)a->dim * sizeof(float), 256);
    size_t at = norm;
    for (int32_t y = 0; y < a->n_layers; y++)
        for (int i = 0; i < MATRICES; i++) {
            folio_weight *w = &b->m.lw[y][i];
            b->m.view[y][i] =
                (folio_weight_view){.view = {.offset = at}, .rows = w->rows};
            const size_t n =
                folio_pack_bytes(w->packing, w->type, w->rows, w->cols);
            at = folio_align_up(at + n, 256);
            b->weight_bytes += n;
        }
    FOLIO_RETURN_IF(folio_buf_open(c->dev, at, &b->weights));
    FOLIO_RETURN_IF(fill(c, b->weights, 6));
    for (int32_t i = 0; i < a->dim; i++)
        b->want[i] = 1.0f;
    FOLIO_RETURN_IF(folio_queue_write(c->q, (folio_view){b->weights, 0},
                                      b->want, (size_t)a->dim * sizeof(float)));
    for (int32_t y = 0; y < a->n_layers; y++) {
        folio_step_layer *l = &b->m.layer[y];
        l->attn_norm = l->ffn_norm = (folio_view){b->weights, 0};
        for (int i = 0; i < MATRICES; i++) {
            b->m.view[y][i].view.buf = b->weights;
            b->m.lw[y][i].n_views = 1;
        }
    }
    return FOLIO_OK;
}

static folio_status place_kv(ck_ctx *c, bed *b)
{
    folio_step_args *a = &b->m.a;
    const folio_kv_ref *kv = &b->m.layer[0].kv;
    const size_t plane = (size_t)kv->n_blocks * folio_kv_block_bytes(kv);
    const size_t all = plane * (size_t)a->n_layers;
    b->kv_bytes = 2.0 * (double)all;
    FOLIO_RETURN_IF(folio_buf_open(c->dev, all, &b->k));
    FOLIO_RETURN_IF(folio_buf_open(c->dev, all, &b->v));
    FOLIO_RETURN_IF(fill(c, b->k, 13));
    FOLIO_RETURN_IF(fill(c, b->v, 13));
    for (int32_t y = 0; y < a->n_layers; y++) {
        folio_kv_ref *l = &b->m.layer[y].kv;
        l->k = (folio_kv_plane){.buf = {b->k},
                                .n_buf = 1,
                                .seg_shift = 31,
                                .offset = plane * (size_t)y};
        l->v = (folio_kv_plane){.buf = {b->v},
                                .n_buf = 1,
                                .seg_shift = 31,
                                .offset = plane * (size_t)y};
    }
    return FOLIO_OK;
}

/* Everything else: one buffer of integers, one of floats. */
static folio_status place_rest(ck_ctx *c, bed *b, int32_t ctx)
{
    folio_step_args *a = &b->m.a;
    folio_attn_work *w = &a->work[0];
    const size_t n = (size_t)a->n_tok;
    const size_t per = (size_t)folio_div_up(ctx, BLOCK);
    const size_t hd = (size_t)b->m.layer[0].kv.head_dim;
    const int32_t pitch = (int32_t)(n + 1 + 63) / 64 * 64;
    const size_t used = (size_t)(5 * pitch) + n * per;
    const size_t n_x = folio_align_up(n * (size_t)a->dim, 64);
    ck_rng r = ck_rng_make(c->seed, "bench_step ints");
    b->q_start = folio_calloc(used, sizeof(int32_t));
    if (!b->q_start)
        return FOLIO_E_NOMEM;
    int32_t *const all = b->q_start;
    int32_t *pos = all + 3 * pitch, *slot = all + 4 * pitch;
    b->kv_len = all + pitch;
    b->table_start = all + 2 * pitch;
    b->tables = all + 5 * pitch;
    for (size_t i = 0; i < n * per; i++)
        b->tables[i] = (int32_t)i;
    ck_shuffle(&r, b->tables, (int32_t)(n * per));
    for (size_t t = 0; t < n; t++) {
        b->q_start[t + 1] = (int32_t)t + 1;
        b->table_start[t + 1] = (int32_t)(per * (t + 1));
        b->kv_len[t] = ctx;
        pos[t] = ctx - 1;
        slot[t] = b->tables[per * t + per - 1] * BLOCK + (ctx - 1) % BLOCK;
    }
    FOLIO_RETURN_IF(folio_buf_open(c->dev, used * 4, &b->ints));
    FOLIO_RETURN_IF(
        folio_queue_write(c->q, (folio_view){b->ints, 0}, all, used * 4));
    const size_t step = (size_t)pitch * 4;
    w->q_start = (folio_view){b->ints, 0};
    w->kv_len = (folio_view){b->ints, step};
    w->table_start = (folio_view){b->ints, 2 * step};
    a->pos = (folio_view){b->ints, 3 * step};
    a->slot = (folio_view){b->ints, 4 * step};
    w->tables = (folio_view){b->ints, 5 * step};
    const size_t turn = (size_t)ctx * hd;
    FOLIO_RETURN_IF(folio_buf_open(c->dev, (n_x + turn) * 4, &b->floats));
    a->x = (folio_view){b->floats, 0};
    a->table = (folio_view){b->floats, n_x * 4};
    float *cs = folio_calloc(turn, sizeof *cs);
    if (!cs)
        return FOLIO_E_NOMEM;
    for (size_t i = 0; i < turn; i += 2) {
        const double at =
            (double)(i / hd) * pow(1e4, -(double)(i % hd) / (double)hd);
        cs[i] = (float)cos(at);
        cs[i + 1] = (float)sin(at);
    }
    const folio_status st =
        folio_queue_write(c->q, a->table, cs, turn * sizeof *cs);
    free(cs);
    return st;
}

static folio_status open_bed(ck_ctx *c, const bench_case *s, bed *b)
{
    const int32_t per = (int32_t)folio_div_up(s->ctx, BLOCK);
    const folio_pack_hints hints = {0};
    /* As a model's; FOLIO_PACKING asks for another. */
    const folio_packing packing =
        folio_pack_choose(c->dev, s->type, s->model.dim, s->model.dim, &hints);
    const size_t n = (size_t)s->n_tok * (size_t)s->model.dim;
    ck_rng r = ck_rng_make(c->seed, "bench_step x");
    memset(b, 0, sizeof *b);
    make_step(&b->m, &s->model, s->type, packing, s->n_tok, per * s->n_tok,
              s->ctx);
    b->x = folio_calloc(n, sizeof *b->x);
    b->want = folio_calloc(n, sizeof *b->want);
    b->got = folio_calloc(n, sizeof *b->got);
    if (!b->x || !b->want || !b->got)
        return FOLIO_E_NOMEM;
    ck_fill(&r, b->x, n, -1, 1);
    FOLIO_RETURN_IF(place_weights(c, b));
    FOLIO_RETURN_IF(place_kv(c, b));
    return place_rest(c, b, s->ctx);
}

static folio_status launches(ck_ctx *c, folio_op *op, const bed *b, int n,
                             double *ns)
{
    const uint64_t start = folio_clock_ns();
    for (int i = 0; i < n; i++)
        FOLIO_RETURN_IF(folio_op_run(op, c->q, &b->m.a));
    FOLIO_RETURN_IF(folio_queue_finish(c->q));
    *ns = (double)(folio_clock_ns() - start) / n;
    return FOLIO_OK;
}

/* The best of several rounds. */
static folio_status time_it(ck_ctx *c, folio_op *op, const bed *b, double *ns)
{
    double once, t;
    FOLIO_RETURN_IF(launches(c, op, b, 2, &once));
    const int n = (int)FOLIO_MAX(ROUND_NS / FOLIO_MAX(once, 1.0), 1.0);
    *ns = once;
    for (int i = 0; i < TRIES; i++) {
        FOLIO_RETURN_IF(launches(c, op, b, FOLIO_MIN(n, 200), &t));
        *ns = FOLIO_MIN(*ns, t);
    }
    return FOLIO_OK;
}

/* With TIMES=1: microseconds of the first group in one step, by phase: before
 * its products, of them, and at the meeting behind. */
static folio_status print_times(ck_ctx *c, folio_op *op, const bed *b,
                                double us)
{
    enum { WORDS = 15 };
    static const char *const phase[] = {"qkv", "attn", "out", "gate_up",
                                        "down"};
    uint32_t t[WORDS], zero[WORDS] = {0};
    double all = 0;
    const size_t bytes = folio_buf_bytes(op->own);
    const folio_view at = {op->own, bytes - 16 * sizeof t[0]};
    FOLIO_RETURN_IF(folio_queue_write(c->q, at, zero, sizeof zero));
    FOLIO_RETURN_IF(folio_op_run(op, c->q, &b->m.a));
    FOLIO_RETURN_IF(folio_queue_read(c->q, at, t, sizeof t));
    for (int i = 0; i < WORDS; i++)
        all += t[i];
    for (int i = 0; i < WORDS; i += 3)
        printf("    %-8s before %6.2f, products %6.2f, meeting %6.2f\n",
               phase[i / 3], us * t[i] / all, us * t[i + 1] / all,
               us * t[i + 2] / all);
    return FOLIO_OK;
}

/* Differences as a share of what came out, of the roots of squares. */
static double error_of(const bed *b, size_t n)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)b->got[i] - (double)b->want[i];
        off += d * d;
        all += (double)b->want[i] * (double)b->want[i];
    }
    return sqrt(off / all);
}

/* `wanted`: this is the result that others are compared with. */
static folio_status try_one(ck_ctx *c, const bench_case *s, bed *b,
                            const folio_variant *var, const char *tune,
                            bool wanted)
{
    folio_status st = FOLIO_OK;
    folio_op *op = NULL;
    folio_step_args *a = &b->m.a;
    const folio_op_params prm = {.exact = wanted, .tune = tune};
    const size_t n = (size_t)a->n_tok * (size_t)a->dim;
    double ns = 0, error = 0;
    const char *no = folio_variant_refuse(c->dev, var, &prm, a);
    printf("%-10s %-5s %-5s %" PRId32 " x %5" PRId32 " %-28s", var->name,
           s->model.name, folio_type_find(s->type)->name, s->n_tok, s->ctx,
           tune ? tune : "");
    fflush(stdout);
    if (no) {
        printf(" %s\n", no);
        return FOLIO_OK;
    }
    FOLIO_TRY(folio_variant_open(c->dev, var, &prm, a, &op));
    /* What the parts' attention wants to know of the batch. */
    if (folio_step_attn(op, 0))
        FOLIO_TRY(ck_bench_plan(c, folio_step_attn(op, 0), a->n_tok, b->q_start,
                                b->kv_len, &a->work[0], &b->lists));
    folio_buf_close(&b->scratch);
    FOLIO_TRY(folio_buf_open(c->dev, FOLIO_MAX(folio_op_scratch_bytes(op), 64),
                             &b->scratch));
    a->scratch = (folio_view){b->scratch, 0};
    FOLIO_TRY(folio_queue_write(c->q, a->x, b->x, n * sizeof(float)));
    FOLIO_TRY(folio_op_run(op, c->q, a));
    FOLIO_TRY(folio_queue_read(c->q, a->x, wanted ? b->want : b->got,
                               n * sizeof(float)));
    error = wanted ? 0 : error_of(b, n);
    FOLIO_TRY(folio_queue_write(c->q, a->x, b->x, n * sizeof(float)));
    FOLIO_TRY(time_it(c, op, b, &ns));
    printf(" %8.1f us %6.0f GB/s %7.0f tok/s of layers, error %.1e\n", ns / 1e3,
           ((double)b->weight_bytes + b->kv_bytes) / ns, a->n_tok / (ns * 1e-9),
           error);
    if (tune && strstr(tune, "TIMES=1") && op->own)
        FOLIO_TRY(print_times(c, op, b, ns / 1e3));
    const double most = s->type == FOLIO_TYPE_F16 ? 2e-2 : 2e-1;
    const bool good = error <= most;
    *(good ? &c->passed : &c->failed) += 1;
    if (!good)
        printf("FAILED: %s: error %g > %g\n", var->name, error, most);
fail:
    folio_op_close(&op);
    return st;
}

/* --tune A=1,B=2;A=2: each setting in turn. */
static folio_status run_settings(ck_ctx *c, const bench_case *s, bed *b,
                                 const folio_variant *var)
{
    char one[200];
    const char *p = c->tune;
    if (!p || (var->flags & FOLIO_VAR_FLOOR))
        return try_one(c, s, b, var, NULL, (var->flags & FOLIO_VAR_FLOOR) != 0);
    while (*p) {
        const size_t n = strcspn(p, ";");
        snprintf(one, sizeof one, "%.*s", (int)n, p);
        p += n + (p[n] == ';');
        FOLIO_RETURN_IF(try_one(c, s, b, var, one, false));
    }
    return FOLIO_OK;
}

/* --only 1b,F16: models, types and counts of rows ("1x", "8x"). */
static bool is_asked(const ck_ctx *c, const bench_case *s)
{
    char name[60];
    snprintf(name, sizeof name, "%s-%s-%" PRId32 "x%" PRId32, s->model.name,
             folio_type_find(s->type)->name, s->n_tok, s->ctx);
    if (!c->only)
        return true;
    char part[60];
    for (const char *p = c->only; *p;) {
        const size_t n = strcspn(p, ",");
        snprintf(part, sizeof part, "%.*s", (int)n, p);
        if (strstr(name, part))
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}

void ck_bench_step(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(bench_cases) && !c->dead; i++) {
        static bed b;
        if (!is_asked(c, &bench_cases[i]))
            continue;
        folio_status st = open_bed(c, &bench_cases[i], &b);
        /* The parts first: what they give is wanted of the others. */
        for (size_t v = c->n_rows; v-- > 0 && st == FOLIO_OK;)
            if (c->rows[v].op == FOLIO_OP_STEP &&
                c->rows[v].where == FOLIO_ON_CL)
                st = run_settings(c, &bench_cases[i], &b, &c->rows[v]);
        if (st != FOLIO_OK) {
            printf("\nFAILED: step: %s: %s\n", folio_status_name(st), c->log);
            c->failed++;
            c->dead = st == FOLIO_E_DEVICE;
        }
        close_bed(&b);
    }
}
