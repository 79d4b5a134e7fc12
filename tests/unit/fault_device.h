/* unit/fault_device.h: a table of the device's calls, each of which can be made
 * to fail, to walk the error paths behind them; and a count of the OpenCL
 * objects that are alive. The test program is linked so that libfolio's calls
 * of OpenCL, and those of a device and an op that the host device answers
 * itself, come through here; the library knows nothing of it. */
#ifndef FOLIO_TEST_FAULT_DEVICE_H
#define FOLIO_TEST_FAULT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include <folio/status.h>

/* Whose calls: OpenCL's functions, or folio's own on the host device. */
typedef enum fault_side { FAULT_HOST, FAULT_CL } fault_side;

typedef enum fault_kind {
    FAULT_OBJECT = 1 << 0, /* contexts and queues */
    FAULT_BUFFER = 1 << 1,
    FAULT_FILL = 1 << 2,
    FAULT_WRITE = 1 << 3,
    FAULT_READ = 1 << 4,
    FAULT_COPY = 1 << 5,
    FAULT_BUILD = 1 << 6, /* programs and kernels; on the host: opening an op */
    FAULT_ARG = 1 << 7,
    FAULT_LAUNCH = 1 << 8,
    FAULT_FLUSH = 1 << 9,
    FAULT_MARK = 1 << 10, /* the marker that a wait is for */
    FAULT_WAIT = 1 << 11, /* finish, or looking whether an event is over */
    FAULT_CALLBACK = 1 << 12,
    FAULT_QUERY = 1 << 13,   /* facts of devices, programs, kernels */
    FAULT_RELEASE = 1 << 14, /* takes place and reports a failure */
    FAULT_ALL = (1 << 15) - 1,
    /* What a step is made of, but for its wait. */
    FAULT_ENQUEUE = FAULT_FILL | FAULT_WRITE | FAULT_READ | FAULT_COPY |
                    FAULT_ARG | FAULT_LAUNCH
} fault_kind;

typedef struct fault_plan {
    fault_side side;
    unsigned kinds; /* of calls that are counted; the others work */
    int nth, times; /* calls nth .. nth + times - 1 (from 1) fail */
    int code;       /* of OpenCL; a folio_status on the host */
    bool lost;      /* on the host: the device is lost with it */
} fault_plan;

/* Of the calls this thread makes from now on. */
void fault_arm(const fault_plan *p);

typedef struct fault_report {
    int n_calls;       /* counted since arm */
    int n_fired;       /* of these, made to fail */
    int n_after;       /* of any kind, counted or not, after the first one */
    unsigned kinds;    /* of those made to fail */
    const char *first; /* the call that failed first; NULL: none did */
} fault_report;

/* Every call works from now on; those after the first failure are still
 * counted. The report so far. */
fault_report fault_pass(void);
/* Back to normal. A loop over nth = 1, 2, ... has seen every call when none was
 * made to fail. */
fault_report fault_disarm(void);

/* Kernels' largest work-groups are told to be so many at most, on all threads,
 * whatever they are; 0: as they are. */
void fault_tell_group(size_t most);

/* From now on OpenCL objects are counted, on all threads. */
void fault_watch(void);
/* How many of them are alive; `text` (unless NULL) gets what they are. */
int fault_alive(char *text, size_t bytes);
/* Of these, without events, of which a queue at rest holds some or none, and
 * programs, which stay with the device. */
int fault_held(void);
/* Ends the count. What is left, with the memory that pending copies were given,
 * is released: a lost device is left alone by folio on purpose, and the driver
 * behind this one is not lost. */
void fault_unwatch(void);

#endif
