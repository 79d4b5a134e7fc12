/* linear on the host device: every instruction set this processor has against
 * sums in double, over types, shapes, strides, bias, accumulation and views;
 * exact dequantisation; the same bits alone and in a batch, on one thread and
 * on two. */
#include "unit/linear_case.h"

#include "ops/host/host_linear.h"

/* Sixteen lanes of at most 4096 / 16 sums, each of half an epsilon, would give
 * 130 at worst; rounding is not that unlucky. */
#define FACTOR 8.0

static folio_device *open_host(int n_threads)
{
    folio_device_params p;
    folio_device *dev = NULL;
    folio_device_params_default(&p);
    p.select = "host";
    p.n_threads = n_threads;
    p.cache_dir = "";
    cr_assert(folio_device_open(&p, &dev) == FOLIO_OK);
    return dev;
}

/* y of one instruction set for tokens first .. first + n - 1. */
static void run_set(linear_setup *s, const linear_case *c,
                    const folio_host_linear_set *set, int first, int n)
{
    folio_linear_args a = linear_args_slice(s, first, n);
    (void)c;
    folio_host_linear_run(set, folio_device_threads(s->dev), &a);
}

static bool same_bits(const float *a, const float *b, const linear_case *c)
{
    return memcmp(a, b,
                  (size_t)c->n_tok * (size_t)(c->rows + c->y_pad) *
                      sizeof(float)) == 0;
}

static void check_sets(linear_setup *one, linear_setup *two,
                       const linear_case *c)
{
    static const int lengths[] = {1, 2, 3, 5, 7, 8, 9, 33};
    const folio_host_linear_set *set;
    for (int i = 0; (set = folio_host_linear_set_at(i)) != NULL; i++) {
        linear_setup_reset(one, c);
        run_set(one, c, set, 0, c->n_tok);
        float *whole = linear_setup_read(one, c);
        linear_case_judge(c, whole, set->name, FACTOR);

        linear_setup_reset(two, c);
        run_set(two, c, set, 0, c->n_tok);
        float *y = linear_setup_read(two, c);
        cr_assert(same_bits(whole, y, c), "%s: %s: two threads differ",
                  set->name, linear_case_name(c));
        free(y);

        for (size_t l = 0; l < FOLIO_COUNT(lengths); l++) {
            linear_setup_reset(one, c);
            for (int t = 0; t < c->n_tok; t += lengths[l])
                run_set(one, c, set, t, FOLIO_MIN(lengths[l], c->n_tok - t));
            y = linear_setup_read(one, c);
            cr_assert(same_bits(whole, y, c), "%s: %s: %d at a time differ",
                      set->name, linear_case_name(c), lengths[l]);
            free(y);
        }
        free(whole);
    }
}

typedef struct devices {
    folio_device *dev[2];
    folio_queue *q[2];
} devices;

static void open_devices(devices *d)
{
    for (int i = 0; i < 2; i++) {
        d->dev[i] = open_host(i + 1);
        cr_assert(folio_queue_open(d->dev[i], &d->q[i]) == FOLIO_OK);
    }
}

static void close_devices(devices *d)
{
    for (int i = 0; i < 2; i++) {
        folio_queue_close(&d->q[i]);
        folio_device_close(&d->dev[i]);
    }
}

static void check_case(devices *d, linear_case c)
{
    linear_setup one, two;
    linear_case_make(&c);
    linear_setup_open(&one, d->dev[0], d->q[0], &c);
    linear_setup_open(&two, d->dev[1], d->q[1], &c);
    check_sets(&one, &two, &c);
    linear_setup_close(&one);
    linear_setup_close(&two);
    linear_case_free(&c);
}

Test(ops_linear, all_sets_give_the_sums_and_do_not_depend_on_the_batch)
{
    static const int plain_cols[] = {1, 5, 16, 33, 100, 576, 777, 4096};
    static const int block_cols[] = {32, 96, 576, 800, 4096};
    static const int k_cols[] = {256, 768, 1024, 4096};
    static const int rows[] = {1, 3, 17};
    devices d;
    open_devices(&d);
    uint32_t seed = 1;
    for (size_t i = 0; i < FOLIO_COUNT(linear_types); i++) {
        folio_type type = linear_types[i];
        uint32_t block = folio_type_find((uint32_t)type)->block_values;
        const int *cols = block == 1    ? plain_cols
                          : block == 32 ? block_cols
                                        : k_cols;
        size_t n_cols = block == 1    ? FOLIO_COUNT(plain_cols)
                        : block == 32 ? FOLIO_COUNT(block_cols)
                                      : FOLIO_COUNT(k_cols);
        for (size_t j = 0; j < n_cols; j++)
            for (size_t r = 0; r < FOLIO_COUNT(rows); r++, seed++) {
                /* The flags in all combinations over the shapes. */
                linear_case c = {.type = type,
                                 .rows = rows[r],
                                 .cols = cols[j],
                                 .n_tok = seed % 4 == 0 ? 53 : 10,
                                 .x_pad = seed % 3 ? 0 : 7,
                                 .y_pad = seed % 5 ? 0 : 3,
                                 .bias = seed >> 1 & 1,
                                 .accumulate = seed & 1,
                                 .n_views = FOLIO_MIN(rows[r], 1 + (int)r),
                                 .seed = seed};
                check_case(&d, c);
            }
    }
    close_devices(&d);
}

/* With unit vectors for tokens the sums are the weights themselves. */
Test(ops_linear, weights_are_dequantised_exactly)
{
    enum { COLS = 1024, ROWS = 5 };
    devices d;
    open_devices(&d);
    float *want = folio_calloc(COLS, sizeof(float));
    cr_assert_not_null(want);
    for (size_t i = 0; i < FOLIO_COUNT(linear_types); i++) {
        linear_case c = {.type = linear_types[i],
                         .rows = ROWS,
                         .cols = COLS,
                         .n_tok = COLS,
                         .n_views = 1,
                         .seed = 7};
        linear_setup s;
        linear_case_make(&c);
        for (int t = 0; t < COLS; t++)
            for (int k = 0; k < COLS; k++)
                c.x[t * COLS + k] = t == k ? 1.0f : 0.0f;
        linear_setup_open(&s, d.dev[1], d.q[1], &c);
        const folio_host_linear_set *set;
        for (int n = 0; (set = folio_host_linear_set_at(n)) != NULL; n++) {
            run_set(&s, &c, set, 0, c.n_tok);
            float *y = linear_setup_read(&s, &c);
            for (int r = 0; r < ROWS; r++) {
                folio_dequant(c.type, c.w + (size_t)r * c.row_bytes, COLS,
                              want);
                for (int k = 0; k < COLS; k++)
                    cr_assert(y[k * ROWS + r] == want[k],
                              "%s %s: row %d value %d is %.9g, not %.9g",
                              set->name, folio_type_find(c.type)->name, r, k,
                              (double)y[k * ROWS + r], (double)want[k]);
            }
            free(y);
        }
        linear_setup_close(&s);
        linear_case_free(&c);
    }
    free(want);
    close_devices(&d);
}

Test(ops_linear, the_host_takes_its_fast_form)
{
    devices d;
    open_devices(&d);
    linear_case c = {.type = FOLIO_TYPE_Q4_1,
                     .rows = 40,
                     .cols = 64,
                     .n_tok = 3,
                     .bias = 1,
                     .n_views = 2,
                     .seed = 11};
    linear_setup s;
    linear_case_make(&c);
    linear_setup_open(&s, d.dev[1], d.q[1], &c);
    folio_op_params prm = {.deterministic = true, .exact = true};
    folio_op *op = NULL;
    cr_assert(folio_op_open(d.dev[1], FOLIO_OP_LINEAR, &prm, &s.args, &op) ==
              FOLIO_OK);
    cr_assert_str_eq(folio_op_variant_name(op), "host_linear");
    uint64_t before = folio_queue_get_counters(d.q[1]).launches;
    cr_assert(folio_op_run(op, d.q[1], &s.args) == FOLIO_OK);
    cr_assert(folio_queue_get_counters(d.q[1]).launches == before + 1);
    float *y = linear_setup_read(&s, &c);
    linear_case_judge(&c, y, "host_linear", FACTOR);
    float *ref = linear_run_variant(&s, &c, "ref_linear", NULL);
    cr_assert_not_null(ref);
    linear_case_judge(&c, ref, "ref_linear", 1.0);
    free(ref);
    free(y);
    folio_op_close(&op);
    linear_setup_close(&s);
    linear_case_free(&c);
    close_devices(&d);
}
