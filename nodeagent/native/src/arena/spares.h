/* Spare descriptors, where no close of the program's reaches them.
 *
 * A thread with a table of descriptors of its own keeps copies. A program may close every number
 * of its own table: what is lost there is had again from that thread, over a socket between two
 * tables of one process, so that it can be offered to an agent.
 *
 * Invariant: the thread's table holds the copies alone, and for the length of a request one socket;
 * it gives them to this process only.
 */
#ifndef TIERLINE_SPARES_H
#define TIERLINE_SPARES_H

#include "wire/descriptor.h"

#include <stddef.h>

struct tl_spares;

/* Keeps copies of `count` descriptors. NULL where the system has no such tables, or no room for a
 * thread: then there are no spares. */
struct tl_spares *tl_spares_keep(struct tl_descriptor *const *descriptors, size_t count);
/* Puts a copy in the place of each of the same descriptors that is not ours any more. 0, or -1 if
 * some are lost. `spares` may be NULL. */
int tl_spares_restore(struct tl_spares *spares, struct tl_descriptor *const *descriptors,
                      size_t count);
/* Closes the copies. NULL is none. */
void tl_spares_drop(struct tl_spares *spares);
/* In a fork's child, which has no such thread. */
void tl_spares_forget(struct tl_spares *spares);

#endif
