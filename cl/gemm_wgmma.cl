/* gemm_wgmma.cl: y = x W^T (+ bias) (+ y) for many tokens, in halves with sums
 * in floats: 128 rows of weights (gemm_rows.clh) are one side of the product,
 * BN tokens the other, so that few tokens cost no more than reading the
 * weights. Needs common.clh, gemm_part.clh, wgmma.clh and gemm_rows.clh.
 *
 * A group has two warp groups that multiply, 64 rows each, behind one that
 * feeds them through a ring of stages. Tiles below `full` are taken whole, in
 * turn; what is left is cut into equal spans of column steps, one per group, so
 * that no group idles: parts of a tile go to `part`, and the last to arrive
 * adds them in the order of the groups. Nobody waits for another group.
 *
 * -D LINEAR_WGMMA, BN tokens of a tile (8 to 256), KS columns of a step (64,
 * 128; divides the columns), STAGES of the ring, X_F32 where x comes as floats
 * (else packed by gemm_pack.cl), WGMMA_PARTS where up to three weights of one
 * type are multiplied with the same x, as one list of row tiles, what
 * gemm_rows.clh wants, EMULATED for any device: the same tiles, fragments,
 * spans and sums, without the ring. */

#ifdef LINEAR_WGMMA

/* Tokens of one 64-column tile, and of a step. */
#define B_TILE      (BN * 128)
#define B_BYTES     (B_TILE * NS)
#define STAGE_BYTES (A_BYTES + B_BYTES)
/* Tile rows that are walked together, for the sake of the last cache. */
#define RASTER 16

#ifdef EMULATED
#define ITEMS 256
#else
#define ITEMS 384
#endif

/* Arrivals that fill a stage: the copies, and the warps that convert x; and
 * those that empty it. */
#ifdef X_F32
#define FEEDERS  4
#define B_COPIED 0
#else
#define FEEDERS  1
#define B_COPIED B_BYTES
#endif
#ifdef PACK_TILE16
#define EATERS 2
#else
#define EATERS 8
#endif

/* Each part's own: row tiles of the second begin at first1, of the third at
 * first2. */
#ifdef WGMMA_PARTS
#define ENTRY             norm_linear_wgmma
#define OF(tile, a, b, c) ((tile) < first1 ? (a) : (tile) < first2 ? (b) : (c))
#else
#define ENTRY             linear_wgmma
#define OF(tile, a, b, c) (a)
#endif
#define W_OF(tile)    OF(tile, w, w1, w2)
#define ROWS_OF(tile) OF(tile, rows, rows1, rows2)
/* The tile's number among those of its part. */
#define TILE_OF(tile) ((tile)-OF(tile, 0, first1, first2))

/* ---- which work ---------------------------------------------------------- */

typedef struct walk {
    int at, end; /* column steps of the cut part */
    int tile;    /* next whole one */
} walk;

/* Column steps k0 .. k1 - 1 of a tile. */
typedef struct part_of {
    int tile, k0, k1;
} part_of;

static inline bool walk_next(walk *w, int steps, int full, part_of *out)
{
    if (w->at < w->end) {
        const int t = w->at / steps;
        out->tile = full + t;
        out->k0 = w->at - t * steps;
        out->k1 = min(steps, out->k0 + w->end - w->at);
        w->at += out->k1 - out->k0;
        return true;
    }
    if (w->tile >= full)
        return false;
    out->tile = w->tile;
    out->k0 = 0;
    out->k1 = steps;
    w->tile += (int)get_num_groups(0);
    return true;
}

/* (row tile, token tile) */
static inline int2 tile_place(int id, int tiles_r, int tiles_t)
{
    const int per = RASTER * tiles_t, first = id / per * RASTER;
    const int height = min(tiles_r - first, RASTER);
    return (int2)(first + id % per % height, id % per / height);
}

/* ---- x as floats --------------------------------------------------------- */

#ifdef X_F32

/* Pieces of 16 columns in a step of BN tokens. */
#define PIECES (BN * KS / 16)

static inline float16 x_read(__global const float *p, bool words)
{
    if (words) {
        __global const float4 *v = (__global const float4 *)p;
        return (float16)(v[0], v[1], v[2], v[3]);
    }
    return vload16(0, p);
}

static inline void x_write8(__local uchar *to, float8 v)
{
#ifdef EMULATED
    v = v > 65504.0f ? (float8)(65504.0f) : v;
    v = v < -65504.0f ? (float8)(-65504.0f) : v;
    vstore_half8(v, 0, (__local half *)to);
#else
    uint4 h;
    h.x = pack_halves(v.s0, v.s1);
    h.y = pack_halves(v.s2, v.s3);
    h.z = pack_halves(v.s4, v.s5);
    h.w = pack_halves(v.s6, v.s7);
    *(__local uint4 *)to = h;
#endif
}

/* Piece c of a step. */
static inline void x_write(__local uchar *b, int c, float16 v)
{
    const int r = c / NS / 4, j = c % (NS * 4);
    __local uchar *to = b + j / 4 * B_TILE;
#ifdef X_EVEN_ODD
    x_write8(to + TILE_AT(r, j % 4 * 2), v.even);
    x_write8(to + TILE_AT(r, j % 4 * 2 + 1), v.odd);
#else
    x_write8(to + TILE_AT(r, j % 4 * 2), v.lo);
    x_write8(to + TILE_AT(r, j % 4 * 2 + 1), v.hi);
#endif
}

/* Where it is read from; past the last token the last one is read again. */
#define X_FROM(c, k)                                                           \
    (x + (ulong)min(at.y * BN + (c) / NS / 4, n_tok - 1) * (ulong)x_stride +   \
     (k)*KS + (c) % (NS * 4) * 16)

#endif

#ifdef EMULATED
#define HALF_SYNC() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#else
/* The 128 items of one warp group. */
#define HALF_SYNC()                                                            \
    asm volatile("bar.sync %0, 128;" ::"r"(1 + half_of) : "memory")
#endif

/* ---- the product ----------------------------------------------------------
 */

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void ENTRY(
    CVIEW(uchar, w), CVIEW(float, x), CVIEW(float, bias), VIEW(float, y),
    VIEW(float, part), VIEW(int, count), const int rows, const int cols,
    const int n_tok, const int x_stride, const int y_stride, const int flags,
    const int full, const int span
#ifdef WGMMA_PARTS
    ,
    CVIEW(uchar, w1), CVIEW(uchar, w2), CVIEW(float, bias1),
    CVIEW(float, bias2), VIEW(float, y1), VIEW(float, y2), const int rows1,
    const int rows2, const int y_stride1, const int y_stride2
#endif
)
{
    CUSE(uchar, w);
    CUSE(float, x);
    CUSE(float, bias);
    USE(float, y);
    USE(float, part);
    USE(int, count);
#ifdef WGMMA_PARTS
    CUSE(uchar, w1);
    CUSE(uchar, w2);
    CUSE(float, bias1);
    CUSE(float, bias2);
    USE(float, y1);
    USE(float, y2);
    const int first1 = (rows + BM - 1) / BM;
    const int first2 = first1 + (rows1 + BM - 1) / BM;
    const int tiles_r = first2 + (rows2 + BM - 1) / BM;
#else
    const int tiles_r = (rows + BM - 1) / BM;
#endif
    __local __attribute__((aligned(1024))) uchar ring[STAGES * STAGE_BYTES];
    __local int last[2];
    const int group = (int)get_group_id(0);
    const int steps = cols / KS;
    const int tiles_t = (n_tok + BN - 1) / BN;
    const int cut = (tiles_r * tiles_t - full) * steps;
    walk todo;
    part_of now;
    todo.at = min(group * span, cut);
    todo.end = min(todo.at + span, cut);
    todo.tile = group;

#ifdef EMULATED
    const int id = (int)get_local_id(0);
#else
    __local ulong bars[2 * STAGES];
    const uint base = local_addr(ring);
    const uint is_full = local_addr(bars), is_empty = is_full + STAGES * 8;
    const int tid = (int)get_local_id(0);
    uint ok = 1;
    int it = 0;
    if (tid == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbar_init(is_full + s * 8, FEEDERS);
            mbar_init(is_empty + s * 8, EATERS);
        }
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (tid < 128) {
#if BN >= 192
        /* 128 * 40 + 256 * 232 registers of 65,536: asking for more waits for
         * ever. */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
        if (tid < 32) {
            /* The first warp starts copies. */
            while (ok && walk_next(&todo, steps, full, &now)) {
                const int2 at = tile_place(now.tile, tiles_r, tiles_t);
                __global const uchar *wt = W_OF(at.x);
                const int tile = TILE_OF(at.x);
                for (int k = now.k0; ok && k < now.k1; k++, it++) {
                    const int s = it % STAGES;
                    const uint to = base + s * STAGE_BYTES;
                    const uint bar = is_full + s * 8;
                    ok = warp_all(
                        mbar_wait(is_empty + s * 8, ((it / STAGES) & 1) ^ 1u));
                    if (!ok)
                        break;
                    if (tid == 0) {
#ifdef PACK_TILE16
                        mbar_expect(bar, A_STEP + B_COPIED);
                        bulk_copy(to, wt + ((ulong)tile * steps + k) * A_STEP,
                                  A_STEP, bar);
#else
                        mbar_expect(bar, rows_fetch_bytes(tile, ROWS_OF(at.x)) +
                                             B_COPIED);
#endif
#ifndef X_F32
                        bulk_copy(to + A_BYTES,
                                  (__global const uchar *)x +
                                      ((ulong)at.y * steps + k) * B_BYTES,
                                  B_BYTES, bar);
#endif
                    }
#ifndef PACK_TILE16
                    warp_sync();
                    rows_fetch(to, wt, tile, k, ROWS_OF(at.x), cols, bar, tid);
#endif
                }
            }
        }
#ifdef X_F32
#define MINE ((PIECES + 95) / 96)
        else {
            /* The other three turn x into halves, one step read ahead. */
            const bool words = (flags & FLAG_WORDS) != 0;
            const int c0 = tid - 32;
            while (walk_next(&todo, steps, full, &now)) {
                const int2 at = tile_place(now.tile, tiles_r, tiles_t);
                float16 v[MINE];
#pragma unroll
                for (int i = 0; i < MINE; i++)
                    if (c0 + i * 96 < PIECES)
                        v[i] = x_read(X_FROM(c0 + i * 96, now.k0), words);
                for (int k = now.k0; k < now.k1; k++, it++) {
                    const int s = it % STAGES;
                    __local uchar *to = ring + s * STAGE_BYTES + A_BYTES;
                    if (ok)
                        ok = mbar_wait(is_empty + s * 8,
                                       ((it / STAGES) & 1) ^ 1u);
#pragma unroll
                    for (int i = 0; i < MINE; i++) {
                        const int c = c0 + i * 96;
                        if (c < PIECES) {
                            x_write(to, c, v[i]);
                            if (k + 1 < now.k1)
                                v[i] = x_read(X_FROM(c, k + 1), words);
                        }
                    }
                    asm volatile("fence.proxy.async;" ::: "memory");
                    warp_sync();
                    if ((tid & 31) == 0)
                        mbar_arrive(is_full + s * 8);
                }
            }
        }
#endif
        return;
    }
#if BN >= 192
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#endif
    const int id = tid - 128;
#endif

    const int half_of = id >> 7, t = id & 127;
    const int warp = t >> 5, lane = t & 31;
    while (walk_next(&todo, steps, full, &now)) {
        const int2 at = tile_place(now.tile, tiles_r, tiles_t);
        float acc[BN / 2];
#ifdef EMULATED
        for (int i = 0; i < BN / 2; i++)
            acc[i] = 0.0f;
        for (int k = now.k0; k < now.k1; k++) {
            rows_copy(ring, W_OF(at.x), TILE_OF(at.x), k, ROWS_OF(at.x), cols,
                      id, ITEMS);
#ifdef X_F32
            for (int c = id; c < PIECES; c += ITEMS)
                x_write(ring + A_BYTES, c, x_read(X_FROM(c, k), false));
#else
            tile_copy(ring + A_BYTES,
                      (__global const uchar *)x +
                          ((ulong)at.y * steps + k) * B_BYTES,
                      B_BYTES, id, ITEMS);
#endif
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int i = 0; i < BN / 2; i++) {
                const int r =
                    half_of * 64 + warp * 16 + (lane >> 2) + ((i & 2) << 2);
                const int n = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
                for (int p = 0; p < KS; p++)
                    acc[i] +=
                        rows_value(ring, r, p) *
                        vload_half(
                            p % 8,
                            (__local const half *)(ring + A_BYTES +
                                                   p / 64 * B_TILE +
                                                   TILE_AT(n, p % 64 / 8)));
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
#else
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            acc[i] = 0.0f;
        for (int k = now.k0; k < now.k1; k++, it++) {
            const int s = it % STAGES;
            const uint b = base + s * STAGE_BYTES + A_BYTES;
            if (ok)
                ok = mbar_wait(is_full + s * 8, (it / STAGES) & 1);
#ifdef PACK_TILE16
            const uint a = base + s * STAGE_BYTES + half_of * (64 * 128);
            WGMMA_FENCE();
#pragma unroll
            for (int q = 0; q < 4 * NS; q++)
                WGMMA(tile_desc(a + q / 4 * (BM * 128) + q % 4 * 32),
                      tile_desc(b + q / 4 * B_TILE + q % 4 * 32));
            WGMMA_COMMIT();
            /* The step before is done: its stage is free. */
            WGMMA_WAIT(1);
            if (k > now.k0 && t == 0)
                mbar_arrive(is_empty + (it - 1) % STAGES * 8);
        }
        WGMMA_WAIT(0);
        if (t == 0)
            mbar_arrive(is_empty + (it - 1) % STAGES * 8);
#else
#pragma unroll
            for (int sub = 0; sub < NS; sub++) {
                uint a[4][4];
                rows_hold(a, ring + s * STAGE_BYTES, half_of * 4 + warp, sub,
                          lane);
                WGMMA_FENCE();
#pragma unroll
                for (int q = 0; q < 4; q++)
                    WGMMA_HELD(a[q], tile_desc(b + sub * B_TILE + q * 32));
                WGMMA_COMMIT();
            }
            /* Registers that a product reads may not change before its end. The
             * other half multiplies meanwhile. */
            WGMMA_WAIT(0);
            warp_sync();
            if (lane == 0)
                mbar_arrive(is_empty + s * 8);
        }
#endif
        /* What was not waited for to the end is no number. */
        if (!ok) {
#pragma unroll
            for (int i = 0; i < BN / 2; i++)
                acc[i] = NAN;
        }
#endif

        if (now.k1 - now.k0 < steps) {
            const int nth = now.tile - full;
            const int first = nth * steps / span;
            const int final = (nth * steps + steps - 1) / span;
            const int mine = 2 * group + (now.k0 == 0);
            __global float *p = part + (ulong)mine * (BM * BN) +
                                half_of * (BM * BN / 2) + t * 4;
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
                part_write4(p + j * 512, acc[j * 4], acc[j * 4 + 1],
                            acc[j * 4 + 2], acc[j * 4 + 3]);
            PART_FENCE();
            HALF_SYNC();
            if (t == 0)
                last[half_of] = part_arrive(count + nth * 2 + half_of);
            HALF_SYNC();
            if (last[half_of] != final - first)
                continue;
            PART_FENCE();
#pragma unroll
            for (int i = 0; i < BN / 2; i++)
                acc[i] = 0.0f;
            for (int g = first; g <= final; g++) {
                /* The tile's first steps are the last of their group. */
                const int slot = 2 * g + (g * span <= nth * steps);
                p = part + (ulong)slot * (BM * BN) + half_of * (BM * BN / 2) +
                    t * 4;
#pragma unroll
                for (int j = 0; j < BN / 8; j++) {
                    const float4 v = part_read4(p + j * 512);
                    acc[j * 4] += v.x;
                    acc[j * 4 + 1] += v.y;
                    acc[j * 4 + 2] += v.z;
                    acc[j * 4 + 3] += v.w;
                }
            }
            /* As it was found, for the next launch. */
            if (t == 0)
                part_reset(count + nth * 2 + half_of);
        }

        const int row =
            TILE_OF(at.x) * BM + half_of * 64 + warp * 16 + (lane >> 2);
        const int tok = at.y * BN + (lane & 3) * 2;
        const int n_rows = ROWS_OF(at.x);
        const int stride = OF(at.x, y_stride, y_stride1, y_stride2);
        float b0 = 0.0f, b1 = 0.0f;
        if (flags & OF(at.x, FLAG_BIAS, FLAG_BIAS_1, FLAG_BIAS_2)) {
            __global const float *b = OF(at.x, bias, bias1, bias2);
            b0 = b[min(row, n_rows - 1)];
            b1 = b[min(row + 8, n_rows - 1)];
        }
        __global float *out =
            OF(at.x, y, y1, y2) + (ulong)tok * (ulong)stride + row;
#pragma unroll
        for (int i = 0; i < BN / 2; i++) {
            const int n = (i >> 2) * 8 + (i & 1), r = (i & 2) << 2;
            if (tok + n < n_tok && row + r < n_rows) {
                __global float *to = out + (ulong)n * (ulong)stride + r;
                const float v = acc[i] + (r ? b1 : b0);
                *to = flags & FLAG_ACCUMULATE ? *to + v : v;
            }
        }
    }
}

#endif
