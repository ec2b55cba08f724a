/* Streams: a queue and a worker thread each, and fences that order them.
 *
 * A fence is the end of one piece of work. Events, the legacy stream's barriers and
 * cuStreamSynchronize are all fences: the work that must come later holds the fence of the work
 * that comes first. Work only ever waits for fences of work submitted before it, so queues cannot
 * wait for each other in a circle.
 *
 * Work may end late (lateness.h): what a thread of the program waits or asks for does not.
 *
 * Invariant: one lock guards all queues and fences; no work runs and nobody's code is called under
 * it.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "context.h"
#include "work.h"

struct fence {
    unsigned holders;
    bool done;
    uint64_t time_ns;        /* CLOCK_MONOTONIC, when done */
    uint64_t stream, number; /* whose work it ends, and the how many-th; 0 of a graph's node */
};

struct capture; /* capture.c */

struct CUstream_st {
    CUcontext ctx;
    unsigned flags;
    int priority;
    uint64_t id;
    bool closing;
    uint64_t submitted, demanded; /* numbers of works: the last one, and up to which one a thread of
                                     the program waits */
    struct task *first, **last;   /* the queue */
    struct fence *tail;           /* of the newest work; NULL before any */
    pthread_cond_t wake;
    CUstream next; /* in the context */
    /* A stream is captured into at most one graph at a time; guarded by the lock of capture.c. */
    struct capture *capture;
    CUgraphNode *frontier; /* nodes that the next captured one depends on */
    size_t frontier_count;
};

CUresult stream_open(CUcontext ctx, unsigned flags, int priority, CUstream *opened);

/* The stream that a handle means in the calling thread: NULL and CU_STREAM_LEGACY,
 * CU_STREAM_PER_THREAD or a created one. Fails when its context is not usable. */
CUresult stream_resolve(CUstream handle, CUstream *stream);

/* Queues the work, which this call owns from now on, also when it fails. A capturing stream gets a
 * node instead. fence, unless NULL, receives a held fence of the work (NULL when captured). */
CUresult stream_submit(CUstream stream, struct work *work, struct fence **fence);
/* Queues the work and waits for its end. */
CUresult stream_submit_and_wait(CUstream stream, struct work *work);
/* Later work of the stream begins after the fence. */
CUresult stream_after(CUstream stream, struct fence *fence);

/* Nothing in the queue and nothing that the legacy stream would have to follow. */
bool stream_is_idle(CUstream stream);
/* Waits for everything submitted to the stream so far. */
CUresult stream_drain(CUstream stream);
/* The worker ends the stream after the work that is queued; the handle is out of the table already.
 */
void stream_close(CUstream stream);

struct fence *fence_new(void);
struct fence *fence_hold(struct fence *fence);
void fence_release(struct fence *fence);
void fence_complete(struct fence *fence);
bool fence_is_done(struct fence *fence, uint64_t *time_ns);
/* The same, asked by the program: what it asks for is not late any more. */
bool fence_is_seen_done(CUcontext ctx, struct fence *fence);
/* Until it is done or the context is over. */
void fence_wait(CUcontext ctx, struct fence *fence);

/* Waits for everything submitted to the context so far. */
CUresult streams_drain(CUcontext ctx);
/* Ends the process, with the call's stack and that of the other side, if work that was submitted
 * and has not ended may touch these bytes. `what` is what is about to become of them. */
void streams_check_untouched(uint64_t base, uint64_t size, const char *what);
/* Stops and removes all streams of a context, whatever they wait for. */
void streams_end(CUcontext ctx);
/* Makes every waiter look again whether its context is over. */
void streams_wake(void);
