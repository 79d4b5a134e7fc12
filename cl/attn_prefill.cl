/* attn_prefill.cl: attention of many new tokens of a sequence at once. Group
 * (tile, KV head, heads HT at a time) has BM rows, a row being
 * a (token, query head), and walks tiles of BN keys that lie in local memory,
 * with an online softmax per tile. Work-items stand LX wide and WG / LX high;
 * each has 4 rows, BN / LX keys of the logits and every LX-th group of 4 dims
 * of the result. Besides KV's, G and SOFTCAP, the host passes WG (LX to 128),
 * BN (16 or 32) and HT, the heads that share a work-group. HD is a multiple
 * of 4. */

#ifdef BN

#define LX       8
#define BM       (WG / LX * 4)
#define KPL      (BN / LX)
#define D4       (HD / 4)
#define D_ROUNDS ((D4 + LX - 1) / LX)

/* Four dims of token t from d on. */
static inline float4 load_key(__global const KV_ELEM *k, uint t, uint d)
{
#if YK == 1 && XK % 4 == 0
    return KV_LOADN(4, k, kv_k_at(t, d));
#else
    return (float4)(KV_LOAD(k, kv_k_at(t, d)), KV_LOAD(k, kv_k_at(t, d + 1)),
                    KV_LOAD(k, kv_k_at(t, d + 2)),
                    KV_LOAD(k, kv_k_at(t, d + 3)));
#endif
}

static inline float4 load_value(__global const KV_ELEM *v, uint t, uint d)
{
#if YV == 1 && XV % 4 == 0
    return KV_LOADN(4, v, kv_v_at(t, d));
#else
    return (float4)(KV_LOAD(v, kv_v_at(t, d)), KV_LOAD(v, kv_v_at(t, d + 1)),
                    KV_LOAD(v, kv_v_at(t, d + 2)),
                    KV_LOAD(v, kv_v_at(t, d + 3)));
#endif
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void attn_tile(
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
    __local float qs[HD * BM]; /* [dim][row] */
    __local float kv[HD * BN]; /* keys [dim][key], then values [key][dim] */
    __local float ps[BN * BM]; /* weights [key][row] */
    __local float edge[BM * LX];
    const uint lid = (uint)get_local_id(0);
    const uint row0 = lid / LX * 4, x = lid - lid / LX * LX;
    const uint id = (uint)get_group_id(0), parts = (G + HT - 1) / HT;
    const uint kvh = id / parts % KVH, g0 = id % parts * HT;
    __global const int *tile = tiles + (ulong)(id / (parts * KVH)) * 4;
    const int seq = tile[0], tok0 = tile[1], n_tok = tile[2];
    const int past = kv_len[seq] - q_start[seq + 1]; /* pos = past + tok */
    __global const int *table = tables + table_start[seq];
    const float by = q_scale(scale);

    for (uint i = lid; i < HD * BM; i += WG) {
        const uint r = i / HD, d = i - r * HD;
        const uint t = r / HT, g = g0 + r - t * HT;
        const bool on = t < (uint)n_tok && g < G;
        float value = 0;
        if (on)
            value =
                q[(ulong)(tok0 + (int)t) * q_stride + (kvh * G + g) * HD + d] *
                by;
        qs[d * BM + r] = value;
    }

    /* Keys that some row sees, and what the work-item's rows see of them. */
    const int first = first_visible(past + tok0, window);
    const int end = past + tok0 + n_tok;
    int row_first[4], row_end[4];
    float top[4], sum[4];
    float4 acc[4][D_ROUNDS];
#pragma unroll
    for (uint r = 0; r < 4; r++) {
        const int t = (int)((row0 + r) / HT);
        const int pos = past + tok0 + t;
        row_first[r] = first_visible(pos, window);
        row_end[r] = t < n_tok ? pos + 1 : 0;
        top[r] = NO_MAX;
        sum[r] = 0;
#pragma unroll
        for (uint i = 0; i < D_ROUNDS; i++)
            acc[r][i] = (float4)(0);
    }

    for (int base = first / BN * BN; base < end; base += BN) {
        barrier(CLK_LOCAL_MEM_FENCE); /* qs written, kv and ps free */
        for (uint i = lid; i < D4 * BN; i += WG) {
            const uint d4 = i / BN, j = i - d4 * BN, d = d4 * 4;
            const int key = base + (int)j;
            float4 k4 = (float4)(0);
            const uint at = (uint)key / BS;
            if (key >= first && key < end)
                k4 = load_key(KV_CTILE(kp, (uint)table[at], kvh),
                              token_in((uint)key, at), d);
            kv[d * BN + j] = k4.x;
            kv[(d + 1) * BN + j] = k4.y;
            kv[(d + 2) * BN + j] = k4.z;
            kv[(d + 3) * BN + j] = k4.w;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        float4 s[KPL]; /* of the four rows */
#pragma unroll
        for (uint c = 0; c < KPL; c++)
            s[c] = (float4)(0);
        for (uint d = 0; d < HD; d++) {
            const float4 q4 = vload4(0, qs + d * BM + row0);
#pragma unroll
            for (uint c = 0; c < KPL; c++)
                s[c] = FMA(q4, (float4)(kv[d * BN + x * KPL + c]), s[c]);
        }
        float w[4][KPL];
        bool on[4][KPL];
#pragma unroll
        for (uint c = 0; c < KPL; c++) {
            w[0][c] = s[c].x;
            w[1][c] = s[c].y;
            w[2][c] = s[c].z;
            w[3][c] = s[c].w;
        }
#pragma unroll
        for (uint r = 0; r < 4; r++) {
            float best = NO_MAX;
#pragma unroll
            for (uint c = 0; c < KPL; c++) {
                const int key = base + (int)(x * KPL + c);
                on[r][c] = key >= row_first[r] && key < row_end[r];
                w[r][c] = cap_logit(w[r][c], softcap);
                if (on[r][c])
                    best = fmax(best, w[r][c]);
            }
            edge[(row0 + r) * LX + x] = best;
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* keys are done with */
        for (uint i = lid; i < D4 * BN; i += WG) {
            const uint j = i / D4, d = (i - j * D4) * 4;
            const int key = base + (int)j;
            float4 v4 = (float4)(0);
            const uint at = (uint)key / BS;
            if (key >= first && key < end)
                v4 = load_value(KV_CTILE(vp, (uint)table[at], kvh),
                                token_in((uint)key, at), d);
            vstore4(v4, 0, kv + j * HD + d);
        }
#pragma unroll
        for (uint r = 0; r < 4; r++) {
            float new_top = top[r];
            for (uint i = 0; i < LX; i++)
                new_top = fmax(new_top, edge[(row0 + r) * LX + i]);
            const float fall = fall_of(top[r], new_top);
            top[r] = new_top;
            sum[r] *= fall;
#pragma unroll
            for (uint i = 0; i < D_ROUNDS; i++)
                acc[r][i] *= fall;
#pragma unroll
            for (uint c = 0; c < KPL; c++) {
                const float p = on[r][c] ? exp2(w[r][c] - new_top) : 0.0f;
                sum[r] += p;
                ps[(x * KPL + c) * BM + row0 + r] = p;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint j = 0; j < BN; j++) {
            const float4 p4 = vload4(0, ps + j * BM + row0);
#pragma unroll
            for (uint i = 0; i < D_ROUNDS; i++) {
                const uint d4 = x + i * LX;
                if (D4 % LX == 0 || d4 < D4) {
                    const float4 v4 = vload4(0, kv + j * HD + d4 * 4);
                    acc[0][i] = FMA((float4)(p4.x), v4, acc[0][i]);
                    acc[1][i] = FMA((float4)(p4.y), v4, acc[1][i]);
                    acc[2][i] = FMA((float4)(p4.z), v4, acc[2][i]);
                    acc[3][i] = FMA((float4)(p4.w), v4, acc[3][i]);
                }
            }
        }
    }

    barrier(CLK_LOCAL_MEM_FENCE); /* edge was read by all */
#pragma unroll
    for (uint r = 0; r < 4; r++)
        edge[(row0 + r) * LX + x] = sum[r];
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (uint r = 0; r < 4; r++) {
        const uint t = (row0 + r) / HT, g = g0 + row0 + r - t * HT;
        float total = 0;
        for (uint i = 0; i < LX; i++)
            total += edge[(row0 + r) * LX + i];
        if (t < (uint)n_tok && g < G) {
            __global float *o =
                out + (ulong)(tok0 + (int)t) * out_stride + (kvh * G + g) * HD;
#pragma unroll
            for (uint i = 0; i < D_ROUNDS; i++) {
                const uint d4 = x + i * LX;
                if (D4 % LX == 0 || d4 < D4)
                    vstore4(acc[r][i] / total, 0, o + d4 * 4);
            }
        }
    }
}

#endif
