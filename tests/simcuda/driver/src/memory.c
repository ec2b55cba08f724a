/* Device memory by cuMemAlloc. See memory.h. */
#include "memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "capture.h"
#include "context.h"
#include "entry.h"
#include "standing.h"
#include "streams.h"

enum { SLAB_BYTES = GRANULARITY_BYTES, SLAB_GRANULES = SLAB_BYTES / GRANULE_BYTES };

struct slab {
    struct slab *next;
    CUcontext ctx;
    uint64_t base;
    struct block block;
    unsigned used;
    unsigned char taken[SLAB_GRANULES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slab *slabs;

/* Whether the process may use addresses from there on: ThreadSanitizer ends it at others. */
static bool is_usable(uint64_t wish) {
#ifdef __SANITIZE_THREAD__
    return wish >= UINT64_C(0x7e8000000000);
#else
    return wish != 0;
#endif
}

uint64_t address_reserve(uint64_t bytes, uint64_t alignment, uint64_t wish) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *wished = (void *)(uintptr_t)wish;
    if (is_usable(wish) && wish % alignment == 0) {
        void *there = mmap(wished, bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
        if (there == wished) {
            return wish;
        }
        if (there != MAP_FAILED) {
            munmap(there, bytes);
        }
    }
    void *wide = mmap(NULL, bytes + alignment, PROT_NONE, flags, -1, 0);
    if (wide == MAP_FAILED) {
        return 0;
    }
    uint64_t start = (uint64_t)(uintptr_t)wide;
    uint64_t base = (start + alignment - 1) / alignment * alignment;
    if (base > start) {
        munmap(wide, base - start);
    }
    munmap((void *)(uintptr_t)(base + bytes), start + alignment - base);
    return base;
}

/* Maps a block at a fresh address; 0 when that fails. */
static uint64_t block_map(const struct block *block) {
    uint64_t base = address_reserve(block->bytes, GRANULARITY_BYTES, 0);
    if (base == 0) {
        return 0;
    }
    void *there = (void *)(uintptr_t)base;
    if (mmap(there, block->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, block->fd, 0) !=
        there) {
        munmap(there, block->bytes);
        return 0;
    }
    madvise(there, block->bytes, MADV_DONTFORK);
    return base;
}

static void address_unmap(uint64_t base, uint64_t bytes) {
    munmap((void *)(uintptr_t)base, bytes);
}

/* First fit in a slab; SLAB_GRANULES when it is too full. */
static unsigned slab_fit(const struct slab *slab, unsigned granules) {
    unsigned run = 0;
    for (unsigned i = 0; i < SLAB_GRANULES; i++) {
        run = slab->taken[i] ? 0 : run + 1;
        if (run == granules) {
            return i + 1 - granules;
        }
    }
    return SLAB_GRANULES;
}

static struct slab *slab_new(CUcontext ctx) {
    struct slab *slab = calloc(1, sizeof *slab);
    if (slab == NULL) {
        return NULL;
    }
    if (!machine_block_create(ctx->device, SLAB_BYTES, true, &slab->block)) {
        free(slab);
        return NULL;
    }
    slab->base = block_map(&slab->block);
    if (slab->base == 0) {
        machine_block_close(&slab->block);
        free(slab);
        return NULL;
    }
    slab->ctx = ctx;
    slab->next = slabs;
    slabs = slab;
    return slab;
}

static uint64_t small_take(CUcontext ctx, uint64_t bytes) {
    unsigned granules = (unsigned)((bytes + GRANULE_BYTES - 1) / GRANULE_BYTES);
    uint64_t address = 0;
    pthread_mutex_lock(&lock);
    struct slab *slab = slabs;
    unsigned at = SLAB_GRANULES;
    for (; slab != NULL; slab = slab->next) {
        if (slab->ctx == ctx && (at = slab_fit(slab, granules)) < SLAB_GRANULES) {
            break;
        }
    }
    if (slab == NULL) {
        slab = slab_new(ctx);
        at = 0;
    }
    if (slab != NULL) {
        memset(&slab->taken[at], 1, granules);
        slab->used += granules;
        address = slab->base + (uint64_t)at * GRANULE_BYTES;
    }
    pthread_mutex_unlock(&lock);
    return address;
}

static struct slab **slab_link(uint64_t address) {
    struct slab **link = &slabs;
    while (*link != NULL && (address < (*link)->base || address >= (*link)->base + SLAB_BYTES)) {
        link = &(*link)->next;
    }
    return link;
}

static void small_give(uint64_t address, uint64_t bytes) {
    unsigned granules = (unsigned)((bytes + GRANULE_BYTES - 1) / GRANULE_BYTES);
    pthread_mutex_lock(&lock);
    struct slab **link = slab_link(address);
    struct slab *slab = *link;
    if (slab != NULL) {
        memset(&slab->taken[(address - slab->base) / GRANULE_BYTES], 0, granules);
        slab->used -= granules;
        if (slab->used == 0) {
            *link = slab->next;
            address_unmap(slab->base, SLAB_BYTES);
            machine_block_close(&slab->block);
            free(slab);
        }
    }
    pthread_mutex_unlock(&lock);
}

CUresult memory_take(CUcontext ctx, uint64_t bytes, enum range_kind kind, uint64_t *address) {
    struct range range = {
        .size = bytes, .kind = kind, .device = ctx->device, .ctx = ctx, .block = {.fd = -1}};
    memset(range.access, ACCESS_READ_WRITE, sizeof range.access);
    if (bytes <= LARGE_BYTES) {
        range.base = small_take(ctx, bytes);
    } else {
        uint64_t rounded = (bytes + GRANULARITY_BYTES - 1) / GRANULARITY_BYTES * GRANULARITY_BYTES;
        if (rounded < bytes || !machine_block_create(ctx->device, rounded, true, &range.block)) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        range.base = block_map(&range.block);
        if (range.base == 0) {
            machine_block_close(&range.block);
        }
    }
    if (range.base == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!ranges_add(&range)) {
        memory_give(&range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = range.base;
    return CUDA_SUCCESS;
}

void memory_give(const struct range *range) {
    struct block block = range->block;
    if (block.fd < 0) {
        small_give(range->base, range->size);
        return;
    }
    address_unmap(range->base - range->block_offset, block.bytes);
    machine_block_close(&block);
}

bool memory_locate(const struct range *range, struct block *block, uint64_t *offset) {
    bool found = range->block.fd >= 0;
    *block = range->block;
    *offset = 0;
    if (found) {
        return true;
    }
    pthread_mutex_lock(&lock);
    struct slab *slab = *slab_link(range->base);
    if (slab != NULL) {
        *block = slab->block;
        *offset = range->base - slab->base;
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void memory_end(CUcontext ctx) {
    struct range range;
    while (ranges_remove_of(ctx, &range)) {
        if (range.kind == RANGE_HOST) {
            address_unmap(range.base, range.size);
        } else if (range.kind != RANGE_REGISTERED) {
            memory_give(&range);
        }
    }
}

CUresult IMPL(cuMemAlloc_v2)(CUdeviceptr *dptr, size_t bytesize) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result == CUDA_SUCCESS) {
        result = capture_unsafe_call();
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    standing_wait();
    if (dptr == NULL || bytesize == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t address = 0;
    result = memory_take(ctx, bytesize, RANGE_DEVICE, &address);
    if (result == CUDA_SUCCESS) {
        *dptr = address;
    }
    return result;
}

CUresult IMPL(cuMemAllocPitch_v2)(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes,
                                  size_t Height, unsigned int ElementSizeBytes) {
    if (pPitch == NULL || WidthInBytes == 0 || Height == 0 ||
        (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t pitch = (WidthInBytes + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
    CUresult result = IMPL(cuMemAlloc_v2)(dptr, pitch * Height);
    if (result == CUDA_SUCCESS) {
        *pPitch = pitch;
    }
    return result;
}

CUresult IMPL(cuMemFree_v2)(CUdeviceptr dptr) {
    CUcontext ctx;
    struct range range;
    CUresult result = context_current(&ctx);
    if (result == CUDA_SUCCESS) {
        result = capture_unsafe_call();
    }
    if (result != CUDA_SUCCESS || dptr == 0) {
        return result;
    }
    const unsigned kinds = 1U << RANGE_DEVICE | 1U << RANGE_POOL;
    if (!ranges_find(dptr, &range) || range.base != dptr || !(kinds >> range.kind & 1)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* Freeing waits for the work that may still use the memory. */
    result = streams_drain(range.ctx);
    if (!ranges_remove(dptr, kinds, &range)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memory_give(&range);
    return result;
}

CUresult IMPL(cuMemGetInfo_v2)(size_t *free_bytes, size_t *total) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    uint64_t capacity = machine_config()->memory_bytes;
    /* The real driver takes NULL for either figure. */
    if (free_bytes != NULL) {
        *free_bytes = capacity - machine_used_bytes(ctx->device);
    }
    if (total != NULL) {
        *total = capacity;
    }
    return CUDA_SUCCESS;
}

CUresult IMPL(cuMemGetAddressRange_v2)(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr) {
    CUcontext ctx;
    struct range range;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!ranges_find(dptr, &range) || range.kind == RANGE_REGISTERED) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (pbase != NULL) {
        *pbase = range.base;
    }
    if (psize != NULL) {
        *psize = range.size;
    }
    return CUDA_SUCCESS;
}
