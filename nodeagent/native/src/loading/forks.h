/* What a forked child reads of its parent's weights on the CPU.
 *
 * A child has no lease, and the ring is filled for its parent's jobs. So its addresses of an arena
 * are emptied as it begins, but for private copies, of which a fork makes it copies. For each
 * sealed arena there is memory of the same size that a process shares with all its descendants,
 * and in which nothing lies until one of them touches a weight: then a word there asks for the
 * extent, and a thread of the parent's fetches it as it would for itself. So a child that only
 * execs pays nothing, all descendants have one copy, and no descriptor is needed, which programs
 * close.
 *
 * What either side writes later is its own: a write makes a private copy.
 *
 * An arena is not given back, nor does its process exit, before children that live have the rest
 * of it. Only a parent that ends without exit() leaves them without.
 *
 * Invariants: a word says that an extent is there only when all of its bytes are; a process that
 * reads it has no way to write to shared memory. What is fetched is what was sealed, whatever the
 * parent wrote since; what it wrote before a fork is among the child's private copies.
 */
#ifndef TIERLINE_FORKS_H
#define TIERLINE_FORKS_H

#include "link/state.h"

#include <stdbool.h>
#include <stdint.h>

/* For what another thread does within microseconds. */
#define TL_FORK_PATIENCE_NS 1000000000U

/* Around a fork, in the thread that forks; takes the client's lock, and returns it in the parent.
 * A lock that is not to be had, as in a handler of a signal that interrupted the library, is done
 * without: then the child is told that it cannot read weights. */
void tl_forks_begin(tierline_client *client);
void tl_forks_in_parent(tierline_client *client);
/* In the child: empties its addresses of the arenas, and notes that it lives. */
void tl_forks_in_child(tierline_client *client);

/* In a child: gives an extent right bytes. 0 or a code. */
int tl_forks_read(tierline_client *client, uint32_t index, uint32_t extent, bool writing);

/* In the parent, with the lock held: lets children that live have the rest of an arena that is
 * sealed. True if it released the lock for that, so that more may have been forked. */
bool tl_forks_complete(tierline_client *client, uint32_t index);
/* In the parent, without the lock: children are answered no more. */
void tl_forks_stop(tierline_client *client);

#endif
