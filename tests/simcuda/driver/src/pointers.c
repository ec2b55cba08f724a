/* What is known about an address: cuPointerGetAttribute and its plural. */
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "entry.h"
#include "ranges.h"
#include "vmm.h"

/* One attribute of a known range. */
static CUresult attribute_of(const struct range *range, CUpointer_attribute attribute,
                             CUdeviceptr ptr, void *data) {
    bool on_host = range->device == HOST_MEMORY;
    bool mapped = range->kind == RANGE_MAPPING;
    unsigned number = 0;
    int flag = 0;
    unsigned long long wide = 0;
    void *address = NULL;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: /* NULL for memory by handle, which no context owns */
        memcpy(data, &range->ctx, sizeof(void *));
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        number = on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        memcpy(data, &number, sizeof number);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        memcpy(data, &ptr, sizeof ptr);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!on_host) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        memcpy(data, &ptr, sizeof ptr);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        flag = on_host ? (range->ctx != NULL ? range->ctx->device : -2) : range->device;
        memcpy(data, &flag, sizeof flag);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        memcpy(data, &range->base, sizeof address);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: {
        size_t size = range->size;
        memcpy(data, &size, sizeof size);
        return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        wide = range->buffer_id;
        memcpy(data, &wide, sizeof wide);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        flag = 1;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        flag = range->kind == RANGE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        wide = mapped ? vmm_handle_types(range->handle) : 0;
        memcpy(data, &wide, sizeof wide);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        number = range->access[on_host ? 0 : range->device];
        memcpy(data, &number, sizeof number);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        memcpy(data, &address, sizeof address);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    memcpy(data, &flag, sizeof flag); /* the manual says a boolean, an H200's driver writes four */
    return CUDA_SUCCESS;
}

CUresult IMPL(cuPointerGetAttribute)(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    CUcontext ctx;
    struct range range;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (data == NULL || !ranges_find(ptr, &range)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return attribute_of(&range, attribute, ptr, data);
}

static size_t attribute_bytes(CUpointer_attribute attribute) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        return 4;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS);
    default:
        return 8;
    }
}

/* Unlike the singular this succeeds for addresses that the driver does not know, and tells nothing.
 */
CUresult IMPL(cuPointerGetAttributes)(unsigned int numAttributes, CUpointer_attribute *attributes,
                                      void **data, CUdeviceptr ptr) {
    CUcontext ctx;
    struct range range;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (numAttributes == 0 || attributes == NULL || data == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool known = ranges_find(ptr, &range);
    for (unsigned i = 0; i < numAttributes; i++) {
        if (!known || attribute_of(&range, attributes[i], ptr, data[i]) != CUDA_SUCCESS) {
            memset(data[i], 0, attribute_bytes(attributes[i]));
            if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
                *(int *)data[i] = -2;
            }
        }
    }
    return CUDA_SUCCESS;
}

/* SYNC_MEMOPS is the one attribute that can be set; every copy here is synchronised as it asks. */
CUresult IMPL(cuPointerSetAttribute)(const void *value, CUpointer_attribute attribute,
                                     CUdeviceptr ptr) {
    CUcontext ctx;
    struct range range;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return value != NULL && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS &&
                   ranges_find(ptr, &range) && range.device != HOST_MEMORY
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}
