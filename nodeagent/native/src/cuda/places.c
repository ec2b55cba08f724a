/* See places.h. */
#include "cuda/places.h"

#include "cuda/cuda.h"
#include "wire/error.h"

#include <stdlib.h>

#define GRANULE_BYTES (2UL << 20)

/* Where weights are put. Left to itself the driver begins at 12 GiB, where two small numbers side
 * by side in a launch's parameters, {n, 3}, are an address, and would name whatever weight lies
 * there. Few programs keep the upper halves of these. */
#define HIGH_PLACE 0x5e3700000000UL
#define HIGH_STEP 0x010100000000UL
#define HIGH_PLACES 16U
#define LOWEST_HIGH (1UL << 40)
#define GUARD_BYTES (1UL << 38) /* more than a GPU's memory */

static bool reserve(tierline_place *place, uint64_t wish, uint64_t bytes) {
    place->bytes = bytes;
    return tl_cuda_check(
               TL_CUDA(HOOK, cuMemAddressReserve, &place->address, bytes, GRANULE_BYTES, wish, 0),
               "reserving device addresses") == 0;
}

int tl_places_high(tierline_place *around, uint64_t *address, uint64_t bytes) {
    for (uint32_t place = 0; place < HIGH_PLACES; place++) {
        uint64_t wish = HIGH_PLACE + place * HIGH_STEP - GUARD_BYTES;
        if (!reserve(around, wish, bytes + 2 * GUARD_BYTES)) {
            break;
        }
        *address = around->address + GUARD_BYTES;
        if (*address >= LOWEST_HIGH) {
            return 0;
        }
        tl_places_free(around);
    }
    if (!reserve(around, HIGH_PLACE, bytes)) {
        return TIERLINE_E_SYSTEM;
    }
    *address = around->address;
    return 0;
}

void tl_places_free(const tierline_place *place) {
    TL_CUDA(HOOK, cuMemAddressFree, place->address, place->bytes);
}

/* Whether these addresses were free, and nobody else gets them now. */
static bool reserve_there(tierline_place *place, uint64_t address, uint64_t bytes) {
    if (!reserve(place, address, bytes)) {
        return false;
    }
    if (place->address != address) {
        tl_places_free(place);
    }
    return place->address == address;
}

int tl_places_keep(struct tl_device_arena *gpu, uint64_t address, uint64_t bytes) {
    uint64_t begin = address / GRANULE_BYTES * GRANULE_BYTES;
    uint64_t granules = (address + bytes - begin + GRANULE_BYTES - 1) / GRANULE_BYTES;
    tierline_place *larger = realloc(gpu->old, (gpu->old_count + granules) * sizeof *larger);
    if (larger == NULL) {
        return tl_fail(TIERLINE_E_NO_MEMORY, "keeping %llu addresses: out of memory",
                       (unsigned long long)bytes);
    }
    gpu->old = larger;
    if (reserve_there(&larger[gpu->old_count], begin, granules * GRANULE_BYTES)) {
        gpu->old_count++;
        return 0;
    }
    for (uint64_t g = 0; g < granules; g++) {
        gpu->old_count +=
            reserve_there(&larger[gpu->old_count], begin + g * GRANULE_BYTES, GRANULE_BYTES);
    }
    return 0;
}
