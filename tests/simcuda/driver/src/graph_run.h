/* Executable graphs and their launches. */
#pragma once

#include <cuda.h>

#include "context.h"

struct run; /* one launch */

CUresult run_perform(CUcontext ctx, struct run *run);
void run_free(struct run *run);
