/* Flag words. See memops.h.
 *
 * A flag may be written by a stream of any process, or by a CPU that knows nothing of the driver.
 * The waiter therefore looks at the word itself. It sleeps in the kernel on the word's address (a
 * shared futex), so that a write by a stream wakes it at once, and looks again after a growing
 * pause (50 us to 1 ms) for all other writers.
 *
 * Invariant: a word is read and written as one atomic access, and all earlier work of the writing
 * stream is visible to a reader that saw the word's new value.
 */
#include "memops.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "entry.h"
#include "ranges.h"
#include "standing.h"
#include "streams.h"

enum { FIRST_PAUSE_NS = 50000, LONGEST_PAUSE_NS = 1000000 };

struct operation {
    uint64_t address, value;
    bool wide, waits, barrier;
    unsigned flags;
};

static bool operation_of(const CUstreamBatchMemOpParams *params, struct operation *operation) {
    *operation = (struct operation){.address = params->waitValue.address,
                                    .value = params->waitValue.value64,
                                    .flags = params->waitValue.flags};
    switch (params->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        operation->waits = true;
        break;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        operation->waits = operation->wide = true;
        break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        operation->wide = true;
        break;
    case CU_STREAM_MEM_OP_BARRIER:
        operation->barrier = true;
        break;
    default:
        return false;
    }
    return true;
}

bool memops_touch(const struct memops *memops, uint64_t base, uint64_t size) {
    for (unsigned i = 0; i < memops->count; i++) {
        struct operation operation;
        operation_of(&memops->operations[i], &operation);
        if (!operation.barrier && operation.address >= base && operation.address < base + size) {
            return true;
        }
    }
    return false;
}

CUresult memops_check(CUcontext ctx, const CUstreamBatchMemOpParams *operations, unsigned count) {
    if (operations == NULL || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count; i++) {
        struct operation operation;
        if (!operation_of(&operations[i], &operation)) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        if (operation.barrier) {
            continue;
        }
        unsigned size = operation.wide ? 8 : 4;
        unsigned known = operation.waits ? 3U | CU_STREAM_WAIT_VALUE_FLUSH
                                         : (unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
        if ((operation.flags & ~known) != 0 || operation.address % size != 0 ||
            !ranges_would_allow(operation.address, size, ctx->device, !operation.waits)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static uint64_t word_load(const struct operation *operation) {
    return operation->wide ? atomic_load((_Atomic uint64_t *)(uintptr_t)operation->address)
                           : atomic_load((_Atomic uint32_t *)(uintptr_t)operation->address);
}

static bool satisfied(const struct operation *operation) {
    uint64_t seen = word_load(operation);
    uint64_t wanted = operation->value;
    if (!operation->wide) {
        seen = (uint32_t)seen;
        wanted = (uint32_t)wanted;
    }
    switch (operation->flags & 3U) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return seen == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
        return (seen & wanted) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
        return operation->wide ? ~(seen | wanted) != 0 : (uint32_t) ~(seen | wanted) != 0;
    default: /* GEQ, cyclic: the sign of the difference decides */
        return operation->wide ? (int64_t)(seen - wanted) >= 0
                               : (int32_t)((uint32_t)seen - (uint32_t)wanted) >= 0;
    }
}

static void word_store(const struct operation *operation) {
    if (operation->wide) {
        atomic_store((_Atomic uint64_t *)(uintptr_t)operation->address, operation->value);
    } else {
        atomic_store((_Atomic uint32_t *)(uintptr_t)operation->address, (uint32_t)operation->value);
    }
    syscall(SYS_futex, (uint32_t *)(uintptr_t)operation->address, FUTEX_WAKE, 0x7fffffff, NULL,
            NULL, 0);
}

CUresult memops_advance(CUcontext ctx, const struct memops *memops, unsigned *next) {
    CUresult result = CUDA_SUCCESS;
    bool blocked = false;
    while (*next < memops->count && !blocked && result == CUDA_SUCCESS) {
        struct operation operation;
        operation_of(&memops->operations[*next], &operation);
        if (!operation.barrier) {
            ranges_hold();
            if (!ranges_allow(operation.address, operation.wide ? 8 : 4, ctx->device,
                              !operation.waits)) {
                result = CUDA_ERROR_ILLEGAL_ADDRESS;
            } else if (!operation.waits) {
                word_store(&operation);
            } else {
                blocked = !satisfied(&operation);
            }
            ranges_let_go();
        }
        if (!blocked && result == CUDA_SUCCESS) {
            ++*next;
        }
    }
    return result;
}

void memops_sleep(const struct memops *memops, unsigned next, uint64_t longest_ns) {
    struct operation operation;
    operation_of(&memops->operations[next], &operation);
    struct timespec pause = {0, (long)longest_ns};
    ranges_hold();
    bool waiting =
        ranges_touch(operation.address, operation.wide ? 8 : 4) && !satisfied(&operation);
    uint64_t word = waiting ? word_load(&operation) : 0;
    ranges_let_go();
    /* If the memory goes in this moment the kernel says EFAULT, and the next look finds it gone. */
    if (waiting) {
        syscall(SYS_futex, (uint32_t *)(uintptr_t)operation.address, FUTEX_WAIT, (uint32_t)word,
                &pause, NULL, 0);
    }
}

CUresult memops_perform(CUcontext ctx, const struct memops *memops) {
    unsigned next = 0;
    unsigned before = 0;
    uint64_t pause_ns = FIRST_PAUSE_NS;
    CUresult result = memops_advance(ctx, memops, &next);
    if (result != CUDA_SUCCESS || next == memops->count) {
        return result;
    }
    standing_begin();
    while (!context_is_over(ctx)) {
        result = memops_advance(ctx, memops, &next);
        if (result != CUDA_SUCCESS || next == memops->count) {
            break;
        }
        pause_ns = next != before ? FIRST_PAUSE_NS : pause_ns;
        before = next;
        memops_sleep(memops, next, pause_ns);
        if (pause_ns < LONGEST_PAUSE_NS) {
            pause_ns *= 2;
        }
    }
    standing_end();
    return result;
}

static CUresult submit(CUstream handle, unsigned count, CUstreamBatchMemOpParams *operations,
                       unsigned flags) {
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags != 0 || count > 256) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = memops_check(stream->ctx, operations, count);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct work work = {.kind = WORK_MEMOPS, .memops = {operations, count}};
    return stream_submit(stream, work_copy(&work), NULL);
}

CUresult IMPL(cuStreamBatchMemOp_v2)(CUstream stream, unsigned int count,
                                     CUstreamBatchMemOpParams *paramArray, unsigned int flags) {
    return submit(stream, count, paramArray, flags);
}

static CUresult submit_one(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr addr,
                           uint64_t value, unsigned flags) {
    CUstreamBatchMemOpParams operation = {.waitValue = {.address = addr, .flags = flags}};
    operation.waitValue.operation = type;
    operation.waitValue.value64 = value;
    return submit(stream, 1, &operation, 0);
}

CUresult IMPL(cuStreamWaitValue32_v2)(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                      unsigned int flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags);
}

CUresult IMPL(cuStreamWaitValue64_v2)(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                      unsigned int flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags);
}

CUresult IMPL(cuStreamWriteValue32_v2)(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                       unsigned int flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags);
}

CUresult IMPL(cuStreamWriteValue64_v2)(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                       unsigned int flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags);
}

/* The first version of the API, which drivers still have. */

CUresult IMPL(cuStreamBatchMemOp)(CUstream stream, unsigned int count,
                                  CUstreamBatchMemOpParams *paramArray, unsigned int flags) {
    return submit(stream, count, paramArray, flags);
}

CUresult IMPL(cuStreamWaitValue32)(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                   unsigned int flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags);
}

CUresult IMPL(cuStreamWaitValue64)(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                   unsigned int flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags);
}

CUresult IMPL(cuStreamWriteValue32)(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                    unsigned int flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags);
}

CUresult IMPL(cuStreamWriteValue64)(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                    unsigned int flags) {
    return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags);
}
