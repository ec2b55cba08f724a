/* The gate at this process's launches and copies. */
#ifndef TIERLINE_LAUNCH_GATES_H
#define TIERLINE_LAUNCH_GATES_H

#include "launches/gate.h"

extern const struct own_gate tl_launch_gate;

#endif
