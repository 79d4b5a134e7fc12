/* fused_gemv.cl: norm_linear, qkv and gate_up on packed weights, each in one
 * launch. Needs common.clh and gemv.clh, for qkv also kv_layout.clh and kv.clh,
 * for gate_up act.clh. One op is compiled per program, named by -DFUSED_<OP>.
 * Batch invariant, see gemv.clh.
 *
 * A tile is 16 rows of weights, of which an item reads one; fused_row says
 * which they are. For rotary partners, gate and up it is 8 and 8 rows that
 * belong together, 8 apart in the tile. What is multiplied is norm * x; the
 * norm's factor, 1 / sqrt(mean + eps), multiplies the sums. Work-groups take
 * tiles in turn, each with the first loads of the next one in flight; x is
 * staged once where KC holds all of it. Grid (any number up to the tiles, n_tok
 * / N). */

/* norm * x of eight columns of the row that begins at x[at]. */
GEMV_FN float8 fused_x8(__global const float *x, __global const float *norm,
                        ulong at, int k)
{
    return vload8(0, norm + k) * vload8(0, x + at + k);
}

/* Where the row of token t of the group begins in x; past the last token it is
 * the last one's. */
#define FUSED_AT(t)                                                            \
    ((ulong)FUSED_ROW_OF(min(tok + (t), n_tok - 1)) * (ulong)x_stride)

/* This item's part of the sum of squares of each token. */
#define FUSED_SQUARES(squares)                                                 \
    do {                                                                       \
        for (int t_ = 0; t_ < N; t_++) {                                       \
            __global const float *x_ = x + FUSED_AT(t_);                       \
            float8 sum_ = (float8)(0.0f);                                      \
            for (int i_ = (int)GEMV_ID; i_ < cols / 8; i_ += LANES) {          \
                const float8 v_ = vload8(i_, x_);                              \
                sum_ = FMA(v_, v_, sum_);                                      \
            }                                                                  \
            const float4 a_ = sum_.lo + sum_.hi;                               \
            (squares)[t_ * LANES + (int)GEMV_ID] =                             \
                (a_.x + a_.z) + (a_.y + a_.w);                                 \
        }                                                                      \
    } while (0)

/* Sixteen parts of each sum are left; after a barrier, and before the next. */
GEMV_FN void fused_fold(__local const float *squares, __local float *folded)
{
    for (int o = (int)GEMV_ID; o < 16 * N; o += LANES)
        folded[o] = gemv_sum(squares, o);
}

/* The norm's factor of token t. */
GEMV_FN float fused_factor(__local const float *folded, int t, int cols,
                           float eps)
{
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++)
        sum += folded[t * 16 + i];
    return rsqrt(sum / (float)cols + eps);
}

/* A row of its own for each item: `row` % 8 must be gemv_row() % 8. */
GEMV_FN gemv_tile fused_open(__global const uchar *base, int row,
                             ulong row_bytes, int cols)
{
    gemv_tile w = gemv_open(base, row & ~15, row_bytes, cols);
    const int off = (row & 15) - (int)gemv_row();
#ifdef PACK_TILE16
    w.q += off * 128;
#else
    w.q += off * 16;
    w.s += off * GEMV_SCALES;
#endif
    return w;
}

/* ---- norm_linear -----------------------------------------------------------
 */

#ifdef FUSED_NORM_LINEAR

/* One part after the other, each from a tile of its own on; absent ones have no
 * rows. */
#ifdef GEMV_I8
#define FUSED_ENTRY norm_linear_gemv_i8
#else
#define FUSED_ENTRY norm_linear_gemv
#endif
#define FUSED_ARGS                                                             \
    CVIEW(int, idx), const int gather, CVIEW(uchar, w0), CVIEW(uchar, w1),     \
        CVIEW(uchar, w2), CVIEW(float, b0), CVIEW(float, b1),                  \
        CVIEW(float, b2), const int biased, VIEW(float, y0), VIEW(float, y1),  \
        VIEW(float, y2), const int rows0, const int rows1, const int rows2,    \
        const int stride0, const int stride1, const int stride2
#define FUSED_USE                                                              \
    CUSE(int, idx);                                                            \
    CUSE(uchar, w0);                                                           \
    CUSE(uchar, w1);                                                           \
    CUSE(uchar, w2);                                                           \
    CUSE(float, b0);                                                           \
    CUSE(float, b1);                                                           \
    CUSE(float, b2);                                                           \
    USE(float, y0);                                                            \
    USE(float, y1);                                                            \
    USE(float, y2);                                                            \
    const int end0 = (rows0 + 15) / 16, end1 = end0 + (rows1 + 15) / 16;       \
    const int n_tiles = end1 + (rows2 + 15) / 16
#define FUSED_ROW_OF(t)  (gather ? idx[t] : (t))
#define FUSED_PART(tile) (((tile) >= end0) + ((tile) >= end1))
#define FUSED_OPEN(tile)                                                       \
    gemv_open((tile) < end0   ? w0                                             \
              : (tile) < end1 ? w1                                             \
                              : w2,                                            \
              ((tile) < end0   ? (tile)                                        \
               : (tile) < end1 ? (tile)-end0                                   \
                               : (tile)-end1) *                                \
                  16,                                                          \
              row_bytes, cols)
#define FUSED_OUT(tile, red)                                                   \
    do {                                                                       \
        const int part_ = FUSED_PART(tile);                                    \
        fused_write(red, folded, cols, eps, tok, n_tok,                        \
                    ((tile) - (part_ == 0   ? 0                                \
                               : part_ == 1 ? end0                             \
                                            : end1)) *                         \
                        16,                                                    \
                    part_ == 0   ? rows0                                       \
                    : part_ == 1 ? rows1                                       \
                                 : rows2,                                      \
                    part_ == 0   ? b0                                          \
                    : part_ == 1 ? b1                                          \
                                 : b2,                                         \
                    biased >> part_ & 1,                                       \
                    part_ == 0   ? y0                                          \
                    : part_ == 1 ? y1                                          \
                                 : y2,                                         \
                    part_ == 0   ? stride0                                     \
                    : part_ == 1 ? stride1                                     \
                                 : stride2);                                   \
    } while (0)

/* Rows first .. first + 15 of y. */
GEMV_FN void fused_write(__local const float *red, __local const float *folded,
                         int cols, float eps, int tok, int n_tok, int first,
                         int rows, __global const float *bias, int biased,
                         __global float *y, int stride)
{
    for (int o = (int)GEMV_ID; o < 16 * N; o += LANES) {
        const int row = first + o % 16, t = tok + o / 16;
        float v = gemv_sum(red, o) * fused_factor(folded, o / 16, cols, eps);
        if (row >= rows || t >= n_tok)
            continue;
        if (biased)
            v += bias[row];
        y[(ulong)t * (ulong)stride + row] = v;
    }
}

#endif

/* ---- qkv --------------------------------------------------------------------
 */

#ifdef FUSED_QKV

#ifdef GEMV_I8
#define FUSED_ENTRY qkv_gemv_i8
#else
#define FUSED_ENTRY qkv_gemv
#endif
#if ROT > 0
#define FUSED_TURN_ARGS CVIEW(int, pos), CVIEW(float, table), const int n_pos,
#define FUSED_TURN_USE                                                         \
    CUSE(int, pos);                                                            \
    CUSE(float, table);
#else
#define FUSED_TURN_ARGS
#define FUSED_TURN_USE
#endif
#define FUSED_ARGS                                                             \
    CVIEW(uchar, wq), CVIEW(uchar, wk), CVIEW(uchar, wv), CVIEW(float, bq),    \
        CVIEW(float, bk), CVIEW(float, bv), const int biased, VIEW(float, q),  \
        const int q_stride, const int heads, CVIEW(int, slot),                 \
        FUSED_TURN_ARGS const int n_slots, KV_PLANE(kp), KV_PLANE(vp)
#define FUSED_USE                                                              \
    CUSE(uchar, wq);                                                           \
    CUSE(uchar, wk);                                                           \
    CUSE(uchar, wv);                                                           \
    CUSE(float, bq);                                                           \
    CUSE(float, bk);                                                           \
    CUSE(float, bv);                                                           \
    USE(float, q);                                                             \
    CUSE(int, slot);                                                           \
    FUSED_TURN_USE const int n_tiles = (heads + 2 * KVH) * (HD / 16)
#define FUSED_ROW_OF(t) (t)

/* Heads of q, then of k, then of v, HD / 16 tiles each. */
#define FUSED_HEAD(tile) ((tile) / (HD / 16))
#define FUSED_PART(tile)                                                       \
    ((FUSED_HEAD(tile) >= heads) + (FUSED_HEAD(tile) >= heads + KVH))
/* The head among its own kind. */
#define FUSED_HEAD_IN(tile)                                                    \
    (FUSED_HEAD(tile) - (FUSED_PART(tile) == 0   ? 0                           \
                         : FUSED_PART(tile) == 1 ? heads                       \
                                                 : heads + KVH))
/* Dim of a head at place i of 16 of its tile number j. */
#if INTERLEAVED
#define FUSED_DIM(j, i) (16 * (j) + (i))
#else
#define FUSED_DIM(j, i) (8 * (j) + (i) % 8 + (i) / 8 * (HD / 2))
#endif
#define FUSED_OPEN(tile)                                                       \
    fused_open(FUSED_PART(tile) == 0   ? wq                                    \
               : FUSED_PART(tile) == 1 ? wk                                    \
                                       : wv,                                   \
               FUSED_HEAD_IN(tile) * HD +                                      \
                   FUSED_DIM((tile) % (HD / 16), (int)gemv_row()),             \
               row_bytes, cols)
#if ROT > 0
#define FUSED_TABLE pos, table, n_pos
#else
#define FUSED_TABLE slot, x, 0 /* not read */
#endif
#define FUSED_OUT(tile, red)                                                   \
    do {                                                                       \
        const int part_ = FUSED_PART(tile), head_ = FUSED_HEAD_IN(tile);       \
        const int j_ = (tile) % (HD / 16);                                     \
        __global const float *bias_ = part_ == 0 ? bq : part_ == 1 ? bk : bv;  \
        for (int o_ = (int)GEMV_ID; o_ < 8 * N; o_ += LANES) {                 \
            const int t_ = o_ / 8, i_ = o_ % 8;                                \
            const int i0_ = INTERLEAVED ? 2 * i_ : i_;                         \
            const int i1_ = INTERLEAVED ? 2 * i_ + 1 : i_ + 8;                 \
            const int d0_ = FUSED_DIM(j_, i0_), d1_ = FUSED_DIM(j_, i1_);      \
            const float f_ = fused_factor(folded, t_, cols, eps);              \
            float2 v_ = (float2)(gemv_sum(red, t_ * 16 + i0_),                 \
                                 gemv_sum(red, t_ * 16 + i1_)) *               \
                        (float2)(f_);                                          \
            if (biased >> part_ & 1)                                           \
                v_ += (float2)(bias_[head_ * HD + d0_],                        \
                               bias_[head_ * HD + d1_]);                       \
            if (tok + t_ >= n_tok)                                             \
                continue;                                                      \
            if (part_ < 2)                                                     \
                v_ = fused_turn(v_, d0_, tok + t_, FUSED_TABLE);               \
            if (part_ == 0) {                                                  \
                __global float *out_ =                                         \
                    q + (ulong)(tok + t_) * (ulong)q_stride + head_ * HD;      \
                out_[d0_] = v_.x;                                              \
                out_[d1_] = v_.y;                                              \
                continue;                                                      \
            }                                                                  \
            const int at_ = slot[tok + t_];                                    \
            if (at_ < 0 || at_ >= n_slots)                                     \
                continue;                                                      \
            const uint blk_ = (uint)at_ / BS, in_ = (uint)at_ - blk_ * BS;     \
            if (part_ == 1) {                                                  \
                __global KV_ELEM *to_ = KV_TILE(kp, blk_, head_);              \
                KV_STORE(v_.x, to_, kv_k_at(in_, (uint)d0_));                  \
                KV_STORE(v_.y, to_, kv_k_at(in_, (uint)d1_));                  \
            } else {                                                           \
                __global KV_ELEM *to_ = KV_TILE(vp, blk_, head_);              \
                KV_STORE(v_.x, to_, kv_v_at(in_, (uint)d0_));                  \
                KV_STORE(v_.y, to_, kv_v_at(in_, (uint)d1_));                  \
            }                                                                  \
        }                                                                      \
    } while (0)

/* The pair whose first dim is d, turned to the position of token t. */
GEMV_FN float2 fused_turn(float2 v, int d, int t, __global const int *pos,
                          __global const float *table, int n_pos)
{
#if ROT > 0
    const int pair = INTERLEAVED ? d / 2 : d;
    if (pair >= ROT / 2)
        return v;
    /* The uploader checks positions; the clamp only keeps reads inside. */
    const float2 cs =
        vload2(0, table + (ulong)clamp(pos[t], 0, n_pos - 1) * ROT + 2 * pair);
    return (float2)(v.x * cs.x - v.y * cs.y, v.y * cs.x + v.x * cs.y);
#else
    return v;
#endif
}

#endif

/* ---- gate_up
 * ----------------------------------------------------------------- */

#ifdef FUSED_GATE_UP

/* Eight rows of gate, then the same of up. */
#ifdef GEMV_I8
#define FUSED_ENTRY gate_up_gemv_i8
#else
#define FUSED_ENTRY gate_up_gemv
#endif
#define FUSED_ARGS                                                             \
    CVIEW(uchar, gate), CVIEW(uchar, up), VIEW(float, out),                    \
        const int out_stride, const int rows
#define FUSED_USE                                                              \
    CUSE(uchar, gate);                                                         \
    CUSE(uchar, up);                                                           \
    USE(float, out);                                                           \
    const int n_tiles = (rows + 7) / 8
#define FUSED_ROW_OF(t) (t)
#define FUSED_OPEN(tile)                                                       \
    fused_open(gemv_row() < 8 ? gate : up, (tile)*8 + (int)gemv_row() % 8,     \
               row_bytes, cols)
#define FUSED_OUT(tile, red)                                                   \
    fused_write(red, folded, cols, eps, tok, n_tok, (tile)*8, rows, out,       \
                out_stride)

/* Rows first .. first + 7 of the result. */
GEMV_FN void fused_write(__local const float *red, __local const float *folded,
                         int cols, float eps, int tok, int n_tok, int first,
                         int rows, __global float *out, int stride)
{
    for (int o = (int)GEMV_ID; o < 8 * N; o += LANES) {
        const int row = first + o % 8, t = o / 8, at = t * 16 + o % 8;
        const float f = fused_factor(folded, t, cols, eps);
        if (row < rows && tok + t < n_tok)
            out[(ulong)(tok + t) * (ulong)stride + row] =
                act_of(gemv_sum(red, at) * f) * (gemv_sum(red, at + 8) * f);
    }
}

#endif

/* ---- the course, the same for all -------------------------------------------
 */

#define FUSED_X8(t, k) fused_x8(x, norm, FUSED_AT(t), (k))

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void FUSED_ENTRY(
    CVIEW(float, x), CVIEW(float, norm), const int x_stride, const float eps,
    const ulong row_bytes, const int n_tok, const int cols, FUSED_ARGS)
{
    CUSE(float, x);
    CUSE(float, norm);
    FUSED_USE;
    __local gemv_x lx;
    __local float red[2][GEMV_RED];
    __local float folded[16 * N];
    const int tok = (int)get_group_id(1) * N, step = (int)get_num_groups(0);
    int tile = (int)get_group_id(0), turn = 0;

    gemv_tile now = FUSED_OPEN(min(tile, n_tiles - 1));
    gemv_set s;
    gemv_fetch(&now, gemv_stream(), &s);
    /* The second buffer of sums is free until the first tile is done. */
    FUSED_SQUARES(red[1]);
    for (; tile < n_tiles; tile += step, turn = 1 - turn) {
        const bool first = tile == (int)get_group_id(0);
        gemv_acc acc[N];
        gemv_clear(acc);
        if (cols <= KC) {
            if (first) {
                GEMV_STAGE(lx, 0, cols, FUSED_X8);
                fused_fold(red[1], folded);
            }
            gemv_rows(&now, 0, cols, &lx, &s, acc);
        } else {
            for (int c0 = 0; c0 < cols; c0 += KC) {
                const int n = min(cols - c0, KC);
                GEMV_BARRIER(); /* x of the columns before is still read */
                GEMV_STAGE(lx, c0, n, FUSED_X8);
                if (first && c0 == 0)
                    fused_fold(red[1], folded);
                gemv_rows(&now, c0, n, &lx, &s, acc);
            }
        }
        const int next = min(tile + step, n_tiles - 1);
        now = FUSED_OPEN(next);
        if (tile + step < n_tiles)
            gemv_fetch(&now, gemv_stream(), &s);
        gemv_add_up(acc, red[turn]);
        FUSED_OUT(tile, red[turn]);
    }
}
