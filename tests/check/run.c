/* run.c: the course of one problem: the reference once, then every variant of
 * the device's side twice, in parts and with bad arguments. Knows of the ops
 * only that attention plans its work. */
#include "check/check.h"

#include <stdio.h>
#include <string.h>

#include "base/half.h"

/* ---- what is known so far --------------------------------------------------
 */

ck_tally *ck_tally_of(ck_ctx *c, const folio_variant *var)
{
    return &c->tally[var - c->rows];
}

void ck_bad(ck_ctx *c, const folio_variant *var, unsigned kind,
            const ck_problem *p, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ck_tally_of(c, var)->bad |= kind;
    if (!c->quiet)
        printf("\n  FAILED: %s: %s: %s", var->name, p->name, text);
}

void ck_skip(ck_ctx *c, const char *name, const char *reason)
{
    char text[sizeof c->refusal->text];
    snprintf(text, sizeof text, "%s: %s", name, reason);
    for (int i = 0; i < c->n_refusals; i++) {
        if (strcmp(c->refusal[i].text, text) == 0) {
            c->refusal[i].cases++;
            return;
        }
    }
    ck_refusal *more = folio_realloc(c->refusal, (size_t)c->n_refusals + 1,
                                     sizeof *c->refusal);
    if (!more)
        return;
    c->refusal = more;
    ck_refusal *r = &c->refusal[c->n_refusals++];
    memcpy(r->text, text, sizeof r->text);
    r->cases = 1;
}

static bool on_this_side(const ck_ctx *c, const folio_variant *var)
{
    bool host = folio_device_is_host(c->dev);
    return var->where == (host ? FOLIO_ON_HOST : FOLIO_ON_CL);
}

/* Whether a variant's name ends with _ and `pick`. */
static bool is_called(const folio_variant *var, const char *pick)
{
    size_t n = strlen(var->name), end = strlen(pick);
    return n > end && var->name[n - end - 1] == '_' &&
           strcmp(var->name + n - end, pick) == 0;
}

/* On the host device every variant runs everything: nothing is built. */
static bool picked(const ck_ctx *c, const ck_problem *p,
                   const folio_variant *var)
{
    uint64_t caps = folio_device_caps(c->dev);
    if (var->where == FOLIO_ON_HOST || strcmp(p->pick, "all") == 0 ||
        c->rows != folio_variants(&(size_t){0}))
        return true;
    for (size_t i = 0; i < c->n_rows; i++) {
        const folio_variant *v = &c->rows[i];
        if (v->op == p->op && v->where == var->where && is_called(v, p->pick) &&
            (!(v->needs & ~caps) || (v->flags & FOLIO_VAR_EMULATED)))
            return v == var;
    }
    return (var->flags & FOLIO_VAR_FLOOR) != 0;
}

/* A part of the comma-separated list is a part of one of the names. */
static bool listed(const char *list, const char *name, const char *other)
{
    char part[100];
    for (const char *p = list; p && *p;) {
        size_t n = strcspn(p, ",");
        snprintf(part, sizeof part, "%.*s", (int)n, p);
        if (n > 0 && (strstr(name, part) || strstr(other, part)))
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}

bool ck_selected(const ck_ctx *c, const folio_variant *var, const char *name)
{
    return (!c->only || listed(c->only, var->name, name)) &&
           !listed(c->without, var->name, "");
}

bool ck_wanted(const ck_ctx *c, folio_op_id op, const char *name)
{
    for (size_t i = 0; i < c->n_rows; i++)
        if (c->rows[i].op == op && on_this_side(c, &c->rows[i]) &&
            ck_selected(c, &c->rows[i], name))
            return true;
    return false;
}

/* ---- the reference ---------------------------------------------------------
 */

/* The host's last row of an op is its reference; where only time matters, the
 * first, which is quick, will do. */
static const folio_variant *reference_of(const ck_ctx *c, folio_op_id op)
{
    size_t n;
    const folio_variant *rows = folio_variants(&n), *found = NULL;
    for (size_t i = 0; i < n; i++)
        if (rows[i].op == op && rows[i].where == FOLIO_ON_HOST)
            found = found && c->bench ? found : &rows[i];
    return found;
}

static folio_status run_reference(ck_ctx *c, ck_problem *p)
{
    folio_status st = FOLIO_OK;
    folio_op *op = NULL;
    ck_result got = {0};
    unsigned bad = 0;
    char why[200] = "";
    ck_rng r = ck_rng_make(c->seed ^ 1, p->name);
    folio_op_params prm = {.deterministic = true, .exact = true};
    const folio_variant *ref = reference_of(c, p->op);
    if (!ref)
        return FOLIO_E_NOT_FOUND;
    FOLIO_TRY(ck_place(p, c->host, false, &r));
    FOLIO_TRY(folio_op_check_shape(c->host, p->op, &p->args));
    FOLIO_TRY(folio_variant_open(c->host, ref, &prm, &p->args, &op));
    ck_size_scratch(p, op);
    FOLIO_TRY(ck_place(p, c->host, false, &r));
    FOLIO_TRY(ck_upload(p, c->host_q));
    FOLIO_TRY(folio_op_run(op, c->host_q, &p->args));
    FOLIO_TRY(ck_download(p, c->host_q, &got, &bad, why, sizeof why));
    if (bad) {
        snprintf(c->log, sizeof c->log, "the reference %s", why);
        FOLIO_TRY(FOLIO_E_INTERNAL);
    }
    for (int i = 0; i < p->n_slots; i++)
        if (got.data[i])
            memcpy(p->slot[i].want, got.data[i], p->slot[i].bytes);
fail:
    ck_result_free(&got);
    folio_op_close(&op);
    ck_unplace(p);
    return st;
}

/* ---- one variant -----------------------------------------------------------
 */

typedef struct trial {
    ck_ctx *c;
    ck_problem *p;
    const folio_variant *var;
    folio_op *op;
    bool invariant;
    ck_rng rng;
    ck_result first;
    char why[400];
} trial;

static void status_bad(trial *t, const ck_problem *p, folio_status st,
                       const char *what)
{
    ck_bad(t->c, t->var, CK_BAD_STATUS, p, "%s: %s: %s", what,
           folio_status_name(st), t->c->log);
    if (st == FOLIO_E_DEVICE)
        t->c->dead = true;
}

void ck_size_scratch(ck_problem *p, const folio_op *op)
{
    for (int i = 0; i < p->n_slots; i++) {
        ck_slot *s = &p->slot[i];
        if (s->role != CK_SCRATCH)
            continue;
        s->align = 64;
        ck_slot_set(s, NULL, folio_op_scratch_bytes(op));
    }
}

/* Runs a placed problem from fresh contents. */
static bool run_once(trial *t, ck_problem *p, ck_result *out)
{
    unsigned bad = 0;
    folio_status st = ck_upload(p, t->c->q);
    if (st == FOLIO_OK)
        st = folio_op_run(t->op, t->c->q, &p->args);
    if (st == FOLIO_OK)
        st = ck_download(p, t->c->q, out, &bad, t->why, sizeof t->why);
    if (st != FOLIO_OK) {
        status_bad(t, p, st, "run");
        return false;
    }
    if (bad)
        ck_bad(t->c, t->var, bad, p, "%s", t->why);
    return true;
}

/* Plans, places and runs a problem other than the trial's own. */
static bool run_other(trial *t, ck_problem *p, ck_result *out)
{
    folio_status st = FOLIO_OK;
    if (p->op == FOLIO_OP_ATTN)
        st = ck_attn_plan(p, t->op);
    if (st == FOLIO_OK) {
        ck_size_scratch(p, t->op);
        st = ck_place(p, t->c->dev, t->c->exact_buffers, &t->rng);
    }
    if (st != FOLIO_OK) {
        status_bad(t, p, st, "place");
        return false;
    }
    return run_once(t, p, out);
}

static void judge_rows(trial *t)
{
    int64_t n = folio_op_count(t->p->op, &t->p->args);
    if (!t->invariant || n < 2 || t->p->op == FOLIO_OP_ADD)
        return;
    const int rows[] = {0, (int)n - 1, 1 + ck_below(&t->rng, (int32_t)n - 1)};
    for (size_t i = 0; i < (n > 2 ? FOLIO_COUNT(rows) : 2); i++) {
        ck_result got = {0};
        ck_problem *part = t->p->op == FOLIO_OP_ATTN
                               ? ck_attn_alone(t->p, rows[i])
                               : ck_problem_rows(t->p, rows[i], 1);
        if (run_other(t, part, &got) &&
            !ck_same_rows(t->p, &t->first, part, &got, rows[i], t->why,
                          sizeof t->why))
            ck_bad(t->c, t->var, CK_BAD_BATCH, t->p,
                   "row %d in the batch and alone: %s", rows[i], t->why);
        ck_result_free(&got);
        ck_problem_free(part);
    }
}

static void judge_places(trial *t)
{
    if (t->p->op != FOLIO_OP_ATTN || (t->var->flags & FOLIO_VAR_UNORDERED))
        return;
    ck_problem *moved = ck_attn_moved(t->p, &t->rng);
    ck_result got = {0}, out[2] = {{{0}}, {{0}}};
    if (run_other(t, moved, &got)) {
        for (int i = 0; i < t->p->n_slots; i++) {
            if (t->p->slot[i].role != CK_OUT)
                continue;
            out[0].data[i] = t->first.data[i];
            out[1].data[i] = got.data[i];
        }
        if (!ck_same(t->p, &out[0], &out[1], t->why, sizeof t->why))
            ck_bad(t->c, t->var, CK_BAD_PLACE, t->p,
                   "in other physical blocks: %s", t->why);
    }
    ck_result_free(&got);
    ck_problem_free(moved);
}

/* ---- bad arguments ---------------------------------------------------------
 */

static void expect_refusal(trial *t, const char *what, folio_status want)
{
    t->c->log[0] = '\0';
    folio_status st = folio_op_run(t->op, t->c->q, &t->p->args);
    if (st == FOLIO_OK || (want != FOLIO_OK && st != want))
        ck_bad(t->c, t->var, CK_BAD_REFUSAL, t->p, "%s gives %s, not %s", what,
               folio_status_name(st),
               want != FOLIO_OK ? folio_status_name(want) : "an error");
    else if (!t->c->log[0])
        ck_bad(t->c, t->var, CK_BAD_REFUSAL, t->p, "%s is refused in silence",
               what);
}

static void refuse_views(trial *t, ck_slot *s)
{
    char what[120];
    const folio_view good = *s->into;
    if (s->role == CK_SCRATCH && s->bytes == 0)
        return;
    if (s->align > 1 && s->role != CK_SCRATCH) {
        s->into->offset = good.offset + 1;
        snprintf(what, sizeof what, "%s at an odd offset", s->name);
        expect_refusal(t, what, FOLIO_E_INVAL);
    }
    s->into->offset = s->total + 64;
    snprintf(what, sizeof what, "%s behind its buffer", s->name);
    expect_refusal(t, what, FOLIO_E_RANGE);
    if (!s->optional) {
        *s->into = (folio_view){0};
        snprintf(what, sizeof what, "%s absent", s->name);
        expect_refusal(t, what, FOLIO_E_INVAL);
    }
    *s->into = good;
}

static void refuse_planes(trial *t, ck_slot *s)
{
    folio_buf *const good = *s->into_buf;
    const size_t offset = *s->into_offset;
    *s->into_buf = NULL;
    expect_refusal(t, "a plane without its buffer", FOLIO_E_INVAL);
    *s->into_buf = good;
    *s->into_offset = offset + 1;
    expect_refusal(t, "a plane at an odd offset", FOLIO_E_INVAL);
    *s->into_offset = s->total + 64;
    expect_refusal(t, "a plane behind its buffer", FOLIO_E_RANGE);
    *s->into_offset = offset;
}

static void refuse_kv(trial *t, folio_kv_ref *kv)
{
    const folio_kv_type type = kv->type;
    kv->type = FOLIO_KV_I8;
    expect_refusal(t, "8-bit KV", FOLIO_E_UNSUPPORTED);
    kv->type = type;
    const int32_t hd = kv->head_dim;
    kv->head_dim = 257;
    expect_refusal(t, "a head size of 257", FOLIO_E_UNSUPPORTED);
    kv->head_dim = hd;
}

static void refuse_op(trial *t)
{
    ck_problem *p = t->p;
    if (p->op == FOLIO_OP_ROPE_APPEND)
        refuse_kv(t, &p->args.rope.kv);
    if (p->op == FOLIO_OP_COPY_BLOCKS)
        refuse_kv(t, &p->args.copy.kv);
    if (p->op == FOLIO_OP_QKV)
        refuse_kv(t, &p->args.qkv.kv);
    if (p->op == FOLIO_OP_ATTN) {
        refuse_kv(t, &p->args.attn.kv);
        p->args.attn.sinks = p->args.attn.q;
        expect_refusal(t, "sinks", FOLIO_E_UNSUPPORTED);
        p->args.attn.sinks = (folio_view){0};
    }
}

/* Every way to be wrong that the contract names leaves everything as it was. */
static void judge_refusals(trial *t)
{
    ck_problem *p = t->p;
    int64_t n = folio_op_count(p->op, &p->args);
    folio_status st = ck_upload(p, t->c->q);
    if (st != FOLIO_OK) {
        status_bad(t, p, st, "upload");
        return;
    }
    for (int i = 0; i < p->n_slots; i++) {
        ck_slot *s = &p->slot[i];
        if (s->bytes == 0)
            continue;
        if (s->into)
            refuse_views(t, s);
        if (s->into_buf)
            refuse_planes(t, s);
    }
    refuse_op(t);
    ck_set_count(p, n + 1);
    expect_refusal(t, "more rows than it was opened for", FOLIO_OK);
    ck_set_count(p, -1);
    expect_refusal(t, "a negative count", FOLIO_E_INVAL);
    ck_set_count(p, n);

    ck_result got = {0};
    unsigned bad = 0;
    st = ck_download(p, t->c->q, &got, &bad, t->why, sizeof t->why);
    if (st != FOLIO_OK)
        status_bad(t, p, st, "read");
    for (int i = 0; st == FOLIO_OK && i < p->n_slots; i++)
        if (got.data[i] &&
            memcmp(got.data[i], p->slot[i].init, p->slot[i].bytes) != 0)
            bad |= CK_BAD_REFUSAL;
    if (bad)
        ck_bad(t->c, t->var, CK_BAD_REFUSAL, p,
               "wrote although its arguments were refused");
    ck_result_free(&got);
}

/* ---- course ----------------------------------------------------------------
 */

static void judge_first(trial *t)
{
    ck_verdict v = ck_compare(t->p, &t->first);
    ck_tally *y = ck_tally_of(t->c, t->var);
    if (v.bad)
        ck_bad(t->c, t->var, v.bad, t->p, "%s", v.why);
    if (v.share > y->worst) {
        y->worst = v.share;
        snprintf(y->worst_case, sizeof y->worst_case, "%s", t->p->name);
    }
    if (!t->c->quiet)
        printf(" %.3f", v.share);
}

static void judge_repeat(trial *t)
{
    ck_result again = {0};
    if (run_once(t, t->p, &again)) {
        if (t->var->flags & FOLIO_VAR_UNORDERED) {
            ck_verdict v = ck_compare(t->p, &again);
            if (v.bad)
                ck_bad(t->c, t->var, v.bad, t->p, "second run: %s", v.why);
        } else if (!ck_same(t->p, &t->first, &again, t->why, sizeof t->why)) {
            ck_bad(t->c, t->var, CK_BAD_REPEAT, t->p, "two runs: %s", t->why);
        }
    }
    ck_result_free(&again);
}

static void run_trial(trial *t)
{
    ck_ctx *c = t->c;
    ck_tally *y = ck_tally_of(c, t->var);
    folio_status st = FOLIO_OK;
    if (t->p->op == FOLIO_OP_ATTN)
        st = ck_attn_plan(t->p, t->op);
    if (st == FOLIO_OK) {
        ck_size_scratch(t->p, t->op);
        st = ck_place(t->p, c->dev, c->exact_buffers, &t->rng);
    }
    if (st != FOLIO_OK) {
        status_bad(t, t->p, st, "place");
        return;
    }
    if (!run_once(t, t->p, &t->first))
        return;
    judge_first(t);
    judge_repeat(t);
    if (!y->refusals_done && folio_op_count(t->p->op, &t->p->args) > 0) {
        y->refusals_done = true;
        judge_refusals(t);
    }
    judge_rows(t);
    judge_places(t);
}

/* The 8- and 16-bit forms of arithmetic have limits of their own, for as long
 * as such a variant runs. */
static void relax(ck_problem *p)
{
    for (int i = 0; i < p->n_slots; i++) {
        ck_slot *s = &p->slot[i];
        const void *want = s->want;
        const bool half = s->kind == CK_F16;
        if (!want || (s->kind != CK_F32 && !half) || s->rule != CK_NEAR)
            continue;
        float most = 0;
        for (size_t j = 0; j < ck_slot_count(s); j++) {
            float w = half ? folio_f16_to_f32(((const uint16_t *)want)[j])
                           : ((const float *)want)[j];
            if (w > most || -w > most)
                most = w > 0 ? w : -w;
        }
        /* Attention computes with halves, never with bytes. A pool is no list
         * of rows: most of it is not written. */
        if (p->op != FOLIO_OP_ATTN && (s->row_bytes || !half))
            s->rule = CK_COSINE;
        s->abs = (p->op == FOLIO_OP_ATTN ? 2e-3 : 2e-2) * (double)most;
    }
}

static void try_variant(ck_ctx *c, ck_problem *p, const folio_variant *var)
{
    ck_tally *y = ck_tally_of(c, var);
    trial t = {.c = c, .p = p, .var = var};
    t.rng = ck_rng_make(c->seed ^ 2, p->name);
    t.invariant =
        p->deterministic && (var->flags & FOLIO_VAR_BATCH_INVARIANT) != 0;
    folio_op_params prm = {.deterministic = t.invariant,
                           .exact = !(var->flags & FOLIO_VAR_INEXACT),
                           .emulate = true,
                           .tune = c->tune};
    const char *why = folio_variant_refuse(c->dev, var, &prm, &p->args);
    if (why) {
        ck_skip(c, var->name, why);
        return;
    }
    unsigned before = y->bad;
    y->bad = 0;
    if (!c->quiet)
        printf("%-20s %s", var->name, p->name);
    fflush(stdout);
    c->log[0] = '\0';
    ck_slot strict[CK_MAX_SLOTS];
    memcpy(strict, p->slot, sizeof strict);
    if (var->flags & FOLIO_VAR_INEXACT)
        relax(p);
    if (p->op == FOLIO_OP_ATTN)
        ck_attn_unplan(p);
    folio_status st = ck_place(p, c->dev, c->exact_buffers, &t.rng);
    if (st == FOLIO_OK)
        st = folio_variant_open(c->dev, var, &prm, &p->args, &t.op);
    if (st != FOLIO_OK)
        status_bad(&t, p, st, "open");
    else
        run_trial(&t);
    ck_unplace(p);
    ck_result_free(&t.first);
    folio_op_close(&t.op);
    for (int i = 0; i < p->n_slots; i++) {
        p->slot[i].rule = strict[i].rule;
        p->slot[i].abs = strict[i].abs;
    }
    y->ran++;
    if (y->bad) {
        y->failed++;
        c->failed++;
    } else {
        c->passed++;
    }
    y->bad |= before;
    if (!c->quiet)
        printf("\n");
}

/* For its compiler options alone. */
static void dump_variant(ck_ctx *c, ck_problem *p, const folio_variant *var)
{
    folio_op *op = NULL;
    folio_op_params prm = {.deterministic = false};
    /* What is made of other ops has no program of its own. */
    if (var->fragments[0] == '\0' ||
        folio_variant_refuse(c->dev, var, &prm, &p->args))
        return;
    folio_status st = folio_variant_open(c->dev, var, &prm, &p->args, &op);
    if (st == FOLIO_E_DEVICE)
        st = FOLIO_OK; /* all is built, and now it would warm something up */
    if (st != FOLIO_OK)
        ck_bad(c, var, CK_BAD_STATUS, p, "open: %s: %s", folio_status_name(st),
               c->log);
    c->failed += st != FOLIO_OK;
    ck_tally_of(c, var)->ran++;
    folio_op_close(&op);
}

void ck_judge(ck_ctx *c, ck_problem *p)
{
    if (ck_programs_dumping()) {
        ck_pack_weight(p);
        for (size_t i = 0; i < c->n_rows; i++)
            if (c->rows[i].op == p->op && on_this_side(c, &c->rows[i]) &&
                picked(c, p, &c->rows[i]))
                dump_variant(c, p, &c->rows[i]);
        ck_problem_free(p);
        return;
    }
    c->log[0] = '\0';
    folio_status st = run_reference(c, p);
    if (st != FOLIO_OK) {
        printf("FAILED: the reference of %s on %s: %s: %s\n",
               folio_op_name(p->op), p->name, folio_status_name(st), c->log);
        c->failed++;
    }
    ck_pack_weight(p);
    for (size_t i = 0; st == FOLIO_OK && i < c->n_rows; i++) {
        const folio_variant *var = &c->rows[i];
        if (var->op == p->op && on_this_side(c, var) && picked(c, p, var) &&
            ck_selected(c, var, p->name) && !c->dead)
            (c->bench ? ck_bench_problem : try_variant)(c, p, var);
    }
    ck_problem_free(p);
}
