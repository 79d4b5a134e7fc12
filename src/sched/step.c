/* sched/step.c: fills the arrays of a step. Decides nothing. */
#include "sched/step.h"

#include <assert.h>
#include <string.h>

folio_status folio_step_init(folio_step *s, int32_t cap_tok, int32_t cap_seq,
                             int32_t cap_released, const folio_log *log)
{
    const size_t t = (size_t)cap_tok, n = (size_t)cap_seq;
    memset(s, 0, sizeof *s);
    s->tok = folio_calloc(t, sizeof *s->tok);
    s->pos = folio_calloc(t, sizeof *s->pos);
    s->slot = folio_calloc(t, sizeof *s->slot);
    s->q_start = folio_calloc(n + 1, sizeof *s->q_start);
    s->kv_len = folio_calloc(n, sizeof *s->kv_len);
    s->table_start = folio_calloc(n + 1, sizeof *s->table_start);
    s->rows = folio_calloc(n, sizeof *s->rows);
    s->row_seq = folio_calloc(n, sizeof *s->row_seq);
    s->copies = folio_calloc(n, sizeof *s->copies);
    s->seq = folio_calloc(n, sizeof *s->seq);
    s->grown = folio_calloc(n, sizeof *s->grown);
    s->row_at = folio_calloc(n, sizeof *s->row_at);
    s->admitted = folio_calloc(n, sizeof(folio_request *));
    s->preempted = folio_calloc(n, sizeof(folio_request *));
    s->released = folio_calloc((size_t)cap_released, sizeof(folio_request *));
    if (!s->tok || !s->pos || !s->slot || !s->q_start || !s->kv_len ||
        !s->table_start || !s->rows || !s->row_seq || !s->copies || !s->seq ||
        !s->grown || !s->row_at || !s->admitted || !s->preempted ||
        !s->released) {
        folio_step_fini(s);
        return folio_fail(log, FOLIO_E_NOMEM,
                          "step: no memory for %d tokens of %d sequences",
                          (int)cap_tok, (int)cap_seq);
    }
    s->cap_tok = cap_tok;
    s->cap_seq = cap_seq;
    s->cap_released = cap_released;
    return FOLIO_OK;
}

void folio_step_fini(folio_step *s)
{
    free(s->tok);
    free(s->pos);
    free(s->slot);
    free(s->q_start);
    free(s->kv_len);
    free(s->table_start);
    free(s->rows);
    free(s->row_seq);
    free(s->copies);
    free(s->seq);
    free(s->grown);
    free(s->row_at);
    free(s->admitted);
    free(s->preempted);
    free(s->released);
    memset(s, 0, sizeof *s);
}

void folio_step_clear(folio_step *s)
{
    s->n_tok = s->n_seq = s->n_rows = s->n_copies = 0;
    s->n_admitted = s->n_preempted = s->n_released = 0;
    s->n_waiting = s->n_grown = 0;
    s->q_start[0] = 0;
    s->table_start[0] = 0;
}

/* Slots of positions first .. first + n - 1, block by block. */
static void fill_slots(int32_t *out, const int32_t *table, int32_t first,
                       int32_t n, int32_t bs)
{
    int32_t done = 0;
    while (done < n) {
        const int32_t pos = first + done, off = pos % bs;
        const int32_t slot = table[pos / bs] * bs + off;
        const int32_t run = FOLIO_MIN(bs - off, n - done);
        for (int32_t i = 0; i < run; i++)
            out[done + i] = slot + i;
        done += run;
    }
}

folio_step_row *folio_step_add(folio_step *s, folio_request *req, int32_t n_new,
                               const int32_t *table, int32_t table_start,
                               int32_t table_cap, int32_t block_tok)
{
    const int32_t first = req->n_sent, end = first + n_new, t = s->n_tok;
    const int32_t known = FOLIO_MIN(end, req->n_tok) - first;
    assert(n_new > 0 && t + n_new <= s->cap_tok && s->n_seq < s->cap_seq);
    assert(end <= folio_request_len(req) && known >= n_new - 1);
    folio_step_row *row = &s->seq[s->n_seq];
    memset(row, 0, sizeof *row);
    row->req = req;
    row->epoch = req->epoch;
    row->place = req->slot;
    row->first = first;
    row->n_new = n_new;
    row->row = row->pending_row = -1;
    memcpy(s->tok + t, req->tok + first, (size_t)known * sizeof *s->tok);
    if (known < n_new)
        s->tok[t + known] = FOLIO_TOK_PENDING;
    for (int32_t i = 0; i < n_new; i++)
        s->pos[t + i] = first + i;
    fill_slots(s->slot + t, table, first, n_new, block_tok);
    s->table_start[s->n_seq] = table_start;
    s->table_start[s->n_seq + 1] = table_start + table_cap;
    s->kv_len[s->n_seq] = end;
    if (end == folio_request_len(req)) {
        row->row = s->n_rows;
        s->row_seq[s->n_rows] = s->n_seq;
        s->rows[s->n_rows++] = t + n_new - 1;
    }
    s->n_tok += n_new;
    s->q_start[++s->n_seq] = s->n_tok;
    return row;
}
