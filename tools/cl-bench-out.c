/* cl-bench-out.c: the report as text, JSON, CSV or Markdown. Computes shares,
 * measures nothing. */
#include "cl-bench.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

double bench_flop_rate(const bench_report *r)
{
    return r->rates.matrix_flop_s > 0.0 ? r->rates.matrix_flop_s
                                        : r->rates.fma_flop_s;
}

static double read_share(const bench_report *r, const bench_row *c)
{
    return (c->weight_bytes + c->kv_bytes) / c->step_s / r->rates.read_bytes_s;
}

static double flop_share(const bench_report *r, const bench_row *c)
{
    return c->flop / c->step_s / bench_flop_rate(r);
}

static const char *kv_name(const bench_report *r)
{
    return r->o->kv_f32 ? "f32" : "f16";
}

static const char *source_name(const bench_report *r)
{
    const char *s = r->o->model ? r->o->model : r->o->shape;
    const char *slash = r->o->model ? strrchr(s, '/') : NULL;
    return slash ? slash + 1 : s;
}

/* ---- text and Markdown --------------------------------------------------- */

static void print_time(FILE *f, const char *format, double s)
{
    char cell[32] = "-";
    if (isfinite(s))
        snprintf(cell, sizeof cell, "%.2f", 1e3 * s);
    fprintf(f, format, cell);
}

static void print_case(const bench_row *c, char *cell, size_t size)
{
    if (!c->decode)
        snprintf(cell, size, "prefill %d", c->depth);
    else
        snprintf(cell, size, "decode b%d d%d%s", c->batch, c->depth,
                 c->fake ? " (fake)" : "");
}

void bench_print_row(const bench_report *r, const bench_row *c, FILE *f)
{
    char name[64];
    print_case(c, name, sizeof name);
    fprintf(f, "%-26s %11.1f", name, c->tok_s);
    print_time(f, " %10s", c->ttft_s);
    print_time(f, " %8s", c->p50_s);
    print_time(f, " %8s", c->p99_s);
    fprintf(f, " %10.1f %6.1f %6.1f %9.1f  %016" PRIx64 "%s\n",
            (c->weight_bytes + c->kv_bytes) / 1e6, 100.0 * read_share(r, c),
            100.0 * flop_share(r, c), c->launches, c->hash,
            c->same ? "" : " differs between runs");
}

static void print_head(const bench_report *r, FILE *f)
{
    const folio_model_info *m = &r->model;
    const folio_device_rates *x = &r->rates;
    fprintf(f, "device   %s (%s %s), %s\n", r->dev.name, r->dev.platform,
            r->dev.driver, r->when);
    fprintf(f, "rates    %.1f GB/s read, %.2f TFLOP/s multiply-add",
            x->read_bytes_s / 1e9, x->fma_flop_s / 1e12);
    if (x->matrix_flop_s > 0.0)
        fprintf(f, ", %.1f TFLOP/s matrix", x->matrix_flop_s / 1e12);
    fprintf(f, " (measured now)\n");
    fprintf(f,
            "model    %s, %s, %.1f MB of weights, %.1f MB a step, loaded "
            "in %.2f s\n",
            source_name(r), r->type, (double)m->weight_bytes / 1e6,
            (double)m->step_bytes / 1e6, r->load_s);
}

/* The forms that ran, and what was asked for where that is not it. */
static const char *forms(const bench_report *r, char cell[64])
{
    int32_t lo = r->rows[0].fused, hi = lo;
    for (size_t i = 1; i < r->n_rows; i++) {
        lo = r->rows[i].fused < lo ? r->rows[i].fused : lo;
        hi = r->rows[i].fused > hi ? r->rows[i].fused : hi;
    }
    int n = lo == hi ? snprintf(cell, 64, "%d", lo)
                     : snprintf(cell, 64, "%d to %d", lo, hi);
    if (r->o->fused >= 0 && (lo != hi || lo != r->o->fused))
        snprintf(cell + n, 64 - (size_t)n, " (asked for: %lld)", r->o->fused);
    return cell;
}

static bool print_text(const bench_report *r, FILE *f)
{
    char cell[64];
    if (r->written)
        fprintf(f, "written  %s, %" PRIu64 " bytes\n", r->o->write, r->written);
    if (r->n_rows == 0)
        return !ferror(f);
    print_head(r, f);
    fprintf(f,
            "settings KV %s, exact %s, deterministic %s, fused %s, run-ahead "
            "%lld, %lld runs of each, %lld ids a forward, blocks of %lld\n\n",
            kv_name(r), r->o->exact ? "on" : "off",
            r->rows[0].deterministic ? "on" : "off", forms(r, cell),
            r->o->run_ahead, r->o->reps, r->o->max_tok, r->o->block);
    fprintf(f, "%-26s %11s %10s %8s %8s %10s %6s %6s %9s  %s\n", "case",
            "tokens/s", "first ms", "p50 ms", "p99 ms", "MB/step", "% mem",
            "% flop", "launches", "ids");
    for (size_t i = 0; i < r->n_rows; i++)
        bench_print_row(r, &r->rows[i], f);
    return !ferror(f);
}

static bool print_md(const bench_report *r, FILE *f)
{
    if (r->n_rows == 0)
        return print_text(r, f);
    char cell[64];
    fprintf(f,
            "%s, %s, KV %s, exact %s, deterministic %s, fused %s, run-ahead "
            "%lld, on %s (%s), %.10s; %.0f GB/s read and %.1f TFLOP/s measured "
            "in the same run.\n\n",
            source_name(r), r->type, kv_name(r), r->o->exact ? "on" : "off",
            r->rows[0].deterministic ? "on" : "off", forms(r, cell),
            r->o->run_ahead, r->dev.name, r->dev.driver, r->when,
            r->rates.read_bytes_s / 1e9, bench_flop_rate(r) / 1e12);
    fprintf(f, "| case | tokens/s | first id, ms | p50 / p99, ms | MB a step | "
               "of read rate | of FLOP rate | launches | ids |\n"
               "|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < r->n_rows; i++) {
        const bench_row *c = &r->rows[i];
        char name[64];
        print_case(c, name, sizeof name);
        fprintf(f, "| %s | %.1f |", name, c->tok_s);
        print_time(f, " %s |", c->ttft_s);
        print_time(f, " %s /", c->p50_s);
        print_time(f, " %s |", c->p99_s);
        fprintf(f, " %.1f | %.1f %% | %.1f %% | %.1f | %016" PRIx64 "%s |\n",
                (c->weight_bytes + c->kv_bytes) / 1e6, 100.0 * read_share(r, c),
                100.0 * flop_share(r, c), c->launches, c->hash,
                c->same ? "" : " (differs)");
    }
    return !ferror(f);
}

/* ---- CSV ----------------------------------------------------------------- */

/* In quotes, those inside doubled. */
static void put_cell(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        if (*s == '"')
            fputc('"', f);
        fputc(*s == '\n' ? ' ' : *s, f);
    }
    fputs("\",", f);
}

static void put_num(FILE *f, double v)
{
    if (isfinite(v))
        fprintf(f, "%.9g", v);
    fputc(',', f);
}

static bool print_csv(const bench_report *r, FILE *f)
{
    fputs("date,device,driver,model,type,kv,exact,deterministic,fused,"
          "run_ahead,arithmetic,"
          "kind,batch,depth,n_new,fake_depth,tokens_s,first_s,p50_s,p99_s,"
          "step_s,weight_bytes,kv_bytes,flop,read_share,flop_share,"
          "read_bytes_s,flop_s,launches,writes,reads,waits,same,hash\n",
          f);
    for (size_t i = 0; i < r->n_rows; i++) {
        const bench_row *c = &r->rows[i];
        put_cell(f, r->when);
        put_cell(f, r->dev.name);
        put_cell(f, r->dev.driver);
        put_cell(f, source_name(r));
        put_cell(f, r->type);
        fprintf(f, "%s,%d,%d,%d,%d,%s,%s,%d,%d,%d,%d,", kv_name(r), r->o->exact,
                c->deterministic, c->fused, (int)r->o->run_ahead, c->arithmetic,
                c->decode ? "decode" : "prefill", c->batch, c->depth, c->n_new,
                c->fake);
        const double nums[] = {c->tok_s,
                               c->ttft_s,
                               c->p50_s,
                               c->p99_s,
                               c->step_s,
                               c->weight_bytes,
                               c->kv_bytes,
                               c->flop,
                               read_share(r, c),
                               flop_share(r, c),
                               r->rates.read_bytes_s,
                               bench_flop_rate(r),
                               c->launches,
                               c->writes,
                               c->reads,
                               c->waits};
        for (size_t k = 0; k < sizeof nums / sizeof nums[0]; k++)
            put_num(f, nums[k]);
        fprintf(f, "%d,%016" PRIx64 "\n", c->same, c->hash);
    }
    return !ferror(f);
}

/* ---- JSON ---------------------------------------------------------------- */

static json_t *row_json(const bench_report *r, const bench_row *c)
{
    char hash[20];
    snprintf(hash, sizeof hash, "%016" PRIx64, c->hash);
    json_t *j =
        json_pack("{s:s,s:i,s:i,s:i,s:b}", "kind",
                  c->decode ? "decode" : "prefill", "batch", c->batch, "depth",
                  c->depth, "n_new", c->n_new, "fake_depth", c->fake);
    const struct {
        const char *key;
        double v;
    } nums[] = {
        {"tokens_s", c->tok_s},
        {"first_s", c->ttft_s},
        {"p50_s", c->p50_s},
        {"p99_s", c->p99_s},
        {"step_s", c->step_s},
        {"weight_bytes", c->weight_bytes},
        {"kv_bytes", c->kv_bytes},
        {"flop", c->flop},
        {"read_share", read_share(r, c)},
        {"flop_share", flop_share(r, c)},
        {"launches", c->launches},
        {"writes", c->writes},
        {"reads", c->reads},
        {"waits", c->waits},
        {"pool_bytes", (double)c->pool_bytes},
    };
    for (size_t i = 0; i < sizeof nums / sizeof nums[0]; i++)
        json_object_set_new(j, nums[i].key, tool_json_num(nums[i].v));
    json_object_set_new(j, "deterministic", json_boolean(c->deterministic));
    json_object_set_new(j, "fused", json_integer(c->fused));
    json_object_set_new(j, "arithmetic", json_string(c->arithmetic));
    json_object_set_new(j, "hash", json_string(hash));
    json_object_set_new(j, "same", json_boolean(c->same));
    json_object_set(j, "variants", c->variants);
    return j;
}

static json_t *device_json(const bench_report *r)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:i,s:{s:o,s:o,s:o,s:o}}", "name",
                     r->dev.name, "kind", folio_device_kind_name(r->dev.kind),
                     "platform", r->dev.platform, "driver", r->dev.driver,
                     "units", (int)r->dev.compute_units, "rates",
                     "read_bytes_s", tool_json_num(r->rates.read_bytes_s),
                     "fma_flop_s", tool_json_num(r->rates.fma_flop_s),
                     "matrix_flop_s", tool_json_num(r->rates.matrix_flop_s),
                     "read_array",
                     json_integer((json_int_t)r->rates.read_array));
}

static json_t *model_json(const bench_report *r)
{
    const folio_model_info *m = &r->model;
    return json_pack(
        "{s:o,s:b,s:s,s:s,s:I,s:I,s:I,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:o}", "name",
        tool_json_text(source_name(r), strlen(source_name(r))), "random",
        r->o->shape != NULL, "arch", m->arch, "type", r->type, "params",
        (json_int_t)m->n_params, "weight_bytes", (json_int_t)m->weight_bytes,
        "step_bytes", (json_int_t)m->step_bytes, "vocab", m->n_vocab, "dim",
        m->dim, "layers", m->n_layers, "heads", m->heads, "kv_heads",
        m->kv_heads, "head_dim", m->head_dim, "ff_dim", m->ff_dim, "load_s",
        tool_json_num(r->load_s));
}

static json_t *settings_json(const bench_report *r)
{
    const bench_options *o = r->o;
    return json_pack("{s:s,s:b,s:i,s:i,s:I,s:I,s:I,s:I}", "kv", kv_name(r),
                     "exact", o->exact, "deterministic", (int)o->deterministic,
                     "fused", (int)o->fused, "reps", (json_int_t)o->reps,
                     "max_tok", (json_int_t)o->max_tok, "block",
                     (json_int_t)o->block, "run_ahead",
                     (json_int_t)o->run_ahead);
}

bool bench_print_json(const bench_report *r, FILE *f)
{
    json_t *rows = json_array(),
           *j = json_pack("{s:s,s:s,s:s}", "version", folio_version(), "commit",
                          folio_commit(), "date", r->when);
    if (r->written)
        json_object_set_new(
            j, "written",
            json_pack("{s:o,s:I}", "file",
                      tool_json_text(r->o->write, strlen(r->o->write)), "bytes",
                      (json_int_t)r->written));
    for (size_t i = 0; i < r->n_rows; i++)
        json_array_append_new(rows, row_json(r, &r->rows[i]));
    if (r->n_rows) {
        json_object_set_new(j, "device", device_json(r));
        json_object_set_new(j, "model", model_json(r));
        json_object_set_new(j, "settings", settings_json(r));
    }
    json_object_set_new(j, "rows", rows);
    const bool ok = j && json_dumpf(j, f, JSON_REAL_PRECISION(9)) == 0 &&
                    fputc('\n', f) != EOF;
    json_decref(j);
    return ok && fflush(f) == 0;
}

bool bench_print(const bench_report *r, FILE *f)
{
    bool ok = r->o->format == BENCH_JSON  ? bench_print_json(r, f)
              : r->o->format == BENCH_CSV ? print_csv(r, f)
              : r->o->format == BENCH_MD  ? print_md(r, f)
                                          : print_text(r, f);
    return fflush(f) == 0 && ok;
}
