/* Slots of the staging memory, through which bytes come and go. With the lock held, which is
 * released while there is none. */
#ifndef TIERLINE_STAGING_H
#define TIERLINE_STAGING_H

#include "link/state.h"

uint32_t tl_take_staging_slot(tierline_client *client);
void tl_return_staging_slot(tierline_client *client, uint32_t slot);

#endif
