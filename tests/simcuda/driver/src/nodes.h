/* Turning CUDA's descriptions of node parameters into work, and back. */
#pragma once

#include <cuda.h>

#include "work.h"

/* Each gives fresh work; CUDA_SUCCESS and *work == NULL never come together. */
CUresult work_of_kernel(const CUDA_KERNEL_NODE_PARAMS *params, struct work **work);
CUresult work_of_box(const CUDA_MEMCPY3D *params, struct work **work);
CUresult work_of_fill(const CUDA_MEMSET_NODE_PARAMS *params, struct work **work);
CUresult work_of_host(const CUDA_HOST_NODE_PARAMS *params, struct work **work);
CUresult work_of_memops(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params, struct work **work);
CUresult work_of_params(const CUgraphNodeParams *params, struct work **work);
