/* Whether the agent is there when CUDA starts, and what happens when it is not.
 *
 * TIERLINE_SOCKET names its socket. When nobody answers there, the program runs without Tierline
 * (its budget still holds, since others share the device) and is told so, unless
 * TIERLINE_REQUIRED=1: then cuInit fails. Nothing is kept open: a module that needs the agent
 * connects by itself. */
#pragma once

#include <stdbool.h>

/* False, and a sentence on stderr, when CUDA must not start. */
bool presence_permits_start(void);
