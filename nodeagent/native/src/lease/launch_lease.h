/* The lease of a client on a GPU, and the verbs that concern a job. */
#ifndef TIERLINE_LAUNCH_LEASE_H
#define TIERLINE_LAUNCH_LEASE_H

#include "launches/graph_gate.h"
#include "link/state.h"

/* With the gates' lock. Makes sure that this process holds the lease, with the stream of `wanted`
 * if the choice is the library's. 0 or a code. */
int tl_gates_hold(tierline_client *client, uint32_t wanted);
/* With the gates' lock. The job reads this arena from there, its own again or another one. 0 or a
 * code. */
int tl_gates_go_to(tierline_client *client, uint32_t index, struct tl_cursor from);
/* With the gates' lock. Ends an implicit job if no call is at the driver and the GPU is done. Never
 * waits for it, unless not all can be seen (drain.h), or nothing is watched. */
void tl_gates_end_if_idle(tierline_client *client);

/* See tl_backend. */
int tl_gates_settle(tierline_client *client);
int tl_gates_job_begin(tierline_client *client, const struct tlp_job_begin *asked, uint64_t *job);
int tl_gates_job_end(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes);
int tl_gates_rewind(tierline_client *client);
void tl_gates_revoked(tierline_client *client);

#endif
