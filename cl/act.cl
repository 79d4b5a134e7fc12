/* act.cl: act_mul and add, one element per work-item. An element's bits depend
 * on its inputs alone. Needs act.clh. */

/* Group (row, c): elements WG c .. of the row. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void act_mul_wi(
    AVIEW(const float, gate), const int gate_stride, AVIEW(const float, up),
    const int up_stride, AVIEW(float, out), const int out_stride, const int dim)
{
    USE(const float, gate);
    USE(const float, up);
    USE(float, out);
    const ulong row = get_group_id(0);
    const uint i = (uint)get_group_id(1) * WG + (uint)get_local_id(0);
    if (i < (uint)dim)
        out[row * out_stride + i] =
            act_of(gate[row * gate_stride + i]) * up[row * up_stride + i];
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void add_wi(
    AVIEW(const float, x), AVIEW(float, y), const ulong n)
{
    USE(const float, x);
    USE(float, y);
    const ulong i = get_global_id(0);
    if (i < n)
        y[i] += x[i];
}
