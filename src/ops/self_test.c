/* ops/self_test.c: runs a case on the device and on a private host device,
 * compares, remembers. See self_test.h. */
#include "ops/self_test.h"

#include "base/half.h"
#include "base/hash.h"
#include "ops/attn_plan.h"
#include "ops/choose.h"
#include "ops/self_case.h"
#include "ops/step_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- running ----------------------------------------------------------------
 */

/* One side of a comparison: buffers on a device and what came out. */
typedef struct self_side {
    folio_op *op;
    folio_queue *q;
    folio_buf *bufs[FOLIO_SELF_ARRAYS], *scratch, *work[FOLIO_STEP_WORKS][3];
    void *out[FOLIO_SELF_ARRAYS];
} self_side;

static void close_side(self_side *s)
{
    for (int i = 0; i < FOLIO_SELF_ARRAYS; i++) {
        folio_buf_close(&s->bufs[i]);
        FOLIO_FREE(s->out[i]);
    }
    for (int i = 0; i < FOLIO_STEP_WORKS * 3; i++)
        folio_buf_close(&s->work[i / 3][i % 3]);
    folio_buf_close(&s->scratch);
    folio_queue_close(&s->q);
    folio_op_close(&s->op);
}

static folio_status bind_arrays(folio_self_case *c, folio_device *dev,
                                self_side *s)
{
    for (int i = 0; i < c->n_arrays; i++) {
        const folio_self_array *a = &c->arrays[i];
        FOLIO_RETURN_IF(folio_buf_open(dev, a->bytes, &s->bufs[i]));
        *a->at = s->bufs[i];
        FOLIO_RETURN_IF(folio_queue_write(s->q, (folio_view){.buf = s->bufs[i]},
                                          a->data, a->bytes));
    }
    for (int i = 0; i < c->n_weights; i++)
        c->weight[i].n_views = 1;
    folio_self_step_bind(c);
    size_t bytes = folio_op_scratch_bytes(s->op);
    if (bytes > 0 && c->scratch) {
        FOLIO_RETURN_IF(folio_buf_open(dev, bytes, &s->scratch));
        *c->scratch = (folio_view){.buf = s->scratch};
    }
    return FOLIO_OK;
}

/* `n` ints on the device; no buffer for none. */
static folio_status bind_ints(folio_device *dev, self_side *s, folio_buf **buf,
                              const int32_t *ints, int32_t n, folio_view *v)
{
    if (n == 0)
        return FOLIO_OK;
    size_t bytes = (size_t)n * sizeof *ints;
    FOLIO_RETURN_IF(folio_buf_open(dev, bytes, buf));
    *v = (folio_view){.buf = *buf};
    return folio_queue_write(s->q, *v, ints, bytes);
}

/* How many attention works the case has, and number i of them. */
static int works_of(const folio_self_case *c)
{
    return c->op == FOLIO_OP_ATTN   ? 1
           : c->op == FOLIO_OP_STEP ? c->args.step.n_works
                                    : 0;
}

static folio_attn_work *work_of(folio_self_case *c, int i)
{
    return c->op == FOLIO_OP_ATTN ? &c->args.attn.work : &c->args.step.work[i];
}

/* The work list number i that this op, opened on this device, wants for the
 * case's batch (the arrays of the case hold it). */
static folio_status bind_work(folio_self_case *c, folio_device *dev,
                              self_side *s, int i_work)
{
    folio_status st = FOLIO_OK;
    folio_attn_plan_params p;
    folio_attn_plan_bounds cap;
    folio_attn_plan_counts n;
    folio_attn_work *w = work_of(c, i_work), *first = work_of(c, 0);
    const folio_op *op =
        c->op == FOLIO_OP_STEP ? folio_step_attn(s->op, i_work) : s->op;
    const int32_t *q_start = NULL, *kv_len = NULL;
    int32_t *ints = NULL, max_kv = 1;
    if (!op)
        return FOLIO_OK; /* works without a list */
    for (int i = 0; i < c->n_arrays; i++) {
        if (c->arrays[i].at == &first->q_start.buf)
            q_start = c->arrays[i].data;
        if (c->arrays[i].at == &first->kv_len.buf)
            kv_len = c->arrays[i].data;
    }
    for (int32_t i = 0; i < w->n_seq; i++)
        max_kv = FOLIO_MAX(max_kv, kv_len[i]);
    folio_attn_plan_params_of(op, &p);
    FOLIO_TRY(folio_attn_plan_bound(
        &p, (int32_t)folio_op_count(c->op, &c->args), w->n_seq, max_kv, &cap));
    size_t n_entry = (size_t)cap.entries * FOLIO_ATTN_ENTRY_INTS;
    size_t n_merge = (size_t)cap.merges * FOLIO_ATTN_MERGE_INTS;
    size_t n_tile = (size_t)cap.tiles * FOLIO_ATTN_TILE_INTS;
    ints = folio_calloc(n_entry + n_merge + n_tile, sizeof *ints);
    if (!ints) {
        st = FOLIO_E_NOMEM;
        goto fail;
    }
    int32_t *merges = ints + n_entry, *tiles = merges + n_merge;
    FOLIO_TRY(folio_attn_plan_build(&p, w->n_seq, q_start, kv_len, &cap, ints,
                                    merges, tiles, &n));
    FOLIO_TRY(bind_ints(dev, s, &s->work[i_work][0], ints,
                        n.n_entries * FOLIO_ATTN_ENTRY_INTS, &w->entries));
    FOLIO_TRY(bind_ints(dev, s, &s->work[i_work][1], merges,
                        n.n_merges * FOLIO_ATTN_MERGE_INTS, &w->merges));
    FOLIO_TRY(bind_ints(dev, s, &s->work[i_work][2], tiles,
                        n.n_tiles * FOLIO_ATTN_TILE_INTS, &w->tiles));
    w->n_entries = n.n_entries;
    w->n_merges = n.n_merges;
    w->n_tiles = n.n_tiles;
    w->n_partials = n.n_partials;
fail:
    free(ints);
    return st;
}

/* Leaves no field of the arguments pointing to a device. */
static void unbind_arrays(folio_self_case *c)
{
    for (int i = 0; i < c->n_arrays; i++)
        *c->arrays[i].at = NULL;
    for (int i = 0; i < c->n_weights; i++)
        c->weight[i].n_views = 0;
    folio_self_step_bind(c);
    if (c->scratch)
        *c->scratch = (folio_view){0};
    for (int i = 0; i < works_of(c); i++) {
        folio_attn_work *w = work_of(c, i);
        w->entries = w->merges = w->tiles = (folio_view){0};
        w->n_entries = w->n_merges = w->n_tiles = w->n_partials = 0;
    }
}

/* On return every output is in s->out; s is closed by the caller. */
static folio_status run_side(folio_self_case *c, folio_device *dev,
                             const folio_variant *var,
                             const folio_op_params *prm, self_side *s)
{
    unbind_arrays(c);
    FOLIO_RETURN_IF(folio_variant_open(dev, var, prm, &c->args, &s->op));
    FOLIO_RETURN_IF(folio_queue_open(dev, &s->q));
    FOLIO_RETURN_IF(bind_arrays(c, dev, s));
    for (int i = 0; i < works_of(c); i++)
        FOLIO_RETURN_IF(bind_work(c, dev, s, i));
    FOLIO_RETURN_IF(folio_op_run(s->op, s->q, &c->args));
    for (int i = 0; i < c->n_arrays; i++) {
        const folio_self_array *a = &c->arrays[i];
        if (!a->out)
            continue;
        s->out[i] = folio_calloc(a->bytes, 1);
        if (!s->out[i])
            return FOLIO_E_NOMEM;
        FOLIO_RETURN_IF(folio_queue_read(s->q, (folio_view){.buf = s->bufs[i]},
                                         s->out[i], a->bytes));
    }
    return folio_queue_finish(s->q);
}

/* A device of our own: the caller's log, limits and threads stay out of it. */
static folio_status open_reference_device(folio_device **out)
{
    folio_device_params p;
    folio_device_params_default(&p);
    p.select = "host";
    p.n_threads = 1;
    p.cache_dir = "";
    p.max_alloc_bytes = UINT64_MAX;
    return folio_device_open(&p, out);
}

/* ---- comparing
 * ---------------------------------------------------------------- */

/* Shares of a row's largest magnitude, with room for the row being short. What
 * an op is made of decides, too: the floor of a fused op computes as its parts
 * do. */
static double tolerance_of(const folio_op *op, const folio_self_array *a)
{
    if (folio_op_is_inexact(op))
        return op->var->op == FOLIO_OP_STEP ? 6e-2 : 2e-2;
    return a->kind == FOLIO_SELF_F16 ? 2e-3 : 1e-4;
}

static double value_at(const folio_self_array *a, const void *p, size_t i)
{
    if (a->kind == FOLIO_SELF_F16)
        return (double)folio_f16_to_f32(((const uint16_t *)p)[i]);
    return (double)((const float *)p)[i];
}

static bool compare_floats(const folio_op *op, const folio_self_array *a,
                           const void *got, const void *want,
                           char why[FOLIO_SELF_WHY_MAX])
{
    size_t elem = a->kind == FOLIO_SELF_F16 ? 2 : 4, n = a->bytes / elem;
    double share = tolerance_of(op, a), scale = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % (size_t)a->row == 0) {
            /* Most rows of a pool are poison still: do not look closer. */
            size_t row = FOLIO_MIN(n - i, (size_t)a->row);
            if (memcmp((const uint8_t *)got + i * elem,
                       (const uint8_t *)want + i * elem, row * elem) == 0) {
                i += row - 1;
                continue;
            }
            scale = 0;
            for (size_t j = i; j < n && j < i + (size_t)a->row; j++)
                scale = fmax(scale, fabs(value_at(a, want, j)));
        }
        double g = value_at(a, got, i), w = value_at(a, want, i);
        /* What the reference leaves untouched is poison on both sides. */
        bool same = isnan(w) ? isnan(g) : fabs(g - w) <= share * scale + 1e-7;
        if (!same) {
            snprintf(why, FOLIO_SELF_WHY_MAX,
                     "element %zu is %g, the reference says %g", i, g, w);
            return false;
        }
    }
    return true;
}

static bool compare_ints(const folio_self_array *a, const void *got,
                         const void *want, char why[FOLIO_SELF_WHY_MAX])
{
    const int32_t *g = got, *w = want;
    for (size_t i = 0; i < a->bytes / 4; i++) {
        if (g[i] != w[i]) {
            snprintf(why, FOLIO_SELF_WHY_MAX,
                     "element %zu is %" PRId32 ", the reference says %" PRId32,
                     i, g[i], w[i]);
            return false;
        }
    }
    return true;
}

static bool compare_sides(const folio_self_case *c, const self_side *got,
                          const self_side *want, char why[FOLIO_SELF_WHY_MAX])
{
    for (int i = 0; i < c->n_arrays; i++) {
        const folio_self_array *a = &c->arrays[i];
        if (!a->out)
            continue;
        bool same =
            a->kind == FOLIO_SELF_I32
                ? compare_ints(a, got->out[i], want->out[i], why)
                : compare_floats(got->op, a, got->out[i], want->out[i], why);
        if (!same)
            return false;
    }
    return true;
}

/* ---- verdicts
 * ------------------------------------------------------------------- */

typedef struct self_verdict {
    uint32_t failed;
    char why[FOLIO_SELF_WHY_MAX];
} self_verdict;

/* Grows when cases or limits change, so that no verdict by others stays. */
enum { RULES = 3 };

/* Everything the numbers depend on besides the device, which the cache adds:
 * the kernels' text, the options, the case. The host device keeps verdicts in
 * memory only, so that C code needs no text to be known by. */
static bool verdict_name(const folio_variant *var, const folio_op_params *prm,
                         const folio_self_case *c, char name[48])
{
    char *text = folio_kernel_source(var->fragments);
    if (!text)
        return false;
    uint64_t seed = (prm->deterministic ? 1u : 0u) | (prm->exact ? 2u : 0u) |
                    (uint64_t)RULES << 2;
    folio_hash128 h = folio_hash_bytes(text, strlen(text), seed);
    h = folio_hash_bytes(var->name, strlen(var->name), h.lo ^ h.hi);
    h = folio_hash_bytes(c->sig, (size_t)c->n_sig * sizeof c->sig[0],
                         h.lo ^ h.hi);
    int64_t count = folio_op_count(c->op, &c->args);
    h = folio_hash_bytes(&count, sizeof count, h.lo ^ h.hi);
    char hex[33];
    folio_hash_hex(h, hex);
    snprintf(name, 48, "self-test-%s", hex);
    free(text);
    return true;
}

static bool read_verdict(folio_device *dev, const char *name,
                         char why[FOLIO_SELF_WHY_MAX], folio_status *st)
{
    self_verdict v;
    if (folio_device_cache_get(dev, name, &v, sizeof v) != FOLIO_OK)
        return false;
    v.why[sizeof v.why - 1] = '\0';
    memcpy(why, v.why, sizeof v.why);
    *st = v.failed ? FOLIO_E_BUILD : FOLIO_OK;
    return true;
}

static void keep_verdict(folio_device *dev, const char *name, folio_status st,
                         const char why[FOLIO_SELF_WHY_MAX])
{
    self_verdict v = {.failed = st != FOLIO_OK};
    memcpy(v.why, why, sizeof v.why);
    folio_device_cache_put(dev, name, &v, sizeof v);
}

/* The first case that the variant takes. */
static folio_status find_case(folio_device *dev, const folio_variant *var,
                              const folio_op_params *prm, const void *args,
                              folio_self_case *c)
{
    for (int attempt = 0;; attempt++) {
        FOLIO_RETURN_IF(folio_self_case_init(c, var->op, args, attempt));
        if (!var->fns->fits || !var->fns->fits(dev, prm, &c->args))
            return FOLIO_OK;
        folio_self_case_fini(c);
    }
}

/* A row of OpenCL devices without kernels is known by the kernels of other rows
 * only. */
static bool has_verdict(folio_device *dev, const folio_variant *var)
{
    return folio_device_is_host(dev) || var->fragments[0];
}

static bool is_broken_on_purpose(const folio_variant *var,
                                 const folio_op_params *prm)
{
    return prm->break_variant && strcmp(prm->break_variant, var->name) == 0;
}

/* The first number of the first output that holds one becomes another. */
static void break_output(const folio_self_case *c, self_side *got,
                         const self_side *want)
{
    for (int i = 0; i < c->n_arrays; i++) {
        const folio_self_array *a = &c->arrays[i];
        size_t elem = a->kind == FOLIO_SELF_F16 ? 2 : 4;
        if (!a->out)
            continue;
        for (size_t e = 0; e < a->bytes / elem; e++) {
            uint8_t *p = (uint8_t *)got->out[i] + e * elem;
            if (a->kind == FOLIO_SELF_I32) {
                p[0] ^= 1;
                return;
            }
            if (!isnan(value_at(a, want->out[i], e))) {
                memset(p, 0xff, elem); /* NaN */
                return;
            }
        }
    }
}

/* `lasting`: the verdict holds at the next start, too. The variant was just
 * built for its caller: what does not build now may do so later. */
static folio_status run_case(folio_device *dev, const folio_variant *var,
                             const folio_op_params *prm, folio_self_case *c,
                             char why[FOLIO_SELF_WHY_MAX], bool *lasting)
{
    folio_status st = FOLIO_OK;
    folio_device *host = NULL;
    self_side got = {0}, want = {0};
    const folio_variant *ref = folio_op_reference(var->op);
    if (!ref)
        return FOLIO_OK;
    FOLIO_TRY(open_reference_device(&host));
    FOLIO_TRY(run_side(c, host, ref, prm, &want));
    st = run_side(c, dev, var, prm, &got);
    *lasting = st != FOLIO_E_BUILD;
    if (st == FOLIO_E_TOO_LARGE) {
        st = FOLIO_OK; /* this device has no room for the case */
    } else if (st == FOLIO_OK) {
        if (is_broken_on_purpose(var, prm))
            break_output(c, &got, &want);
        if (!compare_sides(c, &got, &want, why))
            st = FOLIO_E_BUILD;
    } else if (st != FOLIO_E_NOMEM && st != FOLIO_E_DEVICE) {
        snprintf(why, FOLIO_SELF_WHY_MAX, "%s", folio_status_text(st));
        st = FOLIO_E_BUILD;
    }
fail:
    close_side(&got);
    close_side(&want);
    folio_device_close(&host);
    return st;
}

folio_status folio_op_self_test(folio_device *dev, const folio_variant *var,
                                const folio_op_params *prm, const void *args,
                                char why[FOLIO_SELF_WHY_MAX])
{
    folio_status st = FOLIO_OK;
    char name[48];
    memset(why, 0, FOLIO_SELF_WHY_MAX);
    if (folio_op_count(var->op, args) == 0)
        return FOLIO_OK;
    folio_self_case *c = folio_calloc(1, sizeof *c);
    if (!c)
        return FOLIO_E_NOMEM;
    st = find_case(dev, var, prm, args, c);
    if (st == FOLIO_E_NOT_FOUND) {
        st = FOLIO_OK;
        goto fail;
    }
    FOLIO_TRY(st);
    bool keeps = has_verdict(dev, var) && !is_broken_on_purpose(var, prm) &&
                 verdict_name(var, prm, c, name);
    if (keeps && read_verdict(dev, name, why, &st))
        goto fail;
    bool lasting = false;
    st = run_case(dev, var, prm, c, why, &lasting);
    if (keeps && lasting && (st == FOLIO_OK || st == FOLIO_E_BUILD))
        keep_verdict(dev, name, st, why);
fail:
    folio_self_case_fini(c);
    free(c);
    return st;
}

folio_status folio_op_self_verdict(folio_device *dev, const folio_variant *var,
                                   const folio_op_params *prm, const void *args,
                                   char why[FOLIO_SELF_WHY_MAX])
{
    folio_status st = FOLIO_OK;
    char name[48];
    memset(why, 0, FOLIO_SELF_WHY_MAX);
    folio_self_case *c = folio_calloc(1, sizeof *c);
    if (!c)
        return FOLIO_E_NOMEM;
    if (has_verdict(dev, var) &&
        find_case(dev, var, prm, args, c) == FOLIO_OK &&
        verdict_name(var, prm, c, name) && !read_verdict(dev, name, why, &st))
        st = FOLIO_OK;
    folio_self_case_fini(c);
    free(c);
    return st;
}
