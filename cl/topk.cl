/* topk.cl: the k largest of each row in two launches: of each part of a row,
 * then of the parts' winners. Exact, so a row depends on nothing but itself.
 *
 * A value and its index are one 64-bit key: larger key, better place. Upper
 * half: the value's order as an unsigned number, -0 as 0; lower half: the
 * inverted index. Key 0 is nothing: a NaN, or an empty place. Work (scratch)
 * holds keys [rows, parts, k] and then NaN counts [rows, parts]. */

static inline ulong key_of(float v, uint i)
{
    uint u = as_uint(v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0;
    if (u == 0x80000000u)
        u = 0;
    u = u >> 31 ? ~u : u | 0x80000000u;
    return (ulong)u << 32 | (ulong)(~i);
}

static inline uint is_nan(float v)
{
    return (as_uint(v) & 0x7fffffffu) > 0x7f800000u ? 1u : 0u;
}

/* Keys lie in pairs of 32 bits: scratch is aligned to those. */
static inline void store_key(ulong key, __global uint *keys, ulong at)
{
    vstore2((uint2)((uint)(key >> 32), (uint)key), at, keys);
}

static inline ulong load_key(__global const uint *keys, ulong at)
{
    const uint2 u = vload2(at, keys);
    return (ulong)u.x << 32 | (ulong)u.y;
}

/* Where the counts begin: behind the keys of all rows. */
static inline ulong nans_at(int parts)
{
    return get_num_groups(0) * (ulong)parts * (2 * K);
}

static inline void store_place(ulong key, __global const float *x,
                               __global int *id, __global float *value)
{
    const uint i = ~(uint)key;
    *id = key == 0 ? -1 : (int)i;
    *value = key == 0 ? 0.0f : x[i];
}

#ifdef TOPK_SCAN
/* ---- one work-item per part, for CPUs: a sorted list of K kept while
 * scanning; most elements are behind its last and cost one comparison. ---- */

static inline void keep(ulong *list, ulong key)
{
    if (key <= list[K - 1])
        return;
    int j = K - 1;
    while (j > 0 && list[j - 1] < key) {
        list[j] = list[j - 1];
        j--;
    }
    list[j] = key;
}

/* Group (row, part): elements PART part .. of the row. */
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void topk_scan_part(
    CVIEW(float, x), const int n_vocab, const int parts, VIEW(uint, work))
{
    CUSE(float, x);
    USE(uint, work);
    const ulong row = get_group_id(0), part = get_group_id(1);
    const ulong g = row * (uint)parts + part;
    const uint begin = (uint)part * PART;
    const uint end = min(begin + PART, (uint)n_vocab);
    ulong list[K];
    uint n_nan = 0;
    for (int j = 0; j < K; j++)
        list[j] = 0;
    x += row * (ulong)n_vocab;
    for (uint i = begin; i < end; i++) {
        const float v = x[i];
        n_nan += is_nan(v);
        keep(list, key_of(v, i));
    }
    for (int j = 0; j < K; j++)
        store_key(list[j], work, g * K + j);
    work[nans_at(parts) + g] = n_nan;
}

/* Group (row). */
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void topk_scan_merge(
    CVIEW(float, x), const int n_vocab, const int parts, CVIEW(uint, work),
    VIEW(int, ids), VIEW(float, values), VIEW(int, n_nan))
{
    CUSE(float, x);
    CUSE(uint, work);
    USE(int, ids);
    USE(float, values);
    USE(int, n_nan);
    const ulong row = get_group_id(0);
    ulong list[K];
    uint count = 0;
    for (int j = 0; j < K; j++)
        list[j] = 0;
    for (uint i = 0; i < (uint)parts * K; i++)
        keep(list, load_key(work, row * (uint)parts * K + i));
    for (uint i = 0; i < (uint)parts; i++)
        count += work[nans_at(parts) + row * (uint)parts + i];
    x += row * (ulong)n_vocab;
    for (int j = 0; j < K; j++)
        store_place(list[j], x, ids + row * K + j, values + row * K + j);
    n_nan[row] = (int)count;
}

#else
/* ---- one work-group per part: K passes, each finds the largest key below the
 * last one found. ---- */

/* Group (row, part): elements PART part .. of the row. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void topk_wg_part(
    CVIEW(float, x), const int n_vocab, const int parts, VIEW(uint, work))
{
    __local ulong tmp[WG];
    __local uint tmp_nan[WG];
    CUSE(float, x);
    USE(uint, work);
    const ulong row = get_group_id(0), part = get_group_id(1);
    const ulong g = row * (uint)parts + part;
    const uint lid = (uint)get_local_id(0);
    const uint begin = (uint)part * PART;
    const uint end = min(begin + PART, (uint)n_vocab);
    x += row * (ulong)n_vocab;
    uint n_nan = 0;
    for (uint i = begin + lid; i < end; i += WG)
        n_nan += is_nan(x[i]);
    n_nan = wg_sum_uint(n_nan, tmp_nan);
    ulong last = ~(ulong)0;
    for (int j = 0; j < K; j++) {
        ulong best = 0;
        for (uint i = begin + lid; i < end; i += WG) {
            const ulong key = key_of(x[i], i);
            if (key < last)
                best = max(best, key);
        }
        last = wg_max_ulong(best, tmp);
        if (lid == 0)
            store_key(last, work, g * K + j);
    }
    if (lid == 0)
        work[nans_at(parts) + g] = n_nan;
}

/* Group (row). */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void topk_wg_merge(
    CVIEW(float, x), const int n_vocab, const int parts, CVIEW(uint, work),
    VIEW(int, ids), VIEW(float, values), VIEW(int, n_nan))
{
    __local ulong tmp[WG];
    __local uint tmp_nan[WG];
    CUSE(float, x);
    CUSE(uint, work);
    USE(int, ids);
    USE(float, values);
    USE(int, n_nan);
    const ulong row = get_group_id(0);
    const uint lid = (uint)get_local_id(0);
    uint count = 0;
    for (uint i = lid; i < (uint)parts; i += WG)
        count += work[nans_at(parts) + row * (uint)parts + i];
    count = wg_sum_uint(count, tmp_nan);
    x += row * (ulong)n_vocab;
    ulong last = ~(ulong)0;
    for (int j = 0; j < K; j++) {
        ulong best = 0;
        for (uint i = lid; i < (uint)parts * K; i += WG) {
            const ulong key = load_key(work, row * (uint)parts * K + i);
            if (key < last)
                best = max(best, key);
        }
        last = wg_max_ulong(best, tmp);
        if (lid == 0)
            store_place(last, x, ids + row * K + j, values + row * K + j);
    }
    if (lid == 0)
        n_nan[row] = (int)count;
}
#endif
