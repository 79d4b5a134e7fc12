/* engine/pool_size.c: how long texts may be and how many blocks the pool gets.
 * Decided once, at open, from what the caller, the model and the device say;
 * one INFO line tells the result and its reason. */
#include "engine/eng.h"

#include <stdio.h>

#include "device/dev.h"
#include "model/model_internal.h"
#include "model/runner_internal.h"

#define DEFAULT_CTX    4096
#define DEFAULT_BUDGET 512
/* Where a token soon costs the same alone and in company, more tokens a step
 * are no faster and make others wait. */
#define HOST_BUDGET  64
#define DEFAULT_PACE 2.2

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

static folio_status too_small(const folio_engine *e, int64_t have, int64_t len,
                              const char *why)
{
    return folio_fail(&e->log, FOLIO_E_TOO_LARGE,
                      "engine: a pool of %lld blocks of %d tokens (%s) holds "
                      "%lld tokens, one text of max_ctx %lld needs %lld",
                      (long long)have, e->p.block_size, why,
                      (long long)(have * e->p.block_size), (long long)len,
                      (long long)len - 1);
}

static uint64_t block_bytes(const folio_engine *e)
{
    const folio_model_desc *d = &e->model->desc;
    const uint64_t item = e->p.kv_type == FOLIO_KV_F32 ? 4 : 2;
    return 2 * item * (uint64_t)d->n_layers * (uint64_t)e->p.block_size *
           (uint64_t)d->kv_heads * (uint64_t)d->head_dim;
}

/* max_ctx, for a pool of `n` blocks or, where that is 0, of unknown size. The
 * last id of a text is never cached, so that it may be one longer than the
 * pool. */
static folio_status resolve_ctx(folio_engine *e, int64_t n, const char *why)
{
    const int64_t train = e->model->desc.ctx_train;
    const int64_t slots = n * e->p.block_size;
    int64_t ctx = e->p.max_ctx;
    if (ctx > train)
        return folio_fail(&e->log, FOLIO_E_TOO_LARGE,
                          "engine: max_ctx %lld is above the %lld positions "
                          "the model was trained for",
                          (long long)ctx, (long long)train);
    if (ctx == 0) {
        ctx = FOLIO_MIN(train, DEFAULT_CTX);
        if (n > 0)
            ctx = FOLIO_MIN(ctx, slots + 1);
    }
    if (n > 0 && ctx - 1 > slots)
        return too_small(e, n, ctx, why);
    if (folio_block_too_long(e->p.block_size, ctx))
        return folio_fail(&e->log, FOLIO_E_INVAL,
                          "engine: blocks of %d tokens (block_size) are more "
                          "than twice as long as the longest text, %lld "
                          "(max_ctx)",
                          e->p.block_size, (long long)ctx);
    e->max_len = (int32_t)ctx;
    return FOLIO_OK;
}

/* What is left of the device's memory when the weights, everything else that
 * folio keeps there and this engine's scratch are in. */
static folio_status from_memory(folio_engine *e, const folio_runner_params *r,
                                int64_t *n, char *why, size_t why_bytes)
{
    folio_device_info info = {.size = sizeof info};
    uint64_t scratch = 0, block = 0;
    folio_device_get_info(e->model->dev, &info);
    FOLIO_RETURN_IF(folio_runner_measure(e->model, r, e->n_ids,
                                         FOLIO_LOGPROBS_MAX, &scratch, &block));
    const uint64_t live = folio_device_live_bytes(e->model->dev);
    const uint64_t may =
        (uint64_t)((double)info.global_bytes * e->p.utilization);
    const uint64_t taken = live + scratch;
    const uint64_t left = may > taken ? may - taken : 0;
    *n = (int64_t)FOLIO_MIN(left / block,
                            (uint64_t)(INT32_MAX / e->p.block_size));
    /* More than all places can fill is of use to the prefix cache only. */
    snprintf(why, why_bytes,
             "%.0f %% of %.0f MiB less %.1f MiB of weights and others and "
             "%.1f MiB of scratch",
             100.0 * e->p.utilization, mib(info.global_bytes), mib(live),
             mib(scratch));
    return FOLIO_OK;
}

/* Before anything of it is filled: a host that promises more memory than it has
 * takes it back by ending processes. */
static folio_status check_pool(const folio_engine *e, int64_t n)
{
    folio_device_info info = {.size = sizeof info};
    const uint64_t pool = (uint64_t)n * block_bytes(e);
    const uint64_t live = folio_device_live_bytes(e->model->dev);
    folio_device_get_info(e->model->dev, &info);
    if (e->p.watermark_blocks >= n)
        return folio_fail(&e->log, FOLIO_E_INVAL,
                          "folio_engine_params.watermark_blocks is %d, it must "
                          "be less than the %lld blocks of the pool",
                          e->p.watermark_blocks, (long long)n);
    if (n > INT32_MAX / e->p.block_size)
        return folio_fail(&e->log, FOLIO_E_TOO_LARGE,
                          "engine: %lld blocks of %d tokens are more than %d "
                          "slots",
                          (long long)n, e->p.block_size, INT32_MAX);
    if (info.global_bytes == 0 ||
        (live <= info.global_bytes && pool <= info.global_bytes - live))
        return FOLIO_OK;
    return folio_fail(&e->log, FOLIO_E_TOO_LARGE,
                      "engine: a pool of %lld blocks of %d tokens needs %.1f "
                      "MiB, device %s has %.1f MiB, of which %.1f MiB are "
                      "taken",
                      (long long)n, e->p.block_size, mib(pool), info.name,
                      mib(info.global_bytes), mib(live));
}

folio_status folio_pool_size(folio_engine *e, folio_runner_params *r)
{
    folio_engine_params *p = &e->p;
    folio_device_info info = {.size = sizeof info};
    char why[160];
    int64_t n = p->n_blocks;
    folio_device_get_info(e->model->dev, &info);
    const bool on_host = info.kind == FOLIO_DEVICE_HOST ||
                         info.kind == FOLIO_DEVICE_CPU; /* not ours to fill */
    if (p->pace < 0)
        p->pace = p->budget ? 0 : DEFAULT_PACE;
    if (p->budget == 0)
        p->budget = on_host ? FOLIO_MAX(HOST_BUDGET, 2 * p->max_seqs)
                            : FOLIO_MAX(DEFAULT_BUDGET, p->max_seqs);
    snprintf(why, sizeof why, "as n_blocks says");
    if (p->kv_bytes) {
        n = (int64_t)FOLIO_MIN(p->kv_bytes / block_bytes(e),
                               (uint64_t)(INT32_MAX / p->block_size));
        snprintf(why, sizeof why, "%.1f MiB as kv_bytes says",
                 mib(p->kv_bytes));
        if (n < 1)
            return folio_fail(&e->log, FOLIO_E_TOO_LARGE,
                              "engine: kv_bytes %llu is less than one block "
                              "of %d tokens, %llu bytes",
                              (unsigned long long)p->kv_bytes, p->block_size,
                              (unsigned long long)block_bytes(e));
    }
    FOLIO_RETURN_IF(resolve_ctx(e, n, why));
    r->max_seqs = p->max_seqs;
    e->max_rows = p->prompt_logprobs ? p->budget : p->max_seqs;
    r->max_rows = e->max_rows;
    r->max_ctx = FOLIO_MAX(e->max_len - 1, 1);
    r->block_size = p->block_size;
    r->kv_type = p->kv_type;
    r->deterministic = p->deterministic;
    r->fused = p->fused;
    r->exact = p->exact;
    r->max_tok = r->pass_tok = p->budget;
    if (n == 0 && (on_host || info.global_bytes == 0)) {
        n = folio_div_up(r->max_ctx, p->block_size);
        snprintf(why, sizeof why,
                 "one text of max_ctx, %s: n_blocks or kv_bytes give more",
                 on_host ? "in the host's memory"
                         : "the device reports no memory");
    } else if (n == 0) {
        FOLIO_RETURN_IF(from_memory(e, r, &n, why, sizeof why));
        if (n * p->block_size < r->max_ctx)
            return too_small(e, n, e->max_len, why);
    }
    FOLIO_RETURN_IF(check_pool(e, n));
    /* No step has more tokens than the pool has slots, nor more rows. */
    const int32_t slots = (int32_t)n * p->block_size;
    r->max_tok = r->pass_tok = FOLIO_MIN(p->budget, slots);
    r->max_rows = e->max_rows = FOLIO_MIN(e->max_rows, slots);
    p->n_blocks = (int32_t)n;
    p->max_ctx = e->max_len;
    r->n_blocks = p->n_blocks;
    if (!p->chunking) {
        const int64_t all = (int64_t)p->max_seqs * r->max_ctx;
        r->max_tok = (int32_t)FOLIO_MIN(all, slots);
    }
    folio_logf(&e->log, FOLIO_LOG_INFO,
               "pool: %d blocks of %d tokens, %.1f MiB (%s): %.1f texts of "
               "max_ctx %d at once, %d places, %d tokens a step%s",
               p->n_blocks, p->block_size,
               mib((uint64_t)p->n_blocks * block_bytes(e)), why,
               (double)p->n_blocks * p->block_size / (double)r->max_ctx,
               e->max_len, p->max_seqs, FOLIO_MIN(p->budget, slots),
               p->chunking ? "" : ", prompts whole");
    return FOLIO_OK;
}
