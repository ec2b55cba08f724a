/* Memory by cuMemAlloc, in pools and on the host: sizes, accounting, and what may be freed how. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kit.h"

static const size_t MIB = 1 << 20;

static void small_allocations_share_a_slab(void) {
    size_t before = kit_free_bytes();
    CUdeviceptr addresses[64];
    for (int i = 0; i < 64; i++) {
        OK(cuMemAlloc(&addresses[i], 1000));
        CHECK(addresses[i] % 512 == 0);
    }
    CHECK(before - kit_free_bytes() == 2 * MIB);
    for (int i = 0; i < 64; i++) {
        OK(cuMemFree(addresses[i]));
    }
    CHECK(kit_free_bytes() == before);
}

static void large_allocations_are_rounded_up(void) {
    size_t before = kit_free_bytes();
    size_t size;
    CUdeviceptr address;
    CUdeviceptr base;
    OK(cuMemAlloc(&address, 3 * MIB));
    CHECK(before - kit_free_bytes() == 4 * MIB);
    OK(cuMemGetAddressRange(&base, &size, address + 17));
    CHECK(base == address && size == 3 * MIB);
    OK(cuMemGetAddressRange(NULL, &size, address));
    FAILS(cuMemFree(address + 512), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(address));
    FAILS(cuMemFree(address), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(0));
    CHECK(kit_free_bytes() == before);
}

static void too_much_is_refused_and_leaves_no_trace(void) {
    size_t before = kit_free_bytes();
    size_t total;
    CUdeviceptr most;
    CUdeviceptr more;
    OK(cuMemGetInfo(NULL, &total));
    OK(cuMemGetInfo(NULL, NULL)); /* as the real driver takes it */
    OK(cuMemAlloc(&most, before - 2 * MIB));
    FAILS(cuMemAlloc(&more, 4 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc(&more, 2 * MIB));
    CHECK(kit_free_bytes() == 0);
    FAILS(cuMemAlloc(&more, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    FAILS(cuMemAlloc(&more, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(most));
    OK(cuMemFree(more));
    CHECK(kit_free_bytes() == before);
}

static void a_context_takes_its_memory_along(void) {
    size_t before = kit_free_bytes();
    CUcontext ctx;
    CUdeviceptr small;
    CUdeviceptr large;
    OK(cuCtxCreate(&ctx, NULL, 0, 0));
    OK(cuMemAlloc(&small, 100));
    OK(cuMemAlloc(&large, 4 * MIB));
    OK(cuCtxDestroy(ctx));
    CHECK(kit_free_bytes() == before);
    FAILS(cuMemFree(large), CUDA_ERROR_INVALID_VALUE);
}

static void host_memory_is_known_by_its_address(void) {
    void *allocated;
    void *plain = malloc(4096);
    CUdeviceptr seen;
    unsigned flags;
    unsigned type;
    OK(cuMemHostAlloc(&allocated, 5000, CU_MEMHOSTALLOC_PORTABLE));
    memset(allocated, 1, 5000);
    OK(cuMemHostGetDevicePointer(&seen, allocated, 0));
    CHECK(seen == (CUdeviceptr)(uintptr_t)allocated);
    OK(cuMemHostGetFlags(&flags, allocated));
    CHECK(flags & CU_MEMHOSTALLOC_PORTABLE);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, seen));
    CHECK(type == CU_MEMORYTYPE_HOST);
    FAILS(cuMemHostGetDevicePointer(&seen, plain, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostRegister(plain, 4096, 0));
    FAILS(cuMemHostRegister(plain, 64, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cuMemHostGetDevicePointer(&seen, plain, 0));
    FAILS(cuMemFreeHost(plain), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostUnregister(plain));
    FAILS(cuMemHostUnregister(plain), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    OK(cuMemFreeHost(allocated));
    void *hole = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(hole != MAP_FAILED && munmap((char *)hole + 4096, 4096) == 0);
    FAILS(cuMemHostRegister(hole, 8192, 0), CUDA_ERROR_INVALID_VALUE);
    munmap(hole, 4096);
    free(plain);
}

static void attributes_of_an_unknown_address_are_empty(void) {
    int variable = 0;
    int ordinal = 0;
    unsigned type = 7;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *answers[] = {&type, &ordinal};
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)&variable;
    FAILS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address),
          CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttributes(2, asked, answers, address));
    CHECK(type == 0 && ordinal == -2);
    CUdeviceptr known;
    OK(cuMemAlloc(&known, 4096));
    OK(cuPointerGetAttributes(2, asked, answers, known + 5));
    CHECK(type == CU_MEMORYTYPE_DEVICE && ordinal == 0);
    OK(cuMemFree(known));
}

static void pools_follow_the_stream(void) {
    size_t before = kit_free_bytes();
    CUstream stream;
    CUmemoryPool pool;
    CUdeviceptr address;
    uint64_t used = 0;
    uint64_t threshold = 123;
    uint32_t *flags = kit_flags(NULL);
    OK(cuMemHostRegister(flags, 4096, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuMemAllocAsync(&address, 4 * MIB, stream));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == 4 * MIB);
    OK(cuMemsetD8Async(address, 5, 4 * MIB, stream));
    OK(cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)flags, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemFreeAsync(address, stream));
    CHECK(kit_free_bytes() == before - 4 * MIB);
    kit_set(flags, 1);
    OK(cuStreamSynchronize(stream));
    CHECK(kit_free_bytes() == before);
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == 0);
    OK(cuMemHostUnregister(flags));
    OK(cuStreamDestroy(stream));
    munmap(flags, 4096);
}

int main(void) {
    kit_machine((const char *const[]){"MEMORY=64Mi", NULL});
    kit_device(0);
    small_allocations_share_a_slab();
    large_allocations_are_rounded_up();
    too_much_is_refused_and_leaves_no_trace();
    a_context_takes_its_memory_along();
    host_memory_is_known_by_its_address();
    attributes_of_an_unknown_address_are_empty();
    pools_follow_the_stream();
    return 0;
}
