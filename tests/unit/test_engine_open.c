/* unit/test_engine_open.c: what an engine decides when it opens: the size of
 * its pool, the longest text, and what it refuses; what goes over the bus in a
 * step; the trace of the steps. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device/impl.h"
#include "unit/engine_bed.h"

static eng b;
static const int32_t some[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static void set_up(void)
{
    eng_init(&b, "host", false);
}

static void tear_down(void)
{
    eng_fini(&b);
}

TestSuite(engine_open, .init = set_up, .fini = tear_down);

static folio_engine_info info(void)
{
    folio_engine_info i = {.size = sizeof i};
    folio_engine_get_info(b.e, &i);
    return i;
}

/* 2 layers, K and V, 4 tokens, 2 heads of 4 floats. */
enum { BLOCK_BYTES = 2 * 2 * 4 * 2 * 4 * 4 };

static void refused(folio_status want, const char *says)
{
    folio_engine *e = NULL;
    b.tiny.ear.err[0] = '\0';
    const folio_status st = folio_engine_open(b.model, b.tok, &b.p, &e);
    cr_assert_eq(st, want, "%s: %s", says, folio_status_name(st));
    cr_assert_null(e);
    cr_assert_not_null(strstr(b.tiny.ear.err, says), "'%s' is not in '%s'",
                       says, b.tiny.ear.err);
}

Test(engine_open, bad_fields_are_refused_by_name)
{
    static const struct {
        const char *says;
        size_t at;
        int32_t value;
    } bad[] = {
#define AT(f) offsetof(folio_engine_params, f)
        {"max_seqs", AT(max_seqs), 0},
        {"max_ctx", AT(max_ctx), -1},
        {"budget", AT(budget), -1},
        {"budget", AT(budget), 7}, /* below max_seqs */
        {"block_size", AT(block_size), 0},
        {"n_blocks", AT(n_blocks), -1},
        {"deterministic", AT(deterministic), 2},
        {"exact", AT(exact), 2},
        {"prefix_cache", AT(prefix_cache), -1},
        {"chunking", AT(chunking), 2},
        {"watermark_blocks", AT(watermark_blocks), -2},
        {"age_steps", AT(age_steps), -1},
        {"max_waiting", AT(max_waiting), -1},
        {"audit", AT(audit), 2},
        {"prompt_logprobs", AT(prompt_logprobs), 2},
        {"trace_steps", AT(trace_steps), -1},
        {"run_ahead", AT(run_ahead), 2},
#undef AT
    };
    for (size_t i = 0; i < FOLIO_COUNT(bad); i++) {
        const folio_engine_params keep = b.p;
        memcpy((char *)&b.p + bad[i].at, &bad[i].value, sizeof bad[i].value);
        refused(FOLIO_E_INVAL, bad[i].says);
        b.p = keep;
    }
    b.p.pace = 1.0;
    refused(FOLIO_E_INVAL, "pace");
    b.p.pace = -1;
    b.p.utilization = 0.0;
    refused(FOLIO_E_INVAL, "utilization");
    b.p.utilization = .9;
    b.p.watermark_share = 1.0;
    refused(FOLIO_E_INVAL, "watermark_share");
    b.p.watermark_share = .01;
    b.p.n_blocks = 8;
    b.p.kv_bytes = 4096;
    refused(FOLIO_E_INVAL, "exclude each other");
    b.p.kv_bytes = 0;
    b.p.watermark_blocks = 8;
    refused(FOLIO_E_INVAL, "watermark_blocks");
    b.p.watermark_blocks = -1;
    b.p.kv_type = FOLIO_KV_I8;
    refused(FOLIO_E_UNSUPPORTED, "KV");
    folio_engine *e = NULL;
    cr_assert_eq(folio_engine_open(NULL, NULL, &b.p, &e), FOLIO_E_INVAL);
    cr_assert_eq(folio_engine_open(b.model, NULL, &b.p, NULL), FOLIO_E_INVAL);
    b.p.size = 8;
    cr_assert_eq(folio_engine_open(b.model, NULL, &b.p, &e), FOLIO_E_INVAL);
}

Test(engine_open, the_host_gets_one_text_unless_more_is_asked)
{
    eng_open(&b);
    cr_assert_eq(info().max_ctx, 1024);
    cr_assert_eq(info().n_blocks, 256);
    cr_assert_eq(info().budget, 64);
    cr_assert_eq(info().kv_bytes, 256 * BLOCK_BYTES);
    b.p.max_ctx = 102;
    eng_open(&b);
    cr_assert_eq(info().max_ctx, 102);
    cr_assert_eq(info().n_blocks, 26); /* the last id is never cached */
    b.p.kv_bytes = 100 * BLOCK_BYTES + 7;
    b.p.max_seqs = 600;
    eng_open(&b);
    cr_assert_eq(info().n_blocks, 100);
    cr_assert_eq(info().kv_bytes, 100 * BLOCK_BYTES);
    cr_assert_eq(info().budget, 1200);
    b.p.max_ctx = 0;
    b.p.kv_bytes = 0;
    b.p.n_blocks = 10;
    eng_open(&b);
    cr_assert_eq(info().max_ctx, 41);
}

/* Whatever budget and places are asked for, a step has no more tokens than the
 * pool has slots: neither scratch nor rows of logits are made for more. */
Test(engine_open, no_scratch_beyond_the_pool)
{
    uint64_t live[2];
    b.p.max_ctx = 64;
    for (int rows = 0; rows < 2; rows++)
        for (int big = 0; big < 2; big++) {
            b.p.prompt_logprobs = rows;
            b.p.budget = big ? 1 << 20 : 64;
            eng_open(&b);
            cr_assert_eq(info().n_blocks, 16);
            live[big] = folio_device_live_bytes(b.dev);
            if (big)
                cr_expect_eq(live[1], live[0], "prompt_logprobs %d", rows);
        }
    b.p.prompt_logprobs = 0;
    b.p.max_ctx = 200;
    b.p.block_size = 512;
    refused(FOLIO_E_INVAL, "512");
    refused(FOLIO_E_INVAL, "200");
}

Test(engine_open, too_small_says_both_numbers)
{
    b.p.max_ctx = 102;
    b.p.n_blocks = 25;
    refused(FOLIO_E_TOO_LARGE, "100 tokens");
    refused(FOLIO_E_TOO_LARGE, "needs 101");
    b.p.n_blocks = 0;
    b.p.kv_bytes = BLOCK_BYTES - 1;
    refused(FOLIO_E_TOO_LARGE, "less than one block");
    b.p.kv_bytes = 0;
    b.p.max_ctx = 1025;
    refused(FOLIO_E_TOO_LARGE, "1024");
    refused(FOLIO_E_TOO_LARGE, "1025");
}

/* As if the host device were a card of its own. */
Test(engine_open, a_card_is_filled_up_to_its_share)
{
    folio_device_info *d = &b.dev->info;
    d->kind = FOLIO_DEVICE_GPU_DISCRETE;
    d->global_bytes = 4 << 20;
    b.p.utilization = .5;
    eng_open(&b);
    const uint64_t taken = atomic_load(&b.dev->live_bytes);
    cr_assert_leq(taken, 2 << 20, "%llu bytes taken",
                  (unsigned long long)taken);
    cr_assert_gt(taken, (2 << 20) - 2 * BLOCK_BYTES - 65536);
    cr_assert_gt(info().n_blocks, 256);
    const int32_t alone = info().n_blocks;
    /* A second one takes what the first one left: nothing. */
    refused(FOLIO_E_TOO_LARGE, "one text of max_ctx");
    /* Scratch for more tokens at once leaves fewer blocks. */
    cr_assert_eq(info().budget, 512);
    b.p.budget = 16;
    eng_open(&b);
    cr_assert_gt(info().n_blocks, alone);
    d->global_bytes = 0; /* it does not say */
    eng_open(&b);
    cr_assert_eq(info().n_blocks, 256);
}

/* ---- the bus ------------------------------------------------------------- */

/* Of the tiny model, plainly lowered: embed, 12 for each of 2 layers, 3 of the
 * head. */
enum { N_LAUNCHES = 28 };

/* What one step put on the bus. */
typedef struct traffic {
    uint64_t launches, writes, reads, waits;
} traffic;

static traffic between(const folio_engine_stats *s, const folio_engine_stats *t)
{
    return (traffic){t->launches - s->launches, t->writes - s->writes,
                     t->reads - s->reads, t->waits - s->waits};
}

static int32_t leave_it(void *user, folio_logits_row *row)
{
    (void)user;
    (void)row;
    return FOLIO_LOGITS_DRAW;
}

typedef enum batch_kind {
    BATCH_PLAIN,  /* greedy: the best ids */
    BATCH_DRAWN,  /* sampled, with penalties, bias and bans among them */
    BATCH_SCORED, /* some with log-probabilities */
    BATCH_MIXED,  /* one needs the host */
    BATCH_HOST,   /* all do */
    BATCH_KINDS
} batch_kind;

static uint64_t submit_of(batch_kind kind, int i)
{
    static const folio_logit_bias bias[] = {{3, 1.0f}, {1, -2.0f}};
    static const int32_t ban[] = {5};
    folio_engine_request r;
    folio_engine_request_default(&r);
    r.prompt = some + i;
    r.n_prompt = 5 + (i % 2);
    r.max_new = 7;
    r.sample.temperature = kind == BATCH_PLAIN ? 0.0f : 1.0f;
    r.sample.seed = (uint64_t)i;
    if (kind == BATCH_DRAWN) {
        r.sample.repetition_penalty = i % 2 ? 1.2f : 1.0f;
        r.sample.presence_penalty = i % 3 ? .5f : 0.0f;
        r.sample.logit_bias = bias;
        r.sample.n_logit_bias = i % 4 == 1 ? 2 : 0;
        r.sample.banned = ban;
        r.sample.n_banned = i % 4 == 2;
    }
    if (kind == BATCH_SCORED)
        r.logprobs = i % 3;
    if (kind == BATCH_HOST || (kind == BATCH_MIXED && i == 3))
        r.logits = leave_it;
    return eng_submit_as(&b, &r);
}

Test(engine_open, one_write_and_one_read_whatever_the_batch)
{
    /* Behind the head, and reads: rows that need the host are one more. All of
     * a step that needs it draw nothing on the device. */
    static const struct {
        uint64_t launches, reads;
    } want[BATCH_KINDS] = {{1, 1}, {1, 1}, {2, 1}, {1, 2}, {0, 1}};
    b.p.n_blocks = 64;
    b.p.budget = 16;
    b.p.prefix_cache = 0;
    eng_open(&b);
    for (int kind = 0; kind < BATCH_KINDS; kind++) {
        int n_full = 0, n_fewer = 0;
        for (int i = 0; i < 6; i++)
            submit_of((batch_kind)kind, i);
        while (!folio_engine_is_idle(b.e)) {
            const folio_engine_stats s = eng_stats(&b);
            eng_step(&b);
            const folio_engine_stats t = eng_stats(&b);
            const traffic x = between(&s, &t);
            if (t.steps == s.steps) {
                cr_assert_eq(x.launches + x.writes + x.reads + x.waits, 0);
                continue;
            }
            cr_assert_eq(x.writes, 1, "%llu writes",
                         (unsigned long long)x.writes);
            cr_assert_eq(x.waits, x.reads);
            const bool full = x.launches == N_LAUNCHES + want[kind].launches &&
                              x.reads == want[kind].reads;
            /* Before the one that is different joins or after it left, the
             * others are as if it had never been there. */
            const bool fewer = (kind == BATCH_SCORED || kind == BATCH_MIXED) &&
                               x.launches == N_LAUNCHES + 1 && x.reads == 1;
            cr_assert(full || fewer, "kind %d: %llu launches, %llu reads", kind,
                      (unsigned long long)x.launches,
                      (unsigned long long)x.reads);
            n_full += full;
            n_fewer += fewer;
        }
        cr_assert_gt(n_full, 5);
        cr_assert_lt(n_fewer, 4);
    }
}

/* With run_ahead the same crosses the bus, and one launch more takes the ids
 * where the step before drew them. */
Test(engine_open, running_ahead_costs_one_launch)
{
    b.p.n_blocks = 64;
    b.p.budget = 16;
    b.p.prefix_cache = 0;
    b.p.run_ahead = 1;
    b.p.audit = 0; /* which would wait now and then */
    eng_open(&b);
    for (int kind = BATCH_PLAIN; kind <= BATCH_DRAWN; kind++) {
        for (int i = 0; i < 6; i++)
            submit_of((batch_kind)kind, i);
        eng_step(&b);
        eng_step(&b);
        const folio_engine_stats s = eng_stats(&b);
        for (int i = 0; i < 3; i++)
            eng_step(&b);
        const folio_engine_stats t = eng_stats(&b);
        const traffic x = between(&s, &t);
        cr_assert_eq(t.steps - s.steps, 3);
        cr_assert_eq(x.launches, 3 * (N_LAUNCHES + 2));
        cr_assert_eq(x.writes, 3);
        cr_assert_eq(x.reads, 3);
        cr_assert_eq(x.waits, 3);
        eng_drain(&b, 20);
    }
}

/* More than there is would be filled until somebody ends the process: refused
 * while nothing is taken yet. */
Test(engine_open, a_pool_beyond_the_memory_is_refused_before_it_is_filled)
{
    const uint64_t live = folio_device_live_bytes(b.dev);
    const uint64_t real = b.dev->info.global_bytes;
    b.p.n_blocks = 4096;
    b.dev->info.global_bytes = live + 4096 * BLOCK_BYTES - 1;
    refused(FOLIO_E_TOO_LARGE, "2.0 MiB");
    cr_assert_eq(folio_device_live_bytes(b.dev), live);
    b.p.n_blocks = 0;
    b.p.kv_bytes = UINT64_C(4096) * BLOCK_BYTES;
    refused(FOLIO_E_TOO_LARGE, "4096 blocks");
    b.dev->info.global_bytes = real;
    eng_open(&b);
    cr_assert_eq(info().n_blocks, 4096);
}

/* More slots than there are numbers, where no memory says stop first. */
Test(engine_open, more_slots_than_can_be_numbered_are_refused)
{
    b.dev->info.kind = FOLIO_DEVICE_GPU_DISCRETE;
    b.dev->info.global_bytes = 0;
    b.model->desc.ctx_train = b.p.max_ctx = 1 << 20;
    for (int chunking = 0; chunking < 2; chunking++) {
        b.p.chunking = chunking;
        b.p.max_seqs = 1 << 16;
        b.p.budget = 1 << 16;
        b.p.n_blocks = INT32_MAX;
        b.p.block_size = 1 << 20;
        refused(FOLIO_E_TOO_LARGE, "1048576");
        refused(FOLIO_E_TOO_LARGE, "2147483647");
        b.p.n_blocks = 1 << 11; /* one more than 2^31 - 1 */
        refused(FOLIO_E_TOO_LARGE, "2048");
    }
}

Test(engine_open, figures_of_nothing)
{
    folio_engine_info i = {.size = sizeof i, .n_blocks = 7};
    folio_engine_stats s = {.size = sizeof s, .steps = 7};
    eng_open(&b);
    folio_engine_params_default(NULL);
    folio_engine_request_default(NULL);
    folio_engine_get_info(b.e, NULL);
    folio_engine_get_info(NULL, NULL);
    folio_engine_get_stats(b.e, NULL);
    folio_engine_get_stats(NULL, NULL);
    folio_engine_get_info(NULL, &i);
    folio_engine_get_stats(NULL, &s);
    cr_assert_eq(i.n_blocks, 0);
    cr_assert_eq(i.size, sizeof i);
    cr_assert_eq(s.steps, 0);
    cr_assert_eq(s.size, sizeof s);
}

/* ---- trace --------------------------------------------------------------- */

Test(engine_open, the_trace_holds_the_newest_steps)
{
    char path[128];
    snprintf(path, sizeof path, "%s/trace.json", b.tiny.dir);
    b.p.trace_steps = 4;
    eng_open(&b);
    eng_submit(&b, some, 5, 9);
    eng_drain(&b, 20);
    TINY_OK(folio_engine_trace_write(b.e, path));
    json_error_t err;
    json_t *j = json_load_file(path, 0, &err);
    cr_assert_not_null(j, "%s", err.text);
    const json_t *ev = json_object_get(j, "traceEvents");
    static const char *const names[] = {"plan", "upload", "kernels",
                                        "wait", "sample", "commit"};
    int count[6] = {0};
    json_int_t first = -1, last = -1;
    for (size_t i = 0; i < json_array_size(ev); i++) {
        const json_t *x = json_array_get(ev, i);
        const char *name = json_string_value(json_object_get(x, "name"));
        for (int k = 0; k < 6; k++)
            count[k] += strcmp(name, names[k]) == 0;
        const json_t *step =
            json_object_get(json_object_get(x, "args"), "step");
        if (!step)
            continue;
        last = json_integer_value(step);
        first = first < 0 ? last : first;
        cr_assert(json_is_number(json_object_get(x, "ts")));
        cr_assert_geq(json_number_value(json_object_get(x, "dur")), 0.0);
    }
    for (int k = 0; k < 6; k++)
        cr_assert_eq(count[k], 4, "%d of %s", count[k], names[k]);
    cr_assert_eq(last - first, 3);
    cr_assert_eq(last, 8);
    json_decref(j);
    unlink(path);
    cr_assert_eq(folio_engine_trace_write(b.e, "/nowhere/x"), FOLIO_E_IO);
    cr_assert_eq(folio_engine_trace_write(b.e, NULL), FOLIO_E_INVAL);
    b.p.trace_steps = 0;
    eng_open(&b);
    cr_assert_eq(folio_engine_trace_write(b.e, path), FOLIO_E_INVAL);
}
