/* Copy engines. See transfers.h.
 *
 * A transfer goes in chunks. For each chunk it takes its turn on the engine (machine.h), moves the
 * bytes under the shared side of the ranges' lock, and sleeps until the engine's time for the chunk
 * is over. So several processes share an engine fairly, an unmapping waits for one chunk at most,
 * and a chunk whose memory has gone in the meantime is an illegal address, as on a GPU.
 */
#include "transfers.h"

#include <stdlib.h>
#include <string.h>

#include "ranges.h"

struct path {
    enum engine engine;
    int device; /* whose engine */
    uint64_t bandwidth;
    bool throttled;
};

static void *pointer(uint64_t address) {
    return (void *)(uintptr_t)address;
}

/* Where an address lies: a device, or HOST_MEMORY. *known is false for memory the driver never
 * heard of. */
static int place_of(uint64_t address, bool *known) {
    struct range range;
    *known = ranges_find(address, &range);
    return *known ? range.device : HOST_MEMORY;
}

static struct path path_of(CUcontext ctx, const struct copy *copy) {
    const struct config *config = machine_config();
    bool source_known, target_known;
    int source = place_of(copy->source, &source_known);
    int target = place_of(copy->target, &target_known);
    struct path path = {.device = ctx->device, .throttled = true};
    if (source == HOST_MEMORY && target == HOST_MEMORY) {
        path.throttled = false;
    } else if (source == HOST_MEMORY) {
        path.engine = ENGINE_H2D;
        path.device = target;
    } else if (target == HOST_MEMORY) {
        path.engine = ENGINE_D2H;
        path.device = source;
    } else {
        path.engine = source == target ? ENGINE_D2D : ENGINE_PEER;
        path.device = source;
    }
    path.bandwidth = config->bandwidth[path.engine];
    if ((!source_known || !target_known) && config->pageable_bandwidth != 0) {
        path.bandwidth = config->pageable_bandwidth;
    }
    return path;
}

/* The bytes between the first and the last that are touched. */
static uint64_t extent_of(uint64_t pitch, uint64_t slice, size_t width, size_t height,
                          size_t depth) {
    return (height > 1 ? (height - 1) * pitch : 0) + (depth > 1 ? (depth - 1) * slice : 0) + width;
}

/* May a copy touch these bytes? Unknown memory is the program's own. Its device's own engine may be
 * used for memory that only that device may touch. */
static bool side_allowed(CUcontext ctx, uint64_t address, uint64_t bytes, bool on_host,
                         bool writing) {
    bool known;
    int place = place_of(address, &known);
    if (!known) {
        return on_host;
    }
    struct range first;
    if (ranges_find(address, &first) && first.kind == RANGE_REGISTERED &&
        bytes > first.base + first.size - address) {
        return false; /* as the driver does, also where the next piece is registered too */
    }
    return ranges_would_allow(address, bytes, ctx->device, writing) ||
           (place != HOST_MEMORY && ranges_would_allow(address, bytes, place, writing));
}

uint64_t copy_read_bytes(const struct copy *copy) {
    return extent_of(copy->source_pitch, copy->source_slice, copy->width, copy->height,
                     copy->depth);
}

uint64_t copy_written_bytes(const struct copy *copy) {
    return extent_of(copy->target_pitch, copy->target_slice, copy->width, copy->height,
                     copy->depth);
}

CUresult copy_check(CUcontext ctx, const struct copy *copy) {
    if (copy->width == 0 || copy->height == 0 || copy->depth == 0) {
        return CUDA_SUCCESS;
    }
    return side_allowed(ctx, copy->source, copy_read_bytes(copy), copy->source_on_host, false) &&
                   side_allowed(ctx, copy->target, copy_written_bytes(copy), copy->target_on_host,
                                true)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

bool copy_writes_pageable(const struct copy *copy) {
    bool known;
    place_of(copy->target, &known);
    return !known;
}

bool copy_reads_pageable(const struct copy *copy) {
    bool known;
    place_of(copy->source, &known);
    return !known;
}

bool copy_stage(struct copy *copy) {
    unsigned char *bytes = malloc(copy_read_bytes(copy));
    if (bytes == NULL) {
        return false;
    }
    for (size_t slice = 0; slice < copy->depth; slice++) {
        for (size_t line = 0; line < copy->height; line++) {
            uint64_t at = slice * copy->source_slice + line * copy->source_pitch;
            memcpy(bytes + at, pointer(copy->source + at), copy->width);
        }
    }
    copy->staging = bytes;
    copy->source = (uint64_t)(uintptr_t)bytes;
    return true;
}

/* Under ranges_hold. */
static bool piece_allowed(CUcontext ctx, uint64_t address, uint64_t bytes, bool on_host,
                          bool writing, int device) {
    return ranges_allow(address, bytes, ctx->device, writing) ||
           ranges_allow(address, bytes, device, writing) ||
           (on_host && !ranges_touch(address, bytes));
}

static CUresult piece_move(CUcontext ctx, const struct copy *copy, const struct path *path,
                           uint64_t source, uint64_t target, uint64_t bytes) {
    CUresult result = CUDA_ERROR_ILLEGAL_ADDRESS;
    bool known;
    int reader = place_of(source, &known);
    int writer = place_of(target, &known);
    ranges_hold();
    if (piece_allowed(ctx, source, bytes, copy->source_on_host, false,
                      reader == HOST_MEMORY ? path->device : reader) &&
        piece_allowed(ctx, target, bytes, copy->target_on_host, true,
                      writer == HOST_MEMORY ? path->device : writer)) {
        memmove(pointer(target), pointer(source), bytes);
        result = CUDA_SUCCESS;
    }
    ranges_let_go();
    return result;
}

CUresult copy_perform(CUcontext ctx, const struct copy *copy) {
    struct path path = path_of(ctx, copy);
    uint64_t overhead_ns = path.throttled ? machine_config()->copy_overhead_ns : 0;
    uint64_t end_ns = 0;
    uint64_t pending = 0; /* bytes moved whose engine time has not been slept through */
    uint64_t rows = (uint64_t)copy->height * copy->depth;
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t line = row % copy->height;
        uint64_t slice = row / copy->height;
        uint64_t source = copy->source + slice * copy->source_slice + line * copy->source_pitch;
        uint64_t target = copy->target + slice * copy->target_slice + line * copy->target_pitch;
        for (uint64_t done = 0; done < copy->width;) {
            if (context_is_over(ctx)) {
                return CUDA_SUCCESS;
            }
            uint64_t bytes = copy->width - done;
            if (bytes > TRANSFER_CHUNK_BYTES - pending) {
                bytes = TRANSFER_CHUNK_BYTES - pending;
            }
            bool last = row + 1 == rows && done + bytes == copy->width;
            pending += bytes;
            bool pause = path.throttled && (pending == TRANSFER_CHUNK_BYTES || last);
            if (pause) {
                end_ns =
                    machine_engine_take(path.device, path.engine,
                                        overhead_ns + machine_duration_ns(path.device, path.engine,
                                                                          pending, path.bandwidth),
                                        end_ns);
            }
            CUresult result = piece_move(ctx, copy, &path, source + done, target + done, bytes);
            if (result != CUDA_SUCCESS) {
                return result;
            }
            done += bytes;
            if (pause) {
                machine_sleep_until(end_ns);
                machine_count_moved(path.device, path.engine, pending);
                overhead_ns = 0;
            }
            if (pending == TRANSFER_CHUNK_BYTES) {
                pending = 0;
            }
        }
    }
    return CUDA_SUCCESS;
}

CUresult fill_check(CUcontext ctx, const struct fill *fill) {
    if (fill->width == 0 || fill->height == 0) {
        return CUDA_SUCCESS;
    }
    uint64_t row_bytes = (uint64_t)fill->width * fill->element_bytes;
    if (fill->target % fill->element_bytes != 0 || (fill->height > 1 && fill->pitch < row_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return side_allowed(ctx, fill->target, extent_of(fill->pitch, 0, row_bytes, fill->height, 1),
                        false, true)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static void pattern_write(void *target, const struct fill *fill, uint64_t elements) {
    unsigned char *bytes = target;
    if (fill->element_bytes == 1) {
        memset(bytes, (int)(fill->value & 0xff), elements);
        return;
    }
    for (uint64_t i = 0; i < elements; i++) {
        memcpy(bytes + i * fill->element_bytes, &fill->value, fill->element_bytes);
    }
}

CUresult fill_perform(CUcontext ctx, const struct fill *fill) {
    bool known;
    int place = place_of(fill->target, &known);
    int device = place == HOST_MEMORY ? ctx->device : place;
    for (size_t row = 0; row < fill->height; row++) {
        for (uint64_t done = 0; done < fill->width;) {
            if (context_is_over(ctx)) {
                return CUDA_SUCCESS;
            }
            uint64_t elements = fill->width - done;
            if (elements > TRANSFER_CHUNK_BYTES / fill->element_bytes) {
                elements = TRANSFER_CHUNK_BYTES / fill->element_bytes;
            }
            uint64_t target = fill->target + row * fill->pitch + done * fill->element_bytes;
            uint64_t bytes = elements * fill->element_bytes;
            ranges_hold();
            bool allowed = ranges_allow(target, bytes, ctx->device, true) ||
                           ranges_allow(target, bytes, device, true);
            if (allowed) {
                pattern_write(pointer(target), fill, elements);
            }
            ranges_let_go();
            if (!allowed) {
                return CUDA_ERROR_ILLEGAL_ADDRESS;
            }
            done += elements;
        }
    }
    return CUDA_SUCCESS;
}
