/* One address range, cut into the pieces that a program allocates. Pure: no driver, no lock.
 *
 * Best fit over the gaps, in address order; a piece begins and ends at multiples of CARVE_GRANULE,
 * as the driver's own allocations do. Invariant: pieces are sorted and do not overlap.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CARVE_GRANULE = 512 };

struct carve_piece {
    uint64_t begin;
    uint64_t bytes; /* as asked for */
};

struct carve {
    uint64_t base, bytes;
    struct carve_piece *pieces;
    size_t count, capacity;
};

/* Begins with no pieces. `base` and `bytes` are multiples of CARVE_GRANULE. */
void carve_begin(struct carve *carve, uint64_t base, uint64_t bytes);
/* Forgets all pieces. */
void carve_end(struct carve *carve);

/* Cuts a piece; 0 when `bytes` is 0, no gap is large enough, or memory for the note is short. */
uint64_t carve_take(struct carve *carve, uint64_t bytes);
/* Gives the piece that begins here back; false when there is none. */
bool carve_give(struct carve *carve, uint64_t begin);

bool carve_holds(const struct carve *carve, uint64_t address);
/* Bytes from `base` to the end of the last piece: what of the range was in use at once, at least.
 */
uint64_t carve_reach(const struct carve *carve);
