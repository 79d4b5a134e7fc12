/* The memory of a runner: scratch areas, the upload block, KV pools and weights
 * under limits of a single buffer. Nothing overlaps, nothing passes the limit,
 * what was stored is read back, and a failed open leaves nothing behind. */
#define _POSIX_C_SOURCE 200809L
#include "unit/support_tiny_llama.h"

#include "device/impl.h"
#include "mem/arena.h"
#include "mem/kv_store.h"
#include "mem/upload.h"
#include "mem/weights.h"

#include <stdatomic.h>
#include <string.h>

static tiny_llama tiny; /* for its log */
static folio_device *dev;

static void open_dev(const char *select, uint64_t limit)
{
    folio_device_close(&dev);
    dev = tiny_device(&tiny, select, limit);
    if (!dev)
        cr_skip_test("no PoCL among the OpenCL devices here");
}

static void set_up(void)
{
    tiny_init(&tiny);
    open_dev("host", 4096);
}

static void tear_down(void)
{
    if (dev)
        cr_expect_eq(atomic_load(&dev->live_bytes), 0, "buffers stayed");
    folio_device_close(&dev);
    tiny_fini(&tiny);
}

Test(mem, arena_areas_do_not_overlap, .init = set_up, .fini = tear_down)
{
    const size_t sizes[] = {1, 4096, 100, 0, 3000, 1000, 4000, 96, 256, 255};
    folio_arena a = {0};
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++)
        cr_assert_eq(folio_arena_reserve(&a, sizes[i]), (int)i);
    TINY_OK(folio_arena_open(&a, dev));
    size_t total = 0;
    for (int b = 0; b < a.n_buf; b++) {
        cr_assert_leq(folio_buf_bytes(a.buf[b]), 4096);
        total += folio_buf_bytes(a.buf[b]);
    }
    cr_assert_eq(total, a.total);
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++) {
        folio_view v = folio_arena_view(&a, (int)i);
        if (sizes[i] == 0) {
            cr_assert_null(v.buf);
            continue;
        }
        cr_assert_eq(v.offset % 256, 0);
        cr_assert_leq(v.offset + sizes[i], folio_buf_bytes(v.buf));
        memset(folio_view_host(v), (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < FOLIO_COUNT(sizes); i++) {
        const uint8_t *p = folio_view_host(folio_arena_view(&a, (int)i));
        for (size_t k = 0; k < sizes[i]; k++)
            cr_assert_eq(p[k], i + 1, "area %zu, byte %zu", i, k);
    }
    folio_arena_fini(&a);
    cr_assert_eq(a.n, 0);
}

Test(mem, arena_limits, .init = set_up, .fini = tear_down)
{
    folio_arena a = {0};
    cr_assert_eq(folio_arena_reserve(&a, 100), 0);
    cr_assert_eq(folio_arena_reserve(&a, 4097), 1);
    cr_assert_eq(folio_arena_open(&a, dev), FOLIO_E_TOO_LARGE);
    cr_assert_not_null(strstr(tiny.ear.err, "area 1 needs 4097"));
    cr_assert_not_null(strstr(tiny.ear.err, "4096"));
    folio_arena_fini(&a);
    for (int i = 0; i < FOLIO_ARENA_MAX; i++)
        cr_assert_eq(folio_arena_reserve(&a, 1), i);
    cr_assert_eq(folio_arena_reserve(&a, 1), -1);
    folio_arena_fini(&a);
}

Test(mem, upload_is_one_write, .init = set_up, .fini = tear_down)
{
    folio_upload u;
    folio_queue *q = NULL;
    folio_view a, b, c;
    TINY_OK(folio_queue_open(dev, &q));
    cr_assert_eq(folio_upload_open(&u, dev, 1025), FOLIO_E_TOO_LARGE);
    cr_assert_eq(folio_upload_open(&u, dev, SIZE_MAX / 2), FOLIO_E_TOO_LARGE);
    TINY_OK(folio_upload_open(&u, dev, 20));
    for (int round = 0; round < 2; round++) {
        folio_upload_reset(&u);
        int32_t *pa = folio_upload_section(&u, 5, &a);
        int32_t *pb = folio_upload_section(&u, 1, &b);
        int32_t *pc = folio_upload_section(&u, 8, &c);
        cr_assert(pa && pb && pc);
        cr_assert_eq(a.offset, 0);
        cr_assert_eq(b.offset, 8 * sizeof(int32_t));
        cr_assert_eq(c.offset, 12 * sizeof(int32_t));
        cr_assert_null(folio_upload_section(&u, 1, &a), "it is full");
        for (int i = 0; i < 8; i++)
            pc[i] = 100 * round + i;
        pa[4] = 7 + round;
        pb[0] = -1;
        folio_queue_counters n0 = folio_queue_get_counters(q);
        TINY_OK(folio_upload_send(&u, q));
        folio_queue_counters n1 = folio_queue_get_counters(q);
        cr_assert_eq(n1.writes - n0.writes, 1);
        int32_t got[20];
        TINY_OK(folio_queue_read(q, (folio_view){u.buf, 0}, got, sizeof got));
        cr_assert_eq(got[4], 7 + round);
        cr_assert_eq(got[8], -1);
        for (int i = 0; i < 8; i++)
            cr_assert_eq(got[12 + i], 100 * round + i);
    }
    /* Nothing to send, nothing sent. */
    folio_upload_reset(&u);
    folio_queue_counters n0 = folio_queue_get_counters(q);
    TINY_OK(folio_upload_send(&u, q));
    cr_assert_eq(folio_queue_get_counters(q).writes, n0.writes);
    folio_upload_fini(&u);
    folio_queue_close(&q);
}

/* Where block b of a plane begins, by the rule of ops.h. */
static uint8_t *block_at(const folio_kv_plane *p, int32_t b, size_t bytes)
{
    int32_t seg = p->seg_shift == 31 ? 0 : b >> p->seg_shift;
    int32_t in = p->seg_shift == 31 ? b : b & ((1 << p->seg_shift) - 1);
    cr_assert_lt(seg, p->n_buf, "block %d is in buffer %d of %d", b, seg,
                 p->n_buf);
    size_t at = p->offset + (size_t)in * bytes;
    cr_assert_leq(at + bytes, folio_buf_bytes(p->buf[seg]));
    return (uint8_t *)folio_buf_host(p->buf[seg]) + at;
}

Test(mem, kv_blocks_do_not_overlap, .init = set_up, .fini = tear_down)
{
    /* 4 tokens x 2 heads x 4 dims x f16 = 64 bytes a block. */
    const struct {
        int32_t n_blocks, layers, n_buf; /* n_buf of one plane; 0: too large */
        bool arena;
    } cases[] = {
        {1, 1, 1, true},    {64, 1, 1, true},   {65, 1, 2, true},
        {32, 2, 1, true},   {33, 2, 2, true},   {100, 2, 4, true},
        {129, 2, 3, false}, {256, 3, 4, false}, {256, 1, 4, true},
        {257, 1, 0, true},  {85, 3, 2, false},  {7, 5, 1, true},
        {64, 70, 1, false},
    };
    for (size_t i = 0; i < FOLIO_COUNT(cases); i++) {
        folio_kv_store s;
        folio_kv_ref shape = {.type = FOLIO_KV_F16,
                              .layout = {4, 1, 4, 1},
                              .n_blocks = cases[i].n_blocks,
                              .block_size = 4,
                              .kv_heads = 2,
                              .head_dim = 4};
        const int32_t n = cases[i].n_blocks, layers = cases[i].layers;
        folio_status st = folio_kv_store_open(dev, &shape, layers, &s);
        if (n > 256) {
            cr_assert_eq(st, FOLIO_E_TOO_LARGE);
            cr_assert_not_null(strstr(tiny.ear.err, "257 blocks of 64 bytes"));
            cr_assert_eq(atomic_load(&dev->live_bytes), 0);
            continue;
        }
        cr_assert_eq(st, FOLIO_OK, "case %zu: %s", i, tiny.ear.err);
        cr_assert_eq(s.n_layers, layers);
        /* Not a byte more than the plan; but layers that share several
         * buffers have the same offset in each, so the last one is padded. */
        uint64_t plan = (uint64_t)n * 64 * 2 * (uint64_t)layers, pad = 0;
        if (cases[i].arena && s.layer[0].k.n_buf > 1) {
            int32_t seg = 1 << s.layer[0].k.seg_shift;
            pad = (uint64_t)(s.layer[0].k.n_buf * seg - n) * 64 * 2 *
                  (uint64_t)(layers - 1);
        }
        cr_assert_eq(s.bytes, plan + pad, "case %zu: %llu bytes", i,
                     (unsigned long long)s.bytes);
        if (cases[i].n_buf)
            cr_assert_eq(s.layer[0].k.n_buf, cases[i].n_buf, "case %zu: %d", i,
                         s.layer[0].k.n_buf);
        if (cases[i].n_buf && layers > 1)
            cr_assert_eq(s.layer[0].k.buf[0] == s.layer[1].k.buf[0],
                         cases[i].arena, "case %zu", i);
        for (int32_t b = 0; b < s.n_buf; b++)
            cr_assert_leq(folio_buf_bytes(s.buf[b]), 4096);
        /* A mark of its own in every block of every plane. */
        for (int pass = 0; pass < 2; pass++) {
            uint32_t mark = 0;
            for (int32_t l = 0; l < layers; l++)
                for (int kv = 0; kv < 2; kv++)
                    for (int32_t b = 0; b < n; b++) {
                        const folio_kv_ref *ref = &s.layer[l];
                        uint32_t v[16];
                        uint8_t *p = block_at(kv ? &ref->v : &ref->k, b, 64);
                        mark++;
                        for (int k = 0; k < 16; k++)
                            v[k] = mark;
                        if (pass == 0)
                            memcpy(p, v, 64);
                        else
                            cr_assert_eq(memcmp(p, v, 64), 0,
                                         "case %zu: layer %d, %s, block %d was "
                                         "overwritten",
                                         i, l, kv ? "v" : "k", b);
                    }
        }
        folio_kv_store_fini(&s);
        cr_assert_eq(atomic_load(&dev->live_bytes), 0);
    }
}

/* Bytes of a weight as the device holds them, view by view. */
static void read_back(const folio_weight *w, const uint8_t *want)
{
    folio_queue *q = NULL;
    size_t row = folio_type_row_bytes(w->type, (uint64_t)w->cols);
    int64_t next = 0;
    TINY_OK(folio_queue_open(dev, &q));
    for (int32_t i = 0; i < w->n_views; i++) {
        const folio_weight_view *v = &w->views[i];
        size_t bytes = (size_t)v->rows * row;
        cr_assert_eq(v->first_row, next, "views are in row order");
        next += v->rows;
        uint8_t *got = malloc(bytes);
        cr_assert_not_null(got);
        TINY_OK(folio_queue_read(q, v->view, got, bytes));
        cr_assert_eq(memcmp(got, want + (size_t)v->first_row * row, bytes), 0,
                     "view %d", i);
        free(got);
    }
    cr_assert_eq(next, w->rows);
    folio_queue_close(&q);
}

static void weights_on(const char *select, uint64_t limit, int32_t most_views)
{
    static uint8_t data[40 * 128 * 4];
    uint32_t s = 3;
    const struct {
        size_t at;
        folio_type type;
        int64_t rows, cols;
        bool vector;
    } t[] = {
        {0, FOLIO_TYPE_F32, 40, 128, false}, /* 20480 bytes, 512 a row */
        {64, FOLIO_TYPE_F32, 1, 60, true},
        {1000, FOLIO_TYPE_Q8_0, 7, 64, false}, /* 68 bytes a row */
        {3, FOLIO_TYPE_F32, 1, 5, true},       /* at an odd address */
        {2000, FOLIO_TYPE_F16, 16, 32, false},
    };
    const folio_weight *w[FOLIO_COUNT(t)], *again;
    folio_weights *store = NULL;
    open_dev(select, limit);
    for (size_t i = 0; i < sizeof data; i++) {
        s = s * 1664525u + 1013904223u;
        data[i] = (uint8_t)(s >> 24);
    }
    TINY_OK(folio_weights_open(dev, &store));
    for (size_t i = 0; i < FOLIO_COUNT(t); i++) {
        folio_weight_source src = {"t", t[i].type, t[i].rows, t[i].cols,
                                   data + t[i].at};
        TINY_OK(t[i].vector ? folio_weights_add_vector(store, &src, &w[i])
                            : folio_weights_add(store, &src, &w[i]));
    }
    folio_weight_source same = {"same", FOLIO_TYPE_F32, 40, 128, data};
    TINY_OK(folio_weights_add(store, &same, &again));
    cr_assert_eq(again, w[0], "the same data is stored once");
    folio_weight_source odd = {"odd", FOLIO_TYPE_I8, 4, 4, data};
    cr_assert_eq(folio_weights_add(store, &odd, &again), FOLIO_E_UNSUPPORTED);
    cr_assert_not_null(strstr(tiny.ear.err, "odd has type I8"));
    TINY_OK(folio_weights_load(store, NULL, NULL));
    cr_assert_eq(folio_weights_load(store, NULL, NULL), FOLIO_E_INVAL);
    cr_assert_geq(w[0]->n_views, 1);
    cr_assert_leq(w[0]->n_views, most_views);
    for (size_t i = 0; i < FOLIO_COUNT(t); i++) {
        cr_assert_eq(w[i]->rows, t[i].rows);
        for (int32_t v = 0; v < w[i]->n_views; v++)
            cr_assert_leq(folio_buf_bytes(w[i]->views[v].view.buf),
                          folio_device_max_alloc(dev) > 32768
                              ? 32768
                              : folio_device_max_alloc(dev));
        read_back(w[i], data + t[i].at);
    }
    cr_assert_geq(folio_weights_bytes(store), 20480 + 240 + 7 * 68 + 20 + 1024);
    folio_weights_close(&store);
}

/* The host reads the file where it is: one view, whatever the limit. */
Test(mem, weights_on_the_host, .init = set_up, .fini = tear_down)
{
    weights_on("host", 32768, 1);
}

Test(mem, weights_whole_on_pocl, .init = set_up, .fini = tear_down)
{
    weights_on("pocl", 32768, 1);
}

/* 4000 bytes: seven rows of the large matrix at once. */
Test(mem, weights_split_on_pocl, .init = set_up, .fini = tear_down)
{
    weights_on("pocl", 4000, 6);
    folio_weights *store = NULL;
    const folio_weight *w;
    static uint8_t row[2048 * 4];
    folio_weight_source src = {"wide", FOLIO_TYPE_F32, 1, 2048, row};
    TINY_OK(folio_weights_open(dev, &store));
    TINY_OK(folio_weights_add(store, &src, &w));
    cr_assert_eq(folio_weights_load(store, NULL, NULL), FOLIO_E_TOO_LARGE);
    cr_assert_not_null(strstr(tiny.ear.err, "8192 bytes"), "%s", tiny.ear.err);
    folio_weights_close(&store);
}

/* Whole groups of rows in every view, packed as if alone. */
static void read_packed(const folio_weight *w, const uint8_t *raw)
{
    folio_queue *q = NULL;
    size_t row = folio_type_row_bytes(w->type, (uint64_t)w->cols);
    int64_t next = 0;
    TINY_OK(folio_queue_open(dev, &q));
    for (int32_t i = 0; i < w->n_views; i++) {
        const folio_weight_view *v = &w->views[i];
        size_t n = folio_pack_bytes(w->packing, w->type, v->rows, w->cols);
        cr_assert_eq(v->first_row, next, "views are in row order");
        cr_assert_eq(v->first_row % folio_pack_group(w->packing), 0);
        next += v->rows;
        uint8_t *want = malloc(n), *got = malloc(n);
        cr_assert(want && got);
        folio_pack_rows(w->packing, w->type, w->cols,
                        raw + (size_t)v->first_row * row, v->rows, want);
        TINY_OK(folio_queue_read(q, v->view, got, n));
        cr_assert_eq(memcmp(got, want, n), 0, "view %d", i);
        free(want);
        free(got);
    }
    cr_assert_eq(next, w->rows);
    folio_queue_close(&q);
}

static void packed_weights_on(uint64_t limit, const char *wish,
                              folio_packing want, int32_t least_views)
{
    static uint8_t data[150 * 128 * 2 + 300];
    const folio_pack_hints hints = {8, 512, false};
    const folio_weight *w, *small, *plain;
    folio_weights *store = NULL;
    open_dev("pocl", limit);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7 + i / 256);
    setenv("FOLIO_PACKING", wish, 1);
    TINY_OK(folio_weights_open(dev, &store));
    folio_weights_pack_for(store, &hints);
    const folio_weight_source src = {"w", FOLIO_TYPE_F16, 150, 128, data};
    const folio_weight_source few = {"s", FOLIO_TYPE_F16, 3, 64, data + 1};
    const folio_weight_source odd = {"o", FOLIO_TYPE_F16, 3, 33, data + 2};
    TINY_OK(folio_weights_add(store, &src, &w));
    TINY_OK(folio_weights_add(store, &few, &small));
    TINY_OK(folio_weights_add(store, &odd, &plain));
    TINY_OK(folio_weights_load(store, NULL, NULL));
    unsetenv("FOLIO_PACKING");
    cr_assert_eq(w->packing, want);
    cr_assert_geq(w->n_views, least_views);
    cr_assert_eq(plain->packing, FOLIO_PACK_RAW, "33 columns");
    read_packed(w, data);
    read_packed(small, data + 1);
    read_packed(plain, data + 2);
    folio_weights_close(&store);
}

Test(mem, weights_packed_whole, .init = set_up, .fini = tear_down)
{
    packed_weights_on(1 << 20, "rg16", FOLIO_PACK_RG16, 1);
}

/* 4096 bytes a group of 16 rows. */
Test(mem, weights_packed_split, .init = set_up, .fini = tear_down)
{
    packed_weights_on(8500, "rg16", FOLIO_PACK_RG16, 5);
}

Test(mem, weights_packed_in_tiles, .init = set_up, .fini = tear_down)
{
    packed_weights_on(33000, "tile16", FOLIO_PACK_TILE16, 2);
}

/* No buffer takes a group: the file's order. */
Test(mem, weights_too_wide_to_pack, .init = set_up, .fini = tear_down)
{
    packed_weights_on(4000, "rg16", FOLIO_PACK_RAW, 10);
}
