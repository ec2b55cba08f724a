/* TIERLINE_ON_EXCEEDED=Spill: what the budget refuses lies in host memory instead.
 *
 * The program gets an address of the same kind, which kernels and copies reach at the speed of the
 * link, and frees it as ever. Host memory by handle (cuMemCreate on the device's NUMA node) is
 * mapped at reserved addresses: one mapping for a large allocation, one shared by many small ones.
 * It is not charged, and counted as TIERLINE_HELD_SPILLED.
 *
 * What it does not: move spilled memory back when the budget has room again; spill managed memory,
 * arrays, and pools that the program chose itself.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/hooks.h"

/* Reads TIERLINE_ON_EXCEEDED. False, and a sentence on stderr, when it is neither Fail nor Spill.
 */
bool spill_read_environment(void);

/* What allocations answer that the budget refused: CUDA_ERROR_OUT_OF_MEMORY unless spilling is on
 * and works. */
int spill_allocate(uint64_t *address, size_t bytes);
int spill_allocate_pitch(uint64_t *address, size_t *pitch, size_t width_bytes, size_t height,
                         unsigned int element_bytes);
/* cuMemCreate: the same handle, of host memory. */
int spill_create(cuMemCreate_function *next, uint64_t *handle, size_t bytes, const void *properties,
                 unsigned long long flags);

/* Frees spilled memory; anything else goes to `next`. Waits, as the driver does, for the work of
 * the memory's context. */
int spill_free(cuMemFree_v2_function *next, uint64_t address);
/* Frees it once the stream gets there. */
int spill_free_async(cuMemFreeAsync_function *next, uint64_t address, void *stream,
                     bool per_thread);

/* The current context's device may use the memory of another context's device from now on. */
void spill_peer_enabled(void *peer_context);
/* A context has ended: its spilled memory goes with it. */
void spill_forget_context(const void *context);

void spill_fork_before(void);
void spill_fork_after(bool in_child);
