/* cl-decode-app.h: options and opened objects of cl-decode, shared by its
 * files. */
#ifndef FOLIO_CL_DECODE_APP_H
#define FOLIO_CL_DECODE_APP_H

#include "tool_common.h"

typedef struct options {
    const char *model, *prompt, *prompt_file, *device, *ids, *force;
    const char *perplexity, *detok_ids, *requests, *trace_file;
    long long n, ctx, block, top_logits, threads, max_tok, top_k;
    long long deterministic, shuffle, n_blocks, max_seqs, budget, watermark;
    long long run_ahead, fused;
    uint64_t seed;
    double temp, top_p, min_p, pace;
    bool json, ignore_eos, exact, tokenize, detokenize, no_special, trace;
    bool verbose, have_n, have_seed, have_sampling, have_max_tok, kv_f32;
    bool have_pace, have_watermark, have_run_ahead, no_prefix_cache,
        no_chunking, audit;
} options;

typedef struct app {
    options o;
    tool_log tlog;
    folio_log log;
    char *model_path; /* owned */
    folio_device *dev;
    folio_model *model;
    folio_runner *runner;
    folio_tokenizer *tok;
    folio_block_pool *pool;
    folio_kv_seq *seq;
    folio_model_info info;
    folio_runner_info rinfo;
    folio_device_info dinfo;
    int32_t *prompt;
    size_t n_prompt;
    int32_t *force; /* owned; ids of --force */
    size_t n_force;
    size_t n_failed; /* requests of --requests that ended in an error */
    double load_s;
} app;

/* cl-decode-options.c: prints what is wrong itself. -1 = go on, else the exit
 * status (also after --help and --version). */
int options_parse(int argc, char **argv, options *o);

/* cl-decode-run.c */
double now_s(void);
folio_status open_tokenizer(app *a);
/* Device and model, for max_seqs sequences at once. */
folio_status open_model(app *a, int32_t max_seqs);
/* The same, and a runner with its paged state for one sequence. */
folio_status open_runner(app *a, int32_t max_rows, bool trace);
void close_app(app *a);
/* Feeds ids in steps of at most max_tok; logits of the last `want` ids are the
 * rows of the last forward (want <= max_rows, all in one step). */
folio_status feed(app *a, const int32_t *ids, size_t n, int32_t want,
                  bool trace);
extern volatile int interrupted;

/* cl-decode-requests.c */
folio_status mode_requests(app *a);

/* cl-decode-modes.c: each prints its JSON or text. */
folio_status mode_tokenize(app *a);
folio_status mode_detokenize(app *a);
folio_status mode_perplexity(app *a);
folio_status mode_trace(app *a);
folio_status mode_top_logits(app *a);
folio_status mode_force(app *a);
folio_status fail_with(app *a, folio_status st, const char *fmt, ...);
/* IO, or CANCELED where Ctrl-C ended the reading. */
folio_status fail_read(app *a, const char *path, const char *why);
json_t *ids_json(const int32_t *ids, size_t n);
json_t *model_json(const app *a);

#endif
