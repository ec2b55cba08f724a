/* What NVML shows of a budget of 8 MiB on a device of 64, reached as monitors reach it. */
#include <dlfcn.h>
#include <nvml.h>
#include <string.h>

#include "access.h"

static struct {
    __typeof__(&nvmlInit_v2) init;
    __typeof__(&nvmlDeviceGetHandleByIndex_v2) device;
    __typeof__(&nvmlDeviceGetMemoryInfo) memory;
    __typeof__(&nvmlDeviceGetMemoryInfo_v2) memory_v2;
} nvml;

enum { MIB = 1 << 20 };

static void open_nvml(void) {
#ifdef ACCESS_LINKED
    nvml.init = nvmlInit_v2;
    nvml.device = nvmlDeviceGetHandleByIndex_v2;
    nvml.memory = nvmlDeviceGetMemoryInfo;
    nvml.memory_v2 = nvmlDeviceGetMemoryInfo_v2;
#else
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    *(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml.device = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    *(void **)&nvml.memory_v2 = dlsym(library, "nvmlDeviceGetMemoryInfo_v2");
    /* Nothing is global here, whatever the interposer exports. */
    CHECK(dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo") == NULL);
    CHECK(dlsym(library, "nvmlNoSuchFunction") == NULL);
#endif
}

static void expect(nvmlDevice_t device, unsigned long long total, unsigned long long used) {
    nvmlMemory_t memory;
    nvmlMemory_v2_t more;
    memset(&more, 0, sizeof more);
    EQUAL(nvml.memory(device, &memory), NVML_SUCCESS);
    EQUAL(memory.total, total);
    EQUAL(memory.used, used);
    EQUAL(memory.free, total - used);
    EQUAL(nvml.memory_v2(device, &more), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    more.version = nvmlMemory_v2;
    EQUAL(nvml.memory_v2(device, &more), NVML_SUCCESS);
    EQUAL(more.total, total);
    EQUAL(more.reserved, 0);
    EQUAL(more.used, used);
    EQUAL(more.free, total - used);
    EQUAL(nvml.memory(device, NULL), NVML_ERROR_INVALID_ARGUMENT);
}

int main(int argc, char **argv) {
    nvmlDevice_t device;
    CHECK(argc == 2);
    open_nvml();
    EQUAL(nvml.init(), NVML_SUCCESS);
    EQUAL(nvml.device(0, &device), NVML_SUCCESS);
    if (strcmp(argv[1], "unlimited") == 0) {
        expect(device, 64 * MIB, 0);
        return 0;
    }
    expect(device, 8 * MIB, 0); /* nvidia-smi starts no CUDA */
    access_open();
    access_device();
    CUdeviceptr six;
    OK(D(cuMemAlloc)(&six, 6 * MIB));
    expect(device, 8 * MIB, 6 * MIB);
    OK(D(cuMemFree)(six));
    expect(device, 8 * MIB, 0);
    return 0;
}
