/* See tables.h. */
#include "memory/tables.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "budget/ledger.h"
#include "driver/driver.h"
#include "launches/captures.h"

enum { CHUNK_BYTES = 4 << 20, WORD = 8 };

struct place {
    uint64_t begin, end;
    uint32_t weight;
};

/* What is looked for, by address. */
struct sought {
    struct place *places;
    uint32_t count;
    bool *named;
};

static int by_address(const void *one, const void *other) {
    uint64_t a = ((const struct place *)one)->begin;
    uint64_t b = ((const struct place *)other)->begin;
    return (a > b) - (a < b);
}

/* The first place that ends beyond an address; the count when there is none. */
static uint32_t at_or_after(const struct sought *sought, uint64_t address) {
    uint32_t low = 0;
    uint32_t high = sought->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (sought->places[middle].end <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void look_at(const unsigned char *bytes, size_t size, struct sought *sought) {
    const uint64_t lowest = sought->places[0].begin;
    const uint64_t span = sought->places[sought->count - 1].end - lowest;
    for (size_t at = 0; at + WORD <= size; at += WORD) {
        uint64_t word;
        memcpy(&word, bytes + at, sizeof word);
        if (word - lowest < span) {
            uint32_t i = at_or_after(sought, word);
            if (i < sought->count && sought->places[i].begin <= word) {
                sought->named[sought->places[i].weight] = true;
            }
        }
    }
}

/* What a copy ended with. */
enum copied { COPIED, GONE, REFUSED };

static enum copied copy_out(unsigned char *to, uint64_t from, size_t size, bool on_host) {
    if (!on_host) {
        cuMemcpyDtoH_v2_function *copy = DRIVER(HOOK, cuMemcpyDtoH_v2);
        int result = copy == NULL ? ABI_NOT_FOUND : (int)copy(to, from, size);
        return result == ABI_SUCCESS ? COPIED : result == ABI_INVALID_VALUE ? GONE : REFUSED;
    }
    struct iovec target = {.iov_base = to, .iov_len = size};
    /* Another thread may free it meanwhile: a plain read would end the program. */
    struct iovec source = {.iov_base =
                               (void *)(uintptr_t)from, /* NOLINT(performance-no-int-to-ptr) */
                           .iov_len = size};
    ssize_t read = process_vm_readv(getpid(), &target, 1, &source, 1, 0);
    return read == (ssize_t)size ? COPIED : read >= 0 || errno == EFAULT ? GONE : REFUSED;
}

/* Looks at [begin, end), which holds no weight. What is gone holds nothing; false if the driver did
 * not let it look. */
static bool look_through(uint64_t begin, uint64_t end, bool on_host, unsigned char *buffer,
                         struct sought *sought) {
    for (uint64_t at = begin; at + WORD <= end;) {
        size_t size = end - at < CHUNK_BYTES ? (size_t)(end - at) : (size_t)CHUNK_BYTES;
        enum copied copied = copy_out(buffer, at, size, on_host);
        if (copied != COPIED) {
            return copied == GONE;
        }
        look_at(buffer, size, sought);
        at += size;
    }
    return true;
}

static bool look_into(const struct ledger_memory *memory, unsigned char *buffer,
                      struct sought *sought) {
    uint64_t end = memory->address + memory->bytes;
    uint64_t at = memory->address;
    for (uint32_t i = at_or_after(sought, at); at < end; i++) {
        uint64_t stop =
            i < sought->count && sought->places[i].begin < end ? sought->places[i].begin : end;
        if (stop > at && !look_through(at, stop, memory->on_host, buffer, sought)) {
            return false;
        }
        at = stop == end ? end : (sought->places[i].end + WORD - 1) / WORD * WORD;
    }
    return true;
}

TIERLINE_EXPORT int tierline_memory_names(const tierline_weight *weights, uint32_t count,
                                          bool *named) {
    memset(named, 0, count * sizeof *named);
    if (count == 0 || captures_any()) { /* a copy would end the capture */
        return count == 0 ? 0 : -EBUSY;
    }
    uint32_t pieces = 0;
    struct ledger_memory *memory = ledger_list(&pieces);
    struct sought sought = {calloc(count, sizeof *sought.places), count, named};
    unsigned char *buffer = malloc(CHUNK_BYTES);
    int result = memory != NULL && sought.places != NULL && buffer != NULL ? 0 : -ENOMEM;
    if (result == 0) {
        for (uint32_t i = 0; i < count; i++) {
            sought.places[i] =
                (struct place){weights[i].address, weights[i].address + weights[i].bytes, i};
        }
        qsort(sought.places, count, sizeof *sought.places, by_address);
        for (uint32_t i = 0; i < pieces && result == 0; i++) {
            result = look_into(&memory[i], buffer, &sought) ? 0 : -EIO;
        }
    }
    free(memory);
    free(sought.places);
    free(buffer);
    return result;
}
