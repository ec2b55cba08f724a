/* Jobs that copy their weights several times, as their launches come in another order than learned.
 *
 * They are right, and slower than a copy of all weights in front of each: the user is told, once,
 * how much of it comes out of turn. One such job may be an exception, so it takes several in a row.
 *
 * All of it with the gates' lock.
 */
#ifndef TIERLINE_DETOURS_H
#define TIERLINE_DETOURS_H

#include "link/state.h"

void tl_detours_begin(void);
/* A call that names weights of an arena that streams is served: in its turn, or not. */
void tl_detours_count(bool in_turn);
/* A job is over that the program began, with the client's lock: it has streamed so many extents,
 * of so many that its arenas have. */
void tl_detours_end(tierline_client *client, uint64_t streamed, uint64_t extents);

#endif
