/* Clones of a program's graph, which is never touched itself. */
#pragma once

#include <stdint.h>

/* A clone, and its node for each of these in `twins`. NULL when the driver refuses. */
void *clone_make(void *graph, void *const *nodes, uint32_t count, void **twins);
/* Nothing happens to NULL. */
void clone_destroy(void *clone);
