/* The addresses at which the weights of this process's arenas on the CPU lie.
 *
 * Invariant: asking takes no lock, so that a signal handler may; a range that is found belongs to
 * the client until that is closed.
 */
#ifndef TIERLINE_ADDRESSES_H
#define TIERLINE_ADDRESSES_H

#include "arena/arena.h"
#include "tierline/tierline.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tl_addresses {
    uintptr_t base;
    uintptr_t end; /* 0: unused; written last, read first */
    tierline_client *client;
    uint32_t arena;
};

/* 0 or a code. */
int tl_addresses_watch(tierline_client *client, uint32_t index, const struct tl_arena *arena);
void tl_addresses_forget(const tierline_client *client, uint32_t arena);
/* The range that has the address; NULL: none. */
const struct tl_addresses *tl_addresses_find(uintptr_t address);
/* The first range with a byte of [begin, end), from low to high; NULL: none. */
const struct tl_addresses *tl_addresses_within(uintptr_t begin, uintptr_t end);

/* Bounds of all ranges: outside of them no address is a weight's. */
extern _Atomic uintptr_t tl_addresses_lowest, tl_addresses_highest;
static inline bool tl_addresses_may_hold(const void *buffer, size_t size) {
    uintptr_t begin = (uintptr_t)buffer;
    return begin < atomic_load_explicit(&tl_addresses_highest, memory_order_relaxed) &&
           begin + size > atomic_load_explicit(&tl_addresses_lowest, memory_order_relaxed);
}

#endif
