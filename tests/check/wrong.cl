/* wrong.cl: kernels that are wrong on purpose, for folio-check --self-test; no
 * part of the library. Built after common.clh, kv_layout.clh and, for
 * attention, kv.clh. Without a WRONG_* macro each is right, which is tested
 * too. */

#ifdef WRONG_ADD
__kernel void wrong_add(AVIEW(const float, x), AVIEW(float, y), const ulong n)
{
    USE(const float, x);
    USE(float, y);
    const ulong i = get_global_id(0);
#ifdef WRONG_OVERRUN
    if (i <= n)
#else
    if (i < n)
#endif
        y[i] = i < n ? y[i] + x[i] : 1.0f;
}
#endif

#ifdef WRONG_ACT
/* One work-item per element. */
__kernel void wrong_act(AVIEW(float, gate), const int gate_stride,
                        AVIEW(const float, up), const int up_stride,
                        AVIEW(float, out), const int out_stride, const int dim,
                        const int n_tok, const int gelu)
{
    USE(float, gate);
    USE(const float, up);
    USE(float, out);
    const int i = (int)get_global_id(0), t = (int)get_global_id(1);
#ifdef WRONG_UNWRITTEN
    if (i == dim - 1 && t == n_tok - 1)
        return;
#endif
    if (i >= dim)
        return;
    const float x = gate[(ulong)t * gate_stride + i];
    const float z = gelu ? 1.59576912160573f * (x + 0.044715f * x * x * x) : x;
    const float e = exp(-fmin(fabs(z), 100.0f));
    const float y = x * ((z >= 0.0f ? 1.0f : e) / (1.0f + e));
#ifdef WRONG_INPUT
    gate[(ulong)t * gate_stride + i] = y;
#endif
    out[(ulong)t * out_stride + i] = y * up[(ulong)t * up_stride + i];
}
#endif

#ifdef WRONG_NORM
#define LANES 16
/* One work-group of LANES per row. `run` counts the launches. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void wrong_norm(
    AVIEW(const float, x), const int x_stride, CVIEW(float, w),
    AVIEW(float, out), const int out_stride, const int dim, const float eps,
    AVIEW(float, res), const int has_res, const int run)
{
    USE(const float, x);
    CUSE(float, w);
    USE(float, out);
    USE(float, res);
    __local float part[LANES];
    const int row = (int)get_group_id(0), lane = (int)get_local_id(0);
    __global const float *in = x + (ulong)row * x_stride;
    __global float *r = res + (ulong)row * dim;
    float sum = 0;
#if defined(WRONG_BATCH)
    const bool backward = get_num_groups(0) > 1;
#elif defined(WRONG_ORDER)
    const bool backward = run % 2 != 0;
#else
    const bool backward = false;
#endif
    for (int i = lane; i < dim; i += LANES)
        if (has_res)
            r[i] += in[i];
    for (int n = 0; n < dim; n++) {
        const int i = backward ? dim - 1 - n : n;
        if (i % LANES != lane)
            continue;
        const float h = has_res ? r[i] : in[i];
        sum += h * h;
    }
    part[lane] = sum;
#ifndef WRONG_BARRIER
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    float all = 0;
    for (int i = 0; i < LANES; i++)
        all += part[backward ? LANES - 1 - i : i];
    const float inv = 1.0f / sqrt(all / (float)dim + eps);
    for (int i = lane; i < dim; i += LANES)
        out[(ulong)row * out_stride + i] =
            w[i] * ((has_res ? r[i] : in[i]) * inv);
}
#endif

#ifdef WRONG_ATTN
#define HEADS_AT_ONCE 2

static inline float key_logit(__global const float *q,
                              __global const KV_ELEM *k, uint t, float scale,
                              float softcap)
{
    float dot = 0;
    for (uint d = 0; d < HD; d++)
        dot += q[d] * KV_LOAD(k, kv_k_at(t, d));
    dot *= scale;
    return softcap > 0 ? softcap * tanh(dot / softcap) : dot;
}

/* One work-item per token and query head. */
__kernel void wrong_attn(CVIEW(float, q), const int q_stride, VIEW(float, out),
                         const int out_stride, CVIEW(int, q_start),
                         CVIEW(int, kv_len), CVIEW(int, table_start),
                         CVIEW(int, tables), const int heads, const int window,
                         const float scale, const float softcap,
                         const int n_blocks, KV_CPLANE(kp), KV_CPLANE(vp))
{
    CUSE(float, q);
    USE(float, out);
    CUSE(int, q_start);
    CUSE(int, kv_len);
    CUSE(int, table_start);
    CUSE(int, tables);
    const int tok = (int)get_global_id(0), h = (int)get_global_id(1);
    const int g = heads / KVH;
    int seq = 0;
    while (q_start[seq + 1] <= tok)
        seq++;
#ifdef WRONG_LAST_HEAD
    if (h % g >= g / HEADS_AT_ONCE * HEADS_AT_ONCE)
        return;
#endif
    __global const int *table = tables + table_start[seq];
    __global const float *qr = q + (ulong)tok * q_stride + h * HD;
    const int last = kv_len[seq] - (q_start[seq + 1] - tok);
    int first = window > 0 ? max(last - window + 1, 0) : 0;
    int end = last + 1;
    float top = -3e38f, sum = 0;
    for (int j = first; j < end; j++)
        top = fmax(top, key_logit(qr, KV_CTILE(kp, (uint)table[j / BS], h / g),
                                  (uint)(j % BS), scale, softcap));
#if defined(WRONG_NAN)
    end = (last / BS + 1) * BS; /* the unused slots of the last block */
#elif defined(WRONG_TABLE)
    end = (kv_len[seq] / BS + 1) * BS; /* a block too far, if it is full */
#endif
    float acc[HD];
    for (uint d = 0; d < HD; d++)
        acc[d] = 0;
    for (int j = first; j < end; j++) {
        const uint blk = (uint)min(table[j / BS], n_blocks - 1);
        float p = 0;
        if (j <= last)
            p = exp(key_logit(qr, KV_CTILE(kp, blk, h / g), (uint)(j % BS),
                              scale, softcap) -
                    top);
#ifdef WRONG_PLACE
        p += (float)blk * 1e-7f;
#endif
        for (uint d = 0; d < HD; d++)
            acc[d] += p * KV_LOAD(KV_CTILE(vp, blk, h / g),
                                  kv_v_at((uint)(j % BS), d));
        sum += p;
    }
    for (uint d = 0; d < HD; d++)
        out[(ulong)tok * out_stride + h * HD + d] = acc[d] / sum;
}
#endif
