/* attn_mma.cl: attention of many new tokens of a sequence at once, with matrix
 * units. A work-group has BM rows, a row being a (token, query head) of one KV
 * head, and walks stages of NK keys; each warp has MT times 16 rows, whose
 * queries, logits and results stay in registers. K and V come by bulk copies,
 * STAGES ahead; warp 0 orders a stage's next copy when all warps are through
 * with it. Layout (8, 1) of K and V, f16; HD and BS multiples of 16, NK a
 * multiple of BS. Besides KV's, G and SOFTCAP, the host passes WARPS, MT, NK,
 * STAGES and HQ, the heads that share a work-group. */

#ifdef STAGES

#define BM      (WARPS * MT * 16)
#define TILE    (BS * HD * 2) /* bytes */
#define N_TILES (NK / BS)     /* of a stage */
#define STAGE   (2 * N_TILES * TILE)
#define K16     (HD / 16)
#define N16     (NK / 16)
#define PARTS   ((G + HQ - 1) / HQ) /* work-groups for a KV head's heads */

/* Where a stage has chunk c (8 dims) of token t; of sixteens of tokens the sum
 * of their places is the place of their sum. */
#define CHUNK_AT(t, c) ((t) / BS * TILE + ((c)*BS + (t) % BS) * 16)

#if WARP_EMULATED
/* The barriers of copies are not counted down by several work-items. */
#define IN_STEP() barrier(CLK_LOCAL_MEM_FENCE)
#else
#define IN_STEP()
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void attn_mma(
    CVIEW(float, q), const int q_stride, VIEW(float, out), const int out_stride,
    CVIEW(int, q_start), CVIEW(int, kv_len), CVIEW(int, table_start),
    CVIEW(int, tables), CVIEW(int, tiles), const int window, const float scale,
    const float softcap, KV_CPLANE(kp), KV_CPLANE(vp))
{
    CUSE(float, q);
    USE(float, out);
    CUSE(int, q_start);
    CUSE(int, kv_len);
    CUSE(int, table_start);
    CUSE(int, tables);
    CUSE(int, tiles);
    __local __attribute__((aligned(128))) uchar ring[STAGES * STAGE];
    __local ulong full[STAGES], empty[STAGES];
    const uint lid = (uint)get_local_id(0), warp = WARP;
    /* The last tokens of a sequence see most keys: begin with them. */
    const uint id = (uint)get_num_groups(0) - 1 - (uint)get_group_id(0);
    const uint kvh = id / PARTS % KVH, g0 = id % PARTS * HQ;
    __global const int *tile = tiles + (ulong)(id / (PARTS * KVH)) * 4;
    const int seq = tile[0], tok0 = tile[1], n_tok = tile[2];
    const int past = kv_len[seq] - q_start[seq + 1]; /* pos = past + tok */
    __global const int *table = tables + table_start[seq];
    const float by = q_scale(scale);

    /* Keys that some row sees; stages begin at multiples of NK. */
    const int first = first_visible(past + tok0, window) / NK * NK;
    const int end = past + tok0 + n_tok;
    const uint n_stages = (uint)(end - first + NK - 1) / NK;
    const uint blk0 = (uint)first / BS, blk_end = (uint)(end + BS - 1) / BS;

    ONE_LANE
    if (warp == 0) {
        for (uint s = 0; s < STAGES; s++) {
            bar_init(full + s, 1);
            bar_init(empty + s, WARPS);
        }
        WARP_FENCE();
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    uint ids[LANES]; /* warp 0: blocks of the stage that is ordered next */
#define LOOK_UP(stage)                                                         \
    EACH_LANE                                                                  \
    ids[ME] = (uint)                                                           \
        table[min(blk0 + (stage)*N_TILES + min((uint)LANE, (uint)N_TILES - 1), \
                  blk_end - 1)]
    /* Blocks past the end are left out. */
#define ORDER(stage)                                                           \
    do {                                                                       \
        const uint s_ = (stage) % STAGES, b_ = blk0 + (stage)*N_TILES;         \
        const uint n_ = min((uint)N_TILES, blk_end - b_);                      \
        __local uchar *to_ = ring + s_ * STAGE;                                \
        ONE_LANE bar_announce(full + s_, 2 * TILE * n_);                       \
        for (uint j_ = 0; j_ < n_; j_++) {                                     \
            const uint blk_ = warp_pick(ids, j_);                              \
            ONE_LANE                                                           \
            {                                                                  \
                bulk_copy(to_ + j_ * TILE, KV_CTILE(kp, blk_, kvh), TILE,      \
                          full + s_);                                          \
                bulk_copy(to_ + (N_TILES + j_) * TILE,                         \
                          KV_CTILE(vp, blk_, kvh), TILE, full + s_);           \
            }                                                                  \
        }                                                                      \
    } while (0)
    if (warp == 0) {
        for (uint s = 0; s < STAGES && s < n_stages; s++) {
            LOOK_UP(s);
            ORDER(s);
        }
        LOOK_UP(STAGES);
    }

    /* The warp's rows: positions, and the first and last of them all. */
    const uint row0 = warp * (MT * 16);
    const int last_t = n_tok - 1;
    const int pos_min = past + tok0 + min((int)(row0 / HQ), last_t);
    const int pos_max =
        past + tok0 + min((int)((row0 + MT * 16 - 1) / HQ), last_t);
    int pos[MT][2][LANES];
    uint qf[MT][K16][LANES][4];
    float o[MT][HD / 8][LANES][4];
    float top[MT][2][LANES], sum[MT][2][LANES];
    uint late = 0;
    UNROLL
    for (uint t = 0; t < MT; t++)
        EACH_LANE
        {
            UNROLL
            for (uint i = 0; i < 2; i++) {
                const uint r = row0 + t * 16 + i * 8 + LANE / 4;
                const uint tok = min(r / HQ, (uint)last_t);
                const uint g = min(g0 + r % HQ, (uint)G - 1);
                __global const float *row =
                    q + (ulong)(tok0 + (int)tok) * q_stride +
                    (kvh * G + g) * HD + 2 * (LANE % 4);
                pos[t][i][ME] = past + tok0 + (int)tok;
                top[t][i][ME] = NO_MAX;
                sum[t][i][ME] = 0;
                UNROLL
                for (uint d = 0; d < K16; d++) {
                    const float x0 = row[d * 16], x1 = row[d * 16 + 1];
                    const float x2 = row[d * 16 + 8], x3 = row[d * 16 + 9];
                    qf[t][d][ME][i] = pack2_sat(x0 * by, x1 * by);
                    qf[t][d][ME][i + 2] = pack2_sat(x2 * by, x3 * by);
                }
            }
            UNROLL
            for (uint d = 0; d < HD / 8; d++)
                UNROLL
            for (uint i = 0; i < 4; i++)
                o[t][d][ME][i] = 0;
        }

    for (uint n = 0; n < n_stages; n++) {
        const uint s = n % STAGES;
        const int key0 = first + (int)(n * NK);
        __local uchar *kt = ring + s * STAGE, *vt = kt + N_TILES * TILE;
        IN_STEP();
        if (warp == 0 && n > 0 && n - 1 + STAGES < n_stages) {
#if !WARP_EMULATED
            late |= !bar_wait(empty + (n - 1) % STAGES, (n - 1) / STAGES & 1);
            WARP_SYNC();
#endif
            ORDER(n - 1 + STAGES);
            LOOK_UP(n + STAGES);
        }
        IN_STEP();
        late |= !bar_wait(full + s, n / STAGES & 1);
        WARP_SYNC();
        if (n + 1 == n_stages) {
            /* What lies past the end may hold anything, and 0 * NaN is NaN. */
            const uint left = (uint)(end - key0);
            for (uint j = lid; j < 2 * NK * HD / 8; j += WG) {
                const uint in = j % (BS * HD / 8), b = j / (BS * HD / 8);
                if (b % N_TILES * BS + in % BS >= left)
                    ((__local uint4 *)kt)[j] = (uint4)(0);
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        /* Stages that no row of the warp sees. */
        const bool seen =
            key0 <= pos_max && key0 + NK > first_visible(pos_min, window);
        if (seen) {
            float c[MT][NK / 8][LANES][4];
            uint b[LANES][4], k_at[LANES], v_at[LANES];
            EACH_LANE
            {
                const uint t = LANE % 8, i = LANE / 8;
                k_at[ME] = warp_at(kt, CHUNK_AT(i / 2 * 8 + t, i % 2));
                v_at[ME] = warp_at(vt, CHUNK_AT(i % 2 * 8 + t, i / 2));
            }
            UNROLL
            for (uint t = 0; t < MT; t++)
                UNROLL
            for (uint j = 0; j < NK / 8; j++)
                EACH_LANE
            c[t][j][ME][0] = c[t][j][ME][1] = c[t][j][ME][2] = c[t][j][ME][3] =
                0;
            UNROLL
            for (uint d = 0; d < K16; d++)
                UNROLL
            for (uint j = 0; j < N16; j++) {
                LDMATRIX(b, kt, k_at, CHUNK_AT(j * 16, d * 2));
                UNROLL
                for (uint t = 0; t < MT; t++) {
                    MMA(c[t][2 * j], qf[t][d], b, 0);
                    MMA(c[t][2 * j + 1], qf[t][d], b, 2);
                }
            }
            const bool edge = key0 + NK - 1 > pos_min ||
                              key0 < first_visible(pos_max, window);
            uint p[MT][N16][LANES][4], moved[LANES];
            float fall[MT][2][LANES];
            EACH_LANE
            moved[ME] = 0;
            UNROLL
            for (uint t = 0; t < MT; t++) {
                float m0[LANES], m1[LANES], x[LANES];
                EACH_LANE
                {
#if SOFTCAP
                    UNROLL
                    for (uint j = 0; j < NK / 8; j++)
                        UNROLL
                    for (uint i = 0; i < 4; i++)
                        c[t][j][ME][i] = cap_logit(c[t][j][ME][i], softcap);
#endif
                    if (edge) {
                        const int a0 = first_visible(pos[t][0][ME], window);
                        const int a1 = first_visible(pos[t][1][ME], window);
                        UNROLL
                        for (uint j = 0; j < NK / 8; j++)
                            UNROLL
                        for (uint i = 0; i < 4; i++) {
                            const int key =
                                key0 + (int)(j * 8 + 2 * (LANE % 4) + i % 2);
                            const bool on = key <= pos[t][i / 2][ME] &&
                                            key >= (i < 2 ? a0 : a1);
                            c[t][j][ME][i] = on ? c[t][j][ME][i] : NO_MAX;
                        }
                    }
                    m0[ME] = top[t][0][ME];
                    m1[ME] = top[t][1][ME];
                    UNROLL
                    for (uint j = 0; j < NK / 8; j++) {
                        m0[ME] =
                            fmax(m0[ME], fmax(c[t][j][ME][0], c[t][j][ME][1]));
                        m1[ME] =
                            fmax(m1[ME], fmax(c[t][j][ME][2], c[t][j][ME][3]));
                    }
                }
                UNROLL
                for (uint mask = 1; mask < 4; mask *= 2) {
                    warp_xor(x, m0, mask);
                    EACH_LANE
                    m0[ME] = fmax(m0[ME], x[ME]);
                    warp_xor(x, m1, mask);
                    EACH_LANE
                    m1[ME] = fmax(m1[ME], x[ME]);
                }
                EACH_LANE
                {
                    moved[ME] |=
                        m0[ME] > top[t][0][ME] || m1[ME] > top[t][1][ME];
                    fall[t][0][ME] = warp_exp2(top[t][0][ME] - m0[ME]);
                    fall[t][1][ME] = warp_exp2(top[t][1][ME] - m1[ME]);
                    top[t][0][ME] = m0[ME];
                    top[t][1][ME] = m1[ME];
                    /* A row that saw nothing yet: what is left out stands far
                     * below zero, and must not be measured by itself. */
                    const float z0 = m0[ME] <= -1e38f ? 0.0f : m0[ME];
                    const float z1 = m1[ME] <= -1e38f ? 0.0f : m1[ME];
                    float s0 = 0, s1 = 0;
                    UNROLL
                    for (uint j = 0; j < N16; j++) {
                        float e[2][4];
                        UNROLL
                        for (uint i = 0; i < 2; i++) {
                            const uint k = 2 * j + i;
                            e[i][0] = warp_exp2(c[t][k][ME][0] - z0);
                            e[i][1] = warp_exp2(c[t][k][ME][1] - z0);
                            e[i][2] = warp_exp2(c[t][k][ME][2] - z1);
                            e[i][3] = warp_exp2(c[t][k][ME][3] - z1);
                            s0 += e[i][0] + e[i][1];
                            s1 += e[i][2] + e[i][3];
                        }
                        p[t][j][ME][0] = pack2(e[0][0], e[0][1]);
                        p[t][j][ME][1] = pack2(e[0][2], e[0][3]);
                        p[t][j][ME][2] = pack2(e[1][0], e[1][1]);
                        p[t][j][ME][3] = pack2(e[1][2], e[1][3]);
                    }
                    sum[t][0][ME] = FMA(sum[t][0][ME], fall[t][0][ME], s0);
                    sum[t][1][ME] = FMA(sum[t][1][ME], fall[t][1][ME], s1);
                }
            }
            if (warp_any(moved)) {
                UNROLL
                for (uint t = 0; t < MT; t++)
                    UNROLL
                for (uint d = 0; d < HD / 8; d++)
                    EACH_LANE
                    {
                        o[t][d][ME][0] *= fall[t][0][ME];
                        o[t][d][ME][1] *= fall[t][0][ME];
                        o[t][d][ME][2] *= fall[t][1][ME];
                        o[t][d][ME][3] *= fall[t][1][ME];
                    }
            }
            UNROLL
            for (uint j = 0; j < N16; j++)
                UNROLL
            for (uint d = 0; d < K16; d++) {
                LDMATRIX_T(b, vt, v_at, CHUNK_AT(j * 16, d * 2));
                UNROLL
                for (uint t = 0; t < MT; t++) {
                    MMA(o[t][2 * d], p[t][j], b, 0);
                    MMA(o[t][2 * d + 1], p[t][j], b, 2);
                }
            }
        }
#if !WARP_EMULATED
        WARP_SYNC(); /* every lane has read the stage */
        ONE_LANE bar_arrive(empty + s);
#endif
    }

    UNROLL
    for (uint t = 0; t < MT; t++) {
        float x[LANES];
        UNROLL
        for (uint i = 0; i < 2; i++) {
            UNROLL
            for (uint mask = 1; mask < 4; mask *= 2) {
                warp_xor(x, sum[t][i], mask);
                EACH_LANE
                sum[t][i][ME] += x[ME];
            }
            EACH_LANE
            {
                const uint r = row0 + t * 16 + i * 8 + LANE / 4;
                const uint tok = r / HQ, g = g0 + r % HQ;
                const float total = late ? NAN : 1.0f / sum[t][i][ME];
                if (tok < (uint)n_tok && g < G && r < BM / HQ * HQ) {
                    __global float *to = out +
                                         (ulong)(tok0 + (int)tok) * out_stride +
                                         (kvh * G + g) * HD + 2 * (LANE % 4);
                    UNROLL
                    for (uint d = 0; d < HD / 8; d++) {
                        to[d * 8] = o[t][d][ME][2 * i] * total;
                        to[d * 8 + 1] = o[t][d][ME][2 * i + 1] * total;
                    }
                }
            }
        }
    }
}

#endif
