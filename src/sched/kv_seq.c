/* sched/kv_seq.c: the paged state of one sequence, the same for all layers.
 * Owns the order of a step (begin, layers 0..L-1, commit or cancel) and the
 * slots derived from the table. Never sees K or V. */
#include "sched/block_table.h"

#include <string.h>

struct folio_kv_seq {
    folio_block_pool *pool;
    folio_block_table *table;
    int32_t n_layers;
    int32_t next_layer;        /* of the step under way */
    bool in_step;              /* between begin and commit or cancel */
    folio_block_growth growth; /* of that step */
    int32_t *slots;            /* [limit] by position; -1 beyond the tokens */
};

void folio_kv_seq_params_default(folio_kv_seq_params *params)
{
    if (!params)
        return;
    memset(params, 0, sizeof *params);
    params->size = sizeof *params;
}

static void destroy(folio_kv_seq *s)
{
    if (!s)
        return;
    folio_block_table_close(&s->table);
    folio_block_pool_close(&s->pool);
    free(s->slots);
    free(s);
}

static void clear_slots(folio_kv_seq *s, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++)
        s->slots[i] = -1;
}

folio_status folio_kv_seq_open(folio_block_pool *pool,
                               const folio_kv_seq_params *params,
                               folio_kv_seq **out)
{
    folio_kv_seq *s = NULL;
    folio_status st = FOLIO_OK;
    if (!pool || !params || !out)
        return FOLIO_E_INVAL;
    const folio_log *log = folio_block_pool_log(pool);
    if (params->size != sizeof *params)
        return folio_fail(log, FOLIO_E_INVAL,
                          "kv_seq: params.size is %zu, this library's is %zu",
                          params->size, sizeof *params);
    if (params->n_layers < 1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "kv_seq: n_layers is %d, at least 1 is needed",
                          (int)params->n_layers);
    s = folio_calloc(1, sizeof *s);
    if (!s)
        return folio_fail(log, FOLIO_E_NOMEM, "kv_seq: no memory");
    s->n_layers = params->n_layers;
    s->pool = folio_block_pool_ref(pool);
    FOLIO_TRY(folio_block_table_open(pool, params->max_tok, &s->table));
    const int64_t limit = folio_block_table_limit(s->table);
    s->slots = folio_calloc((size_t)limit, sizeof *s->slots);
    if (!s->slots)
        FOLIO_TRY(folio_fail(log, FOLIO_E_NOMEM,
                             "kv_seq: no memory for the slots of %lld tokens",
                             (long long)limit));
    clear_slots(s, 0, limit);
    *out = s;
    return FOLIO_OK;
fail:
    destroy(s);
    return st;
}

void folio_kv_seq_close(folio_kv_seq **seq)
{
    if (!seq || !*seq)
        return;
    /* A failure was logged; what can be given back is given by the table. */
    if ((*seq)->in_step && folio_kv_seq_cancel(*seq) != FOLIO_OK)
        (*seq)->in_step = false;
    destroy(*seq);
    *seq = NULL;
}

static const folio_log *log_of(const folio_kv_seq *s)
{
    return folio_block_pool_log(s->pool);
}

/* INVAL unless the sequence is (or is not) in a step, as `want` says. */
static folio_status check_step(const folio_kv_seq *s, const char *who,
                               bool want)
{
    if (s->in_step == want)
        return FOLIO_OK;
    if (want)
        return folio_fail(log_of(s), FOLIO_E_INVAL,
                          "kv_seq: %s: no step is under way", who);
    return folio_fail(
        log_of(s), FOLIO_E_INVAL,
        "kv_seq: %s: the step of %lld tokens at position %lld is "
        "under way; commit or cancel it first",
        who, (long long)(folio_block_table_n_tok(s->table) - s->growth.n_tok),
        (long long)s->growth.n_tok);
}

/* The first position whose slot the growth changed: a replaced block moves the
 * tokens it holds already. */
static int64_t first_changed(const folio_kv_seq *s)
{
    const int64_t old = s->growth.n_tok;
    if (s->growth.copy.src < 0)
        return old;
    return old - old % folio_block_pool_block_tok(s->pool);
}

static void end_step(folio_kv_seq *s)
{
    s->in_step = false;
    s->next_layer = 0;
    memset(&s->growth, 0, sizeof s->growth);
}

static folio_kv_step describe(const folio_kv_seq *s)
{
    const int64_t first = s->growth.n_tok;
    const int64_t len = folio_block_table_n_tok(s->table);
    return (folio_kv_step){first, len - first, len, s->slots + first,
                           s->growth.copy};
}

/* ---- a step -------------------------------------------------------------- */

folio_status folio_kv_seq_begin(folio_kv_seq *seq, int64_t n_new,
                                folio_kv_step *out_step)
{
    folio_block_growth g;
    if (!seq || !out_step)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_step(seq, "begin", false));
    if (n_new < 1)
        return folio_fail(log_of(seq), FOLIO_E_INVAL,
                          "kv_seq: begin: n_new is %lld, at least 1 is needed",
                          (long long)n_new);
    FOLIO_RETURN_IF(folio_block_table_grow(seq->table, n_new, true, &g));
    seq->growth = g;
    seq->in_step = true;
    seq->next_layer = 0;
    const int64_t from = first_changed(seq);
    FOLIO_RETURN_IF(folio_block_table_slots(
        seq->table, from, folio_block_table_n_tok(seq->table) - from,
        seq->slots + from));
    *out_step = describe(seq);
    return FOLIO_OK;
}

folio_status folio_kv_seq_step(const folio_kv_seq *seq, folio_kv_step *out_step)
{
    if (!seq || !out_step)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_step(seq, "step", true));
    *out_step = describe(seq);
    return FOLIO_OK;
}

folio_status folio_kv_seq_layer(folio_kv_seq *seq, int32_t layer)
{
    if (!seq)
        return FOLIO_E_INVAL;
    if (layer < 0 || layer >= seq->n_layers)
        return folio_fail(log_of(seq), FOLIO_E_RANGE,
                          "kv_seq: layer %d is outside 0..%d", (int)layer,
                          (int)seq->n_layers - 1);
    FOLIO_RETURN_IF(check_step(seq, "layer", true));
    if (layer != seq->next_layer) {
        if (seq->next_layer == seq->n_layers)
            return folio_fail(log_of(seq), FOLIO_E_INVAL,
                              "kv_seq: layer %d comes after all %d layers of "
                              "the step; commit it first",
                              (int)layer, (int)seq->n_layers);
        return folio_fail(log_of(seq), FOLIO_E_INVAL,
                          "kv_seq: layer %d is out of order, it is the turn of "
                          "layer %d",
                          (int)layer, (int)seq->next_layer);
    }
    seq->next_layer++;
    return FOLIO_OK;
}

folio_status folio_kv_seq_commit(folio_kv_seq *seq)
{
    if (!seq)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_step(seq, "commit", true));
    if (seq->next_layer != seq->n_layers)
        return folio_fail(log_of(seq), FOLIO_E_INVAL,
                          "kv_seq: commit: %d of %d layers were entered",
                          (int)seq->next_layer, (int)seq->n_layers);
    FOLIO_RETURN_IF(folio_block_table_settle(seq->table, &seq->growth));
    end_step(seq);
    return FOLIO_OK;
}

folio_status folio_kv_seq_cancel(folio_kv_seq *seq)
{
    if (!seq)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_step(seq, "cancel", true));
    const int64_t from = first_changed(seq), old = seq->growth.n_tok;
    clear_slots(seq, old, folio_block_table_n_tok(seq->table));
    const folio_status st = folio_block_table_undo(seq->table, &seq->growth);
    end_step(seq);
    FOLIO_RETURN_IF(folio_block_table_slots(seq->table, from, old - from,
                                            seq->slots + from));
    return st;
}

/* ---- between steps ------------------------------------------------------- */

folio_status folio_kv_seq_truncate(folio_kv_seq *seq, int64_t n_tok)
{
    if (!seq)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_step(seq, "truncate", false));
    const int64_t before = folio_block_table_n_tok(seq->table);
    FOLIO_RETURN_IF(folio_block_table_truncate(seq->table, n_tok));
    clear_slots(seq, n_tok, before);
    return FOLIO_OK;
}

folio_status folio_kv_seq_fork(const folio_kv_seq *src, folio_kv_seq *dst)
{
    if (!src || !dst)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_step(src, "fork", false));
    FOLIO_RETURN_IF(check_step(dst, "fork", false));
    if (src->n_layers != dst->n_layers)
        return folio_fail(log_of(dst), FOLIO_E_INVAL,
                          "kv_seq: fork: the source has %d layers, the "
                          "destination %d",
                          (int)src->n_layers, (int)dst->n_layers);
    FOLIO_RETURN_IF(folio_block_table_fork(src->table, dst->table));
    memcpy(dst->slots, src->slots,
           (size_t)folio_block_table_n_tok(src->table) * sizeof *dst->slots);
    return FOLIO_OK;
}

folio_status folio_kv_seq_free(folio_kv_seq *seq)
{
    if (!seq)
        return FOLIO_E_INVAL;
    if (seq->in_step)
        FOLIO_RETURN_IF(folio_kv_seq_cancel(seq));
    const int64_t before = folio_block_table_n_tok(seq->table);
    FOLIO_RETURN_IF(folio_block_table_free(seq->table));
    clear_slots(seq, 0, before);
    return FOLIO_OK;
}

/* ---- views --------------------------------------------------------------- */

int64_t folio_kv_seq_n_tok(const folio_kv_seq *seq)
{
    if (!seq)
        return 0;
    return seq->in_step ? seq->growth.n_tok
                        : folio_block_table_n_tok(seq->table);
}

const int32_t *folio_kv_seq_history(const folio_kv_seq *seq, int64_t *out_n)
{
    if (!seq || !out_n)
        return NULL;
    *out_n = folio_block_table_n_tok(seq->table);
    return seq->slots;
}

const folio_block_table *folio_kv_seq_table(const folio_kv_seq *seq)
{
    return seq ? seq->table : NULL;
}
