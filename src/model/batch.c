/* model/batch.c: see batch.h. */
#include "model/batch.h"

#define BAD(st, ...) folio_fail(log, (st), __VA_ARGS__)

static folio_status check_counts(const folio_batch *b,
                                 const folio_batch_limits *lim,
                                 const folio_log *log)
{
    if (b->n_tok < 1 || b->n_seq < 1)
        return BAD(FOLIO_E_INVAL, "batch: n_tok %d and n_seq %d must be >= 1",
                   b->n_tok, b->n_seq);
    const struct {
        const char *name;
        const void *array;
        bool needed;
    } arrays[] = {
        {"tok", b->tok, true},
        {"pos", b->pos, true},
        {"slot", b->slot, true},
        {"q_start", b->q_start, true},
        {"kv_len", b->kv_len, true},
        {"table_start", b->table_start, true},
        {"tables", b->tables, true},
        {"rows", b->rows, b->n_rows > 0},
        {"copies", b->copies, b->n_copies > 0},
    };
    for (size_t i = 0; i < FOLIO_COUNT(arrays); i++)
        if (arrays[i].needed && !arrays[i].array)
            return BAD(FOLIO_E_INVAL, "batch: %s is NULL", arrays[i].name);
    if (b->n_rows < 0 || b->n_copies < 0)
        return BAD(FOLIO_E_INVAL,
                   "batch: n_rows %d and n_copies %d must be >= 0", b->n_rows,
                   b->n_copies);
    if (b->n_tok > lim->max_tok)
        return BAD(FOLIO_E_TOO_LARGE, "batch: n_tok %d > max_tok %d", b->n_tok,
                   lim->max_tok);
    if (b->n_seq > lim->max_seqs)
        return BAD(FOLIO_E_TOO_LARGE, "batch: n_seq %d > max_seqs %d", b->n_seq,
                   lim->max_seqs);
    if (b->n_rows > lim->max_rows)
        return BAD(FOLIO_E_TOO_LARGE, "batch: n_rows %d > max_rows %d",
                   b->n_rows, lim->max_rows);
    if (b->n_copies > lim->max_copies)
        return BAD(FOLIO_E_TOO_LARGE, "batch: n_copies %d > max_seqs %d",
                   b->n_copies, lim->max_copies);
    return FOLIO_OK;
}

static bool is_open(const folio_batch_limits *lim, int32_t s)
{
    return lim->open_row && lim->open_row[s] >= 0 &&
           lim->open_row[s] < lim->n_open;
}

/* Sequence s: lengths, its part of the tables, positions and slots. */
static folio_status check_seq(const folio_batch *b,
                              const folio_batch_limits *lim, int32_t s,
                              const folio_log *log)
{
    int32_t first = b->q_start[s], last = b->q_start[s + 1];
    int32_t bs = lim->block_size, kv = b->kv_len[s];
    if (last < first || last > b->n_tok)
        return BAD(FOLIO_E_INVAL, "batch: q_start[%d] = %d after %d, n_tok %d",
                   s + 1, last, first, b->n_tok);
    int32_t n = last - first;
    if (kv < n || kv < 0)
        return BAD(FOLIO_E_INVAL,
                   "batch: kv_len[%d] = %d is less than its %d new tokens", s,
                   kv, n);
    if (kv > lim->max_ctx)
        return BAD(FOLIO_E_TOO_LARGE, "batch: kv_len[%d] = %d > max_ctx %d", s,
                   kv, lim->max_ctx);
    int64_t have = (int64_t)b->table_start[s + 1] - b->table_start[s];
    int64_t need = folio_div_up(kv, bs);
    if (b->table_start[s] < 0 || have < need)
        return BAD(FOLIO_E_INVAL,
                   "batch: sequence %d has %lld table entries for %lld blocks",
                   s, (long long)have, (long long)need);
    const int32_t *table = b->tables + b->table_start[s];
    for (int64_t i = 0; i < need; i++)
        if (table[i] < 0 || table[i] >= lim->n_blocks)
            return BAD(FOLIO_E_RANGE,
                       "batch: table entry %lld of sequence %d is block %d of "
                       "%d",
                       (long long)i, s, table[i], lim->n_blocks);
    for (int32_t t = first; t < last; t++) {
        int32_t pos = kv - (last - t);
        if (b->pos[t] != pos)
            return BAD(FOLIO_E_INVAL, "batch: pos[%d] = %d, expected %d", t,
                       b->pos[t], pos);
        int32_t slot = table[pos / bs] * bs + pos % bs;
        if (b->slot[t] != slot)
            return BAD(FOLIO_E_INVAL, "batch: slot[%d] = %d, the table says %d",
                       t, b->slot[t], slot);
        if (is_open(lim, s) && t == last - 1 && b->tok[t] == -1)
            continue;
        if (b->tok[t] < 0 || b->tok[t] >= lim->n_vocab)
            return BAD(FOLIO_E_RANGE,
                       "batch: tok[%d] = %d is outside the vocabulary of %d", t,
                       b->tok[t], lim->n_vocab);
    }
    return FOLIO_OK;
}

/* No two tokens may write to one slot. */
static folio_status check_unique(const folio_batch *b, uint8_t *bits,
                                 const folio_log *log)
{
    folio_status st = FOLIO_OK;
    int32_t t = 0;
    for (; t < b->n_tok; t++) {
        uint32_t slot = (uint32_t)b->slot[t];
        if (bits[slot / 8] & (1u << slot % 8)) {
            st = BAD(FOLIO_E_INVAL,
                     "batch: slot[%d] = %u is written by another token too", t,
                     slot);
            break;
        }
        bits[slot / 8] |= (uint8_t)(1u << slot % 8);
    }
    while (t-- > 0) {
        uint32_t slot = (uint32_t)b->slot[t];
        bits[slot / 8] &= (uint8_t) ~(1u << slot % 8);
    }
    return st;
}

folio_status folio_batch_check(const folio_batch *b,
                               const folio_batch_limits *lim,
                               uint8_t *slot_bits, const folio_log *log)
{
    FOLIO_RETURN_IF(check_counts(b, lim, log));
    if (b->q_start[0] != 0 || b->q_start[b->n_seq] != b->n_tok)
        return BAD(FOLIO_E_INVAL,
                   "batch: q_start runs from %d to %d, expected 0 to %d",
                   b->q_start[0], b->q_start[b->n_seq], b->n_tok);
    for (int32_t s = 0; s < b->n_seq; s++)
        FOLIO_RETURN_IF(check_seq(b, lim, s, log));
    FOLIO_RETURN_IF(check_unique(b, slot_bits, log));
    for (int32_t i = 0; i < b->n_rows; i++)
        if (b->rows[i] < 0 || b->rows[i] >= b->n_tok ||
            (i > 0 && b->rows[i] <= b->rows[i - 1]))
            return BAD(FOLIO_E_RANGE,
                       "batch: rows[%d] = %d, must ascend within %d tokens", i,
                       b->rows[i], b->n_tok);
    for (int32_t i = 0; i < 2 * b->n_copies; i++)
        if (b->copies[i] < 0 || b->copies[i] >= lim->n_blocks)
            return BAD(FOLIO_E_RANGE, "batch: copies[%d] = block %d of %d", i,
                       b->copies[i], lim->n_blocks);
    for (int32_t i = 0; i < b->n_copies; i++)
        for (int32_t j = 0; j < b->n_copies; j++)
            if (b->copies[2 * i + 1] == b->copies[2 * j] ||
                (i != j && b->copies[2 * i + 1] == b->copies[2 * j + 1]))
                return BAD(FOLIO_E_INVAL,
                           "batch: copy %d writes block %d, which copy %d "
                           "uses too",
                           i, b->copies[2 * i + 1], j);
    return FOLIO_OK;
}
