/* See pointers.h. What the driver says of an address depends on what is mapped there, and now and
 * then nothing is: while a careful job hides a weight, and while a task under Swap is away. So all
 * that programs ask before they launch a kernel is answered here; an attribute that is not known
 * here is the driver's.
 */
#include "entry/pointers.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "budget/ledger.h"
#include "driver/standard_error.h"
#include "memory/ranges.h"

/* Ids of the driver count from 1 up. */
static const uint64_t ID_BIT = UINT64_C(1) << 63;

enum verdict { DRIVERS, ANSWERED, REFUSED };

static enum verdict answer(const struct range *range, uint64_t address, int attribute, void *data) {
    const unsigned int memory_type = ABI_MEMORY_DEVICE;
    const unsigned int no = 0; /* a flag takes four bytes, as seen of the driver on an H200 */
    const unsigned int yes = 1;
    const unsigned int access = ABI_ACCESS_READ_WRITE;
    const uint64_t id = range->id | ID_BIT;
    const uint64_t none = 0;
    const void *from;
    size_t bytes;
    switch (attribute) {
    case ABI_POINTER_CONTEXT:
        from = &range->context;
        bytes = sizeof range->context;
        break;
    case ABI_POINTER_MEMORY_TYPE:
        from = &memory_type;
        bytes = sizeof memory_type;
        break;
    case ABI_POINTER_HOST_ADDRESS:
        return REFUSED;
    case ABI_POINTER_DEVICE_ADDRESS:
        from = &address;
        bytes = sizeof address;
        break;
    case ABI_POINTER_IS_MANAGED:
    case ABI_POINTER_IPC_CAPABLE:
    case ABI_POINTER_RDMA_CAPABLE:
        from = &no;
        bytes = sizeof no;
        break;
    case ABI_POINTER_MAPPED:
        from = &yes;
        bytes = sizeof yes;
        break;
    case ABI_POINTER_ACCESS:
        from = &access;
        bytes = sizeof access;
        break;
    case ABI_POINTER_DEVICE:
        from = &range->device;
        bytes = sizeof range->device;
        break;
    case ABI_POINTER_RANGE_BEGIN:
    case ABI_POINTER_MAPPING_BEGIN:
        from = &range->begin;
        bytes = sizeof range->begin;
        break;
    case ABI_POINTER_RANGE_BYTES:
    case ABI_POINTER_MAPPING_BYTES:
        from = &range->bytes;
        bytes = sizeof range->bytes;
        break;
    case ABI_POINTER_BUFFER_ID:
    case ABI_POINTER_BLOCK_ID:
        from = &id;
        bytes = sizeof id;
        break;
    case ABI_POINTER_HANDLE_TYPES:
    case ABI_POINTER_POOL:
        from = &none;
        bytes = sizeof none;
        break;
    default:
        return DRIVERS;
    }
    memcpy(data, from, bytes);
    return ANSWERED;
}

int pointers_address_range(cuMemGetAddressRange_v2_function *next, uint64_t *base, size_t *bytes,
                           uint64_t address) {
    struct range range;
    if (!ranges_find(address, &range)) {
        return next(base, bytes, address);
    }
    if (base != NULL) {
        *base = range.begin;
    }
    if (bytes != NULL) {
        *bytes = range.bytes;
    }
    return ABI_SUCCESS;
}

int pointers_attribute(cuPointerGetAttribute_function *next, void *data, int attribute,
                       uint64_t address) {
    struct range range;
    if (data == NULL || !ranges_find(address, &range)) {
        return next(data, attribute, address);
    }
    switch (answer(&range, address, attribute, data)) {
    case ANSWERED:
        return ABI_SUCCESS;
    case REFUSED:
        return ABI_INVALID_VALUE;
    default:
        return next(data, attribute, address);
    }
}

int pointers_attributes(cuPointerGetAttributes_function *next, unsigned int count, int *attributes,
                        void **data, uint64_t address) {
    struct range range;
    int result = next(count, attributes, data, address);
    if (result != ABI_SUCCESS || !ranges_find(address, &range)) {
        return result;
    }
    for (unsigned int i = 0; i < count; i++) {
        if (answer(&range, address, attributes[i], data[i]) == REFUSED) {
            memset(data[i], 0, sizeof(void *)); /* the plural leaves out what it cannot tell */
        }
    }
    return result;
}

int pointers_may_leave(uint64_t address, const char *asked) {
    static atomic_bool said;
    struct range range;
    if (!ranges_find(address, &range)) {
        return ABI_SUCCESS;
    }
    ledger_note_refusal();
    if (!atomic_exchange(&said, true)) {
        standard_error_say(
            "tierline: %s refused: the %llu bytes at 0x%llx %s, which cannot be given to "
            "another process or device by CUDA; share them through host memory, or keep this "
            "program out of Tierline\n",
            asked, (unsigned long long)range.bytes, (unsigned long long)range.begin,
            range.kind == RANGE_SPILLED ? "lie in host memory beyond the task's budget"
                                        : "are memory of the Tierline agent");
    }
    return ABI_NOT_SUPPORTED;
}

int pointers_retain(cuMemRetainAllocationHandle_function *next, uint64_t *handle, void *address) {
    struct range range;
    return ranges_find((uint64_t)(uintptr_t)address, &range) ? ABI_INVALID_VALUE
                                                             : next(handle, address);
}
