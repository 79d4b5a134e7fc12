/* See ops_bed.h. */
#include "ops_bed.h"

#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "ops/kv_host.h"
#include "ops/self_case.h"

#define GUARD      64
#define GUARD_BYTE 0xa5

static void keep_log(void *user, folio_log_level level, const char *text)
{
    bed *b = user;
    size_t used = strlen(b->log);
    if (level <= FOLIO_LOG_WARN && used + 1 < sizeof b->log)
        snprintf(b->log + used, sizeof b->log - used, "%s\n", text);
}

void bed_open(bed *b, int n_threads, uint64_t seed)
{
    folio_device_params p;
    memset(b, 0, sizeof *b);
    b->seed = seed;
    cr_log_info("seed %llu", (unsigned long long)seed);
    folio_device_params_default(&p);
    p.select = "host";
    p.n_threads = n_threads;
    p.cache_dir = "";
    p.log = (folio_log){.fn = keep_log, .user = b, .max_level = FOLIO_LOG_WARN};
    cr_assert_eq(folio_device_open(&p, &b->dev), FOLIO_OK, "%s", b->log);
    cr_assert_eq(folio_queue_open(b->dev, &b->q), FOLIO_OK, "%s", b->log);
    b->log[0] = '\0';
}

void bed_close(bed *b)
{
    for (int i = 0; i < b->n; i++) {
        const uint8_t *m = b->mem[i];
        for (size_t j = 0; j < GUARD; j++)
            cr_assert(m[j] == GUARD_BYTE &&
                          m[GUARD + b->bytes[i] + j] == GUARD_BYTE,
                      "written outside buffer %d", i);
        folio_buf_close(&b->buf[i]);
        free(b->mem[i]);
    }
    folio_queue_close(&b->q);
    folio_device_close(&b->dev);
}

void *bed_bytes(bed *b, size_t bytes, folio_view *v)
{
    cr_assert(b->n < BED_BUFS, "raise BED_BUFS");
    uint8_t *m = malloc(bytes + 2 * GUARD);
    cr_assert_not_null(m);
    memset(m, GUARD_BYTE, bytes + 2 * GUARD);
    memset(m + GUARD, 0, bytes);
    cr_assert_eq(
        folio_buf_wrap_host(b->dev, m, bytes + 2 * GUARD, &b->buf[b->n]),
        FOLIO_OK);
    b->mem[b->n] = m;
    b->bytes[b->n] = bytes;
    *v = (folio_view){.buf = b->buf[b->n], .offset = GUARD};
    b->n++;
    return m + GUARD;
}

float *bed_zeros(bed *b, size_t n, folio_view *v)
{
    return bed_bytes(b, n * sizeof(float), v);
}

float bed_unit(bed *b)
{
    uint32_t w[4];
    folio_philox4x32(b->seed, b->counter++, 0, w);
    return (float)(w[0] >> 8) * 0x1p-23f - 1.0f;
}

int32_t bed_below(bed *b, int32_t n)
{
    uint32_t w[4];
    folio_philox4x32(b->seed, b->counter++, 0, w);
    return (int32_t)(w[0] % (uint32_t)n);
}

float *bed_floats(bed *b, size_t n, folio_view *v)
{
    float *p = bed_zeros(b, n, v);
    for (size_t i = 0; i < n; i++)
        p[i] = bed_unit(b);
    return p;
}

float *bed_poison(bed *b, size_t n, folio_view *v)
{
    float *p = bed_zeros(b, n, v);
    memset(p, 0xff, n * sizeof *p);
    return p;
}

int32_t *bed_ints(bed *b, const int32_t *values, size_t n, folio_view *v)
{
    int32_t *p = bed_bytes(b, n * sizeof *p, v);
    memcpy(p, values, n * sizeof *p);
    return p;
}

void bed_weight(bed *b, folio_type type, int64_t rows, int64_t cols,
                int n_views, folio_weight *w, folio_weight_view *views)
{
    size_t row_bytes = folio_type_row_bytes(type, (uint64_t)cols);
    cr_assert(row_bytes > 0 && n_views >= 1 && n_views <= rows);
    int64_t first = 0;
    for (int i = 0; i < n_views; i++) {
        int64_t n = (rows - first) / (n_views - i);
        void *p = bed_bytes(b, (size_t)n * row_bytes, &views[i].view);
        folio_self_blocks(type, n * cols, 0.25f, b->seed + b->counter++, p);
        views[i].first_row = first;
        views[i].rows = n;
        first += n;
    }
    *w = (folio_weight){.type = type,
                        .rows = rows,
                        .cols = cols,
                        .views = views,
                        .n_views = n_views};
}

static void make_plane(bed *b, const folio_kv_ref *kv, folio_kv_plane *plane,
                       int n_buf, int seg_shift)
{
    size_t block = folio_kv_block_bytes(kv);
    int32_t per_buf = seg_shift < 30 ? 1 << seg_shift : INT32_MAX;
    *plane = (folio_kv_plane){.n_buf = n_buf, .seg_shift = seg_shift};
    for (int i = 0; i < n_buf; i++) {
        folio_view v;
        int32_t n = FOLIO_MIN(per_buf, kv->n_blocks - i * per_buf);
        void *p = bed_bytes(b, (size_t)n * block, &v);
        memset(p, 0xff, (size_t)n * block);
        plane->buf[i] = v.buf;
        plane->offset = v.offset;
    }
}

void bed_kv(bed *b, folio_kv_ref *kv, int n_buf, int seg_shift)
{
    make_plane(b, kv, &kv->k, n_buf, seg_shift);
    make_plane(b, kv, &kv->v, n_buf, seg_shift);
}

float bed_kv_at(const folio_kv_ref *kv, bool is_k, int32_t slot, int32_t head,
                int32_t d)
{
    int32_t x = is_k ? kv->layout.xk : kv->layout.xv;
    int32_t y = is_k ? kv->layout.yk : kv->layout.yv;
    int32_t bs = kv->block_size, hd = kv->head_dim;
    int32_t block = slot / bs, t = slot % bs;
    const folio_kv_plane *plane = is_k ? &kv->k : &kv->v;
    int64_t per_buf = (int64_t)1 << plane->seg_shift;
    /* The storage order of ops.h, written out once more. */
    int64_t tile = block % per_buf * kv->kv_heads + head;
    int64_t in_tile =
        ((int64_t)(d / x * (bs / y) + t / y) * x + d % x) * y + t % y;
    const uint8_t *p = folio_buf_host(plane->buf[block / per_buf]);
    p += plane->offset;
    return folio_kv_get(kv->type, p, (size_t)(tile * bs * hd + in_tile));
}

folio_status bed_run(bed *b, const char *variant, const void *args)
{
    folio_op_params prm = {.deterministic = true};
    folio_op *op = NULL;
    folio_status st = folio_op_open_variant(b->dev, variant, &prm, args, &op);
    if (st != FOLIO_OK)
        return st;
    folio_queue_counters before = folio_queue_get_counters(b->q);
    st = folio_op_run(op, b->q, args);
    if (st == FOLIO_OK)
        cr_expect_eq(folio_queue_get_counters(b->q).launches,
                     before.launches + 1, "%s is not one launch", variant);
    folio_op_close(&op);
    return st;
}
