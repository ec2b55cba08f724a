/* libnvidia-ml.so.1 for the simulated machine: which devices there are and how full they are.
 *
 * Only the calls that an inventory and a memory gauge need; a program that looks for any other
 * finds no such symbol, as with an old driver. The structures are NVML's binary interface, written
 * down here because no package in use brings its header.
 *
 * Invariant: figures come from the machine that libcuda.so.1 of any process works on (machine.h),
 * so both agree.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entry.h"
#include "machine.h"

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_memory_v2 {
    unsigned version; /* the structure's size, and 2 in the upper byte */
    unsigned long long total, reserved, free, used;
};

struct nvml_pci {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

/* A handle is the ordinal and one, so that NULL is none. */
typedef void *nvml_device;

static const unsigned long long event_xid = 8;

struct nvml_event {
    nvml_device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

/* What somebody waits for: by device, whether, and the last error that was seen. */
struct nvml_event_set {
    bool wanted[MAX_DEVICES];
    uint64_t seen[MAX_DEVICES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned initialised;
static bool joined;

SIM_EXPORT int nvmlInitWithFlags(unsigned flags);
SIM_EXPORT int nvmlInit_v2(void);
SIM_EXPORT int nvmlInit(void);
SIM_EXPORT int nvmlShutdown(void);
SIM_EXPORT const char *nvmlErrorString(int result);
SIM_EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned length);
SIM_EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned length);
SIM_EXPORT int nvmlDeviceGetCount_v2(unsigned *count);
SIM_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *device);
SIM_EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *device);
SIM_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvml_device *device);
SIM_EXPORT int nvmlDeviceGetIndex(nvml_device device, unsigned *index);
SIM_EXPORT int nvmlDeviceGetName(nvml_device device, char *name, unsigned length);
SIM_EXPORT int nvmlDeviceGetUUID(nvml_device device, char *uuid, unsigned length);
SIM_EXPORT int nvmlDeviceGetPciInfo_v3(nvml_device device, struct nvml_pci *pci);
SIM_EXPORT int nvmlDeviceGetMemoryInfo(nvml_device device, struct nvml_memory *memory);
SIM_EXPORT int nvmlDeviceGetMemoryInfo_v2(nvml_device device, struct nvml_memory_v2 *memory);
SIM_EXPORT int nvmlEventSetCreate(struct nvml_event_set **set);
SIM_EXPORT int nvmlEventSetFree(struct nvml_event_set *set);
SIM_EXPORT int nvmlDeviceRegisterEvents(nvml_device device, unsigned long long types,
                                        struct nvml_event_set *set);
SIM_EXPORT int nvmlEventSetWait_v2(struct nvml_event_set *set, struct nvml_event *event,
                                   unsigned timeout_ms);

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    joined = joined || machine_join();
    initialised += joined;
    pthread_mutex_unlock(&lock);
    return joined ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

int nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

int nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int result = initialised > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    initialised -= initialised > 0;
    pthread_mutex_unlock(&lock);
    return result;
}

const char *nvmlErrorString(int result) {
    switch (result) {
    case NVML_SUCCESS:
        return "no error";
    case NVML_ERROR_UNINITIALIZED:
        return "nvmlInit has not been called";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "an argument is invalid";
    case NVML_ERROR_NOT_FOUND:
        return "there is no such device";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "the caller's buffer is too small";
    case NVML_ERROR_TIMEOUT:
        return "nothing happened in time";
    case NVML_ERROR_GPU_IS_LOST:
        return "the device is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "the structure has an unknown version";
    default:
        return "an unknown error";
    }
}

static int ready(void) {
    pthread_mutex_lock(&lock);
    int result = initialised > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    pthread_mutex_unlock(&lock);
    return result;
}

static int ordinal_of(nvml_device device, int *ordinal) {
    int result = ready();
    if (result != NVML_SUCCESS) {
        return result;
    }
    uintptr_t number = (uintptr_t)device;
    if (number == 0 || number > machine_config()->devices) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *ordinal = (int)number - 1;
    return machine_is_lost(*ordinal) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

static int give_text(char *to, unsigned length, const char *text) {
    if (to == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (strlen(text) >= length) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    memcpy(to, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    return give_text(version, length, "580.00.simulated");
}

int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    return give_text(version, length, "13.580.00.simulated");
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int result = ready();
    if (result == NVML_SUCCESS && count == NULL) {
        result = NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == NVML_SUCCESS) {
        *count = (unsigned)machine_config()->devices;
    }
    return result;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *device) {
    int result = ready();
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (device == NULL || index >= machine_config()->devices) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device = (nvml_device)(uintptr_t)(index + 1);
    return machine_is_lost((int)index) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

/* The sixteen bytes that cuDeviceGetUuid tells, as NVML writes them. */
static void uuid_text(int ordinal, char text[48]) {
    unsigned char bytes[17] = "simulated-gpu-00";
    bytes[15] = (unsigned char)('0' + ordinal);
    int at = snprintf(text, 48, "GPU-");
    for (int i = 0; i < 16; i++) {
        const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        at += snprintf(text + at, (size_t)(48 - at), "%s%02x", dash, bytes[i]);
    }
}

static void bus_text(int ordinal, char text[16]) {
    snprintf(text, 16, "0000:%02x:00.0", (0x10U + (unsigned)ordinal) & 0xffU);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *device) {
    int result = ready();
    for (int ordinal = 0; result == NVML_SUCCESS && ordinal < (int)machine_config()->devices;
         ordinal++) {
        char text[48];
        uuid_text(ordinal, text);
        if (uuid != NULL && strcmp(uuid, text) == 0) {
            return nvmlDeviceGetHandleByIndex_v2((unsigned)ordinal, device);
        }
    }
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvml_device *device) {
    int result = ready();
    for (int ordinal = 0; result == NVML_SUCCESS && ordinal < (int)machine_config()->devices;
         ordinal++) {
        char text[16];
        bus_text(ordinal, text);
        /* Programs write the domain with four digits or with eight. */
        if (bus_id != NULL && strlen(bus_id) >= strlen(text) &&
            strcmp(bus_id + strlen(bus_id) - strlen(text), text) == 0) {
            return nvmlDeviceGetHandleByIndex_v2((unsigned)ordinal, device);
        }
    }
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}

int nvmlDeviceGetIndex(nvml_device device, unsigned *index) {
    int ordinal;
    int result = ordinal_of(device, &ordinal);
    if (result == NVML_SUCCESS) {
        *index = (unsigned)ordinal;
    }
    return result;
}

int nvmlDeviceGetName(nvml_device device, char *name, unsigned length) {
    int ordinal;
    int result = ordinal_of(device, &ordinal);
    return result == NVML_SUCCESS ? give_text(name, length, machine_config()->name) : result;
}

int nvmlDeviceGetUUID(nvml_device device, char *uuid, unsigned length) {
    int ordinal;
    char text[48];
    int result = ordinal_of(device, &ordinal);
    if (result != NVML_SUCCESS) {
        return result;
    }
    uuid_text(ordinal, text);
    return give_text(uuid, length, text);
}

int nvmlDeviceGetPciInfo_v3(nvml_device device, struct nvml_pci *pci) {
    int ordinal;
    int result = ordinal_of(device, &ordinal);
    if (result != NVML_SUCCESS || pci == NULL) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x10U + (unsigned)ordinal;
    bus_text(ordinal, pci->bus_id_legacy);
    snprintf(pci->bus_id, sizeof pci->bus_id, "0000%s", pci->bus_id_legacy);
    return NVML_SUCCESS;
}

int nvmlDeviceGetMemoryInfo(nvml_device device, struct nvml_memory *memory) {
    int ordinal;
    int result = ordinal_of(device, &ordinal);
    if (result != NVML_SUCCESS || memory == NULL) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    memory->total = machine_config()->memory_bytes;
    memory->used = machine_used_bytes(ordinal);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(nvml_device device, struct nvml_memory_v2 *memory) {
    struct nvml_memory plain;
    if (memory == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (memory->version != (sizeof *memory | 2U << 24)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    int result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result == NVML_SUCCESS) {
        memory->total = plain.total;
        memory->reserved = 0;
        memory->free = plain.free;
        memory->used = plain.used;
    }
    return result;
}

int nvmlEventSetCreate(struct nvml_event_set **set) {
    int result = ready();
    if (result != NVML_SUCCESS || set == NULL) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    *set = calloc(1, sizeof **set);
    return *set != NULL ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

int nvmlEventSetFree(struct nvml_event_set *set) {
    free(set);
    return NVML_SUCCESS;
}

int nvmlDeviceRegisterEvents(nvml_device device, unsigned long long types,
                             struct nvml_event_set *set) {
    int ordinal;
    int result = ordinal_of(device, &ordinal);
    if (result != NVML_SUCCESS || set == NULL || types != event_xid) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    set->wanted[ordinal] = true;
    set->seen[ordinal] = machine_xid(ordinal);
    return NVML_SUCCESS;
}

/* The next error that was not seen yet; false if there is none. */
static bool event_next(struct nvml_event_set *set, struct nvml_event *event) {
    for (unsigned ordinal = 0; ordinal < machine_config()->devices; ordinal++) {
        uint64_t now = machine_xid((int)ordinal);
        if (set->wanted[ordinal] && now != set->seen[ordinal]) {
            set->seen[ordinal] = now;
            *event = (struct nvml_event){.device = (nvml_device)(uintptr_t)(ordinal + 1),
                                         .type = event_xid,
                                         .data = (uint32_t)now,
                                         .gpu_instance = UINT32_MAX,
                                         .compute_instance = UINT32_MAX};
            return true;
        }
    }
    return false;
}

int nvmlEventSetWait_v2(struct nvml_event_set *set, struct nvml_event *event, unsigned timeout_ms) {
    int result = ready();
    if (result != NVML_SUCCESS || set == NULL || event == NULL) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    const uint64_t pause_ns = 5000000;
    uint64_t until = machine_now_ns() + (uint64_t)timeout_ms * 1000000U;
    while (!event_next(set, event)) {
        if (machine_now_ns() >= until) {
            return NVML_ERROR_TIMEOUT;
        }
        machine_sleep_until(machine_now_ns() + pause_ns);
    }
    return NVML_SUCCESS;
}
