/* The memory of the program's in which weights lay before they moved to an arena on the CPU.
 *
 * Code that PyTorch does not know keeps addresses: a C library, a table of pointers. So the program
 * keeps that memory. It holds no bytes, and what touches it finds the weight's bytes of now there.
 * The owner of the arena then lets the program use that memory again, and the arena no more; so it
 * does with a weight that was written in the arena.
 *
 * Invariant: the whole pages of an origin cannot be read, or hold the weight's bytes as they were
 * in the arena when it was touched; one system call makes them readable. Until the origin is given
 * back they can be written only while no job reads the arena: such a job may have read the weight
 * there. Blind: bytes that share their page with others can be touched unseen, until the rest of
 * the weight is.
 */
#ifndef TIERLINE_ORIGINS_H
#define TIERLINE_ORIGINS_H

#include "link/state.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* In the handler of SIGSEGV. False: the address is in no origin that cannot be touched so; else
 * `code` is 0 if the instruction can run again. */
bool tl_origins_touch(uintptr_t address, bool writing, int *code);
/* Before the kernel reads or writes [begin, end) for the program. 0 or a code. */
int tl_origins_touch_all(uintptr_t begin, uintptr_t end, bool writing);
/* In a fork's child: the lock may be held by a thread that is not here. */
void tl_origins_in_child(void);
/* Before an arena goes: its origins are memory of the program's, of no content. */
void tl_origins_forget(const tierline_client *client, uint32_t arena);

/* Bounds of all that ever were: outside of them there is none. */
extern _Atomic uintptr_t tl_origins_lowest, tl_origins_highest;
static inline bool tl_origins_may_hold(uintptr_t begin, uintptr_t end) {
    return begin < atomic_load_explicit(&tl_origins_highest, memory_order_relaxed) &&
           end > atomic_load_explicit(&tl_origins_lowest, memory_order_relaxed);
}

#endif
