/* Which weights the memory of a program names: once it has an address, a launch that does not name
 * the weight may read it. What the program itself copies to the device is seen when it is copied
 * (observer.h); what its kernels write, or it writes to pinned memory, only by looking there.
 *
 * Blind: variables of modules, memory that is freed again before anyone looks, and what is made
 * later. */
#pragma once

#include "tierline/interposer.h"
