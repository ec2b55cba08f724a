/* What the agent sends when an arena is reserved (tl_receivers). */
#ifndef TIERLINE_LOAD_H
#define TIERLINE_LOAD_H

#include "link/state.h"

int tl_inbox_reserved(tierline_client *client, const struct tlp_reserved *reserved);
/* Takes the descriptors of an FDS frame into the inbox. */
int tl_inbox_descriptors(tierline_client *client, const struct tlp_fds *fds);

#endif
