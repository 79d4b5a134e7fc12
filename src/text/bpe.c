/* text/bpe.c: byte-pair encoding with a linked list of symbols and a heap of
 * candidate merges: n log n in time, linear in memory, no recursion. */
#include "text/bpe.h"

#include <string.h>

#define NONE UINT32_MAX

/* A symbol of the piece; id -1 is a byte without a token, -2 one that was
 * merged into its left neighbour. */
typedef struct folio_bpe_sym {
    int32_t id;
    uint32_t prev, next; /* NONE at the ends */
} folio_bpe_sym;

folio_status folio_ids_push(folio_ids *out, int32_t id)
{
    if (out->n == out->cap) {
        size_t cap = out->cap ? out->cap + out->cap / 2 : 64;
        int32_t *p = folio_realloc(out->ids, cap, sizeof *p);
        if (!p)
            return FOLIO_E_NOMEM;
        out->ids = p;
        out->cap = cap;
    }
    out->ids[out->n++] = id;
    return FOLIO_OK;
}

static uint32_t hash_pair(int32_t left, int32_t right)
{
    uint64_t k = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    k *= 0x9e3779b97f4a7c15u;
    k ^= k >> 29;
    k *= 0xbf58476d1ce4e5b9u;
    return (uint32_t)(k >> 32);
}

/* The slot that holds the pair, or the empty one where it belongs. */
static uint32_t find_slot(const folio_bpe *b, int32_t left, int32_t right)
{
    uint32_t at = hash_pair(left, right) & b->mask;
    for (; b->slots[at] != NONE; at = (at + 1) & b->mask) {
        const folio_merge *m = &b->merges[b->slots[at]];
        if (m->left == left && m->right == right)
            break;
    }
    return at;
}

/* Reads merge `rank`; buf holds as many bytes as the longest merge. */
static folio_status read_merge(const folio_vocab *v, folio_gguf_str s,
                               size_t rank, char *buf, folio_merge *out,
                               const folio_log *log)
{
    /* The alphabet spells a blank otherwise, so the first one from position 1
     * on separates; position 0 would leave the left part empty. */
    const char *blank = s.len > 2 ? memchr(s.data + 1, ' ', s.len - 2) : NULL;
    int shown = (int)FOLIO_MIN(s.len, (size_t)100);
    if (!blank)
        return folio_fail(log, FOLIO_E_FORMAT,
                          "tokenizer.ggml.merges: entry %zu \"%.*s\" is not "
                          "two pieces with a blank between",
                          rank, shown, s.len ? s.data : "");
    size_t n_left = (size_t)(blank - s.data), n_right = s.len - n_left - 1;
    size_t a = folio_alphabet_decode(s.data, n_left, buf);
    size_t b = folio_alphabet_decode(blank + 1, n_right, buf + a);
    folio_merge m = {folio_vocab_find(v, buf, a),
                     folio_vocab_find(v, buf + a, b),
                     folio_vocab_find(v, buf, a + b)};
    const char *lacks = m.left < 0    ? "left part"
                        : m.right < 0 ? "right part"
                        : m.out < 0   ? "result"
                                      : NULL;
    if (lacks)
        return folio_fail(log, FOLIO_E_FORMAT,
                          "tokenizer.ggml.merges: the %s of entry %zu "
                          "\"%.*s\" is not among the %d pieces of "
                          "tokenizer.ggml.tokens",
                          lacks, rank, shown, s.data, v->n);
    *out = m;
    return FOLIO_OK;
}

folio_status folio_bpe_init(folio_bpe *b, const folio_vocab *vocab,
                            const folio_gguf_str *merges, size_t n_merges,
                            const folio_log *log)
{
    folio_status st = FOLIO_OK;
    char *buf = NULL;
    size_t longest = 0;
    uint32_t n_slots = 16;
    if (n_merges > UINT32_MAX / 4)
        return folio_fail(log, FOLIO_E_FORMAT,
                          "tokenizer.ggml.merges: %zu entries, at most %u",
                          n_merges, UINT32_MAX / 4);
    while (n_slots < 2 * n_merges)
        n_slots *= 2;
    for (size_t i = 0; i < n_merges; i++)
        longest = FOLIO_MAX(longest, merges[i].len);
    b->vocab = vocab;
    b->merges = folio_calloc(n_merges, sizeof *b->merges);
    b->slots = folio_calloc(n_slots, sizeof *b->slots);
    buf = folio_calloc(longest, 1);
    if (!b->merges || !b->slots || !buf) {
        st = folio_fail(log, FOLIO_E_NOMEM,
                        "tokenizer: no memory for %zu merges", n_merges);
        goto fail;
    }
    memset(b->slots, 0xff, n_slots * sizeof *b->slots);
    b->mask = n_slots - 1;
    for (size_t i = 0; i < n_merges; i++) {
        folio_merge m;
        FOLIO_TRY(read_merge(vocab, merges[i], i, buf, &m, log));
        if (folio_vocab_is_control(vocab, m.out))
            continue;
        uint32_t at = find_slot(b, m.left, m.right);
        if (b->slots[at] != NONE) /* the better rank stays */
            continue;
        b->merges[b->n_merges] = m;
        b->slots[at] = b->n_merges++;
    }
    /* U+FFFD, else the unknown token that the caller sets. */
    b->fallback = folio_vocab_find(vocab, "\xef\xbf\xbd", 3);
    if (b->fallback >= 0 && folio_vocab_is_control(vocab, b->fallback))
        b->fallback = -1;
fail:
    free(buf);
    return st;
}

void folio_bpe_fini(folio_bpe *b)
{
    free(b->merges);
    free(b->slots);
    memset(b, 0, sizeof *b);
}

/* Binary min-heap of rank << 32 | left: best rank first, then leftmost. */
static void sift_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t x = h[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && h[c + 1] < h[c])
            c++;
        if (h[c] >= x)
            break;
        h[i] = h[c];
    }
    h[i] = x;
}

static folio_status heap_append(folio_bpe_work *w, size_t *n, uint64_t key)
{
    if (*n == w->heap_cap) {
        size_t cap = w->heap_cap ? w->heap_cap * 2 : 64;
        uint64_t *p = folio_realloc(w->heap, cap, sizeof *p);
        if (!p)
            return FOLIO_E_NOMEM;
        w->heap = p;
        w->heap_cap = cap;
    }
    w->heap[(*n)++] = key;
    return FOLIO_OK;
}

static folio_status heap_push(folio_bpe_work *w, size_t *n, uint64_t key)
{
    FOLIO_RETURN_IF(heap_append(w, n, key));
    size_t i = *n - 1;
    for (; i && w->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = key;
    return FOLIO_OK;
}

/* Rank of merging symbol `left` with its right neighbour, or NONE. */
static uint32_t rank_at(const folio_bpe *b, const folio_bpe_sym *syms,
                        uint32_t left)
{
    uint32_t right = syms[left].next;
    if (right == NONE || syms[left].id < 0 || syms[right].id < 0)
        return NONE;
    return b->slots[find_slot(b, syms[left].id, syms[right].id)];
}

static folio_status push_if_merges(const folio_bpe *b, folio_bpe_work *w,
                                   size_t *n_heap, uint32_t left)
{
    uint32_t rank = left == NONE ? NONE : rank_at(b, w->syms, left);
    if (rank == NONE)
        return FOLIO_OK;
    return heap_push(w, n_heap, (uint64_t)rank << 32 | left);
}

/* Merges until no rule applies. A heap entry whose pair has changed since it
 * was pushed is skipped: the pair it named is no longer there. */
static folio_status merge_all(const folio_bpe *b, folio_bpe_work *w,
                              size_t n_heap)
{
    folio_bpe_sym *syms = w->syms;
    for (size_t i = n_heap / 2; i-- > 0;)
        sift_down(w->heap, n_heap, i);
    while (n_heap) {
        uint64_t key = w->heap[0];
        w->heap[0] = w->heap[--n_heap];
        if (n_heap)
            sift_down(w->heap, n_heap, 0);
        const folio_merge *m = &b->merges[key >> 32];
        uint32_t left = (uint32_t)key, right = syms[left].next;
        if (syms[left].id != m->left || right == NONE ||
            syms[right].id != m->right)
            continue;
        syms[left].id = m->out;
        syms[left].next = syms[right].next;
        if (syms[right].next != NONE)
            syms[syms[right].next].prev = left;
        syms[right].id = -2;
        FOLIO_RETURN_IF(push_if_merges(b, w, &n_heap, syms[left].prev));
        FOLIO_RETURN_IF(push_if_merges(b, w, &n_heap, left));
    }
    return FOLIO_OK;
}

folio_status folio_bpe_encode(const folio_bpe *b, folio_bpe_work *w,
                              const char *s, size_t n, folio_ids *out)
{
    size_t n_heap = 0;
    if (n == 0)
        return FOLIO_OK;
    if (n > w->sym_cap) {
        size_t cap = FOLIO_MAX(n, (size_t)64);
        folio_bpe_sym *p = folio_realloc(w->syms, cap, sizeof *p);
        if (!p)
            return FOLIO_E_NOMEM;
        w->syms = p;
        w->sym_cap = cap;
    }
    folio_bpe_sym *syms = w->syms;
    for (size_t i = 0; i < n; i++) {
        syms[i].id = b->vocab->byte_id[(unsigned char)s[i]];
        syms[i].prev = i ? (uint32_t)i - 1 : NONE;
        syms[i].next = i + 1 < n ? (uint32_t)i + 1 : NONE;
    }
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint32_t rank = rank_at(b, syms, i);
        if (rank != NONE)
            FOLIO_RETURN_IF(heap_append(w, &n_heap, (uint64_t)rank << 32 | i));
    }
    FOLIO_RETURN_IF(merge_all(b, w, n_heap));
    for (uint32_t i = 0; i != NONE; i = syms[i].next) {
        int32_t id = syms[i].id < 0 ? b->fallback : syms[i].id;
        if (id < 0)
            return FOLIO_E_UNSUPPORTED;
        FOLIO_RETURN_IF(folio_ids_push(out, id));
    }
    return FOLIO_OK;
}

void folio_bpe_work_fini(folio_bpe_work *w)
{
    free(w->syms);
    free(w->heap);
    memset(w, 0, sizeof *w);
}
