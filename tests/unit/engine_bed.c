/* unit/engine_bed.c: see engine_bed.h. */
#include "unit/engine_bed.h"

#include <string.h>

#include "unit/text_fixture.h"

/* 0..25 a-z, 26..51 A-Z, a blank, a dot, the four bytes of an emoji, words, and
 * the end. */
static folio_tokenizer *open_vocab(void)
{
    static const char *const words[] = {" ",    ".",    "\xf0", "\x9f",
                                        "\x98", "\x80", "gam",  "ma",
                                        "beta", "e g",  "ab"};
    fixture *f = fixture_bytes("gpt-2");
    f->desc.n_vocab = 0;
    for (int i = 0; i < 52; i++) {
        const char c = (char)(i < 26 ? 'a' + i : 'A' + i - 26);
        fixture_add(f, &c, 1, FOLIO_TOKEN_NORMAL);
    }
    for (size_t i = 0; i < FOLIO_COUNT(words); i++)
        fixture_add(f, words[i], strlen(words[i]), FOLIO_TOKEN_NORMAL);
    f->desc.eos = fixture_add(f, "<|im_end|>", 10, FOLIO_TOKEN_CONTROL);
    cr_assert_eq(f->desc.n_vocab, TINY_VOCAB);
    folio_tokenizer *tok = fixture_open(f);
    free(f);
    return tok;
}

void eng_init(eng *b, const char *select, bool text)
{
    memset(b, 0, sizeof *b);
    tiny_init(&b->tiny);
    b->tiny.ctx = 1024;
    tiny_save(&b->tiny);
    b->dev = tiny_device(&b->tiny, select, 0);
    if (!b->dev) {
        tiny_fini(&b->tiny);
        return;
    }
    b->model = tiny_open(&b->tiny, b->dev);
    if (text)
        b->tok = open_vocab();
    folio_engine_params_default(&b->p);
    b->p.block_size = 4;
    b->p.kv_type = FOLIO_KV_F32;
    b->p.deterministic = 1;
    b->p.audit = 1;
    /* What comes about shall not depend on how fast the machine is. */
    b->p.pace = 0;
    b->p.log = tiny_log(&b->tiny);
}

void eng_fini(eng *b)
{
    folio_engine_close(&b->e);
    folio_tokenizer_close(&b->tok);
    folio_model_close(&b->model);
    folio_device_close(&b->dev);
    tiny_fini(&b->tiny);
    free(b->a);
}

void eng_open(eng *b)
{
    folio_engine_close(&b->e);
    eng_forget(b);
    b->n_steps = 0;
    TINY_OK(folio_engine_open(b->model, b->tok, &b->p, &b->e));
}

void eng_forget(eng *b)
{
    b->n = 0;
}

uint64_t eng_submit_as(eng *b, const folio_engine_request *r)
{
    uint64_t id = 0;
    const folio_status st = folio_engine_submit(b->e, r, &id);
    cr_assert_eq(st, FOLIO_OK, "submit: %s: %s", folio_status_name(st),
                 b->tiny.ear.err);
    cr_assert_neq(id, 0);
    return id;
}

uint64_t eng_submit(eng *b, const int32_t *prompt, int32_t n, int32_t n_new)
{
    folio_engine_request r;
    folio_engine_request_default(&r);
    r.prompt = prompt;
    r.n_prompt = n;
    r.max_new = n_new;
    r.ignore_eos = 1;
    return eng_submit_as(b, &r);
}

eng_answer *eng_find(eng *b, uint64_t request, int32_t completion)
{
    for (int32_t i = 0; i < b->n; i++)
        if (b->a[i].request == request && b->a[i].completion == completion)
            return &b->a[i];
    if (b->n == b->cap) {
        b->cap = 2 * b->cap + 16;
        b->a = realloc(b->a, (size_t)b->cap * sizeof *b->a);
        cr_assert_not_null(b->a);
    }
    eng_answer *a = &b->a[b->n++];
    memset(a, 0, sizeof *a);
    a->request = request;
    a->completion = completion;
    return a;
}

void eng_note(eng *b, const folio_event *ev)
{
    eng_answer *a = eng_find(b, ev->request, ev->completion);
    cr_assert_not(a->ended, "request %llu: an event after its last one",
                  (unsigned long long)ev->request);
    cr_assert_lt(a->n_text + ev->n_text, (size_t)ENG_MAX_TEXT);
    if (ev->n_text)
        memcpy(a->text + a->n_text, ev->text, ev->n_text);
    a->n_text += ev->n_text;
    a->text[a->n_text] = '\0';
    if (ev->kind == FOLIO_EVENT_TOKEN) {
        cr_assert_lt(a->n, ENG_MAX_NEW);
        cr_assert_eq(ev->index, a->n);
        if (a->n == 0)
            a->first_at = b->n_steps;
        a->ids[a->n++] = ev->tok;
        return;
    }
    cr_assert_eq(ev->kind, FOLIO_EVENT_FINISHED);
    cr_assert_eq(ev->n_new, a->n);
    a->ended = true;
    a->ended_at = b->n_steps;
    a->end = *ev;
    a->end.text = NULL;
}

folio_status eng_try(eng *b, size_t *n)
{
    folio_event ev[128];
    *n = 0;
    const folio_status st = folio_engine_step(b->e, ev, FOLIO_COUNT(ev), n);
    if (st != FOLIO_OK)
        return st;
    for (size_t i = 0; i < *n; i++)
        eng_note(b, &ev[i]);
    b->n_steps++;
    return FOLIO_OK;
}

size_t eng_step(eng *b)
{
    size_t n;
    const folio_status st = eng_try(b, &n);
    cr_assert_eq(st, FOLIO_OK, "step: %s: %s", folio_status_name(st),
                 b->tiny.ear.err);
    return n;
}

void eng_drain(eng *b, int max_steps)
{
    int n = 0;
    while (!folio_engine_is_idle(b->e)) {
        cr_assert_lt(n++, max_steps, "did not drain in %d steps", max_steps);
        eng_step(b);
    }
}

folio_engine_stats eng_stats(const eng *b)
{
    folio_engine_stats s = {.size = sizeof s};
    folio_engine_get_stats(b->e, &s);
    return s;
}

void eng_at_rest(eng *b)
{
    const folio_engine_stats s = eng_stats(b);
    cr_assert(folio_engine_is_idle(b->e));
    cr_assert_eq(s.blocks_held, 0, "%d blocks held", s.blocks_held);
    cr_assert_eq(s.blocks_free + s.blocks_cached, b->e->p.n_blocks);
    cr_assert_eq(s.n_in_flight, 0);
    cr_assert_eq(s.n_waiting, 0);
    cr_assert_eq(s.n_running, 0);
}
