/* ops/attn_plan.c: work lists of the attention kernels. Integers only; knows no
 * device. Key boundaries lie at multiples of the chunk from key 0, so with a
 * fixed chunk the partial results of a token depend on its position alone. */
#include "ops/attn_plan.h"

#include <string.h>

#include "ops/ops.h"

/* A chunk is looked for in steps of at least so many keys. */
enum { CHUNK_STEP = 16 };

/* Keys first..last are visible to position pos. */
static int32_t first_key(int32_t window, int32_t pos)
{
    return window > 0 && pos >= window ? pos - window + 1 : 0;
}

/* Entries that keys first..last need. */
static int64_t n_pieces(int32_t first, int32_t last, int64_t chunk)
{
    return last / chunk - first / chunk + 1;
}

static bool plans_nothing(const folio_attn_plan_params *p)
{
    return p->tile_q <= 0 && p->target_groups <= 0;
}

static bool params_good(const folio_attn_plan_params *p)
{
    if (plans_nothing(p))
        return true;
    bool dynamic = p->spans == 1 || (p->min_chunk > 0 && p->max_chunk > 0);
    return p->block_size > 0 && p->window >= 0 && p->tile_q >= 0 &&
           p->tile_min_q >= 0 && p->groups_per_entry > 0 &&
           p->target_groups > 0 && p->max_partials >= 0 && p->spans >= 0 &&
           p->spans <= 1 && p->merge_blocks >= 0 &&
           (p->chunk > 0 ? p->chunk % p->block_size == 0 : dynamic);
}

/* Whether a sequence with n new tokens is cut into tiles. */
static bool tiled(const folio_attn_plan_params *p, int32_t n)
{
    return p->tile_q > 0 && n > 0 && n >= p->tile_min_q;
}

/* Blocks of a token's keys first..last. */
static int64_t n_blocks(const folio_attn_plan_params *p, int32_t first,
                        int32_t last)
{
    return last / p->block_size - first / p->block_size + 1;
}

/* As folio_attn_plan_bound, for `tok` tokens that come as entries. Kernels
 * count the blocks of all columns in 32 bits. */
static folio_status bound_spans(const folio_attn_plan_params *p, int64_t tok,
                                int64_t tiles, int32_t max_kv,
                                folio_attn_plan_bounds *out)
{
    int64_t line = tok * n_blocks(p, 0, max_kv - 1) * p->groups_per_entry;
    if (line > INT32_MAX || tok > INT32_MAX / FOLIO_ATTN_ENTRY_INTS ||
        tiles > INT32_MAX / FOLIO_ATTN_TILE_INTS)
        return FOLIO_E_TOO_LARGE;
    *out = (folio_attn_plan_bounds){.entries = (int32_t)tok,
                                    .merges = (int32_t)tok,
                                    .tiles = (int32_t)tiles};
    return FOLIO_OK;
}

folio_status folio_attn_plan_bound(const folio_attn_plan_params *p,
                                   int32_t max_tok, int32_t max_seqs,
                                   int32_t max_kv, folio_attn_plan_bounds *out)
{
    if (max_tok <= 0 || max_seqs <= 0 || max_kv <= 0 || !params_good(p))
        return FOLIO_E_INVAL;
    folio_attn_plan_bounds b = {0};
    if (plans_nothing(p)) {
        *out = b;
        return FOLIO_OK;
    }
    /* Tokens that can come as entries, and tiles: whole ones, and one that is
     * not full per tiled sequence. */
    int64_t tok = max_tok, tiles = 0;
    if (p->tile_q > 0) {
        int64_t min_q = FOLIO_MAX(p->tile_min_q, 1);
        tok = FOLIO_MIN(tok, max_seqs * (min_q - 1));
        tiles =
            max_tok / p->tile_q + FOLIO_MIN((int64_t)max_seqs, max_tok / min_q);
    }
    if (p->spans)
        return bound_spans(p, tok, tiles, max_kv, out);
    int64_t partials = p->max_partials;
    if (p->chunk > 0) {
        int64_t keys = p->window > 0 ? FOLIO_MIN(p->window, max_kv) : max_kv;
        int64_t each = folio_div_up(max_kv, p->chunk);
        /* A window may start anywhere in its first chunk. */
        if (p->window > 0)
            each = FOLIO_MIN(each, folio_div_up(keys - 1, p->chunk) + 1);
        int64_t need = each > 1 ? tok * each : 0;
        partials = need;
    }
    int64_t entries = tok + partials;
    int64_t merges = FOLIO_MIN(tok, partials / 2);
    if (entries > INT32_MAX / FOLIO_ATTN_ENTRY_INTS ||
        tiles > INT32_MAX / FOLIO_ATTN_TILE_INTS)
        return FOLIO_E_TOO_LARGE;
    b.entries = (int32_t)entries;
    b.merges = (int32_t)merges;
    b.tiles = (int32_t)tiles;
    b.partials = (int32_t)partials;
    *out = b;
    return FOLIO_OK;
}

static bool batch_good(int32_t n_seq, const int32_t *q_start,
                       const int32_t *kv_len)
{
    if (n_seq < 0 || !q_start || q_start[0] != 0)
        return false;
    for (int32_t s = 0; s < n_seq; s++) {
        if (q_start[s + 1] < q_start[s] ||
            kv_len[s] < q_start[s + 1] - q_start[s])
            return false;
    }
    return true;
}

typedef struct piece_sum {
    int64_t tokens, entries, partials;
} piece_sum;

/* What all tokens that come as entries need with this chunk. */
static piece_sum sum_pieces(const folio_attn_plan_params *p, int32_t n_seq,
                            const int32_t *q_start, const int32_t *kv_len,
                            int64_t chunk)
{
    piece_sum r = {0};
    for (int32_t s = 0; s < n_seq; s++) {
        int32_t n = q_start[s + 1] - q_start[s];
        if (tiled(p, n))
            continue;
        for (int32_t i = 0; i < n; i++) {
            int32_t pos = kv_len[s] - n + i;
            int64_t m = n_pieces(first_key(p->window, pos), pos, chunk);
            r.tokens++;
            r.entries += m;
            r.partials += m > 1 ? m : 0;
        }
    }
    return r;
}

/* Keys per entry for this batch; never fails, since an unsplit token needs no
 * partial slot. Split only where the tokens alone leave the device idle,
 * then as finely as the target allows. */
static int64_t choose_chunk(const folio_attn_plan_params *p, int32_t n_seq,
                            const int32_t *q_start, const int32_t *kv_len,
                            int64_t max_partials)
{
    if (p->chunk > 0)
        return p->chunk;
    const int64_t whole = (int64_t)INT32_MAX + 1;
    piece_sum all = sum_pieces(p, n_seq, q_start, kv_len, whole);
    int64_t groups = all.tokens * p->groups_per_entry;
    if (all.tokens == 0 || groups * 10 >= (int64_t)p->target_groups * 8)
        return whole;
    int64_t step = p->block_size * folio_div_up(CHUNK_STEP, p->block_size);
    int64_t chunk = folio_div_up(p->min_chunk, step) * step;
    piece_sum sum = sum_pieces(p, n_seq, q_start, kv_len, chunk);
    while (sum.entries * p->groups_per_entry > p->target_groups &&
           chunk + step <= p->max_chunk) {
        chunk += step;
        sum = sum_pieces(p, n_seq, q_start, kv_len, chunk);
    }
    /* The partials must fit, whatever the bounds of the chunk say. */
    while (sum.partials > max_partials) {
        if (chunk >= INT32_MAX / 2)
            return whole;
        chunk *= 2;
        sum = sum_pieces(p, n_seq, q_start, kv_len, chunk);
    }
    return chunk;
}

static int64_t count_tiles(const folio_attn_plan_params *p, int32_t n_seq,
                           const int32_t *q_start)
{
    int64_t n_tiles = 0;
    for (int32_t s = 0; s < n_seq; s++) {
        int32_t n = q_start[s + 1] - q_start[s];
        if (tiled(p, n))
            n_tiles += folio_div_up(n, p->tile_q);
    }
    return n_tiles;
}

typedef struct list_writer {
    const folio_attn_plan_params *p;
    int32_t *entries, *merges, *tiles;
    folio_attn_plan_counts n;
} list_writer;

static void add_token(list_writer *w, int32_t tok, int32_t seq, int32_t pos,
                      int64_t chunk)
{
    int32_t key = first_key(w->p->window, pos);
    int32_t n = (int32_t)n_pieces(key, pos, chunk);
    if (n > 1) {
        int32_t *m = w->merges + (size_t)w->n.n_merges * FOLIO_ATTN_MERGE_INTS;
        m[0] = tok;
        m[1] = w->n.n_partials;
        m[2] = n;
        m[3] = 0;
        w->n.n_merges++;
    }
    for (int32_t i = 0; i < n; i++) {
        int64_t end = FOLIO_MIN((key / chunk + 1) * chunk, (int64_t)pos + 1);
        int32_t *e =
            w->entries + (size_t)w->n.n_entries * FOLIO_ATTN_ENTRY_INTS;
        memset(e, 0, FOLIO_ATTN_ENTRY_INTS * sizeof *e);
        e[0] = tok;
        e[1] = seq;
        e[2] = key;
        e[3] = (int32_t)(end - key);
        e[4] = n > 1 ? w->n.n_partials++ : -1;
        w->n.n_entries++;
        key = (int32_t)end;
    }
}

static void add_tiles(list_writer *w, int32_t seq, int32_t first, int32_t n)
{
    for (int32_t i = 0; i < n; i += w->p->tile_q) {
        int32_t *t = w->tiles + (size_t)w->n.n_tiles * FOLIO_ATTN_TILE_INTS;
        t[0] = seq;
        t[1] = first + i;
        t[2] = FOLIO_MIN(w->p->tile_q, n - i);
        t[3] = 0;
        w->n.n_tiles++;
    }
}

/* The blocks of a group. Even shares leave partials to be merged; where all
 * entries are equally long, whole columns for each group may be as quick. */
static int64_t choose_span(const folio_attn_plan_params *p, int64_t n_entries,
                           int64_t blocks, int64_t longest)
{
    int64_t columns = n_entries * p->groups_per_entry;
    int64_t even = folio_div_up(blocks * p->groups_per_entry, p->target_groups);
    int64_t whole = folio_div_up(columns, p->target_groups) * longest;
    even = FOLIO_MAX(even, folio_div_up(p->chunk, p->block_size));
    even = FOLIO_MAX(even, 1);
    bool equal = blocks == n_entries * longest;
    return equal && p->chunk == 0 && whole <= even + p->merge_blocks ? whole
                                                                     : even;
}

/* Whether a column of the entry whose columns begin at block `at` of the line
 * is shared by groups. */
static bool is_shared(const folio_attn_plan_params *p, int64_t at, int64_t n,
                      int64_t span)
{
    for (int32_t c = 0; c < p->groups_per_entry; c++, at += n)
        if (at / span != (at + n - 1) / span)
            return true;
    return false;
}

/* The lists with spans. */
static folio_status build_spans(list_writer *w, int32_t n_seq,
                                const int32_t *q_start, const int32_t *kv_len,
                                const folio_attn_plan_bounds *cap)
{
    const folio_attn_plan_params *p = w->p;
    int64_t entries = 0, blocks = 0, longest = 0;
    for (int32_t s = 0; s < n_seq; s++) {
        int32_t n = q_start[s + 1] - q_start[s];
        for (int32_t i = 0; i < n && !tiled(p, n); i++) {
            int32_t pos = kv_len[s] - n + i;
            int64_t own = n_blocks(p, first_key(p->window, pos), pos);
            entries++;
            blocks += own;
            longest = FOLIO_MAX(longest, own);
        }
    }
    if (entries > cap->entries || entries > cap->merges ||
        count_tiles(p, n_seq, q_start) > cap->tiles ||
        blocks * p->groups_per_entry > INT32_MAX)
        return FOLIO_E_FULL;
    const int64_t span = choose_span(p, entries, blocks, longest);
    int64_t before = 0;
    for (int32_t s = 0; s < n_seq; s++) {
        int32_t n = q_start[s + 1] - q_start[s];
        if (tiled(p, n)) {
            add_tiles(w, s, q_start[s], n);
            continue;
        }
        for (int32_t i = 0; i < n; i++) {
            int32_t tok = q_start[s] + i, pos = kv_len[s] - n + i;
            int32_t key = first_key(p->window, pos);
            int64_t own = n_blocks(p, key, pos);
            const int32_t e[FOLIO_ATTN_ENTRY_INTS] = {
                tok,          s,
                key,          pos + 1 - key,
                -1,           (int32_t)before,
                (int32_t)own, (int32_t)span};
            const int32_t m[FOLIO_ATTN_MERGE_INTS] = {tok, w->n.n_entries, 0,
                                                      0};
            memcpy(w->entries + (size_t)w->n.n_entries * FOLIO_ATTN_ENTRY_INTS,
                   e, sizeof e);
            w->n.n_entries++;
            if (is_shared(p, before * p->groups_per_entry, own, span))
                memcpy(w->merges +
                           (size_t)w->n.n_merges++ * FOLIO_ATTN_MERGE_INTS,
                       m, sizeof m);
            before += own;
        }
    }
    return FOLIO_OK;
}

folio_status folio_attn_plan_build(const folio_attn_plan_params *p,
                                   int32_t n_seq, const int32_t *q_start,
                                   const int32_t *kv_len,
                                   const folio_attn_plan_bounds *cap,
                                   int32_t *entries, int32_t *merges,
                                   int32_t *tiles, folio_attn_plan_counts *out)
{
    if (!params_good(p) || !batch_good(n_seq, q_start, kv_len))
        return FOLIO_E_INVAL;
    list_writer w = {
        .p = p, .entries = entries, .merges = merges, .tiles = tiles};
    if (plans_nothing(p)) {
        *out = w.n;
        return FOLIO_OK;
    }
    if (p->spans) {
        FOLIO_RETURN_IF(build_spans(&w, n_seq, q_start, kv_len, cap));
        *out = w.n;
        return FOLIO_OK;
    }
    int64_t max_partials = cap->partials;
    if (p->chunk <= 0)
        max_partials = FOLIO_MIN(max_partials, p->max_partials);
    int64_t chunk = choose_chunk(p, n_seq, q_start, kv_len, max_partials);
    piece_sum sum = sum_pieces(p, n_seq, q_start, kv_len, chunk);
    int64_t n_merges = sum.tokens - (sum.entries - sum.partials);
    if (sum.entries > cap->entries || sum.partials > max_partials ||
        n_merges > cap->merges || count_tiles(p, n_seq, q_start) > cap->tiles)
        return FOLIO_E_FULL;
    for (int32_t s = 0; s < n_seq; s++) {
        int32_t n = q_start[s + 1] - q_start[s];
        if (tiled(p, n)) {
            add_tiles(&w, s, q_start[s], n);
            continue;
        }
        for (int32_t i = 0; i < n; i++)
            add_token(&w, q_start[s] + i, s, kv_len[s] - n + i, chunk);
    }
    *out = w.n;
    return FOLIO_OK;
}

/* An attention op keeps its plan's parameters at the start of its geometry; a
 * host op has none and plans nothing. */
void folio_attn_plan_params_of(const struct folio_op *op,
                               folio_attn_plan_params *out)
{
    _Static_assert(sizeof *out <= sizeof op->geo, "params fit the geometry");
    memcpy(out, op->geo, sizeof *out);
}
