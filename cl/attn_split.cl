/* attn_split.cl: attention from the host's work lists: attn_split gives each
 * entry's run of keys to a work-group per group of heads, attn_merge adds up
 * the partial results of tokens that were split. Besides KV's and G, SOFTCAP
 * and WG (a power of two, 1 included), the host passes GT (heads per
 * work-group) and CH (keys handled between two looks at the maximum). QK: a
 * work-item has a key. PV: a work-item has DV neighbouring dims of every
 * STREAMS-th key. In between, the weights lie in local memory. */

#ifdef GT

/* Dims of a work-item in PV: as many as lie together in the pool. */
#if YV == 1 && XV % 8 == 0
#define DV 8
#elif YV == 1 && XV % 4 == 0
#define DV 4
#else
#define DV 1
#endif
#define D_LANES (HD / DV)
#if WG >= D_LANES
#define STREAMS (WG / D_LANES)
#define ROUNDS  1
#else
#define STREAMS 1
#define ROUNDS  ((D_LANES + WG - 1) / WG)
#endif
/* Local floats for the reductions over work-items and over streams. */
#if GT * WG > STREAMS * HD
#define RED (GT * WG)
#else
#define RED (STREAMS * HD)
#endif

/* Dot products of GT queries with key t of a tile. */
static inline void dot_keys(__local const float *qs, __global const KV_ELEM *k,
                            uint t, float *s)
{
#if YK == 1 && XK % 8 == 0
    float4 a[GT];
#pragma unroll
    for (uint g = 0; g < GT; g++)
        a[g] = (float4)(0);
    for (uint d = 0; d < HD; d += 8) {
        const float8 kk = KV_LOADN(8, k, kv_k_at(t, d));
#pragma unroll
        for (uint g = 0; g < GT; g++) {
            a[g] = FMA(vload4(0, qs + g * HD + d), kk.lo, a[g]);
            a[g] = FMA(vload4(0, qs + g * HD + d + 4), kk.hi, a[g]);
        }
    }
#pragma unroll
    for (uint g = 0; g < GT; g++)
        s[g] = (a[g].x + a[g].y) + (a[g].z + a[g].w);
#else
#pragma unroll
    for (uint g = 0; g < GT; g++)
        s[g] = 0;
    for (uint d = 0; d < HD; d++) {
        const float kk = KV_LOAD(k, kv_k_at(t, d));
#pragma unroll
        for (uint g = 0; g < GT; g++)
            s[g] = FMA(qs[g * HD + d], kk, s[g]);
    }
#endif
}

/* DV values from dim d on of token t. */
static inline void load_values(__global const KV_ELEM *v, uint t, uint d,
                               float *x)
{
#if DV == 8
    vstore8(KV_LOADN(8, v, kv_v_at(t, d)), 0, x);
#elif DV == 4
    vstore4(KV_LOADN(4, v, kv_v_at(t, d)), 0, x);
#else
    x[0] = KV_LOAD(v, kv_v_at(t, d));
#endif
}

/* red[g * WG] becomes the largest, or the sum, of red[g * WG + ...]. All
 * work-items call; the caller puts a barrier before red changes again. */
static inline void reduce_max(__local float *red, uint lid)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_n = WG / 2; half_n > 0; half_n /= 2) {
        if (lid < half_n)
            for (uint g = 0; g < GT; g++)
                red[g * WG + lid] =
                    fmax(red[g * WG + lid], red[g * WG + lid + half_n]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

static inline void reduce_sum(__local float *red, uint lid)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_n = WG / 2; half_n > 0; half_n /= 2) {
        if (lid < half_n)
            for (uint g = 0; g < GT; g++)
                red[g * WG + lid] += red[g * WG + lid + half_n];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void attn_split(
    CVIEW(float, q), const int q_stride, VIEW(float, out), const int out_stride,
    CVIEW(int, table_start), CVIEW(int, tables), CVIEW(int, entries),
    VIEW(float, partials), const int max_partials, const float scale,
    const float softcap, KV_CPLANE(kp), KV_CPLANE(vp))
{
    CUSE(float, q);
    USE(float, out);
    CUSE(int, table_start);
    CUSE(int, tables);
    CUSE(int, entries);
    __local float qs[GT * HD];
    __local float weight[GT * CH];
    __local uint block_of[CH];
    __local float red[RED];
    const uint lid = (uint)get_local_id(0);
    const uint kvh = (uint)get_group_id(1), g0 = (uint)get_group_id(2) * GT;
    const uint n_heads = min((uint)GT, (uint)G - g0);
    __global const int *e = entries + (ulong)get_group_id(0) * 8;
    const int tok = e[0], first = e[2], n_keys = e[3], slot = e[4];
    __global const int *table = tables + table_start[e[1]];
    const float by = q_scale(scale);

    for (uint i = lid; i < GT * HD; i += WG) {
        /* The heads of a group lie together. */
        qs[i] = i < n_heads * HD
                    ? q[(ulong)tok * q_stride + (kvh * G + g0) * HD + i] * by
                    : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    float top[GT], sum[GT], acc[GT][ROUNDS * DV];
#pragma unroll
    for (uint g = 0; g < GT; g++) {
        top[g] = NO_MAX;
        sum[g] = 0;
#pragma unroll
        for (uint i = 0; i < ROUNDS * DV; i++)
            acc[g][i] = 0;
    }
    const uint stream = lid / D_LANES, lane = lid - stream * D_LANES;
    const bool idle = stream >= STREAMS;

    for (int at = 0; at < n_keys; at += CH) {
        const int n = min(CH, n_keys - at);
        float best[GT], s[GT];
#pragma unroll
        for (uint g = 0; g < GT; g++)
            best[g] = NO_MAX;
        for (int j = (int)lid; j < n; j += WG) {
            const uint key = (uint)(first + at + j);
            const uint in = key / BS, blk = (uint)table[in];
            block_of[j] = blk;
            dot_keys(qs, KV_CTILE(kp, blk, kvh), token_in(key, in), s);
#pragma unroll
            for (uint g = 0; g < GT; g++) {
                const float logit = cap_logit(s[g], softcap);
                weight[g * CH + j] = logit;
                best[g] = fmax(best[g], logit);
            }
        }
#pragma unroll
        for (uint g = 0; g < GT; g++)
            red[g * WG + lid] = best[g];
        reduce_max(red, lid);
#pragma unroll
        for (uint g = 0; g < GT; g++) {
            const float new_top = fmax(top[g], red[g * WG]);
            const float fall = fall_of(top[g], new_top);
            top[g] = new_top;
            sum[g] *= fall;
#pragma unroll
            for (uint i = 0; i < ROUNDS * DV; i++)
                acc[g][i] *= fall;
            best[g] = 0;
        }
        for (int j = (int)lid; j < n; j += WG) {
#pragma unroll
            for (uint g = 0; g < GT; g++) {
                const float p = exp2(weight[g * CH + j] - top[g]);
                weight[g * CH + j] = p;
                best[g] += p;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* red[g * WG] was read by all */
#pragma unroll
        for (uint g = 0; g < GT; g++)
            red[g * WG + lid] = best[g];
        reduce_sum(red, lid);
#pragma unroll
        for (uint g = 0; g < GT; g++)
            sum[g] += red[g * WG];

        for (int j = idle ? n : (int)stream; j < n; j += STREAMS) {
            __global const KV_ELEM *v = KV_CTILE(vp, block_of[j], kvh);
            const uint key = (uint)(first + at + j);
            const uint t = token_in(key, key / BS);
#pragma unroll
            for (uint r = 0; r < ROUNDS; r++) {
                const uint d = (lane + r * WG) * DV;
                if (ROUNDS == 1 || d < HD) {
                    float x[DV];
                    load_values(v, t, d, x);
#pragma unroll
                    for (uint g = 0; g < GT; g++)
#pragma unroll
                        for (uint i = 0; i < DV; i++)
                            acc[g][r * DV + i] = FMA(weight[g * CH + j], x[i],
                                                     acc[g][r * DV + i]);
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* before weight and red change */
    }

    USE(float, partials);
#pragma unroll
    for (uint g = 0; g < GT; g++) {
#pragma unroll
        for (uint r = 0; r < ROUNDS; r++) {
            const uint d = (lane + r * WG) * DV;
            if (!idle) {
                if (ROUNDS == 1 || d < HD)
#pragma unroll
                    for (uint i = 0; i < DV; i++)
                        red[stream * HD + d + i] = acc[g][r * DV + i];
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const uint h = kvh * G + g0 + g;
        if (g < n_heads) {
            for (uint d = lid; d < HD; d += WG) {
                float o = 0;
                for (uint i = 0; i < STREAMS; i++)
                    o += red[i * HD + d];
                if (slot >= 0)
                    PARTIAL_O(partials, slot, h)[d] = o;
                else
                    out[(ulong)tok * out_stride + h * HD + d] =
                        n_keys > 0 ? o / sum[g] : 0.0f;
            }
            if (slot >= 0 && lid == 0) {
                PARTIAL_ML(partials, max_partials, slot, h)[0] = top[g];
                PARTIAL_ML(partials, max_partials, slot, h)[1] = sum[g];
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

/* Group (merge, head). Partials are added in key order. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void attn_merge(
    VIEW(float, out), const int out_stride, CVIEW(int, merges),
    CVIEW(float, partials), const int max_partials)
{
    USE(float, out);
    CUSE(int, merges);
    CUSE(float, partials);
    const uint h = (uint)get_group_id(1);
    __global const int *m = merges + (ulong)get_group_id(0) * 4;
    const int tok = m[0], first = m[1], n = m[2];
    float top = NO_MAX, sum = 0;
    for (int i = first; i < first + n; i++) {
        __global const float *ml = PARTIAL_ML(partials, max_partials, i, h);
        if (ml[1] > 0)
            top = fmax(top, ml[0]);
    }
    for (int i = first; i < first + n; i++) {
        __global const float *ml = PARTIAL_ML(partials, max_partials, i, h);
        if (ml[1] > 0)
            sum = FMA(exp2(ml[0] - top), ml[1], sum);
    }
    for (uint d = (uint)get_local_id(0); d < HD; d += WG) {
        float o = 0;
        for (int i = first; i < first + n; i++) {
            __global const float *ml = PARTIAL_ML(partials, max_partials, i, h);
            if (ml[1] > 0)
                o = FMA(exp2(ml[0] - top), PARTIAL_O(partials, i, h)[d], o);
        }
        out[(ulong)tok * out_stride + h * HD + d] = sum > 0 ? o / sum : 0.0f;
    }
}

#endif
