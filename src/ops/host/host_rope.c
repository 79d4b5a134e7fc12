/* ops/host/host_rope.c: rope_append of the host device: tokens in parallel,
 * rotation in float, one pass over each tile's pieces. */
#include "ops/host_args.h"
#include "ops/kv_host.h"
#include "ops/variants.h"

#include <string.h>

#define MAX_HEAD 256

typedef struct rope_job {
    const folio_rope_append_args *a;
    const int32_t *pos, *slot;
    const float *table, *k, *v;
    float *q;
} rope_job;

static void rotate(const folio_rope_append_args *a, const float *turn, float *x)
{
    int32_t half = a->rot_dim / 2;
    int32_t step = a->interleaved ? 2 : 1, apart = a->interleaved ? 1 : half;
    for (int32_t i = 0; i < half; i++) {
        float *p = x + i * step;
        float c = turn[2 * i], s = turn[2 * i + 1];
        float x0 = p[0], x1 = p[apart];
        p[0] = x0 * c - x1 * s;
        p[apart] = x1 * c + x0 * s;
    }
}

/* X dims of a token are Y elements apart in the tile; the next X follow one
 * stripe of BS * X elements later. */
static void store(const folio_kv_ref *kv, uint8_t *block, int32_t head,
                  int32_t tok, int32_t x, int32_t y, const float *row)
{
    size_t tile = (size_t)kv->block_size * (size_t)kv->head_dim;
    size_t at = (size_t)head * tile + folio_kv_index((unsigned)tok, 0,
                                                     (unsigned)kv->block_size,
                                                     (unsigned)x, (unsigned)y);
    size_t stripe = (size_t)kv->block_size * (size_t)x;
    for (int32_t d = 0; d < kv->head_dim; d += x, at += stripe)
        for (int32_t j = 0; j < x; j++)
            folio_kv_put(kv->type, block, at + (size_t)j * (size_t)y,
                         row[d + j]);
}

static void append_token(const rope_job *job, int64_t t, const float *turn)
{
    const folio_rope_append_args *a = job->a;
    const folio_kv_ref *kv = &a->kv;
    size_t hd = (size_t)kv->head_dim;
    int32_t block = job->slot[t] / kv->block_size;
    int32_t tok = job->slot[t] % kv->block_size;
    uint8_t *k_block = folio_kv_block_host(kv, &kv->k, block);
    uint8_t *v_block = folio_kv_block_host(kv, &kv->v, block);
    for (int32_t h = 0; h < kv->kv_heads; h++) {
        float k[MAX_HEAD];
        memcpy(k, job->k + (size_t)t * (size_t)a->k_stride + (size_t)h * hd,
               hd * sizeof *k);
        rotate(a, turn, k);
        store(kv, k_block, h, tok, kv->layout.xk, kv->layout.yk, k);
        store(kv, v_block, h, tok, kv->layout.xv, kv->layout.yv,
              job->v + (size_t)t * (size_t)a->v_stride + (size_t)h * hd);
    }
}

static void rope_tokens(void *user, int64_t first, int64_t last, int thread)
{
    (void)thread;
    const rope_job *job = user;
    const folio_rope_append_args *a = job->a;
    for (int64_t t = first; t < last; t++) {
        const float *turn = NULL;
        if (a->rot_dim > 0)
            turn = job->table + (size_t)job->pos[t] * (size_t)a->rot_dim;
        for (int32_t h = 0; job->q && h < a->heads; h++)
            rotate(a, turn,
                   job->q + (size_t)t * (size_t)a->q_stride +
                       (size_t)h * (size_t)a->kv.head_dim);
        if (job->slot[t] >= 0)
            append_token(job, t, turn);
    }
}

static folio_status run_rope(folio_op *op, folio_queue *q, const void *args)
{
    const folio_rope_append_args *a = args;
    rope_job job = {.a = a,
                    .pos = folio_view_host(a->pos),
                    .slot = folio_view_host(a->slot),
                    .table = folio_view_host(a->table),
                    .k = folio_view_host(a->k),
                    .v = folio_view_host(a->v),
                    .q = folio_view_host(a->q)};
    int64_t n_slots = (int64_t)a->kv.n_blocks * a->kv.block_size;
    FOLIO_RETURN_IF(
        folio_host_indices(op, "slot", job.slot, a->n_tok, 1, -1, n_slots));
    if (a->rot_dim > 0)
        FOLIO_RETURN_IF(
            folio_host_indices(op, "pos", job.pos, a->n_tok, 1, 0, a->n_pos));
    folio_parallel_for(folio_device_threads(op->dev), a->n_tok, 4, rope_tokens,
                       &job);
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_host_rope_append = {.run = run_rope};
