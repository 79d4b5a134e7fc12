/* linear.cl: y = x W^T (+ bias) (+ y) for weights of one type, one view (range
 * of rows) per launch. Needs common.clh and quant.clh; one entry is compiled
 * per program, named by -DLINEAR_<ENTRY>. Offsets into weights are 64-bit.
 *
 * Every entry but linear_tile is batch invariant: a token's sums run in an
 * order that does not depend on the other tokens of the launch. */

#define LINEAR_ARGS                                                            \
    CVIEW(float, x), CVIEW(uchar, w), CVIEW(float, bias), VIEW(float, y),      \
        const ulong row_bytes, const int rows, const int cols,                 \
        const int n_tok, const int x_stride, const int y_stride,               \
        const int has_bias, const int accumulate
#define LINEAR_USE                                                             \
    CUSE(float, x);                                                            \
    CUSE(uchar, w);                                                            \
    CUSE(float, bias);                                                         \
    USE(float, y)

/* The sum's last steps, the same in every entry. `bias` may be any address
 * where has_bias is 0. */
#define LINEAR_WRITE(t, row, sum)                                              \
    do {                                                                       \
        __global float *out_ = y + (ulong)(t) * (ulong)y_stride + (row);       \
        float v_ = (sum);                                                      \
        if (has_bias)                                                          \
            v_ += bias[row];                                                   \
        *out_ = accumulate ? *out_ + v_ : v_;                                  \
    } while (0)

float add_lanes(float16 v)
{
    const float8 a = v.lo + v.hi;
    const float4 b = a.lo + a.hi;
    const float2 c = b.lo + b.hi;
    return c.x + c.y;
}

#ifdef LINEAR_ITEM

/* The floor: one item per output, any work-group.
 * Grid (rows / WG, n_tok), rounded up. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void linear_item(
    LINEAR_ARGS)
{
    LINEAR_USE;
    const int row = (int)get_global_id(0), t = (int)get_global_id(1);
    if (row >= rows || t >= n_tok)
        return;
    QROW wr = QROW_AT(w, row, row_bytes, cols);
    __global const float *xt = x + (ulong)t * (ulong)x_stride;
    float16 acc = (float16)(0.0f), lo, hi;
    for (int g = 0; g < cols / 32; g++) {
        quant32(wr, (ulong)g, &lo, &hi);
        acc = FMA(lo, vload16(2 * g, xt), acc);
        acc = FMA(hi, vload16(2 * g + 1, xt), acc);
    }
    float sum = add_lanes(acc);
#ifdef QUANT_PLAIN
    for (int k = cols & ~31; k < cols; k++)
        sum = FMA(quant_value(wr, (ulong)k), xt[k], sum);
#endif
    LINEAR_WRITE(t, row, sum);
}

#endif

#ifdef LINEAR_CPU

/* For CPUs: an item owns ROWS rows times NB tokens; a group of weights is
 * unpacked into vector registers once for all its tokens. Past the last row or
 * token the last one is computed again and not written. Grid
 * (rows / ROWS / WG, n_tok / NB), rounded up. */
__kernel void linear_cpu(LINEAR_ARGS)
{
    LINEAR_USE;
    const int row = (int)get_global_id(0) * ROWS;
    const int tok = (int)get_global_id(1) * NB;
    if (row >= rows || tok >= n_tok)
        return;
    QROW wr[ROWS];
    __global const float *xt[NB];
    float16 acc[ROWS][NB], lo[ROWS], hi[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        wr[r] = QROW_AT(w, min(row + r, rows - 1), row_bytes, cols);
#pragma unroll
    for (int t = 0; t < NB; t++)
        xt[t] = x + (ulong)min(tok + t, n_tok - 1) * (ulong)x_stride;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int t = 0; t < NB; t++)
            acc[r][t] = (float16)(0.0f);

    for (int g = 0; g < cols / 32; g++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            quant32(wr[r], (ulong)g, &lo[r], &hi[r]);
#pragma unroll
        for (int t = 0; t < NB; t++) {
            const float16 v = vload16(2 * g, xt[t]);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                acc[r][t] = FMA(lo[r], v, acc[r][t]);
        }
#pragma unroll
        for (int t = 0; t < NB; t++) {
            const float16 v = vload16(2 * g + 1, xt[t]);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                acc[r][t] = FMA(hi[r], v, acc[r][t]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int t = 0; t < NB; t++) {
            float sum = add_lanes(acc[r][t]);
#ifdef QUANT_PLAIN
            for (int k = cols & ~31; k < cols; k++)
                sum = FMA(quant_value(wr[r], (ulong)k), xt[t][k], sum);
#endif
            if (row + r < rows && tok + t < n_tok)
                LINEAR_WRITE(tok + t, row + r, sum);
        }
}

#endif

#ifdef LINEAR_WG

/* For GPUs and few tokens: a work-group owns WG / LANES rows; the LANES items
 * of a row take its groups of 32 columns in turn and add their sums in local
 * memory. Grid (rows * LANES / WG, n_tok / NB), rounded up; WG is a power of
 * two. */
#define LANES (WG < 16 ? WG : 16)

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void linear_wg(
    LINEAR_ARGS)
{
    LINEAR_USE;
    __local float part[NB][WG];
    const uint id = (uint)get_local_id(0);
    const int lane = (int)(id % LANES);
    const int row = (int)get_group_id(0) * (WG / LANES) + (int)(id / LANES);
    const int tok = (int)get_group_id(1) * NB;
    QROW wr = QROW_AT(w, min(row, rows - 1), row_bytes, cols);
    __global const float *xt[NB];
    float4 acc[NB];
#pragma unroll
    for (int t = 0; t < NB; t++) {
        xt[t] = x + (ulong)min(tok + t, n_tok - 1) * (ulong)x_stride;
        acc[t] = (float4)(0.0f);
    }
    for (int g = lane; g < cols / 32; g += LANES) {
        float16 lo, hi;
        quant32(wr, (ulong)g, &lo, &hi);
#pragma unroll
        for (int t = 0; t < NB; t++) {
            __global const float *p = xt[t] + 32 * g;
            acc[t] = FMA(lo.s0123, vload4(0, p), acc[t]);
            acc[t] = FMA(lo.s4567, vload4(1, p), acc[t]);
            acc[t] = FMA(lo.s89ab, vload4(2, p), acc[t]);
            acc[t] = FMA(lo.scdef, vload4(3, p), acc[t]);
            acc[t] = FMA(hi.s0123, vload4(4, p), acc[t]);
            acc[t] = FMA(hi.s4567, vload4(5, p), acc[t]);
            acc[t] = FMA(hi.s89ab, vload4(6, p), acc[t]);
            acc[t] = FMA(hi.scdef, vload4(7, p), acc[t]);
        }
    }
#pragma unroll
    for (int t = 0; t < NB; t++) {
        float sum = (acc[t].x + acc[t].z) + (acc[t].y + acc[t].w);
#ifdef QUANT_PLAIN
        for (int k = (cols & ~31) + lane; k < cols; k += LANES)
            sum = FMA(quant_value(wr, (ulong)k), xt[t][k], sum);
#endif
        part[t][id] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int n = LANES / 2; n > 0; n /= 2) {
        if (lane < n)
            for (int t = 0; t < NB; t++)
                part[t][id] += part[t][id + n];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lane == 0 && row < rows)
        for (int t = 0; t < NB; t++)
            if (tok + t < n_tok)
                LINEAR_WRITE(tok + t, row, part[t][id]);
}

#endif

#ifdef LINEAR_TILE

/* For GPUs and many tokens: a work-group owns BM rows times BN tokens and walks
 * the columns 32 at a time; both tiles lie in local memory as floats, the
 * weights dequantised once. An item owns RM rows and RN tokens, BM / RM and
 * BN / RN apart, so that neighbours read neighbouring words. Grid (rows / BM,
 * n_tok / BN), rounded up; WG = BM / RM * (BN / RN). */
#define ITEMS_M (BM / RM)
#define ITEMS_N (BN / RN)
#define PITCH_M (BM + 1)
#define PITCH_N (BN + 1)

/* Sixteen values of one row of weights, one per line of the local tile. */
void store_column(__local float *p, float16 v)
{
    p[0 * PITCH_M] = v.s0;
    p[1 * PITCH_M] = v.s1;
    p[2 * PITCH_M] = v.s2;
    p[3 * PITCH_M] = v.s3;
    p[4 * PITCH_M] = v.s4;
    p[5 * PITCH_M] = v.s5;
    p[6 * PITCH_M] = v.s6;
    p[7 * PITCH_M] = v.s7;
    p[8 * PITCH_M] = v.s8;
    p[9 * PITCH_M] = v.s9;
    p[10 * PITCH_M] = v.sa;
    p[11 * PITCH_M] = v.sb;
    p[12 * PITCH_M] = v.sc;
    p[13 * PITCH_M] = v.sd;
    p[14 * PITCH_M] = v.se;
    p[15 * PITCH_M] = v.sf;
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void linear_tile(
    LINEAR_ARGS)
{
    LINEAR_USE;
    __local float tw[32 * PITCH_M], tx[32 * PITCH_N];
    const uint id = (uint)get_local_id(0);
    const int m = (int)(id % ITEMS_M), n = (int)(id / ITEMS_M);
    const int row = (int)get_group_id(0) * BM;
    const int tok = (int)get_group_id(1) * BN;
    float acc[RM][RN];
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++)
            acc[i][j] = 0.0f;

    for (int col = 0; col < cols; col += 32) {
        const int n_col = min(cols - col, 32);
#ifdef QUANT_PLAIN
        for (uint i = id; i < 32 * BM; i += WG) {
            const int k = (int)(i % 32), r = (int)(i / 32);
            const ulong at = (ulong)min(row + r, rows - 1) * row_bytes;
            float v = 0.0f;
            if (k < n_col)
                v = quant_value(w + at, (ulong)(col + k));
            tw[k * PITCH_M + r] = v;
        }
#else
        for (uint i = id; i < BM; i += WG) {
            QROW wr = QROW_AT(w, min(row + (int)i, rows - 1), row_bytes, cols);
            float16 lo, hi;
            quant32(wr, (ulong)(col / 32), &lo, &hi);
            store_column(tw + i, lo);
            store_column(tw + 16 * PITCH_M + i, hi);
        }
#endif
        for (uint i = id; i < 32 * BN; i += WG) {
            const int k = (int)(i % 32), t = (int)(i / 32);
            const ulong at = (ulong)min(tok + t, n_tok - 1) * (ulong)x_stride;
            float v = 0.0f;
            if (k < n_col)
                v = x[at + (ulong)(col + k)];
            tx[k * PITCH_N + t] = v;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < 32; k++) {
            float a[RM], b[RN];
#pragma unroll
            for (int i = 0; i < RM; i++)
                a[i] = tw[k * PITCH_M + i * ITEMS_M + m];
#pragma unroll
            for (int j = 0; j < RN; j++)
                b[j] = tx[k * PITCH_N + j * ITEMS_N + n];
#pragma unroll
            for (int i = 0; i < RM; i++)
#pragma unroll
                for (int j = 0; j < RN; j++)
                    acc[i][j] = FMA(a[i], b[j], acc[i][j]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++) {
            const int r = row + i * ITEMS_M + m, t = tok + j * ITEMS_N + n;
            if (r < rows && t < n_tok)
                LINEAR_WRITE(t, r, acc[i][j]);
        }
}

#endif
