/* ops/self_case.c: see self_case.h. */
#include "ops/self_case.h"

#include "base/half.h"
#include "base/rng.h"
#include "ops/kv_host.h"
#include "ops/pack.h"
#include "ops/sample_row.h"

#include <math.h>
#include <string.h>

/* Arrays stay below this, so that devices with small buffers can be tested. */
#define MAX_ARRAY ((size_t)512 << 10)

/* ---- random contents -------------------------------------------------------
 */

/* Uniform in [-1, 1), a multiple of 2^-23. */
static float unit_of(uint32_t bits)
{
    return (float)(bits >> 8) * 0x1p-23f - 1.0f;
}

static void fill_units(folio_self_case *c, float *out, size_t n)
{
    uint32_t words[4];
    for (size_t i = 0; i < n; i++) {
        if (i % 4 == 0)
            folio_philox4x32(c->seed, c->counter++, 0, words);
        out[i] = unit_of(words[i % 4]);
    }
}

static void put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* Where the f16 scale and the f16 min (or a second scale) of a block lie. */
static void scale_places(folio_type type, int *scale, int *min)
{
    *scale = 0;
    *min = -1;
    switch (type) {
    case FOLIO_TYPE_Q4_1:
    case FOLIO_TYPE_Q5_1:
    case FOLIO_TYPE_Q4_K:
    case FOLIO_TYPE_Q5_K:
        *min = 2;
        break;
    case FOLIO_TYPE_Q2_K:
        *scale = 80;
        *min = 82;
        break;
    case FOLIO_TYPE_Q3_K:
        *scale = 108;
        break;
    case FOLIO_TYPE_Q6_K:
        *scale = 208;
        break;
    default:
        break;
    }
}

static void fill_block(folio_type type, float a, float b, uint8_t *p)
{
    int scale, min;
    switch (type) {
    case FOLIO_TYPE_F32: {
        uint32_t bits = folio_f32_bits(a);
        put_u16(p, (uint16_t)bits);
        put_u16(p + 2, (uint16_t)(bits >> 16));
        return;
    }
    case FOLIO_TYPE_F16:
        put_u16(p, folio_f32_to_f16(a));
        return;
    case FOLIO_TYPE_BF16:
        put_u16(p, folio_f32_to_bf16(a));
        return;
    case FOLIO_TYPE_MXFP4: /* the exponent: 2^(e - 128) */
        p[0] = (uint8_t)(127 + ilogbf(fmaxf(fabsf(a), 1e-6f)));
        return;
    default:
        scale_places(type, &scale, &min);
        put_u16(p + scale, folio_f32_to_f16(a));
        if (min >= 0)
            put_u16(p + min, folio_f32_to_f16(b));
    }
}

void folio_self_blocks(folio_type type, int64_t n_values, float scale,
                       uint64_t seed, void *out)
{
    const folio_type_info *info = folio_type_find((uint32_t)type);
    uint8_t *p = out;
    size_t n = (size_t)n_values / info->block_values;
    uint32_t words[4];
    for (size_t i = 0; i < n; i++, p += info->block_bytes) {
        for (size_t b = 0; b < info->block_bytes; b++) {
            if (b % 16 == 0)
                folio_philox4x32(seed, i, 1 + b / 16, words);
            p[b] = (uint8_t)(words[b % 16 / 4] >> (8 * (b % 4)));
        }
        folio_philox4x32(seed, i, 0, words);
        fill_block(type, scale * unit_of(words[0]), scale * unit_of(words[1]),
                   p);
    }
}

/* ---- arrays -----------------------------------------------------------------
 */

static void sign(folio_self_case *c, int64_t v)
{
    if (c->n_sig < FOLIO_SELF_SIG)
        c->sig[c->n_sig++] = v;
}

static void *add_array(folio_self_case *c, folio_buf **at, size_t bytes,
                       folio_self_kind kind, bool out, int64_t row)
{
    folio_self_array *a = &c->arrays[c->n_arrays];
    void *data = folio_calloc(bytes, 1);
    if (!data || c->n_arrays == FOLIO_SELF_ARRAYS) {
        free(data);
        c->failed = true;
        return NULL;
    }
    *a = (folio_self_array){.at = at,
                            .data = data,
                            .bytes = bytes,
                            .kind = kind,
                            .out = out,
                            .row = row};
    c->n_arrays++;
    return data;
}

static void add_floats(folio_self_case *c, folio_view *v, int64_t n, bool out,
                       int64_t row)
{
    float *p = add_array(c, &v->buf, (size_t)n * 4, FOLIO_SELF_F32, out, row);
    if (p)
        fill_units(c, p, (size_t)n);
}

/* NaN everywhere: what is not written shows. */
static void add_poison(folio_self_case *c, folio_view *v, int64_t n,
                       folio_self_kind kind, int64_t row)
{
    void *p = add_array(c, &v->buf, (size_t)n * 4, kind, true, row);
    if (p)
        memset(p, 0xff, (size_t)n * 4);
}

static void add_ints(folio_self_case *c, folio_view *v, const int32_t *values,
                     int n)
{
    void *p = add_array(c, &v->buf, (size_t)n * 4, FOLIO_SELF_BYTES, false, n);
    if (p)
        memcpy(p, values, (size_t)n * 4);
}

/* The first `rows` rows of a matrix like `w`. */
static const folio_weight *add_weight(folio_self_case *c, const folio_weight *w,
                                      int64_t rows)
{
    size_t raw =
        (size_t)rows * folio_type_row_bytes(w->type, (uint64_t)w->cols);
    size_t bytes = folio_pack_bytes(w->packing, w->type, rows, w->cols);
    int i = c->n_weights++;
    c->weight_view[i] = (folio_weight_view){.rows = rows};
    c->weight[i] = (folio_weight){.type = w->type,
                                  .packing = w->packing,
                                  .rows = rows,
                                  .cols = w->cols,
                                  .views = &c->weight_view[i],
                                  .n_views = 1};
    sign(c, w->type);
    sign(c, w->packing);
    sign(c, rows);
    sign(c, w->cols);
    uint8_t *file = folio_calloc(raw, 1);
    void *p = add_array(c, &c->weight_view[i].view.buf, bytes, FOLIO_SELF_BYTES,
                        false, w->cols);
    c->failed |= !file;
    if (p && file) {
        folio_self_blocks(w->type, rows * w->cols, 0.125f,
                          c->seed + (uint64_t)i, file);
        folio_pack_rows(w->packing, w->type, w->cols, file, rows, p);
    }
    free(file);
    return &c->weight[i];
}

/* One plane of NaN: what nobody writes stays it, and what nobody may read
 * shows. Blocks can be huge: nothing else may be done once for each element. */
static void add_plane(folio_self_case *c, const folio_kv_ref *kv,
                      folio_kv_plane *plane, bool out)
{
    size_t bytes = (size_t)kv->n_blocks * folio_kv_block_bytes(kv);
    *plane = (folio_kv_plane){.n_buf = 1, .seg_shift = 31};
    void *p =
        add_array(c, &plane->buf[0], bytes,
                  kv->type == FOLIO_KV_F16 ? FOLIO_SELF_F16 : FOLIO_SELF_F32,
                  out, kv->head_dim);
    if (p)
        memset(p, 0xff, bytes);
}

/* The host array behind a plane; NULL after a failure. */
static void *plane_data(const folio_self_case *c, const folio_kv_plane *plane)
{
    for (int i = 0; i < c->n_arrays; i++)
        if (c->arrays[i].at == &plane->buf[0])
            return c->arrays[i].data;
    return NULL;
}

static void put_unit(folio_self_case *c, folio_kv_type type, void *p, size_t i)
{
    float unit;
    fill_units(c, &unit, 1);
    if (type == FOLIO_KV_F16)
        ((uint16_t *)p)[i] = folio_f32_to_f16(unit);
    else
        ((float *)p)[i] = unit;
}

/* Random K or V of the first n_tok tokens of block `blk`. */
static void fill_tokens(folio_self_case *c, const folio_kv_ref *kv,
                        const folio_kv_plane *plane, int32_t x, int32_t y,
                        int32_t blk, int32_t n_tok)
{
    void *p = plane_data(c, plane);
    size_t tile = (size_t)kv->block_size * (size_t)kv->head_dim;
    for (int32_t h = 0; p && h < kv->kv_heads; h++) {
        size_t at = ((size_t)blk * (size_t)kv->kv_heads + (size_t)h) * tile;
        for (int32_t t = 0; t < n_tok; t++)
            for (int32_t d = 0; d < kv->head_dim; d++)
                put_unit(c, kv->type, p,
                         at + folio_kv_index((unsigned)t, (unsigned)d,
                                             (unsigned)kv->block_size,
                                             (unsigned)x, (unsigned)y));
    }
}

/* Whole blocks to copy: each of one value, which differs from block to block,
 * with random numbers at both ends. */
static void fill_blocks(folio_self_case *c, const folio_kv_ref *kv,
                        const folio_kv_plane *plane)
{
    uint8_t *p = plane_data(c, plane);
    size_t bytes = folio_kv_block_bytes(kv);
    size_t n = bytes / folio_kv_type_bytes(kv->type);
    for (int32_t b = 0; p && b < kv->n_blocks; b++, p += bytes) {
        memset(p, 0x3c + b % 4, bytes); /* between 0.01 and 2 */
        for (size_t i = 0; i < FOLIO_MIN(n, 4096); i++) {
            put_unit(c, kv->type, p, i);
            put_unit(c, kv->type, p, n - 1 - i);
        }
    }
}

static void init_kv(folio_self_case *c, folio_kv_ref *kv, int32_t n_blocks,
                    bool out)
{
    kv->n_blocks = n_blocks;
    kv->k_scale = kv->v_scale = (folio_kv_plane){0};
    sign(c, kv->type);
    sign(c, kv->layout.xk);
    sign(c, kv->layout.yk);
    sign(c, kv->layout.xv);
    sign(c, kv->layout.yv);
    sign(c, kv->block_size);
    sign(c, kv->kv_heads);
    sign(c, kv->head_dim);
    add_plane(c, kv, &kv->k, out);
    add_plane(c, kv, &kv->v, out);
}

/* Elements from the first row to behind the last. */
static int64_t span(int64_t rows, int64_t stride, int64_t width)
{
    return (rows - 1) * stride + width;
}

/* ---- ops
 * ---------------------------------------------------------------------- */

static void init_embed(folio_self_case *c, const folio_embed_args *a)
{
    static const int32_t ids[3] = {4, 0, 4};
    folio_embed_args *e = &c->args.embed;
    *e = (folio_embed_args){.scale = a->scale};
    e->n_tok = FOLIO_MIN(a->n_tok, 3);
    e->w = add_weight(c, a->w, 5);
    add_ints(c, &e->ids, ids, e->n_tok);
    add_poison(c, &e->out, e->n_tok * a->w->cols, FOLIO_SELF_F32, a->w->cols);
}

static void init_gather(folio_self_case *c, const folio_gather_rows_args *a)
{
    static const int32_t idx[3] = {3, 0, 3};
    folio_gather_rows_args *g = &c->args.gather;
    *g = (folio_gather_rows_args){.dim = a->dim};
    g->n_rows = FOLIO_MIN(a->n_rows, 3);
    sign(c, a->dim);
    add_floats(c, &g->x, 4 * (int64_t)a->dim, false, a->dim);
    add_ints(c, &g->idx, idx, g->n_rows);
    add_poison(c, &g->out, (int64_t)g->n_rows * a->dim, FOLIO_SELF_F32, a->dim);
}

static void init_rmsnorm(folio_self_case *c, const folio_rmsnorm_args *a)
{
    folio_rmsnorm_args *n = &c->args.rmsnorm;
    *n = (folio_rmsnorm_args){.dim = a->dim,
                              .x_stride = a->x_stride,
                              .out_stride = a->out_stride,
                              .eps = a->eps};
    n->n_rows = FOLIO_MIN(a->n_rows, 3);
    sign(c, a->dim);
    sign(c, a->x_stride);
    sign(c, a->out_stride);
    add_floats(c, &n->x, span(n->n_rows, a->x_stride, a->dim), false, a->dim);
    add_floats(c, &n->res, (int64_t)n->n_rows * a->dim, true, a->dim);
    add_floats(c, &n->w, a->dim, false, a->dim);
    add_poison(c, &n->out, span(n->n_rows, a->out_stride, a->dim),
               FOLIO_SELF_F32, a->out_stride);
}

/* Few rows and tokens first; then enough for tiles; then as asked. */
static bool init_linear(folio_self_case *c, const folio_linear_args *a,
                        int attempt)
{
    static const struct {
        int32_t rows, tok;
    } sizes[] = {{40, 3}, {256, 65}, {INT32_MAX, INT32_MAX}};
    if (attempt >= (int)FOLIO_COUNT(sizes))
        return false;
    size_t row_bytes = folio_type_row_bytes(a->w->type, (uint64_t)a->w->cols);
    int64_t rows = FOLIO_MIN(a->w->rows, sizes[attempt].rows);
    if (attempt < 2)
        rows = FOLIO_MIN(rows, 1 + (int64_t)(MAX_ARRAY / row_bytes));
    folio_linear_args *l = &c->args.linear;
    *l = (folio_linear_args){.accumulate = a->accumulate};
    l->n_tok = FOLIO_MIN(a->n_tok, sizes[attempt].tok);
    /* The reference would take seconds. */
    if (rows * a->w->cols * l->n_tok > (int64_t)1 << 28)
        return false;
    l->x_stride = (int32_t)a->w->cols;
    l->y_stride = (int32_t)rows;
    sign(c, a->accumulate);
    l->w = add_weight(c, a->w, rows);
    add_floats(c, &l->x, l->n_tok * a->w->cols, false, a->w->cols);
    add_floats(c, &l->bias, rows, false, rows);
    if (a->accumulate)
        add_floats(c, &l->y, l->n_tok * rows, true, rows);
    else
        add_poison(c, &l->y, l->n_tok * rows, FOLIO_SELF_F32, rows);
    c->scratch = &l->scratch;
    return true;
}

static void init_rope(folio_self_case *c, const folio_rope_append_args *a)
{
    static const int32_t pos[3] = {3, 0, 4};
    folio_rope_append_args *r = &c->args.rope;
    folio_kv_ref *kv = &r->kv;
    *r = (folio_rope_append_args){.q_stride = a->q_stride,
                                  .k_stride = a->k_stride,
                                  .v_stride = a->v_stride,
                                  .n_pos = a->rot_dim ? 5 : 0,
                                  .rot_dim = a->rot_dim,
                                  .interleaved = a->interleaved,
                                  .heads = a->heads};
    r->n_tok = FOLIO_MIN(a->n_tok, 3);
    *kv = a->kv;
    init_kv(c, kv, 3, true);
    /* The last place of a block, padding, and the pool's last place. */
    int32_t slot[3] = {2 * kv->block_size - 1, -1, 3 * kv->block_size - 1};
    sign(c, a->heads);
    sign(c, a->rot_dim);
    sign(c, a->interleaved);
    sign(c, a->q_stride);
    sign(c, a->k_stride);
    sign(c, a->v_stride);
    int64_t kv_width = (int64_t)kv->kv_heads * kv->head_dim;
    if (a->heads > 0)
        add_floats(
            c, &r->q,
            span(r->n_tok, a->q_stride, (int64_t)a->heads * kv->head_dim), true,
            kv->head_dim);
    add_floats(c, &r->k, span(r->n_tok, a->k_stride, kv_width), false,
               kv->head_dim);
    add_floats(c, &r->v, span(r->n_tok, a->v_stride, kv_width), false,
               kv->head_dim);
    add_ints(c, &r->slot, slot, r->n_tok);
    if (a->rot_dim > 0) {
        add_ints(c, &r->pos, pos, r->n_tok);
        add_floats(c, &r->table, 5 * (int64_t)a->rot_dim, false, a->rot_dim);
    }
}

/* A decoding sequence with a long past, then, where the op takes more than one
 * token, one that computes the rest after a past of 3. Blocks are handed out
 * from the last one down. */
static bool init_attn(folio_self_case *c, const folio_attn_args *a, int attempt)
{
    static const int32_t most_tok[] = {6, 80};
    if (attempt >= (int)FOLIO_COUNT(most_tok))
        return false;
    folio_attn_args *t = &c->args.attn;
    *t = (folio_attn_args){.q_stride = a->q_stride,
                           .out_stride = a->out_stride,
                           .heads = a->heads,
                           .window = a->window,
                           .scale = a->scale,
                           .softcap = a->softcap,
                           .kv = a->kv};
    t->n_tok = FOLIO_MIN(a->n_tok, most_tok[attempt]);
    const folio_kv_ref *kv = &a->kv;
    int64_t tok_bytes = (int64_t)kv->kv_heads * kv->head_dim *
                        (int64_t)folio_kv_type_bytes(kv->type);
    int64_t room = (int64_t)MAX_ARRAY / tok_bytes - t->n_tok;
    int32_t past = (int32_t)FOLIO_MAX(FOLIO_MIN(room, 300), 40);
    int32_t kv_len[2] = {past, t->n_tok + 2};
    int32_t n_seq = t->n_tok > 1 ? 2 : 1;
    int32_t q_start[3] = {0, 1, t->n_tok}, table_start[3] = {0}, tables[400];
    for (int32_t s = 0; s < n_seq; s++)
        table_start[s + 1] =
            table_start[s] + (int32_t)folio_div_up(kv_len[s], kv->block_size);
    int32_t n_blocks = table_start[n_seq];
    for (int32_t i = 0; i < n_blocks; i++)
        tables[i] = n_blocks - 1 - i;
    t->work.n_seq = n_seq;
    sign(c, a->heads);
    sign(c, a->window);
    sign(c, folio_f32_bits(a->scale));
    sign(c, folio_f32_bits(a->softcap));
    sign(c, a->q_stride);
    sign(c, a->out_stride);
    init_kv(c, &t->kv, n_blocks, false);
    const folio_kv_layout *l = &t->kv.layout;
    for (int32_t s = 0; s < n_seq; s++)
        for (int32_t i = table_start[s]; i < table_start[s + 1]; i++) {
            int64_t left =
                kv_len[s] - (int64_t)(i - table_start[s]) * kv->block_size;
            int32_t n = (int32_t)FOLIO_MIN(left, kv->block_size);
            fill_tokens(c, &t->kv, &t->kv.k, l->xk, l->yk, tables[i], n);
            fill_tokens(c, &t->kv, &t->kv.v, l->xv, l->yv, tables[i], n);
        }
    int64_t width = (int64_t)a->heads * kv->head_dim;
    add_floats(c, &t->q, span(t->n_tok, a->q_stride, width), false, width);
    add_poison(c, &t->out, span(t->n_tok, a->out_stride, width), FOLIO_SELF_F32,
               kv->head_dim);
    add_ints(c, &t->work.q_start, q_start, n_seq + 1);
    add_ints(c, &t->work.kv_len, kv_len, n_seq);
    add_ints(c, &t->work.table_start, table_start, n_seq + 1);
    add_ints(c, &t->work.tables, tables, n_blocks);
    c->scratch = &t->scratch;
    return true;
}

static void init_act(folio_self_case *c, const folio_act_mul_args *a)
{
    folio_act_mul_args *m = &c->args.act;
    *m = *a;
    m->gate = m->up = m->out = (folio_view){0};
    m->n_tok = FOLIO_MIN(a->n_tok, 3);
    sign(c, a->dim);
    sign(c, a->act);
    sign(c, a->gate_stride);
    sign(c, a->up_stride);
    sign(c, a->out_stride);
    add_floats(c, &m->gate, span(m->n_tok, a->gate_stride, a->dim), false,
               a->dim);
    add_floats(c, &m->up, span(m->n_tok, a->up_stride, a->dim), false, a->dim);
    add_poison(c, &m->out, span(m->n_tok, a->out_stride, a->dim),
               FOLIO_SELF_F32, a->out_stride);
}

static void init_add(folio_self_case *c, const folio_add_args *a)
{
    folio_add_args *d = &c->args.add;
    *d = (folio_add_args){.n = FOLIO_MIN(a->n, 1001)};
    add_floats(c, &d->x, d->n, false, d->n);
    add_floats(c, &d->y, d->n, true, d->n);
}

static bool init_topk(folio_self_case *c, const folio_topk_args *a, int attempt)
{
    if (attempt > 1)
        return false;
    folio_topk_args *t = &c->args.topk;
    *t = (folio_topk_args){.k = a->k, .n_vocab = a->n_vocab};
    t->n_rows = FOLIO_MIN(a->n_rows, 2);
    if (attempt == 0)
        t->n_vocab = FOLIO_MIN(a->n_vocab, 5003);
    sign(c, a->k);
    sign(c, t->n_vocab);
    int64_t n = (int64_t)t->n_rows * t->n_vocab;
    add_floats(c, &t->x, n, false, t->n_vocab);
    if (c->failed)
        return true;
    float *x = c->arrays[c->n_arrays - 1].data;
    /* Ties at the top, and a NaN in the last row. */
    for (int64_t i = 0; i < n; i += 1 + n / 5)
        x[i] = 0.999f;
    x[n - 1] = folio_bits_f32(0x7fc00000u);
    add_poison(c, &t->ids, (int64_t)t->n_rows * a->k, FOLIO_SELF_I32, a->k);
    add_poison(c, &t->values, (int64_t)t->n_rows * a->k, FOLIO_SELF_F32, a->k);
    add_poison(c, &t->n_nan, t->n_rows, FOLIO_SELF_I32, t->n_rows);
    c->scratch = &t->scratch;
    return true;
}

static void init_copy(folio_self_case *c, const folio_copy_blocks_args *a)
{
    static const int32_t pairs[4] = {0, 2, 3, 1};
    folio_copy_blocks_args *b = &c->args.copy;
    *b = (folio_copy_blocks_args){.kv = a->kv};
    b->n_pairs = FOLIO_MIN(a->n_pairs, 2);
    init_kv(c, &b->kv, 4, true);
    fill_blocks(c, &b->kv, &b->kv.k);
    fill_blocks(c, &b->kv, &b->kv.v);
    add_ints(c, &b->pairs, pairs, 2 * b->n_pairs);
}

/* Rows that are drawn with all filters, greedy, changed and not; the last one
 * is mostly ties. Edits and counts only where the op was opened for them. */
static void init_sample(folio_self_case *c, const folio_sample_args *a)
{
    int32_t words[4][FOLIO_SAMPLE_IN], edits[3][2];
    folio_sample_args *s = &c->args.sample;
    *s = (folio_sample_args){.n_vocab = FOLIO_MIN(a->n_vocab, 5003)};
    s->n_rows = FOLIO_MIN(a->n_rows, 4);
    s->stride = s->n_vocab;
    s->n_edits = a->n_edits > 0 ? 3 : 0;
    s->n_slots = a->n_slots > 0 ? 1 : 0;
    sign(c, s->n_vocab);
    sign(c, s->n_edits);
    sign(c, s->n_slots);
    folio_sample_edit(edits[0], 0, 0.25f);
    folio_sample_edit(edits[1], 0, 0.5f);
    folio_sample_edit(edits[2], s->n_vocab / 2, -INFINITY);
    for (int32_t r = 0; r < s->n_rows; r++) {
        const folio_sample_spec spec = {.temperature = r == 2 ? 0 : 0.1f,
                                        .top_p = r == 1 ? 1 : 0.9f,
                                        .min_p = r == 1 ? 0 : 0.01f,
                                        .top_k = r == 1 ? 0 : 300,
                                        .seed = c->seed,
                                        .position = (uint64_t)r,
                                        .target = r - 1,
                                        .slot = s->n_slots && r == 1 ? 0 : -1,
                                        .repetition_penalty = 1.25f,
                                        .presence_penalty = 0.125f,
                                        .frequency_penalty = 0.5f,
                                        .edit_end = r > 1 ? 0 : s->n_edits};
        folio_sample_pack(&spec, words[r]);
    }
    int64_t n = (int64_t)s->n_rows * s->n_vocab;
    add_floats(c, &s->logits, n, false, s->n_vocab);
    if (c->failed)
        return;
    float *x = c->arrays[c->n_arrays - 1].data;
    for (int64_t i = n - s->n_vocab; i < n; i++)
        x[i] = ldexpf(nearbyintf(ldexpf(x[i], 2)), -2);
    add_ints(c, &s->rows, words[0], s->n_rows * FOLIO_SAMPLE_IN);
    if (s->n_edits)
        add_ints(c, &s->edits, edits[0], 2 * s->n_edits);
    int32_t *counts = s->n_slots
                          ? add_array(c, &s->counts.buf, (size_t)s->n_vocab * 4,
                                      FOLIO_SELF_I32, true, s->n_vocab)
                          : NULL;
    for (int32_t i = 0; counts && i < s->n_vocab; i += 3)
        counts[i] = i % 2 ? SAMPLE_SEEN : i % 5;
    add_poison(c, &s->ids, s->n_rows, FOLIO_SELF_I32, s->n_rows);
    add_poison(c, &s->out, (int64_t)s->n_rows * FOLIO_SAMPLE_OUT,
               FOLIO_SELF_I32, FOLIO_SAMPLE_OUT);
    c->scratch = &s->scratch;
}

/* What fused ops begin with; `n_rows` rows of x. */
static void init_in(folio_self_case *c, const folio_norm_in *a,
                    folio_norm_in *in, int32_t n_rows)
{
    *in =
        (folio_norm_in){.dim = a->dim, .x_stride = a->x_stride, .eps = a->eps};
    sign(c, a->dim);
    sign(c, a->x_stride);
    add_floats(c, &in->x, span(n_rows, a->x_stride, a->dim), false, a->dim);
    add_floats(c, &in->norm, a->dim, false, a->dim);
}

#define FUSED_ROWS 40

static void init_norm_linear(folio_self_case *c,
                             const folio_norm_linear_args *a)
{
    static const int32_t idx[3] = {3, 0, 3};
    folio_norm_linear_args *l = &c->args.norm_linear;
    *l = (folio_norm_linear_args){.gather = a->gather, .n_parts = a->n_parts};
    l->n_tok = FOLIO_MIN(a->n_tok, 3);
    sign(c, a->gather);
    init_in(c, &a->in, &l->in, 4);
    if (a->gather)
        add_ints(c, &l->idx, idx, l->n_tok);
    for (int32_t i = 0; i < a->n_parts; i++) {
        const folio_weight *w = a->part[i].w;
        int64_t rows = FOLIO_MIN(w->rows, FUSED_ROWS - i);
        folio_product *p = &l->part[i];
        p->w = add_weight(c, w, rows);
        p->y_stride = (int32_t)rows;
        add_floats(c, &p->bias, rows, false, rows);
        add_poison(c, &p->y, l->n_tok * rows, FOLIO_SELF_F32, rows);
    }
    c->scratch = &l->scratch;
}

static void init_qkv(folio_self_case *c, const folio_qkv_args *a)
{
    static const int32_t pos[3] = {3, 0, 4};
    folio_qkv_args *k = &c->args.qkv;
    folio_kv_ref *kv = &k->kv;
    *k = (folio_qkv_args){.head_norm = a->head_norm,
                          .q_stride = a->q_stride,
                          .n_pos = a->rot_dim ? 5 : 0,
                          .rot_dim = a->rot_dim,
                          .interleaved = a->interleaved,
                          .heads = a->heads,
                          .kv = a->kv};
    k->n_tok = FOLIO_MIN(a->n_tok, 3);
    int32_t slot[3] = {2 * kv->block_size - 1, -1, 3 * kv->block_size - 1};
    sign(c, a->head_norm);
    sign(c, a->q_stride);
    sign(c, a->rot_dim);
    sign(c, a->interleaved);
    sign(c, a->heads);
    init_in(c, &a->in, &k->in, k->n_tok);
    init_kv(c, kv, 3, true);
    /* What products may differ by is a share of what a whole row of them holds:
     * a stretch of a pool may hold eight of them, all near 0 by chance. */
    for (int i = c->n_arrays - 2; i < c->n_arrays; i++)
        c->arrays[i].row =
            (int64_t)(c->arrays[i].bytes / folio_kv_type_bytes(kv->type));
    k->wq = add_weight(c, a->wq, a->wq->rows);
    k->wk = add_weight(c, a->wk, a->wk->rows);
    k->wv = add_weight(c, a->wv, a->wv->rows);
    add_floats(c, &k->bq, a->wq->rows, false, a->wq->rows);
    add_floats(c, &k->bk, a->wk->rows, false, a->wk->rows);
    add_floats(c, &k->bv, a->wv->rows, false, a->wv->rows);
    if (a->head_norm) {
        add_floats(c, &k->q_norm, kv->head_dim, false, kv->head_dim);
        add_floats(c, &k->k_norm, kv->head_dim, false, kv->head_dim);
    }
    add_poison(c, &k->q, span(k->n_tok, a->q_stride, a->wq->rows),
               FOLIO_SELF_F32, a->q_stride);
    add_ints(c, &k->slot, slot, k->n_tok);
    if (a->rot_dim > 0) {
        add_ints(c, &k->pos, pos, k->n_tok);
        add_floats(c, &k->table, 5 * (int64_t)a->rot_dim, false, a->rot_dim);
    }
    c->scratch = &k->scratch;
}

static void init_gate_up(folio_self_case *c, const folio_gate_up_args *a)
{
    folio_gate_up_args *g = &c->args.gate_up;
    int64_t rows = FOLIO_MIN(a->gate->rows, FUSED_ROWS - 1);
    *g = (folio_gate_up_args){.out_stride = (int32_t)rows, .act = a->act};
    g->n_tok = FOLIO_MIN(a->n_tok, 3);
    sign(c, a->act);
    init_in(c, &a->in, &g->in, g->n_tok);
    g->gate = add_weight(c, a->gate, rows);
    g->up = add_weight(c, a->up, rows);
    add_poison(c, &g->out, g->n_tok * rows, FOLIO_SELF_F32, rows);
    c->scratch = &g->scratch;
}

const folio_self_parts folio_self_shared = {
    .sign = sign,
    .array = add_array,
    .floats = add_floats,
    .ints = add_ints,
    .units = fill_units,
    .kv = init_kv,
    .tokens = fill_tokens,
};

folio_status folio_self_case_init(folio_self_case *c, folio_op_id op,
                                  const void *args, int attempt)
{
    memset(c, 0, sizeof *c);
    c->op = op;
    c->seed = 1 + (uint64_t)op;
    bool found = attempt == 0;
    bool grows =
        op == FOLIO_OP_LINEAR || op == FOLIO_OP_ATTN || op == FOLIO_OP_TOPK;
    if (!found && !grows)
        return FOLIO_E_NOT_FOUND;
    switch (op) {
    case FOLIO_OP_EMBED:
        init_embed(c, args);
        break;
    case FOLIO_OP_GATHER_ROWS:
        init_gather(c, args);
        break;
    case FOLIO_OP_RMSNORM:
        init_rmsnorm(c, args);
        break;
    case FOLIO_OP_LINEAR:
        found = init_linear(c, args, attempt);
        break;
    case FOLIO_OP_ROPE_APPEND:
        init_rope(c, args);
        break;
    case FOLIO_OP_ACT_MUL:
        init_act(c, args);
        break;
    case FOLIO_OP_ADD:
        init_add(c, args);
        break;
    case FOLIO_OP_TOPK:
        found = init_topk(c, args, attempt);
        break;
    case FOLIO_OP_COPY_BLOCKS:
        init_copy(c, args);
        break;
    case FOLIO_OP_SAMPLE:
        init_sample(c, args);
        break;
    case FOLIO_OP_ATTN:
        found = init_attn(c, args, attempt);
        break;
    case FOLIO_OP_NORM_LINEAR:
        init_norm_linear(c, args);
        break;
    case FOLIO_OP_QKV:
        init_qkv(c, args);
        break;
    case FOLIO_OP_GATE_UP:
        init_gate_up(c, args);
        break;
    case FOLIO_OP_STEP:
        folio_self_step_init(c, args);
        break;
    case FOLIO_OP_COUNT:
        found = false;
        break;
    }
    if (c->failed)
        return FOLIO_E_NOMEM;
    return found ? FOLIO_OK : FOLIO_E_NOT_FOUND;
}

void folio_self_case_fini(folio_self_case *c)
{
    for (int i = 0; i < c->n_arrays; i++)
        FOLIO_FREE(c->arrays[i].data);
    c->n_arrays = 0;
}
