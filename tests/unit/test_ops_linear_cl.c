/* linear's OpenCL variants on an OpenCL CPU device against sums in double: all
 * types through the floor and linear_cpu, the others over a reduced set; the
 * same bits alone and in a batch for those that promise it. The full matrix is
 * the checks' (tests/check). */
#include "unit/linear_case.h"

#include "ops/choose.h"

#define FACTOR 8.0

static folio_device *dev;
static folio_queue *q;

/* The driver the tests ask for by name; false where it is not installed. */
static bool open_device(void)
{
    folio_device_params p;
    folio_device_params_default(&p);
    const char *name = getenv("FOLIO_TEST_DEVICE");
    p.select = name ? name : "pthread";
    p.cache_dir = "";
    if (folio_device_open(&p, &dev) != FOLIO_OK) {
        cr_assert(getenv("CI") == NULL, "no OpenCL device called %s", p.select);
        cr_skip_test("no OpenCL device called %s", p.select);
        return false;
    }
    cr_assert(folio_queue_open(dev, &q) == FOLIO_OK);
    return true;
}

static void close_device(void)
{
    folio_queue_close(&q);
    folio_device_close(&dev);
}

/* Runs the variant on the case, whole and, with parts, piecewise. */
static void check_variant(const char *name, linear_case c, const int *parts)
{
    linear_setup s;
    linear_case_make(&c);
    linear_setup_open(&s, dev, q, &c);
    float *whole = linear_run_variant(&s, &c, name, NULL);
    cr_assert(whole, "%s does not fit %s", name, linear_case_name(&c));
    linear_case_judge(&c, whole, name, FACTOR);
    if (parts) {
        float *y = linear_run_variant(&s, &c, name, parts);
        size_t n = (size_t)c.n_tok * (size_t)(c.rows + c.y_pad);
        cr_assert(memcmp(whole, y, n * sizeof(float)) == 0,
                  "%s: %s: tokens alone differ from the batch", name,
                  linear_case_name(&c));
        free(y);
    }
    free(whole);
    linear_setup_close(&s);
    linear_case_free(&c);
}

static linear_case case_of(folio_type type, int rows, int cols, int n_tok,
                           uint32_t seed)
{
    linear_case c = {.type = type,
                     .rows = rows,
                     .cols = cols,
                     .n_tok = n_tok,
                     .x_pad = seed % 3 == 0 ? 5 : 0,
                     .y_pad = seed % 2 == 0 ? 3 : 0,
                     .bias = seed >> 1 & 1,
                     .accumulate = seed & 1,
                     .n_views = FOLIO_MIN(rows, 1 + (int)(seed % 3)),
                     .seed = seed};
    return c;
}

static int cols_of(folio_type type, uint32_t seed)
{
    uint32_t block = folio_type_find((uint32_t)type)->block_values;
    if (block == 1)
        return seed % 2 ? 77 : 64;
    return block == 32 ? 96 : 512;
}

Test(ops_linear_cl, floor_reads_every_type)
{
    if (!open_device())
        return;
    static const int parts[] = {1, 2, 0};
    for (size_t i = 0; i < FOLIO_COUNT(linear_types); i++) {
        folio_type type = linear_types[i];
        uint32_t seed = 100 + (uint32_t)i;
        check_variant("linear_item",
                      case_of(type, 7, cols_of(type, seed), 3, seed), parts);
    }
    close_device();
}

Test(ops_linear_cl, cpu_reads_every_type)
{
    if (!open_device())
        return;
    for (size_t i = 0; i < FOLIO_COUNT(linear_types); i++) {
        folio_type type = linear_types[i];
        uint32_t seed = 200 + (uint32_t)i;
        check_variant("linear_cpu",
                      case_of(type, 19, cols_of(type, seed), 1, seed), NULL);
    }
    close_device();
}

static void check_shapes(const char *name, folio_type type, bool invariant)
{
    static const int rows[] = {1, 3, 17, 70, 130};
    static const int parts[] = {1, 2, 3, 4, 5, 8, 9, 1, 0};
    uint32_t seed = 300;
    for (size_t i = 0; i < FOLIO_COUNT(rows); i++, seed++)
        check_variant(name, case_of(type, rows[i], 576, 33, seed),
                      invariant ? parts : NULL);
    check_variant(name, case_of(type, 9, 2048, 9, seed), NULL);
}

Test(ops_linear_cl, cpu_shapes)
{
    if (!open_device())
        return;
    check_shapes("linear_cpu", FOLIO_TYPE_Q4_1, true);
    check_shapes("linear_cpu", FOLIO_TYPE_F16, true);
    close_device();
}

Test(ops_linear_cl, wg_shapes)
{
    if (!open_device())
        return;
    check_shapes("linear_wg", FOLIO_TYPE_Q8_0, true);
    check_shapes("linear_wg", FOLIO_TYPE_Q5_1, true);
    close_device();
}

Test(ops_linear_cl, tile_shapes)
{
    if (!open_device())
        return;
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(dev, &info);
    if (info.max_work_group < 16)
        cr_skip_test("work-groups of at most %u",
                     (unsigned)info.max_work_group);
    check_shapes("linear_tile", FOLIO_TYPE_Q4_1, false);
    linear_case c = case_of(FOLIO_TYPE_F32, 70, 77, 70, 7);
    check_variant("linear_tile", c, NULL);
    close_device();
}

/* CLBlast compiles for a quarter of a minute on PoCL, so this runs only where
 * FOLIO_TEST_CLBLAST asks for it. */
Test(ops_linear_cl, clblast)
{
    if (!getenv("FOLIO_TEST_CLBLAST"))
        cr_skip_test("FOLIO_TEST_CLBLAST is not set");
    if (!open_device())
        return;
    static const folio_type types[] = {FOLIO_TYPE_F32, FOLIO_TYPE_Q4_1,
                                       FOLIO_TYPE_F16};
    size_t n;
    const folio_variant *rows = folio_variants(&n), *var = NULL;
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, "linear_clblast") == 0)
            var = &rows[i];
    cr_assert_not_null(var);
    for (size_t i = 0; i < FOLIO_COUNT(types); i++) {
        /* Its row wants a GPU, so it is opened past the choice. */
        linear_case c = case_of(types[i], 70, 96, 65, 3 + (uint32_t)i);
        linear_setup s;
        folio_op_params prm = {0};
        folio_op *op = NULL;
        linear_case_make(&c);
        linear_setup_open(&s, dev, q, &c);
        cr_assert(folio_variant_open(dev, var, &prm, &s.args, &op) == FOLIO_OK);
        if (folio_op_scratch_bytes(op) > 0) {
            cr_assert(folio_buf_open(dev, folio_op_scratch_bytes(op),
                                     &s.scratch) == FOLIO_OK);
            s.args.scratch = (folio_view){s.scratch, 0};
        }
        cr_assert(folio_op_run(op, q, &s.args) == FOLIO_OK);
        float *y = linear_setup_read(&s, &c);
        linear_case_judge(&c, y, "linear_clblast", FACTOR);
        free(y);
        folio_op_close(&op);
        linear_setup_close(&s);
        linear_case_free(&c);
    }
    close_device();
}
