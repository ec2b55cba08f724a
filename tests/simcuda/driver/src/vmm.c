/* Virtual memory management with the real driver's rules. See vmm.h.
 *
 * A handle names physical memory in this process: a block (machine.h) with a count of its
 * references and one of its mappings. The block is closed when both are zero, and the memory is
 * free when that is so in every process.
 *
 * Rules that programs trip over on a GPU, kept here: sizes and addresses are multiples of the
 * granularity, an offset is 0, a map lies inside one reservation and on nothing mapped, unmap takes
 * whole mappings only, a reservation is freed whole and empty, a handle may be mapped at many
 * addresses, and a fresh mapping allows no access.
 *
 * Invariant: handles are never reused, so a stale one is refused.
 */
#include "vmm.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "context.h"
#include "entry.h"
#include "memory.h"
#include "standing.h"
#include "streams.h"

struct physical {
    uint64_t handle;
    unsigned references, mappings;
    struct block block;
    CUmemAllocationProp properties;
};

struct reservation {
    uint64_t base, size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* before the lock of ranges.c */
static struct physical *physicals; /* sorted by handle, as handles only grow */
static size_t physical_count, physical_capacity;
static struct reservation *reservations;
static size_t reservation_count, reservation_capacity;
static uint64_t next_handle = 0x51c0000000000001;

static uint64_t unit_bytes(void) {
    return machine_config()->granularity_bytes;
}

static struct physical *physical_find(uint64_t handle) {
    size_t low = 0;
    size_t high = physical_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (physicals[middle].handle < handle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < physical_count && physicals[low].handle == handle ? &physicals[low] : NULL;
}

/* Enters the block; owns it when it succeeds. */
static CUresult physical_add(const struct block *block, const CUmemAllocationProp *properties,
                             uint64_t *handle) {
    if (physical_count == physical_capacity) {
        size_t wanted = physical_capacity == 0 ? 64 : physical_capacity * 2;
        struct physical *larger = realloc(physicals, wanted * sizeof *larger);
        if (larger == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        physicals = larger;
        physical_capacity = wanted;
    }
    *handle = next_handle++;
    physicals[physical_count++] = (struct physical){
        .handle = *handle, .references = 1, .block = *block, .properties = *properties};
    return CUDA_SUCCESS;
}

static void physical_settle(struct physical *physical) {
    if (physical->references > 0 || physical->mappings > 0) {
        return;
    }
    machine_block_close(&physical->block);
    size_t at = (size_t)(physical - physicals);
    physical_count--;
    memmove(physical, physical + 1, (physical_count - at) * sizeof *physical);
}

static struct reservation *reservation_find(uint64_t base, uint64_t size) {
    for (size_t i = 0; i < reservation_count; i++) {
        if (reservations[i].base <= base &&
            base + size <= reservations[i].base + reservations[i].size) {
            return &reservations[i];
        }
    }
    return NULL;
}

bool vmm_reservation(uint64_t address, uint64_t *base, uint64_t *size) {
    pthread_mutex_lock(&lock);
    struct reservation *found = reservation_find(address, 1);
    if (found != NULL) {
        *base = found->base;
        *size = found->size;
    }
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

unsigned vmm_handle_types(uint64_t handle) {
    pthread_mutex_lock(&lock);
    struct physical *physical = physical_find(handle);
    unsigned types = physical == NULL ? 0 : (unsigned)physical->properties.requestedHandleTypes;
    pthread_mutex_unlock(&lock);
    return types;
}

void vmm_close_descriptors(void) {
    for (size_t i = 0; i < physical_count; i++) {
        close(physicals[i].block.fd);
    }
}

/* Where memory of these properties lies; false for what the simulator does not have. */
static CUresult location_of(const CUmemAllocationProp *properties, int *device) {
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        (properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
         properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (properties->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        *device = properties->location.id;
        return device_check(*device);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        *device = HOST_MEMORY;
        return properties->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult IMPL(cuMemGetAllocationGranularity)(size_t *granularity, const CUmemAllocationProp *prop,
                                             CUmemAllocationGranularity_flags option) {
    int device;
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (granularity == NULL || prop == NULL ||
        (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
         option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = location_of(prop, &device);
    if (result == CUDA_SUCCESS) {
        *granularity = unit_bytes();
    }
    return result;
}

CUresult IMPL(cuMemCreate)(CUmemGenericAllocationHandle *handle, size_t size,
                           const CUmemAllocationProp *prop, unsigned long long flags) {
    int device;
    struct block block;
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    standing_wait();
    if (handle == NULL || prop == NULL || flags != 0 || size == 0 || size % unit_bytes() != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = location_of(prop, &device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (device != HOST_MEMORY && machine_is_lost(device)) {
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    if (!machine_block_create(device, size, true, &block)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t number = 0;
    pthread_mutex_lock(&lock);
    result = physical_add(&block, prop, &number);
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS) {
        *handle = number;
    } else {
        machine_block_close(&block);
    }
    return result;
}

CUresult IMPL(cuMemRelease)(CUmemGenericAllocationHandle handle) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    pthread_mutex_lock(&lock);
    struct physical *physical = physical_find(handle);
    bool held = physical != NULL && physical->references > 0;
    if (held) {
        physical->references--;
        physical_settle(physical);
    }
    pthread_mutex_unlock(&lock);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult IMPL(cuMemExportToShareableHandle)(void *shareableHandle,
                                            CUmemGenericAllocationHandle handle,
                                            CUmemAllocationHandleType handleType,
                                            unsigned long long flags) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (shareableHandle == NULL || flags != 0 ||
        handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct physical *physical = physical_find(handle);
    if (physical != NULL && physical->references > 0 &&
        physical->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        int fd = fcntl(physical->block.fd, F_DUPFD_CLOEXEC, 0);
        result = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
        if (fd >= 0) {
            *(int *)shareableHandle = fd;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* The descriptor stays the caller's, as with the real driver. */
CUresult IMPL(cuMemImportFromShareableHandle)(CUmemGenericAllocationHandle *handle, void *osHandle,
                                              CUmemAllocationHandleType shHandleType) {
    struct block block;
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (handle == NULL || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!machine_block_adopt((int)(intptr_t)osHandle, &block)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = block.device == HOST_MEMORY ? CU_MEM_LOCATION_TYPE_HOST_NUMA
                                                         : CU_MEM_LOCATION_TYPE_DEVICE}};
    properties.location.id = block.device == HOST_MEMORY ? 0 : block.device;
    uint64_t number = 0;
    pthread_mutex_lock(&lock);
    CUresult result = physical_add(&block, &properties, &number);
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS) {
        *handle = number;
    } else {
        machine_block_close(&block);
    }
    return result;
}

CUresult IMPL(cuMemGetAllocationPropertiesFromHandle)(CUmemAllocationProp *prop,
                                                      CUmemGenericAllocationHandle handle) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    pthread_mutex_lock(&lock);
    struct physical *physical = physical_find(handle);
    bool held = prop != NULL && physical != NULL && physical->references > 0;
    if (held) {
        *prop = physical->properties;
    }
    pthread_mutex_unlock(&lock);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult IMPL(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle, void *addr) {
    struct range range;
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (handle == NULL || !ranges_find((uint64_t)(uintptr_t)addr, &range) ||
        range.kind != RANGE_MAPPING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&lock);
    struct physical *physical = physical_find(range.handle);
    if (physical != NULL) {
        physical->references++;
        *handle = physical->handle;
    }
    pthread_mutex_unlock(&lock);
    return physical != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult IMPL(cuMemAddressReserve)(CUdeviceptr *ptr, size_t size, size_t alignment,
                                   CUdeviceptr addr, unsigned long long flags) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (ptr == NULL || flags != 0 || size == 0 || size % unit_bytes() != 0 ||
        (alignment & (alignment - 1)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (alignment < unit_bytes()) {
        alignment = unit_bytes();
    }
    pthread_mutex_lock(&lock);
    if (reservation_count == reservation_capacity) {
        size_t wanted = reservation_capacity == 0 ? 16 : reservation_capacity * 2;
        struct reservation *larger = realloc(reservations, wanted * sizeof *larger);
        if (larger == NULL) {
            pthread_mutex_unlock(&lock);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        reservations = larger;
        reservation_capacity = wanted;
    }
    uint64_t base = address_reserve(size, alignment, addr);
    if (base != 0) {
        reservations[reservation_count++] = (struct reservation){base, size};
    }
    pthread_mutex_unlock(&lock);
    *ptr = base;
    return base != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult refuse_any(struct range *range, void *data) {
    (void)range;
    (void)data;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult IMPL(cuMemAddressFree)(CUdeviceptr ptr, size_t size) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct reservation *found = reservation_find(ptr, size);
    if (found != NULL && found->base == ptr && found->size == size) {
        result = ranges_edit(ptr, size, refuse_any, NULL);
    }
    if (result == CUDA_SUCCESS) {
        munmap((void *)(uintptr_t)ptr, size);
        *found = reservations[--reservation_count];
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Puts an address back to what a reservation without a mapping is. */
static bool address_blank(uint64_t base, uint64_t size) {
    return mmap((void *)(uintptr_t)base, size, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

CUresult IMPL(cuMemMap)(CUdeviceptr ptr, size_t size, size_t offset,
                        CUmemGenericAllocationHandle handle, unsigned long long flags) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    standing_wait();
    if (offset != 0 || flags != 0 || size == 0 || size % unit_bytes() != 0 ||
        ptr % unit_bytes() != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct physical *physical = physical_find(handle);
    if (physical != NULL && physical->references > 0 && size <= physical->block.bytes &&
        reservation_find(ptr, size) != NULL) {
        result = ranges_edit(ptr, size, refuse_any, NULL);
    }
    if (result == CUDA_SUCCESS) {
        void *there = (void *)(uintptr_t)ptr;
        struct range range = {.base = ptr,
                              .size = size,
                              .kind = RANGE_MAPPING,
                              .device = physical->block.device,
                              .handle = handle,
                              .block = {.fd = -1}};
        if (mmap(there, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->block.fd, 0) != there) {
            result = CUDA_ERROR_MAP_FAILED;
        } else if (!ranges_add(&range)) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            physical->mappings++;
        }
        if (result == CUDA_SUCCESS) {
            madvise(there, size, MADV_DONTFORK);
        } else {
            address_blank(ptr, size);
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult IMPL(cuMemUnmap)(CUdeviceptr ptr, size_t size) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    standing_wait();
    if (size == 0 || !ranges_whole(ptr, size, 1U << RANGE_MAPPING)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    streams_check_untouched(ptr, size, "an unmapping");
    pthread_mutex_lock(&lock);
    struct range range;
    for (uint64_t at = ptr; at < ptr + size; at += range.size) {
        if (!ranges_remove(at, 1U << RANGE_MAPPING, &range)) {
            break;
        }
        address_blank(range.base, range.size);
        struct physical *physical = physical_find(range.handle);
        physical->mappings--;
        physical_settle(physical);
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

struct access_change {
    const CUmemAccessDesc *descriptors;
    size_t count;
};

static unsigned char access_bits(CUmemAccess_flags flags) {
    return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? ACCESS_READ_WRITE
           : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? ACCESS_READ
                                                       : ACCESS_NONE;
}

static CUresult access_set(struct range *range, void *data) {
    const struct access_change *change = data;
    for (size_t i = 0; i < change->count; i++) {
        const CUmemAccessDesc *descriptor = &change->descriptors[i];
        unsigned char bits = access_bits(descriptor->flags);
        if (descriptor->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
            range->access[descriptor->location.id] = bits;
        } else if (range->device == HOST_MEMORY) {
            range->host_access = bits;
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    unsigned char all = range->host_access;
    for (int device = 0; device < MAX_DEVICES; device++) {
        all |= range->access[device];
    }
    int protection =
        (all & ACCESS_READ ? PROT_READ : 0) | (all == ACCESS_READ_WRITE ? PROT_WRITE : 0);
    return mprotect((void *)(uintptr_t)range->base, range->size, protection) == 0
               ? CUDA_SUCCESS
               : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult IMPL(cuMemSetAccess)(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
                              size_t count) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    standing_wait();
    if (desc == NULL || count == 0 || size == 0 || !ranges_whole(ptr, size, 1U << RANGE_MAPPING)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
            CUresult result = device_check(desc[i].location.id);
            if (result != CUDA_SUCCESS) {
                return result;
            }
        }
    }
    streams_check_untouched(ptr, size, "a change of access");
    struct access_change change = {desc, count};
    return ranges_edit(ptr, size, access_set, &change);
}

CUresult IMPL(cuMemGetAccess)(unsigned long long *flags, const CUmemLocation *location,
                              CUdeviceptr ptr) {
    struct range range;
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (flags == NULL || location == NULL || !ranges_find(ptr, &range) ||
        range.kind != RANGE_MAPPING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (device && device_check(location->id) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    /* The bits 1 and 3 are the flags' own values. */
    *flags = device ? range.access[location->id] : range.host_access;
    return CUDA_SUCCESS;
}
