/* gemv.cl: the op linear for few tokens on packed weights, one view (range of
 * rows) per launch. Needs common.clh and gemv.clh, whose macros the host
 * defines; LANES is the work-group. Batch invariant, see gemv.clh. */

#ifdef GEMV_ROUND

/* Rounds x for launches with GEMV_ROUNDED: bytes [n_tok, cols], then a float2
 * for each 32 columns. Grid (cols / 32 / WG, n_tok), rounded up. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void gemv_round(
    CVIEW(float, x), VIEW(uchar, rounded), const int cols, const int n_tok,
    const int x_stride)
{
    CUSE(float, x);
    USE(uchar, rounded);
    const ulong i = get_global_id(0), t = get_global_id(1);
    __global float2 *d =
        (__global float2 *)(rounded + (ulong)n_tok * (ulong)cols);
    if (i < (ulong)(cols / 32))
        d[t * (ulong)(cols / 32) + i] =
            gemv_round32(x + t * (ulong)x_stride + 32 * i,
                         (__global int4 *)(rounded + t * (ulong)cols + 32 * i));
}

#else

#ifdef GEMV_I8
#define GEMV_ENTRY linear_gemv_i8
#else
#define GEMV_ENTRY linear_gemv
#endif

/* Two buffers of sums save a barrier a tile, where they are small. */
#define REDS (N > 2 ? 1 : 2)

#ifdef GEMV_ROUNDED
#define X_TYPE uchar
#define STAGE(c0, n)                                                           \
    gemv_stage_rounded(                                                        \
        &lx, (c0), (n), x,                                                     \
        (__global const float2 *)(x + (ulong)n_tok * (ulong)cols), cols, tok,  \
        n_tok - 1)
#else
#define X_TYPE       float
#define STAGE(c0, n) GEMV_STAGE(lx, (c0), (n), LOAD_X)
#define LOAD_X(t, k)                                                           \
    vload8(0, x + (ulong)min(tok + (t), n_tok - 1) * (ulong)x_stride + (k))
#endif

/* Work-groups take the tiles of 16 rows in turn, each with the first loads of
 * the next one in flight; x is staged once where KC holds all of it. Grid
 * (any number up to the tiles, n_tok / N), rounded up. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void GEMV_ENTRY(
    CVIEW(X_TYPE, x), CVIEW(uchar, w), CVIEW(float, bias), VIEW(float, y),
    const ulong row_bytes, const int rows, const int cols, const int n_tok,
    const int x_stride, const int y_stride, const int has_bias,
    const int accumulate)
{
    CUSE(X_TYPE, x);
    CUSE(uchar, w);
    CUSE(float, bias);
    USE(float, y);
    __local gemv_x lx;
    __local float red[REDS][GEMV_RED];
    const int tok = (int)get_group_id(1) * N;
    const int n_tiles = (rows + 15) / 16, step = (int)get_num_groups(0);
    int tile = (int)get_group_id(0), turn = 0;

    gemv_tile now = gemv_open(w, min(tile, n_tiles - 1) * 16, row_bytes, cols);
    gemv_set s;
    gemv_fetch(&now, gemv_stream(), &s);
    for (; tile < n_tiles; tile += step, turn = (turn + 1) % REDS) {
        gemv_acc acc[N];
        gemv_clear(acc);
        if (cols <= KC) {
            if (tile == (int)get_group_id(0))
                STAGE(0, cols);
            gemv_rows(&now, 0, cols, &lx, &s, acc);
        } else {
            for (int c0 = 0; c0 < cols; c0 += KC) {
                const int n = min(cols - c0, KC);
                GEMV_BARRIER(); /* x of the columns before is still read */
                STAGE(c0, n);
                gemv_rows(&now, c0, n, &lx, &s, acc);
            }
        }
        now = gemv_open(w, min(tile + step, n_tiles - 1) * 16, row_bytes, cols);
        if (tile + step < n_tiles)
            gemv_fetch(&now, gemv_stream(), &s);
        gemv_add_up(acc, red[turn]);
        for (int o = (int)get_local_id(0); o < 16 * N; o += LANES) {
            const int row = tile * 16 + o % 16, t = tok + o / 16;
            float v = gemv_sum(red[turn], o);
            if (row < rows && t < n_tok) {
                __global float *out = y + (ulong)t * (ulong)y_stride + row;
                if (has_bias)
                    v += bias[row];
                *out = accumulate ? *out + v : v;
            }
        }
        if (REDS == 1)
            GEMV_BARRIER();
    }
}

#endif
