/* bench.cl: what the memory of a device gives at best: the measure beside which
 * folio-check --bench prints its figures. Not used by any op. */

/* Each work-item reads every get_global_size(0)-th float4 of n and adds up, so
 * that no read can be left out. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void bench_read(
    CVIEW(float, x), VIEW(float, out), const ulong n)
{
    CUSE(float, x);
    USE(float, out);
    float4 sum = (float4)(0);
    for (ulong i = get_global_id(0); i < n; i += get_global_size(0))
        sum += vload4(i, x);
    out[get_global_id(0)] = (sum.x + sum.y) + (sum.z + sum.w);
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void bench_copy(
    CVIEW(float, x), VIEW(float, out), const ulong n)
{
    CUSE(float, x);
    USE(float, out);
    for (ulong i = get_global_id(0); i < n; i += get_global_size(0))
        vstore4(vload4(i, x), i, out);
}
