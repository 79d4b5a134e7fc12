/* ops/op.c: the table of variants, the choice among them, and an op's life. No
 * arithmetic and no knowledge of what a variant does. */
#include "ops/choose.h"
#include "ops/self_test.h"
#include "ops/variants.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const op_names[FOLIO_OP_COUNT] = {
    [FOLIO_OP_EMBED] = "embed",
    [FOLIO_OP_GATHER_ROWS] = "gather_rows",
    [FOLIO_OP_RMSNORM] = "rmsnorm",
    [FOLIO_OP_LINEAR] = "linear",
    [FOLIO_OP_ROPE_APPEND] = "rope_append",
    [FOLIO_OP_ATTN] = "attn",
    [FOLIO_OP_ACT_MUL] = "act_mul",
    [FOLIO_OP_ADD] = "add",
    [FOLIO_OP_TOPK] = "topk",
    [FOLIO_OP_COPY_BLOCKS] = "copy_blocks",
    [FOLIO_OP_SAMPLE] = "sample",
    [FOLIO_OP_NORM_LINEAR] = "norm_linear",
    [FOLIO_OP_QKV] = "qkv",
    [FOLIO_OP_GATE_UP] = "gate_up",
    [FOLIO_OP_STEP] = "step",
};

static const folio_variant variants[] = {
#define FOLIO_VARIANT(OP, vname, WHERE, vfragments, vneeds, vflags)            \
    {.op = FOLIO_OP_##OP,                                                      \
     .name = #vname,                                                           \
     .where = FOLIO_##WHERE,                                                   \
     .fragments = vfragments,                                                  \
     .needs = vneeds,                                                          \
     .flags = vflags,                                                          \
     .fns = &folio_var_##vname},
#include "ops/kernels.def"
#undef FOLIO_VARIANT
};

const char *folio_op_name(folio_op_id id)
{
    return (unsigned)id < FOLIO_OP_COUNT ? op_names[id] : "unknown";
}

const folio_variant *folio_variants(size_t *n)
{
    *n = FOLIO_COUNT(variants);
    return variants;
}

const folio_variant *folio_op_reference(folio_op_id id)
{
    for (size_t i = 0; i < FOLIO_COUNT(variants); i++)
        if (variants[i].op == id && variants[i].where == FOLIO_ON_HOST &&
            (variants[i].flags & FOLIO_VAR_FLOOR))
            return &variants[i];
    return NULL;
}

/* ---- choice ----------------------------------------------------------------
 */

void folio_reason_add(char *list, size_t bytes, const char *name,
                      const char *why)
{
    size_t used = strlen(list);
    if (used + 1 < bytes)
        snprintf(list + used, bytes - used, "%s%s: %s", used ? "; " : "", name,
                 why);
}

static const char *missing_cap(uint64_t missing)
{
    for (int bit = 0; folio_cap_name(bit); bit++)
        if (missing >> bit & 1)
            return folio_cap_name(bit);
    return "a capability";
}

uint64_t folio_variant_lacks(const folio_device *dev, const folio_variant *var,
                             const folio_op_params *prm)
{
    if (prm->emulate && (var->flags & FOLIO_VAR_EMULATED))
        return 0;
    return var->needs & ~folio_device_caps(dev);
}

const char *folio_variant_refuse(const folio_device *dev,
                                 const folio_variant *var,
                                 const folio_op_params *prm, const void *args)
{
    if (folio_variant_disabled(var->name))
        return "disabled";
    uint64_t missing = folio_variant_lacks(dev, var, prm);
    if (missing)
        return missing_cap(missing);
    if (prm->deterministic && !(var->flags & FOLIO_VAR_BATCH_INVARIANT))
        return "not deterministic";
    if (prm->exact && (var->flags & FOLIO_VAR_INEXACT))
        return "not exact";
    if (prm->many && !(var->flags & FOLIO_VAR_MANY))
        return "not for many tokens";
    return var->fns->fits ? var->fns->fits(dev, prm, args) : NULL;
}

static bool belongs(const folio_variant *var, const folio_device *dev,
                    folio_op_id id)
{
    folio_where where = folio_device_is_host(dev) ? FOLIO_ON_HOST : FOLIO_ON_CL;
    return var->op == id && var->where == where;
}

folio_status folio_variant_open(folio_device *dev, const folio_variant *var,
                                const folio_op_params *prm, const void *args,
                                folio_op **out)
{
    folio_status st = FOLIO_OK;
    folio_op *op = folio_calloc(1, sizeof *op);
    if (!op)
        return folio_fail(folio_device_log(dev), FOLIO_E_NOMEM,
                          "%s: no memory for the op", var->name);
    op->var = var;
    op->dev = folio_device_retain(dev);
    op->prm = *prm;
    op->max_count = folio_op_count(var->op, args);
    if (var->fns->open)
        FOLIO_TRY(var->fns->open(op, args));
    *out = op;
    return FOLIO_OK;
fail:
    folio_op_close(&op);
    return st;
}

/* Attention or linear at the floor of a GPU costs several times the speed. */
static void warn_of_floor(const folio_op *op)
{
    folio_device_kind kind = folio_device_get_kind(op->dev);
    bool gpu = kind == FOLIO_DEVICE_GPU_DISCRETE ||
               kind == FOLIO_DEVICE_GPU_INTEGRATED;
    bool heavy = op->var->op == FOLIO_OP_ATTN || op->var->op == FOLIO_OP_LINEAR;
    if (gpu && heavy && (op->var->flags & FOLIO_VAR_FLOOR))
        folio_logf(folio_device_log(op->dev), FOLIO_LOG_WARN,
                   "%s runs at the floor (%s): %s", folio_op_name(op->var->op),
                   op->var->name, op->reason);
}

/* The reference itself has nothing to be measured against. */
static folio_status test_row(folio_device *dev, const folio_variant *var,
                             const folio_op_params *prm, const void *args,
                             char reason[FOLIO_OP_REASON])
{
    char why[FOLIO_SELF_WHY_MAX];
    if (var->where == FOLIO_ON_HOST && (var->flags & FOLIO_VAR_FLOOR))
        return FOLIO_OK;
    folio_status st = folio_op_self_test(dev, var, prm, args, why);
    if (st != FOLIO_E_BUILD)
        return st;
    folio_reason_add(reason, FOLIO_OP_REASON, var->name,
                     "failed its self-test");
    folio_logf(folio_device_log(dev), FOLIO_LOG_WARN,
               "%s fails its self-test: %s; trying the next variant of %s",
               var->name, why, folio_op_name(var->op));
    return st;
}

static bool is_row(const folio_variant *rows, size_t n_rows, const char *name,
                   size_t n)
{
    for (size_t i = 0; i < n_rows; i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0)
            return true;
    return false;
}

/* A misspelt name would disable nothing and say nothing. */
static void warn_of_disable(const folio_variant *rows, size_t n_rows,
                            folio_device *dev)
{
    const char *p = folio_device_disable_list_once(dev);
    while (p && *p) {
        size_t n = strcspn(p, ",");
        if (n > 0 && !is_row(rows, n_rows, p, n))
            folio_logf(folio_device_log(dev), FOLIO_LOG_WARN,
                       "FOLIO_DISABLE: no variant is called %.*s",
                       (int)FOLIO_MIN(n, 80), p);
        p += n + (p[n] == ',');
    }
}

static void warn_of_tune(const folio_variant *rows, size_t n_rows,
                         folio_device *dev)
{
    const char *p = folio_device_tune_list_once(dev);
    while (p && *p) {
        size_t n = strcspn(p, ":");
        const bool many = n == 4 && memcmp(p, "many", n) == 0; /* few_tok */
        if (!many && !is_row(rows, n_rows, p, n))
            folio_logf(folio_device_log(dev), FOLIO_LOG_WARN,
                       "FOLIO_TUNE: no variant is called %.*s",
                       (int)FOLIO_MIN(n, 80), p);
        p += strcspn(p, ";");
        p += *p == ';';
    }
}

/* *out stays NULL where no row can run. */
static folio_status choose(const folio_variant *rows, size_t n_rows,
                           folio_device *dev, folio_op_id id,
                           const folio_op_params *prm, const void *args,
                           bool floor_too, folio_op **out,
                           char reason[FOLIO_OP_REASON])
{
    *out = NULL;
    memset(reason, 0, FOLIO_OP_REASON);
    warn_of_disable(rows, n_rows, dev);
    warn_of_tune(rows, n_rows, dev);
    FOLIO_RETURN_IF(folio_op_check_shape(dev, id, args));
    for (size_t i = 0; i < n_rows; i++) {
        const folio_variant *var = &rows[i];
        if (!belongs(var, dev, id))
            continue;
        if (!floor_too && (var->flags & FOLIO_VAR_FLOOR))
            continue;
        const char *why = folio_variant_refuse(dev, var, prm, args);
        if (why) {
            folio_reason_add(reason, FOLIO_OP_REASON, var->name, why);
            continue;
        }
        folio_op *op = NULL;
        folio_status st = folio_variant_open(dev, var, prm, args, &op);
        if (st == FOLIO_E_BUILD) {
            folio_reason_add(reason, FOLIO_OP_REASON, var->name,
                             "does not build");
            folio_logf(folio_device_log(dev), FOLIO_LOG_WARN,
                       "%s does not build; trying the next variant of %s",
                       var->name, folio_op_name(id));
            continue;
        }
        if (st != FOLIO_OK)
            return st;
        st = test_row(dev, var, prm, args, reason);
        if (st != FOLIO_OK) {
            folio_op_close(&op);
            if (st == FOLIO_E_BUILD)
                continue;
            return st;
        }
        memcpy(op->reason, reason, sizeof op->reason);
        warn_of_floor(op);
        *out = op;
        return FOLIO_OK;
    }
    return FOLIO_OK;
}

folio_status folio_op_choose(const folio_variant *rows, size_t n_rows,
                             folio_device *dev, folio_op_id id,
                             const folio_op_params *prm, const void *args,
                             folio_op **out)
{
    char reason[FOLIO_OP_REASON];
    FOLIO_RETURN_IF(
        choose(rows, n_rows, dev, id, prm, args, true, out, reason));
    if (*out)
        return FOLIO_OK;
    return folio_fail(folio_device_log(dev), FOLIO_E_UNSUPPORTED,
                      "no variant of %s can run: %s", folio_op_name(id),
                      reason[0] ? reason : "none exists for this device");
}

folio_status folio_op_open(folio_device *dev, folio_op_id id,
                           const folio_op_params *prm, const void *args,
                           folio_op **out)
{
    return folio_op_choose(variants, FOLIO_COUNT(variants), dev, id, prm, args,
                           out);
}

folio_status folio_op_open_better(folio_device *dev, folio_op_id id,
                                  const folio_op_params *prm, const void *args,
                                  folio_op **out, char reason[FOLIO_OP_REASON])
{
    return choose(variants, FOLIO_COUNT(variants), dev, id, prm, args, false,
                  out, reason);
}

folio_status folio_op_open_variant(folio_device *dev, const char *name,
                                   const folio_op_params *prm, const void *args,
                                   folio_op **out)
{
    const folio_log *log = folio_device_log(dev);
    const folio_variant *var = NULL;
    for (size_t i = 0; i < FOLIO_COUNT(variants); i++)
        if (strcmp(variants[i].name, name) == 0)
            var = &variants[i];
    if (!var)
        return folio_fail(log, FOLIO_E_NOT_FOUND, "no variant is called %s",
                          name);
    if (!belongs(var, dev, var->op))
        return folio_fail(log, FOLIO_E_UNSUPPORTED,
                          "%s does not run on this side of the devices", name);
    FOLIO_RETURN_IF(folio_op_check_shape(dev, var->op, args));
    uint64_t missing = folio_variant_lacks(dev, var, prm);
    if (missing)
        return folio_fail(log, FOLIO_E_UNSUPPORTED, "%s needs %s", name,
                          missing_cap(missing));
    const char *why = var->fns->fits ? var->fns->fits(dev, prm, args) : NULL;
    if (why)
        return folio_fail(log, FOLIO_E_UNSUPPORTED, "%s: %s", name, why);
    return folio_variant_open(dev, var, prm, args, out);
}

/* ---- life ------------------------------------------------------------------
 */

void folio_op_close(folio_op **op)
{
    if (!op || !*op)
        return;
    for (int i = 0; i < FOLIO_OP_MAX_KERNELS; i++)
        folio_kernel_close(&(*op)->kernel[i]);
    for (int i = 0; i < FOLIO_OP_MAX_PARTS; i++)
        folio_op_close(&(*op)->part[i]);
    folio_buf_close(&(*op)->own);
    folio_device_close(&(*op)->dev);
    FOLIO_FREE(*op);
}

/* The scratch of the ops that have one; a zeroed view for the others. */
static folio_view scratch_of(folio_op_id id, const void *args)
{
    folio_view none = {0};
    switch (id) {
    case FOLIO_OP_LINEAR:
        return ((const folio_linear_args *)args)->scratch;
    case FOLIO_OP_ATTN:
        return ((const folio_attn_args *)args)->scratch;
    case FOLIO_OP_TOPK:
        return ((const folio_topk_args *)args)->scratch;
    case FOLIO_OP_SAMPLE:
        return ((const folio_sample_args *)args)->scratch;
    case FOLIO_OP_NORM_LINEAR:
        return ((const folio_norm_linear_args *)args)->scratch;
    case FOLIO_OP_QKV:
        return ((const folio_qkv_args *)args)->scratch;
    case FOLIO_OP_GATE_UP:
        return ((const folio_gate_up_args *)args)->scratch;
    case FOLIO_OP_STEP:
        return ((const folio_step_args *)args)->scratch;
    default:
        return none;
    }
}

static folio_status check_scratch(const folio_op *op, const void *args)
{
    const folio_log *log = folio_device_log(op->dev);
    const char *name = folio_op_name(op->var->op);
    folio_view v = scratch_of(op->var->op, args);
    if (op->scratch_bytes == 0)
        return FOLIO_OK;
    if (!v.buf)
        return folio_fail(log, FOLIO_E_INVAL,
                          "%s: scratch is absent, %s needs %zu bytes", name,
                          op->var->name, op->scratch_bytes);
    size_t have = folio_buf_bytes(v.buf);
    if (v.offset > have || op->scratch_bytes > have - v.offset)
        return folio_fail(log, FOLIO_E_RANGE,
                          "%s: scratch needs %zu bytes from offset %zu > %zu "
                          "bytes of its buffer",
                          name, op->scratch_bytes, v.offset, have);
    return FOLIO_OK;
}

folio_status folio_op_run(folio_op *op, folio_queue *q, const void *args)
{
    folio_op_id id = op->var->op;
    FOLIO_RETURN_IF(folio_op_check(op->dev, id, args));
    int64_t count = folio_op_count(id, args);
    if (count == 0)
        return FOLIO_OK;
    if (count > op->max_count)
        return folio_fail(folio_device_log(op->dev), FOLIO_E_INVAL,
                          "%s: %" PRId64 " rows > %" PRId64
                          " it was opened for",
                          op->var->name, count, op->max_count);
    if (folio_queue_device(q) != op->dev)
        return folio_fail(folio_device_log(op->dev), FOLIO_E_INVAL,
                          "%s: the queue is of another device", op->var->name);
    FOLIO_RETURN_IF(check_scratch(op, args));
    return op->var->fns->run(op, q, args);
}

int32_t folio_few_tok(const folio_device *dev)
{
    const bool wgmma = folio_device_caps(dev) & FOLIO_CAP_PTX_RETARGET;
    return folio_tuned("many", "FROM",
                       wgmma ? FOLIO_WGMMA_MIN_TOKS : FOLIO_MMA_MIN_TOKS) -
           1;
}

/* Whether a row above the floor is for this device as it is. */
static bool has_native(const folio_device *dev, folio_op_id id)
{
    for (size_t i = 0; i < FOLIO_COUNT(variants); i++)
        if (belongs(&variants[i], dev, id) &&
            !(variants[i].flags & FOLIO_VAR_FLOOR) &&
            !(variants[i].needs & ~folio_device_caps(dev)))
            return true;
    return false;
}

/* On a CPU a launch costs little, and computing norms again costs more:
 * SmolLM2-135M on PoCL 3.1 makes 55 tokens/s plain and 38 fused. What one
 * launch for all layers gains on a GPU stands in README. */
int32_t folio_fused_for(const folio_device *dev)
{
    if (folio_device_is_host(dev) || folio_device_caps(dev) & FOLIO_CAP_CPU)
        return 0;
    return has_native(dev, FOLIO_OP_STEP) ? 2 : 1;
}

size_t folio_op_scratch_bytes(const folio_op *op)
{
    return op->scratch_bytes;
}

const char *folio_op_variant_name(const folio_op *op)
{
    return op->var->name;
}

const char *folio_op_reason(const folio_op *op)
{
    return op->reason;
}

uint32_t folio_op_flags(const folio_op *op)
{
    uint32_t flags = op->var->flags;
    for (int i = 0; i < FOLIO_OP_MAX_PARTS; i++)
        if (op->part[i])
            flags |= folio_op_flags(op->part[i]) &
                     (FOLIO_VAR_INEXACT | FOLIO_VAR_Q8);
    return flags;
}

bool folio_op_is_inexact(const folio_op *op)
{
    return (folio_op_flags(op) & FOLIO_VAR_INEXACT) != 0;
}
