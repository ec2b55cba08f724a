/* What calls cost a program, in nanoseconds. tests/bench/launches.py runs the programs that use it.
 *
 * Launches have grids of no size, which the simulated driver refuses at once: what is left is what
 * the library does before and after a call. Memsets and copies are refused, too; allocations are
 * whole.
 */
#pragma once

#include <cuda.h>
#include <stdint.h>

uint64_t now_ns(void);

/* Prints a line for one kind of call, whose samples it sorts: the smallest and the median. */
void print_costs(const char *call, double *samples_ns, uint32_t count);

/* Times all kinds of calls, some of which name weights; each round between `begin` and `end`. */
void time_calls(const CUdeviceptr *weights, uint32_t count, void (*begin)(void), void (*end)(void));
