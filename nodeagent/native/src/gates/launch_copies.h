/* Private copies of extents, for calls that cannot go with the stream. */
#ifndef TIERLINE_LAUNCH_COPIES_H
#define TIERLINE_LAUNCH_COPIES_H

#include "link/state.h"

/* All with the gates' lock. Gives the streamed extents of these weights private copies.
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

/* See tl_backend: without it. */
int tl_gates_stored(tierline_client *client, uint32_t index, uint32_t extent);

#endif
