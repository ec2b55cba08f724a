/* Giving the device away at a gate, and going on later. With the lock held. */
#ifndef TIERLINE_YIELDS_H
#define TIERLINE_YIELDS_H

#include "link/state.h"

/* Gives the device away if the agent asks for it, and returns when the job has it again: 0,
 * TIERLINE_E_REVOKED, or why that will not happen. */
int tl_job_heed_yield(tierline_client *client);
/* Says that the job gives the device away, and that its stream needs `position` first; returns when
 * it has the device again, or why that will not happen. */
int tl_job_yield(tierline_client *client, uint32_t position);

#endif
