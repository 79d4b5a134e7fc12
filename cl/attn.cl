/* attn.cl: paged attention. attn_item is the floor; attn_split and attn_merge
 * work from the host's lists (attn_plan.h). Layout of the pool in kv.clh. */

/* One work-item per (token, head), group (tokens, KV head, head of its group):
 * no local memory, no barrier, one walk over the visible keys with a running
 * maximum. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void attn_item(
    CVIEW(float, q), const int q_stride, VIEW(float, out), const int out_stride,
    CVIEW(int, q_start), CVIEW(int, kv_len), CVIEW(int, table_start),
    CVIEW(int, tables), const int n_seq, const int n_tok, const int window,
    const float scale, const float softcap, KV_CPLANE(kp), KV_CPLANE(vp))
{
    CUSE(float, q);
    USE(float, out);
    CUSE(int, q_start);
    CUSE(int, kv_len);
    CUSE(int, table_start);
    CUSE(int, tables);
    const int tok = (int)get_global_id(0);
    const uint kvh = (uint)get_group_id(1), head = kvh * G + get_group_id(2);
    if (tok >= n_tok || tok >= q_start[n_seq])
        return;
    const int seq = sequence_of(q_start, n_seq, tok);
    const int pos = kv_len[seq] - (q_start[seq + 1] - tok);
    __global const int *table = tables + table_start[seq];
    const float by = q_scale(scale);
    float qs[HD], acc[HD];
    for (uint d = 0; d < HD; d++) {
        qs[d] = q[(ulong)tok * q_stride + head * HD + d] * by;
        acc[d] = 0;
    }
    float top = NO_MAX, sum = 0;
    for (int key = first_visible(pos, window); key <= pos; key++) {
        const uint at = (uint)key / BS, t = token_in((uint)key, at);
        const uint blk = (uint)table[at];
        __global const KV_ELEM *k = KV_CTILE(kp, blk, kvh);
        __global const KV_ELEM *v = KV_CTILE(vp, blk, kvh);
        float s = 0;
        for (uint d = 0; d < HD; d++)
            s = FMA(qs[d], KV_LOAD(k, kv_k_at(t, d)), s);
        s = cap_logit(s, softcap);
        if (s > top) {
            const float fall = fall_of(top, s);
            for (uint d = 0; d < HD; d++)
                acc[d] *= fall;
            sum *= fall;
            top = s;
        }
        const float p = exp2(s - top);
        sum += p;
        for (uint d = 0; d < HD; d++)
            acc[d] = FMA(p, KV_LOAD(v, kv_v_at(t, d)), acc[d]);
    }
    for (uint d = 0; d < HD; d++)
        out[(ulong)tok * out_stride + head * HD + d] =
            pos >= 0 ? acc[d] / sum : 0.0f;
}
