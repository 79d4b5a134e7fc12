/* cl-bench-options.c: the command line of cl-bench; unknown or contradictory
 * options are errors. */
#include "cl-bench.h"

#include <stdlib.h>
#include <string.h>

enum {
    O_MODEL,
    O_SHAPE,
    O_TYPE,
    O_WRITE,
    O_PREFILL,
    O_N,
    O_DEPTH,
    O_BATCH,
    O_PROMPT,
    O_CROSS,
    O_FAKE,
    O_REPS,
    O_DEVICE,
    O_THREADS,
    O_KV,
    O_BLOCK,
    O_MAX_TOK,
    O_EXACT,
    O_DETERMINISTIC,
    O_FUSED,
    O_RUN_AHEAD,
    O_JSON,
    O_CSV,
    O_MD,
    O_OUT,
    O_VERBOSE,
    O_HELP,
    O_VERSION,
    N_OPTIONS
};

static const tool_option table[N_OPTIONS] = {
    [O_MODEL] = {"--model", "-m", "FILE", "GGUF file to measure.",
                 "-m model.gguf"},
    [O_SHAPE] = {"--shape", NULL, "NAME",
                 "instead of a file random weights in the shape of a known "
                 "model: llama-3.2-1b, llama-3.1-8b, qwen3-4b, smollm2-135m "
                 "or tiny.",
                 "--shape llama-3.2-1b"},
    [O_TYPE] = {"--type", NULL, "TYPE",
                "of every matrix of --shape, head included: f16, q8_0 or "
                "q4_0; default f16.",
                "--shape tiny --type q4_0"},
    [O_WRITE] = {"--write", NULL, "FILE",
                 "write the shape as a GGUF file first and measure from "
                 "there; default: in memory only.",
                 "--shape tiny --write tiny.gguf"},
    [O_PREFILL] = {"--prefill", "-p", "LIST",
                   "prompts of so many ids, one sequence; '' for none; "
                   "default 512.",
                   "-p 512,2048"},
    [O_N] = {"--n-decode", "-n", "N",
             "steps of each decode case, 0 for no such case; default 128.",
             "-n 64"},
    [O_DEPTH] = {"--depth", "-d", "LIST",
                 "decode of one sequence behind so many ids; '' for none; "
                 "default 0, or none with -b.",
                 "-d 0,4096,32768"},
    [O_BATCH] = {"--batch", "-b", "LIST",
                 "decode of so many sequences at once, each behind --prompt "
                 "ids; default: none.",
                 "-b 1,8,32"},
    [O_PROMPT] = {"--prompt", NULL, "N",
                  "ids before each sequence of -b; default 512.",
                  "-b 8 --prompt 1024"},
    [O_CROSS] = {"--cross", NULL, NULL,
                 "every batch of -b at every depth of -d; default off.",
                 "-d 0,4096 -b 1,8 --cross"},
    [O_FAKE] = {"--fake-depth", NULL, NULL,
                "fill the KV pool with random numbers instead of computing "
                "the ids before a decode (the hash then depends on the "
                "device's layout); default off.",
                "-d 32768 --fake-depth"},
    [O_REPS] = {"--reps", NULL, "N", "runs of each case; default 3.",
                "--reps 5"},
    [O_DEVICE] = {"--device", NULL, "D",
                  "auto, host, an index or a part of the name (cl-info lists "
                  "them); default: FOLIO_DEVICE or auto.",
                  "--device pocl"},
    [O_THREADS] = {"--threads", "-t", "N",
                   "threads of the host device, 0 = all CPUs; default 0.",
                   "-t 2"},
    [O_KV] = {"--kv", NULL, "TYPE",
              "element type of the KV cache, f16 or f32; default f16.",
              "--kv f32"},
    [O_BLOCK] = {"--block", NULL, "N",
                 "tokens per KV block, above 256 at most twice what a case "
                 "holds; default 16.",
                 "--block 32"},
    [O_MAX_TOK] = {"--max-tok", NULL, "N",
                   "prompt ids in one forward; default 2048 on GPUs, else "
                   "512.",
                   "--max-tok 1024"},
    [O_EXACT] = {"--exact", NULL, NULL,
                 "no reduced-precision arithmetic; default off.", "--exact"},
    [O_DETERMINISTIC] = {"--deterministic", NULL, "0|1",
                         "sums in an order that does not depend on the "
                         "batch; default 1 on the host and CPU drivers.",
                         "--deterministic 1"},
    [O_FUSED] = {"--fused", NULL, "0|1|2",
                 "launches of a step: 0 one per op, 1 few per layer, 2 one for "
                 "all layers where the device and the model allow it; default: "
                 "what suits the device.",
                 "--fused 2"},
    [O_RUN_AHEAD] = {"--run-ahead", NULL, "0|1",
                     "decode steps enqueued before the ids of the last one "
                     "are read, as the engine may; default 1, on the host "
                     "device, which computes while it enqueues, 0.",
                     "--run-ahead 0"},
    [O_JSON] = {"--json", NULL, NULL,
                "print one JSON object, errors too; default: text.", "--json"},
    [O_CSV] = {"--csv", NULL, NULL, "print lines for tools/plot.", "--csv"},
    [O_MD] = {"--md", NULL, NULL, "print a table in Markdown.", "--md"},
    [O_OUT] = {"--out", NULL, "FILE",
               "write the report there, once all went well; default: stdout.",
               "--csv --out result.csv"},
    [O_VERBOSE] = {"--verbose", "-v", NULL,
                   "each case on stderr as it ends, and notes; default off.",
                   "-v"},
    [O_HELP] = {"--help", "-h", NULL, "print this text; default off.",
                "--help"},
    [O_VERSION] = {"--version", NULL, NULL,
                   "print version and commit; default off.", "--version"},
};

static void print_help(void)
{
    puts("cl-bench: measure a model on a device\n\n"
         "usage: cl-bench -m FILE | --shape NAME [options]\n");
    tool_print_options(table, N_OPTIONS);
    puts("\nIds are random, from a fixed seed; blocks of the KV pool are in "
         "shuffled order; what is\nfed back is the likeliest id, chosen on the "
         "device. Bytes and FLOP are computed from\nshapes (weights once a "
         "step, keys and values of each sequence), and held against what\n"
         "this device reads and multiplies in the same run.\n\n"
         "Exit status: 0 all went well; 2 wrong command line; 10 + code of "
         "the error otherwise.");
}

static int bad(int i, const char *arg, const char *want)
{
    return tool_usage("%s '%.200s': it needs %s (see --help)", table[i].name,
                      arg, want);
}

static int take_list(int i, const char *arg, int32_t lo, bench_list *l)
{
    if (!tool_parse_ids(arg, &l->v, &l->n))
        return bad(i, arg, "a list like 1,2,3");
    for (size_t k = 0; k < l->n; k++)
        if (l->v[k] < lo || l->v[k] > 1 << 24)
            return bad(i, arg,
                       lo ? "whole numbers from 1 to 16777216"
                          : "whole numbers from 0 to 16777216");
    return -1;
}

static int take_int(int i, const char *arg, long long lo, long long hi,
                    long long *out)
{
    char want[80];
    if (tool_parse_int(arg, lo, hi, out))
        return -1;
    snprintf(want, sizeof want, "a whole number from %lld to %lld", lo, hi);
    return bad(i, arg, want);
}

static int take(bench_options *o, int i, const char *arg)
{
    switch (i) {
    case O_MODEL:
        o->model = arg;
        break;
    case O_SHAPE:
        o->shape = arg;
        break;
    case O_TYPE:
        if (strcmp(arg, "f16") && strcmp(arg, "q8_0") && strcmp(arg, "q4_0"))
            return bad(i, arg, "f16, q8_0 or q4_0");
        o->type = arg;
        break;
    case O_WRITE:
        o->write = arg;
        break;
    case O_PREFILL:
        o->have_prefill = true;
        return take_list(i, arg, 1, &o->prefill);
    case O_N:
        return take_int(i, arg, 0, 1 << 20, &o->n_new);
    case O_DEPTH:
        o->have_depths = true;
        return take_list(i, arg, 0, &o->depths);
    case O_BATCH:
        return take_list(i, arg, 1, &o->batches);
    case O_PROMPT:
        return take_int(i, arg, 0, 1 << 24, &o->prompt);
    case O_REPS:
        return take_int(i, arg, 1, 1000, &o->reps);
    case O_DEVICE:
        o->device = arg;
        break;
    case O_THREADS:
        return take_int(i, arg, 0, 64, &o->threads);
    case O_KV:
        if (strcmp(arg, "f32") && strcmp(arg, "f16"))
            return bad(i, arg, "f16 or f32");
        o->kv_f32 = strcmp(arg, "f32") == 0;
        break;
    case O_BLOCK:
        return take_int(i, arg, 1, 1 << 20, &o->block);
    case O_MAX_TOK:
        return take_int(i, arg, 1, 1 << 20, &o->max_tok);
    case O_DETERMINISTIC:
        return take_int(i, arg, 0, 1, &o->deterministic);
    case O_FUSED:
        return take_int(i, arg, 0, 2, &o->fused);
    case O_RUN_AHEAD:
        return take_int(i, arg, 0, 1, &o->run_ahead);
    case O_OUT:
        o->out = arg;
        break;
    case O_JSON:
        o->format = BENCH_JSON;
        break;
    case O_CSV:
        o->format = BENCH_CSV;
        break;
    case O_MD:
        o->format = BENCH_MD;
        break;
    default:
        break;
    }
    o->cross |= i == O_CROSS;
    o->fake |= i == O_FAKE;
    o->exact |= i == O_EXACT;
    o->verbose |= i == O_VERBOSE;
    return -1;
}

static const char *contradiction(const bench_options *o, const bool *seen)
{
    if (!o->model == !o->shape)
        return o->model ? "--model and --shape exclude each other"
                        : "what is to be measured? give -m FILE or --shape "
                          "NAME (see --help)";
    if ((o->type || o->write) && !o->shape)
        return "--type and --write are for --shape (see --help)";
    if (o->write && !tool_is_plain(o->write))
        return "--write names something that is no file";
    if (tool_same_file(o->out, o->model) || tool_same_file(o->out, o->write))
        return "--out would overwrite the model";
    if (seen[O_JSON] + seen[O_CSV] + seen[O_MD] > 1)
        return "--json, --csv and --md exclude each other";
    if (o->cross && (o->depths.n == 0 || o->batches.n == 0))
        return "--cross needs -d and -b";
    if (o->cross && seen[O_PROMPT])
        return "--prompt does nothing with --cross, which takes depths from "
               "-d";
    if (seen[O_PROMPT] && o->batches.n == 0)
        return "--prompt is for -b";
    return NULL;
}

/* Lists that were left out. */
static bool set_defaults(bench_options *o)
{
    if (!o->have_prefill &&
        !tool_parse_ids("512", &o->prefill.v, &o->prefill.n))
        return false;
    if (!o->have_depths && o->batches.n == 0 &&
        !tool_parse_ids("0", &o->depths.v, &o->depths.n))
        return false;
    if (o->shape && !o->type)
        o->type = "f16";
    return true;
}

int bench_options_parse(int argc, char **argv, bench_options *o)
{
    int next = 1, i;
    const char *arg;
    bool seen[N_OPTIONS] = {false};
    *o = (bench_options){.n_new = 128,
                         .prompt = 512,
                         .reps = 3,
                         .block = 16,
                         .deterministic = -1,
                         .fused = -1,
                         .run_ahead = -1};
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
            printf("cl-bench %s (commit %s), devices through OpenCL or C on "
                   "the host\n",
                   folio_version(), folio_commit());
            return 0;
        }
        if (seen[i])
            return tool_usage("%s is given twice", table[i].name);
        seen[i] = true;
        const int status = take(o, i, arg);
        if (status >= 0)
            return status;
    }
    const char *why = contradiction(o, seen);
    if (why)
        return tool_usage("%s", why);
    if (!set_defaults(o))
        return tool_usage("no memory for the options");
    if (o->prefill.n == 0 && !o->write &&
        (o->n_new == 0 || o->depths.n + o->batches.n == 0))
        return tool_usage(
            "nothing is left to be measured: -p has no prompt "
            "and there is no decode (-n 0, or neither -d nor -b)");
    return -1;
}

void bench_options_free(bench_options *o)
{
    free(o->prefill.v);
    free(o->depths.v);
    free(o->batches.v);
    o->prefill.v = o->depths.v = o->batches.v = NULL;
}
