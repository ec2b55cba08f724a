/* A client's workspace: extents that the tasks of its trust domain have in turns, mapped once.
 *
 * Only a granted job may touch them; what is in them then is what this client's last job left, if
 * it asked to preserve it.
 *
 * What it does not: decide what lies where in it (swap.h of the interposer), or hold the lease.
 */
#ifndef TIERLINE_WORKSPACE_H
#define TIERLINE_WORKSPACE_H

#include "link/state.h"

#include <stdbool.h>
#include <stdint.h>

/* Borrows and maps it in the current context; from then on everything that this process gives the
 * GPU is gated. Once a client. Without the client's lock. 0 or a code. */
int tl_workspace_borrow(tierline_client *client, uint64_t bytes, uint32_t flags, bool swapped);
/* The same mapping is another context's from now on; NULL if its context ended. Without the gates'
 * lock. */
int tl_workspace_adopt(tierline_client *client, void *context);

/* What the agent sends (tl_receivers). */
int tl_workspace_announced(tierline_client *client, const struct tlp_workspace_lent *lent);
int tl_workspace_descriptors(tierline_client *client, const struct tlp_fds *fds);

/* See tl_backend. */
uint64_t tl_workspace_reach(tierline_client *client, uint64_t told);

static inline uint64_t tl_workspace_bytes(const struct tl_workspace *workspace,
                                          uint64_t extent_bytes) {
    return workspace->extent_count * extent_bytes;
}

/* Closes descriptors, and unmaps what is mapped unless `forked`. */
void tl_workspace_close(tierline_client *client, bool forked);

#endif
