/* attn_bulk.cl: decode attention at the memory's speed. The blocks of all
 * (entry, column) pairs form one line, a column being up to HEADS query heads
 * of a KV head; work-group g takes the blocks from g * span on, however many
 * sequences they belong to. Inside a segment, which is what a group has of one
 * column, each warp takes every WARPS-th block. It keeps SLOTS blocks of K and
 * V on their way to local memory, and never drains between segments. Tokens,
 * then head dims, are the 16 rows of the products and heads their 8 columns:
 * S^T = K Q^T, O^T = V^T P^T. A column that a group has whole is written to the
 * output; of others each group writes a partial, and the one that arrives last
 * adds them up in the order of the groups. Needs arrive.clh.
 * Layout (8, 1) of K and V, f16; HD and BS multiples of 16. Besides KV's, G and
 * SOFTCAP, the host passes WARPS, SLOTS, GROUPS (work-groups) and HT (eights of
 * heads per column). */

#ifdef SLOTS

#define HEADS (8 * HT)
#define TILES ((G + HEADS - 1) / HEADS)
#define COLS  (KVH * TILES) /* of an entry */
#define TILE  (BS * HD * 2) /* bytes */
#define K16   (HD / 16)

/* Two partials per group: of a column that began before it, and of the one that
 * goes on after it. f32 o [HEADS][HD], not divided by the sum, then {max, sum,
 * 0, 0} [HEADS] of all. */
#define BULK_O(base, p)  ((base) + (ulong)(p) * (HEADS * HD))
#define BULK_ML(base, p) (BULK_O(base, 2 * GROUPS) + (p) * (4 * HEADS))

/* Floats that the warps' shares and, after them, the weights of a column's
 * partials need. */
#define SHARES (WARPS * HEADS * HD)
#define PARTS  (SHARES > GROUPS * HEADS ? SHARES : GROUPS * HEADS)

/* Blocks of one column that a work-group has, n = 0 where nothing is left. */
typedef struct segment {
    uint at, n;      /* its first block in the line of all, and how many */
    uint e;          /* entry */
    uint col, blk;   /* column of the entry, first block in the column */
    uint before, nb; /* the entry's: blocks of a column before it and of it */
    int tok, first, n_keys;
    uint table; /* where the entry's first block stands in tables */
} segment;

static inline void load_entry(segment *s, __global const int *entries,
                              __global const int *table_start)
{
    __global const int *e = entries + s->e * 8;
    s->tok = e[0];
    s->first = e[2];
    s->n_keys = e[3];
    s->before = (uint)e[5];
    s->nb = (uint)e[6];
    s->table = (uint)table_start[e[1]] + (uint)e[2] / BS;
}

static inline void begin_segment(segment *s, uint at, uint end)
{
    const uint in = at - s->before * COLS;
    s->at = at;
    s->col = in / s->nb;
    s->blk = in - s->col * s->nb;
    s->n = min(s->nb - s->blk, end - at);
}

static inline void next_segment(segment *s, uint end,
                                __global const int *entries,
                                __global const int *table_start)
{
    const uint at = s->at + s->n;
    if (at >= end) {
        s->n = 0;
        return;
    }
    if (at >= (s->before + s->nb) * COLS) {
        s->e++;
        load_entry(s, entries, table_start);
    }
    begin_segment(s, at, end);
}

/* The blocks of a warp in the order of their copies. */
typedef struct walk {
    segment s;
    uint i, k; /* block in the segment; how many of it were had before */
    uint ids[LANES];
} walk;

/* The pool's block that comes next, and its KV head; false at the end. */
static inline bool next_block(walk *w, uint end, __global const int *entries,
                              __global const int *table_start,
                              __global const int *tables, uint *blk, uint *head)
{
    while (w->s.n > 0 && w->i >= w->s.n) {
        next_segment(&w->s, end, entries, table_start);
        w->i = WARP;
        w->k = 0;
    }
    if (w->s.n == 0)
        return false;
    if (w->k % 32 == 0)
        EACH_LANE
        {
            const uint j = min(w->i + LANE * WARPS, w->s.n - 1);
            w->ids[ME] = (uint)tables[w->s.table + w->s.blk + j];
        }
    *blk = warp_pick(w->ids, w->k % 32);
    *head = w->s.col / TILES;
    w->i += WARPS;
    w->k++;
    return true;
}

/* The n partials of a column, of groups `first` and after: its n_heads rows at
 * `to`. `weight`: PARTS floats of local memory that nobody else uses. By all
 * work-items of the group. */
static void merge_column(__global float *partials, uint first, uint n,
                         uint n_heads, __local float *weight,
                         __global float *to)
{
    const uint lid = (uint)get_local_id(0);
    for (uint i = lid; i < n * n_heads; i += WG)
        weight[i] = part_read4(BULK_ML(partials, 2 * (first + i / n_heads) +
                                                     (i < n_heads)) +
                               i % n_heads * 4)
                        .x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint j = lid * 4; j < n_heads * HD; j += WG * 4) {
        const uint h = j / HD;
        float top = NO_MAX, sum = 0;
        float4 acc = (float4)(0);
        for (uint i = 0; i < n; i++)
            top = fmax(top, weight[i * n_heads + h]);
        _Pragma("unroll 8") for (uint i = 0; i < n; i++)
        {
            const uint p = 2 * (first + i) + (i == 0);
            const float f = warp_exp2(weight[i * n_heads + h] - top);
            const float4 o = part_read4(BULK_O(partials, p) + j);
            const float4 ml = part_read4(BULK_ML(partials, p) + h * 4);
            sum = FMA(f, ml.y, sum);
            acc.x = FMA(f, o.x, acc.x);
            acc.y = FMA(f, o.y, acc.y);
            acc.z = FMA(f, o.z, acc.z);
            acc.w = FMA(f, o.w, acc.w);
        }
        vstore4(acc / sum, 0, to + j);
    }
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void attn_bulk(
    CVIEW(float, q), const int q_stride, VIEW(float, out), const int out_stride,
    CVIEW(int, table_start), CVIEW(int, tables), CVIEW(int, entries),
    const int n_entries, VIEW(float, partials), VIEW(int, count),
    const float scale, const float softcap, KV_CPLANE(kp), KV_CPLANE(vp))
{
    CUSE(float, q);
    USE(float, out);
    CUSE(int, table_start);
    CUSE(int, tables);
    CUSE(int, entries);
    USE(float, partials);
    USE(int, count);
    __local __attribute__((aligned(128))) uchar ring[WARPS * SLOTS * 2 * TILE];
    __local ulong bars[WARPS * SLOTS];
    __local float part[PARTS];
    __local float part_max[WARPS * HEADS], part_sum[WARPS * HEADS];
    __local uint late[1], is_last[1];
    __local segment from[1];
    const uint lid = (uint)get_local_id(0), warp = WARP;
    const uint group = (uint)get_group_id(0);
    __local uchar *const mine = ring + warp * (SLOTS * 2 * TILE);
    __local ulong *const bar = bars + warp * SLOTS;
    const float by = q_scale(scale);

    /* Where the group's blocks begin: one look at all entries at once, each
     * read whole before it is known to be the one, since every read that waits
     * for another costs a launch that reads little a tenth of its time. */
    __global const int *last = entries + (n_entries - 1) * 8;
    const uint total = (uint)(last[5] + last[6]) * COLS;
    const uint span = (uint)last[7];
    const uint begin = min(group * span, total), end = min(begin + span, total);
    if (lid == 0)
        late[0] = 0;
    ONE_LANE
    {
        for (uint s = 0; s < SLOTS; s++)
            bar_init(bar + s, 1);
        WARP_FENCE();
    }
    segment s = {.n = 0};
    for (uint e = lid; e < (uint)n_entries; e += WG) {
        s.e = e;
        load_entry(&s, entries, table_start);
        if (begin >= s.before * COLS && begin < (s.before + s.nb) * COLS)
            from[0] = s;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (begin < end) {
        s = from[0];
        begin_segment(&s, begin, end);
    } else {
        s.n = 0;
    }
    walk w;
    w.s = s;
    w.i = warp;
    w.k = 0;
#define FETCH(slot)                                                            \
    do {                                                                       \
        uint blk_, head_;                                                      \
        if (next_block(&w, end, entries, table_start, tables, &blk_, &head_))  \
            ONE_LANE                                                           \
            {                                                                  \
                __local uchar *to_ = mine + (slot) * (2 * TILE);               \
                bar_announce(bar + (slot), 2 * TILE);                          \
                bulk_copy(to_, KV_CTILE(kp, blk_, head_), TILE, bar + (slot)); \
                bulk_copy(to_ + TILE, KV_CTILE(vp, blk_, head_), TILE,         \
                          bar + (slot));                                       \
            }                                                                  \
    } while (0)
    for (uint slot = 0; slot < SLOTS; slot++)
        FETCH(slot);

    uint turn = 0; /* blocks that this warp is through with */
    while (s.n > 0) {
        const uint kvh = s.col / TILES, g0 = (s.col - kvh * TILES) * HEADS;
        uint qf[HT][K16][LANES][2];
        float o[HT][K16][LANES][4];
        float m0[HT][LANES], m1[HT][LANES], l0[HT][LANES], l1[HT][LANES];
        UNROLL
        for (uint t = 0; t < HT; t++) {
            EACH_LANE
            {
                const uint g = g0 + t * 8 + LANE / 4;
                const bool on = g < G;
                __global const float *row = q + (ulong)s.tok * q_stride +
                                            (kvh * G + (on ? g : 0)) * HD +
                                            2 * (LANE % 4);
                UNROLL
                for (uint d = 0; d < K16; d++) {
                    const float x0 = row[d * 16], x1 = row[d * 16 + 1];
                    const float x2 = row[d * 16 + 8], x3 = row[d * 16 + 9];
                    qf[t][d][ME][0] = on ? pack2_sat(x0 * by, x1 * by) : 0;
                    qf[t][d][ME][1] = on ? pack2_sat(x2 * by, x3 * by) : 0;
                    o[t][d][ME][0] = o[t][d][ME][1] = 0;
                    o[t][d][ME][2] = o[t][d][ME][3] = 0;
                }
                m0[t][ME] = m1[t][ME] = NO_MAX;
                l0[t][ME] = l1[t][ME] = 0;
            }
        }
        const int end_key = s.first + s.n_keys;
        for (uint i = warp; i < s.n; i += WARPS, turn++) {
            const uint slot = turn % SLOTS;
            __local uchar *kt = mine + slot * (2 * TILE), *vt = kt + TILE;
            const int key0 = (int)(((uint)s.first / BS + s.blk + i) * (uint)BS);
            if (!bar_wait(bar + slot, turn / SLOTS & 1))
                late[0] = 1;
            WARP_SYNC();
            /* V of what lies past the end may hold anything, and 0 * NaN is
             * NaN. */
            if (key0 + BS > end_key) {
                const uint left = (uint)(end_key - key0);
                EACH_LANE
                for (uint c = LANE / 16; c < HD / 8; c += 2)
                    for (uint t = left + LANE % 16; t < BS; t += 16)
                        ((__local uint4 *)vt)[c * BS + t] = (uint4)(0);
                WARP_FENCE();
                WARP_SYNC();
            }
            uint k_at[LANES], v_at[LANES];
            EACH_LANE
            {
                const uint t = LANE % 8, i = LANE / 8;
                k_at[ME] = warp_at(kt, (i / 2 * BS + i % 2 * 8 + t) * 16);
                v_at[ME] = warp_at(vt, (i % 2 * BS + i / 2 * 8 + t) * 16);
            }
            UNROLL
            for (uint sub = 0; sub < BS / 16; sub++) {
                const int key = key0 + (int)sub * 16;
                if (BS > 16 && (key >= end_key || key + 16 <= s.first))
                    continue;
                float c[HT][LANES][4];
                uint a[LANES][4], p0[LANES], p1[LANES];
                uint b[HT][LANES][2];
                float r0[HT][LANES], r1[HT][LANES];
                UNROLL
                for (uint t = 0; t < HT; t++)
                    EACH_LANE
                c[t][ME][0] = c[t][ME][1] = c[t][ME][2] = c[t][ME][3] = 0;
                UNROLL
                for (uint d = 0; d < K16; d++) {
                    LDMATRIX(a, kt, k_at, (d * 2 * BS + sub * 16) * 16);
                    UNROLL
                    for (uint t = 0; t < HT; t++)
                        MMA(c[t], a, qf[t][d], 0);
                }
                UNROLL
                for (uint t = 0; t < HT; t++) {
                    float n0[LANES], n1[LANES], x0[LANES], x1[LANES];
                    EACH_LANE
                    {
                        const int k0 = key + (int)(LANE / 4), k1 = k0 + 8;
                        const bool on0 = k0 >= s.first && k0 < end_key;
                        const bool on1 = k1 >= s.first && k1 < end_key;
                        UNROLL
                        for (uint j = 0; j < 4; j++)
                            c[t][ME][j] = cap_logit(c[t][ME][j], softcap);
                        n0[ME] = m0[t][ME];
                        n1[ME] = m1[t][ME];
                        if (on0) {
                            n0[ME] = fmax(n0[ME], c[t][ME][0]);
                            n1[ME] = fmax(n1[ME], c[t][ME][1]);
                        }
                        if (on1) {
                            n0[ME] = fmax(n0[ME], c[t][ME][2]);
                            n1[ME] = fmax(n1[ME], c[t][ME][3]);
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
                        const bool on0 = k0 >= s.first && k0 < end_key;
                        const bool on1 = k1 >= s.first && k1 < end_key;
                        const float e0 = warp_exp2(c[t][ME][0] - n0[ME]);
                        const float e1 = warp_exp2(c[t][ME][1] - n1[ME]);
                        const float e2 = warp_exp2(c[t][ME][2] - n0[ME]);
                        const float e3 = warp_exp2(c[t][ME][3] - n1[ME]);
                        const float w0 = on0 ? e0 : 0.0f, w1 = on0 ? e1 : 0.0f;
                        const float w2 = on1 ? e2 : 0.0f, w3 = on1 ? e3 : 0.0f;
                        r0[t][ME] = warp_exp2(m0[t][ME] - n0[ME]);
                        r1[t][ME] = warp_exp2(m1[t][ME] - n1[ME]);
                        l0[t][ME] = l0[t][ME] * r0[t][ME] + w0 + w2;
                        l1[t][ME] = l1[t][ME] * r1[t][ME] + w1 + w3;
                        m0[t][ME] = n0[ME];
                        m1[t][ME] = n1[ME];
                        p0[ME] = pack2(w0, w1);
                        p1[ME] = pack2(w2, w3);
                    }
                    TRANSPOSE(p0, p0);
                    TRANSPOSE(p1, p1);
                    EACH_LANE
                    {
                        b[t][ME][0] = p0[ME];
                        b[t][ME][1] = p1[ME];
                    }
                }
                UNROLL
                for (uint d = 0; d < K16; d++) {
                    LDMATRIX_T(a, vt, v_at, (d * 2 * BS + sub * 16) * 16);
                    UNROLL
                    for (uint t = 0; t < HT; t++) {
                        EACH_LANE
                        {
                            o[t][d][ME][0] *= r0[t][ME];
                            o[t][d][ME][1] *= r1[t][ME];
                            o[t][d][ME][2] *= r0[t][ME];
                            o[t][d][ME][3] *= r1[t][ME];
                        }
                        MMA(o[t][d], a, b[t], 0);
                    }
                }
            }
            WARP_SYNC(); /* every lane has read the slot */
            FETCH(slot);
        }

        /* The warps' shares of the segment. */
        UNROLL
        for (uint t = 0; t < HT; t++) {
            float x0[LANES], x1[LANES];
            UNROLL
            for (uint mask = 4; mask < 32; mask *= 2) {
                warp_xor(x0, l0[t], mask);
                warp_xor(x1, l1[t], mask);
                EACH_LANE
                {
                    l0[t][ME] += x0[ME];
                    l1[t][ME] += x1[ME];
                }
            }
            EACH_LANE
            {
                const uint h = warp * HEADS + t * 8 + 2 * (LANE % 4);
                if (LANE < 4) {
                    part_max[h] = m0[t][ME];
                    part_max[h + 1] = m1[t][ME];
                    part_sum[h] = l0[t][ME];
                    part_sum[h + 1] = l1[t][ME];
                }
                UNROLL
                for (uint d = 0; d < K16; d++) {
                    __local float *to = part + h * HD + d * 16 + LANE / 4;
                    to[0] = o[t][d][ME][0];
                    to[HD] = o[t][d][ME][1];
                    to[8] = o[t][d][ME][2];
                    to[HD + 8] = o[t][d][ME][3];
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const uint n_heads = min((uint)HEADS, (uint)G - g0);
        const bool whole = s.n == s.nb;
        const uint p = 2 * group + (s.blk == 0);
        __global float *const to =
            out + (ulong)s.tok * out_stride + (kvh * G + g0) * HD;
        for (uint j = lid * 4; j < n_heads * HD; j += WG * 4) {
            const uint h = j / HD;
            float top = NO_MAX, sum = 0;
            float4 acc = (float4)(0);
            UNROLL
            for (uint i = 0; i < WARPS; i++)
                top = fmax(top, part_max[i * HEADS + h]);
            UNROLL
            for (uint i = 0; i < WARPS; i++) {
                const float f = warp_exp2(part_max[i * HEADS + h] - top);
                __local const float *o = part + i * (HEADS * HD) + j;
                sum = FMA(f, part_sum[i * HEADS + h], sum);
                acc.x = FMA(f, o[0], acc.x);
                acc.y = FMA(f, o[1], acc.y);
                acc.z = FMA(f, o[2], acc.z);
                acc.w = FMA(f, o[3], acc.w);
            }
            if (late[0])
                acc = (float4)(NAN); /* nobody may take this for a result */
            if (whole) {
                vstore4(acc / sum, 0, to + j);
            } else {
                part_write4(BULK_O(partials, p) + j, acc.x, acc.y, acc.z,
                            acc.w);
                if (j == h * HD)
                    part_write4(BULK_ML(partials, p) + h * 4, top, sum, 0.0f,
                                0.0f);
            }
        }
        if (!whole) {
            const uint at = s.at - s.blk, first = at / span;
            const uint n = (at + s.nb - 1) / span - first + 1;
            PART_FENCE();
            barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
            if (lid == 0)
                is_last[0] = part_arrive(count + first) == (int)n - 1;
            barrier(CLK_LOCAL_MEM_FENCE);
            if (is_last[0]) {
                PART_FENCE();
                merge_column(partials, first, n, n_heads, part, to);
                /* As it was found, for the next launch. */
                if (lid == 0)
                    part_reset(count + first);
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE); /* before the shares change */
        next_segment(&s, end, entries, table_start);
    }
}

#endif
