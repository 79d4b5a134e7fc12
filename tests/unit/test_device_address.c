/* Buffers that kernels get as addresses: the same numbers, memory that lives as
 * long as it is used, and nothing of it where it was not asked for. Needs PoCL;
 * skipped with a reason where there is none, except in CI. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "device/impl.h"
#include "unit/support_tiny_llama.h"

static tiny_llama tiny;

static void set_up(void)
{
    tiny_init(&tiny);
    tiny_save(&tiny);
}

static void tear_down(void)
{
    tiny_fini(&tiny);
}

static folio_device *open_pocl(bool addresses)
{
    if (addresses)
        setenv("FOLIO_ADDRESSES", "1", 1);
    folio_device *dev = tiny_device(&tiny, "pocl", 0);
    unsetenv("FOLIO_ADDRESSES");
    if (!dev)
        cr_skip_test("no PoCL among the OpenCL devices here");
    cr_assert_eq((folio_device_caps(dev) & FOLIO_CAP_ADDRESS) != 0, addresses);
    cr_assert_eq(dev->ask_address != NULL, addresses);
    return dev;
}

Test(device_address, same_numbers, .init = set_up, .fini = tear_down,
     .timeout = 300)
{
    enum { N = 3 };
    float logits[2][N * TINY_VOCAB];
    const tiny_golden *g = &tiny_goldens[0];
    for (int by_address = 0; by_address < 2; by_address++) {
        folio_device *dev = open_pocl(by_address);
        folio_model *model = tiny_open(&tiny, dev);
        folio_runner_params p;
        tiny_params(&p);
        folio_runner *r = tiny_runner(model, &p);
        tiny_seq s;
        int32_t ids[TINY_N_NEW];
        tiny_seq_init(&s, r, 0, 3);
        tiny_feed(r, &s, g->prompt, g->n, 0, true, logits[by_address]);
        tiny_seq_init(&s, r, 1, 3);
        tiny_greedy(r, &s, g->prompt, g->n, TINY_N_NEW, ids);
        for (int i = 0; i < TINY_N_NEW; i++)
            cr_expect_eq(ids[i], g->ids[i]);
        folio_runner_close(&r);
        folio_model_close(&model);
        folio_device_close(&dev);
    }
    cr_assert_eq(g->n, N);
    tiny_near(logits[1], logits[0], FOLIO_COUNT(logits[0]), 1e-5f, "logits");
}

static folio_kernel *open_add(folio_device *dev)
{
    const folio_kernel_spec spec = {.entry = "add_wi",
                                    .fragments = "common.clh act.clh act.cl",
                                    .options = "-D WG=64"};
    folio_kernel *k = NULL;
    cr_assert_eq(folio_kernel_open(dev, &spec, &k), FOLIO_OK);
    return k;
}

/* y += x over and over, and both buffers gone while the device is at it: what
 * still runs is waited for, by the buffer or by the queue that goes first. */
Test(device_address, closed_while_used, .init = set_up, .fini = tear_down,
     .timeout = 300)
{
    enum { COUNT = 1 << 18, TIMES = 40 };
    folio_device *dev = open_pocl(true);
    folio_kernel *k = open_add(dev);
    const folio_grid grid = {.groups = {COUNT / 64, 1, 1}, .local = {64, 1, 1}};
    for (int first = 0; first < 2; first++) {
        folio_buf *x = NULL, *y = NULL, *kept = NULL;
        folio_queue *q = NULL;
        float sum[2] = {0, 0};
        TINY_OK(folio_buf_open(dev, COUNT * 4, &x));
        TINY_OK(folio_buf_open(dev, COUNT * 4, &y));
        TINY_OK(folio_buf_open(dev, COUNT * 4, &kept));
        TINY_OK(folio_queue_open(dev, &q));
        const float one = 1.0f;
        TINY_OK(folio_queue_write(q, (folio_view){.buf = x, .offset = 4}, &one,
                                  sizeof one));
        for (int i = 0; i < 2 * TIMES; i++) {
            const folio_arg args[] = {
                folio_arg_view((folio_view){.buf = i < TIMES ? x : y}),
                folio_arg_view((folio_view){.buf = i < TIMES ? y : kept}),
                folio_arg_u64(COUNT)};
            TINY_OK(folio_launch(q, k, &grid, args, 3));
        }
        if (first)
            folio_queue_close(&q);
        folio_buf_close(&x);
        folio_buf_close(&y);
        if (!q)
            TINY_OK(folio_queue_open(dev, &q));
        TINY_OK(
            folio_queue_read(q, (folio_view){.buf = kept}, sum, sizeof sum));
        TINY_OK(folio_queue_finish(q));
        cr_expect_eq(sum[0], 0.0f);
        cr_expect_eq(sum[1], (float)(TIMES * TIMES));
        folio_buf_close(&kept);
        folio_queue_close(&q);
    }
    cr_expect_null(dev->queues ? dev->queues->next : NULL);
    folio_kernel_close(&k);
    folio_device_close(&dev);
}

/* One argument a view, and only then. */
Test(device_address, counts_arguments, .init = set_up, .fini = tear_down,
     .timeout = 300)
{
    for (int by_address = 0; by_address < 2; by_address++) {
        folio_device *dev = open_pocl(by_address);
        folio_kernel *k = open_add(dev);
        cr_expect_eq(k->by_address, by_address);
        cr_expect_eq(k->n_slots, by_address ? 3u : 5u);
        folio_kernel_close(&k);
        folio_device_close(&dev);
    }
}
