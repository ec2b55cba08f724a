/* How late work ends.
 *
 * The driver's documents say before which call of the program a piece of work has ended, and no
 * more: a copy from pageable memory may arrive long after its call returned, a kernel may begin
 * when other processes have had their turns. With SIMCUDA_LATE=<seed>, not 0, a stream's work
 * begins late, by times that follow from the seed and its place among the process's works, at most
 * until a thread of the program waits or asks for it. Copies from pageable memory always begin that
 * late.
 */
#pragma once

#include <stdint.h>

#include "work.h"

/* Nanoseconds by which the work that is submitted now is late at most; 0 for none. By one thread at
 * a time. */
uint64_t lateness_next(const struct work *work);
