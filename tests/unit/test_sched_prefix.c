/* The prefix cache: the index alone, then its rules in whole runs. */
#include "sched/sched_state.h"
#include "unit/fail_alloc.h"
#include "unit/sched_dry.h"

/* ---- the index alone ----------------------------------------------------- */

static folio_hash128 same_for_all(const void *data, size_t bytes, uint64_t seed)
{
    (void)data, (void)bytes, (void)seed;
    return (folio_hash128){1, 2};
}

static folio_prefix_key key(const folio_prefix_index *x, uint64_t parent,
                            const folio_hash128 *prev, const char *salt,
                            const int32_t *tok)
{
    const int32_t n = salt ? (int32_t)strlen(salt) : 0;
    const uint8_t *bytes = (const uint8_t *)salt;
    return (folio_prefix_key){folio_prefix_index_hash(x, prev, bytes, n, tok),
                              parent, tok, bytes, n};
}

/* With a real hash, and with one that always collides. */
static void check_identity(folio_prefix_hash_fn hash)
{
    static const int32_t a[] = {1, 2}, b[] = {1, 3};
    folio_prefix_index x;
    OK(folio_prefix_index_init(&x, 8, 2, 7, hash, NULL));
    folio_prefix_key k = key(&x, 0, NULL, NULL, a);
    cr_assert_eq(folio_prefix_index_find(&x, &k), -1);
    const uint64_t root = folio_prefix_index_put(&x, 3, &k, FOLIO_PREFIX_READY);
    cr_assert_eq(folio_prefix_index_find(&x, &k), 3);
    /* Other tokens, another salt, another parent: other nodes. */
    const folio_prefix_key others[] = {
        key(&x, 0, NULL, NULL, b), key(&x, 0, NULL, "s", a),
        key(&x, root, &x.hash[3], NULL, a), key(&x, 0, NULL, "t", a)};
    for (int32_t i = 0; i < 4; i++) {
        cr_assert_eq(folio_prefix_index_find(&x, &others[i]), -1, "%d", i);
        folio_prefix_index_put(&x, 4 + i, &others[i], FOLIO_PREFIX_READY);
    }
    for (int32_t i = 0; i < 4; i++)
        cr_assert_eq(folio_prefix_index_find(&x, &others[i]), 4 + i);
    /* Dropping one leaves the others. */
    folio_prefix_index_drop(&x, 5);
    folio_prefix_index_drop(&x, 5);
    cr_assert_eq(folio_prefix_index_find(&x, &others[1]), -1);
    cr_assert_eq(folio_prefix_index_find(&x, &others[0]), 4);
    cr_assert_eq(folio_prefix_index_find(&x, &others[3]), 7);
    cr_assert_eq(folio_prefix_index_find(&x, &k), 3);
    cr_assert_eq(x.n_entries, 4);
    /* The same content again is another node: children of the old one are not
     * the new one's. */
    folio_prefix_index_drop(&x, 3);
    const uint64_t again =
        folio_prefix_index_put(&x, 3, &k, FOLIO_PREFIX_IN_FLIGHT);
    cr_assert_neq(again, root);
    const folio_prefix_key child = key(&x, again, &x.hash[3], NULL, a);
    cr_assert_eq(folio_prefix_index_find(&x, &child), -1);
    folio_prefix_index_fini(&x);
}

Test(sched_prefix, tokens_salt_and_parent_make_a_node)
{
    check_identity(NULL);
}

Test(sched_prefix, a_hash_only_proposes)
{
    check_identity(same_for_all);
}

Test(sched_prefix, the_seed_is_its_own)
{
    static const int32_t a[] = {1, 2};
    folio_prefix_index x, y, z;
    OK(folio_prefix_index_init(&x, 4, 2, 0, NULL, NULL));
    OK(folio_prefix_index_init(&y, 4, 2, 0, NULL, NULL));
    OK(folio_prefix_index_init(&z, 4, 2, x.seed, NULL, NULL));
    const folio_hash128 hx = folio_prefix_index_hash(&x, NULL, NULL, 0, a);
    const folio_hash128 hy = folio_prefix_index_hash(&y, NULL, NULL, 0, a);
    const folio_hash128 hz = folio_prefix_index_hash(&z, NULL, NULL, 0, a);
    cr_assert(x.seed != y.seed && hx.lo != hy.lo);
    cr_assert(hx.lo == hz.lo && hx.hi == hz.hi);
    folio_prefix_index_fini(&x);
    folio_prefix_index_fini(&y);
    folio_prefix_index_fini(&z);
}

Test(sched_prefix, each_allocation_failing)
{
    for (int nth = 1;; nth++) {
        folio_prefix_index x;
        fail_alloc_arm(nth);
        const folio_status st =
            folio_prefix_index_init(&x, 16, 4, 1, NULL, NULL);
        if (!fail_alloc_disarm()) {
            OK(st);
            cr_assert_gt(nth, 8);
            folio_prefix_index_fini(&x);
            break;
        }
        cr_assert_eq(st, FOLIO_E_NOMEM);
    }
}

/* ---- in whole runs ------------------------------------------------------- */

static folio_sched_params cached(int32_t n_blocks, int32_t seqs)
{
    folio_sched_params p = dry_params(n_blocks, 4, seqs);
    p.prefix_cache = true;
    return p;
}

enum { MAX_PROMPT = 1024 };

/* A prompt of `shared` tokens that all have and `own` that this id has. */
static void submit(dry *b, uint64_t id, int32_t shared, int32_t own,
                   int32_t max_new, const char *salt)
{
    int32_t tok[MAX_PROMPT];
    for (int32_t i = 0; i < shared + own; i++)
        tok[i] = dry_prompt_tok(i < shared ? 500 : id, i);
    dry_submit_as(
        b, &(folio_request_params){.id = id,
                                   .prompt = tok,
                                   .n_prompt = shared + own,
                                   .max_new = max_new,
                                   .salt = salt,
                                   .salt_bytes = salt ? strlen(salt) : 0});
}

Test(sched_prefix, a_later_request_finds_the_full_blocks)
{
    const folio_sched_params p = cached(32, 4);
    dry b;
    dry_open(&b, &p);
    submit(&b, 0, 10, 0, 3, NULL); /* 10 + 2 positions: 3 full blocks */
    dry_drain(&b, 10);
    submit(&b, 1, 10, 5, 3, NULL); /* shares 10: 2 full blocks */
    dry_drain(&b, 10);
    cr_assert_eq(dry_text_of(&b, 1, 0)->n_cached, 8);
    cr_assert_eq(b.copied, 0);
    /* Cached blocks count as free. */
    const folio_block_pool_counts c =
        folio_block_pool_count(folio_sched_pool(b.s));
    cr_assert_eq(c.n_free, 32);
    cr_assert_gt(c.n_cached, 4);
    dry_close(&b);
}

/* Prompt lengths around block edges, found again in full: the last token is
 * always computed, and never into a block that others see. */
Test(sched_prefix, the_last_token_is_always_computed)
{
    for (int32_t n = 1; n <= 17; n++) {
        const folio_sched_params p = cached(32, 4);
        dry b;
        dry_open(&b, &p);
        submit(&b, 0, n, 0, 6, NULL);
        dry_drain(&b, 20);
        submit(&b, 1, n, 0, 6, NULL);
        cr_assert(dry_step(&b));
        const int32_t found = b.step->seq[0].first;
        cr_assert_eq(found, n % 4 ? n / 4 * 4 : n - 1, "%d: %d", (int)n,
                     (int)found);
        cr_assert_eq(b.step->n_copies, n % 4 == 0);
        cr_assert_eq(b.step->n_tok, n - found);
        dry_drain(&b, 20);
        const dry_text *x = dry_text_of(&b, 0, 0), *y = dry_text_of(&b, 1, 0);
        cr_assert_eq(memcmp(x->tok, y->tok, 6 * sizeof *x->tok), 0);
        dry_close(&b);
    }
}

Test(sched_prefix, the_copy_is_given_up_where_only_it_does_not_fit)
{
    const folio_sched_params p = cached(3, 1);
    dry b;
    dry_open(&b, &p);
    submit(&b, 0, 12, 0, 1, NULL); /* the whole pool */
    dry_drain(&b, 5);
    submit(&b, 1, 12, 0, 1, NULL);
    dry_drain(&b, 5);
    cr_assert_eq(dry_text_of(&b, 1, 0)->n_cached, 8);
    cr_assert_eq(b.copied, 0);
    cr_assert_eq(dry_text_of(&b, 0, 0)->tok[0], dry_text_of(&b, 1, 0)->tok[0]);
    dry_close(&b);
}

Test(sched_prefix, salts_keep_tenants_apart)
{
    const folio_sched_params p = cached(64, 2);
    dry b;
    dry_open(&b, &p);
    submit(&b, 0, 16, 1, 2, "a");
    dry_drain(&b, 10);
    submit(&b, 1, 16, 1, 2, "b");
    submit(&b, 2, 16, 1, 2, NULL);
    dry_drain(&b, 10);
    cr_assert_eq(dry_text_of(&b, 1, 0)->n_cached, 0);
    cr_assert_eq(dry_text_of(&b, 2, 0)->n_cached, 0);
    submit(&b, 3, 16, 1, 2, "a");
    submit(&b, 4, 16, 1, 2, "b");
    dry_drain(&b, 10);
    cr_assert_eq(dry_text_of(&b, 3, 0)->n_cached, 16);
    cr_assert_eq(dry_text_of(&b, 4, 0)->n_cached, 16);
    dry_close(&b);
}

/* Everybody at once: the first one computes what all share, the others wait for
 * it instead of computing it again. */
Test(sched_prefix, a_prefix_under_way_is_waited_for)
{
    folio_sched_params p = cached(1024, 32);
    p.block_tok = 16;
    for (int32_t budget = 0; budget <= 64; budget += 64) {
        p.step_tok = budget;
        dry b;
        dry_open(&b, &p);
        int32_t own = 0;
        for (uint64_t i = 0; i < 32; i++) {
            submit(&b, i, 512, 3 + (int32_t)i % 7, 8, NULL);
            own += 3 + (int32_t)i % 7;
        }
        cr_assert(dry_step(&b));
        cr_assert_eq(b.step->n_seq, 1);
        dry_drain(&b, 1000);
        const folio_sched_stats st = folio_sched_get_stats(b.s);
        cr_assert_eq((int64_t)st.prefill_tok, 512 + own);
        cr_assert_eq(st.cached_tok, 31 * 512);
        dry_close(&b);
    }
}

Test(sched_prefix, only_its_own_class_waits_with_it)
{
    const folio_sched_params p = cached(64, 8);
    dry b;
    int32_t tok[8] = {900, 901, 902, 903, 904, 905, 906, 907};
    dry_open(&b, &p);
    submit(&b, 0, 16, 1, 4, NULL);
    submit(&b, 1, 16, 1, 4, NULL); /* waits for 0 */
    submit(&b, 2, 0, 8, 4, NULL);  /* behind it */
    folio_request_params other = {
        .id = 3, .prompt = tok, .n_prompt = 8, .max_new = 4, .priority = 1};
    dry_submit_as(&b, &other);
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_seq, 2);
    cr_assert_eq(b.step->admitted[0]->id, 3); /* the higher class first */
    cr_assert_eq(b.step->admitted[1]->id, 0);
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_seq, 4);
    dry_drain(&b, 20);
    dry_close(&b);
}

/* And a lower class does not wait with a higher one. */
Test(sched_prefix, a_lower_class_goes_on)
{
    const folio_sched_params p = cached(64, 8);
    dry b;
    int32_t tok[20];
    dry_open(&b, &p);
    for (int32_t i = 0; i < 20; i++)
        tok[i] = 900 + i;
    folio_request_params r = {
        .id = 0, .prompt = tok, .n_prompt = 17, .max_new = 4, .priority = 2};
    dry_submit_as(&b, &r);
    r.id = 1; /* waits for 0 */
    dry_submit_as(&b, &r);
    submit(&b, 2, 0, 8, 4, NULL);
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_admitted, 2);
    cr_assert_eq(b.step->admitted[0]->id, 0);
    cr_assert_eq(b.step->admitted[1]->id, 2);
    dry_drain(&b, 20);
    dry_close(&b);
}

/* Whoever waited for a prefix goes on when its computer is gone. */
Test(sched_prefix, the_computer_of_a_prefix_may_vanish)
{
    folio_sched_params p = cached(64, 4);
    p.step_tok = 4;
    dry b;
    dry_open(&b, &p);
    submit(&b, 0, 16, 1, 4, NULL);
    submit(&b, 1, 16, 1, 4, NULL);
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_waiting, 1);
    OK(folio_sched_abort(b.s, 0));
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->admitted[0]->id, 1);
    /* What 0 had computed is not computed again. */
    cr_assert_eq(b.step->seq[0].first, 4);
    dry_drain(&b, 30);
    cr_assert_eq(dry_text_of(&b, 1, 0)->n, 4);
    dry_close(&b);
}

/* A prompt that is found in part and computed in chunks. */
Test(sched_prefix, chunks_behind_a_prefix)
{
    static const int32_t chunks[] = {1, 2, 3, 4, 5, 7, 16, 0};
    for (int32_t prefix = 0; prefix <= 20; prefix++)
        for (size_t c = 0; c < FOLIO_COUNT(chunks); c++) {
            folio_sched_params p = cached(32, 2);
            p.chunk_tok = chunks[c];
            dry b, plain;
            dry_open(&b, &p);
            submit(&b, 0, prefix, 1, 1, NULL);
            dry_drain(&b, 100);
            submit(&b, 1, prefix, 13, 6, NULL);
            dry_drain(&b, 100);
            cr_assert_eq(dry_text_of(&b, 1, 0)->n_cached, prefix / 4 * 4);
            p = dry_params(32, 4, 2);
            dry_open(&plain, &p);
            submit(&plain, 0, prefix, 1, 1, NULL);
            submit(&plain, 1, prefix, 13, 6, NULL);
            dry_drain(&plain, 100);
            dry_same_texts(&b, &plain);
            dry_close(&b);
            dry_close(&plain);
        }
}

/* A text is found again by those who continue it. */
Test(sched_prefix, output_is_found_again)
{
    const folio_sched_params p = cached(64, 2);
    dry b;
    int32_t tok[64];
    dry_open(&b, &p);
    submit(&b, 0, 7, 0, 14, NULL); /* 20 positions: 5 full blocks */
    dry_drain(&b, 30);
    const dry_text *t = dry_text_of(&b, 0, 0);
    for (int32_t i = 0; i < 7; i++)
        tok[i] = dry_prompt_tok(500, i);
    memcpy(tok + 7, t->tok, 14 * sizeof *tok);
    for (int32_t i = 21; i < 26; i++)
        tok[i] = 3;
    dry_submit_as(&b,
                  &(folio_request_params){
                      .id = 1, .prompt = tok, .n_prompt = 26, .max_new = 2});
    dry_drain(&b, 30);
    cr_assert_eq(dry_text_of(&b, 1, 0)->n_cached, 20);
    dry_close(&b);
}

/* Only what a preempted request lost to others is computed again. */
Test(sched_prefix, a_preempted_request_finds_its_own_blocks)
{
    const folio_sched_params plain = dry_params(12, 4, 6), with = cached(12, 6);
    dry a, b;
    dry_open(&a, &plain);
    dry_open(&b, &with);
    for (uint64_t i = 0; i < 6; i++) {
        dry_submit(&a, i, 5, 24);
        dry_submit(&b, i, 5, 24);
    }
    dry_drain(&a, 100);
    dry_drain(&b, 100);
    const folio_sched_stats sa = folio_sched_get_stats(a.s);
    const folio_sched_stats sb = folio_sched_get_stats(b.s);
    cr_assert_eq(sa.recomputed_tok, 107);
    cr_assert_lt(sb.recomputed_tok, 107);
    cr_assert_gt(sb.cached_tok, 0);
    cr_assert_gt(sb.preemptions, 0);
    cr_assert_eq(sb.recomputed_tok + sb.cached_tok, sb.preempted_tok);
    dry_same_texts(&a, &b);
    dry_close(&a);
    dry_close(&b);
}

/* Two that write the same text at the same time end up on one set of blocks. */
Test(sched_prefix, twins_share_what_they_write)
{
    folio_sched_params p = cached(64, 2);
    dry b;
    dry_open(&b, &p);
    submit(&b, 0, 6, 0, 20, NULL);
    cr_assert(dry_step(&b));
    submit(&b, 1, 6, 0, 20, NULL);
    dry_drain(&b, 40);
    const dry_text *x = dry_text_of(&b, 0, 0), *y = dry_text_of(&b, 1, 0);
    cr_assert_eq(memcmp(x->tok, y->tok, 20 * sizeof *x->tok), 0);
    /* 25 positions each: 6 full blocks, once. */
    cr_assert_eq(folio_block_pool_count(folio_sched_pool(b.s)).n_cached, 6);
    dry_close(&b);
}

/* A chain of hashes that all collide changes nothing but the time. */
Test(sched_prefix, collisions_change_no_text)
{
    folio_sched_params p = cached(24, 4);
    dry a, b;
    dry_open(&a, &p);
    p.hash_fn = same_for_all;
    dry_open(&b, &p);
    for (uint64_t i = 0; i < 12; i++) {
        submit(&a, i, (int32_t)i % 3 * 4, 3, 9, NULL);
        submit(&b, i, (int32_t)i % 3 * 4, 3, 9, NULL);
    }
    dry_drain(&a, 200);
    dry_drain(&b, 200);
    dry_same_texts(&a, &b);
    cr_assert_eq(folio_sched_get_stats(a.s).cached_tok,
                 folio_sched_get_stats(b.s).cached_tok);
    dry_close(&a);
    dry_close(&b);
}

/* Least recently used goes first, and a text loses its end before its start. */
Test(sched_prefix, eviction_takes_the_oldest_from_its_end)
{
    const folio_sched_params p = cached(6, 1);
    dry b;
    dry_open(&b, &p);
    submit(&b, 0, 0, 12, 1, NULL); /* 3 blocks */
    dry_drain(&b, 5);
    submit(&b, 1, 0, 8, 1, NULL); /* 2 blocks */
    dry_drain(&b, 5);
    cr_assert_eq(folio_block_pool_count(folio_sched_pool(b.s)).n_cached, 5);
    submit(&b, 2, 0, 8, 1, NULL); /* takes the free one and the end of 0 */
    dry_drain(&b, 5);
    cr_assert_eq(folio_sched_get_stats(b.s).evicted_blocks, 1);
    submit(&b, 3, 0, 9, 1, NULL); /* another text altogether */
    dry_drain(&b, 5);
    dry_close(&b);
    /* The same with the start of 0 asked for. */
    dry_open(&b, &p);
    int32_t tok[12];
    for (int32_t i = 0; i < 12; i++)
        tok[i] = dry_prompt_tok(0, i);
    submit(&b, 0, 0, 12, 1, NULL);
    dry_drain(&b, 5);
    submit(&b, 1, 0, 8, 1, NULL);
    dry_drain(&b, 5);
    submit(&b, 2, 0, 8, 1, NULL);
    dry_drain(&b, 5);
    dry_submit_as(&b,
                  &(folio_request_params){
                      .id = 3, .prompt = tok, .n_prompt = 12, .max_new = 1});
    dry_drain(&b, 5);
    cr_assert_eq(dry_text_of(&b, 3, 0)->n_cached, 8);
    dry_close(&b);
}

/* ---- what a blocked head costs ------------------------------------------- */

static int n_hashes;

static folio_hash128 counting_hash(const void *data, size_t bytes,
                                   uint64_t seed)
{
    n_hashes++;
    return folio_hash_bytes(data, bytes, seed);
}

static uint64_t lookups(const dry *b)
{
    return folio_sched_get_stats(b->s).lookups;
}

/* A text whose blocks are partly held, partly cached and evicted bit by bit,
 * and partly nowhere, waits for room while others write and publish: its blocks
 * are walked once, whatever its length, and then only the next one is asked
 * for. */
Test(sched_prefix, a_blocked_head_costs_the_same_whatever_its_length)
{
    for (int32_t n_prompt = 200; n_prompt <= 800; n_prompt *= 2) {
        const int32_t blks = n_prompt / 4;
        folio_sched_params p = cached(blks + 2, 8);
        p.hash_fn = counting_hash;
        dry b;
        dry_open(&b, &p);
        submit(&b, 0, n_prompt / 2, 0, 1, NULL); /* to be cached */
        dry_drain(&b, 10);
        submit(&b, 1, n_prompt / 4, 2, 100, NULL); /* holds a part of it */
        submit(&b, 2, 0, 3, 100, NULL);
        for (int i = 0; i < 8; i++)
            cr_assert(dry_step(&b));
        const uint64_t before = lookups(&b);
        submit(&b, 3, n_prompt, 0, 2, NULL);
        for (int i = 0; i < 4; i++)
            cr_assert(dry_step(&b));
        cr_assert_eq(b.step->n_waiting, 1);
        const uint64_t first = lookups(&b);
        cr_assert_geq(first - before, (uint64_t)n_prompt / 8);
        cr_assert_leq(first - before, (uint64_t)n_prompt / 8 + 8);
        const uint64_t evicted = folio_sched_get_stats(b.s).evicted_blocks;
        n_hashes = 0;
        for (int i = 0; i < 50; i++) {
            cr_assert(dry_step(&b));
            cr_assert_eq(b.step->n_waiting, 1);
            cr_assert_eq(b.step->n_seq, 2);
        }
        cr_assert_leq(lookups(&b) - first, 50, "prompt of %d: %d blocks",
                      (int)n_prompt, (int)(lookups(&b) - first));
        cr_assert_leq(n_hashes, 26); /* the blocks that 1 and 2 filled */
        if (n_prompt == 200)
            cr_assert_gt(folio_sched_get_stats(b.s).evicted_blocks, evicted);
        dry_drain(&b, 400);
        cr_assert_eq(dry_text_of(&b, 3, 0)->n, 2);
        dry_close(&b);
    }
}

/* The watermark is waived for who needs almost the whole pool: here for a head
 * whose shared block loses its holder, though it needs one block more then. */
Test(sched_prefix, a_blocked_head_is_asked_again_when_a_block_is_given_up)
{
    folio_sched_params p = cached(10, 4);
    p.watermark_blocks = 3;
    dry b;
    dry_open(&b, &p);
    submit(&b, 0, 4, 1, 2, NULL); /* 2 blocks, ends with its second token */
    submit(&b, 1, 0, 1, 4, NULL); /* 1 block */
    cr_assert(dry_step(&b));
    submit(&b, 2, 4, 28, 1, NULL); /* 8 blocks, 1 of them that of 0 */
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_waiting, 1);
    cr_assert(dry_step(&b));
    cr_assert_eq(b.step->released[0]->id, 0);
    cr_assert_eq(b.step->admitted[0]->id, 2);
    dry_drain(&b, 10);
    cr_assert_eq(dry_text_of(&b, 2, 0)->n_cached, 4);
    dry_close(&b);
}

/* Who waits for a prefix that is computed in many chunks asks for its blocks
 * when the last of them is there, not after each chunk. */
Test(sched_prefix, waiting_for_a_prefix_costs_one_walk)
{
    folio_sched_params p = cached(600, 4);
    p.chunk_tok = 8;
    dry b;
    dry_open(&b, &p);
    submit(&b, 0, 1000, 1, 4, NULL);
    cr_assert(dry_step(&b));
    const uint64_t before = lookups(&b);
    submit(&b, 1, 1000, 2, 4, NULL);
    for (int i = 0; i < 100; i++)
        cr_assert(dry_step(&b));
    cr_assert_eq(b.step->n_waiting, 1);
    cr_assert_leq(lookups(&b) - before, 250);
    dry_drain(&b, 100);
    cr_assert_leq(lookups(&b) - before, 500);
    cr_assert_eq(dry_text_of(&b, 1, 0)->n_cached, 1000);
    dry_close(&b);
}
