/* embed.cl: rows by index: embed (dequantised, after quant.clh) and
 * gather_rows. Indices are checked by whoever uploads them; the clamps only
 * keep reads inside the buffers. */

#ifdef EMBED
/* Group (tok, c): values 32 WG c .. of the token, 32 a work-item. A launch
 * serves the rows [first_row, first_row + rows) of the matrix; tokens that want
 * another are left to the launch that has it. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void embed_group(
    CVIEW(int, ids), CVIEW(uchar, w), VIEW(float, out), const float scale,
    const int cols, const ulong row_bytes, const int all_rows,
    const int first_row, const int rows)
{
    CUSE(int, ids);
    CUSE(uchar, w);
    USE(float, out);
    const ulong tok = get_group_id(0);
    const uint g = (uint)get_group_id(1) * WG + (uint)get_local_id(0);
    const int in_view = clamp(ids[tok], 0, all_rows - 1) - first_row;
    if (in_view >= 0 && in_view < rows && g < ((uint)cols + 31) / 32) {
        QROW row = QROW_AT(w, in_view, row_bytes, cols);
        out += tok * cols;
        if (32 * g + 32 <= (uint)cols) {
            float16 lo, hi;
            quant32(row, g, &lo, &hi);
            vstore16(lo * (float16)(scale), 2 * g, out);
            vstore16(hi * (float16)(scale), 2 * g + 1, out);
        }
#ifdef QUANT_PLAIN
        else
            for (uint i = 32 * g; i < (uint)cols; i++)
                out[i] = scale * quant_value(row, i);
#endif
    }
}
#else
/* Group (row, c): elements WG c .. of the row. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void gather_rows_wi(
    CVIEW(float, x), CVIEW(int, idx), VIEW(float, out), const int dim,
    const int x_rows)
{
    CUSE(float, x);
    CUSE(int, idx);
    USE(float, out);
    const ulong row = get_group_id(0);
    const uint i = (uint)get_group_id(1) * WG + (uint)get_local_id(0);
    if (i < (uint)dim) {
        const ulong from = (ulong)clamp(idx[row], 0, x_rows - 1);
        out[row * dim + i] = x[from * dim + i];
    }
}
#endif
