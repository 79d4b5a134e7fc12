/* ops/ref/ref_attn.c: what paged attention means. For each token and head two
 * walks over the visible keys in order, the first for the largest logit, the
 * second for the sums, all in double. Frozen: never optimised. */
#include "ops/attn_host.h"
#include "ops/variants.h"

#include <math.h>

/* The largest head that op_check lets through. */
#define MAX_HEAD 256

/* One query: keys first..last of a sequence. */
typedef struct ref_query {
    const folio_attn_args *a;
    const float *q;
    const int32_t *table;
    int32_t kvh, first, last;
} ref_query;

static double logit_of(const ref_query *r, int32_t key)
{
    const folio_kv_ref *kv = &r->a->kv;
    double dot = 0;
    for (int32_t d = 0; d < kv->head_dim; d++)
        dot += (double)r->q[d] *
               (double)folio_attn_host_k(kv, r->table, key, r->kvh, d);
    double s = dot * (double)r->a->scale;
    if (r->a->softcap > 0)
        s = (double)r->a->softcap * tanh(s / (double)r->a->softcap);
    return s;
}

static void attend(const ref_query *r, const float *sink, float *out)
{
    const folio_kv_ref *kv = &r->a->kv;
    double acc[MAX_HEAD] = {0};
    double sum = 0;
    if (r->first <= r->last) {
        double max = logit_of(r, r->first);
        for (int32_t key = r->first + 1; key <= r->last; key++)
            max = fmax(max, logit_of(r, key));
        if (sink) {
            max = fmax(max, (double)*sink);
            sum = exp((double)*sink - max);
        }
        for (int32_t key = r->first; key <= r->last; key++) {
            double p = exp(logit_of(r, key) - max);
            for (int32_t d = 0; d < kv->head_dim; d++)
                acc[d] +=
                    p * (double)folio_attn_host_v(kv, r->table, key, r->kvh, d);
            sum += p;
        }
    }
    for (int32_t d = 0; d < kv->head_dim; d++)
        out[d] = r->first <= r->last ? (float)(acc[d] / sum) : 0;
}

static folio_status run_attn(folio_op *op, folio_queue *q, const void *args)
{
    const folio_attn_args *a = args;
    const folio_attn_work *w = &a->work;
    const int32_t *q_start = folio_view_host(w->q_start);
    const int32_t *kv_len = folio_view_host(w->kv_len);
    const int32_t *table_start = folio_view_host(w->table_start);
    const int32_t *tables = folio_view_host(w->tables);
    const float *rows = folio_view_host(a->q);
    const float *sinks = folio_view_host(a->sinks);
    float *out = folio_view_host(a->out);
    int32_t group = a->heads / a->kv.kv_heads, hd = a->kv.head_dim;
    FOLIO_RETURN_IF(folio_attn_host_check(op, a));
    for (int32_t s = 0; s < w->n_seq; s++) {
        for (int32_t tok = q_start[s]; tok < q_start[s + 1]; tok++) {
            int32_t pos = kv_len[s] - (q_start[s + 1] - tok);
            int32_t first = a->window > 0 ? pos - a->window + 1 : 0;
            for (int32_t h = 0; h < a->heads; h++) {
                ref_query r = {.a = a,
                               .q = rows + (size_t)tok * (size_t)a->q_stride +
                                    (size_t)h * (size_t)hd,
                               .table = tables + table_start[s],
                               .kvh = h / group,
                               .first = FOLIO_MAX(first, 0),
                               .last = pos};
                attend(&r, sinks ? sinks + h : NULL,
                       out + (size_t)tok * (size_t)a->out_stride +
                           (size_t)h * (size_t)hd);
            }
        }
    }
    folio_queue_count_launch(q);
    return FOLIO_OK;
}

const folio_variant_fns folio_var_ref_attn = {.run = run_attn};
