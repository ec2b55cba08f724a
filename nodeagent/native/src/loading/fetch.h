/* Right bytes for an extent past the ring. With the lock held. */
#ifndef TIERLINE_FETCH_H
#define TIERLINE_FETCH_H

#include "link/state.h"

/* Gives an extent right bytes in private memory. */
int tl_fetch_private(tierline_client *client, uint32_t index, uint32_t extent, bool writable);
/* Takes an extent's right bytes out of staging memory. 0 or a code. */
typedef int tl_bytes_taker(struct tl_arena *arena, uint32_t extent, const uint8_t *bytes,
                           uint64_t length, void *into);
/* Asks the agent for them until they have come, and has them taken. 0 or a code. */
int tl_fetch_bytes(tierline_client *client, uint32_t index, uint32_t extent, tl_bytes_taker *take,
                   void *into);
/* Into memory of the caller's, of extent_bytes. */
tl_bytes_taker tl_copy_bytes;

#endif
