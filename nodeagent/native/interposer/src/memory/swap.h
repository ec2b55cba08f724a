/* Policy Swap: a program's device memory lies in a workspace of the agent's, and is swapped whole.
 *
 * With TIERLINE_SWAP=BYTES (suffixes Ki, Mi, Gi) the first allocation borrows a workspace of that
 * size: one address range that the program keeps, whose content the agent saves and restores
 * between jobs of different tasks. Allocations are pieces of it; TIERLINE_SWAP_OBJECTS says which
 * (swap_objects.h). What is not to be swapped, and what finds no room, is ordinary device memory.
 * All of it is charged to the budget as ever.
 *
 * What it does not: swap virtual memory (cuMemCreate), managed memory, arrays, pools that the
 * program made itself, and memory of other contexts than the one that allocated first. The lease is
 * the gate's business (gate.h).
 *
 * Invariant: an address of the workspace is a piece's exactly while its range is in ranges.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/hooks.h"

/* What a lender gave. */
struct swap_loan {
    uint64_t base, bytes;
    void *context;
    int device;
};

/* The lender of a workspace: the client library, where it is linked in. */
struct swap_lender {
    /* Maps about so many bytes in the current context: ABI_SUCCESS; ABI_NOT_FOUND when the program
     * is to run without; any other CUresult is the answer to every allocation. */
    int (*lend)(uint64_t bytes, struct swap_loan *loan);
    /* The loan's context has ended; the mapping is no more. */
    void (*ended)(void);
};
extern const struct swap_lender swap_lender __attribute__((weak));

/* Reads TIERLINE_SWAP and TIERLINE_SWAP_OBJECTS. False, and a sentence on stderr, when they are not
 * understood. */
bool swap_read_environment(void);
/* Bytes of the workspace that this process is to have; 0: none. */
uint64_t swap_wanted_bytes(void);
/* The loan that everybody's allocations share, borrowed if need be. As swap_lender.lend. */
int swap_borrow(struct swap_loan *lent);

int swap_allocate(cuMemAlloc_v2_function *next, uint64_t *address, size_t bytes);
int swap_allocate_pitch(cuMemAllocPitch_v2_function *next, uint64_t *address, size_t *pitch,
                        size_t width_bytes, size_t height, unsigned int element_bytes);
int swap_allocate_async(cuMemAllocAsync_function *next, uint64_t *address, size_t bytes,
                        void *stream);
/* Of a device's own pool; others have properties that a workspace has not. */
int swap_allocate_from_pool(cuMemAllocFromPoolAsync_function *next, uint64_t *address, size_t bytes,
                            void *pool, void *stream);
bool swap_holds(uint64_t address);

/* Frees a piece; anything else goes on to spill.h. Waits, as the driver does, for the context's
 * work. */
int swap_free(cuMemFree_v2_function *next, uint64_t address);
/* Frees it once the stream gets there. */
int swap_free_async(cuMemFreeAsync_function *next, uint64_t address, void *stream, bool per_thread);

/* The current context's device may use the memory of another context's device from now on. */
void swap_peer_enabled(void *peer_context);

/* How much of the workspace has content, bytes from its start. */
uint64_t swap_reach(void);

void swap_forget_context(const void *context);
void swap_fork_before(void);
void swap_fork_after(bool in_child);
