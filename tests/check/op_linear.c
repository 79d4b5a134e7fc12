/* op_linear.c: problems of linear, and weights made of random blocks. */
#include "check/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "ops/pack.h"

/* ---- weights --------------------------------------------------------------
 */

/* As the check of arguments demands it. */
size_t ck_weight_align(folio_type type)
{
    return folio_pack_align(FOLIO_PACK_RAW, type);
}

/* Places of the half scales in a block; -1 ends the list. */
static const int *half_fields(folio_type type)
{
    static const int first[] = {0, -1}, first_two[] = {0, 2, -1}, none[] = {-1};
    static const int q2_k[] = {80, 82, -1}, q3_k[] = {108, -1},
                     q6_k[] = {208, -1};
    switch (type) {
    case FOLIO_TYPE_Q4_1:
    case FOLIO_TYPE_Q5_1:
    case FOLIO_TYPE_Q4_K:
    case FOLIO_TYPE_Q5_K:
        return first_two;
    case FOLIO_TYPE_Q2_K:
        return q2_k;
    case FOLIO_TYPE_Q3_K:
        return q3_k;
    case FOLIO_TYPE_Q6_K:
        return q6_k;
    case FOLIO_TYPE_MXFP4:
        return none;
    default:
        return first;
    }
}

static void put16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, 2);
}

void ck_fill_weights(ck_rng *r, folio_type type, uint8_t *p, size_t bytes,
                     bool tiny)
{
    const folio_type_info *info = folio_type_find((uint32_t)type);
    const float most = tiny ? 1e-6f : 0.5f;
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)ck_next(r);
    for (size_t b = 0; b + info->block_bytes <= bytes; b += info->block_bytes) {
        float v = ck_uniform(r, -most, most);
        switch (type) {
        case FOLIO_TYPE_F32:
            memcpy(p + b, &v, 4);
            break;
        case FOLIO_TYPE_F16:
            put16(p + b, folio_f32_to_f16(v));
            break;
        case FOLIO_TYPE_BF16:
            put16(p + b, folio_f32_to_bf16(v));
            break;
        case FOLIO_TYPE_MXFP4:
            p[b] = (uint8_t)(tiny ? 1 + ck_below(r, 3) : 120 + ck_below(r, 8));
            break;
        default:
            for (const int *at = half_fields(type); *at >= 0; at++)
                put16(p + b + *at,
                      folio_f32_to_f16(ck_uniform(r, -most, most) * 0.2f));
            break;
        }
    }
}

void ck_add_weight(ck_problem *p, ck_rng *r, folio_type type,
                   folio_packing packing, int64_t rows, int64_t cols,
                   int n_views, bool tiny)
{
    static const char *const names[] = {"w", "w 1", "w 2", "w 3"};
    size_t row_bytes = folio_type_row_bytes(type, (uint64_t)cols);
    int64_t group = folio_pack_group(packing), first = 0;
    int i = 0;
    for (; first < rows; i++) {
        /* Uneven parts of whole groups. */
        int64_t n = rows - first;
        if (i + 1 < n_views)
            n = FOLIO_MIN(n, FOLIO_MAX(n / 3 / group, 1) * group);
        p->wv[i] = (folio_weight_view){.first_row = first, .rows = n};
        ck_slot *s = ck_slot_add(p, names[i], CK_IN, CK_BYTES,
                                 (size_t)n * row_bytes, &p->wv[i].view);
        s->align = ck_weight_align(type);
        ck_fill_weights(r, type, s->init, s->bytes, tiny);
        first += n;
    }
    p->packing = packing;
    p->w = (folio_weight){.type = type,
                          .packing = FOLIO_PACK_RAW,
                          .rows = rows,
                          .cols = cols,
                          .views = p->wv,
                          .n_views = i};
}

static void pack_one(ck_problem *p, folio_weight *w,
                     const folio_weight_view *views)
{
    for (int i = 0; i < p->n_slots; i++) {
        ck_slot *s = &p->slot[i];
        for (int32_t v = 0; v < w->n_views; v++) {
            if (s->into != &views[v].view)
                continue;
            size_t bytes =
                folio_pack_bytes(p->packing, w->type, views[v].rows, w->cols);
            uint8_t *packed = folio_calloc(bytes, 1);
            if (!packed)
                continue; /* stays RAW, and so wrong: the check fails */
            folio_pack_rows(p->packing, w->type, w->cols, s->init,
                            views[v].rows, packed);
            ck_slot_set(s, packed, bytes);
            s->align = folio_pack_align(p->packing, w->type);
            free(packed);
        }
    }
    w->packing = p->packing;
}

void ck_pack_weight(ck_problem *p)
{
    if (p->w.packing != p->packing)
        pack_one(p, &p->w, p->wv);
    for (int i = 0; i < FOLIO_MAX_PRODUCTS; i++)
        if (p->fw[i].packing != p->packing)
            pack_one(p, &p->fw[i], &p->fwv[i]);
}

/* ---- linear ---------------------------------------------------------------
 */

typedef struct linear_case {
    ck_set set;
    const char *pick;
    folio_type type;
    int rows, cols, tok, x_pad, y_pad;
    int bias, accumulate, views;
    ck_fill_kind fill;
    folio_packing packing;
} linear_case;

static const linear_case linear_cases[] = {
#define CHECK_LINEAR(set, pick, type, rows, cols, tok, x_pad, y_pad, bias,     \
                     accumulate, views, fill)                                  \
    {                                                                          \
        CK_SET_##set,                                                          \
        #pick,                                                                 \
        FOLIO_TYPE_##type,                                                     \
        rows,                                                                  \
        cols,                                                                  \
        tok,                                                                   \
        x_pad,                                                                 \
        y_pad,                                                                 \
        bias,                                                                  \
        accumulate,                                                            \
        views,                                                                 \
        CK_FILL_##fill,                                                        \
        0},
#define CHECK_PACKED(set, pick, type, packing, rows, cols, tok, x_pad, y_pad,  \
                     bias, accumulate, views, fill)                            \
    {CK_SET_##set,                                                             \
     #pick,                                                                    \
     FOLIO_TYPE_##type,                                                        \
     rows,                                                                     \
     cols,                                                                     \
     tok,                                                                      \
     x_pad,                                                                    \
     y_pad,                                                                    \
     bias,                                                                     \
     accumulate,                                                               \
     views,                                                                    \
     CK_FILL_##fill,                                                           \
     FOLIO_PACK_##packing},
#include "check/covering.def"
};

static void fill_x(ck_rng *r, const linear_case *k, float *x)
{
    ck_fill(r, x, (size_t)k->cols, -1.0f, 1.0f);
    for (int i = 0; i < k->cols; i++) {
        if (k->fill == CK_FILL_zero)
            x[i] = 0.0f;
        /* Large terms of both signs: a sum in the wrong order shows. */
        if (k->fill == CK_FILL_cancel)
            x[i] *= i % 2 ? 1e4f : 1.0f;
    }
}

/* Sum of the absolute values of all terms of each output. */
static void set_scale(const ck_problem *p, const linear_case *k,
                      const ck_slot *x, const ck_slot *bias, ck_slot *y)
{
    size_t cols = (size_t)k->cols, y_stride = y->row_bytes / sizeof(float);
    float *w = folio_calloc(cols, sizeof *w);
    y->scale = folio_calloc(ck_slot_count(y) + 1, sizeof *y->scale);
    if (!w || !y->scale) {
        free(w);
        return;
    }
    size_t row_bytes = folio_type_row_bytes(k->type, cols);
    for (int v = 0; v < p->w.n_views; v++) {
        const ck_slot *s = NULL;
        for (int i = 0; i < p->n_slots; i++)
            if (p->slot[i].into == &p->wv[v].view)
                s = &p->slot[i];
        for (int64_t i = 0; s && i < p->wv[v].rows; i++) {
            size_t row = (size_t)(p->wv[v].first_row + i);
            folio_dequant(k->type, s->init + (size_t)i * row_bytes, k->cols, w);
            for (size_t t = 0; t < (size_t)k->tok; t++) {
                const float *xt =
                    (const float *)(const void *)(x->init + t * x->row_bytes);
                double sum = bias ? fabs((double)ck_f32(bias)[row]) : 0;
                if (k->accumulate)
                    sum += fabs((double)ck_f32(y)[t * y_stride + row]);
                for (size_t j = 0; j < cols; j++)
                    sum += fabs((double)w[j] * (double)xt[j]);
                y->scale[t * y_stride + row] = sum;
            }
        }
    }
    free(w);
}

static void linear_one(ck_ctx *c, const linear_case *k)
{
    char name[140];
    snprintf(name, sizeof name,
             "linear %s%s%s %dx%d tok %d pads %d,%d%s%s views %d %s",
             folio_type_find((uint32_t)k->type)->name, k->packing ? " " : "",
             k->packing ? folio_pack_name(k->packing) : "", k->rows, k->cols,
             k->tok, k->x_pad, k->y_pad, k->bias ? " bias" : "",
             k->accumulate ? " accumulate" : "", k->views,
             ck_fill_name(k->fill));
    if (!ck_wanted(c, FOLIO_OP_LINEAR, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_LINEAR);
    folio_linear_args *a = &p->args.linear;
    size_t tok = (size_t)k->tok, rows = (size_t)k->rows;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    p->pick = c->size == CK_FULL ? "all" : k->pick;
    *a = (folio_linear_args){.w = &p->w,
                             .n_tok = k->tok,
                             .x_stride = k->cols + k->x_pad,
                             .y_stride = k->rows + k->y_pad,
                             .accumulate = k->accumulate};
    ck_slot *x = ck_slot_add_rows(p, "x", CK_IN, CK_F32, tok, (size_t)k->cols,
                                  (size_t)a->x_stride, &a->x);
    for (size_t t = 0; t < tok; t++)
        fill_x(&r, k, (float *)(void *)(x->init + t * x->row_bytes));
    ck_add_weight(p, &r, k->type, k->packing, k->rows, k->cols, k->views,
                  k->fill == CK_FILL_tiny);
    ck_slot *bias = NULL;
    if (k->bias) {
        bias = ck_slot_add(p, "bias", CK_IN, CK_F32, rows, &a->bias);
        bias->optional = true;
        ck_fill(&r, ck_f32(bias), rows, -1.0f, 1.0f);
    }
    ck_slot *y =
        ck_slot_add_rows(p, "y", k->accumulate ? CK_INOUT : CK_OUT, CK_F32, tok,
                         rows, (size_t)a->y_stride, &a->y);
    for (size_t t = 0; k->accumulate && t < tok; t++)
        ck_fill(&r, (float *)(void *)(y->init + t * y->row_bytes), rows, -1.0f,
                1.0f);
    ck_slot_add(p, "scratch", CK_SCRATCH, CK_BYTES, 0, &a->scratch);
    y->rule = CK_NEAR;
    y->c = 4;
    y->abs = 1e-37;
    y->few_terms = k->cols < 256;
    if (k->set == CK_SET_B)
        y->abs = y->rel = 1e-3; /* sanity; the sums of terms would take long */
    else
        set_scale(p, k, x, bias, y);
    /* The references read every packing; only their quick forms do not. */
    if (!c->bench)
        ck_pack_weight(p);
    ck_judge(c, p);
}

void ck_linear(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(linear_cases); i++)
        if (ck_in_size(c, linear_cases[i].set))
            linear_one(c, &linear_cases[i]);
}
