/* Pools. See pools.h.
 *
 * Memory is taken at the call and given back when the stream reaches the free; a pool keeps nothing
 * in reserve, so its release threshold is remembered and has no effect. Allocation inside a capture
 * (graph memory nodes) is not simulated, and neither are pools shared between processes.
 */
#include "pools.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "context.h"
#include "entry.h"
#include "memory.h"
#include "objects.h"
#include "streams.h"

struct CUmemPoolHandle_st {
    int device;
    _Atomic uint64_t used, high, threshold;
};

/* One default pool a device, which is also the current one unless a program sets another. */
static struct CUmemPoolHandle_st defaults[MAX_DEVICES];
static _Atomic(CUmemoryPool) current[MAX_DEVICES];

static CUmemoryPool pool_default(CUdevice device) {
    defaults[device].device = device;
    return &defaults[device];
}

static CUmemoryPool pool_current(CUdevice device) {
    CUmemoryPool pool = atomic_load(&current[device]);
    return pool == NULL ? pool_default(device) : pool;
}

static bool pool_known(CUmemoryPool pool) {
    return object_is(pool, OBJECT_POOL) || (pool >= defaults && pool < defaults + MAX_DEVICES);
}

static CUresult location_device(const CUmemLocation *location, CUmemAllocationType type,
                                CUdevice *device) {
    if (location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    *device = location->id;
    return device_check(*device);
}

CUresult IMPL(cuDeviceGetDefaultMemPool)(CUmemoryPool *pool_out, CUdevice dev) {
    CUresult result = device_check(dev);
    if (result == CUDA_SUCCESS) {
        *pool_out = pool_default(dev);
    }
    return result;
}

CUresult IMPL(cuDeviceGetMemPool)(CUmemoryPool *pool, CUdevice dev) {
    CUresult result = device_check(dev);
    if (result == CUDA_SUCCESS) {
        *pool = pool_current(dev);
    }
    return result;
}

CUresult IMPL(cuDeviceSetMemPool)(CUdevice dev, CUmemoryPool pool) {
    CUresult result = device_check(dev);
    if (result == CUDA_SUCCESS && (!pool_known(pool) || pool->device != dev)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        atomic_store(&current[dev], pool);
    }
    return result;
}

CUresult IMPL(cuMemGetDefaultMemPool)(CUmemoryPool *pool_out, CUmemLocation *location,
                                      CUmemAllocationType type) {
    CUdevice device;
    CUresult result = location_device(location, type, &device);
    if (result == CUDA_SUCCESS) {
        *pool_out = pool_default(device);
    }
    return result;
}

CUresult IMPL(cuMemGetMemPool)(CUmemoryPool *pool, CUmemLocation *location,
                               CUmemAllocationType type) {
    CUdevice device;
    CUresult result = location_device(location, type, &device);
    if (result == CUDA_SUCCESS) {
        *pool = pool_current(device);
    }
    return result;
}

CUresult IMPL(cuMemPoolCreate)(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
    CUdevice device;
    if (pool == NULL || poolProps == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = location_device(&poolProps->location, poolProps->allocType, &device);
    if (result == CUDA_SUCCESS && poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUmemoryPool made = calloc(1, sizeof *made);
    if (made == NULL || !object_add(made, OBJECT_POOL)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->device = device;
    *pool = made;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuMemPoolDestroy)(CUmemoryPool pool) {
    if (!object_remove(pool, OBJECT_POOL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUmemoryPool expected = pool;
    atomic_compare_exchange_strong(&current[pool->device], &expected, NULL);
    free(pool);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuMemPoolTrimTo)(CUmemoryPool pool, size_t minBytesToKeep) {
    (void)minBytesToKeep;
    return pool_known(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult IMPL(cuMemPoolSetAttribute)(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    if (!pool_known(pool) || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
        memcpy(&pool->threshold, value, sizeof(uint64_t));
    } else if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH || attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
        atomic_store(&pool->high, atomic_load(&pool->used));
    }
    return CUDA_SUCCESS;
}

CUresult IMPL(cuMemPoolGetAttribute)(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    if (!pool_known(pool) || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t figure = 0;
    switch (attr) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        figure = atomic_load(&pool->threshold);
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        figure = atomic_load(&pool->used);
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        figure = atomic_load(&pool->high);
        break;
    default: /* the reuse policies are flags of 4 bytes */
        memset(value, 0, sizeof(int));
        return CUDA_SUCCESS;
    }
    memcpy(value, &figure, sizeof figure);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuMemPoolSetAccess)(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    (void)map;
    (void)count;
    return pool_known(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult IMPL(cuMemAllocFromPoolAsync)(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                       CUstream hStream) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (dptr == NULL || bytesize == 0 || !pool_known(pool) || pool->device != stream->ctx->device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (capture_forbids(stream) != CUDA_SUCCESS) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    uint64_t address = 0;
    result = memory_take(stream->ctx, bytesize, RANGE_POOL, &address);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t used = atomic_fetch_add(&pool->used, bytesize) + bytesize;
    uint64_t high = atomic_load(&pool->high);
    while (used > high && !atomic_compare_exchange_weak(&pool->high, &high, used)) {
        /* high is what another thread made it */
    }
    *dptr = address;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuMemAllocAsync)(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    return result == CUDA_SUCCESS ? IMPL(cuMemAllocFromPoolAsync)(
                                        dptr, bytesize, pool_current(stream->ctx->device), hStream)
                                  : result;
}

CUresult IMPL(cuMemFreeAsync)(CUdeviceptr dptr, CUstream hStream) {
    CUstream stream;
    struct range range;
    CUresult result = stream_resolve(hStream, &stream);
    if (result != CUDA_SUCCESS || dptr == 0) {
        return result;
    }
    /* Memory of cuMemAlloc may be freed in stream order too. */
    if (!ranges_find(dptr, &range) || range.base != dptr ||
        (range.kind != RANGE_POOL && range.kind != RANGE_DEVICE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct work work = {.kind = WORK_POOL_FREE, .address = dptr};
    return stream_submit(stream, work_copy(&work), NULL);
}

void pool_free_now(uint64_t address) {
    struct range range;
    if (!ranges_remove(address, 1U << RANGE_POOL | 1U << RANGE_DEVICE, &range)) {
        return;
    }
    if (range.kind == RANGE_POOL) {
        atomic_fetch_sub(&pool_current(range.device)->used, range.size);
    }
    memory_give(&range);
}
