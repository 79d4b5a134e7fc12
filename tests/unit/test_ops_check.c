/* Every kind of bad argument is refused by a run, with a status of its kind and
 * a message that names the field, and nothing on the device changes. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "ops_bed.h"

static uint64_t hash_memory(const bed *b)
{
    uint64_t h = 0;
    for (int i = 0; i < b->n; i++)
        h = folio_hash_bytes(b->mem[i] + 64, b->bytes[i], h).lo;
    return h;
}

static folio_op *open_good(bed *b, folio_op_id id, const void *args)
{
    folio_op_params prm = {.deterministic = true};
    folio_op *op = NULL;
    cr_assert_eq(folio_op_open(b->dev, id, &prm, args, &op), FOLIO_OK, "%s",
                 b->log);
    cr_assert_eq(folio_op_run(op, b->q, args), FOLIO_OK, "%s", b->log);
    return op;
}

static void expect_refused(bed *b, folio_op *op, const void *args,
                           folio_status want, const char *text, int line)
{
    uint64_t before = hash_memory(b);
    uint64_t launches = folio_queue_get_counters(b->q).launches;
    b->log[0] = '\0';
    folio_status st = folio_op_run(op, b->q, args);
    cr_expect_eq(st, want, "line %d: status %d for %d (%s)", line, (int)st,
                 (int)want, b->log);
    cr_expect(strstr(b->log, text), "line %d: \"%s\" is not in: %s", line, text,
              b->log);
    cr_expect_eq(hash_memory(b), before, "line %d: memory changed", line);
    cr_expect_eq(folio_queue_get_counters(b->q).launches, launches);
}

/* `good` with one field changed. */
#define REFUSED(type, field, value, status, text)                              \
    do {                                                                       \
        type a_ = good;                                                        \
        a_.field = value;                                                      \
        expect_refused(&b, op, &a_, status, text, __LINE__);                   \
    } while (0)

static folio_view shifted(folio_view v, size_t bytes)
{
    return folio_view_at(v, bytes);
}

static const folio_view absent;

Test(ops_check, rmsnorm)
{
    bed b, other;
    bed_open(&b, 1, 1);
    bed_open(&other, 1, 1);
    folio_view foreign;
    bed_zeros(&other, 64, &foreign);
    folio_rmsnorm_args good = {
        .n_rows = 4, .dim = 8, .x_stride = 9, .out_stride = 8, .eps = 1e-5f};
    bed_floats(&b, 35, &good.x);
    bed_floats(&b, 32, &good.res);
    bed_floats(&b, 8, &good.w);
    bed_floats(&b, 32, &good.out);
    folio_op *op = open_good(&b, FOLIO_OP_RMSNORM, &good);
#define BAD(...) REFUSED(folio_rmsnorm_args, __VA_ARGS__)
    BAD(n_rows, -1, FOLIO_E_INVAL, "n_rows -1 < 0");
    BAD(n_rows, 5, FOLIO_E_INVAL, "5 rows > 4");
    BAD(dim, 0, FOLIO_E_INVAL, "dim 0 < 1");
    BAD(dim, -3, FOLIO_E_INVAL, "dim -3 < 1");
    BAD(x_stride, 7, FOLIO_E_INVAL, "x_stride 7 < dim 8");
    BAD(out_stride, 7, FOLIO_E_INVAL, "out_stride 7 < dim 8");
    BAD(x_stride, INT32_MAX, FOLIO_E_RANGE, "x needs");
    BAD(eps, -1.0f, FOLIO_E_INVAL, "eps");
    BAD(eps, NAN, FOLIO_E_INVAL, "eps");
    BAD(x, absent, FOLIO_E_INVAL, "x is absent");
    BAD(w, absent, FOLIO_E_INVAL, "w is absent");
    BAD(out, absent, FOLIO_E_INVAL, "out is absent");
    BAD(out, foreign, FOLIO_E_INVAL, "out lies on another device");
    BAD(x, shifted(good.x, 2), FOLIO_E_INVAL, "x offset");
    /* 64 bytes of guard lie behind: 68 more do not fit. */
    BAD(x, shifted(good.x, 68), FOLIO_E_RANGE, "x needs");
    BAD(w, shifted(good.w, 100), FOLIO_E_RANGE, "w needs");
    BAD(res, shifted(good.res, 68), FOLIO_E_RANGE, "res needs");
    BAD(out, shifted(good.out, 1 << 20), FOLIO_E_RANGE, "out needs");
    BAD(out, good.res, FOLIO_E_INVAL, "out (offset 64) overlaps res");
    BAD(out, good.x, FOLIO_E_INVAL, "overlaps x"); /* strides differ */
    BAD(out, good.w, FOLIO_E_RANGE, "out needs");
#undef BAD
    folio_rmsnorm_args none = {.dim = 8, .x_stride = 9, .out_stride = 8};
    b.log[0] = '\0';
    cr_expect_eq(folio_op_run(op, b.q, &none), FOLIO_OK, "%s", b.log);
    folio_rmsnorm_args one = good; /* one row in place: strides are moot */
    one.n_rows = 1;
    one.out = one.x;
    cr_expect_eq(folio_op_run(op, b.q, &one), FOLIO_OK, "%s", b.log);
    cr_expect_eq(folio_op_run(op, other.q, &good), FOLIO_E_INVAL);
    cr_expect(strstr(b.log, "queue"), "%s", b.log);
    folio_op_close(&op);
    cr_expect_null(op);
    bed_close(&b);
    bed_close(&other);
}

/* Rows that interleave in one buffer do not overlap. */
Test(ops_check, interleaved_rows)
{
    bed b;
    bed_open(&b, 1, 2);
    folio_act_mul_args good = {.n_tok = 3,
                               .dim = 4,
                               .gate_stride = 12,
                               .up_stride = 12,
                               .out_stride = 12};
    float *all = bed_floats(&b, 36, &good.gate);
    good.up = shifted(good.gate, 16);
    good.out = shifted(good.gate, 32);
    folio_op *op = open_good(&b, FOLIO_OP_ACT_MUL, &good);
    cr_expect(all[8] != 0);
#define BAD(...) REFUSED(folio_act_mul_args, __VA_ARGS__)
    BAD(out, shifted(good.gate, 28), FOLIO_E_INVAL, "overlaps up");
    BAD(out, shifted(good.gate, 4), FOLIO_E_INVAL, "overlaps gate");
    BAD(act, (folio_act)7, FOLIO_E_UNSUPPORTED, "activation 7");
    BAD(gate_stride, 3, FOLIO_E_INVAL, "gate_stride 3 < dim 4");
    BAD(up_stride, 3, FOLIO_E_INVAL, "up_stride 3 < dim 4");
    BAD(out_stride, 3, FOLIO_E_INVAL, "out_stride 3 < dim 4");
    BAD(dim, 0, FOLIO_E_INVAL, "dim 0 < 1");
    BAD(gate, absent, FOLIO_E_INVAL, "gate is absent");
    BAD(up, shifted(good.up, 1), FOLIO_E_INVAL, "up offset");
    BAD(n_tok, -7, FOLIO_E_INVAL, "n_tok -7");
#undef BAD
    folio_op_close(&op);
    bed_close(&b);
}

Test(ops_check, linear)
{
    bed b;
    bed_open(&b, 1, 3);
    folio_weight w, bad;
    folio_weight_view views[2], split[2];
    bed_weight(&b, FOLIO_TYPE_Q8_0, 6, 64, 2, &w, views);
    folio_linear_args good = {
        .w = &w, .n_tok = 2, .x_stride = 64, .y_stride = 6};
    bed_floats(&b, 128, &good.x);
    bed_floats(&b, 6, &good.bias);
    bed_floats(&b, 12, &good.y);
    bed_floats(&b, 256, &good.scratch);
    folio_op *op = open_good(&b, FOLIO_OP_LINEAR, &good);
#define BAD(...) REFUSED(folio_linear_args, __VA_ARGS__)
    BAD(w, NULL, FOLIO_E_INVAL, "w is NULL");
    BAD(x_stride, 63, FOLIO_E_INVAL, "x_stride 63 < w.cols 64");
    BAD(y_stride, 5, FOLIO_E_INVAL, "y_stride 5 < w.rows 6");
    BAD(accumulate, 2, FOLIO_E_INVAL, "accumulate is 2");
    BAD(x, absent, FOLIO_E_INVAL, "x is absent");
    BAD(y, absent, FOLIO_E_INVAL, "y is absent");
    BAD(y, good.x, FOLIO_E_INVAL, "overlaps x");
    BAD(y, shifted(good.y, 68), FOLIO_E_RANGE, "y needs");
    BAD(bias, shifted(good.bias, 3), FOLIO_E_INVAL, "bias offset");
    BAD(n_tok, 3, FOLIO_E_RANGE, "x needs 768 bytes");
#define BAD_W(field, value, status, text)                                      \
    do {                                                                       \
        bad = w;                                                               \
        bad.field = value;                                                     \
        BAD(w, &bad, status, text);                                            \
    } while (0)
    BAD_W(type, FOLIO_TYPE_I32, FOLIO_E_UNSUPPORTED, "type I32");
    BAD_W(type, (folio_type)9, FOLIO_E_UNSUPPORTED, "unknown (9)");
    BAD_W(packing, (folio_packing)3, FOLIO_E_UNSUPPORTED, "packing 3");
    BAD_W(rows, 0, FOLIO_E_INVAL, "w.rows is 0");
    BAD_W(cols, 65, FOLIO_E_INVAL, "not a multiple of the 32 values of a Q8_0");
    BAD_W(cols, INT64_MAX, FOLIO_E_INVAL, "w.cols");
    BAD_W(n_views, 0, FOLIO_E_INVAL, "w.n_views 0");
    BAD_W(n_views, 1, FOLIO_E_INVAL, "hold 3 rows of 6");
#define BAD_VIEW(field, value, status, text)                                   \
    do {                                                                       \
        memcpy(split, views, sizeof split);                                    \
        split[1].field = value;                                                \
        BAD_W(views, split, status, text);                                     \
    } while (0)
    BAD_VIEW(first_row, 4, FOLIO_E_INVAL, "w.views[1]");
    BAD_VIEW(rows, 4, FOLIO_E_INVAL, "w.views[1]");
    BAD_VIEW(rows, 0, FOLIO_E_INVAL, "w.views[1]");
    BAD_VIEW(view, absent, FOLIO_E_INVAL, "w.views[1] is absent");
    BAD_VIEW(view, shifted(views[1].view, 66), FOLIO_E_RANGE, "w needs");
    BAD_VIEW(view, shifted(views[1].view, 1), FOLIO_E_INVAL, "w offset");
#undef BAD_VIEW
#undef BAD_W
#undef BAD
    folio_op_close(&op);
    bed_close(&b);
}

Test(ops_check, embed_and_gather)
{
    bed b;
    bed_open(&b, 1, 4);
    folio_weight w;
    folio_weight_view view;
    int32_t ids[3] = {0, 4, 1};
    bed_weight(&b, FOLIO_TYPE_F16, 5, 7, 1, &w, &view);
    folio_embed_args good = {.w = &w, .scale = 1, .n_tok = 3};
    int32_t *on_dev = bed_ints(&b, ids, 3, &good.ids);
    bed_floats(&b, 21, &good.out);
    folio_op *op = open_good(&b, FOLIO_OP_EMBED, &good);
    on_dev[2] = 5;
    REFUSED(folio_embed_args, scale, 2, FOLIO_E_RANGE,
            "ids[2] is 5, not in [0, 5)");
    on_dev[2] = -1;
    REFUSED(folio_embed_args, scale, 2, FOLIO_E_RANGE, "ids[2] is -1");
    REFUSED(folio_embed_args, ids, absent, FOLIO_E_INVAL, "ids is absent");
    REFUSED(folio_embed_args, w, NULL, FOLIO_E_INVAL, "w is NULL");
    folio_op_close(&op);
    {
        folio_gather_rows_args rows = {.n_rows = 3, .dim = 5};
        bed_floats(&b, 20, &rows.x);
        ids[1] = 3;
        int32_t *idx = bed_ints(&b, ids, 3, &rows.idx);
        bed_floats(&b, 15, &rows.out);
        folio_op *gather = open_good(&b, FOLIO_OP_GATHER_ROWS, &rows);
        idx[0] = 1000;
        expect_refused(&b, gather, &rows, FOLIO_E_RANGE, "idx[0] is 1000",
                       __LINE__);
        idx[0] = 0;
        rows.out = rows.x;
        expect_refused(&b, gather, &rows, FOLIO_E_INVAL, "overlaps x",
                       __LINE__);
        folio_op_close(&gather);
    }
    bed_close(&b);
}

static folio_view first_block(const folio_kv_plane *plane)
{
    return (folio_view){.buf = plane->buf[0], .offset = plane->offset};
}

static void make_rope(bed *b, folio_rope_append_args *a)
{
    *a = (folio_rope_append_args){.q_stride = 16,
                                  .k_stride = 8,
                                  .v_stride = 8,
                                  .n_pos = 4,
                                  .rot_dim = 8,
                                  .n_tok = 2,
                                  .heads = 2,
                                  .kv = {.type = FOLIO_KV_F16,
                                         .layout = {8, 1, 8, 1},
                                         .n_blocks = 5,
                                         .block_size = 2,
                                         .kv_heads = 1,
                                         .head_dim = 8}};
    const int32_t pos[2] = {0, 3}, slot[2] = {9, -1};
    bed_floats(b, 32, &a->q);
    bed_floats(b, 16, &a->k);
    bed_floats(b, 16, &a->v);
    bed_floats(b, 32, &a->table);
    bed_ints(b, pos, 2, &a->pos);
    bed_ints(b, slot, 2, &a->slot);
    bed_kv(b, &a->kv, 2, 2);
}

Test(ops_check, rope_append)
{
    bed b;
    bed_open(&b, 1, 5);
    folio_rope_append_args good;
    make_rope(&b, &good);
    folio_op *op = open_good(&b, FOLIO_OP_ROPE_APPEND, &good);
    int32_t *pos = folio_view_host(good.pos);
    int32_t *slot = folio_view_host(good.slot);
#define BAD(...) REFUSED(folio_rope_append_args, __VA_ARGS__)
    BAD(kv.type, FOLIO_KV_I8, FOLIO_E_UNSUPPORTED, "8-bit KV");
    BAD(kv.type, (folio_kv_type)9, FOLIO_E_INVAL, "kv.type 9");
    BAD(kv.n_blocks, 0, FOLIO_E_INVAL, "kv.n_blocks 0");
    BAD(kv.n_blocks, 9, FOLIO_E_RANGE, "2 buffers of 4 blocks < n_blocks 9");
    BAD(kv.n_blocks, 8, FOLIO_E_RANGE, "kv.k needs");
    BAD(kv.n_blocks, INT32_MAX, FOLIO_E_INVAL, "kv.n_blocks * block_size");
    BAD(kv.block_size, 0, FOLIO_E_INVAL, "kv.block_size 0");
    BAD(kv.kv_heads, 0, FOLIO_E_INVAL, "kv.kv_heads 0");
    BAD(kv.kv_heads, INT32_MAX, FOLIO_E_INVAL, "a block of 2 tokens");
    BAD(kv.head_dim, 0, FOLIO_E_INVAL, "kv.head_dim 0");
    BAD(kv.head_dim, 2, FOLIO_E_UNSUPPORTED, "kv.head_dim 2");
    BAD(kv.head_dim, 257, FOLIO_E_UNSUPPORTED, "kv.head_dim 257");
    BAD(kv.layout.xk, 3, FOLIO_E_INVAL, "xk 3 does not divide head_dim 8");
    BAD(kv.layout.xv, 0, FOLIO_E_INVAL, "xv 0 does not divide head_dim 8");
    BAD(kv.layout.yk, 4, FOLIO_E_INVAL, "yk 4 does not divide block_size 2");
    BAD(kv.layout.yv, -1, FOLIO_E_INVAL, "yv -1 does not divide block_size 2");
    BAD(kv.k.n_buf, 0, FOLIO_E_INVAL, "kv.k is 0, not in [1, 4]");
    BAD(kv.v.n_buf, 5, FOLIO_E_INVAL, "kv.v is 5, not in [1, 4]");
    BAD(kv.v.seg_shift, 32, FOLIO_E_INVAL, "seg_shift is 32");
    BAD(kv.k.seg_shift, -1, FOLIO_E_INVAL, "seg_shift is -1");
    BAD(kv.k.buf[1], NULL, FOLIO_E_INVAL, "kv.k.buf[1] is NULL");
    BAD(kv.k.offset, 1 << 16, FOLIO_E_RANGE, "kv.k needs");
    BAD(kv.k.offset, 65, FOLIO_E_INVAL, "kv.k offset 65");
    BAD(kv.k, good.kv.v, FOLIO_E_INVAL, "overlaps kv.v");
    BAD(kv.v.buf[1], good.kv.k.buf[1], FOLIO_E_INVAL, "overlaps kv.v");
    BAD(k, first_block(&good.kv.v), FOLIO_E_INVAL, " bytes) overlaps kv.v");
    BAD(v, first_block(&good.kv.k), FOLIO_E_INVAL, " bytes) overlaps kv.k");
    BAD(q, first_block(&good.kv.k), FOLIO_E_INVAL, " bytes) overlaps kv.k");
    BAD(k_stride, 7, FOLIO_E_INVAL, "k_stride 7 < kv_heads * head_dim 8");
    BAD(v_stride, 7, FOLIO_E_INVAL, "v_stride 7 < kv_heads * head_dim 8");
    BAD(q_stride, 15, FOLIO_E_INVAL, "q_stride 15 < heads * head_dim 16");
    BAD(heads, 0, FOLIO_E_INVAL, "heads 0 < 1");
    BAD(heads, -1, FOLIO_E_INVAL, "heads -1 < 0");
    BAD(rot_dim, 10, FOLIO_E_INVAL, "rot_dim is 10, not in [0, 8]");
    BAD(rot_dim, 7, FOLIO_E_INVAL, "rot_dim 7 is odd");
    BAD(rot_dim, -2, FOLIO_E_INVAL, "rot_dim is -2");
    BAD(interleaved, 2, FOLIO_E_INVAL, "interleaved is 2");
    BAD(n_pos, 0, FOLIO_E_INVAL, "n_pos 0 < 1");
    BAD(n_pos, 100, FOLIO_E_RANGE, "table needs");
    BAD(pos, absent, FOLIO_E_INVAL, "pos is absent");
    BAD(table, absent, FOLIO_E_INVAL, "table is absent");
    BAD(slot, absent, FOLIO_E_INVAL, "slot is absent");
    BAD(k, absent, FOLIO_E_INVAL, "k is absent");
    BAD(v, shifted(good.v, 68), FOLIO_E_RANGE, "v needs");
    slot[0] = 10;
    BAD(n_tok, 2, FOLIO_E_RANGE, "slot[0] is 10, not in [-1, 10)");
    slot[0] = -2;
    BAD(n_tok, 2, FOLIO_E_RANGE, "slot[0] is -2");
    slot[0] = 0;
    pos[1] = 4;
    BAD(n_tok, 2, FOLIO_E_RANGE, "pos[1] is 4, not in [0, 4)");
#undef BAD
    folio_op_close(&op);
    bed_close(&b);
}

Test(ops_check, attn)
{
    bed b;
    bed_open(&b, 1, 6);
    folio_rope_append_args rope;
    make_rope(&b, &rope);
    folio_attn_args good = {.q_stride = 16,
                            .out_stride = 16,
                            .n_tok = 2,
                            .heads = 2,
                            .scale = 1,
                            .kv = rope.kv,
                            .work = {.n_seq = 1}};
    const int32_t q_start[2] = {0, 2}, kv_len = 3, table_start[2] = {0, 2};
    const int32_t tables[2] = {4, 1};
    good.q = rope.q;
    bed_floats(&b, 32, &good.out);
    bed_ints(&b, q_start, 2, &good.work.q_start);
    bed_ints(&b, &kv_len, 1, &good.work.kv_len);
    bed_ints(&b, table_start, 2, &good.work.table_start);
    bed_ints(&b, tables, 2, &good.work.tables);
    folio_op *op = open_good(&b, FOLIO_OP_ATTN, &good);
#define BAD(...) REFUSED(folio_attn_args, __VA_ARGS__)
    BAD(sinks, good.q, FOLIO_E_UNSUPPORTED, "sinks");
    BAD(kv.type, FOLIO_KV_I8, FOLIO_E_UNSUPPORTED, "8-bit KV");
    BAD(heads, 0, FOLIO_E_INVAL, "heads 0 < 1");
    BAD(kv.kv_heads, 3, FOLIO_E_RANGE, "kv.k needs");
    BAD(q_stride, 15, FOLIO_E_INVAL, "q_stride 15");
    BAD(out_stride, 15, FOLIO_E_INVAL, "out_stride 15");
    BAD(window, -1, FOLIO_E_INVAL, "window -1");
    BAD(scale, NAN, FOLIO_E_INVAL, "scale");
    BAD(softcap, -1, FOLIO_E_INVAL, "softcap");
    BAD(out, good.q, FOLIO_E_INVAL, "out (offset 64) overlaps q");
    BAD(out, first_block(&good.kv.k), FOLIO_E_INVAL, " bytes) overlaps kv.k");
    BAD(out, first_block(&good.kv.v), FOLIO_E_INVAL, " bytes) overlaps kv.v");
    BAD(kv.v, good.kv.k, FOLIO_E_INVAL, "overlaps kv.v");
    BAD(q, absent, FOLIO_E_INVAL, "q is absent");
    BAD(work.n_seq, 0, FOLIO_E_INVAL, "work.n_seq 0");
    BAD(work.n_seq, 100, FOLIO_E_RANGE, "work.q_start needs");
    BAD(work.kv_len, absent, FOLIO_E_INVAL, "work.kv_len is absent");
    BAD(work.tables, absent, FOLIO_E_INVAL, "work.tables is absent");
    BAD(work.n_entries, -1, FOLIO_E_INVAL, "work.n_entries -1");
    BAD(work.n_entries, 1, FOLIO_E_INVAL, "work.entries is absent");
    BAD(work.n_merges, 1, FOLIO_E_INVAL, "work.merges is absent");
    BAD(work.n_tiles, 1, FOLIO_E_INVAL, "work.tiles is absent");
#undef BAD
    folio_op_close(&op);
    bed_close(&b);
}

Test(ops_check, add_topk_copy)
{
    bed b;
    bed_open(&b, 1, 7);
    {
        folio_add_args good = {.n = 8};
        bed_floats(&b, 8, &good.x);
        bed_floats(&b, 8, &good.y);
        folio_op *op = open_good(&b, FOLIO_OP_ADD, &good);
        REFUSED(folio_add_args, n, -1, FOLIO_E_INVAL, "n -1 < 0");
        REFUSED(folio_add_args, n, INT64_MAX, FOLIO_E_RANGE, "does not fit");
        REFUSED(folio_add_args, n, 9, FOLIO_E_INVAL, "9 rows > 8");
        REFUSED(folio_add_args, n, 25, FOLIO_E_RANGE, "x needs 100 bytes");
        REFUSED(folio_add_args, y, shifted(good.x, 4), FOLIO_E_INVAL,
                "overlaps x");
        folio_op_close(&op);
    }
    {
        folio_topk_args good = {.n_rows = 2, .n_vocab = 9, .k = 3};
        bed_floats(&b, 18, &good.x);
        bed_floats(&b, 6, &good.ids);
        bed_floats(&b, 6, &good.values);
        bed_floats(&b, 2, &good.n_nan);
        folio_op *op = open_good(&b, FOLIO_OP_TOPK, &good);
        REFUSED(folio_topk_args, k, 0, FOLIO_E_INVAL, "k is 0");
        REFUSED(folio_topk_args, k, 65, FOLIO_E_INVAL, "k is 65");
        REFUSED(folio_topk_args, n_vocab, 0, FOLIO_E_INVAL, "n_vocab 0");
        REFUSED(folio_topk_args, n_vocab, 40, FOLIO_E_RANGE, "x needs");
        REFUSED(folio_topk_args, values, good.ids, FOLIO_E_INVAL,
                "values (offset 64) overlaps ids");
        REFUSED(folio_topk_args, n_nan, absent, FOLIO_E_INVAL,
                "n_nan is absent");
        folio_op_close(&op);
    }
    {
        folio_rope_append_args rope;
        make_rope(&b, &rope);
        int32_t pairs[4] = {0, 1, 2, 4};
        folio_copy_blocks_args good = {.n_pairs = 2, .kv = rope.kv};
        int32_t *p = bed_ints(&b, pairs, 4, &good.pairs);
        folio_op *op = open_good(&b, FOLIO_OP_COPY_BLOCKS, &good);
        REFUSED(folio_copy_blocks_args, n_pairs, -1, FOLIO_E_INVAL, "n_pairs");
        REFUSED(folio_copy_blocks_args, kv.type, FOLIO_KV_I8,
                FOLIO_E_UNSUPPORTED, "8-bit KV");
        REFUSED(folio_copy_blocks_args, pairs, absent, FOLIO_E_INVAL,
                "pairs is absent");
        p[3] = 5;
        REFUSED(folio_copy_blocks_args, n_pairs, 2, FOLIO_E_RANGE,
                "pairs[3] is 5, not in [0, 5)");
        folio_op_close(&op);
    }
    bed_close(&b);
}

/* Open plans with shapes: views may be absent, shapes may not be wrong. */
Test(ops_check, open_without_memory)
{
    bed b;
    bed_open(&b, 1, 8);
    folio_op_params prm = {0};
    folio_weight w = {.type = FOLIO_TYPE_Q4_0, .rows = 8, .cols = 64};
    folio_linear_args a = {.w = &w, .n_tok = 1, .x_stride = 64, .y_stride = 8};
    folio_op *op = NULL;
    cr_assert_eq(folio_op_open(b.dev, FOLIO_OP_LINEAR, &prm, &a, &op), FOLIO_OK,
                 "%s", b.log);
    cr_expect_eq(folio_op_run(op, b.q, &a), FOLIO_E_INVAL, "ran on nothing");
    folio_op_close(&op);
    w.cols = 60;
    cr_expect_eq(folio_op_open(b.dev, FOLIO_OP_LINEAR, &prm, &a, &op),
                 FOLIO_E_INVAL);
    cr_expect_null(op);
    cr_expect_eq(folio_op_check(b.dev, (folio_op_id)99, &a), FOLIO_E_INVAL);
    cr_expect_eq(folio_op_check(b.dev, FOLIO_OP_ADD, NULL), FOLIO_E_INVAL);
    bed_close(&b);
}
