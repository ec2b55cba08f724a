/* Moving and filling memory at the speed of the engine that would do it. */
#pragma once

#include "context.h"
#include "work.h"

enum { TRANSFER_CHUNK_BYTES = 512 << 10 };

CUresult copy_perform(CUcontext ctx, const struct copy *copy);
CUresult fill_perform(CUcontext ctx, const struct fill *fill);

/* Can these pointers be copied between at all, as far as the call can see? */
CUresult copy_check(CUcontext ctx, const struct copy *copy);
CUresult fill_check(CUcontext ctx, const struct fill *fill);
/* Ordinary host memory. A copy into it ends before the call returns; of one out of it to a device
 * the call has the bytes when it returns, and they may arrive later. */
bool copy_writes_pageable(const struct copy *copy);
bool copy_reads_pageable(const struct copy *copy);
/* Takes the source's bytes into memory of the copy's own; false when memory is short. */
bool copy_stage(struct copy *copy);
/* The bytes between the first and the last that a copy reads, and that it writes. */
uint64_t copy_read_bytes(const struct copy *copy);
uint64_t copy_written_bytes(const struct copy *copy);
