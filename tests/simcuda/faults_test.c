/* Injected faults: failing calls, sticky errors, lost devices, slow links, and what must go on
 * during them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kit.h"

static char control[64] = "/dev/shm/simcuda-faults-XXXXXX";

/* Replaces the control file at once; sizes differ from call to call, so the change is always seen.
 */
static void rules(const char *text) {
    static unsigned generation;
    char path[80];
    snprintf(path, sizeof path, "%s.new", control);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file, "%s\n#%*s\n", text, (int)++generation, "");
    fclose(file);
    CHECK(rename(path, control) == 0);
}

static void the_nth_call_fails(void) {
    CUdeviceptr address;
    rules("call cuMemAlloc 2 OUT_OF_MEMORY\ncall cuMemcpyHtoD 1+ INVALID_VALUE");
    OK(cuMemAlloc(&address, 512));
    CUdeviceptr never;
    FAILS(cuMemAlloc(&never, 512), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc(&never, 512));
    OK(cuMemFree(never));
    FAILS(cuMemcpyHtoD(address, &never, 8), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyHtoD(address, &never, 8), CUDA_ERROR_INVALID_VALUE);
    rules("");
    OK(cuMemcpyHtoD(address, &never, 8));
    OK(cuMemFree(address));
}

static void the_environment_has_rules_too(void) {
    CUstream stream;
    FAILS(cuStreamCreate(&stream, 0), CUDA_ERROR_UNKNOWN); /* see main */
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamDestroy(stream));
}

static void an_illegal_address_kills_one_context(void) {
    CUcontext victim;
    CUdeviceptr address;
    OK(cuCtxCreate(&victim, NULL, 0, 0));
    OK(cuMemAlloc(&address, 4 << 20));
    rules("call cuLaunchKernel 1 ILLEGAL_ADDRESS");
    CUfunction trap = kit_function("sim_trap");
    FAILS(cuLaunchKernel(trap, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cuMemAlloc(&address, 512), CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cuMemGetInfo(NULL, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxPopCurrent(NULL));
    size_t before = kit_free_bytes(); /* the primary context lives */
    OK(cuCtxDestroy(victim));
    CHECK(kit_free_bytes() == before + (4 << 20)); /* and gets the memory back */
}

static void a_lost_device_takes_its_contexts_only(void) {
    CUcontext first;
    CUcontext second;
    CUstream stream;
    uint32_t *flags = kit_flags(NULL);
    OK(cuCtxGetCurrent(&first));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxPushCurrent(second));
    OK(cuMemHostRegister(flags, 4096, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)flags, 1, 0));
    rules("device 1 lost");
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_DEVICE_UNAVAILABLE);
    FAILS(cuMemGetInfo(NULL, NULL), CUDA_ERROR_DEVICE_UNAVAILABLE);
    CUcontext fresh;
    FAILS(cuCtxCreate(&fresh, NULL, 0, 1), CUDA_ERROR_DEVICE_UNAVAILABLE);
    CUmemAllocationProp properties = kit_properties(1);
    CUmemGenericAllocationHandle handle;
    FAILS(cuMemCreate(&handle, 2 << 20, &properties, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    OK(cuCtxPopCurrent(NULL));
    OK(cuCtxSynchronize()); /* device 0 */
    OK(cuMemGetInfo(NULL, NULL));
    rules("device 1 restored");
    OK(cuCtxPushCurrent(second));
    FAILS(cuCtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE); /* what was lost stays lost */
    OK(cuCtxPopCurrent(NULL));
    OK(cuDevicePrimaryCtxReset(1));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxPushCurrent(second));
    OK(cuCtxSynchronize());
    OK(cuCtxPopCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(1));
}

static float copy_milliseconds(CUdeviceptr device, void *host, size_t bytes) {
    CUevent start;
    CUevent end;
    float milliseconds;
    OK(cuEventCreate(&start, 0));
    OK(cuEventCreate(&end, 0));
    OK(cuEventRecord(start, CU_STREAM_PER_THREAD));
    OK(cuMemcpyHtoDAsync(device, host, bytes, CU_STREAM_PER_THREAD));
    OK(cuEventRecord(end, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    OK(cuEventElapsedTime(&milliseconds, start, end));
    OK(cuEventDestroy(start));
    OK(cuEventDestroy(end));
    return milliseconds;
}

/* Bounds from below hold on any machine, however busy: a link never exceeds its bandwidth. */
static void a_slow_link_is_slow(void) {
    CUdeviceptr device;
    void *host;
    OK(cuMemAlloc(&device, 4 << 20));
    OK(cuMemHostAlloc(&host, 4 << 20, 0));
    memset(host, 1, 4 << 20);
    CHECK(copy_milliseconds(device, host, 4 << 20) >= 4); /* 4 MiB at 1000 MiB/s */
    rules("link h2d 0 100");
    CHECK(copy_milliseconds(device, host, 4 << 20) >= 40);
    rules("link h2d 0 1000");
    OK(cuMemFree(device));
    OK(cuMemFreeHost(host));
}

int main(void) {
    int fd = mkstemp(control);
    CHECK(fd >= 0 && close(fd) == 0);
    setenv("SIMCUDA_FAULT_FILE", control, 1);
    setenv("SIMCUDA_FAULTS", "# nothing; call cuStreamCreate 1 UNKNOWN", 1);
    kit_machine((const char *const[]){"DEVICES=2", "MEMORY=64Mi", "H2D=1000Mi", NULL});
    kit_device(0);
    the_nth_call_fails();
    the_environment_has_rules_too();
    an_illegal_address_kills_one_context();
    a_lost_device_takes_its_contexts_only();
    a_slow_link_is_slow();
    unlink(control);
    return 0;
}
