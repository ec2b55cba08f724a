/* Arenas in a GPU's memory, and what they can do in addition to tl_memory. With the arena's context
 * current. */
#ifndef TIERLINE_DEVICE_MEMORY_H
#define TIERLINE_DEVICE_MEMORY_H

#include "arena/arena.h"

extern const struct tl_memory tl_device_memory;

/* Puts a private copy with these bytes in the place of an extent. 0 or a code. */
int tl_device_replace(struct tl_arena *arena, uint32_t extent, const uint8_t *bytes,
                      uint64_t length);

/* Lets the GPU write an extent that has a private copy. 0 or a code. */
int tl_device_let_write(struct tl_arena *arena, uint32_t extent);

/* Hides an extent, unless it has a private copy or may be read unseen: reads of it fault. 0 or a
 * code. */
int tl_device_hide(struct tl_arena *arena, uint32_t extent);
/* Shows it again. 0 or a code. */
int tl_device_show(struct tl_arena *arena, uint32_t extent);

/* Whether this process's use of CUDA passes this library: it was preloaded. */
bool tl_device_gated(void);

/* Whether the current context is on the GPU that the agent named. 0 or a code. */
int tl_device_check(const char *uuid);

#endif
