/* sched/audit.h: is every block, place, request and row where it must be?
 * Strict equality, at settled points: no step under way. Reads only, in every
 * build; costs the whole state, so it is the caller's choice how often. */
#ifndef FOLIO_SCHED_AUDIT_H
#define FOLIO_SCHED_AUDIT_H

#include "sched/scheduler.h"

/* What can be wrong; bits of folio_audit_report.kinds. */
typedef enum folio_audit_kind {
    /* pool */
    FOLIO_AUDIT_FOREIGN_BLOCK = 0, /* an id outside the pool */
    FOLIO_AUDIT_FREE_TWICE,        /* twice on the free stack */
    FOLIO_AUDIT_FREE_AND_HELD,     /* on the free stack, but not free */
    FOLIO_AUDIT_MISSING,           /* neither free, cached nor held */
    FOLIO_AUDIT_NOT_HELD,          /* in a table, but not held in the pool */
    FOLIO_AUDIT_HOLDERS,           /* held by more or fewer than the pool says,
                                      a stranded block included */
    FOLIO_AUDIT_CACHED_LINKS,      /* the list of cached blocks is not the same
                                      from both ends */
    FOLIO_AUDIT_CACHED_MEMBERS,    /* it holds others than the cached blocks */
    FOLIO_AUDIT_CACHED_ORDER,      /* it is out of the order of last use */
    /* places */
    FOLIO_AUDIT_PLACE_RANGE,  /* a running request without a place */
    FOLIO_AUDIT_PLACE_SHARED, /* two running requests at one place */
    FOLIO_AUDIT_PLACE_OWNER,  /* the place says somebody else */
    FOLIO_AUDIT_PLACE_LEAKED, /* taken by nobody who runs */
    /* requests */
    FOLIO_AUDIT_STATE,        /* state and queue do not match */
    FOLIO_AUDIT_WAITER_HOLDS, /* waiting, but with a place or progress */
    FOLIO_AUDIT_QUEUE_ORDER,  /* a queue does not ascend by arrival */
    FOLIO_AUDIT_OVERTAKEN,    /* waiting, but older than a running one of its
                                 class */
    FOLIO_AUDIT_RUN_ORDER,    /* the running are out of order */
    FOLIO_AUDIT_INDEX,        /* ids and queues do not match */
    FOLIO_AUDIT_TOKENS,       /* fewer than the prompt or more than the budget
                                 allows */
    FOLIO_AUDIT_PROGRESS,     /* computed tokens != tokens - 1, or in a prompt:
                                 not less than that, or steps left open */
    FOLIO_AUDIT_BLOCKS,       /* blocks != those of the tokens */
    /* rows */
    FOLIO_AUDIT_ROW_LEFT,     /* a free place's row is not empty */
    FOLIO_AUDIT_ROW_IDS,      /* row and table name different blocks */
    FOLIO_AUDIT_ROW_TOKENS,   /* row and request say different progress */
    FOLIO_AUDIT_ROW_CAPACITY, /* more tokens than its blocks hold */
    /* prefix index */
    FOLIO_AUDIT_ENTRY_STATE,  /* ready but not held or cached, or in flight with
                                 nobody computing it, or cached without entry */
    FOLIO_AUDIT_ENTRY_TOKENS, /* an entry's tokens are not its holder's */
    FOLIO_AUDIT_ENTRY_PARENT, /* an entry's parent is gone, or would be evicted
                                 before it */
    FOLIO_AUDIT_UNSETTLED,    /* a step is under way: nothing was looked at */
    FOLIO_AUDIT_N_KINDS
} folio_audit_kind;

typedef struct folio_audit_report {
    int32_t n;      /* violations */
    uint64_t kinds; /* 1 << kind of each */
    char text[512]; /* the first one: the object and both sides */
} folio_audit_report;

/* Fills `out`; out->n == 0: all is well. */
void folio_sched_audit(const folio_sched *s, folio_audit_report *out);

#endif
