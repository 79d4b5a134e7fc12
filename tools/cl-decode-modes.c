/* cl-decode-modes.c: the modes of cl-decode that measure instead of writing:
 * tokens, logits, forced ids, perplexity, trace. Each prints one JSON object.
 */
#include "cl-decode-app.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

folio_status fail_with(app *a, folio_status st, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char text[1024];
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    a->log.fn(a->log.user, FOLIO_LOG_ERROR, text);
    return st;
}

folio_status fail_read(app *a, const char *path, const char *why)
{
    if (interrupted)
        return fail_with(a, FOLIO_E_CANCELED, "interrupted while reading");
    return fail_with(a, FOLIO_E_IO, "%s: %s", path, why);
}

json_t *ids_json(const int32_t *ids, size_t n)
{
    json_t *j = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(j, json_integer(ids[i]));
    return j;
}

json_t *model_json(const app *a)
{
    json_t *name = tool_json_text(a->info.name, strlen(a->info.name));
    /* File names are bytes, of any encoding or none. */
    json_t *file = tool_json_text(a->model_path, strlen(a->model_path));
    return json_pack("{s:o,s:o,s:s,s:i,s:i,s:i}", "file", file, "name", name,
                     "arch", a->info.arch, "n_vocab", a->info.n_vocab,
                     "n_layers", a->info.n_layers, "ctx_train",
                     a->info.ctx_train);
}

static folio_status print(app *a, json_t *j)
{
    return tool_json_print(j)
               ? FOLIO_OK
               : fail_with(a, FOLIO_E_IO, "stdout could not be written");
}

folio_status mode_tokenize(app *a)
{
    return print(a,
                 json_pack("{s:o}", "ids", ids_json(a->prompt, a->n_prompt)));
}

folio_status mode_detokenize(app *a)
{
    size_t n, got;
    folio_status st = folio_tokenizer_decode(a->tok, a->prompt, a->n_prompt,
                                             FOLIO_DECODE_SPECIAL, NULL, 0, &n);
    if (st != FOLIO_OK && st != FOLIO_E_RANGE)
        return st;
    char *buf = malloc(n + 1);
    if (!buf)
        return FOLIO_E_NOMEM;
    st = folio_tokenizer_decode(a->tok, a->prompt, a->n_prompt,
                                FOLIO_DECODE_SPECIAL, buf, n, &got);
    if (st == FOLIO_OK)
        st = print(a, json_pack("{s:o,s:o}", "text", tool_json_text(buf, got),
                                "bytes_hex", tool_json_hex(buf, got)));
    free(buf);
    return st;
}

typedef struct scored {
    int32_t id;
    float logit;
} scored;

static int by_logit(const void *pa, const void *pb)
{
    const scored *x = pa, *y = pb;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Reads the one row of the last forward. */
static folio_status read_row(app *a, float **row)
{
    *row = malloc((size_t)a->info.n_vocab * sizeof **row);
    if (!*row)
        return FOLIO_E_NOMEM;
    folio_status st = folio_runner_read(a->runner, *row);
    for (int32_t i = 0; st == FOLIO_OK && i < a->info.n_vocab; i++)
        if (isnan((*row)[i]))
            st = fail_with(a, FOLIO_E_INTERNAL, "logit %d is not a number", i);
    return st;
}

static json_t *common_json(app *a)
{
    return json_pack("{s:s,s:o,s:o,s:i,s:s}", "device", a->dinfo.name, "model",
                     model_json(a), "prompt_ids",
                     ids_json(a->prompt, a->n_prompt), "n_prompt",
                     (int)a->n_prompt, "arithmetic", a->rinfo.arithmetic);
}

static json_t *top_json(const scored *v, size_t k)
{
    json_t *j = json_array();
    for (size_t i = 0; i < k; i++)
        json_array_append_new(j, json_pack("[i,o]", (int)v[i].id,
                                           tool_json_num((double)v[i].logit)));
    return j;
}

folio_status mode_top_logits(app *a)
{
    float *row = NULL;
    scored *v = NULL;
    size_t n = (size_t)a->info.n_vocab, k = (size_t)a->o.top_logits;
    double sum = 0.0, sq = 0.0;
    folio_status st = feed(a, a->prompt, a->n_prompt, 1, false);
    if (st == FOLIO_OK)
        st = read_row(a, &row);
    if (st == FOLIO_OK && !(v = malloc(n * sizeof *v)))
        st = FOLIO_E_NOMEM;
    for (size_t i = 0; st == FOLIO_OK && i < n; i++) {
        v[i] = (scored){(int32_t)i, row[i]};
        sum += (double)row[i];
    }
    if (st == FOLIO_OK) {
        double mean = sum / (double)n;
        for (size_t i = 0; i < n; i++)
            sq += ((double)row[i] - mean) * ((double)row[i] - mean);
        qsort(v, n, sizeof *v, by_logit);
        json_t *j = common_json(a);
        json_object_set_new(j, "top", top_json(v, k < n ? k : n));
        json_object_set_new(j, "mean", tool_json_num(mean));
        json_object_set_new(j, "std", tool_json_num(sqrt(sq / (double)n)));
        st = print(a, j);
    }
    free(row);
    free(v);
    return st;
}

folio_status mode_force(app *a)
{
    const int32_t *ids = a->force;
    const size_t n = a->n_force;
    /* All of them before any is computed. */
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= a->info.n_vocab)
            return fail_with(a, FOLIO_E_RANGE,
                             "--force: id %d is outside the vocabulary of %d",
                             ids[i], a->info.n_vocab);
    json_t *steps = json_array();
    folio_status st = feed(a, a->prompt, a->n_prompt, 1, false);
    double t0 = now_s();
    for (size_t i = 0; st == FOLIO_OK && i < n; i++) {
        int32_t best[2], nan;
        float logit[2];
        st = folio_runner_read_top(a->runner, 2, best, logit, &nan);
        if (st == FOLIO_OK && nan)
            st = fail_with(a, FOLIO_E_INTERNAL,
                           "step %zu: %d logits are not numbers", i, nan);
        if (st != FOLIO_OK)
            break;
        json_array_append_new(
            steps, json_pack("[i,o,i,o]", (int)best[0],
                             tool_json_num((double)logit[0]), (int)best[1],
                             tool_json_num((double)logit[1])));
        if (i + 1 < n)
            st = feed(a, &ids[i], 1, 1, false);
    }
    if (st == FOLIO_OK) {
        json_t *j = common_json(a);
        json_object_set(j, "steps", steps);
        json_object_set_new(j, "ids", ids_json(ids, n));
        json_object_set_new(j, "decode_s", tool_json_num(now_s() - t0));
        st = print(a, j);
    }
    json_decref(steps);
    return st;
}

folio_status mode_trace(app *a)
{
    int32_t lines = a->info.n_layers + 2, dim = a->info.dim;
    float *x = malloc((size_t)lines * (size_t)dim * sizeof *x);
    folio_status st =
        x ? feed(a, a->prompt, a->n_prompt, 1, true) : FOLIO_E_NOMEM;
    if (st == FOLIO_OK)
        st = folio_runner_read_trace(a->runner, x);
    if (st == FOLIO_OK) {
        json_t *points = json_array();
        for (int32_t l = 0; l < lines; l++) {
            const float *row = x + (size_t)l * (size_t)dim;
            double sq = 0.0, sum = 0.0;
            json_t *first = json_array();
            char name[32] = "embedding";
            for (int32_t i = 0; i < dim; i++) {
                sq += (double)row[i] * (double)row[i];
                sum += (double)row[i];
                if (i < 8)
                    json_array_append_new(first, tool_json_num((double)row[i]));
            }
            if (l == lines - 1)
                snprintf(name, sizeof name, "output_norm");
            else if (l > 0)
                snprintf(name, sizeof name, "block %d", l - 1);
            json_array_append_new(
                points, json_pack("{s:s,s:o,s:o,s:o}", "at", name, "l2",
                                  tool_json_num(sqrt(sq)), "mean",
                                  tool_json_num(sum / dim), "first8", first));
        }
        json_t *j = common_json(a);
        json_object_set_new(j, "points", points);
        st = print(a, j);
    }
    free(x);
    return st;
}

/* -ln p of `target` under one row, in double. */
static double nll_of(const float *row, int32_t n, int32_t target)
{
    double max = (double)row[0], sum = 0.0;
    for (int32_t i = 1; i < n; i++)
        if ((double)row[i] > max)
            max = (double)row[i];
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)row[i] - max);
    return max + log(sum) - (double)row[target];
}

/* One window from an empty cache: position 0 is not predicted. */
static folio_status window_nll(app *a, const int32_t *ids, size_t n,
                               float *rows, double *nll)
{
    size_t step = (size_t)a->o.max_tok;
    folio_status st = folio_kv_seq_free(a->seq);
    size_t n_vocab = (size_t)a->info.n_vocab;
    *nll = 0.0;
    for (size_t at = 0; st == FOLIO_OK && at < n; at += step) {
        size_t k = n - at < step ? n - at : step;
        if ((st = feed(a, ids + at, k, (int32_t)k, false)) != FOLIO_OK ||
            (st = folio_runner_read(a->runner, rows)) != FOLIO_OK)
            return st;
        for (size_t i = 0; i < k && at + i + 1 < n; i++)
            *nll +=
                nll_of(rows + i * n_vocab, a->info.n_vocab, ids[at + i + 1]);
    }
    return st;
}

folio_status mode_perplexity(app *a)
{
    const char *why;
    size_t n, n_ids = 0;
    size_t ctx = (size_t)a->rinfo.max_ctx;
    bool bos = folio_tokenizer_add_bos(a->tok);
    char *text = tool_read_file(a->o.perplexity, &n, &why);
    if (!text)
        return fail_read(a, a->o.perplexity, why);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    int32_t *win = malloc(ctx * sizeof *win);
    float *rows =
        malloc((size_t)a->o.max_tok * (size_t)a->info.n_vocab * sizeof *rows);
    folio_status st = ids && win && rows ? FOLIO_OK : FOLIO_E_NOMEM;
    if (st == FOLIO_OK)
        st = folio_tokenizer_encode(
            a->tok, text, n, 0 /* the text is data: nothing in it is special */,
            ids, n + 1, &n_ids);
    double nll = 0.0, t0 = now_s();
    size_t n_pred = 0;
    size_t own = bos ? ctx - 1 : ctx;
    if (st == FOLIO_OK && (ctx < 2 || n_ids + bos < 2))
        st = fail_with(a, FOLIO_E_INVAL,
                       "%s holds %zu ids and a window %zu, too few to predict "
                       "any",
                       a->o.perplexity, n_ids, ctx);
    json_t *windows = json_array();
    for (size_t at = 0; st == FOLIO_OK && at < n_ids; at += own) {
        size_t k = n_ids - at < own ? n_ids - at : own;
        double w = 0.0;
        if (bos)
            win[0] = folio_tokenizer_bos(a->tok);
        memcpy(win + bos, ids + at, k * sizeof *win);
        st = window_nll(a, win, k + bos, rows, &w);
        nll += w;
        n_pred += k + bos - 1;
        json_array_append_new(windows,
                              json_pack("{s:i,s:o}", "n", (int)(k + bos - 1),
                                        "nll", tool_json_num(w)));
    }
    if (st == FOLIO_OK) {
        json_t *j = json_pack(
            "{s:s,s:o,s:s,s:o,s:i,s:o,s:O,s:o}", "device", a->dinfo.name,
            "model", model_json(a), "arithmetic", a->rinfo.arithmetic,
            "nll_sum", tool_json_num(nll), "n", (int)n_pred, "ppl",
            tool_json_num(exp(nll / (double)n_pred)), "windows", windows,
            "seconds", tool_json_num(now_s() - t0));
        st = print(a, j);
    }
    json_decref(windows);
    free(text);
    free(ids);
    free(win);
    free(rows);
    return st;
}
