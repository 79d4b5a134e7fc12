/* copy.cl: copy_blocks: whole blocks of K and of V, element by element as raw
 * bits, whatever they mean. After kv.clh. */

#if KV_F16
#define RAW ushort
#else
#define RAW uint
#endif

#define BLOCK_ELEMS ((uint)(KVH * BS * HD))

/* Group (pair, c, plane): elements WG c .. of K (0) or V (1). Pairs are checked
 * by whoever uploads them; one that points outside copies nothing. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void copy_blocks_wi(
    CVIEW(int, pairs), const int n_blocks, KV_PLANE(kp), KV_PLANE(vp))
{
    CUSE(int, pairs);
    const ulong pair = get_group_id(0);
    const bool is_v = get_group_id(2) != 0;
    const uint i = (uint)get_group_id(1) * WG + (uint)get_local_id(0);
    const int src = pairs[2 * pair], dst = pairs[2 * pair + 1];
    if (i < BLOCK_ELEMS && src >= 0 && src < n_blocks && dst >= 0 &&
        dst < n_blocks) {
        __global const RAW *from =
            (__global const RAW *)(is_v ? KV_TILE(vp, src, 0)
                                        : KV_TILE(kp, src, 0));
        __global RAW *to =
            (__global RAW *)(is_v ? KV_TILE(vp, dst, 0) : KV_TILE(kp, dst, 0));
        to[i] = from[i];
    }
}
