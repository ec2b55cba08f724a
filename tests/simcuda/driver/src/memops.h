/* Stream memory operations: waiting for and writing flag words, in stream order. */
#pragma once

#include "context.h"
#include "work.h"

CUresult memops_check(CUcontext ctx, const CUstreamBatchMemOpParams *operations, unsigned count);
/* Goes through the operations from *next on; ends at a wait that is not satisfied. *next == count:
 * done. */
CUresult memops_advance(CUcontext ctx, const struct memops *memops, unsigned *next);
/* Whether one of the words lies in these bytes. */
bool memops_touch(const struct memops *memops, uint64_t base, uint64_t size);
/* Sleeps until the wait at `next` may have been satisfied; at most so long. */
void memops_sleep(const struct memops *memops, unsigned next, uint64_t longest_ns);
/* All of them, waiting as long as it takes. */
CUresult memops_perform(CUcontext ctx, const struct memops *memops);
