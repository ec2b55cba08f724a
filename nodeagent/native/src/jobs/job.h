/* Jobs: the lease, and the state of the arena around it. With the lock held. */
#ifndef TIERLINE_JOB_H
#define TIERLINE_JOB_H

#include "link/state.h"

#define TL_BUSY 1
/* Begins a job: 0, TL_BUSY if another one is active and `patient` is false, or a code. */
int tl_job_begin(tierline_client *client, const struct tlp_job_begin *asked, bool patient);
/* Ends it, or begins its stream again, when nothing reads its arena any more. 0 or a code. */
int tl_job_end(tierline_client *client, uint64_t number, uint64_t workspace_peak_bytes);
int tl_job_rewind(tierline_client *client, uint32_t arena, uint32_t position, uint32_t consumed);
/* Closes every streamed extent of the job's arena on the CPU; private copies stay. 0 or a code. */
int tl_job_close_ring(tierline_client *client);
/* Acknowledges that the job in progress was revoked. */
void tl_job_acknowledge(tierline_client *client);
/* Answers a REVOKE of the job in progress; TIERLINE_E_REVOKED or 0. */
int tl_heed_revocation(tierline_client *client);
/* Waits until no thread yields. */
void tl_job_await_return(tierline_client *client);

#endif
