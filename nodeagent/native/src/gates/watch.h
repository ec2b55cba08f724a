/* Which watched weight lies in which arena. Under the gates' lock. */
#ifndef TIERLINE_WATCH_H
#define TIERLINE_WATCH_H

#include "link/state.h"

/* A weight as calls name it. */
struct tl_watched {
    uint32_t arena;
    uint32_t weight; /* of the arena's */
};

/* Shows the weights of the arenas in `sealed`, a bit each, to the observer, in their order, instead
 * of what was shown before. 0 or a code. */
int tl_watch_show(const tierline_client *client, uint32_t sealed);

/* The meaning of a weight that was named in a generation, or NULL: it is not the library's. */
const struct tl_watched *tl_watch_find(uint64_t generation, uint32_t weight);

void tl_watch_forget(void);

#endif
