/* op_sample.c: problems of sample. Exact: every word of the answer. Counts,
 * which change as the op runs, are the unit tests' business. */
#include "check/check.h"

#include <math.h>
#include <stdio.h>

#include "ops/sample_row.h"

typedef struct sample_case {
    ck_set set;
    int rows, vocab, edits;
    ck_fill_kind fill;
} sample_case;

static const sample_case sample_cases[] = {
#define CHECK_SAMPLE(set, rows, vocab, edits, fill)                            \
    {CK_SET_##set, rows, vocab, edits, CK_FILL_##fill},
#include "check/covering.def"
};

static float value(ck_rng *r, const sample_case *k, int row, int i)
{
    switch (k->fill) {
    case CK_FILL_zero:
        return i % 2 ? -0.0f : 0.0f; /* equal, so by id */
    case CK_FILL_equal:
        return (float)ck_below(r, 3);
    case CK_FILL_low:
        return -1e5f - (float)ck_below(r, 100) * 0.125f;
    case CK_FILL_peak:
        return i == k->vocab - 1 - row ? 1e4f : ck_uniform(r, -8, 8);
    case CK_FILL_huge:
        return ck_below(r, 4) ? ck_uniform(r, -3e38f, 3e38f) : -INFINITY;
    case CK_FILL_nan:
        /* Row 0 is sane; a few numbers of the others are not. */
        return row && ck_below(r, k->vocab) < 2 ? NAN : ck_uniform(r, -8, 8);
    default:
        return ck_uniform(r, -9, 9) + ck_uniform(r, -9, 9);
    }
}

static void make_words(ck_rng *r, const sample_case *k, int row, int32_t *words)
{
    static const float temps[] = {1, 0.7f, 0, 1.5f};
    static const float top_ps[] = {1, 0.9f, 0.99f, 0.5f, 0};
    static const int32_t top_ks[] = {0, 40, 3};
    const int first = k->edits ? ck_below(r, k->edits) : 0;
    const folio_sample_spec spec = {
        .skip = row % 11 == 10,
        .temperature = temps[row % 4],
        .top_p = top_ps[row % 5],
        .min_p = row % 7 == 3 ? 0.05f : 0,
        .top_k = top_ks[row % 3],
        .seed = ck_next(r),
        .position = ck_next(r),
        .completion = (uint32_t)row,
        .target = ck_below(r, k->vocab + 1) - 1,
        .slot = -1,
        .repetition_penalty = 1,
        .edit_first = first,
        .no_sum = row % 6 == 5,
        .edit_end = first + (k->edits ? ck_below(r, k->edits - first + 1) : 0)};
    folio_sample_pack(&spec, words);
}

static void sample_one(ck_ctx *c, const sample_case *k)
{
    char name[80];
    snprintf(name, sizeof name, "sample of %d rows %d edits %d %s", k->vocab,
             k->rows, k->edits, ck_fill_name(k->fill));
    if (!ck_wanted(c, FOLIO_OP_SAMPLE, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_SAMPLE);
    folio_sample_args *a = &p->args.sample;
    const size_t rows = (size_t)k->rows, vocab = (size_t)k->vocab;
    const size_t stride = vocab + 3;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    *a = (folio_sample_args){.n_rows = k->rows,
                             .n_vocab = k->vocab,
                             .stride = k->vocab + 3,
                             .n_edits = k->edits};
    ck_slot *x = ck_slot_add_rows(p, "logits", CK_IN, CK_F32, rows, vocab,
                                  stride, &a->logits);
    ck_slot *w = ck_slot_add_rows(p, "rows", CK_IN, CK_I32, rows,
                                  FOLIO_SAMPLE_IN, FOLIO_SAMPLE_IN, &a->rows);
    for (int row = 0; row < k->rows; row++) {
        for (int i = 0; i < k->vocab; i++)
            ck_f32(x)[(size_t)row * stride + (size_t)i] = value(&r, k, row, i);
        make_words(&r, k, row, ck_i32(w) + (size_t)row * FOLIO_SAMPLE_IN);
    }
    if (k->edits) {
        ck_slot *e = ck_slot_add(p, "edits", CK_IN, CK_I32,
                                 2 * (size_t)k->edits, &a->edits);
        for (int i = 0; i < k->edits; i++) /* ids rise, some come twice */
            folio_sample_edit(
                ck_i32(e) + 2 * i, (int32_t)((int64_t)i * k->vocab / k->edits),
                ck_below(&r, 3) ? ck_uniform(&r, -5, 5) : -INFINITY);
    }
    ck_slot_add_rows(p, "ids", CK_OUT, CK_I32, rows, 1, 1, &a->ids)->optional =
        true;
    ck_slot_add_rows(p, "out", CK_OUT, CK_I32, rows, FOLIO_SAMPLE_OUT,
                     FOLIO_SAMPLE_OUT, &a->out);
    ck_slot_add(p, "scratch", CK_SCRATCH, CK_BYTES, 0, &a->scratch);
    ck_judge(c, p);
}

void ck_sample(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(sample_cases); i++)
        if (ck_in_size(c, sample_cases[i].set))
            sample_one(c, &sample_cases[i]);
}
