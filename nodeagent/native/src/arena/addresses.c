/* See addresses.h. */
#include "arena/addresses.h"

#include "wire/error.h"
#include "wire/words.h"

#define MOST_RANGES 128U

static struct tl_addresses ranges[MOST_RANGES];
static struct tl_lock ranges_lock; /* writers only */
_Atomic uintptr_t tl_addresses_lowest = UINTPTR_MAX;
_Atomic uintptr_t tl_addresses_highest;

static void set_bounds(void) {
    uintptr_t lowest = UINTPTR_MAX;
    uintptr_t highest = 0;
    for (size_t i = 0; i < MOST_RANGES; i++) {
        if (ranges[i].end != 0) {
            lowest = ranges[i].base < lowest ? ranges[i].base : lowest;
            highest = ranges[i].end > highest ? ranges[i].end : highest;
        }
    }
    tl_addresses_lowest = lowest;
    tl_addresses_highest = highest;
}

int tl_addresses_watch(tierline_client *client, uint32_t index, const struct tl_arena *arena) {
    int code = tl_fail(TIERLINE_E_NO_MEMORY, "more than %u arenas in one process", MOST_RANGES);
    tl_lock_acquire(&ranges_lock);
    for (size_t i = 0; i < MOST_RANGES; i++) {
        struct tl_addresses *range = &ranges[i];
        if (range->end == 0) {
            __atomic_store_n(&range->client, client, __ATOMIC_RELAXED);
            __atomic_store_n(&range->arena, index, __ATOMIC_RELAXED);
            __atomic_store_n(&range->base, (uintptr_t)arena->base, __ATOMIC_RELAXED);
            __atomic_store_n(&range->end, (uintptr_t)tl_extent_address(arena, arena->extent_count),
                             __ATOMIC_RELEASE);
            code = 0;
            break;
        }
    }
    set_bounds();
    tl_lock_release(&ranges_lock);
    return code;
}

void tl_addresses_forget(const tierline_client *client, uint32_t arena) {
    tl_lock_acquire(&ranges_lock);
    for (size_t i = 0; i < MOST_RANGES; i++) {
        if (ranges[i].client == client && ranges[i].arena == arena) {
            __atomic_store_n(&ranges[i].end, 0, __ATOMIC_RELEASE);
        }
    }
    set_bounds();
    tl_lock_release(&ranges_lock);
}

const struct tl_addresses *tl_addresses_within(uintptr_t begin, uintptr_t end) {
    const struct tl_addresses *first = NULL;
    for (size_t i = 0; i < MOST_RANGES; i++) {
        uintptr_t range_end = __atomic_load_n(&ranges[i].end, __ATOMIC_ACQUIRE);
        uintptr_t base = __atomic_load_n(&ranges[i].base, __ATOMIC_RELAXED);
        if (begin < range_end && end > base && (first == NULL || base < first->base)) {
            first = &ranges[i];
        }
    }
    return first;
}

const struct tl_addresses *tl_addresses_find(uintptr_t address) {
    return tl_addresses_within(address, address + 1);
}
