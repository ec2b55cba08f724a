/* See ranges.h. A sorted array under one mutex; the span of all ranges is looked at without it. */
#include "memory/ranges.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static size_t count, capacity;
static uint64_t last_id;
static _Atomic uint64_t lowest =
    UINT64_MAX;                  /* only ever widened: a range that an address is asked */
static _Atomic uint64_t highest; /* about was added before the program got the address */

/* How many ranges begin at or before the address. */
static size_t count_until(uint64_t address) {
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle].begin <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Under the lock. */
static bool insert(const struct range *range) {
    size_t at = count_until(range->begin);
    uint64_t end = range->begin + range->bytes;
    if (end <= range->begin ||
        (at > 0 && ranges[at - 1].begin + ranges[at - 1].bytes > range->begin) ||
        (at < count && ranges[at].begin < end)) {
        return false;
    }
    if (count == capacity) {
        size_t wanted = capacity == 0 ? 64 : capacity * 2;
        struct range *larger = realloc(ranges, wanted * sizeof *larger);
        if (larger == NULL) {
            return false;
        }
        ranges = larger;
        capacity = wanted;
    }
    memmove(ranges + at + 1, ranges + at, (count - at) * sizeof *ranges);
    ranges[at] = *range;
    count++;
    if (range->begin < atomic_load(&lowest)) {
        atomic_store(&lowest, range->begin);
    }
    if (end > atomic_load(&highest)) {
        atomic_store(&highest, end);
    }
    return true;
}

bool ranges_add(const struct range *range) {
    pthread_mutex_lock(&lock);
    struct range added = *range;
    added.id = ++last_id;
    bool done = insert(&added);
    pthread_mutex_unlock(&lock);
    return done;
}

bool ranges_remove(uint64_t begin, enum range_kind kind, struct range *removed) {
    pthread_mutex_lock(&lock);
    size_t until = count_until(begin);
    bool found = until > 0 && ranges[until - 1].begin == begin && ranges[until - 1].kind == kind;
    if (found) {
        *removed = ranges[until - 1];
        count--;
        memmove(ranges + until - 1, ranges + until, (count - until + 1) * sizeof *ranges);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void ranges_restore(const struct range *range) {
    pthread_mutex_lock(&lock);
    (void)insert(range); /* without memory for the note the driver answers for it from now on */
    pthread_mutex_unlock(&lock);
}

bool ranges_find(uint64_t address, struct range *found) {
    if (address < atomic_load_explicit(&lowest, memory_order_relaxed) ||
        address >= atomic_load_explicit(&highest, memory_order_relaxed)) {
        return false;
    }
    pthread_mutex_lock(&lock);
    size_t until = count_until(address);
    bool hit = until > 0 && address - ranges[until - 1].begin < ranges[until - 1].bytes;
    if (hit) {
        *found = ranges[until - 1];
    }
    pthread_mutex_unlock(&lock);
    return hit;
}

void ranges_fork_before(void) {
    pthread_mutex_lock(&lock);
}

void ranges_fork_after(bool in_child) {
    if (in_child) {
        count = 0;
        atomic_store(&lowest, UINT64_MAX);
        atomic_store(&highest, 0);
    }
    pthread_mutex_unlock(&lock);
}
