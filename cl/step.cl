/* step.cl: step_ring: all layers of one decode step in one launch. The
 * groups stay for the whole step and meet five times a layer: q, k and v;
 * attention; output; gate and up; down. Only for grids that a device runs at
 * once: each meeting ends after a bounded number of looks, and then the step is
 * given up. One warp of a group does nothing but order weights, in bulk copies
 * through a ring in local memory, and never waits for a meeting: what the next
 * phases multiply with arrives while the group works on something else. The CW
 * others take the chunks of a tile of 16 rows, each its own columns of them.
 * After step.clh, which says what the host passes, and step_product.clh. */

/* ---- attention -------------------------------------------------------------
 */

#define K16 (HD / 16)

/* Values of 16 tokens. What lies past the end may be anything, and 0 * NaN is
 * NaN. */
STEP_FN void load_v(__global const uint *vt, uint in, bool on0, bool on1,
                    uint (*vf)[LANES][4], uint me)
{
    UNROLL
    for (uint d = 0; d < K16; d++) {
        const uint v0 = vt[d * 2 * BS * 4 + in];
        const uint v1 = vt[(d * 2 + 1) * BS * 4 + in];
        const uint v2 = vt[d * 2 * BS * 4 + in + 32];
        const uint v3 = vt[(d * 2 + 1) * BS * 4 + in + 32];
        vf[d][me][0] = on0 ? v0 : 0;
        vf[d][me][1] = on0 ? v1 : 0;
        vf[d][me][2] = on1 ? v2 : 0;
        vf[d][me][3] = on1 ? v3 : 0;
    }
}

/* One share's keys, those that are lo or later: partial result number `part` of
 * each head. Each warp takes every CW-th block; tokens, then dims, are the 16
 * rows of products and heads their columns, as in attn_bulk.cl. */
STEP_FN void attend(const step_args *a, __local const int *at,
                    const key_share *s, int lo)
{
    const int t = s->t, kvh = s->kvh, part = s->part, blk1 = s->blk1;
    const int len = a->len[t];
    const float by = q_scale(a->scale);
    __global const int *table = a->tables + a->start[t];
    __global const KV_ELEM *ks = plane_at(a->k, at + AT_KV);
    __global const KV_ELEM *vs = plane_at(a->v, at + AT_KV + 2);
    uint qf[K16][LANES][2];
    float o[K16][LANES][4];
    float m0[LANES], m1[LANES], l0[LANES], l1[LANES];
    EACH_LANE
    {
        const uint g = LANE / 4;
        const bool on = g < G;
        __global const float *row = a->q + (ulong)t * Q_ROWS +
                                    (uint)(kvh * G + (int)(on ? g : 0)) * HD +
                                    2 * (LANE % 4);
        UNROLL
        for (uint d = 0; d < K16; d++) {
            const float x0 = row[d * 16], x1 = row[d * 16 + 1];
            const float x2 = row[d * 16 + 8], x3 = row[d * 16 + 9];
            qf[d][ME][0] = on ? pack2_sat(x0 * by, x1 * by) : 0;
            qf[d][ME][1] = on ? pack2_sat(x2 * by, x3 * by) : 0;
            o[d][ME][0] = o[d][ME][1] = o[d][ME][2] = o[d][ME][3] = 0;
        }
        m0[ME] = m1[ME] = NO_MAX;
        l0[ME] = l1[ME] = 0;
    }
    for (int blk = s->blk0 + (int)WARP; blk < blk1; blk += CW) {
        const ulong tile = kv_tile_at((uint)table[blk], (uint)kvh, 31);
        __global const uint *kt = (__global const uint *)(ks + tile);
        __global const uint *vt = (__global const uint *)(vs + tile);
        UNROLL
        for (uint sub = 0; sub < BS / 16; sub++) {
            const int key = blk * BS + (int)sub * 16;
            uint kf[K16][LANES][4], vf[K16][LANES][4];
            float c[LANES][4];
            uint p0[LANES], p1[LANES], b[LANES][2];
            float n0[LANES], n1[LANES], x0[LANES], x1[LANES];
            float r0[LANES], r1[LANES];
            if (BS > 16 && (key >= len || key + 16 <= lo))
                continue;
            EACH_LANE
            {
                /* Rows are 8 tokens, or 8 dims once they are transposed. */
                const uint in = (sub * 16 + LANE / 4) * 4 + LANE % 4;
                UNROLL
                for (uint d = 0; d < K16; d++) {
                    kf[d][ME][0] = kt[d * 2 * BS * 4 + in];
                    kf[d][ME][1] = kt[d * 2 * BS * 4 + in + 32];
                    kf[d][ME][2] = kt[(d * 2 + 1) * BS * 4 + in];
                    kf[d][ME][3] = kt[(d * 2 + 1) * BS * 4 + in + 32];
                }
#if HD <= 64
                const int k0 = key + (int)(LANE / 4);
                load_v(vt, in, k0 < len, k0 + 8 < len, vf, ME);
#endif
                c[ME][0] = c[ME][1] = c[ME][2] = c[ME][3] = 0;
            }
            UNROLL
            for (uint d = 0; d < K16; d++)
                MMA(c, kf[d], qf[d], 0);
            EACH_LANE
            {
                const int k0 = key + (int)(LANE / 4), k1 = k0 + 8;
                const bool on0 = k0 >= lo && k0 < len;
                const bool on1 = k1 >= lo && k1 < len;
                UNROLL
                for (uint j = 0; j < 4; j++)
                    c[ME][j] = cap_logit(c[ME][j], a->softcap);
                n0[ME] = m0[ME];
                n1[ME] = m1[ME];
                if (on0) {
                    n0[ME] = fmax(n0[ME], c[ME][0]);
                    n1[ME] = fmax(n1[ME], c[ME][1]);
                }
                if (on1) {
                    n0[ME] = fmax(n0[ME], c[ME][2]);
                    n1[ME] = fmax(n1[ME], c[ME][3]);
                }
            }
            UNROLL
            for (uint mask = 4; mask < 32; mask *= 2) {
                warp_xor(x0, n0, mask);
                warp_xor(x1, n1, mask);
                EACH_LANE
                {
                    n0[ME] = fmax(n0[ME], x0[ME]);
                    n1[ME] = fmax(n1[ME], x1[ME]);
                }
            }
            EACH_LANE
            {
                const int k0 = key + (int)(LANE / 4), k1 = k0 + 8;
                const bool on0 = k0 >= lo && k0 < len;
                const bool on1 = k1 >= lo && k1 < len;
                const float e0 = warp_exp2(c[ME][0] - n0[ME]);
                const float e1 = warp_exp2(c[ME][1] - n1[ME]);
                const float e2 = warp_exp2(c[ME][2] - n0[ME]);
                const float e3 = warp_exp2(c[ME][3] - n1[ME]);
                const float w0 = on0 ? e0 : 0.0f, w1 = on0 ? e1 : 0.0f;
                const float w2 = on1 ? e2 : 0.0f, w3 = on1 ? e3 : 0.0f;
                r0[ME] = warp_exp2(m0[ME] - n0[ME]);
                r1[ME] = warp_exp2(m1[ME] - n1[ME]);
                l0[ME] = l0[ME] * r0[ME] + w0 + w2;
                l1[ME] = l1[ME] * r1[ME] + w1 + w3;
                m0[ME] = n0[ME];
                m1[ME] = n1[ME];
                p0[ME] = pack2(w0, w1);
                p1[ME] = pack2(w2, w3);
            }
#if HD > 64
            EACH_LANE
            load_v(vt, (sub * 16 + LANE / 4) * 4 + LANE % 4,
                   key + (int)(LANE / 4) < len, key + (int)(LANE / 4) + 8 < len,
                   vf, ME);
#endif
            TRANSPOSE(p0, p0);
            TRANSPOSE(p1, p1);
            EACH_LANE
            {
                b[ME][0] = p0[ME];
                b[ME][1] = p1[ME];
            }
            UNROLL
            for (uint d = 0; d < K16; d++) {
                UNROLL
                for (uint j = 0; j < 4; j++) {
                    EACH_LANE
                    p0[ME] = vf[d][ME][j];
                    TRANSPOSE(p1, p0);
                    EACH_LANE
                    vf[d][ME][j] = p1[ME];
                }
                EACH_LANE
                {
                    o[d][ME][0] *= r0[ME];
                    o[d][ME][1] *= r1[ME];
                    o[d][ME][2] *= r0[ME];
                    o[d][ME][3] *= r1[ME];
                }
                MMA(o[d], vf[d], b, 0);
            }
        }
    }

    /* The warps' shares. */
    __local float *o_part = (__local float *)(a->mem + AT_PART);
    __local float *m_part = (__local float *)(a->mem + AT_ML);
    __local float *l_part = m_part + CW * 8;
    float x0[LANES], x1[LANES];
    UNROLL
    for (uint mask = 4; mask < 32; mask *= 2) {
        warp_xor(x0, l0, mask);
        warp_xor(x1, l1, mask);
        EACH_LANE
        {
            l0[ME] += x0[ME];
            l1[ME] += x1[ME];
        }
    }
    EACH_LANE
    {
        const uint h = WARP * 8 + 2 * (LANE % 4);
        if (LANE < 4) {
            m_part[h] = m0[ME];
            m_part[h + 1] = m1[ME];
            l_part[h] = l0[ME];
            l_part[h + 1] = l1[ME];
        }
        UNROLL
        for (uint d = 0; d < K16; d++) {
            __local float *to = o_part + h * HD + d * 16 + LANE / 4;
            to[0] = o[d][ME][0];
            to[HD] = o[d][ME][1];
            to[8] = o[d][ME][2];
            to[HD + 8] = o[d][ME][3];
        }
    }
    STEP_BARRIER();
    EACH_OF(j, G * HD)
    {
        const uint h = j / HD;
        const uint first = (uint)(t * H_TOTAL + kvh * G) + h;
        const ulong to = (ulong)first * (uint)a->n_split + (uint)part;
        float top = NO_MAX, sum = 0, acc = 0;
#pragma unroll
        for (uint i = 0; i < CW; i++)
            top = fmax(top, m_part[i * 8 + h]);
#pragma unroll
        for (uint i = 0; i < CW; i++) {
            const float f = warp_exp2(m_part[i * 8 + h] - top);
            sum = FMA(f, l_part[i * 8 + h], sum);
            acc = FMA(f, o_part[i * (8 * HD) + j], acc);
        }
        a->po[to * HD + (j - h * HD)] = acc;
        if (j == h * HD) {
            a->pml[2 * to] = top;
            a->pml[2 * to + 1] = sum;
        }
    }
    STEP_BARRIER(); /* before the shares change */
}

/* This group's shares. */
STEP_FN void step_attend(const step_args *a, __local const int *at)
{
    const int shares = a->n_tok * KVH * a->n_split;
    for (int i = (int)get_group_id(0); i < shares;
         i += (int)get_num_groups(0)) {
        const key_share s = share_of(a, at, i);
        if (s.blk0 < s.blk1)
            attend(a, at, &s, first_visible(a->len[s.t] - 1, at[AT_WINDOW]));
    }
}

/* ---- the step --------------------------------------------------------------
 */

/* x is the embedding of the rows on entry and what the output norm reads on
 * return; all NaN where the step was lost. Row t is the newest of a sequence of
 * kv_len[t] keys. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void step_ring(
    CVIEW(uchar, w), CVIEW(int, layers), AVIEW(float, x), AVIEW(float, q),
    AVIEW(uint4, h), AVIEW(float, po), AVIEW(float, pml), AVIEW(uint, sync),
    CVIEW(int, pos), CVIEW(int, slot), CVIEW(int, kv_len),
    CVIEW(int, table_start), CVIEW(int, tables), CVIEW(float, turn),
    AVIEW(KV_ELEM, k), AVIEW(KV_ELEM, v), const int n_tok, const int n_pos,
    const int n_slots, const int n_split, const int turn_no, const float eps,
    const float scale,
    const float softcap
#if WARP_EMULATED
    /* Not a variable of the kernel: PoCL 3.1 gives groups that run at once the
     * same one where functions get its address. */
    ,
    __local uint4 *mem_arg
#endif
)
{
#if WARP_EMULATED
    __local uchar *mem = (__local uchar *)mem_arg;
#else
    __local __attribute__((aligned(1024))) uchar mem[LOCAL];
#endif
    CUSE(uchar, w);
    CUSE(int, layers);
    USE(float, x);
    USE(float, q);
    USE(uint4, h);
    USE(float, po);
    USE(float, pml);
    USE(uint, sync);
    CUSE(int, pos);
    CUSE(int, slot);
    CUSE(int, kv_len);
    CUSE(int, table_start);
    CUSE(int, tables);
    CUSE(float, turn);
    USE(KV_ELEM, k);
    USE(KV_ELEM, v);
    const uint lid = (uint)get_local_id(0), groups = (uint)get_num_groups(0);
#if TIMES
    __global uint *times = sync;
#endif
    if (lid == 0 && get_group_id(0) == 0)
        for (uint i = 0; i < SYNC_WORDS; i++)
            sync[(turn_no ^ 1) * SYNC_WORDS + i] = 0;
    sync += turn_no * SYNC_WORDS;
    const step_args a = {
        .w = w,
        .x = x,
        .q = q,
        .po = po,
        .pml = pml,
        .h = h,
        .k = k,
        .v = v,
        .pos = pos,
        .slot = slot,
        .tables = tables,
        .turn = turn,
        .mem = mem,
        .table = (__local const int *)(mem + AT_TABLE),
        .len = (__local const int *)(mem + AT_LEN),
        .start = (__local const int *)(mem + AT_START),
        .n_tok = n_tok,
        .n_pos = n_pos,
        .n_slots = n_slots,
        .n_split = n_split,
        .eps = eps,
        .scale = scale,
        .softcap = softcap,
    };
    for (uint i = lid; i < L * AT_WORDS; i += WG)
        ((__local int *)(mem + AT_TABLE))[i] = layers[i];
    for (uint i = lid; i < N; i += WG) {
        const int t = min((int)i, n_tok - 1);
        ((__local int *)(mem + AT_LEN))[i] = kv_len[t];
        ((__local int *)(mem + AT_START))[i] = table_start[t];
    }
#if !WARP_EMULATED
    if (lid == 0) {
        for (uint s = 0; s < RING; s++) {
            bar_init(full_bar(mem, s), 1);
            bar_init(empty_bar(mem, s), CW);
        }
        WARP_FENCE();
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
#if !WARP_EMULATED
    if (lid >= CREW) {
        step_feed(&a);
        return;
    }
#endif
    step_lanes lanes;
    ring_at r = {0, 0};
    uint before = 0;
    bool fine = true;
    open_lanes(&a, &lanes);
#if TIMES
    uint last = warp_clock();
#endif
    /* One text of each phase: compilers of work-group barriers copy enough. */
    for (int i = 0; i < L * PHASES && fine; i++) {
        const int y = i / PHASES, ph = i - y * PHASES;
        __local const int *at = layer_at(&a, y);
        bool came = true;
        if (ph == PH_ATTN) {
            step_attend(&a, at);
        } else {
            step_stage(&a, at, ph);
            TICK(3 * ph);
            came = step_products(&a, at, ph, before, &lanes, &r);
            before = dealt(before, ph);
        }
        TICK(3 * ph + 1);
        if (!came)
            atomic_or((volatile __global uint *)sync + SYNC_LOST, 1u);
        if (i + 1 < L * PHASES)
            fine = step_meet(sync, (uint)(i + 1) * groups, mem);
        TICK(3 * ph + 2);
    }
    if (!fine || *((volatile __global uint *)sync + SYNC_LOST))
        EACH_OF(i, n_tok * D)
    x[i] = NAN;
}
