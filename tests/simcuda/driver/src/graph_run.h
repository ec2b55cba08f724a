/* Executable graphs and their launches. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "context.h"

struct run; /* one launch */

CUresult run_perform(CUcontext ctx, struct run *run);
bool run_touches(const struct run *run, uint64_t base, uint64_t size);
void run_free(struct run *run);
