/* See attn_case.h. */
#include "attn_case.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "cl/kv_layout.clh"

static uint32_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* About normal, by the sum of four uniform numbers. */
static float number(uint64_t *s)
{
    float x = 0;
    for (int i = 0; i < 4; i++)
        x += (float)(next(s) & 0xffff) / 65536.0f - 0.5f;
    return x * 1.7f;
}

static size_t elem_bytes(const attn_shape *sh)
{
    return sh->type == FOLIO_KV_F32 ? 4 : 2;
}

int64_t attn_case_slot(const attn_case *c, int32_t s, int32_t pos)
{
    int32_t bs = c->sh.block_size;
    return (int64_t)c->tables[c->table_start[s] + pos / bs] * bs + pos % bs;
}

static void put(const attn_shape *sh, uint8_t *pool, size_t at, float x)
{
    if (sh->type == FOLIO_KV_F32) {
        memcpy(pool + at * 4, &x, 4);
    } else {
        uint16_t h = folio_f32_to_f16(x);
        memcpy(pool + at * 2, &h, 2);
    }
}

void attn_case_store(attn_case *c, int32_t s)
{
    const attn_shape *sh = &c->sh;
    unsigned bs = (unsigned)sh->block_size;
    size_t hd = (size_t)sh->head_dim, kvh = (size_t)sh->kv_heads;
    for (int32_t pos = 0; pos < sh->kv_len[s]; pos++) {
        int64_t slot = attn_case_slot(c, s, pos);
        for (size_t h = 0; h < kvh; h++) {
            size_t tile = ((size_t)(slot / sh->block_size) * kvh + h) * bs * hd;
            unsigned t = (unsigned)(slot % sh->block_size);
            for (unsigned d = 0; d < hd; d++) {
                size_t i = ((size_t)pos * kvh + h) * hd + d;
                put(sh, c->k_pool,
                    tile + folio_kv_index(t, d, bs, (unsigned)sh->layout.xk,
                                          (unsigned)sh->layout.yk),
                    c->k[s][i]);
                put(sh, c->v_pool,
                    tile + folio_kv_index(t, d, bs, (unsigned)sh->layout.xv,
                                          (unsigned)sh->layout.yv),
                    c->v[s][i]);
            }
        }
    }
}

static void poison(const attn_shape *sh, uint8_t *pool, size_t bytes)
{
    uint16_t h = 0x7e00;
    float f = NAN;
    for (size_t i = 0; i < bytes; i += elem_bytes(sh)) {
        if (sh->type == FOLIO_KV_F32)
            memcpy(pool + i, &f, 4);
        else
            memcpy(pool + i, &h, 2);
    }
}

void attn_case_init(attn_case *c, const attn_shape *shape, uint64_t seed)
{
    memset(c, 0, sizeof *c);
    c->sh = *shape;
    attn_shape *sh = &c->sh;
    sh->layout = folio_kv_layout_fit(sh->layout, sh->head_dim, sh->block_size);
    sh->n_buf = FOLIO_MAX(sh->n_buf, 1);
    if (sh->scale == 0)
        sh->scale = 1.0f / sqrtf((float)sh->head_dim);
    int32_t used = 0;
    for (int32_t s = 0; s < sh->n_seq; s++) {
        int32_t n = (int32_t)folio_div_up(sh->kv_len[s], sh->block_size);
        used += n;
        c->q_start[s + 1] = c->q_start[s] + sh->q_len[s];
        c->table_start[s + 1] = c->table_start[s] + n + 2;
    }
    c->n_tok = c->q_start[sh->n_seq];
    int32_t spare = sh->n_spare ? sh->n_spare : 3;
    c->n_blocks = sh->first_id + used + spare;
    c->seg_shift = sh->n_buf == 1 ? 31 : 0;
    while (sh->n_buf > 1 && (sh->n_buf << c->seg_shift) < c->n_blocks)
        c->seg_shift++;

    /* A shuffled deal of the ids from first_id on. */
    int32_t n_ids = used + spare;
    int32_t *ids = folio_calloc((size_t)n_ids, sizeof *ids);
    for (int32_t i = 0; i < n_ids; i++) {
        int32_t j = (int32_t)(next(&seed) % (uint32_t)(i + 1));
        ids[i] = ids[j];
        ids[j] = sh->first_id + i;
    }
    c->tables = folio_calloc((size_t)c->table_start[sh->n_seq] + 1, 4);
    int32_t at = 0;
    for (int32_t s = 0; s < sh->n_seq; s++) {
        int32_t *table = c->tables + c->table_start[s];
        int32_t n = c->table_start[s + 1] - c->table_start[s] - 2;
        for (int32_t i = 0; i < n; i++)
            table[i] = ids[at++];
        table[n] = INT32_MAX;
        table[n + 1] = -1;
    }
    free(ids);

    size_t row = (size_t)sh->kv_heads * (size_t)sh->head_dim;
    size_t n_q = (size_t)c->n_tok * (size_t)sh->heads * (size_t)sh->head_dim;
    c->q = folio_calloc(n_q, sizeof(float));
    for (size_t i = 0; i < n_q; i++)
        c->q[i] = 2 * number(&seed);
    c->pool_bytes =
        (size_t)c->n_blocks * (size_t)sh->block_size * row * elem_bytes(sh);
    c->k_pool = folio_calloc(c->pool_bytes, 1);
    c->v_pool = folio_calloc(c->pool_bytes, 1);
    poison(sh, c->k_pool, c->pool_bytes);
    poison(sh, c->v_pool, c->pool_bytes);
    for (int32_t s = 0; s < sh->n_seq; s++) {
        size_t n = (size_t)sh->kv_len[s] * row;
        c->k[s] = folio_calloc(n, sizeof(float));
        c->v[s] = folio_calloc(n, sizeof(float));
        for (size_t i = 0; i < n; i++) {
            c->k[s][i] = number(&seed);
            c->v[s][i] = number(&seed);
            if (sh->type == FOLIO_KV_F16) {
                c->k[s][i] = folio_f16_to_f32(folio_f32_to_f16(c->k[s][i]));
                c->v[s][i] = folio_f16_to_f32(folio_f32_to_f16(c->v[s][i]));
            }
        }
        attn_case_store(c, s);
    }
}

void attn_case_fini(attn_case *c)
{
    for (int32_t s = 0; s < c->sh.n_seq; s++) {
        free(c->k[s]);
        free(c->v[s]);
    }
    free(c->tables);
    free(c->q);
    free(c->k_pool);
    free(c->v_pool);
    memset(c, 0, sizeof *c);
}

float *attn_case_out(const attn_case *c)
{
    return folio_calloc(
        (size_t)c->n_tok * (size_t)c->sh.heads * (size_t)c->sh.head_dim + 1,
        sizeof(float));
}

/* ---- golden vectors ---------------------------------------------------------
 */

/* The input stream of the golden vectors. */
static float stream(uint32_t *s)
{
    *s = 1664525u * *s + 1013904223u;
    return (float)(*s >> 8) / 8388608.0f - 1.0f;
}

/* Pools [12 slots, 2, 4] at BS = 1, in the plain order of rows. */
static void golden_case(attn_case *c, uint32_t seed, int32_t n_seq,
                        const int32_t *q_len, const int32_t *kv_len,
                        const int32_t *slots, float scale)
{
    attn_shape sh = {.heads = 4,
                     .kv_heads = 2,
                     .head_dim = 4,
                     .block_size = 1,
                     .type = FOLIO_KV_F32,
                     .layout = {4, 1, 4, 1},
                     .scale = scale,
                     .n_seq = n_seq,
                     .n_spare = 100};
    memcpy(sh.q_len, q_len, (size_t)n_seq * sizeof *q_len);
    memcpy(sh.kv_len, kv_len, (size_t)n_seq * sizeof *kv_len);
    attn_case_init(c, &sh, 1);
    for (int32_t s = 0, at = 0; s < n_seq; s++)
        for (int32_t i = 0; i < kv_len[s]; i++)
            c->tables[c->table_start[s] + i] = slots[at++];
    /* q is given as [seq][head][query][dim]. */
    for (int32_t s = 0; s < n_seq; s++)
        for (int32_t h = 0; h < 4; h++)
            for (int32_t i = 0; i < q_len[s]; i++)
                for (int32_t d = 0; d < 4; d++)
                    c->q[((c->q_start[s] + i) * 4 + h) * 4 + d] = stream(&seed);
    float *k = (float *)(void *)c->k_pool, *v = (float *)(void *)c->v_pool;
    for (int i = 0; i < 96; i++)
        k[i] = stream(&seed);
    for (int i = 0; i < 96; i++)
        v[i] = stream(&seed);
}

static const float golden_a1[4][2][4] = {
    {{-0.1344994f, -0.169561f, 0.02052601f, 0.06269448f},
     {-0.3534025f, -0.261622f, 0.03323966f, 0.08204018f}},
    {{-0.2171554f, -0.1480685f, 0.07586738f, -0.01514223f},
     {-0.3183461f, -0.3783485f, -0.09577284f, 0.2637185f}},
    {{-0.1808393f, 0.1061202f, 0.05129575f, -0.4812615f},
     {-0.07150643f, 0.07035796f, 0.1138225f, -0.3294549f}},
    {{-0.206396f, 0.1281788f, 0.02399324f, -0.5086248f},
     {-0.009363839f, 0.04543293f, 0.17332f, -0.2406995f}}};

static const float golden_a2[3][4][4] = {
    {{0.4236247f, -0.01579057f, -0.1969858f, -0.09292177f},
     {0.4161839f, -0.08431035f, -0.2583734f, -0.04689298f},
     {-0.03213457f, -0.2826284f, -0.03333387f, -0.1095998f},
     {-0.03483697f, -0.2746088f, 0.0453508f, -0.06265602f}},
    {{-0.4764161f, -0.006957293f, -0.01216817f, 0.2753985f},
     {-0.4764161f, -0.006957293f, -0.01216817f, 0.2753985f},
     {0.3460374f, 0.418702f, 0.5354284f, 0.5027578f},
     {0.3460374f, 0.418702f, 0.5354284f, 0.5027578f}},
    {{-0.09843776f, -0.378872f, 0.2311892f, 0.2382362f},
     {-0.1631638f, -0.4546292f, 0.2642129f, 0.2404592f},
     {0.1727256f, -0.1396536f, 0.09541783f, -0.2488525f},
     {0.2209621f, -0.0006543845f, 0.07441542f, -0.165312f}}};

void attn_case_golden(attn_case *c, int number, float *want)
{
    if (number == 1) {
        golden_case(c, 7, 1, (int32_t[]){2}, (int32_t[]){5},
                    (int32_t[]){4, 5, 9, 2, 11}, 0);
        for (int h = 0; h < 4; h++)
            for (int t = 0; t < 2; t++)
                memcpy(want + (t * 4 + h) * 4, golden_a1[h][t], 16);
    } else {
        golden_case(c, 11, 3, (int32_t[]){1, 1, 1}, (int32_t[]){5, 1, 3},
                    (int32_t[]){4, 5, 9, 2, 11, 0, 8, 1, 6}, 0.3f);
        memcpy(want, golden_a2, sizeof golden_a2);
    }
}

/* ---- running ---------------------------------------------------------------
 */

#define MUST(expr)                                                             \
    do {                                                                       \
        folio_status must_ = (expr);                                           \
        cr_assert_eq(must_, FOLIO_OK, "%s: %s", #expr,                         \
                     folio_status_name(must_));                                \
    } while (0)

typedef struct bound_bufs {
    folio_device *dev;
    folio_queue *q;
    folio_buf *buf[32];
    int n;
} bound_bufs;

/* A buffer of exactly the bytes given. */
static folio_view upload(bound_bufs *b, const void *data, size_t bytes)
{
    folio_view v = {0};
    if (bytes == 0)
        return v;
    MUST(folio_buf_open(b->dev, bytes, &b->buf[b->n]));
    v.buf = b->buf[b->n++];
    MUST(folio_queue_write(b->q, v, data, bytes));
    return v;
}

static void upload_plane(const attn_case *c, bound_bufs *b, const uint8_t *pool,
                         folio_kv_plane *plane)
{
    size_t block = c->pool_bytes / (size_t)c->n_blocks;
    plane->seg_shift = c->seg_shift;
    int64_t per = (int64_t)1 << c->seg_shift;
    /* One block in front shows that the plane's offset is used. */
    plane->offset = block;
    for (int64_t first = 0; first < c->n_blocks; first += per) {
        size_t n = (size_t)FOLIO_MIN(per, c->n_blocks - first);
        uint8_t *part = folio_calloc(n + 1, block);
        memset(part, 0xff, block);
        memcpy(part + block, pool + (size_t)first * block, n * block);
        plane->buf[plane->n_buf++] = upload(b, part, (n + 1) * block).buf;
        free(part);
    }
}

static folio_kv_ref kv_of(const attn_case *c)
{
    return (folio_kv_ref){.type = c->sh.type,
                          .layout = c->sh.layout,
                          .n_blocks = c->n_blocks,
                          .block_size = c->sh.block_size,
                          .kv_heads = c->sh.kv_heads,
                          .head_dim = c->sh.head_dim};
}

static void upload_batch(const attn_case *c, bound_bufs *b, folio_attn_work *w)
{
    size_t seqs = (size_t)c->sh.n_seq;
    w->q_start = upload(b, c->q_start, (seqs + 1) * 4);
    w->kv_len = upload(b, c->sh.kv_len, seqs * 4);
    w->table_start = upload(b, c->table_start, (seqs + 1) * 4);
    w->tables = upload(b, c->tables, (size_t)c->table_start[seqs] * 4);
}

static void plan(const attn_case *c, const attn_run *r, const folio_op *op,
                 bound_bufs *b, folio_attn_work *w)
{
    folio_attn_plan_params p;
    folio_attn_plan_bounds cap;
    folio_attn_plan_counts n;
    int32_t max_kv = 1;
    for (int32_t s = 0; s < c->sh.n_seq; s++)
        max_kv = FOLIO_MAX(max_kv, c->sh.kv_len[s]);
    folio_attn_plan_params_of(op, &p);
    int32_t most = p.max_partials;
    if (r->chunk > 0 && p.target_groups > 0)
        p.chunk = r->chunk;
    MUST(folio_attn_plan_bound(&p, FOLIO_MAX(c->n_tok, 1), c->sh.n_seq, max_kv,
                               &cap));
    int32_t *entries = folio_calloc((size_t)cap.entries * 8, 4);
    int32_t *merges = folio_calloc((size_t)cap.merges * 4, 4);
    int32_t *tiles = folio_calloc((size_t)cap.tiles * 4, 4);
    MUST(folio_attn_plan_build(&p, c->sh.n_seq, c->q_start, c->sh.kv_len, &cap,
                               entries, merges, tiles, &n));
    cr_assert_leq(n.n_partials, most, "%s: %d partials, %d allowed", r->variant,
                  n.n_partials, most);
    w->entries = upload(b, entries, (size_t)n.n_entries * 32);
    w->merges = upload(b, merges, (size_t)n.n_merges * 16);
    w->tiles = upload(b, tiles, (size_t)n.n_tiles * 16);
    w->n_entries = n.n_entries;
    w->n_merges = n.n_merges;
    w->n_tiles = n.n_tiles;
    w->n_partials = n.n_partials;
    free(entries);
    free(merges);
    free(tiles);
}

static void fill_nan(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = NAN;
}

void attn_case_run(const attn_case *c, const attn_run *r, float *out)
{
    const attn_shape *sh = &c->sh;
    size_t width = (size_t)sh->heads * (size_t)sh->head_dim;
    size_t n = (size_t)c->n_tok * width, guard = 64;
    bound_bufs b = {.dev = r->dev};
    MUST(folio_queue_open(r->dev, &b.q));
    folio_attn_args a = {.q_stride = (int32_t)width,
                         .out_stride = (int32_t)width,
                         .n_tok = c->n_tok,
                         .heads = sh->heads,
                         .window = sh->window,
                         .scale = sh->scale,
                         .softcap = sh->softcap};
    a.kv = kv_of(c);
    upload_plane(c, &b, c->k_pool, &a.kv.k);
    upload_plane(c, &b, c->v_pool, &a.kv.v);
    folio_op_params prm = {.deterministic = r->deterministic};
    folio_op *op = NULL;
    a.work.n_seq = sh->n_seq;
    a.work.n_partials = r->n_partials;
    MUST(folio_op_open_variant(r->dev, r->variant, &prm, &a, &op));
    plan(c, r, op, &b, &a.work);
    upload_batch(c, &b, &a.work);
    a.q = upload(&b, c->q, n * 4);
    float *got = folio_calloc(n + guard, sizeof *got);
    fill_nan(got, n + guard);
    a.out = upload(&b, got, (n + guard) * 4);
    float *junk = folio_calloc(folio_op_scratch_bytes(op) / 4 + 1, 4);
    fill_nan(junk, folio_op_scratch_bytes(op) / 4);
    a.scratch = upload(&b, junk, folio_op_scratch_bytes(op));
    free(junk);
    MUST(folio_op_run(op, b.q, &a));
    MUST(folio_queue_read(b.q, a.out, got, (n + guard) * 4));
    for (size_t i = 0; i < guard; i++)
        cr_assert(isnan(got[n + i]), "%s wrote behind its output", r->variant);
    memcpy(out, got, n * sizeof *out);
    fill_nan(got, n + guard);
    MUST(folio_queue_write(b.q, a.out, got, (n + guard) * 4));
    MUST(folio_op_run(op, b.q, &a));
    MUST(folio_queue_read(b.q, a.out, got, n * 4));
    cr_assert_eq(memcmp(out, got, n * 4), 0, "%s: a second run differs",
                 r->variant);
    free(got);
    folio_op_close(&op);
    for (int i = 0; i < b.n; i++)
        folio_buf_close(&b.buf[i]);
    folio_queue_close(&b.q);
}

void attn_case_ref(const attn_case *c, float *out)
{
    folio_device_params p;
    folio_device *dev = NULL;
    folio_device_params_default(&p);
    p.select = "host";
    p.n_threads = 1;
    MUST(folio_device_open(&p, &dev));
    attn_run r = {.dev = dev, .variant = "ref_attn"};
    attn_case_run(c, &r, out);
    folio_device_close(&dev);
}

void attn_case_host(const attn_case *c, folio_device *dev,
                    const folio_host_attn_set *set, float *out)
{
    const attn_shape *sh = &c->sh;
    bound_bufs b = {.dev = dev};
    MUST(folio_queue_open(dev, &b.q));
    size_t width = (size_t)sh->heads * (size_t)sh->head_dim;
    size_t n = (size_t)c->n_tok * width;
    folio_attn_args a = {.q_stride = (int32_t)width,
                         .out_stride = (int32_t)width,
                         .n_tok = c->n_tok,
                         .heads = sh->heads,
                         .window = sh->window,
                         .scale = sh->scale,
                         .softcap = sh->softcap};
    a.kv = kv_of(c);
    upload_plane(c, &b, c->k_pool, &a.kv.k);
    upload_plane(c, &b, c->v_pool, &a.kv.v);
    a.work.n_seq = sh->n_seq;
    upload_batch(c, &b, &a.work);
    a.q = upload(&b, c->q, n * 4);
    a.out = upload(&b, out, n * 4);
    folio_host_attn_run(set, folio_device_threads(dev), &a);
    MUST(folio_queue_read(b.q, a.out, out, n * 4));
    for (int i = 0; i < b.n; i++)
        folio_buf_close(&b.buf[i]);
    folio_queue_close(&b.q);
}

void attn_case_compare(const attn_case *c, const char *what, const float *got,
                       const float *want, double abs_tol, double rel_tol)
{
    size_t hd = (size_t)c->sh.head_dim, h = (size_t)c->sh.heads;
    for (size_t i = 0; i < (size_t)c->n_tok * h * hd; i++) {
        double diff = fabs((double)got[i] - (double)want[i]);
        cr_assert(diff <= abs_tol + rel_tol * fabs((double)want[i]),
                  "%s: token %zu head %zu dim %zu is %.9g, not %.9g", what,
                  i / (h * hd), i / hd % h, i % hd, (double)got[i],
                  (double)want[i]);
    }
}
