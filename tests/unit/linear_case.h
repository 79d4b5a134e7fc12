/* linear_case.h: one problem for the op linear, made from a seed, with its
 * result in double and the scale of its rounding error; how to run a variant on
 * it and how to judge what came out. Shared by the tests of linear on the host
 * and on OpenCL. */
#ifndef FOLIO_TESTS_LINEAR_CASE_H
#define FOLIO_TESTS_LINEAR_CASE_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "ops/ops.h"

static const folio_type linear_types[] = {
    FOLIO_TYPE_F32,  FOLIO_TYPE_F16,    FOLIO_TYPE_BF16,   FOLIO_TYPE_Q4_0,
    FOLIO_TYPE_Q4_1, FOLIO_TYPE_Q5_0,   FOLIO_TYPE_Q5_1,   FOLIO_TYPE_Q8_0,
    FOLIO_TYPE_Q4_K, FOLIO_TYPE_Q5_K,   FOLIO_TYPE_Q6_K,   FOLIO_TYPE_Q2_K,
    FOLIO_TYPE_Q3_K, FOLIO_TYPE_IQ4_NL, FOLIO_TYPE_IQ4_XS, FOLIO_TYPE_MXFP4,
};

typedef struct linear_case {
    folio_type type;
    int rows, cols, n_tok;
    int x_pad, y_pad; /* stride minus width */
    int bias, accumulate;
    int n_views;
    int whole_steps; /* x is what 8 bits hold exactly, 32 values by 32 */
    uint32_t seed;
    /* made by linear_case_make */
    size_t row_bytes;
    uint8_t *w;
    float *x, *b, *y0; /* y0: [n_tok, y_stride] before the op */
    double *sum;       /* [n_tok, rows] */
    double *scale;     /* sum of absolute values of all terms */
} linear_case;

static inline uint32_t linear_random(uint32_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 17;
    *s ^= *s << 5;
    return *s;
}

static inline float linear_uniform(uint32_t *s)
{
    return (float)((double)linear_random(s) / 2147483648.0 - 1.0);
}

/* Places of the half scales in a block; -1 ends the list. */
static inline const int *linear_half_fields(folio_type type)
{
    static const int at0[] = {0, -1}, at02[] = {0, 2, -1}, none[] = {-1};
    static const int q2k[] = {80, 82, -1}, q3k[] = {108, -1}, q6k[] = {208, -1};
    switch (type) {
    case FOLIO_TYPE_Q4_1:
    case FOLIO_TYPE_Q5_1:
    case FOLIO_TYPE_Q4_K:
    case FOLIO_TYPE_Q5_K:
        return at02;
    case FOLIO_TYPE_Q2_K:
        return q2k;
    case FOLIO_TYPE_Q3_K:
        return q3k;
    case FOLIO_TYPE_Q6_K:
        return q6k;
    case FOLIO_TYPE_MXFP4:
        return none;
    default:
        return at0;
    }
}

/* Random bytes with sane scales; one scale in eight is a subnormal half. */
static inline void linear_fill_weights(folio_type type, uint8_t *p,
                                       size_t bytes, uint32_t *s)
{
    const folio_type_info *info = folio_type_find((uint32_t)type);
    if (type == FOLIO_TYPE_F32) {
        for (size_t i = 0; i < bytes; i += 4) {
            float f = linear_uniform(s);
            memcpy(p + i, &f, 4);
        }
        return;
    }
    if (type == FOLIO_TYPE_F16 || type == FOLIO_TYPE_BF16) {
        for (size_t i = 0; i < bytes; i += 2) {
            float f = linear_uniform(s);
            if (linear_random(s) % 8 == 0)
                f *= 1e-6f;
            uint16_t h = type == FOLIO_TYPE_F16 ? folio_f32_to_f16(f)
                                                : folio_f32_to_bf16(f);
            memcpy(p + i, &h, 2);
        }
        return;
    }
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(linear_random(s) >> 11);
    for (size_t i = 0; i < bytes; i += info->block_bytes) {
        for (const int *f = linear_half_fields(type); *f >= 0; f++) {
            float d = linear_uniform(s) * 0.05f;
            if (linear_random(s) % 8 == 0)
                d *= 1e-4f;
            uint16_t h = folio_f32_to_f16(d);
            memcpy(p + i + *f, &h, 2);
        }
        if (type == FOLIO_TYPE_MXFP4)
            p[i] = (uint8_t)(120 + linear_random(s) % 9);
    }
}

/* Whole numbers up to 127, which one of every 32 is, times a power of two. */
static inline float linear_whole_step(uint32_t *s, int k)
{
    int n = k % 32 == 5 ? 127 : (int)(linear_random(s) % 255) - 127;
    return (float)ldexp(n, -6 - k / 32 % 3);
}

static inline void linear_case_make(linear_case *c)
{
    uint32_t s = c->seed * 2654435761u + 1;
    int xs = c->cols + c->x_pad, ys = c->rows + c->y_pad;
    c->row_bytes = folio_type_row_bytes(c->type, (uint64_t)c->cols);
    size_t w_bytes = c->row_bytes * (size_t)c->rows;
    size_t n_out = (size_t)c->n_tok * (size_t)c->rows;
    c->w = folio_calloc(w_bytes, 1);
    c->x = folio_calloc((size_t)c->n_tok * (size_t)xs, sizeof(float));
    c->b = folio_calloc((size_t)c->rows, sizeof(float));
    c->y0 = folio_calloc((size_t)c->n_tok * (size_t)ys, sizeof(float));
    c->sum = folio_calloc(n_out, sizeof(double));
    c->scale = folio_calloc(n_out, sizeof(double));
    float *row = folio_calloc((size_t)c->cols, sizeof(float));
    cr_assert(c->w && c->x && c->b && c->y0 && c->sum && c->scale && row);

    linear_fill_weights(c->type, c->w, w_bytes, &s);
    for (int i = 0; i < c->n_tok * xs; i++)
        c->x[i] = i % xs >= c->cols ? NAN
                  : c->whole_steps  ? linear_whole_step(&s, i % xs)
                                    : linear_uniform(&s);
    for (int i = 0; i < c->rows; i++)
        c->b[i] = linear_uniform(&s);
    for (int i = 0; i < c->n_tok * ys; i++)
        c->y0[i] = c->accumulate ? linear_uniform(&s) : NAN;
    for (int r = 0; r < c->rows; r++) {
        folio_dequant(c->type, c->w + (size_t)r * c->row_bytes, c->cols, row);
        for (int t = 0; t < c->n_tok; t++) {
            double sum = 0, scale = 0;
            for (int k = 0; k < c->cols; k++) {
                double v = (double)row[k] * (double)c->x[t * xs + k];
                sum += v;
                scale += fabs(v);
            }
            if (c->bias) {
                sum += (double)c->b[r];
                scale += fabs((double)c->b[r]);
            }
            if (c->accumulate) {
                sum += (double)c->y0[t * ys + r];
                scale += fabs((double)c->y0[t * ys + r]);
            }
            c->sum[t * c->rows + r] = sum;
            c->scale[t * c->rows + r] = scale;
        }
    }
    free(row);
}

static inline void linear_case_free(linear_case *c)
{
    free(c->w);
    free(c->x);
    free(c->b);
    free(c->y0);
    free(c->sum);
    free(c->scale);
}

static inline const char *linear_case_name(const linear_case *c)
{
    static char name[128];
    snprintf(name, sizeof name,
             "%s [%d, %d] x %d tokens, pads %d %d, bias %d, accumulate %d, %d "
             "views, seed %u",
             folio_type_find((uint32_t)c->type)->name, c->rows, c->cols,
             c->n_tok, c->x_pad, c->y_pad, c->bias, c->accumulate, c->n_views,
             (unsigned)c->seed);
    return name;
}

/* y [n_tok, y_stride] against the sums: each within `factor` * epsilon of the
 * scale of its terms, padding as it was. Reports the first that is not. */
static inline void linear_case_judge(const linear_case *c, const float *y,
                                     const char *who, double factor)
{
    int ys = c->rows + c->y_pad;
    for (int t = 0; t < c->n_tok; t++) {
        for (int r = 0; r < ys; r++) {
            float got = y[t * ys + r];
            if (r >= c->rows) {
                cr_assert(memcmp(&got, &c->y0[t * ys + r], 4) == 0,
                          "%s: %s: token %d wrote past its row, at %d", who,
                          linear_case_name(c), t, r);
                continue;
            }
            double want = c->sum[t * c->rows + r];
            double limit = factor * 0x1p-23 * c->scale[t * c->rows + r];
            cr_assert(fabs((double)got - want) <= limit,
                      "%s: %s: token %d row %d is %.9g, expected %.9g +- %.2g",
                      who, linear_case_name(c), t, r, (double)got, want, limit);
        }
    }
}

/* The problem in a device's buffers. Weights are split into n_views buffers,
 * not all starting at offset 0; every buffer ends where its data ends. */
typedef struct linear_setup {
    folio_device *dev;
    folio_queue *q;
    folio_buf *x, *y, *b, *w[4], *scratch;
    folio_weight_view views[4];
    folio_weight weight;
    folio_linear_args args;
} linear_setup;

static inline folio_buf *linear_upload(folio_device *dev, folio_queue *q,
                                       size_t offset, const void *src,
                                       size_t bytes)
{
    folio_buf *buf = NULL;
    cr_assert(folio_buf_open(dev, offset + bytes, &buf) == FOLIO_OK);
    cr_assert(folio_queue_write(q, (folio_view){buf, offset}, src, bytes) ==
              FOLIO_OK);
    return buf;
}

static inline void linear_setup_open(linear_setup *s, folio_device *dev,
                                     folio_queue *q, const linear_case *c)
{
    memset(s, 0, sizeof *s);
    s->dev = dev;
    s->q = q;
    int xs = c->cols + c->x_pad, ys = c->rows + c->y_pad;
    /* The last row ends with its last value, not with its stride. */
    size_t x_n = (size_t)c->n_tok * (size_t)xs - (size_t)c->x_pad;
    size_t y_n = (size_t)c->n_tok * (size_t)ys - (size_t)c->y_pad;
    s->x = linear_upload(dev, q, 4, c->x, x_n * sizeof(float));
    s->y = linear_upload(dev, q, 8, c->y0, y_n * sizeof(float));
    s->b = linear_upload(dev, q, 12, c->b, (size_t)c->rows * sizeof(float));
    int first = 0;
    for (int i = 0; i < c->n_views; i++) {
        int last = c->rows * (i + 1) / c->n_views;
        size_t offset = i % 2 ? 32 : 0;
        s->w[i] =
            linear_upload(dev, q, offset, c->w + (size_t)first * c->row_bytes,
                          (size_t)(last - first) * c->row_bytes);
        s->views[i].view = (folio_view){s->w[i], offset};
        s->views[i].first_row = first;
        s->views[i].rows = last - first;
        first = last;
    }
    s->weight = (folio_weight){.type = c->type,
                               .packing = FOLIO_PACK_RAW,
                               .rows = c->rows,
                               .cols = c->cols,
                               .views = s->views,
                               .n_views = c->n_views};
    s->args = (folio_linear_args){.x = {s->x, 4},
                                  .w = &s->weight,
                                  .y = {s->y, 8},
                                  .n_tok = c->n_tok,
                                  .x_stride = xs,
                                  .y_stride = ys,
                                  .accumulate = c->accumulate};
    if (c->bias)
        s->args.bias = (folio_view){s->b, 12};
}

static inline void linear_setup_close(linear_setup *s)
{
    folio_buf_close(&s->x);
    folio_buf_close(&s->y);
    folio_buf_close(&s->b);
    for (int i = 0; i < 4; i++)
        folio_buf_close(&s->w[i]);
    folio_buf_close(&s->scratch);
}

/* y as it lies on the device now, with y0's padding behind the last row. */
static inline float *linear_setup_read(linear_setup *s, const linear_case *c)
{
    size_t n = (size_t)c->n_tok * (size_t)(c->rows + c->y_pad);
    float *y = folio_calloc(n, sizeof(float));
    cr_assert_not_null(y);
    memcpy(y, c->y0, n * sizeof(float));
    cr_assert(folio_queue_read(s->q, (folio_view){s->y, 8}, y,
                               (n - (size_t)c->y_pad) * sizeof(float)) ==
              FOLIO_OK);
    return y;
}

static inline void linear_setup_reset(linear_setup *s, const linear_case *c)
{
    size_t n = (size_t)c->n_tok * (size_t)(c->rows + c->y_pad);
    cr_assert(folio_queue_write(s->q, (folio_view){s->y, 8}, c->y0,
                                (n - (size_t)c->y_pad) * sizeof(float)) ==
              FOLIO_OK);
}

/* The same problem for tokens first .. first + n - 1 alone. */
static inline folio_linear_args linear_args_slice(const linear_setup *s,
                                                  int first, int n)
{
    folio_linear_args a = s->args;
    a.x.offset += (size_t)first * (size_t)a.x_stride * sizeof(float);
    a.y.offset += (size_t)first * (size_t)a.y_stride * sizeof(float);
    a.n_tok = n;
    return a;
}

/* Runs one variant by name on the problem and returns y; NULL with the
 * variant's name printed where it does not fit. With `parts`, the tokens are
 * given in runs of these lengths (0 ends), from ops opened for the whole. */
static inline float *linear_run_variant(linear_setup *s, const linear_case *c,
                                        const char *name, const int *parts)
{
    folio_op_params prm = {.deterministic = false, .exact = true};
    folio_op *op = NULL;
    folio_status st = folio_op_open_variant(s->dev, name, &prm, &s->args, &op);
    if (st == FOLIO_E_UNSUPPORTED)
        return NULL;
    cr_assert(st == FOLIO_OK, "%s: open gave %s", name, folio_status_text(st));
    folio_buf_close(&s->scratch);
    if (folio_op_scratch_bytes(op) > 0) {
        cr_assert(folio_buf_open(s->dev, folio_op_scratch_bytes(op),
                                 &s->scratch) == FOLIO_OK);
        s->args.scratch = (folio_view){s->scratch, 0};
    }
    linear_setup_reset(s, c);
    if (!parts) {
        cr_assert(folio_op_run(op, s->q, &s->args) == FOLIO_OK);
    } else {
        int first = 0;
        for (; *parts; parts++) {
            folio_linear_args a = linear_args_slice(s, first, *parts);
            cr_assert(folio_op_run(op, s->q, &a) == FOLIO_OK);
            first += *parts;
        }
        cr_assert(first == c->n_tok);
    }
    float *y = linear_setup_read(s, c);
    folio_op_close(&op);
    return y;
}

#endif
