/* Private copies of streamed extents, for calls that cannot go with the stream. See launch_gates.h.
 *
 * Invariant: a copy takes its extent's place only after the GPU has done all that was given to it.
 */
#include "cuda.h"
#include "device_memory.h"
#include "launch_state.h"
#include "watch.h"

#include <stdlib.h>

static int fetch_extent(tierline_client *client, uint32_t index, uint32_t extent, uint8_t *buffer) {
    struct tl_arena *arena = &client->arenas[index];
    uint64_t begin_ns = tl_now_ns();
    tl_lock_acquire(&client->lock);
    int code = tl_fetch_bytes(client, index, extent, buffer);
    if (code == 0) {
        client->job.stats.stall_ns += tl_now_ns() - begin_ns;
        client->job.stats.fetched_bytes += tl_extent_length(arena, extent);
    }
    tl_lock_release(&client->lock);
    return code == 0 ? tl_device_replace(arena, extent, buffer, arena->lengths[extent]) : code;
}

/* Gives the streamed extents of these weights private copies. A CUresult. */
int tl_gates_copy(tierline_client *client, uint32_t index, uint64_t generation,
                  const uint32_t *weights, uint32_t count) {
    struct tl_arena *arena = &client->arenas[index];
    if (arena->streamed_count == 0) {
        return ABI_SUCCESS;
    }
    uint8_t *buffer = NULL;
    int code = tl_cuda_enter(arena->on_device.context)
                   ? 0
                   : tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    if (code != 0) {
        return ABI_INVALID_CONTEXT;
    }
    int result = ABI_SUCCESS;
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
            if (buffer == NULL) {
                result = tl_cuda_synchronise();
                buffer = result == ABI_SUCCESS ? malloc(arena->extent_bytes) : NULL;
                if (buffer == NULL) {
                    result = result == ABI_SUCCESS ? (int)ABI_OUT_OF_MEMORY : result;
                    break;
                }
            }
            code = fetch_extent(client, index, e, buffer);
        }
    }
    free(buffer);
    tl_cuda_leave();
    if (code != 0) {
        tl_gates_say("a launch is refused, as its weights cannot be had");
        return ABI_SYSTEM_NOT_READY;
    }
    return result;
}
