/* Memory that the driver itself lays out: cuMemAlloc, pools and page-locked host memory.
 *
 * Large requests get a block of their own, rounded up to 2 MiB. Small ones share 2 MiB slabs in
 * 512-byte granules, as the real driver's do; so many small allocations do not cost 2 MiB each. */
#pragma once

#include "ranges.h"

enum { GRANULE_BYTES = 512, LARGE_BYTES = 1 << 20, GRANULARITY_BYTES = 2 << 20 };

/* Device memory at a fresh address, entered as a range of this kind. */
CUresult memory_take(CUcontext ctx, uint64_t bytes, enum range_kind kind, uint64_t *address);
/* Gives back what memory_take gave, after the range was removed. */
void memory_give(const struct range *range);
/* The block that backs an address from memory_take, and where in it the address lies. */
bool memory_locate(const struct range *range, struct block *block, uint64_t *offset);
/* Everything of a context that ends. */
void memory_end(CUcontext ctx);

/* A process-wide address range of the size and alignment, PROT_NONE; 0 when there is none. */
uint64_t address_reserve(uint64_t bytes, uint64_t alignment, uint64_t wish);
