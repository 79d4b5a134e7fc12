/* measure.cl: what a device gives at best, as folio_device_measure asks it: the
 * memory's read rate, multiply-adds out of registers, matrix products. Used by
 * no op. */

#ifdef MEASURE_READ
/* Each work-item adds up what it reads, so that no read can be left out; four
 * reads are under way at once. Neighbours read side by side, or each its own
 * stretch where work-items run one after the other. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void measure_read(
    CVIEW(float, x), VIEW(float, out), const ulong n)
{
    CUSE(float, x);
    USE(float, out);
    const ulong all = get_global_size(0);
#ifdef MEASURE_STRETCH
    const ulong each = (n + all - 1) / all, step = 1;
    ulong i = get_global_id(0) * each;
    const ulong end = min(i + each, n);
#else
    const ulong end = n, step = all;
    ulong i = get_global_id(0);
#endif
    float4 a = (float4)(0), b = a, c = a, d = a;
    for (; i + 3 * step < end; i += 4 * step) {
        a += vload4(i, x);
        b += vload4(i + step, x);
        c += vload4(i + 2 * step, x);
        d += vload4(i + 3 * step, x);
    }
    for (; i < end; i += step)
        a += vload4(i, x);
    a = (a + b) + (c + d);
    out[get_global_id(0)] = (a.x + a.y) + (a.z + a.w);
}
#endif

#ifdef MEASURE_FMA
/* Eight independent chains of vectors LANES wide, n times. */
#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#define WIDE        JOIN(float, LANES)
#define STORE       JOIN(vstore, LANES)

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void measure_fma(
    VIEW(float, out), const float by, const float add, const int n)
{
    USE(float, out);
    const WIDE m = (WIDE)(by), p = (WIDE)(add);
    const float start = (float)get_local_id(0);
    WIDE a = (WIDE)(start), b = a + p, c = b + p, d = c + p;
    WIDE e = d + p, f = e + p, g = f + p, h = g + p;
    for (int i = 0; i < n; i++) {
        a = FMA(a, m, p);
        b = FMA(b, m, p);
        c = FMA(c, m, p);
        d = FMA(d, m, p);
        e = FMA(e, m, p);
        f = FMA(f, m, p);
        g = FMA(g, m, p);
        h = FMA(h, m, p);
    }
    STORE(((a + b) + (c + d)) + ((e + f) + (g + h)), get_global_id(0), out);
}
#endif

#ifdef MEASURE_MMA
/* Eight independent products of 16 x 16 by 16 x 8 a warp, n times. */
#define SUMS(c) float c##0 = 0, c##1 = 0, c##2 = 0, c##3 = 0
#define ALL(c)  ((c##0 + c##1) + (c##2 + c##3))
#define MMA(c)                                                                 \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "          \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"       \
                 : "+f"(c##0), "+f"(c##1), "+f"(c##2), "+f"(c##3)              \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void measure_mma(
    VIEW(float, out), const int seed, const int n)
{
    USE(float, out);
    /* Pairs of halves between 1 and 2 in size. */
    const uint r = ((uint)get_local_id(0) + 1u) * ((uint)seed | 1u);
    const uint a0 = (r & 0x83ff83ffu) | 0x3c003c00u;
    const uint a1 = (r * 3u & 0x83ff83ffu) | 0x3c003c00u;
    const uint a2 = (r * 5u & 0x83ff83ffu) | 0x3c003c00u;
    const uint a3 = (r * 7u & 0x83ff83ffu) | 0x3c003c00u;
    const uint b0 = (r * 9u & 0x83ff83ffu) | 0x3c003c00u;
    const uint b1 = (r * 11u & 0x83ff83ffu) | 0x3c003c00u;
    SUMS(s);
    SUMS(t);
    SUMS(u);
    SUMS(v);
    SUMS(w);
    SUMS(x);
    SUMS(y);
    SUMS(z);
    for (int k = 0; k < n; k++) {
        MMA(s);
        MMA(t);
        MMA(u);
        MMA(v);
        MMA(w);
        MMA(x);
        MMA(y);
        MMA(z);
    }
    out[get_global_id(0)] = ((ALL(s) + ALL(t)) + (ALL(u) + ALL(v))) +
                            ((ALL(w) + ALL(x)) + (ALL(y) + ALL(z)));
}
#endif
