/* Modules, libraries, parameters and the built-in kernels. */
#include <string.h>

#include "kit.h"

static void images_and_names(void) {
    CUmodule module;
    CUfunction function;
    CUlibrary library;
    CUkernel kernel;
    const char *name;
    unsigned count;
    FAILS(cuModuleLoadData(&module, ".version 8.0 .target sm_90"), CUDA_ERROR_INVALID_IMAGE);
    FAILS(cuModuleLoad(&module, "/nonexistent"), CUDA_ERROR_FILE_NOT_FOUND);
    OK(cuModuleLoadData(&module, SIMCUDA_IMAGE));
    FAILS(cuModuleGetFunction(&function, module, "no_such"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetFunction(&function, module, "sim_axpy"));
    OK(cuFuncGetName(&name, function));
    CHECK(strcmp(name, "sim_axpy") == 0);
    OK(cuModuleUnload(module));
    FAILS(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuFuncGetName(&name, function), CUDA_ERROR_INVALID_HANDLE);
    OK(cuLibraryLoadData(&library, SIMCUDA_IMAGE, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernelCount(&count, library));
    CHECK(count == 11);
    OK(cuLibraryGetKernel(&kernel, library, "sim_fill"));
    OK(cuKernelGetFunction(&function, kernel));
    OK(cuLibraryUnload(library));
    FAILS(cuKernelGetFunction(&function, kernel), CUDA_ERROR_INVALID_HANDLE);
}

static void parameters_are_described(void) {
    CUfunction axpy = kit_function("sim_axpy");
    CUfunction structure = kit_function("sim_gemm_struct");
    size_t count;
    size_t offset;
    size_t size;
    OK(cuFuncGetParamCount(axpy, &count));
    CHECK(count == 4);
    OK(cuFuncGetParamInfo(axpy, 3, &offset, &size));
    CHECK(offset == 20 && size == 4);
    OK(cuFuncGetParamInfo(axpy, 0, &offset, NULL));
    CHECK(offset == 0);
    FAILS(cuFuncGetParamInfo(axpy, 4, &offset, &size), CUDA_ERROR_INVALID_VALUE);
    OK(cuFuncGetParamInfo(structure, 0, &offset, &size));
    CHECK(size == sizeof(struct simcuda_gemm));
}

static void axpy_by_three_ways_of_passing(void) {
    enum { COUNT = 1000 };
    CUdeviceptr x;
    CUdeviceptr y;
    float values[COUNT];
    float a = 2;
    uint32_t count = COUNT;
    CUlibrary library;
    CUkernel kernel;
    for (int i = 0; i < COUNT; i++) {
        values[i] = (float)i;
    }
    OK(cuMemAlloc(&x, sizeof values));
    OK(cuMemAlloc(&y, sizeof values));
    OK(simcuda_upload(x, values, sizeof values));
    OK(cuMemsetD32(y, 0, COUNT));
    kit_launch(kit_function("sim_axpy"), NULL, (void *[]){&y, &x, &a, &count});

    struct {
        uint64_t y, x;
        float a;
        uint32_t count;
    } packed = {y, x, a, count};
    size_t bytes = sizeof packed;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    OK(cuLaunchKernel(kit_function("sim_axpy"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));

    OK(cuLibraryLoadData(&library, SIMCUDA_IMAGE, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "sim_axpy"));
    CUlaunchConfig config;
    memset(&config, 0, sizeof config);
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    OK(cuLaunchKernelEx(&config, (CUfunction)kernel, (void *[]){&y, &x, &a, &count}, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH(values, y, sizeof values));
    for (int i = 0; i < COUNT; i++) {
        CHECK(values[i] == 6 * (float)i);
    }

    FAILS(cuLaunchKernel(kit_function("sim_axpy"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
          CUDA_ERROR_INVALID_VALUE);
    FAILS(cuLaunchKernel(kit_function("sim_trap"), 1, 1, 1, 2048, 1, 1, 0, NULL, NULL, NULL),
          CUDA_ERROR_INVALID_VALUE);
    FAILS(cuLaunchKernel((CUfunction)&values, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
          CUDA_ERROR_INVALID_HANDLE);
    OK(cuLibraryUnload(library));
    OK(cuMemFree(x));
    OK(cuMemFree(y));
}

/* Weights named in a parameter, inside a structure, and in an array in device memory. */
static void gemms_hash_what_they_read(void) {
    enum { BYTES = 100000 };
    static unsigned char bytes[2 * BYTES];
    CUdeviceptr weights;
    CUdeviceptr in;
    CUdeviceptr out;
    CUdeviceptr arrays;
    uint64_t seed = 42;
    uint64_t seen[3];
    uint64_t duration_ns = 100000;
    uint64_t size = BYTES;
    uint64_t count = 2;
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)(i * 7 + i / 256);
    }
    OK(cuMemAlloc(&weights, sizeof bytes));
    OK(cuMemAlloc(&in, 8));
    OK(cuMemAlloc(&out, 24));
    OK(cuMemAlloc(&arrays, 16));
    OK(simcuda_upload(weights, bytes, sizeof bytes));
    OK(simcuda_upload(in, &seed, 8));
    uint64_t addresses[2] = {weights, weights + BYTES};
    OK(simcuda_upload(arrays, addresses, sizeof addresses));
    uint64_t second = out + 8;
    uint64_t third = out + 16;
    kit_launch(kit_function("sim_gemm_like"), NULL,
               (void *[]){&weights, &size, &in, &out, &duration_ns});
    struct simcuda_gemm gemm = {1, 1, weights, BYTES, weights + BYTES, BYTES, in, second, 1000};
    kit_launch(kit_function("sim_gemm_struct"), NULL, (void *[]){&gemm});
    kit_launch(kit_function("sim_gemm_array"), NULL,
               (void *[]){&arrays, &count, &size, &in, &third});
    OK(cuMemcpyDtoH(seen, out, sizeof seen));
    uint64_t first = simcuda_hash(seed, bytes, BYTES);
    CHECK(seen[0] == first);
    CHECK(seen[1] == simcuda_hash(first, bytes + BYTES, BYTES));
    CHECK(seen[2] == seen[1]);
    OK(cuMemFree(weights));
    OK(cuMemFree(in));
    OK(cuMemFree(out));
    OK(cuMemFree(arrays));
}

/* A first launch waits for the whole context; a function loaded before does not. */
static void first_launches_are_lazy(void) {
    CUmodule module;
    CUfunction function;
    CUfunctionLoadingState state;
    CUmoduleLoadingMode mode;
    OK(cuModuleGetLoadingMode(&mode));
    CHECK(mode == CU_MODULE_LAZY_LOADING);
    OK(cuModuleLoadData(&module, SIMCUDA_IMAGE));
    OK(cuModuleGetFunction(&function, module, "sim_spin"));
    OK(cuFuncIsLoaded(&state, function));
    CHECK(state == CU_FUNCTION_LOADING_STATE_UNLOADED);
    CUstream before;
    uint64_t long_ns = 5000000;
    uint64_t short_ns = 1000;
    OK(cuStreamCreate(&before, CU_STREAM_NON_BLOCKING));
    kit_launch(kit_function("sim_spin"), before, (void *[]){&long_ns});
    kit_launch(function, NULL, (void *[]){&short_ns});
    OK(cuStreamQuery(before)); /* the launch waited for the other stream */
    OK(cuFuncIsLoaded(&state, function));
    CHECK(state == CU_FUNCTION_LOADING_STATE_LOADED);
    OK(cuStreamDestroy(before));
    OK(cuModuleUnload(module));
}

static void an_address_that_is_none_ends_the_context(void) {
    CUcontext ctx;
    uint64_t nowhere = 0x1000;
    uint64_t value = 1;
    uint64_t count = 1;
    OK(cuCtxCreate(&ctx, NULL, 0, 0));
    kit_launch(kit_function("sim_fill"), NULL, (void *[]){&nowhere, &value, &count});
    FAILS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxDestroy(ctx));
    OK(cuCtxSynchronize());
}

int main(void) {
    kit_machine((const char *const[]){"TIMESLICE=200000", NULL});
    kit_device(0);
    images_and_names();
    parameters_are_described();
    axpy_by_three_ways_of_passing();
    gemms_hash_what_they_read();
    first_launches_are_lazy();
    an_address_that_is_none_ends_the_context();
    OK(cuDevicePrimaryCtxRelease(0));
    return 0;
}
