/* act.cl: act_mul and add, one element per work-item. An element's bits depend
 * on its inputs alone. */

#ifdef ACT_GELU_TANH
/* The tanh form of GELU: x (1 + tanh u) / 2 = x / (1 + e^(-2u)), which does not
 * cancel for negative u. */
static inline float act_of(float x)
{
    const float two_u = 1.59576912160573f * (x + 0.044715f * x * x * x);
    const float e = exp(-fmin(fabs(two_u), 200.0f));
    return x * ((two_u >= 0.0f ? 1.0f : e) / (1.0f + e));
}
#else
/* SiLU, x / (1 + e^-x), without the overflow of e^-x. */
static inline float act_of(float x)
{
    const float e = exp(-fabs(x));
    return x * ((x >= 0.0f ? 1.0f : e) / (1.0f + e));
}
#endif

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
