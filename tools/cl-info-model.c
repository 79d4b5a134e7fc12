/* cl-info-model.c: metadata, tensors and dequantised rows of a model file, as
 * text or JSON. Opens no device. */
#include "cl-info-model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Long arrays (vocabularies) are cut in text, never in JSON. */
#define TEXT_ELEMENTS 8
#define TEXT_BYTES    200

static char *element(const folio_model_file *f, size_t i, uint64_t j, size_t *n)
{
    if (folio_model_file_meta_text(f, i, j, NULL, 0, n) != FOLIO_OK)
        return NULL;
    char *s = malloc(*n + 1);
    if (s && folio_model_file_meta_text(f, i, j, s, *n, n) != FOLIO_OK) {
        free(s);
        return NULL;
    }
    if (s)
        s[*n] = '\0';
    return s;
}

/* Numbers and bools as such; strings with U+FFFD for bytes outside UTF-8. */
static json_t *element_json(const folio_model_file *f,
                            const folio_model_meta *m, size_t i, uint64_t j)
{
    size_t n;
    char *s = element(f, i, j, &n);
    if (!s)
        return json_null();
    json_t *v = NULL;
    if (!strstr(m->type, "string"))
        v = json_loadb(s, n, JSON_DECODE_ANY, NULL);
    if (!v)
        v = tool_json_text(s, n);
    free(s);
    return v;
}

static bool is_array(const folio_model_meta *m)
{
    return strncmp(m->type, "array", 5) == 0;
}

static json_t *meta_json(const folio_model_file *f)
{
    json_t *list = json_array();
    for (size_t i = 0; i < folio_model_file_n_meta(f); i++) {
        folio_model_meta m;
        if (folio_model_file_meta(f, i, &m) != FOLIO_OK)
            continue;
        json_t *value;
        if (is_array(&m)) {
            value = json_array();
            for (uint64_t j = 0; j < m.n; j++)
                json_array_append_new(value, element_json(f, &m, i, j));
        } else {
            value = element_json(f, &m, i, 0);
        }
        json_array_append_new(list,
                              json_pack("{s:o,s:s,s:o}", "key",
                                        tool_json_text(m.key, strlen(m.key)),
                                        "type", m.type, "value", value));
    }
    return list;
}

static json_t *tensor_json(const folio_model_tensor *t)
{
    json_t *dims = json_array();
    for (uint32_t d = 0; d < t->n_dims; d++)
        json_array_append_new(dims, json_integer((json_int_t)t->dims[d]));
    return json_pack("{s:o,s:s,s:o,s:I}", "name",
                     tool_json_text(t->name, strlen(t->name)), "type", t->type,
                     "dims", dims, "bytes", (json_int_t)t->bytes);
}

static json_t *tensors_json(const folio_model_file *f)
{
    json_t *list = json_array();
    for (size_t i = 0; i < folio_model_file_n_tensors(f); i++) {
        folio_model_tensor t;
        if (folio_model_file_tensor(f, i, &t) == FOLIO_OK)
            json_array_append_new(list, tensor_json(&t));
    }
    return list;
}

/* Control characters in strings must not reach a terminal. */
static void print_bytes(const char *s, size_t n)
{
    size_t shown = n < TEXT_BYTES ? n : TEXT_BYTES;
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c < 0x20 || c == 0x7f)
            printf("\\x%02x", c);
        else
            putchar(c);
    }
    if (shown < n)
        printf("... (%zu bytes)", n);
}

static void print_meta(const folio_model_file *f)
{
    printf("metadata: %zu keys\n", folio_model_file_n_meta(f));
    for (size_t i = 0; i < folio_model_file_n_meta(f); i++) {
        folio_model_meta m;
        if (folio_model_file_meta(f, i, &m) != FOLIO_OK)
            continue;
        printf("  %-44s %-16s ", m.key, m.type);
        uint64_t shown = m.n < TEXT_ELEMENTS ? m.n : TEXT_ELEMENTS;
        if (is_array(&m))
            printf("[%" PRIu64 "] ", m.n);
        for (uint64_t j = 0; j < shown; j++) {
            size_t n;
            char *s = element(f, i, j, &n);
            if (j)
                fputs(", ", stdout);
            if (s)
                print_bytes(s, n);
            free(s);
        }
        puts(shown < m.n ? ", ..." : "");
    }
}

static void print_tensors(const folio_model_file *f)
{
    printf("tensors: %zu\n", folio_model_file_n_tensors(f));
    for (size_t i = 0; i < folio_model_file_n_tensors(f); i++) {
        folio_model_tensor t;
        if (folio_model_file_tensor(f, i, &t) != FOLIO_OK)
            continue;
        printf("  %-36s %-7s [", t.name, t.type);
        for (uint32_t d = 0; d < t.n_dims; d++)
            printf("%s%" PRIu64, d ? ", " : "", t.dims[d]);
        printf("] %" PRIu64 " bytes\n", t.bytes);
    }
}

static folio_status find_tensor(const folio_model_file *f, const char *name,
                                folio_model_tensor *t)
{
    for (size_t i = 0; i < folio_model_file_n_tensors(f); i++)
        if (folio_model_file_tensor(f, i, t) == FOLIO_OK &&
            strcmp(t->name, name) == 0)
            return FOLIO_OK;
    return FOLIO_E_NOT_FOUND;
}

static folio_status show_row(const folio_model_file *f, const model_query *q,
                             json_t *out)
{
    folio_model_tensor t;
    static float none;
    if (find_tensor(f, q->tensor, &t) != FOLIO_OK)
        /* The library names the missing tensor. */
        return folio_model_file_row(f, q->tensor, 0, &none, 1);
    float *row = malloc((size_t)t.dims[0] * sizeof *row);
    if (!row)
        return FOLIO_E_NOMEM;
    folio_status st = folio_model_file_row(f, q->tensor, (uint64_t)q->row, row,
                                           (size_t)t.dims[0]);
    if (st == FOLIO_OK && q->json) {
        json_t *values = json_array();
        for (uint64_t i = 0; i < t.dims[0]; i++)
            json_array_append_new(values, tool_json_num((double)row[i]));
        json_object_set_new(out, "tensor", tensor_json(&t));
        json_object_set_new(out, "row", json_integer(q->row));
        json_object_set_new(out, "values", values);
    } else if (st == FOLIO_OK) {
        printf("%s, row %lld of type %s:\n", t.name, q->row, t.type);
        for (uint64_t i = 0; i < t.dims[0]; i++)
            printf("%.9g%c", (double)row[i],
                   i % 8 == 7 || i + 1 == t.dims[0] ? '\n' : ' ');
    }
    free(row);
    return st;
}

int cl_info_model(const model_query *q)
{
    tool_log tlog = {.quiet = q->json};
    folio_log log = tool_log_to(&tlog, FOLIO_LOG_INFO);
    folio_model_file *f = NULL;
    json_t *out = json_object();
    folio_status st = folio_model_file_open(q->path, &log, &f);
    if (st == FOLIO_OK && q->json) {
        json_object_set_new(out, "file",
                            tool_json_text(q->path, strlen(q->path)));
        if (!q->tensor)
            json_object_set_new(out, "metadata", meta_json(f));
        if (q->tensors)
            json_object_set_new(out, "tensors", tensors_json(f));
    } else if (st == FOLIO_OK) {
        if (!q->tensor)
            print_meta(f);
        if (q->tensors)
            print_tensors(f);
    }
    if (st == FOLIO_OK && q->tensor)
        st = show_row(f, q, out);
    folio_model_file_close(&f);
    if (st != FOLIO_OK && q->json)
        tool_json_error(folio_status_name(st),
                        tlog.error[0] ? tlog.error : folio_status_text(st));
    else if (st == FOLIO_OK && q->json && !tool_json_print(json_incref(out))) {
        st = FOLIO_E_IO;
        fprintf(stderr, "%s: stdout could not be written\n", tool_name);
    }
    json_decref(out);
    return tool_exit_status(st);
}
