/* attn_cpu.cl: attention for processors that run a work-item as a thread:
 * work-groups of one, vectors written out, no local memory. Group (step, KV
 * head) has tok_step tokens and walks tiles of KEYS keys, counted from key 0,
 * that are turned into floats once for all its rows, a row being a (token,
 * query head). A row looks at nothing but its own keys, in the same order
 * whoever is beside it: its bits do not depend on the batch. After attn.clh. */

#define KEYS 16
#define ROWS 16 /* of a pass; a multiple of 4 */
#define HDP  ((HD + 15) / 16 * 16)

/* 2^x for x <= 0, no infinities: the nearest integer by adding 1.5 * 2^23, then
 * the Taylor series of e^(f ln 2), |f| <= 0.5. */
static inline float16 exp2_v(float16 x)
{
    const float16 magic = (float16)(12582912.0f);
    x = fmax(x, (float16)(-126.0f));
    const float16 t = x + magic;
    const float16 f = x - (t - magic);
    const int16 n = as_int16(t) - as_int16(magic);
    float16 y = (float16)(1.5252734e-5f);
    y = FMA(y, f, (float16)(1.5403530e-4f));
    y = FMA(y, f, (float16)(1.3333558e-3f));
    y = FMA(y, f, (float16)(9.6181291e-3f));
    y = FMA(y, f, (float16)(5.5504109e-2f));
    y = FMA(y, f, (float16)(2.4022651e-1f));
    y = FMA(y, f, (float16)(6.9314718e-1f));
    y = FMA(y, f, (float16)(1.0f));
    return y * as_float16((n + 127) << 23);
}

/* Sixteen elements from p on. A half without branches: the exponent is moved by
 * a product, which also makes subnormals right; infinities and NaNs get the
 * largest exponent back. */
static inline float16 load16(__global const KV_ELEM *p)
{
#if KV_F16
    const uint16 h = convert_uint16(vload16(0, (__global const ushort *)p));
    const uint16 u = (h & 0x7fffu) << 13;
    const uint16 special =
        as_uint16(u >= (uint16)(0x0f800000u)) & (uint16)(0x7f800000u);
    const float16 f = as_float16(u) * (float16)(0x1p112f);
    return as_float16(as_uint16(f) | special | (h & 0x8000u) << 16);
#else
    return vload16(0, p);
#endif
}

/* Keys t..t+n-1 of a tile to columns of k [HD][KEYS]. */
static inline void load_keys(__global const KV_ELEM *tile, uint t, uint n,
                             float *k)
{
#if XK == 1 && YK == 1 && BS % KEYS == 0
    /* A tile of keys lies in one block, from its start on; what is stored
     * behind the last key is a lane that nobody looks at. */
    for (uint d = 0; d < HD; d++)
        vstore16(load16(tile + d * BS + t / KEYS * KEYS), 0,
                 k - t % KEYS + d * KEYS);
#else
    for (uint i = 0; i < n; i++) {
#if YK == 1 && XK % 16 == 0
        for (uint d = 0; d < HD; d += 16) {
            float x[16];
            vstore16(load16(tile + kv_k_at(t + i, d)), 0, x);
            for (uint l = 0; l < 16; l++)
                k[(d + l) * KEYS + i] = x[l];
        }
#else
        for (uint d = 0; d < HD; d++)
            k[d * KEYS + i] = KV_LOAD(tile, kv_k_at(t + i, d));
#endif
    }
#endif
}

/* Values of tokens t..t+n-1 to rows of v [KEYS][HDP]. */
static inline void load_values(__global const KV_ELEM *tile, uint t, uint n,
                               float *v)
{
    for (uint i = 0; i < n; i++) {
#if YV == 1 && XV % 16 == 0
        for (uint d = 0; d < HD; d += 16)
            vstore16(load16(tile + kv_v_at(t + i, d)), 0, v + i * HDP + d);
#else
        for (uint d = 0; d < HD; d++)
            v[i * HDP + d] = KV_LOAD(tile, kv_v_at(t + i, d));
#endif
    }
}

/* Logits of four rows. */
static inline void dot4(const float *q, const float *k, float *s)
{
    float16 a = (float16)(0), b = a, c = a, e = a;
    for (uint d = 0; d < HD; d++) {
        const float16 kk = vload16(0, k + d * KEYS);
        a = FMA((float16)(q[d]), kk, a);
        b = FMA((float16)(q[HD + d]), kk, b);
        c = FMA((float16)(q[2 * HD + d]), kk, c);
        e = FMA((float16)(q[3 * HD + d]), kk, e);
    }
    vstore16(a, 0, s);
    vstore16(b, 1, s);
    vstore16(c, 2, s);
    vstore16(e, 3, s);
}

/* Weights of one row over columns first..last-1, 0 elsewhere. *top and sum move
 * on; returns what older results must be multiplied with. */
static inline float weigh(float *s, int first, int last, float softcap,
                          float *top, float *sum)
{
    const int16 n =
        (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const int16 on = (n >= (int16)(first)) & (n < (int16)(last));
    float new_top = *top;
    for (int j = first; j < last; j++) {
        s[j] = cap_logit(s[j], softcap);
        new_top = fmax(new_top, s[j]);
    }
    const float fall = fall_of(*top, new_top);
    const float16 x = select((float16)(new_top), vload16(0, s), on);
    const float16 p = select((float16)(0), exp2_v(x - (float16)(new_top)), on);
    vstore16(p, 0, s);
    vstore16(vload16(0, sum) * (float16)(fall) + p, 0, sum);
    *top = new_top;
    return fall;
}

/* o [rows][HDP] += p [rows][KEYS] over columns first..last-1 times v. */
static inline void mix4(float *o, const float *p, const float *v, int first,
                        int last)
{
    for (uint d = 0; d < HDP; d += 16) {
        float16 a = vload16(0, o + d), b = vload16(0, o + HDP + d);
        float16 c = vload16(0, o + 2 * HDP + d);
        float16 e = vload16(0, o + 3 * HDP + d);
        for (int j = first; j < last; j++) {
            const float16 vv = vload16(0, v + j * HDP + d);
            a = FMA((float16)(p[j]), vv, a);
            b = FMA((float16)(p[KEYS + j]), vv, b);
            c = FMA((float16)(p[2 * KEYS + j]), vv, c);
            e = FMA((float16)(p[3 * KEYS + j]), vv, e);
        }
        vstore16(a, 0, o + d);
        vstore16(b, 0, o + HDP + d);
        vstore16(c, 0, o + 2 * HDP + d);
        vstore16(e, 0, o + 3 * HDP + d);
    }
}

static inline void mix1(float *o, const float *p, const float *v, int first,
                        int last)
{
    for (uint d = 0; d < HDP; d += 16) {
        float16 a = vload16(0, o + d);
        for (int j = first; j < last; j++)
            a = FMA((float16)(p[j]), vload16(0, v + j * HDP + d), a);
        vstore16(a, 0, o + d);
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void attn_cpu(
    CVIEW(float, q), const int q_stride, VIEW(float, out), const int out_stride,
    CVIEW(int, q_start), CVIEW(int, kv_len), CVIEW(int, table_start),
    CVIEW(int, tables), const int n_seq, const int n_tok, const int window,
    const float scale, const float softcap, const int tok_step, KV_CPLANE(kp),
    KV_CPLANE(vp))
{
    CUSE(float, q);
    USE(float, out);
    CUSE(int, q_start);
    CUSE(int, kv_len);
    CUSE(int, table_start);
    CUSE(int, tables);
    float keys[HD * KEYS], values[KEYS * HDP];
    float qs[ROWS * HD], o[ROWS * HDP], s[ROWS * KEYS], sum[ROWS * KEYS];
    float top[ROWS];
    int row_first[ROWS], row_end[ROWS];
    const int step = (int)get_group_id(0);
    const uint kvh = (uint)get_group_id(1);
    const int tok_end = min(n_tok, (step + 1) * tok_step);
    const float by = q_scale(scale);
    /* Lanes without a key and pad columns are computed and thrown away. */
    for (uint i = 0; i < HD * KEYS; i++)
        keys[i] = 0;
    for (uint i = 0; i < KEYS * HDP; i++)
        values[i] = 0;

    /* A pass: tokens tok..stop-1 of one sequence, heads h0..h0+heads-1. */
    int tok = step * tok_step, h0 = 0;
    while (tok < tok_end) {
        const int seq = sequence_of(q_start, n_seq, tok);
        const int past = kv_len[seq] - q_start[seq + 1]; /* pos = past + tok */
        const int stop = min(tok_end, q_start[seq + 1]);
        if (stop <= tok)
            break; /* tokens of no sequence */
        const int heads = min(G - h0, ROWS);
        const int n = (stop - tok) * heads;
        __global const int *table = tables + table_start[seq];
        int first = INT_MAX, end = 0;
        for (int r = 0; r < ROWS; r++) {
            row_first[r] = 0;
            row_end[r] = 0;
            top[r] = NO_MAX;
            vstore16((float16)(0), r, sum);
        }
        for (uint i = 0; i < ROWS * HDP; i++)
            o[i] = 0;
        for (uint i = 0; i < ROWS * HD; i++)
            qs[i] = 0;
        for (int t = tok, r = 0; t < stop; t++) {
            __global const float *row =
                q + (ulong)t * q_stride + (kvh * G + h0) * HD;
            const int from = first_visible(past + t, window);
            first = min(first, from);
            end = max(end, past + t + 1);
            for (int h = 0; h < heads; h++, r++) {
                row_first[r] = from;
                row_end[r] = past + t + 1;
                for (uint d = 0; d < HD; d++)
                    qs[r * HD + d] = row[h * HD + d] * by;
            }
        }
        for (int base = first / KEYS * KEYS; base < end; base += KEYS) {
            int key = max(base, first);
            const int key_end = min(base + KEYS, end);
            while (key < key_end) {
                const uint at = (uint)key / BS, t = token_in((uint)key, at);
                const uint blk = (uint)table[at];
                const uint m = min((uint)BS - t, (uint)(key_end - key));
                load_keys(KV_CTILE(kp, blk, kvh), t, m, keys + (key - base));
                load_values(KV_CTILE(vp, blk, kvh), t, m,
                            values + (key - base) * HDP);
                key += (int)m;
            }
            for (int r = 0; r < n; r += 4) {
                dot4(qs + r * HD, keys, s + r * KEYS);
                bool same = true;
                int f[4], e[4];
                for (int i = 0; i < 4; i++) {
                    f[i] = max(row_first[r + i] - base, 0);
                    e[i] = min(row_end[r + i] - base, KEYS);
                    same = same && f[i] == f[0] && e[i] == e[0];
                    if (f[i] >= e[i])
                        continue;
                    const float fall =
                        weigh(s + (r + i) * KEYS, f[i], e[i], softcap,
                              top + r + i, sum + (r + i) * KEYS);
                    if (fall != 1.0f) {
                        for (uint d = 0; d < HDP; d++)
                            o[(r + i) * HDP + d] *= fall;
                    }
                }
                if (same && f[0] < e[0]) {
                    mix4(o + r * HDP, s + r * KEYS, values, f[0], e[0]);
                    continue;
                }
                for (int i = 0; i < 4; i++)
                    mix1(o + (r + i) * HDP, s + (r + i) * KEYS, values, f[i],
                         e[i]);
            }
        }
        for (int t = tok, r = 0; t < stop; t++) {
            __global float *row =
                out + (ulong)t * out_stride + (kvh * G + h0) * HD;
            for (int h = 0; h < heads; h++, r++) {
                float total = 0;
                for (uint j = 0; j < KEYS; j++)
                    total += sum[r * KEYS + j];
                for (uint d = 0; d < HD; d++)
                    row[h * HD + d] = row_end[r] > row_first[r]
                                          ? o[r * HDP + d] / total
                                          : 0.0f;
            }
        }
        /* With more heads than rows, tok_step is 1. */
        h0 += heads;
        if (h0 >= G) {
            h0 = 0;
            tok = stop;
        }
    }
}
