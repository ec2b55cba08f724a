/* What a client on a GPU does of its own: its gates are at launches, copies and graph launches. */
#ifndef TIERLINE_BACKEND_H
#define TIERLINE_BACKEND_H

#include "link/state.h"

/* A process has one such client at most. */
extern const struct tl_backend tl_cuda_backend;

#endif
