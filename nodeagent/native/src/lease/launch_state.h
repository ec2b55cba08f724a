/* What the gates at launches, the lease that they hold, and their monitor share.
 *
 * Lock order: the gates' lock, then the client's.
 *
 * Invariant: `leased` is true only while a job of this process is granted and the gates' state is
 * that of this job; a call that names no weights goes to the driver only between adding itself to
 * `passing` with `leased` true, and taking itself off again.
 */
#ifndef TIERLINE_LAUNCH_STATE_H
#define TIERLINE_LAUNCH_STATE_H

#include "launches/graph_gate.h"
#include "link/state.h"

#include <pthread.h>
#include <stdatomic.h>

struct tl_stream;

/* What a graph will have done if the driver takes it. */
struct tl_pass {
    struct tl_stream *stream; /* NULL: nothing */
    uint32_t waited;          /* the stream, by the graph's waits */
    struct tl_cursor cursor;
};

struct tl_gates {
    struct tl_lock lock;
    tierline_client *client;

    /* A bit an arena that is sealed, and whose weights calls are searched for. The client's own
     * word for it changes under the client's lock, which calls do without. */
    atomic_uint sealed;
    atomic_bool leased;
    atomic_bool says_jobs;             /* the program begins jobs itself */
    atomic_uint_least64_t transferred; /* bytes between host and device since the last job */
    atomic_uint passing;               /* calls without weights that are at the driver */
    atomic_uint begun;                 /* calls so far, to see whether a process is idle */
    atomic_uint named;    /* of them with weights: each has the lock until it is at the driver */
    atomic_int failed;    /* a CUresult that all calls are answered from now on; 0: none */
    atomic_bool orphaned; /* the job was revoked: nobody fills the ring but the monitor */
    atomic_uint
        highest; /* streamed extents of the job's arena that a stream was told to wait for */

    /* Under the lock. */
    uint64_t job;   /* whose state this is; 0: none */
    uint32_t arena; /* the one that streams, or TIERLINE_NO_ARENA */
    uint32_t been;  /* a bit an arena that has streamed for this job */
    bool implicit;
    struct tl_cursor cursor;
    uint32_t backwards;          /* returns of the stream in a row that went a little back */
    uint32_t over;               /* streamed extents that the layers so far were the last to read */
    struct tl_stream *at_driver; /* of the call that is there, if it goes with the stream */
    struct tl_pass pass;         /* of the graph that is there */
    uint64_t streamed;           /* extents, in passes that were rewound */

    /* The monitor's. */
    bool watching;
    atomic_bool stopping;
    atomic_bool dozing; /* it sleeps for longer than its period */
    uint32_t wake;      /* futex */
    pthread_t monitor;
};
extern struct tl_gates tl_gates;

/* With the lock. The context of some sealed arena, or of the workspace, or NULL. */
void *tl_gates_context(const tierline_client *client);
/* Prints what failed, and why; a few times a process. */
void tl_gates_say(const char *what);
/* Whether calls may read this arena. */
static inline bool tl_gates_sealed(uint32_t index) {
    return (atomic_load_explicit(&tl_gates.sealed, memory_order_acquire) >> index & 1U) != 0;
}
/* With the lock. Whether the job streams this arena now. */
static inline bool tl_gates_stream(uint32_t index) {
    return index == tl_gates.arena && !atomic_load(&tl_gates.orphaned);
}

/* Wakes the monitor. With or without any lock. */
void tl_monitor_wake(void);
/* A job began: it is to look within its period. */
void tl_monitor_stir(void);
/* Lets what waits for the arena's stream go on, and answers all later calls with an error. */
void tl_monitor_give_up(struct tl_arena *arena);

#endif
