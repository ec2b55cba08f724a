/* Address ranges that Tierline backs, though the program believes that it allocated them from the
 * driver: the driver would describe the mapping, and the program is to see its allocation.
 *
 * Code that maps such memory adds a range for each allocation, and takes it out before unmapping
 * it.
 * Invariant: ranges do not overlap.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum range_kind {
    RANGE_SPILLED,   /* host memory beyond the budget */
    RANGE_WEIGHTS,   /* of a weight arena */
    RANGE_WORKSPACE, /* of a workspace arena */
};

struct range {
    uint64_t begin, bytes;
    enum range_kind kind;
    int device;    /* ordinal of the device whose memory the program believes it is */
    void *context; /* CUcontext in which it was allocated */
    uint64_t id;   /* given by ranges_add; never used again */
};

/* False when the range is empty, overlaps another, or memory is short. */
bool ranges_add(const struct range *range);
/* Takes out the range that begins here, if it is of this kind; two callers cannot both get it. */
bool ranges_remove(uint64_t begin, enum range_kind kind, struct range *removed);
/* Puts a range back that was just taken out, with its id. */
void ranges_restore(const struct range *range);
/* The range that holds an address. Cheap for addresses outside all of them. */
bool ranges_find(uint64_t address, struct range *found);

void ranges_fork_before(void);
void ranges_fork_after(bool in_child);
