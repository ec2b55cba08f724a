/* For programs of tests; the driver itself has the calls' first versions by these names. */
#pragma once

#include <cuda.h>
#include <stddef.h>

/* Copies from pageable memory: the bytes have arrived for every stream when it returns, which is
 * later than the driver's own call does. */
static inline CUresult simcuda_upload(CUdeviceptr to, const void *from, size_t bytes) {
    CUresult result = cuMemcpyHtoD(to, from, bytes);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : result;
}
