/* Whether the GPU is done with what this process gave it, asked without waiting.
 *
 * Needed where any work touches what the lease protects: with a workspace. An implicit job may end
 * only when the GPU is done, and the thread that ends it must not wait for the GPU: that may stand
 * at a flag that the program sets by a call which then waits for the thread that ends the job.
 *
 * A stream is asked. A stream that nobody else can name any more, or ever could (it was destroyed,
 * or is a thread's own default stream), is marked (stream_marks.h): the first once before it goes,
 * the second after each call, by its thread.
 *
 * Invariant: between tl_drain_restart and an answer of true, all that was noted is done, unless
 * tl_drain_sees_all says false: then there were more streams than marks, or a mark failed.
 */
#ifndef TIERLINE_DRAIN_H
#define TIERLINE_DRAIN_H

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool tl_drain_watching;

/* A call goes to this stream; with the lease, which cannot go before tl_drain_after. Cheap when it
 * is the thread's last one. */
void tl_drain_note(void *stream, bool per_thread);
/* The call is at the driver. */
void tl_drain_after(void);
/* A stream ends, or is captured. */
void tl_drain_leave(void *stream, bool per_thread);
/* A job begins: nothing is under way. */
void tl_drain_restart(void);
/* In a fork's child, where nobody releases a lock that another thread had. */
void tl_drain_forget(void);
/* With the workspace's context current. */
bool tl_drain_done(void);
bool tl_drain_sees_all(void);

#endif
