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
/* Ordinary host memory: such a copy ends before the call returns. */
bool copy_touches_pageable(const struct copy *copy);
