/* A kernel node of one block, for test programs that build graphs by hand. */
#ifndef TIERLINE_TESTS_KERNEL_NODE_H
#define TIERLINE_TESTS_KERNEL_NODE_H

#include <cuda.h>

static inline CUDA_KERNEL_NODE_PARAMS kernel_node(CUfunction function, unsigned threads,
                                                  void **parameters) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = function,
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = threads,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = parameters};
}

#endif
