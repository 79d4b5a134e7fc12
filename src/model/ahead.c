/* model/ahead.c: greedy decoding one step ahead of the host, as public calls:
 * what the runner draws for the engine, with the best id of each row. Checks
 * arguments; the work is in forward.c and drawer.c. */
#include "model/runner_internal.h"

#include <string.h>

static folio_status check_number(const folio_runner *r, int32_t number)
{
    if (!r->prm.run_ahead)
        return folio_fail(&r->model->log, FOLIO_E_INVAL,
                          "a forward ahead needs folio_runner_params.run_ahead "
                          "1, it is 0");
    if (number != 0 && number != 1)
        return folio_fail(&r->model->log, FOLIO_E_INVAL,
                          "a forward ahead has number %d, not 0 or 1", number);
    return FOLIO_OK;
}

folio_status folio_runner_forward_ahead(folio_runner *r, const folio_batch *b,
                                        const int32_t *next_row, int32_t number)
{
    const folio_draw d = {.number = number, .best = true};
    if (!r || !b)
        return FOLIO_E_INVAL;
    FOLIO_RETURN_IF(check_number(r, number));
    return folio_runner_forward_draw(r, b, &d, next_row);
}

folio_status folio_runner_read_ahead(folio_runner *r, int32_t number,
                                     int32_t *ids, float *values,
                                     int32_t *n_nan)
{
    folio_drawn got;
    if (!r)
        return FOLIO_E_INVAL;
    if (!ids || !values || !n_nan)
        return folio_fail(&r->model->log, FOLIO_E_INVAL,
                          "read ahead: %s is NULL",
                          ids ? values ? "n_nan" : "values" : "ids");
    FOLIO_RETURN_IF(check_number(r, number));
    const size_t n = (size_t)r->draw.under_way[number].n_rows;
    FOLIO_RETURN_IF(folio_runner_read_drawn(r, number, &got));
    memcpy(ids, got.ids, n * sizeof *ids);
    memcpy(values, got.values, n * sizeof *values);
    memcpy(n_nan, got.n_nan, n * sizeof *n_nan);
    return FOLIO_OK;
}
