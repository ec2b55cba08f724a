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

struct tl_gates {
    struct tl_lock lock;
    tierline_client *client;

    atomic_bool leased;
    atomic_uint passing;  /* calls without weights that are at the driver */
    atomic_uint begun;    /* calls so far, to see whether a process is idle */
    atomic_int failed;    /* a CUresult that all calls are answered from now on; 0: none */
    atomic_bool orphaned; /* the job was revoked: nobody fills the ring but the monitor */
    atomic_uint
        highest; /* streamed extents of the job's arena that a stream was told to wait for */

    /* Under the lock. */
    uint64_t job;   /* whose state this is; 0: none */
    uint32_t arena; /* the one that streams, or TIERLINE_NO_ARENA */
    bool implicit;
    struct tl_cursor cursor;
    uint64_t streamed; /* extents, in passes that were rewound */

    /* The monitor's. */
    bool watching;
    atomic_bool stopping;
    uint32_t wake; /* futex */
    pthread_t monitor;
};
extern struct tl_gates tl_gates;

/* launch_gates.c; with the gates' lock held and the lease: waits for the GPU and gives it back.
 * 0, or a code after which the job is over all the same, unless it is TIERLINE_E_STATE. */
int tl_gates_end_locked(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes);

/* Whether the GPU is done with all that read weights. With the lock held. */
bool tl_gates_idle(const tierline_client *client);

/* launch_monitor.c */
int tl_monitor_start(void);
void tl_monitor_stop(void);
void tl_monitor_wake(void);

#endif
