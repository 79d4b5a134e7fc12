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
/* Contractions in either case. */
#define CONTRACTED "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
/* What Llama 3 and Qwen share; they differ in how digits are grouped and what
 * a word is. */
#define TIKTOKEN(letter, digits)                                               \
    CONTRACTED "|[^\\r\\n\\p{L}\\p{N}]?[" letter "]+|" digits "| ?[^" WS       \
               "\\p{N}" letter "]+[\\r\\n]*|" S_CLASS "*[\\r\\n]+|" SPACES
/* The newest of OpenAI's: a word ends where capitals begin. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASE_WORDS(tail, digits)                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" tail                          \
    "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" tail "|" digits "| ?" OTHER  \
    "+[\\r\\n/]*|" S_CLASS "*[\\r\\n]+|" SPACES
/* DeepSeek's: letters that have case, as of its Unicode version; its
 * punctuation; Chinese, what lies below it, and Korean. */
#define CASED                                                                  \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}"              \
    "\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}"                      \
    "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}"               \
    "\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}"                       \
    "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}"                      \
    "\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}"                  \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"                \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}"                \
    "\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}"                \
    "\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}"                 \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}"                          \
    "\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"                          \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"                \
    "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}"                \
    "\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}"                           \
    "\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"                           \
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}"                          \
    "\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}"                 \
    "\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"                          \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}"                 \
    "\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}"                \
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"                \
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}"                \
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}"          \
    "\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"          \
    "\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_PUNCT                                                         \
    "!-/"                                                                      \
    ":-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-"   \
    "\\x{3002}"
#define DEEPSEEK_CJK                                                           \
    "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* ASCII punctuation that Unicode files under symbols. */
#define SYMBOLS "$+<=>^~|"

static const folio_pre_kind kinds[] = {
    {"gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat exaone4",
     false,
     false,
     {GPT2}},
    /* What runners of such files agreed on where none is named. */
    {"default",
     false,
     false,
     {"[\\p{P}" SYMBOLS "]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    /* Every digit apart, then GPT-2's pattern on what lies between. */
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
     false,
     false,
     {"\\p{N}", GPT2}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     true,
     true,
     {TIKTOKEN("\\p{L}", "\\p{N}{1,3}")}},
    {"dbrx smaug-bpe chatglm-bpe",
     false,
     false,
     {TIKTOKEN("\\p{L}", "\\p{N}{1,3}")}},
    {"glm4", false, true, {TIKTOKEN("\\p{L}", "\\p{N}{1,3}")}},
    {"qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez grok-2 solar-open",
     false,
     false,
     {TIKTOKEN("\\p{L}", "\\p{N}")}},
    {"qwen35", false, false, {TIKTOKEN("\\p{L}\\p{M}", "\\p{N}")}},
    {"deepseek-llm",
     false,
     false,
     {"[\\r\\n]", S_CLASS "?[" CASED "]+", S_CLASS "?[" DEEPSEEK_PUNCT "]+",
      S_CLASS "+$", DEEPSEEK_CJK, "\\p{N}"}},
    {"deepseek-coder",
     false,
     false,
     {"[\\r\\n]", S_CLASS "?\\p{L}+", S_CLASS "?\\p{P}+", DEEPSEEK_CJK,
      "\\p{N}"}},
    {"deepseek-v3 hunyuan-dense joyai-llm",
     false,
     false,
     {"\\p{N}{1,3}",
      "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
      "[!-/:-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
      "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" S_CLASS "*[\\r\\n]+|" SPACES}},
    {"falcon",
     false,
     false,
     {"[\\p{P}" SYMBOLS "`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"gpt-4o llama4 kanana2 minimax-m2",
     false,
     false,
     {CASE_WORDS(CONTRACTED "?", "\\p{N}{1,3}")}},
    {"tekken", true, true, {CASE_WORDS("", "\\p{N}")}},
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

/* Depth of the recursion: the stages of a kind, at most 6. */
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
