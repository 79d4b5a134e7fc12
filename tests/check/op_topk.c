/* op_topk.c: problems of topk. Exact: ids, values' bits, NaN counts. */
#include "check/check.h"

#include <stdio.h>

#include "base/half.h"

typedef struct topk_case {
    ck_set set;
    int rows, vocab, k;
    ck_fill_kind fill;
} topk_case;

static const topk_case topk_cases[] = {
#define CHECK_TOPK(set, rows, vocab, k, fill)                                  \
    {CK_SET_##set, rows, vocab, k, CK_FILL_##fill},
#include "check/covering.def"
};

static float value(ck_rng *r, const topk_case *k, int row, int i)
{
    switch (k->fill) {
    case CK_FILL_zero:
        return i % 2 ? -0.0f : 0.0f; /* equal, so by id */
    case CK_FILL_equal:
        return (float)ck_below(r, 3); /* ties across all work-items */
    case CK_FILL_low:
        return -1e5f - (float)ck_below(r, 100);
    case CK_FILL_peak:
        return i == k->vocab - 1 - row ? 1e4f : ck_uniform(r, -8, 8);
    case CK_FILL_tiny:
        return ck_uniform(r, -1e-39f, 1e-39f);
    case CK_FILL_huge:
        return ck_below(r, 4) == 0
                   ? folio_bits_f32(ck_below(r, 2) ? 0x7f800000u : 0xff800000u)
                   : ck_uniform(r, -3e38f, 3e38f);
    case CK_FILL_nan:
        /* Row 0 all NaN; others most, of either sign. */
        if (row == 0 || ck_below(r, 10) != 0)
            return folio_bits_f32(ck_below(r, 2) ? 0x7fc00001u : 0xffc00000u);
        return ck_uniform(r, -8, 8);
    default:
        return ck_uniform(r, -20, 20);
    }
}

static void topk_one(ck_ctx *c, const topk_case *k)
{
    char name[80];
    snprintf(name, sizeof name, "topk %d of %d rows %d %s", k->k, k->vocab,
             k->rows, ck_fill_name(k->fill));
    if (!ck_wanted(c, FOLIO_OP_TOPK, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_TOPK);
    folio_topk_args *a = &p->args.topk;
    size_t rows = (size_t)k->rows, n = (size_t)k->k, vocab = (size_t)k->vocab;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    *a = (folio_topk_args){.n_rows = k->rows, .n_vocab = k->vocab, .k = k->k};
    ck_slot *x =
        ck_slot_add_rows(p, "x", CK_IN, CK_F32, rows, vocab, vocab, &a->x);
    for (int row = 0; row < k->rows; row++)
        for (int i = 0; i < k->vocab; i++)
            ck_f32(x)[(size_t)row * vocab + (size_t)i] = value(&r, k, row, i);
    ck_slot_add_rows(p, "ids", CK_OUT, CK_I32, rows, n, n, &a->ids);
    ck_slot_add_rows(p, "values", CK_OUT, CK_F32, rows, n, n, &a->values);
    ck_slot_add_rows(p, "n_nan", CK_OUT, CK_I32, rows, 1, 1, &a->n_nan);
    ck_slot_add(p, "scratch", CK_SCRATCH, CK_BYTES, 0, &a->scratch);
    ck_judge(c, p);
}

void ck_topk(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(topk_cases); i++)
        if (ck_in_size(c, topk_cases[i].set))
            topk_one(c, &topk_cases[i]);
}
