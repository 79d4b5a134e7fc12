/* cl-info.c: shows devices, what they can do, and what is in a model file, in a
 * form that can be pasted into a bug report. The options; cl-info-device.c and
 * cl-info-model.c do the work. */
#include "cl-info.h"
#include "cl-info-model.h"

#include <stdio.h>
#include <string.h>

enum {
    O_DEVICE,
    O_MODEL,
    O_TENSORS,
    O_TENSOR,
    O_ROW,
    O_JSON,
    O_HELP,
    O_VERSION,
    N_OPTIONS
};

static const tool_option table[N_OPTIONS] = {
    [O_DEVICE] = {"--device", "-d", "D",
                  "open this device and show what it can do and which variant "
                  "each op gets: auto, host, an index or a part of the name; "
                  "default: list the devices.",
                  "--device pocl"},
    [O_MODEL] = {"--model", "-m", "FILE",
                 "show the metadata of a GGUF file; default: show devices.",
                 "-m model.gguf"},
    [O_TENSORS] = {"--tensors", NULL, NULL,
                   "list its tensors too; default off.",
                   "-m model.gguf --tensors"},
    [O_TENSOR] = {"--tensor", NULL, "NAME",
                  "show one row of this tensor as numbers; default: none.",
                  "-m model.gguf --tensor token_embd.weight"},
    [O_ROW] = {"--row", NULL, "R", "which row of it, from 0; default 0.",
               "-m model.gguf --tensor token_embd.weight --row 5"},
    [O_JSON] = {"--json", NULL, NULL,
                "one JSON object on stdout; default: text.", "--json"},
    [O_HELP] = {"--help", "-h", NULL, "print this text; default off.",
                "--help"},
    [O_VERSION] = {"--version", NULL, NULL,
                   "print version and commit; default off.", "--version"},
};

static void print_help(void)
{
    puts("cl-info: show devices and model files\n\n"
         "usage: cl-info [--device D] [--json]\n"
         "       cl-info -m FILE [--tensors] [--tensor NAME [--row R]] "
         "[--json]\n");
    tool_print_options(table, N_OPTIONS);
    puts("\nExit status: 0 all went well; 2 wrong command line; 10 + code of "
         "the error\notherwise (15: no such device). A machine without "
         "OpenCL is no error.");
}

typedef struct choices {
    bool seen[N_OPTIONS];
    const char *device;
    model_query q;
} choices;

static int take(choices *c, int i, const char *arg)
{
    long long row;
    switch (i) {
    case O_DEVICE:
        c->device = arg;
        break;
    case O_MODEL:
        c->q.path = arg;
        break;
    case O_TENSORS:
        c->q.tensors = true;
        break;
    case O_TENSOR:
        c->q.tensor = arg;
        break;
    case O_ROW:
        if (!tool_parse_int(arg, 0, INT64_MAX, &row))
            return tool_usage("--row needs a whole number from 0"
                              " (see --help)");
        c->q.row = row;
        break;
    default:
        c->q.json = true;
        break;
    }
    return 0;
}

static int check(const choices *c)
{
    const bool *seen = c->seen;
    if (seen[O_DEVICE] && seen[O_MODEL])
        return tool_usage("--device and --model do not go together"
                          " (see --help)");
    if (!seen[O_MODEL] && (seen[O_TENSORS] || seen[O_TENSOR] || seen[O_ROW]))
        return tool_usage("--tensors, --tensor and --row need --model"
                          " (see --help)");
    if (seen[O_ROW] && !seen[O_TENSOR])
        return tool_usage("--row needs --tensor"
                          " (see --help)");
    return 0;
}

static int go(int argc, char **argv)
{
    choices c = {.device = NULL};
    const char *arg;
    int next = 1, i, status;
    tool_see_json(argc, argv, table, N_OPTIONS);
    while ((i = tool_next_option(argc, argv, table, N_OPTIONS, &next, &arg)) !=
           -1) {
        if (i < 0)
            return TOOL_EXIT_USAGE;
        if (i == O_HELP) {
            print_help();
            return 0;
        }
        if (i == O_VERSION) {
            printf("cl-info %s (commit %s), devices through OpenCL or C on "
                   "the host\n",
                   folio_version(), folio_commit());
            return 0;
        }
        if (c.seen[i]) {
            return tool_usage("%s is given twice", table[i].name);
        }
        c.seen[i] = true;
        if ((status = take(&c, i, arg)) != 0)
            return status;
    }
    if ((status = check(&c)) != 0)
        return status;
    if (c.seen[O_MODEL])
        return cl_info_model(&c.q);
    if (c.seen[O_DEVICE])
        return cl_info_device(c.device, c.q.json);
    return cl_info_list(c.q.json);
}

int main(int argc, char **argv)
{
    tool_name = "cl-info";
    return tool_finish(go(argc, argv));
}
