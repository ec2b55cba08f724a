/* Private copies of streamed extents, for calls that cannot go with the stream. See launch_gates.h.
 *
 * Invariant: a copy takes its extent's place only after the GPU has done all that was given to it.
 */
#include "cuda.h"
#include "device_memory.h"
#include "launch_state.h"
#include "watch.h"

static int put_in_place(struct tl_arena *arena, uint32_t extent, const uint8_t *bytes,
                        uint64_t length, void *into) {
    (void)into;
    return tl_device_replace(arena, extent, bytes, length);
}

/* Straight from the staging memory: a copy in new memory of the process would take longer than all
 * the rest. */
static int fetch_extent(tierline_client *client, uint32_t index, uint32_t extent) {
    uint64_t begin_ns = tl_now_ns();
    tl_lock_acquire(&client->lock);
    int code = tl_fetch_bytes(client, index, extent, put_in_place, NULL);
    if (code == 0) {
        client->job.stats.stall_ns += tl_now_ns() - begin_ns;
        client->job.stats.fetched_bytes += tl_extent_length(&client->arenas[index], extent);
    }
    tl_lock_release(&client->lock);
    return code;
}

/* Gives the streamed extents of these weights private copies. A CUresult. */
int tl_gates_copy(tierline_client *client, uint32_t index, uint64_t generation,
                  const uint32_t *weights, uint32_t count) {
    struct tl_arena *arena = &client->arenas[index];
    if (arena->streamed_count == 0) {
        return ABI_SUCCESS;
    }
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
            if (arena->stream_index[e] == TL_NOT_STREAMED ||
                arena->states[e] == TL_EXTENT_PRIVATE) {
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
