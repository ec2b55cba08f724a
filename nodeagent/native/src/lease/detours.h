/* Jobs that take longer than their bytes do, as their launches come in another order than learned.
 *
 * They are right: the stream begins again where they read, or they get private copies. The user is
 * told, once, how much comes out of turn. One such job may be an exception, so it takes several in
 * a row.
 *
 * All of it with the gates' lock.
 */
#ifndef TIERLINE_DETOURS_H
#define TIERLINE_DETOURS_H

#include "link/state.h"

/* To begin the stream somewhere else, in streamed extents: a wait for the GPU, the agent's answer,
 * and copies that were under way for nothing. */
#define TL_RETURN_COST 3U

void tl_detours_begin(void);
/* A call that names weights of an arena that streams is served: in its turn, or not. */
void tl_detours_count(bool in_turn);
/* An arena's stream has begun again for a call. */
void tl_detours_return(void);
/* A job is over that the program began, with the client's lock: it has streamed so many extents,
 * of so many that its arenas have. */
void tl_detours_end(tierline_client *client, uint64_t streamed, uint64_t extents);

#endif
