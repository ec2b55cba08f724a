/* See launch_state.h. */
#include "lease/launch_state.h"

#include "driver/abi.h"
#include "driver/standard_error.h"

#include <stdio.h>

#define MOST_SENTENCES 10
#define ENDED_WORD 0x7fffffffU

struct tl_gates tl_gates;

void tl_gates_say(const char *what) {
    static atomic_int said;
    if (atomic_fetch_add(&said, 1) < MOST_SENTENCES) {
        standard_error_say("tierline: %s: %s\n", what, tierline_last_error());
    }
}

void *tl_gates_context(const tierline_client *client) {
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        if (tl_gates_sealed(a)) {
            return client->arenas[a].on_device.context;
        }
    }
    return client->workspace.lent ? client->workspace.context : NULL;
}

void tl_monitor_wake(void) {
    __atomic_add_fetch(&tl_gates.wake, 1, __ATOMIC_SEQ_CST);
    tl_futex_wake_all(&tl_gates.wake, false);
}

/* Either it sees the count before it sleeps, or it is seen to doze. */
void tl_monitor_stir(void) {
    __atomic_add_fetch(&tl_gates.wake, 1, __ATOMIC_SEQ_CST);
    if (atomic_load(&tl_gates.dozing)) {
        tl_futex_wake_all(&tl_gates.wake, false);
    }
}

/* Nothing can put right bytes where the GPU waits for them. */
void tl_monitor_give_up(struct tl_arena *arena) {
    standard_error_say("tierline: the job's weights cannot be had, its results are void: %s\n",
                       tierline_last_error());
    atomic_store(&tl_gates.failed, ABI_LAUNCH_FAILED);
    tierline_word_publish(&arena->control->published, ENDED_WORD);
}
