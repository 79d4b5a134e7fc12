#define _POSIX_C_SOURCE 200809L
/* cl-decode-run.c: opening device, model, tokenizer and paged state, and
 * feeding ids through the runner. */
#include "cl-decode-app.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

volatile int interrupted;

double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Whether it is only ids that go in. */
static bool needs_text(const options *o)
{
    return !o->ids || o->tokenize || o->detokenize || o->requests ||
           o->perplexity;
}

folio_status open_tokenizer(app *a)
{
    if (needs_text(&a->o))
        return folio_tokenizer_open_file(a->model_path, &a->log, &a->tok);
    /* The tokenizer keeps this log, so what it says later comes through it. */
    a->tlog.holds = true;
    folio_status st =
        folio_tokenizer_open_file(a->model_path, &a->log, &a->tok);
    a->tlog.holds = false;
    if (st == FOLIO_E_UNSUPPORTED) {
        fprintf(stderr,
                "%s: warning: %s; without it there are ids only, and none "
                "that ends the text\n",
                tool_name, a->tlog.error);
        a->tlog.error[0] = '\0';
        return FOLIO_OK;
    }
    return st == FOLIO_OK ? st : fail_with(a, st, "%s", a->tlog.error);
}

/* A bar on a terminal, a line at the end elsewhere. */
static int show_progress(void *user, uint64_t done, uint64_t total)
{
    app *a = user;
    double share = total ? (double)done / (double)total : 1.0;
    if (!a->o.json && isatty(2)) {
        char bar[31];
        for (int i = 0; i < 30; i++)
            bar[i] = i < (int)(share * 30.0) ? '#' : '.';
        bar[30] = '\0';
        fprintf(stderr, "\rloading [%s] %3d %%%s", bar, (int)(share * 100.0),
                done >= total ? "\n" : "");
    }
    return interrupted;
}

/* Takes every block and gives all back in a random order. */
static folio_status shuffle_pool(app *a)
{
    int32_t n = a->rinfo.n_blocks;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    uint64_t state = (uint64_t)a->o.shuffle * 2 + 1;
    folio_status st = ids ? FOLIO_OK : FOLIO_E_NOMEM;
    for (int32_t i = 0; st == FOLIO_OK && i < n; i++)
        st = folio_block_pool_take(a->pool, &ids[i]);
    for (int32_t i = n - 1; st == FOLIO_OK && i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int32_t j = (int32_t)((state >> 33) % (uint64_t)(i + 1));
        int32_t t = ids[i];
        ids[i] = ids[j];
        ids[j] = t;
    }
    if (st == FOLIO_OK)
        st = folio_block_pool_give_all(a->pool, ids, n);
    free(ids);
    return st;
}

static folio_status open_paging(app *a)
{
    folio_block_pool_params pp;
    folio_kv_seq_params sp;
    folio_status st;
    folio_block_pool_params_default(&pp);
    pp.n_blocks = a->rinfo.n_blocks;
    pp.block_tok = a->rinfo.block_size;
    pp.log = a->log;
    if ((st = folio_block_pool_open(&pp, &a->pool)) != FOLIO_OK)
        return st;
    if (a->o.shuffle >= 0 && (st = shuffle_pool(a)) != FOLIO_OK)
        return st;
    folio_kv_seq_params_default(&sp);
    sp.n_layers = a->info.n_layers;
    sp.max_tok = a->rinfo.max_ctx;
    return folio_kv_seq_open(a->pool, &sp, &a->seq);
}

folio_status open_model(app *a, int32_t max_seqs)
{
    folio_device_params dp;
    folio_model_params mp;
    folio_status st;

    folio_device_params_default(&dp);
    dp.select = a->o.device;
    dp.n_threads = (int32_t)a->o.threads;
    dp.log = a->log;
    if ((st = folio_device_open(&dp, &a->dev)) != FOLIO_OK)
        return st;
    a->dinfo.size = sizeof a->dinfo;
    folio_device_get_info(a->dev, &a->dinfo);

    folio_model_params_default(&mp);
    mp.progress = show_progress;
    mp.progress_user = a;
    mp.max_seqs = max_seqs;
    mp.exact = a->o.exact;
    mp.log = a->log;
    if ((st = folio_model_open(a->dev, a->model_path, &mp, &a->model)) !=
        FOLIO_OK)
        return st;
    a->info.size = sizeof a->info;
    folio_model_get_info(a->model, &a->info);
    return FOLIO_OK;
}

folio_status open_runner(app *a, int32_t max_rows, bool trace)
{
    folio_runner_params rp;
    folio_status st;
    double t0 = now_s();
    if ((st = open_model(a, 1)) != FOLIO_OK)
        return st;
    folio_runner_params_default(&rp);
    rp.max_tok = (int32_t)a->o.max_tok;
    rp.max_rows = max_rows;
    rp.block_size = (int32_t)a->o.block;
    rp.kv_type = a->o.kv_f32 ? FOLIO_KV_F32 : FOLIO_KV_F16;
    rp.deterministic = (int32_t)a->o.deterministic;
    rp.fused = (int32_t)a->o.fused;
    rp.exact = a->o.exact;
    rp.trace = trace;
    long long ctx = a->o.ctx ? a->o.ctx : 4096;
    if (!a->o.ctx && ctx > a->info.ctx_train)
        ctx = a->info.ctx_train;
    rp.max_ctx = (int32_t)ctx;
    if ((st = folio_runner_open(a->model, &rp, &a->runner)) != FOLIO_OK)
        return st;
    a->rinfo.size = sizeof a->rinfo;
    folio_runner_get_info(a->runner, &a->rinfo);
    if ((st = open_paging(a)) != FOLIO_OK)
        return st;
    a->load_s = now_s() - t0;
    if (!a->o.json)
        fprintf(stderr, "%s: %s on %s, loaded in %.2f s\n", tool_name,
                a->info.name[0] ? a->info.name : a->info.arch, a->dinfo.name,
                a->load_s);
    folio_choice c;
    for (size_t i = 0;
         a->o.verbose && folio_runner_choice(a->runner, i, &c) == FOLIO_OK; i++)
        fprintf(stderr, "%s: %s (%s): %s%s%s\n", tool_name, c.op, c.what,
                c.variant, c.reason[0] ? ", " : "", c.reason);
    return FOLIO_OK;
}

void close_app(app *a)
{
    folio_kv_seq_close(&a->seq);
    folio_block_pool_close(&a->pool);
    folio_runner_close(&a->runner);
    folio_model_close(&a->model);
    folio_device_close(&a->dev);
    folio_tokenizer_close(&a->tok);
    free(a->prompt);
    free(a->force);
    free(a->model_path);
}

/* One forward of n <= max_tok ids at the end of the sequence. */
static folio_status feed_step(app *a, const int32_t *ids, int32_t n,
                              int32_t n_rows, bool trace)
{
    folio_kv_step step;
    folio_status st;
    size_t bytes = (size_t)n * sizeof(int32_t);
    int32_t *pos = malloc(2 * bytes);
    if (!pos)
        return FOLIO_E_NOMEM;
    int32_t *rows = pos + n;
    if ((st = folio_kv_seq_begin(a->seq, n, &step)) != FOLIO_OK) {
        free(pos);
        return st;
    }
    int32_t n_blocks;
    const int32_t *blocks =
        folio_block_table_blocks(folio_kv_seq_table(a->seq), &n_blocks);
    int32_t kv_len = (int32_t)step.kv_len;
    int32_t q_start[2] = {0, n}, table_start[2] = {0, n_blocks};
    for (int32_t i = 0; i < n; i++)
        pos[i] = (int32_t)step.first_pos + i;
    for (int32_t i = 0; i < n_rows; i++)
        rows[i] = n - n_rows + i;
    folio_batch b = {
        .n_tok = n,
        .n_seq = 1,
        .tok = ids,
        .pos = pos,
        .slot = step.slots,
        .q_start = q_start,
        .kv_len = &kv_len,
        .table_start = table_start,
        .tables = blocks,
        .n_rows = n_rows,
        .rows = rows,
    };
    st = folio_runner_forward(a->runner, &b, trace ? n - 1 : -1);
    for (int32_t l = 0; st == FOLIO_OK && l < a->info.n_layers; l++)
        st = folio_kv_seq_layer(a->seq, l);
    if (st == FOLIO_OK)
        st = folio_kv_seq_commit(a->seq);
    else if (folio_kv_seq_cancel(a->seq) != FOLIO_OK)
        st = FOLIO_E_INTERNAL;
    free(pos);
    return st;
}

folio_status feed(app *a, const int32_t *ids, size_t n, int32_t want,
                  bool trace)
{
    size_t step = (size_t)a->o.max_tok;
    int64_t have = folio_kv_seq_n_tok(a->seq);
    if (n == 0)
        return fail_with(a, FOLIO_E_INVAL, "the prompt is empty");
    if ((int64_t)n > a->rinfo.max_ctx - have)
        return fail_with(a, FOLIO_E_TOO_LARGE,
                         "%lld ids do not fit in a context of %d (--ctx)",
                         (long long)have + (long long)n, a->rinfo.max_ctx);
    for (size_t at = 0; at < n; at += step) {
        if (interrupted)
            return FOLIO_E_CANCELED;
        size_t k = n - at < step ? n - at : step;
        bool last = at + k == n;
        folio_status st =
            feed_step(a, ids + at, (int32_t)k, last ? want : 0, last && trace);
        if (st != FOLIO_OK)
            return st;
    }
    return FOLIO_OK;
}
