/* Arenas in the CPU's memory. */
#ifndef TIERLINE_HOST_MEMORY_H
#define TIERLINE_HOST_MEMORY_H

#include "arena/arena.h"

#include <stdbool.h>
#include <stdint.h>

extern const struct tl_memory tl_host_memory;

/* Puts private memory in the place of an extent of the CPU's: `copy` (extent_bytes) moves there. */
int tl_host_replace(struct tl_arena *arena, uint32_t extent, uint8_t *copy, bool writable);

#endif
