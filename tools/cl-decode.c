#define _POSIX_C_SOURCE 200809L
/* cl-decode.c: continues a text with a model. Text goes to stdout and nothing
 * else; what happened goes to stderr, or all of it into one JSON object. */
#include "cl-decode-app.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEFAULT_MODEL "SmolLM2-135M-Instruct.Q4_1.gguf"

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* The model quickstart keeps, where no -m is given. */
static folio_status find_model(app *a)
{
    struct stat sb;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char path[4096];
    if (a->o.model) {
        a->model_path = strdup(a->o.model);
        return a->model_path ? FOLIO_OK : FOLIO_E_NOMEM;
    }
    if (cache && *cache)
        snprintf(path, sizeof path, "%s/folio/models/" DEFAULT_MODEL, cache);
    else
        snprintf(path, sizeof path, "%s/.cache/folio/models/" DEFAULT_MODEL,
                 home ? home : "");
    if (stat(path, &sb) != 0)
        return fail_with(a, FOLIO_E_NOT_FOUND,
                         "no model: give one with -m FILE, or run "
                         "tools/quickstart once, which fetches %s",
                         DEFAULT_MODEL);
    a->model_path = strdup(path);
    return a->model_path ? FOLIO_OK : FOLIO_E_NOMEM;
}

static folio_status read_prompt(app *a)
{
    const options *o = &a->o;
    if (o->perplexity || o->requests)
        return FOLIO_OK;
    if (o->force) {
        if (!tool_parse_ids(o->force, &a->force, &a->n_force))
            return fail_with(a, FOLIO_E_INVAL,
                             "--force '%s' is not a list like 1,2,3", o->force);
        if (a->n_force == 0)
            return fail_with(a, FOLIO_E_INVAL, "--force has no ids");
    }
    if (o->ids) {
        if (!tool_parse_ids(o->ids, &a->prompt, &a->n_prompt))
            return fail_with(a, FOLIO_E_INVAL,
                             "--ids '%s' is not a list like 1,2,3", o->ids);
        return FOLIO_OK;
    }
    const char *why = NULL, *path = o->prompt_file ? o->prompt_file : "-";
    char *owned = NULL;
    const char *text = o->prompt;
    size_t n = text ? strlen(text) : 0;
    if (!text) {
        owned = tool_read_file(path, &n, &why);
        if (!owned)
            return fail_read(a, path, why);
        text = owned;
    }
    uint32_t flags = o->no_special ? 0 : FOLIO_ENCODE_PARSE_SPECIAL;
    if (!o->tokenize)
        flags |= FOLIO_ENCODE_ADD_BOS;
    a->prompt = malloc((n + 1) * sizeof *a->prompt);
    folio_status st =
        a->prompt ? folio_tokenizer_encode(a->tok, text, n, flags, a->prompt,
                                           n + 1, &a->n_prompt)
                  : FOLIO_E_NOMEM;
    free(owned);
    return st;
}

typedef struct answer {
    int32_t *ids;
    size_t n;
    char *text; /* exact bytes, the final end token left out */
    size_t n_text;
    const char *finish;
    size_t n_fed; /* ids of the prompt that were computed */
    double prefill_s, decode_s;
} answer;

/* The next id from the last forward's one row of logits. */
static folio_status draw(app *a, folio_sampler *s,
                         const folio_sample_params *sp, float *row,
                         int32_t n_ids, int32_t *id)
{
    int32_t nan;
    float best;
    folio_status st;
    /* A head may have rows without a token: those are never drawn. */
    if (sp->temperature == 0.0f && n_ids == a->info.n_vocab) {
        st = folio_runner_read_top(a->runner, 1, id, &best, &nan);
        if (st == FOLIO_OK && nan)
            st = fail_with(a, FOLIO_E_INTERNAL, "%d logits are not numbers",
                           nan);
        return st;
    }
    st = folio_runner_read(a->runner, row);
    if (st != FOLIO_OK)
        return st;
    return folio_sampler_draw(s, sp, row, 0,
                              (uint64_t)folio_kv_seq_n_tok(a->seq), id);
}

static folio_status add_text(app *a, answer *ans, int32_t id)
{
    const char *piece;
    size_t n;
    folio_status st = folio_tokenizer_piece(a->tok, id, &piece, &n);
    if (st != FOLIO_OK)
        return st;
    char *more = realloc(ans->text, ans->n_text + n + 1);
    if (!more)
        return FOLIO_E_NOMEM;
    ans->text = more;
    memcpy(ans->text + ans->n_text, piece, n);
    ans->n_text += n;
    return FOLIO_OK;
}

/* Streams to stdout as characters become certain. */
static folio_status stream(app *a, folio_detokenizer *d, int32_t id)
{
    const char *text;
    size_t n;
    folio_status st = folio_detokenizer_push(d, id, &text, &n);
    if (st != FOLIO_OK)
        return st;
    if (n && (fwrite(text, 1, n, stdout) != n || fflush(stdout)))
        return fail_with(a, FOLIO_E_IO, "stdout could not be written");
    return FOLIO_OK;
}

static folio_status print_id(app *a, int32_t id)
{
    if (printf("%d ", id) < 0 || fflush(stdout))
        return fail_with(a, FOLIO_E_IO, "stdout could not be written");
    return FOLIO_OK;
}

/* Ids that exist in both the tokenizer, if there is one, and the model's head.
 */
static int32_t n_drawable(const app *a)
{
    int32_t n = a->tok ? folio_tokenizer_n_vocab(a->tok) : a->info.n_vocab;
    return n < a->info.n_vocab ? n : a->info.n_vocab;
}

/* The first draw waits for the prompt, so it ends the prefill: `began` is when
 * that started. */
static folio_status generate_loop(app *a, folio_sampler *s,
                                  folio_detokenizer *d, float *row,
                                  double began, answer *ans)
{
    folio_sample_params sp;
    folio_status st = FOLIO_OK;
    int32_t n_ids = n_drawable(a);
    long long budget = a->o.have_n ? a->o.n : INT32_MAX;
    folio_sample_params_default(&sp);
    sp.temperature = (float)a->o.temp;
    sp.top_k = (int32_t)a->o.top_k;
    sp.top_p = (float)a->o.top_p;
    sp.min_p = (float)a->o.min_p;
    sp.seed = a->o.seed;
    while (st == FOLIO_OK) {
        int32_t id;
        if ((long long)ans->n >= budget) {
            ans->finish = "length";
            break;
        }
        if (interrupted) {
            ans->finish = "canceled";
            break;
        }
        if ((st = draw(a, s, &sp, row, n_ids, &id)) != FOLIO_OK)
            break;
        if (ans->n == 0)
            ans->prefill_s = now_s() - began;
        int32_t *more = realloc(ans->ids, (ans->n + 1) * sizeof *more);
        if (!more)
            return FOLIO_E_NOMEM;
        ans->ids = more;
        ans->ids[ans->n++] = id;
        if (a->tok && !a->o.ignore_eos && folio_tokenizer_is_eog(a->tok, id)) {
            ans->finish = "stop";
            break;
        }
        if (a->tok)
            st = add_text(a, ans, id);
        if (st == FOLIO_OK && !a->o.json)
            st = a->tok ? stream(a, d, id) : print_id(a, id);
        if (st == FOLIO_OK && (long long)ans->n < budget) {
            /* The last id needs no forward; nor is there room for more. */
            if (folio_kv_seq_n_tok(a->seq) + 1 > a->rinfo.max_ctx) {
                ans->finish = "length";
                break;
            }
            st = feed(a, &id, 1, 1, false);
        }
    }
    return st;
}

static folio_status generate(app *a, answer *ans)
{
    folio_sampler *s = NULL;
    folio_detokenizer *d = NULL;
    float *row = malloc((size_t)a->info.n_vocab * sizeof *row);
    folio_status st =
        row ? folio_sampler_open(n_drawable(a), &a->log, &s) : FOLIO_E_NOMEM;
    if (st == FOLIO_OK && a->tok)
        st = folio_detokenizer_open(a->tok, a->prompt, a->n_prompt,
                                    FOLIO_DECODE_SPECIAL, &d);
    ans->finish = "length";
    double t0 = now_s();
    if (st == FOLIO_OK && !(a->o.have_n && a->o.n == 0)) {
        st = feed(a, a->prompt, a->n_prompt, 1, false);
        if (st == FOLIO_OK)
            st = generate_loop(a, s, d, row, t0, ans);
        double all_s = now_s() - t0;
        if (ans->n == 0)
            ans->prefill_s = all_s;
        ans->decode_s = all_s - ans->prefill_s;
    }
    ans->n_fed = (size_t)folio_kv_seq_n_tok(a->seq);
    if (ans->n_fed > a->n_prompt)
        ans->n_fed = a->n_prompt;
    if (st == FOLIO_E_CANCELED) {
        ans->finish = "canceled";
        st = FOLIO_OK;
    }
    if (!a->o.json) {
        const char *text = "";
        size_t n = 0;
        if (d)
            folio_detokenizer_flush(d, &text, &n);
        if (st == FOLIO_OK && (fwrite(text, 1, n, stdout) != n ||
                               putchar('\n') == EOF || fflush(stdout)))
            st = fail_with(a, FOLIO_E_IO, "stdout could not be written");
    }
    folio_detokenizer_close(&d);
    folio_sampler_close(&s);
    free(row);
    return st;
}

static void print_speed(const app *a, const answer *ans)
{
    /* The first id comes out of the prefill. */
    double steps = ans->n > 0 ? (double)ans->n - 1 : 0.0;
    fprintf(
        stderr,
        "%s: prompt %zu of %zu ids in %.3f s (%.1f/s), %zu new ids in %.3f s "
        "(%.1f/s), finish %s, device %s\n",
        tool_name, ans->n_fed, a->n_prompt, ans->prefill_s,
        ans->prefill_s > 0 ? (double)ans->n_fed / ans->prefill_s : 0.0, ans->n,
        ans->decode_s, ans->decode_s > 0 ? steps / ans->decode_s : 0.0,
        ans->finish, a->dinfo.name);
}

static folio_status mode_generate(app *a)
{
    answer ans = {0};
    folio_status st = generate(a, &ans);
    if (st == FOLIO_OK && a->o.json) {
        json_t *j = json_pack(
            "{s:s,s:o,s:o,s:o,s:o,s:o,s:s,s:i,s:i,s:i,s:o,s:o,s:o,s:s}",
            "device", a->dinfo.name, "model", model_json(a), "prompt_ids",
            ids_json(a->prompt, a->n_prompt), "ids", ids_json(ans.ids, ans.n),
            "text",
            a->tok ? tool_json_text(ans.text ? ans.text : "", ans.n_text)
                   : json_null(),
            "text_hex",
            a->tok ? tool_json_hex(ans.text ? ans.text : "", ans.n_text)
                   : json_null(),
            "finish", ans.finish, "n_prompt", (int)a->n_prompt, "n_fed",
            (int)ans.n_fed, "n_new", (int)ans.n, "load_s",
            tool_json_num(a->load_s), "prefill_s", tool_json_num(ans.prefill_s),
            "decode_s", tool_json_num(ans.decode_s), "arithmetic",
            a->rinfo.arithmetic);
        if (!tool_json_print(j))
            st = fail_with(a, FOLIO_E_IO, "stdout could not be written");
    }
    if (st == FOLIO_OK && !a->o.json)
        print_speed(a, &ans);
    free(ans.ids);
    free(ans.text);
    return st;
}

static folio_status run(app *a)
{
    const options *o = &a->o;
    folio_status st = find_model(a);
    if (st == FOLIO_OK)
        st = open_tokenizer(a);
    if (st == FOLIO_OK)
        st = read_prompt(a);
    if (st != FOLIO_OK)
        return st;
    if (o->verbose && a->prompt) {
        fprintf(stderr, "%s: prompt ids:", tool_name);
        for (size_t i = 0; i < a->n_prompt; i++)
            fprintf(stderr, " %d", a->prompt[i]);
        fputc('\n', stderr);
    }
    if (o->tokenize)
        return mode_tokenize(a);
    if (o->detokenize)
        return mode_detokenize(a);
    if (o->requests)
        return mode_requests(a);
    /* Said before weights are loaded. */
    if (!o->perplexity && a->n_prompt == 0)
        return fail_with(a, FOLIO_E_INVAL, "the prompt is empty");
    int32_t rows = 1;
    if (o->perplexity) {
        if (!a->o.ctx)
            a->o.ctx = 1024;
        if (a->o.ctx < 2)
            return fail_with(a, FOLIO_E_INVAL,
                             "--perplexity needs windows of at least 2 ids, "
                             "--ctx is %lld",
                             a->o.ctx);
        /* Logits of a whole step are read at once: few, unless told. */
        if (!a->o.have_max_tok)
            a->o.max_tok = 128;
        if (a->o.max_tok > a->o.ctx)
            a->o.max_tok = a->o.ctx; /* no step is longer than a window */
        rows = (int32_t)a->o.max_tok;
    }
    st = open_runner(a, rows, o->trace);
    if (st != FOLIO_OK)
        return st;
    if (o->perplexity)
        return mode_perplexity(a);
    if (o->trace)
        return mode_trace(a);
    if (o->force)
        return mode_force(a);
    if (o->top_logits)
        return mode_top_logits(a);
    return mode_generate(a);
}

static int go(int argc, char **argv)
{
    static app a;
    int status = options_parse(argc, argv, &a.o);
    if (status >= 0)
        return status;
    a.tlog.quiet = a.o.json && !a.o.verbose;
    a.log =
        tool_log_to(&a.tlog, a.o.verbose ? FOLIO_LOG_DEBUG : FOLIO_LOG_INFO);
    /* Once: a second Ctrl-C ends the program whatever it does. */
    struct sigaction sa = {.sa_handler = on_interrupt,
                           .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &sa, NULL);
    folio_status st = run(&a);
    if (st != FOLIO_OK) {
        const char *why =
            a.tlog.error[0] ? a.tlog.error : folio_status_text(st);
        if (a.o.json)
            tool_json_error(folio_status_name(st), why);
        else if (!a.tlog.error[0])
            fprintf(stderr, "%s: %s\n", tool_name, why);
    }
    close_app(&a);
    if (interrupted)
        return TOOL_EXIT_INTERRUPT;
    return st == FOLIO_OK && a.n_failed ? TOOL_EXIT_FAILED
                                        : tool_exit_status(st);
}

int main(int argc, char **argv)
{
    tool_name = "cl-decode";
    return tool_finish(go(argc, argv));
}
