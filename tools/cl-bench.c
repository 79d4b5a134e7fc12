#define _POSIX_C_SOURCE 200809L
/* cl-bench.c: measures a model on a device: prefill and decode speed beside
 * what the device's memory and arithmetic give in the same run, and a hash of
 * the ids, so that a fast wrong build shows. */
#include "cl-bench.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

folio_status bench_fail(bench_app *a, folio_status st, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    a->log.fn(a->log.user, FOLIO_LOG_ERROR, text);
    return st;
}

/* ---- cases --------------------------------------------------------------- */

static void plan_decode(bench_report *r, int32_t batch, int32_t depth)
{
    const bench_options *o = r->o;
    r->rows[r->n_rows++] = (bench_row){.decode = true,
                                       .batch = batch,
                                       .depth = depth,
                                       .n_new = (int32_t)o->n_new,
                                       .fake = o->fake && depth > 0};
}

folio_status bench_plan(bench_app *a)
{
    const bench_options *o = &a->o;
    bench_report *r = &a->rep;
    const size_t most = o->prefill.n + o->depths.n + o->batches.n +
                        (o->cross ? o->depths.n * o->batches.n : 0);
    r->rows = calloc(most ? most : 1, sizeof *r->rows);
    if (!r->rows)
        return bench_fail(a, FOLIO_E_NOMEM, "no memory for %zu cases", most);
    for (size_t i = 0; i < o->prefill.n; i++)
        r->rows[r->n_rows++] =
            (bench_row){.batch = 1, .depth = o->prefill.v[i]};
    if (o->n_new == 0)
        return FOLIO_OK;
    if (!o->cross) {
        for (size_t d = 0; d < o->depths.n; d++)
            plan_decode(r, 1, o->depths.v[d]);
        for (size_t b = 0; b < o->batches.n; b++)
            plan_decode(r, o->batches.v[b], (int32_t)o->prompt);
        return FOLIO_OK;
    }
    for (size_t d = 0; d < o->depths.n; d++)
        for (size_t b = 0; b < o->batches.n; b++)
            plan_decode(r, o->batches.v[b], o->depths.v[d]);
    return FOLIO_OK;
}

/* So that a long run does not end in a case that could never fit. */
folio_status bench_check(bench_app *a)
{
    const bench_options *o = &a->o;
    const bench_report *r = &a->rep;
    const folio_model_info *m = &r->model;
    const double row =
        2.0 * m->n_layers * m->kv_heads * m->head_dim * (o->kv_f32 ? 4.0 : 2.0);
    for (size_t i = 0; i < r->n_rows; i++) {
        const bench_row *c = &r->rows[i];
        const long long ctx = (long long)c->depth + c->n_new;
        const double block = (double)o->block;
        const double slots =
            (double)((ctx + o->block - 1) / o->block) * block * c->batch;
        const double bytes = row * slots;
        if (m->ctx_train && ctx > m->ctx_train)
            return bench_fail(a, FOLIO_E_TOO_LARGE,
                              "%s of %d sequences needs %lld positions, the "
                              "model was trained for %d",
                              c->decode ? "decode" : "prefill", c->batch, ctx,
                              m->ctx_train);
        if (o->block > 256 && o->block / 2 > ctx)
            return bench_fail(a, FOLIO_E_INVAL,
                              "blocks of %lld ids (--block) are more than "
                              "twice as long as the %lld of %s",
                              o->block, ctx, c->decode ? "decode" : "prefill");
        if (slots > INT32_MAX)
            return bench_fail(a, FOLIO_E_TOO_LARGE,
                              "%d sequences of %lld ids are more than %d slots",
                              c->batch, ctx, INT32_MAX);
        if (r->dev.global_bytes &&
            bytes + (double)m->weight_bytes > (double)r->dev.global_bytes)
            return bench_fail(a, FOLIO_E_TOO_LARGE,
                              "%s of %d sequences of %lld ids needs %.0f bytes "
                              "of KV beside %llu bytes of weights, the device "
                              "has %llu",
                              c->decode ? "decode" : "prefill", c->batch, ctx,
                              bytes, (unsigned long long)m->weight_bytes,
                              (unsigned long long)r->dev.global_bytes);
    }
    return FOLIO_OK;
}

/* ---- opening ------------------------------------------------------------- */

static folio_status open_device(bench_app *a)
{
    folio_device_params p;
    bench_report *r = &a->rep;
    folio_device_params_default(&p);
    p.select = a->o.device;
    p.n_threads = (int32_t)a->o.threads;
    p.log = a->log;
    folio_status st = folio_device_open(&p, &a->dev);
    if (st != FOLIO_OK)
        return st;
    r->dev.size = sizeof r->dev;
    folio_device_get_info(a->dev, &r->dev);
    const bool gpu = (r->dev.caps & FOLIO_CAP_GPU) != 0;
    if (a->o.max_tok == 0)
        a->o.max_tok = gpu ? 2048 : 512;
    if (a->o.run_ahead < 0)
        a->o.run_ahead = r->dev.kind != FOLIO_DEVICE_HOST;
    return FOLIO_OK;
}

/* Before the weights are there, so that the array has its room. */
static folio_status measure_rates(bench_app *a)
{
    a->rep.rates.size = sizeof a->rep.rates;
    return folio_device_measure(a->dev, &a->rep.rates);
}

/* What a plan is checked against before the weights are made: norms, which are
 * a few thousandths, are left out. */
static void describe_shape(bench_report *r, const folio_model_shape *s)
{
    folio_model_info *m = &r->model;
    const double q = (double)s->heads * s->head_dim;
    const double kv = (double)s->kv_heads * s->head_dim;
    const double layer = s->dim * (2.0 * q + 2.0 * kv + 3.0 * s->ff_dim);
    const double params =
        s->n_layers * layer + (s->tied ? 1.0 : 2.0) * s->n_vocab * s->dim;
    const double bits = strcmp(s->type, "q4_0") == 0   ? 4.5
                        : strcmp(s->type, "q8_0") == 0 ? 8.5
                                                       : 16.0;
    m->n_layers = s->n_layers;
    m->kv_heads = s->kv_heads;
    m->head_dim = s->head_dim;
    m->ctx_train = s->ctx_train;
    m->weight_bytes = (uint64_t)(params * bits / 8.0);
}

static folio_status find_shape(bench_app *a, folio_model_shape *s)
{
    char known[256] = "";
    if (folio_model_shape_find(a->o.shape, s) == FOLIO_OK) {
        s->type = a->o.type;
        snprintf(a->rep.type, sizeof a->rep.type, "%s", s->type);
        describe_shape(&a->rep, s);
        return FOLIO_OK;
    }
    for (size_t i = 0; folio_model_shape_name(i); i++) {
        const size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "",
                 folio_model_shape_name(i));
    }
    return bench_fail(a, FOLIO_E_NOT_FOUND,
                      "--shape %s is not known; known are: %s", a->o.shape,
                      known);
}

static folio_status write_shape(bench_app *a, const folio_model_shape *s)
{
    struct stat sb;
    const char *why;
    if (!tool_try_output(a->o.write, &why))
        return bench_fail(a, FOLIO_E_IO, "%s: cannot be written: %s",
                          a->o.write, why);
    const folio_status st = folio_model_shape_write(s, a->o.write, &a->log);
    if (st != FOLIO_OK)
        return st;
    if (stat(a->o.write, &sb) != 0)
        return bench_fail(a, FOLIO_E_IO, "%s: %s", a->o.write, strerror(errno));
    a->rep.written = (uint64_t)sb.st_size;
    return FOLIO_OK;
}

/* The text of a key of the file, "" where it has none or many values. */
static void read_text(const folio_model_file *f, const char *key, char *text,
                      size_t cap)
{
    folio_model_meta m;
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; folio_model_file_meta(f, i, &m) == FOLIO_OK; i++)
        if (strcmp(m.key, key) == 0 && m.n == 1 &&
            folio_model_file_meta_text(f, i, 0, text, cap - 1, &n) == FOLIO_OK)
            text[n < cap ? n : 0] = '\0';
}

/* A number of its architecture, 0 where there is none. */
static int32_t read_number(const folio_model_file *f, const char *arch,
                           const char *what)
{
    char key[192], text[32];
    long long v;
    snprintf(key, sizeof key, "%s.%s", arch, what);
    read_text(f, key, text, sizeof text);
    return tool_parse_int(text, 0, INT32_MAX, &v) ? (int32_t)v : 0;
}

/* As describe_shape, from what a file says of itself, but for its bytes. */
static void describe_file(bench_report *r, const folio_model_file *f)
{
    folio_model_info *m = &r->model;
    char arch[64];
    read_text(f, "general.architecture", arch, sizeof arch);
    const int32_t dim = read_number(f, arch, "embedding_length");
    const int32_t heads = read_number(f, arch, "attention.head_count");
    m->n_layers = read_number(f, arch, "block_count");
    m->kv_heads = read_number(f, arch, "attention.head_count_kv");
    m->head_dim = read_number(f, arch, "attention.key_length");
    if (m->head_dim == 0 && heads > 0)
        m->head_dim = dim / heads;
    m->ctx_train = read_number(f, arch, "context_length");
}

/* What can be known of a file before a device is there: whether it is a model,
 * its numbers, and the type in which most of its bytes are stored. */
static folio_status look_at_file(bench_app *a, const char *path)
{
    folio_model_file *f = NULL;
    folio_model_tensor t;
    /* A sum for each type met; a file of any size is looked through once. */
    struct {
        char type[sizeof a->rep.type];
        uint64_t bytes;
    } sums[64];
    size_t n = 0, most = 0;
    const folio_status st = folio_model_file_open(path, &a->log, &f);
    if (st != FOLIO_OK)
        return st;
    describe_file(&a->rep, f);
    a->rep.model.weight_bytes = 0;
    for (size_t i = 0; folio_model_file_tensor(f, i, &t) == FOLIO_OK; i++) {
        size_t k = 0;
        a->rep.model.weight_bytes += t.bytes;
        while (k < n && strcmp(sums[k].type, t.type) != 0)
            k++;
        if (k == sizeof sums / sizeof *sums)
            continue;
        if (k == n) {
            snprintf(sums[n].type, sizeof sums[n].type, "%s", t.type);
            sums[n++].bytes = 0;
        }
        sums[k].bytes += t.bytes;
        most = sums[k].bytes > sums[most].bytes ? k : most;
    }
    if (n > 0)
        snprintf(a->rep.type, sizeof a->rep.type, "%s", sums[most].type);
    folio_model_file_close(&f);
    return FOLIO_OK;
}

static folio_status open_model(bench_app *a, const folio_model_shape *shape,
                               const char *path)
{
    folio_model_params p;
    bench_report *r = &a->rep;
    int32_t most = 1;
    folio_status st;
    for (size_t i = 0; i < r->n_rows; i++)
        most = r->rows[i].batch > most ? r->rows[i].batch : most;
    folio_model_params_default(&p);
    p.max_seqs = most;
    p.max_tok = (int32_t)(a->o.max_tok > most ? a->o.max_tok : most);
    p.exact = a->o.exact;
    p.log = a->log;
    const double start = bench_now();
    st = path ? folio_model_open(a->dev, path, &p, &a->model)
              : folio_model_open_shape(a->dev, shape, &p, &a->model);
    r->load_s = bench_now() - start;
    r->model.size = sizeof r->model;
    if (st == FOLIO_OK)
        folio_model_get_info(a->model, &r->model);
    return st;
}

/* ---- the report ---------------------------------------------------------- */

static folio_status report(bench_app *a)
{
    const char *path = a->o.out;
    FILE *f = path ? fopen(path, "w") : stdout;
    if (!f)
        return bench_fail(a, FOLIO_E_IO, "%s: cannot be written: %s", path,
                          strerror(errno));
    bool ok = bench_print(&a->rep, f);
    if (path)
        ok = fclose(f) == 0 && ok;
    if (ok)
        return FOLIO_OK;
    if (path)
        tool_remove_output(path);
    return bench_fail(a, FOLIO_E_IO, "%s could not be written",
                      path ? path : "stdout");
}

static folio_status run(bench_app *a)
{
    bench_report *r = &a->rep;
    folio_model_shape shape;
    const char *path = a->o.model ? a->o.model : a->o.write, *why;
    const time_t now = time(NULL);
    struct tm tm;
    folio_status st = bench_plan(a);
    r->o = &a->o;
    if (gmtime_r(&now, &tm))
        strftime(r->when, sizeof r->when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (st == FOLIO_OK && a->o.shape)
        st = find_shape(a, &shape);
    if (st == FOLIO_OK && a->o.model)
        st = look_at_file(a, a->o.model);
    if (st == FOLIO_OK && a->o.out && !tool_try_output(a->o.out, &why))
        st = bench_fail(a, FOLIO_E_IO, "%s: cannot be written: %s", a->o.out,
                        why);
    if (st == FOLIO_OK && r->n_rows > 0)
        st = open_device(a);
    /* Twice: what takes long comes between, and then all is known. */
    if (st == FOLIO_OK)
        st = bench_check(a);
    if (st == FOLIO_OK && a->o.write)
        st = write_shape(a, &shape);
    /* Names of one file that differ: only now can that be seen. */
    if (st == FOLIO_OK && a->o.write && tool_same_file(a->o.out, a->o.write))
        st = bench_fail(a, FOLIO_E_INVAL, "--out %s would overwrite the model",
                        a->o.out);
    if (st == FOLIO_OK && a->o.write && r->n_rows > 0)
        st = look_at_file(a, a->o.write);
    if (st == FOLIO_OK && r->n_rows > 0)
        st = measure_rates(a);
    if (st == FOLIO_OK && r->n_rows > 0)
        st = open_model(a, &shape, path);
    if (st == FOLIO_OK)
        st = bench_check(a);
    for (size_t i = 0; i < r->n_rows && st == FOLIO_OK; i++) {
        st = bench_run(a, &r->rows[i]);
        if (st == FOLIO_OK && a->o.verbose)
            bench_print_row(r, &r->rows[i], stderr);
    }
    return st == FOLIO_OK ? report(a) : st;
}

static int go(int argc, char **argv)
{
    static bench_app a;
    const int status = bench_options_parse(argc, argv, &a.o);
    if (status >= 0) {
        bench_options_free(&a.o);
        return status;
    }
    const bool json = a.o.format == BENCH_JSON;
    a.tlog.quiet = json && !a.o.verbose;
    a.log = tool_log_to(&a.tlog, a.o.verbose ? FOLIO_LOG_INFO : FOLIO_LOG_WARN);
    a.rep.o = &a.o;
    const folio_status st = run(&a);
    if (st != FOLIO_OK) {
        const char *why =
            a.tlog.error[0] ? a.tlog.error : folio_status_text(st);
        if (json)
            tool_json_error(folio_status_name(st), why);
        else if (!a.tlog.error[0])
            fprintf(stderr, "%s: %s\n", tool_name, why);
    }
    for (size_t i = 0; i < a.rep.n_rows; i++)
        json_decref(a.rep.rows[i].variants);
    free(a.rep.rows);
    folio_model_close(&a.model);
    folio_device_close(&a.dev);
    bench_options_free(&a.o);
    return tool_exit_status(st);
}

int main(int argc, char **argv)
{
    tool_name = "cl-bench";
    return tool_finish(go(argc, argv));
}
