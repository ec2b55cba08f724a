/* Work ends as late as the driver's documents allow, and what changes under work that has not ended
 * is a fault that ends the process. Each case that faults is a process of its own. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kit.h"

enum { EXTENT = 2 << 20 };

struct place {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;
};

static struct place place_new(void) {
    struct place place = {.handle = kit_create(0, EXTENT)};
    OK(cuMemAddressReserve(&place.base, EXTENT, 0, 0, 0));
    OK(cuMemMap(place.base, EXTENT, 0, place.handle, 0));
    OK(kit_allow(place.base, EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    return place;
}

static void *host_bytes(unsigned char value) {
    void *bytes = malloc(EXTENT);
    CHECK(bytes != NULL);
    memset(bytes, value, EXTENT);
    return bytes;
}

static struct place filled_from_pageable(void) {
    struct place place = place_new();
    void *bytes = host_bytes(7);
    OK(cuMemcpyHtoD(place.base, bytes, EXTENT)); /* returns before the bytes have arrived */
    memset(bytes, 8, EXTENT);                    /* which have been taken */
    free(bytes);
    return place;
}

static void pageable_then_access(void) {
    struct place place = filled_from_pageable();
    kit_allow(place.base, EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
}

static void pageable_then_unmap(void) {
    struct place place = filled_from_pageable();
    cuMemUnmap(place.base, EXTENT);
}

static void memset_then_access(void) {
    struct place place = place_new();
    struct place other = filled_from_pageable(); /* the default stream stays at this */
    (void)other;
    OK(cuMemsetD8(place.base, 1, EXTENT));
    kit_allow(place.base, EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
}

static void on_device_then_unmap(void) {
    struct place from = filled_from_pageable();
    struct place to = place_new();
    OK(cuMemcpyDtoD(to.base, from.base, EXTENT));
    cuMemUnmap(to.base, EXTENT);
}

static void kernel_then_unmap(void) {
    CUfunction hash = kit_function("sim_hash"); /* to load it waits for what is under way */
    struct place place = filled_from_pageable();
    struct place out = place_new();
    uint64_t bytes = EXTENT;
    kit_launch(hash, NULL, (void *[]){&place.base, &bytes, &out.base});
    cuMemUnmap(out.base, EXTENT);
}

static void pinned_then_unregister(void) {
    void *page = mmap(NULL, EXTENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    OK(cuMemHostRegister(page, EXTENT, 0));
    struct place place = filled_from_pageable();
    OK(cuMemcpyHtoDAsync(place.base, page, EXTENT, NULL));
    cuMemHostUnregister(page);
}

static const struct {
    const char *name;
    void (*run)(void);
} faulting[] = {
    {"pageable_then_access", pageable_then_access},
    {"pageable_then_unmap", pageable_then_unmap},
    {"memset_then_access", memset_then_access},
    {"on_device_then_unmap", on_device_then_unmap},
    {"kernel_then_unmap", kernel_then_unmap},
    {"pinned_then_unregister", pinned_then_unregister},
};

static void after_a_wait_all_is_allowed(void) {
    struct place place = filled_from_pageable();
    OK(cuStreamSynchronize(NULL));
    OK(kit_allow(place.base, EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    CHECK(kit_word(place.base) == 0x0707070707070707);
    OK(cuMemUnmap(place.base, EXTENT));
}

static void a_question_is_a_demand(void) {
    struct place place = place_new();
    void *bytes = host_bytes(3);
    CUstream stream;
    CUevent event;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, 0));
    OK(cuMemcpyHtoDAsync(place.base, bytes, EXTENT, stream));
    OK(cuEventRecord(event, stream));
    CUresult answer;
    while ((answer = cuEventQuery(event)) != CUDA_SUCCESS) {
        CHECK(answer == CUDA_ERROR_NOT_READY);
    }
    OK(cuMemUnmap(place.base, EXTENT));
    free(bytes);
}

int main(int argc, char **argv) {
    int socket;
    setenv("SIMCUDA_LATE", "1", 1);
    const char *role = kit_role(argc, argv, &socket);
    kit_machine((const char *const[]){"MEMORY=64Mi", NULL});
    kit_device(0);
    for (size_t i = 0; i < sizeof faulting / sizeof *faulting; i++) {
        if (role == NULL) {
            kit_reap(kit_spawn(faulting[i].name), -SIGABRT);
        } else if (strcmp(role, faulting[i].name) == 0) {
            faulting[i].run();
            return 0;
        }
    }
    after_a_wait_all_is_allowed();
    a_question_is_a_demand();
    return 0;
}
