/* The gates of a client on a GPU: at launches, copies and graph launches of this process.
 *
 * Lock order: the gates' lock, then the client's.
 */
#ifndef TIERLINE_LAUNCH_GATES_H
#define TIERLINE_LAUNCH_GATES_H

#include "client.h"
#include "graph_gate.h"

/* A process has one client on a GPU at most. 0 or a code. */
int tl_gates_adopt(tierline_client *client);
/* The client goes: its job has ended and its arenas are no longer read. */
void tl_gates_disown(const tierline_client *client);

/* An arena was sealed, or is leaving: from now on what names weights of sealed ones is gated.
 * Without the client's lock. */
int tl_gates_show(tierline_client *client);
/* An arena is about to be freed: an implicit job ends, so that nothing reads it. */
int tl_gates_settle(tierline_client *client);

/* The agent has the bytes of an extent that may have been written: it is what it was. 0 or a code.
 * Without the client's lock. */
int tl_gates_stored(tierline_client *client, uint32_t index, uint32_t extent);

/* The verbs of a job on a GPU. Without the client's lock. */
int tl_gates_job_begin(tierline_client *client, const struct tlp_job_begin *asked, uint64_t *job);
int tl_gates_job_end(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes);
int tl_gates_rewind(tierline_client *client);

/* The agent took the lease of the job in progress back. With or without any lock. */
void tl_gates_revoked(void);

/* There is a new connection. With or without any lock. */
void tl_gates_connected(void);

/* In a fork's child. */
void tl_gates_forget(void);

#endif
