/* Whether the GPU is done with what this process gave it, asked without waiting.
 *
 * Needed where any work touches what the lease protects, so that an implicit job does not end
 * under it: with a workspace. Whoever ends a job waits for the context all the same; this only says
 * when that wait will be short. What it cannot see (threads' own default streams, too many streams)
 * counts as done.
 */
#ifndef TIERLINE_DRAIN_H
#define TIERLINE_DRAIN_H

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool tl_drain_watching;

/* A call goes to this stream. Cheap when it is the thread's last one. */
void tl_drain_note(void *stream, bool per_thread);
/* A stream ends, or is captured. */
void tl_drain_leave(void *stream, bool per_thread);
/* A job begins: nothing is under way. */
void tl_drain_restart(void);
/* With the context current. */
bool tl_drain_done(void);

#endif
