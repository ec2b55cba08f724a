/* See flow.h. */
#include "gates/flow.h"

#include "cuda/streams.h"
#include "driver/abi.h"
#include "lease/launch_state.h"

int tl_gates_give_back(struct tl_stream *stream, const struct tl_arena *arena, uint32_t value) {
    if (value <= tl_gates.cursor.consumed) {
        return ABI_SUCCESS;
    }
    int result = tl_stream_give_back(stream, arena->on_device.consumed, value);
    tl_gates.cursor.consumed = result == ABI_SUCCESS ? value : tl_gates.cursor.consumed;
    return result;
}

bool tl_gates_announce(uint32_t needs) {
    uint32_t before = atomic_load(&tl_gates.highest);
    if (needs > before) {
        atomic_store(&tl_gates.highest, needs);
    }
    if (atomic_load(&tl_gates.orphaned)) {
        atomic_store(&tl_gates.highest, before);
        return false;
    }
    return true;
}
