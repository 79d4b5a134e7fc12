/* Batches that a runner refuses: each by its own message, before anything is
 * enqueued, so that the last result and the cache stay as they were. */
#include "unit/support_tiny_llama.h"

#include "base/base.h"

#include <limits.h>
#include <string.h>

static tiny_llama tiny;
static folio_device *dev;
static folio_model *model;
static folio_runner *runner;
static tiny_batch good;
static float before[5 * TINY_VOCAB];
static tiny_seq seq[2];

static void set_up(void)
{
    folio_runner_params p;
    tiny_init(&tiny);
    tiny_save(&tiny);
    dev = tiny_device(&tiny, "host", 0);
    model = tiny_open(&tiny, dev);
    tiny_params(&p);
    p.max_seqs = 2;
    p.max_tok = 16;
    p.max_rows = 5;
    p.max_ctx = 40;
    p.trace = 1;
    runner = tiny_runner(model, &p);
    /* Two sequences, one of 6 tokens and one of 3; 5 rows of logits. */
    const int32_t a[] = {1, 2, 3, 4, 5, 6}, b[] = {7, 8, 9};
    tiny_seq_init(&seq[0], runner, 0, 0);
    tiny_seq_init(&seq[1], runner, 1, 0);
    tiny_batch_init(&good);
    tiny_batch_add(&good, &seq[0], a, 6, false);
    tiny_batch_add(&good, &seq[1], b, 3, false);
    const int32_t rows[] = {0, 2, 5, 6, 8};
    memcpy(good.rows, rows, sizeof rows);
    good.b.n_rows = 5;
    TINY_OK(folio_runner_forward(runner, &good.b, -1));
    TINY_OK(folio_runner_read(runner, before));
}

static void tear_down(void)
{
    folio_runner_close(&runner);
    folio_model_close(&model);
    folio_device_close(&dev);
    tiny_fini(&tiny);
}

/* One ERROR with these words, counters and results as they were. */
static void refused(const folio_batch *b, int32_t trace, folio_status want,
                    const char *words)
{
    float now[5 * TINY_VOCAB];
    folio_runner_counters c0, c1;
    int errs = tiny.ear.n_err;
    folio_runner_get_counters(runner, &c0);
    folio_status st = folio_runner_forward(runner, b, trace);
    folio_runner_get_counters(runner, &c1);
    cr_assert_eq(st, want, "%s: %s instead of %s (%s)", words,
                 folio_status_name(st), folio_status_name(want), tiny.ear.err);
    cr_assert_eq(tiny.ear.n_err, errs + 1, "%s: one message", words);
    cr_assert_not_null(strstr(tiny.ear.err, words), "no '%s' in: %s", words,
                       tiny.ear.err);
    cr_assert_eq(memcmp(&c0, &c1, sizeof c0), 0, "%s: something was enqueued",
                 words);
    TINY_OK(folio_runner_read(runner, now));
    tiny_equal(now, before, 5 * TINY_VOCAB, words);
}

/* The good batch with one field or one entry changed. */
#define BREAK(change, st, words)                                               \
    do {                                                                       \
        static tiny_batch b;                                                   \
        b = good;                                                              \
        b.b.tok = b.tok, b.b.pos = b.pos, b.b.slot = b.slot;                   \
        b.b.q_start = b.q_start, b.b.kv_len = b.kv_len;                        \
        b.b.table_start = b.table_start, b.b.tables = b.tables;                \
        b.b.rows = b.rows, b.b.copies = b.copies;                              \
        change;                                                                \
        refused(&b.b, -1, (st), (words));                                      \
    } while (0)

Test(model_batch, counts_and_arrays, .init = set_up, .fini = tear_down)
{
    BREAK(b.b.n_tok = 0, FOLIO_E_INVAL, "n_tok 0");
    BREAK(b.b.n_tok = -1, FOLIO_E_INVAL, "n_tok -1");
    BREAK(b.b.n_tok = 17, FOLIO_E_TOO_LARGE, "n_tok 17 > max_tok 16");
    BREAK(b.b.n_tok = INT_MAX, FOLIO_E_TOO_LARGE, "max_tok 16");
    BREAK(b.b.n_seq = 0, FOLIO_E_INVAL, "n_seq 0");
    BREAK(b.b.n_seq = 3, FOLIO_E_TOO_LARGE, "n_seq 3 > max_seqs 2");
    BREAK(b.b.n_rows = -1, FOLIO_E_INVAL, "n_rows -1");
    BREAK(b.b.n_rows = 6, FOLIO_E_TOO_LARGE, "n_rows 6 > max_rows 5");
    BREAK(b.b.rows = NULL, FOLIO_E_INVAL, "rows is NULL");
    BREAK(b.b.n_copies = -1, FOLIO_E_INVAL, "n_copies -1");
    BREAK((b.b.n_copies = 1, b.b.copies = NULL), FOLIO_E_INVAL,
          "copies is NULL");
    BREAK(b.b.n_copies = 3, FOLIO_E_TOO_LARGE, "n_copies 3");
    BREAK(b.b.tok = NULL, FOLIO_E_INVAL, "NULL");
    BREAK(b.b.pos = NULL, FOLIO_E_INVAL, "NULL");
    BREAK(b.b.slot = NULL, FOLIO_E_INVAL, "NULL");
    BREAK(b.b.q_start = NULL, FOLIO_E_INVAL, "NULL");
    BREAK(b.b.kv_len = NULL, FOLIO_E_INVAL, "NULL");
    BREAK(b.b.table_start = NULL, FOLIO_E_INVAL, "NULL");
    BREAK(b.b.tables = NULL, FOLIO_E_INVAL, "NULL");
}

Test(model_batch, entries, .init = set_up, .fini = tear_down)
{
    BREAK(b.tok[4] = -1, FOLIO_E_RANGE, "tok[4] = -1");
    BREAK(b.tok[8] = 64, FOLIO_E_RANGE, "tok[8] = 64");
    BREAK(b.pos[2] = 3, FOLIO_E_INVAL, "pos[2] = 3, expected 2");
    BREAK(b.pos[6] = -1, FOLIO_E_INVAL, "pos[6] = -1, expected 0");
    BREAK(b.slot[0] = -1, FOLIO_E_INVAL, "slot[0] = -1");
    BREAK(b.slot[5] += 1, FOLIO_E_INVAL, "slot[5]");
    BREAK(b.slot[7] = INT_MAX, FOLIO_E_INVAL, "slot[7]");
    BREAK(b.q_start[0] = 1, FOLIO_E_INVAL, "q_start runs from 1");
    BREAK(b.q_start[2] = 8, FOLIO_E_INVAL, "to 8, expected 0 to 9");
    BREAK(b.q_start[1] = 10, FOLIO_E_INVAL, "q_start[1] = 10");
    BREAK(b.q_start[1] = -1, FOLIO_E_INVAL, "q_start[1] = -1");
    BREAK(b.kv_len[0] = 5, FOLIO_E_INVAL, "kv_len[0] = 5");
    BREAK(b.kv_len[1] = -1, FOLIO_E_INVAL, "kv_len[1] = -1");
    BREAK(b.kv_len[1] = 41, FOLIO_E_TOO_LARGE, "kv_len[1] = 41 > max_ctx 40");
    BREAK(b.kv_len[0] = INT_MAX, FOLIO_E_TOO_LARGE, "max_ctx 40");
    BREAK(b.kv_len[0] = 9, FOLIO_E_INVAL, "table entries for 3 blocks");
    BREAK(b.tables[1] = -1, FOLIO_E_RANGE, "block -1 of 20");
    BREAK(b.tables[2] = 20, FOLIO_E_RANGE, "block 20 of 20");
    BREAK(b.table_start[0] = -1, FOLIO_E_INVAL, "sequence 0");
    BREAK(b.table_start[1] = 1, FOLIO_E_INVAL, "1 table entries for 2 blocks");
    BREAK(b.table_start[2] = 1, FOLIO_E_INVAL, "sequence 1");
    BREAK(b.rows[0] = -1, FOLIO_E_RANGE, "rows[0] = -1");
    BREAK(b.rows[4] = 9, FOLIO_E_RANGE, "rows[4] = 9");
    BREAK(b.rows[3] = 5, FOLIO_E_RANGE, "rows[3] = 5");
    BREAK(b.rows[3] = 4, FOLIO_E_RANGE, "rows[3] = 4");
    /* Both sequences on one block: two tokens for one slot. */
    BREAK((b.tables[2] = b.tables[0], b.slot[6] = b.slot[0],
           b.slot[7] = b.slot[1], b.slot[8] = b.slot[2]),
          FOLIO_E_INVAL, "is written by another token");
    /* One block twice in one table. */
    BREAK((b.tables[1] = b.tables[0], b.slot[4] = b.slot[0],
           b.slot[5] = b.slot[1]),
          FOLIO_E_INVAL, "is written by another token");
}

Test(model_batch, copies, .init = set_up, .fini = tear_down)
{
    BREAK((b.b.n_copies = 1, b.copies[0] = -1, b.copies[1] = 3), FOLIO_E_RANGE,
          "block -1");
    BREAK((b.b.n_copies = 1, b.copies[0] = 3, b.copies[1] = 20), FOLIO_E_RANGE,
          "block 20");
    BREAK((b.b.n_copies = 1, b.copies[0] = b.copies[1] = 3), FOLIO_E_INVAL,
          "writes block 3");
    BREAK((b.b.n_copies = 2, b.copies[0] = 1, b.copies[1] = 9, b.copies[2] = 2,
           b.copies[3] = 9),
          FOLIO_E_INVAL, "writes block 9");
    BREAK((b.b.n_copies = 2, b.copies[0] = 1, b.copies[1] = 8, b.copies[2] = 8,
           b.copies[3] = 9),
          FOLIO_E_INVAL, "writes block 8");
}

Test(model_batch, trace_and_reads, .init = set_up, .fini = tear_down)
{
    float x[(TINY_LAYERS + 2) * TINY_DIM];
    refused(&good.b, 1, FOLIO_E_INVAL, "token 1 is not among the 5 rows");
    refused(&good.b, 9, FOLIO_E_INVAL, "token 9");
    cr_assert_eq(folio_runner_read_trace(runner, x), FOLIO_E_INVAL);
    TINY_OK(folio_runner_forward(runner, &good.b, 2));
    TINY_OK(folio_runner_read_trace(runner, x));
    cr_assert_eq(folio_runner_forward(NULL, &good.b, -1), FOLIO_E_INVAL);
    cr_assert_eq(folio_runner_forward(runner, NULL, -1), FOLIO_E_INVAL);
    cr_assert_eq(folio_runner_read(runner, NULL), FOLIO_E_INVAL);
    cr_assert_eq(folio_runner_read_trace(runner, NULL), FOLIO_E_INVAL);

    folio_runner_params p;
    tiny_params(&p);
    folio_runner *other = tiny_runner(model, &p);
    cr_assert_eq(folio_runner_read(other, before), FOLIO_E_INVAL);
    cr_assert_not_null(strstr(tiny.ear.err, "no finished forward"));
    cr_assert_eq(folio_runner_forward(other, &good.b, 2), FOLIO_E_INVAL);
    cr_assert_not_null(strstr(tiny.ear.err, "opened without it"));
    folio_runner_close(&other);
}

/* After a refusal the sequences go on as if it had not been. */
Test(model_batch, refusals_leave_the_cache_alone, .init = set_up,
     .fini = tear_down)
{
    const int32_t next[] = {11, 12};
    float want[TINY_VOCAB], got[TINY_VOCAB];
    tiny_seq again;
    /* Places 2 and 3 are not there: the pool holds two sequences. So the
     * answer is computed first, on the second one's blocks. */
    tiny_seq_init(&again, runner, 1, 0);
    tiny_feed(runner, &again, good.tok, 6, 0, false, NULL);
    tiny_feed(runner, &again, next, 2, 1, false, want);
    tiny_batch_init(&good);
    tiny_seq bad = seq[0];
    tiny_batch_add(&good, &bad, next, 2, false);
    good.tok[1] = 64;
    cr_assert_eq(folio_runner_forward(runner, &good.b, -1), FOLIO_E_RANGE);
    good.tok[1] = 12;
    good.slot[1] = 0;
    cr_assert_eq(folio_runner_forward(runner, &good.b, -1), FOLIO_E_INVAL);
    tiny_feed(runner, &seq[0], next, 2, 1, false, got);
    tiny_equal(got, want, TINY_VOCAB, "after refusals");
}

/* One upload a forward, nothing else on the bus; reads only when asked. */
Test(model_batch, what_goes_over_the_bus, .init = set_up, .fini = tear_down)
{
    folio_runner_counters c0, c1;
    const int32_t id = 3;
    int32_t best, nan;
    float v;
    /* A block: norm, q, k, v, rope and append, attention, o; norm, gate, up,
     * SwiGLU, down. Around: embedding; rows, norm, head. */
    const uint64_t launches = 1 + 12 * TINY_LAYERS + 3;
    for (int step = 0; step < 3; step++) {
        folio_runner_get_counters(runner, &c0);
        tiny_feed(runner, &seq[0], &id, 1, 0, false, NULL);
        folio_runner_get_counters(runner, &c1);
        cr_assert_eq(c1.launches - c0.launches, launches, "%llu launches",
                     (unsigned long long)(c1.launches - c0.launches));
        cr_assert_eq(c1.writes - c0.writes, 1);
        cr_assert_eq(c1.reads - c0.reads, 0);
        cr_assert_eq(c1.waits - c0.waits, 0);
        cr_assert_eq(c1.tokens - c0.tokens, 1);
        cr_assert_eq(c1.forwards - c0.forwards, 1);
        TINY_OK(folio_runner_read_top(runner, 1, &best, &v, &nan));
        folio_runner_get_counters(runner, &c0);
        cr_assert_eq(c0.launches - c1.launches, 1);
        cr_assert_eq(c0.writes - c1.writes, 0);
        cr_assert_eq(c0.reads - c1.reads, 1);
        cr_assert_eq(c0.waits - c1.waits, 1);
    }
    /* A prefill of many tokens costs as many launches. */
    tiny_seq s;
    tiny_seq_init(&s, runner, 1, 0);
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    folio_runner_get_counters(runner, &c0);
    tiny_feed(runner, &s, ids, 12, 0, false, NULL);
    folio_runner_get_counters(runner, &c1);
    cr_assert_eq(c1.launches - c0.launches, launches);
    cr_assert_eq(c1.writes - c0.writes, 1);
    /* Without rows there is no head. */
    static tiny_batch b;
    tiny_batch_init(&b);
    tiny_batch_add(&b, &s, ids, 2, false);
    b.b.n_rows = 0;
    TINY_OK(folio_runner_forward(runner, &b.b, -1));
    folio_runner_get_counters(runner, &c0);
    cr_assert_eq(c0.launches - c1.launches, launches - 3);
}
