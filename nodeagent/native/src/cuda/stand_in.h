/* Writing ring slots in the agent's place, while the GPU stands at a flag.
 *
 * A call that maps, allocates, page-locks or makes a stream may wait for the device, which waits
 * for these very bytes. So all that is needed is made while nothing waits: a writable alias of each
 * slot when the arena is mapped (device_memory.c), a stream (upload.h) and pinned memory once a
 * context.
 */
#ifndef TIERLINE_STAND_IN_H
#define TIERLINE_STAND_IN_H

#include "arena/arena.h"

/* Makes stream and memory in the current context, unless there are some. 0 or a code. */
int tl_stand_in_open(void);
/* A context has ended: if it was that one, the memory is no more. */
void tl_stand_in_context_ended(const void *context);

/* Writes a streamed extent's bytes into its ring slot, as the agent would, and returns when they
 * are there. By one thread, with the arena's context current. 0 or a code. */
int tl_stand_in_write(const struct tl_arena *arena, uint32_t index, const uint8_t *bytes,
                      uint64_t length);

/* In a fork's child. */
void tl_stand_in_forget(void);

#endif
