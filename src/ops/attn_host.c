/* ops/attn_host.c: the check of a step's tables, which only the host device can
 * make at the op's own door. */
#include "ops/attn_host.h"

folio_status folio_attn_host_check(const folio_op *op, const folio_attn_args *a)
{
    const folio_log *log = folio_device_log(op->dev);
    const int32_t *q_start = folio_view_host(a->work.q_start);
    const int32_t *kv_len = folio_view_host(a->work.kv_len);
    const int32_t *table_start = folio_view_host(a->work.table_start);
    const int32_t *tables = folio_view_host(a->work.tables);
    int32_t n_seq = a->work.n_seq;
    for (int32_t s = 0; s < n_seq; s++) {
        if (q_start[s] < 0 || q_start[s + 1] < q_start[s] ||
            q_start[s + 1] > a->n_tok)
            return folio_fail(log, FOLIO_E_RANGE,
                              "attn: tokens %d to %d of sequence %d, of %d",
                              q_start[s], q_start[s + 1], s, a->n_tok);
        int64_t n =
            kv_len[s] > 0 ? folio_div_up(kv_len[s], a->kv.block_size) : 0;
        if (n > table_start[s + 1] - table_start[s])
            return folio_fail(log, FOLIO_E_RANGE,
                              "attn: kv_len %d of sequence %d needs %lld "
                              "blocks, its table has %d",
                              kv_len[s], s, (long long)n,
                              table_start[s + 1] - table_start[s]);
        const int32_t *table = tables + table_start[s];
        for (int64_t i = 0; i < n; i++) {
            if (table[i] < 0 || table[i] >= a->kv.n_blocks)
                return folio_fail(log, FOLIO_E_RANGE,
                                  "attn: block %lld of sequence %d is %d, of "
                                  "%d in the pool",
                                  (long long)i, s, table[i], a->kv.n_blocks);
        }
    }
    return FOLIO_OK;
}
