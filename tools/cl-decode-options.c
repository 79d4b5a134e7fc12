/* cl-decode-options.c: the command line of cl-decode: every option with default
 * and example; unknown or contradictory ones are errors. */
#include "cl-decode-app.h"

#include <stdio.h>
#include <string.h>

enum {
    O_MODEL,
    O_PROMPT,
    O_FILE,
    O_N,
    O_DEVICE,
    O_CTX,
    O_TEMP,
    O_SEED,
    O_TOP_K,
    O_TOP_P,
    O_MIN_P,
    O_IGNORE_EOS,
    O_NO_SPECIAL,
    O_KV,
    O_BLOCK,
    O_EXACT,
    O_THREADS,
    O_MAX_TOK,
    O_DETERMINISTIC,
    O_FUSED,
    O_SHUFFLE,
    O_JSON,
    O_IDS,
    O_FORCE,
    O_TOP_LOGITS,
    O_TRACE,
    O_PERPLEXITY,
    O_REQUESTS,
    O_N_BLOCKS,
    O_MAX_SEQS,
    O_BUDGET,
    O_PACE,
    O_WATERMARK,
    O_NO_PREFIX_CACHE,
    O_NO_CHUNKING,
    O_RUN_AHEAD,
    O_AUDIT,
    O_TRACE_FILE,
    O_TOKENIZE,
    O_DETOKENIZE,
    O_VERBOSE,
    O_HELP,
    O_VERSION
};

static const tool_option table[] = {
    [O_MODEL] = {"--model", "-m", "FILE",
                 "GGUF file; default: the model quickstart fetched.",
                 "-m model.gguf"},
    [O_PROMPT] = {"--prompt", "-p", "TEXT",
                  "text to continue; default: read from stdin.",
                  "-p 'Once upon a time'"},
    [O_FILE] = {"--file", "-f", "FILE",
                "read the text from a file, - is stdin; default: stdin.",
                "-f prompt.txt"},
    [O_N] = {"--n-predict", "-n", "N",
             "ids to generate; default: until the end token or the context is "
             "full.",
             "-n 64"},
    [O_DEVICE] = {"--device", "-d", "D",
                  "auto, host, an index or a part of the name (cl-info lists "
                  "them); default: FOLIO_DEVICE or auto.",
                  "--device pocl"},
    [O_CTX] = {"--ctx", NULL, "N",
               "longest text in ids; default 4096 or what the model was "
               "trained for; with --perplexity the window, default 1024.",
               "--ctx 2048"},
    [O_TEMP] = {"--temp", NULL, "T",
                "0 takes the likeliest id, above 0 samples; default 0.",
                "--temp 0.8"},
    [O_SEED] = {"--seed", NULL, "S",
                "of the sampler, 0 to 2^64 - 1; default 0.",
                "--temp 0.8 --seed 42"},
    [O_TOP_K] = {"--top-k", NULL, "K",
                 "sample among the K likeliest, 0 = off; default 0.",
                 "--temp 1 --top-k 40"},
    [O_TOP_P] =
        {"--top-p", NULL, "P",
         "sample among the likeliest that make up P, 1 = off; default 1.",
         "--temp 1 --top-p 0.95"},
    [O_MIN_P] =
        {"--min-p", NULL, "P",
         "drop ids less likely than P times the likeliest, 0 = off; default 0.",
         "--temp 1 --min-p 0.05"},
    [O_IGNORE_EOS] =
        {"--ignore-eos", NULL, NULL,
         "do not stop at an end token, needs -n; default: stop there.",
         "-n 64 --ignore-eos"},
    [O_NO_SPECIAL] = {"--no-special", NULL, NULL,
                      "text that spells a special token stays text; default: "
                      "it becomes the token.",
                      "--tokenize -p '<s>' --no-special"},
    [O_KV] = {"--kv", NULL, "TYPE",
              "element type of the KV cache, f16 or f32; default f16.",
              "--kv f32"},
    [O_BLOCK] = {"--block", NULL, "N",
                 "tokens per KV block, above 256 at most twice --ctx; default "
                 "16.",
                 "--block 32"},
    [O_EXACT] = {"--exact", NULL, NULL,
                 "no reduced-precision arithmetic; default off.",
                 "--exact --kv f32"},
    [O_THREADS] = {"--threads", "-t", "N",
                   "threads of the host device, 0 = all CPUs; default 0.",
                   "-t 2"},
    [O_MAX_TOK] =
        {"--max-tok", NULL, "N",
         "prompt ids in one forward, at most --ctx; default 512, with "
         "--perplexity 128.",
         "--max-tok 64"},
    [O_DETERMINISTIC] =
        {"--deterministic", NULL, "0|1",
         "1: only kernels whose results do not depend on what else is computed "
         "with a text; default: 1 on CPUs, 0 on GPUs.",
         "-p Hi --deterministic 1"},
    [O_FUSED] = {"--fused", NULL, "0|1|2",
                 "launches of a step: 0 one per op, 1 few per layer, 2 one for "
                 "all layers where the device and the model allow it (a "
                 "warning says why not); default: what suits the device.",
                 "-p Hi --fused 2"},
    [O_SHUFFLE] = {"--shuffle-blocks", NULL, "SEED",
                   "hand out KV blocks in a random order (a test of paging: "
                   "the answer must not change); default: in order.",
                   "--shuffle-blocks 7"},
    [O_JSON] = {"--json", NULL, NULL,
                "print one JSON object, errors too; default: text.",
                "-p Hi -n 8 --json"},
    [O_IDS] = {"--ids", NULL, "LIST", "ids instead of text; default: text.",
               "--ids 1,2,3"},
    [O_FORCE] = {"--force", NULL, "LIST",
                 "feed these ids whatever comes out and print the two best ids "
                 "of each step; default: generate.",
                 "-p Hi --force 253,1073"},
    [O_TOP_LOGITS] =
        {"--top-logits", NULL, "K",
         "print the K largest logits after the prompt; default: generate.",
         "-p Hi --top-logits 10"},
    [O_TRACE] = {"--trace", NULL, NULL,
                 "print the residual stream of the last prompt position, layer "
                 "by layer; default: generate.",
                 "-p Hi --trace"},
    [O_PERPLEXITY] = {"--perplexity", NULL, "FILE",
                      "print the negative log likelihood of a text, in windows "
                      "of --ctx ids; default: generate.",
                      "--perplexity text.txt --ctx 512"},
    [O_REQUESTS] = {"--requests", NULL, "FILE",
                    "run many requests at once, one JSON object a line, - is "
                    "stdin; a line of JSON for each answer; default: one text.",
                    "--requests r.jsonl"},
    [O_N_BLOCKS] = {"--n-blocks", NULL, "N",
                    "KV blocks of the pool for --requests; default: what the "
                    "device has room for.",
                    "--requests r.jsonl --n-blocks 64"},
    [O_MAX_SEQS] = {"--max-seqs", NULL, "N",
                    "texts computed at once with --requests; default 8.",
                    "--requests r.jsonl --max-seqs 32"},
    [O_BUDGET] = {"--budget", NULL, "N",
                  "most ids computed in one step with --requests, at least "
                  "--max-seqs; default 512, on CPUs 64, or more where "
                  "--max-seqs is (on CPUs twice that).",
                  "--requests r.jsonl --budget 256"},
    [O_PACE] = {"--pace", NULL, "X",
                "with --requests, a step that computes prompts while others "
                "stream may take X times as long as one that does not, X "
                "above 1, or 0: no limit; default 2.2, and no limit where "
                "--budget is given.",
                "--requests r.jsonl --pace 3"},
    [O_WATERMARK] =
        {"--watermark", NULL, "N",
         "blocks kept free when a request is let in; default: 1 % of the pool.",
         "--requests r.jsonl --watermark 4"},
    [O_NO_PREFIX_CACHE] =
        {"--no-prefix-cache", NULL, NULL,
         "compute equal beginnings of requests again; default: keep them.",
         "--requests r.jsonl --no-prefix-cache"},
    [O_NO_CHUNKING] =
        {"--no-chunking", NULL, NULL,
         "compute prompts whole, whatever the budget; default: in parts.",
         "--requests r.jsonl --no-chunking"},
    [O_RUN_AHEAD] = {"--run-ahead", NULL, "N",
                     "steps of --requests enqueued before the last one is "
                     "read, 0 or 1; default 0.",
                     "--requests r.jsonl --run-ahead 1"},
    [O_AUDIT] = {"--audit", NULL, NULL,
                 "check every block and request after each step; default off.",
                 "--requests r.jsonl --audit"},
    [O_TRACE_FILE] =
        {"--trace-file", NULL, "FILE",
         "write the steps of --requests as a Chrome trace; default: none.",
         "--requests r.jsonl --trace-file t.json"},
    [O_TOKENIZE] = {"--tokenize", NULL, NULL,
                    "print the ids of the text; default: generate.",
                    "-p Hi --tokenize"},
    [O_DETOKENIZE] = {"--detokenize", NULL, NULL,
                      "print the text of --ids; default: generate.",
                      "--ids 1,2,3 --detokenize"},
    [O_VERBOSE] =
        {"--verbose", "-v", NULL,
         "say more on stderr: variants, plan, ids of the prompt; default off.",
         "-v"},
    [O_HELP] = {"--help", "-h", NULL, "print this text; default off.",
                "--help"},
    [O_VERSION] = {"--version", NULL, NULL,
                   "print version, commit and device layer; default off.",
                   "--version"},
};

#define N_OPTIONS (sizeof table / sizeof table[0])

static void print_help(void)
{
    puts("cl-decode: continue a text with a model on an OpenCL device or the "
         "CPU\n\n"
         "usage: cl-decode [options]            text on stdout, speed and "
         "device on stderr\n");
    tool_print_options(table, N_OPTIONS);
    puts(
        "\nA line of --requests is a JSON object with prompt or prompt_ids "
        "and, if wanted: id, n_predict\n(default: until an end token or the "
        "context is full), n (1), temperature, top_k, top_p, min_p,\nseed (a "
        "string of digits above 2^63 - 1), typical_p, repetition_penalty, "
        "penalty_last_n,\npresence_penalty, frequency_penalty, dry_multiplier, "
        "dry_base, dry_allowed_length, dry_last_n,\ndry_breakers, logit_bias "
        "({\"id\": number}), banned, stop (string or list), stop_ids, "
        "ignore_eos,\nmin_new_tokens, logprobs (0 to 20), prompt_logprobs "
        "(true), echo (true: the prompt's ids come\nback as prompt_ids), "
        "priority (0 to 7), salt, arrive_ms, cancel_ms, deadline_ms. Options "
        "of the\nsame names are the defaults. A line of answer has id, "
        "completion, ids, text, finish, queue_s,\nprefill_s, decode_s, "
        "preemptions, cached_tokens and, where it applies, stop, logprobs,\n"
        "prompt_logprobs, prompt_ids, error; one that cannot be run has id and "
        "error. README has more.");
    puts(
        "\nCtrl-C ends the answer where it is; a second one ends the program "
        "at "
        "once. With --json,\nCtrl-C while the prompt or the answer is computed "
        "prints the usual object with finish\n\"canceled\"; before that, and "
        "in "
        "other modes, an error object with code CANCELED.\n\n"
        "Exit status: 0 all went well; 1 --requests ran, but a request ended "
        "in an error; 2 wrong\ncommand line; 130 after Ctrl-C; else 10 + the "
        "number of the error (README lists them).");
}

static int bad(const char *name, const char *arg, const char *want)
{
    return tool_usage("%s '%.800s' is not %s", name, arg, want);
}

static int take(options *o, int i, const char *arg)
{
    const char *name = table[i].name;
    static const struct {
        int opt;
        long long lo, hi;
        size_t at;
    } ints[] = {
        {O_N, 0, INT32_MAX, offsetof(options, n)},
        {O_CTX, 1, INT32_MAX, offsetof(options, ctx)},
        {O_TOP_K, 0, INT32_MAX, offsetof(options, top_k)},
        {O_BLOCK, 1, 1 << 20, offsetof(options, block)},
        {O_THREADS, 0, 64, offsetof(options, threads)},
        {O_MAX_TOK, 1, 1 << 20, offsetof(options, max_tok)},
        {O_DETERMINISTIC, 0, 1, offsetof(options, deterministic)},
        {O_FUSED, 0, 2, offsetof(options, fused)},
        {O_SHUFFLE, 0, INT32_MAX, offsetof(options, shuffle)},
        {O_TOP_LOGITS, 1, INT32_MAX, offsetof(options, top_logits)},
        {O_N_BLOCKS, 1, INT32_MAX, offsetof(options, n_blocks)},
        {O_MAX_SEQS, 1, 1 << 16, offsetof(options, max_seqs)},
        {O_BUDGET, 1, 1 << 20, offsetof(options, budget)},
        {O_WATERMARK, 0, INT32_MAX, offsetof(options, watermark)},
        {O_RUN_AHEAD, 0, 1, offsetof(options, run_ahead)},
    };
    static const struct {
        int opt;
        double hi;
        size_t at;
    } nums[] = {
        {O_TEMP, 1e6, offsetof(options, temp)},
        {O_TOP_P, 1.0, offsetof(options, top_p)},
        {O_MIN_P, 1.0, offsetof(options, min_p)},
        {O_PACE, 1e6, offsetof(options, pace)},
    };
    for (size_t k = 0; k < sizeof ints / sizeof ints[0]; k++) {
        if (ints[k].opt != i)
            continue;
        long long *at = (long long *)(void *)((char *)o + ints[k].at);
        if (!tool_parse_int(arg, ints[k].lo, ints[k].hi, at)) {
            char want[80];
            snprintf(want, sizeof want, "a whole number from %lld to %lld",
                     ints[k].lo, ints[k].hi);
            return bad(name, arg, want);
        }
    }
    for (size_t k = 0; k < sizeof nums / sizeof nums[0]; k++) {
        if (nums[k].opt != i)
            continue;
        double *at = (double *)(void *)((char *)o + nums[k].at);
        if (!tool_parse_num(arg, 0.0, nums[k].hi, at)) {
            char want[80];
            snprintf(want, sizeof want, "a number from 0 to %g", nums[k].hi);
            return bad(name, arg, want);
        }
    }
    switch (i) {
    case O_MODEL:
        o->model = arg;
        break;
    case O_PROMPT:
        o->prompt = arg;
        break;
    case O_FILE:
        o->prompt_file = arg;
        break;
    case O_N:
        o->have_n = true;
        break;
    case O_DEVICE:
        o->device = arg;
        break;
    case O_SEED:
        if (!tool_parse_u64(arg, &o->seed))
            return bad(name, arg, "a whole number from 0 to 2^64 - 1");
        o->have_sampling = true;
        break;
    case O_TOP_K:
    case O_TOP_P:
    case O_MIN_P:
        o->have_sampling = true;
        break;
    case O_KV:
        if (strcmp(arg, "f32") && strcmp(arg, "f16"))
            return bad(name, arg, "f16 or f32");
        o->kv_f32 = strcmp(arg, "f32") == 0;
        break;
    case O_IDS:
        o->ids = arg;
        break;
    case O_FORCE:
        o->force = arg;
        break;
    case O_PERPLEXITY:
        o->perplexity = arg;
        break;
    case O_REQUESTS:
        o->requests = arg;
        break;
    case O_TRACE_FILE:
        o->trace_file = arg;
        break;
    default:
        break;
    }
    o->ignore_eos |= i == O_IGNORE_EOS;
    o->no_special |= i == O_NO_SPECIAL;
    o->exact |= i == O_EXACT;
    o->json |= i == O_JSON;
    o->trace |= i == O_TRACE;
    o->have_max_tok |= i == O_MAX_TOK;
    o->have_watermark |= i == O_WATERMARK;
    o->have_pace |= i == O_PACE;
    o->have_run_ahead |= i == O_RUN_AHEAD;
    o->no_prefix_cache |= i == O_NO_PREFIX_CACHE;
    o->no_chunking |= i == O_NO_CHUNKING;
    o->audit |= i == O_AUDIT;
    o->tokenize |= i == O_TOKENIZE;
    o->detokenize |= i == O_DETOKENIZE;
    o->verbose |= i == O_VERBOSE;
    return -1;
}

static const char *requests_contradiction(const options *o)
{
    const bool engine = o->n_blocks || o->max_seqs || o->budget ||
                        o->have_pace || o->have_watermark ||
                        o->no_prefix_cache || o->no_chunking ||
                        o->have_run_ahead || o->audit || o->trace_file;
    if (tool_same_file(o->trace_file, o->requests))
        return "--trace-file would overwrite the requests";
    if (tool_same_file(o->trace_file, o->model))
        return "--trace-file would overwrite the model";
    if (!o->requests)
        return engine
                   ? "--n-blocks, --max-seqs, --budget, --pace, --watermark, "
                     "--no-prefix-cache, --no-chunking, --run-ahead, --audit "
                     "and --trace-file need --requests"
                   : NULL;
    if (o->prompt || o->prompt_file || o->ids)
        return "--requests takes its prompts from its own file";
    if (o->have_max_tok || o->shuffle >= 0)
        return "--max-tok and --shuffle-blocks are not for --requests (see "
               "--budget)";
    if (o->budget && o->budget < (o->max_seqs ? o->max_seqs : 8))
        return "--budget must be at least --max-seqs";
    if (o->have_pace && o->pace > 0 && o->pace <= 1)
        return "--pace must be 0 or more than 1";
    return NULL;
}

/* What cannot be meant together, and what needs something else. */
static const char *contradiction(const options *o)
{
    int modes = o->tokenize + o->detokenize + o->trace + (o->top_logits > 0) +
                (o->force != NULL) + (o->perplexity != NULL) +
                (o->requests != NULL);
    int texts =
        (o->prompt != NULL) + (o->prompt_file != NULL) + (o->ids != NULL);
    if (modes > 1)
        return "--tokenize, --detokenize, --trace, --top-logits, --force, "
               "--perplexity and --requests exclude each other";
    if (texts > 1)
        return "--prompt, --file and --ids exclude each other";
    if (texts && o->perplexity)
        return "--perplexity takes its text from its own file";
    if (o->no_special && o->perplexity)
        return "--no-special does nothing with --perplexity, which takes all "
               "its text as text";
    if (o->detokenize && !o->ids)
        return "--detokenize needs --ids";
    if (o->tokenize && o->ids)
        return "--tokenize needs text, not --ids";
    if (o->ids && o->no_special)
        return "--no-special is about text, --ids has none";
    if (modes && !o->requests && (o->have_n || o->ignore_eos || o->temp > 0.0))
        return "-n, --ignore-eos and --temp are about generating, which this "
               "mode does not do";
    if (o->have_sampling && o->temp == 0.0 && !o->requests)
        return "--seed, --top-k, --top-p and --min-p do nothing at --temp 0";
    if (o->ignore_eos && !o->have_n)
        return "--ignore-eos needs -n";
    return requests_contradiction(o);
}

/* Turning text and ids into each other opens no device and runs no model. */
static int idle_option(const options *o, const bool *seen)
{
    static const int of_the_run[] = {
        O_DEVICE,  O_CTX,     O_KV,      O_BLOCK,         O_EXACT,
        O_THREADS, O_MAX_TOK, O_SHUFFLE, O_DETERMINISTIC, O_FUSED};
    for (size_t k = 0; k < sizeof of_the_run / sizeof of_the_run[0]; k++)
        if ((o->tokenize || o->detokenize) && seen[of_the_run[k]])
            return tool_usage(
                "%s is about running the model, which %s does not do",
                table[of_the_run[k]].name,
                o->tokenize ? "--tokenize" : "--detokenize");
    return -1;
}

int options_parse(int argc, char **argv, options *o)
{
    int next = 1, i;
    const char *arg;
    *o = (options){.block = 16,
                   .max_tok = 512,
                   .top_p = 1.0,
                   .shuffle = -1,
                   .deterministic = -1,
                   .fused = -1};
    bool seen[N_OPTIONS] = {false};
    tool_see_json(argc, argv, table, N_OPTIONS);
    while ((i = tool_next_option(argc, argv, table, N_OPTIONS, &next, &arg)) !=
           -1) {
        if (i == -2)
            return TOOL_EXIT_USAGE;
        if (i == O_HELP) {
            print_help();
            return 0;
        }
        if (i == O_VERSION) {
            printf("cl-decode %s (commit %s), devices through OpenCL or C on "
                   "the host\n",
                   folio_version(), folio_commit());
            return 0;
        }
        if (seen[i]) {
            return tool_usage("%s is given twice", table[i].name);
        }
        seen[i] = true;
        int status = take(o, i, arg);
        if (status >= 0)
            return status;
    }
    const char *why = contradiction(o);
    if (why)
        return tool_usage("%s", why);
    return idle_option(o, seen);
}
