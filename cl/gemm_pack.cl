/* gemm_pack.cl: activations as halves in the tiles of wgmma.clh: BN tokens x 64
 * columns a tile, [tokens / BN][columns / 64] tiles; or in plain rows. Needs
 * common.clh. */

#ifdef GEMM_PACK

static inline void pack8(__global uchar *to, float8 v)
{
    /* Halves end at 65,504; what is larger stays there, NaN stays NaN. */
    v = v > 65504.0f ? (float8)(65504.0f) : v;
    v = v < -65504.0f ? (float8)(-65504.0f) : v;
    vstore_half8(v, 0, (__global half *)to);
}

/* One item per 16 columns; tokens past the last are zeros. x_words: rows of x
 * start at multiples of 16 bytes. even_odd: even columns of the 16 before the
 * odd ones, as gemm_rows.clh wants. bn 0: rows one behind the other. Grid (cols
 * / 16 / WG, tokens of whole tiles), rounded up. */
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
    if (t < n_tok) {
        __global const float *p = x + (ulong)t * (ulong)x_stride + c * 16;
        __global const float4 *q = (__global const float4 *)p;
        if (x_words)
            v = (float16)(q[0], q[1], q[2], q[3]);
        else
            v = vload16(0, p);
    }
    if (bn == 0) {
        __global uchar *to = out + ((ulong)t * (ulong)cols + c * 16) * 2;
        pack8(to, v.lo);
        pack8(to + 16, v.hi);
        return;
    }
    const int r = t % bn, j = c % 4 * 2;
    __global uchar *row =
        out +
        ((ulong)(t / bn) * (ulong)(cols / 64) + c / 4) * ((ulong)bn * 128) +
        r * 128;
    pack8(row + ((j ^ (r & 7)) << 4), even_odd ? v.even : v.lo);
    pack8(row + (((j + 1) ^ (r & 7)) << 4), even_odd ? v.odd : v.hi);
}

#endif
