/* Launches. See launches.h. */
#include "launches.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "entry.h"
#include "modules.h"
#include "streams.h"

CUresult launch_perform(CUcontext ctx, const struct launch *launch) {
    return launch->builtin->run(ctx, launch->parameters);
}

void **launch_pointers(const struct builtin *builtin, unsigned char *parameters) {
    void **pointers = calloc(builtin->parameter_count + 1, sizeof *pointers);
    for (size_t i = 0; pointers != NULL && i < builtin->parameter_count; i++) {
        pointers[i] = parameters + builtin->parameters[i].offset;
    }
    return pointers;
}

static CUresult pack_extra(const struct launch *launch, void **extra) {
    const void *buffer = NULL;
    size_t bytes = 0;
    for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            buffer = extra[i + 1];
        } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            bytes = *(const size_t *)extra[i + 1];
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (buffer == NULL || bytes < launch->parameter_bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(launch->parameters, buffer, launch->parameter_bytes);
    return CUDA_SUCCESS;
}

CUresult launch_pack(struct launch *launch, void **pointers, void **extra) {
    const struct builtin *builtin = launch->builtin;
    if ((pointers != NULL && extra != NULL) ||
        (pointers == NULL && extra == NULL && builtin->parameter_count > 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    launch->parameter_bytes = builtin->parameter_bytes;
    launch->parameters = calloc(1, builtin->parameter_bytes + 1);
    if (launch->parameters == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CUDA_SUCCESS;
    if (extra != NULL) {
        result = pack_extra(launch, extra);
    } else {
        for (size_t i = 0; i < builtin->parameter_count; i++) {
            memcpy(launch->parameters + builtin->parameters[i].offset, pointers[i],
                   builtin->parameters[i].size);
        }
    }
    if (result == CUDA_SUCCESS) {
        launch->pointers = launch_pointers(builtin, launch->parameters);
        if (launch->pointers == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result != CUDA_SUCCESS) {
        free(launch->parameters);
        launch->parameters = NULL;
    }
    return result;
}

CUresult IMPL(cuLaunchKernelEx)(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                                void **extra) {
    CUstream stream;
    if (config == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = stream_resolve(config->hStream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct CUfunc_st *function = function_of(f);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    if (config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0 || threads == 0 ||
        threads > 1024 || (config->numAttrs > 0 && config->attrs == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct work work = {
        .kind = WORK_KERNEL,
        .launch = {.function = function,
                   .is_kernel = function->library != NULL,
                   .builtin = function->builtin,
                   .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                   .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                   .shared_bytes = config->sharedMemBytes,
                   .attributes = config->attrs,
                   .attribute_count = config->numAttrs}};
    result = launch_pack(&work.launch, kernelParams, extra);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    /* A lazily loaded function makes its first launch wait for everything in the context. On a GPU
     * this hangs while a stream waits for a flag, so it must hang here too. */
    if (!capture_active(stream) && !atomic_exchange(&function->loaded, true)) {
        result = streams_drain(stream->ctx);
    }
    if (result == CUDA_SUCCESS) {
        result = stream_submit(stream, work_copy(&work), NULL);
    }
    free(work.launch.parameters);
    free(work.launch.pointers);
    return result;
}

CUresult IMPL(cuLaunchKernel)(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                              unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                              unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                              void **kernelParams, void **extra) {
    CUlaunchConfig config = {gridDimX,  gridDimY,       gridDimZ, blockDimX, blockDimY,
                             blockDimZ, sharedMemBytes, hStream,  NULL,      0};
    return IMPL(cuLaunchKernelEx)(&config, f, kernelParams, extra);
}

CUresult IMPL(cuLaunchCooperativeKernel)(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                         unsigned int gridDimZ, unsigned int blockDimX,
                                         unsigned int blockDimY, unsigned int blockDimZ,
                                         unsigned int sharedMemBytes, CUstream hStream,
                                         void **kernelParams) {
    CUlaunchAttribute cooperative = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                                     .value = {.cooperative = 1}};
    CUlaunchConfig config = {gridDimX,  gridDimY,       gridDimZ, blockDimX,    blockDimY,
                             blockDimZ, sharedMemBytes, hStream,  &cooperative, 1};
    return IMPL(cuLaunchKernelEx)(&config, f, kernelParams, NULL);
}

CUresult IMPL(cuFuncGetParamInfo)(CUfunction func, size_t paramIndex, size_t *paramOffset,
                                  size_t *paramSize) {
    struct CUfunc_st *function = function_of(func);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (paramOffset == NULL || paramIndex >= function->builtin->parameter_count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *paramOffset = function->builtin->parameters[paramIndex].offset;
    if (paramSize != NULL) {
        *paramSize = function->builtin->parameters[paramIndex].size;
    }
    return CUDA_SUCCESS;
}

CUresult IMPL(cuFuncGetParamCount)(CUfunction func, size_t *paramCount) {
    struct CUfunc_st *function = function_of(func);
    if (function == NULL || paramCount == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *paramCount = function->builtin->parameter_count;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuKernelGetParamInfo)(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                                    size_t *paramSize) {
    return IMPL(cuFuncGetParamInfo)((CUfunction)kernel, paramIndex, paramOffset, paramSize);
}

CUresult IMPL(cuKernelGetParamCount)(CUkernel kernel, size_t *paramCount) {
    return IMPL(cuFuncGetParamCount)((CUfunction)kernel, paramCount);
}

CUresult IMPL(cuFuncGetName)(const char **name, CUfunction hfunc) {
    struct CUfunc_st *function = function_of(hfunc);
    if (function == NULL || name == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *name = function->builtin->name;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuKernelGetName)(const char **name, CUkernel hfunc) {
    return IMPL(cuFuncGetName)(name, (CUfunction)hfunc);
}

CUresult IMPL(cuFuncGetModule)(CUmodule *hmod, CUfunction hfunc) {
    struct CUfunc_st *function = function_of(hfunc);
    if (function == NULL || hmod == NULL || function->module == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *hmod = function->module;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuFuncIsLoaded)(CUfunctionLoadingState *state, CUfunction function) {
    struct CUfunc_st *found = function_of(function);
    if (found == NULL || state == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *state = atomic_load(&found->loaded) ? CU_FUNCTION_LOADING_STATE_LOADED
                                         : CU_FUNCTION_LOADING_STATE_UNLOADED;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuFuncLoad)(CUfunction function) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    struct CUfunc_st *found = function_of(function);
    if (result != CUDA_SUCCESS || found == NULL) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
    }
    return atomic_exchange(&found->loaded, true) ? CUDA_SUCCESS : streams_drain(ctx);
}

CUresult IMPL(cuFuncGetAttribute)(int *pi, CUfunction_attribute attrib, CUfunction hfunc) {
    if (function_of(hfunc) == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (pi == NULL || attrib < 0 || attrib >= CU_FUNC_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pi = attrib == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
          : attrib == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
          : attrib == CU_FUNC_ATTRIBUTE_PTX_VERSION || attrib == CU_FUNC_ATTRIBUTE_BINARY_VERSION
              ? 90
          : attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? 48 << 10
                                                                      : 0;
    return CUDA_SUCCESS;
}

/* Kernels here take any shape, so advice about shared memory is accepted and has no effect. */
CUresult IMPL(cuFuncSetAttribute)(CUfunction hfunc, CUfunction_attribute attrib, int value) {
    (void)value;
    if (function_of(hfunc) == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return attrib >= 0 && attrib < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult IMPL(cuKernelGetAttribute)(int *pi, CUfunction_attribute attrib, CUkernel kernel,
                                    CUdevice dev) {
    CUresult result = device_check(dev);
    return result == CUDA_SUCCESS ? IMPL(cuFuncGetAttribute)(pi, attrib, (CUfunction)kernel)
                                  : result;
}

CUresult IMPL(cuKernelSetAttribute)(CUfunction_attribute attrib, int val, CUkernel kernel,
                                    CUdevice dev) {
    CUresult result = device_check(dev);
    return result == CUDA_SUCCESS ? IMPL(cuFuncSetAttribute)((CUfunction)kernel, attrib, val)
                                  : result;
}

CUresult IMPL(cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *numBlocks, CUfunction func,
                                                           int blockSize, size_t dynamicSMemSize) {
    (void)dynamicSMemSize;
    if (function_of(func) == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (numBlocks == NULL || blockSize <= 0 || blockSize > 1024) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *numBlocks = 2048 / blockSize > 32 ? 32 : 2048 / blockSize;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(int *numBlocks, CUfunction func,
                                                                    int blockSize,
                                                                    size_t dynamicSMemSize,
                                                                    unsigned int flags) {
    (void)flags;
    return IMPL(cuOccupancyMaxActiveBlocksPerMultiprocessor)(numBlocks, func, blockSize,
                                                             dynamicSMemSize);
}
