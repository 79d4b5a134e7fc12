/* fused.cl: norm_linear, qkv and gate_up, each in one launch: the norm is
 * computed again by every group, the products' results never leave it before
 * they are biased, rotated and appended, or multiplied. Needs common.clh,
 * quant.clh, fused.clh, for qkv also kv_layout.clh and kv.clh, for gate_up
 * act.clh. One entry is compiled per program, named by -DFUSED_<ENTRY>. Grid
 * (pairs / FUSED_PAIRS / runs, n_tok / NB), rounded up. */

#define FUSED_IN_ARGS                                                          \
    CVIEW(float, x), CVIEW(float, norm), const int x_stride, const float eps,  \
        const ulong row_bytes, const int n_tok, const int runs
#define FUSED_IN_USE                                                           \
    CUSE(float, x);                                                            \
    CUSE(float, norm);                                                         \
    FUSED_LOCAL;                                                               \
    const uint lid = (uint)get_local_id(0);                                    \
    const uint lane = lid % LANES;                                             \
    const int tok = (int)get_group_id(1) * NB;                                 \
    int row_of[NB];                                                            \
    fused_tokens(tok, n_tok, row_of)

/* Pair number `run` of this work-item. */
#define FUSED_PAIR(run)                                                        \
    (((uint)get_group_id(0) * (uint)runs + (uint)(run)) * FUSED_PAIRS +        \
     lid / LANES)
/* The lanes of a pair share its tokens out among themselves. */
#define FUSED_SUM_A(t) (fused_part[(t)*WG + lid - lane] * fused_inv[t])
#define FUSED_SUM_B(t) (fused_part[(NB + (t)) * WG + lid - lane] * fused_inv[t])

#ifdef FUSED_NORM_LINEAR

/* Pairs of neighbouring rows of the parts, one part after the other. Part p
 * has rows_p rows; absent ones have none. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void norm_linear_pair(
    FUSED_IN_ARGS, CVIEW(int, idx), const int gather, CVIEW(uchar, w0),
    CVIEW(uchar, w1), CVIEW(uchar, w2), CVIEW(float, b0), CVIEW(float, b1),
    CVIEW(float, b2), const int biased, VIEW(float, y0), VIEW(float, y1),
    VIEW(float, y2), const int rows0, const int rows1, const int rows2,
    const int stride0, const int stride1, const int stride2)
{
    FUSED_IN_USE;
    CUSE(int, idx);
    CUSE(uchar, w0);
    CUSE(uchar, w1);
    CUSE(uchar, w2);
    CUSE(float, b0);
    CUSE(float, b1);
    CUSE(float, b2);
    USE(float, y0);
    USE(float, y1);
    USE(float, y2);
    const uint n0 = (uint)(rows0 + 1) / 2, n1 = n0 + (uint)(rows1 + 1) / 2;
    const uint n = n1 + (uint)(rows2 + 1) / 2;
    if (gather)
        for (int t = 0; t < NB; t++)
            row_of[t] = idx[row_of[t]];
    fused_norm(x, x_stride, norm, eps, row_of, fused_h, fused_part, fused_inv);
    for (int run = 0; run < runs; run++) {
        const uint pair = FUSED_PAIR(run), at = min(pair, n - 1);
        const int part = (at >= n0) + (at >= n1);
        __global const uchar *w = part == 0 ? w0 : part == 1 ? w1 : w2;
        __global const float *b = part == 0 ? b0 : part == 1 ? b1 : b2;
        __global float *y = part == 0 ? y0 : part == 1 ? y1 : y2;
        const int rows = part == 0 ? rows0 : part == 1 ? rows1 : rows2;
        const int stride = part == 0 ? stride0 : part == 1 ? stride1 : stride2;
        const int row = 2 * (int)(at - (part == 0 ? 0 : part == 1 ? n0 : n1));
        const int next = min(row + 1, rows - 1);
        fused_pair(QROW_AT(w, row, row_bytes, DIM),
                   QROW_AT(w, next, row_bytes, DIM), fused_h, fused_part);
        for (int t = (int)lane; t < NB && pair < n; t += LANES) {
            float va = FUSED_SUM_A(t), vb = FUSED_SUM_B(t);
            if (biased >> part & 1) {
                va += b[row];
                vb += b[next];
            }
            if (tok + t < n_tok) {
                __global float *out = y + (ulong)(tok + t) * (ulong)stride;
                out[row] = va;
                if (next > row)
                    out[next] = vb;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* before part is written again */
    }
}

#endif

#ifdef FUSED_QKV

/* Pairs of dims of a head: rotary partners first, the rest in order; v's in
 * order. Heads of q, then of k, then of v: H of q. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void qkv_pair(
    FUSED_IN_ARGS, CVIEW(uchar, wq), CVIEW(uchar, wk), CVIEW(uchar, wv),
    CVIEW(float, bq), CVIEW(float, bk), CVIEW(float, bv), const int biased,
    VIEW(float, q), const int q_stride, const int heads, CVIEW(int, slot),
#if ROT > 0
    CVIEW(int, pos), CVIEW(float, table), const int n_pos,
#endif
    const int n_slots, KV_PLANE(kp), KV_PLANE(vp))
{
    FUSED_IN_USE;
    CUSE(uchar, wq);
    CUSE(uchar, wk);
    CUSE(uchar, wv);
    CUSE(float, bq);
    CUSE(float, bk);
    CUSE(float, bv);
    USE(float, q);
    CUSE(int, slot);
#if ROT > 0
    CUSE(int, pos);
    CUSE(float, table);
#endif
    const uint n = (uint)(heads + 2 * KVH) * (HD / 2);
    fused_norm(x, x_stride, norm, eps, row_of, fused_h, fused_part, fused_inv);
    for (int run = 0; run < runs; run++) {
        const uint pair = FUSED_PAIR(run), at = min(pair, n - 1);
        uint head = at / (HD / 2);
        const uint i = at - head * (HD / 2);
        const int part = (head >= (uint)heads) + (head >= (uint)heads + KVH);
        head -= part == 0 ? 0u : part == 1 ? (uint)heads : (uint)heads + KVH;
        __global const uchar *w = part == 0 ? wq : part == 1 ? wk : wv;
        __global const float *b = part == 0 ? bq : part == 1 ? bk : bv;
        uint d0 = 2 * i, d1 = 2 * i + 1;
#if ROT > 0 && !INTERLEAVED
        if (part < 2 && i < ROT / 2) {
            d0 = i;
            d1 = i + ROT / 2;
        }
#endif
        const uint r0 = head * HD + d0, r1 = head * HD + d1;
        fused_pair(QROW_AT(w, r0, row_bytes, DIM),
                   QROW_AT(w, r1, row_bytes, DIM), fused_h, fused_part);
        for (int t = (int)lane; t < NB && pair < n; t += LANES) {
            float v0 = FUSED_SUM_A(t), v1 = FUSED_SUM_B(t);
            if (tok + t >= n_tok)
                continue;
            if (biased >> part & 1) {
                v0 += b[r0];
                v1 += b[r1];
            }
#if ROT > 0
            if (part < 2 && i < ROT / 2) {
                /* The uploader checks positions; this keeps reads inside. */
                __global const float *cs =
                    table + (ulong)clamp(pos[tok + t], 0, n_pos - 1) * ROT +
                    2 * i;
                const float u0 = v0, u1 = v1;
                v0 = u0 * cs[0] - u1 * cs[1];
                v1 = u1 * cs[0] + u0 * cs[1];
            }
#endif
            if (part == 0) {
                __global float *out = q + (ulong)(tok + t) * (ulong)q_stride;
                out[r0] = v0;
                out[r1] = v1;
                continue;
            }
            const int to = slot[tok + t];
            if (to < 0 || to >= n_slots)
                continue;
            const uint blk = (uint)to / BS, in = (uint)to - blk * BS;
            if (part == 1) {
                __global KV_ELEM *tile = KV_TILE(kp, blk, head);
                KV_STORE(v0, tile, kv_k_at(in, d0));
                KV_STORE(v1, tile, kv_k_at(in, d1));
            } else {
                __global KV_ELEM *tile = KV_TILE(vp, blk, head);
                KV_STORE(v0, tile, kv_v_at(in, d0));
                KV_STORE(v1, tile, kv_v_at(in, d1));
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* before part is written again */
    }
}

#endif

#ifdef FUSED_GATE_UP

/* A pair is one row of gate and the same of up. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void gate_up_pair(
    FUSED_IN_ARGS, CVIEW(uchar, gate), CVIEW(uchar, up), VIEW(float, out),
    const int out_stride, const int rows)
{
    FUSED_IN_USE;
    CUSE(uchar, gate);
    CUSE(uchar, up);
    USE(float, out);
    fused_norm(x, x_stride, norm, eps, row_of, fused_h, fused_part, fused_inv);
    for (int run = 0; run < runs; run++) {
        const uint row = FUSED_PAIR(run), at = min(row, (uint)rows - 1);
        fused_pair(QROW_AT(gate, at, row_bytes, DIM),
                   QROW_AT(up, at, row_bytes, DIM), fused_h, fused_part);
        for (int t = (int)lane; t < NB && row < (uint)rows; t += LANES)
            if (tok + t < n_tok)
                out[(ulong)(tok + t) * (ulong)out_stride + row] =
                    act_of(FUSED_SUM_A(t)) * FUSED_SUM_B(t);
        barrier(CLK_LOCAL_MEM_FENCE); /* before part is written again */
    }
}

#endif
