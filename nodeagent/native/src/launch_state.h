/* What the gates at launches and their monitor share.
 *
 * Invariant: `leased` is true only while a job of this process is granted and the gates' state is
 * that of this job; a call that names no weights goes to the driver only between adding itself to
 * `passing` with `leased` true, and taking itself off again.
 */
#ifndef TIERLINE_LAUNCH_STATE_H
#define TIERLINE_LAUNCH_STATE_H

#include "launch_gates.h"

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
    uint32_t over;          /* streamed extents that the layers so far were the last to read */
    uint32_t copies;        /* of extents, in this pass */
    struct tl_need doubted; /* of a call far ahead of its turn that got copies; or not streamed */
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

/* launch_lease.c; all with the gates' lock held.
 * Prints what failed, and why; a few times a process. */
void tl_gates_say(const char *what);
/* The context of some sealed arena, or of the workspace, or NULL. */
void *tl_gates_context(const tierline_client *client);
/* Makes sure that this process holds the lease, with the stream of `wanted` if the choice is the
 * library's. 0 or a code. */
int tl_gates_hold(tierline_client *client, uint32_t wanted);
/* The job reads this arena from the start, its own again or another one. 0 or a code. */
int tl_gates_go_to(tierline_client *client, uint32_t index);
/* With the lease: waits for the GPU and gives it back.
 * 0, or a code after which the job is over all the same, unless it is TIERLINE_E_STATE. */
int tl_gates_end_locked(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes);

/* Ends an implicit job if no call is at the driver and the GPU is done. Never waits for it, unless
 * not all can be seen (drain.h), or nothing is watched. */
void tl_gates_end_if_idle(tierline_client *client);

/* launch_copies.c; with the lock held. Gives the streamed extents of these weights private copies.
 * A CUresult. */
int tl_gates_copy(tierline_client *client, uint32_t index, uint64_t generation,
                  const uint32_t *weights, uint32_t count);

/* Gives them private copies for good, and tells the agent. A CUresult. */
int tl_gates_keep(tierline_client *client, uint64_t generation, const uint32_t *weights,
                  uint32_t count);
/* Gives them private copies for good that may be written. A CUresult. */
int tl_gates_let_write(tierline_client *client, uint64_t generation, const uint32_t *weights,
                       uint32_t count);
/* Whether none of them streams. */
bool tl_gates_stay(const tierline_client *client, uint64_t generation, const uint32_t *weights,
                   uint32_t count);

/* launch_gates.c; with the lock held. Writes `consumed` if that is more than before. A CUresult. */
int tl_gates_give_back(struct tl_stream *stream, const struct tl_arena *arena, uint32_t value);
/* Says what streams are going to wait for; false if the job was revoked: then they must not. */
bool tl_gates_announce(uint32_t needs);
/* The job has skipped to what was doubted, if anything was: its later ones may at once. */
void tl_gates_believe(void);
/* Whether calls may read this arena. */
static inline bool tl_gates_sealed(uint32_t index) {
    return (atomic_load_explicit(&tl_gates.sealed, memory_order_acquire) >> index & 1U) != 0;
}
/* Whether the job streams this arena now. */
static inline bool tl_gates_stream(uint32_t index) {
    return index == tl_gates.arena && !atomic_load(&tl_gates.orphaned);
}
extern const struct own_gate tl_launch_gate;
/* launch_graphs.c. With the lock held: the driver has taken the graph that is there. */
void tl_graph_launched(void);
extern const struct tl_graph_gates tl_launch_graphs;

/* launch_monitor.c */
int tl_monitor_start(void);
void tl_monitor_stop(void);
void tl_monitor_wake(void);
/* A job began: it is to look within its period. */
void tl_monitor_stir(void);
/* Lets what waits for the arena's stream go on, and answers all later calls with an error. */
void tl_monitor_give_up(struct tl_arena *arena);

#endif
