/* model/runner.c: opening a runner: how many tokens at once, KV pool, scratch,
 * variants, all decided here so that a forward decides nothing. */
#include "model/runner_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Contexts of 100,000 and more are common in files and rare in use: nobody
 * should fill that much KV without asking. */
#define DEFAULT_CTX 4096

void folio_runner_params_default(folio_runner_params *p)
{
    memset(p, 0, sizeof *p);
    p->size = sizeof *p;
    p->max_seqs = 1;
    p->max_tok = 512;
    p->block_size = 16;
    p->kv_type = FOLIO_KV_F16;
    p->deterministic = -1;
    p->fused = -1;
}

void folio_runner_close(folio_runner **pr)
{
    if (!pr || !*pr)
        return;
    folio_runner *r = *pr;
    folio_lowered_fini(&r->low);
    folio_drawer_fini(&r->draw);
    folio_op_close(&r->copy_op);
    folio_op_close(&r->top_op[0]);
    folio_op_close(&r->top_op[1]);
    folio_buf_close(&r->top);
    folio_buf_close(&r->top_scratch);
    FOLIO_FREE(r->top_host);
    folio_buf_close(&r->trace);
    for (int32_t i = 0; i < r->n_logits; i++)
        folio_buf_close(&r->logits[i]);
    FOLIO_FREE(r->logits);
    for (int i = 0; i < FOLIO_MAX_ROPES; i++)
        folio_buf_close(&r->rope[i]);
    folio_upload_fini(&r->up);
    folio_kv_store_fini(&r->kv);
    FOLIO_FREE(r->slot_bits);
    FOLIO_FREE(r->piece);
    FOLIO_FREE(r->choices);
    folio_queue_close(&r->queue);
    folio_device_close(&r->dev);
    folio_model_close(&r->model);
    FOLIO_FREE(*pr);
}

/* A token has a slot of its own, so that a forward can have no more of them
 * than there are, and no more rows than tokens: scratch for more would lie
 * idle. */
static void cut_to_slots(folio_runner_params *p, int64_t slots)
{
    const int64_t most = FOLIO_MIN(slots, (int64_t)p->max_seqs * p->max_ctx);
    p->max_tok = (int32_t)FOLIO_MIN(p->max_tok, most);
    p->max_rows = FOLIO_MIN(p->max_rows, p->max_tok);
}

/* Fills in defaults and checks ranges; everything later may rely on it.
 * `any_pool`: n_blocks is not yet what it will be. */
static folio_status resolve(folio_runner *r, bool any_pool)
{
    folio_runner_params *p = &r->prm;
    const folio_model_desc *d = &r->model->desc;
    const folio_log *log = &r->model->log;
    const struct {
        const char *name;
        int32_t value, lo;
    } least[] = {{"max_seqs", p->max_seqs, 1}, {"max_tok", p->max_tok, 1},
                 {"pass_tok", p->pass_tok, 0}, {"max_rows", p->max_rows, 0},
                 {"max_ctx", p->max_ctx, 0},   {"block_size", p->block_size, 1},
                 {"n_blocks", p->n_blocks, 0}};
    for (size_t i = 0; i < FOLIO_COUNT(least); i++)
        if (least[i].value < least[i].lo)
            return folio_fail(log, FOLIO_E_INVAL,
                              "folio_runner_params.%s is %d, must be at "
                              "least %d",
                              least[i].name, least[i].value, least[i].lo);
    if (p->deterministic < -1 || p->deterministic > 1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_runner_params.deterministic is %d, not -1, "
                          "0 or 1",
                          p->deterministic);
    if (p->run_ahead != 0 && p->run_ahead != 1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_runner_params.run_ahead is %d, not 0 or 1",
                          p->run_ahead);
    if (p->run_ahead && r->draw.lim.n_ids == 0)
        r->draw.lim.n_ids = d->n_vocab;
    if (p->kv_type != FOLIO_KV_F16 && p->kv_type != FOLIO_KV_F32)
        return folio_fail(log, FOLIO_E_UNSUPPORTED,
                          "KV type %d is not supported: f32 and f16 are",
                          (int)p->kv_type);
    if (p->max_ctx > d->ctx_train)
        return folio_fail(log, FOLIO_E_TOO_LARGE,
                          "max_ctx %d is above the %d positions the model "
                          "was trained for",
                          p->max_ctx, d->ctx_train);
    if (p->max_ctx == 0)
        p->max_ctx = FOLIO_MIN(d->ctx_train, DEFAULT_CTX);
    if (p->max_rows == 0)
        p->max_rows = p->max_seqs;
    int64_t one = folio_div_up(p->max_ctx, p->block_size);
    int64_t n = p->n_blocks ? p->n_blocks : one * p->max_seqs;
    if (n * p->block_size > INT32_MAX)
        return folio_fail(log, FOLIO_E_TOO_LARGE,
                          "%lld blocks of %d tokens are more than %d slots",
                          (long long)n, p->block_size, INT32_MAX);
    if (n < one)
        return folio_fail(log, FOLIO_E_TOO_LARGE,
                          "a pool of %lld blocks of %d tokens cannot hold one "
                          "sequence of %d tokens",
                          (long long)n, p->block_size, p->max_ctx);
    if (folio_block_too_long(p->block_size, p->max_ctx))
        return folio_fail(log, FOLIO_E_INVAL,
                          "blocks of %d tokens (block_size) are more than "
                          "twice as long as the longest sequence, %d (max_ctx)",
                          p->block_size, p->max_ctx);
    p->n_blocks = (int32_t)n;
    cut_to_slots(p, any_pool ? INT64_MAX : n * p->block_size);
    if (p->deterministic < 0) {
        folio_device_kind kind = folio_device_get_kind(r->dev);
        p->deterministic =
            kind == FOLIO_DEVICE_HOST || kind == FOLIO_DEVICE_CPU;
    }
    if (p->fused < -1 || p->fused > 2)
        return folio_fail(log, FOLIO_E_INVAL,
                          "folio_runner_params.fused is %d, not in -1..2",
                          p->fused);
    if (p->fused < 0)
        p->fused = folio_fused_for(r->dev);
    r->ops.deterministic = p->deterministic;
    r->ops.exact = p->exact || r->model->exact;
    r->ops.emulate = r->model->emulate;
    r->limits = (folio_batch_limits){
        .n_vocab = d->n_vocab,
        .n_blocks = p->n_blocks,
        .block_size = p->block_size,
        .max_tok = p->max_tok,
        .max_seqs = p->max_seqs,
        .max_rows = p->max_rows,
        .max_ctx = p->max_ctx,
        .max_copies = p->max_seqs,
    };
    return FOLIO_OK;
}

static folio_status open_rope(folio_runner *r)
{
    const folio_model_desc *d = &r->model->desc;
    folio_status st = FOLIO_OK;
    for (int32_t i = 0; i < d->n_ropes; i++) {
        size_t n = (size_t)r->prm.max_ctx * (size_t)d->rope[i].rot_dim;
        float *t = folio_calloc(n, sizeof *t);
        if (!t)
            return FOLIO_E_NOMEM;
        FOLIO_TRY(
            folio_rope_table(&r->model->log, &d->rope[i], r->prm.max_ctx, t));
        FOLIO_TRY(folio_buf_open(r->dev, n * sizeof *t, &r->rope[i]));
        r->scratch_bytes += n * sizeof *t;
        FOLIO_TRY(folio_queue_write(r->queue, (folio_view){r->rope[i], 0}, t,
                                    n * sizeof *t));
    fail:
        free(t);
        if (st != FOLIO_OK)
            return st;
    }
    return FOLIO_OK;
}

static folio_status open_kv(folio_runner *r)
{
    const folio_model_desc *d = &r->model->desc;
    folio_kv_ref shape = {
        .type = r->prm.kv_type,
        .n_blocks = r->prm.n_blocks,
        .block_size = r->prm.block_size,
        .kv_heads = d->kv_heads,
        .head_dim = d->head_dim,
    };
    shape.layout = folio_kv_layout_best(r->dev, d->head_dim, r->prm.block_size);
    return folio_kv_store_open(r->dev, &shape, d->n_layers, &r->kv);
}

/* Logits in as few buffers as the limit allows. */
static folio_status open_logits(folio_runner *r)
{
    size_t row = (size_t)r->model->desc.n_vocab * sizeof(float);
    size_t limit = folio_device_max_alloc(r->dev);
    if (row > limit)
        return folio_fail(&r->model->log, FOLIO_E_TOO_LARGE,
                          "one row of logits needs %zu bytes, the device "
                          "allows %zu per buffer",
                          row, limit);
    /* The lists of a row's best ids are larger than a row of few logits. */
    size_t most = FOLIO_MAX(row, FOLIO_TOP_ROW_INTS * sizeof(int32_t));
    size_t per = FOLIO_MIN(limit / most, (size_t)r->prm.max_rows);
    if (per == 0)
        return folio_fail(&r->model->log, FOLIO_E_TOO_LARGE,
                          "the best ids of one row need %zu bytes, the device "
                          "allows %zu per buffer",
                          most, limit);
    r->rows_per_buf = (int32_t)per;
    int32_t n = (int32_t)folio_div_up(r->prm.max_rows, (int64_t)per);
    r->logits = folio_calloc((size_t)n, sizeof *r->logits);
    if (!r->logits)
        return FOLIO_E_NOMEM;
    for (int32_t i = 0; i < n; i++) {
        size_t rows = FOLIO_MIN(per, (size_t)r->prm.max_rows - (size_t)i * per);
        FOLIO_RETURN_IF(folio_buf_open(r->dev, rows * row, &r->logits[i]));
        r->n_logits = i + 1;
        r->scratch_bytes += rows * row;
    }
    return FOLIO_OK;
}

static size_t section(size_t n)
{
    return n + 4; /* sections are aligned to four elements */
}

/* Integers a step of `step_tok` tokens can need, SIZE_MAX if they are too many;
 * fills bound[] and plan[] from the attention ops of `low`. */
static size_t step_ints(folio_runner *r, const folio_lowered *low,
                        int32_t step_tok)
{
    const folio_batch_limits *m = &r->limits;
    size_t tok = (size_t)step_tok, seqs = (size_t)m->max_seqs;
    size_t blocks = (size_t)folio_div_up(m->max_ctx, m->block_size);
    size_t n = 3 * section(tok) + section(FOLIO_MIN(tok, (size_t)m->max_rows)) +
               section(2 * (size_t)m->max_copies) + 3 * section(seqs + 1) +
               section(seqs * blocks) + folio_drawer_ints(r, step_tok);
    for (int32_t w = 0; w < low->n_plans; w++) {
        folio_attn_plan_bounds *b = &r->bound[w];
        folio_attn_plan_params_of(low->attn[w], &r->plan[w]);
        if (folio_attn_plan_bound(&r->plan[w], step_tok, m->max_seqs,
                                  m->max_ctx, b) != FOLIO_OK)
            return SIZE_MAX;
        n += section((size_t)b->entries * FOLIO_ATTN_ENTRY_INTS) +
             section((size_t)b->merges * FOLIO_ATTN_MERGE_INTS) +
             section((size_t)b->tiles * FOLIO_ATTN_TILE_INTS);
    }
    return n;
}

/* Lowers with as many tokens at once as the device's buffers hold. */
static folio_status open_lowered(folio_runner *r)
{
    const folio_model_desc *d = &r->model->desc;
    const folio_log *log = &r->model->log;
    size_t limit = folio_device_max_alloc(r->dev);
    int32_t tok = r->prm.pass_tok ? FOLIO_MIN(r->prm.pass_tok, r->prm.max_tok)
                                  : r->prm.max_tok;
    tok = folio_lower_fit_tok(d, tok, limit);
    folio_lower_params p = {
        .desc = d,
        .dev = r->dev,
        .ops = r->ops,
        .kv = &r->kv,
        .rope_n_pos = r->prm.max_ctx,
        .few_tok = folio_few_tok(r->dev),
        .fuse = r->prm.fused > 0,
        .whole = r->prm.fused > 1,
        .max_seqs = r->prm.max_seqs,
        .max_ctx = r->prm.max_ctx,
        .logits = {r->logits[0], 0},
    };
    for (int i = 0; i < FOLIO_MAX_ROPES; i++)
        p.rope_table[i] = (folio_view){r->rope[i], 0};
    for (; tok >= 1; tok /= 2) {
        p.step_tok = tok;
        p.head_rows = FOLIO_MIN(tok, r->rows_per_buf);
        folio_status st = folio_lower(&p, &r->low);
        if (st != FOLIO_OK && st != FOLIO_E_TOO_LARGE)
            return st;
        if (st == FOLIO_OK) {
            size_t ints = step_ints(r, &r->low, tok);
            size_t more = folio_drawer_results(r);
            if (ints <= limit / sizeof(int32_t) &&
                more <= limit / sizeof(int32_t) - ints) {
                r->scratch_bytes +=
                    r->low.arena.total + (ints + more) * sizeof(int32_t) +
                    (r->low.scratch ? folio_buf_bytes(r->low.scratch) : 0);
                FOLIO_RETURN_IF(folio_upload_open(&r->up, r->dev, ints + more));
                r->up.cap = ints; /* the rest is the drawer's */
                return FOLIO_OK;
            }
            folio_lowered_fini(&r->low);
        }
    }
    return folio_fail(log, FOLIO_E_TOO_LARGE,
                      "not even one token at a time fits: the device allows "
                      "%zu bytes per buffer (block table of %d positions, "
                      "activations of %d floats)",
                      limit, r->prm.max_ctx, FOLIO_MAX(d->dim, d->ff_dim));
}

static folio_status open_top(folio_runner *r)
{
    size_t scratch = 0, per = (size_t)r->rows_per_buf;
    for (int i = 0; i < 2; i++) {
        folio_topk_args a = {
            .n_rows = r->rows_per_buf,
            .n_vocab = r->model->desc.n_vocab,
            .k = i ? FOLIO_TOP_LARGE : FOLIO_TOP_SMALL,
        };
        FOLIO_RETURN_IF(
            folio_op_open(r->dev, FOLIO_OP_TOPK, &r->ops, &a, &r->top_op[i]));
        scratch = FOLIO_MAX(scratch, folio_op_scratch_bytes(r->top_op[i]));
    }
    if (scratch)
        FOLIO_RETURN_IF(folio_buf_open(r->dev, scratch, &r->top_scratch));
    size_t n = per * FOLIO_TOP_ROW_INTS;
    r->scratch_bytes += scratch + n * sizeof *r->top_host;
    r->top_host = folio_calloc(n, sizeof *r->top_host);
    if (!r->top_host)
        return FOLIO_E_NOMEM;
    return folio_buf_open(r->dev, n * sizeof *r->top_host, &r->top);
}

static folio_status open_copy(folio_runner *r)
{
    folio_copy_blocks_args a = {.n_pairs = r->limits.max_copies,
                                .kv = r->kv.layer[0]};
    return folio_op_open(r->dev, FOLIO_OP_COPY_BLOCKS, &r->ops, &a,
                         &r->copy_op);
}

/* Whose variant it is: with a fused form, few tokens are its business. */
static const char *case_of(const folio_runner *r, const folio_sequence *seq,
                           const folio_node *n, int regime)
{
    if (seq == &r->low.fused)
        return n->borrowed ? NULL : "few tokens";
    if (seq == &r->low.many)
        return n->borrowed ? NULL : "many tokens";
    if (n->op[FOLIO_FEW] == n->op[FOLIO_MANY])
        return "any tokens";
    return regime == FOLIO_FEW ? "few tokens" : "many tokens";
}

static void add_choice(folio_runner *r, const folio_node *n, int regime,
                       const char *what)
{
    folio_choice c = {.op = folio_op_name(n->id),
                      .what = what,
                      .variant = folio_op_variant_name(n->op[regime])};
    for (size_t j = 0; j < r->n_choices; j++)
        if (!strcmp(r->choices[j].op, c.op) &&
            !strcmp(r->choices[j].what, c.what) &&
            !strcmp(r->choices[j].variant, c.variant))
            return;
    const char *why = folio_op_reason(n->op[regime]);
    size_t len = FOLIO_MIN(strlen(why), sizeof c.reason - 1);
    memcpy(c.reason, why, len);
    r->choices[r->n_choices++] = c;
}

/* One line per distinct (op, variant, case), for reports. */
static folio_status list_choices(folio_runner *r)
{
    const folio_sequence *const seqs[] = {&r->low.fused, &r->low.many,
                                          &r->low.plain};
    int32_t n =
        r->low.fused.n_nodes + r->low.many.n_nodes + r->low.plain.n_nodes;
    r->choices =
        folio_calloc((size_t)n * FOLIO_REGIMES + 1, sizeof *r->choices);
    if (!r->choices)
        return FOLIO_E_NOMEM;
    if (r->low.step) {
        const folio_node whole = {.id = FOLIO_OP_STEP, .op = {r->low.step}};
        add_choice(r, &whole, FOLIO_FEW, "one token a sequence");
    }
    if (!r->low.step && r->low.step_why[0]) {
        folio_choice *c = &r->choices[r->n_choices++];
        *c = (folio_choice){.op = folio_op_name(FOLIO_OP_STEP),
                            .what = "one token a sequence",
                            .variant = "op by op"};
        snprintf(c->reason, sizeof c->reason, "%s", r->low.step_why);
    }
    for (size_t s = 0; s < FOLIO_COUNT(seqs); s++)
        for (int32_t i = 0; i < seqs[s]->n_nodes; i++)
            for (int g = 0; g < FOLIO_REGIMES; g++) {
                const char *what = case_of(r, seqs[s], &seqs[s]->nodes[i], g);
                if (what)
                    add_choice(r, &seqs[s]->nodes[i], g, what);
            }
    return FOLIO_OK;
}

static folio_status open_all(folio_runner *r, bool any_pool)
{
    FOLIO_RETURN_IF(resolve(r, any_pool));
    size_t seqs = (size_t)r->prm.max_seqs;
    size_t slots = (size_t)r->prm.n_blocks * (size_t)r->prm.block_size;
    FOLIO_RETURN_IF(folio_queue_open(r->dev, &r->queue));
    r->slot_bits = folio_calloc(slots / 8 + 1, 1);
    r->piece = folio_calloc(3 * seqs + 2, sizeof *r->piece);
    if (!r->slot_bits || !r->piece)
        return FOLIO_E_NOMEM;
    /* The pool first: a context that is too long is refused before a table is
     * computed for it. */
    FOLIO_RETURN_IF(open_kv(r));
    FOLIO_RETURN_IF(open_rope(r));
    FOLIO_RETURN_IF(open_logits(r));
    folio_drawer_plan(r);
    FOLIO_RETURN_IF(open_lowered(r));
    FOLIO_RETURN_IF(open_top(r));
    FOLIO_RETURN_IF(folio_drawer_open(r));
    FOLIO_RETURN_IF(open_copy(r));
    if (r->prm.trace)
        FOLIO_RETURN_IF(folio_buf_open(r->dev,
                                       ((size_t)r->model->desc.n_layers + 2) *
                                           (size_t)r->model->desc.dim *
                                           sizeof(float),
                                       &r->trace));
    FOLIO_RETURN_IF(list_choices(r));
    return folio_queue_finish(r->queue);
}

static folio_status make(folio_model *m, const folio_runner_params *p,
                         int32_t n_ids, int32_t n_top, bool any_pool,
                         folio_runner **out)
{
    folio_status st;
    if (p->size != sizeof *p)
        return folio_fail(&m->log, FOLIO_E_INVAL,
                          "folio_runner_params.size is %zu, expected %zu",
                          p->size, sizeof *p);
    folio_runner *r = folio_calloc(1, sizeof *r);
    if (!r)
        return FOLIO_E_NOMEM;
    r->prm = *p;
    r->model = folio_model_retain(m);
    r->dev = folio_device_retain(m->dev);
    r->last_rows = -1;
    r->draw.lim.n_ids = n_ids;
    r->draw.lim.n_top = n_top;
    FOLIO_TRY(open_all(r, any_pool));
    *out = r;
    return FOLIO_OK;
fail:
    folio_runner_close(&r);
    return st;
}

/* The form that runs: see folio_runner_params.fused. */
static int32_t fused_form(const folio_runner *r)
{
    if (r->low.step)
        return 2;
    return r->low.fused.n_nodes > 0 || r->low.many.n_nodes > 0;
}

/* Fewer launches were asked for by number than there are to be had. Once for a
 * model: every runner of it would say the same. */
static void warn_of_fused(folio_runner *r, int32_t asked)
{
    const char *why = "there is no op for it here";
    if (fused_form(r) >= asked || atomic_exchange(&r->model->told_fused, true))
        return;
    if (r->prm.deterministic)
        why = "the order of sums must not depend on the batch (deterministic)";
    else if (r->low.step_why[0])
        why = r->low.step_why;
    folio_logf(&r->model->log, FOLIO_LOG_WARN,
               "fused %d was asked for, fused %d runs: %s", asked,
               fused_form(r), why);
}

folio_status folio_runner_open(folio_model *m, const folio_runner_params *p,
                               folio_runner **out)
{
    folio_runner_params def;
    if (!m || !out)
        return FOLIO_E_INVAL;
    folio_runner_params_default(&def);
    return folio_runner_open_drawing(m, p ? p : &def, 0, 0, out);
}

folio_status folio_runner_open_drawing(folio_model *m,
                                       const folio_runner_params *p,
                                       int32_t n_ids, int32_t n_top,
                                       folio_runner **out)
{
    folio_runner *r;
    FOLIO_RETURN_IF(make(m, p, n_ids, n_top, false, &r));
    warn_of_fused(r, p->fused);
    folio_logf(&m->log, FOLIO_LOG_INFO,
               "plan: %d blocks of %d tokens (%.1f MiB of %s KV), %d tokens "
               "a pass, %.1f MiB scratch, deterministic %s",
               r->prm.n_blocks, r->prm.block_size,
               (double)r->kv.bytes / 1048576.0,
               r->prm.kv_type == FOLIO_KV_F32 ? "f32" : "f16", r->low.step_tok,
               (double)r->scratch_bytes / 1048576.0,
               r->prm.deterministic ? "on" : "off");
    *out = r;
    return FOLIO_OK;
}

folio_status folio_runner_measure(folio_model *m, const folio_runner_params *p,
                                  int32_t n_ids, int32_t n_top,
                                  uint64_t *scratch_bytes,
                                  uint64_t *block_bytes)
{
    folio_runner *r;
    folio_runner_params small = *p;
    small.n_blocks =
        (int32_t)folio_div_up(p->max_ctx, FOLIO_MAX(p->block_size, 1));
    FOLIO_RETURN_IF(make(m, &small, n_ids, n_top, true, &r));
    *scratch_bytes = r->scratch_bytes;
    *block_bytes = r->kv.bytes / (uint64_t)r->prm.n_blocks;
    folio_runner_close(&r);
    return FOLIO_OK;
}

static bool has_q8(const folio_sequence *s)
{
    for (int32_t i = 0; i < s->n_nodes; i++)
        for (int g = 0; g < FOLIO_REGIMES; g++)
            if (s->nodes[i].op[g] &&
                (folio_op_flags(s->nodes[i].op[g]) & FOLIO_VAR_Q8))
                return true;
    return false;
}

/* The coarsest arithmetic that a step goes through. */
static const char *arithmetic_of(const folio_runner *r)
{
    if (has_q8(&r->low.plain) || has_q8(&r->low.fused) || has_q8(&r->low.many))
        return "q8";
    return r->prm.kv_type == FOLIO_KV_F32 ? "f32" : "f16";
}

void folio_runner_get_info(const folio_runner *r, folio_runner_info *info)
{
    folio_runner_info i = {0};
    if (!info)
        return;
    if (r)
        i = (folio_runner_info){
            .max_ctx = r->prm.max_ctx,
            .block_size = r->prm.block_size,
            .n_blocks = r->prm.n_blocks,
            .step_tok = r->low.step_tok,
            .deterministic = r->prm.deterministic,
            .kv_bytes = r->kv.bytes,
            .scratch_bytes = r->scratch_bytes,
            .arithmetic = arithmetic_of(r),
            .fused = fused_form(r),
        };
    i.size = FOLIO_MIN(info->size, sizeof i);
    memcpy(info, &i, i.size);
}

folio_status folio_runner_choice(const folio_runner *r, size_t i,
                                 folio_choice *out)
{
    if (!r || !out)
        return FOLIO_E_INVAL;
    if (i >= r->n_choices)
        return FOLIO_E_NOT_FOUND;
    *out = r->choices[i];
    return FOLIO_OK;
}

void folio_runner_get_counters(const folio_runner *r,
                               folio_runner_counters *out)
{
    if (!out)
        return;
    memset(out, 0, sizeof *out);
    if (!r)
        return;
    folio_queue_counters c = folio_queue_get_counters(r->queue);
    *out = (folio_runner_counters){
        .launches = c.launches,
        .writes = c.writes,
        .reads = c.reads,
        .waits = c.waits,
        .tokens = r->n_tokens,
        .forwards = r->n_forwards,
    };
}
