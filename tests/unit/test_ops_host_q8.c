/* linear with 8-bit activations on the host device: every instruction set this
 * processor has; how tokens are quantised; sums of tokens that 8 bits hold
 * exactly against sums in double, over types, shapes, strides, bias,
 * accumulation and views; the same bits alone and in a batch, on one thread and
 * on two; how far rounding other tokens moves the result. */
#include "unit/linear_case.h"

#include "ops/host/host_linear.h"
#include "ops/host/host_q8.h"
#include "ops/pack.h"

/* Sums of up to 128 blocks in one chain, each addition off by half an epsilon
 * of the sum so far, which the scale bounds many times over. */
#define FACTOR 8.0

static const folio_type q8_types[] = {
    FOLIO_TYPE_Q4_0, FOLIO_TYPE_Q4_1, FOLIO_TYPE_Q5_0, FOLIO_TYPE_Q5_1,
    FOLIO_TYPE_Q8_0, FOLIO_TYPE_Q4_K, FOLIO_TYPE_Q5_K, FOLIO_TYPE_Q6_K,
};

typedef struct bench {
    folio_device *dev[2];
    folio_queue *q[2];
    linear_setup on[2];
} bench;

static void open_bench(bench *b, const linear_case *c)
{
    for (int i = 0; i < 2; i++) {
        folio_device_params p;
        folio_device_params_default(&p);
        p.select = "host";
        p.n_threads = i + 1;
        p.cache_dir = "";
        cr_assert(folio_device_open(&p, &b->dev[i]) == FOLIO_OK);
        cr_assert(folio_queue_open(b->dev[i], &b->q[i]) == FOLIO_OK);
        linear_setup_open(&b->on[i], b->dev[i], b->q[i], c);
        size_t bytes = folio_host_q8_scratch_bytes(c->n_tok, c->cols);
        cr_assert(folio_buf_open(b->dev[i], bytes, &b->on[i].scratch) ==
                  FOLIO_OK);
        b->on[i].args.scratch = (folio_view){b->on[i].scratch, 0};
    }
}

static void close_bench(bench *b)
{
    for (int i = 0; i < 2; i++) {
        linear_setup_close(&b->on[i]);
        folio_queue_close(&b->q[i]);
        folio_device_close(&b->dev[i]);
    }
}

/* y of one set with `part` tokens at a time. */
static float *run_set(linear_setup *s, const linear_case *c,
                      const folio_host_q8_set *set, int part)
{
    linear_setup_reset(s, c);
    for (int t = 0; t < c->n_tok; t += part) {
        folio_linear_args a =
            linear_args_slice(s, t, FOLIO_MIN(part, c->n_tok - t));
        folio_host_q8_run(set, folio_device_threads(s->dev), &a);
    }
    return linear_setup_read(s, c);
}

static void check_case(linear_case c)
{
    static const int lengths[] = {1, 2, 3, 5, 7, 8, 9, 33};
    const folio_host_q8_set *set;
    linear_case_make(&c);
    bench b;
    open_bench(&b, &c);
    size_t bytes = (size_t)c.n_tok * (size_t)(c.rows + c.y_pad) * sizeof(float);
    for (int i = 0; (set = folio_host_q8_set_at(i)) != NULL; i++) {
        float *whole = run_set(&b.on[0], &c, set, c.n_tok);
        linear_case_judge(&c, whole, set->name, FACTOR);
        float *y = run_set(&b.on[1], &c, set, c.n_tok);
        cr_assert(memcmp(whole, y, bytes) == 0, "%s: %s: two threads differ",
                  set->name, linear_case_name(&c));
        free(y);
        for (size_t l = 0; l < FOLIO_COUNT(lengths); l++) {
            y = run_set(&b.on[0], &c, set, lengths[l]);
            cr_assert(memcmp(whole, y, bytes) == 0,
                      "%s: %s: %d at a time differ", set->name,
                      linear_case_name(&c), lengths[l]);
            free(y);
        }
        free(whole);
    }
    close_bench(&b);
    linear_case_free(&c);
}

Test(ops_host_q8, sums_are_right_and_do_not_depend_on_the_batch)
{
    static const int cols[] = {32, 96, 576, 800, 4096};
    static const int k_cols[] = {256, 768, 1024, 4096};
    static const int rows[] = {1, 3, 16, 41};
    uint32_t seed = 1;
    for (size_t i = 0; i < FOLIO_COUNT(q8_types); i++) {
        folio_type type = q8_types[i];
        bool k = folio_type_find((uint32_t)type)->block_values == 256;
        size_t n_cols = k ? FOLIO_COUNT(k_cols) : FOLIO_COUNT(cols);
        cr_assert(folio_host_q8_knows(type));
        for (size_t j = 0; j < n_cols; j++)
            for (size_t r = 0; r < FOLIO_COUNT(rows); r++, seed++) {
                /* The flags in all combinations over the shapes. */
                linear_case c = {.type = type,
                                 .rows = rows[r],
                                 .cols = k ? k_cols[j] : cols[j],
                                 .n_tok = seed % 4 == 0 ? 73 : 11,
                                 .x_pad = seed % 3 ? 0 : 7,
                                 .y_pad = seed % 5 ? 0 : 3,
                                 .bias = seed >> 1 & 1,
                                 .accumulate = seed & 1,
                                 .n_views = FOLIO_MIN(rows[r], 1 + (int)r),
                                 .whole_steps = 1,
                                 .seed = seed};
                check_case(c);
            }
    }
}

/* The problem's weights in groups of 16 rows, in one view. */
static folio_buf *pack_weights(linear_setup *s, const linear_case *c)
{
    size_t bytes = folio_pack_bytes(FOLIO_PACK_RG16, c->type, c->rows, c->cols);
    uint8_t *packed = folio_calloc(bytes, 1);
    cr_assert(bytes > 0 && packed);
    folio_pack_rows(FOLIO_PACK_RG16, c->type, c->cols, c->w, c->rows, packed);
    folio_buf *buf = linear_upload(s->dev, s->q, 0, packed, bytes);
    s->views[0] = (folio_weight_view){.view = {buf, 0}, .rows = c->rows};
    s->weight.packing = FOLIO_PACK_RG16;
    free(packed);
    return buf;
}

/* Packed weights give the bits that the file's rows do, in both arithmetics. */
Test(ops_host_q8, packed_rows_give_the_same_bits)
{
    static const folio_type types[] = {FOLIO_TYPE_Q4_0, FOLIO_TYPE_Q4_1,
                                       FOLIO_TYPE_Q8_0};
    static const int cols[] = {32, 768, 1056}, rows[] = {1, 7, 16, 45};
    const folio_host_q8_set *set;
    const folio_host_linear_set *exact;
    for (uint32_t i = 0; i < 36; i++) {
        linear_case c = {.type = types[i % 3],
                         .rows = rows[i / 3 % 4],
                         .cols = cols[i / 12],
                         .n_tok = i % 2 ? 70 : 5,
                         .bias = i / 2 % 2,
                         .accumulate = i / 4 % 2,
                         .n_views = 1,
                         .seed = 77 + i};
        linear_case_make(&c);
        bench b;
        open_bench(&b, &c);
        folio_buf *packed = pack_weights(&b.on[1], &c);
        size_t bytes = (size_t)c.n_tok * (size_t)c.rows * sizeof(float);
        for (int n = 0; (set = folio_host_q8_set_at(n)) != NULL; n++) {
            float *raw = run_set(&b.on[0], &c, set, c.n_tok);
            float *y = run_set(&b.on[1], &c, set, c.n_tok);
            cr_assert(memcmp(raw, y, bytes) == 0, "%s: %s", set->name,
                      linear_case_name(&c));
            free(raw);
            free(y);
        }
        for (int n = 0; (exact = folio_host_linear_set_at(n)) != NULL; n++) {
            float *y[2];
            for (int k = 0; k < 2; k++) {
                linear_setup_reset(&b.on[k], &c);
                folio_host_linear_run(exact, folio_device_threads(b.dev[k]),
                                      &b.on[k].args);
                y[k] = linear_setup_read(&b.on[k], &c);
            }
            cr_assert(memcmp(y[0], y[1], bytes) == 0, "exact %s: %s",
                      exact->name, linear_case_name(&c));
            free(y[0]);
            free(y[1]);
        }
        folio_buf_close(&packed);
        close_bench(&b);
        linear_case_free(&c);
    }
}

/* Any x: each row of results points where the exact one does. */
Test(ops_host_q8, rounding_tokens_keeps_the_direction)
{
    const folio_host_q8_set *set;
    for (size_t i = 0; i < FOLIO_COUNT(q8_types); i++) {
        linear_case c = {.type = q8_types[i],
                         .rows = 300,
                         .cols = 768,
                         .n_tok = 9,
                         .n_views = 2,
                         .seed = 5 + (uint32_t)i};
        linear_case_make(&c);
        bench b;
        open_bench(&b, &c);
        for (int n = 0; (set = folio_host_q8_set_at(n)) != NULL; n++) {
            float *y = run_set(&b.on[1], &c, set, c.n_tok);
            for (int t = 0; t < c.n_tok; t++) {
                double gg = 0, ww = 0, gw = 0;
                for (int r = 0; r < c.rows; r++) {
                    double g = (double)y[t * c.rows + r];
                    double w = c.sum[t * c.rows + r];
                    gg += g * g;
                    ww += w * w;
                    gw += g * w;
                }
                double cosine = gw / sqrt(gg * ww);
                cr_assert(cosine > 0.9999, "%s: %s: token %d has cosine %.6f",
                          set->name, linear_case_name(&c), t, cosine);
            }
            free(y);
        }
        close_bench(&b);
        linear_case_free(&c);
    }
}

/* ---- tokens -------------------------------------------------------------- */

Test(ops_host_q8, tokens_are_rounded_to_the_nearest_step)
{
    enum { COLS = 2048 };
    const folio_host_q8_set *set;
    static float x[COLS];
    static int8_t q[COLS];
    static folio_host_q8_step step[COLS / 32];
    uint32_t s = 99;
    for (int k = 0; k < COLS; k++)
        x[k] = (float)ldexp((double)linear_uniform(&s), k / 32 - 30);
    for (int n = 0; (set = folio_host_q8_set_at(n)) != NULL; n++) {
        set->quantise(FOLIO_TYPE_Q6_K, x, COLS, q, step);
        for (int b = 0; b < COLS / 32; b++) {
            float most = 0;
            int sum[2] = {0, 0};
            for (int k = 0; k < 32; k++) {
                most = fmaxf(most, fabsf(x[32 * b + k]));
                sum[k / 16] += q[32 * b + k];
            }
            cr_assert_eq(step[b].d, most / 127);
            cr_assert_eq(step[b].sum, step[b].d * (float)(sum[0] + sum[1]));
            cr_assert_eq(step[b].start[0], -32 * sum[0]);
            cr_assert_eq(step[b].start[1], -32 * sum[1]);
            for (int k = 32 * b; k < 32 * b + 32; k++) {
                double off = (double)x[k] / (double)step[b].d - q[k];
                cr_assert(fabs(off) < 0.50001, "%s: x[%d] is off by %g steps",
                          set->name, k, off);
                cr_assert(q[k] >= -127);
            }
        }
    }
}

Test(ops_host_q8, zeros_and_vanishing_tokens_give_zeros)
{
    const folio_host_q8_set *set;
    float x[64] = {0};
    for (int k = 32; k < 64; k++)
        x[k] = k % 2 ? 1e-40f : -1e-36f;
    for (int n = 0; (set = folio_host_q8_set_at(n)) != NULL; n++) {
        int8_t q[64];
        folio_host_q8_step step[2];
        memset(q, 77, sizeof q);
        set->quantise(FOLIO_TYPE_Q4_0, x, 64, q, step);
        for (int k = 0; k < 64; k++)
            cr_assert_eq(q[k], 0);
        for (int b = 0; b < 2; b++) {
            cr_assert(step[b].d == 0 && step[b].sum == 0);
            cr_assert(step[b].start[0] == 0);
        }
    }
}

/* One such value must reach every row of its token, and no other token. */
Test(ops_host_q8, what_is_not_finite_shows_in_every_row)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, -NAN};
    const folio_host_q8_set *set;
    for (size_t i = 0; i < FOLIO_COUNT(q8_types); i++) {
        linear_case c = {.type = q8_types[i],
                         .rows = 20,
                         .cols = 512,
                         .n_tok = 3,
                         .n_views = 1,
                         .whole_steps = 1,
                         .seed = 31};
        linear_case_make(&c);
        c.x[512 + 300] = bad[i % FOLIO_COUNT(bad)];
        bench b;
        open_bench(&b, &c);
        for (int n = 0; (set = folio_host_q8_set_at(n)) != NULL; n++) {
            float *y = run_set(&b.on[0], &c, set, 3);
            for (int r = 0; r < 60; r++)
                cr_assert(isnan(y[r]) == (r / 20 == 1),
                          "%s: %s: token %d row %d is %g", set->name,
                          linear_case_name(&c), r / 20, r % 20, (double)y[r]);
            free(y);
        }
        close_bench(&b);
        linear_case_free(&c);
    }
}

/* ---- choice -------------------------------------------------------------- */

static void check_choice(bench *b, const folio_op_params *prm, const char *want)
{
    folio_op *op = NULL;
    cr_assert(folio_op_open(b->dev[0], FOLIO_OP_LINEAR, prm, &b->on[0].args,
                            &op) == FOLIO_OK);
    cr_assert_str_eq(folio_op_variant_name(op), want);
    bool q8 = (folio_op_flags(op) & FOLIO_VAR_Q8) != 0;
    cr_assert_eq(q8, strcmp(want, "host_linear_q8") == 0);
    folio_op_close(&op);
}

Test(ops_host_q8, is_taken_unless_exact_or_of_another_type)
{
    static const folio_type types[] = {FOLIO_TYPE_Q4_1, FOLIO_TYPE_F16,
                                       FOLIO_TYPE_IQ4_NL};
    for (int i = 0; i < 3; i++) {
        linear_case c = {.type = types[i],
                         .rows = 40,
                         .cols = 64,
                         .n_tok = 3,
                         .n_views = 2,
                         .seed = 11};
        linear_case_make(&c);
        bench b;
        open_bench(&b, &c);
        folio_op_params prm = {.deterministic = true};
        check_choice(&b, &prm, i == 0 ? "host_linear_q8" : "host_linear");
        prm.exact = true;
        check_choice(&b, &prm, "host_linear");
        close_bench(&b);
        linear_case_free(&c);
    }
}
