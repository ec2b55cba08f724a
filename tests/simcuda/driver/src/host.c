/* Page-locked host memory: allocated here, or registered by the program.
 *
 * Locking pages changes nothing in a simulation; what matters is that copies from such memory are
 * asynchronous, that kernels and stream memory operations may touch it, and that everything else on
 * the host is refused to them.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "capture.h"
#include "context.h"
#include "entry.h"
#include "memory.h"
#include "standing.h"
#include "streams.h"

CUresult IMPL(cuMemHostAlloc)(void **pp, size_t bytesize, unsigned int Flags) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result == CUDA_SUCCESS) {
        result = capture_unsafe_call();
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    standing_wait();
    const unsigned known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (pp == NULL || bytesize == 0 || (Flags & ~known) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t bytes = (bytesize + page - 1) / page * page;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct range range = {.base = (uint64_t)(uintptr_t)memory,
                          .size = bytes,
                          .kind = RANGE_HOST,
                          .device = HOST_MEMORY,
                          .ctx = ctx,
                          .flags = Flags,
                          .block = {.fd = -1},
                          .host_access = ACCESS_READ_WRITE};
    memset(range.access, ACCESS_READ_WRITE, sizeof range.access);
    if (!ranges_add(&range)) {
        munmap(memory, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pp = memory;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuMemAllocHost_v2)(void **pp, size_t bytesize) {
    return IMPL(cuMemHostAlloc)(pp, bytesize, 0);
}

CUresult IMPL(cuMemFreeHost)(void *p) {
    CUcontext ctx;
    struct range range;
    CUresult result = context_current(&ctx);
    if (result == CUDA_SUCCESS) {
        result = capture_unsafe_call();
    }
    if (result != CUDA_SUCCESS || p == NULL) {
        return result;
    }
    uint64_t base = (uint64_t)(uintptr_t)p;
    if (!ranges_find(base, &range) || range.base != base || range.kind != RANGE_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    streams_check_untouched(base, range.size, "a free");
    result = streams_drain(range.ctx);
    if (!ranges_remove(base, 1U << RANGE_HOST, &range)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap(p, range.size);
    return result;
}

/* Are all these bytes memory of the process? */
static bool host_mapped(uint64_t base, uint64_t size) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t first = base / page * page;
    uint64_t end = (base + size + page - 1) / page * page;
    unsigned char resident[256];
    for (uint64_t at = first; at < end; at += page * sizeof resident) {
        uint64_t piece = end - at < page * sizeof resident ? end - at : page * sizeof resident;
        if (mincore((void *)(uintptr_t)at, piece, resident) != 0) {
            return false;
        }
    }
    return true;
}

CUresult IMPL(cuMemHostRegister_v2)(void *p, size_t bytesize, unsigned int Flags) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    standing_wait();
    const unsigned known =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    uint64_t base = (uint64_t)(uintptr_t)p;
    if (p == NULL || bytesize == 0 || (Flags & ~known) != 0 || !host_mapped(base, bytesize)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct range range = {.base = base,
                          .size = bytesize,
                          .kind = RANGE_REGISTERED,
                          .device = HOST_MEMORY,
                          .ctx = ctx,
                          .flags = Flags,
                          .block = {.fd = -1},
                          .host_access = ACCESS_READ_WRITE};
    memset(range.access, Flags & CU_MEMHOSTREGISTER_READ_ONLY ? ACCESS_READ : ACCESS_READ_WRITE,
           sizeof range.access);
    return ranges_add(&range) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult IMPL(cuMemHostUnregister)(void *p) {
    CUcontext ctx;
    struct range range;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t base = (uint64_t)(uintptr_t)p;
    if (!ranges_find(base, &range) || range.base != base || range.kind != RANGE_REGISTERED) {
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    streams_check_untouched(base, range.size, "an unregistering");
    result = streams_drain(range.ctx);
    if (!ranges_remove(base, 1U << RANGE_REGISTERED, &range)) {
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    return result;
}

CUresult IMPL(cuMemHostGetDevicePointer_v2)(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
    CUcontext ctx;
    struct range range;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pdptr == NULL || Flags != 0 || !ranges_find((uint64_t)(uintptr_t)p, &range) ||
        range.device != HOST_MEMORY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pdptr = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuMemHostGetFlags)(unsigned int *pFlags, void *p) {
    CUcontext ctx;
    struct range range;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pFlags == NULL || !ranges_find((uint64_t)(uintptr_t)p, &range) ||
        range.kind != RANGE_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pFlags = range.flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}
