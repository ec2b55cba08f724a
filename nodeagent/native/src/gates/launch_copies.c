/* See launch_copies.h.
 *
 * Most last for a job. Those of weights whose addresses the program has copied to the device last
 * as long as the arena: any launch may read these, and would not name them.
 *
 * Copies are fetched with the client's lock, which the GPU may need to go on (launch_monitor.h): so
 * before they are, all that names weights has ended; calls that would begin more wait for the
 * gates' lock.
 */
#include "gates/launch_copies.h"

#include "cuda/cuda.h"
#include "cuda/device_memory.h"
#include "cuda/upload.h"
#include "gates/watch.h"
#include "lease/launch_state.h"
#include "lease/window.h"
#include "link/request.h"
#include "loading/fetch.h"

#include <stdio.h>

static int put_in_place(struct tl_arena *arena, uint32_t extent, const uint8_t *bytes,
                        uint64_t length, void *into) {
    const tierline_client *client = into;
    tl_upload_pin(client->staging, client->staging_slots * client->terms.extent_bytes,
                  client->generation);
    return tl_device_replace(arena, extent, bytes, length);
}

/* Straight from the staging memory: a copy in new memory of the process would take longer than all
 * the rest. */
static int fetch_extent(tierline_client *client, uint32_t index, uint32_t extent) {
    uint64_t begin_ns = tl_now_ns();
    tl_lock_acquire(&client->lock);
    int code = tl_fetch_bytes(client, index, extent, put_in_place, client);
    if (code == 0) {
        client->job.stats.stall_ns += tl_now_ns() - begin_ns;
        client->job.stats.fetched_bytes += tl_extent_length(&client->arenas[index], extent);
    }
    tl_lock_release(&client->lock);
    return code;
}

/* Gives the extents of these weights private copies, the resident ones only if `all`. */
static int copy_extents(tierline_client *client, uint32_t index, uint64_t generation,
                        const uint32_t *weights, uint32_t count, bool all) {
    struct tl_arena *arena = &client->arenas[index];
    int code = tl_cuda_enter(arena->on_device.context)
                   ? 0
                   : tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    if (code != 0) {
        return ABI_INVALID_CONTEXT;
    }
    int result = ABI_SUCCESS;
    bool waited = false;
    for (uint32_t i = 0; i < count && code == 0 && result == ABI_SUCCESS; i++) {
        const struct tl_watched *watched = tl_watch_find(generation, weights[i]);
        if (watched == NULL || watched->arena != index) {
            continue;
        }
        const struct tl_weight *weight = &arena->on_device.weights[watched->weight];
        for (uint32_t e = weight->first; e <= weight->last && code == 0; e++) {
            bool resident = arena->stream_index[e] == TL_NOT_STREAMED;
            if ((resident && !all) || tl_extent_is_private(arena, e)) {
                continue;
            }
            result = waited ? (int)ABI_SUCCESS : tl_cuda_synchronise();
            if (result != ABI_SUCCESS) {
                break;
            }
            waited = true;
            code = fetch_extent(client, index, e);
        }
    }
    tl_cuda_leave();
    if (code != 0) {
        tl_gates_say("a launch is refused, as its weights cannot be had");
        return ABI_SYSTEM_NOT_READY;
    }
    return result;
}

int tl_gates_copy(tierline_client *client, uint32_t index, uint64_t generation,
                  const uint32_t *weights, uint32_t count) {
    return client->arenas[index].streamed_count == 0
               ? (int)ABI_SUCCESS
               : copy_extents(client, index, generation, weights, count, false);
}

static void tell_kept(tierline_client *client, uint64_t bytes) {
    struct tlp_message message = {.type = TLP_NOTICE};
    message.notice.kind = TLP_NOTICE_KIND_STAYS_RESIDENT;
    message.notice.size_bytes = bytes;
    snprintf(message.notice.text, sizeof message.notice.text,
             "the program copied their addresses to the device, where launches may read them "
             "unseen");
    tl_lock_acquire(&client->lock);
    tl_send_one_way(client, &message);
    tl_lock_release(&client->lock);
}

/* Launches may read it unseen where it is resident. */
static void leave_shown(tierline_client *client, const struct tl_watched *watched) {
    struct tl_arena *arena = &client->arenas[watched->arena];
    const struct tl_weight *weight = &arena->on_device.weights[watched->weight];
    for (uint32_t e = weight->first; e <= weight->last; e++) {
        arena->on_device.unseen[e] = arena->stream_index[e] == TL_NOT_STREAMED;
    }
}

/* The copies of one weight stay. Returns their bytes. */
static uint64_t keep_copies(tierline_client *client, const struct tl_watched *watched) {
    struct tl_arena *arena = &client->arenas[watched->arena];
    const struct tl_weight *weight = &arena->on_device.weights[watched->weight];
    uint64_t kept = 0;
    for (uint32_t e = weight->first; e <= weight->last; e++) {
        if (arena->states[e] == TL_EXTENT_PRIVATE) {
            arena->states[e] = TL_EXTENT_KEPT;
            arena->on_device.kept_count++;
            kept += tl_extent_length(arena, e);
        }
    }
    return kept;
}

int tl_gates_keep(tierline_client *client, uint64_t generation, const uint32_t *weights,
                  uint32_t count) {
    int result = ABI_SUCCESS;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS && result == ABI_SUCCESS; a++) {
        result = tl_gates_sealed(a) ? tl_gates_copy(client, a, generation, weights, count)
                                    : (int)ABI_SUCCESS;
    }
    uint64_t kept = 0;
    for (uint32_t i = 0; i < count && result == ABI_SUCCESS; i++) {
        const struct tl_watched *watched = tl_watch_find(generation, weights[i]);
        bool ours = watched != NULL && tl_gates_sealed(watched->arena);
        if (ours) {
            kept += keep_copies(client, watched);
            leave_shown(client, watched);
        }
    }
    if (kept > 0) {
        tell_kept(client, kept);
    }
    return result;
}

bool tl_gates_stay(const tierline_client *client, uint64_t generation, const uint32_t *weights,
                   uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const struct tl_watched *watched = tl_watch_find(generation, weights[i]);
        if (watched == NULL || !tl_gates_sealed(watched->arena)) {
            continue;
        }
        const struct tl_arena *arena = &client->arenas[watched->arena];
        const struct tl_weight *weight = &arena->on_device.weights[watched->weight];
        for (uint32_t e = weight->first; e <= weight->last; e++) {
            if (arena->stream_index[e] != TL_NOT_STREAMED && arena->states[e] != TL_EXTENT_KEPT) {
                return false;
            }
        }
    }
    return true;
}

/* The copies of one weight may be written. 0 or a code. */
static int let_write(tierline_client *client, const struct tl_watched *watched) {
    struct tl_arena *arena = &client->arenas[watched->arena];
    struct tl_device_arena *gpu = &arena->on_device;
    const struct tl_weight *weight = &gpu->weights[watched->weight];
    keep_copies(client, watched);
    if (!tl_cuda_enter(gpu->context)) {
        return tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    }
    int code = 0;
    for (uint32_t e = weight->first; e <= weight->last && code == 0; e++) {
        if (!gpu->written[e]) {
            code = tl_device_let_write(arena, e);
            gpu->written[e] = code == 0;
            gpu->written_count += code == 0;
        }
    }
    tl_cuda_leave();
    return code;
}

int tl_gates_let_write(tierline_client *client, uint64_t generation, const uint32_t *weights,
                       uint32_t count) {
    int result = ABI_SUCCESS;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS && result == ABI_SUCCESS; a++) {
        result = tl_gates_sealed(a) ? copy_extents(client, a, generation, weights, count, true)
                                    : (int)ABI_SUCCESS;
    }
    int code = 0;
    for (uint32_t i = 0; i < count && result == ABI_SUCCESS && code == 0; i++) {
        const struct tl_watched *watched = tl_watch_find(generation, weights[i]);
        bool ours = watched != NULL && tl_gates_sealed(watched->arena);
        code = ours ? let_write(client, watched) : 0;
    }
    if (code != 0) {
        tl_gates_say("a call is refused, as the weights that it may write cannot be had");
        return ABI_SYSTEM_NOT_READY;
    }
    return result;
}

int tl_gates_stored(tierline_client *client, uint32_t index, uint32_t extent) {
    tl_lock_acquire(&tl_gates.lock);
    struct tl_arena *arena = &client->arenas[index];
    int code = 0;
    if (tl_gates_sealed(index) && arena->on_device.written[extent]) {
        code = tl_cuda_enter(arena->on_device.context)
                   ? arena->memory->restore(arena, extent)
                   : tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
        tl_cuda_leave();
        tl_window_forget();
    }
    tl_lock_release(&tl_gates.lock);
    return code;
}
