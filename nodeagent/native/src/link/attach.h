/* Opening a connection, and offering back what a client has. */
#ifndef TIERLINE_ATTACH_H
#define TIERLINE_ATTACH_H

#include "link/state.h"

/* Without the lock. One attempt: HELLO, staging, then every sealed arena. */
int tl_attach(tierline_client *client);

#endif
