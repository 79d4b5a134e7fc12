/* self.c: does the harness see what it is there for? Runs variants that are
 * wrong on purpose through the small cases; each must be found for the reason
 * that was planted, and the right ones beside them must pass. */
#include "check/self.h"

#include <stdio.h>
#include <string.h>

#define MAX_ROWS 32
static folio_variant rows[MAX_ROWS];
static const ck_wrong *wrong;

const char *ck_wrong_options(const folio_variant *var)
{
    return wrong[var - rows].options;
}

static bool judge(const ck_tally *t, const ck_wrong *w, bool oclgrind)
{
    /* Seen in oclgrind's own log, which whoever started it looks at. */
    if (w->only_oclgrind) {
        printf("%-20s %s\n", t->var->name,
               oclgrind ? "ran; oclgrind must have named the race"
                        : "ran; only oclgrind can see it");
        return t->ran > 0;
    }
    /* In buffers of exact size a write behind the end is oclgrind's to see. */
    if (oclgrind && w->bad == CK_BAD_GUARD) {
        printf("%-20s ran; oclgrind must have named the write\n", t->var->name);
        return t->ran > 0;
    }
    bool good = t->ran > 0 && (w->bad ? (t->bad & w->bad) != 0 : t->bad == 0);
    printf("%-20s %s (planted 0x%x, found 0x%x in %d of %d cases)\n",
           t->var->name,
           !good    ? "FAILED"
           : w->bad ? "found"
                    : "passes",
           w->bad, t->bad, t->failed, t->ran);
    return good;
}

int ck_self_test(ck_ctx *c)
{
    size_t n;
    wrong = folio_device_is_host(c->dev) ? ck_wrong_host(&n) : ck_wrong_cl(&n);
    ck_tally tally[MAX_ROWS] = {{0}};
    for (size_t i = 0; i < n && i < MAX_ROWS; i++) {
        rows[i] = wrong[i].var;
        tally[i].var = &rows[i];
    }
    /* In place: the devices' log goes to this struct. */
    const ck_ctx before = *c;
    c->rows = rows;
    c->n_rows = n;
    c->tally = tally;
    c->size = CK_SMALL;
    c->quiet = true;
    c->only = NULL;
    ck_add(c);
    ck_act(c);
    ck_rmsnorm(c);
    ck_attn(c);
    c->rows = before.rows;
    c->n_rows = before.n_rows;
    c->tally = before.tally;
    c->only = before.only;
    int passed = 0, failed = 0;
    for (size_t i = 0; i < n; i++) {
        if (c->only && !strstr(rows[i].name, c->only))
            continue;
        if (judge(&tally[i], &wrong[i], c->exact_buffers))
            passed++;
        else
            failed++;
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed;
}
