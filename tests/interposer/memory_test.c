/* Budget and ledger. One scenario, named by the argument, a process; see test_interposer.py. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "access.h"

enum { MIB = 1 << 20 };

/* TIERLINE_BUDGET is 8Mi, the device has 64. */
static void budget(void) {
    CHECK(!D(tierline_interposer_active)());
    access_device();
    CHECK(D(tierline_interposer_active)());
    size_t free_bytes = 0;
    size_t total = 0;
    OK(D(cuMemGetInfo)(&free_bytes, &total));
    EQUAL(free_bytes, 8 * MIB);
    EQUAL(total, 8 * MIB);
    OK(D(cuDeviceTotalMem)(&total, 0));
    EQUAL(total, 8 * MIB);
    OK(D(cuMemGetInfo)(NULL, NULL));
    CUdeviceptr six;
    CUdeviceptr four;
    OK(D(cuMemAlloc)(&six, 6 * MIB));
    FAILS(D(cuMemAlloc)(&four, 4 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(D(cuMemGetInfo)(&free_bytes, NULL));
    EQUAL(free_bytes, 2 * MIB);
    CHECK(D(cuMemFree)(six + 64) != CUDA_SUCCESS);
    EQUAL(access_held().charged_bytes, 6 * MIB);
    OK(D(cuMemFree)(six));
    EQUAL(access_held().charged_bytes, 0);
    OK(D(cuMemAlloc)(&four, 4 * MIB));
    OK(D(cuMemAllocAsync)(&six, 2 * MIB, NULL));
    FAILS(D(cuMemAllocAsync)(&six, 4 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    /* What the driver refuses is not charged. */
    CHECK(D(cuMemAlloc)(&six, 0) != CUDA_SUCCESS);
    EQUAL(access_held().charged_bytes, 6 * MIB);
    EQUAL(access_held().budget_bytes, 8 * MIB);
}

static atomic_int successes;

static void *allocate_all(void *context) {
    CUdeviceptr address;
    OK(D(cuCtxSetCurrent)(context));
    while (D(cuMemAlloc)(&address, MIB / 4) == CUDA_SUCCESS) {
        atomic_fetch_add(&successes, 1);
    }
    return NULL;
}

static void budget_of_two_threads(void) {
    CUcontext context = access_device();
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, allocate_all, context) == 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    EQUAL(successes, 32);
    EQUAL(access_held().charged_bytes, 8 * MIB);
    EQUAL(access_held().count[TIERLINE_HELD_DEVICE], 32);
}

static void bad_budget(void) {
    FAILS(D(cuInit)(0), CUDA_ERROR_INVALID_VALUE);
    CHECK(!D(tierline_interposer_active)());
}

/* There is no agent, and there must be one. */
static void refused(void) {
    FAILS(D(cuInit)(0), CUDA_ERROR_SYSTEM_NOT_READY);
    CHECK(!D(tierline_interposer_active)());
    FAILS(D(cuInit)(0), CUDA_ERROR_SYSTEM_NOT_READY);
}

static CUmemAllocationProp properties(void) {
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return prop;
}

/* As llama.cpp does it: the handle is released at once, and the mapping holds the memory. */
static void virtual_memory(void) {
    access_device();
    CUmemAllocationProp prop = properties();
    CUmemGenericAllocationHandle handle;
    CUmemGenericAllocationHandle again;
    CUdeviceptr range;
    OK(D(cuMemAddressReserve)(&range, 8 * MIB, 0, 0, 0));
    OK(D(cuMemCreate)(&handle, 4 * MIB, &prop, 0));
    EQUAL(access_held().bytes[TIERLINE_HELD_VIRTUAL], 4 * MIB);
    OK(D(cuMemMap)(range, 4 * MIB, 0, handle, 0));
    OK(D(cuMemRelease)(handle));
    EQUAL(access_held().charged_bytes, 4 * MIB);
    OK(D(cuMemRetainAllocationHandle)(&again, (void *)(uintptr_t)range));
    OK(D(cuMemMap)(range + 4 * MIB, 4 * MIB, 0, again, 0));
    OK(D(cuMemUnmap)(range, 4 * MIB));
    EQUAL(access_held().charged_bytes, 4 * MIB);
    OK(D(cuMemRelease)(again));
    EQUAL(access_held().charged_bytes, 4 * MIB);
    EQUAL(access_held().count[TIERLINE_HELD_VIRTUAL], 1);
    OK(D(cuMemUnmap)(range + 4 * MIB, 4 * MIB));
    EQUAL(access_held().charged_bytes, 0);
    EQUAL(access_held().count[TIERLINE_HELD_VIRTUAL], 0);
    /* A range that covers several mappings. */
    CUmemGenericAllocationHandle halves[2];
    for (int i = 0; i < 2; i++) {
        OK(D(cuMemCreate)(&halves[i], 2 * MIB, &prop, 0));
        OK(D(cuMemMap)(range + (CUdeviceptr)i * 2 * MIB, 2 * MIB, 0, halves[i], 0));
        OK(D(cuMemRelease)(halves[i]));
    }
    FAILS(D(cuMemCreate)(&handle, 6 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(D(cuMemUnmap)(range, 4 * MIB));
    EQUAL(access_held().charged_bytes, 0);
    OK(D(cuMemAddressFree)(range, 8 * MIB));
}

static void kinds(void) {
    CUcontext context = access_device();
    CUdeviceptr device;
    CUdeviceptr pool;
    CUdeviceptr pitched;
    size_t pitch;
    void *host;
    static char page[8192] __attribute__((aligned(4096)));
    OK(D(cuMemAlloc)(&device, 3 * MIB));
    OK(D(cuMemAllocAsync)(&pool, 2 * MIB, NULL));
    /* The simulated driver has no managed memory, and what it refuses is not held. */
    FAILS(D(cuMemAllocManaged)(&pitched, MIB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_NOT_SUPPORTED);
    OK(D(cuMemHostAlloc)(&host, 5 * MIB, 0));
    OK(D(cuMemHostRegister)(page, 4096, 0));
    tierline_held held = access_held();
    EQUAL(held.bytes[TIERLINE_HELD_DEVICE], 3 * MIB);
    EQUAL(held.bytes[TIERLINE_HELD_POOL], 2 * MIB);
    EQUAL(held.bytes[TIERLINE_HELD_MANAGED], 0);
    EQUAL(held.bytes[TIERLINE_HELD_HOST], 5 * MIB + 4096);
    EQUAL(held.charged_bytes, 5 * MIB);
    EQUAL(D(tierline_interposer_unswappable_bytes)(), 2 * MIB);
    uint64_t most;
    EQUAL(D(tierline_interposer_device_bytes)(&most), 5 * MIB);
    EQUAL(most, 5 * MIB);
    CUipcMemHandle ticket;
    OK(D(cuIpcGetMemHandle)(&ticket, device));
    EQUAL(access_held().exported_bytes, 3 * MIB);
    EQUAL(D(tierline_interposer_unswappable_bytes)(), 5 * MIB);
    OK(D(cuMemFreeAsync)(pool, NULL));
    OK(D(cuMemHostUnregister)(page));
    OK(D(cuMemFreeHost)(host));
    OK(D(cuMemFree)(device));
    EQUAL(D(tierline_interposer_device_bytes)(NULL), 0);
    EQUAL(D(tierline_interposer_device_bytes)(&most), 0);
    EQUAL(most, 5 * MIB); /* since it was asked for */
    EQUAL(D(tierline_interposer_device_bytes)(&most), 0);
    EQUAL(most, 0);
    OK(D(cuMemAllocPitch)(&pitched, &pitch, 4, 1000, 4));
    EQUAL(access_held().bytes[TIERLINE_HELD_DEVICE], pitch * 1000);
    EQUAL(access_held().exported_bytes, 0);
    /* The rest goes with the context. */
    (void)context;
    OK(D(cuDevicePrimaryCtxRelease)(0));
    held = access_held();
    for (int i = 0; i < TIERLINE_HELD_KINDS; i++) {
        EQUAL(held.bytes[i], 0);
        EQUAL(held.count[i], 0);
    }
    EQUAL(held.charged_bytes, 0);
    EQUAL(held.uncounted, 0);
}

static void imported_handle(void) {
    access_device();
    CUmemAllocationProp prop = properties();
    CUmemGenericAllocationHandle handle;
    CUmemGenericAllocationHandle imported;
    CUdeviceptr range;
    int fd = -1;
    OK(D(cuMemCreate)(&handle, 2 * MIB, &prop, 0));
    OK(D(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    EQUAL(access_held().exported_bytes, 2 * MIB);
    OK(D(cuMemImportFromShareableHandle)(&imported, (void *)(uintptr_t)fd,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    EQUAL(access_held().count[TIERLINE_HELD_IMPORTED], 1);
    OK(D(cuMemAddressReserve)(&range, 2 * MIB, 0, 0, 0));
    OK(D(cuMemMap)(range, 2 * MIB, 0, imported, 0));
    EQUAL(access_held().bytes[TIERLINE_HELD_IMPORTED], 2 * MIB);
    EQUAL(access_held().charged_bytes, 2 * MIB);
    OK(D(cuMemRelease)(imported));
    OK(D(cuMemUnmap)(range, 2 * MIB));
    OK(D(cuMemRelease)(handle));
    EQUAL(access_held().count[TIERLINE_HELD_IMPORTED], 0);
    EQUAL(access_held().exported_bytes, 0);
    EQUAL(access_held().charged_bytes, 0);
    close(fd);
}

/* Thousands of names come and go in an order that makes the table shift its entries. */
static void turnover(void) {
    access_device();
    enum { LIVE = 600, ROUNDS = 6000 };
    static CUdeviceptr live[LIVE];
    uint64_t random = 1;
    for (int round = 0; round < ROUNDS; round++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        CUdeviceptr *slot = &live[(random >> 33) % LIVE];
        if (*slot != 0) {
            OK(D(cuMemFree)(*slot));
            *slot = 0;
        } else {
            OK(D(cuMemAlloc)(slot, 512));
        }
    }
    uint64_t count = 0;
    for (int i = 0; i < LIVE; i++) {
        count += live[i] != 0;
    }
    EQUAL(access_held().count[TIERLINE_HELD_DEVICE], count);
    EQUAL(access_held().charged_bytes, count * 512);
    for (int i = 0; i < LIVE; i++) {
        if (live[i] != 0) {
            OK(D(cuMemFree)(live[i]));
        }
    }
    EQUAL(access_held().charged_bytes, 0);
}

static void forked(void) {
    access_device();
    CUdeviceptr address;
    OK(D(cuMemAlloc)(&address, MIB));
    pid_t child = fork();
    if (child == 0) {
        CHECK(!D(tierline_interposer_active)());
        EQUAL(access_held().charged_bytes, 0);
        EQUAL(access_held().count[TIERLINE_HELD_DEVICE], 0);
        _Exit(7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    EQUAL(WEXITSTATUS(status), 7);
    EQUAL(access_held().charged_bytes, MIB);
    OK(D(cuMemFree)(address));
    EQUAL(access_held().charged_bytes, 0);
}

/* Without the interposer, or with any number of them, a program sees the same device. */
static void works(void) {
    access_device();
    CUdeviceptr address;
    uint64_t sent = 0x1122334455667788;
    uint64_t received = 0;
    OK(D(cuMemAlloc)(&address, MIB));
    OK(D(cuMemcpyHtoD)(address, &sent, sizeof sent));
    OK(D(cuMemcpyDtoH)(&received, address, sizeof received));
    CHECK(sent == received);
    OK(D(cuMemFree)(address));
    if (D(tierline_interposer_held) != NULL) {
        EQUAL(access_held().count[TIERLINE_HELD_DEVICE], 0);
        CHECK(D(tierline_interposer_active)());
    }
}

int main(int argc, char **argv) {
    static const struct scenario scenarios[] = {
        {"budget", budget},         {"budget_of_two_threads", budget_of_two_threads},
        {"bad_budget", bad_budget}, {"virtual_memory", virtual_memory},
        {"kinds", kinds},           {"imported_handle", imported_handle},
        {"turnover", turnover},     {"forked", forked},
        {"works", works},           {"refused", refused},
    };
    return access_run(argc, argv, scenarios, sizeof scenarios / sizeof *scenarios);
}
