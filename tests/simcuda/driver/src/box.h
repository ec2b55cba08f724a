/* CUDA's own description of a copy, as graph nodes take and show it. */
#pragma once

#include "work.h"

CUresult box_to_copy(const CUDA_MEMCPY3D *box, struct copy *copy);
void box_from_copy(const struct copy *copy, CUDA_MEMCPY3D *box);
