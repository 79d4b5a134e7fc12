/* engine/engine.c: opening and closing an engine. Everything a step needs is
 * allocated here, so that a step allocates nothing. */
#include "engine/eng.h"

#include <string.h>

#include "device/dev.h"
#include "model/model_internal.h"
#include "ops/sample_row.h"
#include "text/tok.h"

void folio_engine_params_default(folio_engine_params *p)
{
    if (!p)
        return;
    *p = (folio_engine_params){.size = sizeof *p,
                               .max_seqs = 8,
                               .block_size = 16,
                               .pace = -1,
                               .utilization = .9,
                               .kv_type = FOLIO_KV_F16,
                               .deterministic = -1,
                               .fused = -1,
                               .prefix_cache = 1,
                               .chunking = 1,
                               .watermark_blocks = -1,
                               .watermark_share = .01,
                               .age_steps = 256,
                               .max_waiting = 4096};
}

/* From 1 on: where a time is kept, 0 means that it did not come yet. */
uint64_t folio_engine_now(const folio_engine *e)
{
    return 1 + (e->p.now_ns ? e->p.now_ns(e->p.clock_user) : folio_clock_ns());
}

static folio_status check_params(const folio_engine *e)
{
    const folio_engine_params *p = &e->p;
    const folio_log *log = &e->log;
    const struct {
        const char *name;
        int32_t value, lo, hi;
    } ints[] = {
        {"max_seqs", p->max_seqs, 1, 1 << 16},
        {"max_ctx", p->max_ctx, 0, INT32_MAX},
        {"budget", p->budget, 0, 1 << 24},
        {"block_size", p->block_size, 1, 1 << 20},
        {"n_blocks", p->n_blocks, 0, INT32_MAX},
        {"deterministic", p->deterministic, -1, 1},
        {"fused", p->fused, -1, 2},
        {"exact", p->exact, 0, 1},
        {"prefix_cache", p->prefix_cache, 0, 1},
        {"chunking", p->chunking, 0, 1},
        {"watermark_blocks", p->watermark_blocks, -1, INT32_MAX},
        {"age_steps", p->age_steps, 0, INT32_MAX},
        {"max_waiting", p->max_waiting, 0, 1 << 24},
        {"audit", p->audit, 0, 1},
        {"prompt_logprobs", p->prompt_logprobs, 0, 1},
        {"trace_steps", p->trace_steps, 0, 1 << 24},
        {"run_ahead", p->run_ahead, 0, 1},
    };
    for (size_t i = 0; i < FOLIO_COUNT(ints); i++)
        if (ints[i].value < ints[i].lo || ints[i].value > ints[i].hi)
            return folio_fail(log, FOLIO_E_INVAL,
                              "folio_engine_params.%s is %d, it must be in "
                              "%d..%d",
                              ints[i].name, ints[i].value, ints[i].lo,
                              ints[i].hi);
    if (p->budget && p->budget < p->max_seqs)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_engine_params.budget is %d, less than "
                          "max_seqs %d",
                          p->budget, p->max_seqs);
    if (p->prompt_logprobs && !p->chunking)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_engine_params: prompt_logprobs needs "
                          "chunking");
    if (p->n_blocks && p->kv_bytes)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_engine_params: n_blocks %d and kv_bytes %llu "
                          "exclude each other",
                          p->n_blocks, (unsigned long long)p->kv_bytes);
    if (!(p->pace == -1 || p->pace == 0 || (p->pace > 1 && p->pace <= 1e6)))
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_engine_params.pace is %g, it must be -1, 0 "
                          "or in (1, 1e6]",
                          p->pace);
    if (!(p->utilization > 0.0 && p->utilization <= 1.0))
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_engine_params.utilization is %g, it must be "
                          "in (0, 1]",
                          p->utilization);
    if (!(p->watermark_share >= 0.0 && p->watermark_share < 1.0))
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_engine_params.watermark_share is %g, it must "
                          "be in [0, 1)",
                          p->watermark_share);
    return FOLIO_OK;
}

static bool is_lost(const folio_runner *r)
{
    return folio_queue_is_lost(r->queue);
}

static folio_status open_sched(folio_engine *e)
{
    const folio_engine_params *p = &e->p;
    folio_sched_params s;
    folio_sched_params_default(&s);
    s.n_blocks = p->n_blocks;
    s.block_tok = p->block_size;
    s.max_seqs = p->max_seqs;
    /* Those that finish stay one plan longer there than here. */
    s.max_requests = e->door.max_in_flight + p->max_seqs;
    s.max_len = e->max_len;
    s.watermark_blocks = p->watermark_blocks;
    s.watermark_share = p->watermark_share;
    s.step_tok = p->chunking ? p->budget : 0;
    s.prefix_cache = p->prefix_cache != 0;
    s.fork = true;
    s.age_plans = p->age_steps;
    s.run_ahead = p->run_ahead;
    s.log = e->log;
    return folio_sched_open(&s, &e->sched);
}

static folio_status open_flight(folio_engine *e, int number)
{
    const size_t rows = (size_t)e->max_rows;
    folio_flight *f = &e->flight[number];
    f->number = number;
    f->rows = folio_calloc(3 * rows, sizeof *f->rows);
    f->on_host = folio_calloc(rows, sizeof *f->on_host);
    if (!f->rows || !f->on_host)
        return FOLIO_E_NOMEM;
    f->row_seq = f->rows + rows;
    f->row_draw = f->row_seq + rows;
    return FOLIO_OK;
}

static folio_status open_rows(folio_engine *e)
{
    const size_t n = (size_t)e->p.max_seqs, rows = (size_t)e->max_rows;
    const folio_draw_limits *lim = &e->runner->draw.lim;
    e->next = folio_calloc(n, sizeof *e->next);
    e->verdict = folio_calloc(n, sizeof *e->verdict);
    e->took = folio_calloc(n, sizeof *e->took);
    e->logits = folio_calloc(rows * (size_t)e->n_vocab, sizeof *e->logits);
    e->words = folio_calloc(rows * FOLIO_SAMPLE_IN, sizeof *e->words);
    e->edits = folio_calloc(2 * (size_t)lim->max_edits, sizeof *e->edits);
    e->fresh = folio_calloc((size_t)lim->max_fresh, sizeof *e->fresh);
    e->counted = folio_calloc((size_t)lim->n_slots, sizeof *e->counted);
    e->open_row = folio_calloc(n, sizeof *e->open_row);
    e->span = folio_calloc((size_t)e->p.trace_steps, sizeof *e->span);
    if (!e->next || !e->verdict || !e->took || !e->logits || !e->words ||
        !e->edits || !e->fresh || !e->counted || !e->open_row || !e->span ||
        open_flight(e, 0) != FOLIO_OK || open_flight(e, 1) != FOLIO_OK)
        return folio_fail(&e->log, FOLIO_E_NOMEM,
                          "engine: no memory for %d rows of %d logits",
                          e->max_rows, e->n_vocab);
    return folio_sampler_open(e->n_ids, &e->log, &e->sampler);
}

/* The ids that end a text, once for all requests. */
static folio_status list_eog(folio_engine *e)
{
    if (!e->tok)
        return FOLIO_OK;
    for (int32_t id = 0; id < e->n_ids; id++)
        e->n_eog += folio_tokenizer_is_eog(e->tok, id);
    e->eog = folio_calloc((size_t)e->n_eog, sizeof *e->eog);
    if (!e->eog)
        return folio_fail(&e->log, FOLIO_E_NOMEM, "engine: no memory");
    int32_t n = 0;
    for (int32_t id = 0; id < e->n_ids; id++)
        if (folio_tokenizer_is_eog(e->tok, id))
            e->eog[n++] = id;
    /* Three bytes for each of one piece, of what was held and of the end. */
    e->max_text = 3 * ((size_t)folio_tokenizer_max_piece(e->tok) + 8);
    return FOLIO_OK;
}

static folio_status open_all(folio_engine *e)
{
    folio_runner_params r;
    folio_model_info info = {.size = sizeof info};
    FOLIO_RETURN_IF(check_params(e));
    folio_model_get_info(e->model, &info);
    e->n_vocab = e->n_ids = info.n_vocab;
    /* A head may have rows that are no token: those are never drawn. */
    if (e->tok)
        e->n_ids = FOLIO_MIN(e->n_ids, folio_tokenizer_n_vocab(e->tok));
    FOLIO_RETURN_IF(
        folio_door_init(&e->door, e->p.max_seqs + e->p.max_waiting, &e->log));
    folio_runner_params_default(&r);
    FOLIO_RETURN_IF(folio_pool_size(e, &r));
    FOLIO_RETURN_IF(folio_runner_open_drawing(e->model, &r, e->n_ids,
                                              FOLIO_LOGPROBS_MAX, &e->runner));
    e->p.deterministic = e->runner->prm.deterministic;
    e->pace.stretch = e->p.pace;
    FOLIO_RETURN_IF(open_sched(e));
    FOLIO_RETURN_IF(list_eog(e));
    return open_rows(e);
}

folio_status folio_engine_open(folio_model *m, const folio_tokenizer *tok,
                               const folio_engine_params *p, folio_engine **out)
{
    folio_status st;
    folio_engine_params def;
    if (!m || !out)
        return FOLIO_E_INVAL;
    folio_engine_params_default(&def);
    if (!p)
        p = &def;
    if (p->size != sizeof *p)
        return folio_fail(&m->log, FOLIO_E_INVAL,
                          "folio_engine_params.size is %zu, expected %zu",
                          p->size, sizeof *p);
    folio_engine *e = folio_calloc(1, sizeof *e);
    if (!e)
        return folio_fail(&m->log, FOLIO_E_NOMEM, "engine: no memory");
    e->p = *p;
    e->log = p->log.fn ? p->log : m->log;
    e->model = folio_model_retain(m);
    if (tok)
        e->tok = (folio_tokenizer *)folio_tokenizer_ref(tok);
    e->events_end = &e->events;
    e->call =
        (folio_engine_calls){folio_runner_forward_draw, folio_runner_read_drawn,
                             folio_runner_read_rows, is_lost};
    FOLIO_TRY(open_all(e));
    folio_engine_publish(e);
    *out = e;
    return FOLIO_OK;
fail:
    folio_engine_close(&e);
    return st;
}

void folio_engine_close(folio_engine **pe)
{
    if (!pe || !*pe)
        return;
    folio_engine *e = *pe;
    folio_sched_close(&e->sched);
    folio_door_fini(&e->door);
    folio_runner_close(&e->runner);
    folio_sampler_close(&e->sampler);
    folio_tokenizer_close(&e->tok);
    folio_model_close(&e->model);
    free(e->eog);
    free(e->next);
    free(e->verdict);
    free(e->took);
    free(e->logits);
    free(e->words);
    free(e->edits);
    free(e->fresh);
    free(e->counted);
    free(e->open_row);
    for (int i = 0; i < 2; i++) {
        free(e->flight[i].rows);
        free(e->flight[i].on_host);
    }
    free(e->span);
    FOLIO_FREE(*pe);
}

void folio_engine_get_info(const folio_engine *e, folio_engine_info *info)
{
    folio_runner_info r = {.size = sizeof r};
    if (!info)
        return;
    if (!e) {
        const folio_engine_info none = {.size =
                                            FOLIO_MIN(info->size, sizeof none)};
        memcpy(info, &none, none.size);
        return;
    }
    folio_runner_get_info(e->runner, &r);
    folio_engine_info i = {
        .size = FOLIO_MIN(info->size, sizeof i),
        .max_seqs = e->p.max_seqs,
        .max_ctx = e->max_len,
        .budget = e->p.budget,
        .block_size = e->p.block_size,
        .n_blocks = e->p.n_blocks,
        .deterministic = e->p.deterministic,
        .kv_bytes = r.kv_bytes,
        .scratch_bytes = r.scratch_bytes,
        .arithmetic = r.arithmetic,
    };
    memcpy(info, &i, i.size);
}

folio_status folio_engine_choice(const folio_engine *e, size_t i,
                                 folio_choice *out)
{
    return e ? folio_runner_choice(e->runner, i, out) : FOLIO_E_INVAL;
}
