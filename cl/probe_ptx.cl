/* probe_ptx.cl: as probe.cl, for inline PTX. Reaches only compilers that say
 * which compute capability they target. */

#ifdef PROBE_PTX
/* Whether neighbours by id are neighbours in the warp. */
__kernel void probe_ptx(CVIEW(uint, in), VIEW(uint, out), int n)
{
    USE(uint, out);
    uint l = (uint)get_local_id(0), lane, other;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm volatile("shfl.sync.bfly.b32 %0, %1, 5, 31, 0xffffffff;"
                 : "=r"(other)
                 : "r"(l * 3u));
    out[2 * l] = lane;
    out[2 * l + 1] = other;
}
#endif

#ifdef PROBE_PTX_DP4A
__kernel void probe_ptx_dp4a(CVIEW(uint, in), VIEW(int, out), int n)
{
    CUSE(uint, in);
    USE(int, out);
    int i = (int)get_global_id(0);
    if (i < n) {
        int sum;
        asm volatile("dp4a.s32.s32 %0, %1, %2, %3;"
                     : "=r"(sum)
                     : "r"(in[2 * i]), "r"(in[2 * i + 1]), "r"(i - 7));
        out[i] = sum;
    }
}
#endif

#ifdef PROBE_PTX_MMA
/* C[16][8] = A[16][16] B[16][8], halves in pairs along k: A by rows, B by
 * columns. A goes through local memory with cp.async. One warp. */
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void probe_ptx_mma(
    CVIEW(uint, in), VIEW(float, out), int n)
{
    CUSE(uint, in);
    USE(float, out);
    __local __attribute__((aligned(16))) uint a[16 * 8];
    uint l = (uint)get_local_id(0), g = l >> 2, t = l & 3;
    __local uint *to = a + l * 4;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((uint)(ulong)to), "l"(in + l * 4)
                 : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    __global const uint *b = in + 16 * 8;
    uint a0 = a[g * 8 + t], a1 = a[(g + 8) * 8 + t];
    uint a2 = a[g * 8 + t + 4], a3 = a[(g + 8) * 8 + t + 4];
    uint b0 = b[g * 8 + t], b1 = b[g * 8 + t + 4];
    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    out[g * 8 + 2 * t] = c0;
    out[g * 8 + 2 * t + 1] = c1;
    out[(g + 8) * 8 + 2 * t] = c2;
    out[(g + 8) * 8 + 2 * t + 1] = c3;
}
#endif

#ifdef PROBE_PTX_BULK
/* Two copies of 1 KiB through the same place, so that both phases of the
 * barrier are waited for. Spins are bounded. */
__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void probe_ptx_bulk(
    CVIEW(uint, in), VIEW(uint, out), int n)
{
    CUSE(uint, in);
    USE(uint, out);
    __local __attribute__((aligned(128))) uint tile[256];
    __local ulong bar[1];
    const uint l = (uint)get_local_id(0);
    const uint at = (uint)(ulong)bar;
    if (l == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at)
                     : "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint turn = 0; turn < 2; turn++) {
        if (l == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], "
                         "1024;" ::"r"(at)
                         : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::"
                         "complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(
                             (uint)(ulong)tile),
                         "l"(in + turn * 256), "r"(at)
                         : "memory");
        }
        uint done = 0;
        for (uint i = 0; i < 1u << 20 && !done; i++)
            asm volatile("{\n.reg .pred p;\n"
                         "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], "
                         "%2;\nselp.u32 %0, 1, 0, p;\n}"
                         : "=r"(done)
                         : "r"(at), "r"(turn)
                         : "memory");
        for (uint i = l; i < 256; i += 32)
            out[turn * 256 + i] = done ? tile[i] ^ (turn * 256 + i) : 0u;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
#endif

#ifdef PROBE_PTX_RETARGET
/* Assembles for sm_90a only. */
__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void
probe_ptx_retarget(CVIEW(uint, in), VIEW(uint, out), int n)
{
    CUSE(uint, in);
    USE(uint, out);
    uint l = (uint)get_local_id(0);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    out[l] = in[l] * 3u + l;
}
#endif

#ifdef PROBE_BIG_LOCAL
/* PROBE_BIG_LOCAL words of static local memory, each written and read by
 * different items. */
__kernel void probe_big_local(CVIEW(uint, in), VIEW(uint, out), int n)
{
    USE(uint, out);
    __local uint big[PROBE_BIG_LOCAL];
    uint l = (uint)get_local_id(0), sum = 0;
    for (uint i = l; i < PROBE_BIG_LOCAL; i += WG)
        big[i] = i * 2654435761u + (uint)n;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = l; i < PROBE_BIG_LOCAL; i += WG) {
        uint k = PROBE_BIG_LOCAL - 1 - i;
        sum += big[k] ^ k;
    }
    out[l] = sum;
}
#endif
