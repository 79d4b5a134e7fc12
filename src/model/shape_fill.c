/* model/shape_fill.c: random weights by the gigabyte: normal numbers from a
 * table of 4,096 quantiles, drawn by the counter-based generator, straight into
 * the form in which they are stored. Knows no model. */
#include "base/half.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "model/shape.h"

#include <math.h>
#include <string.h>

#define QUANTILES 4096
/* Of matrices, as models are initialised. */
#define DEVIATION 0.02
/* Largest quantile of 4,096, in deviations; a little more for the scales. */
#define REACH 3.68
/* A Q4_0 block reaches so far: what lies beyond is clipped. */
#define REACH_Q4    2.75
#define PIECE_BYTES ((uint64_t)1 << 20)

typedef struct tables {
    uint16_t half[QUANTILES];  /* deviation 0.02 */
    int8_t byte[QUANTILES];    /* Q8_0 */
    uint8_t nibble[QUANTILES]; /* Q4_0, 0..15, 8 is zero */
    float one[QUANTILES];      /* 1 and a little */
    uint16_t scale8[16], scale4[16];
} tables;

typedef struct fill_job {
    const folio_shape_fill *t;
    const int64_t *first; /* [n + 1] first piece of each tensor */
    size_t n;
    uint64_t seed;
    const tables *tab;
} fill_job;

/* Where the normal distribution reaches p, by halving. */
static double quantile(double p)
{
    double lo = -8.0, hi = 8.0;
    for (int i = 0; i < 60; i++) {
        const double mid = 0.5 * (lo + hi);
        if (0.5 * erfc(-mid / sqrt(2.0)) < p)
            lo = mid;
        else
            hi = mid;
    }
    return 0.5 * (lo + hi);
}

static void make_tables(tables *t)
{
    for (int i = 0; i < QUANTILES / 2; i++) {
        const double z = quantile((i + 0.5) / QUANTILES); /* below 0 */
        for (int s = 0; s < 2; s++) {
            const int at = s ? QUANTILES - 1 - i : i;
            const double x = s ? -z : z;
            const double q4 = floor(x * 8.0 / REACH_Q4 + 8.5);
            t->half[at] = folio_f32_to_f16((float)(x * DEVIATION));
            t->byte[at] = (int8_t)lrint(x * 127.0 / REACH);
            t->nibble[at] = (uint8_t)fmin(fmax(q4, 0.0), 15.0);
            t->one[at] = (float)(1.0 + 0.05 * x);
        }
    }
    /* The scales of blocks differ, as in real files. */
    for (int i = 0; i < 16; i++) {
        const double f = DEVIATION * (0.75 + i / 32.0);
        t->scale8[i] = folio_f32_to_f16((float)(f * REACH / 127.0));
        t->scale4[i] = folio_f32_to_f16((float)(f * REACH_Q4 / 8.0));
    }
}

/* ---- rows ---------------------------------------------------------------- */

/* Eight draws of 0..65535 for (key, row, group). */
static void draw(uint64_t key, uint64_t row, uint64_t group, uint16_t out[8])
{
    uint32_t w[4];
    folio_philox4x32(key, group, row, w);
    for (int i = 0; i < 4; i++) {
        out[2 * i] = (uint16_t)w[i];
        out[2 * i + 1] = (uint16_t)(w[i] >> 16);
    }
}

#define AT(d) ((d) & (QUANTILES - 1))

static void fill_plain(const tables *tab, bool half, uint64_t key, uint64_t row,
                       uint64_t cols, uint8_t *out)
{
    uint16_t d[8], h[8];
    float f[8];
    for (uint64_t c = 0; c < cols; c += 8) {
        const size_t n = (size_t)FOLIO_MIN(cols - c, 8u);
        draw(key, row, c / 8, d);
        for (int i = 0; i < 8; i++) {
            h[i] = tab->half[AT(d[i])];
            f[i] = tab->one[AT(d[i])];
        }
        if (half)
            memcpy(out + 2 * c, h, 2 * n);
        else
            memcpy(out + 4 * c, f, 4 * n);
    }
}

static void fill_blocks(const tables *tab, folio_type type, uint64_t key,
                        uint64_t row, uint64_t cols, uint8_t *out)
{
    uint16_t d[32];
    for (uint64_t b = 0; b < cols / 32; b++) {
        for (uint64_t g = 0; g < 4; g++)
            draw(key, row, 4 * b + g, d + 8 * g);
        const uint16_t *scales =
            type == FOLIO_TYPE_Q8_0 ? tab->scale8 : tab->scale4;
        const uint16_t s = scales[d[0] >> 12];
        *out++ = (uint8_t)s;
        *out++ = (uint8_t)(s >> 8);
        if (type == FOLIO_TYPE_Q8_0)
            for (int i = 0; i < 32; i++)
                *out++ = (uint8_t)tab->byte[AT(d[i])];
        else
            for (int i = 0; i < 16; i++)
                *out++ = (uint8_t)(tab->nibble[AT(d[i])] |
                                   tab->nibble[AT(d[i + 16])] << 4);
    }
}

static uint64_t rows_of_piece(const folio_shape_fill *t)
{
    const uint64_t row = folio_type_row_bytes(t->type, t->cols);
    return FOLIO_MAX(PIECE_BYTES / row, 1u);
}

static void fill_piece(const fill_job *j, size_t i, int64_t piece)
{
    const folio_shape_fill *t = &j->t[i];
    const size_t bytes = folio_type_row_bytes(t->type, t->cols);
    const uint64_t per = rows_of_piece(t), first = (uint64_t)piece * per;
    const uint64_t last = FOLIO_MIN(first + per, t->rows);
    const uint64_t key = j->seed << 16 ^ (uint64_t)i;
    for (uint64_t r = first; r < last; r++) {
        uint8_t *out = t->data + r * bytes;
        if (t->type == FOLIO_TYPE_Q8_0 || t->type == FOLIO_TYPE_Q4_0)
            fill_blocks(j->tab, t->type, key, r, t->cols, out);
        else
            fill_plain(j->tab, t->type == FOLIO_TYPE_F16, key, r, t->cols, out);
    }
}

static void fill_pieces(void *user, int64_t first, int64_t last, int thread)
{
    const fill_job *j = user;
    (void)thread;
    for (int64_t p = first; p < last; p++) {
        size_t lo = 0, hi = j->n;
        while (hi - lo > 1) {
            const size_t mid = lo + (hi - lo) / 2;
            if (j->first[mid] <= p)
                lo = mid;
            else
                hi = mid;
        }
        fill_piece(j, lo, p - j->first[lo]);
    }
}

folio_status folio_shape_fill_all(const folio_shape_fill *t, size_t n,
                                  uint64_t seed, const folio_log *log)
{
    folio_status st = FOLIO_OK;
    folio_thread_pool *threads = NULL;
    int64_t *first = folio_calloc(n + 1, sizeof *first);
    tables *tab = folio_calloc(1, sizeof *tab);
    if (!first || !tab) {
        st = folio_fail(log, FOLIO_E_NOMEM,
                        "no memory to fill %zu tensors with", n);
        goto fail;
    }
    FOLIO_TRY(folio_thread_pool_open(0, &threads));
    make_tables(tab);
    for (size_t i = 0; i < n; i++)
        first[i + 1] = first[i] + folio_div_up((int64_t)t[i].rows,
                                               (int64_t)rows_of_piece(&t[i]));
    fill_job job = {.t = t, .first = first, .n = n, .seed = seed, .tab = tab};
    folio_parallel_for(threads, first[n], 1, fill_pieces, &job);
fail:
    folio_thread_pool_close(&threads);
    free(tab);
    free(first);
    return st;
}

void folio_shape_fill_unit(uint64_t seed, bool half, void *out, size_t n)
{
    uint16_t d[8];
    uint8_t *to = out;
    for (size_t i = 0; i < n; i++) {
        if (i % 8 == 0)
            draw(seed, UINT64_MAX, i / 8, d);
        /* Odd steps of 2^-12: exact in either type, never 0. */
        const float v = (float)(2 * AT(d[i % 8]) - QUANTILES + 1) / QUANTILES;
        const uint16_t h = folio_f32_to_f16(v);
        if (half)
            memcpy(to + 2 * i, &h, 2);
        else
            memcpy(to + 4 * i, &v, 4);
    }
}
