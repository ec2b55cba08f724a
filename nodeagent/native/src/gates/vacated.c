/* The call that says where the weights of an arena on a GPU lay before they moved there. */
#include "cuda/cuda.h"
#include "cuda/places.h"
#include "link/request.h"
#include "wire/error.h"

int tierline_vacated(tierline_client *client, uint32_t index, const tierline_place *places,
                     uint32_t count) {
    int code = tl_check_usable(client);
    if (code != 0) {
        return code;
    }
    if (client->device != TIERLINE_DEVICE_CUDA || index >= TIERLINE_MAX_ARENAS ||
        (places == NULL && count > 0)) {
        return tl_fail(TIERLINE_E_ARGUMENT,
                       "keeping old addresses of arena %u: it is not one of a client on a GPU",
                       index);
    }
    tl_lock_acquire(&client->lock);
    struct tl_arena *arena = &client->arenas[index];
    if (arena->state != TL_ARENA_SEALED) {
        code =
            tl_fail(TIERLINE_E_STATE, "keeping old addresses of arena %u: it is not sealed", index);
    } else if (!tl_cuda_enter(arena->on_device.context)) {
        code = tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    } else {
        for (uint32_t i = 0; i < count && code == 0; i++) {
            code = tl_places_keep(&arena->on_device, places[i].address, places[i].bytes);
        }
        tl_cuda_leave();
    }
    tl_lock_release(&client->lock);
    return code;
}
