/* Legacy IPC: a 64-byte ticket that opens another process's cuMemAlloc memory.
 *
 * As with the real driver it works for memory of cuMemAlloc only; memory by handle and of pools is
 * refused. An opener holds the memory like its owner does. Tickets for events are not simulated.
 */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "context.h"
#include "entry.h"
#include "memory.h"
#include "streams.h"

struct ticket {
    uint64_t magic, block, block_bytes, offset, bytes;
    int32_t device, owner;
};

static const uint64_t ticket_magic = 0x74656b6369744353;

_Static_assert(sizeof(struct ticket) <= sizeof(CUipcMemHandle), "a ticket fits into a handle");

CUresult IMPL(cuIpcGetMemHandle)(CUipcMemHandle *pHandle, CUdeviceptr dptr) {
    CUcontext ctx;
    struct range range;
    struct block block;
    uint64_t offset;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pHandle == NULL || !ranges_find(dptr, &range) || range.kind != RANGE_DEVICE ||
        !memory_locate(&range, &block, &offset)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct ticket ticket = {ticket_magic, block.id,     block.bytes, offset,
                            range.size,   block.device, getpid()};
    memset(pHandle, 0, sizeof *pHandle);
    memcpy(pHandle, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuIpcOpenMemHandle_v2)(CUdeviceptr *pdptr, CUipcMemHandle handle,
                                     unsigned int Flags) {
    CUcontext ctx;
    struct ticket ticket;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    memcpy(&ticket, &handle, sizeof ticket);
    if (pdptr == NULL || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
        ticket.magic != ticket_magic) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (ticket.owner == getpid()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    struct range range = {.kind = RANGE_IMPORTED, .ctx = ctx, .device = ticket.device};
    if (!machine_block_open(ticket.device, ticket.block_bytes, ticket.block, &range.block)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t base = address_reserve(ticket.block_bytes, GRANULARITY_BYTES, 0);
    void *there = (void *)(uintptr_t)base;
    if (base == 0 || mmap(there, ticket.block_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                          range.block.fd, 0) != there) {
        machine_block_close(&range.block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    madvise(there, ticket.block_bytes, MADV_DONTFORK);
    memset(range.access, ACCESS_READ_WRITE, sizeof range.access);
    range.base = base + ticket.offset;
    range.size = ticket.bytes;
    range.block_offset = ticket.offset;
    if (!ranges_add(&range)) {
        munmap(there, ticket.block_bytes);
        machine_block_close(&range.block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pdptr = range.base;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuIpcOpenMemHandle)(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
    return IMPL(cuIpcOpenMemHandle_v2)(pdptr, handle, Flags);
}

CUresult IMPL(cuIpcCloseMemHandle)(CUdeviceptr dptr) {
    CUcontext ctx;
    struct range range;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = streams_drain(ctx);
    if (!ranges_remove(dptr, 1U << RANGE_IMPORTED, &range)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memory_give(&range);
    return result;
}
