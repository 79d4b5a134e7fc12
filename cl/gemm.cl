/* gemm.cl: what surrounds a GEMM of a library: weights widened to floats, and
 * the bias. Needs common.clh and quant.clh. */

/* out[row, col] = the weights of one view, dense. One item per 32 columns:
 * grid (cols / 32 / WG, rows), rounded up. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void gemm_widen(
    CVIEW(uchar, w), VIEW(float, out), const ulong row_bytes, const int rows,
    const int cols)
{
    CUSE(uchar, w);
    USE(float, out);
    const int g = (int)get_global_id(0), row = (int)get_global_id(1);
    if (32 * g >= cols || row >= rows)
        return;
    QROW wr = QROW_AT(w, row, row_bytes, cols);
    __global float *p = out + (ulong)row * (ulong)cols + 32 * g;
#ifdef QUANT_PLAIN
    if (32 * g + 32 > cols) {
        for (int k = 32 * g; k < cols; k++)
            p[k - 32 * g] = quant_value(wr, (ulong)k);
        return;
    }
#endif
    float16 lo, hi;
    quant32(wr, (ulong)g, &lo, &hi);
    vstore16(lo, 0, p);
    vstore16(hi, 1, p);
}

/* y[t, row] += bias[row]. Grid (rows / WG, n_tok), rounded up. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void gemm_bias(
    CVIEW(float, bias), VIEW(float, y), const int rows, const int n_tok,
    const int y_stride)
{
    CUSE(float, bias);
    USE(float, y);
    const int row = (int)get_global_id(0), t = (int)get_global_id(1);
    if (row < rows && t < n_tok)
        y[(ulong)t * (ulong)y_stride + row] += bias[row];
}
