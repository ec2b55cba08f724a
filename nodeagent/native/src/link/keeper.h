/* The thread that keeps a client connected while its program does nothing. */
#ifndef TIERLINE_KEEPER_H
#define TIERLINE_KEEPER_H

#include "tierline/tierline.h"

/* Of a client that is connected; without the lock. 0 or a code. */
int tl_keeper_start(tierline_client *client);
/* Ends the thread, and the connection with it, if there is one; without the lock. */
void tl_keeper_stop(tierline_client *client);

#endif
