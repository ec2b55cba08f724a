/* The cached lease: jobs begin and end without asking the agent, where it left the lease to them.
 * Both sides' argument is in the agent's cached_lease.py.
 *
 * The agent writes a small file of the client's own; the client has it for reading, takes the lease
 * by a shared flock and then looks into the file. When it has unlocked it looks again: the agent
 * may have wanted it meanwhile, and wait to be told. The kernel gives back what a process had when
 * it dies, and not when the program closes the number: the file is mapped, too. A fork's child has
 * the same open file: it closes it, and never unlocks.
 *
 * Invariant: between tl_cached_lease_take that returned true and tl_cached_lease_give_back the file
 * is locked, unless the connection it came with is lost; before and after that it is not.
 */
#ifndef TIERLINE_CACHED_LEASE_H
#define TIERLINE_CACHED_LEASE_H

#include "wire/descriptor.h"

#include <stdbool.h>
#include <stdint.h>

struct tl_said;

struct tl_cached_lease {
    struct tl_descriptor file;
    struct tl_said *said; /* the file, mapped for reading; NULL: there is none to take */
};

/* Takes the lease for a job if it is open to those of its arena, or of `any`. */
bool tl_cached_lease_take(const struct tl_cached_lease *lease, uint64_t job, uint32_t arena,
                          bool any);
/* Whether the program has left its file open. */
bool tl_cached_lease_is_ours(const struct tl_cached_lease *lease);
/* Whether others wait for what was taken, or granted. */
bool tl_cached_lease_wanted(const struct tl_cached_lease *lease);
/* True: the agent tried to close it before, and waits to be told. */
bool tl_cached_lease_give_back(const struct tl_cached_lease *lease);
/* Closes the file, whatever its state, and takes over that of another connection, or none. */
void tl_cached_lease_replace(struct tl_cached_lease *lease, struct tl_descriptor descriptor);

#endif
