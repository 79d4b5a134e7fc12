/* bench_linear.c: linear on the matrices of Llama-3.2-1B and 3.1-8B, in every
 * packing, from decode batches to prompts. Weights are stored several times
 * over and taken in turn, so that they come from memory as in a model, not from
 * a cache. Some outputs are compared with sums in double, all are looked
 * through for what is not a number. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "check/check.h"
#include "ops/pack.h"

enum { TRIES = 5, SAMPLES = 64, MOST_COPIES = 24 };

/* Launches of a round last about so long. */
#define ROUND_NS 15000000.0
/* Weights that are read in turn; several times the last cache of a GPU. */
#define POOL_BYTES ((size_t)256 << 20)
/* Random bytes that a matrix repeats. */
#define PIECE_ROWS 512

typedef struct shape {
    int64_t rows, cols;
    int32_t most_tok;
} shape;

static const shape shapes[] = {
    {2048, 2048, 2048},  {16384, 2048, 2048}, {2048, 8192, 2048},
    {8192, 2048, 2048},  {4096, 4096, 2048},  {28672, 4096, 2048},
    {4096, 14336, 2048}, {128256, 2048, 128},
};
static const int32_t toks[] = {1, 8, 16, 32, 64, 128, 512, 2048};

static const struct {
    folio_type type;
    folio_packing packing;
} kinds[] = {
    {FOLIO_TYPE_F16, FOLIO_PACK_TILE16}, {FOLIO_TYPE_F16, FOLIO_PACK_RG16},
    {FOLIO_TYPE_Q8_0, FOLIO_PACK_RG16},  {FOLIO_TYPE_Q4_0, FOLIO_PACK_RG16},
    {FOLIO_TYPE_F16, FOLIO_PACK_RAW},
};

/* One matrix and what goes with it. */
typedef struct bed {
    folio_weight w;
    folio_weight_view view[MOST_COPIES];
    int n_copies;
    uint8_t *piece; /* rows of the file's form; row r of w is r % PIECE_ROWS */
    float *x, *y;
    folio_buf *w_buf, *x_buf, *y_buf, *scratch;
    int32_t most_tok;
} bed;

static void close_bed(bed *b)
{
    folio_buf_close(&b->w_buf);
    folio_buf_close(&b->x_buf);
    folio_buf_close(&b->y_buf);
    folio_buf_close(&b->scratch);
    free(b->piece);
    free(b->x);
    free(b->y);
}

/* The matrix in its packing, piece by piece, into every copy. */
static folio_status send_weights(ck_ctx *c, bed *b)
{
    folio_status st = FOLIO_OK;
    const folio_weight *w = &b->w;
    const size_t bytes =
        folio_pack_bytes(w->packing, w->type, PIECE_ROWS, w->cols);
    uint8_t *packed = folio_calloc(bytes, 1);
    if (!packed)
        return FOLIO_E_NOMEM;
    folio_pack_rows(w->packing, w->type, w->cols, b->piece, PIECE_ROWS, packed);
    for (int i = 0; i < b->n_copies; i++)
        for (int64_t r = 0; r < w->rows; r += PIECE_ROWS) {
            const int64_t n = FOLIO_MIN(w->rows - r, (int64_t)PIECE_ROWS);
            const size_t at =
                r == 0 ? 0 : folio_pack_bytes(w->packing, w->type, r, w->cols);
            FOLIO_TRY(folio_queue_write(
                c->q, folio_view_at(b->view[i].view, at), packed,
                folio_pack_bytes(w->packing, w->type, n, w->cols)));
        }
    st = folio_queue_finish(c->q);
fail:
    free(packed);
    return st;
}

static folio_status open_bed(ck_ctx *c, const shape *s, int kind, bed *b)
{
    folio_status st = FOLIO_OK;
    const folio_type type = kinds[kind].type;
    const folio_packing packing = kinds[kind].packing;
    const size_t one =
        folio_align_up(folio_pack_bytes(packing, type, s->rows, s->cols), 256);
    const size_t row = folio_type_row_bytes(type, (uint64_t)s->cols);
    ck_rng r = ck_rng_make(c->seed, "bench linear");
    memset(b, 0, sizeof *b);
    b->most_tok = s->most_tok;
    b->n_copies = (int)FOLIO_MIN(POOL_BYTES / one + 1, (size_t)MOST_COPIES);
    b->w = (folio_weight){.type = type,
                          .packing = packing,
                          .rows = s->rows,
                          .cols = s->cols,
                          .views = b->view,
                          .n_views = 1};
    const size_t n_x = (size_t)s->most_tok * (size_t)s->cols;
    const size_t n_y = (size_t)s->most_tok * (size_t)s->rows;
    b->piece = folio_calloc(PIECE_ROWS * row, 1);
    b->x = folio_calloc(n_x, sizeof *b->x);
    b->y = folio_calloc(n_y, sizeof *b->y);
    if (!b->piece || !b->x || !b->y)
        FOLIO_TRY(FOLIO_E_NOMEM);
    ck_fill_weights(&r, type, b->piece, PIECE_ROWS * row, false);
    ck_fill(&r, b->x, n_x, -1.0f, 1.0f);
    FOLIO_TRY(folio_buf_open(c->dev, one * (size_t)b->n_copies, &b->w_buf));
    FOLIO_TRY(folio_buf_open(c->dev, n_x * sizeof *b->x, &b->x_buf));
    FOLIO_TRY(folio_buf_open(c->dev, n_y * sizeof *b->y, &b->y_buf));
    for (int i = 0; i < b->n_copies; i++)
        b->view[i] = (folio_weight_view){.view = {b->w_buf, (size_t)i * one},
                                         .rows = s->rows};
    FOLIO_TRY(folio_queue_write(c->q, (folio_view){b->x_buf, 0}, b->x,
                                n_x * sizeof *b->x));
    FOLIO_TRY(send_weights(c, b));
fail:
    return st;
}

/* The worst of some outputs, as a share of the sum of its terms' sizes; 1 where
 * any output is no number. */
static folio_status judge(ck_ctx *c, bed *b, int32_t n_tok, double *worst)
{
    const size_t rows = (size_t)b->w.rows, cols = (size_t)b->w.cols;
    const size_t row_bytes = folio_type_row_bytes(b->w.type, cols);
    ck_rng r = ck_rng_make(c->seed, "samples");
    *worst = 0;
    FOLIO_RETURN_IF(folio_queue_read(c->q, (folio_view){b->y_buf, 0}, b->y,
                                     (size_t)n_tok * rows * sizeof *b->y));
    FOLIO_RETURN_IF(folio_queue_finish(c->q));
    float *w = folio_calloc(cols, sizeof *w);
    if (!w)
        return FOLIO_E_NOMEM;
    for (int i = 0; i < SAMPLES; i++) {
        const size_t t = (size_t)ck_below(&r, n_tok);
        const size_t at = (size_t)ck_below(&r, (int32_t)rows);
        double sum = 0, size = 0;
        folio_dequant(b->w.type, b->piece + at % PIECE_ROWS * row_bytes,
                      (int64_t)cols, w);
        for (size_t k = 0; k < cols; k++) {
            const double v = (double)w[k] * (double)b->x[t * cols + k];
            sum += v;
            size += fabs(v);
        }
        const double off = fabs((double)b->y[t * rows + at] - sum) / size;
        *worst = off <= *worst ? *worst : off;
    }
    for (size_t i = 0; i < (size_t)n_tok * rows; i++)
        if (!isfinite(b->y[i]))
            *worst = 1;
    free(w);
    return FOLIO_OK;
}

static folio_status time_it(ck_ctx *c, folio_op *op, bed *b,
                            folio_linear_args *a, double *ns)
{
    folio_weight w = b->w;
    double best = 0, once = 0;
    int n = 2;
    a->w = &w;
    for (int i = 0; i <= TRIES; i++) {
        const uint64_t start = folio_clock_ns();
        for (int j = 0; j < n; j++) {
            w.views = &b->view[j % b->n_copies];
            FOLIO_RETURN_IF(folio_op_run(op, c->q, a));
        }
        FOLIO_RETURN_IF(folio_queue_finish(c->q));
        const double t = (double)(folio_clock_ns() - start) / n;
        if (i == 0) {
            once = t;
            n = (int)fmin(fmax(ROUND_NS / t, 1.0), 1000.0);
        } else if (i == 1 || t < best) {
            best = t;
        }
        if (once > 5e7 && i == 1)
            break;
    }
    *ns = best;
    a->w = &b->w;
    return FOLIO_OK;
}

static folio_status run_one(ck_ctx *c, bed *b, int32_t n_tok,
                            const folio_variant *var, const char *tune)
{
    folio_status st = FOLIO_OK;
    folio_op *op = NULL;
    double ns = 0, off = 0;
    folio_linear_args a = {.x = {b->x_buf, 0},
                           .w = &b->w,
                           .y = {b->y_buf, 0},
                           .n_tok = n_tok,
                           .x_stride = (int32_t)b->w.cols,
                           .y_stride = (int32_t)b->w.rows};
    const folio_op_params prm = {.exact = !(var->flags & FOLIO_VAR_INEXACT),
                                 .tune = tune};
    if (folio_variant_refuse(c->dev, var, &prm, &a))
        return FOLIO_OK;
    printf("%-15s %-4s %-6s %6d x %5d tok %4d %-24s", var->name,
           folio_type_find((uint32_t)b->w.type)->name,
           folio_pack_name(b->w.packing), (int)b->w.rows, (int)b->w.cols,
           (int)n_tok, tune ? tune : "");
    fflush(stdout);
    FOLIO_TRY(folio_variant_open(c->dev, var, &prm, &a, &op));
    const size_t scratch = folio_op_scratch_bytes(op);
    if (scratch > 0 && (!b->scratch || folio_buf_bytes(b->scratch) < scratch)) {
        folio_buf_close(&b->scratch);
        FOLIO_TRY(folio_buf_open(c->dev, scratch, &b->scratch));
    }
    a.scratch = (folio_view){b->scratch, 0};
    FOLIO_TRY(folio_queue_fill(c->q, a.y, 0xff,
                               (size_t)n_tok * (size_t)b->w.rows * 4));
    FOLIO_TRY(folio_op_run(op, c->q, &a));
    FOLIO_TRY(judge(c, b, n_tok, &off));
    FOLIO_TRY(time_it(c, op, b, &a, &ns));
    const double bytes = (double)folio_pack_bytes(b->w.packing, b->w.type,
                                                  b->w.rows, b->w.cols) +
                         4.0 * n_tok * (double)(b->w.rows + b->w.cols);
    printf(" %9.2f us %7.1f GB/s (%5.1f %%) %6.1f TFLOP/s, error %.1e\n",
           ns / 1e3, bytes / ns, 100 * bytes / ns / c->read_rate,
           2.0 * n_tok * (double)b->w.rows * (double)b->w.cols / ns / 1e3, off);
    /* Halves on both sides, or bytes for x. */
    const bool good = off <= 2e-3;
    *(good ? &c->passed : &c->failed) += 1;
    if (!good)
        printf("FAILED: %s: error %g of the terms > 2e-3\n", var->name, off);
fail:
    folio_op_close(&op);
    return st;
}

static folio_status run_settings(ck_ctx *c, bed *b, int32_t n_tok,
                                 const folio_variant *var)
{
    char one[200];
    const char *p = c->tune;
    if (!p)
        return run_one(c, b, n_tok, var, NULL);
    do {
        const size_t n = strcspn(p, ";");
        snprintf(one, sizeof one, "%.*s", (int)n, p);
        p += n;
        FOLIO_RETURN_IF(run_one(c, b, n_tok, var, one));
    } while (*p++ == ';');
    return FOLIO_OK;
}

/* --only: variants by their whole names, and parts of "F16 TILE16 2048x2048 ".
 * Without a variant's name all but the floor, without a part all shapes. */
static bool is_wanted(const ck_ctx *c, const folio_variant *var,
                      const char *name)
{
    bool named = false, chosen = false, part = false, found = false;
    size_t n;
    const folio_variant *rows = folio_variants(&n);
    if (var->op != FOLIO_OP_LINEAR || var->where != FOLIO_ON_CL)
        return false;
    for (const char *p = c->only; p && *p;) {
        char word[80];
        const size_t len = strcspn(p, ",");
        bool is_variant = false;
        snprintf(word, sizeof word, "%.*s", (int)len, p);
        for (size_t i = 0; i < n; i++)
            is_variant |= strcmp(rows[i].name, word) == 0;
        if (is_variant) {
            named = true;
            chosen |= strcmp(var->name, word) == 0;
        } else {
            part = true;
            found |= strstr(name, word) != NULL;
        }
        p += len + (p[len] == ',');
    }
    return (named ? chosen : !(var->flags & FOLIO_VAR_FLOOR)) &&
           (!part || found);
}

static void bench_matrix(ck_ctx *c, const shape *s, int kind)
{
    char name[80];
    bed b;
    bool any = false;
    snprintf(name, sizeof name, "%s %s %dx%d ",
             folio_type_find((uint32_t)kinds[kind].type)->name,
             folio_pack_name(kinds[kind].packing), (int)s->rows, (int)s->cols);
    for (size_t v = 0; v < c->n_rows; v++)
        any |= is_wanted(c, &c->rows[v], name);
    if (!any)
        return;
    folio_status st = open_bed(c, s, kind, &b);
    for (size_t t = 0; t < FOLIO_COUNT(toks) && st == FOLIO_OK; t++)
        for (size_t v = 0; v < c->n_rows && toks[t] <= s->most_tok; v++) {
            if (!is_wanted(c, &c->rows[v], name) || c->dead)
                continue;
            c->log[0] = '\0';
            folio_status got = run_settings(c, &b, toks[t], &c->rows[v]);
            if (got != FOLIO_OK) {
                printf("\nFAILED: %s: %s: %s\n", c->rows[v].name,
                       folio_status_name(got), c->log);
                c->failed++;
            }
            c->dead = c->dead || got == FOLIO_E_DEVICE;
        }
    if (st != FOLIO_OK) {
        printf("FAILED: %s: %s: %s\n", name, folio_status_name(st), c->log);
        c->failed++;
    }
    close_bed(&b);
}

void ck_bench_linear(ck_ctx *c)
{
    for (size_t k = 0; k < FOLIO_COUNT(kinds); k++)
        for (size_t i = 0; i < FOLIO_COUNT(shapes) && !c->dead; i++)
            bench_matrix(c, &shapes[i], (int)k);
}
