/* The rules of virtual memory management, and what a wrong access costs. */
#include <string.h>
#include <unistd.h>

#include "kit.h"

static const size_t MIB = 1 << 20, EXTENT = 2 << 20;

static void rules(void) {
    CUmemAllocationProp properties = kit_properties(0);
    CUmemGenericAllocationHandle handle = 0;
    CUmemGenericAllocationHandle other;
    CUdeviceptr base;
    CUdeviceptr odd;
    size_t granularity;
    unsigned long long flags;
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    here.id = 0;
    OK(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(granularity == EXTENT);
    FAILS(cuMemCreate(&handle, EXTENT + 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemCreate(&handle, EXTENT, &properties, 0));
    FAILS(cuMemAddressReserve(&odd, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressReserve(&base, 4 * EXTENT, 0, 0, 0));
    CHECK(base % EXTENT == 0);

    FAILS(cuMemMap(base, EXTENT, 4096, handle, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemMap(base + 4096, EXTENT, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemMap(base + 4 * EXTENT, EXTENT, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(base, EXTENT, 0, handle, 0));
    FAILS(cuMemMap(base, EXTENT, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetAccess(&flags, &here, base));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    FAILS(cuMemsetD8(base, 1, 16), CUDA_ERROR_INVALID_VALUE); /* a fresh mapping allows nothing */
    FAILS(kit_allow(base, 2 * EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
          CUDA_ERROR_INVALID_VALUE); /* half of it is not mapped */
    OK(kit_allow(base, EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemsetD8(base, 1, 16));

    FAILS(cuMemUnmap(base, EXTENT / 2), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAddressFree(base, 4 * EXTENT), CUDA_ERROR_INVALID_VALUE); /* still mapped */
    OK(cuMemRetainAllocationHandle(&other, (void *)(uintptr_t)base));
    CHECK(other == handle);
    OK(cuMemRelease(other));
    OK(cuMemRelease(handle));
    FAILS(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemMap(base + EXTENT, EXTENT, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD8(base, 2, 16)); /* the mapping keeps the memory */
    OK(cuCtxSynchronize());      /* unmapping waits for nothing */
    OK(cuMemUnmap(base, EXTENT));
    FAILS(cuMemUnmap(base, EXTENT), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAddressFree(base, EXTENT), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(base, 4 * EXTENT));
}

static void memory_is_free_after_the_last_reference(void) {
    size_t before = kit_free_bytes();
    CUdeviceptr base;
    CUmemGenericAllocationHandle handle = kit_create(0, EXTENT);
    CUmemGenericAllocationHandle again;
    int fd;
    OK(cuMemAddressReserve(&base, 2 * EXTENT, 0, 0, 0));
    OK(cuMemMap(base, EXTENT, 0, handle, 0));
    OK(cuMemMap(base + EXTENT, EXTENT, 0, handle, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(handle));
    CHECK(kit_free_bytes() == before - EXTENT);
    OK(cuMemUnmap(base, 2 * EXTENT));           /* two whole mappings at once */
    CHECK(kit_free_bytes() == before - EXTENT); /* the descriptor still holds it */
    OK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK(close(fd) == 0);
    CHECK(kit_free_bytes() == before - EXTENT);
    OK(cuMemRelease(again));
    CHECK(kit_free_bytes() == before);
    OK(cuMemAddressFree(base, 2 * EXTENT));
}

static void one_handle_at_many_addresses_is_one_memory(void) {
    CUdeviceptr base;
    uint32_t seen[4];
    CUmemGenericAllocationHandle handle = kit_create(0, EXTENT);
    OK(cuMemAddressReserve(&base, 4 * EXTENT, 8 * MIB, 0, 0));
    CHECK(base % (8 * MIB) == 0);
    for (uint64_t i = 0; i < 4; i++) {
        OK(cuMemMap(base + i * EXTENT, EXTENT, 0, handle, 0));
    }
    OK(kit_allow(base, 4 * EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemsetD32(base + EXTENT, 0xabcd1234, 4));
    for (uint64_t i = 0; i < 4; i++) {
        OK(cuMemcpyDtoH(seen, base + i * EXTENT, sizeof seen));
        CHECK(seen[0] == 0xabcd1234 && seen[3] == 0xabcd1234);
    }
    OK(cuMemcpyDtoD(base + EXTENT - 8, base + 3 * EXTENT, 16)); /* over a seam */
    OK(cuCtxSynchronize());                                     /* unmapping waits for nothing */
    OK(cuMemUnmap(base, 4 * EXTENT));
    OK(cuMemAddressFree(base, 4 * EXTENT));
    OK(cuMemRelease(handle));
}

/* Reading works; a fill call is refused harmlessly; a kernel's store ends its own context and no
 * other. */
static void read_only_memory(void) {
    CUcontext offender;
    CUdeviceptr base;
    CUdeviceptr out;
    CUmemGenericAllocationHandle handle = kit_create(0, EXTENT);
    OK(cuMemAddressReserve(&base, EXTENT, 0, 0, 0));
    OK(cuMemMap(base, EXTENT, 0, handle, 0));
    OK(kit_allow(base, EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemsetD8(base, 9, EXTENT));
    OK(cuCtxSynchronize());
    OK(kit_allow(base, EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    OK(cuCtxCreate(&offender, NULL, 0, 0));
    OK(cuMemAlloc(&out, 8));
    uint64_t bytes = EXTENT;
    uint64_t value = 1;
    uint64_t count = 1;
    kit_launch(kit_function("sim_hash"), NULL, (void *[]){&base, &bytes, &out});
    OK(cuCtxSynchronize());
    FAILS(cuMemsetD32(base, 0, 4), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyHtoD(base, &value, 8), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxSynchronize());

    kit_launch(kit_function("sim_fill"), NULL, (void *[]){&base, &value, &count});
    FAILS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cuMemAlloc(&out, 8), CUDA_ERROR_ILLEGAL_ADDRESS); /* it sticks */
    FAILS(cuMemFree(out), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxDestroy(offender));

    uint64_t seen;
    OK(cuMemcpyDtoH(&seen, base,
                    8)); /* the primary context goes on, and the bytes are as they were */
    CHECK(seen == 0x0909090909090909);
    OK(cuMemUnmap(base, EXTENT));
    OK(cuMemAddressFree(base, EXTENT));
    OK(cuMemRelease(handle));
}

static void access_is_given_device_by_device(void) {
    CUdeviceptr base;
    CUcontext other;
    CUmemGenericAllocationHandle handle = kit_create(0, EXTENT);
    OK(cuMemAddressReserve(&base, EXTENT, 0, 0, 0));
    OK(cuMemMap(base, EXTENT, 0, handle, 0));
    OK(kit_allow(base, EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuCtxCreate(&other, NULL, 0, 1));
    uint64_t value = 1;
    uint64_t count = 1;
    CUfunction fill = kit_function("sim_fill");
    OK(kit_allow(base, EXTENT, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    kit_launch(fill, NULL, (void *[]){&base, &value, &count});
    OK(cuCtxSynchronize());
    OK(kit_allow(base, EXTENT, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    kit_launch(fill, NULL, (void *[]){&base, &value, &count});
    FAILS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxDestroy(other));
    OK(cuMemUnmap(base, EXTENT));
    OK(cuMemAddressFree(base, EXTENT));
    OK(cuMemRelease(handle));
}

static void host_memory_by_handle(void) {
    size_t before = kit_free_bytes();
    CUmemAllocationProp properties = kit_properties(0);
    CUmemGenericAllocationHandle device = kit_create(0, EXTENT);
    CUmemGenericAllocationHandle host;
    CUdeviceptr base;
    CUdeviceptr out;
    properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    properties.location.id = 0;
    OK(cuMemCreate(&host, EXTENT, &properties, 0));
    CHECK(kit_free_bytes() == before - EXTENT); /* only the device's */
    OK(cuMemAddressReserve(&base, 2 * EXTENT, 0, 0, 0));
    OK(cuMemMap(base, EXTENT, 0, device, 0));
    OK(cuMemMap(base + EXTENT, EXTENT, 0, host, 0));
    OK(kit_allow(base, 2 * EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    CUmemAccessDesc cpu = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    cpu.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    cpu.location.id = 0;
    OK(cuMemSetAccess(base + EXTENT, EXTENT, &cpu, 1));
    FAILS(cuMemSetAccess(base, EXTENT, &cpu, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD8(base, 3, 2 * EXTENT)); /* one range, two kinds of memory */
    OK(cuMemAlloc(&out, 8));
    uint64_t bytes = 2 * EXTENT;
    uint64_t seen;
    uint64_t expected = 0;
    kit_launch(kit_function("sim_hash"), NULL, (void *[]){&base, &bytes, &out});
    OK(cuMemcpyDtoH(&seen, out, 8));
    CHECK(*(unsigned char *)(uintptr_t)(base + EXTENT) == 3); /* the CPU may look */
    unsigned char threes[4096];
    memset(threes, 3, sizeof threes);
    for (uint64_t done = 0; done < bytes; done += sizeof threes) {
        expected = simcuda_hash(expected, threes, sizeof threes);
    }
    CHECK(seen == expected);
    OK(cuMemFree(out));
    OK(cuMemUnmap(base, 2 * EXTENT));
    OK(cuMemAddressFree(base, 2 * EXTENT));
    OK(cuMemRelease(device));
    OK(cuMemRelease(host));
}

static void vmm_memory_has_no_legacy_ticket(void) {
    CUdeviceptr base;
    CUdeviceptr plain;
    CUipcMemHandle ticket;
    CUmemGenericAllocationHandle handle = kit_create(0, EXTENT);
    OK(cuMemAddressReserve(&base, EXTENT, 0, 0, 0));
    OK(cuMemMap(base, EXTENT, 0, handle, 0));
    FAILS(cuIpcGetMemHandle(&ticket, base), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc(&plain, EXTENT));
    OK(cuIpcGetMemHandle(&ticket, plain));
    OK(cuMemFree(plain));
    OK(cuMemUnmap(base, EXTENT));
    OK(cuMemAddressFree(base, EXTENT));
    OK(cuMemRelease(handle));
}

int main(void) {
    kit_machine((const char *const[]){"DEVICES=2", "MEMORY=64Mi", NULL});
    kit_device(0);
    rules();
    memory_is_free_after_the_last_reference();
    one_handle_at_many_addresses_is_one_memory();
    read_only_memory();
    access_is_given_device_by_device();
    host_memory_by_handle();
    vmm_memory_has_no_legacy_ticket();
    return 0;
}
