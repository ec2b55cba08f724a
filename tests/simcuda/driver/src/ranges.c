/* A sorted array of ranges. See ranges.h. */
#include "ranges.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct range *ranges;
static size_t count, capacity;
static uint64_t next_buffer_id = 1;

/* Index of the first range that ends beyond the address. */
static size_t first_beyond(uint64_t address) {
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle].base + ranges[middle].size > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

bool ranges_add(struct range *range) {
    pthread_rwlock_wrlock(&lock);
    if (count == capacity) {
        size_t wanted = capacity == 0 ? 64 : capacity * 2;
        struct range *larger = realloc(ranges, wanted * sizeof *larger);
        if (larger == NULL) {
            pthread_rwlock_unlock(&lock);
            return false;
        }
        ranges = larger;
        capacity = wanted;
    }
    size_t at = first_beyond(range->base);
    bool room = at == count || ranges[at].base >= range->base + range->size;
    if (room) {
        range->buffer_id = next_buffer_id++;
        memmove(&ranges[at + 1], &ranges[at], (count - at) * sizeof *ranges);
        ranges[at] = *range;
        count++;
    }
    pthread_rwlock_unlock(&lock);
    return room;
}

bool ranges_remove(uint64_t base, unsigned kinds, struct range *removed) {
    pthread_rwlock_wrlock(&lock);
    size_t at = first_beyond(base);
    bool found = at < count && ranges[at].base == base && (kinds >> ranges[at].kind & 1);
    if (found) {
        *removed = ranges[at];
        count--;
        memmove(&ranges[at], &ranges[at + 1], (count - at) * sizeof *ranges);
    }
    pthread_rwlock_unlock(&lock);
    return found;
}

bool ranges_remove_of(CUcontext ctx, struct range *removed) {
    pthread_rwlock_wrlock(&lock);
    size_t at = 0;
    while (at < count && ranges[at].ctx != ctx) {
        at++;
    }
    bool found = at < count;
    if (found) {
        *removed = ranges[at];
        count--;
        memmove(&ranges[at], &ranges[at + 1], (count - at) * sizeof *ranges);
    }
    pthread_rwlock_unlock(&lock);
    return found;
}

bool ranges_find(uint64_t address, struct range *found) {
    pthread_rwlock_rdlock(&lock);
    size_t at = first_beyond(address);
    bool hit = at < count && ranges[at].base <= address;
    if (hit) {
        *found = ranges[at];
    }
    pthread_rwlock_unlock(&lock);
    return hit;
}

CUresult ranges_edit(uint64_t base, uint64_t size,
                     CUresult (*visit)(struct range *range, void *data), void *data) {
    CUresult result = CUDA_SUCCESS;
    pthread_rwlock_wrlock(&lock);
    for (size_t at = first_beyond(base);
         result == CUDA_SUCCESS && at < count && ranges[at].base < base + size; at++) {
        result = visit(&ranges[at], data);
    }
    pthread_rwlock_unlock(&lock);
    return result;
}

bool ranges_whole(uint64_t base, uint64_t size, unsigned kinds) {
    pthread_rwlock_rdlock(&lock);
    size_t at = first_beyond(base);
    uint64_t reached = base;
    while (reached < base + size && at < count && ranges[at].base == reached &&
           (kinds >> ranges[at].kind & 1)) {
        reached += ranges[at].size;
        at++;
    }
    pthread_rwlock_unlock(&lock);
    return reached == base + size;
}

void ranges_hold(void) {
    pthread_rwlock_rdlock(&lock);
}

void ranges_let_go(void) {
    pthread_rwlock_unlock(&lock);
}

bool ranges_allow(uint64_t base, uint64_t size, int device, bool writing) {
    unsigned needed = writing ? ACCESS_READ_WRITE : ACCESS_READ;
    uint64_t reached = base;
    if (base + size < base) {
        return false;
    }
    for (size_t at = first_beyond(base); reached < base + size && at < count; at++) {
        const struct range *range = &ranges[at];
        if (range->base > reached || (range->access[device] & needed) != needed) {
            return false;
        }
        reached = range->base + range->size;
    }
    return reached >= base + size;
}

bool ranges_touch(uint64_t base, uint64_t size) {
    size_t at = first_beyond(base);
    return at < count && ranges[at].base < base + size;
}

bool ranges_would_allow(uint64_t base, uint64_t size, int device, bool writing) {
    ranges_hold();
    bool allowed = ranges_allow(base, size, device, writing);
    ranges_let_go();
    return allowed;
}
