/* text/pre.c: the table of pre-tokenizer kinds and their matching by PCRE2
 * (just-in-time compiled where the platform allows, else interpreted; both
 * keep their backtracking on the heap or in a bounded stack). */
#include "text/pre.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

/* White space by Unicode's White_Space property. PCRE2's \s adds U+180E, which
 * has not been a space since Unicode 6.3. */
#define WS                                                                     \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"           \
    "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define S_CLASS "[" WS "]"
#define OTHER   "[^" WS "\\p{L}\\p{N}]"
/* White space up to the last one before a word, which goes with the word. */
#define SPACES S_CLASS "+(?![^" WS "])|" S_CLASS "+"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?" OTHER "+|" SPACES
/* What Llama 3 and Qwen 2 share; they differ in how digits are grouped. */
#define TIKTOKEN(digits)                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits       \
    "| ?" OTHER "+[\\r\\n]*|" S_CLASS "*[\\r\\n]+|" SPACES

static const folio_pre_kind kinds[] = {
    {"gpt-2 default phi-2", false, false, {GPT2}},
    /* Every digit apart, then GPT-2's pattern on what lies between. */
    {"smollm starcoder refact", false, false, {"\\p{N}", GPT2}},
    {"llama-bpe llama3 llama-v3", true, true, {TIKTOKEN("\\p{N}{1,3}")}},
    {"qwen2 deepseek-r1-qwen", false, false, {TIKTOKEN("\\p{N}")}},
};

struct folio_pre {
    pcre2_code *stages[FOLIO_PRE_MAX_STAGES];
    size_t n_stages;
    folio_log log;
};

struct folio_pre_work {
    pcre2_match_data *match;
    pcre2_match_context *ctx;
};

const folio_pre_kind *folio_pre_find(const char *name, size_t n)
{
    for (size_t i = 0; i < FOLIO_COUNT(kinds); i++) {
        const char *p = kinds[i].names;
        while (*p) {
            size_t len = strcspn(p, " ");
            if (len == n && memcmp(p, name, n) == 0)
                return &kinds[i];
            p += len + (p[len] == ' ');
        }
    }
    return NULL;
}

void folio_pre_names(char *out, size_t cap)
{
    size_t at = 0;
    for (size_t i = 0; i < FOLIO_COUNT(kinds); i++)
        for (const char *p = kinds[i].names; *p; p++) {
            const char *sep = p == kinds[i].names && i ? ", " : "";
            for (; *sep && at + 1 < cap; sep++)
                out[at++] = *sep;
            if (*p == ' ' && at + 1 < cap)
                out[at++] = ',';
            if (at + 1 < cap)
                out[at++] = *p;
        }
    if (cap)
        out[at] = '\0';
}

folio_status folio_pre_open(const folio_pre_kind *kind, const folio_log *log,
                            folio_pre **out)
{
    folio_status st = FOLIO_OK;
    folio_pre *pre = folio_calloc(1, sizeof *pre);
    if (!pre)
        return folio_fail(log, FOLIO_E_NOMEM,
                          "tokenizer: no memory for the pre-tokenizer");
    if (log)
        pre->log = *log;
    for (size_t i = 0; i < FOLIO_PRE_MAX_STAGES && kind->patterns[i]; i++) {
        int err;
        PCRE2_SIZE at;
        pcre2_code *code = pcre2_compile(
            (PCRE2_SPTR)kind->patterns[i], PCRE2_ZERO_TERMINATED,
            PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &err, &at, NULL);
        if (!code) {
            PCRE2_UCHAR text[128];
            pcre2_get_error_message(err, text, sizeof text);
            st = folio_fail(log, FOLIO_E_INTERNAL,
                            "pre-tokenizer %s, pattern %zu: %s at %zu",
                            kind->names, i, (char *)text, (size_t)at);
            goto fail;
        }
        pre->stages[pre->n_stages++] = code;
        /* Without JIT support matching is interpreted: slower, the same. */
        (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    }
    *out = pre;
    return FOLIO_OK;
fail:
    folio_pre_close(&pre);
    return st;
}

void folio_pre_close(folio_pre **pre)
{
    if (!*pre)
        return;
    for (size_t i = 0; i < (*pre)->n_stages; i++)
        pcre2_code_free((*pre)->stages[i]);
    FOLIO_FREE(*pre);
}

folio_status folio_pre_work_open(size_t n_max, folio_pre_work **out)
{
    folio_pre_work *w = folio_calloc(1, sizeof *w);
    if (!w)
        return FOLIO_E_NOMEM;
    w->match = pcre2_match_data_create(1, NULL);
    w->ctx = pcre2_match_context_create(NULL);
    if (!w->match || !w->ctx) {
        folio_pre_work_close(&w);
        return FOLIO_E_NOMEM;
    }
    /* The patterns back off at most once over a run of one class, so steps and
     * memory are linear in the text; more is a defect, not a long text. */
    size_t steps = FOLIO_MIN(n_max, (size_t)100000000) * 16 + 1000000;
    pcre2_set_match_limit(w->ctx, (uint32_t)steps);
    pcre2_set_depth_limit(w->ctx, (uint32_t)steps);
    pcre2_set_heap_limit(w->ctx, 256 * 1024); /* KiB */
    *out = w;
    return FOLIO_OK;
}

void folio_pre_work_close(folio_pre_work **w)
{
    if (!*w)
        return;
    pcre2_match_data_free((*w)->match);
    pcre2_match_context_free((*w)->ctx);
    FOLIO_FREE(*w);
}

/* The first match of a stage at or after `from`; *found false when none. */
static folio_status find_match(const folio_pre *pre, folio_pre_work *w,
                               size_t stage, const char *s, size_t n,
                               size_t from, size_t *begin, size_t *end,
                               bool *found)
{
    if (stage >= FOLIO_COUNT(pre->stages))
        return FOLIO_E_INTERNAL;
    const pcre2_code *code = pre->stages[stage];
    int rc = pcre2_match(code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK,
                         w->match, w->ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)s, n, from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->match, w->ctx);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH)
        return FOLIO_OK;
    if (rc < 0) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(rc, text, sizeof text);
        return folio_fail(&pre->log,
                          rc == PCRE2_ERROR_NOMEMORY ? FOLIO_E_NOMEM
                                                     : FOLIO_E_INTERNAL,
                          "pre-tokenizer pattern %zu at byte %zu of %zu: %s",
                          stage, from, n, (char *)text);
    }
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(w->match);
    *begin = at[0];
    *end = at[1];
    if (at[1] <= at[0])
        return folio_fail(&pre->log, FOLIO_E_INTERNAL,
                          "pre-tokenizer pattern %zu matches nothing at byte "
                          "%zu of %zu",
                          stage, (size_t)at[0], n);
    return FOLIO_OK;
}

/* Depth of the recursion: the stages of a kind, at most 4. */
static folio_status split_stage(const folio_pre *pre, folio_pre_work *w,
                                size_t stage, const char *s, size_t n,
                                folio_pre_emit emit, void *user)
{
    if (n == 0)
        return FOLIO_OK;
    if (stage == pre->n_stages)
        return emit(user, s, n);
    for (size_t at = 0; at < n;) {
        size_t begin = n, end = n;
        bool found;
        FOLIO_RETURN_IF(
            find_match(pre, w, stage, s, n, at, &begin, &end, &found));
        FOLIO_RETURN_IF(
            split_stage(pre, w, stage + 1, s + at, begin - at, emit, user));
        FOLIO_RETURN_IF(
            split_stage(pre, w, stage + 1, s + begin, end - begin, emit, user));
        at = end;
    }
    return FOLIO_OK;
}

folio_status folio_pre_split(const folio_pre *pre, folio_pre_work *w,
                             const char *s, size_t n, folio_pre_emit emit,
                             void *user)
{
    return split_stage(pre, w, 0, s, n, emit, user);
}
