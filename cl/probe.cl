/* probe.cl: what device/caps.c runs to find out what a device can do; each
 * kernel alone in its program, chosen by PROBE_<NAME>. Needs common.clh. All
 * take 32-bit words in and words out, which the host checks. */

#ifdef PROBE_CANARY
/* Minimum, maximum and sum of n ints by one work-group: the reduction that has
 * been miscompiled on a released driver. */
__kernel void probe_canary(CVIEW(int, in), VIEW(int, out), int n)
{
    CUSE(int, in);
    USE(int, out);
    __local int low[WG], high[WG], sum[WG];
    int l = (int)get_local_id(0);
    int a = INT_MAX, b = INT_MIN, c = 0;
    for (int i = l; i < n; i += WG) {
        a = min(a, in[i]);
        b = max(b, in[i]);
        c += in[i];
    }
    low[l] = a;
    high[l] = b;
    sum[l] = c;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = WG / 2; s > 0; s /= 2) {
        if (l < s) {
            low[l] = min(low[l], low[l + s]);
            high[l] = max(high[l], high[l + s]);
            sum[l] += sum[l + s];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (l == 0) {
        out[0] = low[0];
        out[1] = high[0];
        out[2] = sum[0];
    }
}
#endif

#ifdef PROBE_HALF_STORAGE
/* Float to half and back: out[2i] the half's bits, out[2i + 1] the float. */
__kernel void probe_half_storage(CVIEW(float, in), VIEW(uint, out), int n)
{
    CUSE(float, in);
    USE(uint, out);
    int i = (int)get_global_id(0);
    if (i < n) {
        __global ushort *bits = (__global ushort *)(out + 2 * i);
        vstore_half_rte(in[i], 0, (__global half *)bits);
        bits[1] = 0;
        out[2 * i + 1] = as_uint(vload_half(0, (__global const half *)bits));
    }
}
#endif

#ifdef PROBE_FMA
__kernel void probe_fma(CVIEW(float, in), VIEW(float, out), int n)
{
    CUSE(float, in);
    USE(float, out);
    int i = (int)get_global_id(0);
    if (i < n)
        out[i] = fma(in[3 * i], in[3 * i + 1], in[3 * i + 2]);
}
#endif

#ifdef PROBE_FMA_TIME
/* n dependent steps; PROBE_FMA_TIME 1 with fma, 2 with product and sum. */
__kernel void probe_fma_time(CVIEW(float, in), VIEW(float, out), int n)
{
    CUSE(float, in);
    USE(float, out);
    int i = (int)get_global_id(0);
    float a = in[0], b = in[1], x = (float)i;
    for (int k = 0; k < n; k++)
#if PROBE_FMA_TIME == 1
        x = fma(x, a, b);
#else
        x = x * a + b;
#endif
    out[i] = x;
}
#endif

#ifdef PROBE_HALF_ARITH
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
/* One product and one sum, each rounded to half. Bits are taken through memory:
 * not every compiler that has halves has as_ushort of one. */
__kernel void probe_half_arith(CVIEW(float, in), VIEW(uint, out), int n)
{
    CUSE(float, in);
    USE(uint, out);
    int i = (int)get_global_id(0);
    if (i < n) {
        half a = (half)in[2 * i], b = (half)in[2 * i + 1];
        out[2 * i] = out[2 * i + 1] = 0;
        *(__global half *)(out + 2 * i) = a * b;
        *(__global half *)(out + 2 * i + 1) = a + b;
    }
}
#endif

#ifdef PROBE_SUBGROUP_KHR
#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
__kernel void probe_subgroup(CVIEW(uint, in), VIEW(uint, out), int n)
{
    USE(uint, out);
    uint l = (uint)get_local_id(0);
    out[5 * l] = get_sub_group_size();
    out[5 * l + 1] = get_sub_group_id();
    out[5 * l + 2] = get_sub_group_local_id();
    out[5 * l + 3] = sub_group_reduce_add(l + 1);
    out[5 * l + 4] = sub_group_broadcast(l, 0);
}
#endif

#ifdef PROBE_SUBGROUP_INTEL
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
__attribute__((intel_reqd_sub_group_size(PROBE_SUBGROUP_INTEL))) __kernel void
probe_subgroup_intel(CVIEW(uint, in), VIEW(uint, out), int n)
{
    USE(uint, out);
    uint l = (uint)get_local_id(0);
    uint lane = get_sub_group_local_id();
    out[5 * l] = get_sub_group_size();
    out[5 * l + 1] = get_sub_group_id();
    out[5 * l + 2] = lane;
    out[5 * l + 3] = intel_sub_group_shuffle_xor(l, 1u);
    out[5 * l + 4] =
        intel_sub_group_shuffle(l, (lane + 3u) % PROBE_SUBGROUP_INTEL);
}
#endif

#ifdef PROBE_DOT4
__kernel void probe_dot4(CVIEW(uint, in), VIEW(int, out), int n)
{
    CUSE(uint, in);
    USE(int, out);
    int i = (int)get_global_id(0);
    if (i < n)
        out[i] = dot_acc_sat_4x8packed_ss_int(in[2 * i], in[2 * i + 1], i - 7);
}
#endif

#ifdef PROBE_ADD
__kernel void probe_add(CVIEW(uint, in), VIEW(uint, out), int n)
{
    USE(uint, out);
    out[get_global_id(0)] += (uint)n;
}
#endif

#ifdef PROBE_ADDRESS
/* Where both buffers lie, for a kernel that gets no buffer. */
__kernel void probe_address(CVIEW(uint, in), VIEW(ulong, out), int n)
{
    CUSE(uint, in);
    USE(ulong, out);
    out[0] = (ulong)in;
    out[1] = (ulong)out;
}
__kernel void probe_by_address(const ulong in, const ulong out, int n)
{
    int i = (int)get_global_id(0);
    if (i < n)
        ((__global uint *)out)[i] = ((__global const uint *)in)[i] * 3u + i;
}
#endif

#ifdef PROBE_FENCE
/* Every group writes its part, the group that comes last adds all parts up.
 * Nobody waits for anybody. out: sums [WG], then the counter, then the parts of
 * the groups. Each item has read its neighbour's old part before, so that a
 * cache that is not told holds it still. */
#if PROBE_FENCE == 1
#define GRID_FENCE() asm volatile("membar.gl;" ::: "memory")
#define ARRIVE(p)    atomic_inc(p)
#else
#define GRID_FENCE()                                                           \
    atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_acq_rel,         \
                           memory_scope_device)
#define ARRIVE(p)                                                              \
    atomic_fetch_add_explicit((volatile __global atomic_uint *)(p), 1u,        \
                              memory_order_acq_rel, memory_scope_device)
#endif
__kernel void probe_fence(CVIEW(uint, in), VIEW(uint, out), int n)
{
    USE(uint, out);
    __local uint arrived;
    uint l = (uint)get_local_id(0), g = (uint)get_group_id(0);
    uint groups = (uint)get_num_groups(0);
    volatile __global uint *count = out + WG;
    __global uint *parts = out + WG + 1;
    uint old = parts[((g + 1) % groups) * WG + l];
    parts[g * WG + l] = (uint)n * (g + 1) + l + (old & 0u);
    GRID_FENCE();
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (l == 0)
        arrived = ARRIVE(count);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    GRID_FENCE();
    if (arrived == groups - 1) {
        uint sum = 0;
        for (uint i = 0; i < groups; i++)
            sum += parts[i * WG + l];
        out[l] = sum;
    }
}
#endif
