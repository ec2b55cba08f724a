/* What a client on the CPU does of its own. */
#ifndef TIERLINE_HOST_H
#define TIERLINE_HOST_H

#include "link/state.h"

extern const struct tl_backend tl_host_backend;

#endif
