/* A runner whose decode steps are one launch for all layers, in its portable
 * form on PoCL, against one that runs op by op: the same ids and logits, few
 * launches; and what runs where that launch is not to be had. Skipped with a
 * reason where there is no PoCL, except in CI. */
#define _DEFAULT_SOURCE /* setenv */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/impl.h"
#include "model/model_internal.h"

#define OK(expr)                                                               \
    do {                                                                       \
        const folio_status st_ = (expr);                                       \
        cr_assert_eq(st_, FOLIO_OK, "%s: %s", #expr, folio_status_name(st_));  \
    } while (0)

enum { N_SEQ = 2, N_PROMPT = 5, N_NEW = 4, BLOCKS = 4, BS = 16 };

#define MATRIX_UNITS                                                           \
    "attn_mma,attn_bulk,linear_mma,linear_wgmma,norm_linear_wgmma"

/* Of the largest logit: activations are rounded to halves five times a layer.
 */
#define SHARE 2e-2f

typedef struct decoded {
    float *logits; /* of each step and sequence */
    size_t n;
    uint64_t launches;          /* of the last step */
    char step[64], reason[160]; /* of the choice for the op step */
} decoded;

static void find_choice(const folio_runner *r, decoded *d)
{
    folio_choice c;
    strcpy(d->step, "none");
    for (size_t i = 0; folio_runner_choice(r, i, &c) == FOLIO_OK; i++)
        if (strcmp(c.op, "step") == 0) {
            strncpy(d->step, c.variant, sizeof d->step - 1);
            memcpy(d->reason, c.reason, sizeof d->reason);
        }
}

static int32_t deterministic;

/* Decodes fixed ids for two sequences. */
static decoded decode(folio_model *m, int32_t n_vocab, int32_t fused,
                      bool exact)
{
    folio_runner *r = NULL;
    folio_runner_params p;
    decoded d = {.n = (size_t)(N_NEW + 1) * N_SEQ * (size_t)n_vocab};
    float *out = d.logits = calloc(d.n, sizeof *d.logits);
    cr_assert(out);
    folio_runner_params_default(&p);
    p.max_seqs = N_SEQ;
    p.max_tok = 16;
    p.max_rows = N_SEQ;
    p.max_ctx = BLOCKS / N_SEQ * BS;
    p.n_blocks = BLOCKS;
    p.deterministic = deterministic;
    p.exact = exact;
    p.fused = fused;
    OK(folio_runner_open(m, &p, &r));
    find_choice(r, &d);
    int32_t tok[16], pos[16], slot[16], q_start[N_SEQ + 1] = {0};
    int32_t kv_len[N_SEQ], start[N_SEQ + 1] = {0, 2, 4}, rows[N_SEQ];
    const int32_t tables[BLOCKS] = {2, 0, 3, 1};
    folio_runner_counters before = {0}, after;
    for (int step = 0; step <= N_NEW; step++) {
        const int32_t each = step ? 1 : N_PROMPT;
        int32_t n = 0;
        for (int32_t s = 0; s < N_SEQ; s++) {
            const int32_t past = step ? N_PROMPT + step - 1 : 0;
            for (int32_t i = 0; i < each; i++, n++) {
                pos[n] = past + i;
                tok[n] = (7 + 31 * s + 13 * pos[n]) % n_vocab;
                slot[n] = tables[2 * s + pos[n] / BS] * BS + pos[n] % BS;
            }
            kv_len[s] = past + each;
            q_start[s + 1] = n;
            rows[s] = n - 1;
        }
        const folio_batch b = {.n_tok = n,
                               .n_seq = N_SEQ,
                               .tok = tok,
                               .pos = pos,
                               .slot = slot,
                               .q_start = q_start,
                               .kv_len = kv_len,
                               .table_start = start,
                               .tables = tables,
                               .n_rows = N_SEQ,
                               .rows = rows};
        folio_runner_get_counters(r, &before);
        OK(folio_runner_forward(r, &b, -1));
        folio_runner_get_counters(r, &after);
        d.launches = after.launches - before.launches;
        OK(folio_runner_read(r, out + (size_t)step * N_SEQ * (size_t)n_vocab));
    }
    folio_runner_close(&r);
    return d;
}

static int32_t best(const float *row, int32_t n)
{
    int32_t at = 0;
    for (int32_t i = 1; i < n; i++)
        at = row[i] > row[at] ? i : at;
    return at;
}

/* The same ids, unless two are as good as each other within `share`. */
static void expect_same(const decoded *got, const decoded *want,
                        int32_t n_vocab, float share)
{
    float most = 0, off = 0;
    for (size_t i = 0; i < want->n; i++) {
        cr_assert(isfinite(got->logits[i]), "logit %zu", i);
        most = fmaxf(most, fabsf(want->logits[i]));
        off = fmaxf(off, fabsf(want->logits[i] - got->logits[i]));
    }
    cr_assert_gt(most, 0.0f);
    cr_expect_leq(off, share * most, "%g of %g", (double)off, (double)most);
    for (size_t i = 0; i < want->n; i += (size_t)n_vocab) {
        const float *w = want->logits + i, *g = got->logits + i;
        const int32_t a = best(w, n_vocab), b = best(g, n_vocab);
        cr_expect(a == b || w[a] - w[b] <= 2 * off,
                  "row %zu: %d (%g), without step %d (%g)", i / (size_t)n_vocab,
                  b, (double)w[b], a, (double)w[a]);
    }
}

static folio_device *dev;
static folio_model *model;
static folio_model_shape shape;

static void set_up(void)
{
    folio_device_params dp;
    folio_device_params_default(&dp);
    dp.select = "pocl";
    dp.cache_dir = ""; /* no verdicts of other runs */
    const folio_status st = folio_device_open(&dp, &dev);
    if (st == FOLIO_E_NO_DEVICE && !getenv("CI"))
        cr_skip_test("no PoCL here");
    OK(st);
    dev->caps |= FOLIO_CAP_GPU; /* K and V as they are stored for GPUs */
    OK(folio_model_shape_find("tiny", &shape));
    shape.type = "f16";
    setenv("FOLIO_PACKING", "rg16", 1);
    OK(folio_model_open_shape(dev, &shape, NULL, &model));
    unsetenv("FOLIO_PACKING");
    /* Other emulated programs are others' business and take long to build. */
    setenv("FOLIO_DISABLE", MATRIX_UNITS, 1);
}

static void tear_down(void)
{
    unsetenv("FOLIO_DISABLE");
    folio_model_close(&model);
    folio_device_close(&dev);
}

Test(model_step, one_launch_gives_the_ids_of_many, .init = set_up,
     .fini = tear_down, .timeout = 300)
{
    decoded want = decode(model, shape.n_vocab, 0, false);
    model->emulate = true;
    decoded got = decode(model, shape.n_vocab, 2, false);
    cr_expect_str_eq(want.step, "none");
    cr_expect_str_eq(got.step, "step_ring", "%s", got.reason);
    /* Embedding, layers, and the head's gather, norm and product, which may be
     * one. */
    cr_expect_leq(got.launches, 5);
    cr_expect_gt(want.launches, got.launches + (uint64_t)shape.n_layers);
    expect_same(&got, &want, shape.n_vocab, SHARE);
    free(want.logits);
    free(got.logits);
}

/* Not to be had: the fused form runs and says why. */
static void expect_fused(bool exact, const char *reason)
{
    decoded want = decode(model, shape.n_vocab, 1, exact);
    decoded got = decode(model, shape.n_vocab, 2, exact);
    cr_expect_str_eq(want.step, "none");
    cr_expect_str_eq(got.step, "op by op");
    cr_expect(strstr(got.reason, reason), "%s", got.reason);
    cr_expect_eq(got.launches, want.launches);
    cr_expect_eq(memcmp(got.logits, want.logits, want.n * sizeof *want.logits),
                 0);
    free(want.logits);
    free(got.logits);
}

Test(model_step, fused_where_a_device_lacks_what_it_needs, .init = set_up,
     .fini = tear_down, .timeout = 300)
{
    expect_fused(false, "step_ring: ");
}

/* More groups than a CPU runs at once: they never meet. */
Test(model_step, fused_where_groups_do_not_run_at_once, .init = set_up,
     .fini = tear_down, .timeout = 300)
{
    model->emulate = true;
    setenv("FOLIO_TUNE", "step_ring:GROUPS=999,MAX_LOOKS=3000", 1);
    expect_fused(false, "failed its self-test");
    unsetenv("FOLIO_TUNE");
}

Test(model_step, fused_where_arithmetic_shall_be_exact, .init = set_up,
     .fini = tear_down, .timeout = 300)
{
    model->emulate = true;
    expect_fused(true, "not exact");
}

/* The device's capabilities on paper: nothing runs there. */
Test(model_step, chosen_by_itself_where_the_device_has_what_it_needs,
     .init = set_up, .fini = tear_down)
{
    const uint64_t hopper =
        FOLIO_CAP_PTX_MMA | FOLIO_CAP_PTX_BULK | FOLIO_CAP_BIG_LOCAL;
    folio_device *host = NULL;
    folio_device_params dp;
    folio_device_params_default(&dp);
    dp.select = "host";
    OK(folio_device_open(&dp, &host));
    cr_expect_eq(folio_fused_for(host), 0);
    folio_device_close(&host);
    dev->caps |= FOLIO_CAP_CPU | hopper;
    cr_expect_eq(folio_fused_for(dev), 0);
    dev->caps &= ~(uint64_t)FOLIO_CAP_CPU;
    cr_expect_eq(folio_fused_for(dev), 2);
    for (uint64_t cap = 1; cap; cap <<= 1)
        if (hopper & cap) {
            dev->caps &= ~cap;
            cr_expect_eq(folio_fused_for(dev), 1);
            dev->caps |= cap;
        }
}

/* Nobody asks, the device has it, and something keeps it from running: as with
 * few launches a layer. */
Test(model_step, fused_where_the_choice_by_itself_does_not_run, .init = set_up,
     .fini = tear_down, .timeout = 300)
{
    setenv("FOLIO_DISABLE", MATRIX_UNITS ",step_ring", 1);
    dev->caps &= ~(uint64_t)FOLIO_CAP_CPU;
    decoded want = decode(model, shape.n_vocab, 1, false);
    dev->caps |= FOLIO_CAP_PTX_MMA | FOLIO_CAP_PTX_BULK | FOLIO_CAP_BIG_LOCAL;
    decoded got = decode(model, shape.n_vocab, -1, false);
    cr_expect_str_eq(got.step, "op by op");
    cr_expect(strstr(got.reason, "step_ring: "), "%s", got.reason);
    cr_expect_eq(got.launches, want.launches);
    cr_expect_eq(memcmp(got.logits, want.logits, want.n * sizeof *want.logits),
                 0);
    free(want.logits);
    free(got.logits);
    /* Nor where numbers must not be rounded, or not depend on others. */
    setenv("FOLIO_DISABLE", MATRIX_UNITS, 1);
    got = decode(model, shape.n_vocab, -1, true);
    cr_expect_str_eq(got.step, "op by op");
    cr_expect(strstr(got.reason, "step_ring: not exact"), "%s", got.reason);
    free(got.logits);
    deterministic = 1;
    got = decode(model, shape.n_vocab, -1, false);
    cr_expect_str_eq(got.step, "none");
    free(got.logits);
}
