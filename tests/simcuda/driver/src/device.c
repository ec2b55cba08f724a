/* cuInit and what a program asks about devices.
 *
 * Devices differ only in ordinal, UUID and PCI address. Attributes are those of a recent
 * data-centre GPU, as far as programs branch on them; what the simulator cannot do is reported as
 * missing.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "context.h"
#include "entry.h"
#include "faults.h"
#include "vmm.h"

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool ready;

bool driver_ready(void) {
    return atomic_load_explicit(&ready, memory_order_acquire);
}

/* A forked child has none of the driver's threads; it must also not keep the parent's memory alive.
 */
static void driver_forked(void) {
    if (driver_ready()) {
        vmm_close_descriptors();
    }
    atomic_store(&ready, false);
}

CUresult IMPL(cuInit)(unsigned int Flags) {
    static pid_t started_by;
    if (Flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&init_lock);
    if (started_by == 0) {
        if (machine_join() && faults_start()) {
            started_by = getpid();
            pthread_atfork(NULL, NULL, driver_forked);
        } else {
            result = CUDA_ERROR_INVALID_VALUE;
        }
    } else if (started_by != getpid()) {
        /* As with the real driver, a child of a process that used CUDA cannot use it. */
        result = CUDA_ERROR_NOT_INITIALIZED;
    }
    if (result == CUDA_SUCCESS) {
        atomic_store_explicit(&ready, true, memory_order_release);
    }
    pthread_mutex_unlock(&init_lock);
    return result;
}

CUresult IMPL(cuDriverGetVersion)(int *driverVersion) {
    if (driverVersion == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *driverVersion = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult device_check(CUdevice device) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return device >= 0 && (uint64_t)device < machine_config()->devices ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_INVALID_DEVICE;
}

CUresult IMPL(cuDeviceGetCount)(int *count) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = (int)machine_config()->devices;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuDeviceGet)(CUdevice *device, int ordinal) {
    CUresult result = device_check(ordinal);
    if (result == CUDA_SUCCESS && device == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *device = ordinal;
    }
    return result;
}

CUresult IMPL(cuDeviceGetName)(char *name, int len, CUdevice dev) {
    CUresult result = device_check(dev);
    if (result == CUDA_SUCCESS && (name == NULL || len <= 0)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        snprintf(name, (size_t)len, "%s", machine_config()->name);
    }
    return result;
}

CUresult IMPL(cuDeviceGetUuid_v2)(CUuuid *uuid, CUdevice dev) {
    CUresult result = device_check(dev);
    if (result == CUDA_SUCCESS && uuid == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        memcpy(uuid->bytes, "simulated-gpu-00", 16);
        uuid->bytes[15] = (char)('0' + dev);
    }
    return result;
}

CUresult IMPL(cuDeviceGetUuid)(CUuuid *uuid, CUdevice dev) {
    return IMPL(cuDeviceGetUuid_v2)(uuid, dev);
}

CUresult IMPL(cuDeviceTotalMem_v2)(size_t *bytes, CUdevice dev) {
    CUresult result = device_check(dev);
    if (result == CUDA_SUCCESS && bytes == NULL) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *bytes = machine_config()->memory_bytes;
    }
    return result;
}

CUresult IMPL(cuDeviceComputeCapability)(int *major, int *minor, CUdevice dev) {
    CUresult result = device_check(dev);
    if (result == CUDA_SUCCESS && (major == NULL || minor == NULL)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *major = 9;
        *minor = 0;
    }
    return result;
}

CUresult IMPL(cuDeviceGetPCIBusId)(char *pciBusId, int len, CUdevice dev) {
    CUresult result = device_check(dev);
    if (result == CUDA_SUCCESS && (pciBusId == NULL || len < 13)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        snprintf(pciBusId, (size_t)len, "0000:%02x:00.0", 0x10 + (unsigned)dev);
    }
    return result;
}

CUresult IMPL(cuDeviceGetByPCIBusId)(CUdevice *dev, const char *pciBusId) {
    unsigned domain = 0;
    unsigned bus = 0;
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (dev == NULL || pciBusId == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sscanf(pciBusId, "%x:%x:", &domain, &bus) != 2 || domain != 0 || bus < 0x10 ||
        bus >= 0x10 + machine_config()->devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *dev = (CUdevice)(bus - 0x10);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuDeviceCanAccessPeer)(int *canAccessPeer, CUdevice dev, CUdevice peerDev) {
    CUresult result = device_check(dev);
    if (result == CUDA_SUCCESS) {
        result = device_check(peerDev);
    }
    if (result == CUDA_SUCCESS) {
        *canAccessPeer = dev != peerDev;
    }
    return result;
}

CUresult IMPL(cuDeviceGetP2PAttribute)(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                       CUdevice dstDevice) {
    CUresult result = device_check(srcDevice);
    if (result == CUDA_SUCCESS) {
        result = device_check(dstDevice);
    }
    if (result == CUDA_SUCCESS && (value == NULL || srcDevice == dstDevice)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *value = attrib == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    }
    return result;
}

static const struct {
    CUdevice_attribute attribute;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0x7fffffff},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
};

CUresult IMPL(cuDeviceGetAttribute)(int *pi, CUdevice_attribute attrib, CUdevice dev) {
    CUresult result = device_check(dev);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pi == NULL || attrib <= 0 || attrib >= CU_DEVICE_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pi = attrib == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? 0x10 + dev : 0;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        if (attributes[i].attribute == attrib) {
            *pi = attributes[i].value;
        }
    }
    return CUDA_SUCCESS;
}
