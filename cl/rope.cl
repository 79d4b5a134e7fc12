/* rope.cl: rope_append: turns q in place, stores turned k and v at their slots.
 * After kv.clh. Besides KV's, the host passes ROT (rot_dim), INTERLEAVED, HAS_Q
 * and WG. */

/* The pair (i0, i1) that element d < ROT of a head belongs to. */
#if INTERLEAVED
#define PAIR_FIRST(i)  (2 * (i))
#define PAIR_SECOND(i) (2 * (i) + 1)
#define PAIR_OF(d)     ((d) / 2)
#define IS_FIRST(d)    ((d) % 2 == 0)
#else
#define PAIR_FIRST(i)  (i)
#define PAIR_SECOND(i) ((i) + ROT / 2)
#define PAIR_OF(d)     ((d) % (ROT / 2))
#define IS_FIRST(d)    ((d) < ROT / 2)
#endif

/* Work-items of a token: heads * ROT / 2 turn one pair of q each, then KVH * HD
 * store one element of k and of v each. Group (tok, c) serves WG of them. A
 * remainder is a difference: one division each. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void rope_append_wi(
#if HAS_Q
    VIEW(float, q), const int q_stride, const int heads,
#endif
    CVIEW(float, k), const int k_stride, CVIEW(float, v), const int v_stride,
    CVIEW(int, slot),
#if ROT > 0
    CVIEW(int, pos), CVIEW(float, table), const int n_pos,
#endif
    const int n_slots, KV_PLANE(kp), KV_PLANE(vp))
{
    CUSE(float, k);
    CUSE(float, v);
    CUSE(int, slot);
    const ulong tok = get_group_id(0);
    uint i = (uint)get_group_id(1) * WG + (uint)get_local_id(0);
#if ROT > 0
    CUSE(int, pos);
    CUSE(float, table);
    /* The uploader checks positions; the clamp only keeps reads inside. */
    table += (ulong)clamp(pos[tok], 0, n_pos - 1) * ROT;
#if HAS_Q
    USE(float, q);
    const uint n_turn = (uint)heads * (ROT / 2);
    if (i < n_turn) {
        const uint head = i / (ROT / 2), pair = i - head * (ROT / 2);
        const float c = table[2 * pair], s = table[2 * pair + 1];
        __global float *x = q + tok * q_stride + (ulong)head * HD;
        const float x0 = x[PAIR_FIRST(pair)], x1 = x[PAIR_SECOND(pair)];
        x[PAIR_FIRST(pair)] = x0 * c - x1 * s;
        x[PAIR_SECOND(pair)] = x1 * c + x0 * s;
        return;
    }
    i -= n_turn;
#endif
#endif
    const int at = slot[tok];
    if (i < KVH * HD && at >= 0 && at < n_slots) {
        const uint head = i / HD, d = i - head * HD;
        const uint blk = (uint)at / BS, t = (uint)at - blk * BS;
        __global const float *x = k + tok * k_stride + (ulong)head * HD;
        float turned = x[d];
#if ROT > 0
        if (d < ROT) {
            const uint pair = PAIR_OF(d);
            const float c = table[2 * pair], s = table[2 * pair + 1];
            turned = IS_FIRST(d) ? turned * c - x[PAIR_SECOND(pair)] * s
                                 : turned * c + x[PAIR_FIRST(pair)] * s;
        }
#endif
        __global KV_ELEM *k_tile = KV_TILE(kp, blk, head);
        __global KV_ELEM *v_tile = KV_TILE(vp, blk, head);
        KV_STORE(turned, k_tile, kv_k_at(t, d));
        KV_STORE(v[tok * v_stride + i], v_tile, kv_v_at(t, d));
    }
}
