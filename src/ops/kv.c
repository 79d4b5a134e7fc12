/* ops/kv.c: sizes of KV elements and blocks, and the layout really used for a
 * head size and a block size. Arithmetic only. */
#include "ops/ops.h"

size_t folio_kv_type_bytes(folio_kv_type t)
{
    switch (t) {
    case FOLIO_KV_F32:
        return 4;
    case FOLIO_KV_F16:
        return 2;
    case FOLIO_KV_I8:
        return 1;
    }
    return 0;
}

size_t folio_kv_block_bytes(const folio_kv_ref *kv)
{
    return (size_t)kv->block_size * (size_t)kv->kv_heads *
           (size_t)kv->head_dim * folio_kv_type_bytes(kv->type);
}

static int32_t fit_dims(int32_t x, int32_t head_dim)
{
    if (x >= 1 && head_dim % x == 0)
        return x;
    int32_t best = 1;
    for (int32_t p = 2; p <= x && head_dim % p == 0; p *= 2)
        best = p;
    return best;
}

static int32_t fit_tokens(int32_t y, int32_t block_size)
{
    return y >= 1 && block_size % y == 0 ? y : 1;
}

folio_kv_layout folio_kv_layout_fit(folio_kv_layout want, int32_t head_dim,
                                    int32_t block_size)
{
    folio_kv_layout out = {
        .xk = fit_dims(want.xk, head_dim),
        .yk = fit_tokens(want.yk, block_size),
        .xv = fit_dims(want.xv, head_dim),
        .yv = fit_tokens(want.yv, block_size),
    };
    return out;
}

folio_kv_layout folio_kv_layout_best(const folio_device *dev, int32_t head_dim,
                                     int32_t block_size)
{
    /* GPUs: 16 bytes of f16 a lane, lanes consecutive in t. CPUs: whole rows;
     * but K by dims on the host device, which takes keys side by side. */
    bool gpu = (folio_device_caps(dev) & FOLIO_CAP_GPU) != 0;
    int32_t x = gpu ? 8 : head_dim;
    int32_t xk = folio_device_is_host(dev) ? 1 : x;
    return folio_kv_layout_fit((folio_kv_layout){xk, 1, x, 1}, head_dim,
                               block_size);
}
