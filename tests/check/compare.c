/* compare.c: judges what came out of a run: against the reference within the
 * slot's tolerance, and bit for bit against another run. */
#include "check/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"

#define EPS 0x1p-23

static uint32_t bits_of(const ck_slot *s, const uint8_t *data, size_t i)
{
    uint32_t u = 0;
    size_t n = ck_kind_bytes(s->kind);
    memcpy(&u, data + i * n, n);
    return u;
}

static double value_of(const ck_slot *s, const uint8_t *data, size_t i)
{
    uint32_t u = bits_of(s, data, i);
    switch (s->kind) {
    case CK_F32:
        return (double)folio_bits_f32(u);
    case CK_F16:
        return (double)folio_f16_to_f32((uint16_t)u);
    case CK_I32:
        return (double)(int32_t)u;
    case CK_BYTES:
        break;
    }
    return (double)u;
}

static uint32_t poison_at(const ck_slot *s, size_t i)
{
    return s->kind == CK_F16 ? (i % 2 ? CK_POISON >> 16 : CK_POISON & 0xffffu)
                             : CK_POISON;
}

/* Halves in the order of their values. */
static int32_t half_place(uint32_t bits)
{
    int32_t m = (int32_t)(bits & 0x7fffu);
    return bits & 0x8000u ? -m : m;
}

static double allowed(const ck_slot *s, size_t i, double want)
{
    double a = s->abs + s->rel * fabs(want);
    if (s->scale)
        a += s->c * EPS * s->scale[i];
    return a;
}

/* Where element i lies, for people. */
static void locate(const ck_slot *s, size_t i, char *text, size_t bytes)
{
    size_t per_row = s->row_bytes / ck_kind_bytes(s->kind);
    if (per_row)
        snprintf(text, bytes, "%s[%zu][%zu]", s->name, i / per_row,
                 i % per_row);
    else
        snprintf(text, bytes, "%s[%zu]", s->name, i);
}

/* The fault of one element, 0 if none; *share of its tolerance. */
static unsigned judge_element(const ck_slot *s, const uint8_t *data, size_t i,
                              double *share)
{
    uint32_t got = bits_of(s, data, i), want = bits_of(s, s->want, i);
    *share = 0;
    if (got == want)
        return 0;
    double g = value_of(s, data, i), w = value_of(s, s->want, i);
    bool untouched = want == bits_of(s, s->init, i);
    if (s->kind == CK_F32 || s->kind == CK_F16) {
        if (isnan(w))
            return untouched || !isnan(g) ? CK_BAD_VALUE : 0;
        if (isnan(g))
            return got == poison_at(s, i) ? CK_BAD_UNWRITTEN : CK_BAD_NAN;
    } else if (got == CK_POISON && s->kind == CK_I32) {
        return CK_BAD_UNWRITTEN;
    }
    if (s->rule == CK_EXACT || !isfinite(w) || !isfinite(g))
        return CK_BAD_VALUE;
    if (s->rule == CK_PLACE) {
        *share = fabs((double)half_place(got) - (double)half_place(want));
        return *share > 1 ? CK_BAD_VALUE : 0;
    }
    double most = allowed(s, i, w);
    *share = most > 0 ? fabs(g - w) / most : 2;
    return *share > 1 ? CK_BAD_VALUE : 0;
}

static const char *fault_name(unsigned bad)
{
    switch (bad) {
    case CK_BAD_UNWRITTEN:
        return "was not written";
    case CK_BAD_NAN:
        return "is NaN";
    default:
        return "is wrong";
    }
}

/* Rows must point the same way. */
static void judge_cosine(const ck_slot *s, const uint8_t *data, ck_verdict *v)
{
    size_t n = ck_slot_count(s), row = s->row_bytes / ck_kind_bytes(s->kind);
    row = row && !s->few_terms ? row : n;
    for (size_t first = 0; first < n; first += row) {
        double gg = 0, ww = 0, gw = 0;
        for (size_t i = first; i < FOLIO_MIN(first + row, n); i++) {
            double g = value_of(s, data, i), w = value_of(s, s->want, i);
            if (isnan(w))
                continue;
            gg += g * g;
            ww += w * w;
            gw += g * w;
        }
        if (gg > 0 && ww > 0 && gw <= 0.9999 * sqrt(gg) * sqrt(ww)) {
            v->bad |= CK_BAD_VALUE;
            snprintf(v->why, sizeof v->why, "row %zu of %s has cosine %.6f",
                     first / row, s->name, gw / (sqrt(gg) * sqrt(ww)));
        }
    }
}

static void judge_slot(const ck_slot *s, const uint8_t *data, ck_verdict *v)
{
    size_t n = ck_slot_count(s), n_bad = 0;
    for (size_t i = 0; i < n; i++) {
        double share;
        unsigned bad = judge_element(s, data, i, &share);
        if (share > v->share)
            v->share = share;
        if (!bad)
            continue;
        if (n_bad++ == 0 && !v->bad) {
            char place[80];
            double want = value_of(s, s->want, i);
            locate(s, i, place, sizeof place);
            snprintf(v->why, sizeof v->why,
                     "%s %s: got %.9g (0x%x), want %.9g (0x%x), allowed %.3g",
                     place, fault_name(bad), value_of(s, data, i),
                     bits_of(s, data, i), want, bits_of(s, s->want, i),
                     s->rule == CK_NEAR ? allowed(s, i, want) : 0.0);
        }
        v->bad |= bad;
    }
    if (n_bad > 1) {
        size_t used = strlen(v->why);
        snprintf(v->why + used, sizeof v->why - used, " (%zu of %zu elements)",
                 n_bad, n);
    }
    if (s->rule == CK_COSINE)
        judge_cosine(s, data, v);
}

ck_verdict ck_compare(const ck_problem *p, const ck_result *got)
{
    ck_verdict v = {0};
    for (int i = 0; i < p->n_slots; i++)
        if (got->data[i])
            judge_slot(&p->slot[i], got->data[i], &v);
    return v;
}

/* ---- bit for bit -----------------------------------------------------------
 */

static bool same_elements(const ck_slot *s, const uint8_t *a, const uint8_t *b,
                          size_t count, size_t first, char *why,
                          size_t why_bytes)
{
    char place[80];
    if (memcmp(a, b, count * ck_kind_bytes(s->kind)) == 0)
        return true;
    for (size_t i = 0; i < count; i++) {
        if (bits_of(s, a, i) == bits_of(s, b, i))
            continue;
        locate(s, first + i, place, sizeof place);
        snprintf(why, why_bytes, "%s is %.9g (0x%x) and %.9g (0x%x)", place,
                 value_of(s, a, i), bits_of(s, a, i), value_of(s, b, i),
                 bits_of(s, b, i));
        return false;
    }
    return true;
}

bool ck_same(const ck_problem *p, const ck_result *a, const ck_result *b,
             char *why, size_t why_bytes)
{
    for (int i = 0; i < p->n_slots; i++)
        if (a->data[i] &&
            !same_elements(&p->slot[i], a->data[i], b->data[i],
                           ck_slot_count(&p->slot[i]), 0, why, why_bytes))
            return false;
    return true;
}

/* What a run of one row changed in a shared output (the KV pool) is what the
 * run of all rows left there. */
static bool same_changes(const ck_slot *s, const uint8_t *all,
                         const uint8_t *rows, char *why, size_t why_bytes)
{
    for (size_t i = 0; i < ck_slot_count(s); i++) {
        uint32_t now = bits_of(s, rows, i);
        if (now == bits_of(s, s->init, i) || now == bits_of(s, all, i))
            continue;
        snprintf(why, why_bytes, "%s[%zu] is %.9g and %.9g", s->name, i,
                 value_of(s, all, i), value_of(s, rows, i));
        return false;
    }
    return true;
}

bool ck_same_rows(const ck_problem *p, const ck_result *all,
                  const ck_problem *part, const ck_result *rows, int first,
                  char *why, size_t why_bytes)
{
    for (int i = 0; i < p->n_slots; i++) {
        const ck_slot *s = &p->slot[i];
        if (!all->data[i])
            continue;
        bool same;
        if (s->row_bytes)
            same = same_elements(s, all->data[i] + (size_t)first * s->row_bytes,
                                 rows->data[i], ck_slot_count(&part->slot[i]),
                                 (size_t)first * s->row_bytes /
                                     ck_kind_bytes(s->kind),
                                 why, why_bytes);
        else
            same = same_changes(s, all->data[i], rows->data[i], why, why_bytes);
        if (!same)
            return false;
    }
    return true;
}
