/* op_norm.c: problems of rmsnorm, act_mul and add. */
#include "check/check.h"

#include <math.h>
#include <stdio.h>

const char *ck_fill_name(ck_fill_kind f)
{
    static const char *const names[] = {"plain", "zero", "equal",
                                        "low",   "peak", "tiny",
                                        "huge",  "nan",  "cancel"};
    return names[f];
}

/* Numbers of the given kind that stay finite under squaring and summing. */
static void fill(ck_rng *r, ck_fill_kind kind, float *x, size_t n)
{
    switch (kind) {
    case CK_FILL_zero:
        for (size_t i = 0; i < n; i++)
            x[i] = 0.0f;
        return;
    case CK_FILL_tiny:
        ck_fill(r, x, n, -1e-6f, 1e-6f);
        return;
    case CK_FILL_huge:
        ck_fill(r, x, n, -1e17f, 1e17f);
        return;
    default:
        ck_fill(r, x, n, -2.0f, 2.0f);
        return;
    }
}

static void fill_rows(ck_rng *r, ck_fill_kind kind, ck_slot *s, size_t rows,
                      size_t width)
{
    for (size_t i = 0; i < rows; i++)
        fill(r, kind, (float *)(void *)(s->init + i * s->row_bytes), width);
}

/* ---- rmsnorm --------------------------------------------------------------
 */

typedef struct norm_case {
    ck_set set;
    int rows, dim, x_pad, out_pad;
    int res, alias;
    ck_fill_kind fill;
} norm_case;

static const norm_case norm_cases[] = {
#define CHECK_RMSNORM(set, rows, dim, x_pad, out_pad, res, alias, fill)        \
    {CK_SET_##set, rows, dim, x_pad, out_pad, res, alias, CK_FILL_##fill},
#include "check/covering.def"
};

static void norm_one(ck_ctx *c, const norm_case *n)
{
    char name[120];
    snprintf(name, sizeof name, "rmsnorm %dx%d pads %d,%d%s%s %s", n->rows,
             n->dim, n->x_pad, n->out_pad, n->res ? " res" : "",
             n->alias ? " in place" : "", ck_fill_name(n->fill));
    if (!ck_wanted(c, FOLIO_OP_RMSNORM, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_RMSNORM);
    folio_rmsnorm_args *a = &p->args.rmsnorm;
    size_t rows = (size_t)n->rows, dim = (size_t)n->dim;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    *a = (folio_rmsnorm_args){.n_rows = n->rows,
                              .dim = n->dim,
                              .x_stride = n->dim + n->x_pad,
                              .out_stride =
                                  n->dim + (n->alias ? n->x_pad : n->out_pad),
                              .eps = n->fill == CK_FILL_tiny ? 1e-12f : 1e-5f};
    ck_slot *x = ck_slot_add_rows(p, "x", n->alias ? CK_INOUT : CK_IN, CK_F32,
                                  rows, dim, (size_t)a->x_stride, &a->x);
    fill_rows(&r, n->fill, x, rows, dim);
    if (n->res) {
        ck_slot *res = ck_slot_add_rows(p, "res", CK_INOUT, CK_F32, rows, dim,
                                        dim, &a->res);
        res->optional = true;
        fill_rows(&r, n->fill, res, rows, dim);
    }
    ck_slot *w = ck_slot_add(p, "w", CK_IN, CK_F32, dim, &a->w);
    ck_fill(&r, ck_f32(w), dim, -2.0f, 2.0f);
    ck_slot *out = x;
    if (n->alias)
        x->also = &a->out;
    else
        out = ck_slot_add_rows(p, "out", CK_OUT, CK_F32, rows, dim,
                               (size_t)a->out_stride, &a->out);
    /* The sum has one sign, so its error is a share of the result: rounding of
     * a sum in any order, then of sqrt, division and two products. */
    out->rule = CK_NEAR;
    out->rel = (6 + 0.5 * sqrt(n->dim)) * 0x1p-23;
    out->abs = 1e-38;
    ck_judge(c, p);
}

void ck_rmsnorm(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(norm_cases); i++)
        if (ck_in_size(c, norm_cases[i].set))
            norm_one(c, &norm_cases[i]);
}

/* ---- act_mul --------------------------------------------------------------
 */

typedef struct act_case {
    ck_set set;
    folio_act act;
    int tok, dim, gate_pad, up_pad, out_pad;
    int alias; /* 0 none, 1 out is gate, 2 out is up */
    ck_fill_kind fill;
} act_case;

static const act_case act_cases[] = {
#define CHECK_ACT(set, act, tok, dim, gate_pad, up_pad, out_pad, alias, fill)  \
    {CK_SET_##set, FOLIO_ACT_##act, tok,   dim,           gate_pad,            \
     up_pad,       out_pad,         alias, CK_FILL_##fill},
#include "check/covering.def"
};

static ck_slot *act_input(ck_problem *p, ck_rng *r, const act_case *k,
                          const char *name, bool is_out, int32_t stride,
                          folio_view *into)
{
    ck_slot *s =
        ck_slot_add_rows(p, name, is_out ? CK_INOUT : CK_IN, CK_F32,
                         (size_t)k->tok, (size_t)k->dim, (size_t)stride, into);
    for (int t = 0; t < k->tok; t++)
        ck_fill(r, (float *)(void *)(s->init + (size_t)t * s->row_bytes),
                (size_t)k->dim, -8.0f, 8.0f);
    if (is_out)
        s->also = &p->args.act.out;
    return s;
}

/* Arguments where exp overflows, vanishes or turns subnormal, and both zeros.
 */
static void put_extremes(ck_slot *gate, const act_case *k)
{
    static const float hard[] = {0.0f,    -0.0f,  88.8f,  -88.8f, 104.0f,
                                 -104.0f, 1e4f,   -1e4f,  1e-30f, -1e-30f,
                                 -17.0f,  -9.01f, -5.5f,  5.5f,   3e12f,
                                 -3e12f,  20.0f,  -20.0f, -87.5f, 0.5f};
    for (int t = 0; t < k->tok; t++) {
        float *row =
            (float *)(void *)(gate->init + (size_t)t * gate->row_bytes);
        for (int i = 0; i < k->dim && i < (int)FOLIO_COUNT(hard); i++)
            row[i] = hard[((size_t)i + (size_t)t) % FOLIO_COUNT(hard)];
    }
}

static void act_one(ck_ctx *c, const act_case *k)
{
    char name[120];
    snprintf(name, sizeof name, "act_mul %s %dx%d pads %d,%d,%d alias %d %s",
             k->act == FOLIO_ACT_SILU ? "silu" : "gelu", k->tok, k->dim,
             k->gate_pad, k->up_pad, k->out_pad, k->alias,
             ck_fill_name(k->fill));
    if (!ck_wanted(c, FOLIO_OP_ACT_MUL, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_ACT_MUL);
    folio_act_mul_args *a = &p->args.act;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    *a = (folio_act_mul_args){.n_tok = k->tok,
                              .dim = k->dim,
                              .gate_stride = k->dim + k->gate_pad,
                              .up_stride = k->dim + k->up_pad,
                              .out_stride = k->dim + k->out_pad,
                              .act = k->act};
    if (k->alias)
        a->out_stride = k->alias == 1 ? a->gate_stride : a->up_stride;
    ck_slot *gate =
        act_input(p, &r, k, "gate", k->alias == 1, a->gate_stride, &a->gate);
    ck_slot *up =
        act_input(p, &r, k, "up", k->alias == 2, a->up_stride, &a->up);
    if (k->fill == CK_FILL_huge)
        put_extremes(gate, k);
    ck_slot *out =
        k->alias == 1 ? gate
        : k->alias == 2
            ? up
            : ck_slot_add_rows(p, "out", CK_OUT, CK_F32, (size_t)k->tok,
                               (size_t)k->dim, (size_t)a->out_stride, &a->out);
    /* exp and tanh may be 5 ulp off; 1 + tanh cancels for negative numbers, an
     * error of the product's own size. */
    out->rule = CK_NEAR;
    out->rel = 16 * 0x1p-23;
    /* exp may be cut off where it is about 1e-38 of a product of inputs that
     * reach 1e13. */
    out->abs = 1e-24;
    if (k->act == FOLIO_ACT_GELU_TANH) {
        out->c = 4;
        out->scale = folio_calloc(ck_slot_count(out) + 1, sizeof *out->scale);
        for (int t = 0; out->scale && t < k->tok; t++) {
            size_t g0 = (size_t)t * (size_t)a->gate_stride,
                   u0 = (size_t)t * (size_t)a->up_stride,
                   o0 = (size_t)t * (size_t)a->out_stride;
            for (size_t i = 0; i < (size_t)k->dim; i++)
                out->scale[o0 + i] = fabs((double)ck_f32(gate)[g0 + i] *
                                          (double)ck_f32(up)[u0 + i]);
        }
    }
    ck_judge(c, p);
}

void ck_act(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(act_cases); i++)
        if (ck_in_size(c, act_cases[i].set))
            act_one(c, &act_cases[i]);
}

/* ---- add ------------------------------------------------------------------
 */

typedef struct add_case {
    ck_set set;
    int n, alias;
    ck_fill_kind fill;
} add_case;

static const add_case add_cases[] = {
#define CHECK_ADD(set, n, alias, fill) {CK_SET_##set, n, alias, CK_FILL_##fill},
#include "check/covering.def"
};

static void add_one(ck_ctx *c, const add_case *k)
{
    char name[80];
    snprintf(name, sizeof name, "add %d%s %s", k->n, k->alias ? " itself" : "",
             ck_fill_name(k->fill));
    if (!ck_wanted(c, FOLIO_OP_ADD, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_ADD);
    folio_add_args *a = &p->args.add;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    a->n = k->n;
    ck_slot *y = ck_slot_add(p, "y", CK_INOUT, CK_F32, (size_t)k->n, &a->y);
    fill(&r, k->fill, ck_f32(y), (size_t)k->n);
    if (k->alias) {
        y->also = &a->x;
    } else {
        ck_slot *x = ck_slot_add(p, "x", CK_IN, CK_F32, (size_t)k->n, &a->x);
        fill(&r, k->fill, ck_f32(x), (size_t)k->n);
    }
    ck_judge(c, p);
}

void ck_add(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(add_cases); i++)
        if (ck_in_size(c, add_cases[i].set))
            add_one(c, &add_cases[i]);
}
