/* gemm_wgmma.cl: y = x W^T (+ bias) (+ y) for many tokens, in halves with sums
 * in floats: 128 rows of weights (gemm_rows.clh) are one side of the product,
 * BN tokens the other, so that few tokens cost no more than reading the
 * weights. Needs common.clh, gemm_part.clh, wgmma.clh, gemm_rows.clh,
 * gemm_x.clh; with WGMMA_QKV kv_layout.clh and kv.clh, with WGMMA_GATE_UP
 * act.clh.
 *
 * A group has two warp groups that multiply, 64 rows each, behind one that
 * feeds them through a ring of stages. Tiles below `full` are taken whole, in
 * turn; what is left is cut into equal spans of column steps, one per group, so
 * that no group idles: parts of a tile go to `part`, and the last to arrive
 * adds them in the order of the groups. Nobody waits for another group.
 *
 * -D LINEAR_WGMMA, BN tokens of a tile (8 to 256), KS columns of a step (64,
 * 128; divides the columns), STAGES of the ring, how x comes (gemm_x.clh), what
 * gemm_rows.clh wants, EMULATED for any device: the same tiles, fragments,
 * spans and sums, without the ring. More than one weight, all of one type:
 * - WGMMA_PARTS: up to three, as one list of row tiles;
 * - WGMMA_QKV: three, then rope_append of neighbouring pairs;
 * - WGMMA_GATE_UP: two of equal shape, whose rows meet in one tile of 64 each,
 *   then act_mul. */

#ifdef LINEAR_WGMMA

#define STAGE_BYTES (A_BYTES + B_STAGE)
/* Tile rows that are walked together, for the sake of the last cache. */
#define RASTER 16

#ifdef EMULATED
#define ITEMS 256
#else
#define ITEMS 384
#endif

/* Arrivals that empty a stage. */
#ifdef PACK_TILE16
#define EATERS 2
#else
#define EATERS 8
#endif

/* Parts of a tile that are read at once, where it was cut: as many as registers
 * are left for. */
#if BN >= 128
#define AHEAD 1
#elif BN >= 16
#define AHEAD (128 / BN)
#else
#define AHEAD 8
#endif

/* What group `g` has left of the tile: its first steps are the last of their
 * group. */
#define PART_OF(g)                                                             \
    (part + (ulong)(2 * (g) + ((g)*span <= nth * steps)) * (BM * BN) +         \
     half_of * (BM * BN / 2) + t * 4)

/* Row tiles of the second weight begin at first1, of the third at first2. */
#if defined(WGMMA_PARTS) || defined(WGMMA_QKV)
#define OF(tile, a, b, c) ((tile) < first1 ? (a) : (tile) < first2 ? (b) : (c))
#else
#define OF(tile, a, b, c) (a)
#endif
#define W_OF(tile)    OF(tile, w, w1, w2)
#define ROWS_OF(tile) OF(tile, rows, rows1, rows2)
/* The tile's number among those of its part. */
#define TILE_OF(tile) ((tile)-OF(tile, 0, first1, first2))

#if defined(WGMMA_PARTS)
#define ENTRY norm_linear_wgmma
#elif defined(WGMMA_QKV)
#define ENTRY qkv_wgmma
#elif defined(WGMMA_GATE_UP)
#define ENTRY gate_up_wgmma
#else
#define ENTRY linear_wgmma
#endif

/* What is computed for one token comes behind what was for another: the sums
 * leave no registers for several at once. */
#ifdef EMULATED
#define IN_TURN()
#else
#define IN_TURN() asm volatile("" ::: "memory")
#endif

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

#ifdef EMULATED
#define HALF_SYNC() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#else
/* The 128 items of one warp group. */
#define HALF_SYNC()                                                            \
    asm volatile("bar.sync %0, 128;" ::"r"(1 + half_of) : "memory")
#endif

/* Whose arrivals are counted together: each half's own. Where neighbours'
 * numbers are asked for through barriers, both go on as one. */
#if defined(EMULATED) && defined(WGMMA_QKV)
#define SHARE 0
#else
#define SHARE half_of
#endif

#ifdef WGMMA_QKV
/* The item's number i of the row beside its own, which the item four further or
 * nearer has as `v`. */
#ifdef EMULATED
#define BESIDE(v, i) tmp[(id ^ 4) * (BN / 2) + (i)]
#else
#define BESIDE(v, i) beside(v)
static inline float beside(float v)
{
    float other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, 4, 31, 0xffffffff;"
                 : "=f"(other)
                 : "f"(v)
                 : "memory");
    return other;
}
#endif

#if ROT > 0
/* Element d of a head, turned with the one beside it. */
static inline float rotated(float v, float other, __global const float *turn,
                            uint d)
{
    if (d >= ROT)
        return v;
    const float c = turn[d & ~1u], s = turn[d | 1u];
    return d & 1 ? v * c + other * s : v * c - other * s;
}
#endif
#endif

/* ---- the product ----------------------------------------------------------
 */

/* y is q of WGMMA_QKV; rows1 those of k and of v. */
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void ENTRY(
    CVIEW(uchar, w), CVIEW(float, x), VIEW(float, y), VIEW(float, part),
    VIEW(int, count), const int rows, const int cols, const int n_tok,
    const int x_stride, const int y_stride, const int flags, const int full,
    const int span
#ifdef X_HELD
    ,
    CVIEW(float, norm), const float eps
#endif
#if defined(X_HELD) && defined(WGMMA_PARTS)
    ,
    CVIEW(int, idx), const int gather
#endif
#ifndef WGMMA_GATE_UP
    ,
    CVIEW(float, bias)
#endif
#if defined(WGMMA_PARTS) || defined(WGMMA_QKV) || defined(WGMMA_GATE_UP)
        ,
    CVIEW(uchar, w1)
#endif
#if defined(WGMMA_PARTS) || defined(WGMMA_QKV)
        ,
    CVIEW(uchar, w2), CVIEW(float, bias1), CVIEW(float, bias2), const int rows1
#endif
#ifdef WGMMA_PARTS
    ,
    VIEW(float, y1), VIEW(float, y2), const int rows2, const int y_stride1,
    const int y_stride2
#endif
#ifdef WGMMA_QKV
    ,
    CVIEW(int, slot), const int n_slots,
#if ROT > 0
    CVIEW(int, pos), CVIEW(float, table), const int n_pos,
#endif
    KV_PLANE(kp), KV_PLANE(vp)
#endif
)
{
    CUSE(uchar, w);
    CUSE(float, x);
    USE(float, y);
    USE(float, part);
    USE(int, count);
#ifdef X_HELD
    CUSE(float, norm);
#endif
#if defined(X_HELD) && defined(WGMMA_PARTS)
    CUSE(int, idx);
#endif
#ifndef WGMMA_GATE_UP
    CUSE(float, bias);
#endif
#if defined(WGMMA_PARTS) || defined(WGMMA_QKV) || defined(WGMMA_GATE_UP)
    CUSE(uchar, w1);
#endif
#if defined(WGMMA_PARTS) || defined(WGMMA_QKV)
    CUSE(uchar, w2);
    CUSE(float, bias1);
    CUSE(float, bias2);
#endif
#ifdef WGMMA_PARTS
    USE(float, y1);
    USE(float, y2);
#endif
#ifdef WGMMA_QKV
    CUSE(int, slot);
#if ROT > 0
    CUSE(int, pos);
    CUSE(float, table);
#endif
    const int rows2 = rows1;
#endif
#if defined(WGMMA_PARTS) || defined(WGMMA_QKV)
    const int first1 = (rows + BM - 1) / BM;
    const int first2 = first1 + (rows1 + BM - 1) / BM;
    const int tiles_r = first2 + (rows2 + BM - 1) / BM;
#elif defined(WGMMA_GATE_UP)
    const int tiles_r = (rows + BM / 2 - 1) / (BM / 2);
#else
    const int tiles_r = (rows + BM - 1) / BM;
#endif
    __local __attribute__((aligned(1024))) uchar ring[STAGES * STAGE_BYTES];
    __local int last[2];
#ifdef X_HELD
    __local __attribute__((aligned(1024))) uchar held[HELD_BYTES];
#endif
#if defined(EMULATED) && defined(WGMMA_QKV)
    __local float tmp[ITEMS * BN / 2];
#elif defined(EMULATED) && defined(X_HELD)
    __local float tmp[ITEMS];
#elif defined(X_HELD)
    __local float *tmp = 0;
#endif
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
#ifdef WGMMA_GATE_UP
                __global const uchar *from =
                    pairs_from(w, w1, at.x, rows, cols, tid);
#else
                __global const uchar *wt = W_OF(at.x);
                const int tile = TILE_OF(at.x);
#endif
                for (int k = now.k0; ok && k < now.k1; k++, it++) {
                    const int s = it % STAGES;
                    const uint to = base + s * STAGE_BYTES;
                    const uint bar = is_full + s * 8;
                    ok = warp_all(
                        mbar_wait(is_empty + s * 8, ((it / STAGES) & 1) ^ 1u));
                    if (!ok)
                        break;
                    if (tid == 0) {
#ifdef WGMMA_GATE_UP
                        mbar_expect(bar,
                                    pairs_fetch_bytes(at.x, rows) + B_COPIED);
#elif defined(PACK_TILE16)
                        mbar_expect(bar, A_STEP + B_COPIED);
                        bulk_copy(to, wt + ((ulong)tile * steps + k) * A_STEP,
                                  A_STEP, bar);
#else
                        mbar_expect(bar, rows_fetch_bytes(tile, ROWS_OF(at.x)) +
                                             B_COPIED);
#endif
#if B_COPIED > 0
                        bulk_copy(to + A_BYTES,
                                  (__global const uchar *)x +
                                      ((ulong)at.y * steps + k) * B_BYTES,
                                  B_BYTES, bar);
#endif
                    }
#ifdef WGMMA_GATE_UP
                    warp_sync();
                    pairs_fetch(to, from, k, bar, tid);
#elif !defined(PACK_TILE16)
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
                            X_WRITE(to, c, v[i]);
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
#ifdef X_HELD
    const bool words = (flags & FLAG_WORDS) != 0;
    for (int r = id >> 5; r < BN; r += 8) {
        const bool real = r < n_tok;
        int from = real ? r : 0;
#ifdef WGMMA_PARTS
        if (gather)
            from = idx[from];
#endif
        x_hold_row(held, r, real, x + (ulong)from * (ulong)x_stride, norm, eps,
                   words, tmp, id);
    }
#ifdef EMULATED
    barrier(CLK_LOCAL_MEM_FENCE);
#else
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("bar.sync 3, 256;" ::: "memory");
    const uint held_at = local_addr(held);
#endif
#endif
    while (walk_next(&todo, steps, full, &now)) {
        const int2 at = tile_place(now.tile, tiles_r, tiles_t);
        float acc[BN / 2];
#ifdef EMULATED
        for (int i = 0; i < BN / 2; i++)
            acc[i] = 0.0f;
        for (int k = now.k0; k < now.k1; k++) {
#ifdef WGMMA_GATE_UP
            pairs_copy(ring, w, w1, at.x, k, rows, cols, id, ITEMS);
#else
            rows_copy(ring, W_OF(at.x), TILE_OF(at.x), k, ROWS_OF(at.x), cols,
                      id, ITEMS);
#endif
#ifdef X_HELD
            __local const uchar *b = held + k * B_BYTES;
#else
            __local const uchar *b = ring + A_BYTES;
#endif
#ifdef X_F32
            for (int c = id; c < PIECES; c += ITEMS)
                X_WRITE(ring + A_BYTES, c, x_read(X_FROM(c, k), false));
#elif !defined(X_HELD)
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
                            (__local const half *)(b + p / 64 * B_TILE +
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
#ifdef X_HELD
            const uint b = held_at + k * B_BYTES;
#else
            const uint b = base + s * STAGE_BYTES + A_BYTES;
#endif
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
            if (id == SHARE * 128)
                last[SHARE] = part_arrive(count + nth * 2 + SHARE);
            HALF_SYNC();
            if (last[SHARE] != final - first)
                continue;
            PART_FENCE();
#pragma unroll
            for (int i = 0; i < BN / 2; i++)
                acc[i] = 0.0f;
            /* Reads of several parts on their way at once, each a trip through
             * the last cache; sums stay in the order of the groups. */
            for (int g = first; g <= final; g += AHEAD) {
#if AHEAD > 1
                float4 v[AHEAD][BN / 8];
#pragma unroll
                for (int a = 0; a < AHEAD; a++) {
                    p = PART_OF(min(g + a, final));
#pragma unroll
                    for (int j = 0; j < BN / 8; j++)
                        v[a][j] = part_read4(p + j * 512);
                }
#else
                p = PART_OF(g);
#endif
#pragma unroll
                for (int a = 0; a < AHEAD; a++) {
#pragma unroll
                    for (int j = 0; j < BN / 8; j++) {
#if AHEAD > 1
                        const float4 u =
                            g + a <= final ? v[a][j] : (float4)(0.0f);
#else
                        const float4 u = part_read4(p + j * 512);
#endif
                        acc[j * 4] += u.x;
                        acc[j * 4 + 1] += u.y;
                        acc[j * 4 + 2] += u.z;
                        acc[j * 4 + 3] += u.w;
                    }
                }
            }
            /* As it was found, for the next launch. */
            if (id == SHARE * 128)
                part_reset(count + nth * 2 + SHARE);
        }

#ifdef WGMMA_GATE_UP
        /* Rows of gate and of up, eight by eight: an item has both of one. */
        const int row = at.x * (BM / 2) + half_of * 32 + warp * 8 + (lane >> 2);
        const int tok = at.y * BN + (lane & 3) * 2;
        const int left = row < rows ? n_tok - tok : 0;
        __global float *out = y + (ulong)tok * (ulong)y_stride + row;
#pragma unroll
        for (int j = 0; j < BN / 4; j++) {
            const int i = (j >> 1) * 4 + (j & 1);
            const int n = (j >> 1) * 8 + (j & 1);
            if (n < left)
                out[(ulong)n * (ulong)y_stride] = act_of(acc[i]) * acc[i + 2];
            IN_TURN();
        }
#else
        const int row =
            TILE_OF(at.x) * BM + half_of * 64 + warp * 16 + (lane >> 2);
        const int tok = at.y * BN + (lane & 3) * 2;
        const int n_rows = ROWS_OF(at.x);
        float b0 = 0.0f, b1 = 0.0f;
        if (flags & OF(at.x, FLAG_BIAS, FLAG_BIAS_1, FLAG_BIAS_2)) {
            __global const float *b = OF(at.x, bias, bias1, bias2);
            b0 = b[min(row, n_rows - 1)];
            b1 = b[min(row + 8, n_rows - 1)];
        }
#ifdef WGMMA_QKV
        const int what = OF(at.x, 0, 1, 2);
        const uint head[2] = {(uint)row / HD, (uint)(row + 8) / HD};
        const uint d[2] = {row - head[0] * HD, row + 8 - head[1] * HD};
#pragma unroll
        for (int i = 0; i < BN / 2; i++)
            acc[i] += i & 2 ? b1 : b0;
#ifdef EMULATED
        for (int i = 0; i < BN / 2; i++)
            tmp[id * (BN / 2) + i] = acc[i];
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
#if ROT > 0
        if (what < 2) {
#pragma unroll
            for (int i = 0; i < BN / 2; i++) {
                const int n = tok + (i >> 2) * 8 + (i & 1);
                const int at_pos = clamp(pos[min(n, n_tok - 1)], 0, n_pos - 1);
                acc[i] = rotated(acc[i], BESIDE(acc[i], i),
                                 table + (ulong)at_pos * ROT, d[i >> 1 & 1]);
            }
        }
#endif
        if (what == 0) {
            __global float *out = y + (ulong)tok * (ulong)y_stride + row;
#pragma unroll
            for (int i = 0; i < BN / 2; i++) {
                const int n = (i >> 2) * 8 + (i & 1), r = (i & 2) << 2;
                if (tok + n < n_tok && row + r < n_rows)
                    out[(ulong)n * (ulong)y_stride + r] = acc[i];
            }
        } else {
            /* Places are sums: what the row makes of it, what the slot does. */
            const int shift = what == 1 ? kp_shift : vp_shift;
            ulong of_row[2];
            for (int h = 0; h < 2; h++)
                of_row[h] = kv_tile_at(0, head[h], shift) +
                            (what == 1 ? kv_k_at(0, d[h]) : kv_v_at(0, d[h]));
#pragma unroll
            for (int j = 0; j < BN / 4; j++) {
                const int i = (j >> 1) * 4 + (j & 1);
                const int n = tok + (j >> 1) * 8 + (j & 1);
                const int to = n < n_tok ? slot[n] : -1;
                if (to >= 0 && to < n_slots) {
                    const uint blk = (uint)to / BS, in = (uint)to - blk * BS;
                    __global KV_ELEM *p =
                        what == 1 ? KV_SEG(kp, blk) : KV_SEG(vp, blk);
                    p += kv_tile_at(blk, 0, shift) +
                         (what == 1 ? kv_k_at(in, 0) : kv_v_at(in, 0));
                    if (row < n_rows)
                        KV_STORE(acc[i], p, of_row[0]);
                    if (row + 8 < n_rows)
                        KV_STORE(acc[i + 2], p, of_row[1]);
                }
            }
        }
#ifdef EMULATED
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
#else
        const int stride = OF(at.x, y_stride, y_stride1, y_stride2);
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
#endif
#endif
    }
}

#endif
