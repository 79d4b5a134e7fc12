/* sched/sched_place.c: places of the batch and the queues of those who wait for
 * one. Lowest free place first; queues in order of arrival. Takes and gives no
 * blocks. */
#include <assert.h>
#include <string.h>

#include "sched/sched_state.h"

/* ---- queues -------------------------------------------------------------- */

void folio_sched_enqueue(folio_sched *s, folio_request *r)
{
    folio_sched_queue *q = &s->waiting[r->priority];
    assert(!r->queued);
    /* A newcomer goes to the end at once; somebody evicted is older than most,
     * so the walk from the head is short. */
    folio_request *newer = NULL, *older = q->newest;
    if (older && older->arrival > r->arrival) {
        newer = q->oldest;
        while (newer->arrival < r->arrival)
            newer = newer->newer;
        older = newer->older;
    }
    r->older = older;
    r->newer = newer;
    if (older)
        older->newer = r;
    else
        q->oldest = r;
    if (newer)
        newer->older = r;
    else
        q->newest = r;
    r->queued = true;
    s->n_waiting++;
}

void folio_sched_dequeue(folio_sched *s, folio_request *r)
{
    folio_sched_queue *q = &s->waiting[r->priority];
    assert(r->queued);
    if (r->older)
        r->older->newer = r->newer;
    else
        q->oldest = r->newer;
    if (r->newer)
        r->newer->older = r->older;
    else
        q->newest = r->older;
    r->older = r->newer = NULL;
    r->queued = false;
    s->n_waiting--;
}

/* ---- places -------------------------------------------------------------- */

static bool comes_before(const folio_request *a, const folio_request *b)
{
    return a->priority != b->priority ? a->priority > b->priority
                                      : a->arrival < b->arrival;
}

/* First entry of `order` that does not come before r. */
static int32_t rank_of(const folio_sched *s, const folio_request *r)
{
    int32_t lo = 0, hi = s->n_running;
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        if (comes_before(s->order[mid], r))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void folio_sched_take_place(folio_sched *s, folio_request *r)
{
    const int32_t rank = rank_of(s, r);
    assert(s->n_running < s->p.max_seqs && r->slot == FOLIO_NO_SLOT);
    while (s->at[s->lowest_free])
        s->lowest_free++;
    r->slot = s->lowest_free;
    s->at[r->slot] = r;
    memmove(s->order + rank + 1, s->order + rank,
            (size_t)(s->n_running - rank) * sizeof *s->order);
    s->order[rank] = r;
    s->n_running++;
    /* Found again by the next take; may be one past the last place. */
    if (++s->lowest_free == s->p.max_seqs)
        s->lowest_free = 0;
}

void folio_sched_give_place(folio_sched *s, folio_request *r)
{
    const int32_t rank = rank_of(s, r), place = r->slot;
    assert(rank < s->n_running && s->order[rank] == r);
    s->n_running--;
    memmove(s->order + rank, s->order + rank + 1,
            (size_t)(s->n_running - rank) * sizeof *s->order);
    r->slot = FOLIO_NO_SLOT;
    r->epoch++;
    if (s->p.on_release)
        s->p.on_release(s->p.release_user, place);
    s->at[place] = NULL;
    s->lowest_free = FOLIO_MIN(s->lowest_free, place);
}
