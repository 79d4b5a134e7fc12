/* engine/step_trace.c: the newest steps, and writing them as Chrome trace JSON
 * to a file of the caller's. */
#include "engine/eng.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void folio_span_keep(folio_engine *e, const folio_step_span *span)
{
    if (e->p.trace_steps)
        e->span[e->n_spans++ % (uint64_t)e->p.trace_steps] = *span;
}

/* Nanoseconds as microseconds with their fraction. */
#define US(ns) (ns) / 1000, (ns) % 1000

static bool put_phase(FILE *f, const folio_step_span *s, int row,
                      const char *name, uint64_t from, uint64_t to)
{
    char text[256];
    if (from == 0 || to < from)
        return true; /* not reached */
    const int n = snprintf(
        text, sizeof text,
        ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%d,"
        "\"ts\":%" PRIu64 ".%03" PRIu64 ",\"dur\":%" PRIu64 ".%03" PRIu64
        ",\"args\":{\"step\":%" PRIu64 ",\"tok\":%d,\"seq\":%d,\"rows\":%d,"
        "\"waiting\":%d,\"failed\":%s}}",
        name, row, US(from), US(to - from), s->number, s->n_tok, s->n_seq,
        s->n_rows, s->n_waiting, s->failed ? "true" : "false");
    return fwrite(text, 1, (size_t)n, f) == (size_t)n;
}

static bool put_step(FILE *f, const folio_step_span *s)
{
    bool ok = put_phase(f, s, 1, "plan", s->begin, s->planned);
    ok = ok && put_phase(f, s, 2, "upload", s->planned, s->uploaded);
    ok = ok && put_phase(f, s, 3, "kernels", s->uploaded, s->enqueued);
    ok = ok && put_phase(f, s, 4, "wait", s->waits, s->waited);
    ok = ok && put_phase(f, s, 5, "sample", s->waited, s->sampled);
    return ok && put_phase(f, s, 6, "commit", s->sampled, s->end);
}

static bool put_text(FILE *f, const char *text)
{
    const size_t n = strlen(text);
    return fwrite(text, 1, n, f) == n;
}

folio_status folio_engine_trace_write(folio_engine *e, const char *path)
{
    if (!e)
        return FOLIO_E_INVAL;
    if (!path || !e->p.trace_steps)
        return folio_fail(&e->log, FOLIO_E_INVAL,
                          "trace: path is %s, trace_steps is %d",
                          path ? "given" : "NULL", e->p.trace_steps);
    FILE *f = fopen(path, "wb");
    if (!f)
        return folio_fail(&e->log, FOLIO_E_IO, "trace: %s: %s", path,
                          strerror(errno));
    const uint64_t cap = (uint64_t)e->p.trace_steps;
    bool ok = put_text(f, "{\"traceEvents\":[\n{\"name\":\"process_name\","
                          "\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":"
                          "\"folio engine\"}}");
    for (uint64_t i = e->n_spans > cap ? e->n_spans - cap : 0;
         ok && i < e->n_spans; i++)
        ok = put_step(f, &e->span[i % cap]);
    ok = ok && put_text(f, "\n]}\n");
    ok = fclose(f) == 0 && ok;
    return ok ? FOLIO_OK
              : folio_fail(&e->log, FOLIO_E_IO,
                           "trace: %s could not be written", path);
}
