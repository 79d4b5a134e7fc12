/* gemm_mma.cl: y = x W^T (+ bias) (+ y) for many tokens and half weights, in
 * halves with sums in floats, by the matrix instructions that warps have (sm_80
 * and later). x comes as rows of halves (gemm_pack.cl), padded to whole tiles.
 * Needs common.clh and gemm_part.clh.
 *
 * A group owns BM tokens times BN rows, a warp WM x WN of them; ST stages of 32
 * columns lie in local memory, 64 bytes a row, its 16-byte chunk j at
 * j ^ (row / 2 & 3). Where there are too few tiles the columns are cut into
 * `splits` parts; the last to arrive adds them in order.
 *
 * -D LINEAR_MMA, BM, BN, WM, WN, ST, and how the weights lie: PACK_RG16,
 * PACK_TILE16 or as rows; EMULATED for any device: the same tiles and sums, one
 * stage. */

#ifdef LINEAR_MMA

#define BK          32
#define WARPS       ((BM / WM) * (BN / WN))
#define NT          (WARPS * 32)
#define MI          (WM / 16)
#define NI          (WN / 8)
#define STAGE_BYTES ((BM + BN) * 64)
/* Token tiles that are walked together, for the sake of the last cache. */
#define RASTER 8

#define CHUNK_AT(row, j) ((row)*64 + (((j) ^ ((row) >> 1 & 3)) << 4))

/* Chunk c (8 columns) of a row. */
static inline __global const uchar *w_chunk(__global const uchar *w, int r,
                                            int c, int cols)
{
#if defined(PACK_RG16)
    return w + ((ulong)(r / 16) * (ulong)(cols / 8) + c) * 256 + r % 16 * 16;
#elif defined(PACK_TILE16)
    return w + ((ulong)(r / 128) * (ulong)(cols / 64) + c / 8) * 16384 +
           r % 128 * 128 + (((c % 8) ^ (r & 7)) << 4);
#else
    return w + ((ulong)r * (ulong)cols + c * 8) * 2;
#endif
}

#ifdef EMULATED

static inline void copy16(__local uchar *to, __global const uchar *from)
{
    vstore16(vload16(0, from), 0, to);
}

#else

static inline uint local_addr(__local void *p)
{
    return (uint)(ulong)p;
}

static inline void copy16(__local uchar *to, __global const uchar *from)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(local_addr(to)),
        "l"(from)
        : "memory");
}

#define COPY_COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPY_WAIT(n)  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

#define LDMATRIX4(r0, r1, r2, r3, addr)                                        \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, " \
                 "[%4];"                                                       \
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)                      \
                 : "r"(addr)                                                   \
                 : "memory")

#define MMA(c, a, b0, b1)                                                      \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "          \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "              \
                 "{%0, %1, %2, %3};"                                           \
                 : "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])      \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]),         \
                   "r"(b0), "r"(b1))

#endif

/* Weights whose rows begin anywhere: halves one by one. */
static inline void copy_halves(__local uchar *to, __global const uchar *from)
{
    __global const ushort *p = (__global const ushort *)from;
    __local ushort *q = (__local ushort *)to;
    for (int i = 0; i < 8; i++)
        q[i] = p[i];
}

/* One stage, columns 32 k to 32 k + 31, by all items. */
static inline void load_stage(__local uchar *to, __global const uchar *x,
                              __global const uchar *w, int row, int rows,
                              int cols, int k, bool words, int id)
{
#pragma unroll
    for (int i = id; i < BM * 4; i += NT) {
        const int r = i >> 2, j = i & 3;
        copy16(to + CHUNK_AT(r, j),
               x + ((ulong)r * (ulong)cols + k * BK + j * 8) * 2);
    }
    to += BM * 64;
#pragma unroll
    for (int i = id; i < BN * 4; i += NT) {
        const int r = i >> 2, j = i & 3;
        __global const uchar *from =
            w_chunk(w, min(row + r, rows - 1), k * 4 + j, cols);
        if (words)
            copy16(to + CHUNK_AT(r, j), from);
        else
            copy_halves(to + CHUNK_AT(r, j), from);
    }
}

__kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void linear_mma(
    CVIEW(uchar, w), CVIEW(uchar, x), CVIEW(float, bias), VIEW(float, y),
    VIEW(float, part), VIEW(int, count), const int rows, const int cols,
    const int n_tok, const int y_stride, const int flags, const int splits)
{
    CUSE(uchar, w);
    CUSE(uchar, x);
    CUSE(float, bias);
    USE(float, y);
    USE(float, part);
    USE(int, count);
#ifdef EMULATED
    __local __attribute__((aligned(128))) uchar stage[STAGE_BYTES];
#else
    __local __attribute__((aligned(128))) uchar stage[ST * STAGE_BYTES];
#endif
    const int id = (int)get_local_id(0), lane = id & 31, warp = id >> 5;
    const int wm = warp / (BN / WN), wn = warp % (BN / WN);
    const int tiles_t = (n_tok + BM - 1) / BM, tiles_r = (rows + BN - 1) / BN;
    const int group = (int)get_group_id(0);
    const int tile = group / splits, split = group % splits;
    const int per = RASTER * tiles_r, first = tile / per * RASTER;
    const int height = min(tiles_t - first, RASTER);
    const int tok = (first + tile % per % height) * BM;
    const int row = tile % per / height * BN;
    const int steps = cols / BK;
    const int k0 = (int)((long)steps * split / splits);
    const int k1 = (int)((long)steps * (split + 1) / splits);
    const bool words = (flags & FLAG_WORDS) != 0;
    __global const uchar *xt = x + (ulong)tok * (ulong)cols * 2;
    float acc[MI][NI][4];
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
        for (int j = 0; j < NI; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[i][j][e] = 0.0f;

#ifdef EMULATED
    for (int k = k0; k < k1; k++) {
        load_stage(stage, xt, w, row, rows, cols, k, words, id);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < MI; i++)
            for (int j = 0; j < NI; j++)
                for (int e = 0; e < 4; e++) {
                    const int m = wm * WM + i * 16 + (lane >> 2) + (e >> 1) * 8;
                    const int n = wn * WN + j * 8 + (lane & 3) * 2 + (e & 1);
                    for (int p = 0; p < BK; p++)
                        acc[i][j][e] +=
                            vload_half(
                                p % 8,
                                (__local const half *)(stage +
                                                       CHUNK_AT(m, p / 8))) *
                            vload_half(
                                p % 8,
                                (__local const half *)(stage + BM * 64 +
                                                       CHUNK_AT(n, p / 8)));
                }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#else
#pragma unroll
    for (int s = 0; s < ST - 1; s++) {
        if (k0 + s < k1)
            load_stage(stage + s * STAGE_BYTES, xt, w, row, rows, cols, k0 + s,
                       words, id);
        COPY_COMMIT();
    }
    for (int k = k0; k < k1; k++) {
        COPY_WAIT(ST - 2);
        barrier(CLK_LOCAL_MEM_FENCE);
        const int next = k + ST - 1;
        if (next < k1)
            load_stage(stage + (next - k0) % ST * STAGE_BYTES, xt, w, row, rows,
                       cols, next, words, id);
        COPY_COMMIT();
        const uint sx = local_addr(stage) + (k - k0) % ST * STAGE_BYTES;
        const uint sw = sx + BM * 64;
#pragma unroll
        for (int q = 0; q < 2; q++) {
            uint a[MI][4], b[NI][2];
#pragma unroll
            for (int i = 0; i < MI; i++) {
                const uint r = wm * WM + i * 16 + (lane & 15);
                LDMATRIX4(a[i][0], a[i][1], a[i][2], a[i][3],
                          sx + CHUNK_AT(r, (uint)(q * 2 + (lane >> 4))));
            }
#pragma unroll
            for (int j = 0; j < NI; j += 2) {
                const uint r =
                    wn * WN + j * 8 + (lane & 7) + ((lane >> 4) << 3);
                LDMATRIX4(b[j][0], b[j][1], b[j + 1][0], b[j + 1][1],
                          sw + CHUNK_AT(r, (uint)(q * 2 + (lane >> 3 & 1))));
            }
#pragma unroll
            for (int i = 0; i < MI; i++)
#pragma unroll
                for (int j = 0; j < NI; j++)
                    MMA(acc[i][j], a[i], b[j][0], b[j][1]);
        }
    }
#endif

    if (splits > 1) {
        __global float *p = part + (ulong)group * (BM * BN) + id * 4;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
                part_write4(p + (i * NI + j) * (NT * 4), acc[i][j][0],
                            acc[i][j][1], acc[i][j][2], acc[i][j][3]);
        PART_FENCE();
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        /* All have passed their last stage: there is room in it. */
        __local int *arrived = (__local int *)stage;
        if (id == 0)
            *arrived = part_arrive(count + tile);
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        if (*arrived != splits - 1)
            return;
        PART_FENCE();
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    acc[i][j][e] = 0.0f;
        p = part + (ulong)(tile * splits) * (BM * BN) + id * 4;
        for (int s = 0; s < splits; s++, p += BM * BN) {
#pragma unroll
            for (int i = 0; i < MI; i++)
#pragma unroll
                for (int j = 0; j < NI; j++) {
                    const float4 v = part_read4(p + (i * NI + j) * (NT * 4));
                    acc[i][j][0] += v.x;
                    acc[i][j][1] += v.y;
                    acc[i][j][2] += v.z;
                    acc[i][j][3] += v.w;
                }
        }
        /* As it was found, for the next launch. */
        if (id == 0)
            part_reset(count + tile);
    }

#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
        for (int j = 0; j < NI; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int t =
                    tok + wm * WM + i * 16 + (lane >> 2) + (e >> 1) * 8;
                const int r = row + wn * WN + j * 8 + (lane & 3) * 2 + (e & 1);
                if (t < n_tok && r < rows) {
                    __global float *to = y + (ulong)t * (ulong)y_stride + r;
                    float v = acc[i][j][e];
                    if (flags & FLAG_BIAS)
                        v += bias[r];
                    *to = flags & FLAG_ACCUMULATE ? *to + v : v;
                }
            }
}

#endif
