/* The address ranges of this process that a device may touch, and how.
 *
 * Device memory is mapped into the process at the very address that is its device pointer, so a
 * kernel can be ordinary code. What a real device's page tables forbid is checked here before
 * memory is touched, and mprotect makes sure that a write through a read-only mapping fails even
 * where a check is missing.
 *
 * Invariant: ranges do not overlap, and they change only under the exclusive side of the lock;
 * code that touches device memory does so under the shared side, after a check, in pieces short
 * enough that others can wait.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "machine.h"

enum range_kind {
    RANGE_DEVICE,     /* cuMemAlloc */
    RANGE_POOL,       /* cuMemAllocAsync */
    RANGE_HOST,       /* cuMemHostAlloc */
    RANGE_REGISTERED, /* cuMemHostRegister */
    RANGE_MAPPING,    /* cuMemMap */
    RANGE_IMPORTED,   /* cuIpcOpenMemHandle */
};

enum { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_READ_WRITE = 3 };

struct range {
    uint64_t base, size;
    enum range_kind kind;
    int device; /* where the memory is; HOST_MEMORY on the host */
    CUcontext ctx;
    unsigned flags;
    uint64_t buffer_id;
    uint64_t handle;    /* RANGE_MAPPING: the physical memory */
    struct block block; /* memory that the range owns alone; fd -1 when another does */
    uint64_t block_offset;
    unsigned char access[MAX_DEVICES];
    unsigned char host_access;
};

/* Enters a range; gives it its buffer_id. False when it overlaps another or memory is short. */
bool ranges_add(struct range *range);
/* Takes out the range that begins at the base, if it is of one of the kinds (a bit set of 1 <<
 * kind). */
bool ranges_remove(uint64_t base, unsigned kinds, struct range *removed);
/* Takes out any range that belongs to the context. */
bool ranges_remove_of(CUcontext ctx, struct range *removed);
/* The range that holds the address. */
bool ranges_find(uint64_t address, struct range *found);
/* Calls visit for each range that intersects [base, base + size), exclusively locked; ends at the
 * first result that is not CUDA_SUCCESS. */
CUresult ranges_edit(uint64_t base, uint64_t size,
                     CUresult (*visit)(struct range *range, void *data), void *data);
/* True when every byte of [base, base + size) lies in ranges of one of the kinds, whole ranges
 * only. */
bool ranges_whole(uint64_t base, uint64_t size, unsigned kinds);

/* The shared side of the lock, for touching memory. */
void ranges_hold(void);
void ranges_let_go(void);
/* May the device touch all these bytes? Under ranges_hold. */
bool ranges_allow(uint64_t base, uint64_t size, int device, bool writing);
/* Does any of these bytes lie in a range? Under ranges_hold. */
bool ranges_touch(uint64_t base, uint64_t size);
/* ranges_allow, taking the lock itself. */
bool ranges_would_allow(uint64_t base, uint64_t size, int device, bool writing);
