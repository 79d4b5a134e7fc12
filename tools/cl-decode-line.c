#define _POSIX_C_SOURCE 200809L
/* cl-decode-line.c: a request as a JSON object on one line. Every field that
 * would change the answer is honoured or refused by name. */
#include "cl-decode-line.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Says why the line is bad; the first reason stays. */
static void bad(request_line *l, folio_status st, const char *fmt, ...)
    FOLIO_PRINTF(3, 4);
static void bad(request_line *l, folio_status st, const char *fmt, ...)
{
    va_list ap;
    if (l->bad != FOLIO_OK)
        return;
    l->bad = st;
    va_start(ap, fmt);
    vsnprintf(l->why, sizeof l->why, fmt, ap);
    va_end(ap);
}

/* Completions of one request; their room is taken at once. */
enum { MAX_N = 1024 };

typedef enum field_kind { F_INT, F_SEED, F_NUM, F_BOOL, F_OTHER } field_kind;

/* Fields that go into a request_line as they are. Ranges finer than the type's
 * are the engine's to check, so that they are said in one place. */
static const struct {
    const char *name;
    field_kind kind;
    size_t at;
} fields[] = {
#define REQ(f) offsetof(request_line, req.f)
    {"n_predict", F_INT, REQ(max_new)},
    {"n", F_INT, REQ(n)},
    {"priority", F_INT, REQ(priority)},
    {"ignore_eos", F_BOOL, REQ(ignore_eos)},
    {"temperature", F_NUM, REQ(sample.temperature)},
    {"top_k", F_INT, REQ(sample.top_k)},
    {"top_p", F_NUM, REQ(sample.top_p)},
    {"min_p", F_NUM, REQ(sample.min_p)},
    {"seed", F_SEED, REQ(sample.seed)},
    {"typical_p", F_NUM, REQ(sample.typical_p)},
    {"repetition_penalty", F_NUM, REQ(sample.repetition_penalty)},
    {"penalty_last_n", F_INT, REQ(sample.penalty_last_n)},
    {"presence_penalty", F_NUM, REQ(sample.presence_penalty)},
    {"frequency_penalty", F_NUM, REQ(sample.frequency_penalty)},
    {"min_new_tokens", F_INT, REQ(sample.min_new_tokens)},
    {"dry_multiplier", F_NUM, REQ(sample.dry_multiplier)},
    {"dry_base", F_NUM, REQ(sample.dry_base)},
    {"dry_allowed_length", F_INT, REQ(sample.dry_allowed_length)},
    {"dry_last_n", F_INT, REQ(sample.dry_last_n)},
    {"logprobs", F_INT, REQ(logprobs)},
    {"prompt_logprobs", F_BOOL, REQ(prompt_logprobs)},
#undef REQ
    {"echo", F_OTHER, 0},
    {"stop", F_OTHER, 0},
    {"stop_ids", F_OTHER, 0},
    {"banned", F_OTHER, 0},
    {"dry_breakers", F_OTHER, 0},
    {"logit_bias", F_OTHER, 0},
    {"id", F_OTHER, 0},
    {"prompt", F_OTHER, 0},
    {"prompt_ids", F_OTHER, 0},
    {"salt", F_OTHER, 0},
    {"deadline_ms", F_OTHER, 0},
    {"arrive_ms", F_OTHER, 0},
    {"cancel_ms", F_OTHER, 0},
};

/* JSON's whole numbers end at 2^63 - 1 here; a string of digits goes on. */
static bool take_seed(const json_t *v, uint64_t *out)
{
    const char *at = json_string_value(v);
    if (!json_is_string(v)) {
        *out = (uint64_t)json_integer_value(v);
        return json_is_integer(v) && json_integer_value(v) >= 0;
    }
    return strlen(at) == json_string_length(v) && tool_parse_u64(at, out);
}

static void take_plain(request_line *l, const char *name, field_kind kind,
                       size_t at, const json_t *v)
{
    char *to = (char *)l + at;
    const json_int_t i = json_integer_value(v);
    switch (kind) {
    case F_INT:
        if (!json_is_integer(v) || i < INT32_MIN || i > INT32_MAX)
            bad(l, FOLIO_E_INVAL, "%s is not a whole number of 32 bits", name);
        else
            *(int32_t *)(void *)to = (int32_t)i;
        break;
    case F_SEED:
        if (!take_seed(v, (uint64_t *)(void *)to))
            bad(l, FOLIO_E_INVAL,
                "%s is not a whole number from 0 to 2^63 - 1, nor a string of "
                "digits up to 2^64 - 1",
                name);
        break;
    case F_NUM:
        if (!json_is_number(v))
            bad(l, FOLIO_E_INVAL, "%s is not a number", name);
        else
            *(float *)(void *)to = (float)json_number_value(v);
        break;
    case F_BOOL:
        if (!json_is_boolean(v))
            bad(l, FOLIO_E_INVAL, "%s is not true or false", name);
        else
            *(int32_t *)(void *)to = json_is_true(v);
        break;
    case F_OTHER:
        break;
    }
}

/* Milliseconds of `name`, or `absent`. */
static double take_ms(request_line *l, const json_t *j, const char *name,
                      double absent)
{
    const json_t *v = json_object_get(j, name);
    const double ms = json_number_value(v);
    if (!v)
        return absent;
    if (json_is_number(v) && ms >= 0.0 && ms <= 1e12)
        return ms;
    bad(l, FOLIO_E_INVAL, "%s is not a number from 0 to 1e12", name);
    return absent;
}

static folio_status take_text(app *a, request_line *l, const json_t *v)
{
    const char *text = json_string_value(v);
    const size_t n = json_string_length(v);
    size_t n_ids = 0;
    if (!json_is_string(v)) {
        bad(l, FOLIO_E_INVAL, "prompt is not a string");
        return FOLIO_OK;
    }
    uint32_t flags = a->o.no_special ? 0 : FOLIO_ENCODE_PARSE_SPECIAL;
    l->prompt = malloc((n + 1) * sizeof *l->prompt);
    if (!l->prompt)
        return FOLIO_E_NOMEM;
    folio_status st =
        folio_tokenizer_encode(a->tok, text, n, flags | FOLIO_ENCODE_ADD_BOS,
                               l->prompt, n + 1, &n_ids);
    if (st == FOLIO_E_NOMEM)
        return st;
    if (st != FOLIO_OK)
        bad(l, st, "the prompt has no ids: %s", folio_status_text(st));
    l->req.n_prompt = (int32_t)n_ids;
    return FOLIO_OK;
}

/* A list of ids; *out is owned by the caller. */
static folio_status take_ids(request_line *l, const char *name, const json_t *v,
                             int32_t **out, int32_t *out_n)
{
    const size_t n = json_array_size(v);
    if (!json_is_array(v)) {
        bad(l, FOLIO_E_INVAL, "%s is not a list", name);
        return FOLIO_OK;
    }
    *out = malloc((n + 1) * sizeof **out);
    if (!*out)
        return FOLIO_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        const json_int_t id = json_integer_value(x);
        if (!json_is_integer(x) || id < 0 || id > INT32_MAX) {
            bad(l, FOLIO_E_INVAL, "%s[%zu] is not an id", name, i);
            return FOLIO_OK;
        }
        (*out)[i] = (int32_t)id;
    }
    *out_n = (int32_t)n;
    return FOLIO_OK;
}

/* {"id": bias, ...}, as OpenAI writes it. */
static folio_status take_bias(request_line *l, json_t *v)
{
    const char *key;
    json_t *x;
    size_t n = 0;
    folio_logit_bias *to;
    if (!json_is_object(v)) {
        bad(l, FOLIO_E_INVAL, "logit_bias is not an object of ids");
        return FOLIO_OK;
    }
    l->lists[3] = to = malloc((json_object_size(v) + 1) * sizeof *to);
    if (!to)
        return FOLIO_E_NOMEM;
    json_object_foreach(v, key, x)
    {
        long long id;
        if (!tool_parse_int(key, 0, INT32_MAX, &id) || !json_is_number(x))
            bad(l, FOLIO_E_INVAL,
                "logit_bias: \"%.40s\" is no id with a number", key);
        else
            to[n++] =
                (folio_logit_bias){(int32_t)id, (float)json_number_value(x)};
    }
    l->req.sample.logit_bias = to;
    l->req.sample.n_logit_bias = (int32_t)n;
    return FOLIO_OK;
}

/* A string, or a list of them: pointers and lengths in one piece of memory. */
static folio_status take_stop(request_line *l, const json_t *v)
{
    const bool one = json_is_string(v);
    const size_t n = one ? 1 : json_array_size(v);
    if (!one && !json_is_array(v)) {
        bad(l, FOLIO_E_INVAL, "stop is neither a string nor a list of them");
        return FOLIO_OK;
    }
    const char **at = malloc((n + 1) * (sizeof(const char *) + sizeof(size_t)));
    if (!at)
        return FOLIO_E_NOMEM;
    size_t *len = (size_t *)(void *)(at + n);
    l->lists[2] = at;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = one ? v : json_array_get(v, i);
        if (!json_is_string(x))
            bad(l, FOLIO_E_INVAL, "stop[%zu] is not a string", i);
        at[i] = json_string_value(x);
        len[i] = json_string_length(x);
    }
    l->req.stop = at;
    l->req.stop_bytes = len;
    l->req.n_stop = (int32_t)n;
    return FOLIO_OK;
}

static folio_status take_lists(request_line *l, json_t *j)
{
    folio_sample_params *s = &l->req.sample;
    folio_status st = FOLIO_OK;
    json_t *v;
    int32_t *ids = NULL;
    if ((v = json_object_get(j, "stop_ids"))) {
        st = take_ids(l, "stop_ids", v, &ids, &l->req.n_stop_ids);
        l->req.stop_ids = l->lists[0] = ids;
    }
    if (st == FOLIO_OK && (v = json_object_get(j, "banned"))) {
        ids = NULL;
        st = take_ids(l, "banned", v, &ids, &s->n_banned);
        s->banned = l->lists[1] = ids;
    }
    if (st == FOLIO_OK && (v = json_object_get(j, "dry_breakers"))) {
        ids = NULL;
        st = take_ids(l, "dry_breakers", v, &ids, &s->n_dry_breakers);
        s->dry_breakers = l->lists[4] = ids;
    }
    if (st == FOLIO_OK && (v = json_object_get(j, "stop")))
        st = take_stop(l, v);
    if (st == FOLIO_OK && (v = json_object_get(j, "logit_bias")))
        st = take_bias(l, v);
    return st;
}

static folio_status take_prompt(app *a, request_line *l, const json_t *j)
{
    const json_t *text = json_object_get(j, "prompt");
    const json_t *ids = json_object_get(j, "prompt_ids");
    if (!text == !ids) {
        bad(l, FOLIO_E_INVAL, "%s",
            text ? "prompt and prompt_ids exclude each other"
                 : "neither prompt nor prompt_ids is given");
        return FOLIO_OK;
    }
    folio_status st =
        text ? take_text(a, l, text)
             : take_ids(l, "prompt_ids", ids, &l->prompt, &l->req.n_prompt);
    l->req.prompt = l->prompt;
    return st;
}

static void take_salt(request_line *l, const json_t *v)
{
    if (!v)
        return;
    if (!json_is_string(v))
        bad(l, FOLIO_E_INVAL, "salt is not a string");
    l->req.salt = json_string_value(v);
    l->req.salt_bytes = json_string_length(v);
}

static void take_echo(request_line *l, const json_t *v)
{
    if (v && !json_is_boolean(v))
        bad(l, FOLIO_E_INVAL, "echo is not true or false");
    l->echo = json_is_true(v);
}

static void take_fields(request_line *l, json_t *j)
{
    const char *name;
    json_t *v;
    json_object_foreach(j, name, v)
    {
        size_t i = 0;
        while (i < sizeof fields / sizeof fields[0] &&
               strcmp(fields[i].name, name))
            i++;
        if (i == sizeof fields / sizeof fields[0])
            bad(l, FOLIO_E_INVAL, "the field %.80s is not known", name);
        else
            take_plain(l, name, fields[i].kind, fields[i].at, v);
    }
}

folio_status line_parse(app *a, const char *text, size_t n, size_t number,
                        request_line *l)
{
    json_error_t err;
    folio_status st = FOLIO_OK;
    memset(l, 0, sizeof *l);
    folio_engine_request_default(&l->req);
    /* The command line says what a line does not. */
    l->req.max_new = a->o.have_n ? (int32_t)a->o.n : -1;
    l->req.ignore_eos = a->o.ignore_eos;
    l->req.sample.temperature = (float)a->o.temp;
    l->req.sample.top_k = (int32_t)a->o.top_k;
    l->req.sample.top_p = (float)a->o.top_p;
    l->req.sample.min_p = (float)a->o.min_p;
    l->req.sample.seed = a->o.seed;
    json_t *j =
        json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &err);
    if (!json_is_object(j)) {
        bad(l, FOLIO_E_FORMAT, "line %zu is not a JSON object%s%.300s", number,
            j ? "" : ": ", j ? "" : err.text);
        json_decref(j);
        return FOLIO_OK;
    }
    l->id = json_incref(json_object_get(j, "id"));
    take_fields(l, j);
    l->arrive_ms = take_ms(l, j, "arrive_ms", 0.0);
    l->cancel_ms = take_ms(l, j, "cancel_ms", -1.0);
    l->req.deadline_ns = (uint64_t)(take_ms(l, j, "deadline_ms", 0.0) * 1e6);
    if (json_object_get(j, "deadline_ms") && l->req.deadline_ns == 0)
        l->req.deadline_ns = 1; /* at once */
    if (l->req.max_new < 1 && l->req.max_new != -1)
        bad(l, FOLIO_E_INVAL,
            "n_predict is %d, it must be at least 1, or -1: as long as there "
            "is room",
            l->req.max_new);
    if (l->req.n < 1 || l->req.n > MAX_N)
        bad(l, FOLIO_E_INVAL, "n is %d, not from 1 to %d", l->req.n, MAX_N);
    st = take_prompt(a, l, j);
    if (st == FOLIO_OK)
        st = take_lists(l, j);
    take_salt(l, json_object_get(j, "salt"));
    take_echo(l, json_object_get(j, "echo"));
    l->kept = j;
    if (st == FOLIO_OK && l->bad == FOLIO_OK) {
        l->out = calloc((size_t)l->req.n, sizeof *l->out);
        l->n_open = l->req.n;
        st = l->out ? FOLIO_OK : FOLIO_E_NOMEM;
    }
    return st;
}

void line_free(request_line *l)
{
    for (int32_t i = 0; l->out && i < l->req.n; i++) {
        free(l->out[i].ids);
        free(l->out[i].text);
        json_decref(l->out[i].scores);
    }
    free(l->out);
    free(l->prompt);
    for (size_t i = 0; i < sizeof l->lists / sizeof l->lists[0]; i++)
        free(l->lists[i]);
    json_decref(l->prompt_scores);
    json_decref(l->kept);
    json_decref(l->id);
}
