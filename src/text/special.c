/* text/special.c: longest match over a sorted list. Most positions end at the
 * first byte; the others narrow a range byte by byte, so a position costs no
 * more than the longest token. */
#include "text/special.h"

#include <string.h>

/* One token while sorting: qsort has no user pointer. */
typedef struct entry {
    const char *s;
    size_t n;
    int32_t id;
} entry;

static int compare_entries(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    int c = memcmp(x->s, y->s, FOLIO_MIN(x->n, y->n));
    if (c)
        return c;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool is_wanted(const folio_vocab *v, int32_t id, bool with_control)
{
    return v->type[id] == FOLIO_TOKEN_USER ||
           (with_control && folio_vocab_is_control(v, id));
}

folio_status folio_special_init(folio_special *s, const folio_vocab *vocab,
                                bool with_control)
{
    size_t n = 0;
    for (int32_t id = 0; id < vocab->n; id++)
        n += is_wanted(vocab, id, with_control);
    entry *e = folio_calloc(n, sizeof *e);
    s->vocab = vocab;
    s->ids = folio_calloc(n, sizeof *s->ids);
    if (!e || !s->ids) {
        free(e);
        return FOLIO_E_NOMEM;
    }
    n = 0;
    for (int32_t id = 0; id < vocab->n; id++) {
        size_t len;
        const char *p = folio_vocab_piece(vocab, id, &len);
        if (len && is_wanted(vocab, id, with_control))
            e[n++] = (entry){p, len, id};
    }
    qsort(e, n, sizeof *e, compare_entries);
    uint32_t b = 0;
    for (size_t i = 0; i < n; i++) {
        /* Of two tokens with the same text the lower id is found. */
        if (s->n && e[i].n == e[i - 1].n &&
            memcmp(e[i].s, e[i - 1].s, e[i].n) == 0)
            continue;
        for (; b <= (unsigned char)e[i].s[0]; b++)
            s->first[b] = s->n;
        s->ids[s->n++] = e[i].id;
    }
    for (; b <= 256; b++)
        s->first[b] = s->n;
    free(e);
    return FOLIO_OK;
}

void folio_special_fini(folio_special *s)
{
    free(s->ids);
    memset(s, 0, sizeof *s);
}

/* First index in [lo, hi) whose byte at `depth` is >= c; tokens that end
 * before sort first. */
static uint32_t lower_bound(const folio_special *s, uint32_t lo, uint32_t hi,
                            size_t depth, unsigned c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        size_t n;
        const char *p = folio_vocab_piece(s->vocab, s->ids[mid], &n);
        if (n <= depth || (unsigned char)p[depth] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int32_t folio_special_match(const folio_special *s, const char *text, size_t n,
                            size_t *len)
{
    unsigned char c = (unsigned char)text[0];
    uint32_t lo = s->first[c], hi = s->first[c + 1];
    int32_t best = -1;
    for (size_t depth = 1; lo < hi; depth++) {
        /* All of [lo, hi) begin with text[0..depth); the first of them may
         * end here. */
        size_t piece_len;
        folio_vocab_piece(s->vocab, s->ids[lo], &piece_len);
        if (piece_len == depth) {
            best = s->ids[lo++];
            *len = depth;
        }
        if (depth == n)
            break;
        c = (unsigned char)text[depth];
        uint32_t begin = lower_bound(s, lo, hi, depth, c);
        hi = lower_bound(s, begin, hi, depth, c + 1u);
        lo = begin;
    }
    return best;
}
