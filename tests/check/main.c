/* folio-check: every variant of every op against its reference, one process per
 * run. See usage() for the options; tools/test says how it is run and where.
 *
 * What a run looks for: outputs equal to the reference within the op's limits;
 * nothing written outside them (guard zones) or left unwritten (poison); NaN in
 * unused places that comes through; two runs that differ; a row that depends on
 * its batch or on where its blocks lie; bad arguments that are not refused.
 * Each case prints its variant before it runs, then the largest share of the
 * tolerance that was used. */
#include "check/check.h"

#include <stdio.h>
#include <string.h>

typedef struct options {
    const char *device, *only, *without, *require, *dump_dir, *tune;
    uint64_t seed;
    ck_size size;
    bool exact_buffers, list, bench, bench_attn, bench_linear, bench_step,
        self_test, verdict;
} options;

static void usage(FILE *f)
{
    fputs("usage: folio-check --device D [options]\n"
          "  --device D         as cl-decode takes it: host, a number, a part "
          "of a name\n"
          "  --only A,B         variants or cases whose name contains one of "
          "them\n"
          "  --without A,B      no variants whose name contains one of them\n"
          "  --tune A=1,B=2     settings of variants that know these names;\n"
          "                     in a table of one op several, by ;\n"
          "  --seed N           other numbers (default 1)\n"
          "  --small            few, small shapes (oclgrind, work-group caps)\n"
          "  --full             the full matrix\n"
          "  --exact-buffers    no guard zones: for tools that watch buffers' "
          "ends\n"
          "  --list             variants of this device's side, nothing runs\n"
          "  --bench [attn|linear|step]  speed on shapes of real models, or a "
          "table "
          "of one op\n"
          "  --require FILE     variants, one a line, that must have run\n"
          "  --self-test        kernels wrong on purpose must all be found\n"
          "  --dump-sources DIR every program of the covering list as files; "
          "no device\n"
          "  --verdict          the last line only says good or bad, per "
          "variant a line\n",
          f);
}

/* NULL on --help or a mistake. */
static bool parse(int argc, char **argv, options *o, int *status)
{
    *o = (options){.seed = 1, .size = CK_LIST};
    *status = 2;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        const char **text = NULL, *seed = NULL;
        if (strcmp(a, "--help") == 0) {
            usage(stdout);
            *status = 0;
            return false;
        }
        if (strcmp(a, "--device") == 0)
            text = &o->device;
        else if (strcmp(a, "--only") == 0)
            text = &o->only;
        else if (strcmp(a, "--without") == 0)
            text = &o->without;
        else if (strcmp(a, "--require") == 0)
            text = &o->require;
        else if (strcmp(a, "--tune") == 0)
            text = &o->tune;
        else if (strcmp(a, "--dump-sources") == 0)
            text = &o->dump_dir;
        else if (strcmp(a, "--seed") == 0)
            text = &seed;
        else if (strcmp(a, "--small") == 0)
            o->size = CK_SMALL;
        else if (strcmp(a, "--full") == 0)
            o->size = CK_FULL;
        else if (strcmp(a, "--exact-buffers") == 0)
            o->exact_buffers = true;
        else if (strcmp(a, "--list") == 0)
            o->list = true;
        else if (strcmp(a, "--bench") == 0) {
            o->bench = true;
            o->bench_attn = i + 1 < argc && strcmp(argv[i + 1], "attn") == 0;
            o->bench_linear =
                i + 1 < argc && strcmp(argv[i + 1], "linear") == 0;
            o->bench_step = i + 1 < argc && strcmp(argv[i + 1], "step") == 0;
            i += o->bench_attn || o->bench_linear || o->bench_step;
        } else if (strcmp(a, "--self-test") == 0)
            o->self_test = true;
        else if (strcmp(a, "--verdict") == 0)
            o->verdict = true;
        else {
            fprintf(stderr, "folio-check: unknown option %s\n", a);
            usage(stderr);
            return false;
        }
        if (text && ++i == argc) {
            fprintf(stderr, "folio-check: %s needs a value\n", a);
            return false;
        }
        if (text)
            *text = argv[i];
        if (seed)
            o->seed = strtoull(seed, NULL, 0);
    }
    if (!o->device && !o->dump_dir) {
        fprintf(stderr, "folio-check: --device is missing\n");
        return false;
    }
    return true;
}

/* ---- log -------------------------------------------------------------------
 */

/* The last message is what a failure shows; nothing else is printed, since
 * refused arguments are expected to be logged. */
static void keep_log(void *user, folio_log_level level, const char *message)
{
    ck_ctx *c = user;
    if (level <= FOLIO_LOG_WARN)
        snprintf(c->log, sizeof c->log, "%s", message);
}

/* ---- ends ------------------------------------------------------------------
 */

/* Variants that never ran say why; those required are failures then. */
static void check_required(ck_ctx *c, const char *path)
{
    char line[200];
    FILE *f = fopen(path, "r");
    if (!f) {
        printf("FAILED: cannot read %s\n", path);
        c->failed++;
        return;
    }
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "#\r\n \t")] = '\0';
        if (!line[0])
            continue;
        const ck_tally *t = NULL;
        for (size_t i = 0; i < c->n_rows; i++)
            if (strcmp(c->rows[i].name, line) == 0)
                t = &c->tally[i];
        if (t && t->ran > 0)
            continue;
        printf("FAILED: %s is required (%s) and %s\n", line, path,
               t ? "did not run" : "does not exist");
        c->failed++;
    }
    fclose(f);
}

static int print_skips(const ck_ctx *c)
{
    for (int i = 0; i < c->n_refusals; i++)
        printf("skipped: %s (%d cases)\n", c->refusal[i].text,
               c->refusal[i].cases);
    return c->n_refusals;
}

static void print_tally(const ck_ctx *c, bool verdict)
{
    for (size_t i = 0; i < c->n_rows; i++) {
        const ck_tally *t = &c->tally[i];
        if (!t->ran)
            continue;
        if (verdict)
            printf("%s %s\n", t->failed ? "bad" : "good", t->var->name);
        else
            printf("%-20s %4d cases, %d failed, worst share %.3f%s%s\n",
                   t->var->name, t->ran, t->failed, t->worst,
                   t->worst > 0 ? " in " : "", t->worst_case);
    }
}

static void check_programs(ck_ctx *c, ck_size size)
{
    int n = ck_programs_count();
    printf("%d programs\n", n);
    if (size != CK_FULL && n > CK_MAX_PROGRAMS) {
        printf("FAILED: the covering list makes %d programs > %d\n", n,
               CK_MAX_PROGRAMS);
        c->failed++;
    }
}

static void list_variants(const ck_ctx *c)
{
    bool host = folio_device_is_host(c->dev);
    uint64_t caps = folio_device_caps(c->dev);
    for (size_t i = 0; i < c->n_rows; i++) {
        const folio_variant *v = &c->rows[i];
        if (v->where != (host ? FOLIO_ON_HOST : FOLIO_ON_CL))
            continue;
        printf("%-12s %-20s%s%s%s", folio_op_name(v->op), v->name,
               v->flags & FOLIO_VAR_FLOOR ? " floor" : "",
               v->flags & FOLIO_VAR_BATCH_INVARIANT ? " batch-invariant" : "",
               v->flags & FOLIO_VAR_UNORDERED ? " unordered" : "");
        for (int bit = 0; folio_cap_name(bit); bit++)
            if ((v->needs & ~caps) >> bit & 1)
                printf(" lacks-%s", folio_cap_name(bit));
        printf("\n");
    }
}

void ck_run_all(ck_ctx *c)
{
    static void (*const families[])(ck_ctx *) = {
        ck_embed,  ck_gather,      ck_rmsnorm, ck_act,     ck_add,
        ck_topk,   ck_sample,      ck_copy,    ck_rope,    ck_attn,
        ck_linear, ck_norm_linear, ck_qkv,     ck_gate_up, ck_step,
    };
    for (size_t i = 0; i < FOLIO_COUNT(families); i++)
        families[i](c);
}

static int dump_sources(ck_ctx *c, const char *dir)
{
    folio_log log = {keep_log, c, FOLIO_LOG_WARN};
    ck_programs_dump(dir);
    c->quiet = true;
    /* A CPU and a GPU in one: every row that any device would take. */
    c->dev = ck_paper_device(log, ~(uint64_t)0);
    ck_run_all(c);
    ck_bench_dump(c);
    printf("%d programs in %s\n", ck_programs_count(), dir);
    return c->failed > 0 || ck_programs_dump_failed() ||
                   ck_programs_count() == 0
               ? 1
               : 0;
}

/* Nothing from other runs: what is checked is what is built now. */
static folio_device_params params_for(ck_ctx *c, const char *select, int n)
{
    folio_device_params p;
    folio_device_params_default(&p);
    p.log = (folio_log){keep_log, c, FOLIO_LOG_WARN};
    p.cache_dir = "";
    p.select = select;
    p.n_threads = n;
    return p;
}

static bool open_device(ck_ctx *c)
{
    folio_device_params p = params_for(c, c->device, 0);
    return folio_device_open(&p, &c->dev) == FOLIO_OK &&
           folio_queue_open(c->dev, &c->q) == FOLIO_OK;
}

void ck_reopen(ck_ctx *c)
{
    if (ck_programs_dumping() || c->dead)
        return;
    folio_queue_close(&c->q);
    folio_device_close(&c->dev);
    if (!open_device(c)) {
        fprintf(stderr, "folio-check: device %s is gone: %s\n", c->device,
                c->log);
        exit(1);
    }
}

static bool open_devices(ck_ctx *c, const options *o)
{
    folio_device_params p = params_for(c, "host", o->bench ? 0 : 1);
    return folio_device_open(&p, &c->host) == FOLIO_OK &&
           folio_queue_open(c->host, &c->host_q) == FOLIO_OK && open_device(c);
}

static void print_device(const ck_ctx *c)
{
    folio_device_info d = {.size = sizeof d};
    folio_device_get_info(c->dev, &d);
    printf("device: %s (%s, driver %s)\nseed: %llu\n", d.name, d.platform,
           d.driver, (unsigned long long)c->seed);
    fflush(stdout);
}

static int check(ck_ctx *c, const options *o)
{
    ck_run_all(c);
    print_tally(c, o->verdict);
    if (c->dead) {
        printf("FAILED: the device failed; what was left did not run\n");
        c->failed++;
    }
    check_programs(c, o->size);
    if (o->require)
        check_required(c, o->require);
    if (c->passed + c->failed == 0) {
        printf("FAILED: nothing ran\n");
        c->failed++;
    }
    int skipped = print_skips(c);
    printf("%d passed, %d failed, %d skipped\n", c->passed, c->failed, skipped);
    return c->failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    options o;
    int status;
    if (!parse(argc, argv, &o, &status))
        return status;
    setvbuf(stdout, NULL, _IOLBF, 1 << 14);
    ck_ctx c = {.seed = o.seed,
                .only = o.only,
                .without = o.without,
                .size = o.size,
                .device = o.device,
                .tune = o.tune};
    c.rows = folio_variants(&c.n_rows);
    c.tally = folio_calloc(c.n_rows, sizeof *c.tally);
    if (!c.tally)
        return 2;
    for (size_t i = 0; i < c.n_rows; i++)
        c.tally[i].var = &c.rows[i];
    if (o.dump_dir) {
        status = dump_sources(&c, o.dump_dir);
    } else if (!open_devices(&c, &o)) {
        fprintf(stderr, "folio-check: device %s: %s\n", o.device, c.log);
        status = 2;
    } else {
        folio_device_kind kind = folio_device_get_kind(c.dev);
        folio_device_info d = {.size = sizeof d};
        folio_device_get_info(c.dev, &d);
        c.gpu = kind == FOLIO_DEVICE_GPU_DISCRETE ||
                kind == FOLIO_DEVICE_GPU_INTEGRATED;
        c.exact_buffers =
            o.exact_buffers || strstr(d.platform, "Oclgrind") != NULL;
        print_device(&c);
        if (o.list) {
            list_variants(&c);
            status = 0;
        } else if (o.self_test) {
            status = ck_self_test(&c) ? 1 : 0;
        } else if (o.bench) {
            c.bench_attn = o.bench_attn;
            c.bench_linear = o.bench_linear;
            c.bench_step = o.bench_step;
            status = ck_bench(&c) ? 1 : 0;
        } else {
            status = check(&c, &o);
        }
    }
    folio_queue_close(&c.q);
    folio_queue_close(&c.host_q);
    if (!o.dump_dir)
        folio_device_close(&c.dev);
    folio_device_close(&c.host);
    free(c.tally);
    free(c.refusal);
    return status;
}
