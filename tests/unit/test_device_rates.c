/* What a device gives at best: figures that a machine can have, on the host and
 * through PoCL, within a pretended limit, and no more written than asked. */
#include "unit/device_util.h"
#include "unit/fail_alloc.h"

#include <criterion/criterion.h>
#include <string.h>

static void check_rates(const folio_device_rates *r)
{
    cr_expect(r->read_bytes_s > 1e8 && r->read_bytes_s < 1e13, "%g bytes/s",
              r->read_bytes_s);
    cr_expect(r->fma_flop_s > 1e8 && r->fma_flop_s < 1e15, "%g FLOP/s",
              r->fma_flop_s);
    cr_expect_eq(r->matrix_flop_s, 0.0);
}

static folio_device *open_host(kept_log *k, uint64_t max_alloc)
{
    folio_device *dev = NULL;
    folio_device_params p;
    folio_device_params_default(&p);
    p.select = "host";
    p.n_threads = 2;
    p.max_alloc_bytes = max_alloc;
    p.log = keep_log(k);
    cr_assert_eq(folio_device_open(&p, &dev), FOLIO_OK, "%s", k->text);
    return dev;
}

Test(device_rates, host)
{
    kept_log k;
    folio_device_rates r = {.size = sizeof r};
    folio_device *dev = open_host(&k, 0);
    cr_assert_eq(folio_device_measure(dev, &r), FOLIO_OK, "%s", k.text);
    check_rates(&r);
    cr_expect_eq(r.read_array, 256u << 20);
    cr_expect_eq(folio_device_live_bytes(dev), 0);
    folio_device_close(&dev);
}

Test(device_rates, pocl)
{
    kept_log k;
    folio_device_rates r = {.size = sizeof r};
    folio_device *dev = open_pocl("", &k);
    cr_assert_eq(folio_device_measure(dev, &r), FOLIO_OK, "%s", k.text);
    check_rates(&r);
    cr_expect_eq(folio_device_live_bytes(dev), 0);
    folio_device_close(&dev);
}

Test(device_rates, keeps_to_the_limit)
{
    kept_log k;
    folio_device_rates r = {.size = sizeof r};
    folio_device *dev = open_host(&k, 1 << 20);
    cr_assert_eq(folio_device_measure(dev, &r), FOLIO_OK, "%s", k.text);
    cr_expect_eq(r.read_array, 1 << 20);
    folio_device_close(&dev);
}

Test(device_rates, refuses_and_writes_no_more_than_asked)
{
    kept_log k;
    folio_device *dev = open_host(&k, 1 << 20);
    union {
        folio_device_rates r;
        uint8_t bytes[sizeof(folio_device_rates)];
    } u;
    cr_expect_eq(folio_device_measure(NULL, &u.r), FOLIO_E_INVAL);
    cr_expect_eq(folio_device_measure(dev, NULL), FOLIO_E_INVAL);
    memset(&u, 0xee, sizeof u);
    u.r.size = 0;
    cr_expect_eq(folio_device_measure(dev, &u.r), FOLIO_E_INVAL);
    cr_expect_eq(u.bytes[sizeof u - 1], 0xee);
    u.r.size = offsetof(folio_device_rates, fma_flop_s);
    cr_assert_eq(folio_device_measure(dev, &u.r), FOLIO_OK, "%s", k.text);
    cr_expect_eq(u.r.size, offsetof(folio_device_rates, fma_flop_s));
    cr_expect_gt(u.r.read_bytes_s, 0.0);
    for (size_t i = u.r.size; i < sizeof u; i++)
        cr_expect_eq(u.bytes[i], 0xee, "byte %zu", i);
    folio_device_close(&dev);
}

Test(device_rates, without_memory)
{
    kept_log k;
    folio_device *dev = open_host(&k, 1 << 20);
    bool refused = true;
    for (int nth = 1; refused; nth++) {
        folio_device_rates r = {.size = sizeof r};
        fail_alloc_arm(nth);
        const folio_status st = folio_device_measure(dev, &r);
        refused = fail_alloc_disarm();
        cr_assert_eq(st, refused ? FOLIO_E_NOMEM : FOLIO_OK, "%d", nth);
        cr_expect_eq(r.read_bytes_s > 0.0, !refused);
        cr_expect_eq(folio_device_live_bytes(dev), 0);
    }
    folio_device_close(&dev);
}
