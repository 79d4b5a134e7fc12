/* The attention work lists: every visible key of every token exactly once, in
 * order, within bounds; when to split; independence of the batch. */
#include <criterion/criterion.h>
#include <string.h>

#include "ops/attn_plan.h"
#include "ops/ops.h"

enum { MAX_SEQS = 8, MAX_TOK = 96, MAX_KV = 3000 };

typedef struct plan_batch {
    int32_t n_seq;
    int32_t q_start[MAX_SEQS + 1], kv_len[MAX_SEQS];
} plan_batch;

typedef struct plan_lists {
    int32_t *entries, *merges, *tiles;
    folio_attn_plan_bounds cap;
    folio_attn_plan_counts n;
} plan_lists;

static uint64_t seed = 20240601;

/* 0 .. n - 1 */
static int32_t draw(int32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((seed >> 33) % (uint64_t)n);
}

static void draw_batch(plan_batch *b, int32_t max_q)
{
    b->n_seq = 1 + draw(MAX_SEQS);
    b->q_start[0] = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        int32_t n = draw(3) ? draw(3) : draw(max_q);
        if (b->q_start[s] + n > MAX_TOK)
            n = 0;
        b->q_start[s + 1] = b->q_start[s] + n;
        int32_t past = draw(4) ? draw(MAX_KV - MAX_TOK) : 0;
        b->kv_len[s] = n + past;
    }
}

static void lists_init(plan_lists *l, const folio_attn_plan_params *p)
{
    cr_assert_eq(folio_attn_plan_bound(p, MAX_TOK, MAX_SEQS, MAX_KV, &l->cap),
                 FOLIO_OK);
    /* Exact sizes, so that a sanitizer sees every step beyond. */
    l->entries = folio_calloc((size_t)l->cap.entries * 8, 4);
    l->merges = folio_calloc((size_t)l->cap.merges * 4, 4);
    l->tiles = folio_calloc((size_t)l->cap.tiles * 4, 4);
}

static void lists_fini(plan_lists *l)
{
    free(l->entries);
    free(l->merges);
    free(l->tiles);
}

static void build(plan_lists *l, const folio_attn_plan_params *p,
                  const plan_batch *b)
{
    cr_assert_eq(folio_attn_plan_build(p, b->n_seq, b->q_start, b->kv_len,
                                       &l->cap, l->entries, l->merges, l->tiles,
                                       &l->n),
                 FOLIO_OK);
    cr_assert_leq(l->n.n_entries, l->cap.entries);
    cr_assert_leq(l->n.n_merges, l->cap.merges);
    cr_assert_leq(l->n.n_tiles, l->cap.tiles);
    cr_assert_leq(l->n.n_partials, l->cap.partials);
}

/* Walks the lists as the kernels do and demands that they say what the
 * definition of visibility says. */
static void check_lists(const plan_lists *l, const folio_attn_plan_params *p,
                        const plan_batch *b)
{
    int32_t e = 0, m = 0, t = 0, partial = 0;
    for (int32_t s = 0; s < b->n_seq; s++) {
        int32_t n = b->q_start[s + 1] - b->q_start[s];
        if (p->tile_q > 0 && n > 0 && n >= p->tile_min_q) {
            for (int32_t tok = b->q_start[s]; tok < b->q_start[s + 1];) {
                cr_assert_lt(t, l->n.n_tiles);
                const int32_t *w = l->tiles + (size_t)t++ * 4;
                cr_assert_eq(w[0], s);
                cr_assert_eq(w[1], tok);
                cr_assert(w[2] >= 1 && w[2] <= p->tile_q);
                cr_assert_eq(w[3], 0);
                tok += w[2];
                cr_assert_leq(tok, b->q_start[s + 1]);
            }
            continue;
        }
        for (int32_t i = 0; i < n; i++) {
            int32_t pos = b->kv_len[s] - n + i;
            int32_t key = 0, pieces = 0, first_partial = partial;
            while (p->window > 0 && key <= pos - p->window)
                key++;
            while (key <= pos) {
                cr_assert_lt(e, l->n.n_entries);
                const int32_t *w = l->entries + (size_t)e++ * 8;
                cr_assert_eq(w[0], b->q_start[s] + i);
                cr_assert_eq(w[1], s);
                cr_assert_eq(w[2], key);
                cr_assert_geq(w[3], 1);
                cr_assert(w[5] == 0 && w[6] == 0 && w[7] == 0);
                if (w[4] >= 0)
                    cr_assert_eq(w[4], partial++);
                else
                    cr_assert_eq(w[3], pos + 1 - key);
                if (p->chunk > 0) {
                    int32_t end = (key / p->chunk + 1) * p->chunk;
                    cr_assert_eq(w[3], FOLIO_MIN(end, pos + 1) - key);
                }
                key += w[3];
                pieces++;
            }
            cr_assert_eq(key, pos + 1);
            if (partial == first_partial) {
                cr_assert_eq(pieces, 1);
                continue;
            }
            cr_assert_lt(m, l->n.n_merges);
            const int32_t *w = l->merges + (size_t)m++ * 4;
            cr_assert_eq(w[0], b->q_start[s] + i);
            cr_assert_eq(w[1], first_partial);
            cr_assert_eq(w[2], pieces);
            cr_assert_gt(pieces, 1);
        }
    }
    cr_assert_eq(e, l->n.n_entries);
    cr_assert_eq(m, l->n.n_merges);
    cr_assert_eq(t, l->n.n_tiles);
    cr_assert_eq(partial, l->n.n_partials);
}

static folio_attn_plan_params params(int32_t bs)
{
    folio_attn_plan_params p = {.block_size = bs,
                                .min_chunk = 128,
                                .max_chunk = 1024,
                                .groups_per_entry = 3,
                                .target_groups = 64,
                                .max_partials = 200};
    return p;
}

Test(ops_attn_plan, random_batches_cover_every_key_once, .timeout = 120)
{
    static const int32_t sizes[] = {1, 4, 16, 32};
    static const int32_t windows[] = {0, 1, 16, 100, 1000, 5000};
    static const int32_t targets[] = {1, 12, 64, 2000};
    for (int round = 0; round < 400; round++) {
        folio_attn_plan_params p = params(sizes[draw(4)]);
        p.window = windows[draw(6)];
        p.target_groups = targets[draw(4)];
        p.groups_per_entry = 1 + draw(8);
        p.max_partials = draw(3) ? 4 * draw(100) : draw(4);
        p.tile_q = draw(2) ? 1 + draw(20) : 0;
        p.tile_min_q = draw(20);
        if (draw(2))
            p.chunk = p.block_size * (1 + draw(1024 / p.block_size));
        plan_lists l;
        lists_init(&l, &p);
        for (int i = 0; i < 5; i++) {
            plan_batch b;
            draw_batch(&b, 60);
            build(&l, &p, &b);
            check_lists(&l, &p, &b);
        }
        lists_fini(&l);
    }
}

Test(ops_attn_plan, forced_splits)
{
    plan_batch b = {.n_seq = 1, .q_start = {0, 1}, .kv_len = {2048}};
    static const struct {
        int32_t chunk, pieces;
    } want[] = {{2048, 1}, {1024, 2}, {16, 128}, {1040, 2}};
    for (size_t i = 0; i < FOLIO_COUNT(want); i++) {
        folio_attn_plan_params p = params(16);
        p.chunk = want[i].chunk;
        plan_lists l;
        lists_init(&l, &p);
        build(&l, &p, &b);
        check_lists(&l, &p, &b);
        cr_assert_eq(l.n.n_entries, want[i].pieces);
        cr_assert_eq(l.n.n_merges, want[i].pieces > 1);
        lists_fini(&l);
    }
    folio_attn_plan_params p = params(16);
    plan_lists l;
    p.chunk = 16;
    lists_init(&l, &p);
    for (p.chunk = 16; p.chunk <= 2064; p.chunk += 16) {
        build(&l, &p, &b);
        check_lists(&l, &p, &b);
        cr_assert_eq(l.n.n_entries, folio_div_up(2048, p.chunk));
    }
    lists_fini(&l);
}

/* The smallest chunk that stays within the target; none where the tokens fill
 * the device. */
Test(ops_attn_plan, splits_as_finely_as_the_target_allows)
{
    folio_attn_plan_params p = params(16);
    p.groups_per_entry = 8;
    p.target_groups = 528;
    plan_lists l;
    lists_init(&l, &p);
    plan_batch b = {.n_seq = 1, .q_start = {0, 1}, .kv_len = {2999}};
    build(&l, &p, &b);
    cr_assert_eq(l.entries[3], 128);
    cr_assert_eq(l.n.n_entries, 24); /* 192 groups */
    /* Sixteen groups: ceil(2999 / 1024) entries is all that max_chunk allows.
     */
    p.target_groups = 16;
    build(&l, &p, &b);
    cr_assert_eq(l.entries[3], 1024);
    cr_assert_eq(l.n.n_entries, 3);
    /* 80 groups: 10 entries, 304 is the first multiple of 16 that does it. */
    p.target_groups = 80;
    build(&l, &p, &b);
    cr_assert_eq(l.entries[3], 304);
    /* 6 tokens of 8 groups are 48 of 60: not split; of 61: split. */
    plan_batch six = {.n_seq = 6,
                      .q_start = {0, 1, 2, 3, 4, 5, 6},
                      .kv_len = {2000, 2000, 2000, 2000, 2000, 2000}};
    p.target_groups = 60;
    build(&l, &p, &six);
    cr_assert_eq(l.n.n_entries, 6);
    cr_assert_eq(l.n.n_partials, 0);
    p.target_groups = 61;
    build(&l, &p, &six);
    cr_assert_eq(l.n.n_partials, 12);
    /* Too few partial slots make the chunk larger. */
    p.max_partials = 11;
    build(&l, &p, &six);
    cr_assert_eq(l.n.n_partials, 0);
    p.max_partials = 2;
    p.target_groups = 528;
    build(&l, &p, &b);
    cr_assert_eq(l.n.n_partials, 2);
    check_lists(&l, &p, &b);
    lists_fini(&l);
}

/* With a fixed chunk the pieces of a token are the same whatever else is in the
 * batch, decoded alone or prefilled in company. */
Test(ops_attn_plan, a_fixed_chunk_depends_on_position_alone)
{
    for (int32_t window = 0; window <= 300; window += 150) {
        folio_attn_plan_params p = params(16);
        p.chunk = 64;
        p.window = window;
        plan_lists alone, many;
        lists_init(&alone, &p);
        lists_init(&many, &p);
        plan_batch b;
        for (int round = 0; round < 50; round++) {
            draw_batch(&b, 60);
            build(&many, &p, &b);
            check_lists(&many, &p, &b);
            const int32_t *e = many.entries;
            for (int32_t s = 0; s < b.n_seq; s++) {
                int32_t n = b.q_start[s + 1] - b.q_start[s];
                for (int32_t i = 0; i < n; i++) {
                    plan_batch one = {.n_seq = 1, .q_start = {0, 1}};
                    one.kv_len[0] = b.kv_len[s] - n + i + 1;
                    build(&alone, &p, &one);
                    for (int32_t k = 0; k < alone.n.n_entries; k++, e += 8) {
                        cr_assert_eq(e[2], alone.entries[8 * k + 2]);
                        cr_assert_eq(e[3], alone.entries[8 * k + 3]);
                    }
                }
            }
            cr_assert_eq(e - many.entries, 8 * many.n.n_entries);
        }
        lists_fini(&alone);
        lists_fini(&many);
    }
}

Test(ops_attn_plan, refuses_and_leaves_alone)
{
    folio_attn_plan_params p = params(16);
    folio_attn_plan_bounds bounds = {-7, -7, -7, -7};
    cr_assert_eq(folio_attn_plan_bound(&p, 0, 1, 1, &bounds), FOLIO_E_INVAL);
    cr_assert_eq(folio_attn_plan_bound(&p, 1, 0, 1, &bounds), FOLIO_E_INVAL);
    cr_assert_eq(folio_attn_plan_bound(&p, 1, 1, -1, &bounds), FOLIO_E_INVAL);
    p.chunk = 24; /* not a multiple of 16 */
    cr_assert_eq(folio_attn_plan_bound(&p, 1, 1, 1, &bounds), FOLIO_E_INVAL);
    p.chunk = 16;
    cr_assert_eq(folio_attn_plan_bound(&p, 1 << 20, 4, 1 << 30, &bounds),
                 FOLIO_E_TOO_LARGE);
    cr_assert_eq(bounds.entries, -7);

    p = params(16);
    plan_lists l;
    lists_init(&l, &p);
    static const plan_batch bad[] = {
        {.n_seq = 1, .q_start = {1, 2}, .kv_len = {5}},
        {.n_seq = 2, .q_start = {0, 2, 1}, .kv_len = {5, 5}},
        {.n_seq = 1, .q_start = {0, 6}, .kv_len = {5}},
        {.n_seq = -1, .q_start = {0}},
    };
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++)
        cr_assert_eq(folio_attn_plan_build(&p, bad[i].n_seq, bad[i].q_start,
                                           bad[i].kv_len, &l.cap, l.entries,
                                           l.merges, l.tiles, &l.n),
                     FOLIO_E_INVAL);
    plan_batch b = {.n_seq = 1, .q_start = {0, 1}, .kv_len = {2000}};
    folio_attn_plan_bounds cap = l.cap;
    folio_attn_plan_counts n = {-7, -7, -7, -7};
    cap.entries = 3;
    memset(l.entries, 0x55, (size_t)l.cap.entries * 32);
    cr_assert_eq(folio_attn_plan_build(&p, 1, b.q_start, b.kv_len, &cap,
                                       l.entries, l.merges, l.tiles, &n),
                 FOLIO_E_FULL);
    cr_assert_eq(l.entries[0], 0x55555555);
    cr_assert_eq(n.n_entries, -7);
    lists_fini(&l);
}

Test(ops_attn_plan, nothing_planned_without_a_target)
{
    folio_op op = {0};
    folio_attn_plan_params p;
    folio_attn_plan_params_of(&op, &p);
    folio_attn_plan_bounds cap;
    cr_assert_eq(folio_attn_plan_bound(&p, 10, 10, 10, &cap), FOLIO_OK);
    cr_assert_eq(cap.entries + cap.merges + cap.tiles + cap.partials, 0);
    plan_batch b = {.n_seq = 1, .q_start = {0, 1}, .kv_len = {2000}};
    folio_attn_plan_counts n = {9, 9, 9, 9};
    cr_assert_eq(folio_attn_plan_build(&p, 1, b.q_start, b.kv_len, &cap, NULL,
                                       NULL, NULL, &n),
                 FOLIO_OK);
    cr_assert_eq(n.n_entries + n.n_merges + n.n_tiles + n.n_partials, 0);
}

Test(ops_attn_plan, empty_and_skipped_sequences)
{
    folio_attn_plan_params p = params(4);
    plan_lists l;
    lists_init(&l, &p);
    plan_batch none = {.n_seq = 0, .q_start = {0}};
    build(&l, &p, &none);
    cr_assert_eq(l.n.n_entries, 0);
    plan_batch b = {.n_seq = 3, .q_start = {0, 0, 1, 1}, .kv_len = {9, 1, 0}};
    build(&l, &p, &b);
    check_lists(&l, &p, &b);
    cr_assert_eq(l.n.n_entries, 1);
    lists_fini(&l);
}

/* ---- spans -----------------------------------------------------------------
 */

/* Entries name every visible key once and lie one after the other in the line
 * of blocks; groups suffice for it; merges are the entries with a column that
 * groups share. */
static void check_spans(const plan_lists *l, const folio_attn_plan_params *p,
                        const plan_batch *b)
{
    int32_t e = 0, m = 0, t = 0, before = 0;
    const int32_t span = l->n.n_entries ? l->entries[7] : 1;
    cr_assert_geq(span, 1);
    cr_assert_eq(l->n.n_partials, 0);
    for (int32_t s = 0; s < b->n_seq; s++) {
        int32_t n = b->q_start[s + 1] - b->q_start[s];
        if (n > 0 && p->tile_q > 0 && n >= p->tile_min_q) {
            t += (int32_t)folio_div_up(n, p->tile_q);
            continue;
        }
        for (int32_t i = 0; i < n; i++, e++) {
            int32_t pos = b->kv_len[s] - n + i, shared = 0;
            int32_t key =
                p->window > 0 && pos >= p->window ? pos - p->window + 1 : 0;
            int32_t own = pos / p->block_size - key / p->block_size + 1;
            cr_assert_lt(e, l->n.n_entries);
            const int32_t *w = l->entries + (size_t)e * 8;
            const int32_t want[8] = {b->q_start[s] + i,
                                     s,
                                     key,
                                     pos + 1 - key,
                                     -1,
                                     before,
                                     own,
                                     w[7]};
            cr_assert_arr_eq(w, want, sizeof want);
            cr_assert_eq(w[7], span);
            for (int32_t c = 0; c < p->groups_per_entry; c++) {
                int32_t at = before * p->groups_per_entry + c * own;
                shared |= at / span != (at + own - 1) / span;
            }
            if (shared) {
                cr_assert_lt(m, l->n.n_merges);
                const int32_t merge[4] = {w[0], e, 0, 0};
                cr_assert_arr_eq(l->merges + (size_t)m * 4, merge,
                                 sizeof merge);
                m++;
            }
            before += own;
        }
    }
    cr_assert_eq(e, l->n.n_entries);
    cr_assert_eq(m, l->n.n_merges);
    cr_assert_eq(t, l->n.n_tiles);
    cr_assert_geq((int64_t)span * p->target_groups,
                  (int64_t)before * p->groups_per_entry);
}

static folio_attn_plan_params span_params(int32_t bs)
{
    folio_attn_plan_params p = {.block_size = bs,
                                .groups_per_entry = 8,
                                .target_groups = 264,
                                .spans = 1,
                                .merge_blocks = 10};
    return p;
}

Test(ops_attn_plan, spans_of_random_batches, .timeout = 120)
{
    static const int32_t windows[] = {0, 1, 16, 100, 1000, 5000};
    static const int32_t targets[] = {1, 7, 64, 264};
    for (int round = 0; round < 300; round++) {
        folio_attn_plan_params p = span_params(draw(2) ? 16 : 32);
        p.window = windows[draw(6)];
        p.target_groups = targets[draw(4)];
        p.groups_per_entry = 1 + draw(8);
        p.tile_q = draw(2) ? 1 + draw(20) : 0;
        p.tile_min_q = draw(20);
        p.merge_blocks = draw(40);
        if (draw(2))
            p.chunk = p.block_size * (1 + draw(20));
        plan_lists l;
        lists_init(&l, &p);
        for (int i = 0; i < 5; i++) {
            plan_batch b;
            draw_batch(&b, 60);
            build(&l, &p, &b);
            check_spans(&l, &p, &b);
        }
        lists_fini(&l);
    }
}

/* Equal columns are not shared where that saves the second launch. */
Test(ops_attn_plan, spans_of_whole_columns)
{
    folio_attn_plan_params p = span_params(16);
    plan_lists l;
    p.target_groups = 33;
    lists_init(&l, &p);
    plan_batch four = {.n_seq = 4,
                       .q_start = {0, 1, 2, 3, 4},
                       .kv_len = {1024, 1024, 1024, 1024}};
    /* 32 columns of 64 blocks: 63 each for 33 groups, and a launch, or 64. */
    build(&l, &p, &four);
    cr_assert_eq(l.entries[7], 64);
    cr_assert_eq(l.n.n_merges, 0);
    p.merge_blocks = 0;
    build(&l, &p, &four);
    cr_assert_eq(l.entries[7], 63);
    cr_assert_eq(l.n.n_merges, 4);
    p.merge_blocks = 10;
    four.kv_len[2] = 1000;
    build(&l, &p, &four);
    cr_assert_eq(l.n.n_merges, 4, "columns of unequal length are shared");
    /* A line longer than 32 bits can count. */
    folio_attn_plan_bounds cap;
    p.groups_per_entry = 1 << 20;
    cr_assert_eq(
        folio_attn_plan_bound(&p, MAX_TOK, MAX_SEQS, MAX_KV * 10, &cap),
        FOLIO_E_TOO_LARGE);
    lists_fini(&l);
}
