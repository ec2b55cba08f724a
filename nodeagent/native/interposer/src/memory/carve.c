/* See carve.h. Only pieces are kept; gaps are what lies between them. */
#include "memory/carve.h"

#include <stdlib.h>
#include <string.h>

void carve_begin(struct carve *carve, uint64_t base, uint64_t bytes) {
    *carve = (struct carve){.base = base, .bytes = bytes};
}

void carve_end(struct carve *carve) {
    free(carve->pieces);
    carve->pieces = NULL;
    carve->count = 0;
    carve->capacity = 0;
}

/* 0 when the sum does not fit into 64 bits. */
static uint64_t round_up(uint64_t bytes) {
    return (bytes + CARVE_GRANULE - 1) / CARVE_GRANULE * CARVE_GRANULE;
}

/* The gap in front of piece `index`; after the last piece for `count`. */
static uint64_t gap_begin(const struct carve *carve, size_t index) {
    return index == 0 ? carve->base
                      : carve->pieces[index - 1].begin + round_up(carve->pieces[index - 1].bytes);
}

static uint64_t gap_bytes(const struct carve *carve, size_t index) {
    uint64_t end = index < carve->count ? carve->pieces[index].begin : carve->base + carve->bytes;
    return end - gap_begin(carve, index);
}

/* How many pieces begin at or before the address. */
static size_t count_until(const struct carve *carve, uint64_t address) {
    size_t low = 0;
    size_t high = carve->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (carve->pieces[middle].begin <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool make_room(struct carve *carve) {
    if (carve->count < carve->capacity) {
        return true;
    }
    size_t wanted = carve->capacity == 0 ? 16 : carve->capacity * 2;
    struct carve_piece *larger = realloc(carve->pieces, wanted * sizeof *larger);
    if (larger == NULL) {
        return false;
    }
    carve->pieces = larger;
    carve->capacity = wanted;
    return true;
}

uint64_t carve_take(struct carve *carve, uint64_t bytes) {
    uint64_t rounded = round_up(bytes);
    size_t best = 0;
    uint64_t best_bytes = UINT64_MAX;
    if (rounded < bytes || bytes == 0 || !make_room(carve)) {
        return 0;
    }
    for (size_t i = 0; i <= carve->count; i++) {
        uint64_t gap = gap_bytes(carve, i);
        if (gap >= rounded && gap < best_bytes) {
            best = i;
            best_bytes = gap;
        }
    }
    if (best_bytes == UINT64_MAX) {
        return 0;
    }
    uint64_t begin = gap_begin(carve, best);
    memmove(carve->pieces + best + 1, carve->pieces + best,
            (carve->count - best) * sizeof *carve->pieces);
    carve->pieces[best] = (struct carve_piece){begin, bytes};
    carve->count++;
    return begin;
}

bool carve_give(struct carve *carve, uint64_t begin) {
    size_t until = count_until(carve, begin);
    if (until == 0 || carve->pieces[until - 1].begin != begin) {
        return false;
    }
    carve->count--;
    memmove(carve->pieces + until - 1, carve->pieces + until,
            (carve->count - until + 1) * sizeof *carve->pieces);
    return true;
}

bool carve_holds(const struct carve *carve, uint64_t address) {
    return address - carve->base < carve->bytes;
}

uint64_t carve_reach(const struct carve *carve) {
    return gap_begin(carve, carve->count) - carve->base;
}
