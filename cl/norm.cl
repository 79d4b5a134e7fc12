/* norm.cl: rmsnorm, with the residual added on the way. A row's sum has one
 * fixed order: it depends on WG (wg) or on nothing (row), never on the batch.
 */

/* One work-group per row: lane l sums elements l, l + WG, ..., then a tree.
 * Each work-item reads again only what it wrote itself. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void rmsnorm_wg(
    AVIEW(const float, x), const int x_stride, CVIEW(float, w),
    AVIEW(float, out), const int out_stride, const int dim, const float eps,
    VIEW(float, res), const int has_res)
{
    __local float tmp[WG];
    USE(const float, x);
    CUSE(float, w);
    USE(float, out);
    const ulong row = get_group_id(0);
    const uint lid = (uint)get_local_id(0);
    x += row * (ulong)x_stride;
    out += row * (ulong)out_stride;
    USE(float, res);
    res += row * (ulong)dim;
    float sum = 0.0f;
    for (uint i = lid; i < (uint)dim; i += WG) {
        float h = x[i];
        if (has_res) {
            h += res[i];
            res[i] = h;
        }
        sum = FMA(h, h, sum);
    }
    sum = wg_sum(sum, tmp);
    const float inv = rsqrt(sum / (float)dim + eps);
    for (uint i = lid; i < (uint)dim; i += WG) {
        const float h = has_res ? res[i] : x[i];
        out[i] = w[i] * (h * inv);
    }
}

/* One work-item per row, for CPUs: sixteen sums side by side, then a tree; the
 * rest of the row goes into the first. */
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void rmsnorm_row(
    AVIEW(const float, x), const int x_stride, CVIEW(float, w),
    AVIEW(float, out), const int out_stride, const int dim, const float eps,
    VIEW(float, res), const int has_res)
{
    USE(const float, x);
    CUSE(float, w);
    USE(float, out);
    const ulong row = get_group_id(0);
    const uint n16 = (uint)dim / 16;
    x += row * (ulong)x_stride;
    out += row * (ulong)out_stride;
    USE(float, res);
    res += row * (ulong)dim;
    float16 acc = (float16)(0.0f);
    for (uint i = 0; i < n16; i++) {
        float16 h = vload16(i, x);
        if (has_res) {
            h += vload16(i, res);
            vstore16(h, i, res);
        }
        acc = FMA(h, h, acc);
    }
    float tail = 0.0f;
    for (uint i = n16 * 16; i < (uint)dim; i++) {
        float h = x[i];
        if (has_res) {
            h += res[i];
            res[i] = h;
        }
        tail = FMA(h, h, tail);
    }
    const float8 a8 = acc.lo + acc.hi;
    const float4 a4 = a8.lo + a8.hi;
    const float2 a2 = a4.lo + a4.hi;
    const float sum = (a2.x + a2.y) + tail;
    const float inv = rsqrt(sum / (float)dim + eps);
    __global const float *h_row = has_res ? (__global const float *)res : x;
    for (uint i = 0; i < n16; i++)
        vstore16(vload16(i, w) * (vload16(i, h_row) * (float16)(inv)), i, out);
    for (uint i = n16 * 16; i < (uint)dim; i++)
        out[i] = w[i] * (h_row[i] * inv);
}
