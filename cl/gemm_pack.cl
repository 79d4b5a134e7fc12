/* gemm_pack.cl: activations as halves in the tiles of wgmma.clh: BN tokens x 64
 * columns a tile, [tokens / BN][columns / 64] tiles; or in plain rows; as they
 * are or behind a norm. Needs common.clh, the norm reduce.clh, too. */

#if defined(GEMM_PACK) || defined(NORM_PACK)

static inline void pack8(__global uchar *to, float8 v)
{
    /* Halves end at 65,504; what is larger stays there, NaN stays NaN. */
    v = v > 65504.0f ? (float8)(65504.0f) : v;
    v = v < -65504.0f ? (float8)(-65504.0f) : v;
    vstore_half8(v, 0, (__global half *)to);
}

/* 16 columns; `words`: at a multiple of 16 bytes. */
static inline float16 read16(__global const float *p, int words)
{
    __global const float4 *q = (__global const float4 *)p;
    if (words)
        return (float16)(q[0], q[1], q[2], q[3]);
    return vload16(0, p);
}

/* Columns 16 c .. of token t in tiles of bn tokens; even_odd: even columns of
 * the 16 before the odd ones, as gemm_rows.clh wants. */
static inline void pack_tile(__global uchar *out, int t, int c, int cols,
                             int bn, int even_odd, float16 v)
{
    const int r = t % bn, j = c % 4 * 2;
    __global uchar *row =
        out +
        ((ulong)(t / bn) * (ulong)(cols / 64) + c / 4) * ((ulong)bn * 128) +
        r * 128;
    pack8(row + ((j ^ (r & 7)) << 4), even_odd ? v.even : v.lo);
    pack8(row + (((j + 1) ^ (r & 7)) << 4), even_odd ? v.odd : v.hi);
}

#endif

#ifdef GEMM_PACK

/* One item per 16 columns; tokens past the last are zeros. x_words: rows of x
 * start at multiples of 16 bytes. bn 0: rows one behind the other. Grid (cols /
 * 16 / WG, tokens of whole tiles), rounded up. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void gemm_pack(
    CVIEW(float, x), VIEW(uchar, out), const int cols, const int n_tok,
    const int x_stride, const int bn, const int x_words, const int even_odd)
{
    CUSE(float, x);
    USE(uchar, out);
    const int c = (int)get_global_id(0), t = (int)get_global_id(1);
    if (c * 16 >= cols)
        return;
    float16 v = (float16)(0.0f);
    if (t < n_tok)
        v = read16(x + (ulong)t * (ulong)x_stride + c * 16, x_words);
    if (bn == 0) {
        __global uchar *to = out + ((ulong)t * (ulong)cols + c * 16) * 2;
        pack8(to, v.lo);
        pack8(to + 16, v.hi);
        return;
    }
    pack_tile(out, t, c, cols, bn, even_odd, v);
}

#endif

#ifdef NORM_PACK

/* rmsnorm, then as gemm_pack: one group per token of whole tiles. Where gather
 * is not 0, token t is row idx[t] of x. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void norm_pack(
    CVIEW(float, x), CVIEW(float, norm), CVIEW(int, idx), VIEW(uchar, out),
    const int cols, const int n_tok, const int x_stride, const int gather,
    const float eps, const int bn, const int words, const int even_odd)
{
    __local float tmp[WG];
    CUSE(float, x);
    CUSE(float, norm);
    CUSE(int, idx);
    USE(uchar, out);
    const int t = (int)get_group_id(0), id = (int)get_local_id(0);
    const bool real = t < n_tok;
    float16 sum16 = (float16)(0.0f);
    if (real) {
        x += (ulong)(gather ? idx[t] : t) * (ulong)x_stride;
        for (int c = id; c < cols / 16; c += WG) {
            const float16 v = read16(x + c * 16, words);
            sum16 = FMA(v, v, sum16);
        }
    }
    const float8 sum8 = sum16.lo + sum16.hi;
    const float4 sum4 = sum8.lo + sum8.hi;
    const float2 sum2 = sum4.lo + sum4.hi;
    const float sum = wg_sum(sum2.x + sum2.y, tmp);
    const float inv = rsqrt(sum / (float)cols + eps);
    for (int c = id; c < cols / 16; c += WG) {
        float16 v = (float16)(0.0f);
        if (real)
            v = read16(norm + c * 16, words) *
                (read16(x + c * 16, words) * (float16)(inv));
        pack_tile(out, t, c, cols, bn, even_odd, v);
    }
}

#endif
