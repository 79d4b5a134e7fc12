/* unit/support_op_pair.c: see support_op_pair.h. */
#define _POSIX_C_SOURCE 200809L
#include "support_op_pair.h"

#include "base/half.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void to_stderr(void *user, folio_log_level level, const char *text)
{
    (void)user;
    if (level <= FOLIO_LOG_WARN)
        fprintf(stderr, "%s\n", text);
}

static void open_side(op_pair *p, int side, const char *select)
{
    folio_device_params prm;
    folio_device_params_default(&prm);
    prm.select = select;
    prm.cache_dir = "";
    prm.log.fn = to_stderr;
    folio_status st = folio_device_open(&prm, &p->dev[side]);
    if (st == FOLIO_E_NO_DEVICE && side == ON_DEV) {
        const char *ci = getenv("CI");
        cr_assert(!ci || strcmp(ci, "true") != 0, "no OpenCL device in CI");
        cr_skip_test("no OpenCL device");
    }
    cr_assert_eq(st, FOLIO_OK);
    cr_assert_eq(folio_queue_open(p->dev[side], &p->q[side]), FOLIO_OK);
}

void op_pair_open(op_pair *p, uint64_t seed)
{
    *p = (op_pair){.seed = seed};
    printf("seed %llu\n", (unsigned long long)seed);
    open_side(p, ON_DEV, getenv("FOLIO_DEVICE") ? NULL : "Portable Computing");
    open_side(p, ON_REF, "host");
    folio_device_info info = {.size = sizeof info};
    folio_device_get_info(p->dev[ON_DEV], &info);
    p->small = strstr(info.name, "clgrind") != NULL;
    cr_assert(!folio_device_is_host(p->dev[ON_DEV]));
}

void op_pair_close(op_pair *p)
{
    op_pair_clear(p);
    for (int side = 0; side < 2; side++) {
        folio_queue_close(&p->q[side]);
        folio_device_close(&p->dev[side]);
    }
}

void op_pair_cap_work_groups(const char *n)
{
    cr_assert_eq(setenv("POCL_MAX_WORK_GROUP_SIZE", n, 1), 0);
}

uint32_t op_pair_u32(op_pair *p, uint32_t below)
{
    uint32_t out[4];
    folio_philox4x32(p->seed, p->drawn++, 0, out);
    return out[0] % below;
}

float op_pair_f32(op_pair *p)
{
    return (float)((double)op_pair_u32(p, 1u << 24) * 0x1p-22 - 2.0);
}

void op_pair_floats(op_pair *p, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = op_pair_f32(p);
}

op_mem *op_pair_mem(op_pair *p, const char *name, const void *data,
                    size_t bytes)
{
    cr_assert_lt(p->n_mem, OP_PAIR_MAX_MEM);
    op_mem *m = &p->mem[p->n_mem++];
    *m = (op_mem){.name = name, .bytes = bytes};
    m->init = malloc(bytes);
    cr_assert_not_null(m->init);
    memcpy(m->init, data, bytes);
    for (int side = 0; side < 2; side++)
        cr_assert_eq(folio_buf_open(p->dev[side], bytes, &m->buf[side]),
                     FOLIO_OK);
    return m;
}

op_mem *op_pair_mem_f32(op_pair *p, const char *name, size_t n)
{
    float *data = malloc(n * sizeof *data);
    cr_assert_not_null(data);
    op_pair_floats(p, data, n);
    op_mem *m = op_pair_mem(p, name, data, n * sizeof *data);
    free(data);
    return m;
}

op_mem *op_pair_mem_fill(op_pair *p, const char *name, uint8_t byte,
                         size_t bytes)
{
    uint8_t *data = malloc(bytes);
    cr_assert_not_null(data);
    memset(data, byte, bytes);
    op_mem *m = op_pair_mem(p, name, data, bytes);
    free(data);
    return m;
}

void op_mem_within(op_mem *m, op_compare how, double tol, double scale)
{
    m->how = how;
    m->tol = tol;
    m->scale = scale;
}

folio_view op_mem_at(const op_mem *m, int side, size_t offset)
{
    folio_view v = {m->buf[side], offset};
    return v;
}

void op_pair_clear(op_pair *p)
{
    for (int i = 0; i < p->n_mem; i++) {
        for (int side = 0; side < 2; side++)
            folio_buf_close(&p->mem[i].buf[side]);
        free(p->mem[i].init);
    }
    p->n_mem = 0;
}

/* ---- run and compare ------------------------------------------------------
 */

static void put_all(op_pair *p, int side)
{
    for (int i = 0; i < p->n_mem; i++)
        cr_assert_eq(folio_queue_write(p->q[side],
                                       op_mem_at(&p->mem[i], side, 0),
                                       p->mem[i].init, p->mem[i].bytes),
                     FOLIO_OK);
}

/* A write and not a fill: Oclgrind takes only the first bytes of a filled
 * buffer for initialised. */
static void put_bytes(op_pair *p, folio_buf *buf, uint8_t byte)
{
    size_t n = folio_buf_bytes(buf);
    uint8_t *data = malloc(n);
    cr_assert_not_null(data);
    memset(data, byte, n);
    cr_assert_eq(folio_queue_write(p->q[ON_DEV], (folio_view){buf, 0}, data, n),
                 FOLIO_OK);
    free(data);
}

static uint8_t *get_one(op_pair *p, int side, int i)
{
    uint8_t *data = malloc(p->mem[i].bytes);
    cr_assert_not_null(data);
    cr_assert_eq(folio_queue_read(p->q[side], op_mem_at(&p->mem[i], side, 0),
                                  data, p->mem[i].bytes),
                 FOLIO_OK);
    return data;
}

static double value_at(const op_mem *m, const uint8_t *data, size_t i)
{
    if (m->how == CMP_F16) {
        uint16_t h;
        memcpy(&h, data + 2 * i, 2);
        return (double)folio_f16_to_f32(h);
    }
    float f;
    memcpy(&f, data + 4 * i, 4);
    return (double)f;
}

static void compare(const op_mem *m, const uint8_t *want, const uint8_t *got,
                    const char *what)
{
    size_t unit = m->how == CMP_F16 ? 2 : m->how == CMP_F32 ? 4 : 1;
    for (size_t i = 0; i < m->bytes / unit; i++) {
        if (memcmp(want + i * unit, got + i * unit, unit) == 0)
            continue;
        cr_assert_neq(m->how, CMP_EXACT,
                      "%s: byte %zu of %s is %02x, reference %02x", what, i,
                      m->name, got[i], want[i]);
        double w = value_at(m, want, i), g = value_at(m, got, i);
        cr_assert(fabs(g - w) <= m->tol * (fabs(w) + m->scale),
                  "%s: element %zu of %s is %.9g, reference %.9g", what, i,
                  m->name, g, w);
    }
}

static folio_op *open_variant(op_pair *p, int side, const char *name,
                              const void *args, const char *what)
{
    const folio_op_params prm = {.deterministic = true, .exact = true};
    folio_op *op = NULL;
    cr_assert_eq(folio_op_open_variant(p->dev[side], name, &prm, args, &op),
                 FOLIO_OK, "%s: %s does not open", what, name);
    return op;
}

void op_pair_run(op_pair *p, const char *ref, const char *variant,
                 const void *ref_args, void *dev_args, folio_view *scratch,
                 const char *what)
{
    uint8_t *first[OP_PAIR_MAX_MEM];
    folio_op *op = open_variant(p, ON_REF, ref, ref_args, what);
    put_all(p, ON_REF);
    cr_assert_eq(folio_op_run(op, p->q[ON_REF], ref_args), FOLIO_OK,
                 "%s: the reference fails", what);
    folio_op_close(&op);

    op = open_variant(p, ON_DEV, variant, dev_args, what);
    folio_buf *work = NULL;
    if (scratch && folio_op_scratch_bytes(op) > 0) {
        /* Not aligned beyond 4 bytes. */
        cr_assert_eq(folio_buf_open(p->dev[ON_DEV],
                                    folio_op_scratch_bytes(op) + 4, &work),
                     FOLIO_OK);
        *scratch = (folio_view){work, 4};
    }
    for (int turn = 0; turn < 2; turn++) {
        put_all(p, ON_DEV);
        if (work)
            put_bytes(p, work, turn ? 0xff : 0);
        cr_assert_eq(folio_op_run(op, p->q[ON_DEV], dev_args), FOLIO_OK,
                     "%s: %s fails", what, variant);
        for (int i = 0; i < p->n_mem; i++) {
            uint8_t *got = get_one(p, ON_DEV, i);
            if (turn == 0) {
                first[i] = got;
                continue;
            }
            cr_assert(memcmp(first[i], got, p->mem[i].bytes) == 0,
                      "%s: %s gives %s other bits the second time", what,
                      variant, p->mem[i].name);
            uint8_t *want = get_one(p, ON_REF, i);
            compare(&p->mem[i], want, got, what);
            free(want);
            free(got);
            free(first[i]);
        }
    }
    folio_buf_close(&work);
    folio_op_close(&op);
}

bool op_pair_can(const op_pair *p, const char *variant)
{
    size_t n;
    const folio_variant *rows = folio_variants(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, variant) == 0)
            return (rows[i].needs & ~folio_device_caps(p->dev[ON_DEV])) == 0;
    return false;
}
