/* Devices, contexts and how symbols are found. */
#include <dlfcn.h>
#include <string.h>

#include "kit.h"

static void before_init_nothing_works(void) {
    int count;
    CUcontext ctx;
    size_t bytes;
    FAILS(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuCtxGetCurrent(&ctx), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuMemGetInfo(&bytes, &bytes), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    OK(cuInit(0));
    OK(cuInit(0));
    FAILS(cuMemGetInfo(&bytes, &bytes), CUDA_ERROR_INVALID_CONTEXT);
}

static void devices_differ_in_ordinal_only(void) {
    int count;
    int value;
    char name[32];
    char bus[16];
    CUuuid first;
    CUuuid second;
    CUdevice device;
    size_t total;
    OK(cuDeviceGetCount(&count));
    CHECK(count == 2);
    FAILS(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDeviceGetName(name, sizeof name, 0));
    CHECK(strcmp(name, "Test GPU") == 0);
    OK(cuDeviceGetUuid(&first, 0));
    OK(cuDeviceGetUuid(&second, 1));
    CHECK(memcmp(&first, &second, sizeof first) != 0);
    OK(cuDeviceGetPCIBusId(bus, sizeof bus, 1));
    OK(cuDeviceGetByPCIBusId(&device, bus));
    CHECK(device == 1);
    OK(cuDeviceTotalMem(&total, 0));
    CHECK(total == 64U << 20);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    CHECK(value == 1);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
    CHECK(value == 1);
    OK(cuDeviceCanAccessPeer(&value, 0, 1));
    CHECK(value == 1);
}

static void contexts_form_a_stack(void) {
    CUcontext first;
    CUcontext second;
    CUcontext seen;
    CUdevice device;
    int active;
    unsigned flags;
    size_t free_before;
    size_t free_after;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(!active);
    OK(cuCtxCreate(&first, NULL, 0, 0));
    OK(cuMemGetInfo(&free_before, NULL));
    OK(cuCtxCreate(&second, NULL, 0, 0));
    OK(cuMemGetInfo(&free_after, NULL));
    CHECK(free_before - free_after == 8U << 20); /* what SIMCUDA_CONTEXT says */
    OK(cuCtxGetCurrent(&seen));
    CHECK(seen == second);
    OK(cuCtxPopCurrent(&seen));
    CHECK(seen == second);
    OK(cuCtxGetCurrent(&seen));
    CHECK(seen == first);
    OK(cuCtxDestroy(second));
    FAILS(cuCtxDestroy(second), CUDA_ERROR_INVALID_CONTEXT);
    FAILS(cuCtxPushCurrent(second), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(kit_free_bytes() == free_before);
    OK(cuCtxGetDevice(&device));
    CHECK(device == 0);
    OK(cuCtxDestroy(first));
    OK(cuCtxGetCurrent(&seen));
    CHECK(seen == NULL);
}

static void the_primary_context_is_counted(void) {
    CUcontext first;
    CUcontext second;
    int active;
    unsigned flags;
    OK(cuDevicePrimaryCtxRetain(&first, 1));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    CHECK(first == second);
    FAILS(cuCtxDestroy(first), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRelease(1));
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    CHECK(active);
    OK(cuDevicePrimaryCtxRelease(1));
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    CHECK(!active);
    FAILS(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
}

static void peer_access_is_enabled_once(void) {
    CUcontext here;
    CUcontext there;
    OK(cuCtxCreate(&there, NULL, 0, 1));
    OK(cuCtxCreate(&here, NULL, 0, 0));
    OK(cuCtxEnablePeerAccess(there, 0));
    FAILS(cuCtxEnablePeerAccess(there, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuCtxDisablePeerAccess(there));
    FAILS(cuCtxDisablePeerAccess(there), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    OK(cuCtxDestroy(here));
    OK(cuCtxDestroy(there));
}

static void a_symbol_is_chosen_by_name_version_and_stream(void) {
    static const struct {
        const char *name;
        int version;
        cuuint64_t flags;
        const char *symbol; /* NULL: none */
    } cases[] = {
        {"cuMemAlloc", 12000, CU_GET_PROC_ADDRESS_DEFAULT, "cuMemAlloc_v2"},
        {"cuMemAlloc", 3000, CU_GET_PROC_ADDRESS_DEFAULT, "cuMemAlloc"},
        {"cuCtxCreate", 11040, CU_GET_PROC_ADDRESS_DEFAULT, "cuCtxCreate_v3"},
        {"cuCtxCreate", 13000, CU_GET_PROC_ADDRESS_DEFAULT, "cuCtxCreate_v4"},
        {"cuLaunchKernel", 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, "cuLaunchKernel"},
        {"cuLaunchKernel", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
         "cuLaunchKernel_ptsz"},
        {"cuMemcpyHtoD", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
         "cuMemcpyHtoD_v2_ptds"},
        {"cuMemAlloc", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, "cuMemAlloc_v2"},
        {"cuGetProcAddress", 11030, CU_GET_PROC_ADDRESS_DEFAULT, "cuGetProcAddress"},
        {"cuGetProcAddress", 12000, CU_GET_PROC_ADDRESS_DEFAULT, "cuGetProcAddress_v2"},
        {"cuStreamGetCaptureInfo", 11080, CU_GET_PROC_ADDRESS_DEFAULT, "cuStreamGetCaptureInfo_v2"},
        {"cuGraphInstantiate", 12000, CU_GET_PROC_ADDRESS_DEFAULT, "cuGraphInstantiateWithFlags"},
        {"cuMemCreate", 10010, CU_GET_PROC_ADDRESS_DEFAULT, NULL},
        {"cuNoSuchCall", 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    CHECK(library != NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *found = NULL;
        CUdriverProcAddressQueryResult status;
        OK(cuGetProcAddress_v2(cases[i].name, &found, cases[i].version, cases[i].flags, &status));
        void *wanted = cases[i].symbol == NULL ? NULL : dlsym(library, cases[i].symbol);
        if (found != wanted || (cases[i].symbol != NULL && wanted == NULL)) {
            kit_fail(__FILE__, __LINE__, cases[i].name, "is another symbol");
        }
        CHECK((found != NULL) == (status == CU_GET_PROC_ADDRESS_SUCCESS));
    }
    void *found;
    CUdriverProcAddressQueryResult status;
    OK(cuGetProcAddress_v2("cuMemCreate", &found, 10010, 0, &status));
    CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    OK(cuGetProcAddress_v2("cuNoSuchCall", &found, 12000, 0, &status));
    CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    dlclose(library);
}

static void what_is_missing_is_refused_and_counted(void) {
    CUgraphicsResource resource = NULL;
    uint64_t before = simcuda_unsupported_calls();
    FAILS(cuGraphicsUnregisterResource(resource), CUDA_ERROR_NOT_SUPPORTED);
    CHECK(simcuda_unsupported_calls() == before + 1);
    CHECK(simcuda_calls("cuGraphicsUnregisterResource") == 1);
    CHECK(simcuda_calls("cuNoSuchCall") == 0);
}

static void errors_have_names(void) {
    const char *text;
    OK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    CHECK(strcmp(text, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strlen(text) > 0);
    FAILS(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
}

int main(void) {
    kit_machine(
        (const char *const[]){"DEVICES=2", "MEMORY=64Mi", "CONTEXT=8Mi", "NAME=Test GPU", NULL});
    before_init_nothing_works();
    devices_differ_in_ordinal_only();
    contexts_form_a_stack();
    the_primary_context_is_counted();
    peer_access_is_enabled_once();
    a_symbol_is_chosen_by_name_version_and_stream();
    what_is_missing_is_refused_and_counted();
    errors_have_names();
    return 0;
}
