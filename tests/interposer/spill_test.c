/* Memory beyond the budget (8 MiB of a device's 64) in host memory, and what programs see of it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "access.h"

enum { MIB = 1 << 20 };

static uint64_t spilled(void) {
    return access_held().bytes[TIERLINE_HELD_SPILLED];
}

/* A program with the budget used up. */
static CUcontext full_device(CUdeviceptr *device) {
    CUcontext context = access_device();
    OK(D(cuMemAlloc)(device, 8 * MIB));
    return context;
}

/* A kernel writes, a copy reads. */
static void use(CUdeviceptr address, uint64_t bytes) {
    static CUfunction fill;
    if (fill == NULL) {
        fill = access_function(NULL, "sim_fill");
    }
    uint64_t value = address * 3;
    uint64_t words = bytes / 8;
    void *parameters[] = {&address, &value, &words};
    uint64_t *back = malloc(bytes);
    CHECK(back != NULL);
    OK(D(cuLaunchKernel)(fill, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    OK(D(cuMemcpyDtoH)(back, address, bytes));
    CHECK(back[0] == value && back[words - 1] == value);
    free(back);
}

static void spill(void) {
    CUdeviceptr device;
    CUdeviceptr host;
    size_t free_bytes;
    full_device(&device);
    OK(D(cuMemAlloc)(&host, 12 * MIB + 24));
    use(host, 12 * MIB + 24);
    EQUAL(spilled(), 12 * MIB + 24);
    EQUAL(access_held().count[TIERLINE_HELD_SPILLED], 1);
    EQUAL(access_held().charged_bytes, 8 * MIB);
    EQUAL(D(tierline_interposer_unswappable_bytes)(), 0);
    OK(D(cuMemGetInfo)(&free_bytes, NULL));
    EQUAL(free_bytes, 0);
    CHECK(D(cuMemFree)(host + 512) != CUDA_SUCCESS);
    EQUAL(spilled(), 12 * MIB + 24);
    OK(D(cuMemFree)(host));
    CHECK(D(cuMemFree)(host) != CUDA_SUCCESS);
    EQUAL(spilled(), 0);
    /* With room in the budget it is device memory again. */
    OK(D(cuMemFree)(device));
    OK(D(cuMemAlloc)(&device, 6 * MIB));
    EQUAL(access_held().bytes[TIERLINE_HELD_DEVICE], 6 * MIB);
    FAILS(D(cuMemAlloc)(&host, 0), CUDA_ERROR_INVALID_VALUE);
}

/* Small allocations share a mapping, and come and go on their own. */
static void spill_small(void) {
    enum { COUNT = 300 };
    CUdeviceptr device;
    CUdeviceptr small[COUNT];
    full_device(&device);
    for (int i = 0; i < COUNT; i++) {
        OK(D(cuMemAlloc)(&small[i], 1000));
        EQUAL(small[i] % 512, 0);
        CHECK(small[i] - small[0] < 2 * MIB);
    }
    for (int i = 0; i < COUNT; i++) {
        use(small[i], 1000);
    }
    for (int i = 0; i < COUNT; i += 2) {
        OK(D(cuMemFree)(small[i]));
    }
    EQUAL(spilled(), COUNT / 2 * 1000);
    OK(D(cuMemAlloc)(&small[0], 900));
    CHECK(small[0] < small[1]);
    use(small[0], 900);
    OK(D(cuMemFree)(small[0]));
    for (int i = 1; i < COUNT; i += 2) {
        OK(D(cuMemFree)(small[i]));
    }
    EQUAL(spilled(), 0);
}

static void spill_pitch(void) {
    CUdeviceptr device;
    CUdeviceptr rows;
    size_t pitch = 0;
    full_device(&device);
    OK(D(cuMemAllocPitch)(&rows, &pitch, 1000, 100, 4));
    EQUAL(pitch, 1024);
    EQUAL(spilled(), 1024 * 100);
    use(rows, pitch * 100);
    FAILS(D(cuMemAllocPitch)(&rows, &pitch, 1000, 100, 5), CUDA_ERROR_INVALID_VALUE);
    OK(D(cuMemFree)(rows));
    EQUAL(spilled(), 0);
}

/* Freed in stream order: the memory is there until the stream comes to it. */
static void spill_async(void) {
    CUdeviceptr device;
    CUdeviceptr pool;
    CUdeviceptr next;
    CUstream stream;
    uint64_t duration = 50 * 1000 * 1000;
    void *parameters[] = {&duration};
    full_device(&device);
    OK(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    CUfunction spin = access_function(NULL, "sim_spin");
    CUfunction fill = access_function(NULL, "sim_fill");
    OK(D(cuMemAllocAsync)(&pool, 4 * MIB, stream));
    EQUAL(spilled(), 4 * MIB);
    uint64_t value = 5;
    uint64_t words = 4 * MIB / 8;
    void *fills[] = {&pool, &value, &words};
    OK(D(cuLaunchKernel)(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
    OK(D(cuLaunchKernel)(fill, 1, 1, 1, 1, 1, 1, 0, stream, fills, NULL));
    OK(D(cuMemFreeAsync)(pool, stream));
    EQUAL(spilled(), 0);
    CHECK(D(cuMemFree)(pool) != CUDA_SUCCESS);
    CHECK(D(cuMemFreeAsync)(pool, stream) != CUDA_SUCCESS);
    OK(D(cuMemAllocAsync)(&next, 4 * MIB, stream));
    OK(D(cuStreamSynchronize)(stream)); /* a fill of memory that is gone would end the context */
    use(next, 4 * MIB);
    /* Memory of one kind may be freed in the other way, as the driver's own. */
    OK(D(cuMemFree)(next));
    OK(D(cuMemAlloc)(&next, 3 * MIB));
    OK(D(cuMemFreeAsync)(next, stream));
    OK(D(cuStreamSynchronize)(stream));
    OK(D(cuMemAlloc)(&next, 3 * MIB));
    EQUAL(spilled(), 3 * MIB);
    OK(D(cuMemFree)(next));
}

/* As expandable segments do it. */
static void spill_virtual(void) {
    CUdeviceptr device;
    CUdeviceptr range;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    full_device(&device);
    memset(&prop, 0, sizeof prop);
    memset(&access, 0, sizeof access);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(D(cuMemCreate)(&handle, 4 * MIB, &prop, 0));
    EQUAL(spilled(), 4 * MIB);
    OK(D(cuMemAddressReserve)(&range, 4 * MIB, 0, 0, 0));
    OK(D(cuMemMap)(range, 4 * MIB, 0, handle, 0));
    OK(D(cuMemSetAccess)(range, 4 * MIB, &access, 1));
    OK(D(cuMemRelease)(handle));
    use(range, 4 * MIB);
    EQUAL(spilled(), 4 * MIB);
    OK(D(cuMemUnmap)(range, 4 * MIB));
    EQUAL(spilled(), 0);
    EQUAL(access_held().charged_bytes, 8 * MIB);
    OK(D(cuMemAddressFree)(range, 4 * MIB));
}

/* What the driver would say of memory of cuMemAlloc. */
static void described(void) {
    CUdeviceptr device;
    CUdeviceptr others[2];
    CUdeviceptr begin;
    size_t bytes;
    unsigned int type;
    int ordinal = -1;
    uint64_t ids[2];
    CUcontext owner;
    CUcontext context = full_device(&device);
    void *host;
    for (int i = 0; i < 2; i++) {
        OK(D(cuMemAlloc)(&others[i], 3000));
    }
    OK(D(cuMemGetAddressRange)(&begin, &bytes, others[1] + 2999));
    EQUAL(begin, others[1]);
    EQUAL(bytes, 3000);
    OK(D(cuMemGetAddressRange)(NULL, NULL, others[1]));
    CUdeviceptr inside = others[0] + 100;
    OK(D(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside));
    EQUAL(type, CU_MEMORYTYPE_DEVICE);
    OK(D(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, inside));
    CHECK(owner == context);
    OK(D(cuPointerGetAttribute)(&begin, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside));
    EQUAL(begin, inside);
    FAILS(D(cuPointerGetAttribute)(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, inside),
          CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 2; i++) {
        OK(D(cuPointerGetAttribute)(&ids[i], CU_POINTER_ATTRIBUTE_BUFFER_ID, others[i]));
    }
    CHECK(ids[0] != ids[1]);
    host = &host;
    CUpointer_attribute asked[] = {
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *told[] = {&begin, &bytes, &host, &ordinal};
    OK(D(cuPointerGetAttributes)(4, asked, told, inside));
    EQUAL(begin, others[0]);
    EQUAL(bytes, 3000);
    CHECK(host == NULL);
    EQUAL(ordinal, 0);
    /* Other memory is the driver's to describe. */
    OK(D(cuMemGetAddressRange)(&begin, &bytes, device + 5));
    EQUAL(begin, device);
    EQUAL(bytes, 8 * MIB);
    CHECK(D(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 64) != CUDA_SUCCESS);
    OK(D(cuMemFree)(others[1]));
    CHECK(D(cuMemGetAddressRange)(&begin, &bytes, others[1]) != CUDA_SUCCESS || begin != others[1]);
}

static void tickets(void) {
    CUdeviceptr device;
    CUdeviceptr host;
    CUipcMemHandle ticket;
    CUmemGenericAllocationHandle handle;
    full_device(&device);
    OK(D(cuIpcGetMemHandle)(&ticket, device));
    EQUAL(access_held().exported_bytes, 8 * MIB);
    OK(D(cuMemAlloc)(&host, 3 * MIB));
    FAILS(D(cuIpcGetMemHandle)(&ticket, host), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(D(cuIpcGetMemHandle)(&ticket, host + MIB), CUDA_ERROR_NOT_SUPPORTED);
    EQUAL(access_held().refused_exports, 2);
    EQUAL(access_held().exported_bytes, 8 * MIB);
    FAILS(D(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)host),
          CUDA_ERROR_INVALID_VALUE);
}

static void spill_ends_with_context(void) {
    CUdeviceptr device;
    CUdeviceptr address;
    full_device(&device);
    OK(D(cuMemAlloc)(&address, 4 * MIB));
    OK(D(cuMemAlloc)(&address, 400));
    OK(D(cuMemAlloc)(&address, 400));
    OK(D(cuMemFreeAsync)(address, NULL));
    OK(D(cuDevicePrimaryCtxRelease)(0));
    EQUAL(spilled(), 0);
    EQUAL(access_held().charged_bytes, 0);
    full_device(&device);
    CHECK(D(cuMemFree)(address) != CUDA_SUCCESS);
    OK(D(cuMemAlloc)(&address, 400));
    use(address, 400);
}

/* Device 1 reads what device 0's program had no room for, allocated before and after. */
static void spill_peers(void) {
    CUdeviceptr device;
    CUdeviceptr before;
    CUdeviceptr after;
    CUcontext other;
    CUcontext own = full_device(&device);
    OK(D(cuMemAlloc)(&before, 3 * MIB));
    OK(D(cuDevicePrimaryCtxRetain)(&other, 1));
    OK(D(cuCtxSetCurrent)(other));
    OK(D(cuCtxEnablePeerAccess)(own, 0));
    use(before, 3 * MIB);
    OK(D(cuCtxSetCurrent)(own));
    OK(D(cuMemAlloc)(&after, 3 * MIB));
    OK(D(cuCtxSetCurrent)(other));
    use(after, 3 * MIB);
    OK(D(cuMemFree)(after)); /* the memory's own context is waited for, not the current one */
    OK(D(cuMemFree)(before));
}

static atomic_int calls;
static uint64_t told_spilled;
static uint64_t told_unswappable;

static void listen_to(void *context) {
    CHECK(context == &calls);
    told_spilled = spilled();
    told_unswappable = D(tierline_interposer_unswappable_bytes)();
    atomic_fetch_add(&calls, 1);
}

static void told_of_changes(void) {
    CUdeviceptr device;
    CUdeviceptr small;
    CUdeviceptr large;
    CUipcMemHandle ticket;
    full_device(&device);
    OK(D(tierline_interposer_on_change)(listen_to, &calls));
    OK(D(cuMemAlloc)(&small, 1000));
    EQUAL(calls, 1);
    EQUAL(told_spilled, 1000);
    OK(D(cuMemAlloc)(&large, 1000));
    EQUAL(calls, 1); /* not a step of 2 MiB */
    OK(D(cuMemFree)(large));
    EQUAL(calls, 1);
    OK(D(cuMemAlloc)(&large, 3 * MIB));
    EQUAL(calls, 2);
    EQUAL(told_spilled, 3 * MIB + 1000);
    OK(D(cuMemFree)(large));
    OK(D(cuMemFree)(small));
    EQUAL(calls, 4);
    EQUAL(told_spilled, 0);
    OK(D(cuIpcGetMemHandle)(&ticket, device));
    EQUAL(calls, 5);
    EQUAL(told_unswappable, 8 * MIB);
    OK(D(tierline_interposer_on_change)(NULL, NULL));
    OK(D(cuMemFree)(device));
    EQUAL(calls, 5);
}

static void *turn_over(void *context) {
    OK(D(cuCtxSetCurrent)(context));
    for (int i = 0; i < 200; i++) {
        CUdeviceptr address;
        OK(D(cuMemAlloc)(&address, i % 3 == 0 ? 3 * MIB : 5000));
        CUdeviceptr begin;
        OK(D(cuMemGetAddressRange)(&begin, NULL, address + 4000));
        EQUAL(begin, address);
        OK(i % 2 == 0 ? D(cuMemFree)(address) : D(cuMemFreeAsync)(address, NULL));
    }
    return NULL;
}

static void spill_of_two_threads(void) {
    CUdeviceptr device;
    CUcontext context = full_device(&device);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, turn_over, context) == 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    EQUAL(spilled(), 0);
    EQUAL(access_held().count[TIERLINE_HELD_SPILLED], 0);
}

static void spill_forked(void) {
    CUdeviceptr device;
    CUdeviceptr address;
    full_device(&device);
    OK(D(cuMemAlloc)(&address, 3 * MIB));
    pid_t child = fork();
    if (child == 0) {
        EQUAL(spilled(), 0);
        _exit(7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    EQUAL(WEXITSTATUS(status), 7);
    use(address, 3 * MIB);
    OK(D(cuMemFree)(address));
}

static void bad_on_exceeded(void) {
    FAILS(D(cuInit)(0), CUDA_ERROR_INVALID_VALUE);
    CHECK(!D(tierline_interposer_active)());
}

int main(int argc, char **argv) {
    static const struct scenario scenarios[] = {
        {"spill", spill},
        {"spill_small", spill_small},
        {"spill_pitch", spill_pitch},
        {"spill_async", spill_async},
        {"spill_virtual", spill_virtual},
        {"described", described},
        {"tickets", tickets},
        {"spill_ends_with_context", spill_ends_with_context},
        {"spill_peers", spill_peers},
        {"told_of_changes", told_of_changes},
        {"spill_of_two_threads", spill_of_two_threads},
        {"spill_forked", spill_forked},
        {"bad_on_exceeded", bad_on_exceeded},
    };
    return access_run(argc, argv, scenarios, sizeof scenarios / sizeof *scenarios);
}
