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
        if (ctx > m->ctx_train)
            return bench_fail(a, FOLIO_E_TOO_LARGE,
                              "%s of %d sequences needs %lld positions, the "
                              "model was trained for %d",
                              c->decode ? "decode" : "prefill", c->batch, ctx,
                              m->ctx_train);
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
    r->rates.size = sizeof r->rates;
    const bool gpu = (r->dev.caps & FOLIO_CAP_GPU) != 0;
    if (a->o.max_tok == 0)
        a->o.max_tok = gpu ? 2048 : 512;
    if (a->o.run_ahead < 0)
        a->o.run_ahead = r->dev.kind != FOLIO_DEVICE_HOST;
    return folio_device_measure(a->dev, &r->rates);
}

static folio_status find_shape(bench_app *a, folio_model_shape *s)
{
    char known[256] = "";
    if (folio_model_shape_find(a->o.shape, s) == FOLIO_OK) {
        s->type = a->o.type;
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
    const folio_status st = folio_model_shape_write(s, a->o.write, &a->log);
    if (st != FOLIO_OK)
        return st;
    if (stat(a->o.write, &sb) != 0)
        return bench_fail(a, FOLIO_E_IO, "%s: %s", a->o.write, strerror(errno));
    a->rep.written = (uint64_t)sb.st_size;
    return FOLIO_OK;
}

/* The type in which most of a file's bytes are stored. */
static folio_status read_type(bench_app *a, const char *path)
{
    folio_model_file *f = NULL;
    folio_model_tensor t, u;
    uint64_t most = 0;
    const folio_status st = folio_model_file_open(path, &a->log, &f);
    if (st != FOLIO_OK)
        return st;
    for (size_t i = 0; folio_model_file_tensor(f, i, &t) == FOLIO_OK; i++) {
        uint64_t bytes = 0;
        for (size_t k = 0; folio_model_file_tensor(f, k, &u) == FOLIO_OK; k++)
            bytes += strcmp(u.type, t.type) == 0 ? u.bytes : 0;
        if (bytes > most)
            snprintf(a->rep.type, sizeof a->rep.type, "%s", t.type);
        most = bytes > most ? bytes : most;
    }
    folio_model_file_close(&f);
    return FOLIO_OK;
}

static folio_status open_model(bench_app *a, const folio_model_shape *shape,
                               const char *path)
{
    folio_model_params p;
    bench_report *r = &a->rep;
    int32_t most = 1;
    folio_status st = FOLIO_OK;
    if (path)
        st = read_type(a, path);
    else
        snprintf(r->type, sizeof r->type, "%s", shape->type);
    if (st != FOLIO_OK)
        return st;
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
    if (path && tool_is_plain(path))
        remove(path);
    return bench_fail(a, FOLIO_E_IO, "%s could not be written",
                      path ? path : "stdout");
}

static folio_status run(bench_app *a)
{
    bench_report *r = &a->rep;
    folio_model_shape shape;
    const char *path = a->o.model ? a->o.model : a->o.write;
    const time_t now = time(NULL);
    struct tm tm;
    folio_status st = bench_plan(a);
    r->o = &a->o;
    if (gmtime_r(&now, &tm))
        strftime(r->when, sizeof r->when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (st == FOLIO_OK && a->o.shape)
        st = find_shape(a, &shape);
    if (st == FOLIO_OK && a->o.write)
        st = write_shape(a, &shape);
    if (st == FOLIO_OK && r->n_rows > 0)
        st = open_device(a);
    if (st == FOLIO_OK && r->n_rows > 0)
        st = open_model(a, &shape, path);
    if (st == FOLIO_OK && r->n_rows > 0)
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
