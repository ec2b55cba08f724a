/* See window.h. */
#include "lease/window.h"

#include "cuda/cuda.h"
#include "cuda/device_memory.h"
#include "driver/standard_error.h"
#include "lease/launch_state.h"
#include "link/request.h"
#include "wire/error.h"
#include "wire/words.h"

#include <stdio.h>
#include <string.h>

#define LOOK_NS 20000U
#define MOST_NAMES 6U
#define NAME_BYTES ((size_t)96)
#define MOST_KNOWN 16384U /* a power of two; what finds no place is as if it were known */
#define MOST_STEPS 32U

static atomic_bool careful;
static _Atomic(const void *) known[MOST_KNOWN];

static struct tl_lock names_lock;
static char names[MOST_NAMES][NAME_BYTES]; /* of the last ones that were launched, no two alike */
static uint32_t noted;

/* ---- functions that careful jobs have launched */

/* The function's place, or the one that it can have; NULL: there is none. */
static _Atomic(const void *) *place_of(const void *function) {
    uint64_t hash = ((uint64_t)(uintptr_t)function >> 4) * 0x9e3779b97f4a7c15U;
    for (uint32_t step = 0; step < MOST_STEPS; step++) {
        _Atomic(const void *) *place = &known[((hash >> 40) + step) % MOST_KNOWN];
        const void *there = atomic_load_explicit(place, memory_order_relaxed);
        if (there == NULL || there == function) {
            return place;
        }
    }
    return NULL;
}

bool tl_window_knows(const void *function) {
    if (function == NULL || atomic_load_explicit(&tl_gates.sealed, memory_order_relaxed) == 0) {
        return true;
    }
    const _Atomic(const void *) *place = place_of(function);
    return place == NULL || atomic_load_explicit(place, memory_order_relaxed) == function;
}

void tl_window_forget(void) {
    for (uint32_t i = 0; i < MOST_KNOWN; i++) {
        atomic_store_explicit(&known[i], NULL, memory_order_relaxed);
    }
}

/* ---- what is hidden */

/* Of one arena, all but [from, past) of its stream. 0 or a code. */
static int hide(struct tl_arena *arena, uint32_t from, uint32_t past) {
    if (!tl_cuda_enter(arena->on_device.context)) {
        return tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    }
    int code = tl_device_hide(arena, from, past);
    tl_cuda_leave();
    return code;
}

/* Of all arenas, but what the job's stream has in the ring if `some`. 0 or a code. */
static int hide_all(tierline_client *client, bool some) {
    int code = 0;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS && code == 0; a++) {
        struct tl_arena *arena = &client->arenas[a];
        if (tl_gates_sealed(a) && arena->streamed_count > 0) {
            bool streams = some && a == tl_gates.arena;
            code = hide(arena, streams ? tl_gates.cursor.consumed : 0,
                        streams ? atomic_load(&tl_gates.highest) : 0);
        }
    }
    return code;
}

int tl_window_meet(tierline_client *client, const void *function) {
    if (tl_window_knows(function)) {
        return 0;
    }
    int code = 0;
    if (!atomic_load(&careful)) {
        tl_lock_acquire(&names_lock);
        noted = 0;
        tl_lock_release(&names_lock);
        atomic_store(&careful, true);
        code = hide_all(client, true);
    }
    _Atomic(const void *) *place = code == 0 ? place_of(function) : NULL;
    if (place != NULL) {
        atomic_store(place, function);
    }
    return code;
}

int tl_window_shut(tierline_client *client) {
    return atomic_load(&careful) ? hide_all(client, false) : 0;
}

int tl_window_close(struct tl_arena *arena, uint32_t from, uint32_t past) {
    return atomic_load(&careful) ? hide(arena, from, past) : 0;
}

static int show(struct tl_arena *arena, uint32_t from, uint32_t past) {
    if (!tl_cuda_enter(arena->on_device.context)) {
        return tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    }
    int mode; /* another stream may be captured */
    tl_cuda_relax(&mode);
    int code = tl_device_show(arena, from, past);
    tl_cuda_restore(&mode);
    tl_cuda_leave();
    return code;
}

int tl_window_open(struct tl_arena *arena, uint32_t from, uint32_t past) {
    if (!atomic_load(&careful)) {
        return 0;
    }
    /* Who gives up publishes more than any count. */
    while (tierline_word_wait(&arena->control->published, past, LOOK_NS) != 0) {
    }
    return show(arena, from, past);
}

int tl_window_show(struct tl_arena *arena) {
    return atomic_load(&careful) ? show(arena, 0, arena->streamed_count) : 0;
}

void tl_window_end(tierline_client *client, int result) {
    if (!atomic_load(&careful)) {
        return;
    }
    tl_window_blame(result);
    atomic_store(&careful, false);
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS && result == ABI_SUCCESS; a++) {
        struct tl_arena *arena = &client->arenas[a];
        if (tl_gates_sealed(a) && show(arena, 0, arena->streamed_count) != 0) {
            tl_gates_say("what a job had hidden cannot be shown");
        }
    }
}

/* ---- which kernels come in question */

void tl_window_note(const void *function) {
    if (function == NULL || !atomic_load_explicit(&careful, memory_order_relaxed)) {
        return;
    }
    const char *name = NULL;
    void *asked = (void *)(uintptr_t)function; /* NOLINT(performance-no-int-to-ptr) */
    if (TL_CUDA(USED, cuFuncGetName, &name, asked) != ABI_SUCCESS &&
        TL_CUDA(USED, cuKernelGetName, &name, asked) != ABI_SUCCESS) {
        name = "one without a name";
    }
    tl_lock_acquire(&names_lock);
    char fresh[NAME_BYTES];
    snprintf(fresh, sizeof fresh, "%s", name);
    uint32_t at = 0;
    while (at < noted && strcmp(names[at], fresh) != 0) {
        at++;
    }
    noted += at == noted && noted < MOST_NAMES;
    at = at < noted ? at : noted - 1;
    memmove(names[1], names[0], at * NAME_BYTES);
    memcpy(names[0], fresh, NAME_BYTES);
    tl_lock_release(&names_lock);
}

/* The agent keeps it for the next process of the task, which is to stream nothing. */
static void tell(const char *list) {
    tierline_client *client = tl_gates.client;
    struct tlp_message message = {.type = TLP_NOTICE};
    message.notice.kind = TLP_NOTICE_KIND_READS_UNSEEN;
    memcpy(message.notice.text, list, strnlen(list, sizeof message.notice.text - 1));
    tl_lock_acquire(&client->lock);
    tl_send_one_way(client, &message);
    tl_lock_release(&client->lock);
}

void tl_window_blame(int result) {
    static atomic_bool said;
    if (result != ABI_ILLEGAL_ADDRESS || !atomic_load(&careful) || atomic_exchange(&said, true)) {
        return;
    }
    char list[MOST_NAMES * (NAME_BYTES + 2)] = "";
    size_t length = 0;
    tl_lock_acquire(&names_lock);
    for (uint32_t i = 0; i < noted; i++) {
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%s", i > 0 ? ", " : "",
                                   names[i]);
    }
    tl_lock_release(&names_lock);
    standard_error_say(
        "tierline: a kernel read where no weight is now: it found a weight's address by another "
        "way than its parameters, and would have read another layer's bytes. It is one of those "
        "that were launched last (the latest first): %s. The next process of the task streams "
        "nothing; to stream the rest, keep what that kernel reads resident (swap.objects)\n",
        list);
    tell(list);
}
