/* The memory of an arena on a GPU: the agent's extents, imported from their descriptors and mapped
 * read-only into one range of device addresses. See arena.h.
 *
 * In addition each ring slot is mapped once more, for writing, at addresses that no program knows;
 * see stand_in.h. A private copy is written at such addresses, too, before it takes its place.
 *
 * Invariant: no operation is under way on a range whose mapping, access or owner changes. One
 * function changes mappings that programs know: `change`. What only the library writes has ended
 * when tl_upload returns.
 */
#include "cuda/device_memory.h"

#include "cuda/cuda.h"
#include "cuda/places.h"
#include "cuda/upload.h"
#include "entry/lifecycle.h"
#include "memory/ranges.h"
#include "wire/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT_BYTES (2UL << 20)

#define UUID_BYTES ((size_t)16)

static uint64_t address_of(const struct tl_arena *arena, uint32_t extent) {
    return (uint64_t)(uintptr_t)tl_extent_address(arena, extent);
}

static uint64_t slot_address(const struct tl_arena *arena, uint32_t slot) {
    return arena->on_device.slots + (uint64_t)slot * arena->extent_bytes;
}

static uint64_t slots_bytes(const struct tl_arena *arena) {
    return (uint64_t)arena->ring_slots * arena->extent_bytes;
}

static int reserve(struct tl_arena *arena) {
    struct tl_device_arena *gpu = &arena->on_device;
    int code = tl_cuda_check(TL_CUDA(USED, cuCtxGetCurrent, &gpu->context),
                             "asking for the current context");
    if (code == 0 && gpu->context == NULL) {
        code = tl_fail(TIERLINE_E_STATE,
                       "reserving an arena: this thread has no CUDA context; use the GPU first "
                       "(torch.cuda.init(), cuCtxSetCurrent)");
    }
    code = code == 0 ? tl_cuda_check(TL_CUDA(USED, cuCtxGetDevice, &gpu->device),
                                     "asking for the context's device")
                     : code;
    gpu->private = calloc(arena->extent_count, sizeof *gpu->private);
    gpu->written = calloc(arena->extent_count, sizeof *gpu->written);
    gpu->hidden = calloc(arena->extent_count, sizeof *gpu->hidden);
    gpu->unseen = calloc(arena->extent_count, sizeof *gpu->unseen);
    gpu->returns = calloc(arena->extent_count, sizeof *gpu->returns);
    gpu->resident = calloc(arena->extent_count, sizeof *gpu->resident);
    gpu->ring = calloc(TL_MAX_RING_SLOTS, sizeof *gpu->ring);
    if (code == 0 && (gpu->private == NULL || gpu->written == NULL || gpu->hidden == NULL ||
                      gpu->unseen == NULL || gpu->returns == NULL || gpu->resident == NULL ||
                      gpu->ring == NULL)) {
        code = tl_fail(TIERLINE_E_NO_MEMORY, "reserving an arena: out of memory for its tables");
    }
    uint64_t address = 0;
    code = code == 0 ? tl_places_high(&gpu->around, &address, tl_arena_bytes(arena)) : code;
    if (code == 0) {
        arena->base = (uint8_t *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
    }
    return code;
}

static void release_handles(uint64_t *handles, uint32_t count) {
    for (uint32_t i = 0; handles != NULL && i < count; i++) {
        if (handles[i] != 0) {
            TL_CUDA(HOOK, cuMemRelease, handles[i]);
            handles[i] = 0;
        }
    }
}

static void forget_tables(struct tl_device_arena *gpu) {
    free(gpu->private);
    free(gpu->written);
    free(gpu->hidden);
    free(gpu->unseen);
    free(gpu->returns);
    free(gpu->resident);
    free(gpu->ring);
    free(gpu->weights);
    free(gpu->old);
    *gpu = (struct tl_device_arena){0};
}

static void give_back(struct tl_arena *arena) {
    struct tl_device_arena *gpu = &arena->on_device;
    for (uint32_t e = 0; e < gpu->mapped; e++) {
        if (!gpu->hidden[e]) {
            TL_CUDA(HOOK, cuMemUnmap, address_of(arena, e), arena->extent_bytes);
        }
    }
    for (uint32_t s = 0; s < gpu->slots_mapped; s++) {
        TL_CUDA(HOOK, cuMemUnmap, slot_address(arena, s), arena->extent_bytes);
    }
    release_handles(gpu->private, arena->extent_count);
    release_handles(gpu->resident, arena->extent_count);
    release_handles(gpu->ring, TL_MAX_RING_SLOTS);
    tl_places_free(&gpu->around);
    for (uint32_t i = 0; i < gpu->old_count; i++) {
        tl_places_free(&gpu->old[i]);
    }
    if (gpu->slots != 0) {
        TL_CUDA(HOOK, cuMemAddressFree, gpu->slots, slots_bytes(arena));
    }
    if (gpu->desk != 0) {
        TL_CUDA(HOOK, cuMemAddressFree, gpu->desk, arena->extent_bytes);
    }
    if (gpu->registered) {
        TL_CUDA(HOOK, cuMemHostUnregister, arena->control);
    }
}

static void release(struct tl_arena *arena) {
    struct tl_device_arena *gpu = &arena->on_device;
    struct range shown;
    (void)ranges_remove((uint64_t)(uintptr_t)arena->base, RANGE_WEIGHTS, &shown);
    /* While the GPU cannot be waited for, as a stream is captured, all stays mapped until the
     * process ends. */
    if (arena->base != NULL && tl_cuda_enter(gpu->context)) {
        if (gpu->mapped == 0 || tl_cuda_synchronise() != ABI_CAPTURE_UNSUPPORTED) {
            give_back(arena);
        }
        tl_cuda_leave();
    }
    arena->base = NULL;
    forget_tables(gpu);
}

/* CUDA does not work in a fork's child: nothing can be given back, and nothing need be. */
static void abandon(struct tl_arena *arena) {
    arena->base = NULL;
    forget_tables(&arena->on_device);
}

static int import(const struct tl_descriptor *descriptors, uint64_t *handles, uint32_t count) {
    int code = 0;
    for (uint32_t i = 0; i < count && code == 0; i++) {
        if (!tl_descriptor_is_ours(&descriptors[i])) {
            return tl_fail(TIERLINE_E_SYSTEM, "importing an extent: " TL_CLOSED_BY_PROGRAM);
        }
        /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
        void *descriptor = (void *)(intptr_t)descriptors[i].number;
        code = tl_cuda_check(TL_CUDA(HOOK, cuMemImportFromShareableHandle, &handles[i], descriptor,
                                     ABI_POSIX_DESCRIPTOR),
                             "importing an extent of the agent's");
    }
    return code;
}

static int accept_extents(struct tl_arena *arena) {
    struct tl_device_arena *gpu = &arena->on_device;
    if (!tl_cuda_enter(gpu->context)) {
        return tl_fail(TIERLINE_E_SYSTEM, "reserving an arena: its CUDA context is gone");
    }
    int code = tl_cuda_check(TL_CUDA(HOOK, cuMemHostRegister_v2, arena->control, TL_CONTROL_BYTES,
                                     ABI_HOST_PORTABLE | ABI_HOST_MAPPED),
                             "registering an arena's control page");
    gpu->registered = code == 0;
    code = code == 0 ? tl_cuda_check(TL_CUDA(USED, cuMemHostGetDevicePointer_v2, &gpu->published,
                                             arena->control, 0),
                                     "addressing an arena's control page")
                     : code;
    gpu->consumed = gpu->published + offsetof(struct tl_control, consumed);
    code = code == 0 ? import(arena->resident, gpu->resident, arena->resident_count) : code;
    code = code == 0 ? import(arena->ring, gpu->ring, arena->ring_slots) : code;
    tl_cuda_leave();
    return code;
}

static int allow(const struct tl_arena *arena, uint64_t address, uint64_t bytes, int flags) {
    struct abi_access access = {.location = {ABI_LOCATION_DEVICE, arena->on_device.device},
                                .flags = flags};
    return tl_cuda_check(TL_CUDA(HOOK, cuMemSetAccess, address, bytes, &access, 1),
                         "making an arena readable");
}

static uint64_t handle_of(const struct tl_arena *arena, uint32_t extent) {
    const struct tl_device_arena *gpu = &arena->on_device;
    uint32_t index = arena->stream_index[extent];
    return index == TL_NOT_STREAMED ? gpu->resident[arena->placement[extent] & ~TL_RESIDENT_BIT]
                                    : gpu->ring[index % arena->ring_slots];
}

static int map_at(const struct tl_arena *arena, uint64_t address, uint64_t handle) {
    return tl_cuda_check(TL_CUDA(HOOK, cuMemMap, address, arena->extent_bytes, 0, handle, 0),
                         "mapping an extent");
}

static int reserve_anywhere(uint64_t *address, uint64_t bytes) {
    return tl_cuda_check(TL_CUDA(HOOK, cuMemAddressReserve, address, bytes, ALIGNMENT_BYTES, 0, 0),
                         "reserving device addresses");
}

static int map_slots(struct tl_arena *arena) {
    struct tl_device_arena *gpu = &arena->on_device;
    if (arena->ring_slots == 0) {
        return 0;
    }
    int code = reserve_anywhere(&gpu->slots, slots_bytes(arena));
    for (; gpu->slots_mapped < arena->ring_slots && code == 0; gpu->slots_mapped += code == 0) {
        code = map_at(arena, slot_address(arena, gpu->slots_mapped), gpu->ring[gpu->slots_mapped]);
    }
    return code == 0 ? allow(arena, gpu->slots, slots_bytes(arena), ABI_ACCESS_READ_WRITE) : code;
}

/* To the program the arena is one allocation, whatever it is mapped from. Without memory for the
 * note the driver answers, extent by extent. */
static void show(const struct tl_arena *arena) {
    const struct range range = {.begin = (uint64_t)(uintptr_t)arena->base,
                                .bytes = tl_arena_bytes(arena),
                                .kind = RANGE_WEIGHTS,
                                .device = arena->on_device.device,
                                .context = arena->on_device.context};
    (void)ranges_add(&range);
}

static int map_all(struct tl_arena *arena) {
    struct tl_device_arena *gpu = &arena->on_device;
    if (!tl_cuda_enter(gpu->context)) {
        return tl_fail(TIERLINE_E_SYSTEM, "sealing an arena: its CUDA context is gone");
    }
    int code = 0;
    for (; gpu->mapped < arena->extent_count && code == 0; gpu->mapped += code == 0) {
        code = map_at(arena, address_of(arena, gpu->mapped), handle_of(arena, gpu->mapped));
    }
    code = code == 0 ? allow(arena, address_of(arena, 0), tl_arena_bytes(arena), ABI_ACCESS_READ)
                     : code;
    code = code == 0 ? map_slots(arena) : code;
    code = code == 0 ? reserve_anywhere(&gpu->desk, arena->extent_bytes) : code;
    if (code == 0) {
        show(arena);
    }
    tl_cuda_leave();
    return code;
}

/* What the GPU may read is a matter of flag words, not of protection. */
static int protect(struct tl_arena *arena, uint32_t first, uint32_t end, bool readable) {
    (void)arena;
    (void)first;
    (void)end;
    (void)readable;
    return 0;
}

/* 0: nothing is. */
static uint64_t mapped_at(const struct tl_arena *arena, uint32_t extent) {
    const struct tl_device_arena *gpu = &arena->on_device;
    uint64_t private = gpu->private[extent];
    return gpu->hidden[extent] ? 0 : private != 0 ? private : handle_of(arena, extent);
}

/* Makes an extent's place show the handle, or nothing if that is 0, with that access. What shows
 * something changes when the GPU has done all that it was given; TIERLINE_E_SYSTEM, with nothing
 * changed, if that cannot be known. Should the driver refuse, the place shows what it showed
 * before, or nothing. */
static int change(struct tl_arena *arena, uint32_t extent, uint64_t handle, int flags) {
    struct tl_device_arena *gpu = &arena->on_device;
    uint64_t place = address_of(arena, extent);
    uint64_t before = mapped_at(arena, extent);
    int code =
        before != 0 ? tl_cuda_check(tl_cuda_synchronise(), "waiting for what uses an extent") : 0;
    if (code == 0 && before != 0 && handle != before) {
        code = tl_cuda_check(TL_CUDA(HOOK, cuMemUnmap, place, arena->extent_bytes),
                             "unmapping an extent");
        gpu->hidden[extent] = code == 0;
    }
    if (code != 0 || handle == 0) {
        return code;
    }
    bool fresh = handle != before;
    code = fresh ? map_at(arena, place, handle) : 0;
    bool mapped = fresh && code == 0;
    code = code == 0 ? allow(arena, place, arena->extent_bytes, flags) : code;
    if (mapped && code != 0) {
        TL_CUDA(HOOK, cuMemUnmap, place, arena->extent_bytes);
    }
    if (fresh && code == 0) {
        gpu->hidden[extent] = false;
    } else if (fresh && before != 0 &&
               TL_CUDA(HOOK, cuMemMap, place, arena->extent_bytes, 0, before, 0) == ABI_SUCCESS) {
        gpu->hidden[extent] = false;
        allow(arena, place, arena->extent_bytes, ABI_ACCESS_READ);
    }
    return code;
}

static int restore(struct tl_arena *arena, uint32_t extent) {
    struct tl_device_arena *gpu = &arena->on_device;
    int code = change(arena, extent, handle_of(arena, extent), ABI_ACCESS_READ);
    if (code == 0 && gpu->private[extent] != 0) {
        release_handles(&gpu->private[extent], 1);
        gpu->private_count--;
        gpu->kept_count -= arena->states[extent] == TL_EXTENT_KEPT;
        gpu->written_count -= gpu->written[extent];
        gpu->written[extent] = false;
        bool resident = arena->stream_index[extent] == TL_NOT_STREAMED;
        arena->states[extent] = resident ? TL_EXTENT_RESIDENT : TL_EXTENT_CLOSED;
    }
    return code;
}

/* Of descriptors of a driver no other table keeps copies: what works on a GPU keeps its own open.
 */
static void recover(struct tl_arena *arena) {
    (void)arena;
}

const struct tl_memory tl_device_memory = {
    .reserve = reserve,
    .release = release,
    .abandon = abandon,
    .accept = accept_extents,
    .map = map_all,
    .protect = protect,
    .restore = restore,
    .recover = recover,
};

/* Fills memory that shows nowhere else. 0 or a code. */
static int write_at_desk(const struct tl_arena *arena, uint64_t handle, const uint8_t *bytes,
                         uint64_t length) {
    uint64_t desk = arena->on_device.desk;
    int code = map_at(arena, desk, handle);
    if (code != 0) {
        return code;
    }
    code = allow(arena, desk, arena->extent_bytes, ABI_ACCESS_READ_WRITE);
    code = code == 0 ? tl_upload(desk, bytes, length) : code;
    int unmapped =
        tl_cuda_check(TL_CUDA(HOOK, cuMemUnmap, desk, arena->extent_bytes), "unmapping an extent");
    return code == 0 ? unmapped : code;
}

int tl_device_replace(struct tl_arena *arena, uint32_t extent, const uint8_t *bytes,
                      uint64_t length) {
    struct tl_device_arena *gpu = &arena->on_device;
    struct abi_allocation wish = {.type = ABI_ALLOCATION_PINNED,
                                  .location = {ABI_LOCATION_DEVICE, gpu->device}};
    uint64_t handle = 0;
    int code = tl_cuda_check(TL_CUDA(HOOK, cuMemCreate, &handle, arena->extent_bytes, &wish, 0),
                             "making device memory for a private copy");
    code = code == 0 ? write_at_desk(arena, handle, bytes, length) : code;
    code = code == 0 ? change(arena, extent, handle, ABI_ACCESS_READ) : code;
    if (code != 0) {
        release_handles(&handle, 1);
        return code;
    }
    gpu->private[extent] = handle;
    gpu->private_count++;
    arena->states[extent] = TL_EXTENT_PRIVATE;
    return 0;
}

int tl_device_hide(struct tl_arena *arena, uint32_t extent) {
    const struct tl_device_arena *gpu = &arena->on_device;
    bool stays = tl_extent_is_private(arena, extent) || gpu->unseen[extent] || gpu->hidden[extent];
    return stays ? 0 : change(arena, extent, 0, 0);
}

int tl_device_show(struct tl_arena *arena, uint32_t extent) {
    return arena->on_device.hidden[extent]
               ? change(arena, extent, handle_of(arena, extent), ABI_ACCESS_READ)
               : 0;
}

int tl_device_let_write(struct tl_arena *arena, uint32_t extent) {
    return change(arena, extent, mapped_at(arena, extent), ABI_ACCESS_READ_WRITE);
}

bool tl_device_gated(void) {
    return lifecycle_active();
}

int tl_device_check(const char *uuid) {
    int device = 0;
    uint8_t bytes[UUID_BYTES] = {0};
    int code =
        tl_cuda_check(TL_CUDA(USED, cuCtxGetDevice, &device), "asking for the current device");
    code = code == 0 ? tl_cuda_check(TL_CUDA(USED, cuDeviceGetUuid_v2, bytes, device),
                                     "asking for the device's UUID")
                     : code;
    if (code != 0) {
        return code;
    }
    char hex[2 * UUID_BYTES + 1];
    for (size_t i = 0; i < UUID_BYTES; i++) {
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    }
    /* "GPU-" or "MIG-", then the same digits in groups. */
    const char *at = strchr(uuid, '-');
    size_t same = 0;
    for (; at != NULL && *at != 0; at++) {
        if (*at != '-') {
            same = same < 2 * UUID_BYTES && hex[same] == *at ? same + 1 : SIZE_MAX / 2;
        }
    }
    if (same != 2 * UUID_BYTES) {
        return tl_fail(TIERLINE_E_STATE,
                       "reserving an arena: the agent's memory is on %s, this thread's context is "
                       "on GPU %s; select the device of the task",
                       uuid[0] != 0 ? uuid : "no GPU", hex);
    }
    return 0;
}
