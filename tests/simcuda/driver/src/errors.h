/* Names and sentences of CUresult values, and which of them end a context. */
#pragma once

#include <cuda.h>
#include <stdbool.h>

/* "CUDA_ERROR_OUT_OF_MEMORY" -> its value; CUDA_SUCCESS for a name that is none. */
CUresult error_by_name(const char *name);

/* After such an error every further call in the context answers it; only a new context helps. */
bool error_is_sticky(CUresult error);
